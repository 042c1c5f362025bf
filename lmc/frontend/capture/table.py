"""What the evaluator understands of Python's builtins and library: the one table. All else is unknown.

PURE_METHODS   methods of immutable builtin types: run natively when all arguments are known
PURE           functions that only compute: run natively when all arguments are known
FUNCTIONS      functions that may be handed unknown things, functions of the program or iterators: a rule each
METHODS        methods of lists, dicts, sets … the evaluation's own: a rule each (`containers.py`)
LANGUAGE       lmc's own, which pass unknown things on
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# (values of a program are Any by nature)

from __future__ import annotations

import ast
import asyncio
import base64
import bisect
import cmath
import collections
import contextlib
import copy
import dataclasses
import difflib
import functools
import hashlib
import heapq
import html
import inspect
import itertools
import json
import math
import operator
import os.path
import re
import shlex
import statistics
import string
import textwrap
import time
import types
import unicodedata
import urllib.parse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lmc.frontend import primitives, tools
from lmc.frontend.capture import backtracking
from lmc.frontend.capture import operations as op
from lmc.frontend.capture.values import (
    NOTHING,
    Class,
    Closure,
    Coroutine,
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
from lmc.frontend.state import State, StateGroup

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Evaluation

Rule = Callable[["Evaluation", list[Any], dict[str, Any]], Any]

PURE_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(n for n in dir(str) if not n.startswith("_")) - {"format_map"},
    bytes: frozenset(n for n in dir(bytes) if not n.startswith("_")),
    int: frozenset({"bit_length", "bit_count", "is_integer", "to_bytes", "conjugate"}),
    float: frozenset({"is_integer", "hex", "as_integer_ratio"}),
    bool: frozenset({"bit_length"}),
    complex: frozenset({"conjugate"}),
    range: frozenset({"index", "count"}),
    re.Match: frozenset({"group", "groups", "groupdict", "start", "end", "span", "expand"}),
    re.Pattern: frozenset({"match", "search", "findall", "fullmatch", "split", "sub", "subn", "finditer"}),
    tuple: frozenset({"index", "count"}),
    frozenset: frozenset({"union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint", "copy"}),
}
_MODULES: Mapping[Any, str] = {
    math: "ceil floor sqrt log log2 log10 exp pow sin cos tan atan atan2 hypot isclose isfinite isinf isnan fabs fmod gcd lcm copysign trunc degrees radians dist fsum prod tanh",
    cmath: "phase polar rect",
    json: "loads dumps",
    re: "match search findall fullmatch split sub subn compile escape finditer",
    textwrap: "dedent indent shorten wrap fill",
    string: "capwords",
    statistics: "mean median mode stdev pstdev variance pvariance fmean median_low median_high multimode",
    html: "escape unescape",
    shlex: "quote split",
    urllib.parse: "quote unquote quote_plus urlencode",
    os.path: "join basename dirname splitext normpath split isabs",
    difflib: "get_close_matches",
    unicodedata: "normalize category",
    base64: "b64encode b64decode",
    ast: "literal_eval",
    operator: "add sub mul truediv floordiv mod eq ne lt le gt ge not_ contains concat and_ or_ neg index",
    heapq: "nlargest nsmallest",
    bisect: "bisect bisect_left bisect_right",
    collections: "Counter OrderedDict",
}
_BUILTINS = (str, int, float, complex, bytes, abs, round, ord, chr, divmod, hex, oct, bin, ascii, repr, pow, range, slice, frozenset)
PURE: dict[int, tuple[Any, str]] = {
    **{id(getattr(m, n)): (getattr(m, n), f"{m.__name__}.{n}") for m, names in _MODULES.items() for n in names.split()},
    **{id(f): (f, f.__name__) for f in _BUILTINS},
}
LANGUAGE: dict[int, Any] = {id(f): f for f in (
    primitives.gen, primitives.select, primitives.gen_int, primitives.gen_string, primitives.user, primitives.system, primitives.assistant,
    primitives.user_begin, primitives.user_end, primitives.system_begin, primitives.system_end, primitives.assistant_begin, primitives.assistant_end,
    primitives.special, primitives.image, primitives.document, primitives.video, primitives.separate_reasoning, tools.tool_result,
)}  # fmt: skip
ASKS = frozenset(map(id, (primitives.gen, primitives.select, primitives.gen_int, primitives.gen_string)))
FUNCTIONS: dict[int, tuple[Any, str, Rule]] = {}


def is_known(fn: Any) -> bool:
    """Whether a function of the outside is in the table."""
    return id(fn) in FUNCTIONS or id(fn) in PURE or id(fn) in LANGUAGE


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    def register(made: Rule) -> Rule:
        for fn in functions:
            FUNCTIONS[id(fn)] = (fn, getattr(fn, "__name__", str(fn)), made)
        return made

    return register


def pure(ev: Evaluation, fn: Any, name: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    """A function that only computes: natively on known arguments, an operation on unknown ones."""
    if kwargs and any(type(v) in (Closure, Method, Partial) or isinstance(v, types.FunctionType) for v in kwargs.values()):
        kwargs = {k: callback(ev, v) for k, v in kwargs.items()}
    given = [callback(ev, a) if type(a) in (Closure, Method, Partial) else list(a) if type(a) is Items and ev.count(1) is None else a for a in args]
    deps = NOTHING
    for x in (*given, *kwargs.values()):
        if not isinstance(x, _Callback) and x.__class__ is not str:
            deps = join(deps, _need_argument(ev, x))
    if deps is None or deps:
        return ev.operation(name, (*args, *kwargs.values()), deps)
    for x in given:
        if type(x) is range:
            ev.count(op.native(len, x))
    _bounded(name, given)
    if (_is_regex(fn) and not _is_quick(fn, name, given, kwargs)) or (fn is re.compile and given and _warns(fn, given, given[0])):
        return ev.operation(name, args, None)
    if fn is ast.literal_eval and given and isinstance(given[0], str) and _WARNED.search(given[0]):
        return ev.operation(name, args, None)
    try:
        found = op.native(fn, *given, **kwargs)
    except Undecided as undecided:
        return ev.operation(name, args, undecided.deps)
    return Items(found) if type(found).__name__ == "callable_iterator" else found


def _need_argument(ev: Evaluation, x: Any) -> Any:
    deps = op.need(ev, x)
    return NOTHING if deps is None and isinstance(x, type) and x.__module__ in ("builtins", "collections") else deps


def _bounded(name: str, args: list[Any]) -> None:
    if name.startswith(("re.", ".")) and sum(len(a) for a in args if isinstance(a, str)) > op.LARGEST_REGEX_TEXT:
        raise Stop("a text is too large for a regular expression")
    if name == "bytes" and args and isinstance(args[0], int) and args[0] > op.LARGEST_TEXT:
        raise Stop("bytes are too large")
    if name == "pow" and len(args) == 2:
        op.bound("pow", args[0], args[1])
    if name == "pow" and any(isinstance(a, int) and a.bit_length() > op.LARGEST_NUMBER // 10 for a in args[1:]):
        raise Stop("a number is too large")
    if (name == "math.prod" or name.startswith(_WRITTEN_IN_PYTHON)) and any(isinstance(a, (str, list)) and len(a) > op.LARGEST_REGEX_TEXT for a in args):
        raise Stop("too large")
    if name == "difflib.get_close_matches" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], list | tuple) and len(args[0]) * sum(len(a) for a in args[1] if isinstance(a, str)) > _MOST_COMPARED:
        raise Stop("too large")


_WARNED = re.compile(r"\\|\d[a-zA-Z]")
"""What the parser of Python may warn of."""
_WRITTEN_IN_PYTHON = ("textwrap.", "shlex.", "html.", "ast.", "string.", "urllib.")
_MOST_COMPARED = 1_000_000
"""Characters of one text times those of the texts that it is compared with."""


def _is_regex(fn: Any) -> bool:
    return isinstance(getattr(fn, "__self__", None), re.Pattern) or (getattr(fn, "__module__", None) == "re" and fn not in (re.compile, re.escape))


_signatures: dict[str, inspect.Signature] = {}


def _signature(name: str, fn: Any) -> inspect.Signature:
    """That of a function or method of `re`, by its name: of two objects' methods it is the same."""
    if name not in _signatures:
        _signatures[name] = inspect.signature(fn)
    return _signatures[name]


