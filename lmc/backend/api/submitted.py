"""Record of submissions to batch APIs, on disk beside a journal, so that a process that resumes after a kill finds them
and pays for nothing twice.

    {"wave", "name", "ids", "since"}      about to be submitted         on disk before anything is sent
    {"wave", "batch"}                     the server has it, by this id  on disk before anything waits for it
    {"wave", "gone"}                      it was never there
    {"wave", "over", "failed"}            its answers have been taken: of them so many failed

The ids of requests are digests; the file contains no prompts or answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmc.errors import JournalError


@dataclass
class SubmittedWave:
    """Requests that were submitted together.

    name   of the backend;  since: submission time, in seconds since 1970
    batch  the server's id; None if only the intent is known
    over   requests that failed, once the answers were taken; None before
    old    an earlier process submitted it
    """

    key: str
    name: str
    ids: tuple[str, ...]
    since: float
    batch: str | None = None
    over: int | None = None
    old: bool = False


class SubmittedWaves:
    """The waves of a program's runs. No path: only in this process. Raises JournalError for a file that cannot be read
    or written."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.waves: dict[str, SubmittedWave] = {}
        self._wave_of: dict[str, SubmittedWave] = {}  # by the id of a request
        if path is not None and path.exists():
            self._read(path)

    def of(self, id: str) -> SubmittedWave | None:
        """Return the wave in which a request was submitted."""
        return self._wave_of.get(id)

    def intend(self, name: str, ids: Sequence[str], now: float) -> SubmittedWave:
        """Record a wave that is about to be submitted."""
        wave = SubmittedWave(os.urandom(8).hex(), name, tuple(ids), now)
        self._write({"wave": wave.key, "name": name, "ids": list(ids), "since": now})
        self._add(wave)
        return wave

    def submitted(self, wave: SubmittedWave, batch: str) -> None:
        self._write({"wave": wave.key, "batch": batch})
        wave.batch = batch

    def gone(self, wave: SubmittedWave) -> None:
        """Record that it was never there, or nothing of it was done."""
        self._write({"wave": wave.key, "gone": True})
        self._remove(wave)

    def over(self, wave: SubmittedWave, failed: int) -> None:
        """Record that its answers have been taken."""
        if wave.over is None:
            self._write({"wave": wave.key, "over": True, "failed": failed})
            wave.over = failed

    def _add(self, wave: SubmittedWave) -> None:
        self.waves[wave.key] = wave
        self._wave_of.update(dict.fromkeys(wave.ids, wave))

    def _remove(self, wave: SubmittedWave) -> None:
        del self.waves[wave.key]
        for id in wave.ids:
            if self._wave_of.get(id) is wave:
                del self._wave_of[id]

    def _read(self, path: Path) -> None:
        try:
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1  # a partly written line was not acted on
            for line in data[:whole].splitlines():
                self._take(json.loads(line))
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise JournalError(f"{path} is damaged ({error!r}): the batches it names may be paid for again; move it away to continue without it") from None

    def _take(self, record: Mapping[str, Any]) -> None:
        if "ids" in record:
            return self._add(SubmittedWave(record["wave"], record["name"], tuple(record["ids"]), record["since"], old=True))
        wave = self.waves[record["wave"]]
        if "gone" in record:
            self._remove(wave)
        elif "over" in record:
            wave.over = record["failed"]
        else:
            wave.batch = record["batch"]

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        try:
            new = not self.path.exists()
            with open(self.path, "ab+") as file:
                _drop_end(file)
                file.write(json.dumps(record).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            if new and hasattr(os, "O_DIRECTORY"):  # sync its name, too
                folder = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}; nothing is submitted that is not noted") from None


def _drop_end(file: Any) -> None:
    """Drop an incomplete line at the end."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
