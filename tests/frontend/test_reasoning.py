"""separate_reasoning: an answer is split into reasoning and content, and the prompt goes on with the content alone."""

from __future__ import annotations

import pytest

import lmc
from lmc import Mock, gen, separate_reasoning
from lmc.reasoning import FORMATS, reasoning_format
from lmc.segments import Select
from tests.conformance.harness import conform, effect

ANSWER = "<think>\nTwo cities.\n</think>\n\nBern."


@pytest.mark.parametrize(
    "family, answer, reasoning, content",
    [
        ("qwen3", ANSWER, "\nTwo cities.\n", "\n\nBern."),
        ("qwen3", "Bern.", "", "Bern."),
        ("Qwen3", "<think>cut of", "cut of", ""),
        ("qwen3", "<think>a</think>b</think>c", "a", "b</think>c"),
        ("qwen3", "<think>look<tool_call>f()</tool_call>", "look", "<tool_call>f()</tool_call>"),
        ("qwen3-thinking", "Two.</think>Bern.", "Two.", "Bern."),
        ("deepseek-r1", "Two.</think>Bern.", "Two.", "Bern."),
        ("deepseek-r1", ANSWER, "\nTwo cities.\n", "\n\nBern."),
        ("deepseek-r1", "never ended", "never ended", ""),
        ("kimi", "◁think▷Two.◁/think▷Bern.", "Two.", "Bern."),
        ("kimi_k2", "<think>a<|tool_calls_section_begin|>b", "a", "<|tool_calls_section_begin|>b"),
        ("mistral", "[THINK]Two.[/THINK]Bern.", "Two.", "Bern."),
    ],
)
def test_families_mark_it_in_their_way(family, answer, reasoning, content):
    assert reasoning_format(family).split(answer) == (reasoning, content)


@pytest.mark.parametrize("family", FORMATS)
def test_nothing_of_an_answer_is_lost(family):
    format = FORMATS[family]
    assert format.split(f"{format.begin}why{format.end}what") == ("why", "what")


def run(fn, **options):
    options.setdefault("backend", Mock(answers={"a": ANSWER}))
    return lmc.function(fn).run(**options)


def chat(s):
    s += lmc.user("Capital?")
    s += lmc.assistant("So: " + separate_reasoning(gen("a"), "qwen3") + " Really.")


def test_variables_text_and_messages():
    state = run(chat)
    assert state["a"] == "\n\nBern."
    assert state["a_reasoning_content"] == "\nTwo cities.\n"
    assert state.messages()[-1]["content"] == "So: \n\nBern. Really."
    assert "think" not in state.text()


def test_meta_info_and_usage_are_the_answer_s():
    state = run(chat)
    assert state.get_meta_info("a")["completion_tokens"] == len(ANSWER)
    assert state.get_meta_info("a_reasoning_content") == state.get_meta_info("a")
    assert state.usage.completion_tokens == len(ANSWER)


def test_what_is_asked_next_does_not_see_the_reasoning():
    mock = Mock(answers={"a": ANSWER})

    def twice(s):
        s += separate_reasoning(gen("a"), "qwen3")
        s += "!" + gen("b")

    run(twice, backend=mock).sync()
    assert [c.prompt_text for c in mock.call_log] == ["", "\n\nBern.!"]


def test_several_samples_are_split_one_by_one():
    state = run(lambda s: s.__iadd__(separate_reasoning(gen("a", n=2), "qwen3")), backend=Mock(answers={"a": [[ANSWER, "No."]]}))
    assert state["a"] == ["\n\nBern.", "No."]
    assert state["a_reasoning_content"] == ["\nTwo cities.\n", ""]
    assert state.text() == "\n\nBern."


def test_forks_think_at_the_same_time_and_are_gathered():
    mock = Mock(answers={"a": [ANSWER, "<think>x</think>y"]}, latency=0.05)

    def forked(s):
        forks = s.fork(2)
        for f in forks:
            f += separate_reasoning(gen("a"), "qwen3") + " ok"
        asked = len(mock.call_log)
        forks.join()
        s["asked before any answer was read"] = asked
        s += s["a"][0] + s["a"][1]

    state = run(forked, backend=mock)
    assert state["asked before any answer was read"] == 2
    assert state["a_reasoning_content"] == ["\nTwo cities.\n", "x"]
    assert state.text() == "\n\nBern.y"


