"""The command line as a user meets it: results, records, messages and exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from lmc import cli
from lmc.cli.run import states_of
from lmc.config import reset

COMMAND = typer.main.get_command(cli.app)  # a process makes it once
ROOT = Path(__file__).parent.parent

PROGRAM = '''
import json

import lmc


@lmc.function
def echo(s, text, times: int = 1):
    s += "Say: " + text + lmc.gen("said", max_tokens=8)
    return {"text": text, "times": times}


@lmc.function
def picky(s, text):
    s += text + lmc.gen("x", max_tokens=4)
    if text == "bad":
        raise ValueError("I do not like bad")
    return text


@lmc.function
def broken_regex(s):
    s += lmc.gen("x", regex="[a-")
'''

SLOW = '''
import time

import lmc


@lmc.function
def slow(s, text):
    s += text + lmc.gen("x", max_tokens=4)
    if text == "slow":
        time.sleep(60)
    return text
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "prog.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("LMC_")]:
        monkeypatch.delenv(name)
    yield tmp_path
    sys.modules.pop("prog", None)


@pytest.fixture
def lmc_cli(folder, monkeypatch, capsys):
    """Runs the command in this process: (exit code, standard output, standard error)."""

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lmc", *args])
        monkeypatch.setattr("lmc.cli.command.app", COMMAND)
        monkeypatch.setattr(sys, "path", list(sys.path))
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        out, err = capsys.readouterr()
        return code, out, err

    return call


def jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def items(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# -- it does its job -----------------------------------------------------------------------------------------------


def test_run_with_arguments_prints_the_return_value(lmc_cli):
    code, out, err = lmc_cli("run", "prog.py:echo", "--arg", "text=a=b", "--arg", "times=3", "--backend", "mock")
    assert (code, json.loads(out)) == (0, {"text": "a=b", "times": 3}), err


def test_run_on_a_file_writes_a_record_per_item_in_order(lmc_cli, folder):
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(7)))
    code, out, err = lmc_cli("run", "prog.py:echo", "--input", "in.jsonl", "--output", "out.jsonl", "--backend", "mock")
    assert (code, out) == (0, ""), err
    rows = jsonl(folder / "out.jsonl")
    assert [row["index"] for row in rows] == list(range(7))
    assert rows[3]["return"] == {"text": "t3", "times": 1}
    assert rows[3]["text"] == "Say: t3" + rows[3]["variables"]["said"]
    assert rows[3]["usage"]["calls"] == 1
    assert "7 items" in err and "7 calls" in err


@pytest.mark.parametrize("options", [[], ["--temperature", "0"], ["--seed", "5", "--max-tokens", "3"]], ids=["plain", "greedy", "seeded"])
def test_interpret_gives_the_same_records(lmc_cli, folder, options):
    items(folder / "in.jsonl", {"text": "a"}, {"text": "b"})
    common = ["run", "prog.py:echo", "-i", "in.jsonl", "--backend", "mock", "--seed", "1", *options]
    assert lmc_cli(*common, "-o", "compiled.jsonl")[0] == 0
    assert lmc_cli(*common, "-o", "interpreted.jsonl", "--interpret")[0] == 0
    for one, two in zip(jsonl(folder / "compiled.jsonl"), jsonl(folder / "interpreted.jsonl"), strict=True):
        assert {**one, "usage": 0} == {**two, "usage": 0}


@pytest.mark.parametrize("mode", [[], ["--interpret"]], ids=["compiled", "interpreted"])
def test_a_resumed_run_samples_what_an_undisturbed_one_samples(lmc_cli, folder, mode):
    """Each item's seed comes from its number in the input, wherever the run goes on."""
    items(folder / "in.jsonl", *({"text": "the same"} for _ in range(5)))
    command = ["run", "prog.py:echo", "-i", "in.jsonl", "-b", "mock", "--seed", "1", *mode]
    assert lmc_cli(*command, "-o", "whole.jsonl")[0] == 0
    rows = sorted(jsonl(folder / "whole.jsonl"), key=lambda row: row["index"])
    assert len({row["variables"]["said"] for row in rows}) > 1
    kept = [line for line in (folder / "whole.jsonl").read_text().splitlines() if json.loads(line)["index"] in (0, 3)]
    (folder / "part.jsonl").write_text("\n".join(kept) + "\n")
    for extra in folder.glob("whole.jsonl.*"):
        extra.rename(folder / extra.name.replace("whole", "part"))
    code, _, err = lmc_cli(*command, "-o", "part.jsonl", "--resume")
    assert code == 0, err
    resumed = sorted(jsonl(folder / "part.jsonl"), key=lambda row: row["index"])
    assert [{**row, "usage": 0} for row in resumed] == [{**row, "usage": 0} for row in rows]


