"""Prompt caches: of requests that begin alike the first goes ahead; the others follow when the server has read what they share.

A server that caches prompts can use one only when it has read it, so siblings that go out together each pay for all of it:

    first     ─► sent ───► begins to answer ───► …       reads the prefix
    siblings     held ─────────┴─► sent ───► …           find it cached

Prompts are compared by blocks: one is held while the longest beginning of it that is known is on its way. Whoever is ahead
waits for nobody, so nothing waits in a circle; when it fails or is cancelled, the next one is the first.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b

BLOCK = 4096
"""Bytes that are compared together: about 1,024 tokens of English, the least that OpenAI caches."""

_BLOCKS = 256  # of one prompt that are looked at
_LIFE = 300.0  # seconds after which a beginning that nobody asks for counts as forgotten: servers say five to ten minutes
_LONGEST = 10.0  # seconds that a request is held at most: prompts are read in less, but some models think before their first word
_KNOWN = 1 << 14  # beginnings that are remembered


class Turn:
    """A request that may go. `first`: others may be held because of it until it has `begun` to be answered."""

    __slots__ = ("_firsts", "_keys", "_life", "_own")

    def __init__(self, firsts: Firsts, keys: Sequence[bytes], own: Mapping[bytes, asyncio.Future[None]], life: float) -> None:
        self._firsts, self._keys, self._own, self._life = firsts, tuple(keys), own, life  # own: those that it is the first with

    @property
    def first(self) -> bool:
        return bool(self._own)

    def begun(self) -> None:
        """The server has read the prompt. Whoever else is ahead with a part of it, and perhaps stuck, holds nobody any more."""
        self._firsts.known(self._keys, self._life)
        self._keys = ()
        self.over()

    def over(self) -> None:
        """Nobody is held because of it any more."""
        self._firsts.left(self._own)
        self._own = {}


class Firsts:
    """Who goes ahead. Belongs to one event loop. `held`: requests that were held so far."""

    def __init__(self) -> None:
        self.held = 0
        self._known: OrderedDict[bytes, float] = OrderedDict()  # beginnings that a server has read, and until when that counts
        self._ahead: dict[bytes, asyncio.Future[None]] = {}  # beginnings that are on their way
        self.clock: Callable[[], float] = time.monotonic

    @asynccontextmanager
    async def turn(self, prompt: str) -> AsyncIterator[Turn]:
        """Waits until a request with this prompt may go."""
        keys = _beginnings(prompt)
        async with self.writing(keys, lambda: keys, _LIFE) as turn:
            yield turn

    @asynccontextmanager
    async def writing(self, keys: Sequence[bytes], writes: Callable[[], Sequence[bytes]], life: float) -> AsyncIterator[Turn]:
        """Waits while a beginning with one of these keys is on its way; then `writes` says which of them the server will have read.

        life  seconds for which it keeps them
        """
        clock = asyncio.get_running_loop().time
        until, waited = clock() + _LONGEST, False
        while (ahead := self._before(keys)) is not None and clock() < until:
            waited = True
            await asyncio.wait([ahead], timeout=until - clock())
        self.held += waited
        turn = self._begin(keys, writes(), life)
        try:
            yield turn
        finally:
            turn.over()

    def known(self, keys: Sequence[bytes], life: float = _LIFE) -> None:
        until = self.clock() + life
        for key in keys:
            self._known[key] = max(until, self._known.get(key, until))
            self._known.move_to_end(key)
            if (ahead := self._ahead.pop(key, None)) is not None:
                ahead.set_result(None)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def forget(self, keys: Sequence[bytes]) -> None:
        """The server has not kept them."""
        for key in keys:
            self._known.pop(key, None)

    def left(self, own: Mapping[bytes, asyncio.Future[None]]) -> None:
        for key, future in own.items():
            if self._ahead.get(key) is future:
                del self._ahead[key]
                future.set_result(None)

    def _before(self, keys: Sequence[bytes]) -> asyncio.Future[None] | None:
        """What to wait for: the request that has the longest beginning of these on its way, unless a longer one is known."""
        for key in reversed(keys):
            if key in self._ahead:
                return self._ahead[key]
            if self.is_known(key):
                return None
        return None

    def _begin(self, keys: Sequence[bytes], writes: Sequence[bytes], life: float) -> Turn:
        self.known([key for key in keys if self.is_known(key)], life)  # asked for again
        new = [key for key in writes if not self.is_known(key)]
        own = {key: asyncio.get_running_loop().create_future() for key in new if key not in self._ahead}
        self._ahead |= own
        return Turn(self, new, own, life)

    def is_known(self, key: bytes) -> bool:
        """Whether a server that read it still has it."""
        until = self._known.get(key)
        return until is not None and until > self.clock()


def _beginnings(prompt: str) -> list[bytes]:
    """A key for each whole number of blocks that a prompt begins with; equal keys, equal beginnings."""
    if len(prompt) * 4 < BLOCK:
        return []
    data = prompt.encode("utf-8", "surrogatepass")
    found: list[bytes] = []
    sofar = blake2b(digest_size=16)
    for at in range(0, min(len(data) // BLOCK, _BLOCKS) * BLOCK, BLOCK):
        sofar.update(data[at : at + BLOCK])
        found.append(sofar.digest())
    return found
