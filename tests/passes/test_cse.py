"""Golden tests of cse."""

from __future__ import annotations

from lmc.passes.base import Target
from tests.passes.filecheck import check, check_changes, check_unchanged


def test_equal_pure_ops_are_merged() -> None:
    check_changes("cse", """
        %c0 = ctx.new()
        %a = py.int(%essay)
      - %b = py.int(%essay) loc("judge.py":9)
        %c1 = append(%c0, "x")
      - %c2 = append(%c0, "x")
      - %u = unknown(%a, %b, %c1, %c2)
      + %u = unknown(%a, %a, %c1, %c1)
        raise(%u)
    """)  # fmt: skip


def test_what_only_python_knows_is_never_merged() -> None:
    check_unchanged("cse", """
        %a = unknown(%essay) {calls = "search"}
        %b = unknown(%essay) {calls = "search"}
        %d = py.eq(%a, %b)
        raise(%d)
    """)  # fmt: skip


def test_literals_of_other_types_are_not_equal() -> None:
    check_unchanged("cse", """
        %a = py.str(1)
        %b = py.str(true)
        %d = py.str(1.0)
        %e = py.str(0.0)
        %f = py.str(-0.0)
        %g = py.str(1) {kwargs = ["x"]}
        %u0 = unknown(%a, %b, %d, %e, %f, %g)
        raise(%u0)
    """)  # fmt: skip


def test_an_op_serves_its_own_path_only() -> None:
    check_changes("cse", """
        %p = py.eq(%essay, "a")
        switch(%p) [true -> ^a, _ -> ^b]
      ^a:
      - %q = py.eq(%essay, "a")
        %r = py.len(%essay)
      - %u0 = unknown(%q, %r)
      + %u0 = unknown(%p, %r)
        raise(%u0)
      ^b:
        %s = py.len(%essay)
        %u1 = unknown(%s)
        raise(%u1)
    """)  # fmt: skip


def test_equal_gens_at_temperature_0_are_one_call() -> None:
    """With all that follows from them; the one that stays answers for the others."""
    check("cse", """
        %c1 = append(%c0, "Judge it.")
        %c2, %x, %m1 = gen(%c1) {name = "x", stream = "/0.0", ordinal = 0, temperature = 0.0}
        %c3 = append(%c0, "Judge it.")
        %c4, %y, %m2 = gen(%c3) {name = "x", stream = "/0.1", ordinal = 0, temperature = 0, seed = 3}
        %c5, %s, %m3 = select(%c2, "a", "b") {stream = "/0.0", ordinal = 1, method = "greedy_token_selection", temperature = 0.0}
        %c6, %t, %m4 = select(%c4, "a", "b") {stream = "/0.1", ordinal = 1, method = "greedy_token_selection", temperature = 0.0}
        return(%c0x, %c6, %s, %t) {vars = ["s", "t"]}
    """.replace("temperature = 0, seed", "temperature = 0.0, seed"), """
        %c1 = append(%c0, "Judge it.")
        %c2, %x, %m1 = gen(%c1) {name = "x", stream = "/0.0", ordinal = 0, temperature = 0.0, also = [["/0.1", 0]]}
        %c5, %s, %m3 = select(%c2, "a", "b") {stream = "/0.0", ordinal = 1, method = "greedy_token_selection", temperature = 0.0, also = [["/0.1", 1]]}
        return(%c0x, %c5, %s, %s) {vars = ["s", "t"]}
    """, params="%c0: ctx, %c0x: str")  # fmt: skip


