"""The ledger of a run: requests by address, guesses made ahead there, and their outcome.

Python ──ask at an address──► Ledger ──► equal guess? its answer : Python's own request ──► Backend
Python ──wait──► Ledger: while it waits, a source evaluates the next steps and makes requests ahead (guesses)
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from time import perf_counter, thread_time
from typing import Any, NamedTuple, Protocol

from lmc.backend.base import Hints
from lmc.backend.results import Result
from lmc.backend.usage import Usage
from lmc.config import log, logs
from lmc.errors import LmcError, Loc
from lmc.frontend.capture.operations import interrupts
from lmc.frontend.host import HostFunction
from lmc.frontend.live import Run
from lmc.observing import observer
from lmc.prompt import Excerpt, Forked, Prompt
from lmc.runahead.calls import CallsAhead
from lmc.runahead.profile import FIRST_PLAN, Profile, reading_line
from lmc.runahead.records import Address, GraphAddress, Record
from lmc.runahead.submitting import RunPlan
from lmc.runahead.text import flat, without
from lmc.segments import Gen, Image, Select
from lmc.tracebacks import HeldWarning, held_warnings, warn
from lmc.waiting import Signal, idle


class AheadPolicy(StrEnum):
    """The requests to make ahead: none, those that only an exception could prevent, or likely ones, too."""

    OFF = "off"
    CERTAIN = "certain"
    LIKELY = "likely"


class Source(Protocol):
    """Predicts the next requests. It may be wrong."""

    def evaluate(self, ledger: Ledger, run: Run, stops: Callable[[], bool]) -> Sequence[frozenset[Hashable]] | None:
        """Make known next requests ahead (`ledger.guess`). Ask `stops` often: it lets other programs run first, and
        returns whether to stop because this one goes on.

        Return the sets of answers, any of which would let it go further; None if it has stopped, and the next call
        continues it, unless `ledger.evaluations` has changed.
        """
        ...

    def close(self) -> None:
        """Release the run's objects; nothing is evaluated any longer."""
        ...


@dataclass(eq=False, slots=True)
class Guess:
    """A request made ahead of Python. `reached` is the latest evaluation that made it; `in_arm`: in an arm of an undecided branch; `warnings`: to be raised
    where Python makes it."""

    address: Address
    before: Prompt
    ask: Gen | Select
    after: Prompt
    reached: int
    warnings: Sequence[HeldWarning]
    in_arm: bool = False
    used: bool = False
    dropped: bool = False

    @property
    def result(self) -> Result:
        assert self.after.result is not None
        return self.after.result

    def answers(self, before: Prompt, ask: Gen | Select) -> bool:
        """Return whether it is this request."""
        return self.ask == ask and equal(self.before, before)


class Asked(NamedTuple):
    """A request of Python's.

    handle, tail  of its prompt
    begins        the number of the request whose answer the tail follows; None: the beginning; a prompt: it, the tail included, is not known by number
    after         the handle of prompt and answer
    """

    handle: Any
    tail: tuple[Any, ...]
    forked: Forked | None
    begins: int | Prompt | None
    ask: Gen | Select
    result: Result
    after: Any
    number: int


MAX_OPEN = 64
"""Most guesses of one run that Python has not taken yet."""


