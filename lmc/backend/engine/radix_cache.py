"""The radix tree: token sequences whose KV is in the pool, shared by all requests (RadixAttention, arXiv 2312.07104).

An edge carries a run of token ids and, in the same order, the slots of their KV. The tree owns its slots. `lock`
protects a node and all its ancestors from eviction; unlocked tokens are evicted from the ends of leaves, least recently
used first; `touch` marks prefixes known to be used next, `forget` those known not to be. A node object always keeps its
*end*: when an edge is split, the new object is the upper part, so that a reference to a node means the same prefix for
as long as it is locked.

Namespaces have nothing in common: each is a tree of its own, for as long as it has tokens or its root is referenced.
"""

from __future__ import annotations

import heapq
import itertools
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

_BASE = 0x9E3779B97F4A7C15 | 1  # odd: invertible modulo 2**64
_NEVER = 1 << 60  # ticks by which unused prefixes are older than all others
_AT_ONCE = 64  # tokens of a leaf that are evicted together
_GHOSTS = 4_000_000  # remembered evicted tokens before the memory is dropped


class Node:
    """One edge and its end. `start` is the depth where the edge begins; `end` where it ends, in tokens."""

    __slots__ = ("__weakref__", "children", "ended_at", "hash", "ids", "last_use", "locks", "offered", "parent", "salt", "slots", "start")

    def __init__(self, parent: Node | None, ids: np.ndarray, slots: np.ndarray, start: int) -> None:
        self.parent, self.ids, self.slots, self.start = parent, ids, slots, start
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.last_use = 0
        self.offered: int | None = None  # its stamp in the heap of leaves that may be evicted; None: not in the heap
        self.ended_at = 0  # the tick at which a request ended here last; 0: none did
        self.salt = parent.salt if parent is not None else 0  # hash of the namespace
        self.hash: int | None = None if parent is not None else 0  # hash of the prefix, once computed

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    def goes_on(self, token: int) -> bool:
        """Return whether a longer prefix with this next token is known; also after eviction of this node."""
        return token in self.children or (self.parent is None and len(self.ids) > 0)

    def __repr__(self) -> str:
        return f"Node([{self.start}:{self.end}) locks={self.locks} children={len(self.children)})"


class Inserted(NamedTuple):
    """`node` ends where the inserted run ends; the first `present` tokens were there already, at slots `slots`."""

    node: Node
    present: int
    slots: np.ndarray  # [present] int64, the tree's own slots for those tokens


