"""Pictures on APIs: each gets them in its own form, in order, in forks and behind answers; what is none is refused here."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import lmc
from tests.api.test_tools import EVERYWHERE
from tests.api.text_model import TextModel
from tests.pictures import png

pytestmark = pytest.mark.api
DARK, LIGHT = png(0), png(200)


def script(prompt: str) -> str:
    return "Dark." if "first" in prompt else "Light."


@pytest.fixture(params=EVERYWHERE)
def anywhere(request):
    """A backend, and the messages of the requests that its server got."""

    def make(model: TextModel, **options: Any):
        responses = request.param == "responses"
        backend, *_, server = request.getfixturevalue("openai" if responses else request.param)(model, **({"api": "responses"} if responses else {}), **options)

        def messages():
            bodies = server if isinstance(server, list) else [s.body for s in server.seen]
            return [body.get("messages") or body.get("input") for body in bodies if body.get("messages") or isinstance(body.get("input"), list)]

        return backend, messages

    return make


def parts(content: Any) -> list[str]:
    """Texts and addresses of a message, whatever the API."""
    if isinstance(content, str):
        return [content]
    found = []
    for part in content:
        match part:
            case {"type": "text" | "input_text", "text": text}:
                found.append(text)
            case (
                {"type": "image_url", "image_url": {"url": url}}
                | {"type": "input_image", "image_url": str(url)}
                | {"type": "image", "source": {"type": "url", "url": url}}
            ):
                found.append(url)
            case {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}:
                found.append(f"data:{kind};base64,{data}")
            case _:
                raise AssertionError(part)
    return found


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


@lmc.function
def judge(s, first, second):
    s += lmc.system("You see.") + lmc.user("Compare: " + lmc.image(first) + "with" + lmc.image(second))
    forks = s.fork(2)
    for f, which in zip(forks, ("first", "second")):
        f += lmc.user(which) + lmc.assistant(lmc.gen("a", max_tokens=9, temperature=0))
    s += lmc.user(" ".join(f["a"] for f in forks)) + lmc.assistant(lmc.select("sure", ["yes", "no"]))
    return [f["a"] for f in forks], s["sure"]


def test_every_api_gets_pictures_in_order(anywhere):
    backend, messages = anywhere(TextModel(script))
    for call in (judge.run, lmc.compile(judge)):
        before = len(messages())
        found, sure = call(DARK, "https://host/light.png", backend=backend).ret_value
        assert found == ["Dark.", "Light."] and sure in ("yes", "no")
        for asked in messages()[before:]:
            user = next(m for m in asked if m.get("role") == "user")
            assert parts(user["content"]) == ["Compare: ", url(DARK), "with", "https://host/light.png"]
        assert len(messages()) >= before + 3


def test_how_closely_it_is_looked_at(openai):
    @lmc.function
    def look(s, detail):
        s += lmc.user(lmc.image(DARK, detail=detail)) + lmc.assistant(lmc.gen("a", max_tokens=9))

    for options in ({}, {"api": "responses"}):
        backend, server = openai(TextModel(script), **options)
        for detail in ("auto", "low"):
            look.run(detail, backend=backend).sync()
            body = server.seen[-1].body
            part = (body.get("messages") or body["input"])[0]["content"][0]
            told = {**part, **(part["image_url"] if isinstance(part["image_url"], dict) else {})}.get("detail")
            assert told == (None if detail == "auto" else detail)


def test_a_server_whose_model_has_no_eyes(opened):
    from tests.api import sglang_server as servers

    stand_in = servers.SGLangModel(TextModel(script))
    stand_in.get["/model_info"]["has_image_understanding"] = False
    server = opened(servers.serve(stand_in))
    backend = opened(lmc.SGLang(server.url, tokenizer=servers.WORDS, chat_template=lmc.get_chat_template("chatml")))
    with pytest.raises(lmc.UnsupportedOpError, match="image input"):
        judge.run(DARK, LIGHT, backend=backend).sync()


def test_pictures_outside_of_messages_are_refused(remote):
    @lmc.function
    def bare(s):
        s += lmc.image(DARK) + "What is it?" + lmc.gen("a", max_tokens=3)
        return s["a"]

    backend, stand_in, _ = remote(TextModel(script))
    with pytest.raises(lmc.UnsupportedOpError, match="text outside of messages"):
        bare.run(backend=backend).ret_value  # noqa: B018
    assert not any("What" in text for text in stand_in.texts)


@pytest.mark.parametrize("words", (None, "known"), ids=("text", "ids"))
def test_sglang_gets_them_as_image_data(opened, words):
    """Where it is said how a picture stands in a prompt: outside of messages, too, and choices are compared by their probability."""
    from tests.api import sglang_server as servers

    @lmc.function
    def look(s, first, second):
        s += "Compare " + lmc.image(first) + " with " + lmc.image(second) + "."
        forks = s.fork(2)
        for f, which in zip(forks, ("first", "second")):
            f += which + ": " + lmc.gen("a", max_tokens=9, temperature=0)
        s += " Sure: " + lmc.select("sure", ["yes", "no way"]) + ", so " + lmc.gen("end", max_tokens=3, temperature=0)
        return [f["a"] for f in forks], s["sure"], s["end"]

    stand_in = servers.SGLangModel(TextModel(script))
    server = opened(servers.serve(stand_in))
    backend = opened(lmc.SGLang(server.url, tokenizer=servers.WORDS if words else None, chat_template=lmc.get_chat_template("chatml"), image_token="<image>"))
    for call in (look.run, lmc.compile(look)):
        stand_in.seen.clear()
        found, sure, _ = call(DARK, "https://host/light.png", backend=backend).ret_value
        assert found == ["Dark.", "Light."] and sure in ("yes", "no way")
        assert {tuple(urls) for _, urls in stand_in.seen} == {(url(DARK), "https://host/light.png")}
        texts = [text for text, _ in stand_in.seen]
        assert all(text.startswith("Compare <image> with <image>.") for text in texts)
        begun = "Compare <image> with <image>. Sure: "
        assert {begun, begun + "yes", begun + "no way"} <= set(texts)
        assert f"{begun}{sure}, so " in texts


def test_sglang_reads_a_picture_once_before_forks_extend_it(opened):
    from tests.api import sglang_server as servers

    @lmc.function
    def look(s, picture):
        s += "See " + lmc.image(picture)
        forks = s.fork(2)
        for f, which in zip(forks, ("first", "second")):
            f += which + "? " + lmc.gen("a", max_tokens=9, temperature=0)
        return [f["a"] for f in forks]

    stand_in = servers.SGLangModel(TextModel(script))
    server = opened(servers.serve(stand_in))
    backend = opened(lmc.SGLang(server.url, tokenizer=servers.WORDS, chat_template=lmc.get_chat_template("chatml"), image_token="<image>"))
    program = lmc.compile(look, backend=backend)
    for picture in (DARK, LIGHT, DARK):
        program(picture).sync()
    begun = "See <image>"
    read = [(text, urls) for text, urls in stand_in.seen if text == begun]
    assert read == [(begun, [url(DARK)]), (begun, [url(LIGHT)])]  # another picture is another prefix
    assert len(stand_in.seen) == 2 + 3 * 2


def test_requests_with_one_picture_go_to_one_server(remote):
    from lmc.backend.api.place import ROOT
    from lmc.backend.api.prefixes import beginning
    from lmc.segments import Image

    starts = [beginning(ROOT.literal((Image(data), "What is it?"))) for data in (DARK, LIGHT, DARK)]
    assert starts[0] == starts[2] != starts[1]
