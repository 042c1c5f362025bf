"""Expressions: what a program can append to a state, as data that know where in the user's program they were written; `s += expr` submits one."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import islice
from types import CodeType
from typing import TYPE_CHECKING, Any, Never

from lmc.code_origin import LMC
from lmc.errors import ArgumentError, AttributeMissing, Loc, ParameterError, ProgramError
from lmc.frontend.values import Symbolic
from lmc.reasoning import ReasoningFormat
from lmc.segments import ChoicesMethod, SamplingParams
from lmc.tracebacks import place, users_frames

_not_the_users = (LMC, contextlib.__file__, copy.__file__)  # managers of lmc are entered, and its objects are copied, from there
_locs: dict[tuple[int, int], tuple[CodeType, Loc]] = {}  # the code object is kept so that its id stays its own
_LOCS_LIMIT = 10_000


def pass_over(*packages: str) -> None:
    """Let messages name the line that called these packages, which call lmc for the user, also from threads of pools, where no line did. `packages`: their
    names, beside the first one's folder."""
    from concurrent.futures import thread

    global _not_the_users
    beside = os.path.dirname(os.path.dirname(os.path.abspath(sys.modules[packages[0]].__file__ or "")))
    _not_the_users = (*_not_the_users, *(os.path.join(beside, package) for package in packages), thread.__file__, threading.__file__)


def caller_loc() -> Loc | None:
    """Return the innermost location outside of lmc on the stack: the user's line and column."""
    evaluated = place.get()
    if evaluated is not None:
        return evaluated()
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(_not_the_users):
        frame = frame.f_back
    if frame is None:
        return None
    code, at = frame.f_code, frame.f_lasti
    known = _locs.get((id(code), at))
    if known is None:
        if len(_locs) >= _LOCS_LIMIT:
            _locs.clear()
        known = _locs[id(code), at] = (code, _locate(code, at, frame.f_lineno))
    return known[1]


def _locate(code: CodeType, at: int, line: int | None) -> Loc:
    start, _, col, _ = next(islice(code.co_positions(), at // 2, None), (line, 0, 0, 0))
    return Loc(code.co_filename, start or line or 0, col or 0)


_NO_ANSWER = 'an expression is no answer: append it (s += …), which asks the model, then read s["name"]'

# -- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """Something that can be appended to a state. `str + expr`, `expr + str` and `expr + expr` concatenate."""

    def __add__(self, other: Expr | str | Symbolic) -> Seq:
        return Seq(items_of(self) + items_of(other))

    def __radd__(self, other: str | Symbolic) -> Seq:
        return Seq(items_of(other) + items_of(self))

    def __format__(self, spec: str) -> str:
        """Raise: an f-string would make a prompt of its repr."""
        raise ArgumentError('an expression is not text and cannot be put into an f-string; concatenate it: "…" + lmc.gen(…)', loc=caller_loc())

    def __str__(self) -> str:
        """Raise: `str(expr)` and `"%s" % expr` would make a prompt of its repr."""
        raise ArgumentError(
            'an expression is not text, and str() cannot make it one; concatenate it: "…" + lmc.gen(…); repr(…) shows what it is', loc=caller_loc()
        )

    def __eq__(self, other: object) -> bool:
        """Return whether both make the same request. The answer is not known yet: comparing with text or a number is a
        mistake, and never true."""
        if isinstance(other, (str, bytes, int, float)):
            raise ArgumentError(
                f"{_NO_ANSWER}; it equals no text and no number",
                loc=caller_loc(),
            )
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in fields(self) if f.compare)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, f.name) for f in fields(self) if (f.compare if f.hash is None else f.hash))))

    @users_frames
    def _is_no_answer(self, *_: object) -> Never:
        raise ArgumentError(f"{_NO_ANSWER}; it has no items and no order", loc=caller_loc())

    @users_frames
    def _is_no_block(self) -> Never:
        raise ArgumentError("an expression is no block: a message around one is written `with s.user():`", loc=caller_loc())

    if not TYPE_CHECKING:  # a type checker knows which attributes exist
        __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _is_no_answer
        __enter__ = __exit__ = _is_no_block

        @users_frames
        def __getattr__(self, name: str) -> Any:
            raise AttributeMissing(f"{_NO_ANSWER}; it has no attribute {name!r}", loc=caller_loc())


class _Asks:
    """An expression that is one request: as a condition it would always be true, whatever the answer."""

    __slots__ = ()

    def __bool__(self) -> Never:
        raise ArgumentError(f"{_NO_ANSWER}; it is neither true nor false (whether there is one: `is not None`)", loc=caller_loc())


@dataclass(frozen=True, slots=True, eq=False)
class Seq(Expr):
    """Expressions one after another; never nested."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lit(Expr):
    """Plain text: a special token's spelling in it stays ordinary text."""

    text: str | Symbolic


