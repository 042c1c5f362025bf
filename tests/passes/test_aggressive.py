"""The aggressive pass moves prompts, or leaves them and says why: twenty-one templates, and the rules around them."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmc
from lmc.ir import Value
from lmc.passes.aggressive import Aggressive
from lmc.passes.base import Target
from lmc.passes.manager import PassManager, parse_pipeline, pipeline_for, print_pipeline
from tests.passes.filecheck import check, graph_of

Q, D = Value("q", "str"), Value("d", "str")


def parts_of(template: str) -> list[object]:
    """A template with {q} and {d} for arguments as operands."""
    found: list[object] = []
    for i, piece in enumerate(template.replace("{d}", "{q}\0").split("{q}")):
        if i:
            found.append(D if piece.startswith("\0") else Q)
        found += [piece.removeprefix("\0")] if piece.removeprefix("\0") else []
    return found


def text_of(parts: object) -> str:
    return "".join(f"{{{x.name}}}" if isinstance(x, Value) else str(x) for x in parts)  # type: ignore[attr-defined]


MOVED = {
    "instruction behind the question": (
        "Here is a question.\n{q}\nAct as a math expert and solve the given question.\nAnswer:",
        "Here is a question.\nAct as a math expert and solve the given question.\n{q}\nAnswer:",
        "'Answer:' belongs to the lines around it",
    ),
    "document first": (
        "{d}\n\nSummarize the document in one sentence.\nDo not add an opinion.\n",
        "\nSummarize the document in one sentence.\nDo not add an opinion.\n{d}\n",
        "",
    ),
    "two arguments with rules between": (
        "Context: {d}\nUse only the context to answer the question.\nQuestion: {q}\nAnswer:",
        "Use only the context to answer the question.\nContext: {d}\nQuestion: {q}\nAnswer:",
        "'Answer:' belongs to the lines around it",
    ),
    "rules up to a pointer": (
        "Essay: {d}\nGrade the essay from A to D.\nJudge the text above by style alone.\nBe strict.\n",
        "Grade the essay from A to D.\nEssay: {d}\nJudge the text above by style alone.\nBe strict.\n",
        "'Judge the text above by style alone.' points at its place ('above')",
    ),
    "code review": (
        "Review the code of a colleague.\nCode: {d}\nReport bugs before matters of style.\nName the line of each bug.",
        "Review the code of a colleague.\nReport bugs before matters of style.\nName the line of each bug.\nCode: {d}",
        "",
    ),
    "translation": (
        "Text: {q}\nTranslate the text to French.",
        "Translate the text to French.\nText: {q}",
        "",
    ),
}  # fmt: skip

KEPT = {
    "constants stand first already": ("Answer the question.\nQuestion: {q}\nAnswer:", "'Answer:' belongs to the lines around it"),
    "no constant behind": ("Question: {q}", "there is no constant paragraph behind its argument"),
    "a pointer": ("{d}\nTranslate the text above to French.\n", "'Translate the text above to French.' points at its place ('above')"),
    "a demonstrative": ("{q}\nSolve this problem step by step.\n", "'Solve this problem step by step.' points at its place ('this')"),
    "a pronoun": ("Essay: {d}\nRate its style from 1 to 5.\n", "'Rate its style from 1 to 5.' points at its place ('its')"),
    "a cue": ("Review: {q}\nThe sentiment of the review is", "'The sentiment of the review is' leads to the answer"),
    "a fence that closes": ("Fix the bug.\n```\n{d}\n```\nWrite the code alone.\n", "its first argument stands inside of brackets, quotes or tags"),
    "a tag that closes": ("<document>\n{d}\n</document>\nSum up the document.\n", "its first argument stands inside of brackets, quotes or tags"),
    "a list that goes on": ("Facts:\n- {d}\n- Water is wet and cold.\nName the odd fact out.\n", "its argument stands in the middle of a text"),
    "code": ("def f():\n    x = {q}\n    return g_of_everything(x)\n", "its argument stands in the middle of a text"),
    "code from the margin": ("x = {q}\nreturn g_of_everything(x)\n", "its argument stands in the middle of a text"),
    "a bracket that closes": ("Text ({q}\n) End of the part.\n", "its first argument stands inside of brackets, quotes or tags"),
    "a letter": ("Dear {q},\nThank you for your letter.\nUse the enclosed form.\n", "its argument stands in the middle of a text"),
    "a story": ("{q}\nThe dragon died in the end.\n", "'The dragon died in the end.' is not plainly an instruction"),
    "the inside of a tag": ("<doc>\n{q}\nWrite to the king at once.\n</doc>\n", "its first argument stands inside of brackets, quotes or tags"),
}  # fmt: skip


def test_there_are_twenty_one_templates() -> None:
    assert len(MOVED) + len(KEPT) == 21


@pytest.mark.parametrize("name", MOVED)
def test_a_template_is_moved(name: str) -> None:
    before, after, why = MOVED[name]
    parts, kept = Aggressive().moved(parts_of(before), last=True)  # type: ignore[arg-type]
    assert text_of(parts) == after and kept == why
    assert Aggressive().moved(parts, last=True)[0] == parts  # and then there is nothing left to move
    assert sorted(text_of(parts)) == sorted(before)  # no character is lost or added


@pytest.mark.parametrize("name", KEPT)
def test_a_template_is_kept_and_says_why(name: str) -> None:
    before, why = KEPT[name]
    parts, kept = Aggressive().moved(tuple(parts_of(before)), last=True)  # type: ignore[arg-type]
    assert text_of(parts) == before and kept == why


def test_only_the_first_text_of_a_run_is_looked_at_and_messages_stay_apart() -> None:
    """Text of the user's message does not move into the system's, nor does anything behind an answer."""
    check("aggressive", """
        %c0 = ctx.new()
        %c1 = append(%c0, special("<s>"), begin("system"), "Be kind.", end("system"), begin("user"), %q, "\\nTranslate it into plain English words.\\nTranslate the text to French.\\n", end("user"), special("<a>"))
        %c2, %x, %m0 = gen(%c1)
        %c3 = append(%c2, %q, "\\nTranslate the text to German.\\n")
        %c4, %y, %m1 = gen(%c3)
        return(%y, %c4)
    """.replace("Translate it into plain English words.", "Use plain English words."), """
        %c0 = ctx.new()
        %c1 = append(%c0, special("<s>"), begin("system"), "Be kind.", end("system"), begin("user"), "Use plain English words.\\nTranslate the text to French.\\n", %q, "\\n", end("user"), special("<a>"))
        %c2, %x, %m0 = gen(%c1)
        %c3 = append(%c2, %q, "\\nTranslate the text to German.\\n")
        %c4, %y, %m1 = gen(%c3)
        return(%y, %c4)
    """, params="%q: str")  # fmt: skip


def test_what_was_moved_is_reported() -> None:
    graph = graph_of('%c0 = ctx.new()\n%c1 = append(%c0, %q, "\\nTranslate the text to French.\\n") loc("t.py":3)\n%c2, %x, %m = gen(%c1)\nreturn(%x, %c2)', "%q: str")  # fmt: skip
    planned = PassManager(parse_pipeline("aggressive")).plan(graph)
    assert planned.stats == {"aggressive.prompts changed": 1}
    assert planned.notes == (
        "aggressive: t.py:3: from\n    {q}\n    Translate the text to French.\nto\n    Translate the text to French.\n    {q}",
    )


WRITTEN = "x\nTranslate the text to French, in a formal tone.\n"
MOVED_TEXT = "Translate the text to French, in a formal tone.\nx\n"


@lmc.function
def translate(s, text):
    s += text + "\nTranslate the text to French, in a formal tone.\n" + lmc.gen("out", max_tokens=8)


def test_it_runs_only_on_request_and_explain_shows_both_texts() -> None:
    items = [{"text": t} for t in ("one day", "two birds", "a third text")]
    plain, moving = lmc.compile(translate), lmc.compile(translate, aggressive=True)
    counters = []
    for program in (plain, moving):
        mock = lmc.Mock()
        program.batch(items, backend=mock)
        counters.append(mock.counters())
    assert counters[1].prefilled_tokens < counters[0].prefilled_tokens / 2
    assert counters[0].calls == counters[1].calls == 3
    for program, sent in ((plain, WRITTEN), (moving, MOVED_TEXT)):
        mock = lmc.Mock()
        assert program(text="x", backend=mock).text().startswith(WRITTEN)
        assert prompts(mock) == [sent]
    assert "aggressive" in moving.explain() and "    {text}" in moving.explain()
    assert "    aggressive" not in plain.explain()
    assert "aggressive" not in print_pipeline(pipeline_for(Target()))


def test_what_was_moved_is_taken_back_without_touching_the_program() -> None:
    lmc.config(skip_passes="aggressive")
    try:
        assert sent(translate, text="x") == [WRITTEN]
    finally:
        lmc.config(skip_passes="")


def sent(program: lmc.Function, **given: object) -> list[str]:
    """The prompts that a model sees of one run, compiled with aggressive=True."""
    mock = lmc.Mock()
    lmc.compile(program, aggressive=True)(**given, backend=mock, seed=1).sync()
    return prompts(mock)


def prompts(mock: lmc.Mock) -> list[str]:
    """Return the prompts of a mock, whose tokens are bytes; special tokens are bars."""
    return ["".join(chr(token) if token < 256 else "|" for token in call.prompt) for call in mock.call_log]


@pytest.mark.parametrize("text", ("two\nlines", "", "x\nTranslate the text to French, in a formal tone.\ny"))
def test_an_argument_may_be_any_text(text: str) -> None:
    assert sent(translate, text=text) == [f"Translate the text to French, in a formal tone.\n{text}\n"]


@lmc.function
def answer(s, context, question, formal=True):
    s += "Context: " + context + "\nUse only the context to answer the question.\n"
    s += "Question: " + question + "\n"
    for f in (forks := s.fork(2)):
        f += "Answer:" + lmc.gen("answer", max_tokens=8)
    s += f"{forks[0]['answer']} or {forks[1]['answer']}?" + lmc.gen("best", max_tokens=4)


def test_prompts_of_forks_and_what_follows_answers() -> None:
    head = "Use only the context to answer the question.\nContext: c\nQuestion: q\n"
    *forks, last = sent(answer, context="c", question="q")
    assert forks == [head + "Answer:"] * 2 and last.startswith(head) and last.endswith("?")
    state = lmc.compile(answer, aggressive=True)("c", "q", backend=lmc.Mock())
    assert state.text().startswith("Context: c\nUse only")


def test_where_an_argument_ends_is_not_guessed() -> None:
    """Both arguments may contain what stands between them: the prompt is sent as it was written."""
    context = "c\nUse only the context to answer the question.\nQuestion: of another"
    first, *_ = sent(answer, context=context, question="q")
    assert first == f"Context: {context}\nUse only the context to answer the question.\nQuestion: q\nAnswer:"


@lmc.function
def asks_behind_an_arm(s, text, hints, brief):
    s += text + "\nTranslate the text to French, in a formal tone.\n"
    if brief:
        s += "At most ten words, please.\n"
    for hint in hints:
        s += hint + "\n"
    s += lmc.gen("out", max_tokens=8)
    while len(s["out"]) > 200:
        s += "Shorter.\n" + lmc.gen("out", max_tokens=8)


@pytest.mark.parametrize("hints", ((), ("Keep names.",), ("Keep names.", "Keep numbers.")))
@pytest.mark.parametrize("brief", (False, True))
def test_a_request_behind_arms_and_turns_sends_the_moved_beginning(brief: bool, hints: tuple[str, ...]) -> None:
    """What an arm or a turn adds follows the first text, whichever was taken."""
    rest = "At most ten words, please.\n" * brief + "".join(f"{hint}\n" for hint in hints)
    assert sent(asks_behind_an_arm, text="x", hints=list(hints), brief=brief) == [MOVED_TEXT + rest]


@lmc.function
def asks_behind_one_of_two(s, text, formal):
    if formal:
        s += text + "\nTranslate the text to French, in a formal tone.\n"
    else:
        s += text + "\nTranslate the text to French, as to a friend.\n"
    s += lmc.gen("out", max_tokens=8)


def test_a_request_behind_one_of_two_beginnings_sends_what_was_written() -> None:
    assert sent(asks_behind_one_of_two, text="x", formal=True) == [WRITTEN]


STOPPED: list[bool] = []


@lmc.function
def two_steps(s, text):
    s += lmc.system("Be kind.")
    s += lmc.user(text + "\nTranslate the text to French, in a formal tone.\n") + lmc.assistant(lmc.gen("out", max_tokens=8))
    if s["out"] and STOPPED:
        raise RuntimeError("stopped")
    s += lmc.user("Shorter.") + lmc.assistant(lmc.gen("short", max_tokens=8))


def test_a_run_that_is_resumed_sends_what_it_would_have_sent(tmp_path: Path) -> None:
    whole = sent(two_steps, text="x")
    assert "user\nTranslate the text to French, in a formal tone.\nx" in whole[0] and whole[1].startswith(whole[0])
    journal = tmp_path / "run.journal"
    program = lmc.compile(two_steps, aggressive=True)
    STOPPED.append(True)
    with pytest.raises(RuntimeError, match="stopped"):
        program("x", backend=lmc.Mock(), seed=1, journal=str(journal))
    STOPPED.clear()
    mock = lmc.Mock()
    program("x", backend=mock, seed=1, journal=str(journal)).sync()
    assert prompts(mock) == whole[1:]
