"""Validation of a value by a schema: for keywords that an automaton cannot enforce, checked when the answer ends, and for texts that others have
written, of which formats allow any form that is in use."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

from lmc import json_data
from lmc.errors import ConstraintError
from lmc.fsm.json_formats import may_be
from lmc.fsm.json_references import References
from lmc.fsm.json_shapes import JSON_NUMBER, SchemaPointer, same, type_of, wrong
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
        self.references, self._pattern = references, lru_cache(256)(pattern)
        self._root = SchemaPointer(references.root, "")
        self._rules = dict[int, Sequence[tuple[str, _Rule]]]()  # by the id of a schema, all of which the root holds

    def wrong(self, text: str) -> str | None:
        """Return why the value of a JSON text is not valid; None if it is. Raises ConstraintError for a schema that was not compiled and cannot be."""
        try:
            return _Check(self, self._root, json_data.loads(text, parse_float=Decimal, parse_constant=_no_json)).error()
        except RecursionError:
            return "it is nested too deep to be checked"
        except ConstraintError:
            raise
        except ValueError as error:
            return f"it cannot be checked: {error}"

    def rules_of(self, schema: Mapping[str, Any]) -> Sequence[tuple[str, _Rule]]:
        """Return the rules of a schema's keywords, in their order."""
        if (found := self._rules.get(id(schema))) is None:
            found = self._rules[id(schema)] = [each for each in _RULES.items() if each[0] in schema]
        return found

    def matches(self, pattern: str, text: str) -> bool:
        return self._pattern(pattern).accepts(text.encode("utf-8", "surrogatepass"))


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


