"""Prefix planning: which prompts to prefill once and pin, for how long, and in which order to visit their
continuations.

There are four steps, each over the tree that the prompts of a graph form (a fork is a node with several children):

1. the longest constant text at the beginning of a program is split off, so that all runs share it;
2. the common beginning of siblings is split off, so that it becomes a prompt of its own: a fork point;
3. a fork point with two or more requests on one path (one in a loop counts as two) is prefilled before the
   first of them and released after the last (liveness over the block tree);
4. if the program's order is not depth-first, requests are annotated with their place in depth-first order, in which even a cache that
   holds only one path computes every prefix once (arXiv 2312.07104, theorem 3.1).

Splitting text does not change its tokens, since adjacent literal text is encoded as one run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from lmc.errors import ProgramError
from lmc.ir.analysis import ctx_children, dominance
from lmc.ir.builder import Rewriter, rewrite, with_attrs, with_blocks, with_operands
from lmc.ir.core import Block, Graph, Op, Operand, Value
from lmc.ir.ops import IMAGES, spec, trait
from lmc.passes.base import Pass, PassContext, register
from lmc.passes.prompt_tree import Fork, Tree, asked_from, prompt_of
from lmc.segments import Special


@register
@dataclass(frozen=True)
class PlanPrefix(Pass):
    """Prefill text that several gens share, and release it after its last use on each path.

    min_chars      shared text shorter than this (a special token counts as 4) is not worth a prefill
    unknown_chars  assumed length of a text that is known only at run time
    image_chars    and of an image, in characters of as many tokens
    """

    name: ClassVar[str] = "plan-prefix"
    min_chars: int = 16
    unknown_chars: int = 200
    image_chars: int = 2000

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        for op in graph.ops():
            if "planned" not in spec(op).stages:
                raise ProgramError(f"plan-prefix needs a graph without {op.kind}; put lower-chat before it", loc=op.loc)
        graph, programs = self._cut_programs(graph)
        graph = self._cut_siblings(graph, programs)
        graph = _placed(graph, programs, self._forks(graph, programs), self, ctx)
        return _ordered(graph, ctx)

    def size(self, parts: Sequence[Operand]) -> int:
        """Return the expected characters of an append's operands."""
        return sum(len(x) if isinstance(x, str) else 4 if isinstance(x, Special) else self.unknown_chars if isinstance(x, Value) else 0 for x in parts)

    # -- 1: beginnings of the program

    def _cut_programs(self, graph: Graph) -> tuple[Graph, tuple[Value, ...]]:
        """Return the graph with constant beginnings as prompts of their own, and those prompts."""
        children, asked = ctx_children(graph), asked_from(graph)
        at_exit = {v for op in graph.ops() if op.kind in ("unknown", "yield", "continue", "break", "loop") for v in op.uses}
        whole: list[Value] = []
        cut: dict[int, int] = {}  # id of an append → how many of its operands are the constant beginning
        for root in [op.results[0] for op in graph.ops() if op.kind == "ctx.new"]:
            now, chars = root, 0
            while len(children[now]) == 1 and now not in at_exit and (op := children[now][0]).kind == "append":
                constant = constant_parts(op)
                if len(constant) < len(op.operands) - 1:
                    if asked[op.results[0]] and chars + self.size(constant) >= self.min_chars and constant:
                        cut[id(op)] = 1 + len(constant)
                        now = root
                    break
                now, chars = op.results[0], chars + self.size(constant)
            if now is not root and chars >= self.min_chars and asked[now]:
                whole.append(now)

        def rule(op: Op, rewriter: Rewriter) -> Sequence[Op] | None:
            if id(op) not in cut:
                return None
            head, tail = _cut(op, cut[id(op)], rewriter)
            whole.append(head.results[0])
            return head, tail

        return (rewrite(graph, rule) if cut else graph), tuple(whole)

    # -- 2: beginnings of siblings

    def _cut_siblings(self, graph: Graph, programs: Sequence[Value]) -> Graph:
        """Return the graph in which text common to siblings is in one append that they extend."""
        children, above, asked = ctx_children(graph), dominance(graph), asked_from(graph)
        home = {id(op): b.label for b in graph.blocks for op in b.ops}
        heads: dict[int, list[Op]] = {}  # new appends, by the op they precede
        now: dict[int, Op] = {}  # siblings as rewritten so far
        tails = self._tails(graph, programs)
        rewriter = Rewriter(graph)

        def share(parent: Value, group: list[Op]) -> None:
            group = [op for op in group if above(home[id(group[0])], home[id(op)])]
            if len(group) < 2:
                return
            parts = [now.get(id(op), op).operands[1:] for op in group]
            common = _common(parts)
            if not self.size(_literals(common)) or self.size(common) + tails[parent] < self.min_chars:
                for same in _by_next(group, parts, common):
                    share(parent, same)
                return
            head = Op("append", (parent, *common), (rewriter.fresh("ctx"),), {}, (), group[0].loc)
            heads.setdefault(id(group[0]), []).append(head)
            tails[head.results[0]] = 0
            rest: list[Op] = []
            for op, old in zip(group, parts, strict=True):
                now[id(op)] = with_operands(op, (head.results[0], *_after(old, common)))
                if len(now[id(op)].operands) > 1:
                    rest.append(op)
            for same in _by_next(rest, [now[id(op)].operands[1:] for op in rest], ()):
                share(head.results[0], same)

        for parent, ops in children.items():
            appends = [op for op in ops if op.kind == "append" and asked[op.results[0]]]
            if len(appends) > 1:
                for same in _by_next(appends, [op.operands[1:] for op in appends], ()):
                    share(parent, same)

        def rule(op: Op, rewriter: Rewriter) -> Sequence[Op] | None:
            old = id(graph.producer[op.results[0]]) if op.results else 0
            if old not in now:
                return None
            new = rewriter.mapped(now[old])
            before = [rewriter.mapped(head) for head in heads.get(old, [])]
            parent, *rest = new.operands
            if rest:
                return (*before, new)
            rewriter.replace(op.results[0], parent)  # its text is a beginning of its siblings'
            return before

        return rewrite(graph, rule, rewriter) if now else graph

    # -- 3: fork points

    def _forks(self, graph: Graph, programs: Sequence[Value]) -> tuple[Fork, ...]:
        tree = Tree.of(graph)
        pinned = set(programs) | _prefilled(graph)
        tails = self._tails(graph, pinned)
        found: list[Fork] = []
        for value in tree.children:
            op = graph.producer.get(value)
            if op is None:
                continue
            chars = tails[value] = self._tail(op, tails, pinned)  # again, now that a prompt before it may be pinned
            if op.kind not in ("append", *IMAGES) or value in pinned:
                continue
            if chars < self.min_chars or (op.kind == "append" and not self.size(_literals(op.operands[1:]))):
                continue  # a prefill needs text that is certainly known
            fork = Fork.of(tree, value, chars)
            if fork.width[fork.home] >= 2:
                pinned.add(value)
                found.append(fork)
        return tuple(found)

    def _tails(self, graph: Graph, pinned: Collection[Operand]) -> dict[Operand, int]:
        """Return, for each prompt, the expected characters since the last prompt that the backend holds.

        A parameter is defined before this graph: its tail counts as an unknown text.
        """
        tails: dict[Operand, int] = {p: self.unknown_chars for p in ctx_children(graph) if p not in graph.producer}
        for op in graph.ops():
            for v in op.results:
                if v.type == "ctx":
                    tails[v] = self._tail(op, tails, pinned)
        return tails

    def _tail(self, op: Op, tails: Mapping[Operand, int], pinned: Collection[Operand]) -> int:
        if op.kind not in ("append", *IMAGES):
            return 0
        return (self.image_chars if op.kind in IMAGES else self.size(op.operands[1:])) + (0 if op.operands[0] in pinned else tails[op.operands[0]])


