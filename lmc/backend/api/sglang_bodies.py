"""Bodies of SGLang's `/generate`: parameters, constraints and pictures as it takes them, and answers, usage and streams as it sends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from lmc.backend.api.bodies import Listed, check_no_error, listed_token
from lmc.backend.api.exchange import Body, Fault, Malformed
from lmc.backend.api.place import PromptNode
from lmc.backend.api.reports import count_of
from lmc.backend.api.streams import Watch
from lmc.backend.usage import Usage
from lmc.fsm.sources import ebnf_of
from lmc.images import data_url
from lmc.segments import Constraint, Image, SamplingParams

_PARAMS = (
    "max_new_tokens", "min_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "ignore_eos", "n",
)  # fmt: skip


class SGLangStream:
    """Events of one answer. Each has the whole text so far, or, from a server that streams incrementally, the new part:
    then it has fewer ids than its token count."""

    def __init__(self) -> None:
        self.text, self._ids = "", list[int]()

    def add(self, body: Body) -> Body | None:
        meta: Any = body.get("meta_info")
        text, ids = body.get("text"), body.get("output_ids") or []
        if not isinstance(meta, dict) or not isinstance(text, str):
            return body  # the reader reports the error
        counted = meta.get("completion_tokens")
        if self._ids and type(counted) is int and len(ids) < counted <= len(self._ids) + len(ids):
            text, ids = self.text + text, [*self._ids, *ids]
        self.text, self._ids = text, ids
        return None if meta.get("finish_reason") is None else {**body, "text": text, "output_ids": ids}


def pictures_of(place: PromptNode, n: int = 1) -> Body:
    """Return the pictures of a prompt, in order; nothing without any. For several answers the server makes the prompt a list of one, whose members have
    lists of pictures."""
    urls = [data_url(piece) for piece in place.pieces() if isinstance(piece, Image)]
    return {"image_data": urls if n == 1 else [urls]} if urls else {}


@lru_cache(maxsize=256)
def written_params(params: SamplingParams) -> Mapping[str, Any]:
    """Return parameters that are not SGLang's defaults, by its names."""
    default = SamplingParams()
    body: Body = {"temperature": params.temperature}
    for name in _PARAMS:
        value = getattr(params, name)
        if value != getattr(default, name) or name in ("max_new_tokens", "top_p"):
            body[name] = list(value) if isinstance(value, tuple) else value
    return body


def constrained(constraint: Constraint) -> Body:
    if constraint.kind == "lark":
        return {"ebnf": ebnf_of("lark", constraint.source)}
    return {constraint.kind: constraint.source}


def items_of_reply(body: Body) -> list[Body]:
    """Return one answer or several. Raises Malformed for anything else."""
    items: Any = body.get("items", [body])
    check_no_error(body)
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("text"), str) or not isinstance(item.get("meta_info"), dict):
            raise Malformed("the answer has no text or no meta_info")
    return items


def metas_of(body: Body) -> list[Mapping[str, Any]]:
    items: Any = body.get("items", [body])
    return [item["meta_info"] for item in items if isinstance(item, dict) and isinstance(item.get("meta_info"), dict)]


def _counted(body: Body) -> list[Mapping[str, Any]]:
    """Return the meta info of answers that report their tokens."""
    return [meta for meta in metas_of(body) if meta.get("prompt_tokens") is not None]


def prompt_tokens_of(body: Body) -> int:
    """Return how many tokens a prompt has; 0 if the server does not report it."""
    try:
        return max((count_of(meta.get("prompt_tokens")) for meta in metas_of(body)), default=0)
    except ValueError as error:
        raise Malformed(f"the prompt has {error}") from None


def usage_of(body: Body) -> Usage | None:
    """Return the usage of one prompt, whose n answers each report it."""
    metas = _counted(body)
    return _usage(metas[:1], metas)


def usage_of_all(body: Body) -> Usage | None:
    """Return the usage of several prompts."""
    metas = _counted(body)
    return _usage(metas, metas)


def _usage(prompts: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> Usage | None:
    prompt, cached = (sum(count_of(meta.get(name)) for meta in prompts) for name in ("prompt_tokens", "cached_tokens"))
    return Usage(prompt, sum(count_of(meta.get("completion_tokens")) for meta in answers), cached, 0, 1, 0) if answers else None


def listed_tokens(rows: Any) -> Listed | None:
    """Return tokens as SGLang lists them: [log-probability, id, text]."""
    return tuple(listed_token(row[0], row[1], row[2] or "") for row in rows) if isinstance(rows, list) else None


class WatchedStream:
    """The stream of an answer that is watched; `begun` is called when it begins to arrive."""

    def __init__(self, watch: Watch, read: Any, begun: Callable[[], None]) -> None:
        self._watch, self._read, self._begun = watch, read, begun
        self._part, self._whole = SGLangStream(), None

    @property
    def complete(self) -> bool:
        return self._whole is not None

    def add(self, body: Body) -> None:
        (item,) = items_of_reply(body)
        self._begun()
        self._whole = self._part.add(item)
        self._watch.grown(self._part.text)

    def result(self) -> Any:
        if self._whole is None:
            raise Fault("the stream ended before the answer did")
        self._watch.ended(self._part.text)
        return self._read(self._whole)
