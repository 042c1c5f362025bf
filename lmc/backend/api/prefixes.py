"""Prefixes: the prefixes of prompts that each server of a model has been sent, and has read. A tree of blocks, like
their caches.

    ids    ├──── 64 ────┼──── 64 ────┼─ … ┤       a block's key is that of all ids up to its end
    sent   servers that a request with this prefix went to: where the next one like it belongs
    read   servers that have answered one: no recomputation there, unless evicted
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from lmc.backend.api.place import PromptNode
from lmc.images import digest
from lmc.segments import Image, plain

BLOCK = 64
"""Tokens that are compared together."""

_CHARACTERS = 4 * BLOCK  # of text prompts, for about as many tokens

Keys = tuple[int, ...]


def keys_of(prompt: Sequence[int] | str) -> Keys:
    """Return a key for each whole number of blocks that a prompt begins with; equal keys, equal prefixes (up to 64-bit
    collisions, which cost a wrong guess)."""
    if isinstance(prompt, str):
        return extended((), "", prompt)[0]
    return _keys((), array("i", prompt).tobytes(), 4 * BLOCK)


def extended(keys: Keys, rest: str, text: str) -> tuple[Keys, str]:
    """Return the keys of a text extended by `text`, and the rest after its last whole block; `keys` and `rest` are
    those before."""
    rest += text
    if len(rest) < _CHARACTERS:
        return keys, rest
    whole = len(rest) // _CHARACTERS * _CHARACTERS
    return _keys(keys, rest[:whole].encode("utf-32-le", "surrogatepass"), 4 * _CHARACTERS), rest[whole:]


def _keys(keys: Keys, data: bytes, size: int) -> Keys:
    """Return the keys of a prompt extended by whole blocks of so many bytes."""
    found, key = list(keys), keys[-1] if keys else 0
    for end in range(size, len(data) + 1, size):
        key = hash((key, data[end - size : end]))
        found.append(key)
    return tuple(found)


class Prefixes:
    """The prefixes, by server: a bit each. Least recently used ones are forgotten first, as by servers.

    capacity   remembered blocks
    """

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._capacity = capacity
        self._sent: OrderedDict[int, int] = OrderedDict()
        self._read: dict[int, int] = {}
        self.losses = 0  # how often a server's cache was lost

    def __len__(self) -> int:
        return len(self._sent)

    def send(self, keys: Keys, server: int) -> None:
        """Record that a request with these prefixes is in flight to a server."""
        sent, bit = self._sent, 1 << server
        for key in keys:
            sent[key] = sent.get(key, 0) | bit
            sent.move_to_end(key)
        while len(sent) > self._capacity:
            key, _ = sent.popitem(last=False)
            self._read.pop(key, None)

    def answered(self, keys: Keys, server: int) -> None:
        """Record that a server has read them all."""
        sent, read, bit = self._sent, self._read, 1 << server
        if not all(sent.get(key, 0) & bit for key in keys):  # forgotten meanwhile
            self.send(keys, server)
        for key in keys:
            if key in sent:
                read[key] = read.get(key, 0) | bit

    def forget(self, server: int) -> None:
        """Forget a server that is gone, with its cache."""
        self.losses += 1
        for table in (self._sent, self._read):
            for key in [key for key, servers in table.items() if servers >> server & 1]:
                table[key] &= ~(1 << server)

    def sent(self, keys: Keys, server: int) -> int:
        """Return how many of the blocks, from the first on, have been sent to a server."""
        return _leading(self._sent, keys, server)

    def read(self, keys: Keys, server: int) -> int:
        """Return how many of the blocks, from the first on, a server has read."""
        return _leading(self._read, keys, server)


def _leading(table: dict[int, int], keys: Keys, server: int) -> int:
    n = 0
    for key in keys:
        if not table.get(key, 0) >> server & 1:
            break
        n += 1
    return n


# -- routing hints for routers in front of servers
# --------------------------------------------------------------------------------

ROUTING = ("x-smg-routing-key", "x-session-id")
"""Headers by which cache-aware routers keep requests together."""

_SAME = 256  # common leading characters of requests of one kind


def beginning(place: PromptNode) -> str:
    """Return the first text of a prompt."""
    text = ""
    for piece in place.pieces():
        text += piece if isinstance(piece, str) else digest(piece).hex() if isinstance(piece, Image) else ""
        if len(text) >= _SAME:
            break
    return text[:_SAME]


def picture_keys(place: PromptNode) -> list[str]:
    """Return a key of a prompt's beginning up to each of its pictures, that included; equal keys, equal beginnings."""
    sofar, found = blake2b(digest_size=16), list[str]()
    for piece in place.pieces():
        if isinstance(piece, Image):
            sofar.update(b"\0" + digest(piece))
            found.append(sofar.hexdigest())
        else:
            sofar.update(plain((piece,)).encode("utf-8", "surrogatepass"))
    return found


@lru_cache(maxsize=1024)
def key_of(text: str) -> str:
    """Return a key shared by requests with the same beginning, in all processes."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
