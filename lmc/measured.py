"""Measured cost of runs by the ops of a graph: the records of their ledgers, found by address and line, and summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lmc.backend.usage import Usage
from lmc.errors import Loc
from lmc.ir.builder import with_attrs, with_blocks
from lmc.ir.core import Block, Graph, Op
from lmc.ir.ops import trait

if TYPE_CHECKING:
    from lmc.runahead.ledger import Record


@dataclass(frozen=True, slots=True)
class Total:
    """Summed cost of a request in `count` runs. Seconds from the request to the answer; `ahead`: how many were made
    ahead and used."""

    count: int = 0
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    ahead: int = 0


@dataclass
class Measured:
    """Costs by the index of an op in `graph.ops()`, runs by the label of a block that they came through.

    elsewhere  requests of lines that the graph does not have; wasted: requests that were made ahead and not used, by line
    """

    ops: dict[int, Total] = field(default_factory=dict[int, Total])
    blocks: Counter[str] = field(default_factory=Counter[str])
    elsewhere: Counter[str] = field(default_factory=Counter[str])
    wasted: Counter[str] = field(default_factory=Counter[str])
    runs: int = 0


class Sites:
    """The requests of a graph by address and line, and by line alone: turns of a loop have other addresses than its
    body in the graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.home: dict[int, str] = {}
        self._at: dict[tuple[str, int, str, int], int] = {}
        self._on: dict[tuple[str, int], int] = {}
        index = 0
        for block in graph.blocks:
            for op in (*block.ops, block.terminator):
                if trait(op) == "samples" and op.loc is not None:
                    self.home[index] = block.label
                    self._on.setdefault(_line(op.loc), index)
                    for stream, ordinal in ((op.attr("stream"), op.attr("ordinal")), *op.attr("also", ())):
                        self._at.setdefault((stream, ordinal, *_line(op.loc)), index)
                index += 1

    def find(self, record: Record) -> int | None:
        """Return the index of the op that made the request, if the graph has one."""
        if record.loc is None:
            return None
        line = _line(record.loc)
        _, _, stream, ordinal = record.address
        return self._at.get((stream, ordinal, *line), self._on.get(line))


def measured(graph: Graph, runs: Iterable[Iterable[Record]]) -> Measured:
    """Attribute the records of runs to the ops of a graph."""
    sites, found = Sites(graph), Measured()
    for records in runs:
        found.runs += 1
        seen: set[str] = {graph.entry.label}
        for record in records:
            if record.ahead == "wasted":
                found.wasted[str(record.loc)] += 1
                continue
            index = sites.find(record)
            if index is None:
                found.elsewhere[str(record.loc)] += 1
                continue
            label: str | None = sites.home[index]
            while label is not None and label not in seen:
                seen.add(label)
                label = graph.predecessor.get(label)
            found.ops[index] = _plus(found.ops.get(index, Total()), record)
        found.blocks.update(seen)
    return found


def _plus(total: Total, record: Record) -> Total:
    spent = record.result.spent
    if spent is None:
        return total
    usage, began, ended = spent
    return replace(
        total, count=total.count + 1, usage=total.usage + usage, seconds=total.seconds + max(0.0, ended - began), ahead=total.ahead + (record.ahead == "used")
    )


def counted(graph: Graph, blocks: Mapping[str, int]) -> Graph:
    """Return the graph with counts of the runs that took each arm (attribute `taken`), where the requests tell it.

    One arm of a switch may make no request: it was taken by those runs that took no other.
    """
    asking = {label for op, label in _asks(graph) for label in _above(graph, label)}

    def with_counts(block: Block) -> Block:
        end = block.terminator
        silent = [label for _, label in end.cases if label not in asking]
        if end.kind != "switch" or len(silent) > 1 or not blocks.get(block.label):
            return block
        rest = max(0, blocks[block.label] - sum(blocks.get(label, 0) for _, label in end.cases if label not in silent))
        taken = tuple(rest if label in silent else blocks.get(label, 0) for _, label in end.cases)
        return replace(block, terminator=with_attrs(end, {**end.attrs, "taken": taken}))

    return with_blocks(graph, tuple(with_counts(block) for block in graph.blocks))


def runs_of(graph: Graph, blocks: Mapping[str, int]) -> dict[str, int]:
    """Return how many runs came through each block of a `counted` graph, without those of which no request tells it."""
    found = {label: n for label, n in blocks.items() if n}
    for block in graph.blocks:
        before = graph.predecessor.get(block.label)
        if before is not None and found.get(before) == 0:
            found.setdefault(block.label, 0)
        found.update((label, n) for (_, label), n in zip(block.terminator.cases, block.terminator.attr("taken", ())))
    return found


def _asks(graph: Graph) -> list[tuple[Op, str]]:
    return [(op, block.label) for block in graph.blocks for op in block.ops if trait(op) == "samples"]


def _above(graph: Graph, label: str | None) -> Iterable[str]:
    while label is not None:
        yield label
        label = graph.predecessor.get(label)


def _line(loc: Loc) -> tuple[str, int]:
    return loc.file, loc.line
