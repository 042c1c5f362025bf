"""Effects of a journaled run: each call's intent is on the disk before the call is made; its outcome is known when the run is resumed."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lmc import codec
from lmc.durable import mutations
from lmc.durable.answers import Answers
from lmc.durable.call_records import arguments_digest, contents_digest, name_of, shown_call
from lmc.durable.deferred import DeferredAwaitable, DeferredMethod, MadeBy, inner_of, made_by
from lmc.durable.effects import is_idempotent
from lmc.durable.groups import Ask, Record
from lmc.durable.journal import JournalFile
from lmc.durable.records import Call, Effect, Kind
from lmc.durable.snapshots import MOST_SHARED, CallSnapshot, RedoneChanges
from lmc.durable.tasks import Callbacks, Coming, Tasks, here
from lmc.errors import InDoubtEffect, Interrupted, JournalError, JournalWarning, Loc, message_of
from lmc.frontend.active import numbering
from lmc.frontend.attempts import NOTED, answer_of
from lmc.frontend.host import RECORDING, HostFunction
from lmc.frontend.state import State
from lmc.prompt import Prompt
from lmc.segments import Gen, Select
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


class KnownEffects:
    """The known effects of one run.

    known       effects that the program has not reached, by kind, then by contents and task;  ordered: such of them, by number
    next        the number of the next one
    given       objects that can change and were given to calls of tasks and threads, by id, with the task of the last one
    under_way   what was given to calls that are being made;  redone: changes by known ones
    reordered   whether a task was seen to make a call that another one made in an earlier execution
    idempotent  coroutines of idempotent functions, by id;  made: coroutines returned by effects, by id
    tasks       that the program began;  coming: awaitables of tasks that have not begun
    busy        running calls of host code
    instances   of classes whose instances the program makes itself, by id: calls that change one are repeated by its fields
    """

    def __init__(self) -> None:
        self.known: dict[Kind, dict[tuple[tuple[int, ...], int], deque[Effect]]] | None = None
        self.ordered: dict[int, Effect] = {}
        self.next = 0
        self.given: dict[int, tuple[Any, int]] = {}
        self.under_way: list[CallSnapshot] = []
        self.redone: dict[int, RedoneChanges] = {}
        self.callbacks = Callbacks()
        self.reordered = False
        self.idempotent: dict[int, Any] = {}
        self.made: dict[int, tuple[Any, MadeBy]] = {}
        self.tasks = Tasks()
        self.coming: list[Coming] = []
        self.busy = 0
        self.instances: dict[int, Callable[[], Any]] = {}
        self._unreferable, self._most = list[_Held](), _UNREFERABLE
        self.lock = threading.Lock()

    def read(self, effects: Mapping[int, Effect]) -> None:
        """Take in the effects of earlier executions, once."""
        if self.known is None:
            self.known = {}
            for effect in effects.values():
                self.known.setdefault(effect.call.kind, {}).setdefault((effect.call.contents, effect.call.task), deque()).append(effect)
            self.ordered = {number: effect for number, effect in effects.items() if effect.call.ordered}
            self.next = max(effects, default=-1) + 1

    def match(self, call: Call, again: Sequence[bool], *, strict: bool) -> Effect | None:
        """Return the known effect that a call is. None: it was not made.

        It is one of the same kind and contents, rather of the same task. What several tasks change has other contents when a run is resumed and they go
        on in another order: such a call is the same task's next one of its kind, since a task makes its calls in one order; or, once tasks are seen
        to make each other's calls (they take work from a queue), the next one of any. Raises LookupError if the same task has made a call of the
        kind with other contents of what is not known to be shared.

        again  which of what can change was given to a call before
        """
        groups = (self.known or {}).get(call.kind, {})
        found = groups.get((call.contents, call.task))
        if found is None and (same := [g for (contents, _), g in groups.items() if contents == call.contents]):
            found, self.reordered = min(same, key=_number), True
        if found is None and not strict and groups:
            own = [g for (_, task), g in groups.items() if task == call.task]
            of_any = [g for g in groups.values() if g[0].outcome is not None] if self.reordered else []
            known = again if own and not self.reordered and not call.ordered else [False] * len(again)
            shared = [g for g in own or of_any if (g[0].changes and not call.ordered) or call.is_like(g[0].call, known)]
            found = min(shared, key=_number, default=None)
            if found is None and own:
                raise LookupError
        return None if found is None else found[0]

    def take(self, effect: Effect) -> None:
        """Mark an effect as reached."""
        assert self.known is not None
        groups, key = self.known[effect.call.kind], (effect.call.contents, effect.call.task)
        groups[key].remove(effect)
        if not groups[key]:
            del groups[key]
        self.ordered.pop(effect.number, None)

    def give_back(self, effect: Effect) -> None:
        """Mark an effect as not reached after all."""
        assert self.known is not None
        self.known[effect.call.kind].setdefault((effect.call.contents, effect.call.task), deque()).appendleft(effect)

    def is_shared(self, x: Any, task: int) -> bool:
        """Return whether what is given to a call was given to one of another task or thread, or is given to a task of host code."""
        return task == _MANY_TASKS or (id(x) in self.given and self.given[id(x)][1] != task)

    def note_given(self, changeable: Sequence[Any], task: int) -> None:
        """Record what a task or thread gives to a call; `_MANY_TASKS` for several of them."""
        for x in changeable:
            _, before = self.given.pop(id(x), (x, task))
            self.given[id(x)] = x, task if before == task else _MANY_TASKS

    @contextmanager
    def making(self, reached: CallSnapshot) -> Generator[None]:
        """In the block a call is made: what others change meanwhile is not its change."""
        with self.lock:
            for other in self.under_way:
                other.overlapped = reached.overlapped = True
            self._settle(reached)
            reached.look()
            self.under_way.append(reached)
        try:
            yield
        finally:
            with self.lock:
                self.under_way.remove(reached)

    def claim(self, reached: CallSnapshot) -> None:
        """Note what a call has changed since it began or went on; others have not."""
        with self.lock:
            self._claim(reached)

    def _claim(self, reached: CallSnapshot) -> None:
        reached.claim()
        for other in self.under_way:
            if other.whole and other is not reached:
                other.look_like(reached)

    def _settle(self, reached: CallSnapshot) -> None:
        """Let calls on threads claim what they have changed so far of what another is given."""
        for other in self.under_way:
            if other.whole and other is not reached and other.shares(reached):
                self._claim(other)

    def redo(self, reached: CallSnapshot, known: Effect, decode: Callable[[Any], Any]) -> None:
        """Make the changes of a known call again."""
        assert known.outcome is not None
        with self.lock:
            self._settle(reached)
            reached.restore(known.outcome[2], decode, None if known.call.ordered else self.redone, known.ended)
            if self.under_way:
                reached.look()
                for other in self.under_way:
                    other.look_like(reached)

    @types.coroutine
    def steps(self, awaitable: Any, reached: CallSnapshot) -> Generator[Any, Any, Any]:
        """Await something, and note what its own steps change: between them the program and others go on."""
        steps, value, error = awaitable.__await__(), None, None
        while True:
            with self.lock:
                self._settle(reached)
                reached.claim(own=False)
            try:
                given = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                self.claim(reached)
            try:
                value, error = (yield given), None
            except BaseException as raised:  # raised in what is awaited
                error = raised

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


class _Noted:
    """The journal's record of the attempts at one effect."""

    def __init__(self, calls: JournaledCalls, number: int, failed: int) -> None:
        self._calls, self._number, self.failed = calls, number, failed

    def attempt_failed(self, error: Exception) -> None:
        self.failed += 1
        self._calls.journal.put(self._calls.item, ["t", self._number, type(error).__name__, message_of(error)])
        self._calls.journal.flush()

    def attempt(self) -> None:
        self._calls.go_on()
        self._calls.journal.put(self._calls.item, ["g", self._number])
        self._calls.sync()


