import itertools
import json
import random
import re
from datetime import datetime, time
from decimal import Decimal
from functools import cache
from ipaddress import ip_address

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lmc.errors import ConstraintError, SchemaWarning
from lmc.fsm import json_disjointness, json_disjuncts, json_schema
from lmc.fsm.algebra import repeated_other_than
from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.dfa import build
from lmc.fsm.forced import _Endings
from lmc.fsm.grammar import Grammar
from lmc.fsm.json_formats import FORMATS, may_be
from lmc.fsm.json_keywords import KEYWORDS
from lmc.fsm.json_schema import checker_of, compile_schema
from lmc.fsm.json_shapes import type_of
from lmc.fsm.json_text import NOTHING, Bounds, integer, limited, number
from lmc.fsm.nodes import Chars, NodeGraph, parts_of
from lmc.fsm.regex import parse
from lmc.fsm.sources import automaton_of, ebnf_of, lazily, machine_of
from tests.fsm.random_schemas import VALUES, random_schema
from tests.fsm.schemas import LATER, RECURSIVE, REFUSED, SCHEMAS
from tests.searching import search, size, some


def automaton(schema) -> ArrayDFA:
    dfa = _automaton(json.dumps(schema))
    assert dfa is not None
    return dfa


@cache
def _automaton(source: str) -> ArrayDFA | None:
    return in_arrays(automaton_of("json_schema", source))


def in_arrays(dfa: ByteDFA | None) -> ArrayDFA | None:
    return None if dfa is None else ArrayDFA.of(dfa)


def samples(dfa: ArrayDFA, count: int, seed: int = 0) -> list[str]:
    """Random texts of the language: bytes as they come, often ASCII, then the shortest way out."""
    rng, endings, found = random.Random(seed), _Endings(dfa), []
    for _ in range(count):
        out, state = bytearray(), 0
        for _ in range(rng.choice([3, 20, 200])):
            ways = np.flatnonzero(dfa.table[state] >= 0).tolist()
            if not ways or (dfa.final[state] and rng.random() < 0.2):
                break
            plain = [b for b in ways if b < 128]
            byte = rng.choice(plain if plain and rng.random() < 0.8 else ways)
            out.append(byte)
            state = int(dfa.table[state, byte])
        found.append((bytes(out) + endings._shortest(state, 1 << 20)).decode())
    return found


def validator(schema):
    """A validator of the jsonschema package; decimals are exact."""
    import jsonschema

    checker = jsonschema.FormatChecker(formats=())
    for name, check in _CHECKS.items():
        checker.checks(name, raises=ValueError)(lambda text, check=check: not isinstance(text, str) or bool(check(text)))
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(exact, format_checker=checker)


def _is_regex(text: str) -> bool:
    try:
        return bool(re.compile(text))
    except re.error:
        return False


