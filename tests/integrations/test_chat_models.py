"""Chat models of LangChain and LlamaIndex on lmc's backends, with the real packages."""

from __future__ import annotations

import asyncio
import json
import typing

import pydantic
import pytest

import lmc
from lmc.integrations import conversing
from tests.pictures import png

pytestmark = pytest.mark.api

CALL = '{"name": "weather", "arguments": {"town": "Porto"}}'


class Place(pydantic.BaseModel):
    town: str
    size: int


class TestLangChain:
    @pytest.fixture(autouse=True)
    def there(self):
        pytest.importorskip("langchain_core")

    def test_it_answers_alone_in_batches_and_on_a_loop(self):
        mock = lmc.Mock(lambda prompt, ask: f"to {prompt.count('user')}", latency=0.02)
        chat = lmc.langchain.Chat(backend=mock, temperature=0, max_tokens=16)
        from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

        talk = [SystemMessage("Be brief."), HumanMessage("Hello."), AIMessage("Hi."), HumanMessage([{"type": "text", "text": "Why?"}])]
        found = chat.invoke(talk)
        assert found.content == "to 2" and found.usage_metadata["output_tokens"] == 4 and found.response_metadata["finish_reason"] == "stop"
        assert [m.content for m in chat.batch([talk, "one"])] == ["to 2", "to 1"]
        assert asyncio.run(chat.ainvoke("one")).content == "to 1"

    def test_an_error_names_the_line_that_called_it_and_in_a_pool_none(self):
        chat = lmc.langchain.Chat(backend=lmc.Mock(), max_tokens=3).with_structured_output(Place)
        with pytest.raises(lmc.IncompleteAnswer) as raised:
            chat.invoke("?")
        assert raised.value.loc.file == __file__
        with pytest.raises(lmc.IncompleteAnswer) as raised:
            chat.batch(["?", "!"])
        assert raised.value.loc is None

    def test_it_streams(self):
        chat = lmc.langchain.Chat(backend=lmc.Mock(["a long answer"], latency=0.2), max_tokens=20)
        pieces = list(chat.stream("?"))
        assert "".join(piece.content for piece in pieces) == "a long answer" and len(pieces) > 3
        assert pieces[-1].usage_metadata["output_tokens"] == 13

        async def follow():
            return [piece.content async for piece in lmc.langchain.Chat(backend=lmc.Mock(["a long answer"], latency=0.2), max_tokens=20).astream("?")]

        assert "".join(asyncio.run(follow())) == "a long answer"

    def test_tools_are_called_and_their_results_are_seen(self):
        from langchain_core.tools import tool

        @tool
        def weather(town: str) -> str:
            """The weather in a town."""
            return f"sun in {town}"

        mock = lmc.Mock([CALL, "Take no umbrella."])
        chat = lmc.langchain.Chat(backend=mock, max_tokens=200).bind_tools([weather])
        first = chat.invoke("Porto?")
        assert [(call["name"], call["args"]) for call in first.tool_calls] == [("weather", {"town": "Porto"})] and first.content == ""
        result = weather.invoke(first.tool_calls[0])
        second = chat.invoke([("human", "Porto?"), first, result])
        assert second.content == "Take no umbrella." and not second.tool_calls
        seen = mock.call_log[-1].prompt_text
        assert "sun in Porto" in seen and '"town": "Porto"' in seen

    def test_calls_in_streams_come_whole(self):
        schema = {
            "type": "function",
            "function": {"name": "weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}},
        }
        whole = None
        for piece in lmc.langchain.Chat(backend=lmc.Mock([CALL]), max_tokens=200).bind_tools([schema]).stream("Porto?"):
            whole = piece if whole is None else whole + piece
        assert whole.content == "" and whole.tool_calls[0]["args"] == {"town": "Porto"}

    def test_structured_answers_parse(self):
        chat = lmc.langchain.Chat(backend=lmc.Mock(), max_tokens=80)
        assert isinstance(chat.with_structured_output(Place).invoke("A town."), Place)
        assert set(chat.with_structured_output(Place.model_json_schema()).invoke("A town.")) == {"town", "size"}
        both = chat.with_structured_output(Place, include_raw=True).invoke("A town.")
        assert both["parsed"] == Place(**json.loads(both["raw"].content))

    @pytest.mark.parametrize("choice", ["any", "required", True, "weather", {"type": "function", "function": {"name": "weather"}}], ids=str)
    def test_a_chosen_tool_is_called_whatever_the_model_says(self, choice):
        tools = [{"type": "function",
            "function": {"name": name, "description": name, "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}}
                 for name in ("news", "weather")]  # fmt: skip
        chat = lmc.langchain.Chat(backend=lmc.Mock(), max_tokens=200).bind_tools(tools, tool_choice=choice)
        made = chat.invoke([("system", "Be brief."), ("human", "Porto?")])
        (call,) = made.tool_calls
        assert call["name"] == "weather" or choice in ("any", "required", True)
        assert isinstance(call["args"]["town"], str) and made.content == ""
        first, *pieces = chat.stream("Porto?")
        assert len(sum(pieces, first).tool_calls) == 1
        assert not lmc.langchain.Chat(backend=lmc.Mock([CALL]), max_tokens=99).bind_tools(tools, tool_choice="none").invoke("Porto?").tool_calls

    def test_structured_answers_take_typed_dicts_methods_and_say_what_did_not_parse(self):
        chat = lmc.langchain.Chat(backend=lmc.Mock(), max_tokens=200)

        class Town(typing.TypedDict):
            """A town."""

            name: str
            size: int

        assert set(chat.with_structured_output(Town, strict=True).invoke("A town.")) == {"name", "size"}
        for method in ("json_schema", "function_calling", "json_mode"):
            assert isinstance(chat.with_structured_output(Place, method=method).invoke("A town."), Place)

        class Odd(pydantic.BaseModel):
            size: int

            @pydantic.field_validator("size")
            @classmethod
            def refuse(cls, value: int) -> int:
                raise ValueError(f"{value} will not do")

        found = chat.with_structured_output(Odd, include_raw=True).invoke("A town.")
        assert found["parsed"] is None and "will not do" in str(found["parsing_error"]) and found["raw"].content.startswith("{")

    def test_a_field_that_it_has_not_is_refused(self):
        with pytest.raises(pydantic.ValidationError, match="temperatur"):
            lmc.langchain.Chat(temperatur=0)

    def test_a_backend_may_be_named(self):
        assert lmc.langchain.Chat(backend="mock", max_tokens=9).invoke("Porto?").content
        with pytest.raises(lmc.ParameterError, match="no model 'gpt-4'"):
            lmc.langchain.Chat(backend="gpt-4").invoke("Porto?")

    def test_tokens_are_the_backends(self):
        from langchain_core.messages import HumanMessage, SystemMessage

        chat = lmc.langchain.Chat(backend=lmc.Mock())
        talk = [SystemMessage("Be brief."), HumanMessage("Porto?")]
        assert chat.get_num_tokens("Porto?") == 6
        assert chat.get_num_tokens_from_messages(talk) == chat.invoke(talk).usage_metadata["input_tokens"]
        with pytest.raises(lmc.ArgumentError, match="no tokenizer"):
            lmc.langchain.Chat(backend=lmc.OpenAI("x", api_key="none", base_url="http://127.0.0.1:9")).get_num_tokens("x")

    def test_images_are_seen(self):
        mock = lmc.Mock(lambda prompt, ask, images: f"{len(images)}")
        import base64

        data = base64.b64encode(png(4, 4)).decode()
        chat = lmc.langchain.Chat(backend=mock)
        message = (
            "human",
            [
                {"type": "text", "text": "What?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
                {"type": "image", "base64": data, "mime_type": "image/png"},
            ],
        )
        assert chat.invoke([message]).content == "2"

    @pytest.mark.parametrize("call, says", [
        (lambda chat: chat.invoke("x", nonsense=1), "takes no nonsense="),
        (lambda chat: chat.bind_tools([], tool_choice="required").invoke("x"), "there is no such tool"),
        (lambda chat: chat.with_structured_output(Place, method="guess"), "function_calling and json_mode"),
        (lambda chat: chat.invoke([("tool", "text")] if False else [__import__("langchain_core.messages", fromlist=["x"]).ToolMessage("t", tool_call_id="9")]),
            "follows no message"),
    ])  # fmt: skip
    def test_what_lmc_has_not_is_refused(self, call, says):
        with pytest.raises(lmc.ArgumentError, match=says):
            call(lmc.langchain.Chat(backend=lmc.Mock()))

    def test_errors_of_a_backend_come_through(self):
        with pytest.raises(lmc.BackendError, match="no more"):
            lmc.langchain.Chat(backend=lmc.Mock(fault=lambda ask, i: lmc.BackendError("no more"))).invoke("word")


class TestLlamaIndex:
    @pytest.fixture(autouse=True)
    def there(self):
        pytest.importorskip("llama_index.core")

    def test_an_error_names_the_line_that_called_it(self):
        from llama_index.core import PromptTemplate

        llm = lmc.llama_index.Chat(backend=lmc.Mock(), max_tokens=3)
        with pytest.raises(lmc.IncompleteAnswer) as raised:
            llm.structured_predict(Place, PromptTemplate("{text}"), text="?", llm_kwargs={"tool_required": True})
        assert raised.value.loc.file == __file__

    def test_a_backend_may_be_named(self):
        assert lmc.llama_index.Chat(backend="mock", max_tokens=9).complete("Porto?").text

    def test_it_chats_completes_and_streams(self):
        from llama_index.core.llms import ChatMessage

        chat = lmc.llama_index.Chat(backend=lmc.Mock(lambda prompt, ask: "a long answer", latency=0.2), temperature=0, max_tokens=20)
        talk = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Hello.")]
        found = chat.chat(talk)
        assert found.message.content == "a long answer" and found.additional_kwargs["completion_tokens"] == 13
        assert chat.complete("Hello.").text == "a long answer"
        pieces = list(chat.stream_chat(talk))
        assert "".join(piece.delta for piece in pieces) == pieces[-1].message.content == "a long answer" and len(pieces) > 3
        assert [*chat.stream_complete("x")][-1].text == "a long answer"

        async def later():
            streamed = [piece.delta async for piece in await chat.astream_chat(talk)]
            return (await chat.achat(talk)).message.content, (await chat.acomplete("x")).text, "".join(streamed)

        assert asyncio.run(later()) == ("a long answer",) * 3

    def test_it_serves_as_the_model_of_a_program_of_llama_indexs(self):
        from llama_index.core.program import LLMTextCompletionProgram

        chat = lmc.llama_index.Chat(backend=lmc.Mock(['{"town": "Porto", "size": 2}']), max_tokens=80)
        program = LLMTextCompletionProgram.from_defaults(output_cls=Place, prompt_template_str="A town in {land}.", llm=chat)
        assert program(land="Portugal") == Place(town="Porto", size=2)

    def test_what_lmc_has_not_is_refused(self):
        from llama_index.core.llms import ChatMessage

        chat = lmc.llama_index.Chat(backend=lmc.Mock())
        with pytest.raises(lmc.ArgumentError, match="takes no nonsense="):
            chat.chat([ChatMessage(role="user", content="x")], nonsense=1)
        with pytest.raises(lmc.ArgumentError, match="follows no message"):
            chat.chat([ChatMessage(role="tool", content="x", additional_kwargs={"tool_call_id": "9"})])
        with pytest.raises(lmc.ArgumentError, match="the model chooses"):
            chat.chat([ChatMessage(role="user", content="x")], tool_choice="weather")

    @staticmethod
    def weather():
        from llama_index.core.tools import FunctionTool

        def weather(town: str) -> str:
            """The weather in a town."""
            return f"sun in {town}"

        return FunctionTool.from_defaults(weather)

    @pytest.mark.parametrize("streaming", [True, False])
    def test_an_agent_of_llama_indexs_calls_tools_and_sees_their_results(self, streaming):
        from llama_index.core.agent.workflow import FunctionAgent

        mock = lmc.Mock([CALL, "Take no umbrella."])
        agent = FunctionAgent(tools=[self.weather()], llm=lmc.llama_index.Chat(backend=mock, max_tokens=200), streaming=streaming)

        async def ask():
            return await agent.run("Porto?")

        assert str(asyncio.run(ask())) == "Take no umbrella."
        seen = mock.call_log[-1].prompt_text
        assert len(mock.call_log) == 2 and "sun in Porto" in seen and '"town": "Porto"' in seen

    def test_calls_are_one_several_or_none(self):
        call = lambda town: {"name": "weather", "arguments": {"town": town}}
        chat = lmc.llama_index.Chat(backend=lmc.Mock([json.dumps([call("Porto"), call("Faro")])] * 2 + ["none"] * 2), max_tokens=200)
        ask = lambda **more: chat.chat_with_tools([self.weather()], user_msg="Where?", **more)
        for several, towns in ((True, ["Porto", "Faro"]), (False, ["Porto"])):
            found = chat.get_tool_calls_from_response(ask(allow_parallel_tool_calls=several))
            assert [(one.tool_name, one.tool_kwargs["town"]) for one in found] == [("weather", town) for town in towns]
        assert chat.get_tool_calls_from_response(ask(), error_on_no_tool_call=False) == []
        with pytest.raises(ValueError, match="calls no tool"):
            chat.get_tool_calls_from_response(ask())

    def test_a_required_call_is_made_whatever_the_model_says(self):
        from llama_index.core.prompts import PromptTemplate

        mock = lmc.Mock()
        chat = lmc.llama_index.Chat(backend=mock, max_tokens=200)
        ask = {"tools": [self.weather()], "user_msg": "Porto?", "tool_required": True}
        for response in (chat.chat_with_tools(**ask), [*chat.stream_chat_with_tools(**ask)][-1], asyncio.run(chat.achat_with_tools(**ask))):
            found = chat.get_tool_calls_from_response(response)
            assert [one.tool_name for one in found] == ["weather"] and isinstance(found[0].tool_kwargs["town"], str) and not response.message.content
        assert "The weather in a town." in mock.call_log[-1].prompt_text
        assert isinstance(chat.structured_predict(Place, PromptTemplate("A town in {land}."), land="Portugal"), Place)

    def test_objects_grow_and_end_whole(self):
        from llama_index.core.prompts import PromptTemplate

        llm = lmc.llama_index.Chat(backend=lmc.Mock(latency=0.1), max_tokens=200)
        ask = (Place, PromptTemplate("A town in {land}."))
        whole = list(llm.stream_structured_predict(*ask, land="Portugal"))

        async def follow():
            return [found async for found in await llm.astream_structured_predict(*ask, land="Portugal")]

        assert isinstance(whole[-1], Place) and asyncio.run(follow())[-1] == whole[-1]

    def test_a_field_that_it_has_not_is_refused(self):
        with pytest.raises(pydantic.ValidationError, match="temperatur"):
            lmc.llama_index.Chat(temperatur=0)

    def test_its_metadata_is_the_backends(self):
        chat = lmc.llama_index.Chat(backend=lmc.Mock(), max_tokens=7)
        assert (chat.metadata.model_name, chat.metadata.num_output, chat.metadata.is_chat_model) == ("mock", 7, True)


def test_a_message_names_no_file(tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    mock = lmc.Mock(lambda prompt, ask, images: f"{len(images)}")

    def shown(source):
        return conversing.reply(mock, [conversing.ConversationTurn("user", ["What?", conversing.MessageImage(source)])], {"max_tokens": 4}).text

    for source in (str(tmp_path / "a.png"), f"file://{tmp_path / 'a.png'}"):
        with pytest.raises(lmc.ParameterError, match="an image of a message is a data URL or a web address"):
            shown(source)
    assert not mock.call_log
    assert shown(png()) == shown("https://host/a.png") == "1"
