"""Base of all API backends: submissions, their order, their ends and what they cost. No server's protocol."""

from __future__ import annotations

import asyncio
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from lmc import observing
from lmc.backend.api.answers import Answering
from lmc.backend.api.batch_api import BatchApi
from lmc.backend.api.batches import BatchQueue
from lmc.backend.api.caching import CacheRules
from lmc.backend.api.client import Client, Gatherer, LazyClient
from lmc.backend.api.exchange import Body, Fault, HttpRequest, Wire
from lmc.backend.api.handles import ApiHandle, Submission, SubmissionInbox, SubmissionTicket, end_of, feeder
from lmc.backend.api.loop import LoopThread
from lmc.backend.api.messages import role_after
from lmc.backend.api.place import ROOT, PromptNode, extended
from lmc.backend.api.replies import ServerReply
from lmc.backend.api.spending import AttemptUsage, UsageLedger
from lmc.backend.api.terms import ApiTerms
from lmc.backend.base import HEALTHY, Capabilities, Handle, Health, Hints, SharedBackend, check_supported
from lmc.backend.results import HeldResult, Output
from lmc.backend.usage import Counters, Spending, Usage, charge
from lmc.chat import ChatTemplate
from lmc.config import log
from lmc.errors import (
    BackendError,
    CancelledError,
    Filtered,
    LmcError,
    UnsupportedOpError,
)
from lmc.forking import belongs_here
from lmc.segments import Gen, Given, Image, Segment, Select, Text

_NO_HINTS = Hints()
_NAMED = 5  # models of a server that a message names


