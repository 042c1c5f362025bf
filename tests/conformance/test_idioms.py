"""More programs as people write them: answers in every Python idiom that goes over items, searches, games, guards, caches and routes; nothing certain is
wasted."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import csv
import enum
import functools
import graphlib
import heapq
import io
import itertools
import json
import math
import operator
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc import assistant, gen, system, user
from lmc.backend.mock import Mock
from tests.searching import some

from .harness import Case, case, cases, eager, effect
from .test_written import achild, answers, ask, child, means_the_same

WORDS = ["ann", "bob", "cy", "dee"]


def number(text: str) -> int:
    return int(child(text, "n").ret_value)


# -- answers in idioms that go over items


@case()
def answers_in_what_takes_them_all(s, q):
    total = sum(number(q + w) for w in WORDS)
    best = max(WORDS, key=lambda w: number(f"how good is {w}{q}"))
    ranked = sorted(WORDS, key=lambda w: (-number(f"rank {w}{q}"), w))
    lowest = min((number(f"price of {w}{q}"), w) for w in WORDS)
    votes = collections.Counter(child(f"{w}{q}", "vote").ret_value for w in WORDS)
    kinds = {child(f"kind of {w}{q}", "label").ret_value for w in WORDS}
    mean = statistics.fmean(map(number, [f"{q}1", f"{q}2"]))
    two = heapq.nlargest(2, WORDS, key=lambda w: number(f"size of {w}{q}"))
    s += f"{total} {best} {ranked} {lowest} {votes.most_common()} {sorted(kinds)} {mean} {two}" + gen("z", max_tokens=3)
    return s["z"]


@case()
def answers_that_keep_items(s, q):
    kept = [w for w in WORDS if number(q + w) > 4]
    named = [n for w in WORDS if (n := child(w + q, "label").ret_value) != "mixed"]
    flat = [x for w in WORDS[:2] for x in child(f"list {w}{q}", "names").ret_value.split(", ") if x]
    table = {child(f"key of {w}{q}", "label").ret_value: w for w in WORDS}
    odd = list(filter(lambda w: number(f"odd {w}{q}") % 2, WORDS))
    many = sum(1 for w in WORDS if number(f"count {w}{q}") > 3)
    s += f"{kept} {named} {flat} {table} {odd} {many}" + gen("z", max_tokens=3)
    return kept, s["z"]


@case()
def answers_that_end_a_search(s, q):
    some = any(number(f"any {w}{q}") > 7 for w in WORDS)
    every = all(number(f"all {w}{q}") > 1 for w in WORDS)
    first = next((w for w in WORDS if number(f"first {w}{q}") > 5), "none")
    taken = list(itertools.takewhile(lambda w: number(f"while {w}{q}") > 2, WORDS))
    s += f"{some} {every} {first} {taken}" + gen("z", max_tokens=3)
    return child(f"after {first}").ret_value, s["z"]


@case()
def rows_of_a_table(s, q):
    rows, out = list(csv.DictReader(io.StringIO("id,text\n1,good\n2,bad\n3,so\n"))), io.StringIO()
    writer, confusion = csv.writer(out), collections.defaultdict(collections.Counter)
    for row in rows:
        (f,) = s.fork(1)
        f += f"{q} {row['text']}:" + gen("label", max_tokens=8)
        confusion[row["text"]][f["label"]] += 1
        writer.writerow([row["id"], f["label"]])
    s += out.getvalue() + gen("z", max_tokens=3)
    return {k: dict(v) for k, v in confusion.items()}


# -- functions: chosen, cached, guarded, retried


@case()
def routes_that_register(s, q):
    routes: dict[str, Callable[[str], str]] = {}

    def route(label: str) -> Any:
        return lambda fn: routes.setdefault(label, fn)

    @route("positive")
    def _(text: str) -> str:
        return "P" + ask(s, text)

    @route("negative")
    def _(text: str) -> str:
        return "N" + child(text).ret_value

    return [routes.get(ask(s, f"route {q}{i}", "label"), str.upper)(f"{q}{i}") for i in range(3)]


@case()
def definitions_that_are_cached(s, q):
    @functools.cache
    def define(word: str) -> str:
        effect("define", word)
        return child(f"define {word}").ret_value

    found = [define(w) for w in ask(s, q, "names").split(", ") + ["x0", "x1", "x0"]]
    s += "; ".join(found) + gen("z", max_tokens=3)
    return found


@case()
def guarded_answers(s, q):
    class Blocked(Exception):
        pass

    def guard(fn: Callable[[str], str]) -> Callable[[str], str]:
        @functools.wraps(fn)
        def inner(text: str) -> str:
            if number(f"is it safe? {text}") < 3:
                raise Blocked(text)
            out = fn(text)
            return out if number(f"does it leak? {out}") < 8 else "[redacted]"

        return inner

    @guard
    def chat(text: str) -> str:
        return ask(s, text)

    out = []
    for text in (q, q + "!", "x"):
        try:
            out.append(chat(text))
        except Blocked as blocked:
            out.append(f"blocked {blocked}")
    return out


def retry(times: int) -> Any:
    def decorate(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(*args: Any) -> Any:
            for i in range(times):
                try:
                    return fn(*args)
                except ValueError as error:
                    effect("retry", i, str(error))
                    args[0].__iadd__(f"\nError: {error}\n")
                    if i == times - 1:
                        error.add_note(f"after {times} times")
                        raise

        return inner

    return decorate


@retry(3)
def pair(s: Any, q: str) -> tuple[str, int]:
    name, value = ask(s, q, "names").split(", ", 1)[:2] if len(s.text()) % 2 else ask(s, q, "bad").split(" ")
    return name, int(value)


@case([{"q": q} for q in "abcd"])
def retries_with_the_error_in_the_prompt(s, q):
    return pair(s, q)


@case([{"q": q} for q in "abcdef"])
def exception_groups_of_problems(s, q):
    notes = []
    for attempt in range(3):
        data = json.loads(ask(s, f"{q} attempt {attempt}", "json") if attempt > 5 else child(f"{q}{attempt}", "label").ret_value.join('""'))
        problems = [ValueError(p) for p in ("e", "i") if p in data]
        try:
            if len(problems) > 1:
                raise ExceptionGroup(f"{data} is wrong", problems)
        except* ValueError as group:
            notes.append([str(e) for e in group.exceptions])
            s += "Fix: " + ", ".join(map(str, group.exceptions)) + gen("fix", max_tokens=3)
        else:
            return data, notes
    raise ExceptionGroup("gave up", [RuntimeError(str(n)) for n in notes])


# -- searches and games


@dataclass(order=True)
class Beam:
    score: float
    state: Any = field(compare=False, repr=False)
    path: tuple[str, ...] = field(default=(), compare=False)


@case()
def beam_search(s, q):
    s += q
    beams = [Beam(0.0, s)]
    for depth in range(2):
        found = []
        for beam in beams:
            for i, f in enumerate(beam.state.fork(2)):
                f += f"\n{depth}.{i} " + gen("thought", max_tokens=4) + " score " + gen("score", max_tokens=2)
                found.append(Beam(beam.score - math.log1p(int(f["score"])), f, (*beam.path, f["thought"])))
        beams = heapq.nsmallest(2, found)
    return beams[0].path, round(beams[0].score, 4)


class Node:
    __slots__ = ("children", "move", "n", "parent", "state", "w")

    def __init__(self, state: Any, parent: Node | None = None, move: str = "") -> None:
        self.state, self.parent, self.move, self.children, self.n, self.w = state, parent, move, list[Node](), 0, 0.0

    def bound(self) -> float:
        return self.w / self.n + math.sqrt(math.log(self.parent.n) / self.n) if self.n and self.parent else math.inf


@case()
def tree_search_by_bounds(s, q):
    s += q
    root = Node(s)
    for _ in range(4):
        node = root
        while node.children:
            node = max(node.children, key=Node.bound)
        if node.n or node is root:
            for i, f in enumerate(node.state.fork(2)):
                f += f"->{i}" + gen("move", max_tokens=3)
                node.children.append(Node(f, node, f["move"]))
            node = node.children[0]
        (value,) = node.state.fork(1)
        value += " value " + gen("n", max_tokens=2)
        reward, up = int(value["n"]) / 10, node
        while up is not None:
            up.n, up.w, up = up.n + 1, up.w + reward, up.parent
    best = max(root.children, key=lambda c: (c.n, c.w))
    return best.move, root.n, round(best.w, 3)


@case()
def tournament(s, q):
    players = [f"{q}{i}" for i in range(5)]

    def better(a: str, b: str) -> str:
        f, g = s.fork(2)
        f += f"{a} against {b}:" + gen("n", max_tokens=2)
        g += f"{b} against {a}:" + gen("n", max_tokens=2)
        return a if f["n"] >= g["n"] else b

    rounds = []
    while len(players) > 1:
        pairs = iter(players)
        players = [better(a, b) if b is not None else a for a, b in itertools.zip_longest(pairs, pairs)]
        rounds.append(players.copy())
    return rounds


@case()
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


class Phase(enum.Enum):
    ASK = "ask"
    CHECK = "check"
    DONE = "done"


@case()
def phases(s, q):
    phase, trail = Phase.ASK, []
    while len(trail) < 8:
        trail.append(phase.value)
        match phase, len(trail):
            case Phase.ASK, n:
                phase = Phase.CHECK if int(ask(s, f"{q}{n}", "n")) > 3 else Phase.ASK
            case Phase.CHECK, n:
                phase = {"positive": Phase.DONE, "negative": Phase.ASK}.get(ask(s, f"check {n}", "label"), Phase.CHECK)
            case Phase.DONE, _:
                break
    return trail


@case()
def machine_of_generators(s, q):
    def idle() -> Iterator[str]:
        got = yield "idle"
        while True:
            got = (yield from busy()) if got > "4" else (yield "waiting")

    def busy() -> Any:
        for i in range(2):
            got = yield f"busy{i}"
            effect("busy", got)
        return got

    machine = idle()
    out = [next(machine)]
    out += [machine.send(child(f"{q}{i}", "n").ret_value) for i in range(4)]
    machine.close()
    return out


@case()
def calculator(s, q):
    tokens = collections.deque(re.findall(r"\d+|[-+*()]", f"({ask(s, q, 'n')}+{ask(s, q + '2', 'n')})*2-1"))

    def expression() -> int:
        value = term()
        while tokens and tokens[0] in "+-":
            value = (operator.add if tokens.popleft() == "+" else operator.sub)(value, term())
        return value

    def term() -> int:
        value = atom()
        while tokens and tokens[0] == "*":
            tokens.popleft()
            value *= atom()
        return value

    def atom() -> int:
        if tokens[0] != "(":
            return int(tokens.popleft())
        tokens.popleft()
        value = expression()
        tokens.popleft()
        return value

    s += str(expression()) + gen("z", max_tokens=2)
    return s["z"]


# -- sub-programs, plans, conversations


@case()
def samples_with_seeds(s, q):
    found = [child.run(q, seed=seed, temperature=0.8).ret_value for seed in range(3)]
    votes = collections.Counter(x[-1] for x in found)
    s += f"{votes.most_common()}" + gen("z", max_tokens=2)
    return found, s["z"]


@case()
def bodies_with_sub_programs(s, q):
    s += system(q)

    def body(f: Any, role: str, turns: int) -> tuple[str, str, str]:
        for i in range(turns):
            f += user(f"{role}{i}") + assistant(gen("a", max_tokens=4))
        return role, f["a"], child(role + f["a"]).ret_value

    found = s.fork(3).each(body, "xyz", [1, 2, 3])
    s += json.dumps(found) + gen("z", max_tokens=3)
    return found, s["z"]


@case()
def steps_that_depend_on_steps(s, q):
    steps = [re.sub(r"^\d+\. ", "", line) for line in ask(s, f"plan {q}", "plan").splitlines()] or ["rest"]
    order = graphlib.TopologicalSorter({i: [j for j in range(i) if (i + j) % 2] for i in range(len(steps))})
    order.prepare()
    done: dict[int, str] = {}
    while order.is_active():
        ready = sorted(order.get_ready())
        for f, i in zip(s.fork(len(ready)), ready, strict=True):
            f += user(f"Do {steps[i]} after {done}") + assistant(gen("r", max_tokens=4))
            done[i] = f["r"]
            order.done(i)
    s += user(json.dumps(done)) + assistant(gen("report", max_tokens=4))
    return done, s["report"]


@case()
def memory_that_is_summarised(s, q):
    history, summary = list[tuple[str, str]](), ""
    for i in range(4):
        (f,) = s.fork(1)
        f += system(f"So far: {summary}")
        for role, text in history:
            f += (user if role == "u" else assistant)(text)
        f += user(f"{q}{i}") + assistant(gen("a", max_tokens=5))
        history += [("u", f"{q}{i}"), ("a", f["a"])]
        if len(history) > 4:
            summary, history = child("Summarise " + " / ".join(text for _, text in history[:-2])).ret_value, history[-2:]
    return summary, history


@case()
def exits_that_override(s, q):
    def attempt(i: int) -> Any:
        try:
            return int(ask(s, f"{q}{i}", "bad"))
        except ValueError:
            return -1
        finally:
            if ask(s, f"keep {i}?", "n") > "6":
                return "overridden"  # noqa: B012

    out = []
    for i in range(3):
        with contextlib.suppress(LookupError):
            out.append(attempt(i))
            if out[-1] == -1:
                raise KeyError(i)
            continue
        out.append("suppressed")
    return out


@case()
async def workers_of_a_queue(s, q):
    todo: asyncio.Queue[int] = asyncio.Queue()
    forks, done = s.fork(4), dict[int, str]()
    for i in range(4):
        todo.put_nowait(i)

    async def worker() -> None:
        while not todo.empty():
            i = todo.get_nowait()
            forks[i] += f"{q}{i}" + gen("a", max_tokens=3)
            await asyncio.sleep(0)
            done[i] = forks[i]["a"]
            todo.task_done()

    await asyncio.gather(worker(), worker())
    await todo.join()
    s += str(sorted(done.items())) + gen("z", max_tokens=2)
    return sorted(done.items())


@case()
async def generators_that_are_closed(s, q):
    async def pages(n: int) -> Any:
        for i in range(n):
            try:
                yield (await achild.arun(f"{q}{i}")).ret_value
            finally:
                effect("page", i)

    several = pages(3)
    first = await anext(several)
    await several.aclose()
    s += " ".join([first, *[p async for p in pages(2)]]) + gen("z", max_tokens=2)
    return first, s["z"]


# -- the table

TABLE = cases(globals())


@some("name", reversed(TABLE), 24)
@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_means_the_same(name: str, tmp_path: Path):
    means_the_same(TABLE[name], tmp_path)


@some("name", TABLE, 5)
def test_nothing_certain_is_wasted(name: str):
    found: Case = TABLE[name]
    program = eager(lmc.compile(found.program))
    for item in found.items:
        backend = Mock(answers, latency=0.002)
        with contextlib.suppress(ValueError, ExceptionGroup):
            program(**item, backend=backend, seed=7)
        backend.close()
    assert program.profile.wasted == 0
