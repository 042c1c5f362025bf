import functools
import json

import pytest

from lmc.errors import ConstraintError, SchemaWarning
from lmc.fsm import grammar, json_disjuncts
from lmc.fsm.algebra import automaton, both, is_empty, without
from lmc.fsm.bounds import TooLarge, TransitionBudget
from lmc.fsm.dfa import build
from lmc.fsm.forced import ForcedTokens
from lmc.fsm.grammar import cycles
from lmc.fsm.json_layout import one_line
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.lark_grammar import compile_lark
from lmc.fsm.nodes import ANY, NOTHING, Repeat
from lmc.fsm.regex import parse
from lmc.fsm.sources import automaton_of, ebnf_of
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from tests.searching import some


def accepted(tree, texts: str) -> list[str]:
    return [t for t in texts.split() if build(tree).accepts(t.encode())]


# -- sets of texts -------------------------------------------------------------------------------------------------


def test_what_is_in_both():
    assert accepted(both(parse("a", search=True), Repeat(ANY, 2, 3)), "a ab xxa aaaa éa") == ["ab", "xxa", "éa"]
    assert both(parse("a+"), parse("b+")) == NOTHING
    assert is_empty(both(parse("(ab)+"), parse("(ba)+"))) and not is_empty(parse("a*"))


def test_what_is_in_one_alone():
    assert accepted(without(parse("[a-z]{1,3}"), parse("if|do|abc")), "if i iff abc abd do") == ["i", "iff", "abd"]
    assert without(parse("a?"), parse("a*")) == NOTHING


def test_a_machine_as_a_language():
    thirds = automaton(0, lambda r, c: (r * 10 + int(c)) % 3, lambda r: r == 0, "0123456789")
    assert accepted(thirds, "3 4 12 100 111") == ["3", "12", "111"]


@pytest.mark.parametrize(
    ("pattern", "texts", "found"),
    [
        ("b", "abc b ac", ["abc", "b"]),
        ("^b", "abc bc", ["bc"]),
        ("b$", "ab abc", ["ab"]),
        ("^a|b$", "ax xb xbx", ["ax", "xb"]),
        ("^(a|b)$", "a ab", ["a"]),
        ("(?i)^(?:AB)$", "ab aB b", ["ab", "aB"]),
    ],
)
def test_patterns_that_are_searched_for(pattern, texts, found):
    assert accepted(parse(pattern, search=True), texts) == found


# -- Lark ----------------------------------------------------------------------------------------------------------

JSON = r"""
?start: value
?value: object | array | ESCAPED_STRING | SIGNED_NUMBER -> number | "true" | "false" | "null"
array : "[" [value ("," value)*] "]"
object: "{" [_separated{pair, ","}] "}"
pair  : ESCAPED_STRING ":" value
_separated{x, mark}: x (mark x)*
%import common.ESCAPED_STRING
%import common.SIGNED_NUMBER
%import common.WS
%ignore WS
"""
CALCULATOR = """
start: sum
sum: product | sum "+" product
product: atom | product "*" atom
atom: NUMBER | "-" atom | "(" sum ")"
%import common.NUMBER
"""
COMMANDS = r"""
start: command (";" command)*
command: "move"i DIRECTION INT -> move | "stop" | NAME~2..3
DIRECTION: "n".."p" | /[xyz]{2}/
NAME: /[A-Z]/i
%import common.INT
%ignore " "
"""


def test_a_lark_grammar_without_recursion_is_an_automaton():
    dfa = automaton_of("lark", COMMANDS)
    assert dfa is not None
    good = ["move n 3", "MOVExx12;stop", " stop ; Ab", "a b c"]
    bad = ["move q 3", "stop;", "a", "a b c d", "movx"]
    assert [t for t in good if not dfa.accepts(t.encode())] == []
    assert [t for t in bad if dfa.accepts(t.encode())] == []


def test_a_terminal_may_ask_for_unicode():
    """As Python's `re` has it, flags of a part hold for that part."""
    dfa = automaton_of("lark", r"""start: /\w/ /[é\d]/iu """)
    assert dfa is not None
    assert [t for t in ("aÉ", "a٣", "éé", "aa") if dfa.accepts(t.encode())] == ["aÉ", "a٣"]


@pytest.mark.parametrize("source", [JSON, CALCULATOR])
def test_a_recursive_lark_grammar_is_none(source):
    assert automaton_of("lark", source) is None


