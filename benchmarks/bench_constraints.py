"""Regex constraints in one run: lmc's token automata beside xgrammar, outlines-core and llguidance.

    python -m benchmarks.bench_constraints                   # on the small model's vocabulary, about a minute
    python -m benchmarks.bench_constraints --json out.json

Every library follows the same answers token by token over the same vocabulary and gives the mask before each token.
All get the same language: the regex with its classes written out as ranges. Times are CPU times (of the process for
compiling, of the thread for masks), so that other work on the machine does not count. Libraries that are not installed
are left out: `pip install outlines-core llguidance`.

compile  from the regex to the first mask, nothing cached
mask     one mask into a row of a bit mask: the first walks over the answers (cold), and once more (warm)
forced   share of the answers' tokens that the library says need no sampling. xgrammar gives text: a token counts if it
         lies wholly within it, also where the text that follows could have changed it
step     what constraints add to one greedy step of 64 sequences on the CPU, by the share of rows whose best token the
         constraint refuses. lmc: the time of `Sampler.sample` on logits [64, vocabulary], of `accept` and of `forced`,
         less that of `Sampler.sample` on the same logits for the same requests without constraints (below zero where
         looking at few allowed tokens took less time than looking at all). xgrammar: the time of its own filling, masking
         and accepting. The same hundred steps `--walks` times, each from scratch: of each step the least counts, for what a
         step has to do it does in every walk, and the rest is the machine's. `once` is the slowest single step of all walks,
         and `free once` that of the sampler without constraints, which no constraint can have slowed; each above its median
drawn    the same for rows that are sampled, with temperature 1, alone or beside top_p or top_k: a row of few allowed tokens is drawn
steps    from these alone, any other is closed and drawn from as without constraints. Logits fall as in texts, with the logarithm of a
         token's rank; without constraints such a step takes `free`
first    the same for a batch of different answers of one regex from their beginning, nothing built but the start's row, a tenth
steps    of the best tokens refused. Between two steps the mask prefetcher (a thread of its own) has `--pass-ms` of processor time,
         less than a pass of the small model takes on a CPU; what it has not built by then, the step builds and is charged with:
         `built` says in how many steps rows or forced runs were built, and the slowest of these stands apart
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from benchmarks.bench_forcing import CHARACTER, FORMS
from benchmarks.bench_programs import where
from benchmarks.xgrammar_oracle import normalise_regex
from lmc.backend.engine.automaton import AutomatonMatcher
from lmc.backend.engine.gguf_tokenizer import from_gguf
from lmc.backend.engine.mask_prefetcher import MaskPrefetcher, Prefetched
from lmc.backend.engine.tokenizer import Tokenizer
from lmc.backend.mock_samples import sample_regex
from lmc.fsm.forced import ForcedTokens
from lmc.fsm.regex import compile_regex
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary

NAMES = "|".join(
    a + b
    for a in ("Har", "Ron", "Her", "Dra", "Nev", "Lun", "Gin", "Alb", "Sev", "Rub")
    for b in ("ry", "ald", "mione", "co", "ville")
)
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "character": (CHARACTER, tuple(answer for _, answer in FORMS["character"].examples)),
    "judge": (
        r'\{"summary": "[\w\d\s]+\.", "grade": "[ABCD][+-]?"\}',
        ('{"summary": "The essay is clear and well argued.", "grade": "B+"}', '{"summary": "Short.", "grade": "A"}'),
    ),
    "tool call": (
        r'\{"tool": "(search|finish)", "arguments": \{"order(Id|Name)": "\w{1,20}"\}\}',
        (
            '{"tool": "search", "arguments": {"orderId": "abc12"}}',
            '{"tool": "finish", "arguments": {"orderName": "apples"}}',
        ),
    ),
    "50 names": (NAMES, ("Harry", "Sevmione", "Ronald", "Lunville")),
    "words {1,200}": (
        r"[\w\s]{1,200}",
        ("Once upon a time there was a small engine that could climb every hill", "a b", "The end"),
    ),
    "date": (r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", ("2026-11-21", "1999-01-02")),
    "JSON string": (
        r'"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"',
        ('"plain text, nothing else"', '"a \\"quote\\" and \\u00e9, 世界"'),
    ),
    "e-mail": (r"[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,4}", ("maria.lopez@example.org", "x@y.io")),
}


class Walker(Protocol):
    """One answer on its way, in one library."""

    def mask(self, row: np.ndarray) -> None:
        """Writes the allowed tokens into `row`, int32 [words]."""
        ...

    def accept(self, token: int) -> None: ...

    def forced(self) -> Sequence[int] | str:
        """Tokens, or text, that need no sampling here."""
        ...


class Library(Protocol):
    """Compiles a regex over the vocabulary; gives what starts a walk."""

    def compile(self, regex: str) -> Callable[[], Walker]: ...


class Ours:
    """`lmc.fsm`, as the engine uses it."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self.vocabulary, self.encode = vocabulary, encode

    def compile(self, regex: str) -> Callable[[], Walker]:
        automaton = TokenAutomaton(compile_regex(regex), self.vocabulary)
        forced = ForcedTokens(automaton, self.encode)
        return lambda: _OurWalker(AutomatonMatcher(automaton, forced))


