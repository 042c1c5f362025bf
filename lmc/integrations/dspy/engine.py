"""DSPy's engine interface over a backend: one request in, one response out, sync, async and as a stream.

DSPy requests `n` answers one after the other; inside of `several(n)` the first requests all of them from the backend at
once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from dspy import lm15

from lmc.backend.base import Backend, Hints, seed_of
from lmc.backend.results import Output, Result
from lmc.config import default_backend
from lmc.integrations.dspy.pending import AnswerInRun, PendingAnswer, running, spec_of
from lmc.integrations.dspy.requests import as_dspy_errors
from lmc.segments import derive_seed

_SUPPORTED = frozenset(
    "temperature max_tokens max_completion_tokens top_p top_k stop seed logprobs top_logprobs frequency_penalty presence_penalty "
    "response_format n stream".split()
)


# -- n answers at once -------------------------------------------------------------------------------------------------


@dataclass
class _Several:
    """The n requests of one call of DSPy: pending runs, to be handed out one by one."""

    n: int
    request: Any = None
    runs: list[PendingAnswer] = field(default_factory=list["PendingAnswer"])


_several: ContextVar[_Several | None] = ContextVar("lmc_dspy_several", default=None)


@contextmanager
def several(n: int) -> Iterator[None]:
    """Submit n equal requests within the block as one group. Unclaimed ones are cancelled at its end."""
    if n < 2:
        yield
        return
    asked = _Several(n)
    token = _several.set(asked)
    try:
        yield
    finally:
        _several.reset(token)
        for run in asked.runs:
            run.cancel()


# -- engines -----------------------------------------------------------------------------------------------------------


class OnBackend:
    """Base of both engines: submits requests to a backend, and describes it to DSPy."""

    supports_function_calling = False
    supports_reasoning = False
    supports_response_schema = True
    supported_params = _SUPPORTED

    def __init__(self, backend: Backend | None = None) -> None:
        """Create; `backend`: None uses lmc's default backend at the first request."""
        self._backend = backend

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            self._backend = default_backend()
        return self._backend

    def __deepcopy__(self, memo: Any) -> Any:
        return self  # a backend is shared, like DSPy's own connections

    def __getstate__(self) -> dict[str, Any]:
        return {"_backend": None}

    def dump_state(self) -> dict[str, Any]:
        """Return the backend's name, for people: it is not saved; a loaded program runs on lmc's default backend."""
        return {"backend": self.backend.capabilities.name}

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> Any:
        return cls()

    @contextmanager
    def _asked(self, request: Any) -> Iterator[PendingAnswer]:
        """Submit the request for the block; what is incomplete at its end is cancelled. Raises dspy.lm15's errors."""
        with as_dspy_errors():
            run = self._begin(request)
            try:
                yield run
            finally:
                run.cancel()

    def _begin(self, request: Any) -> PendingAnswer:
        asked = _several.get()
        if asked is not None and asked.request is None:
            asked.request, seed = request, self._seed(request)
            asked.runs = [self._run(request, seed, i, asked.n) for i in range(asked.n)]
        if asked is not None and asked.runs and asked.request == request:
            return asked.runs.pop(0)
        return self._run(request, self._seed(request), 0, 1)

    def _seed(self, request: Any) -> int:
        given = request.config.seed
        return seed_of(self.backend, None if given is None else given % (1 << 63))

    def _run(self, request: Any, seed: int, i: int, n: int) -> PendingAnswer:
        state = running.get()
        if n == 1 and state is not None and state.emitter.run.backend is self.backend and spec_of(request) is not None:
            return AnswerInRun(self.backend, request, state)
        hints = Hints(group=(id(_several.get()),), members=n, sample_index=(i, n)) if n > 1 else None
        return PendingAnswer(self.backend, request, derive_seed(seed, i, "dspy", 0), hints)


class RequestEngine(OnBackend):
    """Answers DSPy's requests on a backend; many threads may use it concurrently, and share prefixes and batches."""

    def complete(self, request: Any) -> Any:
        """Return the response to a `dspy.lm15.Request`. Raises dspy.lm15's errors."""
        with self._asked(request) as run:
            while (result := run.pending) is not None:
                run.take(run.output(result))
            return run.response()

    def stream(self, request: Any) -> Iterator[Any]:
        """Yield the response as it grows, headers of fields included."""
        changed = threading.Event()
        with self._asked(request) as run:
            growth = _EventStream(run, changed.set)
            while True:
                changed.clear()
                yield from growth.events()
                if growth.over:
                    return
                changed.wait()

    def close(self) -> None:
        """Do nothing: the backend is borrowed and stays open."""


class AsyncRequestEngine(OnBackend):
    """The same for `acall`: holds neither the event loop nor a thread while it waits."""

    async def complete(self, request: Any) -> Any:
        with self._asked(request) as run:
            while (result := run.pending) is not None:
                run.take(await _answer(result))
            return run.response()

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        changed = asyncio.Event()
        with self._asked(request) as run:
            growth = _EventStream(run, _on_loop(changed.set))
            while True:
                changed.clear()
                for event in growth.events():
                    yield event
                if growth.over:
                    return
                await changed.wait()

    async def aclose(self) -> None:
        """Do nothing: the backend is borrowed and stays open."""


class _EventStream:
    """A response as DSPy's events, as far as it has arrived. Never waits: `notify` is called when there is more."""

    def __init__(self, run: PendingAnswer, notify: Callable[[], None]) -> None:
        self._run, self._notify = run, notify
        self._started = self.over = False
        self._shown: Result | None = None  # the answer that is being shown
        self._deltas = self._length = 0  # deltas and characters of it shown

    def events(self) -> Iterator[Any]:
        """Yield the events since the last call."""
        run = self._run
        if not self._started:
            self._started = True
            yield lm15.StreamStartEvent(model=run.model)
        while (result := run.pending) is not None:
            if result is not self._shown:
                yield from self._begin(result)
            done = result.done  # read first: deltas come before the end
            yield from self._grown(result)
            if not done:
                return
            if rest := run.take(result.output())[self._length :]:
                yield _delta(rest)
        if run.closing():
            yield _delta(run.closing())
        yield lm15.StreamEndEvent(finish_reason=run.finish_reason, usage=run.usage)
        self.over = True

    def _begin(self, result: Result) -> Iterator[Any]:
        self._shown, self._deltas, self._length = result, 0, 0
        result.on_change(lambda _: self._notify())
        if opening := self._run.opening():
            yield _delta(opening)

    def _grown(self, result: Result) -> Iterator[Any]:
        while self._deltas < len(result.deltas):
            piece = result.deltas[self._deltas]
            self._deltas, self._length = self._deltas + 1, self._length + len(piece)
            yield _delta(piece)


def _delta(text: str) -> Any:
    return lm15.StreamDeltaEvent(lm15.TextDelta(text))


async def _answer(result: Result) -> Output:
    done = asyncio.Event()
    notify = _on_loop(done.set)
    result.on_done(lambda _: notify())
    await done.wait()
    return result.output()


def _on_loop(call: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls `call` on the running event loop, from any thread."""
    loop = asyncio.get_running_loop()

    def soon() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    return soon
