"""Explicit prompt caches (Anthropic's): the prefixes of a prompt that a request marks, so that later ones find them.

    tokens     0 ───────── hit ───────────── last mark ─────────── end of the prompt
    price of   │    read    │      write      │        input        │

Prefixes can end after whole blocks (a system prompt, the parts of messages). A later mark costs the difference between
writing and input for the new part, and saves that between input and reading for each later request, so the value of a
mark depends only on their number: known from the plan (Hints.shared), or estimated from past requests. Marks before the
last one are free; there are four.

Requests that would read a prefix that another one is writing wait for it to begin (cache_warmup.py), so that one writes and
the others read.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations
from typing import Any

from lmc.backend.api.cache_warmup import CacheWarmup, WarmupTurn
from lmc.backend.api.spending import AttemptUsage
from lmc.backend.usage import Usage

Shared = tuple[tuple[int, float], ...]
"""Number of whole messages (-1: all), and the number of later requests that begin with them."""


@dataclass(frozen=True, slots=True)
class CacheRules:
    """A server's rules of its cache.

    minimum      tokens of the shortest prefix that it keeps
    marks        that a request may have; 0: it keeps everything it reads, free of charge
    step         granularity of hits in tokens
    back         blocks before a mark in which it looks for earlier marks
    read, write  prices, as multiples of that of an input token; `write_hour` for a lifetime of an hour
    lives        notation in a mark: for five minutes, for an hour
    """

    minimum: int
    marks: int = 4
    back: int = 20
    read: float = 0.1
    write: float = 1.25
    write_hour: float = 2.0
    step: int = 1
    lives: tuple[str, str] = ("", "1h")

    def worth(self, reads: float, hour: bool = False) -> bool:
        """Return whether writing costs less than later requests save."""
        return reads * (1 - self.read) > (self.write_hour if hour else self.write) - 1


def marked_end(message: dict[str, Any], ttl: str) -> dict[str, Any]:
    """Return a message of a chat completion marked at its end; unchanged if it has no text or picture there. `ttl`:
    lifetime; "": the default."""
    content: Any = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content
    if not isinstance(parts, list) or not parts:
        return message
    control = {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}
    return {**message, "content": [*parts[:-1], {**parts[-1], "cache_control": control}]}


def whole(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of a chat completion as one block, its pictures by their digests and about as long as their
    tokens."""
    content: Any = message.get("content")
    if isinstance(content, list):
        content = [part if part.get("type") == "text" else blake2b(_written(part), digest_size=16).hexdigest().ljust(_IMAGE) for part in content]
    return {"type": "text", "text": json.dumps({**message, "content": content}, ensure_ascii=False, sort_keys=True)}


AUTOMATIC = CacheRules(1024, marks=0, write=1.0, write_hour=1.0, step=128)
"""OpenAI's rules."""


def gemini_rules(model: str, ttl: str) -> CacheRules:
    """Return the rules of one of Google's models: it keeps prefixes by itself, or marked ones, for which it bills the
    hours kept as well as the reading."""
    minimum = 4096 if "pro" in model else 1024
    if ttl == "auto":
        return CacheRules(minimum, marks=0, write=1.0, write_hour=1.0)
    return CacheRules(
        minimum, marks=1, write=1.3, write_hour=4.6, lives=("300s", "3600s")
    )  # 4.50 dollars for a million tokens and an hour, beside 1.25 for reading them


_MINIMA = (
    (4096, ("opus-4-5", "opus-4-6", "opus-4.5", "opus-4.6", "haiku-4")),
    (2048, ("sonnet-4-6", "sonnet-4.6", "haiku-3", "3-haiku", "3-5-haiku")),
)


def rules_of(model: str) -> CacheRules:
    """Return the published rules of one of Anthropic's models; for an unknown model, the most common ones."""
    return CacheRules(next((minimum for minimum, names in _MINIMA if any(name in model for name in names)), 1024))


