"""Placement: the target of a request among several equal ones: where its longest prefix has been sent, unless that one
is too busy.

A target's work for a request is measured in tokens of prefill:

    2 × tokens not sent to it yet          computed here, and computed once more than needed
    + rest of its running requests         their own tokens of prompts, and twice those that they may generate

so work spreads as soon as waiting costs more than recomputing a prefix. Targets are servers of a model (api/fleet.py)
or replicas of an engine (replicas/). A failed target is skipped for a while, and then tried with one request; its
cached prefixes are forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lmc.backend.api.prefixes import BLOCK, Prefixes

_DOWN = 1.0  # Seconds that a target is skipped after its first failure; doubles with each further one.
_LONGEST_DOWN = 30.0


@dataclass(slots=True, eq=False, kw_only=True)
class PlacementTarget:
    """One target.

    bit       its bit in the tables of prefixes
    load      remaining cost of its running requests in tokens
    until     it is skipped until then, by time.monotonic()
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
    """Placement data of a prompt, as in a Request: keys of its prefixes (prefixes.py), approximate tokens, and most
    tokens of its answer."""

    @property
    def keys(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> int: ...
    @property
    def limit(self) -> int: ...


T = TypeVar("T", bound=PlacementTarget)


class Placement(Generic[T]):
    """Placement over targets. Not thread-safe."""

    def __init__(self, targets: Sequence[T] = ()) -> None:
        self.prefixes = Prefixes()
        self._targets = list(targets)

    @property
    def targets(self) -> tuple[T, ...]:
        """Return those that get requests."""
        return tuple([target for target in self._targets if not target.dropped])

    def pick(self, request: Prompted) -> T:
        """Return the target of a request."""
        targets = self.targets
        if len(targets) == 1:
            return targets[0]
        now = time.monotonic()
        # one that was down is tried with one request; if none is up, all are
        up = [t for t in targets if not t.fell or (t.until <= now and not t.running)] or targets
        return min(up, key=lambda t: (2 * self._missing(t, request) + t.load, t.requests))

    def unread(self, request: Prompted) -> int:
        """Return tokens of a prompt that its present target has not read yet, as far as known here."""
        return request.size - BLOCK * self.prefixes.read(request.keys, self.pick(request).bit)

    def _missing(self, target: T, request: Prompted) -> int:
        return request.size - BLOCK * self.prefixes.sent(request.keys, target.bit)

    def take(self, request: Prompted) -> tuple[T, int]:
        """Return the target of a request, and its cost there until it is passed to `leave`."""
        target = self.pick(request)
        return target, self.give(target, request)

    def give(self, target: T, request: Prompted) -> int:
        """Assign a request to this target; return its cost there until it is passed to `leave`."""
        missing = self._missing(target, request)
        cost = missing + 2 * request.limit
        target.running += 1
        target.requests += 1
        target.known += request.size - missing
        target.load += cost
        self.prefixes.send(request.keys, target.bit)
        return cost

    def leave(self, target: T, cost: int) -> None:
        """Record that a request is no longer in flight."""
        target.running -= 1
        target.load -= cost

    def answered(self, target: T, request: Prompted) -> None:
        target.fell, target.until = 0, 0.0  # both, or a failure right after a pending answer would not count
        self.prefixes.answered(request.keys, target.bit)

    def set_aside(self, target: T, seconds: float = 0.0) -> tuple[bool, bool]:
        """Record that it did not do a request, and wants none for `seconds`; return whether other targets exist, and
        whether this is news."""
        target.failures += 1
        others = any(not t.fell for t in self.targets if t is not target)
        now = time.monotonic()
        news = len(self.targets) > 1 and now >= target.until  # once for all requests in flight to it
        if news:
            target.fell += 1
            target.until = now + min(max(_DOWN * 2 ** (target.fell - 1), seconds), _LONGEST_DOWN)
        return others, news

    def unreachable(self, target: T) -> tuple[bool, bool]:
        """As `set_aside`, if a request did not even reach it: its cache may be gone, too."""
        others, news = self.set_aside(target)
        if news:
            self.prefixes.forget(target.bit)
        return others, news

    def drop(self, target: T) -> None:
        """Send it no more requests."""
        target.dropped = True
        self.prefixes.forget(target.bit)
