"""Functions of the outside as the program's own, compiled once per code object."""

from __future__ import annotations

import types
from time import thread_time

from lmc.code_origin import is_users
from lmc.frontend.capture import scan
from lmc.frontend.capture.code import Code, Evaluator, Frame, NotUnderstood, Scope, as_def
from lmc.frontend.capture.statements import block
from lmc.frontend.capture.unknown import Unknown
from lmc.frontend.capture.values import Closure
from lmc.frontend.scopes import Bindings
from lmc.frontend.source import NoSource, find

_codes: dict[tuple[types.CodeType, str], Code | NotUnderstood] = {}
_MOST_CODES = 10_000


def code_of(fn: types.FunctionType) -> Code:
    """Return the compiled code of a function of the user's, made once per code object. Raises NotUnderstood."""
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
        scan.spent += thread_time() - began
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
    node = as_def(found.node)
    scope = Scope(Bindings(node.body, node.args), None, python.co_filename, python.co_freevars, found.class_name)
    return Code(node, scope, python, block(node.body, scope))


def closure_of(ev: Evaluator, fn: types.FunctionType) -> Closure:
    """Return a function of the outside as one of the program's. Raises NotUnderstood."""
    known = ev.functions.get(id(fn))
    if known is not None:
        return known
    made = ev.functions[id(fn)] = Closure(code_of(fn), None, fn.__name__, (), {}, module=fn.__globals__, own=fn)
    if fn.__closure__:
        made.outer = Frame(ev, {}, None, None, fn.__globals__)
        made.outer.cells = dict(zip(fn.__code__.co_freevars, fn.__closure__, strict=True))
        for name, cell in made.outer.cells.items():
            try:
                held = ev.snapshot.first((id(cell), ""), cell.cell_contents)
            except ValueError:
                continue  # not bound yet
            made.outer.vars[name] = Unknown(None) if id(cell) in ev.snapshot.changed else ev.adopt(held)
    made.defaults = tuple([ev.adopt(d) for d in fn.__defaults__ or ()])
    made.kwdefaults = {k: ev.adopt(v) for k, v in (fn.__kwdefaults__ or {}).items()}
    return made
