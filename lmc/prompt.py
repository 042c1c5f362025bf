"""The persistent prompt state.

A `Prompt` is the run-time image of the IR's `ctx`: an immutable node that knows its parent, so that a fork is
two uses of one node. Interpreter and executor share it; a backend sees only segments and handles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from lmc.observing import submit
from lmc.segments import Gen, Given, Image, Mark, Part, Segment, Select, Text, plain
from lmc.tools import with_calls

if TYPE_CHECKING:
    from lmc.backend.base import Backend, Handle, Hints
    from lmc.backend.results import Result


class Forked(NamedTuple):
    """A fork in a prompt's history: whole messages up to there, number of copies that went on, the previous fork."""

    messages: int
    copies: int
    before: Forked | None

    def shared(self, known: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        """Extend with known facts: how many messages a prompt has in common with how many future ones."""
        found = dict(known)
        fork: Forked | None = self
        while fork is not None:
            found[fork.messages] = max(found.get(fork.messages, 0.0), fork.copies - 1)
            fork = fork.before
        return tuple(found.items())


class Prompt:
    """A prompt: literal parts and answers from the root to here.

    handle   covers   root … the last submitted segment   (owned by the backend, shared by all descendants)
    tail     covers   the literal parts since then, not yet submitted

    Cheap to extend (the parent is shared, never copied) and never changed after it is built.
    """

    __slots__ = ("__weakref__", "forked", "handle", "parent", "parts", "result", "tail")

    def __init__(
        self,
        parent: Prompt | None = None,
        parts: tuple[Piece, ...] = (),
        result: Result | None = None,
        handle: Handle | None = None,
        tail: tuple[Piece, ...] = (),
    ) -> None:
        self.parent, self.parts, self.result, self.handle, self.tail = parent, parts, result, handle, tail
        self.forked: Forked | None = None if parent is None else parent.forked

    def fork(self, copies: int) -> Prompt:
        """Return this prompt as one that so many others go on from."""
        found = Prompt(self, (), None, self.handle, self.tail)
        messages = sum(isinstance(part, Mark) and part.edge == "end" for node in self.nodes() for part in node.parts)
        found.forked = Forked(messages, copies, self.forked)
        return found

    def append(self, *parts: Piece) -> Prompt:
        """Return this prompt followed by literal parts, an image or an excerpt."""
        return Prompt(self, parts, None, self.handle, self.tail + parts)

    def submit(self, backend: Backend, ask: Gen | Select, hints: Hints | None = None) -> Prompt:
        """Return this prompt followed by the answer to `ask`, which the backend starts on at once."""
        if self.forked is not None and hints is not None and getattr(backend, "wants_shared", False):
            hints = hints._replace(shared=self.forked.shared(hints.shared))
        handle = submit(backend, self._begun(), self._segments(ask), hints, self)
        return Prompt(self, (), handle.results[0], handle, ())

    def prefill(self, backend: Backend, hints: Hints | None = None) -> Prompt:
        """Return this prompt with its tail submitted to the backend, so that descendants share the work."""
        handle = backend.prefill(self._begun(), self._segments(), hints)
        return Prompt(self, (), None, handle, ())

    def _begun(self) -> Handle | None:
        """Return the backend's handle to extend; a deferred request is made now."""
        begin = getattr(self.handle, "begin", None)
        return self.handle if begin is None else begin()

    def _segments(self, *ask: Gen | Select) -> tuple[Segment, ...]:
        tail = self.tail
        if not tail:
            return ask
        if not _APART.isdisjoint(map(type, tail)):
            return (*segments_of(_known(tail)), *ask)
        return (Text(tail), *ask)  # pyright: ignore[reportArgumentType]

    def nodes(self) -> list[Prompt]:
        """Yield every node from the root to here."""
        return self.nodes_after(None)

    def nodes_after(self, since: Prompt | None) -> list[Prompt]:
        """Yield nodes that follow `since`, an ancestor of this one or this one; None gives all from the root."""
        path: list[Prompt] = []
        node: Prompt | None = self
        while node is not since:
            if node is None:
                raise ValueError("`since` is not an ancestor of this prompt")
            path.append(node)
            node = node.parent
        path.reverse()
        return path

    def pieces(self, since: Prompt | None = None) -> Iterator[Part]:
        """Return the parts in order, answers as their text; waits for each answer. With `since`, only what follows
        it."""
        for node in self.nodes_after(since):
            for part in node.parts:
                if isinstance(part, Excerpt):
                    yield part.text()
                elif not isinstance(part, Image | Given):  # an image has no text, and an answer's is its result's
                    yield part
            if node.result is not None:
                yield node.result.output().text

    def answers(self, since: Prompt | None = None) -> Iterator[Result]:
        """Yield the answers in it, in order, including those of which it keeps an excerpt. With `since`, only what follows it."""
        for node in self.nodes_after(since):
            parts: tuple[Any, ...] = node.parts
            for part in parts:
                if part.__class__ is Excerpt:
                    yield part.result
            if node.result is not None:
                yield node.result

    def text(self, since: Prompt | None = None) -> str:
        """Return the text from the root (or from `since`) to here; waits for the answers in it."""
        return plain(list(self.pieces(since)))

    def messages(self) -> list[dict[str, Any]]:
        """Return the closed messages so far as `{"role", "content"}`, tool calls in OpenAI's form; content loses
        leading whitespace, as in SGLang."""
        found: list[dict[str, Any]] = []
        content: list[Part] | None = None
        for piece in self.pieces():
            if isinstance(piece, Mark) and piece.edge == "begin":
                content = []
            elif isinstance(piece, Mark):
                found.append({"role": piece.role, "content": plain(content or []).lstrip()})
                content = None
            elif content is not None:
                content.append(piece)
        return with_calls(found) if any(m["role"] == "tool" for m in found) else found


class Excerpt:
    """The part of an answer that `take` keeps; the answer ends the prompt `after` and must have arrived before the text
    is known."""

    __slots__ = ("after", "take")

    def __init__(self, after: Prompt, take: Callable[[str], str]) -> None:
        self.after, self.take = after, take

    @property
    def result(self) -> Result:
        assert self.after.result is not None, "an excerpt of a prompt that no answer ends"
        return self.after.result

    def text(self) -> str:
        """Return the text. Waits for the answer, and raises its error."""
        return self.take(self.result.output().text)


Piece = Part | Image | Excerpt | Given
_APART = frozenset({Image, Excerpt, Given})


def _known(tail: tuple[Piece, ...]) -> tuple[Part | Image | Given, ...]:
    return tuple(part.text() if isinstance(part, Excerpt) else part for part in tail)


def segments_of(tail: Iterable[Part | Image | Given]) -> Iterator[Segment]:
    """Merge literal parts into few segments, with images and known answers between them."""
    text: list[Part] = []
    for part in tail:
        if not isinstance(part, Image | Given):
            text.append(part)
            continue
        if text:
            yield Text(tuple(text))
            text = []
        yield part
    if text:
        yield Text(tuple(text))
