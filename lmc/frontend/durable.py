"""Durable runs: what a run asks and calls is answered from its journal if it is there, and written to it otherwise.

Interpreter, compiled runs and replays use the same places: an answer is known by its stream and ordinal, an effect by what is called
with which arguments for the how manieth time. So what one of them wrote, any other one reads.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import asyncio
import copy
import datetime
import functools
import hashlib
import inspect
import io
import os
import random
import re
import textwrap
import threading
import time
import tokenize
import types
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from operator import getitem, is_
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from lmc import codec
from lmc.backend.base import Backend, Output, Result
from lmc.checks import of_ask, of_text, since_last
from lmc.errors import (
    BudgetExceeded,
    CancelledError,
    CaptureWarning,
    InDoubtEffect,
    JournalError,
    Loc,
    ParameterError,
    RunTimeout,
)
from lmc.frontend import aio, hostops, raising, reach
from lmc.frontend.host import HostFunction
from lmc.frontend.own import copied_by_code
from lmc.frontend.primitives import caller_loc
from lmc.journal import MANY, Journal
from lmc.prompt import Gen, Given, Prompt, SamplingParams, Select
from lmc.records import WELL, Ask, Effect, Known, Place, Record, few_full_collections, output_of, record_of

if TYPE_CHECKING:
    from lmc.frontend.interpreter import Function
    from lmc.frontend.options import Options

LARGEST = 1 << 20
"""Bytes of a run's arguments that a journal holds; of larger ones it has the digest."""


