"""Objects that a call may mutate, and making one equal to what it was after a call, in place."""

from __future__ import annotations

import array
import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

from lmc.codec import is_namespace

CONTAINERS = frozenset({list, dict, set, bytearray, deque, OrderedDict, Counter, defaultdict, array.array})


def restore(target: Any, wanted: Any) -> None:
    """Make a container equal to another of its type in place; nested containers stay the same objects."""
    if target is wanted or type(target) is not type(wanted):
        return
    if isinstance(target, list) and not {id(x) for x in target if can_change(x)}.isdisjoint(map(id, wanted)):
        target[:] = wanted  # its own items in another order
    elif isinstance(target, list):
        items = [restored(t, w) for t, w in zip(target, wanted, strict=False)]
        target[:] = [*items, *wanted[len(items) :]]
    elif isinstance(target, dict):
        items = {k: restored(target[k], w) if k in target else w for k, w in wanted.items()}
        target.clear()
        target.update(items)
    elif isinstance(target, set | deque):
        target.clear()
        (target.update if isinstance(target, set) else target.extend)(wanted)
    elif isinstance(target, bytearray | array.array):
        target[:] = wanted
    elif is_namespace(type(target)):
        restore(vars(target), vars(wanted))
    else:
        for name, value in fields_of(wanted):
            object.__setattr__(target, name, restored(getattr(target, name, None), value))
        for name in ("__pydantic_fields_set__", "__pydantic_extra__"):
            if hasattr(wanted, name):
                object.__setattr__(target, name, getattr(wanted, name))


def restored(target: Any, wanted: Any) -> Any:
    """Return a value made equal to another in place, or the other one."""
    if type(target) is type(wanted) and can_change(target):
        restore(target, wanted)
        return target
    return wanted


def fields_of(x: Any) -> list[tuple[str, Any]]:
    """Return the fields of an instance of a dataclass or a model."""
    names = [f.name for f in dataclasses.fields(x)] if dataclasses.is_dataclass(x) else list(vars(x))
    return [(name, getattr(x, name)) for name in names if hasattr(x, name)]


def can_change(x: Any) -> bool:
    """Return whether code that receives this value may mutate it, so that `restore` can repeat the mutation."""
    return type(x) in CONTAINERS or is_object(x)


def is_object(x: Any) -> bool:
    """Return whether a value is an instance of a dataclass or a model, or a namespace, which is encoded by its fields."""
    cls: Any = type(x)
    if dataclasses.is_dataclass(cls):
        return not vars(cls)["__dataclass_params__"].frozen if "__dataclass_params__" in vars(cls) else True
    return hasattr(cls, "__pydantic_fields__") or is_namespace(cls)
