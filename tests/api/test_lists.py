"""Requests that travel together: what goes out, and that each gets its own answer, whatever happens to the others."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest

import lmc
from lmc.backend.api.sglang_bodies import SGLangStream
from lmc.backend.base import Hints
from lmc.segments import Gen, SamplingParams, Text
from tests.api.conftest import QUICK
from tests.api.http import Answer, Planted
from tests.api.sglang_server import WORDS, SGLangModel, VLLMModel, serve
from tests.api.test_remote import asked, asked_of
from tests.api.text_model import TextModel
from tests.waiting import until

pytestmark = pytest.mark.api


@lmc.function
def asking(s, q):
    s += "About " + q + ":" + lmc.gen("a", max_tokens=6)
    return s["a"]


ITEMS = [{"q": f"item {i}"} for i in range(40)]


def submit(backend, i):
    return backend.submit(None, (Text((f"About {i}:",)), Gen(SamplingParams(max_new_tokens=6, temperature=0))), Hints(has_more=True))


def together(backend, count):
    """Hold the loop up until so many more are submitted, so that it finds them all, however slow the machine is."""
    there, submit, number = threading.Event(), backend.submit, itertools.count(1)

    def counting(*args):
        handle = submit(*args)
        if next(number) == count:
            there.set()
        return handle

    backend.submit = counting
    backend._loop.post(there.wait)


def values(states):
    return [s.ret_value for s in states]


def expected(backend, items):
    return values(lmc.compile(asking).batch(items, backend=TextModel().mock(backend.chat_template), temperature=0))


def test_a_batch_is_a_few_requests(remote):
    def plant(n, path, body):
        """The first finds out whether ids are taken; its answer comes when all are submitted."""
        return Planted("delay", seconds=60, until=lambda: len(backend._works) > len(ITEMS) - 1) if n == 0 else None

    backend, stand_in, server = remote(TextModel(), plant=plant)
    states = lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0)
    assert values(states) == expected(backend, ITEMS)
    assert len(stand_in.texts) == 41 and len(server.seen) == 2
    assert [s.usage.calls for s in states] == [1] * 40 and backend.spent().usage.calls == 41


def test_a_batch_has_a_task_for_each_list_and_none_for_a_request(remote, monkeypatch):
    backend, _, server = remote(TextModel())
    submit(backend, 0).results[0].output()
    spawn, tasks = backend._loop.spawn, []
    monkeypatch.setattr(backend._loop, "spawn", lambda work: tasks.append(work.__name__) or spawn(work))
    before = len(server.seen)
    together(backend, 300)
    for handle in [submit(backend, i) for i in range(300)]:
        handle.results[0].output()
    assert tasks == ["_ask"] * (len(server.seen) - before) and len(tasks) < 300


def test_a_request_that_is_refused_takes_no_other_along(sglang):
    backend, stand_in, server = sglang(TextModel())
    handle, bad = stand_in.handle, WORDS.encode(("About item 7:",))

    def refusing(path, body):
        given = body["input_ids"]
        return Answer({"error": {"message": "too long"}}, 400) if bad in (given if isinstance(given[0], list) else [given]) else handle(path, body)

    server.handle = refusing
    group: list[object] = []

    @lmc.function
    def each(s):
        for i, f in enumerate(s.fork(40)):
            f += f"About item {i}:" + lmc.gen("a", max_tokens=6)
            group.append(f)

    together(backend, 40)
    each(backend=backend, temperature=0)
    assert [i for i, f in enumerate(group) if f.error() is not None] == [7]
    assert [f["a"] for i, f in enumerate(group) if i != 7] == [v for i, v in enumerate(expected(backend, ITEMS)) if i != 7]
    assert any(isinstance(s.body["input_ids"][0], list) and bad in s.body["input_ids"] for s in server.seen), "it was one of a list"


@pytest.mark.parametrize("message", ("refused", "prompt is too long: 5000 tokens > 4096 maximum"), ids=("refused", "too long"))
@pytest.mark.parametrize("lists", (True, False))
def test_lists_are_given_up_if_they_are_refused_and_not_if_their_members_are(sglang, lists, message):
    backend, stand_in, server = sglang(TextModel())
    handle, bad = stand_in.handle, WORDS.encode(("About item 7:",))

    def refusing(path, body):
        given = body["input_ids"]
        several = isinstance(given[0], list)
        refused = (bad in given or given == bad) if lists else several
        return Answer({"error": {"message": message}}, 400) if refused else handle(path, body)

    server.handle = refusing
    fast = lmc.compile(asking)
    for _ in range(4):
        together(backend, 5)
        states = fast.batch(ITEMS[5:10], backend=backend, temperature=0, errors="return")  # one list
        assert [i for i, s in enumerate(states) if s.error() is not None] == ([2] if lists else [])
    before = len(server.seen)
    together(backend, len(ITEMS) - 8)
    assert values(fast.batch(ITEMS[8:], backend=backend, temperature=0)) == expected(backend, ITEMS)[8:]
    assert len(server.seen) - before < 10 if lists else len(server.seen) - before == len(ITEMS) - 8


def test_what_a_router_would_tear_apart_goes_alone(remote):
    backend, _, server = remote(TextModel(), router=True)
    lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0)
    assert len(server.seen) == 41


def test_no_more_are_on_their_way_than_may_be(remote):
    backend, stand_in, server = remote(TextModel(), concurrency=8)
    states = lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0)
    assert values(states) == expected(backend, ITEMS) and len(stand_in.texts) == 41
    assert max(map(asked, server.seen)) <= 8 and len(server.seen) >= 6
    assert backend._client.now.rates.room.free == 8


def test_who_no_longer_waits_takes_no_other_along_and_the_last_ends_the_list(remote):
    """Submissions are dropped one after another while the server is silent."""
    silent = threading.Event()
    backend, _, server = remote(TextModel(), plant=lambda n, path, body: Planted("delay", seconds=60, until=silent.is_set) if asked_of(body) > 1 else None)
    submit(backend, 0).results[0].output()
    room = backend._client.now.rates.room
    for last in (1, 0):
        submitted = threading.Event()
        backend._loop.post(submitted.wait)  # all of them are there when the loop looks
        handles = [submit(backend, i) for i in range(20)]
        submitted.set()
        until(lambda: asked(server.seen[-1]) == 20 and room.free == 1024 - 20)
        del handles[last:]
        until(lambda last=last: sum(work.after is None for work in set(backend._works)) == last)
        if last:
            silent.set()
            assert handles[0].results[0].output().text
            silent.clear()
        until(lambda: room.free == 1024 and server.open_connections <= 1)


def test_a_server_that_knows_no_intervals_is_asked_without(opened):
    model = TextModel()
    server = opened(serve(SGLangModel(model, lacks=frozenset({"stream_interval"}))))
    backend = opened(lmc.SGLang(server.url, tokenizer=WORDS, chat_template="chatml"))
    fast = lmc.compile(asking)
    for _ in range(2):
        together(backend, len(ITEMS))
        assert values(fast.batch(ITEMS, backend=backend, temperature=0)) == expected(backend, ITEMS)
    lists = [s.body for s in server.seen if isinstance(s.body["input_ids"][0], list)]
    assert "stream_interval" in lists[0]["sampling_params"] and "stream_interval" not in lists[-1]["sampling_params"]


@lmc.function
def longer(s, q):
    s += "About " + q + ":" + lmc.gen("a", max_tokens=60)
    return s["a"]


def lists_of(server):
    return [s.body for s in server.seen if asked(s) > 1]


@pytest.mark.parametrize("stand_in", ({}, {"heeds": frozenset()}, {"refuses": frozenset({"stream_interval"})}), ids=("heeds", "ignores", "refuses"))
def test_long_answers_go_to_vllm_in_lists_if_they_come_in_few_pieces(opened, stand_in):
    model = TextModel()
    server = opened(serve(VLLMModel(model, **stand_in)))
    backend = opened(lmc.VLLM(server.url, tokenizer=WORDS, chat_template="chatml", patience=QUICK))
    together(backend, len(ITEMS))
    found = values(lmc.compile(longer).batch(ITEMS, backend=backend, temperature=0))
    assert found == values(lmc.compile(longer).batch(ITEMS, backend=model.mock(backend.chat_template), temperature=0))
    heeds = not stand_in
    assert bool(lists_of(server)) == heeds == (len(server.seen) < 41)
    assert all(body["stream_interval"] == 60 for body in lists_of(server))
    together(backend, len(ITEMS))
    values(lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0))
    assert any(body["max_tokens"] == 6 and ("stream_interval" in body) == heeds for body in lists_of(server)), "short ones do either way"


@pytest.mark.parametrize("kind", ("sglang", "vllm"))
def test_a_mistake_that_is_told_within_a_stream_is_not_tried_again(request, kind):
    """SGLang answers 200 to a list one of whose prompts is too long, and says so in the stream; vLLM may, with the status."""
    backend, stand_in, server = request.getfixturevalue(kind)(TextModel())
    handle, bad = stand_in.handle, WORDS.encode(("About item 7:",))
    said = {"message": "The input (9000 tokens) is too long", **({"code": 400} if kind == "vllm" else {})}

    def refusing(path, body):
        given = body["input_ids" if kind == "sglang" else "prompt"]
        if bad not in (given if isinstance(given[0], list) else [given]):
            return handle(path, body)
        return Answer({}, events=[{"error": said}]) if body.get("stream") else Answer({"error": said}, 400)

    submit(backend, 0).results[0].output()
    server.handle = refusing
    together(backend, len(ITEMS))
    states = lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0, errors="return")
    assert [i for i, state in enumerate(states) if state.error() is not None] == [7]
    assert "HTTP 400: The input (9000 tokens) is too long" in str(states[7].error())
    assert lists_of(server) and backend.spent().retries == 0


@pytest.mark.parametrize("code", (500, 503))
def test_a_fault_that_is_told_within_a_stream_is_tried_again(vllm, code):
    backend, stand_in, server = vllm(TextModel())
    submit(backend, 0).results[0].output()
    handle, failed = stand_in.handle, []

    def failing(path, body):
        if body.get("stream") and not failed:
            failed.append(body)
            return Answer({}, events=[{"error": {"message": "busy", "code": code}}])
        return handle(path, body)

    server.handle = failing
    together(backend, len(ITEMS))
    states = lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0)
    assert values(states) == expected(backend, ITEMS)
    assert failed and backend.spent().retries == len(failed[0]["prompt"])


def event(text, ids, tokens, finish=None):
    return {"text": text, "output_ids": ids, "meta_info": {"completion_tokens": tokens, "finish_reason": finish}}


def test_events_that_have_it_all_and_events_that_have_what_is_new():
    for events in (
        [event("a", [1], 1), event("abc", [1, 2, 3], 3, {"type": "length"})],
        [event("a", [1], 1), event("bc", [2, 3], 3, {"type": "length"})],
    ):
        part = SGLangStream()
        assert part.add(events[0]) is None
        whole = part.add(events[1])
        assert whole is not None and whole["text"] == "abc" and whole["output_ids"] == [1, 2, 3]


def test_behind_sglang_s_router_a_list_has_one_set_of_parameters(sglang):
    """A router's requests are typed: it takes no list of them."""

    @lmc.function
    def two(s, q):
        f, g = s.fork(2)
        f += q + lmc.gen("a", max_tokens=4)
        g += q + lmc.gen("b", max_tokens=5)
        return f["a"], g["b"]

    backend, _, server = sglang(TextModel(), router=True)
    items = [{"q": "The same beginning of all of them, and then something else"}] * 4
    together(backend, 8)
    lmc.compile(two).batch(items, backend=backend, temperature=0)
    assert all(isinstance(s.body["sampling_params"], dict) for s in server.seen)
    assert max(map(asked, server.seen)) > 1


