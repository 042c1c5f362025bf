"""Hostile sources: each of 400 ends in a machine whose steps stay within their budget, or in a ConstraintError. Nothing hangs."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator

import pytest

from lmc.errors import ConstraintError, SchemaWarning
from lmc.fsm import grammar, lazy
from lmc.fsm.json_styles import Style
from lmc.fsm.lazy import LazyDFA
from lmc.fsm.lengths import ShortestLengths
from lmc.fsm.nodes import NodeGraph, Ref, parts_of
from lmc.fsm.sources import begun, grammar_of, lazily, machine_of
from lmc.fsm.terms import Terms
from lmc.fsm.tokens import TokenAutomaton
from tests.fsm.small_vocabulary import small
from tests.searching import apart, some


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

    yield from more_regexes()

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
    yield from more_schemas()


def grammars() -> Iterator[tuple[str, str]]:
    yield "lark", "\n".join(["start: a0", *(f"a{i}: a{i + 1} a{i + 1}" for i in range(60)), 'a60: "x"'])
    yield "lark", 'start: "x"~1..5000'
    yield "lark", 'start: e\ne: e e | e e e | "x"?'
    yield "ebnf", 'root ::= root root root | "a" | ""'
    yield "ebnf", "root ::= " + " ".join('("a" | "b")?' for _ in range(1500))
    for n in (2, 9, 40):
        yield "ebnf", "root ::= a0\n" + "\n".join(f'a{i} ::= a{(i + 1) % n} "x" | "y{i}" | a{(i * 7) % n}?' for i in range(n))
        yield "lark", "\n".join(["start: " + " | ".join(f"r{i}" for i in range(n))] + [f'r{i}: "a{i}" r{(i * 7) % n}? r{(i * 3) % n}?' for i in range(n)])
        for depth in (1, 3):
            yield "ebnf", f'root ::= {"(" * depth}"a" | "b" root?{")" * depth}{{0,{n * 100}}} root? "c"'
    tags = [{"begin": f"<f{i}", "content": {"type": "json_schema", "json_schema": {}}, "end": "</f>"} for i in range(40)]
    yield "structural_tag", json.dumps({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f"], "tags": tags}})
    yield from more_grammars()


def more_regexes() -> Iterator[str]:
    # exponential alternations with look-around
    yield r"(?=(a|ab|abc|b|bc)*$)(?!.*ccc)(a|b|c){0,200}"
    yield r"(?=.*a)(?=.*b)(?=.*c)(?=.*d)(?=.*e)(?=.*f)(?=.*g)(?=.*h)[a-z]{8,64}"
    yield r"(?!.*(a.{10}b))(?!.*(b.{10}a))[ab]{0,100}"
    yield r"(?<=x)(a|aa|aaa)*(?!a)|x(?=(a|aa)*b)[ab]*"
    yield r"(?=(.{1,50}x){1,20})(?=(.{1,50}y){1,20}).*"
    yield "".join(f"(?=.*{c})" for c in "abcdefghijklmnopqrst") + ".{20,}"
    yield "".join(f"(?!.*{c}.{{{i}}}{c})" for i, c in enumerate("abcdefghij", 3)) + "[a-j]*"
    yield r"(?=(a*)*b)(a|b)*"
    yield r"(\b\w{1,20}\b\W?){1,100}"
    yield r"(?m)(^\w+$\n?){1,500}"
    yield r"(?=(?=a)b)"  # nested
    yield r"(?!(?!a).*).*"
    # huge counters nested
    yield "a{1,99999}{1,99999}"
    yield "((a{2,3}){4,5}){100000}"
    yield "(((((a{0,50}){0,50}){0,50}){0,50}){0,50}){0,50}b"
    yield "(a{1000}){1000}b"
    yield "(.{0,1000}a){0,1000}.{0,1000}"
    yield "(x{3,7}y{2,9}){5,5000}(x{1,2}y{1,2}){0,9999}"
    yield "((ab?){1,300}c?){1,300}"
    yield "a{4294967295}"
    yield "(a?){5000}a{5000}"
    yield "([ab]{1,40}[bc]{1,40}[ca]{1,40}){1,40}"
    yield "(.*){1,1000}x"
    yield "(a{0,9}b{0,9}c{0,9}d{0,9}){0,9999}"
    yield "(?:(?:a{1,7}|a{2,11}|a{3,13}){1,17}|(?:a{5,19}){2,23}){1,29}b"
    # unicode classes and counters
    yield r"(?u)(\w\W){1,2000}"
    yield r"(?u)([\w\s]{1,50}\d{1,50}){1,50}"
    yield r"(?u)(\p{L}{1,99}\p{N}{1,99}\p{P}?){0,99}"
    yield r"(?iu)(ſ|K|k|S|s){1,500}\w{1,500}"
    yield r"(?u)" + "|".join(rf"\w{{{i}}}\d" for i in range(1, 60))
    yield r"(?u)(?!.*\p{Lu}{3})\p{L}{1,200}"
    yield r"\p{L}*\p{Lu}\p{L}{30}"
    yield "[" + "".join(chr(c) for c in range(0x100, 0x3000, 2)) + "]{1,300}"
    yield "|".join("[" + chr(0x4E00 + i) + "-" + chr(0x9000 + i) + "]" + chr(0x5000 + i) for i in range(200))
    yield "(" + "|".join(chr(0x1F300 + i) * 3 for i in range(700)) + "){1,50}"
    # determinisation
    yield "(a|b)*a(a|b){300}"
    yield "(.*a.{30}){5}"
    yield "|".join(f".*{a}.{{{i}}}{b}" for i, (a, b) in enumerate([(a, b) for a in "abcde" for b in "abcde"], 5))
    yield "(" + "|".join("ab"[i % 2] * (i + 1) for i in range(200)) + ")*c"
    yield "(" + "|".join("a" * p for p in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)) + "){10,400}b"
    yield ".*".join("abcdefghij" * 20)
    yield "(" * 3000 + "a" + ")*" * 3000
    yield "(a|" * 3000 + "b" + ")" * 3000
    yield "|".join("(" + "|".join(f"{a}{b}{i}" for a in "abcdef" for b in "abcdef") + ")" for i in range(60))
    yield "(?:" + "|".join(f"w{i}" for i in range(5000)) + r")(?:,(?:" + "|".join(f"w{i}" for i in range(5000)) + "))*"
    yield "(?i)" + "|".join(f"Word{i}x" for i in range(3000))
    yield "[a-z]" * 40000
    yield "(a?b?){2000}"


def more_schemas() -> Iterator[dict]:
    # $ref loops
    yield {"$ref": "#"}
    yield {"$defs": {f"a{i}": {"$ref": f"#/$defs/a{(i + 1) % 500}"} for i in range(500)}, "$ref": "#/$defs/a0"}
    yield {"$defs": {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)} | {"a40": {"type": "null"}}, "$ref": "#/$defs/a0"}
    yield {
        "$defs": {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"$ref": f"#/$defs/a{i + 2}"}]} for i in range(60)}
        | {"a60": {"type": "null"}, "a61": {"type": "integer"}},
        "$ref": "#/$defs/a0",
    }
    yield {
        "$defs": {f"a{i}": {"oneOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"const": i}]} for i in range(120)} | {"a120": {"type": "string"}},
        "$ref": "#/$defs/a0",
    }
    yield {
        "$defs": {f"a{i}": {"type": "object", "properties": {f"p{j}": {"$ref": f"#/$defs/a{(i * 7 + j) % 60}"} for j in range(30)}} for i in range(60)},
        "$ref": "#/$defs/a0",
    }
    yield {"$defs": {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{(i + 1) % 300}"}} for i in range(300)}, "$ref": "#/$defs/a0"}
    yield {"$defs": {f"a{i}": {"not": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(200)} | {"a200": {"type": "string"}}, "$ref": "#/$defs/a0"}
    yield {
        "$defs": {
            "t": {
                "type": "object",
                "properties": {"l": {"$ref": "#/$defs/t"}, "r": {"$ref": "#/$defs/t"}},
                "oneOf": [{"required": ["l"]}, {"required": ["r"]}, {"maxProperties": 0}],
            }
        },
        "$ref": "#/$defs/t",
    }
    yield {
        "$defs": {f"a{i}": {"if": {"required": [f"p{i}"]}, "then": {"$ref": f"#/$defs/a{i + 1}"}, "else": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(30)}
        | {"a30": {"type": "object"}},
        "$ref": "#/$defs/a0",
    }
    # combinations
    yield {"allOf": [{"anyOf": [{"properties": {f"p{i}": {"const": j}}, "required": [f"p{i}"]} for j in range(6)]} for i in range(8)]}
    yield {"oneOf": [{"type": "object", "properties": {f"p{j}": {"type": "string", "pattern": f"^.{{{i}}}x"} for j in range(10)}} for i in range(30)]}
    yield {"type": "object", "patternProperties": {f".*{a}.{{{i}}}{a}": {"type": "integer"} for i, a in enumerate("abcdefghij")}}
    yield {
        "type": "object",
        "patternProperties": {f"^{a}{{1,{i + 2}}}": {"minimum": i} for i, a in enumerate("aaaaaaaaaa")},
        "propertyNames": {"pattern": "^[a-c]{1,300}$"},
        "minProperties": 5,
    }
    yield {"type": "array", "contains": {"type": "integer", "multipleOf": 7}, "minContains": 30, "maxContains": 60, "uniqueItems": True}
    yield {"type": "array", "allOf": [{"contains": {"multipleOf": n}} for n in (2, 3, 5, 7, 11, 13)]}
    yield {"type": "number", "allOf": [{"multipleOf": n} for n in (3, 7, 11, 13, 17)], "minimum": -(10**14)}
    yield {"type": "number", "multipleOf": 1e-9, "minimum": 0.123456789, "maximum": 9.87654321e8}
    yield {"type": "integer", "minimum": -(10**300), "maximum": 10**300, "not": {"multipleOf": 9973}}
    yield {"type": "string", "allOf": [{"pattern": f"{a}.{{5}}{b}"} for a in "abc" for b in "abc"], "maxLength": 500}
    yield {"type": "string", "not": {"anyOf": [{"pattern": f"{a}.{{6}}{b}"} for a in "abc" for b in "abc"]}, "minLength": 10}
    yield {"type": "string", "pattern": r"^(?u)[\w\s]{1,300}$", "not": {"pattern": r"\d{5}"}, "maxLength": 400}
    yield {"type": "string", "format": "email", "pattern": r"@.{1,63}\.", "maxLength": 320, "minLength": 30}
    yield {"type": "string", "allOf": [{"format": f} for f in ("uri", "hostname", "email", "date")]}
    yield {"enum": [list(range(i, i + 30)) for i in range(400)]}
    yield {"enum": [{f"k{j}": "v" * (i % 50) for j in range(10)} for i in range(500)]}
    yield {
        "type": "object",
        "properties": {f"p{i}": {"enum": [f"v{j}" for j in range(200)]} for i in range(200)},
        "required": [f"p{i}" for i in range(0, 200, 2)],
    }
    yield {
        "type": "object",
        "properties": {
            f"p{i}": {"type": "object", "properties": {f"q{j}": {"type": "integer", "minimum": j, "maximum": 10**9 + j} for j in range(30)}} for i in range(60)
        },
    }
    yield {"type": "object", "dependentRequired": {f"p{i}": [f"p{(i + 1) % 12}"] for i in range(12)}, "properties": {f"p{i}": True for i in range(12)}}
    yield {
        "type": "object",
        "dependentSchemas": {f"p{i}": {"required": [f"p{(i + 1) % 12}"]} for i in range(12)},
        "properties": {f"p{i}": True for i in range(12)},
        "unevaluatedProperties": False,
    }
    yield {"prefixItems": [{"anyOf": [{"const": i}, {"const": "x" * i}]} for i in range(400)], "unevaluatedItems": False}
    yield {"$dynamicRef": "#m", "$defs": {"a": {"$dynamicAnchor": "m", "anyOf": [{"type": "null"}, {"type": "array", "items": {"$dynamicRef": "#m"}}]}}}
    yield {"type": "object", "minProperties": 1000, "maxProperties": 2000, "properties": {f"p{i}": {"type": "null"} for i in range(1500)}}
    yield {"properties": {"a": {"const": "\ud800"}, "": {"const": {"": {"": [[], {}, ""]}}}}, "required": ["", "a"]}


def more_grammars() -> Iterator[tuple[str, str]]:
    yield "lark", "start: e\n" + "e: " + " | ".join(f'e "{c}" e' for c in "+-*/%^&|") + ' | "(" e ")" | /\\d+/'
    yield "lark", 'start: a\na: b "x" | "y"\nb: c "z" | a\nc: b "w" | a "v" | "u"'
    yield "lark", 'start: s\ns: s s | s s s | s s s s | "a"'
    yield "lark", "start: " + " ".join(f"x{i}?" for i in range(60)) + "\n" + "\n".join(f'x{i}: "a" | "a" "a" | x{(i + 1) % 60}? "b"' for i in range(60))
    yield "lark", "start: (A | B | C)*\nA: /a{1,50}/\nB: /(a|b){1,50}/\nC: /[a-c]{1,50}b/"
    yield "lark", 'start: x~100..200\nx: y~10..300\ny: /\\w{1,30}/ ","?'
    yield "lark", 'start: t{t{t{t{"a"}}}}\nt{x}: x x | "(" x ")"'
    yield "lark", 'start: t{"a"}\nt{x}: t{(x x)} | x'
    yield "ebnf", "root ::= a\n" + "\n".join(f'a{"b" * i} ::= a{"b" * (i + 1)} a{"b" * (i + 1)} | "x"' for i in range(40)) + f'\na{"b" * 40} ::= "y"'
    yield "ebnf", 'root ::= root? root? root? root? "a"?'
    yield "ebnf", 'root ::= ("a" root "b" | "a" root "c" | "a" root | root "a")? "d"?'
    yield "ebnf", "root ::= x{1,100000}\nx ::= y{0,100}\ny ::= [a-z]{1,1000} | x"
    yield "ebnf", "root ::= " + "(" * 2000 + '"a"' + ")" * 2000
    yield (
        "ebnf",
        "root ::= " + " | ".join(f'"{i:x}" r{i}' for i in range(2000)) + "\n" + "\n".join(f'r{i} ::= r{(i * 3 + 1) % 2000} "z" | "{i}"' for i in range(2000)),
    )
    yield "ebnf", 'root ::= a b c d\na ::= b? c? d? "1"?\nb ::= c? d? a? "2"?\nc ::= d? a? b? "3"?\nd ::= a? b? c? "4"?'
    yield (
        "structural_tag",
        json.dumps(
            {
                "type": "structural_tag",
                "format": {
                    "type": "triggered_tags",
                    "triggers": ["<"],
                    "tags": [{"begin": "<" * (k + 1), "content": {"type": "any_text"}, "end": ">" * (k + 1)} for k in range(20)],
                },
            }
        ),
    )
    yield (
        "structural_tag",
        json.dumps(
            {
                "type": "structural_tag",
                "format": {
                    "type": "sequence",
                    "elements": [{"type": "repeat", "content": {"type": "regex", "pattern": "(a|b){1,100}"}, "min": 0, "max": 500} for _ in range(20)],
                },
            }
        ),
    )
    f = {"type": "any_text"}
    for _ in range(150):
        f = {"type": "tag", "begin": "<", "content": f, "end": ">"}
    yield "structural_tag", json.dumps({"type": "structural_tag", "format": f})


SOURCES = [*(("regex", r) for r in regexes()), *(("json_schema", json.dumps(s)) for s in schemas()), *grammars()]


def test_there_are_many():
    assert len(SOURCES) >= 400


@some("part", range(40), 40)
def test_every_source_ends_in_steps_within_the_budget_or_in_an_error(part):
    for kind, source in SOURCES[part::40]:
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
            assert machine._terms.spent - spent <= 2 * lazy.MOST_FORMS and machine._terms.spent <= 2 * lazy.MOST_FORMS + (step + 1) * machine.forms_a_step
        if not moves:
            break
        state = moves[step * 7 % len(moves)][1]


def test_masks_that_each_take_long_end_in_an_error(monkeypatch):
    """Each of 40 steps kept to a budget of its own: two seconds in all, with a large vocabulary."""
    monkeypatch.setattr(lazy, "MOST_FORMS", 8000)
    monkeypatch.setattr(lazy, "FORMS_A_STEP", 100)
    vocabulary, encode = small()
    automaton = TokenAutomaton(begun("regex", "(.*a.{30}){5}"), vocabulary)
    state, most, steps = automaton.start, 0, 0
    with pytest.raises(ConstraintError, match="following this constraint takes too long"):
        for token in encode("abab" * 40):
            spent, steps = automaton.dfa.lazy._terms.spent, steps + 1
            automaton.mask(state)
            state = automaton.next(state, token)
            most = max(most, automaton.dfa.lazy._terms.spent - spent)
    assert most < lazy.MOST_FORMS / 2 and automaton.dfa.lazy._terms.spent < lazy.MOST_FORMS + (2 * steps + 1) * lazy.FORMS_A_STEP


def calls_of(monkeypatch, owner: type, name: str) -> list[object]:
    """One item for each call of a method from now on."""
    calls, method = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda self, *args: calls.append(None) or method(self, *args))
    return calls


def test_repeats_behind_each_of_many_optional_ones_are_paid(monkeypatch):
    """A million frames, of 1,500 repeats for each of them, were free: half a second until an error."""
    frames = calls_of(monkeypatch, Terms, "frame")
    machine = machine_of("ebnf", "root ::= " + '("a" | "b")? ' * 1500)
    with pytest.raises(ConstraintError, match="following this constraint takes too long"):
        follow(machine)
    assert len(frames) < 8 * lazy.MOST_FORMS


@apart
def test_each_of_a_thousand_properties_may_come_next_at_each_step():
    """Their budget was that of few: an error after nine tokens of the first name."""
    vocabulary, encode = small()
    names = [f"property_{i:05}" for i in range(1000)]
    automaton = TokenAutomaton(begun("json_schema", json.dumps({"properties": {name: {"type": "null"} for name in names}})), vocabulary)
    state = automaton.start
    for token in encode(json.dumps({names[500]: None})):
        assert automaton.mask(state)[token >> 5] >> (token & 31) & 1
        state = automaton.next(state, token)
    assert automaton.is_done(state)


def compiled(kind: str, source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SchemaWarning)
        machine_of(kind, source)


@apart
def test_combinations_of_nested_oneof_are_counted():
    """Each of 120 arms within each other was combined with all others: five seconds."""
    steps = {f"a{i}": {"oneOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"const": i}]} for i in range(120)}
    with pytest.raises(ConstraintError, match="too many schemas that combine others"):
        compiled("json_schema", json.dumps({"$defs": {**steps, "a120": {"type": "string"}}, "$ref": "#/$defs/a0"}))


def test_rules_that_begin_with_each_other_are_counted():
    """Their graphs are as large as the square of their number."""
    rules = "\n".join(f'r{i} ::= r{(i + 1) % 1000} "z" | "{i}"' for i in range(1000))
    with pytest.raises(ConstraintError, match="'r0' and 999 more"):
        compiled("ebnf", f"root ::= r0\n{rules}")


def test_remainders_of_many_multiples_are_paid_before_they_are_found():
    """An automaton for each product of the six steps took five seconds."""
    schema = {"type": "array", "allOf": [{"contains": {"multipleOf": n}} for n in (2, 3, 5, 7, 11, 13)]}
    with pytest.warns(SchemaWarning, match="multipleOf"):
        machine_of("json_schema", json.dumps(schema))


def test_marks_of_long_sequences_are_written_once(monkeypatch):
    """Each comma of each array of an enum was a text of its own in each style."""
    written: list[object] = []
    mark = Style.mark
    monkeypatch.setattr(Style, "mark", lambda style, *of: written.append((style, *of)) or mark(style, *of))
    made = begun("json_schema", json.dumps({"enum": [list(range(i, i + 30)) for i in range(100)]}))
    made.moves(0)
    made.moves(made.step(0, b"["))
    assert len(written) == len(set(written))


def test_arrays_of_an_enum_share_their_beginnings():
    """All numbers of all arrays were looked at before the first one was written: 0.4 s and more."""
    arrays = [[*range(20), i, *range(9)] for i in range(400)]
    made = begun("json_schema", json.dumps({"enum": arrays}))
    made.begin()
    assert made.moves(made.step(0, b"[0, 1")) == [(ord(","), made.step(0, b"[0, 1,"))]
    assert made._terms.spent < 1000
    assert all(made.accepts(json.dumps(array).encode()) for array in arrays[:3])


def test_what_only_one_value_of_an_enum_goes_on_with_is_one_text():
    """Each item of each array was an edge, of all of which the first mask made a list: 15 ms."""
    arrays = [*[list(range(i, i + 30)) for i in range(100)], [3, 4], [3, 4, 5], [3], list(range(3, 34)), [3, 4, 5, "6"]]
    made, edges = grammar_of("json_schema", json.dumps({"enum": arrays})), 0
    seen, todo = set[int](), [made.start, *made.rules.values()]
    for node in todo:
        if id(node) not in seen and not isinstance(node, Ref):
            seen.add(id(node))
            todo += parts_of(node)
            edges += len(node.edges) if isinstance(node, NodeGraph) else 0
    assert edges < 250
    machine = lazily(made)
    others = [[3, 4, 5, 6], list(range(3, 32)), list(range(3, 35)), list(range(100, 130)), [4], [3, 4, 5, 6, "7"], []]
    assert [machine.accepts(json.dumps(array).encode()) for array in arrays + others] == [True] * len(arrays) + [False] * len(others)


def test_what_is_too_large_in_one_style_is_not_written_in_all(monkeypatch):
    """An enum of hundreds of arrays was written four times before it was found too large for a whole automaton: half a second."""
    monkeypatch.setattr(grammar, "written", None)
    assert isinstance(machine_of("json_schema", json.dumps({"enum": [list(range(i, i + 30)) for i in range(400)]})), LazyDFA)


def test_a_long_chain_of_rules_is_looked_through_a_few_times(monkeypatch):
    """As often as there are rules: seconds to the first mask and to the nearest end, or an error of the recursion limit."""
    visits = calls_of(monkeypatch, ShortestLengths, "of")
    rules = [f'r{i} ::= "[" r{(i + 1) % 1500} "]"' for i in range(1500)]
    for order in (rules, rules[::-1]):
        made = begun("ebnf", "\n".join(["root ::= r0", *order, 'r1499 ::= "x"']))
        assert (made.representative(0), made.distance(0)) == (0, 2 * 1499 + 1)
    assert len(visits) < 2 * 3 * 5 * 1500


def test_each_part_of_rules_in_any_order_is_looked_at_once(monkeypatch):
    """All were looked at again for each rule that turned out to derive some text: the square of their number, and a list as long."""
    visits = calls_of(monkeypatch, grammar.Survey, "_visit")
    rules = [f'r{i} ::= "[" r{(i + 1) % 1000} "]"' + (' | "x"' if i == 0 else "") for i in range(1000)]
    random.Random(1).shuffle(rules)
    survey = grammar_of("ebnf", "\n".join(["root ::= r1", *rules, 'dead ::= "a" dead'])).survey
    assert survey.productive == {*(f"r{i}" for i in range(1000)), "root"} and not survey.whole
    assert survey.places < 4 * 1000 and len(visits) < 3 * 1000


@pytest.mark.parametrize("n", [300, 3000])
def test_the_end_of_a_chain_of_rules_without_recursion_is_found(n, monkeypatch):
    """Its length was found by as many calls within each other: an error of the recursion limit from 300 rules on."""
    visits = calls_of(monkeypatch, ShortestLengths, "of")
    rules = [f'r{i} ::= "[" r{i + 1} ("]" | r{i + 1})?' for i in range(n)]
    source = "\n".join(["root ::= r0", *rules, f'r{n} ::= "x"'])
    made = begun("ebnf", source)
    assert made.distance(made.step(0, b"[[")) == n - 2 + 1
    assert len(visits) < 10 * n
