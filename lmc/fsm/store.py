"""Compiled token automata on disk, one file each, so that a process can reuse the work of another.

    key of (this code, Unicode's version, source, vocabulary) ──► <folder>/<key>.safetensors: the byte automaton, windows, and rows built so far

A file is written beside its place and moved there, so readers see the old one, none, or the whole new one, and two
writers do no harm: both write the same content. An unreadable file is rebuilt, after one log line. The folder is
bounded: the least recently used files are removed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import unicodedata
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from lmc.config import cache_folder, replacing
from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.tokens import AutomatonTables
from lmc.fsm.vocabulary import Vocabulary

log = logging.getLogger("lmc.fsm")

LIMIT = 256 << 20  # bytes of all files together
_SUFFIX = ".safetensors"


def default_store() -> Store | None:
    """Return the store in the cache directory; None, after one log line, when there can be none."""
    folder = cache_folder("constraints", "every process compiles its constraints again")
    return folder and Store(folder)


@cache
def _not_kept(folder: Path, why: str) -> None:
    log.warning("%s: compiled constraints cannot be kept (%s): the next process compiles them again; set LMC_CACHE_DIR", folder, why)


@dataclass(frozen=True)
class Store:
    """A folder of automata. Thread-safe, and safe between processes."""

    folder: Path
    limit: int = LIMIT

    def load(self, source: str, vocabulary: Vocabulary) -> AutomatonTables | None:
        """Return the tables of a source over a vocabulary, or None when they are missing or damaged."""
        from safetensors import SafetensorError

        path = self._path(source, vocabulary)
        try:
            tables = _read(path, source)
            with suppress(PermissionError):  # a cache that another user filled
                os.utime(path)  # used now: it is evicted last
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:  # a dtype that numpy lacks
            log.warning("%s: the cached constraint is damaged, or not this user's to read (%s); compiling it again", path, error)
            return None
        return tables

    def save(self, source: str, vocabulary: Vocabulary, tables: AutomatonTables) -> None:
        """Store tables; one log line if that is not possible."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        path = self._path(source, vocabulary)
        arrays = _packed(tables)
        meta = {"source": source, "checksum": _checksum(source, arrays)}
        try:
            with replacing(path) as name:
                save_file(arrays, name, metadata=meta)
            self._make_room(path)
        except (OSError, SafetensorError) as error:
            _not_kept(self.folder, (isinstance(error, OSError) and error.strerror) or str(error))

    def _path(self, source: str, vocabulary: Vocabulary) -> Path:
        made_by = f"{code_digest()} {unicodedata.unidata_version} {vocabulary.digest}"  # a newer Python has a newer \w
        key = hashlib.blake2b(f"{made_by} {source}".encode("utf-8", "surrogatepass"), digest_size=12)
        return self.folder / f"{key.hexdigest()}{_SUFFIX}"

    def _make_room(self, newest: Path) -> None:
        """Remove files until the folder is within its limit, least recently used first; never the newest."""
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue  # another process was faster
            if path.name.endswith(_SUFFIX):
                found.append((stat.st_mtime, stat.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                break
            if path != newest:
                path.unlink(missing_ok=True)
                total -= size


@cache
def code_digest() -> str:
    """Return a digest of all code that compiles and stores automata: in another version the same source may mean
    another language."""
    modules = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.blake2b(b"".join(module.read_bytes() for module in modules), digest_size=12).hexdigest()


# -- tables as arrays ------------------------------------------------------------------------------------------------


def _packed(tables: AutomatonTables) -> dict[str, np.ndarray]:
    dfa = tables.dfa
    windows = np.array(sorted(tables.rows), np.int64)
    arrays = {
        "deltas": dfa.deltas,
        "rows": dfa.rows,
        "final": dfa.final.astype(np.uint8),
        "window": dfa.window.astype(np.uint32),
        "windows": windows,
        "masks": np.array([tables.rows[int(w)] for w in windows], np.uint32),
    }
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}  # safetensors writes raw memory


def _read(path: Path, source: str) -> AutomatonTables:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        meta = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    if meta["source"] != source:
        raise ValueError("it is of another source")
    if meta["checksum"] != _checksum(source, arrays):
        raise ValueError("its checksum does not fit its content")
    dfa = ArrayDFA(arrays["deltas"], arrays["rows"], arrays["final"].astype(bool), arrays["window"].astype(np.int64))
    return AutomatonTables(dfa, dict(zip(arrays["windows"].tolist(), arrays["masks"])))


def _checksum(source: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Return the CRC-32 of the whole file: it guards against disk errors, not against tampering."""
    found = zlib.crc32(source.encode("utf-8", "surrogatepass"))
    for name in sorted(arrays):
        found = zlib.crc32(arrays[name].data, zlib.crc32(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode(), found))
    return f"{found:08x}"
