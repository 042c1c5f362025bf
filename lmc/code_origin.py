"""Whose code a file holds: lmc's, Python's, an installed package's, or the user's."""

from __future__ import annotations

import os
import sysconfig

LMC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
"""The folder of lmc itself."""
_PYTHON = tuple({os.path.join(sysconfig.get_paths()[name], "") for name in ("stdlib", "platstdlib")})
FOLLOWED: set[str] = set()
"""Files of lmc's that contain code for others, followed as the user's own."""


def is_pythons(file: str) -> bool:
    """Return whether a file is of Python's own library."""
    return file.startswith((*_PYTHON, "<frozen")) and not is_installed(file)


def is_installed(file: str) -> bool:
    """Return whether a file is of an installed package."""
    return "site-packages" in file or "dist-packages" in file


def is_users(file: str) -> bool:
    """Return whether source is the user's: neither Python's library, nor an installed package, nor lmc."""
    return file in FOLLOWED or not (is_pythons(file) or is_installed(file) or file.startswith(LMC))
