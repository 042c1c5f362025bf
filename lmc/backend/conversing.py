"""Conversations with tools on a local model: its whole template writes them, calls are forced to the tools' schemas and read from the answer.

    trail of a prompt (literal parts, answers)  ──►  messages  ──►  the model's template, or Hermes' form where that has none for tools

Such a prompt is rendered for each request; the prefix shared with the previous one comes from the radix cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lmc.backend.families import HERMES, Family, family_of
from lmc.chat import ChatTemplate, conversation
from lmc.errors import ProgramError, UnsupportedOpError
from lmc.fsm.recognise import allows
from lmc.segments import Gen, Mark, Part, plain
from lmc.tools import call_of, with_calls

if TYPE_CHECKING:
    from lmc.backend.engine.whole_template import WholeTemplate
    from lmc.backend.results import Output


class Trail(NamedTuple):
    """The parts of a prompt, from its end: literal parts, and the text of the answer after them.

    has_results  whether results of tools are among its messages
    """

    before: Trail | None
    parts: tuple[Part, ...]
    has_results: bool
    answer: str = ""

    @staticmethod
    def behind(before: Trail | None, parts: tuple[Part, ...]) -> Trail:
        found = any(isinstance(part, Mark) and part.role == "tool" for part in parts)
        return Trail(before, parts, found or (before is not None and before.has_results))

    def pieces(self) -> list[Part]:
        """Return them in order, from the root."""
        found: list[Trail] = []
        at: Trail | None = self
        while at is not None:
            found.append(at)
            at = at.before
        return [piece for one in reversed(found) for piece in (*one.parts, one.answer)]


class Spoken(NamedTuple):
    """A prompt as rendered for a model, and the tools that may be called in the answer."""

    parts: tuple[Part, ...]
    family: Family
    tools: Sequence[Mapping[str, Any]]
    results: int  # of calls so far: the next call's number

    def constrained(self, ask: Gen) -> Gen:
        """Return the request with its calls constrained to names and schemas of the tools. Text outside of calls stays
        free."""
        tools = [(tool["name"], tool["parameters"]) for tool in self.tools]
        return replace(ask, constraint=self.family.offered(tools), tools="") if tools else ask

    def heard(self, output: Output) -> Output:
        """Return the output with its calls besides its text, as APIs do."""
        if not self.tools:
            return output
        read = [self._read(text) for text in output.texts]
        metas = [
            {**meta, "tool_calls": calls} | ({"finish_reason": {"type": "tool_calls", "matched": None}} if calls else {})
            for meta, (_, calls) in zip(output.metas, read, strict=True)
        ]
        return replace(output, texts=tuple(text for text, _ in read), metas=tuple(metas), ids=() if any(calls for _, calls in read) else output.ids)

    def _read(self, text: str) -> tuple[str, list[Mapping[str, Any]]]:
        schemas = {tool["name"]: json.dumps(tool["parameters"]) for tool in self.tools}
        content, calls = self.family.split(text)
        if not all(call.name in schemas and allows("json_schema", schemas[call.name], call.arguments) for call in calls):
            return text, []
        return content, [call_of(f"call_{i}", call.name, call.arguments) for i, call in enumerate(calls, self.results)]

    def feeder(self, feed: Callable[..., None], heard: Callable[[str, Mapping[str, Any]], None]) -> Callable[..., None]:
        """Return a `feed` for the text only: possible calls are held. `heard` is notified of each call as soon as its
        arguments are complete."""
        if not self.tools:
            return feed
        grown, fed, told = "", 0, 0

        def held(delta: str, scored: Any) -> None:
            nonlocal grown, fed, told
            grown += delta
            if "}" in delta or ">" in delta:
                calls = self.family.closed(grown)
                for call in calls[told:]:
                    heard(call.name, json.loads(call.arguments))
                told = len(calls)
            settled = self.family.settled(grown)
            if settled > fed:
                said, fed = grown[fed:settled], settled
                feed(said, scored)

        return held


def spoken(trail: Trail, ask: Gen, whole: WholeTemplate | None, template: ChatTemplate, target: str) -> Spoken:
    """Render the prompt of a request with tools, or after results of tools. Raises UnsupportedOpError outside of an
    assistant's message."""
    tools: list[dict[str, Any]] = json.loads(ask.tools) if ask.tools else []
    messages, begun = _messages(trail.pieces())
    if begun is None:
        raise UnsupportedOpError("gen(tools=…) outside of an assistant's message", target, "write lmc.assistant(lmc.gen(…, tools=…))", loc=ask.loc)
    if tools and ask.constraint is not None:
        raise UnsupportedOpError(
            "gen(tools=…) with a constraint", target, "the calls are constrained by the tools; ask for the rest in another gen", loc=ask.loc
        )
    results = sum(message["role"] == "tool" for message in messages)
    family = family_of(whole.source) if whole is not None else None
    try:
        if whole is None or family is None:
            parts = conversation(template, _as_text(messages, tools))
            return Spoken((*parts, *begun), HERMES, tools, results)
        offered = [{"type": "function", "function": {k: v for k, v in tool.items() if k != "strict"}} for tool in tools]
        return Spoken((*whole.render(list(map(_as_template_sees, messages)), offered), *begun), family, tools, results)
    except ProgramError as error:
        error.loc = error.loc or ask.loc
        raise


def _messages(pieces: Sequence[Part]) -> tuple[list[dict[str, Any]], list[Part] | None]:
    """Return closed messages in OpenAI's form, and the beginning of the open assistant's message; None if none is
    open."""
    found: list[dict[str, Any]] = []
    content: list[Part] | None = None
    role = ""
    for piece in pieces:
        if isinstance(piece, Mark) and piece.edge == "begin":
            content, role = [], piece.role
        elif isinstance(piece, Mark):
            found.append({"role": piece.role, "content": plain(content or []).strip()})
            content = None
        elif content is not None and piece:
            content.append(piece)
    return with_calls(found), content if role == "assistant" else None


def _as_template_sees(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return messages as transformers passes them to templates: arguments as objects, ids of nine characters, which
    some templates require."""
    calls = [_call_as_seen(call) for call in message.get("tool_calls", ())]
    seen = {**message, **({"tool_calls": calls} if calls else {})}
    return {**seen, "tool_call_id": _short(message["tool_call_id"])} if "tool_call_id" in message else seen


def _call_as_seen(call: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": _short(call["id"]),
        "type": "function",
        "function": {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])},
    }


def _short(id: str) -> str:
    from hashlib import blake2b

    return blake2b(id.encode(), digest_size=5).hexdigest()[:9]


def _as_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return messages for a template that has no form for tools: in Hermes' form."""
    turns: list[tuple[str, str]] = []
    for message in messages:
        content = message["content"]
        for call in message.get("tool_calls", ()):
            said = {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
            content = f"{content}\n{HERMES.opening}\n{json.dumps(said, ensure_ascii=False)}\n</tool_call>".lstrip()
        if message["role"] == "tool":
            turns.append(("user", f"Result: {content}"))  # tags like those of calls would confuse small models
        else:
            turns.append((message["role"], content))
    if tools:
        listed = "\n".join(json.dumps({"type": "function", "function": tool}, ensure_ascii=False) for tool in tools)
        own = turns.pop(0)[1] + "\n\n" if turns and turns[0][0] == "system" else ""
        turns.insert(0, ("system", own + _INSTRUCTION.format(listed)))
    return turns


_INSTRUCTION = """You may call one or more of these functions to answer the user:
<tools>
{}
</tools>
For each call, answer with a JSON object with its name and arguments within tags:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>"""
