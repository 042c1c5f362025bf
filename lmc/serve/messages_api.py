"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API, converted to and from chat completions. Pure data."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, WrapValidator

from lmc.serve.answering import Json, event
from lmc.serve.conversation import text_of, tools_of
from lmc.serve.errors import ApiError, bad
from lmc.serve.fields import Count, ListOf, Probability, RequestBody, supported
from lmc.tools import tool_use


class AnthropicMessage(RequestBody):
    role: str
    content: str | ListOf[dict[str, Any]]


class Thinking(RequestBody):
    """As much thinking as the model does by itself, which is part of its answer here."""

    type: Literal["disabled", "adaptive"]
    display: str | None = None


class ClearedThinking(RequestBody):
    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(RequestBody):
    """What is left out of a conversation: thinking, which the model does not see again anyway."""

    edits: ListOf[ClearedThinking] | None = None


class AnswerFormat(RequestBody):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(RequestBody):
    format: AnswerFormat | None = None
    effort: str | None = None


class CountTokensRequest(RequestBody):
    """The body of a request to count a conversation's tokens. `cache_control`, also of blocks, and the effort have no effect."""

    model: str
    messages: Annotated[ListOf[AnthropicMessage], Field(min_length=1)]
    system: str | ListOf[dict[str, Any]] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Annotated[Thinking | None, WrapValidator(partial(supported, kind="unsupported_field"))] = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    context_management: Annotated[ContextManagement | None, WrapValidator(partial(supported, kind="unsupported_field"))] = None


class MessagesRequest(CountTokensRequest):
    """The body of a request. `metadata`, `user_profile_id` and `service_tier` have no effect, either."""

    max_tokens: Count
    stop_sequences: ListOf[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    user_profile_id: str | None = None
    thread: dict[str, Any] | None = None


_THREAD = "thread_unsupported_request"
"""The error for which Anthropic's clients send the whole conversation instead."""


def as_chat(request: MessagesRequest, *, lenient: bool = False) -> tuple[Json, dict[str, str]]:
    """Convert the request to a chat completion's. Return that, and the fields of this API by theirs there. `lenient`: tools of
    Anthropic's own servers are left out."""
    if request.thread is not None:
        raise bad("thread: nothing is stored here; send all messages of the conversation, and no thread", "thread", _THREAD)
    chat, names = as_conversation(request, lenient=lenient)
    sampled = {name: getattr(request, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "stream")}
    chat |= {name: value for name, value in {**sampled, "stop": request.stop_sequences or None}.items() if value is not None}
    return chat, {**names, "stop": "stop_sequences"}


def as_conversation(request: CountTokensRequest, *, lenient: bool = False) -> tuple[Json, dict[str, str]]:
    """Convert the conversation, its tools and what is asked for; as `as_chat`, without sampling."""
    messages: list[Json] = []
    if request.system:
        messages.append({"role": "system", "content": _text(request.system, "system")})
    names = {"messages.0": "system", "response_format": "output_config.format"}
    for i, message in enumerate(request.messages):
        turns = _turns(message, f"messages.{i}")
        names |= {f"messages.{at}": f"messages.{i}" for at in range(len(messages), len(messages) + len(turns))}
        messages += turns
    chat: Json = {"messages": messages, "model": request.model}
    tools, places = tools_of(request.tools, (None, "custom"), "with an input_schema", "input_schema", lenient=lenient)
    if messages[-1]["role"] == "assistant":
        if tools or any(m.get("tool_calls") for m in messages):  # whose template writes whole messages alone
            raise bad("an assistant's message at the end is not continued beside tools or calls of them; end with a user's message", "messages", "unsupported")
        chat["continue_final_message"] = True
        names["continue_final_message"] = "messages"
    if tools:
        names |= places
        choice = request.tool_choice or {"type": "auto"}
        chat |= {"tools": tools, "tool_choice": _choice(choice), "parallel_tool_calls": not choice.get("disable_parallel_tool_use")}
    if request.output_config is not None and (form := request.output_config.format) is not None:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema_}}
    return chat, names


def _choice(choice: Json) -> Any:
    match choice:
        case {"type": "tool"}:
            return {"type": "function", "function": {"name": choice.get("name")}}
        case {"type": "any" | "auto" | "none" as kind}:
            return "required" if kind == "any" else kind
        case _:
            raise bad(f"tool_choice: its type is auto, any, none or tool, not {choice.get('type')!r:.60}", "tool_choice")


