"""Golden IR tests: run a pipeline on IR text and compare the body with the expected text, line by line."""

from __future__ import annotations

from textwrap import dedent

from lmc.ir import Graph, parse, print_graph, verify
from lmc.passes.base import Target
from lmc.passes.manager import PassManager, parse_pipeline, stage_of


def graph_of(body: str, params: str = "%essay: str") -> Graph:
    """A verified graph from the text of its blocks."""
    graph = parse(f"graph @f({params}) -> (any) {{\n{dedent(body)}\n}}")
    verify(graph, stage_of(graph))
    return graph


def body_of(graph: Graph) -> str:
    """The text of a graph's blocks, without header and indentation of ops."""
    lines = print_graph(graph).splitlines()[2:-1]
    return "\n".join(line.strip() for line in lines)


def check(pipeline: str, before: str, after: str, params: str = "%essay: str", target: Target | None = None) -> None:
    """The pipeline turns `before` into exactly `after`; a second run gives the same object."""
    manager = PassManager(parse_pipeline(pipeline))
    got = manager.run(graph_of(before, params), target)
    verify(got, stage_of(got))
    expected = "\n".join(line.strip() for line in dedent(after).strip().splitlines())
    assert body_of(got) == expected
    if "lower" not in pipeline:
        assert manager.run(got, target) is got


def check_changes(pipeline: str, text: str, params: str = "%essay: str") -> None:
    """The same for text in which `- ` marks the lines that the pipeline takes away, and `+ ` those that it adds."""
    lines = [line.strip() for line in text.strip().splitlines()]
    before, after = ("\n".join(line.removeprefix(kept) for line in lines if not line.startswith(other)) for kept, other in (("- ", "+ "), ("+ ", "- ")))
    check(pipeline, before, after, params)


def check_unchanged(pipeline: str, before: str, params: str = "%essay: str") -> None:
    """The pipeline gives the same object."""
    graph = graph_of(before, params)
    assert PassManager(parse_pipeline(pipeline)).run(graph) is graph
