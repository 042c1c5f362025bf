"""Dead code: what nothing observable needs is removed (semantics.md §2).

Kept: terminators and all they name (what an exit names, the program can still reach), effects and ordered calls in
their order, and every op that can raise. Removed: pure ops that cannot raise and sampling ops, none of whose results is used.
A gen that a run's own limit may refuse stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.builder import Rewriter, rewrite, with_attrs, with_operands
from lmc.ir.core import Graph, Op, Operand, Value
from lmc.ir.ops import can_raise, trait
from lmc.passes.manager import Pass, PassContext, register


@register
@dataclass(frozen=True)
class Dce(Pass):
    """Removes gens of forks that nobody reads, and unread pure ops.

    outputs  names of the variables that the caller wants, or None for all. With names, a return keeps its value and
             those variables only: the rest of the returned state (text, messages, other variables) is given up, and
             with it the gens and reads that only it needed.
    """

    name: ClassVar[str] = "dce"
    outputs: tuple[str, ...] | None = None

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if self.outputs is not None:
            graph = _narrowed(graph, self.outputs)
        dead = _dead(graph, reads_matter=self.outputs is None)
        if not dead:
            return graph
        for op in dead.values():
            ctx.count("gens removed" if trait(op) == "samples" else "ops removed")
        return rewrite(graph, lambda op, _: () if id(op) in dead else None)


def _dead(graph: Graph, reads_matter: bool) -> dict[int, Op]:
    """Ops to remove, by identity. One walk backwards suffices: uses stand after definitions."""
    live: set[Value] = set()
    dead: dict[int, Op] = {}
    for block in reversed(graph.blocks):
        live.update(block.terminator.uses)
        for op in reversed(block.ops):
            if _erasable(op, reads_matter) and live.isdisjoint(op.results):
                dead[id(op)] = op
            else:
                live.update(op.uses)
    return dead


def _erasable(op: Op, reads_matter: bool) -> bool:
    if op.kind == "read" and not reads_matter:
        return True
    if trait(op) == "samples":
        return not (reads_matter and _is_compared(op))
    return trait(op) == "pure" and not can_raise(op)


def _is_compared(op: Op) -> bool:
    """Whether a gen is refused by runs whose limit is below its own least number of tokens."""
    given = {*op.attrs, *op.attr("params", ())}
    return "min_tokens" in given and "max_tokens" not in given


def _narrowed(graph: Graph, outputs: Sequence[str]) -> Graph:
    """Returns name only the wanted variables; None and the root prompt stand for what is given up."""

    def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
        if op.kind not in ("return", "raise") or len(op.operands) < 2 or op.attr("outputs") == tuple(outputs):
            return None
        value, final, *rest = op.operands
        kept: list[Operand] = [value, _root(graph, final)]
        for i, name in enumerate(op.attr("vars", ())):
            kept += rest[2 * i : 2 * i + 2] if name in outputs else (None, None)
        return (with_operands(with_attrs(op, {**op.attrs, "outputs": tuple(outputs)}), tuple(kept)),)

    return rewrite(graph, rule)


def _root(graph: Graph, prompt: Operand) -> Operand:
    """The first prompt that a prompt goes back to in this graph."""
    while isinstance(prompt, Value) and (op := graph.producer.get(prompt)) is not None and op.operands:
        prompt = op.operands[0]
    return prompt
