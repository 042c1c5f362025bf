"""Several devices against one: sums between ranks by size, decode passes at batch 1 and 64, prefill, the first token, the throughput of
replicas, and programs.

    python -m benchmarks.bench_gpus --model DIR --load-format dummy --device cuda --tp 1,2 --dp 1,2 --json out.json
    python -m benchmarks.bench_gpus --model DIR --load-format dummy --device cuda --tp 2 --dp 0 --programs react,judge,json --n 0.25x
    python -m benchmarks.bench_gpus --device cpu --tp 1,2 --dp 1 --batches 1,4 --new 16 --prompt 64      # that it runs; its times say nothing

Each engine is started, measured and closed, one after the other, with the same prompts of random tokens, so nothing is cached; a decode pass
is what the device took for it (server and client are one process). Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bench_programs import bench, choose, count
from benchmarks.workloads import Size
from lmc.backend.engine.distributed.group import RankGroup, without_multicast
from lmc.backend.engine.distributed.peer_memory import PartialSum
from lmc.backend.local_model import Engine
from lmc.segments import Gen, SamplingParams, Text

SIZES = (8 << 10, 512 << 10, 16 << 20)  # bytes
ROWS = (1, 8, 64, 128, 256, 512, 1024, 2048, 4096)
_FIRST = 1024  # tokens of the prompt whose first token is timed
_COLUMNS, _SUMS = 4096, 32  # of the sums with residual and norm; how many in a graph


@dataclass(frozen=True)
class Row:
    """One figure. `spread`: half the distance between the quartiles of the repetitions, of programs half their range, in the same unit."""

    case: str
    ranks: str
    median: float
    spread: float
    unit: str


# -- sums between ranks ------------------------------------------------------------------------------------------------------


def sums(device: str, ranks: int) -> list[Row]:
    """Processes of their own, of which the first prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.bench_gpus", "--rank", folder, str(ranks), device]
        started = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(ranks)]
        said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a rank failed; what it printed is above")
    return [Row(case, f"tp={ranks}", seconds * 1e6, 0.0, "µs") for case, seconds in json.loads(said[0]).items()]


def measure_sums(folder: str, ranks: str, device: str, rank: str) -> None:
    without_multicast()
    here = torch.device(device if device == "cpu" else f"cuda:{rank}")
    torch.set_num_threads(1)
    if device != "cpu":
        torch.cuda.set_device(here)  # Triton launches on the current one
    group = RankGroup(int(rank), int(ranks), 60.0)
    group.connect(torch.distributed.FileStore(str(Path(folder) / "store"), group.ranks), here)
    found = {f"sum of {size >> 10} kB": seconds for size, seconds in seconds_of(group, here).items()}
    if device != "cpu":
        found |= measure_norms(group, here)
    if rank == "0":
        print(json.dumps(found), flush=True)
    os._exit(0)


def seconds_of(group: RankGroup, device: torch.device, rounds: int = 20) -> dict[int, float]:
    """Seconds of a sum of so many bytes, float16, the median of several; all ranks must do this at once."""
    found = dict[int, float]()
    for size in SIZES:
        x, times = torch.zeros(size // 2, dtype=torch.float16, device=device), list[float]()
        for _ in range(rounds):
            began = time.perf_counter()
            group.sum(x)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - began)
        found[size] = sorted(times)[rounds // 2]
    return found


def measure_norms(group: RankGroup, device: torch.device) -> dict[str, float]:
    """Seconds of a sum, the residual addition and the norm in a graph: NCCL's, lmc's, and the norm alone."""
    from benchmarks.bench_fp8 import microseconds
    from lmc.backend.engine.kernels.norm import add_rms_norm

    group.share_memory(max(ROWS), _COLUMNS, device)
    weight, found = torch.ones(_COLUMNS, dtype=torch.bfloat16, device=device), dict[str, float]()
    for rows in ROWS:
        x, residual = (torch.randn(rows, _COLUMNS, device=device).bfloat16() for _ in range(2))
        ways: dict[str, Callable[[int], Any]] = {
            "NCCL and norm": lambda _, x=x, rest=residual: add_rms_norm(group.sum(x), rest, weight, 1e-5),
            "norm alone": lambda _, x=x, rest=residual: add_rms_norm(x, rest, weight, 1e-5),
        }
        if (peers := group.peers) is not None and rows <= peers.rows:
            for turn in range(8):
                x = torch.randn(rows, _COLUMNS, device=device).bfloat16()
                first, second = residual.clone(), residual.clone()
                ours = PartialSum(peers, turn % 2, x).add_rms_norm(first, weight, 1e-5)
                theirs = add_rms_norm(group.sum(x), second, weight, 1e-5)
                torch.testing.assert_close((ours, first), (theirs, second), atol=0.05, rtol=0.02)
            ways["lmc's kernel"] = lambda turn, x=x, rest=residual, peers=peers: PartialSum(peers, turn, x).add_rms_norm(rest, weight, 1e-5)
        for name, way in ways.items():
            with torch.inference_mode():  # turns 0 and 1 follow each other
                found[f"{rows} × {_COLUMNS}, {name}"] = microseconds(lambda way=way: [way(i % 2) for i in range(_SUMS)], _SUMS, 20) / 1e6
    return found


# -- engines ------------------------------------------------------------------------------------------------------------------


def prompts(engine: Any, count: int, length: int, seed: int) -> list[Text]:
    """Of words that begin differently; hardly fewer than `length` tokens each, and not more."""
    rng, words = np.random.default_rng(seed), [f" {chr(97 + i)}{chr(97 + j)}" for i in range(26) for j in range(26)]
    found = []
    for i in range(count):
        text = longer = f"{seed} {i}"
        while engine.count_tokens(longer) <= length:
            text, longer = longer, longer + "".join(rng.choice(words, 4))
        found.append(Text((text,)))
    return found


def asked(engine: Any, texts: list[Text], new: int) -> float:
    """Seconds until all have their answers."""
    began = time.perf_counter()
    params = SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True)
    for handle in [engine.submit(None, [text, Gen(params)]) for text in texts]:
        handle.results[0].output()
    return time.perf_counter() - began