class ApiBackend(Answering, SharedBackend):
    """The Backend protocol over a client. A subclass writes requests and reads answers."""

    def __init__(self, name: str, wire: Callable[[], Wire], template: ChatTemplate, terms: ApiTerms) -> None:
        terms.check(name)
        ledger, key, reached = UsageLedger(terms.prices), self.key, self.reached_when_made  # this must not be kept alive by its client
        super().__init__(name, template, terms, ledger)
        self._prices, self._loop = terms.prices, LoopThread(f"lmc-{name}"[:40])
        self._client = LazyClient(
            lambda: Client(
                wire(), name=name, ledger=ledger, concurrency=terms.concurrency, patience=terms.patience, begin=terms.begin, key=key, reached=reached
            ),
            self._loop,
        )
        self._listed: asyncio.Task[Sequence[str]] | None = None
        self._works: weakref.WeakSet[Submission] = weakref.WeakSet()
        self._inbox = SubmissionInbox()
        self._finalizer = weakref.finalize(self, self._loop.close, timeout=None)  # a destructor must not wait
        self._finalizer.atexit = False
        belongs_here(self)

    def forked(self, parent: int) -> None:
        self._loop.forked(parent)
        if self._loop.error is not None:
            self._fail_all(BackendError(f"{self.name}: {self._loop.error.message}"))

    def _fail_all(self, error: BackendError | CancelledError) -> None:
        for work in list(self._works):
            if work.after is None:
                work.fail(error)

    # overridden by subclasses

    model = ""
    """Its name at the server."""

    wants_shared = False
    """If set, requests carry the prefixes they share with later ones (Hints.shared)."""

    cache_rules: CacheRules | None = None
    """Rules of its server's prompt cache, if it has one that is paid for."""

    key = "api_key=…"
    """How its server is given a key, for messages."""

    reached_when_made = False
    """Set if its constructor has asked its server."""

    has_batches = False
    """Set if its server answers batches of requests, which may take a day and cost half."""

    def batch_api(self) -> BatchApi:
        """Return the batches of its server. On the loop's thread, while a request is in progress."""
        raise UnsupportedOpError("deadline=", self.name, "leave it out, or use lmc.OpenAI or lmc.Anthropic")

    def check_batched(self, ask: Gen | Select) -> None:
        """Raise for a request that no batch can express."""

    @property
    def tokens_per_byte(self) -> float:
        """Return the tokens per byte of prompts, as the server has counted them so far; before that, a token is four
        bytes."""
        return 0.25

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    def check(self, ask: Gen | Select) -> None:
        """Raise for a request that the protocol cannot express."""

    async def prepare(self) -> None:
        """Find out about the server; awaited once, before the first request."""

    async def warm(self, place: PromptNode, hints: Hints) -> None:
        """Compute a prompt ahead, if the server caches what it computed."""

    # the protocol

    def submit(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> ApiHandle:
        """Extend `parent` by a chain of segments; see Backend.submit."""
        ticket = self._ticket_of(parent)
        role = self._check(ticket, segments)
        hints = hints or _NO_HINTS
        if _desk(hints) is not None:
            self._check_batched(segments)
        if hints.group is not None:
            self.ledger.submitted(hints)
        work = Submission(segments, hints, ticket)
        mine = SubmissionTicket(self._loop, work, role, self.ledger)
        results = tuple([HeldResult(mine) for s in segments if isinstance(s, (Gen, Select))])
        work.results = [weakref.ref(r) for r in results]
        self._works.add(work)
        if not results and not work.hints.pin and (ticket is None or isinstance(ticket.work.after, PromptNode)):
            work.complete(extended(ROOT if ticket is None else ticket.work.after, segments))  # type: ignore[arg-type]
        else:
            self._inbox.append(work)
            if not self._inbox.posted:
                self._inbox.posted = True
                if not self._loop.post(_begin, weakref.ref(self), self._inbox):
                    raise BackendError(f"{self.name} is closed")
        return ApiHandle(mine, results)

    def prefill(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> ApiHandle:
        return self.submit(parent, segments, hints)

    def release(self, handle: Handle) -> None:
        """Do nothing: nothing is pinned; a server's cache is its own business."""

    def holds(self, handle: Handle) -> bool:
        return True

    def counters(self) -> Counters:
        usage = self.ledger.spent().usage
        fresh = usage.prompt_tokens - usage.cached_tokens
        return Counters(
            calls=usage.calls, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, prefilled_tokens=fresh,
            unique_tokens=fresh, generated_tokens=usage.completion_tokens, groups=self.ledger.groups, twins=self.ledger.twins,
        )  # fmt: skip

    def spent(self) -> Spending:
        """Return the usage that the server reported so far, with attempts without a report counted separately."""
        return self.ledger.spent()

    def flush_cache(self) -> None:
        """Do nothing: nothing is cached here."""

    def server_info(self) -> dict[str, Any]:
        spent = self.spent()
        return {
            "name": self.name,
            "attempts": spent.attempts,
            "retries": spent.retries,
            "unreported": spent.unreported,
            "speculated": spent.speculated,
            "wasted": spent.wasted,
            **self._client.said,
        }

    def health(self) -> Health:
        """Return whether it is closed: the server's own health is not checked."""
        return Health("closed", f"{self.name} was closed") if self._loop.closed else HEALTHY

    def close(self) -> None:
        """Cancel running requests, close the connections and end the thread; idempotent."""
        self._fail_all(CancelledError(f"{self.name} was closed before the answer was complete"))
        self._loop.close()

    def __repr__(self) -> str:
        return f"<{self.name}>"

    # submitting

    def _check_open(self) -> None:
        if self._loop.error is not None:
            raise BackendError(f"{self.name}: {self._loop.error.message}")
        if self._loop.closed:
            raise BackendError(f"{self.name} is closed")

    def _ticket_of(self, parent: Handle | None) -> SubmissionTicket | None:
        self._check_open()
        if parent is None:
            return None
        if not isinstance(parent, ApiHandle) or parent.ticket.loop is not self._loop:
            raise BackendError(f"{self.name} was given a handle of another backend")
        return parent.ticket

    def _check(self, parent: SubmissionTicket | None, segments: Sequence[Segment]) -> str | None:
        """Refuse unsupported requests; return the role of the message that is open after the segments."""
        able = self.capabilities
        check_supported(able, segments)
        role = parent.role if parent is not None else None
        for segment in segments:
            if isinstance(segment, Text):
                role = role_after(role, segment, able.raw_text, self.name)
            elif not isinstance(segment, Image | Given):
                if not able.raw_text and role != "assistant":
                    where = "between messages" if role is None else f"in {role} messages"
                    raise UnsupportedOpError(f"answers {where}", able.name, "write lmc.assistant(lmc.gen(…))", loc=segment.loc)
                if isinstance(segment, Gen) and segment.tools and role != "assistant":
                    raise UnsupportedOpError(
                        "gen(tools=…) outside of an assistant's message", able.name, "write lmc.assistant(lmc.gen(…, tools=…))", loc=segment.loc
                    )
                self.check(segment)
        return role

    def _check_batched(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if isinstance(segment, Gen | Select):
                if not self.has_batches:
                    raise UnsupportedOpError("deadline=", self.name, "it has no batch API: leave it out, or use lmc.OpenAI or lmc.Anthropic", loc=segment.loc)
                self.check_batched(segment)

    # on the loop

    def begin(self, works: Sequence[Submission]) -> None:
        """Start submissions; earlier ones were started before."""
        for work in works:
            self.alone(work)

    def alone(self, work: Submission) -> None:
        """Start a submission as a task of its own."""
        work.task = self._loop.spawn(self._run(work))

    async def _run(self, work: Submission) -> None:
        try:
            await self._client.ready(self.prepare)
            place = await end_of(work.parent)
            with observing.within(work.hints.trace):
                place = await self._answered(place, work)
            if work.hints.pin:
                await self.warm(place, work.hints)
            work.complete(place)
        except asyncio.CancelledError:
            work.end(CancelledError("the request was cancelled before its answer was complete"))
            raise
        except Exception as error:  # it belongs to this request: raised to the reader of the answer
            work.end(error)

    async def _answered(self, place: PromptNode, work: Submission) -> PromptNode:
        """Return the prompt's end when all requests of a submission are answered."""
        index = 0
        for segment in work.segments:
            if isinstance(segment, (Gen, Select)):
                place = await self._answer(place, segment, work, work.results[index])
                index += 1
            else:
                place = extended(place, (segment,))
        return place

    async def _answer(self, place: PromptNode, ask: Gen | Select, work: Submission, result: weakref.ref[HeldResult]) -> PromptNode:
        run = work.hints.run
        turn = (None, 0) if run is None else (run.batch, run.number)
        tally = work.tally or AttemptUsage(ask.name, ask.loc, work.hints.shared, work.hints.trace, turn)
        if (desk := _desk(work.hints)) is not None:
            tally.waves, tally.identity = desk.waves_of(self, self.name, self.batch_api, self._loop), repr(replace(ask, loc=None))
        try:
            while True:
                try:
                    after, output = await self._asked_for(place, ask, work, result, tally)
                    break
                except Fault as fault:
                    if not fault.old:
                        raise
                    log("backend", f"{self.name}: {ask.name!r} failed before this process ({fault.message}); it is requested again")
        except Fault as fault:
            if fault.status == 404:
                fault.message += await self._other_models()
            self.spent_in_vain(work, result, tally)
            failed = self._client.now.failed(fault, tally)
            raise Filtered(failed.message, loc=failed.loc) if fault.filtered else failed from None
        except LmcError as error:
            self.spent_in_vain(work, result, tally)
            error.loc = error.loc or ask.loc
            raise
        self.finish(work, result, output)
        return after

    async def models(self) -> Sequence[str]:
        """Return the names of the models that the server has; empty if it does not tell."""
        return ()

    async def _other_models(self) -> str:
        """Return what a message about a missing model adds: those with similar names. The server is asked once."""
        if self._listed is None:
            self._listed = self._loop.spawn(self.models())
        names = await asyncio.shield(self._listed)
        if not names or self.model in names:
            return ""
        near = get_close_matches(self.model, names, _NAMED, 0.4) or (names if len(names) <= _NAMED else ())
        return f"; the server has {', '.join(map(repr, near))}" if near else f"; none of the server's {len(names)} models has a name like it"

    def spent_in_vain(self, work: Submission, result: weakref.ref[HeldResult], tally: AttemptUsage) -> None:
        """Record that an answer of a submission has failed, and has cost something all the same."""
        charge(work.hints.owner, tally.usage)
        waiting = result()
        if waiting is not None:
            waiting.in_vain = tally.usage, tally.unreported

    def finish(self, work: Submission, result: weakref.ref[HeldResult], output: Output) -> None:
        """Record an answer of a submission."""
        if self._prices is not None:
            cost = self._prices.of(output.usage)
            output = replace(output, metas=tuple({**meta, "cost": cost} for meta in output.metas))
        charge(work.hints.owner, output.usage)
        waiting = result()
        if waiting is not None:
            waiting.finish(output)

    async def _asked_for(
        self, place: PromptNode, ask: Gen | Select, work: Submission, result: weakref.ref[HeldResult], tally: AttemptUsage
    ) -> tuple[PromptNode, Output]:
        if isinstance(ask, Gen):
            feed = feeder(result) if work.hints.watched and ask.params.n == 1 and tally.waves is None else None
            return await self.answer(place, ask, work.hints, feed, tally)
        output = await self.choose(place, ask, tally)
        return place.answered(output.text), output

    async def sent(
        self, request: Callable[[], HttpRequest], stream: Body, usage: Callable[[Body], Usage | None], read: Callable[[Body], ServerReply],
        gather: Callable[[], Gatherer[ServerReply]] | None, tally: AttemptUsage,
    ) -> ServerReply:  # fmt: skip
        """Send a request, with the answer at once, or by the fields of `stream` in pieces for a gatherer."""
        if gather is None:
            return await self.client.call(request, usage, read, tally)

        def streamed() -> HttpRequest:
            whole = request()
            return replace(whole, body={**whole.body, "stream": True, **stream})

        return await self.client.stream(streamed, usage, gather, tally)

    @property
    def client(self) -> Client:
        """Return the client; on the loop's thread, while a request is in progress."""
        return self._client.now


def _desk(hints: Hints) -> BatchQueue | None:
    return None if hints.run is None else hints.run.desk


def _begin(backend: weakref.ref[ApiBackend], inbox: SubmissionInbox) -> None:
    """Start the submissions that have arrived; on the loop."""
    inbox.posted = False
    found, works = backend(), list[Submission]()
    while inbox:
        work = inbox.popleft()
        work.abandoned |= found is None
        if work.is_wanted():
            works.append(work)
    if found is not None:
        found.begin(works)
