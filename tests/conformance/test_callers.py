"""Code sees of the program that calls it frames, lines, log records, warnings, messages of asserts; and modules that change on disk."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import linecache
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc import gen
from lmc.backend.mock import Mock
from lmc.frontend.interpreter import Function
from tests.conformance.harness import eager

log = logging.getLogger("tests.callers")


def _run(program: Function, tmp: Path, **item: Any) -> lmc.State:
    return program.run(**item)


def _compiled(program: Function, tmp: Path, **item: Any) -> lmc.State:
    fast = lmc.compile(program)
    fast(**item)
    return fast(**item)


def _ahead(program: Function, tmp: Path, **item: Any) -> lmc.State:
    return eager(lmc.compile(program, ahead="likely"))(**item)


def _batch(program: Function, tmp: Path, **item: Any) -> lmc.State:
    return lmc.compile(program).batch([item, item])[1]


def _acall(program: Function, tmp: Path, **item: Any) -> lmc.State:
    return asyncio.run(lmc.compile(program).acall(**item))


def _stream(program: Function, tmp: Path, **item: Any) -> lmc.State:
    state = lmc.compile(program).stream(**item)
    state.text()
    return state


def _journaled(program: Function, tmp: Path, **item: Any) -> lmc.State:
    return program.run(**item, journal=tmp / "journal")


WAYS: list[Callable[..., lmc.State]] = [_run, _compiled, _ahead, _batch, _acall, _stream, _journaled]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__[1:])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Runs a program in each way, on a mock whose answers take a moment."""
    backend = Mock(latency=0.0003)
    lmc.set_default_backend(backend)
    yield lambda program, **item: request.param(program, tmp_path, **item)
    lmc.set_default_backend(None)


def line_of(mark: str) -> int:
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(f"# {mark}"))


def test_logging_names_the_callers_file_and_line(way: Any, caplog: pytest.LogCaptureFixture):
    @lmc.function
    def program(s: Any, q: str) -> None:
        def note(text: str) -> None:
            log.warning("%s", text, stacklevel=2)

        s += q + gen("x", max_tokens=2)
        log.warning("%s", s["x"])  # logged
        note("inner")  # logged by a helper

    way(program, q="a")
    records = caplog.records[-2:]
    assert [(Path(r.pathname).name, r.lineno, r.funcName) for r in records] == [
        ("test_callers.py", line_of("logged"), "program"), ("test_callers.py", line_of("logged by a helper"), "program"),
    ]  # fmt: skip


def test_warnings_name_the_callers_file_and_line(way: Any):
    @lmc.function
    def program(s: Any, q: str) -> None:
        def helper() -> None:
            warnings.warn("deprecated", DeprecationWarning, stacklevel=2)

        s += q + gen("x", max_tokens=2)
        warnings.warn(s["x"] and "here", UserWarning, stacklevel=1)  # warned
        helper()  # warned by a helper

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        way(program, q="a")
    mine = [w for w in caught if str(w.message) in ("here", "deprecated")][-2:]
    assert [(Path(w.filename).name, w.lineno) for w in mine] == [
        ("test_callers.py", line_of("warned")), ("test_callers.py", line_of("warned by a helper"))]  # fmt: skip


def who() -> tuple[str, int]:
    frame = sys._getframe(1)
    assert inspect.stack()[1].frame is frame
    return frame.f_code.co_name, frame.f_lineno


NOT_JOURNALED = pytest.mark.parametrize("way", [w for w in WAYS if w is not _journaled], ids=lambda w: w.__name__[1:], indirect=True)


@NOT_JOURNALED  # a journal calls the tool itself
def test_tools_see_the_programs_frame(way: Any):
    @lmc.function
    def program(s: Any, q: str) -> Any:
        s += q + gen("x", max_tokens=2)
        before, local = who(), s["x"]  # seen
        return before, sorted(sys._getframe().f_locals), sys._getframe().f_locals["local"] == s["x"], len(local) >= 0

    caller, names, same, _ = way(program, q="a").ret_value
    assert caller == ("program", line_of("seen")) and {"s", "q", "before", "local"} <= {*names} and same


def test_asserts_that_pytest_rewrote_keep_their_messages(way: Any):
    @lmc.function
    def program(s: Any, q: str) -> None:
        s += q + gen("x", max_tokens=3)
        found = {"answer": s["x"], "n": 2}
        assert found == {"answer": s["x"], "n": 3}

    with pytest.raises(AssertionError) as caught:
        way(program, q="a").ret_value  # noqa: B018
    assert "Differing items" in str(caught.value) and "{'n': 2} != {'n': 3}" in str(caught.value)


