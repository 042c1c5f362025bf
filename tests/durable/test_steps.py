"""Journals looked at: steps from the file alone and by the program, and what a run would have done."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.backend.mock import CAPABILITIES
from lmc.cli.errors import RunFailed
from lmc.durable import records, steps, viewer
from lmc.durable.viewer import WhatIf
from lmc.errors import JournalError
from lmc.userfiles import UsageError, load_program
from tests.durable.resuming import journal_of, lay

CALLS: list[Any] = []


def search(q: str) -> list[str]:
    CALLS.append(q)
    if q == "<b>":
        raise LookupError(q)
    return [f"about {q}"]


@lmc.function
def agent(s: Any, q: str) -> Any:
    s += q
    for _ in range(3):
        s += "\nNext:" + lmc.select("action", [" search", " finish"])
        if s["action"] == " finish":
            break
        try:
            s += search(q)[0]
        except LookupError:
            s += "nothing"
        s += lmc.gen("thought", max_tokens=8, stop="\n")
    return s["action"]


def script(prompt: str, ask: Any) -> str | None:
    return None if ask.name != "action" else " search" if prompt.count("Next") < 3 else " finish"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    CALLS.clear()
    lmc.compile(agent)("<b>", backend=lmc.Mock(script), seed=1, journal=tmp_path / "j")
    assert len(CALLS) == 2
    CALLS.clear()
    return tmp_path / "j"


def test_steps_of_the_file_alone(path: Path) -> None:
    (story,) = steps.listed(path)
    assert [s.kind for s in story.steps] == ["ask", "effect", "ask", "ask", "effect", "ask", "ask"] and story.end == "finished"
    assert story.steps[1].name == "search" and story.steps[1].prompt == "'<b>'" and story.steps[1].result == "raised LookupError: <b>"
    assert story.steps[0].result == " search" and story.steps[0].tokens == (9, 0)
    assert story.title == "run 0 of agent(q='<b>') on mock: finished" and story.totals.endswith("generated), 2 calls of host code")
    assert steps.to_text([story]).splitlines()[0] == story.title and json.loads(steps.to_json([story]))["given"] == "q='<b>'"


def test_a_result_that_is_no_data_is_named(tmp_path: Path) -> None:
    @lmc.function
    def defines(s: Any) -> None:
        exec("def one(): return 1", {})
        open(os.devnull).close()

    with pytest.warns(lmc.JournalWarning):
        defines.run(backend=lmc.Mock(), journal=tmp_path / "j")
    lacks = "and it or what the call changed is not in the journal"
    assert [s.result for s in steps.listed(tmp_path / "j")[0].steps[:2]] == [f"None, {lacks}", f"a TextIOWrapper, {lacks}"]


def test_lone_surrogates_are_spelled(tmp_path: Path) -> None:
    agent.run("\ud800", backend=lmc.Mock(script), seed=1, journal=tmp_path / "j")
    for stories in (steps.listed(tmp_path / "j"), viewer.replayed(tmp_path / "j", agent, lmc.Mock(script))):
        for text in (steps.to_text(stories), steps.to_json(stories), steps.to_html(stories, "x")):
            assert "\\ud800" in text and text.encode()
        assert "about \ud800" in json.loads(steps.to_json(stories))["steps"][1]["result"]


def test_steps_by_the_program(path: Path) -> None:
    before, mock = path.read_bytes(), lmc.Mock()
    (story,) = viewer.replayed(path, agent, mock)
    assert [(s.kind, s.name) for s in story.steps][:3] == [("select", "action"), ("effect", "search"), ("gen", "thought")]
    assert story.steps[0].prompt == "<b>\nNext:" and story.steps[2].prompt == "nothing"
    line = agent.func.__code__.co_firstlineno + 4
    assert story.steps[0].line == f"{__file__}:{line}" and story.end == "returned ' finish'"
    assert not mock.call_log and not CALLS and path.read_bytes() == before
    assert json.loads(steps.to_json([story]))["steps"][0]["result"] == " search"
    page = steps.to_html([story], "a <run>")
    assert "<b>" not in page and "&lt;b&gt;" in page and "a &lt;run&gt;" in page and "<script" not in page
    assert "search('<b>')" in steps.to_text([story])


@lmc.function
def decides(s: Any, n: int) -> Any:
    if n > 1 and n < 9:
        s += "ä"
    while (
        not s.text().endswith("yes")
    ):
        s += "?" + lmc.select("a", ["no", "yes"])
        match s["a"]:
            case "no":
                s += " é?" if [x for x in range(3) if x] else ""
    return s["a"] or "nothing"


def test_decisions(tmp_path: Path) -> None:
    def script(prompt: str, ask: Any) -> str:
        return "yes" if "é" in prompt else "no"

    for n, run in enumerate((decides.run, lmc.compile(decides))):
        run(2, backend=lmc.Mock(script), seed=1, journal=tmp_path / f"j{n}")
        (story,) = viewer.replayed(tmp_path / f"j{n}", decides, lmc.Mock())
        line, test = decides.func.__code__.co_firstlineno, 'not s.text().endswith("yes")'
        assert [(d.line, d.test, d.answer) for d in story.decided] == [
            (f"{__file__}:{line + 2}", "n > 1 and n < 9", True),
            (f"{__file__}:{line + 5}", test, True),
        ]
        assert [[(d.test, d.answer, d.times) for d in s.decided] for s in story.steps] == [
            [('case "no"', True, 1), ("x", False, 1), ("x", True, 2), ("[x for x in range(3) if x]", True, 1), (test, True, 1)],
            [('case "no"', False, 1), (test, False, 1)]]
        assert "        ? x: True, 2 times  (" in steps.to_text([story]) and "n &gt; 1 and n &lt; 9: True" in steps.to_html([story], "")
        assert json.loads(steps.to_json([story]))["steps"][1]["decided"][0]["test"] == 'case "no"'
    (story,) = viewer.replayed(tmp_path / "j0", decides, lmc.Mock(), change=WhatIf(0, "yes"))
    assert [(d.test, d.answer) for d in story.steps[0].decided] == [('case "no"', False), (test, False)]


def test_what_if(path: Path) -> None:
    (story,) = viewer.replayed(path, agent, lmc.Mock(), change=WhatIf(3, " finish"))
    assert [s.source for s in story.steps] == ["journal", "journal", "journal", "changed"] and story.end == "returned ' finish'"
    mock = lmc.Mock(lambda prompt, ask: " search" if ask.name == "action" else "other")
    (story,) = viewer.replayed(path, agent, mock, change=WhatIf(2))
    assert next(s.result for s in story.steps if s.name == "thought") == "other" and len(mock.call_log) > 2
    assert "calls search('<b>'), which is not in the journal; --run-effects makes such calls" in story.end and not CALLS  # the third time
    (story,) = viewer.replayed(path, agent, mock, change=WhatIf(2, effects=True))
    assert len(CALLS) == 2 and story.steps[-2].result == "raised LookupError: <b>" and story.end == "returned ' search'"
    (story,) = viewer.replayed(path, agent, lmc.Mock(), change=WhatIf(0, "x"))
    assert "step 0 chooses one of [' search', ' finish'], not 'x'" in story.end and not story.whole
    (story,) = viewer.replayed(path, agent, lmc.Mock(), change=WhatIf(1, "x"))
    assert "step 1 is a call of search; only what the model was asked can have another answer" in story.end and not story.whole
    with pytest.raises(JournalError, match="run 0 has no step 99; its 7 steps are counted from 0"):
        viewer.replayed(path, agent, lmc.Mock(), change=WhatIf(99))


@lmc.function
def dialogue(s: Any, q: str) -> Any:
    for _ in range(2):
        s += lmc.user(q) + lmc.assistant(lmc.gen("answer", max_tokens=4))
        search(s["answer"])
    return s["answer"]


def test_another_backend_writes_other_prompts(tmp_path: Path) -> None:
    """Chat templates differ, and so does the text of what was asked; what is shown is as the one writes it who is there."""
    def llama() -> lmc.Mock:
        return lmc.Mock(chat_template=lmc.get_chat_template("llama-3-instruct"), capabilities=replace(CAPABILITIES, name="other"))

    first = lmc.compile(dialogue)("Who?", backend=llama(), seed=1, journal=tmp_path / "j")
    CALLS.clear()
    (story,) = viewer.replayed(tmp_path / "j", dialogue, lmc.Mock())
    assert story.end == f"returned {first.ret_value!r}" and story.whole and len(story.steps) == 4 and not CALLS
    assert story.title.startswith("run 0 of dialogue(q='Who?') on other: ") and story.totals.endswith("; prompts as mock writes them")
    assert story.steps[0].prompt.startswith("<|im_start|>user")
    (story,) = viewer.replayed(tmp_path / "j", dialogue, llama())
    assert story.steps[0].prompt.startswith("<|begin_of_text|>") and not story.written
    mock = lmc.Mock(answers={"answer": "now"})
    (story,) = viewer.replayed(tmp_path / "j", dialogue, mock, change=WhatIf(2, effects=True))
    assert "on other, from step 2 on mock: returned 'now'" in story.title and [s.source for s in story.steps] == ["journal"] * 2 + ["now"] * 2
    assert story.steps[0].result in mock.call_log[0].prompt_text


def test_what_cannot_be_replayed(path: Path, tmp_path: Path) -> None:
    @lmc.function
    def other(s: Any, q: str) -> Any:
        s += q

    with pytest.raises(JournalError, match="with another source than program other"):
        viewer.replayed(path, other, lmc.Mock())
    mock = lmc.Mock()
    with pytest.raises(JournalError, match="there is no step -1"):
        viewer.replayed(path, agent, mock, change=WhatIf(-1))
    assert not mock.call_log
    with pytest.raises(JournalError, match="is a directory, and there is no batch's journal in it"):
        steps.listed(tmp_path)
    with pytest.raises(JournalError, match="has no run 3"):
        steps.listed(path, 3)
    lmc.compile(agent).batch([("a",), ("b",)], backend=lmc.Mock(), journal=tmp_path / "batch")
    assert [s.item for s in steps.listed(tmp_path / "batch")] == [0, 1]
    with pytest.raises(JournalError, match="say which one"):
        viewer.replayed(tmp_path / "batch", agent, lmc.Mock(), change=WhatIf(0))
    cut = tmp_path / "cut"
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(2, len(lines)):  # what is in a line depends on time
        lay(cut, b"".join(lines[:count]))
        (story,) = viewer.replayed(cut, agent, lmc.Mock())
        assert story.whole and re.search(r"stopped: .*(which is not in the journal|it is not known whether it was done)|returned", story.end)
    lay(cut, b"".join(lines[:2]))
    assert steps.listed(cut)[0].end == "cut off"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from lmc.cli import command

    def ran(*args: Any) -> tuple[str, str]:
        command.app(["replay", *map(str, args)], standalone_mode=False)
        return capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    (tmp_path / "user.py").write_text("import lmc\n@lmc.function\ndef small(s, q):\n    s += q + lmc.gen('a', max_tokens=2) + lmc.gen('b', max_tokens=2)\n")
    small = load_program("user.py")
    small.run("x", backend=lmc.Mock(), seed=1, journal="j")
    out, err = ran("j")
    assert "ask #0" in out and "lmc replay j FILE.py:small" in err
    small.run("x", backend=lmc.Mock(), journal="my runs")
    assert "lmc replay 'my runs' FILE.py:small" in ran("my runs")[1]
    assert "   0  user.py:4  gen a" in ran("j", "user.py:small")[0]
    assert "(changed)" in (out := ran("j", "user.py:small", "--from", 0, "--answer", "zz")[0]) and "> zz" in out and "(now)" in out
    assert json.loads(ran("j", "user.py", "--json")[0])["steps"][1]["name"] == "b"
    assert not ran("j", "user.py", "--html", "page.html")[0]
    assert json.loads(ran("j", "user.py", "--html", "page.html", "--json")[0])["item"] == 0
    assert "run 0 of small" in (tmp_path / "page.html").read_text()
    lmc.compile(small).save("p.lmcp")
    assert "gen a" in ran("j", "p.lmcp")[0]
    with pytest.raises(UsageError, match="takes its program"):
        ran("j", "--from", 1)
    with pytest.raises(UsageError, match="no run 7"):
        ran("j", "--item", 7)
    (tmp_path / "dep.py").write_text("import lmc\nWORD = 'a'\n@lmc.function\ndef dep(s, q):\n    s += q + WORD + lmc.gen('a', max_tokens=2)\n")
    load_program("dep.py").run("x", backend=lmc.Mock(), journal="k")
    (tmp_path / "dep.py").write_text((tmp_path / "dep.py").read_text().replace("'a'\n@", "'bb'\n@"))
    with pytest.raises(RunFailed, match="run 0 cannot be made again like this"):
        ran("k", "dep.py")
    assert "JournalError: " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [{}, ["q"], 5, {"q": {"!": ["no such"]}}])
def test_arguments_that_are_not_the_programs_are_an_error_of_the_journal(path: Path, arguments: Any) -> None:
    """With checksums that are right, which anybody can compute."""
    contents = records.read(path)
    (first, *rest) = contents.records[0]
    lay(path, journal_of(contents.header, [(0, [first[0], arguments, *first[2:]]), *((0, record) for record in rest)]))
    with pytest.raises(JournalError, match="the arguments of run 0 cannot be read"):
        viewer.replayed(path, agent, lmc.Mock(script))
