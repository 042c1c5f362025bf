"""Pages of the docs that scripts make."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[1]


def check_page(script: str) -> None:
    """The page is what the script would write now: it is run here, as by `python docs/SCRIPT --check`."""
    path = str(ROOT / "docs" / script)
    try:
        with patch.object(sys, "argv", [path, "--check"]):
            runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        assert ended.code in (None, 0), ended.code
