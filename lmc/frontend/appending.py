"""Appending to a prompt: a rule for each kind of expression, which writes to the emitter and holds the answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from lmc.errors import ArgumentError, LmcError, ProgramError
from lmc.frontend.emitter import Answer, Ctx, Emitter, Scoped, Taken
from lmc.frontend.expressions import (
    Expr,
    GenExpr,
    ImageExpr,
    Lit,
    ReasoningExpr,
    RoleBegin,
    RoleEnd,
    SelectExpr,
    Seq,
    SpecialExpr,
    VarScopeBegin,
    VarScopeEnd,
    VideoExpr,
    an,
    caller_loc,
    typed,
)
from lmc.frontend.values import Symbolic
from lmc.reasoning import ReasoningFormat, reasoning_name
from lmc.segments import Special

V = TypeVar("V")
Name = TypeVar("Name")


class GrowingPrompt(Protocol):
    """A prompt under construction, with its variables: a `State`."""

    emitter: Emitter
    ctx: Ctx
    stream: str
    ordinal: int
    role: str | None
    previous: str | None
    variables: dict[str | None, Any]
    asked: list[Any]
    types: Mapping[str | None, Any]
    scopes: Mapping[str, tuple[Scoped, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class AppendedState(Expr):
    """Result of `s.user(expr)`: already part of `state`, so that `s += s.user(expr)` does not append it twice."""

    expr: Expr
    state: object

    def __enter__(self) -> None:
        raise ArgumentError("a message that is given its content is complete; for a block, write `with s.user():`", loc=caller_loc())

    def __exit__(self, *_: object) -> None: ...


def append(s: GrowingPrompt, expr: Expr) -> None:
    """Append an expression to a prompt. Raises ArgumentError for what is none, ProgramError for what may not come here."""
    try:
        rule = _RULES[expr.__class__]
    except KeyError:
        raise ArgumentError(f"no rule to append {type(expr).__name__}", loc=caller_loc()) from None
    rule(s, expr)


def _seq(s: GrowingPrompt, expr: Seq) -> None:
    for item in expr.items:
        _RULES[item.__class__](s, item)


def _lit(s: GrowingPrompt, expr: Lit) -> None:
    text = expr.text
    if isinstance(text, Symbolic):
        s.ctx = s.emitter.append(s.ctx, text)
    elif text:
        s.ctx = s.emitter.append(s.ctx, text if text.__class__ is str else str.__str__(text))


def _special(s: GrowingPrompt, expr: SpecialExpr) -> None:
    s.ctx = s.emitter.append(s.ctx, Special(expr.spelling))


def _gen(s: GrowingPrompt, expr: GenExpr) -> None:
    limit = expr.given.get("max_tokens")
    if limit.__class__ is int and limit == 0 and expr.given.get("top_logprobs_num") is not None:
        return _candidates(s, expr)
    s.ctx, answer = s.emitter.gen(s.ctx, expr, s.stream, s.ordinal)
    _hold(s, expr.name, answer, asked=typed(expr.given))


def _candidates(s: GrowingPrompt, expr: GenExpr) -> None:
    """Append no text, but store the candidates for the next token: one token is requested, which the prompt does not
    get."""
    _, answer = s.emitter.gen(s.ctx, replace(expr, given={**expr.given, "max_tokens": 1}), s.stream, s.ordinal)
    _hold(s, expr.name, answer, Taken(answer, _no_text))


def without(held: Mapping[Name, V], name: Name) -> Mapping[Name, V]:
    """Return a mapping without a name; the same one if it does not have it."""
    return {other: x for other, x in held.items() if other != name} if name in held else held


def _no_text(_: str) -> str:
    return ""


def _select(s: GrowingPrompt, expr: SelectExpr) -> None:
    s.ctx, answer = s.emitter.select(s.ctx, expr, s.stream, s.ordinal)
    _hold(s, expr.name, answer)


def _hold(s: GrowingPrompt, name: str | None, answer: Answer, held: Taken | None = None, asked: Any = None) -> None:
    s.ordinal += 1
    s.asked.append(answer)
    if isinstance(name, Symbolic):  # it may be the name of any variable before it
        s.variables.pop(name, None)
    s.variables[name] = answer if held is None else held
    if asked is not None:
        s.types = {**s.types, name: asked}
    else:
        s.types = without(s.types, name)


def _image(s: GrowingPrompt, expr: ImageExpr) -> None:
    with _at(expr):
        s.ctx = s.emitter.image(s.ctx, expr.source, expr.detail, expr.loc)


def _video(s: GrowingPrompt, expr: VideoExpr) -> None:
    with _at(expr):
        s.ctx = s.emitter.video(s.ctx, expr.source, expr.num_frames, expr.fps, expr.loc)


def _role_begin(s: GrowingPrompt, expr: RoleBegin) -> None:
    if s.role is not None:
        raise ProgramError(f"cannot open {an(expr.role)} message inside the open {s.role} message; close that one first", loc=expr.loc)
    try:
        s.ctx = s.emitter.role_begin(s.ctx, expr.role, s.previous)
    except LmcError as error:  # the template has no such role, or not here
        error.loc = error.loc or expr.loc
        raise
    s.role = expr.role


def _role_end(s: GrowingPrompt, expr: RoleEnd) -> None:
    if s.role != expr.role:
        open_ = f"the open message is the {s.role}'s" if s.role else "no message is open"
        raise ProgramError(f"cannot close {an(expr.role)} message: {open_}", loc=expr.loc)
    s.ctx = s.emitter.role_end(s.ctx, expr.role)
    s.role, s.previous = None, expr.role


def _scope_begin(s: GrowingPrompt, expr: VarScopeBegin) -> None:
    s.scopes = {**s.scopes, expr.name: (*s.scopes.get(expr.name, ()), Scoped(s.ctx))}


def _scope_end(s: GrowingPrompt, expr: VarScopeEnd) -> None:
    if expr.name not in s.scopes:
        raise ProgramError(f"cannot close the scope {expr.name!r}: it is not open", loc=caller_loc())
    *outer, scope = s.scopes[expr.name]
    s.scopes = {**s.scopes, expr.name: tuple(outer)} if outer else without(s.scopes, expr.name)
    scope.until = s.ctx
    s.variables[expr.name] = scope


def _reasoning(s: GrowingPrompt, expr: ReasoningExpr) -> None:
    for item in expr.expr.items if isinstance(expr.expr, Seq) else (expr.expr,):
        if isinstance(item, GenExpr):
            _separated(s, item.name, s.emitter.gen(s.ctx, item, s.stream, s.ordinal), expr.format)
        elif isinstance(item, SelectExpr):
            _separated(s, item.name, s.emitter.select(s.ctx, item, s.stream, s.ordinal), expr.format)
        else:
            append(s, item)


def _separated(s: GrowingPrompt, name: str | None, asked: tuple[Ctx, Answer], format: ReasoningFormat) -> None:
    after, answer = asked
    s.ctx = s.emitter.separate_reasoning(s.ctx, after, format.content)
    _hold(s, name, answer, Taken(answer, format.content))
    if isinstance(name, str):
        s.variables[reasoning_name(name)] = Taken(answer, format.reasoning)


def _submitted(s: GrowingPrompt, expr: AppendedState) -> None:
    if expr.state is not s:
        append(s, expr.expr)


@contextmanager
def _at(expr: Any) -> Generator[None]:
    """Give errors raised inside the location of `expr` unless they have a better one."""
    try:
        yield
    except LmcError as error:
        error.loc = error.loc or expr.loc
        raise


_RULES: Mapping[type, Callable[[GrowingPrompt, Any], None]] = {
    Seq: _seq,
    Lit: _lit,
    SpecialExpr: _special,
    GenExpr: _gen,
    SelectExpr: _select,
    ImageExpr: _image,
    VideoExpr: _video,
    RoleBegin: _role_begin,
    RoleEnd: _role_end,
    VarScopeBegin: _scope_begin,
    VarScopeEnd: _scope_end,
    ReasoningExpr: _reasoning,
    AppendedState: _submitted,
}
