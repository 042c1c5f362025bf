"""Programs mean the same on an API: interpreted, compiled and as a batch; and the same as on the mock with the same model."""

from __future__ import annotations

import pytest

import lmc
from tests.api.text_model import TextModel
from tests.api.view import agree_with_the_mock, greedy, views
from tests.conformance.harness import conform, differences, run
from tests.conformance.programs import compiled, source

pytestmark = pytest.mark.api

ITEMS = [{"q": "a b", "xs": ["x", "yy"]}, {"q": "k", "xs": ["a"], "flag": True}]
RANDOM = greedy(6)


@lmc.function
def turns(s, q):
    """Roles, branches on answers, forks, a select, several answers, constraints."""
    s += lmc.system("You are brief.") + lmc.user("Say something about " + q)
    s += lmc.assistant(lmc.gen("a", max_tokens=30, stop=[".", "\n"]))
    s += lmc.user("Long?") + lmc.assistant(lmc.select("long", ["yes", "no"]))
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += lmc.user(f"View {i}: {s['a'].strip()}") + lmc.assistant(lmc.gen("view", max_tokens=12))
    if s["long"] == "yes":
        s += lmc.user("Shorter:") + lmc.assistant(lmc.gen("b", max_tokens=5, n=2))
    s += lmc.user(" / ".join(f["view"] for f in forks)) + lmc.assistant(
        lmc.gen(
            "n", json_schema='{"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"], "additionalProperties": false}', max_tokens=40
        )
    )
    return s["n"]


@lmc.function
def plain_text(s, q):
    """Text without roles; a branch; forks that are joined."""
    s += "Q: " + q + "\nA:" + lmc.gen("a", max_tokens=24, stop=["\n", '"'])
    s += lmc.select("mood", [" good", " bad", " so so"])
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += f"\n{i}." + lmc.gen("item", max_tokens=9, stop=[",", "."])
    forks.join()
    while len(s["a"]) < 60 and "so" in s["a"]:
        s += " then" + lmc.gen("a", max_tokens=9)
    s += "\n" + "; ".join(s["item"]) + lmc.gen("end", max_tokens=6)
    return s["item"]


@pytest.mark.parametrize("chat", (True, False), ids=("chat", "text"))
@pytest.mark.parametrize("program", (turns, plain_text), ids=lambda p: p.name)
def test_executions_agree(openai, program, chat):
    if chat and program is plain_text:
        pytest.skip("text without messages")
    backend, server = openai(TextModel(), chat, server="compatible" if chat else "vllm", speculate=False)
    conform(program, [{"q": "x"}, {"q": "cats"}, {"q": "the sea"}], backend=views(backend, server))


@pytest.mark.parametrize("chat", (True, False), ids=("chat", "text"))
@pytest.mark.parametrize("program", (turns, plain_text), ids=lambda p: p.name)
@pytest.mark.parametrize("speculate", (True, False))
def test_an_api_gives_what_the_mock_gives(openai, program, chat, speculate):
    if chat and program is plain_text:
        pytest.skip("text without messages")
    model = TextModel()
    backend, server = openai(model, chat, server="compatible" if chat else "vllm", speculate=speculate)
    for q in ("x", "cats", "the sea"):
        expected = run(program.run, {"q": q}, lambda: None, {"backend": model.mock(backend.chat_template), "temperature": 0})
        for call in (program.run, lmc.compile(program)):
            seen = run(call, {"q": q}, lambda: None, {"backend": views(backend, server)(), "temperature": 0})
            seen.metas = expected.metas  # of a server, of a mock
            assert seen == expected, differences(seen, expected)


@pytest.mark.parametrize("seed", RANDOM)
def test_random_programs(openai, seed):
    program, reset, outside = compiled(source(seed))
    backend, server = openai(TextModel(), False, server="vllm", speculate=False)
    conform(program, ITEMS, backend=views(backend, server), reset=reset, outside=outside)


@pytest.mark.parametrize("seed", RANDOM)
def test_random_programs_give_what_they_give_on_the_mock(openai, seed):
    program, reset, outside = compiled(source(seed))
    model = TextModel()
    backend, _ = openai(model, False, server="vllm")
    agree_with_the_mock(program, ITEMS, backend, lambda: model.mock(backend.chat_template), reset, outside, seed=7)
