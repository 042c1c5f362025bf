"""Memory that program runs keep in the pool: open runs, and their leases on prefixes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from lmc.backend.engine.forecast import Peaks
from lmc.backend.engine.radix_cache import Node


@dataclass(eq=False, slots=True)
class Lease:
    """KV that a run will use again, up to and including `node`, which it locks."""

    run: OpenRun
    node: Node
    own: int  # tokens of it that the run added
    place: Hashable
    space: str  # of the radix tree
    since: float
    until: float  # when its time is well over
    wanted: int = 0  # requests of the run that wait to extend it
    copy: Node | None = None  # while parked: its end on the host, locked there
    coming: bool = False  # it is being copied back


@dataclass(eq=False, slots=True)
class OpenRun:
    """A run that has requests here, or leases."""

    number: int
    program: Hashable
    batch: Hashable
    seniority: tuple[bool, tuple[int, ...], int]  # of its first request
    requests: int = 0  # that wait or run
    running: int = 0  # those with slots
    leases: dict[Node, Lease] = field(default_factory=dict)
    parked: dict[Node, Lease] = field(default_factory=dict)  # that lock nothing: the host tier has their prefixes
    lapsed: Lease | None = None  # its last expired lease, until it returns after all
    held: int = 0  # its leased slots, and those held or reserved by its running requests
    peak: int = 0  # the most so far
    away: int = 0  # tokens of parked leases that the run added
    places: dict[Hashable, None] = field(default_factory=dict)  # of its requests
    first: int = 0  # slots that its first request needed
    expected: int = 0  # its expected peak
    growth: int = 0  # the part of that it does not hold yet, while it is open
    peaks: Peaks | None = None  # of earlier runs, the basis of the estimate; None: there are none
    ended: bool = False
    was_open: bool = False

    @property
    def is_open(self) -> bool:
        return self.running > 0 or bool(self.leases) or bool(self.parked)
