"""Pictures in a prompt: their tokens, the text that a chat template writes around them, and the positions of what follows.

A picture has a *number*, an id above every vocabulary (eyes.py). A run of one id is consecutive pictures, each of `count` tokens; so ids alone
determine which row of which picture a token is. Differences between models (several pictures of tiles for one image, positions on three axes,
tokens that see each other) are in `Shown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lmc.backend.engine.token_ids import PICTURE
from lmc.segments import Mark, Part


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """One input of a tower: an image, a tile of one, or a video.

    count   its number of tokens
    inputs  of the tower
    axes    [3, count] int64: where the tokens are in time, height and width, from the position of the first on;
            None: each token is one position after the last, as in texts
    extent  positions from the first token to the following text
    mutual  its tokens see each other, not only earlier ones
    moving  of a video: it has another placeholder token in the vocabulary
    """

    count: int
    inputs: Mapping[str, np.ndarray]
    axes: np.ndarray | None = None
    extent: int = -1
    mutual: bool = False
    moving: bool = False

    def __post_init__(self) -> None:
        if self.extent < 0:
            object.__setattr__(self, "extent", self.count)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PromptPicture:
    """A tower input with its number, in a prompt's run of literal parts."""

    number: int
    shown: Shown

    @property
    def count(self) -> int:
        """Return its number of tokens."""
        return self.shown.count


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The text that a chat template writes around an image or a video.

    before, after  around one that follows other content
    replaces       the end of the role's prefix that is missing before one that begins its message; single characters and
                   special tokens
    lead           instead of it
    joint          between that one and another that follows it
    close          between it and a following text
    last           between it and the role's suffix
    """

    before: tuple[Part, ...] = ()
    after: tuple[Part, ...] = ()
    replaces: tuple[Part, ...] = ()
    lead: tuple[Part, ...] = ()
    joint: tuple[Part, ...] = ()
    close: tuple[Part, ...] = ()
    last: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """An image or a video in a prompt's run, as the model's processor writes it. nbytes: of its file and of the tower's inputs."""

    parts: tuple[Part | PromptPicture, ...]
    around: Surroundings
    nbytes: int = 0

    @property
    def pictures(self) -> Iterator[PromptPicture]:
        return (part for part in self.parts if isinstance(part, PromptPicture))


def written(run: Iterable[Part | Placed]) -> list[Part | PromptPicture]:
    """Return a run as it is encoded: without marks, and with what the chat template writes around its pictures. That
    depends on what follows them, so a run is written anew when it has grown."""
    out: list[Part | PromptPicture] = []
    begins, row = False, None  # `row`: the last picture of a message that is only pictures so far
    for part in run:
        if isinstance(part, Mark):
            out += row.around.last if row and part.edge == "end" else ()
            begins, row = part.edge == "begin", None
        elif isinstance(part, Placed):
            around = part.around
            if begins:
                _drop(out, around.replaces)
            out += around.lead if begins else row.around.joint if row else around.before
            out += part.parts
            out += () if begins or row else around.after
            begins, row = False, part if begins or row else None
        elif part:
            out += row.around.close if row else ()
            out.append(part)
            begins, row = False, None
    return [*out, *(row.around.close if row else ())]


def _drop(out: list[Part | PromptPicture], end: Sequence[Part]) -> None:
    """Remove `end` from the end, if it is there: the prefix may be of another template."""
    kept = list(out)
    for atom in reversed(end):
        last = kept.pop() if kept else None
        if isinstance(last, str) and isinstance(atom, str) and last.endswith(atom):
            kept += [last[: -len(atom)]] if last != atom else []
        elif last != atom:
            return
    out[:] = kept


class Laid(NamedTuple):
    """A picture in a sequence of tokens.

    start     of its tokens
    position  of the first
    """

    start: int
    picture: PromptPicture
    position: int

    @property
    def end(self) -> int:
        return self.start + self.picture.count

    @property
    def lift(self) -> int:
        """Return how much higher than their indices the positions of the tokens after it are."""
        return self.position + self.picture.shown.extent - self.end


def laid(ids: np.ndarray, pictures: Sequence[PromptPicture]) -> tuple[Laid, ...]:
    """Return where the pictures of a prompt, which are given in order, begin."""
    found: list[Laid] = []
    places = np.flatnonzero(ids >= PICTURE)
    at = lift = 0  # `at` indexes `places`
    for picture in pictures:
        start = int(places[at])
        assert ids[start] == picture.number, "pictures out of order"
        found.append(Laid(start, picture, start + lift))
        lift = found[-1].lift
        at += picture.count
    assert at == len(places), "a picture's tokens without the picture"
    return tuple(found)


def lift(pictures: Sequence[Laid]) -> int:
    """Return how much further than its tokens a prompt's positions go; 0 where they do not."""
    return max(0, pictures[-1].lift) if pictures else 0


def within(pictures: Sequence[Laid], begin: int, end: int) -> Iterator[tuple[Laid, int, int, int]]:
    """Yield pictures with tokens among [begin, end) of a sequence: each with the first and last of them (exclusive),
    and the offset of the first from `begin`."""
    for at in pictures:
        first, last = max(at.start, begin), min(at.end, end)
        if first < last:
            yield at, first - at.start, last - at.start, first - begin


def positions(pictures: Sequence[Laid], begin: int, end: int) -> np.ndarray:
    """Return positions of the tokens [begin, end) of a sequence, int64; a picture's own tokens may have others, on
    three axes."""
    found = np.arange(begin, end)
    for at in reversed(pictures):
        if at.end < end:
            behind = max(0, at.end - begin)
            found[behind : end - begin] += at.lift
            end = begin + behind
        if end <= begin:
            break
    return found
