"""Journals that are opened: those of something else, in use, lost, changed or damaged are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmc
from lmc.durable import files, records
from lmc.durable.groups import first_line, line
from lmc.errors import JournalError, ParameterError
from lmc.json_data import to_bytes
from tests.durable.journaled import CALLS, agent, charge, pays
from tests.durable.resuming import lay
from tests.searching import search


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()


@lmc.function
def small(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)


def _other() -> Any:
    @lmc.function
    def small(s: Any, q: str) -> Any:
        s += q + lmc.gen("a", max_tokens=4)

    return small


@pytest.mark.parametrize("call, message", [
    (lambda p, b: small.run("other", backend=b, journal=p), "other arguments"),
    (lambda p, b: _other().run("q", backend=b, journal=p), "another source"),
    (lambda p, b: pays.run("q", backend=b, journal=p), "the program small, not pays"),
    (lambda p, b: small.run("q", backend=b, journal=p, seed=2), "the seed 1, not 2"),
    (lambda p, b: small.run("q", backend=b, journal=p, temperature=0), "a run with the default sampling parameters, not temperature=0.0"),
    (lambda p, b: small.run("q", backend=lmc.Mock(capabilities=lmc.backend.base.Capabilities("other")), journal=p), "the backend mock, not other"),
    (lambda p, b: lmc.compile(small, aggressive=True)("q", backend=b, journal=p), "compiled with no outputs= or aggressive=, not aggressive=True"),
    (lambda p, b: lmc.compile(small).batch([{"q": "q"}], backend=b, journal=p), "is a directory, and this is a file"),
])  # fmt: skip
def test_a_journal_of_something_else_is_refused(call: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "j"
    small.run("q", backend=lmc.Mock(), journal=path, seed=1)
    before, mock = path.read_bytes(), lmc.Mock()
    with pytest.raises(JournalError, match=message):
        call(path, mock)
    assert path.read_bytes() == before and not mock.call_log


def test_journals_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(JournalError, match="not a journal of lmc"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path / "text")
    (tmp_path / "new").write_text("lmc-journal 5 0 {}\n")
    with pytest.raises(JournalError, match="format 5; this lmc reads format 13"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path / "new")
    with pytest.raises(JournalError, match="there is no folder"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path / "no" / "where")
    with pytest.raises(JournalError, match="is a directory"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for path, said in ((tmp_path / "pipe", "not a regular file"), ("/dev/full", "not a regular file"), ("a\0b", "null"), (tmp_path / ("x" * 300), "too long")):
        with pytest.raises(JournalError, match=rf"test_opening.py:\d+: journal=.*{said}"):
            small.run("q", backend=lmc.Mock(), journal=path)
        with pytest.raises(JournalError, match=r"test_opening.py:\d+: "):
            lmc.compile(small).batch([("q",)], backend=lmc.Mock(), journal=path)
    lmc.compile(small).batch([("q",)], backend=lmc.Mock(), journal=tmp_path / "batch")
    with pytest.raises(JournalError, match="is of a batch, not a run"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path / "batch" / "journal")
    with pytest.raises(ParameterError, match="stream"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path / "j", stream=True)
    with pytest.raises(ParameterError, match="a stream is not journaled"):
        lmc.compile(small).stream("q", backend=lmc.Mock(), journal=tmp_path / "j")
    for what in (7, "", b"j"):
        with pytest.raises(lmc.ArgumentError, match="the path of a file"):
            small.run("q", backend=lmc.Mock(), journal=what)
    source = {"lmc": lmc}
    exec("@lmc.function\ndef made(s): s += lmc.gen('a')", source)
    with pytest.raises(JournalError, match="cannot be journaled"):
        source["made"].run(backend=lmc.Mock(), journal=tmp_path / "made")


def test_the_disk_has_the_names_of_new_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real = files.sync_directory
    monkeypatch.setattr(files, "sync_directory", lambda path: (synced.append(path), real(path)))
    for _ in range(2):
        small.run_batch([{"q": "q"}], backend=lmc.Mock(), journal=tmp_path / "a", seed=1)
        assert synced == [tmp_path, tmp_path / "a"]


@pytest.mark.parametrize(
    "call", [lambda path: small.run("q", backend=lmc.Mock(), journal=path), lambda path: lmc.compile(small).batch([("q",)], backend=lmc.Mock(), journal=path)]
)
def test_no_folder_is_made_for_a_journal(tmp_path: Path, call: Any) -> None:
    """Of a batch, whose journal is a folder, none but that."""
    with pytest.raises(JournalError, match=r"there is no folder \S+a/b; make it \(mkdir -p ") as caught:
        call(tmp_path / "a" / "b" / "c")
    assert caught.value.loc is not None and caught.value.loc.file == __file__ and not (tmp_path / "a").exists()


def test_a_journal_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"

    @lmc.function
    def program(s: Any) -> Any:
        again()

    def again() -> Any:
        small.run("q", backend=lmc.Mock(), journal=path)

    with pytest.raises(JournalError, match="in use by another run"):
        program.run(backend=lmc.Mock(), journal=path)
    script = ("import sys\nfrom pathlib import Path\nfrom lmc.durable.journal import JournalFile\nj = JournalFile.open(Path(sys.argv[1]), {'seed': 1}, "
              "int)\nprint('open', flush=True)\nsys.stdin.read()")
    env = {**os.environ, "PYTHONPATH": str(Path(lmc.__file__).parent.parent)}
    other = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "k")], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdout.readline() == b"open\n"
    with pytest.raises(JournalError, match="in use by another run"):
        small.run("q", backend=lmc.Mock(), journal=tmp_path / "k")
    other.communicate(timeout=60)


@lmc.function
def loses(s: Any, tool: Any) -> Any:
    s += lmc.gen("a", max_tokens=2)
    s["a"]
    tool()
    return s["a"]


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.rename(path.with_name("elsewhere")), lambda path: (path.unlink(), path.write_text("another"))])
def test_a_journal_that_is_gone_ends_the_run(lose: Any, tmp_path: Path) -> None:
    path = tmp_path / "j"
    for n, way in enumerate((loses.run, lmc.compile(loses))):
        with pytest.raises(JournalError, match="deleted, moved or replaced while a run wrote to it; the run cannot continue"):
            way(lambda: lose(path), backend=lmc.Mock(), seed=1, journal=path)
        path.unlink(missing_ok=True)
        assert n or not path.exists()


def test_a_program_may_change_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    loses.run(lambda: os.chdir("below"), backend=lmc.Mock(), seed=1, journal="j")
    assert (tmp_path / "j").exists()


def test_a_changed_byte_is_refused_and_a_cut_is_not(tmp_path: Path) -> None:
    path = tmp_path / "j"
    agent.run("d", backend=lmc.Mock(), seed=3, journal=path)
    data = path.read_bytes()
    for at in range(data.index(b"\n") + 1, data.rindex(b"\n", 0, -1), 31):
        broken = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(JournalError, match="damaged at byte"):
            records.parse(broken, "x")
    cut_off = records.parse(data[:-3], "x")
    assert cut_off is not None and cut_off.dropped


def test_a_damaged_last_group_is_refused_too(tmp_path: Path) -> None:
    """It has the end of its line, so it was whole: what it knows of would be called again."""
    path = tmp_path / "j"
    agent.run("d", backend=lmc.Mock(), seed=3, journal=path)
    data = path.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    for at in (last, last + 4, last + 9, len(data) - 2, len(data) - 1):
        lay(path, data[:at] + b"\0" + data[at + 1 :])
        mock = lmc.Mock()
        with pytest.raises(JournalError, match=rf"damaged at byte {last}, .*truncate -s {last}"):
            agent.run("d", backend=mock, seed=3, journal=path)
        assert not mock.call_log and path.stat().st_size == len(data)
    lay(path, data)
    os.truncate(path, last)  # as the error says
    assert records.read(path).size == last


def test_a_line_that_is_missing_or_moved_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    agent.run("e", backend=lmc.Mock(), seed=3, journal=path)
    first, *lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 3
    for k in range(len(lines) - 1):
        for changed in (lines[:k] + lines[k + 1 :], [*lines[:k], lines[k + 1], lines[k], *lines[k + 2 :]], [*lines[: k + 1], *lines[k:]]):
            with pytest.raises(JournalError, match="damaged at byte"):
                records.parse(first + b"".join(changed), "x")
    without_the_last = records.parse(first + b"".join(lines[:-1]), "x")
    assert without_the_last is not None and not without_the_last.dropped  # as one that was cut off there


@search(12, 80)
@given(st.binary(max_size=60), st.lists(st.lists(st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2)), max_size=8), max_size=3))
def test_any_bytes_are_a_journal_or_refused(noise: bytes, found: list[Any]) -> None:
    head, total = first_line({})
    for data in (noise, head + noise, head + line(to_bytes(found), total)[0], head[: len(noise)]):
        try:
            records.parse(data, "x")
        except JournalError:
            pass


def test_a_program_that_changed_its_mind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "STYLE", "one")
    path = tmp_path / "j"
    styled.run(backend=lmc.Mock(), seed=1, journal=path)
    monkeypatch.setitem(globals(), "STYLE", "two")
    CALLS.clear()
    for way in (styled.run, lmc.compile(styled)):
        with pytest.raises(JournalError, match="asks something else here"):
            way(backend=lmc.Mock(), journal=path)
    assert not CALLS


STYLE = ""


@lmc.function
def styled(s: Any) -> Any:
    try:
        s += STYLE + lmc.gen("a", max_tokens=2)
        s["a"]
    except Exception:  # a program that swallows everything is stopped all the same
        s += "never mind"
    charge("x")