class RunJournal:
    """The journal of one run, its sub-programs included. Safe to use from any thread.

    resumed  whether anything is known of an earlier time
    broken   why the run is not that of the journal: it does nothing more, whatever the program makes of it
    """

    __slots__ = (
        "_asked", "_busy", "_counts", "_digests", "_idempotent", "_known", "_left", "_lock", "_next", "broken", "item", "journal", "resumed",
    )  # fmt: skip

    def __init__(self, journal: Journal, item: int) -> None:
        self.journal, self.item = journal, item
        self.resumed = len(journal.contents.records.get(item, ())) > 1  # the first says that it begins
        self._known: Known | None = None
        self.broken: JournalError | None = None
        self._counts: dict[tuple[str, str, int], int] = {}  # calls so far
        self._left: dict[Place, Effect] | None = None  # effects that the program has not come to
        self._next = 0
        self._digests: dict[Result, int] = {}
        self._asked: list[Result] = []
        self._idempotent: dict[int, Any] = {}  # coroutines of idempotent functions, by id
        self._busy = 0  # calls of host code that go on
        self._lock = threading.Lock()

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
            self.asked(*since_last(before), ask, places, after.result)
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
        self.check(text, last, ask, after.result)  # now: what is asked of it may be known
        self.asked(text, last, ask, places, after.result)
        return after

    def asked(self, text: int, last: Result | None, ask: Gen | Select, places: Sequence[Ask], result: Result) -> None:
        """Something was asked that the journal does not know: behind the answer `last`, and a text of which this is the check."""
        self._asked.append(result)
        journal = self.journal
        journal.put_asked((self, text, last, ask, places, result))
        if len(journal.entries) >= MANY:
            journal.gather_many()

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
        """A check of the whole prompt and of what was asked of it, by which the answer is known again."""
        digests = self._digests
        digest = digests.get(result)
        if digest is None:
            before = 0 if last is None else digests.get(last)
            digest = digests[result] = of_ask(of_text(last.output().text) if before is None else before, text, ask)  # type: ignore[union-attr]  # of some other run
        return digest

    def record(self, text: int, last: Result | None, ask: Gen | Select, places: Sequence[Ask], result: Result) -> Record | None:
        """The record of what is no plain answer. None if it is not there yet, and then it comes later, or not to be had."""
        output, error = result.answer, result.error
        if output is not None:
            return record_of(places, self._digests[result], output)
        if error is None:
            result.on_change(lambda r: self.journal.put_asked((self, text, last, ask, places, r)) if r.done else None)
            return None
        if isinstance(error, CancelledError | RunTimeout | BudgetExceeded | JournalError):
            return None  # what this run came to, not what the model said
        try:
            return ["f", places, self._digests[result], codec.encode(error)]
        except codec.NotData:
            return None  # asked again

    def decided(self, answer: bool) -> None:
        """The program, which calls this, goes one way at a test. Not in the journal: it is computed again."""

    # -- what is called

    def call(self, stream: str, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
             call: Callable[[], tuple[bool, Any]], loc: Loc | None) -> tuple[bool, Any]:  # fmt: skip
        """What a call gives, (True, result) or (False, exception): the known one, or that of `call`, whose intent is written before."""
        effect = foreign(fn, args, kwargs)
        if effect is None:
            outcome = call()
            self._note_coroutine(fn, outcome)
            return outcome
        fn, args, kwargs = effect
        self._go_on()
        if any(fn is x for x in _SORTS):
            return self._sorted(stream, fn, args, kwargs)
        if getattr(fn, "__name__", "") == "sort" and type(getattr(fn, "__self__", None)) is list:
            return self._sorted(stream, list.sort, args, kwargs)
        name, reached = _name(fn), _Reached(fn, args, kwargs)
        number, known = self._begin(stream, name, args, kwargs, loc, ordered=(not isinstance(fn, HostFunction) or fn.ordered) and not _in_loop())
        if known is not None:
            if known.outcome is not None and (outcome := self._recalled(known, fn, (*args, *kwargs.values()), reached, call, loc)) is not None:
                return outcome
            if known.outcome is None and not _is_idempotent(fn) and not self._may_begin_again((*args, *kwargs.values())):
                return False, self._in_doubt(known, loc)
        self._sync()
        with self._working():
            outcome = call()
        self._write_outcome(number, fn, name, args, reached, outcome, loc)
        return outcome

    def _sorted(self, stream: str, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bool, Any]:
        """A sort of a compiled run as the interpreter makes it, so that both have the same calls: those of its key, one by one."""
        from lmc.frontend.hooks import ReplayMode
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
        digest = _arguments_digest(args, kwargs)
        with self._lock:
            which = self._counts.get((stream, name, digest), 0)
            self._counts[stream, name, digest] = which + 1
            place: Place = stream, name, digest, which
            known = self.known.effects.get(place)
            if self._left is None:
                self._left = {p: effect for p, effect in self.known.effects.items() if effect.ordered}
                self._next = max(self.known.calls, default=-1) + 1
            if known is not None:
                self._left.pop(place, None)
                return known.number, known
            shown = shown_call(args, kwargs)
            instead = next((e for e in self._left.values() if e.place[0] == stream), None) if ordered else None
            if instead is not None:
                raise self._differs(f"calls {name}({shown}) where the run of its journal called {instead.name}({instead.shown})", loc)
            number, self._next = self._next, self._next + 1
        self.journal.put(self.item, ["i", number, *place, shown, "" if loc is None else str(loc), int(ordered)])
        return number, None

    async def wait(self, stream: str, awaitable: Any, loc: Loc | None) -> Any:
        """What an awaitable of host code gives: the known result, or what it gives now. `call` has made it, or a stand-in for it."""
        if getattr(awaitable, "cr_code", None) in _AWAITED_AGAIN:
            return await awaitable
        self._go_on()
        inner = _inner(awaitable)
        name = f"await {inner.kind if isinstance(inner, Again) else _name(inner)}"
        given = inspect.getcoroutinelocals(inner) if isinstance(inner, types.CoroutineType) else {}
        number, known = self._begin(stream, name, (), given, loc, ordered=False)  # tasks may await in any order
        idempotent = inner.doubt is None if isinstance(inner, Again) else self._may_begin_again([inner]) or self._may_begin_again(given.values())
        if known is not None and (known.outcome is not None or not idempotent):
            _drop(awaitable)
            ok, value = (False, self._in_doubt(known, loc)) if known.outcome is None else self._known_result(known.outcome, known.name, (), None)
            if not ok:
                raise value
            return value
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
            _drop(awaitable)
            raise

    def drives(self, *tasks: asyncio.Task[Any] | None) -> None:
        """Tasks in which runs of the journal are: whatever else is on their loop may be of programs."""
        self.journal.tasks.update(task for task in tasks if task is not None)

    @contextmanager
    def _working(self) -> Generator[None]:
        """While host code works, what it starts is a part of its result."""
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    def _note_coroutine(self, fn: Any, outcome: tuple[bool, Any]) -> None:
        if outcome[0] and isinstance(outcome[1], types.CoroutineType) and _is_idempotent(fn):
            self._idempotent[id(outcome[1])] = outcome[1]

    def _may_begin_again(self, given: Iterable[Any]) -> bool:
        """Whether what awaits these does nothing but what is idempotent."""
        awaited = [_inner(x) for x in given if inspect.isawaitable(x)]
        return bool(awaited) and all(x.doubt is None if isinstance(x, Again) else id(x) in self._idempotent for x in awaited)

    def _recalled(
        self, known: Effect, fn: Any, args: Sequence[Any], reached: _Reached, call: Callable[[], Any], loc: Loc | None
    ) -> tuple[bool, Any] | None:
        """The result of a call that was made, with these arguments in all; None if it has to be made again."""
        assert known.outcome is not None
        if isinstance(fn, _Method):
            fn.of.called.add(fn.name)
        if known.outcome[0] == "opaque":
            if _is_idempotent(fn):
                return None
            return False, self._lost(
                f"{known.name}() gave a {known.outcome[1]}, which a journal cannot hold, so the run cannot be taken up behind it. "
                "Let it give data, or mark it @lmc.host(idempotent=True) if it may be called again")
        if known.outcome[0] == "awaitable":
            kind = known.outcome[1]
            safe = kind == "coroutine" or _is_idempotent(fn) or self._may_begin_again(args)
            return True, Again(call, args, kind, None if safe else lambda: self._in_doubt(known, loc))
        return self._known_result(known.outcome, known.name, args, reached)

    def _known_result(self, outcome: Record, name: str, args: Sequence[Any], reached: _Reached | None) -> tuple[bool, Any]:
        kind, data, *changed = outcome
        if changed and reached is not None:
            reached.restore([(index, self._decoded(content, reached.at)) for index, content in changed[0]])
        if kind == "argument":
            return True, args[data]
        if kind == "part" and reached is not None:
            return True, reached.at(data)
        if kind == "opaque":  # of something awaited
            return False, self._lost(f"{name} gave a {data}, which a journal cannot hold, so the run cannot be taken up behind it")
        return kind == "value", self._decoded(data, None if reached is None else reached.at)

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

    def _write_outcome(self, number: int, fn: Any, name: str, args: Sequence[Any], reached: _Reached | None, outcome: tuple[bool, Any], loc: Loc | None) -> None:
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
            if reached is not None and (changed := reached.changed()):
                record.append(changed)
        except codec.NotData as what:
            record = ["opaque", type(value).__name__]
            if not _is_idempotent(fn):
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

    def ended(self, error: BaseException | None) -> BaseException | None:
        """The run is over; gives the error that it ended with. Waits for what it asked."""
        if error is None:
            for result in self._asked:
                if not result.done:
                    result.wait()
        self._asked.clear()
        error = self.broken or error
        if error is not None:
            self.journal.put(self.item, ["e", [[type(e).__name__, str(e)] for e in _causes(error)]])
        elif not self.resumed or self.known.end is None:
            self.journal.put(self.item, WELL)
        self._known = None  # read again if somebody goes on with the state
        return error

    def refuse_batch(self) -> None:
        """A program of a journaled run starts a batch, or a run with a seed of its own, which are not at places of the run."""
        if not self._busy:
            raise JournalError("a batch, or a run with a seed of its own, inside of a journaled run has no place in its journal; "
                               "start it in a tool, whose result is journaled", loc=caller_loc())  # fmt: skip


