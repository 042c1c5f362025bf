"""The executor's order: what waits for what, what is recorded, and what is given back when a run ends early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Any

import pytest

from lmc.backend.base import TakeOver
from lmc.backend.code import Code
from lmc.backend.executor import Execution
from lmc.backend.instructions import Exit, Instruction, Run
from lmc.backend.mock import Mock
from lmc.ir.text import parse
from lmc.prompt import SamplingParams

GREEDY = SamplingParams(temperature=0, max_new_tokens=4)


class Owner:
    """Keeps what a run gave back; never extends a graph."""

    def __init__(self) -> None:
        self.replayed: list[Run] = []

    def extend(self, run: Run, exit: Exit) -> Sequence[Instruction] | None:
        return None

    def finish(self, run: Run, value: Any, prompt: Any, held: Sequence[Any], attrs: Any) -> Any:
        return value, prompt.text(), [h.output().text if hasattr(h, "output") else h for h in held[::2]]

    def replay(self, run: Run) -> Any:
        self.replayed.append(run)
        assert run.failure is not None
        raise run.failure

    def context(self, run: Run) -> Context:
        return copy_context()

    def cancel(self, run: Run) -> None:
        pass


def execute(
    text: str, symbols: dict[str, Callable[..., Any]], *arguments: Any, backend: Mock | None = None, strict: bool = False, parallel: bool = False
) -> tuple[Run, Mock]:
    backend = backend or Mock()
    code = Code(replace(parse(text), symbols=symbols), strict=strict)
    run = Run(Owner(), backend, GREEDY, 0, 0, arguments)
    run.enter(code)
    (done,) = Execution(parallel=parallel).run(iter([run]))
    return done, backend


TWO_FORKS = """// lmc ir 1
graph @g() -> (any) {
  %c0 = ctx.new()
  %c1 = append(%c0, "slow")
  %c2, %a, %ma = gen(%c1) {name = "a", stream = "/0.0", ordinal = 0}
  %c3 = append(%c0, "fast")
  %c4, %b, %mb = gen(%c3) {name = "b", stream = "/0.1", ordinal = 0}
  %ra: str = read(%a)
  %c5 = append(%c2, %ra)
  %c6, %x, %mx = gen(%c5) {name = "x", stream = "/0.0", ordinal = 1}
  %rb: str = read(%b)
  %c7 = append(%c4, %rb)
  %c8, %y, %my = gen(%c7) {name = "y", stream = "/0.1", ordinal = 1}
  return(none, %c8, %x, %mx, %y, %my) {vars = ["x", "y"]}
}
"""


def _uneven() -> Mock:
    return Mock(latency=lambda ask: 0.05 if ask.name == "a" else 0.001)


def test_a_fork_does_not_wait_for_its_sibling():
    run, mock = execute(TWO_FORKS, {}, backend=_uneven())
    assert [c.name for c in mock.call_log] == ["a", "b", "y", "x"]
    assert run.error is None


def test_strict_asks_in_program_order():
    _, mock = execute(TWO_FORKS, {}, backend=_uneven(), strict=True)
    assert [c.name for c in mock.call_log] == ["a", "b", "x", "y"]


EFFECTS = """// lmc ir 1
graph @g() -> (any) {
  %c0 = ctx.new()
  %c1, %a, %ma = gen(%c0) {name = "a", stream = "", ordinal = 0}
  %ra: str = read(%a)
  %n: int = host.call(@int, %ra) {pure = true}
  %e = host.call(@charge, 1) {ord = [1, 0, 0]}
  %f = host.call(@charge, 2) {ord = [2, 0, 0]}
  %c2, %b, %mb = gen(%c1) {name = "b", stream = "", ordinal = 1}
  return(%f, %c2) {vars = []}
}
"""


@pytest.mark.parametrize("parallel", [False, True])
def test_an_effect_waits_for_what_may_raise_before_it(parallel: bool):
    charged: list[int] = []
    symbols: dict[str, Any] = {"int": int, "charge": lambda x: charged.append(x) or x * 10}
    run, mock = execute(EFFECTS, symbols, backend=Mock(answers={"a": "12", "b": "k"}, latency=0.002), parallel=parallel)
    assert (charged, run.result[0], run.record) == ([1, 2], 20, {(1, 0, 0): (True, 10), (2, 0, 0): (True, 20)})
    charged.clear()
    run, mock = execute(EFFECTS, symbols, backend=Mock(answers={"a": "no"}, latency=0.002), parallel=parallel)
    assert isinstance(run.error, ValueError)
    assert charged == []
    assert [c.name for c in mock.call_log] == ["a"], "a gen went out past an op that raised"


def test_an_effect_that_raises_is_recorded():
    def charge(x: int) -> int:
        if x == 2:
            raise RuntimeError("declined")
        return x

    run, _ = execute(EFFECTS, {"int": int, "charge": charge}, backend=Mock(answers={"a": "1"}))
    assert isinstance(run.error, RuntimeError)
    assert [ok for ok, _ in run.record.values()] == [True, False]


def test_effects_on_the_pool_keep_order_and_do_not_hold_up_other_runs():
    gate = threading.Event()
    seen: list[tuple[int, int]] = []

    def charge(x: int, run: int) -> int:
        if (x, run) == (1, 0):
            assert gate.wait(10)
        seen.append((run, x))
        if run == 1 and x == 2:
            gate.set()
        return x

    text = EFFECTS.replace("@g()", "@g(%run: int)").replace("@charge, 1", "@charge, 1, %run").replace("@charge, 2", "@charge, 2, %run")
    code = Code(replace(parse(text), symbols={"int": int, "charge": charge}))
    mock, owner = Mock(answers={"a": "1"}), Owner()
    runs = [Run(owner, mock, GREEDY, 0, i, [i]) for i in range(2)]
    for run in runs:
        run.enter(code)
    order = [run.item for run in Execution(parallel=True).run(iter(runs))]
    assert order == [1, 0]
    assert seen == [(1, 1), (1, 2), (0, 1), (0, 2)]


PINS = """// lmc ir 1
graph @g(%q: str) -> (any) {
  %c0 = ctx.new()
  %c1 = append(%c0, %q)
  prefill(%c1)
  %c2, %a, %ma = gen(%c1) {name = "a", stream = "/0.0", ordinal = 0}
  %c3 = append(%c1, "other")
  %c4, %b, %mb = gen(%c3) {name = "b", stream = "/0.1", ordinal = 0}
  %ra: str = read(%a)
  %n: int = host.call(@int, %ra) {pure = true}
  release(%c1)
  return(%n, %c4) {vars = []}
}
"""


class Pinned(Mock):
    """Counts pins and releases."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pinned = 0

    def prefill(self, *args: Any, **kwargs: Any) -> Any:
        self.pinned += 1
        return super().prefill(*args, **kwargs)

    def release(self, handle: Any) -> None:
        self.pinned -= 1
        super().release(handle)


