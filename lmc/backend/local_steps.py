"""Steps of submissions to the engine in this process, and the handles and results that keep them wanted.

Ownership of objects:

    LocalHandle ──► Step ──► its parent Step (until it has started)    the engine knows steps only weakly:
    LocalResult ──► Step                                               when an answer is no longer referenced,
    Step  ╌╌► LocalResult, children, (engine) Request                  its step dies and cancels its requests
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Protocol

from lmc.backend.base import Capabilities, Hints
from lmc.backend.conversing import Trail
from lmc.backend.engine.eyes import Preparing
from lmc.backend.engine.prompt_position import ROOT
from lmc.backend.engine.request import Group, Request
from lmc.backend.results import Result
from lmc.backend.usage import Usage, charge
from lmc.errors import CancelledError
from lmc.segments import Gen, Given, Image, Part, Segment, Select, Text

log = logging.getLogger("lmc.engine")


class StepOwner(Protocol):
    """The backend of a step, as the step sees it."""

    @property
    def capabilities(self) -> Capabilities: ...
    def speak(self, step: Step) -> None: ...
    def abort(self, step: Step, error: BaseException) -> None: ...
    def leave(self, step: Step) -> None: ...
    def forget(self, req: Request) -> None: ...


class StepState(Enum):
    WAITING = auto()  # for its parent's answer, or its pictures
    RUNNING = auto()
    DONE = auto()
    FAILED = auto()


class Step:
    """One literal stretch and the request after it; knows the position after it once it is DONE."""

    __slots__ = (
        "__weakref__",
        "after",
        "ask",
        "backend",
        "error",
        "group",
        "hints",
        "namespace",
        "parent",
        "parts",
        "pending",
        "requests",
        "result",
        "rider",
        "state",
        "streams",
        "trail",
        "wants_prefill",
    )

    def __init__(
        self,
        backend: StepOwner,
        parent: Step | None,
        parts: tuple[Part | Preparing, ...],
        ask: Gen | Select | Given | None,
        hints: Hints,
    ) -> None:
        self.backend, self.parent, self.parts, self.ask, self.hints = backend, parent, parts, ask, hints
        self.namespace: str = hints.namespace or (parent.namespace if parent is not None else "")
        self.group: Group | None = None  # until its requests have joined it
        self.state = StepState.WAITING
        self.streams = hints.watched  # its answer is read while it grows
        self.wants_prefill = False
        self.after = ROOT
        self.trail: Trail | None = None  # once it begins
        self.error: BaseException | None = None
        self.pending: list[weakref.ref[Step]] = []  # children that wait for us
        self.requests: tuple[Request, ...] = ()
        self.rider: Request | None = None  # of a select that waits: itself, scored beside the answer before it (engine/riders.py)
        self.result: weakref.ref[LocalResult] | None = None

    def __del__(self) -> None:
        # may run in any thread, at any moment, also inside the garbage collector: must only post
        if self.state is StepState.RUNNING:
            self.charge_unfinished(self.requests)
        for req in self.requests:
            self.backend.forget(req)
        self.backend.leave(self)

    def charge_unfinished(self, requests: Sequence[Request]) -> None:
        """Charge its account for the computation of an answer that is no longer wanted."""
        if self.ask is not None and requests:  # of several samples each has the prompt, which counts once
            prompts, answers = zip(*map(_computed, requests), strict=True)
            charge(self.hints.owner, Usage(max(prompts), sum(answers), calls=1))

    def stream(self) -> None:
        """Emit the answer's text from now on while it grows. From any thread."""
        self.streams = True  # before the requests are looked at: `_ask` stores them before it looks at this
        for req in self.requests:
            if req.answer is not None:
                req.answer.streams = True

    def tell(self, act: str, *args: Any) -> None:
        """Call a method of the result, if it is still referenced. Exceptions of its listeners are their own: steps
        waiting for this one continue."""
        result = self.result() if self.result is not None else None
        if result is not None:
            try:
                getattr(result, act)(*args)
            except Exception:
                log.exception("a listener of an answer of %s failed", self.backend.capabilities.name)


class LocalResult(Result):
    """A result that keeps its work alive while it may still be read."""

    __slots__ = ("__weakref__", "_step")

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step

    def watch(self) -> None:
        self._step.stream()

    @property
    def deltas(self) -> Sequence[str]:
        if not (self.done or self._step.streams):
            self._step.stream()
            self._step.backend.speak(self._step)
        return super().deltas


class LocalHandle:
    """A prompt inside the engine, up to and including its submission."""

    __slots__ = ("results", "steps")

    def __init__(self, steps: Sequence[Step], results: Sequence[Result]) -> None:
        self.steps, self.results = steps, results

    @property
    def last(self) -> Step:
        return self.steps[-1]

    def prepared(self) -> None:
        """Wait until the pictures of its prompt are prepared, so that requests which these make impossible have failed."""
        for step in self.steps:
            for part in step.parts:
                if isinstance(part, Preparing):
                    part.settled.wait()

    def needed(self) -> None:
        """Mark as needed: it was a guess, and is none any longer."""
        for step in self.steps:
            step.hints = step.hints._replace(guess=False)
            for req in step.requests:
                req.guess = False

    def cancel(self) -> None:
        """Cancel unfinished parts; their results, and those of everything that depends on them, fail."""
        error = CancelledError("the request was cancelled before its answer was complete")
        for step in self.steps:
            step.backend.abort(step, error)


def _computed(req: Request) -> tuple[int, int]:
    """Return tokens of the prompt and of the answer that a request has by now, as seen from another thread than the
    engine's."""
    answered = max(0, req.length - req.prompt_len)
    return req.prompt_len if answered else min(req.device_len, req.prompt_len), answered


def bounded(ask: Gen, most: int | None) -> Gen:
    """Return the request limited to the tokens that its answer can have, which is all that admission then waits for."""
    p = ask.params
    if most is None or most >= p.max_new_tokens or p.ignore_eos or p.min_new_tokens > 0:
        return ask
    return replace(ask, params=replace(p, max_new_tokens=most))


def teller(ref: weakref.ref[Step], act: str) -> Callable[..., None]:
    """Return a function that calls a method of a step's result, while that is wanted."""

    def tell(*args: Any) -> None:
        step = ref()
        if step is not None:
            step.tell(act, *args)

    return tell


def stretches(segments: Sequence[Segment], prepare: Callable[[Image], Preparing]) -> list[tuple[tuple[Part | Preparing, ...], Gen | Select | Given | None]]:
    """Return segments as (literal parts, the request or known answer after them); the last may have none."""
    out: list[tuple[tuple[Part | Preparing, ...], Gen | Select | Given | None]] = []
    parts: tuple[Part | Preparing, ...] = ()
    for segment in segments:
        if isinstance(segment, Text):
            parts += segment.parts
        elif isinstance(segment, Image):
            parts += (prepare(segment),)
        else:
            out.append((parts, segment))
            parts = ()
    if parts or not out:
        out.append((parts, None))
    return out
