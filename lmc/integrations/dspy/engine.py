"""DSPy's engine interface over a backend: one request in, one response out, sync, async and as a stream.

DSPy requests `n` answers one after the other; inside of `several(n)` the first requests all of them from the backend at
once.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from dspy import lm15

from lmc import observing
from lmc.backend.base import Backend, Handle, Hints, seed_of
from lmc.backend.results import Output, Result
from lmc.backend.usage import Usage
from lmc.config import default_backend
from lmc.constraints import make_constraint
from lmc.frontend.state import State
from lmc.integrations.dspy.fields import COMPLETED, HEADER, STOPS, Field
from lmc.integrations.dspy.followed import ask
from lmc.integrations.dspy.requests import EXTENSION, as_dspy_errors, constraint_of, given_of, params_of, prompt_of
from lmc.parameters import sampling
from lmc.prompt import Prompt, segments_of
from lmc.segments import Constraint, Gen, Image, Part, SamplingParams, Segment, derive_seed

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
    runs: list[_PendingAnswer] = field(default_factory=list["_PendingAnswer"])


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


# -- one answer --------------------------------------------------------------------------------------------------------


class _PendingAnswer:
    """One pending answer: plain, or a template whose fields are filled one after the other in one chain."""

    def __init__(self, backend: Backend, request: Any, seed: int, hints: Hints | None) -> None:
        self._backend, self._request, self._seed, self._hints = backend, request, seed, hints
        self._prompt, self._params = prompt_of(request, backend), params_of(request)
        given: Any = (request.config.extensions or {}).get(EXTENSION)
        self._fields: list[Field] | None = None if given is None else [Field(**each) for each in given]
        self._constraint = None if self._fields is not None else constraint_of(request)
        self.text = ""  # of the fields that are complete, headers included
        self.outputs: list[Output] = []
        self._texts: dict[str, str] = {}  # of the fields that are complete
        self._first = 0  # the field of the handle's first answer
        self.cut = False
        self._handle: Handle | None = None
        self._submit()

    def _submit(self) -> None:
        """Request what is not complete yet, up to a field that another one decides; again after a field was cut off and
        completed."""
        self._first = len(self.outputs)
        self._handle = observing.submit(self._backend, None, tuple(self._segments()), self._hints)

    def _segments(self) -> Iterator[Segment]:
        if self._fields is None:
            yield from segments_of(self._prompt)
            yield self._gen(self._params, self._constraint)
            return
        before: tuple[Part | Image, ...] = (*self._prompt, self.text) if self.text else self._prompt
        for i, each in enumerate(self._fields[len(self.outputs) :]):
            if each.by and each.by not in self._texts:
                return  # requested once that has arrived
            each = each.decided(self._texts)
            yield from segments_of((*before, self._header(each, first=not self.text and i == 0)))
            before = ()
            if each.kind == "text":
                yield self._gen(sampling(self._params, {"stop": (*self._params.stop, *STOPS)}), None)
            else:
                yield self._gen(self._params, make_constraint(each.kind, each.source))

    def _gen(self, params: SamplingParams, constraint: Constraint | None) -> Gen:
        return Gen(params, constraint, seed=self._seed)

    @staticmethod
    def _header(each: Field, *, first: bool) -> str:
        return ("" if first else "\n\n") + HEADER.format(each.name) + "\n"

    @property
    def model(self) -> str:
        return self._request.model

    @property
    def results(self) -> Sequence[Result]:
        assert self._handle is not None
        return self._handle.results

    @property
    def pending(self) -> Result | None:
        """Return the answer to wait for next; None when all have arrived."""
        if self._fields is None:
            return None if self.outputs else self.results[0]
        return self.results[len(self.outputs) - self._first] if len(self.outputs) < len(self._fields) else None

    def opening(self) -> str:
        """Return the text before the pending answer that belongs to the response: a header."""
        if self._fields is None:
            return ""
        done = len(self.outputs)
        return self._header(self._fields[done], first=done == 0) if done < len(self._fields) else self.closing()

    def closing(self) -> str:
        return "" if self._fields is None else f"\n\n{COMPLETED}\n"

    def output(self, result: Result) -> Output:
        """Return the answer; wait for it."""
        return result.output()

    def take(self, output: Output) -> str:
        """Take the pending answer, which has arrived: return its text as it is in the response."""
        text, cut = output.text, output.metas[0]["finish_reason"]["type"] == "length"
        self.cut = self.cut or cut
        if self._fields is None:
            self.outputs.append(output)
            self.text = text
            return text
        each = self._fields[len(self.outputs)].decided(self._texts)
        opening = self.opening()
        whole = each.complete(text) if cut else text
        self.outputs.append(output)
        self._texts[each.name] = whole
        self.text += opening + whole
        asked = len(self.outputs) - self._first < len(self.results)
        if len(self.outputs) < len(self._fields) and (whole != text or not asked):  # later fields saw a text that was cut off, or waited for this one
            self.cancel()
            self._submit()
        return whole

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        return "length" if self.cut else "stop"

    @property
    def usage(self) -> Any:
        total = sum((output.usage for output in self.outputs), Usage())
        first = self.outputs[0].usage
        return lm15.Usage(
            input_tokens=first.prompt_tokens,
            output_tokens=total.completion_tokens,
            total_tokens=first.prompt_tokens + total.completion_tokens,
            cache_read_tokens=first.cached_tokens,
        )

    def response(self) -> Any:
        return lm15.Response(
            id=f"lmc-{secrets.token_hex(8)}",
            model=self.model,
            message=lm15.Message.assistant([lm15.TextPart(self.text + self.closing())]),
            finish_reason=self.finish_reason,
            usage=self.usage,
            logprobs=self._logprobs(),
        )

    def _logprobs(self) -> Any:
        if self._request.config.logprobs is None:
            return None
        found: list[Any] = []
        for output in self.outputs:
            meta = output.metas[0]
            tops: list[Any] = meta.get("output_top_logprobs") or [[] for _ in meta["output_token_logprobs"]]
            for (logprob, token, text), top in zip(meta["output_token_logprobs"], tops, strict=True):
                others = tuple(lm15.TopLogprob(t, lp, token_id=i) for lp, i, t in top)
                found.append(lm15.TokenLogprob(text, logprob, token_id=token, top=others))
        return tuple(found)


running: ContextVar[State | None] = ContextVar("lmc_dspy_running", default=None)
"""State of the compiled module's run that this belongs to (lmc/integrations/dspy/compiled.py)."""


