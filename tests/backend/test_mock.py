"""The mock backend: deterministic, scripted, late, faulty, and honest about what it saw."""

from __future__ import annotations

import copy
import json
import pickle
import re
import threading
import warnings
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import lark
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmc
from lmc.backend.base import Backend, Handle
from lmc.backend.mock import CAPABILITIES, Mock
from lmc.backend.mock_answers import Ask
from lmc.backend.mock_prompt import ROOT, encode, special_id
from lmc.backend.mock_samples import member_of, sample_regex
from lmc.backend.usage import Counters
from lmc.chat import RoleTemplate
from lmc.errors import (
    ArgumentError,
    BackendError,
    CancelledError,
    ConstraintError,
    LmcError,
    Loc,
    ProgramError,
    SchemaWarning,
    UnsupportedOpError,
)
from lmc.fsm.recognise import allows
from lmc.fsm.regex import parse
from lmc.segments import ChoicesMethod, Constraint, Frames, Gen, Image, Mark, SamplingParams, Select, Special, Text
from tests.fsm.schemas import RECURSIVE
from tests.fsm.schemas import SCHEMAS as ALL_SCHEMAS
from tests.fsm.test_json_schema import is_valid, validator
from tests.pictures import png
from tests.searching import search, size, some

LOC = Loc("prog.py", 3, 4)


def text(*parts: Any) -> Text:
    return Text(parts)


def gen(**params: Any) -> Gen:
    outside = {k: params.pop(k) for k in ("constraint", "seed", "name") if k in params}
    return Gen(SamplingParams(**({"temperature": 0.0} | params)), loc=LOC, **outside)


def answer(backend: Mock, prompt: str, ask: Ask) -> str:
    return backend.submit(None, (text(prompt), ask)).results[0].output().text


def test_it_is_a_backend() -> None:
    mock = Mock()
    assert isinstance(mock, Backend)
    assert isinstance(mock.submit(None, (text("a"), gen())), Handle)


# -- answers


def test_answers_depend_on_prompt_and_parameters_and_nothing_else() -> None:
    first = answer(Mock(), "a", gen())
    assert first == answer(Mock(), "a", gen())
    assert first == answer(Mock(), "a", gen(name="x", seed=9)), "name and, at temperature 0, seed do not matter"
    assert first == answer(Mock(), "a", Gen(SamplingParams(temperature=0))), "0 is 0.0"
    assert len({first, answer(Mock(), "b", gen()), answer(Mock(), "a", gen(max_new_tokens=127))}) == 3


def test_answers_do_not_change_between_versions() -> None:
    assert answer(Mock(), "The quick brown fox", gen()) == "zaros baros puni vopa"


def test_an_image_is_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    (tmp_path / "b.png").write_bytes(png(1))
    mock = Mock()

    def seen(source: Any) -> str:
        return mock.submit(None, (text("Look: "), Image(source), gen())).results[0].output().text

    assert seen(str(tmp_path / "a.png")) == seen(tmp_path / "b.png") == seen(png(1))
    assert len({seen(png(1)), seen(png(2)), seen("https://host/a.png"), answer(mock, "Look: ", gen())}) == 4
    assert mock.call_log[0].prompt_text == "Look: " and len(mock.call_log[0].prompt) > len("Look: ")


def test_what_is_no_image_is_refused_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    for source, why in ((str(tmp_path / "a.png"), "neither PNG"), (str(tmp_path / "none.png"), "No such file"), (3, "not int")):
        with pytest.raises(LmcError, match=rf"prog.py:3: .*{why}"):
            Mock().submit(None, (Image(source, loc=LOC), gen()))


