"""Tracebacks of errors: only the user's frames. lmc's are left out of errors from a public call, unless LMC_DEBUG is
set.

    before  your line ─► lmc … ─► your program ─► lmc … (raised)        after  your line ─► your program

Notes add what the message lacks: the item of a batch, and that an answer is text. An error that never passed through
the user's code and is not one of lmc's own types is a bug in lmc: its traceback is left as it is. Ctrl-C is none, and neither is a cancellation.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import inspect
import linecache
import re
import reprlib
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Never, ParamSpec, TypeVar, cast

from lmc.code_origin import LMC, is_pythons, is_users
from lmc.config import settings
from lmc.errors import LmcError, Loc, message_of

P = ParamSpec("P")
R = TypeVar("R")

place: ContextVar[Callable[[], Loc] | None] = ContextVar("lmc_place", default=None)
"""Source location of an abstract evaluation of a program, while one is running: it has no frames of the user's."""

_STOPS = (KeyboardInterrupt, asyncio.CancelledError)
"""What Ctrl-C raises; at an `await` of a notebook's cell it cancels."""


def users_frames(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function so that its errors leave without lmc's frames. Functions, coroutine functions and
    generators.

    A bare `raise` adds no entry for its own frame, so that nothing of the decorator is left either.
    """
    do: Any = function

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        try:
            return await do(*args, **kwargs)
        except (Exception, *_STOPS) as error:
            _leave(error, do, kwargs)
            raise

    def yielded(*args: Any, **kwargs: Any) -> Any:
        try:
            return (yield from do(*args, **kwargs))
        except (Exception, KeyboardInterrupt) as error:
            _leave(error, do, kwargs)
            raise

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return do(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            if (meant := _misfit(error, do, args, kwargs)) is None:
                _leave(error, do, kwargs)
                raise
        try:
            raise meant
        except LmcError:
            meant.__traceback__ = None
            raise

    kind = awaited if inspect.iscoroutinefunction(function) else yielded if inspect.isgeneratorfunction(function) else called
    return cast("Callable[P, R]", functools.wraps(function)(kind))


def _misfit(error: BaseException, called: Any, args: Sequence[Any], given: Mapping[str, Any]) -> LmcError | None:
    """Return the error that names the argument of a wrong type which made lmc's own code raise another one, if that is so."""
    is_odd = isinstance(error, TypeError | AttributeError | ValueError | OverflowError) and not type(error).__module__.startswith("lmc.")
    if not is_odd or settings().debug or len(entries := _entries(error)) < 2:
        return None
    if users_line(error) is not None or not all(ours or _is_of_lmc(entry) for entry, ours in zip(entries, _ours(entries))):
        return None  # code of others has run: of a file, of the REPL or of a library
    from lmc.arguments import misfit

    if (meant := misfit(called, args, given)) is not None:
        note(meant, f"({type(error).__name__}: {message_of(error)})")
    return meant


def _is_of_lmc(entry: TracebackType) -> bool:
    """Return whether code without a file is lmc's, as what `dataclass` makes is."""
    return entry.tb_frame.f_globals.get("__name__", "").startswith("lmc.")


def _leave(error: BaseException, called: Any, given: Mapping[str, Any]) -> None:
    """Hide lmc's frames of an error that leaves a public function; if the call itself raised it, for arguments that the
    function does not take, say which it takes."""
    if type(error) is TypeError and error.__traceback__ is not None and error.__traceback__.tb_next is None:
        from lmc.parameters import suggestion

        names = [p.name for p in inspect.signature(called).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name != "self"]
        name = called.__qualname__.removesuffix(".__init__")
        unknown = next((f"{name}() has no parameter {n!r}{suggestion(n, names)}" for n in given if n not in names), None)
        error.args = (unknown or f"{error}: it takes {', '.join(names) or 'none'}",)
        error.__traceback__ = error.__traceback__ if settings().debug else None
    else:
        hide(error)


_constructors: set[type[Any]] = set()


def hide_in_constructor(cls: type[Any]) -> None:
    """Hide lmc's frames in what constructing a class raises; the class stays the one it is."""
    if cls not in _constructors:
        _constructors.add(cls)
        cls.__init__ = users_frames(cls.__init__)


def hide(error: BaseException) -> None:
    """Take lmc's frames out of the traceback of an error that is about to leave lmc, and of those of its causes."""
    _explain_text(error)
    if settings().debug:
        return
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_ours(one)
        todo += [one.__cause__, one.__context__]


def _without_ours(error: BaseException) -> TracebackType | None:
    entries = _entries(error)
    kept = [entry for entry, ours in zip(entries, _ours(entries)) if not ours]
    if not kept and not (type(error).__module__.startswith("lmc.") or isinstance(error, _STOPS)):
        return error.__traceback__
    below: TracebackType | None = None
    for entry in reversed(kept):
        below = TracebackType(below, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return below


def _entries(error: BaseException) -> list[TracebackType]:
    found: list[TracebackType] = []
    at = error.__traceback__
    while at is not None:
        found.append(at)
        at = at.tb_next
    return found


def _ours(entries: list[TracebackType]) -> list[bool]:
    """Return which entries are lmc's, or those of Python's library called by lmc."""
    found: list[bool] = []
    ours = False
    for entry in entries:
        file = entry.tb_frame.f_code.co_filename
        ours = file.startswith(LMC) or (ours and is_pythons(file))
        found.append(ours)
    return found


def users_line(error: BaseException) -> traceback.FrameSummary | None:
    """Return the last position of an exception in the user's files, None if it never left lmc's or a library's."""
    entries = reversed(traceback.extract_tb(error.__traceback__))
    return next((e for e in entries if is_users(e.filename) and not e.filename.startswith("<")), None)


class HeldWarning(NamedTuple):
    """A warning to be raised later; it counts as raised only then."""

    message: str
    category: type[Warning]
    once: set[str] | None


def warn(message: str, category: type[Warning] = UserWarning, once: set[str] | None = None) -> None:
    """Warn at the innermost line outside of lmc: the user's, where a warning is raised on their thread, or within an evaluation of their program.
    `once`: messages raised already, which are not raised again."""
    if (held := _held.get()) is not None:
        return held.append(HeldWarning(message, category, once))
    if once is not None:
        if message in once:
            return
        once.add(message)
    if (evaluated := place.get()) is not None:
        loc = evaluated()
        return warnings.warn_explicit(message, category, loc.file, loc.line)
    frame, depth = sys._getframe(1), 2  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and ((file := frame.f_code.co_filename).startswith(LMC) or is_pythons(file)):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth)


_held: ContextVar[list[HeldWarning] | None] = ContextVar("lmc_held_warnings", default=None)


@contextmanager
def held_warnings() -> Generator[list[HeldWarning]]:
    """Collect the warnings of lmc's that are raised here in the block, for `warn` to raise them where they belong."""
    found: list[HeldWarning] = []
    token = _held.set(found)
    try:
        yield found
    finally:
        _held.reset(token)


# -- notes -----------------------------------------------------------------------------------------------------------


def note(error: BaseException, text: str) -> None:
    """Add a note unless it is there already: one error may be raised more than once."""
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def notes(error: BaseException) -> list[str]:
    """Return the notes of an error that has not left lmc, for whoever writes it to somewhere else."""
    _explain_text(error)
    return list(getattr(error, "__notes__", ()))


def note_item(error: BaseException, index: int, bound: inspect.BoundArguments) -> None:
    """Note which item of a batch an error belongs to; `bound` are its arguments, the state among them first."""
    given = list(bound.arguments.items())[1:]
    shown = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in given)
    note(error, f"(item {index} of the batch: {shown or 'no arguments'})")


