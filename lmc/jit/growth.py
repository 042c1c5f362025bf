"""When a trace tree may grow: tracing new paths is paid for by the runs that take old ones.

A path is worth tracing if runs take it again. That cannot be known beforehand, so a tree starts with some credit, every run
that it carries to the end earns more, and runs that come to an unknown path of a tree without credit go on in the
interpreter. Where all runs do, they start there at once; a few still try the tree, ever fewer trace a path of theirs.
(Cf. the hot counters and blacklists of tracing JITs; unlike theirs, the count is of whole paths.)
"""

from __future__ import annotations

import enum

FIRST = 80
"""Traces that a new tree may make on credit."""
EARNED = 0.25
"""Traces that a run earns which needed none."""
AT_ONCE = 16
"""How often a tree may grow for one run. Each time the program is traced from its beginning, so a run with many new decisions would
wait for the square of them; the interpreter finishes it, and the next run traces further."""
PATIENCE = 16
"""Runs in a row that may leave the tree before the next ones start in the interpreter. Of those one in so many does not, and ever fewer: one
in a sixteenth of all that left."""
FIRST_TRIAL = 256
"""Runs in a row that left the tree before the path of one is traced without credit; the next time it is four times as many."""


class Start(enum.Enum):
    """Where a run begins."""

    GRAPH = enum.auto()
    INTERPRETER = enum.auto()
    TRIAL = enum.auto()  # on the graph, and all of its path may be traced


class Growth:
    """The account of one trace tree."""

    def __init__(self) -> None:
        self.credit: float = FIRST
        self.missed = 0  # runs in a row that the tree did not carry to the end
        self.served = 0  # runs that it did, and which needed no trace
        self._begun = 0
        self._next_trial = FIRST_TRIAL

    def begin(self) -> Start:
        """Says where the next run begins."""
        self._begun += 1
        if self.missed >= self._next_trial:
            self._next_trial *= 4
            return Start.TRIAL
        if self.missed >= PATIENCE and self._begun % max(PATIENCE, self.missed // PATIENCE):
            self.missed += 1
            return Start.INTERPRETER
        return Start.GRAPH

    @property
    def affordable(self) -> bool:
        """Whether a run may trace the path it is on."""
        return self.credit >= 1

    @property
    def ahead(self) -> bool:
        """Whether there is enough to trace arms that no run has taken yet."""
        return self.credit >= FIRST / 2

    def traced(self) -> None:
        """The tracer ran once for this tree."""
        self.credit = max(0.0, self.credit - 1)

    def carried(self) -> None:
        """A run came to its end on the tree and traced nothing."""
        self.missed, self._next_trial = 0, FIRST_TRIAL
        self.served += 1
        self.credit = min(FIRST, self.credit + EARNED)

    def left(self) -> None:
        """A run went on in the interpreter because its path may not be traced."""
        self.missed += 1
