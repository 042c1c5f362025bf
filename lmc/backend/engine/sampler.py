"""The sampler: a row of logits becomes a token, for all rows of a pass at once.

Order of steps as in SGLang: penalties, logit bias, minimum length, constraint mask; then greedy, or temperature, top-k,
top-p, min-p and a draw. Masking is in masking.py; if few tokens are legal, only those are drawn from. The draw is by
inversion with one number that depends on nothing but the request's seed and the position, so that no batch composition
changes a sample. Log-probabilities (logprobs.py) are the model's own: before all that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from lmc.backend.engine.device_automata import DeviceAutomata, Kernels
from lmc.backend.engine.drafted import Sampled
from lmc.backend.engine.logprobs import Logprobs, logprobs
from lmc.backend.engine.masking import Closing, few_of, greediest, is_constrained, mask, step_of
from lmc.backend.engine.penalties import Penalties, penalise
from lmc.backend.engine.token_ids import BROKEN, STUCK, TokenLogprob
from lmc.backend.engine.transfer import to_device, to_host
from lmc.fsm.tokens import FEW
from lmc.segments import SamplingParams

_MASK = (1 << 64) - 1


class DrawnAhead(NamedTuple):
    """Samples drawn ahead, on the device.

    tokens    [N] int64
    asked     which of them have log-probabilities;  logprobs: these; None if not requested
    """

    tokens: torch.Tensor
    asked: list[int]
    logprobs: Logprobs | None

    def leave(self) -> DrawnAhead:
        """Start the copy to the host: readable once the device has come this far."""
        return DrawnAhead(to_host(self.tokens), self.asked, self.logprobs and self.logprobs.leave())

    def read(self) -> tuple[list[int], list[TokenLogprob | None]]:
        tokens: list[int] = self.tokens.tolist()
        return tokens, [None] * len(tokens) if self.logprobs is None else self.logprobs.of_samples(self.asked, tokens)


class Sampler:
    """vocab_size: of the tokenizer; logits beyond it are padding of the model and never sampled.

    kernels   for masking rows on the device; if samples are drawn ahead
    """

    def __init__(self, vocab_size: int, kernels: Kernels | None = None) -> None:
        self._vocab_size = vocab_size
        self._following = DeviceAutomata(kernels) if kernels is not None else None
        self._penalties = Penalties()
        self._closing = Closing()

    def sample(self, logits: torch.Tensor, rows: Sequence[int], requests: Sequence[Sampled]) -> tuple[list[int], list[TokenLogprob | None]]:
        """Sample tokens for `requests`, each from its row of `logits` [R, V] float32 (two may share a row); STUCK for
        one whose constraint allows none, BROKEN where the logits are NaN."""
        if not requests:
            return [], []
        own = _rows(logits, rows)
        asked, raw = _asked(own, requests)
        if own.is_cuda:
            self._penalties.apply(own, requests)
        else:
            penalise(own, requests)
        self._adjust(own, requests)
        tokens = self._pick(own, requests)
        for i, token in _scripted(requests):
            tokens[i] = token
        if raw is None:
            return tokens, [None] * len(tokens)
        found = _logprobs(raw, to_device(tokens, raw), asked, requests)
        return tokens, found.of_samples(asked, tokens)

    def warm_up(self, logits: torch.Tensor) -> None:
        """Compile what constrained answers need, so that the first one does not wait for it. logits: [1, V] of any row, which are lost."""
        if self._following is not None:
            self._following.warm_up(logits, self._vocab_size)

    def sample_ahead(self, logits: torch.Tensor, rows: Sequence[int], requests: Sequence[Sampled]) -> DrawnAhead:
        """Sample asynchronously: earlier draws for these requests need not be known."""
        own = _rows(logits, rows)
        asked, raw = _asked(own, requests)
        penalised = self._penalties.apply(own, requests)
        self._adjust(own, requests)
        tokens = self._draw_ahead(own, requests)
        if penalised is not None:
            self._penalties.expect(penalised, requests, tokens)
        return DrawnAhead(tokens, asked, None if raw is None else _logprobs(raw, tokens, asked, requests))

    def _draw_ahead(self, own: torch.Tensor, requests: Sequence[Sampled]) -> torch.Tensor:
        bound = any(map(is_constrained, requests))
        answers = None
        if self._following is not None:
            answers = self._following.close(own, requests)
        else:
            assert not bound, "this sampler draws nothing constrained ahead"
        best, tokens = own.max(-1)
        greedy = [_is_greedy(r.params) for r in requests]
        if bound and not all(greedy):  # a fully masked row cannot be drawn from
            own = own.masked_fill((best == -torch.inf)[:, None], 0.0)
        for at, picked in _drawn(own, requests, [i for i, best in enumerate(greedy) if not best], {}):
            tokens[to_device(at, own)] = picked
        tokens = torch.where(best < torch.inf, tokens, BROKEN)
        if bound:
            tokens = torch.where(best == -torch.inf, STUCK, tokens)
        if said := _scripted(requests):
            at, what = to_device(np.array(said, np.int64).T.copy(), tokens)
            tokens[at] = what
        if answers is not None:
            assert self._following is not None
            self._following.advance(answers, tokens)
        return tokens

    def _adjust(self, logits: torch.Tensor, requests: Sequence[Sampled]) -> None:
        """Apply logit bias, and no end before the minimum; in place."""
        if logits.shape[1] > self._vocab_size:
            logits[:, self._vocab_size :] = -torch.inf
        biased = [(i, *_bias(r.params.logit_bias)) for i, r in enumerate(requests) if r.params.logit_bias]
        if biased:
            where, values = _places((i, ids) for i, ids, _ in biased), np.concatenate([by for _, _, by in biased])
            logits.index_put_(_pair(where, logits), to_device(values, logits), accumulate=True)
        early = [(i, _stops(r)) for i, r in enumerate(requests) if r.params.min_new_tokens and _is_too_early(r)]
        if early:
            logits.index_put_(_pair(_places(early), logits), logits.new_full((), -torch.inf))

    def _pick(self, logits: torch.Tensor, requests: Sequence[Sampled]) -> list[int]:
        greedy = [_is_greedy(r.params) for r in requests]
        tokens = greediest(logits, requests, greedy, self._closing) if any(greedy) else [STUCK] * len(requests)
        drawn: list[int] = []
        few: dict[int, np.ndarray] = {}
        for i, req in enumerate(requests):
            if greedy[i]:
                continue
            tokens[i] = STUCK
            if (listed := few_of(req, logits)) is not None:
                few[i] = listed
            elif is_constrained(req) and not mask(logits[i], req, self._closing):
                continue
            drawn.append(i)
        for at, picked in _drawn(logits, requests, drawn, few):
            best = logits[to_device(at, logits)].max(-1)[0].tolist()  # NaN if any is NaN
            for i, token, most in zip(at, picked.tolist(), best, strict=True):
                tokens[i] = token if most < math.inf else BROKEN
        return tokens


def _scripted(requests: Sequence[Sampled]) -> list[tuple[int, int]]:
    """Return which requests have a scripted answer, and their next tokens."""
    scripts = [(i, r, r.script) for i, r in enumerate(requests) if r.script is not None]
    return [(i, int(script[at])) for i, r, script in scripts if (at := step_of(r)) < len(script)]


def _rows(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return logits[rows], `logits` itself if that is all of them in order."""
    same = len(rows) == len(logits) and list(rows) == list(range(len(rows)))
    return logits if same else logits[to_device(rows, logits)]


