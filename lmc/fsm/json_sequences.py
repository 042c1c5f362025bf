"""Sequences of members of objects and items of arrays, as graphs of few states. Handles their number and order; the
language of each is passed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmc.fsm.bounds import TooLarge
from lmc.fsm.json_layout import Layout
from lmc.fsm.json_shapes import All, SchemaShape, counts_behind
from lmc.fsm.nodes import EMPTY, NOTHING, Node, NodeGraph, seq

_MOST_COUNTED = 1024  # states of an array whose items are counted


def members(layout: Layout, fixed: Sequence[tuple[Node, bool]], others: Sequence[Node], shape: SchemaShape, *, each_once: bool = False) -> Node:
    """Return members in order, required or optional, then any others; with commas between them and brackets around.

    A state: how many of `fixed` are passed, whether the comma behind the last one is due (else a member must come), how many members there
    are (as far as `size` matters), and which of `others` occurred, if each may come once. Otherwise only one counts towards the minimum,
    since their names may be equal. What may come behind a comma is one state, so that it is looked at when the comma is written.
    """
    low, high = shape.size
    numbers: dict[tuple[int, bool, int, int, int], int] = {}
    edges: list[tuple[int, Node, int]] = []
    order: list[tuple[int, bool, int, int, int]] = []

    def state(at: int, due: bool, count: int, sure: int, used: int) -> int:
        key = (at, due, count if high is not None else 0, min(sure, low), used)
        if key not in numbers:
            numbers[key] = len(numbers)
            order.append(key)
        return numbers[key]

    state(0, False, 0, 0, 0)
    last_needed = max((i for i, (_, needed) in enumerate(fixed) if needed), default=-1)
    empty, final = low == 0 and last_needed < 0, set[int]()
    for at, due, count, sure, used in order:
        if len(order) > _MOST_COUNTED * 8:
            raise TooLarge
        here, room = numbers[at, due, count, sure, used], high is None or count < high
        if due:
            if sure >= low and at > last_needed:
                final.add(here)
            if room and (others or at < len(fixed)):
                edges.append((here, layout.item, state(at, False, count, sure, used)))
        elif at < len(fixed):
            if room:
                edges.append((here, fixed[at][0], state(at + 1, True, count + 1, sure + 1, used)))
            if not fixed[at][1] and (others or at + 1 < len(fixed)):  # else nothing is left to be written
                edges.append((here, EMPTY, state(at + 1, False, count, sure, used)))
        else:
            more = sure + 1 if each_once or at == len(fixed) else sure
            for i, other in enumerate(others if room else ()):
                if not used >> i & 1:
                    edges.append((here, other, state(len(fixed) + 1, True, count + 1, more, used | each_once << i)))
    return layout.maybe_empty("{}", NodeGraph(tuple(edges), frozenset(final)) if final else NOTHING, empty=empty)


def counted_items(layout: Layout, shape: SchemaShape, item_of: Callable[[int, All], Node]) -> Node:
    """Return items of which so many are of some schemas. A state: how many items there are, and how many of them each
    schema has.

    item_of   language of an item at an index, if it is also of some schemas
    """
    low, high = shape.items
    known = max((len(r.first) for r in shape.arrays), default=0)
    if shape.arrays and all(r.rest is None for r in shape.arrays) and not layout.additional:
        high = known if high is None else min(high, known)
    last = max(known, low, 1) if high is None else high  # after it, items are alike
    start: tuple[int, tuple[int, ...]] = (0, (0,) * len(shape.contains))
    numbers: dict[tuple[int, tuple[int, ...]], int] = {start: 0}
    order: list[tuple[int, tuple[int, ...]]] = [start]
    edges: list[tuple[int, Node, int]] = []
    for items, counts in order:
        if high is not None and items >= high:
            continue
        for found, after in counts_behind(shape, counts):
            item = item_of(items, found)
            if item == NOTHING:
                continue
            to = min(items + 1, last), after
            if to not in numbers:
                numbers[to] = len(order)
                order.append(to)
            edges.append((numbers[items, counts], seq(layout.item, item) if items else item, numbers[to]))
        if len(order) > _MOST_COUNTED:
            raise TooLarge
    enough = {state for state in order if all(n >= least for n, (_, least, _) in zip(state[1], shape.contains))}
    final = frozenset(numbers[state] for state in enough if state[0] >= max(low, 1))
    return layout.maybe_empty("[]", NodeGraph(tuple(edges), final) if final else NOTHING, empty=low == 0 and start in enough)


def unique_items(layout: Layout, texts: Sequence[Node], limits: tuple[int, int | None]) -> Node:
    """Return items out of a few different ones, none twice: one state for each set of them."""
    low, high = limits
    most = len(texts) if high is None else min(high, len(texts))
    if low > most:
        return NOTHING
    edges: list[tuple[int, Node, int]] = []
    for used in range(1 << len(texts)):
        for i, item in enumerate(texts):
            if not used >> i & 1 and used.bit_count() < most:
                edges.append((used, seq(layout.item, item) if used else item, used | 1 << i))
    final = frozenset(used for used in range(1, 1 << len(texts)) if low <= used.bit_count() <= most)
    return layout.maybe_empty("[]", NodeGraph(tuple(edges), final) if final else NOTHING, empty=low == 0)
