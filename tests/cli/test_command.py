"""All commands: help, version and environment, and bad input, which gets one clear message with its place and remedy."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from lmc.config import Settings, reset
from tests.cli.harness import COMMAND, PROGRAM, ROOT
from tests.searching import some


def test_env_says_what_is_installed(lmc_cli, monkeypatch):
    monkeypatch.setenv("LMC_VERIFY", "2")
    monkeypatch.setattr("lmc.cli.environment._gpus", lambda: "none")  # asking takes torch
    code, out, _ = lmc_cli("env")
    assert code == 0
    assert all(word in out for word in ("python", "torch", "safetensors", "cache_dir", "LMC_VERIFY"))


def test_env_says_what_is_kept_on_the_disk(lmc_cli, monkeypatch, tmp_path):
    monkeypatch.setattr("lmc.config._settings", Settings(cache_dir=tmp_path / "kept"))
    monkeypatch.setattr("lmc.cli.environment._gpus", lambda: "none")
    assert "\ncache_dir\n" not in lmc_cli("env")[1] and not (tmp_path / "kept").exists()
    (tmp_path / "kept" / "models").mkdir(parents=True)
    for name, size in (("a", 1_500_000), ("b", 1_000_000)):
        (tmp_path / "kept" / "models" / name).write_bytes(bytes(size))
    assert "\ncache_dir\n  models  2 files, 2.5 MB\n" in lmc_cli("env")[1]


def test_journals_are_listed_where_links_lead_in_circles(lmc_cli, folder):
    (folder / "runs").mkdir()
    assert lmc_cli("run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--journal", "runs/one")[0] == 0
    for name in ("back", "again"):  # with two of them, ways of forty steps, which is what systems follow, are a million million
        (folder / "runs" / name).symlink_to(".")
    (folder / "linked").symlink_to("runs")
    code, out, _ = lmc_cli("journal", "list", "linked")
    assert (code, len(out.splitlines())) == (0, 1) and "linked/one: echo: finished" in out


def test_env_names_variables_that_have_no_effect(lmc_cli, monkeypatch):
    monkeypatch.setenv("LMC_VERIFFY", "2")
    monkeypatch.setattr("lmc.cli.environment._gpus", lambda: "none")
    assert "LMC_VERIFFY   no setting, so it has no effect; did you mean 'LMC_VERIFY'?" in lmc_cli("env")[1]


def test_env_lists_several_gpus(lmc_cli, monkeypatch):
    cuda = SimpleNamespace(
        device_count=lambda: 3, get_device_name=lambda i: f"card {i}", mem_get_info=lambda i: (i << 30, 80 << 30),
        can_device_access_peer=lambda i, j: i + j == 1,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    out = lmc_cli("env")[1]
    assert "card 0, card 1, card 2" in out and "1.0 of 80.0 GiB free; reads directly from: 0" in out
    assert "2.0 of 80.0 GiB free; reads directly from: none" in out and "tp × dp may be 3 at most" in out


def test_version(lmc_cli):
    code, out, _ = lmc_cli("--version")
    assert code == 0 and out.startswith("lmc ")


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


BAD = {
    "no such file": (["run", "nope.py:fn"], 2, ["no such file: nope.py"]),
    "a model for a program": (["serve", "smollm2"], 2, ["and a model is given by --backend smollm2"]),
    "an address for a host": (["serve", "-b", "mock", "--allow-remote-media", "https://host/"], 2, ["give a host, as in images.example.org"]),
    "no host": (["serve", "-b", "mock", "--allow-remote-media", ""], 2, ["give a host"]),
    "no origin": (["serve", "-b", "mock", "--cors", "app.example.org"], 2, ["--cors 'app.example.org'", "scheme://host"]),
    "an address for an origin": (["serve", "-b", "mock", "--cors", "https://app.example.org/"], 2, ["without a path"]),
    "a hub id for a program": (["serve", "Qwen/Qwen2.5-7B-Instruct"], 2, ["--backend Qwen/Qwen2.5-7B-Instruct"]),
    "a service for a program": (["run", "openai:gpt-5"], 2, ["a model is given by --backend openai"]),
    "a name too long": (["run", "x" * 300 + ".py:fn"], 2, ["xxx"]),
    "a name too long for a graph": (["opt", "x" * 300], 2, ["xxx: File name too long"]),
    "a name too long for a model": (["run", "prog.py:echo", "-a", "text=x", "-b", "x" * 300], 2, ["no model 'xxx"]),
    "a home of nobody": (["check", "~nobody-here:echo"], 2, ["no such file: ~nobody-here:echo"]),
    "a number of too many digits": (["dump-fsm", "a{" + "1" * 5000 + "}"], 2, ["invalid regex", "digits"]),
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
    "a key of no journal": (["run", "prog.py:echo", "-a", "text=x", "-b", "mock", "--key-file", "k"], 2, ["--key-file needs --journal FOLDER"]),
    "an argument of none": (["run", "prog.py:broken_regex", "-a", "text=x", "-b", "mock"], 2, ["no parameter 'text'; it has none but its state"]),
    "output into nowhere": (["run", "prog.py:echo", "-i", "good.jsonl", "-o", "prog.py/out", "-b", "mock"], 2, ["--output"]),
    "invalid regex": (["run", "prog.py:broken_regex", "-b", "mock"], 1, ["prog.py:23", "regex"]),
    "exception in the program": (["run", "prog.py:picky", "-a", "text=bad", "-b", "mock"], 1,
                                 ["ValueError: I do not like bad", "prog.py:17"]),
    "exception in the file": (["run", "raises.py:fn", "-b", "mock"], 1, ["ZeroDivisionError", "raises.py:1"]),
    "syntax error in the file": (["run", "syntax.py:fn", "-b", "mock"], 1,
                                 ["syntax.py is not valid Python:\n  File", ", line 1\n    def f(:\n          ^\nSyntaxError: "]),
    "syntax error in a text of the program": (["run", "evaluates.py:fn", "-b", "mock"], 1, ["SyntaxError", "evaluates.py:1 in <module>"]),
    "a file of a package": (["run", "relative.py:fn", "-b", "mock"], 1, ["relative.py:1", "(relative.py is imported by itself", "leave out the dot"]),
    "a file that exits": (["run", "exits.py:fn", "-b", "mock"], 2, ["exits.py ends the process", "exit code 3", 'if __name__ == "__main__"']),
    "a file that is no text": (["run", "binary.py:fn", "-b", "mock"], 2, ["binary.py is not a Python file: source code", "null bytes"]),
    "file without a program": (["run", "empty.py", "-b", "mock"], 2, ["@lmc.function"]),
    "unknown pass": (["dump-ir", "prog.py:echo", "--after", "plan-prefx"], 2, ["plan-prefx", "plan-prefix"]),
    "graph that does not parse": (["opt", "text.lmir"], 1, ["text.lmir:2", "expected graph"]),
    "a graph file that is no text": (["opt", "binary.lmir"], 2, ["cannot read binary.lmir", "utf-8"]),
    "no journal of that name": (["journal", "list", "none"], 2, ["none: there is no such journal or folder"]),
    "journals in a file": (["serve", "-b", "mock", "--journals", "in.jsonl"], 2, ["--journals in.jsonl", "name a folder"]),
    "no time": (["serve", "-b", "mock", "--timeout", "nan"], 2, ["--timeout nan"]),
    "no time to drain": (["serve", "-b", "mock", "--drain", "nan"], 2, ["--drain nan"]),
    "no name": (["serve", "-b", "mock", "--name", ""], 2, ["--name ''"]),
    "no graph file": (["opt", "none.lmir"], 2, ["none.lmir"]),
    "unknown pass of opt": (["opt", "g.lmir", "--passes=cannonicalize"], 2, ["canonicalize"]),
    "unknown template of opt": (["opt", "g.lmir", "--template=qwem"], 1, ["qwem", "qwen"]),
    "unknown option": (["run", "prog.py:echo", "--bakend", "mock"], 2, ["--bakend"]),
    "unknown command": (["rnu"], 2, ["rnu"]),
}


def test_a_file_finds_modules_beside_it_and_packages_of_the_current_folder(lmc_cli, folder, monkeypatch):
    """`python FILE.py` finds the former, `python -m` the latter; the file's own folder comes first."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(folder))])
    package = folder / "a_package"
    package.mkdir()
    (folder / "a_neighbour.py").write_text("WHERE = 'far'")
    (package / "a_neighbour.py").write_text("WHERE = 'near'")
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("GREETING = 'Hello'")
    (package / "inside.py").write_text("from a_neighbour import WHERE\nfrom a_package.words import GREETING\n" + PROGRAM.replace('"Say: "', "GREETING + WHERE"))
    code, out, err = lmc_cli("dump-ir", "a_package/inside.py:echo", "--after", "canonicalize")
    assert code == 0 and '"Hellonear"' in out, err
    for name in [name for name in sys.modules if name.startswith(("a_package", "a_neighbour")) or name == "inside"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def bad_files(folder):
    (folder / "in.jsonl").write_text('{"text": "a"}\n{"text": "b"\n')
    (folder / "good.jsonl").write_text('{"text": "a"}\n')
    (folder / "short.jsonl").write_text('{"text": "a"}\n{}\n')
    (folder / "list.jsonl").write_text("[1]\n")
    (folder / "empty.jsonl").write_text("\n")
    (folder / "raises.py").write_text("1 / 0\n")
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "evaluates.py").write_text("eval('1 +')\n")
    (folder / "empty.py").write_text("x = 1\n")
    (folder / "exits.py").write_text("raise SystemExit(3)\n")
    (folder / "relative.py").write_text("from .neighbour import word\n")
    (folder / "binary.py").write_bytes(b"x = 1\0")
    (folder / "g.lmir").write_text("graph @g() -> (any) {\n}\n")
    (folder / "text.lmir").write_text("\nno graph\n")
    (folder / "binary.lmir").write_bytes(b"\xff\xfe")


