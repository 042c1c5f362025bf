"""The server's pages for people: its activity (`/`), its API to try out (`/docs`), questions of runs (`/runs`).

They hold nothing: all that they show they ask for. Where the server has keys, the browser asks for one, and sends it with each request of a page
(HTTP's basic authentication).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from starlette.types import ASGIApp, Receive, Scope, Send

from lmc import pages
from lmc.serve.gate import EndpointCall, EndpointReply

_SAID = '<p role="status" id="said"></p>'
_BODIES = {
    "live": (
        "lmc serve",
        '<header class="top"><h1>lmc serve</h1><span class="quiet" id="about"></span></header>'
        f'<nav aria-label="Pages"><a href="/docs">API</a> <a id="runs" href="/runs" hidden>Questions of runs</a> <a href="/metrics">Metrics</a></nav>{_SAID}'
        '<div id="cards" class="cards"></div><h2>Memory</h2><div id="memory"></div>'
        '<h2>Endpoints</h2><div id="endpoints" class="scroll bare" tabindex="0" role="region" aria-label="Endpoints"></div>',
    ),
    "docs": (
        "API of lmc serve",
        '<header class="top"><h1>API</h1><span class="quiet" id="models"></span></header>'
        '<nav aria-label="Pages"><a href="/">Live</a> <a href="/openapi.json">openapi.json</a></nav>'
        f'{_SAID}<div class="tools"><input type="search" id="search" placeholder="search ( / )" aria-label="search"></div><main id="found"></main>',
    ),
    "runs": (
        "Questions of runs",
        '<header class="top"><h1>Questions of runs</h1></header>'
        f'<nav aria-label="Pages"><a href="/">Live</a> <a href="/docs">API</a></nav>{_SAID}<main id="found"></main>',
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
@media(max-width:800px){.lmc .bare td,.lmc .bare th{padding-right:8px}.lmc .cards{grid-template-columns:1fr 1fr;gap:.5rem}.lmc .cards .card{padding:.5rem .6rem}
.lmc .big{font-size:1.3rem}}
</style>"""


@cache
def _page(name: str) -> bytes:
    folder = resources.files("lmc.serve").joinpath("static")
    script = "".join(folder.joinpath(f"{part}.js").read_text(encoding="utf-8") for part in ("common", name))
    title, body = _BODIES[name]
    return pages.page(title, _STYLE + body, script=script, asks_server="'self'").encode()


def page(name: str) -> Callable[[EndpointCall], Awaitable[EndpointReply]]:
    """Return the endpoint of a page."""

    async def shown(call: EndpointCall) -> EndpointReply:
        return EndpointReply(_page(name), content_type="text/html; charset=utf-8", headers={"cache-control": "no-store", "vary": "accept"})

    return shown


@dataclass(frozen=True)
class ByAccept:
    """One address for people and programs: `html` for clients that accept text/html, `data` for all others."""

    html: ASGIApp
    data: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = b",".join(value for name, value in scope["headers"] if name == b"accept")
        await (self.html if b"text/html" in accepted.lower() else self.data)(scope, receive, send)
