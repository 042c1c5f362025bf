"""Programs as users write them that once meant something else when they were compiled, or were not compiled without need."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import datetime
import enum
import functools
import heapq
import json
import operator
import re
import string
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator

import lmc
from lmc import gen, user

from .harness import Case, case, cases, effect, opaque, scripted

ITEMS = [{"q": q} for q in ("a", "bee gee", "c", "d")]  # answers that sort in several orders


def size(xs: list[Any]) -> int:
    effect("size", xs)
    return len(xs)


def weight(x: str) -> str:
    effect("weight", x)
    return x


@case(ITEMS)
def sorted_by_a_tool_then_left(s, q):
    s += q + gen("x", max_tokens=4)
    found = sorted([s["x"], "n", "c"], key=lambda w: weight(w))
    s += str(size(found))
    opaque(s)


@case(ITEMS)
def sorted_by_a_tool_then_raises(s, q):
    s += q + gen("x", max_tokens=4)
    found = sorted([s["x"], "n", "c"], key=lambda w: weight(w))
    size(found)
    found += missing  # type: ignore[name-defined]  # noqa: F821


@case(ITEMS)
def sorted_in_place_by_a_tool_then_left(s, q):
    s += q + gen("x", max_tokens=4)
    found = [s["x"], "n", "c"]
    found.sort(key=lambda w: weight(w))
    s += str(size(found))
    opaque(s)


@case(ITEMS)
def lists_of_calls_then_left(s, q):
    s += q + gen("x", max_tokens=4)
    found = [list(weight(w) for w in (s["x"], "n")), list(map(weight, (s["x"], "c"))), set(weight(w) for w in (s["x"], "c"))]
    s += str([size(sorted(one)) for one in found])
    opaque(s)


@case(backend=scripted(x="$name is $$5"))
def keyword_arguments_of_any_name(s, q):
    s += q + gen("x")
    s += string.Template(s["x"]).safe_substitute(name=q, fn="f", owner="o")
    s += "{name} {fn} {owner} {error}".format(name=s["x"], fn=q, owner=1, error=2)
    s += str(dict(name=s["x"], fn=q, owner=size([s["x"]])))


@case(backend=scripted(x="2024-02-28"))
def class_methods_of_builtin_types(s, q):
    s += q + gen("x")
    day = datetime.date.fromisoformat(s["x"])
    s += f"{day:%d.%m.}" + str(int.from_bytes(s["x"].encode()[:2], "big")) + str(dict.fromkeys(s["x"][:2])) + str(Decimal.from_float(float(s["x"][:4])))
    if day > datetime.date(2024, 1, 1):
        s += gen("late")


@case(backend=scripted(x="b=2;a=1"))
def getters_that_the_program_makes(s, q):
    s += q + gen("x")
    pairs = [p.split("=") for p in s["x"].split(";")]
    s += str(sorted(pairs, key=operator.itemgetter(1))) + str(sorted(pairs, key=operator.itemgetter(0), reverse=True))
    upper, ends = operator.methodcaller("upper"), operator.itemgetter(0, -1)
    s += upper(s["x"]) + "".join(ends(s["x"])) + operator.attrgetter("real.imag")(len(s["x"])).__str__()
    if pairs[0][0] == "b":
        s += gen("more")


class Alike:
    """Equals everything, under a hash of its own."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 12345


def alike(x: str) -> Alike:
    effect("alike", x)
    return Alike()


def spoil(xs: list[Any]) -> None:
    effect("spoil", xs)
    xs.append(7)
    xs.insert(0, None)


@case()
def constants_that_are_equal_and_print_differently(s, q):
    s += q + gen("x", max_tokens=2)
    for one in ((1, 2), (True, 2), (1.0, 2), (0.0,), (-0.0,), ((1,),), ((True,),), range(0, 3, 2), range(0, 4, 2), frozenset({1}), frozenset({True})):
        effect("one", repr(one))
        s += str(size([one])) + f"{(one, s['x'])}"
    n = len(s["x"])
    return (1, q), (True, q), n * 1, n * 1.0, n * True, n * -0.0, repr({(1,): q}), repr({(True,): q})


