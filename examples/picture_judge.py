"""An essay on a picture, judged along several dimensions at once. Without a model, the mock answers.

    python examples/picture_judge.py [MODEL [PICTURE]]      MODEL: a directory or hub id of a model that sees, such as LLaVA 1.5
    lmc run examples/picture_judge.py:judge --backend MODEL --arg picture=FILE --arg essay="From left to right the day breaks."
"""

from __future__ import annotations

import struct
import sys
import zlib
from contextlib import closing
from typing import Any

import lmc

DIMENSIONS = ("clarity", "originality", "evidence")


@lmc.function
def judge(s: lmc.State, picture: str | bytes, essay: str) -> dict[str, str] | None:
    s += lmc.user(lmc.image(picture) + "An essay on this picture:\n" + essay + "\nIs it about the picture?")
    s += lmc.assistant(lmc.select("related", choices=["yes", "no"]))
    if s["related"] == "no":
        return None
    forks = s.fork(len(DIMENSIONS))
    for f, dimension in zip(forks, DIMENSIONS, strict=True):
        f += lmc.user(f"Judge its {dimension} in a sentence.") + lmc.assistant(lmc.gen("judgment", max_tokens=48, temperature=0))
    judgments = {dimension: f["judgment"].strip() for f, dimension in zip(forks, DIMENSIONS, strict=True)}
    s += lmc.user("Judgments:\n" + "\n".join(judgments.values()) + "\nGive a grade.")
    s += lmc.assistant(lmc.gen("grade", regex="[A-D][+-]?", temperature=0))
    return {**judgments, "grade": s["grade"]}


def gradient(width: int = 64, height: int = 48) -> bytes:
    """A picture from dark to light, as a PNG."""
    rows = b"".join(b"\0" + bytes(255 * x // width for x in range(width)) for _ in range(height))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)


def scripted(prompt: str, ask: Any, images: list[bytes | str]) -> str | None:
    """Answer as the mock: it is sure of pictures alone."""
    return {"related": "yes" if images else "no", "judgment": "Well put.", "grade": "B+"}.get(ask.name)


def main(model: str | None = None, picture: str | None = None) -> None:
    backend = lmc.Mock(scripted) if model is None else lmc.Engine(model)
    with closing(backend):
        state = lmc.compile(judge, backend=backend)(picture or gradient(), "From left to right the night gives way to the day.")
        print(state.ret_value)
        if model is not None:
            found = backend.counters()
            print(f"{found.images} images in prompts, {found.image_hits} of them seen before, {found.tower_seconds:.2f} s in the tower")


if __name__ == "__main__":
    main(*sys.argv[1:])
