"""Adapters as models of a server: listed, asked by name, each with its own answers and cache."""

from __future__ import annotations

import json

import pytest

import lmc
from tests.serve.serving import talk, talking

pytestmark = pytest.mark.model
pytest.importorskip("starlette")
pytest.importorskip("torch")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    from tests.backend.engine.test_lora import engine_of, make_base

    with engine_of(make_base("llama", tmp_path_factory.mktemp("served"))) as made:
        made.chat_template = lmc.get_chat_template("default")
        yield made
        made.check()


def test_they_are_listed_and_asked_by_name(engine):
    async def work(client):
        listed = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["mock", "all", "some", "rs"]
        assert (await client.get("/v1/models/rs")).json()["id"] == "rs"
        found = {}
        for name in (None, "mock", "all", "some", "rs"):
            body = {"prompt": "the order of the first thing", "max_tokens": 20, "temperature": 0, "ignore_eos": True, **({"model": name} if name else {})}
            whole = (await client.post("/v1/completions", json=body)).json()
            stream = (await client.post("/v1/completions", json={**body, "stream": True})).text
            pieces = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
            assert {whole["model"], *(piece["model"] for piece in pieces)} == {name or "mock"}
            found[name] = whole["choices"][0]["text"]
            assert "".join(piece["choices"][0]["text"] for piece in pieces) == found[name]
        assert found[None] == found["mock"] and len(set(found.values())) == 4
        return found

    found = talk(work, engine)
    program = lmc.function(lambda s, name: s.__iadd__("the order of the first thing" + lmc.gen("x", max_tokens=20, ignore_eos=True, adapter=name)))
    assert {name: program.run(name, backend=engine, temperature=0)["x"] for name in ("all", "some", "rs")} == {n: found[n] for n in ("all", "some", "rs")}


@pytest.mark.parametrize(("path", "more"), [
    ("/v1/chat/completions", {}), ("/v1/responses", {}), ("/v1/messages", {"max_tokens": 12}),
])  # fmt: skip
def test_every_form_of_asking_takes_them(engine, path, more):
    async def work(client):
        texts = {}
        for name in ("mock", "all", "some"):
            asked = {"input": "the order"} if path.endswith("responses") else {"messages": [{"role": "user", "content": "the order"}]}
            limit = {"max_output_tokens": 16} if path.endswith("responses") else {"max_tokens": 12}
            reply = await client.post(path, json={"model": name, "temperature": 0, **limit, **asked, **more})
            assert reply.status_code == 200 and reply.json()["model"] == name
            body = reply.json()
            texts[name] = said(body)
        return texts

    assert len(set(talk(work, engine).values())) == 3


def said(body) -> str:
    """The text of an answer, in any form."""
    if "choices" in body:
        return body["choices"][0]["message"]["content"]
    return body["content"][0]["text"] if "content" in body else body["output"][0]["content"][0]["text"]


async def test_another_name_is_not_found_and_says_which_there_are(engine):
    async with talking(engine) as client:
        for ask in (client.get("/v1/models/sql"), client.post("/v1/completions", json={"prompt": "a", "model": "sql"})):
            reply = await ask
            assert reply.status_code == 404
            assert reply.json()["error"]["message"] == "there is no model 'sql'; this server has mock, all, some, rs"
