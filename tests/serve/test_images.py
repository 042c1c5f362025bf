"""Pictures in requests: data URLs of all three APIs reach the model; nothing is fetched but from hosts that were named."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import lmc
from lmc.backend.engine.eyes import Eyes
from lmc.backend.engine.prompt_pictures import Shown, Surroundings
from lmc.backend.mock import CAPABILITIES
from lmc.images import is_named
from tests.backend.engine_fakes import backend
from tests.backend.test_replicas import replicated
from tests.pictures import png
from tests.serve.serving import post

pytestmark = pytest.mark.api
DARK, LIGHT = png(0), png(200)
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def part(address: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address, **more}}


def asked(*parts: dict[str, Any], role: str = "user", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(parts)}], **more}


def seeing(prompt: str, ask: Any, images: list[bytes | str]) -> str:
    return " ".join({DARK: "dark", LIGHT: "light"}[image] for image in images)  # type: ignore[index]


@pytest.mark.parametrize(
    ("path", "body"),
    (
        (CHAT, asked({"type": "text", "text": "Compare "}, part(url(DARK)), {"type": "text", "text": " with "}, part(url(LIGHT), detail="low"))),
        (
            RESPONSES,
            {"input": [{"role": "user",
                "content": [{"type": "input_text", "text": "Compare "}, {"type": "input_image", "image_url": url(DARK)},
                    {"type": "input_text", "text": " with "}, {"type": "input_image", "image_url": url(LIGHT), "detail": "low"}]}]},
        ),
        (
            MESSAGES,
            {
                "max_tokens": 20, "messages": [{"role": "user", "content": [
                    {"type": "text", "text": "Compare "},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url(DARK).partition(",")[2]}},
                    {"type": "text", "text": " with "},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url(LIGHT).partition(",")[2]}},
                ]}],
            },
        ),
    ),
)  # fmt: skip
def test_the_model_sees_them_in_order(path, body):
    mock = lmc.Mock(seeing)
    answer = post(path, {**body, "model": "mock"}, mock)
    assert answer.status_code == 200, answer.text
    assert "dark light" in answer.text
    assert mock.call_log[0].images == [DARK, LIGHT]
    assert mock.call_log[0].prompt_text == "<|im_start|>user\nCompare  with <|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("body", "why"),
    (
        (asked(part("https://host/a.png")), "fetches nothing"),
        (asked(part("/etc/passwd")), "data URL"),
        (asked(part("file:///etc/passwd")), "data URL"),
        (asked(part("data:image/png;base64,AAAA")), "neither PNG"),
        (asked(part("data:image/png;base64,A!")), "data URL"),
        (asked(part("data:text/html;base64,AAAA")), "data URL"),
        (asked(part(url(DARK)), role="system"), "part of a user's message"),
        (asked(part(url(DARK), detail="huge")), "messages.0.content"),
        (asked({"type": "image_url"}), "must have the field"),
        (asked({"type": "video_url", "video_url": {"url": "x"}}), "takes text and image_url"),
        (asked(part(url(DARK)), tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),
    ),
)
def test_what_is_refused(body, why):
    mock = lmc.Mock()
    answer = post(CHAT, body, mock)
    assert answer.status_code == 400 and why in answer.json()["error"]["message"]
    assert not mock.call_log


@pytest.mark.parametrize(
    ("path", "body", "why"),
    (
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}]}]},
            "takes text, and input_image",
        ),
        (MESSAGES, {"max_tokens": 5, "system": [{"type": "audio"}], "messages": [{"role": "user", "content": "x"}]}, "pictures are parts of a user's message"),
    ),
)
def test_what_is_refused_names_what_is_taken(path, body, why):
    answer = post(path, {**body, "model": "mock"}, lmc.Mock())
    assert answer.status_code == 400 and why in answer.json()["error"]["message"]


def test_pictures_count_as_the_request_counts_them():
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(DARK).decode()}}
    given = {"model": "mock", "messages": [{"role": "user", "content": [{"type": "text", "text": "Which?"}, picture]}]}
    mock = lmc.Mock(seeing)
    counted = post(f"{MESSAGES}/count_tokens", given, mock).json()["input_tokens"]
    usage = post(MESSAGES, {**given, "max_tokens": 64}, mock).json()["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_a_model_of_text_says_so():
    answer = post(CHAT, asked(part(url(DARK))), lmc.Mock(capabilities=replace(CAPABILITIES, images=False)))
    assert answer.status_code == 400 and "takes text only" in answer.json()["error"]["message"]


class Slow:
    """Prepares a picture once its stream could have begun: 80 tokens."""

    name, width, token, video_token, seconds = "fake", 8, 1, None, 0.0
    around = around_video = Surroundings()

    def prepare(self, picture: Any, detail: str) -> tuple[Shown]:
        time.sleep(0.2)
        return (Shown(80, {"pixels": np.asarray(picture, np.float32)}),)


@contextmanager
def replicas(engine: Any) -> Iterator[Any]:
    with replicated(engine) as (found, _):
        yield found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("placed", [nullcontext, replicas])
def test_too_many_pictures_are_refused_before_an_answer_begins(placed, stream):
    body = asked(*[part(url(DARK)), part(url(LIGHT))], stream=stream, max_tokens=2)
    with backend(eyes=Eyes(Slow()), max_context=150)[0] as engine, placed(engine) as served:  # type: ignore[arg-type]
        answer = post(CHAT, body, served)
        assert answer.status_code == 400 and "2 pictures of 160 tokens" in answer.json()["error"]["message"]
        assert post(CHAT, asked(part(url(DARK)), stream=stream, max_tokens=2), served).status_code == 200
        assert engine.counters().calls == 1


@contextmanager
def ending(ends: int) -> Iterator[Any]:
    """Two replicas, of which the first `ends` that prepare a picture end while they do."""

    class Ending(Slow):
        def __init__(self, number: int) -> None:
            self.number = number

        def prepare(self, picture: Any, detail: str) -> tuple[Shown]:
            if self.number in ended or len(ended) < ends:
                ended.add(self.number)
                processes[self.number].kill()
            return super().prepare(picture, detail)

    ended = set[int]()
    engines = [backend(eyes=Eyes(Ending(i), threads=1), max_context=150)[0] for i in range(2)]  # type: ignore[arg-type]
    with engines[0], engines[1], replicated(*engines) as (served, processes):
        yield served


@pytest.mark.parametrize("stream", [False, True])
def test_pictures_of_a_replica_that_ends_are_prepared_by_another_before_an_answer_begins(stream):
    with ending(1) as served:
        answer = post(CHAT, asked(part(url(DARK)), part(url(LIGHT)), stream=stream, max_tokens=2), served)
        assert answer.status_code == 400 and "2 pictures of 160 tokens" in answer.json()["error"]["message"]
    with ending(1) as served:
        answer = post(CHAT, asked(part(url(DARK)), stream=stream, max_tokens=2), served)
        assert answer.status_code == 200 and "error" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_replica_for_its_pictures_a_request_is_refused(stream):
    with ending(2) as served:
        answer = post(CHAT, asked(part(url(DARK)), stream=stream, max_tokens=2), served)
        assert answer.status_code == 503 and "replica 0 was ended by SIGKILL, replica 1" in answer.json()["error"]["message"]


@lmc.function
def look(s: lmc.State, picture: str, how: str = "here") -> list[str]:
    """Shows a picture of its client's in its own text, in forks, and in a program that it calls."""
    if how == "calls":
        return list(look(picture).ret_value)
    forks = s.fork(2)

    def show(fork: lmc.State) -> None:
        fork += lmc.user(lmc.image(picture)) + lmc.assistant(lmc.gen("a", max_tokens=20))

    if how == "each":
        forks.each(show)
    else:
        for fork in forks:
            show(fork)
    return [fork["a"] for fork in forks]


