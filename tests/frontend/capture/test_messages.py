"""Messages of exceptions in prompts: an evaluation has Python's, or knows that it does not know them."""

# ruff: noqa: C416, F522, F524, F821, PIE804, RUF059, UP031 (programs are written as people write them)

from __future__ import annotations

import dataclasses
import decimal
import enum
import json
from collections import deque
from typing import Any, NamedTuple

import lmc
from tests.frontend.capture.comparing import run_python
from tests.frontend.capture.recording import evaluate
from tests.searching import some

NUMBER: Any = 3
TEXT: Any = "a"
ONES: Any = [1]
NONE: Any = None


class Kind(enum.Enum):
    A = "a"


@dataclasses.dataclass
class Item:
    name: str
    n: int

    def half(self):
        return self.n // 2


class Plain:
    pass


class Pair(NamedTuple):
    a: int
    b: int = 2


def two(a, b, *, c=3):
    return a, b, c


def posed(a, /):
    return a


def generator():
    yield 1
    raise KeyError("in a generator")


def _unpack(x, n):
    if n == 2:
        a, b = x
    elif n == 3:
        a, b, *c = x
    else:
        (a, b), c = x


def _delete(x, key):
    del x[key]


def _grow(x):
    for key in x:
        x[key + "!"] = 1


def _unbound():
    if two is None:
        later = 1
    return later


def _raise(error):
    raise error


FAILING: dict[str, Any] = {
    "too few": lambda: _unpack([1], 2), "too many": lambda: _unpack("abc", 2), "too few with a star": lambda: _unpack("a", 3),
    "nested": lambda: _unpack([[1], 2], 0),
    "not iterable": lambda: _unpack(3, 2), "none": lambda: _unpack(None, 2), "loop": lambda: [x for x in 3],
    "missing": lambda: two(1), "missing two": lambda: two(), "too many arguments": lambda: two(1, 2, 3, 4), "unexpected": lambda: two(1, 2, d=3),
    "twice": lambda: two(1, a=2, b=3),
    "keyword twice": lambda: two(*[1], **{"b": 1, "c": 2}, **{"c": 3}), "star of none": lambda: two(*None), "stars of a list": lambda: two(**[1]),
    "keyword of a positional": lambda: posed(a=1),
    "item of a dict": lambda: {"a": 1}["b"], "index": lambda: [1][3], "index of text": lambda: "ab"[5], "key of a list": lambda: ONES["a"],
    "item of none": lambda: NONE["a"],
    "item of a number": lambda: NUMBER[0], "delete": lambda: _delete([1], 3), "delete a key": lambda: _delete({}, "k"),
    "delete of text": lambda: _delete("abc", 0), "slice": lambda: [1][::0],
    "add": lambda: 1 + "a", "add text": lambda: "a" + 1, "radd": lambda: [] + (), "sub": lambda: "a" - "b", "mul": lambda: "a" * "b", "mod": lambda: "%d" % "x",
    "divide": lambda: 1 / 0,
    "floor": lambda: 1 // 0, "less": lambda: 1 < "a", "sorted": lambda: sorted([1, "a"]), "max": lambda: max([]), "max of mixed": lambda: max(1, "a"),
    "neg": lambda: -"a", "contains": lambda: 3 in 4,
    "objects": lambda: Plain() + 1, "call a number": lambda: NUMBER(), "call text": lambda: TEXT(), "call an object": lambda: Plain()(),
    "attribute": lambda: "a".nope, "attribute of none": lambda: None.strip(),
    "attribute of an object": lambda: Plain().nope, "attribute of a class": lambda: Plain.nope, "method": lambda: Item("a", "b").half(),
    "arguments of a class": lambda: Plain(1),
    "dataclass": lambda: Item("a"), "dataclass without": lambda: Item(), "dataclass unexpected": lambda: Item("a", 1, x=2),
    "dataclass many": lambda: Item(1, 2, 3), "named tuple": lambda: Pair(),
    "len": lambda: len(3), "len of an object": lambda: len(Plain()), "int": lambda: int("x"), "int of none": lambda: int(None), "float": lambda: float("1,5"),
    "int base": lambda: int("z", 3), "chr": lambda: chr(-1), "ord": lambda: ord("ab"),
    "json": lambda: json.loads("{oops"), "json of none": lambda: json.loads(None), "json of a set": lambda: json.dumps({1}), "enum": lambda: Kind("b"),
    "enum name": lambda: Kind["B"], "enum attribute": lambda: Kind.B,
    "format": lambda: "{} {}".format(1), "format key": lambda: "{a}".format(b=1), "format spec": lambda: f"{'a':d}", "format object": lambda: f"{Plain():>3}",
    "join": lambda: ",".join([1]), "encode": lambda: "\udc00".encode(),
    "index of": lambda: [1].index(2), "remove": lambda: [1].remove(2), "pop": lambda: [].pop(), "pop a key": lambda: {}.pop("k"),
    "popleft": lambda: deque().popleft(), "popitem": lambda: {}.popitem(), "find": lambda: "a".index("b"),
    "set key": lambda: {[]: 1}, "set of lists": lambda: {[1]}, "hash": lambda: {{}: 1}, "next": lambda: next(iter([])), "generator": lambda: list(generator()),
    "zip": lambda: list(zip([1], [1, 2], strict=True)),
    "grow": lambda: _grow({"a": 1}), "unbound": lambda: _unbound(), "name": lambda: not_defined, "raise": lambda: _raise(ValueError("mine", 2)),
    "raise a class": lambda: _raise(LookupError),
    "raise text": lambda: _raise("text"), "decimal": lambda: decimal.Decimal("x"), "sum": lambda: sum(["a"]), "round": lambda: round("a"),
    "range": lambda: range("a"), "split": lambda: "a".split(""), "bytes": lambda: b"a" + "b",
    "super": lambda: super(Plain, Item("a", 1)), "isinstance": lambda: isinstance(1, TEXT), "dict of": lambda: dict([1]),
    "dict pairs": lambda: dict([(1, 2, 3)]), "starmap": lambda: list(map(two, [1])), "key": lambda: sorted([1], key=3),
}  # fmt: skip


@some("name", FAILING, 4)
def test_a_message_in_a_prompt_is_pythons_or_unknown(name: str):
    fail = FAILING[name]

    @lmc.function
    def program(s):
        try:
            fail()
        except Exception as error:
            s += f"{error}|{error!r}|{type(error).__name__}" + lmc.gen("x")

    (python,) = [prompt for _, _, prompt in run_python(program, {}).asked]
    asked, _ = evaluate(program, {})
    assert [a.prompt for a in asked] in ([python], [None], []), asked
    assert [a.prompt for a in asked if not a.certain] == []
