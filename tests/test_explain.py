"""What `explain` shows: costs that belong to the right op, by runs that really happened, in a page that is safe to open."""

from __future__ import annotations

import gc
import json
import re
import weakref
from typing import Any

import pytest

import lmc
from lmc import measured
from lmc.backend.base import Result
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
    (trace,) = json.loads(program.explain(format="json"))["traces"]
    return [op for op in trace["ops"] if op["op"] in ("gen", "select")]


def test_costs_belong_to_the_op_on_the_path_that_each_run_took() -> None:
    answers = {"kind": lambda text, _: "long" if "1" in text else "short", "answer": lambda _, ask: "x" * ask.params.max_new_tokens}
    program = lmc.compile(ask, backend=lmc.Mock(answers=answers))
    program(q="1")
    program.batch([{"q": q} for q in ("1", "2", "1")])
    select, *gens = _asks(program)
    assert select["measured"]["count"] == 4 and select["critical"]
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


def test_nothing_is_known_before_a_run_but_what_is_expected() -> None:
    program = lmc.compile(ask, backend=lmc.Mock())
    program.lower(q="x")
    assert all("measured" not in op and "expected" in op for op in _asks(program))
    assert "passes of the model, as expected" in program.explain()


def test_ways_out_are_counted_with_their_reasons() -> None:
    @lmc.function
    def odd(s, q):
        s += q + lmc.gen("a", max_tokens=4)
        raise ValueError(s["a"])

    program = lmc.compile(odd, backend=lmc.Mock())
    for state in program.batch([{"q": "x"}, {"q": "y"}], errors="return"):
        assert isinstance(state.error(), ValueError)
    (trace,) = json.loads(program.explain(format="json"))["traces"]
    assert all(reason in program.explain(format="html") for reason in trace["replayed"])


def test_the_ledger_is_bounded_and_keeps_no_answer_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "RUNS_KEPT", 3)
    program = lmc.compile(ask, backend=lmc.Mock())
    program.batch([{"q": f"question {i}"} for i in range(10)])
    (traced,) = program.traces()
    assert len(traced.ledger) == 3 and traced.ledger.runs == 10

    class Watched(Result):
        __slots__ = ("__weakref__",)

    for done in (False, True):
        result = Watched()
        if done:
            result.fail(ValueError())
        pending = measured.Pending(result)
        gone = weakref.ref(result)
        del result
        gc.collect()
        assert gone() is None and pending.spent is None


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


def test_a_program_that_nothing_is_captured_of_says_so() -> None:
    scope: dict[str, Any] = {}
    exec("def sourceless(s, q):\n    s += q", scope)
    program = lmc.compile(lmc.function(scope["sourceless"]), backend=lmc.Mock())
    with pytest.warns(lmc.CaptureWarning):
        program(q="x")
    assert "Runs in the interpreter" in program.explain(format="html")


def test_every_box_leads_to_a_row() -> None:
    program = lmc.compile(ask, backend=lmc.Mock())
    program(q="x")
    page = program.explain(format="html")
    ids = set(re.findall(r'id="?([\w-]+)', page))
    assert set(re.findall(r'href="#([\w-]+)"', page)) <= ids


def test_boxes_of_a_real_program_are_apart() -> None:
    from lmc.ir.layout import picture

    assert apart(picture(lmc.compile(ask, backend=lmc.Mock()).graph()))
