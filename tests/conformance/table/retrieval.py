"""Retrieval: indexes with effects and declared pure, hops over a graph, texts in chunks."""

from __future__ import annotations

import heapq
import json
import operator
from collections.abc import Iterable

import lmc
from lmc import assistant, gen, user
from tests.conformance.harness import case, effect
from tests.conformance.shared import by_name, child


class Index:
    """A retriever with a cache of its own."""

    def __init__(self, docs: Iterable[str]) -> None:
        self.docs, self.hits = list(docs), 0

    def __len__(self) -> int:
        return len(self.docs)

    def __getitem__(self, i: int) -> str:
        return self.docs[i]

    def __contains__(self, x: object) -> bool:
        return x in self.docs

    def top(self, q: str, k: int = 2) -> list[tuple[float, str]]:
        effect("retrieve", q)
        self.hits += 1
        return heapq.nlargest(k, ((len({*d} & {*q}) / (1 + len(d)), d) for d in self.docs))


@lmc.pure
def embed(text: str) -> list[int]:
    return [text.count(c) for c in "aeiou"]


@case(backend=by_name)
def rag(s, q):
    index = Index(["tea is hot", "rain is wet", "bread", q])
    notes = []
    for score, doc in index.top(q, k=3):
        notes.append(f"[{score:.1f}] " + child(f"{doc}: {q}")["a"])
    s += user("\n".join(notes)) + assistant(gen("end", max_tokens=4))
    return s["end"], index.hits, len(index), "bread" in index, index[0]


@case(backend=by_name)
def rag_declared_pure(s, q):
    found = sorted(["tea", "rain", "bread"], key=lambda d: sum(map(operator.mul, embed(d), embed(q))))
    for i, doc in enumerate(found):
        f = s.fork(1)[0]
        f += f"{doc}{embed(doc)}" + gen("part", max_tokens=3)
        s += f["part"] + str(embed(f["part"])[i])
    return found, s.text()


@case(backend=by_name)
def hops(s, q):
    seen, frontier, graph = {q}, [q], {}
    for _hop in range(2):
        following = []
        for node in frontier:
            graph[node] = [n for n in child(node, "names")["names"].split(", ") if n not in seen]
            seen |= {*graph[node]}
            following += graph[node]
        frontier = following[:2]
    s += json.dumps(graph) + gen("sum", max_tokens=3)
    return graph, sorted(seen)
