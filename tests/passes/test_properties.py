"""Every pass and the pipelines keep what is observable, on random graphs and a model that is a hash; planted bugs are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from lmc.errors import IRError
from lmc.ir import Graph, Op, parse, print_graph, rewrite, trait, verify
from lmc.ir.builder import with_attrs
from lmc.passes.base import Pass, PassContext, Target
from lmc.passes.manager import PassManager, interface, parse_pipeline, pipeline_for, stage_of
from tests.ir.graphs import graphs
from tests.passes.evaluate import evaluate
from tests.passes.shrink import shrunk
from tests.searching import apart, examples, some

slow = examples(2, 60)
PIPELINES = [
    "canonicalize",
    "cse",
    "dce",
    "lower-chat",
    "lower-chat,plan-prefix",
    "lower-chat,plan-prefix{min_chars = 1}",
    "batch-forks",
    "lower-constraint",
    "canonicalize,lower-chat,canonicalize,cse,dce,canonicalize,lower-constraint,plan-speculation,plan-prefix{min_chars = 4},batch-forks",
]


def keeps_meaning(passes: Sequence[Pass], graph: Graph, seed: int) -> None:
    """The pipeline's result is valid, shows the same, asks nothing new, and is a fixpoint."""
    planned = PassManager(passes).run(graph)
    verify(planned, stage_of(planned))
    assert interface(planned) == interface(graph)
    before, after = evaluate(graph, seed), evaluate(planned, seed)
    assert after.observable == before.observable, print_graph(planned)
    assert after.asked <= before.asked


@some("pipeline", PIPELINES, 4)
def test_a_pass_keeps_what_is_observable(pipeline: str) -> None:
    passes = parse_pipeline(pipeline)

    @given(graphs(), st.integers(0, 3))
    @slow
    def check(graph: Graph, seed: int) -> None:
        keeps_meaning(passes, graph, seed)

    check()


@pytest.mark.search
@pytest.mark.parametrize("kind", ["tokens", "chat"])
def test_a_pipeline_is_a_fixpoint(kind: str) -> None:
    manager = PassManager(pipeline_for(Target(kind)))

    @given(graphs())
    @slow
    def check(graph: Graph) -> None:
        once = manager.run(graph)
        assert manager.run(once) == once

    check()


@pytest.mark.search
@slow
@given(graphs(), st.integers(0, 3))
def test_outputs_keep_the_wanted_variables(graph: Graph, seed: int) -> None:
    """Value, wanted variables and what unknown code is handed are the same."""
    narrowed = PassManager(pipeline_for(Target(), outputs=["x"])).run(graph)
    before, after = evaluate(graph, seed, outputs=("x",)), evaluate(narrowed, seed, outputs=("x",))
    assert after.asked <= before.asked
    assert after.observable == before.observable


@pytest.mark.search
@slow
@given(graphs(), st.integers(0, 3))
def test_prefills_serve_two_asks_of_one_path(graph: Graph, seed: int) -> None:
    """A prompt prefilled for a fork is extended by at least two branches, or by one in a loop."""
    planned = PassManager(parse_pipeline("lower-chat,plan-prefix{min_chars = 1}")).run(graph)
    for op in planned.ops():
        if op.kind == "prefill" and op.attr("scope") is None:
            (prompt,) = op.uses
            branches = [u for u in planned.users[prompt] if u.kind not in ("prefill", "release")]
            assert len(branches) >= 2 or any(b.terminator.kind == "loop" for b in planned.blocks)


# -- planted bugs ------------------------------------------------------------------------------------------------------


def _drop(wrong):
    return lambda graph: rewrite(graph, lambda op, _: () if _unused(graph, op) and wrong(op) else None)


def _unused(graph: Graph, op: Op) -> bool:
    return trait(op) != "terminator" and not any(v in graph.users for v in op.results)


def _merge_samples(graph: Graph) -> Graph:
    seen: dict[object, Op] = {}

    def rule(op, rewriter):
        if op.kind != "gen":
            return None
        first = seen.setdefault((rewriter.label, op.operands[0]), op)  # as if two samples of one prompt were the same
        if first is not op:
            for old, new in zip(op.results, first.results, strict=True):
                rewriter.replace(old, new)
            return ()
        return None

    return rewrite(graph, rule)


def _drop_text(graph: Graph) -> Graph:
    def rule(op, _):
        if op.kind == "append" and len(op.operands) > 2 and isinstance(op.operands[-1], str):
            return (Op(op.kind, op.operands[:-1], op.results),)
        return None

    return rewrite(graph, rule)


def _all_lazy(graph: Graph) -> Graph:
    return rewrite(graph, lambda op, _: None if op.kind != "gen" or op.attr("lazy") else (with_attrs(op, {**op.attrs, "lazy": True}),))


BUGS = {
    "erases unknown code": _drop(lambda op: trait(op) == "opaque"),
    "merges samples": _merge_samples,
    "loses a text": _drop_text,
    "makes every gen lazy": _all_lazy,
}


@dataclass(frozen=True)
class Planted(Pass):
    name: ClassVar[str] = "planted"
    bug: str = ""

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return BUGS[self.bug](graph)


FORKS = """graph @f(%essay: str) -> (any) {
  %c0 = ctx.new()
  %c1 = append(%c0, "Essay: ", %essay, " Judge it.")
  %c2, %x, %m0 = gen(%c1) {name = "x", stream = "/0.0", ordinal = 0}
  %c3, %y, %m1 = gen(%c1) {name = "y", stream = "/0.1", ordinal = 0}
  switch(%x) ["no" -> ^on, _ -> ^off]
^on:
  return(%x, %c2, %y) {vars = ["y"]}
^off:
  return(%y, %c3)
}"""


def broken_by(bug: str, graph: Graph) -> bool:
    """Whether the property above fails for the planted pass on this graph, with some model."""
    for seed in range(2):
        try:
            keeps_meaning([Planted(bug)], graph, seed)
        except Exception:
            return True
    return False


@apart
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_and_shrunk(bug: str) -> None:
    """On random graphs by the property above; what is left of them is a handful of ops that show the bug."""
    found = find(
        graphs(),
        lambda graph: broken_by(bug, graph),
        settings=settings(slow, max_examples=1000, database=None, phases=[Phase.generate]),
        random=Random(bug),
    )
    smallest = shrunk(found, lambda graph: broken_by(bug, graph))
    assert sum(1 for _ in smallest.ops()) <= 8, print_graph(smallest)  # a join of two arms is three of them


def test_a_failing_pass_leaves_a_reproducer_of_the_shrunk_graph() -> None:
    """The file's first line is the command that fails; the graph in it is the one the pass was given."""
    smallest = shrunk(parse(FORKS), lambda graph: any(op.kind == "gen" for op in graph.ops()))
    with pytest.raises(IRError, match="reproduce with: lmc opt") as e:
        PassManager([Planted("no such bug")]).run(smallest)
    path = e.value.message.split("lmc opt ")[1].split()[0]
    assert parse(Path(path).read_text()) == smallest


@pytest.mark.search
@slow
@given(graphs(), st.integers(0, 3))
def test_no_bug_is_found_where_none_is(graph: Graph, seed: int) -> None:
    keeps_meaning(pipeline_for(Target()), graph, seed)
