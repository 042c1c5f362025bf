"""Experiments: points that are measured one after another, kept as soon as they are known, and not measured twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, cast

import lmc
from benchmarks.bench_programs import where
from experiments import MODULES
from lmc import named
from lmc.errors import LmcError
from lmc.measuring import Line, MeasuredMode

Row = dict[str, Any]
"""One line of figures: text, numbers, None where something does not apply."""


NOT_REACHED = "not reached yet: the same command goes on"
"""Why a point has no figures of which nothing else is known: the experiment was interrupted, or is running."""


ALL = "nothing: all points were measured"

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "arrivals": ("arrivals",), "percentiles to the first token": ("first p50",), "percentiles to the last answer": ("total p50",),
    "accuracy": ("accuracy", "score"),
}  # fmt: skip
"""Columns that every experiment should have of its programs, and the columns that do: where none of them is, the page says so, with the reason
(Experiment.lacks)."""
SYNTHETIC: Mapping[str, str] = {"accuracy": "the text is synthetic, no answer to it is right; `same` compares answers with the reference's"}
ONE_PROGRAM: Mapping[str, str] = {name: "one program at a time, and `seconds` is its whole time" for name in COLUMNS if name != "accuracy"}


class Unmeasured(Exception):
    """Why a point cannot be measured here: a peer that does not answer, a file that is not there, a device that is missing."""


@dataclass(frozen=True)
class Setup:
    """The device, model and backend of an experiment.

    n      items of a workload at most; 0: as many as the workload has by itself
    scale  factor on the lengths of prompts and answers
    peers  names of backends that run the same programs beside (lmc/named.py)
    data   a folder with data sets, for `quality`
    pool   tokens that an engine's KV pool holds; None: a part of the free memory
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
    pool: int | None = None

    def count(self, own: int) -> int:
        """Items of a workload that has so many by itself."""
        return min(own, self.n) if self.n else own

    def engine(self, **options: Any) -> Any:
        """Open the backend that is measured, with options of an engine where it is one. The caller closes it."""
        if not named.is_model(self.backend):
            if options:
                raise Unmeasured(f"{self.backend} takes no options of an engine ({', '.join(options)})")
            return named.open_backend(self.backend)
        return lmc.Engine(self.backend, device=self.device, load_format=self.load_format, **{"max_tokens": self.pool, **options})

    def card(self) -> Row:
        """Return the device's name, where it is a GPU."""
        if not self.device.startswith("cuda"):
            return {}
        import torch

        return {"gpu": torch.cuda.get_device_name(self.device) if torch.cuda.is_available() else "none"}

    def peer(self, name: str) -> Any:
        """Open a peer. The caller closes it."""
        return named.open_backend(name)


class Opened:
    """A backend that several points share: opened when the first of them asks for it, so that none is where all are measured already.

    One that could not be opened is not tried again: a peer that does not answer is waited for once.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._backend = make, None
        self._failed: Exception | None = None

    def __call__(self) -> Any:
        if self._failed is not None:
            raise self._failed
        if self._backend is None:
            try:
                self._backend = self._make()
            except (Unmeasured, LmcError, OSError, ImportError) as error:
                self._failed = error
                raise
        return self._backend

    @contextmanager
    def using(self) -> Generator[Any]:
        """The backend for one point; what a failed point has left of it is closed, and the next point opens another."""
        backend = self()
        try:
            yield backend
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()
        self._backend = None


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
    beside     it runs peers, too
    on_device  its figures are of a device; False where a stand-in, or a clock of its own, takes a model's place
    lacks      why it has no columns for some of COLUMNS
    """

    name: str
    question: str
    points: Callable[[Setup], Generator[Point]]
    plots: tuple[Plot, ...]
    reads: str
    paper: str = ""
    beside: bool = False
    on_device: bool = True
    lacks: Mapping[str, str] = field(default_factory=dict[str, str])


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    name: str, question: str, *plots: Plot, reads: str, paper: str = "", beside: bool = False, on_device: bool = True, lacks: Mapping[str, str] = {},
) -> Callable[[Callable[[Setup], Generator[Point]]], Experiment]:  # fmt: skip
    """Make an experiment of a function that gives its points."""

    def register(points: Callable[[Setup], Generator[Point]]) -> Experiment:
        EXPERIMENTS[name] = Experiment(name, question, points, plots, reads, paper, beside, on_device, lacks)
        return EXPERIMENTS[name]

    return register


def listed() -> list[Experiment]:
    """Return all experiments whose modules are loaded, in the order of `MODULES`."""
    return sorted(EXPERIMENTS.values(), key=lambda e: MODULES.index(e.points.__module__.rpartition(".")[2]))


