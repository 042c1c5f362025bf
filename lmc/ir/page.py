"""A graph as a picture and a table for the browser: one file that loads nothing else, or a fragment for a notebook.

Text from a program is escaped, and the page's content policy lets no script run but its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from lmc import pages
from lmc.errors import source_line
from lmc.ir.analysis import answers_put
from lmc.ir.core import DEFAULT, Block, Graph, Op
from lmc.ir.layout import HEIGHT, WIDTH, Box, GraphLayout, picture
from lmc.ir.ops import IMAGES, spec_of, trait
from lmc.ir.text import print_op
from lmc.pages import count, quoted, seconds, several, short
from lmc.segments import Frames, Image, plain
from lmc.thumbnails import thumbnail

MANY = 120
"""Number of ops from which on the table starts with the expensive ones only."""


@dataclass(frozen=True)
class Expected:
    """Expected cost of a request or a prefill, in the section's unit: shared and computed parts of its prompt, scored
    choices; most tokens of its answer, the share of them that its constraint forces, number and size of its group."""

    shared: int = 0
    computed: int = 0
    scored: int = 0
    answer: int = 0
    forced: float = 0.0
    group: tuple[int, int] | None = None


@dataclass(frozen=True)
class MeasuredAsk:
    """Measured cost of a request in `count` runs together. Tokens; seconds from its prompt being known to the
    answer."""

    count: int
    prompt: int
    cached: int
    generated: int
    forced: int
    passes: int
    seconds: float


@dataclass(frozen=True)
class Section:
    """A graph with facts about it.

    expected, seen  by the index of an op in `graph.ops()`
    critical        indices of the ops of the critical path
    runs            how many runs each block saw;  facts  further sentences
    tables          further facts with their numbers
    unit            unit of expected lengths: tokens, or characters where no tokenizer is known
    """

    title: str
    graph: Graph
    expected: Mapping[int, Expected] = field(default_factory=dict[int, Expected])
    seen: Mapping[int, MeasuredAsk] = field(default_factory=dict[int, MeasuredAsk])
    critical: frozenset[int] = frozenset()
    runs: Mapping[str, int] = field(default_factory=dict[str, int])
    facts: Sequence[str] = ()
    tables: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    unit: str = "characters"


def page(title: str, sections: Sequence[Section], facts: Sequence[str] = (), above: str = "") -> str:
    """Render a whole page: `facts` and `above` first, then each section, all but the first folded."""
    return pages.page(title, _body(title, sections, facts, above), script=pages.KEYS + _SCRIPT)


def fragment(title: str, sections: Sequence[Section]) -> str:
    """Render sections without a script, to embed: everything but search and zoom works."""
    return pages.fragment(_body(title, sections, (), ""))


def folded(line: str, title: str, sections: Sequence[Section], facts: Sequence[str], above: str) -> str:
    """Render the whole page as a fragment: its title and a line, which open to the rest."""
    return pages.fragment(f"<details><summary><b>{escape(title)}</b>: {escape(line)}</summary>{_body(title, sections, facts, above)}</details>")


def _body(title: str, sections: Sequence[Section], facts: Sequence[str], above: str) -> str:
    parts = [f"<h1>{escape(title)}</h1>", pages.facts(facts), above]
    for i, section in enumerate(sections):
        body = "".join(_section(section, f"s{i}"))
        parts.append(body if i == 0 else f"<details><summary>{escape(section.title)}</summary>{body}</details>")
    return "".join(parts)


def _section(section: Section, id: str) -> Iterator[str]:
    graph = section.graph
    count = sum(1 for _ in graph.ops())
    yield f"<section id={id}><h2>{escape(section.title)}</h2><p>{summary(graph)}</p>{pages.facts(section.facts)}"
    yield (
        f"<h3>Prompts</h3>{_LEGEND}<div class=tools data-for={id}></div>"
        f'<div class=scroll tabindex=0 role=region aria-label="Prompts as a tree">{svg(section, id)}</div>'
    )
    yield "<h3>Ops</h3>" + _key(section)
    checked = ["", " checked"] if count > MANY else [" checked", ""]
    yield (
        f"<div class=ops><p class=filter><label><input type=radio name={id}-show value=all{checked[0]}> all {count} ops</label> "
        f"<label><input type=radio name={id}-show value=asks class=few{checked[1]}> what asks, acts, or decides</label> "
        f"<label><input type=radio name={id}-show value=critical class=crit> the critical path</label></p>"
    )
    yield from _listing(section, id)
    yield "</div>"
    for title, rows in section.tables.items():
        if rows:
            yield f"<h3>{escape(title)}</h3><table class=small>"
            yield "".join(f"<tr><td>{escape(what)}</td><td class=n>{n}</td></tr>" for what, n in rows.items()) + "</table>"
    yield "</section>"


def summary(graph: Graph) -> str:
    """Return the graph in a line."""
    asks = sum(op.kind in ("gen", "select") for op in graph.ops())
    ops = sum(1 for _ in graph.ops())
    return f"{several(ops, 'op')} in {several(len(graph.blocks), 'block')}, {asks} of them ask{'s' * (asks == 1)} the model"


def _key(section: Section) -> str:
    unknown = "50" if section.unit == "tokens" else "200, four to a token"
    said = (
        (
            f"Expected: {section.unit} of the prompt, shared with earlier ops or computed for this one, and the most tokens that its answer can "
            f"have; each text that only a run knows counts as {unknown}. "
        )
        if section.expected
        else ""
    )
    seen = "Measured: means over the runs that made the request, in tokens, and the time from when the prompt was known to the answer." if section.seen else ""
    return f"<p class=quiet>{said}{seen}</p>" if said or seen else ""


# -- the table -----------------------------------------------------------------------------------------------------


def _listing(section: Section, id: str) -> Iterator[str]:
    graph = section.graph
    params = ", ".join(f"%{v.name}: {v.type}" for v in graph.params)
    yield f"<p class=code>graph @{escape(graph.name)}({escape(params)})</p>"
    if graph.constants:
        constants = "".join(f"<p class=code>@{escape(name)} = {escape(print_op(op))}</p>" for name, op in graph.constants.items())
        yield f"<details><summary>constants ({len(graph.constants)})</summary>{constants}</details>"
    names = {label: f"{id}-{_anchor(label)}" for label in graph.block}
    index = 0
    most = max([e.shared + e.computed for e in section.expected.values()], default=1) or 1
    longest = max([s.prompt / s.count for s in section.seen.values()], default=1) or 1
    total = len(list(graph.ops()))
    for block in graph.blocks:
        ops = (*block.ops, block.terminator)
        marked = any(index + i in section.critical for i in range(len(ops)))
        here = section.runs.get(block.label)
        runs = "" if here is None else f", {several(here, 'run') if here else 'no runs'}"
        opened = " open" if total <= MANY or block is graph.entry or marked or here else ""
        yield (
            f"<details{opened} class=block id={quoted(names[block.label])}><summary>^{escape(block.label)}{escape(_params(block))}"
            f"<span class=quiet> {several(len(ops), 'op')}{runs}</span></summary><table class=list>"
            "<colgroup><col class=c1><col class=c2><col class=c3><col class=c4></colgroup>"
            "<tr class=head><th scope=col>source</th><th scope=col>op</th><th scope=col>expected</th><th scope=col>measured</th></tr>"
        )
        shown = ""
        for op in ops:
            place = str(op.loc) if op.loc is not None else ""
            style = _style(op) + (" critical" if index in section.critical else "")
            expected = _expected(section.expected[index], most) if index in section.expected else ""
            seen = _seen(section.seen[index], longest) if index in section.seen else ""
            yield (
                f"<tr class={quoted(style)} id={id}-o{index} tabindex=-1><td>{_source(op) if place != shown else ''}</td><td>{_op(op, names)}</td>"
                f"<td>{expected}</td><td>{seen}</td></tr>"
            )
            shown = place
            index += 1
        yield "</table></details>"


def _params(block: Block) -> str:
    return f"({', '.join(f'%{v.name}: {v.type}' for v in block.params)})" if block.params else ""


def _expected(cost: Expected, most: int) -> str:
    parts = [f"{count(cost.shared)} shared", f"{count(cost.computed)} computed"] if cost.shared else [f"{count(cost.computed)} computed"]
    parts += [f"{count(cost.scored)} scored"] if cost.scored else []
    parts += [f"≤ {count(cost.answer)} tokens out" + (f", {cost.forced:.0%} forced" if cost.forced else "")] if cost.answer else []
    parts += [f"group {cost.group[0]} of {cost.group[1]}"] if cost.group else []
    return pages.bar(("shared", cost.shared / most), ("computed", cost.computed / most)) + escape(" · ".join(parts))


def _seen(seen: MeasuredAsk, longest: float) -> str:
    n = seen.count
    parts = [f"{n}×", f"{_mean(seen.prompt, n)} in, {_mean(seen.cached, n)} cached"]
    if seen.generated:
        parts.append(f"{_mean(seen.generated, n)} out" + (f", {_mean(seen.forced, n)} forced" if seen.forced else ""))
    passes = _mean(seen.passes, n)
    parts += [f"{passes} pass{'es' * (passes != '1')}", seconds(seen.seconds / n)]
    return pages.bar(("shared", seen.cached / n / longest), ("computed", (seen.prompt - seen.cached) / n / longest)) + escape(" · ".join(parts))


def _mean(total: float, n: int) -> str:
    return count(round(total / n)) if total / n >= 9.5 else f"{total / n:.2g}"


def _style(op: Op) -> str:
    found = spec_of(op.kind)
    if found is None or found.trait == "opaque":
        return "effect" if op.attr("calls") is not None else "pure"
    return found.trait


def _source(op: Op) -> str:
    if op.loc is None:
        return ""
    line = source_line(op.loc.file, op.loc.line).strip()
    where = op.loc.short
    return f"<span class=quiet title={quoted(str(op.loc))}>{escape(where)}</span> <code>{escape(short(line, 100))}</code>"


def _op(op: Op, names: Mapping[str, str]) -> str:
    whole = print_op(Op(op.kind, op.operands, op.results, op.attrs))
    text = _bold(op, short(whole, 200))
    if len(whole) > 200:
        text = f"<details class=long><summary>{text}</summary>{_bold(op, whole)}</details>"
    links = (
        f"{'_' if case is DEFAULT else escape(short(str(case), 60))} → <a href={quoted('#' + names[label])}>^{escape(label)}</a>" for case, label in op.cases
    )
    then = f" then <a href={quoted('#' + names[op.then])}>^{escape(op.then)}</a>" if op.then is not None else ""
    return text + (" [" + ", ".join(links) + "]" if op.cases else "") + then + _thumbnail(op)


def _thumbnail(op: Op) -> str:
    """Return the picture or the first frame of a constant path."""
    if op.kind not in IMAGES or not isinstance(op.operands[1], str):
        return ""
    url = thumbnail(Image(op.operands[1], Frames() if op.kind == "video" else None))
    return "" if url is None else f"<br><img class=thumb alt={quoted(op.kind)} src={quoted(url)}>"


def _bold(op: Op, text: str) -> str:
    name = escape(op.kind)
    return escape(text).replace(f"{name}(", f"<b>{name}</b>(", 1)


def _anchor(label: str) -> str:
    return "b-" + "".join(c if c.isascii() and c.isalnum() else f"-{ord(c):x}-" for c in label)


# -- the picture ---------------------------------------------------------------------------------------------------


def svg(section: Section, id: str = "s0") -> str:
    """Draw the tree of prompts, each box a link to its row in the table; inputs of answers are drawn dashed."""
    graph = section.graph
    drawn = picture(graph)
    if not drawn.steps:
        return "<p>no prompts</p>"
    ops = list(graph.ops())
    pinned = {op.operands[0] for op in ops if op.kind == "prefill"}
    width, height = f"{drawn.width + 36:.0f}", f"{drawn.height:.0f}"  # room for curves on the right
    edges = [_edge(a, b, drawn, section) for a in drawn.steps for b in a.children]
    parts = [edge for edge, _ in edges]
    home = {i: step for step in drawn.steps for i in step.ops}
    for index, put in answers_put(graph).items():
        parts += [_data_edge(home[i], home[index], section, i, index) for i in put if i in home and index in home and home[i] is not home[index]]
    parts += [label for _, label in edges]  # no edge crosses a label
    parts += [_box(step, ops, section, id, any(v in pinned for i in step.ops for v in ops[i].results)) for step in drawn.steps]
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="tree of prompts">{"".join(parts)}</svg>'


def _box(step: Box, ops: Sequence[Op], section: Section, id: str, pinned: bool) -> str:
    asks = [i for i in step.ops if trait(ops[i]) == "samples"]
    last = asks[-1] if asks else step.ops[-1] if step.ops else None
    if last is None:
        title, label, link = "a prompt that is given, or that arms or turns go on with", "…", f"#{id}"
    else:
        op = ops[last]
        label = f"{op.kind} {op.attr('name') or ''}".strip() if asks else _text(ops, step.ops)
        title, link = "\n".join(print_op(ops[i]) for i in step.ops), f"#{id}-o{last}"
    style = "samples" if asks else "text"
    style += " pinned" if pinned else ""
    style += " critical" if any(i in section.critical for i in step.ops) else ""
    style += " idle" if section.runs.get(step.block) == 0 else ""
    cost = _cost_line(step, section, last) + (", prefilled" if pinned else "")
    x, y = f"{step.x:.0f}", f"{step.y:.0f}"
    return (
        f'<a href="{escape(link)}" class="{style}"><title>{escape(short(title, 2000))}</title><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{step.x + 8:.0f}" y="{step.y + 16:.0f}">{escape(short(label, 24))}</text>'
        f'<text class="quiet" x="{step.x + 8:.0f}" y="{step.y + 32:.0f}">{escape(short(cost, 28))}</text></a>'
    )


def _text(ops: Sequence[Op], indices: Sequence[int]) -> str:
    """Return the beginning of the text of a step."""
    parts = [p for i in indices if ops[i].kind == "append" for p in ops[i].operands[1:]]
    shown = plain([p for p in parts if isinstance(p, str)]).strip()
    return f"“{' '.join(shown.split())}”" if shown else "white space" if all(isinstance(p, str) for p in parts) and parts else ops[indices[-1]].kind


def _cost_line(step: Box, section: Section, last: int | None) -> str:
    if last is not None and last in section.seen:
        s = section.seen[last]
        return f"{_mean(s.prompt - s.cached, s.count)} new + {_mean(s.generated, s.count)} out, {seconds(s.seconds / s.count)}"
    if last is not None and last in section.expected:
        e = section.expected[last]
        unit = "" if section.unit == "tokens" else " ch"
        return f"{count(e.computed)}{unit} new" + (f" + ≤ {e.answer} out" if e.answer else f", {count(e.scored)}{unit} scored" if e.scored else "")
    return several(len(step.ops), "op")


def _edge(a: Box, b: Box, drawn: GraphLayout, section: Section) -> tuple[str, str]:
    """Draw an edge and its label."""
    if drawn.down:
        x1, y1, x2, y2 = a.x + WIDTH / 2, a.y + HEIGHT, b.x + WIDTH / 2, b.y
        bend = f"M{x1:.0f} {y1:.0f} C{x1:.0f} {(y1 + y2) / 2:.0f} {x2:.0f} {(y1 + y2) / 2:.0f} {x2:.0f} {y2:.0f}"
        tx, ty, anchor = x2 + 4, y2 - 6, "start"
    else:
        x1, y1, x2, y2 = a.x + WIDTH, a.y + HEIGHT / 2, b.x, b.y + HEIGHT / 2
        bend = f"M{x1:.0f} {y1:.0f} C{(x1 + x2) / 2:.0f} {y1:.0f} {(x1 + x2) / 2:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
        tx, ty, anchor = x2 - 6, y2 - 6, "end"
    marked = section.critical.intersection(a.ops) and section.critical.intersection(b.ops)
    label = f'<text class="case" x="{tx:.0f}" y="{ty:.0f}" text-anchor="{anchor}">{escape(short(b.case, 8))}</text>' if b.case else ""
    return f'<path class="{"critical" if marked else "plain"}" d="{bend}"/>', label


def _data_edge(a: Box, b: Box, section: Section, i: int, j: int) -> str:
    """Draw an edge from an answer to a request whose prompt contains it; around the boxes between, as far as a curve
    can."""
    marked = " critical" if i in section.critical and j in section.critical else ""
    if a.x == b.x:
        x, y1, y2 = a.x + WIDTH, a.y + HEIGHT / 2, b.y + HEIGHT / 2
        return f'<path class="data{marked}" d="M{x:.0f} {y1:.0f} C{x + 44:.0f} {y1:.0f} {x + 44:.0f} {y2:.0f} {x:.0f} {y2:.0f}"/>'
    ax, bx = (a.x + WIDTH, b.x) if a.x < b.x else (a.x, b.x + WIDTH)
    y1, y2 = a.y + HEIGHT / 2, b.y + HEIGHT / 2
    return f'<path class="data{marked}" d="M{ax:.0f} {y1:.0f} C{(ax + bx) / 2:.0f} {y1:.0f} {(ax + bx) / 2:.0f} {y2:.0f} {bx:.0f} {y2:.0f}"/>'


_LEGEND = pages.legend(
    ("samples", "asks the model"), ("text", "text"), ("pinned", "prefilled"), ("critical", "critical path"), ("dash", "an answer put into another prompt")
)

_SCRIPT = """
for (const tools of document.querySelectorAll('.tools')) {
  const section = document.getElementById(tools.dataset.for), svg = section.querySelector('svg'), frame = section.querySelector('.scroll');
  const said = document.createElement('span'), field = document.createElement('input');
  field.type = 'search'; field.placeholder = 'search ops ( / )'; field.setAttribute('aria-label', 'search ops');
  said.className = 'quiet'; said.setAttribute('role', 'status');
  const button = (text, act) => {
    const b = document.createElement('button'); b.type = 'button'; b.textContent = text; b.onclick = act; tools.append(b); return b;
  };
  if (svg) {
    const own = svg.viewBox.baseVal;
    const zoom = scale => { svg.setAttribute('width', own.width * scale); svg.setAttribute('height', own.height * scale); };
    const now = () => svg.getAttribute('width') / own.width;
    button('fit', () => zoom(Math.min(1, (frame.clientWidth - 2) / own.width, Math.max(200, innerHeight * .7) / own.height)));
    button('1 : 1', () => zoom(1));
    button('+', () => zoom(now() * 1.25)).setAttribute('aria-label', 'larger');
    button('\\u2212', () => zoom(now() / 1.25)).setAttribute('aria-label', 'smaller');
    if (own.width > frame.clientWidth) zoom(Math.max(.9, (frame.clientWidth - 2) / own.width));  // smaller text cannot be read
  }
  tools.append(field, said);
  const rows = [...section.querySelectorAll('.list tr[id]')];
  const boxes = new Map([...section.querySelectorAll('svg a')].map(a => [a.getAttribute('href').slice(1), a]));
  field.oninput = () => {
    const wanted = field.value.trim().toLowerCase();
    let found = 0;
    for (const row of rows) {
      const hit = !wanted || row.textContent.toLowerCase().includes(wanted);
      row.classList.toggle('missed', !hit); found += hit;
      if (hit && wanted) row.closest('details.block').open = true;
      const box = boxes.get(row.id);
      if (box) box.classList.toggle('found', hit && !!wanted);
    }
    said.textContent = wanted ? found + ' of ' + rows.length + (rows.length === 1 ? ' op' : ' ops') : '';
  };
}
const reveal = () => {
  const row = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!row) return;
  for (let d = row.closest('details'); d; d = d.parentElement.closest('details')) d.open = true;
  if (row.tagName === 'TR' && getComputedStyle(row).display === 'none') row.closest('.ops').querySelector('input').click();
  row.classList.remove('missed'); row.scrollIntoView({block: 'center'}); if (row.tagName === 'TR') row.focus({preventScroll: true});
};
addEventListener('hashchange', reveal); reveal();
addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.tagName === 'INPUT' && event.target.type === 'search';
  if (typing && event.key === 'Escape') { event.target.value = ''; event.target.oninput(); event.target.blur(); }
  if (typing) return;
  if (event.key === '/') { event.preventDefault(); document.querySelector('.tools input').focus(); }
});
"""
