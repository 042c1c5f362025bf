"""The slots in which two arms or turns of an evaluation differ: the parameters of the block where they join."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lmc.frontend.capture.domain import Heap
from lmc.frontend.capture.outside import ATOMS
from lmc.frontend.capture.unknown import MISSING, Unknown
from lmc.frontend.emitter import Scoped
from lmc.frontend.state import State

Slot = tuple[Any, Any]
"""An object that holds something, and the key, index or attribute under which it does."""


def changed(heap: Heap, later: Heap) -> Iterator[Slot]:
    """Yield the slots whose later value differs. Of lists whose length differs and of sets, the whole (key MISSING)."""
    for x, held in heap.held.values():
        now = later.of(x)
        if now is MISSING:
            continue
        if isinstance(held, dict):
            names: Mapping[Any, Any] = held
            for name in dict.fromkeys([*names, *now]):
                if not same(names.get(name, MISSING), now.get(name, MISSING)):
                    yield x, name
        elif isinstance(x, set) or len(held) != len(now):
            if len(held) != len(now) or any(not same(a, b) for a, b in zip(held, now, strict=True)):
                yield x, MISSING
        else:
            yield from ((x, i) for i, (a, b) in enumerate(zip(held, now, strict=True)) if not same(a, b))


def same(a: Any, b: Any) -> bool:
    """Return whether two values are known to be the same."""
    if a is b:
        return True
    if isinstance(a, Unknown) and isinstance(b, Unknown):
        return a.note is not None and a.note == b.note
    return type(a) is type(b) and type(a) in ATOMS and a == b and repr(a) == repr(b)


def get(slot: Slot, default: Any = MISSING) -> Any:
    """Return the current value of a slot."""
    x, key = slot
    if isinstance(x, State | Scoped):
        return getattr(x, key)
    if isinstance(x, dict):
        return x.get(key, default)
    return x[key]


def put(slot: Slot, value: Any) -> None:
    x, key = slot
    if isinstance(x, State | Scoped):
        setattr(x, key, value)
    else:
        x[key] = value
