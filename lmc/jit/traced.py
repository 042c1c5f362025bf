"""A trace tree in use: what it was first traced with, when it applies, what it was compiled to, and what is dropped when it grows too large."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lmc.backend.code import Code
from lmc.frontend.tree import Switch, Tree, decision_of
from lmc.jit.growth import Growth
from lmc.measured import Ledger
from lmc.passes.manager import Target

MAX_OPS = 50_000
"""Ops of one tree; beyond it the paths least recently used are dropped, down to half of it."""
MAX_ARMS = 64
"""Answers of one decision that have a path of their own; at a further one the least recently used half is dropped."""


@dataclass(eq=False)
class Plan:
    """A tree compiled for one target. In-flight runs keep the code they started with."""

    target: Target
    code: Code
    size: int
    served: int  # runs that the tree had served by then
    stats: Mapping[str, int]
    notes: tuple[str, ...] = ()  # what the passes have to say about it


@dataclass(eq=False)
class Traced:
    """A tree with the arguments it was first traced with, and its plans by chat template."""

    tree: Tree
    arguments: inspect.BoundArguments
    plans: dict[tuple[str, int, bool], Plan] = field(default_factory=dict[tuple[str, int, bool], Plan])
    growth: Growth = field(default_factory=Growth)
    ledger: Ledger = field(default_factory=Ledger)
    checked: int = -1  # the tree's size when `outputs` was last looked up in it
    crowded: bool = False  # whether it is worth while to note which paths runs take
    saved: bool = False  # of a file: what is not in it is traced in a tree of its own
    retired: bool = False  # a run came to such a path, and the source is there
    clock: int = 0

    # -- whether it is the one for a run

    def applies(self) -> bool:
        """Whether the outside is as it was when the tree was traced."""
        for guard in tuple(self.tree.guards.values()):  # noqa: SIM110  # a loop is the fastest here
            if not guard.holds():
                return False
        return True

    @property
    def outgrown(self) -> bool:
        """Whether a trace found containers of the program that should be objects of the run from the start."""
        return self.retired or self.tree.wanted != self.tree.sites

    def missed(self) -> str:
        """What it was traced with and no longer holds, and where the program reads that."""
        return next((f"{guard.what}, read at {guard.loc}" for guard in self.tree.guards.values() if not guard.holds()), "")

    # -- its paths

    def took(self, path: Iterable[Any]) -> None:
        """A run took a path."""
        self.clock += 1
        self.tree.touch(map(decision_of, path), self.clock)

    @property
    def large(self) -> bool:
        """Whether it has more ops than a tree may have."""
        return self.tree.size > MAX_OPS

    def make_room(self, switch: Switch) -> str | None:
        """Drops what was not used for longest if a new arm of a decision would be too much; says what if so."""
        tree, arms = self.tree, len(switch.arms)
        self.crowded = self.crowded or arms >= MAX_ARMS // 4 or tree.size > MAX_OPS // 4
        if arms < MAX_ARMS and not self.large:
            return None
        if arms >= MAX_ARMS:
            tree.thin(switch, MAX_ARMS // 2)
        if self.large:
            tree.shrink(MAX_OPS // 2)
        self.plans.clear()  # runs on their way keep the code that they are on
        return f"{arms} answers at {switch.op.loc}" if arms >= MAX_ARMS else f"more than {MAX_OPS} ops traced"
