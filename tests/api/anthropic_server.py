"""A stand-in of Anthropic's messages API: the protocol as its reference has it, answers of a text model."""

from __future__ import annotations

import json
from typing import Any

from lmc.backend.mock import Mock
from lmc.segments import Constraint, Gen, SamplingParams, Text
from tests.api.http import Answer, Body, Server
from tests.api.text_model import TextModel

_KNOWN = {
    "model",
    "messages",
    "max_tokens",
    "system",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "stream",
    "output_config",
    "tools",
    "tool_choice",
    "thinking",
    "service_tier",
}


class AnthropicModel:
    """`prefill`: whether the model goes on with a last assistant message, as older ones do."""

    def __init__(self, model: TextModel, *, prefill: bool = True) -> None:
        self.model, self.prefill = model, prefill
        self._mock = Mock(answers=model.answer)
        self._signed: dict[str, str] = {}  # what was thought, by its signature

    def handle(self, path: str, body: Body) -> Answer:
        if path != "/v1/messages":
            return _refusal(404, "not_found_error", path)
        if unknown := body.keys() - _KNOWN:
            return _refusal(400, "invalid_request_error", f"{sorted(unknown)[0]}: Extra inputs are not permitted")
        if body["messages"] and body["messages"][-1]["role"] == "assistant":
            if not self.prefill:
                return _refusal(400, "invalid_request_error", "This model does not support assistant message prefill.")
            if body["messages"][-1]["content"] != body["messages"][-1]["content"].rstrip():
                return _refusal(400, "invalid_request_error", "final assistant content cannot end with trailing whitespace")
        if any(not stop.strip() for stop in body.get("stop_sequences", ())):
            return _refusal(400, "invalid_request_error", "stop_sequences: each stop sequence must contain non-whitespace")
        if "tool_choice" in body and not body.get("tools"):
            return _refusal(400, "invalid_request_error", "tool_choice may only be specified while providing tools")
        if wrong := _out_of_place(body):
            return _refusal(400, "invalid_request_error", wrong)
        budget = (body.get("thinking") or {}).get("budget_tokens")
        if budget is not None and (wrong := self._thinking(body, budget)):
            return _refusal(400, "invalid_request_error", wrong)
        prompt = body.get("system", "") + "".join(_text(m["content"]) for m in body["messages"])
        schema = ((body.get("output_config") or {}).get("format") or {}).get("schema")
        params = SamplingParams(body["max_tokens"], stop=tuple(body.get("stop_sequences", ())), temperature=body.get("temperature", 1.0))
        free = (body.get("tool_choice") or {}).get("type") != "none"
        ask = Gen(
            params, Constraint("json_schema", json.dumps(schema)) if schema else None, tools=json.dumps(body["tools"]) if body.get("tools") and free else ""
        )
        output = self._mock.submit(None, (Text((prompt,)), ask)).results[0].output()
        finish = output.metas[0]["finish_reason"]
        reason = "max_tokens" if finish["type"] == "length" else "stop_sequence" if finish["matched"] else "end_turn"
        calls = output.metas[0].get("tool_calls") or ()
        content = [{"type": "text", "text": output.text}] if output.text or not calls else []
        content += [{"type": "tool_use", "id": c["id"], "name": c["name"], "input": c["arguments"]} for c in calls]
        if budget is not None:
            said = f"{len(prompt)} bytes to think about."
            self._signed[signature := f"signed {len(self._signed)}"] = said
            content.insert(0, {"type": "thinking", "thinking": said, "signature": signature})
        reason = "tool_use" if calls else reason
        usage = {"input_tokens": len(prompt.encode()), "output_tokens": len(output.text.encode()), "cache_read_input_tokens": 0}
        whole = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": content,
            "stop_reason": reason, "stop_sequence": finish.get("matched"), "usage": usage,
        }  # fmt: skip
        return Answer({}, events=_events(whole), sentinel=None) if body.get("stream") else Answer(whole)


    def _thinking(self, body: Body, budget: int) -> str:
        """Return the API's refusal of a request with thinking, or of thoughts that it did not have."""
        if body["max_tokens"] <= budget:
            return "`max_tokens` must be greater than `thinking.budget_tokens`."
        if body.get("temperature", 1.0) != 1.0:
            return "`temperature` may only be set to 1 when thinking is enabled."
        for message in body["messages"]:
            blocks = message["content"] if isinstance(message["content"], list) else []
            kinds = [b["type"] for b in blocks]
            if "tool_use" in kinds and kinds[0] != "thinking":
                return "Expected `thinking` or `redacted_thinking`, but found `tool_use`."
            for block in blocks:
                if block["type"] == "thinking" and self._signed.get(block["signature"]) != block["thinking"]:
                    return "Invalid `signature` in `thinking` block"
        return ""


def _events(whole: Body) -> list[Body]:
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    return [
        {"type": "message_start", "message": start},
        *[event for i, block in enumerate(whole["content"]) for event in _block_events(i, block)],
        {"type": "message_delta", "delta": {k: whole[k] for k in ("stop_reason", "stop_sequence")}, "usage": whole["usage"]},
        {"type": "message_stop"},
    ]


def _block_events(index: int, block: Body) -> list[Body]:
    """A block as a stream has it: its text, or the JSON of its input, in pieces."""
    if block["type"] == "text":
        empty, whole, piece = {"type": "text", "text": ""}, block["text"], lambda t: {"type": "text_delta", "text": t}
    elif block["type"] == "thinking":
        empty, whole, piece = {**block, "thinking": "", "signature": ""}, block["thinking"], lambda t: {"type": "thinking_delta", "thinking": t}
    else:
        empty, whole, piece = {**block, "input": {}}, json.dumps(block["input"]), lambda t: {"type": "input_json_delta", "partial_json": t}
    deltas = [{"type": "content_block_delta", "index": index, "delta": piece(whole[i : i + 4])} for i in range(0, len(whole), 4)]
    if block["type"] == "thinking":
        deltas.append({"type": "content_block_delta", "index": index, "delta": {"type": "signature_delta", "signature": block["signature"]}})
    return [{"type": "content_block_start", "index": index, "content_block": empty}, *deltas, {"type": "content_block_stop", "index": index}]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text") or part.get("content") or "" for part in content)


def _out_of_place(body: Body) -> str:
    """Return the API's refusal of calls without results, results without calls, and of either without tools."""
    waiting: list[str] = []
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        if any(b["type"] == "text" and not b["text"] for b in blocks):
            return "messages: text content blocks must be non-empty"
        if sorted(results) != sorted(waiting):
            return "`tool_use` ids were found without `tool_result` blocks immediately after"
        if results and any(b["type"] != "tool_result" for b in blocks[: len(results)]):
            return "`tool_result` blocks must come first"
        waiting = [b["id"] for b in blocks if b["type"] == "tool_use"]
        if (results or waiting) and not body.get("tools"):
            return "Requests which include `tool_use` or `tool_result` blocks must define tools"
    return "`tool_use` ids were found without `tool_result` blocks immediately after" if waiting else ""


def _refusal(status: int, kind: str, message: str) -> Answer:
    return Answer({"type": "error", "error": {"type": kind, "message": message}}, status)


def serve(model: TextModel, *, plant: Any = None, **options: Any) -> Server:
    return Server(AnthropicModel(model, **options).handle, **({"plant": plant} if plant else {}))
