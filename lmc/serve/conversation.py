"""Messages to a prompt: by the constant pieces of the model's template, or by the whole template if tools or its variables are involved.
A chat API behind the server gets messages and tools as such.

Contents stay plain text: no message can write a special token (semantics of the language: appended text is plain).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from lmc import json_data
from lmc.backend.base import Backend
from lmc.backend.families import Family, family_of
from lmc.chat import ChatTemplate, conversation
from lmc.errors import ArgumentError, ConstraintError, ParameterError
from lmc.fsm.json_schema import compile_schema
from lmc.segments import Constraint, Image, Part, mark
from lmc.serve.errors import ApiError, bad
from lmc.serve.media import picture
from lmc.serve.openai_protocol import AllowedTools, ChatRequest, FunctionDef, FunctionName, Message, ToolChoice
from lmc.tools import call_line, call_of, described

log = logging.getLogger("lmc.serve")


@runtime_checkable
class RenderedTemplate(Protocol):
    """A model's own template, rendered as it is."""

    @property
    def source(self) -> str: ...

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], variables: Mapping[str, Any] | None = None) -> tuple[Part, ...]:
        """Render the prompt, up to where the assistant begins. Raises ProgramError for messages and variables that the template
        refuses."""
        ...


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat as submitted to a backend.

    family  format of calls in the answer, None if none may occur;  tools  those sent to a chat API, as `Gen.tools`
    """

    parts: tuple[Part | Image, ...]
    family: Family | None = None
    tools: str = ""


def prompt_of(request: ChatRequest, backend: Backend, hosts: Collection[str] = (), *, lenient: bool = False) -> ChatPrompt:
    """Return the prompt of a chat for a backend.

    hosts    from which pictures may be fetched
    lenient  variables that the template does not have are ignored
    """
    messages = request.messages
    _check_ids(messages)
    offered = bool(request.tools) and request.tool_choice != "none"
    if not request.tools and request.tool_choice not in (None, "none"):
        raise bad("tool_choice needs tools", "tool_choice")
    variables = _variables(request, backend, lenient=lenient)
    if not backend.capabilities.raw_text:
        return ChatPrompt(_in_pieces(request, backend, hosts), tools=_told(request, backend) if offered else "")
    with_tools = offered or any(m.tool_calls for m in messages)
    if not with_tools and not variables:
        return ChatPrompt(_in_pieces(request, backend, hosts))
    what = "tools" if with_tools else "chat_template_kwargs"
    if any(m.has_images for m in messages):
        raise bad(f"{what} and pictures exclude each other: this server does not write both into one prompt", what, "unsupported")
    if request.continue_final_message or request.add_generation_prompt is False:
        raise bad(f"{what} and continue_final_message exclude each other", "continue_final_message")
    whole = whole_template(backend)
    if whole is None or (with_tools and "tools" not in whole.source):
        raise bad("tools: the chat template of this model does not write tools", "tools", "unsupported")
    family = family_of(whole.source) if with_tools else None
    if with_tools and family is None:
        raise bad("tools: how this model writes tool calls is not known", "tools", "unsupported")
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()] if offered else []
    return ChatPrompt(whole.render([_as_template_sees(m) for m in messages], tools, variables), family if offered else None)


def whole_template(backend: Backend) -> RenderedTemplate | None:
    found = getattr(backend, "whole_template", None)
    return found if isinstance(found, RenderedTemplate) else None


_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"})
"""Variables of a template that follow from the rest of a request, and from the model."""


def _variables(request: ChatRequest, backend: Backend, *, lenient: bool) -> dict[str, Any]:
    """Return the values of variables of the model's chat template. One that the template does not have would change nothing, so it is refused."""
    given = request.chat_template_kwargs or {}
    whole = whole_template(backend) if given and backend.capabilities.raw_text else None
    unknown = [name for name in given if whole is None or re.search(rf"\b{name}\b", whole.source) is None]
    for name in given:
        if name in _OWN_VARIABLES or (name in unknown and not lenient):
            why = "is set by the server" if name in _OWN_VARIABLES else "is not a variable of a chat template that this server has"
            raise bad(f"chat_template_kwargs.{name}: it {why}; leave it out", f"chat_template_kwargs.{name}", "unsupported")
    if unknown:
        log.info("left out of a request: chat_template_kwargs %s", unknown)
    return {name: value for name, value in given.items() if name not in unknown}


