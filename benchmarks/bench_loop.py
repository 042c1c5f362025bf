"""Times the engine's loop on programs beside a stand-in for a GPU: what it takes of the processor, and how long the device waits for it.

    python -m benchmarks.bench_loop                                   # the ten workloads, a minute
    python -m benchmarks.bench_loop --workloads react,judge --reps 3 --speed 1.3

The device is a clock. A pass takes about what one of the 8B shape in FP8 takes on an H200, times `--speed`, and answers are words of
a text. Its clock is this process's processor time and, while all threads wait for the device, whatever the device still needs: what
others do on this machine counts little. What a launch prepares with numpy is prepared, torch's calls are `--launch` ms, and for more
rows than are captured `--large`. "waits" is the time between passes in which the device has nothing to do, and "calls" with
`--count` the number of functions that the loop calls in a pass, which no other load changes (times mean nothing then).
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from benchmarks.bench_host import NullRunner
from benchmarks.bench_programs import choose, runner, where
from benchmarks.workloads import Size, Workload, text
from lmc.backend.engine import gguf_tokenizer
from lmc.backend.engine.attention.sharing import PassGroups
from lmc.backend.engine.attention.tiled import put
from lmc.backend.engine.attention.tiles import Tiler
from lmc.backend.engine.automaton import ConstraintCompiler
from lmc.backend.engine.cuda_runner import _SHARE_FROM, BUCKETS_OF_FP8, CudaRunner, _arranged
from lmc.backend.engine.forward_batch import ModelPass
from lmc.backend.engine.model_runner import wanted_rows
from lmc.backend.engine.models import gguf
from lmc.backend.engine.models.gguf import embedded_path
from lmc.backend.engine.runner import PassOutput
from lmc.backend.engine.tokenizer import Tokenizer
from lmc.backend.local import LocalBackend
from lmc.chat import CHATML

_MOMENT = 3e-4  # seconds: shorter than a turn of Python's threads
_REPLAY = 5e-5  # seconds in which torch launches a prepared graph
_BUSY = 6e-5  # seconds of processor time in a moment in which others work


def seconds(work: ModelPass) -> float:
    """Of a pass: the weights, its rows, and the slots that decoding rows read."""
    read = sum(len(span.slots) for span in work.spans if len(span.ids) == 1)
    return 2.9e-3 + 1.6e-5 * min(work.rows, 200) + 1.5e-5 * max(0, work.rows - 200) + 1.3e-8 * read


class Clock:
    """Seconds of this process's processor time, and those in which all its threads waited for the device."""

    def __init__(self) -> None:
        self.waited = 0.0

    def now(self) -> float:
        return time.process_time() + self.waited

    def wait(self, until: float) -> None:
        """Let other threads work until then; if none does, it is then."""
        idle = 0
        while idle < 2 and self.now() < until:
            before = time.process_time()
            time.sleep(_MOMENT)
            idle = 0 if time.process_time() - before > _BUSY else idle + 1
        self.waited += max(0.0, until - self.now())


class Stage:
    """A staging buffer that is sent nowhere."""

    def __init__(self) -> None:
        self._parts: dict[str, np.ndarray] = {}

    def array(self, name: str, n: int) -> np.ndarray:
        if name not in self._parts or len(self._parts[name]) < n:
            self._parts[name] = np.zeros(2 * n, np.int32)
        return self._parts[name][:n]

    def put(self, name: str, values: np.ndarray) -> None:
        self.array(name, values.size)[:] = values.reshape(-1)


@dataclass(frozen=True)
class Slots:
    """A KV pool without storage."""

    scratch: int


class StandIn(CudaRunner):
    """What the runner prepares for a GPU that is a clock."""

    def __init__(self, tokens: Sequence[int], slots: int, *, speed: float, launch: float, large: float, captured: int) -> None:
        self.buckets = tuple(rows for rows in BUCKETS_OF_FP8 if rows <= captured)
        self.clock, self._answers = Clock(), NullRunner(tokens)
        self._speed, self._costs = speed, (launch, large)
        self._stage: Any = Stage()
        self._tiled: Any = Tiler(num_heads=32, num_kv_heads=8, shares=132)
        self._pool: Any = Slots(slots)
        self._eyes, self._flash, self._places, self._prefixes, self.share_from = None, None, {}, PassGroups(), _SHARE_FROM
        self._foreseen: ModelPass | None = None
        self._is_begun = False
        self.reset()

    def reset(self) -> None:
        """Begin to count."""
        self.free, self.busy, self.waits, self.launches, self.early, self.spent = 0.0, 0.0, 0.0, 0, 0, -self._answers.spent

    @property
    def loop_answers(self) -> float:
        """Return the seconds of processor time that making answers took on the loop's thread."""
        return (self.spent + self._answers.spent) / 1e9

    def attach(self) -> None: ...

    def launch(self, work: ModelPass) -> Flight:
        foreseen, self._foreseen = self._foreseen, None
        needs = self._speed * seconds(work)
        if self._is_begun and foreseen is not None and foreseen.computes(work):
            self.early += 1
        else:
            self._prepare(work)
            self.clock.waited += self._costs[work.rows > self.quick_rows]
            self._run(needs)
        self._is_begun = False
        output = self._answers.run(work)
        self.launches += 1
        return Flight(self.clock, output, self.free, needs)

    def _run(self, needs: float) -> None:
        begins = max(self.free, self.clock.now())
        self.waits += begins - self.free if self.free else 0.0
        self.free, self.busy = begins + needs, self.busy + needs

    def prepare(self, work: ModelPass) -> bool:
        self._prepare(work)
        self._foreseen = work
        return True

    def begin(self) -> None:
        assert self._foreseen is not None
        self.clock.waited += _REPLAY
        self._run(self._speed * seconds(self._foreseen))
        self._is_begun = True

    def _prepare(self, work: ModelPass) -> None:
        wanted, _ = wanted_rows(work)
        layout = _arranged(work, wanted, self._groups(work), self._tiled.many)
        rows = next((b for b in self.buckets if b >= work.rows), work.rows)
        plan = self._plan(layout, len(layout.spans), rows)
        self._fill(self._stage, layout, work.rows, rows)
        put(plan, self._stage)
        self._places = {req: i for i, (_, req) in enumerate(work.samples)}