_NESTED = re.compile(r"\[\[|--|&&|~~|\|\|")


def _warns(fn: Any, args: list[Any], pattern: Any) -> bool:
    """Whether `re` may warn: of sets within sets when it reads a pattern, of numbers and flags that are given by position."""
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    most = {"split": 2, "sub": 3, "subn": 3}.get(getattr(fn, "__name__", ""), 4)
    return len(args) > most or _NESTED.search(text if isinstance(text, str) else str(text, "latin-1") if isinstance(text, bytes) else "") is not None


def _is_quick(fn: Any, name: str, args: list[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a search is over soon, whatever the text: it holds the interpreter, and so the answer that its program waits for."""
    try:
        given = _signature(fn.__qualname__, fn).bind(*args, **kwargs).arguments
        pattern: Any = given.get("pattern", getattr(fn, "__self__", None))
        if _warns(fn, args, pattern):
            return False
        text, flags = given["string"], given.get("flags", 0)
        if isinstance(pattern, re.Pattern):
            pattern, flags = pattern.pattern, pattern.flags
        return backtracking.work(pattern, flags, text, name.rpartition(".")[2]) <= backtracking.MOST_WORK
    except (KeyError, RecursionError):
        return False
    except (re.error, TypeError, ValueError, OverflowError, AttributeError):  # raised again by the call, where the program may handle it
        return True


class _Callback:
    """A function of the program that native code calls."""

    def __init__(self, ev: Evaluation, fn: Any) -> None:
        self.ev, self.fn = ev, fn

    def __call__(self, *args: Any) -> Any:
        found = self.ev.call(self.fn, list(args), {})
        deps = op.need(self.ev, found)
        if deps is None or deps:
            raise Undecided(deps)
        return found


def callback(ev: Evaluation, fn: Any) -> Any:
    return fn if fn is None or not (callable(fn) or type(fn) in (Closure, Method, Partial, Class)) else _Callback(ev, fn)


# -- conversions -----------------------------------------------------------------------------------------------------


def _collect(kind: type) -> Rule:
    def made(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
        items = list(op.iterate(ev, args[0])) if args else []
        if kind is list:
            return items
        if kind is tuple:
            return tuple(items)
        if kind is collections.deque:
            limit = args[1] if len(args) > 1 else kwargs.get("maxlen")
            return op.native(collections.deque, items, limit)
        deps = ev.need_keys(items)
        if deps is None or deps:
            raise Undecided(deps)
        return op.native(set, items)

    return made


for _kind in (list, tuple, set, collections.deque):
    rule(_kind)(_collect(_kind))


@rule(dict, collections.OrderedDict)
def _dict(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found: dict[Any, Any] = {}
    if args:
        ev.update_mapping(found, args[0])
    found.update(kwargs)
    return found


@rule(collections.defaultdict)
def _defaultdict(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found: Any = collections.defaultdict(args[0] if args else None)
    if len(args) > 1:
        ev.update_mapping(found, args[1])
    found.update(kwargs)
    return found


@rule(collections.Counter)
def _counter(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = args[0] if args else ()
    if type(given) not in op.MAPPINGS:
        given = list(op.iterate(ev, given)) if given is not None else []
    return pure(ev, collections.Counter, "Counter", [given], kwargs)


def _fromkeys(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    keys = list(op.iterate(ev, args[0]))
    deps = ev.need_keys(keys)
    if deps is None or deps:
        raise Undecided(deps)
    return op.native(dict.fromkeys, keys, *args[1:])


def _from_iterable(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Items(i for a in op.iterate(ev, args[0]) for i in op.iterate(ev, a))


CLASS_METHODS: dict[tuple[type, str], Rule] = {
    (dict, "fromkeys"): _fromkeys, (itertools.chain, "from_iterable"): _from_iterable,
    **{(c, n): lambda ev, args, kwargs, c=c, n=n: pure(ev, getattr(c, n), n, args, kwargs)
       for c, n in ((str, "maketrans"), (int, "from_bytes"), (bytes, "fromhex"), (float, "fromhex"))},
}  # fmt: skip
"""Of builtin classes."""


# -- iterators ---------------------------------------------------------------------------------------------------------


@rule(iter)
def _iter(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1:
        return args[0] if type(args[0]) is Items else Items(op.iterate(ev, args[0]))

    def until() -> Any:
        while True:
            ev.count(1)
            item = ev.call(args[0], [], {})
            known = op.truth(ev, op.compare(ev, "eq", operator.eq, item, args[1]))
            if isinstance(known, Unknown):
                raise Undecided(known.deps)
            if known:
                return
            yield item

    return Items(until())


@rule(next, anext)
def _next(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = args[0]
    if type(items) is Object and (method := ev.special(items, "__next__")) is not None:
        return ev.call(method, [], {})
    if type(items) is not Items:
        raise Undecided(items.deps) if isinstance(items, Unknown) else Raised(TypeError(f"{ev.type_name(items)!r} object is not an iterator"))
    ev.count(1)
    more, item = op.take(ev, items)
    if more:
        return item
    if len(args) > 1:
        return args[1]
    raise Raised(StopIteration())


@rule(enumerate)
def _enumerate(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    start = args[1] if len(args) > 1 else kwargs.get("start", 0)
    if isinstance(start, Unknown):
        raise Undecided(start.deps)
    return Items(enumerate(op.iterate(ev, args[0]), start))


@rule(zip)
def _zip(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    parts = [op.iterate(ev, a) for a in args]
    strict = kwargs.get("strict") is True

    def together() -> Any:
        try:
            yield from zip(*parts, strict=strict)
        except ValueError as error:
            raise Raised(error) from None

    return Items(together())


@rule(map)
def _map(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    parts = [op.iterate(ev, a) for a in args[1:]]
    return Items(ev.call(args[0], list(items), {}) for items in zip(*parts, strict=False))


def _holds(ev: Evaluation, test: Any, item: Any) -> bool:
    known = op.truth(ev, item if test is None else ev.call(test, [item], {}))
    if isinstance(known, Unknown):
        raise Undecided(known.deps)
    return known


def _kept(ev: Evaluation, test: Any, items: Any, wanted: bool) -> Any:
    for item in items:
        if _holds(ev, test, item) is wanted:
            yield item


@rule(itertools.islice)
def _islice(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    for a in args[1:]:
        if isinstance(a, Unknown):
            raise Undecided(a.deps)
    return Items(op.native(itertools.islice, op.iterate(ev, args[0]), *args[1:]))


def _combined(fn: Any, several: bool) -> Rule:
    def made(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
        parts = [list(op.iterate(ev, a)) for a in args] if several else [list(op.iterate(ev, args[0])), *args[1:]]
        return Items(fn(*parts, **kwargs))

    return made


for _fn, _several in ((itertools.product, True), (itertools.permutations, False), (itertools.combinations, False), (itertools.pairwise, False),
                      (itertools.combinations_with_replacement, False)):  # fmt: skip
    rule(_fn)(_combined(_fn, _several))


@rule(itertools.accumulate)
def _accumulate(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    fn = args[1] if len(args) > 1 else kwargs.get("func")
    add = (lambda a, b: op.binary(ev, "add", operator.add, a, b)) if fn is None else lambda a, b: ev.call(fn, [a, b], {})
    return Items(itertools.accumulate(op.iterate(ev, args[0]), add, **({"initial": kwargs["initial"]} if "initial" in kwargs else {})))


@rule(itertools.groupby)
def _groupby(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    fn = args[1] if len(args) > 1 else kwargs.get("key")
    key = (lambda x: _known(ev, x)) if fn is None else callback(ev, fn)
    return Items((k, Items(iter(list(group)))) for k, group in itertools.groupby(op.iterate(ev, args[0]), key))


def _known(ev: Evaluation, x: Any) -> Any:
    deps = op.need(ev, x)
    if deps is None or deps:
        raise Undecided(deps)
    return x


# -- whole iterables -----------------------------------------------------------------------------------------------------


@rule(sorted)
def _sorted(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = list(op.iterate(ev, args[0]))
    return sort(ev, items, kwargs)


def sort(ev: Evaluation, items: list[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The items in order; Undecided where a key is unknown."""
    fn, backwards = kwargs.get("key"), kwargs.get("reverse", False)
    if isinstance(backwards, Unknown):
        raise Undecided(backwards.deps)
    keys = [_Key(ev, x if fn is None else ev.call(fn, [x], {})) for x in items]
    ev.count(len(items))
    order = op.native(sorted, range(len(items)), key=keys.__getitem__, reverse=backwards)
    return [items[i] for i in order]


class _Key:
    """Compares as values of the evaluation do."""

    __slots__ = ("ev", "x")

    def __init__(self, ev: Evaluation, x: Any) -> None:
        self.ev, self.x = ev, x

    def __lt__(self, other: _Key) -> bool:
        known = op.truth(self.ev, op.compare(self.ev, "lt", operator.lt, self.x, other.x))
        if isinstance(known, Unknown):
            raise Undecided(known.deps)
        return known

    def __gt__(self, other: _Key) -> bool:
        return other < self


def _extreme(fn: Any) -> Rule:
    def made(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
        items = list(op.iterate(ev, args[0])) if len(args) == 1 else list(args)
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            raise Raised(ValueError(f"{fn.__name__}() arg is an empty sequence"))
        key = kwargs.get("key")
        keys = [_Key(ev, x if key is None else ev.call(key, [x], {})) for x in items]
        return items[op.native(fn, range(len(items)), key=keys.__getitem__)]

    return made


for _fn in (min, max):
    rule(_fn)(_extreme(_fn))


@rule(sum)
def _sum(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    total = args[1] if len(args) > 1 else kwargs.get("start", 0)
    if isinstance(total, str):
        raise Raised(TypeError("sum() can't sum strings [use ''.join(seq) instead]"))
    for item in op.iterate(ev, args[0]):
        total = op.binary(ev, "add", operator.add, total, item)
    return total


def _quantified(stop_at: bool) -> Rule:
    def made(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
        for item in op.iterate(ev, args[0]):
            known = op.truth(ev, item)
            if isinstance(known, Unknown):
                raise Undecided(known.deps)
            if known is stop_at:
                return stop_at
        return not stop_at

    return made


rule(any)(_quantified(True))
rule(all)(_quantified(False))


@rule(functools.reduce)
def _reduce(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = op.iterate(ev, args[1])
    more, total = (True, args[2]) if len(args) > 2 else op.take(ev, items)
    if not more:
        raise Raised(TypeError("reduce() of empty iterable with no initial value"))
    for item in items:
        total = ev.call(args[0], [total, item], {})
    return total


# -- heaps -----------------------------------------------------------------------------------------------------------


def _heap(fn: Any) -> Rule:
    def made(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
        ev.changes(args[0])
        deps = join(*(op.need(ev, a) for a in args))
        if deps is None or deps or kwargs:
            ev.lose(args[0], deps)
            return ev.operation(fn.__name__, args, deps)
        return op.native(fn, *args)

    return made


_ORDERED = (heapq.heappush, heapq.heappop, heapq.heapify, heapq.heappushpop, heapq.heapreplace, bisect.insort, bisect.insort_right, bisect.insort_left)
CHANGING = frozenset({*map(id, _ORDERED), id(next), id(setattr)})
"""Functions that change what they are given."""
for _fn in _ORDERED:
    rule(_fn)(_heap(_fn))


# -- types, attributes ---------------------------------------------------------------------------------------------------


@rule(issubclass)
def _issubclass(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    kinds = args[1] if type(args[1]) is tuple else (args[1],)
    if isinstance(args[0], Unknown) or any(isinstance(k, Unknown) for k in kinds):
        return Unknown(None)
    return any(k in ev.mro(args[0]) for k in kinds)


@rule(type)
def _type(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if len(args) != 1 or isinstance(x, Unknown):
        return ev.operation("type", args, x.deps if isinstance(x, Unknown) else None)
    return x.cls if type(x) is Object else type(x) if op.need(ev, x) is not None or isinstance(x, (BaseException, State)) or type(x) in op.SEQUENCES | op.MAPPINGS else Unknown(None)


@rule(callable)
def _callable(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if isinstance(x, Unknown):
        return ev.operation("callable", args, x.deps)
    return type(x) in (Closure, Method, Partial, Class) or (type(x) is Object and ev.special(x, "__call__") is not None) or callable(x)


@rule(getattr)
def _getattr(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not isinstance(args[1], str):
        return ev.operation("getattr", args, join(*(a.deps for a in args if isinstance(a, Unknown))) if isinstance(args[1], Unknown) else None)
    try:
        return ev.attribute(args[0], args[1])
    except Raised as raised:
        if len(args) > 2 and isinstance(raised.value, AttributeError):
            return args[2]
        raise


@rule(hasattr)
def _hasattr(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(args[0], Unknown) or not isinstance(args[1], str):
        return ev.operation("hasattr", args, args[0].deps if isinstance(args[0], Unknown) else None)
    try:
        found = ev.attribute(args[0], args[1])
    except Raised as raised:
        if isinstance(raised.value, AttributeError):
            return False
        raise
    return found if isinstance(found, Unknown) and found.deps is None and type(args[0]) is not Object else True


@rule(setattr)
def _setattr(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(args[1], Unknown):
        ev.lose(args[0], args[1].deps)
    else:
        ev.set_attribute(args[0], args[1], args[2])


# -- functions, copies, managers -----------------------------------------------------------------------------------------


@rule(functools.partial)
def _partial(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    fn, first = args[0], args[1:]
    return Partial(lambda more, named: ev.call(fn, [*first, *more], {**kwargs, **named}))


@rule(functools.wraps)
def _wraps(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    wrapped = args[0]

    def wrap(more: list[Any], _: dict[str, Any]) -> Any:
        if type(more[0]) is Closure:
            more[0].attributes["__wrapped__"] = wrapped
            more[0].name = getattr(wrapped, "name", None) or getattr(wrapped, "__name__", more[0].name)
        return more[0]

    return Partial(wrap)


@rule(functools.cache)
def _cache(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    fn, results = args[0], dict[Any, Any]()

    def cached(more: list[Any], named: dict[str, Any]) -> Any:
        deps = op.need(ev, [*more, *named.values()])
        if deps is None or deps:
            return ev.call(fn, more, named)
        key = (*more, *sorted(named.items()))
        try:
            hash(key)
        except TypeError as error:
            raise Raised(error) from None
        if key not in results:
            results[key] = ev.call(fn, more, named)
        return results[key]

    return Partial(cached)


@rule(functools.lru_cache)
def _lru_cache(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args and type(args[0]) in (Closure, Partial):
        return _cache(ev, args, {})
    return Partial(lambda more, _: _cache(ev, more, {}))


@rule(operator.itemgetter)
def _itemgetter(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Partial(lambda more, _: op.item(ev, more[0], args[0]) if len(args) == 1 else tuple([op.item(ev, more[0], a) for a in args]))


@rule(operator.attrgetter)
def _attrgetter(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    def get(x: Any, path: str) -> Any:
        for name in path.split("."):
            x = ev.attribute(x, name)
        return x

    return Partial(lambda more, _: get(more[0], args[0]) if len(args) == 1 else tuple([get(more[0], a) for a in args]))


@rule(copy.copy)
def _copy(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if type(x) is Object:
        return Object(x.cls, dict(x.attributes), x.args) if ev.special(x, "__copy__") is None else Unknown(None)
    if ev.is_lost(x):
        return Unknown(ev.lost[id(x)])
    return copy.copy(x) if type(x) in op.SEQUENCES or type(x) in op.MAPPINGS or type(x) in op.ATOMS else x if isinstance(x, Unknown) else Unknown(None)


def deep_copy(ev: Evaluation, x: Any, memo: dict[int, Any]) -> Any:
    """A copy of a value of the evaluation and all that it holds."""
    kind = type(x)
    if kind in op.ATOMS or isinstance(x, (Unknown, type, Class, Closure, types.FunctionType)):
        return x
    if ev.is_lost(x):
        return Unknown(ev.lost[id(x)])
    if id(x) in memo:
        return memo[id(x)]
    ev.count(1)
    if kind is Object and ev.special(x, "__deepcopy__") is None:
        made = memo[id(x)] = Object(x.cls, {}, x.args)
        made.attributes.update({k: deep_copy(ev, v, memo) for k, v in x.attributes.items()})
        return made
    if kind in op.MAPPINGS:
        made = memo[id(x)] = x.copy()
        for k, v in x.items():
            made[k] = deep_copy(ev, v, memo)
        return made
    if kind in (list, collections.deque):
        made = memo[id(x)] = x.copy()
        for i, v in enumerate(x):
            made[i] = deep_copy(ev, v, memo)
        return made
    if kind in (tuple, set, frozenset):
        return x if kind is not tuple and kind is frozenset else x.copy() if kind is set else tuple([deep_copy(ev, v, memo) for v in x])
    return Unknown(None)


def manager_of(ev: Evaluation, items: Any) -> Any:
    """The context manager that a generator is."""
    if type(items) is not Items or items.generator is None:
        return Unknown(None)

    def leave(error: Any) -> bool:
        if error is None:
            if op.take(ev, items)[0]:
                raise Raised(RuntimeError("generator didn't stop"))
            return False
        try:
            items.generator.throw(Raised(error))
        except StopIteration:
            return True
        except Raised as raised:
            if raised.value is error:
                return False
            raise
        raise Raised(RuntimeError("generator didn't stop after throw()"))

    return Manager(lambda: op.take(ev, items)[1], leave)


@rule(dataclasses.dataclass)
def _dataclass(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args:
        return Partial(lambda more, _: ev.make_dataclass(more[0], kwargs))
    return ev.make_dataclass(args[0], kwargs)


@rule(dataclasses.asdict)
def _asdict(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    def plain(x: Any) -> Any:
        kind: Any = type(x)
        if kind is Object and (names := ev.dataclass_fields(x)) is not None:
            return {n: plain(x.attributes.get(n)) for n in names}
        if kind in (list, tuple) and not ev.is_lost(x):
            return kind([plain(i) for i in x])
        if type(x) is dict and not ev.is_lost(x):
            return {k: plain(v) for k, v in x.items()}
        return deep_copy(ev, x, {})

    return plain(args[0])


@rule(dataclasses.replace)
def _replace(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    names = ev.dataclass_fields(x) if type(x) is Object else None
    return Unknown(None) if names is None else ev.call(x.cls, [], {**{n: x.attributes[n] for n in names if n in x.attributes}, **kwargs})


def _descriptor(kind: Any) -> Rule:
    return lambda ev, args, kwargs: Object(kind, {"fget": args[0] if args else kwargs.get("fget"), "fset": args[1] if len(args) > 1 else kwargs.get("fset")})


for _kind in (property, staticmethod, classmethod, functools.cached_property):
    rule(_kind)(_descriptor(_kind))


# -- asyncio -----------------------------------------------------------------------------------------------------------


@rule(asyncio.gather)
def _gather(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    def run() -> Any:
        for a in args:
            if type(a) is Coroutine:
                a.settle()
        if kwargs.get("return_exceptions") is True:
            return [_or_error(a) for a in args]
        return [ev.awaited(a) for a in args]

    return Coroutine(run)


def _or_error(x: Any) -> Any:
    try:
        return x.result() if type(x) is Coroutine else Unknown(None)
    except Raised as raised:
        return raised.value


@rule(asyncio.create_task, asyncio.ensure_future)
def _create_task(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if type(args[0]) is Coroutine:
        ev.tasks.append(args[0])
    return args[0]


@rule(asyncio.TaskGroup)
def _task_group(ev: Evaluation, args: list[Any], kwargs: dict[str, Any]) -> Any:
    group = Object(asyncio.TaskGroup, {"create_task": Partial(lambda more, named: _create_task(ev, more, named))})

    def leave(error: Any) -> bool:
        ev.run_tasks()
        return False

    return Manager(lambda: group, leave)


# -- rules of one line -----------------------------------------------------------------------------------------------------

_SHORT: Mapping[Any, Rule] = {
    bool: lambda ev, args, kwargs: op.truth(ev, args[0]) if args else False,
    str: lambda ev, args, kwargs: op.text_of(ev, args[0], "s") if len(args) == 1 and not kwargs else pure(ev, str, "str", args, kwargs),
    repr: lambda ev, args, kwargs: op.text_of(ev, args[0], "r"),
    format: lambda ev, args, kwargs: op.formatted(ev, args[0], "", args[1] if len(args) > 1 else ""),
    len: lambda ev, args, kwargs: op.length(ev, args[0]),
    itertools.zip_longest: lambda ev, args, kwargs: Items(itertools.zip_longest(*[op.iterate(ev, a) for a in args], **kwargs)),
    filter: lambda ev, args, kwargs: Items(_kept(ev, args[0], op.iterate(ev, args[1]), True)),
    itertools.filterfalse: lambda ev, args, kwargs: Items(_kept(ev, args[0], op.iterate(ev, args[1]), False)),
    itertools.takewhile: lambda ev, args, kwargs: Items(itertools.takewhile(lambda item: _holds(ev, args[0], item), op.iterate(ev, args[1]))),
    itertools.dropwhile: lambda ev, args, kwargs: Items(itertools.dropwhile(lambda item: _holds(ev, args[0], item), op.iterate(ev, args[1]))),
    itertools.chain: lambda ev, args, kwargs: Items(item for a in args for item in op.iterate(ev, a)),
    itertools.cycle: lambda ev, args, kwargs: Items(itertools.cycle(list(op.iterate(ev, args[0])))),
    reversed: lambda ev, args, kwargs: Items(reversed(list(op.iterate(ev, args[0])))),
    isinstance: lambda ev, args, kwargs: ev.is_instance(args[0], args[1]),
    print: lambda ev, args, kwargs: None,
    copy.deepcopy: lambda ev, args, kwargs: deep_copy(ev, args[0], {}),
    contextlib.suppress: lambda ev, args, kwargs: Manager(lambda: None, lambda error: error is not None and ev.catches(tuple(args), error)),
    contextlib.nullcontext: lambda ev, args, kwargs: Manager(lambda: args[0] if args else None, lambda _: False),
    contextlib.contextmanager: lambda ev, args, kwargs: Partial(lambda more, named: manager_of(ev, ev.call(args[0], more, named))),
    dataclasses.field: lambda ev, args, kwargs: Object(dataclasses.Field, dict(kwargs)),
    object: lambda ev, args, kwargs: Object(object, {}),
    asyncio.sleep: lambda ev, args, kwargs: Coroutine(lambda: args[1] if len(args) > 1 else None),
    time.sleep: lambda ev, args, kwargs: None,
    itertools.count: lambda ev, args, kwargs: Items(op.native(itertools.count, *args, **kwargs)),
    itertools.repeat: lambda ev, args, kwargs: Items(op.native(itertools.repeat, *args, **kwargs)),
    **dict.fromkeys((asyncio.Semaphore, asyncio.Lock, asyncio.BoundedSemaphore, asyncio.timeout), lambda ev, args, kwargs: Manager(lambda: None, lambda _: False)),
    **dict.fromkeys((asyncio.wait_for, asyncio.shield), lambda ev, args, kwargs: args[0]),
    **dict.fromkeys((hash, id, hashlib.md5, hashlib.sha256, hashlib.sha1, time.time, time.perf_counter, time.monotonic), lambda ev, args, kwargs: Unknown(None)),
}  # fmt: skip
for _fn, _made in _SHORT.items():
    rule(_fn)(_made)


__all__ = ["ASKS", "FUNCTIONS", "LANGUAGE", "PURE", "PURE_METHODS", "StateGroup", "callback", "is_known", "manager_of", "pure", "sort"]
