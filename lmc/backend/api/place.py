"""Places in prompts: what a handle stands for. Immutable nodes that know their parent, so that forks share what is before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmc.prompt import Image, Mark, Part, SamplingParams

Blocks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Rest:
    """What a request brought beyond the answer it was asked for, to be matched against what the program appends.

    whole    text that came; `at` is where the part begins that nothing has used yet
    ended    how the whole ended: "stop" (nothing more to say, or one of `stops`), or "length"
    stops    that the request was sent with
    tokens   the texts of the tokens of `whole`, if the server listed them
    params   how it was sampled: who continues it must want the same
    gens     answers of the program's plan that it should still cover; 0 where there is no plan
    """

    whole: str
    ended: str
    params: SamplingParams
    at: int = 0
    stops: tuple[str, ...] = ()
    tokens: tuple[str, ...] | None = None
    gens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The end of a prompt: literal parts or an answer after the parent's.

    ids     of an answer's tokens as the model generated them, where the server gives ids
    rest    what the request for the answer brought besides
    blocks  what the API gave beside the text and wants to see again with the conversation, such as its reasoning; as it came
    """

    parent: Place | None = None
    parts: tuple[Part | Image, ...] = ()
    answer: str | None = None
    ids: tuple[int, ...] | None = None
    rest: Rest | None = None
    broken: int = 0  # answers still to come of a plan that the model did not follow
    blocks: Blocks = ()

    def literal(self, parts: Sequence[Part | Image]) -> Place:
        """This prompt and more literal parts."""
        return Place(self, tuple(parts), broken=self.broken) if parts else self

    def answered(self, text: str, *, ids: tuple[int, ...] | None = None, rest: Rest | None = None, broken: int = 0, blocks: Blocks = ()) -> Place:
        """This prompt and an answer."""
        return Place(self, (), text, ids, rest, broken, blocks)

    def path(self) -> list[Place]:
        """The nodes from the root to here."""
        found: list[Place] = []
        node: Place | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def pieces(self) -> Iterator[Part | Image]:
        """Literal parts and answers, in order."""
        for node in self.path():
            yield from node.parts
            if node.answer is not None:
                yield node.answer

    def blocks_of_messages(self) -> dict[int, tuple[str, Blocks]]:
        """Answers that came with blocks, and those, by the number of messages before theirs."""
        found: dict[int, tuple[str, Blocks]] = {}
        closed = 0
        for node in self.path():
            closed += sum(isinstance(part, Mark) and part.edge == "end" for part in node.parts)
            if node.blocks:
                found[closed] = (node.answer or "", node.blocks)
        return found

    @property
    def has_results(self) -> bool:
        """Whether results of tools are among its messages."""
        return any(isinstance(part, Mark) and part.role == "tool" for node in self.path() for part in node.parts)

    def since_answer(self) -> tuple[Place | None, tuple[Part | Image, ...]]:
        """The last answer (None: there is none) and the literal parts behind it."""
        parts: list[tuple[Part | Image, ...]] = []
        node: Place | None = self
        while node is not None and node.answer is None:
            parts.append(node.parts)
            node = node.parent
        return node, tuple(part for some in reversed(parts) for part in some)


ROOT = Place()

