"""Hostile sources: each of 300 ends in a machine whose steps stay within their budget, or in a ConstraintError. Nothing hangs."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator

from lmc.errors import ConstraintError, SchemaWarning
from lmc.fsm import lazy
from lmc.fsm.lazy import LazyDFA
from lmc.fsm.sources import machine_of
from tests.searching import some


def nested(levels: int, key: str) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", key: schema if key == "items" else [schema]}
    return schema


def doubling(levels: int) -> dict:
    steps = {f"a{i}": {"type": "object", "properties": {x: {"$ref": f"#/$defs/a{i + 1}"} for x in "ab"}} for i in range(levels)}
    return {"$defs": {**steps, f"a{levels}": {"type": "null"}}, "$ref": "#/$defs/a0"}


def regexes() -> Iterator[str]:
    rng = random.Random(20)
    yield from ("(.{1,100}){2,100}END", "(a{1,100}){1,100}", "((a{1,100}){1,100}){1,100}", "(a*)*b", "(a|a)*b", "(a?){200}a{200}", "(.*a){60}",
                "(.*.*.*.*)*x", "(x+x+)+y", "[ab]*a[ab]{300}", r"(?u)(\\w{1,300}\\s){1,300}", "(a{1,9999}){1,9999}", "(((a{9}){9}){9}){9}",
                "(a|b|ab|ba|aab){100,1000}", "(.{0,50}x.{0,50}){30}", r"\\d{1,9}(,\\d{1,9}){0,9999}", ".*[0-9].{60}.*", "(a|b)*a(a|b){20}")  # fmt: skip
    yield "|".join(f"choice{i}" for i in range(3000))

    def part(depth: int) -> str:
        if depth == 0:
            return rng.choice(["a", "b", ".", "[ab]", "[^a]", r"\\w", "ab?", "é"])
        inner = [part(depth - 1) for _ in range(rng.randint(1, 3))]
        body = rng.choice(["", "|", ".*"]).join(inner)
        low = rng.choice([0, 1, 2, 7])
        return f"({body}){rng.choice(['*', '+', '?', f'{{{low},{low + rng.choice([0, 9, 90, 900])}}}', ''])}"

    for _ in range(220):
        yield part(rng.randint(1, 4))


def schemas() -> Iterator[dict]:
    for levels in (10, 60, 150):
        yield from (nested(levels, "items"), nested(levels, "prefixItems"))
    yield from (doubling(levels) for levels in (5, 20, 60))
    yield {"enum": [f"choice {i} of many" for i in range(3000)]}
    yield {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(300)}}
    yield {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(60)}, "minProperties": 20, "maxProperties": 40}
    for n in (3, 6):
        yield {"type": "string", "allOf": [{"pattern": f"{c}.{{1,50}}{c}"} for c in "abcdef"[:n]]}
        yield {"oneOf": [{"type": "string", "pattern": f"^.*{i}.{{20}}$"} for i in range(n)]}
        yield {"oneOf": [{"type": "object", "properties": {f"a{i}": {"type": "integer"}}} for i in range(n * 5)]}
        yield {"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(n)]} for i in range(2 * n)]}
        yield {"type": "object", "patternProperties": {f"^{c}.*{c}$": {"type": "integer"} for c in "abcdefgh"[: n + 1]}}
        yield {"type": "array", "items": {"type": "integer"}, "allOf": [{"contains": {"const": i}, "minContains": n} for i in range(n)]}
    for high in (255, 32767, 10**6):
        yield {"type": "string", "minLength": high // 2, "maxLength": high}
        yield {"type": "string", "pattern": "^[a-z]+$", "maxLength": high}
        yield {"type": "string", "pattern": "(a|b)*a(a|b){20}", "maxLength": high}
        yield {"type": "array", "items": {"type": "array", "minItems": high}, "minItems": high}
    for step in (7, 9973, 10**9 + 7, 0.0001):
        yield {"type": "number", "multipleOf": step, "minimum": -1e15, "maximum": 1e15}
    for word in ("not", "anyOf", "allOf", "oneOf"):
        schema: dict = {"type": "null"}
        for _ in range(60):
            schema = {word: schema if word == "not" else [schema, {"const": 1}]}
        yield schema


def grammars() -> Iterator[tuple[str, str]]:
    yield "lark", "\n".join(["start: a0", *(f"a{i}: a{i + 1} a{i + 1}" for i in range(60)), 'a60: "x"'])
    yield "lark", 'start: "x"~1..5000'
    yield "lark", "start: e\ne: e e | e e e | \"x\"?"
    yield "ebnf", 'root ::= root root root | "a" | ""'
    yield "ebnf", "root ::= " + " ".join('("a" | "b")?' for _ in range(1500))
    for n in (2, 9, 40):
        yield "ebnf", "root ::= a0\n" + "\n".join(f'a{i} ::= a{(i + 1) % n} "x" | "y{i}" | a{(i * 7) % n}?' for i in range(n))
        yield "lark", "\n".join(["start: " + " | ".join(f"r{i}" for i in range(n))] + [f'r{i}: "a{i}" r{(i * 7) % n}? r{(i * 3) % n}?' for i in range(n)])
        for depth in (1, 3):
            yield "ebnf", f'root ::= {"(" * depth}"a" | "b" root?{")" * depth}{{0,{n * 100}}} root? "c"'
    tags = [{"begin": f"<f{i}", "content": {"type": "json_schema", "json_schema": {}}, "end": "</f>"} for i in range(40)]
    yield "structural_tag", json.dumps({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f"], "tags": tags}})


SOURCES = [*(("regex", r) for r in regexes()), *(("json_schema", json.dumps(s)) for s in schemas()), *grammars()]


def test_there_are_many():
    assert len(SOURCES) >= 300


@some("part", range(10), 5)
def test_every_source_ends_in_steps_within_the_budget_or_in_an_error(part):
    for kind, source in SOURCES[part::10]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SchemaWarning)
                machine = machine_of(kind, source)
            follow(machine)
        except ConstraintError as error:
            assert len(str(error)) > 20  # it says what is wrong


def follow(machine) -> None:
    state = 0
    for step in range(40):
        machine.begin()
        spent = machine._terms.spent if isinstance(machine, LazyDFA) else 0
        moves = machine.moves(state)
        if isinstance(machine, LazyDFA):
            assert machine._terms.spent - spent <= 2 * lazy.MOST_FORMS
        if not moves:
            break
        state = moves[step * 7 % len(moves)][1]
