"""The IR's nouns: typed SSA values, ops, blocks and graphs. Immutable, comparable by structure, printable.

Prompt state is an SSA value of type `ctx`: append, gen and select return a new one, a fork is two uses of one.

Blocks form a tree, the dominator tree: each block but the entry is named by one terminator. A `switch` names its arms
and, with `then`, the block that joins the arms that `yield`; a `loop` names its body, which represents all turns and is
evaluated once, and the block after it. Values yielded by arms and turns are parameters of the next block, so a region's
values are visible only inside it (as in MLIR's `scf`), while passes walk one flat list of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from lmc.errors import Loc
from lmc.segments import Mark, Special

FORMAT_VERSION = 2

Type = Literal["ctx", "str", "bool", "int", "float", "any"]
TYPES: frozenset[str] = frozenset(get_args(Type))


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value; its name is unique in its graph and printed as `%name`."""

    name: str
    type: Type

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A reference to a constant of the graph (an automaton, a grammar), printed as `@name`."""

    name: str


class _Default:
    """The case of a switch that matches everything else, printed as `_`."""

    def __repr__(self) -> str:
        return "DEFAULT"

    def __reduce__(self) -> str:
        return "DEFAULT"


DEFAULT = _Default()

Literal_ = str | int | float | bool | None | bytes
Operand = Value | Literal_ | Special | Mark
Attr = Literal_ | Symbol | tuple["Attr", ...]
Case = Literal_ | _Default


def exact(x: object) -> object:
    """Return a hashable key under which immutable objects are equal only if they print equal: 1, True and 1.0 differ,
    0.0 and -0.0 too."""
    if isinstance(x, tuple):
        return tuple(exact(i) for i in x)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(x, (float, complex, range)):
        return type(x), repr(x)
    if isinstance(x, frozenset):
        return frozenset, frozenset(exact(i) for i in x)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return (type(x), x) if isinstance(x, (bool, int)) else x


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. Terminators only: `cases` pairs a switch's case with the label of its arm, or `_` with a loop's
    body; `then` is the label of the block after them."""

    kind: str
    operands: tuple[Operand, ...] = ()
    results: tuple[Value, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict[str, Attr], hash=False)
    cases: tuple[tuple[Case, str], ...] = ()
    loc: Loc | None = field(default=None, compare=True)
    then: str | None = None

    @property
    def uses(self) -> list[Value]:
        return [x for x in self.operands if isinstance(x, Value)]

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)


@dataclass(frozen=True, slots=True)
class Block:
    """Straight-line ops ended by a terminator. The first block of a graph is `entry`; `params` receive the values
    yielded to it."""

    label: str
    ops: tuple[Op, ...]
    terminator: Op
    params: tuple[Value, ...] = ()

    @property
    def successors(self) -> tuple[str, ...]:
        """Return the blocks that the terminator names: arms or body, then the one after them."""
        end = self.terminator
        arms = tuple(label for _, label in end.cases)
        return arms if end.then is None else (*arms, end.then)


display: Callable[[Graph], str] = repr
"""Renders a graph for a notebook. The package sets it: what renders knows the op table, which knows this module."""
as_text: Callable[[Graph], str] = object.__repr__
"""Prints a graph. Set as `display` is."""


@dataclass(frozen=True, repr=False)
class Graph:
    """The graph of a function: a tree of blocks. `params` are its arguments."""

    name: str
    params: tuple[Value, ...]
    blocks: tuple[Block, ...]
    result: Type = "any"
    constants: Mapping[str, Op] = field(default_factory=dict[str, Op])

    @property
    def entry(self) -> Block:
        return self.blocks[0]

    @cached_property
    def block(self) -> Mapping[str, Block]:
        """Return blocks by label."""
        return {b.label: b for b in self.blocks}

    @cached_property
    def predecessor(self) -> Mapping[str, str]:
        """Return, by block, the label of the block whose terminator names it: its immediate dominator. The entry has
        none."""
        return {succ: b.label for b in self.blocks for succ in b.successors}

    def ops(self) -> Iterator[Op]:
        """Yield all ops, terminators included, block by block."""
        for b in self.blocks:
            yield from b.ops
            yield b.terminator

    @cached_property
    def producer(self) -> Mapping[Value, Op]:
        """Return the op that defines each value; parameters, of the graph and of blocks, have none."""
        return {v: op for op in self.ops() for v in op.results}

    @cached_property
    def region(self) -> Mapping[str, str]:
        """Return, by block, the block whose terminator opened the enclosing region; "" for the function's own."""
        found = {self.blocks[0].label: ""}
        for b in self.blocks:
            for succ in b.successors:
                found[succ] = found[b.label] if succ == b.terminator.then else b.label
        return found

    def loop_around(self, label: str) -> str | None:
        """Return the label of the block that ends with the innermost loop around a block, if there is one."""
        owner = self.region[label]
        while owner and self.block[owner].terminator.kind != "loop":
            owner = self.region[owner]
        return owner or None

    @cached_property
    def feeds(self) -> Mapping[Value, tuple[Operand, ...]]:
        """Return, for each block parameter, its possible values: the operands yielded to it, and for a loop the initial
        one."""
        found: dict[Value, list[Operand]] = {v: [] for b in self.blocks for v in b.params}

        def feed(label: str | None, values: tuple[Operand, ...]) -> None:
            if label is not None:
                for param, value in zip(self.block[label].params, values, strict=False):
                    found[param].append(value)

        for b in self.blocks:
            end = b.terminator
            if end.kind == "loop":
                for succ in b.successors:
                    feed(succ, end.operands[1:])
            elif end.kind in ("yield", "continue", "break"):
                owner = self.region[b.label] if end.kind == "yield" else self.loop_around(b.label)
                to = self.block[owner] if owner else None
                if to is not None and to.terminator.kind == "loop" and end.kind != "break":
                    feed(to.terminator.cases[0][1], end.operands)
                if to is not None:
                    feed(to.terminator.then, end.operands)
        return {v: tuple(dict.fromkeys(given)) for v, given in found.items()}

    def __repr__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        """Return the notebook display: the tree of prompts, and each op beside its source line."""
        return display(self)

    @cached_property
    def extended(self) -> Mapping[Value, tuple[Op, ...]]:
        """Return, for each prompt, the ops that extend it, in order: two or more make it a fork point."""
        found: dict[Value, list[Op]] = {p: [] for p in self.params if p.type == "ctx"}
        for block in self.blocks:
            found.update((p, []) for p in block.params if p.type == "ctx")
            for op in block.ops:
                for v in op.results:
                    if v.type == "ctx":
                        found[v] = []
                        if op.operands and isinstance(op.operands[0], Value):
                            found[op.operands[0]].append(op)
        return {v: tuple(ops) for v, ops in found.items()}

    @cached_property
    def users(self) -> Mapping[Value, tuple[Op, ...]]:
        """Return the ops that use each value, in order."""
        found: dict[Value, list[Op]] = {}
        for op in self.ops():
            for v in dict.fromkeys(op.uses):
                found.setdefault(v, []).append(op)
        return {v: tuple(ops) for v, ops in found.items()}
