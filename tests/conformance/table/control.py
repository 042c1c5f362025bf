"""Control flow that depends on answers and arguments: branches, loops, exits, patterns."""

from __future__ import annotations

import json
from typing import Any

import lmc
from lmc import gen
from tests.conformance.harness import case, effect, scripted
from tests.conformance.outside import tool
from tests.conformance.shared import by_name, faulty


@case([{"q": str(i)} for i in range(8)])
@case([{"q": "a"}], backend=scripted(action="Search"))
@case([{"q": "a"}], backend=scripted(action="Look"))
@case([{"q": "a"}], backend=faulty("x", error=RuntimeError))
def branch_on_output(s: Any, q: str) -> str:
    s += q + lmc.gen("action", max_tokens=8)
    if s["action"] == "Search":
        s += " found " + lmc.gen("x", max_tokens=4)
        return "searched"
    elif len(s["action"]) > 6:
        s += " long " + lmc.gen("y", max_tokens=4)
    else:
        s += " short"
    return s["action"]


@case([
    {"flag": True, "docs": ["u", "v"], "n": 2, "key": "a"},
    {"flag": False, "docs": ["w"], "n": 0, "key": "b"},
    {"flag": True, "docs": [], "n": 1, "key": "a"},  # docs[0] raises
    {"flag": True, "docs": ["w"], "n": 1, "key": "c"},  # table[key] raises
])
def branch_on_arguments(s: Any, flag: bool, docs: list[str], n: int, key: str) -> str:
    table = {"a": "first", "b": "second"}
    if flag:
        s += "flag "
    for i, d in enumerate(docs):
        s += f"{i}: {d}\n"
    for f in s.fork(n):
        f += lmc.gen("x", max_tokens=3)
    s += table[key] + lmc.gen("y", max_tokens=3)
    return f"{len(docs)} {docs[0]}"


@case([{"q": q} for q in "abcde"])
def while_not_in(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    n = 0
    while "a" not in s["x"] and n < 5:
        s += "again" + lmc.gen("x", max_tokens=2)
        n += 1
    return n


@case([{"q": "a", "table": {"k": [1, 2]}, "n": 2}, {"q": "b", "table": {"k": []}, "n": 1}])
def no_dummies(s: Any, q: str, table: dict[str, list[int]], n: int) -> Any:
    effect("given", q, table, n)
    s += q.strip() + str(table["k"][: n // 2]) + lmc.gen("x", max_tokens=2)
    for row in range(n):
        s += f"{row}" + lmc.gen("y", max_tokens=1)
    return tool(table["k"]), len(table["k"])


@case([{"q": q} for q in "abcd"])
def early_return(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    s += lmc.gen("unread", max_tokens=2)
    if "a" in s["x"]:
        return s["x"]
    for c in s["x"]:
        if c in "eiou":
            return c
        s += lmc.gen("y", max_tokens=1)
    return None


@case(backend=by_name)
def breaks_of_nested_loops(s, q):
    found = None
    s += q
    for i in range(3):
        for j in range(3):
            s += f"{i}{j}" + gen("n", max_tokens=1)
            match int(s["n"]):
                case 0 | 1:
                    break
                case n if n > 7:
                    found = i, j, n
                    break
                case 5:
                    continue
        else:
            s += "row"
            continue
        if found:
            break
        s += "cut"
    else:
        s += "none"
    return found, s.text().count("row"), s.text().count("cut")


def generator() -> Any:
    effect("generator")
    yield "one"
    effect("second")
    yield "two"


@case([{"q": "a"}], backend=scripted(x='{"k": 1, "l": 2, "m": 3}'))
def iterations(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=40)
    keys = [k for k in json.loads(s["x"])]
    for g in generator():
        s += g + lmc.gen("y", max_tokens=2)
    a, *rest = json.loads(s["x"])
    for k, v in json.loads(s["x"]).items():
        s += f"{k}={v}"
    return keys, a, rest, {k: v for k, v in json.loads(s["x"]).items()}


@case([{"q": "a"}])
@case([{"q": "a"}], backend=scripted(x="rare"))
def late_branch(s: Any, q: str) -> str:
    early = s.fork(1)[0]
    early += lmc.gen("early", max_tokens=5)
    unused = q.upper() + "?"
    s += q + lmc.gen("x", max_tokens=4)
    if s["x"] == "rare":
        return early["early"] + unused
    return "common"
