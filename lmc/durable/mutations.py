"""Objects that a call may mutate, and making one equal to what it was after a call, in place."""

from __future__ import annotations

import array
import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, MutableMapping
from typing import Any
from weakref import WeakValueDictionary

from lmc.codec import field_names, has_fields, is_array, is_namespace
from lmc.durable.reaches import attribute, slots_of

CONTAINERS = frozenset({list, dict, set, bytearray, deque, OrderedDict, Counter, defaultdict, array.array})


class Slots(MutableMapping[str, Any]):
    """The fields of an instance of a class with `__slots__`, as `vars` gives those of others: one object, as long as it is held."""

    __slots__ = ("__weakref__", "_names", "_owner")

    def __init__(self, owner: Any, names: tuple[str, ...]) -> None:
        self._owner, self._names = owner, names

    def __getitem__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self._owner, name)
        except AttributeError:  # not assigned
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self._owner, name, value)

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self._owner, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in dict.fromkeys((*self._names, *getattr(self._owner, "__dict__", ()))) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_held = WeakValueDictionary[int, Slots]()
"""By the instance's id: it lives as long as its fields do."""


def fields_in_place(x: Any) -> dict[str, Any] | Slots | None:
    """Return the fields of an instance, to be changed in place; None if it has none."""
    names = slots_of(type(x))
    return (_held.get(id(x)) or _held.setdefault(id(x), Slots(x, names))) if names else attribute(x, "__dict__")


def restored(target: Any, wanted: Any) -> Any:
    """Return a value made equal to another in place, or the other one. Nested containers stay the same objects."""
    if isinstance(target, tuple) and type(target) is type(wanted) and len(target) == len(wanted):
        items = list(map(restored, target, wanted))
        same = all(i is t or (type(t) in _ALIKE and i == t) for i, t in zip(items, target, strict=True))
        return target if same else tuple.__new__(type(target), items)
    if target is wanted or not can_change(target) or type(wanted) is not (dict if type(target) is Slots else type(target)):
        return wanted
    if isinstance(target, list):
        moved = not {id(x) for x in target if can_change(x)}.isdisjoint(map(id, wanted))  # its own items in another order
        target[:] = wanted if moved else [*map(restored, target, wanted), *wanted[len(target) :]]
    elif isinstance(target, dict | Slots):
        items = {k: restored(target[k], w) if k in target else w for k, w in wanted.items()}
        if isinstance(target, dict):
            target.clear()  # for the order
        for name in [*target.keys() - items.keys()]:  # a field that its class gives cannot be deleted
            del target[name]
        target.update(items)
    elif isinstance(target, set | deque):
        target.clear()
        (target.update if isinstance(target, set) else target.extend)(wanted)
    elif isinstance(target, bytearray | array.array):
        target[:] = wanted
    elif is_array(target):
        return refilled(target, wanted)
    elif is_namespace(type(target)):
        restored(vars(target), vars(wanted))
    else:
        for name, value in fields_of(wanted):
            object.__setattr__(target, name, restored(getattr(target, name, None), value))
        for name in ("__pydantic_fields_set__", "__pydantic_extra__"):
            if hasattr(wanted, name):
                object.__setattr__(target, name, getattr(wanted, name))
    return target


def refilled(target: Any, wanted: Any) -> Any:
    """Return an array filled with the contents of another, or the other one if that has another shape or type."""
    if (target.shape, target.dtype) != (wanted.shape, wanted.dtype):
        return wanted
    if not target.flags.writeable:
        target.flags.writeable = True
    target[...] = wanted
    target.flags.writeable = wanted.flags.writeable
    return target


_ALIKE = frozenset({type(None), str, int, float, bool, bytes})
"""Types whose equal objects may stand for one another."""


def fields_of(x: Any) -> list[tuple[str, Any]]:
    """Return the fields of an instance of a dataclass, a class of attrs or a model."""
    names = field_names(type(x)) if has_fields(type(x)) else list(vars(x))
    return [(name, getattr(x, name)) for name in names if hasattr(x, name)]


def can_change(x: Any) -> bool:
    """Return whether code that receives this value may mutate it, so that `restored` can repeat the mutation."""
    return type(x) in CONTAINERS or type(x) is Slots or is_object(x) or is_array(x)


def is_object(x: Any) -> bool:
    """Return whether a value is an instance of a dataclass, a class of attrs or a model, or a namespace, which is encoded by its fields."""
    cls: Any = type(x)
    if dataclasses.is_dataclass(cls):
        return not vars(cls)["__dataclass_params__"].frozen if "__dataclass_params__" in vars(cls) else True
    if has_fields(cls):
        return cls.__setattr__.__name__ != "_frozen_setattrs"  # of attrs
    return hasattr(cls, "__pydantic_fields__") or is_namespace(cls)
