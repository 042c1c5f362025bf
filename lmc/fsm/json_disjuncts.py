"""Disjuncts of schemas: the shape of each path through anyOf, oneOf, allOf, if and $ref, and their combinations; and
those in which a schema does not hold. Consequences of several schemas are here, those of one keyword in json_keywords.

    anyOf [{A}, {B}], allOf [{C}, {D}]   ─►   shape(A, C, D), shape(B, C, D)
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from lmc.errors import ConstraintError
from lmc.fsm.algebra import without
from lmc.fsm.bounds import TooLarge, TransitionBudget
from lmc.fsm.json_disjointness import not_apart
from lmc.fsm.json_keywords import COUNTED, PLAIN, REFERENCES, Keywords, Notes
from lmc.fsm.json_references import References
from lmc.fsm.json_shapes import TYPES, All, ObjectRule, SchemaPointer, SchemaShape, combined, opposite, rules_of, unannotated, without_unevaluated, wrong
from lmc.fsm.json_text import ANY_TEXT, Bounds
from lmc.fsm.nodes import NOTHING

MOST_SHAPES = 256
_MOST_PRODUCT = 5_000  # most combinations visited
_FEW_SHAPES = 8  # of more it pays to check which are possible
_MOST_LOOKS = 12_000  # most schemas visited: half a second
_MOST_TOGETHER = 32  # combinations of arms of anyOf that hold at once
_UNEVALUATED = frozenset(("unevaluatedProperties", "unevaluatedItems"))
_COMBINED = 4  # combinations of schemas that take as long as visiting one
_MOST_WAYS = 256  # not to hold
_BESIDE = frozenset(("then", "else", "minContains", "maxContains"))  # they modify another keyword


class Ways(Keywords):
    """The disjuncts of the schemas of one root.

    wide   shapes have at least the values of JSON Schema, to prove that a value is not of a schema; else at most those,
          and fewer where others are not meant: types or properties that the keywords do not mention
    work   remaining budget for combining languages
    """

    def __init__(self, references: References, wide: bool = False, notes: Notes | None = None) -> None:
        super().__init__(references, wide, notes or Notes())
        self.work = TransitionBudget()
        self._known: dict[tuple[str, ...], tuple[SchemaShape, ...]] = {}
        self.apart: dict[Hashable, bool] = {}  # disjointness of compared languages
        self._deciding = False  # deciding which shapes are impossible
        self._widely: Ways | None = None

    @property
    def widely(self) -> Ways:
        if self.wide:
            return self
        if self._widely is None:
            self._widely = Ways(self.references, wide=True)
            self._widely.work = self.work
        return self._widely

    def shapes(self, places: All, refs: tuple[str, ...] = ()) -> tuple[SchemaShape, ...]:
        """Return the disjuncts in which all of `places` hold."""
        places = tuple([self.references.first(place) for place in places])
        key = tuple(p.pointer for p in places)
        if not refs and key in self._known:
            return self._known[key]
        found: Sequence[SchemaShape] = [SchemaShape(places[0].pointer if places else "")]
        for i, place in enumerate(places):
            arms = self.of_place(place, refs)
            if i or any(arm.pointer != place.pointer for arm in arms):
                found = self._combined(place, found, arms)
            else:  # of one schema nothing is to be combined
                found = [arm for arm in arms if arm.has_values]
        if not refs:
            self._known[key] = tuple(found)
        return tuple(found)

    def _combined(self, place: SchemaPointer, found: Sequence[SchemaShape], arms: Sequence[SchemaShape]) -> Sequence[SchemaShape]:
        """Return the conjunctions of shapes with the disjuncts of a schema beside them; the shapes alone, and the schema is checked later, where
        they would be too many."""
        if len(found) * len(arms) <= _MOST_PRODUCT:
            self.count(place, len(found) * len(arms) // _COMBINED)
            both = combined(found, arms)
            if len(both := self.possible(both) if len(both) > _FEW_SHAPES else both) <= MOST_SHAPES:
                return both
        self.check_later(place.pointer, f"has more than {MOST_SHAPES} ways through anyOf, oneOf and allOf")
        return found

    def look(self, place: SchemaPointer, refs: tuple[str, ...]) -> None:
        if place.pointer in refs:
            raise wrong(place.pointer, "refers to itself with nothing between")
        self.count(place, 1)

    def count(self, place: SchemaPointer, looks: int) -> None:
        self.work.looks += looks
        if self.work.looks > _MOST_LOOKS:
            raise wrong(
                place.pointer, "is one of too many schemas that combine others, each of them several times; use fewer $ref within anyOf, oneOf and allOf"
            )

    def of_place(self, place: SchemaPointer, refs: tuple[str, ...]) -> tuple[SchemaShape, ...]:
        schema = place.schema
        if schema is True:
            return (SchemaShape(place.pointer),)
        if schema is False:
            return ()
        if not isinstance(schema, dict):
            raise wrong(place.pointer, f"must be a schema, not {json.dumps(schema, default=str)}")
        self.look(place, refs)
        refs = (*refs, place.pointer)
        spoken = self.spoken(place)
        if self.references.overrides and "$ref" in spoken:
            return self.of_place(self.target(place), refs)
        if spoken <= PLAIN:
            return () if (shape := self.plain(place)) is None else (shape,)
        found: Sequence[SchemaShape] = [shape] if (shape := self.plain(place)) is not None else []
        for keyword in REFERENCES:
            if keyword in schema:
                found = self._combined(place, found, self.of_place(self.target(place, keyword), refs))
        for i in range(len(self.list_of(place, "allOf"))):
            found = self._combined(place, found, self.of_place(place.at("allOf", i), refs))
        for keyword in ("anyOf", "oneOf"):
            if keyword not in schema:
                continue
            arms = [self.of_place(place.at(keyword, i), refs) for i in range(len(self.list_of(place, keyword)))]
            if keyword == "oneOf" and not self.wide and (pair := self._together(place, found, arms)) is not None:
                arms = self._exactly_one(place, arms, pair, refs)
            together = keyword == "anyOf" and not _UNEVALUATED.isdisjoint(schema)
            found = self._combined(place, found, _some_together(arms) if together else [s for arm in arms for s in arm])
        if not self.wide:
            for arms in self.conditions(place, refs):
                found = self._combined(place, found, arms)
            found = [self._evaluated(shape, place) for shape in found]
        if schema.get("nullable") is True:
            found = [*found, SchemaShape(place.pointer, types=frozenset(("null",)))]
        return tuple(found)

    def _together(self, place: SchemaPointer, found: Sequence[SchemaShape], arms: Sequence[Sequence[SchemaShape]]) -> tuple[int, int] | None:
        try:
            return not_apart(self, place, found, arms)
        except TooLarge:
            return 0, 1

    def _evaluated(self, shape: SchemaShape, place: SchemaPointer) -> SchemaShape:
        if place.schema.get("unevaluatedItems", True) is not True and shape.contains and self.references.draft >= 2020:
            self.check_later(f"{place.pointer}/unevaluatedItems", "stands beside contains")
            place = replace(place, schema={k: v for k, v in place.schema.items() if k != "unevaluatedItems"})
        return without_unevaluated(shape, place)

    def _exactly_one(
        self, place: SchemaPointer, arms: Sequence[Sequence[SchemaShape]], together: tuple[int, int], refs: tuple[str, ...]
    ) -> Sequence[Sequence[SchemaShape]]:
        """Return arms of a oneOf that may hold together, each without the others; unchanged, and checked later, where
        that cannot be written."""
        trial = Ways(self.references, notes=Notes(strict=True))
        trial.work = self.work
        try:
            others = [negated(trial, place.at("oneOf", i), refs) for i in range(len(arms))]
            alone: list[Sequence[SchemaShape]] = []
            for i, arm in enumerate(arms):
                found = list(arm)
                for j, other in enumerate(others):
                    if i != j:
                        found = combined(found, map(unannotated, other))
                    if len(found) > _FEW_SHAPES * 2:
                        raise TooLarge
                alone.append(found)
            return alone
        except (ConstraintError, TooLarge):
            self.check_later(f"{place.pointer}/oneOf", f"has arms, {together[0]} and {together[1]}, that may hold together")
            return arms

    def possible(self, found: Sequence[SchemaShape]) -> Sequence[SchemaShape]:
        """Return the shapes without those that need an impossible property: `kind` cannot be "a" and "b" at once."""
        if self._deciding:  # about a property of a recursive schema
            return found
        self._deciding = True
        try:
            return [s for s in found if all(not (said := rules_of(s, n)) or self.shapes(said) for n in s.required)]
        finally:
            self._deciding = False

    def conditions(self, place: SchemaPointer, refs: tuple[str, ...]) -> Iterator[Sequence[SchemaShape]]:
        """Return the conditional keywords: what must hold if something else does or does not; all of them hold."""
        schema = place.schema
        if "not" in schema:
            yield negated(self, place.at("not"), refs)
        if "if" in schema:
            given, otherwise = self.of_place(place.at("if"), refs), negated(self, place.at("if"), refs)
            then, else_ = (self.of_place(place.at(k), refs) if k in schema else (SchemaShape(place.pointer),) for k in ("then", "else"))
            yield combined(given, then) + combined(otherwise, else_)
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name in self.dependent(place, keyword):
                there, at = SchemaShape(place.pointer, required=(name,)), place.at(keyword, name)
                if isinstance(at.schema, list):
                    more: Sequence[SchemaShape] = [SchemaShape(place.pointer, required=self.names_of(at))]
                else:
                    more = self.of_place(at, refs)
                yield [SchemaShape(place.pointer, absent=frozenset((name,))), *combined([there], more)]


def _some_together(arms: Sequence[Sequence[SchemaShape]]) -> Sequence[SchemaShape]:
    """Return the disjuncts in which one arm of anyOf holds, or several do at once, so that what each of them evaluates counts; those of one
    alone where there are many."""
    found = [s for arm in arms for s in arm]
    if math.prod(1 + len(arm) for arm in arms) <= _MOST_TOGETHER:
        for count in range(2, len(arms) + 1):
            for some in itertools.combinations(arms, count):
                found += functools.reduce(combined, some)
    return found


# -- negation ------------------------------------------------------------------------------------------------------

_Negation = Callable[[Ways, SchemaPointer, tuple[str, ...]], Iterable[SchemaShape]]


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
    for kind, field, low, high in COUNTED:
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
        found = combined(found, arms)
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
    "properties": _one_by_one("properties", _not_properties),
    "minimum": _not_bounds,
    "maximum": _not_bounds,
    "exclusiveMinimum": _not_bounds,
    "exclusiveMaximum": _not_bounds,
    **{k: _one_by_one(k, _not_counts) for _, _, low, high in COUNTED for k in (low, high)},
}  # negation of each keyword; that of others (formats, of which ours are subsets; items; …) cannot be written
