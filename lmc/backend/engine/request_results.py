"""Results of finished requests: the output of a gen or select with its meta info, and the prompt position after it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lmc.backend.engine.choices import Choice, decide
from lmc.backend.engine.encoding import TokenizerProtocol
from lmc.backend.engine.eyes import Eyes
from lmc.backend.engine.prompt_position import PromptPosition
from lmc.backend.engine.request import Request
from lmc.backend.engine.token_ids import TokenLogprob
from lmc.backend.results import Output, Scored
from lmc.backend.usage import Usage
from lmc.segments import SamplingParams, Select

if TYPE_CHECKING:
    from lmc.backend.engine.answer import Ending
    from lmc.backend.engine.radix_cache import Node


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer, and the position after it."""

    output: Output
    after: PromptPosition


OnDone = Callable[[Finished | BaseException], None]


class ResultBuilder:
    """Builds outputs of finished requests.

    name  of the model, as ids of requests have it
    seam  "token": an answer's ids stay as generated.  "text": its text joins the literal run
    """

    def __init__(self, name: str, words: TokenizerProtocol, seam: Literal["token", "text"], eyes: Eyes | None) -> None:
        self.name, self.words, self.seam, self.eyes = name, words, seam, eyes
        self._shown: dict[int, str] = {}  # texts of single tokens; no more than the vocabulary has

    def meta(self, req: Request) -> dict[str, Any]:
        """Return meta info of a generated answer, under SGLang's keys."""
        assert req.ending is not None and req.answer is not None
        meta: dict[str, Any] = {
            "id": f"{self.name}-{req.order}",
            "prompt_tokens": req.prompt_len,
            "completion_tokens": req.answer.sampled,
            "forced_tokens": req.forced,
            "free_tokens": req.answer.sampled - req.forced,
            "cached_tokens": req.hit_len,
            "finish_reason": req.ending.reason,
        }
        if req.params.return_logprob:
            meta |= self._logprobs(req)
        return meta

    def _logprobs(self, req: Request) -> dict[str, Any]:
        """Return lists of [log-probability, id, text]; the text if requested, the first prompt token without any."""
        shown = self._shower(req.params)
        start = scored_from(req.params)
        prompt = self.spelled(req.prompt)
        known = [] if start is None else [(prompt[p], req.prompt_logprobs.get(p)) for p in range(start, len(prompt))]
        answer = self.scored(req.logprobs, req.params)
        found: dict[str, Any] = {
            "input_token_logprobs": [[t.logprob if t else None, token, shown(token)] for token, t in known],
            "output_token_logprobs": list(answer.tokens),
        }
        if req.params.top_logprobs_num:
            found["input_top_logprobs"] = [[[lp, i, shown(i)] for lp, i in t.top] if t else None for _, t in known]
            found["output_top_logprobs"] = list(answer.tops)
        return found

    def scored(self, tokens: Sequence[TokenLogprob], params: SamplingParams) -> Scored:
        """Return tokens of an answer as meta info lists them."""
        shown = self._shower(params)
        tops = [[[lp, i, shown(i)] for lp, i in t.top] for t in tokens] if params.top_logprobs_num else ()
        return Scored(tuple([t.logprob, t.token, shown(t.token)] for t in tokens), tuple(tops))

    def _shower(self, params: SamplingParams) -> Callable[[int], str | None]:
        return self.shown if params.return_text_in_logprobs else lambda _: None

    def spelled(self, ids: np.ndarray) -> list[int]:
        """Return ids of the vocabulary: pictures as their placeholder token."""
        return ids.tolist() if self.eyes is None else self.eyes.spelled(ids)

    def shown(self, token: int) -> str:
        """Return the text of a token by itself."""
        if token not in self._shown:
            self._shown[token] = self.words.decode([token], with_specials=True, at_start=False)
        return self._shown[token]

    def count_pictures(self, done: Sequence[Request]) -> None:
        """Count the pictures of answered prompts."""
        if self.eyes is not None:
            self.eyes.count(sum(len(req.pictures) for req in done))