def test_a_failed_answer_is_raised_where_it_is_read():
    def program(s):
        s += separate_reasoning(gen("a"), "qwen3")
        s += " and on"

    state = run(program, backend=Mock(fault=lambda ask, _: lmc.BackendError("down")))
    assert "down" in str(state.error())
    for read in (state.text, lambda: state["a"], lambda: state["a_reasoning_content"]):
        with pytest.raises(lmc.BackendError, match="down"):
            read()


def test_streams_show_the_content_when_it_is_known():
    state = run(chat, backend=Mock(answers={"a": ANSWER}, latency=0.03), stream=True)
    assert "".join(state.text_iter()) == state.text()
    assert list(state.text_iter("a")) == ["\n\nBern."]
    assert list(state.text_iter("a_reasoning_content")) == ["\nTwo cities.\n"]


def test_a_state_s_repr_does_not_wait():
    state = run(lambda s: s.__iadd__("Q" + separate_reasoning(gen("a"), "qwen3")), backend=Mock(latency=30))
    assert repr(state) == "<<lambda>: 'Q…'; variables: 'a', 'a_reasoning_content'>"


def test_an_unknown_family_is_refused_where_it_is_written():
    with pytest.raises(lmc.ParameterError, match=r"test_reasoning.py:\d+: .*'qwen4'.*did you mean 'qwen3'"):
        separate_reasoning(gen("a"), model_type="qwen4")
    with pytest.raises(lmc.ArgumentError, match="model_type"):
        separate_reasoning(gen("a"))
    with pytest.raises(lmc.ArgumentError, match="expression"):
        separate_reasoning("text", "qwen3")


# -- compiled --------------------------------------------------------------------------------------------------------


@lmc.function
def in_a_chat(s, q):
    s += lmc.user(q)
    s += lmc.assistant("So: " + separate_reasoning(gen("a") + "," + gen("b"), "qwen3") + " Really.")
    s += lmc.user("Sure?") + lmc.assistant(gen("c", max_tokens=8))
    return s["a"].strip(), len(s["a_reasoning_content"])


@lmc.function
def in_forks(s, q):
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"{q} {i}" + separate_reasoning(gen("a"), "qwen3")
        effect("asked", i)
    forks.join()
    s += "".join(s["a"]) + " after " + s["a_reasoning_content"][0]
    with s.copy() as draft:
        draft += separate_reasoning(gen("d"), "deepseek-r1")
    return s["d"]


@lmc.function
def appended_forks(s, q):
    forks = s.fork(2)
    forks += q + separate_reasoning(gen("a", n=2), "qwen3") + separate_reasoning(lmc.select("w", [" yes", " no"]), "qwen3")
    forks.join("concate_and_append")
    s += gen("end", max_tokens=4)
    if forks[0]["w"] == " yes":
        return forks[1]["a"]
    return forks[0]["a"][0]


@lmc.function
def samples(s, q):
    s += q + separate_reasoning(gen("a", n=2), "qwen3")
    s["a"].append("changed")
    s += gen("b", max_tokens=4)
    return s["a"], s["a_reasoning_content"], len(s.get_meta_info("a"))


@lmc.function
def branches(s, q):
    for i in range(3):
        s += separate_reasoning(gen(f"thought {i}"), "qwen3")
        if "Bern" in s[f"thought {i}"]:
            return i
        s += q


def thinks(prompt, ask):
    if isinstance(ask, Select):
        return None
    if ask.name == "d":
        return "deep</think>draft"
    return ["<think>x</think>y", "z"] if ask.params.n == 2 else ANSWER if "France" in prompt or ask.name != "thought 0" else "no"


@pytest.mark.parametrize("program", (in_a_chat, in_forks, appended_forks, samples, branches), ids=lambda p: p.name)
def test_it_means_the_same_in_each_way(program):
    conform(program, [{"q": "France"}, {"q": "Why"}], backend=lambda: Mock(answers=thinks))


def test_a_failed_answer_is_the_same_compiled():
    def down(ask, prompt):
        return lmc.BackendError("down") if ask.name == "a" else None

    conform(in_a_chat, [{"q": "x"}], backend=lambda: Mock(answers=thinks, fault=down))
    conform(in_forks, [{"q": "x"}], backend=lambda: Mock(answers=thinks, fault=down))
