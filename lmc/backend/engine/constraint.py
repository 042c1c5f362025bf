"""Interfaces of constrained answers: matchers and their compiler. automaton.py implements them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lmc.errors import Loc
from lmc.fsm.tokens import TokenAutomaton, TokenRow
from lmc.segments import Constraint

KINDS = frozenset({"regex", "json_schema", "ebnf", "lark", "structural_tag"})


class Matcher(Protocol):
    """Follows one answer through its language. Not thread-safe: used by the scheduler thread only."""

    @property
    def bits(self) -> np.ndarray:
        """Return the allowed next tokens: uint32 [ceil(vocab / 32)], token i is bit i % 32 of word i // 32. Valid until
        the next `accept`, and read-only."""
        ...

    refused: int
    """Consistency of the model's choice of disallowed tokens; kept here by the sampler (masking.py)."""

    @property
    def row(self) -> TokenRow | None:
        """Return `bits` and related data, if available; None where they would have to be built."""
        ...

    @property
    def place(self) -> tuple[TokenAutomaton, int] | None:
        """Return the automaton and its state from which a device can follow the answer by itself; None: only the host
        can."""
        ...

    @property
    def forced_chance(self) -> float:
        """Return the probability that tokens are forced after the next one, 0 to 1."""
        ...

    def allows(self, token: int) -> bool:
        """Return one bit of `bits`, without the others if that is cheaper."""
        ...

    def accept(self, token: int) -> None:
        """Advance by a token that the mask allowed."""
        ...

    def fork(self) -> Matcher:
        """Return a copy at the same state, for tokens that may be drawn: only `bits`, `row`, `allows`, `accept` and
        `done` are used on it."""
        ...

    @property
    def horizon(self) -> int:
        """Return the number of remaining tokens below which `end_before` must be called for each token; 0: never."""
        ...

    def end_before(self, token: int, left: int) -> Sequence[int] | None:
        """Return the shortest end from here, if with `token` the answer might not end within `left` tokens; None:
        continue with `token`."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the tokens that come next whatever is sampled (fsm/forced.py); does not advance. None after a forced
        run."""
        ...

    def accept_forced(self, tokens: Sequence[int]) -> None:
        """Advance by everything that `forced` has just returned."""
        ...

    @property
    def complete(self) -> bool:
        """Return whether the text so far is in the language."""
        ...

    def check(self, text: str) -> None:
        """Raise ConstraintError if a complete text breaks a rule that only the whole of it can show."""
        ...

    @property
    def done(self) -> bool:
        """Return whether the text is complete and nothing may follow."""
        ...


class Compiler(Protocol):
    """Turns a constraint into matchers; compiled forms are shared by all requests."""

    def check(self, constraint: Constraint, loc: Loc | None) -> None:
        """Compile; raise ConstraintError with the location if the source is invalid or not supported."""
        ...

    def matcher(self, constraint: Constraint, *, longer: bool = False) -> Matcher:
        """Return the matcher of a new answer. `longer`: it may be kept from ending where its text is complete, so any
        legal continuation is allowed then."""
        ...

    def info(self) -> ConstraintInfo: ...

    def close(self) -> None:
        """Store reusable data for other processes."""
        ...


@dataclass(frozen=True, slots=True)
class ConstraintInfo:
    """Statistics of a compiler: automata, how many of them are built on demand, mask rows built so far, and the memory
    of it all."""

    automata: int = 0
    rows_built: int = 0
    lazy: int = 0
    bytes: int = 0
