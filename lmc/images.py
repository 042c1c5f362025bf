"""Pictures: the argument of `image(…)` is read once, at the user's line, and is an encoded file from then on.

    path | bytes | data URL | PIL image | array | tensor  ──read──►  Image(bytes of PNG, JPEG, GIF or WebP)
                                              web address ─────────►  itself: an API fetches it, an engine refuses it
    an encoded file  ──decoded──►  RGB pixels, turned as its EXIF orientation says

A picture that no model should be given (damaged, animated, too large, of an uncommon mode) is one error here. Whether a
file's pixels are sound is known only where Pillow is installed (the extra `images`); without it the file's beginning is
looked at.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote_to_bytes, urlsplit

from lmc.errors import ArgumentError, Loc, ParameterError, ProgramError, UnsupportedOpError
from lmc.extras import require
from lmc.segments import DOCUMENT, Image
from lmc.warning_filters import ignored

if TYPE_CHECKING:
    from PIL.Image import Image as Pillow

MOST_PIXELS = 64 << 20
"""Width times height of the largest picture that is decoded; 192 MiB as RGB."""
MOST_BYTES = 64 << 20
"""The longest file."""
MOST_OF_DOCUMENT = 32 << 20
"""The longest PDF."""
_LONG_NAME = 1000
DETAILS = ("auto", "low", "high")

SERVED_HOSTS: ContextVar[Collection[str] | None] = ContextVar("SERVED_HOSTS", default=None)
"""While `lmc serve` runs a program for a client: the hosts that pictures may be fetched from. A string may be the
client's there, so it names no file."""

_KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}
_MODES = ("RGB", "RGBA", "RGBX", "L", "LA", "La", "RGBa", "P", "PA", "1")
_PDF = "application/pdf"
_DATA_URLS = {
    what: re.compile(rf"data:(?:{kinds})(?:;[\w=.+-]+)*;base64,", re.ASCII | re.IGNORECASE)
    for what, kinds in (("image", r"image/[\w.+-]+|application/pdf"), ("video", r"video/[\w.+-]+|image/gif"))
}


def is_remote(source: Any) -> bool:
    """Return whether a picture is given by a web address."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def is_path(source: Any) -> bool:
    """Return whether a picture or a video is given by a file name."""
    return isinstance(source, os.PathLike) or (isinstance(source, str) and not is_remote(source) and source[:5].lower() != "data:")


def is_named(url: str, hosts: Collection[str]) -> bool:
    """Return whether the host of a web address is among `hosts`, with its port if it has one. Raises ValueError for
    what is no address."""
    parts = urlsplit(url)
    return parts.netloc.lower() in hosts and parts.username is None


def check_source(image: Image) -> None:
    """Refuse what a client of `lmc serve` must not choose: a file of this machine, and the address of a host that the
    operator has not named."""
    hosts, source = SERVED_HOSTS.get(), image.source
    if hosts is None or not isinstance(source, str) or not (is_path(source) or is_remote(source)):
        return
    try:
        if is_remote(source) and is_named(source, hosts):
            return
    except ValueError:
        pass
    what = (
        "an address is of a host named by --allow-remote-media"
        if is_remote(source)
        else "a string is a data URL, and a file of the program's own a pathlib.Path"
    )
    raise ParameterError(f"{image.kind}({source[:40]!r}): in a program that is served, {what}", loc=image.loc)


def read(image: Image) -> Image:
    """Return the picture as an encoded file; web addresses and videos unchanged. Raises at `image.loc`."""
    if image.frames is not None or is_remote(image.source) or getattr(image.source, "__class__", None) is Checked:
        return image
    data = _encoded(image.source, image.kind, image.loc)
    if image.detail == DOCUMENT:
        _check_document(data, image.loc)
    else:
        check(data, image.loc)
    return Image(Checked(data), None, image.detail, image.loc)


class Checked(bytes):
    """An encoded file that passed the checks."""

    __slots__ = ()


def encoded(image: Image) -> tuple[str, bytes]:
    """Return the media type and the encoded file of a picture that is not a web address."""
    data = read(image).source
    kind = _PDF if image.detail == DOCUMENT else kind_of(data)
    assert kind is not None, "checked"
    return kind, data


def data_url(image: Image) -> str:
    """Return a web address unchanged, anything else as `data:…`."""
    if is_remote(image.source):
        return image.source
    mime, data = encoded(image)
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def digest(image: Image) -> bytes:
    """Return 16 bytes that identify a picture: a hash of the file, or of the address; of a video with its frame
    selection."""
    source = image.source if is_remote(image.source) else read(image).source
    found = hashlib.blake2b(source.encode() if isinstance(source, str) else source, digest_size=16)
    if image.frames is not None:
        found.update(f"\0{image.frames.num_frames} {image.frames.fps}".encode())
    return found.digest()


def kind_of(data: bytes) -> str | None:
    """Return the media type that a file's first bytes indicate."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


