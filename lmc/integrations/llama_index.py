"""`lmc.llama_index.Chat`: a language model of LlamaIndex's on any backend of lmc, in this process. Needs the package llama-index-core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from llama_index.core.program.streaming_utils import process_streaming_content_incremental
from pydantic import ConfigDict, Field

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

_ROLES = {
    MessageRole.SYSTEM: "system", MessageRole.DEVELOPER: "system", MessageRole.USER: "user", MessageRole.ASSISTANT: "assistant", MessageRole.MODEL: "assistant",
    MessageRole.CHATBOT: "assistant",
}  # fmt: skip

pass_over("llama_index_instrumentation", "llama_index", "workflows")


class Chat(FunctionCallingLLM):
    """A model on a backend; calls from many threads and tasks share one cache and one batch.

    backend      an `lmc` backend, such as `lmc.Engine("path")` or `lmc.Mock()`, or its name, such as "openai:gpt-4.1-mini"; None: lmc's default backend
    temperature, max_tokens  of each answer, as of `lmc.gen`; a call's own take precedence
    Raises lmc's errors; ArgumentError for unsupported kinds of messages.
    """

    model_config = ConfigDict(extra="forbid")

    backend: Any = Field(default=None, exclude=True)
    temperature: float | None = None
    max_tokens: int | None = None

    @classmethod
    def class_name(cls) -> str:
        return "lmc"

    @property
    def _backend(self) -> Any:
        return backend_of(self.backend) or default_backend()

    @property
    def metadata(self) -> LLMMetadata:
        able = self._backend.capabilities
        return LLMMetadata(
            model_name=able.name, is_chat_model=True, is_function_calling_model=able.tools,
            context_window=able.max_context or 8192, num_output=self.max_tokens or 128,
        )  # fmt: skip

    def _asked(self, messages: Sequence[ChatMessage], given: Mapping[str, Any]) -> tuple[Any, list[ConversationTurn], dict[str, Any]]:
        """Return the backend, the conversation, and the options of its answer."""
        found, options = turns(messages), self._options(given)
        return self._backend, *(must_call(found, options) if given.get("tool_required") else (found, options))

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
        return _response(reply(*self._asked(messages, kwargs)), kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _response(await areply(*self._asked(messages, kwargs)), kwargs)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        asked = self._asked(messages, kwargs)

        def pieces() -> Any:
            text = ""
            for piece in stream(*asked):
                found = _growing(text, piece, kwargs)
                text += found.delta or ""
                yield found

        return pieces()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        asked = self._asked(messages, kwargs)

        async def pieces() -> Any:
            text = ""
            async for piece in astream(*asked):
                found = _growing(text, piece, kwargs)
                text += found.delta or ""
                yield found

        return pieces()

    def _prepare_chat_with_tools(
        self, tools: Sequence[Any], user_msg: str | ChatMessage | None = None, chat_history: list[ChatMessage] | None = None, verbose: bool = False,
        allow_parallel_tool_calls: bool = False, tool_required: bool = False, **kwargs: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the arguments of a chat with tools; with `tool_required` its answer is a call."""
        messages = [*(chat_history or ())]
        if user_msg is not None:
            messages.append(user_msg if isinstance(user_msg, ChatMessage) else ChatMessage(role=MessageRole.USER, content=user_msg))
        described = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
        return {"messages": messages, **({"tools": described, "tool_required": tool_required} if described else {}), **kwargs}

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

    def stream_structured_predict(self, output_cls: Any, prompt: Any, llm_kwargs: Any = None, **prompt_args: Any) -> Any:
        """Stream an object as it grows; the last one is whole. LlamaIndex's own way requires no call, so the answer may be anything."""
        messages = self._extend_messages(prompt.format_messages(llm=self, **prompt_args))
        found: Any = None
        for part in self.stream_chat(messages, json_schema=output_cls.model_json_schema(), **(llm_kwargs or {})):
            yield (found := process_streaming_content_incremental(part, output_cls, found))

    async def astream_structured_predict(self, output_cls: Any, prompt: Any, llm_kwargs: Any = None, **prompt_args: Any) -> Any:
        """Stream as `stream_structured_predict` does, on an event loop."""
        messages = self._extend_messages(prompt.format_messages(llm=self, **prompt_args))
        parts = await self.astream_chat(messages, json_schema=output_cls.model_json_schema(), **(llm_kwargs or {}))

        async def objects() -> Any:
            found: Any = None
            async for part in parts:
                yield (found := process_streaming_content_incremental(part, output_cls, found))

        return objects()

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
        written = message.additional_kwargs.get(WRITTEN) or ("".join(content) if all(isinstance(part, str) for part in content) else content)
        found.append(ConversationTurn(_ROLES[message.role], written))
    return found


def _arguments(call: ToolCallBlock) -> dict[str, Any]:
    return arguments_of({"arguments": call.tool_kwargs}) or {}


def _extra(found: ConversationReply) -> dict[str, Any]:
    return {
        "finish_reason": "tool_calls" if found.calls else found.finish,
        "prompt_tokens": found.usage.prompt_tokens,
        "completion_tokens": found.usage.completion_tokens,
    }


def _message(found: ConversationReply) -> ChatMessage:
    calls = [ToolCallBlock(tool_call_id=str(call["id"]), tool_name=call["name"], tool_kwargs=call["arguments"]) for call in found.calls]
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        blocks=[*([TextBlock(text=found.said)] if found.said or not calls else []), *calls],
        additional_kwargs={WRITTEN: found.text},
    )


def _response(found: ConversationReply, options: Mapping[str, Any]) -> ChatResponse:
    found = called(found) if options.get("tool_required") else found
    return ChatResponse(message=_message(found), raw=_extra(found), additional_kwargs=_extra(found))


def _growing(before: str, piece: str | ConversationReply, options: Mapping[str, Any]) -> ChatResponse:
    """Return an answer as far as it has come. With tools its text may turn out to be a call, and comes at the end."""
    told = bool(options.get("tools"))
    if isinstance(piece, str):
        delta = "" if told else piece
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=before + delta), delta=delta, raw={}, additional_kwargs={})
    found = called(piece) if options.get("tool_required") else piece
    return ChatResponse(message=_message(found), delta=found.said if told else "", raw=_extra(found), additional_kwargs=_extra(found))


def _completion(found: ChatResponse) -> CompletionResponse:
    return CompletionResponse(text=found.message.content or "", delta=found.delta, raw=found.raw, additional_kwargs=found.additional_kwargs)
