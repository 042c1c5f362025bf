"""The host tier: KV of prefixes in host memory, for when they are evicted from the device, and its way back.

    a request ends ──save──► a copy out ──► the host's tree ──least recently used──► gone
                                                 └──fetch──► a copy in, for a request that was admitted ──► the radix tree

A copy takes time, overlapping passes. A prefix being copied out stays locked in the radix tree until that is done, so
that its slots are not reused before; slots being copied in belong to the fetch until then, and the request has no rows
meanwhile. Whole prefixes are saved, of which only the end is new, and their eviction from the device costs nothing.
Bookkeeping on token ids and slots; a *mover* copies.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmc.backend.engine.device_errors import is_device_error
from lmc.backend.engine.kv_pool import SlotAllocator
from lmc.backend.engine.load import CopyRates
from lmc.backend.engine.radix_cache import Node, RadixCache
from lmc.backend.engine.request import Request
from lmc.backend.engine.reservations import Reservations

if TYPE_CHECKING:
    from lmc.backend.engine.kv_copy import Copied, KVMover

log = logging.getLogger("lmc.engine")

LEAST = 16  # least tokens worth a copy in; out goes everything, or a parked prefix would have to be recomputed in part
_IN_USE = 0.5  # share of the pool in use below which nothing is saved
_AHEAD = 4  # room is wanted for as much again as is used, and at least for a 1/n of the pool
_SELDOM = 16  # if fewer than 1/n of requests without a run go on from an earlier one, only each n-th is saved
_MANY = 64  # such requests before that is known, and half of those that count
_REMEMBERED = 4096  # remembered prefix ends, saved once the pool fills up


@dataclass(slots=True, eq=False)
class Save:
    """A copy out: `ids` end at `node`, which is locked; the last of them are new, and go after `found`."""

    copy: Copied
    node: Node
    found: Node
    ids: np.ndarray
    slots: np.ndarray  # of the host
    leased: bool


@dataclass(slots=True, eq=False)
class Fetch:
    """A copy in: `ids` go after `parent`, which is locked, to slots that belong to the request, or to the fetch if the
    request is gone, or there was none.

    on_done called with its end in the tree, if it was made for no request
    """

    copy: Copied
    parent: Node
    found: Node  # of the host's tree, locked
    ids: np.ndarray
    slots: np.ndarray  # of the device
    request: Request | None
    on_done: Callable[[Node], None] | None = None


class HostTier:
    """The host tier of one radix tree.

    saved, fetched   tokens copied out, and in
    ahead            copies in made before a request arrived
    failed           copies that could not be made: their tokens are recomputed
    """

    def __init__(self, mover: KVMover, tree: RadixCache, pool: SlotAllocator, rates: CopyRates, reservations: Reservations) -> None:
        self._mover, self._tree, self._pool, self.rates, self._reservations = mover, tree, pool, rates, reservations
        self._host, self._slots = RadixCache(), SlotAllocator(mover.ready)
        self._copies: weakref.WeakKeyDictionary[Node, Node] = weakref.WeakKeyDictionary()  # of nodes of the device's tree
        self._kept: Counter[Node] = Counter()  # copies that are locked for runs
        self._unsaved: dict[Node, tuple[str, bool]] = {}  # unsaved while there is room for all
        self._ended = self._resumed = 0  # requests without a run, lately, and those that went on from an earlier one
        self._saves: list[Save] = []
        self._fetches: list[Fetch] = []
        self.saved = self.fetched = self.fetches = self.failed = self.ahead = 0

    @property
    def busy(self) -> bool:
        return bool(self._saves or self._fetches)

    @property
    def grows(self) -> bool:
        """Return whether more room will come soon."""
        return self._mover.grows

    @property
    def capacity(self) -> int:
        """Return the tokens that it has room for by now."""
        return self._mover.ready

    @property
    def is_large(self) -> bool:
        """Return whether it has, or will have, room for as much as the device."""
        return self._mover.capacity >= self._pool.num_slots

    @property
    def size(self) -> int:
        """Return the tokens that it holds."""
        return self._host.size

    # -- out ---------------------------------------------------------------------------------------------------

    def save(self, node: Node, space: str, *, leased: bool) -> None:
        """Begin to copy the prefix that ends at `node`, as far as the host lacks it; as soon as enough of the pool is
        in use: by leases and requests, or if it is not leased, by anything."""
        if not self.rates.favour_copies:
            return
        self._unsaved[node] = space, leased
        if len(self._unsaved) > _REMEMBERED:
            self._unsaved.pop(next(iter(self._unsaved)))
        self._save_all(leased=leased)

    def may_resume(self, req: Request) -> bool:
        """Return whether another request is expected to go on from one without a run that has ended, as conversations do."""
        self._ended += 1
        self._resumed += req.away > 0
        if self._ended >= 2 * _MANY:
            self._ended, self._resumed = self._ended // 2, self._resumed // 2
        return self._ended < _MANY or self._resumed * _SELDOM >= self._ended or self._ended % _SELDOM == 0

    def _save_all(self, *, leased: bool) -> None:
        """Save what was remembered, if enough of the pool is in use, and as long as there is room."""
        room = self._reservations.unreserved if leased else self._pool.free_count
        if room > (1 - _IN_USE) * self._pool.num_slots:
            return
        while self._unsaved:
            node, (space, leased) = next(iter(self._unsaved.items()))
            is_needed = node.parent is not None and (node.locks > 0 or not leased)
            if is_needed and not self._save(node, space, leased=leased):
                return  # until there is more room
            del self._unsaved[node]

    def _save(self, node: Node, space: str, *, leased: bool) -> bool:
        """Return whether there was room for it."""
        ids = self._tree.ids_to(node)
        found = self._host.match(ids, namespace=space)
        n = len(ids) - found.end
        if not n:
            self._copies[node] = found
            return True
        if any(save.node is node for save in self._saves):
            return True
        if self._tree.unlocked(node) > self._reservations.unreserved:  # what is reserved may have to go where it is
            return True
        self._host.lock(found)
        slots = self._alloc(n)
        copy = self._begun(self._mover.out, self._tree.slots_to(node)[found.end :], slots) if slots is not None else None
        if slots is None or copy is None:
            self._host.unlock(found)
            if slots is None:
                return False
            self._slots.free(slots)
            self.failed += 1
            return True
        self._tree.lock(node)
        self._saves.append(Save(copy, node, found, ids, slots, leased))
        self.saved += n
        return True

    def want(self, n: int) -> None:
        """Make room for so many more tokens, and for some that will come after these. What is not expected to be used again
        is evicted before more memory is wanted."""
        if (lack := self._with_ahead(n) - self._mover.ready) > 0:
            self._slots.free(self._host.evict(lack, until=0))
        self._mover.want(self._with_ahead(n))

    def _with_ahead(self, n: int) -> int:
        used = self._slots.num_slots - self._slots.free_count + n
        return used + max(used, self._pool.num_slots // _AHEAD)

    def take_room(self) -> bool:
        """Use what room has come for what waits for it; return whether some has."""
        if not self._extend():
            return False
        if self._unsaved:
            _, leased = next(iter(self._unsaved.values()))
            self._save_all(leased=leased)
        return True

    def _extend(self) -> bool:
        new = self._mover.ready
        if new <= self._slots.num_slots:
            return False
        self._slots.extend(new)
        return True

    def _alloc(self, n: int) -> np.ndarray | None:
        self.want(n)
        self._extend()
        if self._slots.free_count < n:
            if self._slots.free_count + self._host.evictable < n:
                return None
            self._slots.free(self._host.evict(n - self._slots.free_count))
        return self._slots.alloc(n)

    def _begun(self, copy: object, source: np.ndarray, target: np.ndarray) -> Copied | None:
        try:
            return copy(source, target)  # pyright: ignore
        except (RuntimeError, MemoryError) as error:
            if is_device_error(error):
                raise
            if not self.failed:
                log.warning("KV could not be copied between device and host, and is computed again: %s: %s", type(error).__name__, error)
            return None

    def has(self, node: Node) -> bool:
        """Return whether the prefix that ends at `node` was saved, and is still here."""
        copy = self._copies.get(node)
        return copy is not None and copy.parent is not None

    def is_at(self, node: Node, copy: Node) -> None:
        """Record that `copy` ends where `node` ends on the device."""
        self._copies[node] = copy

    def keep(self, node: Node) -> Node:
        """Lock the copy that `has` found, until its `release`."""
        copy = self._copies[node]
        self._host.lock(copy)
        self._kept[copy] += 1
        return copy

    def release(self, copy: Node) -> None:
        self._host.unlock(copy)
        self._kept[copy] -= 1
        if not self._kept[copy]:
            del self._kept[copy]

    def expire(self, node: Node, tokens: int) -> None:
        """Expect no further use of the last `tokens` of the prefix that ends at `node`, be it still on the device or not."""
        start, at = node.end - tokens, node
        while at is not None and at.end > start:
            if self.has(at):
                copy = self._copies[at]
                return self._host.forget(copy, copy.end - start)
            at = at.parent

    # -- back --------------------------------------------------------------------------------------------------

    def found(self, req: Request, at: int) -> int:
        """Return where the head of a waiting request, of which `at` tokens are cached, would end if everything here
        were fetched."""
        if not self._host.size or not self.rates.favour_copies:
            return at
        end = self._host.match(req.ids, req.match_limit, req.space).end
        return end if end - at >= LEAST else at

    def is_coming(self, node: Node, token: int) -> bool:
        """Return whether the continuation of `node` by that token is being fetched."""
        return any(fetch.parent is node and int(fetch.ids[0]) == token for fetch in self._fetches)

    def fetch(self, req: Request, upto: int) -> bool:
        """Begin to copy a just admitted request's prefix here to its own slots, up to `upto`. Return whether that could
        begin."""
        at = req.device_len
        assert req.node is not None and req.node.end == at
        found = self._host.match(req.ids, upto, req.space)
        req.arriving = self._fetch(found, req.node, req.ids[at:upto].copy(), req.slots[at:upto].copy(), req)
        if req.arriving is None:
            return False
        req.away = req.away or 1  # it goes on from what has left the device
        return True

    def fetch_ahead(self, copy: Node, parent: Node, slots: np.ndarray, on_done: Callable[[Node], None]) -> None:
        """Begin to copy the prefix up to `copy`, of which the device has what ends at `parent`, to slots that are the
        tier's from now on."""
        if self._fetch(copy, parent, self._host.ids_to(copy)[parent.end :], slots, None, on_done) is None:
            return self._pool.free(slots)
        self.ahead += 1

    def _fetch(
        self, found: Node, parent: Node, ids: np.ndarray, slots: np.ndarray, request: Request | None, on_done: Callable[[Node], None] | None = None
    ) -> Fetch | None:
        """Begin a fetch of the prefix that ends at `found`; None if it cannot begin."""
        self._host.lock(found)
        copy = self._begun(self._mover.back, self._host.slots_to(found)[parent.end :], slots)
        if copy is None:
            self.failed += 1
            self._host.unlock(found)
            return None
        self._tree.lock(parent)
        fetch = Fetch(copy, parent, found, ids, slots, request, on_done)
        self._fetches.append(fetch)
        self.fetches += 1
        self.fetched += len(slots)
        return fetch

    def ids_to(self, copy: Node) -> np.ndarray:
        """Return the tokens of a prefix locked by `keep`."""
        return self._host.ids_to(copy)

    def seconds(self, tokens: int) -> float:
        """Return how long copying so many takes, as measured; 0 if unknown."""
        return tokens / self.rates.copy if self.rates.copy else 0.0

    # -- completed copies ------------------------------------------------------------------------------------------

    def completed(self) -> Iterator[Request | None]:
        """Complete finished copies: yield each time something was unlocked, and the request that can continue, if there
        is one."""
        for save in [save for save in self._saves if save.copy.done()]:
            self._saves.remove(save)
            self.rates.learn_copy(len(save.slots), save.copy.seconds)
            done = self._host.insert(save.found, save.ids[save.found.end :], save.slots)
            self._slots.free(save.slots[: done.present])
            self._host.unlock(save.found)
            self._tree.unlock(save.node)
            self._copies[save.node] = done.node
            if save.leased and not save.node.locks:  # its run has ended
                self._host.forget(done.node, len(save.slots))
            yield None
        for fetch in [fetch for fetch in self._fetches if fetch.copy.done()]:
            self._fetches.remove(fetch)
            self.rates.learn_copy(len(fetch.slots), fetch.copy.seconds)
            self._host.unlock(fetch.found)
            req = fetch.request
            if req is None:  # cancelled or preempted: it is cached anyway
                done = self._tree.insert(fetch.parent, fetch.ids, fetch.slots)
                self._pool.free(fetch.slots[: done.present])
                if fetch.on_done is not None:
                    self.is_at(done.node, fetch.found)
                    fetch.on_done(done.node)
            else:
                req.arriving = None
            self._tree.unlock(fetch.parent)
            yield req

    def wait(self) -> None:
        """Wait until a copy is done, one in if there is one."""
        for one in (*self._fetches, *self._saves)[:1]:
            one.copy.wait()

    def forget(self) -> None:
        """Drop everything here that is not being copied."""
        self._slots.free(self._host.clear())

    def close(self) -> None:
        """Wait for copies; nothing here is used any longer."""
        self._mover.settle()
        self._host.give_up()

    # -- invariants -------------------------------------------------------------------------------------------------

    def locked(self) -> Iterator[Node]:
        """Return nodes of the radix tree that copies have locked."""
        yield from (save.node for save in self._saves)
        yield from (fetch.parent for fetch in self._fetches)

    def orphans(self) -> Iterator[np.ndarray]:
        """Return slots of the device that belong to fetches whose requests are gone."""
        yield from (fetch.slots for fetch in self._fetches if fetch.request is None)

    def check(self) -> None:
        """Raise AssertionError if a host slot leaks or is owned twice."""
        self._host.check()
        owned = [n.slots for n in self._host.nodes()] + [save.slots for save in self._saves]
        self._slots.check(owned)
        holders = Counter(self._kept)
        holders.update(save.found for save in self._saves)
        holders.update(fetch.found for fetch in self._fetches)
        locks: Counter[Node] = Counter()
        for node, count in holders.items():
            at = node
            while at.parent is not None:
                locks[at] += count
                at = at.parent
        assert all(node.locks == locks[node] for node in self._host.nodes()), "a lock of the host's tree without a copy"
