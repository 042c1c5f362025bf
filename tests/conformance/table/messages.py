"""Prompts: roles, scopes, copies, variables, parts that are no text, states as text."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import lmc
from lmc import gen, system
from tests.conformance import outside
from tests.conformance.harness import case, effect
from tests.conformance.shared import by_name


@case()
def chat_until(s: Any, q: str) -> Any:
    with s.system():
        s += "You are " + q
    turns = 0
    while True:
        with s.user():
            s += f"turn {turns}"
        with s.assistant():
            s += lmc.gen("a", max_tokens=5)
            turns += 1
        if turns > 3 or "e" in s["a"]:
            break
    return turns, s.messages()


@case(backend=by_name)
def conversation(s, q):
    s += system(f"You are {q}")
    with contextlib.ExitStack() as stack:
        stack.callback(effect, "closed")
        for i, text in enumerate(["hello", "and?", "bye"]):
            with contextlib.ExitStack() as roles:
                roles.enter_context(s.user())
                s += text
                s += f" ({i})"
            with s.assistant():
                s += "I say: " + gen(f"r{i}", max_tokens=4)
            stack.callback(effect, "turn", i, s[f"r{i}"])
    return [m["content"] for m in s.messages()][-1], len(s.messages())


@case(temperature=0.5)
def copies_and_scopes(s: Any, q: str) -> Any:
    s += q
    with s.copy() as c:
        c += "copy" + lmc.gen("c", max_tokens=4)
    with s.var_scope("all"):
        s += "in" + lmc.gen("x", max_tokens=4) + "out"
    s += s["all"] + str(s["c"])
    s.set_var("k", s["x"] + "k")
    s["j"] = [s["x"]]
    return s["k"], s["j"], s.get_var("x"), s.get_meta_info("x")["finish_reason"]["type"], "k" in s, "z" in s


@case([{"q": "a"}])
def contains(s: Any, q: str) -> Any:
    found = ["x" in s]
    s += q + lmc.gen("x", max_tokens=3)
    found.append("x" in s)
    if "y" not in s:
        s["y"] = q + "!"
    return found, s["y"]


PARTS = [{"q": "a", "x": "z"}, {"q": "b", "x": 2}, {"q": "c", "x": None}]


@case(PARTS)
def part_of_an_expression_that_is_no_text(s, q, x):
    v = json.loads(json.dumps(x))
    s += q + gen("x", max_tokens=3) + v
    return s["x"]


@case(PARTS)  # which is a message without text
def message_that_is_no_text(s, q, x):
    v = json.loads(json.dumps(x))
    ask = lmc.user(v) + lmc.assistant(gen("x", max_tokens=3))
    effect("between", q)
    s += ask
    s.user(expr=v)
    return s["x"]


@case()
def states_that_are_printed(s: Any, q: str) -> Any:
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += q + str(i) + lmc.gen("a", max_tokens=3)
    effect("forks", [f"{f!r:.20}" for f in forks], str(s)[:10])
    return s


@case()
def state_by_its_repr(s, q):
    s += q + gen("g", max_tokens=2)
    word, other = s["g"], s.fork(2)
    return word, repr(s), str(s), "%s" % s, "{}".format(s), repr([s]), repr(other)  # noqa: UP031, UP032


@case([{"q": "a"}])
def in_role(s: Any, q: str) -> str:
    try:
        with s.user():
            s += q
            raise KeyError(q)
    except KeyError as error:
        s += lmc.user(f"after {error}")
    s += lmc.assistant(lmc.gen("x", max_tokens=4))
    return s["x"]


@case()
def error_keeps_role(s: Any, q: str) -> Any:
    try:
        with s.assistant():
            s += lmc.gen("x", max_tokens=3)
            outside.flaky("a" + s["x"])
    except ValueError:
        s += lmc.user("sorry")
    with s.assistant():
        s += lmc.gen("y", max_tokens=3)
    return len(s.messages())
