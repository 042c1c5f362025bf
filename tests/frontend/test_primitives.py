"""Expressions: built pure, checked where they are written, placed at the user's line."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from lmc.errors import ArgumentError, ConstraintError, LmcError, ParameterError
from lmc.frontend import primitives as p
from lmc.frontend.capture.unknown import Unknown
from lmc.frontend.expressions import GenExpr, Lit, RoleBegin, RoleEnd, SelectExpr, Seq
from lmc.segments import ChoicesMethod


def here(offset: int = 0) -> tuple[str, int]:
    """This file and the caller's line plus `offset`."""
    import sys

    frame = sys._getframe(1)
    return frame.f_code.co_filename, frame.f_lineno + offset


def test_gen_keeps_only_what_was_given() -> None:
    expr = p.gen("x", max_tokens=8, temperature=0)
    assert isinstance(expr, GenExpr)
    assert expr.name == "x"
    assert expr.given == {"max_tokens": 8, "temperature": 0}


def test_lists_are_read_where_the_gen_is_written_and_never_changed() -> None:
    stops, bias, schema = ["END", "\n"], {2: 1.0, 1: 3}, {"type": "string"}
    expr, constrained = p.gen("x", stop=stops, logit_bias=bias, temperature=0), p.gen("y", json_schema=schema)
    stops.append("later")
    bias.clear()
    schema["enum"] = "a"
    assert isinstance(expr, GenExpr) and isinstance(constrained, GenExpr)
    assert expr.given == {"stop": ("END", "\n"), "logit_bias": ((1, 3.0), (2, 1.0)), "temperature": 0}
    assert constrained.given == {"json_schema": '{"type":"string"}'}
    assert stops == ["END", "\n", "later"]


def test_an_iterator_of_stops_is_read_once() -> None:
    expr = p.gen("x", stop=iter(["a", "b"]))
    assert isinstance(expr, GenExpr) and expr.given["stop"] == ("a", "b")


@pytest.mark.parametrize("given", [{"stop": [1]}, {"stop": [""]}, {"logit_bias": {"a": "b"}}, {"json_schema": [1]}, {"tools": [3]}, {"stop_regex": ["("]}])
def test_what_a_list_or_dict_holds_is_refused_where_it_is_written(given: Any) -> None:
    with pytest.raises(LmcError) as error:
        p.gen("x", **given)
    assert error.value.loc is not None and (error.value.loc.file, error.value.loc.line) == here(-1)


def test_concatenation_is_flat_and_keeps_order() -> None:
    expr = "a" + p.user("q" + p.gen("x")) + "b"
    assert [type(item).__name__ for item in expr.items] == ["Lit", "RoleBegin", "Lit", "GenExpr", "RoleEnd", "Lit"]
    assert expr.items[0] == Lit("a")


def test_expressions_that_ask_for_the_same_are_equal() -> None:
    one, other = p.gen("x", stop=["a"]), p.gen("x", stop=["a"])  # two places in the source
    assert one == other and one != p.gen("x") and one != p.select("x", ["a"]) and one not in (None, [])
    assert len({one, other, p.user("q" + one), p.user("q" + other)}) == 2


def test_expressions_are_values_not_submissions() -> None:
    one = p.gen("x")
    two = one + one
    assert len(two.items) == 2
    assert two.items[0] is two.items[1]


def test_role_without_content() -> None:
    assert p.assistant() == Seq((RoleBegin("assistant"), RoleEnd("assistant")))


def test_choices_make_a_select() -> None:
    expr = p.gen("x", choices=["a", "b"], choices_method="greedy_token_selection")
    assert expr == SelectExpr("x", ("a", "b"), 0.0, ChoicesMethod.GREEDY_TOKEN_SELECTION)


def test_gen_int_and_gen_string_are_dtypes() -> None:
    assert p.gen_int("n", max_tokens=4).given == {"max_tokens": 4, "dtype": int}
    assert p.gen_string("n").given == {"dtype": str}


