"""Programs as endpoints: arguments by the signature, variables as events, batches, errors, cancellation."""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

import lmc
from lmc.backend.results import AnswerReader, Output, Result
from lmc.serve.programs import arguments_model
from lmc.userfiles import load_program
from tests.backend.gated import InPieces
from tests.serve.serving import ByHand, events, post, running, talk, talking, until

pytestmark = pytest.mark.api


class Tone(enum.Enum):
    kind = "kind"
    curt = "curt"


Copies = Annotated[int, Field(ge=0, le=5)]


@dataclass
class Person:
    name: str
    age: int = 0


@lmc.function
def greet(s, name: str, copy: Copies = 1, tone: Tone = Tone.kind, people: list[Person] | None = None, schema: Literal["a", "b"] = "a"):
    """Greets somebody.

    As often as `copy` says.
    """
    s += lmc.user(f"Greet {name} {tone.value}ly {schema}") + lmc.assistant(lmc.gen("greeting", max_tokens=30))
    if copy > 1 and s["greeting"]:
        s += lmc.user("Again") + lmc.assistant(lmc.gen("greeting", max_tokens=30) + lmc.gen("rest", max_tokens=9))
    return [s["greeting"]] * copy


@lmc.function
def anything(s, text, **more):
    s += str(text) + lmc.gen("out", max_tokens=5)
    return sorted(more)


@lmc.function
def broken(s, how: str):
    s += how + lmc.gen("out", max_tokens=5)
    if how == "raise":
        raise LookupError("nothing there")
    if how == "misuse":
        s += lmc.gen("more", max_tokens=how)  # type: ignore[arg-type]
    if how == "tool":
        lmc.call_tool({"name": "find", "arguments": {}}, [])
    return threading.Lock() if how == "lock" else None


@lmc.function
async def later(s, text: str):
    await asyncio.sleep(0)
    s += text + lmc.gen("out", max_tokens=5)
    return text


PROGRAMS = [greet, anything, broken, later]


def test_a_run():
    mock = lmc.Mock()
    record = post("/programs/greet?seed=5&max_new_tokens=9", {"name": "Ann", "copy": 2, "tone": "curt"}, mock, PROGRAMS).json()
    state = greet.run("Ann", 2, Tone.curt, backend=lmc.Mock(), seed=5, max_new_tokens=9)
    assert record["return_value"] == state.ret_value
    assert record["text"] == state.text()
    assert record["variables"] == {"greeting": state["greeting"], "rest": state["rest"]}
    assert record["usage"]["calls"] == 3


def test_a_saved_program(tmp_path: Path):
    program = lmc.compile(anything)
    program(text="a", x=1, backend=lmc.Mock())
    program.save(tmp_path / "p.lmcp")
    loaded, body = load_program(str(tmp_path / "p.lmcp")), {"text": "b", "y": 2}
    there, here = (post("/programs/anything?seed=1", body, programs=[p]).json() for p in (anything, loaded))
    assert there == here and there["return_value"] == ["y"]
    assert post("/programs/anything", {}, programs=[loaded]).status_code == post("/programs/anything", {}, programs=[anything]).status_code == 400


async def test_arguments_are_checked_before_anything_runs():
    mock = lmc.Mock()
    async with talking(mock, PROGRAMS) as client:
        for body, param in (
            ({}, "name"), ({"name": 1}, "name"), ({"name": "x", "copy": "2"}, "copy"), ({"name": "x", "tone": "loud"}, "tone"),
            ({"name": "x", "people": [{"age": 3}]}, "people.0.name"), ({"name": "x", "nme": 1}, "nme"), ({"name": "x", "schema": "c"}, "schema"),
        ):  # fmt: skip
            response = await client.post("/programs/greet", json=body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        for query in ("sed=1", "seed=x", "seed=-1", "temperature=nan"):
            assert (await client.post(f"/programs/greet?{query}", json={"name": "x"})).status_code == 400
        assert (await client.post("/programs/nothing", json={})).status_code == 404
    assert mock.call_log == []


RAISING = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.strip().startswith("raise LookupError"))
NOTHING_THERE = f"test_programs.py:{RAISING}: LookupError: nothing there"


def test_open_arguments_and_async_programs():
    record = post("/programs/anything", {"text": "t", "b": 1, "a": 2}, None, PROGRAMS).json()
    assert record["return_value"] == ["a", "b"]
    assert post("/programs/later", {"text": "t"}, None, PROGRAMS).json()["return_value"] == "t"


