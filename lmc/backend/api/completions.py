"""Completions and chat completions: requests to OpenAI's API and compatible servers, independent of the transport."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any, Literal

from lmc.backend.api import verify
from lmc.backend.api.backend import ApiBackend
from lmc.backend.api.bodies import (
    REFUSAL,
    calls_of,
    check_asked,
    check_came,
    check_scored,
    check_whole,
    choice_schema,
    choices_of,
    content_of,
    finish_of,
    growing_out_of_object,
    in_object,
    is_object,
    names,
    not_taken,
    out_of_object,
    response_format,
    scored,
    shared,
    strict,
    tokens_of,
    usage_of,
)
from lmc.backend.api.cache_warmup import NO_TURN, CacheWarmup, WarmupTurn
from lmc.backend.api.caching import AUTOMATIC, CacheBook, marked_end, prompt_of, whole
from lmc.backend.api.dialects import BASE, OPENAI_DEFAULTS, SERVERS, SHOWN
from lmc.backend.api.exchange import NOTHING, Body, Fault, HttpRequest, Malformed, Wire
from lmc.backend.api.handles import Feed
from lmc.backend.api.messages import MESSAGES, conversation
from lmc.backend.api.place import PromptNode
from lmc.backend.api.prefixes import beginning, key_of
from lmc.backend.api.replies import Sample, ServerReply
from lmc.backend.api.reports import reasoned_of
from lmc.backend.api.scoring import aligned, chosen
from lmc.backend.api.spending import AttemptUsage
from lmc.backend.api.streams import UNWATCHED, Pieces, Watch
from lmc.backend.api.terms import ApiTerms
from lmc.backend.api.tokens import spelled, warn_of_spellings
from lmc.backend.base import Beyond, Capabilities
from lmc.backend.results import Output
from lmc.chat import ChatTemplate
from lmc.config import log
from lmc.errors import ParameterError, UnsupportedOpError
from lmc.segments import ChoicesMethod, Constraint, Gen, SamplingParams, Select

_MAX_STOPS = 4
_CHECKED = 1024  # cached parameters known to be valid
_MAX_SEED = 1 << 53  # exact in every JSON reader


class Completions(ApiBackend):
    """A model behind a server that speaks OpenAI's API; subclasses provide the transport.

    chat    messages, or text
    root    path of the API under the server's URL
    server  its features, by its name in SERVERS
    select  method of `select`; None: by logprobs if the server takes text, else by a constrained answer
    wait_for_cache  whether requests with a common prefix wait for the first of them; None: if the server is OpenAI's
    book    the cache book, if messages are marked (LiteLLM's form of Anthropic's and Gemini's caches)
    """

    _reads_pdfs = False
    lookahead = True  # prefilling ahead would not make continuations cheap
    root = ""
    renames = True  # whether it takes `served_as`

    def __init__(
        self,
        name: str,
        model: str,
        wire: Callable[[], Wire],
        terms: ApiTerms,
        *,
        chat: bool,
        template: ChatTemplate,
        server: str,
        select: Literal["logprobs", "decisions", "constrained"] | None = None,
        served_as: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        wait_for_cache: bool | None = None,
        book: CacheBook | None = None,
    ) -> None:
        if server not in SERVERS:
            raise ParameterError(f"server={server!r}: one of {', '.join(SERVERS)}")
        if select not in (None, "logprobs", "decisions", "constrained"):
            raise ParameterError(f"select={select!r}: must be 'logprobs', 'decisions' or 'constrained'")
        if select == "logprobs" and chat:
            raise ParameterError("select='logprobs' needs a completions API: chat APIs do not score prompts")
        self.model, self.chat, self.server, self._own = model, chat, SERVERS[server], server
        self._select = select or ("constrained" if chat else "logprobs")
        self._served_as, self._extra = served_as, dict(extra_body or {})
        self._checked: set[SamplingParams] = set()
        self.cache_rules = AUTOMATIC if server == "openai" else None
        self._sizes = [0, 0]  # bytes of prompts whose tokens the server has counted, and those tokens
        self._warmup = CacheWarmup() if chat and book is None and (server == "openai" if wait_for_cache is None else wait_for_cache) else None
        self._book, self.wants_shared = book, book is not None
        super().__init__(name, wire, MESSAGES if chat else template, terms)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            self.name,
            frozenset({*verify.VERIFIABLE, *self.server.constraint}),
            select=True,
            logprobs="logprobs" not in self._cannot,
            images=self.chat,
            documents=self.chat and self._reads_pdfs,
            tools=self.chat,
            n=True,
            streams=True,
            raw_text=not self.chat,
            lookahead=self.lookahead,
            prices=self._prices,
        )

    def server_info(self) -> dict[str, Any]:
        warmup = self._warmup if self._book is None else self._book.warmup
        return {**super().server_info(), **({"held": warmup.held} if warmup is not None else {})}

    # -- unsupported requests

    def check(self, ask: Gen | Select) -> None:
        if isinstance(ask, Select):
            return
        for f in fields(SamplingParams) if ask.params not in self._checked else ():
            value = getattr(ask.params, f.name)
            if value != f.default and f.name not in BASE and f.name not in self.server.params and not (f.name == "logprob_start_len" and value == -1):
                raise UnsupportedOpError(
                    f"gen({SHOWN.get(f.name, f.name)}=…)",
                    self.name,
                    f"leave it out, or say what the server is: OpenAI(…, server=…), one of {', '.join(SERVERS)}",
                    loc=ask.loc,
                )
        if len(self._checked) < _CHECKED:
            self._checked.add(ask.params)
        if ask.constraint is not None and not self.enforces(ask.constraint):
            verify.check(ask.constraint)

    def enforces(self, constraint: Constraint) -> bool:
        if constraint.kind in self.server.constraint:
            return True
        return self.chat and constraint.kind == "json_schema" and strict(json.loads(constraint.source)) and "response_format" not in self._cannot

    # -- gen

    async def requested(self, place: PromptNode, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: AttemptUsage) -> ServerReply:
        if ask.params.n > 1 and ask.params.temperature == 0 and not self.server.same:
            reply = await self._asked(place, replace(ask, params=replace(ask.params, n=1)), beyond, feed, tally)
            return replace(reply, samples=reply.samples * ask.params.n)
        if ask.params.n > 1 and "n" in self._cannot:
            return await self._one_by_one(place, ask, tally)
        return await self._asked(place, ask, beyond, feed, tally)

    async def _one_by_one(self, place: PromptNode, ask: Gen, tally: AttemptUsage) -> ServerReply:
        """Request n answers from a server that gives one at a time."""
        asks = [replace(ask, seed=ask.seed + i, params=replace(ask.params, n=1)) for i in range(ask.params.n)]
        replies = await asyncio.gather(*[self._asked(place, one, None, None, tally) for one in asks])
        return replace(replies[0], samples=tuple(reply.samples[0] for reply in replies))

    async def _asked(self, place: PromptNode, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: AttemptUsage) -> ServerReply:
        chat = self.by_messages(place, ask)
        prompt, expected, meta = self._prompt(place, beyond, chat)
        sent_stops, headers = self.sent_stops(ask, beyond), self.headers(place)
        extra = self._extra if ask.tools else {k: v for k, v in self._extra.items() if k not in _OF_TOOLS}
        put_in = chat and self._puts_in_object(ask.constraint)
        cache = {"prompt_cache_key": key_of(beginning(place))} if self._own == "openai" else {}

        def request() -> HttpRequest:
            body = {
                "model": self.model,
                **prompt,
                **cache,
                **self._sampling(ask, beyond, len(expected.encode()), chat),
                **self._constrained(ask.constraint, chat),
                **extra,
            }
            if ask.tools:
                body["tools"] = [{"type": "function", "function": self._told(tool)} for tool in json.loads(ask.tools)]
            if sent_stops:
                body["stop"] = list(sent_stops)
            if chat:
                return HttpRequest(self.root + "/chat/completions", body, headers)
            return self.completion(body, headers)

        def read(body: Body) -> ServerReply:
            reply = self.reply(body, ask, chat, sent_stops, expected, meta)
            return replace(reply, samples=tuple([replace(sample, text=out_of_object(sample.text)) for sample in reply.samples])) if put_in else reply

        watching = None if feed is None else Watch(feed, growing_out_of_object) if put_in else Watch(feed)
        shown = feed is not None and ask.params.n == 1 and not ask.params.stop_regex and sent_stops == self._stops(ask)  # text cut off here must not be shown
        before = tally.usage.prompt_tokens
        if self._book is not None and "cache_control" not in self._cannot:
            return await self._marked(self._book, request, read, watching if shown else None, ask, tally)
        async with self.turn(place, ask, prompt) if tally.waves is None else nullcontext(NO_TURN) as turn:
            watch = watching if shown else UNWATCHED if turn.first and ask.params.n == 1 else None
            reply = await self._sent(request, read, watch, chat, tally, turn.begun)
            turn.begun()
        if chat and self._prices is not None:
            self._sizes[0] += sum(len(m["content"].encode("utf-8", "surrogatepass")) for m in prompt["messages"] if isinstance(m.get("content"), str))
            self._sizes[1] += tally.usage.prompt_tokens - before
        return reply

    def turn(self, place: PromptNode, ask: Gen, prompt: Body) -> AbstractAsyncContextManager[WarmupTurn]:
        """Wait until a request may go without computing a prefix that another one in flight computes."""
        if self._warmup is None:
            return nullcontext(NO_TURN)
        return self._warmup.turn(json.dumps([ask.tools, prompt.get("messages")], ensure_ascii=False))

    async def _marked(
        self, book: CacheBook, request: Callable[[], HttpRequest], read: Callable[[Body], ServerReply], watch: Watch | None, ask: Gen, tally: AttemptUsage
    ) -> ServerReply:
        """Request an answer to a conversation whose messages are marked to be cached."""
        messages: list[Body] = request().body["messages"]
        prompt = prompt_of(
            [ask.tools, ask.constraint and ask.constraint.source], [(m["role"], whole(m)) for m in messages], range(len(messages)), book.per_byte
        )
        again = bool(ask.tools) or any(m["role"] == "assistant" for m in messages)
        async with book.asking(prompt, tally, again, 1) as (marked, own):

            def with_marks() -> HttpRequest:
                sent = request()
                return replace(
                    sent,
                    body={**sent.body, "messages": [marked_end(m, book.rules.lives[marked.hour]) if i in marked.blocks else m for i, m in enumerate(messages)]},
                )

            watch = watch or (UNWATCHED if marked.turn.first and ask.params.n == 1 else None)
            return await self._sent(with_marks, read, watch, True, own, marked.turn.begun)

    @property
    def tokens_per_byte(self) -> float:
        if self._book is not None:
            return self._book.per_byte
        size, tokens = self._sizes
        return tokens / size if size else super().tokens_per_byte

    def completion(self, body: Body, headers: Mapping[str, str] = NOTHING) -> HttpRequest:
        """Build a request whose prompt is not messages."""
        return HttpRequest(self.root + "/completions", body, headers)

    def _told(self, tool: Body) -> Body:
        """Describe a tool to the server. vLLM only keeps a forced call to the schema of a strict tool."""
        forced = self._own == "vllm" and self._extra.get("tool_choice", "auto") not in ("auto", "none")
        return {"strict": True, **tool} if forced else tool

    async def _sent(
        self, request: Callable[[], HttpRequest], read: Callable[[Body], ServerReply], watch: Watch | None, chat: bool, tally: AttemptUsage,
        begun: Callable[[], None] = lambda: None,
    ) -> ServerReply:  # fmt: skip
        """Send a request, as a stream for a watcher; `begun` is called when the answer begins to arrive."""
        gather = None if watch is None or "stream" in self._cannot else lambda: Pieces(chat, watch, read, begun)
        return await self.sent(request, {"stream_options": {"include_usage": True}}, usage_of, read, gather, tally)

    def by_messages(self, place: PromptNode, ask: Gen | Select) -> bool:
        return self.chat

    def _prompt(self, place: PromptNode, beyond: Beyond | None, chat: bool) -> tuple[Body, str, Mapping[str, Any]]:
        """Return the prompt's part of the body, the required beginning of the answer, and notes for its meta info."""
        if not chat:
            return {"prompt": self.prompt(place)}, "", {}
        warn_of_spellings(list(place.pieces()), self.name)
        found = conversation(place, self.name, self.chat_template)
        if not found.begun:
            return {"messages": list(found.closed)}, "", {}
        if self.server.continues:
            return {"messages": found.with_begun(), "continue_final_message": True, "add_generation_prompt": False}, "", {}
        if beyond is not None:
            return {"messages": list(found.closed)}, found.begun, {}
        log("backend", f"{self.name} cannot continue a message; it is sent as one: {found.begun[-40:]!r}")
        return {"messages": found.with_begun()}, "", {"begun": "sent as a message"}

    def prompt(self, place: PromptNode) -> str | list[int]:
        """Return a prompt that is not messages, as the server gets it."""
        return spelled(place, self.name)

    def headers(self, place: PromptNode) -> Mapping[str, str]:
        """Return the headers of every request about a prompt."""
        return {}

    def sent_stops(self, ask: Gen, beyond: Beyond | None) -> tuple[str, ...]:
        """Return the stops to send: OpenAI takes four; the others are applied here."""
        if "stop" in self._cannot:
            return ()
        return (self._stops(ask) if beyond is None else beyond.stop)[:_MAX_STOPS]

    def _sampling(self, ask: Gen, beyond: Beyond | None, prefix: int, chat: bool) -> Body:
        params = ask.params
        limit = params.max_new_tokens + (0 if beyond is None else beyond.tokens + prefix)
        newer = chat and self._own == "openai"
        body: Body = {"max_completion_tokens" if newer != ("max_tokens" in self._cannot) else "max_tokens": limit}
        for name, default in OPENAI_DEFAULTS.items():
            value = getattr(params, name)
            if value != default or (self.server.defaults and name in ("temperature", "top_p")):
                body[name] = value
        if params.temperature > 0 and "seed" not in self._cannot:
            body["seed"] = ask.seed % _MAX_SEED
        if params.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
        if params.return_logprob or (beyond is not None and "logprobs" not in self._cannot):
            body |= _logprobs(params, chat)
        for name, key in self.server.params.items():
            value = getattr(params, name)
            if value != getattr(SamplingParams(), name):
                body[key] = list(value) if isinstance(value, tuple) else value
        return {**self.server.neutral, **body}

    def _constrained(self, constraint: Constraint | None, chat: bool) -> Body:
        if constraint is None:
            return {}
        source: Any = constraint.source
        if constraint.kind == "json_schema":
            source = json.loads(source)
        elif constraint.kind == "structural_tag" and self._own == "sglang":  # vLLM takes its text
            source = {"type": "structural_tag", **json.loads(source)}  # tags of the older form may have no type
        if constraint.kind in self.server.constraint:
            body: Any = source
            for key in reversed(self.server.constraint[constraint.kind]):
                body = {key: body}
            if self._own == "sglang" and constraint.kind == "json_schema":
                return {"response_format": response_format(source, False)}
            return body
        if constraint.kind == "json_schema" and chat and "response_format" not in self._cannot:
            return {"response_format": response_format(in_object(source) if self._puts_in_object(constraint) else source, strict(source))}
        return {}

    def _puts_in_object(self, constraint: Constraint | None) -> bool:
        """Return whether a conversation's answer is requested as a property of an object, since OpenAI accepts only
        schemas of objects."""
        if constraint is None or constraint.kind != "json_schema" or constraint.kind in self.server.constraint or "response_format" in self._cannot:
            return False
        return not is_object(json.loads(constraint.source))

    # -- responses

    def reply(self, body: Body, ask: Gen, chat: bool, stops: tuple[str, ...], expected: str = "", meta: Mapping[str, Any] = NOTHING) -> ServerReply:
        """Return the answer in a body. Raises Malformed."""
        self._check_model(body)
        if ask.params.n > 1 == len(body.get("choices") or ()):  # many servers ignore it, each time
            raise Fault(f"n={ask.params.n} is not supported: the answer has one choice", status=400, param="n", code="unsupported_parameter")
        samples = tuple([self._sample(choice, ask, chat, reasoned_of(body)) for choice in choices_of(body, ask.params.n)])
        tier = {"service_tier": body["service_tier"]} if body.get("service_tier") else {}
        return ServerReply(samples, str(body.get("id", "")), str(body.get("model", "")), expected, stops, {**meta, **tier})

    def _sample(self, choice: Body, ask: Gen, chat: bool, reasoned: int | None) -> Sample:
        tokens, top = tokens_of(choice.get("logprobs"))
        finish = finish_of(choice, tokens)
        if not chat:
            text = choice.get("text")
            if not isinstance(text, str):
                raise Malformed("the answer has no text")
            check_whole(finish["type"])
            check_scored(ask, tokens, text, self.name)
            return Sample(text, finish, tokens, top, self.ids(choice, text))
        message = choice.get("message")
        if not isinstance(message, dict):
            raise Malformed("the answer has no message")
        content, thought = content_of(message)
        extra: Body = {"reasoning": said} if (said := message.get("reasoning_content") or message.get("reasoning") or thought) else {}
        if blocks := message.get("thinking_blocks"):
            extra["blocks"] = blocks
        offered = bool(ask.tools) or "tools" in self._extra
        calls = calls_of(message.get("tool_calls") or [])
        check_asked([*calls, *([message["function_call"]] if message.get("function_call") else [])], offered or "functions" in self._extra)
        if offered:
            extra["tool_calls"] = calls
        if refusal := message.get("refusal"):
            extra["refusal"] = str(refusal)
            return Sample(str(refusal), {"type": REFUSAL, "matched": None}, tokens, top, None, extra)
        text = check_came("the answer has no content", content, finish, extra, reasoned)
        check_scored(ask, tokens, text, self.name)
        return Sample(text, finish, tokens, top, self.ids(choice, text), extra)

    def ids(self, choice: Body, text: str) -> tuple[int, ...] | None:
        """Return the tokens of a text as the server generated them, if reported."""
        return None

    def _check_model(self, body: Body) -> None:
        """Check the model's name: a router's answer from another model is rejected."""
        came, wanted = body.get("model"), self._served_as or self.model
        if self._served_as == "*" or not isinstance(came, str) or not came:
            return
        if came != wanted and not came.startswith(f"{wanted}-") and came.rsplit("/")[-1] != wanted.rsplit("/")[-1]:
            remedy = f"if that is right, pass served_as={came!r}" if self.renames else "all servers behind a URL have to run one model under one name"
            raise Malformed(f"the answer is of the model {came!r}, not of {wanted!r}; {remedy}")

    def dispensable(self, fault: Fault, by_messages: bool) -> str | None:
        return next((key for key in _OPTIONAL if not_taken(fault, key)), None) if fault.status in (400, 422) else None

    # -- select

    async def choose(self, place: PromptNode, ask: Select, tally: AttemptUsage) -> Output:
        if self._select == "decisions":
            return await self._decided(place, ask, tally)
        if self._select == "logprobs" and "echo" not in self._cannot:
            try:
                return await self._scored(place, ask, tally)
            except Fault as fault:
                if fault.status not in (400, 422) or not any(names(fault, key) for key in ("echo", "logprobs", "max_tokens")):
                    raise
                self.leave_out("echo", fault.message)
        return await self.choose_by_answer(place, ask, tally)

    async def _scored(self, place: PromptNode, ask: Select, tally: AttemptUsage) -> Output:
        """Choose by the log-probabilities of the choices' tokens: all in one request."""
        before = spelled(place, self.name)
        unconditional = ask.method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED
        texts = [before, *[before + choice for choice in ask.choices], *(ask.choices if unconditional else ())]
        body = {"model": self.model, "prompt": texts, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0, **self._extra}

        def read(body: Body) -> list[tuple[tuple[float | None, int | None, str], ...]]:
            self._check_model(body)
            first, *rows = [tokens_of(choice.get("logprobs"))[0] for choice in choices_of(body, len(texts))]
            if not all(rows):
                raise Malformed("the answer has no log-probabilities")
            return [first or (), *map(scored, rows)]

        first, *rows = await self.client.call(lambda: HttpRequest("/completions", body), usage_of, read, tally)
        own = [row[shared(first, row) :] for row in rows[: len(ask.choices)]]
        return chosen(ask, own, aligned(own, rows[len(ask.choices) :]) if unconditional else None, tally)

    async def _decided(self, place: PromptNode, ask: Select, tally: AttemptUsage) -> Output:
        """Choose by a question of the kind "choice", for servers that answer without generating."""
        given: Any = spelled(place, self.name) if not self.chat else conversation(place, self.name).with_begun()
        question = {"type": "choice", "name": ask.name or "choice", "choices": [{"value": choice} for choice in ask.choices]}
        body = {"model": self.model, "input": given, "questions": [question], **self._extra}

        def read(body: Body) -> tuple[str, list[Any]]:
            self._check_model(body)
            answers: Any = body.get("answers")
            answer = answers[0] if isinstance(answers, list) and answers and isinstance(answers[0], dict) else {}
            if answer.get("choice") not in ask.choices:
                raise Malformed(f"the answer is none of the choices: {answer}")
            return answer["choice"], answer.get("probabilities") or []

        chosen, probabilities = await self.client.call(lambda: HttpRequest("/decisions", body), usage_of, read, tally)
        meta = {"choice": {"by": "decisions", "probabilities": {p["value"]: p["probability"] for p in probabilities}}, **tally.meta}
        return Output((chosen,), (meta,), tally.usage)

    def choice_constraint(self, choices: Sequence[str]) -> Constraint | None:
        if "regex" in self.server.constraint:
            return Constraint("regex", "(" + "|".join(map(re.escape, choices)) + ")")
        return choice_schema(choices) if self.chat else None


def _logprobs(params: SamplingParams, chat: bool) -> Body:
    wanted = params.top_logprobs_num or 0
    return {"logprobs": True, **({"top_logprobs": wanted} if wanted else {})} if chat else {"logprobs": wanted}


_OF_TOOLS = ("tool_choice", "parallel_tool_calls")  # parameters that servers refuse in requests without tools
_OPTIONAL = ("max_tokens", "max_completion_tokens", "stop", "logprobs", "seed", "n", "response_format", "stream", "cache_control")
"""Dispensable parameters: replaced by another name, by applying stops here, by one more request, …"""