def test_runs_are_repeatable_unless_they_are_told_otherwise() -> None:
    """And siblings, items and further asks differ, for an answer depends on its address."""

    @lmc.function
    def program(s: Any) -> list[str]:
        forks = s.fork(2)
        for f in forks:
            f += "Q: " + lmc.gen("a", temperature=1.0, max_tokens=40)
        return [f["a"] for f in forks]

    first = program.run(backend=Mock()).ret_value
    assert first[0] != first[1]
    assert program.run(backend=Mock()).ret_value == lmc.compile(program, backend=Mock())().ret_value == first
    assert program.run(backend=Mock(), seed=0).ret_value == first != program.run(backend=Mock(), seed=1).ret_value
    items = [state.ret_value for state in program.run_batch([{}, {}], backend=Mock())]
    assert items == [state.ret_value for state in lmc.compile(program, backend=Mock()).batch([{}, {}])]
    assert items[0] == first != items[1]
    other = Mock(capabilities=replace(CAPABILITIES, seed=None))
    assert program.run(backend=other).ret_value != program.run(backend=other).ret_value


def test_how_text_is_cut_does_not_matter() -> None:
    mock = Mock()
    whole = mock.submit(None, (text("héllo wörld", Special("<|im_end|>")), gen()))
    part = mock.prefill(None, (text("hé"),))
    cut = mock.submit(part, (text("llo", Mark("user", "begin"), " w", ""), text("örld"), text(Special("<|im_end|>")), gen()))
    assert whole.results[0].output().text == cut.results[0].output().text
    assert mock.call_log[0] == mock.call_log[1]
    assert hash(mock.call_log[0]) == hash(mock.call_log[1])


def test_a_spelled_special_token_is_not_the_token() -> None:
    mock = Mock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mock.submit(None, (text("<|im_", "start|>"), gen()))
        mock.submit(None, (text("<|im_start|>"), gen()))
        mock.submit(None, (text(Special("<|im_start|>")), gen()))
    spelled, same, token = mock.call_log
    assert spelled == same != token
    assert spelled.prompt == tuple(b"<|im_start|>")
    assert token.prompt == (special_id("<|im_start|>"),) == (256,)
    assert spelled.prompt_text == token.prompt_text


