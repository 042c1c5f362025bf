"""Base of all API backends: the order of answers, cancelling, verified constraints, speculation. No server's protocol."""

from __future__ import annotations

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal

from lmc import observing
from lmc.backend.api.batch_api import BatchApi
from lmc.backend.api.batches import BatchQueue
from lmc.backend.api.bodies import REFUSAL, choice_in, cost_of
from lmc.backend.api.caching import CacheRules
from lmc.backend.api.client import Client, LazyClient, Patience
from lmc.backend.api.exchange import Fault, Wire
from lmc.backend.api.handles import ApiHandle, ApiResult, Feed, Submission, SubmissionInbox, SubmissionTicket, end_of, feeder
from lmc.backend.api.loop import LoopThread
from lmc.backend.api.messages import role_after
from lmc.backend.api.place import ROOT, PromptNode, Rest, extended
from lmc.backend.api.replies import Sample, ServerReply, meta_of
from lmc.backend.api.speculation import FoundAnswer, cut, follow, speculative
from lmc.backend.api.spending import AttemptUsage, UsageLedger
from lmc.backend.api.verify import answer_in, as_schema, keeps, matching
from lmc.backend.base import HEALTHY, Beyond, Capabilities, Handle, Health, Hints, SharedBackend, check_supported
from lmc.backend.results import Output
from lmc.backend.usage import Counters, Prices, Spending, Usage, charge
from lmc.chat import ChatTemplate
from lmc.config import log
from lmc.errors import (
    BackendError,
    CancelledError,
    Filtered,
    LmcError,
    ParameterError,
    Refused,
    UnmetConstraint,
    UnsupportedOpError,
)
from lmc.forking import belongs_here
from lmc.segments import Constraint, Gen, Given, Image, Part, SamplingParams, Segment, Select, Text

_NO_HINTS = Hints()
BEGIN = 8
"""Concurrent requests to a service with limits, before it has reported them."""

OnRefusal = Literal["raise", "return"]
_ROOM = 16  # tokens of an object around an answer
_NAMED = 5  # models of a server that a message names
_TOO_MUCH = (400, 413, 422)  # status of servers for a limit beyond theirs


@dataclass(frozen=True, slots=True)
class ApiTerms:
    """Options of every API backend, whatever its server.

    concurrency  most concurrent requests
    patience     retries and time-outs
    prices       for a million tokens, for `spent()` and for budgets of cost
    speculate    whether one request may cover several answers of a program
    attempts     how often an answer is requested whose constraint the server cannot enforce
    on_refusal   whether refused and filtered answers raise, or are returned as answers marked in their meta info
    begin        concurrent requests before the server's limits are known; None: it has none
    """

    concurrency: int
    patience: Patience
    prices: Prices | None
    speculate: bool
    attempts: int = 4
    on_refusal: OnRefusal = "raise"
    begin: int | None = None

    def check(self, name: str) -> None:
        if self.concurrency < 1 or self.attempts < 1:
            raise ParameterError(f"{name}: concurrency and attempts are at least 1")
        if self.on_refusal not in ("raise", "return"):
            raise ParameterError(f"{name}: on_refusal={self.on_refusal!r}: must be 'raise' or 'return'")


