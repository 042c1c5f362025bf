"""An experiment as a page for a browser: the question, plots, every figure, and what was not measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from experiments.core import ALL, Experiment, Found, Plot, Row, cell, command, missing, table
from lmc import pages

WIDTH, HEIGHT, LEFT, BOTTOM = 960, 260, 72, 40
COLOURS = ("decode", "computed", "shared", "tool", "wait", "ahead")
"""Of series, in the words of lmc's pages."""
STYLE = """<style>.plot{max-width:70rem}.plot svg{width:100%;height:auto}.plot text{font:11px system-ui,sans-serif;fill:var(--quiet)}.plot .axis{stroke:var(--line)}
.plot .s0{fill:var(--decode);stroke:var(--decode)}.plot .s1{fill:var(--computed);stroke:var(--computed)}.plot .s2{fill:var(--shared);stroke:var(--shared)}
.plot .s3{fill:var(--tool);stroke:var(--tool)}.plot .s4{fill:var(--wait);stroke:var(--wait)}.plot .s5{fill:var(--crit);stroke:var(--crit)}.plot polyline{fill:none!important;stroke-width:2}
.plot .key{display:inline-block;width:.8em;height:.8em;margin:0 .35em 0 .9em;border-radius:2px}
.plot .key.s0{background:var(--decode)}.plot .key.s1{background:var(--computed)}.plot .key.s2{background:var(--shared)}.plot .key.s3{background:var(--tool)}.plot .key.s4{background:var(--wait)}.plot .key.s5{background:var(--crit)}</style>"""


def page(wanted: Experiment, found: Found) -> str:
    """The whole document."""
    rows = found.all()
    plots = "".join(drawn(plot, rows) for plot in wanted.plots) if rows else ""
    names, lines = table(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td{'' if _is_text(value) else ' class=n'}>{escape(value)}</td>" for value in line) + "</tr>" for line in lines)
    figures = f"<h2 id=figures>Figures</h2><div class=scroll><table class=small><tr>{head}</tr>{body}</table></div>" if rows else ""
    absent = f"<h2 id=missing>Not measured</h2>{pages.facts(missing(wanted, found) or [ALL])}"
    noted = f"<p><strong>{escape(found.info['note'])}</strong></p>" if found.info.get("note") else ""
    about = [command(wanted.name, found.setup)] + [
        f"{key}: {value}" for key, value in (found.info | {k: v for k, v in found.setup.items() if v not in (None, "", [], ())}).items()
    ]
    return pages.page(
        wanted.name,
        f"{STYLE}<h1>{escape(wanted.question)}</h1><p>{escape(wanted.reads)}</p>{noted}{plots}{figures}{absent}<h2 id=setup>Setup</h2>{pages.facts(about)}",
    )


def _is_text(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return True
    return False


def drawn(plot: Plot, rows: Sequence[Row]) -> str:
    """A plot, or several where it has one for each value of a column."""
    groups = list(dict.fromkeys(row.get(plot.per) for row in rows)) if plot.per else [None]
    return "".join(
        _one(plot, [row for row in rows if not plot.per or row.get(plot.per) == group], f"{plot.title}: {group}" if plot.per else plot.title)
        for group in groups
    )


def _one(plot: Plot, rows: Sequence[Row], title: str) -> str:
    rows = [row for row in rows if isinstance(row.get(plot.y), int | float) and math.isfinite(row[plot.y])]
    if not rows:
        return ""
    series = {name: [row for row in rows if _series(plot, row) == name] for name in dict.fromkeys(_series(plot, row) for row in rows)}
    ticks = list(dict.fromkeys(row[plot.x] for row in rows))
    most = max(row[plot.y] for row in rows) or 1.0
    draw = _lines if plot.kind == "lines" else _bars
    marks = draw(plot, series, ticks, most)
    axis = "".join(
        f'<line class=axis x1={LEFT} x2={WIDTH} y1={_y(most * share, most):.1f} y2={_y(most * share, most):.1f} /><text x={LEFT - 6} '
        f'y={_y(most * share, most) + 4:.1f} text-anchor=end>'
        f"{cell(float(most * share))}</text>" for share in (0, 0.5, 1))  # fmt: skip
    names = "".join(f'<text x={_x(i, len(ticks)):.1f} y={HEIGHT - 22 + 14 * (i % 2)} '
                    f'text-anchor=middle>{escape(pages.short(cell(tick), max(11, 220 // len(ticks))))}<title>{escape(cell(tick))}</title></text>'
                    for i, tick in enumerate(ticks))  # fmt: skip
    keys = "".join(f"<span class='key s{i % len(COLOURS)}'></span>{escape(name)}" for i, name in enumerate(series)) if len(series) > 1 else ""
    said = f"{title}: {plot.y} by {plot.x}"
    return (f'<h2>{escape(title)}</h2><div class=plot><svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img '
            f'aria-label={pages.quoted(said)}>{axis}{names}{marks}</svg><p>{keys}</p></div>')


def _series(plot: Plot, row: Row) -> str:
    return " · ".join(str(row.get(name.strip())) for name in plot.series.split("·")) if plot.series else ""


def _y(value: float, most: float) -> float:
    return 8 + (HEIGHT - BOTTOM - 8) * (1 - value / most)


def _x(i: int, count: int) -> float:
    return LEFT + (WIDTH - LEFT) * (i + 0.5) / count


def _bars(plot: Plot, series: dict[str, list[Row]], ticks: list[Any], most: float) -> str:
    wide = 0.8 * (WIDTH - LEFT) / len(ticks) / len(series)
    found: list[str] = []
    for i, (name, rows) in enumerate(series.items()):
        for row in rows:
            x = _x(ticks.index(row[plot.x]), len(ticks)) + (i - len(series) / 2) * wide
            top = _y(row[plot.y], most)
            found.append(f'<rect class=s{i % len(COLOURS)} x={x:.1f} y={top:.1f} width={max(1.0, wide - 1):.1f} height={HEIGHT - BOTTOM - top:.1f}><title>'
                         f"{escape(name)} {escape(cell(row[plot.x]))}: {cell(float(row[plot.y]))}</title></rect>")  # fmt: skip
    return "".join(found)


def _lines(plot: Plot, series: dict[str, list[Row]], ticks: list[Any], most: float) -> str:
    found: list[str] = []
    for i, (name, rows) in enumerate(series.items()):
        points = sorted((ticks.index(row[plot.x]), row[plot.y]) for row in rows)
        path = " ".join(f"{_x(at, len(ticks)):.1f},{_y(y, most):.1f}" for at, y in points)
        dots = "".join(
            f"<circle class=s{i % len(COLOURS)} cx={_x(at, len(ticks)):.1f} cy={_y(y, most):.1f} r=3><title>{escape(name)}: {cell(float(y))}</title></circle>"
            for at, y in points
        )
        found.append(f'<polyline class=s{i % len(COLOURS)} points="{path}"/>{dots}')
    return "".join(found)
