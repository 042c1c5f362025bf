"""How much memory is free, and whether a model's weights fit into it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    import torch

_GIB = 1 << 30


def free_memory(device: torch.device) -> int:
    """Bytes that are free for use on `device`; 4 GiB where the system does not say."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return 4 * _GIB


def check_fits(path: Path, need: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuses weights that take `need` bytes as `dtype` and have no room on `device`."""
    free = free_memory(device)
    if need > free:
        smaller = "" if dtype.itemsize <= 2 else 'dtype="bfloat16" needs half; or '
        raise ModelLoadError(
            f"{path}: the weights need {need / _GIB:.1f} GiB as {str(dtype).removeprefix('torch.')}, and {device} has "
            f"{free / _GIB:.1f} GiB free; {smaller}take a smaller model, or free memory"
        )
