"""A graph as a picture and a table for the browser: one file that asks nobody for anything, or a fragment for a notebook.

Whatever comes from a program is escaped, and the page's content policy lets no script run but its own.
"""

from __future__ import annotations

import base64
import hashlib
import linecache
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import PurePath

from lmc.ir.analysis import answers_put
from lmc.ir.core import DEFAULT, Block, Graph, Op
from lmc.ir.layout import HEIGHT, WIDTH, Picture, Step, picture
from lmc.ir.ops import spec_of, trait
from lmc.ir.text import print_op
from lmc.prompt import plain

MANY = 120
"""Ops from which on the table begins with those that cost something."""


@dataclass(frozen=True)
class Expected:
    """What an ask or a prefill is expected to cost, in the section's unit: of its prompt shared and computed, of choices scored; most
    tokens of its answer, the share of them that its constraint leaves no choice of, number and size of its group."""

    shared: int = 0
    computed: int = 0
    scored: int = 0
    answer: int = 0
    forced: float = 0.0
    group: tuple[int, int] | None = None


@dataclass(frozen=True)
class Seen:
    """What an ask cost in `count` runs together. Tokens; seconds from when its prompt was known to the answer."""

    count: int
    prompt: int
    cached: int
    generated: int
    forced: int
    passes: int
    seconds: float


@dataclass(frozen=True)
class Section:
    """A graph with what is known about it.

    expected, seen  by the index of an op in `graph.ops()`
    critical        indices of the ops of the critical path
    runs            how many runs each block saw, and `facts` what else there is to say
    tables          further facts with their numbers
    unit            what expected lengths are counted in: tokens, or characters where no tokenizer is known
    """

    title: str
    graph: Graph
    expected: Mapping[int, Expected] = field(default_factory=dict[int, Expected])
    seen: Mapping[int, Seen] = field(default_factory=dict[int, Seen])
    critical: frozenset[int] = frozenset()
    runs: Mapping[str, int] = field(default_factory=dict[str, int])
    facts: Sequence[str] = ()
    tables: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    unit: str = "characters"


def page(title: str, sections: Sequence[Section], facts: Sequence[str] = ()) -> str:
    """A whole page: `facts` first, then each section, all but the first folded."""
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_digest(_SCRIPT)}'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{_PAGE_STYLE}</style></head>\n<body>{fragment(title, sections, facts)}<script>{_SCRIPT}</script></body></html>\n'
    )


def fragment(title: str, sections: Sequence[Section], facts: Sequence[str] = ()) -> str:
    """The same without a script, to be embedded: everything but search and zoom works."""
    parts = [f'<div class="lmc"><style>{_STYLE}</style><h1>{escape(title)}</h1>', _facts(facts)]
    for i, section in enumerate(sections):
        body = "".join(_section(section, f"s{i}"))
        parts.append(body if i == 0 else f"<details><summary>{escape(section.title)}</summary>{body}</details>")
    return "".join([*parts, "</div>"])


