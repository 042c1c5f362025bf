"""Answers that have no text, or another's: each is an answer, an exception of its own, or tried again and then an error; never ""."""

from __future__ import annotations

from dataclasses import replace

import pytest

import lmc
from lmc.backend.api.client import Patience
from tests.api.http import Answer, Server
from tests.api.view import all_of

pytestmark = pytest.mark.api

TWICE = Patience(1, 60.0, 0.001, 0.002)
USAGE = {"prompt_tokens": 3, "completion_tokens": 5}
SORRY = "I cannot help with that."
CALL = [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}]


@lmc.function
def one(s, **how):
    s += lmc.user("Q") + lmc.assistant(lmc.gen("a", max_tokens=40, **how))
    return s["a"]


@lmc.function
def chosen(s):
    s += lmc.user("Q") + lmc.assistant(lmc.select("a", ["yes", "no"]))
    return s["a"]


# -- what a server says, in each form of asking: what is None of a message is not there --------------------------------


def chat(*, finish="stop", usage=USAGE, body=None, **message):
    """The same answer whole and in pieces."""
    whole = {"id": "1", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}], "usage": usage}
    deltas = [{"role": "assistant"}, *[{k: v} for k, v in message.items() if k != "tool_calls"]]
    if message.get("tool_calls"):
        deltas.append({"tool_calls": [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]})
    events = [{"id": "1", "model": "m", "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    events += [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": usage}]
    return Answer(body or whole), Answer({}, events=events)


def responses(*content, finish="stop", usage=USAGE, items=(), **_):
    output = [*items, *([{"type": "message", "role": "assistant", "content": list(content)}] if content else [])]
    ended = {"status": "completed"} if finish == "stop" else {"status": "incomplete", "incomplete_details": {"reason": finish}}
    whole = {"id": "1", "object": "response", "model": "m", "output": output, "usage": {"input_tokens": 3, "output_tokens": 5}, **ended}
    return Answer(whole), Answer(
        {}, events=[{"type": "response.created", "response": {}}, {"type": f"response.{ended['status']}", "response": whole}], sentinel=None
    )


def messages(*blocks, reason="end_turn", usage=None):
    used = usage or {"input_tokens": 3, "output_tokens": 5}
    whole = {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(blocks),
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": used,
    }
    events = [{"type": "message_start", "message": {**whole, "content": []}}]
    for i, block in enumerate(blocks):
        events.append({"type": "content_block_start", "index": i, "content_block": {**block, "text": ""} if block["type"] == "text" else block})
        if block["type"] == "text":
            events.append({"type": "content_block_delta", "index": i, "delta": {"type": "text_delta", "text": block["text"]}})
    events += [{"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": used}, {"type": "message_stop"}]
    return Answer(whole), Answer({}, events=events, sentinel=None)


@pytest.fixture(params=("whole", "stream"))
def asking(request, opened):
    """A backend in front of a server that says always the same, and how its answers are read."""

    def make(said, api="chat", **options):
        whole, stream = said
        server = opened(Server(lambda path, body: stream if body.get("stream") else whole))
        if api == "anthropic":
            pytest.importorskip("anthropic")
            backend = lmc.Anthropic("claude", api_key="k", base_url=server.url, patience=TWICE, **options)
        else:
            kind = {"api": "responses"} if api == "responses" else {}
            backend = lmc.OpenAI("m", base_url=f"{server.url}/v1", patience=TWICE, **kind, **options)
        opened(backend)

        def ask(program=one, **how):
            state = program.run(backend=backend, stream=request.param == "stream", **how)
            if request.param == "stream":
                "".join(state.text_iter("a"))
            state["a"]
            return state

        return ask, server, backend

    return make


TEXT = {"type": "output_text", "text": "Yes."}
THOUGHT = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]}


def behind(opened, said, api):
    """A backend behind a server that always streams the same, and the server."""
    pytest.importorskip(api)
    server = opened(Server(lambda path, body: said))
    if api == "anthropic":
        return opened(lmc.Anthropic("claude", api_key="k", base_url=server.url, patience=TWICE)), server
    return opened(lmc.OpenAI("m", base_url=f"{server.url}/v1", patience=TWICE)), server


