"""Prefix sharing within a pass: groups of rows whose contexts begin alike, so that attention reads the prefix once for
all of them.

One level: a row is in one group, or in none. Sharing is read off the radix tree: sequences below one node have the
node's slots in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmc.backend.engine.forward_batch import ModelPass, Rows
    from lmc.backend.engine.radix_cache import Node
    from lmc.backend.engine.request import Request

_LEAST = 256  # slots that a group must save to be formed


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Spans (their indices in the pass) whose first `length` slots are the same."""

    length: int
    spans: tuple[int, ...]

    @property
    def saves(self) -> int:
        """Return the number of slots that need not be read again."""
        return self.length * (len(self.spans) - 1)


class PassGroups:
    """The groups of passes that follow each other. Requests that decode keep their prefixes and their slots, so that the
    same requests share in the next pass what they share in this one."""

    def __init__(self) -> None:
        self._requests: list[Request] = []  # of the last pass, if it only decoded
        self._found: list[SharedPrefix] = []

    def of(self, work: ModelPass) -> list[SharedPrefix]:
        requests = [span.request for span in work.spans] if work.only_decodes else []
        if not requests or requests != self._requests:
            self._requests, self._found = requests, groups(work.spans)
        return self._found


def groups(spans: Sequence[Rows]) -> list[SharedPrefix]:
    """Return groups of decoding spans, those that save most first; each span in at most one. Their requests lock their
    nodes."""
    lowest: dict[Node, list[int]] = {}  # spans by the end of their prefix that is locked more than once
    for i, (req, ids, _, _, branch, _) in enumerate(spans):
        if len(ids) > 1 or branch is not None:
            continue
        node = req.node
        while node is not None and node.locks == 1:  # its own answers so far, which nobody shares: the most nodes of a path
            node = node.parent
        if node is not None:
            lowest.setdefault(node, []).append(i)
    below: dict[Node, list[int]] = {}
    for node, members in lowest.items():
        while (parent := node.parent) is not None:
            below.setdefault(node, []).extend(members)
            node = parent
    worthwhile = [(saves, node) for node, members in below.items() if len(members) > 1 and (saves := node.end * (len(members) - 1)) >= _LEAST]
    found: list[SharedPrefix] = []
    taken: set[int] = set()
    for _, node in sorted(worthwhile, key=lambda one: -one[0]):
        members = [i for i in below[node] if i not in taken] if taken else below[node]
        if node.end * (len(members) - 1) >= _LEAST:
            found.append(SharedPrefix(node.end, tuple(sorted(members))))
            taken.update(members)
    return sorted(found, key=lambda group: -group.saves)
