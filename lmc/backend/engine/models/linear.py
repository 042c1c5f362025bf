"""Matrices of a model: storage and multiplication.

Decoding on a CPU is bound by reading the weights. FBGEMM multiplies float32 rows by matrices packed as float16 and
accumulates in float32: half the bytes, a layout made for few rows, and on AVX2 three times the speed of float32
(`benchmarks/bench_cpu.py`). bfloat16 weights survive float16 exactly, float32 ones lose 2⁻¹² relative.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.warning_filters import ignored

log = logging.getLogger("lmc.models")

Linear = Callable[[Tensor], Tensor]  # [rows, in] → [rows, out]

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

_spreading = threading.Lock()  # the number of torch's threads belongs to the process

HALF_MAX = 65504.0  # float16's largest number


def can_pack_half() -> bool:
    """Return whether this torch and CPU have FBGEMM's float16 kernels; deterministic, nothing is measured."""
    return "fbgemm" in torch.backends.quantized.supported_engines and hasattr(torch.ops.quantized, "linear_dynamic_fp16")


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A Linear of an unmodified matrix: any dtype, any device."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def local(matrix: Linear) -> Linear:
    """Return the part of a matrix multiplied on this device, if it is sharded (distributed/group.py)."""
    return getattr(matrix, "local", matrix)


@dataclass(frozen=True, slots=True, eq=False)
class HalfPacked:
    """A Linear of a matrix packed as float16, float32 in and out."""

    packed: Any

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16.default(x, self.packed)


@dataclass(frozen=True, slots=True, eq=False)
class FourBits:
    """A Linear of a matrix packed in 4 bits; its scales and zeros are [groups of a row, rows, 2]."""

    packed: Tensor
    scales: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return four_bit_product(x, self.packed, self.scales, self.bias)


def four_bit_product(x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply rows, rounded to bfloat16; so is what comes out, unless there is a bias."""
    y = torch.ops.aten._weight_int4pack_mm_for_cpu(x.to(torch.bfloat16), packed, 32, scales)
    return y if bias is None else y + bias  # in float32


def half_packed(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Pack the matrix as float16, float32 in and out; one that float16 cannot hold stays dense. Copies; 5–10 ns an
    element."""
    full, bias = weight.float(), None if bias is None else bias.float()
    if not fits_half(weight):
        log.warning("a matrix exceeds float16's range and stays in float32")
        return Dense(full, bias)
    return HalfPacked(torch.ops.quantized.linear_prepack_fp16(full, bias))


_GROUP, _STEP = 32, 16  # weights of a row that share scale and zero (as in `four_bit_product`); rows come in so many


def four_bits(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """Keep the matrix packed in 4 bits: w ≈ (q - 8) · scale + zero, by the smallest and the largest of each 32 weights of a
    row; rows are rounded to bfloat16, and so is what comes out, unless there is a bias. What was quantized that way before (Q4_0, Q4_1) changes by the rounding
    of scales to bfloat16 alone. A shape that torch's kernel does not take is packed as float16."""
    rows, columns = weight.shape
    if rows % _STEP or columns % _GROUP or not fits_half(weight):
        half = half_packed(weight, bias)
        return lambda x: half(x.float())  # which may be another matrix's bfloat16
    grouped = weight.float().view(rows, -1, _GROUP)
    low, high = grouped.aminmax(dim=-1)
    scale = ((high - low) / 15).bfloat16()
    zero = (low + 8 * scale.float()).bfloat16()
    levels = ((grouped - zero.float()[..., None]) / scale.float()[..., None].clamp_min(1e-30) + 8).round().clamp(0, 15)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.view(rows, columns).to(torch.int32), 1)
    both = torch.stack((scale, zero), -1).transpose(0, 1).contiguous()  # [groups of a row, rows, 2]
    return FourBits(packed, both, None if bias is None else bias.float())


def eight_bits(weight: Tensor) -> Linear:
    """Keep the matrix packed in 8 bits, a scale for each of its rows; float32 in and out. Rows come as sums of two in 8 bits,
    whose products are exact: as good as 16 bits, and as fast as 8, since the matrix is read once. Where the CPU has no such
    products, it is packed as float16."""
    if not (hasattr(torch, "_make_per_channel_quantized_tensor") and torch.cpu._is_vnni_supported() and fits_half(weight)):
        return half_packed(weight)
    rows, columns = weight.shape
    even = torch.linalg.vector_norm(weight, dim=0, dtype=torch.float32).clamp_min(1e-30).pow(-0.25)  # columns share a row's scale
    levels = weight.float() * even
    scale = (levels.abs().amax(1) / 127).clamp_min(1e-30)
    levels = F.pad((levels / scale[:, None]).round().to(torch.int8), (0, 2))
    with ignored(UserWarning, "torch.quantize_per_tensor"):  # deprecated, with no other way to pack
        quantized = torch._make_per_channel_quantized_tensor(levels, scale, torch.zeros(rows, dtype=torch.int64), 0)
        packed = torch.ops.quantized.linear_prepack(quantized, None)
    multiply, ends = torch.ops.quantized.linear_dynamic.default, torch.tensor((-128.0, 127.0))

    def linear(x: Tensor) -> Tensor:
        x = x / even
        unit = x.abs().amax(1, keepdim=True).clamp_min_(1e-30).div_(127)
        whole = (x / unit).nan_to_num_(0.0)  # a row that is not finite has such a unit, and no other row's levels
        high = whole.round()
        both = x.new_empty(2 * len(x), columns + 2)
        both[:, columns:] = ends  # the smallest and the largest number decide the levels: these are the whole numbers
        both[: len(x), :columns], both[len(x) :, :columns] = high, (whole - high) * 254
        high, low = multiply(both, packed).chunk(2)
        return high.add_(low, alpha=1 / 254).mul_(unit)

    return linear


def fits_half(weight: Tensor) -> bool:
    """Return whether float16 can hold every weight."""
    return weight.dtype == torch.float16 or float(weight.abs().max()) <= HALF_MAX


def spread(task: Callable[[_Item], _Found], items: Iterable[_Item]) -> list[_Found]:
    """Run `task` of each item, on as many threads as torch uses, each with torch's own threads off.

    For work on weights while loading: tasks that never wait at a barrier are as fast on an idle machine and do not
    collapse on a busy one (there, a load took 35 s with torch's threads and 4 s with these).
    """
    with _spreading:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # new threads inherit it
        try:
            with ThreadPoolExecutor(threads) as pool:
                return list(pool.map(task, items))
        finally:
            torch.set_num_threads(threads)
