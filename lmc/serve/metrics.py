"""The server's metrics, in Prometheus' text format: requests, tokens, the backend's work, the event loop's lag."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import reduce
from operator import add

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lmc.backend.base import Backend
from lmc.backend.usage import Counters, Usage

CONTENT_TYPE = CONTENT_TYPE_LATEST
CLIENT_GONE = 499
"""Status counted for a client that left before its answer (nginx's convention)."""


@dataclass
class RequestOutcome:
    """Outcome of one request."""

    status: int = 500


class Metrics:
    """Metrics of a server. Each has a registry of its own, so that several can run in one process."""

    def __init__(self, backend: Backend) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        registry = self.registry
        self._requests = Counter("lmc_requests", "Requests by endpoint and status.", ("endpoint", "status"), registry=registry)
        self._running = Gauge("lmc_requests_in_flight", "Requests that are being read, answered or sent.", registry=registry)
        self._seconds = Histogram(
            "lmc_request_seconds", "From arrival to the last byte of an answer; refused and failed requests are not in it.", ("endpoint",), registry=registry
        )
        self._first = Histogram("lmc_first_token_seconds", "From arrival to the first text of a stream.", registry=registry)
        self._prompt = Counter("lmc_prompt_tokens", "Tokens of prompts, of answers that were cancelled as far as they had been read.", registry=registry)
        self._completion = Counter("lmc_completion_tokens", "Tokens of answers, cancelled ones included.", registry=registry)
        self._lag = Gauge("lmc_event_loop_lag_max_seconds", "Longest delay of the event loop since the start.", registry=registry)
        self.ended_runs = Counter("lmc_program_runs_ended", "Abandoned runs that were ended: their clients had left.", registry=registry)
        self.unended_runs = Gauge("lmc_program_runs_unended", "Abandoned runs that still compute and cannot be ended.", registry=registry)
        self._backend, self._ahead = backend, list[Callable[[], Usage]]()
        self.workers = Gauge("lmc_workers", "Worker processes that run programs or could.", registry=registry)
        self.busy_workers = Gauge("lmc_workers_busy", "Worker processes that run a program.", registry=registry)
        self.ended_workers = Counter("lmc_workers_ended", "Worker processes that were replaced, and why.", ("why",), registry=registry)
        self.lag = 0.0
        self.registry.register(self)

    @contextmanager
    def request(self, endpoint: str) -> Iterator[RequestOutcome]:
        """Count a request from its arrival to its end."""
        seen, started = RequestOutcome(), time.perf_counter()
        self._running.inc()
        try:
            yield seen
        finally:
            self._running.dec()
            self._requests.labels(endpoint, str(seen.status)).inc()
            if seen.status < 400:
                self._seconds.labels(endpoint).observe(time.perf_counter() - started)

    def counts_ahead(self, what: Callable[[], Usage]) -> None:
        """Add the programs' requests made ahead; read on demand."""
        self._ahead.append(what)

    def first_token(self, seconds: float) -> None:
        self._first.observe(seconds)

    def tokens(self, usage: Usage) -> None:
        self._prompt.inc(usage.prompt_tokens)
        self._completion.inc(usage.completion_tokens)

    async def watch_loop(self, every: float = 0.05) -> None:
        """Record the event loop's lag. Runs until it is cancelled."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(every)
            self.lag = max(self.lag, time.perf_counter() - before - every)
            self._lag.set(self.lag)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield what is read on demand: the backend's counters, the engine's state, and the programs' requests made ahead."""
        counters = self._backend.counters()
        for field in fields(Counters):
            value = float(getattr(counters, field.name))
            yield CounterMetricFamily(f"lmc_backend_{field.name}", f"The backend's {field.name}.", value=value)
        info = self._backend.server_info()
        for name, value in info.items():
            if name in _HELD and isinstance(value, int | float):
                yield GaugeMetricFamily(f"lmc_engine_{name}", f"{_HELD[name]}.", value=float(value))
        programs = GaugeMetricFamily("lmc_engine_program_tokens", "Tokens of the KV pool that runs of a program hold.", labels=("program",))
        for name, tokens in info.get("programs", {}).items():
            programs.add_metric((name,), float(tokens))
        yield programs
        found = reduce(add, [source() for source in self._ahead], Usage())
        for name, meaning in AHEAD.items():
            yield CounterMetricFamily(f"lmc_{name}", f"{meaning}.", value=float(getattr(found, name)))


AHEAD = {
    "ahead_asked": "Requests that were made before their program made them",
    "ahead_used": "Requests made ahead that their program then made",
    "ahead_wasted": "Requests made ahead and not used",
    "ahead_wasted_tokens": "Tokens that requests made ahead and not used are known to have cost",
}


_HELD = {
    "waiting": "Requests that wait for room",
    "held_back": "Requests whose programs' runs wait until they fit",
    "open_runs": "Runs of programs that have memory",
    "leases": "Prefixes that are kept for runs which come back",
    "preempted": "Waiting requests that had begun and were interrupted",
    "running": "Requests in the batch",
    "pinned": "Prefixes that are kept",
    "slots": "Tokens that the KV pool holds",
    "free_slots": "Free slots of the KV pool",
    "cached_tokens": "Tokens in the radix tree",
    "evictable_tokens": "Cached tokens that are not in use",
}
