"""Programs as people write them: agents with tools, judges, extractors, evaluations, retrieval, classes, coroutines, retries; in every execution."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import enum
import functools
import heapq
import itertools
import json
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc import assistant, gen, select, system, user
from lmc.backend.mock import Mock
from lmc.runahead.program import Program
from tests.searching import some

from .harness import EFFECTS, Case, Seen, case, cases, differences, eager, effect, observe

CHOICES = ["yes", "no", "maybe"]


def answers(prompt: Any, ask: Any) -> str:
    """By name and prompt: numbers, JSON, actions, lists."""
    k = sum(map(ord, str(prompt)[-60:])) + len(str(prompt))
    match (ask.name or "").rstrip("0123456789"):
        case "n" | "score":
            return str(k % 10)
        case "bad":
            return str(k % 10) if k % 3 else "many"
        case "json":
            return json.dumps({"name": f"n{k % 5}", "items": [k % 5, k % 3], "nested": {"ok": k % 2 == 0}})
        case "maybe_json":
            return json.dumps({"v": k % 4}) if k % 3 else "{oops"
        case "action":
            return ("Search[tea]", "Look[it]", "Finish[done]", "think", "Calc[2 + 3]")[k % 5]
        case "names":
            return ", ".join(f"x{(k >> i) % 6}" for i in range(3))
        case "plan":
            return "\n".join(f"{i + 1}. step {k % 7}{i}" for i in range(k % 4))
        case "code":
            return f"def f(x):\n    return x + {k % 3}"
        case "label":
            return ("positive", "negative", "mixed")[k % 3]
        case "vote":
            return "AAB"[k % 3]
        case _:
            return f"{ask.name} {k % 100}"


def backend() -> Mock:
    return Mock(answers)


def item(*qs: str, **more: Any) -> list[dict[str, Any]]:
    return [{"q": q, **more} for q in qs]


def ask(s: Any, text: str, name: str = "a", **more: Any) -> str:
    s += user(text) + assistant(gen(name, max_tokens=8, **more))
    return s[name]


@lmc.function
def child(s, text, name="a"):
    s += user(text) + assistant(gen(name, max_tokens=8))
    return s[name]


# -- agents with tools


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


@case()
def react(s, q):
    tools = Tools()
    s += system("You use tools.") + user(q)
    for turn in range(5):
        s += f"\nThought {turn}:" + gen("thought", max_tokens=6) + "\nAction:" + gen("action", max_tokens=6)
        if not (m := re.match(r"(\w+)\[(.*)\]", s["action"])):
            continue
        name, arg = m.groups()
        if name == "Finish":
            return arg, tools.log
        s += f"\nObs: {tools.search(arg) if name != 'Calc' else tools.calc(arg)}"
    return None, tools.log


@case()
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


@case()
def agent_with_memory(s, q):
    memory: collections.deque[str] = collections.deque(maxlen=3)
    facts: dict[str, int] = {}
    for i in range(4):
        said = ask(s, f"Memory: {list(memory)} facts {facts}. {q}{i}", "names")
        for name in said.split(", "):
            facts[name] = facts.get(name, 0) + 1
        memory.append(said)
        if max(facts.values()) > 3:
            break
    best, *_rest = sorted(facts, key=lambda n: (-facts[n], n))
    return best, list(memory)


@case()
def planner(s, q):
    plan = ask(s, f"Plan {q}", "plan")
    results = []
    for line in plan.splitlines():
        if not (m := re.fullmatch(r"\d+\.\s*(.+)", line)):
            continue
        results.append(child(f"Do {m[1]} given {results[-1:]}").ret_value)
    s += user("\n".join(results) or "nothing to do") + assistant(gen("report", max_tokens=6))
    return s["report"], len(results)


@case()
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


@case()
def tool_that_raises(s, q):
    def tool(x):
        effect("tool", x)
        if int(x) % 2:
            raise RuntimeError(f"odd {x}")
        return int(x)

    total, errors = 0, []
    for i in range(4):
        try:
            total += tool(ask(s, f"{q}{i}", "n"))
        except RuntimeError as e:
            errors.append(str(e))
            s += f" failed: {e}"
    return total, errors


@case()
def conversation(s, q):
    s += system(f"You are {q}")
    with contextlib.ExitStack() as stack:
        stack.callback(effect, "closed")
        for i, text in enumerate(["hello", "and?", "bye"]):
            with s.user():
                s += text
                s += f" ({i})"
            with s.assistant():
                s += "I say: " + gen(f"r{i}", max_tokens=4)
            stack.callback(effect, "turn", i, s[f"r{i}"])
    return [m["content"] for m in s.messages()][-1], len(s.messages())


# -- judges and evaluations


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


@case()
def panel(s, q):
    marks = [Mark.of(judge(essay=q, dim=d), d) for d in ("clarity", "style", "evidence")]
    best, worst = max(marks), min(marks)
    s += f"{best.dim} over {worst.dim}: {sum(m.score for m in marks) / len(marks):.2f}" + select("verdict", CHOICES)
    return [m for m in marks if m.good], s["verdict"], dataclasses.asdict(best)


@case()
def comparing_pairs(s, q):
    wins = collections.Counter()
    for a, b in itertools.combinations(["ann", "bob", "cy"], 2):
        f = s.copy() if hasattr(s, "copy_of") else s.fork(1)[0]
        f += f"{q}: {a} or {b}?" + select("w", [a, b])
        wins[f["w"]] += 1
    return wins.most_common(), wins.total()


# -- extractors


class Kind(enum.Enum):
    PERSON = "positive"
    PLACE = "negative"
    OTHER = "mixed"

    @property
    def short(self) -> str:
        return self.name[:2].lower()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


@case()
def fields_with_checks(s, q):
    out, bad = {}, []
    for name in ("n", "label", "bad"):
        value = ask(s.fork(1)[0], f"{q}: what is {name}?", name).strip()
        if name == "bad" and not value.isdigit():
            value = ask(s.fork(1)[0], f"{q}: {name} as a number", "n")
            bad.append(name)
        out[name] = value
    s += json.dumps(out) + gen("check", max_tokens=3)
    return out, bad


@case()
def json_with_repair(s, q):
    text = ask(s, q, "maybe_json")
    for attempt in range(3):
        try:
            return json.loads(text)["v"], attempt
        except (json.JSONDecodeError, KeyError) as e:
            effect("repair", type(e).__name__)
            text = ask(s, f"not JSON: {e.__class__.__name__} ({attempt})", "maybe_json")
    raise ValueError(f"no JSON in {text!r}")


@case()
def enums(s, q):
    kind = Kind(ask(s, q, "label"))
    level = Level.HIGH if kind is Kind.PERSON else Level.LOW
    counts = {k: 0 for k in Kind}
    counts[kind] += level
    s += f"{kind.short}{kind.value}{level + 1}{level:d}" + gen("y", max_tokens=2)
    return [k.name for k in Kind if counts[k]], kind in (Kind.PLACE, Kind.OTHER), level is Level.LOW


@case()
def nested_json(s, q):
    data = json.loads(ask(s, q, "json"))
    match data:
        case {"nested": {"ok": True}, "name": name, **rest}:
            s += f"ok {name} {sorted(rest)}"
        case {"items": [first, *more], "nested": {"ok": False}} if first > 0:
            s += f"first {first} {more}"
        case {"items": list(items)}:
            s += f"items {items}"
        case _:
            s += "?"
    data["items"].append(len(data))
    del data["name"]
    s += json.dumps(data, sort_keys=True) + gen("w", max_tokens=3)
    return data


# -- retrieval


class Index:
    """A retriever with a cache of its own."""

    def __init__(self, docs: Iterable[str]) -> None:
        self.docs, self.hits = list(docs), 0

    def __len__(self) -> int:
        return len(self.docs)

    def __getitem__(self, i: int) -> str:
        return self.docs[i]

    def __contains__(self, x: object) -> bool:
        return x in self.docs

    def top(self, q: str, k: int = 2) -> list[tuple[float, str]]:
        effect("retrieve", q)
        self.hits += 1
        return heapq.nlargest(k, ((len({*d} & {*q}) / (1 + len(d)), d) for d in self.docs))


@lmc.pure
def embed(text: str) -> list[int]:
    return [text.count(c) for c in "aeiou"]


@case()
def rag(s, q):
    index = Index(["tea is hot", "rain is wet", "bread", q])
    notes = []
    for score, doc in index.top(q, k=3):
        notes.append(f"[{score:.1f}] " + child(f"{doc}: {q}")["a"])
    s += user("\n".join(notes)) + assistant(gen("end", max_tokens=4))
    return s["end"], index.hits, len(index), "bread" in index, index[0]


@case()
def rag_declared_pure(s, q):
    found = sorted(["tea", "rain", "bread"], key=lambda d: sum(map(operator.mul, embed(d), embed(q))))
    for i, doc in enumerate(found):
        f = s.fork(1)[0]
        f += f"{doc}{embed(doc)}" + gen("part", max_tokens=3)
        s += f["part"] + str(embed(f["part"])[i])
    return found, s.text()


@case()
def hops(s, q):
    seen, frontier, graph = {q}, [q], {}
    for _hop in range(2):
        following = []
        for node in frontier:
            graph[node] = [n for n in child(node, "names")["names"].split(", ") if n not in seen]
            seen |= {*graph[node]}
            following += graph[node]
        frontier = following[:2]
    s += json.dumps(graph) + gen("sum", max_tokens=3)
    return graph, sorted(seen)


@case()
def chunks_by_size(s, q):
    text = f"{q} lorem ipsum dolor sit amet " * 3

    def chunked(words, size):
        it = iter(words)
        while batch := list(itertools.islice(it, size)):
            yield " ".join(batch)

    parts = [child(c).ret_value for c in chunked(text.split(), 5)]
    merged = functools.reduce(lambda a, b: f"({a} {b})", parts)
    s += merged + gen("m", max_tokens=3)
    return merged


# -- generators, iterators, closures


def turns(s, q, n):
    for i in range(n):
        got = ask(s, f"{q}{i}", "n")
        stop = yield i, got
        if stop:
            return "stopped"
    return "over"


@case()
def generator_that_is_sent(s, q):
    it = turns(s, q, 4)
    seen = [next(it)]
    try:
        while True:
            seen.append(it.send(int(seen[-1][1]) > 6))
    except StopIteration as end:
        return seen, end.value


@case()
def pipeline(s, q):
    def words(text):
        yield from (w for w in text.split() if w)

    def asked(items):
        for k, item in enumerate(items):
            effect("take", item)
            yield item, child(f"{k}{item}", "n").ret_value

    def big(pairs, limit):
        return ((a, int(b)) for a, b in pairs if int(b) > limit)

    found = list(itertools.islice(big(asked(words(f"{q} one two three")), 2), 2))
    s += f"{found}" + gen("p", max_tokens=2)
    return found


@case()
def closures(s, q):
    def make(style):
        count = 0

        def say(text, *more, sep=" ", **kw):
            nonlocal count
            count += 1
            return ask(s, sep.join([style, text, *more, *(f"{k}={v}" for k, v in kw.items())]), f"a{count}")

        return say, lambda: count

    say, count = make(q)
    args, kwargs = ("x", "y"), {"sep": "-", "z": 1}
    found = [say("a"), say(*args), say("b", *args, **kwargs), say(*[w for w in "uv"], sep="")]
    return found, count()


@case()
def star_arguments(s, q):
    def template(head, /, *parts, tail="", **named):
        return head + "".join(parts) + "".join(f"{k}:{v}" for k, v in sorted(named.items())) + tail

    options = {"max_tokens": 3, "stop": ["\n"]}
    (first, *middle), last = [*template(q, "b", "c", tail="!")], q
    s += template(*first, *middle, **{"k": last}, tail="?") + gen("x", **options)
    return first, middle, {**options, "n": 1}


@case()
def walrus(s, q):
    found = [y for i in range(3) if (y := child(f"{q}{i}", "n").ret_value) > "3"]
    if (n := len(found)) > 1 and (m := max(found)):
        s += f"{n}{m}"
    while (got := ask(s, f"more {n}", "n")) > "4" and n < 4:
        n += 1
    s += got + gen("w", max_tokens=2)
    return n, got, y


# -- classes


class Step:
    kind = "step"
    made = 0

    def __init__(self, name: str) -> None:
        self.name = name
        type(self).made += 1

    def run(self, s: Any) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __rshift__(self, other: Step) -> Chain:
        return Chain([self, other])


class Asking(Step):
    def run(self, s: Any) -> str:
        return ask(s, f"{self.kind} {self.name}", "a")


class Scoring(Asking):
    kind = "score"

    def run(self, s: Any) -> str:
        text = super().run(s)
        return f"{text} {child(text, 'n').ret_value}"


class Chain(Step):
    def __init__(self, steps: list[Step]) -> None:
        super().__init__("+".join(x.name for x in steps))
        self.steps = steps

    def run(self, s: Any) -> str:
        return "|".join([step.run(s) for step in self.steps])

    def __rshift__(self, other: Step) -> Chain:
        return Chain([*self.steps, other])


def _none_made() -> None:
    for cls in (Step, Asking, Scoring, Chain):
        cls.made = 0


@case(reset=_none_made, outside=lambda: [c.made for c in (Step, Asking, Scoring, Chain)], batch=False)
def chain_of_steps(s, q):
    chain = Asking(q) >> Scoring("b") >> Asking("c")
    said = chain.run(s)
    s += repr(chain.steps) + gen("e", max_tokens=2)
    return said, Asking.made, chain.name


class Chat:
    """Wraps a state, as many people's own clients do."""

    def __init__(self, s: Any, style: str) -> None:
        self._s, self.style, self.turns = s, style, 0

    def __enter__(self) -> Chat:
        effect("open", self.style)
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        effect("close", self.turns, kind and kind.__name__)
        return kind is LookupError

    def __call__(self, text: str) -> str:
        self.turns += 1
        return ask(self._s, f"{self.style} {text}", f"t{self.turns}")

    def __getitem__(self, i: int) -> str:
        return self._s[f"t{i}"]

    @functools.cached_property
    def first(self) -> str:
        effect("first")
        return self("first")


