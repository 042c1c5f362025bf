"""Prompt cache warm-up: of requests with a common prefix the first goes ahead; the others follow when the server has
read the prefix.

A server can only reuse a prompt after reading it, so siblings sent together each pay for all of it:

    first     ─► sent ───► begins to answer ───► …       reads the prefix
    siblings     held ─────────┴─► sent ───► …           find it cached

Prompts are compared by blocks: one is held while its longest known prefix is in flight. The leader never waits, so
there is no deadlock; when it fails or is cancelled, the next one leads.
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

_BLOCKS = 256  # of one prompt that are compared
_LIFE = 300.0  # seconds after which an unused prefix counts as evicted: servers document five to ten minutes
_LONGEST = 10.0  # seconds that a request is held at most: prompts are read faster, but some models think first
_KNOWN = 1 << 14  # remembered prefixes


class WarmupTurn:
    """A request that may go. `first`: others may be held for it until its answer has `begun`."""

    __slots__ = ("_keys", "_life", "_own", "_warmup")

    def __init__(self, warmup: CacheWarmup, keys: Sequence[bytes], own: Mapping[bytes, asyncio.Future[None]], life: float) -> None:
        self._warmup, self._keys, self._own, self._life = warmup, tuple(keys), own, life  # own: prefixes that it leads

    @property
    def first(self) -> bool:
        return bool(self._own)

    def begun(self) -> None:
        """Record that the server has read the prompt. Requests that lead a part of it, perhaps stuck, hold nothing any
        longer."""
        self._warmup.known(self._keys, self._life)
        self._keys = ()
        self.over()

    def over(self) -> None:
        """Stop holding others for it."""
        self._warmup.left(self._own)
        self._own = {}


class CacheWarmup:
    """Chooses leading requests. Belongs to one event loop. `held`: number of requests held so far; `longest`: hold of one in seconds."""

    def __init__(self, longest: float = _LONGEST) -> None:
        self.held, self._longest = 0, longest
        self._known: OrderedDict[bytes, float] = OrderedDict()  # prefixes that a server has read, with their expiry
        self._ahead: dict[bytes, asyncio.Future[None]] = {}  # prefixes in flight
        self.clock: Callable[[], float] = time.monotonic

    @asynccontextmanager
    async def turn(self, prompt: str) -> AsyncIterator[WarmupTurn]:
        """Wait until a request with this prompt may go."""
        keys = _beginnings(prompt)
        async with self.writing(keys, lambda: keys) as turn:
            yield turn

    @asynccontextmanager
    async def writing(self, keys: Sequence[bytes], writes: Callable[[], Sequence[bytes]], life: float = _LIFE) -> AsyncIterator[WarmupTurn]:
        """Wait while a prefix with one of these keys is in flight; then `writes` tells which of them the server will
        have read.

        life  seconds for which it keeps them
        """
        clock = asyncio.get_running_loop().time
        until, waited = clock() + self._longest, False
        while (ahead := self._before(keys)) is not None and clock() < until:
            self.held += not waited
            waited = True
            await asyncio.wait([ahead], timeout=until - clock())
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
        """Forget prefixes that the server has not kept."""
        for key in keys:
            self._known.pop(key, None)

    def left(self, own: Mapping[bytes, asyncio.Future[None]]) -> None:
        for key, future in own.items():
            if self._ahead.get(key) is future:
                del self._ahead[key]
                future.set_result(None)

    def _before(self, keys: Sequence[bytes]) -> asyncio.Future[None] | None:
        """Return what to wait for: the request with the longest of these prefixes in flight, unless a longer one is
        known."""
        for key in reversed(keys):
            if key in self._ahead:
                return self._ahead[key]
            if self.is_known(key):
                return None
        return None

    def _begin(self, keys: Sequence[bytes], writes: Sequence[bytes], life: float) -> WarmupTurn:
        self.known([key for key in keys if self.is_known(key)], life)  # used again
        new = [key for key in writes if not self.is_known(key)]
        own = {key: asyncio.get_running_loop().create_future() for key in new if key not in self._ahead}
        self._ahead |= own
        return WarmupTurn(self, new, own, life)

    def is_known(self, key: bytes) -> bool:
        """Return whether the server still has a prefix that it read."""
        until = self._known.get(key)
        return until is not None and until > self.clock()


NO_TURN = WarmupTurn(CacheWarmup(), (), {}, _LIFE)
"""That of a request for which none is held."""


def _beginnings(prompt: str) -> list[bytes]:
    """Return a key for each whole number of blocks that a prompt begins with; equal keys, equal prefixes."""
    if len(prompt) * 4 < BLOCK:
        return []
    data = prompt.encode("utf-8", "surrogatepass")
    found: list[bytes] = []
    sofar = blake2b(digest_size=16)
    for at in range(0, min(len(data) // BLOCK, _BLOCKS) * BLOCK, BLOCK):
        sofar.update(data[at : at + BLOCK])
        found.append(sofar.digest())
    return found
