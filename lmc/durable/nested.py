"""Objects in containers and in fields: which there are, and the keys that lead to one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from lmc import json_data
from lmc.durable import mutations
from lmc.durable.reaches import walk
from lmc.frontend.state import StateGroup


def containers_in(x: Any) -> set[int]:
    """Return a container or object and those in it, by identity."""

    def held(x: Any) -> Iterable[Any]:
        return x if isinstance(x, set) else [item for _, item in items_of(x)] if isinstance(x, tuple) or mutations.can_change(x) else ()

    return {id(found) for found in walk([x], held) if isinstance(found, set) or mutations.can_change(found)}


DEPTH = 8
"""Depth to which a call's arguments are searched."""


def items_of(x: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a container, or the fields of an object, by keys that a journal can write; no text, number or None."""
    if isinstance(x, StateGroup):
        return list(enumerate(x))
    if mutations.is_object(x):
        return mutations.fields_of(x)
    if not isinstance(x, list | dict | deque | tuple | mutations.Slots):
        return ()
    held = x.items() if isinstance(x, dict | mutations.Slots) else enumerate(x)
    return [(key, item) for key, item in held if type(item) not in json_data.PLAIN and (isinstance(key, str | int) or key is None)]


def item_at(x: Any, key: Any) -> Any:
    """Return the item of a container, or the field of an object, with a key."""
    return getattr(x, key) if mutations.is_object(x) else x[key]
