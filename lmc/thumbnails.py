"""Thumbnails of pictures and videos in prompts: a small picture as a data URL, and a line of text. Neither ever raises
or fetches."""

from __future__ import annotations

import base64
import io
from functools import lru_cache
from importlib.util import find_spec

from lmc.errors import LmcError
from lmc.images import decoded, digest, encoded, is_remote
from lmc.images import read as read_image
from lmc.segments import DOCUMENT, Image
from lmc.videos import Film
from lmc.videos import read as read_video

_SIDE = 256  # pixels
_SMALL = 64 << 10  # largest file in bytes that is shown unscaled


def label(image: Image) -> str:
    """Return a picture as text: `[image 1f0c9a3b]`, by the first digits of its hash; one on the web by its address."""
    if is_remote(image.source):
        return f"[{image.kind} {image.source}]"
    try:
        return f"[{image.kind} {digest(_read(image)).hex()[:8]}]"
    except LmcError:
        return f"[{image.kind}]"


def thumbnail(image: Image) -> str | None:
    """Return a data URL of at most 256 × 256 pixels, or of a small file itself; None for what cannot be shown:
    documents, web addresses, damaged files, and large files without Pillow."""
    if is_remote(image.source) or image.detail == DOCUMENT:
        return None
    try:
        return _thumbnail(_read(image))
    except LmcError:
        return None


def _read(image: Image) -> Image:
    return read_image(image) if image.frames is None else read_video(image)


@lru_cache(maxsize=256)
def _thumbnail(image: Image) -> str | None:
    if image.frames is None and len(image.source) <= _SMALL:
        mime, data = encoded(image)
        return _url(mime, data)
    if find_spec("PIL") is None or (image.frames is not None and find_spec("av") is None):
        return None
    picture = decoded(image) if image.frames is None else next(Film(image).at([0]))
    picture.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return _url("image/jpeg", buffer.getvalue())


def _url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"
