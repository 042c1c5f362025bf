"""Changes that a call made to an object, as data, which can be made again beside what others have done to the same object."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

from lmc.codec import TAG
from lmc.durable import mutations

T = TypeVar("T")


def steadily(look: Callable[[], T]) -> T:
    """Return what looking at containers gives, which other threads may change meanwhile."""
    while True:
        try:
            return look()
        except RuntimeError as error:
            if "during iteration" not in str(error):
                raise


def change_of(before: Any, after: Any) -> list[Any]:
    """Return what makes one value of the other, both as data: by items appended, members, entries and numbers, or as a whole."""
    old, new = _entries(before), _entries(after)
    if type(before) is list and type(after) is list and after[: len(before)] == before:
        return ["+", after[len(before) :]]
    if type(before) in (int, float) and type(after) in (int, float):
        return ["#", before, after]
    if old is None or new is None or old[0] != new[0]:
        return ["=", after]
    if old[0] == ["set"]:
        return ["|", [x for x in new[1] if x not in old[1]], [x for x in old[1] if x not in new[1]]]
    were, are = dict(old[1]), dict(new[1])
    if [*are] != [*[key for key in were if key in are], *[key for key in are if key not in were]]:
        return ["=", after]  # in another order
    return ["{", [[key, change_of(were[key], x) if key in were else ["=", x]] for key, x in are.items() if key not in were or were[key] != x],
            [key for key in were if key not in are]]  # fmt: skip


def _entries(data: Any) -> tuple[Any, list[Any]] | None:
    """Return what kind of container data is, and its members or entries with text as keys. None: it is no such."""
    if type(data) is not dict:
        return None
    if TAG not in data:
        return "dict", [*data.items()]
    kind, *rest = data[TAG]
    if kind == "set":
        return [kind], rest[0]
    at = _WITH_ENTRIES.get(kind)
    if at is None or not all(type(key) is str for key, _ in rest[at]):
        return None
    return [kind, *rest[:at], *rest[at + 1 :]], rest[at]


_WITH_ENTRIES = {"counter": 0, "defaultdict": 1, "data": 1, "model": 1, "names": 1}
"""Tags of containers and objects with entries, and the entries' place behind the tag."""


def apply(target: Any, change: list[Any], decoded: Callable[[Any], Any]) -> Any:
    """Change a value in place, or return another one in place of it."""
    kind, *rest = change
    if kind in ("+", "|") and any(type(items) is not list for items in rest):
        raise ValueError(f"a change {kind!r} by what is no list")
    match kind:
        case "=":
            return mutations.restored(target, decoded(rest[0]))
        case "#":
            was, now = rest
            return now if type(target) not in (int, float) or target == was else target + (now - was)
        case "+":
            target = [] if target is None else target
            target.extend(decoded(rest[0]))
        case "|":
            target = set() if target is None else target
            target.update(decoded(rest[0]))
            target.difference_update(decoded(rest[1]))
        case "{":
            target = {} if target is None else target
            get, put, drop = _OF_OBJECTS if mutations.is_object(target) else _OF_MAPPINGS
            for key, inner in rest[0]:
                put(target, key, apply(get(target, key, None), inner, decoded))
            for key in rest[1]:
                if get(target, key, target) is not target:
                    drop(target, key)
        case _:
            raise ValueError(f"a change {kind!r}")
    return target


_OF_MAPPINGS: Any = (lambda x, key, default: x.get(key, default), operator.setitem, operator.delitem)
_OF_OBJECTS: Any = (getattr, object.__setattr__, object.__delattr__)
"""Attributes, which are more than the fields of an instance: a model has its private ones elsewhere."""
