"""Groups: whenever answers come, a journal has those of each run in order, with the checks that the interpreter would write."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc import json_data
from lmc.backend.results import Output, Result
from lmc.backend.usage import Usage
from lmc.durable import answers, journal, records, steps
from lmc.durable.groups import first_line
from lmc.durable.journal import JournalFile
from lmc.durable.run import RunJournal
from lmc.errors import CancelledError, JournalError
from lmc.prompt import Prompt
from lmc.segments import Gen
from tests.durable.resuming import journal_of, lay
from tests.searching import size


@lmc.function
def inner(s: Any, of: str) -> Any:
    s += of + lmc.gen("i", max_tokens=2)
    return s["i"]


@lmc.function
def program(s: Any, q: str) -> Any:
    s += lmc.system("Be brief.") + lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=3, temperature=1.0))
    if "e" in s["a"]:
        s += lmc.user("again") + lmc.gen("b", max_tokens=2)
    forks = s.fork(3)
    for n, f in enumerate(forks):
        f += f"{n}" + lmc.gen("f", max_tokens=2) + lmc.select("which", choices=["x", "y"])
    found = inner(of=s["a"]).ret_value
    s += found + "".join(f["f"] for f in forks) + lmc.gen("c", max_tokens=2, n=2, temperature=1.0)
    while s["c"][0] > "g" and len(s.text()) < 400:
        s += lmc.gen("more", max_tokens=3)
        s += lmc.user(s["more"])
    s += lmc.gen("d", max_tokens=2)
    return s["d"], found


def known(path: Path) -> dict[int, dict[Any, Any]]:
    """The answers of each run, by their places and checks."""
    return {
        item: {place: {check: record[3:] for check, record in found.items()} for place, found in run.answers.items()}
        for item, run in records.read(path).runs.items()
    }


def without_ids(x: Any) -> Any:
    """Answers but for their names, which count what the backend was asked."""
    return {item: {place: {check: record[0] for check, record in found.items()} for place, found in run.items()} for item, run in x.items()}


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many groups, made by every thread."""
    monkeypatch.setattr(journal, "GROUP", 0.001)
    monkeypatch.setattr(answers, "MANY", 3)


def late(seed: int) -> lmc.Mock:
    rng = random.Random(seed)
    return lmc.Mock(latency=lambda ask: rng.choice([0.0, 0.0, 0.001, 0.004, 0.01]))


