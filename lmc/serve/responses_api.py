"""POST /v1/responses: OpenAI's Responses API, converted to and from chat completions. Pure data; nothing is stored."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import Field

from lmc.serve.answering import Json, event
from lmc.serve.conversation import text_of, tools_of
from lmc.serve.errors import ApiError, bad
from lmc.serve.fields import ONLY, Absent, Count, ListOf, OpenAIBody, RequestBody, Stored


class Reasoning(RequestBody):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextOptions(RequestBody):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponsesRequest(OpenAIBody):
    """The body of a request. `truncation`, the reasoning effort, and of `include` all but log-probabilities have no effect."""

    input: str | ListOf[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    stream_options: dict[str, Any] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    client_metadata: dict[str, Any] | None = None
    include: ListOf[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    background: Annotated[Literal[False] | None, ONLY] = None
    max_tool_calls: int | None = None
    previous_response_id: Stored = None
    conversation: Stored = None
    prompt: Absent = None
    context_management: Absent = None


def as_chat(request: ResponsesRequest, *, lenient: bool = False) -> tuple[Json, dict[str, str]]:
    """Convert the request to a chat completion's. Return that, and the fields of this API by theirs there. `lenient`: tools that are
    no functions are left out."""
    items = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    messages: list[Json] = [{"role": "system", "content": request.instructions}] if request.instructions else []
    names = {"messages": "input", "messages.0": "instructions", "response_format": "text.format", "max_completion_tokens": "max_output_tokens"}
    for i, item in enumerate(items):
        _add(messages, item, i)
        names[f"messages.{len(messages) - 1}"] = "input" if isinstance(request.input, str) else f"input.{i}"
    chat: Json = {"messages": messages, "stream": request.stream, "max_completion_tokens": request.max_output_tokens}
    chat |= {name: getattr(request, name) for name in ("model", "temperature", "top_p", "user", "metadata", "parallel_tool_calls")}
    if request.top_logprobs or _LOGPROBS in (request.include or ()):
        chat |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    tools, places = tools_of(request.tools, ("function",), "of the type function", lenient=lenient)
    if tools:
        names |= places
        chat |= {"tools": tools, "tool_choice": _choice(request.tool_choice)}
    form = request.text.format if request.text is not None else None
    if form is not None and form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": form.get("name") or "answer", "schema": form.get("schema")}}
    elif form is not None:
        chat["response_format"] = {"type": form.get("type")}
    return {name: value for name, value in chat.items() if value is not None}, names


_LOGPROBS = "message.output_text.logprobs"


def _choice(choice: str | Json | None) -> Any:
    match choice:
        case {"type": "function"}:
            return {"type": "function", "function": {"name": choice.get("name")}}
        case {"type": "allowed_tools", "tools": [*tools]}:
            named = [{"type": tool.get("type"), "function": {"name": tool.get("name")}} if isinstance(tool, dict) else tool for tool in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
        case dict():
            raise bad(f"tool_choice: {choice.get('type')!r:.60} is not supported; it is of the type function or allowed_tools", "tool_choice", "unsupported")
        case _:
            return choice


def _add(messages: list[Json], item: Json, i: int) -> None:
    """Add an item of the input; calls join the assistant's message before them."""
    kind = item.get("type") or "message"
    if kind == "function_call":
        call = {"id": item.get("call_id") or "", "type": "function", "function": {"name": item.get("name"), "arguments": item.get("arguments")}}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": _text(item.get("output"), i)})
    elif kind == "message":
        messages.append({"role": item.get("role"), "content": _content(item.get("content"), i)})
    elif kind == "item_reference":
        why = "not supported, since nothing is stored; send the items themselves (with the AI SDK: store: false)"
        raise bad(f"input.{i}: items of the type 'item_reference' are {why}", "input", "unsupported")
    elif kind != "reasoning":  # earlier reasoning is not sent to the model again
        raise bad(f"input.{i}: items of the type {kind!r:.60} are not supported", "input", "unsupported")


def _content(content: Any, i: int) -> str | list[Json]:
    """Return a message's text, or its parts in a chat completion's form if it has pictures."""
    if not (isinstance(content, list) and any(isinstance(part, dict) and part.get("type") == "input_image" for part in content)):  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return _text(content, i)
    return [_image(part, i) if isinstance(part, dict) and part.get("type") == "input_image" else {"type": "text", "text": _text(part, i)} for part in content]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]


def _image(part: Json, i: int) -> Json:
    if not isinstance(part.get("image_url"), str):
        raise bad(f"input.{i}: a picture is given by image_url; this server keeps no files", "input", "unsupported")
    return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part.get("detail")}}


def _text(content: Any, i: int) -> str:
    return text_of(content, _TEXTS, f"input.{i}: this server takes text, and input_image in a user's message", "input")


_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}

# -- answers -----------------------------------------------------------------------------------------------------------


