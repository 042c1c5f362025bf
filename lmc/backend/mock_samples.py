"""Members of a constraint's language: a string that a regex matches, an instance of a JSON schema; fixed by a digest.

Small and bounded: repeats stop after a few turns, so that answers stay readable. What is not supported is refused.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from lmc.errors import ConstraintError, Loc, UnsupportedOpError

sre: Any = getattr(re, "_constants")  # noqa: B009  the parser that `re` itself uses, without a public name
_parse: Any = getattr(re, "_parser").parse  # noqa: B009


_MORE = 3  # turns of a repeat beyond its minimum
_TRIES = 64
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PRINTABLE = "".join(chr(c) for c in range(32, 127))


def dice(digest: bytes) -> random.Random:
    """A generator that only depends on the digest."""
    return random.Random(int.from_bytes(digest, "big"))


# -- regular expressions ---------------------------------------------------------------------------------------------


def sample_regex(source: str, digest: bytes, loc: Loc | None = None) -> str:
    """A string that `re.fullmatch(source, …, re.ASCII)` accepts; UnsupportedOpError if none is found."""
    flags = 0 if source.startswith("(?u)") else re.ASCII
    matches = re.compile(source, flags).fullmatch
    tree: Any = _parse(source, flags)
    rng = dice(digest)
    for _ in range(_TRIES):  # look-arounds and anchors are not generated, only checked
        text = _Writer(rng).items(tree)
        if matches(text):
            return text
    raise UnsupportedOpError(f"gen(regex={source!r})", "mock", "no match was found", loc=loc)


class _Writer:
    """Writes one string along a parsed regex; remembers groups for back references."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.groups: dict[int, str] = {}

    def items(self, tree: Any) -> str:
        return "".join([self.item(op, arg) for op, arg in tree])

    def item(self, op: Any, arg: Any) -> str:
        try:
            rule = _REGEX[op]
        except KeyError:
            raise UnsupportedOpError(f"the regex element {str(op).lower()}", "mock") from None
        return rule(self, arg)

    def branch(self, arg: Any) -> str:
        return self.items(self.rng.choice(arg[1]))

    def group(self, arg: Any) -> str:
        number, _, _, tree = arg
        text = self.items(tree)
        if number is not None:
            self.groups[number] = text
        return text

    def repeat(self, arg: Any) -> str:
        low, high, tree = arg
        turns = low + self.rng.randint(0, min(int(high) - low, _MORE))
        return "".join([self.items(tree) for _ in range(turns)])

    def one_of(self, arg: Any) -> str:
        if arg[0][0] is sre.NEGATE:
            allowed = [c for c in _LETTERS + _PRINTABLE if not any(_within(c, part) for part in arg[1:])]
            if not allowed:
                raise UnsupportedOpError("a negated set of all of ASCII", "mock")
            return self.rng.choice(allowed[:26] if self.rng.random() < 0.8 else allowed)
        return self.member(self.rng.choice(arg))

    def member(self, part: Any) -> str:
        op, arg = part
        if op is sre.LITERAL:
            return chr(arg)
        if op is sre.RANGE:
            return chr(self.rng.randint(*arg))
        return self.rng.choice(_CATEGORIES[arg])

    def conditional(self, arg: Any) -> str:
        number, yes, no = arg
        return self.items(yes if number in self.groups else no or ())


def _within(char: str, part: Any) -> bool:
    op, arg = part
    if op is sre.LITERAL:
        return ord(char) == arg
    if op is sre.RANGE:
        return arg[0] <= ord(char) <= arg[1]
    inverse = _INVERSE.get(arg)
    return char not in _FULL[inverse] if inverse is not None else char in _FULL[arg]


