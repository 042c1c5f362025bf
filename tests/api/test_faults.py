"""Faults of servers and networks: every program ends, with the right answer or an error with its place, and what it cost is known."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter

import pytest

import lmc
from lmc.backend.api.client import Patience
from lmc.backend.api.rates import seconds
from tests.api.conftest import QUICK
from tests.api.http import Planted
from tests.api.text_model import TextModel
from tests.waiting import until

pytestmark = pytest.mark.api

PROGRAMS = 300
FAULTY = 0.2


@lmc.function
def program(s, q):
    """A gen, and another that reads it."""
    s += lmc.user("About " + q) + lmc.assistant(lmc.gen("a", max_tokens=12, stop="\n"))
    s += lmc.user(s["a"].upper()) + lmc.assistant(lmc.gen("c", max_tokens=6))
    return s["c"]


def threads() -> list[str]:
    """The threads of backends and of the SDK below them."""
    return [t.name for t in threading.enumerate() if t.name.startswith(("lmc-OpenAI", "asyncio_"))]


KINDS = ("status", "reset", "truncate", "garbage", "shape", "model", "delay")


def planted(rate: float, seed: int = 0, kinds=KINDS):
    """Faults of all kinds at random, the same for the same requests whatever their order: by what was asked, and how often."""
    times: Counter[str] = Counter()

    def plant(n, path, body):
        text = repr(body)
        times[text] += 1
        chance = random.Random(f"{seed}{text}{times[text]}")
        if chance.random() >= rate:
            return None
        kind = chance.choice(kinds)
        if kind == "status":
            return chance.choice((Planted(kind, 429, {"retry-after-ms": "2"}), Planted(kind, 500), Planted(kind, 503)))
        return Planted(kind, seconds=0.01)

    return plant


def reported(server) -> tuple[int, int]:
    usage = [s.reported for s in server.seen if s.reported]
    return sum(u["prompt_tokens"] for u in usage), sum(u["completion_tokens"] for u in usage)


def test_hundreds_of_programs_under_faults(openai):
    model = TextModel()
    backend, server = openai(model, stand_in={"plant": planted(FAULTY)}, concurrency=8)
    fast = lmc.compile(program)
    states = fast.batch([{"q": str(i)} for i in range(PROGRAMS)], backend=backend, temperature=0, errors="return")
    mock = model.mock(backend.chat_template)
    expected = fast.batch([{"q": str(i)} for i in range(PROGRAMS)], backend=mock, temperature=0)
    ended = [s for s in states if s.failure is None]
    assert [s.ret_value for s in states if s.failure is None] == [e.ret_value for s, e in zip(states, expected) if s.failure is None]
    for state in states:
        if state.failure is not None:
            assert isinstance(state.failure, lmc.BackendError) and state.failure.loc is not None and "test_faults.py" in str(state.failure)
    assert len(ended) >= PROGRAMS - 3, "nine attempts are nearly always enough"
    spent, faults = backend.spent(), Counter(s.fault for s in server.seen)
    assert (spent.usage.prompt_tokens, spent.usage.completion_tokens) == reported(server)
    unseen = spent.attempts - len(server.seen)  # sent into a connection that the server had just closed
    assert unseen >= 0 and spent.retries == spent.attempts - 2 * PROGRAMS
    assert spent.unreported == faults["reset"] + faults["truncate"] + faults["garbage"] + unseen
    assert sum(faults[k] for k in faults if k) > 0.15 * len(server.seen)
    if len(ended) == PROGRAMS:
        assert sum(s.usage.prompt_tokens for s in states) == spent.usage.prompt_tokens
    backend.close()
    mock.close()
    until(lambda: server.open_connections == 0, "a connection is left")
    assert threads() == []


@pytest.mark.parametrize("kind", ("status", "reset", "truncate", "garbage", "shape", "model"))
def test_what_never_works_fails_with_its_place(openai, kind):
    backend, server = openai(TextModel(), stand_in={"plant": lambda n, path, body: Planted(kind)}, patience=Patience(2, 60.0, 0.001, 0.01))
    fast = lmc.compile(program)
    for call in (program.run, fast):
        with pytest.raises(lmc.BackendError, match=r"test_faults.py:\d+: OpenAI\(m\): gen 'a' failed after 3 attempts"):
            call(q="x", backend=backend, temperature=0).text()
    assert len(server.seen) == 6, "no gen that depends on it was asked"
    spent = backend.spent()
    assert spent.unreported == (6 if kind in ("reset", "truncate", "garbage") else 0)
    assert (spent.usage.prompt_tokens > 0) == (kind in ("shape", "model")), "what was reported counts, used or not"


@pytest.mark.parametrize("status", (400, 401, 403, 404))
def test_what_trying_again_cannot_change_is_not_tried_again(openai, status):
    backend, server = openai(TextModel(), stand_in={"plant": lambda n, path, body: Planted("status", status, body={"error": {"message": "no such thing"}})})
    with pytest.raises(lmc.BackendError, match=rf"HTTP {status}: no such thing"):
        program.run(q="x", backend=backend).text()
    assert len(server.seen) == 1


def test_a_time_out_counts_as_unreported(openai):
    backend, _ = openai(
        TextModel(), stand_in={"plant": lambda n, path, body: Planted("delay", seconds=60) if n == 0 else None}, patience=Patience(8, 1.0, 0.001, 0.01)
    )
    state = program.run(q="x", backend=backend, temperature=0)
    assert state["c"] and backend.spent().unreported == backend.spent().retries >= 1, "on a busy machine other attempts may be late, too"
    assert state.get_meta_info("a")["unreported_attempts"] == state.get_meta_info("a")["attempts"] - 1 >= 1


def test_the_server_says_when(openai):
    """retry-after holds for everything that is asked, not for one request."""
    arrived: list[float] = []

    def plant(n, path, body):
        arrived.append(time.monotonic())
        return Planted("status", 429, {"retry-after": "0.3"}) if n == 0 else None

    backend, _ = openai(TextModel(), stand_in={"plant": plant}, concurrency=1)
    lmc.compile(program).batch([{"q": "a"}, {"q": "b"}], backend=backend)
    assert arrived[1] - arrived[0] >= 0.3


def test_who_asks_for_an_hour_is_not_waited_for(openai):
    backend, server = openai(TextModel(), stand_in={"plant": lambda n, path, body: Planted("status", 429, {"retry-after": "3600"})})
    with pytest.raises(lmc.BackendError, match=r"after 1 attempt: HTTP 429.*takes requests again in 3600 s"):
        program.run(q="x", backend=backend).text()
    assert len(server.seen) == 1


def test_a_limit_that_is_used_up_is_waited_for(openai):
    from tests.api import openai_server
    from tests.api.http import Answer, Server

    arrived: list[float] = []
    stand_in = openai_server.OpenAIModel(TextModel())

    def handle(path, body):
        arrived.append(time.monotonic())
        answer = stand_in.handle(path, body)
        headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "300ms"} if len(arrived) == 1 else {}
        return Answer(answer.body, answer.status, headers)

    with Server(handle) as server, lmc.OpenAI("m", base_url=f"{server.url}/v1", patience=QUICK) as backend:
        program.run(q="x", backend=backend, temperature=0).text()
    assert arrived[1] - arrived[0] >= 0.3


@lmc.function
def one(s):
    s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=40))


@pytest.mark.parametrize("kind", ("half-stream", "slow"))
def test_a_stream_that_breaks_off_goes_on_where_it_was(openai, kind):
    plant = lambda n, path, body: Planted(kind, seconds=0.01) if n == 0 else None
    backend, server = openai(TextModel(lambda prompt: "one two three four five six"), stand_in={"plant": plant})

    state = one.run(backend=backend, stream=True, temperature=0)
    assert "".join(state.text_iter("a")) == "one two three four five six"
    assert len(server.seen) == (2 if kind == "half-stream" else 1)
    assert backend.spent().unreported == (1 if kind == "half-stream" else 0)


def error(kind: str) -> Planted:
    """How OpenAI and Anthropic say in a stream that it is over."""
    return Planted("error", body={"type": "error", "error": {"type": kind, "message": "said in the stream", "code": None}})


@pytest.mark.parametrize(("api", "kind"), (("openai", "server_error"), ("anthropic", "overloaded_error"), ("anthropic", "api_error")))
def test_an_error_in_a_stream_that_may_pass_is_tried_again(request, api, kind):
    model = TextModel(lambda prompt: "one two three four five six")
    backend, server = request.getfixturevalue(api)(model, stand_in={"plant": lambda n, path, body: error(kind) if n == 0 else None})
    state = one.run(backend=backend, stream=True)
    assert "".join(state.text_iter("a")) == "one two three four five six"
    assert len(server.seen) == 2


def test_a_quota_that_is_used_up_is_not_waited_for(openai):
    said = {"error": {"message": "You exceeded your current quota", "type": "insufficient_quota", "param": None, "code": "insufficient_quota"}}
    backend, server = openai(TextModel(), stand_in={"plant": lambda n, path, body: Planted("status", 429, body=said)})
    with pytest.raises(lmc.BackendError, match="HTTP 429: You exceeded your current quota"):
        program.run(q="x", backend=backend).text()
    assert len(server.seen) == 1


def test_a_stream_that_goes_on_with_something_else_fails(openai):
    answers = iter(("one two three four", "five six seven eight"))
    backend, _ = openai(TextModel(lambda prompt: next(answers)), stand_in={"plant": lambda n, path, body: Planted("half-stream") if n == 0 else None})

    with pytest.raises(lmc.BackendError, match="broke off"):
        "".join(one.run(backend=backend, stream=True).text_iter("a"))


def test_a_dropped_backend_ends_its_thread():
    from tests.api import openai_server

    with openai_server.serve(TextModel()) as server:
        backend = lmc.OpenAI("m", base_url=f"{server.url}/v1", patience=QUICK)
        program.run(q="x", backend=backend, temperature=0).text()
        assert threads().count("lmc-OpenAI(m)") == 1
        del backend

        def ended():
            gc.collect()
            return not threads()

        until(ended, "a thread is left")


@pytest.mark.parametrize(("text", "value"), (("1.5", 1.5), ("20ms", 0.02), ("6m0s", 360.0), ("1h2m", 3720.0), ("", None), ("soon", None)))
def test_durations(text, value):
    assert seconds(text) == value


def test_a_server_that_has_never_answered_is_said_at_the_first_attempt(openai, caplog):
    backend, _ = openai(TextModel(), stand_in={"plant": lambda n, path, body: Planted("reset") if n in (0, 1, 3) else None})
    assert program.run(q="x", backend=backend, temperature=0)["c"]
    (told,) = [record.getMessage() for record in caplog.records if record.name == "lmc.backend"]
    assert told.startswith("OpenAI(m): attempt 1 failed (no answer: ") and told.endswith("trying again (retries=8; LMC_LOG=backend shows every attempt)")


def test_a_lost_connection_of_a_server_that_answers_is_not_told(openai, caplog):
    backend, _ = openai(TextModel(), stand_in={"plant": lambda n, path, body: Planted("reset") if n == 1 else None})
    assert program.run(q="x", backend=backend, temperature=0)["c"] and backend.spent().retries == 1
    assert caplog.records == []


def test_a_server_that_has_begun_its_first_answer_is_not_told(openai, caplog):
    backend, _ = openai(TextModel(), stand_in={"plant": lambda n, path, body: Planted("half-stream") if n == 0 else None})
    assert "".join(program.run(q="x", backend=backend, temperature=0, stream=True).text_iter()) and backend.spent().retries == 1
    assert caplog.records == []


def test_a_server_that_was_asked_for_its_model_is_not_told(remote, caplog):
    backend, _, _ = remote(TextModel(), plant=lambda n, path, body: Planted("reset") if n == 0 else None)
    assert program.run(q="x", backend=backend, temperature=0)["c"] and backend.spent().retries == 1
    assert caplog.records == []
