"""Classes that a program makes and host code is handed: whatever their code changes is of one run, and a run that leaves its graph goes on with its own."""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple

import pytest
from pydantic import BaseModel, Field, ValidationError

from lmc import gen, select

from .harness import Case, case, cases, effect, opaque, scripted

CHANGES = "which its methods may change"
STORED = "which is stored more than once"
STAYS = "whose instances cannot become those of another class"


class Counted(Exception):
    n = 0

    def bump(self) -> int:
        type(self).n += 1
        return self.n


def bump(cls: Any) -> None:
    cls.n += 1


@case()
def exceptions_that_are_counted(s, q):
    class Refused(Exception):
        count = 0

        def __init__(self, why):
            super().__init__(why)
            type(self).count += 1

    s += q + gen("x", max_tokens=2)
    try:
        raise Refused(s["x"])
    except Refused as error:
        found = error.count
    return found, Refused("k").count, Refused.count


@case()
def changes_by_name_by_class_and_by_setattr(s, q):
    class Refused(Exception):
        a = b = c = 0

        def change(self, x):
            Refused.a += 1
            self.__class__.b = x
            setattr(type(self), "c", x)  # noqa: B010
            return self

    s += q + gen("x", max_tokens=2)
    error = Refused("k").change(s["x"])
    return error.a, Refused.a, Refused.b, Refused.c


@case()
def changes_by_functions_that_are_handed_the_class(s, q):
    class Refused(Exception):
        n = 0

        def change(self):
            bump(type(self))
            return self.n

    s += q + gen("x", max_tokens=2)
    error = Refused(s["x"])
    return error.change(), error.change(), Refused.n


@case()
def changes_by_what_an_outside_class_brings(s, q):
    class Refused(Counted):
        pass

    s += q + gen("x", max_tokens=2)
    error = Refused(s["x"])
    return error.bump(), error.bump(), Refused.n, Counted.n


@case()
def changes_of_functions_of_the_class(s, q):
    class Refused(Exception):
        def count(self):
            me = type(self).count
            me.n = getattr(me, "n", 0) + 1
            return me.n

    s += q + gen("x", max_tokens=2)
    error = Refused(s["x"])
    return error.count(), error.count()


@case()
def variables_that_methods_store(s, q):
    n = 0

    class Refused(Exception):
        def __init__(self, why):
            nonlocal n
            n += 1
            super().__init__(why, n)

    s += q + gen("x", max_tokens=2)
    return Refused(s["x"]).args, n, Refused("k").args


@case()
def variables_that_are_stored_between_calls_of_methods(s, q):
    n = 0

    class Refused(Exception):
        def __str__(self):
            return f"{n}:{self.args[0]}"

    s += q + gen("x", max_tokens=2)
    n = 1
    error = Refused(s["x"])
    first = str(error)
    n += 1
    return first, str(error), n


@case()
def methods_that_change_their_instances_alone(s, q):
    class Refused(Exception):
        code = 1

        def __init__(self, why, **more):
            super().__init__(why)
            self.why, self.rows = why, [why]
            object.__setattr__(self, "kind", type(self).__name__)
            for name, x in more.items():
                setattr(self, name, x)

        def __eq__(self, other):
            return type(other) is type(self) and isinstance(other, Refused) and self.args == other.args

        __hash__ = Exception.__hash__

        def again(self):
            self.rows.append(self.code)
            return Refused(self.why, rows=[*self.rows])

    s += q + gen("x", max_tokens=2)
    try:
        raise Refused(s["x"], hint=q)
    except Refused as error:
        return error.again().rows, error.kind, error.hint, error == error.again()


@case([{"q": q} for q in ("a", "bee gee", "c")])
def enums_then_left(s, q):
    class Mood(enum.Enum):
        GOOD = "good"
        BAD = "bad"

        @classmethod
        def parse(cls, text):
            return next(mood for mood in cls if mood.value == text.strip())

    s += q + select("x", choices=[mood.value for mood in Mood])
    mood = Mood(s["x"])
    s += gen("y", max_tokens=2)
    opaque(1)
    return mood is Mood.parse(s["x"]), mood in Mood, {Mood.GOOD: 1, Mood.BAD: 2}[mood]


