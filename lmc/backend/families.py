"""Tool calls: the formats of model families, detected from their templates; parsing of calls from answers.

The format is known for Hermes and Qwen (`<tool_call>{…}</tool_call>`), Llama 3 (`{"name": …, "parameters": …}`) and
Mistral (`[TOOL_CALLS][{…}]`, whose mark is a special token and not part of the text). Other templates are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lmc import json_data
from lmc.constraints import make_constraint
from lmc.segments import Constraint

Tools = Sequence[tuple[str, dict[str, Any] | None]]
"""Names of tools, each with the schema of its arguments."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call that a model wrote; arguments as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Family:
    """A format of calls.

    opening   the beginning of a call; text that cannot become one is content
    anywhere  whether calls may follow content; else an answer begins with calls, or has none
    key       of the arguments
    """

    name: Literal["hermes", "llama3", "mistral"]
    opening: str
    anywhere: bool
    key: str = "arguments"

    def settled(self, text: str) -> int:
        """Return how much of a growing answer is certainly content."""
        if self.anywhere:
            at = text.find(self.opening)
            if at < 0:
                held = range(min(len(self.opening) - 1, len(text)), 0, -1)
                at = len(text) - next((n for n in held if self.opening.startswith(text[-n:])), 0)
            return len(text[:at].rstrip())  # space before a call is not content
        begun = text.lstrip()
        return 0 if not begun or begun.startswith(self.opening) else len(text)

    def split(self, text: str) -> tuple[str, list[WrittenCall]]:
        """Return content and calls of a complete answer. Text that does not parse as a call is content."""
        if self.name == "hermes":
            found = [_call(m[1], self.key) for m in _HERMES.finditer(text)]
            if not found or None in found:
                return text, []
            return text[: text.find(self.opening)].rstrip(), [c for c in found if c is not None]
        values, whole = _values(text, " \n\t;")
        calls = [_as_call(call, self.key) for value in values for call in (value if isinstance(value, list) else [value])]
        if not calls or None in calls or not whole:
            return text, []
        return "", [c for c in calls if c is not None]

    def closed(self, text: str) -> list[WrittenCall]:
        """Return calls of a growing answer whose arguments are complete."""
        if self.name == "hermes":
            calls = [_call(m[1], self.key) for m in _HERMES.finditer(text)]
        else:
            calls = [_as_call(value, self.key) for value in (_values(text, " \n\t;,[")[0] if self.settled(text) == 0 else ())]
        return [call for call in calls if call is not None]

    @property
    def trigger(self) -> str:
        """Return the text after which free text becomes a call."""
        return {"hermes": "<tool_call>", "llama3": '{"name": ', "mistral": '[{"name": '}[self.name]

    def required(self, tools: Tools) -> Constraint:
        """Return the constraint on an answer that must be a call of one of `tools`."""
        tags = self._tags(tools)
        return _of_format(tags[0] if len(tags) == 1 else {"type": "or", "elements": tags})

    def offered(self, tools: Tools) -> Constraint:
        """Return the constraint on free text in which everything that begins like a call is one of `tools`."""
        return _of_format({"type": "triggered_tags", "triggers": [self.trigger], "tags": self._tags(tools)})

    def instead(self, schema: Any, tools: Tools) -> Constraint:
        """Return the constraint on an answer that matches a schema, or calls `tools` in place of that."""
        separator = {"hermes": "\n", "llama3": "; ", "mistral": "\n"}[self.name]
        calls = {"type": "tags_with_separator", "tags": self._tags(tools), "separator": separator, "at_least_one": True}
        return _of_format({"type": "or", "elements": [{"type": "json_schema", "json_schema": schema}, calls]})

    def _tags(self, tools: Tools) -> list[dict[str, Any]]:
        return [self._tag(name, schema if schema is not None else {"type": "object"}) for name, schema in tools]

    def _tag(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the tag of a tool call, with arguments of its schema."""
        head = f'{{"name": {json.dumps(name)}, "{self.key}": '
        begin, end = {"hermes": ("<tool_call>\n", "\n</tool_call>"), "llama3": ("", ""), "mistral": ("[", "]")}[self.name]
        content = {"type": "json_schema", "json_schema": schema}
        return {"type": "tag", "begin": begin + head, "content": content, "end": "}" + end}


_HERMES = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
HERMES = Family("hermes", "<tool_call>", True)
LLAMA3 = Family("llama3", "{", False, "parameters")
MISTRAL = Family("mistral", "[", False)


def family_of(template: str) -> Family | None:
    """Return the family whose calls a Jinja template describes; None for an unknown one."""
    if "<tool_call>" in template and "<function=" not in template:
        return HERMES
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        return MISTRAL
    if '"parameters": ' in template and '{"name": function name' in template:
        return LLAMA3
    return None


def _of_format(form: dict[str, Any]) -> Constraint:
    return make_constraint("structural_tag", {"type": "structural_tag", "format": form})


def _call(text: str, key: str) -> WrittenCall | None:
    try:
        return _as_call(json_data.loads(text), key)
    except ValueError:
        return None


def _as_call(value: Any, key: str) -> WrittenCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not isinstance(value.get(key), dict):
        return None
    try:
        return WrittenCall(value["name"], json.dumps(value[key], ensure_ascii=False))
    except RecursionError:  # nested as deeply as it may be read
        return None


def _values(text: str, between: str) -> tuple[list[Any], bool]:
    """Return the JSON values of a text with these characters between them, and whether nothing else is in it."""
    values: list[Any] = []
    at, decoder = 0, json.JSONDecoder()
    while at < len(text):
        if text[at] in between:
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return values, False
        values.append(value)
    return values, True
