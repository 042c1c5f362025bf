"""The trace tree: everything that has been seen of a program for one kind of arguments, path by path.

A node is a straight run of ops. It ends in a decision (what Python wanted to know, one arm per answer seen), in a
return, or in an escape to the interpreter. Nodes only grow: a recorded op never changes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any, cast

from lmc.errors import Loc
from lmc.ir.builder import Names
from lmc.ir.core import DEFAULT, Block, Case, Graph, Op, Symbol
from lmc.ir.core import Value as IRValue

Decision = tuple[type, Any]
"""An answer as a key: exact type and value, so that 1, True and 1.0 are three answers; functions and classes by identity."""


def decision_of(x: object) -> Decision | None:
    """The key of a concrete answer, or None when the tree cannot tell such objects apart."""
    if type(x) in _BY_VALUE:
        return type(x), x
    if type(x) is tuple:
        keys = tuple(decision_of(i) for i in x)
        return None if None in keys else (tuple, keys)
    if callable(x) or isinstance(x, ModuleType | enum.Enum):
        return type(x), _Identity(x)
    return None


@dataclass(frozen=True, slots=True)
class _Identity:
    obj: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.obj is self.obj

    def __hash__(self) -> int:
        return id(self.obj)


_BY_VALUE = frozenset({str, int, float, bool, type(None), bytes})


def answer_of(key: Decision) -> Any:
    """The concrete answer that a key stands for."""
    kind, value = key
    if kind is tuple:
        return tuple(answer_of(k) for k in value)
    return value.obj if isinstance(value, _Identity) else value


@dataclass(slots=True)
class Switch:
    """A decision. `live` is what the program could still reach when it was made: the operands of its exit.

    `expected` is the answer that a trace goes on with where no run has given one yet.
    """

    cond: IRValue
    live: tuple[IRValue, ...]
    id: int
    op: Op
    domain: tuple[Any, ...] | None
    expected: Decision | None = None
    arms: dict[Decision, Node] = field(default_factory=dict)


@dataclass(slots=True)
class Return:
    """The end of the run: a `return`, or a `raise`."""

    op: Op


@dataclass(slots=True)
class Escape:
    """From here on the interpreter runs."""

    reason: str
    id: int
    loc: Loc | None = None


@dataclass(slots=True, eq=False)
class Node:
    ops: list[Op] = field(default_factory=list)
    end: Switch | Return | Escape | None = None
    used: int = 0  # when a run last went through it, as far as anybody counts


@dataclass(frozen=True, slots=True)
class Guard:
    """What must still hold about the outside for a tree to apply; `what` says it to a person, `value` is what was seen.

    loc    where the program read it first
    owner  where it is: globals, a cell, a module or a class; a container itself, if `name` is ""
    """

    what: str
    holds: Callable[[], bool]
    value: Any = None
    loc: Loc | None = None
    owner: Any = None
    name: str = ""


def _weight(node: Node) -> int:
    """The ops of a node and of all below it; what is below is taken off, as nothing leads there any more."""
    total, stack = 0, [node]
    while stack:
        here = stack.pop()
        total += len(here.ops)
        if isinstance(here.end, Switch):
            stack.extend(here.end.arms.values())
            here.end.arms.clear()
    return total


Site = tuple[str, str, int, int]
"""A place in the program's code: file, function, first line, offset of the instruction."""


def site_of(frame: FrameType) -> Site:
    """Where a frame is, the same in every trace."""
    code = frame.f_code
    return code.co_filename, code.co_name, code.co_firstlineno, frame.f_lasti


