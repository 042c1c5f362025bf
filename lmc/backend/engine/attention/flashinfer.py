"""Attention over slots by FlashInfer, for passes of many rows: pages of one token, any mix of rows in one call.

A *plan* is host work, once a pass: it cuts the rows' contexts into tiles for the GPU. Its result is used by every layer.

    https://docs.flashinfer.ai/api/attention.html (BatchPrefillWithPagedKVCacheWrapper, backend fa2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_WORKSPACE = 256 << 20  # bytes for partial results of split contexts


@dataclass(frozen=True, slots=True)
class Shape:
    """What attention has to know of a model. window: tokens that a row sees, its own included; None: all."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window: int | None = None


class PagedAttention:
    """Attention of passes, one after the other on one stream. ImportError where there is no FlashInfer."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

        workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)
        self._shape = shape
        self._wrapper: Any = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor) -> Attend:
        """For the next pass. All int32: `qo_indptr` and `kv_indptr` [S + 1] on the host, where each sequence's rows and slots
        begin; `kv_indices` [N] on the device, the slots of all sequences."""
        s = self._shape
        self._wrapper.plan(
            qo_indptr=qo_indptr,
            paged_kv_indptr=kv_indptr,
            paged_kv_indices=kv_indices,
            paged_kv_last_page_len=torch.ones(len(qo_indptr) - 1, dtype=torch.int32),
            num_qo_heads=s.num_heads,
            num_kv_heads=s.num_kv_heads,
            head_dim_qk=s.head_dim,
            page_size=1,
            causal=True,
            window_left=-1 if s.window is None else s.window - 1,
            q_data_type=s.dtype,
            kv_data_type=s.dtype,
            max_token_per_sequence=int((qo_indptr[1:] - qo_indptr[:-1]).max()),
        )
        return Attend(self._wrapper)


@dataclass(frozen=True, slots=True)
class Attend:
    """q [T, num_heads, head_dim] over keys and values [num_slots, num_kv_heads, head_dim] → [T, num_heads, head_dim]."""

    wrapper: Any

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        out = torch.empty_like(q)  # its own would be filled with zeros first
        return self.wrapper.run(q, (keys.unsqueeze(1), values.unsqueeze(1)), out=out)