@some("args, expected, words", [pytest.param(*row, id=name) for name, row in BAD.items()], 2)
def test_bad_input_gets_one_clear_message(lmc_cli, bad_files, args, expected, words):
    code, out, err = lmc_cli(*args)
    assert "Traceback" not in err + out
    assert code == expected, err
    for word in words:
        assert word in err
    assert not any(Path().glob("out.jsonl"))


def test_no_line_of_a_library_is_given_as_the_place(lmc_cli):
    code, _, err = lmc_cli("run", "missing.lmcp", "--arg", "text=x", "-b", "mock")
    assert code != 0 and "cannot be read" in err
    assert ".py:" not in err


def test_a_program_may_be_a_link_to_a_file_of_any_name_and_is_no_device(lmc_cli, folder):
    (folder / "store").write_text((folder / "prog.py").read_text())
    (folder / "linked.py").symlink_to("store")
    assert lmc_cli("run", "linked.py:echo", "-b", "mock", "-a", "text=x")[0] == 0
    (folder / "device.py").symlink_to("/dev/zero")
    code, _, err = lmc_cli("run", "device.py:echo", "-b", "mock", "-a", "text=x")
    assert code == 2 and "device.py is not a Python file" in err


def test_what_a_file_does_wrong_while_it_is_imported_is_shown_at_its_line(lmc_cli, tmp_path):
    (tmp_path / "runs.py").write_text('import lmc\np = lmc.function(lambda s: None)\nlmc.set_default_backend("nope")\n')
    code, _, err = lmc_cli("dump-ir", str(tmp_path / "runs.py:p"))
    assert code != 0 and "no model 'nope'" in err and "runs.py:3 in <module>: lmc.set_default_backend" in err


