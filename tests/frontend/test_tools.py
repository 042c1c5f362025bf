"""Tools in the language: functions as schemas, calls, results; the same in every execution."""

from __future__ import annotations

import json
from typing import Literal

import pytest

import lmc
from lmc.tools import described
from tests.conformance.harness import conform


def weather(city: str, unit: Literal["C", "F"] = "C", days: list[int] | None = None) -> dict:
    """The weather of a city."""
    return {"city": city, "unit": unit}


async def later(x: int) -> int:
    return x + 1


def answers(prompt, ask):
    if ask.tools and '"name": "weather"' not in prompt:
        return json.dumps({"name": "weather", "arguments": {"city": prompt.split("\n")[1][:3]}})
    return "Fine."


@lmc.function
def agent(s, q, tools=(weather,)):
    s += lmc.user(q)
    s += lmc.assistant(lmc.gen("a", tools=tools))
    for call in s.get_meta_info("a")["tool_calls"]:
        try:
            found = lmc.call_tool(call, tools)
        except lmc.ToolError as error:
            found = f"error: {error}"
        s += lmc.tool_result(call, found)
    s += lmc.assistant(lmc.gen("b", tools=tools))
    return s["b"], s.get_meta_info("b")["tool_calls"]


def test_a_function_as_a_schema():
    (tool,) = json.loads(described([weather]))
    assert tool["name"] == "weather" and tool["description"] == "The weather of a city."
    assert tool["parameters"]["required"] == ["city"]
    assert tool["parameters"]["properties"]["unit"] == {"enum": ["C", "F"]}
    assert tool["parameters"]["properties"]["days"] == {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}


def test_a_tool_that_is_strict_stays_so():
    told = {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False}, "strict": True}
    assert json.loads(described([{"type": "function", "function": {"name": "f", "strict": True}}])) == [told]


@pytest.mark.parametrize("tools, says", [
    (weather, "a list of functions"), ([3], "functions and dicts"), ([weather, weather], "two tools"), ([lambda x: x], "cannot call"),
    ([print], "by name"), ([{"description": "x"}], "no name"),
])  # fmt: skip
def test_what_is_no_tool(tools, says):
    with pytest.raises(lmc.ProgramError, match=says) as raised:
        lmc.gen("x", tools=tools)
    assert raised.value.loc.file == __file__


def test_executions_agree():
    conform(agent, [{"q": "Rome?"}, {"q": "Oslo?", "tools": [weather]}], backend=lambda: lmc.Mock(answers=answers))
    state = agent("Rome?", backend=lmc.Mock(answers=answers))
    assert state.ret_value == ("Fine.", []) and '{"city": "Rom", "unit": "C"}' in state.text()
    assert state.messages()[2] == {"role": "tool", "tool_call_id": state.messages()[1]["tool_calls"][0]["id"], "content": '{"city": "Rom", "unit": "C"}'}


@pytest.mark.parametrize(
    "said, error", [({"name": "sing"}, "no tool 'sing'"), ({"name": "weather", "arguments": {"town": "x"}}, "missing a required argument")]
)
def test_a_call_that_cannot_be_made(said, error):
    mock = lambda: lmc.Mock(answers=lambda prompt, ask: json.dumps(said))
    conform(agent, [{"q": "Rome?"}], backend=mock)
    assert "error: " in (text := agent("Rome?", backend=mock()).text()) and error in text


@pytest.mark.parametrize(
    "call, says",
    [
        ({"id": "1", "function": {"name": "weather", "arguments": "{}"}}, r"of a call in OpenAI's format, .*json\.loads"),
        ({"name": "weather"}, "takes one of get_meta_info"),
        ([{"name": "weather", "arguments": {}}], "takes one of get_meta_info"),
    ],
    ids=["OpenAI's", "half", "a list"],
)  # fmt: skip
def test_a_call_of_another_form_is_the_programs_mistake(call, says):
    with pytest.raises(lmc.ArgumentError, match=says) as raised:
        lmc.call_tool(call, [weather])
    assert raised.value.loc.file == __file__


def test_one_tool_is_no_list_of_tools():
    with pytest.raises(lmc.ArgumentError, match=r"takes a list of tools; write \[weather\]"):
        lmc.call_tool({"name": "weather", "arguments": {}}, weather)


@pytest.mark.parametrize("tool, says", [(max, "max does not say what its parameters are"), (print, r"print\(\*\w+\): a model gives arguments by name")])
def test_a_function_whose_parameters_a_model_cannot_name_is_no_tool(tool, says):
    @lmc.function
    def asks(s):
        s += "Q" + lmc.gen("a", tools=[tool])

    with pytest.raises(lmc.ParameterError, match=says):
        asks(backend=lmc.Mock())


@lmc.function
async def waits(s):
    s += lmc.user("q") + lmc.assistant(lmc.gen("a", tools=[later]))
    (call,) = s.get_meta_info("a")["tool_calls"]
    s += lmc.tool_result(call, await lmc.call_tool(call, [later]))


def test_async_tools():
    mock = lmc.Mock(answers=lambda prompt, ask: '{"name": "later", "arguments": {"x": 4}}')
    expected = waits.run(backend=mock).messages()
    assert expected[-1]["content"] == "5" and lmc.compile(waits, backend=mock)().messages() == expected


def test_what_is_no_call():
    with pytest.raises(lmc.ArgumentError, match="tool_calls"):
        lmc.tool_result("search", "x")
