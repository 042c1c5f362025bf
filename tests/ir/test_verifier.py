"""Each rule of the IR has a graph that breaks it, and the error says where."""

from __future__ import annotations

import pytest
from hypothesis import given

from lmc.errors import IRError, Loc
from lmc.ir import Block, Graph, Op, Symbol, Value, parse, verify
from tests.ir.graphs import graphs
from tests.searching import search

BROKEN = [
    ("%c1 = append(%x)", "operand 0 is %x: str; append wants a ctx there"),
    ("%c1 = append(%c, 1)", "operand 1 is 1; append wants text there"),
    ("%c1 = append(%c, %c)", "operand 1 is %c: ctx; append wants text there"),
    ('%c1 = append(%c, "a") {x = 1}', "append has no attribute 'x'"),
    ("%c1, %v, %m = gen(%c) {max_token = 1}", "gen has no attribute 'max_token'; did you mean max_tokens?"),
    ("%c1, %v, %m = gen(%c, 1)", "1 operands after the prompt, but attribute params names 0"),
    ('%c1, %v, %m = gen(%c, 1) {params = ["heat"]}', "names 'heat', which is no parameter of gen"),
    ('%c1, %v, %m = gen(%c, 1) {params = ["top_p"], top_p = 1}', "top_p is given twice"),
    ("%c1, %v, %m = select(%c)", "select has no choices"),
    ("%c1, %v = gen(%c)", "gen has 3 results, not 2"),
    ("%c1: str = ctx.new()", "result %c1 is str; ctx.new gives ctx there"),
    ("%v: ctx = host.call(@f)", "result %v is ctx; host.call gives any there"),
    ("%c1 = ctx.new(%c)", "ctx.new takes 0 operands, not 1"),
    ("%v = host.call()", "host.call takes 1 or more operands, not 0"),
    ("%v = host.call(%x)", "operand 0 is %x: str; host.call wants a literal or a symbol there"),
    ("%v = host.call(@f) {pure = true, ordered = true}", "pure or ordered, not both"),
    ('%v = host.call(@f) {kwargs = ["a"]}', "attribute kwargs names more arguments than there are operands"),
    ("%c1 = role.begin(%c) {role = 1}", "attribute role is missing or not a string"),
    ("prefill(%c)", "prefill is not allowed in a traced graph (only passes make it)"),
    ("raise(%x)", "raise is a terminator in the middle of a block"),
    ("%t = ctx.slice(%c, %d)", "%d: ctx is not an ancestor of %c: ctx"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), BROKEN)
def test_an_op_that_breaks_a_rule(line: str, message: str) -> None:
    graph = parse(f"""graph @judge(%x: str) -> (any) {{
        %d = ctx.new()
        %c = ctx.new()
        {line} loc("judge.py":7:2)
        raise("x")
    }}""")
    with pytest.raises(IRError) as e:
        verify(graph)
    assert message in e.value.message
    assert "graph @judge, block ^entry, op 2: " in e.value.message and "\n    in  " + line in e.value.message
    assert e.value.loc == Loc("judge.py", 7, 2)


ENDS = [
    ("switch(%x)", "switch has no cases"),
    ('switch(%x) ["a" -> ^a, "a" -> ^b]', "case 'a' stands twice"),
    ("switch(%x) [_ -> ^a, true -> ^b]", "the case _ is not the last one"),
    ("switch(%x) [true -> ^a, false -> ^a]", "^a has two predecessors, ^entry and ^entry"),
    ("switch(%x) [true -> ^a, false -> ^nowhere]", "^entry goes to ^nowhere, which does not exist"),
    ("switch(%x) [true -> ^a, false -> ^entry]", "^entry goes to the entry ^entry"),
    ("switch(%x) [true -> ^a]", "block ^b is not reached from a block before it"),
    ("raise(%x) [true -> ^a, false -> ^b]", "raise has cases; only switch does"),
    ("%c = ctx.new()", "the block ends with ctx.new, which is not a terminator"),
    ('return(%x, %x) {vars = ["a"]}', "operand 1 is %x: str; return wants a ctx there"),
    ('exit(%x)', "attribute id is missing or not an integer"),
]  # fmt: skip


