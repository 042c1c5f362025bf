"""Ways to end a text: the shortest for one that was cut off, and all of them where they are few."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from lmc.fsm.bytedfa import Walk
from lmc.fsm.lazy import LazyDFA


class Followed(Protocol):
    """The interface of an automaton, whole or built on demand."""

    def is_final(self, state: int) -> bool: ...

    def moves(self, state: int) -> list[tuple[int, int]]: ...

    def forced(self, state: int) -> tuple[bytes, int]: ...


def completion(dfa: Walk, text: str) -> str | None:
    """Return the shortest text (the first in byte order among those) after which `text` is complete, "" if it is
    complete.

    None if no text that begins with `text` is in the language.
    """
    start = dfa.step(0, text.encode())
    if start < 0:
        return None
    came: dict[int, tuple[int, int]] = {}  # state → (state before, byte)
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if dfa.is_final(state):
            return _path(came, start, state).decode()
        for byte, after in dfa.moves(state):
            if after != start and after not in came:
                came[after] = state, byte
                queue.append(after)
    raise AssertionError("an automaton has no dead states")


def nearest_end(machine: LazyDFA, state: int) -> str:
    """Return the shortest text (the first in byte order among those) that leads from a state to an end. `machine.distance(state)` is its length."""
    found = bytearray()
    while not machine.is_final(state):
        machine.begin()
        byte, state = min(machine.moves(state), key=lambda move: machine.distance(move[1]))
        found.append(byte)
    return found.decode()


def all_endings(dfa: Followed, state: int, limit: int, most_bytes: int | None = None) -> list[bytes] | None:
    """Return all texts that lead from a state to an end, or None if there are more than `limit`, or more than so many bytes in all."""
    found, size = list[bytes](), 0
    todo: list[tuple[int, bytes]] = [(state, b"")]
    while todo:
        at, text = todo.pop()
        forced, at = dfa.forced(at)
        text += forced
        size += len(text)
        if most_bytes is not None and size > most_bytes:
            return None
        if dfa.is_final(at):
            found.append(text)
        moves = dfa.moves(at)
        if len(found) + len(todo) + len(moves) > limit:  # each of them has an ending of its own
            return None
        todo += [(after, text + bytes([byte])) for byte, after in moves]
    return found


def _path(came: dict[int, tuple[int, int]], start: int, end: int) -> bytes:
    found = bytearray()
    while end != start:
        end, byte = came[end]
        found.append(byte)
    return bytes(reversed(found))
