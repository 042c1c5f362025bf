"""The sampler: a row of logits becomes a token, for all rows of a pass at once.

Order of steps as in SGLang: penalties, logit bias, minimum length, constraint mask; then greedy, or temperature,
top-k, top-p, min-p and a draw. A greedy row is not masked: its best tokens are looked up in the constraint, or the few
that the constraint allows in the row. The draw is by inversion with one number that depends on nothing but the request's seed
and the position, so that no batch composition changes a sample. Log-probabilities are the model's own: before all that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from lmc.backend.engine.constraint import Matcher
from lmc.backend.engine.request import STUCK, Request, TokenLogprob, Top
from lmc.errors import ConstraintError
from lmc.prompt import SamplingParams

_MASK = (1 << 64) - 1

Close = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


class Sampler:
    """vocab_size: of the tokenizer; logits beyond it are padding of the model and never sampled.

    close    (logits, rows, bits): closes tokens on the device (kernels/mask.py); where samples are drawn ahead
    """

    def __init__(self, vocab_size: int, close: Close | None = None) -> None:
        self._vocab_size, self._close = vocab_size, close

    def sample(
        self, logits: torch.Tensor, rows: Sequence[int], requests: Sequence[Request]
    ) -> tuple[list[int], list[TokenLogprob | None]]:
        """Tokens for `requests`, each from its row of `logits` [R, V] float32 (two may share a row); STUCK for one whose
        constraint lets none come next."""
        if not requests:
            return [], []
        own = _rows(logits, rows)
        wants_logprobs = any(r.params.return_logprob for r in requests)
        raw = own.clone() if wants_logprobs else own
        self._adjust(own, requests)
        tokens = self._pick(own, requests)
        if not wants_logprobs:
            return tokens, [None] * len(tokens)
        asked = zip(raw, tokens, requests, strict=True)
        return tokens, [_logprob(row, t, r) if r.params.return_logprob and t != STUCK else None for row, t, r in asked]

    def sample_ahead(self, logits: torch.Tensor, rows: Sequence[int], requests: Sequence[Request]) -> torch.Tensor:
        """The same tokens, [len(requests)] int64 on the logits' device, not waited for; no request may ask for
        log-probabilities."""
        own = _rows(logits, rows)
        self._adjust(own, requests)
        bound = [i for i, r in enumerate(requests) if is_constrained(r)]
        if bound:
            assert self._close is not None, "this sampler draws nothing ahead"
            bits = np.stack([_bits(requests[i], own.shape[1]) for i in bound]).view(np.int32)
            self._close(own, to_device(bound, own), to_device(bits, own))
        best, tokens = own.max(-1)
        greedy = [_is_greedy(r.params) for r in requests]
        if bound and not all(greedy):  # nothing can be drawn from a row that is closed as a whole
            own = own.masked_fill((best == -torch.inf)[:, None], 0.0)
        for at, picked in _drawn(own, requests, greedy):
            tokens[to_device(at, own)] = picked
        return torch.where(best == -torch.inf, STUCK, tokens) if bound else tokens

    def _adjust(self, logits: torch.Tensor, requests: Sequence[Request]) -> None:
        logits[:, self._vocab_size :] = -torch.inf
        for i, req in enumerate(requests):
            _adjust(logits, i, req)

    def _pick(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
        greedy = [_is_greedy(r.params) for r in requests]
        tokens = _greediest(logits, requests, greedy) if any(greedy) else [0] * len(requests)
        stuck = [
            i for i, r in enumerate(requests) if not greedy[i] and is_constrained(r) and not mask(logits[i], r)
        ]
        for at, picked in _drawn(logits, requests, greedy):
            for i, token in zip(at, picked.tolist(), strict=True):
                tokens[i] = token
        for i in stuck:
            tokens[i] = STUCK
        return tokens


def _rows(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """logits[rows], itself where that is all of them in order."""
    same = len(rows) == len(logits) and all(row == i for i, row in enumerate(rows))
    return logits if same else logits[to_device(rows, logits)]


def to_device(values: Sequence[float] | np.ndarray, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """On the device of `like`, without waiting for what it does: from pageable memory a copy would."""
    found = torch.as_tensor(values, dtype=dtype)
    return found.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else found


def _drawn(
    logits: torch.Tensor, requests: Sequence[Request], greedy: Sequence[bool]
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """The rows that are drawn and their tokens. Rows are split, so that how one is drawn does not depend on others."""
    if all(greedy):
        return
    for drawing in (draw, draw_truncated):
        truncated = drawing is draw_truncated
        drawn = [i for i, r in enumerate(requests) if not greedy[i] and _is_truncated(r.params) == truncated]
        if drawn:
            rows = logits if len(drawn) == len(requests) else logits[to_device(drawn, logits)]
            numbers = [uniform(requests[i].seed, _step(requests[i])) for i in drawn]
            yield drawn, drawing(rows, [requests[i].params for i in drawn], numbers)


def _is_greedy(p: SamplingParams) -> bool:
    return p.temperature <= 0 or p.top_k == 1


def _is_truncated(p: SamplingParams) -> bool:
    return p.top_p < 1 or p.top_k > 0 or p.min_p > 0


def _step(req: Request) -> int:
    """How many tokens the answer has before this one."""
    return req.length - req.prompt_len


def uniform(seed: int, step: int) -> float:
    """A number in [0, 1) for (seed, step): splitmix64, 53 bits."""
    x = (seed * 0x9E3779B97F4A7C15 + (step + 1) * 0xD1B54A32D192ED03) & _MASK
    for _ in range(2):
        x = (x + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return (x >> 11) / (1 << 53)


def draw(logits: torch.Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]) -> torch.Tensor:
    """[N] int64: one token per row of `logits` [N, V], by inversion of the row's distribution at `numbers` [N]."""
    return _invert(_probabilities(logits, params), _column(numbers, logits))


