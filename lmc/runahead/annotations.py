"""Annotations: a planned graph's advice for each address at which the program makes a request. The ledger looks it up at submit.

planned graph ──annotate──► (stream, ordinal) → Annotation ──hints(…)──► lmc.backend.base.Hints
                                                  └──pins: where to cut the prompt's text, prefill and pin it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from lmc.backend.base import Beyond, Hints
from lmc.errors import Loc
from lmc.ir.core import Graph, Op, Operand, Symbol, Value
from lmc.ir.ops import IMAGES, trait
from lmc.ir.ops import address as address_of
from lmc.passes.aggressive import Place
from lmc.passes.base import CHARACTERS, Measure
from lmc.passes.predict import growth
from lmc.runahead.moving import Move
from lmc.runahead.records import GraphAddress
from lmc.runahead.text import Piece, between, flat, match, without
from lmc.segments import Image, Mark, Special

_CONSTANTS = 4096  # characters of the texts for one request
_SHORT = 8  # characters of a text that is worth a draft
_PLACE = {name: place for place, name in enumerate(Hints._fields)}


@dataclass(frozen=True, slots=True)
class Pin:
    """Text to prefill and pin before a request is submitted. All requests that extend it name it: the first makes it, the others use it.

    number  within the graph
    text    from the enclosing pin, the last answer or the beginning to the end of the pinned text
    rest    from there to the request
    shared  kept for all runs of the program
    """

    number: int
    text: tuple[Piece, ...]
    rest: tuple[Piece, ...]
    shared: bool = False

    def cut(self, tail: Sequence[object]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        """Split the unsubmitted tail of a prompt into the pinned part and the rest; None if the text differs."""
        if None not in self.text and Image not in self.text:
            return without(tail, self.text)
        if (found := match(tail, self.text, self.rest)) is None:
            return None
        head = between(tail, 0, found.end(1))
        return (head, between(tail, found.end(1))) if all(isinstance(part, str | Special | Mark | Image) for part in head) else None


@dataclass(frozen=True, slots=True)
class Covered:
    """An answer that one request may cover besides its own: the text before it, its limit and its stops (None: the run's)."""

    text: str
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Annotation:
    """The plan's advice for one request.

    order     place in the depth-first visit of the prompts
    group     number of its group of siblings that are submitted together, and their count; None: alone
    together  Python itself makes the group's requests without waiting in between; else they are a group only if made
              ahead
    ways      its index among the group's equal samples, and their number
    reserve   most tokens that its answer can have by its constraint, its end included; None: not known
    growth    most tokens by which the run's prompts grow after its answer; None: not known
    constants texts of the program that may come after it (Hints.constants)
    covers    further answers that one request to an API may cover
    shared    prefixes of the prompt shared with future requests (Hints.shared)
    lazy      nothing is known to read the answer: submit it when it is read
    same_as   the address of an equal earlier request at temperature 0, whose answer it may take
    pins      text to prefill and pin before, outside in
    move      text to send in another order than written; None: nothing
    loc, name source location of the request, and the variable
    """

    order: int | None = None
    group: tuple[int, int] | None = None
    together: bool = True
    ways: tuple[int, int] = (0, 1)
    reserve: int | None = None
    growth: int | None = None
    constants: tuple[str, ...] = ()
    covers: tuple[Covered, ...] = ()
    shared: tuple[tuple[int, float], ...] = ()
    lazy: bool = False
    same_as: GraphAddress | None = None
    pins: tuple[Pin, ...] = ()
    move: Move | None = None
    loc: Loc | None = None
    name: str | None = None

    def hints(self, base: Hints, *, item: int, run: int, ahead: bool = False, max_tokens: int = 128, stop: tuple[str, ...] = ()) -> Hints:
        """Return the hints for a request at this address, over those of the run.

        item, run        numbers of the item in its batch and of the run: groups of different runs differ
        ahead            it is submitted ahead of Python, with its siblings
        max_tokens, stop the run's defaults
        """
        found = [*base]
        for place, value in self._fixed:
            found[place] = value
        if ahead:
            found[_PLACE["guess"]] = True
        if self.order is not None:
            found[_PLACE["order"]] = item, self.order
        if self.group is not None and (ahead or self.together):
            found[_PLACE["group"]] = run, self.group[0]
            found[_PLACE["members"]], found[_PLACE["sample_index"]] = self.group[1], self.ways
        if self.covers:
            found[_PLACE["beyond"]] = self._beyond(max_tokens, stop)
        return Hints._make(found)

    @cached_property
    def _fixed(self) -> list[tuple[int, Any]]:
        """The hints that are the same in all runs, by their places."""
        found = {"reserve": self.reserve, "growth": self.growth, "shared": self.shared or None, "constants": self.constants or None}
        return [(_PLACE[name], value) for name, value in found.items() if value is not None]

    def _beyond(self, max_tokens: int, stop: tuple[str, ...]) -> Beyond:
        """Return the text beyond the answer that the request covers. The last stops end it unless an earlier part could contain them."""
        tokens = sum(len(c.text.encode("utf-8", "surrogatepass")) + (max_tokens if c.max_tokens is None else c.max_tokens) for c in self.covers)
        last = self.covers[-1].stop
        stops = stop if last is None else last
        if any(s in c.text for s in stops for c in self.covers):
            stops = ()
        return Beyond(tokens, len(self.covers), stops)

    @property
    def of_site(self) -> Annotation:
        """Return the part of the annotation that holds wherever this line makes requests, at any address."""
        ends = tuple(pair for pair in self.shared if pair[0] < 0)
        return Annotation(reserve=self.reserve, constants=self.constants, covers=self.covers, shared=ends, move=self.move, loc=self.loc, name=self.name)


NOTHING = Annotation()


@dataclass(frozen=True)
class Annotations:
    """A plan's annotations by address. Arms that exclude each other may share an address: the line decides."""

    by_address: Mapping[GraphAddress, tuple[Annotation, ...]] = field(default_factory=dict[GraphAddress, tuple[Annotation, ...]])
    by_line: Mapping[tuple[str, int], Annotation] = field(default_factory=dict[tuple[str, int], Annotation])

    @cached_property
    def merges(self) -> bool:
        """Return whether an answer may be that of an earlier request, too."""
        return any(annotation.same_as is not None for found in self.by_address.values() for annotation in found)

    def at(self, stream: str, ordinal: int, loc: Loc | None = None) -> Annotation:
        """Return the annotation of a request at an address that the program makes at `loc`."""
        for annotation in self.by_address.get((stream, ordinal), ()):
            own = annotation.loc
            if loc is None or own is None or (own.line == loc.line and own.file == loc.file):
                return annotation
        return NOTHING if loc is None or not self.by_line else self.by_line.get(_line(loc), NOTHING)


NO_ANNOTATIONS = Annotations()


def annotate(graph: Graph, moves: Mapping[Place, Move] = {}, measure: Measure = CHARACTERS) -> Annotations:
    """Compute the annotations of a planned graph. One that only the traced stage allows has no pins. `moves`: by place
    of a request; `measure`: token count of a text."""
    return _Annotator(graph, moves, measure).run()


class _Annotator:
    """One walk over the graph; `pinned` is filled before it."""

    def __init__(self, graph: Graph, moves: Mapping[Place, Move], measure: Measure) -> None:
        self.graph, self.moves = graph, moves
        by_index = growth(graph, measure)
        self.growth = {id(op): by_index[i] for i, op in enumerate(graph.ops()) if i in by_index}
        self.pinned: dict[Value, tuple[int, bool]] = {}  # prompts that are prefilled, with the number of their pin
        for op in graph.ops():
            if op.kind == "prefill" and (prompt := op.uses[0]) not in self.pinned:
                self.pinned[prompt] = len(self.pinned), op.attr("scope") == "program"
        loops = [block.terminator for block in graph.blocks if block.terminator.kind == "loop"]
        self.entered = {param: value for loop in loops for param, value in zip(graph.block[loop.cases[0][1]].params, loop.operands[1:])}
        self.waits = _groups_that_wait(graph)
        self.texts = [(place, text) for place, op in enumerate(graph.ops()) for text in _texts(op)]
        self.places = {id(op): place for place, op in enumerate(graph.ops())}

    def run(self) -> Annotations:
        by_address: dict[GraphAddress, list[Annotation]] = {}
        by_line: dict[tuple[str, int], Annotation] = {}
        asks = [op for op in self.graph.ops() if trait(op) == "samples"]
        where = {id(op): b.label for b in self.graph.blocks for op in b.ops}
        in_order = any("order" in op.attrs for op in asks)
        covered = {address: op for op in asks if (address := address_of(op)) is not None}
        for place, op in enumerate(asks):
            found = self._annotation(op, place if in_order or self.pinned else None, covered)
            in_loop = self.graph.loop_around(where[id(op)]) is not None
            address = address_of(op)
            if op.loc is not None:
                by_line.setdefault(_line(op.loc), found.of_site)
            if address is None or (in_loop and not op.loc):
                continue
            by_address.setdefault(address, []).append(found)
            for stream, ordinal in op.attr("also", ()):
                move = next((move for (at, _), move in self.moves.items() if at == (stream, ordinal)), None)
                by_address.setdefault((stream, ordinal), []).append(replace(found, same_as=address, group=None, ways=(0, 1), move=move, loc=None))
        return Annotations({address: tuple(found) for address, found in by_address.items()}, by_line)

    def _annotation(self, op: Op, place: int | None, asks: Mapping[GraphAddress, Op]) -> Annotation:
        group = op.attr("group")
        return Annotation(
            order=op.attr("order", place),
            group=group,
            together=group is None or group[0] not in self.waits,
            ways=op.attr("ways", (0, 1)),
            reserve=self._reserve(op),
            growth=self.growth.get(id(op)),
            constants=() if op.kind != "gen" or self._reserve(op) is not None else self._constants(op),
            covers=tuple(_covered(op, asks)),
            shared=op.attr("shared", ()),
            lazy=bool(op.attr("lazy")),
            pins=tuple(self._pins(op)),
            move=self.moves.get((address_of(op), None if op.loc is None else _line(op.loc))),
            loc=op.loc,
            name=op.attr("name"),
        )

    def _reserve(self, op: Op) -> int | None:
        name = op.attr("constraint")
        longest = self.graph.constants[name.name].attr("longest") if isinstance(name, Symbol) else None
        return None if longest is None else longest + 1

    def _constants(self, op: Op) -> tuple[str, ...]:
        """Return texts of later ops, the next ones, in so many characters."""
        found: dict[str, None] = {}
        room = _CONSTANTS
        for place, text in self.texts:
            if room <= 0:
                break
            if place > self.places[id(op)] and text not in found:
                found[text[:room]] = None
                room -= len(text)
        return tuple(found)

    def _pins(self, op: Op) -> Iterator[Pin]:
        """Return the pins in the text between a request and its last answer."""
        pieces: list[tuple[Piece, ...]] = []
        found: list[tuple[Value, int]] = []  # pinned prompts, and the number of pieces after each
        node: Operand = op.operands[0]
        while isinstance(node, Value):
            if node in self.pinned:
                found.append((node, len(pieces)))
            made = self.graph.producer.get(node)
            if made is None and node in self.entered:
                node = self.entered[node]  # an address in a loop is that of its first turn
                continue
            if made is None:
                pieces.append((None,))  # text added by arms or turns is not known here
                break
            if made.kind == "append":
                pieces.append(tuple(None if isinstance(x, Value) else x for x in made.operands[1:]))  # type: ignore[misc]
            elif made.kind in IMAGES:
                pieces.append((Image,))
            elif made.kind == "ctx.new" or trait(made) == "samples":
                break
            else:
                return  # a role that is not lowered
            node = made.operands[0]
        begin = len(pieces)
        for prompt, behind in reversed(found):
            number, shared = self.pinned[prompt]
            head, rest = pieces[behind:begin], pieces[:behind]
            begin = behind
            yield Pin(number, flat(reversed(head)), flat(reversed(rest)), shared)


def _texts(op: Op) -> Iterator[str]:
    """Return an op's literal texts, and those that a switch compares with, without the shortest."""
    for x in (*op.operands, *(case for case, _ in op.cases)):
        if isinstance(x, str) and len(x) >= _SHORT:
            yield x


def _covered(op: Op, asks: Mapping[GraphAddress, Op]) -> Iterator[Covered]:
    template = op.attr("lookahead", ())
    for text, address in zip(template[::2], template[1::2], strict=True):
        following = asks.get(address)
        if following is None:
            return
        stop = following.attr("stop")
        yield Covered(text, following.attr("max_tokens"), (stop,) if isinstance(stop, str) else stop)


def _groups_that_wait(graph: Graph) -> frozenset[int]:
    """Return the groups within which Python reads an answer between the first and the last request: it makes the rest after that."""
    answers = {v for op in graph.ops() if trait(op) == "samples" for v in op.results[1:]}
    found: set[int] = set()
    for block in graph.blocks:
        opened: dict[int, int] = {}  # members seen so far
        for op in block.ops:
            group = op.attr("group") if trait(op) == "samples" else None
            if not answers.isdisjoint(op.uses) or op.kind in ("ctx.text", "ctx.slice", "ctx.messages"):
                found.update(opened)
            if group is not None:
                number, members = group
                opened[number] = opened.get(number, 0) + 1
                if opened[number] == members:
                    del opened[number]
    return frozenset(found)


def _line(loc: Loc) -> tuple[str, int]:
    return loc.file, loc.line
