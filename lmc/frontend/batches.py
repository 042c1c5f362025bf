"""Batches: a program run on many items, as many at once as the backend can use. An item that has not begun is only its
arguments.

Runs of a closed program (lmc/frontend/closed.py) share one thread (lmc/frontend/fibers.py); one that calls what is not known has
a thread while it runs, and one at a time has the turn (lmc/frontend/flights.py); an `async def` program is a task of one loop.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, closing, contextmanager, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

from lmc.config import settings
from lmc.errors import ParameterError
from lmc.frontend import aio
from lmc.frontend.expressions import caller_loc
from lmc.frontend.fibers import Fibers
from lmc.frontend.flights import IN_FLIGHT, MAX_THREADS, Flights
from lmc.frontend.live import LiveEmitter, Run
from lmc.observing import ObservedBatch, observer
from lmc.waiting import TurnLimit, metered
from lmc.warning_filters import ignored

if TYPE_CHECKING:
    from lmc.backend.api.batches import BatchQueue
    from lmc.frontend.state import State

FIBERS_IN_FLIGHT = 4096
"""Programs of a batch that run at once by default, if they share a thread."""

Bound = inspect.BoundArguments


class Runnable(Protocol):
    """A program, as a batch runs it."""

    name: str
    is_async: bool

    def _call(self, state: State, bound: Bound) -> None: ...
    async def _acall(self, state: State, bound: Bound) -> None: ...
    def _ended(self, state: State, error: BaseException | None) -> BaseException | None: ...


class PendingBatch:
    """A batch that is about to run, once.

    make   makes the state of an item, by its index, when it begins
    limit  how many run at once; with 1, a plain program runs on the thread that takes the states
    fibers  they share one thread
    desk   where its requests go if they have a deadline
    """

    def __init__(
        self, program: Runnable, items: Sequence[Bound], make: Callable[[int], State], *, limit: int = IN_FLIGHT, fibers: bool = False,
        progress: bool = False, desk: BatchQueue | None = None,
    ) -> None:  # fmt: skip
        self._program, self._make, self._limit, self._fibers, self._progress = program, make, limit, fibers, progress
        self._items: list[Bound | None] = list(items)
        self._desk = desk
        if desk is not None:
            desk.shows = progress
        self._running: dict[int, State] = {}
        self._stopped = False
        self._bar: Any = None
        self._observed: ObservedBatch | None = None
        self._drivers: tuple[asyncio.Task[Any] | None, ...] = ()  # tasks of the loop that belong to no item

    # -- what it gives

    def in_order(self, *, here: bool = False) -> Iterator[State]:
        """Yield the state of each item when it and those before it are done. Those that failed have `failure`. See
        `completed`."""
        early: dict[int, State] = {}
        next_ = 0
        with closing(self.completed(here=here)) as done:
            for place, state in done:
                early[place] = state
                del state  # lets the consumer free each state
                while next_ in early:
                    yield early.pop(next_)
                    next_ += 1

    def completed(self, *, here: bool = False) -> Generator[tuple[int, State]]:
        """Yield index and state of each item as soon as it is done. Closing it cancels the running ones, and nothing
        more begins.

        here  the caller does nothing else until it has the last one, so its own thread may run the programs
        """
        self._open()
        with self._waited_for():
            if self._program.is_async:
                with closing(aio.iterate(self._on_loop, f"lmc-{self._program.name}")) as found:
                    yield from found
            elif self._limit == 1:
                share = TurnLimit(self._desk, 1, len(self._items))
                for place in range(len(self._items)):
                    done = copy_context().run(self._item, place)
                    share.done()
                    yield place, done
                    del done
            else:
                with closing(self._flights(here).results(self._stop)) as found:
                    yield from found

    async def acompleted(self) -> AsyncGenerator[tuple[int, State]]:
        """As `completed`, for the running loop, on which the tasks of an async program run."""
        self._open()
        with self._waited_for():
            async with aclosing(self._on_loop() if self._program.is_async else self._flights(False).aresults(self._stop)) as found:
                async for done in found:
                    yield done

    @contextmanager
    def _waited_for(self) -> Generator[None]:
        """Record that the states are being consumed."""
        try:
            with nullcontext() if self._desk is None else self._desk.waited_for():
                yield
        finally:
            self._close()

    # -- plain programs

    def _flights(self, here: bool) -> Flights[State] | Fibers[State]:
        name = f"lmc-{self._program.name}"
        if self._fibers:
            return Fibers(self._item, len(self._items), limit=self._limit, name=name, here=here, meter=self._desk)
        return Flights(self._item, len(self._items), limit=self._limit, name=name, meter=self._desk)

    def _item(self, place: int) -> State:
        if self._desk is not None:
            metered.set(self._desk)  # in a context of its own
        state, bound = self._begin(place)
        try:
            with self._within():
                self._program._call(state, bound)  # pyright: ignore[reportPrivateUsage]
            state.sync()
        except Exception as error:
            state.failure = error
        return self._end(place, state)

    # -- async programs

    async def _on_loop(self) -> AsyncGenerator[tuple[int, State]]:
        done: asyncio.Queue[tuple[int, State] | BaseException] = asyncio.Queue()
        places = iter(range(len(self._items)))
        share = TurnLimit(self._desk, self._limit, len(self._items))

        async def serve() -> None:
            try:
                for place in places:
                    state, bound = self._begin(place)
                    task = asyncio.create_task(self._aitem(place, state, bound))
                    if (journal := _run(state).journal) is not None:
                        journal.drives(*self._drivers, task)
                    done.put_nowait((place, await task))
                    share.done()
                    del state, bound, task
            except BaseException as error:  # raised where the states are taken
                done.put_nowait(error)
                raise

        servers = [asyncio.create_task(serve()) for _ in range(min(self._limit, len(self._items)))]
        self._drivers = asyncio.current_task(), *servers
        try:
            for _ in range(len(self._items)):
                found = await done.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
                del found
        finally:
            share.give_up()
            self._stop()
            for server in servers:
                server.cancel()
            await asyncio.gather(*servers, return_exceptions=True)

    async def _aitem(self, place: int, state: State, bound: Bound) -> State:
        if self._desk is not None:
            metered.set(self._desk)  # in the context of its task
        try:
            with self._within():
                await self._program._acall(state, bound)  # pyright: ignore[reportPrivateUsage]
            await aio.after(aio.unanswered_in(state.ctx), lambda: None)
        except Exception as error:
            state.failure = error
        except asyncio.CancelledError as error:
            if aio.being_cancelled():
                raise
            state.failure = error
        return self._end(place, state)

    # -- one item

    def _begin(self, place: int) -> tuple[State, Bound]:
        bound, self._items[place] = self._items[place], None
        assert bound is not None, "an item begins once"
        state = self._running[place] = self._make(place)
        if self._stopped:  # stopped just now
            self._cancel(state)
        return state, bound

    def _end(self, place: int, state: State) -> State:
        state.failure = self._program._ended(state, state.failure)  # pyright: ignore[reportPrivateUsage]
        del self._running[place]
        assert isinstance(state.emitter, LiveEmitter), "a batch runs live"
        state.emitter.tidy()  # the states of large batches are kept
        if self._bar is not None:
            self._bar.update()
        return state

    def _stop(self) -> None:
        """Stop: the rest will not be read."""
        self._stopped = True
        for state in tuple(self._running.values()):
            self._cancel(state)

    def _cancel(self, state: State) -> None:
        assert isinstance(state.emitter, LiveEmitter), "a batch runs live"
        state.emitter.cancel()
        if state.emitter.run.journal is not None and not self._program.is_async:  # a task is ended by its loop, and may clean up
            state.emitter.run.journal.cancelled = True

    def _within(self) -> AbstractContextManager[object]:
        """Enter an item's observation, if the batch is observed."""
        return nullcontext() if self._observed is None else self._observed.item()

    def _open(self) -> None:
        if (watching := observer()) is not None:
            self._observed = watching.batch(self._program.name, len(self._items))
        if self._progress:
            self._bar = _progress_bar(len(self._items))

    def _close(self) -> None:
        if self._observed is not None:
            self._observed.end()
        if self._bar is not None:
            self._bar.close()


