"""Automata on disk: the same again, damage noticed, writers that do not disturb each other, a bounded folder."""

from __future__ import annotations

import logging
import multiprocessing
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from lmc.config import config, reset
from lmc.fsm import store as store_module
from lmc.fsm.regex import compile_regex
from lmc.fsm.store import Store, default_store
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from tests.fsm.patterns import CHARACTER, HAND_WRITTEN, NAMES
from tests.fsm.small_vocabulary import small


def built(pattern: str, rows: int = 0) -> TokenAutomaton:
    made = TokenAutomaton(compile_regex(pattern), small()[0])
    for state in range(min(rows, made.dfa.states)):
        made.mask(state)
    return made


def saved(folder: Path, pattern: str, rows: int = 0, **options) -> Store:
    store = Store(folder, **options)
    store.save(pattern, small()[0], built(pattern, rows).tables())
    return store


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.parametrize("pattern", [*HAND_WRITTEN[::5], CHARACTER])
def test_what_comes_back_is_what_was_kept(tmp_path, pattern):
    first = built(pattern, rows=20)
    store = Store(tmp_path)
    store.save(pattern, first.vocabulary, first.tables())
    tables = store.load(pattern, first.vocabulary)
    assert tables is not None
    again = TokenAutomaton.restored(tables, first.vocabulary)
    assert np.array_equal(again.dfa.table, first.dfa.table) and np.array_equal(again.dfa.final, first.dfa.final)
    for state in range(min(20, first.dfa.states)):
        assert np.array_equal(again.mask(state), first.mask(state)) and again.is_done(state) == first.is_done(state)
    assert again.rows_built == 0


def test_rows_that_were_not_kept_are_built(tmp_path):
    store = saved(tmp_path, CHARACTER)
    again = TokenAutomaton.restored(store.load(CHARACTER, small()[0]), small()[0])
    assert np.array_equal(again.mask(5), built(CHARACTER).mask(5)) and again.rows_built == 1


def test_another_source_vocabulary_code_or_unicode_is_another_file(tmp_path, monkeypatch):
    store = saved(tmp_path, "abc")
    assert store.load("abd", small()[0]) is None
    assert store.load("abc", Vocabulary([b"</s>", b"a", b"b", b"c"], [0])) is None
    with monkeypatch.context() as other:
        other.setattr("unicodedata.unidata_version", "1.0")
        assert store.load("abc", small()[0]) is None
    assert store.load("abc", small()[0]) is not None
    monkeypatch.setattr(store_module, "code_digest", lambda: "other")
    assert store.load("abc", small()[0]) is None


def test_digests_tell_vocabularies_apart():
    kinds = [
        Vocabulary([b"</s>", b"a", b"bc"], [0]),
        Vocabulary([b"</s>", b"ab", b"c"], [0]),
        Vocabulary([b"</s>", b"a", b"bc"], [0], size=8),
        Vocabulary([b"</s>", b"a", b"bc"], [0], special=[2]),
        Vocabulary([b"</s>", b"a", b"bc"], [0, 2]),
    ]
    assert len({v.digest for v in kinds}) == len(kinds)
    assert Vocabulary([b"x", b"a", b"bc"], [0]).digest == kinds[0].digest  # EOS stands for no text


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other", "text", "dtype", "shape"])
def test_a_damaged_file_is_reported_once_and_treated_as_absent(tmp_path, damage, caplog):
    store = saved(tmp_path, CHARACTER, rows=3)
    [path] = files(tmp_path)
    data = path.read_bytes()
    if damage == "other":
        path.unlink()
        saved(tmp_path, "abc")
        files(tmp_path)[0].rename(path)
    else:
        middle = len(data) * 3 // 4
        flipped = data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]
        end = 8 + int.from_bytes(data[:8], "little")
        header = data[8:end].replace(b'"U8"', b'"F8_E5M2"')  # which numpy lacks
        typed = len(header).to_bytes(8, "little") + header + data[end:]
        shaped = data.replace(b"[3,13]", b"[13,3]")
        assert typed != data and shaped != data
        path.write_bytes(
            {"cut": data[: len(data) // 2], "flipped": flipped, "empty": b"", "text": b"hello " * 9, "dtype": typed, "shape": shaped}[damage]
        )
    with caplog.at_level(logging.WARNING):
        assert store.load(CHARACTER, small()[0]) is None
    assert len(caplog.records) == 1 and "compiling it again" in caplog.text
    store.save(CHARACTER, small()[0], built(CHARACTER).tables())
    assert store.load(CHARACTER, small()[0]) is not None


def _save_often(folder: str, pattern: str) -> None:
    for _ in range(10):
        saved(Path(folder), pattern, rows=5)


def test_writers_and_readers_do_not_disturb_each_other(tmp_path, caplog):
    spawn = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    writers = [spawn.Process(target=_save_often, args=(str(tmp_path), "[a-z]{1,30}")) for _ in range(2)]
    for writer in writers:
        writer.start()
    store, found = Store(tmp_path), 0
    while any(writer.is_alive() for writer in writers):
        found += store.load("[a-z]{1,30}", small()[0]) is not None
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert store.load("[a-z]{1,30}", small()[0]) is not None
    assert not caplog.records and len(files(tmp_path)) == 1


def test_the_folder_is_bounded_and_the_least_recently_used_goes(tmp_path):
    sizes = []
    for i, pattern in enumerate(("aa", "bb", "cc")):
        store = saved(tmp_path, pattern)
        [path] = [p for p in files(tmp_path) if p.stat().st_mtime > 1e9]
        sizes.append(path.stat().st_size)
        os.utime(path, (1000 + i, 1000 + i))
    store = Store(tmp_path, limit=sum(sizes))
    assert store.load("aa", small()[0]) is not None  # now it is used last
    store.save("dd", small()[0], built("dd").tables())
    there = [pattern for pattern in ("aa", "bb", "cc", "dd") if store.load(pattern, small()[0]) is not None]
    assert there == ["aa", "cc", "dd"]


def test_one_that_is_larger_than_the_folder_may_be_stays_alone(tmp_path):
    saved(tmp_path, "abc")
    store = saved(tmp_path, NAMES, limit=10)
    assert len(files(tmp_path)) == 1 and store.load(NAMES, small()[0]) is not None


def test_without_a_cache_directory_there_is_one_log_line(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    config(cache_dir=blocked)
    try:
        assert default_store() is None
    finally:
        reset()
    assert len(caplog.records) == 1 and "LMC_CACHE_DIR" in caplog.text


def test_a_folder_that_cannot_be_written_is_one_log_line(tmp_path, caplog):
    store = Store(tmp_path / "gone")
    for source in ("abc", "abcd"):
        store.save(source, small()[0], built(source).tables())
    assert len(caplog.records) == 1 and "cannot be kept" in caplog.text and "LMC_CACHE_DIR" in caplog.text


def test_another_user_of_the_machine_can_use_what_is_stored(tmp_path, monkeypatch):
    store = saved(tmp_path, "abc")
    (path,) = tmp_path.iterdir()
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)

    def not_the_owner(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", not_the_owner)
    assert store.load("abc", small()[0]) is not None
