"""Programs written for SGLang's frontend run after `import lmc as sgl`, and mean the same interpreted, compiled and in a batch."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import subprocess
import sys
from dataclasses import replace
from math import exp
from typing import Any

import pytest

import lmc as sgl
from lmc.backend.mock import CAPABILITIES
from tests.conformance.harness import conform, effect, scripted
from tests.frontend.kinds import Kinds
from tests.searching import some

kind = KINDS = Kinds()


# -- questions and answers -------------------------------------------------------------------------------------------


@kind({"question": "Which river runs through Cairo?"}, {"question": "Which river runs through Prague?"}, temperature=0)
@sgl.function
def few_shot_qa(s, question):
    s += "Short questions with short answers.\n\n"
    s += "Q: Which river runs through London?\n"
    s += "A: The Thames\n"
    s += "Q: Which river runs through Vienna?\n"
    s += "A: The Danube\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", temperature=0)


@kind({"question_1": "Describe a lighthouse.", "question_2": "Now as a haiku."}, temperature=0.7, max_new_tokens=24)
@sgl.function
def mt_bench_turns(s, question_1, question_2):
    s += sgl.system("You are a careful writer.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1"))
    with s.user():
        s += question_2
    with s.assistant():
        s += sgl.gen("answer_2")


@kind({"question": "Name a prime."})
@sgl.function
def begin_and_end(s, question):
    s += sgl.system_begin() + "Terse." + sgl.system_end()
    s += sgl.user_begin()
    s += "Question: " + question
    s += sgl.user_end()
    s += sgl.assistant_begin()
    s += "Answer: " + sgl.gen("answer", max_tokens=32, stop=["\n", "."])
    s += sgl.assistant_end()


@kind({"question": "Name a prime."})
@sgl.function
def roles_of_the_state(s, question):
    s.system("Terse.")
    s += s.user(question)  # appended once
    s += s.assistant(sgl.gen("answer", max_tokens=8))
    return s


@kind({"question": "How high is the Eiffel tower?"}, temperature=0.1)
@sgl.function
def expert_answer(s, question):
    s += "Question: " + question + "\n"
    s += "Somebody who knows this is" + sgl.gen("expert", stop=[".", "\n"], max_tokens=16) + ".\n"
    s += "Asked,"
    s += s["expert"] + " would say that " + sgl.gen("answer", stop=".", max_tokens=16) + "."


# -- select ----------------------------------------------------------------------------------------------------------


def statements(method: Any) -> Any:
    @sgl.function
    def true_or_false(s, statement):
        s += "True, False or Unknown?\nStatement: Water is wet.\nAnswer: True\n"
        s += "Statement: " + statement + "\nAnswer:"
        if method is None:
            s += sgl.select("answer", ["True", "False", "Unknown"])
        else:
            s += sgl.select("answer", choices=["True", "False", "Unknown"], temperature=0.0, choices_method=method)
        return s["answer"]

    return true_or_false


STATEMENTS = [{"statement": "The sea is dry."}, {"statement": "Bonn is a city."}, {"statement": "Blue is best."}]
METHODS = (None, sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized, "greedy_token_selection")


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_select(method):
    conform(statements(method), STATEMENTS)


def test_each_method_says_what_it_compared():
    keys = {}
    for method in METHODS[1:4]:
        state = statements(method).run(statement="x", backend=sgl.Mock())
        keys[method] = set(state.get_meta_info("answer"))
        assert state["answer"] in ("True", "False", "Unknown")
    for found in keys.values():
        assert found >= {"normalized_prompt_logprobs", "input_token_logprobs"}
    assert "greedy_logprob_matrix" in keys[sgl.greedy_token_selection]
    assert "normalized_unconditional_prompt_logprobs" in keys[sgl.unconditional_likelihood_normalized]


@kind({"question": "What is 2 * 2?"}, {"question": "Who wrote Emma?"}, {"question": "What is 7 * 6?"})
@sgl.function
def gen_with_choices(s, question):
    s += "To answer " + question + " I need a "
    s += sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The expression is" + sgl.gen("expression", max_tokens=12)
    elif s["tool"] == "search engine":
        s += "The key word is" + sgl.gen("word", max_tokens=12)


ENDINGS = [
    {"question": "He strikes a match. ", "choices": ["It burns.", "It swims.", "It sings aloud.", "It is a cat."]},
    {"question": "She opens the book. ", "choices": ["She reads.", "She barks at the moon.", "It rains.", "The end."]},
    {"question": "They board the train. ", "choices": ["It leaves.", "It melts.", "It flies.", "It is late again."]},
]


@kind(*ENDINGS, temperature=0)
@sgl.function
def sentence_endings(s, question, choices):
    s += "Finish the story.\n\n" + question
    s += sgl.select("answer", choices=choices)


# -- constraints -----------------------------------------------------------------------------------------------------

OCTETS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"


@kind(temperature=0.1)
@sgl.function
def decode_int(s):
    s += "Hours in a day: " + sgl.gen_int("hours") + "\n"
    s += "Days in a year: " + sgl.gen_int("days") + "\n"


@kind()
@sgl.function
def ip_address(s):
    s += "Q: What is the address of the name server?\n"
    s += "A: " + sgl.gen("answer", temperature=0, regex=OCTETS)


@kind(temperature=0.0)
@sgl.function
def json_by_regexes(s):
    s += "Basic facts of Lisbon as a JSON object:\n"
    with s.var_scope("json_output"):
        s += "{\n"
        s += '  "name": ' + sgl.gen(regex=sgl.REGEX_STR) + ",\n"
        s += '  "population": ' + sgl.gen(regex=sgl.REGEX_INT, stop=[" ", "\n"]) + ",\n"
        s += '  "latitude": ' + sgl.gen(regex=r"[0-9]+\.[0-9]+", stop=[" ", "\n"]) + ",\n"
        s += '  "capital": ' + sgl.gen(regex="(true|false)") + "\n"
        s += "}"


@kind(max_new_tokens=64)
@sgl.function
def json_by_dtypes(s):
    s += "Basic facts of Lisbon as a JSON object:\n"
    with s.var_scope("json_output"):
        s += '{\n  "name": ' + sgl.gen_string() + ",\n"
        s += '  "country": ' + sgl.gen(dtype=str) + ",\n"
        s += '  "where": ' + sgl.gen_string("where") + "\n"
        s += "}"


CHARACTER = r"""\{\n    "name": "[\w\d\s]{1,16}",\n    "house": "(North|South|East)",\n    "age": [0-9]{1,2}\n\}"""


@kind({"name": "Ann"}, {"name": "Bob"})
@sgl.function
def json_by_one_regex(s, name):
    s += sgl.user(f"{name} is a character of a play. Fill in what is known.")
    s += sgl.assistant(sgl.gen("json_output", max_tokens=256, regex=CHARACTER))


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}, "n": {"type": "integer", "minimum": 0, "maximum": 9999999}},
        "required": ["city", "n"],
    }
)


@kind({"q": "Lisbon"})
@sgl.function
def json_by_schema(s, q):
    s += q + sgl.gen("json_output", max_tokens=256, json_schema=SCHEMA)


@kind()
@sgl.function
def every_dtype(s):
    s += "Full name: " + sgl.gen("str_res", dtype=str, stop="\n") + "\n"
    s += "Year: " + sgl.gen("int_res", dtype=int) + "\n"
    s += "Pi: " + sgl.gen("float_res", dtype=float) + "\n"
    s += "Blue? " + sgl.gen("bool_res", dtype=bool) + "\n"
    s += "By name: " + sgl.gen("named", dtype="int") + "\n"


def test_constrained_answers_are_of_their_language():
    mock = sgl.Mock()
    sgl.set_default_backend(mock)
    try:
        assert all(re.fullmatch(r"[-+]?[0-9]+", decode_int()[name]) for name in ("hours", "days"))
        assert re.fullmatch(OCTETS, ip_address()["answer"])
        assert re.fullmatch(CHARACTER, json_by_one_regex("Ann")["json_output"])
        assert set(json.loads(json_by_schema(q="x")["json_output"])) == {"city", "n"}
        state = every_dtype()
        int(state["int_res"]), float(state["float_res"]), int(state["named"])
        assert state["bool_res"] in ("True", "False")
        assert re.fullmatch(sgl.REGEX_STR, state["str_res"]) or "\n" in mock.call_log[-5].ask.params.stop
        state["int_res"] = int(state["int_res"])
        assert type(state["int_res"]) is int
    finally:
        sgl.set_default_backend(None)


@kind({"question": "2 + 2?", "width": 2})
@sgl.function
def paths_by_confidence(s, question, width):
    s += "Q: " + question + "\nA:"
    first = s.fork(1)[0]
    first += sgl.gen("start", max_tokens=1, return_logprob=True, top_logprobs_num=width, return_text_in_logprobs=True)
    tops = first.get_meta_info("start")["output_top_logprobs"][0]
    found = []
    for f, (_, _, text) in zip(s.fork(width), tops):
        f += text + sgl.gen("answer", temperature=0, max_tokens=8, return_logprob=True, top_logprobs_num=2)
        best = f.get_meta_info("answer")["output_top_logprobs"]
        gaps = [exp(a[0]) - exp(b[0]) for a, b in best]
        found.append((sum(gaps) / len(gaps), f["answer"]))
    s += max(found)[1]
    return sorted(found)


@kind({"question": "2 + 2?", "width": 3})
@sgl.function
def paths_from_the_candidates(s, question, width):
    s += sgl.user("Question: " + question) + sgl.assistant_begin()
    first, forks = s.fork(1)[0], s.fork(width)
    first += sgl.gen("top", max_tokens=0, return_logprob=True, top_logprobs_num=width, return_text_in_logprobs=True)
    for f, (_, _, text) in zip(forks, first.get_meta_info("top")["output_top_logprobs"][0]):
        f += text + sgl.gen("answer", temperature=0, max_tokens=4)
    first += "!"
    return first["top"], first.text()[-3:], [f.text()[-6:] for f in forks]


@kind({"q": "x"}, {"q": "y"})
@sgl.function
def surprise(s, q):
    s += sgl.user(q) + sgl.assistant(sgl.gen("answer", max_tokens=6, return_logprob=True, logprob_start_len=0))
    meta = s.get_meta_info("answer")
    return meta["prompt_tokens"] == len(meta["input_token_logprobs"]), sum(lp for lp, _, _ in meta["output_token_logprobs"])


# -- tools -----------------------------------------------------------------------------------------------------------


def calculate(expression):
    effect("calculate", expression)
    left, right = expression.split("*")
    return f"{int(left) * int(right)}"


@kind({"lhs": 257, "rhs": 983}, {"lhs": 3, "rhs": 4}, backend=lambda: sgl.Mock(answers={"expression": "12*12) is"}))
@sgl.function
def tool_use(s, lhs, rhs):
    s += "Compute with calculate(expression).\ncalculate(1*2)=2\n"
    s += "Question: What is " + str(lhs) + " times " + str(rhs) + "?\n"
    s += "Answer: calculate(" + sgl.gen("expression", stop=")") + ") = "
    with s.var_scope("answer"):
        s += calculate(s["expression"])
    return int(s["answer"])


def react_answers() -> sgl.Mock:
    def answer(prompt: str, ask: Any) -> str | None:
        if ask.name in ("action_1", "action_2", "action_3"):
            return "Finish" if "Observation 2" in prompt.split("---")[1] else "Search"
        return None

    return sgl.Mock(answers=answer)


@kind({"question": "Who founded the home town of Kafka?"}, {"question": "Who?"}, backend=react_answers, temperature=0.1)
@sgl.function
def react(s, question):
    s += "Thought 1: I look it up.\nAction 1: Search [x].\nObservation 1: y.\n---\n"
    s += "Question: " + question + "\n"
    for i in range(1, 5):
        s += f"Thought {i}:" + sgl.gen(stop=[".", "\n"], max_tokens=16) + ".\n"
        s += f"Action {i}: " + sgl.select(f"action_{i}", ["Search", "Finish"])
        if s[f"action_{i}"] == "Search":
            s += " [" + sgl.gen(stop="]", max_tokens=8) + "].\n"
            s += f"Observation {i}:" + sgl.gen(stop=[".", "\n"], max_tokens=16) + ".\n"
        else:
            s += " [" + sgl.gen("answer", stop="]", max_tokens=8) + "].\n"
            break


# -- forks -----------------------------------------------------------------------------------------------------------

TIPS = 3


@kind({"topic": "sleep"}, {"topic": "tea"}, temperature=0.3)
@sgl.function
def parallel_decoding(s, topic):
    s += "USER: Some tips for " + topic + ".\n"
    s += "ASSISTANT: Here are " + str(TIPS) + " short tips:\n"
    for i in range(1, 1 + TIPS):
        s += f"{i}." + sgl.gen(max_tokens=16, stop=[".", "\n"]) + ".\n"
    forks = s.fork(TIPS)
    for i in range(TIPS):
        forks[i] += f"Tip {i + 1} at length:\nTip {i + 1}:"
        forks[i] += sgl.gen("detailed_tip", 32, stop=["\n\n"])
    forks.join()
    s += "The tips at length:\n"
    for i in range(TIPS):
        s += f"Tip {i + 1}:" + forks[i]["detailed_tip"] + "\n"
    s += "\nIn summary," + sgl.gen("summary", max_tokens=48)
    return len(s["detailed_tip"])


@kind({"question": "Who baked?", "context_0": "Ann baked.", "context_1": "Bob sang.", "context_2": "Cid slept."}, temperature=0)
@sgl.function
def parallel_encoding(s, question, context_0, context_1, context_2):
    s += "USER: A question about some statements.\n"
    contexts = [context_0, context_1, context_2]
    forks = s.fork(len(contexts))
    forks += lambda i: f"Statement {i}: " + contexts[i] + "\n"
    forks.join(mode="concate_and_append")
    s += "Question: " + question + "\n"
    s += "ASSISTANT:" + sgl.gen("answer", max_tokens=16)


@kind()
@sgl.function
def tips_of_two_forks(s):
    s += "Two tips: 1. Balanced diet. 2. Exercise.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Tip {i + 1} as a paragraph:\n"
        f += sgl.gen("detailed_tip", max_tokens=32, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\nTip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary")


@kind({"q": "Why?"})
@sgl.function
def group_appends(s, q):
    forks = s.fork(3)
    forks += q + "\n"
    forks += ["one", "two", "three"]
    forks += sgl.gen("x", max_tokens=8)
    forks.join("gather_variable")
    s += " / ".join(s["x"])
    return s["x"]


@kind({"q": "Why?"})
@sgl.function
def stages_of_forks(s, q):
    s += q
    outer = s.fork(2)
    for f in outer:
        f += " stage one" + sgl.gen("one", max_tokens=8)
        inner = f.fork(2)
        for i, g in enumerate(inner):
            g += f" stage two {i}" + sgl.gen("two", max_tokens=8)
        inner.join()
        f += " of which " + f["two"][0]
    s += outer[0]["one"] + outer[1].text()[-8:]


@kind({"q": "Why?"})
@sgl.function
def a_copy(s, q):
    s += sgl.user(q)
    with s.copy() as tmp:
        tmp += sgl.assistant(sgl.gen("draft", max_tokens=16))
    s += sgl.assistant("On " + s["draft"][0] + sgl.gen("final", max_tokens=16))


# -- sampling --------------------------------------------------------------------------------------------------------


@kind({"q": "A name: "}, temperature=0.9)
@sgl.function
def parallel_samples(s, q):
    s += q + sgl.gen("names", n=3, max_tokens=8) + "\n" + sgl.gen("more", max_tokens=8)
    return len(s["names"]), s["names"][0]


@kind({"q": "x"})
@sgl.function
def samples_of_forks(s, q):
    s += q
    forks = s.fork(4)
    forks += sgl.gen("answer", temperature=0.6, max_tokens=8)
    return sorted(f["answer"] for f in forks)


@kind({"q": "capital?"})
@sgl.function
def at_least(s, q):
    s += sgl.user(q)
    s += sgl.assistant(sgl.gen("answer", min_tokens=64, max_tokens=128))


@kind({"q": "x"}, stop=["zzz"], max_new_tokens=40, top_p=0.9, top_k=20, min_p=0.05, frequency_penalty=0.1, presence_penalty=0.2)
@sgl.function
def own_and_inherited(s, q):
    s += q + sgl.gen("a", stop=[" ", "\n"]) + sgl.gen("b", stop=(" k",), temperature=0.2) + sgl.gen("c")
    s += sgl.gen("d", stop_regex=r"[aeiou]{2}|m", stop_token_ids=[13], ignore_eos=True, top_k=5)


def test_min_tokens_and_stop_lists():
    words = ["\n", "."]
    state = at_least.run(q="x", backend=sgl.Mock())
    assert state.get_meta_info("answer")["completion_tokens"] >= 64
    mock = sgl.Mock(answers={"answer": "one. two"})

    @sgl.function
    def stops(s):
        for _ in range(3):
            s += sgl.gen("answer", stop=words)
        return s["answer"]

    assert stops.run(backend=mock, stop=words).ret_value == "one"
    assert words == ["\n", "."]  # never made longer
    assert {c.params.stop for c in mock.call_log} == {("\n", ".")}


# -- speculation, sub-programs, bound arguments -----------------------------------------------------------------------


@kind()
@sgl.function(num_api_spec_tokens=64)
def character_by_completion(s):
    s += "Name: Ada.\nBirthday: December 10.\nJob: programmer.\n\nAnother one.\n"
    s += "Name:" + sgl.gen("name", stop="\n") + "\nBirthday:" + sgl.gen("birthday", stop="\n")
    s += "\nJob:" + sgl.gen("job", stop="\n") + "\n"


@kind()
@sgl.function(num_api_spec_tokens=256)
def character_by_chat(s):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user("Make up a character.")
    s += sgl.assistant(
        "Name:" + sgl.gen("name", stop="\n") + "\nBirthday:" + sgl.gen("birthday", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")
    )
    return s["name"]


@sgl.function
def expand(s, tip):
    s += "Expand: " + tip + "\n" + sgl.gen("text", max_tokens=16)


@kind({"topic": "tea"})
@sgl.function
def calls_another(s, topic):
    s += "A tip on " + topic + ":" + sgl.gen("tip", max_tokens=12)
    states = [expand(tip=s["tip"] + mark) for mark in "?!"]
    for state in states:
        s += state["text"] + "\n"
    return states[0]["text"]


@kind({"question": "1 + 1?"}, {"question": "2 + 2?"})
@sgl.function
def variables(s, question):
    s += question + sgl.gen("answer", max_tokens=8)
    s.set_var("copy", s.get_var("answer") + "!")
    s["upper"] = s["answer"].upper()
    if "nothing" not in s and "answer" in s:
        s += s["copy"] + s["upper"]
    with s.var_scope("outer"):
        s += "a" + sgl.gen(max_tokens=4)
        with s.var_scope("inner"):
            s += "b" + sgl.gen(max_tokens=4)
    s += s["inner"]
    return s["outer"]


REASONED = {"answer": "<think>\nTwo cities.\n</think>\n\nBern.", "second": "no thought", "cut": "<think>and then"}


@kind({"question": "The capital of Switzerland?"}, backend=scripted(**REASONED))
@sgl.function
def reasons(s, question):
    s += sgl.user(question)
    s += sgl.assistant_begin()
    s += "So: " + sgl.separate_reasoning(sgl.gen("answer", max_tokens=512), model_type="qwen3")
    s += sgl.assistant_end()
    s += sgl.user("Sure?") + sgl.assistant(sgl.separate_reasoning(sgl.gen("second") + "." + sgl.gen("cut"), model_type="qwen3"))
    return s["answer_reasoning_content"]


# -- all of them, three ways -----------------------------------------------------------------------------------------

@some("name", KINDS, 5)
def test_means_the_same_in_every_execution(name):
    KINDS[name].check()


# -- streams ---------------------------------------------------------------------------------------------------------

TURNS = {"question_1": "Describe a lighthouse.", "question_2": "Now as a haiku."}


def turns(program: Any = mt_bench_turns, **options: Any) -> sgl.ProgramState:
    return program(**TURNS, temperature=0, max_new_tokens=24, backend=sgl.Mock(latency=0.02), stream=True, **options)


@pytest.mark.parametrize("make", (lambda fn: fn, sgl.compile), ids=("interpreter", "compiled"))
def test_a_stream_is_the_text_in_pieces(make):
    state = turns(make(mt_bench_turns))
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text() == turns().text()
    assert len(pieces) > 8


def test_a_stream_of_one_variable():
    state = turns()
    assert "".join(state.text_iter("answer_2")) == state["answer_2"]
    assert "".join(state.text_iter(var_name="answer_1")) == state["answer_1"]


def test_a_stream_of_a_scope_ends():
    state = json_by_dtypes.run(backend=sgl.Mock(latency=0.01), stream=True)
    assert "".join(state.text_iter("json_output")) == state["json_output"]


def test_async_streams_also_with_meta_info():
    async def read():
        state = turns()
        whole = [piece async for piece in state.text_async_iter()]
        one = [piece async for piece in state.text_async_iter(var_name="answer_1")]
        pairs = [pair async for pair in turns().text_async_iter("answer_2", return_meta_data=True)]
        return state, whole, one, pairs

    state, whole, one, pairs = asyncio.run(read())
    assert "".join(whole) == state.text()
    assert "".join(one) == state["answer_1"]
    assert "".join(text for text, _ in pairs) == state["answer_2"]
    assert pairs[-1][1]["completion_tokens"] == len(state["answer_2"])


def test_a_state_that_is_not_streamed_can_be_read_as_a_stream():
    state = few_shot_qa.run(question="x", backend=sgl.Mock())
    assert "".join(state.text_iter()) == state.text()
    assert "".join(state.text_iter("answer")) == state["answer"]


# -- batches, bound arguments ------------------------------------------------------------------------------------------

QUESTIONS = [{"question": f"{i} + {i}?"} for i in range(6)]


def texts(states: Any) -> list[str]:
    return [state.text() for state in states]


def test_batches_in_every_style_give_the_same():
    expected = texts(few_shot_qa.run(**q, backend=sgl.Mock()) for q in QUESTIONS)
    as_tuples = [tuple(q.values()) for q in QUESTIONS]
    for batch in (QUESTIONS, as_tuples):
        for options in ({}, {"num_threads": 1}, {"num_threads": 64}, {"progress_bar": True}, {"generator_style": True}):
            states = few_shot_qa.run_batch(batch, backend=sgl.Mock(latency=0.001), **options)
            assert isinstance(states, list) != options.get("generator_style", False)
            assert texts(states) == expected
    assert texts(few_shot_qa.run_batch(iter(QUESTIONS), backend=sgl.Mock())) == expected
    assert texts(sgl.compile(few_shot_qa).batch(QUESTIONS, backend=sgl.Mock())) == expected
    assert few_shot_qa.run_batch([], backend=sgl.Mock()) == []


def test_bound_arguments_by_run_batch_trace_and_cache():
    @sgl.function
    def ask(s, prompt, question):
        s += prompt
        s += "Q: Which river runs through London?\nA: The Thames\n"
        s += "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n")

    mock = sgl.Mock()
    bound = ask.bind(prompt="Answer as a child would.\n")
    given = ask.run("Answer as a child would.\n", "x", backend=mock, seed=1)
    assert bound.run(question="x", backend=mock, seed=1).text() == given.text()
    (one,) = bound.run_batch([{"question": "x"}], backend=mock)
    assert one.text().startswith("Answer as a child would.\nQ: Which")

    shown = str(bound.trace())
    assert bound.trace().last_node.print_graph_dfs() == shown
    assert "graph @ask(%question: any)" in shown
    assert '%c1 = append(%c0, "Answer as a child would.\\n")' in shown
    assert "gen(%c" in str(ask.trace(question="y"))

    cached = sgl.Mock()
    bound.cache(cached)
    prefix = "Answer as a child would.\nQ: Which river runs through London?\nA: The Thames\n"
    assert cached.counters().prefilled_tokens == len(prefix)
    bound.run(question="x", backend=cached).sync()
    assert cached.counters().prefilled_tokens == len(prefix + "Q: x\nA:")


def test_cache_computes_roles_by_the_backend_s_template():
    mock = sgl.Mock()
    mt_bench_turns.cache(mock)
    before = mock.counters().prefilled_tokens
    state = mt_bench_turns.run(**TURNS, backend=mock)
    state["answer_1"]
    text = state.text()
    known = text[: text.index("Describe")]
    assert before == len(known.replace("<|im_start|>", "!").replace("<|im_end|>", "!"))  # each is one token


# -- the module ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_default():
    sgl.set_default_backend(None)
    yield
    sgl.set_default_backend(None)


def test_cache_and_info_of_no_backend_make_none(no_default):
    assert sgl.flush_cache() is False
    assert sgl.get_server_info() is None
    assert sgl.global_config.default_backend is None


def test_cache_and_info_of_a_backend(no_default):
    mock = sgl.Mock()
    sgl.set_default_backend(mock)
    few_shot_qa.run(question="x").sync()
    computed = mock.counters().prefilled_tokens
    assert sgl.global_config.default_backend is mock
    assert sgl.get_server_info() == sgl.get_server_info(mock) == {"name": "mock", "tokenizer": "bytes", "calls": 1}
    few_shot_qa.run(question="x").sync()
    assert mock.counters().prefilled_tokens == computed  # cached
    assert sgl.flush_cache(empty_cache=False) is True
    few_shot_qa.run(question="x").sync()
    assert mock.counters().prefilled_tokens == 2 * computed


def test_global_config_is_lmc_s(no_default):
    mock = sgl.Mock()
    sgl.global_config.default_backend = mock
    assert few_shot_qa.run(question="x").emitter.run.backend is mock
    assert sgl.global_config.verbosity == 0
    sgl.global_config.enable_parallel_encoding = False  # without effect: text is what it is
    with pytest.raises(sgl.UnsupportedOpError, match=r"verbosity = 2: print\(state"):
        sgl.global_config.verbosity = 2
    with pytest.raises(AttributeError, match=r"lmc\.config"):
        sgl.global_config.verbose = 1


def test_images_are_refused_before_the_model_is_asked():
    @sgl.function
    def image_qa(s, question):
        s += sgl.user(sgl.image("cat.png") + question)
        s += sgl.assistant(sgl.gen("answer"))

    @sgl.function
    def video_qa(s, question):
        s += sgl.user(sgl.video("cat.mp4", 8) + question)
        s += sgl.assistant(sgl.gen("answer"))

    mock = sgl.Mock(capabilities=replace(CAPABILITIES, images=False))
    for program, what in ((image_qa, "image"), (video_qa, "video")):
        for call in (program.run, sgl.compile(program)):
            with pytest.raises(sgl.UnsupportedOpError, match=f"{what} input"):
                call(question="What is this?", backend=mock)
    assert mock.call_log == []


SURFACE = {
    "function": "func num_api_spec_tokens",
    "gen": "name max_tokens min_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty "
    "presence_penalty ignore_eos return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs dtype choices "
    "choices_method regex json_schema",
    "gen_int": "name max_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty "
    "presence_penalty ignore_eos return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs",
    "select": "name choices temperature choices_method",
    "system": "expr",
    "separate_reasoning": "expr model_type",
    "flush_cache": "backend empty_cache",
    "get_server_info": "backend",
    "set_default_backend": "backend",
}


@pytest.mark.parametrize("name", SURFACE)
def test_parameters_come_in_sglang_s_order(name):
    """So that positional arguments mean the same."""
    parameters = inspect.signature(getattr(sgl, name)).parameters
    assert list(parameters)[: len(SURFACE[name].split())] == SURFACE[name].split()
    assert all(p.default is None for n, p in parameters.items() if name.startswith("gen") and n != "unknown")


def test_gen_string_takes_what_gen_int_takes():
    assert list(inspect.signature(sgl.gen_string).parameters) == list(inspect.signature(sgl.gen_int).parameters)


# -- on the small model ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tiny_smollm2):
    engine = sgl.Runtime(model_path=tiny_smollm2, max_total_tokens=4096, log_level="error")
    yield engine
    engine.check()
    engine.shutdown()


ON_THE_MODEL = {
    "few_shot_qa": {},
    "gen_with_choices": {"temperature": 0, "max_new_tokens": 8},
    "decode_int": {"temperature": 0, "max_new_tokens": 8},
    "ip_address": {"max_new_tokens": 24},
    "every_dtype": {"temperature": 0, "max_new_tokens": 8},
    "tips_of_two_forks": {"temperature": 0, "max_new_tokens": 8},
    "group_appends": {"temperature": 0},
}


@pytest.mark.model
@pytest.mark.parametrize("name", ON_THE_MODEL)
def test_the_model_says_the_same_in_every_execution(small, name):
    one, options = KINDS[name], {"seed": 1, **ON_THE_MODEL[name], "backend": small}
    items = one.items[:2]
    expected = [one.program.run(**item, **options) for item in items]
    fast = sgl.compile(one.program)
    for states in ([fast(**item, **options) for item in items], fast.batch(items, **options)):
        assert texts(states) == texts(expected)
        assert [set(s.variables) for s in states] == [set(s.variables) for s in expected]


@pytest.mark.model
def test_what_the_model_must_obey(small):
    sgl.set_default_backend(small)
    try:
        assert re.fullmatch(OCTETS, ip_address(max_new_tokens=24)["answer"])
        hours = decode_int(temperature=0, max_new_tokens=8)
        assert int(hours["hours"]) and int(hours["days"])
        state = at_least(q="The capital of France?", temperature=0)
        assert state.get_meta_info("answer")["completion_tokens"] >= 64
        json.loads(json_by_schema(q="The city of Lisbon as JSON: ", temperature=0)["json_output"])
        for method in METHODS[1:4]:
            assert statements(method)(**STATEMENTS[0])["answer"] in ("True", "False", "Unknown")
        stream = few_shot_qa(question="Which river runs through Paris?", stream=True)
        pieces = list(stream.text_iter("answer"))
        assert "".join(pieces) == stream["answer"] and len(pieces) > 1
    finally:
        sgl.set_default_backend(None)


@pytest.mark.model
def test_cache_keeps_the_prefix_on_the_model(small):
    sgl.flush_cache(small)
    few_shot_qa.cache(small)
    state = few_shot_qa.run(question="Which river runs through Rome?", backend=small, max_new_tokens=4)
    assert state.get_meta_info("answer")["cached_tokens"] > 30


def test_runtime_refuses_what_it_has_not():
    with pytest.raises(sgl.UnsupportedOpError, match=r"dp_size=2.*Engine\(dp"):
        sgl.Runtime(model_path="nowhere.gguf", dp_size=2)
    with pytest.raises(sgl.ArgumentError, match="did you mean 'max_running_requests'"):
        sgl.Runtime(model_path="nowhere.gguf", max_running_request=2)
    with pytest.raises(sgl.ProgramError, match="no chat template 'vicuna'"):
        sgl.Runtime(model_path="nowhere.gguf", chat_template="vicuna")


SCRIPT = """
import lmc as sgl

