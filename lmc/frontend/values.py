"""Stand-ins for unknown values, where a program is evaluated abstractly (lmc/frontend/capture)."""

from __future__ import annotations


class Symbolic:
    """A stand-in for text, a number or a list that is unknown here: expressions and states pass it on untouched."""

    __slots__ = ()
