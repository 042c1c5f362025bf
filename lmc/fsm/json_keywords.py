"""What the keywords of one JSON schema say, those that combine schemas left out. Reads; what follows from it is json_schema's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from lmc.errors import ConstraintError
from lmc.fsm import json_formats
from lmc.fsm.json_layout import OPTIONS
from lmc.fsm.json_shapes import JSON_NUMBER, TYPES, ArrayRule, ObjectRule, Place, Shape, same, wrong
from lmc.fsm.json_text import Bounds
from lmc.fsm.regex import Node, parse

NOTES = frozenset(
    "title description default examples example $schema $id $comment $defs definitions deprecated readOnly writeOnly "
    "discriminator contentEncoding contentMediaType externalDocs xml".split()
)
_OF_TYPE: Mapping[str, str] = {
    **dict.fromkeys("properties required additionalProperties patternProperties propertyNames minProperties "
                    "maxProperties unevaluatedProperties dependentRequired dependentSchemas dependencies".split(), "object"),
    **dict.fromkeys("items prefixItems additionalItems minItems maxItems uniqueItems unevaluatedItems contains "
                    "minContains maxContains".split(), "array"),
    **dict.fromkeys("minLength maxLength pattern format".split(), "string"),
    **dict.fromkeys("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split(), "number"),
}  # fmt: skip
_OTHERS = frozenset("type enum const anyOf oneOf allOf not if then else $ref nullable".split())
KEYWORDS = frozenset({*NOTES, *_OF_TYPE, *_OTHERS, OPTIONS})


class Keywords:
    """Reads the schemas of one root; raises ConstraintError, with the JSON pointer, for what is wrong or cannot be enforced.

    wide   shapes have at least the values that JSON Schema says, to tell what is surely not of a schema; else at most those, and
           less where it would write what nobody means: other types than the keywords speak of, other properties
    """

    def __init__(self, root: Any, wide: bool) -> None:
        self.root, self.wide = root, wide

    def check_keyword(self, place: Place, keyword: str) -> None:
        if keyword not in KEYWORDS or (keyword == OPTIONS and place.pointer):
            raise wrong(place.pointer, f"has the keyword {keyword!r}, which cannot be enforced; leave it out and check the answer")

    def list_of(self, place: Place, keyword: str) -> list[Any]:
        found = place.schema.get(keyword, [])
        if not isinstance(found, list) or (keyword in place.schema and not found):
            raise wrong(f"{place.pointer}/{keyword}", "must be a list that is not empty")
        return found

    def target(self, place: Place) -> Place:
        ref = place.schema["$ref"]
        if not isinstance(ref, str) or (ref != "#" and not ref.startswith("#/")):
            raise wrong(f"{place.pointer}/$ref", f"is {ref!r}; only references within the schema, like '#/$defs/x', can be followed")
        found = Place(self.root, "")
        for step in ref[2:].split("/") if ref != "#" else ():
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                found = found.at(int(step) if isinstance(found.schema, list) else step)
            except (KeyError, IndexError, TypeError, ValueError):
                raise wrong(f"{place.pointer}/$ref", f"is {ref!r}, which leads nowhere") from None
        return found

    def plain(self, place: Place) -> Shape | None:
        """The keywords that combine nothing; None if they contradict each other."""
        schema = place.schema
        shape = Shape(place.pointer, types=self.types(place))
        values = self.values(place)
        if values is not None:
            shape = replace(shape, values=values)
        lows = [(self.bound(place, k), k != "minimum") for k in ("minimum", "exclusiveMinimum") if k in schema]
        highs = [(self.bound(place, k), k != "maximum") for k in ("maximum", "exclusiveMaximum") if k in schema]
        bounds = Bounds(step=self.bound(place, "multipleOf") if "multipleOf" in schema else None)
        if bounds.step is not None and bounds.step <= 0:
            raise wrong(f"{place.pointer}/multipleOf", "must be greater than 0")
        for extra in [Bounds(low=x, open_low=o) for x, o in lows] + [Bounds(high=x, open_high=o) for x, o in highs]:
            bounds = bounds.both(extra) or bounds
        if not self.wide and (ends := json_formats.NUMBERS.get(schema.get("format", "") if isinstance(schema.get("format"), str) else "")):
            bounds = bounds.both(Bounds(low=ends[0], high=ends[1])) or bounds
        return replace(
            shape,
            bounds=bounds,
            length=self.counts(place, "minLength", "maxLength"),
            texts=self.texts(place),
            objects=self.object_rules(place),
            required=self.required(place),
            names=(place.at("propertyNames"),) if "propertyNames" in schema else (),
            size=self.counts(place, "minProperties", "maxProperties"),
            arrays=self.array_rules(place),
            items=self.counts(place, "minItems", "maxItems"),
            unique=self.flag(place, "uniqueItems"),
            contains=self.contained(place),
        )

    def contained(self, place: Place) -> tuple[tuple[Place, int, int | None], ...]:
        least, most = self.counts(place, "minContains", "maxContains")
        if "minContains" not in place.schema:
            least = 1
        if "contains" not in place.schema or self.wide or (least == 0 and most is None):
            return ()
        return ((place.at("contains"), least, most),)

    def types(self, place: Place) -> frozenset[str]:
        """Those that `type` says or, without it, those that the other keywords speak of."""
        given = place.schema.get("type")
        if given is None:
            spoken = {_OF_TYPE[k] for k in place.schema if k in _OF_TYPE}
            given = [*spoken, "integer"] if "number" in spoken else list(spoken)
            return frozenset(TYPES if self.wide else given or TYPES)
        names = given if isinstance(given, list) else [given]
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                raise wrong(f"{place.pointer}/type", f"is {name!r}; there are {', '.join(TYPES)}")
        return frozenset([*names, "integer"] if "number" in names else names)

    def values(self, place: Place) -> tuple[Any, ...] | None:
        schema = place.schema
        found = tuple(self.list_of(place, "enum")) if "enum" in schema else None
        if "const" in schema:
            const = schema["const"]
            found = (const,) if found is None or any(same(const, v) for v in found) else ()
        return found

    def bound(self, place: Place, keyword: str) -> Decimal:
        found = place.schema[keyword]
        if isinstance(found, bool) or not isinstance(found, JSON_NUMBER):
            raise wrong(f"{place.pointer}/{keyword}", f"must be a number, not {json.dumps(found, default=str)}")
        if abs(Decimal(found).adjusted()) > 30:
            raise wrong(f"{place.pointer}/{keyword}", f"is {found}: bounds have at most 30 digits")
        return Decimal(found)

    def counts(self, place: Place, low: str, high: str) -> tuple[int, int | None]:
        for keyword in (low, high):
            found = place.schema.get(keyword, 0)
            if isinstance(found, bool) or not isinstance(found, JSON_NUMBER) or found < 0 or found != int(found):
                raise wrong(f"{place.pointer}/{keyword}", f"must be a whole number, not {json.dumps(found, default=str)}")
        most = place.schema.get(high)
        return int(place.schema.get(low, 0)), None if most is None else int(most)

    def flag(self, place: Place, keyword: str) -> bool:
        found = place.schema.get(keyword, False)
        if not isinstance(found, bool):
            raise wrong(f"{place.pointer}/{keyword}", "must be true or false")
        return found

    def texts(self, place: Place) -> tuple[Node, ...]:
        found: list[Node] = []
        if "pattern" in place.schema:
            found.append(self.pattern(place.schema["pattern"], f"{place.pointer}/pattern"))
        if "format" in place.schema and not self.wide:  # ours are plain parts of the formats
            name = place.schema["format"]
            if name in json_formats.ANY_STRING or (name in json_formats.NUMBERS and not {"integer", "number"}.isdisjoint(self.types(place))):
                return tuple(found)
            if name not in json_formats.FORMATS:
                raise wrong(f"{place.pointer}/format", f"is {name!r}, which cannot be enforced; there are {', '.join((*json_formats.FORMATS, *json_formats.ANY_STRING))} and, of numbers, {', '.join(json_formats.NUMBERS)}")
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

    def object_rules(self, place: Place) -> tuple[ObjectRule, ...]:
        schema = place.schema
        if schema.get("unevaluatedProperties", False) is not False:
            raise wrong(f"{place.pointer}/unevaluatedProperties", "cannot be enforced unless it is false")
        if not {"properties", "patternProperties", "additionalProperties"} & set(schema):
            return ()
        for keyword in ("properties", "patternProperties"):
            if not isinstance(schema.get(keyword, {}), dict):
                raise wrong(f"{place.pointer}/{keyword}", "must be an object")
        properties = {name: place.at("properties", name) for name in schema.get("properties", {})}
        patterns = tuple(
            (self.pattern(p, f"{place.pointer}/patternProperties/{p}"), place.at("patternProperties", p))
            for p in schema.get("patternProperties", {})
        )
        others = place.at("additionalProperties") if "additionalProperties" in schema else None
        return (ObjectRule(properties, patterns, others),)

    def required(self, place: Place) -> tuple[str, ...]:
        return self.names_of(place.at("required")) if "required" in place.schema else ()

    def names_of(self, place: Place) -> tuple[str, ...]:
        found = place.schema
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise wrong(place.pointer, "must be a list of names")
        return tuple(found)

    def array_rules(self, place: Place) -> tuple[ArrayRule, ...]:
        schema = place.schema
        if schema.get("unevaluatedItems", False) is not False:
            raise wrong(f"{place.pointer}/unevaluatedItems", "cannot be enforced unless it is false")
        if not {"items", "prefixItems", "additionalItems"} & set(schema):
            return ()
        old = isinstance(schema.get("items"), list)  # as before 2020-12
        first, rest = ("items", "additionalItems") if old else ("prefixItems", "items")
        if "additionalItems" in schema and not old:
            raise wrong(f"{place.pointer}/additionalItems", "has a meaning beside a list of items only")
        if old and "prefixItems" in schema:
            raise wrong(f"{place.pointer}/prefixItems", "and a list of items exclude each other")
        count = len(self.list_of(place, first)) if first in schema else 0
        return (
            ArrayRule(
                tuple(place.at(first, i) for i in range(count)), place.at(rest) if rest in schema else None
            ),
        )
