"""Exceptions: raised, handled, chained, grouped, retried; context managers; faults of a backend."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import lmc
from lmc import gen
from lmc.backend.mock import Mock
from tests.conformance.harness import case, effect, scripted
from tests.conformance.shared import ask, by_name, child, faulty


@case([{"q": "a"}])
@case([{"q": "a"}], backend=scripted(x="12", y="ok"))
def raises_between(s: Any, q: str) -> str:
    s += q + lmc.gen("x", max_tokens=5)
    effect("before")
    n = int(s["x"])
    effect("after", n)
    s += lmc.gen("y", max_tokens=5)
    return s["y"]


@case([{"q": "a"}])
@case([{"q": "a"}], backend=scripted(x="12", y="ok"))
@case([{"q": "a"}], backend=faulty("x", error=RuntimeError))
def catches(s: Any, q: str) -> str:
    s += q + lmc.gen("x", max_tokens=5)
    try:
        effect("try")
        n = int(s["x"])
        s += "number"
    except ValueError as error:
        effect("except", str(error))
        n = -1
        s += "no number" + lmc.gen("z", max_tokens=4)
    else:
        effect("else")
    finally:
        effect("finally")
    s += lmc.gen("y", max_tokens=5)
    return f"{n} {s['y']}"


def broken(x: Any) -> str:
    effect("broken", x)
    raise RuntimeError(f"cannot {x}")


@case([{"q": "a"}, {"q": "b"}])
def tool_raises(s: Any, q: str) -> str:
    s += q + lmc.gen("x", max_tokens=5)
    try:
        s += broken(s["x"])
    except RuntimeError as error:
        s += f"failed: {error}"
    s += lmc.gen("y", max_tokens=5)
    broken("again")
    return "never"


@case([{"q": "a"}, {"q": "b"}], backend=scripted(n=["5", "no", "7"]))
@case([{"q": "a"}])
def unused_raiser(s: Any, q: str) -> None:
    s += q + lmc.gen("n", max_tokens=4)
    int(s["n"])
    effect("charge")


@case(backend=faulty("x"))
def a_fault_at_the_first_read(s: Any, q: str) -> Any:
    f = s.fork(1)[0]
    f += q + lmc.gen("x", max_tokens=2)
    effect("asked", q)
    f += "more" + lmc.gen("z", max_tokens=2)
    s += lmc.gen("y", max_tokens=2)
    effect("other", s["y"])
    text = f["x"] + "!"
    effect("never", text)
    return text


@case(backend=faulty("x"))
def a_fault_in_a_fork_that_nobody_reads(s: Any, q: str) -> Any:
    for f in s.fork(2):
        f += q + lmc.gen("x", max_tokens=2)
        f += "later" + lmc.gen("z", max_tokens=2)
    s += lmc.gen("y", max_tokens=2)
    effect("done", s["y"])
    return s["y"]


@case(backend=faulty("x"))
def bare_raise(s: Any, q: str) -> Any:
    f = s.fork(1)[0]
    f += q + lmc.gen("x", max_tokens=2)
    try:
        try:
            s += q + f["x"]
        except lmc.LmcError:
            effect("seen", q)
            raise
        finally:
            effect("finally", q)
    except Exception as error:
        s += f"after {type(error).__name__}"
    s += lmc.gen("y", max_tokens=2)
    return s["y"]


class TooShort(ValueError):
    def __init__(self, text: str, least: int) -> None:
        super().__init__(f"{text!r} is shorter than {least}")
        self.least = least


@case(backend=by_name)
def retries(s, q):
    def checked(text, least):
        if len(text) < least:
            raise TooShort(text, least)
        return text

    for attempt in itertools.count(1):
        try:
            got = checked(ask(s, f"{q}{attempt}", "bad"), 4 - attempt)
        except TooShort as e:
            effect("short", e.least, str(e))
            s += f" at least {e.least}"
            continue
        else:
            effect("got", got)
            return got, attempt
        finally:
            effect("tried", attempt)


@case(backend=by_name)
def asserts(s, q):
    n = int(ask(s, q, "n"))
    assert n >= 0
    assert isinstance(n, int), "no number"
    s += str(n) + gen("x", max_tokens=2)
    assert n != 4, f"{n} is four"
    return n


@case([{"q": q} for q in "abcdef"], backend=by_name)
def exception_groups_of_problems(s, q):
    notes = []
    for attempt in range(3):
        data = child(f"{q}{attempt}", "label").ret_value
        problems = [ValueError(p) for p in ("p", "o") if p in data]
        try:
            if len(problems) > 1:
                raise ExceptionGroup(f"{data} is wrong", problems)
        except* ValueError as group:
            notes.append([str(e) for e in group.exceptions])
            s += "Fix: " + ", ".join(map(str, group.exceptions)) + gen("fix", max_tokens=3)
        else:
            return data, notes
    raise ExceptionGroup("gave up", [RuntimeError(str(n)) for n in notes])


@case(backend=by_name)
def exits_that_override(s, q):
    def attempt(i: int) -> Any:
        try:
            return int(ask(s, f"{q}{i}", "bad"))
        except ValueError:
            return -1
        finally:
            if ask(s, f"keep {i}?", "n") > "6":
                return "overridden"  # noqa: B012

    out = []
    for i in range(3):
        with contextlib.suppress(LookupError):
            out.append(attempt(i))
            if out[-1] == -1:
                raise KeyError(i)
            continue
        out.append("suppressed")
    return out


WORDS = ("cake", "pie", "jam", "oops", "12", " 7", "egg", "fig")


def answers(prompt: str, _: Any) -> str:
    """A word that depends on the prompt."""
    return WORDS[sum(map(ord, prompt)) % len(WORDS)]


def varied() -> Mock:
    return Mock(answers={name: answers for name in "xyzn"})


ITEMS = [{"q": c} for c in ("a", "bc", "d", "ef", "g", "hij", "k", "lm")]


@case(ITEMS, backend=varied)
def attributes_that_a_state_lacks(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    if hasattr(s, "join"):
        s.join()
    try:
        s.forks(2)
    except AttributeError as error:
        s += str(error).splitlines()[0][-20:] + lmc.gen("y", max_tokens=3)
    return getattr(s, "z", None)


@case(ITEMS, backend=varied)
def group_joined_inside_of_a_later_message(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(2)
    with s.user():
        forks += lmc.gen("f", max_tokens=3)
        forks.join("concate_and_append")
        s += "!"
    s += lmc.assistant(lmc.gen("x", max_tokens=3))
