"""What stands for values that are not known, where a program is evaluated abstractly (lmc/frontend/capture)."""

from __future__ import annotations


class Symbolic:
    """What stands for text, a number or a list that is not known here: expressions and states pass it on untouched."""

    __slots__ = ()
