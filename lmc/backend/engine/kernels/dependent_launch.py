"""Programmatic dependent launch: kernels launched before their predecessor has ended, which wait for it on the device;
saves about a microsecond a launch (https://docs.nvidia.com/cuda/cuda-programming-guide/ on the feature).

Every program of such a kernel calls `after`, even with nothing to do: a kernel that ended without waiting would
let its successor begin before its predecessor has ended. Before it, a program may only read what was written before its predecessor began, which has waited
for it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@functools.cache
def can_launch_early() -> bool:
    """Return whether the device supports it: from Hopper on."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, warps: int, early: bool | None = None) -> None:
    """Launch a kernel whose last parameter is EARLY; None: early if the device can."""
    early = can_launch_early() if early is None else early
    kernel[grid](*args, early, num_warps=warps, **({"launch_pdl": True} if early else {}))


@triton.jit
def after():
    """Wait for the preceding kernel; the next one may be launched."""
    gdc_wait()
    gdc_launch_dependents()
