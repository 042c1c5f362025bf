"""Objects out: typed answers, how long they may be, and what is said of those that were cut."""

import enum
import json
import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pydantic
import pytest
from typing_extensions import TypedDict

import lmc
from lmc.answers import limit_of
from tests.conformance.harness import conform, scripted


class Invoice(pydantic.BaseModel):
    number: str
    total: float
    items: list[str]


@dataclass
class Point:
    x: int
    y: int


class Pair(TypedDict):
    a: int
    b: str


class Part(typing.TypedDict):
    name: str
    size: typing.NotRequired[int]


class Late(typing.TypedDict, total=False):  # as under `from __future__ import annotations`
    id: "typing.Required[int]"
    note: "typing.NotRequired[str]"
    more: "int"


class Whole(typing.TypedDict):
    parts: list[Part]
    best: Part | None


class Chain(typing.TypedDict):
    next: "Chain | None"


class Color(enum.Enum):
    RED = "red"
    TWO = 2


@lmc.function
def ask(s, dtype, **options):
    s += "x: " + lmc.gen("x", dtype=dtype, **options)
    return s.parsed("x")


def said(text):
    return lmc.Mock(answers={"x": text})


@pytest.mark.parametrize("dtype, text, value", [
    (int, "42", 42), (float, "-1.5", -1.5), (bool, "False", False), (str, '"two words"', "two words"),
    (Literal["a", 3], "3", 3), (Color, "red", Color.RED), (Color, "2", Color.TWO),
    (Invoice, '{"number": "7", "total": 1.5, "items": ["a"]}', Invoice(number="7", total=1.5, items=["a"])),
    (Point, '{"x": 1, "y": 2}', Point(1, 2)), (Pair, '{"a": 1, "b": "c"}', {"a": 1, "b": "c"}),
    (list[Point], '[{"x": 1, "y": 2}]', [Point(1, 2)]), (list[int], "[1, 2]", [1, 2]), (dict, '{"a": null}', {"a": None}),
    (int | None, "null", None), (tuple[int, str], '[1, "a"]', (1, "a")), (list[Color], '["red"]', [Color.RED]),
], ids=str)  # fmt: skip
def test_answers_are_objects_of_their_types(dtype, text, value):
    state = ask.run(dtype, backend=said(text))
    assert state.ret_value == value and type(state.ret_value) is type(value)
    assert state["x"] == text


@pytest.mark.parametrize("dtype, text", [
    (Part, '{"name": "a"}'), (list[Part], '[{"name": "a", "size": 2}]'), (Whole, '{"parts": [{"name": "a"}], "best": null}'),
    (dict[str, Part], '{"a": {"name": "b"}}'), (Part | None, "null"), (typing.Annotated[Whole, "of parts"], '{"parts": [], "best": {"name": "a"}}'),
], ids=str)  # fmt: skip
def test_a_typed_dict_of_typing_is_one_on_every_python(dtype, text):
    assert ask.run(dtype, backend=said(text)).ret_value == json.loads(text)


def test_a_typed_dict_knows_which_keys_it_needs():
    with pytest.raises(lmc.BackendError, match="does not allow"):
        ask.run(Part, backend=said('{"size": 1}'))
    with pytest.raises(lmc.BackendError, match="does not allow"):
        ask.run(list[Part], backend=said('[{"name": 1}]'))
    with pytest.raises(lmc.BackendError, match="does not allow"):
        ask.run(Late, backend=said('{"more": 1}'))
    assert ask.run(Late, backend=said('{"id": 1, "more": 2}')).ret_value == {"id": 1, "more": 2}


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes it")
def test_a_typed_dict_that_contains_itself_says_what_to_write():
    with pytest.raises(lmc.ParameterError, match=r"typing_extensions\.TypedDict"):
        ask.run(Chain, backend=said('{"next": null}'))


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: list[model]])
def test_a_model_without_a_schema_is_refused_at_its_line(wrap):
    model = pydantic.create_model("Tool", run=(typing.Callable[[], int], ...))
    with pytest.raises(lmc.ParameterError, match=r"test_parsed.py:\d+: pydantic has no JSON schema for Tool \(it says: Cannot generate a JsonSchema"):
        lmc.gen("tool", dtype=wrap(model))


@pytest.mark.filterwarnings("error")
def test_a_path_is_text():
    model = pydantic.create_model("Place", file=(Path, ...), folder=(pydantic.DirectoryPath, ...))
    place = lmc.function(lambda s: (s.__iadd__(lmc.gen("place", dtype=model)), s.parsed("place"))[1])
    folder = str(Path(__file__).parent)
    assert place(backend=lmc.Mock({"place": json.dumps({"file": "a/b", "folder": folder})})).ret_value == model(file="a/b", folder=folder)


def test_any_answer_of_the_mock_parses():
    for dtype in (Invoice, Point, Pair, list[Point], Color, bool):
        for seed in range(10):
            ask.run(dtype, backend="mock", seed=seed)


def test_schemas_give_what_json_says_and_models_their_objects():
    @lmc.function
    def by_schema(s, schema):
        s += lmc.gen("x", json_schema=schema)
        return s.parsed("x")

    answer = said('{"x": 1, "y": 2}')
    assert by_schema.run({"type": "object"}, backend=answer).ret_value == {"x": 1, "y": 2}
    state = by_schema.run(Invoice.model_json_schema(), backend=said('{"number": "7", "total": 1, "items": []}'))
    assert state.parsed("x", Invoice) == Invoice(number="7", total=1, items=[])


