"""The short form of `python -m tests.durable.kill_points`: some of the points, with the process killed and with the power gone; and that it can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import logging, sys, tempfile
from pathlib import Path
from tests.durable import kill_points
from lmc.durable import calls
logging.getLogger("lmc.journal").setLevel(logging.ERROR)
if sys.argv[1] == "unsynced":
    calls.JournaledCalls.sync = lambda self: None
names = sys.argv[2].split()
with tempfile.TemporaryDirectory(dir=kill_points.memory()) as where:
    seen = kill_points.kill_points([p for p in kill_points.PROGRAMS if p.name in names], Path(where) / "run", power=sys.argv[3] == "power", every=int(sys.argv[4]))
print(len(seen.doubled), len(seen.lost), len(seen.wrong), seen.kills > 0, any(name in sys.modules for name in ("torch", "transformers")))
print(*seen.doubled, *seen.lost, *seen.wrong, sep="\\n")
"""


def killed(what: str, names: str, how: str, every: int) -> list[str]:
    """In a process of its own, which may fork: it has no threads."""
    return subprocess.run([sys.executable, "-c", _SCRIPT, what, names, how, str(every)], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout.splitlines()


@pytest.mark.parametrize("names, how, every", [("plain checks", "power", 3), ("retries asks", "kill", 9), ("gathers each", "power", 13)])
def test_nothing_is_doubled_and_nothing_lost(names: str, how: str, every: int) -> None:
    found = killed("as it is", names, how, every)
    assert found[0] == "0 0 0 True False", found


def test_a_journal_that_does_not_sync_before_effects_is_found_out() -> None:
    doubled, lost, *_ = killed("unsynced", "checks plain", "power", 4)[0].split()
    assert int(doubled) > 0 and lost == "0"
