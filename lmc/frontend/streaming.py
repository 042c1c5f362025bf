"""Streams of text from a state: pieces in program order, while a program that runs elsewhere goes on.

A cursor walks the prompt's nodes from the last one it has shown to the newest, and the deltas of the answer at its
position. Polling it never waits, so that one cursor serves threads and event loops.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Protocol

from lmc.backend.results import Result
from lmc.errors import ProgramError
from lmc.forking import REMEDY, belongs_here
from lmc.frontend.emitter import Ctx, Emitter, Scoped, Stored, Taken
from lmc.prompt import Excerpt, Piece, Prompt
from lmc.segments import Given, Image, Mark, plain
from lmc.tracebacks import users_frames
from lmc.waiting import Signal


class Progress:
    """Progress of a running program, for its watchers: change notifications, and the outcome."""

    def __init__(self) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], None]] = []
        belongs_here(self)

    def forked(self, parent: int) -> None:
        """End the run in a child of fork(): its thread is the parent's."""
        self._lock, self._watchers = threading.Lock(), []
        if self.elsewhere() and not self.done:
            self.finish(ProgramError(f"the program of this stream runs in process {parent}, of which this one is a fork: {REMEDY}"))

    def finish(self, error: BaseException | None) -> None:
        self.error, self.done = error, True
        self.notify()

    def elsewhere(self) -> bool:
        """Return whether the program runs elsewhere, so that it can be waited for."""
        return True

    def notify(self) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for notify in watchers:
            notify()

    def watch(self, notify: Callable[[], None]) -> None:
        with self._lock:
            self._watchers.append(notify)

    def unwatch(self, notify: Callable[[], None]) -> None:
        with self._lock:
            self._watchers.remove(notify)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` or the end of the run."""
        changed = Signal()
        self.watch(changed.set)
        try:
            while not self.done and not ready():
                changed.wait()
                changed.clear()
        finally:
            self.unwatch(changed.set)


class StateView(Protocol):
    """A state as streams, displays and reports read it."""

    ctx: Ctx
    variables: dict[str | None, Any]
    scopes: Mapping[str, tuple[Scoped, ...]]
    progress: Progress | None
    failure: BaseException | None
    _value: Any
    emitter: Emitter
    asked: list[Any]
    name: str
    stream: str

    def __getitem__(self, name: str | None) -> Any: ...
    def text_iter(self) -> Iterator[str]: ...


class _Cursor:
    """Position in a state's text, or in one of its variables, up to which it has been shown."""

    def __init__(self, state: StateView, name: str | None, notify: Callable[[], None]) -> None:
        self._state, self._name, self._notify = state, name, notify
        self._last: Prompt | None = None  # shown up to and including this node
        self._since: Prompt | None = None  # of a variable that is a scope
        self._queue: deque[Prompt] = deque()
        self._answer: Result | None = None  # the answer that is being shown
        self._take: Callable[[str], str] | None = None  # the part of the answer to show: known only when it is complete
        self._deltas = self._length = 0  # deltas and characters of it shown
        self._found = name is None
        self._variable: Any = None

    def poll(self) -> tuple[list[str], bool]:
        """Return new pieces, and whether they are the last; raise the error of an answer or the program."""
        progress = self._state.progress
        # read first, so that everything before the end is seen below
        ended = progress is None or progress.done or not progress.elsewhere()
        shown: list[str] = []
        if not self._found and not self._find(ended):
            return shown, False
        while self._show_answer(shown):
            if self._queue or self._advance():
                self._show_node(self._queue.popleft(), shown)
            elif not self._complete(ended):
                return shown, False
            else:
                error = progress.error if progress is not None and self._name is None else None
                if error is not None and not shown:
                    raise error
                return shown, error is None
        return shown, False

    def meta(self) -> Any:
        """Return the meta info of the shown variable, as far as it is known: for a growing answer,
        log-probabilities."""
        answer = self._variable.answer if isinstance(self._variable, Taken) else self._variable
        if not isinstance(answer, Result):
            return {}
        return answer.output().meta if answer.done else answer.scored(0, self._deltas).meta

    def _find(self, ended: bool) -> bool:
        state, name = self._state, self._name
        assert name is not None
        if state.scopes.get(name):
            self._variable = state.scopes[name][-1]
        elif name in state.variables:
            self._variable = state.variables[name]
        elif ended:
            state[name]  # raises: unknown, or the program's error
        else:
            return False
        self._found = True
        if isinstance(self._variable, Stored) and _is_as_answered(self._variable):  # the program has read it, sooner or later than this
            self._variable = self._variable.source
        if isinstance(self._variable, Result):
            self._watch(self._variable)
        elif isinstance(self._variable, Taken):
            self._watch(self._variable.answer, self._variable.take)
        elif isinstance(self._variable, Scoped):
            self._since = self._last = self._variable.since
        else:
            self._queue.append(Prompt(None, (str(state[name]),)))
        return True

    def _end(self) -> Prompt | None:
        """Return the newest node to show; None for text that is not made of nodes."""
        if self._name is None:
            return self._state.ctx
        return None if self._since is None else (self._variable.until or self._state.ctx)

    def _complete(self, ended: bool) -> bool:
        if self._name is None:
            return ended
        return self._since is None or self._variable.until is not None or ended

    def _advance(self) -> bool:
        """Queue the nodes after the last one shown; return False if there are none."""
        end = self._end()
        node, fresh = end, list[Prompt]()
        while node is not None and node is not self._last:
            fresh.append(node)
            node = node.parent
        if node is None and self._last is not None:  # an append that raised was undone
            kept = set(map(id, fresh))
            while self._last is not None and id(self._last) not in kept:
                self._last = self._last.parent
            return self._advance() if fresh else False
        self._queue.extend(reversed(fresh))
        self._last = end
        return bool(fresh)

    def _show_node(self, node: Prompt, shown: list[str]) -> None:
        for part in node.parts:
            if isinstance(part, Excerpt):
                assert len(node.parts) == 1, "an excerpt is a node of its own"
                self._watch(part.result, part.take)
            elif text := _visible(part):
                shown.append(text)
        if node.result is not None:
            self._watch(node.result)

    def _watch(self, answer: Result, take: Callable[[str], str] | None = None) -> None:
        self._answer, self._take, self._deltas, self._length = answer, take, 0, 0
        notify = self._notify  # not `self`: a pending answer must not keep alive a state that its watchers dropped
        answer.on_change(lambda _: notify())

    def _show_answer(self, shown: list[str]) -> bool:
        """Show the rest of the current answer that has arrived; return whether it is complete."""
        answer = self._answer
        if answer is None:
            return True
        done = answer.done  # read first: deltas come before the end
        deltas = answer.deltas if self._take is None else ()
        while self._deltas < len(deltas):
            shown.append(deltas[self._deltas])
            self._length += len(deltas[self._deltas])
            self._deltas += 1
        if not done:
            return False
        if answer.error is not None and shown:
            return False  # text before the error comes first; the next poll raises it
        text = answer.output().text
        rest = text[self._length :] if self._take is None else self._take(text)
        if rest:
            shown.append(rest)
        self._answer = None
        return True


def _visible(part: Piece) -> str:
    if isinstance(part, Excerpt):
        return part.text() if part.result.done and part.result.error is None else "…"
    return "" if isinstance(part, (Mark, Image, Given)) else plain((part,))


def _check(state: StateView) -> None:
    if not isinstance(state.ctx, Prompt):
        raise TypeError("a state that is evaluated, and not run, has no stream of text")


def _is_as_answered(held: Stored) -> bool:
    """Return whether a list under a name is still the model's unmodified answer."""
    value, source = held.value, held.source
    return type(value) is list and isinstance(source, Result) and source.done and source.output().value == value


def text_iter(state: StateView, name: str | None) -> Iterator[str]:
    """Yield pieces of a state's text, or of one variable, as they arrive; waits between them."""
    _check(state)
    return _pieces(state, name)


@users_frames
def _pieces(state: StateView, name: str | None) -> Iterator[str]:
    changed = Signal()
    cursor = _Cursor(state, name, changed.set)
    if state.progress is not None:
        state.progress.watch(changed.set)
    try:
        while True:
            changed.clear()
            shown, last = cursor.poll()
            yield from shown
            if last:
                return
            if not shown:
                changed.wait()
    finally:
        if state.progress is not None:
            state.progress.unwatch(changed.set)


async def text_async_iter(state: StateView, name: str | None, with_meta: bool) -> AsyncIterator[Any]:
    """As `text_iter`, without blocking the event loop or a thread while it waits."""
    _check(state)
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(changed.set)

    cursor = _Cursor(state, name, notify)
    if state.progress is not None:
        state.progress.watch(notify)
    try:
        while True:
            changed.clear()
            shown, last = cursor.poll()
            for piece in shown:
                yield (piece, cursor.meta()) if with_meta else piece
            if last:
                return
            if not shown:
                await changed.wait()
    finally:
        if state.progress is not None:
            state.progress.unwatch(notify)


def so_far(ctx: Any, limit: int = 60) -> str:
    """Return a prompt's text so far without waiting, `…` for missing answers and `[failed]` for failed ones; none while tracing."""
    if not isinstance(ctx, Prompt):
        raise TypeError("a state that is evaluated, and not run, has no text to show")
    text, node = "", ctx
    while node is not None and len(text) <= limit:
        answer = node.result
        here = "".join(map(_visible, node.parts))
        if answer is not None:
            here += "…" if not answer.done else "[failed]" if answer.error is not None else answer.output().text
        text, node = here + text, node.parent
    return text if len(text) <= limit else "…" + text[-limit:]
