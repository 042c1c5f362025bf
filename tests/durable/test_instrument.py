"""Instrumented code is the user's: its names, lines, frames and closures. What cannot be instrumented is refused, or recorded by its mark."""

from __future__ import annotations
import __future__

import ast
import asyncio
import contextlib
import dataclasses
import functools
import importlib.util
import linecache
import logging
import sys
import threading
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.durable import instrument
from lmc.durable.instrument import twin
from lmc.errors import JournalError
from tests.durable.resuming import CALLS, effects, recorded, resumes_anywhere, seen


def tool(x: Any = None) -> Any:
    CALLS.append(("tool", x))
    return x


marked = lmc.host(tool)


# -- frames ----------------------------------------------------------------------------------------------------------


class Base:
    def __hidden(self) -> str:
        return "base"

    def name(self) -> str:
        return self.__hidden()


@lmc.function
def looks_at_itself(s: Any) -> Any:
    class Inner(Base):
        def __hidden(self) -> str:
            return "inner" + __class__.__name__  # type: ignore[name-defined]

        def name(self) -> str:
            return self.__hidden() + super().name()

    kept = 1
    frame = sys._getframe()

    def inner() -> Any:
        nonlocal kept
        kept += 1
        return sys._getframe().f_code.co_qualname, sys._getframe().f_lineno - frame.f_lineno, sys._getframe().f_back is frame

    found = inner()
    s += f"{tool(Inner().name())}" + lmc.gen("a", max_tokens=2)
    return found, kept, sorted(locals()), sorted(name for name in globals() if "lmc" in name), frame.f_code.co_freevars, eval("kept + 1")


def test_names_lines_and_frames_are_those_of_the_source(tmp_path: Path) -> None:
    assert recorded(looks_at_itself, tmp_path / "j") == ["tool", "eval"]


@lmc.function
def says(s: Any) -> Any:
    warnings.warn("look", stacklevel=1)
    logging.getLogger("lmc-test").warning("look")
    s += lmc.gen("a", max_tokens=2)


def test_warnings_and_logs_name_the_line_that_says_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = says.func.__code__.co_firstlineno
    for _ in range(2):
        caplog.clear()
        with pytest.warns(UserWarning, match="look") as said:
            says.run(backend=lmc.Mock(), journal=tmp_path / "j")
        assert [(w.filename, w.lineno) for w in said] == [(__file__, first + 2)]
        assert [(r.pathname, r.lineno) for r in caplog.records] == [(__file__, first + 3)]
    assert not effects(tmp_path / "j")


# -- which code ------------------------------------------------------------------------------------------------------

SOURCE = """import lmc
TOOL = None
@lmc.function
def program(s):
    s += "q" + lmc.gen("a", max_tokens=2)
    return TOOL(s["a"])
def helper(s):
    s += "x" + lmc.gen("b", max_tokens=2)
    return TOOL(s["b"])
"""


