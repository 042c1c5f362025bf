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
         less the median time of `Sampler.sample` on the same logits for the same requests without constraints (below zero
         where looking at few allowed tokens took less time than looking at all). xgrammar: the time of its own filling,
         masking and accepting
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.bench_forcing import CHARACTER, FORMS
from benchmarks.bench_programs import where
from lmc.backend.engine.automaton import AutomatonMatcher
from lmc.backend.engine.constraint import normalise_regex
from lmc.backend.engine.tokenizer import Tokenizer, from_gguf
from lmc.fsm.dfa import compile_regex
from lmc.fsm.forced import ForcedTokens
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


@dataclass(frozen=True)
class Step:
    """What constraints add to a greedy step of a batch, in microseconds a step."""

    library: str
    batch: int
    refused: float  # share of rows whose best token is not allowed
    median: float
    p99: float
    max: float


def steps(vocabulary: Vocabulary, encode: Callable[[str], list[int]], batch: int, refused: float) -> Iterator[Step]:
    """64 answers of all regexes at once, each at another place; rows' best tokens are the answers' own or refused."""
    import torch
    import xgrammar

    from lmc.backend.engine.request import Kind, Request
    from lmc.backend.engine.sampler import Sampler
    from lmc.prompt import SamplingParams

    rng = np.random.default_rng(0)
    cases = [(regex, encode(text)) for regex, texts in CASES.values() for text in texts]
    ours, theirs = Ours(vocabulary, encode), XGrammar(vocabulary, encode)
    starts = {regex: (ours.compile(regex), theirs.compile(regex)) for regex, _ in cases}
    logits = torch.from_numpy(rng.standard_normal((batch, vocabulary.size), np.float32))
    row = np.zeros(vocabulary.words, np.int32)

    class FakeAnswer:
        """What the sampler reads of an answer."""

        stop_ids = frozenset(vocabulary.eos)
        sampled = 0

        def __init__(self, matcher: AutomatonMatcher | None) -> None:
            self.matcher = matcher

    def seconds(requests: Sequence[Request]) -> float:
        own = logits.clone()
        began = time.thread_time()
        sampler.sample(own, rows, requests)
        return time.thread_time() - began

    def request(matcher: AutomatonMatcher | None) -> Request:
        req = Request(Kind.GENERATE, np.zeros(1, np.int32), lambda _: None, SamplingParams(temperature=0.0))
        req.answer = FakeAnswer(matcher)  # pyright: ignore[reportAttributeAccessIssue]
        return req

    times: dict[str, list[float]] = {"lmc": [], "xgrammar": []}
    unconstrained: list[float] = []
    places: list[tuple[Request, Any, list[int], int]] = []
    bits = xgrammar.allocate_token_bitmask(batch, vocabulary.size)
    sampler, rows, free = Sampler(vocabulary.size), list(range(batch)), [request(None) for _ in range(batch)]
    for regex, answer in cases:  # rows and forced runs are made once a constraint: that is in the figures of `mask`
        matcher = starts[regex][0]().matcher  # pyright: ignore
        for token in answer:
            _ = matcher.bits, matcher.forced()
            matcher.accept(token)
    for step in range(-5, 100):
        while len(places) < batch:
            regex, answer = cases[int(rng.integers(len(cases)))]
            mine, other = starts[regex][0](), starts[regex][1]()
            places.append((request(mine.matcher), other.matcher, answer, 0))  # pyright: ignore
        tokens: list[int] = []
        for i, (req, _, answer, at) in enumerate(places):
            matcher = req.answer.matcher  # pyright: ignore[reportOptionalMemberAccess]
            row[:] = matcher.bits.view(np.int32)  # pyright: ignore[reportOptionalMemberAccess]
            ids = np.flatnonzero(~np.unpackbits(row.view(np.uint8), count=vocabulary.size, bitorder="little").view(bool))
            token = int(rng.choice(ids)) if rng.random() < refused else answer[at]
            logits[i, token] = 50.0
            tokens.append(token)
        sampled, without = (seconds(requests) for requests in ([req for req, _, _, _ in places], free))
        began = time.thread_time()
        for req, _, answer, at in places:
            req.answer.matcher.accept(answer[at])  # pyright: ignore[reportOptionalMemberAccess]
            req.answer.matcher.forced()  # pyright: ignore[reportOptionalMemberAccess]
        mid = time.thread_time()
        for i, (_, other, _, _) in enumerate(places):
            other.fill_next_token_bitmask(bits, i)
        xgrammar.apply_token_bitmask_inplace(logits, bits)
        for _, other, answer, at in places:
            other.accept_token(answer[at])
        end = time.thread_time()
        if step >= 0:
            times["lmc"].append((mid - began + sampled) * 1e6)
            unconstrained.append(without * 1e6)
            times["xgrammar"].append((end - mid) * 1e6)
        logits.copy_(torch.from_numpy(rng.standard_normal((1, vocabulary.size), np.float32)).expand_as(logits))
        places = [(r, m, answer, at + 1) for r, m, answer, at in places if at + 1 < len(answer)]
    times["lmc"] = [t - statistics.median(unconstrained) for t in times["lmc"]]
    for name, found in times.items():
        yield Step(name, batch, refused, *_figures(found))


# -- table -------------------------------------------------------------------------------------------------------------


def small_words() -> Tokenizer:
    """SmolLM2's tokenizer, from the embedded model's file."""
    from lmc.backend.engine.models import gguf, loader

    return from_gguf(gguf.read(loader.embedded_path()).metadata, "smollm2", eos_token_ids=(2,))


def small_vocabulary() -> tuple[Vocabulary, Callable[[str], list[int]]]:
    words = small_words()
    vocabulary = Vocabulary(words.byte_table, words.eos_token_ids, words.special_ids)
    return vocabulary, lambda text: words.encode((text,), at_start=False)


HEAD = (
    f"{'':14} {'':14} {'compile':>9} {'mask, first walk (µs)':>27} {'again (µs)':>27} {'forced':>8}\n"
    f"{'regex':14} {'library':14} {'ms':>9} {'median':>9}{'p99':>9}{'max':>9} {'median':>9}{'p99':>9}{'max':>9} {'tokens':>8}"
)
STEPS = f"\n{'step of a batch':15} {'batch':>6} {'refused':>8} {'median µs':>10} {'p99':>8} {'max':>8}"


def line(r: Row) -> str:
    return (
        f"{r.case:14} {r.library:14} {r.compile_ms:9.1f} {r.cold_median:9.1f}{r.cold_p99:9.1f}{r.cold_max:9.1f} "
        f"{r.warm_median:9.1f}{r.warm_p99:9.1f}{r.warm_max:9.1f} {r.forced:8.1%}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", help=f"separated by commas, of: {', '.join(CASES)}")
    parser.add_argument("--libraries", help=f"separated by commas, of: {', '.join(LIBRARIES)}")
    parser.add_argument("--reps", type=int, default=3, help="compilations of each")
    parser.add_argument("--batch", type=int, default=64, help="sequences of the step")
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
        for s in steps(vocabulary, encode, options.batch, refused):
            batches.append(s)
            print(f"{s.library:15} {s.batch:6} {s.refused:8.0%} {s.median:10.0f} {s.p99:8.0f} {s.max:8.0f}", flush=True)
    if options.json:
        data = {"about": about, "rows": [asdict(r) for r in rows], "steps": [asdict(s) for s in batches]}
        options.json.write_text(json.dumps(data, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
