"""Stand-ins for functions and classes of a program in calls: a call goes to the recorder; all else is the original's."""

from __future__ import annotations

import types
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, closing, contextmanager
from typing import Any, Protocol

from lmc.durable.effects import CallKind, is_plain
from lmc.durable.reaches import attribute


class CallRecorder(Protocol):
    """The recorder of a program, as its stand-ins see it."""

    def callee(self, fn: Any) -> Any: ...
    def made(self, fn: Any, kind: CallKind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...
    def awaited(self, x: Any) -> Any: ...
    def going_on(self) -> AbstractContextManager[Any]: ...


class RecordedFunction:
    """Replaces a function in a call that must be inspected."""

    __slots__ = ("__dict__", "fn", "kind", "recorder")

    def __init__(self, recorder: CallRecorder, fn: Any, kind: CallKind) -> None:
        self.recorder, self.fn, self.kind = recorder, fn, kind

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.recorder.made(self.fn, self.kind, args, kwargs)

    def __str__(self) -> str:
        """Return Python's name of the function, for calls that it rejects."""
        name, module = attribute(self.fn, "__qualname__"), attribute(self.fn, "__module__")
        return str(self.fn) if name is None else f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


class RecordedClass:
    """Replaces a class that is passed to uninstrumented code, which makes instances: the program's, like those that it makes."""

    __slots__ = ("cls", "recorder")

    def __init__(self, recorder: CallRecorder, cls: type) -> None:
        self.recorder, self.cls = recorder, cls

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with self.recorder.going_on():
            return self.recorder.callee(self.cls)(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self.cls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cls, name)  # such as its name, in messages

    def __copy__(self) -> RecordedClass:
        return self

    def __deepcopy__(self, memo: object) -> RecordedClass:
        return self  # as a class, which is never copied: not the run, and its journal's file

    def __reduce__(self) -> Any:
        return _class_itself, (self.cls,)


def like(x: Any, call: Callable[..., Any]) -> Any:
    """Return an object of a class derived from that of `x`, with its attributes, whose call is `call`: it may be used otherwise, too. `call` itself
    where no such class can be made."""
    cls = type(x)
    held = any(isinstance(member, types.MemberDescriptorType) for base in cls.__mro__ for member in vars(base).values())
    if held or not cls.__dictoffset__ or not is_plain(cls) or any("__init_subclass__" in vars(base) for base in cls.__mro__[:-1]):
        return call
    names = {"__call__": lambda _, *args, **kwargs: call(*args, **kwargs), "__module__": cls.__module__}
    made = object.__new__(types.new_class(cls.__name__, (cls,), exec_body=lambda own: own.update(names)))
    made.__dict__ = x.__dict__
    return made


@contextmanager
def _closing(recorder: CallRecorder, thing: Any) -> Generator[Any]:
    """Manage an object that the program has made as `closing` does."""
    try:
        yield thing
    finally:
        recorder.callee(thing.close)()


@asynccontextmanager
async def _aclosing(recorder: CallRecorder, thing: Any) -> AsyncGenerator[Any]:
    """As `_closing`, for `aclosing`."""
    try:
        yield thing
    finally:
        await recorder.awaited(recorder.callee(thing.aclose)())


CLOSING = {closing: _closing, aclosing: _aclosing}


def _class_itself(cls: type) -> type:
    return cls
