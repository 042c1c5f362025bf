"""Requests as the mock records them: the prompt and the request, without times; equal ones get equal answers."""

from __future__ import annotations

from typing import Any

from lmc.backend.mock_answers import Ask
from lmc.backend.mock_prompt import MockNode, images_of
from lmc.segments import Constraint, Gen, SamplingParams, Select


class MockCall:
    """One request to the model: its prompt and the request, without times."""

    __slots__ = ("after", "ask", "node")

    def __init__(self, node: MockNode, ask: Ask) -> None:
        self.node, self.ask = node, ask
        self.after = node  # the prompt with the answer, once that is known

    @property
    def answer(self) -> str:
        """Return the answer as a token string; "" before it is known."""
        return "" if self.after is self.node else self.after.piece

    @property
    def prompt(self) -> tuple[int, ...]:
        """Return the prompt's token ids."""
        return tuple(map(ord, self.node.tokens))

    @property
    def prompt_text(self) -> str:
        return self.node.text

    @property
    def images(self) -> list[bytes | str]:
        """Return files of the pictures in the prompt, in order; web addresses as they are."""
        return images_of(self.node)

    @property
    def tokens(self) -> str:
        return self.node.tokens

    @property
    def name(self) -> str | None:
        return self.ask.name

    @property
    def seed(self) -> int:
        return self.ask.seed

    @property
    def params(self) -> SamplingParams | None:
        """Return its parameters; None for a select."""
        return self.ask.params if isinstance(self.ask, Gen) else None

    @property
    def constraint(self) -> Constraint | None:
        return self.ask.constraint if isinstance(self.ask, Gen) else None

    @property
    def choices(self) -> tuple[str, ...] | None:
        return self.ask.choices if isinstance(self.ask, Select) else None

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key of equal requests: prompt tokens, parameters, constraint or choices, seed if it matters."""
        return (self.node.tokens, *_ask_key(self.ask))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MockCall) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        asked = f"choices={list(self.choices)}" if self.choices else f"max={self.ask.params.max_new_tokens}"  # pyright: ignore
        return f"Call({self.name!r}, …{self.prompt_text[-40:]!r}, {asked})"


def _ask_key(ask: Ask) -> tuple[Any, ...]:
    if isinstance(ask, Gen):
        return ask.params, ask.constraint, ask.tools, ask.seed if ask.params.temperature > 0 else 0
    return ask.choices, ask.method, ask.temperature, ask.adapter, ask.seed if ask.temperature > 0 else 0
