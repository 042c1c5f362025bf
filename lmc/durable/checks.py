"""Checksums of requests: 32 bits of the text of a prompt, however it was cut, and of the request. A journal finds its
answers by them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

from lmc.backend.results import Result
from lmc.images import digest
from lmc.prompt import Excerpt, Piece, Prompt
from lmc.segments import Gen, Image, Mark, Select, Special


def of_ask(last: int, text: int, ask: Gen | Select) -> int:
    """Return the checksum of a request, from those of the last answer in its prompt (0 if there is none) and of the
    text since then."""
    return (last * _ODD ^ text ^ ask.seed ^ _of_request(ask)) & _BITS


_ODD = 0x9E3779B1  # odd, so that multiplication loses no bit
_BITS = 0xFFFFFFFF


def since_last(before: Prompt) -> tuple[list[Piece], Result | None]:
    """Return the pieces of a prompt since its last answer; and that answer."""
    parts: list[tuple[Piece, ...]] = []
    node: Prompt | None = before
    while node is not None and node.result is None:
        parts.append(node.parts)
        node = node.parent
    return [part for some in reversed(parts) for part in some], None if node is None else node.result


def of_text(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"))


def _of_request(ask: Gen | Select) -> int:
    found = _of_choices(ask.choices, ask.method) if ask.__class__ is Select else _of_gen(ask)  # type: ignore[arg-type]
    adapter = ask.adapter if isinstance(ask, Select) else ask.params.adapter
    return found if not adapter else found ^ of_text(f"adapter {adapter}")


def _of_gen(ask: Gen) -> int:
    """Return the checksum of parameters, constraint and tools. Equal ones are mostly the same object, so they are
    looked up by identity, without comparing twenty fields."""
    params, constraint, tools = ask.params, ask.constraint, ask.tools
    key = id(params), id(constraint), tools
    found = _requests.get(key)
    if found is None:
        if len(_requests) >= 4096:
            _requests.clear()
        of = params, constraint, tools
        found = _requests[key] = crc32(repr(of).encode("utf-8", "surrogatepass")), of  # kept alive, so that no other object gets their ids
    return found[0]


_requests: dict[tuple[int, int, str], tuple[int, Any]] = {}


@lru_cache(maxsize=4096)
def _of_choices(choices: tuple[str, ...], method: str) -> int:
    return of_text("\0".join((*choices, method)))


def shown(parts: Sequence[Any]) -> str:
    """Return the parts of a prompt as text to checksum."""
    return "".join([p if p.__class__ is str else p.spelling if p.__class__ is Special else "" if p.__class__ is Mark else _shown_part(p) for p in parts])


def _shown_part(part: Any) -> str:
    if isinstance(part, Excerpt):
        return part.text()
    if not isinstance(part, Image):
        return str(part)
    return f"\0image {digest(part).hex()}\0"
