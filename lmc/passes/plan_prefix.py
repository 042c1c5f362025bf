"""Prefix planning: which ctx values to prefill once, pin, and for how long. Decides; does not execute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.core import Graph
from lmc.passes.manager import Pass, PassContext, register


@register
@dataclass(frozen=True)
class PlanPrefix(Pass):
    """Prefills what several gens share, and releases it after its last use on each path."""

    name: ClassVar[str] = "plan-prefix"
    min_chars: int = 16

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return graph
