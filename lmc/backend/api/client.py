"""Calls to an API: concurrency, retries, and the cost of all attempts.

A `Wire` sends one request once and returns the response; a `Client` decides what happens then:

    answered              its usage counts
    429, 408, 409, 5xx    retried, after the server's delay or a growing, random one
    no or half an answer  (resets, time-outs, invalid or incomplete bodies) retried, counted as unreported
    anything else         raised at once: retrying would not help
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from lmc.backend.api.batches import Waves
from lmc.backend.api.exchange import AnsweringServer, Body, Fault, HttpRequest, Malformed, Received, Wire, reading
from lmc.backend.api.network import PROXY_KEY
from lmc.backend.api.rates import Rates, Ticket
from lmc.backend.api.redaction import redacted
from lmc.backend.api.reports import why_not
from lmc.backend.base import Hints
from lmc.backend.usage import Prices, Usage
from lmc.config import log
from lmc.errors import BackendError, LmcError, Loc, PromptTooLongError

# -- spending --------------------------------------------------------------------------------------------------


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


class UsageLedger:
    """Adds up submissions and spending, from any thread. `groups` and `twins` as in Counters."""

    def __init__(self, prices: Prices | None) -> None:
        self._prices, self._lock, self._cost = prices, threading.Lock(), 0.0
        self._usages = [Usage()]  # a sum, and what is not yet in it
        self._attempts = self._retries = self._unreported = self._speculated = self._wasted = 0
        self.groups = self.twins = 0
        self._latest = OrderedDict[tuple[int, ...], None]()  # groups, of which more siblings may come

    def submitted(self, hints: Hints) -> None:
        """Record that a request of a group is about to be made."""
        assert hints.group is not None
        with self._lock:
            self.twins += hints.sample_index[0] > 0
            if hints.group not in self._latest:
                self.groups += 1
                self._latest[hints.group] = None
                if len(self._latest) > _LATEST:
                    self._latest.popitem(last=False)

    def add(self, *, usage: Usage | None = None, attempts: int = 0, retries: int = 0, unreported: int = 0, speculated: int = 0, wasted: int = 0) -> None:
        with self._lock:
            if usage is not None:
                self._usages.append(usage)
                if self._prices is not None:
                    self._cost += self._prices.of(usage)
                if len(self._usages) > _UNSUMMED:
                    self._usages = [Usage.sum(self._usages)]
            self._attempts += attempts
            self._retries += retries
            self._unreported += unreported
            self._speculated += speculated
            self._wasted += wasted

    def spent(self) -> Spending:
        with self._lock:
            cost = None if self._prices is None else self._cost
            self._usages = [Usage.sum(self._usages)]
            return Spending(self._usages[0], self._attempts, self._retries, self._unreported, self._speculated, self._wasted, cost)


_NO_USAGE = Usage()
_UNSUMMED = 64  # usages that are summed together: most of a sum's cost is making it


@dataclass(slots=True)
class AttemptUsage:
    """Cost of one answer so far: every attempt for it counts. `loc` and `name` identify it, `shared` and `trace` are as
    in Hints.

    failed    error of the latest attempt, one in a list; None: no need to back off
    waves     of batches for its requests; None: they are sent at once
    identity  of the request, besides its prompt, for batches;  sent: requests for it so far
    choosing  it is a select's
    """

    name: str | None = None
    loc: Loc | None = None
    shared: tuple[tuple[int, float], ...] = ()
    trace: tuple[tuple[str, str], ...] = ()
    usage: Usage = _NO_USAGE
    attempts: int = 0
    unreported: int = 0
    failed: Fault | None = None
    waves: Waves | None = None
    identity: str = ""
    sent: int = 0
    choosing: bool = False

    def add(self, other: AttemptUsage) -> None:
        """Count the attempts of another one, too."""
        self.usage += other.usage
        self.attempts += other.attempts
        self.unreported += other.unreported

    @property
    def meta(self) -> Body:
        """Return its part of the answer's meta info: only exceptional facts."""
        found: Body = {"attempts": self.attempts} if self.attempts > 1 else {}
        return found | ({"unreported_attempts": self.unreported} if self.unreported else {})


class _Account:
    """Cost of one attempt, entered once: the reported usage, or that there was no report."""

    def __init__(self, ledger: UsageLedger, tally: AttemptUsage) -> None:
        self._ledger, self._tally, self._open = ledger, tally, True

    def reported(self, usage: Usage | None, origin: AnsweringServer | None) -> None:
        if usage is None:
            return self.close()
        self._open = False
        if origin is not None:
            origin.used(usage)
        self._tally.usage += usage
        self._ledger.add(usage=usage)

    def close(self) -> None:
        """Close: nothing more will be reported."""
        if self._open:
            self._open = False
            self._tally.unreported += 1
            self._ledger.add(unreported=1)


