"""Batching of forks: which requests go to the backend together.

Siblings are requests that continue one prompt with only text in between. Siblings of one block that need the same
answers and wait for the same calls become ready at the same moment, and form a group (attribute `group`: its
number and size). Requests whose answers have no known reader, and those whose address is undecided, are in no group.

Siblings with equal requests on equal prompts are one n-way sample (attribute `ways`: its index and the number of samples). Each
keeps its own seed, H(run seed, item, fork path, ordinal), so its text is the same as if it were alone. At temperature 0 there
is only one answer, and cse has merged them.

A select with several choices is scored as one trie of its choices, in one pass (attribute `trie`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.analysis import ctx_children
from lmc.ir.builder import Rewriter, rewrite, with_attrs
from lmc.ir.core import Attr, Graph, Op, Operand, Value, exact
from lmc.ir.ops import request, trait
from lmc.passes.base import Pass, PassContext, register


@register
@dataclass(frozen=True)
class BatchForks(Pass):
    """Group siblings that are ready together; find n-way samples and the selects to score as a trie."""

    name: ClassVar[str] = "batch-forks"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        hints: dict[Value, dict[str, Attr]] = {op.results[0]: {} for op in graph.ops() if trait(op) == "samples"}
        for number, group in enumerate(_groups(graph)):
            ctx.count("groups")
            ctx.count("asks in groups", len(group))
            for op in group:
                hints[op.results[0]]["group"] = (number, len(group))
            for same in _alike(group):
                ctx.count("n-way samples")
                for i, op in enumerate(same):
                    hints[op.results[0]]["ways"] = (i, len(same))
        for op in graph.ops():
            if op.kind == "select" and len(choices(op)) > 1:
                ctx.count("selects as a trie")
                hints[op.results[0]]["trie"] = True

        def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
            if trait(op) != "samples":
                return None
            attrs = {k: v for k, v in op.attrs.items() if k not in ("group", "ways", "trie")} | hints[op.results[0]]
            return None if attrs == op.attrs else (with_attrs(op, attrs),)

        return rewrite(graph, rule)


def choices(op: Op) -> tuple[Operand, ...]:
    """Return the choices of a select."""
    return op.operands[1 : len(op.operands) - len(op.attr("params", ()))]


# -- groups ----------------------------------------------------------------------------------------------------------


def _groups(graph: Graph) -> Iterator[list[Op]]:
    """Return siblings that are ready together, two or more, in the order of the program."""
    above = _starts(graph)
    found: dict[Hashable, list[Op]] = {}
    for label, op, needs in _ready(graph):
        start = above.get(op.operands[0])
        if start is not None:
            found.setdefault((label, start, needs), []).append(op)
    yield from (group for group in found.values() if len(group) > 1)


def _starts(graph: Graph) -> Mapping[Operand, Value]:
    """Return, for each prompt, the one that it shares with its siblings: the last answer before it, or the graph's
    parameter.

    Starting from the empty prompt, it is the first text, without which there is nothing to share.
    """
    starts: dict[Operand, Value] = {p: p for p in (*graph.params, *(v for b in graph.blocks for v in b.params)) if p.type == "ctx"}
    children = ctx_children(graph)
    for value, ops in children.items():
        for op in ops:
            below = next(v for v in op.results if v.type == "ctx")
            if trait(op) == "samples" or value not in starts:
                starts[below] = below
            else:
                starts[below] = starts[value]
    return starts


def _ready(graph: Graph) -> Iterator[tuple[str, Op, int]]:
    """Return, for each request, its block and its dependencies: a set of ops, as bits of a number.

    A request is submitted when its texts are known; it does not wait for the answers in its own prompt. A call of
    unknown code may take long, so it holds back Python's requests after it.
    """
    needs: dict[Value, int] = {}  # for texts and other values: the answers and calls they come from
    held: dict[str, int] = {}  # at a block's end: ops that hold back everything after it
    number = 0
    for block in graph.blocks:
        above = graph.predecessor.get(block.label)
        before = held.get(above, 0) if above is not None else 0
        for param in block.params:
            needs[param] = 0
            for v in graph.feeds[param]:
                needs[param] |= needs.get(v, 0) if isinstance(v, Value) else 0
        for op in block.ops:
            own = 0
            for v in op.uses:
                own |= needs.get(v, 0)
            if trait(op) == "samples":
                if not op.attr("shifted") and not op.attr("lazy"):
                    yield block.label, op, own | before
                number += 1
                needs[op.results[0]] = own
                needs.update((v, own | 1 << number) for v in op.results[1:])
                continue
            if op.kind == "unknown":
                number += 1
                own |= 1 << number
                before |= own if op.attr("calls") is not None else 0
            needs.update((v, own) for v in op.results)
        held[block.label] = before
        for v in block.terminator.uses:
            held[block.label] |= needs.get(v, 0)


# -- n-way samples ---------------------------------------------------------------------------------------------------


def _alike(group: Sequence[Op]) -> Iterator[list[Op]]:
    """Return gens of a group with equal requests on equal prompts. One with a seed of its own is a different
    request."""
    found: dict[Hashable, list[Op]] = {}
    for op in group:
        if op.kind == "gen" and "seed" not in op.attr("params", ()):
            attrs = tuple(sorted((k, exact(v)) for k, v in request(op).items()))
            found.setdefault((exact(op.operands), attrs), []).append(op)
    yield from (same for same in found.values() if len(same) > 1)
