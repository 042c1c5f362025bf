"""Times what the engine's host does, with a model that answers at once: the cost beside the device, in processor time.

    python -m benchmarks.bench_host                       # all parts
    python -m benchmarks.bench_host --parts pass --batches 64,256 --json out.json

pass    one decode pass by batch: scheduling, the books afterwards, and delivering tokens as text
json    one pass of the JSON workload, 160 answers to one regex of eight fields: what its device waits for (delivering tokens,
        scheduling), and what the host does beside it (the books, the text)
gen     one answer of one token behind a shared prompt, from submission to its end; and the part of the radix tree in it
select  one choice of four behind a shared prompt
radix   single operations on the radix tree

Processor time of the one thread that does it all, so that a busy machine does not count; medians of the repetitions.
The limits are those of docs/performance.md; a ratio above 1 misses one.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.bench_programs import where
from benchmarks.stepped import SteppedCore
from benchmarks.workloads import CHARACTER, text
from lmc.backend.engine import gguf_tokenizer
from lmc.backend.engine import tokenizer as tokenizers
from lmc.backend.engine.automaton import ConstraintCompiler
from lmc.backend.engine.forward_batch import ModelPass
from lmc.backend.engine.models import gguf
from lmc.backend.engine.models.gguf import embedded_path
from lmc.backend.engine.radix_cache import RadixCache
from lmc.backend.engine.request import Request
from lmc.backend.engine.runner import PassOutput
from lmc.backend.engine.sampler import is_constrained
from lmc.backend.local import LocalBackend
from lmc.chat import CHATML
from lmc.segments import Constraint, Gen, SamplingParams, Select, Text

_POOL = 400_000  # slots


@dataclass(frozen=True)
class Row:
    """A line: median and range of `reps` measurements in µs, and the limit where there is one."""

    part: str
    case: str
    what: str
    us: float
    low: float
    high: float
    reps: int
    limit: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.limit is None else self.us / self.limit


def row(part: str, case: str, what: str, found: Sequence[float], limit: float | None = None) -> Row:
    return Row(part, case, what, statistics.median(found), min(found), max(found), len(found), limit)


# -- an engine without a model ---------------------------------------------------------------------------------------------


class NullRunner:
    """Says the words of a text, whoever asks, or any token that a constraint allows, on a device that needs no time."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens, self._at = list(tokens), 0
        self._allowed: dict[int, tuple[np.ndarray, list[int]]] = {}  # by id of the mask
        self._before: dict[Request, int] = {}  # the states behind what was said last; `_behind`: what is being said
        self._behind: dict[Request, int] = {}
        self.spent = 0  # ns of processor time

    def run(self, work: ModelPass) -> PassOutput:
        began, self._at = time.thread_time_ns(), self._at + 1
        n, token = len(work.samples), self._tokens[self._at % len(self._tokens)]
        self._before, self._behind = self._behind, {}
        tokens = [self._constrained(req, i) if is_constrained(req) else token for i, (_, req) in enumerate(work.samples)]
        self.spent += time.thread_time_ns() - began
        return PassOutput(tokens, [None] * n, [-1.0] * len(work.scores), [()] * len(work.scores))

    def _constrained(self, req: Request, place: int) -> int:
        assert req.answer is not None and req.answer.matcher is not None
        found = req.answer.matcher.place
        assert found is not None, "only automata are measured here"
        automaton, state = found[0], self._before[req] if req.awaited else found[1]
        bits = automaton.mask(state)
        if id(bits) not in self._allowed:
            self._allowed[id(bits)] = bits, np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        allowed = self._allowed[id(bits)][1]
        token = allowed[(7919 * place + 104729 * req.length) % len(allowed)]
        self._behind[req] = automaton.next(state, token)
        return token

    def launch(self, work: ModelPass) -> NullFlight:
        return NullFlight(self.run(work))


