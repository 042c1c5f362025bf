"""Options of every API backend, whatever its server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lmc.backend.api.client import Patience
from lmc.backend.usage import Prices
from lmc.errors import ParameterError

BEGIN = 8
"""Concurrent requests to a service with limits, before it has reported them."""

OnRefusal = Literal["raise", "return"]


@dataclass(frozen=True, slots=True)
class ApiTerms:
    """Options of every API backend, whatever its server.

    concurrency  most concurrent requests
    patience     retries and time-outs
    prices       for a million tokens, for `spent()` and for budgets of cost
    speculate    whether one request may cover several answers of a program
    attempts     how often an answer is requested whose constraint the server cannot enforce
    on_refusal   whether refused and filtered answers raise, or are returned as answers marked in their meta info
    begin        concurrent requests before the server's limits are known; None: it has none
    """

    concurrency: int
    patience: Patience
    prices: Prices | None
    speculate: bool
    attempts: int = 4
    on_refusal: OnRefusal = "raise"
    begin: int | None = None

    def check(self, name: str) -> None:
        if self.concurrency < 1 or self.attempts < 1:
            raise ParameterError(f"{name}: concurrency and attempts are at least 1")
        if self.on_refusal not in ("raise", "return"):
            raise ParameterError(f"{name}: on_refusal={self.on_refusal!r}: must be 'raise' or 'return'")
