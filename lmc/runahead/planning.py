"""Planning: the graph of a program through the passes of a target, to annotations of the addresses that runs ask at."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lmc.backend.base import Backend
from lmc.backend.pins import Pins
from lmc.chat import CHATML
from lmc.config import default_backend, has_default_backend
from lmc.frontend.interpreter import Function
from lmc.ir.core import Graph
from lmc.passes.manager import Pass, PassManager, Planned, Target, pipeline_for


class Planner:
    """Plans one program, with the options it was compiled with (`lmc.compile`)."""

    def __init__(self, fn: Function, outputs: tuple[str, ...] | None, opt: int, aggressive: bool) -> None:
        self.function, self.outputs, self.opt, self.aggressive = fn, outputs, opt, aggressive
        self.pins = Pins()
        self._lock = threading.RLock()

    def pipeline(self, target: Target) -> tuple[Pass, ...]:
        return pipeline_for(target, opt=self.opt, outputs=self.outputs, aggressive=self.aggressive)

    def planned(self, graph: Graph, target: Target) -> Planned:
        """A graph after the pipeline."""
        return PassManager(self.pipeline(target)).plan(graph, target)


def target_of(backend: Backend | None, greedy: bool = False) -> Target:
    """What a program is compiled for that runs on a backend; None: on the default one, if there is one."""
    if backend is None and has_default_backend():
        backend = default_backend()
    if backend is None:
        return Target("tokens", CHATML, greedy)
    able = backend.capabilities
    kind = "chat" if not able.raw_text else "text" if able.lookahead else "tokens"
    tokens: Callable[[str], int] | None = getattr(backend, "count_tokens", None)
    return Target(kind, backend.chat_template, greedy, tokens)
