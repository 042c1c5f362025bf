"""Checks of what a program passes: each returns the value as requests hold it, or raises an error that names the parameter."""

from __future__ import annotations

import errno
import inspect
import math
import numbers
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from operator import index
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from lmc.errors import ArgumentError, ParameterError

Check = Callable[[str, Any], Any]  # (name of the parameter, value) -> the value as SamplingParams holds it


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 200
shown = _repr.repr
"""Returns a value's repr for a message: a long one in part, and of an object whose repr raises, its class."""


def wrong_type(name: str, value: Any, wanted: str) -> ArgumentError:
    return ArgumentError(f"{name}={shown(value)}: must be {wanted}")


def misfit(function: Callable[..., Any], args: Sequence[Any], given: Mapping[str, Any]) -> ArgumentError | None:
    """Return the error for the first argument of a function of lmc that does not fit its annotation, as far as classes tell, if there is one."""
    signature = inspect.signature(function)
    for name, value in signature.bind(*args, **given).arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and not _fits(value, _evaluated(parameter.annotation, function)):
            return ArgumentError(f"{function.__qualname__.removesuffix('.__init__')}({name}={shown(value)}): must be {parameter.annotation}")
    return None


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    try:
        return eval(annotation, function.__globals__) if isinstance(annotation, str) else annotation
    except NameError:  # imported for type checkers only
        return Any


def _fits(value: Any, wanted: Any) -> bool:
    kind = get_origin(wanted) or wanted
    if kind in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(wanted))
    if kind is Literal:
        return value in get_args(wanted)
    if kind is None:
        return value is None
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False) or kind is inspect.Parameter.empty:
        return True
    return isinstance(value, _NUMBERS.get(kind, kind))


_NUMBERS: Mapping[Any, type] = {int: numbers.Integral, float: numbers.Real}
"""What is taken for one, such as numpy's."""


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


def may_write(file: Path) -> bool:
    """Return whether the user may write a file, or make it in its folder."""
    return os.access(file if file.exists() else file.absolute().parent, os.W_OK)


def integer(low: int, also: int | None = None, most: int | None = None) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool):
            raise wrong_type(name, value, "a whole number")
        try:
            value = index(value)
        except TypeError:
            raise wrong_type(name, value, "a whole number") from None
        if value < low and value != also:
            raise ParameterError(f"{name}={value}: must be at least {low}" + (f" or {also}" if also is not None else ""))
        if most is not None and value > most:
            raise ParameterError(f"{name}={shown(value)}: must be at most {most:,}")
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
