"""The backend protocol: whole chains of segments go in, a handle comes back, each answer arrives when it is known.

A handle names the prompt up to and including the submitted segments. It can be a parent at once, before its answers
have arrived, so that a chain (text, gen, text, gen …) and all of its forks reach the backend early.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

from lmc.backend.results import Result
from lmc.backend.usage import Counters, Prices, Spending
from lmc.chat import ChatTemplate
from lmc.errors import Loc, ParameterError, ProgramError, UnsupportedOpError
from lmc.parameters import suggestion
from lmc.segments import DOCUMENT, Gen, Image, Segment, Select, Text


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a backend.

    state   "ok", or why not: "failed" (the last pass did; a later one may not), "stuck" (a pass does not end), "ended"
            (a device error: a new engine is needed), "closed"
    reason  for a person; "" if ok
    """

    state: Literal["ok", "failed", "stuck", "ended", "closed"] = "ok"
    reason: str = ""

    @property
    def ready(self) -> bool:
        return self.state == "ok"


HEALTHY = Health()


@runtime_checkable
class SaysHealth(Protocol):
    """A backend that reports its health; others count as healthy."""

    def health(self) -> Health: ...


@runtime_checkable
class CountsSpending(Protocol):
    """A backend that says what its requests have used and cost, as all of lmc's do."""

    def spent(self) -> Spending: ...


@runtime_checkable
class OfSeveral(Protocol):
    """A backend that gives each request to one of several (routed.py)."""

    def backend_of(self, ask: Gen | Select) -> Backend: ...


def answering(backend: Backend, ask: Gen | Select) -> Backend:
    """Return the backend that answers a request: itself, or one of several."""
    while isinstance(backend, OfSeveral):
        backend = backend.backend_of(ask)
    return backend


@dataclass(frozen=True, slots=True)
class Beyond:
    """Further contents that a request may cover besides its own answer: text and answers that the program is expected
    to have after it.

    tokens  that they can have, beyond the limit of the answer itself
    gens    how many answers are among them; 0 if unknown
    stop    stops of the last of them, if no earlier part can contain them
    """

    tokens: int
    gens: int = 0
    stop: tuple[str, ...] = ()


class ProgramRun:
    """A program's run as identified to backends: requests that name the same one belong together, including those of
    its sub-programs and forks. A backend may keep its reusable data until it ends.

    program   its program: runs of equal programs need about as much memory
    batch     runs that were started together have equal ones
    priority  its share under competition: 2 gets twice the share of 1
    account   owner of that share; "": shared by all
    desk      queue of its requests with a deadline (lmc/backend/api/batches.py); None: sent to the server at once
    """

    __slots__ = ("_watchers", "account", "batch", "desk", "ended", "number", "priority", "program")

    def __init__(self, program: Hashable = None, batch: Hashable = None, priority: float = 1.0, account: str = "", desk: Any = None) -> None:
        self.desk = desk
        self.number = next(_numbers)
        self.program, self.priority, self.account = program, priority, account
        self.batch: Hashable = self.number if batch is None else batch
        self.ended = False
        self._watchers: list[Callable[[], None]] = []

    def on_end(self, notify: Callable[[], None]) -> None:
        """Call `notify` once the run has ended, from any thread; at once if it has."""
        self._watchers.append(notify)
        if self.ended:
            self.end()

    def end(self) -> None:
        """End the run: the program has returned, or cannot be resumed. Later requests in its name count as
        independent."""
        self.ended = True
        while self._watchers:
            try:
                notify = self._watchers.pop()
            except IndexError:  # another thread was first
                return
            notify()

    def __del__(self) -> None:
        self.end()  # without a lock: this may run at any moment


_numbers = count()