@case(ITEMS[:2], batch=False)
def lists_of_text_with_something_else(s, q):
    s += q + gen("x", max_tokens=4)
    one, two, three = s["x"].split(), s["x"].split(), list(s["x"])
    one.append(3)
    one.insert(0, None)
    spoil(two)
    three[0] = 1
    also = one
    also += [2.5]
    for row in (one, two, [*three, 1]):
        for w in row:
            s += f"[{w}]{isinstance(w, str)}{w is None}{w == 7}{type(w).__name__}"
    held = {"k": s["x"].split()}
    for w in held["k"]:
        s += f"{w}{isinstance(w, int)}"
        if len(held["k"]) < 4:
            held["k"].append(len(held["k"]))
    return one, two, three, held


@case(ITEMS)
def lists_of_text_stay_lists_of_text(s, q):
    s += q + gen("x", max_tokens=4)
    words = s["x"].split()
    words.append(q)
    words.insert(0, "first")
    words.sort()
    words.reverse()
    return [w.upper() for w in words], words.pop(), "-".join(words), len(words)


@case(ITEMS)
def what_re_gives_is_not_always_text(s, q):
    s += q + gen("x", max_tokens=4)
    for w in re.split("(a)|(e)", s["x"]):
        s += f"[{w}]{w is None}{isinstance(w, str)}"
    raw = s["x"].encode()
    return re.sub(b"a", b"o", raw), re.escape(raw), [isinstance(p, bytes) for p in re.split(b" ", raw)], f"{re.sub(b'a', b'', raw)}", re.split(" ", s["x"])


@case()
def sets_and_dicts_look_by_hash(s, q):
    s += q + gen("x", max_tokens=2)
    row, other = json.loads(json.dumps([s["x"]])), alike(q)
    for look in (lambda: row in {"a", "b"}, lambda: row not in {"a"}, lambda: row in {"a": 1}, lambda: row in {"a": 1}.keys()):
        try:
            s += str(look())
        except TypeError as error:
            s += str(error)
    return other in {"a", "b"}, other in {"a": 1}, other in ["a"], other not in {"a": 1}, s["x"] in {"a", s.text()}


@case()
def builtins_that_refuse(s, q):
    s += q + gen("x", max_tokens=2)
    a = [s["x"], "b"]
    refused = [
        lambda: sum(a, ""), lambda: dict([("a", s["x"], 3)]), lambda: a.pop(index=0), lambda: max(a, "b", default=3), lambda: max(5), lambda: max(),
        lambda: max([]), lambda: functools.reduce(lambda x, y: x + y + s["x"], []), lambda: list(zip(a, 5)), lambda: min([*a, None]), lambda: set(5),
    ]  # fmt: skip
    for refuse in refused:
        try:
            s += str(refuse())
        except (TypeError, ValueError) as error:
            s += f"{type(error).__name__}: {error}"
    return a


@case()
def sums_and_numbers_from_a_start(s, q):
    s += q + gen("x", max_tokens=2)
    n, nothing = len(s["x"]), []
    return sum([n, 0.5, True]), sum([[n], [q]], []), sum((n, n), n), sum([], nothing) is nothing, list(enumerate("ab", n)), list(enumerate([q], start=n))


@case(ITEMS)
def maxima_call_tools_in_between(s, q):
    s += q + gen("x", max_tokens=4)
    s += max((weight(w) for w in (s["x"], "n", q)), key=lambda w: (size([w]), w))
    opaque(s)


@case(ITEMS)
def maxima_that_cannot_be_compared(s, q):
    s += q + gen("x", max_tokens=4)
    try:
        max((0, 1, 2), key=lambda i: [weight(s["x"]), 1, size([i])][: i + 1][-1])
    except TypeError as error:
        s += str(error)
    opaque(s)


@case(ITEMS)
def called_until_it_gives_something(s, q):
    asked = 0

    def ask():
        nonlocal asked
        asked += 1
        s.__iadd__(q + gen("x", max_tokens=1))
        return s["x"][:1] if asked < 4 else "end"

    s += "".join(x for x in iter(ask, "end")) + str(list(iter(lambda: s["x"], s["x"])))


