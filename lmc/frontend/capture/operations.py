"""Operators, truth, iteration, items and text of values: on exact builtin types natively, within bounds; on anything else unknown."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# (values of a program are Any by nature)

from __future__ import annotations

import ast
import operator
import re
import traceback
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from enum import EnumMeta
from typing import TYPE_CHECKING, Any

from lmc.frontend.capture.outside import ATOMS, MAPPINGS, PLAIN, SEQUENCES, is_plain_enum, is_users
from lmc.frontend.capture.values import (
    NOTHING,
    Class,
    Closure,
    Coroutine,
    Deps,
    EvaluatorError,
    Items,
    Manager,
    Method,
    Object,
    Partial,
    Raised,
    Stop,
    Undecided,
    Unknown,
    join,
)
from lmc.frontend.primitives import Expr, as_expr
from lmc.frontend.state import State, StateGroup

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Evaluation

LARGEST_TEXT = 2_000_000
LARGEST_NUMBER = 20_000
"""Bits."""
LARGEST_REGEX_TEXT = 100_000
_OPAQUE = (Object, Class, Closure, Method, Partial, Items, Coroutine, Manager, State, StateGroup, Expr)


def need(ev: Evaluation, x: Any) -> Deps:
    """What has to be known to hand a value to native code: nothing if it consists of exact builtin types; None if it never can be."""
    kind = type(x)
    if kind in ATOMS:
        return NOTHING
    if isinstance(x, Unknown):
        return x.deps
    if ev.lost and id(x) in ev.lost:
        return ev.lost[id(x)]
    if kind in SEQUENCES or kind in MAPPINGS:
        found: Deps = NOTHING
        ev.count(len(x) >> 3)
        for item in [*x, *x.values()] if kind in MAPPINGS else x:
            if type(item) not in ATOMS:
                found = join(found, need(ev, item))
                if found is None:
                    return None
        return found
    if kind is slice:
        return join(need(ev, x.start), need(ev, x.stop), need(ev, x.step))
    if isinstance(x, BaseException) and kind.__module__ in ("builtins", "lmc.errors", "lmc.frontend.state"):
        return need(ev, x.args)
    return NOTHING if kind is type and x.__module__ == "builtins" else None


def native(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls builtin code on values that it may touch; what it raises is the program's."""
    try:
        return fn(*args, **kwargs)
    except RecursionError:
        raise Stop("nested too deep") from None
    except MemoryError:
        raise Stop("too large") from None
    except EvaluatorError:
        raise
    except Exception as error:
        if interrupts(error):
            raise
        error.__traceback__ = None
        raise Raised(error) from None


