"""Faults planted in tracer, executor, passes and replay are found by the random programs that every change is tested with.

What a fault sets off may still run when its test is over, so these tests have a process of their own: `make mutations`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from lmc.backend.instructions import HostCall, Read, Run
from lmc.errors import BackendError
from lmc.frontend import hostops, replay_mode
from lmc.frontend.asks import by_name
from lmc.frontend.hostops import Known
from lmc.frontend.replay_mode import ReplayMode
from lmc.frontend.trace_record import Recorder
from lmc.frontend.trace_state import TraceEmitter
from lmc.frontend.tracer import TraceMode
from lmc.frontend.tree import Tree
from lmc.frontend.values import Value
from lmc.ir.core import Block, Graph, Op
from lmc.jit.owner import Owner
from lmc.jit.traced import Traced

from .programs import BEGIN, source
from .search import Setting, problem
from .test_random import PROGRAMS

pytestmark = pytest.mark.skipif(not os.environ.get("LMC_MUTATIONS"), reason="runs by itself: make mutations")


@pytest.fixture(autouse=True)
def let_it_end() -> Any:
    yield
    time.sleep(0.3)  # late effects of a planted fault are not the next test's


Plant = pytest.MonkeyPatch


def freeze_a_branch(plant: Plant) -> None:
    plant.setattr(TraceMode, "truth", lambda self, a: True)


def drop_an_effect(plant: Plant) -> None:
    real = TraceMode.effect

    def without(self: TraceMode, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return None if args[:1] == ("e",) else real(self, fn, args, kwargs)

    plant.setattr(TraceMode, "effect", without)


def _effects(op: Op) -> bool:
    return op.kind == "host.call" and not op.attr("pure") and not op.attr("ordered") and not op.attr("inline")


def reorder_two_effects(plant: Plant) -> None:
    real = Tree.graph

    def swapped(self: Tree, *args: Any) -> Graph:
        graph = real(self, *args)
        blocks: list[Block] = []
        for block in graph.blocks:
            ops = list(block.ops)
            for i, (a, b) in enumerate(itertools.pairwise(block.ops)):
                if _effects(a) and _effects(b) and not set(a.results) & set(b.uses) and ops[i] is a:
                    ops[i : i + 2] = b, a
            blocks.append(Block(block.label, tuple(ops), block.terminator))
        return replace(graph, blocks=tuple(blocks))

    plant.setattr(Tree, "graph", swapped)


def mix_up_siblings(plant: Plant) -> None:
    real = TraceEmitter.gen
    plant.setattr(TraceEmitter, "gen", lambda self, ctx, expr, stream, ordinal: real(self, ctx, expr, stream.replace(".1", ".0"), ordinal))


def forget_a_guard(plant: Plant) -> None:
    plant.setattr(Traced, "applies", lambda self: True)


def erase_an_op_that_can_raise(plant: Plant) -> None:
    real = TraceMode.host

    def total(self: TraceMode, fn: Any, operands: Any, known: Known, *args: Any, **kwargs: Any) -> Any:
        return real(self, fn, operands, replace(known, total=True), *args, **kwargs)

    plant.setattr(TraceMode, "host", total)


def do_an_ordered_op_twice(plant: Plant) -> None:
    real = HostCall.call

    def twice(self: HostCall, run: Run, args: list[Any]) -> tuple[bool, Any]:
        if self.inline:
            real(self, run, args)
        return real(self, run, args)

    plant.setattr(HostCall, "call", twice)


def do_an_effect_twice(plant: Plant) -> None:
    real = HostCall.call

    def twice(self: HostCall, run: Run, args: list[Any]) -> tuple[bool, Any]:
        if not self.inline:
            real(self, run, args)
        return real(self, run, args)

    plant.setattr(HostCall, "call", twice)


def cache_an_effect_across_runs(plant: Plant) -> None:
    real, known = HostCall.call, dict[HostCall, tuple[bool, Any]]()

    def cached(self: HostCall, run: Run, args: list[Any]) -> tuple[bool, Any]:
        if self not in known:
            known[self] = real(self, run, args)
        return known[self]

    plant.setattr(HostCall, "call", cached)


def merge_samples(plant: Plant) -> None:
    """Every gen of a run has the seed of the first."""
    real = TraceEmitter.gen
    plant.setattr(TraceEmitter, "gen", lambda self, ctx, expr, stream, ordinal: real(self, ctx, expr, stream, 0))


def share_a_mutable_result(plant: Plant) -> None:
    """What touches an object that can change is taken for pure, so that equal ones are merged."""
    real = Recorder.host

    def pure(self: Recorder, fn: Any, operands: Any, known: Known, kind: str, *args: Any, **kwargs: Any) -> Any:
        return real(self, fn, operands, known, "pure" if kind == "ordered" and known.fresh else kind, *args, **kwargs)

    plant.setattr(Recorder, "host", pure)


def trace_a_tool(plant: Plant) -> None:
    """Effects on constants alone happen while tracing."""
    real = TraceMode.effect

    def done(self: TraceMode, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return real(self, fn, args, kwargs) if self.foreign else (fn(*args, **kwargs) if all(type(a) is str for a in args) else real(self, fn, args, kwargs))

    plant.setattr(TraceMode, "effect", done)


def forget_what_was_done(plant: Plant) -> None:
    real = ReplayMode.__init__
    plant.setattr(ReplayMode, "__init__", lambda self, record, *more: real(self, dict(list(record.items())[:-1]), *more))


def read_what_an_ask_was_given_too_late(plant: Plant) -> None:
    plant.setattr(replay_mode, "as_recorded", lambda fn, args, kwargs, recorded: by_name(fn, args, kwargs))


def count_a_hook_twice(plant: Plant) -> None:
    real = ReplayMode.dispatch

    def counted_twice(self: ReplayMode, *args: Any) -> Any:
        self.count += args[0] == "getitem"
        return real(self, *args)

    plant.setattr(ReplayMode, "dispatch", counted_twice)


def link_the_wrong_arm(plant: Plant) -> None:
    real = Owner.extend
    plant.setattr(Owner, "extend", lambda self, run, exit: next(iter(exit.switch.arms.values()), None) or real(self, run, exit))


SHOWN_BY = {"drop_an_effect": 56, "forget_a_guard": 22, "erase_an_op_that_can_raise": 527, "trace_a_tool": 360, "forget_what_was_done": 10, "read_what_an_ask_was_given_too_late": 6}
"""Seeds to begin with, which saves time; the faults that are not here are found by the first few. One of 500 programs shows an erased op
that can raise."""
FAULTS = [fault for name, fault in list(globals().items()) if callable(fault) and getattr(fault, "__annotations__", {}).get("plant") == "Plant"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_found(fault: Any, monkeypatch: pytest.MonkeyPatch):
    fault(monkeypatch)
    seeds = [SHOWN_BY.get(fault.__name__, 0), *range(PROGRAMS)]
    assert any(problem(source(seed), Setting.of(seed)) for seed in seeds), f"no program of {PROGRAMS} shows it"


OUTSIDE = BEGIN + """
    limit = outside.LIMIT
    s += q + lmc.gen("x", max_tokens=3)
    outside.set_limit(9)
    n = id(s["x"]) * 0
    return limit, n
