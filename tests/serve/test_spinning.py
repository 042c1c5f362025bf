"""Programs that compute for ever: they end with the request, as far as Python's code can be ended; what cannot is said and counted."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time

import pytest

import lmc
from lmc.serve import spinning
from tests.serve.serving import HOUR, ByHand, metric, running, until

pytestmark = pytest.mark.api

BEGUN = threading.Event()
RELEASE = threading.Event()
SPINS: list[int] = []
NUMBERS = itertools.count()


@lmc.function
def spins(s):
    s += "x" + lmc.gen("a", max_tokens=2)
    BEGUN.set()
    while True:
        SPINS[:] = [next(NUMBERS)]


@lmc.function
def closed(s, forever: bool = True):
    """It calls nothing unknown: runs of such programs share a thread."""
    s += "x" + lmc.gen("closed", max_tokens=2)
    s["closed"]
    turns = 0
    while forever:
        turns += 1
    return turns


def forever():
    BEGUN.set()
    while True:
        sum(range(100))


@lmc.function
def calls(s):
    """In a function that is called, behind an answer."""
    s += "x" + lmc.gen("a", max_tokens=2)
    return str(forever()) + s["a"]


@lmc.function
async def spins_on_the_loop(s):
    s += "x" + lmc.gen("a", max_tokens=2)
    BEGUN.set()
    while True:
        SPINS[:] = [next(NUMBERS)]


@lmc.function
def stubborn(s):
    """Catches what it can, for a while."""
    BEGUN.set()
    caught = 0
    while caught < 3:
        try:
            while True:
                SPINS[:] = [next(NUMBERS)]
        except BaseException:
            caught += 1
    while True:
        SPINS[:] = [next(NUMBERS)]


@lmc.function
def blocks(s):
    """One call into C, which nothing can end."""
    BEGUN.set()
    RELEASE.wait()


@lmc.function
def fine(s, name: str):
    s += name + lmc.gen("a", max_tokens=2)
    return s["a"]


PROGRAMS = [spins, calls, spins_on_the_loop, stubborn, blocks, fine, closed]


def stands_still():
    """Whether no program counts any more."""
    before = SPINS[:]
    time.sleep(0.02)
    return before == SPINS


def still(run):
    return list(spinning.threads_of(run))


@pytest.fixture
def runs(monkeypatch):
    """The runs that requests began."""
    found: list[spinning.RunningProgram] = []

    class Seen(spinning.RunningProgram):
        def __init__(self, program):
            super().__init__(program)
            found.append(self)

    monkeypatch.setattr("lmc.serve.programs.RunningProgram", Seen)
    BEGUN.clear()
    RELEASE.clear()
    yield found
    RELEASE.set()


@pytest.mark.parametrize("how", ("", "/stream", "/batch"))
@pytest.mark.parametrize("name", ("spins", "calls", "spins_on_the_loop", "stubborn"))
async def test_a_program_that_spins_ends_when_its_client_leaves(runs, name, how):
    async with running(lmc.Mock(), PROGRAMS) as app:
        for turn in range(2):
            BEGUN.clear()
            call = ByHand(app, f"/programs/{name}{how}", json.dumps({"items": [{}]} if how == "/batch" else {}).encode())
            await until(BEGUN.is_set, 90)
            call.leave()
            await call.task
            await until(lambda: not still(runs[-1]), 90)
            await until(stands_still, 90)
            if name == "calls":  # others may notice by themselves that they are cancelled
                await until(lambda t=turn: metric(app, "lmc_program_runs_ended_total") == t + 1, 90)
        await until(lambda: metric(app, "lmc_program_runs_unended") == 0, 90)
        other = ByHand(app, "/programs/fine", b'{"name": "x"}')
        await other.task
        assert other.status == 200, "and others are answered"


@pytest.mark.parametrize("how", ("", "/stream", "/batch"))
async def test_a_program_that_shares_its_thread_ends_when_its_client_leaves(runs, how):
    mock = lmc.Mock()
    async with running(mock, PROGRAMS) as app:
        call = ByHand(app, f"/programs/closed{how}", json.dumps({"items": [{}, {}]} if how == "/batch" else {}).encode())
        await until(lambda: still(runs[0]) if runs and mock.call_log else False, 90)
        await until(lambda: any(frame.f_code.co_name == "closed" for _, frame in still(runs[0])), 90)
        call.leave()
        await call.task
        await until(lambda: not still(runs[0]), 90)
        await until(lambda: metric(app, "lmc_program_runs_ended_total") == 1, 90)


async def test_a_program_that_spins_ends_at_the_time_out_and_others_go_on(runs, time_limits):
    async with running(lmc.Mock(), PROGRAMS, timeout=HOUR) as app:
        call = ByHand(app, "/programs/calls", b"{}")
        await until(BEGUN.is_set, 90)
        beside = ByHand(app, "/programs/fine", b'{"name": "x"}')
        await beside.task
        assert beside.status == 200
        time_limits.end()
        await call.task
        assert call.status == 504
        await until(lambda: not still(runs[0]), 90)


async def test_what_cannot_be_ended_is_said_and_counted(runs, monkeypatch, caplog):
    monkeypatch.setattr(spinning, "_TRIES", 3)
    monkeypatch.setattr(spinning, "_SELDOM", 0.01)
    async with running(lmc.Mock(), PROGRAMS) as app:
        call = ByHand(app, "/programs/blocks", b"{}")
        await until(BEGUN.is_set, 90)
        call.leave()
        await call.task
        await until(lambda: metric(app, "lmc_program_runs_unended") == 1, 90)
        assert "the program blocks is still running at" in caplog.text and "cannot be stopped" in caplog.text
        RELEASE.set()
        await until(lambda: metric(app, "lmc_program_runs_unended") == 0, 90)


async def test_a_program_that_waits_for_the_model_is_cancelled_and_not_ended(runs):
    mock = lmc.Mock(latency=60)
    async with running(mock, PROGRAMS) as app:
        call = ByHand(app, "/programs/fine", b'{"name": "x"}')
        await until(lambda: mock._pending, 90)
        call.leave()
        await call.task
        await until(lambda: not mock._pending and not still(runs[0]), 90)
        await asyncio.sleep(4 * spinning._EVERY)
        assert metric(app, "lmc_program_runs_ended_total") == 0


SLOW = """
def wait():
    until = len(looks) + 3
    while len(looks) < until:
        pass
