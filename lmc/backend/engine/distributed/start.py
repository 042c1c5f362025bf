"""The start of a tensor-parallel engine: devices, ranks that load their parts beside rank 0, pools of one size, and the runner of all."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmc.backend.engine.distributed.crew import LIMIT_CPU, LIMIT_GPU, Crew
from lmc.backend.engine.kv_pool import KVPool
from lmc.backend.engine.memory import check_pool, default_pool
from lmc.backend.engine.models.loader import LoadedModel, load, local_source
from lmc.errors import ModelLoadError

if TYPE_CHECKING:
    from lmc.backend.engine.runner import Runner

log = logging.getLogger("lmc.engine")

_GIB = 1 << 30


@dataclass(frozen=True)
class Started:
    """The parts of an engine of several ranks. `topology`: the placement, for people."""

    loaded: LoadedModel
    pool: KVPool
    slots: int
    runner: Runner
    crew: Crew
    topology: tuple[str, ...]


def start(source: str, device: str, ranks: int, options: Mapping[str, Any], max_tokens: int | None) -> Started:
    """Start the ranks and load the model on all of them. Raises ModelLoadError; nothing is left running then."""
    devices = devices_of(device, ranks)
    on_gpu = devices[0] != "cpu"
    crew = Crew(devices, LIMIT_GPU if on_gpu else LIMIT_CPU, threads=max(1, _threads() // ranks))
    try:
        here = local_source(source)
        options = {**options, "source": here}
        alike = not here.endswith(".gguf") and here != "smollm2"
        if alike:
            crew.load(options)
        loaded = load(**options, device=devices[0], group=crew.group)
        if not alike:  # the first has converted it, if needed, and the others find the result
            crew.load(options)
        said = crew.loaded()
        slots = max_tokens or min(default_pool(loaded.device, loaded.kv_bytes, ranks), *(each["slots"] for each in said.values()))
        check_pool(slots, loaded.kv_bytes, loaded.device)
        pool = KVPool.of(loaded.layers, slots, loaded.kv_dtype, str(loaded.device))
        crew.begin(slots, loaded.device)
        from lmc.backend.engine.distributed.runner import leader

        runner = leader(loaded, pool, loaded.tokenizer.vocab_size, crew)
        crew.ready()
    except BaseException:  # also KeyboardInterrupt
        crew.close()
        raise
    memory = [(loaded.weight_bytes, loaded.kv_bytes)] + [(said[r]["weights"], said[r]["token"]) for r in sorted(said)]
    topology = tuple(_lines(loaded, devices, slots, memory))
    for line in topology:
        log.info("%s", line)
    return Started(loaded, pool, slots, runner, crew, topology)


def _threads() -> int:
    import torch

    return torch.get_num_threads() if torch.get_num_threads() > 0 else os.cpu_count() or 1


def devices_of(device: str, count: int) -> list[str]:
    """Return the devices of so many ranks or replicas: GPUs from the named one on; CPUs are one device. Raises
    ModelLoadError if there are fewer."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind, _, first = str(device).partition(":")
    if kind == "auto":
        kind = "cuda" if gpus else "cpu"
    if kind != "cuda":
        return [kind if kind == "cpu" and not first else str(device)] * count  # another name is refused where it is loaded
    begin = int(first or 0)
    if begin + count > gpus:
        raise ModelLoadError(
            f"device {device!r}: {count} GPUs are needed (tp × dp), from GPU {begin} on, and this machine has {gpus} that this process can use"
        )
    return [f"cuda:{begin + i}" for i in range(count)]


def _lines(loaded: LoadedModel, devices: list[str], slots: int, memory: list[tuple[int, int]]) -> list[str]:
    """Describe the sharding, and the memory of each rank."""
    from lmc.backend.engine.distributed.shares import shares

    assert loaded.share is not None
    kv = str(loaded.kv_dtype).removeprefix("torch.")
    parts = "attention by heads, MLPs by columns, the head by vocabulary; embedding and norms on every rank"
    found = [f"tp={len(devices)}: {parts}; a KV pool of {slots} tokens in {kv}"]
    for share, device, (weights, token) in zip(shares(loaded.share.whole, len(devices)), devices, memory, strict=True):
        heads, kv, inner = share.heads, share.kv_heads, share.inner
        found.append(
            f"rank {share.rank} on {device}: heads {_span(heads)} of q, {_span(kv)} of k and v, columns {_span(inner)}; "
            f"{weights / _GIB:.2f} GiB of weights, {slots * token / _GIB:.2f} GiB of KV"
        )
    return found


def _span(part: range) -> str:
    return f"{part.start}–{part.stop - 1}" if len(part) > 1 else str(part.start)
