"""Converted copies are of a content, not of a path, and go with the last file that has it."""

import errno
import json
import logging
import os
import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.model

from lmc.backend.engine.models import cache, sources  # noqa: E402
from lmc.backend.engine.models.config import ModelConfig  # noqa: E402
from lmc.errors import ModelLoadError  # noqa: E402

CONTENT = cache.Converted(ModelConfig("llama", 1, 1, 1, 2, 2, 2, 2, 2), {"w": torch.zeros(3)}, "{}", {}, None)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr("lmc.config.cache_dir", lambda: tmp_path)
    return tmp_path / "models"


@pytest.fixture
def reads(monkeypatch):
    """The sources of which all was read."""
    found, real = [], sources.hashlib.file_digest
    monkeypatch.setattr(sources.hashlib, "file_digest", lambda file, kind: found.append(file.name) or real(file, kind))
    return found


def a_source(place, text="x"):
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)
    return place


def settle(monkeypatch):
    """Put the clock ahead: what was written until now was written a while ago."""
    now = sources.time.time_ns
    monkeypatch.setattr(sources.time, "time_ns", lambda: now() + 10 * sources._TICK)


def stored(source, layout="float32"):
    found = cache.entry(source, layout)
    found.store(CONTENT)
    return found


def copies(folder):
    return sorted(p.name for p in folder.glob("*.safetensors"))


def test_equal_files_share_a_copy_whatever_they_are_called(folder, tmp_path):
    first = stored(a_source(tmp_path / "env1" / "m.gguf"))
    second = cache.entry(a_source(tmp_path / "env2" / f"{'n' * 240}.gguf"), "float32")
    assert second.path == first.path and second.load() is not None
    assert cache.entry(tmp_path / "env1" / "m.gguf", "bfloat16").path != first.path


def test_a_copy_goes_with_the_last_file_of_its_content(folder, tmp_path):
    one, other = a_source(tmp_path / "env1" / "m.gguf"), a_source(tmp_path / "env2" / "m.gguf")
    kept = stored(one)
    cache.entry(other, "float32")
    one.unlink()
    third = stored(a_source(tmp_path / "m.gguf", "another"))
    assert copies(folder) == sorted([kept.path.name, third.path.name])
    other.unlink()
    other.parent.rmdir()
    third.store(CONTENT)
    assert copies(folder) == [third.path.name] and len(list(folder.glob("*.source"))) == 1


def test_a_source_edited_in_place_has_another_copy_and_the_old_one_goes(folder, tmp_path, monkeypatch):
    settle(monkeypatch)
    source = a_source(tmp_path / "m.gguf", "one")
    old, times = stored(source), source.stat()
    source.write_text("two")
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))  # the change hides: it has size and time of before
    newer = cache.entry(source, "float32")
    assert newer.path != old.path and newer.load() is None
    assert copies(folder) == []
    newer.store(CONTENT)
    assert copies(folder) == [newer.path.name]


def test_a_file_is_read_once_unless_it_may_have_changed(folder, tmp_path, reads, monkeypatch):
    source = a_source(tmp_path / "m.gguf")
    stored(source)
    assert len(reads) == 2  # it was written just now, and may change within the same tick of the clock
    settle(monkeypatch)
    stored(source)
    assert len(reads) == 3
    stored(source, "bfloat16")
    assert len(reads) == 3
    source.chmod(0o600)  # what changes its times, as a new link does, does not cost the copy
    assert cache.entry(source, "float32").load() is not None and len(reads) == 4


def test_what_was_changed_while_it_was_read_is_not_kept(folder, tmp_path, caplog):
    source = a_source(tmp_path / "m.gguf")
    found = cache.entry(source, "float32")
    source.write_text("changed")
    with caplog.at_level(logging.WARNING, "lmc"):
        found.store(CONTENT)
    assert "m.gguf: the converted copy cannot be kept (the file was changed while it was read)" in caplog.text
    assert copies(folder) == [] and not list(folder.glob(".*"))


