"""Shared parts of all pages for a browser: the document, the style (light and dark, 400 px to wide), bars, and
timelines of requests.

A page is one file that loads nothing else. Its content policy lets no script run but its own; text from a program is
escaped by the caller. `STYLE` is enough for a fragment, as in a notebook.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape


def page(title: str, body: str, *, script: str = "", asks_server: str = "'none'") -> str:
    """Render a whole document. `asks_server`: the source of the content policy that its script may fetch from."""
    scripts = f"'sha256-{_digest(script)}'" if script else "'none'"
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {scripts}; connect-src {asks_server}; form-action 'none'; base-uri 'none'"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>:root{{color-scheme:light dark}}body{{margin:0;background:light-dark(#fff,#16181c)}}{STYLE}</style></head>\n'
        f'<body><div class="lmc">{body}</div>{f"<script>{script}</script>" if script else ""}</body></html>\n'
    )


def fragment(body: str, kind: str = "") -> str:
    """Render the same to embed in another page."""
    return f'<div class="lmc embedded {kind}"><style>{STYLE}</style>{body}</div>'


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# -- pieces --------------------------------------------------------------------------------------------------------


def facts(lines: Sequence[str]) -> str:
    """Render a list of sentences."""
    return f"<ul class=facts>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def bar(*parts: tuple[str, float]) -> str:
    """Render shares of a whole side by side, each with the class that colours it."""
    inner = "".join(f'<i class={kind} style="width:{share:.1%}"></i>' for kind, share in parts if share > 0)
    return f"<span class=bar aria-hidden=true>{inner}</span>"


def legend(*entries: tuple[str, str]) -> str:
    """Render the legend of colours: classes and words."""
    return f"<p class=legend>{' '.join(f'<span><b class={quoted(kind)}></b>{escape(text)}</span>' for kind, text in entries)}</p>"


def contents(*sections: tuple[str, str]) -> str:
    """Render links to the sections of a page, by their ids."""
    links = " ".join(f"<a href={quoted('#' + id)}>{escape(name)}</a>" for id, name in sections)
    return f"<nav aria-label=Sections>{links}</nav>"


def quoted(text: str) -> str:
    """Quote an attribute's value."""
    return '"' + escape(text, quote=True) + '"'


def short(text: str, limit: int) -> str:
    """Truncate a long text."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def count(n: int) -> str:
    """Format a number for people."""
    return f"{n:,}".replace(",", " ")


def several(n: int, what: str) -> str:
    """Format a count with its noun."""
    plural = "es" if what.endswith(("ch", "s", "x")) else "s"
    return f"{count(n)} {what}{plural if n != 1 else ''}"


def seconds(s: float) -> str:
    """Format a duration for people."""
    return f"{s:.2f} s" if s >= 1 else f"{s * 1e3:.3g} ms" if s >= 1e-3 else f"{s * 1e6:.0f} µs"


def money(amount: float) -> str:
    """Return a price in dollars, with two digits that count below a dollar."""
    return f"${amount:.{2 if amount >= 1 or amount <= 0 else 1 - math.floor(math.log10(amount))}f}"


# -- a timeline ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimelineRow:
    """One line of a timeline.

    label, note  what it is, and its numbers
    spans        begin and end in seconds since the timeline's begin, with the class that colours each
    where        the source line
    """

    label: str
    note: str
    spans: Sequence[tuple[float, float, str]]
    where: str = ""


def timeline(rows: Sequence[TimelineRow], end: float) -> str:
    """Render rows over one axis of `end` seconds."""
    whole = end or 1.0
    marks = "".join(f'<span style="left:{at / whole:.2%}"><i>{seconds(at) if at else "0"}</i></span>' for at in _ticks(whole))
    lines = "".join(f'<u style="left:{at / whole:.2%}"></u>' for at in _ticks(whole))
    found = [f"<div class=axis aria-hidden=true><div class=track>{marks}</div></div>"]
    for row in rows:
        said = ", ".join(f"{WORDS[kind]} {seconds(e - b)}" for b, e, kind in row.spans if kind in WORDS)
        spans = "".join(f'<i class={kind} style="left:{min(b / whole, 0.998):.3%};width:{max(0.002, (e - b) / whole):.3%}"></i>' for b, e, kind in row.spans)
        where = f" <span class=quiet>{escape(row.where)}</span>" if row.where else ""
        found.append(
            f"<div class=row tabindex=0 title={quoted(said)}><div class=what><b>{escape(row.label)}</b>{where}</div>"
            f"<div class=note>{escape(row.note)}</div><div class=track role=img aria-label={quoted(said)}>{lines}{spans}</div></div>"
        )
    return f"<div class=gantt>{''.join(found)}</div>"


WORDS = {
    "ahead": "asked ahead",
    "early": "submitted before its prompt was known",
    "wait": "waiting",
    "prefill": "prefill",
    "decode": "answer",
    "tool": "the program and its tools",
    "vain": "asked ahead and not used",
}
"""Meaning of a timeline's colours."""


