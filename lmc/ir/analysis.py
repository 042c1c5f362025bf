"""Questions about graphs: paths, def-use, the ctx (fork) tree, liveness, dominators, the critical path.

Answers that networkx gives are networkx graphs; the import is late, so that the IR starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from lmc.ir.core import Graph, Op, Value
from lmc.ir.ops import trait

if TYPE_CHECKING:
    import networkx as nx


# -- blocks --------------------------------------------------------------------------------------------------------


def path_to(graph: Graph, label: str) -> tuple[str, ...]:
    """Labels of the blocks from the entry to `label`, both included."""
    path = [label]
    while (label := graph.predecessor.get(label, "")) != "":
        path.append(label)
    return tuple(reversed(path))


def dominance(graph: Graph) -> Callable[[str, str], bool]:
    """`above(a, b)`: whether block `a` is on the path to block `b` (or is `b`). Each block must stand after its predecessor."""
    size = {b.label: 1 for b in graph.blocks}  # of the subtree
    for b in reversed(graph.blocks):
        size[b.label] += sum(size[succ] for succ in b.successors)
    start = {graph.entry.label: 0}  # number in preorder
    for b in graph.blocks:
        at = start[b.label] + 1
        for succ in b.successors:
            start[succ] = at
            at += size[succ]
    return lambda a, b: start[a] <= start[b] < start[a] + size[a]


def dominators(graph: Graph) -> Mapping[str, str]:
    """Immediate dominator of each block; the entry's is itself. In a tree it is the predecessor."""
    import networkx as nx

    tree: nx.DiGraph[str] = nx.DiGraph()
    tree.add_node(graph.entry.label)
    tree.add_edges_from((b.label, succ) for b in graph.blocks for succ in b.successors)
    found: dict[str, str] = dict(nx.immediate_dominators(tree, graph.entry.label))  # pyright: ignore
    found[graph.entry.label] = graph.entry.label  # some versions leave the start out or give None
    return found


# -- values and ops ------------------------------------------------------------------------------------------------


def def_use(graph: Graph) -> nx.DiGraph[int]:
    """Ops by their index in `graph.ops()`, an edge for each value that one gives and the other uses (attribute `values`)."""
    import networkx as nx

    found: nx.DiGraph[int] = nx.DiGraph()
    giver: dict[Value, int] = {}
    for i, op in enumerate(graph.ops()):
        found.add_node(i, op=op)
        for v in dict.fromkeys(op.uses):
            if v in giver:
                values = found.edges[giver[v], i]["values"] if found.has_edge(giver[v], i) else ()
                found.add_edge(giver[v], i, values=(*values, v))
        giver.update((v, i) for v in op.results)
    return found


def topological(graph: Graph) -> tuple[Op, ...]:
    """Ops in an order in which each stands after those it needs; ties by their place in the graph."""
    import networkx as nx

    ops = list(graph.ops())
    return tuple(ops[i] for i in nx.lexicographical_topological_sort(def_use(graph)))


def critical_path(graph: Graph, cost: Callable[[Op], float]) -> tuple[float, tuple[Op, ...]]:
    """The chain of ops that wait for one another with the largest sum of costs: no schedule is faster. Costs are not negative.

    An op waits for those whose values it uses, and for the decision that leads to its block.
    """
    best: list[tuple[float, int | None]] = []
    giver: dict[Value, int] = {}
    ops = list(graph.ops())
    label = [b.label for b in graph.blocks for _ in range(len(b.ops) + 1)]
    end = {label[i]: i for i in range(len(ops))}
    for i, op in enumerate(ops):
        needed = [giver[v] for v in op.uses if v in giver]
        if label[i] in graph.predecessor:
            needed.append(end[graph.predecessor[label[i]]])
        before = max(needed, key=lambda j: best[j][0], default=None)
        best.append((cost(op) + (best[before][0] if before is not None else 0), before))
        giver.update((v, i) for v in op.results)
    last: int | None = max(range(len(ops)), key=lambda i: best[i][0])
    total, chain = best[last][0], list[Op]()
    while last is not None:
        chain.append(ops[last])
        last = best[last][1]
    return total, tuple(reversed(chain))


