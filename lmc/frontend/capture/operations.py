"""Operators, truth, iteration, items and text of values: native, within bounds, as long as nothing unknown is touched (`Undecided`)."""

from __future__ import annotations

import ast
import operator
import os
import re
import traceback
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import dropwhile
from typing import Any

from lmc.code_origin import is_users
from lmc.frontend.active import TASK, TaskOfRun, new_task
from lmc.frontend.capture.code import Evaluator
from lmc.frontend.capture.outside import ATOMS, CONTAINERS, MAPPINGS, PLAIN, VIEWS, any_of
from lmc.frontend.capture.unknown import MISSING, NOTHING, Deps, Raised, Stop, Undecided, Unknown, UnknownName, join, raised
from lmc.frontend.capture.values import BoundMethod, Closure, Coroutine, LazyItems, Object, Partial
from lmc.frontend.emitter import GatheredAnswers
from lmc.frontend.expressions import Expr, as_expr
from lmc.frontend.state import State, StateGroup

LARGEST_TEXT = 2_000_000
LARGEST_NUMBER = 20_000
"""Bound on the size of integers, in bits."""


def known(ev: Evaluator, x: Any) -> Deps:
    """Return the dependencies of inspecting a value at all."""
    return x.deps if isinstance(x, Unknown) else ev.lost[id(x)] if ev.lost and id(x) in ev.lost else NOTHING


def need(ev: Evaluator, x: Any) -> Deps:
    """Return the dependencies of passing a value to native code that reads all of it; None if that is never possible."""
    kind = type(x)
    if kind in ATOMS or kind is Object or isinstance(x, Expr):
        return NOTHING
    found = known(ev, x)
    if found is None or found:
        return found
    if kind is defaultdict and not (x.default_factory is None or (type(x.default_factory) is type and x.default_factory.__module__ == "builtins")):
        return None  # native code would call it
    if kind in CONTAINERS or kind in VIEWS:
        ev.count(1 + (len(x) >> 3))
        for item in [*x, *x.values()] if kind in MAPPINGS else x:
            if type(item) not in ATOMS:
                found = join(found, need(ev, item))
        return found
    if kind is slice:
        return join(need(ev, x.start), need(ev, x.stop), need(ev, x.step))
    if isinstance(x, BaseException) and kind.__module__ in ("builtins", "lmc.errors", "lmc.frontend.state"):
        return need(ev, x.args)
    return NOTHING if kind is type and x.__module__ in ("builtins", "collections") else None


def native(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call builtin code on values that it may touch; its exceptions are the program's."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        raise _of_program(error) from None


def _of_program(error: Exception) -> BaseException:
    """Return what an exception of builtin code means to the evaluation. Raises it if it is not the program's."""
    if isinstance(error, (RecursionError, MemoryError)):
        return Stop("nested too deep" if isinstance(error, RecursionError) else "too large")
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1].f_code
    if interrupts(error) or (last.co_filename.startswith(_HERE) and last not in (native.__code__, apply.__code__, _in.__code__)):
        raise error  # the evaluator's own fault
    error.__traceback__ = None
    if "'Object'" in str(error):  # an operator that the program's class may have
        return Undecided(None)
    return Raised(error) if _STAND_IN.search(str(error)) is None else raised(type(error))


_HERE = os.path.join(os.path.dirname(__file__), "")
_STAND_IN = re.compile("'(Closure|BoundMethod|Partial|LazyItems|Coroutine|Manager|Super|method-wrapper)'")
"""In a message: a class of the evaluator's, instead of the program's."""


def _in(x: Any, items: Any) -> bool:
    return x in items


def interrupts(error: BaseException) -> bool:
    """Return whether code of the user's raised an exception inside the evaluator, which calls none: it came from a signal handler, and the program gets it."""
    return any(is_users(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__))


