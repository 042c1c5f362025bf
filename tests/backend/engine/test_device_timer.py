"""A device timer: blocks on a CPU are timed at once, on a GPU when the device has come to their end, without waiting for it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lmc.backend.engine.device_timer import DeviceTimer  # noqa: E402

pytestmark = pytest.mark.model


class Stream:
    """A device that has come to the events before `now`, in ms."""

    def __init__(self) -> None:
        self.recorded, self.now = 0.0, 0.0

    def event(self, *, enable_timing: bool):
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.at = stream, None

    def record(self) -> None:
        self.stream.recorded += 100.0
        self.at = self.stream.recorded

    def query(self) -> bool:
        return self.at <= self.stream.now

    def elapsed_time(self, other: Event) -> float:
        assert other.query(), "it would wait"
        return other.at - self.at


def test_blocks_on_a_gpu_count_once_it_has_come_to_their_end(monkeypatch):
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "Event", stream.event)
    timer = DeviceTimer(torch.device("cuda"))
    for _ in range(2):
        with timer.timed():
            stream.recorded += 50.0
    assert timer.seconds == 0
    stream.now = 250.0
    assert timer.seconds == pytest.approx(0.15)
    stream.now = 500.0
    assert timer.seconds == pytest.approx(0.3) == timer.seconds


def test_blocks_that_have_ended_are_not_kept_until_somebody_asks(monkeypatch):
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "Event", stream.event)
    timer = DeviceTimer(torch.device("cuda"))
    for _ in range(5):
        stream.now = stream.recorded
        with timer.timed():
            stream.recorded += 50.0
    assert len(timer._begun) == 1


def test_blocks_on_a_cpu_count_at_once():
    timer = DeviceTimer(torch.device("cpu"))
    with timer.timed():
        pass
    first = timer.seconds
    with timer.timed():
        pass
    assert 0 < first < timer.seconds
