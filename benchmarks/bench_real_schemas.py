"""Real JSON schemas in one run: lmc's automata beside xgrammar, llguidance and outlines-core, each with its own reading.

    git clone https://github.com/guidance-ai/jsonschemabench          # maskbench/data: schemas, and instances of each
    python -m benchmarks.bench_real_schemas jsonschemabench/maskbench/data --sample 300
    python -m benchmarks.bench_real_schemas DATA --additional        # lmc lets objects have further properties, as the others do
    python -m benchmarks.bench_real_schemas DATA --tekken tekken_240911.json     # 131,072 tokens; of the package mistral-common

A sample at random (`--seed`) is compiled, and its valid instances, written on one line, are followed token by token. CPU times of the
thread, so that other work on the machine counts little. Python seldom looks through all its objects for garbage meanwhile, as in an
engine's process. Libraries that are not installed are left out.

compile  from the schema to the first mask, nothing cached
refused  schemas that do not compile
mask     a mask into a row of a bit mask before each token and at the end: the first answers of a schema (cold), and all once more (warm).
         `answers` is the 99th percentile of the mean mask of an answer when it is first followed
wrong    valid instances that are not followed to their end, and invalid ones that are, of schemas that compile
"""

from __future__ import annotations

import argparse
import base64
import functools
import importlib.util
import json
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.bench_constraints import LIBRARIES, Walker, small_vocabulary
from benchmarks.bench_constraints import _LLGuidanceWalker as LLGuidanceWalker  # pyright: ignore[reportPrivateUsage]
from benchmarks.bench_programs import where
from lmc.errors import SchemaWarning
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.sources import begun, check_of
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from lmc.gc_tuning import few_full_collections

Encode = Callable[[str], list[int]]
_FULL_COLLECTIONS = 1000  # as while an engine works


class Reader(Protocol):
    """Compiles a schema; gives what starts a walk, and what else is looked at when an answer ends."""

    def __call__(self, schema: str) -> tuple[Callable[[], Walker], Callable[[str], object]]: ...


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("--sample", type=int, default=300)
    arguments.add_argument("--seed", type=int, default=7)
    arguments.add_argument("--tekken", type=Path, help="a vocabulary instead of the small model's")
    arguments.add_argument("--only", choices=list(READERS), action="append")
    arguments.add_argument("--whitespace", choices=("model", "compact", "any"), default="model", help="of lmc")
    arguments.add_argument("--additional", action="store_true", help="lmc lets objects that do not forbid it have further properties, as the others do")
    arguments.add_argument("--slow", type=int, default=0, help="so many of the slowest schemas and masks are named")
    given = arguments.parse_args()
    files = sorted(given.data.glob("*.json"))
    if not files:
        arguments.error(f"{given.data} has no *.json files; give the folder maskbench/data of a clone of guidance-ai/jsonschemabench")
    if given.sample < 1:
        arguments.error("--sample takes a number from 1 up")
    random.Random(given.seed).shuffle(files)
    cases = [(path.stem, json.loads(path.read_bytes())) for path in files[: given.sample]]
    for name, case in cases:
        if not isinstance(case, dict) or not {"schema", "tests"} <= case.keys():
            arguments.error(
                f"{given.data / name}.json is not a schema with its tests; give the folder maskbench/data of a clone of guidance-ai/jsonschemabench"
            )
    vocabulary, encode = tekken(given.tekken) if given.tekken else small_vocabulary()
    print(where())
    print(f"{len(cases)} schemas, seed {given.seed}, {vocabulary.size:,} tokens")
    print(HEAD)
    for name, (module, made) in READERS.items():
        if (not given.only or name in given.only) and importlib.util.find_spec(module) is not None:
            options = {"options": {"whitespace": given.whitespace, "additional": given.additional}} if name == "lmc" else {}
            with few_full_collections(_FULL_COLLECTIONS):
                found = measure(cases, made(vocabulary, encode, **options), encode, vocabulary.words)
            print(found.line(name), flush=True)
            for title, slow in (("compile", found.compiles), ("mask", found.cold)):
                for took, case in sorted(slow, reverse=True)[: given.slow]:
                    print(f"    {title} {took:9.1f} {case}")


# -- vocabularies --------------------------------------------------------------------------------------------------


