"""EBNF in the syntax of xgrammar and llama.cpp, as a `Grammar`: rules, literals, classes, groups and repeats.

root  ::= "[" (item ("," item)*)? "]"      # begins at `root`
item  ::= [0-9]{1,3} | root
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lmc.errors import ConstraintError
from lmc.fsm import charset
from lmc.fsm.grammar import Grammar
from lmc.fsm.nodes import EMPTY, NOTHING, Chars, Node, Ref, one_of, repeat, seq, text
from lmc.fsm.regex import MAX_REPEAT

_TOKENS = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+) | (?P<name>[A-Za-z_.][\w.-]*)(?P<defines>\s*::=)? | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<chars>\[(?:[^\]\\\n]|\\.)*\]) | (?P<count>\{\s*\d*\s*(?:,\s*\d*\s*)?\}) | (?P<look>\(\s*=) | (?P<mark>[()|*+?])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_MACRO = re.compile(r"([A-Z]\w*)\((?!\s*=)")
_UNIT = re.compile(rf"{_ESCAPE.pattern}|.", re.DOTALL)
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def compile_ebnf(source: str) -> Grammar:
    """Compile a text in EBNF, from its rule `root`, to a grammar. Raises ConstraintError with line and column."""
    reader = _EbnfReader(source)
    try:
        return reader.grammar()
    except RecursionError:
        raise ConstraintError("ebnf: the grammar is nested too deep") from None


class _EbnfReader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = [*self._tokens(), _Token("end", "", len(source))]
        self.next = 0
        self.named: dict[str, int] = {}  # rules that are named, and the first position of each

    def _tokens(self) -> list[_Token]:
        found: list[_Token] = []
        at = 0
        while at < len(self.source):
            match = _TOKENS.match(self.source, at)
            if macro := _MACRO.match(self.source, at):
                raise self.wrong(at, f"{macro[1]}(…) is a macro of xgrammar and cannot be used; write rules, or a structural_tag")
            if match is None:
                raise self.wrong(at, f"{self.source[at]!r} cannot stand here")
            if match["defines"] is not None:
                found.append(_Token("rule", match["name"], at))
            elif match.lastgroup not in (None, "space"):
                found.append(_Token(str(match.lastgroup), match[0], at))
            at = match.end()
        return found

    def wrong(self, at: int, what: str) -> ConstraintError:
        line = self.source.count("\n", 0, at) + 1
        return ConstraintError(f"ebnf: {what} at line {line}, column {at - self.source.rfind(chr(10), 0, at)}")

    def grammar(self) -> Grammar:
        rules: dict[str, list[Node]] = {}
        while self.peek.kind != "end":
            rule = self.take()
            if rule.kind != "rule":
                raise self.wrong(rule.at, f'a rule should begin here, like root ::= "a", not {rule.text}')
            rules.setdefault(rule.text, []).append(self.alternatives())
        if "root" not in rules:
            raise ConstraintError("ebnf: there is no rule `root`, where an answer begins")
        for name, at in self.named.items():
            if name not in rules:
                raise self.wrong(at, f"rule {name!r} is not defined; it is named")
        return Grammar(Ref("root"), {name: one_of(bodies) for name, bodies in rules.items()})

    @property
    def peek(self) -> _Token:
        return self.tokens[self.next]

    def take(self) -> _Token:
        self.next += 1
        return self.tokens[self.next - 1]

    def alternatives(self) -> Node:
        arms = [self.sequence()]
        while self.peek.text == "|":
            self.take()
            arms.append(self.sequence())
        return one_of(arms)

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.peek.kind not in ("rule", "end") and self.peek.text not in ("|", ")"):
            parts.append(self.repeated(self.element()))
        if not parts:
            raise self.wrong(self.peek.at, 'something should stand here; write "" for the empty text')
        return seq(*parts)

    def element(self) -> Node:
        token = self.take()
        if token.kind == "name":
            self.named.setdefault(token.text, token.at)
            return Ref(token.text)
        if token.kind == "string":
            literal = "".join(map(chr, self.codes(token.text[1:-1], token.at + 1)))
            return text(literal) if literal else EMPTY
        if token.kind == "chars":
            return self.char_class(token)
        if token.text == "(":
            inner = self.alternatives()
            if self.peek.text != ")":
                raise self.wrong(self.peek.at, f"the group of column {token.at - self.source.rfind(chr(10), 0, token.at)} is not closed")
            self.take()
            return inner
        if token.kind == "look":
            raise self.wrong(token.at, "look-ahead (= …) cannot be used; leave it out")
        raise self.wrong(token.at, f"{token.text} has nothing in front of it")

    def repeated(self, body: Node) -> Node:
        while self.peek.text in ("*", "+", "?") or self.peek.kind == "count":
            token = self.take()
            if token.kind != "count":
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[token.text]
            else:
                first, comma, last = token.text[1:-1].partition(",")
                low = int(first) if first.strip() else 0
                high = low if not comma else int(last) if last.strip() else None
                if max(low, high or 0) > MAX_REPEAT:
                    raise self.wrong(token.at, f"a repeat of more than {MAX_REPEAT} cannot be used")
                if high is not None and high < low:
                    raise self.wrong(token.at, f"{token.text} ends before it begins")
            body = repeat(body, low, high) if body != EMPTY else EMPTY
        return body

    def codes(self, spelled: str, at: int) -> list[int]:
        """Return the code points between quotes or brackets."""
        found: list[int] = []
        place = 0
        while place < len(spelled):
            match = _ESCAPE.match(spelled, place)
            if match is None:
                found.append(ord(spelled[place]))
                place += 1
                continue
            code = next((int(digits, 16) for digits in match.groups()[:3] if digits), None)
            found.append(code if code is not None else ord(_PLAIN.get(match[4], match[4])))
            place = match.end()
        if any(code > charset.MAX_CHAR or charset.SURROGATES[0] <= code <= charset.SURROGATES[1] for code in found):
            raise self.wrong(at, "an escape stands for no character")
        return found

    def char_class(self, token: _Token) -> Node:
        inner = token.text[1:-1]
        negated = inner.startswith("^")
        ranges: list[tuple[int, int]] = []
        units = [m[0] for m in _UNIT.finditer(inner[negated:])]
        at = 0
        while at < len(units):
            [low] = self.codes(units[at], token.at)
            if at + 2 < len(units) and units[at + 1] == "-":
                [high] = self.codes(units[at + 2], token.at)
                if high < low:
                    raise self.wrong(token.at, f"the range {units[at]}-{units[at + 2]} ends before it begins")
                at += 3
            else:
                high, at = low, at + 1
            ranges.append((low, high))
        found = charset.merged(ranges)
        kept = charset.without_surrogates(charset.complement(found) if negated else found)
        return Chars(kept) if kept else NOTHING
