"""Calls to an API: concurrency and retries. What all attempts cost is in spending.py.

A `Wire` sends one request once and returns the response; a `Client` decides what happens then:

    answered              its usage counts
    429, 408, 409, 5xx    retried, after the server's delay or a growing, random one
    no or half an answer  (resets, time-outs, invalid or incomplete bodies) retried, counted as unreported
    anything else         raised at once: retrying would not help
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from lmc.backend.api.batches import Waves
from lmc.backend.api.exchange import Body, Fault, HttpRequest, Malformed, Received, Wire, reading
from lmc.backend.api.loop import LoopThread
from lmc.backend.api.network import PROXY_KEY
from lmc.backend.api.rates import Rates, Ticket
from lmc.backend.api.redaction import redacted
from lmc.backend.api.reports import why_not
from lmc.backend.api.spending import AttemptAccount, AttemptUsage, UsageLedger
from lmc.backend.usage import Usage
from lmc.config import log, logs
from lmc.errors import BackendError, LmcError, PromptTooLongError

T = TypeVar("T")


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

    begin    concurrent requests before the server's limits are known; None: it has none
    key      how it is given a key, for messages
    reached  something has come from the server before
    """

    def __init__(
        self, wire: Wire, *, name: str, ledger: UsageLedger, concurrency: int, patience: Patience, begin: int | None = None, key: str = "api_key=…",
        reached: bool = False,
    ) -> None:  # fmt: skip
        self.wire, self.name, self.ledger, self.patience, self._key = wire, name, ledger, patience, key
        self.rates = Rates(name, concurrency, begin)
        self._random = random.Random()
        self._reached = reached  # or somebody was told that nothing comes
        self._behind = _BEHIND  # seconds for the next piece behind a complete answer

    async def call(self, request: Callable[[], HttpRequest], usage: Callable[[Body], Usage | None], read: Callable[[Body], T], tally: AttemptUsage) -> T:
        """Return the server's answer converted by `read`; `request` is called for each attempt.

        `usage` returns a body's reported usage, None if missing; `read` raises Malformed for an incomplete one. Raises
        BackendError with the location of the request when patience is exhausted, and Fault for errors that retrying
        cannot fix.
        """

        if tally.waves is not None:
            return await self._batched(tally.waves, request, usage, read, tally)

        async def attempt(sent: HttpRequest, ticket: Ticket, account: AttemptAccount) -> T:
            received = await self.wire.post(sent)
            self.heard(ticket, received.headers)
            reported = self.usage(usage, received.body, sent.body)
            account.reported(reported, received.origin)
            self._answered(sent, reported)
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

        async def attempt(sent: HttpRequest, ticket: Ticket, account: AttemptAccount) -> T:
            into, last = gather(), Received({})
            reported: Usage | None = None
            events = 0
            async for last in self.pieces(self.wire.stream(sent), lambda: into.complete):
                events += 1
                if events == 1:
                    self.heard(ticket, last.headers)
                reported = self.usage(usage, last.body, sent.body, events * _EVENT) or reported  # servers that report it more than once repeat the whole
                with reading(last.origin):
                    into.add(last.body)
            account.reported(reported, last.origin)
            self._answered(sent, reported)
            with reading(last.origin):
                return into.result()

        return await self._patiently(request, attempt, tally)

    async def pieces(self, stream: AsyncIterator[Received], complete: Callable[[], bool]) -> AsyncIterator[Received]:
        """Yield the pieces of a stream. What comes behind a complete answer, as its usage does, comes at once: some servers leave the stream open, which
        is waited for once, and some connections break there. The answer is used all the same, since another one would be billed, too. Of any other break
        the server is told that sent the pieces before."""
        origin = None
        while True:
            behind = complete()
            try:
                async with asyncio.timeout(self._behind if behind else None):
                    piece = await anext(stream)
            except StopAsyncIteration:
                self._behind = _BEHIND if behind else self._behind
                return
            except TimeoutError:
                if not behind:
                    raise
                self._behind = _LEFT_OPEN
                return
            except Fault as fault:
                if behind and fault.status is None:
                    log("backend", "a stream broke off behind its complete answer, which is used")
                    return
                if origin is not None:
                    origin.failed(fault)
                raise
            origin = piece.origin
            yield piece

    async def _batched(
        self, waves: Waves, request: Callable[[], HttpRequest], usage: Callable[[Body], Usage | None], read: Callable[[Body], T], tally: AttemptUsage
    ) -> T:
        """As `call`, by batches: failed requests go into the next one."""
        first, tally.sent = tally.sent * _ATTEMPTS, tally.sent + 1
        number = 0
        while True:
            account, sent = AttemptAccount(self.ledger, tally), request()
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
        self._reached |= bool(headers)
        self.rates.heard(ticket, headers, self.patience.timeout)

    def _answered(self, sent: HttpRequest, usage: Usage | None) -> None:
        self._reached = True
        self.rates.answered(sent.body, *((usage.prompt_tokens, usage.completion_tokens) if usage is not None else (0, 0)))

    async def _patiently(self, request: Callable[[], HttpRequest], attempt: Callable[[HttpRequest, Ticket, AttemptAccount], Any], tally: AttemptUsage) -> Any:
        number = 0
        if tally.failed is not None:
            fault, number, tally.failed = tally.failed, tally.attempts - 1, None
            await self._before_another(fault, number, tally)
            number += 1
        while True:
            account, ticket = AttemptAccount(self.ledger, tally), None
            try:
                async with self.rates.room.turn(*tally.turn):
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
            if ticket is not None:  # it was sent
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
        failed = f"{self.name}: attempt {number + 1} failed ({fault.status or 'no answer'}: {fault.message}); trying again"
        log("backend", failed)
        if not (self._reached or fault.status is not None or logs("backend")):  # most often the URL is wrong, or the server does not run
            logging.getLogger("lmc.backend").warning("%s (retries=%d; LMC_LOG=backend shows every attempt)", failed, self.patience.retries)
        self._reached = True
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
        error = BackendError(f"{self.name}: {what} failed{how}: {status}{fault.message}{later}{advice}", loc=tally.loc)
        error.final = True
        return error

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
        if fault.retry_after:  # the whole server is busy: all requests pause
            return self.rates.pause(fault.retry_after)
        delay = min(patience.first_delay * 2**number, patience.longest_delay)
        await asyncio.sleep(delay * self._random.uniform(0.5, 1.0))


