"""What a compiled run would tell a journal of where it asks. Journaled runs are run by Python (lmc.durable); nothing takes this any more."""

from __future__ import annotations

from collections.abc import Sequence

from lmc.durable.checks import shown

__all__ = ["Since", "Site", "shown"]


class Since:
    """What a compiled prompt has since its last answer."""

    __slots__ = ("certain", "last", "parts")

    def __init__(self, last: int | None, parts: tuple[str | int, ...] = (), *, certain: bool = True) -> None:
        self.last, self.parts, self.certain = last, parts, certain

    def with_parts(self, parts: Sequence[str | int], *, certain: bool) -> Since:
        return Since(self.last, (*self.parts, *parts), certain=self.certain and certain)


class Site:
    """Where a compiled run asks."""

    __slots__ = ("places",)

    def __init__(self, places: Sequence[tuple[str, int]], since: Since) -> None:
        self.places = places
