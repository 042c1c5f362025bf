"""Tools on the engine: written by the model's template, calls forced to the tools, results in the next prompt."""

import pytest

import lmc
from lmc.backend.engine.whole_template import whole
from lmc.backend.families import family_of
from tests.serve.test_tools import HERMES_TEMPLATE

pytestmark = pytest.mark.model


def temperature(city: str, unit: str = "C") -> str:
    """The temperature in a city."""
    return f"21 degrees in {city}"


SHOWN = {"id": "call_0", "name": "temprature", "arguments": {"town": "Oslo"}}  # misspelt, twice


@lmc.function
def helper(s, question, tools=(temperature,)):
    s += lmc.user("How warm is it in Oslo?") + lmc.assistant("")
    s += lmc.tool_result(SHOWN, "7 degrees") + lmc.assistant("It is 7 degrees in Oslo.")
    s += lmc.user(question) + lmc.assistant(lmc.gen("call", tools=list(tools), max_tokens=48))
    calls = s.get_meta_info("call")["tool_calls"]
    for call in calls:
        s += lmc.tool_result(call, lmc.call_tool(call, tools))
    s += lmc.assistant(lmc.gen("answer", max_tokens=24))
    return calls


@pytest.fixture(scope="module")
def engine():
    with lmc.Engine("smollm2", device="cpu") as engine:
        yield engine
        engine.check()


def test_calls_are_forced_to_the_names_and_arguments_of_the_tools(engine):
    state = helper.run("How warm is it in Rome?", backend=engine, temperature=0)
    (call,) = state.ret_value
    assert call["name"] == "temperature" and "town" not in call["arguments"] and isinstance(call["arguments"]["city"], str)
    assert state["call"] == "" and state.get_meta_info("call")["finish_reason"]["type"] == "tool_calls"
    assert "21" in state["answer"]
    assert state.messages()[-2]["role"] == "tool" and state.messages()[-3]["tool_calls"][0]["function"]["name"] == "temperature"


def test_every_execution_gives_the_same(engine):
    plain = helper.run("How warm is it in Rome?", backend=engine, temperature=0)
    program = lmc.compile(helper, backend=engine)
    for state in (program("How warm is it in Rome?", temperature=0), *program.batch([{"question": "How warm is it in Rome?"}] * 2, temperature=0)):
        assert (state.ret_value, state["answer"], state.text()) == (plain.ret_value, plain["answer"], plain.text())


def test_a_stream_shows_no_call(engine):
    state = helper.run("How warm is it in Rome?", backend=engine, temperature=0, stream=True)
    assert "".join(state.text_iter("call")) == "" and state.ret_value


def test_text_that_calls_nothing_is_an_answer(engine):
    @lmc.function
    def program(s):
        s += lmc.user("What is the capital of France?") + lmc.assistant(lmc.gen("x", tools=[temperature], max_tokens=24, stop="."))
        return s["x"]

    state = program.run(backend=engine, temperature=0)
    assert "Paris" in state.ret_value and state.get_meta_info("x")["tool_calls"] == []


def test_the_models_own_template_writes_tools_where_it_has_them(engine, monkeypatch):
    monkeypatch.setattr(engine, "whole_template", whole(HERMES_TEMPLATE, engine.tokenizer, name="hermes"))
    seen = []
    ids = engine._builder.ids
    monkeypatch.setattr(engine._builder, "ids", lambda place: seen.append(place) or ids(place))
    (call,) = helper.run("How warm is it in Rome?", backend=engine, temperature=0).ret_value
    assert call["name"] == "temperature"
    written = "".join(part for part in seen[0].run if isinstance(part, str))
    assert '"name": "temperature"' in written.partition("</tools>")[0] and '{"name": "temprature"' in written.partition("</tools>")[2]


