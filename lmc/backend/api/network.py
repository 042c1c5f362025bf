"""The way to a server: certificates, proxies, and what a connection that fails says.

Certificates are those of the system, or of the file that SSL_CERT_FILE names. Proxies are those of the environment (HTTP_PROXY, HTTPS_PROXY,
ALL_PROXY, NO_PROXY, where networks such as 10.0.0.0/8 count, too). No redirection is followed: the host that it leads to was not named, and would be
sent the key and the prompt.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
import re
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from lmc.backend.api.exchange import NOTHING, Fault, Untrusted
from lmc.backend.api.redaction import addressed, secrets_of_url
from lmc.errors import MissingPackageError, ParameterError
from lmc.extras import missing as _missing
from lmc.segments import SamplingParams

CONNECT = 30.0
"""Seconds to reach a server."""

PROXY_KEY = "; the proxy wants a user and a password: HTTPS_PROXY=http://user:password@host:port"
_MOST_SAID = 1 << 24  # bytes that are read of what a server says of itself


def missing(what: str, package: str, extra: str, error: ImportError | None = None) -> MissingPackageError:
    """Return the error of `what`, whose package is not installed, or lacks something itself."""
    broken = error is not None and error.name not in (None, package)
    return _missing(what, [package], extra, f"which cannot be imported ({error})" if broken else "")


def imported(what: str, package: str, extra: str = "") -> Any:
    """Return the module of `what`, on whose package it is. Raises MissingPackageError."""
    module = package.replace("-", ".")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(what, package, extra or package, None if module.startswith(error.name or module) else error) from None


def check_client_options(what: str, options: Mapping[str, Any]) -> None:
    """Refuse sampling parameters among the options of an SDK's client, which take no effect there."""
    name = next((name for name in options if name in _SAMPLING), None)
    if name is not None:
        run = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}.get(name, name)
        raise ParameterError(f"{what}({name}=…): sampling parameters belong to a run, a batch or a gen, as in fn.run({run}=…)")


_SAMPLING = frozenset((*(field.name for field in fields(SamplingParams)), "max_tokens", "min_tokens", "seed"))


# -- certificates --------------------------------------------------------------------------------------------------------------


def tls(verify: bool | str = True) -> ssl.SSLContext:
    """Return the context in which certificates are checked: by the system's, those of a file (or folder), or not at all
    (False). Raises ParameterError for a file that has none."""
    return _context(verify, *certificates_of_environment())


def certificates_of_environment() -> tuple[str | None, str | None]:
    """Return the file and the folder of certificates that the environment names."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        _check(file, "SSL_CERT_FILE=")
    return file, folder


@lru_cache(maxsize=8)
def _check(path: str, what: str) -> None:
    try:
        folder = os.path.isdir(path)
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(None if folder else path, path if folder else None)
    except (OSError, ValueError) as error:  # of ssl, too
        raise ParameterError(f"{what}{path!r} has no certificates that can be read (PEM): {getattr(error, 'strerror', None) or error}") from None


@lru_cache(maxsize=8)
def _context(verify: bool | str, *environment: str | None) -> ssl.SSLContext:
    if isinstance(verify, str):
        _check(verify, "verify=")
        folder = os.path.isdir(verify)
        return ssl.create_default_context(cafile=None if folder else verify, capath=verify if folder else None)
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _refused_certificate(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return the refusal of a certificate among the causes of an error."""
    for _ in range(16):
        if error is None or isinstance(error, ssl.SSLCertVerificationError):
            return error
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, BaseException) else error.__cause__ or error.__context__
    return None


_UNKNOWN_AUTHORITY = (18, 19, 20, 21)  # OpenSSL's numbers: self-signed, or signed by an authority that is not known here


# -- proxies -------------------------------------------------------------------------------------------------------------------


def proxy_of(url: str) -> str | None:
    """Return the URL of the proxy that the environment sets for a URL."""
    at, proxies = urlsplit(url), getproxies()
    found = proxies.get(at.scheme) or proxies.get("all")
    if not found or proxy_bypass(at.netloc.rpartition("@")[2]) or _is_within(at.hostname or "", proxies.get("no") or ""):
        return None
    return found if "://" in found else f"http://{found}"


