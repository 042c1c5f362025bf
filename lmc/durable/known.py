"""The effects that one run of a journal has made, and which of them a call is that the program reaches."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lmc.durable.deferred import MadeAwaitable, drop
from lmc.durable.groups import Ask
from lmc.durable.own_waits import TURNS, OwnWaits
from lmc.durable.reaches import attribute
from lmc.durable.records import Effect, Expiry, Kind, Known, Read, RecordedCall
from lmc.durable.snapshots import MOST_SHARED
from lmc.durable.tasks import Callbacks, Coming, Tasks
from lmc.durable.timeouts import RecordedTimeout, RecordedTimer, Timeouts, step
from lmc.durable.turns import FEW_TURNS, ThreadTurns, TurnCounter
from lmc.durable.under_way import CallsUnderWay
from lmc.waiting import in_event_loop

_UNREFERABLE = 64
"""Instances without weak references that are kept before the first look for some that the program has dropped."""


class _Held:
    """Stands for a weak reference to an instance of a class that allows none."""

    __slots__ = ("instance",)

    def __init__(self, instance: Any) -> None:
        self.instance = instance

    def __call__(self) -> Any:
        return self.instance


MANY_TASKS = -1
_TAKING = frozenset(fn.__code__ for fn in (asyncio.Queue.get, asyncio.Queue.put, asyncio.Lock.acquire, asyncio.Semaphore.acquire))
"""Code of coroutines that change what they wait for, unless they are cancelled."""


def _number(effects: Sequence[Effect]) -> int:
    return effects[0].number


class KnownEffects:
    """The known effects of one run.

    known       effects that the program has not reached, by kind, then by contents and task;  ordered: such of them, by number
    unmade      numbers of calls that were not made after all, likewise
    next        the number of the next new one;  recalled: how many known ones the program has reached
    given       objects that can change and were given to calls since the program has passed functions to libraries, or begun tasks, by id, with
                the task of the last one
    under_way   calls that are being made
    reordered   whether a task was seen to make a call that another one made in an earlier execution
    idempotent  coroutines of idempotent functions, by id
    made        awaitables returned by effects, by id, until they are awaited
    timeouts    that the program has entered
    tasks       that the program began;  coming: awaitables of tasks that have not begun
    busy        running calls of host code;  waits: of the program for what it does itself
    instances   of classes whose instances the program makes itself, by id: calls that change one are repeated by its fields
    """

    def __init__(self) -> None:
        self.known: dict[Kind, dict[tuple[tuple[int, ...], int], deque[Effect]]] | None = None
        self.unmade: dict[tuple[Kind, tuple[tuple[int, ...], int]], deque[int]] = {}
        self.ordered: dict[int, Effect] = {}
        self.next = self.recalled = 0
        self._all: Sequence[Iterable[Effect | Read | Expiry]] = ()
        self._expiries: dict[tuple[int, ...], Expiry] = {}
        self._ended: deque[Effect | Read | Expiry] | None = None
        self._taking_turns = deque[Effect | Read | Expiry]()
        self._waits: dict[Effect | Read | Expiry, asyncio.Future[None]] = {}
        self.turns, self.threads = TurnCounter(), ThreadTurns()
        self._answers = Known()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.given: dict[int, tuple[Any, int]] = {}
        self.under_way = CallsUnderWay()
        self.callbacks = Callbacks()
        self.reordered = False
        self.idempotent: dict[int, Any] = {}
        self.made: dict[int, MadeAwaitable] = {}
        self.timeouts = Timeouts()
        self.tasks = Tasks()
        self.coming: list[Coming] = []
        self.busy = 0
        self.waits = OwnWaits(self)
        self.instances: dict[int, Callable[[], Any]] = {}
        self._reads: dict[Ask, deque[Read]] = {}
        self._unreferable, self._most = list[_Held](), _UNREFERABLE
        self.lock = threading.Lock()

    def read(self, known: Known) -> None:
        """Take in the effects of earlier executions, once."""
        if self.known is None:
            effects, unmade, self.known, self._answers = known.effects, known.unmade, {}, known
            self._reads = {place: deque(reads) for place, reads in known.reads.items()}
            for number in sorted(unmade):
                self.unmade.setdefault((unmade[number].kind, unmade[number].of_task), deque()).append(number)
            for number in sorted(effects):
                self.known.setdefault(effects[number].call.kind, {}).setdefault(effects[number].call.of_task, deque()).append(effects[number])
            self.ordered = {number: effect for number, effect in effects.items() if effect.call.ordered and not effect.unexpected}
            self.next, self._all = max((*effects, *unmade), default=-1) + 1, (effects.values(), *known.reads.values(), known.expiries)
            self._expiries = {expiry.key: expiry for expiry in known.expiries}

    def match(self, call: RecordedCall, again: Sequence[bool], *, strict: bool) -> Effect | None:
        """Return the known effect that a call is. None: it was not made.

        It is one of the same kind and contents, rather of the same task. What several tasks change has other contents when a run is resumed and they go
        on in another order: such a call is the same task's next one of its kind, since a task makes its calls in one order; or, once tasks are seen
        to make each other's calls (they take work from a queue), the next one of any. Raises LookupError if the same task has made a call of the
        kind with other contents of what is not known to be shared.

        again  which of what can change was given to a call before
        """
        groups = (self.known or {}).get(call.kind, {})
        found, unmade = groups.get(call.of_task), self.unmade.get((call.kind, call.of_task))
        if unmade and (found is None or unmade[0] < _number(found)):
            return None
        if found is None and (same := [g for (contents, _), g in groups.items() if contents == call.contents]):
            found, self.reordered = min(same, key=_number), True
        if found is None and not strict and groups:
            own = [g for (_, task), g in groups.items() if task == call.task and not g[0].unexpected]
            of_any = [g for g in groups.values() if g[0].outcome is not None] if self.reordered else []
            known = again if own and not self.reordered and not call.ordered else [False] * len(again)
            shared = [g for g in own or of_any if (g[0].changes and not call.ordered) or call.is_like(g[0].call, known)]
            found = min(shared, key=_number, default=None)
            if found is None and own:
                raise LookupError
        return None if found is None else found[0]

    def number(self, call: RecordedCall) -> int:
        """Return the number of a call that is made now: of one that was not made after all, the one that it had."""
        if unmade := self.unmade.get((call.kind, call.of_task)):
            return unmade.popleft()
        self.next += 1
        return self.next - 1

    def take(self, effect: Effect) -> None:
        """Mark an effect as reached."""
        assert self.known is not None
        groups, key = self.known[effect.call.kind], effect.call.of_task
        groups[key].remove(effect)
        effect.passed, self.recalled = not (effect.suspended or effect.cancelled or self.on_threads), self.recalled + 1
        if not groups[key]:
            del groups[key]
        self.ordered.pop(effect.number, None)

    def next_read(self, place: Ask) -> Read | None:
        """Return the next known read of an answer."""
        reads = self._reads.get(place)
        return reads.popleft() if reads else None

    @property
    def on_threads(self) -> bool:
        """Return whether the program runs here on a thread that may be one of several."""
        return not (self.callbacks.none or in_event_loop())

    def take_turn(self, event: Effect | Read | None) -> None:
        """Let this thread go on with what has become known, or what the journal has, in its order."""
        if self.on_threads:
            ended = sys.maxsize if event is None else event.ended
            self.threads.take(lambda: (first := self._next()) is None or first.ended >= ended, lambda: self.recalled)
            if event is not None:
                self.come_past(event)
                with self.lock:  # others look for the first one
                    for earlier in itertools.takewhile(lambda e: e.ended < ended, self._ended or ()):
                        earlier.passed = earlier.passed or not earlier.suspended  # left out

    async def in_turn(self, event: Effect | Read) -> None:
        """Let others go on, as they did while a known effect, or an answer, was awaited: those whose effects ended before it."""
        self._waits[event] = turn = asyncio.get_running_loop().create_future()
        self.give_turns()
        try:
            await turn
        finally:
            del self._waits[event]
            if not event.cancelled:
                self.come_past(event)

    async def behind_known(self) -> None:
        """Wait until the program has come past what ended in earlier executions, before it does what it did not then."""
        if self.last():
            await self.in_turn(Read(ended=sys.maxsize))

    async def cancelled_again(self, effect: Effect | Read) -> None:
        """Wait until the program cancels an effect, or a read, as it did before, and for its turn then. Return if it does not."""
        try:
            await self.in_turn(effect)
            await self.while_recalling(lambda: True)
        except asyncio.CancelledError:
            await self.while_recalling(lambda: self._next() is not effect)
            raise
        finally:
            self.come_past(effect)

    async def while_recalling(self, waits: Callable[[], bool]) -> None:
        """Let others go on as long as `waits` says so, and they reach known effects."""
        recalled, turns = self.recalled, 0
        while turns < TURNS and waits():
            await asyncio.sleep(0)
            recalled, turns = self.recalled, turns + 1 if self.recalled == recalled else 0

    def _next(self) -> Effect | Read | Expiry | None:
        """Return the first of what ended in earlier executions that the program has not come past."""
        with self.lock:
            if self._ended is None:
                ended = [e for e in itertools.chain(*self._all) if not e.passed and not (isinstance(e, Effect) and e.outcome is None)]
                self._ended = deque(sorted(ended, key=lambda e: e.ended))
                self._taking_turns.extend(e for e in self._ended if e.suspended)
            while self._ended and self._ended[0].passed:
                self._ended.popleft()
            return self._ended[0] if self._ended else None

    def come_past(self, event: Effect | Read | Expiry) -> None:
        """Note that the program has come past what ended in an earlier execution."""
        event.passed, self.recalled = True, self.recalled + 1
        if not self.callbacks.none:
            self.threads.look()
        if in_event_loop():
            self.give_turns()

    def last(self) -> bool:
        """Return whether the program has not come past all that ended in earlier executions, or to all answers."""
        return self._next() is not None or len(self._answers.asked) < len(self._answers.answers)

    def holds_time(self) -> bool:
        """Return whether the journal decides which time-outs expire; if so, find out when that ends."""
        if self.last():
            self.give_turns()
            return True
        return False

    async def within(self, timeouts: Sequence[RecordedTimeout], awaitable: Any, of: Any = None) -> Any:
        """Await what the program awaits within time-outs of its task, which expire again before the same one of its awaits begins or ends.

        of  what it awaits, in another one of lmc's
        """
        try:
            await self.expired_again(timeouts)
        except BaseException:
            drop(awaitable)
            drop(of)
            raise
        step(timeouts)
        try:
            if attribute(of, "cr_code") in _TAKING and self._expiring(timeouts):
                drop(awaitable)
                drop(of)  # or it would take an item that it did not take
                return await self.expired_again(timeouts)
            try:
                return await awaitable
            finally:
                if not isinstance(sys.exception(), GeneratorExit | asyncio.CancelledError):
                    await self.expired_again(timeouts)
        finally:
            step(timeouts)

    async def expired_again(self, timeouts: Sequence[RecordedTimeout]) -> None:
        """Wait while one that the program has come as far in as when it expired has not expired again."""
        for expiry in self._expiring(timeouts):
            await self.while_recalling(lambda expiry=expiry: not expiry.passed)
            self._expire(expiry)
            await asyncio.sleep(0)

    def _expiring(self, timeouts: Sequence[RecordedTimeout]) -> Sequence[Expiry]:
        expiries = [(timeout.step, self._expiries.get(timeout.key)) for timeout in timeouts]
        return [expiry for step, expiry in expiries if expiry is not None and not expiry.passed and expiry.step == step]

    def _expire(self, expiry: Expiry) -> None:
        if expiry.key in self.timeouts.open:
            self.timeouts.open[expiry.key].expire()
            self.come_past(expiry)

    def leave(self, timeout: RecordedTimeout | RecordedTimer) -> None:
        """Note that the program has left a time-out, which no longer expires."""
        del self.timeouts.open[timeout.key]
        if (expiry := self._expiries.get(timeout.key)) is not None and not expiry.passed:
            self.come_past(expiry)

    def give_turns(self) -> None:
        """Let those that wait for their turn go on in order, on the running loop, and time-outs expire."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop and (self._waits or self.timeouts.open):
            self._loop = loop
            loop.call_later(0, self._give_turn, loop, 0, self.recalled, 0)

    def _give_turn(self, loop: asyncio.AbstractEventLoop, still: int, recalled: int, since: int) -> None:
        """Give the next turn as many turns of the loop after the last one as in the earlier execution, or, where those were many, once the program has reached
        nothing known for some of them: what came before it has had its effect.

        If what comes next is not reached, it is left out after some more of them.
        """
        still, since = still + 1 if self.recalled == recalled else 0, since + 1
        while (event := self._coming(still, since)) is not None and self._go_on(event):
            self._taking_turns.popleft()
            still = since = 0
        next_ = self._next()
        if still >= FEW_TURNS:
            waits = min((event for event, turn in self._waits.items() if not turn.done()), key=lambda event: event.ended, default=None)
            if waits is not None and (still >= TURNS or next_ is None or waits.ended < next_.ended):
                self._go_on(waits)
            elif waits is None and (still >= TURNS or not self.last()):
                self.timeouts.begin()
                self._loop = None
                return
        loop.call_later(0, self._give_turn, loop, still, self.recalled, since)  # behind all that is to run in the turn, as the clock's

    def _coming(self, still: int, since: int) -> Effect | Read | Expiry | None:
        """Return what goes on now, of what took a turn."""
        queue, ended = self._taking_turns, self._ended or ()
        while queue and queue[0].passed:
            queue.popleft()
        if not queue or FEW_TURNS > queue[0].turns <= since:
            return queue[0] if queue else None
        before = itertools.takewhile(lambda event: event is not queue[0], ended)
        return queue[0] if still >= FEW_TURNS and all(event.passed or event.cancelled for event in before) else None

    def _go_on(self, event: Effect | Read | Expiry) -> bool:
        """Let what ended in an earlier execution end in the next turn of the loop, if the program has come to it."""
        if event in self._waits and not self._waits[event].done():
            self._waits[event].set_result(None)
        elif isinstance(event, Expiry) and event.key in self.timeouts.open:
            self._expire(event)
        else:
            return False
        return True

    def give_back(self, effect: Effect) -> None:
        """Mark an effect as not reached after all."""
        assert self.known is not None
        effect.passed = False
        self.known[effect.call.kind].setdefault(effect.call.of_task, deque()).appendleft(effect)

    def is_shared(self, x: Any, task: int) -> bool:
        """Return whether what is given to a call was given to one of another task or thread, or is given to a task of host code."""
        return task == MANY_TASKS or (id(x) in self.given and self.given[id(x)][1] != task)

    def note_given(self, changeable: Sequence[Any], task: int) -> list[Any]:
        """Record what a task or thread gives to a call; `MANY_TASKS` for several of them. Return what is not remembered any more, to be dropped without
        the lock."""
        for x in changeable:
            _, before = self.given.pop(id(x), (x, task))
            self.given[id(x)] = x, task if before == task else MANY_TASKS
        return [self.given.pop(key) for key in [*self.given][:-MOST_SHARED]] if len(self.given) > MOST_SHARED else []

    def keep(self, instance: Any) -> None:
        """Record that the program has made an instance."""
        key = id(instance)
        try:
            self.instances[key] = weakref.ref(instance, lambda _: self.instances.pop(key, None))
        except TypeError:  # of a class with `__slots__` and no `__weakref__` among them
            if self.has_made(instance):
                return
            with self.lock:
                self.instances[key] = held = _Held(instance)
                self._unreferable.append(held)
                gone = self._dropped() if len(self._unreferable) > self._most else []
            del gone  # finalizers of the program's, which may make calls, run without the lock

    def _dropped(self) -> list[_Held]:
        """Take out the instances without weak references that only this object holds: at most as many stay as the program has, or in cycles."""
        kept, gone = list[_Held](), list[_Held]()
        for held in self._unreferable:
            (gone if sys.getrefcount(held.instance) <= 2 else kept).append(held)  # the field, and the argument
        for held in gone:
            del self.instances[id(held.instance)]
        self._unreferable, self._most = kept, max(2 * len(kept), _UNREFERABLE)
        return gone

    def has_made(self, x: Any) -> bool:
        """Return whether the program has made an object."""
        known = self.instances.get(id(x))
        return known is not None and known() is x
