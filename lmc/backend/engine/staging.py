"""A pass's integers on their way to the GPU: one pinned copy, at addresses known to captured graphs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

_ALIGNED = 16  # int32: parts begin where vectors may be loaded
_CHUNK = 1 << 12  # int32 that are sent more, at most, than are used


class StagingBuffer:
    """A staging buffer of named parts, int32, one after the other: host memory that the GPU reads fast, and its copy on
    the device.

    sizes    the capacity of each part; the last one is sent as far as it is used, the others whole
    """

    def __init__(self, sizes: Mapping[str, int], device: torch.device) -> None:
        ends = np.cumsum([-(-n // _ALIGNED) * _ALIGNED for n in sizes.values()]).tolist()
        begins = [0, *ends[:-1]]
        self._places = dict(zip(sizes, zip(begins, sizes.values(), strict=True), strict=True))
        self._used = begins[-1]
        self._host = torch.zeros(ends[-1], dtype=torch.int32, pin_memory=True)
        self._array = self._host.numpy()
        self._device = torch.zeros(ends[-1], dtype=torch.int32, device=device)
        self._copied: dict[int, tuple[Tensor, Tensor]] = {}  # by chunks: the device may wait while they are sliced

    def capacity(self, name: str) -> int:
        return self._places[name][1]

    def array(self, name: str, n: int) -> np.ndarray:
        """Return the first `n` of a part, on the host."""
        begin, capacity = self._places[name]
        assert n <= capacity, f"{n} do not fit the {capacity} {name} of a stage"
        return self._array[begin : begin + n]

    def host(self, name: str, n: int) -> Tensor:
        begin, _ = self._places[name]
        return self._host[begin : begin + n]

    def device(self, name: str, n: int | None = None) -> Tensor:
        begin, capacity = self._places[name]
        return self._device[begin : begin + (capacity if n is None else n)]

    def put(self, name: str, values: np.ndarray) -> None:
        self.array(name, values.size)[:] = values.reshape(-1)

    def send(self, last: int) -> None:
        """Send to the device, `last` of the last part, in stream order; the host side may be written again once the
        device has come this far."""
        chunks = -(-(self._used + last) // _CHUNK)
        if chunks not in self._copied:
            self._copied[chunks] = self._device[: chunks * _CHUNK], self._host[: chunks * _CHUNK]
        device, host = self._copied[chunks]
        device.copy_(host, non_blocking=True)
