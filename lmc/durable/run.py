"""The journal of one run: its requests, calls and awaits are answered from it if they are recorded, and written to it
otherwise."""

from __future__ import annotations

import asyncio
import inspect
import time
import types
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lmc import observing
from lmc.durable.call_records import ReachedCall, awaited_call
from lmc.durable.calls import JournaledCalls, warn
from lmc.durable.completion import CompletedTasks, in_time, note_doubts, some_of, telling, waits_for_some
from lmc.durable.deferred import WAIT_FOR, DeferredAwaitable, drop, inner_of
from lmc.durable.groups import WELL
from lmc.durable.journal import JournalFile
from lmc.durable.library import AWAITED_AGAIN, WAITING
from lmc.durable.reads import OrderedReads
from lmc.durable.records import Effect
from lmc.durable.snapshots import CallSnapshot
from lmc.durable.tasks import Coming, of_host
from lmc.errors import InDoubtEffect, Interrupted, JournalError, Loc, message_of
from lmc.frontend import aio
from lmc.frontend.active import ACTIVE, numbering
from lmc.frontend.attempts import aanswer_of
from lmc.frontend.expressions import caller_loc
from lmc.frontend.host import HostFunction


class RunJournal(JournaledCalls):
    """The journal of one run, its sub-programs included. Thread-safe.

    deciding  whether the outcomes of tests are reported to it
    progress  calls and awaits that the program has come to, so that it is known whether it went on during an await
    """

    deciding = False
    progress = 0

    def __init__(self, journal: JournalFile, item: int) -> None:
        super().__init__(journal, item)
        self.reads = OrderedReads(self)

    def decided(self, loc: str, test: str, answer: bool) -> None:
        """Ignore the outcome of a test. It is not in the journal: it is computed again."""

    # -- awaits

    def task(
        self, stream: str, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], loc: Loc | None, is_own: Callable[[Any], bool] = lambda x: False
    ) -> Any | None:
        """Return the result of a call that begins tasks, or gathers them; None for any other call."""

        def wait(awaitable: Any) -> tuple[Coroutine[Any, Any, Any], Callable[[], None]]:
            self.effects.coming.append(coming := Coming(stream, awaitable, loc, of_host()))
            return self.wait(stream, awaitable, loc, coming), lambda: self._gone(coming)

        if fn is asyncio.as_completed and args and isinstance(args[0], Iterable) and not inspect.isawaitable(args[0]):
            made = self.effects.tasks.of_each([*args[0]], is_own, wait)  # pyright: ignore[reportUnknownArgumentType]
            if (tasks := self.effects.tasks.in_order(made.values())) is not None:
                return CompletedTasks(self, stream, tasks, kwargs.get("timeout"), loc)
        return self.effects.tasks.begun(fn, args, kwargs, is_own, wait)

    async def wait(self, stream: str, awaitable: Any, loc: Loc | None, coming: Coming | None = None) -> Any:
        """Await an awaitable of host code: return the recorded result, or its result now. `call` has made it, or a
        stand-in for it.

        coming  the awaitable as announced by the task made to await it
        """
        if (several := waits_for_some(awaitable)) is not None and (tasks := self.effects.tasks.in_order(several)) is not None:
            return await some_of(self, stream, awaitable, tasks, loc)
        call = self._awaited(stream, awaitable, loc)
        try:
            self.go_on()
            begun = None if coming is None else self._begin_together(coming)
            synced = begun is not None
            if begun is None and call is not None:
                if asyncio.current_task() in self.effects.tasks and self._is_behind_doubts(call):
                    await self.effects.while_recalling(lambda: True)  # others reach effects in doubt, which ends their group, and cancels this one
                if (gone := self._gone_coroutine(inner_of(awaitable), call)) is not None:
                    gone.made()  # raises
                begun = self.begin(call)
        except BaseException:
            drop(awaitable)
            raise
        if begun is None or call is None:  # its inner awaits are in the journal by themselves
            with telling(self):
                told = await (awaitable if getattr(inner_of(awaitable), "cr_code", None) is not WAIT_FOR else in_time(self, awaitable))
            note_doubts(self, told)
            return told
        number, known = begun
        inner = inner_of(awaitable)
        idempotent = inner.idempotent if isinstance(inner, DeferredAwaitable) else self.may_begin_again([inner]) or self.may_begin_again(call.kwargs.values())
        by = numbering(ACTIVE.get())  # the programs that the tool runs count here, and while it is awaited no others do
        host: HostFunction | None = inspect.getcoroutinelocals(inner)["self"] if isinstance(inner, types.CoroutineType) and inner.cr_code is _MARKED else None
        if known is not None and known.outcome is not None and known.outcome[0] == "cancelled":
            await self._cancelled_again(known, awaitable, self._passed(inner, call))
        if known is not None and known.outcome is not None:
            passed = self._passed(inner, call)
            reached = CallSnapshot(passed[0], passed, {}, self.effects.instances)
            drop(awaitable)
            by.calls += known.outcome[4] if len(known.outcome) == 5 else 0
            ok, value = self.known_result(known, passed, reached)
            if known.suspended:
                await self.effects.in_turn(known)
            if not ok:
                raise value
            return value
        if known is not None and known.doubtful and not idempotent:
            if host is None or host.check is None:
                drop(awaitable)
                raise self._doubt_of(self.in_doubt(known, loc), coming)
            try:
                happened = await aanswer_of(host.asked(call.args, call.kwargs), call.name)
            except Exception as error:
                drop(awaitable)
                raise self._doubt_of(self.unchecked(known, error, loc), coming) from error
            if happened is not None:
                drop(awaitable)
                self.write_outcome(number, call, inner, (True, happened.result))
                return happened.result
        if self.begins_again(known) or not synced or (known is None and self.effects.last()):
            await self._ready(number, awaitable, new=known is None)
        outcome: tuple[bool, Any]
        before, passed = by.calls, self._passed(inner, call)
        reached = CallSnapshot(passed[0], passed, {}, self.effects.instances)
        step, going_on = self.progress, self.effects.tasks.own()
        turns = list[bool]()
        turn = asyncio.get_running_loop().call_soon(turns.append, True)
        by_itself = coming is None and not going_on and asyncio.current_task() not in self.effects.tasks
        reached.whole = by_itself or (isinstance(inner, types.CoroutineType) and inner.cr_code is _TO_THREAD)
        with self.effects.under_way.making(reached):
            try:
                with self.attempts(host, number, known), self.working(), observing.awaiting(inner):
                    outcome = await _outcome(awaitable if reached.whole or reached.is_empty else self.effects.under_way.steps(awaitable, reached))
                if known is not None:  # it had begun, and not ended
                    await self.effects.behind_known()
            except asyncio.CancelledError as error:
                outcome = False, error
            cancelled = isinstance(outcome[1], asyncio.CancelledError) and aio.being_cancelled()
            alone = self.progress == step and not any(task.done() for task in going_on)  # the program stood still
            if reached.whole:
                self.effects.under_way.claim(reached)
            if reached.whole and not alone and reached.has_changes():
                warn(f"{call.name}() was given what has changed until it ended, and the program went on meanwhile: a journal cannot tell whose change that is, "
                     "and takes it for the function's. Let the function return what it found, or await it alone", loc)  # fmt: skip
            alone = reached.whole or (alone and not reached.overlapped)
            turn.cancel()
            self.write_outcome(number, call, inner, outcome, passed, reached, by.calls - before, alone=alone, suspended=bool(turns),
                               cancelled=cancelled)  # fmt: skip
        if not outcome[0]:
            raise outcome[1]
        return outcome[1]

    def _doubt_of(self, doubt: InDoubtEffect, coming: Coming | None) -> InDoubtEffect:
        """Return the error of an await in doubt. A task's is raised where that is awaited; if it is nowhere, the waits end that it leaves without an end."""
        if coming is None:
            return self.stops_at(doubt)
        if not (self.handles_doubts or self.diverges):
            self.effects.waits.end(doubt)
        return doubt

    async def _cancelled_again(self, known: Effect, awaitable: Any, passed: Sequence[Any]) -> None:
        """Wait until the program cancels a call as it did before. If it does not, the call is in doubt: the run was cancelled, then."""
        assert known.outcome is not None
        try:
            self._redo(known, CallSnapshot(passed[0], passed, {}, self.effects.instances))
            await self.effects.cancelled_again(known)
        except BaseException:
            drop(awaitable)
            raise
        self.journal.put(self.item, ["g", known.number])
        known.outcome = None

    def waits_for_program(self, x: Any) -> bool:
        """Return whether awaiting something only waits for what the program does to what it has made (a future, an event, a queue), or for its turn."""
        if isinstance(x, types.CoroutineType):
            return x.cr_code in AWAITED_AGAIN or (x.cr_code in WAITING and self.effects.has_made(inspect.getcoroutinelocals(x).get("self")))
        return type(x) is asyncio.Future and self.effects.has_made(x)

    def _awaited(self, stream: str, awaitable: Any, loc: Loc | None, task: int | None = None) -> ReachedCall | None:
        """Return the call that awaiting it is, in no order: tasks may await in any. None if it is no effect."""
        inner = inner_of(awaitable)
        if _lets_others_go_on(inner):
            return None
        made = self.effects.made.get(id(inner))
        what, args, given = awaited_call(inner) if made is None or made.of is None else made.of
        passed = [*args, *given.values()]
        if inner in self.effects.tasks or (self.effects.tasks.any_in(passed) and not self.effects.tasks.are_timed(passed)):
            return None
        return ReachedCall(stream, f"await {what}", args, given, loc, task=task)

    def _passed(self, inner: Any, call: ReachedCall) -> list[Any]:
        """Return the function that awaiting something calls, if it is known, and what that is given: also by a coroutine among it, as that of `wait_for`,
        and by an effect that has returned the coroutine."""
        held = inspect.getcoroutinelocals(inner) if isinstance(inner, types.CoroutineType) and inner.cr_code is _TO_THREAD else {}
        found = [held.get("func"), *call.args, *call.kwargs.values(), *self.given_for(inner)]
        for x in found:  # grows
            if given := self.given_for(x):
                found += given
            elif isinstance(x, types.CoroutineType) and inspect.getcoroutinestate(x) == inspect.CORO_CREATED:
                found += inspect.getcoroutinelocals(x).values()
        return found

    def _begin_together(self, first: Coming) -> tuple[int, Effect | None] | None:
        """Return the effect of a beginning task, by number, and its known record. Its intent is on disk, with those of
        all other tasks made by then.

        None if it has none yet: it comes after effects in doubt, or is no effect.
        """
        if first.begun is None and self._intend_all():
            self.sync()
        self.effects.coming.remove(first)
        return first.begun

    def _intend_all(self) -> bool:
        """Write the intents of the tasks' awaitables, in that order; return whether there are any."""
        found = False
        for coming in self.effects.coming:
            call = self._awaited(coming.stream, coming.awaitable, coming.loc, coming.task) if coming.begun is None else None
            if call is None or self._gone_coroutine(inner_of(coming.awaitable), call) is not None:
                continue
            if not self._is_behind_doubts(call):
                coming.begun = self.begin(call)
                found = found or coming.begun[1] is None
        return found

    def _gone(self, coming: Coming) -> None:
        """Remove a task's awaitable when the task has ended, or never begins: then its call was not made."""
        if coming in self.effects.coming:
            self.effects.coming.remove(coming)
            if coming.begun is not None:
                number, known = coming.begun
                if known is None:
                    self.journal.put(self.item, ["u", number])
                else:
                    self.effects.give_back(known)
        drop(coming.awaitable)

    def _gone_coroutine(self, inner: Any, call: ReachedCall) -> DeferredAwaitable | None:
        """Return what is awaited, also by `wait_for`, in place of a coroutine that is not to be had again, if the await is in no journal."""
        awaited = (inner, *call.args, *call.kwargs.values())
        gone = next((x for x in awaited if isinstance(x, DeferredAwaitable) and x.kind == "coroutine" and x.doubt is not None), None)
        return gone if gone is not None and self.come_to(call, peek=True)[1] is None else None

    def _is_behind_doubts(self, call: ReachedCall) -> bool:
        """Return whether an effect did not begin in an earlier execution of the run, while another one did and is in
        doubt."""
        doubts = self.resumed and any(effect.doubtful for effect in self.known.effects.values())
        return doubts and self.come_to(call, peek=True)[1] is None

    async def _ready(self, number: int, awaitable: Any, *, new: bool) -> None:
        """Wait until the program has come past what is known, if an await is new, and its intent is on disk. The latter blocks the loop if tasks of the program
        could be on it: they would run first."""
        try:
            if new:
                await self.effects.behind_known()
            if not all(task in self.journal.tasks for task in asyncio.all_tasks()):
                return self.sync()
            await self.journal.synced()
        except JournalError as error:
            self.breaks(error)
            raise
        except BaseException:  # cancelled meanwhile
            self.journal.put(self.item, ["u", number])
            drop(awaitable)
            raise

    def drives(self, *tasks: asyncio.Task[Any] | None) -> None:
        """Return the tasks that drive runs of the journal: any other task on their loop may be a program's."""
        self.journal.tasks.update(task for task in tasks if task is not None)

    # -- the run

    def ended(self, error: BaseException | None) -> BaseException | None:
        """End the run; return the error that it ended with. Waits for its requests."""
        unread = self.settle(error)
        if self._effects is not None:
            self._intend_all()  # tasks that were not awaited may still begin
            for made in [*self._effects.made.values()]:
                self.note_changes_before(made)
        ended_well = self.resumed and self.known.end == []  # it has gone on behind the call once, as behind one that it cancelled
        error = self.broken or error or (None if ended_well and not self.wanted_more else self.doubt)
        if error is not None and self._effects is not None:
            self._effects.tasks.forget_stopped()
        if error is not None and self.doubt is not None and not isinstance(error, InDoubtEffect | BaseExceptionGroup | Interrupted | JournalError):
            error.add_note(f"A thread or task of the run ended with it: {self.doubt.message}")  # else the program's error would hide that
        failures = [*_causes(error)] or [failure for _, failure in unread]
        if failures and not isinstance(error, Interrupted):
            where = [] if error is not None else [[place for places, _ in unread for place in places]]
            self.journal.put(self.item, ["e", [[type(e).__name__, message_of(e)] for e in failures], int(time.time()), *where])
        elif error is None and (not self.resumed or self.known.end != []):  # its earlier end no longer holds
            self.journal.add((self.item, WELL))
        self._known = None  # read again if the state is used further
        return error

    def asked(self, stream: str, question: str, schema: str, loc: Loc | None) -> Any:
        """Return a person's answer to a question. Raises Interrupted while there is none: the run's pending requests
        are answered then, and it does nothing more."""
        self.go_on()
        number, known = self.begin(ReachedCall(stream, QUESTION, (question,), {}, loc))
        if known is not None and known.outcome is not None:
            return self.known_result(known, (), None)[1]
        if known is None or known.question is None:  # it ended between the two
            self.journal.put(self.item, ["q", number, question, schema, int(time.time())])
            self.sync()
        for result in self.unanswered():
            result.wait()
        asks = Interrupted(question, schema, self.item, number, journal=str(self.journal.path), loc=loc)
        self.breaks(asks)
        raise asks

    def refuse_batch(self) -> None:
        """Refuse a batch, or a run with a seed of its own, started by a program of a journaled run: they have no place
        in the run."""
        if not self.effects.busy:
            raise JournalError("a batch, or a run with a seed of its own, inside a journaled run has no place in its journal; "
                               "start it in a tool marked @lmc.host, whose result is journaled", loc=caller_loc())  # fmt: skip


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


async def _outcome(awaitable: Any) -> tuple[bool, Any]:
    try:
        return True, await awaitable
    except Exception as error:
        return False, error


def _lets_others_go_on(x: Any) -> bool:
    """Return whether something is `asyncio.sleep(0)`, which does nothing else."""
    delay = inspect.getcoroutinelocals(x).get("delay") if isinstance(x, types.CoroutineType) and x.cr_code is _SLEEP else None
    return isinstance(delay, int | float) and delay <= 0


_SLEEP = asyncio.sleep.__code__
_MARKED = HostFunction.awaited.__code__
_TO_THREAD = asyncio.to_thread.__code__
QUESTION = "lmc.interrupt"
"""Name of questions to people, among the effects of a run."""
