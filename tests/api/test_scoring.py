"""The cost of a select to a server: how many requests and prompts, and how many tokens it has to score; always with the engine's scores."""

from __future__ import annotations

import pytest

import lmc
from lmc.backend.api.scoring import ScoredRow
from lmc.backend.api.sglang import SGLang
from lmc.backend.api.vllm import _named_at_once
from tests.api.sglang_server import WORDS, TokenModel

pytestmark = pytest.mark.api

START = "What all of them share, which is long. " * 20 + "the end is a"


@lmc.function
def choosing(s, choices, method=lmc.ChoicesMethod.TOKEN_LENGTH_NORMALIZED, text=START):
    s += text + lmc.select("c", choices, choices_method=method)


def right(model, backend, choices, method=lmc.ChoicesMethod.TOKEN_LENGTH_NORMALIZED, text=START) -> None:
    """The answer and its scores are the mock's."""
    state = choosing.run(choices, method, text, backend=backend)
    assert state["c"] == choosing.run(choices, method, text, backend=model.mock(backend.chat_template))["c"]
    scores = state.get_meta_info("c")["normalized_prompt_logprobs"]
    assert scores == pytest.approx([sum(row) / len(row) for row in model.rows(text, choices)])
    listed = state.get_meta_info("c")["input_token_logprobs"]
    assert ["".join(text for _, _, text in row)[-len(c) :] for row, c in zip(listed, choices)] == list(choices)


@pytest.mark.parametrize("method", lmc.ChoicesMethod)
def test_one_token_choices_are_one_prompt(remote, method):
    model = TokenModel()
    backend, stand_in, server = remote(model)
    right(model, backend, ["x", "y", "z"], method)
    about = server.seen[1:]  # behind the one that finds out whether ids are taken
    assert len(about) == 1 and len(stand_in.texts) == 2 and stand_in.scored == 0
    assert stand_in.texts[-1] == START, "the prompt itself: all of it may be cached"


@pytest.mark.parametrize("method", lmc.ChoicesMethod)
def test_longer_choices_are_scored_from_where_they_begin(sglang, method):
    model = TokenModel()
    backend, stand_in, server = sglang(model)
    choices = ["b one", "bcd", " cat and dog", "x"]
    right(model, backend, choices, method)
    alone = method is lmc.ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED
    tokens = sum(len(row) for row in model.rows(START, choices))
    assert stand_in.scored <= (2 if alone else 1) * tokens + 2 * len(choices), "all from the token before the first that a choice changes"
    lists = [True, True] if alone else [True]
    assert [isinstance(s.body["input_ids"][0], list) for s in server.seen[1:]] == [False, *lists], "the prompt, then a list, and one of the choices alone"
    assert all(isinstance(s.body["logprob_start_len"], int) for s in server.seen[2:]), "of SGLang's routers, none takes a list of them"
    before = len(server.seen)
    right(model, backend, choices, method)
    assert len(server.seen) == before + len(lists), "the prompt has been read"


def test_a_short_prompt_is_computed_with_its_choices(sglang):
    model = TokenModel()
    backend, _, server = sglang(model)
    right(model, backend, ["b one", "bcd"], text="the end is a")
    assert len(server.seen) == 2, "whether ids are taken, and the list"


@pytest.mark.parametrize("choices", (["b", "bcd", " cat", "x"], ["t", "x"]), ids=("a little", "more than two tokens"))
@pytest.mark.parametrize("method", lmc.ChoicesMethod)
def test_where_tokens_are_not_known_the_server_says_where_the_prompt_ends(sglang, method, choices):
    model = TokenModel()
    backend, stand_in, _ = sglang(model, ids=False)
    text = START if choices[0] == "b" else START[:-1] + "ca"
    assert WORDS.encode((text + "t",))[:-3] != WORDS.encode((text,))[:-3] or choices[0] == "b"
    state = choosing.run(choices, method, text, backend=backend)
    assert state["c"] == choosing.run(choices, method, text, backend=model.mock(backend.chat_template))["c"]
    scores = state.get_meta_info("c")["normalized_prompt_logprobs"]
    assert scores == pytest.approx([sum(row) / len(row) for row in model.rows(text, choices)])
    assert stand_in.scored < 120, "a few tokens of each, not the prompt"


@pytest.mark.parametrize("method", lmc.ChoicesMethod)
def test_vllm_lists_chosen_tokens_behind_cached_prompts(vllm, method):
    model = TokenModel()
    backend, stand_in, server = vllm(model)
    right(model, backend, ["b one", "bcd", " cat and dog", "x", "xyz"], method)
    assert len(server.seen) == 2 and stand_in.scored == 0
    assert "prompt_logprobs" not in server.seen[-1].body


def test_long_choices_behind_a_short_prompt_are_scored_whole(vllm):
    model = TokenModel()
    backend, _, server = vllm(model)
    right(model, backend, ["one and another and a third", "two and another and a third"], text="x")
    assert "prompt_logprobs" in server.seen[-1].body and len(server.seen) == 2


def test_a_vllm_server_that_cannot_name_tokens_is_asked_once(vllm):
    model = TokenModel()
    backend, stand_in, server = vllm(model)
    stand_in.names_tokens = False
    right(model, backend, ["x", "y"])
    asked = ["logprob_token_ids" in s.body for s in server.seen[1:]]
    assert asked == [True, False]
    right(model, backend, ["x", "y"])
    assert ["logprob_token_ids" in s.body for s in server.seen[1:]] == [True, False, False]


def test_many_tokens_are_named_in_several_requests():
    contexts = {ScoredRow(5, ()): set(range(300)), ScoredRow(5, (1,)): {1, 2}, ScoredRow(5, (2,)): set(range(1000, 1100)), ScoredRow(5, (3,)): {1}}
    parts = list(_named_at_once(contexts))
    assert all(len(set().union(*part.values())) <= 128 for part in parts) and len(parts) == 4
    named = [(row, token) for part in parts for row, tokens in part.items() for token in tokens]
    assert sorted(named, key=str) == sorted(((row, token) for row, tokens in contexts.items() for token in tokens), key=str)


def test_an_sglang_server_that_cannot_name_tokens_scores_prompts(sglang, monkeypatch):
    model = TokenModel()
    backend, stand_in, server = sglang(model)
    assert isinstance(backend, SGLang)
    item = stand_in._item

    def without(*args):
        made = item(*args)
        made["meta_info"].pop("output_token_ids_logprobs", None)
        return made

    monkeypatch.setattr(stand_in, "_item", without)
    for _ in range(2):
        right(model, backend, ["x", "y"])
    assert ["token_ids_logprob" in s.body for s in server.seen].count(True) == 1