def interrupts(error: BaseException) -> bool:
    """Whether code of the user's raised an exception inside of the evaluator, which calls none: a signal's handler did, and the program gets it."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(is_users(frame.f_code.co_filename) for frame in frames)


# -- binary operators ------------------------------------------------------------------------------------------------

BINARY: dict[type[ast.AST], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul), ast.Div: ("truediv", operator.truediv),
    ast.FloorDiv: ("floordiv", operator.floordiv), ast.Mod: ("mod", operator.mod), ast.Pow: ("pow", operator.pow), ast.LShift: ("lshift", operator.lshift),
    ast.RShift: ("rshift", operator.rshift), ast.BitOr: ("or", operator.or_), ast.BitAnd: ("and", operator.and_), ast.BitXor: ("xor", operator.xor),
    ast.MatMult: ("matmul", operator.matmul),
}  # fmt: skip
_GROWING = {"mul", "pow", "lshift", "mod"}
_SETS = frozenset({set, frozenset})


def binary(ev: Evaluation, name: str, fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """`a <op> b`."""
    ka, kb = type(a), type(b)
    if ka in PLAIN and kb in PLAIN:
        if name in _GROWING:
            bound(name, a, b)
        elif ka is str and kb is str and name == "add" and len(a) + len(b) > LARGEST_TEXT:
            raise Stop("a text is too large")
        return native(fn, a, b)
    if name == "add" and (isinstance(a, Expr) or isinstance(b, Expr)):
        if ka is Object or kb is Object:
            return ev.operation(name, (a, b), None)
        return native(fn, as_expr(a) if isinstance(a, Unknown) else a, b)
    if ka is Object or kb is Object:
        return _own_operator(ev, name, a, b)
    if not ev.is_lost(a) and not ev.is_lost(b):
        if ka is kb and ka in (list, tuple) and name == "add":
            ev.count(len(a) + len(b))
            return a + b
        if name == "mul" and ((ka in (list, tuple) and kb is int) or (ka is int and kb in (list, tuple))):
            items, times = (a, b) if ka is not int else (b, a)
            ev.count(len(items) * max(times, 0))
            return items * times
        if name == "or" and ka in MAPPINGS and kb in MAPPINGS:
            return native(fn, a, b)
    deps = join(need(ev, a), need(ev, b))
    if deps is not NOTHING and deps != NOTHING:
        return ev.operation(name, (a, b), deps)
    if deps is None or _foreign(a) or _foreign(b):
        return ev.operation(name, (a, b), None)
    if name in _GROWING:
        bound(name, a, b)
    return native(fn, a, b)


def _foreign(x: Any) -> bool:
    return not (type(x) in ATOMS or type(x) in SEQUENCES or type(x) in MAPPINGS)


def bound(name: str, a: Any, b: Any) -> None:
    """Raises Stop where the result would be too large."""
    if name == "mul":
        if isinstance(a, int) and isinstance(b, int):
            if a.bit_length() + b.bit_length() > LARGEST_NUMBER:
                raise Stop("a number is too large")
        elif isinstance(a, (str, bytes)) and isinstance(b, int):
            fits(len(a) * max(b, 0))
        elif isinstance(b, (str, bytes)) and isinstance(a, int):
            fits(len(b) * max(a, 0))
    elif name == "pow":
        if isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and a.bit_length() * abs(b) > LARGEST_NUMBER:
            raise Stop("a number is too large")
    elif name == "lshift":
        if isinstance(a, int) and isinstance(b, int) and a.bit_length() + b > LARGEST_NUMBER:
            raise Stop("a number is too large")
    elif name == "mod" and isinstance(a, str):
        spec(a)
        if "*" in a:
            raise Stop("a width that is computed")


_WIDTHS = re.compile(r"\d{5,}")


def spec(text: str) -> None:
    """Raises Stop for a format whose widths are too large."""
    if len(text) > LARGEST_TEXT or (_WIDTHS.search(text) and "%" not in text[:0] and any(int(w) > 10_000 for w in _WIDTHS.findall(text)[:50])):
        raise Stop("a width is too large")


def fits(length: int) -> None:
    """Raises Stop for a text that is too large."""
    if length > LARGEST_TEXT:
        raise Stop("a text is too large")


_DUNDER = {"add": "__add__", "sub": "__sub__", "mul": "__mul__", "truediv": "__truediv__", "floordiv": "__floordiv__", "mod": "__mod__", "or": "__or__",
           "and": "__and__", "xor": "__xor__", "pow": "__pow__", "matmul": "__matmul__", "lshift": "__lshift__", "rshift": "__rshift__"}  # fmt: skip


def _own_operator(ev: Evaluation, name: str, a: Any, b: Any) -> Any:
    """An operator of a class of the program's."""
    for own, other, dunder in ((a, b, _DUNDER[name]), (b, a, "__r" + _DUNDER[name][2:])):
        if type(own) is Object and (method := ev.special(own, dunder)) is not None:
            found = ev.call(method, [other], {})
            if found is not NotImplemented:
                return found
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return ev.operation(name, (a, b), join(*(x.deps for x in (a, b) if isinstance(x, Unknown))))
    raise Raised(TypeError(f"unsupported operand type(s) for {name}"))


