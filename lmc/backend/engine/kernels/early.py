"""Kernels that are launched before the one in front of them has ended, and wait for it on the device: saves about a
microsecond a launch (https://docs.nvidia.com/cuda/cuda-programming-guide/ on programmatic dependent launch).

Every program of such a kernel calls `after` first of all, also those that have nothing to do: a kernel that ended without
waiting would let the one behind it begin before the one in front of it has ended.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@functools.cache
def can_launch_early() -> bool:
    """From Hopper on."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, warps: int, early: bool | None = None) -> None:
    """Launches a kernel whose last parameter is EARLY; None: early where the device can."""
    early = can_launch_early() if early is None else early
    kernel[grid](*args, early, num_warps=warps, **({"launch_pdl": True} if early else {}))


@triton.jit
def after():
    """Waits for the kernel in front; the one behind may be launched."""
    gdc_wait()
    gdc_launch_dependents()
