"""Batch APIs, on stand-ins with the providers' rules: waves, what is submitted and paid, kills, failures, dollars."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lmc
from lmc.backend.api import batches
from lmc.errors import BackendError, ParameterError, UnsupportedOpError
from tests.api import batch_servers
from tests.api.conftest import QUICK
from tests.api.http import Answer, Planted
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api

PRICES = lmc.Prices(2.0, 8.0)


class FakeClock(batches.Clock):
    """Time passes only where somebody sleeps. `slept` has how long, each time."""

    def __init__(self) -> None:
        self.time, self.slept = super().now(), list[float]()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(batches, "clock", clock := FakeClock())
    monkeypatch.setattr(batches, "PATIENCE", float("inf"))  # waves go out when all wait, however slow this machine is
    return clock


@pytest.fixture(params=("openai", "anthropic"))
def served(request, opened):
    """A backend with its stand-in: `again()` is another one, as another process would have it."""
    pytest.importorskip(request.param)

    def make(script=None, *, options=None, **stand_in):
        serve, of = {"openai": (batch_servers.serve_openai, _openai), "anthropic": (batch_servers.serve_anthropic, _anthropic)}[request.param]
        found, server = serve(TextModel(script) if script else TextModel(), **stand_in)
        opened(server)
        found.again = lambda **more: opened(of(server.url, **{**(options or {}), **more}))
        found.server = server
        return found.again(), found

    make.provider = request.param
    return make


def _openai(url, **options):
    return lmc.OpenAI("m", base_url=f"{url}/v1", api_key="k", server="openai", patience=QUICK, prices=PRICES, **options)


def _anthropic(url, **options):
    return lmc.Anthropic("claude", base_url=url, api_key="k", patience=QUICK, prices=PRICES, **options)


@lmc.function
def answer(s, question):
    s += lmc.user(question) + lmc.assistant(lmc.gen("a", max_tokens=9))
    return s["a"]


@lmc.function
def chain(s, question):
    s += lmc.user(question) + lmc.assistant(lmc.gen("first", max_tokens=9))
    first = s["first"]
    s += lmc.user(f"And {first}?") + lmc.assistant(lmc.gen("second", max_tokens=9))
    return s["second"]


@lmc.function
def views(s, question):
    s += lmc.system("Be brief.") + lmc.user(question)
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += lmc.user(f"View {i}?") + lmc.assistant(lmc.gen("view", max_tokens=9))
    s += lmc.user(" ".join(f["view"] for f in forks)) + lmc.assistant(lmc.gen("sum", max_tokens=9))
    return s["sum"]


ITEMS = [{"question": f"What is {i}?"} for i in range(7)]
PROGRAMS = pytest.mark.parametrize(("program", "waves"), ((answer, [7]), (chain, [7, 7]), (views, [21, 7])), ids=("answer", "chain", "views"))


def sizes(found):
    return [len(b.requests) for b in found.created]


@PROGRAMS
@pytest.mark.parametrize("compiled", (False, True), ids=("interpreted", "compiled"))
def test_a_wave_is_what_all_programs_wait_for(served, program, waves, compiled, tmp_path):
    backend, found = served()
    run = (lambda **k: lmc.compile(program).batch(ITEMS, **k)) if compiled else (lambda **k: program.run_batch(ITEMS, **k))
    states = run(backend=backend, temperature=0, deadline="24h", journal=tmp_path / "j")
    assert sizes(found) == waves
    direct = run(backend=found.again(), temperature=0)
    assert [s.ret_value for s in states] == [s.ret_value for s in direct] and [s.text() for s in states] == [s.text() for s in direct]


def test_run_ahead_widens_the_waves(served):
    @lmc.function
    def two(s, question):
        forks = s.fork(2)
        forks[0] += lmc.user(question) + lmc.assistant(lmc.gen("a", max_tokens=9))
        a = forks[0]["a"]
        forks[1] += lmc.user(f"Not {question}") + lmc.assistant(lmc.gen("b", max_tokens=9))
        return a + forks[1]["b"]

    backend, found = served()
    plain = two.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")
    assert sizes(found) == [7, 7]
    found.created.clear()
    ahead = lmc.compile(two).batch(ITEMS, backend=backend, temperature=0, deadline="24h")
    assert sizes(found) == [14] and [s.ret_value for s in ahead] == [s.ret_value for s in plain]


def test_programs_of_every_kind_wait_together(served):
    @lmc.function
    async def tasks(s, question):
        s += lmc.user(question)
        forks = s.fork(2)
        for f in forks:
            f += lmc.assistant(lmc.gen("a", max_tokens=9))
        found = await asyncio.gather(*[asyncio.to_thread(lambda f=f: f["a"]) for f in forks])
        s += lmc.assistant(lmc.gen("b", max_tokens=9))
        return [*found, s["b"]]

    @lmc.function
    def bodies(s, question):
        s += lmc.user(question)
        forks = s.fork(3)

        def body(f):
            f += lmc.assistant(lmc.gen("a", max_tokens=9))
            f += lmc.user(f"More than {f['a']}?") + lmc.assistant(lmc.gen("b", max_tokens=9))
            return f["b"]

        return forks.each(body)

    @lmc.function
    def outer(s, question):
        inner = chain.run(question=question)
        s += lmc.user(inner["second"]) + lmc.assistant(lmc.gen("c", max_tokens=9))
        return s["c"]

    backend, found = served()
    for program, waves in ((bodies, [21, 21]), (outer, [7, 7, 7])):
        found.created.clear()
        states = program.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")
        assert sizes(found) == waves, program
        assert [s.ret_value for s in states] == [s.ret_value for s in program.run_batch(ITEMS, backend=backend, temperature=0)]


def test_a_run_alone_and_async_ones(served):
    backend, found = served()
    assert (
        chain.run(question="one", backend=backend, temperature=0, deadline="24h").ret_value
        == chain.run(question="one", backend=backend, temperature=0).ret_value
    )
    assert lmc.compile(answer)(question="one", backend=backend, temperature=0, deadline="24h").ret_value
    assert sizes(found) == [1, 1, 1]
    found.created.clear()

    @lmc.function
    async def achain(s, question):
        s += lmc.user(question) + lmc.assistant(lmc.gen("first", max_tokens=9))
        s += lmc.user(f"And {s['first']}?") + lmc.assistant(lmc.gen("second", max_tokens=9))
        return s["second"]

    states = achain.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")
    assert sizes(found) == [7, 7] and all(s.ret_value for s in states)
    found.created.clear()
    states = asyncio.run(lmc.compile(achain).abatch(ITEMS, backend=backend, temperature=0, deadline="24h"))
    assert sizes(found) == [7, 7] and all(s.ret_value for s in states)
    found.created.clear()
    assert asyncio.run(achain.arun(question="one", backend=backend, temperature=0, deadline="24h")).ret_value
    assert sizes(found) == [1, 1]


def test_a_batch_costs_half(served):
    backend, found = served()
    direct = found.again()
    states = chain.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")
    others = chain.run_batch(ITEMS, backend=direct, temperature=0)
    assert backend.spent().cost == pytest.approx(direct.spent().cost / 2) and direct.spent().cost > 0
    prices = backend.capabilities.prices
    assert sum(prices.of(s.usage) for s in states) == pytest.approx(sum(prices.of(s.usage) for s in others) / 2)
    assert states[0].get_meta_info("first")["cost"] == pytest.approx(others[0].get_meta_info("first")["cost"] / 2)
    assert states[0].usage.batched_calls == states[0].usage.calls == 2
    with pytest.raises(lmc.BudgetExceeded):
        chain.run(question="one", backend=backend, temperature=0, deadline="24h", budget=lmc.Budget(calls=1))


def test_only_what_failed_is_asked_again(served, tmp_path):
    failed = set()

    def fate(number, id, body):
        if number == 0 and id and len(failed) < 3 and id not in failed:
            failed.add(id)
            return ("error", "expired", "error")[len(failed) - 1]
        return "ok"

    backend, found = served(fate=fate)
    states = answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h", journal=tmp_path / "j")
    assert sizes(found) == [7, 3] and len(found.paid) == len(set(found.paid)) == 7
    assert [s.ret_value for s in states] == [s.ret_value for s in answer.run_batch(ITEMS, backend=backend, temperature=0)]
    spent = backend.spent()
    assert spent.retries == 3 and sorted(s.get_meta_info("a").get("attempts", 1) for s in states) == [1, 1, 1, 1, 2, 2, 2]


def test_what_is_refused_fails_its_item_alone(served, tmp_path):
    backend, found = served(fate=lambda n, id, body: "refused" if "What is 3?" in json.dumps(body) else "ok")
    states = answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h", journal=tmp_path / "j", errors="return")
    assert sizes(found) == [7] and [s.error() is not None for s in states] == [i == 3 for i in range(7)]
    assert "the request was refused" in str(states[3].error())
    found.fate = lambda n, id, body: "ok"
    again = answer.run_batch(ITEMS, backend=found.again(), temperature=0, deadline="24h", journal=tmp_path / "j", errors="return")
    assert all(s.error() is None for s in again) and sizes(found) == [7, 1] and len(set(found.paid)) == len(found.paid) == 7


@pytest.mark.parametrize("ahead", (0.0, -86400.0, 86400.0), ids=("same clock", "server behind", "server ahead"))
def test_a_batch_that_may_have_been_submitted_is_found_again(served, clock, ahead):
    lost = []

    def plant(number, path, body):
        if path.endswith("/batches") and len(lost) < 2:
            lost.append(path)
            return Planted("truncate") if len(lost) == 1 else Planted("status", 503)
        return None

    backend, found = served(plant=plant)
    found.ahead = ahead
    states = answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")
    assert sizes(found) == [7] and all(s.ret_value for s in states) and len(lost) == 1
    assert batches.IN_DOUBT in clock.slept
    lost[:] = ["one"]  # the next one is refused, and was never there
    answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")
    assert sizes(found) == [7, 7] and len(lost) == 2


@pytest.mark.parametrize("where", (r"/batches$", r"/batches/[^/?]+$"), ids=("submitted", "polled"))
@pytest.mark.parametrize("odd", ({}, {"id": None, "request_counts": 5, "status": []}, []), ids=("nothing", "odd", "a list"))
def test_what_is_no_batch_is_looked_for_again(served, odd, where):
    """What is said of a batch that was submitted, at first in an answer that does not say it."""
    backend, found = served()
    server, said = found.server, list[str]()
    handle, getting = server.handle, server.getting

    def first(path, right):
        if re.search(where, path) and not said:
            said.append(path)
            return Answer(odd)
        return right

    server.handle = lambda path, body: first(path, handle(path, body))
    server.getting = lambda path: first(path, getting(path))
    states = answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")
    assert sizes(found) == [7] and all(s.ret_value for s in states) and said and len(found.paid) == 7


def test_a_server_without_room_is_asked_later(served):
    if served.provider == "anthropic":
        backend, found = served(plant=lambda n, path, body: Planted("status", 429, {"retry-after": "100"}) if n < 9 else None)
    else:
        backend, found = served(fate=lambda number, id, body: "full" if number < 3 and not id else "ok")
    states = answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")
    assert all(s.ret_value for s in states) and sizes(found)[-1] == 7 and len(found.paid) == 7


def test_a_batch_that_fails_says_why(served, opened):
    if served.provider == "anthropic":
        backend, _found = served(
            plant=lambda n, path, body: Planted("status", 400, body={"type": "error", "error": {"type": "invalid_request_error", "message": "it is as it is"}})
        )
    else:
        backend, _found = served(fate=lambda number, id, body: "ok" if id else "failed")
    with pytest.raises(BackendError, match="it is as it is"):
        answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")


def test_a_dead_server_is_one_error(served, clock):
    backend, found = served()
    found.server.close()
    with pytest.raises(BackendError, match=r"gen 'a' failed: .*onnect"):
        answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")
    assert sum(clock.slept) < 120


def test_a_wrong_key_is_one_error(served, tmp_path):
    backend, found = served(plant=lambda n, path, body: Planted("status", 401))
    with pytest.raises(BackendError, match="HTTP 401"):
        answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h", journal=tmp_path / "j")
    assert len(found.server.seen) == 1 and lmc.Journal(tmp_path / "j").waves() == []


def test_a_wave_beyond_the_servers_limit_is_several_batches(served, monkeypatch):
    from lmc.backend.api.batch_servers import AnthropicBatches, OpenAIBatches

    for kind in (AnthropicBatches, OpenAIBatches):
        monkeypatch.setattr(kind, "most", 3)
    backend, found = served()
    assert all(s.ret_value for s in answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h"))
    assert sorted(sizes(found)) == [1, 3, 3]


def test_looks_become_rarer(served, clock):
    backend, _found = served(looks=20)
    answer.run(question="one", backend=backend, temperature=0, deadline="24h")
    looks = [s for s in clock.slept if s >= batches.FIRST_POLL]
    assert len(looks) == 20 and looks == sorted(looks) and looks[0] == 5 and looks[-1] == 60


def test_what_cannot_be_batched_is_said_before_anything_is_sent(served, opened):
    backend, found = served()
    program = lmc.compile(answer)
    for what, match in (
        (lambda: answer.run(question="one", backend=backend, deadline="1h"), "'24h'"),
        (lambda: answer.run(question="one", backend=backend, deadline="24h", stream=True), "stream"),
        (lambda: program.stream(question="one", backend=backend, deadline="24h"), "stream"),
        (lambda: answer.run(question="one", backend=backend, deadline="24h", timeout=9), "timeout"),
        (lambda: answer.run(question="one", backend=lmc.Mock(), deadline="24h"), "no batch API"),
        (lambda: program.batch(ITEMS, backend=opened(lmc.OpenAI("m", base_url="http://127.0.0.1:1/v1")), deadline="24h"), "no batch API"),
    ):
        with pytest.raises(ParameterError, match=match):
            what()

    @lmc.function
    def inner(s, question):
        return answer.run(question=question, deadline="24h")["a"]

    with pytest.raises(ParameterError, match="sub-program"):
        inner.run(question="one", backend=backend).sync()
    if served.provider == "openai":
        with pytest.raises(UnsupportedOpError, match="service_tier"):
            answer.run(question="one", backend=found.again(service_tier="flex"), deadline="24h")

        @lmc.function
        def chosen(s):
            s += lmc.user("Which?") + lmc.assistant(lmc.select("c", ["a", "b"]))

        with pytest.raises(UnsupportedOpError, match="decisions") as caught:
            chosen.run(backend=found.again(select="decisions"), deadline="24h").sync()
        assert caught.value.loc is not None
    assert found.created == [] and not found.server.seen


def test_choices_constraints_samples_and_images(served):
    @lmc.function
    def various(s, question):
        s += lmc.user(question)
        forks = s.fork(3)
        forks[0] += lmc.assistant(lmc.select("a", ["yes", "no"]))
        forks[1] += lmc.assistant(
            lmc.gen("a", max_tokens=40, json_schema={"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False})
        )
        forks[2] += lmc.assistant(lmc.gen("a", max_tokens=9, n=2, temperature=1.0))
        return [f["a"] for f in forks]

    backend, found = served()
    states = various.run_batch(ITEMS[:2], backend=backend, temperature=0, deadline="24h", seed=1)
    assert [s.ret_value for s in states] == [s.ret_value for s in various.run_batch(ITEMS[:2], backend=backend, temperature=0, seed=1)]
    assert len(found.created) == 1


def test_equal_requests_are_several(served):
    @lmc.function
    def same(s):
        for f in (forks := s.fork(3)):
            f += lmc.user("One?") + lmc.assistant(lmc.gen("a", max_tokens=9))
        return [f["a"] for f in forks]

    backend, found = served()
    states = same.run_batch([{}] * 3, backend=backend, temperature=0, deadline="24h", seed=1)
    assert len({str(s.ret_value) for s in states}) == 1 and sum(sizes(found)) == 9


# -- kills -------------------------------------------------------------------------------------------------------------

NURSERY = textwrap.dedent("""
    import importlib.util, json, os, signal, sys
    from lmc.backend.api import batch_servers, batches, submitted
    from tests.api import test_batches as t

    for name in ("openai", "anthropic"):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)

    def run(provider, url, journal, kill):
        batches.clock, batches.PATIENCE = t.FakeClock(), float("inf")
        die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        write = submitted.SubmittedWaves._write

        def noting(self, record):
            what = next(k for k in ("ids", "batch", "over", "gone") if k in record)
            if kill == f"before {what}":
                die()
            write(self, record)
            if kill == f"after {what}":
                die()

        submitted.SubmittedWaves._write = noting
        for kind in (batch_servers.OpenAIBatches, batch_servers.AnthropicBatches):
            def submit(self, *args, submit=kind.submit):
                if kill != "sending":
                    return submit(self, *args)
                async def sent():
                    await submit(self, *args)
                    die()
                return sent()
            kind.submit = submit
        backend = {"openai": t._openai, "anthropic": t._anthropic}[provider](url)
        states = t.chain.run_batch(t.ITEMS, backend=backend, temperature=1.0, deadline="24h", journal=journal)
        print([s.ret_value for s in states], flush=True)
        backend.close()

    for line in sys.stdin:
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            os.dup2(write, 1)
            os.close(write)
            run(*json.loads(line))
            os._exit(0)
        os.close(write)
        with open(read) as said:
            told = said.read()
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told]), flush=True)
""")
"""A process that has imported all there is to import, whose children begin at once."""


@pytest.fixture(scope="module")
def child():
    """Runs the batch in a process of its own until it is killed, or to its end; what it printed."""
    command = [sys.executable, "-c", NURSERY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as nursery:

        def run(provider, url, journal, kill):
            nursery.stdin.write(json.dumps([provider, url, str(journal), kill]) + "\n")
            nursery.stdin.flush()
            status, said = json.loads(nursery.stdout.readline())
            assert status == (0 if kill == "never" else -signal.SIGKILL), kill
            return said

        yield run
        nursery.stdin.close()


def test_a_call_that_is_killed_anywhere_goes_on_and_pays_once(served, child, tmp_path):
    _backend, found = served()
    journal, where = tmp_path / "j", (served.provider, found.server.url)
    for kill, submitted in (("after ids", 0), ("sending", 1), ("before over", 1), ("after ids", 1), ("sending", 2)):
        child(*where, journal, kill)
        assert len(found.created) == submitted and all(w.requests == 7 for w in lmc.Journal(journal).waves()), kill
    said = child(*where, journal, "never")
    assert sizes(found) == [7, 7] and len(found.paid) == len(set(found.paid)) == 14
    assert said == child(*where, journal, "never"), "and then all of it is in the journal"
    assert sizes(found) == [7, 7] and [w.failed for w in lmc.Journal(journal).waves()] == [0, 0]


def _interrupting(clock):
    """The clock's sleep, with Ctrl-C when the first look at a batch is over."""

    async def sleep(seconds, sleep=clock.sleep):
        if seconds >= batches.FIRST_POLL and batches.FIRST_POLL not in clock.slept:
            os.kill(os.getpid(), signal.SIGINT)
        await sleep(seconds)

    return sleep


