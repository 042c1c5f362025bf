"""Shrinking graphs: the smallest graph, by steps that each keep it valid, on which something still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lmc.errors import IRError
from lmc.ir import Block, Graph, Op, Value, rewrite, verify
from lmc.ir.builder import preorder, with_attrs, with_operands
from lmc.ir.core import Operand
from lmc.passes.manager import stage_of


def shrunk(graph: Graph, fails: Callable[[Graph], bool]) -> Graph:
    """Takes away an op, an arm or an operand at a time for as long as the rest is valid and still fails."""
    smaller: Graph | None = graph
    while smaller is not None:
        graph = smaller
        smaller = next((g for g in _steps(graph) if _valid(g) and fails(g)), None)
    return graph


def _valid(graph: Graph) -> bool:
    try:
        verify(graph, stage_of(graph))
    except IRError:
        return False
    return True


def _steps(graph: Graph) -> Iterator[Graph]:
    """Graphs one step smaller, the boldest steps first."""
    for block in graph.blocks:
        if block.terminator.then is None:
            for label in block.successors:
                yield _only_arm(graph, block, graph.block[label])
    for block in graph.blocks:
        if block.terminator.kind != "raise":
            ended = Block(block.label, block.ops, Op("raise", (None,)), block.params)
            yield _with(graph, {b.label: ended if b is block else b for b in graph.blocks})
    for op in reversed([op for block in graph.blocks for op in block.ops]):
        yield _without(graph, op)
    for op in graph.ops():
        for i in range(len(op.operands)):
            yield _replaced(graph, op, with_operands(op, (*op.operands[:i], *op.operands[i + 1 :])))
        for name in op.attrs:
            attrs = {k: v for k, v in op.attrs.items() if k != name}
            yield _replaced(graph, op, with_attrs(op, attrs))
        if op.loc is not None:
            yield _replaced(graph, op, replace(op, loc=None))


def _only_arm(graph: Graph, block: Block, arm: Block) -> Graph:
    """The graph with an arm in the place of the switch that leads to it."""
    joined = Block(block.label, (*block.ops, *arm.ops), arm.terminator, block.params)
    return _with(graph, {b.label: joined if b is block else b for b in graph.blocks if b is not arm})


def _with(graph: Graph, blocks: dict[str, Block]) -> Graph:
    reached = preorder(blocks, graph.entry.label)
    seen = {graph.entry.label, *(label for b in reached for label in b.successors)}
    kept = tuple(b for b in reached if b.label in seen)
    kept = tuple(b for b in kept if b.label == graph.entry.label or any(b.label in k.successors for k in kept))
    return Graph(graph.name, graph.params, kept, graph.result, graph.constants)


def _without(graph: Graph, gone: Op) -> Graph:
    """The graph without an op: its prompt stands for the one it gave, a literal for each other result."""

    def rule(op: Op, rewriter: object) -> tuple[Op, ...] | None:
        if op.results != gone.results or op.kind != gone.kind or not (op.results or op.operands == gone.operands):
            return None
        for v in gone.results:
            stand_in: Operand = "" if v.type == "str" else None
            if v.type == "ctx":
                parent = op.operands[0] if op.operands else None
                stand_in = parent if isinstance(parent, Value) else v
            rewriter.replace(v, stand_in)  # pyright: ignore[reportAttributeAccessIssue]
        return ()

    return rewrite(graph, rule)


def _replaced(graph: Graph, old: Op, new: Op) -> Graph:
    blocks = {
        b.label: Block(
            b.label,
            tuple(new if op is old else op for op in b.ops),
            new if b.terminator is old else b.terminator,
            b.params,
        )
        for b in graph.blocks
    }
    return Graph(graph.name, graph.params, tuple(blocks.values()), graph.result, graph.constants)
