"""Forced tokens change nothing that a reader sees: a small run of `benchmarks/bench_forcing.py` on the real model."""

from __future__ import annotations

import pytest

from benchmarks.bench_forcing import FORMS, bench, questions

pytestmark = pytest.mark.model


def test_greedy_answers_agree_with_and_without_forced_tokens():
    rows = {row.form: row for row in bench(18)}
    assert rows.keys() == {*FORMS, "all"}
    whole = rows["all"]
    assert whole.same_text >= 17 / 18 and abs(whole.nll_difference) < 0.05
    assert whole.forced_share > 0.5 and whole.passes_per_token < 0.5


def test_questions_differ():
    asked = [ask.prompt for ask in questions(300, 3)]
    assert len(set(asked)) == 300
