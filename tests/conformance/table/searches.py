"""Searches over forks: trees of thoughts, beams, best first, by bounds of confidence."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import lmc
from lmc import gen
from tests.conformance.harness import case
from tests.conformance.shared import by_name


@case()
def tree_of_thought(s: Any, q: str) -> str:
    s += q
    level = [s]
    for depth in range(2):
        following = []
        for state in level:
            for i, f in enumerate(state.fork(2)):
                f += f"[{depth}.{i}]" + lmc.gen("thought", max_tokens=5)
                f += lmc.gen("score", max_tokens=4)
                following.append(f)
        following.sort(key=lambda f: f["score"], reverse=True)
        level = following[:2]
    return level[0]["thought"] + level[0].text()


@dataclass(order=True)
class Node:
    score: int
    text: str = field(compare=False)
    parent: Node | None = field(default=None, compare=False, repr=False)

    def path(self) -> list[str]:
        node, found = self, []
        while node:
            found.append(node.text)
            node = node.parent
        return found[::-1]


@case([{"q": q} for q in "abcdefgh"], backend=by_name)
def best_first(s, q):
    heap, seen, tick = [(0, 0, Node(0, q), s.fork(1)[0])], {q}, itertools.count(1)
    for _ in range(4):
        if not heap:
            break
        _, _, node, state = heapq.heappop(heap)
        for i, f in enumerate(state.fork(2)):
            f += f"\nidea {i}:" + gen("idea", max_tokens=6) + " score:" + gen("score", regex="[0-9]")
            if (idea := f["idea"]) in seen:
                continue
            seen.add(idea)
            kid = Node(int(f["score"]), idea, node)
            if kid.score == 8:
                s += "found " + " > ".join(kid.path())
                return kid.path()
            heapq.heappush(heap, (-kid.score, next(tick), kid, f))
    else:
        s += "exhausted"
    return max((entry[2] for entry in heap), default=node).path(), sorted(seen)


@dataclass(order=True)
class Beam:
    score: float
    state: Any = field(compare=False, repr=False)
    path: tuple[str, ...] = field(default=(), compare=False)


@case(backend=by_name)
def beam_search(s, q):
    s += q
    beams = [Beam(0.0, s)]
    for depth in range(2):
        found = []
        for beam in beams:
            for i, f in enumerate(beam.state.fork(2)):
                f += f"\n{depth}.{i} " + gen("thought", max_tokens=4) + " score " + gen("score", max_tokens=2)
                found.append(Beam(beam.score - math.log1p(int(f["score"])), f, (*beam.path, f["thought"])))
        beams = heapq.nsmallest(2, found)
    return beams[0].path, round(beams[0].score, 4)


class Position:
    __slots__ = ("children", "move", "n", "parent", "state", "w")

    def __init__(self, state: Any, parent: Position | None = None, move: str = "") -> None:
        self.state, self.parent, self.move, self.children, self.n, self.w = state, parent, move, list[Position](), 0, 0.0

    def bound(self) -> float:
        return self.w / self.n + math.sqrt(math.log(self.parent.n) / self.n) if self.n and self.parent else math.inf


@case(backend=by_name)
def tree_search_by_bounds(s, q):
    s += q
    root = Position(s)
    for _ in range(4):
        node = root
        while node.children:
            node = max(node.children, key=Position.bound)
        if node.n or node is root:
            for i, f in enumerate(node.state.fork(2)):
                f += f"->{i}" + gen("move", max_tokens=3)
                node.children.append(Position(f, node, f["move"]))
            node = node.children[0]
        (value,) = node.state.fork(1)
        value += " value " + gen("n", max_tokens=2)
        reward, up = int(value["n"]) / 10, node
        while up is not None:
            up.n, up.w, up = up.n + 1, up.w + reward, up.parent
    best = max(root.children, key=lambda c: (c.n, c.w))
    return best.move, root.n, round(best.w, 3)
