"""OpenTelemetry: one tree of spans whatever runs a program, by the conventions for generative AI; and nothing at all when it is off."""

import asyncio
import gc
import json
import linecache
from types import SimpleNamespace

import pytest

import lmc
from lmc import observing
from lmc.backend.results import Result
from lmc.errors import BackendError
from lmc.segments import Gen
from tests.backend.gated import Gated
from tests.conformance.harness import eager
from tests.waiting import until

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs OpenTelemetry's SDK (the extra otel)")
from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402

EXPORTER = InMemorySpanExporter()
PROGRAM = "invoke_workflow program"
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.fixture(scope="module", autouse=True)
def provider():
    found = sdk.TracerProvider()
    found.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(found)


@pytest.fixture(autouse=True)
def spans(monkeypatch):
    """The spans that have ended, by name."""
    monkeypatch.setattr("lmc.observing._observer", None)  # it reads whether content is wanted when it is made
    lmc.config(otel=True)
    EXPORTER.clear()
    yield Spans()
    lmc.config(otel=False)


class Spans:
    @property
    def all(self):
        return EXPORTER.get_finished_spans()

    def __getitem__(self, name):
        (found,) = [span for span in self.all if span.name == name]
        return found

    def of(self, name):
        return [span for span in self.all if span.name == name]

    def parent(self, span):
        return next((each for each in self.all if span.parent is not None and each.context.span_id == span.parent.span_id), None)

    def tree(self):
        """Each span's names from the root, sorted: independent of the order of threads."""
        return sorted(self._path(span) for span in self.all)

    def _path(self, span):
        above = self.parent(span)
        return f"{self._path(above)} > {span.name}" if above is not None else span.name


@lmc.host
def search(query):
    """Look it up."""
    return f"found {query}"


@lmc.function
def helper(s, tip):
    s += lmc.user(tip) + lmc.assistant(lmc.gen("h", max_tokens=4))
    return s["h"]


@lmc.function
def agent(s, q):
    s += lmc.system("Be brief.") + lmc.user(q) + lmc.assistant(lmc.gen("plan", max_tokens=5, stop="\n"))
    found = search(s["plan"])
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += lmc.user(f"{found} {i}") + lmc.assistant(lmc.select("ok", choices=["yes", "no"]))
    helper(tip=forks[0]["ok"])
    return [f["ok"] for f in forks]


@lmc.function
async def aagent(s, q):
    s += lmc.user(q) + lmc.assistant(lmc.gen("plan", max_tokens=5))
    s += lmc.user(s["plan"]) + lmc.assistant(lmc.gen("answer", max_tokens=5))
    return s["answer"]


RUN = "invoke_workflow agent"
TREE = sorted([RUN, f"{RUN} > chat mock", f"{RUN} > chat mock", f"{RUN} > chat mock", f"{RUN} > execute_tool search",
               f"{RUN} > invoke_workflow helper", f"{RUN} > invoke_workflow helper > chat mock"])  # fmt: skip
ARUN = ["invoke_workflow aagent", "invoke_workflow aagent > chat mock", "invoke_workflow aagent > chat mock"]


def collected(state):
    for _ in state.text_iter():
        pass
    state.sync()


MODES = {
    "run": lambda b: agent.run("q", backend=b).sync(),
    "arun": lambda b: asyncio.run(agent.arun("q", backend=b)).sync(),
    "stream": lambda b: collected(agent.run("q", backend=b, stream=True)),
    "compiled": lambda b: lmc.compile(agent, ahead="off")("q", backend=b).sync(),
    "program.stream": lambda b: collected(lmc.compile(agent, ahead="off").stream("q", backend=b)),
    "acall": lambda b: asyncio.run(lmc.compile(agent, ahead="off").acall("q", backend=b)).sync(),
}


@pytest.mark.parametrize("mode", MODES)
def test_one_tree_in_every_mode(mode, spans):
    MODES[mode](lmc.Mock())
    assert spans.tree() == TREE
    assert len({span.context.trace_id for span in spans.all}) == 1


@pytest.mark.parametrize("threads", (1, 4, "auto"))
@pytest.mark.parametrize("how", ("run_batch", "batch", "abatch"))
def test_items_are_under_their_batch(how, threads, spans):
    items = [{"q": str(i)} for i in range(5)]
    if how == "run_batch":
        agent.run_batch(items, backend=lmc.Mock(), num_threads=threads)
    elif how == "batch":
        lmc.compile(agent, ahead="off").batch(items, backend=lmc.Mock())
    else:
        asyncio.run(lmc.compile(agent, ahead="off").abatch(items, backend=lmc.Mock()))
    assert spans.tree() == sorted(["batch agent", *[f"batch agent > {path}" for path in TREE * 5]])
    assert spans["batch agent"].attributes["lmc.batch.items"] == 5
    assert sorted(span.attributes["lmc.item"] for span in spans.of(RUN)) == list(range(5))


