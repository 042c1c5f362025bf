"""Times what asking a server costs the host: beside a compiled stand-in that answers at once, in processor time a request.

    python -m benchmarks.bench_api                                    # lmc.SGLang and lmc.VLLM, single requests and programs
    python -m benchmarks.bench_api --kinds sglang --n 4000 --reps 7 --profile out.prof

submit   one answer each: 1 kB of prompt (token ids), all submitted at once and awaited
batch    a compiled program of one gen behind a shared prefix, as a batch
judge    a compiled program of seven gens, five of them forks

Requests are prompts: those that went in one list count singly. Processor time is that of this whole process, all threads; the
stand-in has a process of its own (benchmarks/stand_in.c, built with `cc`). Medians of the repetitions.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import resource
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import lmc
from benchmarks.bench_programs import where
from benchmarks.workloads import host_overhead, text
from lmc.backend.base import Hints
from lmc.segments import Gen, SamplingParams, Text

_SEEDS = 16  # of repetitions, whose texts are made before
_GREEDY = SamplingParams(max_new_tokens=4, temperature=0)


@dataclass(frozen=True)
class Row:
    """A line: medians of `reps` repetitions; `us` is processor time of the client a prompt, `bytes_out` what it sent for one."""

    kind: str
    case: str
    prompts: int
    requests: int
    connections: int
    per_second: float
    us: float
    low: float
    high: float
    bytes_out: float
    bytes_in: float


@contextmanager
def stand_in() -> Iterator[str]:
    """The URL of a server that answers at once."""
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "stand_in"
        subprocess.run(["cc", "-O2", "-o", str(binary), str(Path(__file__).with_name("stand_in.c"))], check=True)
        server = subprocess.Popen([str(binary)], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.kill()
            server.wait()


def counts(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/counts") as response:
        return json.loads(response.read())


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def prompts(n: int, seed: int) -> list[str]:
    """Texts of about 200 tokens: 1 kB as a list of ids."""
    rng = Random(seed)
    return [text(rng, 190) for _ in range(n)]


def submit(backend: Any, n: int) -> Callable[[int], int]:
    def run(seed: int) -> int:
        handles = [backend.submit(None, (Text((p,)), Gen(_GREEDY)), Hints(has_more=True)) for p in given[seed]]
        for handle in handles:
            handle.results[0].output()
        return n

    given = {seed: prompts(n, seed) for seed in range(_SEEDS)}
    return run


def batch(backend: Any, n: int) -> Callable[[int], int]:
    shots = text(Random("shots"), 140)

    @lmc.function
    def qa(s, question):
        s += shots + "\nQuestion: " + question + "\nAnswer:" + lmc.gen("answer", max_tokens=4)

    fast = lmc.compile(qa)

    def run(seed: int) -> int:
        fast.batch(given[seed], backend=backend, temperature=0)
        return n

    given = {seed: [{"question": text(Random(seed * n + i), 50)} for i in range(n)] for seed in range(_SEEDS)}
    return run


def judge(backend: Any, n: int) -> Callable[[int], int]:
    workload = next(w for w in host_overhead() if w.name == "host-judge")
    fast = lmc.compile(workload.program)

    def run(seed: int) -> int:
        fast.batch(given[seed], backend=backend, temperature=0)
        return n // 7 * 7

    given = {seed: workload.items(n // 7, seed) for seed in range(_SEEDS)}
    return run


CASES: dict[str, Callable[[Any, int], Callable[[int], int]]] = {"submit": submit, "batch": batch, "judge": judge}


def measured(kind: str, case: str, url: str, n: int, reps: int, profile: str | None) -> Row:
    make = {"sglang": lmc.SGLang, "vllm": lmc.VLLM}[kind]
    with make(url, tokenizer=_tokenizer(), chat_template="chatml") as backend:
        run = CASES[case](backend, n)
        run(0)
        found: list[tuple[float, float, dict[str, int]]] = []
        after = counts(url)
        profiler = cProfile.Profile(time.thread_time) if profile else None
        for seed in range(1, reps + 1):
            gc.collect()
            before, began, used = counts(url), time.perf_counter(), cpu()
            run(seed)
            wall, used = time.perf_counter() - began, cpu() - used
            after = counts(url)
            found.append((wall, used, {k: after[k] - before[k] for k in after}))
        if profiler is not None:
            backend._loop.post(profiler.enable)
            run(reps + 1)
            backend._loop.post(profiler.disable)
            backend._loop.post(profiler.dump_stats, profile)
            time.sleep(1)
        counted = found[-1][2]
        per = [used / seen["prompts"] * 1e6 for _, used, seen in found]
        return Row(
            kind, case, counted["prompts"], counted["requests"], after["connections"], statistics.median(seen["prompts"] / wall for wall, _, seen in found),
            statistics.median(per), min(per), max(per), counted["bytes_in"] / counted["prompts"], counted["bytes_out"] / counted["prompts"],
        )  # fmt: skip


def _tokenizer() -> str:
    from lmc.backend.engine.models.gguf import embedded_path

    return str(embedded_path())


def show(rows: list[Row]) -> None:
    print(where())
    print(f"{'server':8}{'case':8}{'prompts':>9}{'requests':>10}{'conns':>7}{'prompts/s':>11}{'cpu us/prompt':>15}{'range':>14}{'sent B':>9}{'got B':>8}")
    for r in rows:
        print(f"{r.kind:8}{r.case:8}{r.prompts:9}{r.requests:10}{r.connections:7}{r.per_second:11.0f}{r.us:15.0f}{f'{r.low:.0f}-{r.high:.0f}':>14}{r.bytes_out:9.0f}{r.bytes_in:8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="sglang,vllm")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--n", type=int, default=2000, help="prompts a repetition")
    parser.add_argument("--reps", type=int, default=5, choices=range(1, _SEEDS - 1), metavar="REPS")
    parser.add_argument("--json", help="the same rows as data")
    parser.add_argument("--profile", help="where cProfile's data of the loop's thread goes")
    args = parser.parse_args()
    rows: list[Row] = []
    for kind in args.kinds.split(","):
        for case in args.cases.split(","):
            with stand_in() as url:
                rows.append(measured(kind, case, url, args.n, args.reps, args.profile))
    show(rows)
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
