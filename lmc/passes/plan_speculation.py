"""Speculation: what can be asked or computed before it is known to be needed. Decides; does not execute; never effects.

* For APIs, whose every request costs a round trip: a chain gen, constant text, gen, … that one request can cover. The first
  gen gets a template (attribute `lookahead`): text and the stream and ordinal of a gen, in turns. Whoever executes it has
  to verify the answer against the template, and to ask gen by gen where it does not fit (semantics: never an empty value).
  A gen can be followed only if the text behind it shows where it ends: it begins with one of the gen's stops.
* For targets with a KV cache: when a decision between two arms waits for an answer, and an arm goes on from a prompt that
  does not contain this answer, the constant text that the arm begins with is prefilled before the decision and released
  on the path that does not need it. No call is made ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.analysis import ctx_children
from lmc.ir.builder import Rewriter, rewrite, with_attrs, with_blocks, with_operands
from lmc.ir.core import Attr, Block, Graph, Op, Operand, Value, exact
from lmc.ir.ops import request, trait
from lmc.passes.manager import Pass, PassContext, register
from lmc.passes.plan_prefix import Fork, Insertions, Tree, asked_from, constant_parts, insert_release, plain_size

_CONSTRAINTS = ("regex", "json_schema", "ebnf", "lark", "structural_tag", "dtype", "constraint")


@register
@dataclass(frozen=True)
class PlanSpeculation(Pass):
    """Gives chains of gens templates for one request (APIs); prefills arms of decisions that wait for an answer (others).

    max_gens   gens that one request may cover
    max_chars  constant text that an arm may begin with for its prefill to be cheap
    min_chars  text shorter than this is not worth one
    """

    name: ClassVar[str] = "plan-speculation"
    max_gens: int = 8
    max_chars: int = 400
    min_chars: int = 16

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if ctx.target.kind != "tokens":
            return self._lookahead(graph, ctx)
        return self._prefill_arms(graph, ctx)

    # -- templates

    def _lookahead(self, graph: Graph, ctx: PassContext) -> Graph:
        children = ctx_children(graph)
        home = {id(op): b.label for b in graph.blocks for op in b.ops}
        found: dict[Value, tuple[Attr, ...]] = {}
        for block in reversed(graph.blocks):
            for op in reversed(block.ops):
                step = _next_gen(graph, children, op) if op.kind == "gen" else None
                if step is None:
                    continue
                text, following = step
                if home[id(following)] == block.label and _ends_before(op, text) and _same_request(op, following):
                    rest = found.get(following.results[0], ())[: 2 * (self.max_gens - 2)]
                    found[op.results[0]] = (text, (following.attr("stream"), following.attr("ordinal")), *rest)

        def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
            template = found.get(op.results[0]) if op.kind == "gen" else None
            if template is None or op.attr("lookahead") == template:
                return None
            ctx.count("gens that cover others")
            return (with_attrs(op, {**op.attrs, "lookahead": template}),)

        return rewrite(graph, rule) if found else graph

    # -- arms

    def _prefill_arms(self, graph: Graph, ctx: PassContext) -> Graph:
        waits = _waits(graph)
        asking = asked_from(graph)
        rewriter = Rewriter(graph)
        heads: dict[str, list[Op]] = {}  # new appends, by the block at whose end they stand
        becomes: dict[int, tuple[Op, Op]] = {}  # an arm's append → the head it goes on from, what is left of it
        for block in graph.blocks:
            switch = block.terminator
            if switch.kind != "switch" or len(switch.cases) != 2:
                continue
            pending = waits[switch.operands[0]] if isinstance(switch.operands[0], Value) else 0
            defined = _defined_above(graph, block.label)
            for label in block.successors:
                op = next((op for op in graph.block[label].ops if op.kind == "append" and asking[op.results[0]]), None)
                base = op.operands[0] if op is not None else None
                if op is None or not isinstance(base, Value) or base not in defined or not pending & ~waits[base]:
                    continue  # there is nothing to ask, or nothing to wait for
                text = constant_parts(op)
                if not self.min_chars <= plain_size(text) <= self.max_chars:
                    continue
                head = Op("append", (base, *text), (rewriter.fresh("ctx"),), {}, (), op.loc)
                heads.setdefault(block.label, []).append(head)
                becomes[id(op)] = head, with_operands(op, (head.results[0], *op.operands[1 + len(text) :]))
                ctx.count("arms prefilled")
        if not heads:
            return graph
        return self._placed(_moved(graph, heads, becomes, rewriter), [h for hs in heads.values() for h in hs])

    def _placed(self, graph: Graph, heads: Sequence[Op]) -> Graph:
        tree, insertions = Tree.of(graph), Insertions()
        for head in heads:
            (value,) = head.results
            label, index = tree.place[id(graph.producer[value])]
            insertions.add(label, index + 1, Op("prefill", (value,), (), {}, (), head.loc))
            insert_release(graph, Fork.of(tree, value, 0), label, index + 1, insertions)
        return insertions.applied(graph)


# -- templates ---------------------------------------------------------------------------------------------------------


def _next_gen(graph: Graph, children: Mapping[Value, tuple[Op, ...]], op: Op) -> tuple[str, Op] | None:
    """The constant text and the gen that are all that follows a gen; None if something else does."""
    appended = children[op.results[0]]
    if len(appended) != 1 or appended[0].kind != "append":
        return None
    text = appended[0].operands[1:]
    following = children[appended[0].results[0]]
    if len(text) != 1 or not isinstance(text[0], str) or len(following) != 1 or following[0].kind != "gen":
        return None
    if any(user.kind == "exit" for v in (op.results[0], appended[0].results[0]) for user in graph.users.get(v, ())):
        return None  # something unknown may follow too
    return text[0], following[0]


def _ends_before(op: Op, text: str) -> bool:
    """Whether the text behind a gen shows where its answer ends."""
    stop = op.attr("stop")
    stops = (stop,) if isinstance(stop, str) else stop or ()
    return any(isinstance(s, str) and s and text.startswith(s) for s in stops)


def _same_request(op: Op, following: Op) -> bool:
    """Whether one request can sample both: one answer each, alike but for names and lengths, unconstrained."""
    both = (op, following)
    if any(g.attr("params") or g.attr("n", 1) != 1 or g.attr("return_logprob") for g in both):
        return False
    if any(name in g.attrs for g in both for name in _CONSTRAINTS):
        return False
    one, other = ({k: exact(v) for k, v in request(g, but=("max_tokens", "stop")).items()} for g in both)
    return one == other


# -- arms --------------------------------------------------------------------------------------------------------------


def _waits(graph: Graph) -> Mapping[Value, int]:
    """For each value the answers that must be there before it is known: asks as bits of a number. A prompt waits for those in it."""
    waits: dict[Value, int] = dict.fromkeys(graph.params, 0)
    number = 0
    for op in graph.ops():
        own = 0
        for v in op.uses:
            own |= waits[v]
        if trait(op) == "samples":
            own |= 1 << number
            number += 1
        waits.update((v, own) for v in op.results)
    return waits


def _defined_above(graph: Graph, label: str | None) -> set[Operand]:
    """Prompts that are defined at the end of a block."""
    found: set[Operand] = {p for p in graph.params if p.type == "ctx"}
    while label is not None:
        found.update(v for op in graph.block[label].ops for v in op.results if v.type == "ctx")
        label = graph.predecessor.get(label)
    return found


def _moved(
    graph: Graph, heads: Mapping[str, Sequence[Op]], becomes: Mapping[int, tuple[Op, Op]], rewriter: Rewriter
) -> Graph:
    """The graph with heads before the decisions and the arms' appends going on from them."""
    blocks = tuple(Block(b.label, (*b.ops, *heads.get(b.label, ())), b.terminator) for b in graph.blocks)
    after = {op.results[0]: becomes[id(op)] for op in graph.ops() if id(op) in becomes}

    def rule(op: Op, rewriter: Rewriter) -> Sequence[Op] | None:
        if op.kind != "append" or op.results[0] not in after:
            return None
        head, rest = after[op.results[0]]
        if len(rest.operands) > 1:
            return (rewriter.mapped(rest),)
        rewriter.replace(op.results[0], head.results[0])
        return ()

    return rewrite(with_blocks(graph, blocks), rule, rewriter)
