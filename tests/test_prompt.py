"""From arguments to requests: resolve, seeds, and the persistent prompt."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import enum
import json
import re
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc.backend.mock import Mock
from lmc.constraints import dtype_constraint, make_constraint
from lmc.errors import ArgumentError, Loc, ParameterError
from lmc.fsm.sources import machine_of
from lmc.parameters import Origin, make_gen, make_select, resolve, sampling
from lmc.prompt import Prompt
from lmc.segments import Gen, Image, Mark, SamplingParams, Special, Text, derive_seed
from tests.searching import search

RUN = SamplingParams(max_new_tokens=32, stop=("RUN",), temperature=0.0)


def test_nothing_given_is_the_defaults_themselves() -> None:
    params, constraint = resolve(RUN, {})
    assert params is RUN
    assert constraint is None


def test_gen_level_wins_over_run_level() -> None:
    params, _ = resolve(RUN, {"max_tokens": 5, "min_tokens": 2, "stop": "x", "temperature": 1})
    assert params == SamplingParams(max_new_tokens=5, min_new_tokens=2, stop=("x",), temperature=1.0)
    assert isinstance(params.temperature, float)


def test_none_means_not_given() -> None:
    assert resolve(RUN, {"stop": None, "max_tokens": None}) == (RUN, None)


class Size(enum.Enum):
    SMALL = "s.m"
    LARGE = 10


def test_literal_and_enum_dtypes_allow_exactly_their_values() -> None:
    _, literal = resolve(RUN, {"dtype": Literal["a+b", "c"]})
    _, enumerated = resolve(RUN, {"dtype": Size})
    assert literal is not None
    assert enumerated is not None
    assert [bool(re.fullmatch(literal.source, t)) for t in ("a+b", "c", "aab")] == [True, True, False]
    assert [bool(re.fullmatch(enumerated.source, t)) for t in ("s.m", "10", "sxm")] == [True, True, False]


@pytest.mark.parametrize(
    ("dtype", "schema"),
    [
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Literal["a", 1] | None, {"anyOf": [{"enum": ["a", 1]}, {"type": "null"}]}),
        (tuple[str, bool], {"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}], "minItems": 2, "maxItems": 2}),
        (tuple[float, ...], {"type": "array", "items": {"type": "number"}}),
        (dict[str, list[Size]], {"type": "object", "additionalProperties": {"type": "array", "items": {"enum": [m.value for m in Size]}}}),
    ],
)
def test_types_made_of_types_are_schemas(dtype: Any, schema: dict[str, Any]) -> None:
    _, constraint = resolve(RUN, {"dtype": dtype})
    assert constraint is not None and constraint.kind == "json_schema" and json.loads(constraint.source) == schema


def test_models_in_types_keep_their_definitions() -> None:
    class Leaf:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {"type": "integer"}

    class Node:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {"$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}}, "$ref": "#/$defs/Node"}

    _, constraint = resolve(RUN, {"dtype": dict[str, Leaf | Node]})
    assert constraint is not None
    found = json.loads(constraint.source)
    assert found["additionalProperties"] == {"anyOf": [{"$ref": "#/$defs/Leaf"}, {"$ref": "#/$defs/Node"}]}
    assert found["$defs"] == {"Leaf": {"type": "integer"}, "Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}}


@pytest.mark.parametrize("dtype", [dict[int, str], list[complex], list[bytes] | None])
def test_types_without_a_schema_are_refused(dtype: Any) -> None:
    with pytest.raises(ParameterError, match="has no JSON schema"):
        resolve(RUN, {"dtype": dtype})


def test_schema_as_dict_becomes_text_in_the_order_written() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
    _, constraint = resolve(RUN, {"json_schema": schema})
    assert constraint is not None
    assert constraint.source == '{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}'


def test_equal_values_of_different_type_are_told_apart() -> None:
    resolve(RUN, {"max_tokens": 1})
    with pytest.raises(ArgumentError, match="whole number"):
        resolve(RUN, {"max_tokens": True})
    with pytest.raises(ArgumentError, match="whole number"):
        resolve(RUN, {"max_tokens": 1.0})


def test_errors_carry_the_place_also_for_values_that_cannot_be_cached() -> None:
    loc = Loc("prog.py", 7, 3)
    for bad in ({"stop": [1]}, {"json_schema": {"a": object()}}, {"top_p": 2}):
        with pytest.raises((ArgumentError, ParameterError)) as caught:
            resolve(RUN, bad, loc)
        assert caught.value.loc == loc
        assert str(caught.value).startswith("prog.py:7: ")


values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.floats(allow_nan=True), st.text(max_size=5),
    st.lists(st.text(max_size=3), max_size=3), st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2), st.sampled_from([int, str, list]),
)  # fmt: skip
names = st.sampled_from(
    "max_tokens min_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p regex json_schema dtype seed logit_bias".split()
)


@search(11, 400)
@given(st.dictionaries(names, values, max_size=5))
def test_resolve_never_changes_its_input_and_raises_only_our_errors(asked: dict[str, Any]) -> None:
    before, run = copy.deepcopy(asked), copy.copy(RUN)
    try:
        first = resolve(RUN, asked)
    except (ArgumentError, ParameterError, ValueError) as error:
        assert hasattr(error, "loc"), repr(error)
    else:
        assert resolve(RUN, asked) == first
    assert repr(asked) == repr(before)
    assert run == RUN


@search(15, 100)
@given(
    st.integers(0, 2**63 - 1), st.integers(0, 999), st.text(alphabet="/c0123456789.", max_size=8), st.integers(0, 99)
)
def test_seeds_are_stable_and_in_range(seed: int, item: int, stream: str, ordinal: int) -> None:
    one = derive_seed(seed, item, stream, ordinal)
    assert one == derive_seed(seed, item, stream, ordinal) == Origin(seed, item, stream, ordinal).seed
    assert 0 <= one < 2**63
    assert one != derive_seed(seed, item, stream, ordinal + 1)
    assert one != derive_seed(seed, item + 1, stream, ordinal)


def test_seeds_do_not_change_between_versions() -> None:
    assert derive_seed(1, 0, "/0.2", 3) == 7021233504215544920


def test_make_gen_seeds_only_samples() -> None:
    origin = Origin(5, 0, "", 0)
    assert make_gen(RUN, {}, origin).seed == 0
    assert make_gen(RUN, {"temperature": 0.7}, origin).seed == origin.seed
    assert make_gen(RUN, {"temperature": 0.7, "seed": 11}, origin).seed == 11


def test_make_select_checks_values_that_came_at_run_time() -> None:
    loc = Loc("prog.py", 4)
    with pytest.raises(ArgumentError, match=r"prog\.py:4: .*3 is not text"):
        make_select(["a", 3], loc=loc)
    with pytest.raises(ParameterError, match="nothing to choose from"):
        make_select([], loc=loc)
    assert make_select(["a"], 0, None).temperature == 0.0


def test_sampling_defaults_of_a_run() -> None:
    assert sampling(SamplingParams(), {"max_new_tokens": 7, "stop": "x", "temperature": None}) == SamplingParams(
        max_new_tokens=7, stop=("x",)
    )


# -- the persistent prompt


def test_extending_a_prompt_changes_none_before_it() -> None:
    root = Prompt().append("a")
    one, two = root.append("b"), root.append("c", Special("<|x|>"))
    assert (root.text(), one.text(), two.text()) == ("a", "ab", "ac<|x|>")
    assert two.text(since=root) == "c<|x|>"
    assert one.text(since=one) == ""


def test_since_must_be_an_ancestor() -> None:
    with pytest.raises(ValueError, match="not an ancestor"):
        Prompt().append("a").text(since=Prompt())


def test_messages_are_closed_and_lose_leading_space() -> None:
    prompt = Prompt().append("x", Mark("user", "begin"), "  hello", Special("<|s|>"), Mark("user", "end"), "y")
    prompt = prompt.append(Mark("assistant", "begin"), "open")
    assert prompt.messages() == [{"role": "user", "content": "hello<|s|>"}]


def test_a_tail_is_submitted_once_as_one_run_of_text() -> None:
    backend = Mock(answers=["one", "two"])
    ask = Gen(RUN)
    prompt = Prompt().append("a").append("b").submit(backend, ask).append("c").submit(backend, ask)
    assert prompt.text() == "abonectwo"
    assert [call.prompt_text for call in backend.call_log] == ["ab", "abonec"]


def test_images_cut_the_tail_into_segments() -> None:
    segments = Prompt().append("a", Image("pic.png")).append("b")._segments()
    assert segments == (Text(("a",)), Image("pic.png"), Text(("b",)))
    assert Prompt().append("a", Image("pic.png"), "b").text() == "ab"


def test_sets_are_lists_unless_their_values_are_few():
    pydantic = pytest.importorskip("pydantic")

    def schema(of: Any) -> Any:
        return json.loads(dtype_constraint(of)[0].source)

    assert schema(set[int]) == {"type": "array", "items": {"type": "integer"}}
    assert schema(frozenset[Size])["uniqueItems"] and schema(set[bool])["uniqueItems"]
    assert schema(list[set[Annotated[int, pydantic.Field(ge=0, le=5)]]])["items"]["uniqueItems"]
    assert schema(Annotated[set[int], pydantic.Field(min_length=2)])["uniqueItems"], "one that comes twice would be too few"
    model = pydantic.create_model("M", tags=(set[str], ...))
    assert "uniqueItems" not in schema(model)["properties"]["tags"]
    assert "uniqueItems" not in make_constraint("json_schema", model).source
    written = {"type": "array", "uniqueItems": True}
    assert json.loads(make_constraint("json_schema", written).source) == written, "a schema means what it says"


def test_decimals_are_numbers():
    pydantic = pytest.importorskip("pydantic")
    assert json.loads(dtype_constraint(decimal.Decimal)[0].source) == {"type": "number"}
    price = pydantic.create_model("M", price=(Annotated[decimal.Decimal, pydantic.Field(ge=0)], ...))
    assert json.loads(dtype_constraint(price)[0].source)["properties"]["price"] == {"minimum": 0, "title": "Price", "type": "number"}


def test_urls_have_the_schemes_of_their_types():
    pydantic = pytest.importorskip("pydantic")
    page = pydantic.create_model("M", page=(pydantic.HttpUrl, ...))
    for dtype, form in ((pydantic.HttpUrl, '"{}"'), (list[pydantic.HttpUrl], '["{}"]'), (page, '{{"page": "{}"}}')):
        machine = machine_of("json_schema", dtype_constraint(dtype)[0].source)
        urls = ("https://a.b/c?d=e", "http://a.b:80", "HTTP://a.b", "Https://a.b", "ftp://a.b/c", "httpx://a.b", "file://a/b")
        assert {url for url in urls if machine.accepts(form.format(url).encode())} == {*urls[:4]}
    anything = machine_of("json_schema", dtype_constraint(pydantic.AnyUrl)[0].source)
    assert anything.accepts(b'"ftp://a.b/c"')


def test_a_tuple_of_nothing_is_an_empty_list():
    assert json.loads(dtype_constraint(tuple[()])[0].source) == {"type": "array", "minItems": 0, "maxItems": 0}


def test_other_types_are_those_that_pydantic_has_a_schema_for():
    pydantic = pytest.importorskip("pydantic")
    at_least = Annotated[int, pydantic.Field(ge=3)]
    assert json.loads(dtype_constraint(at_least)[0].source) == {"minimum": 3, "type": "integer"}
    assert json.loads(dtype_constraint(list[datetime.date])[0].source)["items"] == {"format": "date", "type": "string"}
    assert json.loads(dtype_constraint(Point)[0].source)["required"] == ["x", "y"]
    with pytest.raises(ParameterError, match=r"Plain.* in it has no JSON schema \(it says: Unable to generate"):
        dtype_constraint(list[type("Plain", (), {})])
    assert json.loads(dtype_constraint(dict)[0].source) == {"type": "object"}
    for bare in (list, set, 3, "inte"):
        with pytest.raises(ParameterError, match="one of int, float, bool, str"):
            dtype_constraint(bare)


@dataclasses.dataclass
class Point:
    x: int
    y: int


def test_a_temperature_too_small_to_divide_by_is_zero():
    assert [sampling(SamplingParams(), {"temperature": t}).temperature for t in (5e-324, 1e-300, 9e-6, 1e-5)] == [0.0, 0.0, 0.0, 1e-5]