@dataclass(frozen=True, slots=True, eq=False)
class SpecialExpr(Expr):
    """A special token of the model by its spelling."""

    spelling: str


@dataclass(frozen=True, slots=True, eq=False)
class GenExpr(_Asks, Expr):
    """Sample an answer. `given` holds only the arguments that the user gave, by their names in the language.

    Lists and dicts among them are copied at construction: later changes to them have no effect.
    """

    name: str | None
    given: Mapping[str, Any] = field(hash=False)
    loc: Loc | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SelectExpr(_Asks, Expr):
    """Choose one of several continuations."""

    name: str | None
    choices: tuple[str | Symbolic, ...]
    temperature: float | Symbolic = 0.0
    choices_method: ChoicesMethod | Symbolic = ChoicesMethod.TOKEN_LENGTH_NORMALIZED
    loc: Loc | None = field(default=None, compare=False, repr=False)
    adapter: str | Symbolic | None = None  # None: the run's


@dataclass(frozen=True, slots=True, eq=False)
class RoleBegin(Expr):
    """Opens a message of a role."""

    role: str
    loc: Loc | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class RoleEnd(Expr):
    """Closes the open message, which must be of this role."""

    role: str
    loc: Loc | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class ImageExpr(Expr):
    """An image, as given by the user."""

    source: Any
    detail: str = "auto"
    loc: Loc | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class VideoExpr(Expr):
    """A video, as given by the user."""

    source: Any
    num_frames: int | Symbolic | None = None
    fps: float | Symbolic | None = None
    loc: Loc | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class VarScopeBegin(Expr):
    """From here on text belongs to the variable `name`."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class VarScopeEnd(Expr):
    """The variable `name` is the text since its begin."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class ReasoningExpr(Expr):
    """An expression whose answers are split into reasoning and content, by the model family's format."""

    expr: Expr
    format: ReasoningFormat
    loc: Loc | None = field(default=None, compare=False, repr=False)


class _Omitted:
    def __repr__(self) -> str:
        return "omitted"


OMITTED: Any = _Omitted()
"""Default of a message's content: None is one that was forgotten, or an empty field of a table."""


def as_expr(x: object, what: str = "concatenate") -> Expr:
    """Return a str, Symbolic or expression as an expression; None raises ValueError, anything else TypeError."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, (str, Symbolic)):
        return Lit(x)
    raise _refusal(x, what)


def items_of(x: object) -> tuple[Expr, ...]:
    x = as_expr(x)
    return x.items if isinstance(x, Seq) else (x,)


def _refusal(x: object, what: str) -> ProgramError:
    if x is None:
        return ParameterError(f"cannot {what} None; did a function forget to return its expression, or is a field empty?", loc=caller_loc())
    first = x[0] if isinstance(x, list) and x else x
    if isinstance(first, Mapping) and "content" in first:
        found = '; append the content of each message in its role: lmc.user(m["content"])'
    else:
        found = next((remedy for kind, remedy in _REMEDIES.items() if kind in [k.__name__ for k in type(x).__mro__]), "")
    return ArgumentError(f"cannot {what} {an(type(x).__name__)}, only text and expressions{found}", loc=caller_loc())


_REMEDIES: Mapping[str, str] = {
    "list": '; join it first: "\\n".join(items)',
    **dict.fromkeys(("int", "float", "number", "Decimal", "PurePath"), "; write str(x)"),  # `number` is numpy's
    "bytes": "; decode it first: x.decode()",
    "Template": '; make it text: f"…" in place of t"…", or its substitute(…) or render(…)',
    "function": "; call it",
    "_GeneratorContextManager": "; it is for a block: with s.copy() as f: …, with s.user(): …; a fork for later lines is (f,) = s.fork(1)",
    "coroutine": "; await it, in an `async def` program",
    "Function": '; call it, and append its answer: child(…)["name"]',
    "State": '; to append to it write s += …; its text is other.text() or other["name"]',
    "StateGroup": '; append their answers: "\\n".join(f["name"] for f in forks)',
}
"""Hints at correct code in place of appending an object, by the name of its type."""


def an(name: str) -> str:
    """Return a name with its article: `a State`, `an int`, `a user`."""
    return f"an {name}" if name[0].lower() in "aeio" else f"a {name}"


def typed(given: Mapping[str, Any]) -> Any:
    """Return the type or schema that a gen's arguments give its answer; None if none."""
    dtype = given.get("dtype")
    return given.get("json_schema") if dtype is None else dtype


def adapter_of(expr: SelectExpr, defaults: SamplingParams) -> Any:
    """Return the adapter that a select is asked with."""
    return defaults.adapter if expr.adapter is None else expr.adapter
