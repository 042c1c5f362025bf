"""Automata that are made while they are used: the same languages and rows as whole ones, within budgets."""

from __future__ import annotations

import itertools
import json
import os
import random
import re

import numpy as np
import pytest
from hypothesis import given

from lmc.errors import ConstraintError
from lmc.fsm import lazy
from lmc.fsm.arrays import ArrayDFA, LazyArrays
from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.dfa import build
from lmc.fsm.ebnf_grammar import compile_ebnf
from lmc.fsm.forced import ForcedTokens
from lmc.fsm.grammar import Grammar
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.lark_grammar import compile_lark
from lmc.fsm.lazy import LazyDFA
from lmc.fsm.regex import compile_regex, parse
from lmc.fsm.sources import begun, grammar_of, lazily, machine_of
from lmc.fsm.terms import Terms
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from tests.fsm.patterns import regexes
from tests.fsm.schemas import RECURSIVE, SCHEMAS
from tests.fsm.small_vocabulary import legal, small, stepped
from tests.searching import search, size, some


def lazy_regex(pattern: str) -> LazyDFA:
    return lazily(Grammar(parse(pattern)))


def check_same_language(whole: ByteDFA, made: LazyDFA, most: int = 3000) -> int:
    """Walks both side by side, wherever they lead; the number of pairs of states."""
    pairs = {(0, 0)}
    todo = [(0, 0)]
    for a, b in todo:
        made.begin()
        assert whole.is_final(a) == made.is_final(b) and whole.is_done(a) == made.is_done(b)
        (bytes_a, to_a), (bytes_b, to_b) = ([*zip(*dfa.moves(state))] or [(), ()] for dfa, state in ((whole, a), (made, b)))
        assert bytes_a == bytes_b
        for pair in set(zip(to_a, to_b)) - pairs:
            if len(pairs) < most:
                pairs.add(pair)
                todo.append(pair)
    return len(pairs)


PATTERNS = [
    "", "abc|abd", "(a|b)*a(a|b){3}", "[a-zé]{2,5}x?", "(x?){0,5}y", "(a{1,3}){2,4}b", "(ab|a)(c|bcd)(d*)", r"\w+@\w+\.(com|org)",
    r"(?u)\w{1,3}é", "(a*b?){2,}c", "(a|ab)(bc|c)?", ".*[0-9].{6}.*", "(.{1,4}){2,3}END", "(a{2}|a{3})*", "((a|b?){2,4}c){1,3}",
    "世界(和平|大战)+", "a{3,7}a{2}a*", "(a?){3}(b|a){2}",
]  # fmt: skip


@some("pattern", PATTERNS, 2)
def test_the_language_is_that_of_the_whole_automaton(pattern):
    check_same_language(build(parse(pattern)), lazy_regex(pattern))


@search(15, 400)
@given(regexes)
def test_the_language_of_any_regex_is_that_of_the_whole_automaton(pattern):
    check_same_language(build(parse(pattern)), lazy_regex(pattern), 400)


@pytest.mark.parametrize(
    ("pattern", "most"),
    [("[ -~]*[0-9][ -~]{60}[ -~]*", 140), ("(a{1,100}){1,100}", 130), ("[ab]{9999}", 70), (r"(\w{1,200} ){1,200}", 130)],
)
def test_counters_are_not_written_out(pattern, most):
    """States that are met along a text of 60 characters."""
    made = lazy_regex(pattern)
    text = b"a1b2" * 15 if "0-9" in pattern else b"a" * 60
    made.begin()
    assert made.step(0, text) >= 0
    assert made.states <= most


def test_a_thousand_turns_within_a_thousand_are_followed_in_few_terms():
    made = lazy_regex("(.{1,1000}){2,1000}END")
    state = 0
    for byte in b"what will be " * 60 + b"END":
        made.begin()
        state = made.step(state, bytes([byte]))
        assert len(made._contents[state]) < 12
    assert made.is_final(state)


def test_what_steps_leave_of_their_budget_is_kept_for_a_later_one(monkeypatch):
    monkeypatch.setattr(lazy, "MOST_FORMS", 1000)
    monkeypatch.setattr(lazy, "FORMS_A_STEP", 10)
    monkeypatch.setattr(lazy, "MOST_A_STEP", 10)
    made = lazy_regex("[ab]*")
    limits = []
    for spent in (0, 600, 0, 300, 0, 500, 0):
        made.begin()
        limits.append(made._terms.limit - made._terms.spent)
        made._terms.spent += spent
    assert limits == [1000, 1000, 410, 420, 130, 140, 10]


