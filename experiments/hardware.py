"""Experiments that need more than a CPU: several GPUs, pictures, energy."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import workloads
from benchmarks.workloads import Size, Workload, figures
from experiments.core import SYNTHETIC, Plot, Point, Row, Setup, Unmeasured, experiment, measured
from lmc.measuring import compiled, interpreted, measure


def _devices(setup: Setup) -> int:
    if not setup.device.startswith("cuda"):
        raise Unmeasured("needs GPUs: give --device cuda")
    import torch

    return torch.cuda.device_count()


@experiment(
    "scaling", "How much faster are more GPUs?", Plot("Programs a second", "gpus", "programs/s", "workload · how", kind="lines"),
    reads="tp: each layer on all GPUs; dp: an engine on each GPU, with as many times the items.", paper="Figure 7: larger models with tensor parallelism",
    lacks=SYNTHETIC,
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


@experiment(
    "energy", "How many joules does a program take?", Plot("Joules a program", "workload", "J/program"), reads="The GPU's own counter (NVML), idle power "
                                                                                                               "included, over a compiled batch.",
    lacks=SYNTHETIC,
)  # fmt: skip
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
    reads="One picture a program, and six questions by fork. The vision tower looks at a picture once. The small model sees no pictures: in its place stands "
          "a LLaVA of three layers with "
    "random weights, made here; figures of its speed mean little, counters hold.", paper="Table 2: LLaVA, multi-modal benchmarks", lacks=SYNTHETIC,
)  # fmt: skip
def pictures(setup: Setup) -> Generator[Point]:
    for cache in ("tree", "off"):
        yield Point(cache, lambda cache=cache: _pictures(setup, cache))


def _pictures(setup: Setup, cache: str) -> Row:
    workload = workloads.pictures(Size(setup.scale))
    items = workload.items(setup.count(workload.n), setup.seed)
    with _seeing(setup) as (model, seeing), closing(seeing.engine(cache=cache)) as engine:
        if not engine.capabilities.images:
            raise Unmeasured(f"{setup.backend} sees no pictures: give a vision model by --backend (docs/images.md names the families)")
        way = compiled(workload.program)
        measure(way, workload.items(1, setup.seed - 1), engine)
        runs = [measure(way, items, engine) for _ in range(setup.reps)]
        found, spent = measured(runs, [measure(interpreted(workload.program), items, engine)]), runs[-1].counters
    return {"model": model, "cache": cache, **found, "programs/s": len(items) / found["seconds"], "prompt": spent.prompt_tokens,
        "computed": spent.prefilled_tokens,
            "images": spent.images, "image hits": spent.image_hits, "tower s": spent.tower_seconds, "optimality": spent.prefill_optimality}  # fmt: skip


@contextmanager
def _seeing(setup: Setup) -> Generator[tuple[str, Setup]]:
    """The model that sees pictures: the one that is measured, or a small one in the place of the small model."""
    if setup.backend != Setup.backend:
        yield setup.backend, setup
        return
    from benchmarks.bench_pictures import folder

    with TemporaryDirectory() as made:
        yield "tiny LLaVA", replace(setup, backend=str(folder("tiny", Path(made))), load_format="dummy")
