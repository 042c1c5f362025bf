"""From answers to what OpenAI's API sends: whole objects, chunks of a stream, log-probabilities, usage."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmc.backend.base import Output
from lmc.serve.tools import Call, Family

Json = dict[str, Any]
TokenBytes = Callable[[int, str], list[int]]
"""The bytes of a token by its id and its text."""


def event(payload: Any) -> bytes:
    """One server-sent event."""
    return f"data: {json.dumps(payload, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What every object of one answer has in common."""

    model: str
    kind: str  # "chat.completion" or "text_completion"
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def object(self, choices: list[Json], usage: Json | None = None, *, chunk: bool = False) -> Json:
        chat = self.kind == "chat.completion"
        made = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.id}",
            "object": f"{self.kind}.chunk" if chunk and chat else self.kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return made if usage is None and chunk else {**made, "usage": usage}


def usage_of(outputs: Sequence[Output], n: int) -> Json:
    """Tokens of all prompts, each counted once for its n answers, and of all answers."""
    firsts = outputs[::n]
    prompt = sum(o.usage.prompt_tokens for o in firsts)
    completion = sum(o.usage.completion_tokens for o in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(o.usage.cached_tokens for o in firsts)},
    }


def finish_of(meta: Mapping[str, Any]) -> Json:
    """OpenAI's `finish_reason`, and beside it what matched (vLLM's `stop_reason`)."""
    reason = meta["finish_reason"]
    if reason["type"] == "length":
        return {"finish_reason": "length"}
    return {"finish_reason": "stop", "stop_reason": reason.get("matched")}


# -- chat --------------------------------------------------------------------------------------------------------------


def chat_choice(index: int, output: Output, family: Family | None, token_bytes: TokenBytes | None) -> Json:
    content, calls = (output.text, []) if family is None else family.split(output.text)
    message: Json = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    finish = finish_of(output.metas[0])
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
        finish = {"finish_reason": "tool_calls"}
    logprobs = None if token_bytes is None else chat_logprobs(output.metas[0], token_bytes)
    return {"index": index, "message": message, "logprobs": logprobs, **finish}


def _tool_call(call: Call) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": function}


class ChatDeltas:
    """One answer as the deltas of a stream. What may become a tool call is held until the answer is complete."""

    def __init__(self, index: int, family: Family | None) -> None:
        self._index, self._family = index, family
        self._text, self._sent = "", 0

    def opening(self) -> Json:
        return self._choice({"role": "assistant", "content": ""})

    def more(self, text: str) -> list[Json]:
        self._text += text
        return self._upto(len(self._text) if self._family is None else self._family.settled(self._text))

    def end(self, output: Output, token_bytes: TokenBytes | None) -> list[Json]:
        content, calls = (self._text, []) if self._family is None else self._family.split(self._text)
        chunks = self._upto(len(content))
        finish = finish_of(output.metas[0])
        if calls:
            deltas = [{"index": i, **_tool_call(call)} for i, call in enumerate(calls)]
            chunks.append(self._choice({"tool_calls": deltas}))
            finish = {"finish_reason": "tool_calls"}
        last = {**self._choice({}), **finish}
        if token_bytes is not None:
            last["logprobs"] = chat_logprobs(output.metas[0], token_bytes)
        return [*chunks, last]

    def _upto(self, length: int) -> list[Json]:
        new, self._sent = self._text[self._sent : length], max(self._sent, length)
        return [self._choice({"content": new})] if new else []

    def _choice(self, delta: Json) -> Json:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}


def chat_logprobs(meta: Mapping[str, Any], token_bytes: TokenBytes) -> Json:
    def shown(entry: Sequence[Any]) -> Json:
        logprob, token, text = entry
        return {"token": text, "logprob": logprob, "bytes": token_bytes(token, text)}

    tokens = meta["output_token_logprobs"]
    tops = meta.get("output_top_logprobs") or [[] for _ in tokens]
    content = [{**shown(t), "top_logprobs": [shown(x) for x in top]} for t, top in zip(tokens, tops, strict=True)]
    return {"content": content, "refusal": None}


# -- completions -------------------------------------------------------------------------------------------------------


def completion_choice(index: int, output: Output, prompt: str | None, *, logprobs: bool) -> Json:
    """`prompt`: what is echoed before the answer, if anything is."""
    text = output.text if prompt is None else prompt + output.text
    scored = completion_logprobs(output.metas[0], echo=prompt is not None) if logprobs else None
    return {"index": index, "text": text, "logprobs": scored, **finish_of(output.metas[0])}


def completion_chunk(index: int, text: str, output: Output | None, *, logprobs: bool) -> Json:
    last = {"finish_reason": None} if output is None else finish_of(output.metas[0])
    scored = completion_logprobs(output.metas[0], echo=False) if logprobs and output is not None else None
    return {"index": index, "text": text, "logprobs": scored, **last}


def completion_logprobs(meta: Mapping[str, Any], *, echo: bool) -> Json:
    tokens = [*(meta["input_token_logprobs"] if echo else ()), *meta["output_token_logprobs"]]
    tops = [*(meta.get("input_top_logprobs", ()) if echo else ()), *meta.get("output_top_logprobs", ())]
    offsets, at = list[int](), 0
    for _, _, text in tokens:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": [text for _, _, text in tokens],
        "token_logprobs": [logprob for logprob, _, _ in tokens],
        "top_logprobs": [None if top is None else {text: lp for lp, _, text in top} for top in tops] or None,
        "text_offset": offsets,
    }
