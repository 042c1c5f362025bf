"""Arrays and numbers of numpy as data: their type, shape and bytes. For programs that have imported numpy; nothing here does."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable
from typing import Any

MOST = 16 << 20
"""Most bytes of an array that is data: what is larger belongs in a file."""
_KINDS = "biufcmMSU"
_TYPE = re.compile(r"[<>|=]?([biufcSU]\d+|[mM]8(\[\d*[a-zDMWY]+\])?)")


def is_array(x: object) -> bool:
    return _is(type(x), "ndarray")


def is_scalar(cls: type) -> bool:
    """Return whether a class is one of numpy's numbers, texts or dates."""
    return cls.__module__ == "numpy" and any(_is(base, "generic") for base in cls.__mro__)


def _is(cls: type, name: str) -> bool:
    return cls.__module__ == "numpy" and cls.__qualname__ == name


def written(x: Any, many: Callable[[Any], list[Any]]) -> list[Any] | str:
    """Encode an array or a scalar, the items of an array of objects by `many`; or return why it is no data."""
    if x.dtype.kind in "SU" and not is_array(x):  # str() drops zeros at its end
        return ["scalar", x.dtype.str, str.__str__(x) if x.dtype.kind == "U" else base64.b64encode(x).decode()]
    if x.dtype.kind not in f"{_KINDS}O" or not x.dtype.itemsize:
        return f"numpy's {x.dtype}"
    if x.nbytes > MOST:
        return f"an array of {x.nbytes:,} bytes (at most {MOST:,})"
    if not is_array(x):
        return ["scalar", x.dtype.str, base64.b64encode(x.tobytes()).decode()]
    order = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    held = many(x.ravel(order).tolist()) if x.dtype.kind == "O" else base64.b64encode(x.tobytes(order)).decode()
    return ["array of", x.dtype.str, [*x.shape], order, bool(x.flags.writeable), held]


def read_scalar(kind: str, data: str) -> Any:
    numpy = _numpy(kind)
    if not isinstance(data, str):
        raise TypeError(f"a number of numpy of {data!r:.80}")
    if "U" in kind:
        return numpy.str_(data)
    found = base64.b64decode(data, validate=True)
    return numpy.bytes_(found) if "S" in kind else numpy.ndarray((1,), kind, bytearray(found))[0]


def read_array(kind: str, shape: list[int], order: str, data: Any) -> Any:
    """Make an array; one of objects has none yet."""
    numpy = _numpy(kind)
    if kind == "|O":
        return numpy.empty(shape, object, order)
    found = bytearray(base64.b64decode(data, validate=True))
    made = numpy.ndarray(shape, kind, found, order=order).copy(order)
    if made.nbytes != len(found) or [*made.shape] != shape:
        raise ValueError(f"an array of the shape {shape} of {len(found)} bytes")
    return made


def fill(made: Any, items: list[Any], order: str) -> None:
    """Fill an array of objects, each of which may be a list, too."""
    flat = made.reshape(-1, order=order) if made.size else made
    for i, item in enumerate(items):
        flat[i] = item


def _numpy(kind: str) -> Any:
    if "numpy" not in sys.modules:
        raise LookupError("numpy is not there; import it first")
    if kind != "|O" and not _TYPE.fullmatch(kind):
        raise ValueError(f"an array of {kind!r}")
    return sys.modules["numpy"]