class SamplingResult:
    """A running gen: those of its `n` items that are finished."""

    __slots__ = ("_finished", "_ids", "_on_done", "_place", "_prompt_len", "_results")

    def __init__(self, results: ResultBuilder, place: PromptPosition, ids: np.ndarray, prompt_len: int, n: int, on_done: OnDone) -> None:
        self._results, self._place, self._ids, self._prompt_len, self._on_done = results, place, ids, prompt_len, on_done
        self._finished: list[Request | None] = [None] * n

    def listener(self, item: int) -> Callable[[Request], None]:
        return lambda req: self._done(item, req)

    def _done(self, item: int, req: Request) -> None:
        if req.error is not None:
            return self._on_done(req.error)
        self._finished[item] = req
        done = [r for r in self._finished if r is not None]
        if len(done) == len(self._finished):
            first = done[0]
            assert first.ending is not None
            self._on_done(Finished(self._output(done), self.after(first.ending, first.kept, first.params.adapter)))

    def _output(self, done: Sequence[Request]) -> Output:
        usage = Usage(
            prompt_tokens=self._prompt_len,
            completion_tokens=sum(r.answer.sampled for r in done if r.answer is not None),
            cached_tokens=done[0].hit_len,
            forced_tokens=sum(r.forced for r in done),
            calls=1,
            passes=max(r.passes for r in done),
            drafted_tokens=sum(r.drafted for r in done),
            accepted_tokens=sum(r.accepted for r in done),
        )
        self._results.count_pictures(done)
        texts = tuple(r.ending.text for r in done if r.ending is not None)
        ending = done[0].ending
        ids = tuple(map(int, ending.ids)) if ending is not None and self._results.seam == "token" else ()
        forced = ending.forced if ending is not None else ()
        return Output(texts, tuple(self._results.meta(r) for r in done), usage, ids, forced, _phases(done[0]))

    def after(self, ending: Ending, kept: weakref.ref[Node] | None, adapter: str) -> PromptPosition:
        """Return the position after an answer that ends like this."""
        if self._results.seam == "text":
            return self._place.followed(ending.text)
        answer = np.asarray(ending.ids, np.int32)
        begun = len(self._ids) == self._prompt_len  # without a start token that the model needs
        return PromptPosition(np.concatenate((self._ids, answer)), (), kept if begun else None, self._place.all_pictures, adapter)


def _phases(req: Request) -> tuple[float, float] | None:
    return (req.admitted_at, req.first_at) if req.admitted_at else None


@dataclass(slots=True)
class ScoringResult:
    """A running select. `wholes`: ids of prompt and choice; `starts`: where each choice's own tokens begin."""

    results: ResultBuilder
    ask: Select
    place: PromptPosition
    wholes: list[np.ndarray]
    starts: list[int]
    base: int
    padding: int
    on_done: OnDone
    decision: Choice | None = None
    rows: tuple[list[list[float]], list[list[float]] | None] = ([], None)

    def choose(self, req: Request) -> int:
        n = len(self.wholes)
        rows = req.branch_logprobs
        conditional = [row[start - self.base :] for row, start in zip(rows[:n], self.starts, strict=True)]
        self.rows = conditional, rows[n:] or None
        self.decision = decide(self.ask.method, *self.rows)
        return self.decision.index

    def done(self, req: Request) -> None:
        if req.error is not None:
            return self.on_done(req.error)
        assert self.decision is not None
        self.results.count_pictures((req,))
        index = self.decision.index
        usage = Usage(prompt_tokens=req.prompt_len, cached_tokens=req.hit_len, calls=1, passes=req.passes)
        output = Output((self.ask.choices[index],), (self._meta(req, self.decision),), usage, phases=_phases(req))
        ids = self.wholes[index][self.padding :]
        if self.results.seam == "text":
            return self.on_done(Finished(output, self.place.followed(self.ask.choices[index])))
        self.on_done(Finished(output, PromptPosition(ids, (), None if self.padding else req.kept, self.place.all_pictures, self.ask.adapter)))

    def _meta(self, req: Request, decision: Choice) -> dict[str, Any]:
        conditional, unconditional = self.rows
        own = [whole[start:].tolist() for whole, start in zip(self.wholes, self.starts, strict=True)]
        meta = {
            "id": f"{self.results.name}-{req.order}",
            "prompt_tokens": req.prompt_len,
            "completion_tokens": 0,
            "cached_tokens": req.hit_len,
            **decision.meta,
            "input_token_logprobs": self._listed(conditional, own),
            "output_token_logprobs": [[] for _ in own],
        }
        if unconditional is not None:
            meta["unconditional_token_logprobs"] = self._listed(unconditional, own)
        return meta

    def _listed(self, rows: list[list[float]], ids: list[list[int]]) -> list[list[list[Any]]]:
        shown = self.results.shown
        return [[[lp, t, shown(t)] for lp, t in zip(row, tokens, strict=True)] for row, tokens in zip(rows, ids, strict=True)]


def scored_from(params: SamplingParams) -> int | None:
    """Return the first prompt token whose log-probability is requested; None for none (`logprob_start_len` None or
    -1)."""
    start = params.logprob_start_len if params.return_logprob else None
    return None if start is None or start < 0 else start