LLAMA3 = """{%- if tools %}<|im_start|>system
Given the following functions, please respond with a JSON for a function call.
Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
Result: {{ message.content }}<|im_end|>
{%- elif message.tool_calls %}<|im_start|>assistant
{% for call in message.tool_calls %}{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}{% endfor %}<|im_end|>
{%- else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{%- endif %}
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
MISTRAL = LLAMA3.replace('Respond in the format {"name": function name', 'Respond with [TOOL_CALLS] and a list: {"name": the name').replace(
    '{"name": "{{', '[{"name": "{{').replace('"parameters": {{ call.function.arguments | tojson }}}',
    '"arguments": {{ call.function.arguments | tojson }}}]')  # fmt: skip


@pytest.mark.parametrize(("family", "template"), [("llama3", LLAMA3), ("mistral", MISTRAL)])
def test_other_families_have_their_own_form_of_calls(engine, monkeypatch, family, template):
    monkeypatch.setattr(engine, "whole_template", whole(template, engine.tokenizer, name=family))
    assert family_of(template).name == family

    @lmc.function
    def asked(s):
        for i, (city, warm) in enumerate([("Oslo", 7), ("Lima", 19), ("Kyiv", 3), ("Bonn", 12)]):
            s += lmc.user(f"How warm is it in {city}?") + lmc.assistant("")
            s += lmc.tool_result({"id": f"call_{i}", "name": "temprature", "arguments": {"town": city}}, f"{warm} degrees") + lmc.assistant(
                f"It is {warm} degrees in {city}."
            )
        s += lmc.user("How warm is it in Rome?") + lmc.assistant(lmc.gen("call", tools=[temperature], max_tokens=48))
        return s.get_meta_info("call")["tool_calls"]

    (call,) = asked.run(backend=engine, temperature=0).ret_value
    assert call == {"id": "call_4", "name": "temperature", "arguments": {"city": "Rome"}}


def test_what_cannot_be_asked_is_refused_with_its_place(engine):
    @lmc.function
    def outside(s):
        s += "x" + lmc.gen("x", tools=[temperature])

    @lmc.function
    def twice(s):
        s += lmc.user("x") + lmc.assistant(lmc.gen("x", tools=[temperature], regex="[a-z]+"))

    for program, why in ((outside, r"test_engine_tools.py:\d+.*outside of an assistant's message"), (twice, r"test_engine_tools.py:\d+.*with a constraint")):
        with pytest.raises(lmc.UnsupportedOpError, match=why):
            program.run(backend=engine)["x"]


MUTE = "{# <tool_call> #}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


def book(departs: str, arrives: str) -> str: ...


def book_with_long_names(departs_from_airport_of_origin: str, arrives_at_final_destination_airport: str) -> str: ...


@pytest.mark.parametrize("template", [HERMES_TEMPLATE, MUTE], ids=["writes the tools", "does not"])
def test_names_of_tools_and_arguments_take_no_pass(engine, monkeypatch, template):
    """The constraint forces them, however long they are, and whether or not the prompt has the schemas: no draft could do better."""

    @lmc.function
    def program(s, tool):
        s += lmc.user("From Oslo to Rome.") + lmc.assistant(lmc.gen("x", tools=[tool], max_tokens=80))
        return s.get_meta_info("x")

    monkeypatch.setattr(engine, "whole_template", whole(template, engine.tokenizer, name="own"))
    passes, forced = [], []
    for tool in (book, book_with_long_names):
        one, other, _ = tool.__annotations__
        said = f'<tool_call>\n{{"name": "{tool.__name__}", "arguments": {{"{one}": "Oslo", "{other}": "Rome"}}}}\n</tool_call>'
        engine.replay(lambda _, said=said: said)
        state = program.run(tool, backend=engine, temperature=0)
        (call,) = state.ret_value["tool_calls"]
        assert call["arguments"] == {one: "Oslo", other: "Rome"}
        passes.append(state.usage.passes)
        forced.append(state.ret_value["forced_tokens"])
    engine.replay(None)
    assert passes[0] == passes[1] <= 20 and forced[1] > forced[0] + 10