@pytest.mark.parametrize("journaled", (True, False), ids=("journal", "no journal"))
def test_ctrl_c_says_what_becomes_of_the_batches(served, tmp_path, clock, monkeypatch, journaled):
    backend, found = served()
    found.hold = True
    journal = {"journal": tmp_path / "j"} if journaled else {}

    monkeypatch.setattr(clock, "sleep", _interrupting(clock))
    with pytest.raises(KeyboardInterrupt) as caught:
        answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h", **journal)
    (note,) = caught.value.__notes__
    assert found.created[0].id in note and ("the same call with the same journal=" if journaled else "cancelled") in note
    assert found.created[0].status == ("in_progress" if journaled else "over")
    if journaled:
        (wave,) = lmc.Journal(tmp_path / "j").waves()
        assert (wave.requests, wave.batch, wave.failed) == (7, found.created[0].id, None)
        found.hold = False
        assert all(s.ret_value for s in answer.run_batch(ITEMS, backend=found.again(), temperature=0, deadline="24h", **journal))
        assert sizes(found) == [7] and len(found.paid) == 7


@pytest.mark.parametrize("days", (1, 40))
def test_a_batch_that_the_server_no_longer_has(served, tmp_path, clock, monkeypatch, days):
    """Its answers are kept for a month. Before, it is there, but with another key."""
    backend, found = served()
    found.hold = True
    with monkeypatch.context() as patch:
        patch.setattr(clock, "sleep", _interrupting(clock))
        with pytest.raises(KeyboardInterrupt):
            answer.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h", journal=tmp_path / "j")
    found.created.clear()
    found.hold = False
    clock.time += days * 86400.0
    states = answer.run_batch(ITEMS, backend=found.again(), temperature=0, deadline="24h", journal=tmp_path / "j", errors="return")
    if days > 30:
        assert all(s.ret_value for s in states) and sizes(found) == [7] and len(found.paid) == 7
    else:
        assert sizes(found) == []
        assert all(re.search(r"HTTP 404: .*; batches are seen with the key, .* move away .*journal.batches", str(s.error())) for s in states)


