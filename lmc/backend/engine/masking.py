"""Masking: rows of logits under constraints. The best legal token of a row, and rows masked for drawing.

Each pass over a row costs as much as the model's own choice from it, so rows are read as rarely as possible:

    few tokens are legal      these alone are gathered
    the model's best is       it is taken; else the next best is tried, once more where most tokens are legal
    else                      the row is closed, by adding 0 and -inf or, where few tokens are illegal, one by one

A model that was refused twice in a row probably will be again: then the row is masked at once, two times out of three.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lmc.backend.engine.constraint import AutomatonMatcher
from lmc.backend.engine.drafted import Sampled
from lmc.backend.engine.token_ids import BROKEN, STUCK
from lmc.errors import ConstraintError

_FLAGS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view(bool)
_CLOSED = np.where(_FLAGS, np.float32(0), np.float32(-np.inf))  # [256, 8]: what a byte of a mask adds to eight logits

_TRIES = 2  # best tokens tried before the row is masked, where most are legal
_FIRMLY = 2  # refusals after which another is expected
_MOST_FIRMLY = 3


def is_constrained(req: Sampled) -> bool:
    return req.answer is not None and req.answer.matcher is not None


def step_of(req: Sampled) -> int:
    """Return how many tokens the answer has before this one."""
    return req.length - req.prompt_len


class Closing:
    """Masks as addends to logits. Rebuilt in one buffer, which is as fast as fetching a cached one from memory; for one
    thread."""

    def __init__(self) -> None:
        self._of, self._added = np.zeros(0, np.uint32), np.zeros((0, 8), np.float32)

    def close(self, row: np.ndarray, bits: np.ndarray) -> None:
        """Mask in `row`, float32 [V], the tokens that `bits`, uint32 [words], do not allow, in place."""
        added = self.added(bits)
        n = min(len(row), len(added))
        row[:n] += added[:n]
        row[n:] = -np.inf

    def added(self, bits: np.ndarray) -> np.ndarray:
        """Return float32 [32 * words]: 0 where `bits` allow, -inf elsewhere; valid until the next call."""
        if bits is not self._of or bits.flags.writeable:  # rows of an automaton are never written to
            if len(self._added) != 4 * len(bits):
                self._added = np.empty((4 * len(bits), 8), np.float32)
            _CLOSED.take(bits.view(np.uint8), axis=0, out=self._added, mode="clip")
            self._of = bits
        return self._added.reshape(-1)


def greediest(logits: torch.Tensor, requests: Sequence[Sampled], greedy: Sequence[bool], closing: Closing) -> list[int]:
    """Return, for each greedy row of `logits` [N, V], the token with the highest logit of those its request allows, the
    first of equals; STUCK where it allows none, BROKEN where the logits are NaN. Rows may be written to. 0 for the
    others."""
    if logits.device.type == "cpu":  # row by row in numpy: torch's argmax takes ten times as long on a CPU
        every = logits.numpy()
        found = [_best_on_cpu(row, req, closing) if wanted else 0 for row, req, wanted in zip(every, requests, greedy, strict=True)]
        return [token if token < 0 or row[token] < np.inf else BROKEN for token, row in zip(found, every, strict=True)]
    most, at = logits.max(-1)
    tokens = torch.where(most < torch.inf, at, BROKEN).tolist()
    closed = [  # the best of all is the best of the legal, where it is one of them
        i for i, r in enumerate(requests) if greedy[i] and is_constrained(r) and tokens[i] != BROKEN and not _is_legal(r, tokens[i])
    ]
    if closed:  # one transfer and one answer for all
        every: np.ndarray = np.stack([_legal(requests[i], logits.shape[1]) for i in closed])
        legal = torch.from_numpy(every)
        best = torch.stack([logits[i] for i in closed]).masked_fill_(~legal.to(logits.device), -torch.inf).argmax(-1)
        for i, token, row in zip(closed, best.tolist(), every, strict=True):
            tokens[i] = token if row.any() else STUCK
    return tokens


def _best_on_cpu(row: np.ndarray, req: Sampled, closing: Closing) -> int:
    matcher = req.answer.matcher if req.answer is not None else None
    if matcher is None:
        return int(row.argmax())
    early = _too_early(req)
    known = None if early else matcher.row
    if known is not None and (few := known.few) is not None:
        return int(few[row[few].argmax()])
    if matcher.refused >= _FIRMLY:
        matcher.refused -= 1
    else:
        for _ in range(_TRIES if known is None or known.refused is not None else 1):
            token = int(row.argmax())
            if matcher.allows(token) and token not in early:
                matcher.refused = 0
                return token
            row[token] = -np.inf
        matcher.refused = min(2 * matcher.refused + 1, _MOST_FIRMLY)
    if not _close(row, req, closing):
        return STUCK
    token = int(row.argmax())
    return token if row[token] > -np.inf else int(_legal(req, len(row)).argmax())  # the logits themselves mask all


def few_of(req: Sampled, logits: torch.Tensor) -> np.ndarray | None:
    """Return ascending ids of the legal tokens, if few and `logits` is on the CPU; else the row is to be masked."""
    if not is_constrained(req) or logits.device.type != "cpu" or _too_early(req):
        return None
    try:
        _ = _matcher(req).bits  # with it, the few tokens are known
    except ConstraintError:  # as in `legal_bits`
        return None
    known = _matcher(req).row
    return known.few if known is not None else None


def mask(row: torch.Tensor, req: Sampled, closing: Closing) -> bool:
    """Mask disallowed tokens, in place on `row` [V]. Return False, with nothing masked, if none is allowed: an empty
    row cannot be drawn from, and the rows beside it continue."""
    if row.device.type == "cpu":
        return _close(row.numpy(), req, closing)
    legal = _legal(req, len(row))
    if not legal.any():
        return False
    row.masked_fill_(torch.from_numpy(~legal).to(row.device), -torch.inf)
    return True


def _close(row: np.ndarray, req: Sampled, closing: Closing) -> bool:
    """Run `mask` on the CPU."""
    bits = legal_bits(req, len(row))
    known = None if _too_early(req) else _matcher(req).row
    if known is None:
        if not bits.any():
            return False
        closing.close(row, bits)
    elif known.few is not None:
        kept = row[known.few]
        row.fill(-np.inf)
        row[known.few] = kept
    elif known.refused is not None:
        row[known.refused] = -np.inf
    else:
        closing.close(row, bits)
    return True


def legal_bits(req: Sampled, size: int) -> np.ndarray:
    """Return the allowed next tokens, a bit a token, [⌈size / 32⌉] uint32; read-only."""
    try:
        bits = _matcher(req).bits
    except ConstraintError:  # no token of the vocabulary; `Answer.stuck` tries again and reports it
        return np.zeros((size + 31) // 32, np.uint32)
    early = _too_early(req)
    if early:
        bits = bits.copy()
        for token in early:
            bits[token // 32] &= ~np.uint32(1 << token % 32)
    return bits


def _legal(req: Sampled, size: int) -> np.ndarray:
    """Return bool [size], owned by the caller."""
    return np.unpackbits(legal_bits(req, size).view(np.uint8), count=size, bitorder="little").view(bool)


def _is_legal(req: Sampled, token: int) -> bool:
    return _matcher(req).allows(token) and token not in _too_early(req)


_NO_TOKENS: frozenset[int] = frozenset()


def _too_early(req: Sampled) -> frozenset[int]:
    """Return tokens that would end the answer before its minimum length, unless the constraint lets nothing else
    follow."""
    least = req.params.min_new_tokens
    if not least or step_of(req) >= least or _matcher(req).done:
        return _NO_TOKENS
    assert req.answer is not None
    return req.answer.stop_ids


def _matcher(req: Sampled) -> AutomatonMatcher:
    assert req.answer is not None and req.answer.matcher is not None
    return req.answer.matcher