_CHECKS = {
    "date": lambda t: re.fullmatch(r"\d{4}-\d\d-\d\d", t) and datetime.strptime(t, "%Y-%m-%d"),
    "time": time.fromisoformat,
    "date-time": datetime.fromisoformat,
    "duration": lambda t: re.fullmatch(r"P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)", t) and not re.search(r"\dY\d+D|\dH\d+S", t),
    "regex": lambda t: _is_regex(t),
    "email": lambda t: re.fullmatch(r"[^@\s]+@[^@\s]+", t),
    "hostname": lambda t: len(t) < 254 and all(re.fullmatch(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)", x) for x in t.split(".")),
    "ipv4": lambda t: ip_address(t).version == 4,
    "ipv6": lambda t: ip_address(t).version == 6,
    "uuid": lambda t: re.fullmatch(r"(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", t),
    "uri": lambda t: re.fullmatch(r"[A-Za-z][\w+.-]*://[^\s<>\"{}|\\^`]+", t),
    "json-pointer": lambda t: re.fullmatch(r"(/([^~/]|~[01])*)*", t, re.DOTALL),
}


def is_valid(valid, text: str) -> bool:
    return valid.is_valid(_parsed(text, valid.schema))


def _parsed(text: str, schema):
    exact = "multipleOf" in json.dumps(schema, default=str)  # binary fractions are no multiples of 0.01
    return json.loads(text, parse_float=Decimal if exact else float)


@some("name", SCHEMAS, 6)
def test_texts_that_belong_and_texts_that_do_not(name):
    schema, good, bad = SCHEMAS[name]
    dfa, valid = automaton(schema), validator(schema)
    assert [t for t in good if not dfa.accepts(t.encode())] == []
    assert [t for t in bad if dfa.accepts(t.encode("utf-8", "surrogatepass"))] == []
    check_that_texts_validate(schema, dfa, valid)
    check_that_what_is_changed_and_accepted_validates(schema, dfa, valid)


def check_that_texts_validate(schema, dfa, valid):
    for text in samples(dfa, size(4, 25)):
        value = _parsed(text, schema)
        # nullable is OpenAPI's; everything else is judged by the package
        assert valid.is_valid(value) or (value is None and schema.get("nullable")), text


def check_that_what_is_changed_and_accepted_validates(schema, dfa, valid):
    rng = random.Random(1)
    for text in samples(dfa, size(2, 8), seed=2):
        for _ in range(12):
            at = rng.randrange(len(text) + 1)
            cut = rng.choice([0, 1, 1, 2])
            changed = text[:at] + rng.choice(["", '"', "0", "a", ",", " ", "}", "\\", "\n"]) + text[at + cut :]
            try:
                fine = valid.is_valid(_parsed(changed, schema))
            except ValueError:
                fine = False
            if dfa.accepts(changed.encode("utf-8", "surrogatepass")):
                assert fine or (schema.get("nullable") and changed == "null"), changed


def test_every_keyword_has_a_schema():
    found: set[str] = set()

    def walk(x):
        if isinstance(x, dict):
            found.update(x)
            for v in x.values():
                walk(v)
        elif isinstance(x, list):
            for v in x:
                walk(v)

    for cases in (SCHEMAS, RECURSIVE):
        for schema, _, _ in cases.values():
            walk(schema)
    notes = {"example", "contentEncoding", "contentMediaType", "contentSchema", "externalDocs", "xml", "id", "$vocabulary"}
    references = {"$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"}  # test_drafts_and_references
    assert KEYWORDS - found <= notes | references
    assert len(SCHEMAS) >= 100
    assert {schema.get("format") for schema, _, _ in SCHEMAS.values()} >= set(FORMATS)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_enforced_is_refused_by_name_and_place(name):
    schema, says = REFUSED[name]
    source = json.dumps(schema)
    with pytest.raises(ConstraintError, match=says):
        if automaton_of("json_schema", source) is None:
            ebnf_of("json_schema", source)


@some("name", LATER, 4)
def test_what_no_automaton_holds_is_said_and_checked_when_the_answer_ends(name):
    schema, says, good, bad = LATER[name]
    source = json.dumps(schema)
    json_schema.compile_schema.cache_clear()
    with pytest.warns(SchemaWarning, match=f"{says}.*: checked when the answer ends"):
        compiled = compile_schema(source)
    assert compiled.check is not None
    machine = lazily(compiled.grammar)
    for value, valid in ((good, True), *([(bad, False)] if bad is not None else [])):
        text = json.dumps(value)
        assert machine.accepts(text.encode())  # more than the schema allows
        assert (compiled.check(text) is None) == valid == validator(schema).is_valid(value)
    with pytest.raises(ConstraintError, match=says):
        compile_schema(json.dumps({**schema, "x-lmc": {"strict": True}}))


def test_too_many_items_that_may_be_left_out_are_refused_as_such():
    with pytest.raises(ConstraintError, match="too many items that may be left out"):
        compile_schema(json.dumps({"type": "array", "prefixItems": [{"type": "integer"}] * 5000}))


@pytest.mark.parametrize(
    ("text", "says"), [("[" * 5000 + "]" * 5000, "nested too deep"), ("[" + "1" * 5000 + "]", "4300 digits"), (f"[1e{10**19}]", "too large an exponent")]
)
def test_an_answer_that_python_cannot_read_is_not_valid(text, says):
    json_schema.compile_schema.cache_clear()
    with pytest.warns(SchemaWarning, match="uniqueItems"):
        check = compile_schema('{"type": "array", "uniqueItems": true}').check
    assert check is not None and says in str(check(text))
    with pytest.raises(ConstraintError, match=r"cannot be read: .*4300 digits"):
        compile_schema('{"const": ' + "1" * 5000 + "}")
    with pytest.raises(ConstraintError, match=r"1e-1000.* has more than 300 digits"):
        compile_schema(f'{{"minimum": 1e-{10**19}}}')


@pytest.mark.parametrize("text", ["@[" * 500_000 + " ", "@[a" * 300_000])
def test_an_address_of_many_brackets_is_looked_through_once(text):
    """From each bracket to the end: twenty minutes for texts of these lengths."""
    assert not may_be("email", text + " ") and not may_be("email", "a b" + text + " c")


def test_addresses_that_others_have_written():
    good = ["a@b", "a b@c", "a@[1.2.3.4]", "a@[IPv6:::1]", "a@[b@c]", "a@b@[c]", "a@[[b]"]
    assert [t for t in (*good, "a@", "@b", "a@b c", "a@[b c]") if may_be("email", t)] == good


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string", "longest": 3}, r"ignored: the keyword 'longest' at /$"),
        ({"type": "object", "properties": {"a": {"type": "integer", "mininum": 1}}}, r"'mininum' \(did you mean 'minimum'\?\) at /properties/a"),
        ({"type": "object", "additonalProperties": False}, r"\(did you mean 'additionalProperties'\?\)"),
        ({"type": "string", "format": "color"}, "ignored: the format 'color' at /"),
        ({"tpye": "string"}, r"'tpye' \(did you mean 'type'\?\) at /"),
        ({"type": "string", "format": "emial"}, r"\(did you mean 'email'\?\)"),
        ({"type": "string", "format": "datetime"}, r"the format 'datetime' \(did you mean 'date-time'\?\)"),
        ({"x-a": 1, "$ref": "#/$defs/b", "$defs": {"b": {"type": "null", "x-b": 2}}}, "'x-a' at /, the keyword 'x-b' at /[$]defs/b"),
    ],
)
def test_what_says_nothing_is_ignored_with_one_warning(schema, says):
    json_schema.compile_schema.cache_clear()
    with pytest.warns(SchemaWarning, match=says) as said:
        found = compile_schema(json.dumps(schema))
    assert len(said) == 1 and found.check is None
    with pytest.raises(ConstraintError, match="which says nothing"):
        compile_schema(json.dumps({**schema, "x-lmc": {"strict": True}}))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 1, "exclusiveMinimum": True}, [2], [1]),
        ({"type": "object", "properties": {"a": {"$ref": "#/definitions/n"}}, "definitions": {"n": {"type": "integer"}}, "required": ["a"]}, [{"a": 1}],
            [{"a": "x"}]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/n", "maxLength": 1, "definitions": {"n": {"type": "string"}}}, ["long"],
            [1]),
        ({"$ref": "#/$defs/n", "maxLength": 1, "$defs": {"n": {"type": "string"}}}, ["l"], ["long"]),
        ({"$id": "https://x.org/a", "$ref": "b#here", "$defs": {"b": {"$id": "b", "$defs": {"c": {"$anchor": "here", "type": "null"}}}}}, [None], [1]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "allOf": [{"$ref": "#n"}], "definitions": {"n": {"$id": "#n", "type": "null"}}}, [None], [1]),
        ({"$id": "https://x.org/tree", "$dynamicAnchor": "node", "type": "object", "properties": {"next": {"$dynamicRef": "#node"}}},
         [{"next": {"next": {}}}], [{"next": 1}]),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": True, "type": "object",
            "properties": {"next": {"$recursiveRef": "#"}}},
         [{"next": {}}], [{"next": 1}]),
        ({"multipleOf": 1.5, "allOf": [{"multipleOf": 2}], "type": "integer"}, [6, 0, -12], [2, 3, 4]),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [1.5], [1, "a"]),
        ({"oneOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "string"}]}, ["a", {"a": 1}], [1]),
        ({"oneOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"}, [2, 6], [3, 4, 5]),
        ({"type": "object", "properties": {"a": True}, "unevaluatedProperties": {"type": "integer"}}, [{"a": "x", "b": 1}], [{"b": "x"}]),
        ({"type": "object", "not": {"not": {"properties": {"foo": {"const": 1}}, "required": ["foo"]}}, "required": ["b"],
          "properties": {"b": True}, "unevaluatedProperties": {"const": 1}}, [{"b": 0, "foo": 1}], [{"b": 0, "foo": 2}]),
        ({"type": "array", "items": {"type": "integer"}, "additionalItems": False}, [[1, 2]], [["a"]]),
    ],
)  # fmt: skip
def test_drafts_and_references(schema, good, bad):
    compiled = compile_schema(json.dumps(schema))
    assert compiled.check is None
    machine, valid = lazily(compiled.grammar), validator(schema)
    assert [v for v in good if not machine.accepts(json.dumps(v).encode()) or not valid.is_valid(v)] == []
    assert [v for v in bad if machine.accepts(json.dumps(v).encode()) or valid.is_valid(v)] == []