def _facts(facts: Sequence[str]) -> str:
    return f"<ul class=facts>{''.join(f'<li>{escape(fact)}</li>' for fact in facts)}</ul>" if facts else ""


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _section(section: Section, id: str) -> Iterator[str]:
    graph = section.graph
    count = sum(1 for _ in graph.ops())
    yield f"<section id={id}><h2>{escape(section.title)}</h2><p>{summary(graph)}</p>{_facts(section.facts)}"
    yield f'<h3>Prompts</h3>{_LEGEND}<div class=tools data-for={id}></div><div class=scroll tabindex=0 role=region aria-label="Prompts as a tree">{svg(section, id)}</div>'
    yield "<h3>Ops</h3>" + _key(section)
    checked = ["", " checked"] if count > MANY else [" checked", ""]
    yield (
        f'<div class=ops><p class=filter><label><input type=radio name={id}-show value=all{checked[0]}> all {count} ops</label> '
        f'<label><input type=radio name={id}-show value=asks class=few{checked[1]}> what asks, acts, or decides</label> '
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
    """The graph in a line."""
    asks = sum(op.kind in ("gen", "select") for op in graph.ops())
    ops = sum(1 for _ in graph.ops())
    return f"{ops} ops in {len(graph.blocks)} blocks, {asks} of them ask the model"


def _key(section: Section) -> str:
    unknown = "50" if section.unit == "tokens" else "200, four to a token"
    said = (
        f"Expected: {section.unit} of the prompt that are shared with an op before, computed for this one, and at most so many tokens of "
        f"answer; text that is known only in a run is taken to be {unknown}. "
    ) if section.expected else ""
    seen = "Measured: means of the runs that asked, in tokens; seconds from when the prompt was known to the answer." if section.seen else ""
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
        runs = f", {here} runs" if here is not None else ", no runs" if section.runs else ""
        opened = " open" if total <= MANY or block is graph.entry or marked or here else ""
        yield (
            f"<details{opened} class=block id={_quoted(names[block.label])}><summary>^{escape(block.label)}{escape(_params(block))}"
            f"<span class=quiet> {len(ops)} ops{runs}</span></summary><table class=list>"
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
                f"<tr class={_quoted(style)} id={id}-o{index} tabindex=-1><td>{_source(op) if place != shown else ''}</td><td>{_op(op, names)}</td>"
                f"<td>{expected}</td><td>{seen}</td></tr>"
            )
            shown = place
            index += 1
        yield "</table></details>"


def _params(block: Block) -> str:
    return f"({', '.join(f'%{v.name}: {v.type}' for v in block.params)})" if block.params else ""


def _expected(cost: Expected, most: int) -> str:
    parts = [f"{_count(cost.shared)} shared", f"{_count(cost.computed)} computed"] if cost.shared else [f"{_count(cost.computed)} computed"]
    parts += [f"{_count(cost.scored)} scored"] if cost.scored else []
    parts += [f"≤ {_count(cost.answer)} tokens out" + (f", {cost.forced:.0%} forced" if cost.forced else "")] if cost.answer else []
    parts += [f"group {cost.group[0]} of {cost.group[1]}"] if cost.group else []
    return f"{_bar(cost.shared / most, cost.computed / most)}{escape(' · '.join(parts))}"


def _seen(seen: Seen, longest: float) -> str:
    n = seen.count
    parts = [f"{n}×", f"{_mean(seen.prompt, n)} in, {_mean(seen.cached, n)} cached"]
    if seen.generated:
        parts.append(f"{_mean(seen.generated, n)} out" + (f", {_mean(seen.forced, n)} forced" if seen.forced else ""))
    parts += [f"{_mean(seen.passes, n)} passes", seconds(seen.seconds / n)]
    return f"{_bar(seen.cached / n / longest, (seen.prompt - seen.cached) / n / longest)}{escape(' · '.join(parts))}"


def _bar(shared: float, computed: float) -> str:
    return f'<span class=bar aria-hidden=true><i class=shared style="width:{shared:.1%}"></i><i class=computed style="width:{computed:.1%}"></i></span>'


def _mean(total: float, n: int) -> str:
    return _count(round(total / n)) if total / n >= 9.5 else f"{total / n:.2g}"


def _count(n: int) -> str:
    return f"{n:,}".replace(",", " ")


def seconds(s: float) -> str:
    """A duration for people."""
    return f"{s:.2f} s" if s >= 1 else f"{s * 1e3:.3g} ms" if s >= 1e-3 else f"{s * 1e6:.0f} µs"


def _style(op: Op) -> str:
    found = spec_of(op.kind)
    if found is None or found.trait == "opaque":
        return "effect" if op.attr("calls") is not None else "pure"
    return found.trait


def _source(op: Op) -> str:
    if op.loc is None:
        return ""
    line = linecache.getline(op.loc.file, op.loc.line).strip()
    where = f"{PurePath(op.loc.file).name}:{op.loc.line}"
    return f"<span class=quiet title={_quoted(str(op.loc))}>{escape(where)}</span> <code>{escape(_short(line, 100))}</code>"


def _op(op: Op, names: Mapping[str, str]) -> str:
    whole = print_op(Op(op.kind, op.operands, op.results, op.attrs))
    text = _bold(op, _short(whole, 200))
    if len(whole) > 200:
        text = f"<details class=long><summary>{text}</summary>{_bold(op, whole)}</details>"
    links = (
        f"{'_' if case is DEFAULT else escape(_short(str(case), 60))} → <a href={_quoted('#' + names[label])}>^{escape(label)}</a>"
        for case, label in op.cases
    )
    then = f" then <a href={_quoted('#' + names[op.then])}>^{escape(op.then)}</a>" if op.then is not None else ""
    return text + (" [" + ", ".join(links) + "]" if op.cases else "") + then


def _bold(op: Op, text: str) -> str:
    name = escape(op.kind)
    return escape(text).replace(f"{name}(", f"<b>{name}</b>(", 1)


def _anchor(label: str) -> str:
    return "b-" + "".join(c if c.isascii() and c.isalnum() else f"-{ord(c):x}-" for c in label)


def _quoted(text: str) -> str:
    return '"' + escape(text, quote=True) + '"'


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# -- the picture ---------------------------------------------------------------------------------------------------


def svg(section: Section, id: str = "s0") -> str:
    """The tree of prompts, each box a link to its row in the table; what an answer is given to is drawn dashed."""
    graph = section.graph
    drawn = picture(graph)
    if not drawn.steps:
        return "<p>no prompts</p>"
    ops = list(graph.ops())
    pinned = {op.operands[0] for op in ops if op.kind == "prefill"}
    width, height = f"{drawn.width + 36:.0f}", f"{drawn.height:.0f}"  # room for curves on the right
    parts = [_edge(a, b, drawn, section) for a in drawn.steps for b in a.children]
    home = {i: step for step in drawn.steps for i in step.ops}
    for index, put in answers_put(graph).items():
        parts += [_data_edge(home[i], home[index], section, i, index) for i in put if i in home and index in home and home[i] is not home[index]]
    parts += [_box(step, ops, section, id, any(v in pinned for i in step.ops for v in ops[i].results)) for step in drawn.steps]
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="tree of prompts">{"".join(parts)}</svg>'
    )


