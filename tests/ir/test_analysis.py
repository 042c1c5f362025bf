"""Analyses against what the definitions say."""

from __future__ import annotations

from functools import cache

from hypothesis import given

from lmc.ir import Graph, Op, Value, parse
from lmc.ir.analysis import (
    answers_put,
    critical_path,
    def_use,
    dominance,
    path_to,
)
from tests.ir.graphs import graphs
from tests.searching import search

TEXT = """
graph @f(%k: bool) -> (any) {
  %c0 = ctx.new()
  %c1 = append(%c0, "shared")
  %c2, %x, %m0 = gen(%c1)
  switch(%k) [true -> ^on, false -> ^off]
^on:
  %c3 = append(%c1, "left")
  %c4, %y, %m1 = gen(%c3)
  switch(%y) ["a" -> ^deep, _ -> ^last]
^deep:
  return(%x, %c1)
^last:
  return(%y, %c4)
^off:
  return(%x, %c2)
}
"""


@cache
def forked() -> Graph:
    return parse(TEXT)


@cache
def values() -> dict[str, Value]:
    return {v.name: v for v in forked().producer}


def test_paths() -> None:
    assert path_to(forked(), "last") == ("entry", "on", "last")


def test_the_critical_path_is_the_longest_chain() -> None:
    cost, ops = critical_path(forked(), lambda op: 10.0 if op.kind == "gen" else 1.0)
    assert cost == 15 and [op.kind for op in ops] == ["ctx.new", "append", "append", "gen", "switch", "return"]


def test_what_a_decision_leads_to_waits_for_it() -> None:
    graph = parse("""
graph @f() -> (any) {
  %c0 = ctx.new()
  %c1, %x, %m0 = gen(%c0)
  switch(%x) ["a" -> ^on, _ -> ^off]
^on:
  %c2, %y, %m1 = gen(%c0)
  return(%y, %c2)
^off:
  return(none, %c0)
}
""")
    cost, _ = critical_path(graph, lambda op: 10.0 if op.kind == "gen" else 0.0)
    assert cost == 20


JOINED = parse("""
graph @f(%docs: any) -> (any) {
  %c0 = ctx.new()
  %c1, %x, %m0 = gen(%c0)
  switch(%x) ["a" -> ^on, _ -> ^off] then ^after
^on:
  %c2, %y, %m1 = gen(%c1)
  yield(%c2, %y)
^off:
  yield(%c1, "no")
^after(%c3: ctx, %v: any):
  %c4 = append(%c3, %v)
  %c5, %z, %m2 = gen(%c4)
  return(%z, %c5)
}
""")


def test_what_goes_on_behind_arms_waits_for_those_that_yield_to_it() -> None:
    cost, ops = critical_path(JOINED, lambda op: 10.0 if op.kind == "gen" else 0.0)
    assert cost == 30 and [op.kind for op in ops if op.kind in ("gen", "yield")] == ["gen", "gen", "yield", "gen"]
    assert answers_put(JOINED)[6] == (3,)


def test_asks_wait_for_the_answers_they_are_given() -> None:
    graph = parse("""
graph @f() -> (any) {
  %c0 = ctx.new()
  %c1, %x, %m0 = gen(%c0)
  %t = concat("a", %x)
  %d = append(%c0, %t)
  %d1, %y, %m1 = gen(%d)
  %d2, %z, %m2 = gen(%d1)
  return(%z, %d2)
}
""")
    assert answers_put(graph) == {0: (), 1: (), 3: (1,), 4: (), 5: ()}


def test_an_answer_in_a_prompt_is_put_where_its_text_goes_and_not_by_all_that_goes_on() -> None:
    """Ten turns that each append the last answer's text: ten edges, not fifty."""
    turns = [f"""
  %s{n}: str = ctx.text(%c{n})
  %d{n} = append(%d, %s{n})
  %c{n + 1}, %x{n}, %m{n} = gen(%d{n})""" for n in range(10)]  # fmt: skip
    graph = parse(f"graph @f(%c0: ctx, %d: ctx) -> (any) {{{''.join(turns)}\n  return(%x9, %c10)\n}}")
    assert sum(map(len, answers_put(graph).values())) == 9


@search(2, 60)
@given(graphs())
def test_ops_stand_behind_what_they_use(graph: Graph) -> None:
    seen: set[Value] = set(graph.params)
    seen.update(v for block in graph.blocks for v in block.params)
    for op in graph.ops():
        assert set(op.uses) <= seen
        seen.update(op.results)
    assert len(def_use(graph)) == len(list[Op](graph.ops()))


@search(3, 60)
@given(graphs())
def test_dominance_is_the_path(graph: Graph) -> None:
    above = dominance(graph)
    for a in graph.blocks:
        for b in graph.blocks:
            assert above(a.label, b.label) == (a.label in path_to(graph, b.label))
