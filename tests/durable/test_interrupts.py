"""Runs that ask people: they end at the question, and go on with the answer, in another process, whenever that comes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import lmc
from lmc.errors import ArgumentError, JournalError, ProgramError

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()


def send(x: str) -> str:
    CALLS.append(x)
    return f"sent {x}"


@lmc.function
def mail(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    before = send("draft")
    choice = lmc.interrupt(f"send {q}?", Literal["yes", "no"])
    s += choice + lmc.gen("b", max_tokens=3)
    return before, choice, s["b"], send("mail") if choice == "yes" else None


@lmc.function
async def later(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    choice = lmc.interrupt(f"send {q}?", Literal["yes", "no"])
    return s["a"], choice


@lmc.function
async def asks_in_a_callback(s: Any) -> Any:
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    loop.call_soon(lambda: answer.set_result(lmc.interrupt("go on?")))
    s += "q" + lmc.gen("a", max_tokens=2)
    return await answer, s["a"]


@lmc.function
def stubborn(s: Any) -> Any:
    for _ in range(3):
        try:
            return lmc.interrupt("go on?")
        except Exception:
            s += "again"
    send("unasked")
    return None


@lmc.function
def calls_mail(s: Any, q: str) -> Any:
    return mail.run(q).ret_value, lmc.interrupt(f"send {q}?", bool)


WAYS = [mail.run, lmc.compile(mail), lambda *a, **o: asyncio.run(lmc.compile(mail).acall(*a, **o)), lambda *a, **o: asyncio.run(mail.arun(*a, **o))]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_run_ends_at_a_question_and_goes_on_with_the_answer(way: int, tmp_path: Path) -> None:
    run, journal = WAYS[way], lmc.Journal(tmp_path / "of x")
    for _ in range(2):  # asking again asks the same
        with pytest.raises(lmc.Interrupted, match=r"'send x\?': give it with lmc journal resolve '.*/of x' --answer") as found:
            run("x", backend=lmc.Mock(), seed=1, journal=journal)
        assert (found.value.question, found.value.item) == ("send x?", 0) and found.value.loc is not None
        (waiting,) = journal.waiting()
        assert waiting.number == found.value.number and journal.runs()[0].status == "waiting"
    assert CALLS == ["draft"]
    assert journal.answer("yes").question == "send x?"
    mock = lmc.Mock()
    state = WAYS[way - 1]("x", backend=mock, journal=journal)
    assert state.ret_value[:2] == ("sent draft", "yes") and state.ret_value[3] == "sent mail"
    assert CALLS == ["draft", "mail"] and len(mock.call_log) == 1
    assert journal.runs()[0].status == "finished" and not journal.waiting()


def test_a_program_that_swallows_it_goes_no_further(tmp_path: Path) -> None:
    with pytest.raises(lmc.Interrupted):
        stubborn.run(backend=lmc.Mock(), journal=tmp_path / "j")
    assert not CALLS
    lmc.Journal(tmp_path / "j").answer("yes")
    assert stubborn.run(backend=lmc.Mock(), journal=tmp_path / "j").ret_value == "yes"


def test_async_programs_and_sub_programs_ask(tmp_path: Path) -> None:
    journal = lmc.Journal(tmp_path / "a")
    with pytest.raises(lmc.Interrupted):
        later.run("x", backend=lmc.Mock(), seed=1, journal=journal)
    journal.answer("no")
    mock = lmc.Mock()
    assert lmc.compile(later)("x", backend=mock, journal=journal).ret_value[1] == "no" and not mock.call_log
    journal = lmc.Journal(tmp_path / "b")
    for answer in ("yes", True):
        with pytest.raises(lmc.Interrupted):
            calls_mail.run("x", backend=lmc.Mock(), seed=1, journal=journal)
        journal.answer(answer)
    assert calls_mail.run("x", backend=lmc.Mock(), journal=journal).ret_value[1] is True
    assert CALLS == ["draft", "mail"]


def test_items_of_a_batch_ask_by_themselves(tmp_path: Path) -> None:
    journal, program = lmc.Journal(tmp_path / "batch"), lmc.compile(mail)
    items = [{"q": q} for q in "xyz"]
    states = program.batch(items, backend=lmc.Mock(), seed=1, journal=journal, errors="return")
    assert [type(s.failure) for s in states] == [lmc.Interrupted] * 3
    assert sorted((w.item, w.question) for w in journal.waiting()) == [(0, "send x?"), (1, "send y?"), (2, "send z?")]
    with pytest.raises(JournalError, match="say which: item 0, effect 1: send x"):
        journal.answer("no")
    journal.answer("no", item=1)
    states = program.batch(items, backend=lmc.Mock(), journal=journal, errors="return")
    assert [s.failure is None for s in states] == [False, True, False] and states[1].ret_value[1] == "no"


class Size(BaseModel):
    width: int
    height: int = 1


@lmc.function
def sized(s: Any, schema: Any = None) -> Any:
    return lmc.interrupt("how large?", SCHEMAS[schema])


SCHEMAS: dict[str, Any] = {
    "text": None, "model": Size, "schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]},
    "list": list[int], "float": float,
}  # fmt: skip


@pytest.mark.parametrize("schema, wrong, right, given", [
    ("text", 3, "three", "three"), ("model", {"width": "x"}, {"width": 3}, Size(width=3)), ("schema", {"a": 1}, {"b": "x", "a": 1}, {"b": "x", "a": 1}),
    ("list", [1, "x"], [1, 2], [1, 2]), ("float", "x", 2, 2.0),
])  # fmt: skip
def test_answers_are_what_their_schemas_say(schema: str, wrong: Any, right: Any, given: Any, tmp_path: Path) -> None:
    journal = lmc.Journal(tmp_path / "j")
    with pytest.raises(lmc.Interrupted):
        sized.run(schema, backend=lmc.Mock(), journal=journal)
    size = journal.path.stat().st_size
    with pytest.raises(ArgumentError, match="how large"):
        journal.answer(wrong)
    assert journal.path.stat().st_size == size
    journal.answer(right)
    found = sized.run(schema, backend=lmc.Mock(), journal=journal).ret_value
    assert found == given and type(found) is type(given)


def test_without_a_journal_or_in_a_tool_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="run the program with journal=path"):
        sized.run("text", backend=lmc.Mock())
    with pytest.raises(ProgramError, match="In a tool it cannot be"):
        in_a_tool.run(backend=lmc.Mock(), journal=tmp_path / "j")


@lmc.host
def tool() -> Any:
    return lmc.interrupt("from a tool?")


@lmc.function
def in_a_tool(s: Any) -> Any:
    return tool()


@pytest.mark.parametrize("way", [asks_in_a_callback.run, lmc.compile(asks_in_a_callback)])
def test_a_program_that_waits_for_a_callback_which_asks_ends_with_the_question(way: Any, tmp_path: Path) -> None:
    journal = lmc.Journal(tmp_path / "j")
    for _ in range(2):
        with pytest.raises(lmc.Interrupted, match=r"go on\?"):
            way(backend=lmc.Mock(), seed=1, journal=journal)
    journal.answer("yes")
    assert way(backend=lmc.Mock(), seed=1, journal=journal).ret_value[0] == "yes"
