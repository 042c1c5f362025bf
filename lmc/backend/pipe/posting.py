"""Sending over a connection from any thread, also from destructors: messages queue, and a thread of its own writes them as frames."""

from __future__ import annotations

import os
import queue
import socket
import threading
from multiprocessing.connection import Connection

from lmc.backend.pipe import wire

_MOST = 256  # messages of a frame


class Postbox:
    """Messages on their way out. `post` never waits and takes no lock that a destructor could meet.

    When the other side takes nothing any more, or after `close`, the line is cut, which whoever reads from it notices. Who reads calls `end`
    then, and nobody else closes the connection: its number may be another line's at once, which a thread that still uses it would cut or write to.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._open = threading.Lock()  # held while the connection's number is used for more than reading and writing
        self._queue: queue.SimpleQueue[wire.Message | None] = queue.SimpleQueue()  # its `put` may interrupt itself
        self._thread = threading.Thread(target=self._write, name=name, daemon=True)
        self._thread.start()

    def post(self, message: wire.Message) -> None:
        self._queue.put(message)

    def close(self) -> None:
        """Ends the line once what is queued has been sent. Usable from a destructor."""
        self._queue.put(None)

    def cut(self) -> None:
        """Cuts the line: whoever reads from it, here and at the other end, is told that it has ended. Any thread may."""
        with self._open:
            if not self._connection.closed:
                try:
                    with socket.socket(fileno=os.dup(self._connection.fileno())) as line:
                        line.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the other side has gone

    def end(self) -> None:
        """Cuts the line and closes the connection, when nothing writes to it any more. For the thread that reads from it."""
        self.cut()
        self.close()
        self._thread.join()
        with self._open:
            self._connection.close()

    def _write(self) -> None:
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
            pass  # a broken pipe: there is nobody to tell
        finally:
            self.cut()


def frames(connection: Connection) -> list[wire.Message] | None:
    """The next messages; None when the other side has gone, or sends what are none."""
    try:
        return wire.from_bytes(connection.recv_bytes())
    except (EOFError, OSError, ValueError, TypeError):
        return None
