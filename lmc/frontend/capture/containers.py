"""Methods of lists, dicts, sets and other containers of an evaluation, which may hold unknown values: natively once what decides them is known."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false
# (values of a program are Any by nature)

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.scan import MUTATING
from lmc.frontend.capture.table import sort
from lmc.frontend.capture.values import NOTHING, Deps, Items, Undecided, join

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Evaluation


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


_STORES = _names("append appendleft insert")  # their arguments are kept, whatever they are
_KEYED = _names("get pop setdefault add discard move_to_end")  # the first argument decides
_GIVEN_ITEMS = _names("extend extendleft")
_GIVEN_KEYS = _names(
    "update subtract union intersection difference symmetric_difference intersection_update difference_update symmetric_difference_update "
    "issubset issuperset isdisjoint"
)
_COMPARES = _names("index count remove")  # with each item
_WHOLE = _names("most_common total elements")  # all that the container holds decides
_VIEWS = _names("keys values items")
_OTHERS = _names("copy clear reverse sort popitem popleft rotate")
_KNOWN = _STORES | _KEYED | _GIVEN_ITEMS | _GIVEN_KEYS | _COMPARES | _WHOLE | _VIEWS | _OTHERS
_GIVES = _names("pop popitem popleft setdefault")  # of those that change the container, what gives something
METHODS: Mapping[type, frozenset[str]] = {
    kind: frozenset(name for name in dir(kind) if name in _KNOWN)
    for kind in (list, dict, set, tuple, collections.deque, collections.Counter, collections.OrderedDict, collections.defaultdict)
}
"""What is understood, by type."""


def call(ev: Evaluation, x: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`x.name(*args, **kwargs)` of a method in `METHODS`."""
    changes = name in MUTATING and name != "copy"
    try:
        given, deps = _decided(ev, x, name, args, kwargs)
    except Undecided as undecided:
        given, deps = args, undecided.deps
    if changes:
        ev.changes(x)
    if ev.is_lost(x):
        deps = join(deps, ev.lost[id(x)])
    if deps is None or deps:
        if changes:
            ev.lose(x, deps)
        return None if changes and name not in _GIVES else ev.operation("." + name, (x, *args), deps)
    if name == "sort":
        x[:] = given
        return None
    found = op.native(getattr(x, name), *given, **kwargs)
    return list(found) if name in _VIEWS else Items(found) if name == "elements" else found


def _decided(ev: Evaluation, x: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], Deps]:
    """The arguments for native code, and what has to be known before it may run."""
    if name in _STORES:
        return args, join(*(op.need(ev, a) for a in args[:-1]))
    if name == "sort":
        return ([], NOTHING) if ev.is_lost(x) else (sort(ev, x, kwargs), NOTHING)
    if name in _GIVEN_ITEMS:
        return [list(op.iterate(ev, a)) for a in args], NOTHING
    if name == "update" and type(x) in op.MAPPINGS and type(x) is not collections.Counter:
        found: dict[Any, Any] = {}
        for a in args:
            ev.update_mapping(found, a)
        return [found], NOTHING
    if name in _GIVEN_KEYS:
        given = [a if type(a) in op.MAPPINGS else list(op.iterate(ev, a)) for a in args]
        whole = NOTHING if name in MUTATING else op.need(ev, x)
        return given, join(whole, *(op.need(ev, a) for a in (*given, *kwargs.values())))
    if name in _COMPARES and type(x) is not set:
        ev.count(len(x))
        return args, join(*map(ev.need_key, (*args, *(() if ev.is_lost(x) else x))))
    if name in _VIEWS:
        ev.count(len(x) >> 2)
    if name in _KEYED or name in _COMPARES:
        return args, join(*map(ev.need_key, args[:1]))
    return args, join(*(op.need(ev, a) for a in (*args, *((x,) if name in _WHOLE else ()))))
