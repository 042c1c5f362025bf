"""Golden tests of dce."""

from __future__ import annotations

from tests.passes.filecheck import check, check_unchanged


def test_a_fork_that_nobody_reads_is_removed() -> None:
    check("dce", """
        %c0 = ctx.new()
        %c1 = append(%c0, "shared")
        %f = append(%c1, "unread")
        %f1, %x, %m0 = gen(%f)
        %f2 = append(%f1, "and on")
        %f3, %y, %m1 = select(%f2, "a", "b")
        %c2, %z, %m2 = gen(%c1)
        return(%z, %c2)
    """, """
        %c0 = ctx.new()
        %c1 = append(%c0, "shared")
        %c2, %z, %m2 = gen(%c1)
        return(%z, %c2)
    """)  # fmt: skip


def test_what_can_raise_and_what_acts_stays() -> None:
    check_unchanged("dce", """
        %c0 = ctx.new()
        %c1, %x, %m = gen(%c0)
        %a = read(%x)
        %n = host.call(@int, "7") {pure = true}
        %e = host.call(@charge) {ord = 1}
        %o = host.call(@list.append, %e, 1) {ordered = true, ord = 2}
        return(none, %c0)
    """)  # fmt: skip


def test_a_total_pure_call_goes_and_with_it_what_only_it_used() -> None:
    check("dce", """
        %c0 = ctx.new()
        %c1, %x, %m = gen(%c0)
        %t = concat("a", %x)
        %p = host.call(@eq, %t, "a") {pure = true, total = true}
        return(none, %c0)
    """, """
        %c0 = ctx.new()
        return(none, %c0)
    """)  # fmt: skip


def test_what_a_gen_is_given_is_read_and_checked_though_nobody_reads_the_answer() -> None:
    check("dce", """
        %c0 = ctx.new()
        %e = host.call(@load) {ord = 1}
        %stop = given(%e) {params = ["stop"], ord = 2}
        %c1, %x, %m = gen(%c0, %stop) {params = ["stop"]}
        return(none, %c0)
    """, """
        %c0 = ctx.new()
        %e = host.call(@load) {ord = 1}
        %stop = given(%e) {params = ["stop"], ord = 2}
        return(none, %c0)
    """)  # fmt: skip


def test_a_gen_that_a_run_may_refuse_stays() -> None:
    check_unchanged("dce", """
        %c0 = ctx.new()
        %c1, %x, %m = gen(%c0) {min_tokens = 9}
        return(none, %c0)
    """)  # fmt: skip


def test_what_an_exit_names_is_used() -> None:
    check_unchanged("dce", """
        %c0 = ctx.new()
        %c1, %x, %m = gen(%c0)
        exit(%m) {id = 0}
    """)  # fmt: skip


JUDGED = """
    %c0 = ctx.new()
    %c1, %x, %m0 = gen(%c0)
    %c2, %y, %m1 = gen(%c1)
    %r = read(%y)
    %c3, %z, %m2 = gen(%c0)
    return("done", %c2, %x, %m0, %y, %m1, %z, %m2) {vars = ["x", "y", "z"]}
"""


def test_outputs_remove_the_gens_that_they_do_not_need() -> None:
    check('dce{outputs = ["x"]}', JUDGED, """
        %c0 = ctx.new()
        %c1, %x, %m0 = gen(%c0)
        return("done", %c0, %x, %m0, none, none, none, none) {vars = ["x", "y", "z"], outputs = ["x"]}
    """)  # fmt: skip


def test_outputs_keep_the_gens_before_a_wanted_one() -> None:
    check('dce{outputs = ["y"]}', JUDGED, """
        %c0 = ctx.new()
        %c1, %x, %m0 = gen(%c0)
        %c2, %y, %m1 = gen(%c1)
        return("done", %c0, none, none, %y, %m1, none, none) {vars = ["x", "y", "z"], outputs = ["y"]}
    """)  # fmt: skip