def test_a_step_that_takes_too_long_says_so(monkeypatch):
    monkeypatch.setattr(lazy, "MOST_FORMS", 500)
    made = lazy_regex("(?:" + "|".join(f"(?:a{{{n}}}b?)+" for n in range(2, 60)) + ")")
    with pytest.raises(ConstraintError, match="following this constraint takes too long"):
        for _ in range(200):
            made.begin()
            made.step(0, b"a" * 100)


def test_a_step_that_failed_leaves_no_half_of_a_state(monkeypatch):
    made = lazy_regex("a(b|c{2})")

    def fails(terms, given):
        raise ConstraintError("too long")

    with monkeypatch.context() as patch:
        patch.setattr(Terms, "joined", fails)
        with pytest.raises(ConstraintError):
            made.step(0, b"a")
    assert made.accepts(b"ab") and made.accepts(b"acc") and not made.accepts(b"a") and not made.accepts(b"ac")


def test_arrays_read_the_memory_of_what_is_made():
    """Also behind the growth of that memory."""
    made = lazy_regex("[ab]{2,400}c")
    arrays, rows = LazyArrays(made), made.rows
    state = 0
    for length in range(399):
        row = arrays.row(state)
        behind = arrays.following(np.full(256, state), np.arange(256))
        assert np.array_equal(row, behind) and {b: int(to) for b, to in enumerate(row) if to >= 0} == dict(made.moves(state))
        assert arrays.are_final(behind[behind >= 0]).tolist() == [made.is_final(to) for _, to in made.moves(state)], length
        state = made.step(state, b"a")
    assert made.rows is rows and made.states > 256  # they are never copied: thousands took longer than a step may
    assert arrays.following(np.array([-1]), np.array([97])).tolist() == [-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_rows_of_a_forked_process_are_its_own():
    made = lazy_regex("(ab|ba|cc)+")
    made.moves(0)
    if (child := os.fork()) == 0:
        try:
            made.step(0, b"ccba")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert made.step(0, b"abba") >= 0 and made.accepts(b"abbacc") and not made.accepts(b"abb")


@pytest.mark.parametrize(
    "schema, text",
    [
        ({"type": "object", "properties": {"description": {"type": "integer"}}, "required": ["description"]}, '{"description": 12}'),
        ({"type": "object", "properties": {"größe_größe": {"type": "null"}, "grüße": {"type": "null"}}}, '{"größe_größe": null, "grüße": null}'),
        (
            {"type": "object", "properties": {name: {"type": "boolean"} for name in ("order", "orderId", "o", "name")}},
            '{"orderId": true, "o": false, "name": true}',
        ),
        ({"enum": [f"word{i:03}x" for i in range(60)] + ["wordless", "word"]}, '"wordless"'),
        ({"type": "array", "items": {"const": "a long constant"}}, '["a long constant", "a long constant"]'),
        ({"type": "array", "items": {"type": "string"}}, r'["any one, é \" \\", "\u00e9 \ud83d\ude00", ""]'),
        ({"type": "object", "additionalProperties": {"type": ["string", "null"]}}, r'{"any \n\\": "of 世 them", "": null}'),
    ],
)
def test_a_step_over_a_name_leads_where_steps_of_a_byte_each_lead(schema, text):
    """Whatever part of it is stepped over at once; and where it goes on otherwise, nowhere."""
    source, data = json.dumps(schema), text.encode()
    walking = begun("json_schema", source)
    assert isinstance(walking, LazyDFA)
    walked = [*itertools.accumulate(data, walking.after, initial=0)]
    for begin, end in random.Random(1).sample([*itertools.combinations(range(len(data) + 1), 2)], 40):
        leaping = begun("json_schema", source)
        state = leaping.step(leaping.step(0, data[:begin]), data[begin:end])
        assert [byte for byte, _ in leaping.moves(state)] == [byte for byte, _ in walking.moves(walked[end])], data[begin:end]
        assert leaping.is_final(leaping.step(state, data[end:]))
        assert leaping.step(leaping.step(0, data[:begin]), data[begin:end] + b"\x01") < 0


def test_a_step_over_a_name_makes_no_states_within_it():
    made = begun("json_schema", json.dumps({"type": "object", "properties": {"a" * 60: {"type": "null"}}, "required": ["a" * 60]}))
    assert isinstance(made, LazyDFA)
    state = made.step(0, b"{")
    before = made.states
    made.step(state, b'"' + b"a" * 60 + b'"')
    assert made.states < before + 10


def test_nothing_within_a_string_of_any_characters_is_made():
    """Each such string of a schema had states of its own, for its escapes, too."""
    vocabulary, _ = small()
    automaton = TokenAutomaton(begun("json_schema", '{"properties": {"name": {"type": "string"}, "why": {"type": "string"}}}'), vocabulary)
    made = automaton.dfa.lazy
    state = automaton.dfa.step(0, b'{"name": "')
    string = made.string(state)
    assert string is not None and string.behind == made.step(state, b'Harry"') and automaton.dfa.step(state, b"Harry") == state
    automaton.mask(state)
    assert all(made.places[at] == lazy.UNMADE for at in (state, made.step(0, b'{"why": "')))
    assert made.string(0) is None


def test_a_row_needs_no_twin_of_its_state():
    """What no token reaches was left out of a copy of the state, whose states were made beside those of the answer."""
    schema: dict = {"type": "integer"}
    for level in range(6):
        schema = {"type": "object", "properties": {f"level{level}": schema, "rest": {"const": "x" * 30}}, "required": [f"level{level}", "rest"]}
    made = TokenAutomaton(begun("json_schema", json.dumps(schema)), small()[0])
    state = made.dfa.step(0, b'{"level5": {"level4": {"level3": {"level2": {"level1": {"level0": 1, "rest": "xx')
    assert made.dfa.representative(state) == made.dfa.far(state, 40) == state


def test_the_parts_of_a_large_object_are_compared_when_they_are_met(monkeypatch):
    """Whether another object is equal was found by looking at all within it, for the first mask of its value."""
    looked = 0

    def canonical(self, node, _canonical=Terms._canonical):
        nonlocal looked
        looked += 1
        return _canonical(self, node)

    def nested(levels: int) -> dict:
        if not levels:
            return {"type": "integer"}
        return {"type": "object", "properties": {f"name{levels}{i}": nested(levels - 1 if i % 3 == 0 else 0) for i in range(5)}}

    monkeypatch.setattr(Terms, "_canonical", canonical)
    schema = {"type": "object", "properties": {"x": nested(3), "y": {"type": "array", "items": nested(3)}}, "x-lmc": {"additional": True}}
    made = begun("json_schema", json.dumps(schema))
    looked = 0
    made.step(0, b'{"x": ')
    assert looked < 100


def test_states_are_bounded(monkeypatch):
    monkeypatch.setattr(lazy, "MOST_ROWS", 20)
    made = lazy_regex("(a|b)*a(a|b){9}")
    with pytest.raises(ConstraintError, match="has met 20 states of its constraint"):
        for text in itertools.product(b"ab", repeat=10):
            made.begin()
            made.step(0, bytes(text))
    assert not made.is_worn
    monkeypatch.setattr(lazy, "WORN_ROWS", 10)
    assert made.is_worn


# -- grammars --------------------------------------------------------------------------------------------------------

EBNF = [
    ('root ::= "a" | b c\nb ::= [a-c\\-x]{2,3} # note\nc ::= "\\u00e9" [^a-z\\n]*', ["a", "aaé", "a-xé5"], ["b", "aé", "aaéz"]),
    ('root ::= ("a" "b")+ | "c"? \n\n', ["ab", "abab", "c", ""], ["a", "cc"]),
    ('root ::= item ("," item)*\nitem ::= [0-9]+ | "[" root "]"', ["1", "1,[2,[3]],4"], ["[", "1,"]),
    ('root ::= [\\x41-\\x43\\]]{2,} "\\"\\\\"', ['AB"\\', 'CC]"\\'], ["AB", 'A"\\']),
    ("root ::= expr\nexpr ::= expr \"+\" expr | [0-9]", ["1", "1+2+3"], ["1+", "+1"]),
]  # fmt: skip
BY_NOTATION = [
    ("lark", 'start: sum\nsum: sum "+" product | product\nproduct: product "*" atom | atom\natom: "(" sum ")" | /[0-9]+/',
        ["1", "1+2*3", "(1+2)*(3)"], ["", "1+", "(1", "+1", "1**2"]),
    ("lark", 'start: start start | "a"', ["a", "aaaa"], ["", "ab"]),
    ("lark", 'start: x\nx: y "1" | "e"\ny: x "2" | z x "3"\nz: "q"?', ["e", "e21", "e31", "qe31", "qqe3131"], ["e2", "e1", "qe21"]),
    ("lark", 'start: a\na: b? a "x" | "y"\nb: b "z" | "w"?', ["y", "yx", "wyx", "wzzyx", "zyx", "wwyxx"], ["wy", "x"]),
    *(("ebnf", *example) for example in EBNF),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "source", "good", "bad"), BY_NOTATION)
