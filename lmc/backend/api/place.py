"""Places in prompts: the values of handles. Immutable nodes that know their parent, so that forks share their
prefix."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmc.segments import Given, Image, Mark, Part, SamplingParams, Segment, Text

Blocks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Rest:
    """Text that a request returned beyond its answer, to be matched against the program's next appends.

    whole    received text; `at` is the beginning of the unused part
    ended    end of the whole: "stop" (a natural end, or one of `stops`), or "length"
    stops    that the request was sent with
    tokens   the texts of the tokens of `whole`, if the server listed them
    params   its sampling parameters: a continuation must want the same
    gens     answers of the program's plan that it should still cover; 0 without a plan
    """

    whole: str
    ended: str
    params: SamplingParams
    at: int = 0
    stops: tuple[str, ...] = ()
    tokens: tuple[str, ...] | None = None
    gens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PromptNode:
    """The end of a prompt: literal parts or an answer after the parent's.

    ids     of an answer's tokens as the model generated them, if the server gives ids
    rest    surplus text of the answer's request
    has_images, has_results  whether pictures, or results of tools, are among its messages
    blocks  blocks that the API gave besides the text and expects back with the conversation, such as reasoning
    """

    parent: PromptNode | None = None
    parts: tuple[Part | Image, ...] = ()
    answer: str | None = None
    ids: tuple[int, ...] | None = None
    rest: Rest | None = None
    broken: int = 0  # later answers of a plan that the model did not follow
    blocks: Blocks = ()
    has_images: bool = False
    has_results: bool = False

    def literal(self, parts: Sequence[Part | Image]) -> PromptNode:
        """Return this prompt extended by literal parts."""
        if not parts:
            return self
        images, results = self.has_images, self.has_results
        for part in parts:
            images = images or isinstance(part, Image)
            results = results or (isinstance(part, Mark) and part.role == "tool")
        return PromptNode(self, tuple(parts), broken=self.broken, has_images=images, has_results=results)

    def answered(self, text: str, *, ids: tuple[int, ...] | None = None, rest: Rest | None = None, broken: int = 0, blocks: Blocks = ()) -> PromptNode:
        """Return this prompt extended by an answer."""
        return PromptNode(self, (), text, ids, rest, broken, blocks, self.has_images, self.has_results)

    def path(self) -> list[PromptNode]:
        """Return the nodes from the root to here."""
        found: list[PromptNode] = []
        node: PromptNode | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def pieces(self) -> Iterator[Part | Image]:
        """Yield literal parts and answers, in order."""
        for node in self.path():
            yield from node.parts
            if node.answer is not None:
                yield node.answer

    def blocks_of_messages(self) -> dict[int, tuple[str, Blocks]]:
        """Return the blocks of answers that came with some, by the number of messages before theirs."""
        found: dict[int, tuple[str, Blocks]] = {}
        closed = 0
        for node in self.path():
            closed += sum(isinstance(part, Mark) and part.edge == "end" for part in node.parts)
            if node.blocks:
                found[closed] = (node.answer or "", node.blocks)
        return found

    def since_answer(self) -> tuple[PromptNode | None, tuple[Part | Image, ...]]:
        """Return the last answer (None: there is none) and the literal parts after it."""
        parts: list[tuple[Part | Image, ...]] = []
        node: PromptNode | None = self
        while node is not None and node.answer is None:
            parts.append(node.parts)
            node = node.parent
        return node, tuple(part for some in reversed(parts) for part in some)


ROOT = PromptNode()


def extended(place: PromptNode, segments: Sequence[Segment]) -> PromptNode:
    """Return a prompt extended by literal and given segments."""
    for segment in segments:
        if isinstance(segment, Given):
            place = place.answered(segment.text, ids=segment.ids or None, blocks=json.loads(segment.blocks) if segment.blocks else ())
            continue
        place = place.literal(segment.parts if isinstance(segment, Text) else (segment,) if isinstance(segment, Image) else ())
    return place
