"""Memory checks: free memory, whether a model's weights and a KV pool fit into it, and which engines of this process have some."""

from __future__ import annotations

import ctypes
import sys
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from lmc.backend.engine.device_errors import is_out_of_memory
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


def trim() -> None:
    """Return what this process has freed to the system; glibc keeps it, in pieces between what is still used."""
    if sys.platform == "linux" and (trimmed := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trimmed(0)


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
            f"{free / _GIB:.1f} GiB free; {smaller}{spreading(need * ranks, free, device, ranks)}take a smaller model, or free memory{open_engines()}"
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
            f"free: room for max_tokens={free // per_token}; a smaller dtype or model needs less for each{open_engines()}"
        )


# -- when it runs out --------------------------------------------------------------------------------------------------


@contextmanager
def room_for(name: str, what: str, device: str, need: int = 0) -> Iterator[None]:
    """Raise ModelLoadError if memory runs out in the block, which takes some for `what` of a model: at least `need` bytes (0: not known)."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        said = ". ".join(str(error).split(". ")[:2])  # torch goes on with advice on its allocator
        drop_frames(error)  # or what the block has made would count as used
        import torch

        where = torch.device("cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device)
        needs = f" of {need / _GIB:.1f} GiB" if need else ""
        raise ModelLoadError(
            f"{name}: too little memory for {what}{needs}: {where} has {free_memory(where) / _GIB:.1f} GiB free without; {said.rstrip('.')}; take a smaller "
            f"model, dtype, max_tokens or chunk, or free memory{open_engines()}"
        ) from None


@contextmanager
def all_or_nothing() -> Iterator[None]:
    """Keep nothing of a block that fails but its error: who has that, such as a notebook, has its frames, whose tensors are as large as
    what would have been made."""
    try:
        yield
    except BaseException as error:
        drop_frames(error)
        raise


def drop_frames(error: BaseException | None) -> None:
    """Drop the variables of all calls that an error and those before it have ended."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


_OPEN: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()  # what they are for people


def opened(engine: object, name: str) -> None:
    """Record an engine of this process, which has memory until it is closed."""
    _OPEN[engine] = name


def closed(engine: object) -> None:
    _OPEN.pop(engine, None)


def open_engines() -> str:
    """Return which engines of this process are open, and how to get their memory, as the end of a sentence; "" if there are none."""
    names = list(_OPEN.values())
    return f": this process has open {', '.join(names)}; close() gives its memory back" if names else ""
