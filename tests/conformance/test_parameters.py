"""What a gen is asked with is read when it is asked: lists that change before and after, and answers that are asked once."""

from __future__ import annotations

from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from lmc.frontend import replay

from . import outside
from .harness import case, cases, effect, observe
from .outside import STEPS

OUTSIDE = {"reset": outside.reset, "outside": outside.look, "batch": False}  # items of a batch would share it
LISTS = [{"q": q, "xs": ["z"]} for q in "abc"]


@case(LISTS)
def changed_before_it_is_asked(s: Any, q: str, xs: list[str]) -> Any:
    ask = lmc.gen("x", max_tokens=9, stop=xs)
    xs.append("a")
    s += q + ask
    return s["x"]


@case(LISTS)
def changed_before_the_interpreter_goes_on(s: Any, q: str, xs: list[str]) -> Any:
    s += q + lmc.gen("x", max_tokens=9, stop=xs)
    xs.append("a")
    return s["x"], id(s["x"]) * 0


@case(LISTS, temperature=0)
def changed_between_equal_asks(s: Any, q: str, xs: list[str]) -> Any:
    s += q
    a, b = s.fork(2)
    a += lmc.gen("x", max_tokens=9, stop=xs)
    xs.append("a")
    b += lmc.gen("x", max_tokens=9, stop=xs)
    return a["x"], b["x"]


@case(**OUTSIDE)
def list_of_the_outside(s: Any, q: str) -> Any:
    s += q + lmc.gen("w", max_tokens=9, stop=STEPS)
    outside.add_step("e")
    s += lmc.gen("x", max_tokens=9, stop=STEPS)
    outside.add_step("a")
    s += lmc.gen("y", max_tokens=9, stop=STEPS)
    return s["x"]


@case(**OUTSIDE)
def list_of_the_outside_then_left(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=9, stop=STEPS)
    outside.add_step("a")
    return s["x"], id(s["x"]) * 0


@case(**OUTSIDE)
def choices_of_the_outside_then_left(s: Any, q: str) -> Any:
    s += q + lmc.select("x", choices=STEPS)
    outside.drop("one")
    return s["x"], id(s["x"]) * 0


@case(replays=0)
def own_containers(s: Any, q: str) -> Any:
    stops: Any = {"z", "e"}
    ask = lmc.gen("x", max_tokens=9, stop=stops)
    s += q + ask
    stops.add("a")
    s += q + ask
    stops = ["u"]
    ask = lmc.gen("x", max_tokens=9, stop=stops)
    stops.append(s["x"][:1] or "e")
    s += q + ask
    return s["x"]


@case([{"q": q, "schema": {"type": "string"}, "bias": {1: 2}} for q in "ab"])
def dicts(s: Any, q: str, schema: Any, bias: Any) -> Any:
    first, second = lmc.gen("x", max_tokens=9, json_schema=schema), lmc.gen("y", max_tokens=9, logit_bias=bias)
    schema["enum"] = ["a"]
    s += q + first
    bias[3] = 4
    s += second
    schema.clear()
    return s["x"], s["y"], id(s["x"]) * 0


CASES = cases(dict(globals()))


@pytest.mark.parametrize("name", CASES)
def test_means_the_same(name: str) -> None:
    CASES[name].check()


def test_guards_of_lists_of_the_outside() -> None:
    program = list_of_the_outside.program
    fast = lmc.compile(program, backend=Mock())
    for stops in (["one"], ["e"], ["a", "e"], ["one"]):
        STEPS[:] = stops
        want = program.run(q="a", backend=Mock(), seed=1).text()
        for _ in range(2):
            STEPS[:] = stops
            assert fast(q="a", seed=1).text() == want


def count(x: str) -> str:
    effect("count", x)
    return len(x)  # type: ignore[return-value]  # not what it says


COUNT = lmc.host(count, ordered=False)  # what comes after it is asked ahead


@lmc.function
def taken_for_text(s: Any, q: str) -> Any:
    n = COUNT(q)
    s += q + (lmc.gen("x", max_tokens=9) if isinstance(n, str) else lmc.gen("x", max_tokens=2, regex="[ab]+"))
    return s["x"]


@pytest.mark.filterwarnings("ignore::lmc.CaptureWarning")
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_an_answer_to_other_parameters_is_not_taken(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def differs() -> bool:
        want = observe(taken_for_text.run(q="a", seed=1, temperature=temperature, backend=Mock()))
        return observe(lmc.compile(taken_for_text)(q="a", seed=1, temperature=temperature, backend=Mock())) != want

    assert not differs()
    monkeypatch.setattr(replay, "_same_request", lambda a, b, _: (a.seed, a.name) == (b.seed, b.name))
    assert differs()
