"""Limits of a run: a budget that is checked before each request, and a deadline after which every wait fails."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from lmc.deadlines import Deadlines, TimedAwait
from lmc.errors import ArgumentError, BudgetExceeded, ParameterError, RunTimeout
from lmc.pages import several
from lmc.prompt import Excerpt, Prompt
from lmc.segments import Gen, Image, Select

if TYPE_CHECKING:
    from lmc.backend.results import Result
    from lmc.backend.usage import Prices
    from lmc.errors import Loc


@dataclass(frozen=True, slots=True)
class Budget:
    """Spending limits of one run, including its sub-programs and runs in its tools. None: no limit.

    tokens  of prompts and answers, as the backend reports them, including cached tokens; a request of which a server reports
            nothing, or what cannot be, counts as much as it can have cost
    calls   requests: each `gen` and each `select` is one
    cost    in the unit of the backend's prices; needs a backend that has prices

    A request is sent while the requests before it, in program order, have spent less than the budget; otherwise
    BudgetExceeded is raised at its place. So a run exceeds its budget by at most one request.
    """

    tokens: int | None = None
    calls: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        if all(getattr(self, f.name) is None for f in fields(self)):
            raise ParameterError("Budget(): give tokens=, calls= or cost=")
        for f in fields(self):
            _check(f"Budget({f.name}=", getattr(self, f.name), (int, float) if f.name == "cost" else (int,))

    def __str__(self) -> str:
        return ", ".join(f"{f.name}={getattr(self, f.name):g}" for f in fields(self) if getattr(self, f.name) is not None)


def _check(what: str, value: object, types: tuple[type, ...]) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, types):
        raise ArgumentError(f"{what}{value!r}): a {'number' if float in types else 'whole number'}")
    if not 0 <= value < math.inf:  # type: ignore[operator]  # one of the types
        raise ParameterError(f"{what}{value!r}): at least 0")


def check_timeout(seconds: object, loc: Loc | None) -> float | None:
    """Return `timeout=` as a number of seconds. Raises ArgumentError or ParameterError."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ArgumentError(f"timeout={seconds!r}: must be a number of seconds", loc=loc)
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ParameterError(f"timeout={seconds!r}: must be a number of seconds above 0", loc=loc)
    return float(seconds)


@dataclass(frozen=True, slots=True)
class Spent:
    """Spending of a run: tokens of prompts and answers, requests, their cost (None: the backend has no prices),
    seconds."""

    tokens: int = 0
    calls: int = 0
    cost: float | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        cost = "" if self.cost is None else f" for {self.cost:g}"
        return f"{several(self.tokens, 'token')} in {several(self.calls, 'call')}{cost}"


class _Entry:
    """A request: its answer, and an upper bound on its tokens."""

    __slots__ = ("answer", "ask", "bound", "prompt")

    def __init__(self, ask: Gen | Select, prompt: Prompt, bound: float) -> None:
        assert prompt.result is not None
        self.answer: Result = prompt.result
        self.ask, self.prompt, self.bound = ask, weakref.ref(prompt), bound


