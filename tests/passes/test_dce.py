"""Golden tests of dce."""

from __future__ import annotations

from tests.passes.filecheck import check, check_changes, check_unchanged


def test_a_fork_that_nobody_reads_is_asked_when_it_is_read() -> None:
    check_changes("dce", """
        %c0 = ctx.new()
        %c1 = append(%c0, "shared")
        %f = append(%c1, "unread")
      - %f1, %x, %m0 = gen(%f)
      + %f1, %x, %m0 = gen(%f) {lazy = true}
        %f2 = append(%f1, "and on")
      - %f3, %y, %m1 = select(%f2, "a", "b")
      + %f3, %y, %m1 = select(%f2, "a", "b") {lazy = true}
      - %f4 = append(%f3, "never asked")
        %c2, %z, %m2 = gen(%c1)
        return(%z, %c2)
    """)  # fmt: skip


def test_what_is_read_for_whatever_reason_is_needed() -> None:
    """In a test, by a function whose result nobody uses, by unknown code, as meta info, as text of the prompt, joined."""
    check_unchanged("dce", """
        %c0 = ctx.new()
        %c1, %a, %m1 = gen(%c0)
        %c2, %b, %m2 = gen(%c0)
        %c3, %d, %m3 = gen(%c0)
        %c4, %e, %m4 = gen(%c0)
        %c5, %f, %m5 = gen(%c0)
        %c6, %g, %m6 = gen(%c0)
        %n = py.int(%b)
        %u = unknown(%d) {calls = "charge"}
        %s = py.getitem(%m4, "id")
        %t = ctx.text(%c5)
        switch(%a) ["x" -> ^x, _ -> ^y]
      ^x:
        return(none, %c0, %g) {vars = ["g"]}
      ^y:
        raise("x")
    """)  # fmt: skip


def test_a_prompt_that_unknown_code_has_is_needed() -> None:
    check_unchanged("dce", """
        %c0 = ctx.new()
        %c1, %x, %m = gen(%c0)
        %u = unknown(%c1) {calls = "helper"}
        return(none, %c0)
    """)  # fmt: skip


def test_what_goes_on_behind_arms_decides_whether_they_are_needed() -> None:
    arms = """
        switch(%k) [true -> ^on, _ -> ^off] then ^after
      ^on:
        %c1, %x, %m0 = gen(%c0){lazy}
        yield(%c1)
      ^off:
        yield(%c0)
      ^after(%c2: ctx):
        return(none, {returned})
    """
    for returned, lazy in (("%c2", ""), ("%c0", " {lazy = true}")):
        before = arms.replace("{returned}", returned)
        check("dce", before.replace("{lazy}", ""), before.replace("{lazy}", lazy), params="%c0: ctx, %k: bool")


def test_a_turn_that_the_next_turn_goes_on_from_is_needed() -> None:
    check_unchanged("dce", """
        loop(%docs, %c0) [_ -> ^body] then ^after
      ^body(%c1: ctx):
        %c2, %x, %m0 = gen(%c1)
        %c3, %y, %m1 = gen(%c2)
        %c4 = append(%c0, %y)
        yield(%c3)
      ^after(%c5: ctx):
        %c6, %z, %m2 = gen(%c5)
        return(%z, %c0)
    """, params="%c0: ctx, %docs: any")  # fmt: skip


def test_an_ask_that_is_needed_after_all_is_lazy_no_more() -> None:
    check_changes("dce", """
      - %c1, %x, %m = gen(%c0) {lazy = true}
      + %c1, %x, %m = gen(%c0)
        return(%x, %c0)
    """, params="%c0: ctx")  # fmt: skip


JUDGED = """
    %c0 = ctx.new()
    %c1, %x, %m0 = gen(%c0)
    %c2, %y, %m1 = gen(%c1)
    %c3, %z, %m2 = gen(%c0)
    return("done", %c2, %x, %y, %z) {vars = ["x", "y", "z"]}
"""


def test_outputs_make_lazy_what_they_do_not_need() -> None:
    check('dce{outputs = ["x"]}', JUDGED, """
        %c0 = ctx.new()
        %c1, %x, %m0 = gen(%c0)
        %c2, %y, %m1 = gen(%c1) {lazy = true}
        %c3, %z, %m2 = gen(%c0) {lazy = true}
        return("done", %c0, %x, none, none) {vars = ["x", "y", "z"], outputs = ["x"]}
    """)  # fmt: skip


def test_outputs_keep_the_gens_before_a_wanted_one() -> None:
    check('dce{outputs = ["y"]}', JUDGED, """
        %c0 = ctx.new()
        %c1, %x, %m0 = gen(%c0)
        %c2, %y, %m1 = gen(%c1)
        %c3, %z, %m2 = gen(%c0) {lazy = true}
        return("done", %c0, none, %y, none) {vars = ["x", "y", "z"], outputs = ["y"]}
    """)  # fmt: skip
