"""How much memory is free, and whether a model's weights and a KV pool fit into it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from lmc.errors import ModelLoadError, ParameterError

if TYPE_CHECKING:
    import torch

_GIB = 1 << 30
_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")  # of Linux


def free_memory(device: torch.device) -> int:
    """Bytes that are free for use on `device`; 4 GiB where the system does not say. A container's limit counts."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()  # what engines before this one have left with the allocator
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_free_of_machine(), *_free_of_groups())


def _free_of_machine() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return 4 * _GIB


def _free_of_groups() -> Iterator[int]:
    """What each limit of a control group, version 2, that this process is in leaves; cached files can be dropped for more."""
    yield sys.maxsize
    try:
        own = next((line[3:] for line in _OWN.read_text().splitlines() if line.startswith("0::")), "/")
    except OSError:
        return  # not Linux
    for name in (own, *map(str, PurePosixPath(own).parents)):
        folder = _GROUPS / name.lstrip("/")
        try:
            limit, used = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue  # the root has no limit; a container sees none of the groups above its own
        if limit != "max":
            yield max(0, int(limit) - used + int(stat["inactive_file"]) + int(stat["active_file"]))


def check_fits(path: Path, need: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuses weights that take `need` bytes as `dtype` and have no room on `device`."""
    free = free_memory(device)
    if need > free:
        smaller = "" if dtype.itemsize <= 2 else 'dtype="bfloat16" needs half; or '
        raise ModelLoadError(
            f"{path}: the weights need {need / _GIB:.1f} GiB as {str(dtype).removeprefix('torch.')}, and {device} has "
            f"{free / _GIB:.1f} GiB free; {smaller}take a smaller model, or free memory"
        )


def check_host(size: int) -> None:
    """Refuses a host tier of so many bytes that this machine has not free."""
    free = min(_free_of_machine(), *_free_of_groups()) if size else 0
    if size > free:
        raise ParameterError(f"Engine: host_memory of {size / _GIB:.1f} GiB, and this machine has {free / _GIB:.1f} GiB free")


def check_pool(tokens: int, per_token: int, device: torch.device) -> None:
    """Refuses a KV pool that has no room on `device`. `per_token`: bytes."""
    free = free_memory(device)
    if tokens * per_token > free:
        raise ParameterError(
            f"Engine: a KV pool of {tokens} tokens needs {tokens * per_token / _GIB:.1f} GiB, and {device} has {free / _GIB:.1f} GiB "
            f"free: room for max_tokens={free // per_token}; a smaller dtype or model needs less for each"
        )
