"""Classes of the program: dataclasses, inheritance, properties, operators and other methods that Python calls."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import lmc
from lmc import gen
from tests.conformance.harness import Case, case, effect
from tests.conformance.outside import tool
from tests.conformance.shared import ask, by_name, child, number

ITEMS = [{"q": q} for q in ("a", "bee gee", "c", "d")]  # answers that sort in several orders


@case(ITEMS)
def dataclasses_of_the_program(s, q):
    @dataclass(order=True)
    class Draft:
        score: int
        text: str = ""
        state: Any = dataclasses.field(default=None, compare=False, repr=False)

        def ask(self):
            self.state += gen("y", max_tokens=1)
            return self.state["y"]

    @dataclass
    class Long(Draft):
        rows: list = dataclasses.field(default_factory=list)

    @dataclass(eq=False)
    class Plain:
        x: int

    s += q
    drafts = []
    for i, f in enumerate(s.fork(3)):
        f += f"{i}" + gen("x", max_tokens=3)
        drafts.append(Draft(len(f["x"]) % 3, f["x"], f))
    best, long = max(drafts), Long(drafts[0].score, "long", s, [q])
    effect("best", best.ask(), repr(best), f"{long} {drafts[0]!r} {long!s}", repr(Plain(3)))
    falling = sorted(drafts, reverse=True)
    drafts.sort()
    try:
        long < 3  # noqa: B015
    except TypeError as error:
        s += str(error)
    same = Draft(best.score, best.text)
    return (
        [d.score for d in falling], drafts[0] <= drafts[1], best == same, best != same, same in drafts, Draft(9) in drafts, Draft(9) not in drafts,
        long == Long(long.score, "long", None, [q]), long == best, Plain(1) == Plain(1), drafts[-1] > drafts[0],
    )  # fmt: skip


@case(backend=by_name)
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


@dataclass
class Dice:
    numbers: random.Random = field(default_factory=lambda: random.Random(5))
    rolls: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    count: int = field(init=False, default=0)

    def roll(self, who: str) -> int:
        self.count += 1
        self.rolls[who].append(self.numbers.randrange(100))
        return self.rolls[who][-1]


@case(backend=by_name)
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


@case(reset=_none_made, outside=lambda: [c.made for c in (Step, Asking, Scoring, Chain)], batch=False, backend=by_name)
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


@case([{"q": q} for q in "abcdefgh"], backend=by_name)
def chat_object(s, q):
    with Chat(s, q) as chat:
        chat("hello")
        chat("again" + chat.first)
        if chat[1] > "t1 5":
            raise LookupError("swallowed")
        effect("not raised")
    return chat.turns, chat.first


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


@case(backend=by_name)
def operators_with_effects(s, q):
    store = Store(a="1", b="2")
    with store as first, Store(c="3") as second:
        s += f"{q}{first:spec}{first.title}" + gen("a", max_tokens=2)
        found = [*first], "a" in first, first["b"], len(first), min(second, first) is second, first.title
        both = first + second
    return found, both["c"], list(zip(store, second, strict=False)), 1 if both else 2


class Box:
    def __init__(self, s: Any, x: Any) -> None:
        self.s, self._x = s, x

    @property
    def x(self) -> Any:
        effect("get")
        return self._x

    @x.setter
    def x(self, value: Any) -> None:
        effect("set", value)
        self._x = value

    def __eq__(self, other: object) -> bool:
        effect("eq")
        return isinstance(other, Box)

    def __hash__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        effect("bool")
        return True

    def __getitem__(self, i: int) -> Any:
        effect("item", i)
        return [self._x, 1][i]

    def __iter__(self) -> Any:
        effect("iter")
        return iter([1, 2])

    def __add__(self, other: Any) -> str:
        effect("add")
        return f"+{other}"

    def __str__(self) -> str:
        effect("str")
        return "box"

    def __call__(self, q: str) -> str:
        self.s += q + lmc.gen("c", max_tokens=2)
        return self.s["c"]

    def __enter__(self) -> Any:
        effect("enter")
        return self

    def __exit__(self, *args: Any) -> None:
        effect("exit")

    def __len__(self) -> int:
        effect("len")
        return 2


def taken_apart(x: Any, y: Any) -> Any:
    return x


USES = {
    "property": lambda b: b.x,
    "setter": lambda b: setattr(b, "x", 3),
    "eq": lambda b: b == b,
    "in": lambda b: b in [1, b],
    "bool": lambda b: bool(b),
    "item": lambda b: b[0],
    "iter": lambda b: [x for x in b],
    "list": lambda b: list(b),
    "add": lambda b: b + 1,
    "str": lambda b: str(b),
    "format": lambda b: f"{b}",
    "len": lambda b: len(b),
    "unpack": lambda b: taken_apart(*b),
    "not": lambda b: not b,
    "or": lambda b: (b or 1) is b,
    "hasattr": lambda b: hasattr(b, "x"),
    "getattr": lambda b: getattr(b, "x", 0),
    "any": lambda b: any(b),
    "join": lambda b: ",".join(map(str, b)),
    "max": lambda b: max([b], default=0) is b,
    "sum": lambda b: sum(b),
    "percent": lambda b: "%s" % b,
    "sorted": lambda b: sorted(b),
    "call": lambda b: b("t"),
    "if": lambda b: 1 if b else 2,
    "print": lambda b: print(b),
    "dict": lambda b: {b: 1}[b],
}


def uses_of_a_box(use: str, fn: Callable[[Box], Any]) -> Case:
    @case([{"q": "a"}])
    def called_by_python(s, q):
        s += q + gen("x", max_tokens=3)
        box = Box(s, s["x"])
        return repr(fn(box)) if use != "max" else fn(box)

    return called_by_python


CALLED_BY_PYTHON = {f"python_calls_{use}": uses_of_a_box(use, fn) for use, fn in USES.items()}


WITHOUT_SOURCE: dict[str, Any] = {"__name__": __name__}
exec("class Registry:\n def __init__(self): self.found = {}\n def on(self, n): return lambda f: self.found.setdefault(n, []).append(f) or f", WITHOUT_SOURCE)
Registry = WITHOUT_SOURCE["Registry"]


@case(journal="refused")
def objects_of_a_class_without_source(s, q):
    registry = Registry()
    registry.on("go")(lambda x: x + q)
    s += q + gen("x", max_tokens=3)
    return [fn(s["x"]) for fn in registry.found["go"]]


class OfItsOwnModule(type):
    """As classes of C extensions have it."""

    __module__ = property(lambda cls: "elsewhere")  # type: ignore[assignment]


class Elsewhere(metaclass=OfItsOwnModule):
    pass


ELSEWHERE = Elsewhere()


@case()
def objects_whose_class_has_a_class_with_a_module_of_its_own(s, q):
    s += q + gen("x", max_tokens=3)
    (f,) = s.fork(1)
    f += str(ELSEWHERE is None) + gen("y", max_tokens=3)
    return s["x"], f["y"], isinstance(ELSEWHERE, Elsewhere)


class Positive:
    """A descriptor that refuses other numbers."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, x: Any, owner: type) -> int:
        return getattr(x, self.name)

    def __set__(self, x: Any, value: int) -> None:
        if value <= 0:
            raise ValueError(self.name)
        setattr(x, self.name, value)


