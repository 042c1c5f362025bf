"""OpenTelemetry: spans of runs, requests, tools and batches by the semantic conventions for generative AI (docs/debugging.md).

    POST /programs/{name} ─► batch judge ─► invoke_workflow judge ─┬► chat gpt-5              ─► (headers) the server of an API
                                                                   ├► execute_tool search
                                                                   └► invoke_workflow helper  ─► …

Texts of prompts, answers, arguments and results are left out, unless OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT asks for them.
"""

from __future__ import annotations

import inspect
import json
import os
import queue
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, StatusCode, use_span

from lmc.backend.base import Backend, Handle, Hints
from lmc.backend.results import Result
from lmc.errors import CancelledError
from lmc.frontend.active import ACTIVE
from lmc.frontend.tools import call_tool
from lmc.integrations.otel_conventions import (
    Attributes,
    attributes_of_answer,
    attributes_of_place,
    attributes_of_request,
    in_messages,
    messages_of,
    model_of,
    replies_of,
)
from lmc.observing import Headers
from lmc.prompt import Prompt
from lmc.segments import Gen, Segment, Select, Text
from lmc.version import __version__

if TYPE_CHECKING:
    from lmc.frontend.host import HostFunction
    from lmc.frontend.interpreter import Function
    from lmc.frontend.state import State


_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_RUN: ContextVar[contexts.Context | None] = ContextVar("lmc_otel_run", default=None)  # whose requests are made ahead
_AHEAD: ContextVar[bool] = ContextVar("lmc_otel_ahead", default=False)


