"""Recognition: whether a text is in a constraint's language, or begins one that is. For few, hand-written texts."""

from __future__ import annotations

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


def _looked_at(kind: str, source: str, text: str) -> tuple[bool, bool]:
    """Return whether the machine is at an end after a text, and whether it gets that far."""
    machine, state = machine_of(kind, source), 0
    for byte in text.encode("utf-8", "surrogatepass"):
        machine.begin()
        state = machine.step(state, bytes((byte,)))
        if state < 0:
            return False, False
    return machine.is_final(state), True
