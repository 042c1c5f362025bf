"""A backend in another process: its requests and answers cross a pipe as data.

    program ──► PipeBackend ══ frames of messages ══► PipeServer ──► Backend (an engine, a mock, an API)
                handle ids        (wire.py)           id → handle

`PipeBackend` is a `Backend`; `PipeServer` serves any other over one connection, for worker processes of `lmc serve` and
for replicas of an engine alike. When the connection ends, everything the other side held is cancelled and released.
"""