@pytest.mark.parametrize(("end", "message"), ENDS)
def test_a_block_that_ends_wrongly(end: str, message: str) -> None:
    arms = "^a:\n exit(%x) {id = 0}\n^b:\n exit(%x) {id = 1}\n" if "^a" in end else ""
    with pytest.raises(IRError) as e:
        verify(parse(f"graph @f(%x: str) -> (any) {{\n {end}\n{arms}}}"))
    assert message in e.value.message


def test_a_value_is_used_on_its_own_path_only() -> None:
    graph = parse("""graph @f(%k: bool) -> (any) {
        switch(%k) [true -> ^a, false -> ^b]
      ^a:
        %v = host.call(@f)
        exit(%v) {id = 0}
      ^b:
        exit(%v) {id = 1}
    }""")
    with pytest.raises(IRError, match=r"block \^b, op 0: %v is defined in \^a, which is not on the path to \^b"):
        verify(graph)


def test_exit_ids_are_unique() -> None:
    graph = parse(
        "graph @f(%k: bool) -> (any) {\n switch(%k) [true -> ^a, _ -> ^b]\n^a:\n exit() {id = 1}\n^b:\n exit() {id = 1}\n}"
    )
    with pytest.raises(IRError, match="exit id 1 stands twice"):
        verify(graph)


def test_a_return_names_value_and_meta_of_each_variable() -> None:
    graph = parse('graph @f(%c: ctx) -> (any) {\n return(none, %c, "v") {vars = ["x"]}\n}')
    with pytest.raises(IRError, match="1 operands after the prompt, but 1 variables"):
        verify(graph)


def test_values_are_defined_once_before_their_use_and_with_one_type() -> None:
    c, x, end = Value("c", "ctx"), Value("x", "str"), Op("exit", (), (), {"id": 0})
    new, text = Op("ctx.new", (), (c,)), Op("ctx.text", (c,), (x,))

    def broken(*ops: Op) -> str:
        with pytest.raises(IRError) as e:
            verify(Graph("f", (), (Block("entry", ops, end),)))
        return e.value.message

    assert "%c is defined twice" in broken(new, new)
    assert "%c is used before it is defined" in broken(text, new)
    assert "%c is not defined" in broken(text)
    assert "%c is used as str and defined as ctx" in broken(new, Op("concat", (Value("c", "str"),), (x,)))
    assert "there is no op 'appendix'; did you mean append?" in broken(Op("appendix"))
    assert "attribute name holds [1]" in broken(new, Op("gen", (c,), (), {"name": [1]}))  # pyright: ignore[reportArgumentType]


def test_symbols_resolve_where_there_are_any() -> None:
    op = Op("host.call", (Symbol("f"),), (Value("v", "any"),))
    block = Block("entry", (op,), Op("exit", (), (), {"id": 0}))
    verify(Graph("g", (), (block,)))
    verify(Graph("g", (), (block,), symbols={"f": len}))
    verify(Graph("g", (), (block,), symbols={"x": 1}, constants={"f": Op("fsm")}))
    with pytest.raises(IRError, match="@f is neither a symbol nor a constant"):
        verify(Graph("g", (), (block,), symbols={"g": len}))


def test_roles_are_for_traced_graphs() -> None:
    graph = parse('graph @f(%c: ctx) -> (any) {\n %d = role.end(%c) {role = "user"}\n exit(%d) {id = 0}\n}')
    verify(graph, "traced")
    with pytest.raises(IRError, match=r"role\.end is not allowed in a planned graph"):
        verify(graph, "planned")


@search(3, 60)
@given(graphs(), graphs("planned"))
def test_generated_graphs_are_valid(traced: Graph, planned: Graph) -> None:
    verify(traced, "traced")
    verify(planned, "planned")