@dataclass(frozen=True)
class NullFlight:
    output: PassOutput
    over, seconds = True, 0.0

    def result(self) -> PassOutput:
        return self.output


class Host:
    """An engine with everything but a model. Times parts of itself where it is asked to."""

    def __init__(self, words: tokenizers.Tokenizer, *, max_batch: int = 512, chunk: int = 2048) -> None:
        tokens = words.encode((text(Random(1), 400),))
        self.engine = LocalBackend(
            name="null",
            vocabulary=words,
            chat_template=CHATML,
            runner=NullRunner(tokens),
            compiler=ConstraintCompiler(
                words.byte_table, words.special_ids, words.eos_token_ids[0], words.vocab_size,
                encode=lambda text: words.encode((text,), at_start=False),
            ),
            max_tokens=_POOL,
            max_context=8192,
            max_batch=max_batch,
            chunk=chunk,
            core=SteppedCore,
        )
        self.core: Any = self.engine._core
        self.runner: NullRunner = self.core._runner
        self.scheduler = self.core.scheduler

    def drain(self) -> int:
        """Runs until nothing is left; the number of passes."""
        n = 0
        while self.core.turn():
            n += 1
        return n

    @contextmanager
    def timed(self, owner: Any, *names: str) -> Iterator[list[float]]:
        """Adds up the µs spent within methods of `owner`, those that they call included once, the clock's own excluded."""
        spent, inside, clock = [0.0], [False], clock_us()

        def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
            def timed(*args: Any, **kwargs: Any) -> Any:
                if inside[0]:
                    return method(*args, **kwargs)
                inside[0], began = True, time.thread_time_ns()
                try:
                    return method(*args, **kwargs)
                finally:
                    spent[0] += (time.thread_time_ns() - began) / 1e3 - clock
                    inside[0] = False

            return timed

        for name in names:
            setattr(owner, name, wrap(getattr(owner, name)))
        try:
            yield spent
        finally:
            for name in names:
                delattr(owner, name)


def clock_us() -> float:
    """Return the cost of reading the clock."""
    return spent(lambda: [time.thread_time_ns() for _ in range(2000)]) / 2000


def spent(action: Callable[[], Any]) -> float:
    """µs of this thread's processor time."""
    began = time.thread_time_ns()
    action()
    return (time.thread_time_ns() - began) / 1e3


def gen(tokens: int) -> Gen:
    return Gen(SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True))


# -- parts -----------------------------------------------------------------------------------------------------------------

_PASS_LIMITS = {1: 500.0, 64: 4000.0}
_PASSES = 40


