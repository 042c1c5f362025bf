"""Constraints as token automata: whole ones, or ones built on demand (fsm/lazy.py).

An automaton's rows are built when a state is first reached and shared by all answers, and its mask and its step can never
disagree: both walk one table. Tokens that it leaves no choice of are forced (fsm/forced.py).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from lmc.backend.engine.constraint import ConstraintInfo, Matcher
from lmc.backend.engine.mask_prefetcher import MaskPrefetcher, Prefetched
from lmc.backend.engine.single_flight import SingleFlightCache
from lmc.backend.engine.steering import KINDS as STEERED
from lmc.backend.engine.steering import Steering
from lmc.errors import ConstraintError, Loc, UnmetConstraint, shown
from lmc.fsm.arrays import ArrayDFA, LazyArrays
from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.canonical import Canonical
from lmc.fsm.canonical_rows import CanonicalRows
from lmc.fsm.dfa import DEAD
from lmc.fsm.forced import Encode, ForcedTokens, no_tokens
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.lazy import LazyDFA, Machine
from lmc.fsm.sources import Check, begun, check_of, machine_of
from lmc.fsm.store import Store
from lmc.fsm.tokens import TokenAutomaton, TokenRow
from lmc.fsm.vocabulary import Vocabulary
from lmc.segments import Constraint

_LIMIT = 512 << 20  # bytes of cached automata, rows not counted; the least recently used are evicted
_MOST_LAZY = 8 << 20  # assumed bytes of one built on demand: few become larger
_MOST_ON_DEVICE = 16 << 20  # largest automaton in bytes that a device follows


class ConstraintCompiler:
    """Compiles constraints over one vocabulary. Thread-safe.

    tokens   bytes of each token id; special ids and EOS stand for no text
    encode   ids of plain text in the middle of a sequence; None: force nothing, sample every token
    store    storage of compiled automata between processes
    prefetcher   builds what answers will need next; without it everything is built on first use
    canonical   returns the tokenizer's impossible pairs of tokens, None if unknown; called once
    first       machine for the first answers of a constraint. From the second request on it is a whole
                automaton, if small and quickly built: answers are the same, in tokens too, and states are precomputed
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: Iterable[int],
        eos: int,
        vocab_size: int,
        encode: Encode | None = None,
        store: Store | None = None,
        prefetcher: MaskPrefetcher | None = None,
        canonical: Callable[[], Canonical | None] = lambda: None,
        first: Callable[[str, str], Machine] = begun,
    ) -> None:
        self._prefetcher, self._canonical_of, self._first = prefetcher, canonical, first
        self._vocabulary_parts = tokens, frozenset(special_ids), eos, vocab_size
        self._encode, self._store = encode, store
        self._automata = SingleFlightCache(self._compiled, _weight, _LIMIT, self._drop)
        self._stored: dict[Constraint, int] = {}  # rows in the store
        self._lock = threading.Lock()

    def check(self, constraint: Constraint, loc: Loc | None) -> None:
        try:
            self._grown(constraint, self._automata.get(constraint))
        except ConstraintError as error:
            raise ConstraintError(error.message, loc=loc) from None

    def _grown(self, constraint: Constraint, compiled: _Compiled) -> None:
        """Replace the first request's machine by the whole automaton, at the second one. Answers that follow the first
        continue with it."""
        if not compiled.growth.is_due():
            return
        dfa = machine_of(constraint.kind, constraint.source)
        if isinstance(dfa, ByteDFA):
            self._automata.replace(constraint, self._shared(constraint, self._saved(constraint, TokenAutomaton(dfa, self.vocabulary))))

    def matcher(self, constraint: Constraint, *, longer: bool = False) -> Matcher:
        compiled = self._automata.get(constraint)
        if isinstance(compiled.automaton.dfa, LazyArrays) and compiled.automaton.dfa.is_worn:
            self._automata.forget(constraint)  # its current followers keep it
            compiled = self._automata.get(constraint)
        canonical = None if longer else compiled.canonical
        return AutomatonMatcher(
            compiled.automaton, compiled.forced, self._want(compiled), compiled.forced_chances, compiled.check, compiled.steering, canonical
        )

    def _compiled(self, constraint: Constraint) -> _Compiled:
        return self._shared(constraint, self._restored(constraint) or self._built(constraint))

    def _shared(self, constraint: Constraint, automaton: TokenAutomaton) -> _Compiled:
        forced = ForcedTokens(automaton, self._encode) if self._encode is not None else None
        start = automaton.start if forced is None else forced.run(automaton.start).state
        if not automaton.is_done(start):
            automaton.mask(start)  # every answer begins there: built now, not in a step that others wait for
        canonical = None if self._canonical is None else CanonicalRows(automaton, self._canonical)
        check = None if constraint in self._stored else check_of(constraint.kind, constraint.source)
        steering = Steering(automaton, self._encode, self._ids) if constraint.kind in STEERED else None
        growth = Growth(isinstance(automaton.dfa, LazyArrays) and self._first is begun and constraint.kind != "regex")
        compiled = _Compiled(automaton, forced, canonical, Prefetched(automaton, forced, canonical), ForcedChances(), check, steering, growth)
        if (want := self._want(compiled)) is not None:
            want(start)
        return compiled

    def _want(self, compiled: _Compiled) -> Callable[[int], None] | None:
        if self._prefetcher is None:
            return None
        return partial(self._prefetcher.request, compiled.ahead)

    def _restored(self, constraint: Constraint) -> TokenAutomaton | None:
        tables = self._store.load(_key(constraint), self.vocabulary) if self._store is not None else None
        if tables is None:
            return None
        self._stored[constraint] = len(tables.rows)
        return TokenAutomaton.restored(tables, self.vocabulary)

    def _built(self, constraint: Constraint) -> TokenAutomaton:
        machine = (machine_of if constraint.kind == "regex" else self._first)(constraint.kind, constraint.source)
        if isinstance(machine, LazyDFA) and not all(map(self.vocabulary.spells_some, machine.sets)):
            machine = machine_of(constraint.kind, constraint.source)  # whole automata lose transitions that no token spells
        return self._saved(constraint, TokenAutomaton(machine, self.vocabulary))

    def _saved(self, constraint: Constraint, automaton: TokenAutomaton) -> TokenAutomaton:
        if self._store is not None and _is_whole(constraint) and (tables := automaton.tables()) is not None:
            self._store.save(_key(constraint), self.vocabulary, tables)
            self._stored[constraint] = 0
        return automaton

    @cached_property
    def vocabulary(self) -> Vocabulary:
        tokens, special, eos, size = self._vocabulary_parts
        return Vocabulary(tokens, (eos,), special, size).prepare()

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """Return the token of each text, special ones aside."""
        tokens, special, eos, _ = self._vocabulary_parts
        return {text: token for token, text in enumerate(tokens) if text and token not in special and token != eos}

    @cached_property
    def _canonical(self) -> Canonical | None:
        return self._canonical_of()

    def close(self) -> None:
        """Store the rows that were built since their automata were stored; the compiler can still be used."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        for constraint, compiled in self._automata.items():
            self._keep(constraint, compiled)

    def _drop(self, constraint: Constraint, compiled: _Compiled) -> None:
        self._keep(constraint, compiled)
        self._stored.pop(constraint, None)

    def _keep(self, constraint: Constraint, compiled: _Compiled) -> None:
        if self._store is None or constraint not in self._stored or (tables := compiled.automaton.tables()) is None:
            return
        with self._lock:
            before, self._stored[constraint] = self._stored.get(constraint, 0), len(tables.rows)
        if len(tables.rows) > before:
            self._store.save(_key(constraint), self.vocabulary, tables)

    def info(self) -> ConstraintInfo:
        found = [compiled for _, compiled in self._automata.items()]
        automata = [compiled.automaton for compiled in found]
        runs = sum(compiled.forced.nbytes for compiled in found if compiled.forced is not None)
        runs += sum(compiled.canonical.nbytes for compiled in found if compiled.canonical is not None)
        vocabulary = self.vocabulary.nbytes if automata else 0
        if automata and self._canonical is not None:
            vocabulary += self._canonical.nbytes
        return ConstraintInfo(
            automata=len(automata),
            rows_built=sum(a.rows_built for a in automata),
            lazy=sum(isinstance(a.dfa, LazyArrays) for a in automata),
            bytes=vocabulary + sum(a.nbytes for a in automata) + runs,
        )


def _is_whole(constraint: Constraint) -> bool:
    """Return whether the automaton is the whole constraint: no warnings and no checks."""
    return constraint.kind != "json_schema" or not str(compile_schema(constraint.source).notes)


def _key(constraint: Constraint) -> str:
    """Return the store's key: a regex by itself."""
    return constraint.source if constraint.kind == "regex" else f"{constraint.kind}\0{constraint.source}"