@case(ITEMS)
def called_until_it_gives_something_then_left(s, q):
    asked = []

    def ask():
        asked.append(weight(q))
        s.__iadd__(q + gen("x", max_tokens=1))
        return s["x"][:1] if len(asked) < 3 else "end"

    for x in iter(ask, "end"):
        s += x + weight(x)
    opaque(s)


class Meter:
    """An object of the outside that is another one whenever somebody looks, and a key by code of its own."""

    n = 0

    @property
    def now(self) -> int:
        self.n += 1
        effect("now", self.n)
        return self.n

    @property
    def ask(self) -> Any:
        return f"{self.n}" + gen("y", max_tokens=self.n % 2 + 1)

    def tick(self) -> int:
        self.n += 1
        return self.n

    def __iter__(self) -> Any:
        effect("iter", self.n)
        while True:
            self.n += 1
            yield self.n

    def __hash__(self) -> int:
        effect("hash")
        return 5

    def __eq__(self, other: object) -> bool:
        effect("eq")
        return isinstance(other, Meter)

    def __call__(self, x: str) -> str:
        effect("call", x)
        return x + str(self.tick())


class Ticks:
    """Gives what it gives once."""

    def __iter__(self) -> Any:
        effect("ticks")
        return (str(METER.tick()) for _ in range(3))


METER, TICKS = Meter(), Ticks()


def new_meter() -> None:
    METER.n = 0


OUTSIDE: dict[str, Any] = {"reset": new_meter, "outside": lambda: METER.n, "batch": False}  # items of a batch would share it


@case(**OUTSIDE)
def properties_of_the_outside(s, q):
    effect("first")
    METER.now
    s += q + METER.ask + gen("x", max_tokens=2)
    n = METER.tick()
    s += METER.ask + METER(s["x"])
    effect("last", METER.now)
    return n, METER.now, s["y"]


@case(**OUTSIDE)
def properties_of_the_outside_then_left(s, q):
    s += q + str(METER.now) + METER.ask
    s += str(METER.tick()) + METER.ask
    opaque(s)
    s += str(METER.now) + METER.ask


@case(**OUTSIDE)
def keys_with_code(s, q):
    d = {METER: q}
    effect("made")
    s += q + gen("x", max_tokens=2)
    d[METER] = s["x"]
    effect("stored")
    s += d[METER] + str(len({METER, METER}))
    return METER in d, d.get(METER), len({q: 1, METER: 2})


@case(**OUTSIDE)
def stars_of_the_outside_then_left(s, q):
    s += q + gen("x", max_tokens=2)
    found = [*TICKS]
    opaque(s)
    return found


@case(**OUTSIDE)
def unpacking_takes_no_more_than_it_needs(s, q):
    s += q + gen("x", max_tokens=2)
    try:
        a, b = METER
    except ValueError as error:
        s += str(error)
    return METER.n


@case()
def lists_that_reading_makes(s, q):
    s += user(q) + gen("x", max_tokens=2, n=2, temperature=0.9)
    a, b = s.fork(2)
    a["x"].append("a")
    b["x"].append("b")
    s["x"].reverse()
    metas, messages = s.get_meta_info("x"), s.messages()
    metas.append({})
    messages.append("more")
    messages[0]["role"] = "other"
    s += f"{len(s.get_meta_info('x'))} {s.messages()} {s['x'] is s.get_var('x')}"
    return a["x"], b["x"], s["x"], metas, messages


@case()
def lists_that_reading_makes_then_left(s, q):
    s += user(q) + gen("x", max_tokens=2, n=2, temperature=0.9)
    found, messages = s["x"], s.messages()
    found.append(q)
    messages.append(q)
    messages[0]["role"] = "other"
    opaque(s)
    s["x"].append("later")
    return found, messages, s.messages(), found is s["x"]


@case(ITEMS)
def iterators_that_the_program_makes(s, q):
    s += q + gen("x", max_tokens=2)
    d = {"a": s["x"], "b": q}
    back, items, values, numbers = reversed(d), iter(d.items()), iter(d.values()), iter(range(3))
    first = next(items), next(values), next(numbers), next(reversed(d.items())), next(iter({q}))
    rest = iter([q, "b", "c"])
    s += gen("y", max_tokens=1)
    return list(back), list(items), [*values], list(numbers), first, "b" in rest, next(rest, "none")