class RadixCache:
    """Tokens in the tree: `size`; those that may be evicted: `evictable`."""

    def __init__(self) -> None:
        self._roots: weakref.WeakValueDictionary[str, Node] = weakref.WeakValueDictionary()
        self.root = self._root("")
        self.size = 0
        self.evictable = 0
        self._clock = itertools.count(1)
        self._leaves: list[tuple[int, int, Node]] = []  # heap of (stamp, tie, leaf); an entry counts if its stamp is `leaf.offered`
        self._ties = itertools.count()
        self._ghosts: set[int] = set()

    # -- look-up -----------------------------------------------------------------------------------------------

    def _root(self, namespace: str) -> Node:
        """Return the root of a namespace."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, np.empty(0, np.int32), np.empty(0, np.int64), 0)
            root.locks, root.salt = 1, hash(namespace) % 2**64 if namespace else 0
        return root

    def match(self, ids: np.ndarray, limit: int | None = None, namespace: str = "", after: Node | None = None) -> Node:
        """Return the node where the longest cached prefix of `ids[:limit]` ends; splits the edge it ends inside.
        `after`: the end of a shorter prefix of the same sequence, as a starting point if it is still in the tree, and
        of this namespace."""
        limit = len(ids) if limit is None else limit
        root = self._root(namespace) if namespace else self.root
        if after is None or after.parent is None or after.end > limit or after.salt != root.salt:
            after = root
        node, now = after, next(self._clock)
        node.last_use = now
        end = node.end
        while end < limit:
            child = node.children.get(int(ids[end]))
            if child is None:
                break
            common = common_prefix(child.ids, ids[end:limit])
            node = self._used(child, common, now)
            if node is not child:
                break
            end += common
        return node

    def slots_to(self, node: Node) -> np.ndarray:
        """Return the slots of the whole prefix that ends at `node`, [node.end] int64."""
        parts = [n.slots for n in self._path(node)]
        return np.concatenate(parts[::-1]) if len(parts) > 1 else parts[0] if parts else np.empty(0, np.int64)

    def ids_to(self, node: Node) -> np.ndarray:
        """Return the token ids of the whole prefix that ends at `node`, [node.end] int32."""
        parts = [n.ids for n in self._path(node)]
        return np.concatenate(parts[::-1]) if parts else np.empty(0, np.int32)

    def write_slots(self, node: Node, out: np.ndarray) -> None:
        """Write the same into `out[: node.end]`."""
        while (parent := node.parent) is not None:
            out[node.start : node.start + len(node.slots)] = node.slots
            node = parent

    # -- growth ------------------------------------------------------------------------------------------------

    def insert(self, node: Node, ids: np.ndarray, slots: np.ndarray) -> Inserted:
        """Add the run `ids` below `node`. The tree takes ownership of `slots` of the tokens it lacked; slots of tokens
        that were present stay the caller's, to be freed."""
        begin, end = node.end, node.end + len(ids)
        now = next(self._clock)
        found: list[np.ndarray] = []
        while node.end < end:
            at = node.end - begin
            child = node.children.get(int(ids[at]))
            if child is None:
                present = at
                node = self._attach(node, ids[at:].copy(), slots[at:].copy(), now)
                return Inserted(node, present, _joined(found))
            node = self._used(child, common_prefix(child.ids, ids[at:]), now)
            found.append(node.slots)
        return Inserted(node, end - begin, _joined(found))

    def _attach(self, parent: Node, ids: np.ndarray, slots: np.ndarray, now: int) -> Node:
        child = Node(parent, ids, slots, parent.end)
        child.last_use = now
        parent.children[int(ids[0])] = child
        self.size += len(ids)
        self.evictable += len(ids)
        self._offer(child)
        return child

    def _used(self, node: Node, tokens: int, now: int) -> Node:
        """Return the node that ends after so many tokens of the edge of `node`; these are used now, and not what follows."""
        if tokens < len(node.ids):
            node = self._split(node, tokens)
        node.last_use = now
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Cut the edge of `node` after `at` tokens; return the new upper node."""
        parent = node.parent
        assert parent is not None and 0 < at < len(node.ids)
        upper = Node(parent, node.ids[:at], node.slots[:at], node.start)
        upper.locks, upper.last_use = node.locks, node.last_use  # a lock of the end locks the beginning
        parent.children[int(upper.ids[0])] = upper
        node.ids, node.slots, node.start, node.parent = node.ids[at:], node.slots[at:], node.start + at, upper
        upper.children[int(node.ids[0])] = node
        return upper

    # -- locks and eviction ------------------------------------------------------------------------------------

    def lock(self, node: Node) -> None:
        """Lock the prefix that ends at `node`."""
        while (parent := node.parent) is not None:
            if node.locks == 0:
                self.evictable -= len(node.ids)
            node.locks += 1
            node = parent

    def unlock(self, node: Node) -> None:
        while (parent := node.parent) is not None:
            assert node.locks > 0, f"unlock without lock: {node}"
            node.locks -= 1
            if node.locks == 0:
                self.evictable += len(node.ids)
                if not node.children:
                    self._offer(node)
            node = parent

    def freed_by(self, nodes: Iterable[Node]) -> int:
        """Return the tokens that would become evictable if one lock on each of these nodes ended."""
        ended, found = Counter[Node](), 0
        for node in nodes:
            while (parent := node.parent) is not None:
                ended[node] += 1
                if ended[node] == node.locks:
                    found += len(node.ids)
                node = parent
        return found

    def unlocked(self, node: Node) -> int:
        """Return the tokens of the prefix that ends at `node` which may be evicted, until it is locked."""
        found = 0
        while node.parent is not None and not node.locks:
            found += len(node.ids)
            node = node.parent
        return found

    def touch(self, node: Node) -> None:
        """Mark the prefix that ends at `node` as just used."""
        node.last_use = next(self._clock)

    def forget(self, node: Node, tokens: int) -> None:
        """Expect no further use of the last `tokens` of the prefix that ends at `node`: they are evicted first, except
        those that others extend."""
        start, stamp, most = node.end - tokens, next(self._clock) - _NEVER, 0
        while node.parent is not None and node.start >= start and not node.locks and len(node.children) <= most:
            node.last_use = stamp
            self._offer(node)
            node, most = node.parent, 1

    def mark_end(self, node: Node) -> None:
        """Record that a request has ended here."""
        node.ended_at = next(self._clock)

    def away(self, node: Node) -> int:
        """Return the ticks since a request ended at `node` or before it, after which an extension has come back. 0:
        none did."""
        while node.parent is not None:
            if node.ended_at:
                return next(self._clock) - node.ended_at
            node = node.parent
        return 0

    def expect(self, node: Node, ticks: int) -> None:
        """Set the prefix that ends at `node` as used in so many ticks."""
        node.last_use = next(self._clock) + ticks

    def lengthen(self, held: Node, node: Node) -> None:
        """Turn a lock on `held` into one on `node`, which extends it."""
        while node is not held:
            parent = node.parent
            assert parent is not None, "a lock can only be moved down"
            if node.locks == 0:
                self.evictable -= len(node.ids)
            node.locks += 1
            node = parent

    def evict(self, want: int, until: int = _NEVER) -> np.ndarray:
        """Remove ends of unlocked leaves, least recently used first, until `want` tokens are freed or none is left;
        return the slots, which are the caller's now. A long leaf is cut to about the wanted number. `until` 0: only what
        `forget` has marked, and nobody has used since."""
        freed: list[np.ndarray] = []
        count = 0
        while count < want and self._leaves and self._leaves[0][0] < until:
            stamp, _, node = heapq.heappop(self._leaves)
            if node.offered != stamp:
                continue  # it was offered again, with an earlier stamp
            node.offered = None
            if node.locks or node.children or node.parent is None:
                continue  # locked, grown or gone since it was offered
            if node.last_use != stamp:
                self._offer(node)
                continue
            rest = len(node.ids) - max(want - count, _AT_ONCE)
            if rest > 0:
                self._split(node, rest)  # becomes a leaf once its end is gone
            count += len(node.ids)
            freed.append(self._remove(node))
        return _joined(freed)

    def _remove(self, leaf: Node) -> np.ndarray:
        parent = leaf.parent
        assert parent is not None and not leaf.children
        if len(self._ghosts) > _GHOSTS:
            self._ghosts.clear()
        self._ghosts.update(self._hashes(leaf))
        del parent.children[int(leaf.ids[0])]
        leaf.parent = None
        parent.last_use = max(parent.last_use, leaf.last_use)  # using the end uses the beginning
        self.size -= len(leaf.ids)
        self.evictable -= len(leaf.ids)
        if not parent.children and not parent.locks:
            self._offer(parent)
        return leaf.slots

    def _offer(self, node: Node) -> None:
        if node.children or node.locks or node.parent is None:
            return
        if node.offered is None or node.last_use < node.offered:
            node.offered = node.last_use
            heapq.heappush(self._leaves, (node.last_use, next(self._ties), node))

    def clear(self) -> np.ndarray:
        """Evict everything that is not locked and forget evicted hashes; return the slots."""
        freed = self.evict(self.size)
        self._ghosts.clear()
        return freed

    def give_up(self) -> None:
        """End the tree, regardless of references: an evicted node is never extended."""
        for node in list(self.nodes()):
            node.parent = None

    # -- evicted prefixes ------------------------------------------------------------------------------------

    def evicted_before(self, node: Node, count: int) -> int:
        """Return how many of the last `count` tokens of the prefix ending at `node` had been cached and evicted."""
        if not self._ghosts:
            return 0
        seen = 0
        while count > 0 and node.parent is not None:
            tail = self._hashes(node)[-count:]
            seen += sum(h in self._ghosts for h in tail)
            count -= len(tail)
            node = node.parent
        return seen

    def _hashes(self, node: Node) -> list[int]:
        """Return one hash per token of the edge, of the whole prefix up to it."""
        assert node.parent is not None
        found = prefix_hashes(node.ids, node.start, self._hash_at(node.parent))
        node.hash = int(found[-1])
        return (found ^ np.uint64(node.salt)).tolist()

    def _hash_at(self, node: Node) -> int:
        """Return the hash of the prefix that ends at `node`, constant while the node is in the tree."""
        missing: list[Node] = []
        while node.hash is None:
            missing.append(node)
            assert node.parent is not None
            node = node.parent
        found = node.hash
        for n in reversed(missing):
            found = n.hash = int(prefix_hashes(n.ids, n.start, found)[-1])
        return found

    # -- walks -------------------------------------------------------------------------------------------------

    @staticmethod
    def _path(node: Node) -> Iterator[Node]:
        """Yield nodes from `node` up, without the root."""
        while node.parent is not None:
            yield node
            node = node.parent

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the roots."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Raise unless the counters and the links are consistent."""
        size = evictable = 0
        offered = [node for stamp, _, node in self._leaves if node.offered == stamp]
        listed = set(offered)
        assert len(offered) == len(listed), "a leaf is offered for eviction twice"
        for node in self.nodes():
            assert node.locks or node.children or node in listed, f"never to be evicted: {node}"
            assert node.parent is not None and node.parent.end == node.start, f"broken link at {node}"
            assert node.parent.children[int(node.ids[0])] is node, f"child under a wrong key: {node}"
            assert len(node.ids) == len(node.slots) > 0, f"edge without tokens: {node}"
            assert node.locks >= sum(c.locks for c in node.children.values()) or node.locks > 0 or not any(c.locks for c in node.children.values()), (
                f"locked child below an unlocked node: {node}"
            )
            size += len(node.ids)
            evictable += 0 if node.locks else len(node.ids)
        assert (size, evictable) == (self.size, self.evictable), (
            f"radix tree: counted {size} tokens, {evictable} evictable; recorded {self.size}, {self.evictable}"
        )


