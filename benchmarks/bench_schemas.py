"""JSON schemas to the first mask: lmc's automata beside xgrammar's own reading of the same schema.

    python -m benchmarks.bench_schemas              # the schemas of tests/fsm/schemas.py, on the small model's vocabulary
    python -m benchmarks.bench_schemas person       # those whose name contains this

CPU times of the process, nothing cached. `states` are bytes' states; `forced` is the share of them with one byte to go on by;
recursive schemas have none and run on xgrammar, from EBNF of ours.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.bench_constraints import small_words
from benchmarks.bench_programs import where
from lmc.fsm.sources import automaton_of, ebnf_of
from lmc.fsm.tokens import TokenAutomaton
from lmc.fsm.vocabulary import Vocabulary
from tests.fsm.schemas import RECURSIVE, SCHEMAS


def main(wanted: str) -> None:
    import xgrammar

    words = small_words()
    vocabulary = Vocabulary(words.byte_table, words.eos_token_ids, words.special_ids)
    info = xgrammar.TokenizerInfo(list(vocabulary.tokens), xgrammar.VocabType.RAW, stop_token_ids=list(vocabulary.eos))  # pyright: ignore[reportArgumentType]
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    row = xgrammar.allocate_token_bitmask(1, vocabulary.size)

    def fill(compiled: Any) -> None:
        xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(row, 0)

    def ours(source: str) -> tuple[str, str]:
        dfa = automaton_of("json_schema", source)
        if dfa is None:
            fill(compiler.compile_grammar(ebnf_of("json_schema", source)))
            return "-", "-"
        TokenAutomaton(dfa, vocabulary).mask(0)
        return str(dfa.states), f"{dfa.forced_share:.0%}"

    def theirs(source: str) -> str:
        try:
            fill(compiler.compile_json_schema(source, any_whitespace=False))
        except RuntimeError:
            return "refused"
        return ""

    print(where())
    print(f"{'schema':32} {'lmc ms':>8} {'states':>7} {'forced':>7} {'xgrammar ms':>12}")
    times: list[tuple[float, float]] = []
    for name, (schema, _, _) in {**SCHEMAS, **RECURSIVE}.items():
        if wanted in name:
            source = json.dumps(schema)
            mine, (states, forced) = _cpu_ms(lambda source=source: ours(source))
            other, note = _cpu_ms(lambda source=source: theirs(source))
            times.append((mine, other))
            print(f"{name:32} {mine:8.1f} {states:>7} {forced:>7} {other:12.1f} {note}")
    for title, found in zip(("lmc", "xgrammar"), zip(*times, strict=True), strict=False):
        print(f"{title}: median {statistics.median(found):.1f} ms, max {max(found):.1f} ms over {len(found)} schemas")


def _cpu_ms(do: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = do()
    return 1e3 * (time.process_time() - start), found


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