_MANY_TASKS = -1


def _number(effects: Sequence[Effect]) -> int:
    return effects[0].number


_making = threading.Lock()


class JournaledCalls(Answers):
    """Answers and effects of one run.

    thread    that of its program, whose calls come in its order
    diverges  whether it is replayed with other answers than its journal's
    """

    diverges = False

    def __init__(self, journal: JournalFile, item: int) -> None:
        super().__init__(journal, item)
        self.thread = threading.get_ident()
        self._effects: KnownEffects | None = None

    @property
    def effects(self) -> KnownEffects:
        """Return the known effects; created for the first one, since most runs have none."""
        if self._effects is None:
            with _making:
                self._effects = self._effects or KnownEffects()
        return self._effects

    def call(self, stream: str, caller: State | None, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
             make: Callable[[], tuple[bool, Any]], loc: Loc | None) -> tuple[bool, Any]:  # fmt: skip
        """Return the outcome of an effect, (True, result) or (False, exception): the known one, or that of `make`, with
        its intent written first.

        caller  the state of the program that makes the call, which counts the programs that it runs
        """
        with self.journal.held():
            return self._made(stream, caller, fn, args, kwargs, make, loc)

    def _made(self, stream: str, caller: State | None, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
              make: Callable[[], tuple[bool, Any]], loc: Loc | None) -> tuple[bool, Any]:  # fmt: skip
        self.go_on()
        by = None if caller is None else numbering(caller)
        name, reached = name_of(fn), CallSnapshot(fn, args, kwargs, self.effects.instances)
        number, known = self.begin(stream, name, args, kwargs, loc, ordered=self._is_ordered(fn))
        if known is not None:
            if known.outcome is not None and (outcome := self._recalled(known, fn, (*args, *kwargs.values()), reached, make, loc)) is not None:
                if by is not None and len(known.outcome) == 5:
                    by.calls += known.outcome[4]
                return outcome
            if known.doubtful and not is_idempotent(fn) and not self.may_begin_again((*args, *kwargs.values())):
                if not isinstance(fn, HostFunction) or fn.check is None:
                    return False, self.in_doubt(known, loc)
                try:
                    happened = answer_of(fn.asked(args, kwargs), name)
                except Exception as error:
                    return False, self.unchecked(known, error, loc)
                if happened is not None:
                    outcome = True, happened.result
                    self.write_outcome(number, fn, name, args, reached, outcome, loc)
                    return outcome
        self.begins_again(known)
        self.sync()
        before = 0 if by is None else by.calls
        reached.whole = True
        with self.effects.making(reached):
            with self.attempts(fn, number, known), self.working():
                outcome = make()
            if outcome[0] and isinstance(made := inner_of(outcome[1]), types.CoroutineType):
                self.effects.made[id(made)] = made, made_by(name, number)
            self.effects.claim(reached)
            self.write_outcome(number, fn, name, args, reached, outcome, loc, 0 if by is None else by.calls - before)
        return outcome

    def ask(self, before: Prompt, ask: Gen | Select, places: Sequence[Ask], send: Callable[[], Prompt]) -> Prompt:
        if self._effects is not None and RECORDING.get() is None:  # in host code, to which a state was hidden too deeply
            for reached in self._effects.under_way:
                reached.asked = True
        return super().ask(before, ask, places, send)

    def _is_ordered(self, fn: Any) -> bool:
        """Return whether the program makes its calls in one order: not on other threads, and not in tasks."""
        return (not isinstance(fn, HostFunction) or fn.ordered) and threading.get_ident() == self.thread and not in_event_loop()

    def sync(self) -> None:
        """Wait until everything written is on disk; if it cannot be, the run ends, however the program handles that."""
        try:
            self.journal.sync()
        except JournalError as error:
            self.broken = self.broken or error
            raise

    # -- intents

    def begin(
        self, stream: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], loc: Loc | None, *, ordered: bool, of: int | None = None
    ) -> tuple[int, Effect | None]:
        """Return the number of the effect that the program has reached, and its known record; write a new one.

        of  number of the task that makes it; by default of the one that runs here
        """
        call, known = self.come_to(stream, name, args, kwargs, loc, ordered=ordered, of=of)
        return (self.intend(call, args, kwargs, loc), None) if known is None else (known.number, known)

    def come_to(
        self,
        stream: str,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loc: Loc | None,
        *,
        ordered: bool,
        of: int | None = None,
        peek: bool = False,
    ) -> tuple[Call, Effect | None]:
        """Return the call that the program has reached, or with `peek` is about to, and its known record."""
        changeable: list[Any] = []
        digest, task = arguments_digest(args, kwargs, changeable), here() if of is None else of
        by = task if of is None else _MANY_TASKS  # of host code, whose tasks have one number
        with self.effects.lock:
            self.effects.read(self.known.effects)
            shared = tuple(self.effects.is_shared(x, by) for x in changeable)
            call = Call(stream, name, digest, tuple(map(contents_digest, changeable)), shared, task, ordered)
            try:
                known = self.effects.match(call, [id(x) in self.effects.given for x in changeable], strict=self.diverges)
            except LookupError:
                instead = next(iter(self.effects.known[call.kind].values()))[0]  # pyright: ignore[reportOptionalSubscript]
                raise self._differs(call, args, kwargs, instead, loc) from None
            if known is not None and not peek:
                self.effects.take(known)
            if not ordered and not peek:
                self.effects.note_given(changeable, by)
        for key in [*self.effects.given][:-MOST_SHARED] if len(self.effects.given) > MOST_SHARED else ():
            self.effects.given.pop(key, None)
        return call, known

    def intend(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], loc: Loc | None) -> int:
        """Write the intent of a new effect; return its number."""
        with self.effects.lock:
            instead = next((e for e in self.effects.ordered.values() if e.call.stream == call.stream), None) if call.ordered and not self.diverges else None
            if instead is not None:
                raise self._differs(call, args, kwargs, instead, loc)
            number, self.effects.next = self.effects.next, self.effects.next + 1
        self.journal.put(
            self.item,
            ["i", number, *call[:4], [*map(int, call.shared)], call.task, int(call.ordered), shown_call(args, kwargs), "" if loc is None else str(loc)],
        )
        return number

    def _differs(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], instead: Effect, loc: Loc | None) -> JournalError:
        return self.differs(f"calls {call.name}({shown_call(args, kwargs)}) where the run of its journal called {instead.name}({instead.shown})", loc)

    # -- attempts

    def begins_again(self, known: Effect | None) -> bool:
        """Return whether an effect is retried whose last attempt is known to have failed; then it is in doubt from now
        on, which must be on disk first."""
        if known is None or known.begun:
            return False
        self.journal.put(self.item, ["g", known.number])
        return True

    @contextmanager
    def attempts(self, fn: Any, number: int, known: Effect | None) -> Generator[None]:
        """Track an effect's attempts while it is made: how many have failed, and further ones."""
        noted = _Noted(self, number, 0 if known is None else known.failed)
        token = NOTED.set(noted if isinstance(fn, HostFunction) and fn.retry is not None else None)
        try:
            yield
        finally:
            NOTED.reset(token)

    def unchecked(self, known: Effect, error: Exception, loc: Loc | None) -> InDoubtEffect:
        """Return the error for the program if a check gave no answer."""
        doubt = InDoubtEffect(f"{known.name}({known.shown}) was begun before the run was cut off, and its check could not tell whether it was done: "
                              f"{type(error).__name__}: {message_of(error)}", loc=loc)  # fmt: skip
        doubt.__cause__ = error
        return doubt

    def in_doubt(self, known: Effect, loc: Loc | None) -> InDoubtEffect:
        return InDoubtEffect(
            f"{known.name}({known.shown}) was begun before the run was cut off, and it is not known whether it was done. "
            f"Resolve it with lmc journal resolve or retry {self.journal.path}, give it a check (@lmc.host(check=…)), "
            "mark it @lmc.host(idempotent=True) if it may be called again, or handle lmc.InDoubtEffect where it is called",
            loc=loc,
        )

    def may_begin_again(self, given: Iterable[Any]) -> bool:
        """Return whether awaiting these runs only idempotent functions."""
        awaited = [inner_of(x) for x in given if inspect.isawaitable(x) and x not in self.effects.tasks]
        return bool(awaited) and all(x.idempotent if isinstance(x, DeferredAwaitable) else id(x) in self.effects.idempotent for x in awaited)

    def note_coroutine(self, made: Any) -> None:
        """Record that an idempotent function returned this awaitable."""
        if isinstance(made := inner_of(made), types.CoroutineType):
            self.effects.idempotent[id(made)] = made

    @contextmanager
    def working(self) -> Generator[None]:
        """Mark running host code: everything it starts is part of its result."""
        with self.effects.lock:
            self.effects.busy += 1
        try:
            yield
        finally:
            with self.effects.lock:
                self.effects.busy -= 1

    # -- outcomes

    def _recalled(
        self, known: Effect, fn: Any, args: Sequence[Any], reached: CallSnapshot, make: Callable[[], Any], loc: Loc | None
    ) -> tuple[bool, Any] | None:
        """Return the recorded result of a call with these arguments; None if it must be made again."""
        assert known.outcome is not None
        if isinstance(fn, DeferredMethod):
            fn.of.called.add(fn.name)
        if known.outcome[0] == "opaque":
            if is_idempotent(fn):
                return None
            return False, self.lost(
                f"{known.name}() gave a {known.outcome[1]}, and a journal cannot hold that or what the call changed, so the run cannot be resumed behind it. "
                "Let it give data, or mark it @lmc.host(idempotent=True) if it may be called again"
            )
        if known.outcome[0] == "awaitable":
            kind = known.outcome[1]
            idempotent = is_idempotent(fn) or self.may_begin_again(args)
            if kind == "coroutine":  # which has not begun if nothing awaited it
                return True, DeferredAwaitable(make, args, kind, made_by(known.name, known.number), None, idempotent=idempotent)
            return True, DeferredAwaitable(make, args, kind, (kind, (), {}), None if idempotent else lambda: self.in_doubt(known, loc), idempotent=idempotent)
        return self.known_result(known, args, reached)

    def known_result(self, known: Effect, args: Sequence[Any], reached: CallSnapshot | None) -> tuple[bool, Any]:
        """Return the recorded result of a call, as from `call`; redo its changes to arguments."""
        assert known.outcome is not None
        name, (kind, data, *rest) = known.name, known.outcome
        if rest and reached is not None:
            taken = rest[1]
            with self._reading(name):
                self.effects.redo(reached, known, lambda x: self.decoded(x, reached.at))
                if taken and list(map(type, taken)) != [int] * len(reached.iterators):
                    raise ValueError(f"items taken of iterators: {taken}")
            reached.take(taken or [0] * len(reached.iterators))
        if kind == "opaque":  # of an awaitable
            return False, self.lost(f"{name} gave a {data}, which a journal cannot hold, so the run cannot be resumed behind it")
        with self._reading(name):
            if kind == "argument":
                return True, args[data]
            if kind == "part" and reached is not None:
                return True, reached.at(data)
            value = self.decoded(data, None if reached is None else reached.at)
            if kind != "value" and not isinstance(value, BaseException):
                raise TypeError(f"it raised a {type(value).__name__}")
        return kind == "value", value

    @contextmanager
    def _reading(self, name: str) -> Generator[None]:
        """Guard reading the journal's record of a call."""
        try:
            yield
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise self.lost(f"journal={str(self.journal.path)!r}: a result of {name} that lmc did not write: {error}") from None

    def lost(self, what: str) -> JournalError:
        """Return the error that ends the run, however the program handles it."""
        error = JournalError(what)
        self.broken = self.broken or error
        return error

    def write_outcome(
        self, number: int, fn: Any, name: str, args: Sequence[Any], reached: CallSnapshot | None, outcome: tuple[bool, Any], loc: Loc | None, programs: int = 0,
        *, alone: bool = True,
    ) -> None:  # fmt: skip
        """Write the outcome of a call.

        programs  how many programs, counted by the program's state, ran in it
        alone     whether nothing else has changed what it was given between its steps
        """
        ok, value = outcome
        if not ok and not isinstance(value, Exception | asyncio.CancelledError):
            return  # Ctrl-C and the like: it is not known what was done
        if isinstance(value, JournalError | InDoubtEffect | Interrupted):
            return
        record: Record
        index = next((i for i, a in enumerate(args) if a is value and (mutations.can_change(a) or callable(a) or self.effects.has_made(a))), None)
        try:
            if index is not None:
                record = ["argument", index]
            elif ok and reached is not None and (part := reached.part(value)) is not None:
                record = ["part", part]
            elif ok and inspect.isawaitable(value):
                record = ["awaitable", type(value).__name__]
            else:
                record = ["value" if ok else "raised", codec.encode(value, None if reached is None else reached.places)]
            changed: list[list[Any]] = []
            if reached is not None:
                changed = reached.changed(alone=alone)
            if changed or programs or (reached is not None and reached.iterators):
                record += [changed, [] if reached is None else reached.taken(), *([programs] if programs else [])]
        except codec.NotData as what:
            record = ["opaque", type(value).__name__]
            if not is_idempotent(fn):
                warn(f"{name}() gave a {type(value).__name__}, and a journal cannot hold {what}: a run that is cut off behind it cannot be resumed. Let it "
                      "give data, or mark it @lmc.host(idempotent=True) if it may be called again", loc)  # fmt: skip
        self.journal.put(self.item, ["r", number, *record])
        self.journal.flush()  # an unwritten outcome would be lost


_warned: set[tuple[str, str]] = set()


def warn(message: str, loc: Loc | None) -> None:
    """Warn once of a place behind which a run cannot be resumed as it should."""
    place = loc or Loc("<unknown>", 1)
    if (message, str(place)) not in _warned:
        _warned.add((message, str(place)))
        warnings.warn_explicit(message, JournalWarning, place.file, place.line)
