"""Drawings of compressed automata: text, DOT for graphviz, and one self-contained HTML page."""

from __future__ import annotations

import math
from html import escape

from lmc.fsm.compress import CompressedFSM, Edge
from lmc.pages import page


def to_text(fsm: CompressedFSM) -> str:
    """Return one line per edge. `>` marks the start, `*` the states where the text may end."""
    lines = [summary(fsm)]
    labels = [edge.label for edge in fsm.edges]
    width = min(48, max(map(len, labels), default=0))
    sources = {edge.source for edge in fsm.edges}
    lines += [
        f"{_mark(fsm, e.source)}{e.source:>5} -- {label:<{width}} -> {e.target}{'*' if fsm.dfa.final[e.target] else ''}" for e, label in zip(fsm.edges, labels)
    ]
    lines += [f"{_mark(fsm, s)}{s:>5}    (nothing may follow)" for s in fsm.states if s not in sources]
    return "\n".join(lines)


def summary(fsm: CompressedFSM) -> str:
    """Return its sizes in a line."""
    chains = sum(bool(edge.chain) for edge in fsm.edges)
    return (
        f"{_count(fsm.dfa.states, 'state')}, {len(fsm.states)} after compression; {_count(len(fsm.edges), 'edge')}, {chains} of them chains; "
        f"the next byte is forced in {fsm.forced:.0%} of the states"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def to_dot(fsm: CompressedFSM) -> str:
    """Render for graphviz: double circles are ends, thick edges are chains."""
    lines = ["digraph fsm {", "  rankdir=LR; node [shape=circle, fontsize=10]; edge [fontname=monospace, fontsize=10];"]
    lines += ['  start [shape=point]; start -> "0";']
    lines += [f'  "{s}" [shape=doublecircle];' for s in fsm.states if fsm.dfa.final[s]]
    for edge in fsm.edges:
        label = edge.label.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  "{edge.source}" -> "{edge.target}" [label="{label}"{", penwidth=2" if edge.chain else ""}];')
    return "\n".join([*lines, "}"])


def to_html(fsm: CompressedFSM, title: str) -> str:
    """Render a page with a drawing and the table of edges."""
    rows = "\n".join(f"<tr><td>{e.source}</td><td><code>{escape(e.label)}</code></td><td>{e.target}</td></tr>" for e in fsm.edges)
    return page(
        title,
        f"<h1 class=code>{escape(title)}</h1><p>{escape(summary(fsm))}. Blue: chains, text without a choice. Double circles: the text may end here.</p>"
        f'<div class=scroll tabindex=0 role=region aria-label="Drawing">{_svg(fsm)}</div>'
        f"<h2>Edges</h2><table class=small><thead><tr><th>from</th><th>by</th><th>to</th></tr></thead><tbody>\n{rows}\n</tbody></table>",
    )


def _mark(fsm: CompressedFSM, state: int) -> str:
    return (">" if state == 0 else " ") + ("*" if fsm.dfa.final[state] else " ")


# -- the drawing: layers by distance from the start, left to right ---------------------------------------------------

_ACROSS, _DOWN, _RADIUS = 210, 70, 16
_LETTER = 6.6  # the width of one in a label


def _svg(fsm: CompressedFSM) -> str:
    places = _places(fsm)
    width = max(x for x, _ in places.values()) + 2 * _RADIUS + 60
    height = max(y for _, y in places.values()) + 2 * _RADIUS + 20
    top = min([0, *(math.floor(_crest(edge, places)) for edge in fsm.edges)])
    arrows = [_arrow(edge, places) for edge in fsm.edges]
    parts = [arrow for arrow, _ in arrows] + [label for _, label in arrows]  # no arrow crosses a label
    for state, (x, y) in places.items():
        if fsm.dfa.final[state]:
            parts.append(f'<circle cx="{x}" cy="{y}" r="{_RADIUS + 4}"/>')
        parts.append(f'<circle cx="{x}" cy="{y}" r="{_RADIUS}"/><text x="{x}" y="{y + 4}">{state}</text>')
    return (
        f'<svg class="fsm" viewBox="0 {top} {width} {height - top}" width="{width}" height="{height - top}" role="img" aria-label="automaton">'
        f"<defs>{_tip('tip')}{_tip('chain-tip')}</defs>{''.join(parts)}</svg>"
    )


def _tip(name: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker>'
    )


def _places(fsm: CompressedFSM) -> dict[int, tuple[int, int]]:
    after: dict[int, list[int]] = {state: [] for state in fsm.states}
    for edge in fsm.edges:
        after[edge.source].append(edge.target)
    layer, order = {0: 0}, [0]
    for state in order:
        for target in after[state]:
            if target not in layer:
                layer[target] = layer[state] + 1
                order.append(target)
    filled: dict[int, int] = {}
    places: dict[int, tuple[int, int]] = {}
    for state in order:
        row = filled.setdefault(layer[state], 0)
        filled[layer[state]] += 1
        places[state] = (40 + layer[state] * _ACROSS, 60 + row * _DOWN)
    return places


def _bend(ax: int, bx: int, length: float) -> float:
    return 0 if bx > ax else 40 + length / 8  # backward edges bow out


def _crest(edge: Edge, places: dict[int, tuple[int, int]]) -> float:
    """Return the height above which no part of an edge, its label included, is drawn."""
    (ax, ay), (bx, by) = places[edge.source], places[edge.target]
    length = math.hypot(bx - ax, by - ay)
    return min(ay, by) - 60 if not length else min(ay, by) - _bend(ax, bx, length) / 2 - 20


def _arrow(edge: Edge, places: dict[int, tuple[int, int]]) -> tuple[str, str]:
    """Draw an edge and its label."""
    (ax, ay), (bx, by) = places[edge.source], places[edge.target]
    shown = edge.label if len(edge.label) <= 28 else edge.label[:27] + "…"
    kind = ' class="chain"' if edge.chain else ""
    if edge.source == edge.target:
        path = f"M{ax - 8} {ay - _RADIUS}C{ax - 30} {ay - 55} {ax + 30} {ay - 55} {ax + 8} {ay - _RADIUS}"
        label_x, label_y = ax, ay - 46
    else:
        length = math.hypot(bx - ax, by - ay)
        ux, uy = (bx - ax) / length, (by - ay) / length
        bend = _bend(ax, bx, length)
        mx, my = (ax + bx) / 2 - uy * bend, (ay + by) / 2 + ux * bend
        start, end = _RADIUS + 1, _RADIUS + 5
        path = f"M{ax + ux * start:.0f} {ay + uy * start:.0f}Q{mx:.0f} {my:.0f} {bx - ux * end:.0f} {by - uy * end:.0f}"
        slope = min(14.0, len(shown) * _LETTER / 2 * abs(uy / ux)) if ux > 0 else 0.0  # a sloped edge passes below the corner of its label
        label_x, label_y = round((ax + 2 * mx + bx) / 4), round((ay + 2 * my + by) / 4 - slope) - 6
    title = f"<title>{escape(edge.label)}</title>"
    tip = "chain-tip" if edge.chain else "tip"
    return (
        f"<g{kind}>{title}<path d='{path}' marker-end='url(#{tip})'/></g>",
        f'<g{kind}>{title}<text x="{label_x}" y="{label_y}">{escape(shown)}</text></g>',
    )