def test_an_error_in_reading_one_answer_is_its_own(remote, monkeypatch):
    backend, _, server = remote(TextModel())
    submit(backend, 0).results[0].output()
    keeps, read = backend.keeps, itertools.count()
    monkeypatch.setattr(backend, "keeps", lambda ask, reply: keeps(ask, reply) if next(read) != 2 else 1 / 0)
    together(backend, len(ITEMS))
    states = lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0, errors="return")
    (failed,) = [i for i, state in enumerate(states) if state.error() is not None]
    assert isinstance(states[failed].error(), ZeroDivisionError) and lists_of(server)
    assert [s.ret_value for i, s in enumerate(states) if i != failed] == [v for i, v in enumerate(expected(backend, ITEMS)) if i != failed]


def _with(part, **changes):
    return lambda event: {**event, part: {**event[part], **changes}} if isinstance(event[part], dict) else {**event, part: [{**event[part][0], **changes}]}


ODD = {
    "no text": ("sglang", lambda event: {**event, "text": None}),
    "no end": ("sglang", _with("meta_info", finish_reason={})),
    "a number for an end": ("vllm", _with("choices", finish_reason=5)),
    "a truth for a number": ("vllm", _with("choices", index=True)),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_an_event_does_not_say_is_no_answer(request, kind):
    api, odd = ODD[kind]
    backend, _, server = request.getfixturevalue(api)(TextModel())
    handle, lists = server.handle, 0

    def answer(path, body):
        nonlocal lists
        found = handle(path, body)
        if found.events is None or body.get("max_tokens") == 4:  # it finds out what the server can do
            return found
        lists += 1
        return replace(found, events=[odd(e) if e.get("choices", True) else e for e in found.events], counted=False)

    server.handle = answer
    together(backend, len(ITEMS))
    states = lmc.compile(asking).batch(ITEMS, backend=backend, temperature=0)
    assert values(states) == expected(backend, ITEMS) and lists
    assert any(state.get_meta_info("a").get("attempts") == 2 for state in states), "each that could not be used was requested again, by itself"