"""


def test_an_outside_read_too_late_is_found(monkeypatch: pytest.MonkeyPatch):
    assert problem(OUTSIDE, Setting()) is None
    monkeypatch.setattr(ReplayMode, "_begun", lambda self, owner, name, value: value)
    assert problem(OUTSIDE, Setting())


# Faults that need more than chance: an answer that is late, or one that fails, at one place of a program written for it.


def effects_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    real = HostCall.__init__

    def hasty(self: HostCall, *args: Any) -> None:
        real(self, *args)
        self.waits = 0

    monkeypatch.setattr(HostCall, "__init__", hasty)


def read_a_fault_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Read.execute

    def kind(self: Read, run: Run, x: Any) -> bool:
        try:
            return real(self, run, x)
        except BackendError:
            run.env[self.out] = ""
            return True

    monkeypatch.setattr(Read, "execute", kind)


def lose_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    real = hostops.OPERATIONS["py.next"]
    monkeypatch.setitem(hostops.OPERATIONS, "py.next", lambda iterator: real(iterator) and real(iterator))


def freeze_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    real = TraceMode.compare
    monkeypatch.setattr(TraceMode, "compare", lambda self, op, a, b: False if op == "==" and isinstance(a, Value) else real(self, op, a, b))


WRITTEN = {
    effects_do_not_wait: """
    s += q + lmc.gen("x", max_tokens=3)
    int(s["x"])
    effect("charge", q)
""",
    read_a_fault_too_late: """
    f = s.fork(1)[0]
    f += q + lmc.gen("f", max_tokens=3)
    f += lmc.gen("e", max_tokens=3) + lmc.gen("d", max_tokens=3) + lmc.gen("c", max_tokens=3) + lmc.gen("b", max_tokens=3)
    effect("between", q)
    v = f["f"] + "!"
    effect("never", q, f["e"] + f["d"] + f["c"] + f["b"])
""",
    lose_an_item: """
    s += q + lmc.gen("x", max_tokens=3)
    for a in bag(s["x"] + " b c d", q):
        s += a
    return s["x"]
""",
    freeze_a_comparison: """
    s += q + lmc.gen("x", regex="[ab]")
    if s["x"] == "a":
        return "first"
    return "second"
""",
}  # fmt: skip
SETTINGS = [Setting(opt=1, latency=True), Setting(opt=0, faults=2), Setting(opt=1, faults=2), Setting(opt=1, faults=3)]


@pytest.mark.parametrize("fault", WRITTEN, ids=lambda fault: fault.__name__)
def test_fault_is_found_by_a_program_written_for_it(fault: Any, monkeypatch: pytest.MonkeyPatch):
    assert not any(problem(BEGIN + WRITTEN[fault], setting) for setting in SETTINGS)
    fault(monkeypatch)
    assert any(problem(BEGIN + WRITTEN[fault], setting) for setting in SETTINGS)


def test_nothing_is_found_without_a_fault():
    """In a process of its own: what was instrumented under a fault is remembered by its code."""
    seeds = sorted(set(SHOWN_BY.values()))
    code = f"from tests.conformance.test_mutations import *; print([s for s in {seeds} if problem(source(s), Setting.of(s))])"
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert found.stdout.strip() == "[]", found.stdout + found.stderr
