"""Keywords of one JSON schema, except those that combine schemas. Reads them; json_schema draws the conclusions."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any

from lmc.errors import ConstraintError
from lmc.fsm import json_formats
from lmc.fsm.json_layout import OPTIONS
from lmc.fsm.json_references import References
from lmc.fsm.json_shapes import JSON_NUMBER, TYPES, ArrayRule, ObjectRule, SchemaPointer, SchemaShape, same, wrong
from lmc.fsm.json_text import Bounds
from lmc.fsm.nodes import Node
from lmc.fsm.regex import parse

NOTES = frozenset(
    "title description default examples example $schema $id id $comment $defs definitions deprecated readOnly writeOnly $anchor $dynamicAnchor "
    "$recursiveAnchor $vocabulary discriminator contentEncoding contentMediaType contentSchema externalDocs xml".split()
)
_OF_TYPE: Mapping[str, str] = {
    **dict.fromkeys("properties required additionalProperties patternProperties propertyNames minProperties "
                    "maxProperties unevaluatedProperties dependentRequired dependentSchemas dependencies".split(), "object"),
    **dict.fromkeys("items prefixItems additionalItems minItems maxItems uniqueItems unevaluatedItems contains "
                    "minContains maxContains".split(), "array"),
    **dict.fromkeys("minLength maxLength pattern format".split(), "string"),
    **dict.fromkeys("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split(), "number"),
}  # fmt: skip
COUNTED = (  # the type, the field of a shape, and the keywords
    ("string", "length", "minLength", "maxLength"),
    ("array", "items", "minItems", "maxItems"),
    ("object", "size", "minProperties", "maxProperties"),
)
_SELDOM = frozenset(_OF_TYPE) - frozenset("properties patternProperties additionalProperties required items prefixItems additionalItems".split())
_DEPENDENT = frozenset("dependentRequired dependentSchemas dependencies".split())
_COMBINING = _DEPENDENT | {"unevaluatedProperties", "unevaluatedItems"}
_LISTS = frozenset("allOf anyOf oneOf prefixItems".split())
_APPLIED = frozenset("additionalProperties propertyNames items contains not if then else unevaluatedProperties unevaluatedItems".split())
_OTHERS = frozenset("type enum const anyOf oneOf allOf not if then else $ref $dynamicRef $recursiveRef nullable".split())
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
KEYWORDS = frozenset({*NOTES, *_OF_TYPE, *_OTHERS, OPTIONS})
PLAIN = frozenset({*_OF_TYPE, "type", "enum", "const"}) - _COMBINING
_SPEAKING = KEYWORDS - NOTES - {OPTIONS}
_REAL = sorted({*_OF_TYPE, *_OTHERS})
_NEAR = 0.75  # similarity of a suggestion: `tpye` and `type`
_MOST_ADJUSTED = 30  # digits before or after the point of a bound
_MOST_NAMED, _MOST_SHOWN = 8, 100  # notes in a warning, and characters of a name


@dataclass
class Notes:
    """Notes for users from compiling a schema.

    strict    each of them is refused
    ignored   keywords and formats without effect, and where the first of each is
    later     by location, keywords not enforced by the automaton: checked when answers end
    """

    strict: bool = False
    ignored: dict[str, str] = field(default_factory=dict)
    later: dict[str, str] = field(default_factory=dict)

    def ignore(self, what: str, pointer: str, likely: str = "") -> None:
        if self.strict:
            raise wrong(pointer, f"has {what}, which says nothing{likely}; leave it out, or compile without strict")
        self.ignored.setdefault(f"{what}{likely}", pointer)

    def check_later(self, pointer: str, why: str) -> None:
        if self.strict:
            raise wrong(pointer, f"{why}, so that it could only be checked when the answer ends, which strict refuses")
        self.later.setdefault(pointer, why)

    def __str__(self) -> str:
        parts = [f"{_short(what)} at {_short(pointer or '/')}" for what, pointer in self.ignored.items()]
        found = [f"ignored: {', '.join(_few(parts))}"] if parts else []
        found += _few([f"{_short(pointer or '/')} {why}: checked when the answer ends" for pointer, why in self.later.items()])
        return "; ".join(found)


def _few(notes: list[str]) -> list[str]:
    return notes if len(notes) <= _MOST_NAMED else [*notes[:_MOST_NAMED], f"and {len(notes) - _MOST_NAMED} more"]


def _short(name: str) -> str:
    """Return a name of a schema, whoever wrote it, for a line of a log."""
    name = name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}…"
    return "".join([c if c.isprintable() else repr(c)[1:-1] for c in name])


@lru_cache(4096)
def _likely(keyword: str) -> str:
    near = difflib.get_close_matches(keyword, _REAL, 1, _NEAR)
    return f" (did you mean {near[0]!r}?)" if near else ""


class Keywords:
    """Reads the schemas of one root; raises ConstraintError, with the JSON pointer, for keywords that are invalid or
    cannot be enforced.

    wide   shapes have at least the values of JSON Schema, to prove that a value is not of a schema; else at most those,
          and fewer where others are not meant: types or properties that the keywords do not mention
    """

    def __init__(self, references: References, wide: bool, notes: Notes) -> None:
        self.references, self.wide, self.notes = references, wide, notes
        self._spoken: dict[int, tuple[Any, frozenset[str]]] = {}  # by id of a schema, which it keeps alive

    def check_later(self, pointer: str, why: str) -> None:
        """Note a keyword left out, so that more is allowed than the schema says."""
        self.notes.check_later(pointer, why)

    def spoken(self, place: SchemaPointer) -> frozenset[str]:
        """Return the keywords of a schema that have an effect; unknown ones are noted."""
        found = self._spoken.get(id(place.schema))
        if found is None:
            found = self._spoken[id(place.schema)] = place.schema, self._read(place)
        return found[1]

    def _read(self, place: SchemaPointer) -> frozenset[str]:
        if OPTIONS in place.schema and place.pointer:
            raise wrong(place.pointer, f"has {OPTIONS}, which stands at the root of a schema only")
        for keyword in place.schema:
            if keyword not in KEYWORDS:
                self.notes.ignore(f"the keyword {keyword!r}", place.pointer, _likely(keyword))
        found = _SPEAKING.intersection(place.schema)
        return frozenset(("$ref",)) if "$ref" in found and self.references.overrides else found

    def list_of(self, place: SchemaPointer, keyword: str) -> list[Any]:
        found = place.schema.get(keyword, [])
        if not isinstance(found, list) or (keyword in place.schema and not found):
            raise wrong(f"{place.pointer}/{keyword}", "must be a list that is not empty")
        return found

    def target(self, place: SchemaPointer, keyword: str = "$ref") -> SchemaPointer:
        return self.references.target(place, keyword)

    def plain(self, place: SchemaPointer) -> SchemaShape | None:
        """Return the non-combining keywords as a shape; None if they contradict each other."""
        schema = place.schema
        found = SchemaShape(place.pointer, self.types(place), self.values(place), objects=self.object_rules(place), required=self.required(place),
                            arrays=self.array_rules(place), typed=self.is_typed(schema))  # fmt: skip
        if not _SELDOM.isdisjoint(schema):
            names = (place.at("propertyNames"),) if "propertyNames" in schema else ()
            found = replace(found, bounds=self.bounds(place), texts=self.texts(place), names=names, unique=self.flag(place, "uniqueItems"),
                            contains=self.contained(place), **{field: self.counts(place, low, high) for _, field, low, high in COUNTED})  # fmt: skip
        return found

    def bounds(self, place: SchemaPointer) -> Bounds:
        schema = place.schema
        bounds = Bounds(step=self.bound(place, "multipleOf") if "multipleOf" in schema else None)
        if bounds.step is not None and bounds.step <= 0:
            raise wrong(f"{place.pointer}/multipleOf", "must be greater than 0")
        for low, is_open in self.limits(place, "minimum", "exclusiveMinimum"):
            bounds = bounds.both(Bounds(low=low, open_low=is_open))
        for high, is_open in self.limits(place, "maximum", "exclusiveMaximum"):
            bounds = bounds.both(Bounds(high=high, open_high=is_open))
        if not self.wide and (ends := json_formats.NUMBERS.get(schema["format"] if isinstance(schema.get("format"), str) else "")):
            bounds = bounds.both(Bounds(low=ends[0], high=ends[1]))
        return bounds

    def limits(self, place: SchemaPointer, plain: str, exclusive: str) -> list[tuple[Decimal, bool]]:
        """Return the bounds on one side, and whether each is open. In draft 4 the exclusive keyword is a flag on the
        other."""
        given, found = place.schema, list[tuple[Decimal, bool]]()
        for keyword in (plain, exclusive):
            if keyword not in given or (keyword == exclusive and isinstance(given[keyword], bool)):
                continue
            limit = self.bound(place, keyword)
            if limit and abs(limit.adjusted()) > _MOST_ADJUSTED:
                self.check_later(f"{place.pointer}/{keyword}", f"has more than {_MOST_ADJUSTED} digits")
            else:
                found.append((limit, keyword == exclusive or given.get(exclusive) is True))
        return found

    def contained(self, place: SchemaPointer) -> tuple[tuple[SchemaPointer, int, int | None], ...]:
        least, most = self.counts(place, "minContains", "maxContains")
        if "minContains" not in place.schema:
            least = 1
        if "contains" not in place.schema or self.wide or (least == 0 and most is None):
            return ()
        return ((place.at("contains"), least, most),)

    def types(self, place: SchemaPointer) -> frozenset[str]:
        """Return the types given by `type` or, without it, those that the other keywords mention."""
        given = place.schema.get("type")
        if given is None and self.is_typed(place.schema):
            return frozenset(TYPES)
        if given is None:
            spoken = {_OF_TYPE[k] for k in place.schema if k in _OF_TYPE}
            given = [*spoken, "integer"] if "number" in spoken else list(spoken)
            return frozenset(TYPES if self.wide else given or TYPES)
        names = given if isinstance(given, list) else [given]
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                raise wrong(f"{place.pointer}/type", f"is {name!r}; there are {', '.join(TYPES)}")
        return frozenset([*names, "integer"] if "number" in names else names)

    def is_typed(self, schema: Mapping[str, Any]) -> bool:
        """Return whether `type`, the values themselves or the arms of a schema determine its types."""
        arms = [arm for keyword in ("anyOf", "oneOf") if isinstance(schema.get(keyword), list) for arm in schema[keyword]]
        return not {"type", "enum", "const"}.isdisjoint(schema) or any(isinstance(arm, dict) and "type" in arm for arm in arms)

    def values(self, place: SchemaPointer) -> tuple[Any, ...] | None:
        schema = place.schema
        found = tuple(self.list_of(place, "enum")) if "enum" in schema else None
        if "const" in schema:
            const = schema["const"]
            found = (const,) if found is None or any(same(const, v) for v in found) else ()
        return found

    def bound(self, place: SchemaPointer, keyword: str) -> Decimal:
        found = place.schema[keyword]
        if isinstance(found, bool) or not isinstance(found, JSON_NUMBER):
            raise wrong(f"{place.pointer}/{keyword}", f"must be a number, not {json.dumps(found, default=str)}")
        return Decimal(found)

    def counts(self, place: SchemaPointer, low: str, high: str) -> tuple[int, int | None]:
        for keyword in (low, high):
            found = place.schema.get(keyword, 0)
            if isinstance(found, bool) or not isinstance(found, JSON_NUMBER) or found < 0 or found != int(found):
                raise wrong(f"{place.pointer}/{keyword}", f"must be a whole number, not {json.dumps(found, default=str)}")
        most = place.schema.get(high)
        return int(place.schema.get(low, 0)), None if most is None else int(most)

    def flag(self, place: SchemaPointer, keyword: str) -> bool:
        found = place.schema.get(keyword, False)
        if not isinstance(found, bool):
            raise wrong(f"{place.pointer}/{keyword}", "must be true or false")
        return found

    def texts(self, place: SchemaPointer) -> tuple[Node, ...]:
        found: list[Node] = []
        if "pattern" in place.schema:
            found.append(self.pattern(place.schema["pattern"], f"{place.pointer}/pattern"))
        name = place.schema.get("format", "")
        if not isinstance(name, str):
            raise wrong(f"{place.pointer}/format", "must be a string")
        if "format" in place.schema and not self.wide:  # ours are simple subsets of the formats
            if name in json_formats.ANY_STRING or (name in json_formats.NUMBERS and not {"integer", "number"}.isdisjoint(self.types(place))):
                return tuple(found)
            if name not in json_formats.FORMATS:
                near = difflib.get_close_matches(name, json_formats.FORMATS, 1, _NEAR)
                self.notes.ignore(f"the format {name!r}", place.pointer, f" (did you mean {near[0]!r}?)" if near else "")
                return tuple(found)
            longest = place.schema.get("maxLength")
            found.append(json_formats.language(name, longest if isinstance(longest, int) else None))
        return tuple(found)

    def pattern(self, pattern: Any, pointer: str) -> Node:
        if not isinstance(pattern, str):
            raise wrong(pointer, "must be a regular expression")
        try:
            return parse(pattern, search=True)
        except ConstraintError as error:
            raise wrong(pointer, f"cannot be enforced: {error.message}") from None

    def object_rules(self, place: SchemaPointer) -> tuple[ObjectRule, ...]:
        schema = place.schema
        if not {"properties", "patternProperties", "additionalProperties"} & set(schema):
            return ()
        for keyword in ("properties", "patternProperties"):
            if not isinstance(schema.get(keyword, {}), dict):
                raise wrong(f"{place.pointer}/{keyword}", "must be an object")
        properties = {name: place.at("properties", name) for name in schema.get("properties", {})}
        patterns = tuple(
            (self.pattern(p, f"{place.pointer}/patternProperties/{p}"), place.at("patternProperties", p)) for p in schema.get("patternProperties", {})
        )
        others = place.at("additionalProperties") if "additionalProperties" in schema else None
        return (ObjectRule(properties, patterns, others),)

    def required(self, place: SchemaPointer) -> tuple[str, ...]:
        return self.names_of(place.at("required")) if "required" in place.schema else ()

    def names_of(self, place: SchemaPointer) -> tuple[str, ...]:
        found = place.schema
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise wrong(place.pointer, "must be a list of names")
        return tuple(found)

    def dependent(self, place: SchemaPointer, keyword: str) -> Mapping[str, Any]:
        found = place.schema.get(keyword, {})
        if not isinstance(found, dict):
            raise wrong(f"{place.pointer}/{keyword}", "must be an object")
        for name, value in found.items():
            if isinstance(value, list) != (keyword == "dependentRequired") and keyword != "dependencies":
                what = "a list of names" if keyword == "dependentRequired" else "a schema"
                raise wrong(f"{place.pointer}/{keyword}/{name}", f"must be {what}")
        return found

    def array_rules(self, place: SchemaPointer) -> tuple[ArrayRule, ...]:
        schema = place.schema
        if not {"items", "prefixItems"} & set(schema):
            return ()  # additionalItems only applies beside a list of items
        old = isinstance(schema.get("items"), list)  # as before 2020-12
        first, rest = ("items", "additionalItems") if old else ("prefixItems", "items")
        if old and "prefixItems" in schema:
            raise wrong(f"{place.pointer}/prefixItems", "and a list of items exclude each other")
        count = len(self.list_of(place, first)) if first in schema else 0
        return (ArrayRule(tuple(place.at(first, i) for i in range(count)), place.at(rest) if rest in schema else None),)

    def read_all(self, place: SchemaPointer) -> None:
        """Read a schema and all that it applies, of which a checker reads what compiling may have no use for."""
        todo, seen = [place], set[str]()
        while todo:
            place = self.references.first(todo.pop())
            if isinstance(place.schema, bool) or place.pointer in seen:
                continue
            if not isinstance(place.schema, dict):
                raise wrong(place.pointer, f"must be a schema, not {json.dumps(place.schema, default=str)}")
            seen.add(place.pointer)
            todo += self._applied(place)

    def _applied(self, place: SchemaPointer) -> Iterator[SchemaPointer]:
        schema, spoken = place.schema, self.spoken(place)
        if not (self.references.overrides and "$ref" in spoken):
            self.plain(place)
        for keyword in spoken:
            if keyword in REFERENCES:
                yield self.target(place, keyword)
            elif keyword in _LISTS or (keyword == "items" and isinstance(schema["items"], list)):
                yield from (place.at(keyword, i) for i in range(len(self.list_of(place, keyword))))
            elif keyword in ("properties", "patternProperties"):
                yield from (place.at(keyword, name) for name in schema[keyword])
            elif keyword in _DEPENDENT:
                for name, needed in self.dependent(place, keyword).items():
                    if isinstance(needed, list):
                        self.names_of(place.at(keyword, name))
                    else:
                        yield place.at(keyword, name)
            elif keyword in _APPLIED or (keyword == "additionalItems" and isinstance(schema.get("items"), list)):
                yield place.at(keyword)
