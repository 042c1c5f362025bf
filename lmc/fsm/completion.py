"""Ways to end a text: the shortest for one that was cut off, and all of them where they are few."""

from __future__ import annotations

from collections import deque

import numpy as np

from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.lazy import Machine


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


def all_endings(dfa: Machine, state: int, limit: int) -> list[bytes] | None:
    """All texts that lead from a state to an end, or None if they are more than `limit`."""
    found = list[bytes]()
    todo: list[tuple[int, bytes]] = [(state, b"")]
    while todo:
        at, text = todo.pop()
        forced, at = dfa.forced(at)
        text += forced
        if dfa.is_final(at):
            found.append(text)
        ways = dfa.ways_at(at)
        if len(found) + len(todo) + ways > limit:  # each of them has an ending of its own
            return None
        if ways:
            row = dfa.row(at)
            todo += [(int(row[byte]), text + bytes([byte])) for byte in np.flatnonzero(row >= 0).tolist()]
    return found


def _path(came: dict[int, tuple[int, int]], start: int, end: int) -> bytes:
    found = bytearray()
    while end != start:
        end, byte = came[end]
        found.append(byte)
    return bytes(reversed(found))
