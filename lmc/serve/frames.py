"""The protocol between the server and a worker process: a JSON header and bytes, as one frame."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

_SIZES = struct.Struct("!IQ")
_ROOM = 1 << 20  # bytes of a header

Frame = tuple[dict[str, Any], bytes]


async def read(reader: asyncio.StreamReader) -> Frame | None:
    """Read the next frame; None when the other side has gone."""
    try:
        header, body = _SIZES.unpack(await reader.readexactly(_SIZES.size))
        if header > _ROOM:
            return None
        return json.loads(await reader.readexactly(header)), await reader.readexactly(body)
    except (asyncio.IncompleteReadError, OSError, ValueError):
        return None


def write(writer: asyncio.StreamWriter, header: dict[str, Any], body: bytes = b"") -> None:
    """Queue a frame."""
    text = json.dumps(header).encode()
    writer.write(_SIZES.pack(len(text), len(body)) + text + body)