@case()
def chat_object(s, q):
    with Chat(s, q) as chat:
        chat("hello")
        chat("again" + chat.first)
        if chat[1] > "t1 5":
            raise LookupError("swallowed")
        effect("not raised")
    return chat.turns, chat.first


@case()
def dataclass_state(s, q):
    @dataclass
    class Run:
        goal: str
        notes: list[str] = field(default_factory=list)
        budget: int = 3

        def __post_init__(self):
            self.goal = self.goal.strip().title()

        def step(self):
            self.budget -= 1
            self.notes.append(ask(s, f"{self.goal} {self.budget}", "names"))
            return self.budget > 0

    run = Run(f" {q} goal ")
    while run.step():
        pass
    other = dataclasses.replace(run, goal="x")
    s += f"{run}" + gen("d", max_tokens=2)
    return dataclasses.asdict(run), other.notes is run.notes, other == run


@case()
def visitor(s, q):
    tree = {"and": [{"ask": q}, {"or": [{"ask": "b"}, {"ask": "c"}]}]}

    def visit(node):
        (kind, inside), = node.items()
        match kind:
            case "ask":
                return int(child(inside, "n").ret_value) > 3
            case "and":
                return all(visit(n) for n in inside)
            case "or":
                return any([visit(n) for n in inside])

    s += f"{visit(tree)}" + gen("v", max_tokens=2)
    return visit(tree)


