"""What runs cost, op by op: noted when a run is over, added up only when somebody asks.

A ledger keeps numbers alone: a result, and what its backend holds for it, lives no longer because it was measured.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Any

from lmc.backend.base import Result, Usage
from lmc.backend.instructions import Run, case_key
from lmc.errors import Loc
from lmc.ir.analysis import answers_needed
from lmc.ir.core import DEFAULT, Case, Graph, Op, Symbol
from lmc.ir.ops import trait
from lmc.prompt import Gen

RUNS_KEPT = 1000
ANSWERS_KEPT = 20_000
"""The latest runs of a trace tree that its ledger remembers, and the answers of all of them together."""

Key = tuple[str, int]
"""Stream and ordinal of an ask, as the graph names them."""


Spent = tuple[Usage, float, float]
"""What one answer cost, when it was asked for and when it was there."""


class Pending:
    """Stands for what an answer on its way will have cost; does not keep the answer."""

    __slots__ = ("spent",)

    def __init__(self, result: Result) -> None:
        self.spent: Spent | None = None
        result.on_change(self._take)

    def _take(self, result: Result) -> None:
        self.spent = result.spent


class Ledger:
    """The latest runs on a trace tree: which path each took, what its answers cost, and why it left the graph if it did."""

    def __init__(self) -> None:
        self._runs: deque[tuple[Sequence[Any], int, Sequence[Any]]] = deque()
        self._answers = 0  # four items each
        self._lock = Lock()
        self.runs = 0  # all there were
        self.extended: Counter[str] = Counter()  # decisions with an answer that no run had given, by place
        self.replayed: Counter[str] = Counter()  # runs that the interpreter finished, by the reason

    def note(self, run: Run) -> None:
        """Takes the numbers of a run that is over."""
        noted: list[Any] = []  # flat: one object a run for the garbage collector to look at
        for key, (_, _, after) in run.answers.items():
            result = after.result
            assert result is not None, "an answer ends the prompt"
            usage = result.usage
            noted += (key, Pending(result) if usage is None else usage, result.began, result.ended)
        with self._lock:
            self.runs += 1
            self._answers += len(noted)
            self._runs.append((run.path, len(run.stream), noted))
            while len(self._runs) > RUNS_KEPT or (self._answers > 4 * ANSWERS_KEPT and len(self._runs) > 1):
                self._answers -= len(self._runs.popleft()[2])

    def __len__(self) -> int:
        """How many runs are remembered."""
        return len(self._runs)

    def measured(self, graph: Graph) -> Measured:
        """What the runs that are remembered cost, for each op of the graph that they run on."""
        found = Measured()
        indices: dict[str, list[tuple[int, Op, Key]]] = {}  # the asks of each block
        index = 0
        for block in graph.blocks:
            asks = indices[block.label] = []
            for op in (*block.ops, block.terminator):
                if trait(op) == "samples":
                    asks.append((index, op, (op.attr("stream"), op.attr("ordinal"))))
                index += 1
        above = _asks_above(graph)
        with self._lock:
            runs = tuple(self._runs)
        for path, start, noted in runs:
            spent = _unpacked(noted, start)
            for label in blocks_of(graph, path):
                found.blocks[label] += 1
                for index, op, key in indices[label]:
                    one = _known(spent.get(key))
                    if one is None:
                        continue
                    usage, began, ended = one
                    before = _known(spent.get(above[id(op)])) if id(op) in above else None
                    if before is not None:
                        began = max(began, before[2])
                    found.ops.setdefault(index, Total()).add(usage, max(0.0, ended - began))
        return found


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer in a trace of a run. `after`: the answers that its prompt, and the values it was given, come from."""

    key: Key
    kind: str
    name: str | None
    loc: Loc | None
    spent: Spent | Pending
    parent: Key | None
    joined: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """A run in a trace."""

    number: int
    name: str
    index: int
    began: float
    ended: float
    replayed: bool
    failed: str
    asked: tuple[Asked, ...]


