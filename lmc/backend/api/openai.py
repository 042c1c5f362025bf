"""OpenAI's API and what is compatible with it: completions and chat, on the openai SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from lmc.backend.api import verify
from lmc.backend.api.backend import ApiBackend, Feed, Reply, Sample
from lmc.backend.api.client import Body, Fault, Malformed, Patience, Received, Request, Tally
from lmc.backend.api.messages import MESSAGES, Conversation, conversation
from lmc.backend.api.place import Place
from lmc.backend.api.wire import events, http_errors, lowered, missing, parsed, refused
from lmc.backend.base import Beyond, Capabilities, Output, Prices, Usage
from lmc.backend.engine.choices import decide
from lmc.chat import ChatTemplate, get_chat_template
from lmc.config import log
from lmc.errors import ConstraintError, ParameterError, UnsupportedOpError
from lmc.prompt import ChoicesMethod, Constraint, Gen, SamplingParams, Select, plain

# -- what servers take beyond OpenAI's own -----------------------------------------------------------------------------

_BASE = frozenset({
    "max_new_tokens", "n", "stop", "stop_regex", "temperature", "top_p", "frequency_penalty", "presence_penalty", "return_logprob",
    "top_logprobs_num", "return_text_in_logprobs", "logit_bias",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Server:
    """What a compatible server takes in addition.

    params      fields of SamplingParams by the names that it has for them
    constraint  kinds of constraints, by the path in the body where their source goes
    continues   goes on with a last assistant message instead of answering it
    defaults    its own defaults may differ from OpenAI's, so that every parameter is sent
    """

    params: Mapping[str, str] = field(default_factory=dict[str, str])
    constraint: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    continues: bool = False
    defaults: bool = True


_COMMON = {"top_k": "top_k", "min_p": "min_p", "min_new_tokens": "min_tokens", "stop_token_ids": "stop_token_ids", "ignore_eos": "ignore_eos"}
SERVERS: Mapping[str, Server] = {
    "openai": Server(defaults=False),
    "compatible": Server(),
    "vllm": Server(
        _COMMON,
        {
            "regex": ("structured_outputs", "regex"),
            "json_schema": ("structured_outputs", "json"),
            "ebnf": ("structured_outputs", "grammar"),
            "lark": ("structured_outputs", "grammar"),
            "structural_tag": ("structured_outputs", "structural_tag"),
        },
        continues=True,
    ),
    "sglang": Server({**_COMMON, "stop_regex": "stop_regex"}, {"regex": ("regex",), "json_schema": ("json_schema",), "ebnf": ("ebnf",)}, continues=True),
}

_INSTRUCT = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
_MAX_STOPS = 4
_MAX_SEED = 1 << 53  # what survives every JSON reader


class OpenAI(ApiBackend):
    """A model behind OpenAI's API, or behind a server that speaks it.

    model          its name there
    is_chat_model  messages (chat completions) or text (completions); None: by the name, and messages for what is not known
    chat_template  how roles are written for a model of text; its own special tokens are spelled out
    base_url, api_key, organization, default_headers, …  of the client; the environment's as the SDK reads it
    client         an `openai.AsyncOpenAI` of your own in place of one made here
    server         "openai", "compatible", "vllm" or "sglang": which parameters it takes beyond OpenAI's; None: by the URL
    select         how `select` asks: "logprobs" of the choices (text only), "decisions", or "constrained"; None: by the server
    prices         for a million tokens: `lmc.Prices(prompt, completion, cached)`
    served_as      the model's name as answers have it, if it is not the model's own; "*": any

    A constraint that the server does not enforce is verified here, and the answer asked for again (`attempts` times); its meta info
    says so. Where a chat model cannot go on with a message, what the program has written of it is sent as a message, and meta says so.
    """

    def __init__(
        self,
        model: str,
        is_chat_model: bool | None = None,
        chat_template: ChatTemplate | str | None = None,
        is_azure: bool = False,
        *,
        base_url: str | None = None,
        client: Any = None,
        server: str | None = None,
        select: Literal["logprobs", "decisions", "constrained"] | None = None,
        prices: Prices | None = None,
        concurrency: int = 64,
        retries: int = 6,
        timeout: float = 600.0,
        patience: Patience | None = None,
        speculate: bool = True,
        attempts: int = 4,
        served_as: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **client_options: Any,
    ) -> None:
        host = urlsplit(base_url).hostname if base_url else None
        known = server or ("openai" if host in (None, "api.openai.com") else "compatible")
        if known not in SERVERS:
            raise ParameterError(f"server={server!r}: one of {', '.join(SERVERS)}")
        if select not in (None, "logprobs", "decisions", "constrained"):
            raise ParameterError(f"select={select!r}: 'logprobs', 'decisions' or 'constrained'")
        self.model, self.server, self._own = model, SERVERS[known], known
        self.chat = not model.startswith(_INSTRUCT) if is_chat_model is None else bool(is_chat_model)
        if select == "logprobs" and self.chat:
            raise ParameterError("select='logprobs' needs a model of text: chat APIs do not score what they are given")
        self._select = select or ("constrained" if self.chat else "logprobs")
        self._served_as, self._extra = served_as, dict(extra_body or {})
        self._cannot: set[str] = set()  # parameters that the model has refused
        patience = patience or Patience(retries=retries, timeout=timeout)
        make = _client_maker(client, is_azure, base_url, patience.timeout, client_options)
        template = MESSAGES if self.chat else _template(chat_template)
        super().__init__(
            f"OpenAI({model})", lambda: OpenAIWire(make()), template=template, concurrency=concurrency, patience=patience,
            prices=prices, speculate=speculate, attempts=attempts,
        )  # fmt: skip

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            self.name,
            frozenset({*verify.VERIFIABLE, *self.server.constraint}),
            select=True,
            logprobs="logprobs" not in self._cannot,
            images=self.chat,
            n=True,
            streams=True,
            raw_text=not self.chat,
            lookahead=True,
            prices=self._prices,
        )

    # -- what cannot be asked

    def check(self, ask: Gen | Select) -> None:
        if isinstance(ask, Select):
            return
        for f in fields(SamplingParams):
            value = getattr(ask.params, f.name)
            if value != f.default and f.name not in _BASE and f.name not in self.server.params and not (f.name == "logprob_start_len" and value == -1):
                raise UnsupportedOpError(f"gen({_SHOWN.get(f.name, f.name)}=…)", self.name, f"leave it out, or say what the server is: OpenAI(…, server=…), one of {', '.join(SERVERS)}", loc=ask.loc)
        if ask.constraint is not None and not self.enforces(ask.constraint):
            verify.check(ask.constraint)

    def enforces(self, constraint: Constraint) -> bool:
        if constraint.kind in self.server.constraint:
            return True
        return self.chat and constraint.kind == "json_schema" and _strict(json.loads(constraint.source)) and "response_format" not in self._cannot

    # -- gen

    async def generate(self, place: Place, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: Tally) -> Reply:
        if ask.params.max_new_tokens == 0 and beyond is None:
            return Reply((Sample("", {"type": "length", "length": 0}),) * ask.params.n)
        while True:
            try:
                if ask.params.n > 1 and "n" in self._cannot:
                    return await self._one_by_one(place, ask, tally)
                return await self._asked(place, ask, beyond, feed, tally)
            except Fault as fault:
                self._learn(fault)

    async def _one_by_one(self, place: Place, ask: Gen, tally: Tally) -> Reply:
        """n answers of a server that gives one at a time."""
        asks = [replace(ask, seed=ask.seed + i, params=replace(ask.params, n=1)) for i in range(ask.params.n)]
        replies = await asyncio.gather(*[self._asked(place, one, None, None, tally) for one in asks])
        return replace(replies[0], samples=tuple(reply.samples[0] for reply in replies))

    async def _asked(self, place: Place, ask: Gen, beyond: Beyond | None, feed: Feed | None, tally: Tally) -> Reply:
        prompt, expected, meta = self._prompt(place, beyond)
        sent_stops = self._sent_stops(ask, beyond)

        def request() -> Request:
            body = {"model": self.model, **prompt, **self._sampling(ask, beyond, len(expected.encode())), **self._constrained(ask.constraint), **self._extra}
            if sent_stops:
                body["stop"] = list(sent_stops)
            return Request("/chat/completions" if self.chat else "/completions", body)

        def read(body: Body) -> Reply:
            self._check_model(body)
            samples = tuple(map(self._sample, _choices(body, ask.params.n)))
            return Reply(samples, str(body.get("id", "")), str(body.get("model", "")), expected, sent_stops, meta)

        if feed is None or ask.params.n > 1 or ask.params.stop_regex or sent_stops != self._stops(ask):  # what is cut off here was not to be seen
            return await self.client.call(request, usage_of, read, tally)

        def streaming() -> Request:
            plain_request = request()
            return replace(plain_request, body={**plain_request.body, "stream": True, "stream_options": {"include_usage": True}})

        watch = _Watch(feed)
        return await self.client.stream(streaming, usage_of, lambda: _Pieces(self.chat, watch, read), tally)

    def _prompt(self, place: Place, beyond: Beyond | None) -> tuple[Body, str, Mapping[str, Any]]:
        """The prompt's part of the body, the text that the answer has to begin with, and what is to be said of it."""
        if not self.chat:
            return {"prompt": self.text(place)}, "", {}
        found = conversation(place.pieces(), self.name)
        if not found.begun:
            return {"messages": list(found.closed)}, "", {}
        if self.server.continues:
            return {"messages": found.with_begun(), "continue_final_message": True, "add_generation_prompt": False}, "", {}
        if beyond is not None:
            return {"messages": list(found.closed)}, found.begun, {}
        log("spec", f"{self.name} cannot go on with a message; it is sent as one: {found.begun[-40:]!r}")
        return {"messages": found.with_begun()}, "", {"begun": "sent as a message"}

    def text(self, place: Place) -> str:
        """The prompt as text, special tokens spelled out."""
        return plain([piece for piece in place.pieces() if not _is_image(piece)])  # type: ignore[misc]

    def _sent_stops(self, ask: Gen, beyond: Beyond | None) -> tuple[str, ...]:
        """OpenAI takes four; the others are looked for here."""
        if "stop" in self._cannot:
            return ()
        return (self._stops(ask) if beyond is None else beyond.stop)[:_MAX_STOPS]

    def _sampling(self, ask: Gen, beyond: Beyond | None, prefix: int) -> Body:
        params = ask.params
        limit = params.max_new_tokens + (0 if beyond is None else beyond.tokens + prefix)
        newer = self.chat and self._own == "openai"
        body: Body = {"max_completion_tokens" if newer != ("max_tokens" in self._cannot) else "max_tokens": limit}
        for name, default in _OPENAI_DEFAULTS.items():
            value = getattr(params, name)
            if value != default or (self.server.defaults and name in ("temperature", "top_p")):
                body[name] = value
        if params.temperature > 0 and "seed" not in self._cannot:
            body["seed"] = ask.seed % _MAX_SEED
        if params.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
        if params.return_logprob or (beyond is not None and "logprobs" not in self._cannot):
            body |= self._logprobs(params)
        for name, key in self.server.params.items():
            value = getattr(params, name)
            if value != getattr(SamplingParams(), name):
                body[key] = list(value) if isinstance(value, tuple) else value
        return body

    def _logprobs(self, params: SamplingParams) -> Body:
        wanted = params.top_logprobs_num or 0
        return {"logprobs": True, **({"top_logprobs": wanted} if wanted else {})} if self.chat else {"logprobs": wanted}

    def _constrained(self, constraint: Constraint | None) -> Body:
        if constraint is None:
            return {}
        source: Any = json.loads(constraint.source) if constraint.kind in ("json_schema", "structural_tag") else constraint.source
        if constraint.kind in self.server.constraint:
            body: Any = source
            for key in reversed(self.server.constraint[constraint.kind]):
                body = {key: body}
            if self._own == "sglang" and constraint.kind == "json_schema":
                return {"response_format": _response_format(source, False)}
            return body
        if constraint.kind == "json_schema" and self.chat and "response_format" not in self._cannot:
            return {"response_format": _response_format(source, _strict(source))}
        return {}

    # -- what comes back

    def _sample(self, choice: Body) -> Sample:
        if self.chat:
            message = choice.get("message")
            if not isinstance(message, dict):
                raise Malformed("the answer has no message")
            text, extra = message.get("content") or "", {k: message[k] for k in ("tool_calls", "refusal") if message.get(k)}
            if message.get("reasoning_content"):
                extra["reasoning"] = message["reasoning_content"]
        else:
            text, extra = choice.get("text"), {}
        if not isinstance(text, str):
            raise Malformed("the answer has no text")
        tokens, top = _tokens(choice.get("logprobs"))
        return Sample(text, _finish(choice, tokens), tokens, top, extra=extra)

    def _check_model(self, body: Body) -> None:
        """A router that answers with another model's text is not believed."""
        came, wanted = body.get("model"), self._served_as or self.model
        if self._served_as == "*" or not isinstance(came, str) or not came:
            return
        if came != wanted and not came.startswith(f"{wanted}-") and came.rsplit("/")[-1] != wanted.rsplit("/")[-1]:
            raise Malformed(f"the answer is of the model {came!r}, not of {wanted!r}; if that is right, say served_as={came!r}")

    def _learn(self, fault: Fault) -> None:
        """A parameter that the model does not take and that can be done without is left out from now on; else raises."""
        name = next((key for key in _OPTIONAL if _names(fault, key)), None)
        if fault.status not in (400, 422) or name is None or name in self._cannot:
            raise fault
        self._cannot.add(name)
        log("spec", f"{self.name} does not take {name}: {fault.message}")

    # -- select

    async def choose(self, place: Place, ask: Select, tally: Tally) -> Output:
        if self._select == "decisions":
            return await self._decided(place, ask, tally)
        if self._select == "logprobs" and "echo" not in self._cannot:
            try:
                return await self._scored(place, ask, tally)
            except Fault as fault:
                if fault.status not in (400, 422) or not any(_names(fault, key) for key in ("echo", "logprobs", "max_tokens")):
                    raise
                log("spec", f"{self.name} does not score text: {fault.message}")
                self._cannot.add("echo")
        return await self._constrained_choice(place, ask, tally)

    async def _scored(self, place: Place, ask: Select, tally: Tally) -> Output:
        """By the log-probabilities of the choices' tokens: all in one request."""
        before = self.text(place)
        unconditional = ask.method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED
        texts = [before, *[before + choice for choice in ask.choices], *(ask.choices if unconditional else ())]
        body = {"model": self.model, "prompt": texts, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0, **self._extra}

        def read(body: Body) -> list[tuple[tuple[float | None, int | None, str], ...]]:
            self._check_model(body)
            rows = [_tokens(choice.get("logprobs"))[0] for choice in _choices(body, len(texts))]
            if not all(rows[1:]):
                raise Malformed("the answer has no log-probabilities")
            return [row or () for row in rows]

        first, *rows = await self.client.call(lambda: Request("/completions", body), usage_of, read, tally)
        own = [row[_shared(first, row) :] for row in rows[: len(ask.choices)]]
        alone = [[lp or 0.0 for lp, _, _ in row] for row in rows[len(ask.choices) :]]
        conditional = [[lp or 0.0 for lp, _, _ in row] or [0.0] for row in own]
        if unconditional:
            alone = [(row + [0.0] * len(c))[: len(c)] for row, c in zip(alone, conditional, strict=True)]
        decision = decide(ask.method, conditional, alone if unconditional else None)
        meta = {"input_token_logprobs": [[list(token) for token in row] for row in own], **decision.meta, **_cost(tally)}
        return Output((ask.choices[decision.index],), (meta,), tally.usage)

    async def _decided(self, place: Place, ask: Select, tally: Tally) -> Output:
        """By a question of the kind "choice", for servers that answer without generating."""
        given: Any = self.text(place) if not self.chat else conversation(place.pieces(), self.name).with_begun()
        question = {"type": "choice", "name": ask.name or "choice", "choices": [{"value": choice} for choice in ask.choices]}
        body = {"model": self.model, "input": given, "questions": [question], **self._extra}

        def read(body: Body) -> tuple[str, list[Any]]:
            self._check_model(body)
            answers: Any = body.get("answers")
            answer = answers[0] if isinstance(answers, list) and answers and isinstance(answers[0], dict) else {}
            if answer.get("choice") not in ask.choices:
                raise Malformed(f"the answer is none of the choices: {answer}")
            return answer["choice"], answer.get("probabilities") or []

        chosen, probabilities = await self.client.call(lambda: Request("/decisions", body), usage_of, read, tally)
        meta = {"choice": {"by": "decisions", "probabilities": {p["value"]: p["probability"] for p in probabilities}}, **_cost(tally)}
        return Output((chosen,), (meta,), tally.usage)

    async def _constrained_choice(self, place: Place, ask: Select, tally: Tally) -> Output:
        """By an answer that can be nothing else than a choice: the server's constraint, or verified here."""
        longest = max(len(choice.encode()) for choice in ask.choices)
        params = SamplingParams(max_new_tokens=longest + 16, temperature=ask.temperature)
        constraint = self._choice_constraint(ask.choices)
        wanted = Gen(params, constraint, ask.seed, ask.name, ask.loc)
        exact = constraint is not None and self.enforces(constraint)
        reply = Reply(())
        for attempt in range(1 if exact else self.attempts):
            reply = await self.generate(place, replace(wanted, seed=ask.seed + attempt), None, None, tally)
            chosen = _choice_in(reply.samples[0].text, ask.choices)
            if chosen is not None:
                how = {"by": "constrained" if exact else "verified", "attempts": attempt + 1}
                return Output((chosen,), ({"choice": how, "id": reply.id, "model": reply.model, **reply.meta, **_cost(tally)},), tally.usage)
        raise ConstraintError(f"{self.name}: none of {self.attempts} answers is one of the choices; the last is {reply.samples[0].text[:80]!r}", loc=ask.loc)

    def _choice_constraint(self, choices: Sequence[str]) -> Constraint | None:
        if "regex" in self.server.constraint:
            import re

            return Constraint("regex", "(" + "|".join(map(re.escape, choices)) + ")")
        if self.chat:
            properties = {"choice": {"type": "string", "enum": list(dict.fromkeys(choices))}}
            schema = {"type": "object", "properties": properties, "required": ["choice"], "additionalProperties": False}
            return Constraint("json_schema", json.dumps(schema, ensure_ascii=False))
        return None


