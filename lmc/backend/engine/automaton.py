"""Constraints as token automata: whole ones, or ones built on demand (fsm/lazy.py).

An automaton's rows are built when a state is first reached and shared by all answers, and its mask and its step can never
disagree: both walk one table. Tokens that it leaves no choice of are forced (fsm/forced.py).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from lmc.backend.engine.constraint import AutomatonMatcher, ForcedChances
from lmc.backend.engine.mask_prefetcher import MaskPrefetcher, Prefetched
from lmc.backend.engine.single_flight import SingleFlightCache
from lmc.backend.engine.steering import KINDS as STEERED
from lmc.backend.engine.steering import Steering
from lmc.errors import ConstraintError, Loc
from lmc.fsm.arrays import LazyArrays
from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.canonical import Canonical
from lmc.fsm.canonical_rows import CanonicalRows
from lmc.fsm.forced import Encode, ForcedTokens
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.lazy import LazyDFA, Machine
from lmc.fsm.sources import Check, begun, check_of, machine_of
from lmc.fsm.store import Store
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from lmc.segments import Constraint

_LIMIT = 512 << 20  # bytes of cached automata, rows not counted; the least recently used are evicted
_MOST_LAZY = 8 << 20  # assumed bytes of one built on demand: few become larger

KINDS = frozenset({"regex", "json_schema", "ebnf", "lark", "structural_tag"})


@dataclass(frozen=True, slots=True)
class ConstraintInfo:
    """Statistics of a compiler: automata, how many of them are built on demand, mask rows built so far, and the memory of it all."""

    automata: int = 0
    rows_built: int = 0
    lazy: int = 0
    bytes: int = 0


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
        """Compile; raise ConstraintError with the location if the source is invalid or not supported."""
        try:
            self._grown(constraint, self._automata.get(constraint))
        except ConstraintError as error:
            raise ConstraintError(error.message, loc=loc) from None

    def _grown(self, constraint: Constraint, compiled: _Compiled) -> None:
        """Replace the first request's machine by the whole automaton, at the second one. Answers that follow the first
        continue with it."""
        if compiled.requests is None or next(compiled.requests) != 1:
            return
        dfa = machine_of(constraint.kind, constraint.source)
        if isinstance(dfa, ByteDFA):
            self._automata.replace(constraint, self._shared(constraint, self._saved(constraint, TokenAutomaton(dfa, self.vocabulary))))

    def matcher(self, constraint: Constraint, *, longer: bool = False) -> AutomatonMatcher:
        """Return the matcher of a new answer. `longer`: it may be kept from ending where its text is complete, so any legal continuation is allowed then."""
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
        may_grow = isinstance(automaton.dfa, LazyArrays) and self._first is begun and constraint.kind != "regex"
        requests = itertools.count() if may_grow else None
        compiled = _Compiled(automaton, forced, canonical, Prefetched(automaton, forced, canonical), ForcedChances(), check, steering, requests)
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
    requests: Iterator[int] | None  # counts them while the whole automaton remains to be tried; thread-safe


def _weight(compiled: _Compiled) -> int:
    """Return the memory of a growing automaton, by an estimate of its final size."""
    return compiled.automaton.nbytes + (_MOST_LAZY if isinstance(compiled.automaton.dfa, LazyArrays) else 1024)