# -- choosing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """The end of a block where a prefix may be marked: the block's index, tokens up to there, later requests that share
    it."""

    block: int
    tokens: float
    reads: float


def choose(points: Iterable[Point], hit: int, rules: CacheRules, hour: bool = False) -> tuple[int, ...]:
    """Return the blocks to mark, in order. `hit` is the last block of the longest prefix that the server has; -1: it
    has none.

    A later request that shares a prefix shares every shorter one, too: `reads` never grows along a prompt.
    """
    worth = sorted((p for p in points if p.block > hit and p.tokens >= rules.minimum and rules.worth(p.reads, hour)), key=lambda p: p.block)
    if not worth:
        return (hit,) if hit >= 0 else ()
    *others, last = worth
    needs_hit = hit >= 0 and worth[0].block - hit >= rules.back  # nearer ones find it by looking back
    room = rules.marks - 1 - needs_hit
    if len(others) > room:
        others = _most_saved(others, last, room)
    return (*((hit,) if needs_hit else ()), *[p.block for p in others], last.block)


def _most_saved(points: Sequence[Point], last: Point, room: int) -> list[Point]:
    """Return, of more points than marks are allowed, those that save most: a prompt that diverges at a point reads up
    to the mark before it."""
    leaving = [p.reads - after.reads for p, after in zip(points, (*points[1:], last), strict=True)]
    if len(points) > _TRIED:
        keep = sorted(sorted(range(len(points)), key=lambda i: leaving[i] * points[i].tokens, reverse=True)[:_TRIED])
        points, leaving = [points[i] for i in keep], [leaving[i] for i in keep]

    def saved(marked: Sequence[int]) -> float:
        return sum(n * max((points[m].tokens for m in marked if m <= i), default=0.0) for i, n in enumerate(leaving))

    return [points[i] for i in max(combinations(range(len(points)), room), key=saved)]


_TRIED = 12  # points of one prompt up to which all choices are compared


# -- contents of the server's cache
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockedPrompt:
    """A prompt by its blocks.

    keys      for each block, of the prompt up to its end: equal keys, equal prefixes
    tokens    up to its end, approximate
    messages  for each number of whole messages the index of their last block
    size      bytes of all of it
    """

    keys: tuple[bytes, ...]
    tokens: tuple[float, ...]
    messages: tuple[int, ...]
    size: int = 0


def prompt_of(first: object, blocks: Sequence[Any], messages: Sequence[int], per_byte: float) -> BlockedPrompt:
    """Build a prompt; `first` is what the server reads before all blocks (tools, constraints); `per_byte`: tokens per
    byte."""
    sofar, size = blake2b(_written(first), digest_size=16), len(_written(first)) if first else 0
    keys: list[bytes] = []
    tokens: list[float] = []
    for block in blocks:
        data = _written(block)
        sofar.update(len(data).to_bytes(8, "big") + data)
        size += _size(block)
        keys.append(sofar.digest())
        tokens.append(size * per_byte)
    return BlockedPrompt(tuple(keys), tuple(tokens), tuple(messages), size)


def _written(x: object) -> bytes:
    return json.dumps(x, ensure_ascii=False, sort_keys=True).encode("utf-8", "surrogatepass")


def _size(block: Any) -> int:
    """Return bytes of a block's text; for an image, those of its approximate tokens."""
    kind = block[-1].get("type")
    if kind == "text":
        return len(block[-1]["text"].encode("utf-8", "surrogatepass"))
    if "thinking" in kind:
        return len((block[-1].get("thinking") or block[-1].get("data") or "").encode("utf-8", "surrogatepass"))
    return _IMAGE if kind in ("image", "document") else len(_written(block[-1].get("content", block[-1].get("input", ""))))


_IMAGE = 6000  # bytes: about 1,500 tokens


@dataclass
class _PromptStatistics:
    """Statistics of the prompts requested at one place of a program."""

    asked: int = 0
    continued: int = 0
    late: bool = False  # the last one recurred after it was evicted

    def to_come(self, again: bool) -> float:
        """Return how many requests are expected to extend one made here: each is extended as often as earlier ones
        were."""
        on, asked = self.continued + again, self.asked + 1
        return on / (asked - on) if on < asked else float(asked)


@dataclass(frozen=True, slots=True)
class Marked:
    """A request's marks: its blocks, their lifetime, and its turn."""

    blocks: tuple[int, ...]
    hour: bool
    turn: WarmupTurn


