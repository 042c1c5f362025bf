"""Sending over a connection from any thread, also from destructors: messages queue, and a thread of its own writes them as frames."""

from __future__ import annotations

import os
import queue
import socket
import threading
from multiprocessing.connection import Connection

from lmc.backend.pipe import wire
from lmc.thread_turns import short_turns

_MOST = 256  # messages of a frame


class Postbox:
    """Outgoing messages. `post` never waits and takes no lock that a destructor could need.

    When the other side stops reading, or after `close`, the connection is shut down, which its reader notices. Only the
    reader then calls `end`, which closes it: its file descriptor may be reused at once, and a thread that still uses it
    would shut down or write to another connection.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._open = threading.Lock()  # held while the file descriptor is used for more than reading and writing
        self._queue: queue.SimpleQueue[wire.Message | None] = queue.SimpleQueue()  # its `put` may interrupt itself
        self._thread = threading.Thread(target=self._write, name=name, daemon=True)
        self._thread.start()

    def post(self, message: wire.Message) -> None:
        self._queue.put(message)

    def close(self) -> None:
        """End the connection once queued messages have been sent. Usable from a destructor."""
        self._queue.put(None)

    def cut(self) -> None:
        """Shut the connection down: its readers, here and at the other end, see its end. From any thread."""
        with self._open:
            if not self._connection.closed:
                try:
                    with socket.socket(fileno=os.dup(self._connection.fileno())) as line:
                        line.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the other side has gone

    def end(self) -> None:
        """Shut down and close the connection, once nothing writes to it. For the reading thread."""
        self.cut()
        self.close()
        self._thread.join()
        with self._open:
            self._connection.close()

    def _write(self) -> None:
        with short_turns:  # what is posted meanwhile would leave with the next frame, once in 5 ms
            self._send()

    def _send(self) -> None:
        try:
            over = False
            while not over and (message := self._queue.get()) is not None:
                frame = [message]
                while len(frame) < _MOST and not self._queue.empty():
                    if (message := self._queue.get()) is None:
                        over = True
                        break
                    frame.append(message)
                self._connection.send_bytes(wire.to_bytes(frame))
        except OSError:
            pass  # a broken pipe: no peer is left to tell
        finally:
            self.cut()


def frames(connection: Connection) -> list[wire.Message] | None:
    """Yield the next messages; None when the other side has gone, or sends invalid ones."""
    try:
        return wire.from_bytes(connection.recv_bytes())
    except (EOFError, OSError, ValueError, TypeError):
        return None
