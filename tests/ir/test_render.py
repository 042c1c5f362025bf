"""Other forms of a graph: complete, escaped, self-contained."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from hypothesis import given

from lmc.ir import Builder, Graph, Value, parse
from lmc.ir.layout import picture
from lmc.ir.render import to_dot, to_html, to_json
from tests.ir.graphs import graphs
from tests.searching import search

NASTY = '</td><script>alert("x")</script>&\\'


def _nasty() -> Graph:
    b = Builder("g" + NASTY, [Value("p" + NASTY, "str")])
    (c0,) = b.emit("ctx.new")
    (c1,) = b.emit("append", (c0, NASTY, b.params[0]))
    b.terminate("switch", (b.params[0],), cases=[(NASTY, b.label("on")), ("x", b.label("off"))])
    for label in ("on", "off"):
        b.at(label)
        b.terminate("return", (None, c1))
    return b.build()


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def test_html_escapes_everything_and_asks_nobody() -> None:
    page = to_html(_nasty(), stats={"a<b": 3}, snapshots=[("before<b>", _nasty())])
    tags = _Tags()
    tags.feed(page)
    assert tags.tags.count("script") == 1 and "b>" not in tags.tags and "svg" in tags.tags
    assert page.count("alert(") == page.count("alert(&quot;") + page.count("alert(\\&quot;")
    assert not re.search(r"://|src=|@import|url\(", page)


def test_html_shows_the_source_line_beside_the_op() -> None:
    graph = parse(f'graph @f() -> (any) {{\n  %c0 = ctx.new() loc("{__file__}":1)\n  return(none, %c0)\n}}')
    assert "<code>&quot;&quot;&quot;Other forms of a graph: complete" in to_html(graph)


def test_dot_quotes_what_dot_would_read() -> None:
    text = to_dot(_nasty())
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "S", text)
    assert re.fullmatch(r"[\w\s{}\[\]=,;>.-]*", bare)


@search(3, 40)
@given(graphs())
def test_any_graph_renders(graph: Graph) -> None:
    data = json.loads(to_json(graph))
    assert [len(b["ops"]) for b in data["blocks"]] == [len(b.ops) for b in graph.blocks]
    assert to_dot(graph).count("subgraph") == len(graph.blocks)
    assert to_html(graph).count("<rect ") == len(picture(graph).steps)
