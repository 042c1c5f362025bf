"""What a state writes to, and what a name in it holds.

A state keeps the books and knows no model; an `Emitter` is a backend (a run), the ledger of a run that is asked
ahead (an evaluation), or the graph that an evaluation draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from lmc.errors import Loc
from lmc.frontend.primitives import GenExpr, SelectExpr
from lmc.frontend.values import Symbolic
from lmc.prompt import Special

Ctx = Any  # lmc.prompt.Prompt, or the tracer's ctx value
Answer = Any  # lmc.backend.base.Result, or the tracer's answer


class Emitter(Protocol):
    """What a state writes to. A ctx is immutable; every method that extends one gives a new one."""

    def root(self) -> Ctx: ...
    def append(self, ctx: Ctx, text: str | Symbolic | Special) -> Ctx: ...
    def image(self, ctx: Ctx, source: Any, detail: str = "auto", loc: Loc | None = None) -> Ctx: ...
    def video(self, ctx: Ctx, source: Any, num_frames: Any = None, fps: Any = None, loc: Loc | None = None) -> Ctx: ...
    def role_begin(self, ctx: Ctx, role: str, previous: str | None) -> Ctx: ...
    def role_end(self, ctx: Ctx, role: str) -> Ctx: ...

    def gen(self, ctx: Ctx, expr: GenExpr, stream: str, ordinal: int) -> tuple[Ctx, Answer]:
        """Asks; never waits. `stream` and `ordinal` identify the answer and seed its sample."""
        ...

    def select(self, ctx: Ctx, expr: SelectExpr, stream: str, ordinal: int) -> tuple[Ctx, Answer]: ...

    def splice(self, ctx: Ctx, other: Ctx, since: Ctx) -> Ctx:
        """`ctx` followed by what `other` has after its ancestor `since`: parts as they are, answers as their text."""
        ...

    def separate_reasoning(self, before: Ctx, after: Ctx, take: Callable[[str], str]) -> Ctx:
        """`before` followed by what `take` leaves of the text of the answer that ends `after`."""
        ...

    def read(self, answer: Answer) -> Any:
        """The value of an answer; waits for it and raises what it failed with."""
        ...

    def read_part(self, answer: Answer, take: Callable[[str], str]) -> Any:
        """As `read`, with `take` of each text."""
        ...

    def meta(self, answer: Answer) -> Any: ...

    def text(self, ctx: Ctx, since: Ctx | None = None) -> Any: ...
    def messages(self, ctx: Ctx) -> Any: ...

    def wait(self, ctx: Ctx) -> None:
        """Waits for every answer in `ctx`; raises nothing that they failed with."""
        ...

    def error(self, ctx: Ctx) -> BaseException | None:
        """Waits, and gives the first error in `ctx`."""
        ...

    def usage(self, answers: Iterable[Answer], stream: str = "") -> Any:
        """What these answers of a stream cost; waits for them."""
        ...


# -- what a name holds -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stored:
    """A value that the program put under a name; `source` is the answer whose meta info the name still has."""

    value: Any
    source: Answer = None


@dataclass(frozen=True, slots=True)
class Taken:
    """A part of an answer, such as its reasoning: `take(text)` of each of its texts."""

    answer: Answer
    take: Callable[[str], str]


def taken(value: str | list[str], take: Callable[[str], str]) -> str | list[str]:
    """`take` of an answer's text, or of each of its texts."""
    return [take(text) for text in value] if isinstance(value, list) else take(value)


@dataclass(slots=True)
class Gathered:
    """What the children of a fork held under a name; read as a list, in the order of the children."""

    items: tuple[Any, ...]


@dataclass(slots=True)
class Scoped:
    """The text between two prompts; `until` is None while the scope is open."""

    since: Ctx
    until: Ctx = None
