"""The sources of converted models: the digest of each one's content, remembered by its path, and the removal of copies that none needs.

    <digest of the path>.source: path, size, times, digest ──► <digest of the content>-<layout>-v<format>.safetensors

Files with the same content share a copy, in however many environments they lie. A reference is a file of its own, replaced
as a whole, so no two processes edit the same one. It is written before its copy is, and a sweep lists the copies before it
reads the references: no sweep removes a copy that was written meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmc.config import replacing

log = logging.getLogger("lmc.models")

FORMAT = 5  # of copies; change it whenever the meaning of their content changes
_TICK = 2_000_000_000  # ns; a file may change twice within one tick of its file system's clock: at most these 2 s, on FAT
_PATIENCE = 5.0  # s for a sweep: a network drive that hangs does not hold up a model
_SUFFIX = ".source"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_COPY = re.compile(r"([0-9a-f]{64})-[a-z0-9,-]+-v(\d+)\.safetensors")
_UP_TO_4 = re.compile(r".+-b?float(16|32)[a-z0-9,-]*-[0-9a-f]{12}-[0-9a-f]{12}\.safetensors", re.DOTALL)
"""Names of copies of formats up to 4, which were of a path and not of a content."""


@dataclass(frozen=True)
class Reference:
    """What a source was when its content was read.

    seen  the clock before that, in ns
    """

    path: str
    size: int
    mtime: int
    ctime: int
    seen: int
    digest: str

    def fits(self, found: os.stat_result) -> bool:
        """Return whether the content is still this: nothing has changed since, and nothing can have changed within the tick in which it was read."""
        return (found.st_size, found.st_mtime_ns, found.st_ctime_ns) == (self.size, self.mtime, self.ctime) and self.ctime + _TICK < self.seen

    def is_needed(self) -> bool:
        """Return whether its source may still be there. Times of changes do not count here: a new link to a file changes them."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # another user's, or on a drive that does not answer
        return (found.st_size, found.st_mtime_ns) == (self.size, self.mtime)


def copy_name(digest: str, layout: str) -> str:
    return f"{digest}-{layout}-v{FORMAT}.safetensors"


def content(source: Path, folder: Path, check: Callable[[], object] = lambda: None) -> str:
    """Return the digest of a source's content: the remembered one, or, if the file is new or may have changed, that of all its bytes, which is
    remembered. `check` may raise before those are read."""
    place = source.resolve()
    reference, found, seen = folder / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}{_SUFFIX}", place.stat(), time.time_ns()
    with suppress(OSError):  # another user's: as if there were none
        known = _read(reference)
        if known is not None and known.path == str(place) and known.fits(found):
            return known.digest
    check()
    with place.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    text = json.dumps(asdict(Reference(str(place), found.st_size, found.st_mtime_ns, found.st_ctime_ns, seen, digest)))
    try:
        with replacing(reference) as name:
            Path(name).write_text(text, "ascii")
    except OSError as error:
        log.warning("%s: what %s contains cannot be remembered (%s); the next load reads all of it again", folder, source, error)
    else:
        sweep(folder, digest)
    return digest


def sweep(folder: Path, kept: str) -> None:
    """Remove copies that no source has any more, and references of such sources; those of the digest `kept` stay."""
    sweeper = threading.Thread(target=_sweep, args=(folder, kept), name="lmc-sweep", daemon=True)
    sweeper.start()
    sweeper.join(_PATIENCE)


def _sweep(folder: Path, kept: str) -> None:
    try:
        paths = list(folder.iterdir())
        digests = _needed([path for path in folder.iterdir() if path.suffix == _SUFFIX]) | {kept}
        for path in paths:
            copy = _COPY.fullmatch(path.name)
            if _UP_TO_4.fullmatch(path.name) or (copy and (copy[1] not in digests or int(copy[2]) < FORMAT)):
                _remove(path)
    except OSError as error:
        log.warning("%s: copies of models that are gone cannot be removed (%s)", folder, error)


def _needed(references: list[Path]) -> set[str]:
    """Return the digests of all sources that are there. Raises OSError if a reference cannot be read: any copy may be its source's."""
    digests: set[str] = set()
    for path in references:
        found = _read(path)
        if found is not None and found.is_needed():
            digests.add(found.digest)
        else:
            _remove(path)
    return digests


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError, PermissionError):  # another process was faster; another user's, or, on Windows, open
        path.unlink()


def _read(path: Path) -> Reference | None:
    """Return a reference; None if it is missing or damaged."""
    try:
        raw: dict[str, Any] = json.loads(path.read_bytes())
        found = Reference(**raw)
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None
    numbers = (found.size, found.mtime, found.ctime, found.seen)
    sound = all(type(n) is int for n in numbers) and isinstance(found.path, str) and "\0" not in found.path
    return found if sound and isinstance(found.digest, str) and _DIGEST.fullmatch(found.digest) else None