def test_grammars_of_each_notation(kind, source, good, bad):
    made = lazily(grammar_of(kind, source))
    assert [t for t in good if not made.accepts(t.encode())] == []
    assert [t for t in bad if made.accepts(t.encode())] == []


JSON = r"""
start: value
value: object | array | STRING | NUMBER | "true" | "false" | "null"
object: "{" [pair ("," pair)*] "}"
array: "[" [value ("," value)*] "]"
pair: STRING ":" value
STRING: /"[^"\\\x00-\x1f]*"/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?/
"""


def test_any_depth():
    made = lazily(compile_lark(JSON))
    deep = "[" * 300 + '{"a":[1,2.5,"é",null]}' + "]" * 300
    assert made.accepts(deep.encode())
    assert not made.accepts(deep[:-1].encode()) and not made.accepts((deep + "]").encode())


def test_an_ambiguous_grammar_is_followed_in_time_that_grows_slowly():
    made = lazily(compile_lark('start: e\ne: e e | "(" e ")" | "x"'))
    assert made.accepts(b"(x(xx)x)" * 30)


@pytest.fixture(scope="module")
def vocabulary():
    return small()[0]


@pytest.fixture(scope="module")
def rough():
    """Tokens as no tokenizer has them: cut anywhere, inside of characters too, and some above LONG bytes."""
    rng = random.Random(20)
    parts = ["a", "b", "c", "x1", "7", '"', '", "', '":', "\\", "\\n", "\n", "}", "]", " ", "é", "世", "😀", "-", "b" * 9, "a" * 20]
    texts = {bytes((byte,)) for byte in range(256)}
    while len(texts) < 1400:
        text = "".join(rng.choices(parts, k=rng.randint(1, 8))).encode()
        texts.add(text[rng.randint(0, 1) : len(text) - rng.randint(0, 1)] or b"a")
    texts |= {b"\\ud83d", b"\\u00", b"\\u00e9", b'\\"', b'a\\", "b', b'\\u0041"', b"0\\ud8", b"\\ude00", b'\\\\" }'}
    return Vocabulary([b"", *sorted(texts)], [0])


