"""Structural tags: the texts that they allow, as xgrammar has them, with schemas and regexes that mean what they mean here."""

from __future__ import annotations

import json

import pytest

from lmc.errors import ConstraintError
from lmc.fsm.sources import lazily
from lmc.fsm.structural_tag import compile_structural_tag

A = {"type": "tag", "begin": "<a>", "content": {"type": "const_string", "value": "x"}, "end": "</a>"}
TEXTS = ["", "hi", "hi<a>x</a>", "<a>x</a>", "<a>x</a>yo", "<a>x</a><a>x</a>", "<a", "<<a>x</a>", "<b", "<a>y</a>", "<a>x</a>, <a>x</a>"]


def triggered(**more):
    return {"type": "triggered_tags", "triggers": ["<a"], "tags": [A], **more}


FORMATS = {
    "triggered": (triggered(), TEXTS),
    "at least one": (triggered(at_least_one=True), TEXTS),
    "once": (triggered(stop_after_first=True), TEXTS),
    "exactly one": (triggered(at_least_one=True, stop_after_first=True), TEXTS),
    "excluded": (triggered(excludes=["zz"]), ["z", "zz", "z<a>x</a>z", "<a>x</a>zz"]),
    "separated": ({"type": "tags_with_separator", "separator": ", ", "tags": [A]}, TEXTS),
    "one, separated": ({"type": "tags_with_separator", "separator": ", ", "tags": [A], "at_least_one": True}, TEXTS),
    "any text in a tag": ({"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"},
                          ["<a>x</a>", "<a>x</a></a>", "<a></b></a>", "<a></a></a>"]),
    "text of a length": ({"type": "sequence", "elements": [{"type": "any_text", "excludes": ["no"], "max_chars": 5}, {"type": "const_string", "value": "!"}]},
                         ["!", "abc!", "nno!", "abcdef!", "a!b!", "no!"]),
    "two ends": ({"type": "sequence", "elements": [
        {"type": "tag", "begin": "<a>", "content": {"type": "sequence", "elements": [{"type": "const_string", "value": "q"}, {"type": "any_text"}]},
         "end": ["</a>", "</b>"]}, {"type": "const_string", "value": "!"}]}, ["<a>qx</a>!", "<a>qx</a></b>!", "<a>q</b>!"]),
    "tags within a tag": ({"type": "tag", "begin": "<a>", "content": {"type": "triggered_tags", "triggers": ["<b"], "tags": [
        {"begin": "<b>", "content": {"type": "any_text"}, "end": "</b>"}]}, "end": "</a>"}, ["<a>hi<b>x</b>hi</a>", "<a></a></a>", "<a></a>"]),
    "counts": ({"type": "sequence", "elements": [
        {"type": "repeat", "content": A, "min": 1, "max": 2}, {"type": "optional", "content": {"type": "const_string", "value": "?"}},
        {"type": "plus", "content": {"type": "regex", "pattern": "[0-9]"}}, {"type": "star", "content": {"type": "grammar", "grammar": 'root ::= "z"'}}]},
               ["<a>x</a>1", "<a>x</a><a>x</a>?12zz", "<a>x</a>", "1", "<a>x</a><a>x</a><a>x</a>1"]),
    "or": ({"type": "or", "elements": [{"type": "json_schema", "json_schema": {"type": "boolean"}}, A]}, ["true", "<a>x</a>", "yes", "falsetrue"]),
}  # fmt: skip


def allowed(form, texts):
    made = lazily(compile_structural_tag(json.dumps({"type": "structural_tag", "format": form})))
    return [t for t in texts if made.accepts(t.encode())]


