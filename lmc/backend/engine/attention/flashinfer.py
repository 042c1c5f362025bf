"""Attention over slots by FlashInfer, for the prompts of passes of many rows: pages of one token, any mix in one call.

A *plan* is host work, once a pass: it cuts the rows' contexts into tiles for the GPU. Its result is used by every layer.

    https://docs.flashinfer.ai/api/attention.html (BatchPrefillWithPagedKVCacheWrapper, backends fa2 and fa3)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("lmc.engine")

_WORKSPACE = 256 << 20  # bytes for partial results of split contexts
_ROWS, _SLOTS = 96, 400  # of a sequence, on average, from which on fa3 is faster (measured; docs/performance.md)


@dataclass(frozen=True, slots=True)
class Shape:
    """What attention has to know of a model. window: tokens that a row sees, its own included; None: all."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window: int | None = None


class PagedAttention:
    """Attention of passes, one after the other on one stream. ImportError where there is no FlashInfer.

    The kernels are compiled at the first pass, those for Hopper (fa3) too where the device is one: no later pass waits for them.
    """

    def __init__(self, shape: Shape, device: torch.device) -> None:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

        def wrapper(backend: str) -> Any:
            workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)
            return BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)

        self._shape = shape
        self._short: Any = wrapper("fa2")
        self._long: Any = wrapper("fa3") if torch.cuda.get_device_capability(device)[0] == 9 else None
        self._built = False

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor) -> Attend:
        """For the next pass. All int32: `qo_indptr` and `kv_indptr` [S + 1] on the host, where each sequence's rows and slots
        begin; `kv_indices` [N] on the device, the slots of all sequences."""
        tables = (qo_indptr, kv_indptr, kv_indices)
        if not self._built:
            self._build(*tables)
        sequences = len(qo_indptr) - 1
        long = int(qo_indptr[-1]) >= _ROWS * sequences and len(kv_indices) >= _SLOTS * sequences
        return self._planned(self._long if long and self._long is not None else self._short, *tables)

    def _build(self, *tables: Tensor) -> None:
        self._planned(self._short, *tables)
        if self._long is not None:
            try:
                self._planned(self._long, *tables)
            except Exception as error:  # whatever its compilers raise
                log.warning("FlashInfer cannot build its kernels for Hopper; its other ones read long prompts: %s", error)
                self._long = None
        self._built = True

    def _planned(self, wrapper: Any, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor) -> Attend:
        s = self._shape
        wrapper.plan(
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
        return Attend(wrapper)


@dataclass(frozen=True, slots=True)
class Attend:
    """q [T, num_heads, head_dim] over keys and values [num_slots, num_kv_heads, head_dim] → [T, num_heads, head_dim]."""

    wrapper: Any

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor | None = None) -> Tensor:
        out = torch.empty_like(q) if out is None else out  # its own would be filled with zeros first
        return self.wrapper.run(q, (keys.unsqueeze(1), values.unsqueeze(1)), out=out)
