"""Log-probabilities: the model's own, of tokens that were sampled or scored and of the likeliest beside them.

All log-probabilities of a pass are one tensor, which stays on the device until it is read. Of equally likely tokens
those of the lower id come first, so that the rest of a pass does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmc.backend.engine.token_ids import TokenLogprob, Top
from lmc.backend.engine.transfer import to_device, to_host

_AT_ONCE = 1 << 26  # logits processed at a time


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of N tokens.

    found   [N, 1 + 2 most] float64: by token: its own, the `most` greatest of its row, and their ids
    wanted  [N] how many of these are
    """

    found: torch.Tensor
    wanted: Sequence[int]

    def leave(self) -> Logprobs:
        """Start the copy to the host: readable once the device has come this far."""
        return Logprobs(to_host(self.found), self.wanted)

    def read(self) -> list[tuple[float, Top]]:
        most = self.found.shape[1] // 2
        return [(row[0], tuple((row[i], int(row[most + i])) for i in range(1, n + 1))) for row, n in zip(self.found.tolist(), self.wanted, strict=True)]

    def of_samples(self, at: Sequence[int], tokens: Sequence[int]) -> list[TokenLogprob | None]:
        """Return one for each of a pass's samples, where these are those `at`: None for the others, and where none was
        sampled."""
        found: list[TokenLogprob | None] = [None] * len(tokens)
        for i, (own, top) in zip(at, self.read(), strict=True):
            if tokens[i] >= 0:
                found[i] = TokenLogprob(tokens[i], own, top)
        return found


def logprobs(logits: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor, wanted: Sequence[int] | None = None) -> Logprobs:
    """Compute log-probabilities of tokens [N] int64, each in its row of `logits` [R, V], and the `wanted` [N] likeliest
    beside each; none by default."""
    wanted = wanted or [0] * len(rows)
    most, step = max(wanted, default=0), max(1, _AT_ONCE // logits.shape[1])
    parts = [_some(logits, rows[i : i + step], tokens[i : i + step], most) for i in range(0, len(rows), step)]  # of those of one row mostly in one part
    return Logprobs(parts[0] if len(parts) == 1 else torch.cat(parts), wanted)


def _some(logits: torch.Tensor, rows: Sequence[int], tokens: torch.Tensor, most: int) -> torch.Tensor:
    used, place = np.unique(rows, return_inverse=True)
    own = logits if len(used) == len(logits) else logits[to_device(used, logits)]
    every, at = own.log_softmax(-1), to_device(place, logits)
    found = [every[at, tokens.clamp_min(0)][:, None]]
    if most:
        ids = likeliest(own, most)
        found += [every.gather(1, ids)[at], ids[at]]
    return torch.cat([part.double() for part in found], 1)


def likeliest(logits: torch.Tensor, n: int) -> torch.Tensor:
    """Return [R, n] int64: the ids of the `n` greatest of each row of `logits` [R, V] float32, best first, the first of
    equals before the others."""
    if not logits.is_cuda:
        least = logits.topk(n).values[:, -1]
        return torch.from_numpy(np.stack([_best(*row, n) for row in zip(logits.numpy(), least.numpy(), strict=True)]))
    return ordered(logits).topk(n).values.bitwise_and_(0xFFFFFFFF).neg_().add_(logits.shape[1] - 1)


def _best(row: np.ndarray, least: np.float32, n: int) -> np.ndarray:
    some = np.flatnonzero(row >= least)
    best = some[np.argsort(-row[some], kind="stable")[:n]]
    return best if len(best) == n else np.arange(n)  # some are NaN


def ordered(logits: torch.Tensor) -> torch.Tensor:
    """Return integers in the order of `logits` [R, V], with the first column the greatest of equals: V - 1 - column in
    the low half."""
    bits = logits.view(torch.int32)
    high = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32
    return high | torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)