@pytest.mark.model
@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (JSON, ['{"a": [1, -2.5e3, null]}', "[ ]", r'"x\"y"', "{ }"], ['{"a" 1}', "[1,]", '"x"y"']),
        (CALCULATOR, ["1+2*(3+4)", "-1.5", "((2))"], ["1+", "()", "1 + 2"]),
        (COMMANDS, ["move n 3", "MOVExx12;stop"], ["move q 3", "a"]),
    ],
)
def test_the_ebnf_of_a_lark_grammar(source, good, bad):
    import xgrammar

    info = xgrammar.TokenizerInfo([bytes([i]) for i in range(256)] + [b"</s>"], xgrammar.VocabType.RAW, stop_token_ids=[256])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(ebnf_of("lark", source))

    def accepts(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(compiled)
        return matcher.accept_string(text) and matcher.is_completed()

    assert [t for t in good if not accepts(t)] == [] and [t for t in bad if accepts(t)] == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("start: A\nA.2: /a/", "terminal A has a priority"),
        ("start: A\nA: /a(?=b)/", "A: .*look-around"),
        ("start: b", "b"),
        ("a: /x/", "no rule `start`"),
        ("start: A\n%declare A", "A is only declared"),
        ("start: (", "Unclosed parenthesis, at line 1 column 9"),
        ("start: 'a", "cannot be read|line 1"),
        ("start: start", "derives no text"),
        (r'start: "ab\ud800"', "half of a surrogate pair, cannot be written"),
        ("start: A\nA: /[a: /[a: /[a-z]+/i", "Unexpected input at line 2 column 12"),  # Lark fails at saying what it is like
        ("start: A\n%import nowhere.A", "lark"),
        ('start: "a"~3..1', r"start: a repeat ~ 3\.\.1 is none; write ~ FROM\.\.TO, with 0 <= FROM <= TO"),
        ('start: A\nA: "a"~-1', "A: a repeat ~ -1 is none"),
        (f'start: "a"~{"1" * 5000}', "start: the number of a repeat has too many digits"),
        ('start: A\nA: t{"x"}\nt{x}: x x', "A: template_usage cannot be used"),  # spaces could be ignored within it
    ],
)
def test_lark_grammars_that_are_refused(source, says):
    with pytest.raises(ConstraintError, match=says):
        if automaton_of("lark", source) is None:
            ebnf_of("lark", source)


def test_rules_are_named_once():
    assert set(compile_lark(JSON).rules) >= {"start", "value", "array", "object", "pair"}


# -- forced tokens -------------------------------------------------------------------------------------------------

WORDS = [*(bytes([i]) for i in range(256)), b'{"', b'":', b'": ', b"order", b"orderId", b"Id", b'"}', b"<eos>"]
BY_FIRST = {byte: [i for i, w in enumerate(WORDS[:-1]) if w[0] == byte] for byte in range(256)}


def encode(text: str) -> list[int]:
    """The longest token first: canonical for this vocabulary."""
    out, at, data = [], 0, text.encode()
    while at < len(data):
        best = max((i for i in BY_FIRST[data[at]] if data.startswith(WORDS[i], at)), key=lambda i: len(WORDS[i]))
        out.append(best)
        at += len(WORDS[best])
    return out


def forced(dfa, state: int = 0) -> list[bytes]:
    run = ForcedTokens(TokenAutomaton(dfa, Vocabulary(WORDS, [len(WORDS) - 1])), encode).run(state)
    return [WORDS[i] for i in run.tokens]


def schema_of(**properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    dfa = automaton_of("json_schema", one_line(json.dumps(schema)))
    assert dfa is not None
    return dfa


def test_keys_of_schemas_are_forced_as_far_as_they_are_certain():
    one = schema_of(order={"enum": ["a", "b"]})
    assert forced(one) == [b'{"', b"order", b'": ', b'"']
    two = automaton_of(
        "json_schema", one_line(json.dumps({"type": "object", "minProperties": 1, "properties": {"order": {"const": 1}, "orderId": {"const": 2}}}))
    )
    assert forced(two) == [b'{"']  # `order` or `orderId`


def test_a_quote_that_may_open_a_longer_token_is_not_forced():
    schema = {"type": "object", "additionalProperties": {"type": "null"}, "propertyNames": {"enum": ["order"]}, "minProperties": 1}
    dfa = automaton_of("json_schema", one_line(json.dumps(schema)))
    assert forced(dfa) == [b'{"', b"order", b'": ', *(bytes([c]) for c in b"null}")]  # each of few keys once
    begun = automaton_of("json_schema", json.dumps(schema))
    assert forced(begun) == [] and forced(begun, begun.step(0, b'{\n  "order": ')) == [bytes([c]) for c in b"null\n}"]  # as it began
    name = automaton_of("json_schema", '{"type": "array", "items": {"enum": ["x"]}, "minItems": 1, "maxItems": 2}')
    state = name.step(0, b'["x')
    assert forced(name, state) == [b'"']


# -- what compiling may cost -----------------------------------------------------------------------------------------


def test_combining_languages_ends_when_the_work_is_used_up():
    several = [parse(f".*{c}.*") for c in "abcde"]
    work = TransitionBudget(200)
    with pytest.raises(TooLarge):
        functools.reduce(lambda a, b: both(a, b, work), several)
    assert functools.reduce(both, several) != NOTHING


def test_patterns_that_take_too_much_work_together_are_checked_later_or_refused(monkeypatch):
    monkeypatch.setattr(json_disjuncts, "TransitionBudget", lambda: TransitionBudget(200))
    word = {"type": "string", "allOf": [{"pattern": c} for c in "abcdef"]}
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "word": word}}
    with pytest.warns(SchemaWarning, match="/properties/word has a pattern beside a length or another pattern"):
        compiled = compile_schema(json.dumps(schema))
    assert compiled.check is not None
    assert compiled.check('{"word": "fedcba"}') is None and compiled.check('{"word": "fed"}') is not None
    with pytest.raises(ConstraintError, match=r"json_schema: /properties/word has a pattern .* which strict refuses"):
        compile_schema(json.dumps({**schema, "x-lmc": {"strict": True}}))