class Budget:
    tokens = Positive()

    def __init__(self) -> None:
        self._calls, self.tokens = 2, 3

    @property
    def calls(self) -> int:
        return self._calls

    @calls.setter
    def calls(self, value: int) -> None:
        if value < 0:
            raise LookupError(value)
        self._calls = value


@case(backend=by_name)
def attributes_set_by_code(s, q):
    budget, forks, refused = Budget(), [], []
    while len(forks) < 9:
        (f,) = s.fork(1)
        f += f"{q} {budget.calls} {budget.tokens}" + lmc.gen("a", max_tokens=2)
        forks.append(f)
        try:
            budget.calls -= 1
            budget.tokens -= 2
        except ValueError as error:
            refused.append(str(error))
            budget.tokens += 3
        except LookupError:
            break
    return [f["a"] for f in forks], refused


class Named:
    def __get__(self, x: Any, owner: type) -> str:
        return "class"


class Desk:
    label = Named()


@lmc.host
def relabel(desk: Any) -> None:
    vars(desk)["label"] = "object"


@case(backend=by_name)
def attributes_that_other_code_sets_before_descriptors(s, q):
    desk, found = Desk(), []
    relabel(desk)
    for i in range(3):
        (f,) = s.fork(1)
        f += f"{q} {i} {desk.label}" + lmc.gen("a", max_tokens=2)
        found.append(f["a"])
    return found


class Shelf:
    """Has room for two, and a method that lets no evaluation look into its objects."""

    room = 2

    def __setitem__(self, at: str, x: Any) -> None:
        if not self.room:
            raise LookupError(at)
        self.room -= 1

    def __delattr__(self, name: str) -> None:
        raise AttributeError(name)


@case(backend=by_name)
def items_that_code_refuses(s, q):
    shelf, forks = Shelf(), []
    while len(forks) < 9:
        (f,) = s.fork(1)
        f += f"{q} {len(forks)}" + lmc.gen("a", max_tokens=2)
        forks.append(f)
        try:
            shelf["last"] = q
        except LookupError:
            break
    return [f["a"] for f in forks]
