"""The hooks of a domain: with both arms of an undecided branch, and a loop's body, evaluated once."""

from __future__ import annotations

from typing import Any

import lmc
from lmc.frontend.capture.domain import Domain, Heap
from lmc.frontend.capture.unknown import Unknown
from tests.frontend.capture.recording import evaluate


class Regions(Domain):
    """As a graph builder does it: keeps no graph, but says what it meets."""

    def __init__(self) -> None:
        self.met: list[Any] = []

    def operation(self, evaluation: Any, name: str, operands: Any, deps: Any) -> Any:
        self.met.append(name)
        return Unknown(deps, note=name)

    def branch(self, evaluation: Any, frame: Any, test: Unknown, site: Any) -> Any:
        self.met.append(("branch", site.loc.line - evaluation.function.loc.line, test.note))
        for arm in (site.then, site.orelse):
            saved = Heap(evaluation, frame)
            arm.run(frame)
            saved.restore()
        evaluation.havoc(frame, site.then.effects, test.deps)
        evaluation.havoc(frame, site.orelse.effects, test.deps)
        return None

    def loop(self, evaluation: Any, frame: Any, items: Unknown, site: Any) -> Any:
        self.met.append(("loop", items.note))
        saved = Heap(evaluation, frame)
        if site.bind is not None:
            site.bind(frame, Unknown(items.deps, note="each"))
        site.body.run(frame)
        saved.restore()
        evaluation.havoc(frame, site.effects, items.deps)
        return None


@lmc.function
def program(s, q):
    s += q + lmc.gen("a")
    seen = [1]
    if s["a"].strip() == "yes":
        seen.append(2)
        s += "then" + lmc.gen("b")
    else:
        s += str(len(seen)) + lmc.gen("c")
    for line in s["a"].splitlines():
        s += line + lmc.gen("d")
    while len(s["a"]) > 3:
        s += lmc.gen("e")


def test_both_arms_and_bodies_are_evaluated_once():
    domain = Regions()
    asked, outcome = evaluate(program, options={"domain": domain}, q="q")
    assert [(a.address, a.name) for a in asked] == [(("", 0), "a"), (("", 1), "b"), (("", 1), "c"), (("", 1), "d"), (("", 1), "e")]
    assert asked[2].prompt is not None and asked[2].prompt.endswith("1")  # `seen` was put back
    assert domain.met == [".strip", "eq", ("branch", 4, "eq"), ".splitlines", ("loop", ".splitlines"), "len", "gt", ("loop", "gt"), "len", "gt"]
    assert outcome.stopped_at is None