def test_a_spelled_special_token_warns_once() -> None:
    mock = Mock()
    with pytest.warns(UserWarning, match=r"lmc\.special\('<\|im_end\|>'\)"):
        mock.submit(None, (text("a <|im_end|>"), gen()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mock.submit(None, (text("b <|im_end|>"), gen()))


@search(15, 100)
@given(st.text("a<|é世🙂\0", max_size=6), st.sampled_from(["<|im_start|>", "<|x|>", "</s>", "[INST]"]))
def test_encoding_is_bytes_and_ids_above_them(plain: str, spelling: str) -> None:
    ids = encode((plain, Special(spelling), Mark("user", "end")))
    assert ids[:-1] == tuple(plain.encode("utf-8", "surrogatepass"))
    assert ids[-1] == special_id(spelling) >= 256


def test_limits_and_stops() -> None:
    mock = Mock(lambda prompt, ask: "one two END three")
    assert answer(mock, "a", gen(max_new_tokens=5)) == "one t"
    assert answer(mock, "a", gen(stop=("END", "three"))) == "one two "
    assert answer(mock, "a", gen(stop_regex=("t[a-z]+",))) == "one "
    assert answer(mock, "a", gen(max_new_tokens=0)) == ""
    metas = [mock.submit(None, (gen(**p),)).results[0].output().metas[0]["finish_reason"] for p in
             ({"max_new_tokens": 5}, {"stop": ("END",)}, {})]  # fmt: skip
    assert metas == [
        {"type": "length", "length": 5},
        {"type": "stop", "matched": "END"},
        {"type": "stop", "matched": None},
    ]


def test_the_stop_that_comes_first_wins() -> None:
    mock = Mock(lambda prompt, ask: "abcdef")
    for stops in (("def", "bc"), ("bc", "def"), ("bcdef", "bc")):
        assert answer(mock, "p", gen(stop=stops)) == "a"


def test_a_limit_never_leaves_half_a_character() -> None:
    mock = Mock(lambda prompt, ask: "añb")
    assert answer(mock, "p", gen(max_new_tokens=2)) == "a"
    assert answer(mock, "p", gen(max_new_tokens=3)) == "añ"


def test_hashed_answers_respect_lengths() -> None:
    for length in (1, 7, 100):
        assert len(answer(Mock(), "p", gen(max_new_tokens=length, ignore_eos=True))) == length
        assert len(answer(Mock(), "p", gen(max_new_tokens=200, min_new_tokens=length))) >= length


def test_the_templates_stops_apply() -> None:
    template = RoleTemplate("t", {}, stop=("STOP",))
    assert answer(Mock(lambda p, a: "a STOP b", chat_template=template), "p", gen(stop=("b",))) == "a "


def test_n_samples_differ_only_above_temperature_zero() -> None:
    drawn = Mock().submit(None, (text("p"), gen(n=4, temperature=0.8))).results[0].output()
    greedy = Mock().submit(None, (text("p"), gen(n=4))).results[0].output()
    assert len(set(drawn.texts)) == 4
    assert len(set(greedy.texts)) == 1
    assert len(drawn.metas) == 4
    assert drawn.value == list(drawn.texts)


def test_the_prompt_goes_on_with_the_first_answer() -> None:
    mock = Mock(answers=[["one", "two"], "end"])
    first = mock.submit(None, (text("p "), gen(n=2), text(" q")))
    mock.submit(first, (gen(),))
    assert mock.call_log[1].prompt_text == "p one q"


# -- constraints

REGEXES = [
    r"\{\"grade\": \"[ABCD][+-]?\", \"why\": \"[\w ]{1,60}\"\}",
    r"[-+]?[0-9]+[ \n]*",
    r"(True|False)",
    r"\d{4}-\d\d-\d\d",
    r"(?i:yes|no)!?",
    r"(a|b)(?:ab)x*?",
    r"[^a-z\s]+",
    r"a{2,}",
    r"\s[\n\t][\x00-\x03]\x7f",
    r"[äöü][^\x00-\x7f]",
    r"",
    r"(?:x(?P<n>y)?z){3}",
    r".{5}",
    r"[\D]{2}\S\W",
    r"^start.*end$",
]


@pytest.mark.parametrize("source", REGEXES)
def test_constrained_answers_match(source: str) -> None:
    for prompt in "abcde":
        found = answer(Mock(), prompt, gen(constraint=Constraint("regex", source)))
        assert re.fullmatch(source, found, re.ASCII), found


@pytest.mark.parametrize("source", [r"(a)\1", "a(?!b)b", r"x\bno", "a$b", "(?>a)b", "(a", "[z-a]"])
def test_what_the_dialect_refuses_is_refused_at_once_with_its_place(source: str) -> None:
    with pytest.raises(ConstraintError) as dialect:
        parse(source)
    with pytest.raises(ConstraintError, match=r"^prog.py:3: ") as caught:
        Mock().submit(None, (gen(constraint=Constraint("regex", source)),))
    assert caught.value.message == dialect.value.message


def test_unicode_classes_where_they_are_asked_for() -> None:
    assert re.fullmatch(r"(?u)é\w{3}", answer(Mock(), "p", gen(constraint=Constraint("regex", r"(?u)é\w{3}"))))


def test_what_a_schema_cannot_enforce_is_refused_by_name() -> None:
    constraint = Constraint("json_schema", '{"type": "string", "maxLen": 3, "x-lmc": {"strict": true}}')
    with pytest.raises(ConstraintError, match=r"prog.py:3: .*keyword 'maxLen'"):
        Mock().submit(None, (gen(constraint=constraint),))


@some("name", [*ALL_SCHEMAS, *RECURSIVE], 8)
def test_schema_answers_are_of_the_language_of_the_runtime(name: str) -> None:
    schema = ALL_SCHEMAS[name][0] if name in ALL_SCHEMAS else RECURSIVE[name][0]
    valid = validator(schema)
    for seed in range(4):
        found = member_of("json_schema", json.dumps(schema), b"%d" % seed)
        assert is_valid(valid, found) or (found == "null" and schema.get("nullable")), found
        assert found == member_of("json_schema", json.dumps(schema), b"%d" % seed)


def test_answers_of_lark_grammars_are_derived_and_end() -> None:
    source = """start: sum\nsum: product ("+" product)*\nproduct: NUMBER | "(" sum ")"\nNUMBER: /[1-9][0-9]?/"""
    grammar = lark.Lark(source)
    found = {answer(Mock(), prompt, gen(constraint=Constraint("lark", source))) for prompt in "abcdefgh"}
    for text in found:
        grammar.parse(text)
    assert len(found) > 4 and any("(" in text for text in found)


@pytest.mark.parametrize(
    ("kind", "source"),
    [("ebnf", 'root ::= [a-c]+ | "(" root ")"'),
     ("structural_tag", json.dumps({"type": "structural_tag", "format": {
         "type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": {"type": "array"}}, "end": "</f>"}}))],
)  # fmt: skip
def test_answers_of_ebnf_and_structural_tags_are_of_their_languages(kind: str, source: str) -> None:
    found = {answer(Mock(), prompt, gen(constraint=Constraint(kind, source))) for prompt in "abcdefgh"}
    assert len(found) > 2 and all(allows(kind, source, text) for text in found)


def test_answers_pass_what_is_checked_when_they_end() -> None:
    def unique(count: int) -> str:  # of ten values: more than automata count
        return json.dumps({"type": "array", "items": {"enum": [*range(10)]}, "minItems": count, "maxItems": count, "uniqueItems": True})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SchemaWarning)
        for seed in range(30):
            assert len(set(json.loads(member_of("json_schema", unique(3), b"%d" % seed)))) == 3
        with pytest.raises(ConstraintError, match="none of 100 drawn texts passes what can only be checked"):
            member_of("json_schema", unique(11), b"0")


