"""Other renderings of graphs: JSON for programs, DOT for graphviz, and the page of `page.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmc.ir.analysis import def_use
from lmc.ir.core import DEFAULT, FORMAT_VERSION, Graph, Op, Symbol, Value
from lmc.ir.page import Section, page
from lmc.ir.text import print_op
from lmc.segments import Mark, Special

# -- JSON ----------------------------------------------------------------------------------------------------------


def to_json(graph: Graph) -> str:
    """Return the graph as JSON: literals as themselves, everything else as an object that names its kind."""
    return json.dumps(
        {
            "lmc_ir": FORMAT_VERSION,
            "name": graph.name,
            "params": [_typed(v) for v in graph.params],
            "result": graph.result,
            "constants": {name: _op(op) for name, op in graph.constants.items()},
            "blocks": [
                {"label": b.label, "params": [_typed(v) for v in b.params], "ops": [_op(op) for op in b.ops], "terminator": _op(b.terminator)}
                for b in graph.blocks
            ],
        },
        indent=1,
    )


def _typed(v: Value) -> dict[str, Any]:
    return {"name": v.name, "type": v.type}


def _op(op: Op) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": op.kind, "operands": [_atom(x) for x in op.operands]}
    if op.results:
        found["results"] = [_typed(v) for v in op.results]
    if op.attrs:
        found["attrs"] = {name: _atom(x) for name, x in op.attrs.items()}
    if op.cases:
        found["cases"] = [[{"default": True} if case is DEFAULT else _atom(case), label] for case, label in op.cases]
    if op.then is not None:
        found["then"] = op.then
    if op.loc is not None:
        found["loc"] = {"file": op.loc.file, "line": op.loc.line, "col": op.loc.col}
    return found


def _atom(x: Any) -> Any:
    match x:
        case Value():
            return {"value": x.name}
        case Symbol():
            return {"symbol": x.name}
        case Special():
            return {"special": x.spelling}
        case Mark():
            return {"mark": x.edge, "role": x.role}
        case bytes():
            return {"bytes": x.hex()}
        case float() if not math.isfinite(x):
            return {"float": repr(x)}
        case tuple():
            return [_atom(i) for i in x]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return x


# -- DOT -----------------------------------------------------------------------------------------------------------


def to_dot(graph: Graph) -> str:
    """Return the graph for graphviz: a cluster for each block, solid edges for values, dashed ones to arms, dotted ones
    to the next block."""
    lines = [f"digraph {_dot(graph.name)} {{", '  node [shape=box, fontname="monospace", fontsize=10];']
    lines += [f"  p{i} [label={_dot(f'%{v.name}: {v.type}')}, shape=ellipse];" for i, v in enumerate(graph.params)]
    first: dict[str, int] = {}
    number = 0
    for i, block in enumerate(graph.blocks):
        lines.append(f"  subgraph cluster_{i} {{ label={_dot('^' + block.label)};")
        first[block.label] = number
        for op in (*block.ops, block.terminator):
            lines.append(f"    n{number} [label={_dot(_short(print_op(op), 90))}];")
            number += 1
        lines.append("  }")
    for i, v in enumerate(graph.params):
        lines += [f"  p{i} -> n{n};" for n, op in enumerate(graph.ops()) if v in op.uses]
    edges: Iterable[tuple[int, int, tuple[Value, ...]]] = def_use(graph).edges(data="values")
    for a, b, values in edges:
        lines.append(f"  n{a} -> n{b} [label={_dot(', '.join('%' + v.name for v in values))}];")
    for n, op in enumerate(graph.ops()):
        for case, label in op.cases:
            shown = "_" if case is DEFAULT else str(case)
            lines.append(f"  n{n} -> n{first[label]} [style=dashed, label={_dot(_short(shown, 30))}];")
        if op.then is not None:
            lines.append(f"  n{n} -> n{first[op.then]} [style=dotted, label=then];")
    return "\n".join([*lines, "}"]) + "\n"


def _dot(text: str) -> str:
    """Return a quoted string of DOT; backslashes are literal in it only when doubled."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# -- HTML ----------------------------------------------------------------------------------------------------------


def to_html(graph: Graph, *, stats: Mapping[str, int] | None = None, snapshots: Sequence[tuple[str, Graph]] = ()) -> str:
    """Render one page, light or dark as the reader's system: the tree of prompts, then each op beside its source line.

    stats      statistics of the passes, shown as a table
    snapshots  the graph at other stages (name and graph), folded away below
    """
    tables = {"What the passes did": stats} if stats else {}
    first = Section(f"@{graph.name}", graph, tables=tables)
    return page(graph.name, [first, *(Section(name, at) for name, at in snapshots)])
