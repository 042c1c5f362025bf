"""Golden tests of batch-forks."""

from __future__ import annotations

from lmc.passes.manager import PassManager, parse_pipeline
from tests.passes.filecheck import check, check_changes, check_unchanged, graph_of


def test_siblings_that_are_ready_together_are_a_group() -> None:
    """Each branch's first ask; what comes behind an answer that is read is not ready with them."""
    check_changes("batch-forks", """
        %f = append(%c0, "left")
      - %f1, %x, %m0 = gen(%f)
      + %f1, %x, %m0 = gen(%f) {group = [0, 2]}
        %g = append(%c0, "right", %t)
      - %g1, %y, %m1 = gen(%g)
      + %g1, %y, %m1 = gen(%g) {group = [0, 2]}
        %c2 = append(%c0, %x)
        %c3, %z, %m2 = gen(%c2)
        return(%z, %c3, %y) {vars = ["y"]}
    """, params="%c0: ctx, %t: str")  # fmt: skip


def test_equal_samples_are_ways_of_one() -> None:
    """They differ in their seeds only, which come from stream and ordinal; a seed of one's own is another request."""
    check_changes("batch-forks", """
      - %a, %x, %m0 = gen(%c0) {name = "x", stream = "/0.0", ordinal = 0, temperature = 0.7}
      + %a, %x, %m0 = gen(%c0) {name = "x", stream = "/0.0", ordinal = 0, temperature = 0.7, group = [0, 4], ways = [0, 2]}
      - %b, %y, %m1 = gen(%c0) {name = "y", stream = "/0.1", ordinal = 0, temperature = 0.7}
      + %b, %y, %m1 = gen(%c0) {name = "y", stream = "/0.1", ordinal = 0, temperature = 0.7, group = [0, 4], ways = [1, 2]}
      - %d, %z, %m2 = gen(%c0) {name = "z", stream = "/0.2", ordinal = 0, temperature = 0.8}
      + %d, %z, %m2 = gen(%c0) {name = "z", stream = "/0.2", ordinal = 0, temperature = 0.8, group = [0, 4]}
      - %e, %w, %m3 = gen(%c0) {name = "w", stream = "/0.3", ordinal = 0, temperature = 0.7, seed = 5}
      + %e, %w, %m3 = gen(%c0) {name = "w", stream = "/0.3", ordinal = 0, temperature = 0.7, seed = 5, group = [0, 4]}
        return(%x, %b)
    """, params="%c0: ctx")  # fmt: skip


def test_a_call_between_siblings_parts_them() -> None:
    """It may take long; what is only not known does not part them, nor does what they are given."""
    body = """
        %a, %x, %m0 = gen(%c0) {stream = "/0.0", ordinal = 0{0}}
        %h = unknown(%e){1}
        %b, %y, %m1 = gen(%c0, %e) {stream = "/0.1", ordinal = 0, params = ["stop"]{2}}
        return(%y, %b)
    """
    called = body.replace("{0}", "").replace("{1}", ' {calls = "tool"}').replace("{2}", "")
    check_unchanged("batch-forks", called, params="%c0: ctx, %e: any")
    known = body.replace("{1}", "")
    grouped = known.replace("{0}", ", group = [0, 2]").replace("{2}", ", group = [0, 2]")
    check("batch-forks", known.replace("{0}", "").replace("{2}", ""), grouped, params="%c0: ctx, %e: any")


def test_siblings_that_may_not_be_asked_now_are_in_no_group() -> None:
    check_unchanged("batch-forks", """
        %a, %x, %m0 = gen(%c0) {stream = "/0.0", ordinal = 0}
        %b, %y, %m1 = gen(%c0) {stream = "/0.1", ordinal = 0, lazy = true}
        %d, %z, %m2 = gen(%c0) {stream = "", ordinal = 3, shifted = true}
        return(%x, %b)
    """, params="%c0: ctx")  # fmt: skip


