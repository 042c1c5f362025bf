"""The rows of a token automaton without tokens that no canonical answer has there.

    "(student|minister)",    legal      m  min  minister  s  stud  student
                             dead ends  m  min  stud      only `inister`, … may follow, which no tokenizer writes there
    after the last token     refused    tokens that the tokenizer never puts after it (canonical.py)

The canonical encoding of a legal text is never cut off: neither rule refuses a token of it. If nothing were left,
because the answer so far is not the beginning of one, all legal tokens stay.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from lmc.fsm.canonical import Canonical, NonCanonical, is_begun
from lmc.fsm.tokens import FEW_REFUSED, TokenAutomaton, TokenRow

_DEPTH = 3  # tokens of lookahead
_STATES = 64  # most states visited after one state
_FOLLOWING = 48  # tokens that may follow; among more, one is assumed canonical
_ONE_BY_ONE = 100  # pairs


@dataclass(frozen=True, slots=True, eq=False)
class _DeadEnds:
    ids: list[int]
    refused: NonCanonical | None  # None: there are none


class CanonicalRows:
    """Canonical rows of one automaton; shared by all answers of its constraint. Thread-safe."""

    def __init__(self, automaton: TokenAutomaton, canonical: Canonical) -> None:
        self.automaton, self.canonical = automaton, canonical
        self._dead: dict[int, _DeadEnds] = {}  # by state
        self._singular: dict[int, list[tuple[int, int | None]]] = {}
        self._behind: dict[tuple[int, int], list[int]] = {}

    def narrowed(self, row: TokenRow, state: int, before: int | None) -> TokenRow:
        """Return the rest of a state's row after a token; None if it is the first."""
        dead = self._dead_ends(state).refused
        if dead is not None:
            row = _without(row, dead)
        return row if before is None else _without(row, self.canonical.refused(before))

    def may_narrow(self, state: int, before: int | None, token: int, following: int) -> bool:
        """Return whether a legal token, which leads to `following`, may be missing in `narrowed`; False if it is
        not."""
        if before is not None and not self.canonical.allows(before, token):
            return True
        return self._is_singular(following) and len(self._dead_ends(state).ids) > 0

    def prepare(self, state: int) -> None:
        """Find the dead ends of a state before its row is needed."""
        self._dead_ends(state)

    @property
    def nbytes(self) -> int:
        found = list(self._dead.copy().values())
        dead = sum(200 + 8 * len(dead.ids) + (dead.refused.bits.nbytes if dead.refused is not None else 0) for dead in found)
        return dead + 200 * (len(self._behind) + len(self._singular))

    def _is_singular(self, state: int) -> bool:
        dfa = self.automaton.dfa
        return dfa.ways_at(state) == 1 and not dfa.is_final(state)

    def _dead_ends(self, state: int) -> _DeadEnds:
        """Return tokens after which only one byte is legal, and no token with it can be canonical."""
        found = self._dead.get(state)
        if found is None:
            ids = self._find(state)
            flags = np.zeros(self.automaton.vocabulary.size, bool)
            flags[ids] = True
            found = self._dead[state] = _DeadEnds(ids, NonCanonical.of(flags, np.zeros(len(flags), bool)) if len(ids) else None)
        return found

    def _find(self, state: int) -> list[int]:
        by_state: dict[int, list[int]] = defaultdict(list)
        seen: set[tuple[int, ...]] = set()  # continuations: independent of how states are distinguished
        for token, end in self._leading_on(state):
            if end not in by_state:
                if not self._is_singular(end):
                    continue
                seen.add(tuple(self._alive(end, _DEPTH)))
                if len(seen) > _STATES:
                    break
            by_state[end].append(token)
        return sorted(token for end, tokens in by_state.items() for token in self._stuck(tokens, end))

    def _leading_on(self, state: int) -> list[tuple[int, int]]:
        """Return the tokens that are legal in a state, ascending, and the states after them; without those after which
        a run of characters allows more than one byte."""
        dfa, vocabulary = self.automaton.dfa, self.automaton.vocabulary
        dfa.begin()
        walked = vocabulary.walked(dfa, state)
        found = walked.tokens(vocabulary, dfa, state)
        for running in walked.runs:
            found += [(t, dfa.step(state, vocabulary.tokens[t])) for t in running.run.begun.tolist() if walked.bits[t >> 5] >> np.uint32(t & 31) & 1]
            saturating = [t for t in running.saturating() if not is_begun(vocabulary.tokens[t])]  # all lead to one state: the count is full
            if saturating and self._is_singular(full := dfa.step(state, vocabulary.tokens[saturating[0]])):
                found += [(t, full) for t in saturating]
        return sorted(dict(found).items())

    def _stuck(self, tokens: list[int], end: int) -> list[int]:
        """Return those of `tokens`, which lead to the singular state `end`, after which nothing is canonical."""
        following = self._alive(end, _DEPTH)
        if len(following) > _FOLLOWING:
            return []
        if len(tokens) * len(following) <= _ONE_BY_ONE:
            return [t for t in tokens if not any(self.canonical.allows(t, u) for u in following)]
        left = np.array(tokens)
        for u in following:
            bits = self.canonical.refused_before(u).bits
            left = left[bits[left >> 5] >> (left & 31).astype(np.uint32) & 1 == 1]
        return left.tolist()

    def _alive(self, state: int, depth: int) -> list[int]:
        """Return the tokens that are legal in a singular state and not stuck after it, as far as `depth` tokens show;
        all if all are."""
        found = self._behind.get((state, depth))
        if found is None:
            legal = self._singular.get(state)
            if legal is None:
                legal = self._singular[state] = self._legal(state)
            found = legal
            if depth and len(legal) <= _FOLLOWING:
                found = [(t, end) for t, end in legal if end is None or self._goes_on(t, end, depth - 1)] or legal
            found = self._behind[state, depth] = [t for t, _ in found]
        return found

    def _goes_on(self, token: int, end: int, depth: int) -> bool:
        following = self._alive(end, depth)
        return len(following) > _FOLLOWING or any(self.canonical.allows(token, u) for u in following)

    def _legal(self, state: int) -> list[tuple[int, int | None]]:
        """Return the tokens that are legal in a singular state, each with the state after it where that is singular,
        too."""
        dfa, vocabulary = self.automaton.dfa, self.automaton.vocabulary
        ids, ends = vocabulary.held(*vocabulary.trie.below(dfa, 0, state))
        found = [(t, end if single else None) for t, end, single in zip(ids.tolist(), ends.tolist(), dfa.are_singular(ends).tolist())]
        return found + [(t, None) for t in vocabulary.long_allowed(dfa, state).ids]


def _without(row: TokenRow, refused: NonCanonical) -> TokenRow:
    """Return the row without further refused tokens, if any are left."""
    few = row.few
    if few is not None:
        kept = few[refused.bits[few >> 5] >> (few & 31).astype(np.uint32) & 1 == 0]
        return TokenRow(row.bits & ~refused.bits, kept) if 0 < len(kept) < len(few) else row
    bits = row.bits & ~refused.bits
    if not bits.any():
        return row
    known = None if row.refused is None else np.concatenate([row.refused, refused.ids])
    return TokenRow(bits, refused=known if known is not None and len(known) <= FEW_REFUSED else None)
