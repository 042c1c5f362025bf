"""Traces of agents, as published statistics of coding agents describe them, and the program that replays one: it reads, answers and calls tools.

An agent takes a median of 32 turns (the middle half 23 to 43). Its context ends at 12,000 to 140,000 tokens, evenly on a logarithmic scale; answers have about
400 tokens,
tools take 0.1 to 30 s, evenly on a logarithmic scale, and 44 % of agents hand parts of their work to subagents. `scale` divides tokens and seconds,
not turns. All agents have the same instructions in front, as those of one product do. Lengths are in words, of which each is about a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import lmc
from benchmarks.workloads import text

INSTRUCTIONS = 5000  # tokens that all agents begin with
CONTEXT = (12_000, 140_000)
TURNS, SPREAD = 32, math.log(43 / 23) / 2 / 0.6745  # median, and sigma of the logarithm, with quartiles at 23 and 43
ANSWER, WIDTH = 300, 0.75  # median and sigma of the logarithm: 400 on average
TOOL = (0.1, 30.0)
SUBAGENTS = 0.44


@dataclass(frozen=True)
class Turn:
    """An answer of so many tokens, what is done then, for so many seconds, and what that gives."""

    tokens: int
    seconds: float
    found: str
    subagent: Trace | None = None


@dataclass(frozen=True)
class Trace:
    """`share`: of the job that it is part of, each turn is so much."""

    number: int
    prompt: str
    turns: tuple[Turn, ...]
    share: float = field(default=0.0, compare=False)

    @property
    def words(self) -> int:
        """Of its context at the end."""
        return len(self.prompt.split()) + sum(turn.tokens + len(turn.found.split()) for turn in self.turns)

    def rest(self, begun: int) -> Trace:
        """Return the work that is left behind so many turns, whose text it begins with."""
        done = " ".join([self.prompt, *(turn.found for turn in self.turns[:begun])])
        return Trace(self.number, done, self.turns[begun:], self.share)


def traces(seed: int, scale: float) -> Iterator[Trace]:
    """Without end; the same for the same seed."""
    instructions = text(Random(f"{seed} instructions"), round(INSTRUCTIONS / scale))
    number = 0
    while True:
        rng = Random(f"{seed} {number}")
        low, high = map(math.log, CONTEXT)
        context = math.exp(rng.uniform(low, high))
        turns = _between(4, rng.lognormvariate(math.log(TURNS), SPREAD), 160)
        parts = rng.choice((1, 1, 2, 3)) if rng.random() < SUBAGENTS else 0
        yield _trace(rng, number, instructions, context, turns, scale, parts)
        number += 1


def _trace(rng: Random, number: int, instructions: str, context: float, turns: int, scale: float, parts: int = 0) -> Trace:
    own = max(context - INSTRUCTIONS, 0.4 * context)
    answers = [_between(16, rng.lognormvariate(math.log(ANSWER), WIDTH), 4000) for _ in range(turns)]
    answers = [min(answer, 0.6 * own / turns) for answer in answers]
    task = 0.2 * own
    weights = [rng.expovariate(1.0) + 0.1 for _ in range(turns)]
    found = max(own - task - sum(answers), 0.1 * own)
    delegated = set(rng.sample(range(turns), min(parts, turns)))
    made: list[Turn] = []
    for i in range(turns):
        seconds = math.exp(rng.uniform(*map(math.log, TOOL))) / scale
        words = text(rng, max(1, round(found * weights[i] / sum(weights) / scale)))
        sub = _trace(rng, number, instructions, context / 4, max(4, turns // 3), scale) if i in delegated else None
        made.append(Turn(max(1, round(answers[i] / scale)), 0.0 if sub else seconds, words, sub))
    steps = sum(1 + (len(turn.subagent.turns) if turn.subagent else 0) for turn in made)
    subs = [turn if turn.subagent is None else _shared(turn, 1 / steps) for turn in made]
    task_text = f"{number}: " + text(rng, max(1, round(task / scale)))
    return Trace(number, f"{instructions}\n{task_text}", tuple(subs), 1 / steps)


def _shared(turn: Turn, share: float) -> Turn:
    assert turn.subagent is not None
    return Turn(turn.tokens, turn.seconds, turn.found, Trace(turn.subagent.number, turn.subagent.prompt, turn.subagent.turns, share))


def _between(low: float, x: float, high: float) -> int:
    return round(max(low, min(high, x)))


@dataclass(eq=False)
class Tools:
    """The means by which programs act. sleep: until so many seconds are over. done: told the share of a job with each turn."""

    sleep: Callable[[float], None]
    done: Callable[[float], None]

    def __call__(self, turn: Turn, share: float) -> str:
        if turn.seconds:
            self.sleep(turn.seconds)
        self.done(share)
        return turn.found


@lmc.function
def agent(s: Any, trace: Trace, tools: Tools):
    s += trace.prompt
    for i, turn in enumerate(trace.turns):
        s += "\nNext: " + lmc.gen(f"turn{i}", max_tokens=turn.tokens, ignore_eos=True)
        s.sync()
        if turn.subagent is not None:
            agent.run(trace=turn.subagent, tools=tools)
        s += "\nFound: " + tools(turn, trace.share)
