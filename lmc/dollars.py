"""Dollar cost of a program's runs: estimates before a run, the actual cost after it.

    certain    lower bound for every run that ends without an exception: answers as short as can be
    expected   prompts as the graph has them, with what the server's cache saves; answers as long as they were so far, else half of their limit
    at limits  the dearest arms, answers at their limits, nothing cached; a loop of unknown length turns once

Actual cost is exact: the usage that the server reported, by the prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lmc.backend.api.caching import CacheRules, Point, choose
from lmc.backend.base import Backend, OfSeveral, answering
from lmc.backend.usage import Prices, Usage
from lmc.config import default_backend, has_default_backend
from lmc.ir.analysis import always
from lmc.ir.core import Graph, Op, Operand, Value
from lmc.ir.ops import trait
from lmc.measured import Total, counted, measured
from lmc.passes.plan_cache import messages_of, path_of, reached
from lmc.passes.predict import longest_answer
from lmc.segments import Gen, Select

if TYPE_CHECKING:
    from lmc.runahead.compiled import CompiledProgram
    from lmc.runahead.records import Record

_UNKNOWN = 50  # assumed tokens of a text that is not known yet
_MESSAGE = 3  # tokens that a message has besides its text, about


@dataclass(frozen=True, slots=True)
class Dollars:
    """Cost of a run: certain, expected (`prompts` of it for prompts), with answers at their limits. `guessed`: number of texts of unknown
    length."""

    certain: float
    expected: float
    most: float
    prompts: float
    guessed: int = 0

    def __str__(self) -> str:
        unknown = f" ({self.guessed} text{'s'[: self.guessed != 1]} of unknown length)" if self.guessed else ""
        return f"${self.certain:.6f} certain, ${self.expected:.6f} expected, ${self.most:.6f} with answers at their limits{unknown}"


def before(graph: Graph, backend: Backend, seen: Mapping[int, Total]) -> Dollars | None:
    """Estimate a run of a planned graph; of several backends as one, what those cost that have prices. None if there are none. `seen`: cost of its
    requests in runs so far, by index in `graph.ops()`."""
    parts = [
        _cost_of(graph, each, asks, prices, getattr(each, "cache_rules", None), seen)
        for each, asks in _by_backend(graph, backend).items()
        if (prices := each.capabilities.prices) is not None
    ]
    return _together(graph, parts)


def in_batches(graph: Graph, backend: Backend, seen: Mapping[int, Total]) -> Dollars | None:
    """As `before`, for a run with `deadline="24h"`; None if a backend has no batch API."""
    found = _by_backend(graph, backend)
    if not all(getattr(each, "has_batches", False) for each in found):
        return None
    parts = [_cost_of(graph, each, asks, prices.batched, None, seen) for each, asks in found.items() if (prices := each.capabilities.prices) is not None]
    return _together(graph, parts)


_Ask = tuple[int, Op, str]
"""A request: its index in the graph's ops, itself, and its block."""


def _by_backend(graph: Graph, backend: Backend) -> dict[Backend, list[_Ask]]:
    """Return the requests of a graph by the backend that answers them."""
    home = {id(op): b.label for b in graph.blocks for op in b.ops}
    found = dict[Backend, list[_Ask]]() if isinstance(backend, OfSeveral) else {backend: list[_Ask]()}
    for i, op in enumerate(graph.ops()):
        if trait(op) == "samples":
            name: Any = op.attr("name")
            ask = Gen(name=name, loc=op.loc) if op.kind == "gen" else Select((), name=name, loc=op.loc)
            found.setdefault(answering(backend, ask), []).append((i, op, home[id(op)]))
    return found


@dataclass(frozen=True, slots=True)
class _BackendCost:
    """What one backend's requests cost: as Dollars, `most` by block."""

    certain: float
    expected: float
    most: Mapping[str, float]
    prompts: float
    guessed: int


def _together(graph: Graph, parts: Sequence[_BackendCost]) -> Dollars | None:
    if not parts:
        return None
    whole = {label: sum(part.most.get(label, 0.0) for part in parts) for each in parts for label in each.most}
    certain, expected, prompts = (sum(getattr(part, what) for part in parts) for what in ("certain", "expected", "prompts"))
    return Dollars(certain, expected, costliest(graph, whole), prompts, max(part.guessed for part in parts))


