"""Choices as a trie: shared beginnings are rows once, all in one pass, with the log-probabilities of a pass for each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmc.backend.engine.choice_trie import TOP, Continuation, trie
from lmc.segments import ChoicesMethod, Gen, SamplingParams, Select, Text
from tests.backend.engine_fakes import FakeAheadRunner, FakeRunner, FakeWords, drain, logprob, stepped
from tests.searching import examples, search

WORDS = FakeWords()
PROMPT = "which of these? "


def branch(base: int, *ids: int) -> Continuation:
    return Continuation(base, np.array(ids, np.int32))


def test_what_choices_share_is_one_row():
    found = trie([branch(5, 1, 2, 3), branch(5, 1, 2, 4), branch(5, 9)])
    assert found.nodes == 5
    assert found.ids.tolist() == [1, 2]
    assert found.parents == (TOP, 0)
    assert found.positions == (5, 6)
    assert [[token for _, token in asks] for asks in (found.first, *found.asks)] == [[1, 9], [2], [3, 4]]
    assert found.rows == ((0, 1), (0, 1), ())


def test_a_choice_that_begins_another_is_a_node_and_a_row():
    found = trie([branch(2, 1, 2, 3), branch(2, 1)])
    assert found.ids.tolist() == [1, 2]
    assert found.rows == ((0, 1), ())


def test_unconditional_choices_are_a_tree_of_their_own():
    found = trie([branch(5, 1, 2), branch(0, 1, 2)])
    assert found.ids.tolist() == [1, 1]
    assert sorted(found.positions) == [0, 5]
    assert [found.prompt_length(row) for row in range(2)] == list(found.positions)
    assert len(found.first) == 1, "the first token of a text without a prompt is not scored"


IDS = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@search(15, 100)
@given(st.lists(IDS, min_size=1, max_size=8))
def test_a_trie_is_the_set_of_its_prefixes(choices):
    found = trie([branch(3, *ids) for ids in choices])
    prefixes = {tuple(ids[: n + 1]) for ids in choices for n in range(len(ids))}
    assert found.nodes == len(prefixes)
    assert len(found.ids) == len({p[:-1] for p in prefixes} - {()})
    for ids, rows in zip(choices, found.rows, strict=True):
        assert found.ids[list(rows)].tolist() == ids[:-1]
        for row, above in zip(rows, range(len(rows)), strict=True):
            assert found.above(row) == list(rows[:above])
    starts, at = [], 0
    while at < len(found.ids):
        starts.append(at)
        at += found.run(at)
    assert at == len(found.ids) and len(starts) <= max(1, len(choices))


def expected(prompt: str, choices: list[str], method: ChoicesMethod) -> list[list[float]]:
    """Each choice scored by itself, without any engine."""
    before = WORDS.encode((prompt,))
    rows = []
    for choice in choices:
        whole = WORDS.encode((prompt + choice,))
        start = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
        rows.append([logprob(whole[:i], whole[i]) for i in range(start, len(whole))])
    return rows


@settings(examples(10, 300), deadline=None)
@given(
    st.lists(st.text("ab cd", min_size=1, max_size=9), min_size=1, max_size=6),
    st.sampled_from(list(ChoicesMethod)),
    st.sampled_from([(4, 60), (16, 200), (64, 600)]),
    st.sampled_from([FakeRunner, FakeAheadRunner]),
)
def test_scores_are_those_of_each_choice_alone(choices, method, size, runs):
    chunk, slots = size
    engine, core = stepped(slots, chunk=chunk, runs=runs)
    beside = engine.submit(None, [Text((PROMPT,)), Gen(SamplingParams(max_new_tokens=9, temperature=0))])
    handle = engine.submit(None, [Text((PROMPT,)), Select(tuple(choices), method)])
    drain(core, engine.check)
    meta = handle.results[0].output().metas[0]
    found = [[lp for lp, *_ in row] for row in meta["input_token_logprobs"]]
    assert found == expected(PROMPT, choices, method)
    assert beside.results[0].done
    if method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED:
        for choice, row in zip(meta["input_token_logprobs"], meta["unconditional_token_logprobs"], strict=True):
            own = [token for _, token, _ in choice]
            assert [lp for lp, *_ in row] == [0, *(logprob(own[:i], own[i]) for i in range(1, len(own)))]


@pytest.mark.parametrize("method", list(ChoicesMethod))
def test_a_select_is_one_pass_of_as_many_rows_as_the_trie_has(method):
    engine, core = stepped(chunk=256)
    handle = engine.submit(None, [Text((PROMPT,)), Select(("aaaaaaX", "aaaaaaYY", "aaaaaaYZ", "q"), method)])
    drain(core)
    prompt, conditional = len(WORDS.encode((PROMPT,))), 6 + 1  # the a's, and Y
    unconditional = conditional if method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED else 0
    assert core.runner.passes == [prompt + conditional + unconditional]
    output = handle.results[0].output()
    assert output.usage.passes == 1
