"""Verification of answers against constraints that their server did not enforce."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, cast

from lmc.fsm.json_layout import one_line
from lmc.fsm.sources import check_of, machine_of
from lmc.segments import Constraint

VERIFIABLE = frozenset({"regex", "json_schema"})


def check(constraint: Constraint) -> None:
    """Raise ConstraintError for a constraint that is invalid or cannot be verified."""
    if constraint.kind == "json_schema":
        _allows(constraint.source)


def matching(constraint: Constraint, text: str) -> str | None:
    """Return the answer itself, or without surrounding white space, or the longest prefix that satisfies the
    constraint.

    None if there is none. An answer does not end within a word.
    """
    if constraint.kind == "json_schema":
        return _json(constraint.source, text)
    for candidate in (text, text.strip()):
        if re.fullmatch(constraint.source, candidate, re.ASCII):
            return candidate
    found = re.match(rf"(?:{constraint.source})(?!\w)", text.lstrip(), re.ASCII)
    return found.group() if found is not None and found.group() else None


def _json(schema: str, text: str) -> str | None:
    """Return the first JSON value of a text, as it is written there, if the schema allows it."""
    start = min((i for i in map(text.find, "{[") if i >= 0), default=0)
    rest = text[start:].lstrip()
    try:
        value, end = json.JSONDecoder().raw_decode(rest)
    except ValueError:
        return None
    return rest[:end] if _allows(schema)(value) else None


@lru_cache(maxsize=256)
def _allows(schema: str) -> Callable[[Any], bool]:
    """Return a test of values against a schema: by the engine's automaton, on JSON as lmc writes it, and by the checks
    of whole answers."""
    automaton, check = machine_of("json_schema", one_line(schema)), check_of("json_schema", schema)
    parsed = json.loads(schema)
    options = parsed.get("x-lmc", {}) if isinstance(parsed, dict) else {}
    comma, colon = options.get("separators", (",", ":") if options.get("whitespace") == "compact" else (", ", ": "))

    def allows(value: Any) -> bool:
        written = json.dumps(_ordered(parsed, value), ensure_ascii=False, separators=(comma, colon))
        return automaton.accepts(written.encode("utf-8", "surrogatepass")) and (check is None or check(written) is None)

    return allows


def _ordered(schema: Any, value: Any) -> Any:
    """Return a value with the properties of its objects in the order of the schema, which does not change its
    meaning."""
    if not isinstance(schema, Mapping):
        return value
    known = cast("Mapping[str, Any]", schema)
    if isinstance(value, dict) and isinstance(known.get("properties"), Mapping):
        properties = known["properties"]
        names = [*[n for n in properties if n in value], *[n for n in value if n not in properties]]
        return {n: _ordered(properties.get(n), value[n]) for n in names}
    if isinstance(value, list):
        return [_ordered(known.get("items"), item) for item in value]
    return value
