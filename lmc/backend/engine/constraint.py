"""A constrained answer's state in its token automaton: the tokens that may come next, and those that must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import numpy as np

from lmc.backend.engine.steering import Steering
from lmc.errors import ConstraintError, UnmetConstraint, shown
from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.canonical_rows import CanonicalRows
from lmc.fsm.dfa import DEAD
from lmc.fsm.forced import ForcedTokens, no_tokens
from lmc.fsm.sources import Check
from lmc.fsm.tokens import TokenAutomaton, TokenRow

_MOST_ON_DEVICE = 16 << 20  # largest automaton in bytes that a device follows


class ForcedChances:
    """Frequency of forced tokens after a sampled one, by the window of the state it was sampled in. An estimate: being
    wrong costs time, never text."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, int]] = {}  # mean, samples that it is over and one

    def expected(self, window: int) -> float:
        """Return the expected share of samples there with forced tokens after them."""
        return self._seen.get(window, _UNKNOWN)[0]

    def learn(self, window: int, was_forced: bool) -> None:
        mean, count = self._seen.get(window, _UNKNOWN)
        count = min(count + 1, _RECENT)
        self._seen[window] = mean + (was_forced - mean) / count, count


_UNKNOWN = (0.25, 1)
_RECENT = 32  # window of the running mean, in samples
_NO_MOVE = (-1, -1, DEAD)  # a state, a token, and the state behind it


