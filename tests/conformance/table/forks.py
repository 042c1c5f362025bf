"""Forks and samples: nested, joined, used again, read late or never."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import lmc
from lmc import assistant, gen, system, user
from tests.conformance.harness import case, effect
from tests.conformance.shared import by_name, child, faulty


@case([{"q": "a"}], temperature=1)
@case(temperature=0)
def joins(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"<{i}>" + lmc.gen("v", max_tokens=4)
    forks.join()
    s += s["v"][0] + "/" + s["v"][-1] + lmc.gen("w", max_tokens=3)
    return s["v"], [m["finish_reason"] for m in s.get_meta_info("v")]


@case([{"q": "a"}], temperature=1)
@case(temperature=0)
def join_concatenated(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"<{i}>" + lmc.gen("v", max_tokens=4)
    forks.join("concate_and_append")
    s += lmc.gen("w", max_tokens=3)
    return s["w"]


@case(temperature=0.9)
def several_samples(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4, n=3)
    votes = Counter(s["x"])
    s += " ".join(s["x"]) + str(len(s["x"]))
    for i, x in enumerate(s["x"]):
        s += f"{i}{x}"
    return s["x"][0], len(votes), [m["finish_reason"]["type"] for m in s.get_meta_info("x")]


@case([{"q": "a"}, {"q": "b"}], temperature=0)
@case([{"q": "a"}, {"q": "b"}], temperature=0.9)
def reuse(s: Any, q: str) -> str:
    e = lmc.gen("x", max_tokens=5)
    for _ in range(3):
        s += q + e
    forks = s.fork(2)
    forks += e + q
    for f in forks:
        f += e
    s += e + "".join(f["x"] for f in forks)
    return s["x"]


@case([{"q": "a"}])
@case([{"q": "a"}], backend=faulty("x", error=RuntimeError))
def unread_forks(s: Any, q: str) -> str:
    forks = s.fork(2)
    for f in forks:
        f += "fork" + lmc.gen("x", max_tokens=4)
    s += q + lmc.gen("y", max_tokens=4)
    return s["y"]


@case([{"q": "a"}, {"q": "b"}], temperature=0)
@case([{"q": "a"}], temperature=1)
def nested(s: Any, q: str) -> list[str]:
    s += lmc.user(q)
    found = []
    with s.assistant():
        outer = s.fork(2)
        for i, f in enumerate(outer):
            f += f"{i}" + lmc.gen("a", max_tokens=4)
            inner = f.fork(2)
            inner += lmc.gen("b", max_tokens=4)
            s += "parent" + lmc.gen("p", max_tokens=3)
            for g in inner:
                found.append(g["b"] + f["a"])
        best = max(found, key=len)
        s += best + lmc.gen("end", max_tokens=3)
    return found


def helper(s: Any, q: str) -> str:
    s += q + lmc.gen("h", max_tokens=4)
    return s["h"] + "!"


@case([{"q": "a"}, {"q": "b"}], temperature=0)
@case([{"q": "a"}], temperature=1)
def with_helper(s: Any, q: str) -> str:
    forks = [f for f in s.fork(2)]
    out = [helper(f, q + str(i)) for i, f in enumerate(forks)]
    s += helper(s, "x") + "".join(out)
    return "".join(out)


@case([{"q": str(i)} for i in range(4)])
def order_of_forks(s: Any, q: str) -> Any:
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += q + str(i) + lmc.gen("score", max_tokens=4)
    best = max(forks, key=lambda f: f["score"])
    ranked = sorted(forks, key=lambda f: f["score"], reverse=True)
    s += best["score"] + lmc.gen("x", max_tokens=3)
    found = any(check(f["score"]) for f in ranked)
    return found, [r["score"] for r in ranked], min(len(f["score"]) for f in forks)


def check(x: str) -> bool:
    effect("check", x)
    return "a" in x


@case()
def an_argument_used_twice(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2) + q
    a, b = s.fork(2)
    a += q + q + lmc.gen("y", max_tokens=2)
    b += q + lmc.gen("y", max_tokens=2) + q
    return q, a["y"] + q, b["y"] + q


@case(temperature=0.8)
def a_group_in_a_fork(s: Any, q: str) -> Any:
    with s.user():
        s += q
        outer = s.fork(2)
        outer += lmc.gen("x", max_tokens=2)
        inner = [f.fork(2) for f in outer]
        for group in inner:
            group += lambda i: str(i) + lmc.gen("y", max_tokens=2)
        s += "going on" + lmc.gen("z", max_tokens=2)
    return [[f["y"] + f["x"] for f in group] for group in inner]


@case(backend=by_name)
def bodies_with_sub_programs(s, q):
    s += system(q)

    def body(f: Any, role: str, turns: int) -> tuple[str, str, str]:
        for i in range(turns):
            f += user(f"{role}{i}") + assistant(gen("a", max_tokens=4))
        return role, f["a"], child(role + f["a"]).ret_value

    found = s.fork(3).each(body, "xyz", [1, 2, 3])
    s += json.dumps(found) + gen("z", max_tokens=3)
    return found, s["z"]