def inplace(ev: Evaluation, name: str, fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """`a <op>= b`: changes lists, sets, dicts, states and objects in place."""
    kind = type(a)
    if kind in PLAIN:
        return binary(ev, name, fn, a, b)
    if isinstance(a, (State, StateGroup)):
        return append(ev, name, a, b)
    if kind is Object:
        method = ev.special(a, "__i" + _DUNDER[name][2:])
        return binary(ev, name, fn, a, b) if method is None else ev.call(method, [b], {})
    if isinstance(a, Unknown):
        return Unknown(a.deps) if isinstance(b, Expr) else binary(ev, name, fn, a, b)  # forks of an unknown number, maybe
    if kind is list and name == "add":
        ev.changes(a)
        ev.call_method(a, "extend", [b], {})
        return a
    if kind in (set, deque, Counter, dict, OrderedDict, defaultdict) and name in ("add", "or", "sub", "and", "xor"):
        if kind is deque:
            ev.call_method(a, "extend", [b], {})
            return a
        deps = join(need(ev, b) if kind in _SETS or kind is Counter else b.deps if isinstance(b, Unknown) else NOTHING)
        ev.changes(a)
        if deps is None or deps or ev.is_lost(b):
            ev.lose(a, deps)
            return a
        return native(_INPLACE[name], a, b)
    return binary(ev, name, fn, a, b)


_INPLACE = {"add": operator.iadd, "or": operator.ior, "sub": operator.isub, "and": operator.iand, "xor": operator.ixor}


def append(ev: Evaluation, name: str, a: Any, b: Any) -> Any:
    """`state += …`, `group += …`."""
    if name != "add":
        raise Raised(TypeError(f"unsupported operand type(s) for {name}"))
    if isinstance(a, StateGroup):
        if isinstance(b, (Closure, Method)) or (callable(b) and not isinstance(b, (Expr, Unknown, type))):
            b = [ev.call(b, [i], {}) for i in range(len(a.states))]
        elif ev.is_lost(b):
            b = Unknown(ev.lost[id(b)])
        items: Any = b
        if type(b) in (list, tuple) and len(items) == len(a.states):
            for state, item in zip(a.states, items, strict=True):
                append(ev, name, state, item)
            return a
        if type(b) in (list, tuple):
            native(a.__iadd__, b)
        for state in a.states:
            append(ev, name, state, b)
        return a
    if type(b) is Object or type(b) is Closure or type(b) is Method or type(b) is Class:
        b = object()  # lmc refuses it
    native(a.__iadd__, b)
    return a


# -- comparison ------------------------------------------------------------------------------------------------------

COMPARE: dict[type[ast.AST], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("eq", operator.eq), ast.NotEq: ("ne", operator.ne), ast.Lt: ("lt", operator.lt), ast.LtE: ("le", operator.le), ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge), ast.Is: ("is", operator.is_), ast.IsNot: ("is not", operator.is_not), ast.In: ("in", operator.contains),
    ast.NotIn: ("not in", operator.contains),
}  # fmt: skip
_SWAPPED = {"lt": "__gt__", "gt": "__lt__", "le": "__ge__", "ge": "__le__", "eq": "__eq__", "ne": "__ne__"}