def test_without_output_records_go_to_standard_output(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "a"}, {"text": "b"})
    code, out, _ = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-b", "mock")
    assert code == 0 and sorted(json.loads(line)["index"] for line in out.splitlines()) == [0, 1]


def test_fields_that_are_no_parameter_are_copied_and_said(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "a", "label": "x"})
    code, _, err = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock")
    assert code == 0 and "label" in err
    assert jsonl(folder / "out.jsonl")[0]["input"] == {"label": "x"}


def test_one_bad_item_fails_alone_and_resume_runs_it_again(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "a"}, {"text": "bad"}, {"text": "c"})
    run = ("run", "prog.py:picky", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock")
    code, _, err = lmc_cli(*run)
    assert code == 1 and "1 of 3 items" in err and "--resume" in err and "Traceback" not in err
    rows = jsonl(folder / "out.jsonl")
    assert rows[1]["error"] == {"type": "ValueError", "message": "I do not like bad"}
    assert [row.get("return") for row in rows] == ["a", None, "c"]

    items(folder / "in.jsonl", {"text": "a"}, {"text": "good"}, {"text": "c"})
    code, _, err = lmc_cli(*run, "--resume")
    assert code == 0 and "1 item " in err
    assert [(row["index"], row["return"]) for row in jsonl(folder / "out.jsonl")] == [(0, "a"), (1, "good"), (2, "c")]


def test_dump_ir_prints_a_graph_that_opt_reads(lmc_cli, folder):
    code, out, err = lmc_cli("dump-ir", "prog.py:echo")
    assert code == 0 and "graph @echo" in out and "gen(" in out, err
    assert lmc_cli("dump-ir", "prog.py:echo", "--after", "trace", "-o", "echo.lmir")[0] == 0
    code, out, err = lmc_cli("opt", "echo.lmir", "--passes=canonicalize")
    assert code == 0 and "graph @echo" in out, err


def test_opt_says_which_prompts_it_changed(lmc_cli, folder):
    text = '"You read.\\n", %q, "\\nRate the style from 1 to 5.\\nAnswer:"'
    (folder / "moves.lmir").write_text(f"graph @g(%q: str) -> (any) {{\n  %c0 = ctx.new()\n  %c1 = append(%c0, {text})\n"
                                       "  %c2, %x, %m = gen(%c1)\n  return(%x, %c2)\n}\n")
    code, out, err = lmc_cli("opt", "moves.lmir", "--passes=aggressive")
    assert code == 0 and "graph @g" in out
    before, after = err.split("\nto\n")
    assert before.index("{q}") < before.index("Rate") and after.index("Rate") < after.index("{q}")


def test_opt_says_how_a_programs_graph_is_made(lmc_cli, folder):
    code, _, err = lmc_cli("opt", "prog.py")
    assert code == 2 and "lmc dump-ir prog.py:FUNCTION --after trace" in err


def test_opt_runs_a_targets_pipeline_and_reports(lmc_cli, folder):
    assert lmc_cli("dump-ir", "prog.py:echo", "--after", "trace", "-o", "echo.lmir")[0] == 0
    code, out, err = lmc_cli("opt", "echo.lmir", "--timing", "--verify-each", "--print-after=plan-prefix")
    assert code == 0 and "graph @echo" in out
    assert err.count("// -- after plan-prefix") == 1 and "what it did" in err and "lower-chat" in err
    code, out, _ = lmc_cli("opt", "echo.lmir", "--list")
    assert code == 0 and "\ncanonicalize: " in out


@pytest.mark.parametrize("format, start", [("dot", "digraph"), ("html", "<!"), ("json", "{")])
def test_dump_ir_formats(lmc_cli, format, start):
    code, out, err = lmc_cli("dump-ir", "prog.py:echo", "--format", format)
    assert code == 0 and out.lstrip().lower().startswith(start), err


def test_one_of_a_thing_is_singular(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "t"})
    assert re.search(r"^1 item in [0-9.]+ s: 1 call, ", lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-b", "mock")[2], re.M)


def test_trace_writes_what_perfetto_reads(lmc_cli, folder):
    code, _, err = lmc_cli("trace", "prog.py:echo", "--arg", "text=a", "--backend", "mock")
    assert code == 0 and "wrote 1 run to trace.json" in err
    assert json.loads(Path("trace.json").read_text())["traceEvents"]
    code, out, err = lmc_cli("trace", "prog.py:echo", "--arg", "text=a", "--backend", "mock", "-o", "-")
    assert code == 0 and "wrote 1 run to standard output" in err and json.loads(out)["traceEvents"] and not Path("-").exists()
    code, _, err = lmc_cli("trace", "prog.py:picky", "--arg", "text=bad", "--backend", "mock", "-o", "bad.json")
    assert code == 1 and "1 of 1 items" in err and "raised ValueError" in Path("bad.json").read_text()
    code, _, err = lmc_cli("trace", "prog.py:echo", "--arg", "text=a", "-b", "mock", "-o", "no/t.json")
    assert code == 2 and "no" in err


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
    assert "lead to themselves" in out and "an engine makes it while it is used" in out and not err


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
         ["1 of its 1 rules lead to themselves", "is forced", "ignored: the keyword 'zz' at /"]),
        ("--schema", '{"type": "array", "items": {"type": "string"}, "uniqueItems": true}', ["/uniqueItems is about", "checked when the answer ends"]),
        ("--lark", 'start: a\na: "(" a ")" | "x"\n', ["lead to themselves", '"" is forced, then 2 bytes are legal']),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::lmc.errors.SchemaWarning")
