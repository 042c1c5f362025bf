"""`lmc dump-fsm` as a user meets it: automata of regexes, schemas and grammars, and those that it does not draw."""

import re

import pytest


@pytest.mark.parametrize("format, start", [("text", "4 states"), ("dot", "digraph"), ("html", "<!")])
def test_dump_fsm_formats(lmc_cli, format, start):
    code, out, err = lmc_cli("dump-fsm", "ab(c|d)", "--format", format)
    assert code == 0 and out.lstrip().lower().startswith(start), err


def test_dump_fsm_points_at_what_is_not_regular(lmc_cli):
    code, _, err = lmc_cli("dump-fsm", r"(a)\1")
    assert code == 2 and "at position 3\n    (a)\\1\n       ^" in err


def test_dump_fsm_says_what_an_engine_makes_of_it(lmc_cli, tmp_path):
    _, out, _ = lmc_cli("dump-fsm", "ab(c|d)")
    assert re.search(r"an engine compiles all of it: [0-9.]+ ms of CPU, 4 states over bytes, \d+ KiB, 50% of the states forced", out)
    (tmp_path / "any.json").write_text("{}")
    _, out, err = lmc_cli("dump-fsm", "--schema", str(tmp_path / "any.json"))
    assert "it recurs" in out and "an engine makes it while it is used" in out and not err


def test_dump_fsm_draws_nothing_that_nobody_can_look_at(lmc_cli, monkeypatch):
    monkeypatch.setattr("lmc.cli.automata._MOST_STATES", 3)
    assert lmc_cli("dump-fsm", "abc", "--format", "dot")[::2] == (
        2,
        "error: the automaton has 4 states, too many to draw (the limit is 3); shorten the repeats in it\n",
    )
    code, out, _ = lmc_cli("dump-fsm", "abc")
    assert code == 0 and out.startswith("an engine compiles all of it") and "->" not in out


def test_dump_fsm_sums_up_what_is_long(lmc_cli, tmp_path):
    """It printed the 5,036 edges of this one, which an engine never makes."""
    file = tmp_path / "mail.json"
    file.write_text('{"properties": {"mail": {"type": "string", "pattern": "^[a-z]+@[a-z]+$", "maxLength": 254}}}')
    code, out, _ = lmc_cli("dump-fsm", "--schema", str(file))
    assert code == 0 and "->" not in out and re.search(r"made while it is used: its whole automaton takes long to find, and has [0-9,]+ states", out)
    assert lmc_cli("dump-fsm", "--schema", str(file), "-o", str(tmp_path / "all.txt"))[0] == 0
    assert (tmp_path / "all.txt").read_text().count("->") > 1000
    _, out, _ = lmc_cli("dump-fsm", "(a|b)*a(a|b){9}")
    assert "2048 edges" in out and "-o FILE writes them" in out and "->" not in out


def test_dump_fsm_draws_a_schema(lmc_cli, tmp_path):
    file = tmp_path / "answer.json"
    file.write_text('{"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}')
    code, out, _ = lmc_cli("dump-fsm", "--schema", str(file))
    assert code == 0 and """'a": "'""" in out and "[xy]" in out, out


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"type": "float"}', "/type is 'float'"), (None, "cannot read"), ("", "json_schema is not JSON")],
)
def test_dump_fsm_of_a_schema_that_is_refused(lmc_cli, tmp_path, text, says):
    file = tmp_path / "answer.json"
    if text is not None:
        file.write_text(text)
    code, _, err = lmc_cli("dump-fsm", "--schema", str(file))
    assert code == 2 and says in err
    assert lmc_cli("dump-fsm")[0] == 2


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("--schema", '{"type": "object", "properties": {"next": {"$ref": "#"}}, "zz": 1}',
         ["it recurs (recursive rules: 1 of 1)", '"{" is forced at its beginning', "ignored: the keyword 'zz' at /"]),
        ("--schema", '{"type": "array", "items": {"type": "string"}, "uniqueItems": true}', ["/uniqueItems is about", "checked when the answer ends"]),
        ("--lark", 'start: a\na: "(" a ")" | "x"\n', ["it recurs", "nothing is forced at its beginning; 2 bytes are legal"]),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::lmc.errors.SchemaWarning")
def test_dump_fsm_says_what_is_made_while_it_is_used_or_checked_later(lmc_cli, tmp_path, option, text, says):
    file = tmp_path / "source"
    file.write_text(text)
    code, out, _ = lmc_cli("dump-fsm", option, str(file))
    assert code == 0 and [part for part in says if part not in out] == []


def test_dump_fsm_draws_no_picture_of_what_is_made_while_it_is_used(lmc_cli, monkeypatch):
    monkeypatch.setattr("lmc.fsm.dfa.MAX_STATES", 5_000)  # found too large sooner
    assert "made while it is used: its whole automaton is too large" in lmc_cli("dump-fsm", "(a|b)*a(a|b){40}")[1]
    code, _, err = lmc_cli("dump-fsm", "(a|b)*a(a|b){40}", "--format", "dot")
    assert code == 2 and "no whole automaton to draw" in err


def test_dump_fsm_draws_a_lark_grammar_as_the_regex_of_its_language(lmc_cli, tmp_path):
    file = tmp_path / "grammar.lark"
    file.write_text('start: "id" DIGIT ("x" | "y")\nDIGIT: /[0-9]/\n')
    for format in ("text", "dot"):
        grammar, regex = (lmc_cli("dump-fsm", *source, "--format", format) for source in (("--lark", str(file)), ("id[0-9](x|y)",)))
        assert [re.sub(r"[0-9.]+ ms", "", out) for out in (grammar[1], regex[1])] == [re.sub(r"[0-9.]+ ms", "", regex[1])] * 2
    code, out, _ = lmc_cli("dump-fsm", "--lark", str(file), "--format", "html")
    assert code == 0 and str(file) in out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("start: word\n", "lark: Rule 'word' used but not defined (in rule start)"),
        ('start: "a\n', "at line 1 column 8"),
        ("start: start\n", "derives no text"),
    ],
)
def test_dump_fsm_of_a_lark_grammar_that_is_refused(lmc_cli, tmp_path, text, says):
    file = tmp_path / "grammar.lark"
    file.write_text(text)
    code, _, err = lmc_cli("dump-fsm", "--lark", str(file))
    assert code == 2 and says in err
    assert lmc_cli("dump-fsm", "a", "--lark", str(file))[0] == 2