def _asked(own: torch.Tensor, requests: Sequence[Sampled]) -> tuple[list[int], torch.Tensor | None]:
    """Return which requests want log-probabilities, and a copy of their rows."""
    asked = [i for i, r in enumerate(requests) if r.params.return_logprob]
    return asked, own[to_device(asked, own)] if asked else None


def _logprobs(raw: torch.Tensor, tokens: torch.Tensor, asked: list[int], requests: Sequence[Sampled]) -> Logprobs:
    wanted = [requests[i].params.top_logprobs_num or 0 for i in asked]
    return logprobs(raw, range(len(asked)), tokens[to_device(asked, tokens)], wanted)


_WIDTHS = (64, 512, FEW)  # padded widths of few tokens: a row's draw does not depend on others


def _drawn(logits: torch.Tensor, requests: Sequence[Sampled], rows: Sequence[int], few: Mapping[int, np.ndarray]) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Draw tokens for the requests of `rows`, some at a time. `few`: the only legal ids of a row."""
    alike: dict[tuple[bool, int], list[int]] = {}
    for i in rows:
        width = next(w for w in _WIDTHS if w >= len(few[i])) if i in few else 0
        alike.setdefault((_is_truncated(requests[i].params), width), []).append(i)
    for (truncated, width), at in alike.items():
        ids = None
        if width:
            own, ids = _gathered(logits, [(i, few[i]) for i in at], width)
        else:
            own = logits if len(at) == len(requests) else logits[to_device(at, logits)]
        numbers = [uniform(requests[i].seed, step_of(requests[i])) for i in at]
        picked = (draw_truncated if truncated else draw)(own, [requests[i].params for i in at], numbers)
        yield at, picked if ids is None else ids.gather(1, picked[:, None])[:, 0]


def _gathered(logits: torch.Tensor, listed: Sequence[tuple[int, np.ndarray]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return only the listed tokens of each row: logits [N, width], padded with -inf, and ids; on the CPU."""
    own, ids = np.full((len(listed), width), -np.inf, np.float32), np.zeros((len(listed), width), np.int64)
    every = logits.numpy()
    for n, (i, some) in enumerate(listed):
        own[n, : len(some)], ids[n, : len(some)] = every[i].take(some), some
    return torch.from_numpy(own), torch.from_numpy(ids)


