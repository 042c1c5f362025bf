"""Certificates: how often a program does the same on two backends, with an exact bound, and where it begins not to.

items ──► on a ──┐ return values, requests in order, texts   equal on 118 of 120 items;
      ──► on b ──┘ of each item, with the same seeds    ──►  in at least 95.8 % of such items, with a confidence of 95 %
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from lmc import pages, run_records
from lmc.backend.base import Backend
from lmc.backend.routed import Site
from lmc.errors import AnswerError, ArgumentError, ParameterError
from lmc.frontend.interpreter import Function, State
from lmc.frontend.options import backend_of
from lmc.pages import several
from lmc.runahead.program import Program

_SHOWN = 20  # items that a report lists
_FAR = 60  # characters of a text that it shows


@dataclass(frozen=True)
class Share:
    """Of `n` items, `equal` are; `least`: of all such items at least that share is, with the certificate's confidence."""

    equal: int
    n: int
    least: float

    def __str__(self) -> str:
        return f"{self.equal} of {self.n} ({self.equal / self.n:.1%}), at least {self.least:.1%}"


@dataclass(frozen=True)
class Compared:
    """An item on both backends.

    value  whether the return values (or exceptions) are equal; of a program that returns nothing, its variables
    path   whether the same gens and selects were made, in the same order on each branch
    text   whether the whole texts are equal
    common length of the common prefix, as a share of the longer text, 0 to 1
    first  where the first answer differs; None if none does
    values what was returned, for people
    """

    index: int
    value: bool
    path: bool
    text: bool
    common: float
    first: Site | None
    values: tuple[str, str]


@dataclass(frozen=True)
class Certificate:
    """The result of `lmc.certify`. `str(certificate)` is a report, `page()` the same as a page, `json()` as data.

    program     its name
    backends    the names of the two that are compared
    confidence  of the bounds on shares of equal items, 0 to 1
    items       each item's comparison
    """

    program: str
    backends: tuple[str, str]
    confidence: float
    items: tuple[Compared, ...]

    @property
    def values(self) -> Share:
        """Return the items whose return values are equal."""
        return self._share([item.value for item in self.items])

    @property
    def paths(self) -> Share:
        """Return the items that make the same requests, in the same order."""
        return self._share([item.path for item in self.items])

    @property
    def texts(self) -> Share:
        """Return the items whose whole texts are equal."""
        return self._share([item.text for item in self.items])

    @property
    def common(self) -> float:
        """Return the mean length of the common prefix of both texts, as a share of the longer one, 0 to 1."""
        return sum(item.common for item in self.items) / len(self.items)

    @property
    def differing(self) -> tuple[Compared, ...]:
        """Return the items whose value or path differs."""
        return tuple(item for item in self.items if not (item.value and item.path))

    @property
    def sites(self) -> dict[Site, int]:
        """Return the sites where differing items first diverge, the most frequent first: these are worth keeping on the
        first backend."""
        return dict(Counter(item.first for item in self.differing if item.first is not None).most_common())

    def _share(self, equal: Sequence[bool]) -> Share:
        return Share(sum(equal), len(equal), least_share(sum(equal), len(equal), self.confidence))

    def _facts(self) -> list[str]:
        sure = f"with a confidence of {self.confidence:.0%}"
        found = [
            f"return values equal: {self.values} of all such items, {sure}",
            f"same requests in the same order: {self.paths}",
            f"texts equal: {self.texts}; on average both begin with the same {self.common:.0%}",
        ]
        found += [f"{several(n, 'item')} began to differ at {site}: keep it on {self.backends[0]}" for site, n in self.sites.items()]
        return found

    def _differences(self) -> list[tuple[str, str, str, str]]:
        return [(str(item.index), str(item.first or ""), *(pages.short(value, _FAR) for value in item.values)) for item in self.differing[:_SHOWN]]  # pyright: ignore[reportReturnType]

    def __str__(self) -> str:
        lines = [f"{self.program} on {self.backends[0]} and {self.backends[1]}, {several(len(self.items), 'item')}", *(f"  {fact}" for fact in self._facts())]
        for index, site, a, b in self._differences():
            lines.append(f"  item {index}: {a} / {b}" + (f", from {site} on" if site else ""))
        if (more := len(self.differing) - _SHOWN) > 0:
            lines.append(f"  and {several(more, 'more item')}")
        return "\n".join(lines)

    __repr__ = __str__  # a notebook and the interactive prompt show the report

    def page(self) -> str:
        """Return a page for a browser: one file."""
        title = f"{self.program}: {self.backends[0]} and {self.backends[1]}"
        head = "".join(f"<th>{escape(name)}" for name in ("item", "differs from", *self.backends))
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}' for cell in row)}" for row in self._differences())
        table = f"<h2>Items that differ</h2><table><tr>{head}{rows}</table>" if rows else ""
        return pages.page(title, f"<h1>{escape(title)}</h1>{pages.facts([several(len(self.items), 'item'), *self._facts()])}{table}")

    def json(self) -> str:
        """Return shares with their bounds, and each item's comparison, as JSON."""
        shares = {name: {"equal": s.equal, "least": s.least} for name, s in (("values", self.values), ("paths", self.paths), ("texts", self.texts))}
        items = [
            {"item": i.index, "value": i.value, "path": i.path, "text": i.text, "common": i.common, "first": i.first and str(i.first), "values": i.values}
            for i in self.items
        ]
        return json.dumps({
            "program": self.program, "backends": self.backends, "confidence": self.confidence, "n": len(self.items), **shares, "common": self.common,
            "sites": {str(site): n for site, n in self.sites.items()}, "items": items}, indent=1, ensure_ascii=False)  # fmt: skip