class Tree:
    """The trace tree of one program for one list of argument types."""

    def __init__(self, name: str, params: tuple[IRValue, ...], sites: frozenset[Site] = frozenset(), watched: bool = False) -> None:
        """`sites`: where the program makes containers that host code will be handed; they are objects of the run.
        `watched`: for runs whose text others see while it grows.
        """
        self.name, self.params, self.sites, self.watched = name, params, sites, watched
        self.wanted: frozenset[Site] = sites  # those and the ones that a trace was stopped by
        self.root = Node()
        self.guards: dict[object, Guard] = {}
        self.objects: dict[object, tuple[Callable[[], Any], Any]] = {}
        """Functions, classes, lists, … of the outside that the program reads: how, and what was there."""
        self.steady: dict[int, tuple[Any, tuple[Any, ...]]] = {}  # guarded outside containers, and what they hold
        self.classes: dict[int, list[type]] = {}  # exceptions that the program makes, by hook call: a later trace makes no other ones
        self.symbols: dict[str, Any] = {}
        self.names = Names(v.name for v in params)
        self.size = 0  # ops recorded
        self._symbol_names = Names()
        self._symbol_of: dict[object, str] = {}
        self._switches = 0

    def symbol(self, key: object, name: str, obj: Any) -> Symbol:
        """The symbol of a host object; `key` tells equal objects of different traces as one."""
        known = self._symbol_of.get(key)
        if known is None:
            known = self._symbol_of[key] = self._symbol_names.unique(name)
            self.symbols[known] = obj
        return Symbol(known)

    def known_symbols(self) -> Iterator[tuple[object, str]]:
        """What tells each symbol from others, and its name."""
        return iter(self._symbol_of.items())

    def adopt(self, symbols: Mapping[str, Any]) -> None:
        """Takes symbols that were named elsewhere."""
        self.symbols = dict(symbols)
        self._symbol_names = Names(symbols)

    def adopt_case(self, key: Decision, name: str) -> None:
        """The symbol of an answer that was named elsewhere."""
        self._symbol_of["case", key] = name

    def switch_id(self) -> int:
        self._switches += 1
        return self._switches - 1

    def node(self, path: tuple[Decision, ...]) -> Node | None:
        """The node a path of decisions leads to, if it has been seen."""
        node = self.root
        for key in path:
            if not isinstance(node.end, Switch) or key not in node.end.arms:
                return None
            node = node.end.arms[key]
        return node

    def paths(self) -> Iterator[tuple[Decision, ...]]:
        """The decisions that lead to each end that has been seen."""
        stack: list[tuple[Node, tuple[Decision, ...]]] = [(self.root, ())]
        while stack:
            node, path = stack.pop()
            if isinstance(node.end, Switch) and node.end.arms:
                stack += [(arm, (*path, key)) for key, arm in node.end.arms.items()]
            else:
                yield path

    def variables(self) -> tuple[frozenset[Any], bool]:
        """The names that paths give values to, and whether all paths that there are have been seen."""
        names: set[Any] = set()
        complete = True
        stack = [self.root]
        while stack:
            end = stack.pop().end
            match end:
                case Return():
                    names.update(cast(tuple[Any, ...], end.op.attrs["vars"]))
                case Switch():
                    complete = complete and end.domain is not None and {decision_of(x) for x in end.domain} <= end.arms.keys()
                    stack += end.arms.values()
                case _:
                    complete = False
        return frozenset(names), complete

    # -- arms that are no longer used

    def touch(self, path: Iterable[Decision | None], now: int) -> None:
        """A run went along a path at a time `now`."""
        node = self.root
        for key in path:
            if key is None or not isinstance(node.end, Switch) or key not in node.end.arms:
                return
            node = node.end.arms[key]
            node.used = now

    def thin(self, switch: Switch, keep: int) -> None:
        """Drops the least recently used arms of a decision until `keep` of them are left."""
        for key in sorted(switch.arms, key=lambda k: switch.arms[k].used)[: max(0, len(switch.arms) - keep)]:
            self.size -= _weight(switch.arms.pop(key))

    def shrink(self, size: int) -> None:
        """Drops the least recently used arms of all decisions until the tree has no more than `size` ops."""
        arms = [(arm.used, -depth, switch, key) for depth, switch in enumerate(self.exits()) for key, arm in switch.arms.items()]
        for used, _, switch, key in sorted(arms, key=lambda arm: arm[:2]):
            if self.size <= size:
                return
            if key in switch.arms and switch.arms[key].used == used:
                self.size -= _weight(switch.arms.pop(key))

    def graph(self, node: Node | None = None, params: tuple[IRValue, ...] | None = None) -> Graph:
        """The tree from `node` down (default: all of it) as a traced graph with one block per node."""
        blocks: list[Block] = []
        self._blocks(node or self.root, "entry", blocks)
        return Graph(self.name, self.params if params is None else params, tuple(blocks), "any", {}, dict(self.symbols))

    def _blocks(self, start: Node, start_label: str, blocks: list[Block]) -> None:
        stack: list[tuple[Node, str]] = [(start, start_label)]
        count = 0
        while stack:
            node, label = stack.pop()
            end = node.end
            if isinstance(end, Return):
                blocks.append(Block(label, tuple(node.ops), end.op))
            elif isinstance(end, Switch):
                cases: list[tuple[Case, str]] = []
                following: list[tuple[Node, str]] = []
                for key, arm in end.arms.items():
                    count += 1
                    cases.append((self._case(key), f"b{count}"))
                    following.append((arm, f"b{count}"))
                exit_label = f"x{end.id}"
                cases.append((DEFAULT, exit_label))
                blocks.append(Block(label, tuple(node.ops), Op("switch", (end.cond,), (), {}, tuple(cases), end.op.loc)))
                blocks.append(Block(exit_label, (), Op("exit", end.live, (), {"id": end.id}, (), end.op.loc)))
                stack.extend(reversed(following))
            else:
                attrs = {"id": -1, "reason": "not traced"} if end is None else {"id": end.id, "reason": end.reason}
                blocks.append(Block(label, tuple(node.ops), Op("exit", (), (), attrs, (), None if end is None else end.loc)))

    def _case(self, key: Decision) -> Case:
        answer = answer_of(key)
        if type(answer) in _BY_VALUE:
            return answer
        return self.symbol(("case", key), getattr(answer, "__qualname__", None) or type(answer).__name__, answer)

    def exits(self) -> Iterator[Switch]:
        """Every decision, each of which has an exit for answers not seen yet."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            if isinstance(node.end, Switch):
                yield node.end
                stack.extend(node.end.arms.values())
