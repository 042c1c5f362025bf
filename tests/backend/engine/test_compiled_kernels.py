"""Kernels that a library compiles: beside the engine's work, and used from a moment on in which nothing runs."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.model

from lmc.backend.engine.attention.flashinfer import AttentionShape, PagedAttention  # noqa: E402
from lmc.backend.engine.delivery import Delivery  # noqa: E402
from lmc.backend.engine.engine import EngineCore  # noqa: E402


class Spec:
    """FlashInfer's description of one of its modules. Compiling it ends when it may."""

    def __init__(self, name: str, fails: bool = False) -> None:
        self.name, self.fails, self.is_compiled, self.may_end = name, fails, False, threading.Event()
        self.is_aot = False  # comes compiled with the library

    def build(self, verbose: bool) -> None:
        assert not self.is_aot
        self.may_end.wait()
        if self.fails:
            raise RuntimeError("no compiler")
        self.is_compiled = True


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Spec]:
    """A stand-in of the library; its modules by name."""
    specs = {"fa2": Spec("fa2"), "fa3": Spec("fa3")}

    class Wrapper:
        def __init__(self, workspace: Any, layout: str, backend: str) -> None:
            self.spec = specs[backend]

        def plan(self, **_: Any) -> None:
            if not self.spec.is_compiled:
                raise RuntimeError(f"{self.spec.name} is not compiled")

    module: Any = types.ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = Wrapper
    jit: Any = types.ModuleType("flashinfer.jit")
    jit.gen_batch_prefill_module = lambda backend, *_: specs[backend]
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setitem(sys.modules, "flashinfer.jit", jit)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    return specs


def attention() -> PagedAttention:
    return PagedAttention(AttentionShape(4, 2, 64, torch.bfloat16), torch.device("cpu"))


def test_nothing_waits_for_the_compiler(flashinfer: dict[str, Spec]):
    found = attention()
    found.load()
    assert not found.usable
    flashinfer["fa2"].may_end.set()
    found.load()
    assert not found.usable, "the other one is still being compiled"
    flashinfer["fa3"].may_end.set()
    found.wait()
    assert not found.usable, "whoever runs passes says when"
    found.load()
    assert found.usable


def test_what_comes_compiled_is_not_compiled(flashinfer: dict[str, Spec]):
    for spec in flashinfer.values():
        spec.is_compiled = spec.is_aot = True
    found = attention()
    assert found.wait(60)
    found.load()
    assert found.usable


def test_a_start_does_not_wait_for_long(flashinfer: dict[str, Spec]):
    found = attention()
    assert not found.wait(0.0)
    for spec in flashinfer.values():
        spec.may_end.set()
    assert found.wait(60)


@pytest.mark.parametrize(("fails", "usable"), [("fa2", False), ("fa3", True)])
def test_a_compiler_that_fails_leaves_our_own_kernels(flashinfer: dict[str, Spec], fails: str, usable: bool, caplog: pytest.LogCaptureFixture):
    flashinfer[fails].fails = True
    for spec in flashinfer.values():
        spec.may_end.set()
    found = attention()
    found.wait()
    found.load()
    found.load()
    assert found.usable == usable
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


class Runner:
    """Has kernels to come."""

    def __init__(self) -> None:
        self.compiled, self.taken = threading.Event(), 0

    def run(self, work: Any) -> Any:
        raise AssertionError("nothing is asked")

    def settle(self) -> None:
        self.taken += self.compiled.is_set()

    def wait_compiled(self) -> None:
        self.compiled.wait()


class Scheduler:
    """Nothing is waiting; `idle` is what a test says."""

    idle = True
    only_waiting = expects_more = may_preempt = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: ()


def test_kernels_are_taken_when_nothing_runs():
    scheduler: Any = Scheduler()
    core, runner = EngineCore.__new__(EngineCore), Runner()
    core.scheduler, core._runner, core._flying, core.delivery = scheduler, runner, None, Delivery(scheduler, at_once=False)  # type: ignore[assignment]
    runner.compiled.set()
    scheduler.idle = False
    core._take_kernels()
    assert runner.taken == 0
    scheduler.idle = True
    core._take_kernels()
    assert runner.taken == 1