@pytest.mark.search
@pytest.mark.usefixtures("_small")
def test_answers_that_come_late_are_those_of_the_interpreter(tmp_path: Path) -> None:
    items = [{"q": f"q{i}"} for i in range(size(6, 12))]
    program.run_batch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / "slow")
    expected = without_ids(known(tmp_path / "slow"))
    fast = lmc.compile(program)
    for n, batch in enumerate([fast.batch, partial(program.run_batch, num_threads=8), fast.batch, fast.batch][: size(1, 4)]):
        directory = tmp_path / str(n)
        texts = [s.text() for s in batch(items, backend=late(n), seed=1, journal=directory)]
        assert without_ids(known(directory)) == expected
        assert records.read(directory).finished(range(len(items)))
        path = directory / "journal"
        lines = path.read_bytes().splitlines(keepends=True)
        for whole in range(1, len(lines), 1 + len(lines) // 3):
            lay(path, b"".join(lines[:whole]))
            asked = sum(len(found) for run in records.read(path).runs.values() for found in run.answers.values())
            backend = late(n)
            assert [s.text() for s in fast.batch(items, backend=backend, seed=1, journal=directory)] == texts
            assert asked + len(backend.call_log) == sum(len(found) for run in expected.values() for found in run.values())
            assert without_ids(known(directory)) == expected


@lmc.function
def one_by_one(s: Any, q: str) -> Any:
    s += q
    for name in ["a", "b", "c", "d", "e"]:
        s += lmc.gen(name, max_tokens=2)
        if "é" in s[name]:  # so that the next one is asked when this one is known
            break
        if name == "c":
            s += inner(of=s["c"]).ret_value


@pytest.mark.search
def test_answers_of_a_run_are_in_the_order_in_which_they_were_asked(tmp_path: Path) -> None:
    fast = lmc.compile(one_by_one)
    for n in range(size(1, 3)):
        rng = random.Random(n)
        backend = lmc.Mock(latency=lambda ask, rng=rng: rng.choice([0.0, 0.01, 0.03, 0.06]))
        fast.batch([(f"q{i}",) for i in range(40)], backend=backend, seed=1, journal=tmp_path / str(n))
        main = [("", i) for i in range(5)]
        for item, run in records.read(tmp_path / str(n)).runs.items():
            order = [tuple(place) for record in run.order for place in record[1]]  # type: ignore[index]  # answers
            places = [*main[:3], next(place for place in order if place[0]), *main[3:]]
            assert order == places, item


def opened(path: Path) -> JournalFile:
    return JournalFile.open(path, {"kind": "run", "seed": 1}, int)


def asked(run: RunJournal, n: int = 0) -> Result:
    after = run.ask(Prompt().append(f"prompt {n}"), Gen(), (("", n),), lambda: Prompt(Prompt(), (), Result()))
    assert after.result is not None
    return after.result


def read(path: Path) -> list[records.Record]:
    return records.read(path).records.get(0, [])


def test_an_answer_whose_thread_has_not_said_so_is_written_before_the_run_is_over(tmp_path: Path) -> None:
    """A backend's thread completes an answer, and before it tells anybody, the run has read it, is over, and its journal is closed."""
    opening = opened(tmp_path / "j")
    run = RunJournal(opening, 0)
    result = asked(run)
    opening.gather()
    told = result._callbacks
    result._callbacks = None  # its thread is held up there
    result.finish(Output(("text",), ({},)))
    assert run.ended(None) is None
    opening.close()
    for tell in told or ():
        tell(result)
    assert [record[0] for record in read(tmp_path / "j")] == ["a", "e"]
    assert records.read(tmp_path / "j").finished([0])


def test_an_answer_is_written_before_what_its_run_did_because_of_it(tmp_path: Path) -> None:
    """Otherwise, where the process is killed between the two, the answer is another one when the run is resumed, and what followed it is in the journal."""
    opening = opened(tmp_path / "j")
    run = RunJournal(opening, 0)
    first, following = asked(run, 0), list[Result]()

    def go_on(result: Result) -> None:  # the run is told before the journal is
        following.append(asked(run, 1))
        opening.put(0, ["i", 0, "", "charge", 0, [], [], 0, 1, "", ""])
        following[0].finish(Output(("more",), ({},)))
        opening.gather()

    first.on_change(go_on)
    opening.gather()
    first.finish(Output(("text",), ({},)))
    opening.close()
    assert [record[1] if record[0] == "a" else record[0] for record in read(tmp_path / "j")] == [[["", 0]], [["", 1]], "i"]


def test_an_answer_that_comes_late_is_written_though_nothing_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "GROUP", 1000.0)
    opening = opened(tmp_path / "j")
    result = asked(RunJournal(opening, 0))
    opening.sync()
    opening._some.clear()
    result.finish(Output(("text",), ({},)))
    assert opening._some.is_set()  # its thread writes it within that time
    opening.close()
    assert len(read(tmp_path / "j")) == 1


