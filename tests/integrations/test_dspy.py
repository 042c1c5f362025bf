"""DSPy's modules on lmc: every answer parses, n is one group, threads and loops share the backend, programs save and load."""

from __future__ import annotations

import asyncio
import base64
import enum
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

import lmc
from tests.pictures import png

dspy = pytest.importorskip("dspy", minversion="3.4")
pytestmark = [pytest.mark.api, pytest.mark.filterwarnings("error::DeprecationWarning:lmc")]

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def fresh():
    dspy.configure(lm=None, adapter=None, callbacks=[])
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    yield
    dspy.configure(lm=None, adapter=None, callbacks=[])


def using(answers: Any = None, adapter: Any = None, **options: Any):
    """A scripted model as DSPy's LM with our adapter; its mock."""
    latency = options.pop("latency", 0.0)
    mock = lmc.Mock(answers, latency=latency)
    dspy.configure(lm=lmc.dspy.LM(mock, **options), adapter=lmc.dspy.Adapter() if adapter is None else adapter)
    return mock


class Person(pydantic.BaseModel):
    name: str
    age: int


class Tree(pydantic.BaseModel):
    value: int
    children: list[Tree] = []


class Mood(enum.Enum):
    good = "very good"
    bad = 3


class Everything(dspy.Signature):
    """Fills every kind of field."""

    question: str = dspy.InputField()
    text: str = dspy.OutputField()
    maybe_text: str | None = dspy.OutputField()
    whole: int = dspy.OutputField()
    real: float = dspy.OutputField()
    flag: bool = dspy.OutputField()
    choice: Literal["a.b", "c d", 3, True] = dspy.OutputField()
    mood: Mood = dspy.OutputField()
    person: Person = dspy.OutputField()
    people: list[Person] = dspy.OutputField()
    maybe: int | None = dspy.OutputField()
    either: int | list[str] = dspy.OutputField()
    counts: dict[str, int] = dspy.OutputField()
    anything: dict[str, Any] = dspy.OutputField()
    tree: Tree = dspy.OutputField()
    code: dspy.Code = dspy.OutputField()


@pytest.mark.parametrize("max_tokens", [3, 30, 200])
def test_every_answer_parses(max_tokens):
    using(temperature=1.0, max_tokens=max_tokens)
    predict = dspy.Predict(Everything)
    for i in range(15):
        found = predict(question=f"q{i}")
        assert isinstance(found.people, list)
        assert isinstance(found.tree, Tree)
        assert isinstance(found.flag, bool)
        assert found.choice in ("a.b", "c d", 3, True)


def test_the_prompt_and_the_format_are_dspys():
    mock = using({None: None}, temperature=0)
    dspy.Predict("question -> answer, score: int")(question="Why?")
    ours = [call.prompt_text for call in mock.call_log]
    assert ours[0].endswith("<|im_start|>assistant\n[[ ## answer ## ]]\n")
    assert "\n\n[[ ## score ## ]]\n" in ours[1]
    system, user = dspy.ChatAdapter().format(dspy.Signature("question -> answer, score: int"), [], {"question": "Why?"})
    assert system["content"] in ours[0]
    assert user["content"] in ours[0]
    entry = dspy.settings.lm.history[-1]
    text = entry["response"][0].text if isinstance(entry["response"], list | tuple) else entry["outputs"][0]
    assert dspy.ChatAdapter().parse(dspy.Signature("question -> answer, score: int"), text if isinstance(text, str) else text["text"])


def test_free_text_ends_where_a_header_begins():
    using(lambda prompt, ask: "Because.\n\n[[ ## score ## ]]\n12" if ask.constraint is None else None)
    assert dspy.Predict("question -> answer, score: int")(question="?").answer == "Because."


def test_what_was_cut_off_is_completed_before_what_follows_is_asked():
    mock = using(max_tokens=9, temperature=0)
    found = dspy.Predict("q -> tags: list[str], why")(q="?")
    last = mock.call_log[-1].prompt_text
    tags = last.split("[[ ## tags ## ]]\n")[-1].split("\n\n[[ ## why")[0]
    assert json.loads(tags) == found.tags


