"""Golden tests of cse."""

from __future__ import annotations

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


def test_effects_ordered_calls_and_gens_are_never_merged() -> None:
    check_unchanged("cse", """
        %c0 = ctx.new()
        %a = host.call(@search, %essay) {ord = 1}
        %b = host.call(@search, %essay) {ord = 1}
        %d = host.call(@json.loads, %essay) {ordered = true}
        %e = host.call(@json.loads, %essay) {ordered = true}
        %c1, %x, %m1 = gen(%c0) {temperature = 0.0}
        %c2, %y, %m2 = gen(%c0) {temperature = 0.0}
        exit(%a, %b, %d, %e, %x, %y) {id = 0}
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
