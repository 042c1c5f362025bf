"""Server info: URLs, model and kind of SGLang and vLLM servers, asked before the first request, and what else answers there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from lmc.arguments import wrong_type
from lmc.backend.api.exchange import Fault
from lmc.backend.api.network import PROXY_KEY, Access, exchanged, tls
from lmc.backend.api.redaction import addressed, authorization, check_key, check_url, redacted, secrets_of_headers, shown
from lmc.backend.api.wire import parsed, refused
from lmc.errors import BackendError, ParameterError
from lmc.tracebacks import warn

_PATIENCE = 10.0  # seconds for what a server says of itself


def urls_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return one URL or several of the same model, without a slash at the end."""
    urls = (given,) if isinstance(given, str) else tuple(given)
    for url in urls:
        if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise wrong_type("url", url, "the URL of a server, as text")
        check_url(url, "")
    if not urls:
        raise ParameterError("give the URL of a server")
    return tuple(_in_ascii(url).rstrip("/") for url in urls)


def _in_ascii(url: str) -> str:
    """Return a URL whose host is spelled as domain names are looked up. Raises ParameterError for one that cannot be."""
    if url.isascii():
        return url
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    try:
        return f"{scheme}://{host.encode('idna').decode()}{slash}{quote(path)}"
    except UnicodeError as error:
        raise ParameterError(f"{shown(url)!r} has a host that is no domain name: {error}") from None


class NoServer(BackendError):
    """No server answers at a URL, or not one of the kind. `speaks`: something answers there."""

    speaks = False


def asked(url: str, paths: Sequence[str], access: Access, what: str) -> dict[str, Any]:
    """Return the server's info from the first of the paths that it has. Raises NoServer when there is no answer."""
    said, bare = "no answer", addressed(url)
    headers = {**access.headers, **authorization(url)}
    for path in paths:
        speaks = False
        try:
            status, told, data = exchanged("GET", bare + path, headers, None, access.verify, access.seconds)
            speaks = True
            if status < 300:
                return parsed(data)
        except Fault as fault:
            reason = redacted(fault.message, secrets_of_headers(headers)).removeprefix(f"{bare}{path}: ")
            silent = NoServer(f"no {what} server at {bare}: {reason}{_of_scheme(bare, reason)}")
            silent.speaks = speaks
            raise silent from None
        said = f"HTTP {status} for {path}"
        if status < 400:
            said += f": {refused(status, told, data).message}"
        elif status in (401, 403):
            said += "; it wants a key, or another one: api_key=…"
        elif status == 407:
            said += PROXY_KEY
        if status != 404:
            break
    other = NoServer(f"no {what} server at {bare}: {said}")
    other.speaks = True
    raise other


def told(url: str, path: str, access: Access) -> tuple[int, str]:
    """Call an endpoint of a server that needs no body: return the HTTP status and text. Raises NoServer when there is
    no answer."""
    bare = addressed(url)
    headers = {**access.headers, **authorization(url)}
    try:
        status, heard, data = exchanged("POST", bare + path, headers, b"", access.verify, 60.0)
    except Fault as fault:
        raise NoServer(f"no answer from {bare}: {redacted(fault.message, secrets_of_headers(headers))}") from None
    return status, data.decode("utf-8", "replace") if status < 300 else refused(status, heard, data).message


def asked_of(url: str, paths: Sequence[str], access: Access, what: str) -> dict[str, Any]:
    """As `asked`; if another server answers there, the error says how to reach it."""
    try:
        return asked(url, paths, access, what)
    except NoServer as error:
        if not error.speaks:
            raise
        raise NoServer(f"{error.message}{_described(url, access)}") from None


def _of_scheme(url: str, reason: str) -> str:
    """Return the remedy for a server that speaks TLS where it should not, or the other way round."""
    if url.startswith("https:") and ("WRONG_VERSION_NUMBER" in reason or "handshake operation timed out" in reason):
        return "; if it speaks http, write http:// in its URL"
    return "; if it speaks https, write https:// in its URL" if url.startswith("http:") and "closed connection without response" in reason else ""


def _described(url: str, access: Access) -> str:
    """Describe what answers at a URL in place of the expected server, and how to reach it; "" if that is unknown."""
    bare = addressed(url)
    at = urlsplit(bare)
    origin = f"{at.scheme}://{at.netloc}"
    for root in dict.fromkeys((bare, origin)):
        try:
            models: Any = asked(root, ("/v1/models",), access, "").get("data")
        except NoServer:
            continue
        if not isinstance(models, list):
            continue
        owner = str(models[0].get("owned_by")) if models and isinstance(models[0], dict) else ""
        if owner in _CLIENTS:
            return f"; {_CLIENTS[owner][0]} answers there: {_CLIENTS[owner][1]}({root!r})"
        return f"; a server of OpenAI's API answers there: lmc.OpenAI(model, base_url='{root}/v1')"
    return f"; give its URL alone, {origin}" if at.path.strip("/") else ""


_CLIENTS = {"vllm": ("a vLLM server", "lmc.VLLM"), "sglang": ("an SGLang server", "lmc.SGLang")}


def access_of(api_key: str | None, verify: bool | str | None, timeout: float) -> Access:
    """Return what requests need. A server is asked about itself within half of the `timeout` of an attempt, which may have to check its model first.
    Raises ParameterError for a key or a file that cannot be used."""
    check_key(api_key)
    verify = True if verify is None else verify
    tls(verify)
    return Access({"authorization": f"Bearer {api_key}"} if api_key else {}, verify, min(_PATIENCE, timeout / 2))


def one_model(urls: Sequence[str], ask: Callable[[str], dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Return the servers' info. Raises BackendError when none answers, or when they do not run one model."""
    said: dict[str, dict[str, Any]] = {}
    silent: list[NoServer] = []
    for url in urls:
        try:
            said[url] = ask(url)
        except NoServer as error:
            silent.append(error)
    if not said:
        raise silent[0]
    if len({name(info) for info in said.values()}) > 1:
        raise BackendError(
            f"the servers run different models: {', '.join(f'{name(info)} at {shown(url)}' for url, info in said.items())}; give URLs of one model"
        )
    for error in silent:
        warn(f"{error}; the other servers get its requests until it answers")
    return next(iter(said.values()))


def is_router(url: str, access: Access) -> bool:
    """Return whether a URL is that of a router, which knows its workers, and not of a server."""
    try:
        return bool(asked(url, ("/workers", "/list_workers"), access, "router"))
    except NoServer:
        return False


def without_root(urls: Sequence[str]) -> tuple[str, ...]:
    """Return URLs without the `/v1` that clients of OpenAI's API use."""
    return tuple([url.removesuffix("/v1") for url in urls])
