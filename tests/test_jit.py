"""lmc.compile as its users meet it: options, guards, growing trees, what is said when something is not captured."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from lmc.chat import RoleTemplate
from lmc.errors import ArgumentError, CaptureWarning, ParameterError, ProgramError
from lmc.jit.traced import MAX_ARMS
from lmc.jit.trees import MAX_TREES
from tests.conformance.harness import conform, effect


@lmc.function
def classify(s: Any, text: str, polite: bool = True) -> str:
    s += lmc.system("Be brief.") if polite else ""
    s += lmc.user(text) + lmc.assistant(lmc.select("label", choices=["good", "bad"]))
    if s["label"] == "good":
        s += lmc.user("Why?") + lmc.assistant(lmc.gen("why", max_tokens=8))
    notes = s.fork(1)[0]
    notes += lmc.gen("note", max_tokens=8)
    s["note"] = notes["note"].upper()
    return s["label"]


def test_options_are_checked():
    with pytest.raises(ArgumentError, match="takes a function decorated with"):
        lmc.compile(lambda s: None)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="opt=3"):
        lmc.compile(classify, opt=3)
    with pytest.raises(ArgumentError, match="backend=3: a backend such as"):
        lmc.compile(classify, backend=3)  # type: ignore[arg-type]
    fast = lmc.compile(classify, backend=Mock())
    with pytest.raises(ArgumentError, match="text"):
        fast()
    with pytest.raises(ArgumentError, match="no parameter 'txt'"):
        fast(txt="a")
    with pytest.raises(ArgumentError, match="budget"):
        fast.call({"text": "a"}, budget=3)
    with pytest.raises(ArgumentError, match="item 1 of the batch"):
        fast.batch([{"text": "a"}, {"tex": "b"}])
    with pytest.raises(ParameterError, match="errors='ignore'"):
        fast.batch([{"text": "a"}], errors="ignore")
    with pytest.raises(ArgumentError, match="backend=3: a backend such as"):
        fast(text="a", backend=3)
    with pytest.raises(ArgumentError, match="seed='q'"):
        fast(text="a", seed="q")
    with pytest.raises(ParameterError, match="a list of names"):
        lmc.compile(classify, outputs="label")
    assert fast.batch([]) == []


def test_a_parameter_may_share_a_name_with_an_option():
    @lmc.function
    def sample(s: Any, temperature: str, seed: str) -> None:
        s += temperature + seed + lmc.gen("x", max_tokens=2)

    fast = lmc.compile(sample, backend=Mock())
    assert fast(temperature="warm", seed="oak").text().startswith("warmoak")
    mock = Mock()
    fast.call({"temperature": "cold", "seed": "elm"}, temperature=0, backend=mock)
    assert mock.call_log[0].params.temperature == 0


def test_sampling_defaults_reach_the_gens():
    fast, mock = lmc.compile(classify), Mock()
    fast(text="a", backend=mock, temperature=0.3, top_k=5, max_new_tokens=3)
    gens = [c for c in mock.call_log if c.params is not None]
    assert {(c.params.temperature, c.params.top_k) for c in gens} == {(0.3, 5)}
    assert {c.params.max_new_tokens for c in gens} == {8}


@pytest.mark.parametrize("call", [lambda p: p("x"), lambda p: p.batch([{"text": "x"}]), lambda p: p.lower(text="x"), lambda p: asyncio.run(p.acall("x"))])
def test_outputs_that_nothing_makes_are_refused_before_anything_is_asked(call: Any):
    mock = Mock()
    with pytest.raises(ParameterError, match=r"outputs=\['lable'\]: program classify.* makes no variable 'lable'; did you mean 'label'?"):
        call(lmc.compile(classify, outputs=["lable"], backend=mock))
    assert not mock.call_log


def test_outputs_that_a_path_not_seen_yet_may_make_are_not_refused():
    @lmc.function
    def counts(s: lmc.State, text: str):
        s += text + lmc.gen("words", max_tokens=2)
        for word in s["words"].split():
            s[f"of_{word}"] = "seen"

    program = lmc.compile(counts, outputs=["of_a", "of_nothing"], backend=Mock(answers={"words": "a b"}))
    assert list(program("x").variables) == ["of_a"]
    with pytest.raises(KeyError, match="of_nothing"):
        program("x")["of_nothing"]

    @lmc.function
    def late(s: lmc.State, text: str):
        if isinstance(text, int):  # another trace
            s += lmc.gen("number", max_tokens=1)
        s += "!" + lmc.gen("text", max_tokens=1)

    assert list(lmc.compile(late, outputs=["number"], backend=Mock())("x").variables) == []


def test_outputs_narrow_what_is_generated():
    mock = Mock(answers={"label": "good"})
    fast = lmc.compile(classify, outputs=["label"], backend=mock)
    state = fast(text="a")
    assert [c.name for c in mock.call_log] == ["label"]
    assert (state["label"], list(state.variables)) == ("good", ["label"])
    with pytest.raises(ProgramError, match=r"compiled with outputs=\['label'\]"):
        state.text()


def test_one_tree_for_each_list_of_types_and_state_of_the_outside():
    fast = lmc.compile(classify, backend=Mock())
    fast(text="a")
    traces = fast.stats.traces
    fast(text="b")
    fast(text="c")
    assert fast.stats.traces == traces
    assert len(fast.plans()) == 1


LEVEL = 0


@lmc.function
def levels(s: Any) -> str:
    s += f"level {LEVEL} " + lmc.gen("x", max_tokens=2)
    return s["x"]


def test_guards_and_their_limit(monkeypatch: pytest.MonkeyPatch):
    fast = lmc.compile(levels, backend=Mock())
    with pytest.warns(CaptureWarning, match=f"more than {MAX_TREES} states of the outside"):
        for level in range(MAX_TREES + 3):
            monkeypatch.setattr("tests.test_jit.LEVEL" if __name__ == "tests.test_jit" else f"{__name__}.LEVEL", level)
            assert fast().text().startswith(f"level {level} ")
    assert len(fast.plans()) == MAX_TREES
    assert fast.stats.replays == 3


def test_ahead_of_time_without_a_model():
    fast = lmc.compile(classify).lower(text="a", polite=False)
    assert fast.stats.traces >= 2  # both arms of the select
    mock = Mock()
    fast(text="b", polite=False, backend=mock)
    assert fast.stats.replays == 0


def test_dump_ir():
    fast = lmc.compile(classify, backend=Mock())
    traced, planned = fast.dump_ir(after="trace"), fast.dump_ir()
    assert "role.begin" in traced
    assert "role.begin" not in planned
    assert 'special("<|im_start|>")' in planned
    assert json.loads(fast.dump_ir(format="json"))
    assert fast.dump_ir(format="dot").startswith("digraph")
    assert "://" not in fast.dump_ir(format="html")
    with pytest.raises(ParameterError, match="text, dot, html, json"):
        fast.dump_ir(format="pdf")
    with pytest.raises(ParameterError, match="no pass 'magic'"):
        fast.dump_ir(after="magic")


def test_explain_names_paths_and_costs():
    fast = lmc.compile(classify, backend=Mock())
    fast.batch([{"text": str(i)} for i in range(4)])
    report = fast.explain()
    assert "4 paths to a return, 3 decisions" in report
    assert "prefill optimality 1.000" in report


def test_what_cannot_be_captured_runs_in_the_interpreter_and_says_why(capsys: pytest.CaptureFixture[str]):
    @lmc.function
    def open_ended(s: Any, *words: str) -> str:
        s += " ".join(words) + lmc.gen("x", max_tokens=3)
        exec("pass")
        return s["x"]

    fast = lmc.compile(open_ended, backend=Mock())
    with pytest.warns(CaptureWarning, match="exec") as said:
        state = fast("a", "b", seed=1)
        fast("a", "b", seed=1)
    assert len(said) == 1
    assert state.text() == open_ended.run("a", "b", backend=Mock(), seed=1).text()
    with lmc_log("exits"):
        lmc.compile(open_ended, backend=Mock())("a")
    assert capsys.readouterr().err.count("exec") == 1
    with pytest.raises(ProgramError, match="interpreter"):
        fast.graph()


def test_source_that_is_not_there():
    namespace: dict[str, Any] = {"lmc": lmc}
    exec("@lmc.function\ndef hidden(s, q):\n    s += q + lmc.gen('x', max_tokens=3)\n    return s['x']", namespace)
    fast = lmc.compile(namespace["hidden"], backend=Mock())
    with pytest.warns(CaptureWarning, match="hidden has no readable source"):
        found = fast(q="a", seed=1).ret_value
    assert found == namespace["hidden"].run(q="a", backend=Mock(), seed=1).ret_value
    assert "source" in (fast.interpreted or "")


def test_jit_can_be_switched_off():
    lmc.config(jit=False)
    try:
        fast = lmc.compile(classify, backend=Mock())
        fast(text="a")
        assert fast.stats.traces == 0
    finally:
        lmc.config(jit=True)


def test_errors_of_a_batch():
    @lmc.function
    def number(s: Any, q: str) -> int:
        s += q + lmc.gen("n", max_tokens=3)
        return int(s["n"])

    fast = lmc.compile(number, backend=Mock(answers={"n": lambda prompt, ask: "7" if "good" in prompt else "x"}))
    states = fast.batch([{"q": "good"}, {"q": "bad"}, {"q": "good 2"}], errors="return")
    assert [s.ret_value if s.error() is None else type(s.error()) for s in states] == [7, ValueError, 7]
    assert states[1].text() == "badx"
    with pytest.raises(ValueError, match="invalid literal"):
        fast.batch([{"q": "bad"}])


class lmc_log:
    """Log channels for a block."""

    def __init__(self, *channels: str) -> None:
        self.channels = channels

    def __enter__(self) -> None:
        lmc.config(log=self.channels)

    def __exit__(self, *_: object) -> None:
        lmc.config(log=())


@pytest.mark.filterwarnings("ignore:roles runs in the interpreter:lmc.CaptureWarning")
def test_a_role_that_the_template_lacks_is_an_error_only_where_it_is_used():
    @lmc.function
    def roles(s: Any, odd: bool) -> str:
        if odd:
            s += lmc.system("x")
        s += lmc.user("a") + lmc.assistant(lmc.gen("x", max_tokens=3))
        return s["x"]

    plain = RoleTemplate("plain", {r: ((f"{r}: ",), ("\n",)) for r in ("user", "assistant")})
    backend = Mock(chat_template=plain)
    fast = lmc.compile(roles, backend=backend)
    for odd in (False, True):
        want, got = (_outcome(lambda run=run, odd=odd: run(odd=odd, backend=backend, seed=1).text()) for run in (roles.run, fast))
        assert got == want


def _outcome(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error).split(" at ")[0][:40]


LENGTH = "short"


def test_a_miss_says_what_changed_and_where_the_program_reads_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    @lmc.function
    def report(s: Any, q: str) -> None:
        s += f"{LENGTH}: " + q + lmc.gen("x", max_tokens=2)

    fast = lmc.compile(report, backend=Mock())
    lmc.config(log="guards")
    try:
        fast(q="a")
        monkeypatch.setitem(globals(), "LENGTH", "long")
        fast(q="a")
    finally:
        lmc.config(log="")
    (line,) = capsys.readouterr().err.splitlines()
    where = f"{__file__}:{report.func.__code__.co_firstlineno + 2}"
    assert line == f"lmc[guards] report: a trace does not apply any more: global LENGTH == 'short', read at {where}"


def test_lower_traces_without_a_model_for_arguments_of_any_shape():
    @lmc.function
    def nested(s: Any, docs: Any, config: Any) -> Any:
        for doc in docs:
            s += doc["text"] + lmc.gen("x", max_tokens=config.tokens)
        return len(docs)

    fast = lmc.compile(nested).lower(docs=[{"text": "a"}], config=SimpleNamespace(tokens=2))
    traces = fast.stats.traces
    assert traces and fast.interpreted is None
    for docs in ([{"text": "a"}, {"text": "b"}], ({"text": "c"},), []):
        assert fast(docs=docs, config=SimpleNamespace(tokens=2), backend=Mock()).ret_value == len(docs)
    assert len(fast.plans()) == 1
    assert fast.stats.replays == 0


@lmc.function
def counts(s: Any, q: str) -> Any:
    s += q + lmc.gen("n", max_tokens=6)
    for i in range(int(s["n"])):  # an arm for each answer
        if i == 2:
            s += "two"
    return s["n"], lmc.gen  # something of the outside


def counting() -> Mock:
    return Mock(answers={"n": lambda prompt, ask: prompt})


def test_a_decision_with_many_answers_drops_the_arms_that_were_not_used_for_longest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lmc.jit.growth.FIRST", 1000)  # it is not the credit that ends here
    fast, backend = lmc.compile(counts), counting()

    def run(n: int) -> None:
        assert fast(q=str(n), seed=1, backend=backend).ret_value[0] == str(n)

    for n in range(MAX_ARMS + 30):
        run(n)
        run(7)
    (switch,) = [s for tree, _ in fast.plans() for s in tree.exits() if int in {key[0] for key in s.arms}]
    assert len(switch.arms) <= MAX_ARMS
    assert fast.stats.replays == 0
    traces = fast.stats.traces
    run(7)  # used all the time
    run(MAX_ARMS + 29)  # the last one
    assert fast.stats.traces == traces
    run(9)  # dropped, and traced again
    assert fast.stats.traces == traces + 1
    assert fast.stats.replays == 0


def test_a_tree_with_many_ops_drops_what_was_not_used_for_longest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lmc.jit.traced.MAX_OPS", 60)
    monkeypatch.setattr("lmc.jit.growth.FIRST", 1000)  # it is not the credit that ends here
    fast, backend = lmc.compile(counts), counting()
    for n in [*range(40), *range(40)]:
        assert fast(q=str(n), seed=1, backend=backend).text() == counts.run(q=str(n), seed=1, backend=backend).text()
    ((tree, _),) = fast.plans()
    assert tree.size == sum(len(block.ops) for block in tree.graph().blocks) <= 80
    assert fast.stats.replays == 0


def test_runs_on_their_way_go_on_when_their_path_is_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lmc.jit.traced.MAX_ARMS", 4)

    @lmc.function
    def twice(s: Any, q: str) -> Any:
        s += q + lmc.gen("n", max_tokens=6)
        first = list(range(int(s["n"])))
        s += "|" + lmc.gen("m", max_tokens=6)
        return first, list(range(len(s["m"]) + int(s["n"])))

    mock = lambda: Mock(answers={"n": lambda prompt, ask: prompt}, latency=lambda ask: 0.002 if ask.name == "m" else 0.0)
    fast, items = lmc.compile(twice), [{"q": str(n % 13)} for n in range(60)]
    for _ in range(2):
        states = fast.batch(items, seed=3, backend=mock())
        expected = twice.run_batch(items, seed=3, backend=mock())
        assert [x.ret_value for x in states] == [x.ret_value for x in expected]
        assert [x.text() for x in states] == [x.text() for x in expected]


def test_as_completed_gives_what_is_done_first():
    @lmc.function
    def slow_or_fast(s: Any, q: str) -> str:
        s += q + lmc.gen("x", max_tokens=4)
        return "returned before the answer is there"

    mock = Mock(latency=lambda ask: 0.001, answers={"x": lambda prompt, ask: prompt})
    gate = threading.Event()

    @lmc.function
    def waits(s: Any, q: str) -> str:
        s += q + lmc.gen("x", max_tokens=4)
        if q == "first":
            hold(gate)
        return s["x"]

    order: list[int] = []
    for index, state in lmc.compile(waits, backend=mock).as_completed([{"q": "first"}, {"q": "b"}, {"q": "c"}]):
        order.append(index)
        assert state["x"] == (["firs", "b", "c"])[index]
        if len(order) == 2:
            gate.set()
    assert order[-1] == 0
    states = lmc.compile(slow_or_fast, backend=mock).batch([{"q": "a"}, {"q": "b"}])
    assert all(s.variables["x"].done for s in states)


def hold(gate: threading.Event) -> None:
    assert gate.wait(20)


def test_a_tool_that_leaves_the_process_leaves_the_batch():
    @lmc.function
    def leaves(s: Any, q: str) -> str:
        s += q + lmc.gen("x", max_tokens=4)
        if q == "b":
            leave()
        return s["x"]

    fast = lmc.compile(leaves, backend=Mock())
    with pytest.raises(SystemExit):
        fast.batch([{"q": "a"}, {"q": "b"}])


def leave() -> None:
    raise SystemExit(3)


def test_places_in_the_source():
    """The first op stands where the program begins, a merged append where its text begins."""
    lines = lmc.compile(classify, backend=Mock()).dump_ir().splitlines()
    first = classify.func.__code__.co_firstlineno
    assert any("ctx.new" in line and f'test_jit.py":{first}' in line for line in lines)
    merged = next(line for line in lines if "append" in line and "Be brief." in line)
    assert f'test_jit.py":{first + 2}' in merged


MEMO: dict[str, str] = {}


@lmc.function
def remembers(s: Any, q: str) -> Any:
    for _ in range(2):
        if q not in MEMO:
            s += q + lmc.gen("x", max_tokens=3)
            MEMO[q] = s["x"]
    return MEMO[q]


@lmc.function
def identity(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    return id(s["x"]) > 0


@lmc.function
def reads_what_is_not_there(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    return s["y"]


def test_why_a_run_left_the_graph_is_said_once_with_the_line() -> None:
    line = inspect.getsourcelines(identity.func)[1] + 3
    fast = lmc.compile(identity, backend=Mock())
    with pytest.warns(CaptureWarning, match=rf"takes the identity of an object \(.*test_jit.py:{line}\)") as said:
        fast(q="a")
        fast(q="a")
    assert len(said) == 1 and fast.stats.replays == 2


def test_every_replay_has_a_reason() -> None:
    for program in (remembers, identity):
        fast = lmc.compile(program, backend=Mock())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for q in "aba":
                MEMO.clear()
                fast(q=q)
        reasons = [reason for traced in fast.traces() for reason in traced.ledger.replayed]
        assert all("test_jit.py:" in reason for reason in reasons)
        assert bool(reasons) == bool(fast.stats.replays) == bool(fast._notices.said)


def test_a_program_that_raises_is_no_matter_for_a_warning() -> None:
    fast = lmc.compile(reads_what_is_not_there, backend=Mock())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(KeyError):
                fast(q="a")
    (reason,) = fast.traces()[0].ledger.replayed
    assert reason.startswith("raises UnknownVariable (")


@lmc.function
def starts_threads(s: Any, q: str):
    def go(f: Any):
        f.__iadd__(q + lmc.gen("x", max_tokens=2))

    forks = s.fork(2)
    workers = [threading.Thread(target=go, args=(f,)) for f in forks]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    s += "".join(f["x"] for f in forks)


@lmc.function
def maps_on_threads(s: Any, q: str):
    def go(f: Any):
        f += q + lmc.gen("x", max_tokens=2)
        return f["x"]

    with ThreadPoolExecutor(2) as pool:
        s += "".join(pool.map(go, s.fork(2)))


@lmc.function
def executes(s: Any, q: str):
    s += q + lmc.gen("x", max_tokens=2)
    found: dict[str, Any] = {}
    exec("n = len(x)", {"x": s["x"]}, found)
    s += str(found["n"])


sourceless: dict[str, Any] = {"gen": lmc.gen}
exec("def no_source(s, q):\n    s += q + gen('x', max_tokens=2)", sourceless)


@pytest.mark.parametrize("program, reason", [
    (starts_threads, "hands starts_threads.<locals>.go, which reaches the language, to host code"),
    (maps_on_threads, "hands a state to .map() of a traced value"),
    (executes, ": exec ("),
    (lmc.function(sourceless["no_source"]), "no_source has no readable source"),
])  # fmt: skip
def test_what_is_not_captured_runs_in_the_interpreter_and_says_why_once(program: Any, reason: str):
    items = [{"q": "a"}, {"q": "b"}]
    (said,) = conform(program, items, opts=(1,), leaves=re.escape(reason))._notices.said
    assert reason in said


def test_input_is_a_host_call_like_any_other(monkeypatch: pytest.MonkeyPatch):
    @lmc.function
    def asks(s: Any, q: str):
        s += q + lmc.gen("x", max_tokens=2)
        s += input(s["x"] + "? ") + lmc.gen("y", max_tokens=2)

    def answer(prompt: str) -> str:
        effect("input", prompt)
        return "yes"

    monkeypatch.setattr("builtins.input", answer)
    conform(asks, [{"q": "a"}, {"q": "b"}], replays=0)
