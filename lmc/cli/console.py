"""Terminal output, and files that commands read and write for people."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from lmc.userfiles import UsageError, announce, check_folder

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")  # not the ends of lines, of Windows too


def shown(text: str, stream: TextIO) -> str:
    """Return what a model or server may have written as a stream shows it: to a terminal, which would obey them, control characters are spelled out."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text) if stream.isatty() else text


def say(message: str) -> None:
    print(shown(message, sys.stderr), file=sys.stderr, flush=True)


def progress(states: Iterable[Any], total: int, backend: Any) -> Iterator[Any]:
    """Pass (place, state) pairs on; show progress on standard error: a live view on a terminal, else a line every few
    seconds."""
    if not sys.stderr.isatty():
        return _progress_lines(states, total)
    from lmc.cli.live import watched

    return watched(states, total, backend)


def _progress_lines(states: Iterable[Any], total: int, every: float = 5.0) -> Iterator[Any]:
    last = time.monotonic()
    for done, state in enumerate(states, 1):
        yield state
        if time.monotonic() - last >= every:
            last = time.monotonic()
            say(f"{done}/{total} items")


class waiting:
    """Report slow work on standard error; on a terminal with a spinner that goes away."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        self._status = None
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(self.what + " …")
            self._status.start()

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


_MOST_TEXT = 64 << 20  # characters; a device has no end


def text_of(path: Path) -> str:
    announce(path)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_TEXT + 1)
        if len(text) > _MOST_TEXT:
            raise UsageError(f"cannot read {path}: more than {_MOST_TEXT >> 20} million characters")
        return text
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def write(text: str, output: Path | None) -> None:
    text = text if text.endswith("\n") else text + "\n"
    if output is None:
        sys.stdout.write(shown(text, sys.stdout))
        return
    check_folder(output)
    try:
        output.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files and arguments may hold bytes that are no text
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; choose another file") from None
