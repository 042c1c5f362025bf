"""The endpoints of the model's APIs over a backend: OpenAI's completions, chat completions, responses and models; Anthropic's messages; vLLM's tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from lmc.backend.base import Backend
from lmc.errors import ConstraintError, LmcError, PromptTooLongError
from lmc.segments import Constraint, Given, Image, Part, SamplingParams
from lmc.serve import messages_api, responses_api, tokenizing
from lmc.serve.answering import (
    DONE,
    CallReader,
    ChatDeltas,
    CompletionPieces,
    Json,
    Stamp,
    TokenBytes,
    chat_choice,
    completion_choice,
    event,
    usage_of,
)
from lmc.serve.asking import Ask, RequestedAnswers
from lmc.serve.conversation import ChatPrompt, faulty_tool, prompt_of, whole_template, with_calls
from lmc.serve.errors import ApiError, M, bad, naming, of_validation, parsed_on, renaming
from lmc.serve.gate import EndpointCall, EndpointReply, Events
from lmc.serve.metrics import Metrics
from lmc.serve.openai_protocol import ChatRequest, CompletionRequest, Sampled
from lmc.serve.settings import ServerSettings

_COMPLETION_TOKENS = 16  # OpenAI's default of `max_tokens` for completions


AsChat = Callable[..., tuple[Json, dict[str, str]]]
"""Converts a request of another API to a chat completion's. Returns that, and the fields of its API by theirs there."""