def certify(
    program: Function[..., Any] | Program[..., Any], items: Iterable[Mapping[str, Any] | Sequence[Any]], a: Backend | str, b: Backend | str,
    *, confidence: float = 0.95, seed: int = 0, **options: Any,
) -> Certificate:  # fmt: skip
    """Run a program on two backends, with the same items and seeds, and report how often it does the same.

    It compares each item's return value (or exception), its gens and selects in order on each branch, and its whole
    text. `Certificate.values.least` is the exact (Clopper–Pearson) bound: if the items are drawn at random from what
    the program will be given, at least that share of it has equal values, with the given confidence. Host functions run
    once for each backend.

    program     a function marked `@lmc.function`, or compiled
    items       as of a batch; each runs once on each backend, with lists, dicts and sets of its own
    a, b        backends or their names; b is what is to take the place of a, such as `lmc.Engine(model, quantization="fp8")` of `lmc.Engine(model)`
    confidence  of the bounds, above 0 and below 1
    seed, options   as of a batch: `temperature`, `max_new_tokens`, …

    Raises ParameterError without items, for an impossible confidence, and with `journal=`. Return values are compared by `==`.
    """
    if not 0 < confidence < 1:
        raise ParameterError(f"certify: confidence is {confidence}; it must be above 0 and below 1, such as 0.95")
    for name, backend in (("a", a), ("b", b)):
        if backend is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise ArgumentError(f"certify: {name} is None; it must be a backend or its name")
    if options.get("journal") is not None:
        raise ParameterError("certify: with journal= the second backend would be given the first one's answers; leave it out")
    items, backends = list(items), (backend_of(a), backend_of(b))
    if not items:
        raise ParameterError("certify needs at least one item")
    run = program.batch if isinstance(program, Program) else program.run_batch
    given = items, _copied(items)  # before a program changes them
    firsts, others = (run(own, backend=backend, errors="return", seed=seed, **options) for own, backend in zip(given, backends, strict=True))
    name = (program.function if isinstance(program, Program) else program).name
    compared = tuple(_compared(i, x, y) for i, (x, y) in enumerate(zip(firsts, others, strict=True)))
    told = [backend.capabilities.name for backend in backends if backend is not None]
    return Certificate(name, (f"{told[0]} (a)", f"{told[1]} (b)"), confidence, compared)


def _copied(value: Any) -> Any:
    """Return lists, dicts and sets as such of their own, whatever is in them."""
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return type(value)(map(_copied, value)) if type(value) in (list, tuple, set) else value


def least_share(equal: int, n: int, confidence: float) -> float:
    """Return the one-sided Clopper–Pearson bound: the share below which `equal` or more of `n` are equal with
    probability 1 - confidence."""
    if equal == 0:
        return 0.0
    low, high = 0.0, equal / n
    for _ in range(60):
        middle = (low + high) / 2
        if _at_least(equal, n, middle) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def _at_least(k: int, n: int, p: float) -> float:
    """Return the probability of `k` or more successes among `n`, each with probability `p`."""
    if p <= 0 or p >= 1:
        return float(p >= 1)
    logs = (math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p) for i in range(k, n + 1))
    return math.fsum(map(math.exp, logs))


# -- one item ------------------------------------------------------------------------------------------------------


def _compared(index: int, a: State[Any], b: State[Any]) -> Compared:
    values = _value(a), _value(b)
    asked = _asked(a), _asked(b)
    paths = [{branch: [site for site, _ in each] for branch, each in mine.items()} for mine in asked]
    texts = _text(a), _text(b)
    longer = max(map(len, texts))
    same = next((i for i, (x, y) in enumerate(zip(*texts, strict=False)) if x != y), min(map(len, texts)))
    return Compared(
        index, _equal(*values), paths[0] == paths[1], texts[0] == texts[1], same / longer if longer else 1.0, _first(*asked), (repr(values[0]), repr(values[1]))
    )


class _Raised:
    """The exception that a run ended with."""

    def __init__(self, error: BaseException) -> None:
        self.what = type(error).__name__, str(error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Raised) and self.what == other.what

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return ": ".join(self.what)


def _value(state: State[Any]) -> Any:
    if (error := state.error()) is not None:
        return _Raised(error)
    if (value := state.ret_value) is not None:
        return value
    return {name: _read(state, name) for name in state.variables if name is not None}


def _read(state: State[Any], name: str) -> Any:
    """Return a variable; one whose answer is incomplete is what reading it raises."""
    try:
        return state[name]
    except AnswerError as error:
        return _Raised(error)


def _text(state: State[Any]) -> str:
    return "" if state.error() is not None else state.text()


def _equal(x: Any, y: Any) -> bool:
    try:
        return bool(x == y)
    except Exception as error:
        raise ParameterError(
            f"certify: return values of {type(x).__name__} and {type(y).__name__} cannot be compared ({error}); return what == compares"
        ) from error


def _asked(state: State[Any]) -> dict[str, list[tuple[Site, str | None]]]:
    """Return, by branch, the requests in order with their answers; None where a request failed."""
    found: dict[str, list[tuple[Site, str | None]]] = {}
    for request in run_records.of_state(state).requests:
        if request.ahead != "wasted":
            answer = None if request.result.error is not None else request.result.output().text
            found.setdefault(request.branch, []).append((Site(request.name, request.loc), answer))
    return found


def _first(a: Mapping[str, list[tuple[Site, str | None]]], b: Mapping[str, list[tuple[Site, str | None]]]) -> Site | None:
    """Return the site where the first answer differs, on the first branch that has one."""
    for branch, mine in a.items():
        for (site, answer), (_, other) in zip(mine, b.get(branch, []), strict=False):
            if answer != other:
                return site
    return None