# -- the client ------------------------------------------------------------------------------------------------------

T = TypeVar("T")
_LATEST = 1 << 14  # groups


@dataclass(frozen=True, slots=True)
class Patience:
    """Retry policy of a client.

    retries      attempts after the first
    timeout      seconds for one attempt, from sending it to its last byte
    first_delay  seconds before the second attempt; doubles each time, up to `longest_delay`, times a random factor in [0.5, 1]
    """

    retries: int = 6
    timeout: float = 600.0
    first_delay: float = 0.5
    longest_delay: float = 20.0


class Client:
    """Sends requests over a wire, at most `concurrency` at a time, and within the server's limits. Belongs to one event
    loop.

    begin  concurrent requests before the server's limits are known; None: it has none
    key    how it is given a key, for messages
    """

    def __init__(
        self, wire: Wire, *, name: str, ledger: UsageLedger, concurrency: int, patience: Patience, begin: int | None = None, key: str = "api_key=…"
    ) -> None:
        self.wire, self.name, self.ledger, self.patience, self._key = wire, name, ledger, patience, key
        self.rates = Rates(name, concurrency, begin)
        self._random = random.Random()

    async def call(self, request: Callable[[], HttpRequest], usage: Callable[[Body], Usage | None], read: Callable[[Body], T], tally: AttemptUsage) -> T:
        """Return the server's answer converted by `read`; `request` is called for each attempt.

        `usage` returns a body's reported usage, None if missing; `read` raises Malformed for an incomplete one. Raises
        BackendError with the location of the request when patience is exhausted, and Fault for errors that retrying
        cannot fix.
        """

        if tally.waves is not None:
            return await self._batched(tally.waves, request, usage, read, tally)

        async def attempt(sent: HttpRequest, ticket: Ticket, account: _Account) -> T:
            received = await self.wire.post(sent)
            self.heard(ticket, received.headers)
            reported = self.usage(usage, received.body, sent.body)
            account.reported(reported, received.origin)
            self._answered(ticket, sent, reported)
            with reading(received.origin):
                return read(received.body)

        return await self._patiently(request, attempt, tally)

    async def stream(
        self,
        request: Callable[[], HttpRequest],
        usage: Callable[[Body], Usage | None],
        gather: Callable[[], Gatherer[T]],
        tally: AttemptUsage,
    ) -> T:
        """As `call`, for an answer that comes in pieces. A new attempt starts with a new gatherer."""

        async def attempt(sent: HttpRequest, ticket: Ticket, account: _Account) -> T:
            into, last = gather(), Received({})
            reported: Usage | None = None
            events = 0
            async for last in self.wire.stream(sent):
                events += 1
                if events == 1:
                    self.heard(ticket, last.headers)
                reported = self.usage(usage, last.body, sent.body, events * _EVENT) or reported  # servers that report it more than once repeat the whole
                with reading(last.origin):
                    into.add(last.body)
            account.reported(reported, last.origin)
            self._answered(ticket, sent, reported)
            with reading(last.origin):
                return into.result()

        return await self._patiently(request, attempt, tally)

    async def _batched(
        self, waves: Waves, request: Callable[[], HttpRequest], usage: Callable[[Body], Usage | None], read: Callable[[Body], T], tally: AttemptUsage
    ) -> T:
        """As `call`, by batches: failed requests go into the next one."""
        first, tally.sent = tally.sent * _ATTEMPTS, tally.sent + 1
        number = 0
        while True:
            account, sent = _Account(self.ledger, tally), request()
            tally.attempts += 1
            self.ledger.add(attempts=1, retries=number > 0)
            try:
                received = await waves.answer(sent, tally.identity, first + number)
                reported = self.usage(usage, received.body, sent.body)
                account.reported(reported and replace(reported, batched_calls=reported.calls), received.origin)
                with reading():
                    return read(received.body)
            except Fault as error:
                fault = error.redacted(self.wire.secrets)
            if isinstance(fault, Malformed):
                account.close()
            if not (waves.api.mends(sent, fault) and number < self.patience.retries):
                if not fault.transient:
                    raise fault
                if number >= self.patience.retries:
                    raise self.failed(fault, tally, f" after {number + 1} attempt{'s' if number else ''}, each in a batch")
                log("backend", f"{self.name}: attempt {number + 1} failed in a batch ({fault.status or 'no answer'}: {fault.message}); it is in the next one")
            number += 1

    def heard(self, ticket: Ticket, headers: Mapping[str, str]) -> None:
        self.rates.heard(ticket, headers, self.patience.timeout)

    def _answered(self, ticket: Ticket, sent: HttpRequest, usage: Usage | None) -> None:
        self.rates.answered(ticket, sent.body, *((usage.prompt_tokens, usage.completion_tokens) if usage is not None else (0, 0)))

    async def _patiently(self, request: Callable[[], HttpRequest], attempt: Callable[[HttpRequest, Ticket, _Account], Any], tally: AttemptUsage) -> Any:
        number = 0
        if tally.failed is not None:
            fault, number, tally.failed = tally.failed, tally.attempts - 1, None
            await self._before_another(fault, number, tally)
            number += 1
        while True:
            account, ticket = _Account(self.ledger, tally), None
            try:
                async with self.rates.room:
                    sent = request()
                    if tally.trace:
                        sent = replace(sent, headers={**sent.headers, **dict(tally.trace)})
                    ticket = await self.rates.admit(sent.body)
                    tally.attempts += 1
                    self.ledger.add(attempts=1, retries=number > 0)
                    async with asyncio.timeout(self.patience.timeout):
                        return await attempt(sent, ticket, account)
            except TimeoutError:
                fault = Fault(f"no answer within {self.patience.timeout:g} s")
            except Fault as error:
                fault = error.redacted(self.wire.secrets)
            if ticket is not None:
                self.heard(ticket, fault.headers)
                if not fault.elsewhere:
                    self.rates.refused(ticket, fault.status)
            if fault.status is None:
                account.close()
            await self._before_another(fault, number, tally)
            number += 1

    async def _before_another(self, fault: Fault, number: int, tally: AttemptUsage) -> None:
        """Handle the failure of attempt `number`: wait until another may be made, or raise."""
        if not fault.transient:
            raise fault
        if number >= self.patience.retries or self._is_too_late(fault):
            raise self.failed(fault, tally, f" after {number + 1} attempt{'s' if number else ''}")
        log("backend", f"{self.name}: attempt {number + 1} failed ({fault.status or 'no answer'}: {fault.message}); trying again")
        await self._back_off(fault, number)

    def failed(self, fault: Fault, tally: AttemptUsage, how: str = "") -> LmcError:
        """Return the user-visible error of a fault."""
        status = f"HTTP {fault.status}: " if fault.status is not None else ""
        what = f"gen {tally.name!r}" if tally.name is not None else "a request"
        later = f"; the server takes requests again in {fault.retry_after:.0f} s" if self._is_too_late(fault) else ""
        if fault.too_long:
            return PromptTooLongError(
                f"{self.name}: {what} failed{how}: {status}{fault.message.rstrip('.')}; "
                "shorten the prompt, lower max_tokens, or take a model with a longer context",
                loc=tally.loc,
            )
        advice = f"; the server wants a key, or another one: {self._key}" if fault.status == 401 else _ADVICE.get(fault.status or 0, "")
        return BackendError(f"{self.name}: {what} failed{how}: {status}{fault.message}{later}{advice}", loc=tally.loc)

    def usage(self, usage: Callable[[Body], Usage | None], body: Body, sent: Mapping[str, Any], came: int | None = None) -> Usage | None:
        """Return a body's reported usage, if plausible: an invalid one counts as no report, since it would corrupt the
        sum for good.

        sent  the request's body;  came: bytes of the answer, about; None: it is all in `body`
        """
        try:
            found = usage(body)
        except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
            reason = redacted(str(error), self.wire.secrets)
        else:
            if found is None:
                return None
            if not found.plausible:
                reason = f"{found.prompt_tokens} tokens of prompt, {found.cached_tokens} of them cached, {found.completion_tokens} of answer"
            elif not (reason := why_not(found.prompt_tokens, found.completion_tokens, body, sent, came)):
                return found
        log("backend", f"{self.name}: the usage that the server reports is not counted: {reason}")
        return None

    def _is_too_late(self, fault: Fault) -> bool:
        """Return whether the server asks to wait for longer than an attempt may take, and there is no other."""
        return not fault.elsewhere and (fault.retry_after or 0.0) > self.patience.timeout

    async def _back_off(self, fault: Fault, number: int) -> None:
        patience = self.patience
        if fault.elsewhere:
            return
        if fault.retry_after is not None:
            self.rates.pause(fault.retry_after)  # the whole server is busy: all requests pause
            return
        delay = min(patience.first_delay * 2**number, patience.longest_delay)
        await asyncio.sleep(delay * self._random.uniform(0.5, 1.0))


_ADVICE = {407: PROXY_KEY, 413: "; the prompt is too long for this server: shorten it"}
_EVENT = 256  # bytes of an event of a stream
_ATTEMPTS = 1 << 16  # more than any request has


class Gatherer(Protocol[T]):  # pyright: ignore[reportInvalidTypeVarUse]
    """Assembles a streamed answer. `add` raises Malformed for an invalid piece."""

    def add(self, body: Body) -> None: ...

    def result(self) -> T: ...