class Again:
    """Stands for what a call gave to await, in a run that is taken up again: the call is made again if it is awaited after all.

    kind    its type's name
    doubt   what is raised then: a task may have done something since it was begun. None where it may begin again
    called  its methods that the journal has
    """

    def __init__(self, call: Callable[[], tuple[bool, Any]], args: Sequence[Any], kind: str, doubt: Callable[[], InDoubtEffect] | None) -> None:
        self.kind, self.doubt, self.called = kind, doubt, set[str]()
        self._call, self._args, self._made = call, args, list[Any]()

    def __getattr__(self, name: str) -> Any:
        """A method, whose call is in the journal too."""
        return _Method(self, name)

    def __await__(self) -> Generator[Any, None, Any]:
        return (yield from self.made().__await__())

    def made(self) -> Any:
        """What the call gives now. Raises InDoubtEffect where it may have done something before."""
        if self.doubt is not None:
            raise self.doubt()
        if not self._made:
            ok, value = self._call()
            if not ok:
                raise value
            if "cancel" in self.called:
                value.cancel()
            self._made.append(value)
        return self._made[0]

    def drop(self) -> None:
        for x in (*self._args, *self._made):
            _drop(x)


class _Method:
    """Of what `Again` stands for. No function, so that nobody takes it for one of the program's."""

    def __init__(self, of: Again, name: str) -> None:
        self.of, self.name = of, name
        self.__name__ = self.__qualname__ = f"{of.kind}.{name}"
        self.__module__ = "asyncio"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.of.made(), self.name)(*args, **kwargs)