class _OurWalker:
    def __init__(self, matcher: AutomatonMatcher) -> None:
        self.matcher = matcher
        self.accept, self.forced = matcher.accept, matcher.forced

    def mask(self, row: np.ndarray) -> None:
        row[:] = self.matcher.bits.view(np.int32)


class XGrammar:
    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        import xgrammar

        info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens), xgrammar.VocabType.RAW, vocab_size=vocabulary.size, stop_token_ids=list(vocabulary.eos)
        )  # fmt: skip
        self.make = lambda: xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.matcher = xgrammar.GrammarMatcher

    def compile(self, regex: str) -> Callable[[], Walker]:
        compiled = self.make().compile_regex(normalise_regex(regex))
        return lambda: _XGrammarWalker(self.matcher(compiled))


class _XGrammarWalker:
    def __init__(self, matcher: Any) -> None:
        self.matcher, self.accept = matcher, matcher.accept_token

    def mask(self, row: np.ndarray) -> None:
        import torch

        self.matcher.fill_next_token_bitmask(torch.from_numpy(row[None]), 0)

    def forced(self) -> str:
        try:
            return self.matcher.find_jump_forward_string()
        except UnicodeDecodeError:  # it stops inside a character
            return ""


class Outlines:
    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        import outlines_core

        self.core = outlines_core
        ids: dict[bytes, list[int]] = {}
        for i, text in enumerate(vocabulary.tokens):
            if text:
                ids.setdefault(text, []).append(i)
        self.vocabulary = outlines_core.Vocabulary(vocabulary.eos[0], ids)

    def compile(self, regex: str) -> Callable[[], Walker]:
        index = self.core.Index(normalise_regex(regex), self.vocabulary)
        return lambda: _OutlinesWalker(self.core.Guide(index))


class _OutlinesWalker:
    def __init__(self, guide: Any) -> None:
        self.guide = guide

    def mask(self, row: np.ndarray) -> None:
        self.guide.write_mask_into(row.ctypes.data, row.size, row.itemsize)

    def accept(self, token: int) -> None:
        self.guide.advance(token, return_tokens=False)

    def forced(self) -> Sequence[int]:
        return ()