def recorded(run: Run, name: str, index: int, graph: Graph | None) -> Ran:
    """What a trace keeps of a run that is over; `graph` is the one it ran on."""
    of = {id(after.result): key for key, (_, _, after) in reversed(run.answers.items())}
    joins = _joins(graph, run) if graph is not None else {}
    asked: list[Asked] = []
    for key, (before, ask, after) in run.answers.items():
        result = after.result
        assert result is not None, "an answer ends the prompt"
        if of[id(result)] != key:  # merged into another
            continue
        node = before
        while node is not None and node.result is None:
            node = node.parent
        parent = of.get(id(node.result)) if node is not None else None
        kind = "gen" if isinstance(ask, Gen) else "select"
        asked.append(Asked(key, kind, ask.name, ask.loc, result.spent or Pending(result), parent, joins.get(key, ())))
    failed = type(run.error).__name__ if run.error is not None else ""
    return Ran(run.number, name, index, run.began, perf_counter(), run.taken, failed, tuple(asked))


def _joins(graph: Graph, run: Run) -> Mapping[Key, tuple[Key, ...]]:
    """For each ask on the run's path those whose answers it was given as values."""
    on_path = set(blocks_of(graph, run.path))
    keys: dict[int, Key] = {}
    index = 0
    for block in graph.blocks:
        for op in (*block.ops, block.terminator):
            if block.label in on_path and trait(op) == "samples":
                keys[index] = run.stream + op.attr("stream"), op.attr("ordinal")
            index += 1
    needed = answers_needed(graph)
    return {key: tuple(keys[j] for j in needed[i] if j in keys) for i, key in keys.items()}


@dataclass
class Total:
    """What an op cost in all runs together. `seconds`: from when its prompt was known to the answer."""

    count: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0

    def add(self, usage: Usage, seconds: float) -> None:
        self.count += 1
        self.usage += usage
        self.seconds += seconds


@dataclass
class Measured:
    """ops: totals by the index of the op in `graph.ops()`;  blocks: how many runs went through each."""

    ops: dict[int, Total] = field(default_factory=dict[int, Total])
    blocks: Counter[str] = field(default_factory=Counter[str])


def blocks_of(graph: Graph, path: Iterable[Any]) -> Iterator[str]:
    """Labels of the blocks that a run went through which gave these answers to the decisions."""
    block = graph.entry
    answers = iter(path)
    while True:
        yield block.label
        if not block.terminator.cases:
            return
        try:
            wanted = case_key(next(answers))
        except StopIteration:
            return
        label = default = None
        for case, target in block.terminator.cases:
            if case is DEFAULT:
                default = target
            elif case_key(_object(graph, case)) == wanted:
                label = target
                break
        if label is None and default is None:
            return
        block = graph.block[label or default]  # type: ignore[index]


def _unpacked(noted: Sequence[Any], start: int) -> dict[Key, Spent | Pending]:
    """What a run noted, by the asks' streams as the graph names them, which begin at `start` of the run's own."""
    return {
        (stream[start:], ordinal): usage if isinstance(usage, Pending) else (usage, began, ended)
        for (stream, ordinal), usage, began, ended in zip(noted[::4], noted[1::4], noted[2::4], noted[3::4], strict=True)
    }


def _known(spent: Spent | Pending | None) -> Spent | None:
    return spent.spent if isinstance(spent, Pending) else spent


def _object(graph: Graph, case: Case) -> Any:
    return graph.symbols.get(case.name) if isinstance(case, Symbol) else case


def _asks_above(graph: Graph) -> Mapping[int, Key]:
    """For each ask (by the identity of its op) the last ask in its prompt, which it has to wait for."""
    last: dict[Any, Key] = {}
    found: dict[int, Key] = {}
    for op in graph.ops():
        before = last.get(op.operands[0]) if op.operands else None
        if trait(op) == "samples":
            if before is not None:
                found[id(op)] = before
            before = op.attr("stream"), op.attr("ordinal")
        if before is not None:
            last.update((v, before) for v in op.results if v.type == "ctx")
    return found