def bench_pass(words: tokenizers.Tokenizer, batches: Sequence[int], reps: int) -> list[Row]:
    rows: list[Row] = []
    for batch in batches:
        host = Host(words)
        whole: list[float] = []
        parts: dict[str, list[float]] = {"schedule": [], "commit": [], "deliver": []}
        for rep in range(reps):
            prompts = [text(Random(f"{rep} {i}"), 60) for i in range(batch)]
            handles = [host.engine.submit(None, [Text((prompt,)), gen(_PASSES + 40)]) for prompt in prompts]
            while any(req.in_head for req in host.scheduler.running) or len(host.scheduler.running) < batch:
                host.core.turn()
            whole.append(spent(lambda host=host: [host.core.turn() for _ in range(_PASSES // 2)]) / (_PASSES // 2))
            for owner, name, of in (
                (host.scheduler, "schedule", "schedule"),
                (host.scheduler, "commit", "commit"),
                (host.core.delivery, "deliver", "deliver"),
            ):
                with host.timed(owner, name) as found:
                    for _ in range(_PASSES // 4):
                        host.core.turn()
                parts[of].append(found[0] / (_PASSES // 4))
            del handles
            host.drain()
        rows.append(row("pass", f"batch {batch}", "all", whole, _PASS_LIMITS.get(batch)))
        rows += [row("pass", f"batch {batch}", name, found) for name, found in parts.items()]
    return rows


def bench_json(words: tokenizers.Tokenizer, reps: int) -> list[Row]:
    host, n = Host(words), 160
    ask = Gen(SamplingParams(max_new_tokens=192, temperature=0.0), Constraint("regex", CHARACTER))
    whole: list[float] = []
    parts: dict[str, list[float]] = {"schedule": [], "deliver": [], "commit": [], "emit_deltas": []}
    for rep in range(2 * reps + 1):
        prompts = [text(Random(f"{rep} {i}"), 60) for i in range(n)]
        handles = [host.engine.submit(None, [Text((prompt,)), ask]) for prompt in prompts]
        while any(req.in_head for req in host.scheduler.running) or len(host.scheduler.running) < n:
            host.core.turn()
        passes, runner = host.core.counters().passes, host.runner.spent
        if rep % 2 or rep == 0:  # the first builds what all later ones find
            found = spent(host.drain)
            passes = host.core.counters().passes - passes
            whole += [(found - (host.runner.spent - runner) / 1e3) / passes] if rep else []
        else:
            with (
                host.timed(host.scheduler, "schedule") as schedule,
                host.timed(host.core.delivery, "deliver") as deliver,
                host.timed(host.scheduler, "commit") as commit,
                host.timed(host.core.delivery, "emit_deltas") as speak,
            ):
                host.drain()
            passes = host.core.counters().passes - passes
            for name, found in zip(parts, (schedule, deliver, commit, speak), strict=True):
                parts[name].append(found[0] / passes)
        assert all(handle.results[0].error is None for handle in handles)
    waits = [a + b for a, b in zip(parts["schedule"], parts["deliver"], strict=True)]
    rows = [row("json", f"batch {n}", "all", whole), row("json", f"batch {n}", "the device waits", waits)]
    return rows + [row("json", f"batch {n}", name, found) for name, found in parts.items()]


def bench_gen(words: tokenizers.Tokenizer, n: int, reps: int) -> list[Row]:
    return _behind_a_prompt(words, "gen", n, reps, lambda rng: gen(1))


def bench_select(words: tokenizers.Tokenizer, n: int, reps: int) -> list[Row]:
    return _behind_a_prompt(
        words, "select", n, reps, lambda rng: Select(tuple(" " + text(rng, 14) for _ in range(4)))
    )


_TREE = ("match", "insert", "write_slots", "lock", "lengthen", "unlock", "evict", "evicted_before")


def _behind_a_prompt(
    words: tokenizers.Tokenizer, part: str, n: int, reps: int, ask: Callable[[Random], Gen | Select]
) -> list[Row]:
    """`n` asks behind 1000 shared words and 40 of their own."""
    host = Host(words)
    found: dict[str, list[float]] = {"submit": [], "engine": [], "radix tree in it": []}
    for rep in range(reps):
        rng = Random(rep)
        shared = text(rng, 1000)
        asks = [[Text((shared, " ", text(rng, 40), "\nAnswer:")), ask(rng)] for _ in range(n)]
        host.engine.submit(None, [Text((shared,)), gen(1)])
        host.drain()
        gc.collect()
        handles: list[Any] = []
        found["submit"].append(spent(lambda a=asks, h=handles: h.extend(host.engine.submit(None, s) for s in a)) / n)
        if rep % 2:
            found["engine"].append(spent(host.drain) / n)
        else:
            with host.timed(host.scheduler.tree, *_TREE) as tree:
                host.drain()
            found["radix tree in it"].append(tree[0] / n)
        assert all(h.results[0].done for h in handles)
        host.engine.flush_cache()
        host.drain()
    limits = {"radix tree in it": 20.0}
    return [row(part, f"1000 w shared + 40 w, n {n}", what, us, limits.get(what)) for what, us in found.items()]


def bench_radix(reps: int) -> list[Row]:
    """On a tree of 300 prompts of 1000 tokens, a third of them shared."""
    rng = np.random.default_rng(0)
    tree = RadixCache()
    shared = rng.integers(0, 49152, 333, dtype=np.int32)
    prompts = [np.concatenate((shared, rng.integers(0, 49152, 667, dtype=np.int32))) for _ in range(300)]
    slots = np.arange(1000, dtype=np.int64)
    for prompt in prompts:
        tree.insert(tree.root, prompt, slots)
    nodes = [tree.match(prompt) for prompt in prompts]
    fresh = [np.concatenate((shared, rng.integers(0, 49152, 30, dtype=np.int32))) for _ in range(300 * reps)]
    one = prompts[0]

    def again(action: Callable[[int], Any]) -> list[float]:
        return [spent(lambda r=r: [action(i) for i in range(r * 300, (r + 1) * 300)]) / 300 for r in range(reps)]

    single = RadixCache()
    single.insert(single.root, one, slots)
    cases: list[tuple[str, list[float], float | None]] = [
        ("match 1000 tokens, equal, one edge", again(lambda i: single.match(one)), 5.0),
        ("match 1000 tokens, equal, two edges", again(lambda i: tree.match(prompts[i % 300])), None),
        ("match, 333 of 363 tokens there", again(lambda i: tree.match(fresh[i])), None),
        ("slots of 1000 tokens", again(lambda i: tree.slots_to(nodes[i % 300])), None),
        ("lock and unlock", again(lambda i: (tree.lock(nodes[i % 300]), tree.unlock(nodes[i % 300]))), None),
        ("insert 30 new behind 333", again(lambda i: tree.insert(tree.root, fresh[i], slots[:363])), None),
        ("evict one leaf", again(lambda i: tree.evict(1)), None),
    ]
    return [row("radix", case, "", us, limit) for case, us, limit in cases]


# -- printing --------------------------------------------------------------------------------------------------------------

COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("part", lambda r: r.part),
    ("case", lambda r: r.case),
    ("what", lambda r: r.what),
    ("µs", lambda r: f"{r.us:.1f}"),
    ("range", lambda r: f"{r.low:.1f}-{r.high:.1f}"),
    ("reps", lambda r: str(r.reps)),
    ("limit", lambda r: "" if r.limit is None else f"{r.limit:.0f}"),
    ("ratio", lambda r: "" if r.ratio is None else f"{r.ratio:.2f}"),
)


def table(rows: Sequence[Row]) -> str:
    cells = [[title for title, _ in COLUMNS], *([show(r) for _, show in COLUMNS] for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = ("  ".join(c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
             for line in cells)
    return "\n".join(line.rstrip() for line in lines)


PARTS = ("pass", "json", "gen", "select", "radix")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--batches", default="1,8,64,256", help="sequences that decode together, for the part pass")
    parser.add_argument("--n", type=int, default=256, help="asks of the parts gen and select")
    parser.add_argument("--reps", type=int, default=6, help="repetitions")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {unknown.pop()!r}; there are {', '.join(PARTS)}")
    words = gguf_tokenizer.from_gguf(gguf.read(embedded_path()).metadata, "smollm2", eos_token_ids=(2,))
    rows: list[Row] = []
    for part in parts:
        if part == "pass":
            rows += bench_pass(words, [int(b) for b in options.batches.split(",")], options.reps)
        elif part == "json":
            rows += bench_json(words, options.reps)
        elif part == "radix":
            rows += bench_radix(options.reps)
        else:
            rows += (bench_gen if part == "gen" else bench_select)(words, options.n, options.reps)
    info = {**where(), "tokenizer": "smollm2", "model": "none"}
    print("  ".join(f"{k}: {v}" for k, v in info.items()))
    print(table(rows))
    if options.json:
        listed = [{**asdict(r), "ratio": r.ratio} for r in rows]
        options.json.write_text(json.dumps({**info, "rows": listed}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
