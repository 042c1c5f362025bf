"""`explain` shows costs that belong to the right op, by runs that really happened, in a page that is safe to open."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

import lmc
from tests.backend.gated import Gated
from tests.ir.test_layout import apart


@lmc.function
def ask(s, q):
    s += lmc.user(q) + lmc.assistant(lmc.select("kind", choices=["long", "short"]))
    if s["kind"] == "long":
        s += lmc.user("Explain.") + lmc.assistant(lmc.gen("answer", max_tokens=30))
    else:
        s += lmc.user("Say it.") + lmc.assistant(lmc.gen("answer", max_tokens=5))
    return s["answer"]


@lmc.function
def nasty(s, q):
    s += lmc.user(q + "</script><img src=x onerror=alert(1)>\"'`${x}") + lmc.assistant(lmc.gen("</b>", stop="</svg>"))


def _asks(program: lmc.Program) -> list[dict[str, Any]]:
    return [op for op in json.loads(program.explain(format="json"))["ops"] if op["op"] in ("gen", "select")]


def test_costs_belong_to_the_op_on_the_path_that_each_run_took() -> None:
    answers = {"kind": lambda text, _: "long" if "1" in text else "short", "answer": lambda _, ask: "x" * ask.params.max_new_tokens}
    program = lmc.compile(ask, backend=lmc.Mock(answers=answers))
    program(q="1")
    program.batch([{"q": q} for q in ("1", "2", "1")])
    select, *gens = _asks(program)
    assert select["measured"]["count"] == 4 and select["critical"]
    assert "its requests have a *." in program.explain() and "select kind *: " in program.explain()
    by_line = {op["source"]: op["measured"] for op in gens}
    long, short = (next(m for source, m in by_line.items() if word in source) for word in ("Explain", "Say"))
    assert (long["count"], long["generated"]) == (3, 90) and (short["count"], short["generated"]) == (1, 5)
    assert long["seconds"] >= 0 and long["prompt"] > long["cached"] > 0


def test_the_sum_over_the_ops_is_what_the_backend_counted() -> None:
    mock = lmc.Mock()
    program = lmc.compile(ask, backend=mock)
    program.batch([{"q": f"question {i}"} for i in range(20)])
    seen = [op["measured"] for op in _asks(program) if "measured" in op]
    counted = mock.counters()
    assert sum(m["count"] for m in seen) == counted.calls
    assert sum(m["prompt"] for m in seen) == counted.prompt_tokens
    assert sum(m["generated"] for m in seen) == sum(len(c.answer) for c in mock.call_log if c.params is not None)


def test_what_a_prefix_cache_would_have_had_is_told_apart_from_what_answers_say() -> None:
    """The mock's answers do not depend on what else was asked, so its counters find more in the cache than they."""
    program = lmc.compile(ask, backend=lmc.Mock())
    states = program.batch([{"q": f"question {i}"} for i in range(3)])
    counted = program.stats.counters
    assert counted.prompt_tokens == counted.cached_tokens + counted.prefilled_tokens
    assert counted.cached_tokens > sum(state.usage.cached_tokens for state in states)
    assert lmc.Mock.counts_alone in program.explain() and lmc.Mock.counts_alone in program.explain(format="html")


def test_runs_on_the_default_backend_are_counted() -> None:
    lmc.set_default_backend(lmc.Mock())
    try:
        program = lmc.compile(ask)
        assert "so far: not run" in program.explain()
        program.batch([{"q": "1"}, {"q": "2"}])
    finally:
        lmc.set_default_backend(None)
    assert (program.stats.runs, program.stats.counters.calls) == (2, 4)
    assert "so far: 2 runs" in program.explain()


def test_a_call_that_returned_before_its_answers_is_explained_with_them() -> None:
    @lmc.function
    def two(s):
        s += "a" + lmc.gen("x", max_tokens=4) + "b" + lmc.gen("y", max_tokens=3)

    program = lmc.compile(two, backend=lmc.Mock(latency=0.05))
    program()
    for _ in range(2):  # at once, and when nothing is pending any more
        shown = program.explain()
        assert re.search(r"last call: .*2 requests.*\n    7 prompt tokens: 5 from the cache, 2 computed.*\n(.*mock.*\n)?    7 tokens generated", shown)
        assert re.search(r"gen y \*: .* 1 time, [0-9.]+ m?s: 6 tokens in \(5 cached\), 3 out", shown)


def test_stats_of_a_call_that_returned_before_its_answers_have_all_of_them() -> None:
    @lmc.function
    def two(s, q):
        s += q + lmc.gen("x", max_tokens=4) + "b" + lmc.gen("y", max_tokens=3)

    for call in (lmc.Program.__call__, lmc.Program.stream):
        gate = Gated()
        program = lmc.compile(two, backend=gate)
        state = call(program, q="a")
        gate.open()
        state.sync()
        found = program.stats
        assert (found.runs, found.counters.calls, found.counters.prompt_tokens, found.counters.generated_tokens) == (1, 2, 7, 7)
        program.batch([{"q": "c"}, {"q": "d"}])
        assert (program.stats.runs, program.stats.counters.calls) == (3, 4)


@pytest.mark.parametrize("look", [lambda program: program.stats.runs, lambda program: "1 run" in program.explain(), lambda program: program._repr_html_()])
def test_what_is_known_of_runs_is_looked_at_in_async_code_without_waiting(look: Any) -> None:
    """An event loop would be blocked: the answer here never comes while it is."""

    @lmc.function
    def one(s):
        s += "a" + lmc.gen("x", max_tokens=4)

    gate = Gated()
    program = lmc.compile(one, backend=gate)

    async def main() -> None:
        state = program()
        assert look(program) and gate.waiting == 1
        gate.open()
        state.sync()

    asyncio.run(main())


