"""A ledger rebuilds the prompts of Python's requests from what it has kept of them."""

from __future__ import annotations

from typing import Any

from lmc.prompt import Prompt
from lmc.runahead.ledger import Ledger


def test_a_prompt_that_begins_with_one_of_elsewhere_is_rebuilt_once() -> None:
    ledger: Any = Ledger.__new__(Ledger)
    ledger._keeps, ledger._all, ledger._ends, ledger._prompts, ledger.asked = True, [], {}, [], {}
    before = Prompt(Prompt(None, ("A",)), (), None, object(), ()).append("B")  # type: ignore[arg-type]
    ledger._keep("here", before, None, Prompt(before, (), object(), object(), ()))  # type: ignore[arg-type]
    assert ledger.after(ledger.asked["here"]).parent.text() == "AB"