def _told(request: ChatRequest, backend: Backend) -> str:
    """Return the tools, for a chat API."""
    if not backend.capabilities.tools:
        raise bad("tools: the API behind this server takes no tools", "tools", "unsupported")
    if request.tool_choice not in (None, "auto"):
        raise bad("tool_choice: the API behind this server chooses by itself; send auto or none", "tool_choice", "unsupported")
    try:
        return described([tool.model_dump(exclude_none=True) for tool in request.tools or ()])
    except (ArgumentError, ParameterError) as error:
        raise bad(f"tools: {error.message}", "tools") from None


class _Marked:
    """A template of marks that delimit messages, as chat APIs need them."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template, self.name, self.stop = template, template.name, template.stop

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        return (*self._template.begin(role, previous), mark(role, "begin"))

    def end(self, role: str) -> tuple[Part, ...]:
        return (mark(role, "end"), *self._template.end(role))


def with_calls(request: ChatRequest, family: Family, text: Constraint | None) -> Constraint | None:
    """Return the constraint on an answer that may call the request's tools. `text`: the one on it if it calls none.

    Tools constrain what is free of another constraint only if one of them is strict, must be called, or may not. A schema is
    that of the text, so a call may be in its place; any other constraint is on the whole answer.
    """
    given = {tool.function.name: tool.function for tool in request.tools or ()}
    mode, allowed = _choice(request)
    for name in allowed or ():
        if name not in given:
            raise bad(f"tool_choice: there is no tool {name!r:.80}", "tool_choice")
    tools = [(name, function.parameters) for name, function in given.items() if allowed is None or name in allowed]
    schema = None if text is None or text.kind != "json_schema" else json_data.loads(text.source)
    if mode == "auto":
        if text is None:
            return family.offered(tools) if allowed is not None or any(function.strict for function in given.values()) else None
        return text if schema is None else family.instead(schema, tools)
    if text is not None and schema is None:
        raise bad("tool_choice and a constraint exclude each other", "tool_choice")
    return family.required(tools)


def _choice(request: ChatRequest) -> tuple[str, Collection[str] | None]:
    """Return whether tools must be called, or may be, and which ones; None: all of the request's."""
    match request.tool_choice:
        case ToolChoice(type="function", function=FunctionName(name=name), allowed_tools=None):
            return "required", (name,)
        case ToolChoice(type="allowed_tools", function=None, allowed_tools=AllowedTools(mode=mode, tools=tools)):
            return mode, {tool.function.name for tool in tools}
        case ToolChoice(type=kind):
            raise bad(f"tool_choice: one of the type {kind} must have the field {kind} and no other", "tool_choice")
        case mode:
            return mode or "auto", None


def faulty_tool(request: ChatRequest) -> ApiError | None:
    """Return the error of the request's first tool whose schema cannot be enforced, by its place in the request."""
    for i, tool in enumerate(request.tools or ()):
        try:
            compile_schema(json.dumps(tool.function.parameters or {}))
        except ConstraintError as error:
            at = f"tools.{i}.function.parameters"
            return bad(f"{at}: {error.message.removeprefix('json_schema: ')}", at)
    return None


def _in_pieces(request: ChatRequest, backend: Backend, hosts: Collection[str]) -> tuple[Part | Image, ...]:
    template: ChatTemplate = backend.chat_template if backend.capabilities.raw_text else _Marked(backend.chat_template)
    turns = [("system" if m.role == "developer" else m.role, _content(m, f"messages.{i}.content", backend, hosts)) for i, m in enumerate(request.messages)]
    if not backend.capabilities.raw_text:
        turns = [(role, text if role != "tool" else _result(request.messages, i)) for i, (role, text) in enumerate(turns)]
    answer = template.begin("assistant", turns[-1][0])
    parts = conversation(template, turns)
    if request.continue_final_message:
        if turns[-1][0] != "assistant":
            raise bad("continue_final_message needs an assistant's message at the end", "continue_final_message")
        if request.add_generation_prompt:
            raise bad("continue_final_message and add_generation_prompt exclude each other", "add_generation_prompt")
        answer = (*template.end("assistant"), *answer)
    elif request.add_generation_prompt is not False:
        return parts
    return parts[: len(parts) - len(answer)]


