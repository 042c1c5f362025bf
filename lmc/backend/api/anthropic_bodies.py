"""Bodies of Anthropic's messages API: prompts, tools and marks of the cache as it takes them, and answers and usage as it sends them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmc.backend.api.bodies import REFUSAL, check_asked, check_came, check_no_error
from lmc.backend.api.caching import BlockedPrompt, prompt_of
from lmc.backend.api.exchange import Body, Fault, Malformed
from lmc.backend.api.reports import count_of
from lmc.backend.api.streams import Watch
from lmc.backend.usage import Usage
from lmc.errors import IncompleteAnswer
from lmc.segments import Gen
from lmc.tools import Call, as_object, call_of, tool_use


def cacheable(body: Body, closed: Sequence[Body], per_byte: float) -> BlockedPrompt:
    """Return the prompt of a body by its blocks: the system prompt, then those of its messages except one that the
    answer continues."""
    blocks: list[tuple[str, Body]] = [("system", {"type": "text", "text": body["system"]})] if "system" in body else []
    first, messages = len(blocks), list[int]()
    whole = body["messages"][: len(body["messages"]) - _goes_on(body)]
    blocks += [(m["role"], block) for m in whole for block in _listed(m["content"])]
    count, before = first, ""
    for message in closed:
        if message["role"] != "system":
            count += len(_listed(_content(message, before)))
            before = message["role"]
        messages.append(min(count, len(blocks)) - 1)
    if messages:
        messages[-1] = len(blocks) - 1  # regardless of the messages' other blocks
    read_before = [body.get("tools"), body.get("tool_choice"), body.get("output_config"), body.get("thinking")]
    return prompt_of(read_before if any(read_before) else None, blocks, messages, per_byte)


def _goes_on(body: Body) -> bool:
    return bool(body["messages"]) and body["messages"][-1]["role"] == "assistant"


def _listed(content: Any) -> list[Body]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def with_marks(body: Body, marks: Sequence[int], ttl: Body) -> Body:
    """Return a body whose blocks of these indexes are marked to be cached with everything before them."""
    if not marks:
        return body
    control: Body = {"cache_control": {"type": "ephemeral", **ttl}}
    index, found, messages = 0, dict(body), list[Body]()
    if "system" in body:
        if 0 in marks:
            found["system"] = [{"type": "text", "text": body["system"], **control}]
        index = 1
    for message in body["messages"]:
        blocks = _listed(message["content"])
        mine = [i for i in range(len(blocks)) if index + i in marks and blocks[i].get("type") in _MARKABLE and blocks[i].get("text") != ""]
        if mine:
            message = {**message, "content": [{**block, **control} if i in mine else block for i, block in enumerate(blocks)]}
        messages.append(message)
        index += len(blocks)
    return {**found, "messages": messages}


_MARKABLE = ("text", "image", "document", "tool_use", "tool_result")  # no thinking


# -- bodies ----------------------------------------------------------------------------------------------------------


def tools_of(ask: Gen, messages: Sequence[Body]) -> Body:
    """Return the tools of a request. One without tools, but with results of earlier ones, must name them all the
    same."""
    if ask.tools:
        told = json.loads(ask.tools)
        return {"tools": [{"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in told]}
    called = dict.fromkeys(call["function"]["name"] for m in messages for call in m.get("tool_calls") or ())
    if not called:
        return {}
    return {"tools": [{"name": name, "input_schema": {"type": "object"}} for name in called], "tool_choice": {"type": "none"}}


def turns(messages: Sequence[Body]) -> list[Body]:
    """Return messages in this API's form: calls are blocks of the assistant's, and their results begin the user's next
    one."""
    found: list[Body] = []
    before = ""
    for message in messages:
        content = _content(message, before)
        if before == "tool" and message["role"] in ("tool", "user"):
            found[-1]["content"] += content
        else:
            found.append({"role": "user" if message["role"] == "tool" else message["role"], "content": content})
        before = message["role"]
    return found


def _content(message: Body, before: str) -> Any:
    """Return the content of a message after one of the role `before`: a text, or blocks."""
    if message["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}]
    if before == "tool" and message["role"] == "user":
        return _as_blocks(message["content"])
    if "thinking_blocks" in message:
        return _as_it_came(message)
    if message.get("tool_calls"):
        return [*_as_blocks(message["content"]), *map(tool_use, message["tool_calls"])]
    return _blocks(message["content"])


def _as_it_came(message: Body) -> list[Body]:
    """Return the blocks of an answer with thinking unchanged, since its signature only covers those; without calls that
    got no result, and with the program's version of the text, if it differs."""
    blocks: list[Body] = [{k: v for k, v in block.items() if v is not None} for block in message["thinking_blocks"]]
    calls = {call["id"] for call in message.get("tool_calls") or ()}
    if "".join(block["text"] for block in blocks if block["type"] == "text") != message["content"]:
        return [*(b for b in blocks if "thinking" in b["type"]), *_as_blocks(message["content"]), *map(tool_use, message.get("tool_calls") or ())]
    return [b for b in blocks if (b["id"] in calls if b["type"] == "tool_use" else b["type"] != "text" or b["text"].strip())]


