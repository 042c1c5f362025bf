"""Random programs as `async def`: their tools and helpers awaited, some loops over async generators. They mean what they meant."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from hypothesis import given

from tests.conformance.harness import conform
from tests.conformance.programs import compiled, sources
from tests.conformance.search import ITEMS
from tests.searching import search


async def lifted(fn: Callable[..., Any], *args: Any) -> Any:
    """A tool that takes its time."""
    await asyncio.sleep(0)
    return fn(*args)


async def steps(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        await asyncio.sleep(0)
        yield item


class _Async(ast.NodeTransformer):
    """Awaits the tools, and iterates ranges asynchronously, where `await` may stand."""

    tools = frozenset({"tool", "shout", "flaky", "keep", "words"})

    def visit_Lambda(self, node: ast.AST) -> ast.AST:
        return node

    visit_GeneratorExp = visit_ClassDef = visit_Lambda

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name not in ("program", "inner"):  # the others are called where `await` may not stand
            return node
        self.generic_visit(node)
        return ast.AsyncFunctionDef(node.name, node.args, node.body, node.decorator_list)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "inner":
            return ast.Await(node)
        if name in self.tools:
            return ast.Await(ast.Call(ast.Name("lifted", ast.Load()), [node.func, *node.args], node.keywords))
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.iter, ast.Call) or getattr(node.iter.func, "id", "") != "range":
            return node
        over = ast.Call(ast.Name("steps", ast.Load()), [node.iter], [])
        return ast.AsyncFor(node.target, over, node.body, node.orelse)


def asynchronous(source: str) -> str:
    source = source.replace("(lambda t: inner(t) + '!')(", "'!' + inner(")
    tree = ast.fix_missing_locations(_Async().visit(ast.parse(source)))
    return "from tests.conformance.test_random_async import lifted, steps\n" + ast.unparse(tree) + "\n"


@search(3, 40)
@given(sources())
def test_random_async_programs(source: str) -> None:
    source = asynchronous(source)
    program, reset, look = compiled(source)
    conform(program, ITEMS, reset=reset, outside=look, batch=False, temperature=0.8)
