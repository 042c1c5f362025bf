"""Cost prediction: the expected cost of a planned graph, op by op, for reports. Counts; changes nothing.

Text is counted in tokens where the target's tokenizer is known, else in characters (a token is about four): `Measure`.
A prompt is computed by the first op on its path that needs it, a prefill or a request, and shared by all later ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmc.ir.analysis import dominance
from lmc.ir.core import Block, Graph, Op, Operand, Symbol, Value
from lmc.ir.ops import IMAGES, trait
from lmc.passes.base import CHARACTERS, Measure
from lmc.passes.batch_forks import choices


@dataclass(frozen=True)
class Cost:
    """Expected cost of one request or prefill. Lengths of texts are in the measure's unit.

    computed  the part of its prompt that is computed for it
    shared    the part of its prompt that an earlier op has computed
    answer    most tokens of its answer, by its length and its constraint; of a select, none
    scored    scored part of choices; their common prefix counts once
    forced    share of its constraint's automaton in which the next byte is forced
    group     number and size of the group it is submitted with, or None
    """

    computed: int = 0
    shared: int = 0
    answer: int = 0
    scored: int = 0
    forced: float = 0.0
    group: tuple[int, int] | None = None

    @property
    def passes(self) -> float:
        """Return the model passes until it is done, with nothing in its way: the summand of a critical path."""
        return 1 + self.answer * (1 - self.forced)


def predict(graph: Graph, measure: Measure = CHARACTERS, *, max_tokens: int = 128) -> Mapping[int, Cost]:
    """Return costs by the index of the op in `graph.ops()`. `max_tokens` is the run's default for requests without
    one."""
    above = dominance(graph)
    lengths = _lengths(graph, measure, max_tokens)
    home: dict[Value, list[str]] = {}  # where a prompt's KV is computed: labels of blocks
    costs: dict[int, Cost] = {}
    index = 0
    for block in graph.blocks:
        for op in (*block.ops, block.terminator):
            if op.kind == "prefill" or trait(op) == "samples":
                computed, shared = 0, 0
                node: Operand | None = op.operands[0]
                while isinstance(node, Value):
                    if any(above(label, block.label) for label in home.get(node, ())):
                        shared = lengths[node]
                        break
                    home.setdefault(node, []).append(block.label)
                    producer = graph.producer.get(node)
                    computed += _size(producer, measure) if node not in graph.feeds else 0
                    node = _before(graph, node)
                if op.results:
                    home.setdefault(op.results[0], []).append(block.label)
                costs[index] = _cost(graph, op, computed, shared, measure, max_tokens)
            index += 1
    return costs


def growth(graph: Graph, measure: Measure = CHARACTERS) -> Mapping[int, int]:
    """Return the most tokens by which all prompts of a run grow after each request, with the longest answers and the
    longest arm: by its index in `graph.ops()`. Requests with an unbounded rest (a text known only at run time, a loop,
    an answer without a limit of its own) are left out."""
    return _BlockSums(graph, measure).by_index()


class _BlockSums:
    """Sums over blocks; None where there is no bound."""

    def __init__(self, graph: Graph, measure: Measure) -> None:
        self.graph, self.measure = graph, measure
        self._whole: dict[str, int | None] = {}

    def by_index(self) -> Mapping[int, int]:
        found: dict[int, int] = {}
        index = 0
        for block in self.graph.blocks:
            behind = [self._plus(self._end(block), self._behind(block))]
            for op in reversed(block.ops):
                behind.append(self._plus(behind[-1], self._size(op)))
            for at, op in enumerate(block.ops):
                tokens = behind[len(block.ops) - at - 1]
                if trait(op) == "samples" and tokens is not None:
                    found[index + at] = -(-tokens // self.measure.per_token)
            index += len(block.ops) + 1
        return found

    def _of(self, label: str) -> int | None:
        """Return the growth of a block and of the rest of its region."""
        if label not in self._whole:
            block = self.graph.block[label]
            self._whole[label] = self._plus(*map(self._size, block.ops), self._end(block))
        return self._whole[label]

    def _end(self, block: Block) -> int | None:
        """Return the growth after its terminator, within its region."""
        end = block.terminator
        then = 0 if end.then is None else self._of(end.then)
        arms = [self._of(label) for _, label in end.cases]
        if end.kind == "loop" and any(arm != 0 for arm in arms):
            return None
        return self._plus(then, None if None in arms else max(arms, default=0))  # pyright: ignore[reportArgumentType]

    def _behind(self, block: Block) -> int | None:
        """Return the growth after the region that contains a block."""
        owner = self.graph.region[block.label]
        if not owner:
            return 0
        outer = self.graph.block[owner]
        if outer.terminator.kind == "loop":
            return None
        return self._plus(0 if outer.terminator.then is None else self._of(outer.terminator.then), self._behind(outer))

    def _size(self, op: Op) -> int | None:
        if op.kind == "append":
            return None if any(isinstance(part, Value) for part in op.operands[1:]) else self.measure.size(op.operands[1:])
        if op.kind == "gen":
            longest = longest_answer(self.graph, op, sys.maxsize)
            return self.measure.per_token * longest if longest < sys.maxsize else None
        if op.kind == "select":
            texts = choices(op)
            return max(map(self.measure.text, texts), default=0) if all(isinstance(text, str) for text in texts) else None  # pyright: ignore[reportArgumentType]
        return None if op.kind in IMAGES or (op.kind == "unknown" and any(x.type == "ctx" for x in op.uses)) else 0

    @staticmethod
    def _plus(*parts: int | None) -> int | None:
        return None if None in parts else sum(part for part in parts if part is not None)


def _lengths(graph: Graph, measure: Measure, max_tokens: int) -> Mapping[Operand, int]:
    """Return the length from the root to each prompt, with the longest answers."""
    lengths: dict[Operand, int] = {p: measure.unknown for p in graph.params if p.type == "ctx"}
    for block in graph.blocks:
        for p in block.params:  # a loop's own turns are unknown here, and not counted
            lengths[p] = max((lengths.get(v, 0) for v in graph.feeds[p]), default=0)
        for op in block.ops:
            for v in op.results:
                if v.type == "ctx":
                    before = lengths[op.operands[0]] if op.operands else 0
                    answer = measure.per_token * longest_answer(graph, op, max_tokens) if op.kind == "gen" else 0
                    lengths[v] = before + answer + _size(op, measure)
    return lengths


def _before(graph: Graph, node: Value) -> Operand | None:
    """Return the prompt that a prompt extends; at joins of arms, or turns of a loop, the first one's."""
    producer = graph.producer.get(node)
    if producer is not None:
        return producer.operands[0] if producer.operands else None
    return next(iter(graph.feeds.get(node, ())), None)