def test_a_grammar_without_any_text_is_refused() -> None:
    with pytest.raises(ConstraintError, match="no text"):
        Mock().submit(None, (gen(constraint=Constraint("lark", 'start: "a" start')),))


@pytest.mark.parametrize("source", [r"(?=.*\d)(?!.*ab)[a-c0-9]{3,9}", r"\bab\b( \w+)?", r"(?m)^a$\n^b+$"])
def test_look_around_is_drawn_from_too(source: str) -> None:
    found = {sample_regex(source, b"%d" % seed) for seed in range(20)}
    assert len(found) > 1 and all(re.fullmatch(source, text, re.ASCII) for text in found)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "((a{999}){999}){999}"), ("json_schema", f'{{"type": "string", "minLength": {10**30}}}'),
        ("json_schema", '{"type": "array", "minItems": 1000, "items": {"type": "string", "minLength": 1000}}'),
    ],
)  # fmt: skip
def test_no_text_is_drawn_without_an_end(kind: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing took forever, and all memory."""
    monkeypatch.setattr("lmc.backend.mock_samples._MOST", 9_000)
    with pytest.raises(ConstraintError, match=r"more than 9,000 characters.*script its answer"):
        member_of(kind, source, b"0")


_NESTED = reduce(lambda inner, _: {"items": inner}, range(60), {"type": "integer"})
_BRANCHING, _BOUNDED = (
    {"$ref": "#/$defs/T", "$defs": {"T": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/T"}, leaf]}, "minItems": least}}}
    for leaf, least in (({"type": "null"}, 8), ({"type": "integer", "minimum": 5}, 2))
)


@pytest.mark.search
@pytest.mark.parametrize("schema", [_NESTED, _BRANCHING, _BOUNDED])
def test_texts_of_nested_schemas_do_not_grow_with_each_level(schema: dict[str, Any]) -> None:
    """Each level had several of the next, until more than 300,000 characters were refused as demanded; a bounded number below twelve was an IndexError."""
    for n in range(size(4, 20)):
        assert len(member_of("json_schema", json.dumps(schema), b"%d" % n)) < 50_000


def test_an_answer_to_whose_schema_no_end_fits_is_cut_and_searched_for_an_end_once() -> None:
    """Each of its beginnings was searched for an end, for minutes."""
    schema = Constraint("json_schema", '{"type": "string", "minLength": 3000}')
    output = Mock().submit(None, (gen(max_new_tokens=1000, constraint=schema),)).results[0].output()
    assert len(output.text) == 1000 and output.metas[0]["finish_reason"] == {"type": "length", "length": 1000}


# -- select


@pytest.mark.parametrize("method", list(ChoicesMethod))
def test_select_is_a_choice_with_the_meta_of_its_method(method: ChoicesMethod) -> None:
    output = Mock().submit(None, (text("p"), Select(("yes", "no", "maybe"), method))).results[0].output()
    scores = output.metas[0]["normalized_prompt_logprobs"]
    assert output.text == ("yes", "no", "maybe")[scores.index(max(scores))]
    assert [len(row) for row in output.metas[0]["input_token_logprobs"]] == [3, 2, 5]
    assert all(score < 0 for score in scores)


def test_select_reaches_every_choice() -> None:
    mock = Mock()
    assert {answer(mock, f"p{i}", Select(("a", "b", "c"))) for i in range(40)} == {"a", "b", "c"}


def test_select_goes_on_with_the_choice() -> None:
    mock = Mock({"x": "no"})
    first = mock.submit(None, (text("p "), Select(("yes", "no"), name="x")))
    mock.submit(first, (text("."), gen()))
    assert mock.call_log[1].prompt_text == "p no."


# -- scripts


def test_a_function_scripts_answers_and_none_falls_back() -> None:
    mock = Mock(lambda prompt, ask: f"saw {prompt}" if ask.name == "x" else None)
    assert answer(mock, "p", gen(name="x")) == "saw p"
    assert answer(mock, "p", gen(name="y")) == answer(Mock(), "p", gen())


def test_a_mapping_scripts_by_name() -> None:
    mock = Mock({"a": "text", "b": ["first", "second"], "c": lambda prompt, ask: prompt.upper()})
    assert [answer(mock, "p", gen(name=name)) for name in "abcb"] == ["text", "first", "P", "second"]
    with pytest.raises(BackendError, match=r"the scripted answers for 'b' are used up \(there were 2\)"):
        answer(mock, "p", gen(name="b"))


def test_a_scripted_choice_must_be_a_choice() -> None:
    with pytest.raises(BackendError, match=r"prog.py:3: .*'x' is 'perhaps', which is not one of"):
        answer(Mock({"x": "perhaps"}), "p", Select(("yes", "no"), name="x", loc=LOC))


REGEX = Constraint("regex", "yes|no|yes, please")
RECURS = Constraint("lark", 'start: "a" | "(" start ")"')
EBNF = Constraint("ebnf", 'root ::= "a" root? "b"')
WIDE = Constraint("regex", "(a|b)*a(a|b){20}")
ANY = Constraint("json_schema", '{"type": "object"}')


@pytest.mark.parametrize(
    ("scripted", "constraint", "params"),
    [
        ("maybe", REGEX, {}),
        ("yes,", REGEX, {}),
        ("((a)", RECURS, {}),
        ("aab", EBNF, {}),
        ("b" * 9, WIDE, {}),
        ('{"a": [}', ANY, {}),
        ([["yes", "yo"]], REGEX, {"n": 2, "temperature": 1.0}),
        ("yes.", REGEX, {"max_new_tokens": 4}),
    ],
)
def test_a_scripted_answer_is_one_that_its_constraint_allows(scripted: Any, constraint: Constraint, params: Any) -> None:
    with pytest.raises(BackendError, match=rf"prog.py:3: the scripted answer for 'x' is '.*', which its {constraint.kind} .* does not allow"):
        answer(Mock({"x": scripted}), "p", gen(name="x", constraint=constraint, **params))


def test_a_scripted_answer_may_be_cut_by_a_stop_or_by_the_limit() -> None:
    assert answer(Mock({"x": "yes\nand more"}), "p", gen(name="x", constraint=REGEX, stop=("\n",))) == "yes"
    assert answer(Mock({"x": "yes, please"}), "p", gen(name="x", constraint=REGEX, max_new_tokens=5)) == "yes, "
    assert answer(Mock({"x": "((a))"}), "p", gen(name="x", constraint=RECURS, max_new_tokens=3)) == "((a"


def test_wrong_scripts_are_refused() -> None:
    with pytest.raises(ArgumentError, match="takes a function, a mapping or a list"):
        Mock("yes")  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="must be text or a list of 2 texts"):
        answer(Mock([["a"]]), "p", gen(n=2))


# -- latency, faults, cancelling


def test_latency_delays_answers_and_runs_them_side_by_side() -> None:
    mock, threads = Mock(latency=lambda ask: 600 if ask.name == "late" else 0.01), {*threading.enumerate()}
    late = mock.submit(None, (text("first"), gen(name="late")))
    handles = [mock.submit(None, (text(str(i)), gen())) for i in range(50)]
    assert all(handle.results[0].wait(20) for handle in handles), "they wait for the one before them"
    assert not late.results[0].done
    assert {thread.name for thread in {*threading.enumerate()} - threads} <= {"lmc-mock"}
    mock.close()


def test_chains_start_when_their_parent_is_done() -> None:
    mock, instant = Mock(latency=0.01), Mock()
    asks = [(text("p"), gen(), text("q"), gen()), (text("r"), gen()), (text("s"), gen())]

    def run(backend: Mock) -> list[str]:
        first = backend.submit(None, asks[0])
        second = backend.submit(first, asks[1])
        third = backend.submit(first, asks[2])
        return [r.output().text for h in (third, second, first) for r in h.results]

    assert run(mock) == run(instant)
    assert sorted(c.prompt for c in mock.call_log) == sorted(c.prompt for c in instant.call_log)
    mock.close()


def test_answers_stream_in_a_few_pieces() -> None:
    mock = Mock(lambda p, a: "one two three", latency=0.03)
    pieces = list(mock.submit(None, (gen(),)).results[0].stream())
    assert "".join(pieces) == "one two three"
    assert len(pieces) == 3
    mock.close()


def test_latency_of_a_prompt() -> None:
    seen: list[tuple[str | None, str]] = []
    mock = Mock(lambda p, a: "x", latency=lambda ask, prompt: seen.append((ask.name, prompt)) or 0.0)
    root = mock.submit(None, [Text(("one",)), gen(name="a")])
    mock.submit(root, [Text(("two",)), gen(name="b")])
    assert seen == [("a", "one"), ("b", "onextwo")]


@pytest.mark.parametrize("latency", [0.0, 0.005])
def test_a_fault_fails_its_request_and_what_follows_and_nothing_else(latency: float) -> None:
    broken = BackendError("planted")
    mock = Mock(latency=latency, fault=lambda ask, index: broken if ask.name == "bad" else None)
    parent = mock.submit(None, (text("p"), gen(name="good"), gen(name="bad"), gen(name="after")))
    child = mock.submit(parent, (gen(),))
    other = mock.submit(None, (text("p"), gen()))
    assert parent.results[0].output().text
    for result in (parent.results[1], parent.results[2], child.results[0]):
        result.wait(60)
        assert result.error is broken
    assert other.results[0].output().text
    assert broken.loc == LOC
    late = mock.submit(parent, (gen(),))
    assert late.results[0].error is broken
    mock.close()


def test_faults_count_calls() -> None:
    mock = Mock(fault=lambda ask, index: BackendError("third") if index == 2 else None)
    errors = [mock.submit(None, (gen(),)).results[0].error for _ in range(4)]
    assert [error is not None for error in errors] == [False, False, True, False]


def test_cancelling_fails_the_unfinished_and_its_descendants() -> None:
    mock = Mock(latency=3600)
    parent = mock.submit(None, (gen(name="x"),))
    child = mock.submit(parent, (gen(),))
    parent.cancel()
    for handle in (parent, child, mock.submit(child, (gen(),))):
        assert handle.results[0].wait(60)
        assert isinstance(handle.results[0].error, CancelledError)
    mock.close()


def test_cancelling_what_is_done_changes_nothing() -> None:
    handle = Mock().submit(None, (gen(),))
    handle.cancel()
    assert handle.results[0].output().text


def test_a_request_that_is_cancelled_while_it_begins_is_not_left() -> None:
    def latency(ask: Ask) -> float:
        if ask.name == "child":
            child.cancel()  # by another thread
        return 3600

    mock = Mock(latency=latency)
    parent = mock.submit(None, (gen(name="parent"),))
    child = mock.submit(parent, (gen(name="child"),))
    mock._go(child, ROOT)  # the parent's answer has arrived
    assert isinstance(child.results[0].error, CancelledError) and mock._pending == {parent}
    mock.close()


def test_close_ends_what_is_running_and_refuses_more() -> None:
    mock = Mock(latency=3600)
    handle = mock.submit(None, (gen(),))
    mock.close()
    mock.close()
    assert isinstance(handle.results[0].error, CancelledError)
    with pytest.raises(BackendError, match="closed"):
        mock.submit(None, (gen(),))


def test_many_threads_may_submit() -> None:
    mock = Mock(latency=0.001)
    root = mock.submit(None, (text("p"), gen()))
    found: list[str] = []

    def work(i: int) -> None:
        found.append(mock.submit(root, (text(str(i % 4)), gen())).results[0].output().text)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 32
    assert len(set(found)) == 4
    mock.close()


# -- capabilities


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="mock does not support"):
        Mock(capabilities=replace(CAPABILITIES, videos=False)).submit(None, (Image("x.mp4", Frames(4)),))


# -- log-probabilities


def test_logprobs_are_listed_as_an_engine_lists_them() -> None:
    params = SamplingParams(return_logprob=True, logprob_start_len=1, top_logprobs_num=2, return_text_in_logprobs=True)
    mock = Mock(answers=["xy", "xy"])
    meta = mock.submit(None, (text("abc"), Gen(params))).results[0].output().metas[0]
    assert [entry[1:] for entry in meta["input_token_logprobs"]] == [[98, "b"], [99, "c"]]
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[120, "x"], [121, "y"]]
    assert all(-9 < entry[0] < 0 for entry in meta["input_token_logprobs"] + meta["output_token_logprobs"])
    assert [[own, len(top)] for own, *top in meta["output_top_logprobs"]] == [[e, 1] for e in meta["output_token_logprobs"]]
    assert all(top[0][0] > top[1][0] for top in meta["output_top_logprobs"])
    assert [own for own, *_ in meta["input_top_logprobs"]] == meta["input_token_logprobs"]
    again = mock.submit(None, (text("abc"), Gen(params))).results[0].output().metas[0]
    assert again == meta


def test_logprobs_are_of_the_answer_alone_unless_more_is_asked() -> None:
    mock = Mock(answers=["xy"] * 3)
    for start, count in ((None, 0), (-1, 0), (0, 3)):
        params = SamplingParams(return_logprob=True, logprob_start_len=start)
        meta = mock.submit(None, (text("abc"), Gen(params))).results[0].output().metas[0]
        assert len(meta["input_token_logprobs"]) == count
        assert "output_top_logprobs" not in meta
    assert meta["input_token_logprobs"][0] == [None, 97, None]


# -- counters


def test_what_was_spent_is_told_as_by_an_api() -> None:
    mock = Mock(answers=["xy"])
    mock.submit(None, (text("abc"), Gen(SamplingParams()))).results[0].output()
    spent = mock.spent()
    assert (spent.attempts, spent.usage.calls, spent.usage.prompt_tokens, spent.usage.completion_tokens, spent.cost) == (1, 1, 3, 2, None)


def test_counters_measure_what_a_prefix_cache_would_save() -> None:
    mock = Mock(answers=["12345", "xy", "zw"])
    first = mock.submit(None, (text("0123456789"), gen()))
    mock.submit(first, (text("abc"), gen()))
    before = mock.counters()
    mock.submit(None, (text("01234##"), gen()))
    assert before == Counters(
        calls=2,
        prompt_tokens=10 + 18,
        cached_tokens=15,
        prefilled_tokens=13,
        unique_tokens=13,
        generated_tokens=7,
        passes=7,
        rows=20,
    )
    after = mock.counters() - before
    assert (after.prompt_tokens, after.cached_tokens, after.prefilled_tokens) == (7, 5, 2)
    assert after.prefill_optimality == 1.0


def test_a_choice_is_scored_and_not_generated() -> None:
    """As on an engine: its tokens count as the prompt of what follows."""
    label = lmc.function(lambda s: s.__iadd__("Sky: " + lmc.select("color", ["blue", "green"]) + lmc.gen("why", max_tokens=4)))
    mock = lmc.Mock({"color": "blue", "why": "so."})
    state = label.run(backend=mock)
    state.sync()
    counted = mock.counters()
    assert (counted.generated_tokens, counted.prompt_tokens, counted.passes) == (3, 5 + 9, 4) == (
        state.usage.completion_tokens, state.usage.prompt_tokens, state.usage.passes)


def test_prefill_is_counted_once_and_flush_forgets() -> None:
    mock = Mock(answers=["a"] * 3)
    mock.prefill(None, (text("shared"),))
    mock.submit(None, (text("shared x"), gen()))
    assert mock.counters().prefilled_tokens == 8
    mock.flush_cache()
    mock.submit(None, (text("shared x"), gen()))
    assert mock.counters().prefilled_tokens == 16


@search(9, 60)
@given(st.lists(st.text(alphabet="ab", max_size=6), max_size=12))
def test_counted_prefixes_are_those_of_a_set_of_prefixes(prompts: list[str]) -> None:
    mock = Mock(lambda prompt, ask: "")
    seen: set[str] = {""}
    cached = 0
    for prompt in prompts:
        cached += max(i for i in range(len(prompt) + 1) if prompt[:i] in seen)
        seen |= {prompt[:i] for i in range(len(prompt) + 1)}
        mock.submit(None, (text(prompt), gen()))
    assert mock.counters().cached_tokens == cached
    assert mock.counters().unique_tokens == len(seen) - 1


@pytest.mark.parametrize(("pattern", "low", "high"), [
    ("^[a-z]+@[a-z]+$", 5, 254), ("^a+b?$", 3, 9), ("^(ab)*$", 4, 4), ("^[0-9]{2,}x", 0, 40), ("^.+@.+$", 0, 254),
])  # fmt: skip
def test_a_pattern_beside_a_length_is_drawn_within_both(pattern: str, low: int, high: int):
    schema = json.dumps({"type": "string", "pattern": pattern, "minLength": low, "maxLength": high})
    for n in range(20):
        text = json.loads(member_of("json_schema", schema, bytes([n])))
        assert re.search(pattern, text) and low <= len(text) <= high, text


def test_a_copy_of_a_backend_is_the_backend_and_no_other_process_gets_it():
    mock = Mock({"x": "y"})
    assert copy.copy(mock) is mock and copy.deepcopy({"backend": mock}) == {"backend": mock}
    with pytest.raises(ProgramError, match=r"a backend cannot be pickled \(Mock\): make one in each process, or give its name"):
        pickle.dumps(mock)


def test_mocks_share_one_thread():
    @lmc.function
    def asks(s):
        s += "x" + lmc.gen("a")

    before = {t for t in threading.enumerate() if t.name != "lmc-mock"}
    for _ in range(20):
        backend = lmc.Mock(latency=1e-4)
        asks.run(backend=backend)["a"]
    assert sum(t.name == "lmc-mock" for t in threading.enumerate()) == 1
    assert {t for t in threading.enumerate() if t.name != "lmc-mock"} <= before  # of which some may have ended
