"""OpenAI's Responses API: conversion of chat completions to its requests, and of its answers back. Pure data.

Parameters that this API lacks (stop, n, seed, …) are refused here as by a server, so that they are left out, and
compensated if possible.

Nothing is stored there, so a model's reasoning is kept here: an answer's items, with the reasoning encrypted, are the
blocks of its message, and go back unchanged with the prompts that continue it.

    answered    [reasoning, function_call A, function_call B]     blocks of the assistant's message
    asked next  [user, reasoning, function_call A, function_call B, output A, output B]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmc.backend.api.bodies import check_no_error
from lmc.backend.api.exchange import Body, Fault, Malformed
from lmc.backend.api.sse import status_of

PATH = "/responses"
_SAME = frozenset({
    "model", "temperature", "top_p", "stream", "prompt_cache_key", "prompt_cache_retention", "service_tier", "user", "safety_identifier", "metadata",
    "reasoning", "parallel_tool_calls", "max_tool_calls", "truncation", "include", "store",
})  # fmt: skip
_NO_MATTER = frozenset({"stream_options"})
ENCRYPTED = "reasoning.encrypted_content"
"""Included in answers so that their reasoning can continue where nothing is stored."""


def asked(body: Mapping[str, Any], *include: str) -> Body:
    """Convert the body of a chat completion to this API. Raises Fault for a parameter that it does not have.

    include  additional contents of answers
    """
    stored = bool(body.get("store"))
    found: Body = {"store": False, "input": [item for message in body["messages"] for item in _items(message, stored)]}
    for key, value in body.items():
        if key in _SAME:
            found[key] = value
        elif key == "reasoning_effort":
            found["reasoning"] = {"effort": value, **found.get("reasoning", {})}
        elif key in ("text", "verbosity"):
            found["text"] = {**found.get("text", {}), **(value if key == "text" else {"verbosity": value})}
        elif key == "tool_choice":
            found["tool_choice"] = {"type": "function", **value["function"]} if isinstance(value, dict) and "function" in value else value
        elif key in ("max_completion_tokens", "max_tokens"):
            found["max_output_tokens"] = value
        elif key == "response_format":
            found["text"] = {**found.get("text", {}), "format": {"type": "json_schema", **value["json_schema"]}}
        elif key == "tools":
            found["tools"] = [{"type": "function", "strict": False, **tool["function"]} for tool in value]
        elif key not in _NO_MATTER and key != "messages":
            raise Fault(f"the Responses API has no '{key}': it is not supported", status=400, param=key, code="unsupported_parameter")
    wanted = [*found.get("include", ()), *(() if stored else include)]
    return {**found, **({"include": list(dict.fromkeys(wanted))} if wanted else {})}


def _items(message: Mapping[str, Any], stored: bool) -> list[Body]:
    """Return a message as items of the input: unchanged items, or its content, its calls of tools, or a result."""
    if "thinking_blocks" in message and (kept := _kept(message, stored)):
        return kept
    if message["role"] == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}]
    content: Any = message["content"]
    if isinstance(content, list):
        content = [_part(part) for part in content]
    calls = [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()]
    return [*([{"role": message["role"], "content": content}] if content or not calls else []), *calls]


def _kept(message: Mapping[str, Any], stored: bool) -> list[Body]:
    """Return the items of an answer unchanged, without calls that got no result; none if the program has changed its
    text.

    Reasoning belongs to the item after it, which the API requires: if that is left out, so is the reasoning. If nothing
    is stored, it must be encrypted.
    """
    items: list[Body] = list(message["thinking_blocks"])
    if "".join(part.get("text") or "" for item in items if item.get("type") == "message" for part in item.get("content") or ()) != message["content"]:
        return []
    calls = {call["id"] for call in message.get("tool_calls") or ()}
    found: list[Body] = []
    follows = False  # whether the next item is sent
    for item in reversed(items):
        if item.get("type") == "reasoning":
            sent = follows and (stored or bool(item.get("encrypted_content")))
        else:
            follows = sent = item.get("type") != "function_call" or item.get("call_id") in calls
        if sent:
            found.insert(0, item)
    return found


def _part(part: Mapping[str, Any]) -> Body:
    if part["type"] == "image_url":
        given = part["image_url"]
        return {"type": "input_image", "image_url": given["url"], **({"detail": given["detail"]} if "detail" in given else {})}
    if part["type"] == "file":
        given = part["file"]
        return {"type": "input_file", **(given if given["file_data"].startswith("data:") else {"file_url": given["file_data"]})}
    return {"type": "input_text", "text": part["text"]}


def answered(body: Mapping[str, Any]) -> Body:
    """Convert the body of an answer to a chat completion's; its content is None if no part of it is text. Raises Fault,
    and Malformed."""
    if body.get("status") == "failed":
        error: Any = body.get("error")
        error = error if isinstance(error, dict) else {}
        code = error.get("code") if isinstance(error.get("code"), str) else None
        raise Fault(str(error.get("message") or "the response failed"), status=status_of(error, 500), code=code)
    if body.get("status") not in (None, "completed", "incomplete"):
        raise Malformed(f"the response is {body['status']!r:.40}, not completed")
    check_no_error(body)
    if not isinstance(body.get("output"), list) or not all(isinstance(item, dict) for item in body["output"]):
        raise Malformed("the answer has no output")
    texts, summaries, message = list[str](), list[str](), Body()
    for item in body["output"]:
        if item.get("type") == "message":
            for part in item.get("content") or ():
                if part.get("type") == "refusal":
                    message["refusal"] = part.get("refusal")
                elif not isinstance(part.get("text"), str):
                    raise Malformed("a part of the answer has no text")
                else:
                    texts.append(part["text"])
        elif item.get("type") == "function_call":
            message.setdefault("tool_calls", []).append(
                {"id": item.get("call_id"), "type": "function", "function": {"name": item.get("name"), "arguments": item.get("arguments")}}
            )
        elif item.get("type") == "reasoning":
            summaries += [part.get("text") or "" for part in item.get("summary") or item.get("content") or ()]
            message["thinking_blocks"] = body["output"]
    if any(summaries):
        message["reasoning_content"] = "\n".join(summaries)
    content = "".join(texts) if texts else None
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": _finish(body, "tool_calls" in message)}
    return {**{k: body[k] for k in ("id", "model", "usage", "service_tier") if k in body}, "choices": [choice]}


def _finish(body: Mapping[str, Any], called: bool) -> str:
    if body.get("status") != "incomplete":
        return "tool_calls" if called else "stop"
    reason = (body.get("incomplete_details") or {}).get("reason")
    return "length" if reason == "max_output_tokens" else str(reason)


def ends(event: Mapping[str, Any]) -> bool:
    """Return whether an event is the last one of a stream."""
    return event.get("type") in ("response.completed", "response.incomplete", "response.failed", "error")


def piece(event: Mapping[str, Any]) -> Body | None:
    """Convert an event of a stream to a chunk of a chat completion; None if it has no counterpart."""
    if event.get("type") == "response.output_text.delta":
        return {"choices": [{"index": 0, "delta": {"content": event.get("delta") or ""}}]}
    if event.get("type") == "error":
        raise Fault(str(event.get("message") or "the stream failed"), status=status_of(event, 500))
    if not ends(event):
        return None
    whole = answered(event["response"])
    (choice,) = whole["choices"]
    message = choice["message"]
    calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls") or ())]
    beside = {k: message[k] for k in ("refusal", "reasoning_content", "thinking_blocks") if message.get(k)}
    return {**whole, "choices": [{"index": 0, "delta": {"tool_calls": calls, **beside}, "whole": message["content"], "finish_reason": choice["finish_reason"]}]}


def wanted(fault: Fault) -> bool:
    """Return whether a refusal of a chat completion means that the model needs this API."""
    return fault.status in (400, 404) and "v1/responses" in fault.message