def _cost(graph: Graph, op: Op, computed: int, shared: int, measure: Measure, max_tokens: int) -> Cost:
    group = op.attr("group")
    if op.kind == "select":
        return Cost(computed, shared, 0, _trie(choices(op), measure), 0.0, group)
    if op.kind == "prefill":
        return Cost(computed, shared)
    constant = _constant(graph, op)
    forced = constant.attr("forced", 0.0) if constant is not None else 0.0
    return Cost(computed, shared, longest_answer(graph, op, max_tokens), 0, forced, group)


def _constant(graph: Graph, op: Op) -> Op | None:
    name = op.attr("constraint")
    return graph.constants[name.name] if isinstance(name, Symbol) else None


def longest_answer(graph: Graph, op: Op, max_tokens: int = 128) -> int:
    """Return the most tokens of a gen's answer, by its length and its constraint."""
    given = op.attr("max_tokens")
    most = given if isinstance(given, int) else max_tokens
    constant = _constant(graph, op)
    longest = constant.attr("longest") if constant is not None else None
    return most if longest is None else min(most, longest + 1)


def _size(op: Op | None, measure: Measure) -> int:
    """Return the length that an op adds to a prompt uncomputed; a parameter brings the text before the graph."""
    if op is None:
        return measure.unknown
    return measure.size(op.operands[1:]) if op.kind == "append" else 0  # an answer is computed while it is sampled


def _trie(texts: Sequence[Operand], measure: Measure) -> int:
    """Return the size of a trie of texts, as far as they are known."""
    total, before = measure.unknown * sum(not isinstance(text, str) for text in texts), ""
    for text in sorted({text for text in texts if isinstance(text, str)}):
        common = next((i for i, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), min(len(before), len(text)))
        total += measure.text(text[common:])
        before = text
    return total