def _ticks(end: float) -> Iterable[float]:
    """Return at most six round numbers from 0 on, none at the very end, where it would not fit."""
    step = 10.0 ** math.floor(math.log10(end))
    step = next(s for s in (step / 4, step / 2, step, 2 * step) if end / s <= 6)
    return [i * step for i in range(int(end / step) + 1) if i * step <= 0.9 * end or i == 0]


KEYS = """
'use strict';
addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  if (event.key !== 'j' && event.key !== 'k') return;
  const rows = [...document.querySelectorAll('.gantt .row, .list tr[id], .step')].filter(row => row.offsetParent);
  const at = rows.indexOf(document.activeElement.closest('.row, tr[id], .step')), next = rows[at < 0 ? 0 : at + (event.key === 'j' ? 1 : -1)];
  if (next) { next.focus({preventScroll: true}); next.scrollIntoView({block: 'nearest'}); }
});
"""
"""Script: the keys j and k move between rows."""


_THEMES = ("body[data-jp-theme-light={jupyter}]", "html[theme={name}]", "html[data-theme={name}]", "body.vscode-{name}")
"""How pages around a fragment say that their theme is not the system's: JupyterLab, Colab, Sphinx, VS Code."""


def _themes() -> str:
    marks = {name: [mark.format(name=name, jupyter=jupyter) for mark in _THEMES] for name, jupyter in (("light", "true"), ("dark", "false"))}
    return "".join(f"{','.join(f'{mark} .lmc' for mark in found)}{{color-scheme:{name}}}\n" for name, found in marks.items())


