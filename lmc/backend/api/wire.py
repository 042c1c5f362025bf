"""Wires: requests and answers as bytes. JSON and refusals, and what clients of HTTP libraries have in common."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from lmc.backend.api.exchange import MOST_BYTES, Endless, Fault, HttpRequest
from lmc.backend.api.rates import retry_after
from lmc.backend.api.redaction import addressed, without_escaped_keys, without_keys

try:
    import orjson  # pyright: ignore[reportMissingImports]
except ImportError:
    orjson = None
_loads: Callable[[Any], Any] = json.loads if orjson is None else orjson.loads


def dumped(body: Any) -> bytes:
    """Encode as JSON. With orjson, if it is installed: ten times faster; the library encodes what that refuses (half
    surrogates, integers beyond 64 bits)."""
    if orjson is not None:
        try:
            return orjson.dumps(body)
        except orjson.JSONEncodeError:
            pass
    return json.dumps(body, separators=(",", ":")).encode()


def content(request: HttpRequest) -> bytes:
    """Return the body of a request, encoded."""
    return dumped(request.body) if request.data is None else request.data


def parsed(text: str | bytes, secrets: Iterable[str] = ()) -> dict[str, Any]:
    """Parse a JSON object; a list becomes `{"items": list}`. Without the keys in `secrets`. Raises Fault for anything
    else: the answer is unusable."""
    keys = tuple(secrets)
    text = without_keys(text, keys)
    try:
        try:
            body: Any = _loads(text)
        except ValueError:
            body = json.loads(text)  # NaN and Infinity, which are not JSON, but written by some servers
        if _escapes(text):
            body = without_escaped_keys(body, keys)
    except (ValueError, RecursionError):  # the second: nested too deeply
        raise Fault(f"the answer is not JSON: {text[:80]!r}") from None
    if isinstance(body, list):
        return {"items": body}
    if not isinstance(body, dict):
        raise Fault(f"the answer is not a JSON object: {text[:80]!r}")
    return body


def _escapes(text: str | bytes) -> bool:
    """Return whether JSON may spell characters in it otherwise than they are."""
    return "\\u" in text or "\\/" in text if isinstance(text, str) else b"\\u" in text or b"\\/" in text


def refused(status: int, headers: Mapping[str, str], text: str | bytes, path: str = "") -> Fault:
    """Return the fault of an HTTP error answer, or of a redirection. `path`: of the request, which the message names if
    there is nothing at it."""
    if 300 <= status < 400:
        return Fault(
            f"it redirects to {addressed(headers.get('location', 'nowhere'))}; no redirection is followed: give the URL that it leads to", status=status
        )
    try:
        body: Any = json.loads(text)
    except (ValueError, RecursionError):
        body = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    fault = refusal(status, headers, body)
    if path and status in (404, 405):
        fault.message += f" (POST {path})"
    return fault


def refusal(status: int, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the fault of a body that is an error; its message is searched where servers put it."""
    message, param, code = "", None, None
    error: Any = body.get("error", body) if isinstance(body, dict) else body  # pyright: ignore[reportUnknownMemberType]
    if isinstance(error, dict):
        found: Any = error.get("message") or error.get("detail") or ""
        message, param, code = str(found), error.get("param"), error.get("code")
    else:
        message = str(error)
    return Fault(
        message or "no message", status=status, retry_after=retry_after(headers), param=param,
        code=code if isinstance(code, str) else None, headers=headers,
    )  # fmt: skip


def lowered(headers: Any) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}


def bounded(client: Any) -> None:
    """Let an httpx client read no more of an answer than `MOST_BYTES`, counted when it is decompressed."""

    async def bound(response: Any) -> None:
        if response.request.url.path.endswith(_FILES):
            return
        read = response.aiter_bytes

        async def counted(chunk_size: int | None = None) -> AsyncIterator[bytes]:
            room = MOST_BYTES
            async for piece in read(chunk_size):
                room -= len(piece)
                if room < 0:
                    raise Endless.beyond(MOST_BYTES)
                yield piece

        response.aiter_bytes = counted  # through which httpx reads lines and whole bodies, too

    client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks["response"], bound]}


_FILES = ("/content", "/results")  # with the answers to a batch, as OpenAI and Anthropic have them