# -- to a file -------------------------------------------------------------------------------------------------------


def _encoded(source: Any, what: str, loc: Loc | None) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and source[:5].lower() == "data:":
        return bytes_of_url(source, "image", loc)
    if isinstance(source, str | os.PathLike):
        return bytes_of_file(Path(source), what, MOST_BYTES, loc)
    if hasattr(source, "save") and hasattr(source, "getbands"):
        return _as_png(source, loc)
    if hasattr(source, "__array__") or hasattr(source, "cpu"):
        return _as_png(_of_array(source, loc), loc)
    what = f"{type(source).__name__}; give its read()" if hasattr(source, "read") else type(source).__name__
    raise ArgumentError(f"image() takes a path, bytes, a data URL, a web address, a PIL image, an array or a tensor, not {what}", loc=loc)


def bytes_of_url(url: str, what: Literal["image", "video"], loc: Loc | None) -> bytes:
    """Return the contents of a data URL."""
    found = _DATA_URLS[what].match(url)
    try:
        if found is not None:  # as browsers decode them: escapes, whitespace, and no padding are allowed
            digits = unquote_to_bytes(url[found.end() :]).translate(None, b"\t\n\f\r ")
            return base64.b64decode(digits + b"=" * (-len(digits) % 4), validate=True)
    except (binascii.Error, ValueError):
        pass
    raise ParameterError(f"{what}({url[:40]!r}…): not a {'picture' if what == 'image' else what}'s data URL, which is data:{what}/…;base64,…", loc=loc)