def _box(step: Step, ops: Sequence[Op], section: Section, id: str, pinned: bool) -> str:
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
    style += " idle" if section.runs and not section.runs.get(step.block) else ""
    cost = _cost_line(step, section, last) + (", prefilled" if pinned else "")
    x, y = f"{step.x:.0f}", f"{step.y:.0f}"
    return (
        f'<a href="{escape(link)}" class="{style}"><title>{escape(_short(title, 2000))}</title><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{step.x + 8:.0f}" y="{step.y + 16:.0f}">{escape(_short(label, 24))}</text>'
        f'<text class="quiet" x="{step.x + 8:.0f}" y="{step.y + 32:.0f}">{escape(_short(cost, 31))}</text></a>'
    )


def _text(ops: Sequence[Op], indices: Sequence[int]) -> str:
    """The beginning of the text of a step."""
    parts = [p for i in indices if ops[i].kind == "append" for p in ops[i].operands[1:]]
    shown = plain([p for p in parts if isinstance(p, str)]).strip()
    return f"“{' '.join(shown.split())}”" if shown else "white space" if all(isinstance(p, str) for p in parts) and parts else ops[indices[-1]].kind


def _cost_line(step: Step, section: Section, last: int | None) -> str:
    if last is not None and last in section.seen:
        s = section.seen[last]
        return f"{_mean(s.prompt - s.cached, s.count)} new + {_mean(s.generated, s.count)} out, {seconds(s.seconds / s.count)}"
    if last is not None and last in section.expected:
        e = section.expected[last]
        unit = "tok" if section.unit == "tokens" else "ch"
        return f"{_count(e.computed)} {unit} new" + (f", ≤ {e.answer} tok out" if e.answer else f", {_count(e.scored)} {unit} scored" if e.scored else "")
    return f"{len(step.ops)} op{'s'[: len(step.ops) != 1]}"


def _edge(a: Step, b: Step, drawn: Picture, section: Section) -> str:
    if drawn.down:
        x1, y1, x2, y2 = a.x + WIDTH / 2, a.y + HEIGHT, b.x + WIDTH / 2, b.y
        bend = f"M{x1:.0f} {y1:.0f} C{x1:.0f} {(y1 + y2) / 2:.0f} {x2:.0f} {(y1 + y2) / 2:.0f} {x2:.0f} {y2:.0f}"
        tx, ty, anchor = x2 + 4, y2 - 6, "start"
    else:
        x1, y1, x2, y2 = a.x + WIDTH, a.y + HEIGHT / 2, b.x, b.y + HEIGHT / 2
        bend = f"M{x1:.0f} {y1:.0f} C{(x1 + x2) / 2:.0f} {y1:.0f} {(x1 + x2) / 2:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
        tx, ty, anchor = x2 - 4, y2 - 5, "end"
    marked = section.critical.intersection(a.ops) and section.critical.intersection(b.ops)
    label = f'<text class="case" x="{tx:.0f}" y="{ty:.0f}" text-anchor="{anchor}">{escape(_short(b.case, 8))}</text>' if b.case else ""
    return f'<path class="{"critical" if marked else "plain"}" d="{bend}"/>{label}'


