"""Instrumentation: rewrites a Python function so that everything that could touch a symbolic value goes through a hook.

The new code keeps the file name, line numbers, globals object and closure cells of the old one, so tracebacks and
debuggers point at the user's lines. What a hook does depends on the active mode (mode.py): without one it is what
plain Python does.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import ast
import types
from collections.abc import Sequence
from typing import Any

from lmc.frontend.instrumented import HOOKS_NAME, cleaning, guarding, is_instrumented, remember
from lmc.frontend.rewrite_definitions import Definitions
from lmc.frontend.rewrite_expressions import Expressions
from lmc.frontend.rewrite_match import Matches
from lmc.frontend.source import CannotInstrument, FunctionNode, codes, find, parsing
from lmc.frontend.syntax import copied, parameters, placed, without_type_params
from lmc.frontend.values import active

_INNER, _FACTORY = "__lmc_function__", "__lmc_factory__"
_cache: dict[tuple[str, types.CodeType], types.CodeType | CannotInstrument] = {}
_copies: dict[tuple[int, ...], tuple[types.CodeType, types.FunctionType, types.CodeType]] = {}


class Rewrite(Expressions, Definitions, Matches):
    """The whole rewriting."""


def instrument(fn: types.FunctionType, hooks: Any) -> types.FunctionType:
    """The instrumented twin of `fn`: same globals, cells, defaults and line numbers.

    Raises CannotInstrument, with the reason and the place, for code that capture does not know.
    """
    if is_instrumented(fn):
        return fn
    key = fn.__code__.co_filename, fn.__code__  # equal code may stand in two files
    code = _cache.get(key)
    if code is None:
        with parsing:
            code = _cache.get(key) or _rewritten(fn)
            _cache[key] = code
    if isinstance(code, CannotInstrument):
        raise code
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    mode = active.get()
    if cells and mode is not None:
        code = _own_copy(code, fn)
        mode.knows_cells(code, dict(cells))
    cells[HOOKS_NAME] = types.CellType(hooks)
    twin = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, tuple(cells[n] for n in code.co_freevars))
    twin.__kwdefaults__ = fn.__kwdefaults__
    twin.__qualname__, twin.__dict__ = fn.__qualname__, dict(fn.__dict__)
    return twin


def _rewritten(fn: types.FunctionType) -> types.CodeType | CannotInstrument:
    try:
        return _rewrite(fn)
    except CannotInstrument as error:
        return error


def _rewrite(fn: types.FunctionType) -> types.CodeType:
    source = find(fn)
    rewrite = Rewrite(fn, source.class_name)
    module = _factory(_definition(rewrite, copied(source.node)), fn.__code__.co_freevars)
    flags = fn.__code__.co_flags & 0x1FE0000  # the module's `from __future__` imports
    code = _inner(compile(module, fn.__code__.co_filename, "exec", flags=flags, dont_inherit=True), fn)
    remember(code)
    for noted, places in (cleaning, rewrite.cleaning), (guarding, rewrite.guarding):
        noted.update(c for c in codes(code) if (c.co_name, c.co_firstlineno) in places)
    return code


def _definition(rewrite: Rewrite, node: FunctionNode) -> ast.stmt:
    """The rewritten function as a statement. What is evaluated where it is defined is in the original already."""
    node.args.defaults = [rewrite.const(None, d) for d in node.args.defaults]
    node.args.kw_defaults = [rewrite.const(None, d) if d else None for d in node.args.kw_defaults]
    for arg in ast.walk(node.args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    if isinstance(node, ast.Lambda):
        return ast.copy_location(ast.Expr(rewrite.visit_Lambda(node)), node)
    if rewrite.is_manager(node):
        rewrite.managers.add(node)
    node.decorator_list, node.returns = [], None
    without_type_params(node)
    inner = rewrite.visit_FunctionDef(node)
    inner.name = _INNER  # its own name is what it calls itself by: a global, or a cell
    return inner


def _factory(definition: ast.stmt, cells: Sequence[str]) -> ast.Module:
    """The definition inside of a function whose parameters are the hooks and the variables it closes over, so that it closes over them."""
    factory = ast.FunctionDef(_FACTORY, parameters(HOOKS_NAME, *cells), [definition], [], None)
    without_type_params(factory)
    return placed(ast.Module([ast.copy_location(factory, definition)], []), definition)


def _inner(compiled: types.CodeType, fn: types.FunctionType) -> types.CodeType:
    """The code of the definition in a compiled factory, with the names of `fn`."""
    outer = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    for code in outer.co_consts:
        if isinstance(code, types.CodeType) and code.co_name in (_INNER, fn.__code__.co_name):
            return _renamed(code.replace(co_name=fn.__code__.co_name), code.co_qualname, fn.__code__.co_qualname)
    raise CannotInstrument(f"the code of {fn.__qualname__} has a form that capture does not know ({fn.__code__.co_filename})")


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """The code, with the qualified names in it that begin with `old` beginning with `new`."""
    name = new + code.co_qualname.removeprefix(old)
    consts = [_renamed(c, old, new) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    if code.co_qualname.startswith(old + "."):
        consts = [name if c == code.co_qualname else c for c in consts]  # the body of a class stores its own
    return code.replace(co_consts=tuple(consts), co_qualname=name)


def _own_copy(code: types.CodeType, fn: types.FunctionType) -> types.CodeType:
    """A code object for this closure alone, so that a frame tells which closure is running."""
    key = (id(code), *map(id, fn.__closure__ or ()))
    known = _copies.get(key)
    if known is None:
        if len(_copies) > 1000:
            _copies.clear()
        known = _copies[key] = (code, fn, code.replace())
    return known[2]