def test_progress_is_said(served, capsys):
    backend, found = served(looks=2)
    lmc.compile(chain).batch(ITEMS, backend=backend, temperature=0, deadline="24h", progress=True)
    said = [line for line in capsys.readouterr().err.replace("\r", "\n").splitlines() if line.startswith("lmc: ")]
    assert [line.partition(": ")[2].partition(": ")[2] for line in said if "wave" in line] == [
        f"wave {n}: 7 requests, {b.id}" for n, b in enumerate(found.created, 1)
    ]
    assert sum("is over: 7 answered" in line for line in said) == 2 and any("0 of 7 done" in line for line in said)


def test_the_command_line(served, tmp_path):
    if served.provider == "openai":
        pytest.skip("--backend openai:MODEL@URL is a compatible server, of which nobody knows batches")
    _backend, found = served(looks=0)
    (tmp_path / "p.py").write_text(textwrap.dedent("""
        import lmc
        @lmc.function
        def answer(s, question):
            s += lmc.user(question) + lmc.assistant(lmc.gen("a", max_tokens=9))
            return s["a"]
    """))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))

    def run(*args):
        return subprocess.run(
            [sys.executable, "-m", "lmc", *args],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, "ANTHROPIC_API_KEY": "k", "PYTHONPATH": str(Path(__file__).parents[2])},
        )

    args = [
        "run",
        "p.py:answer",
        "--backend",
        f"anthropic:claude@{found.server.url}",
        "--input",
        "in.jsonl",
        "--output",
        "out.jsonl",
        "--temperature",
        "0",
        "--deadline",
        "24h",
    ]
    without = run(*args)
    assert without.returncode == 2 and "--journal" in without.stderr and not found.server.seen
    done = run(*args, "--journal", "j")
    assert done.returncode == 0 and "wave 1: 7 requests, msgbatch_0" in done.stderr, done.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 7 and sizes(found) == [7]
    shown = run("journal", "show", "j")
    assert "wave 1: 7 requests to Anthropic(claude), " in shown.stdout and "msgbatch_0, over" in shown.stdout, shown.stdout


