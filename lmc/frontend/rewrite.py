"""What every part of the rewriting needs: calls of hooks, names and where they live, values kept for later."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations
import __future__

import ast
import types
from typing import Any

from lmc.errors import Loc
from lmc.frontend.instrumented import HOOKS_NAME
from lmc.frontend.scopes import Bindings, ClassBindings, Comprehension
from lmc.frontend.source import CannotInstrument
from lmc.frontend.syntax import assign, load, place_new, placed, shape

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.LShift: "<<",
    ast.RShift: ">>", ast.BitOr: "|", ast.BitXor: "^", ast.BitAnd: "&", ast.MatMult: "@",
}  # fmt: skip
"""The operators of Python by their sign, as hooks name them; also those of `a += b`."""


class Rewriter(ast.NodeTransformer):
    """The parts of the rewriting are its subclasses, by what they rewrite. They meet in `instrument.Rewrite`."""

    def __init__(self, fn: types.FunctionType, class_name: str | None) -> None:
        self.globals = fn.__globals__
        self.file = fn.__code__.co_filename
        self.free = set(fn.__code__.co_freevars)
        self.class_name = class_name
        self.evaluates_annotations = not fn.__code__.co_flags & __future__.annotations.compiler_flag
        self.scopes: list[Bindings | Comprehension] = []
        self.temps = 0
        self.managers = set[ast.AST]()  # functions under @contextmanager
        self.guarding = set[tuple[str, int]]()  # those of them that may handle what is raised where they are left, by name and line
        self.cleaning = set[tuple[str, int]]()  # other generator functions that do something where they are left
        self.thunks = 0  # > 0 where an assignment expression is not allowed
        self.awaits = False  # whether `await` is allowed here, so that reads need not hold the event loop

    # new nodes

    def hook(self, name: str, *args: ast.expr, at: ast.AST, keywords: list[ast.keyword] | None = None) -> ast.Call:
        """`__lmc__.name(args)` at the place of `at`."""
        target = ast.Attribute(ast.Name(HOOKS_NAME, ast.Load()), name, ast.Load())
        call = ast.Call(target, list(args), keywords or [])
        place_new(call, at)
        target.end_lineno, target.end_col_offset = target.lineno, target.col_offset  # or the call would count as on its last line
        return call

    def temp(self) -> str:
        """A variable that the program does not have."""
        self.temps += 1
        return f"__lmc_t{self.temps}__"

    def const(self, value: Any, at: ast.AST) -> ast.expr:
        return ast.copy_location(ast.Constant(value), at)

    def _own(self, name: str, at: ast.AST) -> ast.stmt:
        """`name = made(name)`: a container that Python made for the program."""
        return assign(name, self.hook("made", load(name, at), at=at), at)

    def awaited(self, value: ast.expr, at: ast.AST) -> ast.expr:
        return ast.copy_location(ast.Await(value), at)

    def refuse(self, what: str, at: ast.AST) -> CannotInstrument:
        return CannotInstrument(f"{what} ({Loc(self.file, getattr(at, 'lineno', 0))})")

    # names

    def mangle(self, name: str) -> str:
        """A name as Python stores it: `__private` ones of classes differ from what is written."""
        if self.class_name and name.startswith("__") and not name.endswith("__") and "." not in name:
            return f"_{self.class_name.lstrip('_')}{name}"
        return name

    def place(self, name: str) -> str:
        """Where a name lives: `local` (also cells of traced functions), `free` (outside cells) or `global`."""
        innermost = True
        for scope in reversed(self.scopes):
            if name in scope.global_:
                return "global"
            if name in scope.bound and (innermost or not isinstance(scope, ClassBindings)):
                return "local"
            innermost = False
        return "free" if name in self.free else "global"

    def _shared(self, name: str) -> bool:
        """Whether the code here declares a name nonlocal that is of a traced function around it."""
        return bool(self.scopes) and name in self.scopes[-1].nonlocal_ and any(name in scope.bound for scope in self.scopes[:-1])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        where, node.id = self.place(node.id), self.mangle(node.id)
        if not isinstance(node.ctx, ast.Load) or node.id.startswith("__lmc"):
            return node
        if where == "local":
            return node
        return self.hook("glob" if where == "global" else "free", self.const(node.id, node), node, at=node)

    # what several parts rewrite

    def _starred(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Starred):
            return ast.copy_location(ast.Starred(self.hook("star", self.visit(node.value), at=node), node.ctx), node)
        return self.visit(node)

    def _spec(self, target: ast.expr) -> ast.expr | None:
        """The shape of a target that unpacks, for the hook that does it; None for any other."""
        found = shape(target)
        return None if found is None else placed(ast.Constant(found), target)
