"""Prefix planning: which ctx values to prefill once, pin, and for how long. Decides; does not execute.

Three steps, each over the tree that the prompts of a graph form (a fork is a node with several children):

1. the longest constant text that a program begins with is cut off, so that all runs share it;
2. text that siblings begin with in common is cut off, so that it becomes a prompt of its own: a fork point;
3. a fork point from which two or more asks of one path go out is prefilled before the first of them and released after
   the last one (liveness over the block tree).

Where text is cut does not change its tokens: literal text is encoded as one maximal run (semantics.md §3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from lmc.errors import ProgramError
from lmc.ir.analysis import ctx_children, dominance, live_in
from lmc.ir.builder import Rewriter, rewrite, with_blocks, with_operands
from lmc.ir.core import Block, Graph, Op, Operand, Value
from lmc.ir.ops import OPS, trait
from lmc.passes.manager import Pass, PassContext, register
from lmc.prompt import Special


@register
@dataclass(frozen=True)
class PlanPrefix(Pass):
    """Prefills what several gens share, and releases it after its last use on each path.

    min_chars      shared text shorter than this (a special token counts as 4) is not worth a prefill
    unknown_chars  how long a text that is known only at run time is taken to be
    """

    name: ClassVar[str] = "plan-prefix"
    min_chars: int = 16
    unknown_chars: int = 200

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        for op in graph.ops():
            if "planned" not in OPS[op.kind].stages:
                raise ProgramError(f"plan-prefix needs a graph without {op.kind}; put lower-chat before it", loc=op.loc)
        graph, programs = self._cut_programs(graph)
        graph = self._cut_siblings(graph, programs)
        return _placed(graph, programs, self._forks(graph, programs), self, ctx)

    def size(self, parts: Sequence[Operand]) -> int:
        """Expected characters of an append's operands."""
        return sum(
            len(x)
            if isinstance(x, str)
            else 4
            if isinstance(x, Special)
            else self.unknown_chars
            if isinstance(x, Value)
            else 0
            for x in parts
        )

    # -- 1: what a program begins with

    def _cut_programs(self, graph: Graph) -> tuple[Graph, tuple[Value, ...]]:
        """The graph with constant beginnings as prompts of their own, and those prompts."""
        children, asked = ctx_children(graph), _asked(graph)
        at_exit = {v for op in graph.ops() if op.kind == "exit" for v in op.uses}
        whole: list[Value] = []
        cut: dict[int, int] = {}  # id of an append → how many of its operands are the constant beginning
        for root in [op.results[0] for op in graph.ops() if op.kind == "ctx.new"]:
            now, chars = root, 0
            while len(children[now]) == 1 and now not in at_exit and (op := children[now][0]).kind == "append":
                constant = _constant_parts(op)
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

    # -- 2: what siblings begin with

    def _cut_siblings(self, graph: Graph, programs: Sequence[Value]) -> Graph:
        """The graph in which text common to siblings stands in one append that they extend."""
        children, above, asked = ctx_children(graph), dominance(graph), _asked(graph)
        home = {id(op): b.label for b in graph.blocks for op in b.ops}
        heads: dict[int, list[Op]] = {}  # new appends, by the op they stand before
        now: dict[int, Op] = {}  # siblings as they become
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

    def _forks(self, graph: Graph, programs: Sequence[Value]) -> tuple[_Fork, ...]:
        children = ctx_children(graph)
        pinned = set(programs) | _prefilled(graph)
        tails = self._tails(graph, pinned)
        found: list[_Fork] = []
        for value, ops in children.items():
            op = graph.producer.get(value)
            if op is None:
                continue
            chars = tails[value] = self._tail(op, tails, pinned)  # again, now that a prompt before it may be pinned
            if op.kind != "append" or value in pinned or len(ops) + len(_exits(graph, value)) < 2:
                continue
            if chars < self.min_chars or not self.size(_literals(op.operands[1:])):
                continue  # a prefill needs text that is there for sure
            fork = _Fork.of(graph, children, value, chars)
            if fork.width[fork.home] >= 2:
                pinned.add(value)
                found.append(fork)
        return tuple(found)

    def _tails(self, graph: Graph, pinned: Collection[Operand]) -> dict[Operand, int]:
        """For each prompt the expected characters since the last prompt that the backend holds.

        A parameter comes from before this graph: its tail is as long as any text that is not known.
        """
        tails: dict[Operand, int] = {p: self.unknown_chars for p in graph.params if p.type == "ctx"}
        for op in graph.ops():
            for v in op.results:
                if v.type == "ctx":
                    tails[v] = self._tail(op, tails, pinned)
        return tails

    def _tail(self, op: Op, tails: Mapping[Operand, int], pinned: Collection[Operand]) -> int:
        if op.kind != "append":
            return 0
        return self.size(op.operands[1:]) + (0 if op.operands[0] in pinned else tails[op.operands[0]])


