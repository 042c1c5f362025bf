"""Planning: trees, and paths that are new in them, through the passes of a target to code that the executor runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from lmc.backend.base import Backend
from lmc.backend.code import Code
from lmc.backend.pins import Pins
from lmc.ir.core import Graph
from lmc.jit.notices import Stats
from lmc.jit.traced import Plan, Traced
from lmc.passes.manager import Pass, PassManager, Planned, Target, pipeline_for


class Planner:
    """Plans one program, with the options it was compiled with (`lmc.compile`)."""

    def __init__(self, outputs: tuple[str, ...] | None, opt: int, aggressive: bool, stats: Stats, lock: threading.RLock) -> None:
        self.outputs, self.opt, self.aggressive = outputs, opt, aggressive
        self._stats, self._lock = stats, lock
        self.pins = Pins()

    def plan(self, traced: Traced, backend: Backend, greedy: bool) -> Plan:
        """The tree compiled for a backend and a default temperature; again once it has grown by half and runs take its paths again.

        Until then the paths that were traced since are planned one by one, each where it was linked.
        """
        template = backend.chat_template
        key = (_kind(backend), id(template), greedy)
        plan = traced.plans.get(key)
        if plan is None or (traced.tree.size > 1.5 * plan.size + 8 and traced.growth.served > plan.served):
            with self._lock:
                target = target_of(backend, greedy)
                code, planned = self.compile(traced.tree.graph(), target)
                plan = traced.plans[key] = Plan(target, code, traced.tree.size, traced.growth.served, planned.stats, planned.notes)
        return plan

    def compile(self, graph: Graph, target: Target, bound: Sequence[Any] | None = None, first: int = 0) -> tuple[Code, Planned]:
        """The code of a graph; of a path, with the operands `bound` of the exit that it is linked to and slots from `first` on."""
        start = time.perf_counter()
        planned = self.planned(graph, target)
        code = Code(planned.graph, strict=self.opt == 0, bound=bound, first=first, pins=self.pins)
        self._stats.plan_seconds += time.perf_counter() - start
        return code, planned

    def planned(self, graph: Graph, target: Target) -> Planned:
        """A graph after the pipeline."""
        return PassManager(self.pipeline(target)).plan(graph, target)

    def pipeline(self, target: Target) -> tuple[Pass, ...]:
        return pipeline_for(target, opt=self.opt, outputs=self.outputs, aggressive=self.aggressive)


def target_of(backend: Backend, greedy: bool = False) -> Target:
    """What a program is compiled for that runs on a backend."""
    return Target(_kind(backend), backend.chat_template, greedy, _tokens(backend))


def _kind(backend: Backend) -> str:
    """The kind of target that a backend is."""
    able = backend.capabilities
    return "chat" if not able.raw_text else "text" if able.lookahead else "tokens"


def _tokens(backend: Backend) -> Callable[[str], int] | None:
    """How many tokens of the backend's a text is, where it has a tokenizer here."""
    return getattr(backend, "count_tokens", None)
