"""Golden tests of plan-speculation."""

from __future__ import annotations

import pytest

from lmc.passes.manager import PassManager, Target, parse_pipeline
from tests.passes.filecheck import check, check_unchanged, graph_of

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


DECISION = """
    %f = append(%c0, "Is it easy?")
    %f1, %x, %m0 = gen(%f)
    %r: str = read(%x)
    switch(%r) ["yes" -> ^easy, _ -> ^hard]
  ^easy:
    %a = append(%c0, "Answer in one word: ", %t)
    %a1, %y, %m1 = gen(%a)
    return(%y, %a1)
  ^hard:
    %b = append(%c0, "Think step by step.")
    %b1, %z, %m2 = gen(%b)
    return(%z, %b1)
"""


SHORT = "plan-speculation{free_rows = 3}"  # a text of four tokens does not ride for nothing


def test_both_arms_are_prefilled_while_the_decision_waits() -> None:
    """Each is released at once on the other path, and after its ask on its own."""
    check(SHORT, DECISION, """
        %f = append(%c0, "Is it easy?")
        %f1, %x, %m0 = gen(%f)
        %r: str = read(%x)
        %c1 = append(%c0, "Answer in one word: ")
        prefill(%c1) {scope = "spare"}
        %c2 = append(%c0, "Think step by step.")
        prefill(%c2) {scope = "spare"}
        switch(%r) ["yes" -> ^easy, _ -> ^hard]
        ^easy:
        release(%c2)
        %a = append(%c1, %t)
        %a1, %y, %m1 = gen(%a)
        release(%c1)
        return(%y, %a1)
        ^hard:
        release(%c1)
        %b1, %z, %m2 = gen(%c2)
        release(%c2)
        return(%z, %b1)
    """, params="%c0: ctx, %t: str")  # fmt: skip


TRACED = DECISION.replace('["yes" -> ^easy, _ -> ^hard]', '["yes" -> ^easy, "no" -> ^hard, _ -> ^else]') + """
  ^else:
    exit(%c0, %f1, %x, %m0, %r) {id = 0}
"""


def test_an_arm_that_no_run_has_taken_is_no_third_arm() -> None:
    """The way out of a traced decision has nothing to prefill, and both pins end there."""
    check(SHORT, TRACED, """
        %f = append(%c0, "Is it easy?")
        %f1, %x, %m0 = gen(%f)
        %r: str = read(%x)
        %c1 = append(%c0, "Answer in one word: ")
        prefill(%c1) {scope = "spare"}
        %c2 = append(%c0, "Think step by step.")
        prefill(%c2) {scope = "spare"}
        switch(%r) ["yes" -> ^easy, "no" -> ^hard, _ -> ^else]
        ^easy:
        release(%c2)
        %a = append(%c1, %t)
        %a1, %y, %m1 = gen(%a)
        release(%c1)
        return(%y, %a1)
        ^hard:
        release(%c1)
        %b1, %z, %m2 = gen(%c2)
        release(%c2)
        return(%z, %b1)
        ^else:
        release(%c1)
        release(%c2)
        exit(%c0, %f1, %x, %m0, %r) {id = 0}
    """, params="%c0: ctx, %t: str")  # fmt: skip


def left(pipeline: str, body: str) -> set[str]:
    """What the pass counts on a graph that it leaves as it is."""
    graph = graph_of(body, "%c0: ctx, %t: str")
    planned = PassManager(parse_pipeline(pipeline)).plan(graph)
    assert planned.graph is graph
    return set(planned.stats)


def test_an_arm_of_the_asking_prompt_has_nothing_to_prefill() -> None:
    """Its text stands behind the answer that the decision waits for."""
    body = DECISION.replace('append(%c0, "A', 'append(%f1, "A').replace('append(%c0, "T', 'append(%f1, "T')
    assert left(SHORT, body) == set()


def test_a_decision_on_an_argument_does_not_wait() -> None:
    assert left(SHORT, DECISION.replace("read(%x)", "host.call(@str, %t) {pure = true}")) == set()


def test_arms_that_do_not_pay_are_left_and_it_is_said_why() -> None:
    short = "plan-speculation.arms left: short, so they ride with what they ask"
    long = "plan-speculation.arms left: longer than the wait has free rows for"
    many = "plan-speculation.arms left: too many of one decision"
    assert left("plan-speculation", DECISION) == {short}
    assert left(SHORT, DECISION.replace("gen(%f)", "gen(%f) {max_tokens = 3}")) == {long}
    assert left(SHORT, DECISION.replace("gen(%f)", 'select(%f, "yes", "no")')) == {long}  # one pass
    assert left("plan-speculation{free_rows = 3, max_arms = 1}", DECISION) == {many}
