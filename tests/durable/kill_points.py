"""`python -m tests.durable.kill_points`: twelve programs killed at every point where what is known changes, and finished; nothing may be doubled, nothing lost.

Points: before, within and behind each write to a journal and each sync, and before and behind each effect on the world. A process is forked off a server
that has imported lmc (no torch) and no threads, and ends itself at a point, at once, as by SIGKILL; `power`: what was written and not synced is gone, too.
Then a person looks at the world for each call in doubt, answers each question, and the run is resumed until it ends.
"""

from __future__ import annotations

import argparse
import logging
import mmap
import os
import pickle
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmc
from lmc.durable import files, journal, room
from tests.durable import kill_programs
from tests.durable.kill_programs import PROGRAMS, Killed, happened

KILLED = 137


@dataclass
class KillCounts:
    """Counts of what became of the kills. `again`: answers of the model that were asked for more often than the program does;
    `decided`: calls in doubt about which a person was asked."""

    points: int = 0
    kills: int = 0
    doubled: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    again: int = 0
    decided: int = 0

    def __str__(self) -> str:
        return (f"{self.points} points, {self.kills} kills: {len(self.doubled)} effects doubled, {len(self.lost)} lost, {len(self.wrong)} runs stuck or with "
                f"another "
                f"result; {self.again} answers asked for again, {self.decided} calls in doubt decided by looking at the world")  # fmt: skip


def kill_points(programs: list[Killed], directory: Path, *, power: bool, every: int = 1, say: Callable[[str], None] = lambda line: None) -> KillCounts:
    """Kills each program at each point (at each `every`th), once a process."""
    seen = KillCounts()
    warm_up(programs, directory)
    for each in programs:
        world = directory / "world"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        expected, points = _finished(each, world, None), list[str]()
        effects = Counter(line for line in _lines(world) if not line.startswith("tried"))
        asked = len(_lines(world.with_name("asked")))
        shutil.rmtree(directory)
        directory.mkdir()
        assert _resumed(each, world, directory / "journal", KillCounts(), points) == expected, f"{each.name}: a journal changes what it does"
        names = list(dict.fromkeys(points))[::every]
        for name in names:
            shutil.rmtree(directory)
            directory.mkdir()
            code, _ = _forked(each, world, directory / "journal", kill=name, power=power)
            seen.kills += code == KILLED
            where = f"{each.name} killed at {name!r}{' with the power' if power else ''}"
            try:
                result = _resumed(each, world, directory / "journal", seen)
            except Exception as error:
                seen.wrong.append(f"{where}: {type(error).__name__}: {error}")
                continue
            found = Counter(line for line in _lines(world) if not line.startswith("tried"))
            seen.doubled += [f"{where}: {line}" for line in found - effects]
            seen.lost += [f"{where}: {line}" for line in effects - found]
            seen.wrong += [] if result == expected else [f"{where}: {result} instead of {expected}"]
            seen.again += len(_lines(world.with_name("asked"))) - asked
        seen.points += len(names)
        say(f"{each.name}: {len(names)} points")
    return seen


def warm_up(programs: list[Killed], directory: Path) -> None:
    """Import and compile once what each fork would."""
    kill_programs.WORLD = directory / "warm"
    directory.mkdir(parents=True, exist_ok=True)
    for n, each in enumerate(programs):
        try:
            each.run(directory / f"journal-{n}", lmc.Mock())
        except lmc.Interrupted:
            pass
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(60)  # of a batch, which ends by itself
    assert threading.active_count() == 1, "a fork would lack threads"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _resumed(each: Killed, world: Path, path: Path, seen: KillCounts, points: list[str] | None = None) -> Any:
    """Run to the end, with a person who answers, looks at the world, and calls it again."""
    for _ in range(30):
        code, said = _forked(each, world, path)
        assert code == 0, f"its process ended with {code}"
        kind, value, passed = said
        if points is not None:
            points += passed
        if kind == "returned":
            return value
        if kind not in ("Interrupted", "InDoubtEffect"):
            raise RuntimeError(f"{kind}: {value}")
        _decided(lmc.Journal(path), world, seen)
    raise RuntimeError("it does not end")


def _decided(opened: lmc.Journal, world: Path, seen: KillCounts) -> None:
    kill_programs.WORLD = world
    for waiting in opened.waiting():
        if waiting.question:
            opened.answer(True if waiting.schema else "to nobody", waiting.item, waiting.number)
            continue
        seen.decided += 1
        name, x = waiting.call.removeprefix("await ").partition("(")[::2]
        x = x.partition(")")[0].partition(",")[0].partition("=")[2] or x.partition(")")[0].partition(",")[0]
        what = f"{name} {x.strip(chr(39))}"
        if what not in happened():
            opened.retry(waiting.item, waiting.number)
        elif name == "refuse":
            opened.resolve(item=waiting.item, number=waiting.number, error=ValueError(f"no {x.strip(chr(39))}"))
        elif name in ("collect", "shelve"):  # what it did to the list is not to be had again, so it is put there: a person undoes it, and has it made again
            world.write_text("".join(f"{line}\n" for line in happened() if line != what))
            opened.retry(waiting.item, waiting.number)
        else:
            opened.resolve(f"receipt of {what}", waiting.item, waiting.number)


