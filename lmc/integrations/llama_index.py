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
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import LLM
from pydantic import Field

from lmc.config import default_backend
from lmc.errors import ArgumentError
from lmc.integrations.conversing import (
    ConversationReply,
    ConversationTurn,
    MessageImage,
    areply,
    astream,
    reply,
    stream,
)

_ROLES = {
    MessageRole.SYSTEM: "system", MessageRole.DEVELOPER: "system", MessageRole.USER: "user", MessageRole.ASSISTANT: "assistant", MessageRole.MODEL: "assistant",
    MessageRole.CHATBOT: "assistant",
}  # fmt: skip


class Chat(LLM):
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
        return LLMMetadata(model_name=able.name, is_chat_model=True, context_window=able.max_context or 8192, num_output=self.max_tokens or 128)

    def _options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        known = ("temperature", "max_tokens", "top_p", "top_k", "stop", "seed", "json_schema", "regex")
        if unknown := [name for name in given if name not in (*known, "formatted")]:
            raise ArgumentError(f"lmc.llama_index.Chat takes no {unknown[0]}=; there are {', '.join(known)}")
        found = {"temperature": self.temperature, "max_tokens": self.max_tokens} | {name: value for name, value in given.items() if name in known}
        return {name: value for name, value in found.items() if value is not None}

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _response(reply(self._backend, turns(messages), self._options(kwargs)))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return _response(await areply(self._backend, turns(messages), self._options(kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        def pieces() -> Any:
            text = ""
            for piece in stream(self._backend, turns(messages), self._options(kwargs)):
                delta = piece if isinstance(piece, str) else ""
                text += delta
                yield _growing(text, delta, piece)

        return pieces()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        async def pieces() -> Any:
            text = ""
            async for piece in astream(self._backend, turns(messages), self._options(kwargs)):
                delta = piece if isinstance(piece, str) else ""
                text += delta
                yield _growing(text, delta, piece)

        return pieces()

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
    for message in messages:
        if message.role not in _ROLES:
            raise ArgumentError(f"a message of the role {message.role.value!r}: only system, user and assistant are supported")
        content: list[Any] = []
        for block in message.blocks:
            if isinstance(block, TextBlock):
                content.append(block.text)
            elif isinstance(block, ImageBlock):
                content.append(MessageImage(str(block.url) if block.url else block.resolve_image().read()))
            else:
                raise ArgumentError(f"a message has a {type(block).__name__}; only text and images are supported")
        found.append(ConversationTurn(_ROLES[message.role], "".join(content) if all(isinstance(b, TextBlock) for b in message.blocks) else content))
    return found


def _extra(found: ConversationReply) -> dict[str, Any]:
    return {"finish_reason": found.finish, "prompt_tokens": found.usage.prompt_tokens, "completion_tokens": found.usage.completion_tokens}


def _response(found: ConversationReply) -> ChatResponse:
    return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=found.text), raw=_extra(found), additional_kwargs=_extra(found))


def _growing(text: str, delta: str, piece: str | ConversationReply) -> ChatResponse:
    extra = {} if isinstance(piece, str) else _extra(piece)
    return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=delta, raw=extra, additional_kwargs=extra)


def _completion(found: ChatResponse) -> CompletionResponse:
    return CompletionResponse(text=found.message.content or "", delta=found.delta, raw=found.raw, additional_kwargs=found.additional_kwargs)
