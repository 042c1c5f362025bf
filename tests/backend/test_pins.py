"""Prompts that a program keeps pinned between runs: once per backend and text, bounded, given back on close."""

from __future__ import annotations

from typing import Any

import lmc
from lmc.backend.base import Hints
from lmc.backend.mock import Mock
from lmc.backend.pins import LIMIT, Pins
from lmc.segments import Text
from tests.backend.engine_fakes import backend
from tests.waiting import until


class Counting(Mock):
    """Counts pins made and given back."""

    def __init__(self) -> None:
        super().__init__()
        self.made = self.ended = 0

    def prefill(self, *args: Any, **kwargs: Any) -> Any:
        self.made += 1
        return super().prefill(*args, **kwargs)

    def release(self, handle: Any) -> None:
        self.ended += 1


@lmc.function
def qa(s, question):
    s += "A long beginning that all questions share. " + question + lmc.gen("answer", max_tokens=4)


def test_a_beginning_is_pinned_once_for_all_runs_and_until_close() -> None:
    mock = Counting()
    with lmc.compile(qa, backend=mock) as program:
        for i in range(3):
            program(question=f"{i}")
        program.batch([{"question": "a"}, {"question": "b"}])
        assert (mock.made, mock.ended) == (1, 0)
    assert (mock.made, mock.ended) == (1, 1)
    program(question="again").sync()  # pins anew
    assert (mock.made, mock.ended) == (2, 1)


@lmc.function
def judged(s, essay):
    s += "A long beginning that all essays share. " + essay
    forks = s.fork(3)
    for fork in forks:
        fork += "Judge it: " + lmc.gen("grade", max_tokens=4)
    s += "All in all: " + lmc.gen("sum", max_tokens=4)
    return [fork["grade"] for fork in forks]


def test_forks_behind_a_pinned_beginning_have_a_pin_of_their_run() -> None:
    mock = Counting()
    with lmc.compile(judged, backend=mock) as program:
        for i in range(3):
            program(essay=f"essay {i}").sync()
        assert (mock.made, mock.ended) == (1 + 3, 3)
    assert (mock.made, mock.ended) == (4, 4)


def test_each_backend_has_its_own() -> None:
    one, other = Counting(), Counting()
    program = lmc.compile(qa)
    for mock in (one, other, one):
        program(question="x", backend=mock).sync()
    assert (one.made, other.made) == (1, 1)
    program.close()
    assert (one.ended, other.ended) == (1, 1)


def test_what_is_kept_is_bounded() -> None:
    mock, pins = Counting(), Pins(2)
    for text in ("a", "b", "a", "c"):  # b is the least recently used
        pins.get(mock, text, lambda t=text: mock.prefill(None, [Text((t,))]))
    assert (mock.made, mock.ended, len(pins)) == (3, 1, 2)
    pins.get(mock, "a", lambda: mock.prefill(None, []))
    assert mock.made == 3
    assert LIMIT >= 8


def test_a_pin_that_the_backend_gave_up_is_made_again() -> None:
    engine, _ = backend()
    pins, text = Pins(), Text(("a long beginning of many words, which stays, ",))
    asked = lambda: pins.get(engine, "a", lambda: engine.prefill(None, [text], Hints(pin=True)))
    for _ in range(2):  # the second time nothing is computed
        handle = asked()
        until(lambda: engine.stats()["pinned"] == 1)
        assert asked() is handle
    engine.flush_cache()
    until(lambda: engine.stats()["pinned"] == 0)
    assert asked() is not handle
    until(lambda: engine.stats()["pinned"] == 1)
    pins.close()
    engine.close()
