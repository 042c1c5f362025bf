"""Redaction: keys and passwords never leave a backend in a message, whoever wrote it: lmc, an SDK, or a server that echoes what it was sent.

https://tom:hunter2@host:8000/v1        as it is given
https://host:8000/v1                    `addressed`: where requests go; `authorization`: the header that tom and hunter2 are sent in
https://host:8000/v1                    `shown`: in messages, logs and journals, also where it is no URL that a request could go to
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from lmc.errors import ParameterError

REDACTED = "[redacted]"
_USERINFO = re.compile(r"(?<=://)[^/?#\s'\"]*@")  # in a text, which has quotes around URLs
_AUTHORITY_ENDS = re.compile(r"[/?#\\]")
_SHORTEST = 4  # characters of a secret that differs from a word
_LONG = 8  # from this length on also within other words
_KEY = 12  # and from this length on no text contains it by chance, so that answers are redacted, too
_SECRET_NAME = re.compile(r"key|token|secret|auth|passw|cookie|credential", re.I)  # of headers, and of a URL's query
_NO_SECRETS = frozenset({"none", "null", "empty", "test"})  # placeholder keys for servers without keys


def check_url(url: str, what: str, like: str = "http://host:port") -> None:
    """Raise ParameterError unless this is the URL of a server: scheme, host, port and path. `what` names it in the message, `like` is an example.

    A user and a password may stand before the host, percent-encoded: as they are, no reader of URLs agrees with another where they end.
    A query is refused, since the paths of requests could only be appended to it.
    """
    where = f"{what}{shown(url)!r}"
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https"):
        raise ParameterError(f"{where} is not a URL such as {like}")
    authority, behind = _cut(rest)
    if "@" in behind or authority.count("@") > 1:
        raise ParameterError(f"{where}: a user or a password in it has characters that must be percent-encoded, such as %40 for @ and %2F for /")
    if "?" in behind or "#" in behind:
        raise ParameterError(f"{where} has a query or a fragment, to which no path of a request can be appended; give a key as api_key=…, not in the URL")
    if not _reachable(url):
        raise ParameterError(f"{where} is not a URL such as {like}")


def check_key(key: object, what: str = "api_key") -> None:
    """Raise ParameterError if a key cannot stand in a header, before it gets into a message in which, escaped, it would not be recognized."""
    if isinstance(key, str) and not (key.isascii() and key.isprintable() and key == key.strip()):  # a line break would end the header
        raise ParameterError(
            f"{what} has characters that no HTTP header may have, such as a line break at its end (of a file with Windows line ends?); give the key alone"
        )


def _reachable(url: str) -> bool:
    """Return whether a URL has a host, and a valid port if it has any."""
    try:
        at = urlsplit(url)
        return bool(at.hostname) and at.port != 0 and all(c.isprintable() and not c.isspace() and c != "\\" for c in url)
    except ValueError:
        return False


def _cut(rest: str) -> tuple[str, str]:
    """Split a URL's authority from its path, query and fragment."""
    end = _AUTHORITY_ENDS.search(rest)
    return (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])


def addressed(url: str) -> str:
    """Return a URL that `check_url` takes, without its user and password."""
    scheme, colon, rest = url.partition("://")
    authority, behind = _cut(rest)
    return f"{scheme}{colon}{authority.rpartition('@')[2]}{behind}"


def shown(url: str) -> str:
    """Return a URL, or what was given as one, as everybody may see it: no user, no password, no query. Where it cannot be told what its
    host is, nothing of it is shown but the scheme."""
    scheme, colon, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    authority, behind = _cut(rest)
    if "@" in behind or (not colon and "://" in url):
        return f"{scheme}{colon}{REDACTED}"
    path = re.split(r"[?#\\]", behind, maxsplit=1)[0]
    return f"{scheme}{colon}{authority.rpartition('@')[2]}{path}"


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return a text without these secrets, and without users and passwords of URLs."""
    text = _USERINFO.sub("", text)
    spelled = {s for secret in secrets for s in (secret, secret.strip())}  # a line break at its end is escaped where a library quotes it
    for secret in sorted({s for s in spelled if len(s) >= _SHORTEST and s.lower() not in _NO_SECRETS}, key=len, reverse=True):
        if len(secret) >= _LONG:
            text = text.replace(secret, REDACTED)
        else:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", REDACTED, text)
    return text


def without_keys(data: str | bytes, secrets: Iterable[str]) -> str | bytes:
    """Return a received answer without the keys that were sent: a model never saw them, so only a server can have put
    them there."""
    for secret in secrets:
        if len(secret) >= _KEY:
            if isinstance(data, str):
                data = data.replace(secret, REDACTED)
            elif (found := secret.encode()) in data:
                data = data.replace(found, REDACTED.encode())
    return data


def without_escaped_keys(body: Any, secrets: Iterable[str]) -> Any:
    """Return a parsed answer without the keys that were sent, which JSON may have spelled otherwise (`\\u0073k-…`)."""
    keys = tuple(secrets)

    def cleaned(x: Any) -> Any:
        if isinstance(x, str):
            return without_keys(x, keys)
        if isinstance(x, dict):
            return {cleaned(name): cleaned(value) for name, value in x.items()}
        return [cleaned(value) for value in x] if isinstance(x, list) else x

    return cleaned(body) if keys else body


def secrets_of_url(url: str) -> Iterator[str]:
    """Return the password of a URL, or the user without one, in the forms in which a server or a message may have it; and keys in its query."""
    try:
        parts = urlsplit(url)
        user, password = parts.username or "", parts.password or ""
    except ValueError:
        return  # nothing is sent to it
    yield from secrets_by_name(dict(parse_qsl(parts.query)))
    if not (password or user):
        return
    told = (unquote(user), unquote(password))
    yield base64.b64encode(":".join(told).encode()).decode()
    given, plain = (password, told[1]) if password else (user, told[0])
    yield from (given, plain, quote(plain, safe=""), repr(plain)[1:-1], json.dumps(plain)[1:-1])


def secrets_by_name(values: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the values whose names mark them as keys: of headers, of a URL's query."""
    yield from (value for name, value in values.items() if _SECRET_NAME.search(str(name)) and isinstance(value, str))


def secrets_of_headers(headers: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the secrets of headers that carry keys: with and without the scheme before it."""
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
        return  # the server will refuse it


def authorization(url: str) -> dict[str, str]:
    """Return the header for a URL's user and password; it takes precedence over a key."""
    at = urlsplit(url)
    if not (at.username or at.password):
        return {}
    userinfo = f"{unquote(at.username or '')}:{unquote(at.password or '')}"
    return {"authorization": f"Basic {base64.b64encode(userinfo.encode()).decode()}"}
