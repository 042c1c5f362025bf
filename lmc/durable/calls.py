"""Effects of a journaled run: each call's intent is on the disk before the call is made; its outcome is known when the run is resumed."""

from __future__ import annotations

import asyncio
import inspect
import shlex
import threading
import types
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from lmc import codec, json_data
from lmc.contexts import having
from lmc.durable import mutations
from lmc.durable.answers import Answers
from lmc.durable.call_records import ReachedCall, a_result, arguments_digest, contents_digest, name_of
from lmc.durable.deferred import DeferredAwaitable, DeferredMethod, MadeAwaitable, inner_of
from lmc.durable.effects import is_idempotent, only_makes_coroutine
from lmc.durable.groups import Ask, Record
from lmc.durable.iterators import ITERATORS, SharedIterator
from lmc.durable.journal import JournalFile
from lmc.durable.known import MANY_TASKS, KnownEffects
from lmc.durable.records import Effect, RecordedCall
from lmc.durable.snapshots import CallSnapshot
from lmc.durable.tasks import here
from lmc.errors import InDoubtEffect, Interrupted, JournalError, JournalWarning, Loc, message_of
from lmc.frontend.active import numbering
from lmc.frontend.attempts import NOTED, Attempts, answer_of
from lmc.frontend.host import RECORDING, HostFunction
from lmc.frontend.state import State
from lmc.prompt import Prompt
from lmc.segments import Gen, Select
from lmc.waiting import in_event_loop


class _Noted(Attempts):
    """The journal's record of the attempts at one effect."""

    def __init__(self, calls: JournaledCalls, number: int, failed: int) -> None:
        super().__init__(failed)
        self._calls, self._number = calls, number

    def attempt_failed(self, error: Exception) -> None:
        super().attempt_failed(error)
        self._calls.journal.put(self._calls.item, ["t", self._number, type(error).__name__, message_of(error)])
        self._calls.journal.flush()

    def attempt(self) -> None:
        self._calls.go_on()
        self._calls.journal.put(self._calls.item, ["g", self._number])
        self._calls.sync()


_REMEDY = "Let it give data, call it in a function marked @lmc.host that does, or mark it @lmc.host(idempotent=True) if it may be called again"
_making = threading.Lock()


