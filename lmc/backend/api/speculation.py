"""Speculation: one request covers several answers of a program, which are taken from its text only if that is certain.

A request that continues beyond its answer returns a text. The program's next append, and the answer after that, are
searched in it:

    … Name: │ Ada Lovelace │\\nBorn: │ 1815 │\\nField: …
            └ this answer  └ the program's own text, word for word
                                     └ the next answer: up to one of its stops

An answer that cannot be proved equal to that of its own request is requested separately (API speculative execution,
arXiv 2312.07104 §5; unlike there, limits and ends are checked, and a value is never empty because the model did not
follow).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmc.backend.api.place import Rest
from lmc.segments import Gen, Image, Part, SamplingParams


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """An answer found in received text, its end, and the text after it."""

    text: str
    finish: Mapping[str, Any]
    rest: Rest


def speculative(ask: Gen) -> bool:
    """Return whether an answer may be one of several of a request: one text, ended only by stop strings and its
    limit."""
    params = ask.params
    return (
        ask.constraint is None
        and not ask.tools
        and params.n == 1
        and not (params.return_logprob or params.stop_token_ids or params.stop_regex or params.min_new_tokens or params.ignore_eos)
    )


def follow(rest: Rest, parts: Sequence[Part | Image], ask: Gen, stops: Sequence[str]) -> FoundAnswer | None:
    """Return the answer to `ask`, which the program wants after the literal `parts`; None if `rest` does not prove it.

    stops  that end it: its own and the template's
    """
    if not speculative(ask) or _sampled_as(ask.params) != _sampled_as(rest.params):
        return None
    text = _text(parts)
    if text is None or not rest.whole.startswith(text, rest.at):
        return None
    start = rest.at + len(text)
    end, matched = first_stop(rest.whole, stops, start)
    if matched is None and (rest.ended != "stop" or not set(rest.stops) <= set(stops)):
        return None  # its natural end has not arrived
    if not _within(rest, start, end, ask.params.max_new_tokens):
        return None
    left = replace(rest, at=end, gens=max(0, rest.gens - 1))
    return FoundAnswer(rest.whole[start:end], {"type": "stop", "matched": matched}, left)


def first_stop(text: str, stops: Sequence[str], start: int = 0) -> tuple[int, str | None]:
    """Return where the first of the stops begins and which it is; the end of the text and None if there is none."""
    cut, matched = len(text), None
    for stop in stops:
        at = text.find(stop, start)
        if start <= at < cut:
            cut, matched = at, stop
    return cut, matched


def cut(text: str, stops: Sequence[str], patterns: Sequence[str] = ()) -> tuple[str, str | None]:
    """Return the text up to the first stop string or match of a stop pattern, and the match (None: nothing)."""
    end, matched = first_stop(text, stops)
    for pattern in patterns:
        found = re.search(pattern, text[:end])
        if found is not None:
            end, matched = found.start(), found.group()
    return text[:end], matched


def _sampled_as(params: SamplingParams) -> SamplingParams:
    """Return the parameters that both answers must share: all but their ends."""
    return replace(params, max_new_tokens=0, stop=())


def _text(parts: Sequence[Part | Image]) -> str | None:
    """Return literal parts as text; None if there is something else among them, such as the end of a message."""
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else None


def _within(rest: Rest, start: int, end: int, limit: int) -> bool:
    """Return whether `whole[start:end]` is certainly no more than `limit` tokens. A token has at least one byte."""
    if len(rest.whole[start:end].encode("utf-8", "surrogatepass")) <= limit:
        return True
    return rest.tokens is not None and _overlapping(rest.tokens, start, end) <= limit


def _overlapping(tokens: Sequence[str], start: int, end: int) -> int:
    """Return how many tokens have a character in [start, end)."""
    found = at = 0
    for token in tokens:
        found += at < end and at + len(token) > start
        at += len(token)
    return found