def test_what_only_a_double_negation_speaks_of_is_not_evaluated():
    schema = {"type": "object", "properties": {"b": {"const": 0}}, "not": {"not": {"properties": {"foo": {"const": 1}}}}, "unevaluatedProperties": False}
    machine = lazily(compile_schema(json.dumps(schema)).grammar)
    assert machine.accepts(b'{"b": 0}') and not machine.accepts(b'{"foo": 1}') and not machine.accepts(b'{"b": 0, "foo": 1}')


@pytest.mark.parametrize(
    ("both", "says"),
    [(lambda two: {"allOf": two}, "too many schemas that combine"), (lambda two: {"anyOf": two}, "too many schemas that combine|more than 256 ways")],
)
def test_schemas_that_double_at_each_reference_are_refused_soon(both, says, monkeypatch):
    monkeypatch.setattr(json_disjuncts, "_MOST_LOOKS", 1000)
    steps = {f"a{i}": both([{"$ref": f"#/$defs/a{i + 1}"}] * 2) for i in range(60)}
    with pytest.raises(ConstraintError, match=says):
        compile_schema(json.dumps({"$defs": {**steps, "a60": {"type": "integer"}}, "$ref": "#/$defs/a0"}))


@pytest.mark.parametrize("both", [lambda two: {"type": "array", "prefixItems": two}, lambda two: {"type": "object", "properties": dict(zip("ab", two))}])
def test_schemas_that_double_at_each_reference_are_written_once(both):
    steps = {f"a{i}": both([{"$ref": f"#/$defs/a{i + 1}"}] * 2) for i in range(60)}
    machine = machine_of("json_schema", json.dumps({"$defs": {**steps, "a60": {"type": "integer"}}, "$ref": "#/$defs/a0"}))
    assert machine.step(0, b"[" * 9) >= 0 or machine.step(0, b'{"a": ' * 9) >= 0