def bytes_of_file(path: Path, what: str, most: int, loc: Loc | None) -> bytes:
    """Return a regular file of at most `most` bytes; raises at `loc`."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe, a terminal or a device may block forever
            raise ValueError(f"{'a directory' if stat.S_ISDIR(found.st_mode) else 'a pipe or a device'} is not read, only a regular file; else give the bytes")
        check_size(found.st_size, what, most, loc)
        with path.open("rb") as file:
            data = file.read(most + 1)  # a file of /proc has any size
        check_size(len(data), what, most, loc)
        return data
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, ParameterError):
            raise
        name, why = repr(str(path)), getattr(error, "strerror", None) or error
        if len(name) > _LONG_NAME:
            name, why = f"{name[:40]}…", f"{why}; base64 is given as a data URL: data:{what}/…;base64,…"
        raise ProgramError(f"{what}({name}): {why}", loc=loc) from None


def check_size(size: int, what: str, most: int, loc: Loc | None) -> None:
    if size > most:
        raise ParameterError(f"{what}(…): {size >> 20} MiB, and the limit is {most >> 20}; make it smaller", loc=loc)


def _as_png(picture: Any, loc: Loc | None) -> bytes:
    """Encode a PIL image without loss."""
    _check_frame(picture, loc)
    buffer = io.BytesIO()
    with _told(loc):
        mode = picture.mode if picture.mode in ("RGB", "RGBA", "L", "LA", "1", "P") else "RGBA" if picture.mode in ("La", "RGBa", "PA") else "RGB"
        _turned(picture).convert(mode).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def _of_array(source: Any, loc: Loc | None) -> Pillow:
    """Encode rows of pixels: uint8, or floats from 0 to 1; [height, width], [height, width, 1 | 3 | 4], or channels
    first."""
    require("image(array)", "images")
    import numpy as np
    from PIL import Image as pillow

    try:
        array = np.asarray(_on_host(source) if hasattr(source, "cpu") else source)
    except Exception as error:  # of another library
        raise ParameterError(f"image({type(source).__name__}): it cannot be read as an array: {error}", loc=loc) from error
    if array.ndim == 3 and array.shape[-1] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (3, 4))) or not array.size:
        raise ParameterError(f"image(array of {list(array.shape)}): [height, width] or [height, width, 3] is a picture, and none that is empty", loc=loc)
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    elif array.dtype.kind == "f":
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise ParameterError("image(array of floats): its numbers go beyond 0 to 1; give uint8 from 0 to 255, or scale them", loc=loc)
        array = np.rint(array.astype(np.float32) * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise ParameterError(f"image(array of {array.dtype}): pixels are uint8 from 0 to 255, or floats from 0 to 1", loc=loc)
    return pillow.fromarray(np.ascontiguousarray(array))


def _on_host(tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()  # numpy has no bfloat16


# -- what is refused -------------------------------------------------------------------------------------------------


def check(data: bytes, loc: Loc | None) -> None:
    """Refuse a file that no model should be given."""
    check_size(len(data), "image", MOST_BYTES, loc)
    if kind_of(data) is None:
        what = "empty" if not data else "a PDF: write lmc.document(…)" if data.startswith(b"%PDF-") else "neither PNG, JPEG, GIF nor WebP"
        raise ParameterError(f"image(…): the file is {what}", loc=loc)
    if find_spec("PIL") is None:
        return
    with _told(loc), _opened(data) as picture:
        _check_frame(picture, loc)
        if data.startswith(b"\x89PNG") and data[24] > 8:  # Pillow would drop the lower half of each colour
            raise ParameterError('image(…): 16 bits a colour; convert it to 8-bit RGB: PIL.Image.open(path).convert("RGB")', loc=loc)
        picture.load()  # a truncated file fails only here


def _check_document(data: bytes, loc: Loc | None) -> None:
    if len(data) > MOST_OF_DOCUMENT:
        raise ParameterError(f"document(…): {len(data) >> 20} MiB, and the most that APIs take is {MOST_OF_DOCUMENT >> 20}; take pages out", loc=loc)
    if b"%PDF-" not in data[:1024]:
        raise ParameterError(f"document(…): the file is {'empty' if not data else 'no PDF'}", loc=loc)


def decoded(image: Image) -> Pillow:
    """Return RGB pixels, upright; transparent areas are white."""
    require("an engine's image(…)", "images")
    from PIL import Image as pillow
    from PIL import ImageOps

    with _told(image.loc), _opened(read(image).source) as upright:
        _check_frame(upright, image.loc)
        ImageOps.exif_transpose(upright, in_place=True)
        if upright.mode in ("RGB", "L", "1"):
            return upright.convert("RGB")
        seen = upright if upright.mode == "RGBA" else upright.convert("RGBA")  # copies of the largest pictures are 256 MiB each
        ground = pillow.new("RGB", seen.size, "white")
        ground.paste(seen, mask=seen.getchannel("A"))
        return ground


@contextmanager
def _opened(data: bytes) -> Iterator[Pillow]:
    from PIL import Image as pillow

    with ignored(pillow.DecompressionBombWarning):  # sizes are bounded here
        picture = pillow.open(io.BytesIO(data), formats=tuple(_KINDS))
    with picture:
        yield picture


def _turned(picture: Pillow) -> Pillow:
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture)


def _check_frame(picture: Any, loc: Loc | None) -> None:
    """Check a frame by the header alone: nothing is decoded yet."""
    width, height = picture.size
    if not (width and height):
        raise ParameterError(f"image(…): {width} × {height} pixels are not a picture", loc=loc)
    if width * height > MOST_PIXELS:
        raise ParameterError(
            f"image(…): {width} × {height} pixels are {width * height / 1e6:.0f} million, and the limit is {MOST_PIXELS / 1e6:.0f}; make it smaller", loc=loc
        )
    if picture.format != "MPO" and getattr(picture, "is_animated", False):  # MPO: a JPEG with further pictures, as telephones make
        raise ParameterError("image(…): animated; give one of its frames, or several as images", loc=loc)  # to count them takes long
    if picture.mode not in _MODES:
        raise ParameterError(f'image(…): pixels of the mode {picture.mode!r}; convert it to 8-bit RGB: PIL.Image.open(path).convert("RGB")', loc=loc)


@contextmanager
def _told(loc: Loc | None) -> Iterator[None]:
    """Turn whatever a decoder raises into one error at the user's line."""
    try:
        yield
    except (ParameterError, MemoryError, UnsupportedOpError):
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error … on damaged files
        why = "its beginning cannot be read" if type(error).__name__ == "UnidentifiedImageError" else error  # that names an object
        raise ParameterError(f"image(…): the file is damaged: {why}", loc=loc) from error
