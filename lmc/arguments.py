"""Checks of what a program passes: each returns the value as requests hold it, or raises an error that names the parameter."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from operator import index
from pathlib import Path
from typing import Any

from lmc.errors import ArgumentError, ParameterError

Check = Callable[[str, Any], Any]  # (name of the parameter, value) -> the value as SamplingParams holds it


def wrong_type(name: str, value: Any, wanted: str) -> ArgumentError:
    return ArgumentError(f"{name}={value!r}: must be {wanted}")


def path(name: str, value: Any) -> Path:
    """Return the path that `value` is; refuse what no file can be called."""
    if not (isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str)):
        raise wrong_type(name, value, "a path, as text or a pathlib.Path")
    try:
        os.lstat(value)
    except (OSError, ValueError) as error:
        if not isinstance(error, OSError) or error.errno == errno.ENAMETOOLONG:
            raise ParameterError(f"{name}={str(value)[:100]!r}: no path: {getattr(error, 'strerror', None) or error}") from None
    return Path(value)


def integer(low: int, also: int | None = None) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool):
            raise wrong_type(name, value, "a whole number")
        try:
            value = index(value)
        except TypeError:
            raise wrong_type(name, value, "a whole number") from None
        if value < low and value != also:
            raise ParameterError(f"{name}={value}: must be at least {low}" + (f" or {also}" if also is not None else ""))
        return value

    return check


def number(low: float, high: float = math.inf, *, above: bool = False) -> Check:
    def check(name: str, value: Any) -> float:
        if isinstance(value, (str, bytes, bool)):
            raise wrong_type(name, value, "a number")
        try:
            value = float(value)
        except OverflowError:  # a whole number of more digits than a double can have
            value = math.inf if value > 0 else -math.inf
        except (TypeError, ValueError):
            raise wrong_type(name, value, "a number") from None
        if not low <= value <= high or (above and value == low):
            end = f"and at most {high:g}" if high < math.inf else ""
            raise ParameterError(f"{name}={value:g}: must be {'above' if above else 'at least'} {low:g} {end}".rstrip())
        return value

    return check
