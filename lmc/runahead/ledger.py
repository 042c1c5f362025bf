"""The ledger of a run: which request was made at which address, what was asked ahead there, and what became of it.

    Python ──ask at an address──► Ledger ──► equal guess? its answer : Python's own request ──► Backend
    Python ──wait──► Ledger: while it waits, a source evaluates what comes next and asks it ahead (a guess)

A guess is taken iff the prompt and all that the backend would see of the request are equal, so a wrong, missing or
malicious guess changes nothing but counters and time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter, thread_time
from typing import Any, Protocol

from lmc.backend.base import Hints, Result, Usage
from lmc.config import log, logs
from lmc.errors import LmcError, Loc
from lmc.frontend.capture.operations import interrupts
from lmc.frontend.host import HostFunction
from lmc.frontend.live import Run
from lmc.observing import observer
from lmc.prompt import Excerpt, Gen, Image, Prompt, Select
from lmc.runahead.calls import CallsAhead
from lmc.runahead.profile import FIRST_PLAN, SHORTEST, Profile, reading_line
from lmc.runahead.submitting import RunPlan
from lmc.waiting import Signal, idle


class Ahead(StrEnum):
    """How far a run is asked ahead: not at all, what only an exception could keep Python from asking, or what it may ask."""

    OFF = "off"
    CERTAIN = "certain"
    LIKELY = "likely"


Address = tuple[int, int, str, int]
"""Where a request is made: the run's seed, its number in its batch, the fork path, the request's number on that path."""


class Source(Protocol):
    """What says which requests come next. It may be wrong."""

    def evaluate(self, ledger: Ledger, run: Run, awaited: Sequence[Result]) -> Sequence[frozenset[Hashable]]:
        """Ask ahead (`ledger.guess`) what is known to come next; stop early when `awaited` are there.

        Return the sets of answers with any of which it could go further.
        """
        ...

    def close(self) -> None:
        """Let go of what the run was given; nothing is evaluated any more."""
        ...


@dataclass(eq=False, slots=True)
class Guess:
    """A request made ahead of Python. `reached` is the latest evaluation that made it; `in_arm`: in an arm of an undecided branch."""

    address: Address
    before: Prompt
    ask: Gen | Select
    after: Prompt
    certain: bool
    reached: int
    in_arm: bool = False
    used: bool = False
    dropped: bool = False

    @property
    def result(self) -> Result:
        assert self.after.result is not None
        return self.after.result


@dataclass(frozen=True, slots=True)
class Record:
    """A request of a run, for reports: where it was made, and whether it was asked ahead ("no", "used", "wasted"),
    and when the program made it, by `time.perf_counter()`."""

    address: Address
    kind: str
    name: str | None
    loc: Loc | None
    result: Result
    ahead: str
    asked: float = 0.0


MAX_OPEN = 64
"""Guesses of one run that Python has not taken yet."""


class Ledger:
    """What one run has asked, and what was asked ahead for it. Thread-safe: bodies of forks run on threads of their own.

    run      whose ledger it is: sub-programs may have another backend, seed and defaults
    source   says what comes next; None: nothing is asked ahead
    profile  what earlier runs of the program have taught
    stream   of the run's root state
    plan     how requests are submitted, by their addresses; None: as they come
    prepare  makes a plan for later runs, while this one waits; None: there is one
    """

    def __init__(
        self, run: Run, policy: Ahead, source: Source | None, profile: Profile, *, stream: str = "", plan: RunPlan | None = None,
        prepare: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.prepare = plan, prepare
        self.run, self.policy, self.source, self.profile, self.stream = run, policy, source, profile, stream
        self.calls: CallsAhead | None = None  # made when the first one is
        self.asked: dict[Address, tuple[Prompt, Gen | Select, Prompt]] = {}
        self.guesses: dict[Address, Guess] = {}
        self.records: list[Record] = []
        self.host_calls: list[tuple[str, float, float]] = []
        self.evaluations = 0
        self.usage = Usage()
        self.once = 0.0  # seconds of the latest evaluation that no other one has to take again
        self.closed = False
        self.began, self.ended = perf_counter(), 0.0  # of the run
        self._rivals: dict[Address, list[Guess]] = {}
        self._by_content: dict[Hashable, list[Guess]] = {}
        self._blocked: Sequence[frozenset[Hashable]] = ()  # what the latest evaluation lacks
        self._fresh = True  # Python has asked something since that no evaluation foresaw
        self._prefilled: dict[tuple[int, tuple[Any, ...]], Prompt] = {}  # by content; the backend drops what nobody holds
        self.prefilled = 0  # prompts that were prefilled before what follows was known
        self._lock = threading.RLock()
        self._waiting: set[Signal] = set()
        self._bound = 0.0  # tokens that open and wasted guesses may cost

    # -- Python's own requests

    def ask(self, address: Address, before: Prompt, ask: Gen | Select, run: Run) -> Prompt:
        """Return `before` followed by the answer to Python's request: a guess's that is equal, else its own."""
        guess = self._take(address, before, ask) if self.guesses else None
        if guess is None:
            after = before.submit(run.backend, ask, run.hints()) if self.plan is None else self.plan.submit(self, address, before, ask, run)
            self._fresh = True
        else:
            after = Prompt(before, (), guess.result, guess.after.handle, ())
        assert after.result is not None
        if self._prefilled:
            self._needed_no_more(before)
        self.asked[address] = (before, ask, after)
        kind = "gen" if ask.__class__ is Gen else "select"
        self.records.append(Record(address, kind, ask.name, ask.loc, after.result, "no" if guess is None else "used", perf_counter()))
        return after

    def answered(self, address: Address, before: Prompt, ask: Gen | Select, after: Prompt) -> None:
        """Note what Python has asked at an address and something else has answered, such as a journal."""
        self.asked.setdefault(address, (before, ask, after))

    def called(self, name: str, began: float, ended: float) -> None:
        """Note a call of a host function, for reports."""
        self.host_calls.append((name, began, ended))

    def equal(self, address: Address, other: tuple[str, int], before: Prompt, ask: Gen | Select, *, ahead: bool = False) -> Prompt | None:
        """The prompt with the answer to an equal request at another address of the run, at temperature 0: one of Python's, or with `ahead` a guess."""
        place = (address[0], address[1], f"{self.stream}{other[0]}", other[1])
        entry = self.asked.get(place)
        if entry is None and ahead and (guess := self.guesses.get(place)) is not None:
            entry = guess.before, guess.ask, guess.after
        if entry is None or not _repeatable(ask) or not same_request(entry[1], ask) or content(entry[0]) != content(before):
            return None
        return entry[2]

    def _take(self, address: Address, before: Prompt, ask: Gen | Select) -> Guess | None:
        with self._lock:
            there = self._at(address)
            found = next((g for g in there if self._answers(g, before, ask)), None)
            for guess in [g for g in there if g is not found and (g.in_arm or not _repeatable(ask))]:
                self._drop(guess)
                if guess.in_arm:
                    self.profile.wrong(guess.ask.loc)
            if found is None and _repeatable(ask):  # an address may have moved, behind a retry that nobody foresaw: the content counts
                equal = self._by_content.get(content(before), ())
                found = next((g for g in equal if not g.used and not g.dropped and self._answers(g, before, ask)), None)
            if found is not None and found.result.error is not None:  # a guess that failed is no answer
                self._drop(found)
                found = None
            if found is None:
                if any(not guess.in_arm for guess in there):
                    self.profile.wrong(ask.loc)
                return None
            found.used = True
            self._remove(found)
            if (needed := getattr(found.after.handle, "needed", None)) is not None:
                needed()
            self._count(ahead_used=1)
            self._settle(found, used=True)
            self.profile.right(ask.loc)
            return found

    def _answers(self, guess: Guess, before: Prompt, ask: Gen | Select) -> bool:
        return same_request(guess.ask, ask) and content(guess.before) == content(before)

    # -- asking ahead

    def guess(self, address: Address, before: Prompt, ask: Gen | Select, run: Run, *, certain: bool, in_arm: bool = False) -> Prompt | None:
        """Ask ahead; return the prompt with the answer to come, or None where that is not allowed or was refused.

        What was asked at the address before is kept if it is equal, and dropped if not.
        """
        with self._lock:
            if self.closed or not (certain or self.policy is Ahead.LIKELY):
                return None
            for found in self._at(address):
                if self._answers(found, before, ask):
                    found.reached = self.evaluations
                    return found.after
                if found.reached != self.evaluations:  # else another arm of an undecided branch asks it there
                    self._drop(found)
            if self.plan is not None and (equal := self.plan.equal(self, address, before, ask, run, ahead=True)) is not None:
                return equal
            if _repeatable(ask) and (found := self._moved(before, ask)) is not None:
                self._remove(found)
                found.address, found.reached = address, self.evaluations
                self._put(found)
                return found.after
            if self._open >= MAX_OPEN or self.profile.is_off(ask.loc) or not self._affordable(before, ask):
                return None
            try:
                if self.plan is None:
                    after = before.submit(run.backend, ask, (run.hints() or Hints())._replace(guess=True))
                else:
                    after = self.plan.submit(self, address, before, ask, run, ahead=True)
            except LmcError as error:  # raised where Python asks it, if it does
                if logs("ahead"):
                    log("ahead", f"refused at {address}: {error}")
                return None
            guess = Guess(address, before, ask, after, certain, self.evaluations, in_arm)
            self._put(guess)
            self._by_content.setdefault(content(before), []).append(guess)
            self._count(ahead_asked=1)
        guess.result.on_change(self._notify)
        return after

    def prefill(self, prompt: Prompt, run: Run) -> None:
        """Compute what a prompt begins with, behind which only an answer or a tool can say how it goes on. What is computed costs nobody
        anything but time in which the backend has nothing better to do."""
        if not run.backend.capabilities.local or hasattr(prompt.handle, "begin") or not _worth(prompt.tail):
            return
        with self._lock:
            key = content(prompt)
            if self.closed or key in self._prefilled or len(self._prefilled) >= MAX_OPEN:
                return
            try:
                self._prefilled[key] = prompt.prefill(run.backend, (run.hints() or Hints())._replace(spare=True, adapter=run.defaults.adapter))
            except LmcError as error:  # raised where Python asks, if it does
                log("ahead", f"not prefilled: {error}")
                return
            self.prefilled += 1

    def _needed_no_more(self, before: Prompt) -> None:
        """Python has asked with a prompt: what was prefilled of it has done its part."""
        place, parts = content(before)
        with self._lock:
            for key in [key for key in self._prefilled if key[0] == place and _begins(parts, key[1])]:
                del self._prefilled[key]

    def call(self, fn: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, Future[Any]] | None:
        """Call an `@lmc.pure` function ahead: the key that `known` takes and what will be its result; None where that cannot be."""
        if self.closed:
            return None
        if self.calls is None:
            self.calls = CallsAhead(self.wake)
        return self.calls.begin(fn, args, kwargs)

    def listen(self, result: Result, tools: Mapping[str, HostFunction]) -> None:
        """Call those of the tools that are declared pure as soon as a growing answer has said with what."""
        if self.closed or self.policy is Ahead.OFF or result.done:
            return
        if self.calls is None:
            self.calls = CallsAhead(self.wake)
        calls = self.calls

        def begin(name: str, arguments: Mapping[str, Any]) -> None:
            if (fn := tools.get(name)) is not None and not self.closed:
                calls.begin(fn, (), arguments)

        result.on_call(begin)

    def _moved(self, before: Prompt, ask: Gen | Select) -> Guess | None:
        """An equal guess at an address that the latest evaluation has not reached."""
        equal = self._by_content.get(content(before), ())
        return next(
            (g for g in equal if not g.used and not g.dropped and g.reached != self.evaluations and self._answers(g, before, ask)), None
        )

    def _affordable(self, before: Prompt, ask: Gen | Select) -> bool:
        """Whether the budget would allow it, if all that was asked ahead so far were spent in vain."""
        limits = self.run.limits
        if limits is None:
            return True
        bound = limits.allows_ahead(ask, before, self._bound, self.usage.ahead_asked - self.usage.ahead_used)
        if bound is None:
            return False
        self._bound += bound
        return True

    def _drop(self, guess: Guess) -> None:
        """A guess is wrong, or nothing leads to it any more: cancelled, and counted as wasted in full."""
        self._remove(guess)
        if guess.used or guess.dropped:
            return
        guess.dropped = True
        self._settle(guess, used=False)
        spent = guess.result.usage
        tokens = 0 if spent is None else spent.prompt_tokens + spent.completion_tokens
        self._count(ahead_wasted=1, ahead_wasted_tokens=tokens)
        kind = "gen" if guess.ask.__class__ is Gen else "select"
        self.records.append(Record(guess.address, kind, guess.ask.name, guess.ask.loc, guess.result, "wasted"))
        if not guess.result.done and guess.after.handle is not None:
            guess.after.handle.cancel()

    def _settle(self, guess: Guess, *, used: bool) -> None:
        if (watching := observer()) is not None:
            watching.settle(guess.result, used=used)

    # -- open guesses: at an address one, but where several arms of an undecided branch ask

    def _at(self, address: Any) -> list[Guess]:
        found = self.guesses.get(address)
        return [] if found is None else [found, *self._rivals.get(address, ())]

    def _all(self) -> list[Guess]:
        return [*self.guesses.values(), *(g for rivals in self._rivals.values() for g in rivals)]

    @property
    def _open(self) -> int:
        return len(self.guesses) + sum(map(len, self._rivals.values()))

    def _put(self, guess: Guess) -> None:
        if self.guesses.setdefault(guess.address, guess) is not guess:
            self._rivals.setdefault(guess.address, []).append(guess)

    def _remove(self, guess: Guess) -> None:
        rivals = self._rivals.get(guess.address, [])
        if guess in rivals:
            rivals.remove(guess)
        elif self.guesses.get(guess.address) is guess:
            del self.guesses[guess.address]
            if rivals:
                self.guesses[guess.address] = rivals.pop(0)
        if not rivals:
            self._rivals.pop(guess.address, None)

    def _count(self, **more: int) -> None:
        self.usage += Usage(**more)

    def known(self, address: Any) -> bool:
        """Whether the answer at an address is there, or the result of a call made ahead."""
        entry = self.asked.get(address)
        if entry is not None:
            return entry[2].result is not None and entry[2].result.done
        there = self._at(address)  # of several arms all: each would be evaluated again without end until its own is there
        return all(g.result.done for g in there) if there else self.calls is not None and self.calls.done(address)

    # -- waiting: the one place where a run waits for answers

    def wait(self, results: Sequence[Result]) -> None:
        """Wait until all of them are there; meanwhile ask ahead."""
        awaited = [result for result in results if not result.done]
        if not awaited:
            return
        began = perf_counter()
        event = Signal()
        for result in awaited:
            result.on_change(lambda r: event.set() if r.done else None)
        found = None if self._is_off() else reading_line()
        line = None if found is None else (self.policy, found)  # where nothing certain follows, something likely may
        if line is not None and not self.profile.worth(line):
            line = None
        if line is None and self.prepare is None:
            for result in awaited:
                result.wait()
        else:
            self._waiting.add(event)
            try:
                self._wait(awaited, event, line, began)
            finally:
                self._waiting.discard(event)
        self.profile.has_waited(began, perf_counter())

    def _is_off(self) -> bool:
        return self.source is None or self.closed or self.policy is Ahead.OFF

    def _wait(self, awaited: Sequence[Result], event: Signal, line: Hashable, began: float) -> None:
        """Wait for answers; evaluate as soon as that has lasted long enough, and nobody else could go on, and whenever more is known."""
        patience = self.profile.patience
        left: float | None = patience
        while True:
            event.wait(left)
            event.clear()
            if all(result.done for result in awaited):
                return
            left = began + patience - perf_counter()
            if left > 0:
                continue
            left = None
            while (worth := self.worth(line)) and idle() and not all(result.done for result in awaited):
                self.evaluate(awaited, line)
            if worth and not idle():
                left = patience = patience + SHORTEST  # somebody else goes first
                began = perf_counter()
            elif self.prepare is not None and self.profile.affords(FIRST_PLAN) and idle() and not all(result.done for result in awaited):
                prepare, self.prepare = self.prepare, None
                prepare()

    def worth(self, line: Hashable) -> bool:
        """Whether an evaluation would know more than the one before it, and may be of use."""
        if line is None or self._is_off():
            return False
        return self._fresh or any(all(map(self.known, needed)) for needed in self._blocked)

    def evaluate(self, awaited: Sequence[Result], line: Hashable) -> None:
        """Evaluate once what comes next; what it no longer reaches is cancelled."""
        with self._lock:
            if self.source is None:  # closed just now
                return
            self.evaluations += 1
            self._fresh, before, began = False, self.usage.ahead_asked + self.prefilled, thread_time()
            try:
                self._blocked = self.source.evaluate(self, self.run, awaited)
            except Exception as fault:  # of the evaluator, not of the program: the run goes on without it
                if interrupts(fault):
                    raise
                self._blocked, self.policy = (), Ahead.OFF
                self.profile.fault(fault)
            finally:
                self.profile.evaluated(line, thread_time() - began, self.usage.ahead_asked + self.prefilled - before, self.once)
                self.once = 0.0
            if not idle() or all(result.done for result in awaited):  # it may have stopped early: the next one goes on
                self._fresh = True
            else:
                for guess in [g for g in self._all() if g.reached != self.evaluations and not g.result.done]:
                    self._drop(guess)

    def _notify(self, result: Result) -> None:
        if result.done:
            self.wake()

    def wake(self) -> None:
        """Something that was asked or called ahead is there: from any thread."""
        for event in tuple(self._waiting):
            event.set()

    def close(self) -> None:
        """The function has returned: nothing is asked ahead any more, and what was in vain is cancelled."""
        with self._lock:
            if self.closed:
                return
            self.closed, self.ended = True, perf_counter()
            for guess in self._all():
                self._drop(guess)
            self._by_content.clear()
            self._prefilled.clear()
            self.asked.clear()
            if self.source is not None:
                self.source.close()
                self.source = None
            if self.plan is not None:
                self.plan.close()
            if self.calls is not None:
                self.calls.close()
                self.calls = None
        self.profile.ended(self)


