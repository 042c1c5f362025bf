"""`lmc.compile` of DSPy modules: what DSPy's own run gives, with the requests of later predictors made ahead."""

from __future__ import annotations

import copy
import enum
import re
from typing import Any

import pydantic
import pytest

import lmc
from tests.backend.gated import Gated
from tests.conformance.harness import eager

dspy = pytest.importorskip("dspy", minversion="3.4")
pytestmark = pytest.mark.api


@pytest.fixture(autouse=True)
def fresh():
    dspy.configure(lm=None, adapter=None, callbacks=[], trace=[])
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    yield
    dspy.configure(lm=None, adapter=None, callbacks=[])


def using(answers: Any = None, adapter: Any = None, latency: Any = 0.0, **options: Any):
    mock = lmc.Mock(answers, latency=latency)
    dspy.configure(lm=lmc.dspy.LM(mock, **{"temperature": 0, "max_tokens": 12, **options}), adapter=lmc.dspy.Adapter() if adapter is None else adapter)
    return mock


def held(module: Any, asked: int, answers: Any = None, adapter: Any = None, **options: Any):
    """A compiled module that is evaluated at every wait, and its mock, which answers when so many requests are made."""
    mock = Gated(answers=answers, asked=asked)
    dspy.configure(lm=lmc.dspy.LM(mock, **{"temperature": 0, "max_tokens": 12, **options}), adapter=lmc.dspy.Adapter() if adapter is None else adapter)
    compiled = lmc.compile(module)
    eager(compiled._program)  # faults of the evaluator fail the test
    return compiled, mock


class Mood(enum.Enum):
    good = "good"
    bad = "bad"


class Place(pydantic.BaseModel):
    town: str
    size: int


class Notes(dspy.Module):
    """Reads each answer before it asks for the next."""

    def __init__(self):
        super().__init__()
        self.note = dspy.ChainOfThought("page: str -> note: str")
        self.answer = dspy.Predict("notes: list[str], question: str -> answer: str, sure: bool")

    def forward(self, question, pages):
        notes = []
        for page in pages:
            notes.append(self.note(page=page).note.strip())
        found = self.answer(notes=notes, question=question)
        return dspy.Prediction(answer=found.answer, sure=found.sure, notes=notes)


class Typed(dspy.Module):
    def __init__(self):
        super().__init__()
        self.mood = dspy.Predict(dspy.Signature({"text": (str, dspy.InputField()), "mood": (Mood, dspy.OutputField()), "place": (Place, dspy.OutputField())}))
        self.kinds = {name: dspy.Predict(f"text -> {name}: int") for name in ("first", "second")}

    def forward(self, text):
        found = self.mood(text=text)
        numbers = {name: predict(text=text)[name] for name, predict in self.kinds.items()}
        return found.mood, found.place, numbers


class Branches(dspy.Module):
    def __init__(self):
        super().__init__()
        self.route = dspy.Predict("text -> desk: Literal['a', 'b']")
        self.a, self.b = dspy.Predict("text -> reply: str"), dspy.Predict("text, desk -> reply: str, urgent: bool")

    def forward(self, text):
        desk = self.route(text=text).desk
        return self.a(text=text).reply if desk == "a" else self.b(text=text, desk=desk).reply


class Inner(dspy.Module):
    def __init__(self, name):
        super().__init__()
        self.name, self.ask = name, dspy.Predict("text -> view: str")

    def label(self, text):
        return f"{self.name}: {text}"

    def forward(self, text):
        return self.ask(text=self.label(text)).view


class Nested(dspy.Module):
    def __init__(self):
        super().__init__()
        self.inner = [Inner(name) for name in "xyz"]

    def forward(self, text):
        return [inner(text) if name == "x" else inner(text=text) for inner, name in zip(self.inner, "xyz")]


def look(town: str) -> str:
    """Looks a town up."""
    return f"{town} is large."


class Agent(dspy.Module):
    def __init__(self):
        super().__init__()
        self.act = dspy.ReAct("question -> answer", tools=[look], max_iters=2)
        self.check = dspy.Predict("answer -> good: bool")

    def forward(self, question):
        found = self.act(question=question)
        return found.answer, found.trajectory, self.check(answer=found.answer).good


