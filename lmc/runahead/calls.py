"""Calls of `@lmc.pure` functions that are made ahead, on workers: once per argument and run. Python's equal call takes the result."""

from __future__ import annotations

import contextvars
import copy
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

from lmc.frontend.host import HostFunction
from lmc.observing import observer

WORKERS = 32
_PLAIN = (str, int, float, bool, bytes, type(None), complex)
MAX_CALLS = 256
"""Most calls of one run that are made ahead."""


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WORKERS, thread_name_prefix="lmc-pure")


class CallsAhead:
    """Pure calls made ahead for one run."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Set up; `wake` is called when a call ends, from its thread."""
        self._wake = wake
        self._made: dict[Hashable, Future[Any]] = {}
        self._python: set[Hashable] = set()  # those that Python has made itself: known to evaluations, and made again when Python makes them again
        self._lock = threading.Lock()  # guards beginning a call

    def __len__(self) -> int:
        return len(self._made)

    def begin(self, fn: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, Future[Any]] | None:
        """Return the key of a call of `fn` on plain data, beginning it unless it has begun; None if it cannot be made ahead."""
        key = _key(fn, args, kwargs)
        with self._lock:
            if key is None or (key not in self._made and len(self._made) >= MAX_CALLS):
                return None
            if (future := self._made.get(key)) is not None:
                return key, future
            context = contextvars.Context()  # it must not see the program's context variables
            if (watching := observer()) is not None:
                watching.carry(context)
            future = self._made[key] = _workers().submit(context.run, fn.plain, *copy.deepcopy(list(args)), **copy.deepcopy(dict(kwargs)))
        future.add_done_callback(lambda _: self._wake())
        return key, future

    def done(self, key: Hashable) -> bool:
        """Return whether a call is over."""
        future = self._made.get(key)
        return future is not None and future.done()

    def take(self, fn: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return or raise the outcome of Python's call: an equal call's, waiting for it, or that of a call of its own.

        Mutable results are copied; one that cannot be copied as data is handed out once.
        """
        key = _key(fn, args, kwargs)
        future = None if key is None else self._made.get(key)
        if future is None:
            return self._known(key, fn.plain(*args, **kwargs))
        if key in self._python or (future.done() and future.exception() is not None):
            return fn.plain(*args, **kwargs)  # so that an error has the program's own frames
        try:
            result = future.result()
        except Exception as error:
            if not future.done() or (not future.cancelled() and future.exception() is not error):  # raised here, by a signal's handler
                raise
            return fn.plain(*args, **kwargs)
        if is_data(result):
            return copy.deepcopy(result)
        self._made.pop(key, None)
        return result

    def _known(self, key: Hashable | None, result: Any) -> Any:
        """Keep what Python's own call gave, for evaluations, which would make it again. Return it."""
        if key is not None and len(self._made) < MAX_CALLS and is_data(result):
            future: Future[Any] = Future()
            future.set_result(copy.deepcopy(result))
            with self._lock:
                if self._made.setdefault(key, future) is future:
                    self._python.add(key)
        return result

    def close(self) -> None:
        """Close with the run: calls that have not begun are dropped."""
        with self._lock:
            made, self._made, self._wake = self._made, {}, lambda: None
        for future in made.values():
            future.cancel()


def _key(fn: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable | None:
    """Return the key that equal calls share: the function itself, and equal arguments of equal types. None if the arguments are not data."""
    given = [*args], dict(kwargs)
    return (id(fn), repr(given)) if is_data(given) else None


def is_data(x: Any) -> bool:
    """Return whether an object consists of plain data only."""
    try:
        if type(x) is dict:
            return all(map(is_data, (*x, *x.values())))
        return type(x) in _PLAIN or (type(x) in (list, tuple) and all(map(is_data, x)))
    except RecursionError:  # it holds itself
        return False
