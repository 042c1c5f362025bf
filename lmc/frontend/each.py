"""`forks.each(body)`: a body of Python for each fork, all at once, each with the addresses of its own fork.

While a body runs, its fork is the state from which sub-programs inherit, so its requests depend on the fork alone and
not on the order in which bodies finish.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lmc.errors import ArgumentError, ParameterError, ProgramError
from lmc.frontend import aio
from lmc.frontend.active import ACTIVE, TASK, new_body
from lmc.frontend.emitter import LiveRun
from lmc.frontend.expressions import caller_loc
from lmc.frontend.flights import IN_FLIGHT, Flights
from lmc.waiting import in_event_loop

if TYPE_CHECKING:
    from lmc.frontend.streaming import StateView

Outcome = tuple[Any, BaseException | None]


def each(forks: Sequence[StateView], body: Callable[..., Any], items: Sequence[Iterable[Any]]) -> Any:
    """Return the results of `body(fork, item, …)` for each fork, in order; for an `async def` body, a coroutine of
    them.

    When all have ended, raises the first exception in the order of the forks, with a note of the others.
    """
    if not callable(body):
        raise ArgumentError(f"forks.each(body) takes a function of a fork, not {body!r}", loc=caller_loc())
    given = [tuple(of) for of in items]
    for of in given:
        if len(of) != len(forks):
            raise ParameterError(f"forks.each(…): {len(of)} items for {len(forks)} forks", loc=caller_loc())
    calls = list(zip(forks, *given, strict=True))
    if not aio.is_async(body):
        return _results(_on_threads(body, calls))
    if not in_event_loop():
        raise ProgramError("forks.each(…) of an `async def` body is awaited in an `async def` program; here give it a plain function", loc=caller_loc())
    return _awaited(body, calls)


def _on_threads(body: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Outcome]:
    outcomes: list[Outcome] = [(None, None)] * len(calls)
    flights = Flights(lambda i: _outcome(body, calls[i]), len(calls), limit=1 if _in_order(calls) else IN_FLIGHT, name="lmc-each")
    for i, outcome in flights.results(lambda: _interrupted(calls)):
        outcomes[i] = outcome
    return outcomes


def _outcome(body: Callable[..., Any], call: tuple[Any, ...]) -> Outcome:
    """Run a body in a context of its own; return its outcome."""
    ACTIVE.set(call[0])
    TASK.set(new_body(call[0]))
    try:
        return body(*call), None
    except Exception as error:
        return None, error


def _interrupted(calls: Sequence[tuple[Any, ...]]) -> None:
    """Cancel pending requests if the run has been ended, and not only the task in which it waits here."""
    emitter = calls[0][0].emitter
    if isinstance(emitter, LiveRun) and not isinstance(sys.exception(), asyncio.CancelledError):
        emitter.cancel()


async def _awaited(body: Callable[..., Coroutine[Any, Any, Any]], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    async def one(call: tuple[Any, ...]) -> Any:
        ACTIVE.set(call[0])
        if (task := TASK.get()) is not None:
            task.fork = call[0]
        return await body(*call)

    if _in_order(calls):
        return [await asyncio.create_task(one(call)) for call in calls]
    found = await asyncio.gather(*[asyncio.create_task(one(call)) for call in calls], return_exceptions=True)
    return _results([(None, x) if isinstance(x, BaseException) else (x, None) for x in found])


def _in_order(calls: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether bodies run one after another: in a journaled run, whose effects have an order."""
    emitter = calls[0][0].emitter if calls else None
    return isinstance(emitter, LiveRun) and emitter.is_journaled


def _results(outcomes: Sequence[Outcome]) -> list[Any]:
    errors = [error for _, error in outcomes if error is not None]
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"another fork has raised {type(other).__name__}: {other}")
        raise errors[0]
    return [value for value, _ in outcomes]
