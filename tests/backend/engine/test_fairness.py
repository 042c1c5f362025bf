"""Fair passes: nobody waits for long behind a long prompt, and no pass takes longer than it may."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from lmc.backend.base import Hints, ProgramRun
from lmc.backend.engine.engine import EngineCore
from lmc.backend.engine.pace import Pace
from lmc.segments import Text
from tests.backend.engine.agents import Clock
from tests.backend.engine_fakes import FakeRunner, endless, stepped

CHUNK = 64


class Watch:
    """Runs passes one by one, and notes in which each request says something."""

    def __init__(self, **options: Any) -> None:
        self.engine, self.core = stepped(20_000, max_context=9000, **{"chunk": CHUNK, **options})
        self.passes = 0
        self.said: dict[Any, list[int]] = {}

    def ask(self, text: str, n: int, **hints: Any) -> Any:
        handle = self.engine.submit(None, [Text((text,)), endless(n)], Hints(watched=True, **hints))
        self.said[handle] = []
        return handle

    def turn(self) -> None:
        self.core.turn()
        self.passes += 1
        for handle, said in self.said.items():
            (req,) = handle.last.requests or (None,)
            length = len(handle.results[0].deltas) if req is None else req.length - req.prompt_len
            if length > len(said):
                said += [self.passes] * (length - len(said))

    def until(self, handle: Any) -> int:
        """Passes until it has said something."""
        began = self.passes
        while not self.said[handle]:
            assert self.passes < began + 1000
            self.turn()
        return self.said[handle][0] - began


@pytest.mark.parametrize("short", [1, 10, 45])
def test_a_short_request_waits_three_passes_at_most_behind_a_long_prompt(short):
    watch = Watch()
    long = watch.ask("w" * 4000, 4)
    for _ in range(5):
        watch.turn()
    for i in range(10):
        assert watch.until(watch.ask(chr(102 + i) * short, 2)) <= 3
    assert not watch.said[long]


def test_a_long_prompt_gets_on_behind_short_ones_that_keep_coming():
    """A quarter of each pass is for whoever came first."""
    watch = Watch()
    long = watch.ask("w" * 1600, 4)
    watch.turn()
    for i in range(150):
        watch.ask(f"{i:03}" + "s" * 60, 1)
        watch.turn()
    assert watch.said[long] and watch.said[long][0] <= 4 * 1600 / CHUNK + 5


def test_of_long_prompts_the_shortest_goes_first_and_none_stands_still():
    watch = Watch()
    longer = watch.ask("a" * 3000, 1)
    watch.turn()
    shorter = watch.ask("b" * 700, 1)
    first = watch.until(shorter)
    assert first <= 700 / (CHUNK * 3 / 4) + 3
    assert 3000 / CHUNK <= watch.until(longer) + first <= 3700 / CHUNK + 3


def test_a_stream_goes_on_beside_long_prompts():
    watch = Watch()
    stream = watch.ask("stream", 40)
    watch.until(stream)
    for i in range(4):
        watch.ask(chr(102 + i) * 2000, 2)
    while len(watch.said[stream]) < 40:
        assert watch.passes < 1000
        watch.turn()
    gaps = [b - a for a, b in zip(watch.said[stream], watch.said[stream][1:], strict=False)]
    assert max(gaps) <= 2


def test_the_items_of_a_batch_do_not_compete():
    """Requests started together are done in their order, as fast as they can be."""
    watch = Watch()
    batch = object()
    long = watch.ask("w" * 400, 1, run=ProgramRun("program", batch))
    watch.turn()
    short = watch.ask("s" * 20, 1, run=ProgramRun("program", batch))
    watch.until(long)
    assert watch.said[short] >= watch.said[long]


# -- the pace ------------------------------------------------------------------------------------------------------


class SlowRunner(FakeRunner):
    """A device whose passes take so many seconds, and more for each row."""

    fixed, each = 0.02, 0.01
    clock: Clock

    def seconds(self, work: Any) -> float:
        return self.fixed + self.each * work.rows

    def run(self, work: Any) -> Any:
        self.clock.now += self.seconds(work)
        return super().run(work)


def test_no_pass_is_longer_than_it_may_be():
    clock = SlowRunner.clock = Clock()
    engine, core = stepped(20_000, runs=SlowRunner, chunk=512, max_context=9000, pace=Pace(512, 0.5))
    handles = [engine.submit(None, [Text((chr(102 + i) * 1500,)), endless(20)]) for i in range(3)]
    longest, began = [], clock.now
    while core.turn():
        longest.append(clock.now - began)
        began = clock.now
    assert all(handle.results[0].done for handle in handles)
    assert max(longest[2:]) <= 0.6, "the first ones are for learning"
    assert max(longest) <= 0.7
    assert sum(seconds > 0.4 for seconds in longest) > 90, "and as long as it may be"


def test_streams_shorten_passes_on_a_device_without_a_bound():
    SlowRunner.clock = Clock()
    engine, core = stepped(20_000, runs=SlowRunner, chunk=512, max_context=9000, pace=Pace(512, None, 0.5))

    def longest(watched: bool) -> int:
        stream = engine.submit(None, [Text(("stream",)), endless(40)], Hints(watched=watched))
        core.turn()
        prompt = engine.submit(None, [Text((("w" if watched else "v") * 2000,)), endless(1)])
        rows: list[int] = []
        while core.turn():
            rows += [core.runner.passes[-1]] * (not stream.results[0].done)
        assert prompt.results[0].done
        return max(rows[2:])

    assert longest(watched=False) > 400
    assert longest(watched=True) <= 60


def test_the_pace_feels_its_way():
    pace = Pace(4096, 1.0)
    found = [pace.rows(())]
    for _ in range(8):
        pace.learn(found[-1], 0.1 + 0.002 * found[-1])
        found.append(pace.rows(()))
    assert found[:3] == [64, 128, 256] and 430 <= found[-1] <= 450
    assert Pace(4096).rows(()) == 4096


def test_one_slow_pass_is_soon_forgotten():
    pace = Pace(4096, 1.0)
    pace.learn(64, 20.0)
    assert pace.rows(()) == 16
    for _ in range(5):
        pace.learn(pace.rows(()), 0.001)
    assert pace.rows(()) == 512


def test_passes_that_had_little_to_do_teach_nothing():
    pace = Pace(4096, 1.0)
    for _ in range(20):
        pace.learn(8, 0.01)
    assert pace.rows(()) == 64


def test_full_collections_are_put_off_while_an_engine_works():
    """On a CPU, too: one took as long as a hundred masks, wherever an answer had just come to."""
    seen = []
    core = object.__new__(EngineCore)
    core._runner, core._work = object(), lambda: seen.append(gc.get_threshold())  # pyright: ignore[reportAttributeAccessIssue]
    before = gc.get_threshold()
    core._loop()
    assert seen[0][2] > before[2] and gc.get_threshold() == before
