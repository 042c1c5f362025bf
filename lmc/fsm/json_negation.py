"""Negation of a schema: the disjuncts in which it does not hold, one keyword after the other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lmc.fsm.algebra import without
from lmc.fsm.json_keywords import REFERENCES
from lmc.fsm.json_shapes import TYPES, ObjectRule, SchemaPointer, SchemaShape, opposite, unannotated, wrong
from lmc.fsm.json_text import ANY_TEXT, Bounds
from lmc.fsm.regex import NOTHING

if TYPE_CHECKING:
    from lmc.fsm.json_ways import Ways

_MOST_WAYS = 256
_BESIDE = frozenset(("then", "else", "minContains", "maxContains"))  # they modify another keyword
_Negation = Callable[["Ways", SchemaPointer, tuple[str, ...]], Iterable[SchemaShape]]


def negated(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> tuple[SchemaShape, ...]:
    """Return the disjuncts in which a schema does not hold: one keyword after the other."""
    schema = place.schema
    if isinstance(schema, bool):
        return () if schema else (SchemaShape(place.pointer),)
    if not isinstance(schema, dict):
        raise wrong(place.pointer, f"must be a schema, not {json.dumps(schema, default=str)}")
    ways.look(place, refs)
    found: list[SchemaShape] = []
    spoken = ways.spoken(place)
    for keyword in schema:
        if keyword not in spoken or keyword in _BESIDE:
            continue
        if keyword not in _NEGATED or (keyword == "contains" and {"minContains", "maxContains"} & spoken):
            if not ways.wide:
                ways.check_later(f"{place.pointer}/{keyword}", "has no opposite that can be written (in not, if, oneOf, maxContains)")
            return (SchemaShape(place.pointer),)
        found += _NEGATED[keyword](ways, place, (*refs, place.pointer))
    return tuple(found)


def _not_types(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    said = ways.types(place)
    rest = frozenset(TYPES) - said
    return [SchemaShape(place.pointer, types=rest)] if rest else []


def _not_values(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    return [SchemaShape(place.pointer, excluded=ways.values(place) or ())] if ways.values(place) else []


def _not_bounds(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    numbers = frozenset(("number", "integer"))
    sides = [Bounds(high=x, open_high=not is_open) for x, is_open in ways.limits(place, "minimum", "exclusiveMinimum")]
    sides += [Bounds(low=x, open_low=not is_open) for x, is_open in ways.limits(place, "maximum", "exclusiveMaximum")]
    return [SchemaShape(place.pointer, types=numbers, bounds=side) for side in sides]


def _not_counts(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    for kind, field, low, high in _COUNTED:
        least, most = ways.counts(place, low, high)
        for outside in ([(0, least - 1)] if least else []) + ([(most + 1, None)] if most is not None else []):
            yield replace(SchemaShape(place.pointer, types=frozenset((kind,))), **{field: outside})


def _not_pattern(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    rest = without(ANY_TEXT, ways.pattern(place.schema["pattern"], f"{place.pointer}/pattern"), ways.work)
    return [SchemaShape(place.pointer, types=frozenset(("string",)), texts=(rest,))] if rest != NOTHING else []


def _not_required(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    objects = frozenset(("object",))
    return [SchemaShape(place.pointer, types=objects, absent=frozenset((name,))) for name in ways.required(place)]


def _not_dependent(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    for name in ways.dependent(place, "dependentRequired"):
        for other in ways.names_of(place.at("dependentRequired", name)):
            if other != name:
                yield SchemaShape(place.pointer, types=frozenset(("object",)), required=(name,), absent=frozenset((other,)))


def _not_properties(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    [rule] = ways.object_rules(place)
    for name, at in rule.properties.items():
        fails = ObjectRule({name: opposite(at)}, (), None, evaluates=False)
        yield SchemaShape(place.pointer, types=frozenset(("object",)), required=(name,), objects=(fails,))


def _not_contains(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    return [SchemaShape(place.pointer, types=frozenset(("array",)), contains=((place.at("contains"), 0, 0),))]


def _not_any(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    found = [SchemaShape(place.pointer)]
    for i in range(len(ways.list_of(place, "anyOf"))):
        arms = negated(ways, place.at("anyOf", i), refs)
        found = [s for a, b in itertools.product(found, arms) if (s := a.with_(b)) is not None]
        if len(found) > _MOST_WAYS:
            ways.check_later(place.pointer, f"has more than {_MOST_WAYS} ways not to hold")
            return [SchemaShape(place.pointer)]
    return found


def _not_all(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    return [s for i in range(len(ways.list_of(place, "allOf"))) for s in negated(ways, place.at("allOf", i), refs)]


def _not_not(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    return map(unannotated, ways.of_place(place.at("not"), refs))


def _not_one(ways: Ways, place: SchemaPointer, refs: tuple[str, ...]) -> Iterable[SchemaShape]:
    """Negate one arm alone: of several, two may hold."""
    if len(ways.list_of(place, "oneOf")) > 1:
        ways.check_later(f"{place.pointer}/oneOf", "has no opposite that can be written")
        return [SchemaShape(place.pointer)]
    return negated(ways, place.at("oneOf", 0), refs)


def _not_ref(keyword: str) -> _Negation:
    return lambda ways, place, refs: negated(ways, ways.target(place, keyword), refs)


_COUNTED = (
    ("string", "length", "minLength", "maxLength"),
    ("array", "items", "minItems", "maxItems"),
    ("object", "size", "minProperties", "maxProperties"),
)


def _one_by_one(keyword: str, negation: _Negation) -> _Negation:
    """Negate a rule that involves several keywords: this one alone."""
    return lambda ways, place, refs: negation(ways, replace(place, schema={keyword: place.schema[keyword]}), refs)


_NEGATED: Mapping[str, _Negation] = {
    "type": _not_types,
    "pattern": _not_pattern,
    "required": _not_required,
    "dependentRequired": _not_dependent,
    "contains": _not_contains,
    "anyOf": _not_any,
    "allOf": _not_all,
    "not": _not_not,
    "oneOf": _not_one,
    **{k: _not_ref(k) for k in REFERENCES},
    **{k: _one_by_one(k, _not_values) for k in ("enum", "const")},
    **{k: _one_by_one(k, _not_properties) for k in ("properties",)},
    "minimum": _not_bounds,
    "maximum": _not_bounds,
    "exclusiveMinimum": _not_bounds,
    "exclusiveMaximum": _not_bounds,
    **{k: _one_by_one(k, _not_counts) for _, _, low, high in _COUNTED for k in (low, high)},
}  # negation of each keyword; that of others (formats, of which ours are subsets; items; …) cannot be written
