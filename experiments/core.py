"""Experiments: points that are measured one after another, kept as soon as they are known, and not measured twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import lmc
from benchmarks.bench_programs import where
from lmc import named
from lmc.errors import LmcError

Row = dict[str, Any]
"""One line of figures: text, numbers, None where something does not apply."""


class Unmeasured(Exception):
    """Why a point cannot be measured here: a peer that does not answer, a file that is not there, a device that is missing."""


@dataclass(frozen=True)
class Setup:
    """What an experiment runs on.

    n      items of a workload at most; 0: as many as the workload has by itself
    scale  factor on the lengths of prompts and answers
    peers  names of backends that run the same programs beside (lmc/named.py)
    data   a folder with data sets, for `quality`
    """

    backend: str = "smollm2"
    device: str = "cpu"
    load_format: Literal["auto", "dummy"] = "auto"
    n: int = 6
    scale: float = 0.1
    reps: int = 3
    seed: int = 0
    peers: tuple[str, ...] = ()
    data: str | None = None

    def count(self, own: int) -> int:
        """Items of a workload that has so many by itself."""
        return min(own, self.n) if self.n else own

    def engine(self, **options: Any) -> Any:
        """Open the backend that is measured, with options of an engine where it is one. The caller closes it."""
        if not named.is_model(self.backend):
            if options:
                raise Unmeasured(f"{self.backend} takes no options of an engine ({', '.join(options)})")
            return named.open_backend(self.backend)
        return lmc.Engine(self.backend, device=self.device, load_format=self.load_format, **options)

    def peer(self, name: str) -> Any:
        """Open a peer. The caller closes it."""
        return named.open_backend(name)


@dataclass(frozen=True)
class Plot:
    """How rows are drawn: `y` over `x`, a line or a bar for each value of `series`."""

    title: str
    x: str
    y: str
    series: str = ""
    kind: Literal["lines", "bars"] = "bars"
    per: str = ""
    """A plot for each value of this column."""


@dataclass(frozen=True)
class Point:
    """A measurement, with the key under which it is kept."""

    key: str
    measure: Callable[[], Row | Iterable[Row]]


@dataclass(frozen=True)
class Experiment:
    """A question, and the points that answer it.

    reads  what a reader should know to read the figures
    paper  the figure or table of the SGLang paper (arXiv 2312.07104) that it repeats; "" where it is ours
    """

    name: str
    question: str
    points: Callable[[Setup], Iterator[Point]]
    plots: tuple[Plot, ...]
    reads: str
    paper: str = ""


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(name: str, question: str, *plots: Plot, reads: str, paper: str = "") -> Callable[[Callable[[Setup], Iterator[Point]]], Experiment]:
    """Make an experiment of a function that gives its points."""

    def register(points: Callable[[Setup], Iterator[Point]]) -> Experiment:
        EXPERIMENTS[name] = Experiment(name, question, points, plots, reads, paper)
        return EXPERIMENTS[name]

    return register


@dataclass
class Found:
    """What an experiment has found so far: rows by point, and why others are missing."""

    setup: Row
    info: Row
    rows: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])
    unmeasured: dict[str, str] = field(default_factory=dict[str, str])

    @staticmethod
    def of(path: Path) -> Found:
        """Read from a file. Raises ValueError where it holds something else."""
        try:
            read = json.loads(path.read_text("utf-8"))
            return Found(read["setup"], read["info"], {k: list(v) for k, v in read["rows"].items()}, dict(read["unmeasured"]))
        except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{path} is not the result of an experiment ({error!r}); delete it, or choose another --out") from None

    def all(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]

    def save(self, name: str, path: Path) -> None:
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"experiment": name, **asdict(self)}, indent=1, ensure_ascii=False) + "\n", "utf-8")
        part.replace(path)  # what is there is whole


def run(wanted: Experiment, setup: Setup, out: Path, *, fresh: bool = False, note: str = "", say: Callable[[str], object] = lambda line: print(line, file=sys.stderr, flush=True)) -> Found:
    """Measure the points of an experiment that `out` does not hold for this setup and commit yet.

    fresh  measure all of them
    note   what a reader should know of the circumstances
    A point that cannot be measured (Unmeasured, an error of lmc's or of the operating system, a missing package) is noted and tried again the next time.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{wanted.name}.json"
    now = Found(asdict(setup), where() | ({"note": note} if note else {}))
    if path.exists() and not fresh:
        before = Found.of(path)
        if _same(before, now):
            now.rows = before.rows
        else:
            say(f"{wanted.name}: {path} is of another setup or commit, and is measured anew")
    for point in _points(wanted, setup, now, say):
        if point.key in now.rows:
            continue
        say(f"{wanted.name}: {point.key} …")
        try:
            rows = point.measure()
            now.rows[point.key] = _listed(rows)
        except (Unmeasured, LmcError, OSError, ImportError) as error:
            now.unmeasured[point.key] = " ".join(str(error).split())
            say(f"{wanted.name}: {point.key} was not measured: {now.unmeasured[point.key]}")
        now.save(wanted.name, path)
    now.save(wanted.name, path)
    return now


def _listed(rows: Row | Iterable[Row]) -> list[Row]:
    """What a point gives: one row, or several."""
    return [cast(Row, rows)] if isinstance(rows, dict) else [*rows]


def _points(wanted: Experiment, setup: Setup, now: Found, say: Callable[[str], object]) -> Iterator[Point]:
    """The points of an experiment; none, with the reason noted, where all of it needs what is not here."""
    try:
        yield from wanted.points(setup)
    except Unmeasured as error:
        now.unmeasured["all"] = str(error)
        say(f"{wanted.name}: nothing was measured: {error}")


def _same(before: Found, now: Found) -> bool:
    """Of one setup, commit and machine: figures of different ones do not belong into one table."""
    about = lambda found: json.dumps([found.setup, *(found.info.get(k) for k in ("commit", "machine", "python"))], default=list)
    return about(before) == about(now) and not str(now.info["commit"]).endswith("-dirty")



def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Names and cells of the columns in which something is."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if any(row.get(name) not in (None, "") for row in rows)]
    return names, [[cell(row.get(name)) for name in names] for row in rows]


def cell(value: Any) -> str:
    """A value for people: four digits are enough of any measurement."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
