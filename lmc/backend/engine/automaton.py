"""Regexes as token automata; every other constraint, and a regex that is too large for one, as xgrammar's matcher.

One compiler for the engine: it decides which kind of matcher follows an answer. An automaton's rows are built when a
state is first reached and shared by all answers, and its mask and its step can never disagree: both walk one table.
Tokens that the regex leaves no choice of are forced (fsm/forced.py).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lmc.backend.engine.constraint import Compiler, Matcher
from lmc.errors import ConstraintError, Loc
from lmc.fsm.dfa import DEAD, TooLarge, build
from lmc.fsm.forced import Encode, ForcedTokens
from lmc.fsm.regex import parse
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from lmc.prompt import Constraint

_KEPT = 512  # automata; the least recently used one goes


class ConstraintCompiler:
    """Compiles constraints over one vocabulary. Thread-safe.

    tokens   bytes of each token id; special ids and EOS stand for no text
    grammar  makes the compiler of everything that is not an automaton, when it is first needed
    encode   ids of plain text in the middle of a sequence; None forces nothing: every token is sampled
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: Iterable[int],
        eos: int,
        vocab_size: int,
        grammar: Callable[[], Compiler],
        encode: Encode | None = None,
    ) -> None:
        self._vocabulary_parts = tokens, frozenset(special_ids), eos, vocab_size
        self._make_grammar, self._encode = grammar, encode
        self._grammar: Compiler | None = None
        self._vocabulary: Vocabulary | None = None
        self._automata: OrderedDict[str, _Compiled | None] = OrderedDict()  # None: too large
        self._lock = threading.Lock()

    def check(self, constraint: Constraint, loc: Loc | None) -> None:
        if self._automaton(constraint, loc) is None:
            self._other().check(constraint, loc)

    def matcher(self, constraint: Constraint) -> Matcher:
        compiled = self._automaton(constraint, None)
        return self._other().matcher(constraint) if compiled is None else AutomatonMatcher(*compiled)

    def _other(self) -> Compiler:
        with self._lock:
            if self._grammar is None:
                self._grammar = self._make_grammar()
            return self._grammar

    def _automaton(self, constraint: Constraint, loc: Loc | None) -> _Compiled | None:
        """The automaton of a regex; None for other kinds and for a regex that is too large."""
        if constraint.kind != "regex":
            return None
        with self._lock:
            if constraint.source in self._automata:
                self._automata.move_to_end(constraint.source)
                return self._automata[constraint.source]
            try:
                compiled = self._compiled(constraint.source)
            except ConstraintError as error:
                raise ConstraintError(error.message, loc=loc) from None
            self._automata[constraint.source] = compiled
            if len(self._automata) > _KEPT:
                self._automata.popitem(last=False)
            return compiled

    def _compiled(self, source: str) -> _Compiled | None:
        tree = parse(source)
        try:
            dfa = build(tree)
        except TooLarge:
            return None
        if self._vocabulary is None:
            tokens, special, eos, size = self._vocabulary_parts
            self._vocabulary = Vocabulary(tokens, (eos,), special, size)
        automaton = TokenAutomaton(dfa, self._vocabulary)
        return _Compiled(automaton, ForcedTokens(automaton, self._encode) if self._encode is not None else None)


class _Compiled(NamedTuple):
    """What all answers of one regex share."""

    automaton: TokenAutomaton
    forced: ForcedTokens | None


class AutomatonMatcher:
    """One answer's state in a token automaton. Without `forced` every token is sampled."""

    def __init__(self, automaton: TokenAutomaton, forced: ForcedTokens | None = None) -> None:
        self._automaton, self._forced = automaton, forced
        self.state = automaton.start

    @property
    def bits(self) -> np.ndarray:
        return self._automaton.mask(self.state)

    def allows(self, token: int) -> bool:
        return self._automaton.next(self.state, token) != DEAD

    def accept(self, token: int) -> None:
        following = self._automaton.next(self.state, token)
        if following == DEAD:
            raise RuntimeError(f"token {token} is outside the constraint although its mask allowed it")
        self.state = following

    def forced(self) -> Sequence[int]:
        return () if self._forced is None else self._forced.run(self.state).tokens

    @property
    def complete(self) -> bool:
        return self._automaton.is_final(self.state)

    @property
    def done(self) -> bool:
        return self._automaton.is_done(self.state)
