"""Golden tests of lower-constraint."""

from __future__ import annotations

import pytest

import lmc
from lmc.ir import print_graph
from lmc.passes.manager import PassManager, parse_pipeline
from tests.conformance.harness import conform
from tests.passes.filecheck import check_unchanged, graph_of

PASSES = parse_pipeline("lower-constraint")


def lowered(body: str, params: str = "%c0: ctx") -> str:
    manager = PassManager(PASSES)
    after = manager.run(graph_of(body, params))
    assert manager.run(after) is after
    return "\n".join(line.strip() for line in print_graph(after).splitlines()[2:-1])


def test_gens_with_one_text_share_one_automaton() -> None:
    text = r'"\\{\"grade\": \"[ABCD][+-]?\"\\}"'
    assert lowered(f"""
        %c1, %x, %m0 = gen(%c0) {{regex = {text}, max_tokens = 9}}
        %c2, %y, %m1 = gen(%c1) {{regex = {text}}}
        %c3, %z, %m2 = gen(%c2) {{dtype = "int"}}
        return(%y, %c3)
    """).splitlines() == [
        f"@fsm0 = fsm({text}) {{states = 16, forced = 0.81, longest = 15}}",
        '@fsm1 = fsm("[-+]?[0-9]+[ \\\\n]*") {states = 4, forced = 0.0}',
        "%c1, %x, %m0 = gen(%c0) {max_tokens = 9, constraint = @fsm0}",
        "%c2, %y, %m1 = gen(%c1) {constraint = @fsm0}",
        '%c3, %z, %m2 = gen(%c2) {dtype = "int", constraint = @fsm1}',
        "return(%y, %c3)",
    ]  # fmt: skip


def test_what_is_no_automaton_keeps_a_matcher() -> None:
    """Schemas and grammars, and a regex that is too large."""
    large = "([a-m]|[l-z]{3}){200,400}(x|[a-z]{7}){100,300}"
    assert lowered(f"""
        %c1, %x, %m0 = gen(%c0) {{json_schema = "true"}}
        %c2, %y, %m1 = gen(%c1) {{regex = "{large}"}}
        return(%y, %c2)
    """).splitlines()[:2] == ['@matcher0 = matcher("json_schema", "true")', f'@matcher1 = matcher("regex", "{large}")']  # fmt: skip


@pytest.mark.parametrize(
    "given",
    ['regex = "a(?=b)"', 'regex = "["', 'dtype = "complex"', 'regex = "a", dtype = "int"', 'params = ["regex"]'],
)
def test_what_is_refused_is_refused_where_the_program_asks(given: str) -> None:
    operand = ", %t" if "params" in given else ""
    check_unchanged(
        "lower-constraint", f"%c1, %x, %m0 = gen(%c0{operand}) {{{given}}}\nreturn(%x, %c1)", "%c0: ctx, %t: str"
    )


@pytest.mark.parametrize(
    ("regex", "longest"), [("abc", 3), ("a|bcd", 3), ("a*", None), ("[é]{2}", 4), ("(ab){2,3}c?", 7), ("", 0), (r"(?u)\\w{1,100}", None)]
)
def test_the_longest_text_is_known_when_there_is_one(regex: str, longest: int | None) -> None:
    graph = PassManager(PASSES).run(
        graph_of(f'%c1, %x, %m = gen(%c0) {{regex = "{regex}"}}\nreturn(%x, %c1)', "%c0: ctx")
    )
    assert graph.constants["fsm0"].attr("longest") == longest


@lmc.function
def constrained(s, q):
    s += q + lmc.gen("a", regex=r"[A-D][+-]?", max_tokens=20) + lmc.gen("b", dtype=int) + lmc.gen("c", dtype="bool")
    s += lmc.gen("d", json_schema='{"type": "boolean"}') + lmc.gen("e", regex=r"[A-D][+-]?", max_tokens=20)


def test_the_same_is_asked_as_without_it() -> None:
    """Constraints, stops and lengths of all calls are the interpreter's; only the hint says how short answers are."""
    program = conform(constrained, [{"q": "x"}, {"q": "y"}])
    assert program.dump_ir().count("constraint = @fsm0") == 2
