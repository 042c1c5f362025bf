"""Questions about graphs: paths, def-use, the ctx (fork) tree, liveness, dominators, the critical path.

Results computed by networkx are networkx graphs; it is imported late, so that the IR loads without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from lmc.ir.core import Graph, Op, Value
from lmc.ir.ops import trait

if TYPE_CHECKING:
    import networkx as nx


# -- blocks --------------------------------------------------------------------------------------------------------


def path_to(graph: Graph, label: str) -> tuple[str, ...]:
    """Return labels of the blocks that dominate `label`, from the entry on, itself included. Arms that join at it are
    not among them."""
    path = [label]
    while (label := graph.predecessor.get(label, "")) != "":
        path.append(label)
    return tuple(reversed(path))


def dominance(graph: Graph) -> Callable[[str, str], bool]:
    """Return `above(a, b)`: whether block `a` dominates block `b` (or is `b`). Each block must come after the one that
    names it."""
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


def always(graph: Graph) -> frozenset[str]:
    """Return labels of the blocks executed by every run that ends without an exception."""
    early: set[str] = set()  # blocks with an arm, at any depth, that may leave the region
    for b in graph.blocks:
        label = b.label if b.terminator.attr("leaves") else graph.region[b.label] if b.terminator.kind == "return" else ""
        while label:
            early.add(label)
            label = graph.region[label]
    found = {graph.entry.label}
    for b in graph.blocks:
        then = b.terminator.then
        if then is not None and b.label in found and b.label not in early:
            found.add(then)
    return frozenset(found)


# -- values and ops ------------------------------------------------------------------------------------------------


def def_use(graph: Graph) -> nx.DiGraph[int]:
    """Return ops by their index in `graph.ops()`, an edge for each value that one defines and the other uses (attribute
    `values`).

    A parameter of a block is defined by the ops that yield it; loop-carried values of a loop's body are no edges."""
    import networkx as nx

    found: nx.DiGraph[int] = nx.DiGraph()
    giver: dict[Value, tuple[int, ...]] = {}
    yielded = _yielded(graph)
    for i, op in enumerate(graph.ops()):
        found.add_node(i, op=op)
        for v in dict.fromkeys(op.uses):
            for j in giver.get(v) or (j for j in yielded.get(v, ()) if j < i):
                values = found.edges[j, i]["values"] if found.has_edge(j, i) else ()
                found.add_edge(j, i, values=(*values, v))
        giver.update((v, (i,)) for v in op.results)
    return found


def _yielded(graph: Graph) -> Mapping[Value, tuple[int, ...]]:
    """Return, for each parameter of a block, the terminators, by index, that yield it."""
    found: dict[Value, list[int]] = {}
    index = {id(op): i for i, op in enumerate(graph.ops())}
    for block in graph.blocks:
        end = block.terminator
        i = index[id(end)]
        if end.kind == "loop":
            targets = block.successors
        elif end.kind in ("yield", "continue", "break"):
            owner = graph.region[block.label] if end.kind == "yield" else graph.loop_around(block.label)
            around = graph.block[owner or ""].terminator
            targets = (around.then,) if around.kind == "switch" or end.kind == "break" else (around.cases[0][1], around.then)
        else:
            continue
        for label in targets:
            for v in graph.block[label or ""].params:
                found.setdefault(v, []).append(i)
    return {v: tuple(given) for v, given in found.items()}


def critical_path(graph: Graph, cost: Callable[[Op], float]) -> tuple[float, tuple[Op, ...]]:
    """Return the chain of dependent ops with the largest sum of costs: no schedule is faster. Costs are not negative.

    An op waits for those whose values it uses, and for the decision that leads to its block.
    """
    import networkx as nx

    waits, ops = def_use(graph), list(graph.ops())
    label = [b.label for b in graph.blocks for _ in (*b.ops, b.terminator)]
    decision = {of: i for i, of in enumerate(label)}  # the terminator of each block: its last op
    start = -1
    for i in range(len(ops)):
        waits.add_edge(start, i)
        if (above := graph.predecessor.get(label[i])) is not None:
            waits.add_edge(decision[above], i)
    for _, i, edge in waits.edges(data=True):
        edge["weight"] = cost(ops[i])
    chain = [ops[i] for i in nx.dag_longest_path(waits)[1:]]
    return sum(map(cost, chain)), tuple(chain)


def _ops_with_params(graph: Graph, made: dict[Value, frozenset[int]]) -> Iterator[tuple[int, Op]]:
    """Yield ops by index; before those of a block, the sources of its parameters are put into `made`."""
    i = 0
    for block in graph.blocks:
        for param in block.params:
            given = (made.get(v, frozenset[int]()) for v in graph.feeds[param] if isinstance(v, Value))
            made[param] = frozenset[int]().union(*given)
        for op in (*block.ops, block.terminator):
            yield i, op
            i += 1


def answers_put(graph: Graph) -> Mapping[int, tuple[int, ...]]:
    """Return, for each op that extends a prompt (by its index in `graph.ops()`), the requests whose answers it inserts
    there itself, except those already in its prompt."""
    made: dict[Value, frozenset[int]] = {}  # the requests that a value depends on; for a prompt the last ones in it
    found: dict[int, tuple[int, ...]] = {}
    for i, op in _ops_with_params(graph, made):
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


def ctx_children(graph: Graph) -> Mapping[Value, tuple[Op, ...]]:
    """Return, for each prompt, the ops that extend it, in order: two or more make it a fork point."""
    return graph.extended
