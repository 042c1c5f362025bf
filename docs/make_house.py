"""Draw how the packages import each other, and list the circles among modules: docs/pictures/house.svg.

    python docs/make_house.py            # write the picture, print the circles
    python docs/make_house.py --circles  # print them alone, and fail if there are any

Of circles every import counts: at the top, in functions, and under TYPE_CHECKING; the picture has those of run time. Packages stand above what they import;
a red arrow points up, against that order.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

try:
    from make_pictures import Picture
except ImportError:  # imported as docs.make_house
    from docs.make_pictures import Picture

ROOT = Path(__file__).parent.parent
WIDTH, BOX, ROW = 1180, (176, 44), 84


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The modules of lmc by dotted name."""
    paths = sorted((root / "lmc").rglob("*.py"))
    names = [".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for p in paths]
    return dict(zip(names, paths, strict=True))


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[str, bool]]:
    """Yield the modules of lmc that a module imports, and whether under TYPE_CHECKING only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {id(n) for test in ast.walk(tree) if isinstance(test, ast.If) and isinstance(test.test, ast.Name) and test.test.id == "TYPE_CHECKING"
                   for statement in test.body for n in ast.walk(statement)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            targets = [f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in known else node.module for a in node.names]
        elif isinstance(node, ast.Import):
            targets = [a.name for a in node.names]
        else:
            continue
        yield from ((t, id(node) in typing_only) for t in targets if t in known and t != name)


def graph(root: Path = ROOT) -> nx.DiGraph:
    """Modules and their imports. Edges have `typing`: whether only type checkers follow them."""
    known = modules(root)
    found = nx.DiGraph()
    found.add_nodes_from(known)
    for name, path in known.items():
        for target, typing_only in imports(name, path, known):
            old = found.edges[name, target]["typing"] if found.has_edge(name, target) else True
            found.add_edge(name, target, typing=old and typing_only)
    return found


def circles(found: nx.DiGraph) -> list[list[str]]:
    """Sets of modules that import each other, the largest first."""
    return sorted((sorted(c) for c in nx.strongly_connected_components(found) if len(c) > 1), key=lambda c: (-len(c), c))


def package(path: Path) -> str:
    """The folder that a module is in; the modules directly in lmc are one package."""
    folder = path.parent.relative_to(ROOT).as_posix()
    return "lmc/*.py" if folder == "lmc" else folder.removeprefix("lmc/")


def draw(found: nx.DiGraph) -> Picture:
    """Packages in layers; an arrow where one imports another at run time, the wider the more of its modules do."""
    files, lines, edges = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    rooms = {name: package(path) for name, path in modules().items()}
    for name, path in modules().items():
        files[rooms[name]] += 1
        lines[rooms[name]] += len(path.read_text(encoding="utf-8").splitlines())
    for a, b, typing_only in found.edges(data="typing"):
        if rooms[a] != rooms[b] and not typing_only:
            edges[rooms[a], rooms[b]] += 1
    order = nx.DiGraph()
    order.add_nodes_from(files)
    for (a, b), _ in sorted(edges.items(), key=lambda e: (-e[1], e[0])):  # the many decide the order, the few are seen against it
        order.add_edge(a, b)
        if not nx.is_directed_acyclic_graph(order):
            order.remove_edge(a, b)
    layers = list(nx.topological_generations(order))
    picture = Picture(WIDTH, 60 + ROW * len(layers), "The packages of lmc and what imports what")
    picture.text(20, 30, "The packages of lmc: each stands above what it imports", "title")
    at: dict[str, tuple[float, float]] = {}
    for row, layer in enumerate(layers):
        space = (WIDTH - len(layer) * BOX[0]) / (len(layer) + 1)
        for i, name in enumerate(sorted(layer)):
            at[name] = (space + i * (BOX[0] + space), 50 + row * ROW)
    for (a, b), n in sorted(edges.items()):
        (ax, ay), (bx, by) = at[a], at[b]
        against = by <= ay
        x1, y1, x2, y2 = ax + BOX[0] / 2, ay if against else ay + BOX[1], bx + BOX[0] / 2, by + BOX[1] if against else by
        middle = (y1 + y2) / 2
        picture.parts.append(
            f'<path d="M{x1:g},{y1:g} C{x1:g},{middle:g} {x2:g},{middle:g} {x2:g},{y2:g}" fill="none" stroke="{"#c2410c" if against else "#8493a8"}" '
            f'stroke-width="{min(4.0, 0.5 + n / 12):.1f}" opacity="0.55"><title>{a} imports {b}: {n}</title></path>'
        )
    for name, (x, y) in at.items():
        picture.rect(x, y, *BOX, "card", 6)
        picture.text(x + BOX[0] / 2, y + 18, name, "text", "middle")
        picture.text(x + BOX[0] / 2, y + 35, f"{files[name]} files, {lines[name]:,} lines", "faint small", "middle")
    return picture


def main(only_circles: bool) -> int:
    found = graph()
    if not only_circles:
        (ROOT / "docs" / "pictures" / "house.svg").write_text(draw(found).svg(), encoding="utf-8")
    rings = circles(found)
    print(f"{len(found)} modules, {found.number_of_edges()} imports; {len(rings) or 'no'} circles, type checkers' imports counted")
    for circle in rings:
        print(f"  {len(circle):3}  {', '.join(circle[:6])}{' …' if len(circle) > 6 else ''}")


    return 1 if only_circles and rings else 0


if __name__ == "__main__":
    sys.exit(main("--circles" in sys.argv))
