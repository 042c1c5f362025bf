"""Pages in a real browser: they load alone, nothing complains, and what they show can be read, small and large, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import lmc
from lmc.backend.usage import Prices
from lmc.durable import steps, viewer
from lmc.fsm import draw
from lmc.fsm.compress import compress
from lmc.fsm.regex import compile_regex
from tests.browser import CHROMIUM, MISSING, Browser, browser, pixels

pytestmark = [pytest.mark.api, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]

NASTY = "</script><img src=x onerror=alert(1)>\"'`${x}"
SIZES = {5: (0, 0), 20: (3, 2), 64: (5, 5), 500: (25, 9)}
"""Forks and the asks of each, by about how many ops the program has."""


def worker(width: int, depth: int) -> lmc.Function:
    @lmc.function
    def work(s, topic):
        s += "Read about " + topic + ". " + lmc.gen("first", max_tokens=8)
        forks = s.fork(width)
        for i, f in enumerate(forks):
            for j in range(depth):
                f += f"Step {j} of {i}: " + lmc.gen("step", max_tokens=4)
        forks.join()

    return work


@lmc.function
def nasty(s, q):
    s += lmc.user(q + "</script><img src=x onerror=alert(1)>\"'`${x}") + lmc.assistant(lmc.gen("</b>", stop="</svg>"))


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def page_of(program: lmc.Program, folder: Path, **arguments: Any) -> Path:
    program(**arguments, temperature=0).sync()
    file = folder / "page.html"
    file.write_text(program.explain(format="html"), encoding="utf-8")
    return file


OUTSIDE = """[...document.querySelectorAll("svg a")].filter(a => {
    const box = a.querySelector("rect").getBoundingClientRect();
    return [...a.querySelectorAll("text")].some(t => {
        const r = t.getBoundingClientRect();
        return r.left < box.left || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1;
    });
}).map(a => a.textContent)"""
"""Boxes whose text does not fit into them."""

FAINT = """(() => {
    const rgb = c => (c.match(/[\\d.]+/g) || []).map(Number);
    const shade = c => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                         return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
                          if (c.length == 3 || c[3] > 0.9) return `rgb(${c.slice(0, 3)})`; } return "rgb(255,255,255)"; };
    const contrast = (a, b) => { const [x, y] = [shade(a), shade(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
    const inBoxes = [...document.querySelectorAll("svg a text")].map(t =>
        [getComputedStyle(t).fill, getComputedStyle(t.parentElement.querySelector("rect")).fill, t.textContent]);
    const inTable = [...document.querySelectorAll("h1, h2, h3, p, th, td, pre, code, b, .quiet, .a, .f, .got, .t, .note, .tag, button, summary, a, input")]
        .filter(e => !e.closest("svg") && e.textContent.trim()).map(e =>
        [getComputedStyle(e).color, behind(e), e.textContent.slice(0, 40)]);
    return [...inBoxes, ...inTable].filter(([a, b]) => contrast(a, b) < 4.5).slice(0, 5);
})()"""
"""Text whose contrast is below 4.5 (WCAG 2.2, 1.4.3)."""


@pytest.mark.parametrize("ops", SIZES)
def test_a_page_can_be_read_in_light_and_dark(window: Browser, tmp_path: Path, ops: int) -> None:
    program = lmc.compile(worker(*SIZES[ops]), backend=lmc.Mock())
    file = page_of(program, tmp_path, topic="tea")
    bright: dict[str, float] = {}
    for scheme in ("light", "dark"):
        window.open(file, scheme)
        colours = pixels(window.picture(scale=0.1))
        bright[scheme] = mean(max(c) for c in colours)
        assert len(set(colours)) > 20, "something is drawn"
        assert 0.75 * ops <= window.value("document.querySelectorAll('tr[id^=s0-]').length") <= 1.5 * ops
        assert window.requests == [file.as_uri()] and window.complaints == []
        assert window.value("document.documentElement.scrollWidth <= innerWidth"), "the page itself scrolls down only"
        assert window.value(OUTSIDE) == []
        assert window.value(FAINT) == []
        assert window.value("document.querySelector('svg a rect').getBoundingClientRect().height") >= 20
        assert window.value("document.querySelectorAll('svg a.critical').length") > 0
    assert bright["light"] > 200 and bright["dark"] < 80


def test_a_page_runs_its_own_script_only(window: Browser, tmp_path: Path) -> None:
    window.open(page_of(lmc.compile(nasty, backend=lmc.Mock()), tmp_path, q=NASTY))
    assert window.complaints == []
    assert window.value("document.querySelectorAll('img').length") == 0
    assert "search ops" in window.value("document.body.innerHTML"), "the page's own script ran"


def test_a_box_leads_to_its_op_and_a_search_finds_it(window: Browser, tmp_path: Path) -> None:
    window.open(page_of(lmc.compile(worker(3, 1), backend=lmc.Mock()), tmp_path, topic="tea"))
    window.value("document.querySelector('svg a:last-of-type').dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))")
    assert window.value("document.querySelector(location.hash).tagName") == "TR"
    assert window.value("(r => 0 <= r.top && r.bottom <= innerHeight)(document.querySelector(location.hash).getBoundingClientRect())")


WIDE = """[...document.querySelectorAll("body *")].filter(e => {
    const r = e.getBoundingClientRect();
    return r.width && (r.right > innerWidth + 1 || r.left < -1) && !e.closest(".scroll, svg, .track");
}).map(e => e.outerHTML.slice(0, 80))"""
"""Elements that stick out of the window, and are in no frame of their own that scrolls."""


CROSSED = """[...document.querySelectorAll("svg.fsm text, svg text.case")].filter(t => {
    const box = t.getBoundingClientRect(), paths = [...t.closest("svg").querySelectorAll("path")].filter(p => !p.closest("marker"));
    if (paths.some(p => !(p.compareDocumentPosition(t) & Node.DOCUMENT_POSITION_FOLLOWING))) return true;
    return t.closest(".fsm") && paths.some(p => { const ctm = p.getScreenCTM(), long = p.getTotalLength(); return [...Array(200).keys()].some(i => {
        const {x, y} = p.getPointAtLength(long * i / 199).matrixTransform(ctm);
        return box.left + 1 < x && x < box.right - 1 && box.top + 2 < y && y < box.bottom - 2; }); });
}).map(t => t.textContent)"""
"""Labels of edges that an edge is drawn over or, in an automaton, runs through; 2: the empty part of a line above and below its letters."""

TINY = """[...document.querySelectorAll("svg[role=img] text")].filter(t =>
    parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a < 8.9).map(t => t.textContent)"""
"""Text of a drawing that is too small to read."""

UNLIKE = """[...document.querySelectorAll("summary, summary *")].filter(e => !e.closest(".lmc")).map(e => e.textContent)"""
"""Summaries that have another page's colours."""


@lmc.pure
def looked_up(word: str) -> str:
    return word.upper()


@lmc.function
def whole(s, q):
    s += lmc.system("Be <b>brief</b>.") + lmc.user(q) + lmc.assistant(lmc.gen("first", max_tokens=12))
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += lmc.user(f"Side {i}?") + lmc.assistant(lmc.gen("side", max_tokens=12))
    s += lmc.user(looked_up("and") + " ".join(f["side"] for f in forks)) + lmc.assistant(lmc.select("verdict", ["yes", "no"]))
    return s["verdict"]


@lmc.function
def journaled(s, q):
    s += q + lmc.gen("a_rather_long_name_of_a_variable_that_has_no_place_to_break", max_tokens=30)
    return looked_up(s["a_rather_long_name_of_a_variable_that_has_no_place_to_break"]), "x" * 200


@lmc.function
def branching(s, q):
    s += lmc.user(q) + lmc.assistant(lmc.select("kind", ["question", "complaint", "praise", "other"]))
    if s["kind"] == "question":
        s += lmc.user("Answer it.") + lmc.assistant(lmc.gen("reply", max_tokens=8))
    elif s["kind"] == "complaint":
        s += lmc.user("Say sorry.") + lmc.assistant(lmc.gen("reply", max_tokens=8))
    elif s["kind"] == "praise":
        return "thanks"
    else:
        forks = s.fork(3)
        for i, f in enumerate(forks):
            f += lmc.user(f"Guess {i}.") + lmc.assistant(lmc.gen("guess", max_tokens=8))
        s += lmc.user(" ".join(f["guess"] for f in forks)) + lmc.assistant(lmc.gen("reply", max_tokens=8))
    return s["reply"]


def priced(latency: float) -> lmc.Mock:
    """A mock that has prices."""
    return lmc.Mock(latency=lambda *_: latency, capabilities=replace(lmc.Mock().capabilities, prices=Prices(1.0, 4.0, 0.1)))


def _program(folder: Path) -> str:
    program = lmc.compile(whole, backend=priced(0.002))
    states = [program(q=q, temperature=0) for q in ("Why?", "Why" * 80)]
    for state in states:
        state.sync()
    return program.explain(format="html")


def _run(folder: Path) -> str:
    return whole.run(q="Why?", backend=priced(0.0)).explain(format="html")


def _replay(folder: Path) -> str:
    journaled.run("q", backend=lmc.Mock(), journal=folder / "j", seed=1)
    return steps.to_html(viewer.replayed(folder / "j", journaled, lmc.Mock()), "a journal with a name " + "x" * 90)


def _automaton(folder: Path) -> str:
    return draw.to_html(compress(compile_regex('\\{"grade": "[A-D][+-]?"\\}')), "grade" * 30)


def _notebook(folder: Path) -> str:
    """Cells of a notebook: a state, one that failed, one that grows, and a program, closed and open."""
    program = lmc.compile(whole, backend=lmc.Mock())
    state = program(q="Why? " + "x" * 200)
    state.sync()
    (failed,) = lmc.compile(whole, backend=lmc.Mock(answers={"verdict": lambda prompt, ask: ""})).batch([{"q": "?"}], errors="return")
    growing = lmc.compile(whole).stream("Why?", backend=lmc.Mock(latency=30))
    cells = [
        state._repr_html_(),
        failed._repr_html_(),
        growing._repr_html_(),
        program._repr_html_(),
        program._repr_html_().replace("<details", "<details open"),
    ]
    style = "<style>body{margin:0;background:#fff}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}</style>"
    return f"<!doctype html><meta charset=utf-8>{style}{''.join(f'<div>{cell}</div>' for cell in cells)}"


def _branches(folder: Path) -> str:
    """A program whose arms ask, and are labelled."""
    program = lmc.compile(branching, backend=lmc.Mock())
    program(q="Why?").sync()
    return program.explain(format="html")


KINDS = {"notebook": _notebook, "program": _program, "branches": _branches, "run": _run, "replay": _replay, "automaton": _automaton}


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_fits_every_width_in_light_and_dark(window: Browser, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(KINDS[kind](tmp_path), encoding="utf-8")
    for scheme in ("light", "dark"):
        for width in (400, 800, 1600):
            with window.width(width):
                window.open(file, scheme)
                assert window.requests == [file.as_uri()] and window.complaints == []
                assert window.value("document.documentElement.scrollWidth") <= width
                assert window.value(WIDE) == []
                assert window.value(FAINT) == []
                assert window.value(OUTSIDE) == []
                assert window.value(CROSSED) == []
                assert window.value(TINY) == []
                assert window.value(UNLIKE) == []
        bright = mean(max(c) for c in pixels(window.picture(scale=0.1)))
        assert bright > 200 if scheme == "light" else bright < 80


@pytest.mark.parametrize("mark", ["data-jp-theme-light", "class", "data-theme", "theme"])
def test_a_cell_has_the_theme_of_its_notebook(window: Browser, tmp_path: Path, mark: str) -> None:
    cells = _notebook(tmp_path)
    said = {"data-jp-theme-light": ("true", "false"), "class": ("vscode-light", "vscode-dark")}.get(mark, ("light", "dark"))
    place = "documentElement" if "theme" in mark and "jp" not in mark else "body"
    file = tmp_path / "page.html"
    file.write_text(cells, encoding="utf-8")
    for scheme in ("light", "dark"):
        window.open(file, scheme)
        for theme, value in zip(("light", "dark"), said):
            window.value(f"document.{place}.setAttribute('{mark}', '{value}')")
            shades = window.value("[...document.querySelectorAll('.lmc')].map(e => parseInt(getComputedStyle(e).backgroundColor.match(/[0-9]+/)[0]))")
            assert len(shades) == 5 and all(shade > 200 if theme == "light" else shade < 80 for shade in shades), (scheme, theme)


def test_a_page_of_runs_has_its_parts_in_order(window: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(_program(tmp_path), encoding="utf-8")
    window.open(file)
    assert window.value("[...document.querySelectorAll('section[id]')].map(s => s.id)")[:4] == ["conversation", "source", "timeline", "s0"]
    ask = ("[...document.querySelectorAll('.source tr.hot')].map(r => [r.querySelector('.line').textContent.includes('lmc.gen') || "
           "r.querySelector('.line').textContent.includes('lmc.select'), r.querySelectorAll('.bar').length])")
    assert window.value(ask) == [[True, 3]] * 3, "time, tokens and money beside each line that asks"
    rows = window.value("[...document.querySelectorAll('#timeline .gantt')[0].querySelectorAll('.row b')].map(b => b.textContent)")
    assert rows[0] == "program" and sorted(rows[1:]) == ["first", "looked_up", "side", "side", "verdict"]
    inside = """[...document.querySelectorAll('.track i')].every(i => {
        const a = i.getBoundingClientRect(), b = i.closest('.track').getBoundingClientRect(); return b.left - 1 <= a.left && a.right <= b.right + 1 })"""
    assert window.value(inside)


def test_keys_lead_through_a_page(window: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(_program(tmp_path), encoding="utf-8")
    window.open(file)

    def press(key: str) -> Any:
        for kind in ("keyDown", "keyUp"):
            window.call("Input.dispatchKeyEvent", type=kind, key=key, text=key if len(key) == 1 and kind == "keyDown" else "")
        return window.value("document.activeElement.className || document.activeElement.tagName")

    assert press("j") == "row" and window.value("document.activeElement.querySelector('b').textContent") == "program"
    press("j")
    assert window.value("document.activeElement.querySelector('b').textContent") == "first"
    assert window.value("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 1, "where the focus is can be seen"
    press("k")
    assert window.value("document.activeElement.querySelector('b').textContent") == "program"
    press("/")
    assert window.value("document.activeElement.type") == "search"
    press("j")
    assert window.value("document.activeElement.value") == "j", "what is typed is text"
