"""Requests ahead, in groups and for several answers at once are counted over HTTP as they are on the mock and the engine, program by program."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

import lmc
from lmc.backend.usage import Usage
from lmc.pages import several
from lmc.segments import Gen, SamplingParams, Text
from tests.api.http import Planted
from tests.api.text_model import TextModel
from tests.backend.gated import Gated
from tests.conformance.harness import eager
from tests.passes.test_programs import opinion, two_opinions
from tests.runahead.test_arms import TABLE, on_one_stream

pytestmark = pytest.mark.api


class Gate:
    """Holds a server's answers until so many prompts were asked."""

    def __init__(self, together: int) -> None:
        self.together, self.asked = together, 0
        self._lock = threading.Lock()

    def __call__(self, n: int, path: str, body: dict[str, Any]) -> Planted | None:
        prompt = body.get("input_ids", body.get("prompt"))
        with self._lock:
            self.asked += len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
        return Planted("delay", seconds=60.0, until=lambda: self.asked >= self.together)


@pytest.fixture(params=("sglang", "vllm", "openai"))
def over(request, openai):
    """A backend of a kind whose server answers when so many prompts were asked, and how many it asks for itself."""

    def make(model: TextModel, together: int = 0) -> tuple[Any, int]:
        if request.param == "openai":
            return openai(model, False, server="vllm", speculate=False, stand_in={"plant": Gate(together)})[0], 0
        backend, _, server = request.getfixturevalue(request.param)(model)
        backend.submit(None, (Text(("x",)), Gen(SamplingParams(max_new_tokens=1)))).results[0].output()
        server.plant = Gate(together)
        return backend, backend.counters().calls

    return make


def counted(usage: Usage) -> tuple[int, ...]:
    return usage.calls, usage.ahead_asked, usage.ahead_used, usage.ahead_wasted


def one_by_one(s, q):
    """One ask is certain beside another: it is asked while the first is awaited."""
    one, other = s.fork(2)
    one += q + lmc.gen("kind", max_tokens=3)
    first = one["kind"]
    other += "other" + lmc.gen("x", max_tokens=3)
    return first, other["x"]


CASES = [
    *[("likely", body, asked) for body, asked, *_ in TABLE],
    ("certain", one_by_one, 1),
    ("likely", one_by_one, 1),
    ("off", one_by_one, 0),
    ("off", on_one_stream, 0),
]


@pytest.mark.parametrize(("ahead", "body", "asked"), CASES, ids=[f"{body.__name__}-{ahead}" for ahead, body, _ in CASES])
def test_what_is_asked_ahead(over, ahead: str, body: Callable[..., Any], asked: int):
    for kind in ("a", "b"):
        together = 1 + asked
        mock = Gated(together, lambda _, ask, kind=kind: kind if ask.name == "kind" else "b")
        expected = eager(lmc.compile(lmc.function(body), ahead=ahead))(q="q", backend=mock, seed=3, temperature=0)
        backend, _ = over(TextModel(lambda prompt, kind=kind: kind if prompt == "q" else "b"), together)
        fast = eager(lmc.compile(lmc.function(body), ahead=ahead))
        state = fast(q="q", backend=backend, seed=3, temperature=0)
        assert state.ret_value == expected.ret_value
        assert counted(state.usage) == counted(expected.usage)
        assert (fast.profile.asked, fast.profile.used, fast.profile.wasted) == counted(state.usage)[1:]
        if body is on_one_stream:
            assert (
                f"so far: 1 run; {several(state.usage.ahead_asked, 'request')} asked ahead ({ahead}), {state.usage.ahead_used} used, "
                f"{state.usage.ahead_wasted} wasted"
                in fast.explain()
            )


@pytest.mark.parametrize("program", (opinion, two_opinions), ids=lambda p: p.name)
@pytest.mark.parametrize("temperature", (0, 0.7))
def test_groups(over, program, temperature):
    items = [{"q": str(i)} for i in range(5)]
    model = TextModel()
    mock = model.mock(lmc.get_chat_template("chatml"))
    lmc.compile(program, backend=mock).batch(items, temperature=temperature, seed=1)
    backend, own = over(model)
    lmc.compile(program, backend=backend).batch(items, temperature=temperature, seed=1)
    expected, found = mock.counters(), backend.counters()
    assert (found.groups, found.twins, found.calls - own) == (expected.groups, expected.twins, expected.calls)
    assert found.twins > 0 or temperature == 0


def test_the_metrics_have_them(over):
    pytest.importorskip("prometheus_client")
    from lmc.serve.metrics import Metrics

    backend, own = over(TextModel())
    lmc.compile(opinion, backend=backend).batch([{"q": "x"}, {"q": "y"}], temperature=0.7)
    text = Metrics(backend).text().decode()
    found = {name: float(re.search(rf"^lmc_backend_{name}_total (\S+)$", text, re.MULTILINE)[1]) for name in ("groups", "twins", "calls")}  # type: ignore[index]
    assert found == {"groups": 2, "twins": 4, "calls": 6 + own}


@lmc.function
def fields(s, q):
    s += lmc.user(q)
    with s.assistant():
        s += (
            "Name:"
            + lmc.gen("name", max_tokens=20, stop="\n")
            + "\nBorn:"
            + lmc.gen("born", max_tokens=20, stop="\n")
            + "\nField:"
            + lmc.gen("field", max_tokens=20, stop="\n")
        )
    return s["name"], s["born"], s["field"]


LINES = (("Name:", " Ada"), ("Born:", " 1815"), ("Field:", " mathematics"))


def follows(prompt: str) -> str:
    """The rest of the lines."""
    done = max(i for i in range(len(LINES)) if i == 0 or LINES[i][0] in prompt)
    text = "\n".join(name + value for name, value in LINES[done:]) + "\n"
    return text.removeprefix(LINES[done][0]) if LINES[done][0] in prompt else text


def test_one_request_for_several_answers(openai, remote):
    """Where there is no cache to go on from; servers that have one are asked for each."""
    chat, _ = openai(TextModel(follows), server="vllm")
    cached, _, _ = remote(TextModel(follows))
    found = []
    for backend, calls, speculated in ((chat, 1, 2), (cached, 3, 0)):
        fast = lmc.compile(fields)
        fast.planner.prepare(backend, True)  # a first run does not wait for its plan
        state = fast(q="?", backend=backend, temperature=0)
        found.append(state.ret_value)
        assert (state.usage.calls, backend.spent().speculated, backend.spent().wasted) == (calls, speculated, 0)
    assert found == [(" Ada", " 1815", " mathematics")] * 2
