"""A plan's annotations of the addresses at which the program asks, as the ledger looks them up."""

from __future__ import annotations

from textwrap import dedent
from unittest.mock import Mock as Planted

import pytest

import lmc
from lmc.backend.base import Beyond, Hints
from lmc.errors import Loc
from lmc.ir import Graph, parse, print_graph
from lmc.passes.base import Target
from lmc.passes.manager import PassManager, parse_pipeline, pipeline_for
from lmc.runahead.annotations import NOTHING, Annotations, Covered, Pin, annotate
from lmc.segments import Mark, Special


def planned(body: str, passes: str | None = None, params: str = "%essay: str", kind: str = "tokens") -> Graph:
    target = Target(kind)
    graph = parse(f"graph @f({params}) -> (any) {{\n{dedent(body)}\n}}")
    return PassManager(pipeline_for(target) if passes is None else parse_pipeline(passes)).run(graph, target)


def table(body: str, passes: str | None = None, params: str = "%essay: str", kind: str = "tokens") -> Annotations:
    return annotate(planned(body, passes, params, kind))


JUDGE = """
    %c0 = ctx.new()
    %c1 = append(%c0, "You grade essays strictly. Essay: ", %essay, "\\n")
    %f = append(%c1, "Judge its clarity.")
    %f1, %x, %m0 = gen(%f) {name = "j", stream = "/0.0", ordinal = 0, regex = "[A-D]"} loc("judge.py":7)
    %g = append(%c1, "Judge its evidence.")
    %g1, %y, %m1 = gen(%g) {name = "j", stream = "/0.1", ordinal = 0, regex = "[A-D]"} loc("judge.py":7)
    %d = append(%c1, %x, %y)
    %d1, %z, %m2 = gen(%d) {name = "out", stream = "", ordinal = 0} loc("judge.py":8)
    return(%z, %d1)
"""


def test_siblings_are_a_group_with_an_order_and_a_reserve() -> None:
    found = table(JUDGE)
    first, second, last = found.at("/0.0", 0), found.at("/0.1", 0), found.at("", 0)
    assert first.group == second.group == (0, 2) and last.group is None
    assert (first.order, second.order, last.order) == (0, 1, 2)
    assert first.reserve == 2 and last.reserve is None and first.together
    hints = first.hints(Hints(watched=True), item=3, run=5)
    assert hints == Hints(order=(3, 0), group=(5, 0), members=2, reserve=2, watched=True)


def test_a_gen_knows_the_texts_that_may_come_after_it() -> None:
    found = table("""
        %c0 = ctx.new()
        %c1 = append(%c0, "Before it, nothing of it.")
        %c2, %x, %m0 = gen(%c1) {name = "x", stream = "", ordinal = 0}
        %p = py.eq(%x, "yes, at once")
        switch(%p) [true -> ^a, _ -> ^b]
      ^a:
        %c3 = append(%c2, %essay, "Who takes it, please?", %essay, "no")
        %c4, %y, %m1 = gen(%c3) {name = "y", stream = "", ordinal = 1}
        return(%y, %c4)
      ^b:
        %c5 = append(%c2, "There is nothing to do.", %essay, "Who takes it, please?")
        %c6, %z, %m2 = select(%c5, "some choice", "another choice") {name = "z", stream = "", ordinal = 1}
        %c7, %v, %m3 = gen(%c6) {name = "v", stream = "", ordinal = 2, regex = "[A-D]"}
        return(%z, %c7)
    """, params="%essay: str")
    assert found.at("", 0).constants == ("yes, at once", "Who takes it, please?", "There is nothing to do.", "some choice", "another choice")
    of_arms = [each.constants for each in found.by_address["", 1]]
    assert of_arms == [("There is nothing to do.", "Who takes it, please?", "some choice", "another choice"), ()]
    assert found.at("", 2).constants == (), "its constraint says what may come"
    assert found.at("", 0).hints(Hints(), item=0, run=0).constants == found.at("", 0).constants


def test_texts_that_may_come_are_bounded() -> None:
    body = "\n".join(f'%c{i + 2} = append(%c{i + 1}, "{i} {"x" * 1500}")' for i in range(1, 9))
    found = table(f'%c0 = ctx.new()\n%c1 = append(%c0, "a")\n%c2, %x, %m = gen(%c1) {{name = "x", stream = "", ordinal = 0}}\n{body}\nreturn(%x, %c10)')
    assert sum(map(len, found.at("", 0).constants)) == 4096