def tekken(path: Path) -> tuple[Vocabulary, Encode]:
    """Mistral's vocabulary: its special tokens come first."""
    import tiktoken  # pyright: ignore[reportMissingImports]

    given = json.loads(path.read_bytes())
    config = given["config"]
    special, size = config["default_num_special_tokens"], config["default_vocab_size"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in given["vocab"][: size - special]}
    tokens = [b""] * size
    for text, rank in ranks.items():
        tokens[rank + special] = text
    encoding = tiktoken.Encoding("tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
    return Vocabulary(tokens, (2,), range(special)), lambda text: [i + special for i in encoding.encode_ordinary(text)]


# -- libraries -----------------------------------------------------------------------------------------------------


class _Walker:
    def __init__(self, automaton: TokenAutomaton) -> None:
        self.automaton, self.state = automaton, automaton.start

    def mask(self, row: np.ndarray) -> None:
        row[:] = self.automaton.mask(self.state).view(np.int32)

    def accept(self, token: int) -> None:
        self.state = self.automaton.next(self.state, token)

    def forced(self) -> Sequence[int]:
        return ()


_PLAIN = {"whitespace": "model", "additional": False}


def ours(vocabulary: Vocabulary, encode: Encode, options: Mapping[str, Any]) -> Reader:
    vocabulary.prepare()  # as an engine does

    def read(schema: str) -> tuple[Callable[[], Walker], Callable[[str], object]]:
        compile_schema.cache_clear()
        if options != _PLAIN:
            schema = json.dumps({**json.loads(schema), "x-lmc": options})
        automaton = TokenAutomaton(begun("json_schema", schema), vocabulary)  # as an engine on a CPU follows first answers
        return lambda: _Walker(automaton), check_of("json_schema", schema) or (lambda _: None)

    return read


def xgrammar(vocabulary: Vocabulary, encode: Encode) -> Reader:
    library: Any = LIBRARIES["xgrammar"][1](vocabulary, encode)
    walker = _walker_of(library)

    def read(schema: str) -> tuple[Callable[[], Walker], Callable[[str], object]]:
        compiled = library.make().compile_json_schema(schema, strict_mode=False)
        return lambda: walker(library.matcher(compiled)), lambda _: None

    return read


def llguidance(vocabulary: Vocabulary, encode: Encode) -> Reader:
    import llguidance as guidance  # pyright: ignore[reportMissingImports]

    class Tokens:
        eos_token_id, bos_token_id, tokens = vocabulary.eos[0], None, list(vocabulary.tokens)
        special_token_ids: Sequence[int] = ()

        def __call__(self, text: str) -> list[int]:
            return encode(text)

    library: Any = LIBRARIES["llguidance"][1]
    tokenizer = guidance.LLTokenizer(guidance.TokenizerWrapper(Tokens()), n_vocab=vocabulary.size)
    walker = _walker_of(library)

    def read(schema: str) -> tuple[Callable[[], Walker], Callable[[str], object]]:
        matcher = guidance.LLMatcher(tokenizer, guidance.LLMatcher.grammar_from_json_schema(schema))
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return lambda: walker(matcher.deep_copy()), lambda _: None

    return read


def outlines(vocabulary: Vocabulary, encode: Encode) -> Reader:
    from outlines_core.json_schema import build_regex_from_schema  # pyright: ignore[reportMissingImports]

    library: Any = LIBRARIES["outlines-core"][1](vocabulary, encode)
    walker = _walker_of(library)

    def read(schema: str) -> tuple[Callable[[], Walker], Callable[[str], object]]:
        index = library.core.Index(build_regex_from_schema(schema), library.vocabulary)
        return lambda: walker(library.core.Guide(index)), lambda _: None

    return read


def _walker_of(library: Any) -> Callable[[Any], Walker]:
    from benchmarks import bench_constraints as plain

    kinds = {plain.XGrammar: "_XGrammarWalker", plain.LLGuidance: "_LLGuidanceWalker", plain.Outlines: "_OutlinesWalker"}
    return getattr(plain, kinds[library if isinstance(library, type) else type(library)])


READERS: dict[str, tuple[str, Callable[..., Reader]]] = {
    "lmc": ("lmc", ours),
    "xgrammar": ("xgrammar", xgrammar),
    "llguidance": ("llguidance", llguidance),
    "outlines-core": ("outlines_core", outlines),
}


# -- measuring -----------------------------------------------------------------------------------------------------


@dataclass
class Found:
    compiles: list[tuple[float, str]] = field(default_factory=list)  # ms
    cold: list[tuple[float, str]] = field(default_factory=list)  # µs
    warm: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)  # mean µs
    refused: int = 0
    valid: int = 0
    invalid: int = 0
    rejected: int = 0  # of the valid
    accepted: int = 0  # of the invalid

    def line(self, name: str) -> str:
        compiles, cold = [took for took, _ in self.compiles], [took for took, _ in self.cold]
        return (
            f"{name:14} {self.refused:8} {part(compiles, 0.5):8.1f} {part(compiles, 0.99):8.1f} {part(compiles, 1):8.1f}  "
            f"{part(cold, 0.5):7.1f} {part(cold, 0.99):7.0f} {part(cold, 1):7.0f}  {part(self.warm, 0.5):6.1f} {part(self.warm, 0.99):6.0f} "
            f"{part(self.warm, 1):6.0f}  "
            f"{part(self.answers, 0.99):8.0f}  {self.rejected:5} of {self.valid:4} {self.accepted:6} of {self.invalid:4}"
        )


