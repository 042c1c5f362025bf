"""Times the engine alone: passes of the model against what the machine could do, and whole generation without programs.

    python -m benchmarks.bench_engine --model DIR --load-format dummy --device cuda      # all parts
    python -m benchmarks.bench_engine --parts decode,prefill --json out.json

decode    one of several passes in a row by batch and context, through the runner, each planned while the one before
          it runs as in the engine; against reading the weights and the KV once
prefill   prompts in chunks, in tokens per second, against the arithmetic of the weights
raw       256 prompts of random length, in and out, through the whole engine

The limits are computed from two ceilings measured first: a device-to-device copy and a large product of matrices.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

import numpy as np
import torch

import lmc
from benchmarks.workloads import text
from lmc.backend.engine.model_runner import ModelRunner
from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.request import Kind, Request
from lmc.backend.engine.work import Pass, Rows
from lmc.backend.local import Engine
from lmc.prompt import Gen, SamplingParams, Text

PARTS = ("decode", "prefill", "raw")
_IN_A_ROW = 8


@dataclass(frozen=True)
class Ceilings:
    """Measured: bytes per second of a copy (read plus written), operations per second of a product of matrices."""

    bandwidth: float
    flops: float


@dataclass(frozen=True)
class Row:
    """`value` is a median in `unit`; `limit` is what the ceilings allow; `ratio` is how much of it is reached."""

    part: str
    case: str
    value: float
    low: float
    high: float
    unit: str
    limit: float | None
    ratio: float | None


class Machine:
    """The device under test: how to wait for it, and what it could do."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.gpu = device.startswith("cuda")

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def times(self, action: Callable[[], object], reps: int, warmup: int = 3) -> list[float]:
        """Seconds of each of `reps` runs, after `warmup` untimed ones."""
        for _ in range(warmup):
            action()
        found: list[float] = []
        for _ in range(reps):
            self.wait()
            began = time.perf_counter()
            action()
            self.wait()
            found.append(time.perf_counter() - began)
        return found

    def ceilings(self, dtype: torch.dtype) -> Ceilings:
        size, side = (1 << 32, 8192) if self.gpu else (1 << 28, 1024)
        source = torch.empty(size, dtype=torch.uint8, device=self.device).random_()
        target = torch.empty_like(source)
        copy = min(self.times(lambda: target.copy_(source), 5))
        a, b = (torch.randn(side, side, device=self.device).to(dtype) for _ in range(2))
        product = min(self.times(lambda: a @ b, 5))
        return Ceilings(2 * size / copy, 2 * side**3 / product)


def weight_elements(c: ModelConfig) -> int:
    """Of the matrices that a pass multiplies by: the layers' and the head."""
    layer = (
        (c.q_size + 2 * c.kv_size) * c.hidden_size + c.q_size * c.hidden_size + 3 * c.intermediate_size * c.hidden_size
    )
    return c.num_layers * layer + c.vocab_size * c.hidden_size


# -- passes through the runner -----------------------------------------------------------------------------------------


def pass_of(spans: list[tuple[int, np.ndarray]], vocab: int, seed: int) -> Pass:
    """A pass with a span per (rows, slots): its last rows' logits are wanted."""
    rng = np.random.default_rng(seed)
    work = Pass()
    for rows, slots in spans:
        ids = rng.integers(0, vocab, rows).astype(np.int32)
        req = Request(Kind.PREFILL, ids, lambda _: None)
        work.add(Rows(req, ids, len(slots) - rows, slots))
    return work


def last_rows(work: Pass) -> list[int]:
    ends = np.cumsum([len(s.ids) for s in work.spans])
    return (ends - 1).tolist()


def decode(engine: Engine, machine: Machine, ceilings: Ceilings, reps: int) -> list[Row]:
    found: list[Row] = []
    c, runner, slots = _parts(engine)
    per_token = 2 * c.num_layers * c.kv_size * 2
    for context in (1024, 4096):
        for batch in (1, 8, 64, 256):
            if batch * context > slots:
                continue
            order = np.random.default_rng(batch).permutation(slots)[: batch * context].reshape(batch, context)
            work = pass_of([(1, own) for own in order], c.vocab_size, batch)
            wanted = last_rows(work)

            def passes(w: Pass = work, n: list[int] = wanted) -> None:
                for _ in range(_IN_A_ROW):
                    runner.logits(w, n).argmax(-1)

            with torch.inference_mode():
                times = [t / _IN_A_ROW for t in machine.times(passes, reps)]
            moved = weight_elements(c) * 2 + batch * context * per_token
            found.append(
                _row("decode", f"batch {batch}, context {context}", times, 1e3, "ms", moved / ceilings.bandwidth)
            )
    return found


