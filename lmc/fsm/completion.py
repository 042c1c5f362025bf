"""The shortest way to end a text that was cut off: what to append so that it is in an automaton's language."""

from __future__ import annotations

from collections import deque

from lmc.fsm.dfa import ByteDFA


def completion(dfa: ByteDFA, text: str) -> str | None:
    """The shortest text (the first in byte order among those) after which `text` is complete, "" if it is complete.

    None if nothing that begins with `text` is in the language.
    """
    start = dfa.step(0, text.encode())
    if start < 0:
        return None
    came: dict[int, tuple[int, int]] = {}  # state → (state before, byte)
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if dfa.final[state]:
            return _path(came, start, state).decode()
        row = dfa.table[state]
        for byte in (row >= 0).nonzero()[0].tolist():
            after = int(row[byte])
            if after != start and after not in came:
                came[after] = state, byte
                queue.append(after)
    raise AssertionError("an automaton has no dead states")


def _path(came: dict[int, tuple[int, int]], start: int, end: int) -> bytes:
    found = bytearray()
    while end != start:
        end, byte = came[end]
        found.append(byte)
    return bytes(reversed(found))
