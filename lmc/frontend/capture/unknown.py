"""Unknown values with the answers they depend on, and how an evaluation leaves what it cannot decide."""

from __future__ import annotations

from typing import Any, NoReturn

from lmc.errors import Loc
from lmc.frontend.values import Symbolic

Deps = frozenset[Any] | None
"""Addresses of the answers that a value depends on; None: only Python can tell it."""
NOTHING: frozenset[Any] = frozenset()
MISSING = object()
"""Instead of a value, where there is none."""


def join(*deps: Deps) -> Deps:
    """Return the dependencies of knowing all of several values."""
    found = NOTHING
    for each in deps:
        if each is None:
            return None
        if each is not found:
            found = found | each if found else each
    return found


class Unknown(Symbolic):
    """An unknown value. `deps` are the addresses of the answers it depends on, None: only Python can tell it. Native code that touches it raises Undecided.

    note    the domain's data: a value of the graph
    begins  known beginning of its text, if it is a concatenation
    of      objects of the evaluation's that it may be, or be a part of
    """

    __slots__ = ("begins", "deps", "note", "of")

    def __init__(self, deps: Deps = None, note: Any = None, begins: str = "", of: tuple[Any, ...] = ()) -> None:
        self.deps, self.note, self.begins, self.of = deps, note, begins, of

    def __deepcopy__(self, _: Any) -> Unknown:
        return self

    def _touched(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise Undecided(self.deps)


class UnknownName(Unknown):
    """A name of an answer that is unknown: of the variables of a state, one key for all such names."""

    __slots__ = ()

    def __init__(self, name: Unknown) -> None:
        super().__init__(name.deps, name.note, name.begins)


class GivenParts(Unknown):
    """What objects of which nothing is known may have been given to hold: several share it."""

    __slots__ = ()


SPECIAL = (
    "str repr format hash eq ne lt le gt ge len iter next contains getitem setitem delitem call int float index complex round neg pos invert abs "
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow lshift rlshift rshift rrshift or ror and rand xor rxor matmul rmatmul"
).split()
for _name in (*SPECIAL, "bool"):
    setattr(Unknown, f"__{_name}__", Unknown._touched)
UnknownName.__hash__ = lambda self: hash(UnknownName)  # pyright: ignore[reportAttributeAccessIssue]
UnknownName.__eq__ = lambda self, other: type(other) is UnknownName  # pyright: ignore[reportAttributeAccessIssue]


class Stop(BaseException):
    """The evaluation cannot go on: a limit, or something unsupported that it cannot skip. Never the program's error."""

    def __init__(self, reason: str, loc: Loc | None = None) -> None:
        super().__init__(reason)
        self.reason, self.loc = reason, loc


class Raised(BaseException):
    """An exception of the program: a builtin one or lmc's as it is, one of the program's own classes as an `Object`."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


def raised(kind: type[Exception]) -> Raised:
    """Return an exception that Python raises with a message of its own, which is unknown."""
    return Raised(kind(Unknown(None)))


class Undecided(BaseException):
    """A value that must be known is not: a key that decides an order, a length, the next item of an iterator, the `test` of a loop."""

    def __init__(self, deps: Deps, test: Unknown | None = None) -> None:
        super().__init__(deps)
        self.deps, self.test = deps, test


class Abandoned(BaseException):
    """It is unknown whether control leaves `target` (a loop or a function without requests) here, so it is skipped."""

    def __init__(self, target: object, deps: Deps) -> None:
        super().__init__(target)
        self.target, self.deps = target, deps
