"""Request builder: a Gen or Select with the prompt before it becomes requests; request_results.py makes
outputs of them. Invalid requests are refused here, before the engine sees them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from lmc.backend.engine.answer import Answer, Ending, OnText
from lmc.backend.engine.automaton import ConstraintCompiler
from lmc.backend.engine.choice_trie import Continuation
from lmc.backend.engine.encoding import NO_IDS, Encoder, TokenizerProtocol, template_stops
from lmc.backend.engine.eyes import Eyes, Preparing
from lmc.backend.engine.prompt_pictures import laid, lift
from lmc.backend.engine.prompt_position import PromptPosition
from lmc.backend.engine.radix_cache import common_prefix
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.request_results import OnDone, ResultBuilder, SamplingResult, ScoringResult, scored_from
from lmc.backend.engine.token_ids import TokenLogprob
from lmc.backend.results import UNSCORED, Scored
from lmc.chat import ChatTemplate
from lmc.errors import ConstraintError, Loc, ParameterError, PromptTooLongError
from lmc.fsm.search import finder
from lmc.segments import ChoicesMethod, Gen, Given, Image, SamplingParams, Segment, Select

Order = tuple[int, ...]


_USUAL = 16  # characters for a token: a text of fewer is simply encoded


class RequestBuilder:
    """Builds requests for a model's vocabulary and limits.

    limit    tokens that prompt and answer may have together: the context's or the pool's
    near     tokens beyond which the model rotates positions differently (Request)
    embedded tokens that the model knows; None: all of the vocabulary
    seam     "token": an answer's ids stay as generated.  "text": its text joins the literal run
    adapters  the model's, by name
    """

    def __init__(
        self,
        name: str,
        words: TokenizerProtocol,
        template: ChatTemplate,
        compiler: ConstraintCompiler | None,
        *,
        max_context: int,
        pool: int,
        seed: int,
        seam: Literal["token", "text"],
        near: int | None = None,
        embedded: int | None = None,
        eyes: Eyes | None = None,
        adapters: Sequence[str] = (),
    ) -> None:
        if seam not in ("token", "text"):
            raise ParameterError(f'seam is {seam!r}; it can be "token" or "text"')
        self.name, self.words, self.compiler, self.seam, self.seed = name, words, compiler, seam, seed
        self.max_context, self.pool, self.limit = max_context, pool, min(max_context, pool)
        self.near, self.eyes = near, eyes
        self._numbers = {"": 0, **{name: i for i, name in enumerate(adapters, 1)}}
        self.use_template(template)
        self.encoder = Encoder(words, embedded=embedded)
        self.results = ResultBuilder(name, words, seam, eyes)

    def use_template(self, template: ChatTemplate) -> None:
        """Set the template's ends of an assistant's message."""
        self.stop_ids, self.stop_strings = template_stops(self.words, template)

    def ids(self, place: PromptPosition) -> np.ndarray:
        """Return the whole prompt at `place`, [n] int32."""
        ids = self.encoder.encode(place.run, at_start=not len(place.closed))
        return np.concatenate((place.closed, ids)) if len(place.closed) else ids

    # -- gen ---------------------------------------------------------------------------------------------------

    def gen(
        self, ask: Gen, place: PromptPosition, order: Order, on_text: Callable[[str, Scored], None], on_done: OnDone,
        behind: Callable[[PromptPosition], Request | None] | None = None,
    ) -> list[Request]:  # fmt: skip
        """Build `n` requests over one prompt; `on_text` receives the growing text of the first, with its
        log-probabilities if wanted. behind: the select that follows a single one, if it is known by then."""
        self._check_text(place, ask.loc)
        ids = self.ids(place)
        prompt = self._nonempty(ids)
        pictures = laid(prompt, place.all_pictures)
        length = len(prompt) + lift(pictures)
        self._check_length(length, ask.loc, _told(place))
        most = self.limit - length
        params = ask.params if ask.params.max_new_tokens <= most else replace(ask.params, max_new_tokens=most)
        sampling = SamplingResult(self.results, place, ids, len(prompt), params.n, on_done)
        scores: list[list[TokenLogprob]] = [[] for _ in range(params.n)]

        def feed(delta: str, tokens: Sequence[TokenLogprob]) -> None:
            on_text(delta, self.results.scored(tokens, params) if tokens else UNSCORED)

        def following(ending: Ending) -> Request | None:
            return None if behind is None else behind(sampling.after(ending, None, params.adapter))

        return [
            Request(
                RequestKind.GENERATE,
                prompt,
                on_done=sampling.listener(item),
                params=params,
                seed=_sample_seed(ask.seed, self.seed, item),
                answer=self._answer(ask, params, feed if item == 0 else None, scores[item]),
                logprobs=scores[item],
                score_from=scored_from(params) if item == 0 else None,
                priority=order,
                behind=place.node(params.adapter),
                adapter=self._numbers[params.adapter],
                gen=(ask.loc, ask.params.max_new_tokens),
                near=self.near,
                pictures=pictures,
                following=None if behind is None or params.n > 1 else following,
            )
            for item in range(params.n)
        ]

    def _answer(self, ask: Gen, params: SamplingParams, on_text: OnText | None, scores: Sequence[TokenLogprob]) -> Answer:
        stops = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stops |= self.stop_ids
        matcher = None
        if ask.constraint is not None and self.compiler is not None:
            matcher = self.compiler.matcher(ask.constraint, longer=params.min_new_tokens > 0)
            stops |= {self.words.eos_token_ids[0]}  # allowed by the mask where the answer may end
        return Answer(
            self.words,
            params,
            stops,
            stop_strings=() if params.ignore_eos else self.stop_strings,
            matcher=matcher,
            constraint=ask.constraint,
            loc=ask.loc,
            on_text=on_text,
            scores=scores if params.return_logprob else None,
        )

    # -- select ------------------------------------------------------------------------------------------------

    def select(self, ask: Select, place: PromptPosition, order: Order, on_done: OnDone) -> Request:
        """Build one pass over the prompt and, beside it, the trie of the choices. `temperature` is not used: as in
        SGLang a choice is scored, not sampled."""
        self._check_text(place, ask.loc)
        prompt = self.ids(place)
        wholes = [self.ids(place.followed(choice)) for choice in ask.choices]
        starts = [common_prefix(prompt, whole) for whole in wholes]
        padding = 0
        if min(starts) == 0:  # nothing before the choices: one token that every text begins with
            first = self._nonempty(NO_IDS)
            padding = len(first)
            wholes = [np.concatenate((first, whole)) for whole in wholes]
            starts = [start + padding for start in starts]
        base = min(starts)
        branches = [Continuation(base, whole[base:]) for whole in wholes]
        if ask.method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED:
            branches += [Continuation(0, whole[start:]) for whole, start in zip(wholes, starts, strict=True)]
        pictures = laid(wholes[0][:base], place.all_pictures)
        longest = max(base + max(b.rows for b in branches), *map(len, wholes)) + lift(pictures)
        self._check_length(longest, ask.loc, _told(place, " and its longest choice"))
        scoring = ScoringResult(self.results, ask, place, wholes, starts, base, padding, on_done)
        return Request(
            RequestKind.SCORE,
            wholes[0][:base],
            on_done=scoring.done,
            branches=tuple(branches),
            choose=scoring.choose,
            priority=order,
            behind=place.node(ask.adapter),
            adapter=self._numbers[ask.adapter],
            gen=(ask.loc, "select"),
            near=self.near,
            pictures=pictures,
        )

    # -- answers that are known --------------------------------------------------------------------------------

    def given(self, given: Given, place: PromptPosition) -> PromptPosition:
        """Return the position after an answer of an earlier run."""
        if given.ids:
            return PromptPosition(np.concatenate((self.ids(place), self.encoder.checked(np.asarray(given.ids, np.int32)))), pictures=place.all_pictures)
        after = place.followed(given.text)
        return after if self.seam == "text" else PromptPosition(self.ids(after), pictures=after.all_pictures)

    # -- prefill -----------------------------------------------------------------------------------------------

    def prefill(self, place: PromptPosition, order: Order, low_priority: bool, adapter: str = "") -> Request | None:
        """Build a prefill of the prompt except its last tokens, which the following text may still change."""
        self._check_text(place, None)
        prompt = self.ids(place)
        stable = prompt[: len(prompt) - self.encoder.unstable(place.run)]
        pictures = laid(stable, place.all_pictures)
        self._check_length(len(prompt) + lift(pictures), None)
        if not len(stable):
            return None
        return Request(
            RequestKind.PREFILL, stable, on_done=lambda _: None, priority=order, low_priority=low_priority, passing=low_priority,
            behind=place.node(adapter), near=self.near, pictures=pictures, adapter=self._numbers[adapter],
        )  # fmt: skip

    # -- pictures ----------------------------------------------------------------------------------------------

    def prepare(self, image: Image) -> Preparing:
        """Begin to prepare a picture as part of a prompt."""
        assert self.eyes is not None, "refused: a model without eyes"
        return self.eyes.prepare(image, self.limit)

    # -- refusals ----------------------------------------------------------------------------------------------

    def validate(self, segment: Segment) -> None:
        """Refuse a request that is invalid regardless of its prompt, before it is made."""
        if isinstance(segment, Select):
            if not segment.choices:
                raise ParameterError("select needs at least one choice", loc=segment.loc)
            if "" in segment.choices:
                raise ParameterError("select cannot score an empty choice; give it some text", loc=segment.loc)
        if isinstance(segment, Gen):
            _validate_params(segment.params, self.words.vocab_size, segment.loc)
            if segment.constraint is not None and self.compiler is not None:
                self.compiler.check(segment.constraint, segment.loc)

    def _nonempty(self, prompt: np.ndarray) -> np.ndarray:
        """Return the ids, or if empty the one token that a model needs to start from: BOS, or EOS where a model has no
        BOS."""
        if len(prompt):
            return prompt
        start = self.words.bos_token_id
        return np.array([self.words.eos_token_ids[0] if start is None else start], np.int32)

    def _check_text(self, place: PromptPosition, loc: Loc | None) -> None:
        """Check that a text may fit before it is encoded: that takes a second and 100 MB for each megabyte."""
        texts = [part for part in place.run if isinstance(part, str)]
        if sum(map(len, texts)) > self.limit * _USUAL:
            self._check_length(self.words.least(texts), loc, f"{_told(place)} at least")

    def _check_length(self, tokens: int, loc: Loc | None, what: str = "the prompt has") -> None:
        """Check that a prompt and one token of the answer fit."""
        if tokens < self.limit:
            return
        if self.limit == self.max_context:
            limit = f"the context of {self.name} is {self.max_context} tokens, one of them for the answer"
            remedy = "Shorten it or take a model with a longer context"
        else:
            limit = f"the KV pool holds {self.pool} tokens, one of them for the answer"
            remedy = f"Shorten it, or make the pool larger: Engine(max_tokens=…), up to {self.max_context}"
        raise PromptTooLongError(f"{what} {tokens} tokens; {limit}. {remedy}", loc=loc)


def _told(place: PromptPosition, more: str = "") -> str:
    """Return the subject of an error about a prompt that is too long."""
    pictures = place.all_pictures
    count = f" ({len(pictures)} picture{'s' * (len(pictures) > 1)} of {sum(p.count for p in pictures)} tokens in it)" if pictures else ""
    return f"the prompt{count}{more} {'have' if more else 'has'}"


def _sample_seed(seed: int, engine_seed: int, item: int) -> int:
    """Return the seed of sample `item` of an op; the op's own for the first."""
    return seed + 0x9E3779B97F4A7C15 * item + 0xD1B54A32D192ED03 * engine_seed