@pytest.mark.parametrize("answer", ["5", "no number"])
def test_pins_end_with_the_run(answer: str):
    mock = Pinned(answers={"a": answer})
    run, _ = execute(PINS, {"int": int}, "question", backend=mock)
    assert mock.pinned == 0
    assert (run.error is None) == (answer == "5")


def test_an_interrupted_execution_cancels_what_it_asked():
    mock = Mock(latency=lambda ask: 30.0)
    code = Code(parse(TWO_FORKS))
    run = Run(Owner(), mock, GREEDY, 0, 0, [])
    run.enter(code)
    execution = Execution(parallel=True)
    iterator = execution.run(iter([run]))
    threading.Timer(0.05, lambda: execution._events.put((run, None, None))).start()  # wakes the loop as a finished replay would
    next(iterator, None)
    results = [after.result for _, _, after in run.answers.values()]
    execution._unfinished[run] = None
    execution.close()
    assert all(r is not None and r.wait(5) and r.error is not None for r in results)


def test_the_owner_takes_over_where_the_graph_ends():
    text = """// lmc ir 1
graph @g(%p: bool) -> (any) {
  %c0 = ctx.new()
  switch(%p) [true -> ^a, _ -> ^x]
^a:
  return("yes", %c0) {vars = []}
^x:
  exit(%c0) {id = 0}
}
"""
    assert execute(text, {}, True)[0].result[0] == "yes"
    run, _ = execute(text, {}, False)
    assert isinstance(run.error, TakeOver)
    assert run.path == [False]