def loaded(path: Path, source: str) -> Any:
    path.write_text(source)
    linecache.checkcache(str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.TOOL = tool  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize("change", ['s += "r"', "s += lmc.gen('z', max_tokens=2)"])
def test_an_edited_file_is_refused(change: str, tmp_path: Path) -> None:
    module = loaded(tmp_path / "edited.py", SOURCE)
    (tmp_path / "edited.py").write_text(SOURCE.replace('s += "q"', change + '; s += "q"'))
    CALLS.clear()
    with pytest.raises(JournalError, match=r"program cannot be journaled: its code at .*edited.py:3 is not what its source says now.*@lmc.host"):
        module.program.run(backend=(mock := lmc.Mock()), journal=tmp_path / "j")
    assert not CALLS and not mock.call_log
    (tmp_path / "edited.py").write_text(SOURCE + "# and a comment\n")
    assert module.program.run(backend=lmc.Mock(), journal=tmp_path / "k").ret_value


@lmc.function
def calls_a_helper(s: Any, helper: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    return helper(s)


def test_a_helper_without_source_is_refused_and_named(tmp_path: Path) -> None:
    made: dict[str, Any] = {"lmc": lmc, "tool": tool}
    exec("def helper(s):\n    return tool(s['a'])\ndef plain(x):\n    return tool(x)", made)
    with pytest.raises(JournalError, match=r"helper cannot be journaled: its code at <string>:1 has no source that can be read.*@lmc.host"):
        calls_a_helper.run(made["helper"], backend=lmc.Mock(), journal=tmp_path / "j")

    @lmc.function
    def program(s: Any) -> Any:
        s += "q" + lmc.gen("a", max_tokens=2)
        return made["plain"](s["a"])

    assert recorded(program, tmp_path / "k") == ["plain"]  # one call is recorded as a whole, with or without source


def test_code_is_instrumented_once() -> None:
    assert twin(tool).__code__ is twin(tool).__code__ is not tool.__code__


# -- what is gone into -----------------------------------------------------------------------------------------------


class Adds:
    def __add__(self, other: Any) -> Any:
        return marked(other)


@lmc.function
def calls_marked_functions_from_elsewhere(s: Any) -> Any:
    s += lmc.gen("a", max_tokens=2)
    found = [functools.reduce(lambda a, b: marked(a + b), [1, 2, 3]), sorted("ba", key=marked), Adds() + 4]
    with ThreadPoolExecutor(1) as pool:
        found.append(list(pool.map(marked, "xy")))
    return found


def test_marked_functions_are_recorded_wherever_they_are_called(tmp_path: Path) -> None:
    assert recorded(calls_marked_functions_from_elsewhere, tmp_path / "j") == ["tool"] * 7


@contextlib.contextmanager
def opened(x: Any) -> Any:
    yield tool(x)
    tool("closed")


def pages(x: str) -> Any:
    for letter in x:
        yield tool(letter)


@dataclasses.dataclass
class Noted:
    state: Any
    notes: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.notes.append(tool("made"))

    def add(self, x: Any) -> None:
        self.state += str(tool(x)) + lmc.gen("added", max_tokens=2)
        self.notes.append(self.state["added"])


class Asks:
    def __init__(self, state: Any) -> None:
        self.state = state
        tool("init")

    def __call__(self, x: Any) -> Any:
        self.state += str(tool(x)) + lmc.gen("called", max_tokens=2)
        return self.state["called"]

    @classmethod
    def of(cls, state: Any) -> Any:
        tool("of")
        return cls(state)


def retried(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        tool("try")
        return fn(*args)

    return wrapper


@retried
def asks(s: Any) -> Any:
    s += str(tool("in")) + lmc.gen("asked", max_tokens=2)
    return s["asked"]


def each(i: int) -> Any:
    return str(tool(i)) + lmc.gen("each", max_tokens=2)


@lmc.function
def goes_into_helpers(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=3)
    with opened(s["a"]) as found:
        s += str(found)
    listed = list(pages(s["a"]))
    noted = Noted(s)
    noted.add("x")
    asker = Asks.of(s)
    forks = s.fork(2)
    forks += each
    return listed, noted.notes, asker("y"), asks(s), list(map(asks, forks)), [f["each"] for f in forks]


@pytest.mark.search
def test_helpers_of_the_program_are_gone_into(tmp_path: Path) -> None:
    resumes_anywhere(goes_into_helpers, {}, tmp_path, doubtful=True)
    assert set(effects(tmp_path / "0")) == {"tool"}


@lmc.function
def on_threads(s: Any) -> Any:
    forks = s.fork(3)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(asks, forks))
    s += "".join(found) + lmc.gen("end", max_tokens=2)
    return found


def test_helpers_on_threads_are_recorded(tmp_path: Path) -> None:
    results: list[Any] = []
    for called in (6, 0):
        CALLS.clear()
        results.append(seen(on_threads.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")))
        assert len(CALLS) == called
    assert results[0] == results[1] and effects(tmp_path / "j") == ["tool"] * 6


# -- programs in tools -----------------------------------------------------------------------------------------------


@lmc.function
def part(s: Any, of: str) -> Any:
    s += of + lmc.gen("p", max_tokens=3)
    return s["p"]


@lmc.host
def research(of: str) -> str:
    CALLS.append(("research", of))
    return part(of=of).ret_value


@lmc.function
def programs_in_tools(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2, temperature=1.0)
    one = research(s["a"])
    s += one + part(of="two").ret_value
    return s.text()


@pytest.mark.search
def test_programs_that_a_tool_runs_keep_the_places_of_those_behind_it(tmp_path: Path) -> None:
    resumes_anywhere(programs_in_tools, {}, tmp_path, doubtful=True)


@lmc.host
def appends(s: Any) -> None:
    s += "more"


@lmc.function
def hands_a_state_over(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    appends(s)
    s += lmc.gen("b", max_tokens=2)


def test_a_marked_function_that_appends_to_a_state_cannot_be_resumed_behind(tmp_path: Path) -> None:
    with pytest.warns(lmc.JournalWarning, match="a journal cannot hold what it appended to a state"):
        hands_a_state_over.run(backend=lmc.Mock(), journal=tmp_path / "j")
    with pytest.raises(JournalError, match="what the call changed, so the run cannot be resumed behind it"):
        hands_a_state_over.run(backend=lmc.Mock(), journal=tmp_path / "j")


# -- `with`, decorators and exceptions -------------------------------------------------------------------------------


class Session:
    def __init__(self, state: Any) -> None:
        self.state = state

    def __enter__(self) -> Any:
        self.state += str(tool("enter")) + lmc.gen("entered", max_tokens=2)
        return self.state["entered"]

    def __exit__(self, *error: object) -> bool:
        tool("left")
        return error[0] is ValueError


class AsyncSession:
    def __init__(self, state: Any) -> None:
        self.state = state

    async def __aenter__(self) -> Any:
        self.state += str(tool("enter")) + lmc.gen("entered", max_tokens=2)
        return self.state["entered"]

    async def __aexit__(self, *error: object) -> None:
        tool("left")


def registered(fn: Any) -> Any:
    CALLS.append(("registered", fn.__name__))
    return fn


@lmc.function
def enters_and_decorates(s: Any) -> Any:
    @registered
    def inner(x: Any) -> Any:
        return tool(x)

    with Session(s) as name:
        inner(name)
        raise ValueError("x")
    s += lmc.gen("b", max_tokens=2)
    return name, inner(s["b"])


@lmc.function
async def enters_later(s: Any) -> Any:
    async with AsyncSession(s) as name:
        tool(name)
    s += lmc.gen("b", max_tokens=2)
    return name


class Elsewhere:
    """A manager that no program makes."""

    state: Any = None

    def __enter__(self) -> None:
        self.state += str(tool("enter")) + lmc.gen("entered", max_tokens=2)

    def __exit__(self, *error: object) -> None:
        tool("left")


class AsyncElsewhere:
    state: Any = None

    async def __aenter__(self) -> None:
        self.state += str(tool("enter")) + lmc.gen("entered", max_tokens=2)

    async def __aexit__(self, *error: object) -> None:
        tool("left")


SESSION, ASYNC_SESSION = Elsewhere(), AsyncElsewhere()


class Receipt:
    """A text, as `str(…)` makes one: Python does not call its `__init__`."""

    def __new__(cls, paid: Any) -> Any:
        return f"receipt of {tool(paid)}" if isinstance(paid, str) else lmc.gen("never")

    def __init__(self, paid: Any) -> None:
        raise AssertionError("Python does not call it")


@lmc.function
async def enters_what_is_made_elsewhere(s: Any) -> Any:
    SESSION.state = ASYNC_SESSION.state = s
    with SESSION:
        s += lmc.gen("a", max_tokens=2)
    async with ASYNC_SESSION:
        return Receipt(s["a"])


@pytest.mark.parametrize("program", [enters_and_decorates, enters_later], ids=lambda p: p.name)
@pytest.mark.search
def test_what_statements_call_of_the_program_is_recorded(program: Any, tmp_path: Path) -> None:
    resumes_anywhere(program, {}, tmp_path, doubtful=True)


def test_what_managers_made_elsewhere_and_constructors_call_is_recorded(tmp_path: Path) -> None:
    assert recorded(enters_what_is_made_elsewhere, tmp_path / "j") == ["tool"] * 5


def fails() -> None:
    raise LookupError("no")


@lmc.function
def handles(s: Any) -> Any:
    found = list[str]()
    try:
        fails()
    except LookupError as error:
        at = error.__traceback__
        while at is not None:
            found.append(at.tb_frame.f_code.co_name)
            at = at.tb_next
    s += lmc.gen("a", max_tokens=2)
    return found


@lmc.function
def handles_in_a_group(s: Any) -> Any:
    """The group is made by the statement, and has no traceback of its own."""
    found = list[str]()
    try:
        fails()
    except* LookupError as group:
        at = group.exceptions[0].__traceback__
        while at is not None:
            found.append(at.tb_frame.f_code.co_name)
            at = at.tb_next
        s += lmc.gen("a", max_tokens=2)
    return found


@pytest.mark.parametrize("program", [handles, handles_in_a_group], ids=lambda p: p.name)
def test_tracebacks_have_the_frames_of_the_program_alone(program: Any, tmp_path: Path) -> None:
    for _ in range(2):
        assert program.run(backend=lmc.Mock(), journal=tmp_path / "j").ret_value[0] == program.name
    assert program.run(backend=lmc.Mock(), journal=tmp_path / "k").ret_value == [program.name, "fails"]


class Ordered:
    def __init__(self, state: Any) -> None:
        self.state = state

    def __lt__(self, other: Any) -> bool:
        return tool(self.state["a"]) < tool(other.state["a"])


class OrderedByMarked(Ordered):
    def __lt__(self, other: Any) -> bool:
        return marked(self.state["a"]) < marked(other.state["a"])


class Shelf(type):
    def __len__(cls) -> int:
        return len(tool(cls.__name__))


class Counted:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, x: Any, owner: Any = None) -> Any:
        return tool(getattr(x, self.name))

    def __set__(self, x: Any, value: Any) -> None:
        setattr(x, self.name, tool(value))


class Mirror:
    """Has a descriptor of a class that has one of this."""

    def __get__(self, x: Any, owner: Any = None) -> str:
        return tool("mirror")


Counted.mirror = Mirror()  # pyright: ignore[reportAttributeAccessIssue]
Mirror.counted = Counted()  # pyright: ignore[reportAttributeAccessIssue]


class Pages(metaclass=Shelf):
    """Its tools are called by a method, a module's function, a helper of the program, an object of a field."""

    last, mirror = Counted(), Mirror()

    def __init__(self, s: Any, source: Source) -> None:
        self.s, self.source, self.at = s, source, 0

    def page(self) -> str:
        self.at += 1
        return tool(f"page {self.at}")

    def __iter__(self) -> Pages:
        return self

    def __next__(self) -> str:
        if self.at > 1:
            raise StopIteration
        return self.page()

    def __getitem__(self, name: str) -> str:
        return told(self.s, name)

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return sys.modules[__name__].tool(name)

    def __len__(self) -> int:
        return len(self.source.get("length"))

    @functools.cached_property
    def title(self) -> str:
        return self.source.get("title")


class Source:
    def get(self, x: str) -> str:
        return tool(x)


def told(s: Any, name: str) -> str:
    s += name + lmc.gen("a", max_tokens=2)
    return tool(s["a"])


class LaterPages:
    def __init__(self) -> None:
        self.at = 0

    def __aiter__(self) -> LaterPages:
        return self

    async def __anext__(self) -> str:
        if self.at > 1:
            raise StopAsyncIteration
        self.at += 1
        return await tool_later(self.at)

    def __await__(self) -> Any:
        return (yield from tool_later("awaited").__await__())


async def tool_later(x: Any) -> str:
    await asyncio.sleep(0)
    return tool(x)


@lmc.function
def uses_pages(s: Any) -> Any:
    pages = Pages(s, Source())
    pages.last = "x"
    return [*pages], pages["k"], pages.subject, len(pages), pages.title, pages.title, pages.last, pages.mirror


@lmc.function
async def uses_later_pages(s: Any) -> Any:
    s += lmc.gen("a", max_tokens=2)
    return [page async for page in LaterPages()], await LaterPages(), await anext(LaterPages(), "none")


@pytest.mark.parametrize(("program", "calls"), [(uses_pages, 10), (uses_later_pages, 4)])
def test_calls_that_python_makes_of_members_are_recorded(program: Any, calls: int, tmp_path: Path) -> None:
    assert len([name for name in recorded(program, tmp_path / "j") if "tool" in name or "get" in name]) == calls


@lmc.function
def asks_a_class(s: Any) -> int:
    return len(Pages)


def test_a_call_that_python_makes_of_a_metaclass_is_recorded(tmp_path: Path) -> None:
    for calls in (1, 0):
        CALLS.clear()
        assert asks_a_class.run(backend=lmc.Mock(), journal=tmp_path / "j").ret_value == 5 and len(CALLS) == calls


class Failed(LookupError):
    def __init__(self, what: str) -> None:
        super().__init__(tool(what))
        self.what = what

    def hint(self) -> str:
        return tool(f"about {self.what}")


class Registered(type):
    def __new__(cls, name: str, bases: Any, body: Any) -> Any:
        return super().__new__(cls, name, bases, {**body, "known": tool(name)})

    def __init__(cls, *args: Any) -> None:
        super().__init__(*args)
        tool("class")


class Plugin:
    def __init_subclass__(cls) -> None:
        cls.registered = tool(cls.__name__)  # pyright: ignore[reportAttributeAccessIssue]


@lmc.function
def defines_and_raises(s: Any) -> Any:
    class Known(metaclass=Registered):
        """Python calls its metaclass."""

    class Added(Plugin):
        """Python calls a method of its base."""

        size = 0

        @property
        def pages(self) -> int:
            return self.size

        @pages.setter
        def pages(self, pages: int) -> None:
            self.size = tool(pages)

    added = Added()
    added.pages = 3
    try:
        raise Failed("x")
    except Failed as error:
        s += error.hint() + lmc.gen("a", max_tokens=2)
        return str(error), Known.known, Added.registered, added.pages  # pyright: ignore[reportAttributeAccessIssue]


def test_calls_in_exceptions_and_metaclasses_are_recorded(tmp_path: Path) -> None:
    assert recorded(defines_and_raises, tmp_path / "j") == ["tool"] * 6


@pytest.mark.parametrize("cls", [Ordered, OrderedByMarked])
def test_operators_record_their_calls(cls: type, tmp_path: Path) -> None:
    @lmc.function
    def ordered(s: Any) -> Any:
        return orders(cls=cls).ret_value

    assert recorded(ordered, tmp_path / "j")


class Asking:
    def __init__(self, s: Any) -> None:
        self.s = s

    @property
    def answer(self) -> str:
        self.s += "q" + lmc.gen("a", max_tokens=2)
        return tool(self.s["a"])


@lmc.function
def reads_a_property(s: Any) -> Any:
    return Asking(s).answer


def test_instrumented_members_are_still_understood(tmp_path: Path) -> None:
    graph = lmc.compile(reads_a_property).dump_ir()
    assert recorded(reads_a_property, tmp_path / "j") == ["tool"]
    assert graph.count("gen(") == 1 and lmc.compile(lmc.function(reads_a_property.func)).dump_ir() == graph


def noted(label: str) -> Any:
    def decorate(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(*args: Any) -> Any:
            tool(f"begin {label}")
            return fn(*args)

        return inner

    return decorate


@lmc.function
def decorates_by_a_factory(s: Any) -> Any:
    @noted("first")
    def first(x: str) -> str:
        return tool(x)

    @noted("second")
    def second(x: str) -> str:
        s.__iadd__(x + lmc.gen("a", max_tokens=2))
        return tool(s["a"])

    return first("x"), second("y"), first.__name__


def test_what_a_factory_of_decorators_makes_is_gone_into(tmp_path: Path) -> None:
    assert recorded(decorates_by_a_factory, tmp_path / "j") == ["tool"] * 4


LOOKED_UP: list[str] = []


class AnyTool:
    """Has every attribute that it is asked for, and can be called."""

    def __getattr__(self, name: str) -> Any:
        LOOKED_UP.append(name)
        return functools.partial(tool, name)

    def __call__(self, x: Any) -> Any:
        return tool(x)


@lmc.function
def calls_any_tool(s: Any, given: Any) -> Any:
    made = AnyTool()
    s += lmc.gen("a", max_tokens=2)
    return given(s["a"]), given.search(), made("x"), made.look()


def test_objects_are_asked_for_the_programs_attributes_only(tmp_path: Path) -> None:
    LOOKED_UP.clear()
    assert len(recorded(calls_any_tool, tmp_path / "j", given=AnyTool())) == 4
    assert LOOKED_UP == ["search", "look"] * 5


@lmc.function
def orders(s: Any, cls: Any) -> Any:
    forks = s.fork(3)
    for f in forks:
        f += lmc.gen("a", max_tokens=2, temperature=1.0)
    return [x.state["a"] for x in sorted([cls(f) for f in forks])]


CALLED = "one"


def one(x: Any) -> Any:
    return tool(x)


def two(x: Any) -> Any:
    return tool(x)


@lmc.function
def calls_one_or_the_other(s: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    return (one if CALLED == "one" else two)(s["a"])


def test_an_item_that_calls_something_else_than_before_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items: list[Any] = [{}, {}]
    calls_one_or_the_other.run_batch(items, backend=lmc.Mock(), seed=1, journal=tmp_path / "j", num_threads=2)
    monkeypatch.setitem(globals(), "CALLED", "two")
    CALLS.clear()
    for state in calls_one_or_the_other.run_batch(items, backend=lmc.Mock(), journal=tmp_path / "j", num_threads=2, errors="return"):
        assert isinstance(state.failure, JournalError) and "calls two(" in str(state.failure) and "called one(" in str(state.failure)
    assert not CALLS


# -- only code that is its source's is instrumented ------------------------------------------------------------------------

DECORATED = '''
import functools, lmc

def logged(fn):
    @functools.wraps(fn)
    def around(*args, **kwargs):
        NOTES.append(fn.__name__)
        return fn(*args, **kwargs)
    return around

NOTES = []

@logged
def helper(s, x):
    s += x
    return TOOL(x)

@lmc.function
@logged
def program(s):
    s += "q" + lmc.gen("a", max_tokens=2)
    return helper(s, s["a"]), helper(s, "b")
'''


def test_decorated_programs_and_helpers_are_recorded_call_by_call(tmp_path: Path) -> None:
    module = loaded(tmp_path / "decorated.py", DECORATED)
    assert recorded(module.program, tmp_path / "j") == ["tool", "tool"]
    assert module.NOTES == ["program", "helper", "helper"] * 5  # the decorator's own code runs each time


RETRYING = '''
import asyncio, functools

class Retrying:
    """As of tenacity: what its wrapper makes for each call is no data."""

    def __call__(self, fn, *args, **kwargs):
        for _ in range(2):
            try:
                return fn(*args, **kwargs)
            except ValueError:
                continue

def retry(fn):
    if asyncio.iscoroutinefunction(fn):
        @functools.wraps(fn)
        async def again(*args, **kwargs):
            again.calls += 1
            return await Retrying()(fn, *args, **kwargs)
    else:
        @functools.wraps(fn)
        def again(*args, **kwargs):
            again.calls += 1
            return Retrying()(fn, *args, **kwargs)
    again.calls = 0
    return again

class Validated:
    def __init__(self, fn):
        self.fn = fn

    def __call__(self, *args):
        return self.fn(*args)

def validated(fn):
    """As pydantic's validate_call: an object has the function."""
    validator = Validated(fn)
    return functools.wraps(fn)(lambda *args: validator(*args))

def checked(fn):
    """As beartype: a generated function without source that has the one in it as a default."""
    made = {"fn": fn}
    exec("def around(*args, fn=fn, **kwargs):\\n    return fn(*args, **kwargs)", made)
    return functools.wraps(fn)(made["around"])
'''

DECORATED_BY_A_LIBRARY = '''
import lmc
from retrying_library import checked, retry, validated

class Helper:
    @retry
    def ask(self, s, x):
        s += x + lmc.gen("c", max_tokens=2)
        return TOOL(s["c"])

@lmc.function
def child(s, x):
    s += x + lmc.gen("a", max_tokens=2)
    return TOOL(s["a"])

@retry
@retry
def number(s, x):
    s += x + lmc.gen("n", max_tokens=2)
    TOOL(s["n"])
    return s["n"]

@retry
def calls_a_program(x):
    return child(x).ret_value

@checked
def typed(s, x):
    s += x + lmc.gen("t", max_tokens=2)
    return TOOL(s["t"])

@retry
def tool_of_its_own(x):
    return TOOL(x)

HELPER = Helper()

@lmc.function
def program(s):
    found = number(s, "q"), HELPER.ask(s, "c"), calls_a_program("p"), typed(s, "t"), tool_of_its_own("o")
    return found, number.calls > 0

@validated
def hidden(s, x):
    s += x + lmc.gen("h", max_tokens=2)
    return TOOL(s["h"])

@lmc.function
def calls_what_is_hidden(s):
    return hidden(s, "q")

@retry
async def later(s, x):
    s += x + lmc.gen("l", max_tokens=2)
    return TOOL(s["l"])

@lmc.function
async def awaits(s):
    return await later(s, "q")
'''


def test_helpers_behind_decorators_of_libraries_are_recorded_call_by_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (library := tmp_path / "site-packages").mkdir()
    (library / "retrying_library.py").write_text(RETRYING)
    monkeypatch.syspath_prepend(library)
    module = loaded(tmp_path / "decorated_by_a_library.py", DECORATED_BY_A_LIBRARY)
    assert recorded(module.program, tmp_path / "j") == ["tool", "tool", "tool", "tool", "tool_of_its_own"]
    assert recorded(module.awaits, tmp_path / "k") == ["tool"]
    with pytest.warns(lmc.JournalWarning, match=r"a library's decorator hides hidden\(\).*@lmc.host"):
        module.calls_what_is_hidden.run(backend=lmc.Mock(), journal=tmp_path / "l")


@pytest.mark.filterwarnings("ignore:.* was defined again")
def test_a_program_of_a_reloaded_module_goes_on_with_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reloaded_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reloaded_module")
    module.TOOL = tool  # type: ignore[attr-defined]
    old = module.program
    expected = old.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value
    (tmp_path / "reloaded_module.py").write_text("# one line further down\n" + SOURCE)
    linecache.checkcache()
    with pytest.raises(JournalError, match="is not what its source says now"):
        old.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "k")  # it was not reloaded yet
    importlib.invalidate_caches()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for cached in (tmp_path / "__pycache__").glob("*.pyc"):
        cached.unlink()
    module = importlib.reload(module)
    module.TOOL = tool  # type: ignore[attr-defined]
    CALLS.clear()
    mock = lmc.Mock()
    assert module.program.run(backend=mock, seed=1, journal=tmp_path / "j").ret_value == expected  # the same source, elsewhere
    assert not CALLS and not mock.call_log
    with pytest.raises(JournalError, match="is not what its source says now"):
        old.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "l")


def cell(source: str, number: int, names: dict[str, Any], unit: str) -> None:
    """Runs a cell as notebooks do: its source is in linecache, under a name of its own, and what earlier cells imported of `__future__` holds. Jupyter
    compiles each statement by itself, marimo all of them."""
    name = f"<ipython-input-{number}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    futures = __future__.annotations.compiler_flag if number == 1 else 0
    body = ast.parse(source, name).body
    for statements in [body] if unit == "cell" else [[statement] for statement in body]:
        exec(compile(ast.Module(statements, []), name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | futures, dont_inherit=True), names)


@pytest.mark.filterwarnings("ignore:.* was defined again")
@pytest.mark.parametrize("unit", ["statement", "cell"])
def test_cells_of_notebooks_and_their_redefinitions(tmp_path: Path, unit: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "TOOL": tool}
    cell(SOURCE, 1, names, unit)
    names["TOOL"] = tool
    first = names["program"]
    expected = first.run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value
    cell(SOURCE.replace('s += "q"', 's += "other"'), 2, names, unit)
    names["TOOL"] = tool
    with pytest.raises(JournalError, match="with another source"):
        names["program"].run(backend=lmc.Mock(), seed=1, journal=tmp_path / "j")
    CALLS.clear()
    mock = lmc.Mock()
    assert first.run(backend=mock, journal=tmp_path / "j").ret_value == expected and not CALLS and not mock.call_log  # of the first cell, which is still known
    linecache.cache.pop("<ipython-input-1>")
    with pytest.raises(JournalError, match=r"@lmc\.host"):
        lmc.function(types.FunctionType(first.func.__code__.replace(co_filename="<ipython-input-gone>"), names)).run(backend=lmc.Mock(), journal=tmp_path / "k")


def test_a_marked_function_needs_no_source(tmp_path: Path) -> None:
    """The remedy that the error names."""
    made: dict[str, Any] = {"lmc": lmc, "tool": tool}
    exec("def helper(s_text):\n    return tool(s_text)", made)
    marked = lmc.host(made["helper"])
    CALLS.clear()
    for _ in range(2):
        assert calls_with_text.run(marked, backend=lmc.Mock(), seed=1, journal=tmp_path / "j").ret_value
    assert len(CALLS) == 1


@lmc.function
def calls_with_text(s: Any, helper: Any) -> Any:
    s += "q" + lmc.gen("a", max_tokens=2)
    return helper(s["a"])


def test_threads_that_come_at_once_find_all_code_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that looks while another builds must not take what is there by then for the whole."""
    module = loaded(tmp_path / "at_once.py", SOURCE)
    building, looked = threading.Event(), threading.Event()
    real = instrument.codes

    def slow(code: Any) -> Any:
        building.set()
        looked.wait(0.2)  # the other thread has to wait for this one, or goes on at once
        return real(code)

    monkeypatch.setattr(instrument, "codes", slow)

    def other() -> Any:
        building.wait()
        try:
            return twin(module.program.func)
        finally:
            looked.set()

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(twin, module.program.func), pool.submit(other)]
        assert all(f.result().__code__ is found[0].result().__code__ for f in found)