@pytest.mark.parametrize("how", ["here", "each", "calls"])
def test_a_client_names_no_file_to_a_program(how, tmp_path):
    (tmp_path / "a.png").write_bytes(DARK)
    mock = lmc.Mock(seeing)
    for path, told in (("", lambda body: body), ("/batch", lambda body: {"items": [body]}), ("/stream", lambda body: body)):
        for named in (str(tmp_path / "a.png"), f"file://{tmp_path / 'a.png'}", "a.png", "http://127.0.0.1/a.png", "https://host@named/a.png", "http://[::1/a.png"):
            answer = post(f"/programs/look{path}", told({"picture": named, "how": how}), mock, [look], media_hosts=frozenset({"named"}))
            assert "in a program that is served, a" in answer.text and "dark" not in answer.text, (path, named)
        assert not mock.call_log
    answer = post("/programs/look", {"picture": url(DARK), "how": how}, mock, [look])
    assert answer.json()["return_value"] == ["dark", "dark"]
    answer = post("/programs/look", {"picture": "https://named/a.png"}, lmc.Mock(), [look], media_hosts=frozenset({"named"}))
    assert answer.status_code == 200, "an API fetches it"


def test_a_served_program_has_files_of_its_own(tmp_path):
    (tmp_path / "a.png").write_bytes(DARK)

    @lmc.function
    def own(s: lmc.State) -> str:
        s += lmc.user(lmc.image(tmp_path / "a.png")) + lmc.assistant(lmc.gen("a", max_tokens=20))
        return s["a"]

    assert post("/programs/own", {}, lmc.Mock(seeing), [own]).json()["return_value"] == "dark"
    assert own.run(backend=lmc.Mock(seeing)).ret_value == "dark"


