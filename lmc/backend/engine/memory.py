"""Memory checks: free memory, and whether a model's weights and a KV pool fit into it."""

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
    """Return the free bytes on `device`; 4 GiB if the system does not tell. A container's limit counts."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()  # memory that earlier engines left with the allocator
        return int(torch.cuda.mem_get_info(device)[0])
    return free_host()


def free_host() -> int:
    """Return the free bytes of this machine, or of what its control groups leave this process."""
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
    """Yield what each limit of this process's control groups leaves; cached files can be dropped for more."""
    yield sys.maxsize
    try:
        lines = [line.split(":", 2) for line in _OWN.read_text().splitlines()]
    except OSError:
        return  # not Linux
    v2 = next((path for number, _, path in lines if number == "0"), "/")
    v1 = next((path for _, controllers, path in lines if "memory" in controllers.split(",")), None)
    yield from _left(_GROUPS, v2, "memory.max", "memory.current", "")
    if v1 is not None:
        yield from _left(_GROUPS / "memory", v1, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _left(groups: Path, own: str, limit: str, usage: str, total: str) -> Iterator[int]:
    """Yield what the limits of a group and those above it leave. A container sees none of the groups above its own."""
    for name in (own, *map(str, PurePosixPath(own).parents)):
        folder = groups / name.lstrip("/")
        try:
            most, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue  # the root of version 2 has no limit
        if most != "max":
            yield max(0, int(most) - used + int(stat[f"{total}inactive_file"]) + int(stat[f"{total}active_file"]))


_ROOM = 0.85  # of a GPU's free memory: share for sharded weights, leaving some to KV and passes


def check_fits(path: Path, need: int, stored: str, device: torch.device, ranks: int = 1) -> None:
    """Refuse weights of `need` bytes that do not fit on `device`. `stored`: as what ("bfloat16"); `ranks`: number of devices they are
    sharded over."""
    free = free_memory(device)
    if need > free:
        smaller = 'dtype="bfloat16" needs half; or ' if stored == "float32" else ""
        where = "" if ranks == 1 else f" on each of {ranks} ranks"
        raise ModelLoadError(
            f"{path}: the weights need {need / _GIB:.1f} GiB{where} as {stored}, and {device} has "
            f"{free / _GIB:.1f} GiB free; {smaller}{spreading(need * ranks, free, device, ranks)}take a smaller model, or free memory"
        )


def spreading(need: int, free: int, device: torch.device, ranks: int) -> str:
    """Return a hint on `tp` for weights of `need` bytes in all, on devices with `free` bytes each; "" if it would not
    help."""
    if device.type != "cuda" or free <= 0:
        return ""
    import torch

    there, tp = torch.cuda.device_count(), 2
    while tp * free * _ROOM < need:
        tp *= 2
    if tp <= ranks:
        return ""
    return f"tp={tp} spreads them over {tp} such GPUs" + (" of this machine; or " if tp <= there else f", and this machine has {there}; ")


_POOL_CAP = 3 << 29  # default size of a pool on a CPU in bytes: 1.5 GiB


def default_pool(device: torch.device, per_token: int, ranks: int = 1) -> int:
    """Return the tokens, of so many bytes each, that fit a quarter of the free memory (at most 1.5 GiB, of all ranks together) on a CPU, 85 %
    of it on a GPU."""
    free = free_memory(device)
    room = int(free * _ROOM) if device.type == "cuda" else min(free // 4, _POOL_CAP) // ranks
    return max(1024, room // per_token)


def check_host(size: int) -> None:
    """Refuse a host tier of so many bytes if this machine has not as much free."""
    if size and size > (free := free_host()):
        raise ParameterError(f"Engine: host_memory of {size / _GIB:.1f} GiB, and this machine has {free / _GIB:.1f} GiB free")


def check_pool(tokens: int, per_token: int, device: torch.device) -> None:
    """Refuse a KV pool that does not fit on `device`. `per_token`: bytes."""
    free = free_memory(device)
    if tokens * per_token > free:
        raise ParameterError(
            f"Engine: a KV pool of {tokens} tokens needs {tokens * per_token / _GIB:.1f} GiB, and {device} has {free / _GIB:.1f} GiB "
            f"free: room for max_tokens={free // per_token}; a smaller dtype or model needs less for each"
        )