def test_samples_are_never_merged() -> None:
    """At temperature > 0, at one that only the run knows, with other parameters, on another arm: each asks for itself."""
    check_unchanged("cse", """
        %c1, %a, %m1 = gen(%c0) {stream = "/0.0", ordinal = 0, temperature = 0.7}
        %c2, %b, %m2 = gen(%c0) {stream = "/0.1", ordinal = 0, temperature = 0.7}
        %c3, %d, %m3 = gen(%c0) {stream = "/0.2", ordinal = 0}
        %c4, %e, %m4 = gen(%c0) {stream = "/0.3", ordinal = 0}
        %c5, %f, %m5 = gen(%c0, %t) {stream = "/0.4", ordinal = 0, params = ["temperature"]}
        %c6, %g, %m6 = gen(%c0, %t) {stream = "/0.5", ordinal = 0, params = ["temperature"]}
        %c7, %h, %m7 = gen(%c0) {stream = "/0.6", ordinal = 0, temperature = 0.0, max_tokens = 1}
        %c8, %i, %m8 = gen(%c0) {stream = "/0.7", ordinal = 0, temperature = 0.0, max_tokens = 2}
        %c9, %j, %m9 = gen(%c0) {name = "j", stream = "/0.8", ordinal = 0, temperature = 0.0, max_tokens = 2}
        %d1, %u, %n1 = select(%c0, "a", "b") {stream = "/1.0", ordinal = 0, temperature = 1.0}
        %d2, %v, %n2 = select(%c0, "a", "b") {stream = "/1.1", ordinal = 0, temperature = 1.0}
        switch(%t) [1.0 -> ^p, _ -> ^q]
      ^p:
        %d3, %w, %n3 = gen(%c0) {stream = "/1.2", ordinal = 0, temperature = 0.0}
        %u0 = unknown(%a, %b, %d, %e, %f, %g, %h, %i, %j, %u, %v, %w)
        raise(%u0)
      ^q:
        %d4, %y, %n4 = gen(%c0) {stream = "/1.3", ordinal = 0, temperature = 0.0}
        %u1 = unknown(%y)
        raise(%u1)
    """, params="%c0: ctx, %t: float")  # fmt: skip


def test_what_the_program_could_change_is_not_shared() -> None:
    """Meta info is an object, and so is a list of n answers."""
    check_unchanged("cse", """
        %c1, %a, %m1 = gen(%c0) {stream = "/0.0", ordinal = 0, temperature = 0.0}
        %c2, %b, %m2 = gen(%c0) {stream = "/0.1", ordinal = 0, temperature = 0.0}
        %h = unknown(%m2) {calls = "f"}
        %c3, %d, %m3 = gen(%c0) {stream = "/0.2", ordinal = 0, temperature = 0.0, top_p = 0.5}
        %c4, %e, %m4 = gen(%c0) {stream = "/0.3", ordinal = 0, temperature = 0.0, top_p = 0.5}
        %u0 = unknown(%a, %b, %m3, %m4)
        raise(%u0)
    """, params="%c0: ctx")  # fmt: skip


def test_an_ask_whose_address_is_undecided_is_not_merged() -> None:
    check_unchanged("cse", """
        %c1, %a, %m1 = gen(%c0) {stream = "", ordinal = 0, temperature = 0.0}
        %c2, %b, %m2 = gen(%c0) {stream = "", ordinal = 1, shifted = true, temperature = 0.0}
        %t = concat(%a, %b)
        return(%t, %c0)
    """, params="%c0: ctx")  # fmt: skip


def test_a_gen_without_a_temperature_takes_the_runs() -> None:
    body = """
        %c1, %a, %m1 = gen(%c0) {stream = "/0.0", ordinal = 0}
        %c2, %b, %m2 = gen(%c0) {stream = "/0.1", ordinal = 0}
        %c3, %d, %m3 = gen(%c0, %t) {stream = "/0.2", ordinal = 0, params = ["temperature"]}
        %c4, %e, %m4 = gen(%c0, %t) {stream = "/0.3", ordinal = 0, params = ["temperature"]}
        %c5, %f, %m5 = gen(%c0) {stream = "/0.4", ordinal = 0, temperature = 0.5}
        %c6, %g, %m6 = gen(%c0) {stream = "/0.5", ordinal = 0, temperature = 0.5}
        %u0 = unknown(%a, %b, %d, %e, %f, %g)
        raise(%u0)
    """
    check_unchanged("cse", body, params="%c0: ctx, %t: float")
    after = """
        %c1, %a, %m1 = gen(%c0) {stream = "/0.0", ordinal = 0, also = [["/0.1", 0]]}
        %c3, %d, %m3 = gen(%c0, %t) {stream = "/0.2", ordinal = 0, params = ["temperature"]}
        %c4, %e, %m4 = gen(%c0, %t) {stream = "/0.3", ordinal = 0, params = ["temperature"]}
        %c5, %f, %m5 = gen(%c0) {stream = "/0.4", ordinal = 0, temperature = 0.5}
        %c6, %g, %m6 = gen(%c0) {stream = "/0.5", ordinal = 0, temperature = 0.5}
        %u0 = unknown(%a, %a, %d, %e, %f, %g)
        raise(%u0)
    """
    check("cse", body, after, params="%c0: ctx, %t: float", target=Target(greedy=True))
