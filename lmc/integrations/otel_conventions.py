"""Requests, answers and prompts as OpenTelemetry's semantic conventions for generative AI name and write them."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from lmc.backend.results import Output
from lmc.errors import Loc
from lmc.prompt import Excerpt, Prompt
from lmc.segments import Gen, Mark, Select, Special

Attributes = dict[str, Any]


_PROVIDERS = {"OpenAI": "openai", "Anthropic": "anthropic", "Engine": "lmc", "VLLM": "vllm", "SGLang": "sglang"}


def attributes_of_request(ask: Gen | Select) -> Attributes:
    """Return attributes of the request."""
    found: Attributes = {} if ask.name is None else {"lmc.variable": ask.name}
    if isinstance(ask, Select):
        return found | {"gen_ai.request.temperature": ask.temperature, "lmc.choices": len(ask.choices), "lmc.choices_method": str(ask.method)}
    p, kind = ask.params, None if ask.constraint is None else ask.constraint.kind
    found |= {"gen_ai.request.max_tokens": p.max_new_tokens, "gen_ai.request.temperature": p.temperature, "gen_ai.request.top_p": p.top_p}
    found["gen_ai.output.type"] = "json" if kind == "json_schema" else "text"
    more = {
        "gen_ai.request.top_k": p.top_k if p.top_k > 0 else None, "gen_ai.request.choice.count": p.n if p.n > 1 else None,
        "gen_ai.request.frequency_penalty": p.frequency_penalty or None, "gen_ai.request.presence_penalty": p.presence_penalty or None,
        "gen_ai.request.stop_sequences": list(p.stop) or None, "gen_ai.request.seed": ask.seed if p.temperature > 0 else None, "lmc.constraint": kind,
    }  # fmt: skip
    return found | {name: value for name, value in more.items() if value is not None}


def attributes_of_answer(output: Output) -> Attributes:
    """Return attributes of the answer."""
    usage, meta = output.usage, output.metas[0] if output.metas else {}
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens, "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens, "lmc.usage.forced_tokens": usage.forced_tokens, "lmc.usage.calls": usage.calls,
    }  # fmt: skip
    if usage.written_tokens:
        found["gen_ai.usage.cache_creation.input_tokens"] = usage.written_tokens
    if reasons := [reason for each in output.metas if (reason := finish_reason_of(each)) is not None]:
        found["gen_ai.response.finish_reasons"] = reasons
    named = {
        "gen_ai.response.id": meta.get("id"),
        "gen_ai.response.model": meta.get("model"),
        "lmc.attempts": meta.get("attempts"),
        "lmc.cost": meta.get("cost"),
    }
    return found | {name: value for name, value in named.items() if value}


def finish_reason_of(meta: Mapping[str, Any]) -> str | None:
    said: Any = meta.get("finish_reason")
    return said.get("type") if isinstance(said, Mapping) else said  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]


def attributes_of_place(loc: Loc | None) -> Attributes:
    return {} if loc is None else {"code.file.path": loc.file, "code.line.number": loc.line}


def model_of(name: str) -> tuple[str, str]:
    """Return provider and model of a backend's name, such as `OpenAI(gpt-5)` or `LiteLLM(vertex_ai/gemini-2.5-pro)`."""
    found = re.fullmatch(r"(\w+)\((.*)\)", name)
    kind, model = found.groups() if found else (name, name)
    provider, slash, rest = model.partition("/")
    if kind == "LiteLLM" and slash:
        return {"vertex_ai": "gcp.vertex_ai", "azure": "azure.ai.openai", "bedrock": "aws.bedrock"}.get(provider, provider), rest
    return _PROVIDERS.get(kind, kind.lower()), model


def in_messages(prompt: Prompt) -> bool:
    """Return whether it has messages, of a program's roles or of a template, or is plain text."""
    node: Prompt | None = prompt
    while node is not None:
        if any(isinstance(part, Mark | Special) for part in (*node.parts, *node.tail)):
            return True
        node = node.parent
    return False


def messages_of(before: Prompt) -> list[Any]:
    """Return a prompt in the conventions' form of messages; one without roles, as `lmc serve` renders it, is one text.
    Pictures are left out. Waits for nothing."""
    found: list[tuple[str, list[str]]] = []
    plain: list[str] = []
    texts = plain
    for piece in _pieces(before):
        if isinstance(piece, Mark):
            texts = list[str]()  # text between messages is the template's
            if piece.edge == "begin":
                found.append((piece.role, texts))
        else:
            texts.append(piece)
    return [{"role": role, "parts": [{"type": "text", "content": text}]} for role, texts in found or [("user", plain)] if (text := "".join(texts))]


def _pieces(before: Prompt) -> Generator[str | Mark]:
    for node in before.nodes():
        for part in node.parts:
            if isinstance(part, str | Mark):
                yield part
            elif isinstance(part, Special):
                yield part.spelling
            elif isinstance(part, Excerpt) and part.result.answer is not None:
                yield part.text()
        if node.result is not None and node.result.answer is not None:
            yield node.result.answer.text


def replies_of(output: Output) -> list[Any]:
    found: list[Any] = []
    for text, meta in zip(output.texts, output.metas, strict=True):
        calls: Sequence[Any] = meta.get("tool_calls") or ()
        parts: list[Any] = [{"type": "text", "content": text}] if text or not calls else []
        parts += [{"type": "tool_call", "id": call.get("id"), "name": call.get("name"), "arguments": call.get("arguments")} for call in calls]
        found.append({"role": "assistant", "parts": parts, "finish_reason": finish_reason_of(meta) or "stop"})
    return found