class _Reached:
    """What a call can change of the run's own: containers and objects it is handed, and what functions among them close over.

    `contents` has them by number; those from `cells` on are variables, which a function may store anew.
    """

    def __init__(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        values = [*args, *kwargs.values()]
        self.hidden = next((f"the class {x.__qualname__}" for x in values if isinstance(x, type) and "<locals>" in x.__qualname__), None)
        owners = [x.__self__ for x in values if isinstance(x, types.BuiltinMethodType | types.MethodType)]
        self.values = [x for x in (*values, *owners) if codec.can_change(x)]
        self.variables: list[types.CellType] = []
        functions = [x for x in (fn, *values) if isinstance(x, types.FunctionType)]
        self.values += [x.__dict__ for x in functions if "<locals>" in x.__qualname__]  # attributes of the program's own
        while functions:
            for cell in functions.pop().__closure__ or ():
                if any(cell is c for c in self.variables) or (content := _content(cell)) is _EMPTY:
                    continue
                self.variables.append(cell)
                if isinstance(content, types.FunctionType) and content.__closure__:
                    functions.append(content)
        self._before = self._snapshots()
        self._items = [list(x) if type(x) is list else [] for x in self.values]
        self._held = [_containers(x) for x in self.values]

    def part(self, value: Any) -> list[Any] | None:
        """Where a container that a call gave is among what it was handed: [number, key, …]."""
        if not codec.can_change(value):
            return None
        return next(([i, *path] for i, x in enumerate(self.values) if (path := _path(x, value)) is not None), None)

    @property
    def places(self) -> dict[int, list[Any]]:
        """The places of the containers and objects that it was handed, as `part` gives them, by id."""
        found: dict[int, list[Any]] = {}
        left: list[tuple[Any, list[Any]]] = [(x, [i]) for i, x in enumerate(self.values)]
        while left:
            x, place = left.pop()
            if codec.can_change(x) and id(x) in found:
                continue
            if codec.can_change(x):
                found[id(x)] = place
            left += [(item, [*place, key]) for key, item in _items(x)] if len(place) <= DEPTH else []
        return found

    def at(self, place: list[Any]) -> Any:
        """What is at a place."""
        return functools.reduce(getitem, place[1:], self.values[place[0]])

    def _snapshots(self) -> list[Any]:
        return [_snapshot(x) for x in (*self.values, *map(_content, self.variables))] if self.values or self.variables else []

    def changed(self) -> list[list[Any]]:
        """What is not what it was: [number, content as data]. Raises NotData."""
        if self.hidden is not None:
            raise codec.NotData(f"what it may have done to {self.hidden}")
        found = [(i, after) for i, (before, after) in enumerate(zip(self._before, self._snapshots(), strict=True)) if not _same(before, after)]
        for index, after in found:
            if isinstance(after, _Held):
                where = self.values[index] if index < len(self.values) else _content(self.variables[index - len(self.values)])
                raise codec.NotData(f"what it did to a {type(where).__name__}")
            new = _containers(self.values[index]) - self._held[index] if index < len(self.values) else set[int]()
            if any(new & held for held in self._held) or '["=",' in codec.dumps(after):  # a copy would come back instead
                raise codec.NotData("that it put a container of the program into another one")
        return [[i, self._rearranged(i) or after] for i, after in found]

    def _rearranged(self, index: int) -> list[Any] | None:
        """What a list holds now, if containers among that stand elsewhere than they did: these by their places. Raises NotData."""
        if index >= len(self.values) or type(self.values[index]) is not list:
            return None
        now, were, before = self.values[index], {id(x): k for k, x in enumerate(self._items[index]) if codec.can_change(x)}, self._before[index]
        if all(were.get(id(x), k) == k for k, x in enumerate(now)):
            return None
        data: list[Any] = []
        for x in now:
            place = were.get(id(x))
            data.append(codec.encode(x) if place is None else {codec.TAG: ["held", [index, place]]})
            if place is not None and codec.encode(x) != before[place]:
                raise codec.NotData("that it moved a container of the program and changed it")
        return data

    def restore(self, contents: list[tuple[int, Any]]) -> None:
        for index, content in contents:
            if index < len(self.values):
                codec.restore(self.values[index], content)
                continue
            cell = self.variables[index - len(self.values)]
            if codec.can_change(cell.cell_contents) and type(cell.cell_contents) is type(content):
                codec.restore(cell.cell_contents, content)
            else:
                cell.cell_contents = content


_EMPTY = object()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _EMPTY


def _containers(x: Any) -> set[int]:
    """A container and those in it, by identity."""
    found: set[int] = set()
    inside = [x]
    while inside:
        x = inside.pop()
        if isinstance(x, list | dict | deque | set | tuple) and id(x) not in found:
            if not isinstance(x, tuple):
                found.add(id(x))
            inside.extend(x.values() if isinstance(x, dict) else x)
    return found


DEPTH = 8
"""How deep in what a call was handed something is looked for."""


def _path(x: Any, wanted: Any, depth: int = DEPTH) -> list[Any] | None:
    """The keys that lead from a list or dict to an object in it."""
    if x is wanted:
        return []
    for key, item in _items(x) if depth else ():
        if (path := _path(item, wanted, depth - 1)) is not None:
            return [key, *path]
    return None


def _items(x: Any) -> Iterable[tuple[Any, Any]]:
    """What a container holds, by keys that a journal can write."""
    if not isinstance(x, list | dict | deque | tuple):
        return ()
    return [(key, item) for key, item in (x.items() if isinstance(x, dict) else enumerate(x)) if isinstance(key, str | int) or key is None]


class _Held:
    """What is not data, and what it holds: of a change to it is known only that there was one."""

    def __init__(self, x: Any) -> None:
        self.x, self.items = x, [*x, *(x.values() if isinstance(x, dict) else ())] if isinstance(x, list | dict | deque) else []


def _snapshot(x: Any) -> Any:
    if type(x) is dict and "__builtins__" in x:  # `eval` puts them there
        x = {name: value for name, value in x.items() if name != "__builtins__"}
    try:
        return codec.encode(x)
    except codec.NotData:
        return _Held(x)


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, _Held) and isinstance(after, _Held):
        return before.x is after.x and len(before.items) == len(after.items) and all(map(is_, before.items, after.items))
    return not isinstance(before, _Held) and not isinstance(after, _Held) and before == after


