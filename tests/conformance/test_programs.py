"""Programs of the kind that people write with the language: each means the same in every execution."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

import lmc

from . import outside
from .harness import Case, case, cases, conform, effect, scripted
from .outside import TOOLS, ask, shout, tool
from .programs import BEGIN, compiled

EXAMPLES = [("2+2", "4"), ("3*3", "9")]


@case()
def few_shot(s: Any, q: str) -> str:
    s += "Solve.\n"
    for question, answer in EXAMPLES:
        s += f"Q: {question}\nA: {answer}\n"
    s += f"Q: {q}\nA:" + lmc.gen("answer", max_tokens=8, stop="\n")
    return s["answer"].strip()


@case([{"q": "text"}, {"q": "more"}], backend=scripted(related=["yes", "no"]))
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


@case([{"q": "who"}], backend=scripted(tool=["shout", "tool", "finish"], arg=["abc", "d e", "done"]))
def react_dispatch(s: Any, q: str) -> str:
    s += "Question: " + q
    steps = []
    while len(steps) < 5:
        s += "\nTool:" + lmc.gen("tool", max_tokens=8, stop="\n") + " Arg:" + lmc.gen("arg", max_tokens=8)
        if s["tool"].strip() == "finish":
            break
        observation = TOOLS[s["tool"].strip()](s["arg"])
        steps.append((s["tool"], observation))
        s += f"\nObservation {len(steps)}: {observation}"
    else:
        return "gave up"
    return f"{s['arg']} after {[o for _, o in steps]}"


@case([{"q": "who"}], backend=scripted(tool=["shout", "fly"], arg=["abc", "d e"]))
def react_unknown_tool(s: Any, q: str) -> str:
    for _ in range(3):
        s += lmc.gen("tool", max_tokens=8) + lmc.gen("arg", max_tokens=8)
        try:
            s += TOOLS[s["tool"]](s["arg"])
        except KeyError as error:
            s += f"no tool {error}"
            return "unknown"
    return "done"


@case()
def tree_of_thought(s: Any, q: str) -> str:
    s += q
    level = [s]
    for depth in range(2):
        following = []
        for state in level:
            for i, f in enumerate(state.fork(2)):
                f += f"[{depth}.{i}]" + lmc.gen("thought", max_tokens=5)
                f += lmc.gen("score", max_tokens=4)
                following.append(f)
        following.sort(key=lambda f: f["score"], reverse=True)
        level = following[:2]
    return level[0]["thought"] + level[0].text()


@case()
def skeleton(s: Any, q: str) -> str:
    s += "Outline: " + q + lmc.gen("outline", max_tokens=24)
    points = [p.strip() for p in s["outline"].split(" ") if p.strip()]
    forks = s.fork(len(points))
    for f, p in zip(forks, points):
        f += f"Expand {p}:" + lmc.gen("text", max_tokens=6)
    for i, f in enumerate(forks, 1):
        s += f"{i}. {f['text']}\n"
    return str(len(points))


@case([{"q": "x", "n": 3}, {"q": "y", "n": 4}], temperature=0.8)
def self_consistency(s: Any, q: str, n: int) -> Any:
    s += q
    forks = s.fork(n)
    forks += lmc.gen("answer", max_tokens=2)
    votes = Counter(f["answer"].strip().lower() for f in forks)
    (best, count), *_ = votes.most_common()
    s += best
    return best, count, sorted(votes.items())


@case(backend=scripted(out="name: Bob, age: 12; name: Al, age: 7"))
def regex_extraction(s: Any, q: str) -> Any:
    s += q + lmc.gen("out", max_tokens=60)
    pairs = re.findall(r"name: (\w+), age: (\d+)", s["out"])
    total = sum(int(age) for _, age in pairs)
    s += f" total {total} " + ", ".join(f"{n}={a}" for n, a in pairs)
    return {name: int(age) for name, age in pairs}


@case(backend=scripted(out='{"items": [{"name": "a", "n": 2}, {"name": "b", "n": 3}]}'))
def json_extraction(s: Any, q: str) -> Any:
    s += q + lmc.gen("out", max_tokens=80)
    data = json.loads(s["out"])
    total = 0
    for item in data["items"]:
        s += f"{item['name']}: {item['n']};"
        total += item["n"]
    data["total"] = total
    s += json.dumps(data)
    return data, max(item["n"] for item in data["items"]), any(item["n"] > 2 for item in data["items"])


@case([{"questions": ["a", "b", "c"]}, {"questions": []}, {"questions": ["z"]}])
def chat_loop(s: Any, questions: list[str]) -> Any:
    s += lmc.system("Be brief.")
    answers = []
    for question in questions:
        s += lmc.user(question)
        s += lmc.assistant(lmc.gen("answer", max_tokens=8))
        answers.append(s["answer"])
    return answers


@case()
def chat_until(s: Any, q: str) -> Any:
    with s.system():
        s += "You are " + q
    turns = 0
    while True:
        with s.user():
            s += f"turn {turns}"
        with s.assistant():
            s += lmc.gen("a", max_tokens=5)
            turns += 1
        if turns > 3 or "e" in s["a"]:
            break
    return turns, s.messages()


@case()
def branch_inside_role(s: Any, q: str) -> str:
    with s.user():
        s += q
    with s.assistant():
        s += lmc.gen("a", max_tokens=5)
        if "a" in s["a"]:
            s += " yes " + lmc.gen("b", max_tokens=3)
        else:
            s += " no"
    return s["a"]


@case()
def helper_module(s: Any, q: str) -> str:
    first = ask(s, q)
    second = outside.ask(s, first + "?", name="b", temperature=0)
    return second.title() + s["a"]


class Agent:
    prefix = "> "

    def __init__(self, s: Any, tools: Any) -> None:
        self.s, self.tools, self.log = s, tools, []

    def step(self, q: str) -> str:
        self.s += self.prefix + q + lmc.gen("step", max_tokens=6)
        self.log.append(self.s["step"])
        return self._use(self.s["step"])

    def _use(self, x: str) -> str:
        return self.tools[0](x) if len(x) > 3 else x

    @property
    def last(self) -> str:
        effect("last")
        return self.log[-1]

    def __len__(self) -> int:
        effect("len")
        return len(self.log)

    @staticmethod
    def join(a: str, b: str) -> str:
        return a + "/" + b

    @classmethod
    def make(cls, s: Any) -> Agent:
        return cls(s, [tool])


@case()
def methods(s: Any, q: str) -> Any:
    agent = Agent.make(s)
    a = agent.step(q)
    b = agent.step(a)
    s += agent.last + str(len(agent)) + agent.join(a, b)
    return agent.log, agent.last


@case()
def methods_simple(s: Any, q: str) -> Any:
    agent = Agent(s, [shout])
    return agent.join(agent.step(q), agent.step("b")), len(agent.log)


@case()
def partials(s: Any, q: str) -> Any:
    brief = functools.partial(ask, s, name="p")
    short = functools.partial(lmc.gen, max_tokens=4)
    s += q + short("x")
    loud = functools.partial(shout)
    return brief(s["x"]), loud(s["x"])


@case()
def lambdas(s: Any, q: str) -> Any:
    turn = lambda t, n: lmc.user(t) + lmc.assistant(lmc.gen(n, max_tokens=4))  # noqa: E731
    s += turn(q, "x")
    s += turn(s["x"], "y")
    clean = lambda t: t.strip().lower()  # noqa: E731
    return clean(s["x"]) + clean(s["y"])


@case()
def walrus(s: Any, q: str) -> Any:
    found = []
    while len(x := lmc_text(s, q)) < 9 and len(found) < 3:
        found.append(x)
    if (n := len(found)) > 1:
        s += f"{n}" + lmc.gen("z", max_tokens=2)
    return found, x, n


def lmc_text(s: Any, q: str) -> str:
    s += q + lmc.gen("w", max_tokens=12)
    return s["w"]


@case()
def nested_comprehensions(s: Any, q: str) -> Any:
    forks = [[f for f in g.fork(2)] for g in s.fork(2)]
    for i, row in enumerate(forks):
        for j, f in enumerate(row):
            f += q + f"{i}{j}" + lmc.gen("v", max_tokens=4)
    texts = [f["v"] for row in forks for f in row if "a" in f["v"]]
    lengths = {f"{i}{j}": len(f["v"]) for i, row in enumerate(forks) for j, f in enumerate(row)}
    s += "".join(texts) + str(lengths["01"])
    return texts, lengths, sum(lengths.values()), {len(t) for t in texts}


@case()
def generator_helper(s: Any, q: str) -> Any:
    def ideas(n: int) -> Any:
        for i in range(n):
            s.__iadd__(f"{i}" + lmc.gen("i", max_tokens=3))
            yield s["i"]

    return [x.upper() for x in ideas(3)], list(parts(q))


def parts(q: str) -> Any:
    effect("parts")
    yield q
    effect("more parts")
    yield q + q


@case()
def loops_with_else(s: Any, q: str) -> Any:
    out = []
    for i in range(3):
        s += q + lmc.gen("x", max_tokens=3)
        if s["x"].startswith("z"):
            out.append("z")
            break
        if i == 1:
            continue
        out.append(s["x"])
    else:
        out.append("no z")
    n = 2
    while n:
        n -= 1
        s += lmc.gen("y", max_tokens=2)
        if "q" in s["y"]:
            break
    else:
        out.append("no q")
    return out


@case()
def try_without_error(s: Any, q: str) -> Any:
    try:
        s += q + lmc.gen("x", max_tokens=5)
        r = tool(s["x"])
    except ValueError:
        r = "error"
    else:
        effect("else")
    finally:
        effect("finally")
        s += " end"
    return r


@case()
def try_with_tools(s: Any, q: str) -> Any:
    out = []
    for i in range(4):
        s += f"{i}" + lmc.gen("x", max_tokens=4)
        try:
            out.append(outside.flaky(s["x"]))
        except ValueError as error:
            out.append(str(error))
            s += f"({error})"
            continue
        finally:
            effect("finally", i)
        s += "ok"
    return out


@case(backend=scripted(x=lambda prompt, ask: "12" if "Not a number" in prompt else "oops"))
def retry(s: Any, q: str) -> Any:
    for attempt in range(3):
        s += f"Number {attempt}:" + lmc.gen("x", max_tokens=4)
        try:
            n = int(s["x"])
            break
        except ValueError:
            effect("retry", attempt)
            s += "Not a number.\n"
    else:
        raise RuntimeError("no number")
    return n


@case()
def raises_own(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    effect("x", s["x"])
    if "a" in s["x"]:
        raise LookupError("has a: " + s["x"])
    if "e" in s["x"]:
        raise AssertionError(f"has e: {s['x']}")
    return s["x"]


@case()
def match_literals(s: Any, q: str) -> Any:
    s += q + lmc.select("x", choices=["go", "stop", "wait"])
    match s["x"]:
        case "go" | "run":
            s += "going"
        case "stop":
            return "stopped"
        case other if len(other) == 4:
            s += other
        case _:
            raise AssertionError
    match s["x"].split():
        case []:
            return "nothing"
        case [one]:
            return one
        case [one, *rest]:
            return rest


@case(backend=scripted(x='{"action": "add", "args": [1, 2], "more": true}'))
def match_structures(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=60)
    match json.loads(s["x"]):
        case {"action": "add", "args": [a, b], **rest}:
            s += str(a + b)
            return rest
        case {"action": str(name)}:
            return name
        case _:
            return None


@dataclass
class Point:
    x: int
    y: str = ""


@case()
def match_classes(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    p = Point(2, "b")
    match p:
        case Point(x=1):
            return "one"
        case Point(2, y):
            s += y
    return p.x


@case()
def star_arguments(s: Any, q: str) -> Any:
    def many(*texts: str, sep: str = ",", **named: Any) -> str:
        s.__iadd__(sep.join(texts) + lmc.gen(**named))
        return s[named["name"]]

    xs = [q, "b"]
    a = many(*xs, "c", name="x", max_tokens=4)
    b = many(a, *(t.upper() for t in xs), sep="-", **{"name": "y", "max_tokens": 3})
    first, *middle, last = [a, b, *xs]
    return first, middle, last


@case()
def operators(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=7)
    n = len(s["x"])
    ok = 1 < n <= 7 != 3
    text = "long" if n > 5 else "short" if n > 3 else "tiny"
    s += f"{n:03d}|{n / 3:.2f}|{s['x']!r:>12}|{text:^9}|{n:>{n}}|{ok}" + s["x"][::-1] + s["x"][1:-1] + s["x"][-3:]
    m = n
    m **= 2
    m //= 3
    m -= 1
    return ok and text, n or "none", not n, -n, n % 3, divmod(n, 2), m, n ^ 1, n << 2, abs(n - 9), round(n / 7, 2)


@case()
def augmented(s: Any, q: str) -> Any:
    box = Point(0, "")
    table = {"n": 0, "t": []}
    for _ in range(2):
        s += q + lmc.gen("x", max_tokens=4)
        box.x += len(s["x"])
        box.y += s["x"]
        table["n"] += box.x
        table["t"] += [s["x"]]
    rows = [1, 2]
    rows[0] += table["n"]
    return box.x, box.y, table["n"], table["t"], rows


@case()
def keyed_by_output(s: Any, q: str) -> Any:
    counts: dict[str, int] = {}
    groups = defaultdict(list)
    for i in range(3):
        s += f"{i}" + q + lmc.gen("x", max_tokens=1)
        counts[s["x"]] = counts.get(s["x"], 0) + 1
        groups[s["x"]].append(i)
    seen = {s["x"]}
    seen.add("k")
    return counts, dict(groups), "k" in seen, sorted(counts), max(counts, key=counts.get)


@case()  # so many decisions that they use up a tree's credit (growth.py)
def builtins_on_values(s: Any, q: str) -> Any:
    forks = s.fork(3)
    forks += lambda i: f"{i}{q}" + lmc.gen("v", max_tokens=5)
    vs = [f["v"] for f in forks]
    lengths = list(map(len, vs))
    s += "|".join(sorted(vs)) + min(vs) + max(vs, key=len)
    s += "".join(reversed(vs[0])) + str(sum(lengths)) + str(any("a" in v for v in vs)) + str(all(vs))
    longest = [v for v, n in zip(vs, lengths) if n == max(lengths)]
    return longest, list(filter(lambda v: "e" in v, vs)), sorted(vs, key=lambda v: (len(v), v)), [*enumerate(vs, 1)]


@case()
def nonlocal_state(s: Any, q: str) -> Any:
    total, log = 0, []

    def step(t: str) -> None:
        nonlocal total, s
        s += t + lmc.gen("x", max_tokens=4)
        total += len(s["x"])
        log.append(s["x"])

    step(q)
    if total > 2:
        step("more")
    return total, log


@dataclass
class Thought:
    state: Any
    text: str = ""
    children: list[Any] = field(default_factory=list)
    parent: Any = None


@case()
def dataclass_nodes(s: Any, q: str) -> Any:
    s += q
    root = Thought(s)
    for i, f in enumerate(s.fork(2)):
        f += f"{i}" + lmc.gen("t", max_tokens=5)
        root.children.append(Thought(f, f["t"], parent=root))
    best = max(root.children, key=lambda c: len(c.text))
    best.text += "!"
    s += best.text
    return [c.text for c in root.children], best.parent is root


@case([{"q": "a", "depth": 2}, {"q": "b", "depth": 0}])
def recursion(s: Any, q: str, depth: int) -> Any:
    def explore(state: Any, left: int, path: str) -> list[str]:
        state += path + lmc.gen("t", max_tokens=3)
        if not left:
            return [state["t"]]
        found = []
        for i, f in enumerate(state.fork(2)):
            found += explore(f, left - 1, f"{path}.{i}")
        return found

    return explore(s, depth, q)


@case()
def early_returns(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    if s["x"][0] in "aeiou":
        return None
    s += lmc.gen("y", max_tokens=3)
    for c in s["y"]:
        if c == "a":
            return c
    if not s["y"].strip():
        return s
    return s["x"], s["y"]


@case(temperature=0.5)
def copies_and_scopes(s: Any, q: str) -> Any:
    s += q
    with s.copy() as c:
        c += "copy" + lmc.gen("c", max_tokens=4)
    with s.var_scope("all"):
        s += "in" + lmc.gen("x", max_tokens=4) + "out"
    s += s["all"] + str(s["c"])
    s.set_var("k", s["x"] + "k")
    s["j"] = [s["x"]]
    return s["k"], s["j"], s.get_var("x"), s.get_meta_info("x")["finish_reason"]["type"], "k" in s, "z" in s


@case()
def joins(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"<{i}>" + lmc.gen("v", max_tokens=4)
    forks.join()
    s += s["v"][0] + "/" + s["v"][-1] + lmc.gen("w", max_tokens=3)
    return s["v"], [m["finish_reason"] for m in s.get_meta_info("v")]


@case()
def join_concatenated(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"<{i}>" + lmc.gen("v", max_tokens=4)
    forks.join("concate_and_append")
    s += lmc.gen("w", max_tokens=3)
    return s["w"]


@case()
def texts_midway(s: Any, q: str) -> Any:
    s += lmc.user(q) + lmc.assistant(lmc.gen("x", max_tokens=4))
    before = s.text()
    s += lmc.user(before.replace("user", "you")) + lmc.assistant(lmc.gen("y", max_tokens=4))
    messages = s.messages()
    messages.append({"role": "tool", "content": "t"})
    s += lmc.user(json.dumps(messages[-2:]))
    return len(messages), messages[1]["content"], s.messages()[-1]


@case([{"q": "a", "k": 4, "stop": ["a", "e"], "choices": ["u", "vv"], "pattern": "[ab]{3}"}])
def gen_parameters(s: Any, q: str, k: int, stop: list[str], choices: list[str], pattern: str) -> Any:
    s += q + lmc.gen("x", max_tokens=k, stop=stop) + lmc.select("c", choices=choices)
    s += lmc.gen("y", regex=pattern)
    s += lmc.gen("z", max_tokens=len(s["y"]), stop=[s["y"][0], "!"])
    s += lmc.select("w", choices=[s["y"], "or " + s["c"]])
    s += lmc.gen("v", regex=s["y"] + "+", max_tokens=5) + lmc.gen("u", choices=choices)
    return s["w"], s["c"]


@case(temperature=0.9)
def several_samples(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4, n=3)
    votes = Counter(s["x"])
    s += " ".join(s["x"]) + str(len(s["x"]))
    for i, x in enumerate(s["x"]):
        s += f"{i}{x}"
    return s["x"][0], len(votes), [m["finish_reason"]["type"] for m in s.get_meta_info("x")]


@case(backend=scripted(x="12 apples, 7 pears"))
def numbers(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=40)
    ns = [int(n) for n in re.findall(r"\d+", s["x"])]
    mean = sum(ns) / len(ns)
    s += f"mean {mean:.1f}, max {max(ns)}"
    if mean > 5:
        s += lmc.gen("y", max_tokens=int(mean))
    return ns, mean, sorted(ns), ns[0] - ns[1]


@case(backend=scripted(x=["2*3+1", "4/2"]))
def evaluates(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    k = 2
    s += str(eval(s["x"])) + str(eval("k + 1"))
    return eval(s["x"], {"__builtins__": {}})


@case()
def mutated_results(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=12)
    ws = outside.words(s["x"])
    ws.append("end")
    n = outside.keep(ws)
    ws.sort()
    s += str(ws) + str(n)
    mine = [s["x"], "b"]
    outside.grow(mine, "c")
    mine.append("d")
    s += str(len(mine))
    return ws, mine


@case()
def types_and_strings(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=12)
    x = s["x"]
    found = [isinstance(x, str), isinstance(x, (int, list)), type(x) is str, type(x).__name__, callable(x)]
    found += [x.title(), x.center(20, "*"), x.zfill(15), x.find("a"), x.partition(" "), x.swapcase(), x.encode().hex()]
    found += [x.removesuffix("a"), x.ljust(14) + "|", x.rsplit(" ", 1), x.splitlines(), x.isalpha(), x.startswith(("a", "b"))]
    found += [x.translate(str.maketrans("a", "b")), x.casefold() < "m", x.expandtabs(), x.rstrip("aeiou"), "{0}-{0!r}".format(x), x.join("ab")]
    found += ["%-5s|%r" % (x, x), x + "" is x, x * 2, len(x.split()), x.count("a"), x.index(x[0]), x.upper().lower() == x, ord(x[0])]
    return found


@case()
def regexes(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=20)
    pattern = re.compile(r"([aeiou])(?P<next>\w)")
    m = pattern.search(s["x"])
    words = pattern.findall(s["x"])
    words.append(("z", "z"))
    groups = m.groupdict() if m else {}
    groups["k"] = 1
    other = m.groupdict() if m else {}
    spans = [x.span() for x in pattern.finditer(s["x"])]
    s += re.sub(r"[aeiou]", lambda v: v.group().upper(), s["x"]) + pattern.sub(r"\2\1", s["x"])
    return words, groups, other, spans, re.split(r"\s+", s["x"])


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@case()
def enums(s: Any, q: str) -> Any:
    s += q + lmc.select("c", choices=[c.value for c in Color])
    color = Color(s["c"])
    if color is Color.RED:
        s += "red!"
    return color.name, color == Color.BLUE, [c.name for c in Color]


@case(reset=outside.reset, outside=outside.look, batch=False)
def changed_outside(s: Any, q: str) -> Any:
    limit = outside.LIMIT
    s += f"{limit}"
    outside.set_limit(5)
    s += q + lmc.gen("x", max_tokens=outside.LIMIT)
    if s["x"] == "never":
        s += "never"
    return limit, outside.LIMIT


CASES = cases(dict(globals()))


@pytest.mark.parametrize("name", CASES)
def test_program(name: str):
    CASES[name].check()


def test_lambda_program():
    program = Case(lmc.function(lambda s, q: s.__iadd__(q + lmc.gen("x", max_tokens=3))["x"]), [{"q": "a"}], {})
    program.check()


def test_assertions():  # as source text: pytest rewrites the asserts of its modules
    program, *_ = compiled(BEGIN + """
    s += q + lmc.gen("x", max_tokens=4)
    assert "e" not in s["x"], f"has e: {s['x']}"
    assert "a" in s["x"]
""")
    conform(program, [{"q": str(i), "xs": []} for i in range(5)])


def test_closure_programs():
    def make(prefix: str, tools: list[Any]) -> Any:
        @lmc.function
        def program(s: Any, q: str) -> str:
            s += prefix + q + lmc.gen("x", max_tokens=4)
            for t in tools:
                s += t(s["x"])
            return s["x"] + prefix

        return program

    for prefix, tools in (("a", [tool]), ("b", [tool, shout]), ("c", [])):
        conform(make(prefix, tools), [{"q": "x"}, {"q": "y"}])


def test_cached_and_wrapped_helpers():
    def logged(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            effect("enter", fn.__name__)
            result = fn(*args, **kwargs)
            effect("leave", fn.__name__)
            return result

        return inner

    @logged
    def say(s: Any, q: str) -> str:
        s += q + lmc.gen("x", max_tokens=5)
        return s["x"]

    @functools.lru_cache
    def slow(x: str) -> str:
        return x[::-1]

    @lmc.function
    def program(s: Any, q: str) -> Any:
        return say(s, q), slow(s["x"]), slow(s["x"])

    conform(program, [{"q": "a"}, {"q": "b"}])
