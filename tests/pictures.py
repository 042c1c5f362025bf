"""Small PNG files without Pillow."""

from __future__ import annotations

import struct
import zlib


def png(seed: int = 0, width: int = 4, height: int = 3, *, bits: int = 8, colours: int = 1, claimed: tuple[int, int] | None = None) -> bytes:
    """A picture, grey or of three `colours`, whose pixels depend on `seed`. `claimed`: the size that its header says, whatever it holds."""
    rows = b"".join(b"\0" + bytes((seed + x + y) % 256 for x in range(width * colours * bits // 8)) for y in range(height))
    header = struct.pack(">IIBBBBB", *(claimed or (width, height)), bits, 2 * (colours == 3), 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)
