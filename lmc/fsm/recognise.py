"""Recognising: whether a text is in a grammar's language, recursive ones too. For the few texts that somebody wrote by hand.

What a node derives from a place is the set of places behind it; rules that lead to themselves are looked at again until
nothing is added. Automata are quicker where there is one.
"""

from __future__ import annotations

from collections.abc import Iterable

from lmc.errors import ConstraintError
from lmc.fsm.grammar import Grammar
from lmc.fsm.regex import Chars, Concat, Graph, Node, Ref, Repeat, Union
from lmc.fsm.sources import automaton_of, grammar_of


def allows(kind: str, source: str, text: str) -> bool:
    """Whether a constraint allows a text."""
    return _looked_at(kind, source, text)[0]


def begins(kind: str, source: str, text: str) -> bool:
    """Whether a constraint allows a text that begins with this one."""
    return _looked_at(kind, source, text)[1]


def _looked_at(kind: str, source: str, text: str) -> tuple[bool, bool]:
    try:
        dfa = automaton_of(kind, source)
    except ConstraintError:  # it is valid, or nobody would ask: its automaton is too large
        dfa = None
    if dfa is None:
        reader = _Reader(grammar_of(kind, source), text)
        return reader.whole, reader.whole or reader.open
    state = dfa.step(0, text.encode("utf-8", "surrogatepass"))
    return state >= 0 and dfa.is_final(state), state >= 0


class _Reader:
    """whole   the text is in the language
    open    the text ended where a character could have been read
    """

    def __init__(self, grammar: Grammar, text: str) -> None:
        self._rules, self._text = grammar.rules, text
        self.open = False
        self._known: dict[tuple[str, int], set[int]] = {}  # by rule and place
        while True:
            self._grown, self._seen = False, set[tuple[str, int]]()
            self.whole = len(text) in self._behind(grammar.start, 0)
            if not self._grown:
                return

    def _behind(self, node: Node, at: int) -> set[int]:
        if isinstance(node, Chars):
            if at == len(self._text):
                self.open = True
                return set()
            code = ord(self._text[at])
            return {at + 1} if any(low <= code <= high for low, high in node.ranges) else set()
        if isinstance(node, Concat):
            places = {at}
            for part in node.parts:
                places = self._each(part, places)
            return places
        if isinstance(node, Union):
            return {place for arm in node.arms for place in self._behind(arm, at)}
        if isinstance(node, Repeat):
            return self._repeated(node, at)
        return self._rule(node.rule, at) if isinstance(node, Ref) else self._walked(node, at)

    def _each(self, node: Node, places: Iterable[int]) -> set[int]:
        return {behind for place in places for behind in self._behind(node, place)}

    def _repeated(self, node: Repeat, at: int) -> set[int]:
        places, turns = {at}, 0
        while turns < node.low and places:
            places, turns = self._each(node.body, places), turns + 1
        found = set(places)
        while places and (node.high is None or turns < node.high):
            places, turns = self._each(node.body, places) - found, turns + 1
            found |= places
        return found

    def _walked(self, node: Graph, at: int) -> set[int]:
        seen, todo = {(0, at)}, [(0, at)]
        while todo:
            state, place = todo.pop()
            for source, body, target in node.edges:
                if source == state:
                    fresh = {(target, behind) for behind in self._behind(body, place)} - seen
                    seen |= fresh
                    todo += fresh
        return {place for state, place in seen if state in node.final}

    def _rule(self, name: str, at: int) -> set[int]:
        known = self._known.setdefault((name, at), set())
        if (name, at) not in self._seen:
            self._seen.add((name, at))
            fresh = self._behind(self._rules[name], at) - known
            known |= fresh
            self._grown |= bool(fresh)
        return known