def _turns(message: AnthropicMessage, where: str) -> list[Json]:
    """Convert a message: results of tools are messages of their own, calls are besides the text."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    found: list[Json] = []
    parts, calls = list[Json](), list[Json]()
    for i, block in enumerate(message.content):
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": _url(block.get("source"), f"{where}.content.{i}")}})
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            calls.append({"id": block.get("id") or "", "type": "function", "function": {"name": block.get("name"), "arguments": arguments}})
        elif kind == "tool_result":
            found.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _text(block.get("content") or "", f"{where}.content.{i}")})
        elif kind not in ("thinking", "redacted_thinking"):
            raise bad(f"{where}.content.{i}: this server takes text and images only, not {kind!r:.60}", "messages", "unsupported")
    if parts or calls or not found:
        content = parts if any(part["type"] == "image_url" for part in parts) else "".join(part["text"] for part in parts)
        found.append({"role": message.role, "content": content, **({"tool_calls": calls} if calls else {})})
    return found


def _url(source: Any, where: str) -> str:
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return f"data:{kind};base64,{data}"
        case {"type": "url", "url": str(url)}:
            return url
        case _:
            raise bad(f"{where}: a picture's source is of the type base64 or url", "messages", "unsupported")


def _text(content: Any, where: str) -> str:
    return text_of(content, {"text": "text"}, f"{where}: this server takes text here; pictures are parts of a user's message", "messages")


# -- answers -----------------------------------------------------------------------------------------------------------


def whole(chat: Json) -> Json:
    """Convert an answer of a chat completion to a message."""
    (choice,) = chat["choices"]
    message = choice["message"]
    content: list[Json] = [{"type": "text", "text": message["content"]}] if message.get("content") else []
    content += map(tool_use, message.get("tool_calls") or ())
    return {**_empty(chat), "content": content, **_end(choice), "usage": _usage(chat["usage"])}


async def events(chunks: AsyncGenerator[Json, None]) -> AsyncGenerator[bytes, None]:
    """Convert the chunks of a chat completion, the last of which has its usage."""
    begun, block, end, last = False, -1, Json(), Json()
    async for last in chunks:
        if not begun:
            begun = True
            yield _event("message_start", message={**_empty(last), "usage": _usage(None)})
        for choice in last["choices"]:
            if choice.get("finish_reason"):
                end = _end(choice)
            if piece := choice["delta"].get("content"):
                if block < 0:
                    block = 0
                    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
                yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
            for call in choice["delta"].get("tool_calls") or ():
                if block >= 0:
                    yield _event("content_block_stop", index=block)
                block += 1
                use = tool_use(call)
                yield _event("content_block_start", index=block, content_block={**use, "input": {}})
                yield _event(
                    "content_block_delta", index=block, delta={"type": "input_json_delta", "partial_json": json.dumps(use["input"], ensure_ascii=False)}
                )
    if block >= 0:
        yield _event("content_block_stop", index=block)
    yield _event("message_delta", delta=end, usage=_usage(last["usage"]))
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


PING = _event("ping")


def _empty(chat: Json) -> Json:
    return {
        "id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": chat["model"], "content": [],
        "stop_reason": None, "stop_sequence": None,
    }  # fmt: skip


_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


def _end(choice: Json) -> Json:
    matched = choice.get("stop_reason")
    if choice["finish_reason"] == "stop" and isinstance(matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": _REASONS.get(choice["finish_reason"], "end_turn"), "stop_sequence": None}


def _usage(usage: Json | None) -> Json:
    cached = 0 if usage is None else usage["prompt_tokens_details"]["cached_tokens"]
    prompt, completion = (0, 0) if usage is None else (usage["prompt_tokens"], usage["completion_tokens"])
    return {"input_tokens": prompt - cached, "output_tokens": completion, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}


_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError) -> Json:
    """Return an error in this API's form."""
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = {"details": {"error_code": _THREAD, "unsupported": ["thread"]}} if error.code == _THREAD else {}
    return {"type": "error", "error": {"type": kind, "message": error.message, **details}}


def error_body_at(path: str, error: ApiError) -> Json:
    """Return an error of a request that reaches no endpoint, in the form of the API whose path it has."""
    return error_body(error) if path.startswith("/v1/messages") else error.body


def error_event(error: ApiError) -> bytes:
    """Return an error as the last event of a stream: Anthropic's clients ignore events without a name."""
    return _event("error", error=error_body(error)["error"])