@sgl.function
def multi_turn(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=12))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=12))

def single():
    state = multi_turn.run(question_1="What is the capital of France?", question_2="List two rivers.", temperature=0)
    for m in state.messages():
        print(m["role"], ":", m["content"])
    print("answer_1", state["answer_1"])

def stream():
    state = multi_turn.run(question_1="What is the capital of France?", question_2="List two rivers.", temperature=0, stream=True)
    for out in state.text_iter():
        print(out, end="", flush=True)

def batch():
    states = multi_turn.run_batch([
        {"question_1": "What is the capital of France?", "question_2": "List two rivers."},
        {"question_1": "What is the capital of Japan?", "question_2": "List two foods."},
    ], temperature=0, num_threads=2)
    for s in states:
        print(s.messages()[-1])

if __name__ == "__main__":
    runtime = sgl.Runtime(model_path="smollm2", max_total_tokens=2048, port=30000, tp_size=1, mem_fraction_static=0.8)
    runtime.endpoint.chat_template = sgl.get_chat_template("chatml")
    sgl.set_default_backend(runtime)
    single()
    stream()
    batch()
    print(sgl.get_server_info(runtime.endpoint)["model"], sgl.flush_cache())
    runtime.cache_prefix("You are a helpful assistant.")
    print(len(runtime.get_tokenizer().encode("Hello there")))
    runtime.shutdown()
"""


@pytest.mark.model
def test_a_whole_script_runs(tmp_path):
    """Launch a runtime, a run, a stream, a batch, shut down; only the import differs from what it was written for."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert done.stdout.count("assistant") >= 2 + 2 + 2  # of the run, the stream's template, the batch