def test_a_batch_gives_each_item_its_own_result_or_error():
    body = {"items": [{"how": "fine"}, {"how": "raise"}, {"how": "fine too"}]}
    results = post("/programs/broken/batch", body, None, PROGRAMS).json()["results"]
    assert [r["index"] for r in results] == [0, 1, 2]
    assert [r.get("error", {}).get("message") for r in results] == [None, NOTHING_THERE, None]
    assert post("/programs/broken/batch", {"items": []}, None, PROGRAMS).status_code == 400


def test_a_batch_is_one_batch():
    mock = lmc.Mock(latency=0.05)
    results = post("/programs/greet/batch?seed=1", {"items": [{"name": f"n{i}"} for i in range(8)]}, mock, PROGRAMS).json()["results"]
    expected = lmc.compile(greet, backend=lmc.Mock()).batch([{"name": f"n{i}"} for i in range(8)], seed=1)
    assert [r["text"] for r in results] == [s.text() for s in expected]


def test_a_programs_exception_is_told_and_a_result_that_is_no_json_refused(caplog):
    raised = post("/programs/broken", {"how": "raise"}, None, PROGRAMS)
    assert (raised.status_code, raised.json()["error"]["type"]) == (500, "program_error")
    assert raised.json()["error"]["message"] == NOTHING_THERE
    assert __file__ in caplog.text and "interpreter.py" not in caplog.text, "the log has the user's frames"
    assert "JSON cannot write" in post("/programs/broken", {"how": "lock"}, None, PROGRAMS).json()["error"]["message"]


@pytest.mark.parametrize(("how", "raised"), [("misuse", "ArgumentError"), ("tool", "ToolError")])
def test_a_program_that_misuses_lmc_is_told_from_a_callers_bad_argument(how, raised):
    response = post("/programs/broken", {"how": how}, None, PROGRAMS)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "program_error")
    assert re.match(rf"test_programs.py:\d+: {raised}: .*(max_tokens|find)", response.json()["error"]["message"])


def test_an_answer_that_was_cut_is_told_as_far_as_it_came_where_the_program_goes_on():
    @lmc.function
    def cut(s, text: str):
        s += text + lmc.gen("n", dtype=list[str], max_tokens=1)
        try:
            return s.parsed("n")
        except lmc.IncompleteAnswer as error:
            return error.text

    record = post("/programs/cut", {"text": "a"}, None, [cut]).json()
    assert (record["return_value"], record["variables"], record["text"]) == ("[", {"n": "["}, "a[")
    (end,) = [data for kind, data in stream_of(post("/programs/cut/stream", {"text": "a"}, None, [cut]).text) if kind == "done"]
    assert end["variables"] == {"n": "["}


def stream_of(text: str) -> list[tuple[str, Any]]:
    kinds = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    return list(zip(kinds, events(text), strict=True))


async def test_variables_stream_in_program_order():
    mock = InPieces()
    async with running(mock, PROGRAMS) as app:
        call = ByHand(app, "/programs/greet/stream", b'{"name": "Ann", "copy": 2}')
        call.scope["query_string"] = b"seed=5"
        for answer in (1, 2):
            await until(mock.begin)
            await until(lambda n=2 * answer - 1: call.text.count("event: delta") == n)
            mock.answer()
        await call.task
    found = stream_of(call.text)
    state = greet.run("Ann", 2, backend=lmc.Mock(), seed=5)
    assert [data["variable"] for kind, data in found if kind == "value"] == ["greeting", "greeting", "rest"]
    values = [data["value"] for kind, data in found if kind == "value"]
    pieces = "".join(data["delta"] for kind, data in found if kind == "delta")
    assert pieces == "".join(values)
    assert values[1:] == [state["greeting"], state["rest"]]
    kind, record = found[-1]
    assert kind == "done"
    assert record["return_value"] == state.ret_value


def test_a_stream_ends_with_its_programs_error():
    found = events(post("/programs/broken/stream", {"how": "raise"}, None, PROGRAMS).text)
    assert found[-1]["error"]["message"] == NOTHING_THERE


