"""The effects that one run of a journal has made, and which of them a call is that the program reaches."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lmc.durable.deferred import MadeAwaitable
from lmc.durable.own_waits import TURNS, OwnWaits
from lmc.durable.records import Effect, Kind, RecordedCall
from lmc.durable.snapshots import MOST_SHARED
from lmc.durable.tasks import Callbacks, Coming, Tasks
from lmc.durable.timeouts import Timeouts
from lmc.durable.under_way import CallsUnderWay

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
        self._all: Iterable[Effect] = ()
        self._ended: deque[Effect] | None = None
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
        self.waits = OwnWaits()
        self.instances: dict[int, Callable[[], Any]] = {}
        self._unreferable, self._most = list[_Held](), _UNREFERABLE
        self.lock = threading.Lock()

    def read(self, effects: Mapping[int, Effect], unmade: Mapping[int, RecordedCall]) -> None:
        """Take in the effects of earlier executions, once."""
        if self.known is None:
            self.known = {}
            for number in sorted(unmade):
                self.unmade.setdefault((unmade[number].kind, unmade[number].of_task), deque()).append(number)
            for number in sorted(effects):
                self.known.setdefault(effects[number].call.kind, {}).setdefault(effects[number].call.of_task, deque()).append(effects[number])
            self.ordered = {number: effect for number, effect in effects.items() if effect.call.ordered and not effect.unexpected}
            self.next, self._all = max((*effects, *unmade), default=-1) + 1, effects.values()

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
        effect.passed, self.recalled = not effect.suspended, self.recalled + 1
        if not groups[key]:
            del groups[key]
        self.ordered.pop(effect.number, None)

    async def in_turn(self, effect: Effect) -> None:
        """Let others go on, as they did while a known effect was awaited: those whose effects ended before it."""
        try:
            await asyncio.sleep(0)
            await self.while_recalling(lambda: self._is_behind_others(effect))
        finally:
            effect.passed = True

    async def while_recalling(self, waits: Callable[[], bool]) -> None:
        """Let others go on as long as `waits` says so, and they reach known effects."""
        recalled, turns = self.recalled, 0
        while turns < TURNS and waits():
            await asyncio.sleep(0)
            recalled, turns = self.recalled, turns + 1 if self.recalled == recalled else 0

    def _is_behind_others(self, effect: Effect) -> bool:
        """Return whether the program has not yet come past an effect that ended before this one."""
        with self.lock:
            if self._ended is None:
                self._ended = deque(sorted((e for e in self._all if e.outcome is not None and not e.passed), key=lambda e: e.ended))
            while self._ended and self._ended[0].passed:
                self._ended.popleft()
            return bool(self._ended) and self._ended[0].ended < effect.ended

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
