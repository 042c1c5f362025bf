"""The picture of the prompts: every prompt is in one box, and no two boxes touch."""

from __future__ import annotations

from hypothesis import given

from lmc.ir import Builder, Graph
from lmc.ir.layout import HEIGHT, WIDTH, GraphLayout, picture
from tests.ir.graphs import graphs
from tests.searching import search


def apart(drawn: GraphLayout) -> bool:
    """Whether no two boxes overlap, and all lie inside of the picture."""
    steps = sorted(drawn.steps, key=lambda s: s.y)
    for i, a in enumerate(steps):
        if not (0 <= a.x <= drawn.width - WIDTH and 0 <= a.y <= drawn.height - HEIGHT):
            return False
        for b in steps[i + 1 :]:
            if b.y >= a.y + HEIGHT:
                break
            if abs(a.x - b.x) < WIDTH:
                return False
    return True


def forked(width: int, depth: int) -> Graph:
    """`width` chains of `depth` answers, all behind one."""
    b = Builder("g", [])
    (start,) = b.emit("ctx.new")
    start, *_ = b.emit("gen", (start,), {"name": "first", "stream": "", "ordinal": 0})
    for i in range(width):
        at = start
        for j in range(depth):
            (at,) = b.emit("append", (at, f"{i} {j}"))
            at, *_ = b.emit("gen", (at,), {"name": "x", "stream": f"/0.{i}", "ordinal": j})
    b.terminate("return", (None, start), {"vars": ()})
    return b.build()


@search(3, 60)
@given(graphs())
def test_boxes_of_any_graph_are_apart_and_hold_each_prompt_once(graph: Graph) -> None:
    drawn = picture(graph)
    assert apart(drawn)
    held = sorted(i for step in drawn.steps for i in step.ops)
    assert held == [i for i, op in enumerate(graph.ops()) if any(v.type == "ctx" for v in op.results)]


def test_500_ops_are_apart_in_any_shape() -> None:
    for width, depth in ((1, 250), (250, 1), (40, 6), (6, 40)):
        drawn = picture(forked(width, depth))
        assert apart(drawn) and len(drawn.steps) == 1 + width * depth


def test_a_long_chain_goes_down_and_a_wide_fork_goes_to_the_right() -> None:
    assert picture(forked(1, 50)).down and not picture(forked(50, 1)).down
    assert picture(forked(1, 50)).width < 2 * WIDTH > 0


def test_a_small_picture_is_centred_and_a_large_one_begins_at_the_top() -> None:
    small, large = picture(forked(3, 1)), picture(forked(50, 1))
    assert small.roots[0].y == small.roots[0].children[1].y
    assert large.roots[0].y == min(step.y for step in large.steps)