WORDS = sorted({"".join(word) for length in (1, 2, 3, 4) for word in itertools.product("ab,", repeat=length)})[::2]
RUNS = [("regex", f"({'|'.join(WORDS)})(, ?({'|'.join(WORDS[5:])}))*"), ("regex", "|".join(f"{word}[ab]é?{word}" for word in WORDS)),
    ("regex", f"({'|'.join(WORDS)})*é|世"),
        ("json_schema", json.dumps({"type": "array", "items": {"enum": WORDS}})), ("json_schema", json.dumps({"enum": [*WORDS, "é", "abc世"]})),
        ("regex", "|".join([*WORDS, "aé", "a世b"])), ("regex", r'"[a-c]{0,9}"'), ("regex", r'"([abé]|\\n){2,40}"[,}]*'), ("regex", r"[ab世]{3,5}(7|x1)?"),
        ("regex", r'[^"]{0,70}"?'), ("regex", "([a-c]{0,3}-){2}[a-z]*"),
        ("json_schema", '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": ["string", "null"], "minLength": 2, '
                        '"maxLength": 30}}}'),
        ("json_schema", '{"type": "array", "items": {"type": "string", "pattern": "a+b*"}}'), ("json_schema", '{"type": "array", "items": {"type": "string", '
                                                                                                              '"pattern": "^[a-c]+-[a-c]+"}}'),
        ("json_schema", '{"type": "object", "additionalProperties": {"type": "string", "maxLength": 20}}'), ("json_schema", "{}"), ("lark", JSON),
        ("json_schema", '{"type": "array", "items": {"type": "string", "pattern": "^a|b7|\\\\n|é$"}}'), ("json_schema", '{"type": "array", "items": {"type": '
                                                                              '"string", "pattern": "[ab7]|^-+x", "minLength": 3, "maxLength": 45}}'),
        ("json_schema", '{"type": "array", "items": {"type": "string"}}'), ("json_schema", '{"type": "array", "items": {"anyOf": [{"type": "string"}, '
                                                                                           '{"type": "array", "items": {"const": "abc"}}]}}'),
        ("json_schema", '{"properties": {"a": {"type": "string"}, "ab": {"items": {"type": "string"}}}, '
                        '"additionalProperties": {"type": "string"}}')]  # fmt: skip


