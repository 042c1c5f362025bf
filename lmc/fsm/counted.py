"""Graphs whose ways have so many edges: a pattern beside a length, followed with a counter instead of a state for each count.

    ^[a-z]+@[a-z]+$, 5 to 254 characters     a graph of 3 states, and how many characters are left

A state is left only for one from which some way to an end has as many edges as then are left; so every state leads to an end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from lmc.fsm.bounds import TooLarge
from lmc.fsm.nodes import NOTHING, Chars, Concat, Counted, Node, NodeGraph, Repeat

NEVER = 1 << 40  # bytes: longer than any text
_MOST_COUNTED = 40_000  # edges of a way
_MOST_LOOKED = 200_000  # states, of ways of each length: some 0.1 s
_MOST_UNROLLED = 50_000  # states
_FEWEST = 32  # states that are alike


def counted(graph: NodeGraph, low: int, high: int | None) -> Node:
    """The texts of a graph's ways of so many edges; NOTHING if there is none. Raises TooLarge where counting them takes too long.

    graph   every edge reads one character, and every state leads to an end
    """
    if max(low, high or 0) > _MOST_COUNTED:
        raise TooLarge
    return Counted(graph, low, high) if Counts(graph, low, high).lead_to_an_end(0, low, high) else NOTHING


class Counts:
    """The numbers of edges of the paths from each state of a graph to its ends, as far as `low` and `high` require."""

    def __init__(self, graph: NodeGraph, low: int, high: int | None) -> None:
        self.edges: Mapping[int, Sequence[tuple[Node, int]]] = _by_source(graph)
        self.final = graph.final
        self.states = 1 + max((max(a, b) for a, _, b in graph.edges), default=0)
        self._low, self._high = low, high
        self._costs: dict[bool, list[list[int]]] = {}

    def lead_to_an_end(self, state: int, low: int, high: int | None) -> bool:
        """Return whether some path from a state to an end has between `low` and `high` edges."""
        if high is None:
            high = max(low, 0) + self.states  # of a longer one parts that come back to where they began can be left out
        return self._lengths[state] >> low & ((1 << high - low + 1) - 1) != 0

    @cached_property
    def _lengths(self) -> list[int]:
        """Of each state the lengths of its ways, as bits."""
        before = [0] * self.states
        for source, ways in self.edges.items():
            for _, to in ways:
                before[to] |= 1 << source
        most = self._low + self.states if self._high is None else self._high
        found = [0] * self.states
        here = sum(1 << state for state in self.final)
        for length in range(most + 1):
            for state in _bits(here):
                found[state] |= 1 << length
            there = 0
            for state in _bits(here):
                there |= before[state]
            if (length + 1) * self.states > _MOST_LOOKED:
                raise TooLarge
            if there == here:  # and so on
                for state in _bits(here):
                    found[state] |= (1 << most + 1) - (1 << length)
                break
            here = there
        return found

    def least_bytes(self, bytes_of: Callable[[Node], int], state: int, low: int, high: int | None) -> int:
        """Bytes of a shortest text of so many edges from a state.

        bytes_of   of a shortest text of an edge
        """
        ways = [(source, bytes_of(body), to) for source, found in self.edges.items() for body, to in found]
        open_, most = high is None, low if high is None else high
        if open_ not in self._costs:  # by edges and state: of exactly so many edges or, where counts are open above, of so many at least
            here = [0 if state in self.final else NEVER for state in range(self.states)]
            for _ in range(self.states if open_ else 0):
                here = [min(old, new) for old, new in zip(here, self._one_more(ways, here))]
            self._costs[open_] = [here]
        costs = self._costs[open_]
        while len(costs) <= most:
            costs.append(self._one_more(ways, costs[-1]))
        return costs[low][state] if open_ else min(costs[length][state] for length in range(low, most + 1))

    def _one_more(self, ways: Sequence[tuple[int, int, int]], costs: Sequence[int]) -> list[int]:
        found = [NEVER] * self.states
        for source, length, to in ways:
            found[source] = min(found[source], length + costs[to])
        return found


def unrolled(node: Counted) -> NodeGraph:
    """The same texts without counters: a state for each count. Raises TooLarge."""
    counts = Counts(node.graph, node.low, node.high)
    if counts.states * (node.low if node.high is None else node.high) > _MOST_UNROLLED:
        raise TooLarge
    order: list[tuple[int, int, int | None]] = [(0, node.low, node.high)]
    numbers = {order[0]: 0}
    edges: list[tuple[int, Node, int]] = []
    final: set[int] = set()
    for here, (state, low, high) in enumerate(order):
        if low == 0 and state in counts.final:
            final.add(here)
        if high == 0:
            continue
        low, high = max(low - 1, 0), None if high is None else high - 1
        for body, to in counts.edges.get(state, ()):
            if counts.lead_to_an_end(to, low, high):
                target = to, low, high
                if target not in numbers:
                    numbers[target] = len(order)
                    order.append(target)
                edges.append((here, body, numbers[target]))
    return NodeGraph(tuple(edges), frozenset(final))


def folded(graph: NodeGraph) -> NodeGraph:
    """The same texts with a counter instead of many states that are alike but for how often a class of characters was read: behind names
    of `[a-z]{1,255}` that another pattern does not match, say.

    graph   whose edges are characters, else it is returned as it is
    """
    if len(graph.edges) < _FEWEST:
        return graph
    ways: dict[int, dict[int, Node]] = {}
    for source, body, to in graph.edges:
        if type(body) is not Chars or to in ways.setdefault(source, {}):
            return graph
        ways[source][to] = body
    entered = Counter(to for _, _, to in graph.edges)
    following: dict[int, int] = {}
    for state, here in ways.items():
        for to, body in here.items():
            there = ways.get(to, {})
            others = {at: chars for at, chars in here.items() if at != to}
            left = [chars for at, chars in there.items() if others.get(at) != chars]
            is_alike = len(there) == len(others) + len(left) and left in ([], [body]) and (state in graph.final) == (to in graph.final)
            if is_alike and to != state and to and entered[to] == 1:
                following[state] = to
                break
    final, inner, behind = set(graph.final), set[int](), dict[int, list[tuple[Concat, int]]]()
    end = 1 + max([max(a, b) for a, _, b in graph.edges])
    for first in following.keys() - set(following.values()):
        chain = [first]
        while (to := following.get(chain[-1])) is not None and ways[chain[-1]][to] == ways[first][following[first]]:
            chain.append(to)
        if len(chain) < _FEWEST:
            continue
        body, last, inner = ways[first][chain[1]], ways.get(chain[-1], {}), inner.union(chain)
        others = {to: chars for to, chars in ways[first].items() if to != chain[1]}
        found = behind[first] = [(Concat((Repeat(body, 0, len(chain) - 1), chars)), to) for to, chars in others.items()]
        found += [(Concat((Repeat(body, len(chain), len(chain)),)), to) for to, chars in last.items() if others.get(to) != chars]
        if first in final:
            found.append((Concat((Repeat(body, 0, len(chain) - 1),)), end))
            final.add(end)
        final -= {*chain} - {0}
    if not behind:
        return graph
    apart = {first for first, ways_on in behind.items() if not first or any(to in behind for _, to in ways_on)}  # still states of their own
    edges = [edge for edge in graph.edges if edge[0] not in inner]
    edges += [(first, node, to) for first, ways_on in behind.items() for node, to in ways_on if first in apart]
    edges = [
        (a, node, to)
        for a, body, b in edges
        for node, to in ([(body, b)] if b not in behind or b in apart else [(Concat((body, *node.parts)), to) for node, to in behind[b]])
    ]
    numbers = {state: i for i, state in enumerate(sorted({0, *(state for a, _, b in edges for state in (a, b))}))}
    return NodeGraph(tuple([(numbers[a], body, numbers[b]) for a, body, b in edges]), frozenset([numbers[s] for s in final if s in numbers]))


def _by_source(graph: NodeGraph) -> dict[int, list[tuple[Node, int]]]:
    found: dict[int, list[tuple[Node, int]]] = {}
    for source, body, to in graph.edges:
        found.setdefault(source, []).append((body, to))
    return found


def _bits(mask: int) -> list[int]:
    return [at for at, bit in enumerate(reversed(bin(mask)[2:])) if bit == "1"]