def test_dump_fsm_says_what_is_made_while_it_is_used_or_checked_later(lmc_cli, tmp_path, option, text, says):
    file = tmp_path / "source"
    file.write_text(text)
    code, out, _ = lmc_cli("dump-fsm", option, str(file))
    assert code == 0 and [part for part in says if part not in out] == []


def test_dump_fsm_draws_no_picture_of_what_is_made_while_it_is_used(lmc_cli):
    assert "made while it is used: its whole automaton is too large" in lmc_cli("dump-fsm", "(a|b)*a(a|b){40}")[1]
    code, _, err = lmc_cli("dump-fsm", "(a|b)*a(a|b){40}", "--format", "dot")
    assert code == 2 and "no whole automaton to draw" in err


def test_env_says_what_is_installed(lmc_cli, monkeypatch):
    monkeypatch.setenv("LMC_VERIFY", "2")
    monkeypatch.setattr("lmc.cli.environment._gpus", lambda: "none")  # asking takes torch
    code, out, _ = lmc_cli("env")
    assert code == 0
    assert all(word in out for word in ("python", "torch", "safetensors", "cache_dir", "LMC_VERIFY"))


def test_env_lists_several_gpus(lmc_cli, monkeypatch):
    cuda = SimpleNamespace(
        device_count=lambda: 3, get_device_name=lambda i: f"card {i}", mem_get_info=lambda i: (i << 30, 80 << 30),
        can_device_access_peer=lambda i, j: i + j == 1,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    out = lmc_cli("env")[1]
    assert "card 0, card 1, card 2" in out and "1.0 of 80.0 GiB free; reads directly from: 0" in out
    assert "2.0 of 80.0 GiB free; reads directly from: none" in out and "tp × dp may be 3 at most" in out


@pytest.mark.parametrize(("options", "says"), [
    (("--adapter", "sql"), "--adapter sql: expected NAME=PATH"),
    (("--adapter", "=path"), "--adapter =path: expected NAME=PATH"),
    (("--adapter", "a=x", "--adapter", "a=y"), "two adapters have the name a"),
    (("--drafts", "many"), "drafts='many': must be auto, off or a number of tokens"),
    (("--drafts", "4", "--backend", "mock"), "--drafts and --draft-model are for models on this machine, and mock is not one"),
    (("--kv-dtype", "fp8", "--backend", "mock"), "--kv-dtype is for models on this machine, and mock is not one"),
    (("--kv-dtype", "int8"), "kv_dtype='int8': must be fp8, or empty"),
    (("--draft-model", "nowhere"), "no model 'nowhere'"),
    (("--adapter", "a=x", "--backend", "mock"), "--adapter is for models on this machine, and mock is not one"),
])  # fmt: skip
def test_adapters_and_drafts_that_cannot_be_are_refused(lmc_cli, folder, options, says):
    for command in (("run", "prog.py:echo", "--arg", "text=x"), ("serve", "--port", "0")):
        code, _, err = lmc_cli(*command, *options)
        assert code == 2 and says in err


def test_a_model_and_an_adapter_have_two_names(lmc_cli, request):
    request.addfinalizer(reset)
    code, _, err = lmc_cli("serve", "--port", "0", "--name", "sql", "--adapter", "sql=path")
    assert code == 2 and "the model and an adapter are both called sql; give the model another name by --name" in err


def test_version(lmc_cli):
    code, out, _ = lmc_cli("--version")
    assert code == 0 and out.startswith("lmc ")


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


@pytest.mark.parametrize("command", [[], ["run"], ["dump-ir"], ["dump-fsm"], ["opt"]])
def test_help_teaches_by_examples(lmc_cli, command):
    code, out, _ = lmc_cli(*command, "--help")
    assert code == 0 and "lmc " in out and ("Examples:" in out or "Start here:" in out)


IMPERATIVE = frozenset("Answer Chat Compile Export List Make Mark Prepare Report Rewrite Run Serve Show".split())


def commands_of(group, name=()):
    yield name, group
    for each, command in getattr(group, "commands", {}).items():
        yield from commands_of(command, (*name, each))


@pytest.mark.parametrize(("name", "command"), [pytest.param(*found, id=" ".join(found[0]) or "lmc") for found in commands_of(COMMAND)])
def test_help_has_one_mood_and_is_whole(name, command):
    """Commands say what to do, in a line that the list of commands shows whole; what an option takes has a name that means something."""
    assert command.help.split()[0].rstrip(",") in IMPERATIVE
    summary = command.get_short_help_str(200)
    assert summary == command.get_short_help_str(98) and summary.endswith(".") and not summary.endswith("..."), summary
    for param in command.params:
        metavar = param.make_metavar(typer.Context(command))
        assert getattr(param, "is_flag", False) or "<" not in metavar or "|" in metavar, (param.name, metavar)  # of a choice, what there is
        assert name == () or param.name == "help" or (param.help and param.help.rstrip().endswith((".", "]", "…"))), (param.name, param.help)


# -- what is wrong is said once, with the place and the remedy ------------------------------------------------------

BAD = {
    "no such file": (["run", "nope.py:fn"], 2, ["no such file: nope.py"]),
    "a model for a program": (["serve", "smollm2"], 2, ["and a model is given by --backend smollm2"]),
    "an address for a host": (["serve", "-b", "mock", "--allow-remote-media", "https://host/"], 2, ["give a host, as in images.example.org"]),
    "no host": (["serve", "-b", "mock", "--allow-remote-media", ""], 2, ["give a host"]),
    "a hub id for a program": (["serve", "Qwen/Qwen2.5-7B-Instruct"], 2, ["--backend Qwen/Qwen2.5-7B-Instruct"]),
    "a service for a program": (["run", "openai:gpt-5"], 2, ["a model is given by --backend openai"]),
    "not python": (["run", "in.jsonl:fn"], 2, ["not a Python file", "FILE.py:FUNCTION"]),
    "no such function": (["run", "prog.py:ecko"], 2, ["no program 'ecko'", "prog.py:echo"]),
    "no function named": (["run", "prog.py"], 2, ["several programs", "echo"]),
    "missing argument": (["run", "prog.py:echo", "-b", "mock"], 2, ["echo needs the argument 'text'", "prog.py:7"]),
    "unknown argument": (["run", "prog.py:echo", "-a", "txet=x", "-b", "mock"], 2, ["no parameter 'txet'", "did you mean 'text'"]),
    "argument without value": (["run", "prog.py:echo", "-a", "text"], 2, ["NAME=VALUE"]),
    "argument that is not JSON": (["run", "prog.py:echo", "-a", "text=x", "-a", "times=three"], 2, ["times: int", "times=3"]),
    "missing input": (["run", "prog.py:echo", "-i", "none.jsonl", "-b", "mock"], 2, ["no such input file: none.jsonl"]),
    "malformed line": (["run", "prog.py:echo", "-i", "in.jsonl", "-b", "mock"], 2, ["in.jsonl:2", "not JSON"]),
    "line without argument": (["run", "prog.py:echo", "-i", "short.jsonl", "-b", "mock"], 2, ["short.jsonl:2", "'text'"]),
    "empty input": (["run", "prog.py:echo", "-i", "empty.jsonl", "-b", "mock"], 2, ["no items", "text"]),
    "line that is no object": (["run", "prog.py:echo", "-i", "list.jsonl", "-b", "mock"], 2, ["list.jsonl:1", "object"]),
    "both inputs": (["run", "prog.py:echo", "-i", "in.jsonl", "-a", "text=x"], 2, ["--arg", "--input"]),
    "resume without output": (["run", "prog.py:echo", "-i", "in.jsonl", "--resume"], 2, ["--output"]),
    "output into nowhere": (["run", "prog.py:echo", "-i", "good.jsonl", "-o", "prog.py/out", "-b", "mock"], 2, ["--output"]),
    "invalid regex": (["run", "prog.py:broken_regex", "-b", "mock"], 1, ["prog.py:23", "regex"]),
    "exception in the program": (["run", "prog.py:picky", "-a", "text=bad", "-b", "mock"], 1,
                                 ["ValueError: I do not like bad", "prog.py:17"]),
    "exception in the file": (["run", "raises.py:fn", "-b", "mock"], 1, ["ZeroDivisionError", "raises.py:1"]),
    "syntax error in the file": (["run", "syntax.py:fn", "-b", "mock"], 1, ["SyntaxError", "syntax.py:1"]),
    "file without a program": (["run", "empty.py", "-b", "mock"], 2, ["@lmc.function"]),
    "unknown pass": (["dump-ir", "prog.py:echo", "--after", "plan-prefx"], 2, ["plan-prefx", "plan-prefix"]),
    "graph that does not parse": (["opt", "text.lmir"], 1, ["text.lmir:2", "expected graph"]),
    "no graph file": (["opt", "none.lmir"], 2, ["none.lmir"]),
    "unknown pass of opt": (["opt", "g.lmir", "--passes=cannonicalize"], 2, ["canonicalize"]),
    "unknown template of opt": (["opt", "g.lmir", "--template=qwem"], 1, ["qwem", "qwen"]),
    "unknown option": (["run", "prog.py:echo", "--bakend", "mock"], 2, ["--bakend"]),
    "unknown command": (["rnu"], 2, ["rnu"]),
}


@pytest.fixture
def bad_files(folder):
    (folder / "in.jsonl").write_text('{"text": "a"}\n{"text": "b"\n')
    (folder / "good.jsonl").write_text('{"text": "a"}\n')
    (folder / "short.jsonl").write_text('{"text": "a"}\n{}\n')
    (folder / "list.jsonl").write_text("[1]\n")
    (folder / "empty.jsonl").write_text("\n")
    (folder / "raises.py").write_text("1 / 0\n")
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "empty.py").write_text("x = 1\n")
    (folder / "g.lmir").write_text("graph @g() -> (any) {\n}\n")
    (folder / "text.lmir").write_text("\nno graph\n")


