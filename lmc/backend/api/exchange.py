"""One exchange with a server: the request, the answer or the fault, and the wire that sends it once."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from lmc.backend.api.redaction import redacted
from lmc.backend.usage import Usage
from lmc.errors import LmcError

Body = dict[str, Any]
NOTHING: Mapping[str, str] = MappingProxyType({})


def _no_headers() -> Mapping[str, str]:
    return NOTHING


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to send: a path under the server's URL, and the JSON body.

    keys   of the prompt's prefixes (prefixes.py), for choosing among several servers
    size   approximate tokens of the prompt
    limit  tokens that the answer may have
    data   the encoded body; None: encode `body`
    """

    path: str
    body: Body
    headers: Mapping[str, str] = field(default_factory=_no_headers)
    keys: tuple[int, ...] = ()
    size: int = 0
    limit: int = 0
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A response: the JSON body, and the headers in lower case. `origin` receives the answer's usage."""

    body: Body
    headers: Mapping[str, str] = field(default_factory=_no_headers)
    origin: AnsweringServer | None = None


class AnsweringServer(Protocol):
    """The server, among several, that answered."""

    def used(self, usage: Usage) -> None: ...

    def failed(self, fault: Fault) -> None:
        """Record that its answer could not be used."""
        ...


class Fault(Exception):
    """An attempt that failed.

    status       of the HTTP answer, None if there was none
    retry_after  seconds that the server asks for
    param, code  fields of the server's error
    headers      of the HTTP answer, in lower case
    elsewhere    another server may be tried at once
    old          received by an earlier process, for a request that is repeated now
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = NOTHING,
    ) -> None:
        self.message, self.status, self.retry_after, self.param, self.code, self.headers = message, status, retry_after, param, code, headers
        self.elsewhere = self.old = False
        super().__init__(message)

    @property
    def transient(self) -> bool:
        """Return whether retrying may help."""
        if self.elsewhere or self.status is None:
            return True
        return (self.status in (408, 409, 429) and self.code not in _SPENT) or self.status >= 500

    @property
    def too_long(self) -> bool:
        """Return whether the prompt, or it with its answer, does not fit the model's context."""
        return self.code == "context_length_exceeded" or (self.status in (400, 413, 422) and bool(_TOO_LONG.search(self.message)))

    @property
    def mendable(self) -> bool:
        """Return whether the same may be requested with other fields, or without the other members of its list."""
        return self.status in (400, 422)

    @property
    def about_the_server(self) -> bool:
        """Return whether every request would fail in this way: an address, a key or a model's name is wrong."""
        return self.status in (401, 404, 405) or 300 <= (self.status or 0) < 400

    @property
    def filtered(self) -> bool:
        """Return whether a content filter refused the prompt."""
        return self.code in _FILTERS or (self.status == 400 and "content filter" in self.message.lower())

    def redacted(self, secrets: Iterable[str]) -> Fault:
        """Return the same without secrets, and without the errors that caused it, whose messages may contain them."""
        found = copy.copy(self)  # everything but its cause
        found.message, found.code = (
            redacted(self.message, secrets)[:_SHOWN],
            self.code and redacted(self.code, secrets),
        )  # in this order: half a key is one, too
        found.args = (found.message,)
        return found


_TOO_LONG = re.compile(
    r"context[ _](length|window)\b.*\btokens?\b|\btokens?\b.*\bcontext[ _](length|window)|(prompt|input) is too long|ContextWindowExceeded", re.I | re.S
)
"""As OpenAI, Anthropic, vLLM, SGLang, llama.cpp and LiteLLM say it."""
_SHOWN = 500  # characters of a server's message
_SPENT = ("insufficient_quota",)  # code of a 429 that no waiting mends
_FILTERS = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")  # OpenAI's and Azure's names


MOST_BYTES = 256 << 20  # of an answer's body: 128,000 tokens with twenty log-probabilities each have some 200 MB


class Endless(Fault):
    """An answer that is longer than any can be. Another attempt would be, too."""

    transient = False  # type: ignore[assignment]

    @classmethod
    def beyond(cls, most: int) -> Endless:
        return cls(f"the server sent more than {most:,} bytes in answer to one request; no answer has as many, so the rest was not read")


class Untrusted(Fault):
    """A server whose certificate is not valid here, or not for its name. Another attempt would end in the same way."""

    about_the_server = True  # type: ignore[assignment]

    @property
    def transient(self) -> bool:
        return self.elsewhere


class Malformed(Fault):
    """An answer that arrived but is not valid: from another model, or incomplete."""


class reading:
    """Guard reading a body: anything not where the API defines it raises Malformed, whatever the server sent. The server
    that sent it is told."""

    __slots__ = ("_origin",)

    def __init__(self, origin: AnsweringServer | None = None) -> None:
        self._origin = origin

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        fault = error
        if not isinstance(error, LmcError) and isinstance(error, LookupError | TypeError | AttributeError | ValueError | ArithmeticError):
            fault = Malformed(f"the answer is not what its API says ({type(error).__name__}: {error})")
        if self._origin is not None and isinstance(fault, Fault):
            self._origin.failed(fault)
        if fault is not error:
            raise fault from error


class Wire(Protocol):
    """Sends a request once. Raises Fault; any other exception is a bug in lmc."""

    async def post(self, request: HttpRequest) -> Received: ...

    def stream(self, request: HttpRequest) -> AsyncIterator[Received]:
        """Return the answer in pieces, as the server sends them; headers come with each."""
        ...

    async def close(self) -> None: ...

    @property
    def secrets(self) -> Iterable[str]:
        """Return keys and passwords that it sends."""
        ...
