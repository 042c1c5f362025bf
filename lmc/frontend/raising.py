"""Exceptions of captured programs: Python's own `try` sorts them while tracing, by objects that stand for those of the run.

A stand-in has the class of the exception that the run will have, and for its only argument the traced value that the
exception itself is. Whatever the program asks of it is asked of that value.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import ast
import itertools
import os
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from lmc.backend.base import TakeOver
from lmc.frontend.instrumented import HOOKS_NAME
from lmc.frontend.values import TraceEscape, Value

_OWN = __file__.rsplit("frontend", 1)[0]
_STUB = "__lmc_stub__"
_CONSTANT = "__lmc_constant__"


class Place(NamedTuple):
    """A line of a traceback; the rest says what of it to underline, where that is known."""

    file: str
    name: str
    line: int
    start: int | None
    end: int | None
    column: int | None
    end_column: int | None


_ARGS: Any = BaseException.__dict__["args"]  # a class may define `args` for itself


def stand_in(cls: type[BaseException], value: Value) -> BaseException:
    """An exception of exactly this class, or of its double, whose content is `value`. No code of the class runs."""
    if issubclass(cls, BaseExceptionGroup):
        raise TraceEscape("handles a group of exceptions")
    base = next(b for b in cls.__mro__ if isinstance(b.__dict__.get("__new__"), types.BuiltinFunctionType))
    try:
        error: BaseException = base.__new__(cls)  # pyright: ignore[reportCallIssue]  # not the overload of a group
    except TypeError:  # a class of native code, such as Pydantic's, that is made from its arguments alone
        error = _double(cls)()
    _ARGS.__set__(error, (value,))
    return error


_doubles: dict[type[BaseException], type[BaseException]] = {}


def _double(cls: type[BaseException]) -> type[BaseException]:
    """A class beside one that cannot be made without its arguments: what handles that, by itself (`caught_as`) or by its bases, handles this too."""
    if cls not in _doubles:
        names: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__class__": property(lambda _: cls)}
        try:
            _doubles[cls] = cast("type[BaseException]", type(cls.__name__, cls.__bases__, names))
        except TypeError:
            raise TraceEscape(f"handles a {cls.__name__}, which cannot be made without its arguments") from None
    return _doubles[cls]


def class_of(error: BaseException) -> type[BaseException]:
    """The class of an exception, of a stand-in that of the exception that it stands for."""
    return error.__class__


def caught_as(classes: Any) -> Any:
    """What stands after `except`, with the doubles of the classes in it."""
    named = classes if isinstance(classes, tuple) else (classes,)
    doubles = [_doubles[cls] for cls in named if isinstance(cls, type) and cls in _doubles]
    return (*named, *doubles) if doubles else classes  # Python says what is none


def content(error: object) -> Value | None:
    """The value that an exception stands for; None if it stands for itself."""
    if not isinstance(error, BaseException):
        return None
    args = _ARGS.__get__(error)
    return args[0] if len(args) == 1 and type(args[0]) is Value else None


PLAIN = frozenset({
    ValueError, TypeError, KeyError, IndexError, LookupError, ZeroDivisionError, ArithmeticError, OverflowError, RuntimeError, AssertionError,
})  # fmt: skip
"""Exceptions that their arguments make again, with nothing lost."""


def was_traced(error: BaseException) -> bool:
    """Whether an exception came out of a program that is being traced."""
    return any(HOOKS_NAME in t.tb_frame.f_code.co_freevars for t in _entries(error.__traceback__))


def chain(error: BaseException) -> list[BaseException]:
    """An exception and the stand-ins that it came from or that were being handled, the earliest first."""
    found: dict[int, BaseException] = {}

    def visit(x: BaseException | None) -> None:
        if x is not None and id(x) not in found and (x is error or content(x) is not None):
            found[id(x)] = x
            visit(x.__cause__)
            visit(x.__context__)

    visit(error)
    return list(found.values())[::-1]


def places(error: BaseException) -> tuple[Place, ...]:
    """The program's part of a traceback, the outermost place first."""
    return tuple([_place(t) for t in _entries(error.__traceback__) if not _is_lmcs(t)])


