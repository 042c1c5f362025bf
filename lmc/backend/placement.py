"""Placement: which of several equal targets a request goes to: where the longest beginning of it has been sent, unless that one is too busy.

What a target would have to do for a request is weighed in tokens of prefill:

    2 × what it has not been sent yet      computed here, and computed once more than needed
    + what its running requests still cost their own tokens of prompts, and twice those that they may generate

so work spreads as soon as waiting costs more than computing a prefix again. Targets are servers of a model (api/fleet.py) or replicas of an
engine (replicas.py). What has failed is left alone for a while, and tried with one request then; what it had cached is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lmc.backend.api.prefixes import BLOCK, Prefixes

_DOWN = 1.0  # seconds that a target is left alone after its first failure; doubles with each that follows
_LONGEST_DOWN = 30.0


@dataclass(slots=True, eq=False, kw_only=True)
class Target:
    """One of them.

    bit       its place in the tables of prefixes
    load      tokens that its running requests still cost
    until     it is left alone until then, by time.monotonic()
    fell      failures to reach it in a row
    dropped   it gets no more requests
    known     tokens of its prompts that it had been sent before
    """

    bit: int
    running: int = 0
    load: int = 0
    requests: int = 0
    failures: int = 0
    until: float = 0.0
    fell: int = 0
    dropped: bool = False
    known: int = 0


class Prompted(Protocol):
    """What is about a prompt, as a Request is: keys of its beginnings (prefixes.py), about how many tokens it has, and its answer may have."""

    @property
    def keys(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def limit(self) -> int: ...


T = TypeVar("T", bound=Target)


class Placement(Generic[T]):
    """Over targets. Not thread-safe."""

    def __init__(self, prefixes: Prefixes | None = None) -> None:
        self.prefixes = prefixes or Prefixes()
        self._targets: list[T] = []

    def use(self, targets: Sequence[T]) -> None:
        """These are all."""
        self._targets = list(targets)

    @property
    def targets(self) -> tuple[T, ...]:
        """Those that get requests."""
        return tuple([target for target in self._targets if not target.dropped])

    def pick(self, request: Prompted) -> T:
        """Where a request goes."""
        targets = self.targets
        if len(targets) == 1:
            return targets[0]
        now = time.monotonic()
        # one that was down is tried with one request; if none is up, all are
        up = [t for t in targets if not t.fell or (t.until <= now and not t.running)] or targets
        return min(up, key=lambda t: (2 * self._missing(t, request) + t.load, t.requests))

    def unread(self, request: Prompted) -> int:
        """Tokens of a prompt that the target which would get it now has not read yet, as far as is known here."""
        return request.size - BLOCK * self.prefixes.read(request.keys, self.pick(request).bit)

    def _missing(self, target: T, request: Prompted) -> int:
        return request.size - BLOCK * self.prefixes.sent(request.keys, target.bit)

    def take(self, request: Prompted) -> tuple[T, int]:
        """The target that a request goes to, and what it costs there until it is given to `leave`."""
        target = self.pick(request)
        return target, self.give(target, request)

    def give(self, target: T, request: Prompted) -> int:
        """A request goes to this target; what it costs there until it is given to `leave`."""
        missing = self._missing(target, request)
        cost = missing + 2 * request.limit
        target.running += 1
        target.requests += 1
        target.known += request.size - missing
        target.load += cost
        self.prefixes.send(request.keys, target.bit)
        return cost

    def leave(self, target: T, cost: int) -> None:
        """A request is no longer on its way."""
        target.running -= 1
        target.load -= cost

    def answered(self, target: T, request: Prompted) -> None:
        target.fell, target.until = 0, 0.0  # both, or a failure right behind an answer that was still on its way would not count
        self.prefixes.answered(request.keys, target.bit)

    def unreachable(self, target: T) -> tuple[bool, bool]:
        """A request did not reach it: whether others are there, and whether this is news."""
        target.failures += 1
        others = any(not t.fell for t in self.targets if t is not target)
        now = time.monotonic()
        news = len(self.targets) > 1 and now >= target.until  # once for all that were on their way to it
        if news:
            target.fell += 1
            target.until = now + min(_DOWN * 2 ** (target.fell - 1), _LONGEST_DOWN)
            self.prefixes.forget(target.bit)
        return others, news

    def drop(self, target: T) -> None:
        """No more requests go to it."""
        target.dropped = True
        self.prefixes.forget(target.bit)