def test_all_asks_that_share_a_prompt_name_its_pin() -> None:
    found = table(JUDGE)
    program, fork = found.at("/0.0", 0).pins
    assert program == Pin(0, ("You grade essays strictly. Essay: ",), (None, "\nJudge its clarity."), shared=True)
    assert fork == Pin(1, (None, "\n"), ("Judge its clarity.",))
    assert [p.number for p in found.at("/0.1", 0).pins] == [p.number for p in found.at("", 0).pins] == [0, 1]


def test_a_pin_cuts_the_text_that_a_run_has_there() -> None:
    tail = ("You grade essays strictly. Essay: ", "of the sea", "\n", "Judge its clarity.")
    head, rest = ("You grade essays strictly. Essay: ", "of the sea", "\n"), ("Judge its clarity.",)
    program, fork = table(JUDGE).at("/0.0", 0).pins
    assert program.cut(tail) == (tail[:1], tail[1:]) and program.cut(("".join(tail),)) == (tail[:1], ("".join(tail[1:]),))
    assert fork.cut(tail[1:]) == (head[1:], rest)
    assert fork.cut(("".join(tail[1:]),)) == (("".join(head[1:]),), rest)
    assert fork.cut((*tail[1:3], "Judge its evidence.")) is None and program.cut(("You grade",)) is None


def test_the_first_request_of_a_loop_names_the_pin_before_it() -> None:
    """An agent's examples are before its turns, of which the graph knows no number."""
    found = table("""
            %c0 = ctx.new()
            %c1 = append(%c0, "You are an agent. These are examples.")
            loop(%essay, %c1) [_ -> ^turn] then ^read
        ^turn(%c2: ctx):
            %c3 = append(%c2, "Thought: ")
            %c4, %x, %m0 = gen(%c3) {name = "thought", stream = "", ordinal = 0} loc("agent.py":7)
            yield(%c4)
        ^read(%c5: ctx):
            return(none, %c5)
    """, kind="tokens", params="%essay: any")  # fmt: skip
    assert found.at("", 0).pins == (Pin(0, ("You are an agent. These are examples.",), ("Thought: ",), shared=True),)
    assert found.at("", 1, Loc("agent.py", 7)).pins == ()


def test_a_cut_never_divides_what_is_not_text() -> None:
    pin = Pin(0, (Special("<s>"), Mark("user", "begin"), "a", None), ("b",))
    tail = (Special("<s>"), Mark("user", "begin"), "a", Special("<x>"), "b")
    assert pin.cut(tail) == (tail[:4], ("b",))
    assert pin.cut(("<s>", Mark("user", "begin"), "ab")) is None
    assert Pin(0, (None, "s"), (None,)).cut((Special("x"),)) is None and Pin(0, (None, "begin", None), ()).cut((Mark("user", "begin"),)) is None


def test_a_group_that_python_waits_in_is_one_only_if_it_is_asked_ahead() -> None:
    """The second branch is asked behind a read of the first: a backend would wait in vain for both of a group."""
    found = table("""
        %c0 = ctx.new()
        %c1 = append(%c0, "Judge it.")
        %f1, %x, %m0 = gen(%c1) {stream = "/0.0", ordinal = 0}
        %n = py.int(%x)
        %g1, %y, %m1 = gen(%c1) {stream = "/0.1", ordinal = 0}
        %o = py.int(%y)
        return(none, %c0)
    """, "batch-forks").at("/0.1", 0)  # fmt: skip
    assert found.group == (0, 2) and not found.together
    assert found.hints(Hints(), item=0, run=0).group is None
    assert found.hints(Hints(), item=0, run=0, ahead=True)[2:5] == ((0, 0), 2, (1, 2))


def test_merged_asks_name_the_one_whose_answer_they_may_have() -> None:
    found = table("""
        %c0 = ctx.new()
        %c1 = append(%c0, "Judge it.")
        %f1, %x, %m0 = gen(%c1) {stream = "/0.0", ordinal = 0, temperature = 0.0}
        %g1, %y, %m1 = gen(%c1) {stream = "/0.1", ordinal = 0, temperature = 0.0}
        %t = concat(%x, %y)
        return(%t, %c0)
    """)  # fmt: skip
    assert found.at("/0.1", 0).same_as == ("/0.0", 0) and found.at("/0.0", 0).same_as is None


def test_what_nobody_reads_is_lazy() -> None:
    found = table("""
        %c0 = ctx.new()
        %f1, %x, %m0 = gen(%c0) {stream = "/0.0", ordinal = 0}
        %c1, %y, %m1 = gen(%c0) {stream = "", ordinal = 0}
        return(%y, %c1)
    """)  # fmt: skip
    assert found.at("/0.0", 0).lazy and not found.at("", 0).lazy


