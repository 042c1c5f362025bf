"""lmc.VLLM, and lmc.OpenAI, against a real vLLM server: skipped unless TEST_VLLM_URL has its URL. How to start one: docs/apis.md.

Values are compared with the engine's where the server's model is a folder on this machine; the rest holds for any model.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Literal

import pytest

import lmc
from lmc.segments import Special

URL = os.environ.get("TEST_VLLM_URL", "")
pytestmark = [pytest.mark.api, pytest.mark.skipif(not URL, reason="no vLLM server: TEST_VLLM_URL has no URL (docs/apis.md says how to start one)")]

CLOSED = {"type": "object", "properties": {"ripe": {"type": "boolean"}}, "required": ["ripe"], "additionalProperties": False}


@pytest.fixture(scope="module")
def backend():
    with lmc.VLLM(URL, concurrency=8) as backend:
        yield backend


@pytest.fixture(scope="module")
def engine(backend):
    if not Path(backend.model).is_dir():
        pytest.skip(f"the server's model, {backend.model}, is no folder on this machine")
    with lmc.Engine(backend.model, device="cpu") as engine:
        yield engine


@lmc.function
def everything(s, q):
    s += lmc.system("You are brief.") + lmc.user(q)
    s += lmc.assistant(lmc.gen("a", max_tokens=8, stop=["\n", "."]))
    s += lmc.user("Is that food?") + lmc.assistant(lmc.select("food", ["yes", "no"]))
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += lmc.user(f"Why? {i}") + lmc.assistant("Since " + lmc.gen("why", max_tokens=5))
    s += lmc.user("How many?") + lmc.assistant(lmc.gen("many", regex=r"[0-9]{1,2} (apples|pears)", max_tokens=12))
    s += lmc.user("JSON") + lmc.assistant(lmc.gen("json", json_schema=json.dumps(CLOSED), max_tokens=40))
    s += lmc.user("Twice") + lmc.assistant(lmc.gen("two", max_tokens=3, n=2))
    return s["a"], s["food"], [f["why"] for f in forks], s["many"], s["json"], s["two"]


def test_executions_agree(backend):
    items = [{"q": "Name a fruit."}, {"q": "A colour?"}]
    expected = [everything.run(**item, backend=backend, temperature=0) for item in items]
    fast = lmc.compile(everything, backend=backend)
    assert [fast(**item, temperature=0).ret_value for item in items] == [s.ret_value for s in expected]
    states = fast.batch(items, temperature=0)
    assert [(s.ret_value, s.text()) for s in states] == [(s.ret_value, s.text()) for s in expected]
    for s in expected:
        assert "\n" not in s["a"] and s["food"] in ("yes", "no") and re.fullmatch(r"[0-9]{1,2} (apples|pears)", s["many"])
        assert s.get_meta_info("json")["finish_reason"]["type"] == "length" or type(json.loads(s["json"])["ripe"]) is bool
        assert s["two"][0] == s["two"][1], "greedy answers are one"
        assert s.usage.calls == 7 and s.usage.completion_tokens > 20


def test_prompts_are_ids_and_what_was_generated_stays(backend):
    @lmc.function
    def twice(s, q):
        s += lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=6, ignore_eos=True) + " and" + lmc.gen("b", max_tokens=3, ignore_eos=True))

    assert backend.server_info()["prompts"] == "token ids"
    words, end = backend._prompts.tokens.words, next(p for p in backend.chat_template.end("user") if isinstance(p, Special)).spelling
    asked = [twice.run(q=q, backend=backend, temperature=0) for q in ("Hello", f"Hello {end}")]
    for s in asked:
        a, b = s.get_meta_info("a"), s.get_meta_info("b")
        assert a["completion_tokens"] == 6 and b["prompt_tokens"] == a["prompt_tokens"] + 6 + len(words.encode((" and",)))
    more = asked[1].get_meta_info("a")["prompt_tokens"] - asked[0].get_meta_info("a")["prompt_tokens"]
    assert more == len(words.encode((f"Hello {end}",))) - len(words.encode(("Hello",))) > 1, "data is no role"


def test_log_probabilities_are_of_what_was_said(backend):
    @lmc.function
    def listed(s):
        s += lmc.user("Count to five.") + lmc.assistant(lmc.gen("a", max_tokens=6, return_logprob=True, top_logprobs_num=2))

    meta = listed.run(backend=backend, temperature=0).get_meta_info("a")
    tokens, top = meta["output_token_logprobs"], meta["output_top_logprobs"]
    assert len(tokens) == len(top) == meta["completion_tokens"]
    assert all(token[0] == max(row)[0] for token, row in zip(tokens, top)), "greedy"


def test_it_scores_choices_as_the_engine_does(backend, engine):
    @lmc.function
    def chosen(s, method):
        s += lmc.user("The capital of France is") + lmc.assistant(lmc.select("a", ["Paris", "Par", "Rome", "Lyon, or Paris"], choices_method=method))

    for method in lmc.ChoicesMethod:
        one, other = (chosen.run(method, backend=b) for b in (backend, engine))
        assert one["a"] == other["a"]
        scores = [s.get_meta_info("a")["normalized_prompt_logprobs"] for s in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=0.05)


def test_it_says_what_the_engine_says(backend, engine):
    """Token by token: what the engine says first otherwise must be nearly as likely there."""

    @lmc.function
    def said(s, q):
        s += lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=12, return_logprob=True, top_logprobs_num=3))

    for q in ("Name a fruit.", "What is the capital of France?"):
        metas = [said.run(q, backend=b, temperature=0).get_meta_info("a") for b in (backend, engine)]
        texts = [[token[2] or words_of(backend, token[1]) for token in meta["output_token_logprobs"]] for meta in metas]
        first = next((i for i, (x, y) in enumerate(zip(*texts)) if x != y), None)
        if first is not None:
            alike = {text: lp for lp, _, text in metas[0]["output_top_logprobs"][first]}
            assert alike.get(texts[1][first], -99.0) > max(alike.values()) - 0.1


def words_of(backend, token: int) -> str:
    return backend._prompts.tokens.words.decode((token,), with_specials=True)


def test_streams(backend):
    @lmc.function
    def told(s):
        s += lmc.user("Tell me of the sea.") + lmc.assistant(lmc.gen("a", max_tokens=10, ignore_eos=True) + lmc.gen("b", max_tokens=2))

    state = told.run(backend=backend, stream=True, temperature=0)
    pieces = list(state.text_iter("a"))
    whole = told.run(backend=backend, temperature=0)
    assert "".join(pieces) == whole["a"] and len(pieces) > 3 and state["b"] == whole["b"]
    assert state.get_meta_info("b")["prompt_tokens"] == whole.get_meta_info("b")["prompt_tokens"], "of a streamed answer, too, the ids are known"


def test_samples(backend):
    @lmc.function
    def thrice(s):
        s += lmc.user("Say anything.") + lmc.assistant(lmc.gen("a", max_tokens=6, n=3))

    states = [thrice.run(backend=backend, temperature=1.2, seed=seed) for seed in (1, 1, 2)]
    assert states[0]["a"] == states[1]["a"] != states[2]["a"] and len(set(states[0]["a"])) > 1
    assert states[0].usage.calls == 1 and states[0].usage.completion_tokens > 6


def test_a_batch(backend):
    fast = lmc.compile(everything, backend=backend, outputs=["a"])
    states = fast.batch([{"q": f"Name {i} fruits."} for i in range(6)], temperature=0, errors="return")
    assert all(s.failure is None and s["a"] is not None for s in states)


def test_what_it_refuses_has_a_place(backend):
    @lmc.function
    def long(s):
        s += "x" + lmc.gen("a", max_tokens=10_000_000)

    with pytest.raises(lmc.BackendError, match=r"(?s)test_vllm_server.py:\d+: .*gen 'a' failed: HTTP 400"):
        long.run(backend=backend).text()


def paint(colour: Literal["red", "blue"]) -> str:
    """Paints the wall."""
    return f"The wall is {colour}."


@lmc.function
def painter(s):
    s += lmc.user("A red wall, please.") + lmc.assistant(lmc.gen("call", tools=[paint], max_tokens=100))
    calls = s.get_meta_info("call")["tool_calls"]
    for call in calls:
        s += lmc.tool_result(call, lmc.call_tool(call, [paint]))
    s += lmc.assistant(lmc.gen("said", max_tokens=5)) + lmc.user("Sure?") + lmc.assistant(lmc.select("sure", ["yes", "no"]))
    return [(c["name"], c["arguments"]["colour"]) for c in calls]


@pytest.mark.parametrize("choice", ({"type": "function", "function": {"name": "paint"}}, "required"), ids=("named", "required"))
def test_tools(choice):
    """A call that the server is told to want: written by the model within the tool's schema, read by the server, made here."""
    with lmc.VLLM(URL, extra_body={"tool_choice": choice}) as backend:
        for call in (painter.run, lmc.compile(painter)):
            state = call(backend=backend, temperature=0)
            assert state.ret_value in ([("paint", "red")], [("paint", "blue")]) and state["sure"] in ("yes", "no")
            assert [m["role"] for m in state.messages()][:3] == ["user", "assistant", "tool"]


def test_by_openai_s_client(backend):
    with lmc.OpenAI(backend.model, base_url=f"{URL.rstrip('/').removesuffix('/v1')}/v1", server="vllm") as client:
        state = lmc.compile(everything)("Name a fruit.", backend=client, temperature=0)
        assert state["food"] in ("yes", "no") and re.fullmatch(r"[0-9]{1,2} (apples|pears)", state["many"])
        assert state["a"] == everything("Name a fruit.", backend=backend, temperature=0)["a"]
