"""Several servers of one model: requests that begin alike go to the same one, unless that one is busier than the others."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b
from typing import Any

from lmc.backend.api.client import Fault, Received, Request, Wire
from lmc.backend.api.place import Place

_DOWN = 5.0  # seconds that a server is left alone after a connection to it failed
_SLACK = 8  # requests that a server may have more than the least busy one

ROUTING = ("x-smg-routing-key", "x-session-id")
"""Headers by which cache-aware routers keep requests together."""


_SAME = 256  # characters that requests begin with to be of one kind


def beginning(place: Place) -> str:
    """The first text of a prompt."""
    text = ""
    for piece in place.pieces():
        text += piece if isinstance(piece, str) else ""
        if len(text) >= _SAME:
            break
    return text[:_SAME]


def key_of(text: str) -> str:
    """What requests have in common that begin alike."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Spread:
    """A wire over several. The preference is rendezvous hashing of the routing key, bounded by load (cf. consistent hashing with
    bounded loads, arXiv 1608.01350)."""

    def __init__(self, wires: Sequence[Wire]) -> None:
        self._wires = tuple(wires)
        self._running = [0] * len(wires)
        self._down = [0.0] * len(wires)  # until when, by time.monotonic()

    async def post(self, request: Request) -> Received:
        index = self._pick(request)
        self._running[index] += 1
        try:
            return await self._wires[index].post(request)
        except Fault as fault:
            self._note(index, fault)
            raise
        finally:
            self._running[index] -= 1

    async def stream(self, request: Request) -> AsyncIterator[Received]:
        index = self._pick(request)
        self._running[index] += 1
        try:
            async for received in self._wires[index].stream(request):
                yield received
        except Fault as fault:
            self._note(index, fault)
            raise
        finally:
            self._running[index] -= 1

    @property
    def secrets(self) -> list[str]:
        return [secret for wire in self._wires for secret in wire.secrets]

    async def close(self) -> None:
        for wire in self._wires:
            await wire.close()

    def _pick(self, request: Request) -> int:
        now = time.monotonic()
        up = [i for i, until in enumerate(self._down) if until <= now] or list(range(len(self._wires)))
        least = min(self._running[i] for i in up)
        key = request.headers.get(ROUTING[0], "")
        return max((i for i in up if self._running[i] <= least + _SLACK), key=lambda i: _rank(key, i))

    def _note(self, index: int, fault: Fault) -> None:
        if fault.status is None:
            self._down[index] = time.monotonic() + _DOWN


def _rank(key: str, index: int) -> Any:
    return blake2b(f"{key}/{index}".encode(), digest_size=8).digest()
