"""Regexes as token automata; every other constraint, and a regex that is too large for one, as xgrammar's matcher.

One compiler for the engine: it decides which kind of matcher follows an answer. An automaton's rows are built when a
state is first reached and shared by all answers, and its mask and its step can never disagree: both walk one table.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lmc.backend.engine.constraint import Compiler, Matcher
from lmc.errors import ConstraintError, Loc
from lmc.fsm.dfa import DEAD, TooLarge, build
from lmc.fsm.regex import parse
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from lmc.prompt import Constraint

if TYPE_CHECKING:
    import torch

_KEPT = 512  # automata; the least recently used one goes


class ConstraintCompiler:
    """Compiles constraints over one vocabulary. Thread-safe.

    tokens   bytes of each token id; special ids and EOS stand for no text
    grammar  makes the compiler of everything that is not an automaton, when it is first needed
    """

    def __init__(
        self, tokens: Sequence[bytes], special_ids: Iterable[int], eos: int, vocab_size: int, grammar: Callable[[], Compiler]
    ) -> None:
        self._vocabulary_parts = tokens, frozenset(special_ids), eos, vocab_size
        self._make_grammar = grammar
        self._grammar: Compiler | None = None
        self._vocabulary: Vocabulary | None = None
        self._automata: OrderedDict[str, TokenAutomaton | None] = OrderedDict()  # None: too large
        self._lock = threading.Lock()

    def check(self, constraint: Constraint, loc: Loc | None) -> None:
        if self._automaton(constraint, loc) is None:
            self._other().check(constraint, loc)

    def matcher(self, constraint: Constraint) -> Matcher:
        automaton = self._automaton(constraint, None)
        return self._other().matcher(constraint) if automaton is None else AutomatonMatcher(automaton)

    def _other(self) -> Compiler:
        with self._lock:
            if self._grammar is None:
                self._grammar = self._make_grammar()
            return self._grammar

    def _automaton(self, constraint: Constraint, loc: Loc | None) -> TokenAutomaton | None:
        """The automaton of a regex; None for other kinds and for a regex that is too large."""
        if constraint.kind != "regex":
            return None
        with self._lock:
            if constraint.source in self._automata:
                self._automata.move_to_end(constraint.source)
                return self._automata[constraint.source]
            try:
                automaton = self._compiled(constraint.source)
            except ConstraintError as error:
                raise ConstraintError(error.message, loc=loc) from None
            self._automata[constraint.source] = automaton
            if len(self._automata) > _KEPT:
                self._automata.popitem(last=False)
            return automaton

    def _compiled(self, source: str) -> TokenAutomaton | None:
        tree = parse(source)
        try:
            dfa = build(tree)
        except TooLarge:
            return None
        if self._vocabulary is None:
            tokens, special, eos, size = self._vocabulary_parts
            self._vocabulary = Vocabulary(tokens, (eos,), special, size)
        return TokenAutomaton(dfa, self._vocabulary)


class AutomatonMatcher:
    """One answer's state in a token automaton."""

    def __init__(self, automaton: TokenAutomaton) -> None:
        self._automaton = automaton
        self.state = automaton.start

    def fill(self, mask: torch.Tensor, row: int) -> None:
        mask[row].numpy()[:] = self._automaton.mask(self.state).view(np.int32)

    def accept(self, token: int) -> None:
        following = self._automaton.next(self.state, token)
        if following == DEAD:
            raise RuntimeError(f"token {token} is outside the constraint although its mask allowed it")
        self.state = following

    @property
    def complete(self) -> bool:
        return self._automaton.is_final(self.state)

    @property
    def done(self) -> bool:
        return self._automaton.is_done(self.state)