_DIGITS, _SPACE, _WORD = "0123456789", " \t\n\r\f\v", _LETTERS + _LETTERS.upper() + "0123456789_"
_CATEGORIES: Mapping[Any, str] = {
    sre.CATEGORY_DIGIT: _DIGITS,
    sre.CATEGORY_SPACE: " ",
    sre.CATEGORY_WORD: _LETTERS,
    sre.CATEGORY_NOT_DIGIT: _LETTERS,
    sre.CATEGORY_NOT_SPACE: _LETTERS + _DIGITS,
    sre.CATEGORY_NOT_WORD: " .,;:!?-",
}
_FULL: Mapping[Any, str] = {sre.CATEGORY_DIGIT: _DIGITS, sre.CATEGORY_SPACE: _SPACE, sre.CATEGORY_WORD: _WORD}
_INVERSE: Mapping[Any, Any] = {
    sre.CATEGORY_NOT_DIGIT: sre.CATEGORY_DIGIT,
    sre.CATEGORY_NOT_SPACE: sre.CATEGORY_SPACE,
    sre.CATEGORY_NOT_WORD: sre.CATEGORY_WORD,
}
_REGEX: Mapping[Any, Callable[[_Writer, Any], str]] = {
    sre.LITERAL: lambda w, a: chr(a),
    sre.NOT_LITERAL: lambda w, a: w.rng.choice([c for c in _LETTERS if ord(c) != a]),
    sre.ANY: lambda w, a: w.rng.choice(_LETTERS),
    sre.IN: _Writer.one_of,
    sre.BRANCH: _Writer.branch,
    sre.SUBPATTERN: _Writer.group,
    sre.ATOMIC_GROUP: _Writer.items,
    sre.MAX_REPEAT: _Writer.repeat,
    sre.MIN_REPEAT: _Writer.repeat,
    sre.POSSESSIVE_REPEAT: _Writer.repeat,
    sre.GROUPREF: lambda w, a: w.groups.get(a, ""),
    sre.GROUPREF_EXISTS: _Writer.conditional,
    sre.AT: lambda w, a: "",
    sre.ASSERT: lambda w, a: "",
    sre.ASSERT_NOT: lambda w, a: "",
    sre.CATEGORY: lambda w, a: w.rng.choice(_CATEGORIES[a]),
}


# -- JSON schemas ----------------------------------------------------------------------------------------------------

_NOTES = frozenset(
    "title description default examples example $schema $id $comment $defs definitions deprecated readOnly writeOnly".split()
)
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength", "pattern")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "boolean": frozenset(),
    "null": frozenset(),
}
_DEPTH = 24


def sample_json(schema: Any, digest: bytes, loc: Loc | None = None) -> str:
    """JSON text of an instance of `schema`. UnsupportedOpError names the first keyword that is not known here."""
    return json.dumps(_Instance(schema, dice(digest), loc).of(schema), ensure_ascii=False)


