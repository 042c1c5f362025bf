"""Validation of a value by a schema: for keywords that an automaton cannot enforce, checked when the answer ends.

Formats are annotations here, as in the standard: generated text obeys them anyway.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from lmc.fsm.json_references import References
from lmc.fsm.json_shapes import JSON_NUMBER, SchemaPointer, same, type_of
from lmc.fsm.lazy import Machine

_DEEPEST = 200  # most nested schemas


@dataclass
class _Evaluated:
    """Parts of a value evaluated by schemas that hold: names of properties, indices of items."""

    names: set[str] = field(default_factory=set)
    items: set[int] = field(default_factory=set)

    def add(self, other: _Evaluated) -> None:
        self.names |= other.names
        self.items |= other.items


class Checker:
    """Checks values by the schemas of one root."""

    def __init__(self, references: References, pattern: Callable[[str], Machine]) -> None:
        self._references, self._pattern = references, lru_cache(256)(pattern)
        self._root = SchemaPointer(references.root, "")

    def wrong(self, text: str) -> str | None:
        """Return why the value of a JSON text is not valid; None if it is."""
        value = json.loads(text, parse_float=Decimal)
        try:
            return self._wrong(self._root, value, _Evaluated(), "", 0)
        except RecursionError:
            return "it is nested too deep to be checked"

    def _holds(self, place: SchemaPointer, value: Any, seen: _Evaluated, depth: int) -> bool:
        mine = _Evaluated()
        if self._wrong(place, value, mine, "", depth) is not None:
            return False
        seen.add(mine)
        return True

    def _wrong(self, place: SchemaPointer, value: Any, seen: _Evaluated, at: str, depth: int) -> str | None:
        schema = place.schema
        if schema is True:
            return None
        if not isinstance(schema, dict):
            return f"{at or '/'}: {place.pointer or '/'} allows nothing"
        if depth > _DEEPEST:
            raise RecursionError
        if "$ref" in schema and self._references.overrides:
            return self._wrong(self._references.target(place, "$ref"), value, seen, at, depth + 1)
        if schema.get("nullable") is True and value is None:
            return None
        mine = _Evaluated()  # of this schema and what it applies, not of its neighbours
        for keyword, rule in _RULES.items():
            if keyword in schema and (found := rule(self, place, keyword, value, mine, at, depth)) is not None:
                return (
                    found
                    if isinstance(found, str)
                    else f"{at or '/'} must satisfy {keyword!r}: {json.dumps(schema[keyword], ensure_ascii=False, default=str):.100}"
                )
        seen.add(mine)
        return None

    # -- rules: None if the keyword holds, else the error, or False for the default message ------------------------

    def _type(self, place: SchemaPointer, keyword: str, value: Any, *_: Any) -> bool | None:
        names = place.schema["type"]
        kind = type_of(value)
        names = names if isinstance(names, list) else [names]
        return None if kind in names or (kind == "integer" and "number" in names) else False

    def _enum(self, place: SchemaPointer, keyword: str, value: Any, *_: Any) -> bool | None:
        return None if any(same(value, v) for v in place.schema["enum"]) else False

    def _const(self, place: SchemaPointer, keyword: str, value: Any, *_: Any) -> bool | None:
        return None if same(value, place.schema["const"]) else False

    def _bound(self, place: SchemaPointer, keyword: str, value: Any, *_: Any) -> bool | None:
        limit = place.schema[keyword]
        if isinstance(value, bool) or not isinstance(value, JSON_NUMBER) or isinstance(limit, bool):
            return None
        x, y, schema = Decimal(value), Decimal(limit), place.schema
        if keyword == "minimum":
            return None if x > y or (x == y and schema.get("exclusiveMinimum") is not True) else False
        if keyword == "maximum":
            return None if x < y or (x == y and schema.get("exclusiveMaximum") is not True) else False
        if keyword == "multipleOf":
            return None if Fraction(x) % Fraction(y) == 0 else False
        return None if (x > y if keyword == "exclusiveMinimum" else x < y) else False

    def _length(self, place: SchemaPointer, keyword: str, value: Any, *_: Any) -> bool | None:
        kind = {"Length": str, "Items": list, "Properties": dict}[keyword[3:]]
        if not isinstance(value, kind):
            return None
        limit = place.schema[keyword]
        return None if (len(value) >= limit if keyword.startswith("min") else len(value) <= limit) else False

    def _matches(self, place: SchemaPointer, keyword: str, value: Any, *_: Any) -> bool | None:
        return None if not isinstance(value, str) or self._has(place.schema["pattern"], value) else False

    def _has(self, pattern: str, value: str) -> bool:
        return self._pattern(pattern).accepts(value.encode("utf-8", "surrogatepass"))

    def _unique(self, place: SchemaPointer, keyword: str, value: Any, *_: Any) -> bool | None:
        if not isinstance(value, list) or place.schema[keyword] is not True:
            return None
        texts = [_canonical(item) for item in value]
        return None if len(set(texts)) == len(texts) else False

    def _items(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> str | None:
        if not isinstance(value, list):
            return None
        schema = place.schema
        old = isinstance(schema.get("items"), list)
        first, rest = ("items", "additionalItems") if old else ("prefixItems", "items")
        known = len(schema[first]) if isinstance(schema.get(first), list) else 0
        if keyword == rest and (old or keyword != "additionalItems"):
            places = [(i, place.at(rest)) for i in range(known, len(value))]
        elif keyword == first and isinstance(schema[first], list):
            places = [(i, place.at(first, i)) for i in range(min(known, len(value)))]
        else:
            return None
        for i, item in places:
            if found := self._wrong(item, value[i], _Evaluated(), f"{at}/{i}", depth + 1):
                return found
            seen.items.add(i)
        return None

    def _contains(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> bool | None:
        if not isinstance(value, list):
            return None
        found = [i for i, item in enumerate(value) if self._holds(place.at("contains"), item, _Evaluated(), depth + 1)]
        if self._references.draft >= 2020:
            seen.items.update(found)
        least, most = place.schema.get("minContains", 1), place.schema.get("maxContains")
        return None if least <= len(found) and (most is None or len(found) <= most) else False

    def _required(self, place: SchemaPointer, keyword: str, value: Any, *_: Any) -> bool | None:
        needed = place.schema["required"]
        return None if not isinstance(value, dict) or not isinstance(needed, list) or all(name in value for name in needed) else False

    def _properties(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> str | None:
        if not isinstance(value, dict):
            return None
        for name, item in value.items():
            for of in self._speaking_of(place, keyword, name):
                if found := self._wrong(of, item, _Evaluated(), f"{at}/{name}", depth + 1):
                    return found
                seen.names.add(name)
        return None

    def _speaking_of(self, place: SchemaPointer, keyword: str, name: str) -> Iterable[SchemaPointer]:
        schema = place.schema
        if keyword == "properties":
            return [place.at("properties", name)] if name in schema["properties"] else []
        matching = [pattern for pattern in schema.get("patternProperties", {}) if self._has(pattern, name)]
        if keyword == "patternProperties":
            return [place.at("patternProperties", pattern) for pattern in matching]
        return [] if matching or name in schema.get("properties", {}) else [place.at("additionalProperties")]

    def _names(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> bool | None:
        names = value if isinstance(value, dict) else ()
        return None if all(self._holds(place.at(keyword), name, _Evaluated(), depth + 1) for name in names) else False

    def _dependent(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> bool | str | None:
        if not isinstance(value, dict):
            return None
        for name, needed in place.schema[keyword].items():
            if name not in value:
                continue
            if isinstance(needed, list | str):
                if not all(other in value for other in ([needed] if isinstance(needed, str) else needed)):
                    return False
            elif found := self._wrong(place.at(keyword, name), value, seen, at, depth + 1):
                return found
        return None

    def _refers(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> str | None:
        return self._wrong(self._references.target(place, keyword), value, seen, at, depth + 1)

    def _all(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> str | None:
        found = (self._wrong(place.at(keyword, i), value, seen, at, depth + 1) for i in range(len(place.schema[keyword])))
        return next(filter(None, found), None)

    def _some(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> bool | str | None:
        count = sum(self._holds(place.at(keyword, i), value, seen, depth + 1) for i in range(len(place.schema[keyword])))
        if keyword == "anyOf":
            return None if count else False
        return None if count == 1 else f"{at or '/'}: {count} of {place.pointer}/oneOf hold, not exactly one"

    def _not(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> bool | None:
        return False if self._holds(place.at("not"), value, _Evaluated(), depth + 1) else None

    def _if(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> str | None:
        then = "then" if self._holds(place.at("if"), value, seen, depth + 1) else "else"
        return self._wrong(place.at(then), value, seen, at, depth + 1) if then in place.schema else None

    def _unevaluated(self, place: SchemaPointer, keyword: str, value: Any, seen: _Evaluated, at: str, depth: int) -> str | None:
        if keyword == "unevaluatedItems":
            rest: Any = [i for i in range(len(value)) if i not in seen.items] if isinstance(value, list) else []
        else:
            rest = [name for name in value if name not in seen.names] if isinstance(value, dict) else []
        for key in rest:
            if found := self._wrong(place.at(keyword), value[key], _Evaluated(), f"{at}/{key}", depth + 1):
                return found
            (seen.items if keyword == "unevaluatedItems" else seen.names).add(key)
        return None


def _canonical(value: Any) -> str:
    """Return a key that is equal for values that are equal as JSON."""
    if isinstance(value, bool | str) or value is None:
        return json.dumps(value)
    if isinstance(value, JSON_NUMBER):
        return str(Fraction(value))
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    pairs = sorted((json.dumps(key), _canonical(item)) for key, item in value.items())
    return f"{{{','.join(itertools.starmap('{}:{}'.format, pairs))}}}"


_RULES: Mapping[str, Callable[..., Any]] = {
    "type": Checker._type, "enum": Checker._enum, "const": Checker._const,
    **dict.fromkeys("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split(), Checker._bound),
    **dict.fromkeys("minLength maxLength minItems maxItems minProperties maxProperties".split(), Checker._length),
    "pattern": Checker._matches, "uniqueItems": Checker._unique, "contains": Checker._contains, "required": Checker._required,
    **dict.fromkeys("prefixItems items additionalItems".split(), Checker._items),
    **dict.fromkeys("properties patternProperties additionalProperties".split(), Checker._properties),
    "propertyNames": Checker._names, **dict.fromkeys("dependentRequired dependentSchemas dependencies".split(), Checker._dependent),
    **dict.fromkeys("$ref $dynamicRef $recursiveRef".split(), Checker._refers),
    "allOf": Checker._all, "anyOf": Checker._some, "oneOf": Checker._some, "not": Checker._not, "if": Checker._if,
    **dict.fromkeys("unevaluatedItems unevaluatedProperties".split(), Checker._unevaluated),
}  # fmt: skip
