"""Run-ahead leaves no trace: no finalizer later, no warning, no code of the user's, no exception of a signal's handler lost."""

# ruff: noqa: B034, PIE796, SIM300 (programs are written as people write them)

from __future__ import annotations

import asyncio
import collections
import dataclasses
import enum
import gc
import re
import signal
import sys
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pydantic
import pytest

import lmc
from lmc.runahead.evaluating import ProgramSource
from tests.backend.gated import Gated
from tests.conformance.harness import eager

DONE: list[str] = []
MODES = ("run", "off", "certain", "likely")


def execute(program: Any, mode: str, *args: Any, latency: float = 0.001, **answers: Any) -> Any:
    """Run a program that evaluates at every wait; return its value."""
    DONE.clear()
    backend = lmc.Mock(answers or None, latency=latency)
    call = program.run if mode == "run" else eager(lmc.compile(program, ahead=mode))
    return call(*args, backend=backend).ret_value


class Released:
    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        DONE.append(f"released {self.name}")


@dataclasses.dataclass
class Job:
    name: str
    held: Any = None


@lmc.function
def releases(s, jobs, table, pair):
    s += "a" + lmc.gen("a", max_tokens=3)
    s["a"]
    jobs.pop()
    DONE.append("popped")
    table.clear()
    DONE.append("cleared")
    jobs[0].held = None
    DONE.append("forgotten")
    s += "b" + lmc.gen("b", max_tokens=3)
    return s["b"]


@pytest.mark.parametrize("mode", MODES)
def test_finalizers_run_when_python_lets_go(mode: str) -> None:
    jobs = [Job("one", Released("held")), Released("popped")]
    execute(releases, mode, jobs, {"k": Released("value")}, (1, 2))
    assert DONE == ["released popped", "popped", "released value", "cleared", "released held", "forgotten"]


@pytest.mark.parametrize("mode", MODES)
def test_what_a_run_was_given_is_let_go_of_when_it_ends(mode: str) -> None:
    program, backend = eager(lmc.compile(releases, ahead="certain" if mode == "run" else mode)), lmc.Mock(latency=0.001)
    jobs = [Job("one"), Job("two")]
    seen = weakref.ref(jobs[0])
    gc.disable()
    try:
        state = (releases.run if mode == "run" else program)(jobs, {}, (jobs[0], Job("three")), backend=backend)
        del jobs
        assert seen() is None and state["b"]
    finally:
        gc.enable()


@lmc.function
def patterns(s, q):
    s += q + lmc.gen("a", max_tokens=3)
    found = [re.findall(s["a"][:0] + "[[b]" + q, "bb")]
    s += "b<|im_end|>" + lmc.gen("b", max_tokens=3)
    s["b"]
    found.append(re.compile("[[c]" + q).findall("c"))
    found.append(re.sub("x", "y", q, 1, re.IGNORECASE))  # which Python 3.13 warns of
    s += "c" + lmc.gen("c", max_tokens=3)
    found.append(bool(NotImplemented) if sys.version_info < (3, 14) else 0)
    s += "d" + lmc.gen("d", max_tokens=3)
    return found


def test_warnings_name_the_programs_lines_and_come_once() -> None:
    seen: list[list[tuple[str, int, str]]] = []
    for mode in MODES:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            re.purge()
            execute(patterns, mode, "q")
        seen.append([(w.filename, w.lineno, str(w.message)) for w in caught])
    assert all(found == seen[0] for found in seen) and seen[0] and {file for file, _, _ in seen[0]} == {__file__}


@lmc.function
def ends_early(s):
    for i in range(3):
        (f,) = s.fork(1)
        f += str(i) + "<|im_end|>" * i + lmc.gen("a", max_tokens=3)
        if f["a"] == "no":
            break
    s += "b<|im_end|>" + lmc.gen("b", max_tokens=3)


