"""Processes that are killed: a batch whose process ends at random points, resumed until it is finished; and what must hold then."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import lmc
from lmc.durable import records

PROGRAM = '''
import sys, time, lmc

def slow(q):
    with open(sys.argv[2], "a") as file:
        file.write(f"{q}\\n")
    time.sleep(0.003)
    return q.upper()

look = lmc.host(slow, idempotent=True)

@lmc.function
def program(s, q):
    s += q + lmc.gen("a", max_tokens=6)
    s += look(q + s["a"]) + lmc.gen("b", max_tokens=6)
    if s["b"] > "m":
        s += look(s["b"] + q)
    forks = s.fork(2)
    forks += lambda i: str(i) + lmc.gen("c", max_tokens=6)
    s += look(q + "".join(f["c"] for f in forks)) + lmc.gen("d", max_tokens=6)
    return s["d"]

backend = lmc.Mock(latency=0.002)
items = [{"q": f"q{i} "} for i in range(int(sys.argv[3]))]
states = lmc.compile(program).batch(items, backend=backend, seed=5, **({"journal": sys.argv[1]} if sys.argv[1] else {}))
print(len(backend.call_log), "\\x00".join(s.text() + repr(s.ret_value) for s in states))
'''


ASYNC = (
    PROGRAM.replace("import sys,", "import asyncio, sys,").replace("def slow", "async def slow").replace("time.sleep", "await asyncio.sleep")
    .replace("def program", "async def program").replace("look(", "await look(")
    .replace("    forks = s.fork(2)\n", "    one, two = await asyncio.gather(look(q + '1'), look(q + '2'))\n    s += one + two\n    forks = s.fork(2)\n")
)
"""The same with a tool that is awaited, alone and with others."""


@dataclass
class Known:
    """Return the numbers of a batch's journal: answers, calls of the tool with a result, and those without one."""

    asked: int
    done: int
    begun: int


def known(directory: Path) -> Known:
    if not (directory / "journal").exists():
        return Known(0, 0, 0)
    contents = records.parse((directory / "journal").read_bytes(), "x")
    runs = {} if contents is None else contents.runs
    effects = [effect for run in runs.values() for effect in run.effects.values()]
    calls = {True: 0, False: 0}
    for effect in effects:
        calls[effect.outcome is not None] += 1
    return Known(sum(len(run.answers) for run in runs.values()), calls[True], calls[False])


class KilledBatch:
    """A batch of `programs` in processes of their own, whose tool writes a line for each call."""

    def __init__(self, directory: Path, programs: int, source: str = PROGRAM) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.programs, self.script = directory, programs, directory / "program.py"
        self.script.write_text(source)
        self.begin("alone")

    def begin(self, name: str) -> None:
        """Another journal, and nothing called yet."""
        self.journal, self.calls = self.directory / f"journal-{name}", self.directory / f"calls-{name}"

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def start(self, journal: Path | None) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(Path(lmc.__file__).parent.parent)}
        command = [sys.executable, str(self.script), "" if journal is None else str(journal), str(self.calls), str(self.programs)]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    def finished(self, journal: Path | None) -> tuple[int, str]:
        """How much the model was asked by a run that was left alone, and its results."""
        said, _ = self.start(journal).communicate(timeout=300)
        asked, _, results = said.partition(" ")
        return int(asked), results

    def killed(self, more: float) -> None:
        """Killed once its journal has grown by so many bytes, unless it ends before."""
        process, file = self.start(self.journal), self.journal / "journal"
        goal = (file.stat().st_size if file.exists() else 0) + more
        end = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < end and (not file.exists() or file.stat().st_size < goal):
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)


def survives(directory: Path, programs: int, kills: int, seed: int = 0, source: str = PROGRAM) -> str:
    """Batches that are killed at random points, several times each, `kills` in all, and then finished; gives what was seen.

    Asserts that results are those of a batch that was left alone, and that nothing that was known is asked or called again.
    """
    rng, batch = random.Random(seed), KilledBatch(directory, programs, source)
    whole, expected = batch.finished(None)
    effects = sorted(batch.called())
    batch.begin("whole")
    assert batch.finished(batch.journal) == (whole, expected), "a journal changes what a batch does"
    size = (batch.journal / "journal").stat().st_size
    left, rounds, asked, called, doubts = kills, 0, 0, 0, 0
    while left:
        several = min(left, rng.randint(1, 4))
        batch.begin(str(rounds))
        found = [survived(batch, rng.uniform(0, size / several)) for _ in range(several)]
        before, lines = known(batch.journal), len(batch.called())
        now, results = batch.finished(batch.journal)
        assert results == expected, "other results than those of a batch that was left alone"
        assert now == whole - before.asked, f"{now} requests instead of {whole - before.asked}"
        assert len(batch.called()) - lines == len(effects) - before.done and sorted(set(batch.called())) == effects, "other calls than those without a result"
        left, rounds, asked, called, doubts = left - several, rounds + 1, asked + now, called + len(batch.called()) - lines, doubts + sum(found)
    return (f"{rounds} batches of {programs} programs, {whole} requests and {len(effects)} calls each, killed {kills} times: {asked} requests and "
            f"{called} calls were left to those that finished them; {doubts} calls were in doubt")  # fmt: skip


def survived(batch: KilledBatch, more: float) -> int:
    """Kills the batch; asserts that what was known still is, and that what had a result was not called again. How many calls are in doubt."""
    before, lines = known(batch.journal), batch.called()
    batch.killed(more)
    now, since = known(batch.journal), batch.called()[len(lines) :]
    assert now.asked >= before.asked and now.done >= before.done, "what was known is lost"
    assert len(since) <= now.done - before.done + now.begun, f"{len(since)} calls, of which {now.done - before.done} have a result and {now.begun} an intent"
    return now.begun


if __name__ == "__main__":
    import tempfile

    given = [int(x) for x in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as where:
        for n, source in enumerate((PROGRAM, ASYNC)):
            print(survives(Path(where) / str(n), *(given or [200, 50]), source=source))