class CacheBook:
    """Prompts sent by the requests of one backend, and the server's cache of them. Belongs to one event loop.

    ttl  "5m", "1h", or "auto": an hour where prompts recurred only after five minutes
    """

    def __init__(self, rules: CacheRules, ttl: str) -> None:
        self.rules, self.ttl = rules, ttl
        self.warmup = CacheWarmup()
        self._sent: OrderedDict[bytes, tuple[float, Hashable]] = OrderedDict()  # prefixes: when sent, and where a prompt ended with it
        self._sites: OrderedDict[Hashable, _PromptStatistics] = OrderedDict()
        self._bytes, self._tokens = 0, 0

    @property
    def per_byte(self) -> float:
        """Return the tokens per byte of prompt, as counted by the server so far."""
        return self._tokens / self._bytes if self._bytes else 0.25

    @asynccontextmanager
    async def turn(self, prompt: BlockedPrompt, shared: Shared, site: Hashable, again: bool, samples: int) -> AsyncIterator[Marked]:
        """Wait while a request in flight writes the prefix that this one would, then return the marks.

        shared   the plan's numbers of later requests
        site     place of the request in the program, for statistics
        again    the request itself suggests that its conversation continues
        samples  number of equal requests sent with it
        """
        now = self.warmup.clock()
        hour = self.ttl == "1h" or (self.ttl == "auto" and self._sites.get(site, _PromptStatistics()).late)
        points = self._points(prompt, shared, site, again, samples, now)
        self._note(prompt, site, now)
        marked: list[int] = []

        def writes() -> list[bytes]:
            hit = max((i for i, key in enumerate(prompt.keys) if self.warmup.is_known(key)), default=-1)
            marked[:] = choose(points, hit, self.rules, hour)
            return [prompt.keys[i] for i in marked]

        async with self.warmup.writing(prompt.keys, writes, 3600.0 if hour else 300.0) as turn:
            yield Marked(tuple(marked), hour, turn)

    @asynccontextmanager
    async def asking(self, prompt: BlockedPrompt, tally: AttemptUsage, again: bool, samples: int) -> AsyncIterator[tuple[Marked, AttemptUsage]]:
        """As `turn`, for a request whose cost is added to `tally`; yield its marks, and where its own cost goes."""
        async with self.turn(prompt, tally.shared, (tally.loc, tally.name), again, samples) as marked:
            own = tally.apart()
            try:
                yield marked, own
                marked.turn.begun()
            finally:
                tally.add(own)
                self.answered(prompt, marked, own.usage)

    def answered(self, prompt: BlockedPrompt, marked: Marked, usage: Usage) -> None:
        """Record the server's report for a request: its tokens, and whether it has kept the marked prefixes."""
        self.counted(prompt, usage.prompt_tokens)
        if marked.blocks and not usage.written_tokens and not usage.cached_tokens:
            self.warmup.forget([prompt.keys[i] for i in marked.blocks])  # too short, or not kept here

    def counted(self, prompt: BlockedPrompt, tokens: int) -> None:
        """Record the server's token count of a prompt."""
        if prompt.size and tokens:
            self._bytes, self._tokens = self._bytes + prompt.size, self._tokens + tokens

    def _points(self, prompt: BlockedPrompt, shared: Shared, site: Hashable, again: bool, samples: int, now: float) -> list[Point]:
        reads: dict[int, float] = {}
        end = prompt.messages[-1] if prompt.messages else -1
        planned = dict(shared)
        for messages, count in shared:
            block = end if messages < 0 else prompt.messages[messages - 1] if 0 < messages <= len(prompt.messages) else -1
            reads[block] = max(reads.get(block, 0.0), count)
        if -1 not in planned:
            found = self._sites.get(site, _PromptStatistics())
            reads[end] = max(reads.get(end, 0.0), found.to_come(again))
        reads[end] = max(reads.get(end, 0.0), samples - 1)
        seen = next((i for i in reversed(range(len(prompt.keys))) if self._was_sent(prompt.keys[i], now)), -1)
        if seen >= 0 and not self.warmup.is_known(prompt.keys[seen]):
            reads[seen] = max(reads.get(seen, 0.0), 1.0)  # requested before, so it recurs, though no plan predicted it
        most, points = 0.0, list[Point]()
        for block in sorted((b for b in reads if b >= 0), reverse=True):
            most = max(most, reads[block])
            points.append(Point(block, prompt.tokens[block] * _GENEROUS, most))
        return points

    def _was_sent(self, key: bytes, now: float) -> bool:
        sent = self._sent.get(key)
        return sent is not None and now - sent[0] < 3600.0

    def _note(self, prompt: BlockedPrompt, site: Hashable, now: float) -> None:
        own = self._sites.setdefault(site, _PromptStatistics())
        own.asked += 1
        for i, key in enumerate(prompt.keys):
            at, ended = self._sent.get(key, (now, None))
            if ended is not None and i < len(prompt.keys) - 1 and (before := self._sites.get(ended)) is not None:
                before.continued += 1
                before.late = own.late = 300.0 <= now - at < 3600.0
                ended = None  # counted once
            self._sent[key] = (now, site if i == len(prompt.keys) - 1 else ended)
            self._sent.move_to_end(key)
        while len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)
        while len(self._sites) > _REMEMBERED:
            self._sites.popitem(last=False)


_REMEMBERED = 1 << 14
_GENEROUS = 1.2  # a mark that is too early costs nothing, and one that is missing does
