"""A GGUF writer for tests: just enough of the format, written from its specification."""

from __future__ import annotations

import struct

F32, F16, Q4_0, Q4_1, Q8_0, IQ2_XS, BF16 = 0, 1, 2, 3, 8, 17, 30


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: object) -> bytes:
    """Type code and content of a metadata value."""
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case int():
            return struct.pack("<II", 4, item)
        case float():
            return struct.pack("<If", 6, item)
        case str():
            return struct.pack("<I", 8) + text(item)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(text, item))
        case [float(), *_]:
            return struct.pack("<IIQ", 9, 6, len(item)) + struct.pack(f"<{len(item)}f", *item)
        case [int(), *_]:
            return struct.pack("<IIQ", 9, 5, len(item)) + struct.pack(f"<{len(item)}i", *item)
    raise TypeError(item)


def gguf(
    metadata: dict[str, object] | None = None,
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] | None = None,
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    """A whole file. tensors: name → (row-major shape, type code, bytes)."""
    metadata, tensors = metadata or {}, tensors or {}
    head = magic + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value(item) for key, item in metadata.items())
    offset, blobs = 0, b""
    for name, (shape, kind, data) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", kind, offset)
        padded = data + b"\0" * (-len(data) % 32)
        blobs += padded
        offset += len(padded)
    return head + b"\0" * (-len(head) % 32) + blobs
