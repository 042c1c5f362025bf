"""The page about the IR is made from the op table, and the table says everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lmc.ir.core import TYPES
from lmc.ir.ops import ATTRS, FUNCTION, GEN_PARAMS, OPS
from tests.ir.graphs import Maker
from tests.pages import check_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    check_page("make_ir.py")


def test_every_attribute_is_explained() -> None:
    used = {name for spec in (*OPS.values(), FUNCTION) for name in spec.attrs}
    assert used - set(GEN_PARAMS) <= set(ATTRS)
    assert set(ATTRS) <= used


def test_the_table_is_well_formed() -> None:
    for kind, spec in {**OPS, FUNCTION.kind: FUNCTION}.items():
        assert spec.kind == kind and spec.stages and spec.doc.endswith(".")
        for types, more in ((spec.operands, {"const"}), (spec.results, set[str]())):
            assert {t.lstrip("*") for t in types} <= TYPES | more
            assert not any(t.startswith("*") for t in types[:-1])


def test_the_generator_of_graphs_knows_every_op() -> None:
    made = {name.removeprefix("make_").replace("_", ".", 1) for name in vars(Maker) if name.startswith("make_")}
    ends = {name.removeprefix("end_") for name in vars(Maker) if name.startswith("end_")}
    terminators = {kind for kind, spec in OPS.items() if spec.trait == "terminator"}
    assert ends == terminators
    assert made - {"role", "py"} == set(OPS) - terminators - {"role.begin", "role.end"}


def test_the_ir_starts_without_its_libraries() -> None:
    code = (
        "import sys, lmc.ir, lmc.passes.manager; print([m for m in ('lark', 'networkx', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