@lmc.function
def closed(s, q):
    """A batch runs this as fibers of one thread: it calls nothing that is not known."""
    s += lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=5))
    s += lmc.user(s["a"]) + lmc.assistant(lmc.gen("b", max_tokens=5))


def test_fibers_and_tasks_have_runs_of_their_own(spans):
    closed.run_batch([{"q": str(i)} for i in range(20)], backend=lmc.Mock(latency=0.001))
    run = "batch closed > invoke_workflow closed"
    until(lambda: len(spans.all) == 1 + 3 * 20)  # the last one ends when its answer is there already
    assert spans.tree() == sorted(["batch closed", *[run] * 20, *[f"{run} > chat mock"] * 40])
    EXPORTER.clear()
    aagent.run_batch([{"q": str(i)} for i in range(20)], backend=lmc.Mock(latency=0.001))
    until(lambda: len(spans.all) == 1 + len(ARUN) * 20)
    assert spans.tree() == sorted(["batch aagent", *[f"batch aagent > {path}" for path in ARUN * 20]])


def test_a_user_s_own_spans_are_parents(spans):
    tracer = trace.get_tracer("user")

    @lmc.function
    def program(s):
        with tracer.start_as_current_span("step"):
            s += lmc.user("q") + lmc.assistant(lmc.gen("a", max_tokens=3))
            s["a"]

    with tracer.start_as_current_span("job"):
        program.run(backend=lmc.Mock()).sync()
    assert spans.tree() == sorted(["job", "job > invoke_workflow program", "job > invoke_workflow program > step",
                                   "job > invoke_workflow program > step > chat mock"])  # fmt: skip


# -- attributes --------------------------------------------------------------------------------------------------------


def test_what_a_request_says(spans):
    @lmc.function
    def program(s):
        s += lmc.user("q") + lmc.assistant(lmc.gen("a", max_tokens=7, temperature=0.5, top_p=0.9, top_k=5, stop=["x", "y"], seed=3))

    program.run(backend=lmc.Mock()).sync()
    span = spans["chat mock"]
    said = dict(span.attributes)
    line = said.pop("code.line.number")
    assert said.pop("code.file.path") == __file__ and "max_tokens=7" in linecache.getline(__file__, line)
    usage = {name: said.pop(name) for name in [*said] if "usage" in name}
    reasons = said.pop("gen_ai.response.finish_reasons")
    assert said.pop("gen_ai.response.id").startswith("mock-")
    assert said == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "mock", "gen_ai.system": "mock", "gen_ai.request.model": "mock",
        "gen_ai.request.max_tokens": 7, "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 0.9, "gen_ai.request.top_k": 5,
        "gen_ai.request.stop_sequences": ("x", "y"), "gen_ai.request.seed": 3, "gen_ai.output.type": "text", "lmc.variable": "a",
    }  # fmt: skip
    assert reasons in (("length",), ("stop",)) and span.kind is SpanKind.INTERNAL and span.start_time <= span.end_time
    assert usage["gen_ai.usage.input_tokens"] > 0 < usage["gen_ai.usage.output_tokens"] and "gen_ai.usage.cache_read.input_tokens" in usage


def test_several_answers_constraints_and_plain_text(spans):
    @lmc.function
    def program(s):
        s += "q" + lmc.gen("a", max_tokens=3, n=2)
        s += lmc.gen("b", json_schema={"type": "integer"})
        s += lmc.gen("c", regex="[ab]")

    program.run(backend=lmc.Mock()).sync()
    first, second, third = sorted(spans.of("text_completion mock"), key=lambda span: span.attributes["lmc.variable"])
    assert first.attributes["gen_ai.request.choice.count"] == 2 and len(first.attributes["gen_ai.response.finish_reasons"]) == 2
    assert (second.attributes["gen_ai.output.type"], second.attributes["lmc.constraint"]) == ("json", "json_schema")
    assert (third.attributes["gen_ai.output.type"], third.attributes["lmc.constraint"]) == ("text", "regex")