@pytest.mark.parametrize("args, expected, words", BAD.values(), ids=BAD.keys())
def test_bad_input_gets_one_clear_message(lmc_cli, bad_files, args, expected, words):
    code, out, err = lmc_cli(*args)
    assert "Traceback" not in err + out
    assert code == expected, err
    for word in words:
        assert word in err
    assert not any(Path().glob("out.jsonl"))


def test_text_used_as_a_number_is_explained(lmc_cli, folder):
    (folder / "sums.py").write_text(PROGRAM + "\n\n@lmc.function\ndef more(s, text):\n    s += text + lmc.gen('n', max_tokens=2)\n    return s['n'] + 1\n")
    code, _, err = lmc_cli("run", "sums.py:more", "--arg", "text=x", "-b", "mock")
    assert code == 1 and "s['n'] is text, like everything a model writes" in err and "sums.py:" in err
    lmc_cli("run", "sums.py:more", "-i", str(items(folder / "in.jsonl", {"text": "x"})), "-o", "out.jsonl", "-b", "mock")
    assert "is text, like everything a model writes" in jsonl(folder / "out.jsonl")[0]["error"]["message"]
    sys.modules.pop("sums", None)


def test_half_of_a_surrogate_pair_is_written_and_stops_nothing(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "\ud800"}, {"text": "b"})
    code, _, err = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock")
    assert code == 0, err
    assert [row["return"]["text"] for row in jsonl(folder / "out.jsonl")] == ["\ud800", "b"]