def test_n_answers_are_one_group():
    mock = using(temperature=1.0)
    for predict in (dspy.Predict("q -> a", n=4), dspy.ChainOfThought("q -> a", n=4)):
        mock.groups.clear()
        found = predict(q="x")
        assert len(found.completions.a) == 4
        assert len(set(found.completions.a)) > 1
        assert list(mock.groups.values()) == [4]
    calls = len(mock.call_log)
    dspy.Predict("q -> a", n=4)(q="x")
    assert len(mock.call_log) == calls, "DSPy's cache has them"
    dspy.configure(adapter=dspy.ChatAdapter())
    mock.groups.clear()
    assert len(dspy.settings.lm("hello", n=3)) == 3
    assert list(mock.groups.values()) == [3]


def test_the_default_adapters_work_on_our_engine():
    using(lambda prompt, ask: "[[ ## a ## ]]\n7\n\n[[ ## completed ## ]]", adapter=dspy.ChatAdapter())
    assert dspy.Predict("q -> a: int")(q="x").a == 7
    using(adapter=dspy.JSONAdapter())
    assert isinstance(dspy.Predict("q -> a: int")(q="x").a, int)


def test_a_backend_may_be_named():
    dspy.configure(lm=lmc.dspy.LM("mock"), adapter=lmc.dspy.Adapter())
    assert isinstance(dspy.Predict("q -> a: int")(q="x").a, int)
    with pytest.raises(lmc.ParameterError, match=r"test_dspy.py:\d+: no model 'gpt-4'.* did you mean openai:gpt-4"):
        lmc.dspy.LM("gpt-4")
    with pytest.raises(lmc.ArgumentError, match="not int"):
        lmc.dspy.LM(3)


def test_react_uses_its_tools():
    asked: list[str] = []

    def look_up(city: str) -> str:
        """Says how warm it is."""
        asked.append(city)
        return f"{city}: 3 degrees"

    def script(prompt, ask):
        here = prompt.rsplit("<|im_start|>assistant", 1)[1]
        field = here.rsplit("[[ ## ", 1)[1].split(" ## ]]")[0]
        done = "3 degrees" in prompt
        return {
            "next_thought": "Look.", "next_tool_name": "finish" if done else "look_up",
            "next_tool_args": "{}" if done else '{"city": "Oslo"}', "reasoning": "So.", "answer": "3",
        }[field]  # fmt: skip

    using(script)
    found = dspy.ReAct("question -> answer: int", tools=[look_up])(question="How warm is Oslo?")
    assert (found.answer, asked) == (3, ["Oslo"])
    assert found.trajectory["observation_0"] == "Oslo: 3 degrees"


def test_arguments_of_tools_are_of_the_schema_of_the_tool_that_was_named():
    asked: list[tuple[str, dict]] = []

    def look_up(city: str, days: int) -> str:
        asked.append(("look_up", {"city": city, "days": days}))
        return "cold"

    def add(a: float, b: float) -> float:
        asked.append(("add", {"a": a, "b": b}))
        return a + b

    using(temperature=1.0, max_tokens=60)  # says anything that it may
    for i in range(20):
        found = dspy.ReAct("question -> answer: int", tools=[look_up, add], max_iters=4)(question=f"q{i}")
        assert not [x for name, x in found.trajectory.items() if name.startswith("observation") and "Execution error" in str(x)]
    assert {name for name, _ in asked} == {"look_up", "add"} and all(isinstance(given["days"], int) for name, given in asked if name == "look_up")


def test_tool_calls_name_the_tools_that_were_given():
    def look_up(city: str) -> str:
        return "cold"

    class Signature(dspy.Signature):
        question: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        calls: dspy.ToolCalls = dspy.OutputField()

    using(temperature=1.0, max_tokens=80)
    called = [call for i in range(6) for call in dspy.Predict(Signature)(question=f"q{i}", tools=[dspy.Tool(look_up)]).calls.tool_calls]
    assert called and all(call.name == "look_up" and isinstance(call.args["city"], str) and len(call.args) == 1 for call in called)


def test_react_on_a_model_that_says_anything_never_fails_to_parse():
    using(temperature=1.0, max_tokens=40)
    for i in range(5):
        found = dspy.ReAct("question -> answer: int", tools=[lambda x: x], max_iters=3)(question=f"q{i}")
        assert isinstance(found.answer, int)


