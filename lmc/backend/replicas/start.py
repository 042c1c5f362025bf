"""The start of replicas: devices, processes that load beside each other, and the model data needed by the program's
side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmc.backend.replicas.backend import Replicas
from lmc.backend.replicas.process import Process
from lmc.errors import ParameterError


def start(model: str, count: int, options: Mapping[str, Any]) -> Replicas:
    """Start `count` engines with these options of lmc.Engine, which has checked them. Raises ModelLoadError if one does not start; nothing is
    left running then."""
    import torch

    from lmc.backend.engine.distributed.start import devices_of
    from lmc.backend.engine.models.loader import local_source, words

    for name, value in options.items():
        if name != "adapters" and not isinstance(value, str | int | float | bool | None):
            raise ParameterError(f"Engine: {name} is {value!r}; with dp more than 1 it must be text, a number or None")
    tp = options.get("tp", 1)
    source = local_source(str(options.get("model_path") or model))
    tokenizer, whole_template = words(source, parse_special=bool(options.get("parse_special", False)))
    devices = devices_of(str(options.get("device", "auto")), count * tp)
    threads = max(1, torch.get_num_threads() // count)
    processes = list[Process]()
    try:
        for i in range(count):
            own = {**options, "model": source, "model_path": None, "device": devices[i * tp]}
            processes.append(Process(i, own, threads))
        return Replicas(processes, tokenizer, whole_template)
    except BaseException:  # also KeyboardInterrupt
        for process in processes:
            process.kill()
        raise