STYLE = """
.lmc{color-scheme:light dark;--line:light-dark(#d4d4d8,#42454c);--ask:light-dark(#fff1d6,#4a3a14);--act:light-dark(#ffe3e3,#4d2020);
--end:light-dark(#e6ecff,#232c4d);--pin:light-dark(#0a7d36,#4fd483);--quiet:light-dark(#5d6066,#a2a6ad);--crit:light-dark(#c2185b,#ff7aa8);
--box:light-dark(#f4f4f5,#24272d);--text:light-dark(#1b1b1b,#e4e4e4);--link:light-dark(#1b4fd8,#8fb0ff);--bad:light-dark(#b3261e,#ff8a80);
--shared:light-dark(#2f9e5f,#46b377);--computed:light-dark(#cf7d10,#d99a3c);--decode:light-dark(#2f6fde,#6d9bf5);--tool:light-dark(#8e4ec6,#b98be0);
--wait:light-dark(#8a8f98,#7d828b);--answer:light-dark(#e3f4e8,#1d3a28);--forced:light-dark(#fbe3b4,#57431a);
box-sizing:border-box;font:14px/1.45 system-ui,sans-serif;max-width:1600px;margin:0 auto;padding:1.2rem 1.5rem;background:light-dark(#fff,#16181c);
color:var(--text);overflow-wrap:anywhere}
.lmc *,.lmc *::before{box-sizing:border-box}.lmc.embedded{padding:.6rem .8rem;border-radius:6px}
.lmc h1{font-size:1.3rem;margin:0 0 .4rem;line-height:1.25}.lmc h2{font-size:1.1rem;margin:1.6rem 0 .3rem}.lmc h3{font-size:1rem;margin:1.2rem 0 .3rem}
.lmc p{margin:.3rem 0}
.lmc .facts{margin:.3rem 0;padding-left:1.2rem}.lmc .quiet{color:var(--quiet)}.lmc .n{text-align:right;font-variant-numeric:tabular-nums}
.lmc .bad{color:var(--bad)}
.lmc nav{display:flex;flex-wrap:wrap;gap:.3rem 1.1rem;margin:.5rem 0}.lmc a{color:var(--link)}
.lmc table{border-collapse:collapse}.lmc .small{margin:.2rem 0}
.lmc .small td,.lmc .small th{padding:1px 12px 1px 0;text-align:left;vertical-align:top}.lmc .small th{color:var(--quiet);font-weight:400}
.lmc .small .n{text-align:right}
.lmc .scroll{overflow:auto;max-width:100%;border:1px solid var(--line);border-radius:6px}.lmc svg{display:block}
.lmc code,.lmc .code{font:12.5px/1.5 ui-monospace,monospace;background:none;color:inherit;padding:0}
.lmc pre{margin:0;white-space:pre-wrap;font:12.5px/1.5 ui-monospace,monospace;background:none;color:inherit}
.lmc .code{white-space:pre-wrap}.lmc summary{cursor:pointer}.lmc details>summary:hover{text-decoration:underline}
.lmc :focus-visible{outline:2px solid var(--link);outline-offset:1px}
.lmc button,.lmc input:not([type=radio]):not([type=checkbox]),.lmc textarea,.lmc select{font:inherit;color:inherit;background:var(--box);
border:1px solid var(--wait);border-radius:4px;padding:.25rem .6rem;max-width:100%}
.lmc button{cursor:pointer}.lmc button:hover{border-color:var(--link)}.lmc button:disabled{opacity:.6;cursor:default}
.lmc textarea{width:100%;font:12.5px/1.5 ui-monospace,monospace}
.lmc .legend{display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;color:var(--quiet);font-size:.93em}.lmc .legend span{white-space:nowrap}
.lmc .legend b{display:inline-block;width:1.4em;height:.8em;margin-right:.35em;border:1px solid var(--line);border-radius:3px;background:var(--box)}
.lmc .legend b.text{background:var(--box)}.lmc .legend b.samples{background:var(--ask)}.lmc .legend b.pinned{border:2px solid var(--pin)}
.lmc .legend b.critical{border:2px solid var(--crit)}
.lmc .legend b.dash{height:0;border:0;border-top:2px dashed var(--quiet);border-radius:0;background:none;vertical-align:middle}
.lmc .legend b.a{background:var(--answer)}.lmc .legend b.f{background:var(--forced)}
.lmc .legend b.k{background:none;border:0;border-bottom:2px solid var(--shared);border-radius:0}
.lmc .bar{display:flex;height:6px;width:100%;margin:5px 0 1px;background:light-dark(#ececef,#2b2e35);overflow:hidden;border-radius:2px}
.lmc .bar i{display:block;height:6px}
.lmc i.shared,.lmc b.shared{background:var(--shared)!important}
.lmc i.computed,.lmc i.prefill,.lmc b.computed,.lmc b.prefill{background:var(--computed)!important}
.lmc i.decode,.lmc b.decode,.lmc i.time{background:var(--decode)!important}.lmc i.tool,.lmc b.tool,.lmc i.money{background:var(--tool)!important}
.lmc i.forced{background:light-dark(#b58200,#e0b040)!important}
.lmc i.wait,.lmc b.wait{background:repeating-linear-gradient(135deg,var(--wait) 0 2px,transparent 2px 5px)!important}
.lmc i.ahead,.lmc b.ahead{background:none!important;border:1px dashed var(--decode)!important}
.lmc i.vain,.lmc b.vain{background:repeating-linear-gradient(45deg,var(--bad) 0 2px,transparent 2px 6px)!important;border:1px solid var(--bad)!important}
.lmc i.early,.lmc b.early{background:radial-gradient(circle,var(--wait) 1px,transparent 1.5px) 0 0/6px 6px!important}
.lmc .talk{max-width:70rem}.lmc .m{display:grid;grid-template-columns:6.5em minmax(0,1fr);gap:0 .8em;padding:.4em 0;border-top:1px solid var(--line)}
.lmc .r{font-weight:600;color:var(--quiet)}.lmc .t{white-space:pre-wrap;min-width:0}
.lmc .s{color:var(--quiet);font-family:ui-monospace,monospace;font-size:12px}
.lmc .t .a{background:var(--answer);border-radius:3px;padding:1px 2px;-webkit-box-decoration-break:clone;box-decoration-break:clone}
.lmc .t .a .f{background:var(--forced);border-radius:2px}
.lmc .t .e{background:var(--act);border-radius:3px;padding:1px 2px}
.lmc .t .k{text-decoration:underline;text-decoration-thickness:2px;text-underline-offset:3px;text-decoration-skip-ink:none;text-decoration-color:var(--shared)}
.lmc .c{display:block;font-size:12px;color:var(--quiet);white-space:normal;margin:.1em 0 .4em}
.lmc .c .bar{display:inline-flex;width:6em;vertical-align:middle;margin:0 .5em 0 0}
.lmc .t .n,.lmc .c .n{font-family:ui-monospace,monospace}.lmc .t img{max-width:min(16em,100%);max-height:12em;display:block;border-radius:4px;margin:.2em 0}
.lmc .source{width:100%;max-width:80rem;table-layout:fixed}.lmc .source td{vertical-align:top;padding:0 8px 0 0;font:12.5px/1.5 ui-monospace,monospace}
.lmc .source col.no{width:4em}.lmc .source col.on{width:11em}
.lmc .source td:first-child{color:var(--quiet);text-align:right}.lmc .source .line{white-space:pre-wrap}.lmc .source tr.hot{background:var(--box)}
.lmc .source td.on{font-size:11.5px}
.lmc .source th{text-align:left;font-weight:400;color:var(--quiet);padding:0 8px 2px 0}.lmc .source .bar{margin:2px 0 0}
.lmc .gantt{margin:.3rem 0}.lmc .gantt .row,.lmc .gantt .axis{display:grid;grid-template-columns:minmax(11em,18%) minmax(0,1fr) minmax(13em,20%);gap:0 .8em;
align-items:center;padding:3px 4px;border-top:1px solid var(--line)}
.lmc .gantt .axis{border:0;height:1.6em}.lmc .gantt .track{position:relative;height:16px;grid-column:2;grid-row:1}.lmc .gantt .axis .track{height:1.4em}
.lmc .gantt .axis span{position:absolute;bottom:0;height:4px;border-left:1px solid var(--wait)}
.lmc .gantt .axis span i{position:absolute;bottom:4px;left:-1px;font:11px/1.2 ui-monospace,monospace;color:var(--quiet);white-space:nowrap}
.lmc .gantt .row .track{background:var(--box);border-radius:3px;overflow:hidden}.lmc .gantt .row i{position:absolute;top:2px;height:12px;border-radius:2px}
.lmc .gantt u{position:absolute;top:0;height:16px;border-left:1px solid var(--line)}
.lmc .gantt .what{grid-column:1;grid-row:1;font-size:13px}.lmc .gantt .what b{font-family:ui-monospace,monospace;font-weight:600}
.lmc .gantt .note{grid-column:3;grid-row:1;font-size:12px;color:var(--quiet)}
.lmc svg rect{fill:var(--box);stroke:var(--line)}.lmc svg .samples rect{fill:var(--ask)}.lmc svg .pinned rect{stroke:var(--pin);stroke-width:2}
.lmc svg .critical rect{stroke:var(--crit);stroke-width:2.5}.lmc svg .idle rect{fill:light-dark(#fff,#16181c);stroke-dasharray:3 3}
.lmc svg path{fill:none;stroke:var(--quiet);stroke-width:1.2}
.lmc svg path.critical{stroke:var(--crit);stroke-width:2.5}.lmc svg path.data{stroke-dasharray:4 4;opacity:.8}
.lmc svg text{font:12px ui-monospace,monospace;fill:var(--text)}.lmc svg text.quiet{font-size:10.5px;fill:var(--quiet)}
.lmc svg text.case{font-size:10px;fill:var(--quiet);stroke:light-dark(#fff,#16181c);stroke-width:4;stroke-linejoin:round;paint-order:stroke}
.lmc svg a:focus{outline:none}.lmc svg a:focus rect,.lmc svg a:hover rect,.lmc svg a.found rect{stroke:var(--link);stroke-width:3}
.lmc .list{width:100%;table-layout:fixed}.lmc .c1{width:26%}.lmc .c3{width:17%}.lmc .c4{width:19%}
.lmc .list td,.lmc .list th{font:12.5px/1.5 ui-monospace,monospace;white-space:pre-wrap;text-align:left;vertical-align:top}
.lmc .list td,.lmc .list th{padding:2px 10px 2px 4px;border-bottom:1px solid var(--line);background:none}.lmc .list th{color:var(--quiet);font-weight:400}
.lmc .list td:first-child{color:var(--quiet)}
.lmc tr.samples td:nth-child(2){background:var(--ask)}.lmc tr.effect td:nth-child(2),.lmc tr.ordered td:nth-child(2){background:var(--act)}
.lmc tr.terminator td:nth-child(2){background:var(--end)}
.lmc tr.critical td:first-child{box-shadow:inset 4px 0 var(--crit)}.lmc .list td:first-child{padding-left:10px}
.lmc tr:target td,.lmc tr:focus td{outline:2px solid var(--link);outline-offset:-2px}.lmc tr:focus{outline:none}
.lmc .ops:has(input.few:checked) tr.pure,.lmc .ops:has(input.crit:checked) tr:not(.critical):not(.head),.lmc tr.missed{display:none}
.lmc .block{margin-top:.7rem}.lmc .block>summary{font:600 13px ui-monospace,monospace}.lmc .block>summary .quiet{font-weight:400}
.lmc .filter label{margin-right:1.2rem;display:inline-block}.lmc .tools{display:flex;gap:.5rem;align-items:center;margin:.3rem 0;flex-wrap:wrap}
.lmc .tools input{min-width:min(16rem,100%)}
.lmc svg.fsm{text-anchor:middle}.lmc svg.fsm text{font-size:11px;stroke:light-dark(#fff,#16181c);stroke-width:6;stroke-linejoin:round;paint-order:stroke}
.lmc svg.fsm circle{fill:light-dark(#fff,#16181c);stroke:var(--text);stroke-width:1.3}.lmc svg.fsm marker path{fill:var(--quiet);stroke:none}
.lmc svg.fsm #chain-tip path{fill:var(--link)}
.lmc svg.fsm .chain path{stroke:var(--link);stroke-width:2.2}.lmc svg.fsm .chain text{fill:var(--link)}
.lmc .card{border:1px solid var(--line);border-radius:6px;padding:.7rem .9rem;margin:.8rem 0}
.lmc .step{border-left:4px solid var(--line);padding:.1rem 0 .1rem .8rem;margin:.7rem 0;max-width:70rem}
.lmc .step.gen,.lmc .step.select,.lmc .step.ask{border-color:var(--decode)}.lmc .step.effect{border-color:var(--tool)}
.lmc img.thumb{max-width:16em;max-height:12em;border-radius:4px;margin:.2rem .4rem .2rem 0}
.lmc .step header{display:flex;flex-wrap:wrap;gap:0 .8em;align-items:baseline}.lmc .step .given{color:var(--quiet);margin:.2rem 0}
.lmc .step .got{background:var(--answer);border-radius:3px;padding:1px 4px}.lmc .step.effect .got{background:var(--box)}
.lmc .step .ways{color:var(--quiet);margin:.2rem 0 0}.lmc .tag{border:1px solid var(--line);border-radius:9px;padding:0 .5em;font-size:12px;color:var(--quiet)}
.lmc .tag.now,.lmc .tag.changed{color:var(--crit);border-color:var(--crit)}
@media(max-width:800px){.lmc{padding:.8rem}.lmc .list colgroup,.lmc .list .head{display:none}.lmc .list tr{display:block;border-bottom:1px solid var(--line)}
.lmc .list td{display:block;border:0}.lmc .list td:empty{display:none}
.lmc .list td:nth-child(3):not(:empty)::before{content:"expected: ";color:var(--quiet)}
.lmc .list td:nth-child(4):not(:empty)::before{content:"measured: ";color:var(--quiet)}
.lmc .m{grid-template-columns:minmax(0,1fr)}
.lmc .source colgroup,.lmc .source tr.head{display:none}.lmc .source,.lmc .source tbody{display:block}
.lmc .source tr{display:grid;grid-template-columns:2.6em repeat(var(--on),1fr)}.lmc .source td{padding:0 8px 2px 0}.lmc .source .line{grid-column:2/-1}
.lmc .source td.on:empty{display:none}.lmc .source td.on:nth-child(3){grid-column:2}
.lmc .gantt .row{grid-template-columns:minmax(0,1fr) auto;gap:2px .6em}.lmc .gantt .axis{grid-template-columns:minmax(0,1fr);padding:0 4px}
.lmc .gantt .what{grid-column:1;grid-row:1}.lmc .gantt .note{grid-column:1/-1;grid-row:2}.lmc .gantt .row .track{grid-column:1/-1;grid-row:3}
.lmc .gantt .axis .track{grid-column:1}}
@media(max-width:800px){.lmc .gantt .axis span:nth-child(even) i{display:none}}
@media print{.lmc .scroll{max-height:none}.lmc .tools,.lmc .filter,.lmc nav{display:none}}
""" + _themes()
"""Style of all lmc pages, under the class `lmc`, so that a surrounding page keeps its own."""