def _prefilled(graph: Graph) -> set[Operand]:
    return {op.operands[0] for op in graph.ops() if op.kind == "prefill"}


# -- placing ---------------------------------------------------------------------------------------------------------


@dataclass
class Insertions:
    """Ops to insert, by block and by the index that they precede."""

    ops: dict[str, dict[int, list[Op]]] = field(default_factory=dict[str, dict[int, list[Op]]])

    def add(self, label: str, index: int, op: Op) -> None:
        self.ops.setdefault(label, {}).setdefault(index, []).append(op)

    def applied(self, graph: Graph) -> Graph:
        return with_blocks(graph, tuple(self._block(b) if b.label in self.ops else b for b in graph.blocks))

    def _block(self, block: Block) -> Block:
        here = self.ops[block.label]
        ops: list[Op] = []
        for i in range(len(block.ops) + 1):
            ops += here.get(i, [])
            ops += block.ops[i : i + 1]
        return Block(block.label, tuple(ops), block.terminator, block.params)


def _placed(graph: Graph, programs: Sequence[Value], forks: Sequence[Fork], options: PlanPrefix, ctx: PassContext) -> Graph:
    insertions = Insertions()
    prefilled = _prefilled(graph)
    for block in graph.blocks:
        for i, op in enumerate(block.ops):
            if op.kind == "append" and op.results[0] in programs and op.results[0] not in prefilled:
                insertions.add(block.label, i + 1, Op("prefill", op.results, (), {"scope": "program"}, (), op.loc))
                ctx.count("program prefixes")
                ctx.count("characters shared by runs", _length(graph, op.results[0], options))
    defined = {value: i for block in graph.blocks for i, op in enumerate(block.ops) for value in op.results}
    for fork in forks:
        loc = graph.producer[fork.value].loc
        for label, index in fork.places(graph, defined[fork.value]):
            insertions.add(label, index, Op("prefill", (fork.value,), (), {}, (), loc))
            insert_release(graph, fork, label, index, insertions)
            ctx.count("prefills")
            ctx.count("characters shared by forks", fork.chars * (fork.width[label] - 1))
    return insertions.applied(graph)


