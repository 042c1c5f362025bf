"""The cost of a journal: processor and wall time with and without it, in turns, the time to take up a finished batch, and the size of its file.

    python benchmarks/bench_journal.py [--programs 1000] [--finished 10000] [--collector]
"""

from __future__ import annotations

import argparse
import gc
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import lmc


@lmc.function
def judge(s: Any, essay: str) -> Any:
    s += lmc.system("You grade essays.") + lmc.user("Essay: " + essay)
    s += lmc.assistant(lmc.select("related", choices=["yes", "no"]))
    if s["related"] == "no":
        return "off topic"
    forks = s.fork(3)
    for f, dim in zip(forks, ["clarity", "originality", "evidence"], strict=True):
        f += lmc.user(f"Judge its {dim}.") + lmc.assistant(lmc.gen("judgment", max_tokens=64, stop="END"))
    s += lmc.user("Summary:\n" + "\n".join(f["judgment"].strip() for f in forks))
    s += lmc.assistant(lmc.gen("out", regex=r'\{"grade": "[ABCD][+-]?", "why": "[\w ]{1,60}"\}'))
    return s["out"]


def essays(count: int) -> list[dict[str, str]]:
    return [{"essay": f"Essay number {i}. " + f"A sentence of essay {i}. " * 40} for i in range(count)]


def measured(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of processor time of all threads, and of wall time."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    kept = run()
    found = time.process_time() - cpu, time.perf_counter() - wall
    del kept
    return found


@contextmanager
def uncollected() -> Generator[None]:
    """Without the garbage collector, whose passes come by chance."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def cost(
    programs: int, rounds: int, around: Callable[[], AbstractContextManager[Any]]
) -> tuple[list[tuple[float, float]], list[tuple[float, float]], int, int]:
    """Processor and wall seconds without and with a journal, in turns, each within `around`; bytes of the file; answers in it."""
    program, items = lmc.compile(judge), essays(programs)
    program.batch(items[:50], backend=lmc.Mock(), seed=1)
    without: list[tuple[float, float]] = []
    with_journal: list[tuple[float, float]] = []
    size = asked = 0
    for _ in range(rounds):
        with around(), tempfile.TemporaryDirectory() as directory:
            backend = lmc.Mock()
            without.append(measured(lambda b=backend: program.batch(items, backend=b, seed=1)))
            asked = len(backend.call_log)
            with_journal.append(measured(lambda d=directory: program.batch(items, backend=lmc.Mock(), seed=1, journal=d)))
            size = (Path(directory) / "journal").stat().st_size
    return without, with_journal, size, asked


def compared(without: Sequence[float], with_journal: Sequence[float], programs: int) -> str:
    """Medians and ranges in µs a program, and what was added, pair by pair."""
    added = [(b / a - 1) * 100 for a, b in zip(without, with_journal, strict=True)]
    return (f"{spread([x * 1e6 / programs for x in without], 0)} µs a program without, {spread([x * 1e6 / programs for x in with_journal], 0)} with: "
            f"{spread(added, 1)} % more")  # fmt: skip


def spread(found: Sequence[float], digits: int) -> str:
    """The median, and the range."""
    return f"{median(found):.{digits}f} [{min(found):.{digits}f}, {max(found):.{digits}f}]"


def finished(programs: int, rounds: int) -> tuple[list[tuple[float, float]], int, int]:
    """Processor and wall seconds that new processes take to take up a finished batch; bytes of its file; what they asked."""
    found: list[tuple[float, float]] = []
    asked = 0
    with tempfile.TemporaryDirectory() as directory, ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        processes.submit(taken_up, directory, programs).result()
        for _ in range(rounds):
            took, more = processes.submit(taken_up, directory, programs).result()
            found, asked = [*found, took], asked + more
        size = (Path(directory) / "journal").stat().st_size
    return found, size, asked


def taken_up(directory: str, programs: int) -> tuple[tuple[float, float], int]:
    """Time of a batch with this journal, and the number of its requests."""
    program, items, backend = lmc.compile(judge), essays(programs), lmc.Mock()
    return measured(lambda: program.batch(items, backend=backend, seed=1, journal=directory)), len(backend.call_log)


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--finished", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--collector", action="store_true", help="with Python's garbage collector, as programs run")
    given = parser.parse_args()
    print(f"{date.today()} · {platform.processor() or platform.machine()} · Python {platform.python_version()} · {commit()}")
    without, with_journal, size, asked = cost(given.programs, given.rounds, nullcontext if given.collector else uncollected)
    print(f"{given.programs} judges, {asked} requests, on the mock, {given.rounds} times each in turns; {size / given.programs:.0f} bytes a program")
    for n, kind in enumerate(("processor time", "wall time")):
        print(f"  {kind}: {compared([x[n] for x in without], [x[n] for x in with_journal], given.programs)}")
    took, size, asked = finished(given.finished, given.rounds // 3)
    print(f"a finished batch of {given.finished} taken up again: {spread([x[0] for x in took], 2)} s of processor time ({spread([x[1] for x in took], 2)} s "
          f"in all); "
          f"{asked} requests; {size / 1e6:.1f} MB")  # fmt: skip


if __name__ == "__main__":
    main()