def apply(ev: Evaluator, name: str, fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)`, which looks into its arguments as far as it needs; an operation where something unknown matters to it."""
    for x in args:
        if x.__class__ not in PLAIN and (ev.lost or isinstance(x, Unknown)) and ((deps := known(ev, x)) is None or deps):
            return _stopped(ev, name, args, join(*[known(ev, x) for x in args]))
    try:
        return fn(*args)
    except Undecided as undecided:
        return _stopped(ev, name, args, undecided.deps)
    except Exception as error:
        if isinstance(of_program := _of_program(error), Undecided):
            return _stopped(ev, name, args, of_program.deps)
        raise of_program from None


def _stopped(ev: Evaluator, name: str, args: Sequence[Any], deps: Deps) -> Any:
    """Return the result of an operation that stopped at something undecided, perhaps within iterators or objects that it was given."""
    ev.left_off([x for x in args if type(x) in (LazyItems, Object) or (name != "item" and (type(x) in CONTAINERS or type(x) in VIEWS))], deps)
    return ev.operation(name, args, deps)


def of_known(ev: Evaluator, name: str, fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)`, which reads all of its arguments."""
    deps = join(NOTHING, *[need(ev, x) for x in args])
    return ev.operation(name, args, deps) if deps is None or deps else apply(ev, name, fn, *args)


def passes(x: Any) -> int:
    """Steps of native code that goes through a range or a container; iterators count themselves."""
    return native(len, x) if type(x) is range else len(x) >> 6 if type(x) in CONTAINERS else 0


# -- operators -------------------------------------------------------------------------------------------------------

_NAMES = (
    "Add:add Sub:sub Mult:mul Div:truediv FloorDiv:floordiv Mod:mod Pow:pow LShift:lshift RShift:rshift BitOr:or BitAnd:and BitXor:xor MatMult:matmul "
    "USub:neg UAdd:pos Invert:invert Eq:eq NotEq:ne Lt:lt LtE:le Gt:gt GtE:ge"
)
OPERATORS: Mapping[type[ast.AST], tuple[str, Callable[..., Any]]] = {
    **{getattr(ast, kind): (name, getattr(operator, f"__{name}__")) for kind, _, name in (each.partition(":") for each in _NAMES.split())},
    ast.Not: ("not", operator.not_), ast.Is: ("is", operator.is_), ast.IsNot: ("is not", operator.is_not), ast.In: ("in", _in), ast.NotIn: ("not in", _in),
}  # fmt: skip


def binary(ev: Evaluator, name: str, fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if name == "add" and (isinstance(a, Expr) or isinstance(b, Expr)):
        return native(fn, as_expr(a) if isinstance(a, Unknown) else a, b)
    bound(ev, name, a, b)
    if name == "mod" and type(a) is str and not isinstance(b, Unknown):
        return of_known(ev, name, fn, a, b)
    return apply(ev, name, fn, a, b)


def bound(ev: Evaluator, name: str, a: Any, b: Any) -> None:
    """Raise Stop if the result would be too large."""
    if name == "add" and type(a) is type(b) and type(a) in _LONG:
        fits(ev, _LONG[type(a)] * (len(a) + len(b)))
    elif name == "mul":
        for x, times in ((a, b), (b, a)):
            if type(times) is int and type(x) in _LONG:
                fits(ev, _LONG[type(x)] * len(x) * times)
    elif name == "mod" and type(a) is str:
        spec(a)
    if name in ("mul", "pow", "lshift") and isinstance(a, int) and isinstance(b, int):
        bits = a.bit_length()
        if {"mul": bits + b.bit_length(), "pow": (abs(a) > 1) * bits * abs(b), "lshift": bits + b}[name] > LARGEST_NUMBER:
            raise Stop("a number is too large")


_LONG: Mapping[type, int] = {str: 1, bytes: 1, list: 8, tuple: 8}
_WIDTHS = re.compile(r"%(\(\w*\))?[^%a-zA-Z]*(\d{5}|\*)|\{[^{}]*\d{5}|\{[^{}\s\"]*:[^{}]*\{")


def spec(text: str) -> None:
    """Raises Stop for a text with formats whose widths are too large, or computed."""
    if len(text) > LARGEST_TEXT or _WIDTHS.search(text):
        raise Stop("a width is too large")


def fits(ev: Evaluator, length: int) -> None:
    """Count a text or list that is made. Raise Stop if it is too large."""
    if length > LARGEST_TEXT:
        raise Stop("a text is too large")
    if length >> 12:
        ev.count(length >> 12)


def inplace(ev: Evaluator, name: str, fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """`a <op>= b`: changes lists, sets, dicts and states in place."""
    kind = type(a)
    if isinstance(a, (State, StateGroup)):
        return append(ev, name, a, b)
    if isinstance(a, Unknown):
        ev.lose(a, a.deps)  # a list, maybe
    if isinstance(a, Unknown) and isinstance(b, Expr):
        return ev.domain.appended(ev, a)
    if kind in CONTAINERS and kind not in (tuple, frozenset) and name in ("add", "or", "sub", "and", "xor", "mul"):
        bound(ev, name, a, b)
        ev.count(passes(b))
        with suppress(Undecided):
            return change(ev, a, known(ev, b), getattr(operator, f"__i{name}__"), a, b)
        return a
    if type(a) is Object:
        return ev.unknown_code(a, [a, b, ev.special(a, f"__i{name}__"), ev.special(a, f"__{name}__")], {})
    return binary(ev, name, fn, a, b)


def change(ev: Evaluator, x: Any, deps: Deps, fn: Callable[..., Any], *args: Any) -> Any:
    """Return `fn(*args)`, which changes a container. Raises Undecided, and nothing is known of it any longer, where something unknown matters."""
    ev.changes(x)
    try:
        if (deps := join(known(ev, x), deps)) == NOTHING:
            return native(fn, *args)
    except Undecided as undecided:
        deps = undecided.deps
    ev.lose(x, deps, any_of([one for one in args if one is not x]))
    ev.may_raise(deps)
    raise Undecided(deps)


def append(ev: Evaluator, name: str, a: Any, b: Any) -> Any:
    if name != "add":
        raise raised(TypeError)
    if ev.is_lost(b):
        b = Unknown(ev.lost[id(b)])
    ev.changed.append(a)
    called = isinstance(b, (Closure, BoundMethod, Partial, types.FunctionType))
    if isinstance(a, StateGroup) and (called or (type(b) in (list, tuple) and len(b) == len(a.states))):
        for i, state in enumerate(a.states):
            append(ev, name, state, ev.call(b, [i], {}) if called else b[i])
        return a
    native(a.__iadd__, object() if called or type(b) is Object else b)  # lmc refuses it
    return a


# -- comparison, truth, length, iteration, items -------------------------------------------------------------------------


def compare(ev: Evaluator, name: str, fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Evaluate `a <op> b`: True, False or unknown; an own method may return anything."""
    if name in ("is", "is not"):
        unknown = [x.deps for x in (a, b) if isinstance(x, Unknown)]
        return ev.operation(name, (a, b), join(*unknown)) if unknown and a is not b else (a is b) == (name == "is")
    if name in ("in", "not in"):
        if type(b) is State and (deps := unread(ev, b, a)) != NOTHING:
            return ev.operation(name, (a, b), deps)
        ev.count(0 if type(b) is range and type(a) is int else passes(b))  # what is no int is looked for in all of a range
        found = apply(ev, "in", fn, a, b)
        return found if isinstance(found, Unknown) or name == "in" else not found
    return apply(ev, name, fn, a, b)