def _cost_of(graph: Graph, backend: Any, asks: Sequence[_Ask], prices: Prices, rules: CacheRules | None, seen: Mapping[int, Total]) -> _BackendCost:
    per_byte: float = getattr(backend, "tokens_per_byte", 0.25)
    count: Callable[[str], float] = getattr(backend, "count_tokens", None) or (lambda text: len(text.encode("utf-8", "surrogatepass")) * per_byte)
    every = [(i, op) for i, op in enumerate(graph.ops()) if trait(op) == "samples"]  # of other backends, too: their answers are in prompts
    limits = {op.results[1]: float(_limit(graph, op)) for _, op in every}
    usual = {op.results[1]: seen[i].usage.completion_tokens / seen[i].count if i in seen and seen[i].count else limits[op.results[1]] / 2 for i, op in every}
    likely = reached(graph)
    certain_blocks = always(graph)
    sure = [ask for ask in asks if ask[2] in certain_blocks and not ask[1].attr("lazy")]
    least = _Lengths(graph, count, dict.fromkeys(limits, 0.0), 0.0)
    mean = _Lengths(graph, count, usual, _UNKNOWN)
    longest = _Lengths(graph, count, limits, _UNKNOWN)

    certain = sum(prices.of(_answered(use, op.kind != "select")) for (_, op, _), use in zip(sure, _cached(graph, sure, least, rules), strict=True))
    expected = prompts = 0.0
    for (i, op, label), use in zip(asks, _cached(graph, asks, mean, rules), strict=True):
        if i in seen and seen[i].count:
            use = _mean(seen[i])
        else:
            use = _answered(use, round(usual[op.results[1]] * _samples(op)))
        times = likely[label] * (0.5 if op.attr("lazy") and i not in seen else 1.0)
        prompts += times * prices.of_prompt(use)
        expected += times * prices.of(use)
    prompt = max(prices.prompt, prices.cached or 0.0, prices.written or 0.0, prices.written_hour or 0.0)
    whole: dict[str, float] = {}
    for _, op, label in asks:
        answers = limits[op.results[1]] * _samples(op)
        whole[label] = whole.get(label, 0.0) + (longest.of[op.operands[0]] * prompt + answers * prices.completion) / 1e6  # type: ignore[index]
    return _BackendCost(certain, expected, whole, prompts, mean.guessed)


def of_program(program: CompiledProgram) -> Iterator[str]:
    """Yield lines on what runs of a program will cost and have cost, if its backend has prices, or one of several does."""
    backend = program.backend or (default_backend() if has_default_backend() else None)
    if backend is None:
        return
    runs = [list(ledger.records) for ledger in tuple(program.profile.runs)]
    if isinstance(backend, OfSeveral) or backend.capabilities.prices is not None:
        graph = program.planner.planned(program.graph(), program.target).graph
        found = measured(graph, runs)
        graph = counted(graph, found.blocks) if found.runs else graph
        if (cost := before(graph, backend, found.ops)) is not None:
            free = " and ".join(each.capabilities.name for each in _by_backend(graph, backend) if each.capabilities.prices is None)
            yield f"a run costs {cost}" + (f", beside the requests to {free}, which are not priced" if free else "")
        if (batched := in_batches(graph, backend, found.ops)) is not None:
            yield f'with deadline="24h": {batched}'
    paid = [[*_paid(backend, records)] for records in runs]
    if any(paid):
        costs = [*map(sum, paid)]
        yield f"the last run cost ${costs[-1]:.6f}, the last {len(costs)} together ${sum(costs):.6f}"


def _paid(backend: Backend, records: Iterable[Record]) -> Iterator[float]:
    """Yield what requests have cost, of those whose backend has prices."""
    for r in records:
        prices = answering(backend, r.ask).capabilities.prices
        if prices is not None and r.result.spent is not None:
            yield prices.of(r.result.spent[0])


def _answered(use: Usage, tokens: int) -> Usage:
    return replace(use, completion_tokens=int(tokens))


def _mean(total: Total) -> Usage:
    """Return the mean usage of one request."""
    u, n = total.usage, total.count
    return Usage(
        round(u.prompt_tokens / n), round(u.completion_tokens / n), round(u.cached_tokens / n), 0, 1,
        written_tokens=round(u.written_tokens / n), written_hour_tokens=round(u.written_hour_tokens / n),
    )  # fmt: skip


def _limit(graph: Graph, op: Op) -> int:
    """Return the most tokens of one answer; a choice requested as an answer is written out with the text around it."""
    if op.kind == "gen":
        return longest_answer(graph, op)
    return 16 + max((len(x) for x in op.operands[1:] if isinstance(x, str)), default=0) // 4


