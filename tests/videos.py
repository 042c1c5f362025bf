"""Small video files, by PyAV."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np


def noise(seed: int, frames: int, width: int = 64, height: int = 48) -> list[np.ndarray]:
    """Frames of large coloured squares, which codecs keep well."""
    squares = np.random.default_rng(seed).integers(0, 256, (frames, height // 8, width // 8, 3), np.uint8)
    return [square.repeat(8, 0).repeat(8, 1) for square in squares]


def video(frames: Sequence[np.ndarray], rate: int = 10, kind: str = "mp4", codec: str = "mpeg4") -> bytes:
    """A file of frames [height, width, 3]."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=kind) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.bit_rate = {"gif": "rgb8", "ffv1": "bgr0"}.get(codec, "yuv420p"), 4_000_000
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()
