"""Which program is running here."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

ACTIVE: ContextVar[Any] = ContextVar("lmc_active_state", default=None)
"""The root state of the program that is running here, or None; sub-programs inherit its backend and sampling defaults."""
