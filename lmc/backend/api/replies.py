"""A server's reply to one request, as data: texts with their ends and tokens, and the meta info of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmc.backend.api.bodies import FILTERED, REFUSAL


@dataclass(frozen=True, slots=True)
class Sample:
    """One text of an answer as returned by the server.

    finish  its end, in the form of `meta["finish_reason"]`
    tokens  log-probability, id (None where the server gives none) and text of each token, if requested
    top     for each token the likeliest ones, the same way
    ids     of the tokens, if the server gives ids
    extra   more for the meta info, such as tool calls
    """

    text: str
    finish: Mapping[str, Any]
    tokens: tuple[tuple[float | None, int | None, str], ...] | None = None
    top: tuple[tuple[tuple[float, int | None, str], ...], ...] | None = None
    ids: tuple[int, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def blocks(self) -> Sequence[Mapping[str, Any]]:
        """Return the blocks that the server expects back besides the text."""
        return self.extra.get("blocks") or ()

    @property
    def withheld(self) -> bool:
        """Return whether the model refused, or a filter stopped it."""
        return self.finish.get("type") in (REFUSAL, FILTERED)


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A server's answer to one request. `expected`: required beginning that is not part of the answer; `stops`: sent
    with it."""

    samples: tuple[Sample, ...]
    id: str = ""
    model: str = ""
    expected: str = ""
    stops: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])


def meta_of(reply: ServerReply, sample: Sample, cost: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer's meta info, with its cost, under SGLang's keys."""
    found: dict[str, Any] = {
        "id": reply.id,
        "model": reply.model,
        "finish_reason": dict(sample.finish),
        **cost,
        **reply.meta,
        **sample.extra,
    }
    if sample.tokens is not None:
        found["output_token_logprobs"] = [list(token) for token in sample.tokens]
    if sample.top is not None:
        found["output_top_logprobs"] = [[list(token) for token in tokens] for tokens in sample.top]
    return found
