"""Structural tags: free text in which some tags open constrained parts, such as tool calls. Ours in, xgrammar's out.

Schemas and regular expressions within become EBNF of ours first, so that they mean what they mean everywhere in lmc.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lmc.errors import ConstraintError
from lmc.fsm.grammar import Grammar
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.regex import parse

_FIELDS: Mapping[str, frozenset[str]] = {
    kind: frozenset(fields.split())
    for kind, fields in {
        "const_string": "value",
        "any_text": "excludes max_chars",
        "json_schema": "json_schema style",
        "regex": "pattern",
        "grammar": "grammar",
        "sequence": "elements",
        "or": "elements",
        "optional": "content",
        "plus": "content",
        "star": "content",
        "repeat": "content min max",
        "tag": "begin content end",
        "triggered_tags": "triggers tags at_least_one stop_after_first excludes",
        "tags_with_separator": "tags separator at_least_one stop_after_first",
    }.items()
}


def normalised(source: str) -> dict[str, Any]:
    """The tag for xgrammar. Raises ConstraintError, with the JSON pointer, for what is invalid or cannot be enforced.

    Takes `{"type": "structural_tag", "format": …}`, and the older `{"structures": […], "triggers": […]}`.
    """
    try:
        tag = json.loads(source)
    except json.JSONDecodeError as e:
        raise ConstraintError(f"structural_tag is not JSON: {e.msg} at line {e.lineno}, column {e.colno}") from None
    except RecursionError:
        raise ConstraintError("structural_tag is nested too deep") from None
    if isinstance(tag, dict) and set(tag) - {"type"} == {"structures", "triggers"} and isinstance(tag["structures"], list):
        return {"type": "structural_tag", "format": _format(_modern(tag), "")}
    if not isinstance(tag, dict) or tag.get("type") != "structural_tag" or set(tag) != {"type", "format"}:
        raise _wrong("", 'must be {"type": "structural_tag", "format": …}, or {"structures": […], "triggers": […]}')
    return {"type": "structural_tag", "format": _format(tag["format"], "/format")}


def _modern(tag: dict[str, Any]) -> dict[str, Any]:
    tags: list[dict[str, Any]] = []
    for i, item in enumerate(tag["structures"]):
        if not isinstance(item, dict) or set(item) != {"begin", "schema", "end"}:
            raise _wrong(f"/structures/{i}", "must have begin, schema and end")
        tags.append({"type": "tag", "begin": item["begin"], "end": item["end"],
                     "content": {"type": "json_schema", "json_schema": item["schema"]}})  # fmt: skip
    return {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}


def _format(given: Any, at: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _wrong(at, "must be a format, an object with a type")
    kind = given.get("type", "tag" if "begin" in given else None)
    if kind not in _FIELDS:
        raise _wrong(at, f"has the type {kind!r}, which cannot be enforced; there are {', '.join(_FIELDS)}")
    if unknown := set(given) - _FIELDS[kind] - {"type"}:
        raise _wrong(at, f"has {min(unknown)!r}, which cannot be enforced in a {kind}")
    if kind == "json_schema":
        if given.get("style", "json") != "json":
            raise _wrong(f"{at}/style", f"is {given['style']!r}; only json can be enforced")
        return {"type": "grammar", "grammar": _schema(given.get("json_schema"), f"{at}/json_schema")}
    if kind == "regex":
        try:
            return {"type": "grammar", "grammar": Grammar(parse(given.get("pattern", "")), {}).ebnf()}
        except ConstraintError as error:
            raise _wrong(f"{at}/pattern", f"cannot be enforced: {error.message}") from None
    out = {**given, "type": kind}
    for field in ("elements", "tags"):
        if field in given:
            if not isinstance(given[field], list):
                raise _wrong(f"{at}/{field}", "must be a list")
            out[field] = [_format(part, f"{at}/{field}/{i}") for i, part in enumerate(given[field])]
    if "content" in _FIELDS[kind]:
        out["content"] = _format(given.get("content"), f"{at}/content")
    return out


def _schema(schema: Any, at: str) -> str:
    try:
        return compile_schema(json.dumps(schema))[0].ebnf()
    except ConstraintError as error:
        raise _wrong(at, f"cannot be enforced: {error.message}") from None


def _wrong(pointer: str, what: str) -> ConstraintError:
    return ConstraintError(f"structural_tag: {pointer or '/'} {what}")
