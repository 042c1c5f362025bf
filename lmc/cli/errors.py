"""Attribution of an exception to the user or to lmc, and one message for a person."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

from lmc import tracebacks
from lmc.code_origin import is_users
from lmc.errors import ConstraintError, JournalError, LmcError, ParameterError, message_of
from lmc.userfiles import UsageError


class RunFailed(LmcError):
    """Some items of a run ended with an error; the others are written."""


@contextmanager
def as_usage(*kinds: type[LmcError]) -> Iterator[None]:
    """Turn errors of a value typed on the command line, and those of further kinds, into usage errors of the command."""
    try:
        yield
    except (ParameterError, ConstraintError, JournalError, *kinds) as error:
        raise UsageError(error.message) from error


def is_systems(error: BaseException) -> TypeGuard[OSError]:
    """Return whether an error is the system's refusal of what the command itself does with files, not of what a program does."""
    return isinstance(error, OSError) and error.strerror is not None and tracebacks.users_line(error) is None


def explain(error: BaseException) -> str:
    """Return one message for a person. For an exception of the user's own code: its type and the user's line."""
    notes = "".join(f"\n{note}" for note in tracebacks.notes(error))
    if isinstance(error, LmcError):
        place = error.loc  # the command's own call of lmc tells nobody anything
        return (error.message if place is not None and not is_users(place.file) else str(error) if place else f"{error}{_users_line(error)}") + notes
    if type(error).__module__.startswith("lmc."):  # these contain the location
        return str(error) + notes
    if isinstance(error, SyntaxError) and error.filename and os.path.exists(error.filename):  # of a file: its own message has the line and a caret
        return "\n".join([f"{os.path.relpath(error.filename)} is not valid Python:", "".join(traceback.format_exception_only(error)).rstrip("\n")])
    if is_systems(error):
        if error.filename is None and isinstance(error, FileNotFoundError):  # only asking for the current folder says so
            return "the current folder is gone; change to one that is there"
        return f"{'' if error.filename is None else f'{os.fsdecode(error.filename):.200}: '}{error.strerror}{notes}"
    place = _users_line(error)
    told = message_of(error)
    message = f"{type(error).__name__}: {told}" if told else type(error).__name__
    return f"{message}{place}{notes}\n(LMC_DEBUG=1 shows the traceback)"


def _users_line(error: BaseException) -> str:
    """Return the last position of an exception in the user's files, as text."""
    last = tracebacks.users_line(error)
    return "" if last is None else f"\n  {os.path.relpath(last.filename)}:{last.lineno} in {last.name}: {last.line}"