class TableCache(RadixCache):
    """Finds only prefixes of whole earlier requests, not common ones (to compare with)."""

    def match(self, ids: np.ndarray, limit: int | None = None, namespace: str = "", after: Node | None = None) -> Node:
        node = super().match(ids, limit, namespace, after)
        if node.end == limit:  # everything that may come from the cache: a row is left for the logits
            return node
        while node.parent is not None and not node.ended_at and node is not after:
            node = node.parent
        return node


class NoCache(RadixCache):
    """Finds nothing (to compare with)."""

    def match(self, ids: np.ndarray, limit: int | None = None, namespace: str = "", after: Node | None = None) -> Node:
        return self._root(namespace)


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Return the length of the longest common prefix. Equality first: the position is searched only after a miss."""
    n = min(len(a), len(b))
    if n == 0 or a[0] != b[0]:
        return 0
    differs = a[:n] != b[:n]
    at = int(differs.argmax())
    return at if differs[at] else n


def prefix_hashes(ids: np.ndarray, start: int = 0, before: int = 0) -> np.ndarray:
    """Return [n] uint64: a hash of `ids[: i + 1]` for each i, after a prefix of `start` tokens whose hash is
    `before`."""
    terms = (ids.astype(np.uint64) + np.uint64(1)) * _powers(start + len(ids))[start:]
    return np.cumsum(terms, dtype=np.uint64) + np.uint64(before)


_POWERS = np.ones(1, np.uint64)


def _powers(n: int) -> np.ndarray:
    """Return [n] uint64: powers of the base, from the first on."""
    global _POWERS
    if len(_POWERS) < n:
        _POWERS = np.cumprod(np.full(max(n, 2 * len(_POWERS)), _BASE, np.uint64), dtype=np.uint64)
    return _POWERS[:n]


_NO_SLOTS = np.empty(0, np.int64)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else _NO_SLOTS