@case(ITEMS)
def one_instance_of_a_class(s, q):
    class One:
        it: Any = None

        def __new__(cls, *args):
            if cls.it is None:
                cls.it = super().__new__(cls)
            return cls.it

        def __init__(self, x):
            self.x = x

    s += q + gen("x", max_tokens=2)
    return One(q) is One(s["x"]), One.it.x


@case(ITEMS)
def numbers_that_are_none(s, q):
    s += q + gen("x", max_tokens=1)
    nan, n = float("nan"), len(s["x"])
    if "a" in s["x"]:
        s += str(nan * n)
    return nan == n, n in [nan, n], str([nan, n]), max(n, 0.5), str(-0.0 * n)


@case()
def exceptions_of_the_programs_own_classes(s, q):
    class Refused(Exception):
        def __init__(self, why, times=2):
            super().__init__(why)
            self.times = times

        def __str__(self):
            return self.args[0] * self.times

    s += q + gen("x", max_tokens=2)
    try:
        raise Refused(s["x"], times=3)
    except (KeyError, Refused) as error:
        s += str(error)


@case()
def exceptions_of_the_programs_own_classes_then_left(s, q):
    class Refused(Exception):
        count = 0

        def __init__(self, why, times=2):
            super().__init__(why)
            self.times = times

        def twice(self):
            return self.args[0] * self.times

    class Late(Refused, ValueError):
        pass

    def refuse(cls):
        raise cls(s["x"])

    s += q + gen("x", max_tokens=2)
    for handled in (Refused, (KeyError, Late)):
        try:
            refuse(Late)
        except handled as error:
            s += error.twice()
    kept = Refused(q)
    opaque(s)
    Refused.count += 1
    try:
        raise kept
    except Refused as error:
        s += error.twice() + str(type(error) is Refused)
    return Refused.count, isinstance(kept, Late), Late.count


@case()
def own_classes_of_builtin_types(s, q):
    s += q + gen("x", max_tokens=2)

    class Filled(dict):
        def __missing__(self, key):
            return f"<{key}{s['x']}>"

    s += "{x}{other}".format_map(Filled({"x": q}))


class City(BaseModel):
    name: str
    people: int
    twins: list[str] = []

    @field_validator("people")
    @classmethod
    def some(cls, people: int) -> int:
        effect("checked", people)
        return people


@case([{"q": "5"}, {"q": "no"}])
def models_that_refuse(s, q):
    s += q + gen("x", max_tokens=2)
    city = City(name=s["x"], people=2)
    city.twins.append(q)
    try:
        s += City(name=s["x"], people=q).model_dump_json()
    except ValidationError as error:
        s += f"{error.error_count()} {error.errors()[0]['type']}"
    return city.model_dump()


class Handles:
    """Handles what Pydantic refuses."""

    def __init__(self, s: Any) -> None:
        self.s = s

    def __enter__(self) -> Any:
        return self.s

    def __exit__(self, cls: Any, error: Any, _: Any) -> bool:
        self.s += f"[{cls and cls.__name__}]"
        return cls is not None and issubclass(cls, ValidationError)


@case([{"q": '{"name": "x", "people": 1}'}, {"q": '{"name": "x"}'}, {"q": "none"}], backend=scripted(x=lambda text, ask: text[-30:]))
def exceptions_that_only_their_library_makes(s, q):
    for handled in (ValidationError, (KeyError, ValidationError), ValueError):
        s += q + gen("x", max_tokens=4)
        try:
            City.model_validate_json(q)
        except handled as error:
            effect(type(error) is ValidationError, isinstance(error, ValidationError), error.__class__.__name__, issubclass(type(error), ValueError))
            s += f"{error.title}{error.error_count()}{type(error).__name__}"
            kept = error
        else:
            s += "fits"
    try:
        try:
            City.model_validate_json(q)
        except (KeyError, TypeError):
            s += "no"
        finally:
            effect("over")
    except ValidationError as error:
        s += str(error is kept)
    with Handles(s) as t:
        t += City.model_validate_json(q).name


