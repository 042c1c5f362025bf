"""Durable runs: what a run asks and calls is answered from its journal if it is there, and written to it otherwise.

Interpreter, compiled runs and replays use the same places: an answer is known by its stream and ordinal, an effect by what is called
with which arguments for the how manieth time. So what one of them wrote, any other one reads.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import asyncio
import inspect
import threading
import types
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from lmc import codec
from lmc.backend.base import Output, Result
from lmc.checks import Site, of_ask, of_text, since_last
from lmc.errors import (
    BudgetExceeded,
    CancelledError,
    CaptureWarning,
    InDoubtEffect,
    JournalError,
    Loc,
    RunTimeout,
)
from lmc.frontend import aio
from lmc.frontend.again import Again, AgainMethod, MadeBy, drop, inner_of, made_by
from lmc.frontend.effects import (
    AWAITED_AGAIN,
    SORTS,
    WAIT_FOR,
    arguments_digest,
    awaited_call,
    called,
    foreign,
    is_idempotent,
    name_of,
    shown_call,
)
from lmc.frontend.handed import Handed, drawn
from lmc.frontend.host import HostFunction
from lmc.frontend.primitives import caller_loc
from lmc.frontend.tasks import Coming, Tasks
from lmc.groups import WELL, Ask, Record, output_of, record_of
from lmc.journal import MANY, Journal
from lmc.prompt import Gen, Given, Prompt, Select
from lmc.records import Effect, Known, Place


class _Effects:
    """What is known of the effects of one run.

    counts      of calls so far;  left: effects that the program has not come to;  next: the number of the next one
    idempotent  coroutines of idempotent functions, by id;  made: coroutines that effects gave, by id
    tasks       that the program began;  coming: what tasks were made to await that have not begun
    busy        calls of host code that go on
    """

    __slots__ = ("busy", "coming", "counts", "idempotent", "left", "lock", "made", "next", "tasks")

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str, int], int] = {}
        self.left: dict[Place, Effect] | None = None
        self.next = 0
        self.idempotent: dict[int, Any] = {}
        self.made: dict[int, tuple[Any, MadeBy]] = {}
        self.tasks = Tasks()
        self.coming: list[Coming] = []
        self.busy = 0
        self.lock = threading.Lock()


_making = threading.Lock()


class RunJournal:
    """The journal of one run, its sub-programs included. Safe to use from any thread.

    resumed  whether anything is known of an earlier time
    broken   why the run is not that of the journal: it does nothing more, whatever the program makes of it
    """

    __slots__ = ("_asked", "_effects", "_known", "_late", "broken", "item", "journal", "resumed")

    def __init__(self, journal: Journal, item: int) -> None:
        self.journal, self.item = journal, item
        self.resumed = len(journal.contents.records.get(item, ())) > 1  # the first says that it begins
        self._known: Known | None = None
        self.broken: JournalError | None = None
        self._asked: list[Result] = []
        self._late: dict[Result, Sequence[Ask]] = {}  # what was not there when the group was made to which it belongs
        self._effects: _Effects | None = None

    @property
    def effects(self) -> _Effects:
        """What is known of effects; made for the first one, since most runs have none."""
        if self._effects is None:
            with _making:
                self._effects = self._effects or _Effects()
        return self._effects

    @property
    def known(self) -> Known:
        """What the journal has of the run. Raises JournalError."""
        if not self.resumed:
            return _NOTHING_KNOWN
        if self._known is None:
            self._known = self.journal.contents.known(self.item)
        return self._known

    # -- what the model is asked

    def ask(self, before: Prompt, ask: Gen | Select, places: Sequence[Ask], send: Callable[[], Prompt], *, other: bool = False) -> Prompt:
        """The prompt with the answer to `ask`: the known one, or the one that `send` asks for.

        places  of the ask, and of the equal ones that it answers as well
        other   a compiled run asked something else here, ahead of the program: so what is known may be the answer to that
        """
        if self.broken is not None:
            raise self.broken
        if not self.resumed:
            after = send()
            assert after.result is not None
            self.asked(before, ask, places, after.result)
            return after
        text, last = since_last(before)
        result = Result()
        digest = self.check(text, last, ask, result)
        found = self._find(places, digest)
        if found is not None:
            return self._answered(before, found, result)
        if not other and any(place in self.known.answers for place in places):
            raise self._differs(f"asks something else here than the run of its journal did ({_place(places[0])})", ask.loc)
        # what failed before has no handle that a backend could see
        after = send() if last is None or last.error is None else _failed(before, last.error)
        assert after.result is not None
        self._new(text, last, ask, places, after.result)
        return after

    def asked(self, before: Prompt, ask: Gen | Select, places: Sequence[Ask], result: Result) -> None:
        """Something was asked that the journal does not know."""
        self._new(*since_last(before), ask, places, result)

    def _new(self, text: int, last: Result | None, ask: Gen | Select, places: Sequence[Ask], result: Result) -> None:
        self.check(text, last, ask, result)
        self._asked.append(result)
        self.journal.add((places, self, result))

    def asked_at(self, site: Site, env: list[Any], ask: Gen | Select, result: Result) -> None:
        """As `asked`, where a compiled run asks, with the values that it has: checked with the others that were asked there."""
        self.journal.add((site, self, site.take(env), ask, result))
        if len(self.journal.entries) >= MANY:
            self.journal.gather_many()

    def _find(self, places: Sequence[Ask], digest: int) -> Record | None:
        answers = self.known.answers
        for place in places:
            record = answers.get(place, _NOTHING).get(digest)
            if record is not None:
                return record
        return None

    def _answered(self, before: Prompt, record: Record, result: Result) -> Prompt:
        if record[0] == "f":
            result.fail(self._decoded(record[3]))
            return _failed(before, result.error, result)
        output = self.output(record)
        result.finish(output)
        given = Given(output.texts[0], output.ids)
        return Prompt(before, (), result, before.handle, (*before.tail, given))

    def output(self, record: Record) -> Output:
        """The answer that a record holds."""
        try:
            return output_of(record)
        except (codec.BadData, ValueError, TypeError, IndexError) as error:
            raise JournalError(f"journal={str(self.journal.path)!r}: an answer that no lmc wrote: {error}") from None

    def check(self, text: int, last: Result | None, ask: Gen | Select, result: Result) -> int:
        """A check of the whole prompt and of what was asked of it, by which the answer is known again: `text` is that of what follows the answer `last`."""
        digest = of_ask(0 if last is None else self._checked(last), text, ask)
        result.checked = self, digest
        return digest

    def _checked(self, result: Result) -> int:
        if result.checked is None:
            self.journal.gather()  # it may have been asked a moment ago
        if result.checked is None or result.checked[0] is not self:  # of some other run
            return of_text(result.output().text)
        return result.checked[1]

    def record(self, places: Sequence[Ask], result: Result) -> Record | None:
        """The record of what is no plain answer. None if it is not there yet, and then it comes later, or not to be had."""
        output, error = result.answer, result.error
        assert result.checked is not None
        if output is not None:
            return record_of(places, result.checked[1], output)
        if error is None:
            self._late[result] = places
            result.on_change(self._came)
            return None
        if isinstance(error, CancelledError | RunTimeout | BudgetExceeded | JournalError):
            return None  # what this run came to, not what the model said
        try:
            return ["f", places, result.checked[1], codec.encode(error)]
        except codec.NotData:
            return None  # asked again

    def _came(self, result: Result) -> None:
        """Something is there that was late, or more of it."""
        if result.done and (places := self._late.pop(result, None)) is not None:
            self.journal.add((places, self, result))

    def decided(self, answer: bool) -> None:
        """The program, which calls this, goes one way at a test. Not in the journal: it is computed again."""

    # -- what is called

    def handed(self, args: Sequence[Any]) -> Sequence[Any]:
        """What a call of a compiled run is handed: iterators that are counted, in place of those that host code has made."""
        return [drawn(x, nullcontext) for x in args]

    def call(self, stream: str, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
             call: Callable[[], tuple[bool, Any]], loc: Loc | None) -> tuple[bool, Any]:  # fmt: skip
        """What a call gives, (True, result) or (False, exception): the known one, or that of `call`, whose intent is written before."""
        fn, args, kwargs = called(fn, args, kwargs)
        if (task := self.task(stream, fn, args, kwargs, loc)) is not None:
            return True, task
        effect = None if getattr(fn, "__self__", None) in self.effects.tasks else foreign(fn, args, kwargs)
        if effect is None:
            outcome = call()
            if is_idempotent(fn) or (fn is asyncio.to_thread and args and (is_idempotent(args[0]) or foreign(args[0], args[1:], kwargs) is None)):
                self._note_coroutine(outcome)
            return outcome
        fn, args, kwargs = effect
        self._go_on()
        if any(fn is x for x in SORTS):
            return self._sorted(stream, fn, args, kwargs)
        if getattr(fn, "__name__", "") == "sort" and type(getattr(fn, "__self__", None)) is list:
            return self._sorted(stream, list.sort, args, kwargs)
        name, reached = name_of(fn), Handed(fn, args, kwargs)
        number, known = self._begin(stream, name, args, kwargs, loc, ordered=(not isinstance(fn, HostFunction) or fn.ordered) and not _in_loop())
        if known is not None:
            if known.outcome is not None and (outcome := self._recalled(known, fn, (*args, *kwargs.values()), reached, call, loc)) is not None:
                return outcome
            if known.outcome is None and not is_idempotent(fn) and not self._may_begin_again((*args, *kwargs.values())):
                return False, self._in_doubt(known, loc)
        self._sync()
        with self._working():
            outcome = call()
        if outcome[0] and isinstance(made := inner_of(outcome[1]), types.CoroutineType):
            self.effects.made[id(made)] = made, made_by(name, number)
        self._write_outcome(number, fn, name, args, reached, outcome, loc)
        return outcome

    def _sorted(self, stream: str, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bool, Any]:
        """A sort of a compiled run as the interpreter makes it, so that both have the same calls: those of its key, one by one."""
        from lmc.frontend.replay_mode import ReplayMode
        from lmc.frontend.values import active

        mode = ReplayMode({}, None, {})
        mode.journal, mode.stream = self, stream
        token = active.set(mode)
        try:
            return True, mode.call(fn, *args, **kwargs)
        except JournalError:
            raise
        except BaseException as error:  # handed on
            return False, error
        finally:
            active.reset(token)

    def _sync(self) -> None:
        """The disk has what was written; if it cannot, the run is over, whatever the program makes of that."""
        try:
            self.journal.sync()
        except JournalError as error:
            self.broken = self.broken or error
            raise

    def _begin(
        self, stream: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], loc: Loc | None, *, ordered: bool
    ) -> tuple[int, Effect | None]:
        """The number of an effect that the program has come to, and what is known of it; a new one is written down."""
        place, known = self._come_to(stream, name, args, kwargs)
        return (self._intend(place, args, kwargs, loc, ordered=ordered), None) if known is None else (known.number, known)

    def _come_to(self, stream: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Place, Effect | None]:
        """The place of the effect that the program has come to, and what is known of it."""
        digest = arguments_digest(args, kwargs)
        with self.effects.lock:
            which = self.effects.counts.get((stream, name, digest), 0)
            self.effects.counts[stream, name, digest] = which + 1
            place: Place = stream, name, digest, which
            if self.effects.left is None:
                self.effects.left = {p: effect for p, effect in self.known.effects.items() if effect.ordered}
                self.effects.next = max(self.known.calls, default=-1) + 1
            self.effects.left.pop(place, None)
            return place, self.known.effects.get(place)

    def _intend(self, place: Place, args: Sequence[Any], kwargs: Mapping[str, Any], loc: Loc | None, *, ordered: bool) -> int:
        """Writes a new effect down; its number."""
        assert self.effects.left is not None
        shown = shown_call(args, kwargs)
        with self.effects.lock:
            instead = next((e for e in self.effects.left.values() if e.place[0] == place[0]), None) if ordered else None
            if instead is not None:
                raise self._differs(f"calls {place[1]}({shown}) where the run of its journal called {instead.name}({instead.shown})", loc)
            number, self.effects.next = self.effects.next, self.effects.next + 1
        self.journal.put(self.item, ["i", number, *place, shown, "" if loc is None else str(loc), int(ordered)])
        return number

    def task(
        self, stream: str, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], loc: Loc | None, is_own: Callable[[Any], bool] = lambda x: False
    ) -> Any | None:
        """What a call gives that begins tasks, or gathers them; None for any other call."""

        def wait(awaitable: Any) -> tuple[Coroutine[Any, Any, Any], Callable[[], None]]:
            self.effects.coming.append(coming := Coming(stream, awaitable, loc))
            return self.wait(stream, awaitable, loc, coming), lambda: self._gone(coming)

        return self.effects.tasks.begun(fn, args, kwargs, is_own, wait)

    async def wait(self, stream: str, awaitable: Any, loc: Loc | None, coming: Coming | None = None) -> Any:
        """What an awaitable of host code gives: the known result, or what it gives now. `call` has made it, or a stand-in for it.

        coming  the same, where a task was made to await it
        """
        call = self._awaited(awaitable)
        try:
            if getattr(awaitable, "cr_code", None) not in AWAITED_AGAIN:
                self._go_on()
            begun = None if coming is None else self._begin_together(coming)
            synced = begun is not None
            if begun is None and call is not None:
                if asyncio.current_task() in self.effects.tasks and self._is_behind_doubts(self._next_place(stream, *call)):
                    await self._after_doubts()
                begun = self._begin(stream, *call, loc, ordered=False)  # tasks may await in any order
        except BaseException:
            drop(awaitable)
            raise
        if begun is None or call is None:  # what it waits for is in the journal by itself
            return await (awaitable if getattr(inner_of(awaitable), "cr_code", None) is not WAIT_FOR else self._in_time(stream, awaitable, loc))
        name, _, given = call
        number, known = begun
        inner = inner_of(awaitable)
        idempotent = inner.idempotent if isinstance(inner, Again) else self._may_begin_again([inner]) or self._may_begin_again(given.values())
        if known is not None and (known.outcome is not None or not idempotent):
            drop(awaitable)
            ok, value = (False, self._in_doubt(known, loc)) if known.outcome is None else self._known_result(known.outcome, known.name, (), None)
            if not ok:
                raise value
            return value
        if not synced:
            await self._synced(number, awaitable)
        outcome: tuple[bool, Any]
        try:
            with self._working():
                outcome = True, await awaitable
        except asyncio.CancelledError as error:
            if aio.being_cancelled():
                raise
            outcome = False, error
        except Exception as error:
            outcome = False, error
        self._write_outcome(number, inner, name, (), None, outcome, loc)
        if not outcome[0]:
            raise outcome[1]
        return outcome[1]

    async def _in_time(self, stream: str, awaitable: Any, loc: Loc | None) -> Any:
        """What `asyncio.wait_for` gives of a task of the run. That the task was late is an effect, or else nobody would know how far it got."""
        what, args, given = awaited_call(inner_of(awaitable))
        place, known = self._come_to(stream, f"await {what}", args, given)
        if known is not None and known.outcome is not None:
            drop(awaitable)
            drop(given["fut"])
            raise self._known_result(known.outcome, known.name, (), None)[1]
        try:
            return await awaitable
        except TimeoutError as error:
            self._write_outcome(self._intend(place, args, given, loc, ordered=False), None, place[1], (), None, (False, error), loc)
            raise

    def _awaited(self, awaitable: Any) -> tuple[str, Sequence[Any], Mapping[str, Any]] | None:
        """The effect that awaiting it is: name and arguments. None where it is none."""
        if getattr(awaitable, "cr_code", None) in AWAITED_AGAIN:
            return None
        inner = inner_of(awaitable)
        what, args, given = self.effects.made[id(inner)][1] if id(inner) in self.effects.made else awaited_call(inner)
        handed = [*args, *given.values()]
        if inner in self.effects.tasks or (self.effects.tasks.any_in(handed) and not self.effects.tasks.are_timed(handed)):
            return None
        return f"await {what}", args, given

    def _begin_together(self, first: Coming) -> tuple[int, Effect | None] | None:
        """The effect of a task that begins, by number, and what is known of it. Its intent is on the disk, with those of all other tasks that were made by then.

        None where it has none yet: it is behind what is in doubt, or no effect.
        """
        if first.begun is None and self._intend_all():
            self._sync()
        self.effects.coming.remove(first)
        return first.begun

    def _intend_all(self) -> bool:
        """Writes the intents of what tasks were made to await, in that order; whether there are any."""
        found = False
        for coming in self.effects.coming:
            call = self._awaited(coming.awaitable) if coming.begun is None else None
            if call is not None and not self._is_behind_doubts(place := self._next_place(coming.stream, *call)):
                coming.place, coming.begun = place, self._begin(coming.stream, *call, coming.loc, ordered=False)
                found = found or coming.begun[1] is None
        return found

    def _gone(self, coming: Coming) -> None:
        """A task has ended that was made to await something, or does not begin: then that was not called."""
        if coming in self.effects.coming:
            self.effects.coming.remove(coming)
            if coming.begun is not None:
                (stream, name, digest, which), (number, known) = coming.place, coming.begun
                if self.effects.counts[stream, name, digest] == which + 1:  # the next one is this one
                    self.effects.counts[stream, name, digest] = which
                if known is None:
                    self.journal.put(self.item, ["u", number])
        drop(coming.awaitable)

    def _is_behind_doubts(self, place: Place) -> bool:
        """Whether an effect has not begun in an earlier time of the run, and another one has that is not known to be done."""
        return self.resumed and place not in self.known.effects and any(effect.outcome is None for effect in self.known.effects.values())

    def _next_place(self, stream: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Place:
        """That of an effect that the program is about to come to."""
        digest = arguments_digest(args, kwargs)
        return stream, name, digest, self.effects.counts.get((stream, name, digest), 0)

    async def _after_doubts(self) -> None:
        """Gives other tasks turns to come to what is in doubt, which ends their group; then this one is cancelled, and has not begun."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def _synced(self, number: int, awaitable: Any) -> None:
        """As `_sync`, before something is awaited. Holds the loop where tasks of the program could be on it: they would go first."""
        tasks = self.journal.tasks
        if not all(task in tasks for task in asyncio.all_tasks()):
            return self._sync()
        try:
            await self.journal.synced()
        except JournalError as error:
            self.broken = self.broken or error
            raise
        except BaseException:  # cancelled meanwhile
            self.journal.put(self.item, ["u", number])
            drop(awaitable)
            raise

    def drives(self, *tasks: asyncio.Task[Any] | None) -> None:
        """Tasks in which runs of the journal are: whatever else is on their loop may be of programs."""
        self.journal.tasks.update(task for task in tasks if task is not None)

    @contextmanager
    def _working(self) -> Generator[None]:
        """While host code works, what it starts is a part of its result."""
        with self.effects.lock:
            self.effects.busy += 1
        try:
            yield
        finally:
            with self.effects.lock:
                self.effects.busy -= 1

    def _note_coroutine(self, outcome: tuple[bool, Any]) -> None:
        if outcome[0] and isinstance(made := inner_of(outcome[1]), types.CoroutineType):
            self.effects.idempotent[id(made)] = made

    def _may_begin_again(self, given: Iterable[Any]) -> bool:
        """Whether what awaits these does nothing but what is idempotent."""
        awaited = [inner_of(x) for x in given if inspect.isawaitable(x) and x not in self.effects.tasks]
        return bool(awaited) and all(x.idempotent if isinstance(x, Again) else id(x) in self.effects.idempotent for x in awaited)

    def _recalled(
        self, known: Effect, fn: Any, args: Sequence[Any], reached: Handed, call: Callable[[], Any], loc: Loc | None
    ) -> tuple[bool, Any] | None:
        """The result of a call that was made, with these arguments in all; None if it has to be made again."""
        assert known.outcome is not None
        if isinstance(fn, AgainMethod):
            fn.of.called.add(fn.name)
        if known.outcome[0] == "opaque":
            if is_idempotent(fn):
                return None
            return False, self._lost(
                f"{known.name}() gave a {known.outcome[1]}, which a journal cannot hold, so the run cannot be taken up behind it. "
                "Let it give data, or mark it @lmc.host(idempotent=True) if it may be called again")
        if known.outcome[0] == "awaitable":
            kind = known.outcome[1]
            idempotent = is_idempotent(fn) or self._may_begin_again(args)
            if kind == "coroutine":  # which has not begun where nothing awaited it
                return True, Again(call, args, kind, made_by(known.name, known.number), None, idempotent=idempotent)
            return True, Again(call, args, kind, (kind, (), {}), None if idempotent else lambda: self._in_doubt(known, loc), idempotent=idempotent)
        return self._known_result(known.outcome, known.name, args, reached)

    def _known_result(self, outcome: Record, name: str, args: Sequence[Any], reached: Handed | None) -> tuple[bool, Any]:
        kind, data, *rest = outcome
        if rest and reached is not None:
            changed, taken = rest
            with self._reading(name):
                reached.restore([(index, self._decoded(content, reached.at)) for index, content in changed])
                if taken and list(map(type, taken)) != [int] * len(reached.iterators):
                    raise ValueError(f"items taken of iterators: {taken}")
            reached.take(taken or [0] * len(reached.iterators))
        if kind == "opaque":  # of something awaited
            return False, self._lost(f"{name} gave a {data}, which a journal cannot hold, so the run cannot be taken up behind it")
        with self._reading(name):
            if kind == "argument":
                return True, args[data]
            if kind == "part" and reached is not None:
                return True, reached.at(data)
            value = self._decoded(data, None if reached is None else reached.at)
            if kind != "value" and not isinstance(value, BaseException):
                raise TypeError(f"it raised a {type(value).__name__}")
        return kind == "value", value

    @contextmanager
    def _reading(self, name: str) -> Generator[None]:
        """While what the journal has of a call is looked at."""
        try:
            yield
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._lost(f"journal={str(self.journal.path)!r}: a result of {name} that no lmc wrote: {error}") from None

    def _lost(self, what: str) -> JournalError:
        """What ends the run, whatever the program makes of it."""
        error = JournalError(what)
        self.broken = self.broken or error
        return error

    def _decoded(self, data: Any, found: Callable[[list[Any]], Any] | None = None) -> Any:
        try:
            return codec.decode(data, found)
        except codec.BadData as error:
            raise self._differs(f"cannot be taken up: {error}", None) from None

    def _in_doubt(self, known: Effect, loc: Loc | None) -> InDoubtEffect:
        return InDoubtEffect(
            f"{known.name}({known.shown}) was begun before the run was cut off, and nobody knows whether it was done. Mark it "
            "@lmc.host(idempotent=True) if it may be called again, or handle lmc.InDoubtEffect where it is called", loc=loc)

    def _write_outcome(self, number: int, fn: Any, name: str, args: Sequence[Any], reached: Handed | None, outcome: tuple[bool, Any], loc: Loc | None) -> None:
        ok, value = outcome
        if not ok and not isinstance(value, Exception | asyncio.CancelledError):
            return  # Ctrl-C and the like: nobody knows what was done
        if isinstance(value, JournalError | InDoubtEffect):
            return
        record: Record
        index = next((i for i, a in enumerate(args) if a is value and codec.can_change(a)), None)
        try:
            if index is not None:
                record = ["argument", index]
            elif ok and reached is not None and (part := reached.part(value)) is not None:
                record = ["part", part]
            elif ok and inspect.isawaitable(value):
                record = ["awaitable", type(value).__name__]
            else:
                record = ["value" if ok else "raised", codec.encode(value, None if reached is None else reached.places)]
            if reached is not None and ((changed := reached.changed()) or reached.iterators):
                record += [changed, reached.taken()]
        except codec.NotData as what:
            record = ["opaque", type(value).__name__]
            if not is_idempotent(fn):
                _warn(f"{name}() gave a {type(value).__name__}, and a journal cannot hold {what}: a run that is cut off behind it cannot be taken up. Let it "
                      "give data, or mark it @lmc.host(idempotent=True) if it may be called again", loc)  # fmt: skip
        self.journal.put(self.item, ["r", number, *record])
        self.journal.hurry()  # until it is written, nobody would know

    # -- the run

    def _go_on(self) -> None:
        if self.broken is not None:
            raise self.broken

    def _differs(self, what: str, loc: Loc | None) -> JournalError:
        error = JournalError(
            f"the program {what}. It depends on something that is not in the journal and has changed: an outside variable, a helper, the "
            "order of a set", loc=loc)
        self.broken = self.broken or error
        return error

    def ended(self, error: BaseException | None, asked: Iterable[Result] = ()) -> BaseException | None:
        """The run is over; gives the error that it ended with. Waits for what it asked: `asked`, and what no compiled run did."""
        if error is None:
            for result in (*asked, *self._asked):
                if not result.done:
                    result.wait()
        self._asked.clear()
        for result in list(self._late):
            self._came(result)  # the thread that completed it may not have come to say so, and then the journal would be closed
        if self._effects is not None:
            self._intend_all()  # tasks that nobody has awaited may begin yet
        error = self.broken or error
        if error is not None:
            self.journal.put(self.item, ["e", [[type(e).__name__, str(e)] for e in _causes(error)]])
        elif not self.resumed or self.known.end != []:  # what it ended with before is over
            self.journal.add((self.item, WELL))
        self._known = None  # read again if somebody goes on with the state
        return error

    def refuse_batch(self) -> None:
        """A program of a journaled run starts a batch, or a run with a seed of its own, which are not at places of the run."""
        if not self.effects.busy:
            raise JournalError("a batch, or a run with a seed of its own, inside of a journaled run has no place in its journal; "
                               "start it in a tool, whose result is journaled", loc=caller_loc())  # fmt: skip


def _failed(before: Prompt, error: BaseException | None, result: Result | None = None) -> Prompt:
    result = result or Result()
    assert error is not None
    result.fail(error)
    return Prompt(before, (), result, before.handle, before.tail)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


_TURNS = 16
"""Turns of the event loop within which a task of a group, and of groups in it, comes to what the journal knows of it."""
_NOTHING: Mapping[Any, Any] = {}
_NOTHING_KNOWN = Known()


def _place(place: Ask) -> str:
    stream, ordinal = place
    return f"ask {ordinal} of {stream or 'the program'}"


def _in_loop() -> bool:
    """Whether an event loop is running here: tasks of a program may make their calls in any order."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_warned: set[tuple[str, str]] = set()


def _warn(message: str, loc: Loc | None) -> None:
    place = loc or Loc("<unknown>", 1)
    if (message, str(place)) not in _warned:
        _warned.add((message, str(place)))
        warnings.warn_explicit(message, CaptureWarning, place.file, place.line)
