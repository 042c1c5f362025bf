"""Each rule of the IR has a graph that breaks it, and the error says where."""

from __future__ import annotations

import pytest
from hypothesis import given

from lmc.errors import IRError, Loc
from lmc.ir import Block, Graph, Op, Value, parse, verify
from tests.ir.graphs import graphs
from tests.searching import search

BROKEN = [
    ("%c1 = append(%x)", "operand 0 is %x: str; append wants a ctx there"),
    ("%c1 = append(%c, 1)", "operand 1 is 1; append wants text there"),
    ("%c1 = append(%c, %c)", "operand 1 is %c: ctx; append wants text there"),
    ('%c1 = append(%c, "a") {x = 1}', "append has no attribute 'x'"),
    ("%c1, %v, %m = gen(%c) {max_token = 1}", "gen has no attribute 'max_token'; did you mean max_tokens?"),
    ("%c1, %v, %m = gen(%c, 1)", "1 operands after the prompt, but attribute params names 0"),
    ('%c1, %v, %m = gen(%c, 1) {params = ["heat"]}', "names 'heat', which is not a parameter of gen"),
    ('%c1, %v, %m = gen(%c, 1) {params = ["top_p"], top_p = 1}', "top_p is given twice"),
    ("%c1, %v, %m = select(%c)", "select has no choices"),
    ("%c1, %v = gen(%c)", "gen has 3 results, not 2"),
    ("%c1: str = ctx.new()", "result %c1 is str; ctx.new gives ctx there"),
    ("%v: ctx = py.f()", "result %v is ctx; py.f gives any there"),
    ("%c1 = ctx.new(%c)", "ctx.new takes 0 operands, not 1"),
    ("prefill()", "prefill is not allowed in a traced graph"),
    ("role.end()", "role.end takes 1 operands, not 0"),
    ('%v = py.f(%x) {kwargs = ["a", "b"]}', "attribute kwargs names more arguments than there are operands"),
    ("%v = unknown(@f)", "operand 0 is Symbol(name='f')"),
    ("%c1, %v, %m = gen(%c) {constraint = @nowhere}", "@nowhere is not a constant of the graph"),
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
    ("switch(%x) [true -> ^a, false -> ^a]", "^a is named twice, by ^entry and ^entry"),
    ("switch(%x) [true -> ^a] then ^a", "^a is named twice, by ^entry and ^entry"),
    ("switch(%x) [true -> ^a, false -> ^nowhere]", "^entry goes to ^nowhere, which does not exist"),
    ("switch(%x) [true -> ^a, false -> ^entry]", "^entry goes to the entry ^entry"),
    ("switch(%x) [true -> ^a]", "block ^b is not reached from a block before it"),
    ("switch(%x) [true -> ^a, false -> ^b] {taken = [1]}", "attribute taken is not 2 counts"),
    ("raise(%x) [true -> ^a, false -> ^b]", "raise names blocks; only switch and loop do"),
    ("loop(%x) [true -> ^a] then ^b", "a loop has one case, _, which is its body"),
    ("loop(%x) [_ -> ^a, false -> ^b]", "a loop has one case, _, which is its body"),
    ("loop(%x, 1) [_ -> ^a] then ^b", "the loop gives ^a 1 values, which has 0 parameters"),
    ("yield(%x)", "yield stands in no arm and no loop"),
    ("break()", "break stands in no loop"),
    ("%c = ctx.new()", "the block ends with ctx.new, which is not a terminator"),
    ('return(%x, %x) {vars = ["a"]}', "operand 1 is %x: str; return wants a ctx there"),
]  # fmt: skip


@pytest.mark.parametrize(("end", "message"), ENDS)
def test_a_block_that_ends_wrongly(end: str, message: str) -> None:
    arms = "^a:\n raise(%x)\n^b:\n raise(%x)\n" if "^a" in end else ""
    with pytest.raises(IRError) as e:
        verify(parse(f"graph @f(%x: str) -> (any) {{\n {end}\n{arms}}}"))
    assert message in e.value.message


