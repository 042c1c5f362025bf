"""Servers that take a regex, or the format of a text, and ignore it: their answers are asked for again, and then an error names the server."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest

import lmc
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api


class Ignores(TextModel):
    """Answers in turn, whatever the constraint, and goes on with the last."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers, self.given = answers, 0

    def _constrained(self, prompt: str, ask: Any, seed: int) -> str:
        self.given += 1
        return self.answers[min(self.given, len(self.answers)) - 1]


@pytest.fixture(params=("sglang", "vllm", "openai for vllm", "openai for sglang"))
def ignoring(request, monkeypatch):
    monkeypatch.setattr("lmc.backend.mock_answers._check_script", lambda *given: None)

    def make(model: TextModel) -> Any:
        kind, _, server = request.param.partition(" for ")
        return request.getfixturevalue(kind)(model, **({"server": server, "stand_in": {"extra": EXTRA}} if server else {}))[0]

    return make


EXTRA = {"top_k", "min_p", "repetition_penalty", "structured_outputs", "regex", "json_schema", "continue_final_message", "add_generation_prompt"}


@lmc.function
def ask(s, **how):
    s += lmc.user("Q") + lmc.assistant(lmc.gen("a", **{"max_tokens": 64, **how}))
    return s["a"]


def dated(form: str) -> dict[str, Any]:
    return {"json_schema": {"type": "object", "properties": {"x": {"type": "string", "format": form}}, "required": ["x"], "additionalProperties": False}}


def url(kind: Any) -> type[pydantic.BaseModel]:
    return pydantic.create_model("Url", x=(kind, ...))


def x(text: str) -> str:
    return json.dumps({"x": text})


NOT_KEPT = (
    ({"regex": "[0-9]+ kg"}, "many kg", "12 kg"), (dated("email"), x("nobody"), x("a@b.c")), (dated("date"), x("2024-13-01"), x("2024-12-01")),
    (dated("date-time"), x("tomorrow"), x("2024-12-01T10:00:00Z")), (dated("uuid"), x("17"), x("123e4567-e89b-12d3-a456-426614174000")),
    (dated("uri"), x("not a uri"), x("mailto:a@b.c")), (dated("ipv4"), x("1.2.3"), x("1.2.3.4")),
)  # fmt: skip
IDS = ("regex", "email", "date", "date-time", "uuid", "uri", "ipv4")


@pytest.mark.parametrize(("how", "wrong", "right"), NOT_KEPT, ids=IDS)
def test_an_answer_that_does_not_meet_its_constraint_is_asked_for_again(ignoring, how, wrong, right):
    model = Ignores(wrong, wrong, right)
    state = ask.run(backend=ignoring(model), **how)
    assert state["a"] == right and model.given == 3
    assert state.get_meta_info("a")["constraint"] == {"enforced": "verified", "attempts": 3}


def test_a_batch_has_right_answers_and_asks_again_for_the_wrong_ones_alone(ignoring):
    model = Ignores("12 kg", "some", "13 kg", "14 kg")
    states = lmc.compile(ask).batch([{"regex": "[0-9]+ kg"}] * 3, backend=ignoring(model))
    assert sorted(s["a"] for s in states) == ["12 kg", "13 kg", "14 kg"] and model.given == 4


@pytest.mark.parametrize(
    ("how", "given", "answer"),
    [
        ({"regex": "[0-9]+ kg"}, "12 kg\n", "12 kg"), ({"regex": "[0-9]+ kg"}, "12 kg, or so", "12 kg"),
        ({"regex": "[0-9]+ kg"}, "<think>13 kg?</think>\n\n12 kg, or so", "12 kg"),
        (dated("date"), '```json\n{"x": "2024-12-01"}\n```', '{"x": "2024-12-01"}'), (dated("date"), '{"x": "2024-12-01"} done', '{"x": "2024-12-01"}'),
    ],
    ids=("white space", "more text", "more text behind reasoning", "a fence", "text behind JSON"),
)  # fmt: skip
def test_an_answer_is_cut_out_of_the_text_around_it(ignoring, how, given, answer):
    model = Ignores(given)
    state = ask.run(backend=ignoring(model), **how)
    assert state["a"] == answer and model.given == 1
    assert state.get_meta_info("a")["constraint"] == {"enforced": "verified", "attempts": 1}


def test_an_error_names_the_server_that_never_meets_a_constraint(ignoring):
    model = Ignores("no number")
    backend = ignoring(model)
    with pytest.raises(lmc.ConstraintError, match=r"test_ignored_constraints.py:\d+: .* takes regex='\[0-9\]\+' and ignores it.*: none of 4 answers") as raised:
        ask.run(backend=backend, regex="[0-9]+").text()
    assert backend.name in str(raised.value) and model.given == 4


def test_what_was_shown_is_not_asked_for_again(ignoring):
    model = Ignores("no number")
    with pytest.raises(lmc.ConstraintError, match="the answer is not within it"):
        list(ask.run(backend=ignoring(model), regex="[0-9]+", stream=True).text_iter("a"))
    assert model.given == 1


@pytest.mark.parametrize("answer", ("12 kg\n", "<think>1?</think>\n\n12 kg\n"), ids=("white space", "behind reasoning"))
def test_white_space_around_what_was_shown_stays(ignoring, answer):
    model = Ignores(answer)
    assert "".join(ask.run(backend=ignoring(model), regex="[0-9]+ kg", stream=True).text_iter("a")) == answer and model.given == 1


@pytest.mark.parametrize(
    ("how", "answer"),
    [
        ({"regex": "[0-9]+ kg", "max_tokens": 3}, "123 and more"), ({"regex": "[0-9]+ kg", "stop": " "}, "12 kg"),
        ({"regex": "[a-z]+"}, "<think>1?</think>abc"), ({"regex": "[a-z]+"}, "<think>1?</think>\n\nabc\n"), ({"regex": r"\w+ !"}, "Café !"),
        ({"regex": "A: .*"}, "A: a\nb"), ({"regex": r"A: .* \w+"}, "A: a\n Café"),
        (dated("date-time"), x("2024-12-01 10:00")), (dated("time"), x("10:00:00.123")), (dated("uri"), x("urn:a:b")),
        (dated("email"), x('"a b"@example.org')), (dated("never heard of"), x("")), (dated("ipv6"), x("::1")),
        ({"json_schema": url(pydantic.HttpUrl)}, x("HTTP://a.b")), ({"json_schema": url(pydantic.FileUrl)}, x("file:/a")),
    ],
    ids=(
        "cut by its limit", "cut by a stop", "behind reasoning", "behind reasoning and a line",
        "Unicode's classes", "dots for newlines", "both", "date-time", "time", "uri", "email", "unknown format", "ipv6",
        "URL in capitals", "file",
    ),
)  # fmt: skip
def test_what_may_be_right_is_taken_as_it_is(ignoring, how, answer):
    model = Ignores(answer)
    state = ask.run(backend=ignoring(model), **how)
    assert model.given == 1 and answer.startswith(state["a"]) and "constraint" not in state.get_meta_info("a")
