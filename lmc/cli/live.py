"""Live view of a batch, in a few lines of a terminal: items, requests, tokens, latency, cache, queue, memory,
errors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lmc.backend.usage import Counters
from lmc.pages import count, seconds
from lmc.run_records import of_state

_RECENT = 512  # requests in the latency statistics
_WINDOW = 10.0  # window of rates in seconds
_SOON = 0.1  # seconds before rates are shown


class BatchView:
    """A batch of `total` items on a backend that was opened for it. Rendered by rich as often as it is shown; `clock` in seconds."""

    def __init__(self, total: int, backend: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._backend, self._clock = total, backend, clock
        self._done = self._failed = 0
        self._latency: deque[float] = deque(maxlen=_RECENT)
        self._first: deque[float] = deque(maxlen=_RECENT)
        self._begun = clock()
        self._looks: deque[tuple[float, Counters]] = deque([(self._begun, Counters())])

    def took(self, state: Any) -> None:
        """Record that one more item is over."""
        self._done += 1
        self._failed += state.error() is not None
        for request in of_state(state).requests:
            if request.ended is not None and request.result.error is None:
                self._latency.append(request.seconds)
                output = request.result.answer
                first = (output.phases if output is not None else None) or (0.0, request.result.first)
                if first[1]:
                    self._first.append(max(0.0, first[1] - request.known))

    def __rich__(self) -> RenderableType:
        now, spent = self._clock(), self._backend.counters()
        self._looks.append((now, spent))
        while len(self._looks) > 2 and now - self._looks[1][0] > _WINDOW:
            self._looks.popleft()
        at, then = self._looks[0]
        recent, passed = spent - then, now - at
        head = Table.grid(padding=(0, 1))
        took = now - self._begun
        left = f"{seconds(took / self._done * (self._total - self._done))} left" if 0 < self._done < self._total else seconds(took)
        head.add_row("items", ProgressBar(self._total, self._done, width=24), f"{self._done}/{self._total}", left)
        body = Table.grid(padding=(0, 1))
        body.add_column(style="dim")
        share = f"{spent.cached_tokens / spent.prompt_tokens:.0%}" if spent.prompt_tokens else "–"
        rows = [
            ("requests", f"{count(spent.calls)}, {_rate(recent.calls, passed)} a second"),
            ("tokens", f"{_rate(recent.generated_tokens, passed)} a second, {_rate(recent.prompt_tokens, passed)} of prompts; {share} of those from the cache"),
            ("latency", _latency(self._first, self._latency)),
            *_held(self._backend.server_info()),
            ("errors", f"{self._failed}"),
        ]
        for what, text in rows:
            body.add_row(what, Text(text, style="red" if what == "errors" and self._failed else ""))
        return Group(head, body)


def _rate(amount: float, passed: float) -> str:
    """Return the amount per second; – before there is enough time."""
    if passed < _SOON:
        return "–"
    n = amount / passed
    return count(round(n)) if n >= 10 else f"{n:.2g}"


def _latency(first: Iterable[float], whole: Iterable[float]) -> str:
    parts = [(f"{what} {seconds(median(found))}") for what, found in (("first token", list(first)), ("answer", list(whole))) if found]
    return ", ".join(parts) + " (medians)" if parts else "–"


def _held(info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield an engine's queue and memory; nothing for other backends."""
    if "waiting" in info:
        yield "queue", f"{info['waiting']} waiting, {info.get('running', 0)} in the batch"
    if slots := info.get("slots"):
        used = slots - info.get("free_slots", 0) - info.get("evictable_tokens", 0)
        programs = sorted(info.get("programs", {}).items(), key=lambda item: -item[1])[:3]
        yield "memory", ", ".join([f"{used / slots:.0%} of {count(slots)} tokens in use", *(f"{name} {count(held)}" for name, held in programs if held)])


def watched(states: Iterable[Any], total: int, backend: Any) -> Iterator[Any]:
    """Pass (place, state) pairs on, and show the batch on standard error meanwhile."""
    view = BatchView(total, backend)
    with Live(view, console=Console(stderr=True), refresh_per_second=4):
        for place, state in states:
            view.took(state)
            yield place, state