async def test_a_program_that_holds_its_thread_holds_nobody_else():
    entered, go = threading.Event(), threading.Event()

    def wait():
        entered.set()
        assert go.wait(60)

    @lmc.function
    def slow(s):
        wait()
        s += "x" + lmc.gen("out", max_tokens=3)

    async with running(lmc.Mock(), [slow]) as app:
        held = ByHand(app, "/programs/slow", b"{}")
        await until(entered.is_set)
        other = ByHand(app, "/v1/completions", b'{"prompt": "x"}')
        await other.task
        assert other.status == 200
        assert not held.task.done()
        go.set()
        await held.task
        assert held.status == 200


def test_the_description_says_what_the_signature_says():
    document = talk(lambda client: client.get("/openapi.json"), None, PROGRAMS).json()
    operation = document["paths"]["/programs/greet"]["post"]
    assert (operation["summary"], operation["description"]) == ("Greets somebody.", "As often as `copy` says.")
    schema = document["components"]["schemas"]["greet_arguments"]
    assert schema["required"] == ["name"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["copy"] == {"default": 1, "maximum": 5, "minimum": 0, "title": "Copy", "type": "integer"}
    assert document["components"]["schemas"]["Tone"]["enum"] == ["kind", "curt"]
    assert json.dumps(schema["properties"]["tone"]).count("kind") == 1  # the default
    assert set(document["paths"]["/programs/greet"]["post"]["responses"]) >= {"200", "400", "401", "413", "429", "504"}


def test_what_json_cannot_give_is_said_when_the_server_starts():
    @lmc.function
    def odd(s, lock: threading.Thread):
        s += "x"

    with pytest.raises(lmc.ProgramError, match="JSON cannot give"):
        arguments_model(odd)

    @lmc.function
    def positional(s, a, /):
        s += "x"

    with pytest.raises(lmc.ProgramError, match="positional only"):
        arguments_model(positional)


def test_bound_arguments_are_not_required():
    record = post("/programs/greet", {}, None, [greet.bind(name="Bo")]).json()
    assert "Greet Bo" in record["text"]


def unwritable(kind: str):
    if kind == "exit":
        raise SystemExit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "raise":
        raise LookupError("half \udc00")
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    return {"nan": float("nan"), "half": "a\udc00", "cyclic": cyclic, "long": 10**5000, "bytes": b"\xff", "fine": 1}[kind]


@lmc.function
def strange(s, kind: str):
    s += lmc.gen("out", max_tokens=2)
    return unwritable(kind)


KINDS = {"nan": "returned", "half": "returned", "cyclic": "returned", "long": "returned", "bytes": "returned", "raise": "half ?"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_json_cannot_write_is_an_error_of_its_item(kind, caplog):
    caplog.set_level(logging.CRITICAL, "lmc.serve")  # pytest's workers cannot send half a character
    whole = post("/programs/strange", {"kind": kind}, programs=[strange])
    assert whole.status_code == 500
    assert KINDS[kind] in whole.json()["error"]["message"]
    stream = post("/programs/strange/stream", {"kind": kind}, programs=[strange])
    assert KINDS[kind] in events(stream.text)[-1]["error"]["message"]
    batch = post("/programs/strange/batch", {"items": [{"kind": kind}, {"kind": "fine"}]}, programs=[strange])
    failed, fine = batch.json()["results"]
    assert KINDS[kind] in failed["error"]["message"]
    assert fine["return_value"] == 1


@pytest.mark.parametrize("kind, name", [("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt")])
async def test_a_program_that_exits_ends_its_run_and_not_the_server(kind, name):
    async with talking(programs=[strange]) as client:
        for path, body in (("", {"kind": kind}), ("/batch", {"items": [{"kind": kind}]}), ("/stream", {"kind": kind})):
            answer = await client.post(f"/programs/strange{path}", json=body)
            told = events(answer.text)[-1] if path == "/stream" else answer.json()
            told = told["results"][0] if "results" in told else told
            assert told["error"]["type"] == "program_error"
            assert name in told["error"]["message"]
        assert (await client.post("/programs/strange", json={"kind": "fine"})).json()["return_value"] == 1


def test_text_that_arrives_while_a_stream_reads_is_sent_once():
    class Growing(Result):
        @property
        def deltas(self):
            found = tuple(super().deltas)
            if (text := "".join(found)) != "abc":
                self.feed("abc"[len(text)])  # another thread's, right after each read
            return found

    held = Growing()
    reader = AnswerReader(held)
    read = [reader.news()[0] for _ in range(3)]
    held.finish(Output(("abc",), ({},)))
    assert "".join([*read, reader.news()[0]]) == "abc"