def truth(ev: Evaluator, x: Any) -> Any:
    if x is True or x is False or x is None:
        return bool(x)
    if isinstance(x, Unknown):
        return x
    if (ev.is_lost(x) and type(x) is not Object) or x is NotImplemented:  # which warns
        return Unknown(ev.lost.get(id(x)))
    try:
        return native(bool, x)
    except Undecided as undecided:
        return Unknown(undecided.deps)


def decided(ev: Evaluator, x: Any) -> bool:
    """Return whether a value is true. Raises Undecided where that is not known."""
    known = truth(ev, x)
    if isinstance(known, Unknown):
        raise Undecided(known.deps, known)
    return known


def iterate(ev: Evaluator, x: Any) -> Iterator[Any]:
    """Yield the items of a value. Raises Undecided where they are not known."""
    deps = known(ev, x)
    if deps is None or deps:
        raise Undecided(deps)
    kind = type(x)
    if kind is list:
        return _live(ev, x)
    if kind is str or kind in CONTAINERS or kind in VIEWS:
        ev.count(len(x) >> 2)
        return iter([*x])
    if kind is StateGroup:
        return iter(list(x.states))
    if kind not in ATOMS and kind is not LazyItems and kind is not Object:
        raise Undecided(None)
    return counted(ev, native(iter, x))


def each_of(ev: Evaluator, x: Any) -> Iterator[Any]:
    """Yield the items of a value for what goes through all of them. Raises Undecided where it is not known which they are."""
    if type(x) is LazyItems and type(x := x.all()) is list:  # which nobody else has
        return iter(x)
    return iterate(ev, x)


def all_of(ev: Evaluator, x: Any) -> list[Any]:
    return list(each_of(ev, x))


def _live(ev: Evaluator, x: list[Any]) -> Iterator[Any]:
    i = 0
    while i < len(x):
        ev.count(1)
        if ev.lost and id(x) in ev.lost:
            raise Undecided(ev.lost[id(x)])
        yield x[i]
        i += 1


def counted(ev: Evaluator, items: Any) -> Iterator[Any]:
    while (item := native(next, items, MISSING)) is not MISSING:
        ev.count(1)
        yield item


