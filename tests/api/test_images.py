"""Pictures on APIs: each gets them in its own form, in order, in forks and behind answers; what is none is refused here."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

import lmc
from tests.api.http import Planted, Server
from tests.api.text_model import TextModel
from tests.pictures import png

pytestmark = pytest.mark.api
DARK, LIGHT, SMALL = png(0), png(200), png(100)


def script(prompt: str) -> str:
    return "Dark." if "first" in prompt else "Light."


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
    backend, asked = anywhere(TextModel(script))

    def messages():
        said = [body.get("messages") or body.get("input") for _, body in asked()]
        return [m for m in said if isinstance(m, list)]

    for call in (judge.run, lmc.compile(judge)):
        before = len(messages())
        found, sure = call(DARK, "https://host/light.png", backend=backend).ret_value
        assert found == ["Dark.", "Light."] and sure in ("yes", "no")
        for said in messages()[before:]:
            user = next(m for m in said if m.get("role") == "user")
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

    @lmc.function
    def several(s, first, second):
        s += "Compare " + lmc.image(first) + " with " + lmc.image(second) + "." + lmc.gen("a", n=3, max_tokens=9)
        return s["a"]

    stand_in.seen.clear()
    assert len(several(DARK, "https://host/light.png", backend=backend).ret_value) == 3
    assert stand_in.seen == [("Compare <image> with <image>.", [url(DARK), "https://host/light.png"])]


QUESTIONS = [f"Question {i}" for i in range(6)]


@lmc.function
def bare(s, picture):
    s += "See " + lmc.image(picture) + "a caption. "
    forks = s.fork(len(QUESTIONS))
    for f, which in zip(forks, QUESTIONS):
        f += which + "? " + lmc.gen("a", max_tokens=9, temperature=0)
    return [f["a"] for f in forks]


@lmc.function
def told(s, picture):
    s += lmc.user("See " + lmc.image(picture) + "a caption.")
    forks = s.fork(len(QUESTIONS))
    for f, which in zip(forks, QUESTIONS):
        f += lmc.user(which + "?") + lmc.assistant(lmc.gen("a", max_tokens=9, temperature=0))
    return [f["a"] for f in forks]


@lmc.function
def chosen_of(s, picture):
    s += "See " + lmc.image(picture) + "a caption. "
    forks = s.fork(len(QUESTIONS))
    for f, which in zip(forks, QUESTIONS):
        f += which + "? " + lmc.select("a", ["yes", "no"])
    return [f["a"] for f in forks]


class Leaders:
    """Holds the first request with each picture until there is one of every picture, and notes what arrives with it."""

    def __init__(self, stand_in, pictures: int) -> None:
        self.stand_in, self.pictures = stand_in, pictures
        self.begun: set[str] = set()
        self.leading: set[str] = set()
        self.early: list[str] = []

    def plant(self, number, path, body):
        if (seen := self._of(body)) is None or seen in self.begun:
            return None
        if seen in self.leading:
            self.early.append(seen)
        self.leading.add(seen)
        return Planted("delay", seconds=60, until=lambda: len(self.leading) == self.pictures)

    def handle(self, path, body):
        if (seen := self._of(body)) is not None:
            self.begun.add(seen)
        return self.stand_in.handle(path, body)

    @staticmethod
    def _of(body):
        return next((address for address in map(url, PICTURES) if address in json.dumps(body)), None)


PICTURES = [DARK, LIGHT, SMALL]


@pytest.mark.parametrize(
    ("program", "token", "each"),
    ((bare, "<image>", 6), (told, "<image>", 6), (told, None, 6), (chosen_of, "<image>", 12)),
    ids=("bare", "told", "messages", "choices"),
)
@pytest.mark.parametrize("run", ("compiled", "interpreted"))
def test_sglang_gets_a_picture_first_by_one_of_the_forks_that_see_it(opened, program, token, each, run):
    """A request of its own to prefill it would be one more for which the server prepares the picture."""
    from tests.api import sglang_server as servers

    stand_in = servers.SGLangModel(TextModel(script))
    leaders = Leaders(stand_in, len(PICTURES))
    server = opened(Server(leaders.handle, get=stand_in.get, plant=leaders.plant))
    backend = opened(lmc.SGLang(server.url, tokenizer=servers.WORDS, chat_template=lmc.get_chat_template("chatml"), image_token=token, speculate=False))
    items = [{"picture": picture} for picture in PICTURES]
    states = lmc.compile(program).batch(items, backend=backend) if run == "compiled" else program.run_batch(items, backend=backend, num_threads=3)
    assert [len(state.ret_value) for state in states] == [6] * 3
    seen = [s for s in server.seen if Leaders._of(s.body)]
    assert len(seen) == each * len(items) and leaders.early == []
    assert backend.server_info()["held"] == 5 * len(items)
    (lmc.compile(program) if run == "compiled" else program.run)(DARK, backend=backend).sync()
    assert backend.server_info()["held"] == 5 * len(items), "it is in the server's cache"


def test_what_leads_without_streaming_holds_the_others_as_well(opened):
    """An older server, which refuses the interval of events; and n answers, which no stream has."""
    from tests.api import sglang_server as servers

    stand_in = servers.SGLangModel(TextModel(script), lacks=frozenset({"stream_interval"}))
    server = opened(servers.serve(stand_in))
    backend = opened(lmc.SGLang(server.url, tokenizer=servers.WORDS, chat_template=lmc.get_chat_template("chatml"), image_token="<image>"))
    found = bare.run(DARK, backend=backend).ret_value
    assert len(found) == 6 and len([s for s in server.seen if Leaders._of(s.body)]) == 7, "one was refused"
    backend.flush_cache()
    held = backend.server_info()["held"]
    assert bare.run(LIGHT, backend=backend).ret_value and bare.run(DARK, backend=backend).ret_value == found
    assert backend.server_info()["held"] == held + 10, "what was flushed is read again by one"
    backend.flush_cache()
    bare.run(DARK, backend=backend, return_logprob=True).sync()
    last = [s.body for s in server.seen if Leaders._of(s.body)][-6:]
    assert not any(body.get("stream") for body in last), "servers stream log-probabilities in different ways"
    assert backend.server_info()["held"] == held + 15


def test_requests_with_one_picture_go_to_one_server(remote):
    from lmc.backend.api.place import ROOT
    from lmc.backend.api.prefixes import beginning
    from lmc.segments import Image

    starts = [beginning(ROOT.literal((Image(data), "What is it?"))) for data in (DARK, LIGHT, DARK)]
    assert starts[0] == starts[2] != starts[1]