def _template(given: ChatTemplate | str | None) -> ChatTemplate:
    return get_chat_template(given or "default") if given is None or isinstance(given, str) else given


_SHOWN = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
_OPENAI_DEFAULTS: Mapping[str, Any] = {"n": 1, "temperature": 1.0, "top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
_OPTIONAL = ("max_tokens", "max_completion_tokens", "stop", "logprobs", "seed", "n", "response_format")
"""Parameters that can be done without: by another name, by looking for stops here, by asking once more, …"""


def _names(fault: Fault, parameter: str) -> bool:
    """Whether a refusal is about a parameter."""
    param = fault.param or ""
    if param:
        return param == parameter or (parameter == "logprobs" and param == "top_logprobs")
    words = fault.message.replace("'", " ").replace('"', " ").replace("`", " ").replace(":", " ").replace(",", " ").split()
    return parameter in words


# -- bodies ----------------------------------------------------------------------------------------------------------


def usage_of(body: Body) -> Usage | None:
    """What a body reports, by the names of chat, completions and decisions; None if it reports nothing."""
    usage: Any = body.get("usage")
    if not isinstance(usage, dict):
        return None
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0)) or 0
    completion = usage.get("completion_tokens", usage.get("output_tokens", 0)) or 0
    details: Any = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return Usage(int(prompt), int(completion), int(details.get("cached_tokens") or 0), 0, 1, 0)