def _is_greedy(p: SamplingParams) -> bool:
    return p.temperature <= 0 or p.top_k == 1


def _is_truncated(p: SamplingParams) -> bool:
    return p.top_p < 1 or p.top_k > 0 or p.min_p > 0


def uniform(seed: int, step: int) -> float:
    """Return a number in [0, 1) for (seed, step): splitmix64, 53 bits."""
    x = (seed * 0x9E3779B97F4A7C15 + (step + 1) * 0xD1B54A32D192ED03) & _MASK
    for _ in range(2):
        x = (x + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return (x >> 11) / (1 << 53)


def draw(logits: torch.Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]) -> torch.Tensor:
    """Return [N] int64: one token per row of `logits` [N, V], by inversion of the row's distribution at `numbers`
    [N]."""
    return _invert(_probabilities(logits, params), _column(numbers, logits))


_FIRST = (64, 1024, 8192)  # best tokens tried before the whole vocabulary is sorted


def draw_truncated(logits: torch.Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]) -> torch.Tensor:
    """As `draw`, among the tokens that top-k, top-p and min-p leave. As in SGLang a token stays while the mass before
    it is at most top_p."""
    probs, width = _probabilities(logits, params), logits.shape[1]
    limits = [
        _column([p.top_k if p.top_k > 0 else width for p in params], logits),
        _column([p.top_p for p in params], logits),
        _column([p.min_p for p in params], logits),
        _column(numbers, logits),
    ]
    enough = min(width, max(p.top_k if p.top_k > 0 else width for p in params))
    tokens, left = None, None  # rows of which more are needed; None: all
    looks = [*(n for n in _FIRST if n < width), width]
    if logits.is_cuda:  # checking whether it was enough would synchronize with the device
        looks = [next(n for n in looks if n >= enough)]
    for looked_at in looks:
        found, more = _among_best(probs, looked_at, *limits)
        tokens = found if tokens is None or left is None else tokens.index_copy(0, left, found)
        if looked_at >= enough or not bool(more.any()):
            break
        some = more.nonzero()[:, 0]
        probs, limits = probs[some], [limit[some] for limit in limits]
        left = some if left is None else left[some]
    assert tokens is not None
    return tokens


def _among_best(
    every: torch.Tensor, looked_at: int, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, u: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [N] tokens drawn from the best `looked_at` of each row; [N] whether more than these may be kept."""
    probs, order = torch.topk(every, looked_at, sorted=True)
    before = probs.cumsum(-1, dtype=torch.float64) - probs
    rank = torch.arange(looked_at, device=every.device)[None]
    kept = (rank < top_k) & (before <= top_p) & (probs >= min_p * probs[:, :1])
    kept[:, 0] = True
    at = _invert(probs * kept, u)
    return order.gather(1, at[:, None])[:, 0], kept[:, -1] & (top_k[:, 0] > looked_at)


def _probabilities(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    return torch.softmax(logits / _column([p.temperature for p in params], logits).float(), -1)


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return to_device(values, like, torch.float64)[:, None]


def _invert(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Return [N]: the first column where the running sum exceeds u × total; so never a column of weight zero."""
    running = weights.cumsum(-1, dtype=torch.float64)
    total = running[:, -1:]
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(running, target, right=True)[:, 0].clamp_max(weights.shape[1] - 1)  # beyond it where NaN is


def _is_too_early(req: Sampled) -> bool:
    """Return whether it may not end yet; constrained requests are handled by masking.py."""
    return step_of(req) < req.params.min_new_tokens and not is_constrained(req)


def _stops(req: Sampled) -> np.ndarray:
    assert req.answer is not None
    return np.array(sorted(req.answer.stop_ids), np.int64)


@lru_cache(maxsize=1024)
def _bias(bias: tuple[tuple[int, float], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids, each once, and the bias of each."""
    return np.array([token for token, _ in bias], np.int64), np.array([by for _, by in bias], np.float32)


def _places(listed: Iterable[tuple[int, np.ndarray]]) -> np.ndarray:
    """Return [2, n] int64: of each row with its columns."""
    return np.concatenate([np.stack((np.full(len(ids), i), ids)) for i, ids in listed], 1)


def _pair(where: np.ndarray, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = to_device(where, logits)
    return rows, columns
