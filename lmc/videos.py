"""Videos: the argument of `video(…)` is read once, at the user's line; a vision model picks frames of it, in its own
way.

    path | bytes | data URL ──read──►  Image(bytes of an MP4, WebM, … file, Frames)
    an encoded file  ──Film──►  how many frames, how fast; some of them as RGB pixels, upright

Which demuxer reads a file is decided here, by the file's first bytes: playlists and lists of files, which name other files and
addresses, are no videos. Whether frames can be decoded is known only where PyAV is installed (the extra `video`).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.errors import ArgumentError, Loc, ParameterError
from lmc.extras import require
from lmc.images import Checked, bytes_of_file, bytes_of_url, check_size, is_remote
from lmc.segments import Image

if TYPE_CHECKING:
    import os

    from PIL.Image import Image as Pillow

MOST_BYTES = 512 << 20
"""The longest file."""
MOST_PIXELS = 36 << 20
"""Width times height of the largest frame: 8K."""
MOST_FRAMES = 1 << 20
"""Frames of the longest video: nine hours, 30 frames a second."""

_SOME = "an MP4, WebM, AVI, GIF or other video file"
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")


def kind_of(data: bytes) -> str | None:
    """Return FFmpeg's name of the format that a file's first bytes indicate."""
    if data[4:8] in _BOXES:
        return "mov"
    if data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        return "avi"
    if len(data) > 188 and data[0] == data[188] == 0x47:
        return "mpegts"
    starts = {b"\x1a\x45\xdf\xa3": "matroska", b"GIF8": "gif", b"OggS": "ogg", b"FLV\x01": "flv", b"\x00\x00\x01\xba": "mpeg"}
    return next((kind for start, kind in starts.items() if data.startswith(start)), None)


def read(video: Image) -> Image:
    """Return the video as an encoded file. Raises at `video.loc`."""
    assert video.frames is not None, "no video"
    if isinstance(video.source, Checked):
        return video
    found = Image(Checked(_encoded(video.source, video.loc)), video.frames, video.detail, video.loc)
    _check_file(found.source, found.loc)
    if find_spec("av") is not None:
        next(Film(found).at([0]))
    return found


def _encoded(source: Any, loc: Loc | None) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if is_remote(source):
        raise ParameterError("video(web address): no backend fetches videos; download it, and give the path or the bytes", loc=loc)
    if isinstance(source, str) and source[:5].lower() == "data:":
        return bytes_of_url(source, "video", loc)
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        path: str | os.PathLike[str] = source
        return bytes_of_file(Path(path), "video", MOST_BYTES, loc)
    raise ArgumentError(f"video() takes a path, bytes or a data URL, not {type(source).__name__}; append single frames as images", loc=loc)


def _check_file(data: bytes, loc: Loc | None) -> None:
    check_size(len(data), "video", MOST_BYTES, loc)
    if kind_of(data) is None:
        raise ParameterError(f"video(…): the file is {'empty' if not data else f'not {_SOME}'}", loc=loc)


def data_url(video: Image) -> str:
    """Return a video's file as `data:video/…`."""
    return f"data:video/{kind_of(read(video).source)};base64,{base64.b64encode(read(video).source).decode()}"


class Film:
    """A decodable video.

    count          its frames
    rate           of them a second
    width, height  of a frame, in pixels, as it is stored
    """

    def __init__(self, video: Image) -> None:
        """Raises ParameterError at the video's line for a file that is not a video or is damaged; MissingPackageError
        without PyAV."""
        require("video(…)", "video")
        self._data, self._loc = video.source if isinstance(video.source, bytes) else _encoded(video.source, video.loc), video.loc
        _check_file(self._data, self._loc)
        with self._opened() as container:
            (stream,) = container.streams.video[:1] or (None,)
            if stream is None:
                raise ParameterError("video(…): there are no pictures in the file", loc=self._loc)
            if stream.codec_context is None:
                raise ParameterError("video(…): the file is damaged, or of a codec that FFmpeg does not know", loc=self._loc)
            self.width, self.height = width, height = stream.codec_context.width, stream.codec_context.height
            if width * height > MOST_PIXELS:
                raise ParameterError(
                    f"video(…): {width} × {height} pixels are {width * height / 1e6:.0f} million, and the limit is {MOST_PIXELS / 1e6:.0f}; make it smaller",
                    loc=self._loc,
                )
            rate = float(stream.average_rate or stream.guessed_rate or 0)
            declared, seconds = stream.frames, float(stream.duration * stream.time_base) if stream.duration else 0.0
            self.count = sum(1 for packet in container.demux(stream) if packet.size and not packet.is_discard)
        if not self.count or self.count < declared - max(1, declared // 100):  # containers may count one that no decoder gives
            raise ParameterError(f"video(…): the file is damaged: {self.count} of {declared or 'its'} frames are in it", loc=self._loc)
        if self.count > MOST_FRAMES:
            raise ParameterError(f"video(…): {self.count} frames, and the limit is {MOST_FRAMES}; cut it", loc=self._loc)
        if video.frames is not None and (wanted := video.frames.num_frames or 0) > self.count:
            raise ParameterError(f"video(num_frames={wanted}): the video has {self.count} frame{'s' * (self.count > 1)}", loc=self._loc)
        self.rate = rate or (self.count / seconds if seconds else 24.0)  # a file of one frame may declare neither

    @property
    def seconds(self) -> float:
        return self.count / self.rate

    def at(self, indices: Sequence[int]) -> Iterator[Pillow]:
        """Return frames by their indices, which ascend, as RGB pixels."""
        wanted = iter(indices)
        index = next(wanted, None)
        with self._opened() as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            stream.codec_context.options = {"max_pixels": str(MOST_PIXELS)}  # later frames may be larger than the first
            decoded = -1
            for decoded, frame in enumerate(container.decode(stream)):
                while index == decoded:
                    yield _upright(frame)
                    index = next(wanted, None)
                if index is None:
                    return
        if index is not None:
            raise ParameterError(f"video(…): the file is damaged: {decoded + 1} of {self.count} frames can be decoded", loc=self._loc)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        import av
        from av.error import FFmpegError

        try:
            with av.open(io.BytesIO(self._data), format=kind_of(self._data), **_lenient(av.__version__)) as container:
                yield container
        except ParameterError:
            raise
        except (FFmpegError, ValueError, OverflowError) as error:
            raise ParameterError(f"video(…): the file is damaged: {getattr(error, 'strerror', None) or error}", loc=self._loc) from error


def _lenient(version: str) -> dict[str, Any]:
    """Return PyAV's option to read files whose titles are not in UTF-8; from 19 on it does so without one."""
    return {"metadata_errors": "replace"} if int(version.split(".")[0]) < 19 else {}


def _upright(frame: Any) -> Pillow:
    picture = frame.to_image()
    return picture.rotate(frame.rotation, expand=True) if frame.rotation else picture
