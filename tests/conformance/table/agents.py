"""Agents: tools by name, plans, queues, memories, machines of phases."""

from __future__ import annotations

import enum
import graphlib
import heapq
import itertools
import json
import logging
import re
from collections.abc import Callable
from typing import Any

from lmc import assistant, gen, select, system, user
from tests.conformance.harness import case, effect
from tests.conformance.outside import tool
from tests.conformance.shared import ask, by_name, child, number


class Tools:
    def __init__(self) -> None:
        self.log: list[str] = []

    def search(self, q: str) -> str:
        effect("search", q)
        self.log.append(q)
        return f"found {q}"

    def calc(self, text: str) -> int:
        effect("calc", text)
        a, b = text.split("+")
        return int(a) + int(b)


@case([{"q": q} for q in "abcdef"], backend=by_name)
def react(s, q):
    tools = Tools()
    s += system("You use tools.") + user(q)
    for turn in range(5):
        s += f"\nThought {turn}:" + gen("thought", max_tokens=6) + "\nAction:" + gen("action", max_tokens=12)
        if not (m := re.match(r"(\w+)\[(.*)\]", s["action"])):
            continue
        name, arg = m.groups()
        if name == "Finish":
            return arg, tools.log
        s += f"\nObs: {tools.search(arg) if name != 'Calc' else tools.calc(arg)}"
    return None, tools.log


@case([{"q": q} for q in "abcde"], backend=by_name)
def dispatching_agent(s, q):
    tools = Tools()
    table = {"Search": tools.search, "Calc": tools.calc, "Look": lambda x: x.upper()}
    done, steps = False, 0
    while not done and steps < 4:
        action = ask(s, f"{q} step {steps}", "action")
        name, _, rest = action.partition("[")
        try:
            s += f" -> {table[name](rest.rstrip(']'))}"
        except KeyError as e:
            s += f" (no tool {e.args[0]})"
            done = name.startswith("Finish")
        finally:
            steps += 1
    else:
        s += " over"
    return steps, done


@case(backend=by_name)
def planner(s, q):
    plan = ask(s, f"Plan {q}", "plan")
    results = []
    for line in plan.splitlines():
        if not (m := re.fullmatch(r"\d+\.\s*(.+)", line)):
            continue
        results.append(child(f"Do {m[1]} given {results[-1:]}").ret_value)
    s += user("\n".join(results) or "nothing to do") + assistant(gen("report", max_tokens=6))
    return s["report"], len(results)


@case(backend=by_name)
def queue_of_tasks(s, q):
    todo, done = [(0, q)], []
    while todo:
        depth, task = heapq.heappop(todo)
        got = child(task, "names")["names"]
        done.append((depth, task))
        if depth < 1:
            for sub in sorted({*got.split(", ")}):
                heapq.heappush(todo, (depth + 1, sub))
    s += str(done) + gen("end", max_tokens=4)
    return done


log = logging.getLogger("tests.everyday")


class ToolError(Exception):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


REGISTRY: dict[str, tuple[Callable[..., Any], int]] = {}


def registered(*, retries: int = 0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        REGISTRY[fn.__name__] = fn, retries
        return fn

    return decorate


@registered(retries=2)
def look_up(x: str, *, lang: str = "en") -> dict[str, str]:
    effect("look_up", x, lang)
    if len(x) % 2 == 0:
        raise ToolError("look_up", f"even {x}")
    return {"lang": lang, "x": x}


@case([{"q": q} for q in "abcdefgh"], backend=by_name)
def agent_with_a_registry(s, q):
    s += system("agent") + user(q)

    def pauses():
        pause = 0
        while True:
            yield (pause := pause * 2 + 1)

    for turn in itertools.count(1):
        s += assistant(gen("tool", max_tokens=60))
        match json.loads(s["tool"]):
            case {"tool": "finish", "args": {"x": x}}:
                return "done", x, turn
            case {"tool": ("search" | "calc") as name, "args": dict(args)}:
                out = {"search": tool, "calc": number}[name](**args)
            case {"tool": str(other), "args": {"x": x}}:
                fn, retries = REGISTRY["look_up" if other == "nope" else other]
                for attempt, pause in zip(range(retries + 1), pauses(), strict=False):
                    try:
                        out = fn(x + "y" * attempt)
                        break
                    except ToolError as error:
                        log.info("attempt %d of %s failed: %s (pause %d)", attempt, error.name, error.reason, pause)
                else:
                    out = "gave up"
        s += user(f"{turn}: {out!r}")
        if turn >= 4:
            break
    return "over", turn


@case([{"q": q} for q in "abcdefghijkl"], backend=by_name)
def steps_and_errors_of_a_plan(s, q):
    s += q + gen("plan", max_tokens=40)
    done = []
    for n, text in re.findall(r"^(\d+)\. (.+)$", s["plan"], re.M):
        try:
            s += f"\n{n}." + gen("bad", max_tokens=2) + select(f"ok{n}", ["yes", "no"])
            if s[f"ok{n}"] == "no":
                raise ToolError(text, s["bad"])
            done.append(10 // int(s["bad"]))
        except (ValueError, ZeroDivisionError) as error:
            error.add_note(n)
            done.append([type(error).__name__, *error.__notes__])
        except ToolError as error:
            if len(done) > 1:
                raise LookupError(error.reason) from error
            done.append(tool(error.reason))
        finally:
            tool("step", n)
    return done


class Phase(enum.Enum):
    PLAN, ACT, DONE = "plan", "act", "done"


class Machine:
    def __init__(self, s: Any) -> None:
        self.s, self.phase, self.trace, self.n = s, Phase.PLAN, [], 0

    def plan(self) -> Phase:
        self.s += "plan" + gen("n", max_tokens=1)
        self.n = int(self.s["n"])
        return Phase.ACT if self.n > 2 else Phase.DONE

    def act(self) -> Phase:
        self.trace.append(tool(self.n))
        self.n -= 3
        return Phase.PLAN if self.n < 3 else Phase.ACT

    def run(self) -> tuple[Phase, list[str]]:
        for _ in range(6):
            if self.phase is Phase.DONE:
                break
            self.phase = {Phase.PLAN: self.plan, Phase.ACT: self.act}[self.phase]()
        return self.phase, self.trace


@case(backend=by_name)
def machine_of_bound_methods(s, q):
    s += q
    return Machine(s).run()


class Stage(enum.Enum):
    ASK = "ask"
    CHECK = "check"
    DONE = "done"


@case(backend=by_name)
def phases(s, q):
    phase, trail = Stage.ASK, []
    while len(trail) < 8:
        trail.append(phase.value)
        match phase, len(trail):
            case Stage.ASK, n:
                phase = Stage.CHECK if int(ask(s, f"{q}{n}", "n")) > 3 else Stage.ASK
            case Stage.CHECK, n:
                phase = {"positive": Stage.DONE, "negative": Stage.ASK}.get(ask(s, f"check {n}", "label"), Stage.CHECK)
            case Stage.DONE, _:
                break
    return trail


@case(backend=by_name)
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
