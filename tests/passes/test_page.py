"""The page about the passes is made from them, and every pass is on it."""

from __future__ import annotations

from pathlib import Path

from lmc.passes.base import registry
from tests.pages import check_page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "passes.md"


def test_the_page_is_current() -> None:
    check_page("make_passes.py")


def test_every_pass_has_a_section_with_a_graph_before_and_after() -> None:
    sections = {part.splitlines()[0]: part for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]}
    for name in registry():
        assert sections[name].count("```\n") >= 4, name


def test_the_measured_table_has_every_workload_on_both_backends() -> None:
    from benchmarks.workloads import Size, figures

    text = (ROOT / "docs" / "passes_measured.txt").read_text(encoding="utf-8")  # the page has the rows that say something
    for workload in figures(Size()):
        for backend in ("mock", "smollm2"):
            assert f"| {backend} | {workload.name} | all passes |" in text
