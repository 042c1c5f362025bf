"""`video(…)`: the values it takes, the frames it makes of them, and those it refuses at the user's line."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.errors import LmcError, Loc
from lmc.images import digest
from lmc.segments import Frames, Image
from lmc.videos import Film, _lenient, kind_of, read

LOC = Loc("prog.py", 3, 1)


@pytest.fixture(scope="module")
def clip() -> bytes:
    """25 frames, ten a second."""
    pytest.importorskip("av")
    from tests.videos import noise, video

    return video(noise(0, 25))


def shown(source: Any, num_frames: int | None = None, fps: float | None = None) -> Image:
    return Image(source, Frames(num_frames, fps), loc=LOC)


def test_files_bytes_and_data_urls_are_one_video(clip: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(clip)
    url = "data:video/mp4;base64," + base64.b64encode(clip).decode()
    sources = [tmp_path / "a.mp4", str(tmp_path / "a.mp4"), clip, bytearray(clip), url]
    assert {read(shown(source)).source for source in sources} == {clip}
    assert len({digest(read(shown(source, 4))) for source in sources}) == 1
    assert len({digest(read(Image(clip, Frames(*how)))) for how in ((4, None), (5, None), (None, 2.0), (None, None))}) == 4


@pytest.mark.parametrize(
    "kind, codec", [("mp4", "mpeg4"), ("webm", "libvpx-vp9"), ("avi", "mpeg4"), ("gif", "gif"), ("mpegts", "libx264"), ("matroska", "ffv1"), ("flv", "flv")]
)
def test_formats(kind: str, codec: str) -> None:
    pytest.importorskip("av")
    import numpy as np

    from tests.videos import noise, video

    frames = noise(0, 25)
    film = Film(shown(video(frames, kind=kind, codec=codec)))
    assert (film.count, film.rate, film.seconds) == (25, 10, 2.5)
    for index, picture in zip((0, 7, 24), film.at([0, 7, 24]), strict=True):
        off = [np.abs(np.asarray(picture).astype(int) - frame).mean() for frame in frames]
        assert off[index] == min(off) < (1 if codec == "ffv1" else 20)


def test_frames_may_be_asked_for_twice(clip: bytes) -> None:
    first, again, last = Film(shown(clip)).at([3, 3, 24])
    assert first.tobytes() == again.tobytes() != last.tobytes()


def test_what_was_filmed_upright_is_upright(clip: bytes) -> None:
    def matrix(*rows: float) -> bytes:
        return struct.pack(">9i", *(int(n * (1 << 30 if i % 3 == 2 else 1 << 16)) for i, n in enumerate(rows)))

    same, turned = matrix(1, 0, 0, 0, 1, 0, 0, 0, 1), matrix(0, 1, 0, -1, 0, 0, 0, 0, 1)
    at = clip.index(same, clip.index(b"tkhd"))
    (plain,), (upright,) = (tuple(Film(shown(data)).at([0])) for data in (clip, clip[:at] + turned + clip[at + len(same) :]))
    assert upright.size == plain.size[::-1]
    assert upright.tobytes() == plain.rotate(-90, expand=True).tobytes()


@pytest.mark.parametrize(("version", "option"), [("14.0.1", {"metadata_errors": "replace"}), ("18.1.0", {"metadata_errors": "replace"}), ("19.0.2", {})])
def test_titles_in_any_encoding_are_asked_of_each_version_as_it_knows_it(version: str, option: dict[str, str]) -> None:
    assert _lenient(version) == option


def test_lists_of_other_files_are_no_videos() -> None:
    for text in ("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "ffconcat version 1.0\nfile /etc/passwd\n", "<?xml version='1.0'?><MPD/>"):
        assert kind_of(text.encode()) is None


def test_a_video_that_is_torn_off_is_damaged(clip: bytes) -> None:
    for end in (len(clip) - 100, len(clip) // 2, 100, 30):
        with pytest.raises(lmc.ParameterError, match=r"prog.py:3: video\(…\): the file is damaged"):
            read(shown(clip[:end]))
    middle = clip.index(b"mdat") + 4
    with pytest.raises(lmc.ParameterError, match="damaged"):
        film = Film(shown(clip[:middle] + bytes(9000) + clip[middle + 9000 :]))
        list(film.at(range(film.count)))


def test_a_codec_that_nobody_knows_is_an_error_at_the_line(clip: bytes) -> None:
    assert clip.count(b"mp4v") == clip.count(b"esds") == 1
    with pytest.raises(lmc.ParameterError, match=r"prog.py:3: video\(…\): the file is damaged, or of a codec that FFmpeg does not know"):
        read(shown(clip.replace(b"mp4v", b"zzzz").replace(b"esds", b"free")))


def test_later_frames_that_are_far_larger_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    from tests.videos import noise, video

    small, large = (video(noise(1, 6, width, 48), rate=25, kind="mpegts", codec="mpeg2video") for width in (64, 640))
    assert {picture.size for picture in Film(shown(small + large)).at(range(8))} == {(64, 48), (640, 48)}
    monkeypatch.setattr("lmc.videos.MOST_PIXELS", 64 * 48 * 4)
    with pytest.raises(lmc.ParameterError, match=r"prog.py:3: video\(…\): the file is damaged: Invalid argument"):
        list(Film(shown(small + large)).at(range(8)))


def test_sound_alone_is_no_video() -> None:
    av = pytest.importorskip("av")
    import io

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame(format="s16", layout="stereo", samples=1024)
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(lmc.ParameterError, match="no pictures in the file"):
        read(shown(buffer.getvalue()))


@pytest.mark.parametrize(
    ("source", "options", "why"),
    [
        (b"", {}, "the file is empty"),
        (b"no video", {}, "not an MP4, WebM"),
        ("nowhere.mp4", {}, "No such file"),
        ("https://host/a.mp4", {}, "no backend fetches videos"),
        ("data:image/png;base64,AAAA", {}, "not a video's data URL"),
        (3, {}, "not int"),
        ([b""], {}, "append single frames as images"),
        (b"", {"num_frames": 0}, "must be at least 1"),
        (b"", {"num_frames": "3"}, "a whole number"),
        (b"", {"fps": 0}, "at least 0.001"),
        (b"", {"fps": float("nan")}, "at least 0.001"),
        (b"", {"num_frames": 3, "fps": 1}, "not both"),
    ],
)
def test_what_is_no_video_is_an_error_at_its_line(source: Any, options: dict[str, Any], why: str) -> None:
    mock = lmc.Mock()

    @lmc.function
    def look(s: lmc.State) -> None:
        s += lmc.user("Look: " + lmc.video(source, **options))  # here
        s += lmc.assistant(lmc.gen("a"))

    line = Path(__file__).read_text().partition("# here")[0].count("\n") + 1
    for run in (look.run, lmc.compile(look)):
        with pytest.raises(LmcError, match=why) as caught:
            run(backend=mock).sync()
        assert caught.value.loc is not None and caught.value.loc.line == line
    assert not mock.call_log, "refused before the model was asked"


def test_more_frames_than_there_are(clip: bytes) -> None:
    with pytest.raises(lmc.ParameterError, match=r"prog.py:3: video\(num_frames=26\): the video has 25 frames"):
        read(shown(clip, 26))


def test_answers_of_a_mock_may_depend_on_videos(clip: bytes) -> None:
    def judge(prompt: str, ask: Any, images: list[bytes | str]) -> str:
        return "a film" if images == [clip] else "no film"

    @lmc.function
    def look(s: lmc.State, source: Any, num_frames: Any) -> list[str]:
        s += lmc.user(lmc.video(source, num_frames) + "What happens?")
        forks = s.fork(2)
        for fork in forks:
            fork += lmc.assistant(lmc.gen("a"))
        return [fork["a"] for fork in forks]

    for run in (look.run, lmc.compile(look)):
        mock = lmc.Mock(judge)
        assert run(clip, 3, backend=mock).ret_value == ["a film"] * 2
        assert mock.call_log[0].images == [clip]
    plain = lmc.Mock()
    answers = {tuple(look.run(clip, n, backend=plain).ret_value) for n in (3, 4, None)}
    assert len(answers) == 3, "the frames count, too"
    assert "video(" in lmc.compile(look).dump_ir()


def test_targets_of_images_alone_refuse_videos() -> None:
    from dataclasses import replace

    from lmc.backend.mock import CAPABILITIES

    @lmc.function
    def look(s: lmc.State) -> None:
        s += lmc.user(lmc.video(b"", 3)) + lmc.assistant(lmc.gen("a"))

    for able, what in (
        (replace(CAPABILITIES, videos=False), "append some of its frames"),
        (replace(CAPABILITIES, images=False, videos=False), "use a vision-language model"),
    ):
        with pytest.raises(lmc.UnsupportedOpError, match=f"does not support video input: {what}"):
            look.run(backend=lmc.Mock(capabilities=able)).sync()
