"""States as return values: a fork, a sub-program's, the own one, some of them in a tuple."""

from __future__ import annotations

import lmc
from lmc import gen, user
from tests.conformance.harness import case


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
