"""The outside as a run's evaluations see it: arguments, globals, closure cells and plain objects, each as of its first read (docs/run-ahead.md).

An `OutsideSnapshot` is kept for a run and copies shallowly; an `Outside` belongs to one evaluation, and makes the containers and objects that it may change.
Nothing here runs code of the user: only exact builtin containers are copied, and attributes come from plain instance dictionaries and slots.
"""

from __future__ import annotations

import functools
import re
import types
from abc import ABCMeta
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol

from lmc.frontend.capture.unknown import Deps, Unknown
from lmc.frontend.capture.values import Object, is_generated
from lmc.frontend.expressions import Expr
from lmc.frontend.host import HostFunction
from lmc.segments import ChoicesMethod

ATOMS: set[type] = {
    str, int, float, bool, bytes, complex, type(None), range, type(Ellipsis), type(NotImplemented), re.Pattern, re.Match, ChoicesMethod,
}  # fmt: skip
"""Types whose values never change and consist of nothing else; the matcher's are added when it is loaded (searching.py)."""
PLAIN = frozenset({str, int, float, bool, type(None)})
"""The most common of them."""
MAPPINGS = frozenset({dict, Counter, OrderedDict, defaultdict})
CONTAINERS = MAPPINGS | {list, tuple, set, frozenset, deque}
VIEWS = frozenset({type({}.keys()), type({}.items())})
"""Of a dict; its values are read as a list."""
CALLABLES = (types.FunctionType, types.BuiltinFunctionType, HostFunction, Expr, types.MethodDescriptorType)
LRU: type[Any] = type(functools.lru_cache(len))
LARGEST = 20_000
"""Most items copied of one container; larger ones are unknown."""


def is_quiet(kind: type) -> bool:
    """Return whether a type may be compared and inspected: its metaclass is no user's."""
    return type(kind) is type or str(type(kind).__module__).partition(".")[0] in _OF_METACLASSES


_OF_METACLASSES = frozenset({"builtins", "abc", "enum", "typing", "typing_extensions", "pydantic"})


def any_of(values: Iterable[Any], deps: Deps = None) -> Unknown:
    """Return a value that may be one of these, or part of one."""
    found = {id(one): one for x in values if type(x) not in ATOMS for one in (x.of if type(x) is Unknown else (x,))}
    return Unknown(deps, of=tuple(found.values()))


class OutsideSnapshot:
    """Copies of outside containers and instance dictionaries by identity, kept for a run.

    Objects that an evaluation could not inspect are left out, so that a finalizer runs when Python releases its object.
    """

    def __init__(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}) -> None:
        """Copy the mutable arguments of a program (without the state) before it starts."""
        self.args, self.kwargs = tuple(args), dict(kwargs)
        self._copies: dict[int, tuple[Any, Any]] = {}  # id → (the original, which keeps its id its own; the copy)
        self.changed: set[Any] = set()
        """Changes by the program: ids of originals and cells, (id of an object, attribute), (id of globals, name)."""
        self.names: dict[tuple[int, str], Any] = {}
        """Globals by (id of their dictionary, name), and contents of cells by (id, ""), as of their first read."""
        self.ended: dict[str, tuple[Any, ...]] = {}
        """By stream, sub-programs that an evaluation has followed to their end: the call, and what their state was then."""
        self._captured: set[int] = set()
        self._capture([*args, *kwargs.values()])

    def _capture(self, todo: list[Any]) -> None:
        left = LARGEST
        while todo and left > 0:
            x = todo.pop()
            if not is_quiet(type(x)) or type(x) in ATOMS or id(x) in self._captured:
                continue
            held = self.parts(x)
            if held is None:
                continue
            self._captured.add(id(x))
            left -= len(held)
            todo.extend([item for item in (held.values() if type(held) in MAPPINGS else held) if type(item) not in PLAIN])

    def is_captured(self, x: Any) -> bool:
        """Return whether its copy predates the program's start, so that the evaluation's changes to it are those of Python."""
        return id(x) in self._captured

    def parts(self, x: Any) -> Any:
        """Return a copy of the contents of a container or a plain object as of its first read; None: nothing is known of it."""
        known = self._copies.get(id(x))
        if known is not None:
            return known[1]
        kind = type(x)
        if kind in CONTAINERS:
            held = None if len(x) > LARGEST else _copied(x, kind)
        else:
            held = _attributes(x) if (type(kind) is type or type(kind) is ABCMeta) and is_plain(kind) else None
        if held is not None and (kind is not tuple or held is x):  # what cannot be copied is not kept alive either
            self._copies[id(x)] = (x, held)
        return held

    def first(self, key: tuple[int, str], x: Any) -> Any:
        """Return the value of an outside name as of its first read; now that is `x`."""
        return self.names.setdefault(key, x if is_holdable(x) else _NOT_HELD)

    def forget(self) -> None:
        self.args, self.kwargs = (), {}
        for held in (self._copies, self._captured, self.names, self.ended):
            held.clear()