def test_dollars_before_a_run_know_batches(served):
    backend, _found = served(script=lambda prompt: "Four words are it.")
    answer.run(question="How many bytes does a token have here? " * 50, backend=backend, temperature=0, deadline="24h")  # what the server counts

    @lmc.function
    def long(s):
        s += lmc.system("All that they share. " * 200)
        for i, f in enumerate(forks := s.fork(3)):
            f += lmc.user(f"View {i}?") + lmc.assistant(lmc.gen("a", max_tokens=40))
        return [f["a"] for f in forks]

    program = lmc.compile(long, backend=backend)
    line = next(line for line in program.explain().splitlines() if 'deadline="24h"' in line)
    certain, expected, most = (float(part.split()[0]) for part in line.split("$")[1:4])
    before = backend.spent().cost
    program(temperature=0, deadline="24h")
    paid = backend.spent().cost - before
    assert certain <= paid <= most and expected == pytest.approx(paid, rel=0.1)


# -- what OpenAI alone has ---------------------------------------------------------------------------------------------


@pytest.fixture
def openai_batches(opened):
    def make(model=None, *, stand_in=None, **options):
        found, server = batch_servers.serve_openai(model or TextModel(), stand_in=stand_in)
        found.server = opened(server)
        return opened(_openai(server.url, **options)), found

    return make


