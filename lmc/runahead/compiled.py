"""A compiled program as those see it that describe it: explanations, costs, saved files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from lmc.backend.base import Backend
from lmc.backend.deferred import is_asked
from lmc.backend.usage import NO_USAGE, Counters, Usage
from lmc.frontend.interpreter import Function
from lmc.ir.core import Graph
from lmc.passes.base import Target
from lmc.run_records import EndedRun
from lmc.runahead.ledger import AheadPolicy
from lmc.runahead.planning import Planner
from lmc.runahead.profile import Profile
from lmc.waiting import in_event_loop


@dataclass
class Stats:
    """Counters of a program so far.

    counters  the backend's work during the last call or batch; of a call that returned before its answers, what those
              say of themselves
    note      in which way the backend's work differs from what its answers say of themselves; "" if it does not
    span      begin and end of that call, by `time.perf_counter()`
    late      whether it returned before its answers
    """

    runs: int = 0
    run_seconds: float = 0.0
    counters: Counters = field(default_factory=Counters)
    note: str = ""
    span: tuple[float, float] = field(default=(0.0, 0.0), repr=False)
    late: bool = field(default=False, repr=False)

    def completed(self, runs: Iterable[EndedRun]) -> Stats:
        """Return them with the answers that have arrived since, of runs that have ended."""
        began, ended = self.span
        records = [record for run in tuple(runs) if run.began >= began for record in tuple(run.records)]
        if not any(record.result.ended > ended for record in records if record.ahead != "wasted"):
            return self
        u = Usage.sum(result.usage or NO_USAGE for result in {record.result for record in records})  # of merged requests it is one
        computed = u.prompt_tokens - u.cached_tokens
        counters = Counters(
            calls=u.calls, prompt_tokens=u.prompt_tokens, cached_tokens=u.cached_tokens, prefilled_tokens=computed, unique_tokens=computed,
            generated_tokens=u.completion_tokens, forced_tokens=u.forced_tokens, passes=u.passes, drafted_tokens=u.drafted_tokens,
            accepted_tokens=u.accepted_tokens,
        )  # fmt: skip
        return replace(self, counters=counters, note="", late=True)


def wait_for(runs: Iterable[EndedRun]) -> None:
    """Wait for the answers of runs that have ended; on a thread whose event loop runs, which waiting would block, for none."""
    if in_event_loop():
        return
    for run in tuple(runs):
        for record in tuple(run.records):
            if is_asked(record.result):
                record.result.wait()


class CompiledProgram(Protocol):
    """The part of `lmc.Program` that they read."""

    function: Function[..., Any]
    backend: Backend | None
    opt: int
    aggressive: bool
    outputs: tuple[str, ...] | None
    ahead: AheadPolicy
    counted: Stats  # without what has arrived since the last call returned
    profile: Profile
    planner: Planner

    @property
    def target(self) -> Target: ...

    def graph(self) -> Graph: ...
