"""lmc.SGLang and lmc.VLLM against stand-ins of their protocols: token ids in and out, prefixes first, several servers, faults."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import lmc
from lmc.backend.api.client import Patience
from tests.api.conftest import nothing_is_left
from tests.api.http import Body, SeenRequest, Server
from tests.api.sglang_server import WORDS, SGLangModel, TokenModel, serve, shown
from tests.api.test_conformance import ITEMS, plain_text, turns
from tests.api.test_faults import planted
from tests.api.text_model import TextModel
from tests.api.view import agree_with_the_mock, greedy, views
from tests.conformance.harness import conform
from tests.conformance.programs import compiled, source

pytestmark = pytest.mark.api

def asked(seen: SeenRequest) -> int:
    """How many prompts a request has."""
    return asked_of(seen.body)


def asked_of(body: Body) -> int:
    prompt = body.get("input_ids", body.get("text", body.get("prompt")))
    return len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1


def prompts(server: Server) -> list[Any]:
    return [s.body.get("input_ids", s.body.get("text", s.body.get("prompt"))) for s in server.seen]


@pytest.mark.parametrize("ids", (True, False), ids=("ids", "text"))
@pytest.mark.parametrize("program", (turns, plain_text), ids=lambda p: p.name)
def test_it_gives_what_the_mock_gives(remote, program, ids):
    model = TokenModel()
    backend, _, _ = remote(model, ids=ids)
    items = [{"q": q} for q in ("x", "cats", "the sea")]
    agree_with_the_mock(program, items, backend, lambda: model.mock(backend.chat_template))
    assert backend.server_info()["prompts"].startswith("token ids" if ids else "text: ids are refused")


def test_executions_agree(remote):
    backend, _, server = remote(TokenModel())
    conform(plain_text, [{"q": "x"}, {"q": "cats"}], backend=views(backend, server, log=False))


@pytest.mark.parametrize("seed", greedy(3))
def test_random_programs(remote, seed):
    program, reset, outside = compiled(source(seed))
    model = TokenModel()
    backend, _, _ = remote(model)
    agree_with_the_mock(program, ITEMS, backend, lambda: model.mock(backend.chat_template), reset, outside, seed=7)


def test_what_was_generated_is_never_encoded_again(remote):
    @lmc.function
    def program(s):
        s += "x" + lmc.gen("a", max_tokens=9) + "b" + lmc.gen("c", max_tokens=9)

    backend, _, server = remote(TextModel(lambda prompt: "cda"))
    program.run(backend=backend, temperature=0).text()
    first, second = prompts(server)[-2:]
    assert second == [*first, *WORDS.encode(("cda",)), *WORDS.encode(("b",))], "a and b are not one token"
    assert WORDS.encode(("xcdab",)) != second


def test_a_stop_is_no_part_of_the_answer_s_tokens(remote):
    @lmc.function
    def program(s):
        s += "x" + lmc.gen("a", max_tokens=20, stop="END") + "!" + lmc.gen("c", max_tokens=9)

    backend, stand_in, _ = remote(TextModel(lambda prompt: "one END two"))
    state = program.run(backend=backend, temperature=0)
    assert state["a"] == "one " and state.text() == "xone !one END t"
    assert stand_in.texts[-1] == "xone !"


@pytest.mark.parametrize("n", (1, 3), ids=("alone", "list"))
def test_the_template_s_stops_are_sent_as_tokens(remote, n):
    """A text SGLang would look for in the decoded end of an answer after each of its tokens, and vLLM in a text that has no special tokens."""

    @lmc.function
    def program(s, q):
        s += q + lmc.gen("a", max_tokens=20, stop="END", stop_token_ids=[WORDS.id_of("</s>")])

    backend, _, server = remote(TextModel(lambda prompt: "one<|im_end|>two"), chat_template="qwen")
    states = program.run_batch([{"q": str(i)} for i in range(n)], backend=backend, temperature=0)
    assert [state["a"] for state in states] == ["one"] * n
    assert states[0].get_meta_info("a")["finish_reason"] == {"type": "stop", "matched": WORDS.id_of("<|im_end|>")}
    sglang = isinstance(backend, lmc.SGLang)
    for seen in server.seen[1:]:  # behind the one that finds out whether ids are taken
        params = seen.body["sampling_params"] if sglang else seen.body  # of all of a list
        assert params["stop_token_ids"] == [WORDS.id_of("</s>"), WORDS.id_of("<|im_end|>")]
        assert params["stop"] == (["END"] if sglang else ["END", "<|im_end|>"])


def test_data_is_never_a_role(remote):
    @lmc.function
    def program(s, q):
        s += lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=9))

    backend, _, server = remote(TextModel())
    program.run(q="x<|im_end|>", backend=backend).text()
    assert [shown([t]) for t in prompts(server)[-1] if t in WORDS.special_ids].count("<|im_end|>") == 1
    backend, _, _ = remote(TextModel(), ids=False)
    with pytest.warns(UserWarning, match=r"text contains <\|im_start\|>"):
        program.run(q="x<|im_start|>", backend=backend).text()


@pytest.mark.parametrize("method", lmc.ChoicesMethod)
def test_select_scores_the_tokens_that_are_not_the_prompt_s(remote, method):
    @lmc.function
    def program(s):
        s += "the end is a" + lmc.select("c", ["b", "bcd", " cat", "x"], choices_method=method)

    model = TokenModel()
    backend, _, _ = remote(model)
    state = program.run(backend=backend)
    assert state["c"] == program.run(backend=model.mock(backend.chat_template))["c"]
    scores = state.get_meta_info("c")["normalized_prompt_logprobs"]
    assert scores == pytest.approx([sum(row) / len(row) for row in model.rows("the end is a", ["b", "bcd", " cat", "x"])])


def test_log_probabilities(remote):
    @lmc.function
    def program(s):
        s += "x" + lmc.gen("a", max_tokens=9, return_logprob=True, return_text_in_logprobs=True)

    backend, _, _ = remote(TextModel(lambda prompt: "abc"))
    listed = program.run(backend=backend, temperature=0).get_meta_info("a")["output_token_logprobs"]
    assert [row[2] for row in listed] == ["ab", "c"] and all(row[0] < 0 for row in listed)


@pytest.mark.parametrize(("words", "first"), ((200, True), (5, False)), ids=("long", "short"))
def test_a_prefix_is_computed_before_its_forks_are_asked_if_it_is_long(sglang, words, first):
    @lmc.function
    def program(s, q):
        s += "A long beginning that all of them share. " * words + q
        forks = s.fork(4)
        for i, f in enumerate(forks):
            f += f"\n{i}:" + lmc.gen("a", max_tokens=4)
        return [f["a"] for f in forks]

    backend, stand_in, server = sglang(TextModel(), router=True)
    fast = lmc.compile(program)
    fast.planner.prepare(backend, True)  # a first run does not wait for its plan
    fast(q="?", backend=backend, temperature=0)
    shared, *asked = stand_in.texts[1:] if first else ("A long", *stand_in.texts[1:])
    assert len(asked) == 4 and all(text.startswith(shared) and text != shared for text in asked)
    about = server.seen[1:]  # behind the one that finds out whether ids are taken
    assert len({s.headers["x-smg-routing-key"] for s in about}) == (1 if first else 4)
    assert all(s.headers["x-session-id"] == s.headers["x-smg-routing-key"] for s in about)
    fast(q="!", backend=backend, temperature=0)
    assert len(stand_in.texts) == 9 + first, "what the server has read it need not read again"


def test_the_prefix_of_a_batch_is_computed_again_when_the_server_has_lost_it(sglang):
    @lmc.function
    def program(s, q):
        s += "A long beginning that all of them share. " * 200 + q + lmc.gen("a", max_tokens=4)

    backend, stand_in, _ = sglang(TextModel())
    fast = lmc.compile(program)
    fast.planner.prepare(backend, True)
    for flushed in (False, False, True):
        if flushed:
            backend.flush_cache()
        before = len(stand_in.texts)
        fast.batch([{"q": q} for q in "abc"], backend=backend, temperature=0)
        asked = stand_in.texts[before:]
        first = not before or flushed
        assert len(asked) == 3 + first + (not before), "whether ids are taken, once; the prefix; an answer each"
        assert not first or all(text.startswith(asked[-4]) for text in asked[-3:])


def test_vllm_shares_what_a_pass_computes(vllm):
    @lmc.function
    def program(s):
        s += "A long beginning that all of them share. " * 40
        forks = s.fork(4)
        for i, f in enumerate(forks):
            f += f"\n{i}:" + lmc.gen("a", max_tokens=4)
        return [f["a"] for f in forks]

    backend, stand_in, _ = vllm(TextModel())
    lmc.compile(program)(backend=backend, temperature=0)
    assert len(stand_in.texts) == 1 + 4, "nothing is asked ahead but whether ids are taken"


def test_a_stream_whose_events_have_only_what_is_new(sglang):
    """As of servers that are started with --incremental-streaming-output."""

    @lmc.function
    def program(s):
        s += "x" + lmc.gen("a", max_tokens=40)

    backend, stand_in, server = sglang(TextModel(lambda prompt: "one two three four"))
    handle = stand_in.handle

    def new_parts(path, body):
        answer, events, count = handle(path, body), [], 0
        if answer.events is None:
            return answer
        for piece in ("one two", " three", " four"):
            ids = WORDS.encode((piece,))
            count += len(ids)
            meta = {**answer.events[-1]["meta_info"], "completion_tokens": count, "finish_reason": {"type": "stop", "matched": 0} if piece == " four" else None}
            events.append({"text": piece, "output_ids": ids, "meta_info": meta})
        return replace(answer, events=events)

    server.handle = new_parts
    state = program.run(backend=backend, stream=True, temperature=0)
    assert "".join(state.text_iter("a")) == state["a"] == "one two three four"
    assert server.seen[-1].body["stream"]


def test_faults(remote):
    @lmc.function
    def program(s, q):
        s += "About " + q + ":" + lmc.gen("a", max_tokens=9, stop="\n")
        s += "\nThen" + lmc.gen("c", max_tokens=6)
        return s["c"]

    model = TextModel()
    backend, _, server = remote(model, plant=planted(0.2, kinds=("status", "reset", "truncate", "garbage", "delay")), concurrency=8)
    fast = lmc.compile(program)
    items = [{"q": str(i)} for i in range(150)]
    states = fast.batch(items, backend=backend, temperature=0)
    expected = fast.batch(items, backend=model.mock(backend.chat_template), temperature=0)
    assert [s.ret_value for s in states] == [s.ret_value for s in expected]
    spent, faults = backend.spent(), Counter[str | None]()
    for s in server.seen:
        faults[s.fault] += asked(s) - s.answers
    reported = [s.reported for s in server.seen if s.reported]
    assert spent.usage.prompt_tokens == sum(r["prompt_tokens"] for r in reported)
    assert spent.usage.completion_tokens == sum(r["completion_tokens"] for r in reported)
    unseen = spent.attempts - sum(map(asked, server.seen))  # sent into a connection that the server had just closed
    assert spent.unreported == faults["reset"] + faults["truncate"] + faults["garbage"] + unseen > 0 <= unseen
    nothing_is_left(backend, server)


def test_templates_by_name(opened):
    server = opened(serve(SGLangModel(TextModel())))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend = opened(lmc.RuntimeEndpoint(server.url, patience=Patience(1, 2.0)))
    assert backend.chat_template.name == "qwen" and backend.server_info()["prompts"].startswith("text: its tokenizer is not known here")
