"""Members of a constraint's language: a string that a regex matches, an instance of a JSON schema; fixed by a digest.

Small and bounded: repeats stop after a few turns, so that answers stay readable. What is not supported is refused.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lmc.errors import ConstraintError, Loc, UnsupportedOpError
from lmc.fsm.charset import Ranges
from lmc.fsm.regex import Chars, Concat, Node, Repeat, Union, parse

_MORE = 3  # turns of a repeat beyond its minimum
_WIDE = 62  # characters beyond which a class is more than somebody would list
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PRINTABLE = "".join(chr(c) for c in range(32, 127))


def dice(digest: bytes) -> random.Random:
    """A generator that only depends on the digest."""
    return random.Random(int.from_bytes(digest, "big"))


# -- regular expressions ---------------------------------------------------------------------------------------------


def sample_regex(source: str, digest: bytes) -> str:
    """A string of the language of `source`. ConstraintError for what is outside the dialect of constraints."""
    return _member(_tree(source), dice(digest))


_tree = lru_cache(maxsize=1024)(parse)


def _member(tree: Node, rng: random.Random) -> str:
    if isinstance(tree, Chars):
        often, any_ = _alphabet(tree.ranges)
        return rng.choice(often if rng.random() < 0.8 else any_)
    if isinstance(tree, Concat):
        return "".join([_member(part, rng) for part in tree.parts])
    if isinstance(tree, Union):
        return _member(rng.choice(tree.arms), rng)
    assert isinstance(tree, Repeat)  # a pattern has no other nodes
    more = _MORE if tree.high is None else min(tree.high - tree.low, _MORE)
    return "".join([_member(tree.body, rng) for _ in range(tree.low + rng.randint(0, more))])


@lru_cache(maxsize=4096)
def _alphabet(ranges: Ranges) -> tuple[str, str]:
    """The characters of a class to take most of the time, and those to take now and then; both in the class. Printable
    ones if it has any; of a wide class mostly small letters."""
    shown = _within(ranges, _PRINTABLE)
    if not shown:
        low, high = ranges[0]
        shown = "".join(map(chr, range(low, min(high, low + _WIDE) + 1)))
    wide = sum(high - low + 1 for low, high in ranges) > _WIDE
    return (_within(ranges, _LETTERS) or shown) if wide else shown, shown


def _within(ranges: Ranges, characters: str) -> str:
    return "".join([c for c in characters if any(low <= ord(c) <= high for low, high in ranges)])


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
            return sample_regex(schema["pattern"], self.rng.randbytes(16))
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