ROWS = [("lark", JSON), ("regex", r"(a|b)*a(a|b){12}"), ("regex", "[a-zé世]{1,200}"), ("regex", r'\{"order(Id|Name)": "\w+"\}'),
        ("json_schema", '{"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#"}}}'), ("json_schema", "{}")]  # fmt: skip


@some("which, kind, source", [*(("vocabulary", *row) for row in ROWS), *(("rough", *row) for row in RUNS)], 8, ids=lambda x: x[:60])
def test_rows_are_the_tokens_that_can_be_stepped(which, kind, source, request):
    """However rows are put together from those of rules (`LazyDFA.split`), from runs of characters, counted or not, and what follows them."""
    automaton = TokenAutomaton(lazily(grammar_of(kind, source)), request.getfixturevalue(which))
    rng = random.Random(source)
    for _ in range(size(4, 9)):
        state = 0
        for _ in range(12):
            tokens = legal(automaton, state)
            assert tokens == stepped(automaton, state)
            if automaton.is_done(state):
                break
            state = automaton.next(state, rng.choice([t for t in tokens if t not in automaton.vocabulary.eos]))


def test_a_bounded_string_needs_no_state_for_each_turn_of_a_long_token(rough):
    """Its first mask made as many states as the longest token has bytes, and each string of a schema its own."""
    made = lazily(compile_schema('{"properties": {"a": {"type": "string", "maxLength": 60}, "b": {"type": "string", "maxLength": 60}}}')[0])
    automaton = TokenAutomaton(made, rough)
    automaton.mask(automaton.dfa.step(0, b'{"a": "'))
    automaton.mask(automaton.dfa.step(0, b'{"a": "bb'))
    assert made.states < 70


def test_a_state_before_many_optional_properties_looks_at_those_it_can_reach(rough):
    """A window looked at what may follow each of them: their number squared."""
    names = {f"property_of_a_long_name_{n}": {"type": "integer"} for n in range(300)}
    made = lazily(compile_schema(json.dumps({"type": "object", "properties": names, "x-lmc": {"whitespace": "compact"}}))[0])
    automaton = TokenAutomaton(made, rough)
    automaton.mask(automaton.dfa.step(0, b'{"'))
    assert made._terms.spent < 5000  # forms; 300 * 300 are 90,000


def test_a_pattern_that_any_text_may_follow_ends_with_its_first_match():
    """So the states behind it are one; every node of the trie within `[a-c]+` began a run of its own."""
    assert parse("a+b*c?", search=True) == parse("a", search=True)
    assert parse("^(x[a-c]{2,9}|yz+)", search=True) == parse("^(x[a-c]{2}|yz)", search=True)
    made = lazily(Grammar(parse("^[a-c]+-[a-c]+", search=True)))
    assert made.step(0, b"ab-a") == made.step(0, b"a-ccc") == made.step(0, b"ab-a anything")


