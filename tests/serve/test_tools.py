"""Tools: families of templates write them and their calls; calls come out of answers, whole and in streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

import lmc
from lmc.backend.engine.whole_template import WholeTemplate, whole
from lmc.backend.families import HERMES, LLAMA3, MISTRAL, WrittenCall, family_of
from lmc.errors import ProgramError
from lmc.segments import Special, plain
from lmc.tools import call_of
from tests.serve.serving import HELLO, chat, events, post

pytestmark = pytest.mark.api

HERMES_TEMPLATE = """{%- if tools %}<|im_start|>system
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Answer with <tool_call>{"name": …, "arguments": …}</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Words:
    """As much of a tokenizer as rendering needs."""

    bos_token_id, eos_token_ids = None, (257,)

    def spelling(self, token: int) -> str:
        return "<|im_end|>"

    def split_specials(self, text: str) -> tuple[Any, ...]:
        parts: list[Any] = []
        for i, piece in enumerate(__import__("re").split(r"(<\|im_(?:start|end)\|>)", text)):
            parts += [Special(piece)] if i % 2 else [piece] if piece else []
        return tuple(parts)


def template(source: str = HERMES_TEMPLATE) -> WholeTemplate:
    made = whole(source, Words(), name="test")  # type: ignore[arg-type]
    assert made is not None
    return made


def backend(answers: Any, source: str = HERMES_TEMPLATE) -> lmc.Mock:
    mock = lmc.Mock(answers, latency=0.01)
    mock.whole_template = template(source)  # type: ignore[attr-defined]
    return mock


WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "…", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALLED = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def test_a_call_and_its_result():
    mock = backend([CALLED, "Cold."])
    message = chat(mock, tools=[WEATHER]).json()["choices"][0]
    assert message["finish_reason"] == "tool_calls"
    assert message["message"]["content"] == "Let me see."
    (call,) = message["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert '"name": "weather"' in mock.call_log[0].prompt_text
    turns = [{"role": "user", "content": "Hello"}, message["message"], {"role": "tool", "tool_call_id": call["id"], "content": "-3 <|im_end|>"}]
    with pytest.warns(UserWarning, match="ordinary text"):
        answer = chat(mock, messages=turns, tools=[WEATHER]).json()["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("Cold.", "stop")
    prompt = mock.call_log[1].prompt_text
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>\n<|im_start|>tool\n-3 <|im_end|>' in prompt
    assert mock.call_log[1].tokens.count(chr(257)) == 4, "what a tool says is plain text"


def test_what_is_no_call_is_content():
    for text in ("<tool_call>{nonsense}</tool_call>", '<tool_call>{"name": 3}</tool_call>', "a <tool_call"):
        for stream in (False, True):
            response = chat(backend([text]), tools=[WEATHER], stream=stream)
            if stream:
                chunks = [c for c in events(response.text) if c != "[DONE]"]
                found = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
            else:
                found = response.json()["choices"][0]["message"]["content"]
            assert found == text


def test_tool_choice():
    mock = backend([CALLED])
    assert chat(mock, tools=[WEATHER], tool_choice="none").json()["choices"][0]["message"]["content"] == CALLED
    assert "weather" not in mock.call_log[0].prompt_text
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        answer = chat(backend([CALLED.partition("\n")[2]]), tools=[WEATHER], tool_choice=choice)
        assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
    unknown = chat(mock, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "x"}})
    assert "no tool 'x'" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("schema", [False, True])
def test_of_allowed_tools_only_those_are_called(mode, schema):
    tools = [{**WEATHER, "function": {**WEATHER["function"], "name": name}} for name in ("weather", "other", "third")]
    named = [{"type": "function", "name": name} for name in ("weather", "third")]
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": tool["name"]}} for tool in named]}
    mock = backend(lambda prompt, ask: None)
    asked = {"tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}, **({"response_format": PERSON} if schema else {})}
    assert chat(mock, **asked).status_code == 200
    flat = {"tools": [{"type": "function", **tool["function"]} for tool in tools], "tool_choice": {"type": "allowed_tools", "mode": mode, "tools": named}}
    form = {"text": {"format": {"type": "json_schema", **PERSON["json_schema"]}}} if schema else {}
    assert post("/v1/responses", {"input": "Hello", **flat, **form}, mock).status_code == 200
    ours, theirs = mock.call_log
    assert ours.constraint == theirs.constraint and ours.prompt_text == theirs.prompt_text
    assert [name in ours.constraint.source for name in ("weather", "other", "third")] == [True, False, True]
    assert '"name": "other"' in ours.prompt_text, "the prompt has all tools"


def test_of_allowed_tools_each_is_one_of_the_requests():
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    for named, why in (([{"type": "function", "function": {"name": "x"}}], "no tool 'x'"), ([], "at least 1 item")):
        choice = {"type": "allowed_tools", "allowed_tools": {**allowed, "tools": named}}
        refused = chat(backend([ONE]), tools=[WEATHER], tool_choice=choice)
        assert refused.status_code == 400 and why in refused.json()["error"]["message"]
    for kind, other in (("function", "allowed_tools"), ("allowed_tools", "function")):
        choice = {"type": kind, other: {"function": {"name": "weather"}, "allowed_tools": allowed}[other]}
        assert f"must have the field {kind} and no other" in chat(backend([ONE]), tools=[WEATHER], tool_choice=choice).json()["error"]["message"]
    for choice, why in (
        ({"type": "web_search"}, "'web_search' is not supported"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}, 3]}, "'function'"),
    ):
        refused = post("/v1/responses", {"input": "Hello", "tools": [{"type": "function", **WEATHER["function"]}], "tool_choice": choice}, backend([ONE]))
        assert refused.status_code == 400 and why in refused.json()["error"]["message"]


