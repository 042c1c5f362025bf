"""Shapes of a JSON schema: conjunctions of plain keywords, without those that combine schemas."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any

from lmc.errors import ConstraintError
from lmc.fsm.grammar import Grammar
from lmc.fsm.json_text import FREE, Bounds
from lmc.fsm.lazy import LazyDFA
from lmc.fsm.nodes import Node

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
JSON_NUMBER = int | float | Decimal


def wrong(pointer: str, what: str) -> ConstraintError:
    return ConstraintError(f"json_schema: {pointer or '/'} {what}")


@dataclass(frozen=True)
class SchemaPointer:
    """A schema and the JSON pointer to it."""

    schema: Any
    pointer: str

    def at(self, *steps: str | int) -> SchemaPointer:
        found, pointer = self.schema, self.pointer
        for step in steps:
            found, step = found[step], str(step)
            pointer += "/" + (step.replace("~", "~0").replace("/", "~1") if "~" in step or "/" in step else step)
        return SchemaPointer(found, pointer)


All = tuple[SchemaPointer, ...]  # schemas that hold together


@dataclass(frozen=True)
class ObjectRule:
    """One schema's rules for properties.

    others      additionalProperties, if it is there
    evaluates   the schema holds, rather than fails: its properties are not "unevaluated"
    """

    properties: Mapping[str, SchemaPointer]
    patterns: tuple[tuple[Node, SchemaPointer], ...]
    others: SchemaPointer | None
    evaluates: bool = True

    def of(self, name: str) -> All:
        found = [self.properties[name]] if name in self.properties else []
        found += [place for language, place in self.patterns if has_text(language, name)]
        return tuple(found) if found or self.others is None else (self.others,)


@dataclass(frozen=True)
class ArrayRule:
    """One schema's rules for items; `rest` for those after `first`, if given."""

    first: tuple[SchemaPointer, ...]
    rest: SchemaPointer | None
    evaluates: bool = True

    def of(self, index: int) -> All:
        if index < len(self.first):
            return (self.first[index],)
        return () if self.rest is None else (self.rest,)


@dataclass(frozen=True)
class SchemaShape:
    """Keywords without those that combine: every one must hold.

    types    "number" without "integer": non-integers
    typed    they are given; else they are those that the keywords speak of
    values   enum and const, None if there is neither
    """

    pointer: str
    types: frozenset[str] = frozenset(TYPES)
    values: tuple[Any, ...] | None = None
    bounds: Bounds = FREE
    length: tuple[int, int | None] = (0, None)
    texts: tuple[Node, ...] = ()  # languages of characters, from patterns and formats
    objects: tuple[ObjectRule, ...] = ()
    required: tuple[str, ...] = ()
    names: All = ()
    size: tuple[int, int | None] = (0, None)  # number of properties
    arrays: tuple[ArrayRule, ...] = ()
    items: tuple[int, int | None] = (0, None)  # number of items
    unique: bool = False
    excluded: tuple[Any, ...] = ()  # excluded values
    absent: frozenset[str] = frozenset()  # absent properties
    contains: tuple[tuple[SchemaPointer, int, int | None], ...] = ()  # how many items are of a schema
    typed: bool = True

    @property
    def has_values(self) -> bool:
        """As far as is soon seen."""
        return bool(self.types) and self.values != () and self.absent.isdisjoint(self.required)

    @property
    def excluded_texts(self) -> tuple[str, ...]:
        return tuple([v for v in self.excluded if isinstance(v, str)])

    def with_(self, other: SchemaShape) -> SchemaShape | None:
        """Return the conjunction of both; None if it is impossible."""
        types = self.types & other.types
        if not types and not (self.typed and other.typed):  # nothing is said of values of other types
            types = (self.types if self.typed else frozenset[str]()) | (other.types if other.typed else frozenset[str]())
            types = types or self.types | other.types
        values = self.values
        if values is None:
            values = other.values
        elif other.values is not None:
            values = tuple(v for v in values if any(same(v, w) for w in other.values))
        excluded, absent = self.excluded + other.excluded, self.absent | other.absent
        if values is not None and excluded:
            values = tuple(v for v in values if not any(same(v, w) for w in excluded))
        required = tuple(dict.fromkeys(self.required + other.required))
        if not types or values == () or not absent.isdisjoint(required):
            return None
        bounds = self.bounds.both(other.bounds)
        return SchemaShape(
            self.pointer, types, values, bounds, _range(self.length, other.length), self.texts + other.texts,
            self.objects + other.objects, required, self.names + other.names,
            _range(self.size, other.size), self.arrays + other.arrays, _range(self.items, other.items),
            self.unique or other.unique, excluded, absent, self.contains + other.contains, self.typed or other.typed,
        )  # fmt: skip


