"""Attention over slots by FlashInfer, for the prompts of passes of many rows: pages of one token, any mix in one call.

A *plan* is host work, once a pass: it cuts the rows' contexts into tiles for the GPU. Its result is used by every layer.

    https://docs.flashinfer.ai/api/attention.html (BatchPrefillWithPagedKVCacheWrapper, backends fa2 and fa3)

FlashInfer compiles its kernels for a shape once on a machine, which takes minutes: here beside the engine's work, by
processes of low priority. They are used once nothing runs, since they round differently from ours.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.backend.engine.attention.tiled import StagedAttention
from lmc.backend.engine.kv_fp8 import Stored

log = logging.getLogger("lmc.engine")

_WORKSPACE = 256 << 20  # bytes for partial results of split contexts
_NICE = 15
_AT_ONCE = 10.0  # seconds in which compilers find nothing to do, or almost
_ROWS, _SLOTS = 96, 400  # of a sequence, on average, from which on fa3 is faster (measured; docs/performance.md)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Attention shape of a model. window: tokens that a row sees, its own included; None: all."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window: int | None = None


class PagedAttention:
    """Attention of passes, one after the other on one stream. Raises ImportError without FlashInfer.

    usable  its kernels are loaded, those for Hopper (fa3) too where the device is one: no pass waits for a compiler
    """

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

        def wrapper(backend: str) -> Any:
            workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)
            return BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)

        backends = ("fa2", "fa3") if torch.cuda.get_device_capability(device)[0] == 9 else ("fa2",)
        self._shape, self._device = shape, device
        self._short: Any = wrapper("fa2")
        self._long: Any = wrapper("fa3") if "fa3" in backends else None
        self.usable = self._failed = False
        self._compiled = threading.Event()
        threading.Thread(target=_compile, args=(_specs(shape, backends), self._compiled), name="lmc-kernels", daemon=True).start()

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor) -> FlashInferAttention:
        """Plan the next pass. All int32: `qo_indptr` and `kv_indptr` [S + 1] on the host, where each sequence's rows
        and slots begin; `kv_indices` [N] on the device, the slots of all sequences."""
        sequences = len(qo_indptr) - 1
        long = int(qo_indptr[-1]) >= _ROWS * sequences and len(kv_indices) >= _SLOTS * sequences
        return self._planned(self._long if long and self._long is not None else self._short, qo_indptr, kv_indptr, kv_indices)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the kernels are compiled; False after `timeout` seconds."""
        return self._compiled.wait(timeout)

    def load(self) -> None:
        """Load the kernels if they are compiled. Not while a graph is captured.

        Errors of FlashInfer or its compilers are logged; then it stays unusable, or works without the kernels for
        Hopper.
        """
        if self.usable or self._failed or not self._compiled.is_set():
            return
        tables = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int32, device=self._device)
        try:
            self._planned(self._short, *tables)
        except Exception as error:  # compilers raise errors of any type
            log.warning("FlashInfer cannot be used here; long prompts are read by our own kernels: %s", error)
            self._failed = True
            return
        if self._long is not None:
            try:
                self._planned(self._long, *tables)
            except Exception as error:
                log.warning("FlashInfer cannot build its kernels for Hopper; its other ones read long prompts: %s", error)
                self._long = None
        self.usable = True

    def _planned(self, wrapper: Any, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor) -> FlashInferAttention:
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
        return FlashInferAttention(wrapper)


def _compile(specs: Sequence[Any], compiled: threading.Event) -> None:
    """Compile kernels that are missing or older than their source, in processes beside this one. Failures recur,
    and are reported, on loading. Holds no workspace: an engine may be closed meanwhile."""
    began = time.monotonic()
    if sys.platform == "linux":  # on Linux priority is per thread, inherited by the compilers' processes
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    threads = [threading.Thread(target=_compile_one, args=(spec,), daemon=True) for spec in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if (seconds := time.monotonic() - began) > _AT_ONCE:
        log.info("FlashInfer's kernels are compiled (%.0f s); they are used when nothing runs", seconds)
    compiled.set()


def _compile_one(spec: Any) -> None:
    try:
        if not spec.is_aot:
            spec.build(verbose=False)
    except Exception as error:
        log.debug("FlashInfer's %s: %s", spec.name, error)


def _specs(shape: AttentionShape, backends: Sequence[str]) -> list[Any]:
    """Return FlashInfer's modules to compile for a shape; empty if this release does not list them: then it compiles on
    loading."""
    try:
        from flashinfer.jit import gen_batch_prefill_module  # pyright: ignore[reportMissingImports]

        d, dtype, windowed = shape.head_dim, shape.dtype, shape.window is not None
        return [gen_batch_prefill_module(b, dtype, dtype, dtype, torch.int32, d, d, 0, windowed, False, False) for b in backends]
    except (ImportError, AttributeError, TypeError) as error:
        log.info("FlashInfer compiles its kernels when they are loaded: %s", error)
        return []


@dataclass(frozen=True, slots=True)
class FlashInferAttention:
    """q [T, num_heads, head_dim] over keys and values [num_slots, num_kv_heads, head_dim] → [T, num_heads, head_dim]."""

    wrapper: Any

    def __call__(self, q: Tensor, keys: Stored, values: Stored, out: Tensor | None = None) -> Tensor:
        assert isinstance(keys, Tensor) and isinstance(values, Tensor), "KV in FP8 is read by our own kernels: its scales are not a tensor's"
        out = torch.empty_like(q) if out is None else out  # its own would be filled with zeros first
        return self.wrapper.run(q, (keys.unsqueeze(1), values.unsqueeze(1)), out=out)


@dataclass(frozen=True, slots=True)
class SplitAttention:
    """Attention of a large pass in two parts: short spans by our tiles, which read shared prefixes once, and prompts by
    FlashInfer, which multiplies many rows at the machine's speed but takes a tile of 64 for a row that decodes.

    One after the other: such a pass is launched kernel by kernel, and each event between two streams would release and
    reacquire the interpreter's lock.

    q [T, num_heads, head_dim] over keys and values [num_slots, num_kv_heads, head_dim] → like q.

    rows      number of first rows, computed by `short`; `long` computes the others
    """

    rows: int
    short: StagedAttention
    long: FlashInferAttention

    def __call__(self, q: Tensor, keys: Stored, values: Stored) -> Tensor:
        out = torch.empty_like(q)
        self.short(q[: self.rows], keys, values, out[: self.rows])
        self.long(q[self.rows :], keys, values, out[self.rows :])
        return out