def test_what_goes_on_behind_arms_waits_for_what_they_yield() -> None:
    check_changes("batch-forks", """
        switch(%k) [true -> ^a, _ -> ^b] then ^on
      ^a:
        %f, %v, %m0 = gen(%c0)
        yield(%v)
      ^b:
        yield("no")
      ^on(%w: str):
      - %d1, %x, %m1 = gen(%c0)
      - %d2, %y, %m2 = gen(%c0)
      + %d1, %x, %m1 = gen(%c0) {group = [0, 2], ways = [0, 2]}
      + %d2, %y, %m2 = gen(%c0) {group = [0, 2], ways = [1, 2]}
        %e = append(%c0, %w)
        %e1, %z, %m3 = gen(%e)
        return(%z, %e1, %x, %y) {vars = ["x", "y"]}
    """, params="%c0: ctx, %k: bool")  # fmt: skip


def test_the_next_level_of_a_tree_is_a_group_for_each_branch() -> None:
    check_changes("batch-forks", """
      - %a, %x, %m0 = gen(%c0)
      - %b, %y, %m1 = gen(%c0)
      - %a1, %p, %m2 = gen(%a)
      - %a2, %q, %m3 = gen(%a)
      + %a, %x, %m0 = gen(%c0) {group = [0, 2], ways = [0, 2]}
      + %b, %y, %m1 = gen(%c0) {group = [0, 2], ways = [1, 2]}
      + %a1, %p, %m2 = gen(%a) {group = [1, 2], ways = [0, 2]}
      + %a2, %q, %m3 = gen(%a) {group = [1, 2], ways = [1, 2]}
        %b1, %r, %m4 = gen(%b)
        return(%x, %b)
    """, params="%c0: ctx")  # fmt: skip


def test_arms_of_a_decision_are_no_siblings() -> None:
    check_unchanged("batch-forks", """
        switch(%k) [true -> ^a, _ -> ^b]
      ^a:
        %c2, %x, %m0 = gen(%c0)
        return(%x, %c2)
      ^b:
        %c3, %y, %m1 = gen(%c0)
        return(%y, %c3)
    """, params="%c0: ctx, %k: bool")  # fmt: skip


def test_programs_that_begin_alike_are_siblings_and_others_are_not() -> None:
    """Three sub-programs, two with the same beginning, which cse has made one."""
    check_changes("cse,batch-forks", """
        %c0 = ctx.new()
        %a = append(%c0, "Translate: ")
      + %a1, %x, %m0 = gen(%a) {group = [0, 2], ways = [0, 2]}
      + %b1, %y, %m1 = gen(%a) {group = [0, 2], ways = [1, 2]}
      - %a1, %x, %m0 = gen(%a)
      - %d0 = ctx.new()
      - %b = append(%d0, "Translate: ")
      - %b1, %y, %m1 = gen(%b)
      - %e0 = ctx.new()
      - %c = append(%e0, "Sum up: ")
      + %c = append(%c0, "Sum up: ")
        %c1, %z, %m2 = gen(%c)
        return(%x, %b1)
    """)  # fmt: skip


def test_a_select_is_scored_as_a_trie_when_there_is_a_choice() -> None:
    check_changes("batch-forks", """
      - %c1, %x, %m0 = select(%c0, "yes", "no")
      + %c1, %x, %m0 = select(%c0, "yes", "no") {trie = true}
        %c2, %y, %m1 = select(%c1, "yes")
        return(%x, %c2)
    """, params="%c0: ctx")  # fmt: skip


def test_it_counts() -> None:
    graph = graph_of(
        '%a, %x, %m = gen(%c0)\n%b, %y, %n = gen(%c0)\n%d, %z, %o = select(%c0, "a", "b")\nreturn(%x, %b)', "%c0: ctx"
    )
    planned = PassManager(parse_pipeline("batch-forks")).plan(graph)
    assert planned.stats == {
        "batch-forks.groups": 1,
        "batch-forks.asks in groups": 3,
        "batch-forks.n-way samples": 1,
        "batch-forks.selects as a trie": 1,
    }