class Ledger:
    """The requests of one run, and the guesses made ahead for it. Thread-safe: bodies of forks run on threads of their own.

    run      the owner: sub-programs may have another backend, seed and defaults
    source   predicts the next requests; None: nothing is made ahead
    profile  statistics from earlier runs of the program
    stream   of the run's root state
    plan     how requests are submitted, by their addresses
    prepare  makes a plan for later runs, while this one waits; None: there is one
    """

    __slots__ = (
        "__weakref__", "_all", "_blocked", "_bound", "_by_size", "_calls", "_ends", "_evaluating", "_fresh", "_keeps", "_lock", "_paused",
        "_prefilled", "_prompts", "_useless", "_waiting", "asked", "began", "closed", "ended", "evaluations", "guesses",
        "host_calls", "made_ahead", "missed", "once", "plan", "policy", "prefilled", "prepare", "profile", "records", "run", "source",
        "stream", "used", "wasted", "wasted_tokens",
    )  # fmt: skip

    def __init__(
        self, run: Run, policy: AheadPolicy, source: Source | None, profile: Profile, plan: RunPlan, *, stream: str = "",
        prepare: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.prepare = plan, prepare
        self.run, self.policy, self.source, self.profile, self.stream = run, policy, source, profile, stream
        self._calls: CallsAhead | None = None  # once there is one
        self.records: list[Record] = []
        self.host_calls: list[tuple[str, float, float]] = []
        self.evaluations = self.made_ahead = self.used = self.wasted = self.wasted_tokens = 0
        self.once = 0.0  # one-time seconds of the latest evaluation, which no other one repeats
        self.closed = False
        self.began, self.ended = perf_counter(), 0.0  # of the run
        self._blocked: Sequence[frozenset[Hashable]] = ()  # answers that the latest evaluation lacks
        self._evaluating = self._paused = False
        self._fresh = True  # Python has since made a request that the latest evaluation could not predict
        self.prefilled = 0  # prompts prefilled before their continuation was known
        self._lock = threading.RLock()
        self._waiting: set[Signal] = set()
        self._bound = 0.0  # tokens that open and wasted guesses may cost
        self._keeps = source is not None or plan.annotations.merges
        if self._keeps:
            self.asked: dict[Address, Asked] = {}
            self._all: list[Asked] = []
            self._ends: dict[int, int] = {}  # their numbers, by the ids of their handles
            self._prompts: list[Prompt] = []  # with their answers
            self.missed: set[Address | None] = set()  # requests that the latest evaluation could not make yet; None: one at an undecided address
            self.guesses: dict[Address, list[Guess]] = {}  # open ones: of an address several if arms of an undecided branch make them
            self._by_size: dict[Hashable, list[Guess]] = {}
            self._useless: dict[Loc | None, bool] = {}  # by request site with guesses: whether all of them were wasted, and it is not told yet
            self._prefilled: dict[tuple[int, tuple[Any, ...]], Prompt] = {}  # by content; unreferenced handles are dropped

    @property
    def root(self) -> tuple[int, int, str]:
        """Return the run's own place: seed, item and stream. A sub-program with a seed of its own has the stream, but another seed."""
        return self.run.seed, self.run.item, self.stream

    def _begun(self) -> int:
        """Return what evaluations have begun: requests, prefills and pure calls."""
        return self.made_ahead + self.prefilled + len(self._calls or ())

    @property
    def calls(self) -> CallsAhead:
        with self._lock:
            if self._calls is None:
                self._calls = CallsAhead(self.wake)
            return self._calls

    @property
    def usage(self) -> Usage:
        return Usage(ahead_asked=self.made_ahead, ahead_used=self.used, ahead_wasted=self.wasted, ahead_wasted_tokens=self.wasted_tokens)

    # -- Python's own requests

    def ask(self, address: Address, before: Prompt, ask: Gen | Select, run: Run) -> Prompt:
        """Return `before` followed by the answer to Python's request: that of an equal guess, else its own."""
        with self._lock:  # or an evaluation on another thread would make the same request meanwhile
            guess = self._take(address, before, ask) if self._keeps and self.guesses else None
            if guess is None:
                annotation = self.plan.at(address, ask, run)
                merged = None if annotation.same_as is None else self._merged(annotation.same_as, address, before, ask)
                after = merged or self.plan.submit(annotation, before, ask, run)
                self._fresh = self._fresh or not self._paused or not self.missed.isdisjoint((address, None))  # else it will come to it
            else:
                after = Prompt(before, (), guess.result, guess.after.handle, ())
                for held in guess.warnings:
                    warn(*held)
            assert after.result is not None
            if self._keeps:
                if self._prefilled:
                    self._needed_no_more(before)
                self._keep(address, before, ask, after)
            self.records.append(Record(address, ask, after.result, "no" if guess is None else "used", perf_counter()))
            return after

    def answered(self, address: Address, before: Prompt, ask: Gen | Select, after: Prompt) -> None:
        """Record a request of Python at an address that was answered from elsewhere, such as a journal."""
        with self._lock:
            if self._keeps:
                self._keep(address, before, ask, after)

    def _keep(self, address: Address, before: Prompt, ask: Gen | Select, after: Prompt) -> None:
        """Keep a request for evaluations and equal requests, but not the program's own objects of its prompt."""
        begun, handle, result = before.handle, after.handle, after.result
        assert result is not None
        number, begins = len(self._all), None if begun is None else self._ends.get(id(begun), before)
        self.asked[address] = asked = Asked(begun, before.tail, before.forked, begins, ask, result, handle, number)
        self._all.append(asked)
        self._ends[id(handle)] = number

    def after(self, asked: Asked) -> Prompt:
        """Return the prompt with the answer to a request of Python's: one node for each answer and the text before it."""
        for one in islice(self._all, len(self._prompts), None):  # an earlier one first
            if isinstance(one.begins, Prompt):
                before = one.begins  # with the tail
            else:
                before = Prompt(None if one.begins is None else self._prompts[one.begins], one.tail, None, one.handle, one.tail)
                before.forked = one.forked
            self._prompts.append(Prompt(before, (), one.result, one.after, ()))
        return self._prompts[asked.number]

    def called(self, name: str, began: float, ended: float) -> None:
        """Record a call of a host function, for reports."""
        self.host_calls.append((name, began, ended))

    def _merged(self, same_as: GraphAddress, address: Address, before: Prompt, ask: Gen | Select, *, ahead: bool = False) -> Prompt | None:
        """Return `before` followed by the answer to the equal request that the plan says answers this one, too, at temperature 0: one of Python's, or
        with `ahead` a guess. None if there is none."""
        stream, ordinal = same_as
        place = (*address[:2], f"{self.stream}{stream}", ordinal)
        entry = self.asked.get(place)
        if entry is None and ahead and (there := self.guesses.get(place)):
            guess = there[0]
            return Prompt(before, (), guess.result, guess.after.handle, ()) if repeatable(ask) and guess.answers(before, ask) else None
        if entry is None or not repeatable(ask) or entry.ask != ask or not equal(entry, before):
            return None
        return Prompt(before, (), entry.result, entry.after, ())

    def made(self, before: Prompt, ask: Gen | Select) -> Prompt | None:
        """Return the prompt with the answer to an equal request of Python's, whatever its address, at temperature 0."""
        there = [*self.asked.values()] if repeatable(ask) else []
        return next((self.after(asked) for asked in there if asked.ask == ask and equal(asked, before)), None)

    def _take(self, address: Address, before: Prompt, ask: Gen | Select) -> Guess | None:
        there = list(self.guesses.get(address, ()))
        found = next((g for g in there if g.answers(before, ask)), None)
        for guess in [g for g in there if g is not found and (g.in_arm or not repeatable(ask))]:
            self._drop(guess)
            if guess.in_arm:
                self._wrong(guess.ask.loc)
        if found is None and repeatable(ask):  # an address may have moved after an unpredicted retry: the content counts
            found = next(self._equal(before, ask), None)
        if found is not None and found.result.error is not None:  # a guess that failed is no answer
            self._drop(found)
            found = None
        if found is None:
            for site in {guess.ask.loc for guess in there if not guess.in_arm}:
                self._wrong(site)
            return None
        found.used = True
        self._remove(found)
        if (needed := getattr(found.after.handle, "needed", None)) is not None:
            needed()
        self.used += 1
        if (watching := observer()) is not None:
            watching.settle(found.result, used=True)
        self.profile.right(found.ask.loc)
        self._useless[found.ask.loc] = False
        return found

    # -- requests made ahead

    def guess(self, address: Address, before: Prompt, ask: Gen | Select, run: Run, *, certain: bool, in_arm: bool = False) -> Prompt | None:
        """Make a request ahead; return the prompt with the pending answer, or None if that is not allowed or was refused.

        An earlier guess at the address is kept if it is equal, and dropped if not.
        """
        with self._lock:
            if self.closed or not (certain or self.policy is AheadPolicy.LIKELY):
                return None
            for found in list(self.guesses.get(address, ())):
                if found.answers(before, ask):
                    found.reached = self.evaluations
                    return found.after
                if found.reached != self.evaluations:  # else another arm of an undecided branch makes it there
                    self._drop(found)
            annotation = self.plan.at(address, ask, run)
            if annotation.same_as is not None and (merged := self._merged(annotation.same_as, address, before, ask, ahead=True)) is not None:
                return merged
            found = next(self._equal(before, ask, self.evaluations), None) if repeatable(ask) else None
            if found is not None:  # an earlier evaluation has reached it at another address
                self._remove(found)
                found.address, found.reached = address, self.evaluations
                self.guesses.setdefault(address, []).append(found)
                return found.after
            if self.made_ahead - self.used - self.wasted >= MAX_OPEN or ask.loc in self.profile.off or not self._affordable(before, ask):
                return None
            try:
                with held_warnings() as held:
                    after = self.plan.submit(annotation, before, ask, run, ahead=True)
            except LmcError as error:  # raised where Python makes the request, if it does
                if logs("ahead"):
                    log("ahead", f"refused at {address}: {error}")
                return None
            guess = Guess(address, before, ask, after, self.evaluations, held, in_arm)
            self.guesses.setdefault(address, []).append(guess)
            self._by_size.setdefault(_size(before), []).append(guess)
            self.made_ahead += 1
        guess.result.on_done(lambda _: self.wake())
        return after

    def reaches(self, address: Address, result: Result) -> bool:
        """Return whether the present evaluation reaches this request at an address: Python's, or one made ahead, which is kept."""
        if (asked := self.asked.get(address)) is not None:
            return asked.result is result
        found = next((guess for guess in self.guesses.get(address, ()) if guess.result is result), None)
        if found is not None:
            found.reached = self.evaluations
        return found is not None

    def prefill(self, prompt: Prompt, run: Run) -> None:
        """Prefill the beginning of a prompt whose continuation depends on an answer or a tool. It only uses backend time that would be idle."""
        if not run.backend.capabilities.local or hasattr(prompt.handle, "begin") or not _worth(prompt.tail):
            return
        with self._lock:
            key = content(prompt)
            if self.closed or key in self._prefilled or len(self._prefilled) >= MAX_OPEN:
                return
            try:
                self._prefilled[key] = prompt.prefill(run.backend, (run.hints() or Hints())._replace(low_priority=True, adapter=run.defaults.adapter))
            except LmcError as error:  # raised where Python makes the request, if it does
                log("ahead", f"not prefilled: {error}")
                return
            self.prefilled += 1

    def _needed_no_more(self, before: Prompt) -> None:
        """Release the prefills that a prompt of Python's has used."""
        place, parts = content(before)
        for key in [key for key in self._prefilled if key[0] == place and without(parts, key[1]) is not None]:
            del self._prefilled[key]

    def pure_calls(self) -> CallsAhead | None:
        """Return the calls of pure functions that the run knows; None where nothing is made ahead."""
        return None if self.closed or self.policy is AheadPolicy.OFF else self.calls

    def listen(self, result: Result, tools: Mapping[str, HostFunction]) -> None:
        """Call those tools that are declared pure as soon as a growing answer contains their arguments."""
        if self.closed or self.policy is AheadPolicy.OFF or result.done:
            return

        def begin(name: str, arguments: Mapping[str, Any]) -> None:
            if (fn := tools.get(name)) is not None and not self.closed:
                self.calls.begin(fn, (), arguments)

        result.on_call(begin)

    def _equal(self, before: Prompt, ask: Gen | Select, evaluation: int = -1) -> Iterator[Guess]:
        """Yield the open guesses that equal a request, whatever their address, but for those that `evaluation` has reached."""
        return (g for g in self._by_size.get(_size(before), ()) if g.reached != evaluation and not g.used and not g.dropped and g.answers(before, ask))

    def _affordable(self, before: Prompt, ask: Gen | Select) -> bool:
        """Return whether the budget allows it, even if all guesses so far were wasted."""
        limits = self.run.limits
        if limits is None:
            return True
        bound = limits.allows_ahead(ask, before, self._bound, self.made_ahead - self.used)
        if bound is None:
            return False
        self._bound += bound
        return True

    def _drop(self, guess: Guess) -> None:
        """Drop a guess that is wrong or no longer reachable: cancel it, and count it as wasted in full."""
        self._remove(guess)
        guess.dropped = True
        self._useless.setdefault(guess.ask.loc, True)
        if (watching := observer()) is not None:
            watching.settle(guess.result, used=False)
        spent = guess.result.usage
        tokens = 0 if spent is None else spent.prompt_tokens + spent.completion_tokens
        self.wasted += 1
        self.wasted_tokens += tokens
        self.records.append(Record(guess.address, guess.ask, guess.result, "wasted"))
        if not guess.result.done and guess.after.handle is not None:
            guess.after.handle.cancel()

    def _wrong(self, site: Loc | None) -> None:
        self.profile.wrong(site)
        self._useless[site] = False

    def _open(self) -> list[Guess]:
        return [guess for there in self.guesses.values() for guess in there]

    def _remove(self, guess: Guess) -> None:
        there = self.guesses[guess.address]
        there.remove(guess)
        if not there:
            del self.guesses[guess.address]

    def known(self, address: Any) -> bool:
        """Return whether the answer at an address has arrived, or the result of a call made ahead."""
        entry = self.asked.get(address)
        if entry is not None:
            return entry.result.done
        there = self.guesses.get(address)  # all of several arms: each would be evaluated again endlessly until its own arrived
        return all(g.result.done for g in there) if there else self._calls is not None and self._calls.done(address)

    # -- waiting: the one place where a run waits for answers

    def wait(self, results: Sequence[Result]) -> None:
        """Wait until all of them have arrived; meanwhile make requests ahead."""
        awaited = [result for result in results if not result.done]
        if not awaited:
            return
        began, profile = perf_counter(), self.profile
        ready = not self._is_off() and profile.is_patient and (self._fresh or self.guesses or self._calls or self.worth())
        lines = self._lines(awaited[0]) if ready else ()
        if lines and not profile.worth(lines):
            lines = ()
        if not lines and (self.prepare is None or not profile.affords(FIRST_PLAN)):
            for result in awaited:
                result.wait()
        else:
            event = Signal()
            for result in awaited:
                result.on_done(lambda _: event.set())
            self._waiting.add(event)
            try:
                self._wait(awaited, event, lines, began)
            finally:
                self._waiting.discard(event)
        profile.has_waited(began, perf_counter())

    def _lines(self, awaited: Result) -> tuple[Hashable, ...]:
        """Return by what to learn whether evaluations are of use: the line that waits, and with it the stream of the awaited request."""
        if (line := reading_line()) is None:
            return ()
        line += (self.policy is AheadPolicy.LIKELY,)  # without a certain next request, likely ones may follow
        return line, (*line, awaited.asked and awaited.asked[1])

    def _is_off(self) -> bool:
        return self.source is None or self.closed or self.policy is AheadPolicy.OFF

    def _wait(self, awaited: list[Result], event: Signal, lines: Sequence[Hashable], began: float) -> None:
        """Wait for answers; evaluate once that has lasted long enough and no other program could run, and whenever more is known."""
        profile, patience = self.profile, self.profile.patience
        left: float | None = patience
        begins = bool(profile.in_vain(lines))  # to evaluate, whatever others find at its line meanwhile

        def there() -> bool:
            while awaited and awaited[-1].done:
                awaited.pop()
            return not awaited

        while not there():
            spare = not event.wait(left)  # no other program is left that could run
            event.clear()
            if left is None:
                began = perf_counter()  # what else arrives now is evaluated with it
            left = began + patience - perf_counter()
            if left > 0:
                continue
            left = None
            while (worth := bool(lines) and self.worth() and (begins or not profile.in_vain(lines))) and (spare or idle()) and not there():
                self.evaluate(there, event, lines)
                spare, begins = False, True
            if worth:
                left = 0.0  # another program goes first
            elif self.prepare is not None and profile.affords(FIRST_PLAN) and (spare or idle()) and not there():
                prepare, self.prepare = self.prepare, None
                prepare()

    def worth(self) -> bool:
        """Return whether an evaluation would know more than the previous one."""
        if self._evaluating or self._is_off():
            return False
        return self._paused or self._fresh or any(all(map(self.known, needed)) for needed in self._blocked)

    def evaluate(self, there: Callable[[], bool], event: Signal, lines: Sequence[Hashable]) -> None:
        """Evaluate the next steps once, until the awaited answers are `there`; cancel guesses that it no longer reaches."""
        others = 0.0  # seconds that other programs took on this thread meanwhile

        def stops() -> bool:
            nonlocal others
            if not there() and not idle():
                began = thread_time()
                self._lock.release()  # threads of this program may run, too
                try:
                    event.wait(0.0)
                finally:
                    self._lock.acquire()
                event.clear()
                others += thread_time() - began
            return self.closed or there()

        with self._lock:
            if self.source is None or self._evaluating:  # closed, or begun by another thread meanwhile
                return
            if self._fresh or not self._paused:
                self.evaluations += 1
                self.missed.clear()
            self._evaluating = True
            self._fresh, before, began = False, self._begun(), thread_time()
            try:
                found = self.source.evaluate(self, self.run, stops)
                self._paused, self._blocked = found is None, found or ()
            except Exception as fault:  # a bug in the evaluator, not in the program: the run continues without it
                if interrupts(fault):
                    raise
                self._paused, self._blocked, self.policy = False, (), AheadPolicy.OFF
                self.profile.fault(fault)
            finally:
                self.profile.evaluated(lines, thread_time() - began - others, self._begun() - before, self.once)
                self.once, self._evaluating = 0.0, False
            if not self._paused:
                self._prompts.clear()  # the next evaluation makes its own
                for guess in [g for g in self._open() if g.reached != self.evaluations and not g.result.done]:
                    self._drop(guess)
        self.wake()  # other threads of this program, which may know more

    def wake(self) -> None:
        """Wake the waiting thread where an evaluation would know more: a request or call made ahead is done. From any thread."""
        if self.worth():  # which one that runs looks at when it ends
            for event in tuple(self._waiting):
                event.set()

    def close(self) -> None:
        """Close when the function has returned: nothing more is made ahead, and unused guesses are cancelled."""
        with self._lock:
            if self.closed:
                return
            self.closed, self.ended = True, perf_counter()
            if self._keeps:
                for guess in self._open():
                    self._drop(guess)
                if self._useless and sys.exception() is None:  # which alone may keep Python from making certain requests
                    for site in [site for site, useless in self._useless.items() if useless]:
                        self.profile.wrong(site)
                for held in (self._by_size, self._prefilled, self.asked, self._all, self._ends, self._prompts):
                    held.clear()
            if self.source is not None:
                self.source.close()
                self.source = None
            self.plan.close()
            if self._calls is not None:
                self._calls.close()
        self.profile.ended(self)


def content(prompt: Prompt | Asked) -> tuple[int, tuple[Any, ...]]:
    """Return the content that equal prompts share: the handle of everything before the last answer, and the literal text since.

    The handle represents the part verified before. The text is the same however it was cut into appends.
    """
    return id(prompt.handle), flat([tuple(map(_compared, prompt.tail))])


def equal(a: Prompt | Asked, b: Prompt) -> bool:
    """Return whether two prompts have the same content; most that do were cut into the same appends."""
    return a.handle is b.handle and (a.tail == b.tail or content(a) == content(b))


def _size(prompt: Prompt) -> tuple[int, int]:
    """Return what equal prompts share and most others differ in: the handle, and the length of the literal text since."""
    tail: Any = prompt.tail
    return id(prompt.handle), sum([len(x) if x.__class__ is str else len(x.text()) if x.__class__ is Excerpt and _is_there(x) else 0 for x in tail])


def _is_there(part: Any) -> bool:
    return isinstance(part, Excerpt) and part.result.done and part.result.error is None


def _compared(part: Any) -> Any:
    if _is_there(part):
        return part.text()
    return ("image", part.source, part.frames, part.detail) if isinstance(part, Image) else part


_LEAST = 64
"""Characters after the last answer that are worth a prefill of their own: fewer are computed as fast with their continuation."""


def _worth(tail: Sequence[object]) -> bool:
    """Return whether the text after an answer is worth a prefill, and literal."""
    return sum(len(part) for part in tail if isinstance(part, str)) >= _LEAST and not any(isinstance(part, Excerpt | Image) for part in tail)


def repeatable(ask: Gen | Select) -> bool:
    """Return whether equal requests have equal answers wherever they are made: at temperature 0."""
    return (ask.params.temperature if isinstance(ask, Gen) else ask.temperature) == 0
