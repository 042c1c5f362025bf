"""Verification of answers against constraints that their server does not enforce, or may have ignored, and the schemas by which it can enforce some of
them, too: lists of texts and types of numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from lmc import json_data
from lmc.config import log
from lmc.constraints import REGEX_FLOAT, REGEX_INT
from lmc.errors import ConstraintError
from lmc.fsm.bounds import check_source
from lmc.fsm.json_schema import checker_of
from lmc.fsm.recognise import allows, begins, longest
from lmc.fsm.regex import parse
from lmc.fsm.sources import machine_of
from lmc.reasoning import content_start
from lmc.segments import Constraint

VERIFIABLE = frozenset({"regex", "json_schema"})


@lru_cache(maxsize=256)
def check(constraint: Constraint) -> None:
    """Raise ConstraintError for a constraint that is invalid or cannot be verified, before a server is asked."""
    if constraint.kind == "json_schema":
        machine_of("json_schema", constraint.source)
    else:  # without building its automaton
        check_source("regex", constraint.source)
        parse(constraint.source)


def matching(constraint: Constraint, text: str) -> str | None:
    """Return the answer itself, or without surrounding white space, or the longest prefix that satisfies the
    constraint, also of its content behind a model's reasoning.

    None if there is none. An answer ends neither within a word nor within a number: 1,000 does not begin with 1.
    """
    if constraint.kind == "json_schema":
        return _json(constraint.source, text)
    content = text[content_start(text) :].lstrip()
    for candidate in (text, text.strip(), content.rstrip()):
        if allows("regex", constraint.source, candidate):
            return candidate
    for begun in dict.fromkeys((content, text.lstrip())):
        if end := longest("regex", constraint.source, begun, lambda at, begun=begun: _WITHIN.match(begun, at) is None):
            return begun[:end]
    return None


def keeps(constraint: Constraint, text: str, *, cut: bool, shown: bool) -> bool:
    """Return whether an answer that its server should have kept within a constraint, or its content behind a model's reasoning, is what the constraint
    allows: JSON by its meaning, however it is laid out. `cut`: a stop may have ended it early, so it is enough that it begins so. `shown`: as a stream,
    so that the white space around it stays, as that behind reasoning does.

    Servers take some constraints that lmc cannot read, and grammars in dialects of their own: those answers are taken as they are.
    """
    kind, source = constraint.kind, constraint.source
    if kind not in VERIFIABLE:
        return True
    try:
        start = content_start(text)
        content = text[start:]
        for said in {text, content, content.strip() if start or shown else content}:
            if kind == "json_schema":
                if checker_of(source).wrong(said) is None or (cut and said.lstrip().startswith(_OPENING)):
                    return True
            elif any((begins if cut else allows)(kind, each, said) for each in _readings(source, said)):
                return True
    except ConstraintError as error:
        log("backend", f"an answer is taken as the server gave it: {error.message}")
        return True
    return False


_OPENING = ("{", "[", '"')


def _readings(regex: str, text: str) -> list[str]:
    """Return a regex, and the same as other servers read it, where it makes a difference: with dots for newlines, too, and with Unicode's classes."""
    flags = ["", "s"] if "\n" in text else [""]
    flags += [] if text.isascii() or "(?a" in regex else [f"{flag}u" for flag in flags]
    return [f"(?{flag}){regex}" if flag else regex for flag in flags]


_WITHIN = re.compile(r"\w|(?<=\d)[.,]\d", re.ASCII)


@lru_cache(maxsize=256)
def as_schema(constraint: Constraint) -> Constraint | None:
    """Return the closed schema of an object whose property "answer" is what a regex allows; None for a regex that
    neither lists texts (a Literal, an Enum, a bool) nor is that of a type of numbers."""
    if constraint.kind != "regex":
        return None
    number, texts = _NUMBERS.get(constraint.source), _listed(constraint.source)
    if number is None and not 0 < len(texts) <= _MOST_TEXTS:
        return None
    answer = {"type": number} if number else {"type": "string", "enum": texts}
    schema = {"type": "object", "properties": {"answer": answer}, "required": ["answer"], "additionalProperties": False}
    return Constraint("json_schema", json.dumps(schema, ensure_ascii=False))


_NUMBERS: Mapping[str, str] = {REGEX_INT: "integer", REGEX_FLOAT: "number"}
_MOST_TEXTS = 250  # OpenAI limits the size of longer enums
_LIST = re.compile(r"(\((?:\?:)?)?((?:[^\\.^$*+?{}\[\]()]|\\\W)+)(?(1)\))", re.DOTALL)


def _listed(regex: str) -> list[str]:
    """Return the texts of a regex such as (yes|no|don\\'t know), each once; [] for any other regex."""
    texts = [""]
    for part in re.findall(r"\\.|[^\\]", found[2], re.DOTALL) if (found := _LIST.fullmatch(regex)) else ():
        if part == "|":
            texts.append("")
        else:
            texts[-1] += part[-1]
    return list(dict.fromkeys(texts)) if found else []


def answer_in(constraint: Constraint, text: str) -> str:
    """Return the answer in an object of the form of `as_schema`, a number without an exponent, and an integer without a fraction (5.0); any other text
    as it is."""
    try:
        value: Any = json_data.loads(text, parse_float=Decimal)["answer"]
    except (ValueError, TypeError, KeyError):
        return text
    if not isinstance(value, Decimal):
        return str(value)
    if abs(value.adjusted()) >= _MOST_DIGITS:
        return text
    return str(int(value)) if constraint.source == REGEX_INT and value == int(value) else format(value, "f")


_MOST_DIGITS = 400  # of a number: more than a float has


def _json(schema: str, text: str) -> str | None:
    """Return the first JSON value of a text, or of its content behind a model's reasoning, as it is written there, if the schema allows it."""
    content = content_start(text)
    for start in dict.fromkeys((content, min((i for i in (text.find(c, content) for c in "{[") if i >= 0), default=0), 0)):
        start += len(text[start:]) - len(text[start:].lstrip())
        try:
            _, end = json.JSONDecoder().raw_decode(text, start)
            if checker_of(schema).wrong(text[start:end]) is None:
                return text[start:end]
        except (ValueError, RecursionError):  # the second: nested too deeply
            continue
    return None
