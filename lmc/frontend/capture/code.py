"""Functions compiled to closures, once per code object: their parameters, body and possible effects."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import thread_time
from typing import TYPE_CHECKING, Any

from lmc.errors import Loc
from lmc.frontend.capture.outside import is_users
from lmc.frontend.capture.scan import PossibleEffects, bound_once, effects
from lmc.frontend.scopes import Bindings, Comprehension
from lmc.frontend.source import FunctionNode, NoSource, find

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Frame

Eval = Callable[["Frame"], Any]
"""An expression, compiled: its value in a frame. Of a statement: its Signal."""


Place = tuple[str, int, str]
"""Of a function: file, first line and name. A journaled run has code of its own at the same place."""


def place_of(code: types.CodeType) -> Place:
    return code.co_filename, code.co_firstlineno, code.co_name


class NotUnderstood(Exception):
    """A function whose source is missing, or that uses something the evaluator does not know: unknown code."""


class Scope:
    """The names of a function or comprehension while it is compiled."""

    def __init__(self, bindings: Any, parent: Scope | None, file: str, free: Sequence[str] = (), class_name: str | None = None) -> None:
        self.bindings, self.parent, self.file, self.class_name = bindings, parent, file, class_name
        self.free = frozenset(free)  # of a function of the outside: names in its cells
        self.is_comprehension = isinstance(bindings, Comprehension)

    def kind(self, name: str) -> str:
        """Return where a name lives: "local", "outer" (an enclosing frame) or "global"."""
        if name in self.bindings.global_:
            return "global"
        if name in self.bindings.bound:
            return "local"
        scope: Scope | None = self
        while scope is not None:
            if name in scope.free:
                return "outer"
            scope = scope.parent
            if scope is not None and name in scope.bindings.bound:
                return "outer"
        return "global"

    def loc(self, node: ast.AST) -> Loc:
        return Loc(self.file, node.lineno, node.col_offset)  # pyright: ignore[reportAttributeAccessIssue]

    def mangled(self, name: str) -> str:
        """Return a private name as it is stored: `__x` in class C is `_C__x`."""
        if self.class_name and name.startswith("__") and not name.endswith("__"):
            return f"_{self.class_name.lstrip('_')}{name}"
        return name


class Code:
    """A function: `body(frame)` runs it."""

    def __init__(self, node: FunctionNode, scope: Scope, name: str, python: types.CodeType | None) -> None:
        self.name, self.is_lambda = name, isinstance(node, ast.Lambda)
        self.place = None if python is None else place_of(python)
        a = node.args
        self.positional = tuple(p.arg for p in (*a.posonlyargs, *a.args))
        self.binder = _binder(a, scope)
        statements: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
        self.effects: PossibleEffects = effects(statements)
        self.is_generator = self.effects.yields and not isinstance(node, ast.Lambda)
        self.is_async = isinstance(node, ast.AsyncFunctionDef)
        self.once = bound_once(statements, [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]) if python is not None else frozenset[str]()
        self.writes_globals = tuple(scope.bindings.global_)
        self.nonlocals = tuple(scope.bindings.nonlocal_)
        bound = frozenset(scope.bindings.bound)
        self.free_effects = replace(self.effects, touched=self.effects.touched - bound, names=frozenset())
        """Effects, except those on its own names."""
        if self.is_generator and self.is_async:
            raise NotUnderstood("an async generator")
        from lmc.frontend.capture.statements import block  # which compiles functions in turn

        self.body: Eval = block([ast.copy_location(ast.Return(node.body), node.body)] if isinstance(node, ast.Lambda) else node.body, scope)


def _binder(a: ast.arguments, scope: Scope) -> types.CodeType:
    """Compile a function with these parameters that returns its arguments by name."""
    bare = lambda p: p and ast.arg(scope.mangled(p.arg))
    optional: list[ast.expr | None] = [None for _ in a.kwonlyargs]
    parts = [bare(p) for p in a.posonlyargs], [bare(p) for p in a.args], bare(a.vararg), [bare(p) for p in a.kwonlyargs], optional
    made = ast.Lambda(ast.arguments(*parts, bare(a.kwarg), []), ast.Call(ast.Name("locals", ast.Load()), [], []))
    return eval(compile(ast.fix_missing_locations(ast.Expression(made)), "<parameters>", "eval")).__code__


spent = 0.0
"""CPU seconds spent compiling functions so far: approximate, counted without a lock."""

_codes: dict[tuple[types.CodeType, str], Code | NotUnderstood] = {}
_MOST_CODES = 10_000


def code_of(fn: types.FunctionType) -> Code:
    """Return the compiled code of a function of the user's, made once per code object. Raises NotUnderstood."""
    global spent
    key = fn.__code__, fn.__code__.co_filename  # code objects compare equal across files
    found = _codes.get(key)
    if found is None:
        began = thread_time()
        try:
            found = _compiled(fn)
        except NotUnderstood as error:
            found = error.with_traceback(None)
        except RecursionError:
            found = NotUnderstood("nested too deep")
        if len(_codes) >= _MOST_CODES:
            _codes.clear()
        _codes[key] = found
        spent += thread_time() - began
    if isinstance(found, NotUnderstood):
        raise found
    return found


def _compiled(fn: types.FunctionType) -> Code:
    python = fn.__code__
    if not is_users(python.co_filename):
        raise NotUnderstood(f"{fn.__qualname__} is not the program's own")
    try:
        found = find(fn)
    except NoSource as error:
        raise NotUnderstood(str(error)) from None
    scope = Scope(Bindings(found.node), None, python.co_filename, python.co_freevars, found.class_name)
    return Code(found.node, scope, python.co_name, python)