def test_nothing_is_known_before_a_run_but_what_is_expected() -> None:
    program = lmc.compile(ask, backend=lmc.Mock())
    program.lower(q="x")
    assert all("measured" not in op and "expected" in op for op in _asks(program))
    assert "passes of the model, by the plan" in program.explain()


def test_arms_have_the_counts_of_the_runs_that_took_them() -> None:
    answers = {"kind": lambda text, _: "long" if "1" in text else "short", "answer": lambda *_: "x"}
    program = lmc.compile(ask, backend=lmc.Mock(answers=answers))
    assert not any("taken" in op["text"] for op in json.loads(program.explain(format="json"))["ops"])
    program.batch([{"q": q} for q in ("1", "2", "1")])
    (switch,) = [op for op in json.loads(program.explain(format="json"))["ops"] if op["op"] == "switch"]
    assert "{taken = [2, 1]}" in switch["text"]


@lmc.function
def turning(s, docs):
    for doc in docs:
        s += doc + lmc.gen("x", max_tokens=2)
    if "zz" in s["x"]:
        return None
    s += "end" + lmc.gen("y", max_tokens=2)


@lmc.function
def leaving(s, q):
    s += q + lmc.gen("x", max_tokens=2)
    if "zz" in s["x"]:
        return None
    s += "end" + lmc.gen("y", max_tokens=2)


def test_turns_of_a_loop_are_one_op_and_an_arm_that_asks_nothing_is_counted() -> None:
    program = lmc.compile(turning, backend=lmc.Mock(), ahead="off")
    program(docs=["a", "b", "c"])
    program(docs=["a"])
    assert ", no runs</span>" in program.explain(format="html"), "of the silent arm, which no run took"
    turn, end = _asks(program)
    assert turn["measured"]["count"] == 4 and end["measured"]["count"] == 2
    found = json.loads(program.explain(format="json"))
    assert any("{taken = [0, 2]}" in op["text"] for op in found["ops"])
    (silent,) = [op["block"] for op in found["ops"] if op["op"] == "return" and "%y" not in op["text"]]
    assert found["blocks"][silent] == 0
    mixed = lmc.compile(leaving, backend=lmc.Mock(answers={"x": lambda prompt, _: prompt[-2:]}), ahead="off")
    mixed(q="zz").sync()
    assert mixed.explain(format="html").count("1 op, 1 run</span>") == 1 and ", no runs</span>" in mixed.explain(format="html")
    mixed(q="ab").sync()
    assert ", no runs</span>" not in mixed.explain(format="html")


def test_lines_that_the_graph_does_not_show_are_counted_apart() -> None:
    scope: dict[str, Any] = {"lmc": lmc}
    exec(compile("def hidden(s):\n    s += lmc.gen('h', max_tokens=2)", "<no source>", "exec"), scope)
    hidden = scope["hidden"]

    @lmc.function
    def program(s, q):
        s += q + lmc.gen("a", max_tokens=2)
        hidden(s)

    compiled = lmc.compile(program, backend=lmc.Mock())
    compiled(q="x").sync()
    assert "Asked by lines that the graph does not show" in compiled.explain(format="html")
    assert "calls that cannot be followed: hidden" in compiled.explain()


def test_what_was_asked_ahead_is_told() -> None:
    program = lmc.compile(ask, backend=lmc.Mock())
    program(q="x")
    assert re.search(r"so far: 1 run; \d+ requests? asked ahead \(certain\), \d+ used, \d+ wasted", program.explain())
    assert set(json.loads(program.explain(format="json"))["ahead"]) == {"asked", "used", "wasted"}


def test_a_page_escapes_what_a_program_says_and_asks_nobody() -> None:
    program = lmc.compile(nasty, backend=lmc.Mock())
    program(q="x")
    for text in (program.explain(format="html"), program._repr_html_()):
        assert "<img" not in text and "&lt;img" in text
        assert not re.search(r"://|\ssrc=|@import|url\(", text.replace(" src=x onerror", ""))
    page = program.explain(format="html")
    assert page.count("<script") == page.count("</script") == 1
    assert "<script" not in program._repr_html_()


def test_a_program_and_its_graph_show_themselves_in_a_notebook() -> None:
    program = lmc.compile(ask, backend=lmc.Mock())
    assert "<svg" in program._repr_html_() and "<svg" in program.graph()._repr_html_()


def test_a_program_without_source_says_that_nothing_of_it_is_known() -> None:
    scope: dict[str, Any] = {}
    exec("def sourceless(s, q):\n    s += q", scope)
    program = lmc.compile(lmc.function(scope["sourceless"]), backend=lmc.Mock())
    program(q="x")
    assert "the evaluation stopped" in program.explain()


def test_every_box_leads_to_a_row() -> None:
    program = lmc.compile(ask, backend=lmc.Mock())
    program(q="x")
    page = program.explain(format="html")
    ids = set(re.findall(r'id="?([\w-]+)', page))
    assert set(re.findall(r'href="#([\w-]+)"', page)) <= ids


def test_boxes_of_a_real_program_are_apart() -> None:
    from lmc.ir.layout import picture

    assert apart(picture(lmc.compile(ask, backend=lmc.Mock()).graph()))