def _data_edge(a: Step, b: Step, section: Section, i: int, j: int) -> str:
    """From an answer to an ask whose prompt it is put into; around the boxes between, as far as a curve can."""
    marked = " critical" if i in section.critical and j in section.critical else ""
    if a.x == b.x:
        x, y1, y2 = a.x + WIDTH, a.y + HEIGHT / 2, b.y + HEIGHT / 2
        return f'<path class="data{marked}" d="M{x:.0f} {y1:.0f} C{x + 44:.0f} {y1:.0f} {x + 44:.0f} {y2:.0f} {x:.0f} {y2:.0f}"/>'
    ax, bx = (a.x + WIDTH, b.x) if a.x < b.x else (a.x, b.x + WIDTH)
    y1, y2 = a.y + HEIGHT / 2, b.y + HEIGHT / 2
    return f'<path class="data{marked}" d="M{ax:.0f} {y1:.0f} C{(ax + bx) / 2:.0f} {y1:.0f} {(ax + bx) / 2:.0f} {y2:.0f} {bx:.0f} {y2:.0f}"/>'


_LEGEND = (
    "<p class=legend><span><b class=samples></b>asks the model</span> <span><b class=text></b>text</span> <span><b class=pinned></b>prefilled</span> "
    "<span><b class=critical></b>critical path</span> <span>dashed: an answer put into another prompt</span></p>"
)

_PAGE_STYLE = ":root{color-scheme:light dark}body{margin:0;background:light-dark(#fff,#16181c)}"

_STYLE = """
.lmc{color-scheme:light dark;--line:light-dark(#d4d4d8,#42454c);--ask:light-dark(#fff1d6,#4a3a14);--act:light-dark(#ffe3e3,#4d2020);
--end:light-dark(#e6ecff,#232c4d);--pin:light-dark(#0a7d36,#4fd483);--quiet:light-dark(#5d6066,#a2a6ad);--crit:light-dark(#c2185b,#ff7aa8);
--box:light-dark(#f4f4f5,#24272d);--shared:light-dark(#7cc79a,#2f7d50);--computed:light-dark(#e8a33d,#b9791f);
font:14px/1.45 system-ui,sans-serif;padding:1.2rem 1.5rem;background:light-dark(#fff,#16181c);color:light-dark(#1b1b1b,#e4e4e4)}
.lmc h1{font-size:1.3rem;margin:0 0 .4rem}.lmc h2{font-size:1.1rem;margin:1.2rem 0 .2rem}.lmc h3{font-size:1rem;margin:1.2rem 0 .3rem}.lmc p{margin:.3rem 0}
.lmc .facts{margin:.3rem 0;padding-left:1.2rem}.lmc .quiet{color:var(--quiet)}.lmc .n{text-align:right}
.lmc table{border-collapse:collapse}.lmc .small{margin:.2rem 0}
.lmc .small td{padding:1px 12px 1px 0;text-align:left}.lmc .small .n{text-align:right}
.lmc .scroll{overflow:auto;max-height:72vh;border:1px solid var(--line);border-radius:6px}.lmc svg{display:block}
.lmc .legend span{margin-right:1.1rem;white-space:nowrap}.lmc .legend b{display:inline-block;width:1.4em;height:.8em;margin-right:.35em;border:1px solid var(--line);border-radius:3px;background:var(--box)}
.lmc .legend b.samples{background:var(--ask)}.lmc .legend b.pinned{border:2px solid var(--pin)}.lmc .legend b.critical{border:2px solid var(--crit)}
.lmc svg rect{fill:var(--box);stroke:var(--line)}.lmc svg .samples rect{fill:var(--ask)}.lmc svg .pinned rect{stroke:var(--pin);stroke-width:2}
.lmc svg .critical rect{stroke:var(--crit);stroke-width:2.5}.lmc svg .idle{opacity:.55}.lmc svg path{fill:none;stroke:var(--quiet);stroke-width:1.2}
.lmc svg path.critical{stroke:var(--crit);stroke-width:2.5}.lmc svg path.data{stroke-dasharray:4 4;opacity:.8}
.lmc svg text{font:12px ui-monospace,monospace;fill:light-dark(#1b1b1b,#e4e4e4)}.lmc svg text.quiet{font-size:10.5px;fill:var(--quiet)}.lmc svg text.case{font-size:10px;fill:var(--quiet)}
.lmc svg a:focus{outline:none}.lmc svg a:focus rect,.lmc svg a:hover rect,.lmc svg a.found rect{stroke:light-dark(#1b4fd8,#8fb0ff);stroke-width:3}.lmc a{color:light-dark(#1b4fd8,#8fb0ff)}
.lmc .list{width:100%;table-layout:fixed}.lmc .c1{width:26%}.lmc .c3{width:17%}.lmc .c4{width:19%}
.lmc .list td,.lmc .list th,.lmc .code{font:12.5px/1.5 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;text-align:left;vertical-align:top}
.lmc .list td,.lmc .list th{padding:2px 10px 2px 4px;border-bottom:1px solid var(--line);background:none}.lmc .list th{color:var(--quiet);font-weight:400}
.lmc .list td:first-child{color:var(--quiet)}.lmc code{font:inherit;background:none;color:inherit;padding:0}
.lmc tr.samples td:nth-child(2){background:var(--ask)}.lmc tr.effect td:nth-child(2),.lmc tr.ordered td:nth-child(2){background:var(--act)}.lmc tr.terminator td:nth-child(2){background:var(--end)}
.lmc tr.critical td:first-child{box-shadow:inset 4px 0 var(--crit)}.lmc .list td:first-child{padding-left:10px}
.lmc tr:target td,.lmc tr:focus td{outline:2px solid light-dark(#1b4fd8,#8fb0ff);outline-offset:-2px}.lmc tr:focus{outline:none}
.lmc .ops:has(input.few:checked) tr.pure,.lmc .ops:has(input.crit:checked) tr:not(.critical):not(.head),.lmc tr.missed{display:none}
.lmc .bar{display:block;height:5px;width:100%;margin:5px 0 1px;background:light-dark(#ececef,#2b2e35);overflow:hidden;border-radius:2px;white-space:normal;font-size:0}.lmc .bar i{display:inline-block;height:5px;vertical-align:top}
.lmc .bar .shared{background:var(--shared)}.lmc .bar .computed{background:var(--computed)}
.lmc .block{margin-top:.7rem}.lmc summary{cursor:pointer}.lmc .block>summary{font:600 13px ui-monospace,monospace}.lmc .block>summary .quiet{font-weight:400}.lmc .long summary{list-style-position:outside}
.lmc .filter label{margin-right:1.2rem}.lmc .tools{display:flex;gap:.5rem;align-items:center;margin:.3rem 0;flex-wrap:wrap}.lmc .tools input{min-width:16rem}
.lmc .tools button,.lmc .tools input{font:inherit;color:inherit;background:var(--box);border:1px solid var(--line);border-radius:4px;padding:.15rem .6rem}
@media(max-width:800px){.lmc{padding:.8rem}.lmc .list colgroup,.lmc .list .head{display:none}.lmc .list tr{display:block;border-bottom:1px solid var(--line)}.lmc .list td{display:block;border:0}.lmc .list td:empty{display:none}}
@media print{.lmc .scroll{max-height:none}.lmc .tools,.lmc .filter{display:none}}
"""