class Agents(dspy.Module):
    """One agent after another, behind a plan that none of them needs."""

    def __init__(self, tool):
        super().__init__()
        self.plan = dspy.Predict("goal -> plan")
        self.act = dspy.ReAct("question -> answer", tools=[tool], max_iters=3)

    def forward(self, questions):
        return self.plan(goal="all").plan, [(found := self.act(question=q)).answer + str(found.trajectory) for q in questions]


class Retries(dspy.Module):
    """Asks the same thing several times, and handles errors."""

    def __init__(self):
        super().__init__()
        self.ask = dspy.Predict("n: int -> word: str")

    def forward(self, tries):
        words = []
        for n in range(tries):
            try:
                words.append(self.ask(n=n % 2).word)
                if n == 1:
                    raise ValueError("own")
            except ValueError as error:
                words.append(str(error))
        return words


PROGRAMS = {
    "notes": (Notes, {"question": "Who?", "pages": ["one", "two", "three"]}), "typed": (Typed, {"text": "It rains in Porto."}),
    "branches": (Branches, {"text": "help"}),
    "nested": (Nested, {"text": "tea"}), "agent": (Agent, {"question": "How large is Porto?"}), "retries": (Retries, {"tries": 4}),
    "a predictor": (lambda: dspy.Predict("question -> answer"), {"question": "Why?"}),
    "a chain": (lambda: dspy.ChainOfThought("question -> answer: int"), {"question": "Why?"}),
}  # fmt: skip


@pytest.mark.parametrize("latency", [0.0, 0.15], ids=["at once", "slow"])
@pytest.mark.parametrize("ahead", ["off", "certain", "likely"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_module_gives_what_dspy_gives(name, ahead, latency):
    if latency and ahead == "off":
        pytest.skip("nothing is asked ahead")
    make, inputs = PROGRAMS[name]
    using()
    expected = repr(make()(**inputs))
    using(latency=latency)
    compiled = lmc.compile(make(), ahead=ahead)
    assert [repr(compiled(**inputs)) for _ in range(2)] == [expected] * 2


def test_requests_of_later_predictors_are_made_while_python_waits():
    make, inputs = PROGRAMS["notes"]
    compiled, mock = held(make(), 6)
    state = compiled.run(inputs)
    assert state.usage.ahead_used >= 4 and state.usage.ahead_wasted == 0
    assert state.usage.calls == len(mock.call_log) == 8
    assert state.ret_value.notes
    said = compiled.explain()
    assert said.startswith("module Notes\n  so far: 1 run; ") and "ahead" in said and "stopped" not in said


class Article(dspy.Module):
    """Later asks come out of an answer: of a list in it, and of a text."""

    def __init__(self):
        super().__init__()
        self.outline = dspy.ChainOfThought("topic -> title: str, headings: list[str]")
        self.draft = dspy.Predict("title, heading -> text")

    def forward(self, topic):
        outline = self.outline(topic=topic)
        sections = []
        for heading in outline.headings:
            sections.append(self.draft(title=outline.title, heading=f"## {heading}").text)
        return dspy.Prediction(title=outline.title, sections=sections)


def test_requests_that_come_out_of_an_answer_are_made_together():
    def script(prompt, ask):
        texts = (
            {"reasoning": "so", "title": "Tea", "headings": '["a", "b", "c"]'}
            if "`[[ ## headings ## ]]`" in prompt
            else {"text": "of " + prompt.rpartition("## ")[2][:1]}
        )
        return "".join(f"[[ ## {name} ## ]]\n{text}\n\n" for name, text in texts.items()) + "[[ ## completed ## ]]"

    using(script, adapter=dspy.ChatAdapter(), max_tokens=99)
    expected = Article()(topic="tea").sections
    gated = Gated(3, script, behind=1)  # fails where a section waits for the one before it
    dspy.configure(lm=lmc.dspy.LM(gated, temperature=0, max_tokens=99), adapter=dspy.ChatAdapter())
    state = lmc.compile(Article()).run({"topic": "tea"})
    assert state.ret_value.sections == expected and len(expected) == 3
    assert gated.opened and (state.usage.calls, state.usage.ahead_used, state.usage.ahead_wasted) == (4, 2, 0)


def acts(prompt, ask):
    """An agent looks once, in DSPy's format or in fields of a template."""
    asked = prompt.rpartition("[[ ## question ## ]]")[2]
    looked = "observation_0" in asked
    texts = {
        "next_tool_name": "finish" if looked else "look",
        "next_tool_args": "{}" if looked else '{"town": "Faro"}' if "two?" in asked else '{"town": "Porto"}',
    }
    if ask.constraint is not None:
        return texts["next_tool_name" if ask.constraint.kind == "regex" else "next_tool_args"]
    names = re.findall(r"\[\[ ## (\w+) ## \]\]", prompt.rpartition("Respond with the corresponding output fields")[2])
    return "".join(f"[[ ## {name} ## ]]\n{texts.get(name, 'text')}\n\n" for name in names) if not ask.params.stop else "text"


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, lmc.dspy.Adapter], ids=["DSPy's", "template"])
@pytest.mark.parametrize("tool", [look, lmc.pure(look)], ids=["a tool", "a pure tool"])
def test_agents_that_do_not_need_each_other_ask_together(tool, adapter):
    questions = ["one?", "two?", "three?"]
    mock = using(acts, adapter=adapter(), max_tokens=200)
    expected = Agents(tool)(questions=questions)
    assert "Porto is large." in expected[1][0] and "'tool_name_1': 'finish'" in expected[1][0]
    gated = Gated(4, acts)  # fails where the first turn of an agent waits for the agent before it
    dspy.configure(lm=lmc.dspy.LM(gated, temperature=0, max_tokens=200))
    state = lmc.compile(Agents(tool)).run({"questions": questions})
    assert state.ret_value == expected and gated.opened
    assert state.usage.calls == len(mock.call_log) and state.usage.ahead_used >= 3 and state.usage.ahead_wasted == 0


