"""A stand-in of Gemini's protocol as Vertex AI speaks it (`:generateContent`, `:streamGenerateContent`); answers of a text model."""

from __future__ import annotations

import json
from typing import Any

from lmc.backend.mock import Mock
from lmc.segments import Gen, SamplingParams, Text
from tests.api.http import Answer, Body, Server
from tests.api.text_model import TextModel


class GeminiModel:
    def __init__(self, model: TextModel) -> None:
        self._mock = Mock(answers=model.answer)

    def handle(self, path: str, body: Body) -> Answer:
        if "enerateContent" not in path:
            return Answer({"error": {"code": 404, "message": f"no {path}", "status": "NOT_FOUND"}}, 404)
        wanted = body.get("generationConfig") or {}
        params = SamplingParams(wanted.get("max_output_tokens", 64), stop=tuple(wanted.get("stop_sequences", ())), temperature=wanted.get("temperature", 1.0))
        told = [tool for group in body.get("tools") or () for tool in group.get("function_declarations", ())]
        tools = json.dumps([{"name": t["name"], "description": "", "parameters": t.get("parameters") or {}} for t in told]) if told else ""
        system = (body.get("system_instruction") or {}).get("parts") or ()
        prompt = "".join(_text(part) for part in [*system, *[part for content in body["contents"] for part in content["parts"]]])
        output = self._mock.submit(None, (Text((prompt,)), Gen(params, tools=tools))).results[0].output()
        calls = output.metas[0].get("tool_calls") or ()
        parts: list[Body] = [{"text": output.text}] if output.text or not calls else []
        parts += [{"functionCall": {"name": c["name"], "args": c["arguments"]}} for c in calls]
        usage = {"promptTokenCount": len(prompt), "candidatesTokenCount": len(output.text), "totalTokenCount": len(prompt) + len(output.text)}
        ended = "MAX_TOKENS" if output.metas[0]["finish_reason"]["type"] == "length" else "STOP"

        def chunk(parts: list[Body], **more: Any) -> Body:
            return {"candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, **more}], "modelVersion": "gemini", "responseId": "r1"}

        if "streamGenerateContent" not in path:
            return Answer({**chunk(parts, finishReason=ended), "usageMetadata": usage})
        pieces = [chunk([{"text": output.text[i : i + 4]}]) for i in range(0, len(output.text), 4)]
        return Answer({}, events=[*pieces, {**chunk(parts[1:] if output.text else parts, finishReason=ended), "usageMetadata": usage}], sentinel=None)


def _text(part: Body) -> str:
    if "function_response" in part:
        return str(part["function_response"]["response"])
    return part.get("text") or ""


def serve(model: TextModel) -> Server:
    return Server(GeminiModel(model).handle)