@pytest.mark.parametrize(
    ("keywords", "low", "high"),
    [
        ({"pattern": "^dev|alpha|rc$"}, 0, lazy.NO_LIMIT),
        ({"pattern": "^dev|(al|x)*pha|[^a]x$"}, 0, lazy.NO_LIMIT),
        ({"pattern": "[h-p]", "minLength": 9, "maxLength": 64}, 3, 58),
    ],
)
def test_behind_what_is_searched_for_is_a_string_of_any_characters(keywords, low, high, rough):
    """Where more of a pattern may follow, or characters are counted, it had states of its own: 12 ms for its first mask."""
    automaton = TokenAutomaton(begun("json_schema", json.dumps({"type": "string", **keywords})), rough)
    made = automaton.dfa.lazy
    state = automaton.dfa.step(0, b'"-alpha')
    string = made.string(state)
    assert string is not None and (string.low, string.high) == (low, high)
    states = made.states
    found = legal(automaton, state)
    assert made.states < states + 5
    assert found == stepped(automaton, state)


def test_characters_that_only_count_need_no_states_within_them(rough):
    """The first mask of such a string made one for each character of the longest token: 9 ms."""
    schema = json.dumps({"type": "string", "pattern": "[a-z]+", "minLength": 3, "maxLength": 64})
    automaton, other = (TokenAutomaton(begun("json_schema", schema), rough) for _ in range(2))
    made, begin = automaton.dfa.lazy, automaton.dfa.step(0, b'"')
    states = made.states
    assert [made.step(begin, b"-" * count) >= 0 for count in (63, 64, 70)] == [True, False, False]
    assert made.states < states + 5
    at = other.dfa.step(0, b'"')
    for count in range(1, 64):
        at = other.dfa.after(at, ord("-"))
        here = made.step(begin, b"-" * count)
        assert [made.step(here, text) >= 0 for text in (b'"', b'a"', b'ab"')] == [other.dfa.step(at, text) >= 0 for text in (b'"', b'a"', b'ab"')]
    assert legal(automaton, begin) == [t for t in range(len(rough.tokens)) if other.next(other.dfa.step(0, b'"'), t) >= 0]


SEARCHED = ["a+", "a*", "^a*b{2,4}", "(ab|a)+$", "^$|^a+", "a?b?$", "^(a|b*)", "(a*b)*", "a{2,}(b|a+)", "(?:)", "^a{0,2}$|ba+", "^a|b|ab$|^c$|(c|^ba)"]


@pytest.mark.parametrize("pattern", SEARCHED)
def test_a_search_finds_what_pythons_does(pattern):
    made = lazily(Grammar(parse(pattern, search=True)))
    texts = ("".join(t) for n in range(6) for t in itertools.product("abc", repeat=n))
    assert [t for t in texts if made.accepts(t.encode()) != (re.search(pattern, t) is not None)] == []


def test_words_that_are_searched_for_are_one_list():
    """Each of them was a way to go on of its own from every character on: 57 ms for a mask."""
    words = [f"{a}{b}-{c}" for a in ("use", "usw", "eu") for b in range(8) for c in ("az1", "az2", "los1")]
    spent = {}
    for listed in (words[:36], words):
        made = begun("json_schema", json.dumps({"type": "string", "pattern": "|".join(listed)}))
        made.step(0, b'"xus us use usw2')
        spent[len(listed)] = made._terms.spent
        assert all(
            made.accepts(f'"{text}"'.encode()) == any(word in text for word in listed) for text in ("use0-az1", "x usw7-los1.", "usw", "eu1az2", "ususe1-az2")
        )
    assert spent[72] < 1.5 * spent[36]