def compare(ev: Evaluation, name: str, fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """`a <op> b`, True, False or unknown; an own method may give anything."""
    if type(a) in PLAIN and type(b) in PLAIN and name not in ("in", "not in"):
        return native(fn, a, b)
    if name in ("is", "is not"):
        return _same(ev, name, a, b)
    if name in ("in", "not in"):
        found = contains(ev, b, a)
        return found if isinstance(found, Unknown) or name == "in" else not found
    if type(a) is Object or type(b) is Object:
        return _own_comparison(ev, name, a, b)
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return ev.operation(name, (a, b), join(*(x.deps for x in (a, b) if isinstance(x, Unknown))))
    if isinstance(a, Expr) or isinstance(b, Expr):
        return native(fn, a, b)
    deps = join(need(ev, a), need(ev, b))
    if deps is None:
        if name in ("eq", "ne") and isinstance(a, (*_OPAQUE, type)) and isinstance(b, (*_OPAQUE, type, *PLAIN)) and type(a) is not Method:
            return (a is b) == (name == "eq")
        these, those = _lengths(a, b)
        if these != those and name in ("eq", "ne"):
            return name == "ne"
        return ev.operation(name, (a, b), None)
    return ev.operation(name, (a, b), deps) if deps else native(fn, a, b)


def _lengths(a: Any, b: Any) -> tuple[int, int]:
    return (len(a), len(b)) if type(a) is type(b) and type(a) in (list, tuple) else (0, 0)


def _same(ev: Evaluation, name: str, a: Any, b: Any) -> Any:
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        if a is b:
            return name == "is"
        return ev.operation(name, (a, b), join(*(x.deps for x in (a, b) if isinstance(x, Unknown))))
    return (a is b) == (name == "is")


def _own_comparison(ev: Evaluation, name: str, a: Any, b: Any) -> Any:
    for own, other, dunder in ((a, b, f"__{name}__"), (b, a, _SWAPPED[name])):
        if type(own) is Object and (method := ev.special(own, dunder)) is not None:
            found = ev.call(method, [other], {})
            if found is not NotImplemented:
                return found
    if name == "ne":
        found = _own_comparison(ev, "eq", a, b)
        return found if isinstance(found, Unknown) else not found
    if name == "eq":
        fields = ev.dataclass_fields(a)
        if fields is not None and type(b) is Object and a.cls is b.cls:
            return equal_all(ev, [a.attributes.get(f) for f in fields], [b.attributes.get(f) for f in fields])
        return a is b if not isinstance(a, Unknown) and not isinstance(b, Unknown) else Unknown(None)
    return ev.operation(name, (a, b), None)


def equal_all(ev: Evaluation, these: list[Any], those: list[Any]) -> Any:
    for a, b in zip(these, those, strict=True):
        found = truth(ev, compare(ev, "eq", operator.eq, a, b))
        if isinstance(found, Unknown) or not found:
            return found
    return True


def contains(ev: Evaluation, items: Any, x: Any) -> Any:
    """`x in items`."""
    if isinstance(items, State):
        deps = join(ev.need_key(x), ev.lost.get(id(items), NOTHING))
        return Unknown(deps) if deps is None or deps else native(items.__contains__, x)
    kind = type(items)
    if kind is Object:
        method = ev.special(items, "__contains__")
        if method is not None:
            return truth(ev, ev.call(method, [x], {}))
    if isinstance(items, Unknown) or isinstance(x, Unknown) or ev.is_lost(items):
        return ev.operation("in", (x, items), join(need(ev, x), need(ev, items)))
    if kind in MAPPINGS or kind in _SETS:
        deps = need(ev, x)
        if deps is None or deps:
            return ev.operation("in", (x, items), deps)
        return native(operator.contains, items, x)
    if kind in (list, tuple, deque) or kind is Object or kind is Items:
        unknown: Deps = NOTHING
        for item in iterate(ev, items):
            if item is x:
                return True
            found = truth(ev, compare(ev, "eq", operator.eq, item, x))
            if isinstance(found, Unknown):
                unknown = join(unknown, found.deps)
            elif found:
                return True
        return False if unknown is NOTHING else Unknown(unknown)
    deps = join(need(ev, items), need(ev, x))
    return ev.operation("in", (x, items), deps) if deps is None or deps else native(operator.contains, items, x)


# -- truth, length, iteration, items -----------------------------------------------------------------------------------


def truth(ev: Evaluation, x: Any) -> Any:
    """Whether a value is true, or Unknown."""
    if x is True or x is False or x is None:
        return bool(x)
    kind = type(x)
    if kind in ATOMS:
        return Unknown(None) if x is NotImplemented else bool(x)  # which warns
    if isinstance(x, Unknown):
        return x
    if kind in SEQUENCES or kind in MAPPINGS:
        return Unknown(ev.lost[id(x)]) if ev.is_lost(x) else bool(x)
    if kind is Object:
        for dunder in ("__bool__", "__len__"):
            method = ev.special(x, dunder)
            if method is not None:
                return truth(ev, ev.call(method, [], {}))
        return True
    if kind is StateGroup:
        return bool(x.states)
    if isinstance(x, (*_OPAQUE, type, BaseException)) or callable(x):
        return True
    return Unknown(None)


def length(ev: Evaluation, x: Any) -> Any:
    kind = type(x)
    if isinstance(x, Unknown) or ev.is_lost(x):
        return ev.operation("len", (x,), x.deps if isinstance(x, Unknown) else ev.lost[id(x)])
    if kind is StateGroup:
        return len(x.states)
    if kind in SEQUENCES or kind in MAPPINGS or kind in ATOMS:
        return native(len, x)
    if kind is Object and (method := ev.special(x, "__len__")) is not None:
        return ev.call(method, [], {})
    raise Raised(TypeError(f"object of type {ev.type_name(x)!r} has no len()"))


def iterate(ev: Evaluation, x: Any) -> Iterator[Any]:
    """The items of a value, one by one. Raises Undecided where they are not known."""
    kind = type(x)
    if isinstance(x, Unknown):
        raise Undecided(x.deps)
    if ev.lost and id(x) in ev.lost:
        raise Undecided(ev.lost[id(x)])
    if kind is list:
        return _live(ev, x)
    if kind is Items:
        return _counted(ev, x)
    if kind is StateGroup:
        return iter(list(x.states))
    if kind in SEQUENCES or kind in MAPPINGS or kind in (str, bytes):
        ev.count(len(x) >> 2)
        return iter(x.copy() if kind in (set, deque) else list(x) if kind in MAPPINGS else x)
    if kind is range:
        return _counted(ev, x)
    if kind is Object:
        method = ev.special(x, "__iter__")
        if method is not None:
            found = ev.call(method, [], {})
            return iterate(ev, found) if found is not x else _next_of(ev, x)
        if ev.special(x, "__getitem__") is not None:
            return _by_index(ev, x)
    if type(x) is EnumMeta and is_plain_enum(x):
        return iter([ev.adopt(vars(x)["_member_map_"][name]) for name in vars(x)["_member_names_"]])
    if isinstance(x, type) and x.__module__ != "builtins":
        raise Undecided(None)
    raise Raised(TypeError(f"{ev.type_name(x)!r} object is not iterable"))


def _live(ev: Evaluation, x: list[Any]) -> Iterator[Any]:
    i = 0
    while i < len(x):
        ev.count(1)
        if ev.lost and id(x) in ev.lost:
            raise Undecided(ev.lost[id(x)])
        yield x[i]
        i += 1


def _counted(ev: Evaluation, x: Any) -> Iterator[Any]:
    for item in x:
        ev.count(1)
        yield item


def _next_of(ev: Evaluation, x: Object) -> Iterator[Any]:
    method = ev.special(x, "__next__")
    while method is not None:
        ev.count(1)
        try:
            item = ev.call(method, [], {})
        except Raised as raised:
            if isinstance(raised.value, StopIteration):
                return
            raise
        yield item


def _by_index(ev: Evaluation, x: Object) -> Iterator[Any]:
    i = 0
    while True:
        ev.count(1)
        try:
            item = ev.call(ev.special(x, "__getitem__"), [i], {})
        except Raised as raised:
            if isinstance(raised.value, IndexError):
                return
            raise
        yield item
        i += 1


def take(ev: Evaluation, items: Iterator[Any]) -> tuple[bool, Any]:
    """Whether there is a next item, and it."""
    try:
        return True, next(items)
    except StopIteration:
        return False, None


def item(ev: Evaluation, x: Any, at: Any) -> Any:
    """`x[at]`."""
    kind = type(x)
    if kind in (list, tuple, dict, str) and type(at) in PLAIN and not (ev.lost and id(x) in ev.lost):
        if kind is dict:
            try:
                return x[at]
            except KeyError as error:
                raise Raised(KeyError(*error.args)) from None
        return native(operator.getitem, x, at)
    if isinstance(x, State):
        deps = join(ev.need_key(at), ev.lost.get(id(x), NOTHING))
        if deps is None or deps:
            return Unknown(deps)
        if id(x) in ev.forked and at not in x.variables:
            return Unknown(ev.forked[id(x)])
        return native(x.__getitem__, at)
    if kind is Object:
        method = ev.special(x, "__getitem__")
        if method is not None:
            return ev.call(method, [at], {})
        raise Raised(TypeError(f"{ev.type_name(x)!r} object is not subscriptable"))
    if isinstance(x, Unknown) or isinstance(at, Unknown) or ev.is_lost(x):
        deps = x.deps if isinstance(x, Unknown) else ev.lost.get(id(x), NOTHING)
        whole = NOTHING if isinstance(x, Unknown) or kind is StateGroup else need(ev, x)
        return ev.operation("item", (x, at), join(deps, whole, need(ev, at)))
    if kind is StateGroup:
        found = native(x.__getitem__, at)
        return found
    deps = need(ev, at)
    if deps is None or deps:
        return ev.operation("item", (x, at), deps)
    if kind is defaultdict and at not in x:
        if x.default_factory is None:
            raise Raised(KeyError(at))
        ev.changes(x)
        x[at] = found = ev.call(x.default_factory, [], {})
        return found
    if kind in SEQUENCES or kind in MAPPINGS or kind in ATOMS:
        return native(operator.getitem, x, at)
    if type(x) is EnumMeta and is_plain_enum(x):
        return ev.adopt(native(vars(x)["_member_map_"].__getitem__, at))
    if isinstance(x, type):
        return native(operator.getitem, x, at) if x.__module__ == "builtins" else Unknown(None)  # list[int]
    if isinstance(x, Expr):
        return native(operator.getitem, x, at)
    return Unknown(None)


def set_item(ev: Evaluation, x: Any, at: Any, value: Any) -> None:
    """`x[at] = value`."""
    kind = type(x)
    if isinstance(x, State):
        deps = ev.need_key(at)
        if deps is None or deps:
            ev.lose(x, deps)
        else:
            native(x.__setitem__, at, value)
    elif kind is StateGroup:
        if isinstance(at, Unknown):
            raise Stop("a fork of an unknown number is replaced")
        native(x.__setitem__, at, value)
    elif kind is Object:
        method = ev.special(x, "__setitem__")
        if method is None:
            raise Raised(TypeError(f"{ev.type_name(x)!r} object does not support item assignment"))
        ev.call(method, [at, value], {})
    elif isinstance(x, Unknown):
        ev.hand_over([value])
    elif kind in (list, deque) or kind in MAPPINGS:
        ev.changes(x)
        deps = need(ev, at)
        if deps is None or deps:
            ev.lose(x, deps)
        elif type(at) is slice:
            try:
                x[at] = list(iterate(ev, value))
            except Undecided as undecided:
                ev.lose(x, undecided.deps)
        else:
            native(operator.setitem, x, at, value)
    else:
        raise Raised(TypeError(f"{ev.type_name(x)!r} object does not support item assignment"))


def delete_item(ev: Evaluation, x: Any, at: Any) -> None:
    """`del x[at]`."""
    if type(x) in (list, deque) or type(x) in MAPPINGS:
        ev.changes(x)
        deps = need(ev, at)
        if deps is None or deps:
            ev.lose(x, deps)
        elif not ev.is_lost(x):
            native(operator.delitem, x, at)
    elif isinstance(x, (State, StateGroup)):
        native(operator.delitem, x, at)
    elif type(x) is Object and (method := ev.special(x, "__delitem__")) is not None:
        ev.call(method, [at], {})
    elif not isinstance(x, Unknown):
        raise Raised(TypeError(f"{ev.type_name(x)!r} object does not support item deletion"))


# -- text ------------------------------------------------------------------------------------------------------------


def formatted(ev: Evaluation, x: Any, conversion: str, how: Any) -> Any:
    """`f"{x!conversion:how}"`."""
    if type(x) in PLAIN and type(how) is str and not how and conversion in ("", "s"):
        return str(x)
    if conversion:
        x = text_of(ev, x, conversion)
    if isinstance(how, Unknown):
        return ev.operation("format", (x, how), join(need(ev, x), how.deps))
    if type(x) is Object:
        method = ev.special(x, "__format__")
        if method is not None:
            return ev.call(method, [how], {})
        return text_of(ev, x, "s")
    if isinstance(x, Expr):
        return native(format, x, how)
    deps = need(ev, x)
    if deps is None or deps:
        return ev.operation("format", (x, how), deps)
    if how:
        spec(how)
    return native(format, x, how)


def text_of(ev: Evaluation, x: Any, conversion: str) -> Any:
    """`str(x)` ("s"), `repr(x)` ("r"), `ascii(x)` ("a")."""
    if type(x) is Object:
        for dunder in ("__str__", "__repr__") if conversion == "s" else ("__repr__",):
            method = ev.special(x, dunder)
            if method is not None:
                return ev.call(method, [], {})
        if ev.is_exception(x) and conversion == "s":
            return text_of(ev, x.args[0] if len(x.args) == 1 else x.args if x.args else "", "s")
        return _repr_of_fields(ev, x)
    if isinstance(x, Expr):
        return native(_TEXTS[conversion], x)
    deps = need(ev, x)
    if deps is None or deps:
        return ev.operation(_TEXTS[conversion].__name__, (x,), deps)
    return native(_TEXTS[conversion], x)


_TEXTS: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}


def _repr_of_fields(ev: Evaluation, x: Object) -> Any:
    fields = ev.dataclass_fields(x)
    if fields is None:
        return Unknown(None)
    parts: list[Any] = []
    for name in fields:
        shown = text_of(ev, x.attributes.get(name), "r")
        if isinstance(shown, Unknown):
            return shown
        parts.append(f"{name}={shown}")
    return f"{ev.type_name(x)}({', '.join(parts)})"