@pytest.mark.parametrize("mode", MODES)
def test_warnings_of_requests_that_python_never_makes_are_raised_where_it_makes_another(mode: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        execute(ends_early, mode, a="no", b="so")
    assert [w.lineno - ends_early.func.__code__.co_firstlineno for w in caught] == [7]


class Key:
    def __hash__(self) -> int:
        DONE.append("hash")
        return 1

    def __eq__(self, other: object) -> bool:
        DONE.append("eq")
        return self is other


@lmc.function
def untouched(s, given):
    DONE.append("begins")
    s += "a" + lmc.gen("a", max_tokens=3)
    s["a"]
    s += "b" + lmc.gen("b", max_tokens=3)
    s["b"]
    DONE.append("ends")


class OwnDict:
    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        DONE.append("dict")
        return {}


class OwnClass:
    @property
    def __class__(self) -> type:  # type: ignore[override]
        DONE.append("class")
        return int


@pytest.mark.parametrize("make", [
    lambda: collections.OrderedDict([(Key(), 1), (Key(), 2)]), lambda: collections.Counter([Key(), Key()]),
    lambda: collections.defaultdict(int, {Key(): 1, Key(): 2}), lambda: {Key(): 1, Key(): 2}, lambda: {Key(), Key()}, lambda: [{Key()}], OwnDict, OwnClass,
])  # fmt: skip
def test_arguments_are_copied_without_running_their_code(make: Callable[[], Any]) -> None:
    for mode in MODES:
        given = make()
        execute(untouched, mode, given)
        assert DONE == ["begins", "ends"]


class Lazy(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        DONE.append(name)
        return super().__getattribute__(name)


lazy = Lazy("lazy")
lazy.text = "hello"


class Odd:
    def __eq__(self, other: object) -> bool:
        DONE.append("compared")
        return False

    def __call__(self, *args: Any) -> str:
        DONE.append("shown")
        return "shown"


class Values(enum.Enum):
    ODD = Odd()
    TWO = 2


class Shown(enum.Enum):
    ONE = 1
    __str__ = Odd()  # type: ignore[assignment]
    __format__ = Odd()  # type: ignore[assignment]


@lmc.function
def outside(s, q):
    s += q + lmc.gen("a", max_tokens=3)
    s["a"]
    DONE.append("begins")
    s += lazy.text + lmc.gen("b", max_tokens=3)
    s["b"]
    s += Values(2).name + f"{Shown.ONE}" + lmc.gen("c", max_tokens=3)
    return s["c"]


def test_modules_and_enums_with_code_of_their_own_are_left_alone() -> None:
    expected: list[str] = []
    for mode in MODES:
        execute(outside, mode, "q")
        expected = expected or list(DONE)
        assert DONE == expected and DONE[0] == "begins"
    DONE.clear()
    eager(lmc.compile(outside)).batch([("q",)], backend=lmc.Mock(latency=0.001))
    assert DONE == expected


class Model(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def checked(cls, value: str) -> str:
        DONE.append("validator")
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        DONE.append("schema")
        return handler(core_schema)


@dataclasses.dataclass
class Record:
    name: str

    def __post_init__(self) -> None:
        DONE.append("post_init")


@lmc.function
def typed(s, q, model):
    s += "z" + lmc.gen("z", max_tokens=3)
    s["z"]
    DONE.append("z")
    s += q + lmc.gen("a", json_schema=model, max_tokens=30)
    name = s.parsed("a").name
    DONE.append("a")
    s += "b" + lmc.gen("b", max_tokens=3)
    s["b"]
    s += name + lmc.gen("c", dtype=Record, max_tokens=30)
    s["c"]
    DONE.append("c")
    s += s.parsed("c").name + lmc.gen("d", max_tokens=3)
    return s["d"]


@pytest.mark.parametrize("mode", MODES)
def test_validators_and_schemas_of_the_users_run_when_the_program_gets_there(mode: str) -> None:
    made = type("Made", (Model,), {})  # whose schema was not read yet
    execute(typed, mode, "q", made, a='{"name":"x"}', b="k", c='{"name":"x"}', z="z")
    whole = list(DONE)
    assert [*dict.fromkeys(whole)] == ["z", "schema", "validator", "a", "c", "post_init"]
    assert whole.count("validator") == whole.count("post_init") == 1


class Plain(pydantic.BaseModel):
    name: str
    tags: list[str] = []


@lmc.function
def structured(s, rows):
    found = []
    for row in rows:
        (f,) = s.fork(1)
        f += row + lmc.gen("x", json_schema=Plain, max_tokens=30)
        found.append(f.parsed("x").name)
    return found


def test_what_asks_for_a_plain_model_is_asked_ahead() -> None:
    program = eager(lmc.compile(structured, backend=Gated(3, {"x": '{"name":"x","tags":[]}'})))
    state = program(["a", "b", "c"])
    assert state.ret_value == ["x", "x", "x"] and state.usage.ahead_used == 2


FAILED = ValueError("of everybody")


@lmc.function
def in_scope(s, q):
    try:
        raise FAILED
    except ValueError as error:
        s += q + lmc.gen("a", max_tokens=3)
        s["a"]
        seen = [line.name for line in traceback.extract_tb(error.__traceback__)]
    s += "b" + lmc.gen("b", max_tokens=3)
    try:
        with s.user():
            raise FAILED
    except ValueError:
        pass
    return seen


@pytest.mark.parametrize("mode", MODES)
def test_tracebacks_of_exceptions_of_the_outside_stay_as_they_are(mode: str) -> None:
    FAILED.__traceback__ = None
    assert execute(in_scope, mode, "q") == ["in_scope"]


class Late(Exception):
    pass


@lmc.function
def interrupted(s, q):
    s += q + lmc.gen("a", max_tokens=3)
    try:
        return s["a"]
    except Late:
        return "late"


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of POSIX")
def test_what_a_signal_raises_while_a_program_is_evaluated_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(*_: Any) -> None:
        raise Late

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGUSR1, handler)
    honest = ProgramSource.evaluate

    def evaluate(*args: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return honest(*args)

    monkeypatch.setattr(ProgramSource, "evaluate", evaluate)
    try:
        assert execute(interrupted, "certain", "q", latency=60) == "late"  # which ends the wait, however late the evaluation begins
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="signals of POSIX")
def test_nor_is_it_taken_for_what_the_program_raises() -> None:
    from lmc.frontend.capture.operations import native

    def handler(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Late):
            native(signal.raise_signal, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def locals_of_caller() -> dict[str, Any]:
    return sys._getframe(1).f_locals


@lmc.function
def keeps_locals(s, q):
    held = locals_of_caller()
    text = eval("q")
    s += text + lmc.gen("a", max_tokens=3)
    s["a"]
    s += text + lmc.gen("b", max_tokens=3)
    s["b"]
    return held["q"]


@pytest.mark.parametrize("mode", MODES)
def test_locals_that_somebody_holds_are_not_emptied(mode: str) -> None:
    assert execute(keeps_locals, mode, "q") == "q"


CALLED: list[str] = []


@lmc.pure
def find(query: str) -> list[str]:
    CALLED.append(query)
    return [query, query.upper()]


@lmc.function
def finds(s, queries):
    notes = []
    for query in queries:
        (fork,) = s.fork(1)
        fork += " ".join(find(query)) + lmc.gen("note", max_tokens=3)
        notes.append(fork["note"])
    return notes


@pytest.mark.parametrize("mode", MODES)
def test_what_python_has_called_is_not_called_again_ahead(mode):
    expected = execute(finds, "run", ["a", "b", "c"])
    CALLED.clear()
    assert execute(finds, mode, ["a", "b", "c"], latency=0.01) == expected
    assert sorted(CALLED) == ["a", "b", "c"]


class Desk:
    """Holds the state of a run, so that all requests are made on one line."""

    state: Any

    def ask(self, name: str, text: str) -> str:
        (fork,) = self.state.fork(1)
        fork += text + lmc.gen(name, max_tokens=3)
        return fork[name]


@lmc.function
def answers(s, questions, more):
    """How many turns each question takes, only Python can tell."""
    desk = Desk()
    desk.state = s
    found = []
    for question in questions:
        seen = desk.ask("turn", question)
        while more(seen):
            seen = desk.ask("turn", question + seen)
        found.append(desk.ask("end", question + seen))
    return found


def test_an_answer_is_not_taken_for_that_of_another_request_on_the_same_line():
    def counting() -> Callable[[str], bool]:
        turns = iter([True, True, False] * 2)
        return lambda _: next(turns)

    expected = answers.run(["one", "two"], counting(), backend=lmc.Mock(), temperature=0).ret_value
    backend = Gated()
    state = eager(lmc.compile(answers), evaluated=backend.answer)(["one", "two"], counting(), backend=backend, temperature=0)
    assert state.ret_value == expected
    assert (state.usage.calls, state.usage.ahead_used, state.usage.ahead_wasted) == (8, 1, 0)


@lmc.pure
def looked_up(x):
    return x if isinstance(x, str) else len(x)


@lmc.function
def looks_up_what_holds_itself(s):
    s += "a" + lmc.gen("a", max_tokens=3)
    s["a"]
    s += looked_up("b") + lmc.gen("b", max_tokens=3)
    s["b"]
    ring = []
    ring.append(ring)
    return looked_up(ring)


@pytest.mark.parametrize("mode", MODES)
def test_an_argument_that_holds_itself_is_no_error(mode: str) -> None:
    assert execute(looks_up_what_holds_itself, mode) == 1


@lmc.function
async def chains(s, items):
    """Which of the second requests is the first one, only the answers decide."""

    async def chain(item: str) -> str:
        first = (await child.arun(item))["a"]
        return (await child.arun(f"{item} {first}"))["a"]

    found = await asyncio.gather(*map(chain, items))
    return found, [child.run(x)["a"] for x in found]


def test_requests_of_tasks_are_not_taken_for_one_another():
    order = {"a": 0.03, "b": 0.02, "c": 0.01}
    backend = lambda: lmc.Mock(lambda prompt, _: str(prompt)[:1] + "!", latency=lambda _, prompt: order[str(prompt)[0]])
    expected = asyncio.run(chains.arun(["a", "b", "c"], backend=backend())).ret_value
    state = eager(lmc.compile(chains))(["a", "b", "c"], backend=backend())
    assert state.ret_value == expected and (state.usage.calls, state.usage.ahead_wasted) == (9, 0)


@lmc.function
def sampled(s, q):
    s += q + lmc.gen("a", max_tokens=3, temperature=1)
    return s["a"]


@lmc.function
async def chains_of_known_requests(s, items):
    async def chain(item: str) -> str:
        first = (await sampled.arun(item)).ret_value
        return first + (await sampled.arun(f"{item} again")).ret_value

    return await asyncio.gather(*map(chain, items))


def test_known_requests_of_tasks_are_made_at_once():
    state = eager(lmc.compile(chains_of_known_requests))(["a", "b"], backend=Gated(4))
    assert state.ret_value and (state.usage.calls, state.usage.ahead_wasted) == (4, 0)


class Shelf:
    def __init__(self, name: str, above: Shelf | None = None) -> None:
        self.name, self.books = name, list[str]()
        if above is not None:
            above.books.append(name)

    def place(self, book: str) -> None:
        self.count(book)

    def count(self, book: str) -> None:
        self.books.append(book)


@lmc.function
def shelves(s, kind):
    """A skipped loop changes objects: by a constructor, by a method, by a method of a method."""
    shelf = Shelf("top")
    for line in child("list")["a"].splitlines():
        if kind == "constructor":
            Shelf(line, shelf)
        elif kind == "keyword":
            Shelf(line, above=shelf)
        elif kind == "method":
            shelf.count(line)
        else:
            shelf.place(line)
    return child(f"{shelf.books}")["a"]


@lmc.function
def child(s, text):
    s += text + lmc.gen("a", max_tokens=4, temperature=0)


@pytest.mark.parametrize("kind", ["constructor", "keyword", "method", "deeper"])
def test_what_skipped_code_does_to_objects_is_not_known(kind):
    state = eager(lmc.compile(shelves))(kind, backend=lmc.Mock({"a": "x\ny"}, latency=0.02))
    assert (state.usage.calls, state.usage.ahead_asked) == (2, 0)