def _drop(awaitable: Any) -> None:
    """An awaitable that nobody awaits any more."""
    if isinstance(awaitable, types.CoroutineType):
        inner = _inner(awaitable)
        if inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
            awaitable.close()
        if inner is not awaitable:
            _drop(inner)
    elif isinstance(awaitable, asyncio.Future):
        awaitable.cancel()
    elif isinstance(awaitable, Again):
        awaitable.drop()


def _inner(awaitable: Any) -> Any:
    """What a coroutine of lmc's own awaits."""
    if isinstance(awaitable, types.CoroutineType) and awaitable.cr_frame is not None and awaitable.cr_code is raising.ahandling.__code__:
        return awaitable.cr_frame.f_locals["args"][-1]
    return awaitable


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


_NOTHING: Mapping[Any, Any] = {}
_NOTHING_KNOWN = Known()


def _place(place: Ask) -> str:
    stream, ordinal = place
    return f"ask {ordinal} of {stream or 'the program'}"


# -- which calls are written down ------------------------------------------------------------------------------------


def _copied_by_python(x: Any, fn: Any) -> bool:
    """Whether a copy of an object runs no code of its classes."""
    found, left = dict[int, Any](), [x]
    while left:
        one = left.pop()
        if id(one) in found:
            continue
        found[id(one)] = one
        if type(one).__module__ != "builtins" and copied_by_code(type(one)):
            return False
        left += reach.inside(one) if fn is copy.deepcopy else ()
    return True


