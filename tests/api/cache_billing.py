"""The bill of Anthropic's prompt cache, by its published rules, and the least that requests could cost under them.

A request's marks are looked at from the last one on, 20 blocks back each, for the longest beginning that was kept; what is behind it up to the
last mark that is long enough is written, the rest is input. What is kept is there as soon as an answer has begun, and 5 minutes (1 hour) after
it was last used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

from tests.api.anthropic_server import AnthropicModel
from tests.api.http import Answer, Body, Planted
from tests.api.text_model import TextModel

READ, WRITE, WRITE_HOUR = 0.1, 1.25, 2.0
MARKS, BACK = 4, 20


@dataclass(frozen=True)
class Blocks:
    """A prompt: for each block a key of all up to its end, tokens up to there, whether it is marked, and for how long."""

    keys: tuple[str, ...]
    tokens: tuple[int, ...]
    marks: tuple[int, ...]
    life: float = 300.0


def blocks_of(body: Body) -> Blocks:
    """The blocks of a request as its body has them. Tokens are bytes."""
    tools = json.dumps([body.get("tools"), body.get("output_config"), body.get("tool_choice")])
    system = body.get("system", [])
    found = [("system", b) for b in ([{"type": "text", "text": system}] if isinstance(system, str) else system)]
    for m in body["messages"]:
        found += [(m["role"], b) for b in ([{"type": "text", "text": m["content"]}] if isinstance(m["content"], str) else m["content"])]
    sofar, count = tools, len(json.dumps(body["tools"])) if body.get("tools") else 0
    keys, tokens, marks, life = [], [], [], 300.0
    for i, (role, block) in enumerate(found):
        control = block.get("cache_control")
        plain = {k: v for k, v in block.items() if k != "cache_control"}
        sofar += json.dumps([role, plain], sort_keys=True)
        count += len(plain["text"].encode()) if plain["type"] == "text" else len(json.dumps(plain.get("content", plain.get("input"))))
        keys.append(sofar)
        tokens.append(count)
        if control is not None:
            marks.append(i)
            life = 3600.0 if control.get("ttl") == "1h" else 300.0
    return Blocks(tuple(keys), tuple(tokens), tuple(marks), life)


@dataclass
class Cache:
    """Prefixes in the cache, and until when each is kept."""

    minimum: int = 1024
    now: float = 0.0
    kept: dict[str, tuple[float, float]] = field(default_factory=dict)  # until when, and for how long after each use

    def hit(self, blocks: Blocks) -> int:
        """The last block of the longest beginning that is found; -1: none."""
        looked = {i for mark in blocks.marks for i in range(mark, max(-1, mark - BACK), -1)}
        return max((i for i in looked if self.kept.get(blocks.keys[i], (0.0, 0.0))[0] > self.now), default=-1)

    def charge(self, blocks: Blocks, hit: int) -> tuple[int, int, int]:
        """Tokens read, written, and neither. Notes what is kept."""
        if hit >= 0:
            _, life = self.kept.get(blocks.keys[hit], (0.0, blocks.life))
            self.kept[blocks.keys[hit]] = (self.now + life, life)
        written = [m for m in blocks.marks if m > hit and blocks.tokens[m] >= self.minimum]
        for m in written:
            self.kept[blocks.keys[m]] = (self.now + blocks.life, blocks.life)
        read = blocks.tokens[hit] if hit >= 0 else 0
        wrote = blocks.tokens[written[-1]] - read if written else 0
        return read, wrote, (blocks.tokens[-1] if blocks.tokens else 0) - read - wrote


class CachingModel(AnthropicModel):
    """The stand-in with its cache: `cost` of all prompts so far, in tokens of input; each request with its blocks in `asked`."""

    def __init__(self, model: TextModel, *, minimum: int = 1024, delay: float = 0.0, **options: Any) -> None:
        super().__init__(model, **options)
        self.cache, self.delay = Cache(minimum), delay
        self.until: Callable[[], bool] = lambda: False
        self.asked: list[Blocks] = []
        self.cost = 0.0
        self._hits: dict[int, int] = {}

    def arrives(self, n: int, path: str, body: Body) -> Planted | None:
        """Look up the request in the cache as it is when it comes. With a delay, others come before it is answered; `until` ends it."""
        if path == "/v1/messages":
            self._hits[id(body)] = self.cache.hit(blocks_of(body))
        return Planted("delay", seconds=self.delay, until=self.until) if self.delay else None

    def handle(self, path: str, body: Body) -> Answer:
        blocks = blocks_of(body)
        if len(blocks.marks) > MARKS:
            return Answer(
                {"type": "error", "error": {"type": "invalid_request_error", "message": "A maximum of 4 blocks with cache_control may be provided."}}, 400
            )
        answer = super().handle(path, _plain(body))
        if answer.status != 200:
            return answer
        read, wrote, fresh = self.cache.charge(blocks, self._hits.pop(id(body), -1))
        hour = blocks.life == 3600.0
        self.asked.append(blocks)
        self.cost += READ * read + (WRITE_HOUR if hour else WRITE) * wrote + fresh
        kept = {"ephemeral_5m_input_tokens": 0 if hour else wrote, "ephemeral_1h_input_tokens": wrote if hour else 0}
        usage = {"input_tokens": fresh, "cache_read_input_tokens": read, "cache_creation_input_tokens": wrote, "cache_creation": kept}
        for part in (answer.body, *(answer.events or ())):
            for holder in (part, part.get("message") or {}):
                if "usage" in holder:
                    holder["usage"] = {**holder["usage"], **usage}
        return answer


def _plain(body: Body) -> Body:
    """A body as one that knows no caches would have it."""
    system = body.get("system", "")
    strip = lambda blocks: [{k: v for k, v in b.items() if k != "cache_control"} for b in blocks] if isinstance(blocks, list) else blocks
    found = {**body, "messages": [{**m, "content": strip(m["content"])} for m in body["messages"]]}
    return found | ({"system": "".join(b["text"] for b in system) if isinstance(system, list) else system} if system else {})


# -- the least -------------------------------------------------------------------------------------------------------


def plain_cost(asked: Sequence[Blocks]) -> float:
    """Return the cost of requests whose prompts are all input, as an SDK sends them."""
    return float(sum(b.tokens[-1] for b in asked))


def least_cost(asked: Sequence[Blocks], minimum: int = 1024) -> float:
    """The least that these requests, one after another, can cost: by trying all marks of each. What is kept lasts (5 minutes)."""
    useful = {k for i, b in enumerate(asked) for k in b.keys if any(k in later.keys for later in asked[i + 1 :])}  # others cost and save nothing

    @cache
    def least(i: int, kept: frozenset[str]) -> float:
        if i == len(asked):
            return 0.0
        blocks = asked[i]
        places = [m for m, (key, tokens) in enumerate(zip(blocks.keys, blocks.tokens)) if tokens >= minimum and key in useful]
        best = float("inf")
        for count in range(min(MARKS, len(places)) + 1):
            for marks in combinations(places, count):
                cache = Cache(minimum, kept=dict.fromkeys(kept, (1e9, 1e9)))
                marked = Blocks(blocks.keys, blocks.tokens, marks)
                read, wrote, fresh = cache.charge(marked, cache.hit(marked))
                left = frozenset(k for k in cache.kept if any(k in later.keys for later in asked[i + 1 :]))
                best = min(best, READ * read + WRITE * wrote + fresh + least(i + 1, left))
        return best

    return least(0, frozenset())