def _validate_params(p: SamplingParams, vocab_size: int, loc: Loc | None) -> None:
    ranges = (
        ("max_tokens", p.max_new_tokens, p.max_new_tokens >= 0, "at least 0"),
        ("min_tokens", p.min_new_tokens, 0 <= p.min_new_tokens <= p.max_new_tokens, "between 0 and max_tokens"),
        ("n", p.n, p.n >= 1, "at least 1"),
        ("temperature", p.temperature, p.temperature >= 0, "at least 0"),
        ("top_p", p.top_p, 0 < p.top_p <= 1, "above 0 and at most 1"),
        ("top_k", p.top_k, p.top_k == -1 or p.top_k >= 1, "-1 (all) or at least 1"),
        ("min_p", p.min_p, 0 <= p.min_p <= 1, "between 0 and 1"),
        ("top_logprobs_num", p.top_logprobs_num, 0 <= (p.top_logprobs_num or 0) <= vocab_size, f"0 to {vocab_size}"),
        ("frequency_penalty", p.frequency_penalty, -2 <= p.frequency_penalty <= 2, "between -2 and 2"),
        ("presence_penalty", p.presence_penalty, -2 <= p.presence_penalty <= 2, "between -2 and 2"),
    )
    for name, value in (("max_tokens", p.max_new_tokens), ("min_tokens", p.min_new_tokens), ("n", p.n), ("top_k", p.top_k)):
        if int(value) != value:
            raise ParameterError(f"gen: {name} is {value}; it must be a whole number", loc=loc, param=name)
    for name, value, fine, must in ranges:
        if not fine:
            raise ParameterError(f"gen: {name} is {value}; it must be {must}", loc=loc, param=name)
    for name, tokens in (("stop_token_ids", p.stop_token_ids), ("logit_bias", [token for token, _ in p.logit_bias])):
        for token in tokens:
            if not 0 <= token < vocab_size:
                raise ParameterError(f"gen: token id {token} of {name} is not in the vocabulary of {vocab_size}", loc=loc, param=name)
    for token, bias in p.logit_bias:
        if not bias < float("inf"):  # NaN is not, either
            raise ParameterError(f"gen: logit_bias of token {token} is {bias}; it must be a number, or -inf", loc=loc, param="logit_bias")
    for pattern in p.stop_regex:
        try:
            re.compile(pattern)
            finder(pattern)  # compiled here, where nothing else waits for it
        except re.error as error:
            raise ConstraintError(f"stop_regex {pattern!r} is invalid: {error}", loc=loc, param="stop_regex") from None
