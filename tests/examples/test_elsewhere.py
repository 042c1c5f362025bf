"""Published programs: each on lmc gives what it gives with the package it was written for, and shows the model the same. Counters, no times."""

from importlib.util import find_spec

import pytest

from experiments.core import EXPERIMENTS, Setup, run
from experiments.elsewhere import FOLDER, PRICES, PROGRAMS, Load, changed, lines, ran

pytestmark = pytest.mark.api
BY_NAME = {program.name: program for program in PROGRAMS}


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def program(request):
    for package in request.param.packages:
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: make clients")
    return request.param


def test_ten_programs_are_there_in_both_ways_and_say_whose_they_are():
    assert len(PROGRAMS) == 10 and len({program.source for program in PROGRAMS}) == 10
    for way in ("original", "ported"):
        assert {path.stem for path in (FOLDER / way).glob("*.py")} - {"__init__"} == set(BY_NAME)
        for program in PROGRAMS:
            text = (FOLDER / way / f"{program.name}.py").read_text("utf-8")
            assert text.startswith(f'"""{program.source.split(",")[0]}, ') and ("import lmc" in text) == (way == "ported")
            assert any(f"{package}" in text for package in program.packages) == (way == "original") or program.packages == ("dspy",)


def test_a_program_on_lmc_gives_and_asks_what_the_original_does(program):
    original, ported = ran(program, "original", Load(0.0)), ran(program, "ported", Load(0.0))
    assert ported.answer == original.answer and original.answer
    assert ported.prompts == original.prompts and len(set(ported.prompts)) > 1
    assert ported.usage.completion_tokens == original.usage.completion_tokens > 0
    assert ported.usage.calls <= original.usage.calls and ported.usage.prompt_tokens <= original.usage.prompt_tokens
    if program.packages != ("sglang",):  # whose prefixes are requests of their own
        assert ported.usage == original.usage
    assert PRICES.of(ported.usage) <= PRICES.of(original.usage)


TOGETHER = {"article": (5, 1), "email": (3, 0), "tips": (2, 0), "judge": (12, 0), "report": (4, 1), "joke": (3, 0), "orchestrate": (3, 1), "summarize": (5, 0)}
"""How many requests a program has under way at once on lmc, behind so many that it needs first. The others need each answer for the next."""


def test_requests_that_need_no_other_answer_are_under_way_together(program):
    together, behind = TOGETHER.get(program.name, (1, 0))
    found = ran(program, "ported", Load(0.0, together=together, behind=behind))
    assert found.at_once == together


ALONE = ("article", "email", "orchestrate", "summarize")
"""Whose originals wait for each answer."""


@pytest.mark.parametrize("name", ALONE)
def test_their_originals_make_one_request_at_a_time(name):
    if find_spec(BY_NAME[name].packages[0]) is None:
        pytest.skip(f"needs {BY_NAME[name].packages[0]}: make clients")
    assert ran(BY_NAME[name], "original", Load(0.0)).at_once == 1


def test_changes_are_counted():
    assert changed(BY_NAME["article"]) == (2, 4) and changed(BY_NAME["tips"]) == (2, 2)
    assert lines(BY_NAME["tips"], "original")[0] == "import sglang as sgl"


def test_a_missing_package_is_said_and_the_others_are_measured(tmp_path, monkeypatch):
    import sys

    monkeypatch.setattr("experiments.core.where", lambda: {"commit": "c"})
    monkeypatch.setattr("experiments.elsewhere.LATENCY", 0.01)
    monkeypatch.setattr("experiments.elsewhere.PROGRAMS", (BY_NAME["tips"], BY_NAME["summarize"]))
    monkeypatch.setitem(sys.modules, "sglang", None)
    monkeypatch.delitem(sys.modules, "examples.elsewhere.original.tips", raising=False)
    found = run(EXPERIMENTS["elsewhere"], Setup(reps=1), tmp_path, say=lambda line: None)
    assert "sglang" in found.unmeasured["tips"] and [row["same"] for row in found.rows["summarize"]] == [True, True]
    original, ported = found.rows["summarize"]
    assert (
        (original["way"], original["package"], ported["way"]) == ("original", "openai", "lmc")
        and original["dollars"] == ported["dollars"] > 0
        and ported["new"] == 12
    )
