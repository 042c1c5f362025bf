"""Warnings of other packages that say nothing to lmc's users are ignored, one thread at a time.

The filters are the process's (before Python 3.14): threads that changed them at once and restored them out of order
would leave them changed.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from lmc.forking import renew

_changing = threading.Lock()


@contextmanager
def ignored(category: type[Warning], message: str = "") -> Generator[None]:
    """Ignore warnings of a category in a block, of all or those whose text begins like `message`, a regex. Other threads
    wait before they do so: blocks are short, and not nested."""
    with _changing, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message, category)
        yield


def _renew() -> None:
    global _changing
    _changing = threading.Lock()


renew(_renew)
