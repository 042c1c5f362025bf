"""Streams: answers assembled from pieces, and shown while they grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmc.backend.api.bodies import content_of
from lmc.backend.api.exchange import Body, Fault, Malformed
from lmc.backend.api.handles import Feed


class Watch:
    """A reader of a growing answer: each attempt may only continue where the last one broke off.

    part  what is shown of a text that may grow
    """

    def __init__(self, feed: Feed, part: Callable[[str], str] = lambda text: text) -> None:
        self._feed, self._part, self._shown = feed, part, ""

    def grown(self, text: str) -> None:
        """Report the attempt's text so far. Half of a surrogate pair at its end waits for the other half."""
        text, shown = self._part(text[:-1] if "\ud800" <= text[-1:] <= "\udbff" else text), self._shown
        if not (text.startswith(shown) or shown.startswith(text)):
            raise Fault(_OTHER, status=400)
        if len(text) > len(shown):
            self._shown = text
            self._feed(text[len(shown) :])

    def ended(self, text: str) -> None:
        """Report the attempt's whole text: no less than what was shown."""
        if not self._part(text).startswith(self._shown):
            raise Fault(_OTHER, status=400)


class Unwatched(Watch):
    """No reader: an attempt may continue with another answer."""

    def __init__(self) -> None:
        super().__init__(lambda delta: None)

    def grown(self, text: str) -> None:
        """Show nothing."""


UNWATCHED = Unwatched()
_OTHER = "the stream broke off, and the model's next answer is another one"


def joined(text: str, piece: str) -> str:
    """Return a text with the next piece of it. Servers that count in UTF-16 may cut within a character, whose halves
    JSON can write."""
    if "\ud800" <= text[-1:] <= "\udbff" and "\udc00" <= piece[:1] <= "\udfff":
        return text[:-1] + (text[-1] + piece[0]).encode("utf-16-le", "surrogatepass").decode("utf-16-le") + piece[1:]
    return text + piece


class Pieces:
    """Assembles the chunks of a stream into the body that the same request would have returned without streaming."""

    def __init__(self, chat: bool, watch: Watch, read: Any, begun: Callable[[], None] = lambda: None) -> None:
        self._chat, self._watch, self._read, self._begun = chat, watch, read, begun
        self._text: str | None = None  # until a piece of it arrives
        self._choice = Body()
        self._body: Body = {}
        self._scored: dict[str, list[Any]] = {}  # log-probabilities: in either API's form, lists by their names
        self._ids: list[int] = []
        self._calls: list[Body] = []
        self._function: Any = None  # a call in the API's first form, which lmc never asks for
        self._blocks: list[Body] = []
        self._said = dict[str, str]()  # besides the answer: a refusal, the reasoning

    @property
    def complete(self) -> bool:
        return bool(self._choice.get("finish_reason"))  # some servers write "" until the end

    def add(self, body: Body) -> None:
        if body.get("choices"):
            self._begun()
        self._body |= {k: v for k, v in body.items() if k in ("id", "model", "usage", "service_tier") and v}
        for choice in body.get("choices") or ():
            if (index := choice.get("index") or 0) != self._choice.setdefault("index", index):
                raise Malformed("the stream has pieces of several answers, where one was asked for")
            delta: Any = choice if not self._chat else choice.get("delta") or {}  # what Azure's filter says of a text has none
            self._choice |= {k: v for k, v in choice.items() if k in ("finish_reason", "stop_reason", "matched_stop") and v is not None}
            logprobs: Any = choice.get("logprobs")
            for name, listed in logprobs.items() if isinstance(logprobs, dict) else ():
                if isinstance(listed, list):
                    self._scored.setdefault(name, []).extend(listed)
            self._ids += choice.get("token_ids") or ()
            for piece in delta.get("tool_calls") or ():
                self._called(piece)
            if self._chat and delta.get("function_call"):
                self._function = delta["function_call"]
            for block in delta.get("thinking_blocks") or ():
                self._thought(block)
            text, thought = content_of(delta) if self._chat else (choice.get("text"), "")
            if thought:
                delta = {**delta, "reasoning_content": thought}
            for beside in _BESIDE:
                if self._chat and isinstance(delta.get(beside), str):
                    self._said[beside] = self._said.get(beside, "") + delta[beside]
            if isinstance(text, str):
                self._grow(text)
            elif text is not None:
                raise Malformed(f"a piece of the answer is {text!r:.40}")
            if isinstance(whole := choice.get("whole"), str):  # the final answer, overriding its pieces
                if not whole.startswith(self._text or ""):
                    raise Malformed("the pieces of the answer are not the whole of it")
                self._grow(whole[len(self._text or "") :])

    def _grow(self, piece: str) -> None:
        self._text = joined(self._text or "", piece)
        if piece:
            self._watch.grown(self._text)

    def _called(self, piece: Any) -> None:
        """Add a piece of a tool call: the first has its name, all have a part of its arguments. Another id is another
        call, whatever its index: some servers give all calls the same, or none."""
        said, id = piece.get("function") or {}, piece.get("id") or ""
        if (index := piece.get("index")) is None:
            index = len(self._calls) - (not said.get("name"))
        call = next((call for call in reversed(self._calls) if call["index"] == index), None)
        if call is None or (id and call["id"] and call["id"] != id):
            call = {"index": index, "id": "", "function": {"name": "", "arguments": ""}}
            self._calls.append(call)
        call["id"] = id or call["id"]
        call["function"]["name"] += said.get("name") or ""
        call["function"]["arguments"] = joined(call["function"]["arguments"], said.get("arguments") or "")

    def _thought(self, piece: Body) -> None:
        """Add a block of the reasoning, or more of the last one, which its signature ends."""
        last = self._blocks[-1] if self._blocks else {}
        if piece.get("type") == "thinking" == last.get("type") and not last.get("signature"):
            last["thinking"] = (last.get("thinking") or "") + (piece.get("thinking") or "")
            last["signature"] = piece.get("signature")
        else:
            self._blocks.append({**piece})

    def result(self) -> Any:
        if "finish_reason" not in self._choice:
            raise Fault("the stream ended before the answer did")
        self._watch.ended(self._text or "")
        choice = {**self._choice, "index": 0, **({"logprobs": self._scored} if self._scored else {}), **({"token_ids": self._ids} if self._ids else {})}
        said = {**self._said, **({"function_call": self._function} if self._function else {}), **({"thinking_blocks": self._blocks} if self._blocks else {})}
        choice |= (
            {"message": {**said, "content": self._text, "tool_calls": sorted(self._calls, key=lambda call: call["index"])}}
            if self._chat
            else {"text": self._text}
        )
        return self._read({**self._body, "choices": [choice]})


_BESIDE = ("refusal", "reasoning_content", "reasoning")