# -- errors, retries, contexts


class TooShort(ValueError):
    def __init__(self, text: str, least: int) -> None:
        super().__init__(f"{text!r} is shorter than {least}")
        self.least = least


@case()
def retries(s, q):
    def checked(text, least):
        if len(text) < least:
            raise TooShort(text, least)
        return text

    for attempt in itertools.count(1):
        try:
            got = checked(ask(s, f"{q}{attempt}", "bad"), 4 - attempt)
        except TooShort as e:
            effect("short", e.least, str(e))
            s += f" at least {e.least}"
            continue
        else:
            effect("got", got)
            return got, attempt
        finally:
            effect("tried", attempt)


@case()
def raises_in_the_end(s, q):
    total = 0
    for i in range(4):
        value = ask(s, f"{q}{i}", "bad")
        total += int(value)
    return total


@case()
def chained_errors(s, q):
    try:
        try:
            int(ask(s, q, "label"))
        except ValueError as e:
            raise RuntimeError("no number") from e
    except RuntimeError as e:
        s += f"{e}: {type(e.__cause__).__name__}" + gen("x", max_tokens=2)
        with contextlib.suppress(KeyError):
            s += {}["missing"]
        return str(e.__cause__)[:20], e.__context__ is e.__cause__


@contextlib.contextmanager
def section(s: Any, title: str) -> Iterator[list[str]]:
    effect("begin", title)
    notes: list[str] = []
    s += f"<{title}>"
    try:
        yield notes
    except ValueError as e:
        notes.append(str(e))
        effect("swallowed")
    finally:
        s += f"</{title}>"
        effect("end", len(notes))