def test_content_is_left_out_unless_it_is_wanted(spans, monkeypatch):
    MODES["run"](lmc.Mock())
    assert not any("messages" in name or "arguments" in name or "result" in name for span in spans.all for name in span.attributes)
    monkeypatch.setenv(CONTENT, "true")
    monkeypatch.setattr("lmc.observing._observer", None)
    lmc.config(otel=True)
    EXPORTER.clear()
    for mode in ("run", "compiled"):
        EXPORTER.clear()
        MODES[mode](lmc.Mock(answers={"plan": "look", "ok": "no", "h": "fine"}))
        plan = next(span for span in spans.of("chat mock") if span.attributes["lmc.variable"] == "plan")
        assert json.loads(plan.attributes["gen_ai.input.messages"]) == [
            {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]}, {"role": "user", "parts": [{"type": "text", "content": "q"}]},
        ]  # fmt: skip
        assert json.loads(plan.attributes["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "look"}]
        ok = next(span for span in spans.of("chat mock") if span.attributes["lmc.variable"] == "ok" and "look 0" in span.attributes["gen_ai.input.messages"])
        assert [m["parts"][0]["content"] for m in json.loads(ok.attributes["gen_ai.input.messages"])] == ["Be brief.", "q", "look", "found look 0"]
        tool = spans["execute_tool search"].attributes
        assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"args": ["look"]} and json.loads(tool["gen_ai.tool.call.result"]) == "found look"


# -- ahead -------------------------------------------------------------------------------------------------------------


@lmc.function
def forked(s, q):
    s += q + lmc.gen("kind", max_tokens=3)
    if s["kind"].startswith("a"):
        return helper(tip="long " + q)["h"]
    return helper(tip="short " + q)["h"]


def test_requests_made_ahead_say_what_became_of_them(spans):
    backend = Gated(3, lambda _, ask: "a" if ask.name == "kind" else "b")  # the first answer comes when three requests are made
    with trace.get_tracer("user").start_as_current_span("job"):
        state = eager(lmc.compile(forked, ahead="likely"))(q="q", backend=backend)
    assert (state.usage.ahead_used, state.usage.ahead_wasted) == (1, 1)
    run, helped = spans["invoke_workflow forked"], spans["invoke_workflow helper"]
    requests = [span for span in spans.all if "gen_ai.request.model" in span.attributes]
    assert sorted((span.attributes["lmc.variable"], span.attributes.get("lmc.ahead", "no")) for span in requests) == [
        ("h", "used"),
        ("h", "wasted"),
        ("kind", "no"),
    ]
    assert {spans.parent(span).name for span in requests} == {run.name}, "made ahead, before its sub-program began"
    wasted = next(span for span in requests if span.attributes.get("lmc.ahead") == "wasted")
    assert wasted.status.status_code is StatusCode.UNSET
    assert [run.attributes[f"lmc.usage.ahead_{what}"] for what in ("asked", "used", "wasted")] == [2, 1, 1]
    assert "lmc.usage.ahead_asked" not in helped.attributes and not observing.observer()._guesses, "nothing is kept"


def test_a_request_made_ahead_is_the_run_s_not_the_step_s(spans):
    @lmc.function
    def program(s, q):
        with trace.get_tracer("user").start_as_current_span("step"):
            s += q + lmc.gen("kind", max_tokens=3)
            s["kind"]
        return helper(tip=q)["h"]

    eager(lmc.compile(program))(q="q", backend=Gated(2, lambda _, ask: "a"))
    assert spans.tree() == sorted(
        [PROGRAM, f"{PROGRAM} > invoke_workflow helper", f"{PROGRAM} > step", f"{PROGRAM} > step > text_completion mock", f"{PROGRAM} > chat mock"]
    )


@lmc.pure
def retrieve(q):
    return f"doc {q}"


def test_pure_functions_called_ahead_belong_to_their_run(spans):
    @lmc.function
    def program(s, q):
        s += q + lmc.gen("kind", max_tokens=3)
        s["kind"]
        return helper(tip=retrieve(q))["h"]

    eager(lmc.compile(program))(q="q", backend=Gated(2, lambda _, ask: "a"))
    call = spans["execute_tool retrieve"]
    assert spans.parent(call).name == PROGRAM and call.attributes["lmc.ahead"] == "asked"


# -- tools -------------------------------------------------------------------------------------------------------------


def test_tools(spans):
    async def weather(city: str):
        await asyncio.sleep(0)
        return {"city": city}

    @lmc.host
    async def slow(x):
        await asyncio.sleep(0)
        return x

    @lmc.host
    def fails():
        raise KeyError("no")

    @lmc.function
    async def program(s):
        await slow(1)
        await lmc.call_tool({"name": "weather", "arguments": {"city": "Rome"}, "id": "call_1"}, [weather])
        try:
            fails()
        except KeyError:
            return "caught"

    assert asyncio.run(program.arun(backend=lmc.Mock())).ret_value == "caught"
    assert spans.tree() == sorted(["invoke_workflow program", *[f"invoke_workflow program > execute_tool {name}" for name in ("slow", "weather", "fails")]])
    assert spans["execute_tool weather"].attributes["gen_ai.tool.call.id"] == "call_1"
    failed = spans["execute_tool fails"]
    assert failed.status.status_code is StatusCode.ERROR and failed.attributes["error.type"] == "KeyError"
    assert spans["invoke_workflow program"].status.status_code is StatusCode.UNSET


def test_a_tool_outside_of_programs(spans):
    assert search("x") == "found x"
    assert spans["execute_tool search"].attributes["gen_ai.tool.description"] == "Look it up."


def test_a_resumed_run_has_no_spans_of_what_its_journal_knows(spans, tmp_path):
    for _ in range(2):
        agent.run("q", backend=lmc.Mock(), journal=str(tmp_path / "j"), seed=1).sync()
    assert len(spans.of(RUN)) == 2 and len(spans.of("execute_tool search")) == 1 and len(spans.of("chat mock")) == 4


@lmc.host
async def fetch(x):
    await asyncio.sleep(0)
    return f"got {x}"


@lmc.function
async def fetching(s, q):
    found = await asyncio.gather(fetch(q), fetch(q + "!"))
    s += lmc.user(found[0]) + lmc.assistant(lmc.gen("a", max_tokens=4))
    return s["a"]


@pytest.mark.parametrize("first", (False, True))
def test_async_tools_of_a_journaled_run(spans, tmp_path, first):
    """Whether somebody observes is nothing to the journal: one that was written without goes on with, and the other way round."""
    for on in (first, not first):
        lmc.config(otel=on)
        found = asyncio.run(fetching.arun("q", backend=lmc.Mock(), journal=str(tmp_path / "j"), seed=1))
        assert found.ret_value == found["a"]
    assert len(spans.of("execute_tool fetch")) == (2 if first else 0) and len(spans.of("invoke_workflow fetching")) == 1
    if first:
        assert {spans.parent(span).name for span in spans.of("execute_tool fetch")} == {"invoke_workflow fetching"}


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors_of_programs_and_requests(spans):
    def answer(prompt, ask):
        raise BackendError("the server is away")

    @lmc.function
    def program(s):
        s += lmc.user("q") + lmc.assistant(lmc.gen("a"))
        s["a"]

    with pytest.raises(BackendError):
        program.run(backend=lmc.Mock(answers=answer))
    for name in ("chat mock", "invoke_workflow program"):
        assert spans[name].status.status_code is StatusCode.ERROR and spans[name].attributes["error.type"] == "BackendError"
        assert [event.name for event in spans[name].events] == ["exception"]


def test_what_is_refused_at_once_and_what_nobody_reads(spans):
    @lmc.function
    def refused(s):
        s += lmc.gen("a", regex="(")

    with pytest.raises(lmc.ConstraintError):
        refused.run(backend=lmc.Mock())
    assert spans["invoke_workflow refused"].attributes["error.type"] == "ConstraintError"

    @lmc.function
    def raises(s):
        s += lmc.gen("a", max_tokens=3)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        raises.run(backend=lmc.Mock(latency=60))
    assert spans["invoke_workflow raises"].attributes["error.type"] == "ValueError"
    cancelled = spans["text_completion mock"]
    assert cancelled.attributes["lmc.cancelled"] is True and cancelled.status.status_code is StatusCode.UNSET


def test_an_answer_that_nobody_can_read_any_more(spans):
    class Backend(lmc.Mock):
        def submit(self, parent, segments, hints=None):
            return SimpleNamespace(results=[Result()])  # nobody else has it, as with an API whose answer nobody wants

    observing.submit(Backend(), None, (Gen(),), None)
    gc.collect()
    assert spans.all == (), "a destructor only posts"
    closed.run("q", backend=lmc.Mock()).sync()
    assert spans["text_completion mock"].attributes["lmc.cancelled"] is True


# -- off ---------------------------------------------------------------------------------------------------------------


def test_it_can_be_turned_off_again(spans):
    lmc.config(otel=False)
    MODES["run"](lmc.Mock())
    assert spans.all == () and observing.observer() is None
