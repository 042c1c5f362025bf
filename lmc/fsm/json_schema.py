"""JSON schemas as grammars: which texts are instances. Compiles; what a keyword means is here, how values are written in json_text.

    schema ─► shapes (conjunctions of plain keywords, one for each way through anyOf and $ref) ─► trees ─► Grammar

The texts are what json.dumps(value, ensure_ascii=False) writes, properties in the order of the schema. Objects have the
properties that the schema names and no others unless it says `additionalProperties`. Every keyword is enforced or refused
by name and place; nothing is ignored but annotations.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

from lmc.errors import ConstraintError
from lmc.fsm.algebra import both, without
from lmc.fsm.bounds import TooLarge, Work
from lmc.fsm.completion import all_endings
from lmc.fsm.dfa import build
from lmc.fsm.grammar import MAX_NODES, Grammar
from lmc.fsm.json_keywords import NOTES, OPTIONS, Keywords
from lmc.fsm.json_layout import Layout
from lmc.fsm.json_shapes import (
    TYPES,
    All,
    ObjectRule,
    Place,
    Shape,
    counts_behind,
    has_text,
    is_within,
    items_of,
    opposite,
    rules_of,
    same,
    type_of,
    without_unevaluated,
    wrong,
)
from lmc.fsm.json_text import (
    ANY_TEXT,
    Bounds,
    free_string,
    integer,
    lengths,
    number,
    one_of,
    optional,
    parts_of,
    repeat,
    seq,
    string,
    string_of,
    text,
)
from lmc.fsm.regex import ANY, EMPTY, NOTHING, Graph, Node, Ref, parse

_MOST_SHAPES = 256
_FEW_SHAPES = 8  # of more it is worth while to see which are possible
_MOST_LOOKS = 30_000  # at schemas: a second or two
_MOST_NODES = 2 * MAX_NODES  # of a tree, what is shared counted each time
_MOST_UNIQUE = 8  # values of an array of unique items: one state for each set of them
_MOST_PARTS = 64  # of the names that patternProperties speak of, by which of the patterns match
_MOST_COUNTED = 4096  # states of an array whose items are counted
_MOST_DIGITS = 300  # of a number; doubles have no more
_DECIMALS = parse(r"-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?")  # where some numbers are excluded: doubles tell these apart


@lru_cache(1)  # an automaton that turns out too large is written as EBNF next
def compile_schema(source: str) -> tuple[Grammar, int | None]:
    """The grammar of a schema given as JSON text, and the depth that it asks recursion to be cut at.

    Raises ConstraintError, with the JSON pointer, for what is not a schema, what cannot be enforced, and what allows nothing.
    """
    try:
        root = json.loads(source, parse_float=_decimal, parse_constant=_no_constant)
    except json.JSONDecodeError as e:
        raise ConstraintError(f"json_schema is not JSON: {e.msg} at line {e.lineno}, column {e.colno}") from None
    except RecursionError:
        raise ConstraintError("json_schema is nested too deep") from None
    if not isinstance(root, dict | bool):
        raise ConstraintError(f"json_schema must be a JSON object, not {type(root).__name__}")
    compiler = _Compiler(root, Layout.of(root))
    try:
        return compiler.grammar(), compiler.layout.depth
    except RecursionError:
        raise ConstraintError("json_schema is nested too deep") from None
    except TooLarge:
        raise ConstraintError("json_schema needs too large an automaton; use smaller lengths and simpler patterns") from None


def _decimal(digits: str) -> Decimal:
    found = Decimal(digits)
    if abs(found.adjusted()) > _MOST_DIGITS:
        raise ConstraintError(f"json_schema: {digits} has more than {_MOST_DIGITS} digits")
    return found


def _no_constant(name: str) -> None:
    raise ConstraintError(f"json_schema: {name} is not JSON")


def _says_nothing(place: Place) -> bool:
    schema = place.schema
    return schema is True or (isinstance(schema, dict) and not set(schema) - NOTES - ({OPTIONS} if not place.pointer else set()))


class _Compiler(Keywords):
    """Compiles one schema; `rules` are the schemas that lead back to themselves.

    wide   shapes have at least the values that JSON Schema says, to tell what is surely not of a schema; else at most those, and
           less where it would write what nobody means: other types than the keywords speak of, other properties
    """

    def __init__(self, root: Any, layout: Layout, wide: bool = False) -> None:
        super().__init__(root, wide)
        self.layout = layout
        self.rules: dict[str, Node] = {}
        self.made: dict[tuple[str, ...], Node] = {}
        self.open: dict[tuple[str, ...], bool] = {}  # being compiled; True: named from inside
        self.known: dict[tuple[str, ...], tuple[Shape, ...]] = {}
        self.sizes: dict[int, tuple[Node, int]] = {}  # by id
        self.looked = 0  # at schemas
        self.work = Work()
        self.deciding = False  # which shapes cannot be

    def grammar(self) -> Grammar:
        start = self.node((Place(self.root, ""),))
        if start == NOTHING:
            raise wrong("", "allows no value at all")
        return Grammar(start, self.rules)

    # -- schemas to shapes --

    def shapes(self, places: All, refs: tuple[str, ...] = ()) -> tuple[Shape, ...]:
        """The ways in which all of `places` can hold."""
        key = tuple(p.pointer for p in places)
        if not refs and key in self.known:
            return self.known[key]
        found: list[Shape] = [Shape(places[0].pointer if places else "")]
        for place in places:
            arms = self.of_place(place, refs)
            found = [s for a, b in itertools.product(found, arms) if (s := a.with_(b)) is not None]
            if len(found) > _MOST_SHAPES:
                raise _too_many(place)
        if not refs:
            self.known[key] = tuple(found)
        return tuple(found)

    def look(self, place: Place, refs: tuple[str, ...]) -> None:
        if place.pointer in refs:
            raise wrong(place.pointer, "refers to itself with nothing between")
        self.looked += 1
        if self.looked > _MOST_LOOKS:
            raise wrong(place.pointer, "is one of too many schemas that combine others, each of them several times; use fewer $ref within anyOf, oneOf and allOf")

    def of_place(self, place: Place, refs: tuple[str, ...]) -> tuple[Shape, ...]:
        schema = place.schema
        if schema is True:
            return (Shape(place.pointer),)
        if schema is False:
            return ()
        if not isinstance(schema, dict):
            raise wrong(place.pointer, f"must be a schema, not {json.dumps(schema, default=str)}")
        self.look(place, refs)
        refs = (*refs, place.pointer)
        for keyword in schema:
            self.check_keyword(place, keyword)
        found: list[Shape] = [shape] if (shape := self.plain(place)) is not None else []

        def and_(arms: Sequence[Shape]) -> None:
            found[:] = [s for a, b in itertools.product(found, arms) if (s := a.with_(b)) is not None]
            if len(found) > _FEW_SHAPES:
                found[:] = self.possible(found)
            if len(found) > _MOST_SHAPES:
                raise _too_many(place)

        if "$ref" in schema:
            and_(self.of_place(self.target(place), refs))
        for i in range(len(self.list_of(place, "allOf"))):
            and_(self.of_place(place.at("allOf", i), refs))
        for keyword in ("anyOf", "oneOf"):
            if keyword not in schema:
                continue
            arms = [self.of_place(place.at(keyword, i), refs) for i in range(len(self.list_of(place, keyword)))]
            if keyword == "oneOf" and not self.wide:
                self.check_apart(place, found, arms)
            and_([s for arm in arms for s in arm])
        if not self.wide:
            for arms in self.conditions(place, refs):
                and_(arms)
            found = [without_unevaluated(shape, place) for shape in found]
        if schema.get("nullable") is True:
            found.append(Shape(place.pointer, types=frozenset(("null",))))
        return tuple(found)

    def possible(self, found: Sequence[Shape]) -> Sequence[Shape]:
        """Without those that need a property which cannot be: `kind` is not "a" and "b" at once."""
        if self.deciding:  # about a property of a schema that is within itself
            return found
        self.deciding = True
        try:
            return [s for s in found if all(not (said := rules_of(s, n)) or self.shapes(said) for n in s.required)]
        finally:
            self.deciding = False

    def conditions(self, place: Place, refs: tuple[str, ...]) -> Iterator[Sequence[Shape]]:
        """The keywords that say what must hold if something else does or does not; all of them hold."""
        schema = place.schema
        if "not" in schema:
            yield self.negated(place.at("not"), refs)
        if "if" in schema:
            yield [
                s
                for holds, then in ((self.of_place, "then"), (self.negated, "else"))
                for a in holds(place.at("if"), refs)
                for b in (self.of_place(place.at(then), refs) if then in schema else (Shape(place.pointer),))
                if (s := a.with_(b)) is not None
            ]
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name in self.dependent(place, keyword):
                there, at = Shape(place.pointer, required=(name,)), place.at(keyword, name)
                if isinstance(at.schema, list):
                    more: Sequence[Shape] = [Shape(place.pointer, required=self.names_of(at))]
                else:
                    more = self.of_place(at, refs)
                with_it = [s for m in more if (s := there.with_(m)) is not None]
                yield [Shape(place.pointer, absent=frozenset((name,))), *with_it]

    def dependent(self, place: Place, keyword: str) -> Mapping[str, Any]:
        found = place.schema.get(keyword, {})
        if not isinstance(found, dict):
            raise wrong(f"{place.pointer}/{keyword}", "must be an object")
        for name, value in found.items():
            if isinstance(value, list) != (keyword == "dependentRequired") and keyword != "dependencies":
                what = "a list of names" if keyword == "dependentRequired" else "a schema"
                raise wrong(f"{place.pointer}/{keyword}/{name}", f"must be {what}")
        return found

    # -- what a schema excludes --

    def negated(self, place: Place, refs: tuple[str, ...]) -> tuple[Shape, ...]:
        """The ways in which a schema does not hold: one keyword after the other."""
        schema = place.schema
        if isinstance(schema, bool):
            return () if schema else (Shape(place.pointer),)
        if not isinstance(schema, dict):
            raise wrong(place.pointer, f"must be a schema, not {json.dumps(schema, default=str)}")
        self.look(place, refs)
        found: list[Shape] = []
        for keyword in schema:
            self.check_keyword(place, keyword)
            if keyword in NOTES:
                continue
            if keyword not in _NEGATED or (keyword == "contains" and {"minContains", "maxContains"} & set(schema)):
                raise wrong(place.pointer, f"has the keyword {keyword!r}, of which the opposite cannot be enforced (in not, if, maxContains); leave it out")
            found += _NEGATED[keyword](self, place, (*refs, place.pointer))
        return tuple(found)

    def not_types(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        said = self.types(place)
        rest = frozenset(TYPES) - said - ({"number"} if "integer" in said else set())  # no way to write fractions only
        return [Shape(place.pointer, types=rest)] if rest else []

    def not_values(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        return [Shape(place.pointer, excluded=self.values(place) or ())] if self.values(place) else []

    def not_bounds(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        numbers, schema = frozenset(("number", "integer")), place.schema
        sides = [Bounds(high=self.bound(place, k), open_high=k == "minimum") for k in ("minimum", "exclusiveMinimum") if k in schema]
        sides += [Bounds(low=self.bound(place, k), open_low=k == "maximum") for k in ("maximum", "exclusiveMaximum") if k in schema]
        return [Shape(place.pointer, types=numbers, bounds=side) for side in sides]

    def not_counts(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        for kind, field, low, high in _COUNTED:
            least, most = self.counts(place, low, high)
            for outside in ([(0, least - 1)] if least else []) + ([(most + 1, None)] if most is not None else []):
                yield replace(Shape(place.pointer, types=frozenset((kind,))), **{field: outside})

    def not_pattern(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        rest = without(ANY_TEXT, self.pattern(place.schema["pattern"], f"{place.pointer}/pattern"), self.work)
        return [Shape(place.pointer, types=frozenset(("string",)), texts=(rest,))] if rest != NOTHING else []

    def not_required(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        objects = frozenset(("object",))
        return [Shape(place.pointer, types=objects, absent=frozenset((name,))) for name in self.required(place)]

    def not_dependent(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        for name in self.dependent(place, "dependentRequired"):
            for other in self.names_of(place.at("dependentRequired", name)):
                if other != name:
                    yield Shape(place.pointer, types=frozenset(("object",)), required=(name,), absent=frozenset((other,)))

    def not_properties(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        [rule] = self.object_rules(place)
        for name, at in rule.properties.items():
            fails = ObjectRule({name: opposite(at)}, (), None, evaluates=False)
            yield Shape(place.pointer, types=frozenset(("object",)), required=(name,), objects=(fails,))

    def not_contains(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        return [Shape(place.pointer, types=frozenset(("array",)), contains=((place.at("contains"), 0, 0),))]

    def not_any(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        found = [Shape(place.pointer)]
        for i in range(len(self.list_of(place, "anyOf"))):
            arms = self.negated(place.at("anyOf", i), refs)
            found = [s for a, b in itertools.product(found, arms) if (s := a.with_(b)) is not None]
            if len(found) > _MOST_SHAPES:
                raise wrong(place.pointer, f"has more than {_MOST_SHAPES} ways not to hold; use fewer")
        return found

    def not_all(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        return [s for i in range(len(self.list_of(place, "allOf"))) for s in self.negated(place.at("allOf", i), refs)]

    def not_not(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        return self.of_place(place.at("not"), refs)

    def not_ref(self, place: Place, refs: tuple[str, ...]) -> Iterable[Shape]:
        return self.negated(self.target(place), refs)

    # -- oneOf --

    def check_apart(self, place: Place, base: Sequence[Shape], arms: Sequence[Sequence[Shape]]) -> None:
        """Refuses arms of oneOf that might hold together: what is written of one must surely not be of another."""
        within = [[s for a, b in itertools.product(base, arm) if (s := a.with_(b)) is not None] for arm in arms]
        wide = [self.widely.of_place(place.at("oneOf", i), ()) for i in range(len(arms))]
        for i, j in itertools.permutations(range(len(arms)), 2):
            if not all(self.apart(a, b, 3) for a, b in itertools.product(within[i], wide[j])):
                raise wrong(f"{place.pointer}/oneOf", f"{min(i, j)} and {max(i, j)} may hold together; make them exclusive (a type and a const in each), or use anyOf")

    @cached_property
    def widely(self) -> _Compiler:
        return self if self.wide else _Compiler(self.root, self.layout, wide=True)

    def apart(self, a: Shape, b: Shape, depth: int) -> bool:
        """Surely nothing is of `a` and of `b`, which is a wide shape."""
        if a.values is not None:
            return not any(self.widely.admits(b, v) for v in a.values if self.admits(a, v))
        if b.values is not None:
            return not any(self.admits(a, v) for v in b.values if self.widely.admits(b, v))
        return all(self.apart_as(kind, a, b, depth) for kind in a.types & b.types)

    def apart_as(self, kind: str, a: Shape, b: Shape, depth: int) -> bool:
        if kind in ("integer", "number"):
            return a.bounds.apart(b.bounds)
        if kind == "string":
            return both(self.language(a), self.language(b), self.work) == NOTHING
        if kind == "object":
            return depth > 0 and (self.needs_apart(a, b, depth) or self.needs_absent(a, b) or self.needs_absent(b, a))
        if kind == "array":
            return any(x.items[1] is not None and y.items[0] > x.items[1] for x, y in ((a, b), (b, a)))
        return False

    def needs_apart(self, a: Shape, b: Shape, depth: int) -> bool:
        return any(
            all(self.apart(x, y, depth - 1) for x in self.shapes(rules_of(a, n)) for y in self.widely.shapes(rules_of(b, n)))
            for n in a.required
            if n in b.required
        )

    def needs_absent(self, a: Shape, b: Shape) -> bool:
        """`a` needs a property that `b` excludes."""
        return any(n in b.absent or not self.widely.shapes(rules_of(b, n)) for n in a.required)

    def admits(self, shape: Shape, value: Any) -> bool:
        """A value is of a shape; what is not said is allowed."""
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
                and all(self.admit(items_of(shape, i), v) for i, v in enumerate(value))
                and not (shape.unique and any(same(x, y) for x, y in itertools.combinations(value, 2)))
                and all(self.has_so_many(value, *contains) for contains in shape.contains)
            )
        if kind == "object":
            return (
                is_within(shape.size, len(value))
                and all(name in value for name in shape.required)
                and shape.absent.isdisjoint(value)
                and all(self.admit(rules_of(shape, n), v) and self.admit(shape.names, n) for n, v in value.items())
            )
        return True

    def has_so_many(self, items: Sequence[Any], place: Place, least: int, most: int | None) -> bool:
        """Surely so many of the items are of a schema."""
        sure = sum(self.admit((place,), item) for item in items)
        return least <= sure and (most is None or len(items) - sum(self.admit((opposite(place),), item) for item in items) <= most)

    def admit(self, places: All, value: Any) -> bool:
        return any(self.admits(s, value) for s in self.shapes(places))

    # -- shapes to trees --

    def node(self, places: All) -> Node:
        """The texts of the values for which all of `places` hold; a Ref where that leads back to itself."""
        places = tuple({p.pointer: p for p in map(self.followed, places) if not _says_nothing(p)}.values())
        key = tuple(p.pointer for p in places)
        name = repr(key)
        if key in self.open:
            self.open[key] = True
            return Ref(name)
        if key not in self.made:
            self.open[key] = False
            node = one_of([self.of_shape(shape) for shape in self.shapes(places)])
            if self.size(node) > _MOST_NODES:  # parts that are shared, and shared again: all that looks at trees would take too long
                raise wrong(places[0].pointer if places else "", "becomes too large when its references are written out; use fewer")
            if self.open.pop(key):
                self.rules[name] = node
                node = Ref(name)
            self.made[key] = node
        return self.made[key]

    def size(self, node: Node) -> int:
        """Nodes of a tree as it is written, what is shared counted each time."""
        if id(node) not in self.sizes:
            self.sizes[id(node)] = node, 1 + sum(map(self.size, parts_of(node)))
        return self.sizes[id(node)][1]

    def followed(self, place: Place) -> Place:
        """Behind references that stand alone."""
        seen: set[str] = set()
        while isinstance(place.schema, dict) and "$ref" in place.schema and not set(place.schema) - {"$ref"} - NOTES:
            if place.pointer in seen:
                raise wrong(place.pointer, "refers to itself with nothing between")
            seen.add(place.pointer)
            place = self.target(place)
        return place

    def of_shape(self, shape: Shape) -> Node:
        if shape.values is not None:
            rest = replace(shape, values=None)  # they are among themselves
            return one_of([self.layout.value(v) for v in shape.values if self.admits(rest, v)])
        kinds = [k for k in TYPES if k in shape.types and not (k == "integer" and "number" in shape.types)]
        for v in shape.excluded:
            if (kind := type_of(v)) in shape.types and kind in ("array", "object"):
                raise wrong(shape.pointer, f"excludes an {kind}, which cannot be enforced; say of what other type the value is")
        try:
            return one_of([_OF_TYPES[kind](self, shape) for kind in kinds])
        except TooLarge:
            raise wrong(shape.pointer, "needs too large an automaton; use smaller lengths and simpler patterns") from None

    def number(self, shape: Shape) -> Node:
        excluded = [v for v in shape.excluded if type_of(v) in ("integer", "number")]
        if not excluded:
            return number(shape.bounds)
        return self.less(_DECIMALS if shape.bounds.free else number(shape.bounds), [_decimals(v) for v in excluded])

    def integer(self, shape: Shape) -> Node:
        return self.less(integer(shape.bounds), [text(str(int(v))) for v in shape.excluded if type_of(v) == "integer"])

    def less(self, language: Node, texts: Sequence[Node]) -> Node:
        return without(language, one_of(texts), self.work) if texts and language != NOTHING else language

    def one_among(self, shape: Shape, values: Sequence[Any]) -> Node:
        return one_of([self.layout.value(v) for v in values if not any(same(v, w) for w in shape.excluded)])

    def string(self, shape: Shape) -> Node:
        if not shape.texts and shape.length == (0, None) and not any(isinstance(v, str) for v in shape.excluded):
            return free_string()
        return string_of(self.language(shape))

    def language(self, shape: Shape) -> Node:
        """The characters of the strings of a shape."""
        implied = any(_within(lengths(language), shape.length) for language in shape.texts)
        found = ANY_TEXT if implied else repeat(ANY, *shape.length) if _possible(shape.length) else NOTHING
        for language in shape.texts:
            found = language if found == ANY_TEXT else both(found, language, self.work)
        return self.less(found, [text(v) if v else EMPTY for v in shape.excluded if isinstance(v, str)])

    def object(self, shape: Shape) -> Node:
        names = list(dict.fromkeys([*(n for rule in shape.objects for n in rule.properties), *shape.required]))
        values = {n: self.node(rules_of(shape, n)) for n in names}
        if shape.names:
            values = {n: v if self.admit(shape.names, n) else NOTHING for n, v in values.items()}
        values |= dict.fromkeys(shape.absent & values.keys(), NOTHING)
        if any(values[n] == NOTHING for n in shape.required):
            return NOTHING
        fixed = [(self.layout.member(string(n), v), n in shape.required) for n, v in values.items() if v != NOTHING]
        others = self.others(shape, [*names, *sorted(shape.absent)])
        if not _possible(shape.size):
            return NOTHING
        known = self.known_keys([keys for keys, _ in others])
        if known is None:
            spelled = [(free_string() if keys == ANY_TEXT else string_of(keys), value) for keys, value in others]
            return self.members(fixed, [one_of([self.layout.member(key, value) for key, value in spelled])] if others else [], shape)
        return self.members(fixed, [self.layout.member(string(k), v) for keys, (_, v) in zip(known, others) for k in keys], shape, each_once=True)

    def known_keys(self, languages: Sequence[Node]) -> Sequence[Sequence[str]] | None:
        """The texts of each language, where they are few in all."""
        found: list[list[str]] = []
        for language in languages:
            texts = all_endings(build(language), 0, _MOST_UNIQUE) if language != ANY_TEXT else None
            if texts is None or sum(map(len, found)) + len(texts) > _MOST_UNIQUE:
                return None
            found.append(sorted(text.decode() for text in texts))
        return found

    def others(self, shape: Shape, names: Sequence[str]) -> Sequence[tuple[Node, Node]]:
        """Properties that are not among `names`: languages of keys that have nothing in common, and the values of each."""
        open_ = [r for r in shape.objects if r.others is not None]
        patterns = [p for rule in shape.objects for p in rule.patterns]
        if not open_ and not patterns and shape.objects:
            return ()
        allowed = ANY_TEXT
        for place in shape.names:
            found = one_of([self.name_language(s, place) for s in self.shapes((place,))])
            allowed = both(allowed, found, self.work) if found != NOTHING else NOTHING
        if names and allowed != NOTHING:
            allowed = without(allowed, one_of([seq(text(n)) for n in names]), self.work)
        parts: list[tuple[Node, All]] = [(allowed, ())] if allowed != NOTHING else []
        for language, place in patterns:
            split = [
                part
                for keys, said in parts
                for part in ((both(keys, language, self.work), (*said, place)), (without(keys, language, self.work), said))
            ]
            parts = [(keys, said) for keys, said in split if keys != NOTHING]
            if len(parts) > _MOST_PARTS:
                raise wrong(f"{shape.pointer}/patternProperties", f"overlap in more than {_MOST_PARTS} ways; make them exclude each other")
        out: list[tuple[Node, Node]] = []
        for keys, matched in parts:
            if not matched and not open_ and shape.objects:
                continue  # nothing is said of such a name: as in `properties`, it is left out
            places: list[Place] = []
            for rule in shape.objects:
                said = [p for p in matched if any(p is q for _, q in rule.patterns)]
                places += said or ([rule.others] if rule.others is not None else [])
            value = self.node(tuple(places))
            if value != NOTHING:
                out.append((keys, value))
        return out

    def name_language(self, shape: Shape, place: Place) -> Node:
        if "string" not in shape.types:
            return NOTHING
        if shape.values is not None:
            return one_of([text(v) if v else EMPTY for v in shape.values if isinstance(v, str) and self.admits(shape, v)])
        return self.language(shape)

    def members(self, fixed: Sequence[tuple[Node, bool]], others: Sequence[Node], shape: Shape, *, each_once: bool = False) -> Node:
        """Members in order, optional ones or not, then any others; with commas between them and brackets around.

        A state: how many of `fixed` are passed, whether a comma is due, how many members there are (as far as `size` asks), and
        which of `others` there are, if each may come once. Otherwise one alone counts for the minimum, for their names may be equal.
        """
        low, high = shape.size
        if others and not each_once and low > len(fixed) + 1 and (high is None or high >= low):
            raise wrong(shape.pointer, f"needs {low} properties, of which only {len(fixed)} are named: others may be equal, so that one counts; name them in properties")
        numbers: dict[tuple[int, bool | None, int, int, int], int] = {}
        edges: list[tuple[int, Node, int]] = []
        order: list[tuple[int, bool | None, int, int, int]] = []

        def state(at: int, due: bool | None, count: int, sure: int, used: int = 0) -> int:
            key = (at, due, count if high is not None else 0, min(sure, low), used)
            if key not in numbers:
                numbers[key] = len(numbers)
                order.append(key)
            return numbers[key]

        state(0, False, 0, 0)
        empty, final = False, set[int]()
        for at, due, count, sure, used in order:
            if len(order) > _MOST_COUNTED * 8:
                raise wrong(shape.pointer, "counts too many properties; use a smaller maxProperties")
            here = numbers[at, due, count, sure, used]
            room = high is None or count < high
            if due is None:  # the comma is written, if there is one
                edges.append((here, fixed[at][0], state(at + 1, True, count + 1, sure + 1)))
            elif at < len(fixed):
                if not fixed[at][1]:
                    edges.append((here, EMPTY, state(at + 1, due, count, sure)))
                if room:
                    edges.append((here, self.layout.item if due else EMPTY, state(at, None, count, sure)))
            else:
                if sure >= low and due:
                    final.add(here)
                empty |= sure >= low and not due
                more = sure + 1 if each_once or at == len(fixed) else sure
                for i, other in enumerate(others if room else ()):
                    if not used >> i & 1:
                        member = seq(self.layout.item, other) if due else other
                        edges.append((here, member, state(len(fixed) + 1, True, count + 1, more, used | each_once << i)))
        full = self.layout.bracketed("{}", Graph(tuple(edges), frozenset(final))) if final else NOTHING
        return one_of([self.layout.bracketed("{}", EMPTY) if empty else NOTHING, full])

    def array(self, shape: Shape) -> Node:
        low, high = shape.items
        if not _possible(shape.items):
            return NOTHING
        if shape.contains:
            return self.counted_items(shape)
        if shape.unique and (high is None or high > 1):
            return self.unique_items(shape)
        known = max((len(r.first) for r in shape.arrays), default=0)
        first = [self.node(items_of(shape, i)) for i in range(known if high is None else min(known, high))]
        bare = bool(shape.arrays) and all(r.rest is None for r in shape.arrays)
        full = high is not None and high <= len(first)
        rest = NOTHING if bare or full else self.node(items_of(shape, known))
        more = repeat(seq(self.layout.item, rest), max(low - max(len(first), 1), 0),
                      None if high is None else max(high - max(len(first), 1), 0))  # fmt: skip
        for i in range(len(first) - 1, 0, -1):  # from behind: what may follow the first i items
            go_on = seq(self.layout.item, first[i], more)
            more = one_of([EMPTY, go_on]) if i >= low else go_on
        inner = NOTHING if high == 0 else seq(first[0] if first else rest, more)
        return one_of([
            self.layout.bracketed("[]", EMPTY) if low == 0 else NOTHING,
            self.layout.bracketed("[]", inner) if inner != NOTHING else NOTHING,
        ])  # fmt: skip

    def counted_items(self, shape: Shape) -> Node:
        """Items of which so many are of some schemas. A state: how many items there are, and how many of them each schema has."""
        if shape.unique:
            raise wrong(shape.pointer, "has contains beside uniqueItems; use one of them")
        low, high = shape.items
        known = max((len(r.first) for r in shape.arrays), default=0)
        if shape.arrays and all(r.rest is None for r in shape.arrays):
            high = known if high is None else min(high, known)
        last = max(known, low, 1) if high is None else high  # behind it, items are like each other
        start: tuple[int, tuple[int, ...]] = (0, (0,) * len(shape.contains))
        numbers: dict[tuple[int, tuple[int, ...]], int] = {start: 0}
        order: list[tuple[int, tuple[int, ...]]] = [start]
        edges: list[tuple[int, Node, int]] = []
        for items, counts in order:
            if high is not None and items >= high:
                continue
            for found, after in counts_behind(shape, counts):
                item = self.node((*items_of(shape, items), *found))
                if item == NOTHING:
                    continue
                to = min(items + 1, last), after
                if to not in numbers:
                    numbers[to] = len(order)
                    order.append(to)
                edges.append((numbers[items, counts], seq(self.layout.item, item) if items else item, numbers[to]))
            if len(order) > _MOST_COUNTED:
                raise wrong(shape.pointer, "counts too many items; use a smaller maxItems, minContains or maxContains")
        enough = {state for state in order if all(n >= least for n, (_, least, _) in zip(state[1], shape.contains))}
        final = frozenset(numbers[state] for state in enough if state[0] >= max(low, 1))
        empty = self.layout.bracketed("[]", EMPTY) if low == 0 and start in enough else NOTHING
        return one_of([empty, self.layout.bracketed("[]", Graph(tuple(edges), final)) if final else NOTHING])

    def unique_items(self, shape: Shape) -> Node:
        """Items of a few values, none twice: one state for each set of values."""
        places = items_of(shape, 0)
        shapes = self.shapes(places) if shape.arrays and not any(r.first for r in shape.arrays) else ()
        values: list[Any] = []
        for s in shapes:
            given = s.values if s.values is not None else _values(s)
            values += [v for v in given or () if self.admits(s, v) and not any(same(v, w) for w in values)]
            if given is None or len(values) > _MOST_UNIQUE:
                raise _unique(shape)
        if not values:
            raise _unique(shape)
        low, high = shape.items
        most = len(values) if high is None else min(high, len(values))
        if low > most:
            return NOTHING
        texts = [self.layout.value(v) for v in values]
        edges: list[tuple[int, Node, int]] = []
        for used in range(1 << len(values)):
            for i, item in enumerate(texts):
                if not used >> i & 1 and used.bit_count() < most:
                    edges.append((used, seq(self.layout.item, item) if used else item, used | 1 << i))
        final = frozenset(used for used in range(1, 1 << len(values)) if low <= used.bit_count() <= most)
        full = self.layout.bracketed("[]", Graph(tuple(edges), final)) if final else NOTHING
        return one_of([self.layout.bracketed("[]", EMPTY) if low == 0 else NOTHING, full])


_OF_TYPES: Mapping[str, Callable[[_Compiler, Shape], Node]] = {
    "object": _Compiler.object,
    "array": _Compiler.array,
    "string": _Compiler.string,
    "number": _Compiler.number,
    "integer": _Compiler.integer,
    "boolean": lambda self, shape: self.one_among(shape, (True, False)),
    "null": lambda self, shape: self.one_among(shape, (None,)),
}

_COUNTED = (
    ("string", "length", "minLength", "maxLength"),
    ("array", "items", "minItems", "maxItems"),
    ("object", "size", "minProperties", "maxProperties"),
)
_Negation = Callable[[_Compiler, Place, tuple[str, ...]], Iterable[Shape]]


def _one_by_one(keyword: str, negation: _Negation) -> _Negation:
    """Of a rule that looks at several keywords: at this one alone."""
    return lambda self, place, refs: negation(self, replace(place, schema={keyword: place.schema[keyword]}), refs)


_NEGATED: Mapping[str, _Negation] = {
    "type": _Compiler.not_types,
    "pattern": _Compiler.not_pattern,
    "required": _Compiler.not_required,
    "dependentRequired": _Compiler.not_dependent,
    "contains": _Compiler.not_contains,
    "anyOf": _Compiler.not_any,
    "allOf": _Compiler.not_all,
    "not": _Compiler.not_not,
    "$ref": _Compiler.not_ref,
    **{k: _one_by_one(k, _Compiler.not_values) for k in ("enum", "const")},
    **{k: _one_by_one(k, _Compiler.not_properties) for k in ("properties",)},
    **{k: _one_by_one(k, _Compiler.not_bounds) for k in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")},
    **{k: _one_by_one(k, _Compiler.not_counts) for _, _, low, high in _COUNTED for k in (low, high)},
}  # what makes each keyword fail; of the others (formats, of which ours are parts; items; …) that cannot be written


def _too_many(place: Place) -> ConstraintError:
    return wrong(place.pointer, f"has more than {_MOST_SHAPES} ways through anyOf, oneOf and allOf; use fewer")


def _decimals(value: int | float | Decimal) -> Node:
    """A number as digits, with any zeros behind."""
    whole, _, part = format(Decimal(value).normalize(), "f").partition(".")
    zeros = repeat(text("0"), 0, None)
    sign = optional(text("-")) if Decimal(value) == 0 else EMPTY
    if part:
        return seq(text(whole), text("."), text(part), zeros)
    return seq(sign, text(whole), optional(seq(text("."), zeros)))


def _values(shape: Shape) -> tuple[Any, ...] | None:
    """All values of a type that has few."""
    if shape.types == {"boolean"}:
        return (True, False)
    low, high = shape.bounds.low, shape.bounds.high
    if shape.types != {"integer"} or low is None or high is None or high - low > _MOST_UNIQUE:
        return None
    return tuple(n for n in range(math.ceil(low), math.floor(high) + 1) if shape.bounds.contains(Decimal(n)))


def _unique(shape: Shape) -> ConstraintError:
    return wrong(
        f"{shape.pointer}/uniqueItems",
        f"can only be enforced for items of at most {_MOST_UNIQUE} values (an enum, or integers between bounds); "
        f"leave it out (a list instead of a set) and remove what comes twice",
    )


def _within(lengths: tuple[int, int | None], limits: tuple[int, int | None]) -> bool:
    return lengths[0] >= limits[0] and (limits[1] is None or (lengths[1] is not None and lengths[1] <= limits[1]))


def _possible(limits: tuple[int, int | None]) -> bool:
    return limits[1] is None or limits[0] <= limits[1]
