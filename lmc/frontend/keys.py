"""Keys of what a run has done: how a replay finds the result of what must not happen twice.

The number of a hook call is counted the same way while tracing and while replaying.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Key = tuple[int, int, int]
"""Number of the hook call; 0 for its own result, or 1 + the number of what it iterates or formats; the step in that."""

CHOICES = -1
"""As the second part of a key: the list of choices that a select was handed."""

DEFINED = -2
"""As the second part of a key: a function or class that the program made, once host code was handed it."""

BUILT = -3
"""As the second part of a key: the container that a builtin made for the program, after what it called of the program."""

GATHERED = 2
"""As the second part of a key: the list of what tasks of the program's own gave."""

ORDERED = -5
"""As the second part of a key: the places of what `max`, `min` or sorting gives, among what it was handed."""

OWNED = -4
"""As the second part of a key: a list that reading a state made."""

GIVEN = -6
"""As the second part of a key: what a gen was given."""


def inner_key(key: Key, index: int) -> Key:
    """For a target inside of an unpacked one: the first number is that of the hook call, the last that of the iteration."""
    return key[0], key[1] * 64 + index + 1, key[2]


Record = Mapping[Key, tuple[bool, Any]]
"""What was done: (True, result) or (False, exception) of each host operation that must not happen twice."""


class Ahead(Protocol):
    """An unordered call that a compiled run made, maybe without getting to its place in the program."""

    @property
    def fn(self) -> Any: ...
    @property
    def args(self) -> Sequence[Any]: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...
    @property
    def outcome(self) -> tuple[bool, Any]: ...
