"""Evaluations ask through code that goes over items: builtins that take them all, quantifiers, filters, keys; and functions chosen, cached and handed
on."""

# ruff: noqa: C401 (programs are written as people write them)

from __future__ import annotations

import collections
import csv
import functools
import heapq
import io
import operator
import statistics
from collections.abc import Callable
from typing import Any

import pytest

import lmc
from tests.frontend.capture.recording import Asked, evaluate

ITEMS = ["a", "b", "c", "d"]


@lmc.function
def score(s, text):
    s += text + lmc.gen("n")
    return int(s["n"])


def scored(text):
    return score(text).ret_value


def asked_by(run: Callable[[], Any], answers: Any = None, **options: Any) -> list[Asked]:
    """Return the asks of a program that calls `run`, and then asks itself."""

    @lmc.function
    def program(s):
        run()
        s += "then" + lmc.gen("then")

    return evaluate(program, answers, options=options)[0]


def seen(asked: list[Asked]) -> list[tuple[str | None, bool, bool]]:
    return [(a.prompt, a.certain, a.shifted) for a in asked]


ALL = [(text, True, False) for text in (*ITEMS, "then")]

TAKES_ALL: dict[str, Callable[[], Any]] = {
    "sum": lambda: sum(scored(t) for t in ITEMS),
    "max": lambda: max(scored(t) for t in ITEMS),
    "min of pairs": lambda: min((scored(t), t) for t in ITEMS),
    "max by key": lambda: max(ITEMS, key=scored),
    "sorted by key": lambda: sorted(ITEMS, key=lambda t: -scored(t)),
    "sort by key": lambda: list(ITEMS).sort(key=scored),
    "nlargest": lambda: heapq.nlargest(2, ITEMS, key=scored),
    "set": lambda: set(scored(t) for t in ITEMS),
    "set comprehension": lambda: {scored(t) for t in ITEMS},
    "dict comprehension": lambda: {scored(t): t for t in ITEMS},
    "update": lambda: set().update(scored(t) for t in ITEMS),
    "Counter": lambda: collections.Counter(scored(t) for t in ITEMS),
    "reduce": lambda: functools.reduce(operator.add, (scored(t) for t in ITEMS)),
    "mean": lambda: statistics.mean(scored(t) for t in ITEMS),
    "map": lambda: list(map(scored, ITEMS)),
    "condition": lambda: [t for t in ITEMS if scored(t) > 4],
    "condition of a generator": lambda: sum(1 for t in ITEMS if scored(t) > 4),
    "condition that binds": lambda: [n for t in ITEMS if (n := scored(t)) > 4],
    "inner loop": lambda: [w for t in ITEMS for w in str(scored(t)).split()],
    "joined": lambda: ", ".join(t for t in ITEMS if scored(t) > 4),
    "arguments": lambda: (lambda *args: args)(*(scored(t) for t in ITEMS)),
    "extend": lambda: [].extend(t for t in ITEMS if scored(t) > 4),
}


@pytest.mark.parametrize("name", TAKES_ALL)
def test_what_takes_all_items_asks_for_each(name: str):
    assert seen(asked_by(TAKES_ALL[name])) == ALL


def test_an_element_that_asks_for_undecided_items_shifts_what_follows():
    asked = asked_by(lambda: [scored(t + t) for t in ITEMS if scored(t) > 4])
    assert seen(asked) == [ALL[0], *((t, True, True) for t in "bcd"), ("then", True, True)]
    found: list[Any] = []
    asked = asked_by(lambda: found.append([w for t in ITEMS[:2] for w in str(scored(t)) if scored(w)]))
    assert seen(asked) == [ALL[0], ("b", True, True), ("then", True, True)]


def exclaimed(x):
    return x + "!"


class Loud(str):
    def strip(self, chars=None, /):
        return "loud"


COMPUTES: dict[str, Callable[[list[Any]], Any]] = {
    "characters": lambda xs: sum(ord(c) - 96 for c in "abc"),
    "pairs": lambda xs: [f"{k!r} {v}" for k, v in {"a": xs[0], "b": 1, "c": None}.items() if k != xs[1]],
    "a set": lambda xs: sorted({(len(x), x.upper()) for x in xs if x in "ab" or not x}),
    "a name for a builtin": lambda xs: (lambda len: [len(x) for x in xs])(exclaimed),
    "functions for items": lambda xs: [f("3") for f in (int, exclaimed)],
    "a function of the program": lambda xs: [exclaimed(x) for x in xs],
    "a class of the program": lambda xs: [x.strip() for x in (Loud(" a "), " b ")],
    "long ones": lambda xs: sum(len(x + y) for x in ["a" * 3000, "b" * 3000] for y in xs),
    "large ones": lambda xs: [len(hex(x)) for x in [1 << 19_000, 1 << 19_000]],
    "one that holds itself often": lambda xs: [x == 1 for x in [functools.reduce(lambda t, _: (t, t), range(40), ())]],
    "a name of Python's own": lambda xs: [x for x in xs if __debug__],
    "what changes meanwhile": lambda xs: [xs.append(x) or len(xs) for x in xs if len(xs) < 9],
}


