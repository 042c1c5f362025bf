"""Journals, operated: listed, shown, decided about, exported, compacted, encrypted, and what is said of files that lost something."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lmc
from lmc.cli.command import app
from lmc.cli.journal import key_of
from lmc.durable import files, records, room
from lmc.durable.files import Sidecar
from lmc.errors import ArgumentError, JournalError, MissingPackageError, ParameterError
from lmc.userfiles import UsageError
from tests.durable.resuming import lay, prefixes

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()


def charge(x: str) -> str:
    CALLS.append(x)
    if x == "broken":
        raise ConnectionError("down")
    return f"charged {x}"


@lmc.function
def shop(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    paid = charge(q)
    s += paid + lmc.gen("b", max_tokens=3)
    return paid, s["b"], lmc.interrupt("more?") if q == "ask" else None


def run(path: Any, q: str = "x", mock: Any = None) -> Any:
    return shop.run(q, backend=lmc.Mock() if mock is None else mock, seed=1, journal=path).ret_value


def in_doubt(path: Path, q: str = "x") -> lmc.Journal:
    """A journal whose process ended in its call."""
    run(path, q)
    lay(path, next(data for data in prefixes(path) if b'["record",0,["i",' in data))
    CALLS.clear()
    return lmc.Journal(path)


def command(*words: Any) -> str:
    found = CliRunner().invoke(app, ["journal", *map(str, words)], catch_exceptions=False) if "!" not in words else None
    assert found is not None and found.exit_code == 0, found
    return found.output


# -- what a person decides ---------------------------------------------------------------------------------------------


def test_a_call_in_doubt_is_resolved_or_made_again(tmp_path: Path) -> None:
    expected = run(tmp_path / "whole")
    journal = in_doubt(tmp_path / "a")
    (status,) = journal.runs()
    assert (status.status, [w.call for w in status.waiting]) == ("in doubt", ["charge('x')"])
    with pytest.raises(lmc.InDoubtEffect, match="lmc journal resolve or retry"):
        run(journal)
    journal.resolve("charged x")
    assert run(journal) == expected and not CALLS
    journal = in_doubt(tmp_path / "b")
    journal.retry()
    assert run(journal) == expected and CALLS == ["x"]
    journal = in_doubt(tmp_path / "c")
    journal.resolve(error=ValueError("refused"))
    with pytest.raises(ValueError, match="refused"):
        run(journal)
    with pytest.raises(ArgumentError, match="cannot hold"):
        in_doubt(tmp_path / "d").resolve(object())
    for wrong in (lambda: lmc.Journal(tmp_path / "a").resolve(1), lambda: lmc.Journal(tmp_path / "a").retry(), lambda: lmc.Journal(tmp_path / "a").answer("x")):
        with pytest.raises(JournalError, match=r"no call is in doubt|no question waits"):
            wrong()


STOPS: list[BaseException] = []


@lmc.function
def may_stop(s: Any) -> Any:
    s += charge("x") + lmc.gen("a", max_tokens=3)
    if s["a"] and STOPS:
        raise STOPS.pop()


@pytest.mark.parametrize("stopped", (KeyboardInterrupt, asyncio.CancelledError))
def test_a_run_that_was_interrupted_is_cut_off_and_resumes(tmp_path: Path, stopped: type[BaseException]) -> None:
    STOPS.append(stopped())
    with pytest.raises(stopped):
        may_stop.run(backend=lmc.Mock(), journal=tmp_path / "j")
    (found,) = lmc.Journal(tmp_path / "j").runs()
    assert (found.status, found.error) == ("cut off", "")
    assert ": cut off; " in command("list", tmp_path / "j") and "on mock: cut off" in command("show", tmp_path / "j")
    may_stop.run(backend=lmc.Mock(), journal=tmp_path / "j").sync()
    assert [each.status for each in lmc.Journal(tmp_path / "j").runs()] == ["finished"] and CALLS == ["x"]


def test_a_call_behind_which_a_run_failed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        with pytest.raises(ConnectionError):
            run(tmp_path / "j", "broken")
    assert CALLS == ["broken"]  # its exception is in the journal
    journal = lmc.Journal(tmp_path / "j")
    assert (journal.runs()[0].status, journal.runs()[0].error) == ("failed", "ConnectionError: down")
    journal.retry()

    def repaired(x: str) -> str:
        CALLS.append(x)
        return "works"

    repaired.__qualname__ = "charge"
    monkeypatch.setitem(globals(), "charge", repaired)
    mock = lmc.Mock()
    assert run(journal, "broken", mock)[0] == "works" and CALLS == ["broken", "broken"] and len(mock.call_log) == 1


def note(event: dict[str, str]) -> None:
    CALLS.append(event["status"])


@lmc.function
def transacts(s: Any, q: str) -> Any:
    try:
        s += charge(q) + lmc.gen("a", max_tokens=3)
    except lmc.InDoubtEffect:
        note({"status": "rollback"})
        s += "failed:" + lmc.gen("why", max_tokens=3)
        note({"status": s["why"]})
        raise
    else:
        note({"status": "commit"})
    finally:
        charge("close")
    return charge(s["a"])


def tried(fn: Any) -> Any:
    @functools.wraps(fn)
    def inner(*args: Any) -> Any:
        for attempt in range(3):
            try:
                return fn(*args)
            except Exception:
                if attempt == 2:
                    raise

    return inner


@tried
def pays(s: Any, q: str) -> str:
    s += q + lmc.gen("a", max_tokens=3)
    return charge(q)


@lmc.function
def tries_again(s: Any, q: str) -> Any:
    return pays(s, q)


@lmc.function
def tells_the_model(s: Any, q: str) -> Any:
    for _ in range(3):
        s += lmc.gen("a", max_tokens=3)
        try:
            s += charge(q)
            break
        except Exception as error:
            s += f"failed: {error}"
    return s["a"]


@lmc.function
def goes_on_without(s: Any, q: str) -> Any:
    with contextlib.suppress(Exception):
        return charge(q)


@pytest.mark.parametrize("program", [tries_again, tells_the_model, goes_on_without])
def test_catching_all_errors_is_not_to_handle_a_doubt(program: Any, tmp_path: Path) -> None:
    """A decorator that retries called the tool again, and an agent went on, telling the model."""
    path, expected = tmp_path / "j", program.run("x", backend=lmc.Mock(), seed=1).ret_value
    program.run("x", backend=lmc.Mock(), seed=1, journal=path)
    lay(path, next(data for data in prefixes(path) if b'["record",0,["i",' in data))
    CALLS.clear()
    for way in (program.run, lmc.compile(program)):
        mock = lmc.Mock()
        with pytest.raises(lmc.InDoubtEffect, match="lmc journal resolve or retry"):
            way("x", backend=mock, journal=path)
        assert not CALLS and not mock.call_log
    lmc.Journal(path).resolve("charged x")
    assert program.run("x", backend=lmc.Mock(), journal=path).ret_value == expected and not CALLS


def without(errors: Any) -> Any:
    def decorator(fn: Any) -> Any:
        def inner(s: Any, q: str) -> Any:
            try:
                return fn(s, q)
            except errors:
                return charge("rollback")

        return inner

    return decorator


@without((ValueError, lmc.InDoubtEffect))
def pays_or_not(s: Any, q: str) -> str:
    s += q + lmc.gen("a", max_tokens=3)
    return charge(q)


@lmc.function
def handles_by_a_decorator(s: Any, q: str) -> Any:
    return pays_or_not(s, q)


def test_a_decorator_that_is_given_the_error_handles_a_doubt(tmp_path: Path) -> None:
    path = tmp_path / "j"
    handles_by_a_decorator.run("x", backend=lmc.Mock(), seed=1, journal=path)
    lay(path, next(data for data in prefixes(path) if b'["record",0,["i",' in data))
    assert handles_by_a_decorator.run("x", backend=lmc.Mock(), journal=path).ret_value == "charged rollback"


@lmc.function
def asks_why(s: Any, q: str) -> Any:
    try:
        s += charge(q)
    except lmc.InDoubtEffect:
        s += lmc.gen("why", max_tokens=3)
        return "nobody knows"
    s += lmc.gen("a", max_tokens=3)
    return s["a"]


def test_a_compact_journal_knows_what_came_of_a_doubt_that_was_handled(tmp_path: Path) -> None:
    path, expected = tmp_path / "j", asks_why.run("x", backend=lmc.Mock(), seed=1).ret_value
    asks_why.run("x", backend=lmc.Mock(), seed=1, journal=path)
    lay(path, next(data for data in prefixes(path) if b'["record",0,["i",' in data))
    assert asks_why.run("x", backend=lmc.Mock(), journal=path).ret_value == "nobody knows"
    lmc.Journal(path).resolve("charged x")
    with pytest.raises(lmc.BackendError):
        asks_why.run("x", backend=lmc.Mock(fault=lambda ask, n: lmc.BackendError("down")), journal=path)
    lmc.Journal(path).compact()
    assert asks_why.run("x", backend=lmc.Mock(), journal=path).ret_value == expected


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("compacts", [False, True])
def test_what_a_program_does_about_a_doubt_is_not_expected_of_it_later(made: bool, compacts: bool, tmp_path: Path) -> None:
    """Such a run could not be resumed any more, whatever a person had decided."""
    path, expected = tmp_path / "j", transacts.run("x", backend=lmc.Mock(), seed=1).ret_value
    transacts.run("x", backend=lmc.Mock(), seed=1, journal=path)
    lay(path, next(data for data in prefixes(path) if b'["record",0,["i",' in data))
    with pytest.raises(lmc.InDoubtEffect):
        transacts.run("x", backend=lmc.Mock(), journal=path)
    lmc.Journal(path).resolve("charged x") if made else lmc.Journal(path).retry()
    CALLS.clear()
    for _ in range(2):  # once more where it was cut off again, at its end
        if compacts:
            lmc.Journal(path).compact()
        assert transacts.run("x", backend=lmc.Mock(), journal=path).ret_value == expected
        lay(path, prefixes(path)[-2])
    assert [*(() if made else "x"), "commit", expected.removeprefix("charged ")] == CALLS


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("done")
    in_doubt(tmp_path / "doubt")
    with pytest.raises(lmc.Interrupted):
        run("asks", "ask")
    lmc.compile(shop).batch([{"q": "p"}, {"q": "q"}], backend=lmc.Mock(), seed=1, journal="batch")
    Path("notes.txt").write_text("no journal")
    listed = command("list", ".")
    for said in (
        "done: shop: finished",
        "doubt: shop: in doubt",
        "effect 0 is in doubt: charge('x')",
        "asks: shop: waiting",
        "effect 1 asks: more?",
        "batch item 1: shop: finished",
    ):
        assert said in listed
    assert "notes" not in listed
    assert {json.loads(line)["status"] for line in command("list", ".", "--json").splitlines()} == {"finished", "in doubt", "waiting"}
    shown = command("show", "asks")
    assert "a run of shop on mock, seed 1" in shown and "waits for a person's answer" in shown and "'charged ask'" not in shown and "charged ask" in shown
    command("resolve", "asks", "--answer", "no")
    assert run("asks", "ask")[2] == "no"
    command("resolve", "doubt", "--result", '"by hand"')
    assert run("doubt")[0] == "by hand"
    assert "charge('x')" in CliRunner().invoke(app, ["journal", "retry", str(in_doubt(tmp_path / "again").path)]).output
    exported = [json.loads(line) for line in command("export", "batch").splitlines()]
    assert [run["arguments"] for run in exported] == [{"q": "p"}, {"q": "q"}] and exported[0]["steps"][1]["result"] == "charged p"
    command("export", "done", "-o", "out.jsonl")
    assert json.loads(Path("out.jsonl").read_text())["status"] == "finished"
    assert "bytes before" in command("compact", "batch")
    for words, why in ((["resolve", "done", "--answer", "x"], "no question waits"), (["resolve", "done"], "give one of --answer"),
        (["show", "nowhere"], "No such file"), (["show", "/dev/zero"], "not a regular file"),
                       (["compact", "done", "--older-than", "soon"], "a number with a unit"), (["resolve", "done", "--result", "x"], "is not JSON"),
                       (["list", "out.jsonl"], ""),
                       (["retry", "nowhere"], "there is no journal"), (["compact", "nowhere"], "there is no journal")):  # fmt: skip
        found = CliRunner().invoke(app, ["journal", *words])
        if why:
            assert isinstance(found.exception, UsageError) and why in str(found.exception), (words, found.exception)
        else:
            assert "not a journal of lmc" in found.output
    assert not Path("nowhere").exists()


def test_a_large_batch_is_listed_by_what_it_waits_for(tmp_path: Path) -> None:
    items = [{"q": q} for q in ("ask", "broken", *["x"] * 19)]
    lmc.compile(shop).batch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / "batch", errors="return")
    first, waiting, asked = command("list", tmp_path / "batch").splitlines()
    assert first.endswith("batch: shop: 21 runs: 19 finished, 1 waiting, 1 failed (--json lists each)")
    assert "batch item 0: shop: waiting" in waiting and "asks: more?" in asked
    assert len(command("list", tmp_path / "batch", "--json").splitlines()) == 21


def test_a_program_of_the_command_line_asks_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(
        "import lmc\n@lmc.function\ndef mail(s, to: str):\n    s += lmc.gen('a', max_tokens=2)\n    return lmc.interrupt(f'To {to}?', bool)\n"
    )
    words = ["run", "agent.py:mail", "-b", "mock", "--arg", "to=ann", "--journal", "runs/deep/ann"]
    Path("runs/deep").mkdir(parents=True)
    for _ in range(2):
        assert isinstance(CliRunner().invoke(app, words).exception, lmc.Interrupted)
    assert "effect 0 asks: To ann?" in command("list", ".")
    assert "run 0 of mail(to='ann') on mock: waits for a person's answer\n" in command("show", "runs/deep/ann")
    said = str(CliRunner().invoke(app, ["journal", "resolve", "runs/deep/ann", "--answer", "yes"]).exception)
    assert "is not JSON" in said and said.endswith('; the question takes JSON that matches {"type": "boolean"}')
    command("resolve", "runs/deep/ann", "--answer", "true")
    found = CliRunner().invoke(app, words)
    assert (found.exit_code, found.output.strip()) == (0, "true")


# -- the file ------------------------------------------------------------------------------------------------------------


def test_compacting_keeps_what_runs_need_and_deletes_what_is_old(tmp_path: Path) -> None:
    program, items, mock = lmc.compile(shop), [{"q": f"item {i}"} for i in range(30)], lmc.Mock()
    expected = [s.ret_value for s in program.batch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / "b")]
    journal, exported = lmc.Journal(tmp_path / "b"), list(lmc.Journal(tmp_path / "b").export())
    before, now, deleted = journal.compact()
    assert now == (tmp_path / "b" / "journal").stat().st_size and now <= before and deleted == 0
    assert list(journal.export()) == exported
    CALLS.clear()
    assert [s.ret_value for s in program.batch(items, backend=mock, journal=journal)] == expected and not mock.call_log and not CALLS

    path = tmp_path / "old"
    run(path)
    with pytest.raises(lmc.Interrupted):
        run(tmp_path / "open", "ask")
    assert lmc.Journal(path).compact(keep=timedelta(days=1))[2] == 0
    with pytest.raises(lmc.ArgumentError, match=r"Journal\.compact\(keep='1d'\): must be float \| timedelta \| None"):
        lmc.Journal(path).compact(keep="1d")
    later = time.time() + 2 * 86400
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmc.durable.rewriting.time.time", lambda: later)
        assert lmc.Journal(tmp_path / "open").compact(keep=timedelta(days=1))[2] == 0  # it is not over
        CALLS.clear()
        with pytest.raises(JournalError, match="what it did was deleted"):
            run(lmc.Journal(path, keep=timedelta(days=1)))
        assert not CALLS and lmc.Journal(path).runs()[0].status == "deleted"
        assert b"charged" not in path.read_bytes() and lmc.Journal(path).compact(keep=0)[2] == 0
    with pytest.raises(JournalError, match="what it did was deleted"):
        run(path)


def test_a_compacted_journal_is_resumed_behind_every_record(tmp_path: Path) -> None:
    expected = run(tmp_path / "j")
    for data in prefixes(tmp_path / "j"):
        lay(tmp_path / "cut", data)
        journal = lmc.Journal(tmp_path / "cut")
        journal.compact()
        waiting = journal.waiting()
        CALLS.clear()
        if waiting:
            journal.retry()
            journal.compact()
        known = journal.read().known(0)
        mock = lmc.Mock()
        assert run(journal, mock=mock) == expected
        assert len(mock.call_log) == 2 - len(known.answers) and len(CALLS) == 1 - len(known.effects)


def test_a_dropped_tail_is_said_with_its_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "j")
    lay(tmp_path / "j", (tmp_path / "j").read_bytes()[:-9])
    dropped = records.read(tmp_path / "j").dropped
    assert dropped > 0 and f"its last {dropped} bytes were not written whole" in command("show", tmp_path / "j")
    with caplog.at_level(logging.WARNING, "lmc.journal"):
        run(tmp_path / "j")
    assert [r.getMessage() for r in caplog.records if r.name == "lmc.journal"] == [
        f"{tmp_path / 'j'}: the last {dropped} bytes were not written whole when its process ended, and are dropped; no effect was begun behind them"]


@pytest.mark.parametrize("compacted", (False, True))
def test_a_journal_that_lost_synced_groups_is_refused(tmp_path: Path, compacted: bool) -> None:
    path = tmp_path / "j"
    run(path)
    if compacted:
        lmc.Journal(path).compact()
    data, said = path.read_bytes(), Sidecar.path_of(path).read_bytes()
    for size in (0, 20, data.index(b"\n") + 1, len(data) - 1):
        path.write_bytes(data[:size])
        CALLS.clear()
        with pytest.raises(JournalError, match=r"bytes are missing at its end that were on the disk.*or delete j.synced"):
            run(path)
        assert not CALLS and path.read_bytes() == data[:size]
    assert "bytes are missing at its end" in command("show", path)
    Sidecar.path_of(path).unlink()
    assert run(path)  # nobody knows that anything is missing
    for torn in (b"", said[:13], said[:5] + b"9" + said[6:], b"0" * 16 + said[16:]):  # it was being written
        lay(path, data)
        Sidecar.path_of(path).write_bytes(torn)
        assert run(path)
    path.unlink()  # whoever deletes it begins anew
    CALLS.clear()
    assert run(path) and CALLS == ["x"]
    run(tmp_path / "other", "y")
    (tmp_path / "other").rename(path)  # another journal in its place
    assert run(path, "y")


def test_there_is_room_before_an_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(file: int, at: int, size: int) -> bool:
        raise OSError(28, "No space left on device")

    expected = run(tmp_path / "whole")
    CALLS.clear()
    monkeypatch.setattr(room, "_allocate", none)
    with pytest.raises(JournalError, match="No space left on device; the run cannot continue without its journal"):
        run(tmp_path / "j")
    assert not CALLS
    monkeypatch.undo()
    assert run(tmp_path / "j") == expected and CALLS == ["x"]


def test_room_is_looked_for_where_it_cannot_be_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_allocate", lambda file, at, size: False)
    assert run(tmp_path / "j")
    full = os.statvfs_result((512, 512, 100, 10, 10, 0, 0, 0, 0, 255))
    monkeypatch.setattr(room.os, "fstatvfs", lambda file: full)
    CALLS.clear()
    with pytest.raises(JournalError, match="No space left"):
        run(tmp_path / "k")
    assert not CALLS


@pytest.mark.skipif(room._fallocate() is None, reason="the system cannot reserve blocks")  # pyright: ignore[reportPrivateUsage]
def test_reserved_blocks_are_no_part_of_the_file_and_given_back(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w+b") as file:
        file.write(b"12345")
        file.flush()
        held = room.ReservedBlocks(file.fileno())
        held.reserve(5)
        status = os.fstat(file.fileno())
        assert status.st_size == 5
        if status.st_blocks * 512 < room.ROOM:
            pytest.skip("the file system has no blocks of its own")
        held.give_back(5)
        assert os.fstat(file.fileno()).st_blocks * 512 < room.ROOM and (tmp_path / "f").read_bytes() == b"12345"


def test_results_are_written_before_the_program_goes_on(tmp_path: Path) -> None:
    """So that a process that is killed right behind an effect leaves no doubt."""

    def known() -> list[bool]:
        return [effect.outcome is not None for effect in records.read(tmp_path / "j").runs[0].effects.values()]

    look = lmc.pure(lambda n: known())

    @lmc.function
    def program(s: Any) -> Any:
        return charge("one"), look(1), charge("two"), look(2)

    assert program.run(backend=lmc.Mock(), journal=tmp_path / "j").ret_value[1::2] == ([True], [True, True])


# -- encrypted -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [b"k" * 32, "a long passphrase"])
def test_an_encrypted_journal_shows_nothing_and_needs_its_key(key: Any, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    path = tmp_path / "j"
    journal = lmc.Journal(path, key=key)
    words = (b'secret"', b'"charge', b'"shop"', b'"mock')  # in quotes, which base64 has none of: it may spell a short word by chance
    run(lmc.Journal(tmp_path / "plain"), "secret")
    assert all(word in (tmp_path / "plain").read_bytes() for word in words)
    CALLS.clear()
    expected = run(journal, "secret")
    assert (
        not any(word in path.read_bytes() for word in words)
        and "k" * 32 not in repr(journal)
        and "passphrase" not in repr(journal)
    )
    mock = lmc.Mock()
    CALLS.clear()
    assert run(journal, "secret", mock) == expected and not mock.call_log and not CALLS
    assert journal.runs()[0].status == "finished"
    for wrong, why in ((lmc.Journal(path), "it is encrypted: give its key"), (lmc.Journal(path, key=b"x" * 32), "its key is another one")):
        for use in (lambda wrong=wrong: run(wrong, "secret"), wrong.runs):
            with pytest.raises(JournalError, match=why):
                use()
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 2
    lay(path, b"".join(lines[:-1]))  # cut off
    assert run(journal, "secret") == expected


def test_lines_of_an_encrypted_journal_cannot_be_changed_moved_or_left_out(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from zlib import crc32

    journal = lmc.Journal(tmp_path / "j", key=b"k" * 32)
    run(journal)
    first, *lines = (tmp_path / "j").read_bytes().splitlines()
    payloads = [line.partition(b" ")[2] for line in lines]
    flipped = payloads[0][:40] + (b"A" if payloads[0][40:41] != b"A" else b"B") + payloads[0][41:]
    for forged in (payloads[1:], [payloads[1], payloads[0], *payloads[2:]], [flipped, *payloads[1:]]):
        total, made = int(first.split(b" ")[2], 16), [first]
        for payload in forged:  # with checksums that are right, which anybody can compute
            total = crc32(payload, total)
            made.append(b"%08x %s" % (total, payload))
        lay(tmp_path / "j", b"\n".join(made) + b"\n")
        with pytest.raises(JournalError, match="line 2 was changed, or is of another place"):
            run(journal)


def test_a_key_may_come_from_a_pipe_and_has_an_end() -> None:
    read, write = os.pipe()
    os.write(write, b"a passphrase\n")
    os.close(write)
    assert key_of(Path(f"/dev/fd/{read}")) == "a passphrase"
    os.close(read)
    with pytest.raises(UsageError, match="/dev/zero is no key: it has more than 4096 bytes"):
        key_of(Path("/dev/zero"))


def test_a_journal_gets_another_key(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    expected = run(tmp_path / "j")
    lmc.Journal(tmp_path / "j").compact(new_key="first passphrase")
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "first").write_text("first passphrase\n")
    assert "encrypted" in command("show", tmp_path / "j", "--key-file", tmp_path / "first")
    command("compact", tmp_path / "j", "--key-file", tmp_path / "first", "--new-key-file", tmp_path / "key")
    assert "its key is another one" in command("list", tmp_path / "j", "--key-file", tmp_path / "first")
    assert "finished" in command("list", tmp_path / "j", "--key-file", tmp_path / "key")
    assert run(lmc.Journal(tmp_path / "j", key=b"k" * 32)) == expected
    with pytest.raises(JournalError, match="it is not encrypted, and a key= was given"):
        run(tmp_path / "plain")
        lmc.Journal(tmp_path / "plain", key=b"k" * 32).runs()


def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path) -> None:
    for wrong in (b"short", "short", 3):
        with pytest.raises(ParameterError, match="32 random bytes") as found:
            lmc.Journal(tmp_path / "j", key=wrong)  # type: ignore[arg-type]
        assert "short" not in str(found.value)


def test_without_the_package_it_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmc.extras.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"key= of a journal needs cryptography.*\[journals\]"):
        run(lmc.Journal(tmp_path / "j", key=b"k" * 32))


def test_a_journal_that_is_open_is_not_decided_about(tmp_path: Path) -> None:
    in_doubt(tmp_path / "j")
    file, _ = files.opened(tmp_path / "j", None)
    with file, pytest.raises(JournalError, match="is in use by another run"):
        lmc.Journal(tmp_path / "j").retry()
    lmc.Journal(tmp_path / "j").retry()


# -- cancelled while a call goes on -----------------------------------------------------------------------------------------

BEGUN, MAY_END = threading.Event(), threading.Event()


def slow(x: str) -> str:
    CALLS.append(x)
    BEGUN.set()
    assert MAY_END.wait(60)
    return f"slow {x}"


@lmc.function
def works(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    first = slow(q)
    return first, charge(q)


def test_a_call_that_goes_on_when_its_run_is_cancelled_is_in_the_journal(tmp_path: Path) -> None:
    """Its outcome is written when it is there, and nothing else begins; the journal is the run's until then."""
    BEGUN.clear(), MAY_END.clear()
    path = tmp_path / "j"
    program = lmc.compile(works, backend=lmc.Mock())

    async def cancelled() -> None:
        task = asyncio.ensure_future(program.abatch([{"q": "x"}], journal=path))
        await asyncio.to_thread(BEGUN.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(JournalError, match="in use by another run"):
            await program.abatch([{"q": "x"}], journal=path)

    asyncio.run(cancelled())
    status = lambda: lmc.Journal(path).runs()[0].status
    assert status() == "in doubt"  # if the process ended here
    MAY_END.set()
    until = time.monotonic() + 60
    while status() == "in doubt" and time.monotonic() < until:
        time.sleep(0.001)
    assert status() == "cut off" and CALLS == ["x"]
    while True:
        try:
            (state,) = program.batch([{"q": "x"}], journal=path)
            break
        except JournalError:  # it is being closed
            assert time.monotonic() < until
    assert state.ret_value == ("slow x", "charged x") and CALLS == ["x", "x"]
