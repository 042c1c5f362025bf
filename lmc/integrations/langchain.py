"""`lmc.langchain.Chat`: a chat model of LangChain's on any backend of lmc, in this process. Needs the package langchain-core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import ConfigDict

from lmc.chat import conversation
from lmc.config import default_backend
from lmc.errors import ArgumentError
from lmc.frontend.expressions import pass_over
from lmc.frontend.options import backend_of
from lmc.integrations.conversing import (
    WRITTEN,
    ConversationReply,
    ConversationTurn,
    MessageImage,
    areply,
    arguments_of,
    astream,
    called,
    must_call,
    reply,
    stream,
)
from lmc.segments import Special

pass_over("langchain_core", "langchain", "langgraph")


class Chat(BaseChatModel):
    """A chat model on a backend; calls from many threads and tasks share one cache and one batch.

    backend      an `lmc` backend, such as `lmc.Engine("path")` or `lmc.Mock()`, or its name, such as "openai:gpt-4.1-mini"; None: lmc's default backend
    temperature, top_p, max_tokens, stop, seed  of each answer, as of `lmc.gen`; a call's own take precedence
    Raises lmc's errors; ArgumentError for unsupported kinds of messages.
    """

    model_config = ConfigDict(extra="forbid")

    backend: Any = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    seed: int | None = None

    @property
    def _llm_type(self) -> str:
        return "lmc"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"backend": self._backend.capabilities.name, **self._options({}, None)}

    @property
    def _backend(self) -> Any:
        return backend_of(self.backend) or default_backend()

    def _asked(
        self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, given: Mapping[str, Any]
    ) -> tuple[list[ConversationTurn], dict[str, Any], bool]:
        """Return the conversation, the options of its answer, and whether that has to be a call."""
        found, options, choice = turns(messages), self._options(given, stop), given.get("tool_choice")
        name = choice["function"]["name"] if isinstance(choice, Mapping) else choice
        if name in (None, "auto", False):
            return found, options, False
        tools = options.pop("tools", [])
        if name == "none":
            return found, options, False
        if not (tools := [tool for tool in tools if name in (True, "any", "required", tool["function"]["name"])]):
            raise ArgumentError(f"tool_choice={choice!r}: there is no such tool")
        return *must_call(found, {**options, "tools": tools}), True

    def _options(self, given: Mapping[str, Any], stop: Sequence[str] | None) -> dict[str, Any]:
        """Return the options of a `gen`. Raises ArgumentError for an unsupported one."""
        own = {name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens", "stop", "seed")}
        known = {*own, "tools", "json_schema", "regex", "ebnf", "top_k", "min_p", "frequency_penalty", "presence_penalty"}
        if unknown := [name for name in given if name not in known and not name.startswith("ls_") and name != "tool_choice"]:
            raise ArgumentError(f"lmc.langchain.Chat takes no {unknown[0]}=; there are {', '.join(sorted(known))}")
        found = own | {name: value for name, value in given.items() if name in known} | ({"stop": list(stop)} if stop else {})
        return {name: value for name, value in found.items() if value is not None}

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any
    ) -> ChatResult:
        found, options, must = self._asked(messages, stop, kwargs)
        return _result(reply(self._backend, found, options), must)

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any
    ) -> ChatResult:
        found, options, must = self._asked(messages, stop, kwargs)
        return _result(await areply(self._backend, found, options), must)

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: CallbackManagerForLLMRun | None = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        found, options, must = self._asked(messages, stop, kwargs)
        for piece in stream(self._backend, found, options):
            chunk = _chunk(piece, must, told=must or "tools" in options)
            if run_manager and chunk.text:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: AsyncCallbackManagerForLLMRun | None = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        found, options, must = self._asked(messages, stop, kwargs)
        async for piece in astream(self._backend, found, options):
            chunk = _chunk(piece, must, told=must or "tools" in options)
            if run_manager and chunk.text:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Any:
        """Return the model with these tools. The arguments of calls match their schemas on lmc's engine. `tool_choice`: "any" or a tool's name makes every
        answer a call, "none" makes none."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **({} if tool_choice is None else {"tool_choice": tool_choice}), **kwargs)

    def with_structured_output(self, schema: Any, *, include_raw: bool = False, method: str = "json_schema", strict: bool | None = None, **kwargs: Any) -> Any:
        """Return a runnable whose answers are valid objects of a schema: a pydantic model, a TypedDict or a JSON schema (then a
        dict). Every answer parses, by any of LangChain's methods; validators of a model may still refuse it."""
        from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
        from langchain_core.runnables import RunnableLambda, RunnableMap

        if method not in ("json_schema", "function_calling", "json_mode"):
            raise ArgumentError(f"with_structured_output(method={method!r}): there are json_schema, function_calling and json_mode, which give the same")
        typed = isinstance(schema, type) and hasattr(schema, "model_json_schema")
        bound = self.bind(
            json_schema=schema.model_json_schema() if typed else dict(schema) if isinstance(schema, Mapping) else convert_to_json_schema(schema), **kwargs
        )
        parser: Any = PydanticOutputParser(pydantic_object=schema) if typed else JsonOutputParser()
        if not include_raw:
            return bound | parser

        def parsed(found: dict[str, Any]) -> dict[str, Any]:
            try:
                return found | {"parsed": parser.invoke(found["raw"]), "parsing_error": None}
            except OutputParserException as error:
                return found | {"parsed": None, "parsing_error": error}

        return RunnableMap(raw=bound) | RunnableLambda(parsed)

    def get_num_tokens(self, text: str) -> int:
        """Count the tokens of a text. Raises ArgumentError where the backend has no tokenizer here, as models behind an API."""
        count = getattr(self._backend, "count_tokens", None)
        if count is None:
            raise ArgumentError(f"{self._backend.capabilities.name} has no tokenizer here: give token_counter= a function of your own")
        return count(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:
        """Count the tokens of messages with their template, but for pictures and tools."""
        said = [("user" if turn.role == "tool" else turn.role, turn.content) for turn in turns(messages)]
        texts = [(role, [content] if isinstance(content, str) else [part for part in content if isinstance(part, str)]) for role, content in said]
        shown = conversation(self._backend.chat_template, texts)
        return sum(self.get_num_tokens(part) if isinstance(part, str) else isinstance(part, Special) for part in shown)


def turns(messages: Sequence[BaseMessage]) -> list[ConversationTurn]:
    """Convert LangChain's messages to lmc's."""
    found: list[ConversationTurn] = []
    calls: dict[str, Mapping[str, Any]] = {}
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in calls:
                raise ArgumentError(f"the result of the call {message.tool_call_id!r} follows no message that made it")
            found.append(ConversationTurn("tool", _text(message), calls[message.tool_call_id]))
        elif isinstance(message, AIMessage):
            calls |= {str(call["id"]): {"id": str(call["id"]), "name": call["name"], "arguments": call["args"]} for call in message.tool_calls}
            found.append(ConversationTurn("assistant", message.response_metadata.get(WRITTEN) or _text(message)))
        elif message.type in ("human", "system"):
            found.append(ConversationTurn("system" if isinstance(message, SystemMessage) else "user", _content(message)))
        else:
            raise ArgumentError(f"a message of the type {message.type!r}: only system, human, ai and tool are supported")
    return found


def _text(message: BaseMessage) -> str:
    found = _content(message)
    if isinstance(found, str):
        return found
    if not all(isinstance(part, str) for part in found):
        raise ArgumentError(f"an image in a message of the type {message.type!r}")
    return "".join(found)


def _content(message: BaseMessage) -> str | list[Any]:
    """Return text, or texts and images."""
    if isinstance(message.content, str):
        return message.content
    found: list[Any] = []
    for block in message.content:
        if isinstance(block, str):
            found.append(block)
        elif block.get("type") == "text":
            found.append(block["text"])
        elif block.get("type") == "image_url":
            found.append(MessageImage(block["image_url"]["url"] if isinstance(block["image_url"], dict) else block["image_url"]))
        elif block.get("type") == "image" and ("url" in block or "base64" in block):
            found.append(MessageImage(block.get("url") or f"data:{block.get('mime_type', 'image/png')};base64,{block['base64']}"))
        else:
            raise ArgumentError(f"a message has a part of the type {block.get('type')!r}; only text and images are supported")
    return found if any(isinstance(part, MessageImage) for part in found) else "".join(found)


def _message(found: ConversationReply) -> dict[str, Any]:
    """Return the fields of an answer's message."""
    usage = UsageMetadata(
        input_tokens=found.usage.prompt_tokens,
        output_tokens=found.usage.completion_tokens,
        total_tokens=found.usage.prompt_tokens + found.usage.completion_tokens,
    )
    known = [(call, arguments_of(call)) for call in found.calls]
    return {
        "usage_metadata": usage, "response_metadata": {"finish_reason": "tool_calls" if found.calls else found.finish, WRITTEN: found.text},
        "tool_calls": [{"id": call["id"], "name": call["name"], "args": args, "type": "tool_call"} for call, args in known if args is not None],
        "invalid_tool_calls": [
            {"id": call["id"], "name": call["name"], "args": str(call["arguments"]), "error": "not a JSON object", "type": "invalid_tool_call"}
            for call, args in known if args is None
        ],
    }  # fmt: skip


def _result(found: ConversationReply, must: bool) -> ChatResult:
    found = called(found) if must else found
    return ChatResult(generations=[ChatGeneration(message=AIMessage(content=found.said, **_message(found)))])


def _chunk(piece: str | ConversationReply, must: bool, *, told: bool) -> ChatGenerationChunk:
    """Return a piece of an answer, or its end. `told`: it has tools, so text may turn out to be a call, and comes at
    the end."""
    if isinstance(piece, str):
        return ChatGenerationChunk(message=AIMessageChunk(content="" if told else piece))
    piece = called(piece) if must else piece
    return ChatGenerationChunk(message=AIMessageChunk(content=piece.said if told else "", chunk_position="last", **_message(piece)))