@case()
def numbers_and_tuples_of_own_classes_then_left(s, q):
    class Size(int):
        def __eq__(self, other):
            return isinstance(other, Size) and int(self) == int(other)

        __hash__ = int.__hash__

    class Pair(NamedTuple):
        a: str
        b: int = 2

    s += q + gen("x", max_tokens=2)
    size, pair = Size(len(s["x"])), Pair(s["x"])
    opaque(1)
    return size == Size(len(s["x"])), size == int(size), type(pair) is Pair, pair == Pair(s["x"])


@case([{"q": q} for q in ("a", "bee gee", "c", "dd")], backend=scripted(x=lambda text, ask: ("low", "high", "mid", "none")[len(text) % 4]))
def enums(s, q):
    class Level(enum.Enum):
        LOW = "low"
        MID = "mid"
        HIGH = "high"

        @property
        def rank(self):
            return list(Level).index(self)

        @classmethod
        def parse(cls, text):
            try:
                return cls(text)
            except ValueError:
                return cls.LOW

        def __str__(self):
            return "level " + self.value

    class Number(enum.IntEnum):
        ONE = 1
        TWO = enum.auto()

    s += q + gen("x")
    level, number = Level.parse(s["x"]), Number(len(s["x"]) % 2 + 1)
    if level is Level.HIGH or number >= Number.TWO:
        s += f"{level}{number.name}" + gen("y", max_tokens=2)
    match level:
        case Level.LOW:
            s += "low"
        case _ if level in (Level.MID, Level.HIGH):
            s += {Level.MID: "mid", Level.HIGH: "high"}[level]
    return str(level), level.rank, [one.name for one in Level], isinstance(level, Level), int(number), level == Level[level.name]


@case([{"q": q} for q in ("a", "bee gee", "c")])
def enums_that_the_program_stores_in(s, q):
    class Level(enum.Enum):
        LOW = "low"
        HIGH = "high"

    s += q + select("x", choices=["low", "high"])
    level = Level(s["x"])
    if q != "c":
        Level.extra = q
        s += Level.extra
    opaque(s)
    return hasattr(Level, "extra"), level.name, level is Level(s["x"])


def noted(text: str) -> str:
    effect("noted", text)
    return text


MODELS = scripted(x=lambda text, ask: ('{"label": "a", "score": 3}', '{"label": "b"}', '{"label": 1}', '{"label": "c", "score": 30}')[len(text) % 4])


@case([{"q": q} for q in ("a", "bee gee", "c", "dd")], backend=MODELS)
def models(s, q):
    class Verdict(BaseModel):
        """What is said of it."""

        label: str
        score: int = Field(default=1, le=10)
        tags: list[str] = Field(default_factory=list)

        def is_good(self):
            return self.score > 2

    s += q + gen("x", json_schema=Verdict)
    try:
        verdict = Verdict.model_validate_json(s["x"])
    except ValidationError as error:
        s += str(error.error_count())
        return None
    verdict.tags.append(noted(q))
    if verdict.is_good():
        s += gen("y", max_tokens=2)
    return verdict.model_dump(), isinstance(verdict, Verdict), verdict == Verdict(**verdict.model_dump()), type(verdict).__name__


@case([{"q": q} for q in ("a", "bee gee", "c")], backend=scripted(x='{"parts": [{"kind": "a"}, {"kind": "b"}]}'))
def models_inside_of_models_then_left(s, q):
    class Part(BaseModel):
        kind: Literal["a", "b"]

    class Whole(BaseModel):
        parts: list[Part]

    class Plain:
        def make(self):
            return [Part(kind="a")]

    s += q + gen("x", dtype=Whole)
    whole, made = Whole.model_validate_json(s["x"]), Plain().make()
    opaque(s)
    return [isinstance(part, Part) for part in (*whole.parts, *made)], [part.kind for part in whole.parts], isinstance(whole, Whole), made[0] == whole.parts[0]


CASES: dict[str, Case] = cases(globals())


@pytest.mark.parametrize("name", CASES)
def test_means_the_same(name: str) -> None:
    CASES[name].check()