@case([{"q": '{"name": "x", "people": 1}'}, {"q": '{"name": "x"}'}])
def exceptions_that_only_their_library_makes_leave(s, q):
    s += q + gen("x", max_tokens=4)
    try:
        return City.model_validate_json(q)
    except ValidationError as error:
        s += gen("again", max_tokens=2)
        if s["again"] < "m":
            raise
        raise RuntimeError("refused") from error


def pair_of(x: str) -> list[str]:
    effect("pair", x)
    return x.split("=")


PAIRS = [{"q": q} for q in ("k=v", "k=v;x=y", "a=1;b;c=2", "a=1=2;b=3", "k=v;k=w")]


@case(PAIRS, backend=scripted(x=lambda text, ask: text))
def dicts_of_pairs(s, q):
    s += q + gen("x")
    for make in (lambda: dict(p.split("=") for p in s["x"].split(";")), lambda: dict((pair_of(p) for p in s["x"].split(";")), extra=1)):
        try:
            d = make()
        except ValueError as error:
            s += str(error)
            continue
        s += str(d)
        for k, v in d.items():
            s += k + str(v) + gen("y", max_tokens=1)
        d["last"] = q
        effect(d)
    forks = dict((name, f) for name, f in zip("xy", s.fork(2)))
    forks["x"] += gen("z", max_tokens=1)
    return dict([("x", s["x"]), ["y", q], "zz"], t=2), dict((s["x"], i) for i in range(2)), dict(enumerate(s["x"])), forks["x"]["z"]


@case(PAIRS)
def dicts_of_pairs_then_left(s, q):
    s += q + gen("x", max_tokens=4)
    rows = [pair_of(p) for p in q.split(";")]
    try:
        d = dict(map(pair_of, q.split(";")))
    except ValueError as error:
        d = str(error)
    rows[0].append("more")
    opaque(s)
    return d, rows


@case()
def pairs_that_are_none(s, q):
    s += q + gen("x", max_tokens=4)
    for make in (lambda: dict([5, s["x"]]), lambda: dict([(1, 2), s["x"] + "xyz"]), lambda: dict([len(s["x"])]), lambda: dict([([], s["x"])]), lambda: dict(x for x in (q, 3))):
        try:
            s += str(make())
        except (TypeError, ValueError) as error:
            s += f"{type(error).__name__}: {error}"


@dataclass(order=True)
class Found:
    score: int
    text: str = ""


@dataclass
class Weighed:
    """Compares by code of its own."""

    n: int

    def __lt__(self, other: Any) -> bool:
        effect("lt", self.n, other.n)
        return self.n < other.n


def found(n: int, text: str) -> Found:
    effect("found", n)
    return Found(n, text)


@case(ITEMS)
def objects_that_compare(s, q):
    rows = []
    for i, f in enumerate(s.fork(3)):
        f += f"{q}{i}" + gen("x", max_tokens=4)
        rows.append((found(len(f["x"]) % 3, f["x"]), f))
    best, f = max(rows, key=lambda row: row[0])
    f += "best" + gen("y", max_tokens=2)
    only = [one for one, _ in rows]
    only.sort()
    best.score += 10
    return best, f["y"], only, sorted(only, key=lambda one: one.text), max(only).text, min(only), sorted(only, reverse=True)


@case(ITEMS)
def objects_that_compare_then_left(s, q):
    rows = []
    for i, f in enumerate(s.fork(3)):
        f += f"{q}{i}" + gen("x", max_tokens=4)
        rows.append((Weighed(len(f["x"]) % 3 + i % 2), f))
    only = [one for one, _ in rows]
    best, falling, first = max(only), sorted(only, reverse=True), min(rows, key=lambda row: row[0])[1]
    only.sort()
    best.n += 5
    falling[-1].n = 99
    for refused in (lambda: max([*only, 3]), lambda: sorted([*only, "x"], key=lambda one: one)):
        try:
            refused()
        except AttributeError as error:
            s += str(error)
    opaque(s)
    return [one.n for one in falling], [one.n for one in only], first["x"], best.n, sorted(only)[0].n


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