class _Instance:
    """Builds one instance; `root` resolves `$ref`s."""

    def __init__(self, root: Any, rng: random.Random, loc: Loc | None) -> None:
        self.root, self.rng, self.loc = root, rng, loc
        self.depth = 0

    def of(self, schema: Any) -> Any:
        if schema is True or schema == {}:
            return self.string({})
        if not isinstance(schema, Mapping):
            raise ConstraintError(f"json_schema=…: {schema!r} allows nothing", loc=self.loc)
        if self.depth > _DEPTH:
            raise UnsupportedOpError("gen(json_schema=…) that refers to itself without end", "mock", loc=self.loc)
        self.depth += 1
        try:
            return self._of(schema)  # pyright: ignore[reportUnknownArgumentType]
        finally:
            self.depth -= 1

    def _of(self, schema: Mapping[str, Any]) -> Any:
        if "$ref" in schema:
            self.check(schema, {"$ref"})
            return self.of(self.target(schema["$ref"]))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                self.check(schema, {keyword, "type"})
                return self.of(self.some(schema[keyword]))
        if "allOf" in schema and len(schema["allOf"]) == 1:
            self.check(schema, {"allOf"})
            return self.of(schema["allOf"][0])
        if "const" in schema:
            self.check(schema, {"const", "type"})
            return schema["const"]
        if "enum" in schema:
            self.check(schema, {"enum", "type"})
            return self.rng.choice(list(schema["enum"]))
        return self.typed(schema)

    def typed(self, schema: Mapping[str, Any]) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = self.rng.choice(kind)  # pyright: ignore[reportUnknownArgumentType]
        if kind not in _KEYWORDS:
            raise ConstraintError(f"json_schema=…: there is no type {kind!r}", loc=self.loc)
        self.check(schema, {"type", *(_KEYWORDS[kind] if not isinstance(schema.get("type"), list) else _ALL)})
        return getattr(self, kind)(schema)

    def check(self, schema: Mapping[str, Any], known: set[str]) -> None:
        for keyword in schema:
            if keyword not in known and keyword not in _NOTES:
                raise UnsupportedOpError(f"gen(json_schema=…) with {keyword!r}", "mock", loc=self.loc)

    def target(self, ref: str) -> Any:
        found = self.root
        if not ref.startswith("#"):
            raise UnsupportedOpError(f"gen(json_schema=…) with the reference {ref!r}", "mock", loc=self.loc)
        for step in ref[1:].strip("/").split("/") if ref != "#" else ():
            try:
                found = found[step.replace("~1", "/").replace("~0", "~")]
            except (KeyError, TypeError):
                raise ConstraintError(f"json_schema=…: {ref!r} leads nowhere", loc=self.loc) from None
        return found

    def some(self, schemas: list[Any]) -> Any:
        """One of several; deep down one that does not refer on, so that recursive schemas end."""
        ending = [s for s in schemas if "$ref" not in json.dumps(s)] if self.depth > 4 else []
        return self.rng.choice(ending or schemas)

    def object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = schema.get("required", ())
        made = {name: self.of(sub) for name, sub in properties.items() if self.depth < 6 or name in required}
        return made | {name: "x" for name in required if name not in made}

    def array(self, schema: Mapping[str, Any]) -> list[Any]:
        first = [self.of(sub) for sub in schema.get("prefixItems", ())]
        low = max(int(schema.get("minItems", 0)), len(first))
        high = min(int(schema.get("maxItems", low + _MORE)), low + _MORE)
        if schema.get("items") is False:
            high = low
        if self.depth > 6:
            high = low
        return first + [
            self.of(schema.get("items", {})) for _ in range(self.rng.randint(low, max(low, high)) - len(first))
        ]

    def string(self, schema: Mapping[str, Any]) -> str:
        low, high = int(schema.get("minLength", 0)), int(schema.get("maxLength", 1 << 30))
        if "pattern" in schema:
            pattern = schema["pattern"].removeprefix("^").removesuffix("$")
            return sample_regex(pattern, self.rng.randbytes(16), self.loc)
        wanted = min(max(low, self.rng.randint(3, 9)), high)
        return "".join(self.rng.choice(_LETTERS) for _ in range(wanted))

    def integer(self, schema: Mapping[str, Any]) -> int:
        low, high = self.bounds(schema, 1)
        step = int(schema.get("multipleOf", 1))
        fitting = range(math.ceil(low / step) * step, math.floor(high) + 1, step)
        if not fitting:
            raise ConstraintError("json_schema=…: no integer is within its bounds", loc=self.loc)
        return self.rng.choice(fitting)

    def number(self, schema: Mapping[str, Any]) -> float:
        low, high = self.bounds(schema, 1e-3)
        return min(max(round(self.rng.uniform(low, high), 3), low), high)

    def bounds(self, schema: Mapping[str, Any], least: float) -> tuple[float, float]:
        """Inclusive bounds; an open one moves by `least`."""
        lows = [schema["minimum"]] if "minimum" in schema else []
        lows += [schema["exclusiveMinimum"] + least] if "exclusiveMinimum" in schema else []
        highs = [schema["maximum"]] if "maximum" in schema else []
        highs += [schema["exclusiveMaximum"] - least] if "exclusiveMaximum" in schema else []
        high = min(highs) if highs else max([0, *lows]) + 100
        return max(lows) if lows else min(0, high - 100), high

    def boolean(self, schema: Mapping[str, Any]) -> bool:
        return self.rng.random() < 0.5

    def null(self, schema: Mapping[str, Any]) -> None:
        return None


_ALL = frozenset().union(*_KEYWORDS.values())