def _choices(body: Body, n: int) -> list[Body]:
    """The n choices in order. Raises Malformed if they are not there."""
    choices: Any = body.get("choices")
    if not isinstance(choices, list) or len(choices) != n or not all(isinstance(c, dict) for c in choices):
        raise Malformed(f"the answer has not the {n} choices that were asked for")
    return sorted(choices, key=lambda c: int(c.get("index") or 0))


def _finish(choice: Body, tokens: Sequence[Any] | None) -> Mapping[str, Any]:
    """How an answer ended, as the meta info says it."""
    reason = choice.get("finish_reason")
    if reason == "length":
        return {"type": "length"} | ({"length": len(tokens)} if tokens is not None else {})
    matched = choice.get("stop_reason", choice.get("matched_stop"))
    if reason in (None, "stop", "stop_sequence", "eos"):
        return {"type": "stop", "matched": matched}
    return {"type": str(reason), "matched": matched}


_Listed = tuple[tuple[float | None, int | None, str], ...]


def _tokens(logprobs: Any) -> tuple[_Listed | None, tuple[tuple[tuple[float, int | None, str], ...], ...] | None]:
    """Tokens and the likeliest alternatives of each, from either API's form."""
    if not isinstance(logprobs, dict):
        return None, None
    content: Any = logprobs.get("content")
    if isinstance(content, list):
        tokens: _Listed = tuple((t["logprob"], None, _token_text(t)) for t in content)
        top = tuple(tuple((a["logprob"], None, _token_text(a)) for a in t.get("top_logprobs") or ()) for t in content)
        return tokens, top if any(top) else None
    texts: Any = logprobs.get("tokens")
    if not isinstance(texts, list):
        return None, None
    values: Any = logprobs.get("token_logprobs") or [None] * len(texts)
    tokens = tuple((lp, None, text) for lp, text in zip(values, texts, strict=True))
    rows: Any = logprobs.get("top_logprobs")
    top = tuple(tuple((lp, None, text) for text, lp in (row or {}).items()) for row in rows) if isinstance(rows, list) else ()
    return tokens, top if any(top) else None


