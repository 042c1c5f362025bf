"""A conversation as one request on a backend: shared by the chat models of other libraries (langchain.py,
llama_index.py)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import lmc
from lmc import json_data
from lmc.backend.usage import Usage
from lmc.errors import ParameterError
from lmc.images import is_path

NAME = "answer"
WRITTEN = "lmc_text"
"""Key under which an answer's message keeps the model's text, including calls of tools, so that later prompts continue it token by token."""


class MessageImage(NamedTuple):
    """An image of a message: its file, a data URL or a web address. A path is refused: messages often come from elsewhere."""

    source: bytes | str


class ConversationTurn(NamedTuple):
    """A message.

    content  text, or a list of texts and pictures
    call     of a message of the role "tool": the call that it answers, as one of `Reply.calls`
    """

    role: str
    content: str | Sequence[str | MessageImage]
    call: Mapping[str, Any] | None = None


class ConversationReply(NamedTuple):
    """An answer.

    text    everything the model wrote, including calls of tools;  `said`: the part outside of calls
    calls   `{"id", "name", "arguments"}` each
    finish  "stop" or "length"
    """

    text: str
    said: str
    calls: Sequence[Mapping[str, Any]]
    finish: str
    usage: Usage


@lmc.function
def _reply(s, turns, options):
    for turn in turns:
        s += _message(turn)
    s += lmc.assistant(lmc.gen(NAME, **options))


def _message(turn: ConversationTurn) -> Any:
    content: Any = turn.content
    if not isinstance(content, str):
        parts = [part if isinstance(part, str) else _image(part.source) for part in content]
        content = parts[0] if parts else ""
        for part in parts[1:]:
            content = content + part
    if turn.role == "tool":
        return lmc.tool_result(turn.call, content)
    return {"system": lmc.system, "user": lmc.user, "assistant": lmc.assistant}[turn.role](content)


def _image(source: bytes | str) -> Any:
    if is_path(source):
        raise ParameterError(f"an image of a message is a data URL or a web address, not {source[:40]!r}")
    return lmc.image(source)


def reply(backend: Any, turns: Sequence[ConversationTurn], options: Mapping[str, Any]) -> ConversationReply:
    """Request an answer and wait for it. `options`: of `lmc.gen`. Raises lmc's errors."""
    return _of(_reply.run(turns=list(turns), options=dict(options), backend=backend))


async def areply(backend: Any, turns: Sequence[ConversationTurn], options: Mapping[str, Any]) -> ConversationReply:
    """Reply as `reply` does, on an event loop."""
    return _of(await _reply.arun(turns=list(turns), options=dict(options), backend=backend))


def stream(backend: Any, turns: Sequence[ConversationTurn], options: Mapping[str, Any]) -> Iterator[str | ConversationReply]:
    """Yield pieces of the answer's text as they arrive, and return the answer."""
    state = _reply.run(turns=list(turns), options=dict(options), backend=backend, stream=True)
    yield from state.text_iter(NAME)
    yield _of(state)


async def astream(backend: Any, turns: Sequence[ConversationTurn], options: Mapping[str, Any]) -> AsyncIterator[str | ConversationReply]:
    """Stream as `stream` does, on an event loop."""
    state = _reply.run(turns=list(turns), options=dict(options), backend=backend, stream=True)
    async for piece in state.text_async_iter(NAME):
        yield piece
    yield _of(state)


def _of(state: Any) -> ConversationReply:
    text, meta = state[NAME], state.get_meta_info(NAME)
    calls: list[Any] = meta.get("tool_calls") or []
    reason = meta["finish_reason"]
    kind = reason["type"] if isinstance(reason, Mapping) else reason
    said = text if not calls else text.partition("<tool_call>")[0].rstrip() if "<tool_call>" in text else ""  # elsewhere an answer is calls, or none
    return ConversationReply(text, said, calls, "length" if kind == "length" else "stop", state.usage)


def must_call(turns: Sequence[ConversationTurn], options: Mapping[str, Any]) -> tuple[list[ConversationTurn], dict[str, Any]]:
    """Return a conversation and options of `lmc.gen` whose answer is a call of one of the tools, for `called`. The tools are shown in the system message,
    and the answer is JSON whose arguments match the tool's schema, on every backend that takes schemas."""
    tools = [tool["function"] for tool in options["tools"]]
    said = "Call one of these tools, by JSON with its name and arguments:\n" + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    first, rest = (turns[0], turns[1:]) if turns and turns[0].role == "system" else (None, turns)
    given: list[Any] = [] if first is None else [first.content, "\n\n"] if isinstance(first.content, str) else [*first.content, "\n\n"]
    calls = [{"properties": {"name": {"const": tool["name"]}, "arguments": tool.get("parameters") or {"type": "object", "properties": {}}}} for tool in tools]
    schema = {"anyOf": [{"type": "object", **call, "required": ["name", "arguments"], "additionalProperties": False} for call in calls]}
    kept = {name: value for name, value in options.items() if name != "tools"}
    return [ConversationTurn("system", [*given, said]), *rest], {**kept, "json_schema": schema}


def called(found: ConversationReply) -> ConversationReply:
    """Return an answer that had to be a call, with it."""
    return found._replace(said="", calls=[{"id": f"call_{uuid4().hex}", **json.loads(found.text)}])


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call as an object; None if the model wrote something else."""
    found = call["arguments"]
    if isinstance(found, str):
        try:
            found = json_data.loads(found)
        except ValueError:
            return None
    return dict(found) if isinstance(found, Mapping) else None