def failure_of(state: State) -> BaseException | None:
    """Return what an item's program raised, or the error of an answer in its prompt that was never read, such as an
    unknown model name."""
    assert isinstance(state.emitter, LiveEmitter), "a batch runs live"
    return state.failure or state.emitter.unread_error(state.ctx)


def _run(state: State) -> Run:
    assert isinstance(state.emitter, LiveEmitter), "a batch runs live"
    return state.emitter.run


def in_flight(wanted: Any, fibers: bool, waves: bool = False) -> int:
    """Return how many programs run at once, by `num_threads=`. `waves`: the requests of all of them are submitted
    together."""
    if wanted == "auto" and waves and settings().host_threads is None:
        return sys.maxsize if fibers else MAX_THREADS
    if wanted == "auto":
        return settings().host_threads or (FIBERS_IN_FLIGHT if fibers else IN_FLIGHT)
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ParameterError(f"num_threads={wanted!r}: must be 'auto' or a number of threads", loc=caller_loc())
    return wanted


def _progress_bar(total: int) -> Any:
    with ignored(Warning, "IProgress not found"):  # in a notebook without ipywidgets the bar is text, which is no fault of the program's
        from tqdm.auto import tqdm

    return tqdm(total=total, disable=sys.stderr is None)  # as under pythonw