YIELDS = [
    ("yield()", "yield gives ^after 0 values, which has 1 parameters"),
    ("yield(%x)", "yield gives ^after %x: str for %p: ctx"),
    ("continue(%c)", "continue stands in no loop"),
]


@pytest.mark.parametrize(("end", "message"), YIELDS)
def test_what_an_arm_yields_fits_what_goes_on(end: str, message: str) -> None:
    with pytest.raises(IRError) as e:
        verify(parse(f"""graph @f(%x: str, %c: ctx) -> (any) {{
            switch(%x) ["a" -> ^a, _ -> ^b] then ^after
          ^a:
            {end}
          ^b:
            raise(%x)
          ^after(%p: ctx):
            return(none, %p)
        }}"""))
    assert message in e.value.message


def test_an_arm_that_nothing_goes_on_behind_yields_nothing() -> None:
    with pytest.raises(IRError, match=r"yield in an arm of a switch without continuation \(\^entry has no `then`\)"):
        verify(parse("graph @f(%x: str) -> (any) {\n switch(%x) [_ -> ^a]\n^a:\n yield()\n}"))


def test_only_what_goes_on_has_parameters() -> None:
    with pytest.raises(IRError, match=r"block \^a: only a block after `then`, or of a loop, has parameters"):
        verify(parse("graph @f(%x: str) -> (any) {\n switch(%x) [_ -> ^a]\n^a(%c: ctx):\n raise(%x)\n}"))


@pytest.mark.parametrize("user", ["b", "after"])
def test_a_value_of_an_arm_is_used_in_it_only(user: str) -> None:
    uses = {label: "raise(%v)" if label == user else "raise(%k)" for label in ("b", "after")}
    graph = parse(f"""graph @f(%k: bool) -> (any) {{
        switch(%k) [true -> ^a, false -> ^b] then ^after
      ^a:
        %v = unknown()
        yield()
      ^b:
        {uses["b"]}
      ^after:
        {uses["after"]}
    }}""")
    with pytest.raises(IRError, match=rf"block \^{user}, op 0: %v is defined in \^a, which does not dominate \^{user}"):
        verify(graph)


def test_a_turn_goes_back_to_the_body_and_on_behind_the_loop() -> None:
    graph = parse("""graph @f(%docs: any, %c: ctx) -> (any) {
        loop(%docs, %c) [_ -> ^body] then ^after
      ^body(%c1: ctx):
        %d = unknown(%docs)
        switch(%d) ["stop" -> ^stop, _ -> ^on] then ^more
      ^stop:
        break(%c1)
      ^on:
        %c2 = append(%c1, %d)
        yield(%c2)
      ^more(%c3: ctx):
        yield(%c3)
      ^after(%c4: ctx):
        return(none, %c4)
    }""")
    verify(graph)
    fed = {param.name: [v.name for v in given] for param, given in graph.feeds.items()}
    assert fed == {"c1": ["c", "c3"], "c3": ["c2"], "c4": ["c", "c1", "c3"]}
    assert graph.region == {"entry": "", "body": "entry", "stop": "body", "on": "body", "more": "entry", "after": ""}
    assert graph.loop_around("on") == "entry" and graph.loop_around("after") is None


def test_a_return_names_the_value_of_each_variable() -> None:
    graph = parse('graph @f(%c: ctx) -> (any) {\n return(none, %c) {vars = ["x"]}\n}')
    with pytest.raises(IRError, match="0 operands after the prompt, but 1 variables"):
        verify(graph)


def test_values_are_defined_once_before_their_use_and_with_one_type() -> None:
    c, x, end = Value("c", "ctx"), Value("x", "str"), Op("raise", (None,))
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


def test_roles_are_for_traced_graphs() -> None:
    graph = parse('graph @f(%c: ctx) -> (any) {\n %d = role.end(%c) {role = "user"}\n raise(none)\n}')
    verify(graph, "traced")
    with pytest.raises(IRError, match=r"role\.end is not allowed in a planned graph"):
        verify(graph, "planned")


@search(3, 60)
@given(graphs(), graphs("planned"))
def test_generated_graphs_are_valid(traced: Graph, planned: Graph) -> None:
    verify(traced, "traced")
    verify(planned, "planned")
