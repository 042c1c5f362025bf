"""Structural tags, in xgrammar's notation: free text in which some tags open constrained parts, such as tool calls. As
`Grammar`s.

Schemas and regular expressions within have their usual meaning in lmc.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmc.errors import ConstraintError
from lmc.fsm import charset
from lmc.fsm.algebra import both
from lmc.fsm.bounds import TooLarge
from lmc.fsm.ebnf_grammar import compile_ebnf
from lmc.fsm.grammar import Grammar
from lmc.fsm.json_layout import one_line
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.json_text import ANY_TEXT
from lmc.fsm.nodes import ANY, EMPTY, Chars, Node, NodeGraph, Ref, one_of, parts_of, rebuilt, repeat, seq, text
from lmc.fsm.regex import MAX_REPEAT, parse

_FIELDS: Mapping[str, frozenset[str]] = {
    kind: frozenset(fields.split())
    for kind, fields in {
        "const_string": "value",
        "any_text": "excludes max_chars",
        "json_schema": "json_schema style",
        "regex": "pattern",
        "grammar": "grammar",
        "sequence": "elements",
        "or": "elements",
        "optional": "content",
        "plus": "content",
        "star": "content",
        "repeat": "content min max",
        "tag": "begin content end",
        "triggered_tags": "triggers tags at_least_one stop_after_first excludes",
        "tags_with_separator": "tags separator at_least_one stop_after_first",
    }.items()
}


def compile_structural_tag(source: str) -> Grammar:
    """Compile a tag to a grammar. Raises ConstraintError, with the JSON pointer, for a tag that is invalid or cannot be
    enforced.

    Takes `{"type": "structural_tag", "format": …}`, and the older `{"structures": […], "triggers": […]}`.
    """
    try:
        tag = json.loads(source)
    except json.JSONDecodeError as e:
        raise ConstraintError(f"structural_tag is not JSON: {e.msg} at line {e.lineno}, column {e.colno}") from None
    except RecursionError:
        raise ConstraintError("structural_tag is nested too deep") from None
    except ValueError as e:  # a number of too many digits
        raise ConstraintError(f"structural_tag cannot be read: {e}") from None
    reader = _FormatReader()
    try:
        return Grammar(reader.format(*_format_of(tag), ()), reader.rules)
    except RecursionError:
        raise ConstraintError("structural_tag is nested too deep") from None


def _format_of(tag: Any) -> tuple[Any, str]:
    if isinstance(tag, dict) and set(tag) - {"type"} == {"structures", "triggers"} and isinstance(tag["structures"], list):
        return _modern(tag), ""
    if not isinstance(tag, dict) or tag.get("type") != "structural_tag" or set(tag) != {"type", "format"}:
        raise _wrong("", 'must be {"type": "structural_tag", "format": …}, or {"structures": […], "triggers": […]}')
    return tag["format"], "/format"


def _modern(tag: dict[str, Any]) -> dict[str, Any]:
    tags: list[dict[str, Any]] = []
    for i, item in enumerate(tag["structures"]):
        if not isinstance(item, dict) or set(item) != {"begin", "schema", "end"}:
            raise _wrong(f"/structures/{i}", "must have begin, schema and end")
        tags.append({"type": "tag", "begin": item["begin"], "end": item["end"],
                     "content": {"type": "json_schema", "json_schema": item["schema"]}})  # fmt: skip
    return {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}


class _FormatReader:
    """Reads formats; `rules` are those of the schemas and grammars within. `ends`: free text stops at the first of
    these, where an enclosing tag ends."""

    def __init__(self) -> None:
        self.rules: dict[str, Node] = {}
        self._embedded = 0

    def format(self, given: Any, at: str, ends: Sequence[str]) -> Node:
        if not isinstance(given, dict):
            raise _wrong(at, "must be a format, an object with a type")
        kind = given.get("type", "tag" if "begin" in given else None)
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise _wrong(at, f"has the type {kind!r}, which cannot be enforced; there are {', '.join(_FIELDS)}")
        _check_fields(given, kind, at)
        return _READERS[kind](self, given, at, ends)

    def formats(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> list[Node]:
        return [self.format(part, f"{at}/elements/{i}", ends) for i, part in enumerate(_some(given, "elements", at))]

    def content(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        return self.format(given.get("content"), f"{at}/content", ends)

    def embedded(self, grammar: Grammar) -> Node:
        """Return the start of a grammar whose rules become ours, under names of their own."""
        self._embedded += 1
        prefix = f"{self._embedded}:"
        self.rules.update({prefix + name: _renamed(body, prefix) for name, body in grammar.rules.items()})
        return _renamed(grammar.start, prefix)

    def const_string(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        return _literal(given.get("value"), f"{at}/value")

    def any_text(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        excluded = _strings(given.get("excludes", []), f"{at}/excludes")
        most = given.get("max_chars")
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 0):
            raise _wrong(f"{at}/max_chars", "must be a whole number")
        words = [*excluded, *ends]
        if most is None:
            return free_text(words)
        short = repeat(ANY, 0, most)
        try:
            return both(free_text(words), short) if words else short
        except TooLarge:
            raise _wrong(f"{at}/max_chars", "beside excludes needs too large an automaton; use a smaller number") from None

    def json_schema(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        if given.get("style", "json") != "json":
            raise _wrong(f"{at}/style", f"is {given['style']!r}; only json can be enforced")
        return self._within(f"{at}/json_schema", lambda: compile_schema(one_line(json.dumps(given.get("json_schema"))))[0])

    def regex(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        pattern = given.get("pattern", "")
        if not isinstance(pattern, str):
            raise _wrong(f"{at}/pattern", "must be a regular expression")
        return self._within(f"{at}/pattern", lambda: Grammar(parse(pattern)))

    def grammar(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        source = given.get("grammar")
        if not isinstance(source, str):
            raise _wrong(f"{at}/grammar", "must be a grammar in EBNF")
        return self._within(f"{at}/grammar", lambda: compile_ebnf(source))

    def _within(self, at: str, read: Callable[[], Grammar]) -> Node:
        try:
            return self.embedded(read())
        except ConstraintError as error:
            raise _wrong(at, f"cannot be enforced: {error.message}") from None

    def repeat(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        low, high = given.get("min", 0), given.get("max")
        if not isinstance(low, int) or not 0 <= low <= MAX_REPEAT or not (high is None or high == -1 or (isinstance(high, int) and low <= high <= MAX_REPEAT)):
            raise _wrong(at, f"takes min and max, whole numbers up to {MAX_REPEAT}; max may be -1")
        return repeat(self.content(given, at, ends), low, None if high == -1 else high)

    def tag(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        return seq(_literal(given.get("begin"), f"{at}/begin"), self.behind(given, at, ends))

    def behind(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        """Return a tag without its beginning."""
        own = given.get("end", "")
        own = _strings(own if isinstance(own, list) else [own], f"{at}/end")
        last = one_of([text(end) if end else EMPTY for end in own])
        return seq(self.content(given, at, [*ends, *filter(None, own)]), last)

    def tags_of(self, given: Mapping[str, Any], at: str) -> list[tuple[str, Mapping[str, Any], str]]:
        found: list[tuple[str, Mapping[str, Any], str]] = []
        for i, tag in enumerate(_some(given, "tags", at)):
            place = f"{at}/tags/{i}"
            if not isinstance(tag, dict) or tag.get("type", "tag") != "tag":
                raise _wrong(place, "must be a tag")
            _check_fields(tag, "tag", place)
            if not isinstance(tag.get("begin"), str) or not tag["begin"]:
                raise _wrong(f"{place}/begin", "must be a string that is not empty")
            found.append((tag["begin"], tag, place))
        return found

    def triggered_tags(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        triggers = _strings(given.get("triggers"), f"{at}/triggers")
        tags = self.tags_of(given, at)
        opened: dict[str, list[Node]] = {trigger: [] for trigger in triggers}
        for begin, tag, place in tags:
            fitting = [trigger for trigger in triggers if begin.startswith(trigger)]
            if not fitting:
                raise _wrong(f"{place}/begin", f"is {begin!r}, which begins with none of the triggers")
            first = min(fitting, key=len)  # the one that matches first
            rest = begin[len(first) :]
            opened[first].append(seq(text(rest) if rest else EMPTY, self.behind(tag, place, ends)))
        whole = one_of([seq(text(begin), self.behind(tag, place, ends)) for begin, tag, place in tags])
        once = given.get("stop_after_first", False) is True
        if once and given.get("at_least_one", False) is True:
            return whole
        excluded = [*_strings(given.get("excludes", []), f"{at}/excludes"), *ends]
        free = free_text(excluded, {trigger: one_of(bodies) for trigger, bodies in opened.items()}, once=once)
        return seq(whole, free) if given.get("at_least_one", False) is True else free

    def tags_with_separator(self, given: Mapping[str, Any], at: str, ends: Sequence[str]) -> Node:
        tag = one_of([seq(text(begin), self.behind(tag, place, ends)) for begin, tag, place in self.tags_of(given, at)])
        separator = _literal(given.get("separator", ""), f"{at}/separator")
        more = EMPTY if given.get("stop_after_first", False) is True else repeat(seq(separator, tag), 0, None)
        some = seq(tag, more)
        return some if given.get("at_least_one", False) is True else repeat(some, 0, 1)


_READERS: Mapping[str, Callable[[_FormatReader, Mapping[str, Any], str, Sequence[str]], Node]] = {
    "sequence": lambda self, given, at, ends: seq(*self.formats(given, at, ends)),
    "or": lambda self, given, at, ends: one_of(self.formats(given, at, ends)),
    "optional": lambda self, given, at, ends: repeat(self.content(given, at, ends), 0, 1),
    "plus": lambda self, given, at, ends: repeat(self.content(given, at, ends), 1, None),
    "star": lambda self, given, at, ends: repeat(self.content(given, at, ends), 0, None),
    **{kind: getattr(_FormatReader, kind) for kind in _FIELDS if hasattr(_FormatReader, kind)},
}


def free_text(excluded: Sequence[str], opened: Mapping[str, Node] | None = None, *, once: bool = False) -> Node:
    """Return any text without the excluded ones in it. The first of `opened` in it is followed by the content it opens,
    and then by free text again unless `once`. (An automaton after Aho and Corasick: its states are the read prefix of a
    word.)"""
    opened = opened or {}
    words = [*excluded, *opened]
    if not words:
        return ANY_TEXT
    states = list(dict.fromkeys([""] + [word[:n] for word in words for n in range(1, len(word))]))
    numbers = {state: i for i, state in enumerate(states)}
    letters = sorted({c for word in words for c in word})
    others = Chars(charset.without_surrogates(charset.complement([(ord(c), ord(c)) for c in letters])))
    end = len(states)
    edges: list[tuple[int, Node, int]] = []
    for state, number in numbers.items():
        edges.append((number, others, 0))
        for c in letters:
            read = state + c
            if any(read.endswith(word) for word in excluded):
                continue
            met = [word for word in opened if read.endswith(word)]
            if met:
                edges.append((number, seq(text(c), opened[max(met, key=len)]), end if once else 0))
            else:
                longest = next(read[i:] for i in range(len(read) + 1) if read[i:] in numbers)
                edges.append((number, text(c), numbers[longest]))
    return NodeGraph(tuple(edges), frozenset(range(end + once)))


def _renamed(node: Node, prefix: str) -> Node:
    """Return it with other names of the rules."""
    if isinstance(node, Ref):
        return Ref(prefix + node.rule)
    return rebuilt(node, [_renamed(part, prefix) for part in parts_of(node)])


def _check_fields(given: Mapping[str, Any], kind: str, at: str) -> None:
    if unknown := set(given) - _FIELDS[kind] - {"type"}:
        raise _wrong(at, f"has {min(unknown)!r}, which cannot be enforced in a {kind}")


def _some(given: Mapping[str, Any], field: str, at: str) -> list[Any]:
    found = given.get(field)
    if not isinstance(found, list) or not found:
        raise _wrong(f"{at}/{field}", "must be a list that is not empty")
    return found


def _literal(value: Any, at: str) -> Node:
    if not isinstance(value, str):
        raise _wrong(at, "must be a string")
    return text(value) if value else EMPTY


def _strings(value: Any, at: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise _wrong(at, "must be a list of strings")
    return value


def _wrong(pointer: str, what: str) -> ConstraintError:
    return ConstraintError(f"structural_tag: {pointer or '/'} {what}")
