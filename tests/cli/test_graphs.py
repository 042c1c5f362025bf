"""`lmc dump-ir`, `lmc opt` and `lmc trace` as a user meets them."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.harness import items


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


def test_graphs_without_places(lmc_cli, folder):
    whole, bare = (lmc_cli("dump-ir", "prog.py:echo", *options)[1] for options in ((), ("--no-loc",)))
    assert "loc(" in whole and "loc(" not in bare and len(bare.splitlines()) == len(whole.splitlines())
    (folder / "echo.lmir").write_text(whole)
    assert "loc(" not in lmc_cli("opt", "echo.lmir", "--passes=", "--no-loc")[1]
    code, _, err = lmc_cli("dump-ir", "prog.py:echo", "--no-loc", "--format", "json")
    assert code == 2 and "--no-loc is for text" in err


def test_no_more_is_read_of_a_file_than_a_graph_can_be(lmc_cli, folder, monkeypatch):
    (folder / "g.lmir").write_text("graph @g() -> (any) {}")
    monkeypatch.setattr("lmc.cli.console._MOST_TEXT", 10)
    code, _, err = lmc_cli("opt", "g.lmir")
    assert code == 2 and "cannot read g.lmir: more than 0 million characters" in err
