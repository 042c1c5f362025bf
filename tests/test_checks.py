"""Checks of what was asked: those of a compiled run's sites, by columns, are those of its prompts, one by one."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc import records
from lmc.backend.base import Result
from lmc.checks import Since, Site, of_ask, of_text
from lmc.prompt import Gen, SamplingParams

TEXTS = ["plain", "", "é😀", "half a surrogate: \ud800", "plain"]


@lmc.function
def program(s: Any, q: str, k: int) -> Any:
    s += lmc.system("Be brief.") + lmc.user("Q: " + q + f" ({k})")
    s += lmc.assistant(lmc.gen("a", max_tokens=4, temperature=0.5 if k == 2 else 0.0))
    s += q + lmc.select("b", choices=["x", "y" + q]) + lmc.select("c", choices=["x", "y"])
    forks = s.fork(2)
    for f in forks:
        f += lmc.user(s["a"] + q) + lmc.gen("d", max_tokens=3)
    s += [1, "of another type"][k % 2] if k == 3 else "always text"
    s += forks[0]["d"] + lmc.gen("e", max_tokens=2) + lmc.gen("f", max_tokens=2)


def checks(path: Path) -> dict[int, dict[Any, set[int]]]:
    """Of each run, by the places of answers."""
    return {item: {place: set(found) for place, found in known.answers.items()} for item, known in records.read(path).runs.items()}


@pytest.mark.parametrize("opt", [0, 1])
def test_checks_of_compiled_runs_are_those_of_the_interpreter(tmp_path: Path, opt: int) -> None:
    items = [{"q": q, "k": k} for q in TEXTS for k in range(4)]
    fast = lmc.compile(program, opt=opt)
    fast.batch(items, backend=lmc.Mock(), seed=1)
    program.run_batch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / "slow")
    fast.batch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / "fast")
    assert checks(tmp_path / "fast") == checks(tmp_path / "slow")
    assert len(checks(tmp_path / "slow")[0]) == 7


def test_threads_that_come_first_make_one_template() -> None:
    """What a site needs is made by the first run that asks there; runs on other threads may do so at the same time."""
    began = threading.Barrier(4)

    def take(site: Site) -> None:
        began.wait()
        site.take([0, "x", "y"])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            site = Site((("", 0),), Since(None, ("a", 1, "b", 2)))
            threads = [threading.Thread(target=take, args=(site,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            ask = Gen(SamplingParams())
            alone = of_ask(0, of_text("axby"), ask)
            assert site.check([None], [site.take([0, "x", "y"])], [ask], [Result()]) == [alone]
    finally:
        sys.setswitchinterval(interval)