@dataclass(frozen=True)
class Flight:
    clock: Clock
    output: PassOutput
    until: float
    needs: float

    @property
    def over(self) -> bool:
        return self.clock.now() >= self.until

    def result(self) -> tuple[PassOutput, float]:
        self.clock.wait(self.until)
        return self.output, self.needs


def engine(stand_in: StandIn, words: Tokenizer, chunk: int = 4096) -> LocalBackend:
    return LocalBackend(
        name="stand-in", vocabulary=words, chat_template=CHATML, runner=stand_in,
        compiler=ConstraintCompiler(
            words.byte_table, words.special_ids, words.eos_token_ids[0], words.vocab_size, encode=lambda text: words.encode((text,), at_start=False)
        ),
        max_tokens=stand_in._pool.scratch, max_context=8192, max_batch=512, chunk=chunk,
    )  # fmt: skip


def bench(workload: Workload, backend: LocalBackend, reps: int, counting: bool) -> str:
    """Return a line: the repetition in which the loop took least."""
    core: Any = backend._core
    stand_in, cpu = core._runner, time.pthread_getcpuclockid(core._thread.ident)
    run, found, profile = runner("compiled", workload, backend), list[tuple[float, str]](), cProfile.Profile()
    for rep in range(-1, reps):  # the first traces, and warms up
        items = workload.items(workload.n, rep)
        backend.flush_cache()
        gc.collect()
        core.call(profile.enable if counting and rep >= 0 else gc.isenabled)
        stand_in.reset()
        began, loop, whole = stand_in.clock.now(), time.clock_gettime(cpu), time.process_time()
        for state in run(items):
            state.sync()
        took, loop, whole = stand_in.clock.now() - began, time.clock_gettime(cpu) - loop, time.process_time() - whole
        core.call(profile.disable)
        n, loop, whole = stand_in.launches, loop - stand_in.loop_answers, whole - stand_in.loop_answers
        line = f"{workload.name:11}{workload.n:5}{took:8.3f}{stand_in.busy:8.3f}{stand_in.waits:8.3f}{n:8}{1e3 * loop / n:10.2f}{whole - loop:10.3f}"
        found += [(loop, line)] if rep >= 0 else []
    calls = f"{pstats.Stats(profile).total_calls / sum(int(line[40:48]) for _, line in found):10.0f}" if counting else ""  # pyright: ignore[reportAttributeAccessIssue]
    return min(found)[1] + calls


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="all", help="as of bench_programs")
    parser.add_argument("--reps", type=int, default=2, help="repetitions")
    parser.add_argument("--speed", type=float, default=1.0, help="how much longer passes take")
    parser.add_argument("--launch", type=float, default=0.6, help="ms that torch's calls take in a launch")
    parser.add_argument("--large", type=float, default=12.0, help="the same for more rows than are captured")
    parser.add_argument("--captured", type=int, default=4096, help="rows of the largest captured pass")
    parser.add_argument("--chunk", type=int, default=4096, help="rows of a pass")
    parser.add_argument("--count", action="store_true", help="count calls of functions; times mean nothing then")
    options = parser.parse_args(argv)
    words = gguf_tokenizer.from_gguf(gguf.read(embedded_path()).metadata, "smollm2", eos_token_ids=(2,))
    tokens = words.encode((text(Random(1), 400),))
    stand_in = StandIn(tokens, 400_000, speed=options.speed, launch=options.launch / 1e3, large=options.large / 1e3, captured=options.captured)
    print("  ".join(f"{k}: {v}" for k, v in where().items()))
    print(f"{'workload':11}{'n':>5}{'s':>8}{'device':>8}{'waits':>8}{'passes':>8}{'loop ms':>10}{'others s':>10}" + f"{'calls':>10}" * options.count)
    with engine(stand_in, words, options.chunk) as backend:
        for workload in choose(options.workloads, Size()):
            print(bench(workload, backend, options.reps, options.count), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
