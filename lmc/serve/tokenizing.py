"""POST /tokenize and /detokenize, GET /tokenizer_info: a model's tokens, as vLLM gives them to clients that send token ids. Pure data."""

from __future__ import annotations

from typing import Any

from lmc.backend.base import Backend
from lmc.segments import Part
from lmc.serve.answering import Json
from lmc.serve.errors import bad
from lmc.serve.fields import ListOf, RequestBody, TokenId


class TokenizeRequest(RequestBody):
    """A text, or a conversation as of a chat completion."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: ListOf[dict[str, Any]] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self) -> Json:
        """Return the conversation as a request for a chat completion."""
        if self.prompt is not None:
            raise bad("prompt and messages exclude each other", "prompt")
        names = ("model", "messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class DetokenizeRequest(RequestBody):
    model: str | None = None
    tokens: ListOf[TokenId]


def tokenizer_of(backend: Backend) -> Any:
    """Return the tokenizer of the backend's model. Raises ApiError if there is none here."""
    words = getattr(backend, "tokenizer", None)
    if words is None:
        raise bad("this server does not have its model's tokenizer; it takes and gives text", code="unsupported")
    return words


def text_ids(text: str, words: Any, backend: Any, *, begins: bool) -> list[int]:
    """Return the ids of a text, in which a special token's spelling is that token: clients write whole prompts. `begins`: with the BOS
    that the model's rule puts before a prompt."""
    parts: tuple[Part, ...] = words.split_specials(text)
    return backend.encode(parts) if begins else words.encode(parts)


def info(words: Any, template: str | None, context: int | None) -> Json:
    """Return what a tokenizer_config.json tells that is known here: the special tokens by which clients begin and end texts, and the chat template."""
    named = {"bos_token": words.bos_token_id, "eos_token": words.eos_token_ids[0], "pad_token": None}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": words.add_bos,
        "model_max_length": context,
        **{name: None if token is None else words.spelling(token) for name, token in named.items()},
        "chat_template": template,
    }
