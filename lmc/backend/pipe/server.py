"""The engine's side: serves a backend over one connection. All its requests end with it."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from lmc import codec
from lmc.backend.base import HEALTHY, Backend, Handle, Hints, SaysHealth
from lmc.backend.pipe import wire
from lmc.backend.pipe.posting import Postbox, frames
from lmc.backend.results import Result
from lmc.backend.usage import MeteredAccount, Usage

log = logging.getLogger("lmc.pipe")

_connections = itertools.count(1)


class PipeServer:
    """Serves the messages of a connection, on a thread of its own, until the other side goes or `close`.

    The backend stays its owner's. `handles` and `pins` are held by the other side, for tests and counters. `told` is
    notified of the usage of each request submitted while it is set (MeteredAccount).
    """

    def __init__(self, backend: Backend, connection: Connection) -> None:
        self._backend, self._connection = backend, connection
        self._number = next(_connections)
        self.handles: dict[int, Handle | BaseException] = {}  # an exception: the submission was refused
        self.pins: set[int] = set()
        self.told: Callable[[Usage], None] | None = None
        self._box = Postbox(connection, f"lmc-pipe-out-{self._number}")
        self._box.post(["hello", wire.VERSION, self._about()])
        self._thread = threading.Thread(target=self._serve, name=f"lmc-pipe-in-{self._number}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Shut the connection down; everything the other side held is released soon."""
        self._box.cut()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the other side has gone and everything it held is released; return False if `timeout` seconds
        passed first."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _about(self) -> dict[str, Any]:
        template = self._backend.chat_template
        return {
            "capabilities": codec.encode(self._backend.capabilities),
            "template": template.name,
            "stop": list(template.stop),
            "counts_tokens": hasattr(self._backend, "count_tokens"),
        }

    def _serve(self) -> None:
        try:
            while (messages := frames(self._connection)) is not None:
                for message in messages:
                    self._do(message)
        except Exception:  # an invalid message: nothing after it can be trusted
            log.exception("a program's process sent an invalid message; its connection is closed")
        finally:
            self._box.end()
            self._release_all()

    def _release_all(self) -> None:
        """Cancel and release everything the other side holds."""
        handles, self.handles = self.handles, {}
        for number, handle in handles.items():
            if not isinstance(handle, BaseException):
                if number in self.pins:
                    self._backend.release(handle)
                handle.cancel()
        self.pins.clear()

    # -- messages ------------------------------------------------------------------------------------------------------

    def _do(self, message: wire.Message) -> None:
        kind, number, *rest = message
        if kind in ("submit", "prefill"):
            self._enter(kind, number, *rest)
        elif kind == "drop":
            self.pins.discard(number)
            self.handles.pop(number, None)
        elif kind in ("cancel", "release", "needed"):
            handle = self.handles.get(number)
            if handle is not None and not isinstance(handle, BaseException):
                if kind == "cancel":
                    handle.cancel()
                elif kind == "needed":
                    if (needed := getattr(handle, "needed", None)) is not None:
                        needed()
                else:
                    self.pins.discard(number)
                    self._backend.release(handle)
        elif kind == "call" and rest[0] == "prepared":
            self._wait_for(number, getattr(self.handles.get(rest[1]), "prepared", None))
        elif kind == "call" and rest[0] == "warm_up":
            self._wait_for(number, getattr(self._backend, "warm_up", None))
        elif kind == "call":
            self._return(number, lambda: _METHODS[rest[0]](self, *rest[1:]))
        else:
            raise ValueError(f"an unknown message {kind!r:.40}")

    def _enter(self, kind: str, number: int, parent: int | None, written: Any, hinted: Any, wait: int | None) -> None:
        try:
            segments, hints = wire.read_segments(written), self._of_here(wire.read_hints(hinted))
            before = None if parent is None else self.handles[parent]
            if isinstance(before, BaseException):
                raise before
            handle = (self._backend.submit if kind == "submit" else self._backend.prefill)(before, segments, hints)
        except Exception as error:
            self.handles[number] = error
            self._box.post(["fail", number, None, wire.write_error(error)])
            if wait is not None:
                self._box.post(["raise", wait, wire.write_error(error)])
            return
        self.handles[number] = handle
        if kind == "prefill":
            self.pins.add(number)
        if wait is not None:
            self._box.post(["return", wait, None])
        watched = hints is not None and hints.watched
        for index, result in enumerate(handle.results):
            forward = _Forwarder(self._box, number, index, watched)
            result.on_change(forward) if watched else result.on_done(forward)

    def _of_here(self, hints: Hints | None) -> Hints | None:
        """Localize hints: groups of several processes may have equal names; an account is of this process."""
        if self.told is not None:
            hints = hints or Hints()
            hints = hints._replace(account=MeteredAccount(hints.account, self.told))
        return hints if hints is None or hints.group is None else hints._replace(group=(-self._number, *hints.group))

    def _return(self, number: int, act: Callable[[], Any]) -> None:
        try:
            self._box.post(["return", number, act()])
        except Exception as error:
            self._box.post(["raise", number, wire.write_error(error)])

    def _wait_for(self, number: int, wait: Callable[[], None] | None) -> None:
        """Return when `wait` has; other messages are not held up."""
        if wait is None:
            self._return(number, lambda: None)
        else:
            threading.Thread(target=self._return, args=(number, wait), name=f"lmc-pipe-waiting-{self._number}", daemon=True).start()

    def _holds(self, number: int) -> bool:
        handle = self.handles.get(number)
        return handle is not None and not isinstance(handle, BaseException) and self._backend.holds(handle)

    def _health(self) -> Any:
        return codec.encode(self._backend.health() if isinstance(self._backend, SaysHealth) else HEALTHY)


_METHODS: Mapping[str, Callable[..., Any]] = {
    "holds": PipeServer._holds,  # pyright: ignore[reportPrivateUsage]
    "health": PipeServer._health,  # pyright: ignore[reportPrivateUsage]
    "counters": lambda server: codec.encode(server._backend.counters()),
    "server_info": lambda server: codec.encode(server._backend.server_info()),
    "flush_cache": lambda server: server._backend.flush_cache(),
    "count_tokens": lambda server, text: server._backend.count_tokens(text),
    "begin": lambda server, role, previous: wire.write_parts(server._backend.chat_template.begin(role, previous)),
    "end": lambda server, role: wire.write_parts(server._backend.chat_template.end(role)),
}


class _Forwarder:
    """Sends an answer as it grows, if it is watched, and when it is complete. It only enqueues, on whichever thread
    completes the answer."""

    __slots__ = ("_box", "_handle", "_index", "_sent", "_watched")

    def __init__(self, box: Postbox, handle: int, index: int, watched: bool) -> None:
        self._box, self._handle, self._index, self._watched, self._sent = box, handle, index, watched, 0

    def __call__(self, result: Result) -> None:
        if self._watched:
            for delta, scored in result.pieces(self._sent):
                self._box.post(["feed", self._handle, self._index, delta, wire.write_scored(scored)])
                self._sent += 1
        if not result.done:
            return
        if result.error is not None:
            self._box.post(["fail", self._handle, self._index, wire.write_error(result.error)])
        else:
            self._box.post(["done", self._handle, self._index, wire.write_output(result.output())])
