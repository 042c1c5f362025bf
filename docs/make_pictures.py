"""Draw the pictures of the README from what the docs say, and from what experiments have written (docs/results/*.json): docs/pictures/*.svg.

    python docs/make_pictures.py            # write them
    python docs/make_pictures.py --check    # fail if one is out of date

A picture brings its own background, and follows the reader's light or dark scheme.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de } .text { fill: #1f2328 } .faint { fill: #59636e } .line { stroke: #d0d7de }
  .lmc { fill: #0f766e } .sglang { fill: #b8c0c9 } .vllm { fill: #8493a8 } .wait { fill: #e6e9ed } .ask { fill: #c2410c }
  .arrow { stroke: #0f766e } .on { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d } .text { fill: #e6edf3 } .faint { fill: #9198a1 } .line { stroke: #30363d }
    .lmc { fill: #2dd4bf } .sglang { fill: #4b5563 } .vllm { fill: #7688a3 } .wait { fill: #303740 } .ask { fill: #fb923c }
    .arrow { stroke: #2dd4bf } .on { fill: #0d1117 }
  }
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif } .title { font-size: 16px; font-weight: 600 } .small { font-size: 12px }
"""


class Picture:
    """An SVG under construction; coordinates in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []
        self.rect(0.5, 0.5, width - 1, height - 1, "card", 8)

    def text(self, x: float, y: float, text: str, kind: str = "text", anchor: str = "start") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str, round: float = 2) -> None:
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" rx="{round:g}" class="{kind}"/>')

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "line") -> None:
        self.parts.append(f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" class="{kind}"/>')

    def svg(self) -> str:
        body = "\n".join(self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" role="img">\n'
                f"<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n")


def rows(page: str, heading: str) -> list[dict[str, str]]:
    """The first table below a heading, a dict per row."""
    section = page.split(f"\n## {heading}\n", 1)[1]
    lines = re.findall(r"^\|(.*)\|$", section.split("\n## ")[0], re.MULTILINE)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    first = next(i for i, row in enumerate(cells[1:], 1) if not set("".join(row)) <= set("-: "))
    names = cells[0]
    table = []
    for row in cells[first:]:
        if len(row) != len(names):
            break
        table.append(dict(zip(names, row)))
    return table


def seconds(cell: str) -> float | None:
    """The time of a cell such as `1.70–1.95` or `**0.84**`: of a range the better end; None where nothing was measured."""
    found = re.search(r"\d+(?:\.\d+)?", cell)
    return float(found[0]) if found else None


def speed() -> str:
    """lmc beside SGLang and vLLM: a bar is the time of a batch."""
    systems = [("lmc", "lmc"), ("SGLang", "sglang"), ("vLLM", "vllm")]
    table = rows((DOCS / "performance.md").read_text("utf-8"), "Beside SGLang and vLLM")
    left, bar, gap, top = 130, 13, 14, 78
    height = top + sum(bar * sum(seconds(row[f"{name} s"]) is not None for name, _ in systems) + gap for row in table) + 14
    picture = Picture(800, height, "Time of batches of programs: lmc beside SGLang and vLLM")
    picture.text(20, 28, "Seconds for a batch of programs (shorter is better)", "text title")
    picture.text(20, 48, "An 8B model on one H200, bfloat16; of each range the better end. lmc cce2224, SGLang 0.5.15 (tuned), vLLM 0.26.0", "faint small")
    for at, (name, kind) in zip((572, 630, 712), systems):
        picture.rect(at, 18, 12, 12, kind)
        picture.text(at + 17, 28, name)
    times = [{name: seconds(row[f"{name} s"]) for name, _ in systems} for row in table]
    scale = (800 - left - 70) / max(t for row in times for t in row.values() if t is not None)
    y = top
    for row, spent in zip(table, times):
        there = [(name, kind) for name, kind in systems if spent[name] is not None]
        picture.text(left - 12, y + bar * len(there) / 2 + 4.5, row["workload"], "text", "end")
        for name, kind in there:
            time = spent[name]
            assert time is not None
            picture.rect(left, y + 1, time * scale, bar - 2, kind)
            picture.text(left + time * scale + 6, y + bar - 2.5, f"{time:.2f}", "text small" if name == "lmc" else "faint small")
            y += bar
        y += gap
    return picture.svg()


def programs() -> str:
    """Published programs beside themselves on lmc: a bar is the time of one run (docs/results/elsewhere.json)."""
    found = json.loads((DOCS / "results" / "elsewhere.json").read_text("utf-8"))
    pairs = list(found["rows"].values())
    left, bar, gap, top = 400, 13, 12, 82
    picture = Picture(800, top + len(pairs) * (2 * bar + gap) + 6, "Time of published programs: as they are, and on lmc")
    picture.text(20, 28, "Seconds of a published program (shorter is better)", "text title")
    info = found["info"]
    picture.text(
        20,
        48,
        f"A stand-in of a server takes 0.3 s for every answer; medians of {pairs[0][0]['reps']} runs, {info['date'].split()[0]}, {info['machine']}, commit "
        f"{info['commit']}",
        "faint small",
    )
    if note := info.get("note"):
        picture.text(20, 66, note, "faint small")
    for at, name, kind in ((572, "as published", "vllm"), (700, "on lmc", "lmc")):
        picture.rect(at, 18, 12, 12, kind)
        picture.text(at + 17, 28, name)
    scale = (800 - left - 60) / max(row["seconds"] for pair in pairs for row in pair)
    y = top
    for pair in pairs:
        picture.text(left - 12, y + bar + 4.5, pair[0]["source"], "text small", "end")
        for row, kind in zip(pair, ("vllm", "lmc")):
            picture.rect(left, y + 1, row["seconds"] * scale, bar - 2, kind)
            picture.text(left + row["seconds"] * scale + 6, y + bar - 2.5, f"{row['seconds']:.1f}", "text small" if kind == "lmc" else "faint small")
            y += bar
        y += gap
    return picture.svg()


def ahead() -> str:
    """A loop of four requests, plain and compiled."""
    picture = Picture(800, 250, "A loop of four requests: plain, one after another; compiled, made ahead while Python waits for the first")
    picture.text(20, 28, "for f, page in zip(s.fork(4), pages):   f += page + gen(\"note\");   save(f[\"note\"])", "text title")
    left, wide = 130, 150

    def lane(y: float, name: str) -> None:
        picture.text(left - 14, y + 15, name, "text", "end")

    def request(x: float, y: float, number: int, width: float = wide) -> None:
        picture.rect(x, y, width, 22, "wait")
        picture.rect(x, y, 22, 22, "ask")
        picture.text(x + 11, y + 16, str(number), "on small", "middle")

    picture.rect(left, 42, 12, 12, "ask")
    picture.text(left + 17, 53, "a request is made", "faint small")
    picture.rect(left + 142, 42, 12, 12, "wait")
    picture.text(left + 159, 53, "the model works, Python waits", "faint small")
    picture.rect(left + 370, 42, 12, 12, "lmc")
    picture.text(left + 387, 53, "made ahead, by lmc", "faint small")
    lane(72, "plain Python")
    for i in range(4):
        request(left + i * (wide + 6), 72, i + 1)
    picture.text(left + 4 * (wide + 6) - 2, 112, "done", "faint small", "end")
    picture.line(20, 122, 780, 122)
    lane(136, "compiled")
    request(left, 136, 1)
    for i in range(3):
        x, y = left + 26, 162 + i * 24
        picture.rect(x, y, wide - 26 + 8 * (i + 1), 20, "wait")
        picture.rect(x, y, 22, 20, "lmc")
        picture.text(x + 11, y + 14.5, str(i + 2), "on small", "middle")
    picture.text(left + wide + 44, 152, "done: Python makes requests 2, 3 and 4, and their answers are there", "faint small")
    picture.text(left + wide + 44, 184, "A request made ahead is used only if it equals the one that", "text small")
    picture.text(left + wide + 44, 202, "Python then makes, so what the program does cannot change.", "text small")
    return picture.svg()


PICTURES = {"speed.svg": speed, "run-ahead.svg": ahead, "programs.svg": programs}


def write() -> None:
    for name, draw in PICTURES.items():
        (DOCS / "pictures" / name).write_text(draw(), "utf-8")


def main() -> None:
    if "--check" not in sys.argv:
        write()
        return
    stale: list[str] = []
    for name, draw in PICTURES.items():
        path = DOCS / "pictures" / name
        if not path.exists() or path.read_text("utf-8") != draw():
            stale.append(name)
    sys.exit(f"out of date: {', '.join(stale)}; run python docs/make_pictures.py" if stale else 0)


if __name__ == "__main__":
    main()