def test_a_rule_at_another_depth_needs_no_new_walk(vocabulary):
    automaton = TokenAutomaton(lazily(compile_lark(JSON)), vocabulary)
    walks = []
    real = vocabulary.trie.walk

    def counted(dfa, state):
        walks.append(state)
        return real(dfa, state)

    for text in (b'[["a', b'[["a"', b'[["a",'):
        automaton.mask(automaton.dfa.step(0, text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(vocabulary.trie), "walk", lambda self, dfa, state: counted(dfa, state))
        for depth in (3, 5, 9):
            for text in (b'"a', b'"a"', b'"a",'):
                automaton.dfa.begin()
                automaton.mask(automaton.dfa.step(0, b"[" * depth + text))
    assert not walks


def test_forced_runs_are_those_of_the_whole_automaton():
    vocabulary, encode = small()
    pattern = r'\{"order(Id|Name)": "[a-z]{2,4}", "yes": (yes|no)\}'
    whole = ForcedTokens(TokenAutomaton(build(parse(pattern)), vocabulary), encode)
    made = ForcedTokens(TokenAutomaton(lazy_regex(pattern), vocabulary), encode)
    pairs, todo = {(0, 0)}, [(0, 0)]
    for a, b in todo:
        assert whole.run(a).tokens == made.run(b).tokens
        for token in range(len(vocabulary.tokens)):
            pair = whole.automaton.next(a, token), made.automaton.next(b, token)
            if pair[0] >= 0 and pair not in pairs and token not in vocabulary.eos:
                pairs.add(pair)
                todo.append(pair)
    assert len(pairs) > 30


@pytest.mark.parametrize("pattern", ["^[a-c]{2}|^[a-c]{2}-[a-c]$", "^(a|b$)", "(^a|b)c", "x(y|z$)", "^(?:a(b|c$))", "a$|^b|c"])
def test_anchors_within_alternatives_at_an_end_of_what_is_searched(pattern):
    made = lazily(Grammar(parse(pattern, search=True)))
    for text in map("".join, itertools.chain.from_iterable(itertools.product("abcxyz-", repeat=n) for n in range(4))):
        assert made.accepts(text.encode()) == bool(re.search(pattern, text)), text


# -- which of the two ------------------------------------------------------------------------------------------------


def test_small_regular_languages_have_whole_automata():
    for kind, source in (("regex", r"\w{1,60}"), ("json_schema", '{"type": "integer"}'), ("ebnf", 'root ::= "a" [0-9]'), ("lark", "start: /a+/")):
        assert isinstance(machine_of(kind, source), ByteDFA)
    for kind, source in (("regex", "(a|b)*a(a|b){20}"), ("json_schema", "{}"), ("ebnf", 'root ::= "a" root? "b"')):
        assert isinstance(machine_of(kind, source), LazyDFA)


# -- EBNF ------------------------------------------------------------------------------------------------------------

@pytest.mark.model
@pytest.mark.parametrize(("source", "good", "bad"), EBNF)
def test_ebnf_is_what_xgrammar_reads(source, good, bad):
    xgrammar = pytest.importorskip("xgrammar")
    info = xgrammar.TokenizerInfo([bytes([i]) for i in range(256)], xgrammar.VocabType.RAW, vocab_size=257, stop_token_ids=[256])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(source)
    for text in good + bad:
        matcher = xgrammar.GrammarMatcher(compiled)
        assert (all(map(matcher.accept_token, text.encode())) and matcher.is_completed()) == (text in good)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ('roo ::= "a"', "there is no rule `root`"),
        ('root ::= "a" b', r"rule 'b' is not defined; it is named at line 1, column 14"),
        ("root ::= 'a'", r'"\'" cannot stand here at line 1, column 10'),
        ('root ::= ("a"\n', "the group of column 10 is not closed at line 2"),
        ("root ::= ", "something should stand here"),
        ('root ::= "a" | ', 'write "" for the empty text'),
        ("root ::= *", r"\* has nothing in front of it"),
        ('root ::= "a"{3,2}', "ends before it begins"),
        ('root ::= TagDispatch(("a", root))', "is a macro of xgrammar"),
        ('root ::= "a" (= "b")', "look-ahead"),
        ('root ::= root "a"', "derives no text"),
    ],
)
def test_ebnf_that_is_refused(source, says):
    with pytest.raises(ConstraintError, match=says):
        lazily(compile_ebnf(source))


@pytest.mark.search
def test_the_language_of_python_is_that_of_the_machine():
    """Of regexes that are too large for a whole automaton."""
    rng = random.Random(4)
    for pattern in ("(a|b)*a(a|b){20}", "(ab{1,50}){2,40}a?", "(?:a.{3,90}){1,80}b"):
        made = machine_of("regex", pattern)
        assert isinstance(made, LazyDFA)
        for _ in range(size(40, 150)):
            text = "".join(rng.choice("ab") for _ in range(rng.randint(1, 60)))
            assert made.accepts(text.encode()) == bool(re.fullmatch(pattern, text)), text


