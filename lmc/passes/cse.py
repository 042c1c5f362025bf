"""Common subexpressions: a pure op that an op before it on the same path equals is replaced by that one.

Results must not depend on which of two equal ops computed them, so only `pure` ops are merged: two equal
`json.loads` are two lists. An op that can raise may be merged: had it raised, the second would never run.
Sampling ops are never merged here, not even at temperature 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.analysis import dominance
from lmc.ir.builder import Rewriter, rewrite
from lmc.ir.core import Graph, Op, exact
from lmc.ir.ops import trait
from lmc.passes.manager import Pass, PassContext, register


@register
@dataclass(frozen=True)
class Cse(Pass):
    """Merges equal pure ops along each path."""

    name: ClassVar[str] = "cse"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        dominates = dominance(graph)
        seen: dict[object, list[tuple[str, Op]]] = {}

        def rule(op: Op, rewriter: Rewriter) -> Sequence[Op] | None:
            if not op.results or trait(op) != "pure":
                return None
            known = seen.setdefault(_key(op), [])
            for label, before in known:
                if dominates(label, rewriter.label):
                    for old, new in zip(op.results, before.results, strict=True):
                        rewriter.replace(old, new)
                    ctx.count("merged")
                    return ()
            known.append((rewriter.label, op))
            return None

        return rewrite(graph, rule)


def _key(op: Op) -> object:
    attrs = tuple(sorted((name, exact(value)) for name, value in op.attrs.items()))
    return op.kind, exact(op.operands), attrs, tuple(v.type for v in op.results)
