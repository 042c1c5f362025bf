"""The short form of `python -m tests.durable.kill_points`: some of the points, with the process killed and with the power gone; and that it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.searching import APART

pytestmark = [*APART]

_SCRIPT = """
import json, logging, sys, tempfile
from pathlib import Path
from tests.durable import kill_points
from lmc.durable import calls
logging.getLogger("lmc.journal").setLevel(logging.ERROR)
for what, names, how, every in json.loads(sys.argv[1]):
    if what == "unsynced":
        calls.JournaledCalls.sync = lambda self: None
    with tempfile.TemporaryDirectory(dir=kill_points.memory()) as where:
        seen = kill_points.kill_points([p for p in kill_points.PROGRAMS if p.name in names.split()], Path(where) / "run", power=how == "power", every=every)
    loaded = [name for name in ("torch", "transformers") if name in sys.modules]
    print(json.dumps([seen.doubled, seen.lost, seen.wrong, seen.kills, loaded]))
"""
KILLS = [("as it is", "plain asks", "power", 24), ("as it is", "gathers", "kill", 60), ("unsynced", "plain", "power", 6)]
"""(journal, program, death, every): one of `every` points of a program is its end; `make nightly` takes all points of all programs."""


@pytest.fixture(scope="module")
def seen() -> list[Any]:
    """Of a process of its own, which may fork: it has no threads."""
    run = subprocess.run([sys.executable, "-c", _SCRIPT, json.dumps(KILLS)], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_nothing_is_doubled_and_nothing_lost(seen: list[Any]) -> None:
    for kills, (doubled, lost, wrong, times, loaded) in zip(KILLS[:-1], seen[:-1], strict=True):
        assert (doubled, lost, wrong, loaded) == ([], [], [], []) and times > 0, kills


def test_a_journal_that_does_not_sync_before_effects_is_found_out(seen: list[Any]) -> None:
    doubled, lost, *_ = seen[-1]
    assert doubled and not lost