ONE = CALLED.partition("\n")[2]
PERSON = {
    "type": "json_schema",
    "json_schema": {"name": "p", "schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": False}},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text, said, calls", [('{"name": "Ada"}', '{"name": "Ada"}', 0), (ONE, "", 1), (f"{ONE}\n{ONE}", "", 2)])
def test_beside_a_schema_a_call_may_be_in_place_of_the_text(text, said, calls, stream):
    """The schema was on the whole answer, so that no agent with an output type called a tool."""
    answer = chat(backend([text]), tools=[WEATHER], response_format=PERSON, stream=stream)
    chunks = [c["choices"][0]["delta"] for c in events(answer.text)[:-1]] if stream else [answer.json()["choices"][0]["message"]]
    assert "".join(c.get("content") or "" for c in chunks) == said
    assert [call["function"]["arguments"] for c in chunks for call in c.get("tool_calls") or ()] == ['{"city": "Oslo"}'] * calls


@pytest.mark.parametrize("fields", [{"response_format": PERSON}, {"tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]}])
def test_what_is_neither_of_the_schema_nor_a_call_is_not_allowed(fields):
    wrong = '<tool_call>\n{"name": "weather", "arguments": {"city": 3}}\n</tool_call>'
    answer = chat(backend([wrong]), **{"tools": [WEATHER], **fields})
    assert answer.status_code == 500 and "does not allow" in answer.json()["error"]["message"]


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}, {"response_format": PERSON}])
def test_a_schema_that_cannot_be_enforced_is_named_by_its_place_in_the_request(fields):
    wrong = {"type": "object", "properties": {"a": {"type": "strin"}}}
    tools = [WEATHER, {"type": "function", "function": {"name": "w", "strict": True, "parameters": wrong}}]
    answer = chat(backend(["x"]), tools=tools, **fields)
    at = "tools.1.function.parameters"
    assert answer.status_code == 400 and answer.json()["error"]["param"] == at
    assert answer.json()["error"]["message"].startswith(f"{at}: /properties/a/type is 'strin'; there are ")
    given = [{"name": "w", "input_schema": wrong}]
    theirs = {"model": "mock", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "tools": given, "tool_choice": {"type": "any"}}
    answer = post("/v1/messages", theirs, backend(["x"]))
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith("tools.0.input_schema: /properties/a/type is 'strin'")


def test_a_strict_tool_leaves_text_free():
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    for text, calls in (("Good day.", 0), (CALLED, 1)):
        message = chat(backend([text]), tools=[strict]).json()["choices"][0]["message"]
        assert (message["content"], len(message.get("tool_calls") or ())) == (text.partition("\n")[0], calls)


def test_a_schema_beside_a_call_that_is_required_has_no_effect():
    answer = chat(backend([ONE]), tools=[WEATHER], tool_choice="required", response_format=PERSON).json()
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    refused = chat(backend([ONE]), tools=[WEATHER], tool_choice="required", regex="a")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


@pytest.mark.parametrize("stream", [False, True])
def test_without_parallel_calls_an_answer_has_one(stream):
    answer = chat(backend([f"{CALLED}\n{ONE}"]), tools=[WEATHER], parallel_tool_calls=False, stream=stream)
    chunks = [c["choices"][0]["delta"] for c in events(answer.text)[:-1]] if stream else [answer.json()["choices"][0]["message"]]
    assert "".join(c.get("content") or "" for c in chunks) == "Let me see.", "without the space before the call"
    assert len([call for c in chunks for call in c.get("tool_calls") or ()]) == 1


def test_what_a_required_call_must_match():
    for family in (HERMES, LLAMA3, MISTRAL):
        tag = json.loads(family.required([("weather", None), ("f", {"type": "object"})]).source)
        one = tag["format"]["elements"][0]
        text = one["begin"] + '{"city": "Oslo"}' + one["end"]
        assert family.split(text) == ("", [WrittenCall("weather", '{"city": "Oslo"}')])


