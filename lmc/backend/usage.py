"""Costs of requests: usage, accounts that are told of it, prices, and the counters and spending of a backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from operator import add, attrgetter, sub

from lmc.errors import ParameterError


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one answer or one run. Tokens; `calls` counts requests to the model (a `select` is one).

    ahead_asked    requests made ahead of the program (design: run-ahead)
    ahead_used     those of them that the program then made; only these count in `calls` and tokens
    ahead_wasted   those that were wasted, with their known cost in tokens
    written_tokens prompt tokens written to a cache that charges for it, `written_hour_tokens` of those for an hour
    batched_calls  of the calls, those that a batch API answered
    drafted_tokens that an engine ran as drafts (docs/drafts.md), and accepted_tokens, those of them that are in the answer
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    forced_tokens: int = 0
    calls: int = 0
    passes: int = 0
    ahead_asked: int = 0
    ahead_used: int = 0
    ahead_wasted: int = 0
    ahead_wasted_tokens: int = 0
    written_tokens: int = 0
    written_hour_tokens: int = 0
    batched_calls: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, _counts(self), _counts(other)))

    def __radd__(self, other: object) -> Usage:
        """Add to the 0 that Python's `sum` begins with."""
        return self if other == 0 else NotImplemented

    @staticmethod
    def sum(usages: Iterable[Usage]) -> Usage:
        return Usage(*map(sum, zip(*map(_counts, usages))))

    @property
    def plausible(self) -> bool:
        """Return whether one request can have this usage."""
        cache = self.cached_tokens >= 0 and 0 <= self.written_hour_tokens <= self.written_tokens
        return cache and self.cached_tokens + self.written_tokens <= self.prompt_tokens <= _MOST_TOKENS and 0 <= self.completion_tokens <= _MOST_TOKENS


NO_USAGE = Usage()
_counts = attrgetter(*[f.name for f in fields(Usage)])  # looked up once: sums are made for each answer

_MOST_TOKENS = 1 << 31  # of one request: beyond any context


class MeteredAccount(str):
    """The name of an account that is notified of each request's usage: for answers when they arrive, for failed or
    cancelled ones the usage up to then. API servers do not report the latter.

    `told` is called from any thread, once for a request, before its answer can be read, and must only enqueue.
    """

    told: Callable[[Usage], None]

    def __new__(cls, name: str, told: Callable[[Usage], None]) -> MeteredAccount:
        made = super().__new__(cls, name)
        made.told = told
        return made