def _token_text(token: Mapping[str, Any]) -> str:
    """A token's text; its bytes are right where it is a part of a character."""
    data = token.get("bytes")
    return bytes(data).decode("utf-8", "surrogateescape") if isinstance(data, list) else str(token.get("token", ""))


def _shared(prompt: _Listed, row: _Listed) -> int:
    """The length of the common prefix of two lists of tokens; always leaves one."""
    n = 0
    while n < min(len(prompt), len(row) - 1) and prompt[n][2] == row[n][2]:
        n += 1
    return n


def _choice_in(text: str, choices: Sequence[str]) -> str | None:
    """The choice that an answer is: its JSON, the text itself, or the longest that it begins with."""
    try:
        value: Any = json.loads(text)
        if isinstance(value, dict) and value.get("choice") in choices:
            return value["choice"]
    except ValueError:
        pass  # plain text
    for found in (text, text.strip()):
        if found in choices:
            return found
    begun = [c for c in choices if c.strip() and text.lstrip().startswith(c.strip()) and not text.lstrip()[len(c.strip()) :][:1].isalnum()]
    return max(begun, key=len) if begun else None


def _response_format(schema: Any, strict: bool) -> Body:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **({"strict": True} if strict else {})}}


_STRICT_KEYS = frozenset({
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "description", "title", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "$ref", "$defs",
})  # fmt: skip


