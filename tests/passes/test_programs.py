"""Passes keep the answers of whole programs on the mock, and leave as many calls as are needed."""

from __future__ import annotations

import pytest

import lmc
from benchmarks.stepped import stepped
from tests.backend.engine_fakes import backend
from tests.conformance.harness import conform, eager, late


def calls(program: lmc.Program, **arguments: object) -> int:
    """Requests of one call on a fresh mock."""
    mock = lmc.Mock()
    program(**arguments, backend=mock, seed=3).sync()
    return len(mock.call_log)


# -- cse -------------------------------------------------------------------------------------------------------------


@lmc.function
def twice_greedy(s, q):
    s += "Q: " + q
    forks = s.fork(3)
    for f in forks:
        f += lmc.gen("a", max_tokens=4, temperature=0) + " so " + lmc.select("b", choices=["yes", "no"])
    return [f["a"] + f["b"] for f in forks]


@lmc.function
def twice_sampled(s, q):
    s += "Q: " + q
    forks = s.fork(3)
    for f in forks:
        f += lmc.gen("a", max_tokens=4)
    return [f["a"] for f in forks]


def test_equal_asks_at_temperature_0_are_made_once() -> None:
    program = conform(twice_greedy, [{"q": "x"}, {"q": "y"}])
    assert calls(program, q="x") == 2
    assert calls(lmc.compile(twice_greedy, opt=0), q="x") == 6
    assert calls(conform(twice_sampled, [{"q": "x"}]), q="x") == 3


def test_the_temperature_of_the_run_counts() -> None:
    """One program, run at both temperatures: each run has the plan for its own."""
    program = conform(twice_sampled, [{"q": "x"}, {"q": "y"}], temperature=0)
    for temperature, expected in ((0, 1), (0.7, 3), (0, 1)):
        mock = lmc.Mock()
        program(q="x", backend=mock, temperature=temperature).sync()
        assert len(mock.call_log) == expected


@lmc.function
def read_at_once(s, q):
    s += "Q: " + q
    forks = s.fork(3)
    found = []
    for f in forks:
        f += lmc.gen("a", max_tokens=4)
        found.append(f["a"])
    return found


def test_equal_asks_at_temperature_0_are_made_ahead_once() -> None:
    """While the program waits for the first of them, the others are no requests of their own."""
    mock = lmc.Mock()
    late(mock)
    state = eager(lmc.compile(read_at_once))(q="x", backend=mock, temperature=0)
    assert len(set(state.ret_value)) == 1 and len(mock.call_log) == 1
    assert state.usage.ahead_asked == 0


def test_a_merged_ask_is_one_in_the_usage() -> None:
    state = lmc.compile(twice_greedy, backend=lmc.Mock())(q="x")
    assert state.usage.calls == 2


def test_a_program_that_raises_has_merged_answers_too() -> None:
    @lmc.function
    def raises(s, q):
        s += "Q: " + q
        a, b = s.fork(2)
        for f in (a, b):
            f += lmc.gen("a", max_tokens=4, temperature=0)
        return a["a"], b["a"], int("no number " + a["a"])

    program = conform(raises, [{"q": "x"}, {"q": "y"}])
    mock = lmc.Mock()
    with pytest.raises(ValueError, match="no number"):
        program(q="x", backend=mock)
    assert len(mock.call_log) == 1


# -- batch-forks -----------------------------------------------------------------------------------------------------


@lmc.function
def opinion(s, q):
    s += "Your opinion on this: " + q
    forks = s.fork(3)
    for f in forks:
        f += lmc.gen("a", max_tokens=4)
    return [f["a"] for f in forks]


@lmc.function
def two_opinions(s, q):
    left, right = opinion(q=q), opinion(q=q)
    s += "\n".join([*left.ret_value, *right.ret_value]) + lmc.gen("best", max_tokens=3)
    return s["best"]


def test_equal_samples_go_out_as_a_group_and_keep_their_seeds() -> None:
    """The same answers as unbatched: `conform` compares prompts, parameters and seeds of all calls."""
    mock = lmc.Mock()
    state = conform(opinion, [{"q": "x"}, {"q": "y"}])(q="x", backend=mock, seed=3)
    assert list(mock.groups.values()) == [3]
    assert len({call.seed for call in mock.call_log}) == 3
    assert state.ret_value == opinion.run(q="x", backend=lmc.Mock(), seed=3).ret_value


