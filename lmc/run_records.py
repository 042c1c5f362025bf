"""Runs as records: what a run, its requests and its calls were, and when, for reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lmc.backend.base import Backend, answering
from lmc.backend.results import Result
from lmc.backend.usage import Usage
from lmc.errors import Loc
from lmc.frontend.emitter import flat
from lmc.segments import Gen, Select

if TYPE_CHECKING:
    from lmc.frontend.streaming import StateView
    from lmc.runahead.records import Record


@dataclass(frozen=True)
class RequestRecord:
    """A request of a run.

    backend the one that answers it
    branch  the path of the fork that made it, "" for the program itself
    asked   when the program made it: later than `result.began` if it was made ahead
    known   when its whole prompt was known: later than `result.began` if submitted before the preceding answer
    """

    ask: Gen | Select
    backend: Backend
    branch: str
    result: Result
    ahead: str
    asked: float
    known: float

    @property
    def kind(self) -> str:
        return "gen" if isinstance(self.ask, Gen) else "select"

    @property
    def name(self) -> str:
        return self.ask.name or self.kind

    @property
    def loc(self) -> Loc | None:
        return self.ask.loc

    @property
    def usage(self) -> Usage:
        return self.result.usage or Usage()

    @property
    def cost(self) -> float | None:
        """Return its cost by the prices of its backend, None if that has none."""
        prices = self.backend.capabilities.prices
        return None if prices is None else prices.of(self.usage)

    @property
    def ended(self) -> float | None:
        return self.result.ended or None

    @property
    def seconds(self) -> float:
        """Return the time from its prompt being known to its answer; 0 while there is none."""
        return max(0.0, (self.ended or self.known) - self.known)


@dataclass(frozen=True)
class RunRecord:
    """A run: when it began and, once it is over, ended, by `time.perf_counter()`, its requests, and its calls of host functions."""

    began: float
    ended: float | None
    requests: Sequence[RequestRecord]
    tools: Sequence[tuple[str, float, float]] = ()

    @property
    def end(self) -> float:
        """Return when its last known event happened."""
        return max([self.began, self.ended or 0.0, *(r.ended or r.result.began for r in self.requests)])


class _OnBackend(Protocol):
    @property
    def backend(self) -> Backend: ...


class EndedRun(Protocol):
    """A compiled run as it is kept for reports: its ledger (lmc/runahead/ledger.py)."""

    began: float
    ended: float
    stream: str
    made_ahead: int
    used: int
    wasted: int
    wasted_tokens: int

    @property
    def run(self) -> _OnBackend: ...

    @property
    def records(self) -> Sequence[Record]: ...

    @property
    def host_calls(self) -> Sequence[tuple[str, float, float]]: ...


def of_ledger(ledger: EndedRun) -> RunRecord:
    """Return a compiled run."""
    asked = ((r.ask, r.address[2], r.result, r.ahead, r.asked) for r in tuple(ledger.records))
    return RunRecord(ledger.began, ledger.ended or None, _requests(asked, ledger.stream, ledger.run.backend), tuple(ledger.host_calls))


def of_state(state: StateView) -> RunRecord:
    """Return the run of a state; of an interpreted one without its calls of host functions."""
    run: Any = getattr(state.emitter, "run", None)
    if run is None:  # a state of no run has asked nothing
        return RunRecord(0.0, None, ())
    if run.ledger is not None and run.ledger.records:
        return of_ledger(run.ledger)
    results = sorted(dict.fromkeys(flat(state.asked)), key=lambda result: result.began)
    found = _requests(map(_interpreted, results), state.stream, run.backend)
    return RunRecord(min([r.result.began for r in found], default=0.0), None, found)


_RequestParts = tuple[Gen | Select, str, Result, str, float]
"""Request, fork path, answer, whether it was made ahead, and when the program made it."""


def _interpreted(result: Result) -> _RequestParts:
    assert result.asked is not None, "a state lists what its program asked"
    ask, stream = result.asked
    return ask, stream, result, "no", result.began


def _requests(asked: Iterable[_RequestParts], root: str, backend: Backend) -> list[RequestRecord]:
    """Return the requests of a run on a backend whose program has the fork path `root`."""
    found: list[RequestRecord] = []
    latest: dict[str, float] = {}  # arrival of the answer that each branch requested last
    for ask, stream, result, ahead, at in asked:
        branch = stream.removeprefix(root).strip("/")
        began, ended = result.began, result.ended
        known = max(began, latest.get(branch, latest.get(branch.rpartition("/")[0], 0.0)))
        found.append(RequestRecord(ask, answering(backend, ask), branch, result, ahead, at, min(known, ended) if ended else known))
        if ahead != "wasted":
            latest[branch] = max(ended, latest.get(branch, 0.0))
    return found
