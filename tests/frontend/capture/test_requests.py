"""Which requests an evaluation finds, with what is known."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc.frontend.capture.evaluation import Evaluation
from lmc.frontend.capture.outside import OutsideSnapshot
from tests.frontend.capture.recording import Recording, evaluate


@lmc.function
def summarize(s, doc):
    s += lmc.system("You summarize.") + lmc.user("Summarize: " + doc)
    s += lmc.assistant(lmc.gen("summary", max_tokens=64))
    return s["summary"].strip()


@lmc.function
def map_reduce(s, docs):
    parts = []
    for i, d in enumerate(docs):
        one = summarize(d)
        parts.append(f"{i}: {one['summary'].strip()}")
    s += lmc.user("Combine:\n" + "\n".join(parts))
    s += lmc.assistant(lmc.gen("final", max_tokens=64))
    return s["final"]


def test_requests_that_wait_for_nothing_are_all_found():
    asked, outcome = evaluate(map_reduce, docs=["a", "b", "c"])
    assert [(a.address, a.prompt) for a in asked[:3]] == [
        ((f"/c{i}", 0), f"[system:You summarize.][user:Summarize: {d}][assistant:") for i, d in enumerate("abc")
    ]
    assert asked[3].prompt is None and all(a.certain and not a.shifted for a in asked)
    assert outcome.stopped_at is None and outcome.waits == [frozenset({("/c0", 0), ("/c1", 0), ("/c2", 0)})]


def test_sub_programs_whose_requests_are_pythons_are_not_followed_again():
    ended, found = dict[str, tuple[Any, ...]](), list[list[str | None]]()
    for docs, streams in (("abc", ()), ("abc", ("/c0", "/c2")), ("axc", ("/c0", "/c1", "/c2"))):
        emitter, snapshot = Recording({"summary": " s "}), OutsideSnapshot((), {"docs": [*docs]})
        emitter.pythons, snapshot.ended = frozenset(streams), ended
        emitter.evaluation = Evaluation(map_reduce, snapshot, emitter)
        emitter.evaluation.run()
        found.append([a.prompt for a in emitter.asked])
    first, second, other = found
    assert second == [first[1], "[user:Combine:\n0: s\n1: s\n2: s][assistant:"] and len(first) == 4
    assert other == [first[1].replace("b", "x"), first[3]]  # called with something else


def test_answers_fill_holes():
    asked, outcome = evaluate(map_reduce, {"summary": " S ", "final": "F"}, docs=["a", "b"])
    assert asked[2].prompt == "[user:Combine:\n0: S\n1: S][assistant:" and outcome.value == "F" and outcome.waits == []


@lmc.function
def judge(s, essay):
    s += lmc.user("Essay: " + essay) + lmc.assistant(lmc.select("related", choices=["yes", "no"]))
    if s["related"] == "no":
        return "off topic"
    forks = s.fork(2)
    for f, dim in zip(forks, ["clarity", "style"], strict=True):
        f += lmc.user(f"Judge its {dim}.") + lmc.assistant(lmc.gen("judgment", max_tokens=64, stop="END"))
    s += lmc.user("\n".join(f["judgment"].strip() for f in forks)) + lmc.assistant(lmc.gen("out"))
    return s["out"]


def test_an_undecided_return_ends_certainty():
    asked, _ = evaluate(judge, essay="E")
    assert [(a.name, a.certain) for a in asked] == [("related", True), ("judgment", False), ("judgment", False), ("out", False)]


def test_a_decided_one_does_not():
    asked, _ = evaluate(judge, {"related": "yes"}, essay="E")
    assert [(a.name, a.certain) for a in asked] == [("related", True), ("judgment", True), ("judgment", True), ("out", True)]
    asked, outcome = evaluate(judge, {"related": "no"}, essay="E")
    assert len(asked) == 1 and outcome.value == "off topic"


@lmc.function
def retried(s, q):
    s += q + lmc.gen("date", max_tokens=8)
    if "-" not in s["date"]:
        s += "Again: " + lmc.gen("date", max_tokens=8)
    s += "done" + lmc.gen("x")


def test_addresses_behind_an_arm_that_may_ask_are_shifted():
    asked, _ = evaluate(retried, q="q")
    assert [(a.name, a.certain, a.shifted, a.prompt is None) for a in asked] == [("date", True, False, False), ("x", True, True, True)]


class Writer:
    def __init__(self, s):
        self.s = s

    def __call__(self, line):
        self.s += line + lmc.gen("line", max_tokens=8)


@lmc.function
def written(s, q):
    write = Writer(s)
    s += q + lmc.gen("lines", max_tokens=8)
    for line in s["lines"].splitlines():
        write(line)


def test_an_answer_by_which_an_object_of_the_programs_asks_is_waited_for():
    asked, outcome = evaluate(written, q="q")
    assert [a.name for a in asked] == ["lines"] and len(outcome.waits) == 1


@lmc.function
def checked(s, qs):
    for q in qs:
        v = summarize(q)["summary"]
        if len(v) > 99:
            raise ValueError("long")
    s += "end" + lmc.gen("x")


def test_an_explicit_raise_ends_certainty_until_it_was_passed_often_enough():
    asked, _ = evaluate(checked, qs=["a", "b"])
    assert [a.certain for a in asked] == [True, False, False]
    asked, _ = evaluate(checked, options={"passes": lambda _: 8}, qs=["a", "b"])
    assert [a.certain for a in asked] == [True, True, True]
    _, outcome = evaluate(checked, {"summary": "short"}, qs=["a", "b"])
    assert [(loc.line, n) for loc, n in outcome.passed.items()] == [(checked.loc.line + 4, 2)]


def tool(q):
    return open(q).read()


@lmc.function
def behind_a_tool(s, q):
    if tool(q) is None:
        return
    s += "a" + lmc.gen("a")
    s += "b" + lmc.gen("b")


def test_where_python_has_asked_certainty_begins_again():
    asked, _ = evaluate(behind_a_tool, q="q")
    assert [(a.name, a.certain) for a in asked] == [("a", False), ("b", False)]

    class Reached(Recording):
        def _ask(self, ctx, expr, given, stream, ordinal):
            if ordinal == 0:  # Python has made this one
                self.evaluation.confirm()
            return super()._ask(ctx, expr, given, stream, ordinal)

    emitter = Reached()
    evaluation = emitter.evaluation = Evaluation(behind_a_tool, OutsideSnapshot(("q",)), emitter)
    evaluation.run()
    assert [(a.name, a.certain) for a in emitter.asked] == [("a", True), ("b", True)]


N = 0
TOPIC = ""
LOG: list[str] = []


def counted():
    global N
    N += 1
    LOG.append("x")
    return N


@lmc.function
def with_globals(s, q):
    s += f"{N} {len(LOG)}" + lmc.gen("a")
    counted()
    for f, x in zip(s.fork(2), (N, len(LOG))):
        f += f"{x}" + lmc.gen("b")


def test_what_the_program_changes_outside_is_unknown_from_then_on():
    snapshot = OutsideSnapshot(("q",))
    for expected in (["0 0", None, None], [None, None, None]):  # a later evaluation cannot know how far Python is
        emitter = Recording({"a": "A"})
        evaluation = emitter.evaluation = Evaluation(with_globals, snapshot, emitter)
        evaluation.run()
        assert [a.prompt for a in emitter.asked] == expected
    assert N == 0 and not LOG


@lmc.function
def sets_a_global(s, q):
    global TOPIC
    TOPIC = q
    s += TOPIC + lmc.gen("a")
    TOPIC = s["a"]
    s += TOPIC + lmc.gen("b")


def test_a_global_that_the_program_sets_before_it_is_read_is_known():
    snapshot = OutsideSnapshot(("q",))
    for answers, expected in (({}, ["q", None]), ({"a": "A"}, ["q", "qAA"])):
        emitter = Recording(answers)
        evaluation = emitter.evaluation = Evaluation(sets_a_global, snapshot, emitter)
        evaluation.run()
        assert [a.prompt for a in emitter.asked] == expected
    assert TOPIC == ""


@lmc.function
def with_arguments(s, todo):
    while todo:
        s += todo.pop(0) + lmc.gen("x")


def test_arguments_are_as_they_were_when_the_program_began():
    todo = ["a", "b", "c"]
    snapshot = OutsideSnapshot((todo,))
    todo.clear()
    for _ in range(2):
        emitter = Recording({"x": "X"})
        evaluation = emitter.evaluation = Evaluation(with_arguments, snapshot, emitter)
        evaluation.run()
        assert [a.prompt for a in emitter.asked] == ["a", "aXb", "aXbXc"]


LIMIT, PATTERN = 8, "[ab]"


@lmc.function
def of_constants(s):
    for _ in range(2):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=LIMIT, regex=PATTERN))


def test_a_request_of_constants_is_that_of_their_present_values(monkeypatch: pytest.MonkeyPatch):
    def given() -> list[tuple[str, str, int]]:
        asked, _ = evaluate(of_constants, {"a": "b"})
        return [(a.prompt, a.given, a.line) for a in asked]

    line = of_constants.loc.line + 3
    expected = [("[user:Q][assistant:", (8, "[ab]"), line), ("[user:Q][assistant:b][user:Q][assistant:", (8, "[ab]"), line)]
    assert given() == expected
    assert given() == expected
    monkeypatch.setitem(globals(), "LIMIT", 4)
    monkeypatch.setitem(globals(), "PATTERN", "[abc]")
    assert [asked[1] for asked in given()] == [(4, "[abc]")] * 2
    monkeypatch.setattr(lmc, "user", lmc.system)
    assert given()[0][0] == "[system:Q][assistant:"
