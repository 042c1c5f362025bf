"""Groups of rows that read one prefix together: what saves most, each row once."""

from __future__ import annotations

import numpy as np

from lmc.backend.base import Hints
from lmc.backend.engine.attention.sharing import PassGroups, SharedPrefix, groups
from lmc.backend.engine.forward_batch import Rows
from lmc.backend.engine.radix_cache import Node, RadixCache
from lmc.backend.engine.request import Request, RequestKind
from lmc.segments import Gen, SamplingParams, Text
from tests.backend.engine_fakes import FakeAheadRunner, drain, stepped


class Tree:
    """A radix tree whose slots are handed out one after the other."""

    def __init__(self) -> None:
        self.cache, self._next = RadixCache(), 0

    def insert(self, parent: Node, *ids: int) -> Node:
        self._next += len(ids)
        slots = np.arange(self._next - len(ids), self._next)
        return self.cache.insert(parent, np.array(ids, np.int32), slots).node

    def decoding(self, node: Node, own: int = 1, rows: int = 1, branch: int | None = None) -> Rows:
        req = Request(RequestKind.GENERATE, np.zeros(node.end + own, np.int32), lambda _: None)
        req.node = node
        self.cache.lock(node)
        slots = np.concatenate((self.cache.slots_to(node), np.arange(10**6, 10**6 + own)))
        return Rows(req, np.zeros(rows, np.int32), len(slots) - rows, slots, branch)


def test_siblings_are_one_group_and_strangers_none():
    tree = Tree()
    shared = tree.insert(tree.cache.root, *range(600))
    alone = tree.insert(tree.cache.root, *range(7000, 7900))
    spans = [tree.decoding(shared), tree.decoding(alone), tree.decoding(shared, own=5)]
    assert groups(spans) == [SharedPrefix(600, (0, 2))]
    assert (spans[0].slots[:600] == spans[2].slots[:600]).all()


def test_a_row_goes_where_most_is_saved():
    tree = Tree()
    root = tree.insert(tree.cache.root, *range(600))
    deep = tree.insert(root, *range(1000, 3000))
    spans = [tree.decoding(n) for n in (root, deep, root, deep, deep)]
    found = groups(spans)
    assert found == [SharedPrefix(2600, (1, 3, 4)), SharedPrefix(600, (0, 2))]
    assert [g.saves for g in found] == [5200, 600]


def test_what_saves_little_is_no_group():
    tree = Tree()
    short = tree.insert(tree.cache.root, *range(100))
    assert groups([tree.decoding(short) for _ in range(3)]) == []


def test_only_decoding_rows_are_grouped():
    tree = Tree()
    shared = tree.insert(tree.cache.root, *range(2000))
    spans = [tree.decoding(shared), tree.decoding(shared, own=9, rows=9), tree.decoding(shared, branch=0)]
    assert groups(spans) == []


def test_groups_are_found_below_answers_of_any_number_of_nodes():
    """What a request alone has is skipped, also where a lease locks its beginning once more."""
    tree = Tree()
    shared = tree.insert(tree.cache.root, *range(600))
    own = []
    for i in range(3):
        node = shared
        for n in range(4):
            node = tree.insert(node, *range(10_000 * (i + 1) + 100 * n, 10_000 * (i + 1) + 100 * n + 50))
            if n == 1 and i == 2:
                tree.cache.lock(node)
        own.append(node)
    assert groups([tree.decoding(node) for node in own]) == [SharedPrefix(600, (0, 1, 2))]


def test_groups_of_the_last_pass_are_those_of_the_next_with_the_same_requests():
    """In every pass: with forks that begin and end, a pool that makes requests wait and go out again, and chains."""
    known = []

    class Grouped(FakeAheadRunner):
        prefixes = PassGroups()

        def launch(self, work):
            before, found = self.prefixes._found, self.prefixes.of(work)
            assert found == groups(work.spans)
            for group in found:
                first, *others = (work.spans[i].slots[: group.length].tolist() for i in group.spans)
                assert all(slots == first for slots in others)
            known.append(bool(found) and found is before)
            return super().launch(work)

    def gen(tokens: int) -> Gen:
        return Gen(SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True))

    engine, core = stepped(2600, runs=Grouped, chunk=256, max_batch=32)
    for i, tokens in enumerate((5, 30, 140, 30, 5, 200)):
        stem = engine.submit(None, [Text(("p" * 300 + str(i % 2),)), gen(tokens // 2)])
        handles = [engine.submit(stem, [Text((f"{i} {j}",)), gen(tokens)], Hints(order=(i, j))) for j in range(6)]
        handles += [engine.submit(handle, [Text(("and",)), gen(7)]) for handle in handles]
        for _ in range(i * 3):
            core.turn()
    drain(core, engine.check)
    assert sum(known) > len(known) // 3, "groups were made again in nearly every pass"