_ADVICE = {407: PROXY_KEY, 413: "; the prompt is too long for this server: shorten it"}
_BEHIND, _LEFT_OPEN = 10.0, 0.5  # seconds for the next piece behind a complete answer; where the server has left the last such stream open
_EVENT = 256  # bytes of an event of a stream
_ATTEMPTS = 1 << 16  # more than any request has


class Gatherer(Protocol[T]):  # pyright: ignore[reportInvalidTypeVarUse]
    """Assembles a streamed answer. `add` raises Malformed for an invalid piece. `complete`: its end has come."""

    @property
    def complete(self) -> bool: ...

    def add(self, body: Body) -> None: ...

    def result(self) -> T: ...


class LazyClient:
    """A client that is made on the loop for the first request, with the backend's findings about its server."""

    def __init__(self, make: Callable[[], Client], loop: LoopThread) -> None:
        self._make, self._loop = make, loop
        self._made: Client | None = None
        self._prepared: asyncio.Task[Any] | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether a request may be sent."""
        prepared = self._prepared
        return prepared is not None and prepared.done() and not prepared.cancelled() and prepared.exception() is None

    @property
    def now(self) -> Client:
        assert self._made is not None, "no request is on its way"
        return self._made

    @property
    def said(self) -> dict[str, Any]:
        return self._made.rates.said if self._made is not None else {}

    async def ready(self, prepare: Callable[[], Any]) -> None:
        if self._made is None:
            self._made = self._make()
            self._loop.at_close(self._made.wire.close)
        if self._prepared is None:
            self._prepared = self._loop.spawn(prepare())
        if self._prepared.done():
            self._prepared.result()
        else:
            await asyncio.shield(self._prepared)
