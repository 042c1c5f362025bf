"""Attention over slots by FlashInfer: pages of one token, any mix of prefill, decode and scoring rows in one call.

A *plan* is host work, once a pass: it cuts the rows' contexts into tiles for the GPU. Its result is used by every layer.
Of a captured pass the shape is fixed and the plan is not: new lengths are planned into the buffers that the graph reads.

    https://docs.flashinfer.ai/api/attention.html (BatchPrefillWithPagedKVCacheWrapper, backend fa2: on Hopper its
    decode of one-token pages is faster than fa3's)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.errors import ModelLoadError

_WORKSPACE = 256 << 20  # bytes for partial results of split contexts
_PLANS_LIKE = ("0.6.12", "0.6.13")  # versions whose inner `plan` takes what `_replan` gives it


@dataclass(frozen=True, slots=True)
class Shape:
    """What attention has to know of a model. window: tokens that a row sees, its own included; None: all."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window: int | None = None


class PagedAttention:
    """Attention of passes, one after the other on one stream.

    Arrays of a plan are int32: `qo_indptr` and `kv_indptr` [S + 1] on the host, where each sequence's rows and slots
    begin; `kv_indices` [N] on the device, the slots of all sequences.
    """

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._flashinfer = _import()
        self._shape, self._device = shape, device
        self._workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)
        self._eager = self._wrapper()

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor) -> Attend:
        """For a pass that is not captured."""
        _plan(self._eager, self._shape, True, qo_indptr, kv_indptr, kv_indices)
        return Attend(self._eager)

    def captured(
        self, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor, *, causal: bool = True
    ) -> CapturedAttention:
        """For passes of one shape whose arrays are always at these places of the device. Not causal: each row sees all
        slots of its sequence, which need not be its own."""
        ones = torch.ones(len(qo_indptr) - 1, dtype=torch.int32, device=self._device)
        wrapper = self._wrapper(
            use_cuda_graph=True,
            qo_indptr_buf=qo_indptr,
            paged_kv_indptr_buf=kv_indptr,
            paged_kv_indices_buf=kv_indices,
            paged_kv_last_page_len_buf=ones,
        )
        return CapturedAttention(wrapper, self._shape, causal, self._flashinfer.__version__ in _PLANS_LIKE)

    def shared(self, prefix: CapturedAttention, own: CapturedAttention) -> AttendShared:
        """Attention in two parts: what groups of rows share, and what is each one's own."""
        return AttendShared(prefix.attend.wrapper, own.attend.wrapper, self._flashinfer.merge_state_in_place)

    def _wrapper(self, **options: Any) -> Any:
        return self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend="fa2", **options)


@dataclass(frozen=True, slots=True)
class Attend:
    """q [T, num_heads, head_dim] over keys and values [num_slots, num_kv_heads, head_dim] → [T, num_heads, head_dim]."""

    wrapper: Any

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        out = torch.empty_like(q)  # its own would be filled with zeros first
        return self.wrapper.run(q, (keys.unsqueeze(1), values.unsqueeze(1)), out=out)


@dataclass(frozen=True, slots=True)
class AttendShared:
    """The same from two partial results, each with its log-sum-exp, merged in float32."""

    prefix: Any
    own: Any
    merge: Any

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        store = keys.unsqueeze(1), values.unsqueeze(1)
        part, part_lse = self.prefix.run(q, store, out=torch.empty_like(q), return_lse=True)
        out, lse = self.own.run(q, store, out=torch.empty_like(q), return_lse=True)
        self.merge(out, lse, part, part_lse)
        return out


class CapturedAttention:
    """The attention of one captured shape. Plan first, then capture or replay."""

    def __init__(self, wrapper: Any, shape: Shape, causal: bool, knows_inner: bool) -> None:
        self.attend = Attend(wrapper)
        self._wrapper, self._shape, self._causal, self._knows_inner = wrapper, shape, causal, knows_inner
        self._planned = False

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor) -> None:
        """Host arrays of this pass; the device has them already at their places."""
        if self._planned and self._knows_inner:
            _replan(self._wrapper, self._shape, self._causal, qo_indptr, kv_indptr)
        else:
            _plan(self._wrapper, self._shape, self._causal, qo_indptr, kv_indptr, kv_indices)
            self._planned = True


def _plan(wrapper: Any, shape: Shape, causal: bool, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor) -> None:
    wrapper.plan(
        qo_indptr=qo_indptr,
        paged_kv_indptr=kv_indptr,
        paged_kv_indices=kv_indices,
        paged_kv_last_page_len=torch.ones(len(qo_indptr) - 1, dtype=torch.int32),
        num_qo_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim_qk=shape.head_dim,
        page_size=1,
        causal=causal,
        window_left=_window_left(shape),
        q_data_type=shape.dtype,
        kv_data_type=shape.dtype,
        max_token_per_sequence=int((qo_indptr[1:] - qo_indptr[:-1]).max()),
    )


def _replan(wrapper: Any, shape: Shape, causal: bool, qo_indptr: Tensor, kv_indptr: Tensor) -> None:
    """Only the inner call of `plan`: the outer one copies arrays that are there, and takes a maximum in Python."""
    wrapper._plan_info = wrapper._cached_module.plan(
        wrapper._float_workspace_buffer,
        wrapper._int_workspace_buffer,
        wrapper._pin_memory_int_workspace_buffer,
        qo_indptr,
        kv_indptr,
        kv_indptr[1:] - kv_indptr[:-1],
        wrapper._max_total_num_rows,
        len(qo_indptr) - 1,
        shape.num_heads,
        shape.num_kv_heads,
        1,  # page size
        True,  # CUDA graph
        shape.head_dim,
        shape.head_dim,
        causal,
        _window_left(shape),
        -1,  # no fixed split
        False,  # contexts may be split
        0,
    )


def _window_left(shape: Shape) -> int:
    return -1 if shape.window is None else shape.window - 1


def _import() -> Any:
    try:
        import flashinfer
    except ImportError as error:
        raise ModelLoadError(
            f"the GPU runtime needs FlashInfer, which cannot be imported ({error}); install it with: "
            'pip install "lmc[gpu]", or run on the CPU with device="cpu"'
        ) from error
    return flashinfer
