"""Answers to single requests: from the text of an earlier one where that is certain, of refusals none, within their constraint, or of choices one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmc.backend.api.bodies import REFUSAL, choice_in
from lmc.backend.api.exchange import Fault
from lmc.backend.api.handles import Feed
from lmc.backend.api.place import PromptNode, Rest
from lmc.backend.api.replies import Sample, ServerReply, meta_of
from lmc.backend.api.speculation import FoundAnswer, cut, follow, speculative
from lmc.backend.api.spending import AttemptUsage, UsageLedger
from lmc.backend.api.terms import ApiTerms
from lmc.backend.api.verify import answer_in, as_schema, keeps, matching
from lmc.backend.base import Beyond, Hints
from lmc.backend.results import Output
from lmc.backend.usage import Usage
from lmc.chat import ChatTemplate
from lmc.config import log
from lmc.errors import Filtered, Refused, UnmetConstraint
from lmc.segments import Constraint, Gen, Image, Part, SamplingParams, Select

_ROOM = 16  # tokens of an object around an answer
_TOO_MUCH = (400, 413, 422)  # status of servers for a limit beyond theirs


class Answering(ABC):
    """Gets answers by requests, which a subclass makes."""

    def __init__(self, name: str, template: ChatTemplate, terms: ApiTerms, ledger: UsageLedger) -> None:
        self.name, self.chat_template, self.ledger, self._terms = name, template, ledger, terms
        self._cannot: set[str] = set()  # parameters that the model has refused
        self._schemas_for_values = True  # until its server has refused a schema that stands for a regex

    async def generate(self, place: PromptNode, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: AttemptUsage) -> ServerReply:
        """Request an answer, again without a dispensable parameter that the model does not take. With `beyond`, the answer may continue beyond its own
        end, and lists its tokens if the server can."""
        if ask.params.max_new_tokens == 0 and beyond is None and ask.params.logprob_start_len in (None, -1):  # else the prompt is scored
            return ServerReply((Sample("", {"type": "length", "length": 0}),) * ask.params.n)
        while True:
            known = frozenset(self._cannot)  # other requests may learn while this is in flight
            try:
                return await self.requested(place, ask, beyond, feed, tally)
            except Fault as fault:
                if not self.learn(fault, known, self.by_messages(place, ask)):
                    raise

    def learn(self, fault: Fault, known: Collection[str], by_messages: bool) -> bool:
        """Return whether a refusal tells what to leave out, besides what is `known`, so that the same may be requested again."""
        name = self.dispensable(fault, by_messages)
        if name is None or name in known:
            return False
        self.leave_out(name, fault.message)
        return True

    def leave_out(self, name: str, why: str) -> None:
        """Leave a parameter out from now on."""
        if name not in self._cannot:
            self._cannot.add(name)
            log("backend", f"{self.name} does not take {name}: {why}")

    @abstractmethod
    async def requested(self, place: PromptNode, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: AttemptUsage) -> ServerReply:
        """Request an answer, without what is in `_cannot`."""

    @abstractmethod
    def dispensable(self, fault: Fault, by_messages: bool) -> str | None:
        """Return the parameter that a fault refuses and that can be left out; None: it is another fault."""

    def by_messages(self, place: PromptNode, ask: Gen | Select) -> bool:
        """Return whether this is requested as a conversation, not as text."""
        return True

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

    def choice_constraint(self, choices: Sequence[str]) -> Constraint | None:
        """Return the constraint that makes an answer one of the choices; None: there is none, and it is verified."""
        return None

    async def answer(self, place: PromptNode, ask: Gen, hints: Hints, feed: Feed | None, tally: AttemptUsage) -> tuple[PromptNode, Output]:
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
        if hints.beyond is None or not self._terms.speculate or not speculative(ask):
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
        meta = {**meta_of(reply, reply.samples[0], tally.meta), "finish_reason": found.finish}
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
        if withheld is not None and self._terms.on_refusal == "raise":
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
        if constraint is None or self.keeps(ask, reply, shown=feed is not None):
            return self.output_of(place, ask, reply, tally, broken)
        if feed is not None:  # what was shown as it came is the answer
            raise self._unmet(constraint, reply, 1, ask)
        tally.unmet = reply
        return await self._verified(place, ask, constraint, tally)

    def keeps(self, ask: Gen, reply: ServerReply, *, shown: bool = False) -> bool:
        """Return whether the answers are within a constraint that the server has taken, as far as that can be known: many servers ignore some."""
        if ask.constraint is None or all(self._keeps(ask.constraint, sample, ask, shown) for sample in reply.samples):
            return True
        log("backend", f"{self.name} takes {ask.constraint.kind} and does not keep to it: {reply.samples[-1].text[:80]!r}")
        return False

    def _keeps(self, constraint: Constraint, sample: Sample, ask: Gen, shown: bool) -> bool:
        if sample.withheld or sample.extra.get("tool_calls") or sample.finish.get("type") == "length":
            return True
        params = ask.params
        return keeps(constraint, self._ended(sample, ask).text, cut=bool(params.stop or params.stop_regex or params.stop_token_ids), shown=shown)

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

    async def _verified(self, place: PromptNode, ask: Gen, constraint: Constraint, tally: AttemptUsage) -> tuple[PromptNode, Output]:
        """Request without the server's enforcement, or by a schema that it enforces, and again until the answers satisfy
        the constraint: the rest of an answer that begins so is cut off. A reply that has come already is the first."""
        schema = as_schema(constraint) if self._schemas_for_values and not self.enforces(constraint) else None
        if schema is not None and (ask.params.return_logprob or not self.enforces(schema) or not self.takes_schema(place)):
            schema = None
        params, asked = ask.params, constraint
        if schema is not None:  # the object's tokens count, and a stop may be in it
            params, asked = replace(params, max_new_tokens=params.max_new_tokens + _ROOM, stop=(), stop_regex=()), schema
        found: list[Sample] = []
        reply = ServerReply(())
        for attempt in range(self._terms.attempts):
            wanted = replace(ask, seed=ask.seed + attempt, params=replace(params, n=params.n - len(found)), constraint=asked)
            try:
                reply, tally.unmet = tally.unmet or await self._accepted(place, wanted, None, None, tally), None
            except Fault as fault:
                if schema is None or fault.status not in _TOO_MUCH:
                    raise
                schema, params, asked = None, ask.params, constraint  # which was not the program's: servers refuse schemas in many words
                reply = await self._accepted(place, replace(wanted, params=replace(params, n=wanted.params.n), constraint=asked), None, None, tally)
                self._schemas_for_values = False
                log("backend", f"{self.name} does not take a schema for {constraint.kind}: {fault.message}")
            for sample in reply.samples:
                if self.enforces(constraint) and self._keeps(constraint, sample, ask, shown=False):
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
        raise self._unmet(constraint, reply, self._terms.attempts, ask)

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
        metas = tuple([{**meta_of(reply, sample, tally.meta), **extra} for sample in samples])
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
        for attempt in range(1 if exact else self._terms.attempts):
            reply = await self._accepted(place, replace(wanted, seed=ask.seed + attempt), None, None, tally)
            if reply.samples[0].withheld:
                raise self._withheld(reply.samples[0])  # it is none of the choices, regardless of on_refusal
            chosen = choice_in(reply.samples[0].text, ask.choices)
            if chosen is not None:
                how = {"by": "constrained" if exact else "verified", "attempts": attempt + 1}
                return Output((chosen,), ({"choice": how, "id": reply.id, "model": reply.model, **reply.meta, **tally.meta},), tally.usage)
        last = f"{reply.samples[0].text[:80]!r}"
        if exact:
            raise UnmetConstraint(f"{self.name}: the server was asked for one of the choices by a schema, and answered {last}: it ignores schemas", loc=ask.loc)
        raise UnmetConstraint(f"{self.name}: none of {self._terms.attempts} answers is one of the choices; the last is {last}", loc=ask.loc)


def _start(parts: Sequence[Part | Image]) -> str:
    """Return the beginning of the program's appended text, for a log."""
    return "".join(part for part in parts if isinstance(part, str))[:20]


def _spoken(found: FoundAnswer) -> Output:
    meta = {"finish_reason": found.finish, "prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0, "speculated": True}
    return Output((found.text,), (meta,), Usage())