def test_no_line_of_a_library_is_given_as_the_place(lmc_cli):
    code, _, err = lmc_cli("run", "missing.lmcp", "--arg", "text=x", "-b", "mock")
    assert code != 0 and "cannot be read" in err
    assert ".py:" not in err


def test_debug_shows_the_traceback(lmc_cli, monkeypatch):
    monkeypatch.setenv("LMC_DEBUG", "1")
    code, _, err = lmc_cli("run", "nope.py:fn")
    assert code == 2 and "Traceback" in err
    reset()
    monkeypatch.setenv("LMC_DEBUG", "x")
    code, _, err = lmc_cli("run", "nope.py:fn")
    assert code == 2 and err == "error: LMC_DEBUG='x': must be a whole number\n"


def test_a_result_that_cannot_go_on_keeps_what_is_done(lmc_cli, folder, monkeypatch):
    """An interruption half way: the records before it stay, and --resume does the rest."""
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(6)))
    run = ("run", "prog.py:echo", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock")
    states = states_of

    def interrupted(*args):
        for i, state in enumerate(states(*args)):
            if i == 3:
                raise KeyboardInterrupt
            yield state

    with monkeypatch.context() as patch:
        patch.setattr("lmc.cli.run.states_of", interrupted)
        code, _, err = lmc_cli(*run)
    assert code == 130 and "3 of 6 results are in out.jsonl" in err and "--resume" in err
    assert [row["index"] for row in jsonl(folder / "out.jsonl")] == [0, 1, 2]
    code, _, err = lmc_cli(*run, "--resume")
    assert code == 0 and "3 items" in err
    assert [row["index"] for row in jsonl(folder / "out.jsonl")] == list(range(6))


# -- results are written as they come, and kept --------------------------------------------------------------------

ECHO = ("run", "prog.py:echo", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock", "--temperature", "0")


@pytest.fixture
def results(lmc_cli, folder) -> Path:
    """The results of `ECHO` for three items."""
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(3)))
    assert lmc_cli(*ECHO)[0] == 0
    return folder / "out.jsonl"


