"""Layout of a graph's drawing: its prompts as boxes, layer by layer from their common beginning. Geometry only, no ink.

A box is a run of text up to an answer or a fork, so that a program of hundreds of ops stays a picture. Boxes never
overlap: layers are apart by a gap, and inside of a layer each box has lanes of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lmc.ir.analysis import ctx_children
from lmc.ir.core import DEFAULT, Graph, Op, Value
from lmc.ir.ops import trait

WIDTH, HEIGHT = 196, 40
"""Size of a box, in pixels."""
ALONG, ACROSS = 56, 12
"""The gap from layer to layer, and between neighbours."""
FEW = 24
"""Most boxes in a picture that centres each over its children; in larger ones it is beside the first of them, so that
the beginning of everything is at the top left."""


@dataclass(eq=False)
class Box:
    """The contents of one box: ops by their index in `graph.ops()`, in the order in which they extend the prompt.

    case  the decision that leads to this step from the one before; "" for none
    """

    ops: list[int]
    block: str
    asks: bool
    case: str = ""
    children: list[Box] = field(default_factory=list["Box"])
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class GraphLayout:
    """Placed steps, and the size of the picture. `down`: layers go downwards, else to the right."""

    steps: tuple[Box, ...]
    roots: tuple[Box, ...]
    width: float
    height: float
    down: bool


def picture(graph: Graph) -> GraphLayout:
    """Lay out the prompts of a graph as placed steps, in the direction that needs less width."""
    import networkx as nx

    roots = _steps(graph)
    tree: nx.DiGraph[Any] = nx.DiGraph()
    stack = list(roots)
    tree.add_nodes_from(roots)
    while stack:
        step = stack.pop()
        tree.add_edges_from((step, child) for child in step.children)
        stack.extend(step.children)
    layers: list[list[Box]] = [list(layer) for layer in nx.topological_generations(tree)]
    order = [v for root in roots for v in nx.dfs_postorder_nodes(tree, root)]
    lane: dict[Box, float] = {}
    leaves = 0
    for step in order:
        below = [lane[child] for child in step.children]
        middle = (below[0] + below[-1]) / 2 if below else leaves
        lane[step] = middle if len(order) <= FEW else below[0] if below else leaves
        leaves += not below
    down = len(layers) > leaves
    for depth, layer in enumerate(layers):
        for step in layer:
            if down:
                step.x, step.y = 8 + lane[step] * (WIDTH + ACROSS), 8 + depth * (HEIGHT + ALONG * 0.6)
            else:
                step.x, step.y = 8 + depth * (WIDTH + ALONG), 8 + lane[step] * (HEIGHT + ACROSS)
    width = max((s.x for s in order), default=0) + WIDTH + 8
    height = max((s.y for s in order), default=0) + HEIGHT + 8
    return GraphLayout(tuple(order), tuple(roots), width, height, down)


def _steps(graph: Graph) -> list[Box]:
    """Return the trees of steps, from the prompts that extend no other."""
    children, goes_on = ctx_children(graph), _goes_on(graph)
    index = {id(op): i for i, op in enumerate(graph.ops())}
    block = {id(op): b.label for b in graph.blocks for op in (*b.ops, b.terminator)}
    roots: list[Box] = []
    home = {v: b.label for b in graph.blocks for v in b.params}
    starts: list[tuple[Box | None, Value, Op | None, bool]] = [(None, v, None, False) for v in graph.params if v.type == "ctx"]
    starts += [(None, op.results[0], op, False) for op in graph.ops() if op.results and op.results[0].type == "ctx" and not _extends(op)]
    drawn = {p for params in goes_on.values() for p in params}
    starts += [(None, p, None, False) for p in home if p.type == "ctx" and p not in drawn]  # nothing extends it
    while starts:
        parent, value, op, alone = starts.pop()
        ops: list[int] = []
        asks, label = False, block[id(op)] if op is not None else home.get(value, graph.entry.label)
        while True:
            if op is not None:
                ops.append(index[id(op)])
                asks = trait(op) == "samples"
            following = children.get(value, ())
            if asks or len(following) != 1 or block[id(following[0])] != label or value in goes_on:
                break
            op = following[0]
            value = _prompt(op)
        if not asks and parent is not None and parent.asks and parent.block == label and alone:
            parent.ops += ops  # text that only closes an answer
            step = parent
        else:
            step = Box(ops, label, asks)
            (roots if parent is None else parent.children).append(step)
            if parent is not None and parent.block != label:
                step.case = _case(graph, parent.block, label)
        alone = len(following) == 1 and value not in goes_on
        further = [p for p in goes_on.get(value, list[Value]()) if children.get(p) or p in goes_on]
        starts += [(step, param, None, False) for param in reversed(further)]
        starts += [(step, _prompt(child), child, alone) for child in reversed(following)]
    return list(reversed(roots)) if len(roots) > 1 else roots


def _goes_on(graph: Graph) -> dict[Value, list[Value]]:
    """Return, for each prompt, the block parameters drawn after it: those that it feeds from the first arm, or the last
    turn."""
    found: dict[Value, list[Value]] = {}
    for block in graph.blocks:
        above = graph.predecessor.get(block.label)
        for param in block.params:
            given = [v for v in graph.feeds[param] if isinstance(v, Value) and v.type == "ctx" and v is not param]
            if given and above is not None:
                behind = graph.block[above].terminator
                found.setdefault(given[-1 if behind.kind == "loop" and behind.then == block.label else 0], []).append(param)
    return found


def _extends(op: Op) -> bool:
    return bool(op.operands) and isinstance(op.operands[0], Value) and op.operands[0].type == "ctx"


def _prompt(op: Op) -> Value:
    return next(v for v in op.results if v.type == "ctx")


def _case(graph: Graph, above: str, label: str) -> str:
    """Return the first decision on the path from a block to one below it, as a person reads it."""
    while (before := graph.predecessor.get(label)) is not None and before != above:
        label = before
    if before is None:
        return ""
    end = graph.block[before].terminator
    if end.then == label:
        return ""
    case = next(case for case, target in end.cases if target == label)
    return "each" if end.kind == "loop" else "other" if case is DEFAULT else str(case)