def test_copies_of_older_versions_go_and_nothing_else(folder, tmp_path):
    folder.mkdir()
    digest = "0" * 64
    gone = [
        "SmolLM2-135M-Instruct.Q4_1-float16-packed,-int4-packed-30ebf7fa4970-43d1bf5858c8.safetensors",
        "a\nb-bfloat16-30ebf7fa4970-43d1bf5858c8.safetensors",
        f"{digest}-float32-v4.safetensors",
        f"{digest}-float32-v5.safetensors",
        f"{'1' * 32}.source",
    ]
    kept = ["model.safetensors", "llama-float16.safetensors", "model-00001-of-00002.safetensors", "notes.txt"]
    for name in gone + kept:
        (folder / name).write_text("")
    found = stored(a_source(tmp_path / "m.gguf"))
    assert {p.name for p in folder.iterdir() if p.suffix != ".source"} == {*kept, found.path.name}
    assert not (folder / gone[-1]).exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"digest": "../" * 21 + "x"},
        {"digest": 3},
        {"path": "/\0"},
        {"size": True},
        {"seen": "9"},
        {"seen": 1e400},
        {"more": 1},
        b"",
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_damaged_reference_is_as_none(folder, tmp_path, damage, monkeypatch):
    settle(monkeypatch)
    source = a_source(tmp_path / "m.gguf")
    found = stored(source)
    [reference] = folder.glob("*.source")
    sound = reference.read_bytes()
    reference.write_bytes(damage if isinstance(damage, bytes) else json.dumps(json.loads(sound) | damage).encode())
    assert cache.entry(source, "float32") == found and found.load() is not None
    assert reference.read_bytes() != sound and json.loads(reference.read_bytes())["digest"] == found.digest
    reference.write_bytes(damage if isinstance(damage, bytes) else json.dumps(json.loads(sound) | damage).encode())
    other = stored(a_source(tmp_path / "n.gguf", "another"))
    assert copies(folder) == [other.path.name]  # nothing says of what the first one is


def test_a_source_that_cannot_be_looked_at_keeps_its_copy(folder, tmp_path, monkeypatch):
    source = a_source(tmp_path / "drive" / "m.gguf")
    found, real = stored(source), os.stat

    def refused(path, *rest, **options):
        if str(path) == str(source):
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path, *rest, **options)

    monkeypatch.setattr(sources.os, "stat", refused)
    other = stored(a_source(tmp_path / "m.gguf", "another"))
    assert copies(folder) == sorted([found.path.name, other.path.name])


def test_references_that_cannot_be_read_keep_all_copies(folder, tmp_path, monkeypatch, caplog):
    source = a_source(tmp_path / "gone.gguf")
    found = stored(source)
    source.unlink()
    [reference] = folder.glob("*.source")
    reference.unlink()
    reference.mkdir()  # as unreadable to root as to others
    with caplog.at_level(logging.WARNING, "lmc"):
        other = stored(a_source(tmp_path / "m.gguf", "another"))
    assert "copies of models that are gone cannot be removed" in caplog.text
    assert copies(folder) == sorted([found.path.name, other.path.name])


def test_a_drive_that_hangs_does_not_hold_up_a_model(folder, tmp_path, monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr(sources.Reference, "is_needed", lambda self: hangs.wait() or True)
    monkeypatch.setattr(sources, "_PATIENCE", 0)
    found = stored(a_source(tmp_path / "m.gguf"))
    assert found.load() is not None
    hangs.set()
    for thread in threading.enumerate():
        if thread.name == "lmc-sweep":
            thread.join()


def test_a_folder_that_cannot_be_written_is_no_error(folder, tmp_path, monkeypatch, caplog):
    source = a_source(tmp_path / "m.gguf")
    found = stored(source)
    source.touch()

    def full(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(sources, "replacing", full)
    with caplog.at_level(logging.WARNING, "lmc"):
        assert cache.entry(source, "float32").load() is not None
    assert "cannot be remembered" in caplog.text and "the next load reads all of it again" in caplog.text
    assert copies(folder) == [found.path.name]


def test_a_source_that_cannot_be_read_is_refused_by_name(folder, tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sources.hashlib, "file_digest", broken)
    with pytest.raises(ModelLoadError, match=r"m\.gguf: cannot be read: Input/output error"):
        cache.entry(a_source(tmp_path / "m.gguf"), "float32")
