"""What all API backends share: handles, the order of answers, cancelling, verified constraints, speculation. No protocol of a server.

Who keeps what alive:

    Handle ──► _Ticket ──► Work ──► the ticket of its parent (until that has answered)
    Result ──► _Ticket     the task of a Work knows results only weakly: when nobody wants an answer any more,
                           the ticket goes, and with it the request
"""

from __future__ import annotations

import asyncio
import json
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from lmc import observing
from lmc.backend.api.batch_api import BatchApi
from lmc.backend.api.batches import Desk
from lmc.backend.api.bodies import FILTERED, REFUSAL, choice_in, cost_of
from lmc.backend.api.caching import CacheRules
from lmc.backend.api.client import Client, Fault, Ledger, Patience, Spending, Tally, Wire
from lmc.backend.api.loop import Loop
from lmc.backend.api.messages import outside
from lmc.backend.api.place import ROOT, Place, Rest
from lmc.backend.api.speculation import Found, cut, follow, speculative
from lmc.backend.api.verify import matching
from lmc.backend.base import (
    HEALTHY,
    Beyond,
    Capabilities,
    Counters,
    Handle,
    Health,
    Hints,
    Output,
    Prices,
    Result,
    Usage,
    charge,
    check_supported,
)
from lmc.chat import ChatTemplate
from lmc.config import log
from lmc.errors import (
    BackendError,
    CancelledError,
    ConstraintError,
    Filtered,
    LmcError,
    ParameterError,
    Refused,
    UnsupportedOpError,
)
from lmc.forking import belongs_here
from lmc.prompt import Constraint, Gen, Given, Image, Mark, Part, SamplingParams, Segment, Select, Text

Feed = Callable[[str], None]
_NO_HINTS = Hints()
BEGIN = 8
"""Requests at once to a service that has limits, before it has said which."""

OnRefusal = Literal["raise", "return"]
_TOO_MUCH = (400, 413, 422)  # what servers answer to a limit that is beyond theirs