def _strict(schema: Any) -> bool:
    """Whether OpenAI enforces a schema exactly: closed objects whose properties are all required, and known keywords."""
    if not isinstance(schema, dict):
        return False
    if not schema.keys() <= _STRICT_KEYS:
        return False
    properties = schema.get("properties", {})
    if (schema.get("type") == "object" or properties) and (schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties)):
        return False
    inner = [*properties.values(), *schema.get("anyOf", ()), *schema.get("$defs", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return all(map(_strict, inner))


def _cost(tally: Tally) -> Body:
    usage = tally.usage
    return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "cached_tokens": usage.cached_tokens, **tally.meta}


def _is_image(piece: Any) -> bool:
    from lmc.prompt import Image

    return isinstance(piece, Image)


# -- streams ---------------------------------------------------------------------------------------------------------


class _Watch:
    """Who reads an answer while it grows: each attempt may only go on where the last one broke off."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self._shown = feed, ""

    def grown(self, text: str) -> None:
        """The attempt's text so far."""
        if len(text) > len(self._shown):
            if not text.startswith(self._shown):
                raise Fault("the stream broke off, and the model's next answer is another one", status=400)
            delta, self._shown = text[len(self._shown) :], text
            self._feed(delta)


class _Pieces:
    """Puts the chunks of a stream together to the body that the same request would have brought at once."""

    def __init__(self, chat: bool, watch: _Watch, read: Any) -> None:
        self._chat, self._watch, self._read = chat, watch, read
        self._text, self._choice = "", Body()
        self._body: Body = {}
        self._tokens: list[Any] = []

    def add(self, body: Body) -> None:
        self._body |= {k: v for k, v in body.items() if k in ("id", "model") and v}
        for choice in body.get("choices") or ():
            delta: Any = choice.get("delta") if self._chat else choice
            if not isinstance(delta, dict):
                raise Malformed("a piece of the answer has no text")
            self._choice |= {k: v for k, v in choice.items() if k in ("finish_reason", "stop_reason", "matched_stop") and v is not None}
            logprobs: Any = choice.get("logprobs")
            if isinstance(logprobs, dict):
                self._tokens += logprobs.get("content") or ()
            text: Any = delta.get("content" if self._chat else "text")
            if text:
                self._text += text
                self._watch.grown(self._text)

    def result(self) -> Any:
        if "finish_reason" not in self._choice:
            raise Fault("the stream ended before the answer did")
        choice = {**self._choice, "index": 0, **({"logprobs": {"content": self._tokens}} if self._tokens else {})}
        choice |= {"message": {"content": self._text}} if self._chat else {"text": self._text}
        return self._read({**self._body, "choices": [choice]})


# -- the SDK ---------------------------------------------------------------------------------------------------------


def _client_maker(client: Any, azure: bool, base_url: str | None, timeout: float, options: Mapping[str, Any]) -> Any:
    """What makes the client on the loop; that the SDK is there and takes the options is known before."""
    if client is not None:
        return lambda: client.with_options(max_retries=0)
    try:
        import openai
    except ImportError:
        raise missing("openai", "openai") from None
    kind = openai.AsyncAzureOpenAI if azure else openai.AsyncOpenAI
    given = {"max_retries": 0, "timeout": timeout, **options, **({"base_url": base_url} if base_url else {})}
    if base_url and urlsplit(base_url).hostname != "api.openai.com":
        import os

        given.setdefault("api_key", os.environ.get("OPENAI_API_KEY", "none"))
    try:
        kind(**given)
    except (openai.OpenAIError, TypeError) as error:
        raise ParameterError(f"OpenAI(…): {error}") from None
    return lambda: kind(**given)


class OpenAIWire:
    """Requests by the SDK's client: its connections, headers and errors; bodies as they are sent and come."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def _resource(self, request: Request) -> Any:
        resources = {"/completions": "completions", "/decisions": "decisions"}
        if request.path == "/chat/completions":
            return self._client.chat.completions
        found = getattr(self._client, resources[request.path], None)
        if found is None:
            raise UnsupportedOpError(f"{request.path}", "this version of the openai package", "pip install -U openai")
        return found

    def _arguments(self, body: Body) -> Body:
        """The SDK's own arguments by name, everything else as extra body: servers know more than the SDK."""
        own = {k: body[k] for k in ("model", "messages", "prompt", "input", "questions", "stream") if k in body}
        return {**own, "extra_body": {k: v for k, v in body.items() if k not in own}}

    async def post(self, request: Request) -> Received:
        import openai

        try:
            raw = await self._resource(request).with_raw_response.create(**self._arguments(request.body), extra_headers=dict(request.headers))
        except openai.APIError as error:
            raise _fault(error) from None
        except http_errors() as error:
            raise Fault(f"{type(error).__name__}: {error}") from None
        return Received(parsed(raw.http_response.content), lowered(raw.headers))

    async def stream(self, request: Request) -> AsyncIterator[Received]:
        import openai

        try:
            arguments = self._arguments(request.body)
            async with self._resource(request).with_streaming_response.create(**arguments, extra_headers=dict(request.headers)) as response:
                headers = lowered(response.headers)
                async for body in events(response.iter_lines()):
                    yield Received(body, headers)
        except openai.APIError as error:
            raise _fault(error) from None
        except http_errors() as error:
            raise Fault(f"{type(error).__name__}: {error}") from None

    async def close(self) -> None:
        await self._client.close()


def _fault(error: Any) -> Fault:
    import openai

    if isinstance(error, openai.APIStatusError):
        return refused(error.status_code, lowered(error.response.headers), json.dumps({"error": error.body} if error.body else {"error": error.message}))
    cause = error.__cause__
    return Fault(f"{error.message}" + (f" ({type(cause).__name__}: {cause})" if cause is not None else ""))


__all__ = ["Conversation", "OpenAI", "OpenAIWire", "Server"]
