"""Arguments of every form: `*args`, `**kwargs`, defaults, positional-only and keyword-only, and what goes to the run's options."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc import Mock, gen
from lmc.errors import ArgumentError
from tests.conformance.harness import EFFECTS, conform, effect, observe


def same(program: Any, *calls: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Asserts that calls give in the graph what they give in the interpreter, twice, and that a batch does."""
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


def test_positional_arguments_in_any_number():
    @lmc.function
    def program(s, *words):
        for i, word in enumerate(words):
            s += f"{i}:{word} "
        s += " ".join(words) + gen("x", max_tokens=4)
        effect(len(words), words)
        return s["x"], words, words[1:], words[::-1]

    same(program, ((), {}), (("a",), {}), (("a", "b"), {}), (("c", "d"), {}), (("a", "b", "c"), {}))


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


def test_values_of_any_type():
    @lmc.function
    def program(s, *given, **more):
        total = 0
        for x in given:
            total += x if not isinstance(x, str) else len(x)
        s += str(total) + gen("x", max_tokens=2)
        if more.get("flag"):
            s += "flagged"
        for item in more.get("items", ()):
            s += item
        return given, more.get("flag")

    same(
        program, ((1, 2.5), {}), ((1, "two", True), {}), (("x",), {"flag": True}), (("x",), {"flag": False}), (("x",), {"flag": ""}),
        ((3, 4), {}), ((), {"items": ["a", "b"]}), ((), {"items": ["c"], "flag": None}),
    )  # fmt: skip


def test_names_that_are_no_identifiers():
    @lmc.function
    def program(s, **more):
        s += ",".join(f"{k}:{v}" for k, v in more.items()) + gen("x", max_tokens=2)

    same(program, ((), {"a b": "1", "0": "2", "": "3"}), ((), {"1": "1", "a": "2", "é": "3"}))


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


def test_states_run_by_keyword_and_methods():
    class Holder:
        def __init__(self, mark):
            self.mark = mark

        def show(self, *args):
            effect(self.mark, args)
            return self.mark + "".join(args)

    @lmc.function
    def program(s, *holders):
        for holder in holders:
            s += holder.show("a", "b")
        s += gen("x", max_tokens=2)

    same(program, ((Holder("1"),), {}), ((Holder("1"), Holder("2")), {}))


def test_what_raises():
    @lmc.function
    def program(s, *args, **kwargs):
        s += gen("x", max_tokens=2)
        try:
            s += args[1]
        except IndexError as error:
            s += str(error)
        return kwargs["needed"]

    fast = lmc.compile(program)
    for args, kwargs in (((), {"needed": "1"}), (("a", "b"), {"needed": "2"})):
        assert observe(fast(*args, **kwargs, backend=Mock(), seed=1)) == observe(program.run(*args, **kwargs, backend=Mock(), seed=1))
    for run in (program.run, fast):
        with pytest.raises(KeyError, match="needed"):
            run("a", "b", backend=Mock())


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


def test_watched_runs():
    @lmc.function
    def program(s, *args, **kwargs):
        s += "".join(args) + "".join(kwargs) + gen("x", max_tokens=8)

    fast = lmc.compile(program)
    shown = "".join(fast.stream("a", "b", k="c", backend=Mock(), seed=1).text_iter())
    assert shown == program.run("a", "b", k="c", backend=Mock(), seed=1).text()
