"""An evaluation runs no code of the user's, and changes nothing outside."""

# ruff: noqa: UP030, UP031, UP032, C405, F841 (programs are written as people write them)

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import pytest

import lmc
from tests.conformance.programs import compiled, source
from tests.frontend.capture.comparing import evaluation, run_python
from tests.frontend.capture.recording import evaluate
from tests.searching import size

PROGRAMS = size(8, 300)
"""Random programs that are looked at."""
SLICES = size(1, 4)
RAN: list[str] = []


def _poison(name: str) -> Any:
    def method(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        RAN.append(name)
        raise AssertionError(f"an evaluation ran {name}")

    return method


_DUNDERS = (
    "eq ne lt le gt ge hash bool len iter next contains getitem setitem delitem call str repr format int float index add radd sub mul rmul mod rmod "
    "or ror and iadd neg enter exit await getattribute getattr setattr delattr copy deepcopy reduce reduce_ex reversed round length_hint dir sizeof "
    "instancecheck subclasscheck fspath bytes complex missing set_name get set delete"
).split()


class Meta(type):
    __instancecheck__ = __subclasscheck__ = __call__ = _poison("of the class")
    __getattribute__ = _poison("attribute of the class")


def poisoned() -> Any:
    """An object all of whose special methods raise, with a class that does, too."""
    return object.__new__(type("Poison", (), {f"__{n}__": _poison(n) for n in _DUNDERS}))


class Overloaded(type):
    """Operators of its classes run code; inspecting them does not."""


OPERATORS = "or ror and add radd mul mod lt le gt ge bool len contains index neg invert abs iter getitem str repr format".split()
for _name in OPERATORS:
    setattr(Overloaded, f"__{_name}__", _poison(f"{_name} of the metaclass"))


class OfOverloaded(metaclass=Overloaded):
    pass


class Sly(str):
    __eq__ = __hash__ = __str__ = __format__ = __len__ = __add__ = __radd__ = _poison("of a text")  # type: ignore[assignment]
    strip = upper = split = _poison("method of a text")  # type: ignore[assignment]


class Plain:
    shown = property(_poison("property"))

    def __init__(self) -> None:
        self.held = {"list": [1]}


class WithGetattr(Plain):
    __getattr__ = _poison("__getattr__")


P = poisoned()
TABLE = {"poison": P, "list": [P, 1], "plain": "text"}
HELD = Plain()


@lmc.function
def touches(s, p, items, text, plain, odd):
    table = dict(TABLE)
    checks = [p == 1, p != 2, p in items, 1 in items, p in (1, 2), not p, bool(p), p and 1, p or 2, [p] == [1], (p, 1) == (p, 1), p is None, p < 3]
    texts = [f"{p}", str(p), repr(items), "%s" % (p,), f"{p}", text.strip(), f"{text}", text + "a", "a" + text, text == "a", ", ".join([text]), text in "abc"]
    sums = [p + 1, 1 + p, p * 2, -p, abs(p), len(p), hash(p), int(p), round(p), sorted([p, p]), max(p, p), sum([p]), {p: 1}.get(p), {p}, {text: 2}, set([p])]
    for x in p:
        s += x
    with p as entered:
        s += str(entered)
    a, *b = p
    p.attribute = 1
    p[0] = p[1]
    del p[2]
    p += 1
    items.append(p)
    items.sort()
    items.index(3)
    copied = [*items, *table, items[0], list(map(str, items)), isinstance(p, int), type(p), callable(p), getattr(p, "x", None), hasattr(p, "y")]
    held = [plain.held, HELD.held["list"], HELD.shown, plain.shown, odd.nothing, odd.held]
    match p:
        case [1, 2]:
            pass
        case {"a": 1}:
            pass
        case int(n):
            pass
        case 5:
            pass
    HELD.held["list"].append(2)
    TABLE["list"].append(3)
    plain.held["more"] = 1
    if p:
        return 1
    while p.done:
        s += p
    s += f"{checks}{texts}{sums}{copied}{held}{a}{b}" + lmc.gen("x", stop=p, max_tokens=p) + lmc.select("y", choices=p)
    return s["x"]


def test_no_code_of_the_users_runs():
    RAN.clear()
    items, plain = [P, 1, Sly("a")], Plain()
    before = copy.copy(items), dict(plain.held), list(HELD.held["list"]), list(TABLE["list"])
    evaluate(touches, p=poisoned(), items=items, text=Sly("abc"), plain=plain, odd=WithGetattr())
    assert not RAN
    assert all(a is b for a, b in zip(items, before[0], strict=True)) and plain.held == before[1]
    assert HELD.held["list"] == before[2] and all(a is b for a, b in zip(TABLE["list"], before[3], strict=True))


STATEMENTS = [
    "p == 1", "p in [1]", "[x for x in p]", "{p: 1}", "{p}", "f'{p}'", "str(p)", "p.x", "p[0]", "p()", "p + 1", "len(p)", "p < p", "sorted([p, p])",
    "lmc.gen(p)", "s[p]", "s.fork(p)",
    "lmc.user(p)", "dict(p)", "list(p)", "json.dumps([p])", "json.loads(p)", "re.match(p, 'a')", "'a'.join([p])", "isinstance(1, p)", "int(p)", "next(iter(p))",
    "zip(p, p)", "max([p, 1])",
    "copy.copy(p)", "copy.deepcopy([p])", "s.set_var(p, 1)", "'x' in p", "p in s", "Counter(p)", "sum([p, p])", "any([p])", "p if p else p", "-p", "not p",
    "range(p)", "enumerate(p)",
    "[1][p]", "'a' * p", "p % 1", "'%s' % p", "math.floor(p)", "heapq.heappush([p], p)", "functools.reduce(p, [1, 2])", "map(p, [1])", "getattr(s, p, 0)",
    "setattr(p, 'x', 1)", "tuple(p)",
    "s.__iadd__(p)", "child(p)", "child(p, p)", "child(**p)", "child(*p)", "lmc.select('x', p)", "lmc.gen('x', regex=p, stop=[p])", "print(p)", "format(p, p)",
    "divmod(p, 1)", "hash(p)",
]  # fmt: skip


OF_CLASSES = [
    "len(p)", "1 in p", "bool(p)", "1 if p else 2", "not p", "p and 1", "p | None", "None | p", "p < 2", "3 < p", "p + 1", "1 + p", "p % 2", "-p", "abs(p)",
    "[1, 2][p]", "[1, 2][:p]", "[0] * p", "[x for x in p]", "p[0]", "f'{p}'", "str(p)",
]  # fmt: skip


@pytest.mark.parametrize("text", OF_CLASSES)
def test_no_operator_of_a_metaclass_runs(text: str):
    RAN.clear()
    evaluate(_made(f"import lmc\n@lmc.function\ndef program(s, p):\n    x = {text}\n    s += lmc.gen('z')\n"), p=OfOverloaded)
    assert not RAN


@pytest.mark.parametrize("text", STATEMENTS)
def test_each_operation_leaves_an_outside_object_alone(text: str):
    RAN.clear()
    body = (f"import copy, functools, heapq, json, math, re\nfrom collections import Counter\nimport lmc\n@lmc.function\ndef child(s, tip='', k=1):\n    s += "
            f"tip\n@lmc.function\ndef program(s, p):\n    x = {text}\n")
    for line in ("    y = [x, x] if x else [x]\n    s += f'{x}'\n", "    s += 'a' + lmc.gen('z')\n"):
        body += line
    program = _made(body)
    for argument in (poisoned(), Sly("a"), WithGetattr(), [poisoned()], {"k": Sly("b")}, (poisoned(),)):
        evaluate(program, p=argument)
        assert not RAN


class Setter:
    __get__ = _poison("looking up a setter")


class Attributes:
    """Has attributes whose classes run code when they are asked for a setter."""

    by_metaclass = object.__new__(type.__new__(Meta, "OfMeta", (), {}))
    by_descriptor = type("OfSetter", (), {"__set__": Setter()})()


def test_looking_for_setters_runs_nothing():
    RAN.clear()
    evaluate(_made("import lmc\n@lmc.function\ndef program(s, p):\n    p.x = 1\n    s += lmc.gen('z')\n"), p=Attributes())
    assert not RAN


MADE = defaultdict(lambda: RAN.append("a factory"))


@lmc.function
def makes(s, d):
    texts = ["{0[a]}".format(d), "%(a)s" % d, f"{d['c']}", "{0[a]}".format(MADE), f"{MADE['e']}", str(d), list(map(d.get, "ab")), sorted(d)]
    s += f"{texts}" + lmc.gen("x")


def test_no_factory_of_an_outside_mapping_is_called_natively():
    RAN.clear()
    given = defaultdict(lambda: RAN.append("a factory"))
    evaluate(makes, d=given)
    assert not RAN and not given and not MADE


def _made(text: str) -> Any:
    import linecache

    file = f"<made {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "made"}
    exec(compile(text, file, "exec", dont_inherit=True), names)
    return names["program"]


@pytest.mark.search
@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::SyntaxWarning")
def test_random_programs_ask_what_python_asks_and_change_nothing(part: int):
    whole = 0
    for seed in range(part, PROGRAMS, SLICES):
        program, reset, look = compiled(source(seed))
        item: dict[str, Any] = {"q": "an apple", "xs": ["xa", "be c"], "flag": bool(seed % 2)}
        reset()
        python = run_python(program, copy.deepcopy(item))
        reset()
        before, given = repr(look()), copy.deepcopy(item)
        found, _ = evaluation(program, item, python.answers)
        assert (repr(look()), item) == (before, given), f"seed {seed}: something outside was changed"
        asked = [(a.address, a.name, a.prompt) for a in found]
        assert asked and not [
            ask for a, ask in zip(found, asked, strict=True) if a.certain and not a.shifted and a.prompt is not None and ask not in python.asked
        ], f"seed {seed}"
        whole += asked == python.asked
    assert whole > PROGRAMS / SLICES / 8, whole  # many define a class of their own, which is unknown