class Outside:
    """One evaluation's view of the outside: containers and objects of its own."""

    def __init__(self, snapshot: OutsideSnapshot, ev: Any) -> None:
        self.snapshot, self.ev = snapshot, ev
        self._adopted: dict[int, tuple[Any, Any]] = {}
        self.origins: dict[int, Any] = {}
        """By the id of a container of the evaluation's, the outside one that is not an argument."""

    def adopt(self, x: Any) -> Any:
        """Return a value of the outside as the evaluation may hold it; Unknown for one that could run code or cannot be copied."""
        kind = type(x)
        if kind in ATOMS or kind is Unknown:
            return x
        if not is_quiet(kind):
            return Unknown(None)
        known = self._adopted.get(id(x))
        if known is not None:
            return known[1]
        if id(x) in self.snapshot.changed:
            return Unknown(None)
        made = self._made(x, kind)
        if type(made) is not Unknown:  # else keeping it alive might delay a finalizer
            self._adopted.setdefault(id(x), (x, made))
        return made

    def forget(self) -> None:
        """Release all adopted objects, which would be kept alive."""
        self._adopted.clear()
        self.origins.clear()

    def _made(self, x: Any, kind: type) -> Any:
        if kind in CONTAINERS:
            return self._container(x, kind)
        if _is_opaque(kind) or kind in ATOMS or (issubclass(kind, type) and is_quiet(x)):
            return x  # reading a module of another class may do anything, such as import it
        if issubclass(kind, BaseException) and kind.__module__ == "builtins":
            return x if ATOMS.issuperset(map(type, x.args)) else Unknown(None)
        held = self.snapshot.parts(x)
        if held is None:
            return Unknown(None)
        args = self.adopt(BaseException.args.__get__(x)) if issubclass(kind, BaseException) else ()  # type: ignore[attr-defined]
        made = Object(self.ev, kind, {}, args if type(args) is tuple else (), outside=x)
        self._adopted[id(x)] = (x, made)
        made.attributes.update({name: Unknown(None) if (id(x), name) in self.snapshot.changed else self.adopt(v) for name, v in held.items()})
        return made

    def _container(self, x: Any, kind: type) -> Any:
        held = self.snapshot.parts(x)
        if held is None:
            return Unknown(None)
        adopt = self.adopt
        if kind is tuple or kind is frozenset:
            items = [adopt(i) for i in held]
            return x if all(a is b for a, b in zip(items, x, strict=True)) else tuple(items) if kind is tuple else Unknown(None)
        made: Any = held.copy()
        self._adopted[id(x)] = (x, made)
        if not self.snapshot.is_captured(x):
            self.origins[id(made)] = x
        if kind is not set:
            for key, item in list(held.items()) if kind in MAPPINGS else enumerate(held):
                made[key] = adopt(item)
        return made


_OPAQUE = frozenset({
    types.ModuleType, types.MethodType, functools.partial, LRU, staticmethod, classmethod, property,
    types.GenericAlias, types.UnionType, slice, object, types.WrapperDescriptorType, types.GetSetDescriptorType,
})  # fmt: skip
_OF_LMC = ("lmc.frontend.interpreter", "lmc.backend.")
"""Modules whose objects a program may pass on: programs and backends."""


def _is_opaque(kind: type) -> bool:
    """Return whether objects of a type are kept as they are, and used only as far as their type is known."""
    return kind in _OPAQUE or issubclass(kind, CALLABLES) or str(kind.__module__).startswith(_OF_LMC)