class LLGuidance:
    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        import llguidance

        self.guidance = llguidance
        whole = small_words().raw.to_str()  # it forces tokens only with a tokenizer that it knows to be canonical
        self.tokenizer = llguidance.LLTokenizer(whole, n_vocab=vocabulary.size, eos_token=vocabulary.eos[0])

    def compile(self, regex: str) -> Callable[[], Walker]:
        grammar = self.guidance.LLMatcher.grammar_from_regex(normalise_regex(regex))
        matcher = self.guidance.LLMatcher(self.tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return lambda: _LLGuidanceWalker(matcher.deep_copy())


class _LLGuidanceWalker:
    def __init__(self, matcher: Any) -> None:
        import llguidance.numpy

        self.matcher, self.fill = matcher, llguidance.numpy.fill_next_token_bitmask
        self.accept, self.forced = matcher.consume_token, matcher.compute_ff_tokens

    def mask(self, row: np.ndarray) -> None:
        self.fill(self.matcher, row[None], 0)


LIBRARIES: dict[str, tuple[str, Callable[[Vocabulary, Callable[[str], list[int]]], Library]]] = {
    "lmc": ("lmc", Ours),
    "xgrammar": ("xgrammar", XGrammar),
    "outlines-core": ("outlines_core", Outlines),
    "llguidance": ("llguidance", LLGuidance),
}


@dataclass(frozen=True)
class Row:
    """One library on one regex. Microseconds, but for compile_ms."""

    case: str
    library: str
    compile_ms: float
    cold_median: float
    cold_p99: float
    cold_max: float
    warm_median: float
    warm_p99: float
    warm_max: float
    forced: float  # share of tokens


def measure(case: str, name: str, library: Library, encode: Callable[[str], list[int]], words: int, reps: int) -> Row:
    regex, texts = CASES[case]
    answers = [encode(text) for text in texts]
    row = np.zeros(words, np.int32)
    compiles: list[float] = []
    cold: list[float] = []
    for _ in range(reps):
        began = time.process_time()
        start = library.compile(regex)
        start().mask(row)
        compiles.append((time.process_time() - began) * 1e3)
        cold += _masks(start, answers, row)
    warm = _masks(start, answers, row)
    shares = [_forced_tokens(start(), answer, text, encode) for answer, text in zip(answers, texts, strict=True)]
    return Row(
        case,
        name,
        statistics.median(compiles),
        *_figures(cold),
        *_figures(warm),
        sum(shares) / sum(map(len, answers)),
    )


def _masks(start: Callable[[], Walker], answers: Sequence[Sequence[int]], row: np.ndarray) -> list[float]:
    """Microseconds of each mask along the answers; each next token must be in it."""
    found: list[float] = []
    for answer in answers:
        walker = start()
        for token in answer:
            began = time.thread_time()
            walker.mask(row)
            found.append((time.thread_time() - began) * 1e6)
            if not (row[token // 32] >> (token % 32) & 1 or isinstance(walker, _LLGuidanceWalker)):
                raise AssertionError(f"token {token} is not in the mask")
            walker.accept(token)  # llguidance's mask is that behind the forced tokens, and yet it takes them one by one
    return found


def _figures(times: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(times)
    return statistics.median(ordered), ordered[int(len(ordered) * 0.99)], ordered[-1]


def _forced_tokens(walker: Walker, answer: Sequence[int], text: str, encode: Callable[[str], list[int]]) -> int:
    """How many tokens of the answer need no sampling."""
    forced, at = 0, 0
    while at < len(answer):
        run = walker.forced()
        if isinstance(run, str):
            run = _within(answer[at:], run.encode(), encode)
        if list(answer[at : at + len(run)]) != list(run):
            break  # it cuts the text into other tokens: its masks go elsewhere
        for token in run:
            walker.accept(token)
        forced, at = forced + len(run), at + len(run)
        if at < len(answer):
            walker.accept(answer[at])
            at += 1
    return forced


def _within(tokens: Sequence[int], text: bytes, encode: Callable[[str], list[int]]) -> Sequence[int]:
    """The first of `tokens` that lie wholly within `text`."""
    length, n = 0, 0
    while n < len(tokens) and length + len(_BYTES[tokens[n]]) <= len(text):
        length += len(_BYTES[tokens[n]])
        n += 1
    return tokens[:n]


_BYTES: list[bytes] = []


# -- a step of a batch -------------------------------------------------------------------------------------------------

Params = dict[str, Any]
GREEDY: Params = {"temperature": 0.0}
DRAWN: dict[str, Params] = {
    "temperature": {"temperature": 1.0},
    "top_p=0.9": {"temperature": 1.0, "top_p": 0.9},
    "top_k=50": {"temperature": 1.0, "top_k": 50},
}


@dataclass(frozen=True)
class Step:
    """The time that constraints add to a step of a batch, in microseconds a step."""

    library: str
    batch: int
    refused: float  # share of rows whose best token is not allowed
    median: float
    p99: float
    max: float  # of steps that found all rows and forced runs built
    free: float = 0.0  # median of the sampler's step without constraints
    once: float = 0.0  # the slowest single step, each step taken by itself
    free_once: float = 0.0  # by how much the slowest one without constraints was above its median
    steps: int = 0
    built: int = 0  # steps in which the engine's thread built something
    built_max: float = 0.0


class _Batch:
    """The sampler on requests of one kind, and what it reads of them."""

    def __init__(self, vocabulary: Vocabulary, batch: int, rng: np.random.Generator, params: Params = GREEDY) -> None:
        import torch

        from lmc.backend.engine.sampler import Sampler

        self.eos, self.batch, self.rng, self.size = frozenset(vocabulary.eos), batch, rng, vocabulary.size
        self.sampler, self.params = Sampler(vocabulary.size), params
        self.logits = torch.empty((batch, vocabulary.size))
        self.renew()

    def renew(self) -> None:
        """Other logits, the same in each row."""
        import torch

        if self.params == GREEDY:
            fresh = self.rng.standard_normal(self.size, np.float32)
        else:
            fresh = (-1.5 * np.log(1 + self.rng.permutation(self.size))).astype(np.float32)
        self.logits.copy_(torch.from_numpy(fresh).expand_as(self.logits))

    def request(self, matcher: AutomatonMatcher | None) -> Any:
        from lmc.backend.engine.request import Request, RequestKind
        from lmc.segments import SamplingParams

        req = Request(RequestKind.GENERATE, np.zeros(1, np.int32), lambda _: None, SamplingParams(**self.params))
        req.answer = SimpleNamespace(stop_ids=self.eos, sampled=0, matcher=matcher)  # pyright: ignore
        return req

    def seconds(self, matchers: Sequence[AutomatonMatcher | None], best: Sequence[int]) -> float:
        """Of a step of these answers, whose best tokens are `best`."""
        own = self.logits[: len(matchers)].clone()
        own[range(len(best)), best] = 50.0 if self.params == GREEDY else 1.0
        requests = [self.request(matcher) for matcher in matchers]
        began = time.thread_time()
        self.sampler.sample(own, range(len(matchers)), requests)
        return time.thread_time() - began

    def best(self, matcher: AutomatonMatcher, token: int, refused: float) -> int:
        """The answer's own token, or one that its constraint refuses; asks nothing that builds a row."""
        while self.rng.random() < refused:
            other = int(self.rng.integers(self.size))
            if not matcher.allows(other):
                return other
        return token


@dataclass(frozen=True)
class _Taken:
    """One step, in microseconds: with constraints, and the sampler's without; and what was built meanwhile."""

    ours: float
    free: float = 0.0
    built: int = 0


class _Automaton(TokenAutomaton):
    """Counts the rows that are made in the thread that asks for `here`."""

    here = 0

    def _made(self, state: int, walk: Callable[[], np.ndarray]) -> Any:
        self.here += threading.current_thread() is threading.main_thread()
        return super()._made(state, walk)


class _Forced(ForcedTokens):
    """Counts the runs that are found in the thread that asks for `here`."""

    here = 0

    def _certain(self, state: int) -> tuple[int, ...]:
        self.here += threading.current_thread() is threading.main_thread()
        return super()._certain(state)


def _least(library: str, batch: int, refused: float, walks: Sequence[Sequence[_Taken]]) -> Step:
    """Of each step the least of all walks."""
    least: list[tuple[float, bool]] = []
    for taken in zip(*walks, strict=True):
        over = min(t.ours for t in taken) - min(t.free for t in taken)
        least.append((over, any(t.built for t in taken)))
    plain, built = [t for t, new in least if not new], [t for t, new in least if new]
    free = [t.free for walk in walks for t in walk]
    usual = statistics.median(free)
    median, p99, _ = _figures([t for t, _ in least])
    return Step(
        library, batch, refused, median, p99, max(plain, default=float("nan")), free=usual, steps=len(least),
        once=max(t.ours for walk in walks for t in walk) - usual, free_once=max(free) - usual,
        built=len(built), built_max=max(built, default=float("nan")),
    )  # fmt: skip


def steps(
    vocabulary: Vocabulary, encode: Callable[[str], list[int]], batch: int, refused: float, walks: int
) -> Iterator[Step]:
    """The written answers of all regexes at once, each at another place, rows and runs built."""
    taken = [list(_steps(vocabulary, encode, batch, refused)) for _ in range(walks)]
    yield _least("lmc", batch, refused, taken)
    yield _least("xgrammar", batch, refused, [list(_their_steps(vocabulary, encode, batch))])


def _steps(vocabulary: Vocabulary, encode: Callable[[str], list[int]], batch: int, refused: float) -> Iterator[_Taken]:
    rng = np.random.default_rng(0)
    cases = [(regex, encode(text)) for regex, texts in CASES.values() for text in texts]
    automata = {regex: _Automaton(compile_regex(regex), vocabulary) for regex, _ in cases}
    forced = {regex: _Forced(automaton, encode) for regex, automaton in automata.items()}
    greedy = _Batch(vocabulary, batch, rng)
    places: list[tuple[AutomatonMatcher, list[int], int]] = []
    for regex, answer in cases:  # rows and forced runs are made once a constraint: `first_steps` has them
        _build(AutomatonMatcher(automata[regex], forced[regex]), answer)
    for step in range(-5, 100):
        while len(places) < batch:
            regex, answer = cases[int(rng.integers(len(cases)))]
            places.append((AutomatonMatcher(automata[regex], forced[regex]), answer, 0))
        best = [greedy.best(matcher, answer[at], refused) for matcher, answer, at in places]
        before = _made_here(automata.values(), forced.values())
        sampled, free = greedy.seconds([p[0] for p in places], best), greedy.seconds([None] * batch, best)
        began = time.thread_time()
        for matcher, answer, at in places:
            matcher.accept(answer[at])
            matcher.forced()
        ours = (time.thread_time() - began + sampled) * 1e6
        if step >= 0:
            yield _Taken(ours, free * 1e6, _made_here(automata.values(), forced.values()) - before)
        greedy.renew()
        places = [(matcher, answer, at + 1) for matcher, answer, at in places if at + 1 < len(answer)]


def _their_steps(vocabulary: Vocabulary, encode: Callable[[str], list[int]], batch: int) -> Iterator[_Taken]:
    """xgrammar's: they do not depend on what the model wants."""
    import xgrammar

    rng = np.random.default_rng(0)
    theirs = XGrammar(vocabulary, encode)
    cases = [(theirs.compile(regex), encode(text)) for regex, texts in CASES.values() for text in texts]
    greedy = _Batch(vocabulary, batch, rng)
    bits = xgrammar.allocate_token_bitmask(batch, vocabulary.size)
    places: list[tuple[Any, list[int], int]] = []
    for step in range(-5, 100):
        while len(places) < batch:
            start, answer = cases[int(rng.integers(len(cases)))]
            places.append((start().matcher, answer, 0))  # pyright: ignore
        began = time.thread_time()
        for i, (matcher, _, _) in enumerate(places):
            matcher.fill_next_token_bitmask(bits, i)
        xgrammar.apply_token_bitmask_inplace(greedy.logits, bits)
        for matcher, answer, at in places:
            matcher.accept_token(answer[at])
        if step >= 0:
            yield _Taken((time.thread_time() - began) * 1e6)
        greedy.renew()
        places = [(matcher, answer, at + 1) for matcher, answer, at in places if at + 1 < len(answer)]


def _made_here(automata: Iterable[_Automaton], forced: Iterable[_Forced]) -> int:
    return sum(a.here for a in automata) + sum(f.here for f in forced)


def _build(matcher: AutomatonMatcher, answer: list[int]) -> None:
    """Builds the rows and forced runs of the states that an answer passes."""
    for token in answer:
        _ = matcher.bits, matcher.forced()
        matcher.accept(token)
    _ = matcher.forced()


def drawn_steps(
    vocabulary: Vocabulary, encode: Callable[[str], list[int]], batch: int, refused: float, params: Params
) -> Step:
    """As `steps`, of lmc alone, with rows that are sampled."""
    rng = np.random.default_rng(0)
    cases = [(regex, encode(text)) for regex, texts in CASES.values() for text in texts]
    ours, sampled = Ours(vocabulary, encode), _Batch(vocabulary, batch, rng, params)
    starts = {regex: ours.compile(regex) for regex, _ in cases}
    times: list[float] = []
    without: list[float] = []
    places: list[tuple[AutomatonMatcher, list[int], int]] = []
    for regex, answer in cases:
        _build(starts[regex]().matcher, answer)  # pyright: ignore
    for step in range(-3, 30):
        while len(places) < batch:
            regex, answer = cases[int(rng.integers(len(cases)))]
            places.append((starts[regex]().matcher, answer, 0))  # pyright: ignore
        best = [sampled.best(matcher, answer[at], refused) for matcher, answer, at in places]
        with_, free = sampled.seconds([p[0] for p in places], best), sampled.seconds([None] * batch, best)
        began = time.thread_time()
        for matcher, answer, at in places:
            matcher.accept(answer[at])
            matcher.forced()
        if step >= 0:
            times.append((time.thread_time() - began + with_) * 1e6)
            without.append(free * 1e6)
        sampled.renew()
        places = [(matcher, answer, at + 1) for matcher, answer, at in places if at + 1 < len(answer)]
    free = statistics.median(without)
    return Step("lmc", batch, refused, *_figures([t - free for t in times]), free)


def first_steps(
    case: str, vocabulary: Vocabulary, encode: Callable[[str], list[int]], batch: int, refused: float, pass_ms: float, walks: int
) -> Step:
    """A batch of different answers of one regex from their beginning, nothing built but the start's row. Between the steps
    the prefetcher has `pass_ms` of processor time, as it would while the model computes. The same `walks` times, each with nothing
    built; of each step the least counts, for other work on the machine slows this down too."""
    taken = [_first_walk(case, vocabulary, encode, batch, refused, pass_ms) for _ in range(walks)]
    return _least("lmc", batch, refused, taken)


def _first_walk(
    case: str, vocabulary: Vocabulary, encode: Callable[[str], list[int]], batch: int, refused: float, pass_ms: float
) -> list[_Taken]:
    rng = np.random.default_rng(1)
    regex = CASES[case][0]
    prefetcher = MaskPrefetcher()
    automaton = _Automaton(compile_regex(regex), vocabulary)
    forced = _Forced(automaton, encode)
    answers = [encode(sample_regex(regex, bytes([i]))) for i in range(batch)]
    greedy, ahead = _Batch(vocabulary, batch, rng), Prefetched(automaton, forced)
    automaton.mask(forced.run(automaton.start).state)
    left = {AutomatonMatcher(automaton, forced, partial(prefetcher.request, ahead)): deque(answer) for answer in answers}
    taken: list[_Taken] = []

    def go_on(matcher: AutomatonMatcher) -> Sequence[int]:
        run = () if matcher.done else matcher.forced()
        if run:
            matcher.accept_forced(run)
        return run

    def check(matcher: AutomatonMatcher, run: Sequence[int]) -> None:
        assert list(run) == [left[matcher].popleft() for _ in run], "forced tokens are not the canonical ones"

    for matcher in left:
        check(matcher, go_on(matcher))
    while live := [matcher for matcher, answer in left.items() if answer]:
        _while_a_pass_runs(prefetcher, pass_ms / 1e3)
        tokens = [left[matcher].popleft() for matcher in live]
        best = [greedy.best(matcher, token, refused) for matcher, token in zip(live, tokens)]
        before = _made_here([automaton], [forced])
        with_, without = greedy.seconds(live, best), greedy.seconds([None] * len(live), best)
        began = time.thread_time()
        runs: list[Sequence[int]] = []
        for matcher, token in zip(live, tokens):
            matcher.accept(token)
            runs.append(go_on(matcher))
        ours = (time.thread_time() - began + with_) * 1e6
        taken.append(_Taken(ours, without * 1e6, built=_made_here([automaton], [forced]) - before))
        for matcher, run in zip(live, runs):
            check(matcher, run)
    prefetcher.close()
    return taken


def _while_a_pass_runs(prefetcher: MaskPrefetcher, seconds: float) -> None:
    """Lets it work until it is done or has had so much processor time."""
    thread = prefetcher.thread
    clock = time.pthread_getcpuclockid(thread.ident) if thread is not None and thread.ident is not None else None
    until = time.clock_gettime(clock) + seconds if clock is not None else 0.0
    while clock is not None and not prefetcher.idle and time.clock_gettime(clock) < until:
        time.sleep(0.0005)


# -- table -------------------------------------------------------------------------------------------------------------


def small_words() -> Tokenizer:
    """SmolLM2's tokenizer, from the embedded model's file."""
    from lmc.backend.engine.models import gguf

    return from_gguf(gguf.read(gguf.embedded_path()).metadata, "smollm2", eos_token_ids=(2,))


def small_vocabulary() -> tuple[Vocabulary, Callable[[str], list[int]]]:
    words = small_words()
    vocabulary = Vocabulary(words.byte_table, words.eos_token_ids, words.special_ids)
    return vocabulary, lambda text: words.encode((text,), at_start=False)


HEAD = (
    f"{'':14} {'':14} {'compile':>9} {'mask, first walk (µs)':>27} {'again (µs)':>27} {'forced':>8}\n"
    f"{'regex':14} {'library':14} {'ms':>9} {'median':>9}{'p99':>9}{'max':>9} {'median':>9}{'p99':>9}{'max':>9} {'tokens':>8}"
)
FIRST = f"\n{'first steps':15} {'batch':>6} {'refused':>8} {'median µs':>10} {'p99':>8} {'max':>8} {'steps':>6} {'built':>6} {'max':>8}"
DRAWS = f"\n{'drawn steps':15} {'batch':>6} {'refused':>8} {'median µs':>10} {'p99':>8} {'max':>8} {'free':>8}"
STEPS = f"\n{'step of a batch':15} {'batch':>6} {'refused':>8} {'median µs':>10} {'p99':>8} {'max':>8} {'once':>8} {'free once':>10}"


def line(r: Row) -> str:
    return (
        f"{r.case:14} {r.library:14} {r.compile_ms:9.1f} {r.cold_median:9.1f}{r.cold_p99:9.1f}{r.cold_max:9.1f} "
        f"{r.warm_median:9.1f}{r.warm_p99:9.1f}{r.warm_max:9.1f} {r.forced:8.1%}"
    )


def _step(name: str, s: Step) -> str:
    return f"{name:15} {s.batch:6} {s.refused:8.0%} {s.median:10.0f} {s.p99:8.0f} {s.max:8.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", help=f"separated by commas, of: {', '.join(CASES)}")
    parser.add_argument("--libraries", help=f"separated by commas, of: {', '.join(LIBRARIES)}")
    parser.add_argument("--reps", type=int, default=3, help="compilations of each")
    parser.add_argument("--walks", type=int, default=5, help="over the steps, of which the least counts")
    parser.add_argument("--batch", type=int, default=64, help="sequences of the step")
    parser.add_argument("--pass-ms", type=float, default=10.0, help="processor time between first steps")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    cases = options.cases.split(",") if options.cases else list(CASES)
    names = options.libraries.split(",") if options.libraries else list(LIBRARIES)
    absent = [n for n in names if importlib.util.find_spec(LIBRARIES[n][0]) is None]
    about = where() | {"vocabulary": "SmolLM2, 49152 tokens"}
    print("  ".join(f"{k}: {v}" for k, v in about.items()))
    if absent:
        print(f"not installed, left out: {', '.join(absent)}")
    vocabulary, encode = small_vocabulary()
    _BYTES[:] = vocabulary.tokens
    made = {n: LIBRARIES[n][1](vocabulary, encode) for n in names if n not in absent}
    rows: list[Row] = []
    print(HEAD)
    for case in cases:
        for name, library in made.items():
            reps = 1 if name == "outlines-core" else options.reps
            rows.append(measure(case, name, library, encode, vocabulary.words, reps))
            print(line(rows[-1]), flush=True)
    print(STEPS)
    batches: list[Step] = []
    for refused in (0.0, 0.1, 1.0):
        for s in steps(vocabulary, encode, options.batch, refused, options.walks):
            batches.append(s)
            print(f"{_step(s.library, s)} {s.once:8.0f} {s.free_once:10.0f}", flush=True)
    print(DRAWS)
    draws: dict[str, list[Step]] = {}
    for name, params in DRAWN.items():
        for refused in (0.0, 1.0):
            s = drawn_steps(vocabulary, encode, options.batch, refused, params)
            draws.setdefault(name, []).append(s)
            print(f"{_step(name, s)} {s.free:8.0f}", flush=True)
    print(FIRST)
    firsts: dict[str, Step] = {}
    for case in cases:
        firsts[case] = s = first_steps(case, vocabulary, encode, options.batch, 0.1, options.pass_ms, options.walks)
        print(f"{_step(case, s)} {s.steps:6} {s.built:6} {s.built_max:8.0f}", flush=True)
    if options.json:
        data = {
            "about": about,
            "rows": [asdict(r) for r in rows],
            "steps": [asdict(s) for s in batches],
            "drawn steps": {name: [asdict(s) for s in found] for name, found in draws.items()},
            "first steps": {case: asdict(s) for case, s in firsts.items()},
        }
        options.json.write_text(json.dumps(data, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
