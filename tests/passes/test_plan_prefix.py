"""Golden tests of plan-prefix."""

from __future__ import annotations

import pytest

from lmc.errors import ProgramError
from lmc.passes.manager import PassManager, parse_pipeline
from tests.passes.filecheck import check, check_changes, check_unchanged, graph_of

PLAN = "plan-prefix{min_chars = 8}"


def test_the_constant_beginning_is_cut_off_and_prefilled_for_the_program() -> None:
    check_changes(PLAN, """
        %c0 = ctx.new()
      - %c1 = append(%c0, special("<s>"), "You grade essays: ", %essay, "\\n")
      + %c3 = append(%c0, special("<s>"), "You grade essays: ")
      + prefill(%c3) {scope = "program"}
      + %c1 = append(%c3, %essay, "\\n")
        %c2, %x, %m = gen(%c1)
        return(%x, %c2)
    """)  # fmt: skip


def test_a_short_beginning_is_not_worth_it() -> None:
    check_unchanged(PLAN, """
        %c0 = ctx.new()
        %c1 = append(%c0, "Essay: ", %essay)
        %c2, %x, %m = gen(%c1)
        return(%x, %c2)
    """)  # fmt: skip


def test_a_prompt_from_which_one_gen_goes_out_is_not_prefilled() -> None:
    check_unchanged(PLAN, """
        %c1 = append(%c0, "text that goes on twice")
        %c2 = append(%c1, "no gen behind it")
        %c3, %x, %m = gen(%c1)
        return(%x, %c2)
    """, params="%c0: ctx")  # fmt: skip


def test_a_fork_point_is_prefilled_once_and_released_after_its_last_ask() -> None:
    check_changes(PLAN, """
        %c1 = append(%c0, "text that forks share")
      + prefill(%c1)
        %f = append(%c1, "left")
        %f1, %x, %m0 = gen(%f)
        %g = append(%c1, "right")
        %c2 = append(%c1, %x, "!")
        %g1, %y, %m1 = gen(%g)
      + release(%c1)
        %h = unknown(%y) {calls = "print"}
        return(%x, %c2)
    """, params="%c0: ctx")  # fmt: skip


def test_each_path_prefills_and_releases_for_itself() -> None:
    """^off has one gen and prefills nothing; ^on releases in both of its arms, where one needs the prompt longer."""
    check_changes(PLAN, """
        %c1 = append(%c0, "text that forks share")
        switch(%k) [true -> ^off, _ -> ^on]
      ^off:
        %c2, %x, %m0 = gen(%c1)
        return(%x, %c2)
      ^on:
      + prefill(%c1)
        %c3, %y, %m1 = gen(%c1)
        switch(%y) ["a" -> ^a, _ -> ^b]
      ^a:
        %c4, %z, %m2 = gen(%c1)
      + release(%c1)
        return(%z, %c4)
      ^b:
      + release(%c1)
        return(%y, %c3)
    """, params="%c0: ctx, %k: bool")  # fmt: skip


def test_what_arms_and_what_goes_on_share_is_released_behind() -> None:
    check_changes(PLAN, """
        %c1 = append(%c0, "text that forks share")
      + prefill(%c1)
        switch(%k) [true -> ^a, _ -> ^b] then ^on
      ^a:
        %c2, %x, %m0 = gen(%c1)
        yield(%x)
      ^b:
        yield("no")
      ^on(%v: str):
        %c3 = append(%c1, %v)
        %c4, %y, %m1 = gen(%c3)
      + release(%c1)
        return(%y, %c4)
    """, params="%c0: ctx, %k: bool")  # fmt: skip


def test_what_each_turn_of_a_loop_goes_on_from_is_prefilled_before_it() -> None:
    check_changes(PLAN, """
        %c1 = append(%c0, "text that turns share")
      + prefill(%c1)
        loop(%docs) [_ -> ^body] then ^after
      ^body:
        %d = unknown(%docs) {reason = "an item"}
        %c2 = append(%c1, %d)
        %c3, %x, %m0 = gen(%c2)
        %u = unknown(%x) {calls = "list.append"}
        yield()
      ^after:
      + release(%c1)
        return(none, %c0)
    """, params="%c0: ctx, %docs: any")  # fmt: skip


def test_asks_that_nobody_is_known_to_read_share_nothing() -> None:
    check_unchanged(PLAN, """
        %c1 = append(%c0, "text that forks share")
        %c2, %x, %m0 = gen(%c1)
        %c3, %y, %m1 = gen(%c1) {lazy = true}
        return(%x, %c2)
    """, params="%c0: ctx")  # fmt: skip


def test_arms_are_alternatives_and_share_nothing() -> None:
    check_unchanged(PLAN, """
        %c1 = append(%c0, "text that arms share")
        switch(%k) [true -> ^a, _ -> ^b]
      ^a:
        %c2, %x, %m0 = gen(%c1)
        return(%x, %c2)
      ^b:
        %c3, %y, %m1 = gen(%c1)
        return(%y, %c3)
    """, params="%c0: ctx, %k: bool")  # fmt: skip


def test_text_that_siblings_begin_with_becomes_a_fork_point() -> None:
    check_changes(PLAN, """
        %c1, %s, %m = gen(%c0)
      - %f = append(%c1, special("<u>"), "Judge its clarity.")
      + %c2 = append(%c1, special("<u>"), "Judge its ")
      + prefill(%c2)
      + %f = append(%c2, "clarity.")
        %f1, %x, %m0 = gen(%f)
      - %g = append(%c1, special("<u>"), "Judge its evidence.")
      + %g = append(%c2, "evidence.")
        %g1, %y, %m1 = gen(%g)
      + release(%c2)
        %h = append(%c1, special("<u>"), "Sum up: ", %x, %y)
        %h1, %z, %m2 = gen(%h)
        return(%z, %h1)
    """, params="%c0: ctx")  # fmt: skip


