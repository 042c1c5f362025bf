"""Making graphs: `Builder` emits op by op with fresh names; `rewrite` maps one graph to another and rebuilds only what changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lmc.errors import IRError, Loc
from lmc.ir.core import Attr, Block, Case, Graph, Op, Operand, Type, Value
from lmc.ir.ops import Stage, spec_of
from lmc.ir.verifier import verify, verify_level

_PREFIX: dict[str, str] = {"ctx": "c", "str": "x", "bool": "p"}


class Names:
    """Fresh names: `%c0`, `%x1`, … by type, or a hint made unique: `related`, `related.1`."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def copy(self) -> Names:
        other = Names(self._taken)
        other._next = dict(self._next)
        return other

    def numbered(self, prefix: str) -> str:
        """Return the first free name of `prefix0`, `prefix1`, …"""
        n = self._next.get(prefix, 0)
        while (name := f"{prefix}{n}") in self._taken:
            n += 1
        self._next[prefix] = n + 1
        self._taken.add(name)
        return name

    def hinted(self, hint: str) -> str:
        """Return `hint` as an identifier, made unique."""
        return self.unique(re.sub(r"\W+", "_", hint).strip("_") or "v")

    def unique(self, base: str) -> str:
        """Return `base` itself when it is free, otherwise `base.1`, `base.2`, …"""
        if base not in self._taken:
            self._taken.add(base)
            return base
        n = self._next.get(base + ".", 1)
        while (name := f"{base}.{n}") in self._taken:
            n += 1
        self._next[base + "."] = n + 1
        self._taken.add(name)
        return name


class Builder:
    """Builds one graph. Ops go to the current block, which starts as `entry`; a terminator closes it.

        b = Builder("judge", [Value("essay", "str")])
        (c0,) = b.emit("ctx.new")
        (c1,) = b.emit("append", (c0, "Essay: ", essay))
        c2, related, meta = b.emit("select", (c1, "yes", "no"), {"name": "related", "stream": "", "ordinal": 0})
        on, off, after = b.label("on"), b.label("off"), b.label("after")
        b.terminate("switch", (p,), cases=((True, on), (DEFAULT, off)), then=after)
        b.at(on)
        …
        b.terminate("yield", (c3,))
        c = b.block_param("ctx", after)
        graph = b.build()

    Blocks may be filled in any order; `build` orders each after the one that names it, arms in the order of the cases.
    """

    def __init__(
        self,
        name: str,
        params: Iterable[Value] = (),
        *,
        result: Type = "any",
        constants: Mapping[str, Op] | None = None,
        entry: str = "entry",
    ) -> None:
        self.name = name
        self.result: Type = result
        self.params: list[Value] = list(params)
        self.constants: dict[str, Op] = dict(constants or {})
        self._names = Names(v.name for v in self.params)
        self._labels = Names([entry])
        self._params: dict[str, list[Value]] = {}
        self._made: dict[Value, Op] = {}
        self._open: dict[str, list[Op]] = {entry: []}
        self._closed: dict[str, Op] = {}
        self._entry = self._current = entry

    # -- names

    def param(self, name: str, type: Type = "any") -> Value:
        """Add a parameter after the others; its name is made unique."""
        value = Value(self._names.hinted(name), type)
        self.params.append(value)
        return value

    def value(self, type: Type, hint: str | None = None) -> Value:
        """Return a value with a fresh name, for an op made by hand."""
        return Value(self._names.hinted(hint) if hint else self._names.numbered(_PREFIX.get(type, "v")), type)

    # -- blocks

    @property
    def current(self) -> str:
        """Return the label of the block that `emit` writes to."""
        return self._current

    @property
    def terminated(self) -> bool:
        """Return whether the current block has its terminator."""
        return self._current in self._closed

    def label(self, hint: str | None = None) -> str:
        """Reserve the label of a new, empty block without moving to it."""
        label = self._labels.hinted(hint) if hint else self._labels.numbered("b")
        self._open[label] = []
        return label

    def at(self, label: str) -> None:
        """Make a block that is still open the current one."""
        if label not in self._open or label in self._closed:
            raise IRError(f"block ^{label} of @{self.name} is {'closed' if label in self._closed else 'unknown'}")
        self._current = label

    def at_end(self, label: str) -> None:
        """Make a closed block the current one: nothing more is emitted there."""
        self._current = label

    def is_empty(self, label: str) -> bool:
        """Return whether nothing was emitted to a block."""
        return not self._open[label] and label not in self._closed

    def block_param(self, type: Type, label: str, hint: str | None = None) -> Value:
        """Add a parameter to a block, after its others."""
        value = self.value(type, hint)
        self._params.setdefault(label, []).append(value)
        return value

    # -- ops

    def emit(
        self,
        kind: str,
        operands: Sequence[Operand] = (),
        attrs: Mapping[str, Attr] | None = None,
        loc: Loc | None = None,
        *,
        types: Sequence[Type] | None = None,
        hints: Sequence[str | None] = (),
    ) -> tuple[Value, ...]:
        """Append an op to the current block and return its results.

        types  of the results, where narrower than in the op table
        hints  suggested names of the results; gen and select take the one in their attribute `name`
        """
        attrs = dict(attrs or {})
        if types is None:
            types = result_types(kind)
        if not hints and kind in ("gen", "select"):
            name = attrs.get("name")
            hints = (None, name if isinstance(name, str) else None, "m")
        padded = (*hints, *(None for _ in types))
        results = tuple(self.value(t, hint) for t, hint in zip(types, padded, strict=False))
        self.add(Op(kind, tuple(operands), results, attrs, (), loc))
        return results

    def add(self, op: Op) -> None:
        """Append a finished op, whose results must be fresh (`value`)."""
        if self.terminated:
            raise IRError(f"block ^{self._current} of @{self.name} already has its terminator", loc=op.loc)
        self._open[self._current].append(op)
        self._made.update((v, op) for v in op.results)

    def terminate(
        self,
        kind: str,
        operands: Sequence[Operand] = (),
        attrs: Mapping[str, Attr] | None = None,
        loc: Loc | None = None,
        *,
        cases: Sequence[tuple[Case, str]] = (),
        then: str | None = None,
    ) -> Op:
        """Close the current block with a terminator."""
        if self.terminated:
            raise IRError(f"block ^{self._current} of @{self.name} already has its terminator", loc=loc)
        op = Op(kind, tuple(operands), (), dict(attrs or {}), tuple(cases), loc, then)
        self._closed[self._current] = op
        return op

    def parent(self, prompt: Operand) -> Operand | None:
        """Return the prompt that a prompt extends, among ops emitted here; None for a new one or a parameter."""
        made = self._made.get(prompt) if isinstance(prompt, Value) else None
        return made.operands[0] if made is not None and made.operands else None

    def save(self) -> Callable[[], None]:
        """Return a function that undoes everything emitted from here on."""
        ops, closed = {label: list(ops) for label, ops in self._open.items()}, dict(self._closed)
        params, current = {label: list(values) for label, values in self._params.items()}, self._current
        names, labels = self._names.copy(), self._labels.copy()

        def restore() -> None:
            self._open, self._closed, self._params, self._current = ops, closed, params, current
            self._names, self._labels = names, labels

        return restore

    def build(self, stage: Stage = "traced") -> Graph:
        """Return the graph, verified when LMC_VERIFY ≥ 1."""
        for label in self._open:
            if label not in self._closed:
                raise IRError(f"block ^{label} of @{self.name} has no terminator")
        blocks = {label: Block(label, tuple(ops), self._closed[label], tuple(self._params.get(label, ()))) for label, ops in self._open.items()}
        graph = Graph(
            self.name,
            tuple(self.params),
            preorder(blocks, self._entry),
            self.result,
            dict(self.constants),
        )
        if verify_level() >= 1:
            verify(graph, stage)
        return graph


