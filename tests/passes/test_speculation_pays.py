"""Arms prefilled while a decision waits, on the real scheduler: fewer passes for the program, and few tokens more."""

from __future__ import annotations

import pytest

import lmc
from lmc.backend.base import Counters
from tests.backend.engine_fakes import backend

EASY, HARD = "Answer it at once and do not explain anything. " * 6, "Think first; write down every step you take. " * 6


@lmc.function
def route(s, question):
    s += "Question: " + question
    router = s.fork(1)[0]
    router += " Is it easy? " + lmc.gen("easy", max_tokens=40)
    if len(router["easy"]) % 2 == 0:
        s += EASY + lmc.gen("answer", max_tokens=4)
    else:
        s += HARD + lmc.gen("answer", max_tokens=4)
    return s["answer"]


def spent(skipped: str, calls: list[str]) -> tuple[list[str], Counters]:
    """Answers and counters of a compiled program, one item at a time, on an engine of 32 rows a pass; `skipped`: a pass left out."""
    engine, _ = backend(8192, chunk=32)
    lmc.config(skip_passes=skipped)
    try:
        with engine, lmc.compile(route, backend=engine) as program:
            program(question="first")
            engine.flush_cache()
            before = engine.counters()
            answers = [program(question=q, temperature=0).ret_value for q in calls]
            counters = engine.counters() - before
            engine.check()
            said = program.explain()
            assert ("2 arms prefilled" in said or "arms prefilled: 2" in said) == (not skipped)
            return answers, counters
    finally:
        lmc.config(skip_passes="")


def test_a_program_needs_fewer_passes_and_few_tokens_more() -> None:
    """An arm is 9 passes of 32 rows, which here ride with the 40 of the answer that is waited for. The other arm's rows are
    what it costs, and no call is made ahead."""
    questions = [f"what is {n} times {n}?" for n in range(4)]
    with_arms, without = spent("", questions), spent("plan-speculation", questions)
    assert with_arms[0] == without[0] == [route.run(question=q, temperature=0, backend=backend(8192)[0]).ret_value for q in questions]
    assert with_arms[1].calls == without[1].calls == 8
    assert with_arms[1].passes <= without[1].passes - 4 * 5
    assert with_arms[1].prefilled_tokens - without[1].prefilled_tokens <= 4 * max(len(EASY), len(HARD))


@pytest.mark.parametrize("effect", [False, True])
def test_effects_are_never_ahead_of_the_decision(effect: bool) -> None:
    """What an arm does besides asking happens in the arm that is taken, once."""
    done: list[str] = []

    @lmc.function
    def act(s, question):
        easy, hard = EASY, HARD  # read before the effects, after which globals may be others
        s += "Question: " + question
        router = s.fork(1)[0]
        router += " Is it easy? " + lmc.gen("easy", max_tokens=40)
        if effect == (router["easy"] == "yes"):
            done.append("easy")
            s += easy + lmc.gen("answer", max_tokens=4)
        else:
            done.append("hard")
            s += hard + lmc.gen("answer", max_tokens=4)

    mock = lmc.Mock(answers={"easy": "yes", "answer": "1"})
    program = lmc.compile(act, backend=mock)
    for n in range(3):
        program(question="2+2")
        assert done == ["easy" if effect else "hard"] * (n + 1)
    assert "arms prefilled" in program.explain()