@pytest.mark.parametrize("source", ["{oops", "[1]", '"x"', '{"minimum": NaN}'])
def test_what_is_no_schema_is_refused(source):
    with pytest.raises(ConstraintError, match="json_schema"):
        compile_schema(source)


@some("name", RECURSIVE, 5)
def test_recursive_schemas_have_no_automaton_but_one_to_a_depth(name):
    schema, good, bad = RECURSIVE[name]
    assert automaton_of("json_schema", json.dumps(schema)) is None
    dfa = automaton({**schema, "x-lmc": {"depth": 4}})
    assert [t for t in good if not dfa.accepts(t.encode())] == []
    assert [t for t in bad if dfa.accepts(t.encode())] == []
    valid = validator(schema)
    assert all(is_valid(valid, t) for t in samples(dfa, 20))


def test_a_property_is_never_written_twice():
    dfa = automaton({"type": "object", "properties": {"ab": {"const": 1}}, "additionalProperties": {"const": 2}})
    assert dfa.accepts(b'{"ab": 1, "abc": 2, "a": 2}')
    assert not dfa.accepts(b'{"ab": 1, "ab": 2}') and not dfa.accepts(rb'{"ab": 1, "\u0061b": 2}')


def test_texts_are_what_python_writes():
    schema = {"type": "object", "properties": {"s": {"type": "string", "maxLength": 9}, "x": {"enum": [[1, {"k": "é\n"}]]}}}
    value = {"s": 'q"\\\n\té', "x": [1, {"k": "é\n"}]}
    assert automaton(schema).accepts(json.dumps(value, ensure_ascii=False).encode())


# -- what follows from what ----------------------------------------------------------------------------------------

