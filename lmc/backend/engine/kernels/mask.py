"""Masking of tokens that a constraint does not allow: one bit a token, whole rows at once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def close_reference(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Set -inf in `logits` [R, V] wherever the bit of a token in row `rows[i]` is 0; bits [N, ⌈V / 32⌉] int32, the
    lowest first."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = (bits[:, :, None] >> shifts & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)


@triton.jit
def _close(logits, rows, bits, columns, words, BLOCK: tl.constexpr):
    """Run one program per BLOCK tokens of a row."""
    mask = tl.program_id(0)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(bits + mask * words + token // 32, mask=token < columns, other=-1)
    closed = (word >> (token % 32)) & 1 == 0
    row = tl.load(rows + mask).to(tl.int64)
    tl.store(logits + row * columns + token, -float("inf"), mask=closed & (token < columns))


def close(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """As `close_reference`; all contiguous, no row twice."""
    if len(rows):
        columns = logits.shape[1]
        launch = _close[(len(rows), triton.cdiv(columns, _BLOCK))]
        launch(logits, rows, bits, columns, bits.shape[1], _BLOCK, num_warps=4)  # pyright: ignore[reportCallIssue]