def _is_key(x: Any) -> bool:
    """Return whether hashing and comparing it runs no code of the user's."""
    kind = type(x)
    if not is_quiet(kind):
        return False
    if kind in (tuple, frozenset):
        return all(map(_is_key, x))
    return kind in ATOMS or kind in (type, types.FunctionType, types.BuiltinFunctionType)


_NOT_HELD = Unknown(None)


def is_holdable(x: Any) -> bool:
    """Return whether an evaluation may inspect a value, and keeping it alive delays no finalizer."""
    kind = type(x)
    if kind in ATOMS or kind in CONTAINERS or kind is Unknown:
        return True
    if kind in (types.MethodType, types.BuiltinFunctionType):
        return is_holdable(x.__self__)
    if kind is functools.partial:
        return all(map(is_holdable, (x.func, *x.args, *x.keywords.values())))
    if not is_quiet(kind):
        return False
    if issubclass(kind, BaseException):
        return BaseException.__traceback__.__get__(x) is None  # type: ignore[attr-defined]
    return _is_opaque(kind) or issubclass(kind, type) or is_plain(kind)


def _copied(x: Any, kind: type) -> Any:
    """Return a copy of a container; None if that could run code of its keys."""
    if kind in MAPPINGS:
        if not all(map(_is_key, list(dict.keys(x)))):  # what iterates over an OrderedDict itself hashes
            return None
        held: Any = kind(x) if kind is not defaultdict else defaultdict(x.default_factory, x)
        held.update({key: _NOT_HELD for key, item in held.items() if type(item) not in PLAIN and not is_holdable(item)})
        return held
    if kind in (set, frozenset):
        return kind(x) if all(map(_is_key, list(x))) else None
    items = [item if type(item) in PLAIN or is_holdable(item) else _NOT_HELD for item in list(x)]
    if kind is tuple:
        return x if all(a is b for a, b in zip(items, x, strict=True)) else tuple(items)
    return items if kind is list else deque(items, x.maxlen)


def _attributes(x: Any) -> dict[str, Any]:
    """Return the instance dictionary and slots of a plain object."""
    held = dict(object.__getattribute__(x, "__dict__")) if type(x).__dictoffset__ != 0 else {}
    for cls in type(x).__mro__:
        for name, member in vars(cls).items():
            if type(member) is types.MemberDescriptorType:
                try:
                    held.setdefault(name, member.__get__(x))
                except AttributeError:
                    continue  # not set
    return {name: item if is_holdable(item) else _NOT_HELD for name, item in held.items()}


_OF_BASES = frozenset({object, Generic, Protocol})
_FORBIDDEN = ("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__new__", "__set_name__", "__init_subclass__", "__class__", "__del__")


@functools.lru_cache(4096)
def is_plain(cls: type) -> bool:
    """Return whether a class is plain: no metaclass of its own, no hook of attributes or construction, no finalizer, no builtin base but exceptions,
    no method without source but those of dataclasses."""
    if type(cls) not in (type, ABCMeta) or cls.__module__ == "builtins" or str(cls.__module__).split(".")[0] in ("lmc", "torch", "numpy"):
        return False
    for base in cls.__mro__[:-1]:
        if base in _OF_BASES or (base.__module__ in ("abc", "builtins") and (base.__name__ == "ABC" or issubclass(base, BaseException))):
            continue
        if base.__module__ == "builtins" or not base.__flags__ & _HEAP_TYPE:
            return False
        names = vars(base)
        if any(type(held) in _OF_C and held.__objclass__ is base for name, held in names.items() if name not in ("__dict__", "__weakref__")):
            return False
        if "__dataclass_fields__" not in names and any(map(is_generated, names.values())):
            return False
        hooks = [name for name in _FORBIDDEN if name in names and not (name in ("__setattr__", "__delattr__") and "__dataclass_fields__" in names)]
        if hooks or type(names.get("__dict__")) not in (types.NoneType, types.GetSetDescriptorType):
            return False
    return True


_HEAP_TYPE = 1 << 9
_OF_C = frozenset({types.MethodDescriptorType, types.ClassMethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType})
"""Attributes that only a class out of C has of its own; such a class may be a heap type, too."""
