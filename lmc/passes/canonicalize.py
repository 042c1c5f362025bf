"""A single form for every prompt: appends are merged, adjacent text is joined, empty text is dropped. Text and tokens stay the same.

An append or concat that has a single use, as the prompt of another append or as an operand of text, is merged into that use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.errors import Loc
from lmc.ir.builder import Rewriter, rewrite
from lmc.ir.core import Graph, Op, Operand, Value
from lmc.passes.base import Pass, PassContext, register


@register
@dataclass(frozen=True)
class Canonicalize(Pass):
    """Merges appends, folds concat and `+` of texts, joins adjacent text, drops empty text."""

    name: ClassVar[str] = "canonicalize"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        while (after := _once(graph, ctx)) is not graph:
            graph = after
        return graph


def _once(graph: Graph, ctx: PassContext) -> Graph:
    absorbed = _absorbed(graph)
    inside: dict[Value, tuple[Operand, ...]] = {}  # operands of absorbed ops
    began: dict[Value, Loc | None] = {}  # location of the first of them, which the merged op takes

    def rule(op: Op, rewriter: Rewriter) -> Sequence[Op] | None:
        if _adds_text(op):
            ctx.count("additions of text")
            return (Op("concat", op.operands, op.results, {}, (), op.loc),)
        if op.kind not in ("append", "concat"):
            return None
        operands = _joined(_flat(op, inside))
        if op.results[0] in absorbed:
            inside[op.results[0]] = operands
            began[op.results[0]] = _began(op, began)
            ctx.count("merged")
            return ()
        if (same := _trivial(op, operands)) is not None:
            rewriter.replace(op.results[0], same)
            ctx.count("folded")
            return ()
        if operands == op.operands:
            return None
        return (Op(op.kind, operands, op.results, op.attrs, op.cases, _began(op, began)),)

    return rewrite(graph, rule)


def _began(op: Op, began: dict[Value, Loc | None]) -> Loc | None:
    """Return where an op begins in the source: where the prompt it absorbed began, if it absorbed one."""
    first = op.operands[0] if op.kind == "append" else None
    return began.get(first, op.loc) if isinstance(first, Value) else op.loc


def _adds_text(op: Op) -> bool:
    """Return whether the op is Python's `+` on two texts."""
    return op.kind in ("py.add", "py.iadd") and op.results[0].type == "str" and _is_text(op.operands)


def _absorbed(graph: Graph) -> set[Value]:
    """Return results of appends and concats that their only user absorbs."""
    found = {
        x
        for op in graph.ops()
        if op.kind in ("append", "concat")
        for i, x in enumerate(op.operands)
        if isinstance(x, Value) and _takes_in(op, i, graph.producer.get(x))
    }
    if not found:
        return found
    uses = Counter(v for op in graph.ops() for v in op.uses if v in found)
    return {v for v in found if uses[v] == 1}


def _takes_in(op: Op, i: int, producer: Op | None) -> bool:
    """Return whether an append or a concat can absorb the producer of its operand `i`."""
    if producer is None:
        return False
    same_prompt = op.kind == "append" and i == 0 and producer.kind == "append"
    return same_prompt or producer.kind == "concat"


def _is_text(operands: Sequence[Operand]) -> bool:
    return all(x.type == "str" if isinstance(x, Value) else isinstance(x, str) for x in operands)


def _flat(op: Op, inside: dict[Value, tuple[Operand, ...]]) -> list[Operand]:
    flat: list[Operand] = []
    for x in op.operands:
        flat.extend(inside.get(x, (x,)) if isinstance(x, Value) else (x,))
    return flat


def _joined(operands: Sequence[Operand]) -> tuple[Operand, ...]:
    """Return operands with adjacent strings joined and empty ones dropped."""
    joined: list[Operand] = []
    for x in operands:
        if isinstance(x, str):
            if joined and isinstance(joined[-1], str):
                joined[-1] += x
                continue
            if not x:
                continue
        joined.append(x)
    return tuple(joined)


def _trivial(op: Op, operands: tuple[Operand, ...]) -> Operand | None:
    """Return the replacement of an op without effect: an append of nothing, a concat of one text or of none."""
    if op.kind == "append":
        return operands[0] if len(operands) == 1 else None
    if not operands:
        return ""
    return operands[0] if len(operands) == 1 and _is_text(operands) else None