class ApiBackend(SharedBackend, ABC):
    """The Backend protocol over a client. A subclass writes requests and reads answers."""

    def __init__(self, name: str, wire: Callable[[], Wire], template: ChatTemplate, terms: ApiTerms) -> None:
        terms.check(name)
        self.name, self.chat_template, self._prices = name, template, terms.prices
        self.speculate, self.attempts, self.on_refusal = terms.speculate, terms.attempts, terms.on_refusal
        self.ledger, key = UsageLedger(terms.prices), self.key  # this must not be kept alive by its client
        self._loop = LoopThread(f"lmc-{name}"[:40])
        ledger, reached = self.ledger, self.reached_when_made
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
            error = BackendError(f"{self.name}: {self._loop.error.message}")
            for work in list(self._works):
                if work.after is None:
                    work.fail(error)

    # overridden by subclasses

    model = ""
    """Its name at the server."""

    _schemas_for_values = True  # until its server has refused a schema that stands for a regex

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

    @abstractmethod
    async def generate(self, place: PromptNode, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: AttemptUsage) -> ServerReply:
        """Request an answer. With `beyond`, the answer may continue beyond its own end, and lists its tokens if the
        server can."""

    @abstractmethod
    async def choose(self, place: PromptNode, ask: Select, tally: AttemptUsage) -> Output:
        """Request which choice the model finds likeliest."""

    def takes_schema(self, place: PromptNode) -> bool:
        """Return whether an answer at this place may be kept within a schema."""
        return True

    def enforces(self, constraint: Constraint) -> bool:
        """Return whether the server keeps answers within a constraint; else they are verified here, and requested
        again."""
        return True

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
        results = tuple([ApiResult(mine) for s in segments if isinstance(s, (Gen, Select))])
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
        error = CancelledError(f"{self.name} was closed before the answer was complete")
        for work in list(self._works):
            if work.after is None:
                work.fail(error)
        self._loop.close()

    def __enter__(self) -> ApiBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            error = CancelledError("the request was cancelled before its answer was complete")
            work.fail(error)
            work.complete(error)
            raise
        except Exception as error:  # it belongs to this request: raised to the reader of the answer
            work.fail(error)
            work.complete(error)

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

    async def _answer(self, place: PromptNode, ask: Gen | Select, work: Submission, result: weakref.ref[ApiResult]) -> PromptNode:
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

    def spent_in_vain(self, work: Submission, result: weakref.ref[ApiResult], tally: AttemptUsage) -> None:
        """Record that an answer of a submission has failed, and has cost something all the same."""
        charge(work.hints.owner, tally.usage)
        waiting = result()
        if waiting is not None:
            waiting.in_vain = tally.usage, tally.unreported

    def finish(self, work: Submission, result: weakref.ref[ApiResult], output: Output) -> None:
        """Record an answer of a submission."""
        if self._prices is not None:
            cost = self._prices.of(output.usage)
            output = replace(output, metas=tuple({**meta, "cost": cost} for meta in output.metas))
        charge(work.hints.owner, output.usage)
        waiting = result()
        if waiting is not None:
            waiting.finish(output)

    async def _asked_for(
        self, place: PromptNode, ask: Gen | Select, work: Submission, result: weakref.ref[ApiResult], tally: AttemptUsage
    ) -> tuple[PromptNode, Output]:
        if isinstance(ask, Gen):
            feed = feeder(result) if work.hints.watched and ask.params.n == 1 and tally.waves is None else None
            return await self._gen(place, ask, work.hints, feed, tally)
        output = await self.choose(place, ask, tally)
        return place.answered(output.text), output

    async def _gen(self, place: PromptNode, ask: Gen, hints: Hints, feed: Feed | None, tally: AttemptUsage) -> tuple[PromptNode, Output]:
        before, parts = place.since_answer()
        broken = place.broken
        if before is not None and before.rest is not None:
            found = follow(before.rest, parts, ask, self._stops(ask))
            if found is not None:
                self.ledger.add(speculated=1)
                return place.answered(found.text, rest=found.rest), _spoken(found)
            log("spec", f"{self.name}: the model did not write {_start(parts)!r}…; {ask.name!r} is asked alone")
            broken = before.rest.gens
        if broken:
            return await self._alone(place, ask, broken - 1, feed, tally)
        if hints.beyond is None or not self.speculate or not speculative(ask):
            return await self._alone(place, ask, 0, feed, tally)
        try:
            reply = await self.generate(place, ask, hints.beyond, None, tally)
        except Fault as fault:
            if fault.status not in _TOO_MUCH:
                raise
            log("spec", f"{self.name} refuses one request for several answers ({fault.message}); they are requested one by one")
            return await self._alone(place, ask, hints.beyond.gens, feed, tally)
        found = self._first(reply, ask, hints.beyond)
        if found is None:
            log("spec", f"{self.name}: the answer to {ask.name!r} cannot be determined from one request for several; it is requested separately")
            self.ledger.add(wasted=1)
            return await self._alone(place, ask, hints.beyond.gens, feed, tally)
        meta = {**meta_of(reply, reply.samples[0], tally), "finish_reason": found.finish}
        return place.answered(found.text, rest=found.rest), Output((found.text,), (meta,), tally.usage)

    def _first(self, reply: ServerReply, ask: Gen, beyond: Beyond) -> FoundAnswer | None:
        """Return the answer itself, from a text that may continue after it."""
        sample = reply.samples[0]
        if sample.finish.get("type") == REFUSAL:
            return None
        texts = tuple(text for _, _, text in sample.tokens) if sample.tokens is not None else None
        if texts is not None and "".join(texts) != sample.text:
            texts = None  # parts of characters: not countable by their texts
        ended = "stop" if sample.finish.get("type") == "stop" else "length"  # with a filter, too, the continuation is unknown
        rest = Rest(sample.text, ended, ask.params, 0, reply.stops, texts, beyond.gens + 1)
        return follow(rest, (reply.expected,) if reply.expected else (), ask, self._stops(ask))

    async def _accepted(self, place: PromptNode, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: AttemptUsage) -> ServerReply:
        """Request an answer that may be used."""
        return self.accepted(await self.generate(place, ask, beyond, feed, tally))

    def accepted(self, reply: ServerReply) -> ServerReply:
        """Return a reply. Raises for a refused or filtered one, unless it is wanted as an answer."""
        withheld = next((sample for sample in reply.samples if sample.withheld), None)
        if withheld is not None and self.on_refusal == "raise":
            raise self._withheld(withheld)
        return reply

    def _withheld(self, sample: Sample) -> Refused | Filtered:
        what, kind = ("the model refused to answer", Refused) if sample.finish["type"] == REFUSAL else ("a content filter stopped the answer", Filtered)
        error = kind(f'{self.name}: {what}{f": {sample.text[:200]!r}" if sample.text else ""}; on_refusal="return" on the backend gives it as an answer')
        error.text = sample.text
        return error

    async def _alone(self, place: PromptNode, ask: Gen, broken: int, feed: Feed | None, tally: AttemptUsage) -> tuple[PromptNode, Output]:
        """Request one answer and nothing else. `broken`: later answers of a plan that was not followed."""
        constraint = ask.constraint
        if constraint is not None and (tally.unmet or not self.enforces(constraint)):
            return await self._verified(place, ask, constraint, tally)
        reply = await self._accepted(place, ask, None, feed, tally)
        if constraint is None or self.keeps(ask, reply):
            return self.output_of(place, ask, reply, tally, broken)
        if feed is not None:  # what was shown as it came is the answer
            raise self._unmet(constraint, reply, 1, ask)
        return await self._verified(place, ask, constraint, tally, reply)

    def keeps(self, ask: Gen, reply: ServerReply) -> bool:
        """Return whether the answers are within a constraint that the server has taken, as far as that can be known: many servers ignore some."""
        if ask.constraint is None or all(self._keeps(ask.constraint, sample, ask) for sample in reply.samples):
            return True
        log("backend", f"{self.name} takes {ask.constraint.kind} and does not keep to it: {reply.samples[-1].text[:80]!r}")
        return False

    def _keeps(self, constraint: Constraint, sample: Sample, ask: Gen) -> bool:
        if sample.withheld or sample.extra.get("tool_calls") or sample.finish.get("type") == "length":
            return True
        params = ask.params
        return keeps(constraint, self._ended(sample, ask).text, cut=bool(params.stop or params.stop_regex or params.stop_token_ids))

    def _unmet(self, constraint: Constraint, reply: ServerReply, attempts: int, ask: Gen) -> UnmetConstraint:
        shown = repr(constraint.source) if len(constraint.source) <= 80 else "…"
        why = f"takes {constraint.kind}={shown} and ignores it, or a part of it" if self.enforces(constraint) else f"cannot enforce {constraint.kind}={shown}"
        last = reply.samples[-1].text if reply.samples else ""
        none = "the answer is not within it" if attempts == 1 else f"none of {attempts} answers is within it"
        return UnmetConstraint(
            f"{self.name} {why}: {none}; the last is {last[:80]!r}. Use a server that can, or describe the answer's form in the prompt", loc=ask.loc
        )

    def output_of(self, place: PromptNode, ask: Gen, reply: ServerReply, tally: AttemptUsage, broken: int = 0) -> tuple[PromptNode, Output]:
        """Return the answer in a reply, and the prompt with it."""
        samples = [self._ended(sample, ask) for sample in reply.samples]
        return self._output(place, reply, samples, tally, broken, {})

    async def _verified(
        self, place: PromptNode, ask: Gen, constraint: Constraint, tally: AttemptUsage, first: ServerReply | None = None
    ) -> tuple[PromptNode, Output]:
        """Request without the server's enforcement, or by a schema that it enforces, and again until the answers satisfy
        the constraint: the rest of an answer that begins so is cut off. `first`: a reply that has come already."""
        schema = as_schema(constraint) if self._schemas_for_values and not self.enforces(constraint) else None
        if schema is not None and (ask.params.return_logprob or not self.enforces(schema) or not self.takes_schema(place)):
            schema = None
        params, asked = ask.params, constraint
        if schema is not None:  # the object's tokens count, and a stop may be in it
            params, asked = replace(params, max_new_tokens=params.max_new_tokens + _ROOM, stop=(), stop_regex=()), schema
        found: list[Sample] = []
        reply = ServerReply(())
        for attempt in range(tally.unmet, self.attempts):
            wanted = replace(ask, seed=ask.seed + attempt, params=replace(params, n=params.n - len(found)), constraint=asked)
            try:
                reply = first or await self._accepted(place, wanted, None, None, tally)
                first = None
            except Fault as fault:
                if schema is None or fault.status not in _TOO_MUCH:
                    raise
                schema, params, asked = None, ask.params, constraint  # which was not the program's: servers refuse schemas in many words
                reply = await self._accepted(place, replace(wanted, params=replace(params, n=wanted.params.n), constraint=asked), None, None, tally)
                self._schemas_for_values = False
                log("backend", f"{self.name} does not take a schema for {constraint.kind}: {fault.message}")
            for sample in reply.samples:
                if self.enforces(constraint) and self._keeps(constraint, sample, ask):
                    found.append(self._ended(sample, ask))
                    continue
                said = sample if schema is None else replace(sample, text=answer_in(constraint, sample.text))
                text = sample.text if sample.extra.get("tool_calls") or sample.withheld else matching(constraint, self._ended(said, ask).text)
                if text is None and constraint.kind == "json_schema" and sample.finish.get("type") == "length" and sample.text.lstrip().startswith(("{", "[")):
                    text = sample.text  # cut: marked for the reader
                if text is not None:
                    found.append(sample if text == sample.text else Sample(text, {"type": "stop", "matched": None}, extra=sample.extra))
            if len(found) == ask.params.n:
                by = "schema" if schema is not None and self.enforces(schema) else "verified"
                meta = {"constraint": {"enforced": by, "attempts": attempt + 1}}
                return self._output(place, reply, found, tally, 0, meta)
        raise self._unmet(constraint, reply, self.attempts, ask)

    def _ended(self, sample: Sample, ask: Gen) -> Sample:
        """Cut the text after a sample's stops, for servers that were not sent all of them."""
        text, matched = cut(sample.text, self._stops(ask), ask.params.stop_regex)
        if matched is None:
            return sample
        return replace(sample, text=text, ids=None, finish={"type": "stop", "matched": matched})

    def _stops(self, ask: Gen) -> tuple[str, ...]:
        return ask.params.stop + (() if ask.params.ignore_eos else self.chat_template.stop)

    def _output(
        self, place: PromptNode, reply: ServerReply, samples: Sequence[Sample], tally: AttemptUsage, broken: int, extra: Mapping[str, Any]
    ) -> tuple[PromptNode, Output]:
        metas = tuple([{**meta_of(reply, sample, tally), **extra} for sample in samples])
        output = Output(tuple([sample.text for sample in samples]), metas, tally.usage, tuple(samples[0].ids or ()))
        return place.answered(samples[0].text, ids=samples[0].ids, broken=broken, blocks=samples[0].blocks), output

    async def choose_by_answer(self, place: PromptNode, ask: Select, tally: AttemptUsage, room: int = _ROOM) -> Output:
        """Choose by an answer that can only be a choice: by the server's constraint, or verified here. `room`: tokens
        that it may have besides the choice."""
        longest = max(len(choice.encode()) for choice in ask.choices)
        params = SamplingParams(max_new_tokens=longest + room, temperature=ask.temperature)
        constraint = self.choice_constraint(ask.choices)
        wanted = Gen(params, constraint, ask.seed, ask.name, ask.loc)
        exact = constraint is not None and self.enforces(constraint)
        reply = ServerReply(())
        for attempt in range(1 if exact else self.attempts):
            reply = await self._accepted(place, replace(wanted, seed=ask.seed + attempt), None, None, tally)
            if reply.samples[0].withheld:
                raise self._withheld(reply.samples[0])  # it is none of the choices, regardless of on_refusal
            chosen = choice_in(reply.samples[0].text, ask.choices)
            if chosen is not None:
                how = {"by": "constrained" if exact else "verified", "attempts": attempt + 1}
                return Output((chosen,), ({"choice": how, "id": reply.id, "model": reply.model, **reply.meta, **cost_of(tally)},), tally.usage)
        last = f"{reply.samples[0].text[:80]!r}"
        if exact:
            raise UnmetConstraint(f"{self.name}: the server was asked for one of the choices by a schema, and answered {last}: it ignores schemas", loc=ask.loc)
        raise UnmetConstraint(f"{self.name}: none of {self.attempts} answers is one of the choices; the last is {last}", loc=ask.loc)

    def choice_constraint(self, choices: Sequence[str]) -> Constraint | None:
        """Return the constraint that makes an answer one of the choices; None: there is none, and it is verified."""
        return None

    @property
    def client(self) -> Client:
        """Return the client; on the loop's thread, while a request is in progress."""
        return self._client.now


def _desk(hints: Hints) -> BatchQueue | None:
    return None if hints.run is None else hints.run.desk


def _start(parts: Sequence[Part | Image]) -> str:
    """Return the beginning of the program's appended text, for a log."""
    return "".join(part for part in parts if isinstance(part, str))[:20]


def _spoken(found: FoundAnswer) -> Output:
    meta = {"finish_reason": found.finish, "prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0, "speculated": True}
    return Output((found.text,), (meta,), Usage())


def _begin(backend: weakref.ref[ApiBackend], inbox: SubmissionInbox) -> None:
    """Start the submissions that have arrived; on the loop."""
    inbox.posted = False
    found, works = backend(), list[Submission]()
    while inbox:
        work = inbox.popleft()
        if found is None or work.abandoned:
            error = CancelledError("the answer is no longer awaited")
            work.fail(error)
            work.complete(error)
        elif work.after is None:
            works.append(work)
    if found is not None:
        found.begin(works)
