"""Experiments that need more than a CPU: several GPUs, pictures, energy."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from random import Random
from typing import Any

from benchmarks.workloads import Size, Workload, figures
from experiments.core import Plot, Point, Row, Setup, Unmeasured, experiment, measured
from lmc.measuring import compiled, interpreted, measure


def _devices(setup: Setup) -> int:
    if not setup.device.startswith("cuda"):
        raise Unmeasured("needs GPUs: give --device cuda")
    import torch

    return torch.cuda.device_count()


@experiment(
    "scaling", "How much faster are more GPUs?", Plot("Programs a second", "gpus", "programs/s", "workload · how", kind="lines"),
    reads="tp: each layer on all GPUs; dp: an engine on each GPU, with as many times the items.", paper="Figure 7: larger models with tensor parallelism",
)  # fmt: skip
def scaling(setup: Setup) -> Generator[Point]:
    _devices(setup)
    for workload in figures(Size(setup.scale)):
        for how in ("tp", "dp"):
            for gpus in (1, 2, 4, 8):
                yield Point(f"{workload.name} {how}={gpus}", lambda workload=workload, how=how, gpus=gpus: _scaled(setup, workload, how, gpus))


def _scaled(setup: Setup, workload: Workload, how: str, gpus: int) -> Row:
    if (there := _devices(setup)) < gpus:
        raise Unmeasured(f"needs {gpus} GPUs; {there} are here")
    items = workload.items(setup.count(workload.n) * (gpus if how == "dp" else 1), setup.seed)
    with closing(setup.engine(**({how: gpus} if gpus > 1 else {}))) as engine:
        way = compiled(workload.program)
        measure(way, items[:2], engine)
        found = measured([measure(way, items, engine) for _ in range(setup.reps)], [measure(interpreted(workload.program), items, engine)])
    return {"workload": workload.name, "how": how, "gpus": gpus, **found, "programs/s": len(items) / found["seconds"]}


@experiment("energy", "How many joules does a program take?", Plot("Joules a program", "workload", "J/program"), reads="The GPU's own counter (NVML), idle power included, over a compiled batch.")
def energy(setup: Setup) -> Generator[Point]:
    _devices(setup)
    for workload in figures(Size(setup.scale)):
        yield Point(workload.name, lambda workload=workload: _joules(setup, workload))


def _joules(setup: Setup, workload: Workload) -> Row:
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise Unmeasured("needs the package nvidia-ml-py, which reads the GPU's counter of energy: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(int(setup.device.partition(":")[2] or 0))
    except pynvml.NVMLError as error:
        raise Unmeasured(f"the counter of energy of {setup.device} cannot be read ({error})") from None
    with closing(setup.engine()) as engine:
        way = compiled(workload.program)
        measure(way, workload.items(2, setup.seed - 1), engine)
        items = workload.items(setup.count(workload.n), setup.seed)
        before = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
        runs = [measure(way, items, engine) for _ in range(setup.reps)]
        joules = (pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - before) / 1e3
    seconds, tokens = sum(run.seconds for run in runs), sum(run.counters.generated_tokens for run in runs)
    return {"workload": workload.name, **measured(runs), "J/program": joules / len(items) / setup.reps, "J/token": joules / tokens, "W": joules / seconds,
            "programs/s": len(items) * setup.reps / seconds}  # fmt: skip


@experiment(
    "pictures", "How many pictures a second, with several questions about each?", Plot("Programs a second", "cache", "programs/s"),
    reads="One picture a program, and six questions by fork. The vision tower looks at a picture once.", paper="Table 2: LLaVA, multi-modal benchmarks",
)  # fmt: skip
def pictures(setup: Setup) -> Generator[Point]:
    for cache in ("tree", "off"):
        yield Point(cache, lambda cache=cache: _pictures(setup, cache))


def _pictures(setup: Setup, cache: str) -> Row:
    import lmc
    from examples.picture_judge import gradient

    asked = ("What is it?", "Where is it light?", "Is it a photograph?", "How large is it?", "Which colour is it?", "What is missing?")
    tokens = Size(setup.scale).tokens(16)

    @lmc.function
    def look(s: Any, picture: bytes) -> list[str]:
        s += lmc.user(lmc.image(picture) + "Answer briefly.")
        forks = s.fork(len(asked))
        for fork, question in zip(forks, asked):
            fork += lmc.user(question) + lmc.assistant(lmc.gen("answer", max_tokens=tokens))
        return [fork["answer"] for fork in forks]

    rng = Random(setup.seed)
    items = [{"picture": gradient(rng.randint(48, 160), rng.randint(48, 160))} for _ in range(setup.count(64))]
    with closing(setup.engine(cache=cache)) as engine:
        if not engine.capabilities.images:
            raise Unmeasured(f"{setup.backend} sees no pictures: give a vision model by --backend (docs/images.md names the families)")
        way = compiled(look)
        measure(way, items[:1], engine)
        runs = [measure(way, items, engine) for _ in range(setup.reps)]
        found, spent = measured(runs, [measure(interpreted(look), items, engine)]), runs[-1].counters
    return {"cache": cache, **found, "programs/s": len(items) / found["seconds"],
            "images": spent.images, "image hits": spent.image_hits, "tower s": spent.tower_seconds, "optimality": spent.prefill_optimality}  # fmt: skip
