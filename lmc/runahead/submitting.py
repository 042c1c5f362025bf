"""Submitting by plan: the effect of an address's annotation on how its request reaches the backend.

Groups, order and lengths are hints; pinned text is prefilled first; the moves of `aggressive=True` are applied; a
request whose answer has no known reader is made when it is read. Otherwise requests are unchanged.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from lmc.backend.base import Backend, Handle, Hints
from lmc.backend.deferred import Deferred, DeferredHandle
from lmc.backend.pins import Pins
from lmc.frontend.live import Run
from lmc.prompt import Prompt, segments_of
from lmc.runahead.annotations import NOTHING, Annotation, Annotations, Pin
from lmc.runahead.records import Address
from lmc.runahead.text import without
from lmc.segments import Gen, Select

_numbers = itertools.count()
_NO_HINTS = Hints()


class Pinned(NamedTuple):
    """Text and images that a run keeps pinned: the handle before them (kept alive, so that its id stays unique), they, and the handle of both."""

    before: Handle | None
    text: tuple[Any, ...]
    handle: Handle


class RunPlan:
    """The submission plan of one run.

    annotations  of the program for the run's backend
    pins         pins shared by all runs of the program
    stream       of the run's root state: addresses of the plan are relative to it
    """

    def __init__(self, annotations: Annotations, pins: Pins, backend: Backend, stream: str = "") -> None:
        self.annotations, self.shared, self.backend, self.stream = annotations, pins, backend, stream
        self.number = next(_numbers)
        self._is_empty = not annotations.by_line and not annotations.by_address
        self._pinned: dict[tuple[int, int, str], Pinned] = {}  # (id of the handle before, number of the pin, adapter): its own pins

    def submit(self, annotation: Annotation, before: Prompt, ask: Gen | Select, run: Run, *, ahead: bool = False) -> Prompt:
        """Return `before` followed by the answer to a request, which the backend gets now or when it is read."""
        hints = run.hints()
        if annotation is NOTHING:
            return before.submit(run.backend, ask, (hints or _NO_HINTS)._replace(guess=True) if ahead else hints)
        defaults = run.defaults
        planned = annotation.hints(hints or _NO_HINTS, item=run.item, run=self.number, ahead=ahead, max_tokens=defaults.max_new_tokens, stop=defaults.stop)
        if run.limits is not None and run.limits.in_order:  # a request for several answers cannot be held to a budget
            planned = planned._replace(beyond=None)
        if annotation.lazy and not ahead and not run.watched and run.limits is None and run.journal is None:
            result = Deferred(lambda: self._go(before, annotation, ask, run, planned._replace(group=None, members=1, sample_index=(0, 1))))
            return Prompt(before, (), result, DeferredHandle(result), ())
        if annotation.move is None and not annotation.pins:
            return before.submit(run.backend, ask, planned)
        handle = self._go(before, annotation, ask, run, planned)
        return Prompt(before, (), handle.results[0], handle, ())

    def at(self, address: Address, ask: Gen | Select, run: Run) -> Annotation:
        """Return the annotation of a request."""
        _, _, stream, ordinal = address
        if self._is_empty or run.backend is not self.backend or not stream.startswith(self.stream):
            return NOTHING
        return self.annotations.at(stream[len(self.stream) :], ordinal, ask.loc)

    def _go(self, before: Prompt, annotation: Annotation, ask: Gen | Select, run: Run, hints: Hints) -> Handle:
        if annotation.move is not None and before.handle is None:
            before = Prompt(before, (), None, None, annotation.move.apply(before.tail))
        for pin in annotation.pins:
            pinned = self._prefilled(before, pin, run, hints, ask.adapter if isinstance(ask, Select) else ask.params.adapter)
            if pinned is before:
                break  # the texts of inner pins follow this one's
            before = pinned
        handle = before.submit(run.backend, ask, hints).handle
        assert handle is not None
        return handle

    def _prefilled(self, before: Prompt, pin: Pin, run: Run, hints: Hints, adapter: str) -> Prompt:
        """Return the prompt with the text of a pin submitted to the backend, which keeps it."""
        parent, backend = before.handle, run.backend
        if parent is not None and hasattr(parent, "begin"):
            return before
        key = (id(parent), pin.number, adapter)
        known = self._pinned.get(key)
        cut = pin.cut(before.tail) if known is None else without(before.tail, known.text)
        if cut is None or not cut[0]:
            return before
        head, rest = cut
        owner = None if pin.shared else hints.run
        prefill = lambda: backend.prefill(parent, tuple(segments_of(head)), Hints(pin=True, order=hints.order, has_more=True, run=owner, adapter=adapter))
        if known is not None:
            handle = known.handle
        elif pin.shared and parent is None:
            handle = self.shared.get(backend, (head, adapter), prefill)
        else:
            known = self._pinned.setdefault(key, Pinned(parent, head, prefill()))
            if known.text != head:  # another thread was first, with another text
                return before
            handle = known.handle
        return Prompt(before.parent, before.parts, None, handle, rest)

    def close(self) -> None:
        """End the run's own pins."""
        pinned, self._pinned = self._pinned, {}
        for pin in pinned.values():
            self.backend.release(pin.handle)
