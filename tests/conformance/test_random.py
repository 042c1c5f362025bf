"""Random programs mean the same in every execution, and a planted fault in tracer, executor or replay is found.

`LMC_PROGRAMS=5000 pytest tests/conformance/test_random.py` looks at that many other programs.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from lmc.frontend.hooks import ReplayMode
from lmc.frontend.trace_state import TraceEmitter
from lmc.frontend.tracer import TraceMode
from lmc.frontend.tree import Tree
from lmc.ir.core import Block, Graph

from . import outside
from .harness import conform
from .programs import HEAD, compiled, sources

MORE = int(os.environ.get("LMC_PROGRAMS", "0"))
ITEMS: list[dict[str, Any]] = [{"q": "a", "xs": ["u"]}, {"q": "bee gee", "xs": []}]


def check(source: str) -> None:
    opt = len(source) % 2
    conform(compiled(source), ITEMS, opts=(opt,), reset=outside.reset, outside=outside.look, batch=False, temperature=0.8)


@settings(max_examples=MORE or 150, derandomize=not MORE, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(sources())
def test_random_programs(source: str):
    check(source)


# -- planted faults -------------------------------------------------------------------------------------------------------

PROBE = HEAD + """
    limit = outside.LIMIT
    effect("first", q)
    effect("second", q)
    for g in s.fork(2):
        g += tool(q) + lmc.gen("x", max_tokens=3)
        L.append(g)
    v, w = L[0]["x"], L[1]["x"]
    outside.set_limit(9)
    s += v + lmc.gen("y", max_tokens=3)
    if "a" in s["y"]:
        w += "has a"
    else:
        w += "none"
    n = LEAVE
    effect("after", w, limit)
    return v, w
"""


def probe(end: str) -> None:
    """`end` says whether the interpreter goes on near the end, which is right whatever was captured before."""
    conform(compiled(PROBE.replace("LEAVE", end)), [{"q": str(i), "xs": []} for i in range(4)], reset=outside.reset, outside=outside.look, batch=False, temperature=0.8)


def freeze(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(TraceMode, "truth", lambda self, a: True)


def drop(plant: pytest.MonkeyPatch) -> None:
    def without(self: TraceMode, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return None if isinstance(args[0], str) and args[0] == "second" else real(self, fn, args, kwargs)

    real = TraceMode.effect
    plant.setattr(TraceMode, "effect", without)


def reorder(plant: pytest.MonkeyPatch) -> None:
    def swapped(self: Tree, *args: Any) -> Graph:
        graph = real(self, *args)
        blocks: list[Block] = []
        for block in graph.blocks:
            ops = list(block.ops)
            for i, (a, b) in enumerate(itertools.pairwise(block.ops)):
                if a.operands[1:2] == ("first",) and b.operands[1:2] == ("second",):
                    ops[i : i + 2] = b, a
            blocks.append(Block(block.label, tuple(ops), block.terminator))
        return replace(graph, blocks=tuple(blocks))

    real = Tree.graph
    plant.setattr(Tree, "graph", swapped)


def siblings(plant: pytest.MonkeyPatch) -> None:
    real = TraceEmitter.gen
    plant.setattr(TraceEmitter, "gen", lambda self, ctx, expr, stream, ordinal: real(self, ctx, expr, stream.replace(".1", ".0"), ordinal))


def forget(plant: pytest.MonkeyPatch) -> None:
    real = ReplayMode.__init__
    plant.setattr(ReplayMode, "__init__", lambda self, record, tree=None: real(self, dict(list(record.items())[:-1]), tree))


def miscount(plant: pytest.MonkeyPatch) -> None:
    def counted_twice(self: ReplayMode, *args: Any) -> Any:
        self.count += args[0] == "getitem"
        return real(self, *args)

    real = ReplayMode.dispatch
    plant.setattr(ReplayMode, "dispatch", counted_twice)


def stale(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(ReplayMode, "_begun", lambda self, owner, name, value: value)


@pytest.mark.parametrize(("fault", "end"), [
    (freeze, "0"), (drop, "0"), (reorder, "0"), (siblings, "0"), (forget, "id(v) * 0"), (miscount, "id(v) * 0"), (stale, "id(v) * 0"),
])  # fmt: skip
def test_planted_fault_is_found(fault: Any, end: str, monkeypatch: pytest.MonkeyPatch):
    probe(end)
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        probe(end)
