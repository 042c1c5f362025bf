"""Planning for prompt caches that must be requested: the prefixes that each request shares with later ones.

A server that caches marked prefixes of prompts charges more for writing a prefix, and a tenth for reading it. Which prefixes
are worth writing depends on how many later requests will read them, which the graph shows. The length of a prompt is
known only when it is sent, so the marks are placed then (lmc/backend/api/caching.py), based on this pass's
annotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.analysis import path_to
from lmc.ir.builder import Rewriter, rewrite, with_attrs
from lmc.ir.core import Graph, Op, Operand, Value
from lmc.ir.ops import trait
from lmc.passes.base import Pass, PassContext, register
from lmc.segments import Mark

_Counts = dict[str, float]  # number of requests by block


@register
@dataclass(frozen=True)
class PlanCache(Pass):
    """Annotates each request of a message API with the number of later requests that begin with the same messages.

    turns   the assumed number of iterations of a loop, where it is not known
    """

    name: ClassVar[str] = "plan-cache"
    turns: int = 2

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if ctx.target.kind != "chat":
            return graph
        found = _Sharing(graph, self.turns).run()

        def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
            shared = found.get(op.results[0]) if trait(op) == "samples" else None
            if shared is None or op.attr("shared") == shared:
                return None
            ctx.count("requests that others extend", any(messages < 0 and reads > 0 for messages, reads in shared))
            ctx.count("beginnings in common", sum(messages > 0 for messages, _ in shared))
            return (with_attrs(op, {**op.attrs, "shared": shared}),)

        return rewrite(graph, rule) if found else graph


def reached(graph: Graph, turns: float = 2) -> Mapping[str, float]:
    """Return the expected number of times that a run executes each block: by counts of runs (`taken`), else with
    equally likely arms. The block after an arm that returns is reached by the other arms."""
    found = {graph.entry.label: 1.0}
    for block in graph.blocks:
        end, here = block.terminator, found[block.label]
        left = 1.0
        for _, label in end.cases:
            share = _share(end, label) if end.kind == "switch" else turns_of(end, turns)
            found[label] = here * share
            if end.kind == "switch" and graph.block[label].terminator.kind in ("return", "raise"):
                left -= share
        if end.then is not None:
            found[end.then] = here * left
    return found


def turns_of(loop: Op, turns: float) -> float:
    """Return the number of turns of a loop: as measured, else `turns`."""
    entered, turned = loop.attr("taken") or (0, 0)
    return turned / entered if entered else turns


def _share(switch: Op, label: str) -> float:
    """Return the share of runs that take an arm."""
    labels = [arm for _, arm in switch.cases]
    taken = switch.attr("taken")
    return taken[labels.index(label)] / sum(taken) if taken and sum(taken) else 1 / len(labels)


def path_of(graph: Graph, node: Operand) -> Iterator[Value]:
    """Yield the prompts that one extends, itself first; at joins of arms, and at turns of a loop, the first one's."""
    seen: set[Value] = set()
    while isinstance(node, Value) and node not in seen:
        seen.add(node)
        yield node
        made = graph.producer.get(node)
        if made is None:
            node = next(iter(graph.feeds.get(node, ())), None)
        else:
            node = made.operands[0] if made.operands else None