def test_nested_forks_are_prefilled_outside_in() -> None:
    check_changes(PLAN, """
        %c1 = append(%c0, "outer text")
      + prefill(%c1)
        %c2 = append(%c1, "inner text")
      + prefill(%c2)
        %d1, %x, %m0 = gen(%c2)
        %d2, %y, %m1 = gen(%c2)
      + release(%c2)
        %d3, %z, %m2 = gen(%c1)
      + release(%c1)
        return(%x, %d3)
    """, params="%c0: ctx")  # fmt: skip


def test_it_says_what_it_expects_to_share() -> None:
    graph = graph_of("""
        %c0 = ctx.new()
        %c1 = append(%c0, "0123456789")
        %c2 = append(%c1, %essay, "9876543210")
        %d1, %x, %m0 = gen(%c2)
        %d2, %y, %m1 = gen(%c2)
        %d3, %z, %m2 = gen(%c2)
        return(%x, %d3)
    """)
    planned = PassManager(parse_pipeline("plan-prefix{min_chars = 8, unknown_chars = 100}")).plan(graph)
    assert planned.stats == {
        "plan-prefix.program prefixes": 1,
        "plan-prefix.characters shared by runs": 10,
        "plan-prefix.prefills": 1,
        "plan-prefix.characters shared by forks": 220,
    }


def test_roles_have_to_be_lowered_before() -> None:
    graph = graph_of('%c1 = role.end(%c0) {role = "user"} loc("judge.py":7)\nreturn(none, %c1)', params="%c0: ctx")
    with pytest.raises(
        ProgramError, match=r"plan-prefix needs a graph without role\.end; put lower-chat before it"
    ) as e:
        PassManager(parse_pipeline(PLAN)).run(graph)
    assert e.value.loc is not None and e.value.loc.line == 7


def test_text_after_a_pin_does_not_count_again() -> None:
    check_changes(PLAN, """
        %c1 = append(%c0, "outer text")
      + prefill(%c1)
        %c2 = append(%c1, "abc")
        %c3 = append(%c2, "def")
        %d1, %x, %m0 = gen(%c3)
        %d2, %y, %m1 = gen(%c3)
        %d3, %z, %m2 = gen(%c1)
      + release(%c1)
        return(%x, %d3)
    """, params="%c0: ctx")  # fmt: skip


def test_text_before_a_continuation_counts() -> None:
    """The forks of a loop that was entered before this graph share the prompt it brings, whatever that is."""
    check_changes(PLAN, """
        %c1 = append(%c0, special("<a>"))
      + prefill(%c1)
        %d1, %x, %m0 = gen(%c1)
        %d2, %y, %m1 = gen(%c1)
      + release(%c1)
        return(%x, %d2)
    """, params="%c0: ctx")  # fmt: skip


def test_text_that_may_be_empty_is_not_prefilled_alone() -> None:
    check_unchanged(PLAN, """
        %c1 = append(%c0, %t)
        %d1, %x, %m0 = gen(%c1)
        %d2, %y, %m1 = gen(%c1)
        return(%x, %d2)
    """, params="%c0: ctx, %t: str")  # fmt: skip


def test_asks_are_visited_depth_first() -> None:
    """The program asks level by level; a cache that holds one path at a time wants branch by branch."""
    check_changes(PLAN, """
      - %a1, %x, %m0 = gen(%c0)
      + %a1, %x, %m0 = gen(%c0) {order = 0}
      - %b1, %y, %m1 = gen(%c0)
      + %b1, %y, %m1 = gen(%c0) {order = 2}
      - %a2, %z, %m2 = gen(%a1)
      + %a2, %z, %m2 = gen(%a1) {order = 1}
      - %b2, %w, %m3 = gen(%b1)
      + %b2, %w, %m3 = gen(%b1) {order = 3}
        return(%z, %b2)
    """, params="%c0: ctx")  # fmt: skip


def test_the_order_stays_within_what_can_be_asked() -> None:
    """Nothing behind a decision is visited before it; a block that is depth first already says nothing."""
    check_unchanged(PLAN, """
        %a1, %x, %m0 = gen(%c0)
        %b1, %y, %m1 = gen(%c0)
        switch(%x) ["a" -> ^a, _ -> ^b]
      ^a:
        %a2, %z, %m2 = gen(%a1)
        return(%z, %a2)
      ^b:
        %b2, %w, %m3 = gen(%b1)
        return(%w, %b2)
    """, params="%c0: ctx")  # fmt: skip


def test_a_loop_that_forks_at_every_step_pins_each_step() -> None:
    """Until the first asks of every branch are out, also of the branch that is the loop itself."""
    text = "".join(
        f"""
        %c{i + 1} = append(%c{i}, "step {i} of many")
        %d{i}, %x{i}, %m{i} = gen(%c{i + 1})"""
        for i in range(2)
    )
    check(PLAN, f"{text}\n%d9, %x9, %m9 = gen(%c2)\nreturn(none, %d9)", """
        %c1 = append(%c0, "step 0 of many")
        prefill(%c1)
        %d0, %x0, %m0 = gen(%c1)
        %c2 = append(%c1, "step 1 of many")
        prefill(%c2)
        %d1, %x1, %m1 = gen(%c2)
        %d9, %x9, %m9 = gen(%c2)
        release(%c1)
        release(%c2)
        return(none, %d9)
    """, params="%c0: ctx")  # fmt: skip