class _Compiled(NamedTuple):
    """Compiled data shared by all answers of one constraint."""

    automaton: TokenAutomaton
    forced: ForcedTokens | None
    canonical: CanonicalRows | None
    ahead: Prefetched
    forced_chances: ForcedChances
    check: Check | None
    steering: Steering | None
    growth: Growth


class Growth:
    """Tracks whether a whole automaton of an on-demand constraint remains to be tried. Thread-safe."""

    def __init__(self, may_grow: bool) -> None:
        self._requests = itertools.count() if may_grow else None

    def is_due(self) -> bool:
        """Return True at the second request; called at each."""
        return self._requests is not None and next(self._requests) == 1


def _weight(compiled: _Compiled) -> int:
    """Return the memory of a growing automaton, by an estimate of its final size."""
    return compiled.automaton.nbytes + (_MOST_LAZY if isinstance(compiled.automaton.dfa, LazyArrays) else 1024)


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
    """One answer's state in a token automaton. Without `forced` every token is sampled. Where what may follow cannot be found, nothing may:
    `bits` raises the error, then and from there on, and nothing else that the sampler asks does, since others' tokens are in its batch.

    want        called with each state, after all forced tokens, in which the answer waits for a token
    forced_chances   of all answers to this constraint
    check       check of complete texts, if the automaton allows more than the constraint
    steering    shortest ends, if answers are steered to one as their limit nears
    canonical   restricts legal tokens to those of canonical answers
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
        if self._failure is not None:
            raise ConstraintError(self._failure.message)
        try:
            return self._narrow(self._automaton.row(self.state)).bits
        except ConstraintError as error:
            self._failure = error
            raise

    @property
    def row(self) -> TokenRow | None:
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
        return (self._automaton, self.state) if self._is_small and self._canonical is None else None

    @property
    def forced_chance(self) -> float:
        return self._forced_chances.expected(self._window(self.state)) if self._forced is not None else 0.0

    def _window(self, state: int) -> int:
        return self._automaton.dfa.window_of(state)

    def allows(self, token: int) -> bool:
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
        before, known, following = self._known
        if before != self.state or known != token:
            following = self._automaton.next(self.state, token)
        if following == DEAD:
            raise RuntimeError(f"token {token} is outside the constraint although its mask allowed it")
        self._sampled_in, self.state = self.state, following
        self._recent.append(token)

    def fork(self) -> AutomatonMatcher:
        found = copy(self)
        found._recent = self._recent.copy()
        return found

    @property
    def horizon(self) -> int:
        return 0 if self._steering is None else self._steering.horizon

    def end_before(self, token: int, left: int) -> Sequence[int] | None:
        if self._steering is None or self._steering.fits(self._automaton.next(self.state, token), left - 1):
            return None
        return self._steering.end_within(self.state, left)

    def forced(self) -> Sequence[int]:
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
        assert self._forced is not None
        self.state = self._forced.run(self.state).path[len(tokens) - 1]
        self._recent.extend(tokens)

    @property
    def complete(self) -> bool:
        return self._automaton.is_final(self.state)

    def check(self, text: str) -> None:
        if self._check is not None and (why := self._check(text)) is not None:
            raise UnmetConstraint(f"the answer {shown(text)} is not valid: {why}; ask again, or change what could not be enforced (a warning named it)")

    @property
    def done(self) -> bool:
        try:
            return self._automaton.is_done(self.state)
        except ConstraintError as error:
            self._failure = error
            return False
