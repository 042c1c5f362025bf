"""The server as an ASGI application: its routes. Composes, decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

import lmc
from lmc.backend.base import Backend, Health
from lmc.frontend.interpreter import Function
from lmc.serve import messages_api, openapi, site
from lmc.serve.audit import AuditLog
from lmc.serve.errors import ApiError
from lmc.serve.gate import Endpoint, EndpointCall, EndpointReply, Entrance, Gate
from lmc.serve.health import HealthApi
from lmc.serve.keys import Keyring
from lmc.serve.metrics import CONTENT_TYPE, Metrics
from lmc.serve.openai_api import OpenAIApi
from lmc.serve.programs import ProgramLoop, Published
from lmc.serve.settings import ServerSettings
from lmc.serve.spinning import Ender
from lmc.serve.workers import WorkerEndpoints, WorkerOptions, Workers

_THREADS = 8  # for slow work before a request is submitted: as many encode prompts, as many compile constraints


def create_app(
    backend: Backend,
    settings: ServerSettings,
    programs: Sequence[Function] = (),
    *,
    workers: WorkerOptions | None = None,
    entrance: Entrance | None = None,
    broken: Callable[[Health], None] | None = None,
) -> Starlette:
    """Create the application over `backend`, which stays its owner's: shutting down cancels nothing and closes nothing.

    `programs` are compiled for the backend and published under their names; with `workers` they run in processes of
    their own. `broken` is called once, on the server's loop, when an engine is permanently broken. Raises ProgramError
    for a program whose arguments cannot be given as JSON.
    """
    entrance = entrance or Entrance(settings.max_requests)
    health = HealthApi(backend, entrance)
    metrics = Metrics(backend)
    pool, compiling = (ThreadPoolExecutor(_THREADS, thread_name_prefix=f"lmc-{name}") for name in ("serve", "compile"))
    loop = ProgramLoop()
    ender = Ender(metrics)
    crew = None if workers is None else Workers(backend, workers, metrics, settings.journals, settings.media_hosts)
    published: list[Published | WorkerEndpoints] = []
    for program in programs:
        published.append(
            Published(program, backend, loop, pool, ender.end, settings.journals, settings.media_hosts)
            if crew is None
            else WorkerEndpoints(program, crew, pool, settings.journals)
        )
    for counted in published if crew is None else [crew]:
        metrics.counts_ahead(partial(getattr, counted, "ahead"))
    api = OpenAIApi(backend, settings, metrics, pool, compiling)

    async def measured(call: EndpointCall) -> EndpointReply:
        text = await asyncio.get_running_loop().run_in_executor(pool, metrics.text)
        return EndpointReply(text, content_type=CONTENT_TYPE)

    async def description(call: EndpointCall) -> EndpointReply:
        return EndpointReply(document)

    async def front_page(call: EndpointCall) -> EndpointReply:
        return EndpointReply(
            {
                "name": "lmc",
                "version": lmc.__version__,
                "models": list(settings.models),
                "description": "/openapi.json",
                "pages": ["/", "/docs", *(["/runs"] if settings.journals is not None else [])],
            }
        )

    async def with_runs(call: EndpointCall) -> EndpointReply:
        return EndpointReply({"programs": [each.name for each in published if call.may(each.name)]})

    keys, audit = Keyring(settings.api_keys), AuditLog(settings.audit_log)
    document = openapi.document(published, with_keys=not keys.open)

    def gate(name: str, endpoint: Endpoint, **how: Any) -> Gate:
        return Gate(name, endpoint, settings, metrics, entrance, keys, audit, **how)

    def route(method: str, path: str, name: str, endpoint: Endpoint, **how: Any) -> Route:
        return Route(path, gate(name, endpoint, route=path, **how), methods=[method], name=name)

    free: dict[str, Any] = {"counted": False}
    routes = [
        route("GET", "/health", "health", health.ready, public=True, **free),
        route("GET", "/health/ready", "ready", health.ready, public=True, **free),
        route("GET", "/health/live", "live", health.live, public=True, **free),
        Route(
            "/",
            site.ByAccept(gate("front page", site.page("live"), page=True, **free), gate("front page", front_page, **free)),
            methods=["GET"],
            name="front page",
        ),
        route("GET", "/docs", "docs", site.page("docs"), page=True, **free),
        route("GET", "/metrics", "metrics", measured, **free),
        route("GET", "/openapi.json", "openapi", description, **free),
        route("GET", "/v1/models", "models", api.models, **free),
        route("GET", "/v1/models/{model:path}", "model", api.model, **free),
        route("POST", "/v1/completions", "completions", api.completions),
        route("POST", "/v1/chat/completions", "chat", api.chat),
        route("POST", "/v1/responses", "responses", api.responses),
        route("POST", "/v1/responses/input_tokens", "input tokens", api.input_tokens),
        route("POST", "/v1/messages", "messages", api.messages, error_body=messages_api.error_body),
        route("POST", "/v1/messages/count_tokens", "count tokens", api.count_tokens, error_body=messages_api.error_body),
        route("POST", "/tokenize", "tokenize", api.tokenize),
        route("POST", "/detokenize", "detokenize", api.detokenize),
        route("GET", "/tokenizer_info", "tokenizer info", api.tokenizer_info, **free),
        route("POST", "/v1/embeddings", "embeddings", api.embeddings),
    ]
    for each in published:
        at = f"/programs/{each.name}"
        routes += [
            route("POST", at, f"program {each.name}", each.run, program=each.name),
            route("POST", f"{at}/stream", f"stream of {each.name}", each.stream, program=each.name),
            route("POST", f"{at}/batch", f"batch of {each.name}", each.batch, program=each.name),
        ]
        if each.runs is not None:
            routes += [
                route("GET", f"{at}/runs", f"runs of {each.name}", each.runs.listed, program=each.name, **free),
                route("GET", f"{at}/runs/{{run}}", f"a run of {each.name}", each.runs.status, program=each.name, **free),
                route("POST", f"{at}/runs/{{run}}/answers", f"answers to {each.name}", each.resume, program=each.name),
            ]
    if settings.journals is not None:
        routes += [
            route("GET", "/runs", "page of runs", site.page("runs"), page=True, **free),
            route("GET", "/runs/programs", "programs with runs", with_runs, **free),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if crew is not None:
            await crew.start()
        watching = [asyncio.create_task(metrics.watch_loop()), *([asyncio.create_task(health.watch(broken))] if broken is not None else [])]
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            for each in published:
                each.close()
            if crew is not None:
                await crew.close()
            ender.close()
            loop.close()
            audit.close()
            for each in (pool, compiling):
                each.shutdown(wait=False, cancel_futures=True)

    elsewhere = _Elsewhere(routes, partial(gate, "elsewhere", **free))
    app = Starlette(routes=[*routes, elsewhere], lifespan=lifespan, middleware=_for_browsers(settings.origins))
    app.router.redirect_slashes = False
    app.state.metrics, app.state.entrance = metrics, entrance
    return app


def _for_browsers(origins: Sequence[str]) -> list[Middleware]:
    """Return middleware that lets pages of other origins make requests; none without origins."""
    if not origins:
        return []
    told = ["x-request-id", "retry-after"]
    # all headers: SDKs add ever more of their own (x-stainless-…, anthropic-…), and what a page may send is up to its origin
    return [Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"], expose_headers=told)]


@dataclass
class _Elsewhere(BaseRoute):
    """Answer a request for which there is no route: behind the gate, like all others, so that nobody without a key learns which routes there are."""

    routes: Sequence[Route]
    gate: Callable[..., Gate]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Match.FULL, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def refused(call: EndpointCall) -> EndpointReply:
            methods = {method for route in self.routes if route.matches(scope)[0] is not Match.NONE for method in route.methods or ()}
            status, why = (405, "method not allowed") if methods else (404, f"not found{self._meant(scope['path'])}")
            message = f"{scope['method']} {scope['path']}: {why}{'' if why.endswith('?') else ';'} GET /openapi.json says what there is"
            raise ApiError(status, message, headers={"Allow": ", ".join(sorted(methods))} if methods else None)

        await self.gate(refused, error_body=partial(messages_api.error_body_at, scope["path"]))(scope, receive, send)

    def _meant(self, path: str) -> str:
        """Return the path that a client may have meant; most often its base URL lacks the /v1 of OpenAI's clients, or has it twice."""
        near = difflib.get_close_matches(path[:100], [route.path for route in self.routes], 1)
        if not near:
            return ""
        base = {f"/v1{path}": " (a base URL that ends with /v1)", path.removeprefix("/v1"): " (a base URL without /v1)"}.get(near[0], "")
        return f"; did you mean {near[0]}{base}?"
