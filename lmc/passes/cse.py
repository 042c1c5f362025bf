"""Common subexpressions: an op that equals an earlier one on the same path is replaced by it.

Sampling ops are merged only at temperature 0, where equal prompts and parameters have the same answer: the op's own temperature, or
without one the target's default, must be a constant 0. Merged requests keep their
addresses: the remaining one lists the others (attribute `also`), and the ledger gives them its answer if prompt and parameters turn
out to be equal when Python makes the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.analysis import dominance
from lmc.ir.builder import Rewriter, rewrite, with_attrs
from lmc.ir.core import Attr, Graph, Op, Value, exact
from lmc.ir.ops import IDENTITY, trait
from lmc.passes.base import Pass, PassContext, register


@register
@dataclass(frozen=True)
class Cse(Pass):
    """Merges equal pure ops, and equal gens and selects at temperature 0, with the first that dominates them."""

    name: ClassVar[str] = "cse"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        dominates = dominance(graph)
        seen: dict[object, list[tuple[str, Op]]] = {}
        merged: dict[Value, list[Attr]] = {}  # identities of the requests merged into the one that defines this prompt

        def rule(op: Op, rewriter: Rewriter) -> Sequence[Op] | None:
            key = _key(op, graph, ctx.target.greedy)
            if key is None:
                return None
            known = seen.setdefault(key, [])
            for label, before in known:
                if dominates(label, rewriter.label):
                    for old, new in zip(op.results, before.results, strict=True):
                        rewriter.replace(old, new)
                    if trait(op) == "samples":
                        merged.setdefault(before.results[0], []).extend(_identities(op))
                    ctx.count("calls saved" if trait(op) == "samples" else "merged")
                    return ()
            known.append((rewriter.label, op))
            return None

        graph = rewrite(graph, rule)
        return _noted(graph, merged) if merged else graph


def _key(op: Op, graph: Graph, greedy: bool) -> object:
    """Return the key that equal ops share; None for an op that is never merged."""
    if op.results and trait(op) == "pure":
        attrs = op.attrs
    elif trait(op) == "samples" and not op.attr("shifted") and _is_greedy(op, greedy) and _is_only_text(op, graph):
        # at temperature 0 no seed is used; requests planned differently, or stored under other names, stay separate
        attrs = {name: value for name, value in op.attrs.items() if name not in IDENTITY and name != "seed"}
    else:
        return None
    items = tuple(sorted((name, exact(value)) for name, value in attrs.items()))
    return op.kind, exact(op.operands), items, tuple(v.type for v in op.results)


def _is_greedy(op: Op, greedy: bool) -> bool:
    temperature = op.attr("temperature")
    if op.kind == "gen" and temperature is None:
        return greedy and "temperature" not in op.attr("params", ())
    return isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0


def _is_only_text(op: Op, graph: Graph) -> bool:
    """Return whether the program sees the answer as a text alone. Meta info and lists of answers are objects that it
    could mutate."""
    _, value, meta = op.results
    return value.type == "str" and meta not in graph.users


def _identities(op: Op) -> tuple[Attr, ...]:
    return ((op.attr("stream"), op.attr("ordinal")), *op.attr("also", ()))


def _noted(graph: Graph, merged: Mapping[Value, Sequence[Attr]]) -> Graph:
    """Return the graph in which requests list those that they also answer."""

    def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
        if not op.results or op.results[0] not in merged:
            return None
        return (with_attrs(op, {**op.attrs, "also": (*op.attr("also", ()), *merged[op.results[0]])}),)

    return rewrite(graph, rule)