@dataclass(slots=True)
class _Check:
    """A value and a schema by which it is checked.

    at     where the value is, as a JSON pointer
    depth  of nested schemas
    seen   what of the value has been evaluated by schemas that hold
    """

    checker: Checker
    place: SchemaPointer
    value: Any
    at: str = ""
    depth: int = 0
    seen: _Evaluated = field(default_factory=_Evaluated)

    def by(self, place: SchemaPointer) -> _Check:
        """Return the check of the same value by a schema that this one applies."""
        return _Check(self.checker, place, self.value, self.at, self.depth + 1, self.seen)

    def of(self, value: Any, place: SchemaPointer, key: object = "") -> _Check:
        """Return the check of a part of the value, or of another value."""
        return _Check(self.checker, place, value, f"{self.at}/{key}", self.depth + 1)

    def holds(self) -> bool:
        return self.error() is None

    def error(self) -> str | None:
        """Return why the value is not valid; None if it is, and then what the schema evaluates is in `seen`."""
        schema = self.place.schema
        if schema is True:
            return None
        if not isinstance(schema, dict):
            return f"{self.at or '/'}: {self.place.pointer or '/'} allows nothing"
        if self.depth > _DEEPEST:
            raise RecursionError
        if "$ref" in schema and self.checker.references.overrides:
            return self._refers("$ref")
        if schema.get("nullable") is True and self.value is None:
            return None
        own = _Check(self.checker, self.place, self.value, self.at, self.depth)  # evaluated by this schema and what it applies, not by its neighbours
        for keyword, rule in self.checker.rules_of(schema):
            try:
                found = rule(own, keyword)
            except (TypeError, AttributeError, LookupError, ArithmeticError) as error:  # of a schema that was not compiled
                raise wrong(f"{self.place.pointer}/{keyword}", f"cannot be read ({type(error).__name__}: {error})") from None
            if found is not None:
                return (
                    found
                    if isinstance(found, str)
                    else f"{self.at or '/'} must satisfy {keyword!r}: {json.dumps(schema[keyword], ensure_ascii=False, default=str):.100}"
                )
        self.seen.add(own.seen)
        return None

    # -- rules: None if the keyword holds, else the error, or False for the default message ------------------------

    def _type(self, keyword: str) -> bool | None:
        names = self.place.schema["type"]
        kind = type_of(self.value)
        names = names if isinstance(names, list) else [names]
        return None if kind in names or (kind == "integer" and "number" in names) else False

    def _enum(self, keyword: str) -> bool | None:
        return None if any(same(self.value, v) for v in self.place.schema["enum"]) else False

    def _const(self, keyword: str) -> bool | None:
        return None if same(self.value, self.place.schema["const"]) else False

    def _bound(self, keyword: str) -> bool | None:
        value, limit, schema = self.value, self.place.schema[keyword], self.place.schema
        if isinstance(value, bool) or not isinstance(value, JSON_NUMBER) or isinstance(limit, bool):
            return None
        x, y = Decimal(value), Decimal(limit)
        if keyword == "minimum":
            return None if x > y or (x == y and schema.get("exclusiveMinimum") is not True) else False
        if keyword == "maximum":
            return None if x < y or (x == y and schema.get("exclusiveMaximum") is not True) else False
        if keyword == "multipleOf":
            return None if _is_multiple(x, y) else False
        return None if (x > y if keyword == "exclusiveMinimum" else x < y) else False

    def _length(self, keyword: str) -> bool | None:
        kind = {"Length": str, "Items": list, "Properties": dict}[keyword[3:]]
        if not isinstance(self.value, kind):
            return None
        limit = self.place.schema[keyword]
        return None if (len(self.value) >= limit if keyword.startswith("min") else len(self.value) <= limit) else False

    def _matches(self, keyword: str) -> bool | None:
        return None if not isinstance(self.value, str) or self.checker.matches(self.place.schema["pattern"], self.value) else False

    def _format(self, keyword: str) -> bool | None:
        name = self.place.schema["format"]
        return None if not (isinstance(self.value, str) and isinstance(name, str)) or may_be(name, self.value) else False

    def _unique(self, keyword: str) -> bool | None:
        if not isinstance(self.value, list) or self.place.schema[keyword] is not True:
            return None
        texts = [_canonical(item) for item in self.value]
        return None if len(set(texts)) == len(texts) else False

    def _items(self, keyword: str) -> str | None:
        if not isinstance(self.value, list):
            return None
        schema = self.place.schema
        old = isinstance(schema.get("items"), list)
        first, rest = ("items", "additionalItems") if old else ("prefixItems", "items")
        known = len(schema[first]) if isinstance(schema.get(first), list) else 0
        if keyword == rest and (old or keyword != "additionalItems"):
            places = [(i, self.place.at(rest)) for i in range(known, len(self.value))]
        elif keyword == first and isinstance(schema[first], list):
            places = [(i, self.place.at(first, i)) for i in range(min(known, len(self.value)))]
        else:
            return None
        for i, item in places:
            if found := self.of(self.value[i], item, i).error():
                return found
            self.seen.items.add(i)
        return None

    def _contains(self, keyword: str) -> bool | None:
        if not isinstance(self.value, list):
            return None
        found = [i for i, item in enumerate(self.value) if self.of(item, self.place.at("contains")).holds()]
        if self.checker.references.draft >= 2020:
            self.seen.items.update(found)
        least, most = self.place.schema.get("minContains", 1), self.place.schema.get("maxContains")
        return None if least <= len(found) and (most is None or len(found) <= most) else False

    def _required(self, keyword: str) -> bool | None:
        needed = self.place.schema["required"]
        return None if not isinstance(self.value, dict) or not isinstance(needed, list) or all(name in self.value for name in needed) else False

    def _properties(self, keyword: str) -> str | None:
        if not isinstance(self.value, dict):
            return None
        for name, item in self.value.items():
            for of in self._speaking_of(keyword, name):
                if found := self.of(item, of, name).error():
                    return found
                self.seen.names.add(name)
        return None

    def _speaking_of(self, keyword: str, name: str) -> Iterable[SchemaPointer]:
        schema = self.place.schema
        if keyword == "properties":
            return [self.place.at("properties", name)] if name in schema["properties"] else []
        matching = [pattern for pattern in schema.get("patternProperties", {}) if self.checker.matches(pattern, name)]
        if keyword == "patternProperties":
            return [self.place.at("patternProperties", pattern) for pattern in matching]
        return [] if matching or name in schema.get("properties", {}) else [self.place.at("additionalProperties")]

    def _names(self, keyword: str) -> bool | None:
        names = self.value if isinstance(self.value, dict) else ()
        return None if all(self.of(name, self.place.at(keyword)).holds() for name in names) else False

    def _dependent(self, keyword: str) -> bool | str | None:
        if not isinstance(self.value, dict):
            return None
        for name, needed in self.place.schema[keyword].items():
            if name not in self.value:
                continue
            if isinstance(needed, list | str):
                if not all(other in self.value for other in ([needed] if isinstance(needed, str) else needed)):
                    return False
            elif found := self.by(self.place.at(keyword, name)).error():
                return found
        return None

    def _refers(self, keyword: str) -> str | None:
        return self.by(self.checker.references.target(self.place, keyword)).error()

    def _all(self, keyword: str) -> str | None:
        found = (self.by(self.place.at(keyword, i)).error() for i in range(len(self.place.schema[keyword])))
        return next(filter(None, found), None)

    def _some(self, keyword: str) -> bool | str | None:
        count = sum(self.by(self.place.at(keyword, i)).holds() for i in range(len(self.place.schema[keyword])))
        if keyword == "anyOf":
            return None if count else False
        return None if count == 1 else f"{self.at or '/'}: {count} of {self.place.pointer}/oneOf hold, not exactly one"

    def _not(self, keyword: str) -> bool | None:
        return False if self.of(self.value, self.place.at("not")).holds() else None

    def _if(self, keyword: str) -> str | None:
        then = "then" if self.by(self.place.at("if")).holds() else "else"
        return self.by(self.place.at(then)).error() if then in self.place.schema else None

    def _unevaluated(self, keyword: str) -> str | None:
        value = self.value
        if keyword == "unevaluatedItems":
            rest: Any = [i for i in range(len(value)) if i not in self.seen.items] if isinstance(value, list) else []
        else:
            rest = [name for name in value if name not in self.seen.names] if isinstance(value, dict) else []
        for key in rest:
            if found := self.of(value[key], self.place.at(keyword), key).error():
                return found
            (self.seen.items if keyword == "unevaluatedItems" else self.seen.names).add(key)
        return None


