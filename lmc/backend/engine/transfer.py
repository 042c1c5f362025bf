"""Small transfers between the host and the device that neither of them waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def to_device(values: Sequence[float] | np.ndarray, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Copy to the device of `like`, without waiting for its work: from pageable memory a copy would."""
    found = torch.as_tensor(values, dtype=dtype)
    return found.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else found


def to_host(found: torch.Tensor) -> torch.Tensor:
    """Return host memory that has the values once the device has come this far."""
    if not found.is_cuda:
        return found
    host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
    return host.copy_(found, non_blocking=True)