# -- fork points -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fork:
    """A prompt from which several asks go out.

    home     label of the block that defines it
    chars    expected characters that each branch would submit again
    needing  ids of the ops that need it pinned: what extends it, up to and including each branch's first asks
    width    for each block from home on: the most branches that ask something on one path through it
    """

    value: Value
    home: str
    chars: int
    needing: frozenset[int]
    width: Mapping[str, int]

    @staticmethod
    def of(graph: Graph, children: Mapping[Value, tuple[Op, ...]], value: Value, chars: int) -> _Fork:
        branches = {id(op): tuple(_until_asked(graph, children, op)) for op in children[value]}
        branches.update((id(op), (op,)) for op in _exits(graph, value))
        home = next(b.label for b in graph.blocks for op in b.ops if value in op.results)
        needing = frozenset(id(op) for ops in branches.values() for op in ops)
        return _Fork(value, home, chars, needing, _width(graph, home, branches))

    def extends(self, op: Op) -> bool:
        """Whether the op goes on directly from the prompt, so that a prefill has to stand before it."""
        return bool(op.operands) and op.operands[0] == self.value and any(v.type == "ctx" for v in op.results)

    def places(self, graph: Graph) -> Iterator[tuple[str, int]]:
        """Where to prefill: as early as the first block that goes on from the prompt allows, once on each path that gains."""
        stack = [self.home]
        while stack:
            block = graph.block[stack.pop()]
            if not any(self.extends(op) for op in block.ops):
                stack.extend(reversed(block.successors))
            elif self.width[block.label] >= 2:
                yield block.label, next((i + 1 for i, op in enumerate(block.ops) if self.value in op.results), 0)


def _width(graph: Graph, home: str, branches: Mapping[int, tuple[Op, ...]]) -> Mapping[str, int]:
    asks_of: dict[int, set[int]] = {}
    for branch, ops in branches.items():
        for op in ops:
            if _is_ask(op):
                asks_of.setdefault(id(op), set()).add(branch)
    asked: dict[str, frozenset[int]] = {}  # on the path from home to the end of a block
    for block in graph.blocks:
        before = frozenset[int]() if block.label == home else asked.get(graph.predecessor.get(block.label, ""))
        if before is not None:
            asked[block.label] = before.union(*(asks_of.get(id(op), ()) for op in (*block.ops, block.terminator)))
    width: dict[str, int] = {}
    for label in reversed(asked):
        width[label] = max((width[succ] for succ in graph.block[label].successors), default=len(asked[label]))
    return width


def _prefilled(graph: Graph) -> set[Operand]:
    return {op.operands[0] for op in graph.ops() if op.kind == "prefill"}


def _is_ask(op: Op) -> bool:
    return trait(op) == "samples" or op.kind == "exit"


def _until_asked(graph: Graph, children: Mapping[Value, tuple[Op, ...]], op: Op) -> Iterator[Op]:
    """`op` and what follows from its prompt up to and including the first asks and exits."""
    stack = [op]
    while stack:
        op = stack.pop()
        yield op
        if trait(op) != "samples":
            for v in op.results:
                stack.extend(children.get(v, ()))
                yield from _exits(graph, v)


def _exits(graph: Graph, value: Value) -> tuple[Op, ...]:
    return tuple(op for op in graph.users.get(value, ()) if op.kind == "exit")


def _asked(graph: Graph) -> Mapping[Value, bool]:
    """For each prompt whether something is asked from it or from one that extends it, here or behind an exit."""
    asked = dict.fromkeys(ctx_children(graph), False)
    for block in reversed(graph.blocks):
        for op in (block.terminator, *reversed(block.ops)):
            if _is_ask(op) or any(asked.get(v, False) for v in op.results):
                asked.update((v, True) for v in op.uses if v.type == "ctx")
    return asked


# -- placing ---------------------------------------------------------------------------------------------------------


