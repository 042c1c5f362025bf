"""Forced tokens change nothing that a reader sees: a small run of `benchmarks/bench_forcing.py` on the real model."""

from __future__ import annotations

import pytest

from benchmarks.bench_forcing import FORMS, bench, questions
from tests.searching import size

pytestmark = pytest.mark.model


@pytest.mark.parametrize("untold", [False, True], ids=["legal words named", "not named"])
@pytest.mark.parametrize("shots", [3, 1])
def test_greedy_answers_agree_with_and_without_forced_tokens(shots, untold):
    """Of 300 prompts in a random search (LMC_SEARCH=1), some minutes each; of a few in the tier. Without any example the model does not
    know the form, and the answers are others (docs/constraints.md)."""
    rows = {row.form: row for row in bench(size(6, 300), shots=shots, untold=untold)}
    assert rows.keys() == {*FORMS, "all"}
    whole = rows["all"]
    assert whole.same_text >= 0.99 and abs(whole.nll_difference) < 0.01
    assert whole.forced_share > 0.5 and whole.passes_per_token < 0.5


def test_questions_differ():
    asked = [ask.prompt for ask in questions(300, 3)]
    assert len(set(asked)) == 300
