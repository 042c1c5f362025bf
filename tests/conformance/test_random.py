"""Random programs mean the same in every execution. `make conformance` looks at all of them, and shrinks what fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.__main__ import main
from tests.conformance.programs import source, sources
from tests.conformance.search import Setting, problem
from tests.searching import search

HERE = 4
SLICES = 4


@pytest.mark.parametrize("part", range(SLICES))
def test_random_programs(part: int):
    for seed in range(part, HERE, SLICES):
        said = problem(source(seed), Setting.of(seed))
        assert said is None, f"{said}\n\nshrink it: python -m tests.conformance --programs 1 --seed {seed}"


@search(2, 15)
@given(sources(), st.integers(0, 1000))
def test_programs_that_hypothesis_chooses(text: str, setting: int):
    assert problem(text, Setting.of(setting)) is None


def test_a_program_of_a_file_needs_no_outside(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("import lmc\n\n@lmc.function\ndef program(s, q, xs, flag=False):\n    s += q + lmc.gen('a', max_tokens=2)\n")
    assert main(["--file", str(tmp_path / "mine.py")]) == 0
    assert capsys.readouterr().out == "16 settings, 0 failures\n"
