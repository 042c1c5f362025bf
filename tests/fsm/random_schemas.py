"""Random JSON schemas: of every keyword, nested, often contradictory, as no person would write them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    2,
    -1,
    1.5,
    0.25,
    "",
    "a",
    "b",
    "ab",
    "é",
    'x"y',
    [],
    [1],
    [1, 2],
    ["a"],
    {},
    {"a": 1},
    {"a": "b"},
    {"b": 1, "a": 2},
]
_PATTERNS = [
    "^a",
    "b\\Z",
    "^[a-c]+\\Z",
    "a|b",
    "^\\w{1,3}\\Z",
    "^(ab|cd)*\\Z",
    "[0-9]",
    "^.{2,4}\\Z",
    "\\d{2}",
    "^\\Z",
    "é",
]  # `$` is the end here, in re also before a newline
_FORMATS = ["date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "uri", "hostname", "duration", "json-pointer"]
_NAMES = ["a", "b", "c", "dd", "é"]
_TYPES = ["string", "number", "integer", "boolean", "null", "object", "array"]


def random_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """An object, perhaps with definitions that it refers to."""
    defs = rng.choice([[], [], ["x"], ["x", "y"]])
    made = _Maker(rng, defs)
    schema = made.schema(depth)
    schema = {"allOf": [schema]} if isinstance(schema, bool) else schema
    return {**schema, "$defs": {name: made.schema(1) for name in defs}} if defs else schema


class _Maker:
    def __init__(self, rng: random.Random, defs: list[str]) -> None:
        self.rng, self.defs = rng, defs

    def maybe(self, chance: float) -> bool:
        return self.rng.random() < chance

    def schema(self, depth: int) -> Any:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.03:
            return rng.choice([True, False])
        if kind < 0.12:
            return {"enum": rng.sample(VALUES, rng.randint(1, 4))}
        if kind < 0.17:
            return {"const": rng.choice(VALUES)}
        if kind < 0.2 and self.defs:
            return {"$ref": f"#/$defs/{rng.choice(self.defs)}"}
        out: dict[str, Any] = {}
        if depth and kind < 0.32:
            out[rng.choice(["anyOf", "anyOf", "oneOf", "allOf"])] = [self.schema(depth - 1) for _ in range(rng.randint(1, 3))]
        if depth and kind > 0.95:
            out["not"] = self.schema(depth - 1)
        if depth and 0.9 < kind < 0.95:
            out |= {k: self.schema(depth - 1) for k in ("if", "then", "else") if k == "if" or self.maybe(0.7)}
        chosen = rng.choice(_TYPES if depth else _TYPES[:5])
        if self.maybe(0.9):
            other = rng.choice(_TYPES)
            out["type"] = [chosen, other] if other != chosen and self.maybe(0.15) else chosen
        return out | _SAYS[chosen](self, depth)

    def of_string(self, depth: int) -> dict[str, Any]:
        return self.some(
            minLength=(0.3, lambda: self.rng.randint(0, 3)), maxLength=(0.3, lambda: self.rng.randint(0, 6)),
            pattern=(0.3, lambda: self.rng.choice(_PATTERNS)), format=(0.1, lambda: self.rng.choice(_FORMATS)),
        )  # fmt: skip

    def of_number(self, depth: int) -> dict[str, Any]:
        return self.some(
            minimum=(0.4, lambda: self.rng.choice([0, -5, 1, 2.5, -1.5, 10])), maximum=(0.3, lambda: self.rng.choice([3, 5, 100, 7.5, 0])),
            exclusiveMinimum=(0.15, lambda: self.rng.choice([0, -1, 2])), exclusiveMaximum=(0.15, lambda: self.rng.choice([5, 9, 3.5])),
            multipleOf=(0.2, lambda: self.rng.choice([1, 2, 3, 0.5, 0.1, 0.25, 7])),
        )  # fmt: skip

    def of_array(self, depth: int) -> dict[str, Any]:
        inner = max(depth - 1, 0)
        out = self.some(
            items=(0.7, lambda: self.schema(inner)), prefixItems=(0.2, lambda: [self.schema(inner) for _ in range(self.rng.randint(1, 2))]),
            maxItems=(0.4, lambda: self.rng.randint(0, 4)), minItems=(0.3, lambda: self.rng.randint(0, 2)), uniqueItems=(0.15, lambda: True),
            contains=(0.2, lambda: self.schema(inner)), unevaluatedItems=(0.08, lambda: False),
        )  # fmt: skip
        counted = self.some(minContains=(0.4, lambda: self.rng.randint(0, 2)), maxContains=(0.3, lambda: self.rng.randint(1, 3)))
        return out | counted if "contains" in out else out

    def of_object(self, depth: int) -> dict[str, Any]:
        inner, names = max(depth - 1, 0), self.rng.sample(_NAMES, self.rng.randint(0, 3))
        return self.some(
            properties=(0.9, lambda: {n: self.schema(inner) for n in names}), required=(0.6, lambda: [n for n in names if self.maybe(0.6)]),
            additionalProperties=(0.25, lambda: self.rng.choice([False, self.schema(inner)])),
            patternProperties=(0.15, lambda: {self.rng.choice(["^x", "^[ab]", "c\\Z"]): self.schema(inner)}),
            propertyNames=(0.1, lambda: self.rng.choice([{"maxLength": 2}, {"pattern": "^[a-c]"}, {"enum": ["a", "b", "x"]}])),
            minProperties=(0.15, lambda: self.rng.randint(0, 2)), maxProperties=(0.15, lambda: self.rng.randint(0, 3)),
            dependentRequired=(0.1, lambda: {self.rng.choice("ab"): [self.rng.choice("cba")]}),
            dependentSchemas=(0.08, lambda: {self.rng.choice("ab"): {"required": ["c"]}}), unevaluatedProperties=(0.1, lambda: False),
        )  # fmt: skip

    def some(self, **keywords: tuple[float, Callable[[], Any]]) -> dict[str, Any]:
        return {keyword: value() for keyword, (chance, value) in keywords.items() if self.maybe(chance)}


_SAYS: dict[str, Callable[[_Maker, int], dict[str, Any]]] = {
    "string": _Maker.of_string,
    "number": _Maker.of_number,
    "integer": _Maker.of_number,
    "array": _Maker.of_array,
    "object": _Maker.of_object,
    "boolean": lambda made, depth: {},
    "null": lambda made, depth: {},
}
