"""Forced tokens change nothing that a reader sees: a small run of `benchmarks/bench_forcing.py` on the real model."""

from __future__ import annotations

import pytest

from benchmarks.bench_forcing import FORMS, LONGEST, bench, questions
from tests.searching import TIMES, size

pytestmark = [pytest.mark.model, pytest.mark.long]


@pytest.mark.parametrize("shots, untold", [(1, True), (1, False), (3, True), (3, False)][: None if TIMES else 1])
def test_greedy_answers_agree_with_and_without_forced_tokens(shots, untold):
    """Of 300 prompts each in `make nightly`, after one and three worked examples; in the tier of one for each form, after one, by prompts that do not
    name the legal words. Without any example the model does not know the form, and the answers are others (docs/constraints.md)."""
    rows = {row.form: row for row in bench(size(6, 300), shots=shots, untold=untold, longest=LONGEST if TIMES else 36)}
    assert rows.keys() == {*FORMS, "all"}
    whole = rows["all"]
    assert whole.same_text >= 0.99 and abs(whole.nll_difference) < 0.01
    assert whole.forced_share > 0.5 and whole.passes_per_token < 0.5


def test_questions_differ():
    asked = [ask.prompt for ask in questions(300, 3)]
    assert len(set(asked)) == 300