@pytest.mark.parametrize("api", ("openai", "anthropic"))
@pytest.mark.parametrize("whole", (True, False))
def test_a_stream_is_complete_when_its_answer_is(opened, api, whole):
    """Some gateways write nothing behind the last event: to ask again would cost the answer once more."""
    stream = (chat(content="Yes.") if api == "openai" else messages({"type": "text", "text": "Yes."}))[1]
    last = -1 if whole else -2
    backend, server = behind(opened, replace(stream, events=stream.events[:last], sentinel=None), api)
    asked = one.run(backend=backend, stream=True)
    if whole:
        assert ("".join(asked.text_iter("a")), len(server.seen)) == ("Yes.", 1)
    else:
        with pytest.raises(lmc.BackendError, match="after 2 attempts: the stream ended before the answer did"):
            "".join(asked.text_iter("a"))


def test_what_is_no_stream_is_named(opened):
    backend, _ = behind(opened, chat(content="Yes.")[0], "openai")
    with pytest.raises(lmc.BackendError, match="the stream ended before the answer did: it has no event, and is application/json"):
        "".join(one.run(backend=backend, stream=True).text_iter("a"))


MALFORMED = {
    "null": (chat(content=None), "chat", "no content"),
    "missing": (chat(), "chat", "no content"),
    "a number": (chat(content=5), "chat", "5"),
    "a part of a kind of its own": (chat(content=[{"type": "reference", "reference_ids": [1]}]), "chat", "a part of the answer is"),
    "a part of kinds": (chat(content=[{"type": ["text"], "text": "a"}]), "chat", "a part of the answer is"),
    "a part that has a number": (chat(content=[{"type": "text", "text": 5}]), "chat", "a part of the answer is"),
    "a part that is a number": (chat(content=[5]), "chat", "a part of the answer is 5"),
    "thoughts in parts alone": (chat(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]), "chat", "no content"),
    "no parts": (chat(content=[]), "chat", "no content"),
    "a call nobody asked for": (chat(content=None, tool_calls=CALL, finish="tool_calls"), "chat", "call of a tool"),
    "nothing put out": (responses(), "responses", "no content"),
    "thoughts alone": (responses(items=[THOUGHT]), "responses", "no content"),
    "a part without text": (responses({"type": "output_text"}), "responses", "no text"),
    "a call by responses": (responses(items=[{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]), "responses", "call of a tool"),
    "a call beside text": (chat(content="Yes.", tool_calls=CALL, finish="tool_calls"), "chat", r"a call of a tool \('search'\)"),
    "a call beside text, and no word of it": (chat(content="Yes.", tool_calls=CALL), "chat", "a call of a tool"),
    "a call of the first kind": (chat(content="Yes.", function_call={"name": "search", "arguments": "{}"}, finish="function_call"), "chat", "a call of a tool"),
    "a call that did not come": (chat(content="", finish="tool_calls"), "chat", "a call of a tool that is not in it"),
    "a call beside text by responses": (
        responses(TEXT, items=[{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]),
        "responses",
        "a call of a tool",
    ),
    "a call beside text of claude's": (
        messages({"type": "text", "text": "Yes."}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}, reason="tool_use"),
        "anthropic",
        "a call of a tool",
    ),
    "a call of claude's": (messages({"type": "tool_use", "id": "c", "name": "f", "input": {}}, reason="tool_use"), "anthropic", "call of a tool"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_what_has_no_text_is_tried_again_and_then_an_error(asking, kind):
    said, api, why = MALFORMED[kind]
    ask, server, backend = asking(said, api)
    with pytest.raises(lmc.BackendError, match=r"test_answers.py:\d+.*after 2 attempts.*" + why) as raised:
        ask()
    assert type(raised.value) is lmc.BackendError and len(server.seen) == 2
    spent = backend.spent()
    assert spent.usage.completion_tokens + 5 * spent.unreported == 10, "both are paid for, or it is not known what they cost"


REFUSED = {
    "chat": (chat(content=None, refusal=SORRY), "chat"),
    "responses": (responses({"type": "refusal", "refusal": SORRY}), "responses"),
    "anthropic": (messages({"type": "text", "text": SORRY}, reason="refusal"), "anthropic"),
}
FILTERED = {
    "chat": (chat(content="Half of", finish="content_filter"), "chat"),
    "responses": (responses({"type": "output_text", "text": "Half of"}, finish="content_filter"), "responses"),
    "chat without a word": (chat(content=None, finish="content_filter"), "chat"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_is_an_exception_with_its_text(asking, kind):
    ask, server, backend = asking(*REFUSED[kind])
    with pytest.raises(lmc.Refused, match=r"test_answers.py:\d+.*refused to answer: 'I cannot.*on_refusal=") as raised:
        ask()
    assert raised.value.text == SORRY and len(server.seen) == 1 and backend.spent().usage.completion_tokens == 5


@pytest.mark.parametrize("kind", FILTERED)
def test_a_filtered_answer_is_an_exception_with_what_came(asking, kind):
    ask, server, _ = asking(*FILTERED[kind])
    with pytest.raises(lmc.Filtered, match=r"test_answers.py:\d+.*content filter") as raised:
        ask()
    assert raised.value.text == ("" if "without" in kind else "Half of") and len(server.seen) == 1


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_may_be_an_answer(asking, kind):
    ask, _, _ = asking(*REFUSED[kind], on_refusal="return")
    state = ask()
    assert state["a"] == SORRY and state.get_meta_info("a")["finish_reason"]["type"] == "refusal"
    assert ask(one).messages()[-1]["content"] == SORRY
    with pytest.raises(lmc.Refused):
        ask(chosen)


@pytest.mark.parametrize("kind", FILTERED)
def test_a_filtered_answer_may_be_one(asking, kind):
    state = asking(*FILTERED[kind], on_refusal="return")[0]()
    assert state.get_meta_info("a")["finish_reason"]["type"] == "content_filter"
    assert state["a"] == ("" if "without" in kind else "Half of")


def test_a_refusal_is_not_asked_for_again_to_fit_a_constraint(opened):
    server = opened(Server(lambda path, body: chat(content=None, refusal=SORRY)[0]))

    @lmc.function
    def digit(s):
        s += lmc.user("Q") + lmc.assistant(lmc.gen("a", regex="[0-9]"))

    with pytest.raises(lmc.Refused):
        digit.run(backend=opened(lmc.OpenAI("m", base_url=server.url, patience=TWICE))).text()
    assert len(server.seen) == 1
    state = digit.run(backend=opened(lmc.OpenAI("m", base_url=server.url, patience=TWICE, on_refusal="return")))
    assert state["a"] == SORRY and len(server.seen) == 2


def test_a_filter_that_refuses_the_prompt(opened):
    error = {"error": {"message": "The response was filtered", "code": "content_filter", "type": None, "param": "prompt"}}
    server = opened(Server(lambda path, body: Answer(error, 400)))
    with pytest.raises(lmc.Filtered, match=r"test_answers.py:\d+.*HTTP 400: The response was filtered"):
        one.run(backend=opened(lmc.OpenAI("m", base_url=server.url, patience=TWICE))).text()
    assert len(server.seen) == 1


def test_one_request_for_several_answers_does_not_refuse_what_its_own_would_not(opened):
    """The filter struck behind the first answer."""
    first = iter((chat(content="Ann\nBorn: 18", finish="content_filter"), chat(content="1815")))
    server = opened(Server(lambda path, body: next(first)[0]))

    @lmc.function
    def facts(s):
        s += lmc.user("Q")
        with s.assistant():
            s += lmc.gen("name", max_tokens=20, stop="\n") + "\nBorn: " + lmc.gen("born", max_tokens=20, stop="\n")

    state = lmc.compile(facts)(backend=opened(lmc.OpenAI("m", base_url=server.url, patience=TWICE)))
    assert (state["name"], state["born"]) == ("Ann", "1815")


INCOMPLETE = {
    "chat": (
        chat(content="", finish="length", usage={**USAGE, "completion_tokens_details": {"reasoning_tokens": 5}}),
        "chat",
        r"\(5 tokens of it for reasoning\)",
    ),
    "null": (chat(content=None, reasoning_content="Hm.", finish="length"), "chat", "by reasoning"),
    "in parts": (chat(content=[{"type": "thinking", "thinking": "Hm."}], finish="length"), "chat", "by reasoning"),
    "responses": (responses(items=[THOUGHT], finish="max_output_tokens"), "responses", "by reasoning"),
    "anthropic": (messages({"type": "thinking", "thinking": "Hm.", "signature": "x"}, reason="max_tokens"), "anthropic", "by reasoning"),
}


@pytest.mark.parametrize("kind", INCOMPLETE)
def test_a_limit_that_reasoning_used_up_is_an_incomplete_answer(asking, kind):
    said, api, why = INCOMPLETE[kind]
    ask, server, _ = asking(said, api)
    with pytest.raises(lmc.IncompleteAnswer, match=r"test_answers.py:\d+.*used up " + f"{why}.*max_tokens") as raised:
        ask()
    assert raised.value.text == "" and len(server.seen) == 1


def test_an_empty_answer_that_ended_is_one(asking):
    assert asking(chat(content=""))[0]()["a"] == ""


def test_an_empty_answer_of_claudes_is_one(asking):
    assert asking(messages(), "anthropic")[0]()["a"] == "", "documented: the model had nothing to say"


def test_an_answer_may_come_in_parts(asking):
    """As Mistral's reasoning models answer."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm, "}, {"type": "text", "text": "so."}]}
    state = asking(chat(content=[thinking, {"type": "text", "text": "Ye"}, {"type": "text", "text": "s."}]))[0]()
    assert (state["a"], state.get_meta_info("a")["reasoning"]) == ("Yes.", "Hm, so.")


def test_text_that_no_piece_of_a_stream_had_is_there(asking):
    assert asking(responses(TEXT), "responses")[0]()["a"] == "Yes."


def test_tools_of_the_body_are_asked_for(asking):
    ask, _, _ = asking(chat(content=None, tool_calls=CALL, finish="tool_calls"), extra_body={"tools": [{"type": "function", "function": {"name": "search"}}]})
    (call,) = ask().get_meta_info("a")["tool_calls"]
    assert call["name"] == "search"


@lmc.function
def gives_up(s):
    s += lmc.user("Q") + lmc.assistant(lmc.gen("a"))
    said = ""
    try:
        return s["a"]
    except lmc.Refused as error:
        said = error.text
    raise ValueError(said)


def test_refusals_are_outcomes_of_a_journal(opened, tmp_path):
    """The run that is resumed is refused again without asking."""
    server = opened(Server(lambda path, body: chat(content=None, refusal=SORRY)[0]))
    backend = opened(lmc.OpenAI("m", base_url=server.url, patience=TWICE))
    for _ in range(2):
        with pytest.raises(ValueError, match=SORRY):  # the run ends here, and its journal does not
            gives_up.run(backend=backend, journal=tmp_path / "journal")
    assert len(server.seen) == 1


# -- usage -------------------------------------------------------------------------------------------------------------

WRONG = ({"prompt_tokens": 3, "completion_tokens": -5}, {"prompt_tokens": 10**30, "completion_tokens": 5}, {"prompt_tokens": "many", "completion_tokens": 5},
         {"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, {"prompt_tokens": [3], "completion_tokens": {}},
         {"prompt_tokens": 3.5, "completion_tokens": True})  # fmt: skip


@pytest.mark.parametrize("usage", WRONG, ids=str)
def test_usage_that_cannot_be_is_not_counted(asking, usage):
    ask, _, backend = asking(chat(content="Yes.", usage=usage), prices=lmc.Prices(1.0, 2.0, 0.5))
    state = ask()
    assert state["a"] == "Yes." and state.get_meta_info("a")["cost"] == 0
    spent = backend.spent()
    assert (spent.usage, spent.cost, spent.unreported) == (lmc.backend.usage.Usage(), 0.0, 1)


ABSURD = {
    "an answer of three words": ({"prompt_tokens": 3, "completion_tokens": 10**9}, {}),
    "a prompt of one word": ({"prompt_tokens": 10**9, "completion_tokens": 5}, {}),
    "a little too much of it": ({"prompt_tokens": 20_000, "completion_tokens": 5}, {}),
    "an answer beyond its limit": ({"prompt_tokens": 3, "completion_tokens": 4_000}, {}),
    "reasoning that nobody can do": ({"prompt_tokens": 3, "completion_tokens": 10**9, "completion_tokens_details": {"reasoning_tokens": 10**9}}, {}),
    "with a search": ({"prompt_tokens": 10**9, "completion_tokens": 5}, {"extra_body": {"web_search_options": {}}}),
}
POSSIBLE = {
    "a template with tools": ({"prompt_tokens": 9_000, "completion_tokens": 5}, {}),
    "reasoning beyond the limit": ({"prompt_tokens": 3, "completion_tokens": 30_000, "completion_tokens_details": {"reasoning_tokens": 29_990}}, {}),
    "pages that the server read": ({"prompt_tokens": 300_000, "completion_tokens": 5}, {"extra_body": {"web_search_options": {}}}),
    "results of the server's tools": ({"prompt_tokens": 300_000, "completion_tokens": 5}, {"extra_body": {"tools": [{"type": "web_search"}]}}),
    "no limit": ({"prompt_tokens": 3, "completion_tokens": 30_000}, {"extra_body": {"max_completion_tokens": None, "max_tokens": None}}),
}


@pytest.mark.parametrize("kind", ABSURD)
def test_usage_that_what_was_sent_and_came_rules_out_is_not_counted(asking, kind):
    usage, how = ABSURD[kind]
    ask, _, backend = asking(chat(content="One, two, three.", usage=usage), prices=lmc.Prices(1.0, 2.0, 0.5), **how)
    assert ask()["a"] == "One, two, three."
    spent = backend.spent()
    assert (spent.usage, spent.cost, spent.unreported) == (lmc.backend.usage.Usage(), 0.0, 1)


@pytest.mark.parametrize("kind", POSSIBLE)
def test_usage_that_may_be_is_counted(asking, kind):
    usage, how = POSSIBLE[kind]
    ask, _, backend = asking(chat(content="One, two, three.", usage=usage), **how)
    assert ask()["a"] == "One, two, three."
    spent = backend.spent()
    assert (spent.usage.prompt_tokens, spent.usage.completion_tokens, spent.unreported) == (usage["prompt_tokens"], usage["completion_tokens"], 0)


def test_a_server_that_heeds_no_limit_is_believed_what_came(asking):
    words = ["Yes. "] * 5_000
    said = chat(content="".join(words), usage={"prompt_tokens": 3, "completion_tokens": 10_000})
    pieces = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in words]
    ask, _, backend = asking((said[0], replace(said[1], events=[*pieces, *said[1].events[-2:]])))
    ask()
    assert backend.spent().usage.completion_tokens == 10_000


@lmc.function
def goes_on(s):
    """Until its budget is spent."""
    asked = 0
    s += lmc.user("Q")
    while asked < 100:
        asked += 1
        try:
            (fork,) = s.fork(1)
            fork += lmc.assistant(lmc.gen("a", max_tokens=40))
            fork["a"]
        except lmc.BudgetExceeded:
            return asked - 1
        except lmc.BackendError:
            continue
    return asked


SPENT = {
    "a report that cannot be": chat(content="Yes.", usage={"prompt_tokens": 10**9, "completion_tokens": 5}),
    "a negative one": chat(content="Yes.", usage={"prompt_tokens": 3, "completion_tokens": -5}),
    "none": chat(content="Yes.", usage=None),
    "refusals": chat(content=None, refusal=SORRY, usage={"prompt_tokens": 300, "completion_tokens": 5}),
    "what is no answer": chat(usage={"prompt_tokens": 300, "completion_tokens": 5}),
}


@pytest.mark.parametrize("ahead", ("interpreted", "compiled"))
@pytest.mark.parametrize("limit", ({"tokens": 1000}, {"cost": 1000 / 1e6}), ids=("tokens", "cost"))
@pytest.mark.parametrize("kind", SPENT)
def test_no_report_makes_a_budget_endless(opened, kind, limit, ahead):
    server = opened(Server(lambda path, body: SPENT[kind][0]))
    backend = opened(lmc.OpenAI("m", base_url=f"{server.url}/v1", patience=TWICE, prices=lmc.Prices(1.0, 1.0)))
    run = lmc.compile(goes_on) if ahead == "compiled" else goes_on.run
    state = run(backend=backend, budget=lmc.Budget(**limit))
    assert 1 < state.ret_value <= 20 and len(server.seen) <= 2 * 20


def test_usage_of_claudes_that_cannot_be_is_not_counted(asking):
    ask, _, backend = asking(messages({"type": "text", "text": "Yes."}, usage={"input_tokens": 3, "output_tokens": -5}), "anthropic")
    assert ask()["a"] == "Yes." and backend.spent().unreported == 1


# -- secrets -----------------------------------------------------------------------------------------------------------

KEY, PASSWORD = "sk-very-secret-0123456789", "hunter2!secret"


def echoing(path, body):
    return Answer({"error": {"message": f"Incorrect API key provided: {KEY}; user tom:{PASSWORD}", "code": KEY}}, 401)


def half(path, body):
    return Answer({"id": "1", "model": f"{KEY}-{PASSWORD}", "choices": []})


@pytest.fixture
def quiet():
    yield
    lmc.config(log="")


def refusing(path, body):
    said = f"I cannot help {KEY}; user tom:{PASSWORD}"
    found = chat(content=None, refusal=said) if "chat" in path else messages({"type": "text", "text": said}, reason="refusal")
    return replace(found[0], body={**found[0].body, "system_fingerprint": KEY})


BACKENDS = {
    "openai": lambda url: lmc.OpenAI("m", base_url=f"{url}/v1", api_key=KEY, default_headers={"Authorization": f"Basic {PASSWORD}"}, patience=TWICE),
    "anthropic": lambda url: lmc.Anthropic("m", base_url=url, api_key=KEY, default_headers={"Authorization": f"Bearer {PASSWORD}"}, patience=TWICE),
}


@pytest.mark.parametrize("handle", (echoing, half, refusing))
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_message_log_or_journal_has_a_key(opened, tmp_path, capfd, quiet, backend, handle):
    pytest.importorskip(backend)
    server = opened(Server(handle))
    url = server.url.replace("://", f"://tom:{PASSWORD}@")
    lmc.config(log="backend,spec")
    with pytest.raises(lmc.BackendError) as raised:
        one.run(backend=opened(BACKENDS[backend](url)), journal=tmp_path / "journal").text()
    texts = [*capfd.readouterr(), (tmp_path / "journal").read_text("utf-8", "replace"), *all_of(raised.value)]
    for text in texts:
        assert KEY not in text and PASSWORD not in text, text
    assert any("[redacted]" in text for text in texts) or handle is half


# -- whatever stands there ------------------------------------------------------------------------------------------------

ODD = (None, 5, -1.5, True, "x", [], {}, [None], [[1]], {"x": None}, ...)  # ...: it is not there
SAYS = {
    "chat": (chat(content="Yes."), "chat"),
    "a call": (chat(content=None, tool_calls=CALL, finish="tool_calls"), "chat"),
    "responses": (responses(TEXT, items=[THOUGHT]), "responses"),
    "anthropic": (messages({"type": "text", "text": "Yes."}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}), "anthropic"),
}


def changed(data):
    """The data with one of its values replaced, or taken out: each in turn, by each odd value."""
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            for odd in ODD:
                copy = data.copy()
                if odd is not ...:
                    copy[key] = odd
                elif isinstance(copy, dict):
                    del copy[key]
                else:
                    continue
                yield copy
            for inner in changed(data[key]):
                copy = data.copy()
                copy[key] = inner
                yield copy


@pytest.mark.parametrize("streamed", (False, True), ids=("whole", "stream"))
@pytest.mark.parametrize("kind", SAYS)
def test_whatever_a_server_says_is_an_answer_or_an_error_of_lmcs(opened, kind, streamed):
    """Each value of an answer replaced by each odd one."""
    (whole, stream), api = SAYS[kind]
    said = [whole]
    server = opened(Server(lambda path, body: said[0]))
    if api == "anthropic":
        pytest.importorskip("anthropic")
    once = Patience(0, 60.0, 0.0, 0.0)
    backend = (
        lmc.Anthropic("claude", api_key="k", base_url=server.url, patience=once)
        if api == "anthropic"
        else lmc.OpenAI("m", base_url=f"{server.url}/v1", api=api, patience=once)
    )
    opened(backend)
    cases = changed(stream.events) if streamed else changed(whole.body)
    tried = 0
    for case in cases:
        said[0] = Answer({}, events=case, sentinel=stream.sentinel, counted=False) if streamed else Answer(case, counted=False)
        try:
            state = one.run(backend=backend, stream=streamed)
            if streamed:
                "".join(state.text_iter("a"))
            assert isinstance(state["a"], str), case
        except lmc.LmcError as error:
            assert error.loc is not None and error.loc.file == __file__, (case, error)
        tried += 1
    assert tried > 100


SERVED = {
    "sglang": (
        {"text": "Yes.", "output_ids": [1, 2],
            "meta_info": {"id": "1", "finish_reason": {"type": "stop", "matched": None}, "prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 0}},
        {"model_path": "m", "is_generation": True},
    ),
    "vllm": (
        {"id": "1", "model": "m", "choices": [{"index": 0, "text": "Yes.", "finish_reason": "stop", "logprobs": None}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 1000}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SERVED)
def test_whatever_a_server_of_ones_own_says_is_an_answer_or_an_error_of_lmcs(opened, kind):
    whole, info = SERVED[kind]
    said = [whole]
    server = opened(
        Server(lambda path, body: Answer(said[0], counted=False), getting=lambda path: Answer(info) if "info" in path or "models" in path else None)
    )
    make = lmc.SGLang if kind == "sglang" else lmc.VLLM
    backend = opened(make(server.url, patience=Patience(0, 60.0, 0.0, 0.0), router=False))
    tried = 0
    for case in changed(whole):
        said[0] = case
        try:
            answer = one.run(backend=backend)["a"]
            assert isinstance(answer, str) and answer, case
        except lmc.LmcError as error:
            assert error.loc is not None and error.loc.file == __file__, (case, error)
        tried += 1
    assert tried > 100


@lmc.function
def scored(s):
    s += "Q" + lmc.select("a", ["yes", "no"])
    return s["a"]


def _echoed(*rows):
    return {"id": "1", "model": "m", "choices": [
        {"index": i, "text": "", "finish_reason": "length", "logprobs": {"tokens": ["Q", *said], "token_logprobs": [None, *at]}}
        for i, (said, at) in enumerate(rows)
    ]}  # fmt: skip


def _rows(*rows):
    meta = {"id": "1", "finish_reason": {"type": "length"}, "prompt_tokens": 3, "completion_tokens": 0}
    return [{"text": "", "meta_info": {**meta, "input_token_logprobs": [[None, 1, "Q"], *[[at, 2, text] for text, at in row]]}} for row in rows]


SCORED = {
    "openai": (_echoed(((), ()), (("yes",), (-3.0,)), (("no",), (-0.5,))), None),
    "sglang": (_rows((), (("yes", -3.0),), (("no", -0.5),)), {"model_path": "m", "is_generation": True}),
}


@pytest.mark.parametrize("kind", SCORED)
def test_a_choice_is_made_by_log_probabilities_that_are_there(opened, kind):
    """The likelier choice, or an error: whatever is in the place of a log-probability, and however the answers are numbered."""
    whole, info = SCORED[kind]
    said = [whole]
    server = opened(
        Server(
            lambda path, body: Answer(said[0] if kind == "openai" or isinstance(body["text"], list) else _rows(())[0], counted=False),
            getting=lambda path: info and Answer(info),
        )
    )
    once = Patience(0, 60.0, 0.0, 0.0)
    backend = lmc.SGLang(server.url, patience=once, router=False) if kind == "sglang" else None
    backend = opened(backend or lmc.OpenAI("m", base_url=f"{server.url}/v1", is_chat_model=False, patience=once))
    assert scored.run(backend=backend)["a"] == "no"
    tried = 0
    for case in changed(whole):
        said[0] = case
        try:
            assert scored.run(backend=backend)["a"] == "no", case
        except lmc.LmcError as error:
            assert error.loc is not None and error.loc.file == __file__, (case, error)
        tried += 1
    assert tried > 100


def test_answers_without_the_log_probabilities_that_were_asked_for_are_an_error_at_once(asking):
    ask, server, _ = asking(chat(content="Yes."))
    with pytest.raises(lmc.UnsupportedOpError, match=r"return_logprob=True.* its answers have no log-probabilities"):
        ask(return_logprob=True)
    assert len(server.seen) == 1


def test_alternatives_whose_log_probability_is_null_are_none(asking):
    whole, stream = chat(content="Yes.")
    listed = {"content": [{"token": "Yes.", "logprob": -0.1, "top_logprobs": [{"token": "Yes.", "logprob": -0.1}, {"token": "No.", "logprob": None}]}]}
    whole.body["choices"][0]["logprobs"] = stream.events[1]["choices"][0]["logprobs"] = listed
    ask, server, _ = asking((whole, stream))
    meta = ask(return_logprob=True, top_logprobs_num=2).get_meta_info("a")
    assert meta["output_top_logprobs"] == [[[-0.1, None, "Yes."]]] and len(server.seen) == 1
