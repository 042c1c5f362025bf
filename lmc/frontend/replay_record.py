"""A replay's record: hook calls answer from what a run has done, and read the outside as it was then."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmc.durable.snapshots import LAZY
from lmc.frontend import aio, hostops, raising
from lmc.frontend.class_code import is_of_a_library_metaclass
from lmc.frontend.counting import CountingMode, outside_key, program_frame
from lmc.frontend.host import HostFunction
from lmc.frontend.hostops import Shape, targets
from lmc.frontend.keys import BUILT, DEFINED, GIVEN, Ahead, Key, Record
from lmc.frontend.tree import Tree
from lmc.ir.core import exact

if TYPE_CHECKING:
    from lmc.limits import Limits

_NOTHING: Mapping[Any, Any] = {}


class ReplayRecord(CountingMode):
    """A replay that knows its record; the rest of the hooks is in the files that go on from here."""

    def __init__(self, record: Record, tree: Tree | None = None, ahead: Mapping[Key, Ahead] = _NOTHING, changed: int | None = None) -> None:
        """`changed`: the hook call where the run found an object of the outside to be another one than before."""
        super().__init__()
        self.record = record
        self.ahead = [ahead[key] for key in sorted(ahead)]
        self.tree = tree  # what the outside was when the run began
        done = [tick for tick, which, _ in record if which not in (DEFINED, GIVEN)]
        self.first = min(done, default=0)  # up to here nothing foreign had run
        self.until = max(done, default=0) if changed is None else changed  # up to here its objects were the same
        self.last = max((tick for tick, _, _ in record), default=0)  # of the hook calls that are in the record
        self.lazy: dict[int, Any] = {}  # iterators that the program made
        self.classes: dict[type, type] = {}  # of the program, by those that stand for them in the record
        self.limits: Limits | None = None  # of a run that has to end in time

    def dispatch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = (self.count + 1, 0, 0)
        if self.ahead and (made := self._made(name, args, kwargs)) is not None:
            self.record = {**self.record, key: made.outcome}
        if key not in self.record:
            if self.count < self.first and name in _ONLY_READ:
                args = tuple([self._as_begun(a) for a in args])
            if (handled := sys.exc_info()[1]) is not None:
                raising.without_hooks(handled)  # the program may print its traceback
            result, built = super().dispatch(name, args, kwargs), (key[0], BUILT, 0)
            return self._answer(built) if built in self.record else result
        self.count += 1
        for x in (*args, *kwargs.values()):
            if id(x) in self.lazy:  # the call ran it through before it was made; its own hook calls count
                for _ in x:
                    pass
        answer = self._answer(key)
        if name in ("dstar", "merged"):
            found = dict(zip(*answer, strict=True))
            return found if name == "dstar" else self.merged(args[0], found, *args[2:])
        if name in _AWAITED:
            return aio.Ready(answer)
        return self._flat(answer, args[1]) if name == "unpack" else answer

    def _made(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ahead | None:
        """The unordered call that this hook call is, if it was made already: each answers once."""
        called = _unordered(name, args)
        if called is None:
            return None
        fn, given = called
        for index, made in enumerate(self.ahead):
            if fn.marks_the_same(made.fn) and _alike(given, tuple(made.args)) and _alike(tuple(kwargs.items()), tuple(made.kwargs.items())):
                return self.ahead.pop(index)
        return None

    def owned_list(self, made: Any) -> Any:
        """A list that reading a state made, or the one that the run made there."""
        key = self.owned_key()
        return self._answer(key) if key in self.record else made

    def _answer(self, key: Key) -> Any:
        done, value = self.record[key]
        if type(value) in self.classes:
            value.__class__ = self.classes[type(value)]
        if isinstance(value, BaseException):
            raising.unlocated(value)
        if not done:
            raise value
        return value

    def _flat(self, items: tuple[Any, ...], shape: Shape) -> tuple[Any, ...]:
        """What `py.unpack` gave, with the lists of starred targets spread out again."""
        before, after = targets(shape)
        items = tuple([self._flat(x, s) if isinstance(s, tuple) else x for x, s in zip(items, shape, strict=True)])
        return items if after < 0 else (*items[:before], *items[before], *items[before + 1 :])

    def made(self, container: Any) -> Any:
        if isinstance(container, LAZY) and (self.ahead or self.tick < self.last):  # who holds it longer puts off the end of a generator in it
            self.lazy[id(container)] = container
        return container

    def defined(self, definition: Any) -> Any:
        key = (self.tick, DEFINED, 0)
        known = self._answer(key) if key in self.record else definition
        if known is not definition and isinstance(definition, type) and not is_of_a_library_metaclass(definition):
            self.classes[known] = definition  # the program's own one: what it stores there is of this run alone
            known = definition
        return super().defined(known)

    # the outside as it was

    def _begun(self, owner: Any, name: str, value: Any) -> Any:
        """What the run read from the outside at its beginning; later reads are in the record, or happen now."""
        if self.tree is None or self.tick >= max(self.first, self.until):
            return value
        key = outside_key(owner, name)
        if self.tick < self.first:
            guard = self.tree.guards.get(key)
            return value if guard is None else guard.value
        return self.tree.objects[key][1] if key in self.tree.objects else value

    def _as_begun(self, x: Any) -> Any:
        """An outside container with what it held when the run began."""
        if self.tree is None or type(x) not in (list, dict) or id(x) not in self.tree.steady:
            return x
        owner, content = self.tree.steady[id(x)]
        return x if owner is not x else type(x)(content)

    def glob(self, name: str, value: Any) -> Any:
        return self._begun(program_frame().f_globals, name, value)

    def free(self, name: str, value: Any) -> Any:
        cell = self.cell(name)
        return value if cell is None else self._begun(cell, "cell_contents", value)


def _unordered(name: str, args: tuple[Any, ...]) -> tuple[HostFunction, tuple[Any, ...]] | None:
    """The unordered host function that a hook call calls, and its arguments."""
    name = name.removesuffix("_awaited")
    if name == "callm":
        owner, attribute, *rest = args
        fn = inspect.getattr_static(owner, attribute, None)
        args = tuple(rest) if attribute in getattr(owner, "__dict__", ()) else (owner, *rest)
    elif name == "call":
        fn, args = args[0], args[1:]
        if isinstance(fn, types.MethodType):
            fn, args = fn.__func__, (fn.__self__, *args)
    else:
        return None
    return (fn, args) if isinstance(fn, HostFunction) and not fn.ordered else None


def _alike(a: Any, b: Any) -> bool:
    """Whether two arguments are the same object, or data that cannot change and prints equal: nan is nan."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(_alike, a, b))
    return hostops.is_immutable(a) and exact(a) == exact(b)


_AWAITED = frozenset({"awaited", "getitem_ready", "callm_ready", "aentered", "aleft"})
"""Hooks that give awaitables."""

_ONLY_READ = frozenset({"getitem", "binop", "compare", "truth", "side", "not_", "concrete", "fstring", "star", "unpack", "dstar", "merged"})
"""Hooks that read an outside container and keep nothing of it."""