def _as_blocks(content: Any) -> list[Body]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []  # the API takes no empty text
    return _blocks(content)


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _blocks(content: Any) -> Any:
    """Return a message's content with images in this API's form."""
    if isinstance(content, str):
        return content
    return [_source(part) if part["type"] in ("image_url", "file") else part for part in content]


def _source(part: Body) -> Body:
    """Return an image or a document."""
    kind, url = ("document", part["file"]["file_data"]) if part["type"] == "file" else ("image", part["image_url"]["url"])
    if not url.startswith("data:"):
        return {"type": kind, "source": {"type": "url", "url": url}}
    media, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": kind, "source": {"type": "base64", "media_type": media, "data": data}}


def usage_of(body: Body) -> Usage | None:
    usage: Any = body.get("usage")
    if not isinstance(usage, dict) or "input_tokens" not in usage:
        return None
    cached, written = count_of(usage.get("cache_read_input_tokens")), count_of(usage.get("cache_creation_input_tokens"))
    kept: Any = usage.get("cache_creation")
    hour = count_of(kept.get("ephemeral_1h_input_tokens")) if isinstance(kept, dict) else 0
    prompt = count_of(usage["input_tokens"]) + cached + written
    return Usage(prompt, count_of(usage.get("output_tokens")), cached, 0, 1, 0, written_tokens=written, written_hour_tokens=hour)


_ENDED = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    None: "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": REFUSAL,
}


def answer_of(body: Body, tools: bool) -> tuple[str, Mapping[str, Any], Body]:
    """Return text, end, and extra data of an answer. One without blocks is empty, as the API documents. Raises
    Malformed, IncompleteAnswer."""
    check_no_error(body)
    blocks: Any = body.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise Malformed("the answer has no content")
    texts = [block.get("text") for block in blocks if block.get("type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise Malformed("a text of the answer is missing")
    text, others = "".join(texts), [block for block in blocks if block.get("type") not in ("text", "tool_use")]
    extra: Body = {"blocks": [_whole(block) for block in blocks]} if others else {}
    if said := "".join(block.get("thinking") or "" for block in others):
        extra["reasoning"] = said
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    check_asked(calls, tools)
    if tools:
        extra["tool_calls"] = calls
    reason = body.get("stop_reason")
    kind = _ENDED.get(reason, str(reason))
    if kind == "pause_turn":
        raise _unfinished(text)
    finish: Mapping[str, Any] = {"type": kind} if kind == "length" else {"type": kind, "matched": body.get("stop_sequence")}
    thought = any("thinking" in str(block.get("type")) for block in others)
    return check_came("", text, finish, {**extra, "reasoning": thought}), finish, extra


def _whole(block: Body) -> Body:
    """Return a block as it goes back: the input of a call, which a stream sends as text, is an object."""
    return {**block, "input": as_object(_call(block)["arguments"])} if isinstance(block.get("input"), str) else block


def _unfinished(text: str) -> IncompleteAnswer:
    error = IncompleteAnswer("the server paused the answer for tools of its own; leave those out of extra_body")
    error.text = text
    return error


def _call(block: Body) -> Call:
    try:
        given: Any = block["input"]  # of a stream: its text
        return call_of(str(block["id"]), str(block["name"]), given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))
    except KeyError as error:
        raise Malformed(f"a call of a tool has no {error}") from None


class EventAssembler:
    """Assembles the events of a stream into the body that the same request would have returned without streaming."""

    def __init__(self, watch: Watch, read: Any, begun: Callable[[], None] = lambda: None) -> None:
        self._watch, self._read, self._begun = watch, read, begun
        self._text, self._body = "", Body()
        self._blocks: dict[int, Body] = {}  # received so far, calls with the text of their input

    @property
    def complete(self) -> bool:
        return bool(self._body.get("stop_reason"))

    def add(self, body: Body) -> None:
        kind = body.get("type")
        if kind == "message_start":
            self._body |= {k: body["message"].get(k) for k in ("id", "model")}
            self._begun()
        elif kind == "content_block_start":
            begun: Body = body["content_block"]
            self._blocks[body["index"]] = {**begun, "input": ""} if "input" in begun else {**begun}
        elif kind == "content_block_delta":
            if body["index"] not in self._blocks:
                raise Malformed("a piece of the answer is of no block")
            self._grow(self._blocks[body["index"]], body["delta"])
        elif kind == "message_delta":
            self._body |= body["delta"] | ({"usage": body["usage"]} if "usage" in body else {})

    def _grow(self, block: Body, delta: Body) -> None:
        """Extend a block; parts not handled here, such as citations, are not needed to continue."""
        kind = delta.get("type")
        if kind == "text_delta":
            block["text"] = (block.get("text") or "") + delta["text"]
            self._text += delta["text"]
            self._watch.grown(self._text)
        elif kind == "input_json_delta" and "input" in block:
            block["input"] += delta["partial_json"]
        elif kind == "thinking_delta":
            block["thinking"] = (block.get("thinking") or "") + delta["thinking"]
        elif kind == "signature_delta":
            block["signature"] = (block.get("signature") or "") + delta["signature"]

    def result(self) -> Any:
        if not self.complete:
            raise Fault("the stream ended before the answer did")
        self._watch.ended(self._text)
        return self._read({**self._body, "content": [block for _, block in sorted(self._blocks.items())]})
