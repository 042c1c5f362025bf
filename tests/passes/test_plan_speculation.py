"""Golden tests of plan-speculation."""

from __future__ import annotations

import pytest

from lmc.passes.base import Target
from tests.passes.filecheck import check, check_unchanged

CHAIN = """
    %c1 = append(%c0, "Name:")
    %c2, %x, %m0 = gen(%c1) {name = "x", stream = "", ordinal = 0, stop = "\\n"}
    %c3 = append(%c2, "\\nBorn:")
    %c4, %y, %m1 = gen(%c3) {name = "y", stream = "", ordinal = 1, stop = ["\\n", "."], max_tokens = 9}
    %c5 = append(%c4, "\\nJob:")
    %c6, %z, %m2 = gen(%c5) {name = "z", stream = "", ordinal = 2}
    return(%z, %c6)
"""


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_a_chain_of_gens_gets_a_template(kind: str) -> None:
    """Of text and gens in turns; where it fails, the gens behind have templates of their own."""
    check("plan-speculation", CHAIN, """
        %c1 = append(%c0, "Name:")
        %c2, %x, %m0 = gen(%c1) {name = "x", stream = "", ordinal = 0, stop = "\\n", lookahead = ["\\nBorn:", ["", 1], "\\nJob:", ["", 2]]}
        %c3 = append(%c2, "\\nBorn:")
        %c4, %y, %m1 = gen(%c3) {name = "y", stream = "", ordinal = 1, stop = ["\\n", "."], max_tokens = 9, lookahead = ["\\nJob:", ["", 2]]}
        %c5 = append(%c4, "\\nJob:")
        %c6, %z, %m2 = gen(%c5) {name = "z", stream = "", ordinal = 2}
        return(%z, %c6)
    """, params="%c0: ctx", target=Target(kind))  # fmt: skip


def test_tokens_need_no_template() -> None:
    check_unchanged("plan-speculation", CHAIN, params="%c0: ctx")


@pytest.mark.parametrize(
    ("first", "text", "second"),
    [
        ('stop = "."', '"\\nBorn:"', ""),  # the text does not show where the answer ends
        ("max_tokens = 9", '"\\nBorn:"', ""),  # nor does a length
        ('stop = "\\n"', "%t", ""),  # text that is known only when it runs
        ('stop = "\\n"', '"\\n", special("<|im_end|>")', ""),  # another message
        ('stop = "\\n", n = 2', '"\\nBorn:"', ""),
        ('stop = "\\n", regex = "[a-z]+"', '"\\nBorn:"', ""),
        ('stop = "\\n"', '"\\nBorn:"', 'regex = "[0-9]+"'),
        ('stop = "\\n", temperature = 0.0', '"\\nBorn:"', ""),  # one request has one temperature
    ],
)
def test_what_one_request_cannot_cover_gets_none(first: str, text: str, second: str) -> None:
    body = f"""
        %c2, %x, %m0: any = gen(%c0) {{stream = "", ordinal = 0, {first}}}
        %c3 = append(%c2, {text})
        %c4, %y, %m1 = gen(%c3) {{stream = "", ordinal = 1{", " + second if second else ""}}}
        return(%y, %c4)
    """.replace("%m0: any", "%m0")
    check("plan-speculation", body, body, params="%c0: ctx, %t: str", target=Target("text"))


def test_a_fork_behind_a_gen_ends_the_chain() -> None:
    body = """
        %c2, %x, %m0 = gen(%c0) {stream = "", ordinal = 0, stop = "\\n"}
        %c3 = append(%c2, "\\nBorn:")
        %c4, %y, %m1 = gen(%c3) {stream = "", ordinal = 1}
        %c5, %z, %m2 = gen(%c3) {stream = "/0.0", ordinal = 0}
        return(%y, %c4)
    """
    check("plan-speculation", body, body, params="%c0: ctx", target=Target("text"))


def test_what_goes_on_behind_an_arm_ends_the_chain() -> None:
    body = """
        switch(%k) [true -> ^a, _ -> ^b] then ^on
      ^a:
        %c2, %x, %m0 = gen(%c0) {stream = "", ordinal = 0, stop = "\\n"}
        %c3 = append(%c2, "\\nBorn:")
        yield(%c3)
      ^b:
        raise("x")
      ^on(%c4: ctx):
        %c5, %y, %m1 = gen(%c4) {stream = "", ordinal = 1}
        return(%y, %c5)
    """
    check("plan-speculation", body, body, params="%c0: ctx, %k: bool", target=Target("text"))
