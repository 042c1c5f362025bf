"""Checks of what was asked: 32 bits of the text of a prompt, however it was cut, and of the request. By them a journal knows its answers again."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (parts of prompts come from the host)

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any
from zlib import crc32

from lmc.backend.base import Result
from lmc.prompt import Excerpt, Fixed, Gen, Image, Mark, Prompt, Select, Special


def of_ask(last: int, text: int, ask: Gen | Select) -> int:
    """Of a request: from the checks of the last answer in its prompt (0 if there is none) and of the text since then."""
    return (last * _ODD ^ text ^ ask.seed ^ _of_request(ask)) & _BITS


_ODD = 0x9E3779B1  # so that no bit of what it multiplies is lost
_BITS = 0xFFFFFFFF


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
    parts  texts, and slots of what is computed; `certain`: that is text, and nothing else that is shown as one
    """

    __slots__ = ("certain", "last", "parts")

    def __init__(self, last: int | None, parts: tuple[str | int, ...] = (), *, certain: bool = True) -> None:
        self.last, self.parts, self.certain = last, parts, certain

    def with_parts(self, parts: Sequence[str | int], *, certain: bool) -> Since:
        return Since(self.last, (*self.parts, *parts), certain=self.certain and certain)


class Site:
    """Where a compiled run asks: what is the same there in every run.

    places  of the ask, and of the equal ones that it answers as well
    take    what is checked of a run's values: the last answer before, and the texts since then that are computed
    """

    __slots__ = ("_since", "_template", "places", "take")

    def __init__(self, places: Sequence[tuple[str, int]], since: Since) -> None:
        self.places, self._since = places, since
        self._template: list[str | None] = []  # texts that are the same in every run; None: the next one that is taken
        self.take: Callable[[list[Any]], tuple[Any, ...]] = self._first_taken

    def _first_taken(self, env: list[Any]) -> tuple[Any, ...]:
        """Makes what the first journaled run needs: most never see one. Several threads may, and make the same."""
        slots, template = [self._since.last or 0], list[str | None]()
        for constant, parts in groupby(self._since.parts, key=lambda part: isinstance(part, str)):
            found: list[Any] = list(parts)
            slots += [] if constant else found
            template += ["".join(found)] if constant else [None] * len(found)
        self._template = template
        self.take = itemgetter(*slots) if len(slots) > 1 else lambda env: (env[slots[0]],)
        return self.take(env)

    def check(self, runs: Sequence[object], taken: Sequence[tuple[Any, ...]], asks: Sequence[Gen | Select], results: Sequence[Result]) -> list[int]:
        """Checks of what runs asked here, which it notes in the results; those of the answers before are noted."""
        lasts, *texts = zip(*taken, strict=True)
        before = repeat(0) if self._since.last is None else [last.checked[1] for last in lasts]
        asked = zip(before, self._of_texts(texts, len(asks)), asks, _of_requests(asks), strict=False)
        checks = [(last * _ODD ^ text ^ ask.seed ^ request) & _BITS for last, text, ask, request in asked]
        for result, checked in zip(results, zip(runs, checks, strict=True), strict=True):
            result.checked = checked
        return checks

    def _of_texts(self, texts: Sequence[Sequence[str]], count: int) -> Iterable[int]:
        """Of what stands in the template, by columns."""
        if not texts:
            return repeat(of_text("".join(map(str, self._template))))
        columns = iter(texts)
        filled = zip(*[next(columns) if part is None else repeat(part, count) for part in self._template], strict=True)
        try:
            return [crc32(text.encode()) for text in map("".join, filled)]
        except UnicodeEncodeError:  # half a surrogate
            return self._one_by_one(texts)

    def _one_by_one(self, texts: Sequence[Sequence[str]]) -> list[int]:
        rows = [iter(row) for row in zip(*texts, strict=True)]
        return [of_text("".join([next(row) if part is None else part for part in self._template])) for row in rows]


def _of_requests(asks: Sequence[Any]) -> Iterable[int]:
    """Of many, which mostly are alike."""
    if len(set(map(id, asks))) == 1:
        return repeat(_of_request(asks[0]))
    alike: list[Any]
    if asks[0].__class__ is Select:
        alike = [(ask.choices, ask.method) for ask in asks]
    else:
        alike = [(id(ask.params), id(ask.constraint), ask.tools) for ask in asks]
    return repeat(_of_request(asks[0])) if alike.count(alike[0]) == len(asks) else map(_of_request, asks)


def _of_request(ask: Gen | Select) -> int:
    return _of_choices(ask.choices, ask.method) if ask.__class__ is Select else _of_gen(ask)  # type: ignore[arg-type]


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