_SCRIPT = """
'use strict';
for (const tools of document.querySelectorAll('.tools')) {
  const section = document.getElementById(tools.dataset.for), svg = section.querySelector('svg'), frame = section.querySelector('.scroll');
  const said = document.createElement('span'), field = document.createElement('input');
  field.type = 'search'; field.placeholder = 'search ops ( / )'; field.setAttribute('aria-label', 'search ops');
  said.className = 'quiet'; said.setAttribute('role', 'status');
  const button = (text, act) => { const b = document.createElement('button'); b.type = 'button'; b.textContent = text; b.onclick = act; tools.append(b); return b; };
  if (svg) {
    const own = svg.viewBox.baseVal;
    const zoom = scale => { svg.setAttribute('width', own.width * scale); svg.setAttribute('height', own.height * scale); };
    const now = () => svg.getAttribute('width') / own.width;
    button('fit', () => zoom(Math.min(1, (frame.clientWidth - 2) / own.width, Math.max(200, innerHeight * .7) / own.height)));
    button('1 : 1', () => zoom(1));
    button('+', () => zoom(now() * 1.25)).setAttribute('aria-label', 'larger');
    button('\\u2212', () => zoom(now() / 1.25)).setAttribute('aria-label', 'smaller');
    if (own.width > frame.clientWidth) zoom(Math.max(.6, (frame.clientWidth - 2) / own.width));
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
    said.textContent = wanted ? found + ' of ' + rows.length + ' ops' : '';
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
  if (event.key === 'j' || event.key === 'k') {
    const rows = [...document.querySelectorAll('.list tr[id]')].filter(row => row.offsetParent);
    const at = rows.indexOf(document.activeElement), next = rows[at < 0 ? 0 : at + (event.key === 'j' ? 1 : -1)];
    if (next) { next.focus(); next.scrollIntoView({block: 'nearest'}); }
  }
});
"""