class OpenTelemetry:
    """The observer whose spans go to the tracer provider of the process."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("lmc", __version__)
        self._content = os.environ.get(_CONTENT, "").strip().lower() in ("true", "1", "span_only", "span_and_event")
        self._guesses: dict[int, _Request] = {}  # made ahead, not settled: by the id of their results, which their ledger keeps alive
        self._calls: weakref.WeakKeyDictionary[Any, Attributes] = weakref.WeakKeyDictionary()  # of async tools that a journaled run has not awaited yet
        self._abandoned: queue.SimpleQueue[Span] = queue.SimpleQueue()  # a destructor may only put into it

    # -- runs, batches, tools

    @contextmanager
    def run(self, function: Function, state: State) -> Generator[None]:
        run: Any = state.emitter.run  # type: ignore[attr-defined]  # a state that runs is live
        attributes = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": function.name, "lmc.item": run.item,
                      "lmc.stream": state.stream, **attributes_of_place(function.loc)}  # fmt: skip
        with self._tracer.start_as_current_span(f"invoke_workflow {function.name}", attributes=attributes) as span, _told_errors(span):
            token = _RUN.set(contexts.get_current())
            try:
                yield
            finally:
                _RUN.reset(token)
                ledger = state.emitter.run.ledger  # type: ignore[attr-defined]
                if ledger is not None and ledger.root == (run.seed, run.item, state.stream):
                    usage = ledger.usage
                    span.set_attributes({f"lmc.usage.{name}": getattr(usage, name) for name in ("ahead_asked", "ahead_used", "ahead_wasted")})
                self._sweep()

    def batch(self, program: str, items: int) -> _Batch:
        attributes = {"gen_ai.workflow.name": program, "lmc.batch.items": items}
        return _Batch(self._tracer.start_span(f"batch {program}", attributes=attributes))

    def call(self, fn: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        name, given = fn.name, {"args": list(args), **kwargs} if args else dict(kwargs)
        attributes: Attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.type": "function"}
        if fn is call_tool and args and isinstance(args[0], Mapping):  # the model's tool, not its caller
            name, given = str(args[0].get("name")), args[0].get("arguments")
            attributes |= {"gen_ai.tool.call.id": args[0]["id"]} if args[0].get("id") else {}
        elif fn.__doc__:
            attributes["gen_ai.tool.description"] = fn.__doc__.strip()
        if _AHEAD.get():
            attributes["lmc.ahead"] = "asked"
        if self._content:
            attributes["gen_ai.tool.call.arguments"] = _json(given)
        attributes["gen_ai.tool.name"] = name
        if inspect.iscoroutinefunction(fn.fn):  # it runs when it is awaited
            return self._later(make(), attributes)
        span = self._tracer.start_span(f"execute_tool {name}", attributes=attributes)
        with _ended_by_errors(span):
            result = make()
        if inspect.iscoroutine(result) and not _is_journaled():
            return _named(self._awaited(span, result), result)
        self._give(span, result)
        return result

    def _later(self, made: Any, attributes: Attributes) -> Any:
        if _is_journaled():  # the journal identifies awaitables itself, and reports when it awaits one
            self._calls[made] = attributes
            return made

        async def awaited() -> Any:
            span = self._tracer.start_span(f"execute_tool {attributes['gen_ai.tool.name']}", attributes=attributes)
            return await self._awaited(span, made)

        return _named(awaited(), made)

    async def _awaited(self, span: Span, made: Any) -> Any:
        with _ended_by_errors(span):
            result = await made
        self._give(span, result)
        return result

    def _give(self, span: Span, result: Any) -> None:
        if self._content and not inspect.isawaitable(result):
            span.set_attribute("gen_ai.tool.call.result", _json(result))
        span.end()

    @contextmanager
    def awaiting(self, made: object) -> Generator[None]:
        attributes = self._calls.pop(made, None) if inspect.iscoroutine(made) else None
        if attributes is None:
            yield
            return
        span = self._tracer.start_span(f"execute_tool {attributes['gen_ai.tool.name']}", attributes=attributes)
        with _ended_by_errors(span):
            yield
        span.end()

    # -- requests

    def submit(self, backend: Backend, parent: Any, segments: Sequence[Segment], hints: Hints | None, before: Prompt | None) -> Handle:
        self._sweep()
        hints = hints or Hints()
        asks = [segment for segment in segments if isinstance(segment, Gen | Select)]
        if before is None:
            before = Prompt().append(*[part for segment in segments if isinstance(segment, Text) for part in segment.parts])
        began = [self._request(backend, ask, before, hints) for ask in asks]
        if began:
            headers: dict[str, str] = {}
            propagate.inject(headers, context=trace.set_span_in_context(began[0].span))
            hints = hints._replace(trace=tuple(headers.items()))
        try:
            handle = backend.submit(parent, segments, hints)
        except BaseException as error:
            for request in began:
                request.fail(error)
            raise
        for request, result in zip(began, handle.results, strict=True):
            if hints.guess:
                self._guesses[id(result)] = request
            result.on_done(request)
        return handle

    def _request(self, backend: Backend, ask: Gen | Select, before: Prompt, hints: Hints) -> _Request:
        operation = "chat" if in_messages(before) else "text_completion"
        provider, model = model_of(backend.capabilities.name)
        attributes: Attributes = {
            "gen_ai.operation.name": operation, "gen_ai.provider.name": provider, "gen_ai.system": provider, "gen_ai.request.model": model,
            **attributes_of_request(ask), **attributes_of_place(ask.loc),
        }  # fmt: skip
        local = backend.capabilities.local or provider == "mock"
        if self._content and isinstance(ask, Gen) and ask.tools:
            attributes["gen_ai.tool.definitions"] = ask.tools
        parent = (_RUN.get() if hints.guess else None) or contexts.get_current()
        span = self._tracer.start_span(f"{operation} {model}", parent, SpanKind.INTERNAL if local else SpanKind.CLIENT, attributes)
        if hints.guess:
            span.set_attribute("lmc.ahead", "asked")
        return _Request(span, self._abandoned, before if self._content else None, guess=hints.guess)

    def settle(self, result: Result, *, used: bool) -> None:
        request = self._guesses.pop(id(result), None)
        if request is not None:
            request.settle("used" if used else "wasted")

    def _sweep(self) -> None:
        """End the spans of requests whose answers can no longer be read."""
        while True:
            try:
                span = self._abandoned.get_nowait()
            except queue.Empty:
                return
            span.set_attribute("lmc.cancelled", True)
            span.end()

    # -- across threads and processes

    def carry(self, context: Context) -> None:
        context.run(contexts.attach, contexts.get_current())
        context.run(_AHEAD.set, True)

    def headers(self) -> Headers:
        found: dict[str, str] = {}
        propagate.inject(found)
        return tuple(found.items())

    @contextmanager
    def within(self, headers: Headers) -> Generator[None]:
        token = contexts.attach(propagate.extract(dict(headers)))
        try:
            yield
        finally:
            contexts.detach(token)

    @contextmanager
    def served(self, method: str, route: str, path: str, headers: Mapping[str, str]) -> Generator[Callable[[int], None]]:
        if trace.get_current_span().get_span_context().is_valid:  # another instrumentation has begun one
            yield lambda status: None
            return
        attributes = {"http.request.method": method, "http.route": route, "url.path": path}
        with self._tracer.start_as_current_span(f"{method} {route}", propagate.extract(headers), SpanKind.SERVER, attributes) as span, _told_errors(span):

            def told(status: int) -> None:
                span.set_attribute("http.response.status_code", status)
                if status >= 500:
                    span.set_attribute("error.type", str(status))
                    span.set_status(StatusCode.ERROR)

            yield told

    def flush(self) -> None:
        self._sweep()
        if (flush := getattr(trace.get_tracer_provider(), "force_flush", None)) is not None:
            flush(_FLUSH)


_FLUSH = 1000  # milliseconds


class _Batch:
    """A batch: its items' spans are under its own."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def item(self) -> Any:
        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self) -> None:
        self._span.end()