def _finished(each: Killed, world: Path, path: Path | None) -> Any:
    code, (kind, value, _) = _forked(each, world, path)
    assert code == 0 and kind in ("returned", "ProgramError"), (kind, value)
    return value if kind == "returned" else _by_answers(each, world)


def _by_answers(each: Killed, world: Path) -> Any:
    """Of a program that asks people, which takes a journal."""
    world.unlink(missing_ok=True)
    world.with_name("asked").unlink(missing_ok=True)
    return _resumed(each, world, world.with_name("first"), KillCounts())


# -- in a process of its own --------------------------------------------------------------------------------------------


def _forked(each: Killed, world: Path, path: Path | None, kill: str = "", *, power: bool = False) -> tuple[int, Any]:
    """Runs a program in a fork of this process; its exit code, and what it said: kind, value, and the points that it passed."""
    read, write = os.pipe()
    synced = memoryview(mmap.mmap(-1, 8)).cast("q")  # shared with the child: bytes of the journal that the disk has
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            said = _run(each, world, path, kill, synced)
            with os.fdopen(write, "wb") as out:
                pickle.dump(said, out)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as found:
        data = found.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if power and code == KILLED and path is not None:
        _lose(path, synced[0])  # only now: none of its threads writes any more
    return code, pickle.loads(data) if code == 0 else None


def _run(each: Killed, world: Path, path: Path | None, kill: str, synced: memoryview[int]) -> tuple[str, Any, list[str]]:
    kill_programs.WORLD = world
    passed, counts = list[str](), Counter[str]()

    def point(name: str) -> None:
        passed.append(name)
        if name == kill:
            os._exit(KILLED)

    _watch(point, counts, synced)
    asked = world.with_name("asked")

    def answer(prompt: str, ask: Any) -> str:
        with asked.open("a") as file:
            file.write(f"{ask.name}\n")
        return f"answer {len(prompt)}"[: 4 * (ask.params.max_new_tokens or 4)]

    try:
        return "returned", each.run(path, lmc.Mock(answer)), passed
    except Exception as error:
        return type(error).__name__, str(error), passed


def _lose(path: Path, size: int) -> None:
    """Drop what the disk does not have when the power fails. Its sidecar is never ahead of it."""
    file = path / "journal" if path.is_dir() else path
    if file.exists() and file.stat().st_size > size:
        os.truncate(file, size)


def _watch(point: Callable[[str], None], counts: Counter[str], synced: memoryview[int]) -> None:
    """Makes the points of a journal: each entry is a group of its own, and each group written by itself, so that there are as many as can be."""
    kill_programs.point = point
    write, sync, reserve, add = files.write_all, os.fsync, room.ReservedBlocks.reserve, journal.JournalFile.add

    def numbered(what: str) -> str:
        counts[what] += 1
        return f"{what} {counts[what]}"

    def writes(file: Any, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            name = numbered("write")
            point(f"before {name}")
            write(file, line[: len(line) // 2])
            point(f"within {name}")
            write(file, line[len(line) // 2 :])
            point(f"behind {name}")

    def syncs(file: int) -> None:
        name, size = numbered("sync"), os.fstat(file).st_size
        point(f"before {name}")
        sync(file)
        synced[0] = size if not os.path.isdir(f"/proc/self/fd/{file}") else synced[0]
        point(f"behind {name}")

    def reserves(self: Any, end: int) -> None:
        reserve(self, end)
        point(numbered("behind room"))

    def adds(self: Any, entry: Any) -> None:
        add(self, entry)
        self.gather()

    files.write_all, os.fsync, room.ReservedBlocks.reserve, journal.JournalFile.add = writes, syncs, reserves, adds  # type: ignore[assignment]


def memory() -> str | None:
    """Where files are quick: what is synced is counted by the points, not by the disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--every", type=int, default=1, help="one of so many points")
    given = parser.parse_args()
    assert not any(name in sys.modules for name in ("torch", "transformers")), "the fork server has loaded torch"
    logging.getLogger("lmc.journal").setLevel(logging.ERROR)  # of dropped tails
    with tempfile.TemporaryDirectory(dir=memory()) as where:
        bad = 0
        for power in (False, True):
            seen = kill_points(PROGRAMS, Path(where) / "run", power=power, every=given.every, say=lambda line: print(" ", line, flush=True))
            print(f"{'the power fails' if power else 'the process is killed'}: {seen}", flush=True)
            for line in [*seen.doubled, *seen.lost, *seen.wrong]:
                print("   ", line)
            bad += len(seen.doubled) + len(seen.lost) + len(seen.wrong)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
