"""Protocol-independent interface of a server's batches: submitting, finding, polling them, and the results of
requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lmc.backend.api.exchange import Body, Fault, HttpRequest, Received

FULL = "token_limit_exceeded"
"""Code of a batch for which the server has no room now."""

Item = Received | Fault
"""Result of one request of a batch."""


@dataclass(frozen=True, slots=True)
class Status:
    """Progress of a batch: completed requests, all requests, and whether it is over."""

    done: int
    total: int
    over: bool


class BatchApi(Protocol):
    """A server's batches. Raises Fault.

    most  requests of one batch;  size: bytes of one
    """

    most: int
    size: int

    def sent(self, request: HttpRequest) -> HttpRequest:
        """Return a request as it is sent in a batch: those of equal paths may share one. Raises Fault for one that no
        batch takes."""
        ...

    def mends(self, request: HttpRequest, fault: Fault) -> bool:
        """Return whether a refused request is sent differently from now on."""
        ...

    async def submit(self, path: str, items: Sequence[tuple[str, Body]], wave: str) -> str:
        """Submit a batch; return its id. `items`: ids of requests, which end with the wave's, and their bodies."""
        ...

    async def find(self, wave: str, size: int, age: float) -> str | Literal["later"] | None:
        """Return the batch of so many requests that was submitted for a wave, at most `age` seconds ago, if there is
        one; "later": not known yet."""
        ...

    async def status(self, batch: str) -> Status:
        """Return the progress of a batch. Raises Fault for one that failed as a whole; with status 429 if it may be
        submitted again later."""
        ...

    async def results(self, batch: str) -> Mapping[str, Item]:
        """Return the results of a batch that is over. Missing requests have expired, or were cancelled."""
        ...

    async def cancel(self, batch: str) -> None: ...


class Expired(Fault):
    """A request that its batch did not process."""


class GivenUp(Fault):
    """A batch that could not be submitted, or polled, for so long that retrying is pointless."""

    @property
    def transient(self) -> bool:
        return False


def given_up(fault: Fault) -> Fault:
    """Return the fault with which a batch, or its waiters, are given up."""
    return fault if not fault.transient else GivenUp(fault.message, status=fault.status, code=fault.code)


@dataclass(slots=True)
class BatchedRequest:
    """A request, as it is sent, and the future of its answer."""

    id: str
    request: HttpRequest
    answer: asyncio.Future[Received]

    def settle(self, items: dict[str, Item], *, old: bool) -> None:
        """Take its answer or fault out of those of a batch that is over; `old`: of an earlier process."""
        item = items.pop(self.id, None)
        if isinstance(item, Received):
            if not self.answer.done():
                self.answer.set_result(item)
            return
        fault = item or Expired("the batch ended before the request was answered", status=408)
        fault.old = old
        self.fail(fault)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