class AutomatonMatcher:
    """For the scheduler's thread. Without `forced` every token is sampled. Where what may follow cannot be found, nothing may:
    `bits` raises the error, then and from there on, and nothing else that the sampler asks does, since others' tokens are in its batch.

    want        called with each state, after all forced tokens, in which the answer waits for a token
    forced_chances   of all answers to this constraint
    check       check of complete texts, if the automaton allows more than the constraint
    steering    shortest ends, if answers are steered to one as their limit nears
    canonical   restricts legal tokens to those of canonical answers
    refused     consistency of the model's choice of disallowed tokens; kept here by the sampler (masking.py)
    """

    def __init__(
        self,
        automaton: TokenAutomaton,
        forced: ForcedTokens | None = None,
        want: Callable[[int], None] | None = None,
        forced_chances: ForcedChances | None = None,
        check: Check | None = None,
        steering: Steering | None = None,
        canonical: CanonicalRows | None = None,
    ) -> None:
        self._check, self._steering, self._canonical = check, steering, canonical
        self._narrowed: tuple[tuple[int, int | None], TokenRow] | None = None
        self._automaton, self._forced, self._want = automaton, forced, want
        self._forced_chances = forced_chances or ForcedChances()
        self._is_small = isinstance(automaton.dfa, ArrayDFA) and automaton.dfa.nbytes <= _MOST_ON_DEVICE
        self.state = self._sampled_in = automaton.start
        self._recent, self.refused = no_tokens(), 0
        self._known = _NO_MOVE  # the move probably accepted next
        self._failure: ConstraintError | None = None

    @property
    def bits(self) -> np.ndarray:
        """Return the allowed next tokens: uint32 [ceil(vocab / 32)], token i is bit i % 32 of word i // 32. Valid until the next `accept`, and read-only."""
        if self._failure is not None:
            raise ConstraintError(self._failure.message)
        try:
            return self._narrow(self._automaton.row(self.state)).bits
        except ConstraintError as error:
            self._failure = error
            raise

    @property
    def row(self) -> TokenRow | None:
        """Return `bits` and related data, if available; None where they would have to be built."""
        row = self._automaton.known.get(self.state)
        try:
            return None if row is None or self._failure is not None else self._narrow(row)
        except ConstraintError as error:
            self._failure = error
            return None

    def _narrow(self, row: TokenRow) -> TokenRow:
        """Return the row without non-canonical tokens after the last one."""
        if self._canonical is None:
            return row
        place = self.state, self._recent[-1] if self._recent else None
        if self._narrowed is None or self._narrowed[0] != place:
            self._narrowed = place, self._canonical.narrowed(row, *place)
        return self._narrowed[1]

    @property
    def place(self) -> tuple[TokenAutomaton, int] | None:
        """Return the automaton and its state from which a device can follow the answer by itself; None: only the host can."""
        return (self._automaton, self.state) if self._is_small and self._canonical is None else None

    @property
    def forced_chance(self) -> float:
        """Return the probability that tokens are forced after the next one, 0 to 1."""
        return self._forced_chances.expected(self._window(self.state)) if self._forced is not None else 0.0

    def _window(self, state: int) -> int:
        return self._automaton.dfa.window_of(state)

    def allows(self, token: int) -> bool:
        """Return one bit of `bits`, without the others if that is cheaper."""
        try:
            return self._failure is None and self._allows(token)
        except ConstraintError as error:
            self._failure = error
            return False

    def _allows(self, token: int) -> bool:
        following = self._automaton.next(self.state, token)
        self._known = self.state, token, following  # a token that was checked is accepted next
        before = self._recent[-1] if self._recent else None
        if following == DEAD or self._canonical is None or not self._canonical.may_narrow(self.state, before, token, following):
            return following != DEAD
        return bool(self.bits[token >> 5] >> (token & 31) & 1)

    def accept(self, token: int) -> None:
        """Advance by a token that the mask allowed."""
        before, known, following = self._known
        if before != self.state or known != token:
            following = self._automaton.next(self.state, token)
        if following == DEAD:
            raise RuntimeError(f"token {token} is outside the constraint although its mask allowed it")
        self._sampled_in, self.state = self.state, following
        self._recent.append(token)

    def fork(self) -> AutomatonMatcher:
        """Return a copy at the same state, for tokens that may be drawn: only `bits`, `row`, `allows`, `accept` and `done` are used on it."""
        found = copy(self)
        found._recent = self._recent.copy()
        return found

    @property
    def horizon(self) -> int:
        """Return the number of remaining tokens below which `end_before` must be called for each token; 0: never."""
        return 0 if self._steering is None else self._steering.horizon

    def end_before(self, token: int, left: int) -> Sequence[int] | None:
        """Return the shortest end from here, if with `token` the answer might not end within `left` tokens; None: continue with `token`."""
        if self._steering is None or self._steering.fits(self._automaton.next(self.state, token), left - 1):
            return None
        return self._steering.end_within(self.state, left)

    def forced(self) -> Sequence[int]:
        """Return the tokens that come next whatever is sampled (fsm/forced.py), none after a forced run; does not advance."""
        state, tokens = self.state, ()
        if self._forced is not None and (run := self._forced.run(state)).tokens:
            tokens = self._forced.behind(self._recent, state)
            state = run.path[len(tokens) - 1] if tokens else state
        if self._forced is not None and self._recent:  # a token was sampled
            self._forced_chances.learn(self._window(self._sampled_in), bool(tokens))
        if self._want is not None:
            self._want(state)
        return tokens

    def accept_forced(self, tokens: Sequence[int]) -> None:
        """Advance by everything that `forced` has just returned."""
        assert self._forced is not None
        self.state = self._forced.run(self.state).path[len(tokens) - 1]
        self._recent.extend(tokens)

    @property
    def complete(self) -> bool:
        """Return whether the text so far is in the language."""
        return self._automaton.is_final(self.state)

    def check(self, text: str) -> None:
        """Raise ConstraintError if a complete text breaks a rule that only the whole of it can show."""
        if self._check is not None and (why := self._check(text)) is not None:
            raise UnmetConstraint(f"the answer {shown(text)} is not valid: {why}; ask again, or change what could not be enforced (a warning named it)")

    @property
    def done(self) -> bool:
        """Return whether the text is complete and nothing may follow."""
        try:
            return self._automaton.is_done(self.state)
        except ConstraintError as error:
            self._failure = error
            return False
