"""Building and rewriting: fresh names, blocks in any order, the same object when nothing changed."""

from __future__ import annotations

import pytest
from hypothesis import given

from lmc.errors import IRError, Loc
from lmc.ir import DEFAULT, Builder, Graph, Op, Rewriter, Value, parse, print_graph, rewrite
from tests.ir.graphs import graphs
from tests.searching import search


def test_names_come_from_types_and_hints() -> None:
    b = Builder("judge", [Value("essay", "str")])
    (c0,) = b.emit("ctx.new")
    c1, related, meta = b.emit("select", (c0, "yes", "no"), {"name": "related"})
    _, again, _ = b.emit("select", (c1, "yes", "no"), {"name": "related"})
    _, odd, _ = b.emit("gen", (c1,), {"name": "my name!"})
    (p,) = b.emit("py.eq", (again, "no"), types=["bool"])
    assert [v.name for v in (c0, c1, related, meta, again, odd, p)] == [
        "c0",
        "c1",
        "related",
        "m",
        "related.1",
        "my_name",
        "p0",
    ]
    assert b.value("str", "essay").name == "essay.1"


def test_blocks_are_filled_in_any_order_and_stand_after_their_predecessor() -> None:
    b = Builder("f", [Value("k", "bool")])
    on, off = b.label("on"), b.label("off")
    b.terminate("switch", b.params, cases=((True, on), (False, off)))
    b.at(off)
    b.terminate("raise", ("x",))
    b.at(on)
    deep = b.label("on")
    b.terminate("switch", ("k",), cases=((DEFAULT, deep),))
    b.at(deep)
    b.terminate("raise", ("y",))
    assert [block.label for block in b.build().blocks] == ["entry", "on", "on.1", "off"]


def test_what_goes_on_behind_arms_stands_behind_them() -> None:
    b = Builder("f", [Value("k", "bool"), Value("c", "ctx")])
    on, off, after = b.label("on"), b.label("off"), b.label("after")
    b.terminate("switch", b.params[:1], cases=((True, on), (DEFAULT, off)), then=after)
    b.at(after)
    joined = b.block_param("ctx", after)
    b.terminate("return", (None, joined))
    for label in (on, off):
        b.at(label)
        b.terminate("yield", (b.params[1],))
    graph = b.build()
    assert [block.label for block in graph.blocks] == ["entry", "on", "off", "after"]
    assert "^after(%c0: ctx):" in print_graph(graph)


def test_a_closed_block_takes_nothing_and_an_open_one_is_missed() -> None:
    b = Builder("f")
    with pytest.raises(IRError, match=r"block .entry of @f has no terminator"):
        b.build()
    b.terminate("raise", ("x",))
    with pytest.raises(IRError, match="already has its terminator") as e:
        b.emit("ctx.new", loc=Loc("judge.py", 3))
    assert e.value.loc == Loc("judge.py", 3)


def test_what_is_built_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    from lmc import config as _  # noqa: F401
    from lmc.config import reset

    def build() -> Graph:
        b = Builder("f")
        b.emit("append", ("no prompt",))
        b.terminate("raise", ("x",))
        return b.build()

    with pytest.raises(IRError, match="wants a ctx there"):
        build()
    monkeypatch.setenv("LMC_VERIFY", "0")
    reset()
    try:
        assert build().name == "f"
    finally:
        monkeypatch.undo()
        reset()


@search(3, 60)
@given(graphs())
def test_a_rewrite_that_changes_nothing_gives_the_same_object(graph: Graph) -> None:
    assert rewrite(graph, lambda op, _: None) is graph
    assert rewrite(graph, lambda op, _: (op,)) is graph


def test_a_rewrite_rebuilds_only_what_changed() -> None:
    graph = parse("""graph @f(%k: bool) -> (any) {
      %c0 = ctx.new()
      %c1 = append(%c0)
      %c2 = append(%c1)
      switch(%k) [true -> ^a, _ -> ^b]
    ^a:
      return(none, %c2)
    ^b:
      raise(%k)
    }""")

    def drop(op: Op, rewriter: Rewriter):
        if op.kind != "append":
            return None
        rewriter.replace(op.results[0], op.operands[0])
        return ()

    after = rewrite(graph, drop)
    assert "return(none, %c0)" in print_graph(after) and "append" not in print_graph(after)
    assert after.block["b"] is graph.block["b"] and after.block["a"] is not graph.block["a"]


def test_fresh_names_of_a_rewrite_are_not_in_the_graph() -> None:
    graph = parse("graph @f(%c0: ctx) -> (any) {\n  %c1 = append(%c0)\n  return(none, %c1)\n}")
    assert [Rewriter(graph).fresh("ctx").name, Rewriter(graph).fresh("ctx", "c1").name] == ["c2", "c1.1"]