class ResponseBuilder:
    """One answer, complete or growing."""

    def __init__(self, request: ResponsesRequest) -> None:
        self._request, self._id = request, f"resp_{secrets.token_hex(16)}"
        self._items: list[Json] = []
        self._number = 0  # of its next event

    def whole(self, chat: Json) -> Json:
        (choice,) = chat["choices"]
        message = choice["message"]
        if message.get("content"):
            self._items.append(_message(message["content"], choice["finish_reason"], _scored(choice)))
        self._items += [_call(call) for call in message.get("tool_calls") or ()]
        return self._response(chat, choice["finish_reason"], chat["usage"])

    async def events(self, chunks: AsyncGenerator[Json, None]) -> AsyncGenerator[bytes, None]:
        """Convert the chunks of a chat completion, the last of which has its usage."""
        told = self._event
        text, item, finish, last, scored = "", _message(""), "stop", Json(), list[Json]()
        async for last in chunks:
            if self._number == 0:
                for kind in ("response.created", "response.in_progress"):
                    yield told(kind, response=self._response(last, None, None))
            for choice in last["choices"]:
                finish = choice.get("finish_reason") or finish
                at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
                scored += _scored(choice)
                if piece := choice["delta"].get("content"):
                    if not text:
                        yield told("response.output_item.added", output_index=0, item={**item, "status": "in_progress", "content": []})
                        yield told("response.content_part.added", **at, part=_part(""))
                    text += piece
                    yield told("response.output_text.delta", **at, delta=piece, logprobs=_scored(choice))
                for call in choice["delta"].get("tool_calls") or ():
                    self._items.append(_call(call))
        if text:
            part = _part(text, scored)
            item = {**item, "status": _status(finish), "content": [part]}
            at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
            yield told("response.output_text.done", **at, text=text, logprobs=part["logprobs"])
            yield told("response.content_part.done", **at, part=part)
            yield told("response.output_item.done", output_index=0, item=item)
            self._items.insert(0, item)
        for index, call in enumerate(self._items[1 if text else 0 :], 1 if text else 0):
            at = {"item_id": call["id"], "output_index": index}
            yield told("response.output_item.added", output_index=index, item={**call, "status": "in_progress", "arguments": ""})
            yield told("response.function_call_arguments.delta", **at, delta=call["arguments"])
            yield told("response.function_call_arguments.done", **at, name=call["name"], arguments=call["arguments"])
            yield told("response.output_item.done", output_index=index, item=call)
        response = self._response(last, finish, last["usage"])
        yield told(f"response.{response['status']}", response=response)

    def error_event(self, error: ApiError) -> bytes:
        """Return an error as the last event of the stream: by the fields of the API, and as the object that OpenAI's
        clients raise."""
        return self._event("error", code=error.code, message=error.message, param=error.param, **error.body)

    def _event(self, kind: str, **fields: Any) -> bytes:
        said = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event(said, kind)

    def _response(self, chat: Json, finish: str | None, usage: Json | None) -> Json:
        request = self._request
        status = "in_progress" if finish is None else _status(finish)
        return {
            "id": self._id, "object": "response", "created_at": chat["created"], "model": chat["model"], "status": status,
            "output": [] if finish is None else self._items, "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": None if usage is None else _usage(usage), "instructions": request.instructions, "metadata": request.metadata or {},
            "temperature": request.temperature, "top_p": request.top_p, "max_output_tokens": request.max_output_tokens,
            "tools": request.tools or [], "tool_choice": request.tool_choice or "auto", "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None, "store": False, "truncation": request.truncation or "disabled",
        }  # fmt: skip


def _status(finish: str) -> str:
    return "incomplete" if finish == "length" else "completed"


def _message(text: str, finish: str = "stop", scored: Sequence[Json] = ()) -> Json:
    return {"type": "message", "id": f"msg_{secrets.token_hex(12)}", "status": _status(finish), "role": "assistant", "content": [_part(text, scored)]}


def _part(text: str, scored: Sequence[Json] = ()) -> Json:
    """Build a text with its tokens' log-probabilities, of those of a whole answer, which may go on with calls."""
    begins = accumulate((len(token["bytes"]) for token in scored), initial=0)
    size = len(text.encode("utf-8", "replace"))
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [token for token, begin in zip(scored, begins, strict=False) if begin < size]}


def _scored(choice: Json) -> list[Json]:
    return (choice.get("logprobs") or {}).get("content") or []


def _call(call: Json) -> Json:
    said = call["function"]
    return {
        "type": "function_call",
        "id": f"fc_{secrets.token_hex(12)}",
        "status": "completed",
        "call_id": call["id"],
        "name": said["name"],
        "arguments": said["arguments"],
    }


def _usage(usage: Json) -> Json:
    cached = {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"], "cache_write_tokens": 0}
    return {
        "input_tokens": usage["prompt_tokens"], "input_tokens_details": cached,
        "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": usage["total_tokens"],
    }  # fmt: skip