def test_families():
    assert family_of(HERMES_TEMPLATE) is HERMES
    assert family_of('{{ "[TOOL_CALLS] [" }}') is MISTRAL
    assert family_of('Respond in the format {"name": function name, "parameters": dictionary}') is LLAMA3
    assert family_of("<tool_call><function=x>") is None
    assert family_of("[TOOL_CALLS]f[ARGS]{}") is None
    assert LLAMA3.split('{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}')[1] == [WrittenCall("f", '{"a": 1}'), WrittenCall("g", "{}")]
    assert LLAMA3.split('{"a": 1}') == ('{"a": 1}', [])
    assert MISTRAL.split('[{"name": "f", "arguments": {"a": "é"}}]')[1] == [WrittenCall("f", '{"a": "é"}')]
    for text in ("[1, 2] are numbers", "[", "{} {"):
        assert MISTRAL.split(text) == (text, [])
    assert LLAMA3.settled("  ") == 0
    assert LLAMA3.settled("So {") == 4
    assert HERMES.settled("a <tool") == HERMES.settled("a \n<tool_call>{") == HERMES.settled("a \n") == 1
    assert HERMES.settled("a < b") == 5


@pytest.mark.parametrize("levels", [900, 5000])
def test_what_is_nested_too_deep_is_no_call_and_no_error(levels):
    """A text of this kind, which a model repeats soon, ended in a RecursionError."""
    for family in (HERMES, LLAMA3, MISTRAL):
        text = f'{{"name": "f", "{family.key}": {{"a": {"[" * levels}{"]" * levels}}}}}'
        text = {"hermes": f"<tool_call>{text}</tool_call>", "llama3": text, "mistral": f"[{text}]"}[family.name]
        assert len(family.split(text)[1]) == len(family.closed(text)) == (levels < 1000)
    arguments = '{"a": ' + "[" * levels + "]" * levels + "}"
    assert isinstance(call_of("0", "f", arguments)["arguments"], dict) == (levels < 1000)


def test_a_family_that_is_not_known_is_refused():
    error = chat(backend(None, "{{ tools }}{{ messages }}"), tools=[WEATHER]).json()["error"]
    assert "not known" in error["message"]


def test_a_tool_spells_no_special_token():
    sneaky = {"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}
    assert "special token" in chat(backend(None), tools=[sneaky]).json()["error"]["message"]
    with pytest.raises(ProgramError, match="special token"):
        template().render([{"role": "user", "content": "x"}], ["\ue0000\ue001"])


def test_contents_are_not_read_by_the_template():
    parts = template().render([{"role": "user", "content": "<|im_end|> \ue0001\ue001 {{ x }}"}], [])
    assert "<|im_end|> \ue0001\ue001 {{ x }}" in parts
    assert plain(parts).startswith("<|im_start|>user\n<|im_end|>")


def test_a_template_that_refuses_says_why():
    refusing = template("{{ raise_exception('no tools today') }}")
    with pytest.raises(ProgramError, match="no tools today"):
        refusing.render([{"role": "user", "content": "x"}], [])


def test_bad_calls_in_messages():
    for arguments in ("[", "[]", "[" * 5000):
        call = {"function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        assert "JSON object" in chat(backend(None), messages=messages, tools=[WEATHER]).json()["error"]["message"]


# -- variables of the template -----------------------------------------------------------------------------------------------

THINKING = HERMES_TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{{ closing }}{% endif %}"
)


def test_variables_of_the_template_reach_it():
    mock = backend(lambda prompt, ask: "Fine.", THINKING)
    for given in ({"enable_thinking": False}, {"enable_thinking": True}, {}, {"closing": "So: "}):
        assert chat(mock, chat_template_kwargs=given).json()["choices"][0]["message"]["content"] == "Fine."
    chat(mock, chat_template_kwargs={"enable_thinking": False}, tools=[WEATHER])
    ends = [call.prompt_text.rpartition("assistant\n")[2] for call in mock.call_log]
    assert ends == ["<think>\n\n</think>\n\n", "", "", "So: ", "<think>\n\n</think>\n\n"]
    assert [call.prompt_text.count("weather") for call in mock.call_log] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("given", "param"),
    (
        ({"chat_template_kwargs": {"enable_thinkin": False}}, "chat_template_kwargs.enable_thinkin"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"closing": "<|im_end|>"}}, None),
        ({"chat_template_kwargs": {"closing": "x"}, "add_generation_prompt": False}, "continue_final_message"),
    ),
)
def test_other_variables_are_refused(given, param):
    answer = chat(backend(["x"], THINKING), **given)
    assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param


def test_a_lenient_server_leaves_out_variables_that_the_template_has_not():
    mock = backend(lambda prompt, ask: "Fine.", THINKING)
    body = {**HELLO, "chat_template_kwargs": {"odd": 1, "closing": "So: "}}
    assert post("/v1/chat/completions", body, mock, lenient=True).status_code == 200
    assert mock.call_log[0].prompt_text.endswith("assistant\nSo: ")
    assert post("/v1/chat/completions", body, lmc.Mock(), lenient=True).status_code == 200
