"""Templates of literal text and gens whose constraints say where they end: as few passes of the model as one constrained segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import lmc
from benchmarks.stepped import stepped
from lmc.backend.usage import Counters
from tests.backend.engine_fakes import FakeWords, automata, backend

HOUSE, YEAR, KIND = "(Gryffindor|Slytherin)", "19[0-9]{2}", "(yes|no)"


@lmc.function
def template(s, q):
    s += "Q: " + q + '\n{"house": "' + lmc.gen("house", regex=HOUSE, max_tokens=16) + '", "year": ' + lmc.gen("year", regex=YEAR, max_tokens=8)
    s += ', "graduated": ' + lmc.gen("graduated", regex=KIND, max_tokens=6) + "}"


@lmc.function
def segment(s, q):
    s += "Q: " + q + "\n" + lmc.gen("all", regex=rf'\{{"house": "{HOUSE}", "year": {YEAR}, "graduated": {KIND}\}}', max_tokens=90)


def spent(engine: Any, program: lmc.Function, questions: Sequence[str]) -> tuple[Counters, list[lmc.State]]:
    engine.flush_cache()
    with stepped(engine) as drain, lmc.compile(program, backend=engine) as compiled:
        before = engine.counters()
        states = compiled.batch([{"q": q} for q in questions], temperature=0)
        drain()
        return engine.counters() - before, states


def check(engine: Any) -> None:
    """Literal text between gens rides in the pass of the next answer's first token, and what a constraint leaves no choice of
    costs none: fusing the text with the gens could save nothing."""
    for n in (1, 4):
        questions = [f"who is number {i}?" for i in range(n)]
        (apart, states), (fused, _) = spent(engine, template, questions), spent(engine, segment, questions)
        assert apart.passes <= fused.passes
        assert apart.generated_tokens < fused.generated_tokens
        assert apart.forced_tokens > 0
        for state in states:
            assert state["house"] in ("Gryffindor", "Slytherin") and state["year"][:2] == "19" and state["graduated"] in ("yes", "no")
    engine.check()


def test_a_template_takes_the_passes_of_one_segment() -> None:
    words = FakeWords()
    engine, _ = backend(8192, words=words, compiler=automata(words))
    with engine:
        check(engine)


@pytest.mark.model
def test_a_template_takes_the_passes_of_one_segment_on_the_model(tiny_smollm2: str) -> None:
    with lmc.Engine(tiny_smollm2, max_tokens=4000, pass_seconds=3600) as engine:  # on a busy machine passes are made small
        check(engine)