class _Sharing:
    """One backward walk over the requests of a graph: `later` has the later requests, by each prompt that they
    extend."""

    def __init__(self, graph: Graph, turns: int) -> None:
        self.graph, self.turns = graph, turns
        self.home = {v: b.label for b in graph.blocks for v in (*b.params, *(v for op in b.ops for v in op.results))}
        self.messages = messages_of(graph)
        self.paths: dict[str, tuple[str, ...]] = {b.label: path_to(graph, b.label) for b in graph.blocks}
        self.later: dict[Value, _Counts] = {}
        self.carried = {v for p in self.messages if p in graph.feeds for fed in graph.feeds[p] if isinstance(fed, Value) for v in path_of(self.graph, fed)}

    def run(self) -> Mapping[Value, tuple[tuple[int, float], ...]]:
        found: dict[Value, tuple[tuple[int, float], ...]] = {}
        for block in reversed(self.graph.blocks):
            for op in reversed(block.ops):
                if trait(op) != "samples":
                    continue
                path = list(path_of(self.graph, op.operands[0]))
                found[op.results[0]] = self._shared(op, block.label, path)
                for v in path:
                    counts = self.later.setdefault(v, {})
                    counts[block.label] = counts.get(block.label, 0.0) + (0.5 if op.attr("lazy") else 1.0)  # it may be read after all
        return found

    def _shared(self, op: Op, label: str, path: Sequence[Value]) -> tuple[tuple[int, float], ...]:
        end = self.messages.get(path[0]) if path else None
        again = self._comes_back(op, label)
        reads: dict[int, float] = {-1: again}
        for v in path:
            at, count = self.messages.get(v), self._expected(v, label)
            if v is path[0] or (at is not None and at == end):
                reads[-1] = max(reads[-1], count + again)
            elif at:
                reads[at] = max(reads.get(at, 0.0), count + again)
        return tuple((at, round(count, 2)) for at, count in sorted(reads.items()) if at < 0 or count > 0)

    def _expected(self, v: Value, label: str) -> float:
        """Return the expected number of later requests that extend a prompt, as seen from a block; further turns of a
        loop around the block count."""
        count = sum(n * self._likely(there, label) for there, n in self.later.get(v, {}).items())
        loops = [owner for owner in self.paths[label] if self._opens_loop(owner, label) and not self._inside(v, owner)]
        return count + (self._turns(loops[0]) - 1 if loops else 0)

    def _comes_back(self, op: Op, label: str) -> float:
        """Return the further turns of a loop whose prompt extends this answer."""
        loop = self.graph.loop_around(label)
        return self._turns(loop) - 1 if loop is not None and op.results[0] in self.carried else 0.0

    def _turns(self, loop: str) -> float:
        return turns_of(self.graph.block[loop].terminator, self.turns)

    def _opens_loop(self, owner: str, label: str) -> bool:
        """Return whether a block ends with a loop whose body contains another block."""
        end = self.graph.block[owner].terminator
        return end.kind == "loop" and owner != label and end.cases[0][1] in self.paths[label]

    def _inside(self, v: Value, owner: str) -> bool:
        return self.graph.block[owner].terminator.cases[0][1] in self.paths.get(self.home.get(v, ""), ())

    def _likely(self, there: str, here: str) -> float:
        """Return the probability that a block is reached from another one. Arms of one switch exclude each other."""
        one, other = self.paths[there], self.paths[here]
        shared = 0
        while shared < min(len(one), len(other)) and one[shared] == other[shared]:
            shared += 1
        end = self.graph.block[one[shared - 1]].terminator
        arms = {label for _, label in end.cases}
        if shared < len(one) and shared < len(other) and one[shared] in arms and other[shared] in arms:
            return 0.0
        likely = 1.0
        for above, label in zip(one[shared - 1 :], one[shared:], strict=False):
            likely *= self._taken(above, label)
        return likely

    def _taken(self, above: str, label: str) -> float:
        """Return the share of the paths through a block that continue to another one."""
        end = self.graph.block[above].terminator
        return _share(end, label) if end.kind == "switch" and label != end.then else 1.0


def messages_of(graph: Graph) -> Mapping[Value, int | None]:
    """Return the number of whole messages of each prompt; None where that depends on the path."""
    found: dict[Value, int | None] = {}
    for block in graph.blocks:
        for p in block.params:
            if p.type == "ctx":
                counts = {found.get(v) if isinstance(v, Value) else None for v in graph.feeds[p]}
                found[p] = counts.pop() if len(counts) == 1 else None
        for op in block.ops:
            for v in op.results:
                if v.type == "ctx":
                    before = found.get(op.operands[0]) if op.operands and isinstance(op.operands[0], Value) else 0  # type: ignore[arg-type]
                    ends = sum(isinstance(x, Mark) and x.edge == "end" for x in op.operands)
                    found[v] = None if before is None else before + ends
    return found
