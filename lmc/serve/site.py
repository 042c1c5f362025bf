"""The server's pages for people: its activity (`/`), its API to try out (`/docs`), questions of runs (`/runs`).

They hold nothing: all that they show they ask for. Where the server has keys, who has not signed in with one gets a form in the place of
each page. The key goes to the server once, in the body of a request; the browser keeps a session in a cookie that no script can read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pydantic import BaseModel, ConfigDict
from starlette.types import ASGIApp, Receive, Scope, Send

from lmc import pages
from lmc.serve.errors import ApiError, parsed
from lmc.serve.gate import EndpointCall, EndpointReply
from lmc.serve.keys import Keyring

_SAID = '<p role="status" id="said"></p>'
_OUT = ' <button id="out" class="link">Sign out</button>'
_BODIES = {
    "live": (
        "lmc serve",
        '<header class="top"><h1>lmc serve</h1><span class="quiet" id="about"></span></header>'
        f'<nav aria-label="Pages"><a href="/docs">API</a> <a id="runs" href="/runs" hidden>Questions of runs</a> <a href="/metrics">Metrics</a>OUT</nav>{_SAID}'
        '<div id="cards" class="cards"></div><h2>Memory</h2><div id="memory"></div>'
        '<h2>Endpoints</h2><div id="endpoints" class="scroll bare" tabindex="0" role="region" aria-label="Endpoints"></div>',
    ),
    "docs": (
        "API of lmc serve",
        '<header class="top"><h1>API</h1><span class="quiet" id="models"></span></header>'
        '<nav aria-label="Pages"><a href="/">Live</a> <a href="/openapi.json">openapi.json</a>OUT</nav>'
        f'{_SAID}<div class="tools"><input type="search" id="search" placeholder="search ( / )" aria-label="search"></div><main id="found"></main>',
    ),
    "runs": (
        "Questions of runs",
        '<header class="top"><h1>Questions of runs</h1></header>'
        f'<nav aria-label="Pages"><a href="/">Live</a> <a href="/docs">API</a>OUT</nav>{_SAID}<main id="found"></main>',
    ),
    "sign-in": (
        "Sign in to lmc serve",
        '<header class="top"><h1>lmc serve</h1></header>'
        '<form id="form"><label>API key <input id="key" type="password" autocomplete="current-password" autofocus required></label> '
        f"<button>Sign in</button></form>{_SAID}",
    ),
}
_STYLE = """<style>
.lmc .top{display:flex;flex-wrap:wrap;gap:0 1rem;align-items:baseline}
.lmc .cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,13rem),1fr));gap:.8rem}.lmc .small .n{white-space:nowrap}
.lmc .cards .card{margin:0;display:flex;flex-direction:column}
.lmc .card h2{font-size:1rem;margin:0}.lmc .cards h2{font-weight:400;color:var(--quiet)}
.lmc .big{font-size:1.7rem;line-height:1.3;font-variant-numeric:tabular-nums}
.lmc .cards svg{width:100%;height:28px;margin-top:auto;padding-top:.3rem}
.lmc .cards polyline{fill:none;stroke:var(--decode);stroke-width:1.5;vector-effect:non-scaling-stroke}
.lmc .tall,.lmc .tall i{height:14px}.lmc .tall{max-width:60rem}.lmc .bare{border:0;overflow-wrap:normal}[hidden]{display:none!important}
.lmc .operation{margin:.4rem 0;padding:.45rem .8rem}.lmc .method{display:inline-block;min-width:3.4em;font:600 12.5px ui-monospace,monospace;color:var(--link)}
.lmc .method.get{color:var(--pin)}
.lmc .operation .fields td{padding:2px 12px 2px 6px}.lmc .operation details{margin:.4rem 0}.lmc .answer:empty{display:none}
.lmc .answer{background:var(--box);border-radius:4px;padding:.4rem .6rem;max-height:24rem;overflow:auto}.lmc .curl{margin-top:.5rem}
.lmc [role=status]:not(:empty){min-height:1.4em}
.lmc .link{border:0;padding:0;background:none;color:var(--link);font:inherit;text-decoration:underline;cursor:pointer}
@media(max-width:800px){.lmc .bare td,.lmc .bare th{padding-right:8px}.lmc .cards{grid-template-columns:1fr 1fr;gap:.5rem}.lmc .cards .card{padding:.5rem .6rem}
.lmc .big{font-size:1.3rem}}
</style>"""


@cache
def _page(name: str, with_keys: bool) -> bytes:
    folder = resources.files("lmc.serve").joinpath("static")
    script = "".join(folder.joinpath(f"{part}.js").read_text(encoding="utf-8") for part in ("common", name))
    title, body = _BODIES[name]
    return pages.page(title, _STYLE + body.replace("OUT", _OUT if with_keys else ""), script=script, asks_server="'self'").encode()


_HTML = "text/html; charset=utf-8"
_PRIVATE = {"cache-control": "no-store", "vary": "cookie, accept"}  # where it was signed out from, nothing is shown by going back


def page(name: str, *, with_keys: bool) -> Callable[[EndpointCall], Awaitable[EndpointReply]]:
    """The endpoint of a page. `with_keys`: whether the server has any, so that one can sign out."""

    async def shown(call: EndpointCall) -> EndpointReply:
        return EndpointReply(_page(name, with_keys), content_type=_HTML, headers=_PRIVATE)

    return shown


def sign_in_form() -> EndpointReply:
    """Return the page that a browser gets in place of any other until it has signed in."""
    return EndpointReply(_page("sign-in", False), 401, _HTML, _PRIVATE)


class Session(BaseModel):
    """The body of a request to sign in."""

    model_config = ConfigDict(extra="forbid", strict=True)
    key: str


def signing(keys: Keyring) -> tuple[Callable[[EndpointCall], Awaitable[EndpointReply]], Callable[[EndpointCall], Awaitable[EndpointReply]]]:
    """The endpoints that begin and end a session."""

    def cookie(call: EndpointCall, value: str, lasts: int) -> dict[str, str]:
        parts = (f"{call.origin.cookie}={value}", "Path=/", "HttpOnly", "SameSite=Strict", f"Max-Age={lasts}", *(("Secure",) if call.origin.secure else ()))
        return {"set-cookie": "; ".join(parts), **_PRIVATE}

    async def sign_in(call: EndpointCall) -> EndpointReply:
        session = keys.sign_in(parsed(Session, call.body).key.strip())
        if session is None:
            raise ApiError(401, "this is no key of this server", code="invalid_api_key")
        return EndpointReply({"lasts": keys.lasts}, headers=cookie(call, session, keys.lasts))

    async def sign_out(call: EndpointCall) -> EndpointReply:
        keys.sign_out(call.session)
        return EndpointReply({}, headers=cookie(call, "", 0))

    return sign_in, sign_out


@dataclass(frozen=True)
class ByAccept:
    """One address for people and programs: `html` for clients that accept text/html, `data` for all others."""

    html: ASGIApp
    data: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = b",".join(value for name, value in scope["headers"] if name == b"accept")
        await (self.html if b"text/html" in accepted.lower() else self.data)(scope, receive, send)