@case()
def context_managers(s, q):
    with section(s, q) as outer, section(s, "inner") as inner:
        outer.append(ask(s, "one"))
        inner.append(str(int(ask(s, "two", "bad"))))
    s += f"{outer}{inner}" + gen("x", max_tokens=2)
    return outer, inner


@case()
def exits_from_loops(s, q):
    for i in range(3):
        for j in range(3):
            if ask(s, f"{q}{i}{j}", "n") in "01234":
                break
        else:
            s += "all"
            continue
        effect("row", i, j)
        if j:
            break
    else:
        return "never"
    return i, j


@case()
def asserts(s, q):
    n = int(ask(s, q, "n"))
    assert n >= 0
    assert isinstance(n, int), "no number"
    s += str(n) + gen("x", max_tokens=2)
    assert n != 4, f"{n} is four"
    return n


# -- sub-programs and forks


@case()
def programs_with_options(s, q):
    warm = child(q, temperature=0.9, name="b")
    seeded = [child.run(text=q, seed=i) for i in range(2)]
    s += warm.ret_value + "".join(x["a"] for x in seeded) + gen("x", max_tokens=2, temperature=0.5)
    return s["x"]


@case()
def debate(s, q):
    said = dict.fromkeys(["ann", "bob"], "")
    for turn in range(2):
        said = {who: child(f"{who} {turn} {q} " + " / ".join(v for k, v in said.items() if k != who)).ret_value for who in said}
    s += "\n".join(f"{k}: {v}" for k, v in said.items()) + select("winner", list(said))
    return s["winner"]