def result_types(kind: str) -> tuple[Type, ...]:
    """Return the default types of an op's results."""
    if (found := spec_of(kind)) is None:
        raise IRError(f"there is no op {kind!r}")
    return found.results  # pyright: ignore[reportReturnType]


def preorder(blocks: Mapping[str, Block], entry: str) -> tuple[Block, ...]:
    """Return blocks reachable from `entry`, each after its predecessor, then unreachable ones (for the verifier to
    refuse)."""
    found: dict[str, Block] = {}
    stack = [entry]
    while stack:
        label = stack.pop()
        if label in found or label not in blocks:
            continue
        found[label] = blocks[label]
        stack.extend(reversed(blocks[label].successors))
    found.update((label, block) for label, block in blocks.items() if label not in found)
    return tuple(found.values())


# -- rewriting -----------------------------------------------------------------------------------------------------


class Rewriter:
    """Interface for a rewrite rule: fresh values, and `replace` to give a value's later uses another operand."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.label = graph.blocks[0].label  # label of the block being rewritten
        self._map: dict[Value, Operand] = {}
        self._names: Names | None = None

    def fresh(self, type: Type, hint: str | None = None) -> Value:
        """Return a value with a name new to the graph."""
        if self._names is None:
            self._names = Names([v.name for v in defined(self.graph)])
        return Value(self._names.hinted(hint) if hint else self._names.numbered(_PREFIX.get(type, "v")), type)

    def replace(self, old: Value, new: Operand) -> None:
        """Replace `old` by `new` in all later uses. `new` must be defined before each of those uses."""
        self._map[old] = self.get(new)

    def get(self, operand: Operand) -> Operand:
        """Return the current replacement of an operand."""
        return self._map.get(operand, operand) if isinstance(operand, Value) else operand

    def mapped(self, op: Op) -> Op:
        """Return the op with its operands replaced; the same object when there is nothing to replace."""
        if not self._map or not any(v in self._map for v in op.uses):
            return op
        return with_operands(op, tuple(self.get(x) for x in op.operands))


Rule = Callable[[Op, Rewriter], Sequence[Op] | None]
"""Given an op (operands already replaced): None to keep it, or the ops to put in its place."""


def rewrite(graph: Graph, rule: Rule, rewriter: Rewriter | None = None) -> Graph:
    """Apply `rule` to each op in dominance order (a rule must keep terminators); return the same graph when nothing
    changed."""
    rewriter = rewriter or Rewriter(graph)
    blocks = tuple(_rewrite_block(block, rule, rewriter) for block in graph.blocks)
    return with_blocks(graph, blocks)


def _rewrite_block(block: Block, rule: Rule, rewriter: Rewriter) -> Block:
    rewriter.label = block.label
    ops: list[Op] = []
    changed = False
    for op in block.ops:
        now = rewriter.mapped(op)
        then = rule(now, rewriter)
        changed |= now is not op if then is None else not (len(then) == 1 and then[0] is op)
        ops.extend((now,) if then is None else then)
    terminator = rewriter.mapped(block.terminator)
    then = rule(terminator, rewriter)
    if then is not None:
        ops.extend(then[:-1])
        changed |= len(then) > 1
        terminator = then[-1]
    if not changed and terminator is block.terminator:
        return block
    return Block(block.label, tuple(ops), terminator, block.params)


def with_blocks(graph: Graph, blocks: tuple[Block, ...]) -> Graph:
    """Return the graph with other blocks; the same object when they are the same objects."""
    if len(blocks) == len(graph.blocks) and all(a is b for a, b in zip(blocks, graph.blocks, strict=True)):
        return graph
    return Graph(graph.name, graph.params, blocks, graph.result, graph.constants)


def without_locs(graph: Graph) -> Graph:
    """Return the graph without source locations; the same object when it has none."""
    rewritten = tuple(_block_without_locs(block) for block in graph.blocks)
    constants = {name: _without_loc(op) for name, op in graph.constants.items()}
    if all(constants[name] is op for name, op in graph.constants.items()):
        return with_blocks(graph, rewritten)
    return Graph(graph.name, graph.params, rewritten, graph.result, constants)


def _block_without_locs(block: Block) -> Block:
    ops, terminator = tuple(map(_without_loc, block.ops)), _without_loc(block.terminator)
    same = terminator is block.terminator and all(a is b for a, b in zip(ops, block.ops, strict=True))
    return block if same else Block(block.label, ops, terminator)


def _without_loc(op: Op) -> Op:
    return op if op.loc is None else Op(op.kind, op.operands, op.results, op.attrs, op.cases)


def with_operands(op: Op, operands: tuple[Operand, ...]) -> Op:
    return Op(op.kind, operands, op.results, op.attrs, op.cases, op.loc, op.then)


def with_attrs(op: Op, attrs: Mapping[str, Attr]) -> Op:
    return Op(op.kind, op.operands, op.results, dict(attrs), op.cases, op.loc, op.then)


def defined(graph: Graph) -> Iterator[Value]:
    """Yield every value of a graph."""
    yield from graph.params
    for block in graph.blocks:
        yield from block.params
    yield from graph.producer


def without_unused_params(graph: Graph) -> Graph:
    """Return the graph without unused block parameters and the operands yielded to them."""
    while True:
        used = {v for op in graph.ops() if op.kind not in ("yield", "continue", "break", "loop") for v in op.uses}
        used |= {op.operands[0] for op in graph.ops() if op.kind == "loop" and isinstance(op.operands[0], Value)}
        # a loop's body and the block after it take the same values
        loops = [[graph.block[succ].params for succ in b.successors] for b in graph.blocks if b.terminator.kind == "loop"]
        alike = [{*pair} for params in loops for pair in zip(*params, strict=True)]
        before = -1
        while len(used) != before:  # operands yielded to used parameters
            before = len(used)
            used = used.union(*[pair for pair in alike if not used.isdisjoint(pair)])
            used |= {v for param, given in graph.feeds.items() if param in used for v in given if isinstance(v, Value)}
        kept = {b.label: [p in used for p in b.params] for b in graph.blocks}
        if all(map(all, kept.values())):
            return graph
        graph = with_blocks(graph, tuple(_kept(graph, b, kept) for b in graph.blocks))


def _kept(graph: Graph, block: Block, kept: Mapping[str, Sequence[bool]]) -> Block:
    end = block.terminator
    params = tuple(p for p, keep in zip(block.params, kept[block.label], strict=True) if keep)
    if end.kind == "loop":
        pairs = zip(end.operands[1:], kept[end.then or ""], strict=True)
        end = with_operands(end, (end.operands[0], *(x for x, keep in pairs if keep)))
    elif end.kind in ("yield", "continue", "break"):
        owner = graph.region[block.label] if end.kind == "yield" else graph.loop_around(block.label)
        to = graph.block[owner or ""].terminator.then or ""
        end = with_operands(end, tuple(x for x, keep in zip(end.operands, kept[to], strict=True) if keep))
    return Block(block.label, block.ops, end, params)
