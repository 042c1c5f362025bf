"""Server-sent events: the JSON objects in a stream of bytes, as they arrive, and the errors among them.

Lines end with LF, CR LF or CR, and may arrive in any pieces (the format of WHATWG's HTML standard). They are split as bytes: `str.splitlines`,
by which HTTP libraries split theirs, also splits at U+2028 and U+0085, which JSON may contain as they are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from lmc.backend.api.exchange import Fault, Received
from lmc.backend.api.wire import parsed, refusal

_BOM = b"\xef\xbb\xbf"
_DONE = b"[DONE]"


class EventSource:
    """The events of one stream. `ended`: its `[DONE]` has come, and whatever follows is not read."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self.ended = False
        self._secrets = secrets
        self._first, self._after_cr = True, False
        self._line: list[bytes] = []  # pieces of a line without an end
        self._kind, self._data = b"", list[bytes]()  # of an event without an end

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """Yield the events that a piece of the stream ends. Raises Fault for one that is an error."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        if not piece:
            return
        self._after_cr = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._line.append(piece)
        if b"\n" not in piece:
            return
        *lines, rest = b"".join(self._line).split(b"\n")
        self._line = [rest] if rest else []
        yield from self._read(lines)

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the last event of a stream that ended without an empty line. Raises Fault if the stream broke off within
        it."""
        lines, self._line = [b"".join(self._line), b""], []
        try:
            yield from self._read(lines)
        except Fault as fault:
            if fault.status is not None:
                raise
            raise Fault(f"the stream broke off within an event ({fault.message})") from None

    def _read(self, lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
        for line in lines:
            if self.ended:
                return
            if self._first:
                line, self._first = line.removeprefix(_BOM), False
            if not line:
                yield from self._event()
            elif line.startswith(b"data:"):
                data = line[5:].strip()
                self.ended = data == _DONE
                if self.ended:
                    yield from self._event()
                elif data:
                    self._data.append(data)
            elif line.startswith(b"event:"):
                self._kind = line[6:].strip()

    def _event(self) -> Iterator[dict[str, Any]]:
        kind, lines, self._kind, self._data = self._kind, self._data, b"", []
        if not lines or kind == b"ping":
            return
        alone = len(lines) > 1 and all(line.startswith(b"{") for line in lines)  # a server that leaves out the empty lines
        for data in lines if alone else (b"\n".join(lines),):
            body = parsed(data, self._secrets)
            check_event(body, kind)
            yield body


def check_event(body: dict[str, Any], kind: bytes = b"") -> None:
    """Raise Fault for an event that is an error, in a stream whose HTTP status was a success.

    OpenAI's and Anthropic's have the type of the error, vLLM's its status, old ones of vLLM without a field around them,
    and some gateways a text. SGLang writes such events only for invalid requests: on a fault of its own the stream breaks
    off.
    """
    error: Any = body.get("error")
    if isinstance(error, dict):
        status = 400
    elif (isinstance(error, str) and error) or kind == b"error" or body.get("object") == "error":
        error, status = error or body, 500
    else:
        return
    raise refusal(status_of(error, status) if isinstance(error, dict) else status, {}, error)


def status_of(error: Mapping[str, Any], otherwise: int) -> int:
    """Return the HTTP status of an error that came without one, by its code or its type."""
    code = error.get("code")
    if type(code) is int and 400 <= code < 600:
        return code
    return next((STATUS[name] for name in (error.get("type"), code) if isinstance(name, str) and name in STATUS), otherwise)


STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403, "not_found_error": 404,
    "request_too_large": 413, "rate_limit_error": 429, "rate_limit_exceeded": 429, "insufficient_quota": 429, "api_error": 500, "server_error": 500,
    "internal_server_error": 500, "timeout_error": 504, "overloaded_error": 529, "context_length_exceeded": 400, "invalid_prompt": 400,
}  # fmt: skip
"""Types and codes of errors, as Anthropic and OpenAI name them, with their HTTP status."""


async def events(
    pieces: AsyncIterator[bytes], headers: Mapping[str, str], secrets: Sequence[str], last: Callable[[dict[str, Any]], bool] = lambda body: False
) -> AsyncIterator[Received]:
    """Yield the JSON objects of a stream, up to its `[DONE]` or the `last` one, or its end: whether the answer is complete
    then, says the answer. Raises Fault if there is none."""
    source, came = EventSource(secrets), False
    async for piece in pieces:
        for body in source.feed(piece):
            came = True
            yield Received(body, headers)
            if last(body):
                return
        if source.ended:
            break
    else:
        for body in source.end():
            came = True
            yield Received(body, headers)
    if not came:
        kind = headers.get("content-type", "").partition(";")[0].strip()
        raise Fault("the stream ended before the answer did" + (f": it has no event, and is {kind}" if kind not in ("", "text/event-stream") else ""))
