"""Tools: descriptions of functions for a model, its calls as data, and results as messages. Executes nothing.

A result carries the call that it answers, as one line of JSON before the result's text:

    message of the role "tool":  {"id": "call_1", "name": "search", "arguments": {"query": "tea"}}\\nTea is …

so that a prompt stays literal text everywhere, and an API client can recover the call.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast, get_type_hints

from lmc.constraints import schema_of_type
from lmc.errors import ArgumentError, ParameterError
from lmc.json_data import loads
from lmc.signatures import signature_of

Call = Mapping[str, Any]
"""`{"id": …, "name": …, "arguments": {…}}`; arguments that are not a JSON object stay the text that the model wrote."""


def described(tools: Any) -> str:
    """Describe the tools of a `gen` as JSON text: a list of name, description and parameters. JSON text is returned
    unchanged.

    A tool is a function, whose signature and docstring say how it is called, or a dict of OpenAI's form. Raises
    ArgumentError or ParameterError for anything else, and for two with the same name.
    """
    if isinstance(tools, str) and tools.startswith("["):
        return tools
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise ArgumentError(f"gen(tools=…) takes a list of functions, not {tools!r}")
    tools = list(cast(Iterable[Any], tools))
    found = [_given(tool) if isinstance(tool, Mapping) else _function(tool) for tool in tools]
    names = [tool["name"] for tool in found]
    if len(set(names)) < len(names):
        raise ParameterError(f"gen(tools=…): two tools are called {next(n for n in names if names.count(n) > 1)!r}")
    text = json.dumps(found, ensure_ascii=False) if found else ""
    pure = {name: tool for name, tool in zip(names, tools, strict=True) if getattr(tool, "pure", False) is True}
    return Described(text, pure) if pure else text


class Described(str):
    """The description of tools some of which are declared `lmc.pure`: those, by name."""

    pure: Mapping[str, Any]

    def __new__(cls, text: str, pure: Mapping[str, Any]) -> Described:
        made = super().__new__(cls, text)
        made.pure = pure
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # functions are not copied


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _given(tool: Mapping[str, Any]) -> dict[str, Any]:
    said: Any = tool.get("function", tool)
    if not isinstance(said, Mapping) or not isinstance(said.get("name"), str) or not _NAME.fullmatch(said["name"]):
        raise ParameterError(f"gen(tools=…): {tool!r} has no name of letters, digits, _ and -")
    made = {"name": said["name"], "description": said.get("description") or "", "parameters": said.get("parameters") or _object({}, [])}
    if isinstance(said.get("strict"), bool):
        made["strict"] = said["strict"]
    try:
        json.dumps(made)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"gen(tools=…): {said['name']} is not JSON: {error}") from None
    return made


def _function(fn: Any) -> dict[str, Any]:
    name = getattr(fn, "__name__", None)
    if not callable(fn) or not isinstance(name, str):
        raise ArgumentError(f"gen(tools=…) takes functions and dicts, not {fn!r}")
    if not _NAME.fullmatch(name):
        raise ParameterError(f"gen(tools=…): a model cannot call a function named {name}; give it a name")
    parameters, required = dict[str, Any](), list[str]()
    hints = _hints(fn)
    try:
        signature = signature_of(fn)
    except ValueError:  # of some builtin functions
        raise ParameterError(f"gen(tools=…): {name} does not say what its parameters are; give a function of your own that calls it") from None
    for p in signature.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            raise ParameterError(f"gen(tools=…): {name}({p}): a model gives arguments by name; write them out")
        parameters[p.name] = schema_of_type(hints[p.name]) if p.name in hints else {}
        if p.default is p.empty:
            required.append(p.name)
    return {"name": name, "description": inspect.getdoc(fn) or "", "parameters": _object(parameters, required)}


def _hints(fn: Callable[..., Any]) -> Mapping[str, Any]:
    inner: Any = inspect.unwrap(fn)
    try:
        return get_type_hints(getattr(inner, "__func__", inner))
    except (NameError, TypeError) as error:
        raise ParameterError(f"gen(tools=…): the annotations of {getattr(fn, '__name__', fn)} cannot be read: {error}") from None


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}


# -- calls and results -----------------------------------------------------------------------------------------------


def call_of(id: str, name: str, arguments: str) -> Call:
    """Return a call as a model wrote it."""
    try:
        read: Any = loads(arguments or "{}", parse_float=_finite, parse_constant=_finite)
    except ValueError:
        read = arguments
    return {"id": id, "name": name, "arguments": read if isinstance(read, dict) else arguments}


def _finite(number: str) -> float:
    if not math.isfinite(found := float(number)):
        raise ValueError(f"{number} cannot be written as JSON again")
    return found


def tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call in OpenAI's form as a block of Anthropic's API."""
    said = call_of(call["id"], call["function"]["name"], call["function"]["arguments"])
    return {"type": "tool_use", "id": said["id"], "name": said["name"], "input": as_object(said["arguments"])}


def as_object(arguments: Any) -> dict[str, Any]:
    """Return the arguments of a call as an object, which they are there even if the model wrote none."""
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def call_line(call: Any) -> str:
    """Return a call as the line that a result begins with."""
    if not isinstance(call, Mapping) or not isinstance(call.get("id"), str) or not isinstance(call.get("name"), str):
        raise ArgumentError(f'tool_result() takes one of get_meta_info(…)["tool_calls"] first, not {call!r}')
    return json.dumps({"id": call["id"], "name": call["name"], "arguments": call.get("arguments", {})}, ensure_ascii=False) + "\n"


def with_calls(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with their results in OpenAI's form: the calls are in the assistant's message before the
    results."""
    found: list[dict[str, Any]] = []
    asked: dict[str, Any] | None = None
    for message in messages:
        message = dict(message)
        if message["role"] == "tool":
            line, _, text = message["content"].partition("\n")
            call = json.loads(line)
            if asked is None:
                raise ParameterError(f"the result of {call['name']} does not follow an answer; append it after closing the message whose answer made the call")
            written = call["arguments"] if isinstance(call["arguments"], str) else json.dumps(call["arguments"], ensure_ascii=False)
            asked.setdefault("tool_calls", []).append({"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": written}})
            message = {"role": "tool", "tool_call_id": call["id"], "content": text}
        else:
            asked = message if message["role"] == "assistant" else None
        found.append(message)
    return found
