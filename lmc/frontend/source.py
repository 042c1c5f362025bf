"""The source of functions: which part of which file a code object came from, as certain as it can be."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import ast
import linecache
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass

from lmc.errors import Loc
from lmc.frontend.values import TraceEscape

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class CannotInstrument(TraceEscape):
    """The function's source is missing or uses what capture does not know; the message names the place."""


@dataclass(frozen=True)
class Found:
    """A function in the source of its file."""

    node: FunctionNode
    class_name: str | None  # the class it is defined in, for names like `__private`


@dataclass(frozen=True)
class _Module:
    """The parsed and compiled source of a file: its functions and their code by first line and name."""

    text: str
    functions: dict[tuple[int, str], list[Found]]
    codes: dict[tuple[int, str], list[types.CodeType]]


_modules: dict[str, _Module] = {}

tried: dict[str, frozenset[int]] = {}
"""By file, the lines whose exceptions a `try` around them may see."""

parsing = threading.RLock()
"""CPython 3.11 raises SystemError ("AST constructor recursion depth mismatch") where two threads parse or compile at once."""


def find(fn: types.FunctionType) -> Found:
    """The source of a function. Raises CannotInstrument if it is not there, not the one that was imported, or one of several."""
    code = fn.__code__
    where = Loc(code.co_filename, code.co_firstlineno)
    module = _module(code.co_filename)
    if module is None:
        raise CannotInstrument(f"{fn.__qualname__} has no readable source ({where})")
    place = (code.co_firstlineno, code.co_name)
    nodes = module.functions.get(place, [])
    if not nodes or not any(_same_code(code, c) for c in module.codes.get(place, [])):
        raise CannotInstrument(f"the source of {fn.__qualname__} at {where} is not the one that was imported")
    if len(nodes) > 1:
        raise CannotInstrument(f"several functions named {code.co_name} start at {where}")
    return nodes[0]


def node_of(code: types.CodeType) -> FunctionNode | None:
    """The source of code that was instrumented or that `instrument` would take; None if it is not certain which it is."""
    module = _module(code.co_filename)
    if module is None:
        return None
    nodes = module.functions.get((code.co_firstlineno, code.co_name)) or [  # what was instrumented begins behind its decorators
        found for (_, name), some in module.functions.items() if name == code.co_name for found in some if found.node.lineno == code.co_firstlineno]  # fmt: skip
    return nodes[0].node if len(nodes) == 1 else None


def _module(file: str) -> _Module | None:
    """The source of a file, cached while the text stays the same."""
    text = "".join(linecache.getlines(file))
    if not text:
        return None
    cached = _modules.get(file)
    if cached is None or cached.text != text:
        try:
            with parsing:
                tree, compiled = ast.parse(text, file), compile(text, file, "exec", dont_inherit=True)
        except SyntaxError:
            return None
        cached = _modules[file] = _Module(text, {}, {})
        for found in _functions(tree):
            cached.functions.setdefault((first_line(found.node), getattr(found.node, "name", "<lambda>")), []).append(found)
        for code in codes(compiled):
            cached.codes.setdefault((code.co_firstlineno, code.co_name), []).append(code)
        tried[file] = _tried_lines(tree)
    return cached


def _same_code(a: types.CodeType, b: types.CodeType) -> bool:
    """Whether two code objects came from the same source (the file may have been edited since it was imported)."""
    if any(name.startswith("@py") for name in a.co_varnames + a.co_names):
        return True  # pytest rewrote the module's asserts
    return a.co_code == b.co_code and a.co_names == b.co_names and [c for c in a.co_consts if not isinstance(c, types.CodeType)] == [
        c for c in b.co_consts if not isinstance(c, types.CodeType)
    ]


# -- what is in a file ---------------------------------------------------------------------------------------------


def _functions(tree: ast.AST, class_name: str | None = None) -> Iterator[Found]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, child.name)
        else:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield Found(child, class_name)
            yield from _functions(child, class_name)


def first_line(node: ast.AST) -> int:
    """Where the code of a definition says that it begins."""
    decorators = getattr(node, "decorator_list", [])
    return decorators[0].lineno if decorators else node.lineno  # type: ignore[attr-defined]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and that of the functions and classes inside of it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


def _tried_lines(tree: ast.Module) -> frozenset[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try | ast.TryStar):
            inside: list[ast.AST] = [*node.body]
            if node.finalbody:
                inside += [*node.handlers, *node.orelse]
            for stmt in inside:
                found.update(range(stmt.lineno, (stmt.end_lineno or stmt.lineno) + 1))  # type: ignore[attr-defined]
    return frozenset(found)