def test_several_answers_are_lists_of_objects():
    @lmc.function
    def program(s):
        s += lmc.gen("x", dtype=Point, n=2)
        forks = s.fork(2)
        forks += lmc.gen("y", dtype=Point)
        forks.join()
        return s.parsed("x") + s.parsed("y")

    found = program.run(
        backend=lmc.Mock(answers={"x": ['{"x": 1, "y": 2}'] * 2, "y": '{"x": 3, "y": 4}'} | {"x": lambda *_: ['{"x": 1, "y": 2}'] * 2})
    ).ret_value
    assert found == [Point(1, 2), Point(1, 2), Point(3, 4), Point(3, 4)]


def test_a_name_without_a_type_says_how_to_give_one():
    @lmc.function
    def program(s):
        s += lmc.gen("x", dtype=int) + lmc.gen("x", max_tokens=4)
        return s.parsed("x")

    with pytest.raises(lmc.ArgumentError, match=r"test_parsed.py:\d+: 'x' was asked for without a type.*dtype="):
        program.run(backend=said("1"))


def test_what_the_validators_of_a_model_refuse_is_theirs():
    class Even(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def even(cls, n):
            assert n % 2 == 0
            return n

    with pytest.raises(pydantic.ValidationError):
        ask.run(Even, backend=said('{"n": 3}'))


# -- limits


LONG = '{"number": "' + "7" * 200 + '", "total": 1, "items": []}'


def test_an_answer_that_was_cut_raises_where_it_is_read():
    @lmc.function
    def program(s):
        s += lmc.gen("x", dtype=Invoice, max_tokens=20)
        s += " more"
        return s["x"]

    state = lmc.compile(program, backend=said(LONG)).batch([{}], errors="return")[0]
    with pytest.raises(lmc.IncompleteAnswer, match=r"test_parsed.py:\d+: the answer was cut at 20 tokens.*raise max_tokens") as raised:
        program.run(backend=said(LONG))
    assert raised.value.text == LONG[:20]
    assert isinstance(state.error(), lmc.IncompleteAnswer)


def test_the_text_of_a_cut_answer_can_still_be_seen():
    @lmc.function
    def program(s):
        s += "a" + lmc.gen("x", json_schema={"type": "object"}, max_tokens=3)

    state = program.run(backend=said('{"b": 1}'))
    assert state.text() == 'a{"b' and state.get_meta_info("x")["finish_reason"]["type"] == "length"
    with pytest.raises(lmc.IncompleteAnswer):
        state["x"]


def test_numbers_keep_sglangs_limit_but_as_objects():
    @lmc.function
    def program(s, dtype):
        s += lmc.gen("x", dtype=dtype, max_tokens=3)
        return s["x"]

    for dtype, text in ((int, "12345"), (float, "1.2345"), (str, '"abcde"')):
        state = program.run(dtype, backend=said(text))
        assert state.ret_value == text[:3]
        with pytest.raises(lmc.IncompleteAnswer) as raised:
            state.parsed("x")
        assert raised.value.text == text[:3]


def test_the_mock_ends_answers_before_their_limit():
    schema = Invoice.model_json_schema()
    shortest = len('{"number":"","total":0,"items":[]}')
    for limit in range(shortest, shortest + 30, 3):
        ask.run(Invoice, max_tokens=limit, backend="mock", seed=limit)
    with pytest.raises(lmc.IncompleteAnswer):
        ask.run(Invoice, max_tokens=shortest - 1, backend="mock")
    assert json.dumps(schema)


def test_limits_grow_with_the_schema_where_none_is_given():
    backend = lmc.Mock({"x": json.dumps({f"field{i}": "" for i in range(20)})})
    big = {"type": "object", "properties": {f"field{i}": {"type": "string"} for i in range(20)}, "required": [f"field{i}" for i in range(20)]}

    @lmc.function
    def program(s, **given):
        s += lmc.gen("x", json_schema=big, **given)

    program.run(backend=backend)
    program.run(max_tokens=200, backend=backend)
    program.run(max_new_tokens=300, backend=backend)
    assert [call.ask.params.max_new_tokens for call in backend.call_log] == [limit_of(json.dumps(big)), 200, 300]
    assert limit_of(json.dumps(big)) > 1000 and limit_of('{"type": "integer"}') == 128
    recursive = {"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}}}}}
    assert 128 <= limit_of(json.dumps(recursive)) <= 4096


def test_numbers_have_as_many_digits_as_python_and_javascript_write_floats_with():
    from lmc.fsm.recognise import allows

    number = '{"type":"number"}'
    assert allows("json_schema", number, "-123.456e10") and allows("json_schema", number, "0.1")
    assert allows("json_schema", number, repr(0.1 + 0.2)) and allows("json_schema", number, "0.0000012345678901234567")
    assert not allows("json_schema", number, "0." + "3" * 23) and not allows("json_schema", number, "3" * 42)


# -- the same in every execution


@lmc.function
def invoices(s, q):
    s += q + lmc.gen("x", dtype=Invoice)
    total = s.parsed("x").total
    s += f"\n{total:.2f}: " + lmc.gen("note", max_tokens=4)
    return [total, s.parsed("x").items, s["note"]]


def test_typed_answers_mean_the_same_in_every_execution():
    conform(invoices, [{"q": "a"}, {"q": "b"}])
    conform(invoices, [{"q": "a"}], backend=scripted(x='{"number": "7", "total": 2, "items": ["z"]}'))


def test_streams_have_their_types():
    state = invoices.run(q="a", stream=True, backend="mock")
    assert isinstance(state.parsed("x"), Invoice)