WANTED = {
    "triggered": ["", "hi", "hi<a>x</a>", "<a>x</a>", "<a>x</a>yo", "<a>x</a><a>x</a>", "<<a>x</a>", "<b", "<a>x</a>, <a>x</a>"],
    "at least one": ["<a>x</a>", "<a>x</a>yo", "<a>x</a><a>x</a>", "<a>x</a>, <a>x</a>"],
    "once": ["", "hi", "hi<a>x</a>", "<a>x</a>", "<<a>x</a>", "<b"],
    "exactly one": ["<a>x</a>"],
    "excluded": ["z", "z<a>x</a>z"],
    "separated": ["", "<a>x</a>", "<a>x</a>, <a>x</a>"],
    "one, separated": ["<a>x</a>", "<a>x</a>, <a>x</a>"],
    "any text in a tag": ["<a>x</a>", "<a></b></a>"],
    "text of a length": ["!", "abc!", "a!b!"],
    "two ends": ["<a>qx</a>!", "<a>q</b>!"],
    "tags within a tag": ["<a>hi<b>x</b>hi</a>", "<a></a>"],
    "counts": ["<a>x</a>1", "<a>x</a><a>x</a>?12zz"],
    "or": ["true", "<a>x</a>"],
}


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_allows(name):
    assert allowed(*FORMATS[name]) == WANTED[name]


@pytest.mark.model
@pytest.mark.parametrize("name", FORMATS)
def test_xgrammar_allows_the_same(name):
    xgrammar = pytest.importorskip("xgrammar")
    form, texts = FORMATS[name]
    info = xgrammar.TokenizerInfo([bytes([i]) for i in range(256)], xgrammar.VocabType.RAW, vocab_size=257, stop_token_ids=[256])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_structural_tag({"type": "structural_tag", "format": form})
    found = []
    for text in texts:
        matcher = xgrammar.GrammarMatcher(compiled)
        if all(not matcher.is_terminated() and matcher.accept_token(byte) for byte in text.encode()) and matcher.is_completed():
            found.append(text)
    assert found == WANTED[name]


def test_the_older_form():
    old = {"structures": [{"begin": "<f>", "schema": {"type": "null"}, "end": "</f>"}], "triggers": ["<f"]}
    made = lazily(compile_structural_tag(json.dumps(old)))
    assert [t for t in ("a<f>null</f>b", "<f>1</f>", "<f") if made.accepts(t.encode())] == ["a<f>null</f>b"]


def test_schemas_within_each_other_keep_their_rules_apart():
    part = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"], "additionalProperties": False}}
    other = {"type": "json_schema", "json_schema": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "null"}]}}
    tag = {"type": "or", "elements": [{**part, "json_schema": {"anyOf": [part["json_schema"], {"type": "null"}]}}, other]}
    texts = ['{"n": null}', "[null, [null]]", "null", '{"n": [null]}', '[{"n": null}]']
    assert allowed(tag, texts) == texts[:3]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"type": "token", "token": 1}, "/format has the type 'token'"),
        ({"type": "json_schema", "json_schema": {"type": "string", "pattern": "("}}, "/format/json_schema cannot.*'pattern|invalid regex"),
        ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, "/format/style is 'qwen_xml'"),
        ({"type": "json_schema", "json_schema": {}, "any_order": True}, "/format has 'any_order'"),
        ({"type": "or", "elements": [{"type": "regex", "pattern": r"(a)\1"}]}, "/format/elements/0/pattern cannot"),
        ({"type": "regex", "pattern": 3}, "/format/pattern must be a regular expression"),
        ({"type": "regex", "pattern": ["a"]}, "/format/pattern must be a regular expression"),
        ({"type": "or", "elements": []}, "/format/elements must be a list that is not empty"),
        ({"type": "grammar", "grammar": "root ::= ("}, "/format/grammar cannot be enforced: ebnf"),
        (triggered(triggers=["<b"]), "/format/tags/0/begin is '<a>', which begins with none of the triggers"),
        ({"type": "repeat", "content": A, "min": 3, "max": 2}, "/format takes min and max"),
        ({"type": "const_string", "value": "a\ud800"}, "half of a surrogate pair, cannot be written"),
        (triggered(triggers=["\ud800"], tags=[{"begin": "\ud800>", "content": A, "end": "</a>"}]), "half of a surrogate pair, cannot be written"),
    ],
)
def test_tags_that_are_refused(form, says):
    with pytest.raises(ConstraintError, match=says):
        compile_structural_tag(json.dumps({"type": "structural_tag", "format": form}))


def test_a_tag_that_is_nested_too_deep_is_refused():
    with pytest.raises(ConstraintError, match="nested too deep"):
        compile_structural_tag('{"type": "structural_tag", "format": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ConstraintError, match=r"cannot be read: .*4300 digits"):
        compile_structural_tag('{"type": "structural_tag", "format": ' + "1" * 5000 + "}")
