"""The audit log: key, endpoint, time and status of each request; one JSON object a line. It contains neither keys nor
contents."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from lmc.errors import ParameterError

log = logging.getLogger("lmc.serve")


@dataclass(slots=True)
class AuditEntry:
    """One request. `key` is the name of its key; `client` an address; `seconds` from arrival to the last byte."""

    id: str
    key: str
    client: str
    method: str
    path: str
    status: int = 0
    seconds: float = 0.0
    tokens: int = 0

    written: bool = field(default=False, init=False, repr=False)


class AuditLog:
    """Appends to a file; a line is in the file when its request is over. Later spending of a request (the backend
    cancels it with a delay) is in a line with its id and `late_tokens`, before the next one or at the end."""

    def __init__(self, path: Path | None) -> None:
        """Open the log. Raises ParameterError for a file that cannot be written."""
        self._file: TextIO | None = None
        self._late: Counter[str] = Counter()
        if path is not None:
            try:
                self._file = path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise ParameterError(f"the audit log {path} cannot be written: {error.strerror}") from None

    def spend(self, entry: AuditEntry, tokens: int) -> None:
        """Record more tokens of a request."""
        if not entry.written:
            entry.tokens += tokens
        elif tokens and self._file is not None:
            self._late[entry.id] += tokens

    def write(self, entry: AuditEntry) -> None:
        entry.written = True
        self._write_late()
        said = asdict(entry)
        del said["written"]
        self._write(said)

    def close(self) -> None:
        if self._file is not None:
            self._write_late()
            try:
                self._file.close()
            except OSError:  # it has not been written before, either
                log.exception("the audit log cannot be written; something is not in it")

    def _write_late(self) -> None:
        late, self._late = self._late, Counter[str]()
        for request, tokens in late.items():
            self._write({"id": request, "late_tokens": tokens})

    def _write(self, said: dict[str, Any]) -> None:
        if self._file is None:
            return
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            self._file.write(json.dumps({"time": at, **said}) + "\n")
        except OSError:
            log.exception("the audit log cannot be written; of the request %s something is not in it", said["id"])
