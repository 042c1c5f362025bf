"""Planning: the graph of a program through the passes of a target, to annotations of the addresses of requests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from lmc.backend.base import Backend
from lmc.backend.pins import Pins
from lmc.chat import CHATML, ChatTemplate
from lmc.config import default_backend, has_default_backend, log
from lmc.errors import LmcError
from lmc.frontend.capture.operations import interrupts
from lmc.frontend.interpreter import Function
from lmc.frontend.tracing import graph_of
from lmc.ir.core import Graph
from lmc.passes.aggressive import Aggressive, Place
from lmc.passes.base import Pass, Target
from lmc.passes.manager import PassManager, Planned, pipeline_for
from lmc.runahead.annotations import Annotations, annotate
from lmc.runahead.moving import Move

_log = logging.getLogger("lmc.ahead")


class Planner:
    """Plans one program, with the options it was compiled with (`lmc.compile`)."""

    def __init__(self, fn: Function, outputs: tuple[str, ...] | None, opt: int, aggressive: bool) -> None:
        self.function, self.outputs, self.opt, self.aggressive = fn, outputs, opt, aggressive
        self.pins = Pins()
        self._lock = threading.RLock()
        self._graph: Graph | None = None
        self._annotations: dict[tuple[str, int, bool], Annotations] = {}
        self._templates: list[ChatTemplate] = []

    def graph(self) -> Graph:
        """Return the program's graph: as traced last, or before any run, with unknown arguments."""
        with self._lock:
            if self._graph is None:
                self._graph = graph_of(self.function)
            return self._graph

    def lower(self, examples: Mapping[str, Any]) -> None:
        """Trace the graph for these arguments."""
        with self._lock:
            self.adopt(graph_of(self.function, **examples))

    def adopt(self, graph: Graph) -> None:
        """Continue from a graph that was saved, or edited."""
        with self._lock:
            self._graph = graph
            self._annotations.clear()

    def known(self, backend: Backend, greedy: bool) -> Annotations | None:
        """Return the annotations made already, or make them now if the first run needs them: on a backend of this
        process, on servers that share request prefixes, on an API where one request answers several, or for options of
        the plan that the user set. None: they may be made while a run waits for answers."""
        able = backend.capabilities
        if able.local or able.plans or able.lookahead or self.aggressive or self.outputs is not None:
            return self.annotations(backend, greedy)
        return self._annotations.get((able.name, id(backend.chat_template), greedy))

    def prepare(self, backend: Backend, greedy: bool) -> None:
        """Make `annotations`, unless another thread does."""
        if self._lock.acquire(blocking=False):
            try:
                self.annotations(backend, greedy)
            finally:
                self._lock.release()

    def annotations(self, backend: Backend, greedy: bool) -> Annotations:
        """Return the plan's annotations of request addresses for a backend. A program that cannot be traced or planned has none."""
        template = backend.chat_template
        key = (backend.capabilities.name, id(template), greedy)
        found = self._annotations.get(key)
        if found is None:
            with self._lock:
                if (found := self._annotations.get(key)) is not None:  # made meanwhile
                    return found
                found = Annotations()
                try:
                    target = target_of(backend, greedy)
                    found = annotate(self.planned(self.graph(), target).graph, self._moves(target), target.measure)
                except LmcError as error:  # such as a role that the template lacks: raised when the program gets there
                    log("ahead", f"{self.function.name} runs without a plan: {error}")
                except Exception as fault:
                    if interrupts(fault):
                        raise
                    self.fault(fault)
                self._annotations[key] = found
                self._templates.append(template)  # so that its id stays its own
        return found

    def fault(self, error: Exception) -> None:
        """Log a plan that failed by a bug in lmc."""
        _log.warning("a bug in lmc, which costs only time: %s runs without a plan; please report it", self.function.name, exc_info=error)

    def _moves(self, target: Target) -> Mapping[Place, Move]:
        """Return the moves of the aggressive pass, if it is in the pipeline."""
        passes = self.pipeline(target)
        for at, rewrite in enumerate(passes):
            if isinstance(rewrite, Aggressive):
                before = PassManager(passes[:at]).plan(self.graph(), target).graph
                return {place: Move.of(*pieces) for place, pieces in rewrite.moves(before).items()}
        return {}

    def pipeline(self, target: Target) -> tuple[Pass, ...]:
        return pipeline_for(target, opt=self.opt, outputs=self.outputs, aggressive=self.aggressive)

    def planned(self, graph: Graph, target: Target) -> Planned:
        """Return a graph after the pipeline."""
        return PassManager(self.pipeline(target)).plan(graph, target)


def target_of(backend: Backend | None, greedy: bool = False) -> Target:
    """Return the target of a program that runs on a backend; None: on the default one, if there is one."""
    if backend is None and has_default_backend():
        backend = default_backend()
    if backend is None:
        return Target("tokens", CHATML, greedy)
    able = backend.capabilities
    kind = "chat" if not able.raw_text else "text" if able.lookahead else "tokens"
    tokens: Callable[[str], int] | None = getattr(backend, "count_tokens", None)
    return Target(kind, backend.chat_template, greedy, tokens)
