"""Output fields of a signature as languages: free text, a regex or a JSON schema, whose members all parse as the field's type.

An answer is a template with a hole for each field; the headers between them are given text:

    [[ ## reasoning ## ]]        text
    {free text, up to the next header}
                                 text
    [[ ## answer ## ]]
    {-?(0|[1-9][0-9]{0,17})}
                                 text
    [[ ## completed ## ]]
"""

from __future__ import annotations

import enum
import json
import re
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin

import dspy
import pydantic
from dspy.adapters.utils import parse_value

from lmc.errors import ConstraintError
from lmc.fsm.completion import completion
from lmc.fsm.sources import automaton_of

HEADER = "[[ ## {} ## ]]"
COMPLETED = HEADER.format("completed")
STOPS = ("\n\n[[ ##", "\n[[ ##", "[[ ##")  # all are complete with the same character: the longest cuts
_DEPTHS = (3, 2, 1)  # depths of recursion or of any JSON: the largest whose automaton is not too large


@dataclass(frozen=True, slots=True)
class Field:
    """One hole of the template. `source` is a regex or a schema; "" for text.

    by, sources  the field that decides its schema, and the schema for each of its texts
    """

    name: str
    kind: Literal["text", "regex", "json_schema"]
    source: str = ""
    by: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    def decided(self, texts: Mapping[str, str]) -> Field:
        """Return it as decided by the texts of the fields before it."""
        return replace(self, source=self.sources.get(texts[self.by], self.source), by="", sources={}) if self.by else self

    def complete(self, text: str) -> str:
        """Return the text of an answer that was cut off, completed in the shortest way."""
        if self.kind == "text":
            return text
        dfa = _automaton(self.kind, self.source)
        rest = None if dfa is None else completion(dfa, text)
        if rest is None:
            raise ConstraintError(f"the output field {self.name!r} was cut off at {text[-40:]!r}, and nothing completes it")
        return text + rest

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def fields_of(signature: Any, tools: Mapping[str, Any] = {}) -> list[Field]:
    """Return the output fields of a signature in order; a call of one of `tools` has arguments of its schema. Raises
    ConstraintError for a type that no constraint can guarantee."""
    found = [
        _calls(name, tools) if info.annotation is dspy.ToolCalls and tools else _field(name, info.annotation) for name, info in signature.output_fields.items()
    ]
    if tools and {"next_tool_name", "next_tool_args"} <= signature.output_fields.keys():  # of dspy.ReAct
        sources = {name: _bounded(json.dumps(_arguments(tool))) for name, tool in tools.items()}
        found = [replace(each, by="next_tool_name", sources=sources) if each.name == "next_tool_args" else each for each in found]
    return found


def _arguments(tool: Any) -> dict[str, Any]:
    """Return the schema of a tool's arguments, all of which are written."""
    args: dict[str, Any] = tool.args or {}
    return {"type": "object", "properties": args, "required": list(args), "additionalProperties": bool(tool.has_kwargs)}


def _calls(name: str, tools: Mapping[str, Any]) -> Field:
    each = [
        {"type": "object", "properties": {"name": {"const": tool}, "args": _arguments(of)}, "required": ["name", "args"], "additionalProperties": False}
        for tool, of in tools.items()
    ]
    schema = {
        "type": "object", "properties": {"tool_calls": {"type": "array", "items": {"anyOf": each}}}, "required": ["tool_calls"], "additionalProperties": False,
    }  # fmt: skip
    return Field(name, "json_schema", _bounded(json.dumps(schema, ensure_ascii=False)))


def _field(name: str, annotation: Any) -> Field:
    if _is_text(annotation):
        return Field(name, "text")
    if annotation is bool:
        return Field(name, "regex", "True|False")
    if annotation is int:
        return Field(name, "regex", r"-?(0|[1-9][0-9]{0,17})")
    if annotation is float:
        return Field(name, "regex", r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?")
    if get_origin(annotation) is Literal:
        return Field(name, "regex", _one_of(name, annotation, {str(x): x for x in get_args(annotation)}))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return Field(name, "regex", _one_of(name, annotation, {_spelled(x): x for x in annotation}))
    try:
        schema = pydantic.TypeAdapter(annotation).json_schema()
    except pydantic.errors.PydanticUserError as error:
        raise ConstraintError(f"the output field {name!r} has the type {annotation}, which has no JSON schema: {error}") from None
    return Field(name, "json_schema", _bounded(json.dumps(schema, ensure_ascii=False)))


def _is_text(annotation: Any) -> bool:
    """Return whether a type can be made by DSPy from any text."""
    if annotation is str or annotation in (dspy.Reasoning, dspy.Code):
        return True
    if isinstance(annotation, type) and issubclass(annotation, dspy.Code):
        return True
    return get_origin(annotation) in (Union, types.UnionType) and {str, type(None)} <= set(get_args(annotation))


def _spelled(member: enum.Enum) -> str:
    """Return the text that DSPy reads as the member: its value if that is text, else its name."""
    return member.value if isinstance(member.value, str) else member.name


def _reads(text: str, annotation: Any) -> Any:
    try:
        return parse_value(text, annotation)
    except ValueError:
        return None


def _one_of(name: str, annotation: Any, members: Mapping[str, Any]) -> str:
    for text, member in members.items():
        if not text or text != text.strip() or "\n" in text or _reads(text, annotation) != member:
            raise ConstraintError(f"the output field {name!r}: DSPy does not read {text!r} back as {member!r}")
    return "|".join(map(re.escape, members))


@lru_cache(maxsize=1024)
def _bounded(schema: str) -> str:
    """Return the schema with its recursion cut where it would need a stack: a truncated answer can then be
    completed."""
    if _automaton("json_schema", schema) is not None:
        return schema
    for depth in _DEPTHS:
        cut = json.dumps({**json.loads(schema), "x-lmc": {"depth": depth}}, ensure_ascii=False)
        try:
            if _automaton("json_schema", cut) is not None:
                return cut
        except ConstraintError:
            continue  # too large at this depth
    return schema


@lru_cache(maxsize=256)
def _automaton(kind: str, source: str) -> Any:
    return automaton_of(kind, source)