def test_ctrl_c_while_the_command_is_imported_has_no_traceback():
    code = "import sys, lmc.cli\nclass Pressed:\n  def find_spec(*_): raise KeyboardInterrupt\nsys.meta_path.insert(0, Pressed)\nlmc.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{} > /dev/full", 2, "error: No space left on device\n"),
        ("{} >&-", 0, ""),
        ("{} -o graph.lmir <&- >&- 2>&-", 0, ""),
        ("mkdir gone; cd gone; rmdir ../gone; {}", 2, "error: the current folder is gone; change to one that is there\n"),
    ],
)
def test_what_the_shell_does_to_the_streams_and_the_folder(folder, shell, code, said):
    command = f"{sys.executable} -m lmc dump-ir {folder / 'prog.py'}:echo"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(shell.format(command), shell=True, capture_output=True, text=True, cwd=folder, env=env, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (code, said, "")
    assert "graph.lmir" not in shell or (folder / "graph.lmir").read_text().startswith("// lmc ir")


def test_debug_shows_the_traceback(lmc_cli, monkeypatch):
    monkeypatch.setenv("LMC_DEBUG", "1")
    code, _, err = lmc_cli("run", "nope.py:fn")
    assert code == 2 and "Traceback" in err
    reset()
    monkeypatch.setenv("LMC_DEBUG", "x")
    code, _, err = lmc_cli("run", "nope.py:fn")
    assert code == 2 and err == "error: LMC_DEBUG='x': must be a whole number\n"