class Hints(NamedTuple):
    """Advice of the plan about a submission, which a backend may ignore. A tuple, since every request has its own.

    pin      keep the KV until `release`
    order    place in the plan's visit: the batch item, then depth first over its prompts
    group    siblings of one prompt, submitted one right after the other, have equal groups; None alone
    members  how many they are
    sample_index  which of the group's equal requests this is, and of how many: they differ in their seeds only and are one
             n-way sample, each with a seed of its own
    reserve  most tokens that the answer can have by its constraint, its end included; None where that is not known
    growth   tokens by which the run's prompts grow at most behind this answer; None where that is not known
    constants  texts of the program that may come later: what it appends, compares answers with, or offers as choices. An answer that
             anticipates them may be drafted from them
    has_more  further submissions follow at once: what begins now would begin without them
    beyond   what the request may cover besides this answer (targets with `lookahead`)
    watched  somebody reads the answer while it grows
    namespace  cached KV is shared within one only: a cache salt. "" is that of the handle it goes on from
    guess    requested ahead of a decision: in rows that others leave, and the first to give up its place. If its handle is cancelled, it
             was not used; `handle.needed()`, where a handle has it, says that it is no guess any longer
    low_priority  a prefill that may not be needed: only where rows of a pass are nearly free
    run      its program run; None: it is independent
    priority its share under competition, if it is independent (ProgramRun)
    account  owner of that share
    shared   prefixes of the prompt shared with later requests: whole messages (-1: all of them), and the number of
             requests. For prompts of messages; unlisted prefixes are unknown
    trace    headers with which an HTTP server continues the trace of the request
    adapter  of a prefill: the adapter that what follows is requested with
    """

    pin: bool = False
    order: tuple[int, ...] = ()
    group: tuple[int, ...] | None = None
    members: int = 1
    sample_index: tuple[int, int] = (0, 1)
    reserve: int | None = None
    has_more: bool = False
    beyond: Beyond | None = None
    watched: bool = False
    namespace: str = ""
    low_priority: bool = False
    guess: bool = False
    run: ProgramRun | None = None
    priority: float = 1.0
    account: str = ""
    shared: tuple[tuple[int, float], ...] = ()
    growth: int | None = None
    constants: tuple[str, ...] = ()
    trace: tuple[tuple[str, str], ...] = ()
    adapter: str = ""

    @property
    def owner(self) -> str:
        """Return the account: of the run, if there is one."""
        return self.account if self.run is None else self.run.account


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a target. Unsupported features are lowered by a pass or refused with `UnsupportedOpError`."""

    name: str
    constraints: frozenset[str] = frozenset()  # of Constraint.kind
    select: bool = False
    logprobs: bool = False
    images: bool = False
    videos: bool = False
    documents: bool = False  # PDFs
    n: bool = False
    streams: bool = False
    tools: bool = False  # a gen may return calls of tools
    adapters: tuple[str, ...] = ()  # that `gen(adapter=…)` may name; ("*",): any
    raw_text: bool = True  # takes text outside of chat messages
    lookahead: bool = False  # one request can cover a chain of gens (an API); there is no cache of ours to prefill
    local: bool = False  # in this process: plans reach its memory, and are made before the first request
    plans: bool = False  # a server elsewhere, whose plans are made before the first request, too
    max_context: int | None = None
    prices: Prices | None = None  # for budgets of cost
    seed: int | None = None  # of runs without one; None: a fresh one

    @property
    def listed_adapters(self) -> tuple[str, ...]:
        """Adapters that there are; none of a target that takes any name."""
        return () if self.adapters == ANY_ADAPTER else self.adapters


@runtime_checkable
class Handle(Protocol):
    """A prompt inside the backend. Dropping the last reference frees its resources."""

    @property
    def results(self) -> Sequence[Result]:
        """Return one per Gen or Select of the submission, in order."""
        ...

    def cancel(self) -> None:
        """Cancel unfinished work of this submission; its results fail with `CancelledError`."""
        ...


@runtime_checkable
class Backend(Protocol):
    """The interface of a target to the interpreter and the executor. All methods are thread-safe and none waits for a
    model.

    A backend only gets its own handles, so each may name their class.

    Errors that belong to the request (an invalid regex, a prompt too long) are raised by `submit` itself where they
    can be known, and otherwise fail the result.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Return what the target can do; all else is refused before it is asked."""
        ...

    @property
    def chat_template(self) -> ChatTemplate:
        """Return the template that roles are written by."""
        ...

    def submit(self, parent: Any, segments: Sequence[Segment], hints: Hints | None = None) -> Handle:
        """Extend `parent` (None: the empty prompt) by a chain of segments, in order."""
        ...

    def prefill(self, parent: Any, segments: Sequence[Segment], hints: Hints | None = None) -> Handle:
        """As `submit` with literal segments only: compute their KV if the target has one. May do nothing."""
        ...

    def release(self, handle: Any) -> None:
        """End a pin. The KV stays cached until room is needed."""
        ...

    def holds(self, handle: Any) -> bool:
        """Return whether a pin exists or is pending; a flush or a full pool may have ended it."""
        ...

    def counters(self) -> Counters:
        """Return totals since it was made: requests, tokens computed, cached and generated."""
        ...

    def flush_cache(self) -> None:
        """Drop KV that no request uses, and all pins."""
        ...

    def server_info(self) -> dict[str, Any]:
        """Return facts for people, by name: the model, settings, counters. Names differ between targets."""
        ...

    def close(self) -> None:
        """Cancel what is running and free everything; idempotent."""
        ...


class SharedBackend:
    """A backend as Python copies it: a copy is the backend itself, since its model, connections and threads are not copied. No other process can have it.
    As a context manager it is closed at the end."""

    def close(self) -> None:
        raise NotImplementedError

    def counters(self) -> Counters:
        raise NotImplementedError

    def spent(self) -> Spending:
        """Return what its requests have used so far; of a backend of this machine, which has no cost."""
        return Spending.of(self.counters())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> Any:
        """Raises ProgramError: a backend is not pickled."""
        raise ProgramError(
            f"a backend cannot be pickled ({type(self).__name__}): make one in each process, or give its name to lmc.set_default_backend there, or to run(…), "
            'such as "mock", "openai:MODEL" or the path of a model'
        )


def seed_of(backend: Backend, given: int | None) -> int:
    """Return a run's seed: the given one, else the backend's own, else a fresh one."""
    if given is None:
        given = backend.capabilities.seed
    return secrets.randbits(63) if given is None else given


_READERS = "use an API that reads PDFs: lmc.OpenAI, lmc.Anthropic or lmc.LiteLLM; or append its text"


def check_adapter(able: Capabilities, name: str, what: str, loc: Loc | None = None) -> None:
    """Refuse an adapter that a target has not; `what` asks with it."""
    if not name or name in able.adapters or able.adapters == ANY_ADAPTER:
        return
    if not able.adapters:
        raise UnsupportedOpError(f"{what} with adapter={name!r}", able.name, 'adapters are for lmc.Engine(adapters={"name": "path"})', loc=loc)
    raise ParameterError(f"adapter={name!r}: {able.name} has no adapter of that name{suggestion(name, able.adapters)}", loc=loc)


ANY_ADAPTER = ("*",)


def check_supported(able: Capabilities, segments: Sequence[Segment]) -> None:
    """Refuse requests beyond a target's capabilities, before the model is used."""
    for seg in segments:
        if seg.__class__ is Text:
            continue
        if isinstance(seg, Image) and not able.images:
            raise UnsupportedOpError(f"{seg.kind} input", able.name, "use a vision-language model" if seg.detail != DOCUMENT else _READERS, loc=seg.loc)
        if isinstance(seg, Image) and seg.frames is not None and not able.videos:
            raise UnsupportedOpError("video input", able.name, "append some of its frames as images", loc=seg.loc)
        if isinstance(seg, Image) and seg.detail == DOCUMENT and not able.documents:
            raise UnsupportedOpError("document input", able.name, _READERS, loc=seg.loc)
        if isinstance(seg, Select):
            if not able.select:
                raise UnsupportedOpError("select", able.name, loc=seg.loc)
            check_adapter(able, seg.adapter, "select", seg.loc)
        if isinstance(seg, Gen):
            check_adapter(able, seg.params.adapter, "gen", seg.loc)
            if seg.constraint is not None and seg.constraint.kind not in able.constraints:
                raise UnsupportedOpError(f"gen({seg.constraint.kind}=…)", able.name, loc=seg.loc)
            if seg.tools and not able.tools:
                raise UnsupportedOpError("gen(tools=…)", able.name, "use a chat API that has tools, such as lmc.OpenAI", loc=seg.loc)
            if seg.params.n > 1 and not able.n:
                raise UnsupportedOpError("gen(n=…)", able.name, loc=seg.loc)
            if seg.params.return_logprob and not able.logprobs:
                raise UnsupportedOpError("gen(return_logprob=True)", able.name, loc=seg.loc)
