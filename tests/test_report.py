"""A run for people: its requests as text and on pages, and a batch in a terminal."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import lmc
from lmc import pages, run_records
from lmc.backend.results import Output, Result
from lmc.backend.usage import Usage
from lmc.cli.live import BatchView
from lmc.frontend import notebook
from lmc.prompt import Prompt
from lmc.segments import Special


@lmc.host
def look_up(word: str) -> str:
    return word.upper()


@lmc.function
def program(s: Any, q: str) -> Any:
    s += lmc.system("Be brief.") + lmc.user(q) + lmc.assistant(lmc.gen("one", max_tokens=6))
    forks = s.fork(2)
    for f in forks:
        f += lmc.user("Again.") + lmc.assistant(lmc.gen("side", max_tokens=6))
    s += lmc.user(look_up("more") + forks[0]["side"]) + lmc.assistant(lmc.gen("two", max_tokens=6))
    return s["two"]


def test_requests_of_a_run_have_branches_lines_and_times_in_order() -> None:
    state = lmc.compile(program, backend=lmc.Mock(latency=0.001))(q="Why?")
    state.sync()
    ran = run_records.of_state(state)
    assert [(r.name, bool(r.branch)) for r in ran.requests] == [("one", False), ("side", True), ("side", True), ("two", False)]
    assert [name for name, _, _ in ran.tools] == ["look_up"]
    for r in ran.requests:
        assert r.ended is not None and ran.began <= r.result.began <= r.known <= r.ended <= ran.end
    text = state.explain()
    assert "4 requests" in text and "test_report.py:" in text and "(branch " in text
    with pytest.raises(lmc.ParameterError, match="'text' or 'html'"):
        state.explain("pdf")


def test_an_interpreted_run_has_its_lines_and_branches() -> None:
    state = program.run("Why?", backend=lmc.Mock())
    told = lambda ran: sorted((r.kind, r.name, r.branch, str(r.loc)) for r in ran.requests)
    compiled = lmc.compile(program, backend=lmc.Mock(), opt=0)("Why?")
    compiled.sync()
    assert told(run_records.of_state(state)) == told(run_records.of_state(compiled)) != []
    assert "<section id=source>" in state.explain("html") and "test_report.py:" in state.explain()


def test_a_page_without_the_state_has_the_answers() -> None:
    compiled = lmc.compile(program, backend=lmc.Mock(answers={"two": "<i>end"}))
    state = compiled(q="a question of its own")
    state.sync()
    assert "a question of its own" in compiled.explain("html")
    del state
    page = compiled.explain("html")
    assert "a question of its own" not in page and "&lt;i&gt;end" in page


def test_what_was_forced_and_what_was_shared_is_marked_in_the_text() -> None:
    result = Result()
    result.finish(Output(('{"a": <1>}',), ({},), Usage(10, 8, 5, 4, 1, 1), forced=((0, 6), (9, 10))))
    assert '<span class="f">{&quot;a&quot;: </span>&lt;1&gt;<span class="f">}</span>' in notebook.answer_html(result, "x")

    first, then = Result(), Result()
    first.finish(Output(("yes",), ({},), Usage(26, 3, 22, 0, 1, 1)))
    then.finish(Output(("no",), ({},), Usage(39, 2, 29, 0, 1, 1)))
    asked = Prompt(Prompt().append("The same words first. ", "Two."), (), first)
    state: Any = SimpleNamespace(variables={}, ctx=Prompt(asked.append("New words."), (), then))
    html = notebook.conversation(state, {}, set())
    assert '<span class="k">The same words first. </span>Two.' in html, "22 of the first 26 tokens were cached"
    assert ">New words." in html and html.count('class="k"') == 1, "29 are what was there before"


def test_a_special_token_counts_as_one_where_the_shared_part_ends() -> None:
    result, special = Result(), Special("<|im_end|>")
    result.finish(Output(("yes",), ({},), Usage(13, 3, 9, 0, 1, 1)))
    asked = Prompt(Prompt().append(special, "shared", special, special, "new."), (), result)
    html = notebook.conversation(SimpleNamespace(variables={}, ctx=asked), {}, set())  # pyright: ignore[reportArgumentType]
    assert '<span class="k">shared</span>' in html and html.count('class="k"') == 1 and "new." in html


def test_templates_are_left_out_of_a_conversation_and_text_is_not() -> None:
    @lmc.function
    def mixed(s: Any) -> None:
        s += "outside " + lmc.user("inside") + lmc.assistant(lmc.gen("x", max_tokens=2)) + " behind"

    html = mixed.run(backend=lmc.Mock())._repr_html_()
    assert "outside" in html and "inside" in html and "behind" in html
    assert "im_start" not in program.run("Why?", backend=lmc.Mock())._repr_html_()


@pytest.mark.parametrize(
    ("amount", "shown"), [(0, "$0.00"), (12.345, "$12.35"), (1, "$1.00"), (0.25, "$0.25"), (0.00029, "$0.00029"), (9.4e-05, "$0.000094"), (1e-06, "$0.0000010")]
)
def test_prices_are_written_out(amount: float, shown: str) -> None:
    assert pages.money(amount) == shown


@pytest.mark.parametrize("end", [1e-6, 0.0123, 0.142, 1.0, 9.99, 60.0, 4321.0])
def test_a_timeline_has_a_few_round_marks(end: float) -> None:
    ticks = list(pages._ticks(end))
    assert 2 <= len(ticks) <= 7 and ticks[0] == 0 and ticks == sorted(ticks) and ticks[-1] <= end


def test_a_batch_in_a_terminal_says_what_it_does_in_few_lines() -> None:
    class Full(lmc.Mock):
        def server_info(self) -> dict[str, Any]:
            return {"waiting": 2, "running": 5, "slots": 100, "free_slots": 40, "evictable_tokens": 20, "programs": {"judge": 40}}

    def boom(prompt: str, ask: Any) -> str:
        raise ValueError("no")

    mock = Full(answers={"two": lambda prompt, ask: boom(prompt, ask) if "bad" in prompt else "fine"})
    now = iter([0.0, 0.0, 1.0])
    view = BatchView(3, mock, lambda: next(now))
    first = io.StringIO()
    Console(file=first, width=80, force_terminal=False).print(view)
    assert "0, – a second" in first.getvalue(), "no rate before there is time for one"
    for _, state in lmc.compile(program, backend=mock).as_completed([{"q": "a"}, {"q": "bad"}]):
        view.took(state)
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=False).print(view)
    text = out.getvalue()
    assert len(text.splitlines()) <= 8 and all(len(line) <= 80 for line in text.splitlines())
    assert "2/3" in text and "2 waiting, 5 in the batch" in text and "40% of 100 tokens in use, judge 40" in text
    assert f"{mock.counters().calls}, " in text and "errors" in text and text.rstrip().endswith("1")
