"""Exceptions: caught, raised, re-raised and chained by programs; compiled paths go on without the interpreter.

PYTEST_DONT_REWRITE: an `assert` of a program says what it says.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from tests.conformance.harness import case, cases, effect

# ruff: noqa: TRY301, TRY203, B904, RUF100


class ToolError(Exception):
    """Its constructor is not that of an exception."""

    def __init__(self, what: str, *, code: int) -> None:
        super().__init__(f"{what} ({code})")
        self.code = code


class Worse(ToolError):
    pass


class Flag(ValueError):
    def __new__(cls, *_: Any) -> Flag:
        return super().__new__(cls)

    def __str__(self) -> str:
        return "flag"


def tool(x: str) -> str:
    """Upper case; raises for texts with an e, and worse for those with an a."""
    effect("tool", x)
    if "a" in x:
        raise Worse(x, code=2)
    if "e" in x:
        raise ToolError(x, code=1)
    return x.upper()


def current() -> str:
    """What a function that is called in a handler sees."""
    error = sys.exception()
    effect("current", type(error).__name__, str(error))
    return type(error).__name__


def again() -> None:
    raise  # noqa: PLE0704  # the handler's


WORDS = ("cake", "pie", "jam", "oops", "12", " 7", "egg", "fig")


def answers(prompt: str, _: Any) -> str:
    """A word that depends on the prompt."""
    return WORDS[sum(map(ord, prompt)) % len(WORDS)]


def varied() -> Mock:
    return Mock(answers={name: answers for name in "xyzn"})


ITEMS = [{"q": c} for c in ("a", "bc", "d", "ef", "g", "hij", "k", "lm")]
compiled = lambda **options: case(ITEMS, backend=varied, **options)  # noqa: E731


@compiled()
def retries(s: Any, q: str) -> Any:
    for attempt in range(3):
        s += f"{q} {attempt}:" + lmc.gen("n", max_tokens=4)
        try:
            n = int(s["n"])
            break
        except ValueError as error:
            s += f"Not a number: {error}.\n"
    else:
        return None
    return n


@compiled()
def tool_errors(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    try:
        result = tool(s["x"])
    except Worse as error:
        effect("worse", error.code)
        return error.args
    except ToolError as error:
        s += f"error: {error} {error!r} {error.code:>3}" + str(error.args[0]) + "%s" % error  # noqa: UP031
        result = str(error.code + 1)
    s += result + lmc.gen("y", max_tokens=4)
    return result


@compiled()
def in_a_helper(s: Any, q: str) -> Any:
    def ask(text: str) -> int:
        s.__iadd__(text + lmc.gen("n", max_tokens=4))
        return int(s["n"])

    total = 0
    for i in range(3):
        try:
            total += ask(f"{q}{i}")
        except ValueError:
            s += "?"
        else:
            s += "!"
        finally:
            effect("asked", i)
    return total


@compiled()
def nested(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    found = []
    try:
        try:
            found.append(tool(s["x"]))
        except Worse as error:
            found.append("worse")
            raise ValueError(f"from {error}") from error
        finally:
            effect("inner")
            found.append("inner")
    except ToolError as error:
        found.append(f"outer {error}")
    except ValueError as error:
        found += [str(error), type(error.__cause__).__name__, error.__cause__ is error.__context__]
    return found


@compiled()
def own_errors(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    effect("asked", s["x"])
    if "a" in s["x"]:
        raise ToolError(f"has a: {s['x']}", code=len(s["x"]))
    assert "e" not in s["x"], f"has e: {s['x']}"
    if "i" in s["x"]:
        raise KeyError
    s += lmc.gen("y", max_tokens=4)
    return s["y"]


@compiled()
def caught_own_errors(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    try:
        if "a" in s["x"]:
            raise ToolError(f"has a: {s['x']}", code=len(s["x"]))
        assert "e" not in s["x"], f"has e: {s['x']}"
        if "i" in s["x"]:
            raise Flag("no", "matter")
    except (ToolError, AssertionError) as error:
        return type(error).__name__, str(error), isinstance(error, ToolError), getattr(error, "code", None)
    except Exception as error:
        return str(error), error.args, error.__class__ is Flag, type(error) is Flag
    return s["x"]


@compiled()
def raised_again(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    try:
        try:
            tool(s["x"])
        except ToolError as error:
            effect("log", str(error))
            if error.code == 2:
                raise
            raise error
    except ToolError as error:
        s += str(error.code)
    s += lmc.gen("y", max_tokens=4)
    return s["y"]


@compiled()
def uncaught_from_a_handler(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    try:
        return tool(s["x"])
    except ToolError as error:
        raise RuntimeError(f"no tool for {q}: {error}") from error


@compiled()
def finally_returns(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)

    def inner() -> Any:
        try:
            return tool(s["x"])
        except Worse:
            return "worse"
        finally:
            effect("finally")
            if "g" in s["x"]:
                return "swallowed"  # noqa: B012

    try:
        return inner()
    except ToolError:
        return "tool error"


@compiled()
def the_current_exception(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    before = current()
    try:
        tool(s["x"])
    except ToolError as error:
        seen = current(), type(sys.exception()).__name__, sys.exc_info()[1] is error
        try:
            again()
        except ToolError as same:
            return before, seen, same is error, current()
    return before, current()


@compiled()
def errors_that_are_kept(s: Any, q: str) -> Any:
    errors = []
    for i in range(3):
        s += f"{q}{i}" + lmc.gen("x", max_tokens=4)
        try:
            tool(s["x"])
        except ToolError as error:
            error.add_note(f"in turn {i}")
            error.turn = i
            errors.append(error)
    effect("errors", [str(e) for e in errors])
    return [(str(e), e.turn, e.__notes__) for e in errors]


@compiled()
def iteration(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)

    found = []
    try:
        for part in parts(s["x"]):
            found.append(part)
            s += part
    except LookupError as error:
        found.append(f"{type(error).__name__} {error}")
    return found


def parts(text: str) -> Any:
    for c in text:
        if c == "e":
            raise KeyError(c)
        yield c


@compiled()
def until_it_raises(s: Any, q: str) -> Any:
    s += q
    left = numbers(q)
    while True:
        try:
            n = next(left)
        except StopIteration:
            break
        s += str(n)
    return s.text()


def numbers(text: str) -> Any:
    return iter(range(3 * len(text)))


@compiled()
def unpacking_and_operators(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    found = []
    for what in range(5):
        try:
            match what:
                case 0:
                    a, b = s["x"].split("g")
                    found.append(a + b)
                case 1:
                    found.append(10 // len(s["x"].strip("ig")))
                case 2:
                    found.append(s["x"][3])
                case 3:
                    found.append({"cake": 1, "pie": 2}[s["x"]])
                case _:
                    found.append(s["x"] + int(s["x"]))
        except (ValueError, ZeroDivisionError) as error:
            found.append(str(error))
        except (IndexError, KeyError) as error:
            found.append(repr(error))
        except TypeError as error:
            found.append(error.args)
    return found


@compiled()
def handler_by_tuple_and_base(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    known = (KeyError, ToolError)
    try:
        return tool(s["x"])
    except known as error:
        return isinstance(error, Worse), isinstance(error, known), issubclass(type(error), Exception)


@compiled()
def in_an_open_role(s: Any, q: str) -> Any:
    for i in range(2):
        try:
            with s.user():
                s += f"{q} {i}"
                s += tool(s["x"] if i else q)
        except ToolError as error:
            s += lmc.user(f"sorry, {error}")
        s += lmc.assistant(lmc.gen("x", max_tokens=4))
    return len(s.messages())


@compiled()
def uncaught_after_effects(s: Any, q: str) -> Any:
    effect("begin")
    try:
        with s.user():
            s += q
            if len(q) > 1:
                raise LookupError(q)
    finally:
        effect("end", s.text())
    s += lmc.gen("x", max_tokens=4)
    return s["x"]


@case(ITEMS, backend=varied)
def groups(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    try:
        fail_twice(s["x"])
    except* ToolError as group:
        s += str(len(group.exceptions))
    except* KeyError:
        s += "key"
    s += lmc.gen("y", max_tokens=4)
    return s["y"]


def fail_twice(x: str) -> None:
    errors: list[Exception] = []
    for y in (x, "e"):
        try:
            tool(y)
        except ToolError as error:
            errors.append(error)
    raise ExceptionGroup("both", [*errors, KeyError(x)])


@case(ITEMS, backend=varied)
def matched(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    try:
        return tool(s["x"])
    except Exception as error:
        match error:
            case Worse(code=code):
                return "worse", code
            case ToolError(args=[text]):
                return text
            case _:
                raise


# -- tracebacks --------------------------------------------------------------------------------------------------------------


def printed() -> str:
    return traceback.format_exc()


@compiled()
def tracebacks(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)

    def helper(text: str) -> str:
        return tool(
            text) + "."  # fmt: skip

    try:
        helper(s["x"])
    except ToolError as error:
        try:
            raise ValueError(f"no {error}") from error
        except ValueError as other:
            chained = printed(), "".join(traceback.format_exception(other))
        return printed(), *chained, error.__traceback__.tb_lineno


@lmc.function
def uncaught(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)

    def helper(text: str) -> str:
        try:
            return tool(text)
        except ToolError:
            raise LookupError(q)

    return helper(s["x"])


def test_the_traceback_of_an_uncaught_exception_names_the_programs_lines() -> None:
    fast = lmc.compile(uncaught)
    for _ in range(2):
        expected, got = (_traceback(call, backend=Mock(answers={"x": "pie"})) for call in (uncaught.run, fast))
        assert got == expected
        assert [name for _, _, name in got[-1]] == ["uncaught", "helper"]


def _traceback(call: Any, **options: Any) -> list[list[tuple[str, int | None, str]]]:
    """Places of the exception that a call ends with, and of those behind it; lmc's own lines and the test's left out."""
    found = []
    with pytest.raises(LookupError) as raised:
        call("q", **options)
    error: BaseException | None = raised.value
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        own = [(f.filename, f.lineno, f.name) for f in frames if f.filename == __file__ and not f.name.startswith(("test", "_"))]
        found.insert(0, own)
        error = error.__context__
    return found


ALL = cases(globals())


@pytest.mark.parametrize("name", ALL)
def test_means_the_same_in_every_execution(name: str) -> None:
    ALL[name].check()


# -- the graph ---------------------------------------------------------------------------------------------------------------


@lmc.function
def parsed(s: Any, q: str) -> Any:
    s += q + lmc.gen("n", max_tokens=4)
    n = s["n"]
    try:
        return int(n)
    except ValueError:
        raise LookupError(q) from None
