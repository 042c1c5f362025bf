"""A whole batch, cold and submitted at once, on a model: every token of every prompt is computed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import lmc
from benchmarks.workloads import Size, Workload, figures
from lmc.backend.engine.request import RequestKind

pytestmark = pytest.mark.model

SIZE = Size(0.04)


@pytest.fixture(scope="module")
def engine(tiny_smollm2: str) -> Iterator[Any]:
    with lmc.Engine(tiny_smollm2, max_tokens=20000) as engine:
        yield engine


def nodes(sequences: Iterable[tuple[list[int], int]]) -> set[tuple[int, int]]:
    """The tokens of a trie of sequences, each from an index on, by their depth and a hash of the path to them."""
    found: set[tuple[int, int]] = set()
    for ids, start in sequences:
        path = 0
        for depth, token in enumerate(ids):
            path = hash((path, token))
            if depth >= start:
                found.add((depth, path))
    return found


@pytest.mark.parametrize("workload", figures(SIZE), ids=lambda w: w.name)
def test_prompt_tokens_computed_are_the_unique_ones(
    engine: Any, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's count of unique tokens equals that of a trie of the requests that it was given."""
    requests: list[Any] = []
    add = engine._scheduler.add

    def noting(req: Any) -> None:
        requests.append(req)
        add(req)

    monkeypatch.setattr(engine._scheduler, "add", noting)
    engine.flush_cache()
    before = engine.counters()
    with lmc.compile(workload.program, backend=engine) as program:
        for state in program.batch(workload.items(3, 0), temperature=0):
            state.sync()
    spent = engine.counters() - before
    assert spent.prefilled_tokens == spent.unique_tokens
    prompts = nodes((r.prompt.tolist(), 0) for r in requests)
    decoded = nodes((r.ids[: r.length - 1].tolist(), r.prompt_len) for r in requests if r.kind is RequestKind.GENERATE)
    rows = sum(b.rows for r in requests for b in r.branches)
    if workload.name not in ("json", "judge"):  # forced tokens at the head of an answer are computed with its prompt
        assert spent.prefilled_tokens == len(prompts - decoded) + rows
    engine.check()


def test_equal_samples_are_one_prompt_with_a_seed_each(engine: Any) -> None:
    """Three siblings that ask the same: the prompt is computed once, and the texts are those of three runs apart."""

    @lmc.function
    def opinion(s: Any, q: str) -> list[str]:
        s += "Your opinion on this matter: " + q
        forks = s.fork(3)
        for f in forks:
            f += lmc.gen("a", max_tokens=6, temperature=0.9)
        return [f["a"] for f in forks]

    engine.flush_cache()
    before = engine.counters()
    state = lmc.compile(opinion, backend=engine)(q="rain in summer", seed=5)
    texts = state.ret_value
    spent = engine.counters() - before
    assert spent.calls == 3 and spent.unique_tokens < 20
    assert spent.prefilled_tokens - spent.unique_tokens <= 2, "a sibling that comes a pass later computes the last token of the prompt again"
    assert texts == opinion.run(q="rain in summer", seed=5, backend=engine).ret_value
    assert len(set(texts)) > 1


def test_an_answer_reserves_no_more_than_its_constraint_allows(tiny_smollm2: str) -> None:
    """A pool in which one answer of max_tokens fits at a time takes all four at once, because each is one letter."""

    @lmc.function
    def grade(s: Any, q: str) -> str:
        s += q + " Grade:" + lmc.gen("g", regex="[ABCD]", max_tokens=200)
        return s["g"]

    with lmc.Engine(tiny_smollm2, max_tokens=256) as small:
        items = [{"q": q} for q in ("one", "two", "three", "four")]
        before = small.counters()
        values = [s.ret_value for s in lmc.compile(grade, backend=small).batch(items, temperature=0)]
        spent = small.counters() - before
        assert all(v in "ABCD" for v in values)
        assert spent.passes <= 4
