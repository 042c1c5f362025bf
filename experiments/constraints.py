"""Experiments on constrained answers: compressed automata, and automata that are used again."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import lmc
from benchmarks.bench_forcing import CHARACTER
from benchmarks.workloads import Size, Workload, figures
from experiments.core import ONE_PROGRAM, SYNTHETIC, Plot, Point, Row, Setup, experiment, measured
from lmc.measuring import MeasuredMode, compiled, measure


@experiment(
    "forced-tokens", "What do tokens give that leave no choice, and are not sampled?", Plot("Passes a token", "forced", "passes/token", per="workload"),
    reads="Constrained answers with forced tokens and with every token sampled. The texts are the same but where the model alone would have cut a fixed text "
          "into other tokens.",
    paper="Figure 4, Section 6.3: compressed finite state machine", lacks=SYNTHETIC,
)  # fmt: skip
def forced_tokens(setup: Setup) -> Generator[Point]:
    for workload in figures(Size(setup.scale)):
        if workload.name in ("json", "judge"):
            yield Point(workload.name, lambda workload=workload: list(_forced(setup, workload)))


def _forced(setup: Setup, workload: Workload) -> Iterator[Row]:
    reference: list[MeasuredMode] = []
    for forced in (True, False):
        with closing(setup.engine(forced=forced)) as engine:
            way = compiled(workload.program)
            measure(way, workload.items(1, setup.seed - 1), engine)
            runs = [measure(way, workload.items(setup.count(workload.n), setup.seed + rep), engine) for rep in range(setup.reps)]
        spent, reference = runs[-1].counters, reference or runs
        yield {"workload": workload.name, "forced": "on" if forced else "off", **measured(runs, reference), "generated": spent.generated_tokens,
            "forced tokens": spent.forced_tokens,
               "passes": spent.passes, "passes/token": spent.passes / spent.generated_tokens}  # fmt: skip


@experiment(
    "automata-reuse", "What does it give to keep a compiled constraint?", Plot("Seconds of the first answer", "automaton", "seconds"),
    reads="The first constrained answer of an engine: with an empty store of automata, with what another engine has left on disk, and again on the same "
          "engine. "
    "What is on disk is the automaton; the masks of its states, most of a first answer's cost, are made by each engine.",
    paper="Section 6.3: preprocessing of the finite state machine is reused", lacks={**ONE_PROGRAM, **SYNTHETIC},
)  # fmt: skip
def automata_reuse(setup: Setup) -> Generator[Point]:
    yield Point("character", lambda: list(_reuse(setup)))


def _reuse(setup: Setup) -> Iterator[Row]:
    @lmc.function
    def character(s: Any) -> None:
        s += "A wizard as JSON:\n" + lmc.gen("json", max_tokens=160, regex=CHARACTER)

    taken: dict[str, list[float]] = {"made": [], "from disk": [], "kept": []}
    before = lmc.config().cache_dir
    try:
        for _ in range(setup.reps):
            with TemporaryDirectory() as folder:
                lmc.config(cache_dir=str(Path(folder)))
                for name in ("made", "from disk"):
                    with closing(setup.engine()) as engine:
                        lmc.function(lambda s: s.__iadd__("x" + lmc.gen("x", max_tokens=2))).run(backend=engine).sync()
                        taken[name].append(_seconds(character, engine))
                        _seconds(character, engine)  # a whole automaton is made at the second request
                        again = _seconds(character, engine)
                    if name == "from disk":
                        taken["kept"].append(again)
    finally:
        lmc.config(cache_dir=str(before))
    for name, times in taken.items():
        yield {"automaton": name, "reps": len(times), "seconds": median(times), "least": min(times), "most": max(times)}


def _seconds(program: Any, engine: Any) -> float:
    began = time.perf_counter()
    program.run(backend=engine, temperature=0).sync()
    return time.perf_counter() - began