@case()
def best_of(s, q):
    s += user(q)
    forks = s.fork(3)
    forks += assistant("Answer: " + gen("a", max_tokens=3) + " score " + gen("score", max_tokens=1))
    best = max(forks, key=lambda f: (int(f["score"]), f["a"]))
    s += best["a"] + gen("end", max_tokens=2)
    return [f["score"] for f in forks], best["a"]


@case()
def var_scopes(s, q):
    with s.var_scope("whole"):
        s += q + gen("x", max_tokens=2)
        with s.var_scope("inner"):
            s += "in" + gen("y", max_tokens=2)
    s["own"] = s["inner"].upper()
    s += f"{'x' in s}{'zz' in s}{s['own']}" + gen("z", max_tokens=2)
    return s["whole"], s.get_meta_info("x")["completion_tokens"]


# -- coroutines


@case()
async def gathered_forks(s, q):
    s += q

    async def work(f, i):
        f += f"{i}" + gen("x", max_tokens=2)
        await asyncio.sleep(0)
        f += f["x"] + gen("y", max_tokens=2)
        return f["y"]

    found = await asyncio.gather(*(work(f, i) for i, f in enumerate(s.fork(3))))
    s += "|".join(found) + gen("z", max_tokens=2)
    return found, s["z"]


@lmc.function
async def achild(s, text):
    s += text + gen("a", max_tokens=3)
    return s["a"]


