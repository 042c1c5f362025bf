"""Which tests of slow tiers `make check` runs."""

from __future__ import annotations

import pytest

from tests import conftest
from tests.changed import concerned

TESTS = {
    "tests/backend/engine/test_kernels.py": "pytestmark = pytest.mark.model",
    "tests/backend/engine/test_kernels_again.py": "@pytest.mark.model\ndef test(): ...",
    "tests/backend/engine/test_kernelsmith.py": "pytestmark = pytest.mark.model",
    "tests/backend/test_kernels.py": "pytestmark = pytest.mark.model",
    "tests/serve/test_runs.py": "pytestmark = [pytest.mark.api, pytest.mark.skipif(True, reason='')]",
    "tests/test_runs.py": "TEXT = '@pytest.mark.api'",
}


@pytest.mark.parametrize("changed, tests", [
    ("tests/serve/test_runs.py", ["tests/serve/test_runs.py"]),
    ("lmc/serve/runs.py", ["tests/serve/test_runs.py"]),
    ("lmc/runs.py", []),  # whose tests are of the unit tier, which is run as a whole
    ("lmc/backend/engine/kernels.py", ["tests/backend/engine/test_kernels.py", "tests/backend/engine/test_kernels_again.py"]),
    ("docs/kernels.md", []),
    ("tests/test_gone.py", []),
])  # fmt: skip
def test_a_change_concerns_tests_that_are_named_after_it(changed: str, tests: list[str]):
    assert concerned([changed], TESTS, ["model", "api"]) == tests


def test_tiers_are_told_apart():
    assert concerned(TESTS, TESTS, ["api"]) == ["tests/serve/test_runs.py"]


@pytest.mark.parametrize("within", [None, 0.0, 3600.0])
def test_tests_that_have_not_begun_in_time_are_skipped(within: float | None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request.config.option, "within", within)
    if within == 0.0:
        with pytest.raises(pytest.skip.Exception, match="not begun within 0 s"):
            conftest.pytest_runtest_setup(request.node)
    else:
        conftest.pytest_runtest_setup(request.node)