class Limits:
    """Budget, spending and deadline of one run. A sub-program's spending also counts towards its caller's limits.

    ledger  the requests, in program order
    """

    def __init__(self, budget: Budget | None, timeout: float | None, prices: Prices | None, outer: Limits | None = None) -> None:
        self.budget, self.timeout, self.prices, self.outer = budget, timeout, prices, outer
        self.lock: threading.RLock = outer.lock if outer is not None else threading.RLock()  # guards the rest
        self._ledger: list[_Entry] = []
        self._open: list[_Entry] = []  # entries of the ledger whose answers are not in these sums yet
        self._tokens_spent, self._cost_spent = 0, 0.0
        self._known: weakref.WeakKeyDictionary[Prompt, float] = weakref.WeakKeyDictionary()
        self._began: float | None = None
        self._expired = False
        self._awaits: set[TimedAwait[Limits]] = set()  # pending awaits of host code
        self._said: list[RunTimeout] = []  # to be raised, or already raised, in the program

    @property
    def in_order(self) -> bool:
        """Return whether requests have to be counted in program order."""
        return self.budget is not None or (self.outer is not None and self.outer.in_order)

    def begin(self) -> None:
        """Start the run's clock."""
        if self._began is None:
            self._began = time.monotonic()
            if self.timeout is not None:
                _clock.at(self._began + self.timeout, self)

    def submit(self, ask: Gen | Select, before: Prompt, send: Callable[[], Prompt]) -> Prompt | Result:
        """Return the prompt with the answer that `send` requests; or an answer that must arrive before the budget can
        decide.

        Raises BudgetExceeded or RunTimeout at the place of `ask`.
        """
        for limits in self._chain():
            limits.check_time(ask)
        return self.count(ask, before, send)

    def count(self, ask: Gen | Select, before: Prompt, send: Callable[[], Prompt]) -> Prompt | Result:
        """As `submit`, for a request that may have been made already, before the deadline."""
        with self.lock:
            bound = self._bound(ask, before)
            for limits in self._chain():
                first = limits._admit(ask)
                if first is not None:
                    return first
            prompt = send()
            self._known[prompt] = self._tokens(before) + _most(ask)
            for limits in self._chain():
                limits._enter(ask, prompt, bound)
            return prompt

    def allows_ahead(self, ask: Gen | Select, before: Prompt, open_tokens: float, open_calls: int) -> float | None:
        """Return the most tokens that a request made ahead can cost; None if the budgets might not allow it.

        open_tokens  what other requests made ahead may cost that the program has not made since; `open_calls` of them
        """
        with self.lock:
            bound = self._bound(ask, before)
            if all(limits._has_room(open_calls, open_tokens + bound) for limits in self._chain()):
                return bound
            return None

    def spent(self) -> Spent:
        """Return the spending so far, of answers that have arrived."""
        with self.lock:
            self._settle()
            seconds = 0.0 if self._began is None else time.monotonic() - self._began
            return Spent(self._tokens_spent, len(self._ledger), None if self.prices is None else self._cost_spent, seconds)

    def _settle(self) -> None:
        """Add up the answers that have arrived."""
        still_open: list[_Entry] = []
        for entry in self._open:
            answer = entry.answer
            if not answer.done:  # read once: it may change at any time, from another thread
                still_open.append(entry)
                continue
            output = answer.answer
            usage, unreported = answer.in_vain if output is None else (output.usage, output.unreported)
            tokens = unreported * self._unreported(entry) if unreported else 0
            self._tokens_spent += usage.prompt_tokens + usage.completion_tokens + tokens
            if self.prices is not None:
                self._cost_spent += self.prices.of(usage) + (tokens * self.prices.most if tokens else 0.0)
        self._open = still_open

    def expire(self) -> None:
        """End the run's time: pending awaits fail, and no more requests are made."""
        with self.lock:
            self._expired = True
            waiting = [e for e in self._ledger if not e.answer.done]
            for awaiting in self._awaits:  # before any answer fails, so that all awaits end in the same way
                awaiting.end_soon(self)
        prompts = [e.prompt() for e in waiting]
        for entry in waiting:  # all of them before the first is cancelled, which may end others that build on it
            entry.answer.fail(self._late(None))
        for prompt in prompts:
            if prompt is not None and prompt.handle is not None:
                prompt.handle.cancel()

    async def wait(self, awaitable: Awaitable[Any], loc: Loc | Callable[[BaseException], Loc | None] | None) -> Any:
        """Await an async program, or host code in one; cancel it once when the time is over (cf. asyncio.timeout).

        Raises RunTimeout then, at `loc`. An answer that is being read fails instead, and once the program has seen that
        error it is not cancelled: its handlers may await.
        """
        awaiting = TimedAwait[Limits]()
        timed = [limits for limits in self._chain() if limits.timeout is not None]
        for limits in timed:
            limits._watch(awaiting)
        try:
            return await awaitable
        except asyncio.CancelledError as error:
            if (late := awaiting.over()) is not None:
                raise late._late(loc(error) if callable(loc) else loc) from None
            raise
        finally:
            awaiting.over()
            with self.lock:
                for limits in timed:
                    limits._awaits.discard(awaiting)

    @property
    def timed(self) -> bool:
        """Return whether the run has a deadline."""
        return any(limits.timeout is not None for limits in self._chain())

    def _watch(self, awaiting: TimedAwait[Limits]) -> None:
        with self.lock:
            if not self._expired:
                self._awaits.add(awaiting)
            elif not self.is_known:
                awaiting.end_soon(self)

    @property
    def is_known(self) -> bool:
        """Return whether the program has seen that its time is over."""
        return any(error.__traceback__ is not None for error in self._said)

    # -- one request

    def _chain(self) -> list[Limits]:
        return [self, *(self.outer._chain() if self.outer is not None else ())]

    def check_time(self, ask: Gen | Select) -> None:
        if self._expired or (self._began is not None and self.timeout is not None and time.monotonic() - self._began >= self.timeout):
            raise self._late(ask.loc)

    def _admit(self, ask: Gen | Select) -> Result | None:
        """Return None if the budget allows the request; else an answer that must arrive before that can be decided."""
        if self._has_room(0, 0.0):
            return None
        if self._open:  # their actual spending decides, so that the order of arrival does not matter
            return self._open[0].answer
        raise self._exceeded(ask)

    def _has_room(self, calls: int, tokens: float) -> bool:
        """Return whether the budget allows a request behind the others, and behind so many further calls and tokens, at what each can cost at the most."""
        budget = self.budget
        if budget is None:
            return True
        self._settle()
        most = sum([e.bound for e in self._open]) + tokens
        price = 0.0 if self.prices is None else self.prices.most
        return (
            (budget.calls is None or len(self._ledger) + calls < budget.calls)
            and (budget.tokens is None or self._tokens_spent + most < budget.tokens)
            and (budget.cost is None or self._cost_spent + (most * price if most else 0) < budget.cost)
        )

    def _enter(self, ask: Gen | Select, prompt: Prompt, bound: float) -> None:
        entry = _Entry(ask, prompt, bound)
        self._ledger.append(entry)
        self._open.append(entry)

    def _exceeded(self, ask: Gen | Select) -> BudgetExceeded:
        spent = self.spent()
        error = BudgetExceeded(f"the budget of this run ({self.budget}) is spent: {spent}", loc=ask.loc)
        error.spent, error.budget = spent, self.budget
        return error

    def _late(self, loc: Loc | None) -> RunTimeout:
        spent = self.spent()
        error = RunTimeout(f"the run took longer than timeout={self.timeout:g} s; it spent {spent}", loc=loc)
        error.spent = spent
        self._said.append(error)
        return error

    # -- bounds: a token has at least one byte, so that nothing needs to be encoded

    def _bound(self, ask: Gen | Select, before: Prompt) -> float:
        prompt = self._tokens(before)
        if isinstance(ask, Gen):
            return ask.params.n * (prompt + ask.params.max_new_tokens)
        return 2 * (len(ask.choices) + 1) * (prompt + _most(ask))

    def _unreported(self, entry: _Entry) -> int:
        """Tokens that an answer which is there can have cost, of which its server said nothing."""
        bound, prompt = entry.bound, entry.prompt()
        if not math.isfinite(bound) and prompt is not None and prompt.parent is not None:
            bound = self._bound(entry.ask, prompt.parent)  # of what was not there yet when it was asked
        return int(bound) if math.isfinite(bound) else _UNKNOWN + _most(entry.ask)

    def _tokens(self, prompt: Prompt) -> float:
        total, node = 0.0, prompt
        while node is not None:
            if math.isfinite(known := self._known.get(node, math.inf)):
                return total + known
            total += sum(map(_part, node.parts))
            if node.result is not None:
                total += len(node.result.output().text.encode()) if node.result.done and node.result.error is None else math.inf
            node = node.parent
        return total + _START


_UNKNOWN = 1 << 16  # tokens that a prompt counts as whose size cannot be told, because of a picture
_START = 8  # tokens that a model puts before the first text


def _part(part: object) -> float:
    if isinstance(part, Image | Excerpt):
        return math.inf
    return len(part.encode()) + 1 if isinstance(part, str) else 8  # a special token, or a mark as a chat API renders it


def _most(ask: Gen | Select) -> int:
    """Return the most tokens that an answer adds to the prompt."""
    return ask.params.max_new_tokens if isinstance(ask, Gen) else max(len(c.encode()) for c in ask.choices)


_clock = Deadlines()