@case(ITEMS, backend=scripted(x=lambda text, ask: ("red", "green", "blue")[len(text) % 3]))
def enums_pick(s, q):
    s += q + gen("x")
    colour = Colour(s["x"])
    table = {Colour.RED: "stop", Colour.GREEN: "go"}
    s += table.get(colour, "wait")
    if colour in table:
        s += table[colour]

    def ask():
        return gen("y", max_tokens=2)

    s += {Colour.RED: ask}.get(Colour(s["x"]), lambda: "nothing")()
    return {c: c.name for c in Colour}[colour], [*Colour].index(colour), collections.Counter([colour, Colour.RED])


class Asks(abc.ABC):
    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def prompt(self, q: str) -> str: ...

    def run(self, s: Any, q: str) -> str:
        s += self.prompt(q) + gen(self.name, max_tokens=3)
        return s[self.name]


class Poet(Asks):
    def prompt(self, q: str) -> str:
        return f"A poem about {q}: "

    @classmethod
    def of(cls, name: str) -> Any:
        return cls(name)


class Critic(Poet):
    def run(self, s: Any, q: str) -> str:
        return super().run(s, q).strip() or "nothing"


@case()
def abstract_classes(s, q):
    out = q
    for one in (Poet("a"), Critic("b"), Poet.of("c")):
        out = one.run(s, out)
    try:
        Asks("no")
    except TypeError as error:
        s += str(error)
    return out, isinstance(Poet("d"), Asks), issubclass(Critic, Asks)


@case(ITEMS)
def lists_grow_by_what_is_made(s, q):
    s += q + gen("x", max_tokens=4)
    words = s["x"].split()
    words += (w for w in "mn")
    words.extend(map(str, range(2)))
    words.extend(w.upper() for w in s["x"].split())
    data = json.loads(s["x"][:0] + '{"a": []}')
    data["a"].extend(w for w in words)
    data["a"].extend([q, "z"])
    data.update((w, 1) for w in words)
    lengths = [len(w) for w in words]
    size(lengths)
    lengths.extend(n + 1 for n in lengths[:2])
    some, last, counts = set(words), collections.deque(words, maxlen=3), collections.Counter(words)
    some.update(w for w in "pq")
    last.extend(w for w in "rs")
    counts.update(w for w in words)
    return words, data, lengths, sorted(some), last, counts


def announced(fn: Any) -> Any:
    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        effect("call", fn.__name__)
        return fn(*args)

    return call


@case(ITEMS)
def decorators_written_in_python_then_left(s, q):
    class timed(contextlib.ContextDecorator):
        def __enter__(self):
            effect("begins")
            return self

        def __exit__(self, *error):
            effect("ends", error[0])
            return False

    @announced
    def ask(text):
        s.__iadd__(text + gen("x", max_tokens=3))
        return s["x"]

    @timed()
    def asks(text):
        return ask(text)

    @dataclass
    class Row:
        xs: list = dataclasses.field(default_factory=lambda: [ask("row")])

    row = Row()
    effect("row", row.xs)
    x = ask(q)
    effect("x", x)
    opaque(s)
    return asks(x), ask.__name__, row.xs


@case(ITEMS)
def largest_of_states_then_left(s, q):
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += f"{q}{i}" + gen("x", max_tokens=3)
    top = heapq.nlargest(2, forks, key=lambda f: f["x"])
    low = heapq.nsmallest(1, [(f["x"], i, f) for i, f in enumerate(forks)])
    effect("low", low[0][1])
    opaque(s)
    s += top[0]["x"]
    return [f["x"] for f in top], low[0][0]


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


@case(ITEMS)
def dataclasses_of_the_program_then_left(s, q):
    @dataclass(order=True)
    class Draft:
        score: int
        words: list
        state: Any = dataclasses.field(default=None, compare=False)

    s += q
    drafts = []
    for i, f in enumerate(s.fork(3)):
        f += f"{i}" + gen("x", max_tokens=3)
        drafts.append(Draft(len(f["x"]) % 2, f["x"].split(), f))
    best, lowest, there = max(drafts), min(drafts), Draft(1, [q]) in drafts
    best.words.append(weight(q))
    opaque(s)
    return best.words, lowest.score, there, sorted(drafts)[0].words


def rows_of(x: str) -> list[str]:
    effect("rows", x)
    return x.split()


