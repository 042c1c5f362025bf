"""The IR's nouns: typed SSA values, ops, blocks and graphs. Immutable, comparable by structure, printable.

Prompt state is an SSA value of type `ctx`: append, gen and select return a new one, a fork is two uses of one.
Blocks form a trace tree (every block has one predecessor), so there are no phis and no block parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from lmc.errors import Loc
from lmc.prompt import Mark, Special

FORMAT_VERSION = 1

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
    """A reference to a host object (function, class, module, opaque constant) in `Graph.symbols`, printed as `@name`."""

    name: str


class _Default:
    """The case of a switch that matches everything else, printed as `_`."""

    def __repr__(self) -> str:
        return "DEFAULT"

    def __reduce__(self) -> str:
        return "DEFAULT"


DEFAULT = _Default()

Literal_ = str | int | float | bool | None | bytes
Operand = Value | Literal_ | Special | Mark | Symbol
Attr = Literal_ | Symbol | tuple["Attr", ...]
Case = Literal_ | Symbol | _Default


def exact(x: object) -> object:
    """A hashable key under which immutable objects are equal only if they print equal: 1, True and 1.0 differ, 0.0 and -0.0 too."""
    if isinstance(x, tuple):
        return tuple(exact(i) for i in x)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(x, (float, complex, range)):
        return type(x), repr(x)
    if isinstance(x, frozenset):
        return frozenset, frozenset(exact(i) for i in x)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return (type(x), x) if isinstance(x, (bool, int)) else x


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `cases` (terminators only) pairs a switch's case with the label of the block it goes to."""

    kind: str
    operands: tuple[Operand, ...] = ()
    results: tuple[Value, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict[str, Attr], hash=False)
    cases: tuple[tuple[Case, str], ...] = ()
    loc: Loc | None = field(default=None, compare=True)

    @property
    def uses(self) -> list[Value]:
        return [x for x in self.operands if isinstance(x, Value)]

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)


@dataclass(frozen=True, slots=True)
class Block:
    """Straight-line ops ended by a terminator. The first block of a graph is `entry`."""

    label: str
    ops: tuple[Op, ...]
    terminator: Op

    @property
    def successors(self) -> tuple[str, ...]:
        return tuple(label for _, label in self.terminator.cases)


@dataclass(frozen=True)
class Graph:
    """A function's trace tree, or a part of it (`params` are then what the part needs from before).

    `symbols` resolves `@name`s to live objects; it does not count in equality and is empty after parsing.
    """

    name: str
    params: tuple[Value, ...]
    blocks: tuple[Block, ...]
    result: Type = "any"
    constants: Mapping[str, Op] = field(default_factory=dict[str, Op])
    symbols: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False, repr=False)

    @property
    def entry(self) -> Block:
        return self.blocks[0]

    @cached_property
    def block(self) -> Mapping[str, Block]:
        """Blocks by label."""
        return {b.label: b for b in self.blocks}

    @cached_property
    def predecessor(self) -> Mapping[str, str]:
        """Label of the one block that leads to each block; the entry has none."""
        return {succ: b.label for b in self.blocks for succ in b.successors}

    def ops(self) -> Iterator[Op]:
        """All ops, terminators included, block by block."""
        for b in self.blocks:
            yield from b.ops
            yield b.terminator

    @cached_property
    def producer(self) -> Mapping[Value, Op]:
        """The op that defines each value; parameters have none."""
        return {v: op for op in self.ops() for v in op.results}

    def _repr_html_(self) -> str:
        """What a notebook shows: the tree of prompts, and each op beside its source line."""
        from lmc.ir.page import Section, fragment

        return fragment(f"@{self.name}", [Section(f"@{self.name}", self)])

    @cached_property
    def extended(self) -> Mapping[Value, tuple[Op, ...]]:
        """For each prompt the ops that extend it, in order: two or more make it a fork point."""
        found: dict[Value, list[Op]] = {p: [] for p in self.params if p.type == "ctx"}
        for op in self.ops():
            for v in op.results:
                if v.type == "ctx":
                    found[v] = []
                    if op.operands and isinstance(op.operands[0], Value):
                        found[op.operands[0]].append(op)
        return {v: tuple(ops) for v, ops in found.items()}

    @cached_property
    def users(self) -> Mapping[Value, tuple[Op, ...]]:
        """The ops that use each value, in order."""
        found: dict[Value, list[Op]] = {}
        for op in self.ops():
            for v in dict.fromkeys(op.uses):
                found.setdefault(v, []).append(op)
        return {v: tuple(ops) for v, ops in found.items()}
