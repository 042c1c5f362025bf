"""Reads of answers by tasks and threads of a journaled program: the order in which these went on with them is in the journal.

Known answers are there at once when a run is resumed. Without that order, tasks that share a queue, a list or a lock would come to it in another one, and
to other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from lmc.backend.results import Result
from lmc.durable.calls import JournaledCalls
from lmc.durable.groups import Ask
from lmc.frontend import aio
from lmc.frontend.active import TASK
from lmc.frontend.suspending import awaited
from lmc.waiting import in_event_loop


class OrderedReads:
    """The reads of one run. The first read of each answer counts."""

    def __init__(self, journal: JournaledCalls) -> None:
        self._journal, self._read = journal, set[Ask]()

    def wait(self, results: Sequence[Result], wait: Callable[[], None]) -> None:
        """Wait for answers by `wait`, and for the turn of the task that reads them."""
        asked = [(x, x.checked[2]) for x in results if x.checked is not None and x.checked[0] is self._journal] if self._counts() else ()
        new = [(result, place) for result, place in asked if place not in self._read]
        if not new:
            return wait()
        if self._journal.on_threads:
            self._on_thread(new[0][1], wait)
        elif self._in_turn(*new[0]):
            wait()
        else:
            self._note(new[0][1], wait)
        self._read.update(place for _, place in new)

    def _counts(self) -> bool:
        """Return whether what the program does next may depend on when the answers come."""
        return self._journal.on_threads or ((TASK.get() is not None or self._journal.is_timed) and in_event_loop())

    def _on_thread(self, place: Ask, wait: Callable[[], None]) -> None:
        """Wait, and for the turn of this thread."""
        effects = self._journal.known_effects()
        effects.threads.leave()
        read = effects.next_read(place)
        wait()
        effects.take_turn(read)
        if read is None:
            self._journal.journal.put(self._journal.item, ["w", *place, None])

    def _in_turn(self, result: Result, place: Ask) -> bool:
        """Wait for the turn of a known read; return whether it is one."""
        effects = self._journal.known_effects()
        read = effects.next_read(place)
        if read is None and result.done and self._journal.resumed:  # the answer was there when the run was cut off, and nothing had gone on with it
            awaited(effects.behind_known())
        while read is not None and read.cancelled:
            awaited(effects.cancelled_again(read))
            read = effects.next_read(place)
        if read is not None and read.suspended:
            awaited(effects.in_turn(read))
        elif read is not None:
            effects.come_past(read)
        return read is not None

    def _note(self, place: Ask, wait: Callable[[], None]) -> None:
        """Wait, and write whether others went on meanwhile."""
        turns = list[bool]()
        turn = asyncio.get_running_loop().call_soon(turns.append, True)
        cancelled = False
        try:
            wait()
            if self._journal.resumed and self._journal.effects.last():
                awaited(self._journal.effects.behind_known())
        except asyncio.CancelledError:
            cancelled = aio.being_cancelled()
            raise
        finally:
            turn.cancel()
            since = self._journal.effects.turns.since_last() if turns and not cancelled else None
            self._journal.journal.put(self._journal.item, ["w", *place, since, *([1] if cancelled else [])])
