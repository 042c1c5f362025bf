"""Regular expressions and grammars as sets of terms: the possible continuations, as a stack of frames that is read a
character at a time.

    (a|b){2,5}c      term   [(a|b){2,5}] [c]                  a frame is a tree, or the rest of one
    after "a"        term   [(a|b){1,4}] [c]                  counters count down: no copy of a repeat for each turn
    value of JSON    term   ["value"] [, ] …                  a rule pushes its body, so grammars are followed too

After Antimirov (partial derivatives) and Brzozowski; unlike there, a repeat is one frame with two counters, and terms
that differ in one counter only are joined where their ranges touch. So `.*[0-9].{60}.*` needs at most two terms, and
`(a{1,100}){1,100}` two. Frames and terms are hash-consed: equal ones are the same object.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from lmc.errors import ConstraintError
from lmc.fsm.bytedfa import LONG
from lmc.fsm.charset import Ranges
from lmc.fsm.counted import NEVER, Counts
from lmc.fsm.json_styles import At, Styles, is_mark
from lmc.fsm.json_text import RAW_CHARS, WITHIN_STRINGS
from lmc.fsm.lengths import ShortestLengths, bytes_of
from lmc.fsm.nodes import EMPTY, Chars, Concat, Counted, Node, NodeGraph, Ref, Repeat, Union, parts_of
from lmc.fsm.words import WordLists, WordRange, are_letters, listed

Classes = tuple[int, ...]
_ENOUGH = 64  # bytes of a text: more than any that is asked about
_FREE = 4  # frames that looking at a form pays for, too
_QUOTE, _BACKSLASH = Chars(((34, 34),)), Chars(((92, 92),))
_MANY = 32  # terms of one kind from which on they are no longer compared with each other
_WIDE = 16  # characters of a class of many
_SPELLED = 1  # of WITHIN_STRINGS: keys that may be any but some
_SEVERAL = 3  # members of an object: if as many may come next, they are one term up to where their names differ


class TermFrame:
    """The rest of a tree: the characters that may come first, each with the frames after it.

    forms      (classes, remaining frames of this one), for each possible beginning
    nullable   it may be empty; None before that was asked
    low, high  of a repeat: turns that are left
    at         its position, None if it is the same anywhere
    family     equal for repeats of one body, which differ only in their counters
    surely     lower bound on the bytes of its texts, once computed
    is_in_string  all of these are characters of a JSON string, once computed
    """

    __slots__ = ("at", "family", "forms", "high", "is_in_string", "low", "node", "nullable", "surely")

    def __init__(self, node: Any, family: object, low: int, high: int | None, at: At | None = None) -> None:
        self.node, self.low, self.high, self.at = node, low, high, at
        self.family: object = self if family is None else family
        self.forms: tuple[_Form, ...] | None = None
        self.nullable: bool | None = None
        self.surely: int | None = None
        self.is_in_string: bool | None = None


_Form = tuple[Classes, tuple[TermFrame, ...]]


class Term:
    """A stack of frames: `frame` comes first, then `rest`. That of the end, which has no texts but the empty one, is itself.

    mark    the uppermost term of the stack that begins with a return from a rule, None if there is none
    kind    equal for terms whose frames have the same families
    number  of its making: sets in this order take the same work in each process, wherever in memory their terms are
    is_free it begins with any number of any characters of a string
    """

    __slots__ = ("above", "final", "forms", "frame", "inside", "is_free", "kind", "least", "mark", "near", "number", "rest", "spans")

    def __init__(self, frame: TermFrame, rest: Term | None, number: int) -> None:
        self.frame, self.rest, self.number = frame, rest or self, number
        self.forms: tuple[tuple[Classes, Term], ...] | None = None
        self.final: bool | None = None
        self.near: dict[int, tuple[TermFrame, ...]] | None = None
        self.above: Term | None = None
        self.mark: Term | None = None
        self.kind: object = None
        self.least: int | None = None
        self.spans: _Spans | None = None
        self.inside: Sequence[Term] | None = None
        self.is_free = False


class WithinString(NamedTuple):
    """A string of any characters, or of a class, between two of them: its kind or the class, the fewest and the most characters left, rests of
    texts, with the quote behind each, that it may not go on with, and the term behind the quote of others."""

    kind: int | Ranges
    low: int
    high: int | None
    but: Sequence[str]
    behind: Term


class Terms:
    """Builds the frames and terms of one grammar. Its rules must not be left-recursive, and must each derive some
    text."""

    def __init__(self, members: Mapping[Chars, Classes], styles: Styles) -> None:
        self._members, self._styles = members, styles
        self._lengths = ShortestLengths(styles)
        self._frames: dict[object, TermFrame] = {}
        self._of_nodes: dict[tuple[int, At | None], TermFrame] = {}  # by id
        self._canon: dict[int, Node] = {}  # by id of a node, the representative of equal ones
        self._unique: dict[object, Node] = {}
        self._alive: list[Node] = []  # nodes identified by their ids
        self._literals: dict[int, str] = {}
        self._written: dict[int, Sequence[str | None]] = {}  # by id of a graph
        self._graphs: dict[int, _GraphPosition] = {}  # by id: at their starts
        self._turns: dict[tuple[int, int], TermFrame | None] = {}  # by id of a graph, and state
        self._unit: dict[int, bool] = {}  # by id
        self._unit_tails: dict[tuple[int, At | None], Sequence[bool]] = {}  # by id of a sequence, and position
        self._members_at: dict[tuple[int, int], tuple[_Members, list[_Member]]] = {}  # by id of a graph, and state
        self._lists = WordLists()
        self._letters: dict[str, Classes] = {}
        self._terms: dict[tuple[TermFrame, Term], Term] = {}
        self._kinds: dict[tuple[object, object], object] = {}
        self.end = Term(TermFrame(None, None, 0, 0), None, 0)
        self.end.forms, self.end.final, self.end.least = (), True, 0
        self._return = TermFrame(None, None, 0, 0)
        self._return.forms, self._return.nullable = (), True
        self._beyond = TermFrame(None, None, 0, 0)  # what no text of the length in question reaches
        self._beyond.forms, self._beyond.nullable, self._beyond.surely = (), False, _ENOUGH
        strings = WITHIN_STRINGS if RAW_CHARS in members else ()
        self._strings = {self.frame(node).family: kind for kind, node in enumerate(strings)}
        self._units = {id(self._canonical(node.body)) for node in strings}
        self.spent = 0  # forms visited
        self.limit: int | None = None  # of `spent`

    def pay(self, forms: int) -> None:
        self.spent += forms
        if self.limit is not None and self.spent > self.limit:
            raise ConstraintError(
                "following this constraint takes too long: there are too many ways to read what was written; use smaller repeats, or "
                "classes instead of nested alternatives"
            )

    def of(self, tree: Node) -> tuple[Term, ...]:
        """Return the continuations before anything is written: a term for each style."""
        found: list[Term] = []
        for at in self._styles.starts:
            node = self._canonical(tree)
            at = self._styles.inside(node, at)
            frames = self._behind(node, 0, at, self._styles.parts(node, at)) if isinstance(node, Concat) else (self.frame(node, at),)
            found.append(self.stacked(frames))
        return tuple(sorted(set(found), key=_number_of))

    # -- frames ----------------------------------------------------------------------------------------------------

    def frame(self, node: Node, at: At | None = None) -> TermFrame:
        found = self._of_nodes.get((id(node), at))
        if found is None:
            found = self._of_nodes[id(node), at] = self._find_frame(node, at)
        return found

    def _find_frame(self, node: Node, at: At | None) -> TermFrame:
        node = self._canonical(node)
        if type(node) is Union and (words := self._lists.of(node)) is not None:
            return self._words(words)
        if isinstance(node, Ref) and is_mark(node):
            return self._frame((id(node), 0, at), _Tail(node, 0), at)
        at = self._styles.inside(node, at)
        if isinstance(node, Concat):
            return self._frame((id(node), 0, at), _Tail(node, 0), at)
        if isinstance(node, NodeGraph):
            return self._position(self._started(node), 0, at)
        if isinstance(node, Counted):
            counts = Counts(node.graph, node.low, node.high)
            return self._counted(node.graph, counts, 0, node.low, node.high, at)
        return self._repeat(node.body, node.low, node.high, at) if isinstance(node, Repeat) else self._frame((id(node), at), node, at)

    def _canonical(self, node: Node) -> Node:
        """Return the representative of equal nodes, so that equality is identity."""
        found = self._canon.get(id(node))
        if found is None:
            given = node
            key: object
            match node:
                case Chars() | Ref():
                    key = node
                case Repeat(body, low, high):
                    body = self._canonical(body)
                    node, key = Repeat(body, low, high), (id(body), low, high)
                case NodeGraph():  # of a whole object, say: its parts are compared when they are met
                    key = id(node)
                case Counted(graph, low, high):
                    key = Counted, id(graph), low, high
                case Union() if (words := self._lists.of(node)) is not None:
                    key = "w", *words.texts
                case _:
                    canon = self._canon
                    parts = tuple([canon.get(id(part)) or self._canonical(part) for part in parts_of(node)])
                    node, key = type(node)(parts), (type(node), *map(id, parts))
            found = self._unique.setdefault(key, node)
            self._alive += given, found
            self._canon[id(given)] = self._canon[id(found)] = found
        return found

    def _frame(self, key: object, node: Any, at: At | None) -> TermFrame:
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = TermFrame(node, None, 0, 0, at)
        return found

    def _repeat(self, body: Node, low: int, high: int | None, at: At | None) -> TermFrame:
        key = ("r", id(body), low, high, at)
        found = self._frames.get(key)
        if found is None:
            family = self._frame(("b", id(body), at), body, at)
            found = self._frames[key] = TermFrame(body, family, low, high, at)
        return found

    def _tail(self, node: Concat | Ref, index: int, at: At | None, parts: Sequence[tuple[Node, At | None]]) -> TermFrame:
        """Return the parts of a sequence from an index on; `at`: the position of the sequence."""
        if index == len(parts) - 1:
            return self.frame(*parts[index])
        return self._frames.get((id(node), index, at)) or self._frame((id(node), index, at), _Tail(node, index), at)

    def _forms(self, frame: TermFrame) -> tuple[_Form, ...]:
        if frame.forms is None:
            found = self._begin(frame)
            frame.forms = tuple(dict.fromkeys(found))
            self.pay(len(found))
        return frame.forms

    def _is_nullable(self, frame: TermFrame) -> bool:
        if frame.nullable is None:
            frame.nullable = self._find_nullable(frame)
        return frame.nullable

    def _find_nullable(self, frame: TermFrame) -> bool:
        node, at = frame.node, frame.at
        if isinstance(node, _Tail):
            return all(itertools.starmap(self._may_be_empty, self._styles.parts(node.node, at)[node.index :]))
        if frame.family is not frame:
            return frame.low == 0 or self._may_be_empty(node, at)
        if isinstance(node, Chars | _Members):
            return False
        if isinstance(node, WordRange):
            return node.may_end
        if isinstance(node, Union):
            return any(self._may_be_empty(arm, at) for arm in node.arms)
        if isinstance(node, Ref):
            return self._may_be_empty(self._styles.rules[node.rule], self._styles.within(node.rule, at))
        assert isinstance(node, _GraphPosition)
        if node.counts is not None:
            return node.low == 0 and node.state in node.graph.final
        seen, todo = {node.state}, [node.state]
        for state in todo:
            if state in node.graph.final:
                return True
            fresh = [to for body, to in node.edges.get(state, ()) if to not in seen and self._may_be_empty(body, at)]
            seen.update(fresh)
            todo += fresh
        return False

    def _started(self, node: NodeGraph) -> _GraphPosition:
        found = self._graphs.get(id(node))
        if found is None:
            edges: dict[int, list[tuple[Node, int]]] = {}
            for source, body, to in node.edges:
                edges.setdefault(source, []).append((body, to))
            found = self._graphs[id(node)] = _GraphPosition(node, edges, 0)
            self._alive.append(node)
        return found

    def _may_be_empty(self, node: Node, at: At | None) -> bool:
        first = node.parts[0] if type(node) is Concat and node.parts else node
        return type(first) is not Chars and self._is_nullable(self.frame(node, at))

    def _begin(self, frame: TermFrame) -> list[_Form]:
        node = frame.node
        if frame.family is not frame:
            return self._begin_repeat(frame)
        if isinstance(node, Chars):
            return [(self._members[node], ())]
        if isinstance(node, _Tail):
            return self._begin_parts(node.node, node.index, frame.at)
        if isinstance(node, WordRange):
            return [(self._classes_of(letter), () if words.is_ended else (self._words(words),)) for letter, words in node.ahead()]
        if isinstance(node, _Members):
            return self._begin_members(node, frame.at)
        if isinstance(node, Union):
            return [form for arm in node.arms for form in self._forms(self.frame(arm, frame.at))]
        if isinstance(node, Ref):
            body = self.frame(self._styles.rules[node.rule], self._styles.within(node.rule, frame.at))
            marks = (self._return,) if node.rule in self._styles.recursive else ()
            return [(classes, frames + marks) for classes, frames in self._forms(body)]
        assert isinstance(node, _GraphPosition)
        return self._begin_graph(node, frame.at) if node.counts is None else self._begin_counted(node, node.counts, frame.at)

    def _begin_parts(self, node: Concat | Ref, index: int, at: At | None) -> list[_Form]:
        found: list[_Form] = []
        parts = self._styles.parts(node, at)
        for i in range(index, len(parts)):
            behind = self._behind(node, i + 1, at, parts)
            if isinstance(chars := parts[i][0], Chars):
                found.append((self._members[chars], behind))
                break
            part = self.frame(*parts[i])
            found += [(classes, frames + behind) for classes, frames in self._forms(part)]
            if not self._is_nullable(part):
                break
        return found

    def _behind(self, node: Concat | Ref, index: int, at: At | None, parts: Sequence[tuple[Node, At | None]]) -> tuple[TermFrame, ...]:
        """Return `_tail` as frames: a repeat has its own, so that its first turn is like the others, and so have counted graphs and words."""
        if index == len(parts):
            return ()
        if not self._stands_alone(parts[index][0]):
            return (self._tail(node, index, at, parts),)
        found: list[TermFrame] = []
        while index < len(parts) and self._stands_alone(parts[index][0]):
            found.append(self.frame(*parts[index]))
            index += 1
        self.pay(len(found) // _FREE)
        if index < len(parts):
            found.append(self._tail(node, index, at, parts))
        return tuple(found)

    def _stands_alone(self, part: Node) -> bool:
        return type(part) in (Repeat, Counted) or (type(part) is Union and self._lists.of(part) is not None)

    def _words(self, words: WordRange) -> TermFrame:
        return self._frame(("w", id(words.texts), *words[1:]), words, None)

    def _classes_of(self, letter: str) -> Classes:
        found = self._letters.get(letter)
        if found is None:
            found = self._letters[letter] = self._members[self._lists.chars(letter)]
        return found

    def words(self, terms: Iterable[Term]) -> WordRange | None:
        """Return the words that all of these terms, which each begin with words, may go on with, if they are the same, and ASCII."""
        first, *others = {term.frame for term in terms}
        words: WordRange = first.node
        return words if not others and not words.may_end and words.is_ascii else None

    def behind_words(self, term: Term, words: WordRange | None) -> Term:
        """Return the term in which what begins with words is so far; None: behind one."""
        return self._returned(term.rest if words is None or words.is_ended else self.push(self._words(words), term.rest))

    def _begin_repeat(self, frame: TermFrame) -> list[_Form]:
        body = self.frame(frame.node, frame.at)
        low = 0 if self._is_nullable(body) else frame.low  # an empty turn is none
        high = None if frame.high is None else frame.high - 1
        behind = () if high == 0 else (self._repeat(frame.node, max(low - 1, 0), high, frame.at),)
        return [(classes, frames + behind) for classes, frames in self._forms(body)]

    def _begin_graph(self, at: _GraphPosition, place: At | None) -> list[_Form]:
        found: list[_Form] = []
        members: list[_Member] = []
        seen, todo = {at.state}, [at.state]
        for state in todo:
            for body, to in at.edges.get(state, ()):
                if type(body) is Concat and (name := self._literal_of(body)) and are_letters(name):
                    members.append((name, body, to))
                    continue
                if body != EMPTY:
                    frame, behind = self.frame(body, place), (self._position(at, to, place),)
                    found += [(classes, frames + behind) for classes, frames in self._forms(frame)]
                    if not self._is_nullable(frame):
                        continue
                if to not in seen:
                    seen.add(to)
                    todo.append(to)
        if len(members) >= _SEVERAL:
            several, members = self._several(at, members)
            found += self._begin_members(several, place)
        for _, body, to in members:
            behind = (self._position(at, to, place),)
            found += [(classes, frames + behind) for classes, frames in self._forms(self.frame(body, place))]
        return found

    def _position(self, at: _GraphPosition, state: int, place: At | None) -> TermFrame:
        key = "g", id(at.graph), state, place
        if (found := self._frames.get(key)) is None:
            turn = self._turn(at, state)
            found = self._frame(key, _GraphPosition(at.graph, at.edges, state), place) if turn is None else self._repeat(turn.node, 0, None, turn.at)
            self._frames[key] = found
        return found

    def _turn(self, at: _GraphPosition, state: int) -> TermFrame | None:
        """Return the repeat, without counts, that a graph is in a state which it never leaves: where a pattern was found, say, any string."""
        key = id(at.graph), state
        if key not in self._turns:
            edges = at.edges.get(state, ())
            body = edges[0][0] if len(edges) == 1 and edges[0][1] == state and state in at.graph.final and at.graph.but is None else None
            is_turn = body is not None and (type(body) is Chars or id(self._canonical(body)) in self._units)
            self._turns[key] = self.frame(Repeat(body, 0, None)) if body is not None and is_turn else None
            self._alive.append(at.graph)
        return self._turns[key]

    def _several(self, at: _GraphPosition, members: list[_Member]) -> tuple[_Members, list[_Member]]:
        """Return those that may come next in a graph; the others are apart whose texts another one goes on with: a key that may be any."""
        key = id(at.graph), at.state
        if key not in self._members_at:
            members = sorted(members, key=lambda member: member[0])
            is_apart = [behind[0].startswith(member[0]) for member, behind in itertools.pairwise(members)] + [False]
            told = [member for member, apart in zip(members, is_apart) if not apart]
            names = listed([name for name, _, _ in told])
            self._members_at[key] = _Members(names, [member[1:] for member in told], at), list(itertools.compress(members, is_apart))
        return self._members_at[key]

    def _begin_members(self, members: _Members, place: At | None) -> list[_Form]:
        return [(self._classes_of(letter), self._behind_letters(members, names, place)) for letter, names in members.names.ahead()]

    def _behind_letters(self, members: _Members, names: WordRange, place: At | None) -> tuple[TermFrame, ...]:
        """Return the frames of some of the members, behind the beginning of their names."""
        if names.high > names.low + 1:
            key = "n", id(names.texts), names.low, names.high, names.depth, place
            return (self._frames.get(key) or self._frame(key, _Members(names, members.choices, members.position), place),)
        body, to = members.choices[names.low]
        node = self._canonical(body)
        assert isinstance(node, Concat)
        at = self._styles.inside(node, place)
        return (*self._behind(node, names.depth, at, self._styles.parts(node, at)), self._position(members.position, to, place))

    def _begin_counted(self, at: _GraphPosition, counts: Counts, place: At | None) -> list[_Form]:
        """No edge is empty."""
        found: list[_Form] = []
        low, high = max(at.low - 1, 0), None if at.high is None else at.high - 1
        for body, to in at.edges.get(at.state, ()) if at.high != 0 else ():
            if counts.lead_to_an_end(to, low, high):
                behind = (self._counted(at.graph, counts, to, low, high, place),)
                found += [(classes, frames + behind) for classes, frames in self._forms(self.frame(body, place))]
        return found

    def _counted(self, graph: NodeGraph, counts: Counts, state: int, low: int, high: int | None, place: At | None) -> TermFrame:
        key = "c", id(counts), state, low, high, place
        if (found := self._frames.get(key)) is not None:
            return found
        position = _GraphPosition(graph, counts.edges, state, counts, low, high)
        if high != 0 and (turn := self._turn(position, state)) is not None:
            return self._repeat(turn.node, low, high, turn.at)
        return self._frame(key, position, place)

    # -- terms -----------------------------------------------------------------------------------------------------

    def push(self, frame: TermFrame, rest: Term) -> Term:
        top = rest.frame
        if frame is self._return and (rest is self.end or top is frame):
            return rest  # after the last return there is nothing to return to
        if frame.family is top.family and frame.family is not frame:  # x{a,b}x{c,d} is x{a+c,b+d}
            high = None if frame.high is None or top.high is None else frame.high + top.high
            frame, rest = self._repeat(frame.node, frame.low + top.low, high, frame.at), rest.rest
        key = frame, rest
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = Term(frame, rest, len(self._terms) + 1)
            found.mark = found if frame is self._return else rest.mark
            found.is_free = frame.family in self._strings and frame.low == 0 and frame.high is None
            kind = frame.family, rest.kind
            found.kind = self._kinds.setdefault(kind, kind)
        return found

    def forms(self, term: Term) -> tuple[tuple[Classes, Term], ...]:
        """(classes, what may follow behind one of them), of each way to go on."""
        if term.forms is None:
            found: list[tuple[Classes, Term]] = []
            at = term
            while at is not self.end:
                for classes, frames in self._forms(at.frame):
                    self.pay(len(frames) // _FREE)
                    found.append((classes, self._returned(self.stacked(frames, at.rest))))
                if not self._is_nullable(at.frame):
                    break
                at = at.rest
            self.pay(len(found))
            term.forms, term.final = tuple(found), at is self.end
        return term.forms

    def _returned(self, term: Term) -> Term:
        """Return a term behind the end of a rule, if that comes first."""
        return term.rest if term.frame is self._return else term

    def literal(self, term: Term, most: int | None = _ENOUGH) -> str:
        """Characters that alone may follow, one after another, as far as is soon seen: up to the first mark, and so many."""
        frame = term.frame
        if frame.family is not frame:
            return ""
        if isinstance(frame.node, _Tail):
            return self._literal_of(frame.node.node)[frame.node.index :][:most]
        if isinstance(frame.node, _Members):
            return frame.node.names.literal[:most]
        return frame.node.literal[:most] if isinstance(frame.node, WordRange) else ""

    def names(self, term: Term) -> Sequence[str]:
        """Return what is left of the names of several members of an object, each with what surely follows it, where a term begins with
        these."""
        if type(term.frame.node) is not _Members:
            return ()
        texts, low, high, depth, _ = term.frame.node.names
        return [text[depth:] for text in texts[low:high]]

    def _literal_of(self, node: Concat | Ref) -> str:
        """The characters that a sequence begins with in every style."""
        found = self._literals.get(id(node))
        if found is None:
            chars: list[str] = []
            for part in node.parts if isinstance(node, Concat) else ():
                if not isinstance(part, Chars) or len(part.ranges) != 1 or part.ranges[0][0] != part.ranges[0][1]:
                    break
                chars.append(chr(part.ranges[0][0]))
            found = self._literals[id(node)] = "".join(chars)
            self._alive.append(node)
        return found

    def _left_out(self, term: Term) -> Sequence[str] | None:
        """Return the rests of the names, with the quote behind each, that a key which may be any other may not go on with; None if the
        term is in no such key."""
        node: Any = term.frame.node
        if type(node) is _Tail:
            key, quote = self._parts_at(term.frame, 2)
            return [name + '"' for name in key.but] if type(key) is NodeGraph and key.but is not None and quote == _QUOTE else None
        if type(node) is not _GraphPosition or node.counts is not None or node.graph.but is None or self._parts_at(term.rest.frame, 1) != [_QUOTE]:
            return None
        written = self._written_in(node.graph)[node.state]
        return () if written is None else [name[len(written) :] + '"' for name in node.graph.but if name.startswith(written)]

    def _parts_at(self, frame: TermFrame, count: int) -> Sequence[Node | None]:
        """Return the next parts of a sequence, as they are written; None where there are none."""
        found: list[Node | None] = [frame.node] if type(frame.node) is Chars and frame.family is frame else []
        if type(frame.node) is _Tail:
            found += [part for part, _ in self._styles.parts(frame.node.node, frame.at)[frame.node.index :][:count]]
        return found + [None] * (count - len(found))

    def _written_in(self, graph: NodeGraph) -> Sequence[str | None]:
        """Return the text that leads to each state of a trie of names, None for the last, behind what is none of them."""
        found = self._written.get(id(graph))
        if found is None:
            last = max([b for _, _, b in graph.edges])
            texts: dict[int, str] = {0: ""}
            for a, body, b in graph.edges:  # a state comes behind the one that leads to it
                if b != last and type(body) is Chars:
                    texts[b] = texts[a] + chr(body.ranges[0][0])
            found = self._written[id(graph)] = [texts[state] for state in range(last)] + [None]
            self._alive.append(graph)
        return found

    def beyond(self, term: Term, chars: int, first: int = 0, last: int | None = None) -> Term:
        """Return the term after so many characters of `literal`, or of the `first` to the `last` of `names`."""
        frame = term.frame
        if isinstance(frame.node, WordRange):
            return self.behind_words(term, frame.node.beyond(chars))
        if isinstance(frame.node, _Members):
            names = frame.node.names.beyond(chars)
            if last is not None:
                names = names._replace(low=names.low + first, high=names.low + last + 1)
            frames = self._behind_letters(frame.node, names, frame.at)
        else:
            node, index = frame.node.node, frame.node.index
            frames = self._behind(node, index + chars, frame.at, self._styles.parts(node, frame.at))
        return self._returned(self.stacked(frames, term.rest))

    def string(self, term: Term) -> WithinString | None:
        """Return what a term is in if it is within a string of any characters, or of a class of many, between two of them: one that may be
        any such, or any but some."""
        frame, rest = term.frame, term.rest
        kind = self._strings.get(frame.family)
        if kind is None and type(frame.node) is Chars and frame.family is not frame and _are_plain(frame.node.ranges):
            kind = frame.node.ranges
            at: Any = rest.frame.node
            if type(at) is _GraphPosition and at.state in at.graph.final and at.graph.but is not None and self._left_out(rest) == ():
                rest = rest.rest
        if kind is not None:
            forms = self.forms(rest) if self._parts_at(rest.frame, 1) == [_QUOTE] else ()
            return WithinString(kind, frame.low, frame.high, (), forms[0][1]) if len(forms) == 1 else None
        if (names := self._left_out(term)) is None:
            return None
        graph, state, _ = self._key_of(frame)
        behind = self.beyond(term, 2) if type(frame.node) is _Tail else self.forms(rest)[0][1]
        if graph.among is None:
            return WithinString(_SPELLED, 0, None, names, behind)
        chars, (body, low, high) = len(self._written_in(graph)[state] or ""), (graph.among.body, graph.among.low, graph.among.high)
        if type(body) is not Chars or not _are_plain(body.ranges) or self._written_in(graph)[state] is None:
            return None
        return WithinString(body.ranges, max(low - chars, 0), None if high is None else high - chars, names, behind)

    def _key_of(self, frame: TermFrame) -> tuple[NodeGraph, int, At | None]:
        """Return the graph of a key, the state in it, and the position of both."""
        if type(frame.node) is not _Tail:
            return frame.node.graph, frame.node.state, frame.at
        graph, place = self._styles.parts(frame.node.node, frame.at)[frame.node.index]
        assert type(graph) is NodeGraph
        return graph, 0, place

    def behind_key(self, term: Term, text: str) -> Term:
        """Return the term behind so many characters of a `string`."""
        frame, rest, string = term.frame, term.rest, self.string(term)
        assert string is not None
        low, high = max(string.low - len(text), 0), None if string.high is None else string.high - len(text)
        if frame.family is not frame:
            return self.turned(term, low, high)
        graph, state, place = self._key_of(frame)
        if type(frame.node) is _Tail:
            parts = self._styles.parts(frame.node.node, frame.at)
            rest = self.stacked(self._behind(frame.node.node, frame.node.index + 1, frame.at, parts), rest)
        written = self._written_in(graph)
        if (before := written[state]) is None:
            return term
        is_name = before + text in written
        found = self.push(self._position(self._started(graph), written.index(before + text) if is_name else len(written) - 1, place), rest)
        if graph.among is None or is_name or high == 0:
            return found
        return self.push(self._repeat(self._canonical(graph.among.body), low, high, place), found)

    def covered(self, terms: Collection[Term]) -> int | None:
        """Return the kind of string any characters of which may follow, however many, and up to the first quote nothing else."""
        kind = min([kind for term in terms if (kind := self._covers(term)) is not None], default=None)
        return kind if kind is not None and all(self._is_within_string(term, kind) for term in terms) else None

    def _covers(self, term: Term) -> int | None:
        """Return the kind of string of which a term may go on with any characters, however many, whatever has to follow them."""
        frame, string = term.frame, self.string(term)
        if string is not None:
            return string.kind if isinstance(string.kind, int) and string.high is None else None
        if (kind := self._strings.get(frame.family)) is not None:
            return kind if frame.high is None else None
        node: Any = frame.node
        if type(node) is _Tail:
            node = self._parts_at(frame, 1)[0]
        at = self._started(node) if isinstance(node, NodeGraph) else node if isinstance(node, _GraphPosition) else None
        return _SPELLED if at is not None and at.counts is None and at.state in at.graph.open else None

    def _is_within_string(self, term: Term, kind: int) -> bool:
        """Return whether all texts of a term are surely characters of a kind of string up to their first quote."""
        while term is not self.end and (self._is_in_string(term.frame) or self._strings.get(term.frame.family, -1) >= kind):
            term = term.rest
        frame = term.frame
        if term is self.end or frame is self._beyond:
            return True
        node = frame.node
        if type(node) is _Members:
            return all(name.isascii() and name.isprintable() and '"' in name and "\\" not in name for name in self.names(term))
        if type(node) is not _Tail:
            return node == _QUOTE and frame.family is frame
        parts = [part for part, _ in self._styles.parts(node.node, frame.at)[node.index :]]
        return _QUOTE in parts and self._is_unit(self._canonical(Concat(tuple(parts[: parts.index(_QUOTE)]))))

    def is_final(self, term: Term) -> bool:
        """Return whether the term accepts the empty text. Unlike `forms` it expands few alternatives."""
        if term.final is None:
            at = term
            while at is not self.end and self._is_nullable(at.frame):
                at = at.rest
            term.final = at is self.end
        return term.final

    def near(self, term: Term, length: int = LONG) -> tuple[TermFrame, ...]:
        """Return few frames with few counters that allow the same texts of up to `length` bytes as a term."""
        far = length + 1  # turns and bytes beyond the reach of such a text
        if term.near is None:
            term.near = {}
        elif (known := term.near.get(far)) is not None:
            return known
        kept: list[TermFrame] = []
        at, solid = term, 0
        while at is not self.end and solid < far:
            frame = at.frame
            surely = self._surely(at)
            if frame.low and surely >= far - solid and self.string(at) is None:  # else all of its turns are known
                kept += self._repeat(frame.node, 0, None, frame.at), self._beyond
                break
            solid += surely
            kept.append(frame if frame.family is frame and type(frame.node) is not _GraphPosition else self._near(frame, far))
            at = at.rest
        found = term.near[far] = tuple(kept)
        return found

    def begins_with(self, term: Term, frames: Sequence[TermFrame]) -> bool:
        """Return whether a term has these frames first."""
        for frame in frames:
            if term.frame is not frame:
                return False
            term = term.rest
        return True

    def stacked(self, frames: Sequence[TermFrame], rest: Term | None = None) -> Term:
        """Return the term that has these frames first, and then `rest`, or nothing."""
        found = rest or self.end
        for frame in reversed(frames):
            found = self.push(frame, found)
        return found

    def may_return(self, term: Term) -> bool:
        """Return whether a text of up to LONG bytes may complete the rule that a term is in."""
        return self._return in self.near(term)

    def _surely(self, term: Term) -> int:
        """Return a lower bound on the bytes of what a term begins with, as far as is soon seen: one for each character, and turn."""
        frame = term.frame
        if frame.surely is None:
            frame.surely = len(self.literal(term)) or (frame.low or 1) * (not self._is_nullable(frame))
        return frame.surely

    def _near(self, frame: TermFrame, far: int) -> TermFrame:
        """Drop a count that is not reached."""
        counted: Any = frame.node
        if isinstance(counted, _GraphPosition) and counted.counts is not None:
            return self._near_count(frame, counted, counted.counts, far)
        if frame.family is frame or (frame.low <= far and (frame.high is None or frame.high < far)):
            return frame
        high = None if frame.high is None or frame.high >= far else frame.high
        return self._repeat(frame.node, min(frame.low, far), high, frame.at)

    def _near_count(self, frame: TermFrame, at: _GraphPosition, counts: Counts, far: int) -> TermFrame:
        """From where so many edges are left that every way of up to `far` still leads to an end, how many are is all the same: of a way
        that is longer than there are states, parts that come back to where they began can be left out or taken again."""
        if at.high is not None and at.high < max(at.low, far) + counts.states:
            return frame
        low = min(at.low, far + counts.states)
        return frame if at.high is None and low == at.low else self._counted(at.graph, counts, at.state, low, None, frame.at)

    def turns_left(self, term: Term) -> tuple[int, int | None] | None:
        """Return the fewest and the most turns left of the repeat that a term begins with, or characters of a graph that are counted
        without a limit: one that may be read again in the same state is a turn. None for other terms."""
        frame = term.frame
        if frame.family is not frame:
            return frame.low, frame.high
        counted = type(frame.node) is _GraphPosition and frame.node.counts is not None and frame.node.high is None
        return (frame.node.low, None) if counted else None

    def turned(self, term: Term, low: int, high: int | None) -> Term:
        """Return a term that begins with a repeat or a counted graph, with so many turns left of it."""
        if type(at := term.frame.node) is _GraphPosition:
            assert at.counts is not None
            return self.push(self._counted(at.graph, at.counts, at.state, low, high, term.frame.at), term.rest)
        return term.rest if high == 0 else self.push(self._repeat(term.frame.node, low, high, term.frame.at), term.rest)

    def turning(self, term: Term) -> Collection[int]:
        """Return the classes that lead a counted graph back to the state in which a term begins, and to no other one."""
        frame, at = term.frame, term.frame.node
        if type(at) is not _GraphPosition or at.counts is None:
            return ()
        back, others = set[int](), set[int]()
        for body, to in at.edges.get(at.state, ()):
            for classes, frames in self._forms(self.frame(body, frame.at)):
                (back if to == at.state and not frames else others).update(classes)
        return back - others

    def turned_by(self, term: Term, chars: int) -> Term | None:
        """Return the term behind so many characters of `turning`; None if a text may not have as many."""
        at: _GraphPosition = term.frame.node
        assert at.counts is not None
        low, high = max(at.low - chars, 0), None if at.high is None else at.high - chars
        if (high is not None and high < 0) or not at.counts.lead_to_an_end(at.state, low, high):
            return None
        return self.turned(term, low, high)

    def above(self, term: Term) -> Term:
        """Return the part of a term above its mark."""
        if term.above is None:
            term.above = self.stacked(_frames(term, term.mark))
        return term.above

    def joined(self, terms: Iterable[Term]) -> tuple[Term, ...]:
        """Return the same texts in fewer terms, in order: those contained in others are dropped, and adjacent ones merged."""
        found = set(terms)
        if len(found) < 2:
            return tuple(found)
        by_kind: dict[object, list[Term]] = {}
        for term in found:
            by_kind.setdefault(term.kind, []).append(term)
        if len(by_kind) < len(found):
            found = {term for same in by_kind.values() for term in (same if not 1 < len(same) <= _MANY else self._joined_kind(same))}
        if free := {term.rest for term in found if term.is_free}:  # what is within a string of any characters, behind which is the same
            found = [term for term in found if free.isdisjoint(self._inside(term))]
        if len(found) == 2:  # as most are
            first, second = found
            return (first, second) if first.number < second.number else (second, first)
        return tuple(sorted(found, key=_number_of))

    def _inside(self, term: Term) -> Sequence[Term]:
        """Return what may be behind characters of a string that a term begins with: its texts are some such characters and then a text of
        one of these. If it begins with any characters, at least one more part of it is before that."""
        if term.inside is None:
            term.inside = self._inside_rest(term.rest) if term.is_free else (term, *self._inside_rest(term))
        return term.inside

    def _inside_rest(self, term: Term) -> Sequence[Term]:
        found: list[Term] = []
        while term is not self.end and self._is_in_string(term.frame):
            term = term.rest
            found.append(term)
        return tuple(found)

    def _is_in_string(self, frame: TermFrame) -> bool:
        """Return whether all texts of a frame are surely whole characters of a JSON string, each written in the one way."""
        if frame.is_in_string is None:
            node = frame.node
            if isinstance(node, _Tail):
                frame.is_in_string = self._are_units(node.node, frame.at)[node.index]
            elif isinstance(node, WordRange):
                frame.is_in_string = self._are_plain(node.texts)
            else:
                frame.is_in_string = self._is_unit(node.graph if isinstance(node, _GraphPosition) else node)
        return frame.is_in_string

    def _are_plain(self, words: Sequence[str]) -> bool:
        if (found := self._unit.get(id(words))) is None:  # the list is kept alive by its frame
            found = self._unit[id(words)] = all(word.isascii() and word.isprintable() and '"' not in word and "\\" not in word for word in words)
        return found

    def _is_unit(self, node: Any) -> bool:
        """As `_is_in_string`, of a node."""
        if (found := self._unit.get(id(node))) is None:
            if isinstance(node, Chars):
                found = all(any(first <= low and high <= last for first, last in RAW_CHARS.ranges) for low, high in node.ranges)
            elif isinstance(node, Concat):
                found = self._are_units(node, None)[0]
            elif isinstance(node, NodeGraph) and node.but is not None and node.among is None:  # of plain names, and all others
                found = self._is_unit(next(body for source, body, to in node.edges if source == to))
            else:
                found = isinstance(node, Union | Repeat | NodeGraph | Counted) and all(map(self._is_unit, parts_of(node)))
            self._unit[id(node)] = found
            self._alive.append(node)
        return found

    def _are_units(self, node: Concat | Ref, at: At | None) -> Sequence[bool]:
        """As `_is_in_string`, of a sequence from each of its parts on; its position: marks are written out there."""
        if (found := self._unit_tails.get((id(node), at))) is None:
            tails, parts = [True], [part for part, _ in self._styles.parts(node, at)]
            for index in reversed(range(len(parts))):
                if isinstance(part := parts[index], Chars) and part.ranges == _BACKSLASH.ranges:
                    tails.append(index + 1 < len(parts) and _is_escaped(parts[index + 1]) and tails[-2])
                else:
                    tails.append(tails[-1] and self._is_unit(part))
            found = self._unit_tails[id(node), at] = tails[::-1]
            self._alive.append(node)
        return found

    def _joined_kind(self, terms: list[Term]) -> list[Term]:
        by_spans = {_spans(term, self.end): term for term in terms}
        spans = list(by_spans) if len(by_spans) == 2 else sorted(by_spans, key=repr)
        changed = len(spans) > 1
        while changed:
            changed = False
            for i, a in enumerate(spans):
                for b in spans[i + 1 :]:
                    self.pay(1)
                    if (both := _union(a, b)) is not None:
                        spans.remove(a)
                        spans.remove(b)
                        if both not in spans:
                            spans.append(both)
                        changed = len(spans) > 1
                        break
                if changed:
                    break
        return [by_spans.get(s) or self._with_spans(terms[0], s) for s in spans]

    def _with_spans(self, like: Term, spans: Sequence[tuple[int, int | None] | None]) -> Term:
        frames = zip(_frames(like, self.end), spans)
        return self.stacked([frame if span is None else self._repeat(frame.node, *span, frame.at) for frame, span in frames])

    # -- lengths ---------------------------------------------------------------------------------------------------

    def least(self, term: Term) -> int:
        """Return the bytes of a shortest text."""
        above: list[Term] = []
        at = term
        while at.least is None:
            above.append(at)
            at = at.rest
        found = at.least
        for one in reversed(above):
            found = one.least = found + self._least(one.frame)
        return found

    def _least(self, frame: TermFrame) -> int:
        node, at = frame.node, frame.at
        if frame is self._return:
            return 0
        if frame is self._beyond:
            return NEVER
        if frame.family is not frame:
            return frame.low * self._lengths.of(node, at)
        if isinstance(node, _Tail):
            return self._lengths.behind(node.node, at)[node.index]
        if isinstance(node, WordRange):
            if node.is_ascii:
                return node.fewest
            return min(sum(bytes_of(self._lists.chars(letter)) for letter in text[node.depth :]) for text in node.texts[node.low : node.high])
        if isinstance(node, _Members):
            behind, (_, low, high, depth, _) = self._lengths.to_the_end(node.position.graph, at), node.names
            return min(self._lengths.behind(body, self._styles.inside(body, at))[depth] + behind.get(to, NEVER) for body, to in node.choices[low:high])
        if isinstance(node, _GraphPosition) and node.counts is not None:
            return node.counts.least_bytes(lambda body: self._lengths.of(body, at), node.state, node.low, node.high)
        return self._lengths.to_the_end(node.graph, at).get(node.state, NEVER) if isinstance(node, _GraphPosition) else self._lengths.of(node, at)


def _frames(term: Term, end: Term | None) -> list[TermFrame]:
    """Return the frames of a term above another one."""
    found: list[TermFrame] = []
    while term is not end:
        found.append(term.frame)
        term = term.rest
    return found


class _Tail:
    """A sequence, or a mark, from one of its parts on."""

    __slots__ = ("index", "node")

    def __init__(self, node: Concat | Ref, index: int) -> None:
        self.node, self.index = node, index


class _GraphPosition:
    """A graph, read as far as one of its states; `counts`: and `low` to `high` more of its edges are to be read."""

    __slots__ = ("counts", "edges", "graph", "high", "low", "state")

    def __init__(
        self, graph: NodeGraph, edges: Mapping[int, Sequence[tuple[Node, int]]], state: int, counts: Counts | None = None, low: int = 0, high: int | None = None
    ) -> None:
        self.graph, self.edges, self.state, self.counts, self.low, self.high = graph, edges, state, counts, low, high


_Member = tuple[str, Concat, int]
"""The characters that a member begins with, the member, and the state of a graph behind it."""


class _Members:
    """Several members of an object, one of which comes next, behind letters that their names share.

    names     a range of all of them, each with what surely follows it
    choices   of each of all the member, and the state of the graph behind it
    position  in the graph that they are of
    """

    __slots__ = ("choices", "names", "position")

    def __init__(self, names: WordRange, choices: Sequence[tuple[Concat, int]], position: _GraphPosition) -> None:
        self.names, self.choices, self.position = names, choices, position


def _is_escaped(node: Node) -> bool:
    return isinstance(node, Chars) and all(low == high and chr(low) in '"\\bfnrt' for low, high in node.ranges)


def _are_plain(ranges: Ranges) -> bool:
    """Return whether characters are many, ASCII, and written in a JSON string as they are."""
    is_plain = ranges[0][0] >= 0x20 and ranges[-1][1] < 0x80 and not any(low <= char <= high for low, high in ranges for char in b'"\\')
    return is_plain and sum([high - low + 1 for low, high in ranges]) >= _WIDE


_number_of = attrgetter("number")


_Spans = tuple["tuple[int, int | None] | None", ...]  # of each frame its counters, None where it has none


def _spans(term: Term, end: Term) -> _Spans:
    if term.spans is None:
        frames = _frames(term, end)
        term.spans = tuple([None if frame.family is frame else (frame.low, frame.high) for frame in frames])
    return term.spans


def _union(a: _Spans, b: _Spans) -> _Spans | None:
    """Return the counters of both together, if one contains the other or they are adjacent in one counter and equal
    elsewhere."""
    differ = [i for i, (x, y) in enumerate(zip(a, b)) if x != y]
    if len(differ) > 1:
        return b if _within(a, b) else a if _within(b, a) else None
    if not differ:
        return a
    x, y = a[differ[0]], b[differ[0]]
    assert x is not None and y is not None
    low, high = (x, y) if x[0] <= y[0] else (y, x)
    if low[1] is not None and high[0] > low[1] + 1:
        return None
    most = None if low[1] is None or high[1] is None else max(low[1], high[1])
    return (*a[: differ[0]], (low[0], most), *a[differ[0] + 1 :])


def _within(a: _Spans, b: _Spans) -> bool:
    return all(x is None or y is None or (y[0] <= x[0] and (y[1] is None or (x[1] is not None and x[1] <= y[1]))) for x, y in zip(a, b))
