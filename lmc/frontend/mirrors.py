"""Mirrors: the state that others watch while its program runs on another thread, with a state of its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from lmc.frontend.state import State
from lmc.frontend.streaming import Progress


class Mirror(Progress):
    """The `progress` of a running program's own state: it is mirrored by another state, which others watch.

    The program keeps its own state alive, and only the watchers keep the other: when they drop it, the run is
    abandoned.
    """

    def __init__(self, own: State, watched: weakref.ref[State]) -> None:
        super().__init__()
        self._own, self.watched = own, watched
        self._held: dict[str | None, Any] = {}  # mirrored values: the watcher may assign variables of its own

    def elsewhere(self) -> bool:
        return False

    def notify(self) -> None:
        """Record that the program appended to its prompt."""
        watched = self.watched()
        if watched is not None:
            self._publish(watched)
            assert watched.progress is not None
            watched.progress.notify()

    def finish(self, error: BaseException | None) -> None:
        """Record the end of the run."""
        watched, own = self.watched(), self._own
        if watched is None:
            return
        self._publish(watched)
        watched.asked, watched.role, watched.previous, watched.ordinal = own.asked, own.role, own.previous, own.ordinal
        watched.forks, watched.calls = own.forks, own.calls
        if error is None:
            watched.ret_value = watched if (value := own.ret_value) is own else value
        assert watched.progress is not None
        watched.progress.finish(error)

    def _publish(self, watched: State) -> None:
        own = self._own
        watched.ctx = own.ctx
        for name, held in tuple(own.variables.items()):
            if self._held.get(name, own) is not held:
                self._held[name] = watched.variables[name] = held
        watched.scopes, watched.types = own.scopes, own.types


def on_abandoned(watched: State, stop: Callable[[], None]) -> None:
    """Call `stop`, on a thread of its own, once `watched` is garbage while its program still runs."""
    progress = watched.progress
    assert progress is not None

    def dropped() -> None:  # runs anywhere, also where locks are held
        if not progress.done:
            threading.Thread(target=stop, name="lmc-stop", daemon=True).start()

    weakref.finalize(watched, dropped).atexit = False


def watch(own: State) -> tuple[State, Mirror]:
    """Return a state that mirrors `own` while its program runs on another thread, and the object that updates it."""
    state = State(own.emitter, own.ctx, stream=own.stream, asked=own.asked, name=own.name)
    state.progress = Progress()
    mirror = own.progress = Mirror(own, weakref.ref(state))
    return state, mirror