def answers_needed(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """For each ask (gen or select, by its index in `graph.ops()`) the asks whose answers it is given as values: what it
    waits for besides the answers that are in its prompt where they were sampled."""
    made: dict[Value, frozenset[int]] = {}  # the asks that a value, or the text of a prompt since its last answer, comes from
    found: dict[int, tuple[int, ...]] = {}
    for i, op in enumerate(graph.ops()):
        needed = frozenset[int]().union(*(made.get(v, frozenset()) for v in op.uses))
        if trait(op) == "samples":
            found[i] = tuple(sorted(needed))
            made.update((v, frozenset() if v.type == "ctx" else frozenset({i})) for v in op.results)
        elif needed:
            made.update((v, needed) for v in op.results)
    return found


def answers_put(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """For each op that goes on from a prompt (by its index in `graph.ops()`) the asks whose answers it puts there itself,
    and not those that are in its prompt already."""
    made: dict[Value, frozenset[int]] = {}  # the asks that a value comes from; of a prompt the last one in it
    found: dict[int, tuple[int, ...]] = {}
    for i, op in enumerate(graph.ops()):
        goes_on = any(v.type == "ctx" for v in op.results)
        put = frozenset[int]().union(*(made.get(v, frozenset()) for v in op.uses if not (goes_on and v.type == "ctx")))
        if goes_on:
            found[i] = tuple(sorted(put))
        for v in op.results:
            if trait(op) == "samples":
                made[v] = frozenset({i})
            elif v.type != "ctx":
                made[v] = put
            elif op.operands and isinstance(op.operands[0], Value):
                made[v] = made.get(op.operands[0], frozenset())
    return found


# -- prompts -------------------------------------------------------------------------------------------------------


def ctx_parent(graph: Graph, value: Value) -> Value | None:
    """The prompt that a prompt extends; None for `ctx.new` and parameters."""
    op = graph.producer.get(value)
    parent = op.operands[0] if op is not None and op.operands else None
    return parent if isinstance(parent, Value) else None


def ctx_children(graph: Graph) -> Mapping[Value, tuple[Op, ...]]:
    """For each prompt the ops that extend it, in order: two or more make it a fork point."""
    return graph.extended


def ctx_tree(graph: Graph) -> nx.DiGraph[Value]:
    """The fork tree: prompts as nodes, an edge (attribute `op`) from each to those that extend it."""
    import networkx as nx

    tree: nx.DiGraph[Value] = nx.DiGraph()
    for parent, ops in ctx_children(graph).items():
        tree.add_node(parent)
        for op in ops:
            tree.add_edge(parent, next(v for v in op.results if v.type == "ctx"), op=op)
    return tree


def _operands(op: Op) -> Iterable[Value]:
    return op.uses


def live_in(graph: Graph, used: Callable[[Op], Iterable[Value]] | None = None) -> Mapping[str, frozenset[Value]]:
    """Values that each block or one after it still uses and that were defined before it.

    `used` says which values an op uses; by default its operands.
    """
    uses: Callable[[Op], Iterable[Value]] = used or _operands
    live: dict[str, frozenset[Value]] = {}
    for block in reversed(graph.blocks):
        now = set[Value]().union(*(live[succ] for succ in block.successors))
        now.update(uses(block.terminator))
        for op in reversed(block.ops):
            now.difference_update(op.results)
            now.update(uses(op))
        live[block.label] = frozenset(now)
    return live


def last_uses(graph: Graph, value: Value) -> Mapping[str, int]:
    """Where each path stops using a value: block label → index of the last op that uses it (the terminator's is `len(ops)`),
    or -1 for a block that it reaches alive only for the sake of a sibling."""
    live = live_in(graph)
    found: dict[str, int] = {}
    home = next((b.label for b in graph.blocks for op in b.ops if value in op.results), graph.entry.label)
    stack = [home] if value in graph.users else []
    while stack:
        block = graph.block[stack.pop()]
        if any(value in live[succ] for succ in block.successors):
            stack.extend(block.successors)
        else:
            found[block.label] = max(
                (i for i, op in enumerate((*block.ops, block.terminator)) if value in op.uses), default=-1
            )
    return found
