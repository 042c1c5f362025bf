"""The constant prefix of a traced program's prompts, whatever its arguments are, and the graph to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmc.frontend.emitter import Ctx, Emitter
from lmc.ir.core import Graph, Op, Value
from lmc.ir.text import print_graph
from lmc.segments import Special


@dataclass(frozen=True, slots=True)
class Traced:
    """The graph of a program as it was traced; printing it shows its text form."""

    graph: Graph

    def __str__(self) -> str:
        return print_graph(self.graph)

    @property
    def last_node(self) -> Traced:
        """Return itself, for programs that print a trace as SGLang does: `trace().last_node.print_graph_dfs()`."""
        return self

    def print_graph_dfs(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<trace of {self.graph.name}: {sum(1 for _ in self.graph.ops())} ops>"


def constant_prefix(graph: Graph, emitter: Emitter, bound: Mapping[str, Any]) -> Ctx:
    """Write the prompt up to the first part that the arguments or the model decide to `emitter`.

    `bound` gives the text of parameters that are known.
    """
    known: dict[Value, Any] = {p: bound[p.name] for p in graph.params if isinstance(bound.get(p.name), str)}
    ctx = emitter.root()
    last: Value | None = None
    for op in graph.entry.ops:
        if op.kind == "ctx.new":
            if last is not None:
                break  # a second prompt, of a sub-program
            last = op.results[0]
        elif op.operands and op.operands[0] == last:  # the first use of each prompt; what follows a fork is not common
            extended = _extended(ctx, op, emitter, known)
            if extended is None:
                break
            ctx, last = extended, op.results[0]
    return ctx


def _extended(ctx: Ctx, op: Op, emitter: Emitter, known: Mapping[Value, Any]) -> Ctx | None:
    """Return `ctx` after an op that extends it by a known part, else None."""
    if op.kind == "role.begin":
        return emitter.role_begin(ctx, op.attr("role"), op.attr("previous"))
    if op.kind == "role.end":
        return emitter.role_end(ctx, op.attr("role"))
    if op.kind != "append":
        return None
    for part in op.operands[1:]:
        text = known.get(part) if isinstance(part, Value) else part
        if not isinstance(text, (str, Special)):
            return None
        ctx = emitter.append(ctx, text)
    return ctx
