"""Conversion of answers to the objects of OpenAI's API: whole objects, chunks of a stream, log-probabilities, usage."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmc.backend.families import Family
from lmc.backend.results import UNSCORED, Output, Scored
from lmc.segments import SamplingParams
from lmc.serve.asking import Grown

Json = dict[str, Any]
TokenBytes = Callable[[int, str], list[int]]
"""The bytes of a token by its id and its text."""


def encoded(payload: Any) -> bytes:
    """Encode a JSON value. Half a character, of a token or of an answer that an API has cut, is U+FFFD."""
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def event(payload: Any, kind: str = "") -> bytes:
    """Encode one server-sent event; `kind`: its name, if it has one."""
    return (f"event: {kind}\n".encode() if kind else b"") + b"data: " + encoded(payload) + b"\n\n"


DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Stamp:
    """Common fields of all objects of one answer."""

    model: str
    kind: str  # "chat.completion" or "text_completion"
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def object(self, choices: list[Json], usage: Json) -> Json:
        return {**self._head(self.kind), "choices": choices, "usage": usage}

    def chunk(self, choices: list[Json], **usage: Json | None) -> Json:
        """Build a piece of a stream. `usage`: of a stream that ends with it, None in the pieces before."""
        kind = "chat.completion.chunk" if self.kind == "chat.completion" else self.kind
        return {**self._head(kind), "choices": choices, **usage}

    def _head(self, kind: str) -> Json:
        prefix = "chatcmpl" if self.kind == "chat.completion" else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}


def usage_of(outputs: Sequence[Output], n: int) -> Json:
    """Return tokens of all prompts, each counted once for its n answers, and of all answers."""
    firsts = outputs[::n]
    prompt = sum(o.usage.prompt_tokens for o in firsts)
    completion = sum(o.usage.completion_tokens for o in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(o.usage.cached_tokens for o in firsts)},
    }


def finish_of(meta: Mapping[str, Any], params: SamplingParams) -> Json:
    """Return OpenAI's `finish_reason`, and vLLM's `stop_reason`: the matched text or token of those that the request names;
    None at the model's end of text, which is a text in some chat templates."""
    reason = meta["finish_reason"]
    if reason["type"] == "length":
        return {"finish_reason": "length"}
    matched = reason.get("matched")
    named = matched in params.stop_token_ids or matched in params.stop or (params.stop_regex and isinstance(matched, str))
    return {"finish_reason": "stop", "stop_reason": matched if named else None}


def scored_of(output: Output, scored: Scored | None = None) -> Scored:
    """Return log-probabilities of a whole answer, or `scored` of its end, without the token that ended it: that is not
    part of its text."""
    scored = Scored.of(output.metas[0]) if scored is None else scored
    matched = output.metas[0]["finish_reason"].get("matched")
    ended = isinstance(matched, int) and len(scored) and scored.tokens[-1][1] == matched
    return scored.cut(0, -1) if ended else scored


# -- chat --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallReader:
    """Reads calls of tools from answers.

    family  how the model writes them; None if an API gives them besides the text
    most    of one answer, the first of them; None: any number
    """

    family: Family | None
    most: int | None = None

    def split(self, text: str, output: Output) -> tuple[str, list[Json]]:
        """Return content and calls of a complete answer."""
        if self.family is None:
            given = output.metas[0].get("tool_calls") or ()
            return text, [_tool_call(call["id"], call["name"], _arguments(call["arguments"])) for call in given[: self.most]]
        content, calls = self.family.split(text)
        return content, [_tool_call(f"call_{secrets.token_hex(8)}", call.name, call.arguments) for call in calls[: self.most]]

    def settled(self, text: str) -> int:
        """Return how much of a growing answer is certainly content."""
        return len(text) if self.family is None else self.family.settled(text)


def chat_choice(index: int, output: Output, reader: CallReader, token_bytes: TokenBytes | None, params: SamplingParams) -> Json:
    """Build a choice; `token_bytes`: for log-probabilities; None if not requested; `params`: the request's."""
    content, calls = reader.split(output.text, output)
    message: Json = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    finish = finish_of(output.metas[0], params)
    if calls:
        message["tool_calls"] = calls
        finish = {"finish_reason": "tool_calls"}
    logprobs = None if token_bytes is None else chat_logprobs(scored_of(output), token_bytes)
    return {"index": index, "message": message, "logprobs": logprobs, **finish}


