"""A compiled program as those see it that describe it: explanations, costs, saved files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from lmc.backend.base import Backend
from lmc.backend.usage import Counters
from lmc.frontend.interpreter import Function
from lmc.ir.core import Graph
from lmc.passes.base import Target
from lmc.runahead.ledger import AheadPolicy
from lmc.runahead.planning import Planner
from lmc.runahead.profile import Profile


@dataclass
class Stats:
    """Counters of a program so far.

    counters  the backend's work during the last call or batch
    note      in which way that differs from what its answers say of themselves; "" if it does not
    """

    runs: int = 0
    run_seconds: float = 0.0
    counters: Counters = field(default_factory=Counters)
    note: str = ""


class CompiledProgram(Protocol):
    """The part of `lmc.Program` that they read."""

    function: Function[..., Any]
    backend: Backend | None
    opt: int
    aggressive: bool
    outputs: tuple[str, ...] | None
    ahead: AheadPolicy
    stats: Stats
    profile: Profile
    planner: Planner

    @property
    def target(self) -> Target: ...

    def graph(self) -> Graph: ...
