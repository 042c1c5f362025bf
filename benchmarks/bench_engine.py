"""Times the engine alone: passes of the model against what the machine could do, and whole generation without programs.

    python -m benchmarks.bench_engine --model DIR --load-format dummy --device cuda      # all parts
    python -m benchmarks.bench_engine --parts decode,prefill --json out.json
    python -m benchmarks.bench_engine --device cpu --batches 1,8 --contexts 256 --raw-n 8 --raw-longest 100    # minutes

decode    one of several passes in a row by batch and context, through the runner, each planned while the one before
          it runs as in the engine; against reading the weights and the KV once
shared    the same where all of a batch share a prefix as long as the context, and have 256 tokens of their own; against
          reading the prefix once
prefill   prompts in chunks, in tokens per second, against the arithmetic of the weights
raw       256 prompts of random length, in and out, through the whole engine; and what it counted

The limits are computed from two ceilings measured first: a device-to-device copy and a large product of matrices in bfloat16 (also for
`--quantization fp8`, whose products may be faster than that).
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
from lmc.backend.engine.forward_batch import ModelPass, Rows
from lmc.backend.engine.kv_pool import KVPool
from lmc.backend.engine.model_runner import ModelRunner
from lmc.backend.engine.models.config import ModelConfig
from lmc.backend.engine.models.fp8 import Fp8
from lmc.backend.engine.radix_cache import Node, RadixCache
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.local_model import Engine
from lmc.segments import Gen, SamplingParams, Text

PARTS = ("decode", "shared", "prefill", "raw")
_OWN = 256  # tokens of each sibling behind a shared prefix
_SHORTEST = 100  # words of a raw prompt, and tokens of its answer


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
        self.in_a_row = 8 if self.gpu else 1  # passes of a run: only a device works while the next one is planned

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def times(self, action: Callable[[], object], reps: int) -> list[float]:
        """Seconds of each of `reps` runs, after untimed ones."""
        for _ in range(3 if self.gpu else 1):
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


def weight_bytes(engine: Engine) -> int:
    """Of the same, in bfloat16, or in FP8 but for the head."""
    c, runner = _parts(engine)
    head = c.vocab_size * c.hidden_size
    small = isinstance(runner._model.layers[0].qkv, Fp8)  # pyright: ignore[reportAttributeAccessIssue]
    return 2 * head + (weight_elements(c) - head) * (1 if small else 2)


# -- passes through the runner -----------------------------------------------------------------------------------------


def pass_of(spans: list[tuple[int, np.ndarray]], vocab: int, seed: int) -> ModelPass:
    """A pass with a span per (rows, slots): its last rows' logits are wanted."""
    rng = np.random.default_rng(seed)
    work = ModelPass()
    for rows, slots in spans:
        ids = rng.integers(0, vocab, rows).astype(np.int32)
        req = Request(RequestKind.PREFILL, ids, lambda _: None)
        work.add(Rows(req, ids, len(slots) - rows, slots))
    return work


def last_rows(work: ModelPass) -> list[int]:
    ends = np.cumsum([len(s.ids) for s in work.spans])
    return (ends - 1).tolist()


def decode(engine: Engine, machine: Machine, ceilings: Ceilings, args: argparse.Namespace) -> list[Row]:
    found: list[Row] = []
    slots = engine.server_info()["max_tokens"]
    for context in args.contexts:
        for batch in args.batches:
            if batch * context <= slots:
                own = np.random.default_rng(batch).permutation(slots)[: batch * context].reshape(batch, context)
                case = f"batch {batch}, context {context}"
                found.append(_decode("decode", case, engine, machine, ceilings, list(own), batch * context, args.reps))
    return found


def shared(engine: Engine, machine: Machine, ceilings: Ceilings, args: argparse.Namespace) -> list[Row]:
    found: list[Row] = []
    slots = engine.server_info()["max_tokens"]
    for prefix in args.contexts:
        for batch in args.batches:
            if batch > 1 and (read := prefix + batch * _OWN) <= slots:
                order = np.random.default_rng(batch).permutation(slots)[:read]
                contexts = [np.concatenate((order[:prefix], own)) for own in order[prefix:].reshape(batch, _OWN)]
                tree = RadixCache()  # where the runner sees what they have in common
                node = tree.insert(tree.root, np.arange(prefix, dtype=np.int32), order[:prefix]).node
                case = f"batch {batch}, prefix {prefix}"
                found.append(_decode("shared", case, engine, machine, ceilings, contexts, read, args.reps, node))
    return found


def _decode(
    part: str,
    case: str,
    engine: Engine,
    machine: Machine,
    ceilings: Ceilings,
    contexts: list[np.ndarray],
    read: int,
    reps: int,
    node: Node | None = None,
) -> Row:
    """A pass with one row behind each context; `read`: tokens whose KV it has to read; `node`: where what all share ends."""
    c, runner = _parts(engine)
    work = pass_of([(1, slots) for slots in contexts], c.vocab_size, len(contexts))
    wanted = last_rows(work)
    for span in work.spans:
        span.request.node = node

    def passes() -> None:
        for _ in range(machine.in_a_row):
            runner.logits(work, wanted).argmax(-1)

    with torch.inference_mode():
        times = [t / machine.in_a_row for t in machine.times(passes, reps)]
    pool = runner._kv
    assert isinstance(pool, KVPool)
    moved = weight_bytes(engine) + read * sum(store[0].nbytes for store in pool.tensors())
    return _row(part, case, times, 1e3, "ms", moved / ceilings.bandwidth)


