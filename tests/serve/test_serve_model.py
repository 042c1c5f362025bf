"""The server over the real runtime: answers by constraints, token ids, log-probabilities, and a loop that is not blocked."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.serve.serving import ByHand, client_of, running, talking, until

pytestmark = pytest.mark.model
pytest.importorskip("starlette")


@pytest.fixture(scope="module")
def engine():
    from lmc.backend.local_model import Engine

    made = Engine("smollm2", max_tokens=6000, chunk=128)
    yield made
    made.check()
    made.close()


FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


async def test_it_knows_the_capital_of_france_whole_and_in_pieces(engine):
    async with talking(engine) as client:
        body = {"messages": FRANCE, "temperature": 0, "max_tokens": 20}
        text = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["content"]
        assert "Paris" in text
        stream = (await client.post("/v1/chat/completions", json={**body, "stream": True})).text
        chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == text
        assert len(chunks) > 5


async def test_a_cached_prompt_is_shared_under_one_salt_only(engine):
    async with talking(engine) as client:
        async def cached(**fields):
            body = {"prompt": "A rather long beginning that several requests have in common.", "max_tokens": 1, **fields}
            usage = (await client.post("/v1/completions", json=body)).json()["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        assert await cached(cache_salt="mine") == 0
        assert await cached(cache_salt="mine") > 0
        assert await cached(cache_salt="yours") == 0
        assert await cached() == 0


async def test_a_regex_that_forces_a_million_characters_holds_nobody_up(engine):
    async with talking(engine) as client:
        for regex in ("(a{1000}){1000}", "a{1000}"):
            answer = (await client.post("/v1/completions", json={"prompt": "x", "regex": regex, "max_tokens": 3})).json()
            assert set(answer["choices"][0]["text"]) == {"a"} and answer["choices"][0]["finish_reason"] == "length", answer


async def test_a_regex_whose_every_step_takes_long_fails_alone(engine, monkeypatch):
    """Greedy answers ask for single tokens: there its error took all others along."""
    monkeypatch.setattr("lmc.fsm.lazy.MOST_FORMS", 3000)
    monkeypatch.setattr("lmc.fsm.lazy.FORMS_A_STEP", 5)
    async with talking(engine) as client:
        async def answer(**fields):
            body = {"prompt": "I can help with any word, and", "max_tokens": 60, "temperature": 0, **fields}
            return (await client.post("/v1/completions", json=body)).json()

        alone = await answer()
        hostile, beside = await asyncio.gather(answer(regex="(.*a.{30}){5}"), answer())
        assert "takes too long" in hostile["error"]["message"], hostile
        assert beside["choices"][0]["text"] == alone["choices"][0]["text"]
        assert (await answer())["choices"][0]["text"] == alone["choices"][0]["text"]


async def test_a_stop_regex_that_takes_backtracking_for_ever_holds_nobody_up(engine):
    async with talking(engine) as client:
        body = {"prompt": "x", "regex": "a{60}", "stop_regex": "(a+)+b", "max_tokens": 60}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["choices"][0]["text"] == "a" * 60


async def test_constraints(engine):
    async with talking(engine) as client:
        async def text(**fields):
            answer = await client.post("/v1/completions", json={"prompt": "A person: ", "max_tokens": 60, "temperature": 0, **fields})
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]["text"]

        schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["age"], "additionalProperties": False}
        assert isinstance(json.loads(await text(guided_json=schema))["age"], int)
        assert await text(guided_choice=["red", "blue"]) in ("red", "blue")
        assert await text(ebnf='root ::= "x" | "yy"') in ("x", "yy")
        assert await text(lark='start: "x" | "yy"') in ("x", "yy")
        assert (await text(response_format={"type": "json_object"})).startswith("{")
        refused = await client.post("/v1/completions", json={"prompt": "x", "regex": "(?=a)b"})
        assert refused.status_code == 400
        too_long = await client.post("/v1/completions", json={"prompt": "word " * 7000})
        assert too_long.json()["error"]["code"] == "context_length_exceeded"


async def test_token_ids_are_taken_as_they_are(engine):
    async with talking(engine) as client:
        ids = engine.tokenizer.encode(("The capital of France is",))
        body = {"max_tokens": 5, "temperature": 0}
        by_text = (await client.post("/v1/completions", json={**body, "prompt": "The capital of France is"})).json()
        by_ids = (await client.post("/v1/completions", json={**body, "prompt": ids})).json()
        assert by_ids["choices"][0]["text"] == by_text["choices"][0]["text"]
        assert by_ids["usage"]["prompt_tokens"] == len(ids)
        letters = [i for letter in "The" for i in engine.tokenizer.encode((letter,))]
        half = engine.tokenizer.encode(("🙂",))[:1]
        unusual = [engine.tokenizer.id_of("<|im_start|>"), *letters, *half]
        scored = {**body, "max_tokens": 1, "echo": True, "logprobs": 1}
        (choice,) = (await client.post("/v1/completions", json={**scored, "prompt": [unusual]})).json()["choices"]
        assert choice["text"].startswith("<|im_start|>The\ufffd")
        assert choice["logprobs"]["tokens"][:5] == ["<|im_start|>", "T", "h", "e", "\ufffd"], "as they were sent, though this is not how their text is encoded"
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert None not in choice["logprobs"]["token_logprobs"][1:]
        assert (await client.post("/v1/completions", json={**body, "prompt": [10**8]})).status_code == 400


async def test_texts_become_token_ids_and_token_ids_texts(engine):
    words = engine.tokenizer
    async with talking(engine) as client:

        async def tokens(**body):
            answer = await client.post("/tokenize", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        text = "<|im_start|>user\nOù ça ? 🙂<|im_end|>"
        found = await tokens(prompt=text, return_token_strs=True)
        middle = words.encode(("user\nOù ça ? 🙂",))
        assert found["tokens"] == [words.id_of("<|im_start|>"), *middle, words.id_of("<|im_end|>")]
        assert found["count"] == len(found["tokens"]) and found["max_model_len"] == engine.capabilities.max_context
        assert found["token_strs"] == [words.raw.id_to_token(token) for token in found["tokens"]], "as the vocabulary spells them, as vLLM does"
        assert found["token_strs"][:3] == ["<|im_start|>", "user", "Ċ"]
        assert (await client.post("/detokenize", json={"tokens": found["tokens"]})).json() == {"prompt": text}
        assert (await tokens(prompt=""))["tokens"] == [] and (await tokens(prompt="a", add_special_tokens=False))["token_strs"] is None
        message = {"model": "mock", "messages": [{"role": "user", "content": "Hello"}]}
        counted = (await client.post("/v1/messages/count_tokens", json=message)).json()["input_tokens"]
        assert (await tokens(**message))["count"] == counted
        info = (await client.get("/tokenizer_info")).json()
        assert (await tokens(prompt=info["eos_token"], add_special_tokens=False))["tokens"] == [words.eos_token_ids[0]]
        assert "messages" in info["chat_template"] and info["bos_token"] == "<|im_start|>"
        assert info["tokenizer_class"] and info["add_bos_token"] is False and info["model_max_length"] == found["max_model_len"]
        for path, body, param in (
            ("tokenize", {**message, "prompt": "x"}, "prompt"), ("tokenize", {"messages": []}, "messages"), ("tokenize", {}, "prompt"),
            ("detokenize", {"tokens": [10**8]}, "tokens"),
            ("detokenize", {"tokens": [1] * engine.capabilities.max_context}, "tokens"), ("detokenize", {"tokens": [1], "model": "gpt-9"}, "model"),
        ):  # fmt: skip
            refused = await client.post(f"/{path}", json=body)
            assert refused.status_code in (400, 404) and refused.json()["error"]["param"] == param, refused.text


async def test_token_ids_beyond_the_context_are_refused_before_they_are_read(engine, monkeypatch):
    async with talking(engine) as client:
        monkeypatch.setattr(type(engine.tokenizer), "decode", lambda *_, **__: pytest.fail("a million ids take a while"))
        refused = await client.post("/v1/completions", json={"prompt": [1] * engine.capabilities.max_context})
        assert refused.json()["error"]["code"] == "context_length_exceeded"


async def test_texts_beyond_the_context_are_refused_before_they_are_encoded(engine, monkeypatch):
    """A text of megabytes takes seconds and gigabytes."""
    monkeypatch.setattr(type(engine.tokenizer), "encode", lambda *_, **__: pytest.fail("it is encoded"))
    text = "7" * (100 * engine.capabilities.max_context)
    assert engine.capabilities.max_context <= engine.tokenizer.least([text]) < len(text)
    message = {"model": "mock", "messages": [{"role": "user", "content": text}]}
    async with talking(engine) as client:
        for path, body in (
            ("/v1/completions", {"prompt": text}), ("/v1/chat/completions", message), ("/v1/messages/count_tokens", message), ("/tokenize", {"prompt": text}),
        ):  # fmt: skip
            refused = await client.post(path, json=body)
            assert refused.status_code == 400 and " at least " in refused.json()["error"]["message"], refused.text


async def test_scores_of_a_prompt(engine):
    async with talking(engine) as client:
        body = {"prompt": "The capital of France is Paris", "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
        scored = (await client.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]
        assert "".join(scored["tokens"]) == body["prompt"]
        assert scored["token_logprobs"][0] is None
        assert scored["token_logprobs"][-1] > -3.0
        (nothing,) = (await client.post("/v1/completions", json={**body, "prompt": "", "max_tokens": 1})).json()["choices"]
        assert "".join(nothing["logprobs"]["tokens"]) == nothing["text"], "the token that a model starts from is no text"


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 12},
        {"max_tokens": 40, "stop": [" anchor", "The ans"]},
        {"max_tokens": 60, "regex": r" The answer to this question is: (Paris|Rome), certainly\. [a-z ]{4,9}!"},
    ],
    ids=["free", "stops", "forced"],
)
async def test_a_streams_chunks_have_the_log_probabilities_of_their_own_text(engine, fields):
    """Forced tokens are scored a pass after their text is known, and text that a stop string may cut is held back."""
    async with talking(engine) as client:
        body = {"prompt": "The capital of France is", "temperature": 0, "logprobs": 2, **fields}
        whole = (await client.post("/v1/completions", json=body)).json()
        (choice,) = whole["choices"]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        text = (await client.post("/v1/completions", json={**body, **options})).text
        *chunks, end = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        pieces = [chunk["choices"][0] for chunk in chunks]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        for name in ("tokens", "text_offset"):
            assert [x for piece in pieces for x in piece["logprobs"][name]] == choice["logprobs"][name]
        scores = [x for piece in pieces for x in piece["logprobs"]["token_logprobs"]]
        assert scores == pytest.approx(choice["logprobs"]["token_logprobs"], abs=0.1)
        for piece in pieces[:-1]:  # the last may have those of the stop string
            ends = piece["logprobs"]["text_offset"][-1] + len(piece["logprobs"]["tokens"][-1]) if piece["logprobs"]["tokens"] else 0
            assert ends <= len(choice["text"])
        assert sum(bool(piece["logprobs"]["tokens"]) for piece in pieces) > 2
        assert choice["finish_reason"] == ("stop" if len(fields) > 1 else "length")
        assert end["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_the_event_loop_is_free_while_the_engine_works(engine):
    """Sixteen long answers at once: in the meantime the loop comes back, and others are answered, many times."""
    async with running(engine) as app, client_of(app) as client:
        before = engine.counters()
        body = {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True, "stream": True}
        asks = [asyncio.create_task(client.post("/v1/completions", json={**body, "seed": i})) for i in range(16)]
        turns = answered = 0
        while not all(ask.done() for ask in asks):
            await asyncio.sleep(0.001)
            turns += 1
            if turns % 20 == 0:
                answered += (await client.get("/health")).status_code == 200
        passes = (engine.counters() - before).passes
        assert passes < 16 * 40, "they ran as a batch"
        assert turns > passes, "the loop came back more often than the engine made passes"
        assert answered > 3
        assert app.state.metrics.lag < 1.0  # generous: other processes share the machine


async def test_a_client_that_leaves_frees_the_engine(engine):
    async with running(engine) as app:
        call = ByHand(app, "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True, "n": 2}).encode())
        await until(lambda: len(call.sent) > 5, 60)
        call.leave()
        started = time.monotonic()
        await call.task
        await until(lambda: engine.stats()["running"] == 0, 60)
        assert time.monotonic() - started < 60


async def test_counted_tokens_are_the_prompt_s(engine):
    async with talking(engine) as client:
        given = {"model": "mock", "messages": [{"role": "user", "content": "Où? <b> 日本 " * 9}, {"role": "assistant", "content": "x"}] * 2}
        counted = (await client.post("/v1/messages/count_tokens", json=given)).json()["input_tokens"]
        usage = (await client.post("/v1/messages", json={**given, "max_tokens": 1})).json()["usage"]
        assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"] > 100
        too_long = {**given, "messages": [{"role": "user", "content": "long " * 20000}]}
        assert (await client.post("/v1/messages/count_tokens", json=too_long)).json()["input_tokens"] > 20000


async def test_a_required_call_fits_its_schema(engine):
    from lmc.backend.engine.whole_template import whole
    from tests.serve.test_tools import HERMES_TEMPLATE

    tools = [
        {"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"], "additionalProperties": False}}}
        for name in ("wait", "walk")
    ]  # fmt: skip
    own = engine.whole_template
    engine.whole_template = whole(HERMES_TEMPLATE, engine.tokenizer, name="test")
    try:
        async with talking(engine) as client:
            for choice, names in (("required", {"wait", "walk"}), ({"type": "function", "function": {"name": "walk"}}, {"walk"})):
                body = {"messages": FRANCE, "tools": tools, "tool_choice": choice, "temperature": 0, "max_tokens": 80}
                answer = (await client.post("/v1/chat/completions", json=body)).json()
                (call,) = answer["choices"][0]["message"]["tool_calls"]
                assert call["function"]["name"] in names
                assert 0 <= json.loads(call["function"]["arguments"])["n"] <= 99
                assert answer["choices"][0]["finish_reason"] == "tool_calls"
    finally:
        engine.whole_template = own
