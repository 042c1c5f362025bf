"""Pages of the docs that scripts make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def check_page(script: str) -> None:
    """The page is what the script would write now."""
    done = subprocess.run(
        [sys.executable, f"docs/{script}", "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
