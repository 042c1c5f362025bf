"""Certain tokens of a text that is forced, when nothing is known of what may follow: jump-forward for matchers with a stack.

The canonical rule of forced.py, over an automaton that takes the text and then anything. More continuations than the
grammar's, so what is certain here is certain there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from lmc.fsm.dfa import build
from lmc.fsm.forced import Encode, ForcedTokens, Seams
from lmc.fsm.json_text import ANY_TEXT, seq, text
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary

_KEPT = 4096
_LONGEST = 1024  # characters that are looked at: it runs between two passes, and a grammar may force any length


class Jumps:
    """The certain tokens of each forced text, found once. For one thread."""

    def __init__(self, vocabulary: Vocabulary, encode: Encode) -> None:
        self.vocabulary, self.encode = vocabulary, encode
        self.seams = Seams(vocabulary, encode)
        self._known: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def behind(self, recent: Sequence[int], forced: str) -> tuple[int, ...]:
        """As much of that as is certain behind text whose last tokens are `recent`, however that was cut; of a long text, what
        is in its beginning."""
        forced = forced[:_LONGEST]
        run = self.certain(forced)
        if not run or not recent or not self.seams.may_join(recent[-1], run[0]):
            return run
        return self.seams.agreed(self.seams.tail(recent), forced, run, lambda: [forced.encode()])

    def certain(self, forced: str) -> tuple[int, ...]:
        """The first tokens of every canonical text that begins with `forced`."""
        if forced not in self._known:
            automaton = TokenAutomaton(build(seq(text(forced), ANY_TEXT)), self.vocabulary)
            self._known[forced] = ForcedTokens(automaton, self.encode).run(automaton.start).tokens if forced else ()
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return self._known[forced]