_ONE_TWO = {"enum": [1, 2]}
_KINDS = {  # a schema, all its values, and what may be said besides
    "object": (
        {"type": "object", "properties": {"a": _ONE_TWO, "b": _ONE_TWO}, "additionalProperties": False},
        [{**a, **b} for a in ({}, {"a": 1}, {"a": 2}) for b in ({}, {"b": 1}, {"b": 2})],
        [{"required": ["a"]}, {"required": ["b"]}, {"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}},
         {"minProperties": 1}, {"maxProperties": 1}, {"dependentRequired": {"a": ["b"]}}, {"type": "object"}, {"type": "array"}, True, False],
    ),
    "array": (
        {"type": "array", "items": _ONE_TWO, "maxItems": 3},
        [list(x) for n in range(4) for x in itertools.product((1, 2), repeat=n)],
        [{"minItems": 1}, {"maxItems": 1}, {"minItems": 2, "maxItems": 2}, {"contains": {"const": 1}}, {"type": ["array", "null"]}],
    ),
    "integer": (
        {"type": "integer", "minimum": 0, "maximum": 7},
        list(range(8)),
        [{"minimum": 3}, {"exclusiveMaximum": 5}, {"maximum": 2}, {"const": 4}, {"enum": [1, 6]}, {"minimum": 2, "maximum": 5}, {"type": "string"}],
    ),
    "string": (
        {"type": "string", "pattern": "^[ab]{0,2}$"},
        ["", "a", "b", "aa", "ab", "ba", "bb"],
        [{"minLength": 1}, {"maxLength": 1}, {"pattern": "a"}, {"pattern": "^b"}, {"const": "ab"}, {"enum": ["", "bb"]}],
    ),
}  # fmt: skip


@st.composite
def conditions(draw, plain, depth=2):
    """A schema of the keywords that say what must not be, and what follows from what."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(plain))
    inner = conditions(plain, depth - 1)
    kind = draw(st.sampled_from(["not", "if", "anyOf", "allOf"]))
    if kind == "not":
        return {"not": draw(inner)}
    if kind == "if":
        return {"if": draw(inner)} | {k: draw(inner) for k in ("then", "else") if draw(st.booleans())}
    return {kind: [draw(inner), draw(inner)]}


@search(12, 600)
@given(st.sampled_from(sorted(_KINDS)), st.data())
def test_what_follows_from_what_holds_for_exactly_the_values_that_it_should(kind, data):
    base, values, plain = _KINDS[kind]
    schema = {**base, "allOf": [data.draw(conditions(plain))]}
    valid = validator(schema)
    try:
        dfa = automaton_of("json_schema", json.dumps(schema))
    except ConstraintError as error:
        assert not any(map(valid.is_valid, values)), error
        return
    assert dfa is not None
    check = compile_schema(json.dumps(schema)).check or (lambda text: None)
    assert [v for v in values if (dfa.accepts(json.dumps(v).encode()) and check(json.dumps(v)) is None) != valid.is_valid(v)] == []


@search(24, 500)
@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_every_text_of_a_random_schema_validates(rng, depth):
    """And of a few values, those that are accepted. What is refused, or needs a stack, is not looked at."""
    schema = random_schema(rng, depth)
    try:
        dfa = automaton_of("json_schema", json.dumps(schema))
    except ConstraintError:
        return
    if dfa is None:
        return
    valid = validator(schema)
    check = compile_schema(json.dumps(schema)).check or (lambda text: None)
    texts = [*samples(ArrayDFA.of(dfa), 4), *(text for v in VALUES if dfa.accepts((text := json.dumps(v, ensure_ascii=False)).encode()))]
    texts = [text for text in texts if check(text) is None]
    try:
        assert [t for t in texts if not valid.is_valid(_parsed(t, schema))] == []
    except (ArithmeticError, RecursionError):  # the package's own: a large number % 0.1, a schema that leads to itself
        return


# -- numbers -------------------------------------------------------------------------------------------------------

decimals = st.decimals(-10**6, 10**6, places=2) | st.integers(-(10**6), 10**6).map(Decimal)


@st.composite
def bounds(draw) -> Bounds:
    low, high = draw(st.none() | decimals), draw(st.none() | decimals)
    if low is not None and high is not None and low > high:
        low, high = high, low
    step = draw(st.none() | st.sampled_from([Decimal(x) for x in ("1", "2", "7", "25", "0.5", "0.01", "1.5")]))
    made = Bounds(low, high, low is not None and draw(st.booleans()), high is not None and draw(st.booleans()), step)
    assume(not made.free)
    return made


def near(b: Bounds, rng: random.Random) -> Decimal:
    """A number near a bound, or anywhere."""
    at = rng.choice([x for x in (b.low, b.high) if x is not None] or [Decimal(0)])
    return at + Decimal(rng.randint(-(10 ** rng.randint(1, 7)), 10 ** rng.randint(1, 7))) / 100


@search(7, 200)
@given(bounds(), st.randoms(use_true_random=False))
def test_integers_within_bounds(b, rng):
    tree = integer(b)
    dfa = None if tree == NOTHING else build(tree)
    for _ in range(60):
        x = near(b, rng).to_integral_value()
        assert (dfa is not None and dfa.accepts(str(int(x)).encode())) == b.contains(x), x


@search(5, 150)
@given(bounds(), st.randoms(use_true_random=False))
def test_numbers_within_bounds(b, rng):
    tree = number(b)
    dfa = None if tree == NOTHING else build(tree)
    for _ in range(60):
        text = format(near(b, rng).normalize(), "f")
        accepted = dfa is not None and dfa.accepts(text.encode())
        assert accepted == b.contains(Decimal(text)) or text == "-0", text
    for text in samples(ArrayDFA.of(dfa), 5, seed=3) if dfa is not None else ():
        assert b.contains(Decimal(text))
        if b.step is None:  # what a reader makes of it, as a double
            assert b.contains(Decimal(repr(float(text)))), text


# -- against xgrammar ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def accepts():
    """Whether EBNF, as xgrammar reads it, has a text."""
    import xgrammar

    info = xgrammar.TokenizerInfo([*(bytes([i]) for i in range(256)), b"</s>"], xgrammar.VocabType.RAW, stop_token_ids=[256])
    compile_grammar = cache(xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar)

    def ask(ebnf: str, text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(compile_grammar(ebnf))
        return matcher.accept_string(text.encode("utf-8", "surrogatepass")) and matcher.is_completed()

    return ask


@pytest.mark.model
@pytest.mark.parametrize("name", [*RECURSIVE, *(n for n in SCHEMAS if "depth" not in json.dumps(SCHEMAS[n][0]))])
def test_ebnf_is_the_same_language(accepts, name):
    schema, good, bad = RECURSIVE.get(name) or SCHEMAS[name]
    ebnf = ebnf_of("json_schema", json.dumps(schema))
    assert [t for t in good if not accepts(ebnf, t)] == []
    assert [t for t in bad if accepts(ebnf, t)] == []


def test_the_type_of_a_number_with_a_large_exponent_is_known_at_once():
    check = compile_schema('{"type": ["integer", "string"], "not": {"const": 3}}').check
    assert check is None or check("1e999999999") is None
    assert type_of(Decimal("1e999999999")) == "integer" and type_of(Decimal("1.5")) == "number"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"multipleOf": 3}, ["3e999999999", "-0.6e1", "0e-999999999", "0.0"], ["1e999999999", "3e-999999999", "1.5"]),
        ({"multipleOf": 0.05}, ["1e999999999", "0.15", "-2", "1.50"], ["0.04", "5e-3", "1e-999999999"]),
        ({"uniqueItems": True}, ["[1e999999999, 1e999999998, 1, -1]"], ["[1e999999999, 10e999999998]", "[0.0, -0]", "[1.50, 1.5]"]),
    ],
)
def test_a_number_with_a_large_exponent_is_checked_at_once(schema, good, bad):
    wrong = checker_of(json.dumps(schema)).wrong
    assert [text for text in good if wrong(text) is not None] == [] == [text for text in bad if wrong(text) is None]


LIMITED = {  # patterns of which a length is a matter of counts, or None where it is not
    "[ab]+": True, "a[bc]*": True, "(ab){2,5}": True, "a|[ab]c*b": True, "[ab]{3}": True, "c[ab]{2,4}|a*": True, "(a|b)c+": True, "a?": True,
    "(ab|c)*": False, "a+b+": False, "(a|bc)d*": False, "(a*b)*": False,
}  # fmt: skip


@some("pattern", LIMITED, 2)
@pytest.mark.parametrize("low, high", [(0, 3), (2, None), (2, 4), (4, 4), (0, 0), (9, 9)])
def test_lengths_beside_a_pattern_are_counts_of_its_repeats(pattern, low, high):
    """So no product of automata is made, and states that are far from the bound are alike."""
    tree = parse(pattern)
    found = limited(tree, low, high)
    if found is None:
        assert not LIMITED[pattern]
        return
    texts = ["".join(t) for n in range(6) for t in itertools.product("abcd", repeat=n)]
    wanted = [t for t in texts if re.fullmatch(pattern, t) and low <= len(t) and (high is None or len(t) <= high)]
    made = lazily(Grammar(found)) if found != NOTHING else None
    assert [t for t in texts if made is not None and made.accepts(t.encode())] == wanted
    if LIMITED[pattern]:
        assert not any(isinstance(node, NodeGraph) for node in (found, *parts_of(found)))


def test_a_warning_is_short_and_one_line_whoever_wrote_the_schema():
    odd = {f"x{i}": 1 for i in range(1000)} | {"a\nERROR: forged": 1, "y" * 100_000: 1}
    late = {
        "properties": {
            f"p\n{i}": {"type": "array", "minItems": i, "items": {"type": "object", "properties": {"a": {}}}, "uniqueItems": True} for i in range(100)
        }
    }
    for schema in (dict(reversed(odd.items())), {"type": "object", **late}):
        with pytest.warns(SchemaWarning, match=r"and \d+ more") as warned:
            compile_schema(json.dumps(schema))
        assert len(str(warned[0].message)) < 4000 and "\n" not in str(warned[0].message)


@pytest.mark.parametrize(("value", "texts"), [("2.0", ["2", "2.0"]), ("2.5", ["2.5"]), ("2", ["2"]), ("[2.0]", ["[2]", "[2.0]"]), ("1e2", ["100"])])
def test_a_number_with_a_point_may_be_written_as_the_equal_integer(value, texts):
    """Of JSONSchemaBench's instances of `enum: [2.0]` one has 2."""
    made = lazily(compile_schema(f'{{"enum": [{value}, null]}}')[0])
    assert all(made.accepts(text.encode()) for text in texts)
    assert not any(made.accepts(text.encode()) for text in ("2.", "2.00", "20", "[]", "[2, 2]", "1"))


def test_values_that_begin_alike_are_what_they_are_alone():
    values = [[], [1], [1, 2], [1, [2]], [1, {"a": 1}], {}, {"a": 1}, {"a": 1, "b": [1]}, {"a": [1]}, {"b": 1}, [True], ["1"], "a", 1, [None, 1]]
    made = lazily(compile_schema(json.dumps({"enum": values}))[0])
    others = [[2], [1, 2, 3], [1, []], {"a": 2}, {"b": 1, "a": 1}, {"a": 1, "b": 1}, [[1]], [1, None]]
    for layout in ({}, {"separators": (",", ":")}, {"indent": 2}):
        assert all(made.accepts(json.dumps(v, **layout).encode()) for v in values)
        assert not any(made.accepts(json.dumps(v, **layout).encode()) for v in others)


def test_arms_that_a_property_tells_apart_are_not_compared_further(monkeypatch):
    """Each of 24 arms was compared with each other one, through all that `kind` refers to."""
    arms = [{"type": "object", "properties": {"kind": {"enum": [f"a{i}", f"b{i}"]}, "x": {"type": "integer"}}, "required": ["kind"]} for i in range(24)]
    monkeypatch.setattr(json_disjointness, "_apart", None)
    made = lazily(compile_schema(json.dumps({"oneOf": arms}))[0])
    assert made.accepts(b'{"kind": "b7", "x": 1}') and not made.accepts(b'{"kind": "c7"}')


@pytest.mark.parametrize("other", [{"enum": ["a", "c"]}, {"type": "string"}, {"enum": ["b", 1]}])
def test_arms_that_a_property_does_not_tell_apart_hold_alone(other):
    arms = [{"type": "object", "properties": {"k": kind, "x": {"const": n}}, "required": ["k"]} for n, kind in enumerate(({"enum": ["a", 1]}, other))]
    made = lazily(compile_schema(json.dumps({"oneOf": arms}))[0])
    both = [v for v in ("a", 1) if v in other.get("enum", ["a"])]
    assert not any(made.accepts(json.dumps({"k": v}).encode()) for v in both)
    assert made.accepts(json.dumps({"k": next(v for v in ("a", 1) if v not in both)}).encode())


PART = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/c"}]}}}}


def test_equal_parts_of_a_schema_are_compiled_once(monkeypatch):
    """Schemas made by a program write the same part wherever it is used: one with 40 of them took 100 ms."""
    made = []
    monkeypatch.setattr(json_schema, "members", lambda *args, _of=json_schema.members, **kwargs: made.append(args) or _of(*args, **kwargs))
    schema = {"type": "object", "properties": {f"p{i}": json.loads(json.dumps(PART)) for i in range(40)}, "$defs": {"c": {"type": "boolean"}}}
    dfa = lazily(compile_schema(json.dumps(schema)).grammar)
    assert len(made) == 2
    assert dfa.accepts(b'{"p3": {"b": [1, true]}, "p39": {"a": "x"}}') and not dfa.accepts(b'{"p3": {"b": ["x"]}}')


def test_parts_that_are_not_written_alike_are_not_taken_for_equal():
    parts = [{"enum": [1]}, {"enum": [1.0]}, {"enum": [True]}, {"enum": ["1"]}, {"enum": [[1]]}, {"enum": [None]}, {"enum": ["None"]}]
    parts += [{"type": "object", "properties": dict(properties), "required": ["a", "b"]} for properties in ([("a", {}), ("b", {})], [("b", {}), ("a", {})])]
    texts = ["1", "1.0", "true", '"1"', "[1]", "null", '"None"', '{"a": 0, "b": 0}', '{"b": 0, "a": 0}']
    also = {("1", 1)}  # an instance of 1.0 may be written as 1
    dfa = lazily(compile_schema(json.dumps({"type": "array", "prefixItems": parts, "items": False})).grammar)
    for i, text in itertools.product(range(len(parts)), texts):
        given = f"[{', '.join([*texts[:i], text])}]"
        assert dfa.accepts(given.encode()) == (texts[i] == text or (text, i) in also), given


def test_equal_references_lead_where_the_address_around_them_says():
    refers = {"type": "object", "properties": {"x": {"$ref": "it"}}}
    defs = {name: {"$id": f"https://x.org/{name}/", "$defs": {"it": {"$id": "it", "type": kind}}, **refers} for name, kind in (("a", "string"), ("b", "null"))}
    schema = {"$id": "https://x.org/", "$defs": defs, "prefixItems": [{"$ref": "a/"}, {"$ref": "b/"}]}
    dfa = lazily(compile_schema(json.dumps(schema)).grammar)
    assert dfa.accepts(b'[{"x": ""}, {"x": null}]') and not dfa.accepts(b'[{"x": null}, {"x": null}]') and not dfa.accepts(b'[{"x": ""}, {"x": ""}]')


def test_a_counted_class_without_some_words_is_all_of_its_other_texts():
    rng = random.Random(1)
    texts = ["".join(t) for n in range(6) for t in itertools.product("abc", repeat=n)]
    for _ in range(size(70, 200)):
        chars = "".join(sorted(rng.sample("abc", rng.randint(1, 3))))
        low = rng.randint(0, 3)
        high = rng.choice([None, max(low, 1), low + 1, low + 2])
        words = rng.sample(texts[:121], rng.randint(1, 8))
        found = repeated_other_than(words, Chars(tuple((ord(c), ord(c)) for c in chars)), low, high)
        wanted = [t for t in texts if low <= len(t) <= (99 if high is None else high) and set(t) <= set(chars) and t not in words]
        made = None if found == NOTHING else lazily(Grammar(found))
        assert [t for t in texts if made is not None and made.accepts(t.encode())] == wanted


def test_keys_of_a_counted_class_beside_named_ones_need_no_state_for_each_count():
    schema = {"properties": {"id": {}, "createdAt": {}}, "patternProperties": {"^[0-9a-zA-Z_-]{1,255}$": {"type": "null"}}, "additionalProperties": False}
    dfa = lazily(compile_schema(json.dumps(schema)).grammar)
    state = dfa.step(0, b'{"')
    letters = {dfa.representative(dfa.step(state, b"x" * n)) for n in range(1, 200)}
    assert len(letters) == 1
    assert all(dfa.accepts(text) for text in (b'{"id": null, "i": null}', b'{"createdA": null, "' + b"x" * 255 + b'": null}'))
    assert not any(dfa.accepts(text) for text in (b'{"i": 1}', b'{"": null}', b'{"' + b"x" * 256 + b'": null}', b'{"a": null, "id": null}'))


def test_behind_a_comma_is_one_continuation_until_names_differ():
    """Each of the properties that may follow was one from the comma on."""
    schema = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(30)}, "required": ["p9", "p20"]}
    dfa = lazily(compile_schema(json.dumps(schema)).grammar)
    assert [len(dfa._contents[dfa.step(0, text)]) for text in (b'{"p0": 1,', b'{"p0": 1, ', b'{"p0": 1, "p')] == [1, 1, 1]
    legal, illegal = ('{"p9": 1, "p20": 2}', '{"p9": 1, "p20": 2, "p29": 3}'), ('{"p0": 1, "p9": 1}', "{}", '{"p9": 1, "p20": 2, }')
    for text, is_legal in [*((text, True) for text in legal), *((text, False) for text in illegal)]:
        assert dfa.accepts(text.encode()) == is_legal, text