def combined(some: Iterable[SchemaShape], others: Iterable[SchemaShape]) -> list[SchemaShape]:
    """Return the conjunctions of each of some shapes with each of the others, without impossible ones."""
    return [both for a, b in itertools.product(some, others) if (both := a.with_(b)) is not None]


def unannotated(shape: SchemaShape) -> SchemaShape:
    """As under a `not`: its properties and items do not count as "evaluated"."""
    return replace(
        shape,
        objects=tuple([replace(rule, evaluates=False) for rule in shape.objects]),
        arrays=tuple([replace(rule, evaluates=False) for rule in shape.arrays]),
    )


def without_unevaluated(shape: SchemaShape, place: SchemaPointer) -> SchemaShape:
    """Apply `unevaluatedProperties` and `unevaluatedItems` of a schema to everything that the schema itself does not
    evaluate on any path through it. Schemas beside it may constrain that further, and nothing else."""
    if "unevaluatedProperties" not in place.schema and "unevaluatedItems" not in place.schema:
        return shape
    anything = SchemaPointer(True, f"{place.pointer}/(evaluated)")
    if place.schema.get("unevaluatedProperties", True) is not True:
        rules = [rule for rule in shape.objects if rule.evaluates]
        if all(rule.others is None for rule in rules):
            names = {name: anything for rule in rules for name in rule.properties}
            patterns = tuple((language, anything) for rule in rules for language, _ in rule.patterns)
            shape = replace(shape, objects=(*shape.objects, ObjectRule(names, patterns, place.at("unevaluatedProperties"))))
    rules = [rule for rule in shape.arrays if rule.evaluates]
    if place.schema.get("unevaluatedItems", True) is not True and all(rule.rest is None for rule in rules):
        known = max((len(rule.first) for rule in rules), default=0)
        shape = replace(shape, arrays=(*shape.arrays, ArrayRule((anything,) * known, place.at("unevaluatedItems"))))
    return shape


def _range(a: tuple[int, int | None], b: tuple[int, int | None]) -> tuple[int, int | None]:
    highs = [x for x in (a[1], b[1]) if x is not None]
    return max(a[0], b[0]), min(highs, default=None)


def same(a: Any, b: Any) -> bool:
    """Return whether values are equal as JSON: true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, JSON_NUMBER) and isinstance(b, JSON_NUMBER):
        return a == b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


def type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, JSON_NUMBER):
        whole = value.to_integral_value() if isinstance(value, Decimal) else int(value)  # int() of 1e999999999 takes for ever
        return "integer" if value == whole else "number"
    return {str: "string", list: "array", dict: "object", type(None): "null"}[type(value)]


def has_text(language: Node, value: str) -> bool:
    return _built(language).accepts(value.encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=256)
def _built(language: Node) -> LazyDFA:
    return LazyDFA(Grammar(language))


def opposite(place: SchemaPointer) -> SchemaPointer:
    return SchemaPointer({"not": place.schema}, f"{place.pointer}/(not)")


def counts_behind(shape: SchemaShape, counts: tuple[int, ...]) -> Iterator[tuple[All, tuple[int, ...]]]:
    """Yield the schemas of one more item, and the counts for each schema after it. Without an upper bound an item of
    the schema need not count, and no more are counted than are needed."""
    for chosen in itertools.product((True, False), repeat=len(counts)):
        after = tuple(n + yes if most is not None else min(n + yes, least) for n, yes, (_, least, most) in zip(counts, chosen, shape.contains))
        if all(most is None or n <= most for n, (_, _, most) in zip(after, shape.contains)):
            said = zip(chosen, shape.contains)
            yield tuple(place if yes else opposite(place) for yes, (place, _, most) in said if yes or most is not None), after


def rules_of(shape: SchemaShape, name: str) -> All:
    return tuple(p for rule in shape.objects for p in rule.of(name))


def items_of(shape: SchemaShape, index: int) -> All:
    return tuple(p for rule in shape.arrays for p in rule.of(index))


def is_within(limits: tuple[int, int | None], count: int) -> bool:
    return limits[0] <= count and (limits[1] is None or count <= limits[1])


def is_possible(limits: tuple[int, int | None]) -> bool:
    return limits[1] is None or limits[0] <= limits[1]
