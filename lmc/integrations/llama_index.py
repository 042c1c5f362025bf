"""`lmc.llama_index.Chat`: a language model of LlamaIndex's on any backend of lmc, in this process. Needs the package llama-index-core."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    ImageBlock,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from pydantic import Field

from lmc.config import default_backend
from lmc.errors import ArgumentError
from lmc.integrations.conversing import (
    ConversationReply,
    ConversationTurn,
    MessageImage,
    areply,
    arguments_of,
    astream,
    reply,
    stream,
)

_ROLES = {
    MessageRole.SYSTEM: "system", MessageRole.DEVELOPER: "system", MessageRole.USER: "user", MessageRole.ASSISTANT: "assistant", MessageRole.MODEL: "assistant",
    MessageRole.CHATBOT: "assistant",
}  # fmt: skip
_WRITTEN = "lmc_text"
"""Key under which an answer's message keeps the model's text, including calls of tools, so that later prompts continue
it token by token."""


class Chat(FunctionCallingLLM):
    """A model on a backend; calls from many threads and tasks share one cache and one batch.

    backend      an `lmc` backend, such as `lmc.Engine("path")` or `lmc.Mock()`; None: lmc's default backend
    temperature, max_tokens  of each answer, as of `lmc.gen`; a call's own take precedence
    Raises lmc's errors; ArgumentError for unsupported kinds of messages.
    """

    backend: Any = Field(default=None, exclude=True)
    temperature: float | None = None
    max_tokens: int | None = None

    @classmethod
    def class_name(cls) -> str:
        return "lmc"

    @property
    def _backend(self) -> Any:
        return self.backend or default_backend()

    @property
    def metadata(self) -> LLMMetadata:
        able = self._backend.capabilities
        return LLMMetadata(
            model_name=able.name, is_chat_model=True, is_function_calling_model=able.tools,
            context_window=able.max_context or 8192, num_output=self.max_tokens or 128,
        )  # fmt: skip

    def _options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        known = ("temperature", "max_tokens", "top_p", "top_k", "stop", "seed", "json_schema", "regex", "tools")
        if given.get("tool_choice") not in (None, "auto"):
            raise ArgumentError(f"tool_choice={given['tool_choice']!r}: the model chooses; tool_required=True makes it call one")
        if unknown := [name for name in given if name not in (*known, "formatted", "tool_choice", "tool_required")]:
            raise ArgumentError(f"lmc.llama_index.Chat takes no {unknown[0]}=; there are {', '.join(known)}")
        found = {"temperature": self.temperature, "max_tokens": self.max_tokens} | {name: value for name, value in given.items() if name in known}
        return {name: value for name, value in found.items() if value is not None}

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _response(reply(self._backend, turns(messages), self._options(kwargs)), kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _response(await areply(self._backend, turns(messages), self._options(kwargs)), kwargs)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        options = self._options(kwargs)

        def pieces() -> Any:
            text = ""
            for piece in stream(self._backend, turns(messages), options):
                found = _growing(text, piece, kwargs)
                text += found.delta or ""
                yield found

        return pieces()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        options = self._options(kwargs)

        async def pieces() -> Any:
            text = ""
            async for piece in astream(self._backend, turns(messages), options):
                found = _growing(text, piece, kwargs)
                text += found.delta or ""
                yield found

        return pieces()

    def _prepare_chat_with_tools(
        self, tools: Sequence[Any], user_msg: str | ChatMessage | None = None, chat_history: list[ChatMessage] | None = None, verbose: bool = False,
        allow_parallel_tool_calls: bool = False, tool_required: bool = False, **kwargs: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the arguments of a chat with tools. With `tool_required` the tools are shown in the system message, and the answer is JSON: a call whose
        arguments match its schema, on every backend that takes schemas."""
        messages = [*(chat_history or ())]
        if user_msg is not None:
            messages.append(user_msg if isinstance(user_msg, ChatMessage) else ChatMessage(role=MessageRole.USER, content=user_msg))
        described = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
        if tool_required and described:
            return {"messages": _shown(messages, described), "json_schema": _required(described), "tool_required": True, **kwargs}
        return {"messages": messages, **({"tools": described} if described else {}), **kwargs}

    def _validate_chat_with_tools_response(
        self, response: ChatResponse, tools: Sequence[Any], allow_parallel_tool_calls: bool = False, **kwargs: Any
    ) -> ChatResponse:
        """Return the answer, with one call unless several are allowed."""
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not allow_parallel_tool_calls:
            response.message.blocks = [block for block in response.message.blocks if block not in calls[1:]]
        return response

    def get_tool_calls_from_response(self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any) -> list[ToolSelection]:
        """Return the calls of an answer. Raises ValueError if there is none, unless that is allowed."""
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if error_on_no_tool_call and not calls:
            raise ValueError("the answer calls no tool; tool_required=True makes it call one")
        return [ToolSelection(tool_id=call.tool_call_id or "", tool_name=call.tool_name, tool_kwargs=_arguments(call)) for call in calls]

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return _completion(self.chat([ChatMessage(role=MessageRole.USER, content=prompt)], **kwargs))

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return _completion(await self.achat([ChatMessage(role=MessageRole.USER, content=prompt)], **kwargs))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        return (_completion(part) for part in self.stream_chat([ChatMessage(role=MessageRole.USER, content=prompt)], **kwargs))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        found = await self.astream_chat([ChatMessage(role=MessageRole.USER, content=prompt)], **kwargs)
        return (_completion(part) async for part in found)