@pytest.mark.parametrize("order, options", [(["slow", "a", "b", "c"], []), (["a", "b", "c", "slow"], ["--interpret"])],
                         ids=["compiled", "interpreted"])
def test_what_is_finished_is_written_at_once_and_interruption_is_prompt(folder, order, options):
    """An item that hangs in its own code, first in the file, holds up neither the others' results nor Ctrl-C."""
    (folder / "slow.py").write_text(SLOW)
    items(folder / "in.jsonl", *({"text": text} for text in order))
    command = [sys.executable, "-m", "lmc", "run", "slow.py:slow", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock", *options]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and not (Path("out.jsonl").exists() and len(Path("out.jsonl").read_text().splitlines()) == 3):
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 130
    assert "3 of 4 results are in out.jsonl" in err and "--resume" in err and "still running" in err and "Traceback" not in err
    assert [row["return"] for row in jsonl(folder / "out.jsonl")] == ["a", "b", "c"]


def test_results_that_come_out_of_order_are_sorted_at_the_end(lmc_cli, folder, monkeypatch):
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(4)))
    states = states_of
    monkeypatch.setattr("lmc.cli.run.states_of", lambda *args: reversed(list(states(*args))))
    code, _, err = lmc_cli(*ECHO)
    assert code == 0, err
    assert [(row["index"], row["return"]["text"]) for row in jsonl(folder / "out.jsonl")] == [(i, f"t{i}") for i in range(4)]


def test_finished_results_are_flushed_on_interruption(lmc_cli, folder, monkeypatch):
    """Results that finish while another one is being shown are written, too."""
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(5)))

    def interrupted(states, total, backend):
        yield next(iter(states))
        deadline = time.monotonic() + 60
        while states._events.qsize() < total and time.monotonic() < deadline:  # the others, and the end
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("lmc.cli.run.progress", interrupted)
    code, _, err = lmc_cli(*ECHO)
    assert code == 130 and "5 of 5 results" in err
    assert [row["index"] for row in jsonl(folder / "out.jsonl")] == list(range(5))


@pytest.mark.parametrize("how", [[], ["--interpret"]], ids=["compiled", "interpreted"])
def test_a_run_is_written_as_a_page(lmc_cli, folder, how):
    code, out, _ = lmc_cli("run", "prog.py:echo", "-a", "text=<b>x", "-b", "mock", "--html", "run.html", *how)
    page = (folder / "run.html").read_text()
    assert code == 0 and out and "<b>x" not in page and "&lt;b&gt;x" in page
    assert 'id=timeline' in page and ("graph @" in page) == (not how)


@pytest.mark.parametrize("output", ["in.jsonl", "./sub/../in.jsonl", "link.jsonl"])
@pytest.mark.parametrize("flag", [[], ["--overwrite"], ["--resume"]], ids=["plain", "overwrite", "resume"])
def test_the_input_is_never_the_output(lmc_cli, folder, output, flag):
    source = items(folder / "in.jsonl", {"text": "a"})
    (folder / "sub").mkdir()
    (folder / "link.jsonl").symlink_to(source)
    before = source.read_text()
    code, _, err = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-o", output, "-b", "mock", *flag)
    assert code == 2 and "is the --input file; choose another" in err
    assert source.read_text() == before


@pytest.mark.parametrize("what", [["-i", "in.jsonl"], ["-a", "text=x"]], ids=["file", "one"])
def test_existing_results_are_not_replaced_unasked(lmc_cli, folder, what):
    items(folder / "in.jsonl", {"text": "a"})
    (folder / "out.jsonl").write_text("precious\n")
    command = ("run", "prog.py:echo", *what, "-o", "out.jsonl", "-b", "mock")
    code, _, err = lmc_cli(*command)
    assert code == 2 and "not empty" in err and "--overwrite" in err and "--resume" in err
    assert (folder / "out.jsonl").read_text() == "precious\n"
    assert lmc_cli(*command, "--overwrite")[0] == 0
    assert [row["index"] for row in jsonl(folder / "out.jsonl")] == [0]


def test_an_output_that_is_a_folder_or_a_device(lmc_cli, folder):
    (folder / "out").mkdir()
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "-o", "out", "-b", "mock")
    assert code == 2 and "is a folder" in err and "out/results.jsonl" in err
    assert lmc_cli("run", "prog.py:echo", "-a", "text=x", "-o", os.devnull, "-b", "mock")[0] == 0
    assert not Path(os.devnull).is_file()


