"""What follows a constrained answer: the interfaces of matchers and of what compiles them. automaton.py has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lmc.errors import Loc
from lmc.fsm.tokens import Row, TokenAutomaton
from lmc.prompt import Constraint

KINDS = frozenset({"regex", "json_schema", "ebnf", "lark", "structural_tag"})


class Matcher(Protocol):
    """Follows one answer through its language. Not thread-safe: used by the scheduler thread only."""

    @property
    def bits(self) -> np.ndarray:
        """The allowed next tokens: uint32 [ceil(vocab / 32)], token i is bit i % 32 of word i // 32. To be read before
        the next `accept`, and never written."""
        ...

    refused: int
    """How firmly the model was seen to want what is not allowed; kept here by whoever samples (masking.py)."""

    @property
    def row(self) -> Row | None:
        """`bits` and what else is known of them, where they are at hand; None where they would have to be made."""
        ...

    @property
    def place(self) -> tuple[TokenAutomaton, int] | None:
        """The automaton, and the state in it, from which a device can follow the answer by itself; None: only the host can."""
        ...

    @property
    def surprise(self) -> float:
        """How likely it is that tokens are forced behind the next one, 0 to 1."""
        ...

    def allows(self, token: int) -> bool:
        """One bit of `bits`, without the others where that is cheaper."""
        ...

    def accept(self, token: int) -> None:
        """Moves on by a token that the mask allowed."""
        ...

    def fork(self) -> Matcher:
        """Another one at the same place, for tokens that may be drawn: it is asked for `bits`, `row`, `allows`, `accept` and `done` alone."""
        ...

    @property
    def horizon(self) -> int:
        """With fewer tokens left, `end_before` is to be asked about each; 0: never."""
        ...

    def end_before(self, token: int, left: int) -> Sequence[int] | None:
        """The shortest end from here, if with `token` the answer might not end in `left` tokens; None: go on by `token`."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that come next whatever is sampled (fsm/forced.py); does not move. None behind a forced run."""
        ...

    def accept_forced(self, tokens: Sequence[int]) -> None:
        """Moves on by all that `forced` has just given."""
        ...

    @property
    def complete(self) -> bool:
        """The text so far is in the language."""
        ...

    def check(self, text: str) -> None:
        """Raises ConstraintError if a complete text breaks what only the whole of it can show."""
        ...

    @property
    def done(self) -> bool:
        """Complete, and nothing may follow."""
        ...


class Compiler(Protocol):
    """Turns a constraint into matchers; compiled forms are shared by all requests."""

    def check(self, constraint: Constraint, loc: Loc | None) -> None:
        """Compiles; raises ConstraintError with the place if the source is invalid or not supported."""
        ...

    def matcher(self, constraint: Constraint, *, longer: bool = False) -> Matcher:
        """Of a new answer. `longer`: it may be kept from ending where its text is complete, so whatever may follow then is allowed."""
        ...

    def info(self) -> ConstraintInfo: ...

    def close(self) -> None:
        """Keeps for other processes what is worth keeping."""
        ...


@dataclass(frozen=True, slots=True)
class ConstraintInfo:
    """What a compiler holds: automata, how many of them are made while they are used, mask rows built so far, and the memory of
    it all."""

    automata: int = 0
    rows_built: int = 0
    lazy: int = 0
    bytes: int = 0
