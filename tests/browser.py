"""A real browser without a window, for pages: Chromium over its debugging pipe (Chrome DevTools Protocol), one process for all."""

from __future__ import annotations

import base64
import json
import os
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = "needs chromium: pages are looked at in a real browser"

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


class Browser:
    """One tab. What its pages ask for and complain of is in `requests` and `complaints`."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of, self._number, self._rest = to, of, 0, b""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._session: str | None = None
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)

    def open(self, file: Path, scheme: Literal["light", "dark"] = "light") -> None:
        """Loads a page; returns when it is drawn."""
        self.visit(file.as_uri(), scheme)

    def visit(self, url: str, scheme: Literal["light", "dark"] = "light") -> None:
        """As `open`, of any address."""
        self.requests.clear()
        self.complaints.clear()
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        while self._message().get("method") != "Page.loadEventFired":
            pass
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def value(self, expression: str) -> Any:
        """Evaluate a JavaScript expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, *, scale: float = 1.0) -> bytes:
        """Return a picture of the window, as PNG."""
        clip = {"x": 0, "y": 0, "width": 1280, "height": 900, "scale": scale}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", clip=clip)["data"])

    @contextmanager
    def width(self, pixels: int) -> Iterator[None]:
        """A window as wide as that, until the end of the block."""
        self.call("Emulation.setDeviceMetricsOverride", width=pixels, height=900, deviceScaleFactor=1, mobile=False)
        try:
            yield
        finally:
            self.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        of = {} if self._session is None else {"sessionId": self._session}
        os.write(self._to, json.dumps({"id": self._number, "method": method, "params": params, **of}).encode() + b"\0")
        while (answer := self._message()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._of, 1 << 16)
            assert more, "the browser has gone"
            self._rest += more
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded":
                self.complaints.append(json.dumps(message["params"]))
            case _:
                pass
        return message


def pixels(png: bytes) -> list[tuple[int, int, int]]:
    """The colours of a picture as Chromium writes it: eight bits a channel, not interlaced (PNG specification, §9 filters)."""
    width, _, depth, kind = struct.unpack(">IIBB", png[16:26])
    size = {2: 3, 6: 4}[kind]
    assert depth == 8
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    raw, row, found = zlib.decompress(data), width * size, []
    above = bytearray(row)
    for start in range(0, len(raw), row + 1):
        how, line = raw[start], bytearray(raw[start + 1 : start + 1 + row])
        for i in range(row):
            a, b, c = (line[i - size], above[i], above[i - size]) if i >= size else (0, above[i], 0)
            nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            line[i] = (line[i] + (0, a, b, (a + b) // 2, nearest)[how]) & 255
        found += [(line[i], line[i + 1], line[i + 2]) for i in range(0, row, size)]
        above = line
    return found


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser until the end of the block; `profile` is where it keeps its files."""
    assert CHROMIUM is not None
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()

    def place() -> None:  # it reads from 3 and writes to 4
        a, b = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(a, 3)
        os.dup2(b, 4)

    done = subprocess.Popen(
        [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe"],
        preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        os.close(ours_out)
        done.terminate()
        done.wait(60)
        os.close(ours_in)
