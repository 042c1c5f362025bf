"""A chat template in a process of its own, which the system kills when it exceeds its limits (template_worker.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmc.backend.engine import template_worker
from lmc.forking import belongs_here

CUTTING = 0.6  # CPU seconds for all renderings to cut a template: usually some 0.03 s
RENDERING = 2.0  # for one rendering by itself


class TemplateRefusal(Exception):
    """The template itself refuses this conversation."""


class OverLimit(Exception):
    """The template does not parse, or exceeds a limit; the message says which."""


class Sandbox:
    """Renders conversations by a template. The process starts on first use. Safe to use from any thread, one at a
    time."""

    def __init__(self, source: str, fixed: Mapping[str, str]) -> None:
        self._source, self._fixed = source, dict(fixed)
        self._lock = threading.Lock()
        self._shared = False  # whether all requests share one budget
        self._process: subprocess.Popen[str] | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        belongs_here(self)

    def forked(self, parent: int) -> None:
        """Detach from the process, which is the parent's; a child starts its own."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._process, self._finalizer, self._lock = None, None, threading.Lock()

    def open(self) -> tuple[tuple[str, ...], int]:
        """Give the process `CUTTING` seconds for all requests until `close`, or until it is opened again. Return the texts
        in the template's code, and its largest whole number. Raises OverLimit."""
        with self._lock:
            self._shared = True
            return self._start(CUTTING, template_worker.CUTTING_STEPS)

    def render(self, messages: Sequence[Mapping[str, Any]], ask: bool, **more: Any) -> str:
        """Render the conversation by the template. Raises Refused and OverLimit."""
        request: dict[str, Any] = {"given": {"messages": list(messages), "add_generation_prompt": ask, **self._fixed, **more}}
        with self._lock:
            if not self._is_alive:
                self._start(RENDERING, template_worker.STEPS)
            return self._asked(request if self._shared else {**request, "seconds": RENDERING})["text"]

    def close(self) -> None:
        with self._lock:
            self._shared = False
            self._end()

    @property
    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _start(self, seconds: float, steps: int) -> tuple[tuple[str, ...], int]:
        if not self._is_alive:
            self._end()
            self._spawn()
        try:
            found = self._asked({"source": self._source, "seconds": seconds, "steps": steps})
        except TemplateRefusal as why:
            self._end()
            raise OverLimit(f"it does not parse as Jinja ({why})") from None
        return tuple(found["texts"]), found["number"]

    def _spawn(self) -> None:
        path = [str(Path(entry).absolute()) for entry in sys.path]
        command = [sys.executable, "-I", "-S", template_worker.__file__, json.dumps(path)]
        environment = {name: os.environ[name] for name in ("TZ", "SYSTEMROOT", "LD_LIBRARY_PATH") if name in os.environ}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, encoding="ascii", start_new_session=True
            )
        except OSError as error:
            raise OverLimit(f"the process in which it runs cannot be started: {error}") from None
        self._finalizer = weakref.finalize(self, _kill, self._process)

    def _asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        with _ended_after(self._process, template_worker.PATIENCE):
            try:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except (BrokenPipeError, ConnectionError):
                line = ""
        if not line.endswith("\n"):
            self._end()
            raise OverLimit("it takes too long, or too much memory")
        answer: dict[str, Any] = json.loads(line)
        if "limit" in answer:
            raise OverLimit(answer["limit"])
        if "refused" in answer:
            raise TemplateRefusal(answer["refused"])
        return answer

    def _end(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None


class _ended_after:
    """Ends a process after so many seconds, on systems where it cannot end itself."""

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self._timer = threading.Timer(seconds, process.kill) if os.name == "nt" else None

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # unread input
    process.wait()
