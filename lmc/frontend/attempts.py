"""Attempts at a call of host code: retries, and checking with the outside world whether it happened."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from lmc.errors import ArgumentError, ParameterError


@dataclass(frozen=True, slots=True)
class Done:
    """Return value of a `check` of `lmc.host` for a call that happened: the result that the call gave, or would have
    given."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry policy of a call of `lmc.host(retry=…)`.

    times   further attempts after the first
    wait    seconds before the second attempt; before each further one `factor` times as many, at most `most`
    on      exceptions after which it may be retried; None: `ConnectionError` and `TimeoutError`,
            if the function is idempotent or has a `check`

    Raises ParameterError for impossible numbers.
    """

    times: int = 3
    wait: float = 1.0
    factor: float = 2.0
    most: float = 60.0
    on: type[Exception] | tuple[type[Exception], ...] | None = None

    def __post_init__(self) -> None:
        if not (type(self.times) is int and self.times >= 1 and self.wait >= 0 and self.factor >= 1 and self.most >= 0):
            raise ParameterError(f"{self}: times is 1 or more, wait and most are seconds, factor is 1 or more")
        if self.on is not None and not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in self.kinds):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ParameterError(f"{self}: on= takes classes of exceptions")

    @property
    def kinds(self) -> tuple[type[Exception], ...]:
        """Return the exceptions after which a call is made again."""
        return (ConnectionError, TimeoutError) if self.on is None else self.on if isinstance(self.on, tuple) else (self.on,)

    def pause(self, failed: int) -> float:
        """Return the seconds to wait after so many failed attempts."""
        try:
            return min(self.most, self.wait * self.factor ** (failed - 1))
        except OverflowError:
            return self.most


class Attempts:
    """The attempts at a call, which a journal records (lmc/durable/calls.py). `failed`: number of known failures."""

    def __init__(self, failed: int = 0) -> None:
        self.failed = failed

    def attempt_failed(self, error: Exception) -> None:
        """Note that an attempt has failed and another one may be made."""
        self.failed += 1

    def attempt(self) -> None:
        """Note that another attempt begins. Raises JournalError if that cannot be written to disk."""


NOTED: ContextVar[Attempts | None] = ContextVar("lmc_attempts", default=None)
"""The attempts at the recorded call that is made here."""


def _noted() -> Attempts:
    """Return the record of attempts; a call made within an attempt is another call."""
    noted = NOTED.get()
    NOTED.set(None)
    return noted or Attempts()


Check = Callable[[], Any]
"""Checks whether a call happened: returns Done, or None; or an awaitable of that."""


def attempted(call: Callable[[], Any], retry: Retry | None, check: Check | None, name: str) -> Any:
    """Return the result of a call, retried as `retry` says."""
    if retry is None:
        return call()
    noted = _noted()
    while True:
        try:
            return call()
        except retry.kinds as error:
            if noted.failed >= retry.times:
                raise
            happened = None if check is None else answer_of(check(), name)
            if happened is not None:
                return happened.result
            noted.attempt_failed(error)
        time.sleep(retry.pause(noted.failed))
        noted.attempt()


async def aattempted(call: Callable[[], Awaitable[Any]], retry: Retry | None, check: Check | None, name: str) -> Any:
    """As `attempted`, for async functions."""
    if retry is None:
        return await call()
    noted = _noted()
    while True:
        try:
            return await call()
        except retry.kinds as error:
            if noted.failed >= retry.times:
                raise
            happened = None if check is None else await aanswer_of(check(), name)
            if happened is not None:
                return happened.result
            noted.attempt_failed(error)
        await asyncio.sleep(retry.pause(noted.failed))
        noted.attempt()


def answer_of(found: Any, name: str) -> Done | None:
    """Return a check's answer. Raises ArgumentError for anything but Done and None."""
    if inspect.isawaitable(found):
        found = asyncio.run(_awaited(found))
    if found is not None and not isinstance(found, Done):
        raise ArgumentError(f"the check of {name}() returned {found!r:.80}: lmc.Done(result) if the call happened, None if it did not")
    return found


async def aanswer_of(found: Any, name: str) -> Done | None:
    return answer_of(await found if inspect.isawaitable(found) else found, name)


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found
