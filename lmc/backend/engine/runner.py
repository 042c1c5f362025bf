"""Runners: the interface of the code that computes an engine's passes. A runner gets a pass and gives its tokens.

model_runner.py computes on a CPU, cuda_runner.py on a GPU, distributed/ on several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from lmc.backend.engine.forward_batch import ModelPass
from lmc.backend.engine.token_ids import TokenLogprob, Top


@dataclass(frozen=True, slots=True)
class PassOutput:
    """The output of a pass: a token per entry of `draws`, a log-probability and alternatives per entry of `scores`."""

    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob | None]  # of the drawn tokens, where the request asked for them
    scores: Sequence[float]
    tops: Sequence[Top]  # the likeliest tokens beside each score, as many as it asks for


class Runner(Protocol):
    """Runs a pass: the model and the sampler."""

    def run(self, work: ModelPass) -> PassOutput: ...


class Flight(Protocol):
    """A pass that was launched."""

    @property
    def over(self) -> bool:
        """Return whether it has ended; without waiting."""
        ...

    @property
    def seconds(self) -> float:
        """Return what it took; it has ended."""
        ...

    def result(self) -> PassOutput:
        """Wait for it; return its output."""
        ...


@runtime_checkable
class AheadRunner(Runner, Protocol):
    """A runner whose device works asynchronously."""

    def launch(self, work: ModelPass) -> Flight:
        """Begin a pass. Known tokens that are PENDING are those that the previously launched pass samples."""
        ...


class EagerRunner(AheadRunner, Protocol):
    """A runner whose passes may begin before they are planned, if they were foreseen while the device was busy."""

    def prepare(self, work: ModelPass) -> bool:
        """Prepare a pass, all of whose tokens are known, behind the one launched last; return whether it can be begun."""
        ...

    def begin(self) -> None:
        """Begin the pass prepared last. If the next one launched computes the same, it is the same; if not, this one was in vain: what it writes to slots
        precedes all that later passes and copies write there."""
        ...
