"""Judges and evaluations: panels, pairs, votes, tournaments, debates."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import lmc
from lmc import assistant, gen, select, system, user
from tests.conformance.harness import case, scripted
from tests.conformance.shared import CHOICES, WORDS, by_name, child


@case([{"q": "text"}], backend=scripted(related="no"))
@case([{"q": "text"}, {"q": "more"}], backend=scripted(related="yes"))
def essay_judge(s: Any, q: str) -> str:
    s += lmc.system("You grade essays.") + lmc.user("Essay: " + q)
    s += lmc.assistant(lmc.select("related", choices=["yes", "no"]))
    if s["related"] == "no":
        return "off topic"
    forks = s.fork(3)
    for f, dim in zip(forks, ["clarity", "originality", "evidence"]):
        f += lmc.user(f"Judge its {dim}.") + lmc.assistant(lmc.gen("judgment", max_tokens=12, stop="END"))
    s += lmc.user("Summary:\n" + "\n".join(f["judgment"].strip() for f in forks))
    s += lmc.assistant(lmc.gen("out", regex=r'\{"grade": "[ABCD][+-]?"\}'))
    return json.loads(s["out"])["grade"]


@dataclass(order=True)
class Mark:
    score: int
    dim: str = field(compare=False)
    why: str = field(default="", compare=False)

    @property
    def good(self) -> bool:
        return self.score >= 5

    @classmethod
    def of(cls, state: Any, dim: str) -> Mark:
        return cls(int(state["score"]), dim, state["why"])


@lmc.function
def judge(s, essay, dim):
    s += system(f"Judge {dim}") + user(essay) + assistant(gen("why", max_tokens=4) + " Score: " + gen("score", max_tokens=2))


@case(backend=by_name)
def panel(s, q):
    marks = [Mark.of(judge(essay=q, dim=d), d) for d in ("clarity", "style", "evidence")]
    best, worst = max(marks), min(marks)
    s += f"{best.dim} over {worst.dim}: {sum(m.score for m in marks) / len(marks):.2f}" + select("verdict", CHOICES)
    return [m for m in marks if m.good], s["verdict"], dataclasses.asdict(best)


@case(backend=by_name)
def comparing_pairs(s, q):
    wins = collections.Counter()
    for a, b in itertools.combinations(["ann", "bob", "cy"], 2):
        f = s.copy() if hasattr(s, "copy_of") else s.fork(1)[0]
        f += f"{q}: {a} or {b}?" + select("w", [a, b])
        wins[f["w"]] += 1
    return wins.most_common(), wins.total()


@case(backend=by_name)
def debate(s, q):
    said = dict.fromkeys(["ann", "bob"], "")
    for turn in range(2):
        said = {who: child(f"{who} {turn} {q} " + " / ".join(v for k, v in said.items() if k != who)).ret_value for who in said}
    s += "\n".join(f"{k}: {v}" for k, v in said.items()) + select("winner", list(said))
    return s["winner"]


@case(backend=by_name)
def debate_of_agents(s, q):
    class Agent:
        def __init__(self, name: str) -> None:
            self.name, (self.s,) = name, s.fork(1)
            self.s += system(f"You are {name}")

        def hears(self, who: str, what: str) -> None:
            self.s += user(f"{who}: {what}")

        def speaks(self) -> str:
            self.s += assistant(gen("say", max_tokens=6))
            return self.s["say"]

    agents, log = [Agent(n) for n in WORDS[:3]], []
    for agent in agents:
        agent.hears("all", q)
    for speaker in itertools.islice(itertools.cycle(agents), 5):
        log.append((speaker.name, speaker.speaks()))
        for other in agents:
            if other is not speaker:
                other.hears(*log[-1])
    return log
