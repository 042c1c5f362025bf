"""Programs as different as their authors: registries of tools, trees, events, generators that are sent and thrown into, operators with effects."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
import heapq
import itertools
import json
import logging
import math
import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc import assistant, gen, select, system, user
from lmc.backend.mock import Mock

from .harness import EFFECTS, Case, case, cases, effect

log = logging.getLogger("tests.everyday")


def answers(prompt: Any, ask: Any) -> str | None:
    """By name and prompt. Choices and constraints that no name is for are left to the mock."""
    k = sum(map(ord, str(prompt)[-60:])) + 7 * len(str(prompt))
    if getattr(ask, "choices", None):
        return ask.choices[k % len(ask.choices)]
    match (ask.name or "").rstrip("0123456789"):
        case "n" | "score":
            return str(k % 10)
        case "bad":
            return str(k % 10) if k % 3 else "many"
        case "tool":
            return json.dumps({"tool": ("search", "calc", "finish", "nope")[k % 4], "args": {"x": f"x{k % 7}"}})
        case "plan":
            return "\n".join(f"{i + 1}. step {k % 7}{i}" for i in range(1 + k % 4))
        case "yes":
            return ("yes", "no")[k % 2]
        case _:
            return None if getattr(ask, "constraint", None) is not None else f"{ask.name} {k % 100}"


def tool(x: Any = "x", *more: Any) -> str:
    effect("tool", x, *more)
    return f"<{x}>"


def number(x: Any) -> int:
    effect("number", x)
    return len(str(x))


def is_even(x: Any) -> bool:
    effect("is_even", x)
    return len(str(x)) % 2 == 0


# -- agents ------------------------------------------------------------------------------------------------------------


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
    if len(x) % 2:
        raise ToolError("look_up", f"odd {x}")
    return {"lang": lang, "x": x}


@registered()
def shout(x: str) -> str:
    effect("shout", x)
    return x.upper()


@case()
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


@case()
def machine_of_bound_methods(s, q):
    s += q
    return Machine(s).run()


# -- searches ------------------------------------------------------------------------------------------------------------


@dataclass(order=True)
class Node:
    score: int
    text: str = field(compare=False)
    parent: Node | None = field(default=None, compare=False, repr=False)

    def path(self) -> list[str]:
        node, found = self, []
        while node:
            found.append(node.text)
            node = node.parent
        return found[::-1]


@case()
def best_first(s, q):
    heap, seen, tick = [(0, 0, Node(0, q), s.fork(1)[0])], {q}, itertools.count(1)
    for _ in range(4):
        if not heap:
            break
        _, _, node, state = heapq.heappop(heap)
        for i, f in enumerate(state.fork(2)):
            f += f"\nidea {i}:" + gen("idea", max_tokens=6) + " score:" + gen("score", regex="[0-9]")
            if (idea := f["idea"]) in seen:
                continue
            seen.add(idea)
            kid = Node(int(f["score"]), idea, node)
            if kid.score >= 9:
                s += "found " + " > ".join(kid.path())
                return kid.path()
            heapq.heappush(heap, (-kid.score, next(tick), kid, f))
    else:
        s += "exhausted"
    return max((entry[2] for entry in heap), default=node).path(), sorted(seen)


@dataclass
class Tree:
    visits: int = 0
    value: float = 0.0
    kids: dict[str, Tree] = field(default_factory=dict)

    def bound(self, n: int) -> float:
        return self.value / (self.visits or 1) + 1.4 * math.sqrt(math.log(n + 1) / (self.visits or 1))


@case()
def tree_search_by_visits(s, q):
    s += q
    root, states = Tree(), {(): s.fork(1)[0]}
    for turn in range(4):
        nodes, path = [root], ()
        while nodes[-1].kids:
            key, node = max(nodes[-1].kids.items(), key=lambda kv: (kv[1].bound(root.visits), kv[0]))
            nodes.append(node)
            path += (key,)
        for i, f in enumerate(states[path].fork(2)):
            f += f"\n{turn}.{i}" + gen("act", max_tokens=3)
            key = f["act"] + str(i)
            nodes[-1].kids[key], states[path + (key,)] = Tree(), f
        states[path] += " rollout" + gen("score", regex="[0-9]")
        for node in nodes:
            node.visits += 1
            node.value += int(states[path]["score"]) / 10
    return max(root.kids, key=lambda k: root.kids[k].visits), round(root.value, 2), sorted(map(len, states))


@lmc.function
def summary(s, text, *, depth=0):
    s += f"[{depth}] {text}:" + gen("sum", max_tokens=6)
    return summary(s["sum"], depth=depth - 1)["sum"] + "!" if depth else s["sum"]


@case()
def states_of_sub_programs_in_a_list(s, q):
    children = [summary(word, depth=i % 2) for i, word in enumerate(q.split() * 2)]
    s += " ".join(child.ret_value for child in children) + gen("final", max_tokens=4)
    return [child["sum"] for child in children], summary(s["final"])["sum"]


# -- generators, closures, containers --------------------------------------------------------------------------------------


@case()
def generators_sent_and_thrown_into(s, q):
    def asks(names):
        total = 0
        for name in names:
            s.__iadd__(f"{name}:" + gen(name, max_tokens=2))
            total += len((yield s[name]) or "")
        return total

    def pages(n):
        try:
            for i in range(n):
                if got := (yield tool(i)):
                    s.__iadd__(got + gen("p", max_tokens=2))
        finally:
            tool("closed")

    def both():
        try:
            yield f"total {(yield from asks(['a', 'b']))}"
            with contextlib.closing(pages(3)) as found:
                yield next(found)
        except KeyError as error:
            yield f"caught {error}"
        finally:
            s.__iadd__("|closed")

    g = both()
    out = [next(g), g.send("xy"), g.send("z")]
    out.append(g.throw(KeyError("k")) if len(q) > 1 else next(g))
    g.close()
    first, second = itertools.tee(pages(2))
    return out, next(first), list(second), list(first), [x for x, _ in zip(pages(5), range(2), strict=False)]


class Bus:
    def __init__(self) -> None:
        self.handlers: dict[str, list[Any]] = defaultdict(list)
        self.log: list[Any] = []

    def on(self, event: str) -> Any:
        def decorate(fn: Any) -> Any:
            self.handlers[event].append(fn)
            return fn

        return decorate

    def emit(self, event: str, *args: Any) -> None:
        for fn in self.handlers[event]:
            self.log.append((event, fn(*args)))


@case()
def handlers_of_events(s, q):
    bus = Bus()

    @bus.on("hit")
    def ask(x):
        s.__iadd__(f"1{x}" + gen("a", max_tokens=2))
        return tool(s["a"])

    bus.on("hit")(number)
    bus.on("miss")(lambda x: tool("miss" + x))
    for event in ("hit", "miss", "hit"):
        bus.emit(event, q[:1])
    return bus.log


@dataclass
class Dice:
    numbers: random.Random = field(default_factory=lambda: random.Random(5))
    rolls: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    count: int = field(init=False, default=0)

    def roll(self, who: str) -> int:
        self.count += 1
        self.rolls[who].append(self.numbers.randrange(100))
        return self.rolls[who][-1]


@case()
def dice_of_a_dataclass(s, q):
    dice, votes, recent = Dice(), Counter(), deque(maxlen=2)
    for i, f in enumerate(s.fork(3)):
        f += f"{q} {i} {dice.roll('a')}" + gen("yes", max_tokens=1, temperature=0.8) + gen("n", max_tokens=1)
        votes[f["yes"]] += int(f["n"])
        recent.appendleft(f["n"])
    recent.rotate(1)
    other = dataclasses.replace(dice, numbers=random.Random(q))
    s += f"{votes.most_common(1)} {other.roll('b')} {dice.roll('c')}" + gen("a", max_tokens=2)
    return votes, list(recent), dict(dice.rolls), dice.count, other.count


# -- where a tool may stand ----------------------------------------------------------------------------------------------


@case()
def tools_in_every_place(s, q):
    s += f"{q}{tool('f')!r:>8}" + gen("a", max_tokens=2)
    d = {tool("k"): number("v")}
    d[tool("k")] += number("more")
    d.setdefault(tool("z"), number("default"))
    del d[tool("z")]
    xs = [y for x in "ab" if is_even(x + "1") for y in tool(x)] + [*map(tool, "c"), *(tool(i) for i in range(1))]
    chosen = (w := tool("walrus")) and (tool("yes") if is_even("ab") else tool("no"))
    chain = 1 < number("ab") < number("abcd") < 10 and not is_even("odd")

    def inner(x=tool("default"), *args, **named):  # noqa: B008
        return x, args, named

    match [tool("m"), 2]:
        case [x, n] if is_even("guard!") and n == 2:
            m = x
        case _:
            m = None
    assert number("assert"), tool("never")
    s += inner(*tool("st"), **{"k": tool("kw")})[0] + gen("b", max_tokens=2)
    found = any(is_even(x) for x in ("a", "bb", "never")), sorted(["bb", "a"], key=number), functools.reduce(lambda a, b: a + tool(b), "ab", "")
    return d, xs, chosen, chain, inner(), m, w, found, list(filter(is_even, ["a", "bb"])), next((tool(x) for x in "ab"), None)


class Store:
    def __init__(self, **d: str) -> None:
        self.d = d

    def get(self, k: str) -> str:
        effect("get", k)
        return self.d.get(k, "none")

    def __enter__(self) -> Store:
        effect("open")
        return self

    def __exit__(self, cls: Any, *error: Any) -> None:
        effect("close", cls is None)

    def __iter__(self) -> Iterator[str]:
        return (self.get(k) for k in self.d)

    def __contains__(self, k: str) -> bool:
        return self.get(k) != "none"

    def __getitem__(self, k: str) -> str:
        return self.get(k)

    def __len__(self) -> int:
        effect("len")
        return len(self.d)

    def __add__(self, other: Store) -> Store:
        effect("add")
        return Store(**self.d, **other.d)

    def __lt__(self, other: Store) -> bool:
        return number(len(self.d)) < number(len(other.d))

    def __format__(self, spec: str) -> str:
        return tool(spec)

    @functools.cached_property
    def title(self) -> str:
        return tool("title")


@case()
def operators_with_effects(s, q):
    store = Store(a="1", b="2")
    with store as first, Store(c="3") as second:
        s += f"{q}{first:spec}{first.title}" + gen("a", max_tokens=2)
        found = [*first], "a" in first, first["b"], len(first), min(second, first) is second, first.title
        both = first + second
    return found, both["c"], list(zip(store, second, strict=False)), 1 if both else 2


@case()
def breaks_of_nested_loops(s, q):
    found = None
    s += q
    for i in range(3):
        for j in range(3):
            s += f"{i}{j}" + gen("n", max_tokens=1)
            match int(s["n"]):
                case 0 | 1:
                    break
                case n if n > 7:
                    found = i, j, n
                    break
                case 5:
                    continue
        else:
            s += "row"
            continue
        if found:
            break
        s += "cut"
    else:
        s += "none"
    return found, s.text().count("row"), s.text().count("cut")


@case()
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


# -- coroutines ------------------------------------------------------------------------------------------------------------


async def fetch(x: Any) -> str:
    await asyncio.sleep(0)
    effect("fetch", x)
    return f"({x})"


class Pages:
    def __init__(self, s: Any, n: int) -> None:
        self.s, self.n, self.at = s, n, 0

    def __aiter__(self) -> Pages:
        return self

    async def __anext__(self) -> str:
        if self.at >= self.n:
            raise StopAsyncIteration
        self.at += 1
        self.s += f"p{self.at}" + await fetch(self.at) + gen("a", max_tokens=2)
        return self.s["a"]


class Later:
    def __init__(self, s: Any) -> None:
        self.s = s

    def __await__(self) -> Any:
        got = yield from fetch("later").__await__()
        self.s += got + gen("b", max_tokens=2)
        return self.s["b"]


@case()
async def awaitables_of_ones_own(s, q):
    async def asks(n):
        try:
            for i in range(n):
                s.__iadd__(f"{i}" + gen("a", max_tokens=2))
                if got := (yield s["a"]):
                    s.__iadd__(f"({got})")
        finally:
            s.__iadd__("end")

    s += q
    several = asks(3)
    out = [await anext(several), await several.asend("hi"), await anext(asks(0), "none")]
    await several.aclose()
    out += [x async for x in Pages(s, 2)] + [await Later(s), await anext(Pages(s, 0), "none")]
    future = asyncio.get_running_loop().create_future()
    future.set_result(await fetch("set"))
    return out, await future, await asyncio.gather(Later(s), fetch("b")), await asyncio.wait_for(anext(asks(1)), 5)


CASES = cases(globals())


@pytest.mark.parametrize("name", CASES)
def test_means_the_same(name: str):
    of: Case = CASES[name]
    of.options["backend"] = lambda **more: Mock(answers, **more)
    of.check()


@pytest.mark.parametrize("name", CASES)
def test_means_the_same_with_a_journal(name: str, tmp_path: Path):
    program, item = CASES[name].program, CASES[name].items[-1]
    expected = None
    for journal in (None, tmp_path / "j", tmp_path / "j"):
        EFFECTS.clear()
        try:
            state = program.run(**item, backend=Mock(answers), seed=7, journal=journal)
            seen = state.text(), repr(state.ret_value)
        except LookupError as error:
            seen = type(error).__name__, str(error)
        expected = expected or (seen, list(EFFECTS))
        assert seen == expected[0]
        assert expected[1] == EFFECTS or (journal is not None and not EFFECTS)
