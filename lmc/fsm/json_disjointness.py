"""Membership in a shape, and provable disjointness of shapes: decisions on values and languages, for oneOf, enum and
const."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

from lmc.fsm.algebra import are_apart, both, minimised, repeated_other_than, without
from lmc.fsm.bounds import TransitionBudget
from lmc.fsm.counted import counted
from lmc.fsm.json_shapes import (
    All,
    SchemaPointer,
    SchemaShape,
    combined,
    has_text,
    is_possible,
    is_within,
    items_of,
    opposite,
    rules_of,
    same,
    type_of,
)
from lmc.fsm.json_text import limited
from lmc.fsm.nodes import ANY, EMPTY, NOTHING, Chars, Concat, Node, Repeat, one_of, repeat, text

_OBJECT = frozenset(("object",))
_MOST_PAIRS = 20_000  # of shapes that are compared


class Disjuncts(Protocol):
    """The disjuncts of schemas (json_disjuncts.py)."""

    work: TransitionBudget
    apart: dict[Hashable, bool]  # disjointness of compared languages

    @property
    def widely(self) -> Disjuncts:
        """Return those that have at least the values of JSON Schema."""
        ...

    def shapes(self, places: All, refs: tuple[str, ...] = ()) -> tuple[SchemaShape, ...]: ...

    def of_place(self, place: SchemaPointer, refs: tuple[str, ...]) -> tuple[SchemaShape, ...]: ...


def not_apart(ways: Disjuncts, place: SchemaPointer, base: Sequence[SchemaShape], arms: Sequence[Sequence[SchemaShape]]) -> tuple[int, int] | None:
    """Return the first two arms of oneOf that might hold together; None if values written for one are surely not of
    another."""
    if math.prod((len(base), sum(map(len, arms)) ** 2)) > _MOST_PAIRS:
        return 0, 1
    within = [combined(base, arm) for arm in arms]
    wide = [ways.widely.of_place(place.at("oneOf", i), ()) for i in range(len(arms))]
    said = [[(s, _kinds(ways, s)) for s in arm] for arm in within]
    said_widely = [[(s, _kinds(ways.widely, s)) for s in arm] for arm in wide]
    for i, j in itertools.permutations(range(len(arms)), 2):
        for (a, kinds), (b, others) in itertools.product(said[i], said_widely[j]):
            if any(name in others and kinds[name].isdisjoint(others[name]) for name in kinds):
                continue  # as of most that are meant to be apart
            if not _apart(ways, a, b, 3):
                return min(i, j), max(i, j)
    return None


def _kinds(ways: Disjuncts, shape: SchemaShape) -> Mapping[str, frozenset[str]]:
    """Return the texts that properties of each object of a shape have one of; nothing of a shape of other values, too."""
    found: dict[str, frozenset[str]] = {}
    for name in shape.required if shape.types == _OBJECT else ():
        values = [s.values for s in ways.shapes(rules_of(shape, name))]
        kinds = [v for some in values if some is not None for v in some]
        if None not in values and all(isinstance(v, str) for v in kinds):
            found[name] = frozenset(kinds)
    return found


def _apart(ways: Disjuncts, a: SchemaShape, b: SchemaShape, depth: int) -> bool:
    """Return whether surely nothing is of `a` and of `b`, which is a wide shape."""
    if a.values is not None:
        return not any(admits(ways.widely, b, v) for v in a.values if admits(ways, a, v))
    if b.values is not None:
        return not any(admits(ways, a, v) for v in b.values if admits(ways.widely, b, v))
    return all(_apart_as(ways, kind, a, b, depth) for kind in a.types & b.types)


def _apart_as(ways: Disjuncts, kind: str, a: SchemaShape, b: SchemaShape, depth: int) -> bool:
    if kind in ("integer", "number"):
        return a.bounds.apart(b.bounds)
    if kind == "string":
        key = a.texts, a.length, a.excluded_texts, b.texts, b.length, b.excluded_texts
        if (found := ways.apart.get(key)) is None:
            found = ways.apart[key] = are_apart(characters(ways.work, a), characters(ways.work, b), ways.work)
        return found
    if kind == "object":
        return depth > 0 and (_needs_apart(ways, a, b, depth) or _needs_absent(ways, a, b) or _needs_absent(ways, b, a))
    if kind == "array":
        return any(x.items[1] is not None and y.items[0] > x.items[1] for x, y in ((a, b), (b, a)))
    return False


def _needs_apart(ways: Disjuncts, a: SchemaShape, b: SchemaShape, depth: int) -> bool:
    return any(
        all(_apart(ways, x, y, depth - 1) for x in ways.shapes(rules_of(a, n)) for y in ways.widely.shapes(rules_of(b, n)))
        for n in a.required
        if n in b.required
    )


def _needs_absent(ways: Disjuncts, a: SchemaShape, b: SchemaShape) -> bool:
    """Return whether `a` needs a property that `b` excludes."""
    return any(n in b.absent or not ways.widely.shapes(rules_of(b, n)) for n in a.required)


def admits(ways: Disjuncts, shape: SchemaShape, value: Any) -> bool:
    """Return whether a value is of a shape; unspecified parts are allowed."""
    kind = type_of(value)
    if kind not in shape.types or (shape.values is not None and not any(same(value, v) for v in shape.values)):
        return False
    if any(same(value, v) for v in shape.excluded):
        return False
    if kind in ("integer", "number"):
        return shape.bounds.contains(Decimal(value))
    if kind == "string":
        return is_within(shape.length, len(value)) and all(has_text(t, value) for t in shape.texts)
    if kind == "array":
        return (
            is_within(shape.items, len(value))
            and (not shape.arrays or all(admit(ways, items_of(shape, i), v) for i, v in enumerate(value)))
            and not (shape.unique and any(same(x, y) for x, y in itertools.combinations(value, 2)))
            and all(_has_so_many(ways, value, *contains) for contains in shape.contains)
        )
    if kind == "object":
        return (
            is_within(shape.size, len(value))
            and all(name in value for name in shape.required)
            and shape.absent.isdisjoint(value)
            and all(admit(ways, rules_of(shape, n), v) and admit(ways, shape.names, n) for n, v in value.items())
        )
    return True


def _has_so_many(ways: Disjuncts, items: Sequence[Any], place: SchemaPointer, least: int, most: int | None) -> bool:
    """Return whether surely so many of the items are of a schema."""
    sure = sum(admit(ways, (place,), item) for item in items)
    return least <= sure and (most is None or len(items) - sum(admit(ways, (opposite(place),), item) for item in items) <= most)


def admit(ways: Disjuncts, places: All, value: Any) -> bool:
    return not places or any(admits(ways, s, value) for s in ways.shapes(places))


def characters(work: TransitionBudget, shape: SchemaShape) -> Node:
    """Return the characters of the strings of a shape."""
    key = shape.texts, shape.length, shape.excluded_texts
    if (found := work.languages.get(key)) is None:
        found = work.languages[key] = _characters(work, shape)
    return found


def _characters(work: TransitionBudget, shape: SchemaShape) -> Node:
    if not is_possible(shape.length):
        return NOTHING
    languages = list(shape.texts)
    if not languages:
        return but(work, repeat(ANY, *shape.length), shape.excluded_texts)
    is_counted = shape.length != (0, None)
    for i, language in enumerate(languages if is_counted else ()):
        if (part := limited(language, *shape.length)) is not None:
            languages[i], is_counted = part, False
            break
    found = languages[0]
    for language in languages[1:]:
        found = both(found, language, work) if found != NOTHING and language != NOTHING else NOTHING
    if is_counted and found != NOTHING:
        found = counted(minimised(found, work), *shape.length)
    return but(work, found, shape.excluded_texts)


def but(work: TransitionBudget, language: Node, texts: Sequence[str]) -> Node:
    """Return a language of characters without some texts."""
    whole = language.parts[0] if isinstance(language, Concat) and len(language.parts) == 1 else language
    if texts and isinstance(whole, Repeat) and isinstance(whole.body, Chars):
        return repeated_other_than(texts, whole.body, whole.low, whole.high)
    return less(work, language, [text(v) if v else EMPTY for v in texts])


def less(work: TransitionBudget, language: Node, texts: Sequence[Node]) -> Node:
    return without(language, one_of(texts), work) if texts and language != NOTHING else language