class JournaledCalls(Answers):
    """Answers and effects of one run.

    thread    that of its program, whose calls come in its order
    diverges  whether it is replayed with other answers than its journal's
    handles_doubts  whether the program names InDoubtEffect; another one would catch it with all errors, and call the tool again
    """

    diverges = handles_doubts = False

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

    @property
    def is_timed(self) -> bool:
        """Return whether what the program does depends on when answers come: it has begun tasks, or entered a time-out."""
        return self._effects is not None and (self._effects.tasks.began or bool(self._effects.timeouts.entered))

    @property
    def on_threads(self) -> bool:
        """Return whether the program runs here on a thread that may be one of several."""
        return self._effects is not None and self._effects.on_threads

    def known_effects(self) -> KnownEffects:
        """Return the effects, with those of earlier executions."""
        with self.effects.lock:
            self.effects.read(self.known)
        return self.effects

    def go_on(self) -> None:
        try:
            super().go_on()
        except JournalError:
            self.effects.tasks.note_stopped()
            raise

    def call(self, stream: str, caller: State | None, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
             make: Callable[[], tuple[bool, Any]], loc: Loc | None) -> tuple[bool, Any]:  # fmt: skip
        """Return the outcome of an effect, (True, result) or (False, exception): the known one, or that of `make`, with
        its intent written first.

        caller  the state of the program that makes the call, which counts the programs that it runs
        """
        with self.journal.held(), self.working():
            return self._made(stream, caller, fn, args, kwargs, make, loc)

    def _made(self, stream: str, caller: State | None, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
              make: Callable[[], tuple[bool, Any]], loc: Loc | None) -> tuple[bool, Any]:  # fmt: skip
        self.go_on()
        self.effects.threads.leave()
        by = None if caller is None else numbering(caller)
        call, reached = ReachedCall(stream, name_of(fn), args, kwargs, loc, self._is_ordered(fn)), CallSnapshot(fn, args, kwargs, self.effects.instances)
        number, known = self.begin(call)
        if known is not None:
            if known.outcome is not None:
                self.effects.take_turn(known)
                if (outcome := self._recalled(known, fn, (*args, *kwargs.values()), reached, make, loc)) is not None:
                    if by is not None and len(known.outcome) == 5:
                        by.calls += known.outcome[4]
                    return outcome
            if known.doubtful and not is_idempotent(fn) and not self.may_begin_again((*args, *kwargs.values())):
                if not isinstance(fn, HostFunction) or fn.check is None:
                    return False, self.stops_at(self.in_doubt(known, loc))
                try:
                    happened = answer_of(fn.asked(args, kwargs), call.name)
                except Exception as error:
                    return False, self.stops_at(self.unchecked(known, error, loc))
                if happened is not None:
                    outcome = True, happened.result
                    self.write_outcome(number, call, fn, outcome, args, reached)
                    return outcome
        self.begins_again(known)
        self.sync()
        before = 0 if by is None else by.calls
        reached.whole = True
        with self.effects.under_way.making(reached):
            with self.attempts(fn, number, known):
                outcome = make()
            try:
                self.effects.take_turn(None)
            finally:  # an interrupted wait leaves no call in doubt that was made
                self.effects.under_way.claim(reached)
                if outcome[0] and inspect.isawaitable(outcome[1]):
                    made = inner_of(outcome[1])
                    of = (call.name, (number,), {}) if isinstance(made, types.CoroutineType) else None
                    self.effects.made[id(made)] = MadeAwaitable(made, call.name, of, (fn, *args, *kwargs.values()), None if of else reached, loc)
                self.write_outcome(number, call, fn, outcome, args, reached, 0 if by is None else by.calls - before)
        return outcome

    def ask(self, before: Prompt, ask: Gen | Select, places: Sequence[Ask], send: Callable[[], Prompt]) -> Prompt:
        if self._effects is not None and RECORDING.get() is None:  # in host code, to which a state was hidden too deeply
            self._effects.under_way.has_asked()
        return super().ask(before, ask, places, send)

    def _is_ordered(self, fn: Any) -> bool:
        """Return whether the program makes its calls in one order: not on other threads, and not in tasks."""
        return (not isinstance(fn, HostFunction) or fn.ordered) and threading.get_ident() == self.thread and not in_event_loop()

    def sync(self) -> None:
        """Wait until everything written is on disk; if it cannot be, the run ends, however the program handles that."""
        try:
            self.journal.sync()
        except JournalError as error:
            self.breaks(error)
            raise

    # -- intents

    def begin(self, call: ReachedCall) -> tuple[int, Effect | None]:
        """Return the number of the effect that the program has reached, and its known record; write a new one."""
        recorded, known = self.come_to(call)
        return (self.intend(recorded, call), None) if known is None else (known.number, known)

    def come_to(self, call: ReachedCall, *, peek: bool = False) -> tuple[RecordedCall, Effect | None]:
        """Return what the journal knows of the call that the program has reached, or with `peek` is about to, and its known record."""
        changeable: list[Any] = []
        digest, task = arguments_digest(call.args, call.kwargs, changeable), here() if call.task is None else call.task
        by = task if call.task is None else MANY_TASKS  # of host code, whose tasks have one number
        contents, dropped = tuple(map(contents_digest, changeable)), list[Any]()
        with self.effects.lock:
            self.effects.read(self.known)
            shared = tuple(self.effects.is_shared(x, by) for x in changeable)
            recorded = RecordedCall(call.stream, call.name, digest, contents, shared, task, call.ordered)
            try:
                known = self.effects.match(recorded, [id(x) in self.effects.given for x in changeable], strict=self.diverges)
            except LookupError:
                raise self._differs(call, next(iter(self.effects.known[recorded.kind].values()))[0]) from None  # pyright: ignore[reportOptionalSubscript]
            if known is not None and not peek:
                self.effects.take(known)
            if not peek and not (call.ordered and self.effects.callbacks.none):
                dropped = self.effects.note_given(changeable, by)
        del dropped
        return recorded, known

    def intend(self, recorded: RecordedCall, call: ReachedCall) -> int:
        """Write the intent of a new effect; return its number."""
        super().begin_more()
        with self.effects.lock:
            instead = next((e for e in self.effects.ordered.values() if e.call.stream == call.stream), None) if call.ordered and not self.diverges else None
            if instead is not None:
                raise self._differs(call, instead)
            number = self.effects.number(recorded)
        of_call = [*recorded[:4], [*map(int, recorded.shared)], recorded.task, int(recorded.ordered)]
        self.journal.put(self.item, ["i", number, *of_call, call.shown, "" if call.loc is None else str(call.loc)])
        return number

    def _differs(self, call: ReachedCall, instead: Effect) -> JournalError:
        now, then = f"{call.name}({call.shown})", f"{instead.name}({instead.shown})"
        contents = ", with other contents of what it was given" if now == then else ""
        return self.differs(f"calls {now} where the run of its journal called {then}{contents}", call.loc)

    # -- attempts

    def begins_again(self, known: Effect | None) -> bool:
        """Return whether an effect is retried whose last attempt is known to have failed; then it is in doubt from now
        on, which must be on disk first."""
        if known is None:
            return False
        retried, known.begun = not known.begun, False  # it is not in doubt any more: what comes of it is written
        if retried:
            self.journal.put(self.item, ["g", known.number])
        return retried

    def attempts(self, fn: Any, number: int, known: Effect | None) -> AbstractContextManager[Any]:
        """Track an effect's attempts while it is made: how many have failed, and further ones."""
        noted = _Noted(self, number, 0 if known is None else known.failed)
        return having(NOTED, noted if isinstance(fn, HostFunction) and fn.retry is not None else None)

    def unchecked(self, known: Effect, error: Exception, loc: Loc | None) -> InDoubtEffect:
        """Return the error for the program if a check gave no answer."""
        self.effects.tasks.note_stopped()
        doubt = InDoubtEffect(f"{known.name}({known.shown}) was begun before the run was cut off, and its check could not tell whether it was done: "
                              f"{type(error).__name__}: {message_of(error)}", loc=loc)  # fmt: skip
        doubt.__cause__ = error
        return doubt

    def in_doubt(self, known: Effect, loc: Loc | None) -> InDoubtEffect:
        self.effects.tasks.note_stopped()
        return InDoubtEffect(
            f"{known.name}({known.shown}) was begun before the run was cut off, and it is not known whether it was done. "
            f"Resolve it with lmc journal resolve or retry {shlex.quote(str(self.journal.path))}, give it a check (@lmc.host(check=…)), "
            "mark it @lmc.host(idempotent=True) if it may be called again, or handle lmc.InDoubtEffect where it is called",
            loc=loc,
        )

    def stops_at(self, doubt: InDoubtEffect) -> InDoubtEffect:
        """Return the error for a program that comes to a call in doubt, which begins nothing more."""
        if not (self.handles_doubts or self.diverges):
            self.doubt = self.doubt or doubt
            self.effects.waits.end(doubt)
        return doubt

    def breaks(self, error: JournalError | Interrupted) -> None:
        super().breaks(error)
        self.effects.waits.end(error)

    def begin_more(self) -> None:
        if not (in_event_loop() and asyncio.current_task() in self.effects.tasks):  # which is ended by those who wait for the other one
            super().begin_more()

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
        """Mark a call of host code, from before it begins: everything it starts is part of its result."""
        with self.effects.lock:
            self.effects.busy += 1
        try:
            yield
        finally:
            with self.effects.lock:
                self.effects.busy -= 1
            self.effects.waits.look()

    def given_for(self, awaitable: Any) -> Sequence[Any]:
        """Return the function of the effect that has returned an awaitable, and what it was given; nothing for others. Once: it is awaited now."""
        if isinstance(awaitable, DeferredAwaitable):
            return awaitable.given
        if (made := self.effects.made.pop(id(awaitable), None)) is None:
            return ()
        self.note_changes_before(made)
        return made.given

    def note_changes_before(self, made: MadeAwaitable) -> None:
        """Warn if what a call was given has changed since it returned a task, or the like, that goes on by itself."""
        if made.reached is not None and made.reached.has_changed():
            warn(f"{made.name}() gave {a_result(type(made.awaitable).__name__)}, and what it was given has changed before that was awaited: a journal cannot "
                 "tell whose change that is, and a resumed run lacks what it changed. Await it at once, or let it return what it found", made.loc)  # fmt: skip

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
                f"{known.name}() gave {a_result(known.outcome[1])}, and a journal cannot hold that or what the call changed, "
                f"so the run cannot be resumed behind it. {_REMEDY}", loc
            )  # fmt: skip
        if known.outcome[0] == "awaitable":
            kind, given = known.outcome[1], (fn, *args)
            idempotent = is_idempotent(fn) or self.may_begin_again(args)
            self._redo(known, reached)
            doubt = None if idempotent else lambda: self.in_doubt(known, loc)
            if kind != "coroutine":
                return True, DeferredAwaitable(make, given, kind, (kind, (), {}), doubt, idempotent=idempotent)
            if doubt is not None:  # it has not begun if nothing awaited it
                doubt = None if not any(known.outcome[2:]) and only_makes_coroutine(fn) else lambda: self._coroutine_gone(known, loc)
            return True, DeferredAwaitable(make, given, kind, (known.name, (known.number,), {}), doubt, idempotent=idempotent)
        return self.known_result(known, args, reached)

    def _coroutine_gone(self, known: Effect, loc: Loc | None) -> JournalError:
        """Return the error for a coroutine that has not begun, and whose function may have done more than make it."""
        return self.lost(
            f"{known.name}({known.shown}) gave a coroutine, and the run was cut off before that was awaited: to have another one, the function would be called "
            f"again, and do again what else it does. If it may, say so with lmc journal retry {shlex.quote(str(self.journal.path))} --effect {known.number}. "
            "Of an async def, and of a function marked @lmc.host(idempotent=True), this is known", loc)  # fmt: skip

    def _redo(self, known: Effect, reached: CallSnapshot) -> None:
        """Make the changes of a known call again."""
        assert known.outcome is not None
        if not (rest := known.outcome[2:]):
            return
        taken = rest[1]
        with self._reading(known.name):
            self.effects.under_way.redo(reached, known, lambda x: self.decoded(x, reached.at))
            if taken and list(map(type, taken)) != [int] * len(reached.iterators):
                raise ValueError(f"items taken of iterators: {taken}")
        reached.take(taken or [0] * len(reached.iterators))

    def known_result(self, known: Effect, args: Sequence[Any], reached: CallSnapshot | None) -> tuple[bool, Any]:
        """Return the recorded result of a call, as from `call`; redo its changes to arguments."""
        assert known.outcome is not None
        name, (kind, data, *_) = known.name, known.outcome
        if reached is not None:
            self._redo(known, reached)
        if kind == "opaque":  # of an awaitable
            return False, self.lost(f"{name} gave {a_result(data)}, which a journal cannot hold, so the run cannot be resumed behind it")
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

    def write_outcome(
        self, number: int, call: ReachedCall, fn: Any, outcome: tuple[bool, Any], args: Sequence[Any] = (), reached: CallSnapshot | None = None,
        programs: int = 0, *, alone: bool = True, suspended: bool = False, cancelled: bool = False,
    ) -> None:  # fmt: skip
        """Write the outcome of a call.

        args       what it was given, by itself or by awaitables;  reached: those that it can change
        programs   how many programs, counted by the program's state, ran in it
        alone      whether nothing else has changed what it was given between its steps
        suspended  whether others went on while it was awaited
        cancelled  whether the program, or who runs it, cancelled the call
        """
        ok, value = outcome
        if not ok and not isinstance(value, Exception | asyncio.CancelledError):
            return  # Ctrl-C and the like: it is not known what was done
        if isinstance(value, JournalError | InDoubtEffect | Interrupted):
            return
        record: Record
        index = next((i for i, a in enumerate(args) if a is value and self._is_itself(a)), None)
        places = {} if reached is None or json_data.is_plain(value) else reached.places
        try:
            if cancelled:
                record = ["cancelled", self.effects.timeouts.expired()]
            elif index is not None:
                record = ["argument", index]
            elif ok and id(value) in places:
                record = ["part", places[id(value)]]
            elif ok and inspect.isawaitable(value):
                record = ["awaitable", type(value).__name__]
            else:
                record = ["value" if ok else "raised", codec.encode(value, places)]
            changed: list[list[Any]] = []
            if reached is not None:
                changed = reached.changed(alone=alone)
            if changed or programs or (reached is not None and reached.iterators):
                record += [changed, [] if reached is None else reached.taken(), *([programs] if programs else [])]
        except codec.NotData as what:
            record = ["opaque", type(value).__name__]
            if not is_idempotent(fn):
                warn(f"{call.name}() gave {a_result(type(value).__name__)}, and a journal cannot hold {what}: a run that is cut off behind it cannot be "
                     f"resumed. {_REMEDY}", call.loc)  # fmt: skip
        self.journal.put(self.item, [*(["R", number, self.effects.turns.since_last()] if suspended and not cancelled else ["r", number]), *record])
        self.journal.flush()  # an unwritten outcome would be lost

    def _is_itself(self, x: Any) -> bool:
        """Return whether a result that is an argument is recorded as that, and not by its contents."""
        return mutations.can_change(x) or callable(x) or isinstance(x, (SharedIterator, *ITERATORS)) or self.effects.has_made(x)


_warned: set[tuple[str, str]] = set()


def warn(message: str, loc: Loc | None) -> None:
    """Warn once of a place behind which a run cannot be resumed as it should."""
    place = loc or Loc("<unknown>", 1)
    if (message, str(place)) not in _warned:
        _warned.add((message, str(place)))
        warnings.warn_explicit(message, JournalWarning, place.file, place.line)
