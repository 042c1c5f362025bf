"""Python's features in programs: each means the same in every execution, and is captured (no replay, nothing said)."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import io
import itertools
import json
import operator
import re
import statistics
import string
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Optional

import pytest

import lmc

from . import outside
from .harness import case, cases, effect, scripted
from .outside import TOOLS, ask, tool


def by_item(**answers: list[str]) -> Any:
    """Mocks that answer the first item (whose prompt begins with "a") by the first of a list, the second by the second, …"""

    def chosen(texts: list[str]) -> Any:
        return lambda prompt, ask: texts["abcdefgh".index(prompt[0]) % len(texts)]

    return lambda: lmc.Mock(answers={name: chosen(texts) for name, texts in answers.items()})


# -- objects that hold states, and classes whose methods Python calls


class Turn(NamedTuple):
    s: Any
    what: Any

    def ask(self, text: str) -> Any:
        self.s.__iadd__(text + lmc.gen("y", max_tokens=2))
        return self.s["y"]


Two = collections.namedtuple("Two", "first second", defaults=[None])


@case()
def named_tuples_of_states(s: Any, q: str) -> Any:
    pair = Two(*s.fork(2))
    for i, f in enumerate(pair):
        f += q + str(i) + lmc.gen("x", max_tokens=2)
    turn = Turn(s, pair.first["x"])
    s += turn.ask(turn[1]) + pair[1]["x"]
    state, what = turn
    state += what
    try:
        Turn(s)
    except TypeError as error:
        s += str(error)
    return len(pair), turn.what, turn[1:], isinstance(turn, tuple), turn._fields, [*turn][1]


@dataclasses.dataclass(frozen=True)
class Part:
    s: Any
    text: Any
    marks: list[Any] = dataclasses.field(default_factory=list)


@case()
def replaced_fields(s: Any, q: str) -> Any:
    step = Part(s, q)
    step.s.__iadd__(step.text + lmc.gen("x", max_tokens=3))
    other = dataclasses.replace(step, text=s["x"])
    other.marks.append(other.text)
    other.s.__iadd__(other.text)
    try:
        dataclasses.replace(step, more=1)
    except TypeError as error:
        s += str(error)
    return other.text, step.marks


class Forgiving:
    def __init__(self, s: Any) -> None:
        self.s = s

    def __enter__(self) -> Any:
        return self

    def __exit__(self, cls: Any, error: Any, traceback: Any) -> bool:
        self.s += f"<{cls.__name__ if cls else ''}:{error}>"
        return cls is ValueError


def refuses(x: str) -> None:
    effect("refused", x)
    raise (ValueError if x < "m" else LookupError)(x)


@case([{"q": q} for q in "abcd"])
def own_managers_that_handle(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    with Forgiving(s):
        int(s["x"])
        s += "a number"
    s += lmc.gen("y", max_tokens=2)
    try:
        with Forgiving(s) as outer, Forgiving(s):
            refuses(s["y"])
            s += "never"
    except LookupError as error:
        s += f"{error}!"
    with outer:
        raise ValueError("own")
    return s["y"]


class Scored:
    def __init__(self, s: Any) -> None:
        self.s = s

    def __lt__(self, other: Any) -> Any:
        effect("less", self.s["x"], other.s["x"])
        return self.s["x"] < other.s["x"]

    def __gt__(self, other: Any) -> Any:
        return self.s["x"] > other.s["x"] or None


@case()
def ordered_by_its_class(s: Any, q: str) -> Any:
    group = s.fork(3)
    for i, f in enumerate(group):
        f += q + str(i) + lmc.gen("x", max_tokens=2)
    found = [Scored(f) for f in group]
    s += "".join(one.s["x"] for one in sorted(found)) + max(found).s["x"] + min(*found).s["x"]
    found.sort(reverse=True)
    return [one.s["x"] for one in found]


@case()
def extended_by_a_generator(s: Any, q: str) -> Any:
    def steps() -> Any:
        for i in range(2):
            s.__iadd__(f"{i}" + lmc.gen("x", max_tokens=2))
            yield s["x"]

    found = [q]
    found.extend(steps())
    found.extend(x + "!" for x in found[:1])
    held = {"s": s, "found": found}
    held["s"] += ",".join(held["found"])
    return found


class Shade(enum.Enum):
    RED = "red"
    BLUE = "blue"


@case(backend=by_item(c=["red", "blue", "red"]))
def members_by_answers(s: Any, q: str) -> Any:
    s += q + lmc.select("c", choices=[c.value for c in Shade])
    color = Shade(s["c"])
    return color.name, color is Shade.RED


def checked(text: str) -> bool:
    effect("checked", text)
    return "a" in text


@case(backend=by_item(x=["a", "b", "ba"], y=["b", "a", "b"]))
def any_and_all_of_effects(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3) + lmc.gen("y", max_tokens=3)
    texts = [s["x"], s["y"]]
    return any(checked(x) for x in texts), all(checked(x) for x in texts)


# -- generators


@case()
def generator_helper(s: Any, q: str) -> Any:
    def fields(names: list[str]) -> Any:
        for n in names:
            s.__iadd__(n + ":" + lmc.gen(n, max_tokens=3))
            yield s[n]

    return list(fields(["a", "b", "c"]))


def _turns(s: Any, names: Any) -> Any:
    for n in names:
        s += f"\n{n}: " + lmc.gen(n, max_tokens=3)
        yield n, s[n]


@case()
def generator_with_state(s: Any, q: str) -> Any:
    s += q
    out = {}
    for name, value in _turns(s, ["x", "y"]):
        out[name] = value.upper()
        s += "!"
    return out


@case()
def generator_stopped_early(s: Any, q: str) -> Any:
    s += q
    for name, value in _turns(s, ["x", "y", "z"]):
        effect("got", name, value)
        if name == "y":
            break
    return value


@case()
def generator_interleaved(s: Any, q: str) -> Any:
    def numbers(n: int) -> Any:
        for i in range(n):
            effect("make", i)
            s.__iadd__(str(i) + lmc.gen("x", max_tokens=2))
            yield i, s["x"]
        effect("end")

    total = []
    for i, x in numbers(2):
        effect("use", i, x)
        total.append(x)
    return "".join(total)


@case()
def generator_yield_from(s: Any, q: str) -> Any:
    def both() -> Any:
        got = yield from _turns(s, ["x"])
        yield from _turns(s, ["y", "z"])
        yield "end", got

    return [v for _, v in both()]


@case()
def generator_next(s: Any, q: str) -> Any:
    turns = _turns(s, ["x", "y"])
    first = next(turns)
    s += "between"
    second = next(turns)
    return first, second, next(turns, "none"), next(turns, None)


@case()
def generator_next_find(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    return next((w for w in s["x"].split() if "a" in w), "none")


@case()
def generator_any(s: Any, q: str) -> Any:
    def check(w: str) -> bool:
        effect("check", w)
        return "a" in w

    s += q + lmc.gen("x", max_tokens=12)
    return any(check(w) for w in s["x"].split())


@case()
def generator_any_gen(s: Any, q: str) -> Any:
    def good(t: str) -> Any:
        s.__iadd__(t + lmc.select("ok", choices=["yes", "no"]))
        return s["ok"] == "yes"

    return any(good(t) for t in ["a", "b", "c"]), all(good(t) for t in ["d", "e"])


@case()
def generator_sum_join(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    return sum(len(w) for w in s["x"].split()), ", ".join(w.upper() for w in s["x"].split()), max((len(w) for w in s["x"].split()), default=0)


@case()
def generator_send(s: Any, q: str) -> Any:
    def chat() -> Any:
        said = yield "ready"
        while said:
            s.__iadd__(said + lmc.gen("a", max_tokens=2))
            said = yield s["a"]

    talk = chat()
    out = [next(talk), talk.send("one"), talk.send("two")]
    talk.close()
    return out


@case()
def generator_zip_enumerate(s: Any, q: str) -> Any:
    s += q
    out = []
    for i, ((n, v), w) in enumerate(zip(_turns(s, ["x", "y"]), ["k", "l", "m"])):
        out.append(f"{i}{n}{v}{w}")
    return out


@case()
def generator_return_value(s: Any, q: str) -> Any:
    def inner() -> Any:
        s.__iadd__(lmc.gen("x", max_tokens=2))
        yield 1
        return s["x"]

    def outer() -> Any:
        got = yield from inner()
        yield got

    return list(outer())


@case()
def generator_expression_forks(s: Any, q: str) -> Any:
    s += q
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += str(i) + lmc.gen("x", max_tokens=3)
    return "|".join(f["x"] for f in forks), tuple(len(f["x"]) for f in forks), dict((f["x"], 1) for f in forks)


@case()
def generator_while_true(s: Any, q: str) -> Any:
    def stream() -> Any:
        n = 0
        while True:
            s.__iadd__(lmc.gen("x", max_tokens=2))
            yield n, s["x"]
            n += 1

    return [x for n, x in zip(range(3), stream())], list(itertools.islice(stream(), 2))


@case()
def generator_itertools(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    words = s["x"].split()

    def short(w: str) -> bool:
        effect("short", w)
        return len(w) < 5

    chained = itertools.chain((n for n, _ in _turns(s, ["x", "y"])), ["k"], words)
    return (
        list(chained), list(itertools.takewhile(short, [s["x"][:2], *words, "end"])), [a + b for a, b in itertools.pairwise(s["x"][:3])],
        list(itertools.chain.from_iterable([[s["x"], 1], (2,)])), list(itertools.zip_longest("ab", [s["x"]], fillvalue="-")),
        [f"{a}{b}" for a, b in itertools.product("ab", [s["x"], "k"])], list(itertools.starmap(lambda a, b: a + b, [(s["x"], "k"), ("l", "m")])),
        list(itertools.filterfalse(lambda w: "a" in w, [s["x"], "a", "b"])), [n for n, _ in zip(itertools.count(1), words)],
    )  # fmt: skip


def _made(text: str) -> Any:
    for w in text:
        effect("made", w)
        yield w


@case()
def generator_of_the_host(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    for w in _made(s["x"]):
        effect("used", w)
        if w == "a":
            break
    first, *rest = _made(s["x"])
    return first, rest, list(_made("k")), any(w == "e" for w in _made(s["x"]))


@case()
def generator_mutating(s: Any, q: str) -> Any:
    s += q
    todo = ["x"]

    def pending() -> Any:
        while todo:
            yield todo.pop(0)

    for name in pending():
        s += name + lmc.gen("x", max_tokens=2)
        if len(s.text()) < 20:
            todo.append(s["x"])
    return s["x"], todo


@case()
def generator_raises(s: Any, q: str) -> Any:
    def parts() -> Any:
        s.__iadd__(lmc.gen("x", max_tokens=2))
        yield s["x"]
        yield int(s["x"])

    out = []
    try:
        for p in parts():
            out.append(p)
    except ValueError as error:
        out.append(str(error))
    return out


@case()
def generator_in_generator(s: Any, q: str) -> Any:
    def deep(n: int) -> Any:
        if n:
            s.__iadd__(f"{n}" + lmc.gen("x", max_tokens=2))
            yield s["x"]
            yield from deep(n - 1)
            yield n

    return [str(x) for x in deep(3)], {k: v for k, v in zip("ab", deep(1))}, set(deep(0)) == set()


@case()
def generator_method(s: Any, q: str) -> Any:
    class Plan:
        def __init__(self, s: Any) -> None:
            self.s = s

        def steps(self, n: int) -> Any:
            for i in range(n):
                self.s += f"{i}." + lmc.gen("step", max_tokens=3)
                yield self.s["step"]

    return [x.strip() for x in Plan(s).steps(3)]


# -- match


@case(backend=by_item(x=["yes", "no", "maybe"]))
def match_text(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    match s["x"]:
        case "yes" | "y":
            return 1
        case "no":
            return 0
        case other if len(other) > 3:
            return other + "?"
        case _:
            return None


@case(backend=by_item(x=["go north", "take lamp now", "quit", "go", "x y z w"]), items=[{"q": c} for c in "abcde"])
def match_split(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    match s["x"].split():
        case ["go", direction]:
            return f"going {direction}"
        case ["take", thing, *rest] if rest:
            return thing, rest
        case ["quit" | "exit"]:
            return "bye"
        case [one]:
            return one.upper()
        case [*_, last]:
            return last


JSON = [
    '{"action": "search", "q": "cats"}', '{"action": "finish", "answer": 42}', '{"action": "add", "args": [1, 2]}', '[1, "a", {"k": null}]', '"text"',
    '{"action": "finish", "answer": "no"}', "3.5", "null", '{"other": 1, "more": 2}',
]  # fmt: skip


@case([{"q": t} for t in JSON])
def match_json_argument(s: Any, q: str) -> Any:
    s += lmc.gen("y", max_tokens=2)
    match json.loads(q):
        case {"action": "search", "q": str(query)}:
            return tool(query)
        case {"action": "finish", "answer": int(answer)}:
            return answer + 1
        case {"action": "finish", "answer": answer}:
            return answer
        case {"action": str(name), **rest}:
            return name, rest
        case [int(a), str(b), *rest]:
            return a, b, rest
        case str() as text:
            return text + "!"
        case None | True:
            return "nothing"
        case float(f):
            return f
        case other:
            return len(other)


@dataclass
class Point:
    x: Any
    y: Any = 0


class Pair:
    __match_args__ = ("left", "right")

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right


@case(backend=by_item(x=["a", "b", "c"]))
def match_objects(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    p = Point(s["x"], 1)
    match p:
        case Point("a", y):
            out = ("first", y)
        case Point(x=x, y=1) if x == "b":
            out = ("second", x)
        case Point():
            out = ("third", p.x)
    match Pair(s["x"], [1, s["x"]]):
        case Pair("b", [_, t]):
            return out, t
        case Pair(left=l, right=[n, *more]):
            return out, l, n, more


@case(backend=by_item(x=["a", "b", "c"]))
def match_built(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    match (s["x"], len(q)):
        case ("a", n):
            out = n
        case (x, 1):
            out = x * 2
        case _:
            out = None
    match {"kind": s["x"], "n": [s["x"], 2]}:
        case {"kind": "b", "n": [a, b]}:
            return out, a, b
        case {"kind": k, **rest}:
            return out, k, rest


# -- objects of the program's own classes


class Vec:
    def __init__(self, items: Any) -> None:
        self.items = list(items)

    def __add__(self, other: Any) -> Vec:
        return Vec(self.items + other.items)

    def __iadd__(self, x: Any) -> Vec:
        self.items.append(x)
        return self

    def __getitem__(self, i: Any) -> Any:
        return self.items[i]

    def __setitem__(self, i: Any, x: Any) -> None:
        self.items[i] = x

    def __delitem__(self, i: Any) -> None:
        del self.items[i]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Any:
        return iter(self.items)

    def __contains__(self, x: Any) -> bool:
        return any(x == y for y in self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vec) and self.items == other.items

    def __lt__(self, other: Any) -> bool:
        return self.items < other.items

    def __bool__(self) -> bool:
        return bool(self.items)

    def __neg__(self) -> Vec:
        return Vec(reversed(self.items))

    def __str__(self) -> str:
        return "<" + ",".join(map(str, self.items)) + ">"

    def __format__(self, spec: str) -> str:
        return spec + str(self)

    def __call__(self, x: Any) -> Any:
        return self.items.count(x)


@case()
def own_operators(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3) + lmc.gen("y", max_tokens=3)
    a, b = Vec([s["x"]]), Vec([s["y"], "k"])
    c = a + b
    c += s["x"]
    c[1] = "z"
    s += str(c[0]) + c[1]
    return c.items, c == a, c != a, a == Vec([s["x"]]), (-c).items


@case()
def own_container(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    a = Vec([s["x"], "k"])
    out = []
    for item in a:
        out.append(item)
    del a[1]
    first, *rest = Vec([s["x"], "m", "n"])
    return out, len(a), s["x"] in a, "zz" in a, first, rest, bool(a), list(a), a("k")


@case()
def own_text(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    a = Vec([s["x"], "k"])
    s += str(a)
    s += f"{a} {a:>>} {a!s}"
    return str(a)


@case()
def own_truth(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    a = Vec(s["x"].split()[1:])
    if not a:
        return "empty"
    return "full" if a and len(a) > 1 else "one"


class History:
    """What an agent keeps."""

    limit = 3

    def __init__(self, s: Any) -> None:
        self.s = s
        self._turns: list[Any] = []

    @property
    def last(self) -> Any:
        return self._turns[-1] if self._turns else None

    @last.setter
    def last(self, value: Any) -> None:
        self._turns[-1] = value

    @classmethod
    def start(cls, s: Any, text: str) -> History:
        s += text
        return cls(s)

    @staticmethod
    def clean(x: str) -> str:
        return x.strip().lower()

    def turn(self, text: str, /, *, tokens: int = 3) -> Any:
        self.s += text + lmc.gen("turn", max_tokens=tokens)
        self._turns.append(self.clean(self.s["turn"]))
        return self._turns[-1]

    def __call__(self, text: str) -> Any:
        return self.turn(text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("ask_"):
            return lambda: self.turn(name[4:])
        raise AttributeError(name)


@case()
def own_history(s: Any, q: str) -> Any:
    h = History.start(s, q)
    h.turn("one", tokens=2)
    h("two")
    h.last = h.last + "!"
    return h.last, h._turns, h.limit, len(h._turns)


@case()
def own_getattr(s: Any, q: str) -> Any:
    h = History(s)
    return h.ask_name(), h.last


@dataclass(frozen=True)
class Frozen:
    name: str
    value: Any
    more: list[Any] = field(default_factory=list)

    def shown(self) -> str:
        return f"{self.name}={self.value}"

    @property
    def size(self) -> int:
        return len(self.value)


@case()
def own_frozen(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    f = Frozen("x", s["x"])
    g = dataclasses.replace(f, name="y")
    return f.shown(), f.size, f == Frozen("x", s["x"]), g.shown()


@dataclass
class Step:
    thought: str
    action: str = "none"
    seen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thought = self.thought.strip()


@case()
def own_dataclass(s: Any, q: str) -> Any:
    steps = []
    for i in range(2):
        s += f"{i}" + lmc.gen("t", max_tokens=4)
        step = Step(s["t"], action=f"a{i}")
        step.seen.append(s["t"])
        steps.append(step)
    return [(x.thought, x.action, x.seen) for x in steps]


@case()
def own_dataclass_returned(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    return Point(s["x"], [s["x"], 1])


@case()
def own_dataclass_asdict(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    p = Point(s["x"], 2)
    return dataclasses.asdict(p), repr(p), json.dumps(dataclasses.asdict(p))


class Triple(NamedTuple):
    a: Any
    b: Any
    c: Any = "c"

    def joined(self) -> str:
        return self.a + self.b


@case()
def own_named_tuple(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    t = Triple(s["x"], "b")
    a, b, c = t
    return t.a, t[1], t.joined(), a + c, t._replace(b="z").b, t


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"

    @property
    def hex(self) -> str:
        return {"red": "#f00", "blue": "#00f"}[self.value]


@case(backend=by_item(c=["red", "blue", "red"]))
def own_enum(s: Any, q: str) -> Any:
    s += q + lmc.select("c", choices=[c.value for c in Colour])
    colour = Colour(s["c"])
    if colour is Colour.RED:
        return "stop", colour.hex
    return colour.name


@case(backend=by_item(c=["RED", "BLUE", "RED"], d=["blue", "RED", "BLUE"]))
def own_enum_by_name(s: Any, q: str) -> Any:
    s += q + lmc.select("c", choices=[c.name for c in Colour])
    colour = Colour[s["c"]]
    s += colour.hex + lmc.gen("d", max_tokens=4)
    try:
        return Colour[s["d"]].name, colour is Colour.RED
    except KeyError as error:
        return repr(error), colour in (Colour.BLUE,)


@case()
def types_written_inside(s: Any, q: str) -> Any:
    numbers = list[int] | None
    s += q + lmc.gen("x", dtype=Optional[Literal["a", "b"]], max_tokens=6) + lmc.gen("y", dtype=numbers, max_tokens=6)  # noqa: UP045
    if "a" in s["x"]:
        s += lmc.gen("z", dtype=dict[str, int | Literal["z"]], max_tokens=6)
    else:
        s += lmc.gen("z", dtype=list[Literal["u", "v"]], max_tokens=6)
    return str(numbers), numbers == list[int] | None, {list[int]: 1}[list[int]], int | str == str | int, str(str | int)


class Descriptor:
    def __set_name__(self, owner: Any, name: str) -> None:
        self.name = "_" + name

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else getattr(obj, self.name).upper()

    def __set__(self, obj: Any, value: Any) -> None:
        setattr(obj, self.name, value.strip())


class Described:
    text = Descriptor()

    def __init__(self, s: Any, text: Any) -> None:
        self.s, self.text = s, text


@case()
def own_descriptor(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    d = Described(s, s["x"])
    d.text = d.text + "  "
    return d.text


class Slotted:
    __slots__ = ("s", "n")

    def __init__(self, s: Any) -> None:
        self.s, self.n = s, 0

    def go(self) -> Any:
        self.n += 1
        self.s += lmc.gen("x", max_tokens=2)
        return self.s["x"]


class Base:
    def __init__(self, s: Any) -> None:
        self.s = s

    def prompt(self) -> str:
        return "base"

    def run(self) -> Any:
        self.s += self.prompt() + lmc.gen("x", max_tokens=3)
        return self.s["x"]


class Derived(Base):
    def __init__(self, s: Any, extra: str) -> None:
        super().__init__(s)
        self.extra = extra

    def prompt(self) -> str:
        return super().prompt() + self.extra


@case()
def own_inheritance(s: Any, q: str) -> Any:
    return Derived(s, q).run(), Slotted(s).go()


class Cached:
    def __init__(self, s: Any) -> None:
        self.s = s

    @functools.cached_property
    def answer(self) -> Any:
        self.s += lmc.gen("x", max_tokens=3)
        return self.s["x"]


@case()
def own_cached_property(s: Any, q: str) -> Any:
    c = Cached(s)
    return c.answer, c.answer


class Chat:
    """An agent that is used like a container, a number and a text."""

    shared: list[Any] = []
    names = ("a", "b")

    def __init__(self, s: Any, log: Any = None) -> None:
        self.s, self.log = s, [] if log is None else log

    def __getitem__(self, name: Any) -> Any:
        effect("getitem", name)
        return self.s[name] if isinstance(name, str) else self.log[name]

    def __setitem__(self, name: str, prompt: Any) -> None:
        self.s += prompt + lmc.gen(name, max_tokens=3)
        self.log.append(self.s[name])

    def __delitem__(self, i: Any) -> None:
        effect("delete", i)
        del self.log[i]

    def __len__(self) -> int:
        return len(self.log)

    def __iter__(self) -> Any:
        effect("iter")
        return iter(self.log)

    def __contains__(self, x: Any) -> bool:
        return any(x == y for y in self.log)

    def __eq__(self, other: object) -> bool:
        effect("eq")
        return isinstance(other, Chat) and self.log == other.log

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Any) -> bool:
        return len(self) < len(other)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Chat):
            return NotImplemented
        return Chat(self.s, self.log + other.log)

    def __radd__(self, other: Any) -> Any:
        return Chat(self.s, [other, *self.log])

    def __iadd__(self, text: Any) -> Any:
        self.log.append(text)
        return self

    def __neg__(self) -> Any:
        return Chat(self.s, self.log[::-1])

    def __str__(self) -> str:
        return "|".join(self.log)

    def __repr__(self) -> str:
        return f"Chat({self.log!r})"

    def __format__(self, spec: str) -> str:
        return f"{spec}:{self!s}"

    def __call__(self, text: str) -> Any:
        self["call"] = text
        return self.log[-1]

    def __reversed__(self) -> Any:
        return iter(self.log[::-1])


@case()
def own_chat_container(s: Any, q: str) -> Any:
    c = Chat(s)
    c["x"] = q
    c["y"] = "more"
    c("again")
    out = [c["x"], c[0], c[-1], len(c), list(c), [w.upper() for w in c], s["x"] in c, "zz" not in c, sum(1 for _ in c), list(reversed(c))]
    del c[0]
    first, *rest = c
    return out, first, rest, c[: len(c)], tuple(c), ", ".join(c), dict(enumerate(c)), _joined(*c), max(c), sorted(c), list(map(str.upper, c))


@case()
def own_chat_operators(s: Any, q: str) -> Any:
    c, d = Chat(s), Chat(s)
    c["x"] = q
    d["x"] = "k"
    e = c + d
    c += "tail"
    f = "head" + c
    return e.log, c.log, f.log, (-c).log, c == d, c != d, c == 3, c < e, c > e, bool(c), bool(Chat(s)), 1 if not Chat(s) else 2, c == c, (c and 5) or 6


@case()
def own_chat_text(s: Any, q: str) -> Any:
    c = Chat(s)
    c["x"] = q
    s += str(c) + f"{c} {c:>4} {c!r} {c!s:>12}" + repr(c) + format(c, "f")
    return "-".join(map(str, [c, c])), [str(x) for x in (c, 1)]


class Memo:
    shared: list[Any] = []
    total = 0
    made: Any = None

    def __init__(self, s: Any) -> None:
        self.s = s

    def note(self, x: Any) -> int:
        self.shared.append(x)
        Memo.total += 1
        self.s += lmc.gen("n", max_tokens=2)
        return len(self.shared)


def _reset_memo() -> None:
    Memo.shared, Memo.total = [], 0


@case(reset=_reset_memo, outside=lambda: (list(Memo.shared), Memo.total), batch=False)
def own_class_attributes(s: Any, q: str) -> Any:
    m = Memo(s)
    a, b = m.note(q), m.note("k")
    return a, b, m.note(s["n"]), Memo.total, m.total, list(m.shared)


@dataclass
class Kept:
    s: Any
    seen: list[Any] = field(default_factory=list)
    table: dict[str, Any] = field(default_factory=dict)
    limit: int = 2

    def ask(self, t: str) -> Any:
        self.s += t + lmc.gen("x", max_tokens=2)
        self.seen.append(self.s["x"])
        self.table[t] = self.s["x"]
        return len(self.seen)

    @property
    def full(self) -> bool:
        effect("full?")
        return len(self.seen) >= self.limit


@case()
def own_dataclass_with_state(s: Any, q: str) -> Any:
    k = Kept(s)
    while not k.full:
        k.ask(q)
    other = Kept(s, limit=1)
    other.ask("o")
    return k.seen, k.table, other.seen, k.full


class Lazy:
    """Attributes that run code."""

    def __init__(self, s: Any) -> None:
        self.s = s

    def __getattr__(self, name: str) -> Any:
        effect("getattr", name)
        if name.startswith("gen_"):
            self.s += lmc.gen(name, max_tokens=2)
            return self.s[name]
        raise AttributeError(name)

    @functools.cached_property
    def once(self) -> Any:
        effect("once")
        self.s += lmc.gen("once", max_tokens=2)
        return self.s["once"]

    @property
    def length(self) -> int:
        effect("length")
        return len(self.s.text())

    @length.setter
    def length(self, value: Any) -> None:
        effect("set", value)
        self.s += str(value)

    def plain(self) -> str:
        return self.gen_inner + "."


@case()
def own_lazy_attributes(s: Any, q: str) -> Any:
    s += q
    a = Lazy(s)
    out = [a.gen_x, a.once, a.once, a.length, a.plain(), a.gen_x.upper()]
    a.length = 7
    a.length += 1
    a.extra = s["once"]
    return out, a.extra, getattr(a, "extra"), s.text()


@case()
def own_attribute_tests(s: Any, q: str) -> Any:
    s += q
    a = Lazy(s)
    a.extra = 1
    return getattr(a, "extra", None), hasattr(a, "extra"), hasattr(a, "plain"), isinstance(a, Lazy), type(a).__name__, a.__class__ is Lazy


class Countdown:
    def __init__(self, s: Any, n: int) -> None:
        self.s, self.n = s, n

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        self.s += f"{self.n}" + lmc.gen("x", max_tokens=2)
        return self.s["x"]


@case()
def own_iterator(s: Any, q: str) -> Any:
    s += q
    out = []
    for x in Countdown(s, 2):
        out.append(x)
    more = iter(Countdown(s, 2))
    return out, next(more), list(more), next(more, "end"), [a + b for a, b in zip(Countdown(s, 5), "kl")], list(Countdown(s, 1))


# -- star arguments and unpacking


def _joined(*xs: Any, sep: str = "-", **more: Any) -> str:
    return sep.join(xs) + "".join(f"{k}{v}" for k, v in more.items())


def _asks(s: Any, *names: str, sep: str = "-", **more: Any) -> str:
    for n in names:
        s += n + lmc.gen(n, max_tokens=2)
    return sep.join(s[n] for n in names) + "".join(f"{k}{v}" for k, v in more.items())


@case(backend=scripted(x='{"a": "1", "b": "2"}'))
def star_mapping_call(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=60)
    data = json.loads(s["x"])
    return _joined(q, **data), tool(json.dumps({**data, "c": q})), dict(data, d=1), {**data}, {"z": 0, **data}


@case(backend=scripted(x='{"a": "1", "b": "2"}', n="3"))
def star_mapping_helper(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=60)
    return _asks(s, "n", **json.loads(s["x"]))


@case(backend=scripted(x='{"name": "shout", "args": {"x": "hey"}}'))
def tool_call(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=60)
    call = json.loads(s["x"])
    return TOOLS[call["name"]](**call["args"])


@case()
def star_list_call(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    words = s["x"].split()
    return _joined(*words), [*words, *q], (*words, 1), {*words} >= {"q"}, max(*words, "m"), _asks(s, "n", *["m"], sep="+")


@case()
def star_targets(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    first, *middle = s["x"].split()
    *front, last = s["x"]
    (a, b), *c = [(s["x"], 1), 2, 3]
    for k, *v in [(1, s["x"], 3), (4,)]:
        effect(k, v)
    return first, middle, front, last, a, b, c


@case()
def star_target_in_comprehension(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    return [(a, b) for a, *b in [(1, s["x"], 3), (4,)]], [w for w, *_ in map(str.split, [s["x"], "k l"])]


# -- eval, hash, id, is, vars, locals


@case(backend=by_item(x=["1+2", "3*4", "7"]))
def eval_answer(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    return eval(s["x"]), str(eval(s["x"], {"__builtins__": {}}))


@case(backend=by_item(x=["a+2", "b*4", "len(q)"]))
def eval_names(s: Any, q: str) -> Any:
    a, b = 5, 6
    s += q + lmc.gen("x", max_tokens=6)
    return eval(s["x"], {"a": a, "b": b, "q": q, "len": len})


@case(backend=by_item(x=["a+2", "len(L) + 1", "a + sum(i for i in range(b))"]))
def eval_of_variables(s: Any, q: str) -> Any:
    a, b, L = 5, len(q), [1]
    effect("before")
    s += q + lmc.gen("x", max_tokens=30)
    L.append(2)
    return eval(s["x"]), L, sorted(locals())


@case(backend=by_item(x=["1+2", "3*", "zz"]))
def eval_calculator(s: Any, q: str) -> Any:
    def calculate(text: str) -> str:
        try:
            return str(eval(text, {}, {}))
        except Exception as error:
            return f"error: {type(error).__name__}"

    s += q + lmc.gen("x", max_tokens=6)
    return calculate(s["x"])


@case()
def hash_of_text(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    return hash(s["x"]) == hash(str(s["x"])), hash((s["x"], 1)) == hash((s["x"], 1))


@case()
def is_tests(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    v, L = s["x"], [1]
    M = L
    return v is None, v is not None, v is v, L is M, L is not M, [v] == [v], s is s, id(L) == id(M)


@case()
def vars_of_object(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    p = Point(s["x"], 1)
    return vars(p), p.__dict__["x"], sorted(vars(p))


@case()
def format_locals(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    x = s["x"]
    return "{x}-{q}".format(**locals())


# -- functions handed to host code


def _score(row: str, v: str) -> int:
    return sum(c in v for c in row)


@case()
def sorted_by_closure(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    v = s["x"]
    return sorted(["abc", "xyz", "q"], key=lambda r: _score(r, v)), max(outside.STEPS, key=lambda r: _score(r, v))


@case(backend=by_item(x=["b a", "c", "a c"]))
def re_sub_closure(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    table = {"a": "1", "b": q}
    n = 3
    return re.sub("[a-c]", lambda m: table.get(m[0], "?") * n, s["x"]), re.sub("[ab]", lambda m: table[m.group(0)], s["x"])


@case(backend=by_item(x=["hello {a}", "c", "a c"]))
def re_sub_traced_table(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    v = s["x"]
    names = {"a": v, "b": v + "!"}
    return re.sub(r"\{(\w)\}", lambda m: names[m.group(1)], "to {a} and {b}")


@case()
def reduce_partial(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    add = functools.partial(_joined, s["x"], sep="+")
    return functools.reduce(lambda a, b: a + b, [s["x"], "k", q]), functools.reduce(operator.add, [s["x"], "k"]), add("z")


@case()
def map_filter_closure(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    v = s["x"]
    return list(map(lambda w: w + v, v.split())), list(filter(lambda w: w in v, ["a", "b", "e"])), list(map(str.upper, v.split())), list(map(int, "123"))


@case()
def host_calls_closure(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    v = s["x"]
    return outside.apply(lambda a: a + v, "k"), outside.apply(str.upper, v)


@case()
def host_calls_own_function(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    seen = {"n": 0}

    def count(w: str) -> str:
        seen["n"] += 1
        return w + str(seen["n"])

    return [count(w) for w in s["x"].split()], seen


@case()
def sort_in_place_closure(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    words = s["x"].split()
    order = {"a": 1}
    words.sort(key=lambda w: (order.get(w, 9), w), reverse=True)
    mine = [s["x"], "k", "zz"]
    mine.sort(key=len)
    return words, mine, sorted(words, key=str.lower), sorted([{"n": 2}, {"n": 1}], key=operator.itemgetter("n"))


@case()
def closures_kept_by_the_host(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    v, n, fns = s["x"], 1, []
    once = outside.apply(lambda: v + str(n))
    for w in ["a", "b"]:
        fns.append(outside.apply(lambda: lambda: w + v))
    n = 2
    return once, [f() for f in fns], n


@case()
def closures_that_share(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    v, seen, calls = s["x"], [], 0

    def note(m: Any) -> str:
        seen.append(m.group(0))
        effect("note", m.group(0))
        return v + low(m.group(0))

    def low(t: str) -> str:
        return t.lower() if len(t) < 2 else low(t[1:])

    def count(m: Any) -> str:
        nonlocal calls
        calls += 1
        return str(calls)

    out = re.sub("[A-Z]", note, "aBcDD")
    return out, seen, re.compile("[0-9]").sub(lambda m: m[0] * len(v), "a1b2"), re.sub("x", count, "xyx"), calls


@case(reset=outside.reset)
def closure_with_defaults(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    v = s["x"]
    for i in range(2):
        s += outside.apply(lambda a, b=v, n=i: a + b * n, "k")
    return sorted(v.split(), key=lambda w, order=v: order.find(w)), min(v.split(), key=lambda w: (len(w), w)), json.dumps({"a": v}, default=lambda x: v)


@case()
def closure_that_asks(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=6)
    best = max(["k", "l"], key=lambda t: ask(s, t))
    return best, sorted(s["x"].split(), key=lambda w: ask(s, w)), re.sub("k", lambda m: ask(s, m[0]), "ak")


@case()
def counter_and_groups(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    groups = collections.defaultdict(list)
    for w in s["x"].split():
        groups[len(w)].append(w)
    votes = collections.Counter(s["x"])
    return dict(groups), votes.most_common(1), [(k, list(g)) for k, g in itertools.groupby(sorted(s["x"].split()), key=len)]


@case()
def statistics_of_forks(s: Any, q: str) -> Any:
    forks = s.fork(3)
    forks += lambda i: q + str(i) + lmc.gen("x", regex="[0-9]")
    most = statistics.multimode(f["x"] for f in forks)
    most.append("k")
    return statistics.mean(int(f["x"]) for f in forks), statistics.median([int(f["x"]) for f in forks]), most


@case()
def containers_under_a_traced_key(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", regex="[ab]")
    inner, pairs = [q], {"k": [q]}
    table = {s["x"]: inner, "k": pairs}
    inner.append("in")
    table["k"]["k"].append(table[s["x"]][0])
    rows = {(s["x"], k): inner for k in "ab"}
    rows[s["x"], "b"].append("row")
    return table, list(rows.values()), inner, pairs, rows[s["x"], "a"] is inner


def calls_back(fn: Any, *args: Any) -> None:
    fn(*args)


@case()
def methods_of_own_containers_handed_over(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", regex="[ab]")
    rows, table = [q], {"k": [q]}
    calls_back(rows.append, s["x"])
    calls_back(table.update, {"u": rows})
    by = {s["x"]: table["k"].append, "n": rows.append}
    by["n"](len(rows))
    return rows, table


@case()
def methods_of_lists_of_lists(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", regex="[0-2]")
    n, seen = int(s["x"]), {n: n for n in range(3)}
    rows = [[0], [q], [n]]
    rows[n].append(5)
    rows.append([0])
    rows.remove([0])
    try:
        {n, seen[n]}.remove([q])  # no tuple
    except TypeError as error:
        s += str(error)
    try:
        ["k", s["x"]].index(q)
    except ValueError as error:
        s += str(error)
    return rows, rows.count([0]), rows.index([q] if n != 1 else [q, 5])


def fill(x: str, out: list[Any]) -> int:
    out.append(x)
    return len(out)


@case()  # while it is found out which lists are objects of the run
def lists_made_by_operators(s: Any, q: str) -> Any:
    counts, seen, both = [0] * 3, [q] + ["k"], [[]] * 2
    for f in s.fork(3):
        f += q + lmc.gen("x", regex="[0-2]")
        counts[int(f["x"])] += 1
    n = fill(s["y"] if "y" in s else q, seen)
    both[0].append(n)
    seen = seen + [str(c) for c in counts]
    return counts, seen, both, both[0] is both[1], counts is not [0] * 3


# -- identity and mutation


@case()
def groups_by_an_answer(s: Any, q: str) -> Any:
    groups: dict[str, list[str]] = {"0": [], "1": []}
    for f in s.fork(3):
        f += q + lmc.gen("x", regex="[01]") + lmc.gen("y", max_tokens=2)
        groups[f["x"]].append(f["y"])
    s += "; ".join(f"{k}: {', '.join(v)}" for k, v in groups.items())
    return groups


@case()
def cells_by_answers(s: Any, q: str) -> Any:
    rows, kept = [[0] * 3 for _ in range(2)], {"0": {"n": 0}, "1": {"n": 1}}
    for f in s.fork(3):
        f += q + lmc.gen("x", regex="[0-2]") + lmc.gen("y", regex="[01]")
        rows[int(f["y"])][int(f["x"])] += 1
        kept[f["y"]]["n"] += int(f["x"])
    pair = ([q], ["k"])
    pair[int(f["y"])].append(f["x"])
    return rows, kept, pair, [r for r in rows if sum(r) > 1]


@case(backend=scripted(x="[1, 2]", d='{"k": 1}', n="2"))
def lists_within_what_operators_make(s: Any, q: str) -> Any:
    s += q + lmc.gen("x") + lmc.gen("d") + lmc.gen("n")
    inner, x, d, n = [q], json.loads(s["x"]), json.loads(s["d"]), int(s["n"])
    made = x + [inner], [inner] * n, d | {"i": inner}, collections.deque([inner], maxlen=n), max([inner, ["0", n]], key=len)
    inner.append("more")
    made[1][n - 1].append(n)
    return inner, made[:3], list(made[3]), made[1][0] is inner


@case()
def returned_twice(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    L = [s["x"]]
    out = {"a": L, "b": L}
    L.append("k")
    return out["a"] is out["b"], out


@case()
def zip_of_lists_unpacked(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    rows = [w.split("a") for w in s["x"].split()]
    pairs = [["k", s["x"]], ["l", 2]]
    out = []
    for i, (a, b) in enumerate(pairs):
        out.append((i, a, b))
    for (a, b), n in zip(pairs, [1, 2]):
        b = a
        out.append((a, b, n))
    return out, len(rows)


@case(backend=scripted(x='[["a", 1], ["b", 2]]'))
def zip_of_loaded(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=40)
    return [(i, k, v) for i, (k, v) in enumerate(json.loads(s["x"]))], {k: v for k, v in json.loads(s["x"])}, [
        a + str(n) for (a, n), w in zip(json.loads(s["x"]), "kl")]  # fmt: skip


# -- functions


@case()
def recursion(s: Any, q: str) -> Any:
    def split(text: str, depth: int) -> list[str]:
        if depth == 0 or len(text) < 4:
            return [text]
        s.__iadd__(text + lmc.gen("half", max_tokens=4))
        return split(s["half"], depth - 1) + [text[:2]]

    return split(q * 5, 3)


def _expand(s: Any, text: str, depth: int = 2) -> Any:
    s += text + lmc.select("more", choices=["yes", "no"])
    if s["more"] == "no" or not depth:
        return 0
    return 1 + sum(_expand(f, f"{i}", depth - 1) for i, f in enumerate(s.fork(2)))


@case()
def recursion_forks(s: Any, q: str) -> Any:
    return _expand(s, q)


@lmc.function
def _tip(s: Any, about: str, n: int = 2) -> Any:
    s += f"Tip on {about}:" + lmc.gen("tip", max_tokens=n)
    return s["tip"]


def _tips(topics: Any) -> list[Any]:
    return [_tip(about=t)["tip"] for t in topics]


@case()
def sub_programs(s: Any, q: str) -> Any:
    kids = [_tip(about=t) for t in (q, "k")]
    s += " ".join(kid["tip"] for kid in kids)
    return _tips([s["x"] if "x" in s else "l"]), [k.ret_value for k in kids], {t: _tip(t, n=1).ret_value for t in "ab"}


def _keyword(s: Any, a: Any, /, b: Any, *, c: Any = "c", d: Any) -> Any:
    s += a + b + c + d + lmc.gen("x", max_tokens=2)
    return s["x"]


def _remembers(s: Any, x: Any, seen: list[Any] = []) -> Any:  # noqa: B006
    seen.append(x)
    s += lmc.gen("m", max_tokens=2)
    return list(seen)


@case()
def keyword_only(s: Any, q: str) -> Any:
    return _keyword(s, "a", "b", d=q), _keyword(s, "a", b="b", c="z", d=q)


@case(reset=lambda: _remembers.__defaults__[0].clear(), batch=False)
def mutable_default(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    return _remembers(s, q), _remembers(s, s["x"])


def _logged(fn: Any) -> Any:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        effect("before", fn.__name__)
        out = fn(*args, **kwargs)
        effect("after", fn.__name__)
        return out

    return inner


@_logged
def _decorated(s: Any, x: str) -> Any:
    s += x + lmc.gen("x", max_tokens=2)
    return s["x"]


@case()
def decorated_helper(s: Any, q: str) -> Any:
    return _decorated(s, q) + _decorated(s, x="k")


@case()
@_logged
def decorated_program(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    return s["x"]


@case()
def nonlocal_counter(s: Any, q: str) -> Any:
    n, log = 0, []

    def bump(by: int = 1) -> int:
        nonlocal n
        n += by
        log.append(n)
        return n

    for w in ["a", "b"]:
        s += w + lmc.gen("x", max_tokens=2)
        bump(len(s["x"]))
    return n, log


@case()
def walrus_in_comprehension(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    out = [y for w in s["x"].split() if (y := w.strip("aeiou"))]
    n = 0
    while (n := n + 1) < 4 and (last := s["x"][n : n + 1]):
        pass
    return out, n, last, any((hit := w) and "a" in w for w in ["k", s["x"]]), hit


@case()
def loop_else(s: Any, q: str) -> Any:
    s += q
    for i in range(3):
        s += lmc.select("x", choices=["go", "stop"])
        if s["x"] == "stop":
            break
    else:
        s += "all"
    n = 0
    while n < 2:
        n += 1
        if s["x"] == "zzz":
            break
    else:
        n = 9
    return i, n


@case()
def chained_comparisons(s: Any, q: str) -> Any:
    def side(x: Any) -> Any:
        effect("side", x)
        return x

    s += q + lmc.gen("x", max_tokens=8)
    n = len(s["x"])
    return side(1) < side(n) <= side(5) < side(9), 1 < n < 100, "a" <= s["x"] < "z", [w for w in range(9) if 2 < w < n], [
        x for x in range(n if 1 < n < 5 else 2)]  # fmt: skip


@case()
def deletions_and_slices(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    n = len(s["x"])
    L, D = [1, 2, 3, 4, s["x"]], {"a": s["x"], "b": 2}
    del L[0], D["b"]
    L[1:2] = ["k", s["x"]]
    x = 1
    del x
    half = n // 2
    return L, D, s["x"][half:], s["x"][: n - 1], L[n % 2 :], L[::2], s["x"][::-1], "abcdefgh"[n % 3 : half]


@case()
def augmented(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    D, P = {"n": 0, "t": ""}, Point(1)
    D["n"] += len(s["x"])
    D["t"] += s["x"]
    P.x += len(s["x"])
    P.y |= 3
    L = [0, [s["x"]]]
    L[0] -= 2
    L[1] += ["k"]
    t = (1,)
    t += (s["x"],)
    w = s["x"]
    w *= 2
    return D, P.x, P.y, L, t, w


@case()
def formats(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    v, w, n = s["x"], 12, len(s["x"])
    data = {"v": v, "n": n}
    return (
        f"{v!r}|{v:>{w}}|{n:03d}|{n=}|{v[:2]!a:^{n}}", "%s-%03d" % (v, n), "%(v)s and %(n)d" % data, "{v}:{n}".format_map(data), "{0[v]} {1:>8}".format(data, v),
        string.Template("$v!").substitute(data), "{:.2f}%".format(n / 3), f"{data}", f"{[v, n]!r}", str([v]), repr({"k": v}),
    )  # fmt: skip


COUNT = 0


def _reset_count() -> None:
    global COUNT
    COUNT = 0


@case(reset=_reset_count, outside=lambda: COUNT)
def global_statement(s: Any, q: str) -> Any:
    global COUNT
    s += q + lmc.gen("x", max_tokens=2)
    COUNT += 1
    COUNT = COUNT + len(s["x"])
    return COUNT


@case()
def asserts_and_annotations(s: Any, q: str) -> Any:
    x: str = q
    y: int
    s += x + lmc.gen("x", max_tokens=2)
    assert s["x"] is not None, "no answer"
    y = len(s["x"])
    assert isinstance(y, int)
    return y


@case()
def print_to_file(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=2)
    out = io.StringIO()
    print("got", s["x"], file=out, sep="-", end="!")
    print([s["x"]], {"k": s["x"]}, file=out)
    return out.getvalue()


@case()
def traced_keys(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    words = s["x"].split()
    lengths = {w: len(w) for w in words}
    seen = {w[0] for w in words}
    D: dict[str, Any] = {}
    D[s["x"]] = 1
    D.setdefault(s["x"] + "k", []).append(2)
    cache = {s["x"]: "hit"}
    return lengths, seen == set(w[0] for w in words), D, cache.get(s["x"]), cache.get("zz", "miss"), s["x"] in cache, list(lengths.items())


@case()
def dict_methods(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    D = {"a": s["x"], "b": [1]}
    D.update(c=s["x"], d=2)
    D.update({"e": s["x"]})
    D |= {"f": 1}
    for k, v in D.items():
        effect(k, v)
    return list(D), list(D.values()), D.pop("a"), D.get("zz"), D.get(s["x"], "no"), "a" in D, len(D), D | {"g": 1}, sorted(D, key=str), dict(
        sorted(D.items())), {v: k for k, v in {"k": s["x"]}.items()}  # fmt: skip


@case()
def list_methods(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    L = [s["x"], "k", 3]
    L.append(s["x"])
    L.extend(w for w in ["a", s["x"]])
    L.insert(1, "i")
    L.remove("k")
    return L, L.count(s["x"]), L.index(3), s["x"] in L, L[-1], L * 2, L[::-1], list(reversed(L)), L + ["z"], len(L), L.pop(), L.copy() == L, L == [s["x"]]


@case()
def set_methods(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    seen = set()
    out = []
    for w in [q, s["x"], q, "k"]:
        if w not in seen:
            seen.add(w)
            out.append(w)
    return out, len(seen), seen == {q, s["x"], "k"}, sorted(seen), seen & {"k"}, seen | {"m"} == {*seen, "m"}


@case()
def text_methods(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    v = s["x"]
    head, sep, tail = v.partition(" ")
    return head, sep, tail, v.split(" ", 1), v.splitlines(), v.title(), v.find("a"), v.center(20, "*"), v.encode(), v.translate({97: "b"}), "-".join(v), [
        ord(c) for c in v[:3]], v * 2, v > "m", sorted(v), list(v), set(v) == set(list(v)), tuple(v), v.strip().lower().replace(" ", "_").isidentifier()  # fmt: skip


@case(backend=by_item(x=["12", "7.5", "-3"]))
def numbers(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    n = float(s["x"])
    total = 0
    for _ in range(min(int(n), 3)):
        total += n
    return n, round(n), int(n), divmod(n, 2), abs(-n), n**2, -n, n // 2, n % 3, total, max(n, 3), sum([n, 1]), str(n), bool(n), pow(2, int(n) % 4), n if n > 5 else 0


@case(backend=scripted(x='{"a": [1, 2, {"b": "c"}], "d": "e"}'))
def json_walk(s: Any, q: str) -> Any:
    def walk(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: walk(v) for k, v in x.items()}
        if isinstance(x, list):
            return [walk(v) for v in x]
        return str(x).upper()

    s += q + lmc.gen("x", max_tokens=90)
    return walk(json.loads(s["x"]))


@case(backend=scripted(x="Action: search[cats and dogs]\nThought: done"))
def parse_action(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=90)
    m = re.search(r"Action: (\w+)\[(.*?)\]", s["x"])
    if m is None:
        return "none"
    name, arg = m.groups()
    if m := re.match("(?P<k>.*):", s["x"]):
        effect(m["k"], m.span())
    lines = [line.split(":", 1) for line in s["x"].splitlines() if ":" in line]
    return name, arg, {k.strip(): v.strip() for k, v in lines}, [m.group(0) for m in re.finditer("[A-Z]", s["x"])]


@case()
def conditional_lambda(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    table = {"short": lambda x: x[:1], "long": lambda x: x + x}
    fn = table["short" if len(s["x"]) > 2 else "long"]
    fns = [lambda x, i=i: x * i for i in range(3)]
    return fn(s["x"]), [f(s["x"]) for f in fns], (lambda *a, **k: (a, k))(1, z=s["x"])


@case()
def queue_loop(s: Any, q: str) -> Any:
    s += q
    queue, done = [q, "k"], []
    while queue:
        item = queue.pop(0)
        s += item + lmc.select("x", choices=["more", "done"])
        done.append((item, s["x"]))
        if s["x"] == "more" and len(done) < 4:
            queue.append(item + "+")
    return done


@case()
def deque_heap(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    d = collections.deque([s["x"]], maxlen=2)
    d.append("k")
    d.appendleft(q)
    return list(d), len(d), d[0]


@case()
def globals_star_import(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=3)
    import math
    from os.path import basename

    return math.floor(len(s["x"]) / 2), basename("a/" + s["x"]), math.pi


@case()
def inner_class(s: Any, q: str) -> Any:
    class Node:
        kind = "n"

        def __init__(self, text: str, children: Any = ()) -> None:
            self.text, self.children = text, list(children)

        def depth(self) -> int:
            return 1 + max((c.depth() for c in self.children), default=0)

    s += q + lmc.gen("x", max_tokens=3)
    tree = Node(s["x"], [Node("a"), Node("b", [Node(s["x"])])])
    return tree.depth(), tree.text, [c.text for c in tree.children], Node.kind


@case()
def try_parse(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=8)
    words = s["x"].split()
    score = {"a": 1}.get(words[0] if words else "", 0)
    return score or len(words) or "none"


@case(items=[{"docs": [{"id": 1, "t": "a"}, {"id": 2, "t": "b"}]}, {"docs": [{"id": 3, "t": "c"}]}, {"docs": []}])
def argument_documents(s: Any, docs: Any) -> Any:
    for d in docs:
        s += f"[{d['id']}] {d['t']}\n"
    for i, d in enumerate(docs):
        d["s"] = i
    s += lmc.gen("x", max_tokens=3)
    return {d["id"]: s["x"] for d in docs}, sorted(docs, key=lambda d: -d["id"])[:1], [d["t"] for d in docs if d["id"] > 1]


@case(items=[{"p": Point("a", [1, 2])}, {"p": Point("b", [])}, {"p": Point(3, None)}])
def argument_dataclass(s: Any, p: Any) -> Any:
    s += str(p.x) + lmc.gen("x", max_tokens=3)
    if p.y:
        s += str(p.y[0])
        p.y.append(s["x"])
    return p.x, p.y


@case(items=[{"cfg": {"n": 2, "names": ["a", "b"], "p": {"t": "x"}}}, {"cfg": {"n": 0, "names": [], "p": {"t": "y"}}}])
def argument_nested(s: Any, cfg: Any) -> Any:
    for i in range(cfg["n"]):
        s += cfg["names"][i] + lmc.gen("x", max_tokens=2, temperature=0)
    return cfg.get("zz", cfg["p"]["t"]), len(cfg["names"]), cfg["n"] > 1 and "b" in cfg["names"], list(cfg), {**cfg["p"], "k": 1}


# -- what super() finds, and the order in which targets are stored


class _Asker:
    def __init__(self, s: Any) -> None:
        self.s, self.seen = s, []

    def run(self) -> int:
        self.s += "A" + lmc.gen("x", max_tokens=2)
        self.seen.append(self.s["x"])
        return 1

    @property
    def last(self) -> str:
        return self.s["x"]

    def __call__(self, x: str) -> str:
        self.s += x
        return x


class _Loud(_Asker):
    def run(self) -> int:
        return super().run() + 1

    @property
    def last(self) -> str:
        return super().last + "!"

    def __call__(self, x: str) -> str:
        return super().__call__(x + "?")


class _Louder(_Loud):
    def run(self) -> int:
        return super(_Loud, self).run() + super(_Louder, self).run()


@case()
def super_of_a_class_that_asks(s: Any, q: str) -> Any:
    loud, louder = _Loud(s), _Louder(s)
    s += q
    return loud.run(), loud.last, loud(q), louder.run(), louder.seen, loud.seen


class _Logs:
    def log(self, x: str) -> None:
        self.logs.append(x)  # type: ignore[attr-defined]

    @classmethod
    def make(cls, x: str) -> Any:
        made = cls()
        made.x = x  # type: ignore[attr-defined]
        return made

    @staticmethod
    def twice(x: str) -> str:
        return x * 2


class _Left(_Logs):
    def log(self, x: str) -> None:
        super().log("L" + x)


class _Right(_Logs):
    def log(self, x: str) -> None:
        super().log("R" + x)


class _Agent(_Left, _Right):
    def __init__(self, s: Any = None) -> None:
        super().__init__()
        self.logs, self.s = [], s

    def log(self, x: str) -> None:
        super().log(f"[{super().twice(x)}]")

    @classmethod
    def make(cls, x: str) -> Any:
        return super().make(x + "k")


@case()
def super_through_mixins(s: Any, q: str) -> Any:
    agent = _Agent(s)
    agent.s += q + lmc.gen("a", max_tokens=3)
    agent.log(s["a"])
    before = super(_Left, agent).log
    before(q)
    return agent.logs, _Agent.make(s["a"]).x


class _Cell:
    def __init__(self, v: str) -> None:
        self.v, self.next = v, None


@case()
def targets_are_stored_from_left_to_right(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=6)
    found = [s["a"], "z", q]
    i = 0
    found[i], i = i, 1
    found[i], i, *rest = [s["a"], 2, 5, 6]
    (found[i], (i, *more)) = ("w", (0, 9, 9))
    found[i], i, found[i] = 9, 2, 8
    for found[i], i in [(5, 1), (s["a"], 2)]:
        pass
    return found, i, rest, more


@case()
def a_linked_list_is_turned_round(s: Any, q: str) -> Any:
    s += q + lmc.gen("a", max_tokens=6)
    first, second, third = _Cell(s["a"]), _Cell("b"), _Cell(q)
    first.next, second.next = second, third
    previous, current = None, first
    while current is not None:
        current.next, previous, current = previous, current, current.next
    out = []
    while previous is not None:
        out.append(previous.v)
        previous = previous.next
    return out


CASES = cases(globals())
@pytest.mark.parametrize("name", CASES)
def test_means_the_same(name: str) -> None:
    CASES[name].check()