def test_ctrl_c_while_a_group_is_made_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(x: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(journal, "GROUP", 1000.0)  # the journal's own thread waits
    opening = opened(tmp_path / "j")
    run = RunJournal(opening, 0)
    asked(run, 0).finish(Output(("text",), ({},)))
    late = asked(run, 1)
    opening.put(0, ["i", 0, "", "charge", 0, [], [], 0, 1, "", ""])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(journal.json_data, "encode_json", interrupted)
        opening.gather()
    opening.sync()
    assert [record[0] for record in read(tmp_path / "j")] == ["a", "i"]
    late.finish(Output(("more",), ({},)))
    opening.close()
    assert [record[0] for record in read(tmp_path / "j")] == ["a", "i", "a"]


def test_ctrl_c_while_it_is_closed_leaves_it_to_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    opening = opened(tmp_path / "j")
    asked(RunJournal(opening, 0)).finish(Output(("text",), ({},)))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(opening._thread, "join", interrupted)
        opening.close()
    opening._thread.join()
    opened(tmp_path / "j").close()  # not in use, while somebody still has the first one
    assert len(read(tmp_path / "j")) == 1


def test_answers_that_are_there_are_in_one_section(tmp_path: Path) -> None:
    opening = opened(tmp_path / "j")
    with opening._gathering:
        results = [asked(RunJournal(opening, n)) for n in range(8)]
        for result in results[:6]:
            result.finish(Output(("text",), ({"id": "x"},)))
    opening.sync()
    lines = (tmp_path / "j").read_bytes().splitlines()
    assert len(lines) == 2 and lines[1].count(b'"answers"') == 1
    assert sorted(records.read(tmp_path / "j").records) == list(range(6))
    results[7].fail(CancelledError("no"))
    results[6].finish(Output(("late",), ({},)))
    opening.close()
    assert sorted(records.read(tmp_path / "j").records) == list(range(7))


def nested(depth: int) -> Any:
    x: Any = "inmost"
    for n in range(depth):
        x = {"a": x} if n % 2 else [x]
    return x


def answered(path: Path, *outputs: Output) -> list[Any]:
    """Answers of as many runs, as they are read from their journal."""
    opening = opened(path)
    with opening._gathering:
        for n, output in enumerate(outputs):
            asked(RunJournal(opening, n)).finish(output)
    opening.close()
    return [answers.output_of(found[0]) for found in records.read(path).records.values()]


@pytest.mark.parametrize("depth", [20, 100, 180, 300])
def test_meta_info_may_be_nested(tmp_path: Path, depth: int) -> None:
    found = answered(tmp_path / "j", *[Output(("text",), ({"deep": nested(depth)},))] * 8)
    assert [output.meta["deep"] for output in found] == [nested(depth)] * 8


def test_meta_info_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    opening = opened(tmp_path / "j")
    asked(RunJournal(opening, 0)).finish(Output(("text",), ({"deep": nested(5000)},)))
    with pytest.raises(JournalError, match=r"cannot hold the meta info of an answer: a (list|dict) that is nested more than 200 deep"):
        opening.close()


@pytest.mark.parametrize("many", [1, 8])
@pytest.mark.parametrize("fast", [False, True])
def test_numbers_of_any_length_are_read(tmp_path: Path, many: int, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads no decimal number of more than 4,300 digits, and pydantic writes them."""
    monkeypatch.setattr(journal.json_data, "encode_json", json_data._fast_encoder() if fast else json_data.to_bytes)
    metas: list[Any] = [{"n": 10**5000 + n, "some": [1, -(10**5000)], "all": -(10**5000)} for n in range(many)]
    assert [output.meta for output in answered(tmp_path / "j", *(Output(("text",), (meta,)) for meta in metas))] == metas


@pytest.mark.parametrize("many", [1, 8])
def test_usage_is_read_as_it_was_written(tmp_path: Path, many: int) -> None:
    """But for what was asked ahead, which is another run's affair."""
    usage = Usage(9, 8, 7, 6, 5, 4, ahead_asked=3, written_tokens=2, written_hour_tokens=1, batched_calls=1, drafted_tokens=7, accepted_tokens=5)
    found = answered(tmp_path / "j", *[Output(("text",), ({},), usage)] * many)
    assert [output.usage for output in found] == [replace(usage, ahead_asked=0)] * many


@pytest.mark.parametrize("seed", [{}, {"seed": None}, {"seed": "1"}, {"seed": True}])
def test_a_first_line_without_a_seed_is_refused(tmp_path: Path, seed: dict[str, Any]) -> None:
    lay(tmp_path / "j", first_line({"kind": "run", **seed})[0])
    with pytest.raises(JournalError, match="damaged in its first line"):
        records.read(tmp_path / "j")


def tool(x: str) -> list[str]:
    return [x]


@lmc.function
def calls(s: Any) -> Any:
    s += lmc.gen("a", max_tokens=2)
    try:
        return tool(s["a"])
    except Exception:  # which stops no run that its journal cannot go on with
        return "handled"


def forged(program: Any, directory: Path, change: Callable[[int, list[Any]], Any]) -> Path:
    """A journal of a run, with its records as `change` makes them of their numbers and of themselves."""
    program.run(backend=lmc.Mock(), seed=1, journal=directory / "j")
    found = records.read(directory / "j")
    lay(directory / "k", journal_of(found.header, [(0, change(*each)) for each in enumerate(found.records[0])]))
    return directory / "k"


@pytest.mark.parametrize("outcome", [
    [], ["value"], [1, 2], ["value", 1, 2], ["value", 1, 2, 3, 4], ["raised", 1], ["raised", {"!": ["error"]}], ["argument", 3], ["argument", "x"],
    ["part", []], ["part", [7]],
    ["part", None], ["value", [], [[1]], []], ["value", [], [], [1]], ["value", [], [], "a"], ["value", {"!": ["nothing"]}],
    ["value", {"!": ["datetime", "2026-01-01", 0, None, "a" * 999]}], ["value", [], [[0, ["+", {"!": ["range", 0, 10**18, 1]}]]], []]], ids=repr)  # fmt: skip
def test_a_result_that_no_lmc_wrote_is_refused(tmp_path: Path, outcome: list[Any]) -> None:
    for way in (calls.run, lmc.compile(calls)):
        path = forged(calls, tmp_path, lambda _, record: ["r", record[1], *outcome] if record[0] == "r" else record)
        with pytest.raises(JournalError, match=r"that lmc did not write|cannot be resumed"):
            way(backend=lmc.Mock(), journal=path)


def fill(into: list[int]) -> None:
    into.append(1)


@lmc.function
def fills(s: Any) -> Any:
    found: list[int] = []
    s += lmc.gen("a", max_tokens=2)
    fill(found)
    return found


def test_a_list_grows_by_a_list_alone(tmp_path: Path) -> None:
    """By a range it may be of any length."""
    by_a_range = [[0, ["+", {"!": ["range", 0, 3, 1]}]]]
    path = forged(fills, tmp_path, lambda _, record: [*record[:4], by_a_range, *record[5:]] if record[0] == "r" else record)
    with pytest.raises(JournalError, match="that lmc did not write"):
        fills.run(backend=lmc.Mock(), journal=path)


@pytest.mark.parametrize("texts, metas", [([], []), ([1], [{}]), (["a"], []), (["a"], [1]), (["a", "b"], [{}]), (3, [{}])], ids=repr)
def test_an_answer_that_no_lmc_wrote_is_refused(tmp_path: Path, texts: Any, metas: Any) -> None:
    path = forged(calls, tmp_path, lambda _, record: [*record[:3], texts, metas, *record[5:]] if record[0] == "a" else record)
    for read in (lambda path: calls.run(backend=lmc.Mock(), journal=path), steps.listed, lambda path: lmc.Journal(path).compact()):
        with pytest.raises(JournalError, match="an answer that lmc did not write"):
            read(path)


@pytest.mark.parametrize("changed", [
    [], [7], [[]], {"!": 1}, ["a", [], 1, ["a"], [{}], [1, 1], []], ["e", [["E", "m"]], 0, [["", "0"]]],
    ["i", 0, "", 3, 1, [], [], 0, 1, "", ""], ["i", 0, "", "tool", [], [], [], 0, 1, "", ""],
    ["i", 0, "", "tool", 1, [], [], 0, 1, "", 9], ["i", 0, "", "tool", 1, [1], [], 0, 1, "", ""]], ids=repr)  # fmt: skip
def test_a_record_that_no_lmc_wrote_is_refused(tmp_path: Path, changed: Any) -> None:
    for at in (1, 2):
        path = forged(calls, tmp_path, lambda i, record, at=at: changed if i == at else record)
        for read in (lambda path: calls.run(backend=lmc.Mock(), journal=path), steps.listed, lambda path: lmc.Journal(path).runs()):
            with pytest.raises(JournalError, match="that lmc did not write"):
                read(path)