"""
CANCEL = """
def cancel(batch, state):
    wait()
    slowly()
    really(batch, state)
    cancelled.append(state)
"""


async def test_the_end_of_an_abandoned_batch_is_not_interrupted(runs, monkeypatch, caplog):
    """A batch of thousands takes a while to cancel: what is left of it would go on for ever."""
    from lmc.frontend import batches

    looks, cancelled, threads_of = [], [], spinning.threads_of
    generated = {"__name__": batches.__name__, "looks": looks}  # as methods of dataclasses are
    exec(compile(SLOW, "<string>", "exec"), generated)
    frontend = {"__name__": batches.__name__, "looks": looks, "cancelled": cancelled, "really": batches.PendingBatch._cancel, "slowly": generated["wait"]}
    exec(compile(SLOW + CANCEL, batches.__file__, "exec"), frontend)
    monkeypatch.setattr(batches.PendingBatch, "_cancel", frontend["cancel"])
    monkeypatch.setattr(spinning, "threads_of", lambda run: looks.append(run) or threads_of(run))
    mock = lmc.Mock(latency=60)
    async with running(mock, PROGRAMS) as app:
        call = ByHand(app, "/programs/fine/batch", json.dumps({"items": [{"name": str(i)} for i in range(3)]}).encode())
        await until(lambda: len(mock._pending) == 3, 90)
        call.leave()
        await call.task
        await until(lambda: len(cancelled) == 3 and not mock._pending and not list(threads_of(runs[0])), 90)
        assert metric(app, "lmc_program_runs_ended_total") == metric(app, "lmc_program_runs_unended") == 0
    assert not caplog.records