def _samples(op: Op) -> int:
    n = op.attr("n", 1)
    return n if isinstance(n, int) else 1


def costliest(graph: Graph, own: Mapping[str, float]) -> float:
    """Return the highest cost of any path through a graph, given the cost of each block; a loop turns once."""
    behind: dict[str, float] = {}
    for block in reversed(graph.blocks):  # each stands after the one that names it
        end = block.terminator
        arms = max((behind[arm] for _, arm in end.cases), default=0.0)
        behind[block.label] = own.get(block.label, 0.0) + arms + (behind[end.then] if end.then is not None else 0.0)
    return behind[graph.entry.label]


# -- prompts ---------------------------------------------------------------------------------------------------------


class _Lengths:
    """Token counts of prompts. `answers`: by the value of a request; `unknown`: for any other text; `guessed`: how many
    of those there are."""

    def __init__(self, graph: Graph, count: Callable[[str], float], answers: Mapping[Value, float], unknown: float) -> None:
        self.graph, self.count, self.answers, self.unknown = graph, count, answers, unknown
        self._texts: dict[Value, float] = dict(answers)
        self._holes: set[Value] = set()
        self.of: dict[Value, float] = {p: unknown for p in graph.params if p.type == "ctx"}
        for block in graph.blocks:
            for p in block.params:
                if p.type == "ctx":
                    first = next((v for v in graph.feeds[p] if isinstance(v, Value)), None)
                    self.of[p] = self.of.get(first, 0.0) if first is not None else 0.0
            for op in block.ops:
                for v in op.results:
                    if v.type == "ctx":
                        self.of[v] = self._behind(op)

    @property
    def guessed(self) -> int:
        return len(self._holes)

    def _behind(self, op: Op) -> float:
        above = op.operands[0] if op.operands else None
        size = self.of.get(above, 0.0) if isinstance(above, Value) else 0.0
        if op.kind == "append":
            return size + sum(self._text(x) if isinstance(x, str | Value) else _MESSAGE / 2 for x in op.operands[1:])
        return size + (self.answers[op.results[1]] if trait(op) == "samples" else 0.0)

    def _text(self, x: Operand) -> float:
        if isinstance(x, str):
            return self.count(x)
        if not isinstance(x, Value):
            return 0.0
        if x in self._texts:
            return self._texts[x]
        made = self.graph.producer.get(x)
        if made is not None and made.kind in ("concat", "py.str.join", "py.str.strip", "py.str", "py.format"):
            size = sum(self._text(y) for y in made.operands if isinstance(y, str | Value))
        elif made is not None and made.kind == "py.list":
            size = sum(self._text(y) for y in made.operands)
        else:
            self._holes.add(x)
            size = self.unknown
        self._texts[x] = size
        return size


def _cached(graph: Graph, asks: Sequence[tuple[int, Op, str]], lengths: _Lengths, rules: CacheRules | None) -> list[Usage]:
    """Return the cache usage of each prompt if the requests come in this order: tokens read, tokens written, or
    neither."""
    kept: set[Value] = set()
    messages = messages_of(graph)
    found: list[Usage] = []
    for _, op, _ in asks:
        path = list(path_of(graph, op.operands[0]))[::-1]
        tokens = lengths.of[path[-1]] if path else 0.0
        hit = max((i for i, v in enumerate(path) if v in kept), default=-1)
        read = lengths.of[path[hit]] if hit >= 0 else 0.0
        wrote = 0.0
        if rules is None:
            read = 0.0
        elif not rules.marks:
            read = read // rules.step * rules.step if read >= rules.minimum else 0.0
            kept.update(path)
        else:
            shared = dict(op.attr("shared", ()))
            reads = [shared.get(-1, 0.0) if i == len(path) - 1 else shared.get(messages.get(v) or 0, 0.0) for i, v in enumerate(path)]
            points = [Point(i, lengths.of[v], max(reads[i:])) for i, v in enumerate(path)]
            marks = [i for i in choose(points, hit, rules) if i > hit]
            kept.update(path[i] for i in marks)
            wrote = lengths.of[path[marks[-1]]] - read if marks else 0.0
        found.append(Usage(round(tokens), 0, round(min(read, tokens)), 0, 1, written_tokens=round(max(0.0, min(wrote, tokens - read)))))
    return found
