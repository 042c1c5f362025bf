"""States as return values: a fork, a sub-program's, the own one, some of them in a tuple."""

from __future__ import annotations

import lmc
from lmc import gen, select, user
from tests.conformance.harness import case


@case()
def a_fork(s, q):
    s += q + gen("x", max_tokens=2)
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += str(i) + gen("y", max_tokens=3)
    return max(forks, key=lambda f: len(f["y"]))


@case()
def a_fork_with_an_open_role(s, q):
    f = s.fork(1)[0]
    f += user(q) + lmc.assistant_begin() + gen("y", n=2, max_tokens=2)
    f["z"] = 3
    return f


@lmc.function
def child(s, tip):
    s += tip + gen("x", max_tokens=2)
    return s, tip


@case()
def of_a_sub_program(s, q):
    s += q
    return child(tip=q + "!")


@case()
def some_in_a_tuple(s, q):
    s += q + select("w", ["a", "b"])
    f = s.fork(2)
    f += gen("y", max_tokens=2)
    return (f[0], s, f[1]["y"]) if s["w"] == "a" else (s, (1, f[1]["y"]))
