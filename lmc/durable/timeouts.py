"""The time-outs of a journaled program (`asyncio.timeout`): which of them has cancelled a call is in the journal, and it expires there again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from lmc.durable.tasks import here


class Timeouts:
    """Those of one run that are open, by the task that has entered them and their number in it."""

    def __init__(self) -> None:
        self.open: dict[tuple[int, ...], asyncio.Timeout] = {}
        self.entered = Counter[int]()

    def expired(self) -> Sequence[int]:
        """Return the key of the outermost one that has expired, of this task if it has one, else of another, which may have cancelled it; nothing if
        none has."""
        found, task = [key for key, timeout in self.open.items() if timeout.expired()], here()
        return next((key for key in found if key[0] == task), next(iter(found), ()))

    def expire(self, key: Sequence[int]) -> None:
        """Let one expire now, if it is open."""
        timeout = self.open.get((*key,))
        if timeout is not None and not timeout.expired():
            timeout.reschedule(asyncio.get_running_loop().time())