@case(ITEMS)
def what_contains_and_equals_gives_then_left(s, q):
    class Bag:
        def __init__(self, text):
            self.rows = rows_of(text)

        def __contains__(self, x):
            return self.rows and x

        def __eq__(self, other):
            return self.rows and other.rows

    s += q + gen("x", max_tokens=3)
    bag, none = Bag(s["x"]), Bag(" ")
    found = q in bag, q not in bag, "" in bag, q in none, q not in none, bag != none, none != bag, bag != Bag(q), bag in [none, Bag(q)], none not in (bag, 1)
    effect("found", found)
    effect("more", weight(q))
    opaque(s)
    return found, bag.rows


@case(ITEMS)
def what_methods_give_that_python_asks_then_left(s, q):
    class Bag:
        def __init__(self, text):
            self.rows = rows_of(text)

        def __bool__(self):
            s.__iadd__("?")
            return "b" in self.rows

        def __iter__(self):
            s.__iadd__("!")
            return iter((*self.rows, "x", "y")[:2])

        def __enter__(self):
            s.__iadd__("<")
            return self

        def __exit__(self, kind, error, trace):
            s.__iadd__(">")
            return kind is KeyError and rows_of(str(error))

    s += q + gen("x", max_tokens=3)
    bag = Bag(s["x"])
    seen = [bool(bag), not bag]
    if bag:
        s += "full"
    first, second = bag
    with bag, Bag(q):
        raise KeyError(first)
    effect("seen", seen, first, second)
    opaque(s)
    return seen, first, second


@case(ITEMS)
def dicts_and_sets_of_answers_changed_then_left(s, q):
    s += q + gen("x", max_tokens=3)
    pairs = [(s["x"], 1), (q, 2)]
    numbers, words = dict(pairs), set(w for w in (s["x"], q))
    numbers["n"], more = 2, dict(((w, i) for i, w in enumerate(words_of(s["x"]))), k=1)
    numbers.update({w: size([w]) for w in (q, "new")})
    words.add("z")
    words.discard(q)
    more.pop("k")
    effect("changed")
    opaque(s)
    return numbers, sorted(words), more


def words_of(x: str) -> list[str]:
    effect("words", x)
    return [x, x.upper()]


def other(x: str) -> str:
    return x + "2"


def first(x: str) -> str:
    return x + "1"


NOW: Any = first


def change() -> None:
    global NOW
    effect("change")
    NOW = other


def back() -> None:
    global NOW
    NOW = first


@lmc.host(ordered=False)
def looked_up(*args: Any, **kwargs: Any) -> str:
    effect("looked up", repr(args), repr(kwargs))
    return repr((args, kwargs))


@case(ITEMS, reset=back, batch=False)
def numbers_for_unordered_calls_that_were_made_ahead(s, q):
    s += q + gen("x", max_tokens=3)
    before = NOW(q)
    change()
    after = NOW(s["x"])
    return before, after, [looked_up(x) for x in (float("nan"), -0.0, 0.0, 1, 1.0, True, frozenset({1}), frozenset({True}))], looked_up(q, a=[q], b=(1, [2]))


def grow(rows):
    rows.append("grown")


@case([{"q": q, "options": {"rows": [q]}} for q in "ab"])
def items_of_keywords_that_change(s, q, options):
    named = dict(**options)
    before = len(named["rows"]), str(named["rows"])
    grow(options["rows"])
    return before, len(named["rows"]), str(named["rows"])


PARTS = [{"q": "a", "x": "z"}, {"q": "b", "x": 2}, {"q": "c", "x": None}]
"""The last two are no text."""


@case(PARTS)
def part_of_an_expression_that_is_no_text(s, q, x):
    v = json.loads(json.dumps(x))
    s += q + gen("x", max_tokens=3) + v
    return s["x"]


@case(PARTS)  # which is a message without text
def message_that_is_no_text(s, q, x):
    v = json.loads(json.dumps(x))
    ask = lmc.user(v) + lmc.assistant(gen("x", max_tokens=3))
    effect("between", q)
    s += ask
    s.user(expr=v)
    return s["x"]


CASES = cases(globals())


@pytest.mark.parametrize("name", CASES)
def test_means_the_same(name: str) -> None:
    one: Case = CASES[name]
    one.check()
