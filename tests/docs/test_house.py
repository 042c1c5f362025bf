"""The import graph: the picture is drawn of all packages, and no modules import each other in a circle."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import networkx as nx
import pytest

from tests.searching import apart

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def graph(house: ModuleType) -> nx.DiGraph:
    return house.graph()


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_house", DOCS / "make_house.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@apart
def test_no_modules_import_each_other_in_a_circle(house: ModuleType, graph: nx.DiGraph):
    """Imports under TYPE_CHECKING and in functions count."""
    assert house.circles(graph) == []


def test_a_circle_is_found(house: ModuleType):
    ring = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "f"), ("f", "e")])
    assert house.circles(ring) == [["a", "b", "c"], ["e", "f"]]


@apart
def test_the_picture_has_every_package(house: ModuleType, graph: nx.DiGraph):
    svg = house.draw(graph).svg()
    folders = {p.parent.relative_to(DOCS.parent / "lmc").as_posix() for p in house.modules().values()}
    assert folders > {"frontend", "ir", "backend/engine"}
    assert all(f">{'lmc/*.py' if folder == '.' else folder}</text>" in svg for folder in folders)


def test_what_the_code_refers_to_exists():
    """Modules that are named in brackets, and pages of the documentation."""
    root = DOCS.parent
    known = {p.name for folder in ("lmc", "tests", "benchmarks", "experiments", "docs") for p in (root / folder).rglob("*.py")}
    for path in sorted((root / "lmc").rglob("*.py")):
        text = path.read_text("utf-8")
        assert {m for m in re.findall(r"\(([a-z_0-9]+\.py)[),;]", text) if m not in known} == set(), path
        assert {m for m in re.findall(r"(?<![\w/])docs/[\w/-]+\.\w+", text) if not (root / m).exists()} == set(), path


def test_the_code_has_the_words_of_the_glossary():
    """As words, or in names: `mask prefetcher`, `mask_prefetcher`, `MaskPrefetcher`."""
    rows = re.findall(r"^\| (?!term \|)(.+?) \|", (DOCS / "glossary.md").read_text("utf-8"), re.MULTILINE)
    terms = [term for term in rows if not set(term) <= set("-|")]
    code = "\n" + "\n".join(path.read_text("utf-8").lower() for path in (DOCS.parent / "lmc").rglob("*.py"))
    assert len(terms) > 60
    assert [term for term in terms if not any(not code[m.start() - 1].isalnum() for m in _spelled(term).finditer(code))] == []


def _spelled(term: str) -> re.Pattern[str]:
    """A pattern that begins with letters, which `re` looks for faster than for a boundary."""
    words = [re.sub("s$|on$", "", word) + "(?:s|on|a)?" for word in re.split("[ -]", term.lower())]
    return re.compile(r"[ _\n-]*".join(words))


def test_no_two_classes_of_the_code_have_one_name():
    """Who looks a name up finds one class; but for the chat models of LangChain and LlamaIndex, which go by their modules."""
    files = {path: set(re.findall(r"^\s*class (\w+)", path.read_text("utf-8"), re.MULTILINE)) for path in (DOCS.parent / "lmc").rglob("*.py")}
    found = Counter(name for names in files.values() for name in names)
    assert len(found) > 500
    assert sorted(name for name, times in found.items() if times > 1) == ["Chat"]