@some("name", [*SCHEMAS, *RECURSIVE], 12)
def test_marks_read_where_they_are_reached_are_those_of_a_grammar_written_out(name):
    """White space of each style and level; and each step that is nearest to the end leads nearer."""
    schema, texts, _ = SCHEMAS.get(name) or RECURSIVE[name]
    grammar = grammar_of("json_schema", json.dumps(schema))
    read, written = lazily(grammar), lazily(grammar.written)
    pairs, todo = {(0, 0)}, [(0, 0)]
    for text in texts:
        for indent in (None, 2, 4):
            answer = json.dumps(json.loads(text), ensure_ascii=False, indent=indent, separators=(",", ": ") if indent else None)
            walked = 0, 0
            for byte in answer.encode(errors="replace"):
                walked = read.step(walked[0], bytes([byte])), written.step(walked[1], bytes([byte]))
                if walked[0] < 0:
                    break
                if walked not in pairs:
                    pairs.add(walked)
                    todo.append(walked)
            assert (walked[0] < 0) == (walked[1] < 0)
    for a, b in todo[:400]:
        assert read.is_final(a) == written.is_final(b)
        assert [byte for byte, _ in read.moves(a)] == [byte for byte, _ in written.moves(b)]
    for a, _ in todo[:40]:
        while not read.is_final(a):
            nearer = min((to for _, to in read.moves(a)), key=read.distance)
            assert read.distance(nearer) < read.distance(a)
            a = nearer


def check_distances(made, whole, rng: random.Random) -> None:
    for _ in range(30):
        state = at = 0
        for _ in range(60):
            assert made.distance(state) == whole.distance(at)
            moves = made.moves(state)
            if not moves:
                break
            byte, state = rng.choice(moves)
            at = whole.step(at, bytes((byte,)))


@pytest.mark.parametrize("pattern", ["é|ab", "[é-ü]{3}x?", "(世|abc){2,9}", "a{0,40}(b|éé)", "|".join(f"wört{i}é" for i in range(60))])
def test_the_distance_to_an_end_is_exact_in_bytes(pattern):
    made, whole = lazy_regex(pattern), ArrayDFA.of(compile_regex(pattern))
    check_distances(made, whole, random.Random(pattern))


def test_a_mask_makes_no_state_within_a_name_that_nothing_else_goes_on_with():
    """Each byte of each name that some token goes on with was one."""
    vocabulary, _ = small()
    names = ["name", "orderName", "orderId", "house", "length", "grade", "clear"]
    source = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    automaton = TokenAutomaton(lazily(compile_schema(json.dumps(source))[0]), vocabulary)
    for text, most in ((b'{"', 9), (b'{"name": 1, "o', 7)):
        state = automaton.dfa.step(0, text)
        made = automaton.dfa.lazy._made
        found = legal(automaton, state)
        assert automaton.dfa.lazy._made - made <= most
        assert found == stepped(automaton, state)


def test_a_list_of_words_makes_no_states_within_them(rough):
    """Its first row made a state for each beginning of its words that tokens spell."""
    made = lazy_regex(f"({'|'.join(WORDS)})(;({'|'.join(WORDS)}))*")
    TokenAutomaton(made, rough).mask(0)
    assert made.states < 3 * len([word for word in WORDS if word in rough.tokens or word.encode() in rough.tokens]) + 12


@pytest.mark.parametrize("whitespace", ["model", "compact", "any"])
def test_members_that_may_come_next_are_one_term_until_their_names_differ(whitespace):
    names = [f"{'ab'[i % 2]}{i}é" if i % 5 == 0 else f"{'ab'[i % 2]}{i}" for i in range(300)]
    properties = {name: {"type": "integer"} for name in names}
    source = {"type": "object", "properties": properties, "required": names[-1:], "x-lmc": {"whitespace": whitespace}}
    made = begun("json_schema", json.dumps(source))
    whole = machine_of("json_schema", json.dumps({**source, "x-lmc": {"whitespace": "compact"}}))
    answer = json.dumps(dict.fromkeys((names[3], names[10], names[200], names[299]), 1), separators=(",", ":"), ensure_ascii=False).encode()
    state = expected = 0
    for at in range(len(answer)):
        made.begin()
        assert made.distance(state) == whole.distance(expected) == len(answer) - at or at < answer.rfind(b",")
        state, expected = made.step(state, answer[at : at + 1]), whole.step(expected, answer[at : at + 1])
    assert made.is_done(state) and whole.is_final(expected)
    assert made._terms.spent < 2000  # continuations: one for each name that may come next, at each comma, were more
