"""The embedding of tokens, some of which only the device knows: those sampled by the previous pass.

An id below zero represents one: -1 - i is the i-th sampled token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor


def embed_reference(ids: Tensor, sampled: Tensor, table: Tensor) -> Tensor:
    """Embed ids [T] int32, sampled [S ≥ 1] int32, table [vocab, C] → [T, C]."""
    return F.embedding(torch.where(ids < 0, sampled[(-1 - ids).clamp(min=0)], ids), table)


@triton.jit
def _embed(ids, sampled, table, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + row)
    if token < 0:
        token = tl.load(sampled - 1 - token)
    inside = at < columns
    tl.store(out + row * columns + at, tl.load(table + token.to(tl.int64) * columns + at, mask=inside), mask=inside)


def embed(ids: Tensor, sampled: Tensor, table: Tensor) -> Tensor:
    """As `embed_reference`; all contiguous."""
    rows, columns = len(ids), table.shape[1]
    out = torch.empty(rows, columns, dtype=table.dtype, device=table.device)
    if rows:
        block = min(4096, triton.next_power_of_2(columns))
        launch = _embed[(rows, triton.cdiv(columns, block))]
        launch(ids, sampled, table, out, columns, block, num_warps=4)  # pyright: ignore[reportCallIssue]
    return out