@dataclass
class _Insertions:
    """Ops to insert, by block and by the index they stand before."""

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
        return Block(block.label, tuple(ops), block.terminator)


def _placed(
    graph: Graph, programs: Sequence[Value], forks: Sequence[_Fork], options: PlanPrefix, ctx: PassContext
) -> Graph:
    insertions = _Insertions()
    prefilled = _prefilled(graph)
    for block in graph.blocks:
        for i, op in enumerate(block.ops):
            if op.kind == "append" and op.results[0] in programs and op.results[0] not in prefilled:
                insertions.add(block.label, i + 1, Op("prefill", op.results, (), {"scope": "program"}, (), op.loc))
                ctx.count("program prefixes")
                ctx.count("characters shared by runs", _length(graph, op.results[0], options))
    live = live_in(graph, _holders(forks))
    for fork in forks:
        loc = graph.producer[fork.value].loc
        for label, index in fork.places(graph):
            insertions.add(label, index, Op("prefill", (fork.value,), (), {}, (), loc))
            _release(graph, fork, live, label, index, insertions)
            ctx.count("prefills")
            ctx.count("characters shared by forks", fork.chars * (fork.width[label] - 1))
    return insertions.applied(graph)


def _holders(forks: Sequence[_Fork]) -> Callable[[Op], Sequence[Value]]:
    """For each op the prefilled prompts that it needs pinned."""
    needs: dict[int, list[Value]] = {}
    for fork in forks:
        for op in fork.needing:
            needs.setdefault(op, []).append(fork.value)
    return lambda op: needs.get(id(op), ())


def _release(
    graph: Graph, fork: _Fork, live: Mapping[str, frozenset[Value]], label: str, index: int, out: _Insertions
) -> None:
    """Ends the pin once on each path from (label, index), after the last op that needs it."""
    stack = [(label, index)]
    while stack:
        label, index = stack.pop()
        block = graph.block[label]
        last = max((i + 1 for i, op in enumerate((*block.ops, block.terminator)) if id(op) in fork.needing), default=0)
        if any(fork.value in live[succ] for succ in block.successors):
            stack.extend((succ, 0) for succ in block.successors)
        else:
            out.add(label, min(max(last, index), len(block.ops)), Op("release", (fork.value,)))


def _length(graph: Graph, value: Operand, options: PlanPrefix) -> int:
    """Expected characters from the root to a prompt."""
    length = 0
    while isinstance(value, Value) and (op := graph.producer.get(value)) is not None and op.kind == "append":
        length += options.size(op.operands[1:])
        value = op.operands[0]
    return length


# -- cutting text ----------------------------------------------------------------------------------------------------


def _literals(parts: Sequence[Operand]) -> tuple[Operand, ...]:
    return tuple(x for x in parts if not isinstance(x, Value))


def _constant_parts(op: Op) -> tuple[Operand, ...]:
    """The literal operands that an append begins with."""
    parts = op.operands[1:]
    end = next((i for i, x in enumerate(parts) if isinstance(x, Value)), len(parts))
    return parts[:end]


def _cut(op: Op, at: int, rewriter: Rewriter) -> tuple[Op, Op]:
    """An append as two, the first with the operands before index `at`."""
    middle = rewriter.fresh("ctx")
    return Op("append", op.operands[:at], (middle,), {}, (), op.loc), with_operands(op, (middle, *op.operands[at:]))


def _common(lists: Sequence[Sequence[Operand]]) -> tuple[Operand, ...]:
    """The operands that all lists begin with; the last may be the beginning of a string."""
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
    """What is left of operands that begin with `common`."""
    if not common:
        return tuple(parts)
    n, last, cut = len(common), common[-1], parts[len(common) - 1]
    if isinstance(last, str) and isinstance(cut, str) and cut != last:
        return cut[len(last) :], *parts[n:]
    return tuple(parts[n:])


def _by_next(ops: Sequence[Op], parts: Sequence[Sequence[Operand]], common: Sequence[Operand]) -> Iterator[list[Op]]:
    """Ops that go on alike after `common`: by the next operand, a string by its first character."""
    classes: dict[object, list[Op]] = {}
    for op, all_parts in zip(ops, parts, strict=True):
        rest = _after(all_parts, common)
        if rest:
            classes.setdefault((str, rest[0][:1]) if isinstance(rest[0], str) else rest[0], []).append(op)
    yield from (group for group in classes.values() if len(group) > 1)