def _entries(traceback: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_lmcs(entry: types.TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_OWN)


def _place(entry: types.TracebackType) -> Place:
    code = entry.tb_frame.f_code
    positions = next(itertools.islice(code.co_positions(), entry.tb_lasti // 2, None), (None, None, None, None))
    return Place(code.co_filename, code.co_name, entry.tb_lineno, *positions)


def mark_constant(error: BaseException) -> None:
    """Notes that an exception is the same in every run: the trace raised it by working on constants."""
    error.__dict__.setdefault(_CONSTANT, None)


def is_constant(x: object) -> bool:
    return isinstance(x, BaseException) and _CONSTANT in x.__dict__


def in_the_run(error: BaseException, value: Any = None) -> Any:
    """The IR value that a constant exception is in a run, once it was needed there; `value` sets it."""
    if value is not None:
        error.__dict__[_CONSTANT] = value
    return error.__dict__[_CONSTANT]


def throw(error: BaseException) -> None:
    """Raises an exception of the program's."""
    try:
        raise error
    finally:
        del error  # its traceback has this frame: what the frames hold would live until the next garbage collection


# -- run time ----------------------------------------------------------------------------------------------------------------


def located(error: BaseException, where: tuple[Place, ...]) -> None:
    """Gives an exception the traceback that it has in a program which is not compiled: its places, then those of host code."""
    entries = [t for t in _entries(error.__traceback__) if not _is_stub(t)]
    own = next((i for i, t in enumerate(entries) if not _is_lmcs(t)), len(entries))
    below = entries[own] if own < len(entries) else None
    for place in reversed(where):
        frame, at = _stub(place)
        below = types.TracebackType(below, frame, at, place.line)
    error.__traceback__ = below


def again(error: BaseException) -> None:
    """Raises an exception of the run once more, and leaves it as it was."""
    traceback = error.__traceback__
    try:
        raise error
    finally:
        error.__traceback__ = traceback
        del error, traceback  # what the frames hold would live until the next garbage collection


def unlocated(error: BaseException) -> None:
    """Takes out of a traceback what `located` put into it: the interpreter is about to go through these places itself."""
    kept = [t for t in _entries(error.__traceback__) if not _is_stub(t)]
    for above, below in itertools.zip_longest(kept, kept[1:]):
        above.tb_next = below
    error.__traceback__ = kept[0] if kept else None


_BETWEEN = frozenset(os.path.join(_OWN, "frontend", f"{name}.py") for name in (
    "hooks", "mode", "counting", "coroutines", "replay_record", "replay_items", "replay_async", "replay_mode", "own", "managers"))
"""Where the hooks are that stand between the program and what it calls."""


def without_hooks(error: BaseException) -> None:
    """Takes the hooks that a run with hooks goes through out of the tracebacks of an exception and of what it came from."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        left += one.__cause__, one.__context__
        entries = list(_entries(one.__traceback__))
        kept = [t for t in entries if t.tb_frame.f_code.co_filename not in _BETWEEN]
        if len(kept) < len(entries):
            for above, below in itertools.zip_longest(kept, kept[1:]):
                above.tb_next = below
            one.__traceback__ = kept[0] if kept else None


_stubs: dict[Place, tuple[types.FrameType, int]] = {}


def _is_stub(entry: types.TracebackType) -> bool:
    return _STUB in entry.tb_frame.f_globals


def _stub(place: Place) -> tuple[types.FrameType, int]:
    """A frame that shows a place in a traceback, and the offset of an instruction that stands there (cf. Jinja's tracebacks)."""
    if place not in _stubs:
        position = (place.start or place.line, place.end or place.line, place.column or 0, place.end_column or 0)
        there = dict(zip(("lineno", "end_lineno", "col_offset", "end_col_offset"), position, strict=True))
        arguments = ast.arguments([], [], None, [], [], None, [])
        body: list[ast.stmt] = [ast.Expr(ast.Yield(None, **there), **there)]
        module = ast.parse("def f(): yield")
        module.body = [ast.FunctionDef("f", arguments, body, [], None, **there)]
        outer = compile(ast.fix_missing_locations(module), place.file, "exec")
        code = next(c for c in outer.co_consts if isinstance(c, types.CodeType)).replace(co_name=place.name)
        at = next((i for i, p in enumerate(code.co_positions()) if i and p == position), 0)
        _stubs[place] = types.FunctionType(code, {_STUB: True})().gi_frame, 2 * at
    return _stubs[place]


def chained(error: BaseException, handled: BaseException) -> BaseException:
    """`error`, raised while `handled` was being handled: what Python notes of that."""
    last, seen = error, {id(error)}
    while last.__context__ is not None and id(last.__context__) not in seen:
        last = last.__context__
        seen.add(id(last))
    if id(handled) not in seen and not _leads_to(handled, error):
        last.__context__ = handled
    return error


def _leads_to(error: BaseException | None, wanted: BaseException) -> bool:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if error is wanted:
            return True
        seen.add(id(error))
        error = error.__context__
    return False


def caused(error: Any, cause: Any) -> BaseException:
    """What `raise error from cause` raises: the statement's checks, with Python's messages."""
    if isinstance(error, type) and issubclass(error, BaseException):
        error = error()
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if isinstance(cause, type) and issubclass(cause, BaseException):
        cause = cause()
    if not isinstance(cause, BaseException | None):
        raise TypeError("exception causes must derive from BaseException")
    error.__cause__ = cause
    return error


def cause_noted(error: BaseException, cause: Any) -> None:
    """Of an error that is about to be raised."""
    if not isinstance(cause, BaseException | None):
        raise TakeOver("raises TypeError: exception causes must derive from BaseException")  # Python says it
    error.__cause__ = cause


def handling(error: BaseException, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls host code of an `except` block: `error` is the current exception, as it would be there."""
    context, traceback = error.__context__, error.__traceback__
    try:
        raise error
    except BaseException:
        error.__context__, error.__traceback__ = context, traceback
        return fn(*args, **kwargs)


async def ahandling(error: BaseException, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """As `handling`, of what is awaited."""
    context, traceback = error.__context__, error.__traceback__
    try:
        raise error
    except BaseException:
        error.__context__, error.__traceback__ = context, traceback
        return await fn(*args, **kwargs)