CHAIN = """
    %c1, %x, %m0 = gen(%c0) {name = "x", stream = "", ordinal = 0, stop = "\\n"} loc("a.py":1)
    %c2 = append(%c1, "\\nBorn:")
    %c3, %y, %m1 = gen(%c2) {name = "y", stream = "", ordinal = 1, stop = ["\\n", "."], max_tokens = 9} loc("a.py":2)
    %c4 = append(%c3, "\\nJob:")
    %c5, %z, %m2 = gen(%c4) {name = "z", stream = "", ordinal = 2} loc("a.py":3)
    return(%z, %c5)
"""


def test_a_template_says_how_far_one_request_may_go() -> None:
    found = table(CHAIN, params="%c0: ctx", kind="chat").at("", 0)
    assert found.covers == (Covered("\nBorn:", 9, ("\n", ".")), Covered("\nJob:"))
    assert found.hints(Hints(), item=0, run=0, max_tokens=20, stop=("END",)).beyond == Beyond(6 + 9 + 5 + 20, 2, ("END",))
    assert found.hints(Hints(), item=0, run=0, max_tokens=20, stop=("Job",)).beyond == Beyond(40, 2, ())


ARMS = """
    switch(%k) [true -> ^a, _ -> ^b] then ^on
  ^a:
    %c1, %x, %m0 = gen(%c0) {stream = "", ordinal = 0, regex = "[A-D]"} loc("a.py":3)
    yield(%c1)
  ^b:
    %c2, %y, %m1 = gen(%c0) {stream = "", ordinal = 0} loc("a.py":5)
    yield(%c2)
  ^on(%c3: ctx):
    %c4, %z, %m2 = gen(%c3) {stream = "", ordinal = 1, shifted = true, regex = "[A-D]+-?"} loc("a.py":6)
    return(%z, %c4)
"""


def test_arms_with_one_address_are_told_apart_by_their_lines() -> None:
    found = table(ARMS, params="%c0: ctx, %k: bool")
    assert found.at("", 0, Loc("a.py", 3)).reserve == 2
    assert found.at("", 0, Loc("a.py", 5)).reserve is None


def test_where_the_address_is_undecided_the_line_still_says_something() -> None:
    found = table(ARMS, "lower-constraint", params="%c0: ctx, %k: bool")
    assert found.at("", 1) is NOTHING
    elsewhere = found.at("", 7, Loc("a.py", 3))
    assert elsewhere.reserve == 2 and elsewhere.order is None and elsewhere.group is None
    assert found.at("", 0, Loc("a.py", 99)) is NOTHING


@pytest.mark.parametrize(("gone", "left"), [("prefill(%c1)", 1), ('prefill(%c2) {scope = "program"}', 1), ("none", 2)])
def test_an_edit_of_the_dumped_graph_changes_what_the_ledger_finds(gone: str, left: int) -> None:
    text = print_graph(planned(JUDGE))
    lines = [line for line in text.splitlines() if not line.strip().startswith(gone)]
    assert len(annotate(parse("\n".join(lines))).at("/0.0", 0).pins) == left


def test_a_planner_annotates_the_graph_that_it_has() -> None:
    """Drawn of the program before any run, for examples, or adopted as it was edited."""
    program = lmc.compile(panel, backend=lmc.Mock())
    assert program.backend is not None

    def found() -> Annotations:
        return program.planner.annotations(program.backend, False)  # type: ignore[arg-type]

    assert found().at("/0.1", 0).group == (0, 3) and found() is found()
    program.lower(n=2)
    assert found().at("/0.1", 0).group == (0, 2)
    text = print_graph(program.graph())
    program.planner.adopt(parse(text.replace('stream = "/0.1", ordinal = 0', 'stream = "/0.1", ordinal = 0, shifted = true')))
    assert found().at("/0.0", 0).group is None


@lmc.function
def panel(s, n=3):
    s += "A question that all of the panel get."
    for f in s.fork(n):
        f += lmc.gen("x")
        f += str(f["x"])


def test_a_fault_in_drawing_a_program_costs_its_plan_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("lmc.runahead.planning.graph_of", Planted(side_effect=RuntimeError("planted")))
    assert "question" in lmc.compile(panel, backend=lmc.Mock())(n=1).text()
    assert "runs without a plan" in caplog.text
