"""Every program of the table means the same in every execution, and nothing that is certain to be asked is asked in vain."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

import lmc
from lmc.backend.mock import Mock
from tests.conformance.harness import MODES, eager, late, scripted_in_order
from tests.conformance.table import TABLE, tagged
from tests.conformance.ways import check_ways
from tests.searching import some


@pytest.mark.usefixtures("leaves_nothing")
@some("name", TABLE, 10)
def test_means_the_same(name: str, tmp_path: Path):
    compiled = TABLE[name].check()
    check_ways(TABLE[name], compiled, tmp_path)


RAISE = {*tagged("errors"), "is_cancelled_by_its_own_tool", "forgets_to_await_later", "spoilt_by_an_own_object_that_raises"}
"""Those that are about what they raise."""


@some("name", [name for name in TABLE if name not in RAISE], 15)
def test_ends_and_nothing_certain_is_wasted(name: str):
    """A program that raises on whatever it is run on shows no more than its first lines."""
    ended = 0
    for items, given in TABLE[name].variants:
        options = {k: v for k, v in given.items() if k not in (*MODES, "outside", "reset", "backend")}
        program, reset = eager(lmc.compile(TABLE[name].program)), given.get("reset", lambda: None)
        for item in items:
            reset()
            backend = given.get("backend", Mock)()
            if scripted_in_order(backend):
                program = lmc.compile(TABLE[name].program)
            else:
                late(backend)
            try:
                state = program(**copy.deepcopy(item), backend=backend, **{"seed": 7, **options})
                state.sync()
                ended += state.failure is None
            except Exception:  # compared by the test above
                program = eager(lmc.compile(TABLE[name].program))  # a request behind what raises was certain, but for that
            else:
                assert program.profile.wasted == 0 or "rebound" in TABLE[name].tags, item  # what is called there is another function then
            finally:
                backend.close()
    assert ended
