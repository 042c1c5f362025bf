"""What a planned graph is expected to cost, op by op, for whoever shows it. Counts; changes nothing.

Text is counted in tokens where the target's tokenizer is known, else in characters (a token is about four): `Measure`. A
prompt is computed by the first op on its path that needs it, a prefill or an ask, and shared by all that come later.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmc.ir.analysis import dominance
from lmc.ir.core import Block, Graph, Op, Operand, Symbol, Value
from lmc.ir.ops import trait
from lmc.passes.batch_forks import choices
from lmc.passes.manager import CHARACTERS, Measure


@dataclass(frozen=True)
class Cost:
    """Expected cost of one ask or prefill. Lengths of texts are in the measure's unit.

    computed  of its prompt, what is computed for it
    shared    of its prompt, what an op before it has computed
    answer    most tokens of its answer, by its length and its constraint; of a select, none
    scored    of choices, what is scored; what choices begin with in common once
    forced    share of its constraint's automaton in which nothing is left to choose
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
        """Passes of the model until it is done, with nothing in its way: what a critical path adds up."""
        return 1 + self.answer * (1 - self.forced)


def predict(graph: Graph, measure: Measure = CHARACTERS, *, max_tokens: int = 128) -> Mapping[int, Cost]:
    """Costs by the index of the op in `graph.ops()`. `max_tokens` is the run's default for asks that name none."""
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
    """Tokens by which all prompts of a run grow at most behind each ask, answers at their longest, of the longest arm: by its index in `graph.ops()`.
    One behind which nobody can tell (a text that only runs know, a loop, an answer without a limit of its own) is left out."""
    return _Growth(graph, measure).by_index()


class _Growth:
    """Sums over blocks; None where nobody can tell."""

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
        """A block, and what follows it in its region."""
        if label not in self._whole:
            block = self.graph.block[label]
            self._whole[label] = self._plus(*map(self._size, block.ops), self._end(block))
        return self._whole[label]

    def _end(self, block: Block) -> int | None:
        """What its terminator leads to, in its region."""
        end = block.terminator
        then = 0 if end.then is None else self._of(end.then)
        arms = [self._of(label) for _, label in end.cases]
        if end.kind == "loop" and any(arm != 0 for arm in arms):
            return None
        return self._plus(then, None if None in arms else max(arms, default=0))  # pyright: ignore[reportArgumentType]

    def _behind(self, block: Block) -> int | None:
        """What follows the region that a block stands in."""
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
        return None if op.kind in ("image", "video") or (op.kind == "unknown" and any(x.type == "ctx" for x in op.uses)) else 0

    @staticmethod
    def _plus(*parts: int | None) -> int | None:
        return None if None in parts else sum(part for part in parts if part is not None)


def _lengths(graph: Graph, measure: Measure, max_tokens: int) -> Mapping[Operand, int]:
    """From the root to each prompt, answers at their longest."""
    lengths: dict[Operand, int] = {p: measure.unknown for p in graph.params if p.type == "ctx"}
    for block in graph.blocks:
        for p in block.params:  # a loop's own turns are not known yet, and not counted
            lengths[p] = max((lengths.get(v, 0) for v in graph.feeds[p]), default=0)
        for op in block.ops:
            for v in op.results:
                if v.type == "ctx":
                    before = lengths[op.operands[0]] if op.operands else 0
                    answer = measure.per_token * longest_answer(graph, op, max_tokens) if op.kind == "gen" else 0
                    lengths[v] = before + answer + _size(op, measure)
    return lengths


def _before(graph: Graph, node: Value) -> Operand | None:
    """The prompt that a prompt goes on from; where arms go on together, or turns of a loop, that of the first."""
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
    """Most tokens that a gen's answer has, by its length and its constraint."""
    given = op.attr("max_tokens")
    most = given if isinstance(given, int) else max_tokens
    constant = _constant(graph, op)
    longest = constant.attr("longest") if constant is not None else None
    return most if longest is None else min(most, longest + 1)


def _size(op: Op | None, measure: Measure) -> int:
    """What an op adds to a prompt that nobody has computed; a parameter brings what came before the graph."""
    if op is None:
        return measure.unknown
    return measure.size(op.operands[1:]) if op.kind == "append" else 0  # an answer is computed while it is sampled


def _trie(texts: Sequence[Operand], measure: Measure) -> int:
    """The length of a trie of texts, those that are known."""
    total, before = measure.unknown * sum(not isinstance(text, str) for text in texts), ""
    for text in sorted({text for text in texts if isinstance(text, str)}):
        common = next(
            (i for i, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), min(len(before), len(text))
        )
        total += measure.text(text[common:])
        before = text
    return total
