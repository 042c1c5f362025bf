"""Redaction: keys and passwords never leave a backend in a message, whoever wrote it: lmc, an SDK, or a server that echoes what it was sent."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

REDACTED = "[redacted]"
_USERINFO = re.compile(r"(?<=://)[^/?#\s@'\"]+@")
_SHORTEST = 4  # characters of a secret that can be told from a word
_LONG = 8  # from here on also within other words
_KEY = 12  # and from here on no text has it by chance, so that answers are without it, too
_SECRET_NAME = re.compile(r"key|token|secret|auth|passw|cookie|credential", re.I)  # of headers, and of what a URL's query says
_NO_SECRETS = frozenset({"none", "null", "empty", "test"})  # what servers without keys are given


def without_userinfo(text: str) -> str:
    """A text whose URLs have no user and password."""
    return _USERINFO.sub("", text)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """A text without these secrets, and without users and passwords of URLs."""
    text = without_userinfo(text)
    for secret in sorted({s for s in secrets if len(s) >= _SHORTEST and s.lower() not in _NO_SECRETS}, key=len, reverse=True):
        if len(secret) >= _LONG:
            text = text.replace(secret, REDACTED)
        else:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", REDACTED, text)
    return text


def without_keys(data: str | bytes, secrets: Iterable[str]) -> str | bytes:
    """An answer as it was received, without the keys that were sent: a model never saw them, so only a server can have put them there."""
    for secret in secrets:
        if len(secret) >= _KEY:
            if isinstance(data, str):
                data = data.replace(secret, REDACTED)
            elif (found := secret.encode()) in data:
                data = data.replace(found, REDACTED.encode())
    return data


def secrets_of_url(url: str) -> Iterator[str]:
    """The password of a URL in the forms in which a server may see it, and keys in its query."""
    parts = urlsplit(url)
    yield from secrets_by_name(dict(parse_qsl(parts.query)))
    if not parts.password:
        return
    user, password = unquote(parts.username or ""), unquote(parts.password)
    yield from (parts.password, password, base64.b64encode(f"{user}:{password}".encode()).decode())


def secrets_by_name(values: Mapping[Any, Any]) -> Iterator[str]:
    """The values whose names say that they are keys: of headers, of a URL's query."""
    yield from (value for name, value in values.items() if _SECRET_NAME.search(str(name)) and isinstance(value, str))


def secrets_of_headers(headers: Mapping[Any, Any]) -> Iterator[str]:
    """What headers that carry keys carry: with and without the scheme before it."""
    for value in secrets_by_name(headers):
        yield value
        scheme, _, credentials = value.rpartition(" ")
        yield credentials
        if scheme.lower() == "basic":
            yield from _of_basic(credentials)


def _of_basic(credentials: str) -> Iterator[str]:
    try:
        yield base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return  # a server will refuse it


def authorization(url: SplitResult) -> dict[str, str]:
    """The header that a URL's user and password mean; it goes before a key."""
    if not url.username:
        return {}
    userinfo = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return {"authorization": f"Basic {base64.b64encode(userinfo.encode()).decode()}"}