def test_an_engine_admits_a_group_together_and_computes_its_prompt_once() -> None:
    engine, _ = backend(4096)
    with engine, lmc.compile(opinion, backend=engine) as program, stepped(engine) as drain:
        states = program.batch([{"q": "x"}, {"q": "y"}], temperature=0.7)
        drain()
        spent = engine.counters()
        engine.check()
    assert len(states) == 2
    assert (spent.calls, spent.groups, spent.twins) == (6, 2, 4)
    assert spent.prefilled_tokens == spent.unique_tokens


def test_every_item_of_a_batch_has_groups_of_its_own() -> None:
    mock = lmc.Mock()
    lmc.compile(opinion, backend=mock).batch([{"q": str(i)} for i in range(5)])
    assert list(mock.groups.values()) == [3] * 5


def test_siblings_in_sub_programs_are_grouped() -> None:
    """Six equal asks of two runs of one sub-program are siblings."""
    mock = lmc.Mock()
    conform(two_opinions, [{"q": "x"}])(q="x", backend=mock, seed=3).sync()
    assert list(mock.groups.values()) == [6]
    assert len({call.seed for call in mock.call_log}) == 7


@lmc.function
def expand(s, tip):
    s += "One paragraph on a tip for beginners. Tip: " + tip + "\nIn detail: " + lmc.gen("text", max_tokens=12, ignore_eos=True)
    return s["text"]


@lmc.function
def advice(s, topic):
    s += "Tips for " + topic + ": "
    s += "\n".join([expand(tip=tip).ret_value for tip in (topic, "water", "heat")])


def test_sub_programs_with_arguments_of_their_own_are_a_group() -> None:
    """Their common beginning is computed once, and they are answered side by side, although each reads its answer."""
    conform(advice, [{"topic": "tea"}, {"topic": "soup"}])
    engine, _ = backend(4096)
    with engine, lmc.compile(advice, backend=engine) as program, stepped(engine) as drain:
        (state,) = program.batch([{"topic": "tea"}], temperature=0)
        drain()
        spent = engine.counters()
        engine.check()
        assert "group = [0, 3]" in program.dump_ir()
    assert spent.calls == 3 and spent.prefilled_tokens == spent.unique_tokens
    assert spent.passes < 2 * 12 and state.usage.ahead_used == 2


# -- dce -------------------------------------------------------------------------------------------------------------


@lmc.function
def with_notes(s, q):
    s += "Q: " + q
    (aside,) = s.fork(1)
    aside += " Note:" + lmc.gen("note", max_tokens=4)
    s += " A:" + lmc.gen("a", max_tokens=4)
    s["note"] = aside


def test_what_is_not_among_the_outputs_is_asked_when_it_is_read() -> None:
    everything, some = lmc.compile(with_notes), lmc.compile(with_notes, outputs=["a"])
    mocks = lmc.Mock(), lmc.Mock()
    states = [program(q="x", backend=mock, seed=3) for program, mock in zip((everything, some), mocks)]
    assert states[0]["a"] == states[1]["a"]
    assert [len(mock.call_log) for mock in mocks] == [2, 1]
    assert states[0]["note"]["note"] == states[1]["note"]["note"]
    assert [len(mock.call_log) for mock in mocks] == [2, 2]


# -- plan-prefix -------------------------------------------------------------------------------------------------------


@lmc.function
def graded(s, essay):
    s += "Essay: " + essay
    forks = s.fork(2)
    for f, dimension in zip(forks, ("clarity", "originality")):
        f += f"\nJudge its {dimension}:" + lmc.gen("judgement", max_tokens=4)
    s += "\n".join([f["judgement"] for f in forks]) + "\nSummary:" + lmc.gen("summary", max_tokens=4)
    return s["summary"]


@pytest.mark.parametrize("essay", ("of a hare", "", "of a\nSummary: a\nJudge its clarity: or", "\n"))
def test_text_that_is_pinned_for_siblings_is_there_once(essay: str) -> None:
    """The prompt that joins them goes on from theirs, by text that the graph does not know."""
    conform(graded, [{"essay": essay}])
