"""`adapter=`: of a gen, a select and a run; in graphs, guesses and journals; refused where there is none. The engine's: backend/engine/test_lora.py."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import lmc
from lmc.backend.mock import CAPABILITIES, Mock
from lmc.durable import checks
from lmc.errors import ArgumentError, JournalError, ParameterError, UnsupportedOpError
from lmc.segments import ChoicesMethod, Gen, SamplingParams, Select

WITHOUT = replace(CAPABILITIES, adapters=())
WITH_TWO = replace(CAPABILITIES, adapters=("sql", "tone"))


@lmc.function
def report(s, q, name="sql"):
    s += lmc.user(q) + lmc.assistant(lmc.gen("query", adapter=name, max_tokens=20))
    s += lmc.user("One?") + lmc.assistant(lmc.select("count", choices=["one", "several"], adapter="tone"))
    if s["count"] == "one":
        s += lmc.user("Once more.")
    s += lmc.assistant(lmc.gen("answer", max_tokens=20))


def asked(mock: Mock) -> list[tuple[str | None, str]]:
    return [(c.name, c.ask.adapter if isinstance(c.ask, Select) else c.ask.params.adapter) for c in mock.call_log]


@pytest.mark.parametrize("run", [report.run, lmc.compile(report)], ids=["run", "compiled"])
def test_a_gen_a_select_and_a_run_have_one(run):
    mock = Mock()
    run("a", backend=mock, temperature=0).text()
    assert asked(mock) == [("query", "sql"), ("count", "tone"), ("answer", "")]
    mock = Mock()
    run("a", name="", backend=mock, temperature=0, adapter="own").text()
    assert asked(mock) == [("query", ""), ("count", "tone"), ("answer", "own")]


def test_selects_and_sub_programs_have_the_runs():
    @lmc.function
    def child(s):
        s += "c" + lmc.gen("x", max_tokens=4)

    @lmc.function
    def parent(s):
        s += "p" + lmc.select("y", choices=["a", "b"]) + child()["x"] + lmc.gen("z", choices=["c", "d"], adapter="other")

    mock = Mock()
    parent.run(backend=mock, adapter="own").text()
    assert sorted(asked(mock)) == [("x", "own"), ("y", "own"), ("z", "other")]


def test_an_adapter_answers_otherwise_and_the_model_as_ever():
    gen = lmc.function(lambda s, name: s.__iadd__("a" + lmc.gen("x", max_tokens=30, adapter=name)))
    mock = Mock()
    found = {name: gen.run(name, backend=mock, temperature=0)["x"] for name in (None, "", "sql", "tone")}
    assert found[None] == found[""] and len(set(found.values())) == 3


def test_compiled_runs_ask_the_same():
    logs = []
    for run in (report.run, lmc.compile(report, ahead="off"), lmc.compile(report, ahead="likely")):
        mock = Mock(latency=0.003)
        state = run("a", backend=mock, temperature=0)
        assert state.usage.ahead_wasted == 0
        logs.append((state.text(), mock.call_log))
    assert logs[0] == logs[1] == logs[2]


def test_batches_share_a_pinned_beginning_for_each_adapter():
    @lmc.function
    def long(s, name):
        s += "A beginning that every run of this program has in common, long enough to be worth a pin. " + lmc.gen("x", max_tokens=5, adapter=name)

    class Watched(Mock):
        prefilled: list[str]

        def prefill(self, parent, segments, hints=None):
            self.prefilled.append(hints.adapter)
            return super().prefill(parent, segments, hints)

    mock = Watched(capabilities=replace(CAPABILITIES, local=True))
    mock.prefilled = []
    lmc.compile(long).batch([{"name": name} for name in ("sql", "", "sql", "tone")], backend=mock)
    assert sorted(mock.prefilled) == ["", "sql", "tone"]


def test_graphs_show_it():
    text = lmc.compile(lmc.function(lambda s, name: s.__iadd__(lmc.gen("x", adapter=name)))).dump_ir()
    assert re.search(r'gen\(%\w+, %name\) \{.*params = \["adapter"\]', text)
    whole = lmc.compile(report).dump_ir()
    assert re.search(r'gen\(.*name = "query".*adapter = "sql"\}', whole) and re.search(r'select\(.*name = "count".*adapter = "tone"', whole)
    assert whole.count("adapter = ") == 2
    from lmc.ir.parser import parse
    from lmc.ir.text import print_graph

    assert [print_graph(parse(t)) for t in (text, whole)] == [text, whole]


def test_requests_of_different_adapters_are_different():
    gens = [Gen(SamplingParams(adapter=name)) for name in ("", "a", "b")]
    selects = [Select(("x", "y"), ChoicesMethod.GREEDY_TOKEN_SELECTION, adapter=name) for name in ("", "a", "b")]
    for every in (gens, selects):
        assert [[x == y for x in every] for y in every] == [[i == j for i in range(3)] for j in range(3)]
        assert len({checks.of_ask(1, 2, ask) for ask in every}) == 3


def test_journals_of_before_there_were_adapters_are_still_known():
    """The checksums of requests without one have not changed."""
    assert checks.of_ask(1, 2, Gen(SamplingParams(max_new_tokens=7, temperature=0.0), name="x")) == 463197103
    assert checks.of_ask(1, 2, Select(("x", "y"))) == 650042483


def test_a_journal_knows_which_adapter_has_answered(tmp_path):
    @lmc.function
    def one(s, stop):
        s += "a" + lmc.gen("x", max_tokens=8, adapter=names[0])
        s["x"]
        if stop:
            raise KeyboardInterrupt
        s += lmc.gen("y", max_tokens=8, adapter="tone")

    names = ["sql"]
    mock = Mock()
    path = str(tmp_path / "run")
    first = one.run(False, backend=mock, journal=path, temperature=0)
    again = one.run(False, backend=mock, journal=path, temperature=0)
    assert again.text() == first.text() and len(mock.call_log) == 2
    names[0] = "tone"
    with pytest.raises(JournalError):
        one.run(False, backend=mock, journal=path, temperature=0)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_backend_without_adapters_refuses_before_it_is_asked(compiled):
    run = lmc.compile(report) if compiled else report.run
    mock = Mock(capabilities=WITHOUT)
    with pytest.raises(UnsupportedOpError, match=r"gen with adapter='sql': .*lmc.Engine\(adapters=") as caught:
        run("a", backend=mock)
    assert caught.value.loc is not None and caught.value.loc.file == __file__
    assert not mock.call_log
    choose = lmc.function(lambda s: s.__iadd__(lmc.select("x", choices=["a", "b"], adapter="sql")))
    with pytest.raises(UnsupportedOpError, match="select with adapter='sql'"):
        choose.run(backend=mock)
    with pytest.raises(UnsupportedOpError, match="with adapter='own'"):
        lmc.function(lambda s: s.__iadd__(lmc.gen("x"))).run(backend=mock, adapter="own")


def test_a_name_that_a_backend_has_not_is_refused_with_those_that_it_has():
    mock = Mock(capabilities=WITH_TWO)
    with pytest.raises(ParameterError, match="adapter='sq': mock has no adapter of that name; did you mean 'sql'"):
        report.run("a", name="sq", backend=mock)


@pytest.mark.parametrize("bad", [3, ["sql"], b"sql", True])
def test_what_is_no_name_is_refused_at_the_line(bad):
    for make in (lambda: lmc.gen("x", adapter=bad), lambda: lmc.select("x", choices=["a"], adapter=bad)):
        with pytest.raises(ArgumentError, match=r"adapter=.*must be the name of an adapter") as caught:
            make()
        assert caught.value.loc is not None and caught.value.loc.file == __file__
    mock = Mock()
    with pytest.raises(ArgumentError, match="adapter="):
        report.run("a", backend=mock, adapter=bad)
    mock = Mock()
    with pytest.raises(ArgumentError, match="adapter="):
        report.run("a", name=bad, backend=mock)
