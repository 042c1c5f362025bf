"""Absences: how long runs are away behind an answer, in a tool or with a person, and whether they come back, learned by place.

A place is where a gen is in its program, and its turn in a loop; what is unknown of a place is judged by its line (`site`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import NamedTuple

UNKNOWN_ABSENCE = 2.0
"""Seconds that a run may be away from an unknown place."""
_BEYOND, _FADES = 1.5, 0.99  # late is so many times the longest time lately, which counts for less with every later one
_LONGEST = 60.0  # seconds: runs usually away longer (with a person) are not expected back, nor waited for longer after one such time
_SELDOM, _ENOUGH = 0.1, 8  # share of returning runs below which none is expected to, once there were so many
_RECENT, _PLACES = 32, 1024  # window of the means; number of remembered places


class _Seen(NamedTuple):
    """Statistics of a place: how often runs have left there and returned, and the seconds they were away, on average,
    at most, and lately."""

    left: int
    back: float
    away: float
    longest: float
    lately: deque[float]


class Absences:
    """What earlier runs have taught of absences."""

    def __init__(self) -> None:
        self._places: OrderedDict[Hashable, _Seen] = OrderedDict()

    def usual(self, place: Hashable) -> float | None:
        """Return the seconds that a run is usually away after an answer; None: it does not return, or not soon."""
        seen = self._places.get(place) or self._places.get(_site(place))
        if seen is None or not seen.back:
            return None if seen is not None and seen.left >= _ENOUGH else UNKNOWN_ABSENCE
        if seen.left >= _ENOUGH and seen.back < _SELDOM * seen.left:
            return None
        return seen.away if seen.away <= _LONGEST else None

    def mean(self, place: Hashable) -> float | None:
        """Return the mean seconds of those that returned to this very place; None: none did."""
        seen = self._places.get(place)
        return seen.away if seen is not None and seen.back else None

    def longest(self, place: Hashable) -> float:
        """Return the seconds below which no absence counts as late: times of tools differ a hundredfold, and evicted
        prefixes are recomputed."""
        seen = self._places.get(place), self._places.get(_site(place))
        return min(_BEYOND * max((x.longest for x in seen if x is not None), default=0.0), _LONGEST)

    def left(self, place: Hashable, gone: float) -> float | None:
        """Return the seconds after which a run that has been away for `gone` is back, by how long others stayed away that were away as long; None:
        unknown. Who is later than all is taken to be away for as long as the latest."""
        seen = self._places.get(_site(place))
        if seen is None or len(seen.lately) < _ENOUGH:
            return None
        left = [away - gone for away in seen.lately if away > gone]
        return sum(left) / len(left) if left else max(seen.lately) or None

    def learn(self, place: Hashable, away: float | None) -> None:
        """Record that a run was away for so long, or has ended (None)."""
        site = _site(place)
        if site != place:
            self.learn(site, away)
        left, back, mean, longest, lately = self._places.pop(place, None) or _Seen(0, 0.0, 0.0, 0.0, deque(maxlen=_RECENT))
        if left >= _RECENT:
            left, back = left // 2, back / 2
        if away is not None:
            back += 1
            mean += (away - mean) / min(back, _RECENT)
            longest = max(away, longest * _FADES)
            lately.append(away)
        self._places[place] = _Seen(left + 1, back, mean, longest, lately)
        if len(self._places) > _PLACES:
            self._places.popitem(last=False)


def _site(place: Hashable) -> Hashable:
    """Return the line of a place, the same in every turn: a loop's first turns predict later ones."""
    return place[0] if isinstance(place, tuple) and place else place
