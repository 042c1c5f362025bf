"""Checks of what was asked: 32 bits of the text of a prompt, however it was cut, and of the request. By them a journal knows its answers again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (parts of prompts come from the host)

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any
from zlib import crc32

from lmc.backend.base import Result
from lmc.prompt import Excerpt, Fixed, Gen, Image, Mark, Prompt, Select, Special


def of_ask(last: int, text: int, ask: Gen | Select) -> int:
    """Of a request: from the checks of the last answer in its prompt (0 if there is none) and of the text since then."""
    request = _of_choices(ask.choices, ask.method) if isinstance(ask, Select) else _of_gen(ask)
    return (last * 0x9E3779B1 ^ text ^ ask.seed ^ request) & 0xFFFFFFFF  # an odd factor, so that none of last is lost


def since_last(before: Prompt) -> tuple[int, Result | None]:
    """Of the text since the last answer in a prompt; and that answer."""
    texts: list[bytes] = []
    node: Prompt | None = before
    while node is not None and node.result is None:
        parts: Any = node.parts
        if parts:
            texts.append(parts.spelled if parts.__class__ is Fixed else shown(parts).encode("utf-8", "surrogatepass"))
        node = node.parent
    texts.reverse()
    return crc32(b"".join(texts)), None if node is None else node.result


def of_text(text: str) -> int:
    return crc32(text.encode("utf-8", "surrogatepass"))


class Since:
    """What a compiled prompt has since its last answer, so that it is not looked for in each run.

    last   slot of that answer, None if there is none
    parts  texts, and slots of what is computed
    """

    __slots__ = ("_fixed", "_holes", "_template", "last", "parts")

    def __init__(self, last: int | None, parts: tuple[str | int, ...] = ()) -> None:
        self.last, self.parts = last, parts
        self._template: list[Any] | None = None  # made when it is first checked: most prompts are never asked of
        self._holes: list[tuple[int, int]] = []
        self._fixed: int | None = None

    def with_parts(self, parts: Sequence[str | int]) -> Since:
        return Since(self.last, (*self.parts, *parts))

    def check(self, env: list[Any]) -> int:
        """Of the text in a run with these values."""
        if self._fixed is not None:
            return self._fixed
        if self._template is None:
            return self._first(env)
        values = self._template.copy()
        for i, slot in self._holes:
            values[i] = env[slot]
        try:
            text = "".join(values)
        except TypeError:  # a value that is no text but is shown as one
            text = shown(values)
        return of_text(text)

    def _first(self, env: list[Any]) -> int:
        template: list[str | int] = []
        for constant, parts in groupby(self.parts, key=lambda part: isinstance(part, str)):
            found = list(parts)
            template += ["".join(map(str, found))] if constant else found
        self._holes = [(i, slot) for i, slot in enumerate(template) if isinstance(slot, int)]
        if not self._holes:
            self._fixed = of_text("".join(map(str, template)))
        self._template = template
        return self.check(env)


def _of_gen(ask: Gen) -> int:
    """Of parameters, constraint and tools. Equal ones are mostly one object's: these are looked up by identity, which compares no twenty fields."""
    params, constraint, tools = ask.params, ask.constraint, ask.tools
    key = id(params), id(constraint), tools
    found = _requests.get(key)
    if found is None:
        if len(_requests) >= 4096:
            _requests.clear()
        of = params, constraint, tools
        found = _requests[key] = crc32(repr(of).encode("utf-8", "surrogatepass")), of  # which are kept, so that no other object gets their ids
    return found[0]


_requests: dict[tuple[int, int, str], tuple[int, Any]] = {}


@lru_cache(maxsize=4096)
def _of_choices(choices: tuple[str, ...], method: str) -> int:
    return of_text("\0".join((*choices, method)))


def shown(parts: Sequence[Any]) -> str:
    """Parts of a prompt as text to check."""
    return "".join([p if p.__class__ is str else p.spelling if p.__class__ is Special else "" if p.__class__ is Mark else _shown_part(p) for p in parts])


def _shown_part(part: Any) -> str:
    if isinstance(part, Excerpt):
        return part.text()
    if not isinstance(part, Image):
        return str(part)
    source = part.source
    return f"\0image {source if isinstance(source, str | os.PathLike) else crc32(source) if isinstance(source, bytes) else ''}\0"
