"""Pages show small pictures, and none of what cannot be shown."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.segments import DOCUMENT, Frames, Image
from lmc.thumbnails import label, thumbnail
from tests.pictures import png


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_a_small_file_is_shown_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    assert thumbnail(Image(png())) == thumbnail(Image(str(tmp_path / "a.png"))) == url(png())


def test_a_large_one_is_made_small() -> None:
    pillow = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    pillow.effect_noise((900, 600), 90).save(buffer, format="PNG")
    shown = thumbnail(Image(buffer.getvalue()))
    assert shown is not None and shown.startswith("data:image/jpeg;base64,") and len(shown) < 64_000
    assert pillow.open(io.BytesIO(base64.b64decode(shown.partition(",")[2]))).size == (256, 171)


def test_of_a_video_its_first_frame_is_shown() -> None:
    pytest.importorskip("av")
    from tests.videos import noise, video

    shown = thumbnail(Image(video(noise(0, 5)), Frames()))
    assert shown is not None and shown.startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize(
    "image", [Image("https://host/a.png"), Image(b"none"), Image("nowhere.png"), Image(b"%PDF-1.4", None, DOCUMENT), Image(b"none", Frames()), Image(3)]
)
def test_what_cannot_be_shown_is_not(image: Any) -> None:
    assert thumbnail(image) is None
    assert label(image).startswith(f"[{image.kind}")


def test_labels_are_by_content() -> None:
    assert label(Image(png())) == label(Image(url(png()))) != label(Image(png(9)))
    assert label(Image("https://host/a.png")) == "[image https://host/a.png]"


def test_a_graph_shows_its_constant_pictures(tmp_path: Path) -> None:
    path = str(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(png())

    @lmc.function
    def look(s: lmc.State, other: bytes) -> None:
        s += lmc.user(lmc.image(path) + lmc.image(other) + "Compare.") + lmc.assistant(lmc.gen("a"))

    page = lmc.compile(look).dump_ir(format="html")
    assert f'image(%c1, &quot;{path}&quot;)<br><img class=thumb alt="image" src="{url(png())}">' in page.replace("<b>image</b>", "image")
    assert page.count("<img") == page.count(f"&quot;{path}&quot;)<br><img"), "what only Python knows has none"