DOUBLING = "\n".join(["start: a0", *(f"a{i}: a{i + 1} a{i + 1}" for i in range(60)), 'a60: "x"'])


def test_rules_that_double_are_not_written_out():
    assert compile_lark(DOUBLING).tree() is None
    assert ebnf_of("lark", DOUBLING)


@pytest.mark.parametrize("schema", [{}, {"type": "object", "properties": {"next": {"$ref": "#"}}}], ids=["anything", "a chain"])
@pytest.mark.parametrize("depth", [500, 10**9])
def test_recursion_that_is_cut_too_deep_is_refused_and_never_left_uncut(schema, depth, monkeypatch):
    monkeypatch.setattr(grammar, "MAX_NODES", 1000)
    with pytest.raises(ConstraintError, match="/x-lmc/depth needs too large an automaton; use a smaller depth"):
        automaton_of("json_schema", json.dumps({**schema, "x-lmc": {"depth": depth}}))


@some(
    ("kind", "source"),
    [
        pytest.param("json_schema", '{"enum": [' + "[" * 5000 + "]" * 5000 + "]}", id="a value"),
        pytest.param("lark", "start: " + "(" * 3000 + '"a"' + ")" * 3000, id="groups of rules"),
        pytest.param("json_schema", '{"properties": {"a": ' * 3000 + "{}" + "}}" * 3000, id="schemas"),
        pytest.param("lark", "\n".join(["start: a0", *(f'a{i}: "y" a{i + 1}' for i in range(2000)), 'a2000: "x"']), id="rules"),
        pytest.param("regex", "(?:" * 5000 + "a" + ")" * 5000, id="groups"),
        pytest.param("json_schema", '{"type": "object", "properties": {"next": {"$ref": "#"}}, "x-lmc": {"depth": 2000}}', id="recursion that is cut"),
    ],
    2,
)
def test_what_is_nested_too_deep_is_refused(kind, source):
    with pytest.raises(ConstraintError, match=r"nested too deep|recursion depth|smaller depth"):
        automaton_of(kind, source)


def test_a_source_that_is_too_long_is_refused_with_its_largest_part():
    schema = {"type": "object", "properties": {"id": {"const": 1}, "a/b": {"enum": ["x" * 99 + str(i) for i in range(3000)]}}}
    with pytest.raises(ConstraintError, match=r"characters, and at most 256,000 are allowed; most of it is at /properties/a~1b/enum; shorten it"):
        automaton_of("json_schema", json.dumps(schema))
    for kind in ("regex", "lark"):
        with pytest.raises(ConstraintError, match="are allowed"):
            automaton_of(kind, "a" * 256_001)


def test_lark_reads_no_files(tmp_path, monkeypatch):
    (tmp_path / "secret.lark").write_text('WORD: "secret"\n')
    monkeypatch.chdir(tmp_path)
    for imported in ("secret.WORD", ".secret.WORD", "secret (WORD)", ".secret (WORD)", "lark.secret.WORD", ".common.WORD", "nowhere.WORD"):
        with pytest.raises(ConstraintError, match=r"no files are read, there are common, lark, python, unicode"):
            compile_lark(f"start: WORD\n%import {imported}\n")
    for imported in ("common.WORD", "common (WORD, INT)", "common.LETTER -> WORD"):
        assert compile_lark(f"start: WORD\n%import {imported}\n").tree() is not None


def test_cycles_are_the_sets_of_rules_that_lead_to_each_other():
    ways = {"a": "bd", "b": "c", "c": "a", "d": "e", "e": "", "f": "f", "g": "h", "h": "gd"}
    assert set(cycles({name: frozenset(to) for name, to in ways.items()})) == {frozenset("abc"), frozenset("f"), frozenset("gh")}