class Summing(dspy.Module):
    """Agents that take as many turns as only Python can tell, with a predictor behind each."""

    def __init__(self):
        super().__init__()
        self.act, self.sum = dspy.ReAct("question -> answer", tools=[look], max_iters=3), dspy.Predict("answer -> short")

    def forward(self, questions):
        return [self.sum(answer=self.act(question=question).answer).short for question in questions]


def test_an_answer_is_not_taken_for_that_of_another_predictor():
    questions = ["one?", "two?"]
    looks = lambda prompt, ask: "look" if ask.constraint is not None and ask.constraint.kind == "regex" else None  # until its turns are over
    mock = using(looks)
    expected = Summing()(questions=questions)
    calls = len(mock.call_log)
    using(looks, latency=0.2)
    compiled = lmc.compile(Summing())
    eager(compiled._program)  # faults of the evaluator fail the test
    state = compiled.run({"questions": questions})
    assert state.ret_value == expected and (state.usage.calls, state.usage.ahead_wasted) == (calls, 0) and state.usage.ahead_used > 0


def test_a_pure_tool_is_called_once_and_callbacks_are_told_of_it_once():
    class Count(dspy.utils.BaseCallback):
        def __init__(self):
            self.events = []

        def on_tool_start(self, call_id, instance, inputs):
            self.events.append(("tool", instance.name))

        def on_adapter_format_start(self, call_id, instance, inputs):
            self.events.append(("format", len(inputs["inputs"])))

        def on_adapter_parse_start(self, call_id, instance, inputs):
            self.events.append(("parse", inputs["completion"]))

    towns, seen = [], []

    def look(town: str) -> str:
        """Looks a town up."""
        towns.append(town)
        return f"{town} is large."

    for build in (lambda m: m, lmc.compile):
        towns.clear()
        count, own = Count(), Count()
        using(acts, adapter=dspy.ChatAdapter(callbacks=[own]), max_tokens=200, latency=0.1)
        dspy.configure(callbacks=[count])
        module = build(Agents(lmc.pure(look)))
        module(questions=["one?", "two?"])
        seen.append((sorted(towns), count.events, own.events))
    assert seen[0] == seen[1] and seen[0][0] == ["Faro", "Porto"]


def test_the_lms_seed_samples_the_same_as_without_compiling():
    words = []
    for build, seed in ((lambda m: m, 7), (lmc.compile, 7), (lmc.compile, 8)):
        using(temperature=1.0, seed=seed)
        words.append(build(Nested())(text="tea"))
    assert words[0] == words[1] != words[2]