class OpenAIApi:
    """Answers requests of OpenAI's API. Each method is one endpoint."""

    def __init__(self, backend: Backend, settings: ServerSettings, metrics: Metrics, pool: Executor, compiling: Executor) -> None:
        """Set up; `compiling`: pool on which requests with constraints wait for each other, so that the others on
        `pool` do not."""
        self._backend, self._settings, self._metrics, self._pool, self._compiling = backend, settings, metrics, pool, compiling
        self._started = int(time.time())

    async def models(self, call: EndpointCall) -> EndpointReply:
        return EndpointReply({"object": "list", "data": [self._model(name) for name in self._names]})

    async def model(self, call: EndpointCall) -> EndpointReply:
        self._check_model(call.path["model"])
        return EndpointReply(self._model(call.path["model"]))

    @property
    def _names(self) -> tuple[str, ...]:
        """Return the names that requests may give as `model`: the model's own, and its adapters'."""
        return (*self._settings.models, *self._backend.capabilities.listed_adapters)

    def _adapter(self, request: Sampled) -> str:
        """The adapter that a request asks, by its name; "" for the model itself."""
        return "" if request.model is None or request.model in self._settings.models else request.model

    def _model(self, name: str) -> dict[str, Any]:
        context = self._backend.capabilities.max_context
        return {"id": name, "object": "model", "created": self._started, "owned_by": "lmc", "max_model_len": context}

    # -- completions ---------------------------------------------------------------------------------------------------

    async def completions(self, call: EndpointCall) -> EndpointReply | Events:
        request = await self._parsed(CompletionRequest, call.body)
        stamp = self._stamp(request, "text_completion")
        params, (field, constraint) = await self._in_pool(_meaning, request, _COMPLETION_TOKENS, self._adapter(request))
        fields = {PromptTooLongError: "prompt", ConstraintError: field}
        self._check_choices(len(request.prompts) * request.choices, "prompt" if len(request.prompts) > 1 else "n")
        with naming(fields):
            prompts = [await self._in_pool(_prompt_of, prompt, self._backend) for prompt in request.prompts]
        n, salt = request.choices, request.cache_salt or ""
        asks = [
            Ask((prompt,), params, constraint, n, _item_seed(request.seed, i), salt, **call.share, watched=bool(request.stream))
            for i, prompt in enumerate(prompts)
        ]
        arrived = time.perf_counter()
        generation = await self._begin(asks, fields)
        token_bytes = None if request.logprobs is None else self._token_bytes
        texts = [prompt.text if isinstance(prompt, Given) else prompt for prompt in prompts]
        echoes = [text if request.echo else "" for text in texts for _ in range(n)]
        if request.stream:
            pieces = [CompletionPieces(i, token_bytes, params, echo) for i, echo in enumerate(echoes)]
            return Events(self._completion_events(stamp, request, generation, pieces, arrived), generation.cancel)
        outputs = await generation.outputs()
        made = [completion_choice(i, o, echo, token_bytes, params) for i, (o, echo) in enumerate(zip(outputs, echoes, strict=True))]
        return EndpointReply(stamp.object(made, usage_of(outputs, request.choices)))

    async def _completion_events(
        self, stamp: Stamp, request: CompletionRequest, generation: RequestedAnswers, pieces: Sequence[CompletionPieces], arrived: float
    ) -> AsyncGenerator[bytes, None]:
        async for grown in generation.follow():
            arrived = self._first_token(arrived)
            yield event(stamp.chunk([pieces[grown.index].more(grown)], **request.unknown_usage))
        yield self._end(stamp, request, generation)

    # -- chat ----------------------------------------------------------------------------------------------------------

    async def chat(self, call: EndpointCall) -> EndpointReply | Events:
        request = await self._parsed(ChatRequest, call.body)
        answer = await self._answered(request, call)
        if isinstance(answer, Chunks):
            return Events(_as_events(answer.stream, request), answer.cancel)
        return EndpointReply(answer)

    async def responses(self, call: EndpointCall) -> EndpointReply | Events:
        """Answer OpenAI's Responses API."""
        request = await self._parsed(responses_api.ResponsesRequest, call.body)
        answer, made = await self._converted(responses_api.as_chat, request, call), responses_api.ResponseBuilder(request)
        if isinstance(answer, Chunks):
            return Events(made.events(answer.stream), answer.cancel, made.error_event)
        return EndpointReply(made.whole(answer))

    async def messages(self, call: EndpointCall) -> EndpointReply | Events:
        """Answer Anthropic's Messages API."""
        request = await self._parsed(messages_api.MessagesRequest, call.body)
        answer = await self._converted(messages_api.as_chat, request, call)
        if isinstance(answer, Chunks):
            return Events(messages_api.events(answer.stream), answer.cancel, messages_api.error_event, messages_api.PING)
        return EndpointReply(messages_api.whole(answer))

    async def count_tokens(self, call: EndpointCall) -> EndpointReply:
        """Count the prompt tokens of a request to Anthropic's Messages API, which is not made."""
        request = await self._parsed(messages_api.CountTokensRequest, call.body)
        return EndpointReply({"input_tokens": await self._counted(messages_api.as_conversation, request, call)})

    async def input_tokens(self, call: EndpointCall) -> EndpointReply:
        """Count the prompt tokens of a request to the Responses API, which is not made."""
        request = await self._parsed(responses_api.ResponsesRequest, call.body)
        return EndpointReply({"object": "response.input_tokens", "input_tokens": await self._counted(responses_api.as_chat, request, call)})

    async def tokenize(self, call: EndpointCall) -> EndpointReply:
        """Return the tokens of a text, or of a conversation's prompt."""
        request = await self._parsed(tokenizing.TokenizeRequest, call.body)
        words = self._words_of(request.model)
        if request.messages is None:
            if request.prompt is None:
                raise bad("prompt, or messages: one of them is to be tokenized", "prompt")
            self._check_text((request.prompt,), "prompt")
            ids = await self._in_pool(partial(tokenizing.text_ids, request.prompt, words, self._backend, begins=request.add_special_tokens is not False))
        else:
            chat = await self._in_pool(_chat_of, request.chat())
            ids = await self._ids_of((await self._prompt_of(chat)).parts)
            if ids is None:
                raise bad("messages: how many tokens a picture has is known when it is computed; only text is tokenized", "messages", "unsupported")
        spelled = await self._in_pool(lambda: list(map(words.spelling, ids))) if request.return_token_strs else None
        return EndpointReply({"count": len(ids), "max_model_len": self._backend.capabilities.max_context, "tokens": ids, "token_strs": spelled})

    async def detokenize(self, call: EndpointCall) -> EndpointReply:
        """Return the text of tokens."""
        request = await self._parsed(tokenizing.DetokenizeRequest, call.body)
        self._words_of(request.model)
        with renaming({"prompt": "tokens"}), naming({PromptTooLongError: "tokens"}):
            found = await self._in_pool(_prompt_of, request.tokens, self._backend)
        return EndpointReply({"prompt": found.text})

    async def tokenizer_info(self, call: EndpointCall) -> EndpointReply:
        whole = whole_template(self._backend)
        context = self._backend.capabilities.max_context
        return EndpointReply(tokenizing.info(self._words_of(None), None if whole is None else whole.source, context))

    def _words_of(self, model: str | None) -> Any:
        if model is not None:
            self._check_model(model)
        return tokenizing.tokenizer_of(self._backend)

    async def embeddings(self, call: EndpointCall) -> EndpointReply:
        why = "this server has no embeddings: its model generates text; ask a server of an embedding model"
        raise ApiError(501, why, code="unsupported")

    async def _converted(self, as_chat: AsChat, request: Any, call: EndpointCall) -> Json | Chunks:
        """Answer another API's request as a chat completion; errors name its own fields."""
        chat, names = await self._as_chat(as_chat, request)
        with renaming(names):
            answer = await self._answered(await self._in_pool(_chat_of, chat), call)
        return replace(answer, stream=_renamed(answer.stream, names)) if isinstance(answer, Chunks) else answer

    async def _as_chat(self, as_chat: AsChat, request: Any) -> tuple[Json, dict[str, str]]:
        return await self._in_pool(partial(as_chat, request, lenient=self._settings.lenient))

    async def _answered(self, request: ChatRequest, call: EndpointCall) -> dict[str, Any] | Chunks:
        """Return the answer to a chat completion, or its chunks."""
        stamp = self._stamp(request, "chat.completion")
        self._check_choices(request.choices, "n")
        params, (field, constraint) = await self._in_pool(_meaning, request, self._settings.max_tokens, self._adapter(request))
        asked = await self._prompt_of(request)
        family = asked.family
        of_text = constraint
        if family is not None:
            constraint = await self._in_pool(with_calls, request, family, of_text)
        ask = Ask(
            asked.parts,
            params,
            constraint,
            request.choices,
            _item_seed(request.seed, 0),
            request.cache_salt or "",
            asked.tools,
            **call.share,
            watched=bool(request.stream),
        )
        arrived = time.perf_counter()
        try:
            generation = await self._begin([ask], {PromptTooLongError: "messages", ConstraintError: field or "tools"})
        except ConstraintError:
            fault = None if constraint is of_text else await self._in_pool(faulty_tool, request)
            if fault is None:
                raise
            raise fault from None
        token_bytes = self._token_bytes if request.logprobs else None
        reader = CallReader(family, 1 if request.parallel_tool_calls is False else None)
        if request.stream:
            return Chunks(self._chunks(stamp, request, params, generation, reader, token_bytes, arrived), generation.cancel)
        outputs = await generation.outputs()
        made = [chat_choice(i, output, reader, token_bytes, params) for i, output in enumerate(outputs)]
        return stamp.object(made, usage_of(outputs, request.choices))

    async def _prompt_of(self, request: ChatRequest) -> ChatPrompt:
        return await self._in_pool(partial(prompt_of, request, self._backend, self._settings.media_hosts, lenient=self._settings.lenient))

    async def _counted(self, as_chat: AsChat, request: Any, call: EndpointCall) -> int:
        """Return the tokens of the prompt of another API's request; errors name its own fields."""
        chat, names = await self._as_chat(as_chat, request)
        with renaming(names):
            return await self._count(await self._in_pool(_chat_of, chat), call)

    async def _count(self, request: ChatRequest, call: EndpointCall) -> int:
        """Return the tokens of a chat's prompt. Images are looked at, and that prompt is computed: what is left to do for the request itself is its answer."""
        self._stamp(request, "chat.completion")
        if not hasattr(self._backend, "encode"):
            raise bad("this server passes requests on to another, which knows how many tokens they have; it cannot count them", code="unsupported")
        parts = (await self._prompt_of(request)).parts
        if (ids := await self._ids_of(parts)) is not None:
            return len(ids)
        generation = await self._begin([Ask(parts, SamplingParams(max_new_tokens=0), **call.share)], {PromptTooLongError: "messages"})
        (output,) = await generation.outputs()
        return output.usage.prompt_tokens

    async def _ids_of(self, parts: Sequence[Part | Image]) -> list[int] | None:
        """Return the token ids of a chat's prompt; None: it has pictures."""
        if any(isinstance(part, Image) for part in parts):
            return None
        self._check_text(parts, "messages")
        return await self._in_pool(self._backend.encode, parts)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]

    def _check_text(self, parts: Sequence[Part | Image], param: str) -> None:
        """Check that a text to be counted may fit into the model's context, as the engine does for one to be answered, before it is encoded."""
        words, most = getattr(self._backend, "tokenizer", None), self._backend.capabilities.max_context
        if words is not None and most is not None and (least := words.least(part for part in parts if isinstance(part, str))) >= most:
            raise PromptTooLongError(f"{param}: at least {least} tokens; the context of this server's model is {most}", param=param)

    async def _chunks(
        self,
        stamp: Stamp,
        request: ChatRequest,
        params: SamplingParams,
        generation: RequestedAnswers,
        reader: CallReader,
        token_bytes: TokenBytes | None,
        arrived: float,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks. The first comes with the first token, which clients take it for; the last has no choices, and the usage."""
        answers = [ChatDeltas(i, reader, token_bytes, params) for i in range(request.choices)]
        opened = False
        async for grown in generation.follow():
            arrived = self._first_token(arrived)
            for answer in () if opened else answers:
                yield stamp.chunk([answer.opening()], **request.unknown_usage)
            opened = True
            for choice in answers[grown.index].more(grown):
                yield stamp.chunk([choice], **request.unknown_usage)
        yield stamp.chunk([], usage=usage_of([result.output() for result in generation.results], request.choices))

    # -- shared helpers ------------------------------------------------------------------------------------------------

    async def _parsed(self, kind: type[M], body: bytes) -> M:
        return await parsed_on(self._pool, kind, body, lenient=self._settings.lenient)

    def _stamp(self, request: Sampled, kind: str) -> Stamp:
        if request.model is not None:
            self._check_model(request.model)
        if request.cache_salt is not None and self._backend.capabilities.lookahead:
            raise bad("cache_salt: this server passes requests on to an API, whose cache it cannot partition", "cache_salt", "unsupported")
        if request.stop_regex and self._backend.capabilities.lookahead:
            raise bad("stop_regex: this server passes requests on to an API and does not search its answers", "stop_regex", "unsupported")
        return Stamp(request.model or self._settings.models[0], kind)

    def _check_model(self, name: str) -> None:
        if name not in self._names:
            known = ", ".join(self._names)
            raise ApiError(404, f"there is no model {name!r}; this server has {known}", param="model", code="model_not_found")

    def _check_choices(self, asked: int, param: str) -> None:
        if asked > self._settings.max_choices:
            raise bad(f"{asked} answers in one request; at most {self._settings.max_choices} may be asked for", param)

    def _end(self, stamp: Stamp, request: Sampled, generation: RequestedAnswers) -> bytes:
        """Return the end of a stream."""
        usage = usage_of([result.output() for result in generation.results], request.choices)
        return (event(stamp.chunk([], usage=usage)) if request.wants_usage else b"") + DONE

    def _first_token(self, arrived: float) -> float:
        """Record the first token's time once; infinity from then on."""
        if arrived != float("inf"):
            self._metrics.first_token(time.perf_counter() - arrived)
        return float("inf")

    def _token_bytes(self, token: int, text: str) -> list[int]:
        words = getattr(self._backend, "tokenizer", None)  # a token may be half a character
        return list(text.encode("utf-8", "surrogateescape") if words is None else words.token_bytes(token))

    async def _begin(self, asks: list[Ask], fields: Mapping[type[LmcError], str | None]) -> RequestedAnswers:
        """Submit the requests. `fields`: those that errors are about, by their class."""
        compiled = any(ask.constraint is not None or ask.params.stop_regex for ask in asks)
        return await RequestedAnswers.begin(self._backend, asks, self._compiling if compiled else self._pool, fields)

    async def _in_pool(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)


@dataclass(frozen=True, slots=True)
class Chunks:
    """A growing answer. `cancel` ends it."""

    stream: AsyncGenerator[dict[str, Any], None]
    cancel: Callable[[], None]


async def _as_events(chunks: AsyncGenerator[dict[str, Any], None], request: ChatRequest) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        if chunk["choices"] or request.wants_usage:
            yield event(chunk)
    yield DONE


async def _renamed(chunks: AsyncGenerator[dict[str, Any], None], names: Mapping[str, str]) -> AsyncGenerator[dict[str, Any], None]:
    """Yield chunks; errors between them name the fields of another API."""
    with renaming(names):
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk


def _chat_of(body: dict[str, Any]) -> ChatRequest:
    """Convert a request. Raises ApiError as for a chat completion."""
    try:
        return ChatRequest.model_validate(body)
    except ValidationError as error:
        raise of_validation(error, tuple(ChatRequest.model_fields), body) from None


def _meaning(request: ChatRequest | CompletionRequest, most: int, adapter: str) -> tuple[SamplingParams, tuple[str | None, Constraint | None]]:
    """Return the sampling parameters and the constraint of a request: long regexes and schemas take a while to
    parse."""
    return replace(request.asked_params(most), adapter=adapter), request.constraint()


def _item_seed(seed: int | None, item: int) -> int | None:
    return None if seed is None else seed % (1 << 63) + item * 1_000_003


def _prompt_of(prompt: str | list[int], backend: Any) -> str | Given:
    """Return text, or token ids as they are, with their text."""
    if isinstance(prompt, str):
        return prompt
    if not hasattr(backend, "tokenizer"):
        raise bad("prompt: this backend takes text, not token ids", "prompt", "unsupported")
    words, most = backend.tokenizer, backend.capabilities.max_context
    if most is not None and len(prompt) >= most:  # to decode millions of ids takes a while
        raise PromptTooLongError(f"the prompt has {len(prompt)} tokens; the context of this server's model is {most} tokens, one of them for the answer")
    if any(token >= words.vocab_size for token in prompt):
        raise bad(f"prompt: token ids are below {words.vocab_size}", "prompt")
    return Given(words.decode(prompt, with_specials=True), tuple(prompt))
