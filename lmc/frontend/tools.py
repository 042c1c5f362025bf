"""Tools in the language: the result of a call as a message, and a call executed."""

from __future__ import annotations

import inspect
import json
import reprlib
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, cast

from lmc.errors import ArgumentError, LmcError, ToolError
from lmc.frontend.expressions import Expr, Lit, RoleBegin, RoleEnd, Seq, as_expr, caller_loc
from lmc.frontend.host import host, pure
from lmc.frontend.values import Symbolic
from lmc.signatures import signature_of
from lmc.tools import call_line


@pure
def line_of(call: Any) -> str:
    """Return the line that the result of a call begins with."""
    return call_line(call)


def tool_result(call: Any, content: Expr | str | Symbolic, /) -> Seq:
    """Build the message that answers a tool call: `call` is one of `s.get_meta_info(name)["tool_calls"]`, `content` its
    result."""
    try:
        line = line_of(call)
    except LmcError as error:
        error.loc = error.loc or caller_loc()
        raise
    return result_message(line, content)


def result_message(line: str | Symbolic, content: Expr | str | Symbolic) -> Seq:
    """Build the message of a result whose call is written already."""
    loc, inside = caller_loc(), as_expr(content, "append")
    return Seq((RoleBegin("tool", loc), Lit(line), *(inside.items if isinstance(inside, Seq) else (inside,)), RoleEnd("tool", loc)))


@host
def call_tool(call: Mapping[str, Any], tools: Iterable[Any], /) -> Any:
    """Call the function among `tools` that a model requested, and return its result as text: as JSON, unless it is text
    already.

    For an `async def` tool, return an awaitable of that. Raises ToolError if the model named none of these tools or
    gave arguments that the tool does not take; the tool's own exceptions propagate.
    """
    tool, arguments = asked_for(call, tools)
    return result_of(tool(**arguments))


def result_of(result: Any) -> Any:
    """Return `call_tool`'s result for a tool's return value."""
    return later(result) if inspect.isawaitable(result) else _text(result)


def asked_for(call: Mapping[str, Any], tools: Iterable[Any], /) -> tuple[Any, Mapping[str, Any]]:
    """Return the function that `call_tool` calls, and its arguments. Raises ToolError."""
    if callable(tools):
        raise ArgumentError(f"call_tool(call, tools) takes a list of tools; write [{getattr(tools, '__name__', '…')}]", loc=caller_loc())
    known = {getattr(tool, "__name__", ""): tool for tool in tools if callable(tool)}
    if not isinstance(call, Mapping) or not call.keys() >= {"name", "arguments"}:  # pyright: ignore[reportUnnecessaryIsInstance]
        openai = isinstance(call, Mapping) and "function" in call  # pyright: ignore[reportUnnecessaryIsInstance]
        instead = '; of a call in OpenAI\'s format, {"name": …, "arguments": json.loads(…)} of call["function"]' if openai else ""
        raise ArgumentError(f'call_tool() takes one of get_meta_info(…)["tool_calls"], not {reprlib.repr(call)}{instead}', loc=caller_loc())
    name: Any = call["name"]
    arguments: Any = call["arguments"]
    if name not in known:
        raise ToolError(f"there is no tool {name!r}; there are {', '.join(known)}")
    if not isinstance(arguments, Mapping):
        raise ToolError(f"the arguments of {name} are not a JSON object, but {'text: ' if isinstance(arguments, str) else ''}{arguments!r}")
    try:
        signature_of(known[name]).bind(**arguments)
    except TypeError as error:
        raise ToolError(f"{name}: {error}") from None
    return known[name], cast("Mapping[str, Any]", arguments)


async def later(result: Awaitable[Any]) -> str:
    """Await an async tool; return its result as text."""
    return _text(await result)


def _text(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
