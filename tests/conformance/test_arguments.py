"""Arguments of every form: `*args`, `**kwargs`, defaults, positional-only and keyword-only, and what goes to the run's options."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc import Mock, gen
from lmc.errors import ArgumentError
from tests.conformance.harness import EFFECTS, conform, effect, observe


def same(program: Any, *calls: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Assert that compiled calls give what the interpreter gives, twice, and that a batch does."""
    fast = lmc.compile(program)
    for _ in range(2):
        for args, kwargs in calls:
            expected, seen = [], []
            for run, found in ((program.run, expected), (fast, seen)):
                EFFECTS.clear()
                try:
                    found.append(observe(run(*args, **kwargs, backend=Mock(), seed=3)))
                except Exception as error:
                    found.append((type(error), str(error)))
                found.append(list(EFFECTS))
            assert seen == expected, (args, kwargs)
    for form in (0, 1):
        items = [call[form] for call in calls if not call[1 - form]]
        want = program.run_batch(items, backend=Mock(), seed=3, errors="return", num_threads=1)
        got = fast.batch(items, backend=Mock(), seed=3, errors="return")
        assert [observe(s) for s in got] == [observe(s) for s in want]
    return fast


def test_named_arguments_in_their_order():
    @lmc.function
    def program(s, q, /, first="1", *rest, key, other="o", **more):
        s += f"{q} {first} {len(rest)} {key} {other} "
        for name, value in more.items():
            s += f"{name}={value};"
        if "tone" in more:
            s += "tone " + more.pop("tone")
        effect(more, sorted(more))
        s += gen("x", max_tokens=3)
        return more, dict(more, y=s["x"]), rest

    same(
        program, (("a",), {"key": "k"}), (("a", "b", "c", "d"), {"key": "k", "q": "named as well"}), (("a",), {"key": "k", "tone": "t", "z": "1"}),
        (("a",), {"key": "k", "z": "1", "tone": "u"}), (("b",), {"key": "l", "z": "2", "tone": "v"}),
        (("a",), {"key": "k", "args": "1", "rest": "2", "more": "3"}),
    )  # fmt: skip


def test_star_arguments_handed_on():
    def helper(s, *args, tail="", **kwargs):
        s += "/".join(args) + tail + "".join(kwargs)
        s += gen("x", max_tokens=3)
        return s["x"]

    def tool(*args, **kwargs):
        effect(args, kwargs)
        return f"{args}{kwargs}"

    @lmc.function
    def child(s, *args, **kwargs):
        s += f"child {args} {sorted(kwargs)}" + gen("x", max_tokens=2)
        return len(args)

    @lmc.function
    def program(s, *args, **kwargs):
        found = helper(s, "h", *args, **kwargs)
        s += tool(*args, x=found, **kwargs)
        below = child(*args, **kwargs)
        s += below["x"] + str(below.ret_value)

    same(program, ((), {}), (("a", "b"), {"tail": "t"}), (("a",), {"tail": "t", "k": "v"}))


def test_the_programs_own_dict_and_not_the_callers():
    @lmc.function
    def program(s, **more):
        more["n"] = len(more)
        more.setdefault("list", []).append("own")
        s += str(more["n"]) + gen("x", max_tokens=2)
        return more["list"]

    given = {"list": ["a"]}
    fast = lmc.compile(program)
    assert fast(**given, backend=Mock()).ret_value == ["a", "own"] and given["list"] == ["a", "own"]  # the list is the caller's, as in Python
    fast.batch([{"b": 1}] * 2, backend=Mock())
    conform(program, [{"a": 1}, {"list": ["a"], "b": 2}, {}])


# -- what is the program's, and what an option of the run's


def test_an_option_wins_over_open_names_and_a_parameter_over_an_option():
    @lmc.function
    def open_(s, **more):
        s += str(sorted(more)) + gen("x")

    @lmc.function
    def own(s, temperature, **more):
        s += f"{temperature} {sorted(more)}" + gen("x", max_tokens=2)

    for run in (open_.run, lmc.compile(open_)):
        mock = Mock()
        state = run(a=1, temperature=0.5, max_new_tokens=4, backend=mock)
        assert state.text().startswith("['a']")
        assert (mock.call_log[0].params.temperature, mock.call_log[0].params.max_new_tokens) == (0.5, 4)
    for run in (own.run, lmc.compile(own)):
        mock = Mock()
        state = run(temperature="hot", top_p=0.5, colour="red", backend=mock)
        assert state.text().startswith("hot ['colour']")
        assert (mock.call_log[0].params.temperature, mock.call_log[0].params.top_p) == (1.0, 0.5)
    mock = Mock()
    assert lmc.compile(open_).call({"temperature": 3}, max_new_tokens=2, backend=mock).text().startswith("['temperature']")  # told apart
    assert mock.call_log[0].params.temperature == 1.0


def test_a_star_parameters_name_is_no_name_to_give():
    @lmc.function
    def program(s, *stop):
        s += "".join(stop) + gen("x", max_tokens=3)

    for run in (program.run, lmc.compile(program)):
        mock = Mock()
        run("a", stop="z", backend=mock)
        assert mock.call_log[0].params.stop in ("z", ("z",), ["z"])

    @lmc.function
    def words(s, *words):
        s += gen("x", max_tokens=3)

    for run in (words.run, lmc.compile(words)):
        with pytest.raises(ArgumentError, match="no parameter 'words'"):
            run(words=["a"], backend=Mock())


def test_unknown_names_are_errors_where_nothing_takes_them():
    @lmc.function
    def program(s, q, *rest):
        s += q + gen("x", max_tokens=3)

    for run in (program.run, lmc.compile(program)):
        with pytest.raises(ArgumentError, match=r"no parameter 'temprature'.*did you mean 'temperature'"):
            run("a", temprature=0, backend=Mock())


def test_bound_arguments():
    @lmc.function
    def program(s, q, **more):
        s += q + str(more) + gen("x", max_tokens=3)

    bound = program.bind(tone="kind")
    same(bound, (("a",), {}), (("a",), {"tone": "rude"}), (("a",), {"more": "1"}))
    assert "kind" in lmc.compile(bound).lower(q="a").dump_ir()