@case()
async def coroutines_with_limits(s, q):
    gate, done = asyncio.Semaphore(2), []

    async def one(i):
        async with gate:
            state = await achild.arun(f"{q}{i}")
            return i, state.ret_value

    for i, text in sorted(await asyncio.gather(*map(one, range(4)))):
        done.append(text + str(i))
    s += " ".join(done) + gen("z", max_tokens=2)
    return done


@case()
async def tasks_and_errors(s, q):
    async def number(f):
        f += q + gen("bad", max_tokens=2)
        return int(f["bad"])

    tasks = [asyncio.create_task(number(f)) for f in s.fork(2)]
    found = await asyncio.gather(*tasks, return_exceptions=True)
    s += str([type(x).__name__ for x in found]) + gen("z", max_tokens=2)
    if all(isinstance(x, Exception) for x in found):
        raise found[0]
    return sum(x for x in found if isinstance(x, int))


@case()
async def async_generators(s, q):
    async def pages(n):
        for i in range(n):
            yield await achild.arun(f"{q}{i}")

    found = [p.ret_value async for p in pages(3)]
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(effect, "closed")
        s += " ".join(found) + gen("z", max_tokens=2)
    return found


@case()
async def task_group_or_gather(s, q):
    async def gathered(texts):
        return [x.ret_value for x in await asyncio.gather(*(achild.arun(t) for t in texts))]

    first = await gathered([q, q + "2"])
    second = await gathered([f"{a}!" for a in first])
    s += f"{first}{second}" + gen("z", max_tokens=2)
    return second


# -- the table

TABLE = cases(globals())


def _ways(program: Any, tmp: Path, compiled: Program) -> dict[str, Callable[..., lmc.State]]:
    """Executions that the harness leaves out: on a loop, streamed, journaled and resumed."""
    fast, ahead = lmc.compile(program), eager(lmc.compile(program, ahead="likely"), compiled.planner)
    fast.planner = compiled.planner

    def streamed(**given: Any) -> lmc.State:
        state = ahead.stream(**given)
        state.ret_value  # noqa: B018
        return state

    return {
        "acall": lambda **given: asyncio.run(ahead.acall(**given)),
        "arun": lambda **given: asyncio.run(program.arun(**given)),
        "stream": streamed,
        "abatch": lambda q, **given: asyncio.run(fast.abatch([{"q": q}], **given))[0],
        "journaled": lambda **given: fast(**given, journal=tmp / f"{program.name}{given['q']}"),
        "resumed": lambda **given: ahead(**given, journal=tmp / f"{program.name}{given['q']}"),
    }


@some("name", TABLE, 36)
@pytest.mark.filterwarnings("ignore::lmc.JournalWarning")
def test_means_the_same(name: str, tmp_path: Path):
    means_the_same(TABLE[name], tmp_path)


def means_the_same(found: Case, tmp_path: Path) -> None:
    """Assert that a case gives the same in every execution, on the answers of this module."""
    found.options.setdefault("backend", backend)
    compiled = found.check()
    reset = found.options.get("reset", lambda: None)
    for item in found.items[:2]:
        expected = _seen(found.program.run, item, reset)
        for how, call in _ways(found.program, tmp_path, compiled).items():
            if how == "abatch" and not found.options.get("batch", True):
                continue
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                seen = _seen(call, item, reset)
            if how == "resumed":
                seen.effects = expected.effects  # they are not made again
            if how in ("journaled", "resumed") and seen.error is not None and seen.error[0] == "JournalError":
                break  # it says what a journal cannot hold
            assert not differences(seen, expected), f"{how}, {item}: {differences(seen, expected)}"
            if any(w.category is lmc.JournalWarning for w in caught):
                break  # it cannot be resumed, and says so


def _seen(call: Callable[..., lmc.State], item: dict[str, Any], reset: Callable[[], None]) -> Seen:
    reset()
    EFFECTS.clear()
    mock = Mock(answers, latency=0.0003)
    try:
        seen = observe(call(**item, backend=mock, seed=7))
    except Exception as error:
        seen = Seen(error=(type(error).__name__, str(error)))
    finally:
        mock.close()
    seen.effects = list(EFFECTS)
    return seen