@pytest.mark.parametrize("depth", [45, 200, 400])
def test_recursion(way: Any, depth: int):
    @lmc.function
    def program(s: Any, q: str) -> Any:
        def down(n: int) -> int:
            if n == 0:
                s.__iadd__(q + gen("x", max_tokens=2))
                return len(s["x"])
            return down(n - 1)

        at_the_end = down(depth)
        return at_the_end == len(s["x"])

    assert way(program, q="a").ret_value is True


def test_sub_programs_within_each_other(way: Any):
    way(down, n=30)
    assert DEPTHS[-1] == 0


DEPTHS: list[int] = []


@lmc.function
def down(s: Any, n: int) -> int:
    s += f"{n}" + gen("x", max_tokens=1)
    DEPTHS.append(n)
    return 0 if n == 0 else 1 + down(n - 1).ret_value


def test_a_debugger_and_coverage_see_the_programs_lines(way: Any):
    """A trace function of the user's is called for the program's own code and lines."""
    lines: list[int] = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_name == "traced_program":
            if event == "line":
                lines.append(frame.f_lineno)
            return trace
        return None

    @lmc.function
    def traced_program(s: Any, q: str) -> int:
        sys.settrace(trace)
        sys._getframe().f_trace = trace
        s += q + gen("x", max_tokens=2)  # traced 1
        n = len(s["x"])  # traced 2
        sys.settrace(None)
        return n

    way(traced_program, q="a")
    assert {line_of("traced 1"), line_of("traced 2")} <= {*lines}


# -- modules that change


SOURCE = """
import lmc
LEVEL = {level}

def helper(x):
    return f"<{{x}}{level}>"

@lmc.function
def program(s, q):
    def inner(t):
        return t + "{level}"
    s += helper(q) + inner(q) + lmc.gen("x", max_tokens=2)
    return LEVEL, inner(helper(s["x"]))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module with this level to its file and returns the module as it was first imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "edited_module.py"

    def write(level: int, prefix: str = "") -> None:
        path.write_text(prefix + SOURCE.format(level=level))
        linecache.checkcache(str(path))
        importlib.invalidate_caches()

    write(1)
    sys.modules.pop("edited_module", None)
    found = importlib.import_module("edited_module")
    yield found, write
    sys.modules.pop("edited_module", None)


@NOT_JOURNALED
@pytest.mark.parametrize("prefix", ["", "# a line more\n\n\n"], ids=["same lines", "other lines"])
def test_a_file_edited_after_import_is_not_what_runs(way: Any, module: Any, prefix: str):
    found, write = module
    write(2, prefix)
    state = way(found.program, q="a")
    assert state.ret_value == (1, f"<{state['x']}1>1") and state.text().startswith("<a1>a1")


@NOT_JOURNALED
@pytest.mark.filterwarnings("ignore:.* was defined again")
def test_reload_runs_the_new_code_and_keeps_the_old(way: Any, module: Any):
    found, write = module
    old = found.program
    assert way(old, q="a").text().startswith("<a1>a1")
    write(2)
    importlib.reload(found)
    for program, level in ((found.program, 2), (old, 1)):
        state = way(program, q="a")
        assert state.text().startswith(f"<a2>a{level}")  # the old function sees the module's new names, and its own inner code
        assert state.ret_value[0] == 2


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("within __str__")


def test_an_exception_that_cannot_be_printed_is_raised(way: Any):
    @lmc.function
    def program(s: Any, q: str) -> None:
        s += q + gen("x", max_tokens=2)
        raise Unprintable(s["x"])

    with pytest.raises(Unprintable):
        way(program, q="a").ret_value  # noqa: B018


@pytest.mark.parametrize("compiled", [False, True])
def test_an_awaited_program_that_raises_stop_iteration_ends(compiled: bool):
    @lmc.function
    def program(s: Any) -> Any:
        s += gen("x", max_tokens=2)
        return next(iter(s["x"][:0]))

    call = lmc.compile(program).acall if compiled else program.arun

    async def main() -> None:
        await asyncio.wait_for(call(backend=Mock()), 20)

    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:  # as that of a coroutine
        asyncio.run(main())
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_awaited_program_raises_the_timeout_of_its_tool_as_it_is(compiled: bool):
    late = TimeoutError("no answer")

    @lmc.function
    def program(s: Any) -> Any:
        s += gen("x", max_tokens=2)
        late.add_note(s["x"])
        raise late

    call = lmc.compile(program).acall if compiled else program.arun
    with pytest.raises(TimeoutError) as caught:
        asyncio.run(call(backend=Mock()))
    assert caught.value is late and traceback.extract_tb(late.__traceback__)[-1].name == "program"
