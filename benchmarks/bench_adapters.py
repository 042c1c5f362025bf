"""The cost of LoRA adapters: answers of a batch without any, with one, and with as many as there are, in turns; on a CPU by processor seconds.

    python -m benchmarks.bench_adapters [--adapters 4] [--rank 16] [--batches 1,8,64] [--tokens 32] [--reps 3]
    python -m benchmarks.bench_adapters --model DIR --load-format dummy --device cuda --tokens 128

Adapters are random, of all matrices of all layers. *without* is an engine that has none; the other columns are one engine with all of them: answers of the
model itself, of one adapter, and of each adapter in turn, as multiples of *without*; on a GPU with the time of a pass on it. `--launches`: also the kernels of
a pass.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import lmc
from benchmarks.bench_deterministic import prompt
from benchmarks.bench_programs import where
from lmc.segments import Gen, SamplingParams, Text


def write(folder: Path, config: Any, rank: int, seed: int) -> Path:
    """Write a random adapter, as PEFT does."""
    import torch
    from safetensors.torch import save_file

    c, width, made, state = config, config.hidden_size, torch.Generator().manual_seed(seed), dict[str, Any]()
    shapes = {
        "self_attn.q_proj": (c.q_size, width), "self_attn.k_proj": (c.kv_size, width), "self_attn.v_proj": (c.kv_size, width),
        "self_attn.o_proj": (width, c.q_size), "mlp.gate_proj": (c.intermediate_size, width), "mlp.up_proj": (c.intermediate_size, width),
        "mlp.down_proj": (width, c.intermediate_size),
    }  # fmt: skip
    for layer in range(c.num_layers):
        for name, (rows, columns) in shapes.items():
            whole = f"base_model.model.model.layers.{layer}.{name}.lora_"
            state[f"{whole}A.weight"] = torch.randn(rank, columns, generator=made) * columns**-0.5
            state[f"{whole}B.weight"] = torch.randn(rows, rank, generator=made) * 0.01
    folder.mkdir(parents=True)
    targets = [name.split(".")[1] for name in shapes]
    told = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": targets, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    save_file(state, folder / "adapter_model.safetensors")
    return folder


def seconds(engine: lmc.Engine, adapters: Sequence[str], batch: int, tokens: int, words: int, turn: int) -> tuple[float, float, float]:
    """Wall and processor seconds of so many answers together, of the adapters one after another, and milliseconds of a pass on the device; `turn` makes their
    prompts new."""
    before, began, used = engine.counters(), time.perf_counter(), time.process_time()
    handles: list[Any] = []
    for i in range(batch):
        params = SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True, adapter=adapters[i % len(adapters)])
        handles.append(engine.submit(None, [Text((f"{turn} {i} {prompt(words)}",)), Gen(params)]))
    for handle in handles:
        handle.results[0].output()
    after = engine.counters()
    on_device = 1e3 * (after.device_seconds - before.device_seconds) / (after.passes - before.passes)
    return time.perf_counter() - began, time.process_time() - used, on_device


def launches(engine: lmc.Engine, adapters: Sequence[str], batch: int, words: int, turn: int) -> float:
    """Kernels of a pass, of short answers."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    before = engine.counters().passes
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        seconds(engine, adapters, batch, 16, words, turn)
    kernels = [e for e in seen.events() or () if e.device_type == DeviceType.CUDA and not e.name.startswith(("Memcpy", "Memset"))]
    return len(kernels) / (engine.counters().passes - before)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--quantization", choices=("fp8",))
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--words", type=int, default=24, help="of a prompt")
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--launches", action="store_true", help="count the kernels of a pass, on a GPU")
    args = parser.parse_args(argv)
    batches = [int(batch) for batch in args.batches.split(",")]
    room = 2 * max(batches) * (2 * args.words + args.tokens + 128)
    options = {"device": args.device, "load_format": args.load_format, "quantization": args.quantization, "max_tokens": room}
    names = [f"a{i}" for i in range(args.adapters)]
    without = lmc.Engine(args.model, **options)
    runner: Any = without._core._runner
    with tempfile.TemporaryDirectory() as folder:
        written = {name: str(write(Path(folder) / name, runner._model.config, args.rank, i)) for i, name in enumerate(names)}
        engine = lmc.Engine(args.model, **options, adapters=written)
    ways = [(without, [""]), (engine, [""]), (engine, names[:1]), (engine, names)]
    info = {**where(), "load": f"{os.getloadavg()[0]:.1f}", "model": args.model, "adapters": f"{args.adapters} of rank {args.rank}"}
    print("  ".join(f"{k}: {v}" for k, v in info.items()))
    print("| batch | without: s, CPU s | the model itself | one adapter | all of them |\n|---|---|---|---|---|", flush=True)
    turn = 0
    for batch in batches:
        found: list[list[tuple[float, float, float]]] = [[] for _ in ways]
        for rep in range(args.reps + 1):
            turn += 1
            for runs, (which, adapters) in zip(found, ways, strict=True):
                ran = seconds(which, adapters, batch, args.tokens, args.words, turn)
                if rep:  # the first is a warm-up
                    runs.append(ran)
        (wall, cpu, ms), *rest = [tuple(median(each) for each in zip(*runs, strict=True)) for runs in found]
        shown = [f"{c / cpu:.2f} ×" if args.device == "cpu" else f"{w / wall:.2f} ×, {m:.2f} ms" for w, c, m in rest]
        print(f"| {batch} | {wall:.3f}, {cpu:.2f}{'' if args.device == 'cpu' else f', {ms:.2f} ms'} | {' | '.join(shown)} |", flush=True)
    for batch in batches if args.launches else ():
        turn += 1
        print(f"kernels of a pass at batch {batch}: {', '.join(f'{launches(*way, batch, args.words, turn):.0f}' for way in ways)}", flush=True)
    without.close()
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