@pytest.mark.parametrize("name", COMPUTES)
def test_a_comprehension_that_only_computes_gives_what_python_does(name: str):
    def made(s, run: Any, xs: list[Any]) -> None:
        s += str(run(xs)) + lmc.gen("then")

    asked, _ = evaluate(lmc.function(made), run=COMPUTES[name], xs=["b", "a", "", "c"])
    expected = str(COMPUTES[name](["b", "a", "", "c"]))
    assert [a.prompt for a in asked] == [None if name == "a class of the program" else expected]  # derived from a class in C


def test_a_comprehension_that_raises_does_so_where_python_does():
    @lmc.function
    def raises(s):
        try:
            found: Any = [x + 1 for x in (1, 2, "3")]
        except TypeError as error:
            found = type(error).__name__
        s += str(found) + lmc.gen("then")

    assert [a.prompt for a in evaluate(raises)[0]] == ["TypeError"]


def test_a_comprehension_over_something_unknown_is_a_hole():
    @lmc.function
    def mixed(s):
        (f,) = s.fork(1)
        f += lmc.gen("x")
        s += str([x + "!" for x in ["a", f["x"]]]) + lmc.gen("then")

    assert [evaluate(mixed, known)[0][-1].prompt for known in ({}, {"x": "b"})] == [None, "['a!', 'b!']"]


ENDS_EARLY: dict[str, Callable[[], Any]] = {
    "any": lambda: any(scored(t) > 8 for t in ITEMS),
    "all": lambda: all(scored(t) < 8 for t in ITEMS),
    "of map": lambda: any(map(scored, ITEMS)),
    "next": lambda: next((t for t in ITEMS if scored(t) > 8), None),
    "next of filter": lambda: next(filter(scored, ITEMS), None),
}


@pytest.mark.parametrize("name", ENDS_EARLY)
def test_what_may_end_early_is_left_at_the_first_undecided_item(name: str):
    for explores in (False, True):
        assert seen(asked_by(ENDS_EARLY[name], explores=explores)) == [("a", True, False), ("then", True, True)]


def test_what_ends_early_ends_at_what_is_known():
    assert seen(asked_by(lambda: any(scored(t) > 8 for t in ITEMS), {"n": "9"})) == [("a", True, False), ("then", True, False)]
    assert seen(asked_by(lambda: all(scored(t) > 8 for t in ITEMS), {"n": "9"})) == ALL


def test_an_iterator_that_stopped_at_something_undecided_has_not_ended():
    def run():
        numbers = (scored(t) for t in ITEMS if scored(t))
        next(numbers)
        for n in numbers:
            scored(f"never {n}")

    assert [a.prompt for a in asked_by(run)] == ["a", "then"]


# -- functions that are chosen, cached, handed on


@lmc.function
def routes_by_an_answer(s, q):
    routes = {"one": lambda t: s.__iadd__(t + lmc.gen("routed")), "two": lambda t: t}
    for _ in range(2):
        s += q + lmc.gen("route")
        routes.get(s["route"], len)(q)


def test_a_function_chosen_by_an_answer_may_make_requests():
    asked, _ = evaluate(routes_by_an_answer, q="q")
    assert [a.shifted for a in asked] == [False, True]


@lmc.function
def calls_a_program_chosen_by_an_answer(s, q):
    s += q + lmc.gen("route")
    {"score": score, "other": score}[s["route"]](q)
    score("next")


def test_a_program_chosen_by_an_answer_shifts_those_behind_it():
    asked, _ = evaluate(calls_a_program_chosen_by_an_answer, q="q")
    assert [(a.prompt, a.shifted) for a in asked] == [("q", False), ("next", True)]


@functools.lru_cache
def cached(text):
    return scored(text)


