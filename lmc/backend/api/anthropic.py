"""Anthropic's API (messages), on the anthropic SDK."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal

from lmc.backend.api import verify
from lmc.backend.api.anthropic_bodies import EventAssembler, answer_of, cacheable, text_of, tools_of, turns, usage_of, with_marks
from lmc.backend.api.backend import ApiBackend
from lmc.backend.api.batch_servers import AnthropicBatches
from lmc.backend.api.bodies import choice_schema, names, strict
from lmc.backend.api.caching import CacheBook, rules_of
from lmc.backend.api.client import Patience
from lmc.backend.api.exchange import Body, Fault, HttpRequest, Received, reading
from lmc.backend.api.handles import Feed
from lmc.backend.api.messages import MESSAGES, conversation
from lmc.backend.api.network import check_client_options, imported
from lmc.backend.api.place import PromptNode
from lmc.backend.api.replies import Sample, ServerReply
from lmc.backend.api.sdk import SdkWire, client_of_sdk
from lmc.backend.api.spending import AttemptUsage
from lmc.backend.api.streams import UNWATCHED, Watch
from lmc.backend.api.terms import BEGIN, ApiTerms, OnRefusal
from lmc.backend.base import Beyond, Capabilities
from lmc.backend.results import Output
from lmc.backend.usage import Prices
from lmc.errors import IncompleteAnswer, ParameterError, UnsupportedOpError
from lmc.segments import Constraint, Gen, SamplingParams, Select

_TAKEN = frozenset({"max_new_tokens", "n", "stop", "stop_regex", "temperature", "top_p", "top_k"})


class Anthropic(ApiBackend):
    """A model behind Anthropic's API.

    model_name  its name there
    api_key, base_url, default_headers, …  of the client; the environment's as the SDK reads it
    client   an `anthropic.AsyncAnthropic` of your own in place of one made here
    prices   for a million tokens: `lmc.Prices(prompt, completion)`; the cache's are Anthropic's multiples of them
    cache    lifetime of marked prompts in the cache, "5m" or "1h"; "auto": an hour where they recur only after
             five minutes; "off"
    concurrency, retries, timeout, patience, speculate, attempts, extra_body, on_refusal  as of `lmc.OpenAI`

    Extended thinking is `extra_body={"thinking": {"type": "enabled", "budget_tokens": 2048}}`: the answer's limit
    includes it, `meta["reasoning"]` is the thinking, and the blocks go back with the conversation unchanged. So with
    `{"type": "adaptive"}`, where the model decides how much. A `select` is made without it; on models that always think
    it has room for that, and wants `temperature=1`.

    An answer continues a message that the program has begun, if the model can (older ones do); for others that is
    refused. Closed JSON schemas are enforced by the API; other schemas and regexes are verified here (`attempts`
    times).
    """

    def __init__(
        self,
        model_name: str,
        *,
        client: Any = None,
        prices: Prices | None = None,
        concurrency: int = 64,
        retries: int = 6,
        timeout: float = 600.0,
        patience: Patience | None = None,
        speculate: bool = True,
        attempts: int = 4,
        extra_body: Mapping[str, Any] | None = None,
        on_refusal: OnRefusal = "raise",
        cache: Literal["auto", "5m", "1h", "off"] = "auto",
        **client_options: Any,
    ) -> None:
        if cache not in ("auto", "5m", "1h", "off"):
            raise ParameterError(f"cache={cache!r}: must be 'auto', '5m', '1h' or 'off'")
        self.model, self._extra = model_name, dict(extra_body or {})
        rules = rules_of(model_name)
        self._book = CacheBook(rules, cache)
        self._cache = self._book if cache != "off" else None
        self.wants_shared = self._cache is not None
        self.cache_rules = rules if self._cache is not None else None
        prices = prices and prices.with_cache(rules.read, rules.write, rules.write_hour)
        self._choosing_room = 16
        patience = patience or Patience(retries=retries, timeout=timeout)
        make = _wire_maker(client, patience.timeout, client_options)
        super().__init__(f"Anthropic({model_name})", make, MESSAGES, ApiTerms(concurrency, patience, prices, speculate, attempts, on_refusal, BEGIN))

    has_batches = True
    key = "api_key=… or ANTHROPIC_API_KEY"

    @property
    def _wire(self) -> AnthropicWire:
        wire = self.client.wire
        assert isinstance(wire, AnthropicWire)
        return wire

    async def models(self) -> Sequence[str]:
        return await self._wire.models()

    def batch_api(self) -> AnthropicBatches:
        return AnthropicBatches(self._wire)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            self.name, verify.VERIFIABLE, select=True, images=True, documents=True, n=True, streams=True, tools=True, raw_text=False, lookahead=True,
            prices=self._prices,
        )  # fmt: skip

    @property
    def _budget(self) -> int | None:
        """Return the tokens that an answer may spend on thinking, 0 if that is the model's to decide; None without
        thinking."""
        said: Any = self._extra.get("thinking")
        return None if not isinstance(said, dict) or said.get("type") == "disabled" else int(said.get("budget_tokens") or 0)

    @property
    def tokens_per_byte(self) -> float:
        return self._book.per_byte

    def server_info(self) -> dict[str, Any]:
        return {**super().server_info(), **({"held": self._cache.warmup.held} if self._cache is not None else {})}

    def check(self, ask: Gen | Select) -> None:
        if isinstance(ask, Select):
            return
        for f in fields(SamplingParams):
            value = getattr(ask.params, f.name)
            if value != f.default and f.name not in _TAKEN:
                raise UnsupportedOpError(f"gen({f.name}={value!r})", self.name, "leave it out", loc=ask.loc)
        if ask.params.temperature > 1:
            raise UnsupportedOpError(f"gen(temperature={ask.params.temperature:g})", self.name, "at most 1", loc=ask.loc)
        if self._budget is not None and (ask.params.temperature != 1 or ask.params.top_k != -1):
            raise UnsupportedOpError("gen(temperature=…, top_k=…) with extended thinking", self.name, "leave them out", loc=ask.loc)
        if self._budget is not None and ask.params.max_new_tokens <= self._budget:
            raise ParameterError(f"gen(max_tokens={ask.params.max_new_tokens}): thinking has {self._budget} of them, so give more", loc=ask.loc)
        if ask.constraint is not None and not self.enforces(ask.constraint):
            verify.check(ask.constraint)

    def enforces(self, constraint: Constraint) -> bool:
        return constraint.kind == "json_schema" and strict(json.loads(constraint.source)) and "output_config" not in self._cannot

    def takes_schema(self, place: PromptNode) -> bool:
        return not conversation(place, self.name).begun.strip()  # the API takes no schema for the rest of a message

    def choice_constraint(self, choices: Sequence[str]) -> Constraint | None:
        return choice_schema(choices)

    async def choose(self, place: PromptNode, ask: Select, tally: AttemptUsage) -> Output:
        tally.choosing, room = True, self._choosing_room
        try:
            return await self.choose_by_answer(place, ask, tally, room)
        except IncompleteAnswer:
            if self._budget != 0 or room == _THINKING_ROOM:
                raise
            self._choosing_room = _THINKING_ROOM  # a model that thinks unasked
            return await self.choose_by_answer(place, ask, tally, _THINKING_ROOM)

    async def requested(self, place: PromptNode, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: AttemptUsage) -> ServerReply:
        replies = await asyncio.gather(*[self._asked(place, ask, beyond, feed, tally) for _ in range(ask.params.n)])
        return replace(replies[0], samples=tuple(reply.samples[0] for reply in replies))

    def dispensable(self, fault: Fault, by_messages: bool) -> str | None:
        if fault.status != 400:
            return None
        said = fault.message.lower()
        return "prefill" if "prefill" in said else next((key for key in ("output_config", "cache_control") if names(fault, key) or key in said), None)

    async def _asked(self, place: PromptNode, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: AttemptUsage) -> ServerReply:
        found = conversation(place, self.name)
        system = "\n\n".join(text_of(m["content"]) for m in found.closed if m["role"] == "system")
        messages = turns([m for m in found.closed if m["role"] != "system"])
        begun, cut_off, expected = found.begun.rstrip(), "", ""
        if begun and beyond is not None and "prefill" in self._cannot:
            expected = found.begun
        elif begun:
            messages.append({"role": "assistant", "content": begun})
            cut_off = found.begun[len(begun) :]  # the API takes no message that ends in white space: the model writes it again
            if "prefill" in self._cannot:
                raise UnsupportedOpError("an answer in the middle of a message", self.name, "begin the message with the gen", loc=ask.loc)
        stops = self._stops(ask) if beyond is None else beyond.stop
        sent = tuple(stop for stop in stops if stop.strip())  # the API refuses others; they are applied here
        body = (
            self._body(ask, beyond, len(expected.encode()), sent, tally.choosing)
            | {"messages": messages}
            | ({"system": system} if system else {})
            | tools_of(ask, found.closed)
        )

        def read(body: Body) -> ServerReply:
            text, finish, extra = answer_of(body, bool(ask.tools) or "tools" in self._extra)
            text = text.removeprefix(cut_off) if cut_off else text
            usage: Any = body.get("usage")
            tier = {"service_tier": usage["service_tier"]} if isinstance(usage, dict) and usage.get("service_tier") else {}
            return ServerReply((Sample(text, finish, extra=extra),), str(body.get("id", "")), str(body.get("model", "")), expected, sent, tier)

        shown = feed is not None and not cut_off and sent == stops and not ask.params.stop_regex
        watch = Watch(feed) if feed is not None and shown else None
        if self._cache is None or tally.waves is not None or "cache_control" in self._cannot:
            before = tally.usage.prompt_tokens
            reply = await self._sent(body, read, watch, tally)
            if self._prices is not None and ask.params.n == 1:
                self._book.counted(cacheable(body, found.closed, self._book.per_byte), tally.usage.prompt_tokens - before)
            return reply
        prompt = cacheable(body, found.closed, self._cache.per_byte)
        again = bool(ask.tools) or any(m["role"] == "assistant" for m in found.closed)
        async with self._cache.asking(prompt, tally, again, ask.params.n) as (marked, own):
            watch = watch or (UNWATCHED if marked.turn.first else None)
            ttl = {"ttl": "1h"} if marked.hour else {}
            return await self._sent(with_marks(body, marked.blocks, ttl), read, watch, own, marked.turn.begun)

    async def _sent(
        self, body: Body, read: Callable[[Body], ServerReply], watch: Watch | None, tally: AttemptUsage, begun: Callable[[], None] = lambda: None
    ) -> ServerReply:
        """Send a request, as a stream for a watcher; `begun` is called when the answer begins to arrive."""
        gather = None if watch is None else lambda: EventAssembler(watch, read, begun)
        return await self.sent(lambda: HttpRequest("/v1/messages", body), {}, usage_of, read, gather, tally)

    def _body(self, ask: Gen, beyond: Beyond | None, prefix: int, stops: Sequence[str], choosing: bool) -> Body:
        params, constraint = ask.params, ask.constraint
        extra = self._extra if ask.tools or "tools" in self._extra else {k: v for k, v in self._extra.items() if k != "tool_choice"}
        body: Body = {"model": self.model, "max_tokens": params.max_new_tokens + (0 if beyond is None else beyond.tokens + prefix), **extra}
        if choosing:
            body.pop("thinking", None)
        for name, default in (("temperature", 1.0), ("top_p", 1.0), ("top_k", -1)):
            if getattr(params, name) != default:
                body[name] = getattr(params, name)
        if stops:
            body["stop_sequences"] = list(stops)
        if constraint is not None and self.enforces(constraint):
            body["output_config"] = {**body.get("output_config", {}), "format": {"type": "json_schema", "schema": json.loads(constraint.source)}}
        return body


_THINKING_ROOM = 1 << 14  # tokens for a choice of a model whose thinking cannot be turned off


# -- the SDK ---------------------------------------------------------------------------------------------------------


def _wire_maker(client: Any, timeout: float, options: Mapping[str, Any]) -> Callable[[], AnthropicWire]:
    check_client_options("Anthropic", options)
    anthropic = imported("lmc.Anthropic", "anthropic")
    if client is not None:  # with its default time-out the SDK refuses long answers that are not streamed
        limit = {"timeout": timeout} if client.timeout == anthropic.DEFAULT_TIMEOUT else {}
        return lambda: AnthropicWire(client.with_options(max_retries=0, **limit), anthropic)
    at = os.environ.get("ANTHROPIC_BASE_URL")
    given = {"max_retries": 0, "timeout": timeout, **({"base_url": at} if at else {}), **options}
    keys = {"api_key": "api_key=… or ANTHROPIC_API_KEY", "auth_token": "auth_token=… or ANTHROPIC_AUTH_TOKEN"}
    try:
        made = client_of_sdk(anthropic, "AsyncAnthropic", given, keys)
    except (anthropic.AnthropicError, TypeError) as error:
        raise ParameterError(f"Anthropic(…): {error}") from None
    if "default_headers" not in options and not any(getattr(made, key, None) for key in (*keys, "credentials")):
        raise ParameterError("Anthropic(…): no key; pass api_key=… or set ANTHROPIC_API_KEY")  # the SDK says so at the first request, without a place
    return lambda: AnthropicWire(made, anthropic)  # it opens nothing before its first use


class AnthropicWire(SdkWire):
    """Requests by the SDK's client."""

    own = ("model", "messages", "max_tokens", "stream")

    def _resource(self, request: HttpRequest) -> Any:
        return self._client.messages

    async def stream(self, request: HttpRequest) -> AsyncIterator[Received]:
        begun: Body = {}
        async for received in self.streamed(request, lambda body: body.get("type") == "message_stop"):
            body = received.body
            with reading():
                if body.get("type") == "message_start":  # its usage is the prompt's; the answer's comes at the end
                    begun = body["message"].pop("usage", None) or {}
                elif body.get("type") == "message_delta":
                    body["usage"] = {**begun, **(body.get("usage") or {})} or None
            yield received