def _arguments(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _tool_call(id: str, name: str, arguments: str) -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


class ChatDeltas:
    """One answer as the deltas of a stream. What may become a tool call is held until the answer is complete, and the
    log-probabilities of its tokens with it."""

    def __init__(self, index: int, reader: CallReader, token_bytes: TokenBytes | None, params: SamplingParams) -> None:
        self._index, self._reader, self._token_bytes, self._params = index, reader, token_bytes, params
        self._text, self._sent, self._scored = "", 0, UNSCORED

    def opening(self) -> Json:
        return self._choice({"role": "assistant", "content": ""})

    def more(self, grown: Grown) -> list[Json]:
        self._text += grown.text
        self._scored = Scored.joined((self._scored, grown.scored))
        if grown.output is not None:
            return self._end(grown.output)
        return self._upto(self._reader.settled(self._text))

    def _end(self, output: Output) -> list[Json]:
        self._scored = scored_of(output, self._scored)
        content, calls = self._reader.split(self._text, output)
        chunks = self._upto(len(content))
        self._sent = len(self._text)
        finish = finish_of(output.metas[0], self._params)
        if calls:
            deltas = [{"index": i, **call} for i, call in enumerate(calls)]
            chunks.append(self._choice({"tool_calls": deltas}))
            finish = {"finish_reason": "tool_calls"}
        return [*chunks, {**self._choice({}), **finish}]

    def _upto(self, length: int) -> list[Json]:
        new, self._sent = self._text[self._sent : length], max(self._sent, length)
        return [self._choice({"content": new})] if new else []

    def _choice(self, delta: Json) -> Json:
        logprobs = None
        if len(self._scored) and self._token_bytes is not None and self._sent == len(self._text):
            logprobs, self._scored = chat_logprobs(self._scored, self._token_bytes), UNSCORED
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def chat_logprobs(scored: Scored, token_bytes: TokenBytes) -> Json:
    def shown(entry: Sequence[Any]) -> Json:
        logprob, token, text = entry
        return {"token": text, "logprob": logprob, "bytes": token_bytes(token, text)}

    tops = scored.tops or [()] * len(scored)
    content = [{**shown(t), "top_logprobs": [shown(x) for x in top]} for t, top in zip(scored.tokens, tops, strict=True)]
    return {"content": content, "refusal": None}


# -- completions -------------------------------------------------------------------------------------------------------


def completion_choice(index: int, output: Output, echo: str, token_bytes: TokenBytes | None, params: SamplingParams) -> Json:
    """Build a choice; `echo`: the prompt, if it is repeated before the answer; the others as for `chat_choice`."""
    text = echo + output.text
    echoed = _of_prompt(output.metas[0]) if echo else UNSCORED
    scored = None if token_bytes is None else completion_logprobs(Scored.joined((echoed, scored_of(output))), token_bytes)[0]
    return {"index": index, "text": text, "logprobs": scored, **finish_of(output.metas[0], params)}


def _of_prompt(meta: Mapping[str, Any]) -> Scored:
    return Scored(tuple(meta.get("input_token_logprobs") or ()), tuple(meta.get("input_top_logprobs") or ()))


class CompletionPieces:
    """One answer as the pieces of a stream."""

    def __init__(self, index: int, token_bytes: TokenBytes | None, params: SamplingParams, echo: str = "") -> None:
        self._index, self._token_bytes, self._params, self._begun, self._echo = index, token_bytes, params, 0, echo

    def more(self, grown: Grown) -> Json:
        last = {"finish_reason": None} if grown.output is None else finish_of(grown.output.metas[0], self._params)
        scored = None
        if self._token_bytes is not None:
            tokens = grown.scored if grown.output is None else scored_of(grown.output, grown.scored)
            scored, self._begun = completion_logprobs(tokens, self._token_bytes, self._begun)
        text, self._echo = self._echo + grown.text, ""
        return {"index": self._index, "text": text, "logprobs": scored, **last}


def completion_logprobs(scored: Scored, token_bytes: TokenBytes, begun: int = 0) -> tuple[Json, int]:
    """Build log-probabilities; `begun`: characters of the text that begin before the first token. Return that for the next
    one, too. As in OpenAI's API each token is among its likeliest ones, however many are asked for."""
    offsets: list[int] = []
    for _, token, text in scored.tokens:
        part = token_bytes(token, text) if _HALF.search(text) else None  # within a character, which the token before has begun
        offsets.append(begun - (part is not None and _continues(part[0])))
        begun += len(text) if part is None else sum(not _continues(byte) for byte in part)
    tops: list[Any] = [top or () for top in scored.tops] or [()] * len(scored)
    found = {
        "tokens": [text for _, _, text in scored.tokens],
        "token_logprobs": [logprob for logprob, _, _ in scored.tokens],
        "top_logprobs": [
            None if logprob is None else {text: logprob} | {text: lp for lp, _, text in top}
            for (logprob, _, text), top in zip(scored.tokens, tops, strict=True)
        ],
        "text_offset": offsets,
    }
    return found, begun


_HALF = re.compile("[\ufffd\udc80-\udcff]")


def _continues(byte: int) -> bool:
    """Return whether a byte of UTF-8 continues a character."""
    return byte & 0xC0 == 0x80
