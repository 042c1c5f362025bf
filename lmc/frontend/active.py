"""The program that is running here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

ACTIVE: ContextVar[Any] = ContextVar("lmc_active_state", default=None)
"""Root state of the program that is running here, or None; sub-programs inherit its backend and sampling defaults."""