@pytest.mark.parametrize("reasons", (False, True))
def test_a_model_of_the_responses_api_is_asked_by_it(openai_batches, reasons, tmp_path):
    backend, found = openai_batches(stand_in={"only_responses": True, "reasons": reasons})
    states = chain.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h", journal=tmp_path / "j")
    assert [b.endpoint for b in found.created] == ["/v1/chat/completions", *["/v1/responses"] * (2 if reasons else 3)], (
        "refused once, and asked for its reasoning once"
    )
    assert len(found.paid) == 14 and all(s.ret_value for s in states)
    again = chain.run_batch(ITEMS, backend=backend, temperature=0, deadline="24h")
    assert [s.ret_value for s in again] == [s.ret_value for s in states] and [b.endpoint for b in found.created[-2:]] == ["/v1/responses"] * 2


def test_what_a_model_does_not_take_is_left_out_in_the_next_wave_also_behind_a_kill(openai_batches, opened, tmp_path):
    @lmc.function
    def two(s, question):
        s += lmc.user(question) + lmc.assistant(lmc.gen("a", max_tokens=9))
        found = s["a"]
        s += lmc.user("And?") + lmc.assistant(lmc.gen("b", max_tokens=9, stop="!"))
        return found + s["b"]

    backend, found = openai_batches(stand_in={"refuses": ["seed"]})
    fresh = lambda: opened(_openai(found.server.url))
    states = two.run_batch(ITEMS, backend=backend, temperature=1.0, deadline="24h", journal=tmp_path / "j")
    assert sizes(found) == [7, 7, 7] and len(found.paid) == 14
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "journal.batches").write_bytes((tmp_path / "j" / "journal.batches").read_bytes())  # all answers are lost, and what was submitted is not
    seed = lmc.Journal(tmp_path / "j").read().header["seed"]
    again = two.run_batch(ITEMS, backend=fresh(), temperature=1.0, deadline="24h", journal=tmp_path / "k", seed=seed)
    assert sizes(found) == [7, 7, 7] and [s.ret_value for s in again] == [s.ret_value for s in states]


@pytest.mark.parametrize("line", ("{", "[]", '{"wave": 1}', "[" * 100_000), ids=("cut", "list", "keys", "nested"))
def test_a_damaged_record_of_batches_is_an_error_that_names_it(tmp_path, line):
    from lmc.backend.api.submitted import SubmittedWaves

    (path := tmp_path / "journal.batches").write_text(line + "\n")
    with pytest.raises(lmc.JournalError, match=r"journal\.batches is damaged"):
        SubmittedWaves(path)