class _RunOfProgram(_PendingAnswer):
    """A request of a compiled module: on a fork of its run, so that it has an address there, and the next requests are
    made ahead."""

    def __init__(self, backend: Backend, request: Any, state: State) -> None:
        (self._parent,), self._nodes = state.fork(1), list[Prompt]()
        super().__init__(backend, request, 0, None)

    def _submit(self) -> None:
        self._first = len(self.outputs)
        spec = spec_of(self._request, self._texts)
        assert spec is not None
        before = self._parent.ctx
        self._fork = ask(self._parent, spec)
        self._nodes = [node for node in self._fork.ctx.nodes_after(before) if node.result is not None]

    @property
    def results(self) -> Sequence[Result]:
        return [node.result for node in self._nodes if node.result is not None]

    def output(self, result: Result) -> Output:
        (node,) = [node for node in self._nodes if node.result is result]
        self._parent.emitter.wait(node)
        return result.output()

    def cancel(self) -> None:
        """Do nothing: the run cancels its requests when it ends."""


def spec_of(request: Any, texts: Mapping[str, str] = {}) -> dict[str, Any] | None:
    """Return a request as data for a program (followed.py); None for one with images, messages of tools or several
    answers.

    texts  of the fields that are complete
    `whole`: no field has to wait for the text of another
    """
    turns = [] if request.system is None else [("system", request.system)]
    turns += [("system" if m.role == "developer" else m.role, m.parts) for m in request.messages]
    said = [(role, content if isinstance(content, str) else _text_of(content)) for role, content in turns]
    if request.tools or any(content is None or role not in ("system", "user", "assistant") for role, content in said):
        return None
    given: Any = (request.config.extensions or {}).get(EXTENSION)
    params = given_of(request)
    if given is None:
        constraint = constraint_of(request)
        own = {} if constraint is None else {constraint.kind: constraint.source}
        return {"turns": said, "begun": "", "fields": [{"name": "answer", "header": "", "given": params | own}], "closing": "", "whole": True}
    fields, begun, waits = list[dict[str, Any]](), "", False
    for i, hole in enumerate(Field(**each) for each in given):
        header = _PendingAnswer._header(hole, first=i == 0)
        if hole.name in texts:
            begun += header + texts[hole.name]
            continue
        if hole.by and hole.by not in texts:
            waits = True
            break
        each = hole.decided(texts)
        own = {"stop": [*(params.get("stop") or ()), *STOPS]} if each.kind == "text" else {each.kind: each.source}
        fields.append({"name": hole.name, "header": header, "given": params | own})
    return {"turns": said, "begun": begun, "fields": fields, "closing": f"\n\n{COMPLETED}\n", "whole": not waits}


def _text_of(parts: Any) -> str | None:
    """Return the text of a message; None if it has other parts."""
    return "".join(part.text for part in parts) if all(isinstance(part, lm15.TextPart) for part in parts) else None


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
    def _asked(self, request: Any) -> Iterator[_PendingAnswer]:
        """Submit the request for the block; what is incomplete at its end is cancelled. Raises dspy.lm15's errors."""
        with as_dspy_errors():
            run = self._begin(request)
            try:
                yield run
            finally:
                run.cancel()

    def _begin(self, request: Any) -> _PendingAnswer:
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

    def _run(self, request: Any, seed: int, i: int, n: int) -> _PendingAnswer:
        state = running.get()
        if n == 1 and state is not None and state.emitter.run.backend is self.backend and spec_of(request) is not None:
            return _RunOfProgram(self.backend, request, state)
        hints = Hints(group=(id(_several.get()),), members=n, sample_index=(i, n)) if n > 1 else None
        return _PendingAnswer(self.backend, request, derive_seed(seed, i, "dspy", 0), hints)


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

    def __init__(self, run: _PendingAnswer, notify: Callable[[], None]) -> None:
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


Engine, AsyncEngine = RequestEngine, AsyncRequestEngine  # as programs saved by versions before 0.2 name them