def _explain_text(error: BaseException) -> None:
    """Note what the answer was in an expression that failed: that it is text, in one like `s["n"] + 1`; which text, in
    one like `json.loads(s["n"])`. And which call is meant, where a state is awaited."""
    if not isinstance(error, TypeError | ValueError) or isinstance(error, LmcError):
        return
    if (meant := _NOT_ASYNC.get(str(error))) is not None:
        note(error, meant)
    entries = _entries(error)
    users = (entry for entry, ours in zip(entries, _ours(entries)) if not ours and not is_pythons(entry.tb_frame.f_code.co_filename))
    last = next(reversed(list(users)), None)
    if last is None:
        return
    if isinstance(error, TypeError) and _OF_PARAMETERS.search(str(error)):
        return  # whatever the arguments were
    states = {name: value for name, value in last.tb_frame.f_locals.items() if isinstance(value, AnswersByName)}
    expression = _expression(last) if states else ast.Module([], [])
    awaited = any(isinstance(node, ast.Await) for node in ast.walk(expression))
    for node in ast.walk(expression):
        match node:
            case ast.Subscript(value=ast.Name(id=state), slice=ast.Constant(value=str() as name)) if state in states:
                if isinstance(value := _value(states[state], name), str):
                    if isinstance(error, ValueError):
                        note(error, _did_not_parse(state, name, value, ", cut by max_tokens" if _is_cut(states[state], name) else ""))
                    else:
                        note(error, _awaited(state, name) if awaited else _is_text(state, name, value))
            case _:
                pass


