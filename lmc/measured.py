"""What runs cost, op by op: noted when a run is over, added up only when somebody asks.

A ledger keeps numbers alone: a result, and what its backend holds for it, lives no longer because it was measured.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from lmc.backend.base import Result, Usage
from lmc.backend.instructions import Run, case_key
from lmc.ir.core import DEFAULT, Case, Graph, Op, Symbol
from lmc.ir.ops import trait

RUNS_KEPT = 1000
ANSWERS_KEPT = 20_000
"""The latest runs of a trace tree that its ledger remembers, and the answers of all of them together."""

Key = tuple[str, int]
"""Stream and ordinal of an ask, as the graph names them."""


class Spent:
    """What one answer cost and when it was asked for and there; empty until then."""

    __slots__ = ("began", "ended", "usage")

    def __init__(self, result: Result) -> None:
        self.usage: Usage | None = None
        self.began, self.ended = result.began, 0.0
        if result.done:
            self._take(result)
        else:
            result.on_change(self._take)

    def _take(self, result: Result) -> None:
        if result.done and result.error is None:
            self.usage, self.ended = result.output().usage, result.ended


class Ledger:
    """The latest runs on a trace tree: which path each took, what its answers cost, and why it left the graph if it did."""

    def __init__(self) -> None:
        self._runs: deque[tuple[Sequence[Any], Mapping[Key, Spent]]] = deque()
        self._answers = 0
        self._lock = Lock()
        self.runs = 0  # all there were
        self.extended: Counter[str] = Counter()  # decisions with an answer that no run had given, by place
        self.replayed: Counter[str] = Counter()  # runs that the interpreter finished, by the reason

    def note(self, run: Run) -> None:
        """Takes the numbers of a run that is over."""
        start = len(run.stream)
        spent: dict[Key, Spent] = {}
        for (stream, ordinal), (_, _, after) in run.answers.items():
            if after.result is not None:
                spent[stream[start:], ordinal] = Spent(after.result)
        with self._lock:
            self.runs += 1
            self._answers += len(spent)
            self._runs.append((run.path, spent))
            while len(self._runs) > RUNS_KEPT or (self._answers > ANSWERS_KEPT and len(self._runs) > 1):
                self._answers -= len(self._runs.popleft()[1])

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
        for path, spent in runs:
            for label in blocks_of(graph, path):
                found.blocks[label] += 1
                for index, op, key in indices[label]:
                    one = spent.get(key)
                    if one is None or one.usage is None:
                        continue
                    before = spent.get(above[id(op)]) if id(op) in above else None
                    began = max(one.began, before.ended) if before is not None else one.began
                    found.ops.setdefault(index, Total()).add(one.usage, max(0.0, one.ended - began))
        return found


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
