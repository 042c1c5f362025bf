"""Recognition: whether a text is in a constraint's language, or begins one that is. For whole texts, such as those of others."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.lazy import LazyDFA, Machine
from lmc.fsm.sources import check_of, machine_of


def allows(kind: str, source: str, text: str) -> bool:
    """Return whether a constraint allows a text."""
    if not _looked_at(kind, source, text)[0]:
        return False
    check = check_of(kind, source)
    return check is None or check(text) is None


def begins(kind: str, source: str, text: str) -> bool:
    """Return whether a constraint allows a text that begins with this one. Checks that need a whole text are
    skipped."""
    return _looked_at(kind, source, text)[1]


def longest(kind: str, source: str, text: str, ends: Callable[[int], bool]) -> int | None:
    """Return the length of the longest beginning of a text that a constraint allows and that may end there; None if there is none. Takes time linear in the
    text for any pattern."""
    machine, state, found = _machine(kind, source), 0, None
    for at, character in enumerate(("", *text)):
        machine.begin()
        state = machine.step(state, character.encode("utf-8", "surrogatepass"))
        if state < 0:
            break
        if machine.is_final(state) and ends(at):
            found = at
    return found


def _looked_at(kind: str, source: str, text: str) -> tuple[bool, bool]:
    """Return whether the machine is at an end after a text, and whether it gets that far."""
    machine, state, data = _machine(kind, source), 0, text.encode("utf-8", "surrogatepass")
    for part in (data,) if isinstance(machine, ByteDFA) else (data[at : at + 1] for at in range(len(data))):  # each is a step of its own to the budget
        machine.begin()
        state = machine.step(state, part)
        if state < 0:
            return False, False
    return machine.is_final(state), True


def _machine(kind: str, source: str) -> Machine:
    machine = _machine_of(kind, source)
    if isinstance(machine, LazyDFA) and machine.is_worn:
        _machine_of.cache_clear()
        return _machine_of(kind, source)
    return machine


@lru_cache(64)
def _machine_of(kind: str, source: str) -> Machine:
    return machine_of(kind, source)
