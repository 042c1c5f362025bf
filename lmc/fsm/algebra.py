"""Set operations on languages of characters: intersection and difference of two trees.

Both are determinised over one division of characters into classes; the answer is the product, as a tree of one `Graph`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from lmc.fsm.bounds import TooLarge, TransitionBudget
from lmc.fsm.charset import Ranges, complement, merged, without_surrogates
from lmc.fsm.dfa import DEAD, MAX_STATES, Alphabet, determinised
from lmc.fsm.minimise import Table, minimal
from lmc.fsm.nodes import ANY, NOTHING, Chars, Concat, Node, NodeGraph, Repeat

S = TypeVar("S", bound=Hashable)
_MOST_SETS = 100_000  # sets visited while one language is determinised
_MOST_MADE = 20_000  # states of a machine


def both(a: Node, b: Node, work: TransitionBudget | None = None) -> Node:
    """Return the texts that are in `a` and in `b`; NOTHING if there is none. Raises TooLarge, also when `work` is used
    up."""
    return _product(a, b, lambda in_a, in_b: in_a and in_b, work or TransitionBudget())


def without(a: Node, b: Node, work: TransitionBudget | None = None) -> Node:
    """Return the texts of `a` that are not in `b`; NOTHING if there is none. Raises TooLarge, also when `work` is used
    up."""
    return _product(a, b, lambda in_a, in_b: in_a and not in_b, work or TransitionBudget())


def minimised(a: Node, work: TransitionBudget) -> NodeGraph:
    """A language that has a text, as a graph of the states of its minimal automaton; each edge is a character. Raises TooLarge."""
    alphabet = Alphabet.of(a)
    table, final = determinised(a, alphabet, _MOST_SETS)
    work.spend(len(table) * alphabet.size)
    found = _graph(table, final, alphabet.ranges())
    assert isinstance(found, NodeGraph)
    return found


def other_than(words: Sequence[str]) -> Node:
    """Return all texts but these words."""
    children, ends, _ = _trie(words)
    anything = len(children)
    edges: list[tuple[int, Node, int]] = [(anything, ANY, anything)]
    for state, ways in enumerate(children):
        for char, to in ways.items():
            edges.append((state, _only(char), to))
        edges.append((state, _others("".join(sorted(ways))), anything))
    return NodeGraph(tuple(edges), frozenset(range(anything + 1)) - ends, tuple(words) if all(map(_is_plain, words)) else None)


def repeated_other_than(words: Iterable[str], body: Chars, low: int, high: int | None) -> Node:
    """Return the texts of so many characters of a class but these words: no state for each count, as `without` makes."""
    words = [w for w in words if low <= len(w) and (high is None or len(w) <= high) and all(_has(body, char) for char in w)]
    if not words:
        return Repeat(body, low, high)
    children, ends, depth = _trie(words)
    last = len(children)
    final = {last, *(state for state in range(last) if depth[state] >= low and state not in ends)}
    edges: list[tuple[int, Node, int]] = []
    alive = {last}
    for state in reversed(range(last)):  # children come behind
        here: list[tuple[int, Node, int]] = [(state, _only(char), to) for char, to in children[state].items() if to in alive]
        others, left = _others("".join(sorted(children[state])), body.ranges), None if high is None else high - depth[state] - 1
        if others.ranges and left != -1:
            rest = (Repeat(body, max(low - depth[state] - 1, 0), left),) if left != 0 else ()
            here.append((state, Concat((others, *rest)), last))
        if here or state in final:
            alive.add(state)
        edges += here
    if 0 not in alive:
        return NOTHING
    found = NodeGraph(tuple(reversed(edges)), frozenset(final & alive))
    is_whole = len(alive) > last and any(to == last for _, _, to in edges) and all(map(_is_plain, words))
    return replace(found, but=tuple(words), among=Repeat(body, low, high)) if is_whole else found


def _has(body: Chars, char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in body.ranges)


def _trie(words: Iterable[str]) -> tuple[list[dict[str, int]], set[int], list[int]]:
    """Return the children of each state by character, the states where words end, and the depth of each."""
    children: list[dict[str, int]] = [{}]
    depth, ends = [0], set[int]()
    for word in words:
        at = 0
        for char in word:
            if char not in children[at]:
                children[at][char] = len(children)
                children.append({})
                depth.append(depth[at] + 1)
            at = children[at][char]
        ends.add(at)
    return children, ends, depth


def _is_plain(word: str) -> bool:
    return word.isascii() and word.isprintable() and not {'"', "\\"} & set(word)


@lru_cache(4096)
def _only(char: str) -> Chars:
    return Chars(((ord(char), ord(char)),))


@lru_cache(4096)
def _others(chars: str, of: Ranges = ANY.ranges) -> Chars:
    """Return all characters of a class but these."""
    return Chars(without_surrogates(complement([*complement(of), *((ord(char), ord(char)) for char in chars)])))


def is_empty(a: Node) -> bool:
    """Return whether no text is in it."""
    return both(a, a) == NOTHING


def are_apart(a: Node, b: Node, work: TransitionBudget | None = None) -> bool:
    """Return whether no text is in both: `both` without building its tree. Raises TooLarge, also when `work` is used
    up."""
    alphabet = Alphabet.of(Concat((a, b)))
    (rows_a, final_a), (rows_b, final_b) = determinised(a, alphabet, _MOST_SETS), determinised(b, alphabet, _MOST_SETS)
    work = work or TransitionBudget()
    work.spend((len(rows_a) + len(rows_b)) * alphabet.size)
    seen, todo = {(0, 0)}, [(0, 0)]
    while todo:
        at_a, at_b = todo.pop()
        if final_a[at_a] and final_b[at_b]:
            return False
        work.spend(alphabet.size)
        for pair in set(zip(rows_a[at_a], rows_b[at_b])):
            if DEAD not in pair and pair not in seen:
                seen.add(pair)
                todo.append(pair)
    return True


def automaton(start: S, step: Callable[[S, str], S | None], is_final: Callable[[S], bool], alphabet: Sequence[str]) -> Node:
    """Return the language of a machine: its states are the results of `step`, None where a character is not legal.

    alphabet   classes of characters that it never distinguishes
    """
    rows, order = _explored(start, lambda state: [step(state, char) for char in alphabet], _MOST_MADE)
    return _graph(rows, [is_final(state) for state in order], [merged((ord(c), ord(c)) for c in chars) for chars in alphabet])


def _explored(start: S, ways: Callable[[S], Iterable[S | None]], most: int) -> tuple[list[list[int]], list[S]]:
    """Return the table of the states that can be reached, and those; `ways`: what each symbol leads to, None where it is not legal."""
    numbers, order, rows = {start: 0}, [start], list[list[int]]()
    for state in order:
        row: list[int] = []
        for to in ways(state):
            if to is not None and to not in numbers:
                if len(order) >= most:
                    raise TooLarge
                numbers[to] = len(order)
                order.append(to)
            row.append(DEAD if to is None else numbers[to])
        rows.append(row)
    return rows, order


def _product(a: Node, b: Node, keep: Callable[[bool, bool], bool], work: TransitionBudget) -> Node:
    alphabet = Alphabet.of(Concat((a, b)))
    (rows_a, final_a), (rows_b, final_b) = determinised(a, alphabet, _MOST_SETS), determinised(b, alphabet, _MOST_SETS)
    work.spend((len(rows_a) + len(rows_b)) * alphabet.size)
    ends_a, ends_b = [*final_a, False], [*final_b, False]  # DEAD reads the last
    dead = [DEAD] * alphabet.size

    def ways(pair: tuple[int, int]) -> Iterable[tuple[int, int] | None]:
        work.spend(alphabet.size)
        return [to if to[0] >= 0 else None for to in zip(rows_a[pair[0]], rows_b[pair[1]] if pair[1] >= 0 else dead)]

    rows, order = _explored((0, 0), ways, MAX_STATES)
    return _graph(rows, [keep(ends_a[x], ends_b[y]) for x, y in order], alphabet.ranges())


def _graph(table: Table, final: list[bool], symbols: list[Ranges]) -> Node:
    if not any(final):
        return NOTHING
    table, final = minimal(table, final)
    edges: list[tuple[int, Node, int]] = []
    made: dict[tuple[int, ...], Chars] = {}  # by symbols: most states partition them equally
    for state, row in enumerate(table):
        by_target: dict[int, list[int]] = defaultdict(list)
        for symbol, target in enumerate(row):
            if target >= 0:
                by_target[target].append(symbol)
        for target, some in by_target.items():
            if (chars := made.get(key := tuple(some))) is None:
                chars = made[key] = Chars(_sum(symbols[i] for i in some))
            edges.append((state, chars, target))
    is_open = _sum(symbols) == ANY.ranges and all(target >= 0 for row in table for target in row)
    return NodeGraph(tuple(edges), frozenset(state for state, end in enumerate(final) if end), open=frozenset(range(len(table)) if is_open else ()))


def _sum(sets: Iterable[Ranges]) -> Ranges:
    return merged(r for ranges in sets for r in ranges)
