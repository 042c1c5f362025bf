"""Pruning and minimising automata given as tables: int32 [states, symbols], DEAD where there is no way; state 0 starts."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np

DEAD = -1
_MANY = 8192  # states from which on arrays are quicker than lists, even at a chain


def distinct(values: np.ndarray) -> np.ndarray:
    """Ascending, each once. (numpy's `unique` imports numpy.ma when it is first called: longer than compiling takes.)"""
    ordered = np.sort(values, axis=None)
    return ordered[_differs_from_before(ordered)]


def numbered(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equal values have equal numbers, from 0 up in ascending order: (where each number comes first, int64 numbers)."""
    order = np.argsort(values, kind="stable")
    new = _differs_from_before(values[order])
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.cumsum(new) - 1
    return order[new], numbers


def _differs_from_before(ordered: np.ndarray) -> np.ndarray:
    return np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]


def live(table: np.ndarray, final: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without the states from which no end can be reached. All are reachable as they come."""
    sources, columns = np.nonzero(table >= 0)
    distance = to_the_end(sources, table[sources, columns], final)
    live = distance >= 0
    if live.all():
        return table, final
    numbers = np.append(np.where(live, np.cumsum(live) - 1, DEAD), DEAD).astype(np.int32)
    return numbers[table[live]], final[live]


def to_the_end(sources: np.ndarray, targets: np.ndarray, final: np.ndarray) -> np.ndarray:
    """int [states]: steps to the nearest end, -1 if there is none."""
    if len(final) > _MANY:
        return _to_the_end_of_many(sources, targets, final)
    before = _predecessors(sources, targets, len(final))
    distance = np.where(final, 0, -1).tolist()
    queue = deque(np.flatnonzero(final).tolist())
    while queue:
        state = queue.popleft()
        for p in before[state]:
            if distance[p] < 0:
                distance[p] = distance[state] + 1
                queue.append(p)
    return np.array(distance)


def _to_the_end_of_many(sources: np.ndarray, targets: np.ndarray, final: np.ndarray) -> np.ndarray:
    """The same, a distance at a time."""
    before = sources[np.argsort(targets, kind="stable")]
    counts = np.bincount(targets, minlength=len(final))
    begins = np.cumsum(counts) - counts
    distance = np.full(len(final), -1)
    here, at = np.flatnonzero(final), 0
    while len(here):
        distance[here] = at
        many = counts[here]
        found = before[np.arange(many.sum()) + np.repeat(begins[here] - np.cumsum(many) + many, many)]
        here = distinct(found[distance[found] < 0])
        at += 1
    return distance


def _predecessors(sources: np.ndarray, targets: np.ndarray, states: int) -> list[list[int]]:
    pairs = distinct(targets.astype(np.int64) * states + sources)
    before: list[list[int]] = [[] for _ in range(states)]
    for t, s in zip((pairs // states).tolist(), (pairs % states).tolist()):
        before[t].append(s)
    return before


def minimised(table: np.ndarray, final: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One state for each set of states with the same language."""
    blocks = _refined(table, final)
    first, block = numbered(blocks)
    if len(first) == len(final):
        return table, final
    order = np.argsort(np.argsort(first))  # blocks in order of their first state, so that the start stays 0
    number = np.append(order[block], DEAD).astype(np.int32)
    kept = np.sort(first)
    return number[table[kept]], final[kept]


def _refined(table: np.ndarray, final: np.ndarray) -> np.ndarray:
    """int64 [states]: a name for each block of equivalent states.

    Partition refinement (Moore's signatures, Hopcroft's smaller half): a state is looked at again only when a state
    after it was renamed, and the largest part of a split block keeps its name. It starts from what equivalent states
    share anyhow, the length of the shortest and of the longest way to an end, which settles counted repeats at once.
    """
    n = len(final)
    sources, columns = np.nonzero(table >= 0)
    targets = table[sources, columns]
    before = _predecessors(sources, targets, n)
    shortest, longest = to_the_end(sources, targets, final), _longest(table, before)
    _, initial = numbered(((longest + 1) * (n + 1) + shortest) * 2 + final)
    names = np.append(initial, -1)  # the last: where DEAD (-1) points to
    members: dict[int, set[int]] = defaultdict(set)
    for state, name in enumerate(names[:-1].tolist()):
        members[name].add(state)
    fresh = len(members)
    dirty = set(range(n))
    while dirty:
        splits: list[list[set[int]]] = []
        by_block: dict[int, list[int]] = defaultdict(list)
        for state in dirty:
            by_block[int(names[state])].append(state)
        for name, some in by_block.items():
            block = members[name]
            if len(block) == 1:
                continue
            parts: dict[bytes, set[int]] = defaultdict(set)
            for state in some:
                parts[names[table[state]].tobytes()].add(state)
            if len(some) < len(block):  # the others have one signature still: that of any of them
                others = block.difference(some)
                parts[names[table[next(iter(others))]].tobytes()] |= others
            if len(parts) > 1:
                splits.append(sorted(parts.values(), key=len))
        dirty = set()
        for *small, large in splits:
            members[int(names[next(iter(large))])] = large
            for part in small:
                members[fresh] = part
                for state in part:
                    names[state] = fresh
                    dirty.update(before[state])
                fresh += 1
    return names[:-1]


def _longest(table: np.ndarray, before: list[list[int]]) -> np.ndarray:
    """int [states]: the longest way on, -1 if there is no bound. Peels off states whose successors are all known."""
    waiting = [len(set(row) - {DEAD}) for row in table.tolist()]
    longest = [-1] * len(waiting)
    todo = [s for s, open_ways in enumerate(waiting) if not open_ways]
    for state in todo:
        longest[state] = 0
    while todo:
        state = todo.pop()
        for p in before[state]:
            waiting[p] -= 1
            longest[p] = max(longest[p], longest[state] + 1)
            if not waiting[p]:
                todo.append(p)
    return np.where(np.array(waiting) == 0, longest, -1)
