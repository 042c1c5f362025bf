"""Methods of lists, dicts, sets and other containers of an evaluation, which may hold unknown values."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# (values of a program are Any by nature)

from __future__ import annotations

import collections
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.table import pure, sort
from lmc.frontend.capture.values import NOTHING, Items, Raised, Undecided, Unknown, join

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Evaluation

MethodRule = Callable[["Evaluation", Any, list[Any], dict[str, Any]], Any]


def _stores(name: str) -> MethodRule:
    """A method that puts its argument into the container, whatever it is."""

    def run(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        ev.changes(x)
        return None if ev.is_lost(x) else op.native(getattr(x, name), *args)

    return run


def _changes(name: str) -> MethodRule:
    """A method whose arguments have to be known, and that changes the container."""

    def run(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        ev.changes(x)
        deps = join(NOTHING, *(ev.need_key(a) if not kwargs else op.need(ev, a) for a in args))
        if ev.is_lost(x) or deps is None or deps:
            ev.lose(x, deps)
            return ev.operation("." + name, (x, *args), ev.lost[id(x)])
        return op.native(getattr(x, name), *args, **kwargs)

    return run


def _reads(name: str) -> MethodRule:
    """A method that looks at all items and changes nothing."""

    def run(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return pure(ev, lambda items, *more: getattr(items, name)(*more), "." + name, [x, *args], kwargs)

    return run


def _extend(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    ev.changes(x)
    if ev.is_lost(x):
        return
    try:
        for item in list(op.iterate(ev, args[0])):
            x.append(item)
    except Undecided as undecided:
        ev.lose(x, undecided.deps)


def _index_of(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if ev.is_lost(x) or len(args) > 1:
        return _reads("index")(ev, x, args, kwargs)
    for i, item in enumerate(x):
        if _equal(ev, item, args[0]):
            return i
    raise Raised(ValueError("item is not in list"))


def _equal(ev: Evaluation, a: Any, b: Any) -> bool:
    if a is b and not isinstance(a, Unknown):
        return True
    known = op.truth(ev, op.compare(ev, "eq", operator.eq, a, b))
    if isinstance(known, Unknown):
        raise Undecided(known.deps)
    return known


def _remove(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    ev.changes(x)
    if ev.is_lost(x):
        return
    try:
        del x[_index_of(ev, x, args, {})]
    except Undecided as undecided:
        ev.lose(x, undecided.deps)


def _count_of(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if ev.is_lost(x):
        return Unknown(ev.lost[id(x)])
    try:
        return sum([_equal(ev, item, args[0]) for item in x])
    except Undecided as undecided:
        return ev.operation(".count", (x, *args), undecided.deps)


def _sort(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    ev.changes(x)
    if ev.is_lost(x):
        return
    try:
        x[:] = sort(ev, x, kwargs)
    except Undecided as undecided:
        ev.lose(x, undecided.deps)


def _copy(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Unknown(ev.lost[id(x)]) if ev.is_lost(x) else x.copy()


def _get(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    key = args[0]
    deps = ev.need_key(key)
    if deps is None or deps or ev.is_lost(x):
        return ev.operation(".get", (x, *args), join(deps, op.need(ev, x)))
    return op.native(x.get, *args)


def _pop(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    ev.changes(x)
    deps = join(NOTHING, *(ev.need_key(a) for a in args[:1]))
    if deps is None or deps or ev.is_lost(x):
        ev.lose(x, deps)
        return ev.operation(".pop", (x, *args), ev.lost[id(x)])
    return op.native(x.pop, *args)


def _setdefault(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    deps = ev.need_key(args[0])
    if deps is None or deps or ev.is_lost(x):
        ev.changes(x)
        ev.lose(x, deps)
        return Unknown(ev.lost[id(x)])
    if args[0] not in x:
        ev.changes(x)
    return Unknown(ev.lost[id(x)]) if ev.is_lost(x) else op.native(x.setdefault, *args)


def _view(name: str) -> MethodRule:
    def run(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if ev.is_lost(x):
            return Unknown(ev.lost[id(x)])
        ev.count(len(x) >> 2)
        return list(getattr(x, name)())

    return run


def _update(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    ev.changes(x)
    if ev.is_lost(x):
        return
    try:
        if args:
            ev.update_mapping(x, args[0])
        x.update(kwargs)
    except Undecided as undecided:
        ev.lose(x, undecided.deps)


def _update_items(name: str) -> MethodRule:
    """`update` and the like of sets and counters: with iterables."""

    def run(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            given = [a if type(a) in op.MAPPINGS else list(op.iterate(ev, a)) for a in args]
        except Undecided as undecided:
            given = [Unknown(undecided.deps)]
        deps = join(NOTHING, *(op.need(ev, g) for g in (*given, *kwargs.values())))
        if not name.endswith("update") and name != "subtract":
            whole = join(deps, ev.lost.get(id(x), NOTHING) if ev.is_lost(x) else NOTHING)
            return ev.operation("." + name, (x, *args), whole) if whole is None or whole else op.native(getattr(x, name), *given)
        ev.changes(x)
        if deps is None or deps or ev.is_lost(x):
            return ev.lose(x, deps)
        return op.native(getattr(x, name), *given, **kwargs)

    return run


def _most_common(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return pure(ev, collections.Counter.most_common, ".most_common", [x, *args], kwargs)


def _elements(ev: Evaluation, x: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Unknown(op.need(ev, x)) if op.need(ev, x) != NOTHING else Items(x.elements())


_LIST: dict[str, MethodRule] = {
    "append": _stores("append"), "insert": _stores("insert"), "extend": _extend, "pop": _pop, "remove": _remove, "index": _index_of, "count": _count_of,
    "copy": _copy, "clear": _changes("clear"), "reverse": _changes("reverse"), "sort": _sort,
}  # fmt: skip
_DICT: dict[str, MethodRule] = {
    "get": _get, "items": _view("items"), "keys": _view("keys"), "values": _view("values"), "pop": _pop, "setdefault": _setdefault, "update": _update,
    "copy": _copy, "clear": _changes("clear"), "popitem": _changes("popitem"),
}  # fmt: skip
_SET: dict[str, MethodRule] = {
    **{n: _changes(n) for n in ("add", "discard", "remove", "clear", "pop")}, "copy": _copy,
    **{n: _update_items(n) for n in ("update", "intersection_update", "difference_update", "symmetric_difference_update", "union", "intersection",
                                     "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint")},
}  # fmt: skip
METHODS: Mapping[type, Mapping[str, MethodRule]] = {
    list: _LIST,
    dict: _DICT,
    collections.OrderedDict: {**_DICT, "move_to_end": _changes("move_to_end")},
    collections.defaultdict: _DICT,
    collections.Counter: {**_DICT, "update": _update_items("update"), "subtract": _update_items("subtract"), "most_common": _most_common,
                          "elements": _elements, "total": _reads("total")},
    set: _SET,
    collections.deque: {**{k: v for k, v in _LIST.items() if k not in ("sort", "insert")}, "popleft": _changes("popleft"),
                        "appendleft": _stores("appendleft"), "rotate": _changes("rotate")},
    tuple: {"index": _index_of, "count": _count_of},
}  # fmt: skip
"""By type and name."""