def _content(message: Message, where: str, backend: Backend, hosts: Collection[str]) -> str | list[str | Image]:
    """Return a message's text, or its texts and pictures in order."""
    if not message.has_images or not isinstance(message.content, list):
        return message.text
    if not backend.capabilities.images:
        raise bad(f"{where}: this server's model takes text only", "messages", "unsupported")
    if message.role != "user":
        raise bad(f"{where}: a picture is part of a user's message, not of the {message.role}'s", "messages")
    return [
        part.text or "" if part.image_url is None else picture(part.image_url.url, part.image_url.detail or "auto", f"{where}.{i}.image_url", hosts)
        for i, part in enumerate(message.content)
    ]


def _result(messages: Sequence[Message], at: int) -> str:
    """Return the result of a call, in the form of `lmc.tool_result`: with the call that it answers."""
    message = messages[at]
    for before in reversed(messages[:at]):
        for call in before.tool_calls or ():
            if call.id == message.tool_call_id:
                return call_line(call_of(call.id, call.function.name, call.function.arguments)) + message.text
        if before.role != "tool":
            break
    raise bad(f"messages.{at}.tool_call_id: the message before it has no call {message.tool_call_id!r:.80}", "messages")


def _as_template_sees(message: Message) -> dict[str, Any]:
    """Return messages as transformers passes them to templates: arguments of calls as objects, contents as text."""
    seen: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": message.text}
    if message.name is not None:
        seen["name"] = message.name
    if message.tool_call_id is not None:
        seen["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        seen["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": _object(call.function.arguments)}}
            for call in message.tool_calls
        ]
    return seen


def _object(text: str) -> dict[str, Any]:
    try:
        found = json_data.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise bad("messages: a tool call's arguments must be a JSON object", "messages")
    return found


def _check_ids(messages: Sequence[Message]) -> None:
    for i, message in enumerate(messages):
        if message.tool_calls and message.role != "assistant":
            raise bad(f"messages.{i}: only an assistant calls tools", "messages")
        if message.content is None and message.role != "assistant":
            raise ApiError(400, f"messages.{i}.content: required for the role {message.role}", param="messages")


# -- other APIs --------------------------------------------------------------------------------------------------------


def tools_of(
    tools: list[dict[str, Any]] | None, kinds: Collection[str | None], which: str, parameters: str = "parameters", *, lenient: bool
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return another API's tools as those of a chat completion, and their places in the request by those there.

    kinds   types of those that are functions, `which` in words;  parameters: their field for these
    lenient others are left out, and the log names them
    """
    found, places = list[dict[str, Any]](), dict[str, str]()
    for i, tool in enumerate(tools or ()):
        if tool.get("type") in kinds:
            place, said = f"tools.{len(found)}.function", {**tool, "parameters": tool.get(parameters)}
            places |= {place: f"tools.{i}", f"{place}.parameters": f"tools.{i}.{parameters}"}
            found.append({"type": "function", "function": {name: said[name] for name in FunctionDef.model_fields if said.get(name) is not None}})
        elif not lenient:
            raise bad(f"tools: {tool.get('type')!r:.60} is not a tool of this server; it has those {which}", "tools", "unsupported")
        else:
            log.info("left out of a request: tools.%d", i)
    return found, places


def text_of(content: Any, fields: Mapping[str, str], refused: str, param: str) -> str:
    """Return the text of another API's content, or of its parts, whose types have it in these fields. Raises ApiError, with this message, for others."""
    if isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else [content]
    texts = [part.get(fields.get(str(part.get("type")), "")) if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise bad(refused, param, "unsupported")
    return "".join(map(str, texts))
