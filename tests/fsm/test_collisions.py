"""Terminals of a Lark grammar that match one text, within bounds."""

import pytest

from lmc.errors import ConstraintError
from lmc.fsm import collisions as module
from lmc.fsm.collisions import collisions

GRAMMARS = {
    'start: (NAME | NUMBER | WORD)+ "if"\nNAME: /[a-z_]\\w*/\nNUMBER: /[0-9]+/\nWORD: /[a-z]{2,}/\n%ignore " "': [("NAME", "WORD")],
    "start: INT | FLOAT\n%import common (INT, FLOAT)": [],
    "start: HEX | DEC\nHEX: /[0-9a-f]+/i\nDEC: /[0-9]+/": [("DEC", "HEX")],
    'start: "yes" | ANSWER\nANSWER: /yes|no/': [],  # a keyword is no regular expression: lexers prefer it
    "start: BIG | A\nBIG: /(a|b)*a(a|b){20}/\nA: /[ab]+/": [],  # too large to be looked at
}


@pytest.mark.parametrize("source", GRAMMARS)
def test_terminals_that_both_match_a_text_are_found(source):
    import re

    found = [(*sorted((a, b)), text) for a, b, text in collisions(source)]
    assert [(a, b) for a, b, _ in found] == GRAMMARS[source]
    for a, b, text in found:
        patterns = module.patterns_of(source)
        assert re.fullmatch(patterns[a], text) and re.fullmatch(patterns[b], text)


def test_so_many_terminals_are_compared_at_most(monkeypatch):
    monkeypatch.setattr(module, "_MOST_TERMINALS", 3)
    names = [f"T{chr(65 + n)}" for n in range(6)]
    source = f"start: {' | '.join(names)}\n" + "\n".join(f"{name}: /x[{chr(97 + n)}-z]+/" for n, name in enumerate(names))
    assert len({name for a, b, _ in collisions(source) for name in (a, b)}) == 3


def test_what_is_no_grammar_is_refused():
    with pytest.raises(ConstraintError, match="lark"):
        list(collisions("start: x y"))
