"""Passes: what a pass is and is given, and the registry of all by name."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, TypeVar

from lmc.chat import CHATML, ChatTemplate
from lmc.ir.core import Graph, Operand, Value
from lmc.segments import Special


@dataclass(frozen=True)
class Target:
    """The target that graphs are compiled for. `kind` picks the pipeline: `tokens` (mock, engine), `text` (completion
    APIs) or `chat` (message APIs). `greedy`: requests without a temperature run at 0. `tokens`: counts a text's tokens,
    if the target's tokenizer is known."""

    kind: str = "tokens"
    template: ChatTemplate = CHATML
    greedy: bool = False
    tokens: Callable[[str], int] | None = field(default=None, compare=False)

    @property
    def measure(self) -> Measure:
        """Return the measure of text lengths."""
        return CHARACTERS if self.tokens is None else Measure("tokens", self.tokens, 1, 50, 1)


@dataclass(frozen=True)
class Measure:
    """The length of texts in `unit`s: of a known text, of a special token, of a text known only at run time.

    per_token  units per token of an answer
    """

    unit: str
    text: Callable[[str], int]
    special: int
    unknown: int
    per_token: int

    def size(self, parts: Sequence[Operand]) -> int:
        """Return the size of an append's operands."""
        return sum(
            self.text(x) if isinstance(x, str) else self.special if isinstance(x, Special) else self.unknown if isinstance(x, Value) else 0 for x in parts
        )


CHARACTERS = Measure("characters", len, 4, 200, 4)


@dataclass(frozen=True)
class PassContext:
    """Context of a pass besides the graph: the target, and a place for its statistics and for notes to the user."""

    target: Target = field(default_factory=Target)
    stats: dict[str, int] = field(default_factory=dict[str, int])
    notes: list[str] = field(default_factory=list[str])

    def count(self, what: str, n: int = 1) -> None:
        if n:
            self.stats[what] = self.stats.get(what, 0) + n

    def note(self, text: str) -> None:
        self.notes.append(text)


class Pass:
    """Base of all passes. Subclasses are frozen dataclasses; `lmc opt` shows the docstring's first line."""

    name: ClassVar[str]

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """Return the graph transformed, or the same object."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """Return the pass as it is written in a textual pipeline: its name, and the options that are not the
        defaults."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}  # pyright: ignore[reportArgumentType]
        options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in given.items())
        return f"{self.name}{{{options}}}" if options else self.name


PassType = TypeVar("PassType", bound=type[Pass])
_registry: dict[str, type[Pass]] = {}


def register(cls: PassType) -> PassType:
    """Class decorator: register a pass by its name."""
    _registry[cls.name] = cls
    return cls


def registry() -> Mapping[str, type[Pass]]:
    """Return all passes by name."""
    for name in _MODULES:
        importlib.import_module(f"lmc.passes.{name}")  # each module registers its pass
    return _registry


_MODULES = (
    "aggressive", "batch_forks", "canonicalize", "cse", "dce", "lower_chat", "lower_constraint", "plan_cache", "plan_prefix", "plan_speculation"
)  # fmt: skip
