"""Python's regex dialect, parsed by Python's own parser, as a small tree over character sets; refuses non-regular
constructs.

The language of a pattern is that of `re.fullmatch(pattern, text, re.ASCII)`; a pattern that starts with `(?u)` has
Unicode classes and Unicode case. Groups capture nothing here, and laziness does not change a language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmc.errors import ConstraintError, shown
from lmc.fsm import charset
from lmc.fsm.assertions import MOST, Assertion, mark, resolved
from lmc.fsm.bounds import TooLarge
from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.charset import Ranges
from lmc.fsm.dfa import MAX_STATES, build
from lmc.fsm.nodes import ANY, EMPTY, NOTHING, Chars, Concat, Node, Repeat, Union
from lmc.warning_filters import ignored

MAX_REPEAT = 10_000
_LONG = 800  # characters of a pattern that may have many words

_parser: Any = re._parser  # type: ignore[attr-defined]  # pyright: ignore
_sre: Any = re._constants  # type: ignore[attr-defined]  # pyright: ignore


def parse(pattern: str, *, search: bool = False) -> Node:
    """Return the tree of a pattern: of the texts that it matches as a whole or, with `search`, of those that contain a
    match.

    Raises ConstraintError, with the position in the pattern, for invalid patterns, for non-regular constructs
    (back-references, conditions, atomic groups, possessive repeats), and for look-around that is nested or needs too large an
    automaton.
    """
    tree, assertions = _read(pattern, search)
    return _resolved(pattern, tree, assertions) if assertions else tree


def compile_regex(pattern: str) -> ByteDFA:
    """Return the minimal automaton of a pattern; raises ConstraintError for anything that `parse` refuses or that
    is too large."""
    try:
        return build(parse(pattern))
    except TooLarge:
        raise ConstraintError(
            f"regex {shown(pattern)} needs too large an automaton (of more than {MAX_STATES} states, or of too many ways "
            f"to read one text); use smaller repeats, "
            f"or classes instead of nested alternatives"
        ) from None


def _read(pattern: str, search: bool) -> tuple[Node, list[Assertion]]:
    short, words = _without_words(pattern)
    if words:
        try:
            return _read_short(short, search, words)
        except ConstraintError:
            pass  # reading all of it says where it is wrong
    return _read_short(pattern, search, {})


_MANY_WORDS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?:)?([\w -]+(?:\|[\w -]+){199,})\)", re.ASCII | re.DOTALL)  # outside of classes


def _without_words(pattern: str) -> tuple[str, Mapping[int, Sequence[str]]]:
    """Return the pattern with a placeholder character for each group of many words, which Python's parser takes long to read, and the
    words of each: none where flags may say how they are meant."""
    found: dict[int, Sequence[str]] = {}
    if len(pattern) < _LONG or re.search(r"\(\?[^:]|\\[pP]", pattern):
        return pattern, found
    whole = pattern if "(" in pattern else f"({pattern})"

    codes: dict[str, int] = {}

    def replaced(group: re.Match[str]) -> str:
        if group[1] is None:
            return group[0]
        if (code := codes.get(group[1])) is None:
            code = codes[group[1]] = next(code for code in range(charset.MAX_CHAR, 0, -1) if code not in found and chr(code) not in pattern)
            found[code] = list(dict.fromkeys(group[1].split("|")))
        return chr(code)

    short = _MANY_WORDS.sub(replaced, whole)
    return (short if found else pattern), found


def _read_short(pattern: str, search: bool, words: Mapping[int, Sequence[str]]) -> tuple[Node, list[Assertion]]:
    pattern, properties = _with_properties(pattern)
    try:
        tree = _parsed(pattern)
    except re.error as e:
        raise ConstraintError(f"invalid regex {shown(pattern)}: {e.msg}{_pointed(pattern, e.pos)}") from None
    except (OverflowError, ValueError) as e:  # of the number of a repeat, which has too many digits for Python
        raise ConstraintError(f"invalid regex {shown(pattern)}: {str(e).partition(';')[0]}") from None
    except RecursionError:
        raise _too_deep(pattern) from None
    if not search and (at := _posix_class(pattern, bool(tree.state.flags & re.VERBOSE))) is not None:  # in a schema, it is as JavaScript reads it
        raise ConstraintError(
            f"regex {shown(pattern)} has the POSIX class {pattern[slice(*at)]}, which Python's re reads as other characters; write it out, "
            rf"as in [A-Za-z], or use \w, \d, \s or \p{{…}}{_pointed(pattern, at[0])}"
        )
    flags = int(tree.state.flags) & ~re.UNICODE | (re.UNICODE if asks_for_unicode(pattern) else 0)
    assertions: list[Assertion] = []
    try:
        return _RegexReader(pattern, flags, assertions, properties, words, search).whole(list(tree)), assertions
    except RecursionError:
        raise _too_deep(pattern) from None


def _too_deep(pattern: str) -> ConstraintError:
    return ConstraintError(f"regex {shown(pattern)} is nested too deep for a constraint")


def _parsed(pattern: str) -> Any:
    """Return `re`'s own tree, without its warnings that later versions may read a class as of several: this one's meaning holds."""
    if _NESTED.search(pattern) is None:
        return _parser.parse(pattern, 0)
    with ignored(FutureWarning):
        return _parser.parse(pattern, 0)


def parse_part(pattern: str) -> Node:
    """Return the tree of a pattern for part of a text, with unknown surroundings: assertions about these are
    refused."""
    tree, found = _read(pattern, search=False)
    if found:
        raise _refused(pattern, _AROUND)
    return tree


def _resolved(pattern: str, tree: Node, assertions: Sequence[Assertion]) -> Node:
    try:
        found = resolved(tree, assertions)
    except TooLarge:
        raise ConstraintError(
            f"regex {shown(pattern)}: its look-around, word boundaries or line ends need too large an automaton; use smaller repeats beside them"
        ) from None
    if found == NOTHING:
        raise ConstraintError(f"regex {shown(pattern)} matches nothing: its look-around, word boundaries or line ends exclude each other")
    return found


_NESTED = re.compile(r"\[\[|--|&&|~~|\|\|")
_POSIX = re.compile(
    r"\\.|\(\?\#[^)]*\)"  # escaped, or a comment
    r"|\[\^?\]?(?:\\.|[^]\\])*?(?P<class>\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\])"
    r"|\[\^?\]?(?:\\.|[^]\\])*"
    r"|\((?:\?(?P<on>[a-zA-Z]*)-?(?P<off>[a-z]*)(?P<all>\))?)?|\)|(?P<comment>\#)",
    re.DOTALL,
)


def _posix_class(pattern: str, verbose: bool) -> tuple[int, int] | None:
    """Return where a pattern, which is legal, has a POSIX class that is not in a comment."""
    scopes, at = [verbose], 0
    while (token := _POSIX.search(pattern, at)) is not None:
        at = token.end()
        if token["class"]:
            return token.span("class")
        if token["comment"]:
            at = pattern.find("\n", at) if scopes[-1] else at
            if at < 0:
                return None
        elif token[0] == ")":
            scopes.pop()
        elif token[0][0] == "(" and not token["all"]:
            scopes.append("x" in (token["on"] or "") or (scopes[-1] and "x" not in (token["off"] or "")))
    return None


_PROPERTY = re.compile(r"\\(?:([pP])(?:\{(\^?)([\w ]+)\}|([A-Z]))|.)", re.DOTALL)


def _with_properties(pattern: str) -> tuple[str, Mapping[int, Ranges]]:
    r"""Return the pattern with a placeholder character for each `\\p{…}`, and the meaning of each."""
    found: dict[int, Ranges] = {}

    def replaced(token: re.Match[str]) -> str:
        if token[1] is None:
            return token[0]
        name = token[3] or token[4]
        ranges = charset.category(name)
        if ranges is None:
            raise ConstraintError(
                f"regex {shown(pattern)}: \\p{{{name}}} is not a general category of Unicode, such as L, Lu, Nd or Punctuation; "
                "scripts and others are not known"
            )
        if (token[1] == "P") != (token[2] == "^"):
            ranges = charset.complement(ranges)
        code = next(code for code in range(charset.MAX_CHAR, 0, -1) if code not in found and chr(code) not in pattern)
        found[code] = ranges
        return chr(code)

    return (_PROPERTY.sub(replaced, pattern) if "\\p" in pattern.lower() else pattern), found


def asks_for_unicode(pattern: str) -> bool:
    """Return whether `(?u)` is among the global flags, which stand at the start."""
    return re.match(r"(?:\(\?[aimsx]+\)|\(\?#[^)]*\)|\s)*\(\?[imsx]*u[imsx]*\)", pattern) is not None


# -- Python's tree to ours -----------------------------------------------------------------------------------------

_CATEGORIES = {
    _sre.CATEGORY_DIGIT: ("d", False),
    _sre.CATEGORY_SPACE: ("s", False),
    _sre.CATEGORY_WORD: ("w", False),
    _sre.CATEGORY_NOT_DIGIT: ("d", True),
    _sre.CATEGORY_NOT_SPACE: ("s", True),
    _sre.CATEGORY_NOT_WORD: ("w", True),
}

_AROUND = "look-around, a word boundary or an anchor in a part of a text"
_LOOK = "look-around or an anchor within look-around"
_TOO_MANY = "so much look-around"
_TOO_OFTEN = f"a repeat of more than {MAX_REPEAT}"
_NO_CHARACTER = "a character class without characters"  # or a lone surrogate
_OPS = {  # what is refused, and how it is written
    "GROUPREF": ("back-references", r"\(\?P=|\\[1-9]"),
    "GROUPREF_EXISTS": ("conditional groups", r"\(\?\("),
    "ATOMIC_GROUP": ("atomic groups", r"\(\?>"),
    "POSSESSIVE_REPEAT": ("possessive repeats", r"(?<=[*+?}])\+"),
}
_STARTS = (_sre.AT_BEGINNING, _sre.AT_BEGINNING_STRING)
_ENDS = (_sre.AT_END, _sre.AT_END_STRING)


class _RegexReader:
    """Reads one syntax tree of `re._parser` under the flags that hold there.

    search   for a match anywhere; `$` is the end alone then, as in JSON Schema's patterns
    """

    def __init__(
        self, pattern: str, flags: int, assertions: list[Assertion], properties: Mapping[int, Ranges], words: Mapping[int, Sequence[str]], search: bool
    ) -> None:
        self.pattern, self.flags, self.assertions, self.properties, self.words, self.search = pattern, flags, assertions, properties, words, search
        self.literals: dict[int, Node] = {}

    def whole(self, items: list[tuple[Any, Any]]) -> Node:
        """Return the pattern; when searching, with any text before and after it where no anchor forbids it."""
        if not self.search:
            return self.sequence(items, at_start=True, at_end=True)
        found: dict[tuple[bool, bool], list[Node]] = {}
        for anchors, middle in self.searched(items):
            found.setdefault(anchors, []).append(middle)
        some = Repeat(ANY, 0, None)
        arms = [
            Concat((*(() if at_start else (some,)), middles[0] if len(middles) == 1 else Union(tuple(middles)), *(() if at_end else (some,))))
            for (at_start, at_end), middles in found.items()
        ]
        return arms[0] if len(arms) == 1 else Union(tuple(arms))

    def searched(self, items: list[tuple[Any, Any]]) -> Iterator[tuple[tuple[bool, bool], Node]]:
        """Yield the alternatives that are searched for, and whether each is anchored at the start, and at the end."""
        if len(items) == 1 and items[0][0] is _sre.BRANCH:
            for arm in items[0][1][1]:
                yield from self.searched(list(arm))
            return
        if len(items) == 1 and items[0][0] is _sre.SUBPATTERN:
            _, add, remove, body = items[0][1]
            yield from self.under(add, remove).searched(list(body))
            return
        for end in (0, -1):  # alternatives with anchors at an end are split: `^a|^ab$` is read as `^a(?:|b$)`
            if len(items) > 1 and _holds_anchors(items[end]):
                before, behind = ([], items[1:]) if end == 0 else (items[:-1], [])
                for arm in _arms(items[end]):
                    yield from self.searched([*before, *arm, *behind])
                return
        starts, ends = (_STARTS[1:], _ENDS[1:]) if self.flags & re.MULTILINE else (_STARTS, _ENDS)
        at_start = any(op is _sre.AT and arg in starts for op, arg in items[:1])
        at_end = any(op is _sre.AT and arg in ends for op, arg in items[-1:])
        rest = items[1 if at_start else 0 : len(items) - 1 if at_end else len(items)]
        middle = self.sequence(rest, at_start=False, at_end=False)
        if not self.assertions:  # whose marks see all text that is read
            middle = middle if at_end else _least(middle, -1)
            middle = middle if at_start else _least(middle, 0)
        yield (at_start, at_end), middle

    def sequence(self, items: list[tuple[Any, Any]], *, at_start: bool, at_end: bool) -> Node:
        """Return items one after another; `at_start`, `at_end`: nothing can precede or follow them, so anchors are
        void."""
        while at_start and items and items[0][0] is _sre.AT and items[0][1] in _STARTS:
            items = items[1:]
        while at_end and items and items[-1][0] is _sre.AT and items[-1][1] in _ENDS:
            items = items[:-1]
        last = len(items) - 1
        parts = [self.item(op, arg, at_start=at_start and i == 0, at_end=at_end and i == last) for i, (op, arg) in enumerate(items)]
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def item(self, op: Any, arg: Any, *, at_start: bool, at_end: bool) -> Node:
        if op is _sre.LITERAL and arg in self.properties:
            return self.chars(self.properties[arg])
        if op is _sre.LITERAL and arg in self.words:
            if arg not in self.literals:
                self.literals[arg] = Union(tuple([Concat(tuple([self.literal(ord(char)) for char in word])) for word in self.words[arg]]))
            return self.literals[arg]
        if op is _sre.LITERAL:
            return self.literal(arg)
        if op is _sre.NOT_LITERAL and arg in self.properties:
            return self.chars(charset.complement(self.properties[arg]))
        if op is _sre.NOT_LITERAL:
            return self.chars(charset.complement(self.folded([(arg, arg)])))
        if op is _sre.ANY:
            return self.chars(charset.complement([] if self.flags & re.DOTALL else [(10, 10)]))
        if op is _sre.IN:
            return self.chars(self.char_class(arg))
        if op is _sre.BRANCH:
            return Union(tuple(self.sequence(list(arm), at_start=at_start, at_end=at_end) for arm in arg[1]))
        if op is _sre.SUBPATTERN:
            _, add, remove, body = arg
            return self.under(add, remove).sequence(list(body), at_start=at_start, at_end=at_end)
        if op in (_sre.MAX_REPEAT, _sre.MIN_REPEAT):
            return self.repeat(*arg)
        if op is _sre.AT:
            return self.place(arg)
        if op in (_sre.ASSERT, _sre.ASSERT_NOT):
            return self.look(*arg, negated=op is _sre.ASSERT_NOT)
        if str(op) == "FAILURE":  # later Pythons' form of (?!)
            return NOTHING
        raise _refused(self.pattern, _OPS.get(str(op), (str(op),))[0])

    def literal(self, char: int) -> Node:
        if char not in self.literals:
            self.literals[char] = self.chars(self.folded([(char, char)]))
        return self.literals[char]

    def asserted(self, assertion: Assertion) -> Node:
        if len(self.assertions) >= MOST:
            raise _refused(self.pattern, _TOO_MANY)
        self.assertions.append(assertion)
        return mark(len(self.assertions) - 1)

    def place(self, at: Any) -> Node:
        if at in (_sre.AT_BOUNDARY, _sre.AT_NON_BOUNDARY):
            return self.asserted(Assertion("boundary" if at is _sre.AT_BOUNDARY else "inside", self.chars(self.category("w", False))))
        if self.flags & re.MULTILINE and at not in (_STARTS[1], _ENDS[1]):
            return self.asserted(Assertion("line_start" if at in _STARTS else "line_end"))
        if at in _STARTS:
            return self.asserted(Assertion("not_behind", ANY))
        if at is _ENDS[1] or self.search:
            return self.asserted(Assertion("not_ahead", ANY))
        return self.asserted(Assertion("ahead", Repeat(Chars(((10, 10),)), 0, 1), to_the_end=True))

    def look(self, direction: int, body: Any, *, negated: bool) -> Node:
        items, known = list(body), len(self.assertions)
        if len(items) == 1 and (arms := _arms(items[0])):  # each may have an anchor of its own at its end
            looks = tuple([self.look(direction, arm, negated=negated) for arm in arms])
            return Concat(looks) if negated else Union(looks)
        to_the_end = direction > 0 and bool(items) and items[-1][0] is _sre.AT and items[-1][1] in _ENDS and not self.flags & re.MULTILINE
        looked = self.sequence(items[:-1] if to_the_end else items, at_start=False, at_end=False)
        if len(self.assertions) > known:
            raise _refused(self.pattern, _LOOK)
        if direction > 0:
            return self.asserted(Assertion("not_ahead" if negated else "ahead", looked, to_the_end))
        return self.asserted(Assertion("not_behind" if negated else "behind", looked))

    def under(self, add: int, remove: int) -> _RegexReader:
        """Return a reader for the inside of `(?flags:…)`."""
        flags = self.flags & ~(re.ASCII | re.UNICODE) if add & (re.ASCII | re.UNICODE) else self.flags
        return _RegexReader(self.pattern, (flags | add) & ~remove, self.assertions, self.properties, self.words, self.search)

    def repeat(self, low: int, high: int, body: Any) -> Node:
        unbounded = high is _sre.MAXREPEAT
        if low > MAX_REPEAT or (not unbounded and high > MAX_REPEAT):
            raise _refused(self.pattern, _TOO_OFTEN)
        inner = self.sequence(list(body), at_start=False, at_end=False)
        if inner == EMPTY or high == 0:
            return EMPTY
        return Repeat(inner, low, None if unbounded else high)

    def char_class(self, items: list[tuple[Any, Any]]) -> Ranges:
        spelled: list[tuple[int, int]] = []
        named: list[tuple[str, bool]] = []
        properties: list[tuple[int, int]] = []
        negate = False
        for op, arg in items:
            if op is _sre.NEGATE:
                negate = True
            elif op is _sre.LITERAL and arg in self.properties:
                properties += self.properties[arg]
            elif op is _sre.LITERAL:
                spelled.append((arg, arg))
            elif op is _sre.RANGE:
                spelled.append(arg)
            elif op is _sre.CATEGORY:
                named.append(_CATEGORIES[arg])
            else:
                raise _refused(self.pattern, str(op))
        found = self.folded(spelled, named)
        if properties:
            found = charset.merged([*found, *properties])
        return charset.complement(found) if negate else found

    def category(self, letter: str, negated: bool) -> Ranges:
        find = charset.unicode_class if self.flags & re.UNICODE else charset.ascii_class
        return charset.complement(find(letter)) if negated else find(letter)

    def folded(self, spelled: list[tuple[int, int]], named: Sequence[tuple[str, bool]] = ()) -> Ranges:
        """Return the characters of a class, in any case if the flags ask for it; classes have both cases already, in re
        as here."""
        members = [*spelled, *(r for name in named for r in self.category(*name))]
        if not self.flags & re.IGNORECASE:
            return charset.merged(members)
        if self.flags & re.UNICODE or any(high > charset.MAX_BMP for _, high in spelled):
            written = [charset.written(r) for r in spelled] + [f"\\{n.upper() if negated else n}" for n, negated in named]
            return charset.fold_as_re(tuple(members), "".join(written), re.UNICODE if self.flags & re.UNICODE else re.ASCII)
        return charset.fold_ascii(members)

    def chars(self, ranges: Ranges) -> Node:
        kept = charset.without_surrogates(ranges)
        if not kept:
            raise _refused(self.pattern, _NO_CHARACTER)
        return Chars(kept)


def _least(node: Node, end: int) -> Node:
    """Return the least part of a tree to read if any text may follow it (end -1) or precede it (end 0): one x of `x+`.
    So one state represents all texts that contain it."""
    if isinstance(node, Repeat):
        return EMPTY if node.low == 0 else node.body if node.low == 1 else Repeat(node.body, node.low, node.low)
    if isinstance(node, Union):
        arms = tuple([_least(arm, end) for arm in node.arms])
        return EMPTY if EMPTY in arms else Union(arms)
    if not isinstance(node, Concat):
        return node
    parts = list(node.parts)
    while parts:
        parts[end] = _least(parts[end], end)
        if parts[end] != EMPTY:
            break
        del parts[end]
    return parts[0] if len(parts) == 1 else Concat(tuple(parts))


def _arms(item: tuple[Any, Any]) -> list[list[tuple[Any, Any]]]:
    """Return the arms of alternatives, or of a group that changes no flags; nothing for others."""
    op, arg = item
    if op is _sre.BRANCH:
        return [list(arm) for arm in arg[1]]
    return [list(arg[3])] if op is _sre.SUBPATTERN and not (arg[1] or arg[2]) else []


def _holds_anchors(item: tuple[Any, Any]) -> bool:
    return any(inner[0] is _sre.AT or _holds_anchors(inner) for arm in _arms(item) for inner in arm)


# -- positions: Python's tree has none, so the refused construct is searched in the text --------------------

_SPELLED = {
    **dict(_OPS.values()),
    _AROUND: r"\(\?<?[=!]|\\[bBAZz]|[\^$]",
    _LOOK: r"\(\?<?[=!]",
    _TOO_OFTEN: r"\{\d*,?\d{5,}",
}
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?#[^)]*\)|.", re.DOTALL)
_CHARACTER = re.compile(rf"\\u[0-9a-fA-F]{{4}}|{_TOKEN.pattern}", re.DOTALL)


def _refused(pattern: str, what: str) -> ConstraintError:
    position = _position(pattern, what)
    return ConstraintError(
        f"regex {shown(pattern)}: {what} cannot be used in a constraint{_pointed(pattern, position)}"
        f"{chr(10) if position is not None and pattern.isprintable() else '; '}"
        f"rewrite it with classes, groups, alternatives and repeats, or check the answer afterwards"
    )


def _pointed(pattern: str, position: int | None) -> str:
    """Return a position, with a caret under a pattern that is one line of printable characters (no tabs, no half
    surrogates)."""
    if position is None:
        return ""
    caret = f"\n    {pattern}\n    {' ' * position}^" if pattern.isprintable() else ""
    return f" at position {position}{caret}"


def _position(pattern: str, what: str) -> int | None:
    if what == _NO_CHARACTER:
        flags = int(_parser.parse(pattern, 0).state.flags)
        return next((token.start() for token in _CHARACTER.finditer(pattern) if _is_empty(token[0], flags)), None)
    if what not in _SPELLED:
        return None
    tokens = (token.start() for token in _TOKEN.finditer(pattern) if len(token[0]) <= 2)  # outside of classes and comments
    return next((at for at in tokens if re.compile(_SPELLED[what]).match(pattern, at)), None)


def _is_empty(token: str, flags: int) -> bool:
    """Return whether a class or a character, as it is written, matches no character."""
    try:
        [(op, arg)] = list(_parser.parse(token, 0))
    except (re.error, ValueError):
        return False  # neither of them
    if op is _sre.IN:
        return not charset.without_surrogates(_RegexReader(token, flags, [], {}, {}, False).char_class(arg))
    return op is _sre.LITERAL and not charset.without_surrogates(((arg, arg),))
