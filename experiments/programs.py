"""Experiments on whole programs: throughput, latency, ablations, arrivals, run-ahead, and the paper's workloads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any

import lmc
from benchmarks import bench_ahead
from benchmarks.ahead_programs import WORKLOADS
from benchmarks.bench_programs import ABLATIONS, POLICIES, ablated
from benchmarks.workloads import Size, Workload, figures
from experiments.core import ONE_PROGRAM, SYNTHETIC, Opened, Plot, Point, Row, Setup, experiment, measured, spreads
from lmc.measuring import ONE_AFTER_ANOTHER, Line, MeasuredMode, Way, arriving, compare, compiled, interpreted, measure, poisson


def systems(setup: Setup) -> Generator[tuple[str, Opened]]:
    """Names of what is measured, and each opened, while it is its turn: lmc, then the peers."""
    for name, make in (("lmc", setup.engine), *((name.partition(":")[0], lambda name=name: setup.peer(name)) for name in setup.peers)):
        with closing(Opened(make)) as opened:
            yield name, opened


def timed(line: Line) -> Row:
    """The columns of a comparison."""
    return {
        "way": line.way, "arrivals": "one by one" if line.way in ONE_AFTER_ANOTHER else "at once", "n": line.items, "reps": line.reps, "seconds": line.seconds,
        "least": line.least, "most": line.most, "cpu s": line.cpu, "programs/s": line.items / line.seconds,
        **spreads(line), "requests": line.requests, "prompt": line.prompt_tokens, "computed": line.computed_tokens, "generated": line.generated_tokens,
        "passes": line.passes, "same": line.same,
    }  # fmt: skip


def by_system(setup: Setup, ways: tuple[str, ...], *, one: bool = False) -> Generator[Point]:
    """Each of the ten workloads on each system."""
    for system, opened in systems(setup):
        for workload in figures(Size(setup.scale)):
            def rows(workload: Workload = workload, opened: Opened = opened, system: str = system) -> list[Row]:
                count = 1 if one else setup.count(workload.n)
                with opened.using() as backend:
                    lines = compare(workload.program, lambda rep: workload.items(count, setup.seed + rep), backend, ways=ways, reps=setup.reps, streams=one)
                return [{"workload": workload.name, "system": system, **timed(line)} for line in lines]

            yield Point(f"{system} {workload.name}", rows)


@experiment(
    "throughput", "How many programs a second, as a batch?", Plot("Programs a second, compiled", "workload", "programs/s", "system · way"),
    reads="Ten shapes of programs. first: an item's first answer; total: its last, both from the start of the batch. computed: prompt tokens that no cache "
          "held. "
    "same: items with the interpreter's texts.", paper="Figure 5", beside=True, lacks=SYNTHETIC,
)  # fmt: skip
def throughput(setup: Setup) -> Generator[Point]:
    return by_system(setup, ("interpreted", "compiled"))


@experiment(
    "latency", "How long does one program take on a warm, otherwise idle engine?", Plot("Seconds of one program", "workload", "seconds", "system · way"),
    reads="One program at a time, with an empty cache. first: until its first token.", paper="Figure 6", beside=True, lacks=SYNTHETIC,
)  # fmt: skip
def latency(setup: Setup) -> Generator[Point]:
    return by_system(setup, ("loop", "one by one"), one=True)


SHARED = ("few-shot", "react", "tree", "judge")
"""Workloads in which something is shared, which is what most ablations leave out."""


def _workloads(setup: Setup, names: tuple[str, ...]) -> list[Workload]:
    return [w for w in figures(Size(setup.scale)) if w.name in names]


@dataclass(frozen=True)
class Variant:
    """An engine, or a way of running a program on it, that does one thing otherwise.

    own      options of the engine that does it
    without  options of the one that does not
    way      runs a workload without it; None: as with it, compiled
    """

    own: Mapping[str, Any] = field(default_factory=dict[str, Any])
    without: Mapping[str, Any] = field(default_factory=dict[str, Any])
    way: Callable[[Workload], Way] | None = None


VARIANTS: Mapping[str, Variant] = {
    "cache": Variant(without={"cache": "off"}), "tree (a table instead)": Variant(without={"cache": "table"}),
    "order (first come first served)": Variant(without={"schedule": "fcfs"}), "order (random)": Variant(without={"schedule": "random"}),
    "programs (longest prefix first)": Variant(without={"schedule": "lpm"}), "next use (least recently used)": Variant(without={"eviction": "lru"}),
    "forced tokens": Variant(without={"forced": False}), "drafts (off by themselves)": Variant(own={"drafts": "auto"}),
    "run-ahead": Variant(way=lambda workload: compiled(workload.program, ahead="off")),
    "compiling (interpreted)": Variant(way=lambda workload: interpreted(workload.program)),
    "parallelism (one after another)": Variant(way=lambda workload: lambda items, backend: workload.program.run_batch(
        list(items), backend=backend, temperature=0, num_threads=1)),
    **{f"pass {name.removeprefix('without-')}": Variant(way=lambda workload, name=name: lambda items,
        backend: ablated(workload, backend, name)(list(items))) for name in ABLATIONS},
}  # fmt: skip


@experiment(
    "ablations", "What is each part worth?", Plot("Passes of the model without it, over those with it", "without", "passes times", per="workload"),
    Plot("CPU time without it, over that with it", "without", "cpu times", per="workload"),
    Plot("Time without it, over the time with it", "without", "times", per="workload"),
    reads="Compiled batches with a part and without it, in turns, on two engines of one process. times: seconds without over seconds with it; cpu times: the "
          "same of CPU time, which other "
    "work on the machine moves less; passes vary with what happens to come together; same: items with the same text.", paper="Figure 8c", lacks=SYNTHETIC,
)  # fmt: skip
def ablations(setup: Setup) -> Generator[Point]:
    with closing(Opened(setup.engine)) as base:
        for name, variant in VARIANTS.items():
            with ExitStack() as stack:
                own, without = [
                    stack.enter_context(closing(Opened(lambda options=options: setup.engine(**options)))) if options else base
                    for options in (variant.own, variant.without)
                ]
                for workload in _workloads(setup, (*SHARED, "json")):
                    yield Point(
                        f"{workload.name} {name}",
                        lambda workload=workload, name=name, own=own, without=without: _ablated(setup, workload, name, own(), without()),
                    )


def _ablated(setup: Setup, workload: Workload, name: str, engine: Any, other: Any) -> Row:
    count, way = setup.count(workload.n), VARIANTS[name].way
    whole, without = compiled(workload.program), way(workload) if way else compiled(workload.program)
    for run, backend in ((whole, engine), (without, other)):
        measure(run, workload.items(min(2, count), setup.seed - 1), backend)
    pairs: list[tuple[MeasuredMode, MeasuredMode]] = []
    for rep in range(setup.reps):
        items = workload.items(count, setup.seed + rep)
        if rep % 2:
            second, first = measure(without, items, other), measure(whole, items, engine)
        else:
            first, second = measure(whole, items, engine), measure(without, items, other)
        pairs.append((first, second))
    spent, less = pairs[-1][0].counters, pairs[-1][1].counters
    over = lambda of: median(of(b) / of(a) for a, b in pairs)
    return {
        "workload": workload.name, "without": name, **measured([b for _, b in pairs], [a for a, _ in pairs]), "times": over(lambda m: m.seconds),
        "cpu times": over(lambda m: m.cpu), "passes times": less.passes / spent.passes, "requests": less.calls, "computed with": spent.prefilled_tokens,
        "computed": less.prefilled_tokens, "unique": less.unique_tokens, "passes with": spent.passes, "passes": less.passes, "generated": less.generated_tokens,
        "forced with": spent.forced_tokens, "forced": less.forced_tokens, "drafted with": spent.drafted_tokens, "accepted with": spent.accepted_tokens,
    }  # fmt: skip


@experiment(
    "order", "How near is the order of the engine to the best one?",
    Plot("Prompt tokens that had to be computed, over those that were", "workload", "optimality", "policy"),
    reads="A pool with room for about two programs, so that the order decides what is computed twice. unique: tokens of the trie of all prompts. same: items "
          "with the text that they have "
    "with room for all. All but the times are counters.", paper="Theorem 3.1, Section 6.3", lacks=SYNTHETIC,
)  # fmt: skip
def order(setup: Setup) -> Generator[Point]:
    with closing(Opened(setup.engine)) as roomy:  # with room for all
        for workload in _workloads(setup, SHARED):
            alone = functools.cache(lambda workload=workload: _roomy(setup, workload, roomy()))
            for policy, options in POLICIES.items():
                yield Point(
                    f"{workload.name} {policy}",
                    lambda workload=workload, policy=policy, options=options, alone=alone: _ordered(setup, workload, policy, options, *alone()),
                )


def _roomy(setup: Setup, workload: Workload, engine: Any) -> tuple[int, MeasuredMode]:
    """Return the memory that two items need together, in tokens, and all items on an engine with room for them."""
    way, items = compiled(workload.program), workload.items(setup.count(workload.n), setup.seed)
    two = measure(way, items[:2], engine).counters
    return int(1.1 * two.unique_tokens) + two.generated_tokens + 256, measure(way, items, engine)


def _ordered(setup: Setup, workload: Workload, policy: str, options: Mapping[str, Any], pool: int, reference: MeasuredMode) -> Row:
    with closing(setup.engine(max_tokens=pool, **options)) as engine:
        found = measure(compiled(workload.program), workload.items(setup.count(workload.n), setup.seed), engine)
    spent = found.counters
    return {"workload": workload.name, "policy": policy, "pool": pool, **measured([found], [reference]), "prompt": spent.prompt_tokens,
        "computed": spent.prefilled_tokens,
            "unique": spent.unique_tokens, "optimality": spent.prefill_optimality, "preemptions": spent.preemptions}  # fmt: skip


@experiment(
    "hit-rate", "What does a shared prefix give, by how much of the prompt it is?", Plot("Programs a second", "shared", "programs/s", "cache", kind="lines"),
    Plot("Seconds to the first token, median", "shared", "first p50", "cache", kind="lines"),
    reads="One gen behind a prompt of fixed length, of which a share is the same in all items.", paper="Figure 8a and 8b", lacks=SYNTHETIC,
)  # fmt: skip
def hit_rate(setup: Setup) -> Generator[Point]:
    for cache in ("tree", "off"):
        for share in (0.0, 0.25, 0.5, 0.75, 0.95):
            yield Point(f"{cache} {share:.0%}", lambda cache=cache, share=share: _shared(setup, cache, share))


def _shared(setup: Setup, cache: str, share: float) -> Row:
    from benchmarks.workloads import answer, text

    words, tokens = Size(setup.scale).words(1000), Size(setup.scale).tokens(32)
    common, rng = text(Random("shared"), round(words * share)), Random(setup.seed)

    @lmc.function
    def ask(s, own):
        s += common + " " + own + "\nAnswer:" + answer("answer", tokens)

    count = setup.count(128)
    with closing(setup.engine(cache=cache)) as engine:
        draw = lambda: [{"own": text(rng, words - round(words * share))} for _ in range(count)]
        way = compiled(ask)
        measure(way, draw()[:2], engine)
        items = [draw() for _ in range(setup.reps)]
        runs = [measure(way, given, engine, streams=True) for given in items]
        reference = [measure(interpreted(ask), given, engine) for given in items[:1]]
    found, spent = measured(runs, reference), runs[-1].counters
    return {"cache": cache, "shared": share, "hit rate": spent.cached_tokens / spent.prompt_tokens, **found, "programs/s": count / found["seconds"]}


@experiment(
    "radix-overhead", "What does the radix cache cost where nothing is shared?", Plot("Seconds", "workload", "seconds", "cache"),
    reads="Chats with nothing in common, and nothing to be found again but their own turns (chat-short), and single gens of fresh text (agents), with the "
          "cache and without.",
    paper="Section 6.3, overhead of RadixAttention", lacks=SYNTHETIC,
)  # fmt: skip
def radix_overhead(setup: Setup) -> Generator[Point]:
    for workload in _workloads(setup, ("agents", "chat-short")):
        yield Point(workload.name, lambda workload=workload: list(_overhead(setup, workload)))


def _overhead(setup: Setup, workload: Workload) -> Iterator[Row]:
    reference: list[MeasuredMode] = []
    for cache in ("tree", "off"):
        with closing(setup.engine(cache=cache)) as engine:
            way = compiled(workload.program)
            measure(way, workload.items(2, setup.seed - 1), engine)
            runs = [measure(way, workload.items(setup.count(workload.n), setup.seed + rep), engine) for rep in range(setup.reps)]
        spent, reference = runs[-1].counters, reference or runs
        yield {"workload": workload.name, "cache": cache, **measured(runs, reference), "computed": spent.prefilled_tokens, "cached": spent.cached_tokens}


@experiment(
    "arrivals", "What do users wait when programs arrive by themselves?",
    Plot("Seconds to the last answer, 95th percentile", "load", "total p95", "workload · arrivals", kind="lines"),
    Plot("Seconds to the first token, 95th percentile", "load", "first p95", "workload · arrivals", kind="lines"),
    reads="load: arrivals a second over the programs a second of a batch. poisson: at random; bursts: eight at once, or a third of all. Times count from an "
          "item's arrival. same: items with the text that they have in a batch.",
    lacks=SYNTHETIC,
)  # fmt: skip
def arrivals(setup: Setup) -> Generator[Point]:
    for workload in _workloads(setup, ("react", "judge", "chat-short")):
        yield Point(workload.name, lambda workload=workload: list(_arrivals(setup, workload)))


def _arrivals(setup: Setup, workload: Workload) -> Iterator[Row]:
    count = setup.count(workload.n) * 2
    with closing(setup.engine()) as engine:
        program = lmc.compile(workload.program)
        way = lambda items, backend: program.batch(items, backend=backend, temperature=0)
        measure(way, workload.items(2, setup.seed - 1), engine)
        whole = measure(way, workload.items(count, setup.seed + 1), engine)
        rate = count / whole.seconds
        for kind in ("poisson", "bursts"):
            for load in (0.3, 0.6, 0.9):
                rng = Random(f"{setup.seed}/{kind}/{load}")
                due = poisson(rng, load * rate, count) if kind == "poisson" else _bursts(load * rate, count)
                found = arriving(program, workload.items(count, setup.seed + 1), engine, due)
                yield {"workload": workload.name, **measured([found], [whole], arrivals=kind), "load": load, "rate/s": load * rate}


def _bursts(rate: float, count: int) -> list[float]:
    """Times of arrivals of eight at once, or of a third of all where these are few."""
    size = min(8, math.ceil(count / 3))
    return [(i // size) * size / rate for i in range(count)]


@experiment(
    "run-ahead", "What is run-ahead worth on programs that read as they go, beside an expert's asyncio?",
    Plot("Seconds over the expert's", "program", "times the expert's", "mode"),
    reads="Ten programs as people write them on a mock of an API (0.3 s ± 30 % an answer, scaled by a third), interpreted, compiled, and rewritten by hand "
          "with asyncio.gather. "
    "more tokens: beyond the interpreter's.", on_device=False, lacks={**ONE_PROGRAM, "accuracy": "the mock's answers are neither right nor wrong"},
)  # fmt: skip
def run_ahead(setup: Setup) -> Generator[Point]:
    for workload in WORKLOADS:
        for temperature in (0.0, None):
            yield Point(f"{workload.name} {'default' if temperature is None else temperature}", lambda workload=workload, temperature=temperature: [
                {"program": row.workload, "mode": row.mode, "temperature": row.temperature, "seconds": row.seconds, "requests": row.requests,
                    "tokens": row.tokens,
                 "ahead used": row.used, "ahead wasted": row.wasted, "times the expert's": row.ratio, "faster": row.speedup, "more tokens": row.more}
                for row in bench_ahead.bench(workload, bench_ahead.api, scale=0.33, temperature=temperature, reps=setup.reps, warm=2)
            ])  # fmt: skip
