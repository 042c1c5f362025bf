"""While a tool runs: the text that follows it for certain is prefilled, and a pure tool begins as soon as its arguments are complete."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import lmc
from lmc.backend.base import Hints, ProgramRun
from lmc.backend.engine.forward_batch import ModelPass
from lmc.backend.families import HERMES, LLAMA3, MISTRAL, Family
from lmc.segments import Text
from tests.backend.engine.test_host_tier import ask
from tests.backend.engine_fakes import FakeRunner, FakeWords, automata, backend, drain, gen, stepped
from tests.waiting import until

LONG = "Consider what was found with great care, and say in one line what follows from it: "


class Held(FakeRunner):
    """Its passes wait until `may_run` says so."""

    may_run: Callable[[ModelPass], bool] = lambda self, work: True

    def run(self, work: ModelPass) -> Any:
        until(lambda: self.may_run(work), "a pass was held up")
        return super().run(work)


def prefilled(instructions: str, *, after: str) -> tuple[int, int, Any]:
    """Tokens of a prompt that were computed when a tool began, and while it ran; the engine's figures at the end."""
    seen: list[int] = []

    @lmc.host
    def tool(answer: str) -> str:
        before = engine.counters().prefilled_tokens
        steps = [prompt.handle.last for prompt in ledgers[-1]._prefilled.values()]
        # The answer is told before what waits for it is posted to the engine, so that an engine at rest proves nothing.
        until(lambda: all(step.requests and all(req.done for req in step.requests) for step in steps), "the prefill did not end")
        seen.extend((before, engine.counters().prefilled_tokens))
        return "nothing"

    @lmc.function
    def agent(s, task):
        s += "You are an agent. " + task + " Do: " + lmc.gen("step", max_tokens=4, ignore_eos=True)
        s += instructions + tool(s["step"]) + after + lmc.gen("end", max_tokens=4, ignore_eos=True)

    engine, runner = backend(2000, runs=Held)
    program = lmc.compile(agent, backend=engine)
    ledgers: list[Any] = []
    make = program._begin

    def begin(policy: Any, state: Any, bound: Any) -> None:
        make(policy, state, bound)
        ledgers.append(state.emitter.run.ledger)

    program._begin = begin
    runner.may_run = lambda work: program.profile.evaluations > 0  # Python waits for the answer, and what comes next has been evaluated meanwhile
    with engine:
        assert program(task="Look.")["end"]
        engine.check()
        stats = engine.stats()
        assert not program.profile.faults
    return seen[0], seen[1], stats


def test_text_behind_an_answer_is_prefilled_before_the_tool_has_ended():
    _, ran, stats = prefilled(LONG, after="")
    _, alone, _ = prefilled("", after=LONG)
    assert ran - alone >= len(FakeWords().encode((LONG,))) - 8, "but for its last tokens, which what follows may change"
    assert stats["leases"] == stats["running"] == stats["waiting"] == 0


def test_a_few_words_are_not_worth_a_prefill():
    _, ran, _ = prefilled("Found: ", after="")
    _, alone, _ = prefilled("", after="Found: ")
    assert ran == alone


def test_what_is_prefilled_belongs_to_the_lease_and_the_clock_of_the_tool_stays():
    engine, core = stepped(400)
    run = ProgramRun("agent")
    first = ask(engine, core, "p" * 50, run=run)
    (lease,) = core.scheduler.runs.leases()
    before = lease.node.end
    handle = engine.prefill(first, [Text(("q" * 60,))], Hints(run=run, low_priority=True))
    drain(core)
    (same,) = core.scheduler.runs.leases()
    assert same is lease and lease.node.end > before + 40 and not same.wanted
    assert engine.stats()["pinned"] == 0 and handle
    engine.check()
    more = engine.submit(first, [Text(("q" * 60 + "found",)), gen(4)], Hints(run=run))
    drain(core)
    assert more.results[0].output().meta["cached_tokens"] > before + 40
    engine.check()


def test_what_is_made_in_passing_is_given_up_where_there_is_no_room():
    engine, core = stepped(100, max_context=100)
    run = ProgramRun("agent")
    pin = engine.prefill(None, [Text(("q" * 40,))], Hints(pin=True))
    first = ask(engine, core, "p" * 40, run=run)
    handle = engine.prefill(first, [Text(("r" * 50,))], Hints(run=run, low_priority=True))
    drain(core)
    stats = engine.stats()
    assert (stats["leases"], stats["broken_leases"], stats["pinned"], stats["waiting"], stats["running"]) == (1, 0, 1, 0, 0)
    assert handle and engine.holds(pin)
    engine.check()


ANSWER = 'Well. <tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n</tool_call> That is all.'


class Says(Held):
    """Says ANSWER, whatever it is asked."""

    ids = FakeWords().encode((ANSWER,))

    def run(self, work: ModelPass) -> Any:
        out = super().run(work)
        at = [req.length - req.prompt_len for _, req in work.samples]
        tokens = [self.ids[i] if i < len(self.ids) else self.eos for i in at]
        return type(out)(tokens, out.logprobs, out.scores, out.tops)


@pytest.mark.parametrize(("pure", "idle"), [(True, False), (True, True), (False, False)])
def test_a_pure_tool_begins_before_the_answer_ends(pure, idle):
    """Also in runs that need no evaluations."""
    begun, calls = threading.Event(), list[str]()

    def look(city: str) -> str:
        """Look at a city."""
        calls.append(city)
        begun.set()
        return f"{city} is large."

    tools = [lmc.pure(look) if pure else look]

    @lmc.function
    def agent(s):
        s += lmc.user("How is Rome?") + lmc.assistant(lmc.gen("call", tools=tools, max_tokens=200))
        return [lmc.call_tool(call, tools) for call in s.get_meta_info("call")["tool_calls"]]

    engine, runner = backend(2000, runs=Says, compiler=automata(FakeWords()))
    last = len(Says.ids) - 3  # the call is complete by then, and the answer is not
    if pure:
        runner.may_run = lambda work: begun.is_set() or not any(req.length - req.prompt_len >= last for _, req in work.samples)
    else:
        runner.may_run = lambda work: not begun.is_set()
    with engine:
        program = lmc.compile(agent, backend=engine)
        program.profile.is_idle = lambda: idle
        state = program()
        assert state.ret_value == ["Rome is large."] and calls == ["Rome"]
        plain = agent.run(backend=engine) if pure else state
        assert plain.ret_value == state.ret_value and plain.text() == state.text()


@pytest.mark.parametrize(
    ("family", "text", "names"),
    [
        (HERMES, 'x <tool_call>\n{"name": "a", "arguments": {"n": 1}}\n</tool_call>\n<tool_call>\n{"name": "b", "arg', ["a"]),
        (HERMES, 'x <tool_call>\n{"name": "a", "arguments": {"n": 1}}', []),
        (LLAMA3, '{"name": "a", "parameters": {"n": 1}}; {"name": "b", "parameters": {}', ["a"]),
        (LLAMA3, 'no: {"name": "a", "parameters": {"n": 1}}', []),
        (MISTRAL, '[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}, ', ["a", "b"]),
        (MISTRAL, "", []),
    ],
)
def test_calls_that_are_complete_in_a_growing_answer(family: Family, text: str, names: list[str]):
    assert [call.name for call in family.closed(text)] == names
