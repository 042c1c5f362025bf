"""Programs within programs: options, seeds, batches, compiled ones, recursion, states that come back."""

from __future__ import annotations

from typing import Any

import lmc
from lmc import gen
from tests.conformance.harness import case, effect
from tests.conformance.shared import by_name


@lmc.function
def tip_on(s: Any, tip: str) -> Any:
    s += "tip " + tip + lmc.gen("x", max_tokens=4)
    return s["x"]


@case()
def children_with_sampling_that_is_left(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    effect("before", s["a"])
    try:
        tip_on(tip="x", temperature=-1)
    except lmc.ParameterError as error:
        s += error.message[:20]
    counted = tip_on(tip="y", max_new_tokens=2, n=2, temperature=len(s["a"]) / 10)
    effect("after", counted["x"])
    return tip_on(tip="z", top_p=0.5)


@case(journal="refused")
def children_with_options(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    one = tip_on.run(tip=s["a"], temperature=0.3, max_new_tokens=2)
    two = tip_on(tip=one["x"], seed=5)
    bound = tip_on.bind(tip="bound")
    three = bound()
    s += two["x"] + three["x"] + lmc.gen("z", max_tokens=2)
    return one.ret_value, two.text()


cool = tip_on.options(temperature=0.3, max_new_tokens=2)


@case(journal="refused")
def children_with_fixed_options(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    one, two = cool.run(tip=s["a"]), cool(tip=s["a"], max_new_tokens=3)
    three = tip_on.options(seed=5)(tip=one["x"])
    s += two["x"] + three["x"] + lmc.gen("z", max_tokens=2)
    return one.ret_value, three.text()


@case(journal="refused")
def batches_inside(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    states = tip_on.run_batch([{"tip": s["a"]}, {"tip": "b"}], temperature=0)
    s += "".join(c["x"] for c in states) + lmc.gen("z", max_tokens=2)
    for c in tip_on.run_batch([("t",), (q,)], generator_style=True):
        s += c["x"]
    return [c.ret_value for c in states]


FAST = lmc.compile(tip_on)


@case(journal="refused")
def compiled_inside(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=2)
    states = FAST.batch([{"tip": s["a"]}, {"tip": "b"}], seed=3)
    one = FAST(tip="one", seed=4)
    s += "".join(c["x"] for c in states) + one["x"] + lmc.gen("z", max_tokens=2)
    return one.ret_value


@lmc.function
def leaf(s: Any, tip: str) -> str:
    s += tip + lmc.gen("l", max_tokens=2)
    effect("leaf", s["l"])
    return s["l"]


@lmc.function
def branch(s: Any, tip: str) -> str:
    s += tip + lmc.gen("b", max_tokens=2)
    return leaf(tip=s["b"]).ret_value + leaf(tip=tip)["l"]


@case(temperature=0.8)
def children_of_children(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    found = [branch(tip=s["x"]), branch(tip=q)]
    s += lmc.gen("y", max_tokens=2)
    return [f.ret_value for f in found], found[0]["b"]


@lmc.function
def summary(s, text, *, depth=0):
    s += f"[{depth}] {text}:" + gen("sum", max_tokens=6)
    return summary(s["sum"], depth=depth - 1)["sum"] + "!" if depth else s["sum"]


@case(backend=by_name)
def states_of_sub_programs_in_a_list(s, q):
    children = [summary(word, depth=i % 2) for i, word in enumerate(q.split() * 2)]
    s += " ".join(child.ret_value for child in children) + gen("final", max_tokens=4)
    return [child["sum"] for child in children], summary(s["final"])["sum"]
