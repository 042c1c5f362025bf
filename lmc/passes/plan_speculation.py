"""Speculation on APIs, where every request costs a round trip: one request for a chain of gen, constant text, gen, …

The first gen gets a template (attribute `lookahead`): alternately text, and the stream and ordinal of a gen. As Python makes its requests, the ledger
checks the answer against the template; if it does not match, the requests are made one by one. A gen can be part of a chain only if the text after it begins
with one of its stops, which shows where the answer ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.analysis import ctx_children
from lmc.ir.builder import Rewriter, rewrite, with_attrs
from lmc.ir.core import Attr, Graph, Op, Value, exact
from lmc.ir.ops import address, request
from lmc.passes.base import Pass, PassContext, register

_CONSTRAINTS = ("regex", "json_schema", "ebnf", "lark", "structural_tag", "dtype", "constraint", "tools")


@register
@dataclass(frozen=True)
class PlanSpeculation(Pass):
    """Gives chains of gens a template for one request (APIs).

    max_gens   how many gens one request may cover
    """

    name: ClassVar[str] = "plan-speculation"
    max_gens: int = 8

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if ctx.target.kind == "tokens":
            return graph
        children = ctx_children(graph)
        home = {id(op): b.label for b in graph.blocks for op in b.ops}
        found: dict[Value, tuple[Attr, ...]] = {}
        for block in reversed(graph.blocks):
            for op in reversed(block.ops):
                step = _next_gen(graph, children, op) if op.kind == "gen" else None
                if step is None:
                    continue
                text, following = step
                if home[id(following)] == block.label and address(following) is not None and _ends_before(op, text) and _same_request(op, following):
                    rest = found.get(following.results[0], ())[: 2 * (self.max_gens - 2)]
                    found[op.results[0]] = (text, (following.attr("stream"), following.attr("ordinal")), *rest)

        def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
            template = found.get(op.results[0]) if op.kind == "gen" else None
            if template is None or op.attr("lookahead") == template:
                return None
            ctx.count("gens that cover others")
            return (with_attrs(op, {**op.attrs, "lookahead": template}),)

        return rewrite(graph, rule) if found else graph


def _next_gen(graph: Graph, children: Mapping[Value, tuple[Op, ...]], op: Op) -> tuple[str, Op] | None:
    """Return the constant text and the gen that are a gen's only continuation; None otherwise."""
    appended = children[op.results[0]]
    if len(appended) != 1 or appended[0].kind != "append":
        return None
    text = appended[0].operands[1:]
    following = children[appended[0].results[0]]
    if len(text) != 1 or not isinstance(text[0], str) or len(following) != 1 or following[0].kind != "gen":
        return None
    if any(user.kind in ("unknown", "yield", "continue", "break", "loop") for v in (op.results[0], appended[0].results[0]) for user in graph.users.get(v, ())):
        return None  # something unknown may follow, too
    return text[0], following[0]


def _ends_before(op: Op, text: str) -> bool:
    """Return whether the text after a gen marks the end of its answer."""
    stop = op.attr("stop")
    stops = (stop,) if isinstance(stop, str) else stop or ()
    return any(isinstance(s, str) and s and text.startswith(s) for s in stops)


def _same_request(op: Op, following: Op) -> bool:
    """Return whether one request can sample both: one answer each, equal except for names and lengths,
    unconstrained."""
    both = (op, following)
    if any(g.attr("params") or g.attr("n", 1) != 1 or g.attr("return_logprob") for g in both):
        return False
    if any(name in g.attrs for g in both for name in _CONSTRAINTS):
        return False
    one, other = ({k: exact(v) for k, v in request(g, but=("max_tokens", "stop")).items()} for g in both)
    return one == other
