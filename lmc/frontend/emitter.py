"""The output interface of a state, and the values of its names.

A state does the bookkeeping and knows no model; an `Emitter` is a backend (a run), the ledger of a run whose requests
are made ahead (an evaluation), or the graph that an evaluation builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from lmc.errors import Loc
from lmc.frontend.expressions import GenExpr, SelectExpr
from lmc.frontend.values import Symbolic
from lmc.segments import Special

Ctx = Any  # lmc.prompt.Prompt, or the tracer's ctx value
Answer = Any  # lmc.backend.results.Result, or the tracer's answer


class Emitter(Protocol):
    """The target that a state writes to. A ctx is immutable; every method that extends one gives a new one."""

    def root(self) -> Ctx: ...
    def append(self, ctx: Ctx, text: str | Symbolic | Special) -> Ctx: ...
    def image(self, ctx: Ctx, source: Any, detail: str = "auto", loc: Loc | None = None) -> Ctx: ...
    def video(self, ctx: Ctx, source: Any, num_frames: Any = None, fps: Any = None, loc: Loc | None = None) -> Ctx: ...
    def role_begin(self, ctx: Ctx, role: str, previous: str | None) -> Ctx: ...
    def role_end(self, ctx: Ctx, role: str) -> Ctx: ...

    def gen(self, ctx: Ctx, expr: GenExpr, stream: str, ordinal: int) -> tuple[Ctx, Answer]:
        """Submit a request; never wait. `stream` and `ordinal` identify the answer and seed its sample."""
        ...

    def select(self, ctx: Ctx, expr: SelectExpr, stream: str, ordinal: int) -> tuple[Ctx, Answer]: ...

    def splice(self, ctx: Ctx, other: Ctx, since: Ctx) -> Ctx:
        """Return `ctx` followed by the suffix of `other` after its ancestor `since`: parts as they are, answers as
        their text."""
        ...

    def separate_reasoning(self, before: Ctx, after: Ctx, take: Callable[[str], str]) -> Ctx:
        """Return `before` followed by the part that `take` keeps of the answer that ends `after`."""
        ...

    def read(self, answer: Answer) -> Any:
        """Return the value of an answer; wait for it and raise its error."""
        ...

    def read_part(self, answer: Answer, take: Callable[[str], str]) -> Any:
        """As `read`, with `take` of each text."""
        ...

    def meta(self, answer: Answer) -> Any: ...

    def text(self, ctx: Ctx, since: Ctx | None = None) -> Any: ...
    def messages(self, ctx: Ctx) -> Any: ...

    def wait(self, ctx: Ctx) -> None:
        """Wait for every answer in `ctx`; do not raise their errors."""
        ...

    def error(self, ctx: Ctx) -> BaseException | None:
        """Wait, and return the first error in `ctx`."""
        ...

    def usage(self, answers: Iterable[Answer], stream: str = "") -> Any:
        """Return the usage of these answers of a stream; wait for them."""
        ...


@runtime_checkable
class LiveRun(Protocol):
    """The emitter of a run, whose requests are pending at a backend."""

    @property
    def is_journaled(self) -> bool: ...
    def cancel(self) -> None:
        """Cancel pending requests and refuse new ones."""
        ...


# -- values of names -----------------------------------------------------------------------------------------------


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
    """Apply `take` to an answer's text, or to each of its texts."""
    return [take(text) for text in value] if isinstance(value, list) else take(value)


@dataclass(slots=True)
class GatheredAnswers:
    """Values that the children of a fork held under a name; read as a list, in the order of the children."""

    items: tuple[Any, ...]


@dataclass(slots=True)
class Scoped:
    """Text between two prompts; `until` is None while the scope is open."""

    since: Ctx
    until: Ctx = None


def flat(asked: Iterable[Any]) -> Iterator[Answer]:
    """Yield the answers in a nested list of them, as `State.asked` is."""
    for item in asked:
        if item.__class__ is list:
            yield from flat(cast(list[Any], item))
        else:
            yield item