_FIRST = 1024  # tokens looked at before the whole vocabulary is sorted


def draw_truncated(logits: torch.Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]) -> torch.Tensor:
    """As `draw`, among the tokens that top-k, top-p and min-p leave. As in SGLang a token stays while the mass before
    it is at most top_p."""
    every = _probabilities(logits, params)
    width = every.shape[1]
    top_k = _column([p.top_k if p.top_k > 0 else width for p in params], logits)
    top_p, min_p = _column([p.top_p for p in params], logits), _column([p.min_p for p in params], logits)
    enough = all(0 < p.top_k <= _FIRST for p in params)
    for looked_at in (min(_FIRST, width), width):
        probs, order = torch.topk(every, looked_at, sorted=True)
        before = probs.cumsum(-1, dtype=torch.float64) - probs
        rank = torch.arange(looked_at, device=logits.device)[None]
        kept = (rank < top_k) & (before <= top_p) & (probs >= min_p * probs[:, :1])
        kept[:, 0] = True
        if enough or looked_at == width or not bool(kept[:, -1].any()):  # to look, the device is waited for
            break  # else more than these may be kept
    at = _invert(probs * kept, _column(numbers, logits))
    return order.gather(1, at[:, None])[:, 0]


def _probabilities(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    return torch.softmax(logits / _column([p.temperature for p in params], logits).float(), -1)


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return to_device(values, like, torch.float64)[:, None]


def _invert(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """[N]: the first column where the running sum exceeds u × total; so never a column of weight zero."""
    running = weights.cumsum(-1, dtype=torch.float64)
    total = running[:, -1:]
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(running, target, right=True)[:, 0]


def _adjust(logits: torch.Tensor, i: int, req: Request) -> None:
    """Penalties on what was generated, logit bias, and no end before the minimum; in place on row `i`."""
    p = req.params
    if not (p.frequency_penalty or p.presence_penalty or p.logit_bias or p.min_new_tokens):
        return
    row = logits[i]
    if p.frequency_penalty or p.presence_penalty:
        ids, counts = np.unique(req.ids[req.prompt_len : req.length], return_counts=True)
        if len(ids):
            index, count = to_device(ids.astype(np.int64), row), to_device(counts.astype(np.float32), row)
            row[index] -= count * p.frequency_penalty + p.presence_penalty
    for token, bias in p.logit_bias:
        row[token] += bias
    assert req.answer is not None
    if _step(req) < p.min_new_tokens and req.answer.matcher is None:
        row[to_device(sorted(req.answer.stop_ids), row, torch.int64)] = -torch.inf


# -- constraints -------------------------------------------------------------------------------------------------


def is_constrained(req: Request) -> bool:
    return req.answer is not None and req.answer.matcher is not None


def is_allowed(req: Request, token: int) -> bool:
    """Whether the constraint lets `token` come next."""
    assert req.answer is not None and req.answer.matcher is not None
    allowed = req.answer.matcher.allows(token)
    return allowed and (token not in req.answer.stop_ids or token not in _too_early(req))


def _greediest(logits: torch.Tensor, requests: Sequence[Request], greedy: Sequence[bool]) -> list[int]:
    """For each greedy row of `logits` [N, V]: the token with the highest logit of those its request allows, the first
    of equals; STUCK where it allows none. Rows may be written to. 0 for the others."""
    if logits.device.type == "cpu":  # row by row in numpy: torch's argmax takes ten times as long on a CPU
        rows = zip(logits.numpy(), requests, greedy, strict=True)
        return [_best_on_cpu(row, req) if wanted else 0 for row, req, wanted in rows]
    tokens = logits.argmax(-1).tolist()
    closed = [  # the best of all is the best of the allowed, where it is one of them
        i for i, r in enumerate(requests) if greedy[i] and is_constrained(r) and not is_allowed(r, tokens[i])
    ]
    if closed:  # one transfer and one answer for all
        every: np.ndarray = np.stack([_allowed(requests[i], logits.shape[1]) for i in closed])
        allowed = torch.from_numpy(every)
        best = torch.stack([logits[i] for i in closed]).masked_fill_(~allowed.to(logits.device), -torch.inf).argmax(-1)
        for i, token, row in zip(closed, best.tolist(), every, strict=True):
            tokens[i] = token if row.any() else STUCK
    return tokens


_TRIES = 2  # best tokens looked at before the row is closed, which takes longer than looking for another


def _best_on_cpu(row: np.ndarray, req: Request) -> int:
    """Asks for the few allowed tokens first, where they are known; else for the best of all. May write to `row`."""
    matcher = req.answer.matcher if req.answer is not None else None
    if matcher is None:
        return int(row.argmax())
    if (few := matcher.few) is not None and len(few) and not _too_early(req):
        return int(few[row[few].argmax()])
    for _ in range(_TRIES):
        token = int(row.argmax())
        if is_allowed(req, token):
            return token
        row[token] = -np.inf
    if not _close(row, req):
        return STUCK
    token = int(row.argmax())
    return token if row[token] > -np.inf else int(_allowed(req, len(row)).argmax())  # the logits themselves close all


def mask(row: torch.Tensor, req: Request) -> bool:
    """Closes what the constraint does not allow, in place on `row` [V]. False, and nothing closed, if it allows nothing:
    there is no drawing from an empty row, and the rows beside it go on."""
    if row.device.type == "cpu":
        return _close(row.numpy(), req)
    allowed = _allowed(req, len(row))
    if not allowed.any():
        return False
    row.masked_fill_(torch.from_numpy(~allowed).to(row.device), -torch.inf)
    return True


def _close(row: np.ndarray, req: Request) -> bool:
    """`mask` on the CPU."""
    matcher, early = _matcher(req), _too_early(req)
    try:
        _ = matcher.bits  # with it, what is few is known
        few = None if early else matcher.few
        closing = None if early or few is not None else matcher.closing
    except ConstraintError:  # as in `_allowed`
        return False
    if few is not None and len(few):
        kept = row[few]
        row.fill(-np.inf)
        row[few] = kept
    elif closing is not None:  # in a quarter of the time that a mask of truth values takes
        n = min(len(row), len(closing))
        row[:n] += closing[:n]
        row[n:] = -np.inf
    else:
        allowed = _allowed(req, len(row))
        if not allowed.any():
            return False
        row[~allowed] = -np.inf
    return True


def _bits(req: Request, size: int) -> np.ndarray:
    """What the constraint allows next, a bit a token, [⌈size / 32⌉] uint32; not to be written to."""
    try:
        bits = _matcher(req).bits
    except ConstraintError:  # as in `_allowed`
        return np.zeros((size + 31) // 32, np.uint32)
    early = _too_early(req)
    if early:
        bits = bits.copy()
        for token in early:
            bits[token // 32] &= ~np.uint32(1 << token % 32)
    return bits


def _allowed(req: Request, size: int) -> np.ndarray:
    """bool [size], the caller's own."""
    try:
        bits = _matcher(req).bits
    except ConstraintError:  # no token of the vocabulary; `Answer.stuck` asks again and reports it
        return np.zeros(size, bool)
    allowed = np.unpackbits(bits.view(np.uint8), count=size, bitorder="little").view(bool)
    allowed[list(_too_early(req))] = False
    return allowed


def _too_early(req: Request) -> frozenset[int]:
    """Tokens that would end the answer before its minimum length, unless the constraint lets nothing else follow."""
    assert req.answer is not None
    early = _step(req) < req.params.min_new_tokens and not _matcher(req).done
    return req.answer.stop_ids if early else frozenset()


def _matcher(req: Request) -> Matcher:
    assert req.answer is not None and req.answer.matcher is not None
    return req.answer.matcher


def score_logprobs(logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log P(token) at each of `rows` [N] of `logits` [R, V]; [N] float32."""
    return logits[rows, tokens] - logits.logsumexp(-1)[rows]


def _logprob(row: torch.Tensor, token: int, req: Request) -> TokenLogprob:
    every = row.log_softmax(-1)
    return TokenLogprob(token, float(every[token]), likeliest(every, req.params.top_logprobs_num or 0))


def likeliest(logprobs: torch.Tensor, n: int) -> Top:
    """The best `n` of `logprobs` [V]."""
    values, ids = logprobs.topk(n)
    return tuple(zip(values.tolist(), ids.tolist(), strict=True))