@dataclass(frozen=True, slots=True)
class Sample:
    """One text of an answer as the server gave it.

    finish  how it ended, as `meta["finish_reason"]` says it
    tokens  log-probability, id (None where the server gives none) and text of each token, if they were asked for
    top     for each token the likeliest ones, the same way
    ids     of the tokens, where the server gives ids
    extra   more for the meta info, such as tool calls
    """

    text: str
    finish: Mapping[str, Any]
    tokens: tuple[tuple[float | None, int | None, str], ...] | None = None
    top: tuple[tuple[tuple[float, int | None, str], ...], ...] | None = None
    ids: tuple[int, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def blocks(self) -> Sequence[Mapping[str, Any]]:
        """What the server wants to see again beside the text."""
        return self.extra.get("blocks") or ()

    @property
    def withheld(self) -> bool:
        """Whether the model refused, or a filter stopped it."""
        return self.finish.get("type") in (REFUSAL, FILTERED)


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer to one request. `expected`: text it has to begin with, which is no part of the answer; `stops`: sent with it."""

    samples: tuple[Sample, ...]
    id: str = ""
    model: str = ""
    expected: str = ""
    stops: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])


# -- handles ---------------------------------------------------------------------------------------------------------


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Work:
    """A submission on its way: what is to be done, and what became of it. Belongs to the loop's thread once submitted."""

    __slots__ = ("__weakref__", "abandoned", "after", "hints", "parent", "results", "segments", "tally", "task", "waiting")

    def __init__(self, segments: Sequence[Segment], hints: Hints, parent: _Ticket | None) -> None:
        self.segments, self.hints, self.parent = tuple(segments), hints, parent
        self.results: list[weakref.ref[_ApiResult]] = []
        self.after: Place | BaseException | None = None  # the prompt's end, once known
        self.waiting: list[Callable[[], object]] = []  # called once it is
        self.task: Cancellable | None = None
        self.tally: Tally | None = None  # what was spent for its answer before its task began
        self.abandoned = False  # nobody wants it any more

    def complete(self, after: Place | BaseException) -> None:
        if self.after is None:
            self.after, self.parent = after, None
            waiting, self.waiting = self.waiting, []
            for wake in waiting:
                wake()

    def fail(self, error: BaseException) -> None:
        """Fails what is unfinished; everything that waits for it fails with the same error. From any thread."""
        for ref in self.results:
            result = ref()
            if result is not None:
                result.fail(error)


class _Ticket:
    """Somebody may still want what a submission brings. Its end ends the request."""

    __slots__ = ("ledger", "loop", "role", "work")

    def __init__(self, loop: Loop, work: Work, role: str | None, ledger: Ledger) -> None:
        self.loop, self.work, self.role, self.ledger = loop, work, role, ledger

    def __del__(self) -> None:
        # may run in any thread, at any moment, also inside the garbage collector: only ever posts
        self.work.abandoned = True
        task = self.work.task
        if self.work.after is None and task is not None:
            self.loop.post_if_running(task.cancel)


class _ApiResult(Result):
    """A result that keeps its request alive for as long as somebody may read it."""

    __slots__ = ("__weakref__", "_ticket")

    def __init__(self, ticket: _Ticket) -> None:
        super().__init__()
        self._ticket = ticket


class ApiHandle:
    """A prompt on its way to an API, up to and including its submission."""

    __slots__ = ("_results", "ticket")

    def __init__(self, ticket: _Ticket, results: tuple[Result, ...]) -> None:
        self.ticket, self._results = ticket, results

    @property
    def results(self) -> Sequence[Result]:
        return self._results

    def cancel(self) -> None:
        """Stops what is unfinished; its results, and those of everything that depends on them, fail."""
        work = self.ticket.work
        if work.hints.guess:
            self.ticket.ledger.add(wasted=1)
        error = CancelledError("the request was cancelled before its answer was complete")
        work.fail(error)
        self.ticket.loop.post(_cancel, work, error)


def _cancel(work: Work, error: BaseException) -> None:
    work.complete(error)
    if work.task is not None:
        work.task.cancel()


# -- the backend -----------------------------------------------------------------------------------------------------


class ApiBackend(ABC):
    """The Backend protocol over a client. A subclass says how a request is written and what an answer means.

    concurrency  requests at once, at most
    begin        requests at once before anything is known of the server's limits; None: it has none
    patience     retries and time-outs
    prices       for a million tokens, for `spent()` and for budgets of cost
    speculate    whether one request may cover several answers of a program
    attempts     how often an answer is asked for whose constraint the server cannot enforce
    on_refusal   whether refused and filtered answers raise, or are answers whose meta info says so
    """

    def __init__(
        self,
        name: str,
        wire: Callable[[], Wire],
        *,
        template: ChatTemplate,
        concurrency: int = 64,
        patience: Patience | None = None,
        prices: Prices | None = None,
        speculate: bool = True,
        attempts: int = 4,
        on_refusal: OnRefusal = "raise",
        begin: int | None = None,
    ) -> None:
        if concurrency < 1 or attempts < 1:
            raise ParameterError(f"{name}: concurrency and attempts are at least 1")
        if on_refusal not in ("raise", "return"):
            raise ParameterError(f"{name}: on_refusal={on_refusal!r}: must be 'raise' or 'return'")
        self.name, self.chat_template, self._prices = name, template, prices
        self.speculate, self.attempts, self.on_refusal = speculate, attempts, on_refusal
        self.ledger = Ledger(prices)
        self._loop = Loop(f"lmc-{name}"[:40])
        self._client = _Lazy(wire, self._loop, name, self.ledger, concurrency, patience or Patience(), begin)
        self._works: weakref.WeakSet[Work] = weakref.WeakSet()
        self._inbox = _Inbox()
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

    # what a subclass says

    wants_shared = False
    """Whether requests are to say what those to come have in common with them (Hints.shared)."""

    cache_rules: CacheRules | None = None
    """What its server says of its cache of prompts, if it has one that is paid for."""

    has_batches = False
    """Whether its server answers batches of requests, which may take a day and cost half."""

    def batch_api(self) -> BatchApi:
        """The batches of its server. On the loop's thread, once a request is on its way."""
        raise UnsupportedOpError("deadline=", self.name, "leave it out, or use lmc.OpenAI or lmc.Anthropic")

    def check_batched(self, ask: Gen | Select) -> None:
        """Raises for what no batch can express."""

    @property
    def tokens_per_byte(self) -> float:
        """Of a prompt, as the server has counted them so far; before, a token is four bytes."""
        return 0.25

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @abstractmethod
    def check(self, ask: Gen | Select) -> None:
        """Raises for what no request can express."""

    @abstractmethod
    async def generate(self, place: Place, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: Tally) -> Reply:
        """Asks. With `beyond`, the answer may go on beyond its own end, and lists its tokens if the server can."""

    @abstractmethod
    async def choose(self, place: Place, ask: Select, tally: Tally) -> Output:
        """Asks which choice the model finds likeliest."""

    def enforces(self, constraint: Constraint) -> bool:
        """Whether the server keeps answers within it; else they are verified here, and asked for again."""
        return True

    async def prepare(self) -> None:
        """Awaited once, before the first request: what has to be found out about the server."""

    async def warm(self, place: Place, hints: Hints) -> None:
        """Computes a prompt ahead, where the server keeps what it computed."""

    # the protocol

    def submit(self, parent: Handle | None, segments: Sequence[Segment], hints: Hints | None = None) -> ApiHandle:
        """Extends `parent` by a chain of segments; see Backend.submit."""
        ticket = self._ticket_of(parent)
        role = self._check(ticket, segments)
        hints = hints or _NO_HINTS
        if _desk(hints) is not None:
            self._check_batched(segments)
        if hints.group is not None:
            self.ledger.submitted(hints)
        work = Work(segments, hints, ticket)
        mine = _Ticket(self._loop, work, role, self.ledger)
        results = tuple([_ApiResult(mine) for s in segments if isinstance(s, (Gen, Select))])
        work.results = [weakref.ref(r) for r in results]
        self._works.add(work)
        if not results and not work.hints.pin and (ticket is None or isinstance(ticket.work.after, Place)):
            work.complete(self._extended(ROOT if ticket is None else ticket.work.after, segments))  # type: ignore[arg-type]
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
        """Nothing is pinned: what a server caches is its own business."""

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
        """What the server reported for everything so far, with the attempts of which it reported nothing apart."""
        return self.ledger.spent()

    def flush_cache(self) -> None:
        """Nothing is cached here."""

    def server_info(self) -> dict[str, Any]:
        spent = self.spent()
        return {"name": self.name, "attempts": spent.attempts, "retries": spent.retries, "unreported": spent.unreported, "speculated": spent.speculated, "wasted": spent.wasted, **self._client.said}

    def health(self) -> Health:
        """Closed or not: whether its server answers is that server's to say."""
        return Health("closed", f"{self.name} was closed") if self._loop.closed else HEALTHY

    def close(self) -> None:
        """Cancels what is running, closes the connections and ends the thread; idempotent."""
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

    def _ticket_of(self, parent: Handle | None) -> _Ticket | None:
        self._check_open()
        if parent is None:
            return None
        if not isinstance(parent, ApiHandle) or parent.ticket.loop is not self._loop:
            raise BackendError(f"{self.name} was given a handle of another backend")
        return parent.ticket

    def _check(self, parent: _Ticket | None, segments: Sequence[Segment]) -> str | None:
        """Refuses what cannot be asked; gives the role of the message that is open behind the segments."""
        able = self.capabilities
        check_supported(able, segments)
        role = parent.role if parent is not None else None
        for segment in segments:
            if isinstance(segment, Text):
                role = self._role_after(role, segment, able.raw_text)
            elif not isinstance(segment, Image | Given):
                if not able.raw_text and role != "assistant":
                    where = "between messages" if role is None else f"in {role} messages"
                    raise UnsupportedOpError(f"answers {where}", able.name, "write lmc.assistant(lmc.gen(…))", loc=segment.loc)
                if isinstance(segment, Gen) and segment.tools and role != "assistant":
                    raise UnsupportedOpError("gen(tools=…) outside of an assistant's message", able.name, "write lmc.assistant(lmc.gen(…, tools=…))", loc=segment.loc)
                self.check(segment)
        return role

    def _check_batched(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if isinstance(segment, Gen | Select):
                if not self.has_batches:
                    raise UnsupportedOpError("deadline=", self.name, "it has no batch API: leave it out, or use lmc.OpenAI or lmc.Anthropic", loc=segment.loc)
                self.check_batched(segment)

    def _role_after(self, role: str | None, text: Text, raw_text: bool) -> str | None:
        for part in text.parts:
            if isinstance(part, Mark):
                role = part.role if part.edge == "begin" else None
            elif not raw_text and role is None and (not isinstance(part, str) or part.strip()):
                raise outside(self.name)
        return role

    def _extended(self, place: Place, segments: Sequence[Segment]) -> Place:
        for segment in segments:
            if isinstance(segment, Given):
                place = place.answered(segment.text, ids=segment.ids or None, blocks=json.loads(segment.blocks) if segment.blocks else ())
                continue
            place = place.literal(segment.parts if isinstance(segment, Text) else (segment,) if isinstance(segment, Image) else ())
        return place

    # on the loop

    def begin(self, works: Sequence[Work]) -> None:
        """Start submissions; those before them were started before."""
        for work in works:
            self.alone(work)

    def alone(self, work: Work) -> None:
        """Start a submission as a task of its own."""
        work.task = self._loop.spawn(self._run(work))

    async def _run(self, work: Work) -> None:
        try:
            await self._client.ready(self.prepare)
            place = await _place_of(work.parent)
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
        except Exception as error:  # it belongs to this request: whoever reads the answer sees it
            work.fail(error)
            work.complete(error)

    async def _answered(self, place: Place, work: Work) -> Place:
        """Where the prompt ends when all that a submission asks is answered."""
        index = 0
        for segment in work.segments:
            if isinstance(segment, (Gen, Select)):
                place = await self._answer(place, segment, work, work.results[index])
                index += 1
            else:
                place = self._extended(place, (segment,))
        return place

    async def _answer(self, place: Place, ask: Gen | Select, work: Work, result: weakref.ref[_ApiResult]) -> Place:
        tally = work.tally or Tally(ask.name, ask.loc, work.hints.shared, work.hints.trace)
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
                    log("backend", f"{self.name}: {ask.name!r} failed before this process ({fault.message}); it is asked again")
        except Fault as fault:
            self.spent_in_vain(work, result, tally)
            failed = self._client.now.failed(fault, tally)
            raise Filtered(failed.message, loc=failed.loc) if fault.filtered else failed from None
        except LmcError as error:
            self.spent_in_vain(work, result, tally)
            error.loc = error.loc or ask.loc
            raise
        self.finish(work, result, output)
        return after

    def spent_in_vain(self, work: Work, result: weakref.ref[_ApiResult], tally: Tally) -> None:
        """An answer of a submission fails, and has cost something all the same."""
        charge(work.hints.owner, tally.usage)
        waiting = result()
        if waiting is not None:
            waiting.in_vain = tally.usage, tally.unreported

    def finish(self, work: Work, result: weakref.ref[_ApiResult], output: Output) -> None:
        """An answer of a submission is there."""
        if self._prices is not None:
            cost = self._prices.of(output.usage)
            output = replace(output, metas=tuple({**meta, "cost": cost} for meta in output.metas))
        charge(work.hints.owner, output.usage)
        waiting = result()
        if waiting is not None:
            waiting.finish(output)

    async def _asked_for(
        self, place: Place, ask: Gen | Select, work: Work, result: weakref.ref[_ApiResult], tally: Tally
    ) -> tuple[Place, Output]:
        if isinstance(ask, Gen):
            feed = _feeder(result) if work.hints.watched and ask.params.n == 1 and tally.waves is None else None
            return await self._gen(place, ask, work.hints, feed, tally)
        output = await self.choose(place, ask, tally)
        return place.answered(output.text), output

    async def _gen(self, place: Place, ask: Gen, hints: Hints, feed: Feed | None, tally: Tally) -> tuple[Place, Output]:
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
            log("spec", f"{self.name} refuses one request for several answers ({fault.message}); they are asked one by one")
            return await self._alone(place, ask, hints.beyond.gens, feed, tally)
        found = self._first(reply, ask, hints.beyond)
        if found is None:
            log("spec", f"{self.name}: the answer to {ask.name!r} cannot be told from one request for several; it is asked alone")
            self.ledger.add(wasted=1)
            return await self._alone(place, ask, hints.beyond.gens, feed, tally)
        meta = {**self._meta(reply, reply.samples[0], tally), "finish_reason": found.finish}
        return place.answered(found.text, rest=found.rest), Output((found.text,), (meta,), tally.usage)

    def _first(self, reply: Reply, ask: Gen, beyond: Beyond) -> Found | None:
        """The answer itself, out of a text that may go on behind it."""
        sample = reply.samples[0]
        if sample.finish.get("type") == REFUSAL:
            return None
        texts = tuple(text for _, _, text in sample.tokens) if sample.tokens is not None else None
        if texts is not None and "".join(texts) != sample.text:
            texts = None  # parts of characters: they cannot be counted by their texts
        ended = "stop" if sample.finish.get("type") == "stop" else "length"  # a filter, too, leaves open what would have come
        rest = Rest(sample.text, ended, ask.params, 0, reply.stops, texts, beyond.gens + 1)
        return follow(rest, (reply.expected,) if reply.expected else (), ask, self._stops(ask))

    async def _accepted(self, place: Place, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: Tally) -> Reply:
        """Asks; a refused or filtered answer raises, unless it is wanted as an answer."""
        reply = await self.generate(place, ask, beyond, feed, tally)
        withheld = next((sample for sample in reply.samples if sample.withheld), None)
        if withheld is not None and self.on_refusal == "raise":
            raise self._withheld(withheld)
        return reply

    def _withheld(self, sample: Sample) -> Refused | Filtered:
        what, kind = ("the model refused to answer", Refused) if sample.finish["type"] == REFUSAL else ("a content filter stopped the answer", Filtered)
        error = kind(f"{self.name}: {what}{f': {sample.text[:200]!r}' if sample.text else ''}; on_refusal=\"return\" on the backend gives it as an answer")
        error.text = sample.text
        return error

    async def _alone(self, place: Place, ask: Gen, broken: int, feed: Feed | None, tally: Tally) -> tuple[Place, Output]:
        """Asks for one answer and nothing else. `broken`: answers to come of a plan that was not followed."""
        if ask.constraint is not None and not self.enforces(ask.constraint):
            return await self._verified(place, ask, ask.constraint, tally)
        return self.output_of(place, ask, await self._accepted(place, ask, None, feed, tally), tally, broken)

    def output_of(self, place: Place, ask: Gen, reply: Reply, tally: Tally, broken: int = 0) -> tuple[Place, Output]:
        """The answer in a reply, and the prompt with it."""
        samples = [self._ended(sample, ask) for sample in reply.samples]
        return self._output(place, reply, samples, tally, broken, {})

    async def _verified(self, place: Place, ask: Gen, constraint: Constraint, tally: Tally) -> tuple[Place, Output]:
        """Asks without the server's help, and again until the answers are within it: the rest of an answer that begins so is cut off."""
        found: list[Sample] = []
        reply = Reply(())
        for attempt in range(self.attempts):
            wanted = replace(ask, seed=ask.seed + attempt, params=replace(ask.params, n=ask.params.n - len(found)))
            reply = await self._accepted(place, wanted, None, None, tally)
            for sample in reply.samples:
                text = sample.text if sample.extra.get("tool_calls") or sample.withheld else matching(constraint, self._ended(sample, ask).text)
                if text is None and constraint.kind == "json_schema" and sample.finish.get("type") == "length" and sample.text.lstrip().startswith(("{", "[")):
                    text = sample.text  # cut: who reads it is told so
                if text is not None:
                    found.append(sample if text == sample.text else Sample(text, {"type": "stop", "matched": None}, extra=sample.extra))
            if len(found) == ask.params.n:
                meta = {"constraint": {"enforced": "verified", "attempts": attempt + 1}}
                return self._output(place, reply, found, tally, 0, meta)
        last = reply.samples[-1].text if reply.samples else ""
        raise ConstraintError(
            f"{self.name} cannot enforce {constraint.kind}=… and none of {self.attempts} answers is within it; the last is {last[:80]!r}. "
            f"Use a server that can, or say in the prompt what the answer looks like",
            loc=ask.loc,
        )

    def _ended(self, sample: Sample, ask: Gen) -> Sample:
        """A sample without what follows its stops, for servers that were not told all of them."""
        text, matched = cut(sample.text, self._stops(ask), ask.params.stop_regex)
        if matched is None:
            return sample
        return replace(sample, text=text, ids=None, finish={"type": "stop", "matched": matched})

    def _stops(self, ask: Gen) -> tuple[str, ...]:
        return ask.params.stop + (() if ask.params.ignore_eos else self.chat_template.stop)

    def _output(
        self, place: Place, reply: Reply, samples: Sequence[Sample], tally: Tally, broken: int, extra: Mapping[str, Any]
    ) -> tuple[Place, Output]:
        metas = tuple([{**self._meta(reply, sample, tally), **extra} for sample in samples])
        output = Output(tuple([sample.text for sample in samples]), metas, tally.usage, tuple(samples[0].ids or ()))
        return place.answered(samples[0].text, ids=samples[0].ids, broken=broken, blocks=samples[0].blocks), output

    def _meta(self, reply: Reply, sample: Sample, tally: Tally) -> dict[str, Any]:
        """What an answer says of itself, under SGLang's keys."""
        found: dict[str, Any] = {
            "id": reply.id,
            "model": reply.model,
            "finish_reason": dict(sample.finish),
            "prompt_tokens": tally.usage.prompt_tokens,
            "completion_tokens": tally.usage.completion_tokens,
            "cached_tokens": tally.usage.cached_tokens,
            **tally.meta,
            **reply.meta,
            **sample.extra,
        }
        if sample.tokens is not None:
            found["output_token_logprobs"] = [list(token) for token in sample.tokens]
        if sample.top is not None:
            found["output_top_logprobs"] = [[list(token) for token in tokens] for tokens in sample.top]
        return found

    async def choose_by_answer(self, place: Place, ask: Select, tally: Tally) -> Output:
        """By an answer that can be nothing else than a choice: the server's constraint, or verified here."""
        longest = max(len(choice.encode()) for choice in ask.choices)
        params = SamplingParams(max_new_tokens=longest + 16, temperature=ask.temperature)
        constraint = self.choice_constraint(ask.choices)
        wanted = Gen(params, constraint, ask.seed, ask.name, ask.loc)
        exact = constraint is not None and self.enforces(constraint)
        reply = Reply(())
        for attempt in range(1 if exact else self.attempts):
            reply = await self._accepted(place, replace(wanted, seed=ask.seed + attempt), None, None, tally)
            if reply.samples[0].withheld:
                raise self._withheld(reply.samples[0])  # it is none of the choices, whatever on_refusal says
            chosen = choice_in(reply.samples[0].text, ask.choices)
            if chosen is not None:
                how = {"by": "constrained" if exact else "verified", "attempts": attempt + 1}
                return Output((chosen,), ({"choice": how, "id": reply.id, "model": reply.model, **reply.meta, **cost_of(tally)},), tally.usage)
        raise ConstraintError(f"{self.name}: none of {self.attempts} answers is one of the choices; the last is {reply.samples[0].text[:80]!r}", loc=ask.loc)

    def choice_constraint(self, choices: Sequence[str]) -> Constraint | None:
        """What makes an answer one of the choices; None: nothing does, and it is verified."""
        return None

    @property
    def client(self) -> Client:
        """On the loop's thread, once a request is on its way."""
        return self._client.now


def _desk(hints: Hints) -> Desk | None:
    return None if hints.run is None else hints.run.desk


def _start(parts: Sequence[Part | Image]) -> str:
    """What the program appended, for a log."""
    return "".join(part for part in parts if isinstance(part, str))[:20]


def _spoken(found: Found) -> Output:
    meta = {"finish_reason": found.finish, "prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0, "speculated": True}
    return Output((found.text,), (meta,), Usage())


class _Lazy:
    """A client that is made on the loop when the first request needs it, with what the backend then finds out about its server."""

    def __init__(self, wire: Callable[[], Wire], loop: Loop, name: str, ledger: Ledger, concurrency: int, patience: Patience, begin: int | None) -> None:
        self._wire, self._loop, self._name, self._ledger, self._concurrency, self._patience, self._begin = wire, loop, name, ledger, concurrency, patience, begin
        self._made: Client | None = None
        self._prepared: asyncio.Task[Any] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a request may be sent."""
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
            wire = self._wire()
            self._made = Client(wire, name=self._name, ledger=self._ledger, concurrency=self._concurrency, patience=self._patience, begin=self._begin)
            self._loop.at_close(wire.close)
        if self._prepared is None:
            self._prepared = self._loop.spawn(prepare())
        if self._prepared.done():
            self._prepared.result()
        else:
            await asyncio.shield(self._prepared)


class _Inbox(deque[Work]):
    """Submissions that the loop has not seen. `posted`: it will look, and has not begun to."""

    posted = False


def _begin(backend: weakref.ref[ApiBackend], inbox: _Inbox) -> None:
    """On the loop: starts the submissions that are there."""
    inbox.posted = False
    found, works = backend(), list[Work]()
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


async def _place_of(parent: _Ticket | None) -> Place:
    """Where a submission goes on: waits for its parent's answers, and raises what they failed with."""
    if parent is None:
        return ROOT
    work = parent.work
    if work.after is None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        work.waiting.append(lambda: future.done() or future.set_result(None))
        await future
    if isinstance(work.after, BaseException):
        raise work.after
    assert work.after is not None
    return work.after


def _feeder(ref: weakref.ref[_ApiResult]) -> Feed:
    def feed(delta: str) -> None:
        result = ref()
        if result is not None and not result.done:
            result.feed(delta)

    return feed
