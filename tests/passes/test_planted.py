"""Faults planted in the passes themselves, not in stand-ins for them: the property that holds passes finds each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, find, settings

from lmc.ir import Graph, parse, print_graph
from lmc.ir.ops import trait
from lmc.passes import canonicalize, cse, dce, lower_chat, plan_prefix
from lmc.passes.manager import parse_pipeline
from tests.ir.graphs import graphs
from tests.passes.shrink import shrunk
from tests.passes.test_properties import keeps_meaning, slow
from tests.searching import apart


@dataclass(frozen=True)
class Fault:
    """A function of a pass's module, what stands in for it, and the pipeline that shows it.

    written  a graph that it acts on, where random ones hardly ever hold one
    """

    module: Any
    name: str
    wrong: Callable[..., Any]
    pipeline: str
    written: str = ""


SIBLINGS = """graph @f(%essay: str) -> (any) {
  %c0 = ctx.new()
  %c1 = append(%c0, "Essay: ", %essay)
  %a = append(%c1, "Judge its clarity.")
  %a1, %x, %m0 = gen(%a) {name = "x", stream = "/0.0", ordinal = 0}
  %b = append(%c1, "Judge its evidence.")
  %b1, %y, %m1 = gen(%b) {name = "y", stream = "/0.1", ordinal = 0}
  %t = concat(%x, %y)
  return(%t, %c1)
}"""
_TEXT = plan_prefix._common_text
_PARTS = lower_chat._parts
_JOINED = canonicalize._joined

FAULTS: Mapping[str, Fault] = {
    "cse merges samples": Fault(cse, "_is_greedy", lambda op, greedy: True, "cse"),
    "dce takes what is read for dead": Fault(dce, "_is_needed", lambda op, graph, needed: False, "dce"),
    "dce erases what Python reads": Fault(dce, "_reads_nothing", lambda op: trait(op) != "terminator", "dce"),
    "canonicalize loses the last text": Fault(canonicalize, "_joined", lambda parts: _JOINED(parts)[:1], "canonicalize"),
    "lower-chat forgets how a message ends": Fault(
        lower_chat, "_parts", lambda op, template: _PARTS(op, template) if op.kind == "role.begin" else (), "lower-chat"
    ),
    "plan-prefix cuts off what siblings do not share": Fault(
        plan_prefix, "_common_text", lambda texts: _TEXT(texts) and min(texts), "plan-prefix{min_chars = 1}", SIBLINGS
    ),
}  # fmt: skip


def shows(graph: Graph, pipeline: str) -> bool:
    for seed in range(2):
        try:
            keeps_meaning(parse_pipeline(pipeline), graph, seed)
        except Exception:
            return True
    return False


@apart
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_pass_is_found_and_shrunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    monkeypatch.setattr(fault.module, fault.name, fault.wrong)
    found = parse(fault.written) if fault.written else find(
        graphs(),
        lambda graph: shows(graph, fault.pipeline),
        settings=settings(slow, max_examples=3000, database=None, phases=[Phase.generate]),
        random=Random(name),
    )  # fmt: skip
    assert shows(found, fault.pipeline)
    smallest = shrunk(found, lambda graph: shows(graph, fault.pipeline))
    assert sum(1 for _ in smallest.ops()) <= 9, print_graph(smallest)
    monkeypatch.undo()
    assert not shows(found, fault.pipeline)
