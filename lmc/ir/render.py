"""Graphs for other eyes: JSON for programs, DOT for graphviz, and one HTML page that needs nothing else."""

from __future__ import annotations

import json
import linecache
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import PurePath
from typing import Any

from lmc.ir.analysis import ctx_tree, def_use
from lmc.ir.core import DEFAULT, FORMAT_VERSION, Graph, Op, Symbol, Value
from lmc.ir.ops import OPS, trait
from lmc.ir.text import print_op
from lmc.prompt import Mark, Special

# -- JSON ----------------------------------------------------------------------------------------------------------


def to_json(graph: Graph) -> str:
    """The graph as JSON: literals as themselves, everything else as an object that names its kind."""
    return json.dumps(
        {
            "lmc_ir": FORMAT_VERSION,
            "name": graph.name,
            "params": [_typed(v) for v in graph.params],
            "result": graph.result,
            "constants": {name: _op(op) for name, op in graph.constants.items()},
            "blocks": [
                {"label": b.label, "ops": [_op(op) for op in b.ops], "terminator": _op(b.terminator)}
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
    """The graph for graphviz: a cluster for each block, solid edges for values, dashed ones from switch to block."""
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
    return "\n".join([*lines, "}"]) + "\n"


def _dot(text: str) -> str:
    """A quoted string of DOT; backslashes are literal in it only when doubled."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# -- HTML ----------------------------------------------------------------------------------------------------------


def to_html(
    graph: Graph, *, stats: Mapping[str, int] | None = None, snapshots: Sequence[tuple[str, Graph]] = ()
) -> str:
    """One page, light or dark as the reader's system: the fork tree, then each op beside its source line.

    stats      what the passes counted, shown as a table
    snapshots  the graph at other stages (name and graph), folded away below
    """
    body = [f"<h1>@{escape(graph.name)}</h1>", f"<p>{_summary(graph)}</p>"]
    if stats:
        rows = "".join(f"<tr><td>{escape(what)}</td><td class=n>{n}</td></tr>" for what, n in stats.items())
        body.append(f"<table class=stats>{rows}</table>")
    body += ["<h2>Prompts</h2>", f"<div class=scroll>{_tree_svg(graph)}</div>", "<h2>Ops</h2>", _listing(graph)]
    for name, at in snapshots:
        body.append(f"<details><summary>{escape(name)}: {_summary(at)}</summary>{_listing(at)}</details>")
    return _PAGE.replace("{title}", escape(graph.name)).replace("{body}", "\n".join(body))


def _summary(graph: Graph) -> str:
    asks = sum(op.kind in OPS and trait(op) == "samples" for op in graph.ops())
    ops = sum(1 for _ in graph.ops())
    return f"{ops} ops in {len(graph.blocks)} blocks, {asks} of them ask the model"


def _listing(graph: Graph) -> str:
    params = ", ".join(f"%{v.name}: {v.type}" for v in graph.params)
    rows = [f"<tr><td></td><td class=b>graph @{escape(graph.name)}({escape(params)})</td></tr>"]
    rows += [
        f"<tr><td></td><td>@{escape(name)} = {escape(print_op(op))}</td></tr>" for name, op in graph.constants.items()
    ]
    shown = ""
    for block in graph.blocks:
        rows.append(f"<tr><td></td><td class=b id={_anchor(block.label)}>^{escape(block.label)}</td></tr>")
        for op in (*block.ops, block.terminator):
            place = str(op.loc) if op.loc is not None else ""
            rows.append(
                f"<tr class={_style(op)}><td>{_source(op) if place != shown else ''}</td><td>{_op_html(op)}</td></tr>"
            )
            shown = place
    return f"<div class=scroll><table class=ops>{''.join(rows)}</table></div>"


def _style(op: Op) -> str:
    return trait(op) if op.kind in OPS else "pure"


def _source(op: Op) -> str:
    if op.loc is None:
        return ""
    line = linecache.getline(op.loc.file, op.loc.line).strip()
    where = f"{PurePath(op.loc.file).name}:{op.loc.line}"
    return f"<span class=loc title={_attribute(str(op.loc))}>{escape(where)}</span> <code>{escape(_short(line, 80))}</code>"


def _op_html(op: Op) -> str:
    text = escape(print_op(Op(op.kind, op.operands, op.results, op.attrs)))
    name = escape(op.kind)
    text = text.replace(f"{name}(", f"<b>{name}</b>(", 1)
    links = (
        f"{'_' if case is DEFAULT else escape(str(case))} → <a href=#{_anchor(label)}>^{escape(label)}</a>"
        for case, label in op.cases
    )
    return text + (" [" + ", ".join(links) + "]" if op.cases else "")


def _anchor(label: str) -> str:
    return "b-" + "".join(c if c.isascii() and c.isalnum() else f"-{ord(c):x}-" for c in label)


def _attribute(text: str) -> str:
    return '"' + escape(text, quote=True) + '"'


_W, _H, _GAP = 150, 26, 46  # of a node, and from layer to layer, in pixels


def _tree_svg(graph: Graph) -> str:
    """The fork tree, layer by layer from the roots: leaves side by side, each prompt over the middle of what extends it."""
    import networkx as nx

    tree = ctx_tree(graph)
    if not tree:
        return "<p>no prompts</p>"
    layers = [list(layer) for layer in nx.topological_generations(tree)]
    layer_of = {v: i for i, layer in enumerate(layers) for v in layer}
    column: dict[Value, float] = {}
    leaves = 0
    for root in (v for v in tree if tree.in_degree(v) == 0):
        for v in nx.dfs_postorder_nodes(tree, root):
            below = [column[child] for child in tree.successors(v)]
            column[v] = sum(below) / len(below) if below else leaves
            leaves += not below
    pinned = {op.operands[0] for op in graph.ops() if op.kind == "prefill"}
    x = {v: 10 + column[v] * (_W + 14) for v in tree}
    y = {v: 10 + layer_of[v] * _GAP for v in tree}
    parts = [
        f'<path d="M{x[a] + _W / 2:.0f} {y[a] + _H} C{x[a] + _W / 2:.0f} {y[b] - 4} {x[b] + _W / 2:.0f} {y[a] + _H + 4} {x[b] + _W / 2:.0f} {y[b]}"/>'
        for a, b in tree.edges
    ]
    for v in tree:
        op = graph.producer.get(v)
        style = (_style(op) if op is not None else "param") + (" pinned" if v in pinned else "")
        label = f"%{v.name} {op.kind if op is not None else 'parameter'}"
        title = print_op(op) if op is not None else f"%{v.name}: {v.type}"
        parts.append(
            f'<g class="{style}"><title>{escape(title)}</title><rect x="{x[v]:.0f}" y="{y[v]}" width="{_W}" height="{_H}" rx="4"/>'
            f'<text x="{x[v] + _W / 2:.0f}" y="{y[v] + 17}">{escape(_short(label, 22))}</text></g>'
        )
    width, height = 20 + max(leaves, 1) * (_W + 14), 20 + len(layers) * _GAP
    return f'<svg width="{width}" height="{height}" role="img" aria-label="fork tree">{"".join(parts)}</svg>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root { color-scheme: light dark; --line: light-dark(#d0d0d0, #444); --ask: light-dark(#fff1d6, #4a3a14); --act: light-dark(#ffe3e3, #4d2020);
  --end: light-dark(#e6ecff, #232c4d); --pin: light-dark(#0a7d36, #4fd483); --quiet: light-dark(#666, #9a9a9a); }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem; background: light-dark(#fff, #16181c); color: light-dark(#1b1b1b, #e4e4e4); }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin-top: 1.6rem } .scroll { overflow-x: auto }
table { border-collapse: collapse } td { padding: 1px 10px 1px 4px; vertical-align: top }
.ops td { font: 12.5px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; border-bottom: 1px solid var(--line) }
.ops td:first-child { color: var(--quiet); max-width: 34rem; min-width: 14rem } .ops .b { font-weight: 600; padding-top: .6rem }
.loc { color: var(--quiet) } .n { text-align: right } details { margin-top: 1rem } summary { cursor: pointer }
tr.samples td + td { background: var(--ask) } tr.effect td + td, tr.ordered td + td { background: var(--act) } tr.terminator td + td { background: var(--end) }
svg path { fill: none; stroke: var(--quiet) } svg rect { fill: light-dark(#f4f4f4, #24272d); stroke: var(--line) }
svg .samples rect { fill: var(--ask) } svg .pinned rect { stroke: var(--pin); stroke-width: 2.5 }
svg text { font: 11px ui-monospace, monospace; text-anchor: middle; fill: currentColor }
</style></head><body>
{body}
<p class="loc">Asks are amber, effects red, block ends blue; a green border is a prefilled prompt.</p>
</body></html>
"""