class Chains(dspy.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = dspy.Predict("text -> a"), dspy.Predict("a -> b")

    def forward(self, texts):
        return [self.second(a=self.first(text=text).a).b for text in texts]


def test_predictors_may_have_lms_of_their_own():
    expected = (using(), Chains()(texts="xyz"))[1]
    mock, other = using(latency=0.1), lmc.Mock(latency=0.1)
    module = Chains()
    module.second.lm = lmc.dspy.LM(other, temperature=0, max_tokens=12)
    assert lmc.compile(module)(texts="xyz") == expected
    assert (len(mock.call_log), len(other.call_log)) == (3, 3)  # nothing is asked of a model that its predictor does not ask
    dspy.configure(lm=None)
    module.set_lm(lmc.dspy.LM(Gated(asked=2, behind=1), temperature=0, max_tokens=12))
    compiled = lmc.compile(module)
    eager(compiled._program)
    state = compiled.run({"texts": "xyz"})
    assert state.ret_value == expected and state.usage.ahead_used > 0


def test_an_adapter_that_asks_a_model_to_parse_does_not_ask_ahead():
    counts = []
    for build in (lambda m: m, lmc.compile):
        reads = lmc.Mock(lambda prompt, ask: "".join(f"[[ ## {name} ## ]]\n{len(prompt)}\n\n" for name in ("a", "b")) + "[[ ## completed ## ]]")
        mock = using(adapter=dspy.TwoStepAdapter(lmc.dspy.LM(reads, temperature=0, max_tokens=200)), latency=0.1)
        counts.append((build(Chains())(texts="xyz"), len(mock.call_log), len(reads.call_log)))
    assert counts[0] == counts[1] and counts[0][1:] == (6, 6)


def test_inputs_may_be_positional():
    using()
    assert lmc.compile(Chains())("xyz") == Chains()("xyz") == lmc.compile(Chains())(texts="xyz")


def test_dspys_own_adapter_is_followed_too():
    script = lambda prompt, ask: "[[ ## view ## ]]\nfine\n\n[[ ## completed ## ]]"
    using(script, adapter=dspy.ChatAdapter(), max_tokens=60)
    expected = Nested()(text="tea")
    compiled, mock = held(Nested(), 3, script, dspy.ChatAdapter(), max_tokens=60)
    state = compiled.run({"text": "tea"})
    assert state.ret_value == expected == ["fine"] * 3 and state.usage.ahead_used >= 1 and len(mock.call_log) == 3


def test_samples_of_equal_requests_differ_and_can_be_repeated():
    using(temperature=1.0)
    compiled = lmc.compile(Retries())
    run = lambda seed: compiled.run({"tries": 4}, seed=seed).ret_value
    words = run(1)
    assert words[0] != words[3] and run(1) == words != run(2)


def test_callbacks_history_and_traces_are_dspys():
    class Count(dspy.utils.BaseCallback):
        def __init__(self):
            self.modules, self.lms = [], 0

        def on_module_start(self, call_id, instance, inputs):
            self.modules.append(type(instance).__name__)

        def on_lm_start(self, call_id, instance, inputs):
            self.lms += 1

    make, inputs = PROGRAMS["notes"]
    seen = []
    for build in (make, lambda: lmc.compile(make())):
        using(latency=0.05)
        count = Count()
        dspy.configure(callbacks=[count], trace=[])
        module = build()
        module(**inputs)
        seen.append(([m for m in count.modules if m != "CompiledModule"], count.lms, len(dspy.settings.trace)))
    assert seen[0] == seen[1]


def test_an_exception_of_the_module_is_its_own():
    class Fails(dspy.Module):
        def __init__(self):
            super().__init__()
            self.ask = dspy.Predict("x -> y")

        def forward(self, x):
            self.ask(x=x)
            raise KeyError("of the module")

    using()
    with pytest.raises(KeyError, match="of the module"):
        lmc.compile(Fails())(x="1")


def test_optimizers_evaluate_and_parallel_take_it_as_a_module():
    using(lambda prompt, ask: "True" if ask.name == "sure" else "word")
    compiled = lmc.compile(Notes())
    assert {name for name, _ in compiled.named_predictors()} == {"module.note.predict", "module.answer"}
    examples = [dspy.Example(question=f"q{i}", pages=["a", "b"], answer="word").with_inputs("question", "pages") for i in range(3)]
    found = dspy.Evaluate(devset=examples, metric=lambda e, p, trace=None: p.answer == e.answer, num_threads=3, display_progress=False)(compiled)
    assert found.score == 100.0
    better = dspy.BootstrapFewShot(metric=lambda e, p, trace=None: True, max_bootstrapped_demos=2).compile(compiled, trainset=examples)
    assert type(better) is type(compiled) and better.module.answer.demos and not compiled.module.answer.demos
    assert better(question="q", pages=["a"]).answer == "word"


def test_it_is_copied_pickled_and_saved_as_its_module(tmp_path):
    import cloudpickle  # what DSPy saves whole programs with

    using()
    compiled = lmc.compile(Branches())
    for other in (copy.deepcopy(compiled), cloudpickle.loads(cloudpickle.dumps(compiled))):
        assert other(text="t") == compiled(text="t") and other.module is not compiled.module
    compiled.module.a.demos = [dspy.Example(text="x", reply="y")]
    compiled.save(tmp_path / "program.json")
    loaded = lmc.compile(Branches())
    loaded.load(tmp_path / "program.json")
    assert [dict(demo) for demo in loaded.module.a.demos] == [{"text": "x", "reply": "y"}]


def test_a_budget_holds_for_a_run():
    mock = using()
    compiled = lmc.compile(Nested())
    with pytest.raises(Exception, match="calls"):
        compiled.run({"text": "tea"}, budget=lmc.Budget(calls=2))
    asked = len(mock.call_log)
    assert asked == 2


def test_it_runs_as_dspy_does_where_the_lm_is_not_lmcs():
    class Plain(dspy.lm15.Engine if hasattr(dspy.lm15, "Engine") else object):
        def complete(self, request):
            return dspy.lm15.Response(id="1", model=request.model, message=dspy.lm15.Message.assistant([dspy.lm15.TextPart("[[ ## view ## ]]\nfine\n\n[[ ## "
                                                                                                                           "completed ## ]]")]),
                                      finish_reason="stop", usage=dspy.lm15.Usage(input_tokens=1, output_tokens=1, total_tokens=2))  # fmt: skip

    dspy.configure(lm=dspy.LM("own/model", engine=Plain()))
    compiled = lmc.compile(Inner("x"))
    assert compiled(text="t") == "fine"
    with pytest.raises(lmc.ArgumentError, match="LM in force is not lmc's"):
        compiled.run({"text": "t"})


@pytest.mark.parametrize("options", [{"outputs": ["x"]}, {"aggressive": True}])
def test_options_that_need_a_graph_are_refused(options):
    with pytest.raises(lmc.ArgumentError, match=next(iter(options))):
        lmc.compile(Inner("x"), **options)


@pytest.mark.parametrize("options", [{"journal": "x"}, {"deadline": "24h"}])
def test_a_run_is_not_journaled(options):
    using()
    with pytest.raises(lmc.ArgumentError, match="not recorded"):
        lmc.compile(Inner("x")).run({"text": "t"}, **options)


def test_compiling_twice_compiles_once():
    using()
    assert not isinstance(lmc.compile(lmc.compile(Inner("x"))).module, type(lmc.compile(Inner("x"))))


@pytest.mark.parametrize("name, needs", [("BootstrapFewShot", "dspy"), ("MIPROv2", "optuna"), ("GEPA", "gepa")])
def test_optimizers_ask_the_same_of_a_compiled_module_as_of_a_plain_one(name, needs, monkeypatch):
    pytest.importorskip(needs)
    from experiments import rag
    from experiments.core import Setup

    monkeypatch.setattr(rag, "LATENCY", 0.0)
    monkeypatch.setattr(rag, "THREADS", 1)  # which of several is first decides what GEPA reflects on
    plain, compiled, templates = [rag._optimized(Setup(n=2, reps=1), name, way) for way in rag.OPTIMIZED]
    assert {key: compiled[key] for key in ("requests", "prompt", "generated", "score")} == {
        key: plain[key] for key in ("requests", "prompt", "generated", "score")
    }
    assert compiled["requests"] == templates["requests"] > 2 and compiled["score"] == templates["score"] == 1.0
    assert plain["unparsed"] == compiled["unparsed"] == templates["unparsed"] == 0
    assert max(row["computed"] for row in (plain, compiled)) < plain["prompt"]