slow = threading.Event()  # set: the host ends what it sends byte by byte


@contextmanager
def host() -> Iterator[tuple[str, list[str]]]:
    """A host of files, and what it was asked for."""
    seen: list[str] = []
    slow.clear()

    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("location", "/a.png")
                self.end_headers()
                return
            if self.path == "/slow":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(DARK[:1])
                self.wfile.flush()
                slow.wait(60)
                return
            if self.path == "/endless":
                self.send_response(200)
                self.end_headers()
                with suppress(OSError):
                    while not slow.is_set():
                        self.wfile.write(bytes(1 << 16))
                return
            self.send_response(200 if self.path == "/a.png" else 404)
            self.end_headers()
            self.wfile.write(DARK)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", seen
    finally:
        slow.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_files_of_named_hosts_are_fetched():
    with host() as (name, seen):
        mock = lmc.Mock(seeing)
        answer = post(CHAT, asked(part(f"http://{name}/a.png")), mock, media_hosts=frozenset({name}))
        assert answer.json()["choices"][0]["message"]["content"] == "dark" and mock.call_log[0].images == [DARK]
        before = len(seen)
        for address, why in (
            (f"http://{name}/b.png", "404"),
            (f"http://{name}/moved", "302"),
        ):
            answer = post(CHAT, asked(part(address)), mock, media_hosts=frozenset({name}))
            assert answer.status_code == 400 and why in answer.json()["error"]["message"]
        assert seen[before:] == ["/b.png", "/moved"], "a redirect is not followed"
        before = len(seen)
        for address in (
            f"http://localhost:{name.partition(':')[2]}/a.png",
            f"http://{name}@other/a.png",
            f"http://user@{name}/a.png",
            "http://127.0.0.1/a.png",
            "http://[::1/a.png",
            f"http://{name}\\@localhost/a.png",
            f"http://localhost:{name.partition(':')[2]}\\@{name}/a.png",
            f"http://localhost:{name.partition(':')[2]}#@{name}/a.png",
            f"http://localhost:{name.partition(':')[2]}\t@{name}/a.png",
            f"http://2130706433:{name.partition(':')[2]}/a.png",
            f"http://127.1:{name.partition(':')[2]}/a.png",
            f"http://[::ffff:127.0.0.1]:{name.partition(':')[2]}/a.png",
            f"http://{name.replace('.', '%2e')}/a.png",
            f"http://{name.replace('.', '。')}/a.png",
            f"ftp://{name}/a.png",
            f"file://{name}/etc/passwd",
        ):
            answer = post(CHAT, asked(part(address)), mock, media_hosts=frozenset({name}))
            assert answer.status_code == 400, address
        assert len(seen) == before


def test_hosts_are_named_as_addresses_write_them():
    hosts = {"host", "host:81", "[::1]:8080", "10.0.0.7"}
    for url in ("https://host/a", "HTTP://HOST/a", "http://host:81", "http://[::1]:8080/a", "http://10.0.0.7?a"):
        assert is_named(url, hosts)
    others = ("host:82/", "host:/", "host./", "host@other/", "other/host", "u:p@host/", "::1:8080/", "/a", "167772167/")
    assert not any(is_named(f"http://{each}", hosts) for each in others)


@pytest.mark.parametrize(("path", "why"), (("/endless", "too large"), ("/slow", "too slow")))
def test_a_file_without_an_end_is_not_waited_for(monkeypatch, path, why):
    monkeypatch.setattr("lmc.serve.media.MOST_BYTES", 1 << 20)
    if path == "/slow":
        monkeypatch.setattr("lmc.serve.media._SECONDS", 0.05)
    with host() as (name, _):
        answer = post(CHAT, asked(part(f"http://{name}{path}")), lmc.Mock(seeing), media_hosts=frozenset({name}))
        assert answer.status_code == 400 and why in answer.json()["error"]["message"]