def test_resume_refuses_results_of_other_items(lmc_cli, results, folder):
    before = results.read_text()
    items(folder / "in.jsonl", {"text": "new"}, *({"text": f"t{i}"} for i in range(3)))
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 2 and "out.jsonl:1" in err and "another item than in.jsonl:1 is now" in err and "--overwrite" in err
    assert results.read_text() == before
    code, _, err = lmc_cli(*ECHO, "--resume", "--overwrite")
    assert code == 0 and "4 items" in err
    assert [row["return"]["text"] for row in jsonl(results)] == ["new", "t0", "t1", "t2"]


@pytest.mark.parametrize("command, words", [
    ([*ECHO[:-1], "0.5"], "--temperature"),
    ([*ECHO, "--seed", "3"], "--seed"),
    ([w.replace("echo", "picky") for w in ECHO], "another program"),
], ids=["temperature", "seed", "program"])
def test_resume_refuses_results_of_another_run(lmc_cli, results, command, words):
    before = results.read_text()
    code, _, err = lmc_cli(*command, "--resume")
    assert code == 2 and "out.jsonl:1" in err and words in err and "--overwrite" in err
    assert results.read_text() == before


@pytest.mark.parametrize("row, words", [({"index": 7}, "not a result"), ({"text": "a"}, "not a result"), (None, "has only 2 items")],
                         ids=["no digest", "no index", "too many"])
def test_resume_refuses_what_is_no_result_of_it(lmc_cli, results, folder, row, words):
    if row is None:
        items(folder / "in.jsonl", {"text": "t0"}, {"text": "t1"})
    else:
        results.write_text(json.dumps(row) + "\n")
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 2 and words in err and "--overwrite" in err


def test_resume_keeps_what_matches_and_asks_for_nothing(lmc_cli, results):
    before = results.read_text()
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 0 and "0 items" in err and "0 calls" in err
    assert results.read_text() == before


@pytest.mark.parametrize("cut", [1, 20], ids=["the last byte", "in the middle"])
def test_resume_after_a_line_that_was_torn_off(lmc_cli, results, cut):
    whole = results.read_bytes()
    results.write_bytes(whole[:-1 - cut])
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 0 and "last line of out.jsonl is incomplete" in err and "1 item " in err
    assert results.read_bytes() == whole


def test_resume_takes_a_whole_last_line_without_its_newline(lmc_cli, results):
    whole = results.read_bytes()
    results.write_bytes(whole[:-1])
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 0 and "0 items" in err and "incomplete" not in err
    assert results.read_bytes() == whole


def test_resume_after_a_line_torn_inside_a_character(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "a"}, {"text": "é"})
    assert lmc_cli(*ECHO)[0] == 0
    whole = (folder / "out.jsonl").read_bytes()
    (folder / "out.jsonl").write_bytes(whole[: whole.index("é".encode()) + 1])
    assert lmc_cli(*ECHO, "--resume")[0] == 0
    assert (folder / "out.jsonl").read_bytes() == whole


def test_damage_inside_the_results_is_not_passed_over(lmc_cli, results):
    lines = results.read_text().splitlines(keepends=True)
    results.write_text(lines[0] + "{oops\n" + lines[2])
    code, _, err = lmc_cli(*ECHO, "--resume")
    assert code == 2 and "out.jsonl:2" in err and "not JSON" in err


# -- the model -----------------------------------------------------------------------------------------------------


def test_the_model_of_the_settings_is_the_default(lmc_cli, monkeypatch):
    from lmc.config import reset

    monkeypatch.setenv("LMC_MODEL", "mock")
    reset()
    try:
        assert lmc_cli("run", "prog.py:echo", "-a", "text=x")[0] == 0
        monkeypatch.setenv("LMC_MODEL", "/nope.gguf")
        reset()
        code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x")
        assert code == 2 and "/nope.gguf" in err
        assert lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", "mock")[0] == 0
    finally:
        monkeypatch.delenv("LMC_MODEL")
        reset()


@pytest.mark.parametrize("name, words", [
    ("/nope", ["no model '/nope'", "no such file or folder", "GGUF", "config.json"]),
    ("nope/model.gguf", ["no such file or folder", "GGUF"]),
    ("smollm", ["did you mean smollm2"]),
    ("empty", ["the folder empty has no config.json", "tokenizer.json", "GGUF"]),
])
def test_what_can_be_no_model_is_refused_with_what_can(lmc_cli, folder, name, words):
    (folder / "empty").mkdir()
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "--backend", name)
    assert code == 2 and "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.model
@pytest.mark.parametrize("device", ["gpuu", "cuda:99", "meta"])
def test_wrong_device(lmc_cli, monkeypatch, device):
    from lmc.config import reset

    monkeypatch.setenv("LMC_DEVICE", device)
    reset()
    try:
        code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x")
    finally:
        monkeypatch.delenv("LMC_DEVICE")
        reset()
    assert code == 2 and err.startswith(f"error: LMC_DEVICE={device!r} is not a device") and "set it to cpu" in err
    assert len(err.splitlines()) == 1