def test_loc_is_the_users_line_and_column() -> None:
    # fmt: off
    expr = "text" + p.gen("x")
    # fmt: on
    file, line = here(-2)
    gen = expr.items[1]
    assert isinstance(gen, GenExpr)
    assert gen.loc is not None
    assert (gen.loc.file, gen.loc.line, gen.loc.col) == (file, line, 20)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"regex": "("}, ConstraintError, "not a valid regular expression"),
    ({"regex": "(" * 256_001}, ConstraintError, "has 256,001 characters, and at most 256,000 are allowed"),
    ({"stop_regex": ["a" * 128_000, "(" * 128_001]}, ConstraintError, "has 256,001 characters, and at most 256,000 are allowed"),
    ({"regex": 3}, ArgumentError, "must be the text"),
    ({"json_schema": "{"}, ConstraintError, "not valid JSON"),
    ({"json_schema": functools.reduce(lambda inner, _: {"items": inner}, range(200_000), {})}, ConstraintError, "nested too deep"),
    ({"regex": "a{" + "1" * 5000 + "}"}, ConstraintError, "too large a regular expression"),
    ({"max_tokens": -1}, ParameterError, "max_tokens=-1: must be at least 0"),
    ({"max_tokens": "8"}, ArgumentError, "max_tokens='8': must be a whole number"),
    ({"max_tokens": True}, ArgumentError, "whole number"),
    ({"max_tokens": "8" * 100_000}, ArgumentError, f": max_tokens='{'8' * 97}...{'8' * 98}': must be a whole number"),
    ({"n": 2**70}, ParameterError, "must be at most 16,384"),
    ({"temperature": -0.1}, ParameterError, "at least 0"),
    ({"temperature": "hot"}, ArgumentError, "must be a number"),
    ({"temperature": -(10**400)}, ParameterError, "at least 0"),
    ({"top_p": 10**400}, ParameterError, "at most 1"),
    ({"temperature": float("nan")}, ParameterError, "at least 0"),
    ({"top_p": 0}, ParameterError, "above 0"),
    ({"top_k": 0}, ParameterError, "at least 1 or -1"),
    ({"n": 0}, ParameterError, "at least 1"),
    ({"stop": ["a", 3]}, ArgumentError, "text or a list of texts"),
    ({"stop": ""}, ParameterError, "empty"),
    ({"stop_regex": "["}, ConstraintError, "not a valid regular expression"),
    ({"dtype": list}, ParameterError, "not supported; use one of int, float, bool, str"),
    ({"dtype": int, "regex": "a"}, ParameterError, "one constraint"),
    ({"regex": "a", "ebnf": "root ::= 'a'"}, ParameterError, "one constraint"),
    ({"choices": []}, ParameterError, "nothing to choose from"),
    ({"choices": "yes"}, ArgumentError, "a list of strings"),
    ({"choices": ["a", 1]}, ArgumentError, "choices must be text"),
    ({"choices": ["a"], "max_tokens": 3}, ParameterError, "would ignore max_tokens="),
    ({"choices": ["a"], "choices_method": "best"}, ParameterError, "token_length_normalized"),
    ({"choices_method": "greedy_token_selection"}, ParameterError, "needs choices"),
    ({"min_tokens": 9, "max_tokens": 3}, ParameterError, "more than max_tokens"),
    ({"max_token": 3}, ArgumentError, "did you mean 'max_tokens'?"),
]


@pytest.mark.parametrize(("given", "kind", "says"), BAD)
def test_bad_parameters_are_refused_at_their_line(given: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as caught:
        p.gen("x", **given)
    file, line = here(-1)
    assert isinstance(caught.value, LmcError)
    assert says in str(caught.value)
    assert caught.value.loc is not None
    assert (caught.value.loc.file, caught.value.loc.line) == (file, line)
    assert "^" in str(caught.value)


def test_name_must_be_text() -> None:
    with pytest.raises(ArgumentError, match="variable's name first"):
        p.gen(["a", "b"])  # type: ignore[arg-type]


def test_none_is_a_value_error_and_a_number_a_type_error() -> None:
    with pytest.raises(ValueError, match="forget to return"):
        p.user("a") + None  # type: ignore[operator]
    with pytest.raises(TypeError, match="write str"):
        3 + p.gen("x")  # type: ignore[operator]
    with pytest.raises(TypeError, match="join it first"):
        p.gen("x") + ["a"]  # type: ignore[operator]


def test_symbolic_parameters_are_not_looked_at() -> None:
    value = Unknown(None)
    expr = p.gen("x", max_tokens=value, regex=value, stop=[value, "b"], temperature=0.5)  # type: ignore[arg-type]
    assert isinstance(expr, GenExpr)
    assert expr.given["max_tokens"] is value
    assert expr.given["stop"][0] is value
    select = p.select("y", choices=["a", value], temperature=value)  # type: ignore[list-item, arg-type]
    assert select.choices[1] is value


def test_symbolic_parameters_do_not_hide_constant_mistakes() -> None:
    value = Unknown(None)
    with pytest.raises(ParameterError, match="at least 0"):
        p.gen("x", regex=value, max_tokens=-1)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="one constraint"):
        p.gen("x", top_k=value, regex="a", json_schema="{}")  # type: ignore[arg-type]
    assert p.gen("x", regex=value, json_schema="{}") is not None  # type: ignore[arg-type]  # the value may be None


def test_expressions_take_values_as_text() -> None:
    value = Unknown(None)
    lit = ("a" + p.gen("x") + value).items[-1]
    assert isinstance(lit, Lit)
    assert lit.text is value


def test_special_is_the_only_way_to_a_special_token() -> None:
    assert p.special("<|im_start|>") == p.SpecialExpr("<|im_start|>")
    with pytest.raises(TypeError, match="constant spelling"):
        p.special(3)  # type: ignore[arg-type]


def test_an_expression_shows_what_it_asks_and_not_where() -> None:
    assert repr(p.gen("x", max_tokens=3)) == "GenExpr(name='x', given={'max_tokens': 3})"