def insert_release(graph: Graph, fork: Fork, label: str, index: int, out: Insertions) -> None:
    """End the pin once on each path from (label, index), after the last op that needs it.

    If arms or a loop continue with a next block, it ends after them: in that block at the earliest.
    """
    stack = [(label, index)]
    while stack:
        label, index = stack.pop()
        block = graph.block[label]
        if any(succ in fork.width for succ in block.successors):
            then = block.terminator.then
            stack.extend((succ, 0) for succ in (block.successors if then is None else (then,)))
        else:
            end = max(fork.last.get(label, -1) + 1, index)
            out.add(label, min(end, len(block.ops)), Op("release", (fork.value,)))


# -- 4: visiting order -------------------------------------------------------------------------------------------------


def _ordered(graph: Graph, ctx: PassContext) -> Graph:
    """Return the graph in which requests out of depth-first order of their prompts carry their place in it.

    Only among requests of one block: a request after a decision cannot be made before it.
    """
    children, home = ctx_children(graph), {id(op): b.label for b in graph.blocks for op in b.ops}
    asks: dict[str, list[Op]] = {b.label: [op for op in b.ops if trait(op) == "samples"] for b in graph.blocks}
    visited: dict[str, list[Op]] = {b.label: [] for b in graph.blocks}
    stack = [op for v in reversed(list(children)) if _is_root(graph, v) for op in reversed(children[v])]
    while stack:
        op = stack.pop()
        if trait(op) == "samples":
            visited[home[id(op)]].append(op)
        stack.extend(reversed(children[prompt_of(op)]))
    place: dict[Value, int] = {}
    start = 0
    for label, in_order in asks.items():
        if any(a is not b for a, b in zip(in_order, visited[label], strict=True)):
            place.update((op.results[0], start + i) for i, op in enumerate(visited[label]))
        start += len(in_order)

    def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
        if trait(op) != "samples" or op.attr("order") == (order := place.get(op.results[0])):
            return None
        ctx.count("asks reordered")
        attrs = {k: v for k, v in op.attrs.items() if k != "order"}
        return (with_attrs(op, attrs if order is None else {**attrs, "order": order}),)

    return rewrite(graph, rule)


def _is_root(graph: Graph, value: Value) -> bool:
    op = graph.producer.get(value)
    return op is None or not op.operands


def _length(graph: Graph, value: Operand, options: PlanPrefix) -> int:
    """Return the expected characters from the root to a prompt."""
    length = 0
    while isinstance(value, Value) and (op := graph.producer.get(value)) is not None and op.kind == "append":
        length += options.size(op.operands[1:])
        value = op.operands[0]
    return length


# -- cutting text ----------------------------------------------------------------------------------------------------


def _literals(parts: Sequence[Operand]) -> tuple[Operand, ...]:
    return tuple(x for x in parts if not isinstance(x, Value))


def constant_parts(op: Op) -> tuple[Operand, ...]:
    """Return the literal operands that an append begins with."""
    parts = op.operands[1:]
    end = next((i for i, x in enumerate(parts) if isinstance(x, Value)), len(parts))
    return parts[:end]


def _cut(op: Op, at: int, rewriter: Rewriter) -> tuple[Op, Op]:
    """Split an append in two, the first with the operands before index `at`."""
    middle = rewriter.fresh("ctx")
    return Op("append", op.operands[:at], (middle,), {}, (), op.loc), with_operands(op, (middle, *op.operands[at:]))


def _common(lists: Sequence[Sequence[Operand]]) -> tuple[Operand, ...]:
    """Return the common prefix of all operand lists; its last operand may be the beginning of a string."""
    common: list[Operand] = []
    for column in zip(*lists, strict=False):
        first = column[0]
        if all(x == first for x in column):
            common.append(first)
            continue
        if all(isinstance(x, str) for x in column) and (text := _common_text(column)):  # pyright: ignore[reportArgumentType]
            common.append(text)
        break
    return tuple(common)


def _common_text(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    return low[: next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))]


def _after(parts: Sequence[Operand], common: Sequence[Operand]) -> tuple[Operand, ...]:
    """Return the rest of operands that begin with `common`."""
    if not common:
        return tuple(parts)
    n, last, cut = len(common), common[-1], parts[len(common) - 1]
    if isinstance(last, str) and isinstance(cut, str) and cut != last:
        return cut[len(last) :], *parts[n:]
    return tuple(parts[n:])


def _by_next(ops: Sequence[Op], parts: Sequence[Sequence[Operand]], common: Sequence[Operand]) -> Iterator[list[Op]]:
    """Group ops that continue alike after `common`: by the next operand, a string by its first character."""
    classes: dict[object, list[Op]] = {}
    for op, all_parts in zip(ops, parts, strict=True):
        rest = _after(all_parts, common)
        if rest:
            classes.setdefault((str, rest[0][:1]) if isinstance(rest[0], str) else rest[0], []).append(op)
    yield from (group for group in classes.values() if len(group) > 1)
