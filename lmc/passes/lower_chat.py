"""Roles to text: `role.begin` and `role.end` become appends of the target's chat template, with marks at the content's edges.

For message APIs the template is empty, and the marks alone say where messages begin and end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.builder import Rewriter, rewrite
from lmc.ir.core import Graph, Op
from lmc.passes.manager import Pass, PassContext, register
from lmc.prompt import Mark


@register
@dataclass(frozen=True)
class LowerChat(Pass):
    """Lowers roles by the target's chat template."""

    name: ClassVar[str] = "lower-chat"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        template = ctx.target.template

        def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
            if op.kind == "role.begin":
                role: str = op.attrs["role"]  # pyright: ignore[reportAssignmentType]
                parts = (*template.begin(role, op.attr("previous")), Mark(role, "begin"))
            elif op.kind == "role.end":
                role: str = op.attrs["role"]  # pyright: ignore[reportAssignmentType]
                parts = (Mark(role, "end"), *template.end(role))
            else:
                return None
            ctx.count("roles lowered")
            return (Op("append", (*op.operands, *parts), op.results, {}, (), op.loc),)

        return rewrite(graph, rule)
