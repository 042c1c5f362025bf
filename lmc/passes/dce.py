"""Dead requests: requests whose answers have no known use are made only when they are read.

A request is needed if anything reads, returns or joins its value or meta info, or if a prompt that continues its answer
is needed: returned, read as text, passed to unknown code, or continued by a request that is needed. Every other request
becomes `lazy`: the ledger sends it when Python reads it, or never. Unused pure ops on literals only are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.builder import Rewriter, rewrite, with_attrs, with_operands
from lmc.ir.core import Graph, Op, Operand, Value
from lmc.ir.ops import trait
from lmc.passes.base import Pass, PassContext, register


@register
@dataclass(frozen=True)
class Dce(Pass):
    """Mark requests that no path reads, joins or returns as lazy; remove unused constant text.

    outputs  names of the variables that the caller wants, or None for all. With names, a return keeps only its value and
             those variables: the rest of the returned state (text, messages, other variables) is given up, and requests
             needed only for that are made when it is read.
    """

    name: ClassVar[str] = "dce"
    outputs: tuple[str, ...] | None = None

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if self.outputs is not None:
            graph = _narrowed(graph, self.outputs)
        needed = needed_prompts(graph)
        dead = _dead(graph)

        def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
            if id(op) in dead:
                ctx.count("ops removed")
                return ()
            if trait(op) != "samples" or (lazy := not _is_needed(op, graph, needed)) == bool(op.attr("lazy")):
                return None
            ctx.count("asks made lazy", lazy)
            attrs = {k: v for k, v in op.attrs.items() if k != "lazy"}
            return (with_attrs(op, {**attrs, "lazy": True} if lazy else attrs),)

        return rewrite(graph, rule)


def needed_prompts(graph: Graph) -> frozenset[Value]:
    """Return the prompts whose answers are needed, as far as the graph knows."""
    needed: set[Value] = set()
    while True:
        before = len(needed)
        for block in reversed(graph.blocks):
            for op in (block.terminator, *reversed(block.ops)):
                needed.update(_needs(op, graph, needed))
            for param in block.params:
                if param in needed:
                    needed.update(v for v in graph.feeds[param] if isinstance(v, Value))
        if len(needed) == before or all(b.terminator.kind != "loop" for b in graph.blocks):
            return frozenset(needed)


def _needs(op: Op, graph: Graph, needed: set[Value]) -> Iterator[Value]:
    prompts = (v for v in op.uses if v.type == "ctx")
    if op.kind in ("yield", "continue", "break", "loop", "prefill", "release"):
        return  # a yielded prompt is needed if its parameter is
    if any(v.type == "ctx" for v in op.results):
        if _is_needed(op, graph, needed):
            yield from prompts
    else:
        yield from prompts


def _is_needed(op: Op, graph: Graph, needed: frozenset[Value] | set[Value]) -> bool:
    return any(v in needed if v.type == "ctx" else v in graph.users for v in op.results)


def _dead(graph: Graph) -> frozenset[int]:
    """Return ops to remove, by identity. One backward walk suffices: uses come after definitions."""
    live: set[Value] = set()
    dead: set[int] = set()
    for block in reversed(graph.blocks):
        live.update(block.terminator.uses)
        for op in reversed(block.ops):
            if live.isdisjoint(op.results) and _reads_nothing(op):
                dead.add(id(op))
            else:
                live.update(op.uses)
    return frozenset(dead)


def _reads_nothing(op: Op) -> bool:
    """Return whether Python computes the op without waiting for an answer: an awaited answer is needed."""
    return trait(op) == "pure" and (not op.uses or (op.results[0].type == "ctx" and all(v.type == "ctx" for v in op.uses)))


def _narrowed(graph: Graph, outputs: Sequence[str]) -> Graph:
    """Return the graph in which returns name only the wanted variables; None and the root prompt replace the rest."""

    def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
        if op.kind != "return" or op.attr("outputs") == tuple(outputs):
            return None
        value, final, *rest = op.operands
        names = op.attr("vars", ())
        kept: list[Operand] = [x if name in outputs else None for name, x in zip(names, rest, strict=True)]
        return (with_operands(with_attrs(op, {**op.attrs, "outputs": tuple(outputs)}), (value, _root(graph, final), *kept)),)

    return rewrite(graph, rule)


def _root(graph: Graph, prompt: Operand) -> Operand:
    """Return the first prompt of the graph; the prompt itself where the entry has none."""
    prompts = [*graph.params, *(v for op in graph.entry.ops for v in op.results)]
    return next((v for v in prompts if v.type == "ctx"), prompt)
