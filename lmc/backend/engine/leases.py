"""Memory that program runs keep in the pool: open runs, and their leases on prefixes."""

from __future__ import annotations

from collections.abc import Hashable

from lmc.backend.base import ProgramRun
from lmc.backend.engine.forecast import Peaks
from lmc.backend.engine.radix_cache import Node


class Lease:
    """KV that a run will use again, up to and including `node`, which it locks.

    own     tokens of it that the run added
    until   when its time is well over
    wanted  requests of the run that wait to extend it
    copy    while parked: its end on the host, locked there;  coming: it is being copied back
    space   of the radix tree
    """

    __slots__ = ("coming", "copy", "node", "own", "place", "run", "since", "space", "until", "wanted")

    def __init__(self, run: OpenRun, node: Node, own: int, place: Hashable, space: str, since: float, until: float) -> None:
        self.run, self.node, self.own, self.place, self.space = run, node, own, place, space
        self.copy: Node | None = None
        self.coming = False
        self.since, self.until, self.wanted = since, until, 0


class OpenRun:
    """A run that has requests here, or leases.

    seniority  of its first request
    requests   that wait or run; `running`: those with slots
    lapsed     its last expired lease, until it returns after all
    parked     leases that lock nothing: the host tier has their prefixes; `away`: tokens of these that the run added
    held       its leased slots, and those held or reserved by its running requests; `peak`: the most so far
    places     places of its requests
    first      slots that its first request needed
    expected   its expected peak; `growth`: the part of that it does not hold yet, while it is open
    peaks      of earlier runs, the basis of the estimate; None: there are none
    """

    __slots__ = (
        "away",
        "batch",
        "ended",
        "expected",
        "first",
        "growth",
        "held",
        "lapsed",
        "leases",
        "number",
        "parked",
        "peak",
        "peaks",
        "places",
        "program",
        "requests",
        "running",
        "seniority",
        "was_open",
    )

    def __init__(self, source: ProgramRun, seniority: tuple[bool, tuple[int, ...], int]) -> None:
        self.number, self.program, self.batch = source.number, source.program, source.batch
        self.seniority = seniority
        self.requests = self.running = self.held = self.peak = self.expected = self.growth = self.away = self.first = 0
        self.leases: dict[Node, Lease] = {}
        self.parked: dict[Node, Lease] = {}
        self.places: dict[Hashable, None] = {}
        self.lapsed: Lease | None = None
        self.peaks: Peaks | None = None
        self.ended = self.was_open = False

    @property
    def is_open(self) -> bool:
        return self.running > 0 or bool(self.leases) or bool(self.parked)