def test_evaluate_and_bootstrap():
    def script(prompt, ask):
        question = prompt.rsplit("[[ ## question ## ]]\n", 1)[1].split("\n")[0]
        return str(eval(question)) if ask.constraint is not None else "Add."

    mock = using(script, latency=0.01)
    data = [dspy.Example(question=f"{i} + 1", answer=i + 1).with_inputs("question") for i in range(12)]

    def right(example, prediction, trace=None):
        return example.answer == prediction.answer

    program = dspy.ChainOfThought("question -> answer: int")
    result = dspy.Evaluate(devset=data, metric=right, num_threads=8, display_progress=False)(program)
    assert result.score == 100.0
    better = dspy.BootstrapFewShot(metric=right, max_bootstrapped_demos=2, max_labeled_demos=0).compile(program, trainset=data[:4])
    demos = better.predictors()[0].demos
    assert len(demos) == 2
    mock.call_log.clear()
    assert better(question="40 + 2").answer == 42
    assert mock.call_log[0].prompt_text.count("<|im_start|>user") == 3, "the demos are in the prompt"
    many = dspy.Parallel(num_threads=4, disable_progress_bar=True)([(better, {"question": f"{i} + {i}"}) for i in range(8)])
    assert [p.answer for p in many] == [2 * i for i in range(8)]


def test_async_calls_hold_no_thread():
    using(latency=0.05, temperature=1.0)

    async def work():
        predict = dspy.Predict("q -> a: int")
        return await asyncio.gather(*[predict.acall(q=f"q{i}") for i in range(60)])

    found = asyncio.run(work())
    assert all(isinstance(p.a, int) for p in found)


def test_n_answers_of_an_async_call_are_one_group():
    mock = using(latency=0.01, temperature=1.0)
    found = asyncio.run(dspy.Predict("q -> a", n=3).acall(q="x"))
    assert len(found.completions.a) == 3
    assert list(mock.groups.values()) == [3]


def test_engines_stream_what_they_complete():
    mock = lmc.Mock(latency=0.02)
    fields = [{"name": "a", "kind": "text", "source": ""}, {"name": "n", "kind": "json_schema", "source": '{"type": "array", "items": {"type": "integer"}}'}]
    config = dspy.lm15.Config(max_tokens=8, temperature=0, extensions={"lmc_fields": fields})
    request = dspy.lm15.Request("lmc/mock", (dspy.lm15.Message.user("Hi"),), config=config)
    whole = lmc.dspy.RequestEngine(mock).complete(request)

    async def streamed():
        return [event async for event in lmc.dspy.AsyncRequestEngine(mock).stream(request)]

    for events in (list(lmc.dspy.RequestEngine(mock).stream(request)), asyncio.run(streamed())):
        assert (events[0].type, events[-1].type) == ("start", "end")
        assert "".join(e.delta.text for e in events[1:-1]) == whole.text
        assert events[-1].finish_reason == whole.finish_reason


def test_streams():
    using(latency=0.03, temperature=0)
    program = dspy.streamify(
        dspy.Predict("q -> a, b"), stream_listeners=[dspy.streaming.StreamListener(signature_field_name="b")], async_streaming=False
    )
    *pieces, last = list(program(q="x"))
    assert isinstance(last, dspy.Prediction)
    assert "".join(p.chunk for p in pieces if isinstance(p, dspy.streaming.StreamResponse)).strip() == last.b


