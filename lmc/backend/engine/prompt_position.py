"""Prompt positions: ids that are final, and an open run of literal parts behind them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmc.backend.engine.encoding import NO_IDS
from lmc.backend.engine.prompt_pictures import Placed, PromptPicture
from lmc.segments import Part

if TYPE_CHECKING:
    from lmc.backend.engine.radix_cache import Node


@dataclass(frozen=True, slots=True)
class PromptPosition:
    """A prompt position: ids that are final, then an open run of literal parts, encoded as one.

    cached    where the KV of its closed ids, or of the first of them, was left in the tree, as `adapter` computes it
    pictures  that the closed ids are of, in order
    """

    closed: np.ndarray  # [n] int32
    run: tuple[Part | Placed, ...] = ()
    cached: weakref.ref[Node] | None = None
    pictures: tuple[PromptPicture, ...] = ()
    adapter: str = ""

    def node(self, adapter: str) -> Node | None:
        """Return the node of the KV that this adapter computed, if any."""
        return self.cached() if self.cached is not None and self.adapter == adapter else None

    @property
    def all_pictures(self) -> tuple[PromptPicture, ...]:
        return (*self.pictures, *(picture for part in self.run if isinstance(part, Placed) for picture in part.pictures))

    def followed(self, *parts: Part) -> PromptPosition:
        """Return the same with more literal parts."""
        return PromptPosition(self.closed, (*self.run, *parts), self.cached, self.pictures, self.adapter)


ROOT = PromptPosition(NO_IDS)
