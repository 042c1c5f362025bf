"""`with`: context managers of the host, of the program and of the language, their exceptions and their threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import lmc
from tests.conformance.harness import case, cases, effect
from tests.conformance.test_exceptions import ITEMS, ToolError, tool, varied

LOCK = threading.RLock()
HELD = threading.local()

compiled = lambda **options: case(ITEMS, backend=varied, replays=0, **options)  # noqa: E731


class Guard:
    """Notes what it sees; swallows exceptions of a class."""

    def __init__(self, name: str, swallows: type[BaseException] | tuple[()] = ()) -> None:
        self.name, self.swallows = name, swallows
        self.pair = (name, [name])

    def __enter__(self) -> Guard:
        effect("enter", self.name, threading.current_thread().name == getattr(HELD, "thread", None))
        return self

    def __exit__(self, cls: Any, error: Any, traceback: Any) -> bool:
        effect("exit", self.name, cls and cls.__name__, str(error), traceback is not None)
        return cls is not None and issubclass(cls, self.swallows)


@contextlib.contextmanager
def noted(what: str) -> Iterator[str]:
    effect("begin", what)
    try:
        yield what.upper()
    except ToolError as error:
        effect("noted", str(error))
        raise
    finally:
        effect("end", what)


@compiled()
def a_lock(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    with LOCK:
        s += s["x"].upper()
        effect("locked", s["x"])
    s += lmc.gen("y", max_tokens=4)
    return s["y"]


@compiled()
def a_lock_and_an_error(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    try:
        with LOCK:
            result = tool(s["x"])
    except ToolError as error:
        result = str(error)
    return result


@compiled()
def what_as_names(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    table: dict[str, Any] = {}
    with Guard(s["x"]) as guard, contextlib.nullcontext((guard.name, [q, "b", "c"])) as (name, [first, *rest]):
        with contextlib.nullcontext(name + first) as table["k"]:
            s += table["k"]
    return name, first, rest, table, guard.pair


@compiled()
def suppressed(s: Any, q: str) -> Any:
    found = []
    for i in range(3):
        s += f"{q}{i}" + lmc.gen("n", max_tokens=4)
        with contextlib.suppress(ValueError, ToolError):
            found.append(tool(s["n"]))
            found.append(int(s["n"]))
            s += "number"
        s += "."
    return found


@compiled()
def swallowed_by_an_own_class(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    with Guard("outer", ToolError), Guard("inner", KeyError):
        s += tool(s["x"])
        return "returned"
    return "swallowed"


@compiled()
def generators_of_the_host(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    try:
        with noted(s["x"]) as shout:
            s += shout
            s += tool(s["x"])
    except ToolError:
        s += "failed"
    return s.text()


@compiled()
def plain_generators_of_the_program(s: Any, q: str) -> Any:
    @contextlib.contextmanager
    def section(title: str) -> Iterator[Any]:
        s.__iadd__(f"<{title}>")
        yield s
        s.__iadd__(f"</{title}>")

    s += q + lmc.gen("x", max_tokens=4)
    try:
        with section("one") as inner:
            inner += tool(s["x"]) + lmc.gen("y", max_tokens=4)
    except ToolError as error:
        s += str(error)
    return s.text()


@case(ITEMS, backend=varied)
def generators_of_the_program(s: Any, q: str) -> Any:
    @contextlib.contextmanager
    def section(title: str) -> Iterator[Any]:
        s.__iadd__(f"<{title}>")
        try:
            yield s
        except ToolError as error:
            s.__iadd__(f"({error})")
        finally:
            s.__iadd__(f"</{title}>")

    s += q + lmc.gen("x", max_tokens=4)
    with section("one") as inner:
        inner += tool(s["x"]) + lmc.gen("y", max_tokens=4)
    with section(s["x"]):
        s += "end"
    return s.text()


@compiled()
def a_manager_with_the_state(s: Any, q: str) -> Any:
    class Tag:
        def __init__(self, state: Any, name: str) -> None:
            self.state, self.name = state, name

        def __enter__(self) -> Any:
            self.state += f"<{self.name}>"
            return self

        def __exit__(self, cls: Any, error: Any, traceback: Any) -> Any:
            self.state += f"</{self.name}>" if error is None else f"<{error}/>"
            return cls is not None and "pie" in str(error)

    s += q + lmc.gen("x", max_tokens=4)
    try:
        with Tag(s, "a") as tag:
            s += tag.name + tool(s["x"])
    except ToolError as error:
        s += f"!{error.code}"
    return s.text()


@compiled()
def roles_inside_a_lock(s: Any, q: str) -> Any:
    with LOCK, s.user():
        s += q
    with s.assistant():
        s += lmc.gen("x", max_tokens=4)
    return len(s.messages())


@compiled()
def uncaught_inside(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    with Guard("outer"), LOCK:
        if "a" in s["x"]:
            raise LookupError(s["x"])
        tool(s["x"])
    return s["x"]


@compiled()
def a_file(s: Any, q: str) -> Any:
    with open(__file__) as f:
        first = f.readline()
        for line in f:
            if "PYTEST" in line or "import" in line:
                s += line
                break
    s += lmc.gen("x", max_tokens=4)
    return first, f.closed


ALL = cases(globals())


@pytest.mark.parametrize("name", ALL)
def test_means_the_same_in_every_execution(name: str) -> None:
    ALL[name].check()
