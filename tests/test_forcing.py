"""Forced tokens change nothing that a reader sees: a small run of `benchmarks/bench_forcing.py` on the real model."""

from __future__ import annotations

import pytest

from benchmarks.bench_forcing import FORMS, bench, questions
from tests.searching import size

pytestmark = pytest.mark.model


@pytest.mark.parametrize("untold", [False, True], ids=["legal words named", "not named"])
def test_greedy_answers_agree_with_and_without_forced_tokens(untold):
    """Of 300 prompts in a random search (LMC_SEARCH=1), some minutes; of a few in the tier."""
    rows = {row.form: row for row in bench(size(18, 300), untold=untold)}
    assert rows.keys() == {*FORMS, "all"}
    whole = rows["all"]
    assert whole.same_text >= 0.99 and abs(whole.nll_difference) < 0.01
    assert whole.forced_share > 0.5 and whole.passes_per_token < 0.5


def test_questions_differ():
    asked = [ask.prompt for ask in questions(300, 3)]
    assert len(set(asked)) == 300
