"""Mask prefetching: the next rows and forced runs of answers' constraints are built while the model computes.

    answers are in     s            rows of s            needed at the next sample
                       │ any token
                       ▼
                       t            forced runs of t     needed right after it
                       │ forced
                       ▼
                       u            rows of u            needed one pass later; and so once more, when nothing is urgent

So a step finds what it needs, and builds anything missing itself: results never depend on this thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from lmc.errors import ConstraintError
from lmc.fsm.arrays import ArrayDFA
from lmc.fsm.canonical_rows import CanonicalRows
from lmc.fsm.forced import ForcedTokens
from lmc.fsm.tokens import TokenAutomaton

log = logging.getLogger("lmc.engine")

_LINGERS = 1.0  # seconds that the thread waits for more work
_MOST = 4096  # most states of one constraint to prefetch
_RUNS, _ROWS = 256, 32  # and after one state: with forced text, and without


@dataclass(eq=False)
class Prefetched:
    """One constraint, and its states that were or will be visited."""

    automaton: TokenAutomaton
    forced: ForcedTokens | None
    canonical: CanonicalRows | None = None
    urgent: set[int] = field(default_factory=set)
    later: set[int] = field(default_factory=set)


class MaskPrefetcher:
    """One thread for all constraints of an engine; it ends by itself when there is nothing to do. Thread-safe."""

    def __init__(self) -> None:
        self._urgent: deque[tuple[Prefetched, int]] = deque()  # states that answers are in
        self._later: deque[tuple[Prefetched, int]] = deque()  # states that they may be in after one more token
        self._changed = threading.Condition()
        self.thread: threading.Thread | None = None  # that builds, if there is one now: its CPU time is not the engine's
        self._working = False  # on an entry taken from either queue

    def request(self, ahead: Prefetched, state: int) -> None:
        """Request the data for an answer in `state`, after all forced tokens, which waits for its next token."""
        if state in ahead.urgent or len(ahead.urgent) >= _MOST:
            return
        ahead.urgent.add(state)
        self._urgent.append((ahead, state))
        if not self._working:  # otherwise it checks again before it sleeps
            self._wake()

    def _wake(self) -> None:
        with self._changed:
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="lmc-mask-prefetcher", daemon=True)
                self.thread.start()
            self._changed.notify_all()

    def wait_idle(self) -> None:
        """Wait until everything requested is built."""
        with self._changed:
            self._changed.wait_for(lambda: self.idle)

    def close(self) -> None:
        """Drop work that has not begun, and wait for the rest. `want` can be called again."""
        with self._changed:
            self._urgent.clear()
            self._later.clear()
        self.wait_idle()

    @property
    def idle(self) -> bool:
        """Return whether everything requested is built."""
        return self._is_empty and not self._working

    @property
    def _is_empty(self) -> bool:
        return not self._urgent and not self._later

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                self._build(*work)
        except Exception:
            log.exception("building ahead failed; what answers need of their constraints is built when they need it")
            with self._changed:
                self._urgent.clear()
                self._later.clear()
                self._working, self.thread = False, None
                self._changed.notify_all()

    def _next(self) -> tuple[Prefetched, int, bool] | None:
        """Return the next work, and whether an answer waits for it; None when it is time to end."""
        with self._changed:
            self._working = False
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._is_empty, _LINGERS):
                self.thread = None
                return None
            self._working = True
            if self._urgent:
                return *self._urgent.popleft(), True
            return *self._later.popleft(), False

    def _build(self, ahead: Prefetched, state: int, urgent: bool) -> None:
        automaton = ahead.automaton
        try:
            if automaton.is_done(state):
                return
            if not isinstance(automaton.dfa, ArrayDFA):  # prefetching would create states that no answer reaches
                automaton.row(state).list_ids()
                if ahead.canonical is not None:
                    ahead.canonical.prepare(state)
                return
            behind = automaton.build(state)
            if ahead.canonical is not None:
                ahead.canonical.prepare(state)
        except ConstraintError:
            return  # the step that needs that row builds it again, and reports the error
        forcing = automaton.dfa.singular[behind]
        for target in (*behind[forcing][:_RUNS].tolist(), *behind[~forcing][:_ROWS].tolist()):
            if ahead.forced is not None:
                target = ahead.forced.prepare(target).state
                time.sleep(0)  # lets the engine's thread in, between steps of up to a millisecond
            if urgent and target not in ahead.later:
                ahead.later.add(target)
                self._later.append((ahead, target))
