"""A stand-in of Anthropic's messages API: the protocol as its reference has it, answers of a text model."""

from __future__ import annotations

import json
from typing import Any

from lmc.backend.mock import Mock
from lmc.prompt import Constraint, Gen, SamplingParams, Text
from tests.api.http import Answer, Body, Server
from tests.api.text_model import TextModel

_KNOWN = {"model", "messages", "max_tokens", "system", "temperature", "top_p", "top_k", "stop_sequences", "stream", "output_config"}


class AnthropicModel:
    """`prefill`: whether the model goes on with a last assistant message, as older ones do."""

    def __init__(self, model: TextModel, *, prefill: bool = True) -> None:
        self.model, self.prefill = model, prefill
        self._mock = Mock(answers=model.answer)

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
        prompt = body.get("system", "") + "".join(_text(m["content"]) for m in body["messages"])
        schema = ((body.get("output_config") or {}).get("format") or {}).get("schema")
        params = SamplingParams(body["max_tokens"], stop=tuple(body.get("stop_sequences", ())), temperature=body.get("temperature", 1.0))
        ask = Gen(params, Constraint("json_schema", json.dumps(schema)) if schema else None)
        output = self._mock.submit(None, (Text((prompt,)), ask)).results[0].output()
        finish = output.metas[0]["finish_reason"]
        reason = "max_tokens" if finish["type"] == "length" else "stop_sequence" if finish["matched"] else "end_turn"
        usage = {"input_tokens": len(prompt.encode()), "output_tokens": len(output.text.encode()), "cache_read_input_tokens": 0}
        whole = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": [{"type": "text", "text": output.text}],
            "stop_reason": reason, "stop_sequence": finish.get("matched"), "usage": usage,
        }  # fmt: skip
        return Answer({}, events=_events(whole), sentinel=None) if body.get("stream") else Answer(whole)


def _events(whole: Body) -> list[Body]:
    text: str = whole["content"][0]["text"]
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    return [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *[{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text[i : i + 4]}} for i in range(0, len(text), 4)],
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {k: whole[k] for k in ("stop_reason", "stop_sequence")}, "usage": whole["usage"]},
        {"type": "message_stop"},
    ]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _refusal(status: int, kind: str, message: str) -> Answer:
    return Answer({"type": "error", "error": {"type": kind, "message": message}}, status)


def serve(model: TextModel, *, plant: Any = None, **options: Any) -> Server:
    return Server(AnthropicModel(model, **options).handle, **({"plant": plant} if plant else {}))
