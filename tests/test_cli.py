"""The command line as a user meets it: results, records, messages and exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmc import cli

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


def test_without_output_records_go_to_standard_output(lmc_cli, folder):
    items(folder / "in.jsonl", {"text": "a"}, {"text": "b"})
    code, out, _ = lmc_cli("run", "prog.py:echo", "-i", "in.jsonl", "-b", "mock")
    assert code == 0 and [json.loads(line)["index"] for line in out.splitlines()] == [0, 1]


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
    assert code == 0 and "1 items" in err
    assert [(row["index"], row["return"]) for row in jsonl(folder / "out.jsonl")] == [(0, "a"), (1, "good"), (2, "c")]


def test_dump_ir_prints_a_graph_that_opt_reads(lmc_cli, folder):
    code, out, err = lmc_cli("dump-ir", "prog.py:echo")
    assert code == 0 and "graph @echo" in out and "gen(" in out, err
    assert lmc_cli("dump-ir", "prog.py:echo", "--after", "trace", "-o", "echo.lmir")[0] == 0
    code, out, err = lmc_cli("opt", "echo.lmir", "--passes=canonicalize")
    assert code == 0 and "graph @echo" in out, err


@pytest.mark.parametrize("format, start", [("dot", "digraph"), ("html", "<!"), ("json", "{")])
def test_dump_ir_formats(lmc_cli, format, start):
    code, out, err = lmc_cli("dump-ir", "prog.py:echo", "--format", format)
    assert code == 0 and out.lstrip().lower().startswith(start), err


@pytest.mark.parametrize("format, start", [("text", "4 states"), ("dot", "digraph"), ("html", "<!")])
def test_dump_fsm_formats(lmc_cli, format, start):
    code, out, err = lmc_cli("dump-fsm", "ab(c|d)", "--format", format)
    assert code == 0 and out.lstrip().lower().startswith(start), err


def test_dump_fsm_points_at_what_is_not_regular(lmc_cli):
    code, _, err = lmc_cli("dump-fsm", "a(?=b)")
    assert code == 2 and "at position 1\n    a(?=b)\n     ^" in err


def test_env_says_what_is_installed(lmc_cli, monkeypatch):
    monkeypatch.setenv("LMC_VERIFY", "2")
    monkeypatch.setattr(cli, "_gpus", lambda: "none")  # asking takes torch
    code, out, _ = lmc_cli("env")
    assert code == 0
    assert all(word in out for word in ("python", "torch", "xgrammar", "cache_dir", "LMC_VERIFY"))


def test_version(lmc_cli):
    code, out, _ = lmc_cli("--version")
    assert code == 0 and out.startswith("lmc ")


@pytest.mark.parametrize("command", [[], ["run"], ["dump-ir"], ["dump-fsm"], ["opt"]])
def test_help_teaches_by_examples(lmc_cli, command):
    code, out, _ = lmc_cli(*command, "--help")
    assert code == 0 and "lmc " in out and ("Examples:" in out or "Start here:" in out)


# -- what is wrong is said once, with the place and the remedy ------------------------------------------------------

BAD = {
    "no such file": (["run", "nope.py:fn"], 2, ["no such file: nope.py"]),
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
    "graph that does not parse": (["opt", "prog.py"], 1, ["prog.py:2", "expected graph"]),
    "no graph file": (["opt", "none.lmir"], 2, ["none.lmir"]),
    "unknown pass of opt": (["opt", "g.lmir", "--passes=cannonicalize"], 2, ["canonicalize"]),
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


@pytest.mark.parametrize("args, expected, words", BAD.values(), ids=BAD.keys())
def test_bad_input_gets_one_clear_message(lmc_cli, bad_files, args, expected, words):
    code, out, err = lmc_cli(*args)
    assert "Traceback" not in err + out
    assert code == expected, err
    for word in words:
        assert word in err
    assert not any(Path().glob("out.jsonl"))


def test_debug_shows_the_traceback(lmc_cli, monkeypatch):
    monkeypatch.setenv("LMC_DEBUG", "1")
    code, _, err = lmc_cli("run", "nope.py:fn")
    assert code == 2 and "Traceback" in err


def test_a_result_that_cannot_go_on_keeps_what_is_done(lmc_cli, folder, monkeypatch):
    """An interruption half way: the records before it stay, and --resume does the rest."""
    items(folder / "in.jsonl", *({"text": f"t{i}"} for i in range(6)))
    run = ("run", "prog.py:echo", "-i", "in.jsonl", "-o", "out.jsonl", "-b", "mock")
    states = cli._states

    def interrupted(*args):
        for i, state in enumerate(states(*args)):
            if i == 3:
                raise KeyboardInterrupt
            yield state

    with monkeypatch.context() as patch:
        patch.setattr(cli, "_states", interrupted)
        code, _, err = lmc_cli(*run)
    assert code == 130 and "3 of 6 results are in out.jsonl" in err and "--resume" in err
    assert [row["index"] for row in jsonl(folder / "out.jsonl")] == [0, 1, 2]
    code, _, err = lmc_cli(*run, "--resume")
    assert code == 0 and "3 items" in err
    assert [row["index"] for row in jsonl(folder / "out.jsonl")] == list(range(6))


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