def _is_multiple(value: Decimal, step: Decimal) -> bool:
    """Return whether a number is a multiple of another one, without writing out powers of ten: 1e999999999 would take for ever."""
    (a, p), (b, q) = _scaled(value), _scaled(step)
    if p >= q:
        return a % b * pow(10, p - q, b) % b == 0
    return a == 0 or (q - p < len(value.as_tuple().digits) and a % (b * 10 ** (q - p)) == 0)


def _scaled(number: Decimal) -> tuple[int, int]:
    """Return the digits of a number without its sign, as a whole number, and the power of ten by which they count."""
    _, digits, exponent = number.as_tuple()
    return int(Decimal((0, digits, 0))), int(exponent)


def _canonical(value: Any) -> str:
    """Return a key that is equal for values that are equal as JSON."""
    if isinstance(value, bool | str) or value is None:
        return json.dumps(value)
    if isinstance(value, JSON_NUMBER):
        sign, digits, exponent = Decimal(value).as_tuple()
        written = "".join(map(str, digits)).lstrip("0")
        shortest = written.rstrip("0")
        return f"{'-' * sign}{shortest}e{int(exponent) + len(written) - len(shortest)}" if shortest else "0"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    pairs = sorted((json.dumps(key), _canonical(item)) for key, item in value.items())
    return f"{{{','.join(itertools.starmap('{}:{}'.format, pairs))}}}"


_Rule = Callable[[_Check, str], bool | str | None]
_RULES: Mapping[str, _Rule] = {
    "type": _Check._type, "enum": _Check._enum, "const": _Check._const,
    **dict.fromkeys("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split(), _Check._bound),
    **dict.fromkeys("minLength maxLength minItems maxItems minProperties maxProperties".split(), _Check._length),
    "pattern": _Check._matches, "format": _Check._format, "uniqueItems": _Check._unique, "contains": _Check._contains, "required": _Check._required,
    **dict.fromkeys("prefixItems items additionalItems".split(), _Check._items),
    **dict.fromkeys("properties patternProperties additionalProperties".split(), _Check._properties),
    "propertyNames": _Check._names, **dict.fromkeys("dependentRequired dependentSchemas dependencies".split(), _Check._dependent),
    **dict.fromkeys("$ref $dynamicRef $recursiveRef".split(), _Check._refers),
    "allOf": _Check._all, "anyOf": _Check._some, "oneOf": _Check._some, "not": _Check._not, "if": _Check._if,
    **dict.fromkeys("unevaluatedItems unevaluatedProperties".split(), _Check._unevaluated),
}  # fmt: skip
