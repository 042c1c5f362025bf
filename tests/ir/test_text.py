"""The text form is exact both ways, and its errors point at the place."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmc.errors import IRError, Loc
from lmc.ir import DEFAULT, OPS, Builder, Op, Value, parse, print_graph, print_op, verify
from lmc.ir.core import Block, Graph
from tests.ir.graphs import SYMBOLS, attr_values, graphs
from tests.searching import examples, search

JUDGE = r"""// lmc ir 2
graph @judge(%essay: str) -> (any) {
  @fsm0 = fsm("\\{\"grade\": …") {states = 74, forced = 0.61}
  %c0 = ctx.new()
  %c1 = append(%c0, special("<|im_start|>"), "system\nYou grade essays.", special("<|im_end|>"), "\n", begin("user"), "Essay: ", %essay) loc("judge.py":5)
  %c2, %related, %m0 = select(%c1, "yes", "no") {name = "related"} loc("judge.py":6:4)
  %p: bool = py.eq(%related, "no")
  switch(%p) [true -> ^off, false -> ^on] then ^after {taken = [1, 12]}
^off:
  yield(%c2, "off topic")
^on:
  prefill(%c2)
  %c3, %out, %m1 = gen(%c2) {stop = ["END", "\n"], regex = "[a-z]+", temperature = 0.0, constraint = @fsm0}
  %docs = unknown(%out) {calls = "search", reason = "not in the table"}
  loop(%docs, %c3) [_ -> ^body] then ^read
^body(%c4: ctx):
  yield(%c4)
^read(%c5: ctx):
  yield(%c5, %out)
^after(%c6: ctx, %v: any):
  return(%v, %c6) {vars = []}
}
"""


@pytest.mark.search
@pytest.mark.parametrize("stage", ["traced", "planned"])
def test_parse_inverts_print(stage: str) -> None:
    seen: set[str] = set()

    @given(graphs(stage))
    @examples(6, 100)
    def check(graph: Graph) -> None:
        text = print_graph(graph)
        parsed = parse(text)
        assert parsed == graph
        assert print_graph(parsed) == text  # types of literals too: 1 == True == 1.0 for Python
        seen.update(op.kind for op in graph.ops())

    check()
    assert seen >= {kind for kind, spec in OPS.items() if stage in spec.stages} - {"raise", "video", "select", "continue", "break"}


def test_print_inverts_parse() -> None:
    graph = parse(JUDGE)
    verify(graph, "planned")
    assert print_graph(graph) == JUDGE


@search(5, 100)
@given(attr_values)
def test_attributes_survive(value: object) -> None:
    graph = _with(Op("fsm", (), (), {"a": value, "b_2": (value,)}))  # pyright: ignore[reportArgumentType]
    assert repr(dict(parse(print_graph(graph)).constants)) == repr(dict(graph.constants))


def test_a_graph_is_shown_as_its_text_where_that_can_be_written() -> None:
    assert repr(parse(JUDGE)) == JUDGE.rstrip()
    wrong = Graph("f", (), (Block("entry", (Op("fsm", (), (), {"a": object()}),), Op("return")),))  # pyright: ignore[reportArgumentType]
    assert repr(wrong).startswith("<graph @f: <object object at")


@search(5, 100)
@given(st.text())
def test_any_name_survives(name: str) -> None:
    v, label = Value("v" + name, "ctx"), "l" + name
    blocks = (
        Block(label, (Op("ctx.new", (), (v,)),), Op("switch", (1,), cases=((DEFAULT, "x" + name),))),
        Block("x" + name, (), Op("return", (None, v))),
    )
    graph = Graph("g" + name, (), blocks, constants={"s" + name: Op("fsm", (name,))})
    assert parse(print_graph(graph)) == graph


@pytest.mark.parametrize(
    "value",
    [math.inf, -math.inf, -0.0, 1e16, 5e-324, 10**40, True, 1, None, b"\x00\xff", "\ud800", "\u2028\x7f\u202e😀"],
)
def test_a_literal_survives_exactly(value: object) -> None:
    back = parse(print_graph(_with(Op("k", (value,))))).constants["k"].operands[0]  # pyright: ignore[reportArgumentType]
    assert repr(back) == repr(value) and type(back) is type(value)


def test_text_is_printable() -> None:
    line = print_op(Op("append", (Value("c", "ctx"), "tab\t nul\0 rtl\u202e nl\u2028 😀 ü")))
    assert line == r'append(%c, "tab\t nul\u0000 rtl\u202e nl\u2028 😀 ü")'


def test_what_is_no_literal_is_refused() -> None:
    with pytest.raises(IRError, match=r"\[1\] of type list is not a literal"):
        print_op(Op("append", ([1],)))  # pyright: ignore[reportArgumentType]


def test_layout_and_comments_mean_nothing() -> None:
    squeezed = re.sub(r"\n *", " ", JUDGE.split("\n", 1)[1])
    spread = JUDGE.replace("(", ' (\n // a comment, with ^off: and "quotes\n').replace("// lmc ir 2\n", "")
    assert parse(squeezed) == parse(JUDGE) == parse(spread)


ERRORS = [
    ("select(", "selct(", 6, 23, "there is no op 'selct'; did you mean select?"),
    ("%essay) loc", "%esay) loc", 5, 129, "%esay is not defined"),
    ("[true ->", "[true >", 8, 19, "found '>'; expected ')', ',', '->', ']' or '}'"),
    ("yield(%c5, %out)", "yield(%c5, )", 19, 13, "found ')'; expected a literal"),
    ("%p: bool", "%p: boolean", 7, 6, "there is no type 'boolean'; types are any, bool"),
    ("%c3, %out, %m1", "%c3, %out, %c1", 13, 13, "%c1 is defined twice"),
    ("^body(%c4: ctx)", "^body(%c3: ctx)", 16, 6, "%c3 is defined twice"),
    ("then ^read", "then read", 15, 37, "found 'read'; expected a label"),
    ('"no")\n', '"no)\n', 7, 29, "found a string that does not end on its line"),
    ("{vars = []}", "{vars = [], vars = 2}", 21, 30, "attribute vars stands twice"),
    ("{vars = []}\n}", "{vars = []}\n", 21, 29, "the text ends too early; expected"),
    ('"no")', r'"\q")', 6, 42, "not a JSON string"),
    ("{vars = []}", '{vars = bytes("0")}', 21, 32, "hexadecimal"),
    ("%p: bool", "$p: bool", 7, 2, "found '$'; expected"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "col", "message"), ERRORS)
def test_an_error_names_line_column_and_what_was_expected(
    old: str, new: str, line: int, col: int, message: str
) -> None:
    assert old in JUDGE
    bad = JUDGE.replace(old, new, 1)
    with pytest.raises(IRError) as e:
        parse(bad, "judge.lmir")
    assert e.value.loc == Loc("judge.lmir", line, col)
    assert message in e.value.message
    shown, caret = e.value.message.split("\n")[-2:]
    assert shown.strip() == bad.split("\n")[line - 1].strip()
    indent = len(bad.split("\n")[line - 1]) - len(bad.split("\n")[line - 1].lstrip())
    assert caret.index("^") == 4 + col - indent


def test_an_error_in_a_long_line_shows_the_part_around_it() -> None:
    with pytest.raises(IRError) as e:
        parse(JUDGE.replace("vars = []", "vars = " + "[" * 100_000), "judge.lmir")
    assert len(e.value.message) < 1000 and "…[[[" in e.value.message
    with pytest.raises(IRError) as e:  # at a place in what has no end
        verify(parse('graph @g() -> (any) {\n  %a: str = concat("x") loc("/dev/zero":1)\n  %c = append(%a, "x") loc("/dev/zero":1)\n  return(%c)\n}'))
    assert str(e.value).startswith("/dev/zero:1: ")
    with pytest.raises(IRError, match="lists are nested too deeply"):
        parse(JUDGE.replace("vars = []", "vars = " + "[" * 10_000 + "]" * 10_000))
    with pytest.raises(IRError, match="a number of 5000 digits is too long"):
        parse(JUDGE.replace("vars = []", "vars = " + "1" * 5000))


def test_another_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(IRError, match=r"this is IR format 1; this lmc reads format 2\. Print the graph again") as e:
        parse("// a comment\n" + JUDGE.replace("ir 2", "ir 1"), "old.lmir")
    assert e.value.loc == Loc("old.lmir", 2)


def _with(constant: Op) -> Graph:
    named = {name: Op("fsm", (name,)) for name in SYMBOLS}
    b = Builder("g", constants={**named, "k": constant})
    b.terminate("raise", ("x",))
    return b.build()