def measured(runs: Sequence[MeasuredMode], reference: Sequence[MeasuredMode] = (), *, arrivals: str = "at once") -> Row:
    """The columns that every experiment on running programs has: how items arrive, times of the repetitions, percentiles of the one in the middle.

    reference  of the same items, another way; "same" is the share of items with its text and return value
    """
    ordered = sorted(runs, key=lambda run: run.seconds)
    pairs = [(a, b) for one, other in zip(runs, reference) for a, b in zip(one.texts, other.texts, strict=True)]
    return {
        "arrivals": arrivals, "n": len(runs[0].texts), "reps": len(runs), "seconds": median(run.seconds for run in runs), "least": ordered[0].seconds,
        "most": ordered[-1].seconds,
        **spreads(ordered[(len(ordered) - 1) // 2]), "same": sum(a == b for a, b in pairs) / len(pairs) if pairs else None,
    }  # fmt: skip


def spreads(run: MeasuredMode | Line) -> Row:
    """Percentiles of the times to an item's first text, and to its last answer."""
    return {f"{name} {share}": getattr(times, share) for name, times in (("first", run.first), ("total", run.total)) for share in ("p50", "p95", "p99")}


class NotAResult(Exception):
    """A file in the way of results holds something else."""


@dataclass
class Found:
    """The findings of an experiment so far: rows by point, and why others are missing."""

    setup: Row
    info: Row
    rows: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])
    unmeasured: dict[str, str] = field(default_factory=dict[str, str])

    @staticmethod
    def of(path: Path) -> Found:
        """Read from a file. Raises NotAResult where it holds something else."""
        try:
            read = json.loads(path.read_text("utf-8"))
            return Found(read["setup"], read["info"], {k: list(v) for k, v in read["rows"].items()}, dict(read["unmeasured"]))
        except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
            raise NotAResult(f"{path} is not the result of an experiment ({error!r}); delete it, or choose another --out") from None

    def all(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]

    def save(self, name: str, path: Path) -> None:
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"experiment": name, **asdict(self)}, indent=1, ensure_ascii=False) + "\n", "utf-8")
        part.replace(path)  # what is there is whole


def run(
    wanted: Experiment,
    setup: Setup,
    out: Path,
    *,
    fresh: bool = False,
    note: str = "",
    say: Callable[[str], object] = lambda line: print(line, file=sys.stderr, flush=True),
) -> Found:
    """Measure the points of an experiment that `out` does not hold for this setup and commit yet.

    fresh  measure all of them
    note   what a reader should know of the circumstances
    A point that cannot be measured (Unmeasured, an error of lmc's or of the operating system, a missing package) is noted and tried again the next time.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{wanted.name}.json"
    now = Found(asdict(setup), where() | setup.card() | ({"note": note} if note else {}))
    if path.exists() and not fresh:
        before = Found.of(path)
        if _same(before, now):
            now.rows = before.rows
        else:
            say(f"{wanted.name}: {path} is of {'a tree with changes' if _dirty(before, now) else 'another setup, commit or machine'}, and is measured anew")
    try:
        now.unmeasured = {point.key: NOT_REACHED for point in wanted.points(setup) if point.key not in now.rows}
    except Unmeasured as error:
        now.unmeasured = {"all": str(error)}
        say(f"{wanted.name}: {error}")
    now.save(wanted.name, path)
    with closing(wanted.points(setup)) as points:
        for point in points if "all" not in now.unmeasured else ():
            if point.key in now.rows:
                continue
            say(f"{wanted.name}: {point.key} …")
            try:
                now.rows[point.key] = _listed(point.measure())
                del now.unmeasured[point.key]
            except (Unmeasured, LmcError, OSError, ImportError) as error:
                now.unmeasured[point.key] = " ".join(str(error).split()) + (INSTALLED if isinstance(error, ModuleNotFoundError) else "")
                say(f"{wanted.name}: {point.key} was not measured: {now.unmeasured[point.key]}")
            now.save(wanted.name, path)
    return now


INSTALLED = ": `make clients` installs it, for `.venv-api/bin/python -m experiments`"
"""Said of a package that is missing."""


def _listed(rows: Row | Iterable[Row]) -> list[Row]:
    """Return the rows of a point: one, or several."""
    return [cast(Row, rows)] if isinstance(rows, dict) else [*rows]


OPTIONS: Mapping[str, str] = {"data": "FOLDER"}
"""Stands in a command for a value that is of one machine."""


def command(name: str, setup: Mapping[str, Any] | None) -> str:
    """Return the command that measures an experiment with such a setup."""
    own, words = asdict(Setup()), ["python -m experiments", name]
    for option, value in (setup or {}).items():
        if option in own and value != own[option] and value not in (None, [], ()):
            for each in value if option == "peers" else (OPTIONS.get(option, value),):
                words.append(f"--{option.removesuffix('s') if option == 'peers' else option.replace('_', '-')} {each}")
    return " ".join(words)


def missing(wanted: Experiment, found: Found) -> list[str]:
    """Return what these figures lack: points that were not measured and why, columns that are not there, and neither were peers and devices."""
    by_reason = dict[str, list[str]]()
    for key, why in found.unmeasured.items():
        by_reason.setdefault(why, []).append(key)
    lines = [f"{', '.join(keys)}: {why}" for why, keys in by_reason.items()]
    if wanted.beside and not found.setup.get("peers"):
        lines.append("other systems: no peer was given (`--peer`)")
    if wanted.on_device and found.setup.get("device", "cpu") == "cpu":
        lines.append("a GPU: these figures are of a CPU (`--device cuda`)")
    rows, absent = found.all(), dict[str, list[str]]()
    for name, columns in COLUMNS.items():
        if rows and not any(row.get(column) is not None for row in rows for column in columns):
            absent.setdefault(wanted.lacks.get(name, "not recorded when this was measured"), []).append(name)
    return lines + [f"{', '.join(names)}: {why}" for why, names in absent.items()]


def _same(before: Found, now: Found) -> bool:
    """Of one setup, commit and machine: figures of different ones do not belong into one table."""
    about = lambda found: json.dumps([found.setup, *(found.info.get(k) for k in ("commit", "machine", "gpu", "python"))], default=list)
    return about(before) == about(now) and not _dirty(now)


def _dirty(*found: Found) -> bool:
    """Of a tree with uncommitted changes: what two of these measure may be two programs."""
    return any(str(one.info.get("commit", "")).endswith("-dirty") for one in found)


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