def charge(account: str, usage: Usage) -> None:
    """Notify an account of a request's usage, if it is a `MeteredAccount`."""
    if isinstance(account, MeteredAccount):
        account.told(usage)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a backend for a million tokens.

    prompt, completion  of tokens that are read, and that are generated
    cached        of a prompt, read from a cache; None: as others (`lmc.Anthropic`: a tenth)
    written       of a prompt, written to a cache; None: as others (`lmc.Anthropic`: 1.25 times)
    written_hour  the same, for a lifetime of an hour; None: as `written` (`lmc.Anthropic`: twice)
    batch         of a request in a batch (`deadline="24h"`), as a share of these prices
    """

    prompt: float
    completion: float
    cached: float | None = None
    written: float | None = None
    written_hour: float | None = None
    batch: float = 0.5

    def __post_init__(self) -> None:
        for name in ("prompt", "completion", "cached", "written", "written_hour", "batch"):
            price = getattr(self, name)
            optional = price is None and name not in ("prompt", "completion", "batch")
            if not optional and (isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf):
                raise ParameterError(f"Prices({name}={price!r}): a number, 0 or more, of a million tokens")

    def of(self, usage: Usage) -> float:
        """Return the cost of an answer with this `usage`, or of several that were all batched, or none of them."""
        return self.of_prompt(usage) + self._share(usage) * usage.completion_tokens * self.completion / 1e6

    def of_prompt(self, usage: Usage) -> float:
        """Return the cost of the prompt of an answer with this `usage`."""
        cached = self.prompt if self.cached is None else self.cached
        written = self.prompt if self.written is None else self.written
        hour = written if self.written_hour is None else self.written_hour
        fresh = usage.prompt_tokens - usage.cached_tokens - usage.written_tokens
        minutes = usage.written_tokens - usage.written_hour_tokens
        return self._share(usage) * (fresh * self.prompt + usage.cached_tokens * cached + minutes * written + usage.written_hour_tokens * hour) / 1e6

    @property
    def batched(self) -> Prices:
        """Return the prices of batched requests, without cache discounts."""
        return Prices(self.prompt * self.batch, self.completion * self.batch)

    def _share(self, usage: Usage) -> float:
        return 1 - (1 - self.batch) * usage.batched_calls / usage.calls if usage.batched_calls and usage.calls else 1.0

    def with_cache(self, read: float, write: float, write_hour: float) -> Prices:
        """Return the prices with missing ones of caches filled in, as multiples of the prompt's: of tokens that are `read`, that a
        request must `write`, and `write_hour` for an hour."""
        given = ((self.cached, read), (self.written, write), (self.written_hour, write_hour))
        cached, written, hour = [self.prompt * times if price is None else price for price, times in given]
        return Prices(self.prompt, self.completion, cached, written, hour, self.batch)

    @property
    def most(self) -> float:
        """Return the highest price of one token of any kind."""
        return max(self.prompt, self.completion, self.cached or 0.0, self.written or 0.0, self.written_hour or 0.0) / 1e6


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a backend since its start; subtract two readings to measure a run.

    `prefilled_tokens` are prompt tokens computed, `unique_tokens` those of them that no earlier request had computed:
    prefill optimality is unique / prefilled. `groups` were submitted (and in an engine admitted) together; `twins` are
    samples that began with another's last prompt row, as all but the first of an n-way sample do. `drafted_tokens` were
    run as drafts, `accepted_tokens` of them are in answers. `preemptions`: answers that an engine interrupted for lack
    of memory, and resumed later. `images`: pictures in the prompts of answers; `image_hits`: those of them that the
    model's vision tower did not need to process, because their KV or features were cached. `tower_seconds`: its time
    for the others.
    """

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    unique_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    passes: int = 0
    rows: int = 0
    device_seconds: float = 0.0
    groups: int = 0
    twins: int = 0
    preemptions: int = 0
    images: int = 0
    image_hits: int = 0
    tower_seconds: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(*map(add, _counters(self), _counters(other)))

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*map(sub, _counters(self), _counters(other)))

    @property
    def prefill_optimality(self) -> float:
        return self.unique_tokens / self.prefilled_tokens if self.prefilled_tokens else 1.0


_counters = attrgetter(*[f.name for f in fields(Counters)])


@dataclass(frozen=True, slots=True)
class Spending:
    """Spending of a backend since its start.

    usage       the sum of the server's reports, whether the answer was usable or not
    attempts    requests that were sent
    retries     of those, repeated after a fault
    unreported  attempts of unknown cost: resets, timeouts, broken bodies
    speculated  answers covered by an earlier request
    wasted      requests with unusable answers
    cost        by the backend's prices, None if it has none
    """

    usage: Usage = field(default_factory=Usage)
    attempts: int = 0
    retries: int = 0
    unreported: int = 0
    speculated: int = 0
    wasted: int = 0
    cost: float | None = None

    def __add__(self, other: Spending) -> Spending:
        costs = [each.cost for each in (self, other) if each.cost is not None]
        counts = [getattr(self, name) + getattr(other, name) for name in ("usage", "attempts", "retries", "unreported", "speculated", "wasted")]
        return Spending(*counts, cost=sum(costs) if costs else None)

    @classmethod
    def of(cls, counters: Counters) -> Spending:
        """Return the spending of a backend in this process, which costs nothing."""
        c = counters
        usage = Usage(
            c.prompt_tokens, c.generated_tokens, c.cached_tokens, c.forced_tokens, c.calls, c.passes,
            drafted_tokens=c.drafted_tokens, accepted_tokens=c.accepted_tokens,
        )  # fmt: skip
        return cls(usage, attempts=c.calls)
