"""Redaction: keys and passwords never leave a backend in a message, whoever wrote it: lmc, an SDK, or a server that echoes what it was sent."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

REDACTED = "[redacted]"
_USERINFO = re.compile(r"(?<=://)[^/?#\s@'\"]+@")
_SHORTEST = 4  # characters of a secret that can be told from a word
_LONG = 8  # from here on also within other words
_SECRET_HEADERS = ("authorization", "x-api-key", "api-key", "proxy-authorization", "cookie")
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


def secrets_of_url(url: str) -> Iterator[str]:
    """The password of a URL in the forms in which a server may see it."""
    parts = urlsplit(url)
    if not parts.password:
        return
    user, password = unquote(parts.username or ""), unquote(parts.password)
    yield from (parts.password, password, base64.b64encode(f"{user}:{password}".encode()).decode())


def secrets_of_headers(headers: Mapping[Any, Any]) -> Iterator[str]:
    """What headers that carry keys carry: with and without the scheme before it."""
    for name, value in headers.items():
        if str(name).lower() in _SECRET_HEADERS and isinstance(value, str):
            yield value
            yield value.rpartition(" ")[2]
