"""The table of the Python builtins and library functions that the evaluator supports. All else is unknown.

PURE_METHODS   methods of immutable builtin types: run natively when all arguments are known
FUNCTIONS      functions by their rules: those that only compute run natively when all arguments are known
METHODS        methods of lists, dicts, sets … the evaluation's own: natively, as long as nothing unknown is touched
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import functools
import heapq
import itertools
import json
import math
import operator
import re
import statistics
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmc.frontend import primitives, tools
from lmc.frontend.capture import flow, searching
from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import Evaluator
from lmc.frontend.capture.unknown import NOTHING, Deps, Raised, Stop, Undecided, Unknown, join, raised
from lmc.frontend.capture.values import Coroutine, LazyItems, Manager, Object, Partial
from lmc.frontend.state import State, StateGroup

Rule = Callable[["Evaluator", list[Any], dict[str, Any]], Any]

PURE_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(n for n in dir(str) if not n.startswith("_")) - {"format_map", "expandtabs", "encode"},
    int: frozenset({"bit_length", "bit_count", "is_integer", "to_bytes", "conjugate"}),
    float: frozenset({"is_integer", "hex", "as_integer_ratio"}),
    bool: frozenset({"bit_length"}),
    range: frozenset({"index", "count"}),
    re.Match: frozenset({"group", "groups", "groupdict", "start", "end", "span", "expand"}),
    re.Pattern: frozenset({"match", "search", "findall", "fullmatch", "split", "sub", "subn", "finditer"}),
    frozenset: frozenset({"union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint", "copy"}),
}
_MODULES: Mapping[Any, str] = {
    math: "ceil floor sqrt log log2 log10 exp pow isclose isfinite isinf isnan fabs gcd lcm trunc fsum prod",
    json: "loads dumps",
    re: "match search findall fullmatch split sub subn compile escape finditer",
    textwrap: "dedent indent shorten wrap fill",
    statistics: "mean median mode stdev pstdev variance pvariance fmean median_low median_high multimode",
    operator: "add sub mul truediv floordiv mod eq ne lt le gt ge not_ concat and_ or_ neg index",
}
_BUILTINS = (int, float, complex, abs, round, ord, chr, divmod, hex, oct, bin, ascii, range, slice)
_LANGUAGE = (
    primitives.gen, primitives.select, primitives.gen_int, primitives.gen_string, primitives.user, primitives.system, primitives.assistant,
    primitives.user_begin, primitives.user_end, primitives.system_begin, primitives.system_end, primitives.assistant_begin, primitives.assistant_end,
    primitives.special, primitives.image, primitives.document, primitives.video, primitives.separate_reasoning, tools.tool_result,
)  # fmt: skip
LANGUAGE = frozenset(map(id, _LANGUAGE))
ASKS = frozenset(map(id, (primitives.gen, primitives.select, primitives.gen_int, primitives.gen_string)))
FUNCTIONS: dict[int, tuple[Any, str, Rule]] = {}


def is_known(fn: Any) -> bool:
    """Return whether a function of the outside is in the table."""
    return id(fn) in FUNCTIONS


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    def register(made: Rule) -> Rule:
        FUNCTIONS.update({id(fn): (fn, getattr(fn, "__name__", str(fn)), made) for fn in functions})
        return made

    return register


def of_rule(ev: Evaluator, rule: Rule, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of a rule of the table; an operation if something undecided matters to it."""
    try:
        return rule(ev, args, kwargs)
    except Undecided as undecided:
        return _undecided(ev, name, (*args, *kwargs.values()), undecided.deps)
    except IndexError:
        raise raised(TypeError) from None


def _undecided(ev: Evaluator, name: str, given: Sequence[Any], deps: Deps) -> Any:
    """Return the result of an operation to which something undecided matters: how often it calls functions that it is given is undecided, too."""
    ev.left_off(given, deps)
    return ev.operation(name, given, deps)


def _computes(fn: Any, name: str) -> Rule:
    return lambda ev, args, kwargs: pure(ev, fn, name, args, kwargs)