def tensor_parallel(args: argparse.Namespace, tp: int) -> list[Row]:
    rows = list[Row]()
    with Engine(args.model, device=args.device, load_format=args.load_format, tp=tp) as engine:
        engine.warm_up()
        asked(engine, prompts(engine, max(args.batches), 8, 0), 4)
        for batch in args.batches:
            times = []
            for rep in range(args.reps):
                before = engine.counters()
                asked(engine, prompts(engine, batch, 8, rep + 1), args.new)
                spent = engine.counters() - before
                times.append(1e3 * spent.device_seconds / spent.passes)
            rows.append(_row(f"decode pass, batch {batch}", f"tp={tp}", times, "ms"))
        times = []
        for rep in range(args.reps):
            texts = prompts(engine, 1, args.prompt, 100 + rep)
            tokens = engine.count_tokens(texts[0].parts[0])  # type: ignore[arg-type]
            times.append(tokens / asked(engine, texts, 1))
        rows.append(_row(f"prefill of {args.prompt} tokens", f"tp={tp}", times, "tokens/s"))
        times = [1e3 * asked(engine, prompts(engine, 1, _FIRST, 200 + rep), 1) for rep in range(args.reps)]
        rows.append(_row(f"first token behind {_FIRST} tokens", f"tp={tp}", times, "ms"))
        rows += programs(args, engine, f"tp={tp}")
    return rows


def replicated(args: argparse.Namespace, dp: int) -> list[Row]:
    with Engine(args.model, device=args.device, load_format=args.load_format, dp=dp) as engine:
        engine.warm_up()
        asked(engine, prompts(engine, 4 * dp, 8, 0), 4)
        times = []
        for rep in range(args.reps):
            count = max(args.batches) * dp
            times.append(count * args.new / asked(engine, prompts(engine, count, 32, rep + 1), args.new))
        row = _row(f"throughput, {max(args.batches)} answers a replica", f"dp={dp}", times, "tokens/s")
        return [row, *programs(args, engine, f"dp={dp}")]


def programs(args: argparse.Namespace, engine: Engine, ranks: str) -> list[Row]:
    """Compiled, `--n` of each workload."""
    if not args.programs:
        return []
    rows = list[Row]()
    for workload in choose(args.programs, Size(1.0)):
        n = args.n(workload.n) if args.n else workload.n
        (found,) = bench(workload, engine, ["compiled"], n, args.reps, 0)
        rows.append(Row(f"{workload.name} × {n}", ranks, found.median_s, (found.max_s - found.min_s) / 2, "s"))
    return rows


def _row(case: str, ranks: str, values: list[float], unit: str) -> Row:
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return Row(case, ranks, median, (high - low) / 2, unit)


# -- the table ----------------------------------------------------------------------------------------------------------------


def _numbers(listed: str) -> list[int]:
    return [number for number in map(int, listed.split(",")) if number]


def _machine() -> str:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{len(gpus)} × {gpus[0]}" if gpus else f"{platform.machine()}, {os.cpu_count()} cores"


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        return measure_sums(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tp", type=_numbers, default=[1, 2])
    parser.add_argument("--dp", type=_numbers, default=[1, 2], help="0: none")
    parser.add_argument("--batches", type=_numbers, default=[1, 64])
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--programs", default="", help="workloads of bench_programs, separated by commas, or all")
    parser.add_argument("--n", type=count, help="items of each (default: its own), or a factor on its own: 0.25x, 2x")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    kind = "cpu" if args.device == "cpu" or not torch.cuda.is_available() else "cuda"
    rows = list[Row]()
    for some in chain((sums(kind, tp) for tp in args.tp if tp > 1), (tensor_parallel(args, tp) for tp in args.tp), (replicated(args, dp) for dp in args.dp)):
        for row in some:
            print(f"{row.case:<44} {row.ranks:>6} {row.median:>12.2f} ± {row.spread:<8.2f} {row.unit}", flush=True)
        rows += some
        gc.collect()
        if kind == "cuda":
            torch.cuda.empty_cache()  # replicas are other processes
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False).stdout.strip()
    about = f"{datetime.now(UTC):%Y-%m-%d} · {_machine()} · {args.model} · commit {commit}"
    print(about)
    if args.json:
        args.json.write_text(json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1))


if __name__ == "__main__":
    main()