def _is_within(host: str, networks: str) -> bool:
    """Return whether an address is within one of the networks among the entries of NO_PROXY."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in networks.split(","):
        with suppress(ValueError, TypeError):  # a name
            if address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
    return False


def secrets_of_proxies() -> Iterator[str]:
    """Return the passwords of the proxies that the environment names."""
    for url in getproxies().values():
        yield from secrets_of_url(url)


# -- HTTP libraries ------------------------------------------------------------------------------------------------------------


def http_library() -> Any:
    """Return httpx, or httpx2, its successor with the same names: whichever is installed. Raises MissingPackageError if
    neither is."""
    for name in ("httpx", "httpx2"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise missing("a proxy", "httpx", "remote")


def http_errors() -> tuple[type[BaseException], ...]:
    """Return the errors that the loaded HTTP libraries raise for failed connections."""
    loaded = [module for name in ("httpx", "httpx2") if (module := sys.modules.get(name)) is not None]
    return tuple(error for module in loaded for error in (module.HTTPError, module.InvalidURL, module.StreamError))


def client_of(library: Any, kind: str, **options: Any) -> Any:
    """Return a client of an HTTP library, or of an SDK over one. Raises ParameterError for a proxy that it does not
    support."""
    try:
        return getattr(library, kind)(**options)
    except (ImportError, ValueError) as error:  # SOCKS needs a package; a scheme that is none
        raise ParameterError(f"the proxy that the environment names (HTTP_PROXY, HTTPS_PROXY or ALL_PROXY) cannot be used: {error}") from None


# -- faults --------------------------------------------------------------------------------------------------------------------


def broken(error: BaseException, url: str = "", message: str = "") -> Fault:
    """Return the fault of a failed connection to a URL. `message`: in place of the error's own."""
    if (refusal := _refused_certificate(error)) is not None:
        remedy = "; if it is right, name a file with its authority's certificate: SSL_CERT_FILE=…" if refusal.verify_code in _UNKNOWN_AUTHORITY else ""
        return Untrusted(f"{_where(url)}its certificate is not valid here: {refusal.verify_message.rstrip('.')}{remedy}")
    proxy = proxy_of(url) if url else None
    by = f"by the proxy {addressed(proxy)}: " if proxy else ""
    if proxy and (status := re.match(r"(407)\b", str(error))):  # of CONNECT
        return Fault(f"{by}{error}", status=int(status[1]))
    return Fault(f"{_where(url)}{by}{message or f'{type(error).__name__}: {error}'}")


def _where(url: str) -> str:
    return f"{addressed(url)}: " if url else ""


# -- single requests ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """Access to servers: what every request to one has.

    headers  with a key
    verify   how certificates are checked, as for `tls`
    seconds  for what a server says of itself
    """

    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    verify: bool | str = True
    seconds: float = 10.0


def exchanged(method: str, url: str, headers: Mapping[str, str], data: bytes | None, verify: bool | str, seconds: float) -> tuple[int, dict[str, str], bytes]:
    """Make one request on a connection of its own, by the environment's proxy; return the status, headers in lower case and the body. Raises Fault if
    there is no answer."""
    try:
        if (proxy := proxy_of(url)) is not None:
            with _shut_after(seconds) as watch:

                def trace(event: str, info: Mapping[str, Any]) -> None:
                    if event.endswith(("connect_tcp.complete", "start_tls.complete")):
                        watch(info["return_value"].get_extra_info("socket"))

                made = client_of(http_library(), "Client", proxy=proxy, verify=tls(verify), timeout=seconds)
                with made as client, client.stream(method, url, headers=dict(headers), content=data, extensions={"trace": trace}) as answer:
                    body = bytearray()
                    for piece in answer.iter_bytes():
                        body += piece
                        if len(body) >= _MOST_SAID:
                            break
                    return answer.status_code, {**answer.headers}, bytes(body[:_MOST_SAID])
        return directly(method, url, headers, data, verify, seconds, _MOST_SAID)
    except (OSError, HTTPException, *http_errors()) as error:
        raise broken(error, url, str(error)) from None


def directly(
    method: str, url: str, headers: Mapping[str, str], data: bytes | None, verify: bool | str, seconds: float, most: int
) -> tuple[int, dict[str, str], bytes]:
    """As `exchanged`, without a proxy, and no more than the `most` first bytes of the body. Raises TimeoutError if not all of it is there in time, however
    slowly it comes, OSError and HTTPException."""
    at = urlsplit(url)
    host = at.hostname or ""
    connection = (
        HTTPSConnection(host, at.port, timeout=seconds, context=tls(verify)) if at.scheme == "https" else HTTPConnection(host, at.port, timeout=seconds)
    )
    with closing(connection):
        connection.connect()
        with _shut_after(seconds) as watch:
            watch(connection.sock)
            connection.request(method, (at.path or "/") + (f"?{at.query}" if at.query else ""), data, {"connection": "close", "user-agent": "lmc", **headers})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read(most)


@contextmanager
def _shut_after(seconds: float) -> Iterator[Callable[[socket.socket], None]]:
    """Shut the watched sockets after so many seconds: a time-out of a socket's own is one of each byte. Raises TimeoutError at the end if it did."""
    late, sockets = threading.Event(), list[socket.socket]()

    def watch(sock: socket.socket) -> None:
        sockets.append(sock)
        if late.is_set():
            shut()

    def shut() -> None:
        late.set()
        for sock in sockets:
            with suppress(OSError):  # closed already
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, which the other thread is reading

    timer = threading.Timer(seconds, shut)
    timer.daemon = True
    timer.start()
    try:
        yield watch
    except (OSError, HTTPException, *http_errors()):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"no whole answer within {seconds:g} s")
