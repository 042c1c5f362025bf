"""`with`: context managers of the host, of the program and of the language, their exceptions and their threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import lmc
from tests.conformance.harness import case, cases, effect, opaque
from tests.conformance.test_exceptions import ITEMS, ToolError, tool, varied

LOCK = threading.RLock()
HELD = threading.local()

compiled = lambda **options: case(ITEMS, backend=varied, **options)  # noqa: E731


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


# managers that are generator functions of the program, with `try` around their `yield`


@contextlib.contextmanager
def section(s: Any, name: str) -> Iterator[Any]:
    s += f"[{name}"
    effect("begins", name)
    try:
        yield s
    except ValueError as error:
        effect("handles", str(error))
        s += "!"
    else:
        effect("fine")
    finally:
        effect("ends", name)
        s += "]"


@compiled()
def section_of_answers(s: Any, q: str) -> Any:
    for f in s.fork(2):
        with section(f, "a") as inside:
            inside += q + lmc.gen("x", max_tokens=4)
        s += f["x"]


@compiled()
def section_left_early(s: Any, q: str) -> Any:
    for i in range(3):
        with section(s, str(i)):
            s += lmc.gen("x", max_tokens=2)
            if i == 0:
                continue
            if "a" in s["x"]:
                break
            return i
    return "end"


@compiled()
def section_that_handles(s: Any, q: str) -> Any:
    with section(s, "outer"), section(s, "inner"):
        s += q + lmc.gen("x", max_tokens=4)
        return int(s["x"])
    return "handled"


@compiled()
def section_that_does_not_handle(s: Any, q: str) -> Any:
    try:
        with section(s, "outer"):
            s += q + lmc.gen("x", max_tokens=4)
            tool(s["x"])
            {}[s["x"]]
    except (KeyError, ToolError) as error:
        return repr(error)


@compiled()
def section_defined_inside(s: Any, q: str) -> Any:
    @contextlib.contextmanager
    def turn(n):
        try:
            with s.var_scope(f"turn{n}"):
                yield n
        except LookupError as error:
            raise ValueError(n) from error
        finally:
            s.__iadd__("-")

    @contextlib.contextmanager
    def plain():
        yield 3

    with turn(1) as n, plain() as m:
        s += f"{n}{m}" + q
    try:
        with turn(2), turn(3):
            s += lmc.gen("x", max_tokens=4)
            {}[s["x"]]
    except ValueError as error:
        return repr(error), repr(error.__cause__), repr(error.__context__)


class Writer:
    def __init__(self, s: Any) -> None:
        self.s, self.depth = s, 0

    @contextlib.contextmanager
    def deeper(self) -> Iterator[int]:
        self.depth += 1
        try:
            yield self.depth
        except (ValueError, KeyError) as error:
            self.s += type(error).__name__
        finally:
            self.depth -= 1


@compiled()
def section_that_is_a_method(s: Any, q: str) -> Any:
    writer = Writer(s)
    with writer.deeper() as n:
        s += q + str(n) + lmc.gen("x", max_tokens=4)
        with writer.deeper():
            int(s["x"])
        {}[s["x"]]
    return writer.depth


@case(ITEMS, backend=varied)
def sections_that_are_not_captured(s: Any, q: str) -> Any:
    @contextlib.contextmanager
    def all_of_it(s):
        try:
            yield
        except BaseException as error:
            effect(type(error).__name__)
            raise

    @contextlib.contextmanager
    def short():
        try:
            yield 3
        finally:
            effect("short")

    by_hand = short()
    by_hand.__enter__()
    with contextlib.ExitStack() as stack:
        s += str(stack.enter_context(short())) + lmc.gen("x", max_tokens=4)
    short()(effect)("called")
    by_hand.__exit__(None, None, None)
    with all_of_it(s):
        s += "!"
        int(s["x"])


@case(ITEMS, backend=varied)
def section_that_the_interpreter_ends(s: Any, q: str) -> Any:
    with section(s, "a") as inside:
        inside += q + lmc.gen("x", max_tokens=4)
        opaque(q)
        int(s["x"])




# -- generators with `try` or `with` around their `yield`

def counted(s: Any, n: int) -> Any:
    try:
        for i in range(n):
            s += f"{i}" + lmc.gen("x", max_tokens=2)
            yield s["x"]
    except ValueError as e:
        effect("caught", str(e))
    finally:
        effect("end", n)
        s += "|"


@case()
def run_to_their_ends(s: Any, q: str) -> Any:
    s += q
    for x in counted(s, 2):
        s += x.upper()
    s += ",".join(counted(s, 2)) + str(list(counted(s, 1))) + "".join([y + "!" for y in counted(s, 2)])
    return s.text()


@case()
def left_by_break(s: Any, q: str) -> Any:
    s += q
    for x in counted(s, 3):
        effect("got", x)
        if x > "a":
            break
    effect("after")
    s += lmc.gen("z", max_tokens=2)


@case()
def kept_by_name(s: Any, q: str) -> Any:
    s += q
    g = counted(s, 2)
    effect(next(g))
    effect("mid")
    return 1


@case()
def kept_by_enumerate(s: Any, q: str) -> Any:
    s += q
    for i, _ in enumerate(counted(s, 2)):
        effect(i)
        break
    effect("after")


@case()
def inside_of_another(s: Any, q: str) -> Any:
    s += q
    def outer() -> Any:
        for x in counted(s, 2):
            yield x
    for _ in outer():
        break
    effect("after")


@case()
def left_by_return(s: Any, q: str) -> Any:
    s += q
    def first() -> Any:
        for x in counted(s, 2):
            return x
    effect(first())
    effect("after")
    return s["x"]


@case()
def left_by_an_exception(s: Any, q: str) -> Any:
    s += q
    try:
        for x in counted(s, 2):
            int(x)
    except ValueError:
        s += "no"
    effect("after")


@case()
def with_blocks_inside(s: Any, q: str) -> Any:
    s += q + lmc.gen("y", max_tokens=2)
    def boom(n: int) -> Any:
        with contextlib.suppress(ValueError):
            yield n
            int(s["y"])
            yield 2
        with s.user():
            yield 3
    return [i for i in boom(1)], list(counted(s, 0))


@case()
def dropped_by_del(s: Any, q: str) -> Any:
    s += q
    g = counted(s, 2)
    for x in g:
        if x > "a":
            break
    effect("held")
    s += "!"
    del g
    effect("gone")


@case()
def kept_in_a_list(s: Any, q: str) -> Any:
    s += q
    gs = [counted(s, 1), counted(s, 2)]
    effect(next(gs[0]))
    gs.clear()
    effect("cleared")


@case()
def in_a_generator_expression(s: Any, q: str) -> Any:
    s += q
    found = any(x > "a" for x in counted(s, 2))
    a, b = counted(s, 2)
    return found, a, b, [*counted(s, 1)], dict(zip("ab", counted(s, 2), strict=False))


@case()
def under_a_name_at_once(s: Any, q: str) -> Any:
    s += q
    steps = counted(s, 2)
    for x in steps:
        effect(x)
    return s["x"]


# -- groups of forks


@contextlib.contextmanager
def joined(s: Any, n: int, *text: str) -> Iterator[Any]:
    forks = s.fork(n)
    for f in forks:
        f += "".join(text)
    try:
        yield forks
    finally:
        forks.join()
        s += " joined " + "/".join(f["f"] for f in forks)


@compiled()
def group_left_by_a_return(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=3)
    with joined(s, 2, " go:") as forks:
        forks += lmc.gen("f", max_tokens=3)
        if max([f["f"] for f in forks]) > s["a"]:
            return [f["f"] for f in forks]
        s += lmc.gen("b", max_tokens=3)
    return forks[1]["f"] + s["b"]


@compiled()
def group_left_by_an_exception(s: Any, q: str) -> Any:
    s += q
    try:
        with joined(s, 3) as forks:
            forks += lmc.gen("f", max_tokens=3)
            for f in forks:
                effect(f["f"])
                if f["f"] < "p":
                    raise ToolError(f["f"])
    except ToolError as error:
        s += str(error) + lmc.gen("x", max_tokens=3)
    return [f.text() for f in forks]


@compiled()
def group_that_its_manager_joins(s: Any, q: str) -> Any:
    s += q
    try:
        with joined(s, 2) as forks:
            for i, f in enumerate(forks):
                f += f"{i}" + lmc.gen("f", max_tokens=3)
            if forks[0]["f"] < forks[1]["f"]:
                raise ToolError
    except ToolError:
        s += " after all"
    s += lmc.gen("end", max_tokens=3)


@compiled()
def group_in_each_turn(s: Any, q: str) -> Any:
    s += q
    for i in range(3):
        with joined(s, 2) as forks:
            forks += f"{i}" + lmc.gen("f", max_tokens=3)
            if forks[0]["f"] < forks[1]["f"]:
                break
        s += max([f["f"] for f in forks])
    s += lmc.gen("end", max_tokens=3)


@compiled()
def group_joined_inside_of_a_later_message(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(2)
    with s.user():
        forks += lmc.gen("f", max_tokens=3)
        forks.join("concate_and_append")
        s += "!"
    s += lmc.assistant(lmc.gen("x", max_tokens=3))


@compiled()
def group_whose_first_child_opens_a_message(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(2)
    forks[0] += lmc.user_begin() + lmc.gen("f", max_tokens=3)
    forks[1] += " and " + lmc.gen("f", max_tokens=3)
    forks.join("concate_and_append")
    s += lmc.user_end() + lmc.assistant(lmc.gen("x", max_tokens=3))


@case(ITEMS, backend=varied)
def group_of_a_run_that_leaves(s: Any, q: str) -> Any:
    s += q
    with joined(s, 2) as forks:
        forks += lmc.gen("f", max_tokens=3)
        opaque(s)
        forks += " more" + lmc.gen("h", max_tokens=3)
    s += forks[0]["f"] + forks[1]["h"]


def test_a_group_joined_inside_of_a_message_leaves_it_open() -> None:
    case_of: Any = group_joined_inside_of_a_later_message
    messages = case_of.program.run(q="a", backend=varied()).messages()
    assert [m["role"] for m in messages[-2:]] == ["user", "assistant"]
    assert messages[-2]["content"].endswith("!")


ALL = cases(globals())


@pytest.mark.parametrize("name", ALL)
def test_means_the_same_in_every_execution(name: str) -> None:
    ALL[name].check()