_OF_PARAMETERS = re.compile(r"\(\) (got an unexpected keyword|got multiple values|missing \d|takes |has no parameter)")
"""What a call says whose arguments do not fit the function's parameters."""

_HAS_RUN = "(a program that is called has run, and this is its state; what is awaited in async code is program.arun(…), of a compiled one program.acall(…))"
_NOT_ASYNC: Mapping[str, str] = {
    "object State can't be used in 'await' expression": _HAS_RUN,
    "'State' object can't be awaited": _HAS_RUN,  # from CPython 3.14 on
    "'async for' requires an object with __aiter__ method, got State":
        "(a state has no items; its text as it comes is `async for piece in state.text_async_iter()`, of a run with stream=True)",
}  # fmt: skip


def _did_not_parse(state: str, name: str, value: str, ends: str) -> str:
    """`ends`: how the answer ended, if not by itself; one of a type ends in time."""
    return f"({state}[{name!r}] is {reprlib.repr(value)}{ends}; a type makes it parse: gen({name!r}, dtype=…), then {state}.parsed({name!r}))"


def _awaited(state: str, name: str) -> str:
    return f"({state}[{name!r}] is the answer already: reading waits for it, without an await)"


def _is_text(state: str, name: str, value: str) -> str:
    answer, number = f"{state}[{name!r}]", _as_number(value)
    remedy = f"write {number}({answer})" if number else f"ask with gen({name!r}, dtype=int), and read {state}.parsed({name!r})"
    return f"({answer} is text, like everything a model writes: here {reprlib.repr(value)}; {remedy})"


class AnswersByName:
    """A value whose items are a model's answers: errors in expressions with them are explained."""

    __slots__ = ()

    if TYPE_CHECKING:  # Any, but nothing that mypy warns of where it is returned; in a generic class mypy would make Any of it

        def __getitem__(self, name: str | None) -> Any | Never: ...  # noqa: RUF020


def _value(state: Any, name: str) -> Any:
    try:
        return state[name]
    except Exception:  # its own failure must not hide this error
        return None


def _is_cut(state: Any, name: str) -> bool:
    try:
        meta = state.get_meta_info(name)
    except Exception:  # as above: it was not generated, or by something that has no meta info
        return False
    return isinstance(meta, Mapping) and meta.get("finish_reason", {}).get("type") == "length"


def _as_number(text: str) -> str | None:
    for kind in (int, float):
        try:
            kind(text)
        except ValueError:
            continue
        return kind.__name__
    return None


def _expression(entry: TracebackType) -> ast.AST:
    """Return the expression that a traceback entry points at; an empty module if its source is not there."""
    positions = list(entry.tb_frame.f_code.co_positions())
    first, last, start, end = positions[entry.tb_lasti // 2]
    if first is None or last is None or start is None or end is None:
        return ast.Module([], [])
    lines = [linecache.getline(entry.tb_frame.f_code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        return ast.parse(b"(" + b"".join(lines) + b")", mode="eval")
    except SyntaxError:
        return ast.Module([], [])