def foreign(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]] | None:
    """The function and the arguments of a call that does something outside of the run, or None for one that is made again.

    Made again: what computes with the run's own values (methods of text, lists, dicts and the like, library functions that only read, what
    is marked `lmc.pure`), what makes exceptions and coroutines, and what enters and leaves a `with`.
    """
    args = tuple(args)
    if fn is raising.handling:
        _, fn, *rest = args
        args = tuple(rest)
    if fn is hostops.OPERATIONS["py.call_method"]:
        owner, name, *rest = args
        if type(owner) in _OWN_DATA:
            return None if not _calls_back(name, rest, kwargs) else (getattr(owner, name), (owner, *rest), kwargs)
        if (fn := getattr(owner, name, None)) is None:
            return None  # raises
        args = tuple(rest)
    elif fn is hostops.OPERATIONS["py.call"]:
        fn, *rest = args
        args = tuple(rest)
    while isinstance(fn, functools.partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    if isinstance(fn, HostFunction):
        return None if fn.pure or inspect.iscoroutinefunction(fn.fn) else (fn, args, kwargs)
    if isinstance(fn, type) and issubclass(fn, BaseException):
        return None
    owner = getattr(fn, "__self__", None)
    if type(owner) in _OWN_DATA and owner is not None:
        return None if not _calls_back(getattr(fn, "__name__", ""), args, kwargs) else (fn, (owner, *args), kwargs)
    if isinstance(owner, BaseException):
        return None
    if reach.is_own(fn) or reach.is_language(fn) or reach.is_language(owner) or _is_of_lmc(fn):
        return None
    if getattr(fn, "__name__", "") in ("__enter__", "__exit__", "__aenter__", "__aexit__"):
        return None
    if (isinstance(fn, type) and fn in _OWN_DATA) or isinstance(fn, types.MethodWrapperType | types.WrapperDescriptorType):
        return None
    if _is_builtin_tool(fn, owner) and not _calls_something(args, kwargs):
        return None
    if (fn is copy.copy or fn is copy.deepcopy) and len(args) == 1 and not kwargs and _copied_by_python(args[0], fn):
        return None  # a copy shares what it does not make anew, which that of a journal would not
    if any(fn is made for made in _MADE_AGAIN) or type(owner) in _TURNS:  # `in` would ask an object's `__eq__`
        return None
    name = getattr(fn, "__name__", "")
    if getattr(fn, "__module__", None) == "builtins" and name not in _OUTSIDE and not _calls_back(name, args, kwargs):
        return None
    if _makes_coroutine(fn) or (hostops.pure_function(fn) is not None and not _calls_something(args, kwargs)):
        return None
    return fn, (owner, *args) if codec.is_object(owner) else args, kwargs


_OWN_DATA = codec.DATA | {memoryview, type({}.keys()), type({}.values()), type({}.items()), re.Pattern, re.Match}
_OUTSIDE = frozenset({"print", "input", "open", "breakpoint", "exec", "eval", "__import__", "exit", "quit"})
"""Builtins that do something outside of the run, or may."""
_TURNS = frozenset({asyncio.Lock, asyncio.Semaphore, asyncio.BoundedSemaphore, asyncio.Timeout, type(threading.Lock()), type(threading.RLock()),
                    threading.Semaphore, threading.BoundedSemaphore})  # fmt: skip
"""What a run's own tasks and threads take turns by: entered and left again, it ends as it was."""
_MADE_AGAIN = (functools.partial, functools.wraps, functools.update_wrapper, asyncio.timeout, asyncio.timeout_at, asyncio.get_running_loop,
               asyncio.get_event_loop, threading.Lock, threading.RLock, *_TURNS)  # fmt: skip
_CHANGE_NOTHING = frozenset({
    asyncio.sleep, *[getattr(time, n) for n in ("sleep", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")],
    datetime.date.today, datetime.datetime.now, *[getattr(datetime.datetime, n) for n in ("today", "utcnow")], uuid.uuid1, uuid.uuid4, os.getenv, os.getcwd, os.urandom,
    *[getattr(random, n) for n in ("random", "randint", "randrange", "choice", "choices", "sample", "shuffle", "uniform", "gauss", "getrandbits")],
})  # fmt: skip
"""Functions of Python that only wait, look at the clock or draw lots: where nobody knows whether they were called, they are called again."""
_AWAITED_AGAIN = frozenset(
    fn.__code__ for fn in (hostops.anext_step, hostops.turns, hostops.aenter, hostops.aexit, asyncio.Lock.acquire, asyncio.Semaphore.acquire)
)
"""The code of coroutines that only iterate or wait, or enter and leave a `with`."""
_SORTS = (sorted, min, max, list.sort)
_CALL_BACK = frozenset({"sort", "sub", "subn", "sorted", "min", "max", "map", "filter", "iter"})
"""Methods of data and builtins that call a function they are handed. The others hold it or look at it."""
_OPERATIONS = frozenset(map(id, hostops.OPERATIONS.values()))


def _is_builtin_tool(fn: Any, owner: Any) -> bool:
    """Whether it is a method of data named by its class, such as `str.lower`, or one of Python's iterators and operators."""
    if getattr(fn, "__objclass__", None) in _OWN_DATA:
        return True
    module = getattr(owner if isinstance(owner, type) else fn, "__module__", None)
    return module in ("itertools", "operator", "_operator")


def _is_of_lmc(fn: Any) -> bool:
    return id(fn) in _OPERATIONS


def _calls_back(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return name in _CALL_BACK and _calls_something(args, kwargs)


def _calls_something(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(a, types.FunctionType | types.MethodType | functools.partial | HostFunction) for a in (*args, *kwargs.values()))


def _makes_coroutine(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn)


def _is_idempotent(fn: Any) -> bool:
    if isinstance(fn, types.FunctionType | types.BuiltinFunctionType | types.MethodType) and fn in _CHANGE_NOTHING:
        return True
    if type(getattr(fn, "__self__", None)) in (random.Random, random.SystemRandom):
        return True
    fn = getattr(fn, "__func__", fn)
    return isinstance(fn, HostFunction) and fn.idempotent


def _name(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None) or getattr(fn, "name", None) or type(fn).__qualname__
    return str(name).replace("<locals>.", "")


def _arguments_digest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """A check of a call's arguments: of what is not data, its class."""
    return crc32(codec.to_bytes([*map(_data_or_class, args), [[k, _data_or_class(v)] for k, v in kwargs.items()]]))


def _data_or_class(x: Any) -> Any:
    try:
        return codec.encode(x) if type(x) not in (set, frozenset) else sorted(map(repr, x))  # the order of a set is the process's
    except codec.NotData:
        return {codec.TAG: ["object", _kind(x)]}


def _kind(x: Any) -> str:
    """The class of an object, also of one that something else stands for."""
    return x.kind if isinstance(x, Again) else type(x).__qualname__


def _in_loop() -> bool:
    """Whether an event loop is running here: tasks of a program may make their calls in any order."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def shown_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call's arguments, for people."""
    text = ", ".join([*[_short(a) for a in args], *[f"{k}={_short(v)}" for k, v in kwargs.items()]])
    return text if len(text) <= 120 else text[:117] + "…"


def _short(x: Any) -> str:
    if type(x) is str and len(x) > 80:
        return repr(x[:77] + "…")
    return repr(x) if type(x) in (str, int, float, bool, bytes, type(None)) else f"{_repr(x):.80}"


def _repr(x: Any) -> str:
    """Never that of an object of the host, whose `__repr__` could do anything."""
    try:
        return repr(x) if type(x) in (list, tuple, dict, set) and codec.encode(x) is not None else f"<{_kind(x)}>"
    except codec.NotData:
        return f"<{_kind(x)}>"


_warned: set[tuple[str, str]] = set()


def _warn(message: str, loc: Loc | None) -> None:
    place = loc or Loc("<unknown>", 1)
    if (message, str(place)) not in _warned:
        _warned.add((message, str(place)))
        warnings.warn_explicit(message, CaptureWarning, place.file, place.line)


# -- opening ---------------------------------------------------------------------------------------------------------


def source_digest(fn: Any) -> str:
    """A hash of a function's source as Python reads it: comments and blank lines do not count; of its code where there is no source."""
    try:
        source = textwrap.dedent(inspect.getsource(fn))
        kept = [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in (tokenize.COMMENT, tokenize.NL)]
        text = "".join(kept)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        code = getattr(fn, "__code__", None)
        text = repr(None if code is None else (code.co_code, code.co_names, [c for c in code.co_consts if not isinstance(c, types.CodeType)]))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def header(function: Function, options: Options, backend: Backend, compiled: str, *, batch: bool) -> dict[str, Any]:
    """What a journal must be of, to be used for a call."""
    defaults = options.defaults(SamplingParams())
    changed = {f.name: codec.encode(getattr(defaults, f.name)) for f in fields(defaults) if getattr(defaults, f.name) != f.default}
    return {
        "kind": "batch" if batch else "run", "program": function.name, "source": function.digest, "compiled": compiled,
        "backend": backend.capabilities.name, "sampling": changed, "seed": options.seed,
    }  # fmt: skip


@contextmanager
def journaled(
    function: Function, options: Options, backend: Backend, bound: Sequence[inspect.BoundArguments], numbers: Sequence[int], fresh: Callable[[], int],
    *, batch: bool, compiled: str = "",
) -> Generator[Options]:  # fmt: skip
    """The options with the journal open and the seed that it has. Raises JournalError if it is of something else."""
    assert options.journal is not None and isinstance(options.journal, str)
    if options.stream:
        raise ParameterError("journal= with stream=True: a stream is not journaled; leave one out", loc=caller_loc())
    path = Path(options.journal)
    if batch:
        if os.path.isfile(path):
            raise JournalError(f"journal={str(path)!r}: a batch's journal is a directory, and this is a file", loc=caller_loc())
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise JournalError(f"journal={str(path)!r}: {getattr(error, 'strerror', None) or error}", loc=caller_loc()) from None
        path = path / "journal"
    elif os.path.isdir(path):
        raise JournalError(f"journal={str(path)!r}: a run's journal is a file, and this is a directory", loc=caller_loc())
    wanted = header(function, options, backend, compiled, batch=batch)
    try:
        journal = Journal.open(path, wanted, fresh)
    except JournalError as error:
        error.loc = caller_loc()
        raise
    try:
        _enter(journal, bound, numbers)
        with few_full_collections() if batch and journal.contents.finished(numbers) else nullcontext():
            yield replace(options, journal=journal, seed=journal.seed)
    finally:
        journal.close()


def _enter(journal: Journal, bound: Sequence[inspect.BoundArguments], numbers: Sequence[int]) -> None:
    """The runs of a call: new ones are written down, those of an earlier call must have the same arguments."""
    for arguments in bound:
        if len(arguments.arguments) < len(arguments.signature.parameters):
            arguments.apply_defaults()
    records = journal.contents.records
    new = [n for n, number in enumerate(numbers) if number not in records]
    if new:
        _begin(journal, [bound[n] for n in new], [numbers[n] for n in new])
    if len(new) == len(numbers):
        return
    for number, arguments in zip(numbers, bound, strict=True):
        known = records.get(number)
        if known is not None and (given := _beginning(journal, _given(arguments))) != known[0] and codec.to_bytes(given) != codec.to_bytes(known[0]):  # NaN
            of = f"item {number}" if journal.contents.header["kind"] == "batch" else "the run"
            raise JournalError(
                f"journal={str(journal.path)!r} is of other arguments: those of {of} are not what they were. Give the call what it was given "
                "before, or a journal of its own", loc=caller_loc())


def _begin(journal: Journal, bound: Sequence[inspect.BoundArguments], numbers: Sequence[int]) -> None:
    """New runs, written down together if their arguments are text."""
    names = list(bound[0].arguments)[1:]
    columns = list(zip(*[arguments.arguments.values() for arguments in bound], strict=True))[1:]
    if all(set(map(type, column)) == {str} and len(max(column, key=len)) < LARGEST // 8 // len(columns) for column in columns):  # at most 6 bytes a character
        journal.begin(numbers, names, columns)
        return
    for number, arguments in zip(numbers, bound, strict=True):
        journal.put(number, _beginning(journal, _given(arguments)))


def _given(arguments: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments of a run, but for its state."""
    given = dict(arguments.arguments)
    del given[next(iter(given))]
    return given


def _beginning(journal: Journal, given: Mapping[str, Any]) -> Record:
    """The record of a run's arguments, or of their digest if they are too large."""
    if set(map(type, given.values())) <= {str} and sum(map(len, given.values())) < LARGEST // 8:  # JSON has 6 bytes for a character at most
        return ["b", given, None]
    data = {name: _data_or_class(x) for name, x in given.items()}
    record = ["b", data, None]
    if len(journal.encode(record)) <= LARGEST:
        return record
    return ["b", None, hashlib.blake2b(codec.to_bytes(data), digest_size=12).hexdigest()]


def check_capturable(function: Function) -> Callable[..., Any]:
    """The program with hooks, which a journal needs to see its effects. Raises JournalError."""
    from lmc.frontend.hooks import hooks
    from lmc.frontend.instrument import CannotInstrument, instrument

    try:
        if not isinstance(function.func, types.FunctionType):
            raise CannotInstrument("it is not a plain Python function")
        return instrument(function.func, hooks)
    except CannotInstrument as error:
        raise JournalError(f"{function.described} cannot be journaled: {error}", loc=function.loc) from None

