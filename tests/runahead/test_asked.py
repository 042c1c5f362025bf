"""What is asked ahead, and how a ledger rebuilds the prompts of Python's requests from what it has kept of them."""

from __future__ import annotations

from typing import Any

import lmc
from lmc.prompt import Prompt
from lmc.runahead.ledger import Ledger
from tests.backend.gated import Gated
from tests.conformance.harness import eager


def test_a_prompt_that_begins_with_one_of_elsewhere_is_rebuilt_once() -> None:
    ledger: Any = Ledger.__new__(Ledger)
    ledger._keeps, ledger._all, ledger._ends, ledger._prompts, ledger.asked = True, [], {}, [], {}
    before = Prompt(Prompt(None, ("A",)), (), None, object(), ()).append("B")  # type: ignore[arg-type]
    ledger._keep("here", before, None, Prompt(before, (), object(), object(), ()))  # type: ignore[arg-type]
    assert ledger.after(ledger.asked["here"]).parent.text() == "AB"


@lmc.function
def matches(s, kind):
    a, b, c = s.fork(3)
    a += kind + lmc.gen("a", max_tokens=3)
    found = a["a"]
    match kind:
        case "x" | "y":
            text = "1"
        case _:
            text = "2"
    b += text + lmc.gen("b", max_tokens=3)
    found += b["b"]
    c += text + "c" + lmc.gen("c", max_tokens=3)
    return found + c["c"]


def test_what_a_match_binds_is_known() -> None:
    usage = eager(lmc.compile(matches))("y", backend=Gated(3)).usage
    assert (usage.calls, usage.ahead_asked, usage.ahead_used) == (3, 2, 2)


@lmc.function
def named(s, name):
    (f,) = s.fork(1)
    f += "F" + lmc.gen("f", max_tokens=3)
    s += "x" + lmc.gen("n", max_tokens=3)
    s += "y" + lmc.gen(name + s["n"], max_tokens=3) + lmc.gen("z", max_tokens=3)
    return s[name + s["n"]] + f["f"]


def test_a_name_that_an_answer_completes_shifts_no_address() -> None:
    answers = {"f": "1", "n": "2", "k2": "3", "z": "4"}
    backend = Gated(answers=answers)
    state = eager(lmc.compile(named), evaluated=backend.answer)("k", backend=backend)
    assert state.ret_value == "31" and (state.usage.calls, state.usage.ahead_wasted) == (4, 0)


def turns(*messages):
    yield from messages


@lmc.function
def asks_in_a_generators_item(s, q):
    s += next(turns(q + lmc.gen("word", max_tokens=3)))
    s += "the next:" + lmc.gen("word", max_tokens=3)
    (f,), (g,) = s.fork(1), s.fork(1)
    f += s["word"] + ":" + lmc.gen("f", max_tokens=3)
    found = f["f"]
    g += s["word"] + "!" + lmc.gen("g", max_tokens=3)
    return found + g["g"]


def test_an_answer_is_not_taken_for_that_of_another_line() -> None:
    backend = Gated()
    usage = eager(lmc.compile(asks_in_a_generators_item), evaluated=backend.answer)("q", backend=backend).usage
    assert (usage.calls, usage.ahead_wasted) == (4, 0)


@lmc.function
def appends_elements_of_a_comprehension(s, q):
    found = ""
    for f, e in zip(s.fork(3), [lmc.gen(name, max_tokens=3) for name in "abc"]):
        f += q + e
        found += f[e.name]


def test_an_element_of_a_comprehension_is_of_its_own_line_and_column() -> None:
    usage = eager(lmc.compile(appends_elements_of_a_comprehension))("q", backend=Gated(3)).usage
    assert (usage.calls, usage.ahead_asked, usage.ahead_used) == (3, 2, 2)


@lmc.function
def selects_in_an_arm(s, q):
    s += q + lmc.gen("a", max_tokens=3)
    if s["a"] == "v":
        s += lmc.select("b", choices=["u", "v"])
    return s.text()


def test_an_arm_is_looked_into_whose_function_of_lmc_nothing_has_used_yet(monkeypatch) -> None:
    monkeypatch.delitem(vars(lmc), "select", raising=False)  # which lmc imports when it is first read
    backend = Gated(answers={"a": "v", "b": "u"})
    usage = eager(lmc.compile(selects_in_an_arm, ahead="likely"), evaluated=backend.answer)("q", backend=backend).usage
    assert (usage.calls, usage.ahead_asked, usage.ahead_used) == (2, 1, 1)
