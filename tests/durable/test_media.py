"""Pictures and videos in journals: by hash, or with their files; and what a replay shows of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.durable import steps, viewer
from lmc.frontend import live
from lmc.images import digest
from lmc.segments import Image
from tests.pictures import png

DARK, LIGHT = png(0), png(200)


def judge(prompt: str, ask: Any, images: list[bytes | str]) -> str:
    return " ".join({DARK: "dark", LIGHT: "light"}[image] for image in images)  # type: ignore[index]


@lmc.function
def look(s: lmc.State, path: str, other: bytes) -> str:
    s += lmc.user("Compare " + lmc.image(path) + " with ")
    s += lmc.user(lmc.image(other)) + lmc.assistant(lmc.gen("a", max_tokens=20))
    s += lmc.user(lmc.image(Path(path)) + "Again.") + lmc.assistant(lmc.gen("b", max_tokens=20))
    return s["a"] + ", " + s["b"]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    (tmp_path / "a.png").write_bytes(DARK)
    return tmp_path / "a.png"


@pytest.mark.parametrize("compiled", (False, True))
def test_with_their_files_a_run_goes_on_where_they_are_gone(picture: Path, tmp_path: Path, compiled: bool) -> None:
    journal = lmc.Journal(tmp_path / "j", with_media=True)
    call: Any = lmc.compile(look) if compiled else look.run
    options: dict[str, Any] = {"journal": journal, "seed": 1}
    assert call(str(picture), LIGHT, backend=lmc.Mock(judge), **options).ret_value == "dark light, dark light dark"
    picture.unlink()
    again = lmc.Mock(lambda *_: pytest.fail("known"))
    assert call(str(picture), LIGHT, backend=again, **options).ret_value == "dark light, dark light dark"
    assert not again.call_log


def test_without_them_a_changed_file_is_noticed(picture: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"journal": tmp_path / "j", "backend": lmc.Mock(judge), "seed": 1}
    look.run(str(picture), LIGHT, **options).sync()
    assert look.run(str(picture), LIGHT, **options).ret_value == "dark light, dark light dark"
    picture.write_bytes(LIGHT)
    with pytest.raises(lmc.JournalError, match=r"has changed: .* a file"):
        look.run(str(picture), LIGHT, **options).sync()


def test_each_is_read_once_where_it_is_appended(picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(live, "bytes_of_file", lambda path, *_: read.append(str(path)) or DARK)
    batch = look.run_batch([{"path": str(picture), "other": LIGHT}] * 2, journal=lmc.Journal(tmp_path / "j", with_media=True), backend=lmc.Mock(judge))
    assert [state.ret_value for state in batch] == ["dark light, dark light dark"] * 2
    assert read == [str(picture)] * 4


def test_it_is_in_the_journal_or_not(picture: Path, tmp_path: Path) -> None:
    look.run(str(picture), LIGHT, journal=tmp_path / "j", backend=lmc.Mock(judge), seed=1).sync()
    with pytest.raises(lmc.JournalError, match="begun without pictures in it"):
        look.run(str(picture), LIGHT, journal=lmc.Journal(tmp_path / "j", with_media=True), backend=lmc.Mock(judge), seed=1)


def test_a_file_that_is_none_is_an_error_at_its_line(tmp_path: Path) -> None:
    for with_media in (False, True):
        with pytest.raises(lmc.LmcError, match=r"test_media.py:\d+: image\('nowhere.png'\): No such file"):
            look.run("nowhere.png", LIGHT, journal=lmc.Journal(tmp_path / f"j{with_media}", with_media=with_media), backend=lmc.Mock(judge)).sync()


def test_sealed_with_the_journal(picture: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    big = png(7, 400, 300)
    picture.write_bytes(big)
    for key in (None, "a long passphrase"):
        path = tmp_path / f"j{key is None}"
        look.run(str(picture), LIGHT, journal=lmc.Journal(path, key=key, with_media=True), backend=lmc.Mock()).sync()
        assert (b"file_of" in path.read_bytes()) == (key is None)


def test_a_replay_names_and_shows_them(picture: Path, tmp_path: Path) -> None:
    look.run(str(picture), LIGHT, journal=lmc.Journal(tmp_path / "j", with_media=True), backend=lmc.Mock(judge)).sync()
    picture.unlink()
    (story,) = viewer.replayed(tmp_path / "j", look, lmc.Mock())
    assert story.whole
    asked = [step for step in story.steps if step.kind == "gen"]
    assert "Compare [image " in asked[0].prompt and len(asked[0].pictures) == 2 and len(asked[1].pictures) == 1
    assert steps.to_html([story], "j").count("<img class=thumb alt=picture src=\"data:image/png;base64,") == 3
    assert "[image " in steps.to_text([story])


def test_a_replay_tells_of_a_file_what_it_is_and_not_its_bytes(picture: Path, tmp_path: Path) -> None:
    picture.write_bytes(data := png(7, 400, 300))
    look.run(str(picture), LIGHT, journal=lmc.Journal(tmp_path / "j", with_media=True), backend=lmc.Mock()).sync()
    told = f"{len(data)} bytes, {digest(Image(data)).hex()[:8]}"
    for stories in (steps.listed(tmp_path / "j"), viewer.replayed(tmp_path / "j", look, lmc.Mock())):
        assert [step.result for step in stories[0].steps if step.kind == "effect"] == [told] * 2