def turns(messages: Sequence[ChatMessage]) -> list[ConversationTurn]:
    """Convert LlamaIndex's messages to lmc's."""
    found: list[ConversationTurn] = []
    calls: dict[str, Mapping[str, Any]] = {}
    for message in messages:
        if message.role is MessageRole.TOOL:
            made = str(message.additional_kwargs.get("tool_call_id", ""))
            if made not in calls:
                raise ArgumentError(f"the result of the call {made!r} follows no message that made it")
            found.append(ConversationTurn("tool", message.content or "", calls[made]))
            continue
        if message.role not in _ROLES:
            raise ArgumentError(f"a message of the role {message.role.value!r}: only system, user, assistant and tool are supported")
        content: list[Any] = []
        for block in message.blocks:
            if isinstance(block, TextBlock):
                content.append(block.text)
            elif isinstance(block, ImageBlock):
                content.append(MessageImage(str(block.url) if block.url else block.resolve_image().read()))
            elif isinstance(block, ToolCallBlock):
                calls[block.tool_call_id or ""] = {"id": block.tool_call_id or "", "name": block.tool_name, "arguments": _arguments(block)}
            else:
                raise ArgumentError(f"a message has a {type(block).__name__}; only text, images and calls of tools are supported")
        written = message.additional_kwargs.get(_WRITTEN) or ("".join(content) if all(isinstance(part, str) for part in content) else content)
        found.append(ConversationTurn(_ROLES[message.role], written))
    return found


def _required(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema of a call of one of these tools."""
    calls = [{"properties": {"name": {"const": tool["function"]["name"]}, "arguments": tool["function"]["parameters"]}} for tool in tools]
    return {"anyOf": [{"type": "object", **call, "required": ["name", "arguments"], "additionalProperties": False} for call in calls]}


def _shown(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    """Return messages whose system message shows the tools, one of which has to be called."""
    said = "Call one of these tools, by JSON with its name and arguments:\n" + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    if messages and messages[0].role is MessageRole.SYSTEM:
        return [ChatMessage(role=MessageRole.SYSTEM, blocks=[*messages[0].blocks, TextBlock(text=f"\n\n{said}")]), *messages[1:]]
    return [ChatMessage(role=MessageRole.SYSTEM, content=said), *messages]


def _arguments(call: ToolCallBlock) -> dict[str, Any]:
    return arguments_of({"arguments": call.tool_kwargs}) or {}


def _extra(found: ConversationReply) -> dict[str, Any]:
    return {
        "finish_reason": "tool_calls" if found.calls else found.finish,
        "prompt_tokens": found.usage.prompt_tokens,
        "completion_tokens": found.usage.completion_tokens,
    }


def _called(found: ConversationReply, options: Mapping[str, Any]) -> ConversationReply:
    """Return an answer with its calls: one that had to be a call is the JSON of it."""
    return found if not options.get("tool_required") else found._replace(said="", calls=[{"id": f"call_{uuid4().hex}", **json.loads(found.text)}])


def _message(found: ConversationReply) -> ChatMessage:
    calls = [ToolCallBlock(tool_call_id=str(call["id"]), tool_name=call["name"], tool_kwargs=call["arguments"]) for call in found.calls]
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        blocks=[*([TextBlock(text=found.said)] if found.said or not calls else []), *calls],
        additional_kwargs={_WRITTEN: found.text},
    )


def _response(found: ConversationReply, options: Mapping[str, Any]) -> ChatResponse:
    found = _called(found, options)
    return ChatResponse(message=_message(found), raw=_extra(found), additional_kwargs=_extra(found))


def _growing(before: str, piece: str | ConversationReply, options: Mapping[str, Any]) -> ChatResponse:
    """Return an answer as far as it has come. With tools its text may turn out to be a call, and comes at the end."""
    told = bool(options.get("tools") or options.get("tool_required"))
    if isinstance(piece, str):
        delta = "" if told else piece
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=before + delta), delta=delta, raw={}, additional_kwargs={})
    found = _called(piece, options)
    return ChatResponse(message=_message(found), delta=found.said if told else "", raw=_extra(found), additional_kwargs=_extra(found))


def _completion(found: ChatResponse) -> CompletionResponse:
    return CompletionResponse(text=found.message.content or "", delta=found.delta, raw=found.raw, additional_kwargs=found.additional_kwargs)