def prefill(engine: Engine, machine: Machine, ceilings: Ceilings, reps: int) -> list[Row]:
    found: list[Row] = []
    c, runner, slots = _parts(engine)
    for rows, sequences in ((256, 1), (512, 1), (1024, 1), (2048, 1), (4096, 1), (2048, 8), (8192, 8)):
        if rows > slots:
            continue
        own = np.arange(rows).reshape(sequences, -1)
        work = pass_of([(rows // sequences, s) for s in own], c.vocab_size, rows)
        wanted = last_rows(work)
        with torch.inference_mode():
            times = machine.times(lambda w=work, n=wanted: runner.logits(w, n).argmax(-1).tolist(), reps)
        operations = 2 * (weight_elements(c) - c.vocab_size * c.hidden_size) * rows
        limit = max(operations / ceilings.flops, weight_elements(c) * 2 / ceilings.bandwidth)
        row = _row("prefill", f"{sequences} x {rows // sequences}", times, 1e3, "ms", limit)
        found += [
            row,
            Row(
                "prefill",
                row.case,
                rows / statistics.median(times),
                rows / max(times),
                rows / min(times),
                "tok/s",
                rows / limit,
                row.ratio,
            ),
        ]
    return found


def _parts(engine: Engine) -> tuple[ModelConfig, ModelRunner, int]:
    runner: Any = engine._core._runner
    return runner._model.config, runner, engine.server_info()["max_tokens"]


# -- the whole engine --------------------------------------------------------------------------------------------------


def raw(engine: Engine, machine: Machine, reps: int, n: int, longest: int) -> list[Row]:
    """`n` prompts of U(100, longest) words, each answered with U(100, longest) tokens, all at once."""
    times: list[float] = []
    made = total = 0
    for rep in range(reps + 1):
        rng = Random(f"raw/{rep}")
        asks = [(text(rng, rng.randint(100, longest)), rng.randint(100, longest)) for _ in range(n)]
        engine.flush_cache()
        began = time.perf_counter()
        handles = [
            engine.submit(
                None,
                [Text((words,)), Gen(SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True), seed=i)],
            )
            for i, (words, new) in enumerate(asks)
        ]
        outputs = [handle.results[0].output() for handle in handles]
        if rep:
            times.append(time.perf_counter() - began)
            made = sum(o.usage.completion_tokens for o in outputs)
            total = made + sum(o.usage.prompt_tokens for o in outputs)
    row = _row("raw", f"{n} prompts, U(100, {longest}) in and out", times, 1, "s", None)
    print(
        f"raw: {made / statistics.median(times):.0f} output tok/s, {total / statistics.median(times):.0f} total; {engine.stats()}"
    )
    return [row]


def _row(part: str, case: str, times: list[float], scale: float, unit: str, limit: float | None) -> Row:
    median = statistics.median(times)
    reached = None if limit is None else limit / median
    return Row(
        part,
        case,
        median * scale,
        min(times) * scale,
        max(times) * scale,
        unit,
        None if limit is None else limit * scale,
        reached,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--reps", type=int, default=10)
    parser.add_argument("--raw-reps", type=int, default=3)
    parser.add_argument("--raw-n", type=int, default=256)
    parser.add_argument("--raw-longest", type=int, default=1024)
    parser.add_argument("--max-batch", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--json")
    args = parser.parse_args()
    machine = Machine(args.device)
    began = time.perf_counter()
    engine = lmc.Engine(
        args.model, device=args.device, load_format=args.load_format, max_batch=args.max_batch, chunk=args.chunk
    )
    print(f"loaded in {time.perf_counter() - began:.1f} s: {engine.server_info()}")
    ceilings = machine.ceilings(torch.bfloat16 if machine.gpu else torch.float32)
    where = torch.cuda.get_device_name() if machine.gpu else platform.processor() or platform.machine()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout.strip() or os.environ.get("COMMIT", "?")
    print(
        f"{datetime.now(UTC):%Y-%m-%d} · {where} · commit {commit} · copy {ceilings.bandwidth / 1e12:.2f} TB/s · products {ceilings.flops / 1e12:.0f} TFLOP/s"
    )
    rows: list[Row] = []
    for part in args.parts.split(","):
        if part == "raw":
            rows += raw(engine, machine, args.raw_reps, args.raw_n, args.raw_longest)
        else:
            rows += {"decode": decode, "prefill": prefill}[part](engine, machine, ceilings, args.reps)
        show(rows[-100:] if part == PARTS[0] else [r for r in rows if r.part == part])
    if args.json:
        with open(args.json, "w") as file:
            json.dump(
                {"machine": where, "commit": commit, "ceilings": asdict(ceilings), "rows": [asdict(r) for r in rows]},
                file,
                indent=1,
            )
    engine.close()


def show(rows: list[Row]) -> None:
    for r in rows:
        limit = "" if r.limit is None else f"{r.limit:12.2f} {r.ratio:6.0%}"
        print(f"{r.part:8} {r.case:28} {r.value:12.2f} ({r.low:.2f}–{r.high:.2f}) {r.unit:6}{limit}", flush=True)


if __name__ == "__main__":
    main()
