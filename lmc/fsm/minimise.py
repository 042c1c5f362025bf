"""Minimal automata: without states that reach no end, and with one state for each set of states of the same language."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

DEAD = -1

Table = Sequence[Sequence[int]]
"""The next state by state and symbol, DEAD where there is none; state 0 starts."""

_Successors = list[set[int]]


def minimal(table: Table, final: Sequence[bool]) -> tuple[Table, list[bool]]:
    """Return the minimal automaton of one whose states are all reachable and that accepts something. Its start stays 0,
    and blocks are in the order of their first state."""
    table, final = _without_dead_ends(table, final)
    names = _refined(table, final)
    order: dict[int, int] = {}
    number = [order.setdefault(name, len(order)) for name in names]
    if len(order) == len(number):
        return table, list(final)
    return _renumbered(table, final, number)


def _without_dead_ends(table: Table, final: Sequence[bool]) -> tuple[Table, Sequence[bool]]:
    distance = _to_the_end(_predecessors(_successors(table)), final)
    if DEAD not in distance:
        return table, final
    kept = iter(range(len(table)))
    return _renumbered(table, final, [DEAD if d < 0 else next(kept) for d in distance])


def _renumbered(table: Table, final: Sequence[bool], number: list[int]) -> tuple[Table, list[bool]]:
    """Return rows of the first state of each number, which ascend from 0; states of the number DEAD are left out."""
    number = [*number, DEAD]  # the last: where DEAD points to
    rows: list[list[int]] = []
    ends: list[bool] = []
    for state, row in enumerate(table):
        if number[state] == len(rows):
            rows.append([number[target] for target in row])
            ends.append(final[state])
    return rows, ends


def _successors(table: Table) -> _Successors:
    found = [set(row) for row in table]
    for targets in found:
        targets.discard(DEAD)
    return found


def _predecessors(successors: _Successors) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in successors]
    for state, targets in enumerate(successors):
        for target in targets:
            before[target].append(state)
    return before


def _to_the_end(before: list[list[int]], final: Sequence[bool]) -> list[int]:
    """Return, for each state, the steps to the nearest end, DEAD if there is none."""
    distance = [0 if end else DEAD for end in final]
    queue = deque(state for state, end in enumerate(final) if end)
    while queue:
        state = queue.popleft()
        for p in before[state]:
            if distance[p] < 0:
                distance[p] = distance[state] + 1
                queue.append(p)
    return distance


def _longest(successors: _Successors, before: list[list[int]]) -> list[int]:
    """Return, for each state, the longest path, -1 if there is no bound. Peels off states whose successors are all
    known."""
    waiting = list(map(len, successors))
    longest = [-1] * len(waiting)
    todo = [state for state, count in enumerate(waiting) if not count]
    for state in todo:
        longest[state] = 0
    while todo:
        state = todo.pop()
        for p in before[state]:
            waiting[p] -= 1
            longest[p] = max(longest[p], longest[state] + 1)
            if not waiting[p]:
                todo.append(p)
    return [-1 if count else way for count, way in zip(waiting, longest)]


def _refined(table: Table, final: Sequence[bool]) -> list[int]:
    """Return a name for each block of equivalent states, by state.

    Partition refinement (Moore's signatures, Hopcroft's smaller half): a state is revisited only when a state after it
    was renamed, and the largest part of a split block keeps its name. It starts from what equivalent states share
    anyhow, the length of the shortest and of the longest way to an end, which settles counted repeats at once.
    """
    successors = _successors(table)
    before = _predecessors(successors)
    known: dict[tuple[int, int, bool], int] = {}
    kinds = zip(_longest(successors, before), _to_the_end(before, final), final)
    names = [known.setdefault(kind, len(known)) for kind in kinds]
    members: dict[int, set[int]] = defaultdict(set)
    for state, name in enumerate(names):
        members[name].add(state)
    names.append(DEAD)  # the last: where DEAD (-1) points to
    fresh = len(members)
    signature = _signatures(table, names)
    dirty: Iterable[int] = range(len(table))
    while dirty:
        splits: list[list[set[int]]] = []
        by_block: dict[int, list[int]] = defaultdict(list)
        for state in dirty:
            by_block[names[state]].append(state)
        for name, some in by_block.items():
            block = members[name]
            if len(block) == 1:
                continue
            parts: dict[object, set[int]] = defaultdict(set)
            for state in some:
                parts[signature(state)].add(state)
            if len(some) < len(block):  # the others still share one signature
                others = block.difference(some)
                parts[signature(next(iter(others)))] |= others
            if len(parts) > 1:
                splits.append(sorted(parts.values(), key=len))
        renamed: set[int] = set()
        for *small, large in splits:
            members[names[next(iter(large))]] = large
            for part in small:
                members[fresh] = part
                for state in part:
                    names[state] = fresh
                    renamed.update(before[state])
                fresh += 1
        dirty = renamed
    return names[:-1]


def _signatures(table: Table, names: list[int]) -> Callable[[int], object]:
    """Return a state's signature: the current names of the states after it."""
    getters: dict[int, Callable[[list[int]], object]] = {}

    def signature(state: int) -> object:
        row = table[state]
        if not row:
            return ()
        getter = getters.get(state)
        if getter is None:
            getter = getters[state] = itemgetter(*row)
        return getter(names)

    return signature