def test_usage_and_history():
    using(temperature=0)
    dspy.Predict("q -> a, b")(q="x")
    usage = dspy.settings.lm.history[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


def test_programs_save_and_load(tmp_path):
    mock = using(temperature=0)
    program = dspy.ChainOfThought("q -> a")
    program.set_lm(dspy.settings.lm)
    before = program(q="x").a
    program.save(tmp_path / "program.json")
    other = lmc.Mock()
    lmc.set_default_backend(other)
    try:
        loaded = dspy.ChainOfThought("q -> a")
        loaded.load(tmp_path / "program.json", allow_unsafe_lm_state=True)
        dspy.configure(lm=None, adapter=lmc.dspy.Adapter())
        dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
        assert loaded(q="x").a == before
        assert len(other.call_log) == len(mock.call_log) == 2
    finally:
        lmc.set_default_backend(None)


def test_faults_are_retried_by_dspy_and_bad_requests_are_not():
    mock = lmc.Mock(fault=lambda ask, number: lmc.BackendError("away") if number == 0 else None)
    dspy.configure(lm=lmc.dspy.LM(mock, num_retries=1), adapter=lmc.dspy.Adapter())
    assert dspy.Predict("q -> a")(q="x").a
    assert len(mock.call_log) == 2
    with pytest.raises(Exception, match="neither PNG"):
        dspy.Predict("img: dspy.Image -> a")(img=dspy.Image("data:image/png;base64,AAAA"))
    with pytest.raises(TypeError, match=r"lmc\.dspy\.LM"), dspy.context(lm=dspy.utils.DummyLM([{"a": "x"}])):
        dspy.Predict("q -> a")(q="x")


def test_images_reach_the_model():
    files = []

    def see(prompt, ask, images):
        files.append(images)
        return "seen" if ask.constraint is None else None

    using(see)
    picture = png()
    found = dspy.Predict("img: dspy.Image, question -> answer")(img=dspy.Image(f"data:image/png;base64,{base64.b64encode(picture).decode()}"), question="What?")
    assert found.answer == "seen"
    assert files[0] == [picture]


def test_a_type_that_cannot_be_promised_is_refused():
    using()

    class Odd(dspy.Signature):
        q: str = dspy.InputField()
        a: Literal[" padded "] = dspy.OutputField()

    with pytest.raises(lmc.ConstraintError, match="output field 'a'"):
        dspy.Predict(Odd)(q="x")


def test_nothing_that_dspy_deprecates_is_used():
    using()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        dspy.ChainOfThought("q -> a: int")(q="x")


def test_streams_on_an_event_loop():
    using(latency=0.03, temperature=0)
    listeners = [dspy.streaming.StreamListener(signature_field_name=name) for name in ("a", "b")]

    async def work():
        return [piece async for piece in dspy.streamify(dspy.Predict("q -> a, b"), stream_listeners=listeners)(q="x")]

    *pieces, last = asyncio.run(work())
    for name in ("a", "b"):
        own = [p.chunk for p in pieces if isinstance(p, dspy.streaming.StreamResponse) and p.signature_field_name == name]
        assert "".join(own).strip() == last[name]


def test_a_stream_that_is_left_is_cancelled():
    mock = lmc.Mock(latency=60)
    request = dspy.lm15.Request("lmc/mock", (dspy.lm15.Message.user("Hi"),), config=dspy.lm15.Config())
    stream = lmc.dspy.RequestEngine(mock).stream(request)
    assert next(stream).type == "start"
    assert mock._pending
    stream.close()
    assert not mock._pending

    async def left():
        waiting = asyncio.ensure_future(lmc.dspy.AsyncRequestEngine(mock).complete(request))
        while not mock._pending:
            await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(left())
    assert not mock._pending
    mock.close()


def test_module_batches_usage_per_prediction_and_asyncify():
    using(temperature=1.0, latency=0.01)
    program = dspy.ChainOfThought("q -> a: int")
    with dspy.context(track_usage=True):
        (usage,) = program(q="x").get_lm_usage().values()
        assert usage["total_tokens"] > usage["completion_tokens"] > 0
    examples = [dspy.Example(q=f"q{i}").with_inputs("q") for i in range(6)]
    assert all(isinstance(p.a, int) for p in program.batch(examples, num_threads=3, disable_progress_bar=True))
    assert isinstance(asyncio.run(dspy.asyncify(program)(q="y")).a, int)


def test_a_whole_program_saves_and_loads(tmp_path):
    using(temperature=0)
    program = dspy.ChainOfThought("q -> a: int")
    program.set_lm(dspy.settings.lm)
    before = program(q="x").a
    program.save(tmp_path / "whole", save_program=True)
    lmc.set_default_backend(lmc.Mock())
    try:
        dspy.configure(lm=None)
        assert dspy.load(tmp_path / "whole", allow_pickle=True)(q="x").a == before
    finally:
        lmc.set_default_backend(None)


def test_litellm_is_not_imported():
    code = """
import sys, dspy, lmc
dspy.configure(lm=lmc.dspy.LM(lmc.Mock()), adapter=lmc.dspy.Adapter())
assert isinstance(dspy.Predict("q -> a: int")(q="x").a, int)
dspy.configure(adapter=dspy.JSONAdapter())
assert isinstance(dspy.Predict("q -> a: int")(q="x").a, int)
assert "litellm" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def engine():
    made = lmc.Engine("smollm2", max_tokens=12000)
    yield made
    made.check()
    made.close()


@pytest.fixture
def small(engine):
    """The small model as DSPy's LM."""
    dspy.configure(lm=lmc.dspy.LM(engine, temperature=0, max_tokens=8), adapter=lmc.dspy.Adapter())
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    return engine


@pytest.mark.model
def test_modules_on_the_small_model(small):
    data = [dspy.Example(text=t).with_inputs("text") for t in ("I love it.", "It broke at once.", "Awful!")]
    program = dspy.ChainOfThought("text -> mood: Literal['good', 'bad'], stars: int, words: list[str]")
    before = small.counters()
    scored = dspy.Evaluate(devset=data, metric=lambda e, p, trace=None: p.mood in ("good", "bad"), num_threads=4, display_progress=False)
    assert scored(program).score == 100.0
    spent = small.counters() - before
    assert spent.cached_tokens > spent.prompt_tokens / 2, "the instructions are computed once"
    assert isinstance(dspy.ReAct("question -> answer", tools=[lambda city: "cold"], max_iters=1)(question="Is Oslo cold?").answer, str)
    many = dspy.Parallel(num_threads=4, disable_progress_bar=True)([(dspy.Predict("text -> stars: int"), example) for example in data])
    assert all(isinstance(p.stars, int) for p in many)


@pytest.mark.model
def test_bootstrap_on_the_small_model(small):
    data = [dspy.Example(text=t, mood="good").with_inputs("text") for t in ("I love it.", "Nice and warm.")]
    optimizer = dspy.BootstrapFewShot(metric=lambda e, p, trace=None: p.mood in ("good", "bad"), max_bootstrapped_demos=2, max_labeled_demos=0)
    better = optimizer.compile(dspy.ChainOfThought("text -> mood: Literal['good', 'bad']"), trainset=data)
    assert len(better.predictors()[0].demos) == 2
    assert better(text="It broke.").mood in ("good", "bad")


@pytest.mark.model
def test_n_streams_and_async_calls_on_the_small_model(small, tmp_path):
    before = small.counters()
    found = dspy.Predict("text -> stars: int", n=3, temperature=1.0)(text="I love it.")
    spent = small.counters() - before
    assert len(found.completions.stars) == 3
    assert spent.calls == 3
    assert spent.prefilled_tokens <= spent.unique_tokens + 2, "one prompt for three answers; whoever comes late computes its last token again"
    usage = dspy.settings.lm.history[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0

    program = dspy.Predict("text -> mood: Literal['good', 'bad'], why")
    whole = program(text="I love it.")
    listener = dspy.streaming.StreamListener(signature_field_name="why")
    *pieces, last = list(dspy.streamify(program, stream_listeners=[listener], async_streaming=False)(text="I love it."))
    assert last.why == whole.why
    assert "".join(p.chunk for p in pieces if isinstance(p, dspy.streaming.StreamResponse)).strip() == whole.why.strip()

    async def work():
        return await asyncio.gather(*[program.acall(text=t) for t in ("I love it.", "It broke.", "Fine.")])

    assert asyncio.run(work())[0].mood == whole.mood

    program.save(tmp_path / "program.json")
    loaded = dspy.Predict("text -> mood: Literal['good', 'bad'], why")
    loaded.load(tmp_path / "program.json")
    assert loaded(text="I love it.").mood == whole.mood


def test_the_benchmark_serves_an_engine_of_this_process():
    """The benchmark measures DSPy's own client on it."""
    import urllib.request

    from benchmarks.bench_dspy import served

    with served(lmc.Mock()) as url, urllib.request.urlopen(f"{url}/models") as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["model"]
