"""The requests of a run as they are kept for reports, and the addresses of requests."""

from __future__ import annotations

from typing import NamedTuple

from lmc.backend.results import Result
from lmc.errors import Loc
from lmc.segments import Gen, Select

Address = tuple[int, int, str, int]
"""Address of a request: the run's seed, its number in its batch, the fork path, the request's number on that path."""
GraphAddress = tuple[str, int]
"""Address of a request in the program's graph: the fork path from the root state, the request's number on that path."""


class Record(NamedTuple):
    """A request of a run, for reports: where it was made, whether it was made ahead ("no", "used", "wasted"), and when
    the program made it, by `time.perf_counter()`."""

    address: Address
    ask: Gen | Select
    result: Result
    ahead: str
    asked: float = 0.0

    @property
    def kind(self) -> str:
        return "gen" if isinstance(self.ask, Gen) else "select"

    @property
    def name(self) -> str | None:
        return self.ask.name

    @property
    def loc(self) -> Loc | None:
        return self.ask.loc
