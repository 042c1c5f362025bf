"""The audit log: who asked what, when, and how it ended; one JSON object a line. Neither keys nor contents are in it."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from lmc.errors import ParameterError

log = logging.getLogger("lmc.serve")


@dataclass(slots=True)
class Entry:
    """One request. `key` is the name of its key; `client` an address; `seconds` from arrival to the last byte."""

    id: str
    key: str
    client: str
    method: str
    path: str
    status: int = 0
    seconds: float = 0.0
    tokens: int = 0


class AuditLog:
    """Appends to a file; a line is in the file when its request is over."""

    def __init__(self, path: Path | None) -> None:
        """Raises ParameterError for a file that cannot be written."""
        self._file: TextIO | None = None
        if path is not None:
            try:
                self._file = path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise ParameterError(f"the audit log {path} cannot be written: {error.strerror}") from None

    def write(self, entry: Entry) -> None:
        if self._file is None:
            return
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            self._file.write(json.dumps({"time": at, **asdict(entry)}) + "\n")
        except OSError:
            log.exception("the audit log cannot be written; the request %s is not in it", entry.id)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