CACHED: dict[str, Callable[[], Any]] = {
    "of the outside": lambda: [cached(t) for t in "abab"],
    "nested": lambda: (lambda fn: [fn(t) for t in "abab"])(functools.cache(lambda t: scored(t))),
    "with a size": lambda: (lambda fn: [fn(t) for t in "abab"])(functools.lru_cache(maxsize=None)(scored)),
    "a function of the outside": lambda: (lambda fn: [fn(t) for t in "abab"])(functools.cache(scored)),
}


@pytest.mark.parametrize("name", CACHED)
def test_whether_a_cached_function_asks_is_undecided(name: str):
    assert seen(asked_by(CACHED[name])) == [("then", True, True)]


@functools.cache
def numbered(text):
    return f"1. {text}"


def test_a_cached_function_that_asks_nothing_is_followed():
    asked = asked_by(lambda: [scored(numbered(t)) for t in "aa"])
    assert seen(asked) == [("1. a", True, False), ("1. a", True, False), ("then", True, False)]


@lmc.function
def children_of_bodies(s, q):
    def body(f, text):
        return scored(text)

    s.fork(2).each(body, ["a", "b"])
    return scored("c")


@lmc.function
async def children_of_async_bodies(s, q):
    async def body(f, text):
        return (await score.arun(text)).ret_value

    await s.fork(2).each(body, ["a", "b"])
    return scored("c")


@pytest.mark.parametrize("program", [children_of_bodies, children_of_async_bodies])
def test_sub_programs_in_bodies_of_forks_inherit_from_them(program: Any):
    asked, _ = evaluate(program, q="q")
    assert [(a.address, a.prompt) for a in asked] == [(("/0.0/c0", 0), "a"), (("/0.1/c0", 0), "b"), (("/c0", 0), "c")]


@lmc.function
def uses_an_object_of_c(s, writer):
    score("a")
    writer.writerow(["x"])
    score("b")


def test_an_object_of_a_class_out_of_c_is_unknown():
    asked, outcome = evaluate(uses_an_object_of_c, writer=csv.writer(io.StringIO()))
    assert [a.prompt for a in asked] == ["a", "b"] and outcome.raised is None


def test_items_that_ask_nothing_are_not_gone_through_in_vain():
    rows = [{"label": f"x{i % 7}", "n": i} for i in range(2000)]

    @lmc.function
    def program(s):
        label = score("a").ret_value
        return (
            [r for r in rows if r["n"] == label], sum(1 for r in rows if r["n"] == label), max(rows, key=lambda r: r["n"] * label),
            any(r["n"] == label for r in rows),
            {label + r["n"] for r in rows}, {label + r["n"]: 1 for r in rows}, sorted(label + r["n"] for r in rows),
        )  # fmt: skip

    for explores in (False, True):
        _, outcome = evaluate(program, options={"explores": explores})
        assert outcome.steps < 8500  # only `sorted`, and what has keys, lists its items before it compares them


def test_a_loop_over_items_of_an_answer_makes_no_requests_by_what_it_goes_over():
    def run():
        for t in ITEMS:
            for word in str(scored(t)).split():
                word.upper()

    assert seen(asked_by(run)) == ALL


def test_adding_to_a_long_list_takes_no_more_steps_than_to_a_short_one():
    @lmc.function
    def program(s):
        found = []
        for i in range(4000):
            found.append(i)
        return score(str(len(found)))

    asked, outcome = evaluate(program)
    assert asked[0].prompt == "4000" and outcome.steps < 10_000


@lmc.function
def compares_in_a_chain(s, q):
    score(f"{0 < len(q) < 9 <= 9} {'a' <= q < 'abc' <= 'b'}")
    score(f"{0 < score('between').ret_value < 9}")


def test_a_chain_of_comparisons_evaluates_what_is_between_once():
    asked, outcome = evaluate(compares_in_a_chain, q="abc")
    assert [a.prompt for a in asked] == ["True False", "between", None] and outcome.raised is None


@lmc.function
def leaves_a_loop_within_which_a_generator_waits(s, q):
    for t in ITEMS:
        words = (w for w in q.split() for _ in "ab")
        first = next(words)
        if score(t).ret_value == first:
            break
        score(f"{t} {first}")
    score("then")


def test_a_generator_expression_that_waits_is_no_loop_to_leave():
    asked, _ = evaluate(leaves_a_loop_within_which_a_generator_waits, q="x y")
    assert [(a.prompt, a.certain) for a in asked] == [("a", True), *((p, False) for t in ITEMS for p in (t, f"{t} x") if p != "a"), ("then", False)]