def item(ev: Evaluator, x: Any, at: Any) -> Any:
    kind = type(x)
    if kind is State and (deps := unread(ev, x, at)) != NOTHING:
        return Unknown(deps) if ev.is_lost(x) or id(x) in ev.forked else ev.operation("item", (x, at), deps)
    if kind is defaultdict and x.default_factory is not None and not ev.is_lost(x):
        held = apply(ev, "in", _in, at, x)
        if held is not True:
            ev.changes(x)
        if isinstance(held, Unknown):
            ev.lose(x, held.deps)
        elif not held:
            x[at] = ev.call(x.default_factory, [], {})
    if not (kind in CONTAINERS or kind in ATOMS or isinstance(x, (State, StateGroup, Object, Unknown, Expr))):
        return native(operator.getitem, x, at) if isinstance(x, type) and x.__module__ == "builtins" else Unknown(None)  # list[int]
    return apply(ev, "item", operator.getitem, x, at)


def unread(ev: Evaluator, x: State, name: Any) -> Deps:
    """Return the dependencies of knowing what a state holds under a name: that of a later answer may be unknown."""
    if isinstance(name, Unknown) or ev.is_lost(x):
        return join(ev.lost.get(id(x), NOTHING), known(ev, name))
    if type(name) is not str and name is not None:
        return NOTHING  # no variable is named so
    names = dropwhile(lambda each: type(each) is not UnknownName, list[Any](x.variables))
    unknown = next(names, None)
    if unknown is not None and (name not in [*names] or type(x.variables[name]) is GatheredAnswers):
        return unknown.deps
    return ev.forked.get(id(x), NOTHING) if name not in x.variables else NOTHING


def set_item(ev: Evaluator, x: Any, at: Any, value: Any) -> None:
    if type(at) is slice:
        ev.count(passes(value))
        value = Unknown(ev.lost[id(value)]) if ev.is_lost(value) else value
    if isinstance(x, Unknown):
        ev.lose(x, x.deps, any_of((value,)))
        ev.may_raise(x.deps)
        return ev.hand_over([value])
    if type(x) is Object and (own := ev.special(x, "__setitem__")) is not None:
        return ev.call(own, [at, value], {})
    with suppress(Undecided):
        change(ev, x, NOTHING, operator.setitem, x, at, value)


def spread(kwargs: dict[str, Any], x: Any) -> None:
    if type(x) not in MAPPINGS or any(type(k) is not str or k in kwargs for k in x):
        raise raised(TypeError)
    kwargs.update(x)


# -- text ------------------------------------------------------------------------------------------------------------


def formatted(ev: Evaluator, x: Any, conversion: str, how: Any) -> Any:
    """Evaluate `f"{x!conversion:how}"`."""
    if type(x) in PLAIN and type(how) is str and not how and conversion in ("", "s"):
        return str(x)
    if conversion or (type(x) is Object and not how and ev.special(x, "__format__") is None):
        x = text_of(ev, x, conversion or "s")
    if type(how) is str:
        spec(f"{{:{how}")
    return of_known(ev, "format", format, x, how)


def text_of(ev: Evaluator, x: Any, conversion: str) -> Any:
    """Evaluate `str(x)` ("s"), `repr(x)` ("r"), `ascii(x)` ("a")."""
    fn = _TEXTS[conversion]
    if type(x) is Object and conversion == "s" and (own := ev.special(x, "__str__")) is not None:
        return ev.call(own, [], {})
    return of_known(ev, fn.__name__, fn, x)


_TEXTS: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}


# -- awaiting ------------------------------------------------------------------------------------------------------------


def awaited(ev: Evaluator, x: Any) -> Any:
    run_tasks(ev)
    if type(x) is Coroutine:
        return x.result()
    if isinstance(x, Unknown):
        return x
    if type(x) is Object:
        return ev.unknown_code(x, [x], {})
    raise Raised(TypeError(f"object {type(x).__name__} can't be used in 'await' expression"))


def awaited_or(x: Any) -> Any:
    return x.result() if type(x) is Coroutine else x


def run_tasks(ev: Evaluator) -> None:
    """Run the tasks that were made, as the program would when it next awaits something."""
    tasks, ev.tasks = ev.tasks, []
    for task in tasks:
        task.settle()


def task(ev: Evaluator, x: Any) -> Any:
    """Return what a call that takes an awaitable as a task gives: of a coroutine, a task with addresses of its own."""
    if type(x) is not Coroutine or x.name is None or (state := ev.current) is None:
        return x
    task, run = new_task(state, x.name, calls=x.calls), x.begin
    ev.made_tasks.append(task)
    x.begin, x.name = run and (lambda: within(ev, state, run, task)), None
    return x


def within(ev: Evaluator, state: State, run: Callable[[], Any], task: TaskOfRun | None = None) -> Any:
    """Run a task, or a body of `forks.each`: sub-programs inherit from this state."""
    outer, ev.current, token = ev.current, state, TASK.set(task or TASK.get())
    try:
        return run()
    finally:
        ev.current = outer
        TASK.reset(token)