HEAD = (
    f"{'':14} {'':8} {'compile, ms':>26}  {'cold mask, µs':>23}  {'warm mask, µs':>20}  {'answers':>8}  {'valid':>13} {'invalid':>14}\n"
    f"{'library':14} {'refused':>8} {'median':>8} {'p99':>8} {'max':>8}  {'median':>7} {'p99':>7} {'max':>7}  {'median':>6} {'p99':>6} {'max':>6}  "
    f"{'p99':>8}  {'refused':>13} {'accepted':>14}"
)


def part(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of them is; not a number if there are none, as where a library refuses every schema."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else math.nan


def measure(cases: Sequence[tuple[str, Any]], read: Reader, encode: Encode, words: int) -> Found:
    found, row = Found(), np.zeros(words, np.int32)
    warnings.simplefilter("ignore", SchemaWarning)
    _try(functools.partial(read, '{"type": "object", "properties": {"a": {"type": "string"}}}'))  # what the first of a process takes
    for name, case in cases:
        schema = json.dumps(case["schema"])
        began = time.thread_time()
        made = _try(functools.partial(read, schema))
        if made is not None:
            made[0]().mask(row)
        took = (time.thread_time() - began) * 1e3
        if made is None:
            found.refused += 1
            continue
        found.compiles.append((took, name))
        start, check = made
        followed: list[list[int]] = []
        for test in case["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            answer = encode(text)
            times, ended = walk(start(), answer, row)
            ended = ended and check(text) is None
            if test["valid"]:
                followed.append(answer[: len(times)])
                found.cold += [(took, name) for took in times]
                found.answers.append(statistics.mean(times))
                found.valid += 1
                found.rejected += not ended
            else:
                found.invalid += 1
                found.accepted += ended
        for answer in followed:
            found.warm += walk(start(), answer, row)[0]
    return found


def walk(walker: Walker, answer: Sequence[int], row: np.ndarray) -> tuple[list[float], bool]:
    """Microseconds of each mask along an answer, as far as it is allowed, and whether it may end behind it."""
    times: list[float] = []
    for token in [*answer, None]:
        began = time.thread_time()
        walker.mask(row)
        times.append((time.thread_time() - began) * 1e6)
        if isinstance(walker, LLGuidanceWalker):  # its mask is that behind the tokens it forces, and yet it takes them one by one
            if token is None or not walker.accept(token):
                return times, token is None and walker.matcher.is_accepting()
        else:
            if token is None or not row[token // 32] >> (token % 32) & 1:
                return times, token is None and bool(row[EOS // 32] >> (EOS % 32) & 1)
            walker.accept(token)
    raise AssertionError


EOS = 2  # of both vocabularies


def _try(read: Callable[[], Any]) -> Any:
    """None, of a schema that a library refuses."""
    try:
        return read()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | AssertionError):
            raise
        return None  # each library has its own errors, Rust's panics among them


if __name__ == "__main__":
    main()
