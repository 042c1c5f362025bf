"""Golden tests of cse."""

from __future__ import annotations

from lmc.passes.manager import Target
from tests.passes.filecheck import check, check_unchanged


def test_equal_pure_ops_are_merged_even_if_they_can_raise() -> None:
    check("cse", """
        %c0 = ctx.new()
        %a = host.call(@int, %essay) {pure = true}
        %b = host.call(@int, %essay) {pure = true} loc("judge.py":9)
        %c1 = append(%c0, "x")
        %c2 = append(%c0, "x")
        exit(%a, %b, %c1, %c2) {id = 0}
    """, """
        %c0 = ctx.new()
        %a = host.call(@int, %essay) {pure = true}
        %c1 = append(%c0, "x")
        exit(%a, %a, %c1, %c1) {id = 0}
    """)  # fmt: skip


def test_two_reads_of_one_answer_are_one() -> None:
    check("cse", """
        %c0 = ctx.new()
        %c1, %x, %m = gen(%c0)
        %a = read(%x)
        %b = read(%x)
        return(%b, %c1)
    """, """
        %c0 = ctx.new()
        %c1, %x, %m = gen(%c0)
        %a = read(%x)
        return(%a, %c1)
    """)  # fmt: skip


def test_effects_and_ordered_calls_are_never_merged() -> None:
    check_unchanged("cse", """
        %c0 = ctx.new()
        %a = host.call(@search, %essay) {ord = 1}
        %b = host.call(@search, %essay) {ord = 1}
        %d = host.call(@json.loads, %essay) {ordered = true}
        %e = host.call(@json.loads, %essay) {ordered = true}
        exit(%a, %b, %d, %e) {id = 0}
    """)  # fmt: skip


def test_literals_of_other_types_are_not_equal() -> None:
    check_unchanged("cse", """
        %a = host.call(@str, 1) {pure = true}
        %b = host.call(@str, true) {pure = true}
        %d = host.call(@str, 1.0) {pure = true}
        %e = host.call(@str, 0.0) {pure = true}
        %f = host.call(@str, -0.0) {pure = true}
        %g = host.call(@str, 1) {pure = true, kwargs = ["x"]}
        exit(%a, %b, %d, %e, %f, %g) {id = 0}
    """)  # fmt: skip


def test_an_op_serves_its_own_path_only() -> None:
    check("cse", """
        %p = host.call(@eq, %essay, "a") {pure = true}
        switch(%p) [true -> ^a, _ -> ^b]
      ^a:
        %q = host.call(@eq, %essay, "a") {pure = true}
        %r = host.call(@len, %essay) {pure = true}
        exit(%q, %r) {id = 0}
      ^b:
        %s = host.call(@len, %essay) {pure = true}
        exit(%s) {id = 1}
    """, """
        %p = host.call(@eq, %essay, "a") {pure = true}
        switch(%p) [true -> ^a, _ -> ^b]
        ^a:
        %r = host.call(@len, %essay) {pure = true}
        exit(%p, %r) {id = 0}
        ^b:
        %s = host.call(@len, %essay) {pure = true}
        exit(%s) {id = 1}
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
        return(%c0x, %c6, %s, %m3, %t, %m4) {vars = ["s", "t"]}
    """.replace("temperature = 0, seed", "temperature = 0.0, seed"), """
        %c1 = append(%c0, "Judge it.")
        %c2, %x, %m1 = gen(%c1) {name = "x", stream = "/0.0", ordinal = 0, temperature = 0.0, also = [["/0.1", 0]]}
        %c5, %s, %m3 = select(%c2, "a", "b") {stream = "/0.0", ordinal = 1, method = "greedy_token_selection", temperature = 0.0, also = [["/0.1", 1]]}
        return(%c0x, %c5, %s, %m3, %s, %m3) {vars = ["s", "t"]}
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
        exit(%a, %b, %d, %e, %f, %g, %h, %i, %j, %u, %v, %w) {id = 0}
      ^q:
        %d4, %y, %n4 = gen(%c0) {stream = "/1.3", ordinal = 0, temperature = 0.0}
        exit(%y) {id = 1}
    """, params="%c0: ctx, %t: float")  # fmt: skip


def test_what_the_program_could_change_is_not_shared() -> None:
    """Meta info is an object, and so is a list of n answers."""
    check_unchanged("cse", """
        %c1, %a, %m1 = gen(%c0) {stream = "/0.0", ordinal = 0, temperature = 0.0}
        %c2, %b, %m2 = gen(%c0) {stream = "/0.1", ordinal = 0, temperature = 0.0}
        %r = read(%m2)
        %h = host.call(@f, %r) {ord = 1}
        %c3, %d, %m3 = gen(%c0) {stream = "/0.2", ordinal = 0, temperature = 0.0, top_p = 0.5}
        %c4, %e, %m4 = gen(%c0) {stream = "/0.3", ordinal = 0, temperature = 0.0, top_p = 0.5}
        exit(%a, %b, %m3, %m4) {id = 0}
    """, params="%c0: ctx")  # fmt: skip


def test_a_gen_without_a_temperature_takes_the_runs() -> None:
    body = """
        %c1, %a, %m1 = gen(%c0) {stream = "/0.0", ordinal = 0}
        %c2, %b, %m2 = gen(%c0) {stream = "/0.1", ordinal = 0}
        %c3, %d, %m3 = gen(%c0, %t) {stream = "/0.2", ordinal = 0, params = ["temperature"]}
        %c4, %e, %m4 = gen(%c0, %t) {stream = "/0.3", ordinal = 0, params = ["temperature"]}
        %c5, %f, %m5 = gen(%c0) {stream = "/0.4", ordinal = 0, temperature = 0.5}
        %c6, %g, %m6 = gen(%c0) {stream = "/0.5", ordinal = 0, temperature = 0.5}
        exit(%a, %b, %d, %e, %f, %g) {id = 0}
    """
    check_unchanged("cse", body, params="%c0: ctx, %t: float")
    after = """
        %c1, %a, %m1 = gen(%c0) {stream = "/0.0", ordinal = 0, also = [["/0.1", 0]]}
        %c3, %d, %m3 = gen(%c0, %t) {stream = "/0.2", ordinal = 0, params = ["temperature"]}
        %c4, %e, %m4 = gen(%c0, %t) {stream = "/0.3", ordinal = 0, params = ["temperature"]}
        %c5, %f, %m5 = gen(%c0) {stream = "/0.4", ordinal = 0, temperature = 0.5}
        %c6, %g, %m6 = gen(%c0) {stream = "/0.5", ordinal = 0, temperature = 0.5}
        exit(%a, %a, %d, %e, %f, %g) {id = 0}
    """
    check("cse", body, after, params="%c0: ctx, %t: float", target=Target(greedy=True))
