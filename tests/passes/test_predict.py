"""Predictions of a planned graph: each prompt is computed by the first op that needs it on a path."""

from __future__ import annotations

from dataclasses import replace

from lmc.ir.analysis import critical_path
from lmc.passes.base import CHARACTERS, Measure, Target
from lmc.passes.manager import PassManager, parse_pipeline
from lmc.passes.predict import Cost, predict
from tests.passes.filecheck import graph_of

BODY = """
    %c0 = ctx.new()
    %c1 = append(%c0, "0123456789", %essay)
    %f = append(%c1, "abcd")
    %f1, %x, %m0 = gen(%f) {max_tokens = 7}
    %g = append(%c1, "efg")
    %g1, %y, %m1 = gen(%g) {regex = "[A-D]", max_tokens = 50}
    %g2, %z, %m2 = select(%g1, "yes", "yet")
    return(%z, %c1)
"""


def test_costs_of_forks() -> None:
    graph = PassManager(parse_pipeline("lower-constraint,plan-prefix{min_chars = 64},batch-forks")).run(graph_of(BODY))
    expected = predict(graph, replace(CHARACTERS, unknown=100))
    costs = {op.results[1].name if op.results else op.kind: expected[i] for i, op in enumerate(graph.ops()) if i in expected}
    assert costs == {
        "prefill": Cost(computed=110),
        "x": Cost(computed=4, shared=110, answer=7, group=(0, 2)),
        "y": Cost(computed=3, shared=110, answer=2, group=(0, 2)),
        "z": Cost(computed=0, shared=113 + 4 * 2, scored=4),
    }
    assert costs["x"].passes == 8


def test_costs_are_tokens_where_the_tokenizer_is_known() -> None:
    """Text by the target's tokenizer, a special token as one, an answer as it is."""
    target = Target(tokens=lambda text: len(text.split()))
    graph = graph_of("""
        %c1 = append(%c0, special("<|im_start|>"), "one two three ", %essay)
        %c2, %x, %m0 = gen(%c1) {max_tokens = 7}
        %c3, %y, %m1 = select(%c2, "it is so", "it is not")
        return(%y, %c3)
    """, "%c0: ctx, %essay: str")  # fmt: skip
    assert target.measure.unit == "tokens"
    assert list(predict(graph, replace(target.measure, unknown=9)).values()) == [
        Cost(computed=9 + 1 + 3 + 9, answer=7),
        Cost(shared=9 + 1 + 3 + 9 + 7, scored=4),
    ]


def test_what_one_arm_computes_is_not_there_in_the_other() -> None:
    graph = graph_of("""
        %c1 = append(%c0, "0123456789")
        switch(%k) [true -> ^a, _ -> ^b]
      ^a:
        %c2, %x, %m0 = gen(%c1)
        return(%x, %c2)
      ^b:
        %c3, %y, %m1 = gen(%c1)
        return(%y, %c3)
    """, "%c0: ctx, %k: bool")  # fmt: skip
    assert [cost.computed for cost in predict(graph, Measure("characters", len, 4, 5, 4)).values()] == [15, 15]


def test_the_critical_path_adds_up_passes() -> None:
    graph = graph_of(BODY)
    costs = predict(graph)
    passes = {id(op): costs[i].passes if i in costs else 0.0 for i, op in enumerate(graph.ops())}
    total, chain = critical_path(graph, lambda op: passes[id(op)])
    assert total == 1 + 50 + 1 and [op.results[1].name for op in chain if id(op) in passes and passes[id(op)]] == [
        "y",
        "z",
    ]