# -- equality: all that a backend sees of a request --------------------------------------------------------------------


def same_request(a: Gen | Select, b: Gen | Select) -> bool:
    """Whether two requests at the same prompt ask the same; their places in the source may differ."""
    if a.__class__ is not b.__class__:
        return False
    if isinstance(a, Gen) and isinstance(b, Gen):
        return a.params == b.params and a.constraint == b.constraint and a.seed == b.seed and a.tools == b.tools and a.name == b.name
    assert isinstance(a, Select) and isinstance(b, Select)
    return a.choices == b.choices and a.method == b.method and a.temperature == b.temperature and a.seed == b.seed and a.adapter == b.adapter and a.name == b.name


def content(prompt: Prompt) -> tuple[int, tuple[Any, ...]]:
    """What two equal prompts have in common: the handle of all before the last answer, and the literal text since.

    The handle stands for what was verified before. However the text was cut into appends, it is the same.
    """
    parts: list[Any] = []
    text: list[str] = []
    for part in prompt.tail:
        part = part.text() if isinstance(part, Excerpt) and part.result.done and part.result.error is None else part
        if part.__class__ is str:
            text.append(part)  # pyright: ignore[reportArgumentType]
            continue
        if text:
            parts.append("".join(text))
            text = []
        parts.append(("image", part.source, part.frames, part.detail) if isinstance(part, Image) else part)
    if text:
        parts.append("".join(text))
    return id(prompt.handle), tuple([part for part in parts if part != ""])


_LEAST = 64
"""Characters behind the last answer that are worth a prefill of their own: fewer are computed with what follows as fast."""


def _worth(tail: Sequence[object]) -> bool:
    """Whether the text behind an answer is worth a prefill, and literal."""
    return sum(len(part) for part in tail if isinstance(part, str)) >= _LEAST and not any(isinstance(part, Excerpt | Image) for part in tail)


def _begins(parts: Sequence[Any], first: Sequence[Any]) -> bool:
    """Whether a prompt's content begins with that of another."""
    n = len(first)
    if len(parts) < n or parts[: n - 1] != first[: n - 1]:
        return False
    last, ends = parts[n - 1], first[n - 1]
    return last.startswith(ends) if isinstance(last, str) and isinstance(ends, str) else last == ends


def _repeatable(ask: Gen | Select) -> bool:
    """Whether equal requests have equal answers wherever they are made: at temperature 0."""
    return (ask.params.temperature if isinstance(ask, Gen) else ask.temperature) == 0