class _Request:
    """A request's span. It ends with the answer; that of a request made ahead also waits to know whether the program made it.

    It is a callback of its result (`Result.on_done`) and does not hold it: when the answer is unreachable, both are
    freed.
    """

    __slots__ = ("_abandoned", "_before", "_ended", "_open", "span")

    def __init__(self, span: Span, abandoned: queue.SimpleQueue[Span], before: Prompt | None, *, guess: bool) -> None:
        self.span, self._abandoned, self._before, self._open = span, abandoned, before, guess
        self._ended: int | None = None  # nanoseconds since the epoch

    def __call__(self, result: Result) -> None:
        if self._ended is not None:
            return
        if (output := result.answer) is not None:
            self.span.set_attributes(attributes_of_answer(output))
            if result.first:
                self.span.set_attribute("gen_ai.response.time_to_first_chunk", result.first - result.began)
            for name, at in zip(("admitted", "first token"), output.phases or (), strict=False):
                if at:
                    self.span.add_event(name, timestamp=_epoch(at))
            if self._before is not None:
                self.span.set_attributes({"gen_ai.input.messages": _json(messages_of(self._before)), "gen_ai.output.messages": _json(replies_of(output))})
        else:
            _failed(self.span, result.error)
        self._before = None
        self._ended = _epoch(result.ended)
        if not self._open:
            self.span.end(self._ended)

    def settle(self, what: str) -> None:
        self.span.set_attribute("lmc.ahead", what)
        self._open = False
        if self._ended is not None:
            self.span.end(self._ended)

    def fail(self, error: BaseException) -> None:
        """Record that it was refused at once."""
        _failed(self.span, error)
        self._ended = time.time_ns()
        self.span.end()

    def __del__(self) -> None:
        if self._ended is None:  # may run in any thread, at any moment: must only post
            self._abandoned.put(self.span)


# -- errors ------------------------------------------------------------------------------------------------------------


def _failed(span: Span, error: BaseException | None) -> None:
    if isinstance(error, CancelledError):
        span.set_attribute("lmc.cancelled", True)
    elif error is not None:
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(StatusCode.ERROR, str(error))


@contextmanager
def _told_errors(span: Span) -> Generator[None]:
    """Set the error class of a raised exception, in addition to the SDK's attributes."""
    try:
        yield
    except Exception as error:
        span.set_attribute("error.type", type(error).__name__)
        raise


@contextmanager
def _ended_by_errors(span: Span) -> Generator[None]:
    """Make it the current span; an exception ends it."""
    with use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            _failed(span, error)
            span.end()
            raise


def _named(wrapper: Any, made: Any) -> Any:
    """Return a coroutine with the name of the one that it awaits."""
    wrapper.__qualname__ = made.__qualname__
    return wrapper


def _is_journaled() -> bool:
    state: Any = ACTIVE.get()
    return state is not None and state.emitter.run.journal is not None


def _epoch(at: float) -> int:
    """Return nanoseconds since the epoch of a `time.perf_counter()`."""
    return time.time_ns() - int((time.perf_counter() - at) * 1e9)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)


# -- the command line --------------------------------------------------------------------------------------------------


def provide() -> None:
    """Export spans as the standard OTEL_… variables define, by OTLP over HTTP, unless the process has a tracer provider
    already."""
    wanted = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip()
    if wanted == "none" or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    exporter: SpanExporter
    if wanted == "console":
        exporter = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    provider = TracerProvider(resource=Resource({SERVICE_NAME: "lmc"}).merge(Resource.create()))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
