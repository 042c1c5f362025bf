"""Closed programs: all their calls are known from their source. Such a program never blocks and holds no lock while it
waits for answers, so its runs need no threads of their own (lmc/frontend/fibers.py). In doubt a program is not
closed."""

from __future__ import annotations

import ast
import builtins
import collections
import dataclasses
import enum
import re
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, Protocol

from lmc.code_origin import is_users
from lmc.frontend.capture.outside import is_quiet
from lmc.frontend.capture.table import PURE_METHODS, is_known
from lmc.frontend.expressions import Expr
from lmc.frontend.source import FunctionNode, NoSource, find

_SCALARS = (str, int, float, bool, complex, bytes, type(None), enum.Enum, re.Pattern, Expr, type(...))
_CONTAINERS = (tuple, list, dict, set, frozenset, collections.deque, collections.Counter, collections.defaultdict, types.MappingProxyType)
_BLOCKING = frozenset(
    map(id, (time.sleep, builtins.input, builtins.open, builtins.exec, builtins.eval, builtins.compile, builtins.__import__, builtins.breakpoint))
)
_SCOPES = frozenset({"system", "user", "assistant", "var_scope", "copy"})
"""Methods of a state that are entered by `with`."""
_METHODS = frozenset[str]().union(
    *PURE_METHODS.values(), *({n for n in dir(kind) if not n.startswith("_")} for kind in (list, dict, set, collections.deque, collections.Counter)),
    _SCOPES, {"fork", "join", "text", "messages", "error", "usage", "get_var", "set_var", "get_meta_info", "parsed", "sync"},
)  # fmt: skip
"""Of plain data and states. An object of another type with a method of such a name is an argument, or outside: neither
is closed."""
_REFUSED = (ast.AsyncWith, ast.AsyncFor, ast.Await, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_MISSING = object()


class CheckedProgram(Protocol):
    func: Callable[..., Any]
    is_async: bool


def is_closed(function: CheckedProgram, arguments: Iterable[Mapping[str, Any]], kind: type[Any]) -> bool:
    """Return whether runs of a program with these arguments make no unknown calls. `kind`: the class of all programs."""
    return all(_is_plain(x) for given in arguments for x in given.values()) and _Closed(kind).is_closed(function.func)


def _is_plain(x: Any) -> bool:
    """Return whether a value is data, whatever it holds: the contents of a container are only reached by checked
    names."""
    kind = type(x)  # `isinstance` would ask an object for its class
    return issubclass(kind, _SCALARS) or kind in _CONTAINERS or (is_quiet(kind) and not issubclass(kind, type) and dataclasses.is_dataclass(kind))


class _Closed:
    """One look at a program and at the functions that it calls."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind
        self._seen: set[types.CodeType] = set()  # visited, or being visited

    def is_closed(self, fn: Any) -> bool:
        """Return whether a function of the user's makes no unknown calls."""
        if type(fn) is not types.FunctionType or not is_users(fn.__code__.co_filename):
            return False
        if fn.__code__ in self._seen:
            return True
        self._seen.add(fn.__code__)
        try:
            body = _Body(fn)
        except NoSource:
            return False
        return all(self._allows(body, node) for node in body.nodes)

    def _allows(self, body: _Body, node: ast.AST) -> bool:
        if isinstance(node, _REFUSED) or (isinstance(node, ast.FunctionDef) and node.decorator_list):
            return False
        if isinstance(node, ast.With):
            called = [item.context_expr.func if isinstance(item.context_expr, ast.Call) else None for item in node.items]
            return all(isinstance(func, ast.Attribute) and func.attr in _SCOPES and body.outside(func) is None for func in called)
        if isinstance(node, ast.Call):
            return self._may_call(body, node.func)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not body.is_own(node.id):
            return _is_plain(x := body.found(node.id)) or type(x) is types.ModuleType or self._is_known(x)
        return True

    def _may_call(self, body: _Body, func: ast.expr) -> bool:
        if isinstance(func, ast.Name):
            return func.id in body.functions if body.is_own(func.id) else self._is_known(body.found(func.id))
        if not isinstance(func, ast.Attribute):
            return False
        found = body.outside(func)
        if found is not None:  # of a module
            return self._is_known(found[0])
        base = body.found(func.value.id) if isinstance(func.value, ast.Name) and not body.is_own(func.value.id) else None
        if issubclass(type(base), self._kind):
            return func.attr == "run" and self._is_known(base)
        return func.attr in _METHODS

    def _is_known(self, x: Any) -> bool:
        """Return whether the effect of calling this is known: it only computes, or is a closed function of the
        user's."""
        if id(x) in _BLOCKING or x is _MISSING or not is_quiet(type(x)):
            return False
        if issubclass(type(x), self._kind):
            return not x.is_async and self.is_closed(x.func)
        if issubclass(type(x), type):
            return x.__module__ == "builtins" or is_known(x) or _is_record(x)
        return is_known(x) or (type(x) is types.BuiltinFunctionType and x.__module__ == "builtins") or self.is_closed(x)


def _is_record(cls: type) -> bool:
    """Return whether a class only holds data, so that creating an instance runs no code of the user's."""
    return issubclass(cls, enum.Enum) or (
        dataclasses.is_dataclass(cls) and not any(name in vars(base) for base in cls.__mro__[:-1] for name in ("__post_init__", "__new__"))
    )


class _Body:
    """The source of a function: its nodes, and the values of its names."""

    def __init__(self, fn: types.FunctionType) -> None:
        self.nodes, self.functions, self._own = _names(find(fn).node)
        self._cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        self._globals = fn.__globals__

    def is_own(self, name: str) -> bool:
        """Return whether a name is bound in the function, or in one nested in it."""
        return name in self._own

    def found(self, name: str) -> Any:
        """Return the current value of an outside name."""
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:
                return _MISSING
        return self._globals.get(name, getattr(builtins, name, _MISSING))

    def outside(self, node: ast.expr) -> tuple[Any] | None:
        """Return the value of an attribute of a module; None if it is not one."""
        if isinstance(node, ast.Name):
            found = _MISSING if self.is_own(node.id) else self.found(node.id)
            return (found,) if type(found) is types.ModuleType else None
        if isinstance(node, ast.Attribute) and (base := self.outside(node.value)) is not None and type(base[0]) is types.ModuleType:
            held = vars(base[0]).get(node.attr, _MISSING)
            return (getattr(base[0], node.attr, _MISSING) if held is _MISSING and base[0].__name__ == "lmc" else held,)  # lmc makes some on access
        return None


@lru_cache(maxsize=1024)
def _names(found: FunctionNode) -> tuple[Sequence[ast.AST], Set[str], Set[str]]:
    """Return the nodes of a function's body, the names to which nothing but functions of it are bound, and all that are bound in it."""
    nodes = [*_walk([found.body] if isinstance(found, ast.Lambda) else found.body)]
    given = {node.arg for node in ast.walk(found) if isinstance(node, ast.arg)}
    stored = [node for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    lambdas = [target for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda) for target in node.targets]
    named = {node.name for node in nodes if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name}
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)} | {node.id for node in lambdas if isinstance(node, ast.Name)}
    outer = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    return nodes, functions - given - {node.id for node in stored if node not in lambdas}, (functions | given | named | {node.id for node in stored}) - outer


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a body. Annotations never run."""
    for node in nodes:
        yield node
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            yield from _walk(x for x in (child if isinstance(child, list) else [child]) if isinstance(x, ast.AST))