def pure(ev: Evaluator, fn: Any, name: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function that only computes: natively on known arguments, an operation on unknown ones."""
    searches = name in _SEARCHING and (name.startswith("re.") or isinstance(getattr(fn, "__self__", None), re.Pattern))
    if not (searches or kwargs or name in _GROWING) and all(map(_is_small, args)):
        return op.native(fn, *args)
    how = name.rpartition(".")[2]
    given = [op.all_of(ev, a) if type(a) is LazyItems else a for a in args]
    deps = join(NOTHING, *[op.need(ev, x) for x in (*given, *kwargs.values()) if x.__class__ is not str])
    if deps is None or deps:
        return _undecided(ev, name, (*args, *kwargs.values()), deps)
    sizes = [len(a) if isinstance(a, (str, bytes, list)) else op.native(len, a) if type(a) is range else 0 for a in given]
    ev.count(sum(sizes) >> 8)
    wide = 16 if name.startswith(".") else op.LARGEST_NUMBER  # bits: of widths, and of other numbers
    if (name in _GROWING and max(sizes, default=0) > 100_000) or any(isinstance(a, int) and a.bit_length() > wide for a in given):
        raise Stop("too large")
    for digits in (*given[1:], *kwargs.values()) if name == "round" else ():
        op.bound(ev, "pow", 10, digits)
    run = functools.partial(searching.search, fn, how, given, kwargs) if searches else functools.partial(fn, *given, **kwargs)
    try:
        found = op.native(run)
    except Undecided as undecided:
        return _undecided(ev, name, (*args, *kwargs.values()), undecided.deps)
    return LazyItems(ev, lambda: found) if how == "finditer" and not isinstance(found, Unknown) else found


def _is_small(x: Any) -> bool:
    """Return whether what only computes takes no time on a value, if it is not in `_GROWING`."""
    return (x.__class__ is str and len(x) < 256) or (x.__class__ is int and -65536 < x < 65536)


_GROWING = frozenset({f"textwrap.{n}" for n in _MODULES[textwrap].split()} | {"math.prod", "operator.mul", "round"})
"""Functions that may take long, or make something large."""
_SEARCHING = frozenset(f"{of}.{how}" for how in searching.SEARCHES for of in ("re", ""))
"""Names of searches with regular expressions, and of other methods of text."""


def callback(ev: Evaluator, fn: Any) -> Any:
    """Wrap a function to pass it to native code; return other values unchanged."""
    known = fn is None or type(fn) is Partial or isinstance(fn, Unknown) or type(fn) in op.ATOMS
    return fn if known else Partial(lambda args, kwargs: ev.call(fn, args, kwargs))


# -- what takes iterables and functions ----------------------------------------------------------------------------------

_TAKING: Mapping[Any, str] = {
    list: "a", tuple: "a", set: "u", collections.deque: "av", dict: "m", collections.OrderedDict: "m", collections.Counter: "m", frozenset: "u",
    collections.defaultdict: "dm", sum: "ux", sorted: "u", functools.reduce: "fux", reversed: "a", zip: "i", enumerate: "ix", map: "fi", filter: "fi",
    any: "i", all: "i", itertools.takewhile: "fi", itertools.islice: "iv", itertools.chain: "i", itertools.cycle: "i", itertools.count: "v",
    itertools.repeat: "xv", itertools.zip_longest: "i", itertools.pairwise: "i", itertools.product: "a", itertools.permutations: "av",
    itertools.combinations: "av", itertools.accumulate: "if", heapq.nlargest: "vu", heapq.nsmallest: "vu", min: "u|x", max: "u|x", iter: "i|fx",
}  # fmt: skip
"""Kinds of their arguments: i iterables, a iterables that are taken to their end, u those whose items must be known, too, m mappings or iterables, f and d
functions, v known values, x anything; the last letter stands for all arguments that follow, and those behind | hold for several arguments."""


def _natively(fn: Any, how: str) -> Rule:
    def made(ev: Evaluator, args: list[Any], kwargs: dict[str, Any]) -> Any:
        letters = how.partition("|")[2 if len(args) > 1 else 0] or how
        kinds = [letters[min(i, len(letters) - 1)] for i in range(len(args))]
        given = [_TAKEN[kind](ev, a) for kind, a in zip(kinds, args, strict=True)]
        if "u" in kinds and kwargs.get("key") is not None and ev.may_ask_in([kwargs["key"]]):
            at = kinds.index("u")
            given[at] = list(given[at])
            kwargs = _keyed(ev, given[at], kwargs)
        try:
            found = op.native(fn, *given, **{k: callback(ev, v) if k in ("key", "func") else v for k, v in kwargs.items()})
        except Undecided:
            for items, kind in zip(given, kinds, strict=True):
                if kind == "u" and ev.may_ask_in(args):  # Python goes on to their end
                    collections.deque(items, 0)
            raise
        is_native = hasattr(type(found), "__next__") and type(found) not in (LazyItems, Object, Unknown)
        return LazyItems(ev, lambda: op.counted(ev, found), sources=args) if is_native else found

    return made


def _keyed(ev: Evaluator, items: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Compute the keys by which items are sorted or compared: each once, in order, whatever the others are."""
    keys = iter([ev.call(kwargs["key"], [x], {}) for x in items])
    del kwargs["key"]  # it is called no more
    return {**kwargs, "key": Partial(lambda *_: next(keys))}


def _mapping(ev: Evaluator, x: Any) -> Any:
    return x if type(x) in op.MAPPINGS and not ev.is_lost(x) else [tuple(op.iterate(ev, i)) if type(i) in (list, LazyItems) else i for i in op.all_of(ev, x)]


_TAKEN: Mapping[str, Callable[[Evaluator, Any], Any]] = {
    "i": lambda ev, x: op.iterate(ev, x), "a": op.all_of, "u": op.each_of, "m": _mapping, "f": callback, "x": lambda _, x: x,
    "d": lambda ev, x: x if isinstance(x, type) else callback(ev, x), "v": lambda ev, x: _known(ev, x),
}  # fmt: skip


def _known(ev: Evaluator, x: Any) -> Any:
    deps = op.known(ev, x)
    if deps is None or deps:
        raise Undecided(deps)
    return x


@rule(next)
def _next(ev: Evaluator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if type(args[0]) is not LazyItems:
        return op.native(next, *args)
    try:
        return next(*args)
    except StopIteration as over:
        raise Raised(over.with_traceback(None)) from None


_ORDERED = (heapq.heappush, heapq.heappop, heapq.heapify)
CHANGES = frozenset({*map(id, _ORDERED), id(next)})
"""Functions that change their first argument."""
CLASS_METHODS: Mapping[tuple[type, str], Any] = {(dict, "fromkeys"): dict.fromkeys}
"""Attributes of builtin classes: other objects each time."""


# -- methods of containers of the evaluation's own, which may hold unknown values ------------------------------------

METHODS: Mapping[type, frozenset[str]] = {
    kind: frozenset(name for name in dir(kind) if not name.startswith("_"))
    for kind in (list, dict, set, tuple, collections.deque, collections.Counter, collections.OrderedDict, collections.defaultdict)
}
"""Supported methods, by type."""
_GIVES = frozenset({"pop", "popitem", "popleft", "setdefault"})
"""Of those that change the container, what gives something."""
_READS: Mapping[str, int] = {"append": 0, "appendleft": 0, "insert": 1, "get": 1, "pop": 1, "setdefault": 1}
"""Number of their arguments that are read; the others are irrelevant."""
_OF_ONE = frozenset("append appendleft add discard get pop popitem popleft setdefault update extend".split())
"""Methods that take no longer the more the container has."""
_TAKES_ALL = frozenset({"extend", "update", "union", "intersection", "difference"})


def call_container(ev: Evaluator, x: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Evaluate `x.name(*args, **kwargs)` of a method in `METHODS`."""

    def run(*_: Any) -> Any:
        given = [op.all_of(ev, a) if name in _TAKES_ALL and type(a) is LazyItems else a for a in args]
        named = _keyed(ev, x, kwargs) if name == "sort" and ev.may_ask_in(kwargs.values()) else kwargs
        return op.native(getattr(x, name), *given, **{k: callback(ev, v) if name == "sort" else v for k, v in named.items()})

    changes = name in flow.CHANGING
    ev.count((0 if name in _OF_ONE else len(x) >> 3) + sum(op.passes(a) for a in args))
    deps = join(*(op.known(ev, a) for a in args[: _READS.get(name)]))
    try:
        if changes:
            return op.change(ev, x, deps, run, *args, *kwargs.values())
        if (deps := join(op.known(ev, x), deps)) != NOTHING:
            raise Undecided(deps)
        found = run()
        return list(found) if name == "values" else LazyItems(ev, lambda: found) if name == "elements" else found
    except Undecided as undecided:
        ev.left_off([x] if name in ("index", "count", "remove", "sort") else [], undecided.deps)
        return None if changes and name not in _GIVES else ev.operation("." + name, (x, *args), undecided.deps)


# -- types, attributes, functions, copies, managers -----------------------------------------------------------------------


@rule(type)
def _type(ev: Evaluator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    is_own = op.need(ev, x) is not None or isinstance(x, (BaseException, State, Object)) or type(x) in op.CONTAINERS
    return ev.class_of(x) if len(args) == 1 and is_own and not isinstance(x, Unknown) else ev.operation("type", args, op.known(ev, x) or None)


@rule(getattr)
def _getattr(ev: Evaluator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        found = ev.attribute(args[0], args[1]) if isinstance(args[1], str) else ev.operation("getattr", args, op.known(ev, args[1]))
        return op.any_of((found, *args[2:]), found.deps) if type(found) is Unknown else found
    except Raised as raised:
        if len(args) > 2 and isinstance(raised.value, AttributeError):
            return args[2]
        raise


# -- asyncio -----------------------------------------------------------------------------------------------------------


@rule(asyncio.gather)
def _gather(ev: Evaluator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    args = [op.task(ev, a) for a in args]

    def run() -> Any:
        for a in args:
            if type(a) is Coroutine:
                a.settle()
        if "return_exceptions" in kwargs:
            return Unknown(None)
        return [op.awaited(ev, a) for a in args]

    return Coroutine(run)


@rule(asyncio.create_task, asyncio.ensure_future)
def _create_task(ev: Evaluator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if type(args[0]) is Coroutine:
        ev.tasks.append(op.task(ev, args[0]))
    return args[0]


@rule(asyncio.TaskGroup)
def _task_group(ev: Evaluator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    group = Object(ev, asyncio.TaskGroup, {"create_task": Partial(lambda more, named: _create_task(ev, more, named))})
    return Manager(lambda: group, lambda _: op.run_tasks(ev))


# -- rules of one line -----------------------------------------------------------------------------------------------------

_SHORT: Mapping[Any, Rule] = {
    **{vars(module)[name]: _computes(vars(module)[name], f"{module.__name__}.{name}") for module, names in _MODULES.items() for name in names.split()},
    **{fn: _computes(fn, fn.__name__) for fn in _BUILTINS},
    **{fn: (lambda ev, args, kwargs, fn=fn: ev.language(fn, args, kwargs)) for fn in _LANGUAGE},
    **{fn: _natively(fn, letters) for fn, letters in _TAKING.items()},
    **{fn: (lambda ev, args, kwargs, fn=fn: op.change(ev, args[0], NOTHING, fn, *args)) for fn in _ORDERED},
    CLASS_METHODS[dict, "fromkeys"]: lambda ev, args, kwargs: op.native(dict.fromkeys, op.iterate(ev, args[0]), *args[1:]),
    bool: lambda ev, args, kwargs: op.truth(ev, args[0]) if args else False,
    str: lambda ev, args, kwargs: op.text_of(ev, args[0], "s") if len(args) == 1 and not kwargs else ev.operation("str", args, None),
    repr: lambda ev, args, kwargs: op.text_of(ev, args[0], "r"),
    format: lambda ev, args, kwargs: op.formatted(ev, args[0], "", args[1] if len(args) > 1 else ""),
    len: lambda ev, args, kwargs: len(args[0].states) if type(args[0]) is StateGroup else op.apply(ev, "len", len, args[0]),
    isinstance: lambda ev, args, kwargs: ev.is_instance(args[0], args[1]),
    setattr: lambda ev, args, kwargs: ev.set_attribute(*args),
    print: lambda ev, args, kwargs: ev.left_off([x for x in args if type(x) in op.CONTAINERS or (type(x) is Object and op.text_of(ev, x, "s"))], None),
    functools.partial: lambda ev, args, kwargs: Partial(
        lambda more, named: ev.call(args[0], [*args[1:], *more], {**kwargs, **named}), (*args, *kwargs.values())),
    operator.itemgetter: lambda ev, args, kwargs: Partial(
        lambda more, _: op.item(ev, more[0], args[0]) if len(args) == 1 else tuple([op.item(ev, more[0], a) for a in args])),
    operator.contains: lambda ev, args, kwargs: op.compare(ev, "in", operator.contains, args[1], args[0]),
    operator.attrgetter: lambda ev, args, kwargs: Partial(lambda more, _: functools.reduce(ev.attribute, args[0].split("."), more[0])),
    copy.deepcopy: lambda ev, args, kwargs: op.of_known(ev, "deepcopy", copy.deepcopy, args[0]),
    contextlib.suppress: lambda ev, args, kwargs: Manager(lambda: None, lambda error: error is not None and ev.catches(tuple(args), error)),
    contextlib.nullcontext: lambda ev, args, kwargs: Manager(lambda: args[0] if args else None, of=args),
    asyncio.sleep: lambda ev, args, kwargs: Coroutine(lambda: args[1] if len(args) > 1 else None),
    time.sleep: lambda ev, args, kwargs: None,
    **dict.fromkeys((asyncio.Semaphore, asyncio.Lock, asyncio.BoundedSemaphore, asyncio.timeout), lambda ev, args, kwargs: Manager(lambda: None)),
    asyncio.wait_for: lambda ev, args, kwargs: args[0],
    asyncio.shield: lambda ev, args, kwargs: op.task(ev, args[0]),
    **dict.fromkeys((hash, id), lambda ev, args, kwargs: Unknown(None)),
}  # fmt: skip
for _fn, _made in _SHORT.items():
    rule(_fn)(_made)