def prefill(engine: Engine, machine: Machine, ceilings: Ceilings, args: argparse.Namespace) -> list[Row]:
    found: list[Row] = []
    slots = engine.server_info()["max_tokens"]
    c, runner = _parts(engine)
    for rows, sequences in ((256, 1), (512, 1), (1024, 1), (2048, 1), (4096, 1), (2048, 8), (8192, 8)):
        if rows > min(slots, max(args.contexts) * sequences):
            continue
        own = np.arange(rows).reshape(sequences, -1)
        work = pass_of([(rows // sequences, s) for s in own], c.vocab_size, rows)
        wanted = last_rows(work)
        with torch.inference_mode():
            times = machine.times(lambda w=work, n=wanted: runner.logits(w, n).argmax(-1).tolist(), args.reps)
        operations = 2 * (weight_elements(c) - c.vocab_size * c.hidden_size) * rows
        limit = max(operations / ceilings.flops, weight_bytes(engine) / ceilings.bandwidth)
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


def _parts(engine: Engine) -> tuple[ModelConfig, ModelRunner]:
    runner: Any = engine._core._runner
    return runner._model.config, runner


# -- the whole engine --------------------------------------------------------------------------------------------------


def raw(engine: Engine, machine: Machine, ceilings: Ceilings, args: argparse.Namespace) -> list[Row]:
    """`raw_n` prompts of U(100, raw_longest) words, each answered with U(100, raw_longest) tokens, all at once."""
    times: list[float] = []
    n, longest = args.raw_n, args.raw_longest
    shortest = min(_SHORTEST, longest)
    before, host = engine.counters(), 0.0
    for rep in range(args.raw_reps + 1):
        rng = Random(f"raw/{rep}")
        asks = [(text(rng, rng.randint(shortest, longest)), rng.randint(shortest, longest)) for _ in range(n)]
        engine.flush_cache()
        if rep == 1:  # the first was to warm up
            before, host = engine.counters(), engine.stats()["host_seconds"]
        began = time.perf_counter()
        handles = [
            engine.submit(
                None,
                [Text((words,)), Gen(SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True), seed=i)],
            )
            for i, (words, new) in enumerate(asks)
        ]
        for handle in handles:
            handle.results[0].output()
        if rep:
            times.append(time.perf_counter() - began)
    counted = engine.counters() - before
    seconds, host = sum(times), engine.stats()["host_seconds"] - host

    def told(case: str, value: float, unit: str) -> Row:
        """Over all repetitions."""
        return Row("raw", case, value, value, value, unit, None, None)

    return [
        _row("raw", f"{n} prompts, U({shortest}, {longest})", times, 1, "s", None),
        told("output", counted.generated_tokens / seconds, "tok/s"),
        told("in and out", (counted.prompt_tokens + counted.generated_tokens) / seconds, "tok/s"),
        told("passes", counted.passes / len(times), ""),
        told("rows of a pass", counted.rows / counted.passes, ""),
        told("computed of unique prompt tokens", counted.prefilled_tokens / max(1, counted.unique_tokens), ""),
        told("preemptions", counted.preemptions, ""),
        told("host beside a pass", host / counted.passes * 1e6, "µs"),
        told("device idle", max(0.0, 1 - counted.device_seconds / seconds) * 100, "%"),
    ]


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


_RUN = {"decode": decode, "shared": shared, "prefill": prefill, "raw": raw}


def _numbers(listed: str) -> list[int]:
    return [int(number) for number in listed.split(",")]


def _positive(number: str) -> int:
    if int(number) < 1:
        raise ValueError
    return int(number)


def _of_parts(listed: str) -> list[str]:
    if unknown := set(parts := listed.split(",")) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--load-format", default="auto", choices=("auto", "dummy"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quantization", choices=("fp8",))
    parser.add_argument("--kv-dtype", choices=("fp8",))
    parser.add_argument("--parts", type=_of_parts, default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--batches", type=_numbers, default=[1, 8, 64, 256], help="sequences that decode together")
    parser.add_argument("--contexts", type=_numbers, default=[1024, 4096], help="tokens before them, and of prefixes")
    parser.add_argument("--reps", type=_positive, default=10)
    parser.add_argument("--raw-reps", type=_positive, default=3)
    parser.add_argument("--raw-n", type=_positive, default=256)
    parser.add_argument("--raw-longest", type=_positive, default=1024)
    parser.add_argument("--max-batch", type=_positive, default=512)
    parser.add_argument("--chunk", type=_positive, help="rows of a pass (default: the engine's)")
    parser.add_argument("--json", help="write the rows to this file, after each part")
    args = parser.parse_args()
    machine = Machine(args.device)
    began = time.perf_counter()
    engine = lmc.Engine(
        args.model, device=args.device, load_format=args.load_format, max_batch=args.max_batch, chunk=args.chunk,
        quantization=args.quantization, kv_dtype=args.kv_dtype,
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
    print(f"{'part':8} {'case':34} {'median':>12} {'range':25} {'unit':6} {'limit':>11} {'ratio':>6}")
    rows: list[Row] = []
    for part in args.parts:
        found = _RUN[part](engine, machine, ceilings, args)
        show(found)
        rows += found
        if args.json:
            about = {"machine": where, "commit": commit, "ceilings": asdict(ceilings)}
            with open(args.json, "w") as file:
                json.dump({**about, "rows": [asdict(r) for r in rows]}, file, indent=1)
    engine.close()


def show(rows: list[Row]) -> None:
    for r in rows:
        limit = "" if r.limit is None else f"{r.limit:11.2f} {r.ratio:6.0%}"
        print(f"{r.part:8} {r.case:34} {r.value:12.2f} {f'{r.low:.2f}–{r.high:.2f}':25} {r.unit:6} {limit}", flush=True)


if __name__ == "__main__":
    main()
