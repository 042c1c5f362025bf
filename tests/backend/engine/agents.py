"""Agents that use tools, on an engine whose passes and whose clock a test drives: what programs on threads do, without threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lmc.backend.base import Hints, ProgramRun
from lmc.backend.engine.policy import OWN, Policy
from lmc.segments import Gen, SamplingParams, Text
from tests.backend.engine_fakes import stepped


@dataclass
class Clock:
    """Seconds that pass when a test says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Agent:
    """One that reads a prompt, and then says something and reads what a tool has found, some times.

    tools  seconds that each takes
    """

    number: int
    prompt: str
    found: Sequence[str]
    tools: Sequence[float]
    tokens: int
    run: ProgramRun = field(init=False)
    handle: Any = None
    due: float | None = 0.0  # when it goes on; None: it waits for an answer
    turn: int = 0
    done: bool = False
    texts: list[str] = field(default_factory=list)  # what it has said

    def begin(self, batch: object, **share: Any) -> None:
        self.run = ProgramRun("agent", batch, **share)


PASS_SECONDS = 0.01


class World:
    """Agents on an engine. A pass takes 10 ms."""

    def __init__(self, slots: int, policy: Policy = OWN, **options: Any) -> None:
        self.clock = Clock()
        self.engine, self.core = stepped(slots, policy=policy, now=self.clock, max_context=slots, **{"chunk": 256, "max_batch": 64, **options})

    def run(self, agents: Sequence[Agent], check: bool = False) -> None:
        """Until all have ended. Fails if nobody gets on."""
        batch = object()
        for agent in agents:
            agent.begin(batch)
        idle = 0
        while not all(agent.done for agent in agents):
            for agent in agents:
                self._step(agent)
            passes = self.engine.counters().passes
            if self.core.turn():
                self.clock.now += PASS_SECONDS * (self.engine.counters().passes - passes)
                idle = 0
            else:
                due = [agent.due for agent in agents if not agent.done and agent.due is not None]
                if pause := self.core.scheduler.patience:
                    due.append(self.clock.now + pause)
                self.clock.now = min(due, default=self.clock.now) + 1e-6
                idle += 1
                assert idle < 100, "nobody gets on"
            if check:
                self.engine.check()
        while self.core.turn():
            pass

    def _step(self, agent: Agent) -> None:
        if agent.done:
            return
        if agent.due is None:
            if not agent.handle.results[0].done:
                return
            agent.texts.append(agent.handle.results[0].output().text)
            if agent.turn > len(agent.found):
                agent.done, agent.handle = True, None
                return agent.run.end()
            agent.due = self.clock.now + agent.tools[agent.turn - 1]
        if agent.due <= self.clock.now:
            text = agent.prompt if agent.turn == 0 else agent.found[agent.turn - 1]
            gen = Gen(SamplingParams(max_new_tokens=agent.tokens, temperature=0.0, ignore_eos=True))
            agent.handle = self.engine.submit(agent.handle, [Text((text,)), gen], Hints(run=agent.run))
            agent.due, agent.turn = None, agent.turn + 1


def agents(count: int, *, prompt: int = 300, turns: int = 4, found: int = 18, tokens: int = 16, tool: float = 0.05, seed: int = 0) -> list[Agent]:
    """With prompts, and what tools find, of so many tokens of their own."""
    made: list[Agent] = []
    for i in range(count):
        rng = Random(f"{seed} {i}")
        text = lambda n, rng=rng: "".join(rng.choice("fghijklmnopqrstuvwxyz") for _ in range(n))
        made.append(Agent(i, text(prompt), [text(found) for _ in range(turns)], [tool * rng.uniform(0.5, 1.5) for _ in range(turns)], tokens))
    return made
