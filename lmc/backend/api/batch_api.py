"""What a server's batches are to lmc, whatever its protocol: how they are submitted, found, looked at, and what becomes of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lmc.backend.api.client import Body, Fault, Received, Request

FULL = "token_limit_exceeded"
"""The code of a batch for which the server has no room now."""

Item = Received | Fault
"""What became of one request of a batch."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a batch stands: requests that are done, of all, and whether there is nothing to come."""

    done: int
    total: int
    over: bool


class BatchApi(Protocol):
    """A server's batches. Raises Fault.

    most  requests of one batch;  size: bytes of one
    """

    most: int
    size: int

    def sent(self, request: Request) -> Request:
        """A request as it is sent in a batch: those of equal paths may be in one. Raises Fault for one that no batch takes."""
        ...

    def mends(self, request: Request, fault: Fault) -> bool:
        """Whether a request that was refused is sent otherwise from now on."""
        ...

    async def submit(self, path: str, items: Sequence[tuple[str, Body]], wave: str) -> str:
        """Submit a batch; its id. `items`: ids of requests, which end with the wave's, and their bodies."""
        ...

    async def find(self, wave: str, size: int, since: float) -> str | Literal["later"] | None:
        """The batch of so many requests that was submitted for a wave since a time (seconds since 1970), if there is one; "later": that is not to be told yet."""
        ...

    async def status(self, batch: str) -> Status:
        """How a batch stands. Raises Fault for one that failed as a whole; of the status 429 if it may be submitted again later."""
        ...

    async def results(self, batch: str) -> Mapping[str, Item]:
        """What became of the requests of a batch that is over. Those that are not in it have expired, or were cancelled."""
        ...

    async def cancel(self, batch: str) -> None: ...


class Expired(Fault):
    """A request that its batch has not come to."""


class GivenUp(Fault):
    """A batch that could not be submitted, or looked at, for so long that trying again is of no use."""

    @property
    def transient(self) -> bool:
        return False


def given_up(fault: Fault) -> Fault:
    """A fault with which a batch, or whoever waits for it, is given up."""
    return fault if not fault.transient else GivenUp(fault.message, status=fault.status, code=fault.code)
