"""Speculation: what can be asked or computed before it is known to be needed. Decides; does not execute; never effects.

* For APIs, whose every request costs a round trip: a chain gen, constant text, gen, … that one request can cover. The first
  gen gets a template (attribute `lookahead`): text and the stream and ordinal of a gen, in turns. Whoever executes it has
  to verify the answer against the template, and to ask gen by gen where it does not fit (semantics: never an empty value).
  A gen can be followed only if the text behind it shows where it ends: it begins with one of the gen's stops.
* For targets with a KV cache: when a decision waits for an answer, and its arms go on from a prompt that does not contain
  this answer, the constant texts that the arms begin with are prefilled before the decision and released where they are
  not needed. No call is made ahead. Arms that no run has taken yet are left out; one or two known ones are looked at.

When that pays (in tokens; a pass has `free_rows` rows that cost nothing beside those that wait for an answer):

* text of up to `free_rows` tokens is left alone: it rides in the first pass of what the arm asks;
* all arms' texts together have to fit the free rows of the passes that the decision waits for, which are as many as the
  answers that it needs have tokens. The runtime gives these prefills (`scope = "spare"`) free rows only.

So a program needs fewer passes after the decision, at the price of the other arm's rows in passes that run anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lmc.ir.analysis import ctx_children
from lmc.ir.builder import Rewriter, rewrite, with_attrs, with_blocks, with_operands
from lmc.ir.core import Attr, Block, Graph, Op, Operand, Value, exact
from lmc.ir.ops import request, trait
from lmc.passes.manager import Pass, PassContext, register
from lmc.passes.plan_prefix import Fork, Insertions, Tree, asked_from, constant_parts, insert_release
from lmc.passes.predict import longest_answer

_CONSTRAINTS = ("regex", "json_schema", "ebnf", "lark", "structural_tag", "dtype", "constraint", "tools")


@register
@dataclass(frozen=True)
class PlanSpeculation(Pass):
    """Gives chains of gens templates for one request (APIs); prefills arms of decisions that wait for an answer (others).

    max_gens   gens that one request may cover
    max_arms   more arms than this are not prefilled, since only one of them will be needed
    free_rows  rows of a pass of the model that are nearly free beside those that decode
    """

    name: ClassVar[str] = "plan-speculation"
    max_gens: int = 8
    max_arms: int = 2
    free_rows: int = 188

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
        rewriter = Rewriter(graph)
        heads: dict[str, list[Op]] = {}  # new appends, by the block at whose end they stand
        becomes: dict[int, tuple[Op, Op]] = {}  # an arm's append → the head it goes on from, what is left of it
        for label, arms in _decisions(graph):
            if not self._worth(arms, ctx):
                continue
            for arm in arms:
                (base, *text), op = arm.head, arm.op
                head = Op("append", (base, *text), (rewriter.fresh("ctx"),), {}, (), op.loc)
                heads.setdefault(label, []).append(head)
                becomes[id(op)] = head, with_operands(op, (head.results[0], *op.operands[1 + len(text) :]))
        if not heads:
            return graph
        return self._placed(_moved(graph, heads, becomes, rewriter), [h for hs in heads.values() for h in hs])

    def _worth(self, arms: Sequence[Arm], ctx: PassContext) -> bool:
        """Whether prefilling the arms of a decision saves passes and costs none; counts why not."""
        measure = ctx.target.measure
        tokens = [measure.in_tokens(measure.size(arm.head[1:])) for arm in arms]
        if len(arms) > self.max_arms:
            ctx.count("arms left: too many of one decision", len(arms))
        elif max(tokens) <= self.free_rows:
            ctx.count("arms left: short, so they ride with what they ask", len(arms))
        elif sum(tokens) > self.free_rows * min(arm.passes for arm in arms):
            ctx.count("arms left: longer than the wait has free rows for", len(arms))
        else:
            ctx.count("arms prefilled", len(arms))
            ctx.count("tokens prefilled for arms, about", sum(tokens))
            return True
        return False

    def _placed(self, graph: Graph, heads: Sequence[Op]) -> Graph:
        tree, insertions = Tree.of(graph), Insertions()
        for head in heads:
            (value,) = head.results
            label, index = tree.place[id(graph.producer[value])]
            insertions.add(label, index + 1, Op("prefill", (value,), (), {"scope": "spare"}, (), head.loc))
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


@dataclass(frozen=True)
class Arm:
    """An arm of a decision whose first text can be computed before it.

    op      the append that it begins with
    head    its prompt, and its constant beginning
    passes  of the model, at most, until the answers are there that the decision waits for and the prompt does not
    """

    op: Op
    head: tuple[Operand, ...]
    passes: int


def _decisions(graph: Graph) -> Iterator[tuple[str, list[Arm]]]:
    """Blocks that end in a decision which waits, and the arms that have something to prefill."""
    waits, asks = _waits(graph), [op for op in graph.ops() if trait(op) == "samples"]
    asking = asked_from(graph)
    for block in graph.blocks:
        switch = block.terminator
        if switch.kind != "switch" or not isinstance(switch.operands[0], Value):
            continue
        pending, defined = waits[switch.operands[0]], _defined_above(graph, block.label)
        arms: list[Arm] = []
        for label in dict.fromkeys(block.successors):
            op = next((op for op in graph.block[label].ops if op.kind == "append" and asking[op.results[0]]), None)
            base = op.operands[0] if op is not None else None
            if op is None or not isinstance(base, Value) or base not in defined:
                continue  # there is nothing to ask, or nothing to go on from
            awaited = pending & ~waits[base]
            passes = [_passes(graph, ask) for i, ask in enumerate(asks) if awaited >> i & 1]
            if passes and (text := constant_parts(op)):
                arms.append(Arm(op, (base, *text), max(passes)))
        if arms:
            yield block.label, arms


def _passes(graph: Graph, ask: Op) -> int:
    return 1 if ask.kind == "select" else longest_answer(graph, ask)


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