@pytest.mark.model
@pytest.mark.parametrize("make, words", [
    (lambda p: None, ["model.gguf"]),
    (lambda p: p.write_bytes(b"not a model"), ["model.gguf", "GGUF"]),
    (lambda p: p.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 100), ["model.gguf"]),
], ids=["missing", "not GGUF", "damaged"])
def test_wrong_model_path(lmc_cli, folder, make, words):
    make(folder / "model.gguf")
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "--backend", "model.gguf")
    assert code == 2 and "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.model
def test_prompt_over_the_context(lmc_cli):
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=" + "word " * 9000)
    assert code == 1 and "Traceback" not in err
    assert "8192" in err and "prog.py" in err


def test_installed_command_is_plain_when_piped(folder):
    """As a process: no colour codes, output and messages on their own streams."""
    done = subprocess.run([sys.executable, "-m", "lmc", "run", "prog.py:echo", "-a", "text=x", "-b", "mock"],
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"text": "x", "times": 1}
    assert "\x1b" not in done.stdout + done.stderr


def test_rows_of_standard_input_become_records(lmc_cli, folder, monkeypatch):
    import io
    from types import SimpleNamespace

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"text,times,id\nhello,2,a7\nyou,,a8\n")))
    code, _, err = lmc_cli("run", "prog.py:echo", "--input", "-", "--output", "out.jsonl", "-b", "mock")
    assert code == 0 and "has no parameter id; copied to the results" in err
    rows = jsonl(folder / "out.jsonl")
    assert [row["return"] for row in rows] == [{"text": "hello", "times": 2}, {"text": "you", "times": 1}]
    assert [row["input"] for row in rows] == [{"id": "a7"}, {"id": "a8"}]


def test_no_folder_is_made_for_an_output(lmc_cli, folder):
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--output", "otu/results.jsonl")
    assert code == 2 and "there is no folder otu; make it (mkdir -p otu)" in err and not (folder / "otu").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--html", "otu/page.html"),
        ("run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--journal", "otu/run"),
        ("trace", "prog.py:echo", "-a", "text=x", "-b", "mock", "--output", "otu/trace.json"),
        ("bench", "prog.py:echo", "-a", "text=x", "-b", "mock", "--json", "otu/bench.json"),
        ("dump-ir", "prog.py:echo", "--output", "otu/echo.lmir"), ("dump-fsm", "a|b", "--output", "otu/fsm.txt"), ("new-key", "ann", "--file", "otu/keys"),
        ("replay", "run", "--html", "otu/page.html"), ("serve", "prog.py:echo", "-b", "mock", "--journals", "otu/runs"),
    ],
    ids=lambda command: " ".join((command[0], command[-2])),
)  # fmt: skip
def test_no_folder_is_made_for_what_a_run_leaves_and_nothing_runs_first(lmc_cli, folder, command):
    code, out, err = lmc_cli(*command)
    assert code == 2 and out == "" and f"{command[-2]} {command[-1]}: there is no folder otu; make it (mkdir -p otu)" in err and not (folder / "otu").exists()


def test_results_are_no_table(lmc_cli, folder):
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--output", "results.csv")
    assert code == 2 and "results are lines of JSON; choose another name, such as results.jsonl" in err and not (folder / "results.csv").exists()


def test_graphs_without_places(lmc_cli, folder):
    whole, bare = (lmc_cli("dump-ir", "prog.py:echo", *options)[1] for options in ((), ("--no-loc",)))
    assert "loc(" in whole and "loc(" not in bare and len(bare.splitlines()) == len(whole.splitlines())
    (folder / "echo.lmir").write_text(whole)
    assert "loc(" not in lmc_cli("opt", "echo.lmir", "--passes=", "--no-loc")[1]
    code, _, err = lmc_cli("dump-ir", "prog.py:echo", "--no-loc", "--format", "json")
    assert code == 2 and "--no-loc is for text" in err


@pytest.mark.parametrize("name, says", [("opneai:gpt", "did you mean openai:…?"), ("openai:", "names no model"), ("vllm:", "names no URL")])
def test_a_misspelt_service_is_refused_with_the_forms(lmc_cli, name, says):
    code, _, err = lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", name)
    assert code == 2 and says in err and "sglang:URL" in err


def test_warmup_prepares_a_model_of_this_process_only(lmc_cli):
    assert lmc_cli("warmup", "openai:gpt")[::2] == (2, "error: openai:gpt does not run in this process; only models that do can be warmed up\n")
    code, _, err = lmc_cli("warmup", "/nowhere.gguf")
    assert code == 2 and "there is no such file or folder" in err
