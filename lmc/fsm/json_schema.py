"""JSON schemas as grammars of their instances. Compiles; the meaning of keywords is in json_keywords, their combination
in json_disjuncts, the writing of values in json_text and json_layout.

    schema ─► shapes (conjunctions of plain keywords, one for each path through anyOf and $ref) ─► trees ─► Grammar

The texts are those that json.dumps(value, ensure_ascii=False) writes, properties in the order of the schema. Objects
have the properties that the schema names and no others unless it says `additionalProperties`. Every keyword is
enforced; those that an automaton cannot enforce are checked when the answer ends (json_check.py), with a warning.
Unknown keywords are annotations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from lmc.errors import ConstraintError, SchemaWarning
from lmc.fsm.algebra import both, other_than, without
from lmc.fsm.bounds import TooLarge
from lmc.fsm.completion import all_endings
from lmc.fsm.grammar import Grammar
from lmc.fsm.json_check import Checker
from lmc.fsm.json_disjointness import admit, admits, but, characters, less
from lmc.fsm.json_disjuncts import Ways
from lmc.fsm.json_keywords import REFERENCES, Keywords, Notes
from lmc.fsm.json_layout import Layout
from lmc.fsm.json_references import References, sharing
from lmc.fsm.json_sequences import counted_items, members, unique_items
from lmc.fsm.json_shapes import (
    TYPES,
    All,
    SchemaPointer,
    SchemaShape,
    is_possible,
    items_of,
    rules_of,
    same,
    type_of,
    wrong,
)
from lmc.fsm.json_text import ANY_TEXT, Bounds, free_string, integer, number, string, string_of
from lmc.fsm.lazy import LazyDFA
from lmc.fsm.nodes import ANY, EMPTY, NOTHING, Chars, Concat, Node, NodeGraph, Ref, one_of, optional, parts_of, repeat, seq, text
from lmc.fsm.regex import parse
from lmc.tracebacks import warn

_BARE = frozenset(("string", "number", "integer", "boolean", "null"))  # types that need no other schema
_LARGE = 500  # nodes from which on a tree becomes a rule
_REFERENCES = frozenset(REFERENCES) | {""}
_MOST_COUNTED = 8192  # states of an object whose properties are counted
_OF_REMAINDER = 20  # transitions that take as long to find
_MOST_UNIQUE = 8  # values of an array of unique items: one state for each set of them
_MOST_PARTS = 64  # parts of the names in patternProperties, by the set of matching patterns
_MOST_DIGITS = 300  # of a number; no double has more
_FRACTION = parse(r"-?(0|[1-9][0-9]{0,8})\.[0-9]{0,5}[1-9]")  # of non-integers, which stay so as doubles
_DECIMALS = parse(r"-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?")  # where some numbers are excluded: doubles distinguish these


class Compiled(NamedTuple):
    """A schema as a grammar.

    depth   depth at which recursion is cut
    notes   ignored keywords, and those checked when an answer ends
    check   returns why an answer is invalid, None if it is valid; None if the grammar enforces everything
    """

    grammar: Grammar
    depth: int | None
    notes: Notes
    check: Callable[[str], str | None] | None


@lru_cache(8)  # its grammar and its notes are read one after the other
def compile_schema(source: str) -> Compiled:
    """Compile a schema given as JSON text.

    Raises ConstraintError, with the JSON pointer, for one that is invalid, cannot be enforced, or allows nothing.
    """
    root = _root_of(source)
    layout = Layout.of(root)
    notes = Notes(strict=layout.strict)
    references = References(root)
    compiler = _Compiler(Ways(references, notes=notes), layout)
    try:
        grammar = compiler.grammar()
        if notes.later:
            Keywords(references, True, Notes()).read_all(SchemaPointer(root, ""))
    except RecursionError:
        raise ConstraintError("json_schema is nested too deep, or has too many items that may be left out") from None
    except TooLarge:
        raise ConstraintError("json_schema needs too large an automaton; use smaller lengths and simpler patterns") from None
    if said := str(notes):
        warn(f"json_schema: {said}", SchemaWarning)
    return Compiled(grammar, layout.depth, notes, Checker(references, _pattern).wrong if notes.later else None)


def _root_of(source: str) -> Any:
    try:
        root = json.loads(source, object_pairs_hook=sharing(), parse_float=_decimal, parse_constant=_no_constant)
    except json.JSONDecodeError as e:
        raise ConstraintError(f"json_schema is not JSON: {e.msg} at line {e.lineno}, column {e.colno}") from None
    except RecursionError:
        raise ConstraintError("json_schema is nested too deep") from None
    except ConstraintError:
        raise
    except ValueError as e:  # a number of too many digits
        raise ConstraintError(f"json_schema cannot be read: {e}") from None
    if not isinstance(root, dict | bool):
        raise ConstraintError(f"json_schema must be a JSON object, not {type(root).__name__}")
    return root


def why_invalid(source: str, text: str) -> str | None:
    """Return why the value of a JSON text is not valid by a schema, whatever the order of its keys; None if it is.
    Raises ConstraintError for an invalid schema."""
    compile_schema(source)
    return checker_of(source).wrong(text)


@lru_cache(maxsize=256)
def checker_of(source: str) -> Checker:
    """Return the checker of values by a schema, which is not compiled."""
    return Checker(References(_root_of(source)), _pattern)


def _pattern(pattern: str) -> LazyDFA:
    """Return an automaton of the texts that contain a match."""
    return LazyDFA(Grammar(parse(pattern, search=True)))


def _decimal(digits: str) -> Decimal:
    try:
        found = Decimal(digits)
        if abs(found.adjusted()) <= _MOST_DIGITS:
            return found
    except ArithmeticError:  # its exponent has more than 18 digits
        pass
    raise ConstraintError(f"json_schema: {digits} has more than {_MOST_DIGITS} digits")


def _no_constant(name: str) -> None:
    raise ConstraintError(f"json_schema: {name} is not JSON")


class _Compiler:
    """Compiles one schema; `rules` are the recursive schemas."""

    def __init__(self, ways: Ways, layout: Layout) -> None:
        self.ways, self.layout, self.work = ways, layout, ways.work
        self.rules: dict[str, Node] = {}
        self.made: dict[tuple[str, ...], Node] = {}
        self.bare: dict[str, Node] = {}  # by type, where nothing else is said
        self.open: dict[tuple[str, ...], bool] = {}  # being compiled; True: named from inside
        self.sizes: dict[int, tuple[Node, int]] = {}  # by id
        self.unmet: dict[str, str] = {}  # a required property that is not allowed, by the object's pointer

    def grammar(self) -> Grammar:
        start = self.node((SchemaPointer(self.ways.references.root, ""),))
        if start == NOTHING:
            why = next((f": {name[:40]!r} is required at {pointer or '/'}, and not allowed there" for pointer, name in self.unmet.items()), "")
            raise wrong("", f"allows no value at all{why}")
        return Grammar(start, self.rules, self.layout.styles)

    def node(self, places: All) -> Node:
        """Return the texts of the values for which all of `places` hold; a Ref where that is recursive."""
        places = tuple({p.pointer: p for p in map(self.followed, places) if not self.says_nothing(p)}.values())
        if len(places) == 1 and (kind := self.bare_type(places[0])) is not None:
            return self.of_bare(kind)
        key = tuple(p.pointer for p in places)
        name = repr(key)
        if key in self.open:
            self.open[key] = True
            return Ref(name)
        if key not in self.made:
            self.open[key] = False
            node = one_of([self.of_shape(shape) for shape in self.ways.shapes(places)])
            if self.open.pop(key) or self.size(node) > _LARGE:  # parts that are shared, and shared again, are written once
                self.rules[name] = node
                node = Ref(name)
            self.made[key] = node
        return self.made[key]

    def bare_type(self, place: SchemaPointer) -> str | None:
        """The type of a schema that says nothing else, as most do that are no objects and arrays."""
        if not isinstance(place.schema, dict) or len(self.ways.spoken(place)) != 1:
            return None
        kind = place.schema.get("type")
        return kind if isinstance(kind, str) and kind in _BARE else None

    def of_bare(self, kind: str) -> Node:
        if kind not in self.bare:
            types = frozenset(("number", "integer") if kind == "number" else (kind,))
            self.bare[kind] = self.of_shape(SchemaShape("", types=types))
        return self.bare[kind]

    def says_nothing(self, place: SchemaPointer) -> bool:
        return place.schema is True or (isinstance(place.schema, dict) and not self.ways.spoken(place))

    def size(self, node: Node) -> int:
        """Return nodes of a tree as it is written, shared ones counted each time."""
        known = self.sizes
        if id(node) not in known:
            parts = node.parts if type(node) is Concat else () if type(node) is NodeGraph and node.but is not None else parts_of(node)
            inner = [part for part in parts if type(part) is not Chars and type(part) is not Ref]
            known[id(node)] = node, 1 + len(parts) - len(inner) + sum([known[id(part)][1] if id(part) in known else self.size(part) for part in inner])
        return known[id(node)][1]

    def followed(self, place: SchemaPointer) -> SchemaPointer:
        """Follow references that stand alone."""
        seen: set[str] = set()
        while isinstance(place.schema, dict) and len(spoken := self.ways.spoken(place)) == 1 and spoken < _REFERENCES:
            if place.pointer in seen:
                raise wrong(place.pointer, "refers to itself with nothing between")
            seen.add(place.pointer)
            place = self.ways.target(place, next(iter(spoken)))
        return self.ways.references.first(place)

    def of_shape(self, shape: SchemaShape) -> Node:
        if shape.values is not None:
            rest = replace(shape, values=None)  # they are consistent with each other
            return self.layout.values([v for v in shape.values if admits(self.ways, rest, v)])
        kinds = [k for k in TYPES if k in shape.types and not (k == "integer" and "number" in shape.types)]
        for v in shape.excluded:
            if (kind := type_of(v)) in shape.types and kind in ("array", "object"):
                self.ways.check_later(shape.pointer, f"excludes an {kind}")
        try:
            return one_of([self.of_type(kind, shape) for kind in kinds])
        except TooLarge:
            raise wrong(shape.pointer, "needs too large an automaton; use smaller lengths and simpler patterns") from None

    def of_type(self, kind: str, shape: SchemaShape) -> Node:
        try:
            return _OF_TYPES[kind](self, shape)
        except TooLarge:
            if kind not in ("integer", "number") or shape.bounds.step is None:
                raise
            self.ways.check_later(f"{shape.pointer}/multipleOf", "needs too large an automaton")
            return _OF_TYPES[kind](self, replace(shape, bounds=replace(shape.bounds, step=None)))

    def number(self, shape: SchemaShape) -> Node:
        excluded = [v for v in shape.excluded if type_of(v) in ("integer", "number")]
        found = _DECIMALS if excluded and shape.bounds.free else self.bounded(number, shape.bounds)
        if "integer" not in shape.types:
            found = _FRACTION if shape.bounds.free and not excluded else both(found, _FRACTION, self.work)
        return less(self.work, found, [_decimals(v) for v in excluded])

    def bounded(self, numbers: Callable[[Bounds], Node], bounds: Bounds) -> Node:
        """Return numbers within bounds; of multiples a state for each remainder is paid beforehand."""
        if (step := bounds.step) is not None:
            remainders = int(step.scaleb(-min(int(step.as_tuple().exponent), 0)))
            self.work.spend(_OF_REMAINDER * remainders * (1 + (bounds.low is None or bounds.low < 0)))
        return numbers(bounds)

    def integer(self, shape: SchemaShape) -> Node:
        return less(self.work, self.bounded(integer, shape.bounds), [text(str(int(v))) for v in shape.excluded if type_of(v) == "integer"])

    def one_among(self, shape: SchemaShape, values: Sequence[Any]) -> Node:
        return self.layout.values([v for v in values if not any(same(v, w) for w in shape.excluded)])

    def string(self, shape: SchemaShape) -> Node:
        if not shape.texts and shape.length == (0, None) and not any(isinstance(v, str) for v in shape.excluded):
            return free_string()
        try:
            return string_of(characters(self.work, shape))
        except TooLarge:  # one of several languages, or a count in addition to one
            self.ways.check_later(shape.pointer, "has a pattern beside a length or another pattern that needs too large an automaton")
            return string_of(shape.texts[0] if shape.texts else repeat(ANY, *shape.length))

    def object(self, shape: SchemaShape) -> Node:
        names = list(dict.fromkeys([*(n for rule in shape.objects for n in rule.properties), *shape.required]))
        values = {n: self.node(rules_of(shape, n)) for n in names}
        if shape.names:
            values = {n: v if admit(self.ways, shape.names, n) else NOTHING for n, v in values.items()}
        values |= dict.fromkeys(shape.absent & values.keys(), NOTHING)
        if (unmet := next((n for n in shape.required if values[n] == NOTHING), None)) is not None:
            self.unmet.setdefault(shape.pointer, unmet)
            return NOTHING
        fixed = [(self.layout.member(string(n), v), n in shape.required) for n, v in values.items() if v != NOTHING]
        others = self.others(shape, [*names, *sorted(shape.absent)])
        if not is_possible(shape.size):
            return NOTHING
        known = self.known_keys([keys for keys, _ in others])
        low, high = shape.size
        if known is None and others and low > len(fixed) + 1 and (high is None or high >= low):  # others may be equal, so that one counts
            self.ways.check_later(f"{shape.pointer}/minProperties", f"needs {low} properties, of which {len(fixed)} are named")
            shape = replace(shape, size=(len(fixed) + 1, high))
        if max(low, high or 0) * (len(fixed) + 1) > _MOST_COUNTED:
            self.ways.check_later(f"{shape.pointer}/maxProperties", "counts too many properties")
            shape = replace(shape, size=(min(low, len(fixed)), None))
        if known is None:
            spelled = [(free_string() if keys == ANY_TEXT else string_of(keys), value) for keys, value in others]
            return members(self.layout, fixed, [one_of([self.layout.member(key, value) for key, value in spelled])] if others else [], shape)
        return members(self.layout, fixed, [self.layout.member(string(k), v) for keys, (_, v) in zip(known, others) for k in keys], shape, each_once=True)

    def known_keys(self, languages: Sequence[Node]) -> Sequence[Sequence[str]] | None:
        """Return the texts of each language, if there are few in all."""
        found: list[list[str]] = []
        for language in languages:
            texts = _few_texts(language)
            if texts is None or sum(map(len, found)) + len(texts) > _MOST_UNIQUE:
                return None
            found.append(sorted(text.decode() for text in texts))
        return found

    def others(self, shape: SchemaShape, names: Sequence[str]) -> Sequence[tuple[Node, Node]]:
        """Return properties that are not among `names`: disjoint languages of keys, and the values of each."""
        open_ = [r for r in shape.objects if r.others is not None]
        patterns = [p for rule in shape.objects for p in rule.patterns]
        closed = bool(shape.objects) and not open_ and not self.layout.additional
        if closed and not patterns:
            return ()
        allowed = ANY_TEXT
        for place in shape.names:
            found = one_of([self.name_language(s, place) for s in self.ways.shapes((place,))])
            allowed = both(allowed, found, self.work) if found != NOTHING else NOTHING
        if names and allowed != NOTHING:
            left_out = one_of([text(n) if n else EMPTY for n in names])
            allowed = other_than(names) if allowed == ANY_TEXT else without(allowed, left_out, self.work)
        parts: list[tuple[Node, All]] = [(allowed, ())] if allowed != NOTHING else []
        # of a name that no pattern has, nothing is said, or that it is not there
        no_rest = closed or any(rule.others is not None and rule.others.schema is False for rule in shape.objects)
        for i, (language, place) in enumerate(patterns):
            split: list[tuple[Node, All]] = []
            for keys, said in parts:
                split.append((self.matched(language, keys, names if not i and not shape.names else None), (*said, place)))
                if said or not no_rest or i < len(patterns) - 1:
                    split.append((without(keys, language, self.work), said))
            parts = [(keys, said) for keys, said in split if keys != NOTHING]
            if len(parts) > _MOST_PARTS:
                self.ways.check_later(f"{shape.pointer}/patternProperties", f"overlap in more than {_MOST_PARTS} ways")
                return ()
        out: list[tuple[Node, Node]] = []
        for keys, matched in parts:
            if not matched and no_rest:
                continue  # as in `properties`, it is left out
            places: list[SchemaPointer] = []
            for rule in shape.objects:
                said = [p for p in matched if any(p is q for _, q in rule.patterns)]
                places += said or ([rule.others] if rule.others is not None else [])
            value = self.node(tuple(places))
            if value != NOTHING:
                out.append((keys, value))
        return out

    def matched(self, language: Node, keys: Node, names: Sequence[str] | None) -> Node:
        """The keys that are in a language; `names`: they are all but these."""
        if names is None:
            return both(keys, language, self.work)
        accepts = LazyDFA(Grammar(language)).accepts
        return but(self.work, language, [n for n in names if accepts(n.encode("utf-8", "surrogatepass"))])

    def name_language(self, shape: SchemaShape, place: SchemaPointer) -> Node:
        if "string" not in shape.types:
            return NOTHING
        if shape.values is not None:
            return one_of([text(v) if v else EMPTY for v in shape.values if isinstance(v, str) and admits(self.ways, shape, v)])
        return characters(self.work, shape)

    def array(self, shape: SchemaShape) -> Node:
        low, high = shape.items
        if not is_possible(shape.items):
            return NOTHING
        unique = shape.unique and (high is None or high > 1)
        if shape.contains and not unique:
            try:
                return counted_items(self.layout, shape, lambda i, found: self.node((*items_of(shape, i), *found)))
            except TooLarge:
                self.ways.check_later(f"{shape.pointer}/contains", "counts too many items")
        elif shape.contains:
            self.ways.check_later(f"{shape.pointer}/contains", "stands beside uniqueItems")
        if unique and (values := self.few_values(shape)) is not None:
            return unique_items(self.layout, [self.layout.value(v) for v in values], shape.items)
        if unique:
            self.ways.check_later(f"{shape.pointer}/uniqueItems", f"is about items of more than {_MOST_UNIQUE} values")
        known = max((len(r.first) for r in shape.arrays), default=0)
        first = [self.node(items_of(shape, i)) for i in range(known if high is None else min(known, high))]
        bare = bool(shape.arrays) and all(r.rest is None for r in shape.arrays) and not self.layout.additional
        full = high is not None and high <= len(first)
        rest = NOTHING if bare or full else self.node(items_of(shape, known))
        more = repeat(seq(self.layout.item, rest), max(low - max(len(first), 1), 0),
                      None if high is None else max(high - max(len(first), 1), 0))  # fmt: skip
        for i in range(len(first) - 1, 0, -1):  # backwards: continuations of the first i items
            go_on = seq(self.layout.item, first[i], more)
            more = one_of([EMPTY, go_on]) if i >= low else go_on
        inner = NOTHING if high == 0 else seq(first[0] if first else rest, more)
        return self.layout.maybe_empty("[]", inner, empty=low == 0)

    def few_values(self, shape: SchemaShape) -> Sequence[Any] | None:
        """Return those of the items of an array, each once; None where there are many."""
        places = items_of(shape, 0)
        shapes = self.ways.shapes(places) if shape.arrays and not any(r.first for r in shape.arrays) else ()
        values: list[Any] = []
        for s in shapes:
            given = s.values if s.values is not None else _values(s)
            for v in given or ():
                if admits(self.ways, s, v) and not any(same(v, w) for w in values):
                    values.append(v)
            if given is None or len(values) > _MOST_UNIQUE:
                return None
        return values or None


_OF_TYPES: Mapping[str, Callable[[_Compiler, SchemaShape], Node]] = {
    "object": _Compiler.object,
    "array": _Compiler.array,
    "string": _Compiler.string,
    "number": _Compiler.number,
    "integer": _Compiler.integer,
    "boolean": lambda self, shape: self.one_among(shape, (True, False)),
    "null": lambda self, shape: self.one_among(shape, (None,)),
}


def _few_texts(language: Node) -> list[bytes] | None:
    """Return all of them, if there are few that are quickly found."""
    if isinstance(language, NodeGraph) and any(source == to for source, _, to in language.edges):
        return None  # each of its states leads to an end
    try:
        return all_endings(LazyDFA(Grammar(language)), 0, _MOST_UNIQUE) if language != ANY_TEXT else None
    except ConstraintError:  # too many ways to read a text
        return None


def _decimals(value: int | float | Decimal) -> Node:
    """Return a number as digits, with any trailing zeros."""
    whole, _, part = format(Decimal(value).normalize(), "f").partition(".")
    zeros = repeat(text("0"), 0, None)
    sign = optional(text("-")) if Decimal(value) == 0 else EMPTY
    if part:
        return seq(text(whole), text("."), text(part), zeros)
    return seq(sign, text(whole), optional(seq(text("."), zeros)))


def _values(shape: SchemaShape) -> tuple[Any, ...] | None:
    """Return all values of a type that has few."""
    if shape.types == {"boolean"}:
        return (True, False)
    low, high = shape.bounds.low, shape.bounds.high
    if shape.types != {"integer"} or low is None or high is None or high - low > _MOST_UNIQUE:
        return None
    return tuple(n for n in range(math.ceil(low), math.floor(high) + 1) if shape.bounds.contains(Decimal(n)))
