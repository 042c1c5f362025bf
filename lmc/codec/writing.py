"""Values written as data: JSON with tags for what JSON lacks. Refuses what would come back as less than it was."""

from __future__ import annotations

import array
import base64
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import sys
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from lmc.codec import arrays, errors
from lmc.errors import JournalError, message_of
from lmc.json_data import PLAIN, are_atoms, dumps, is_plain

TAG = "!"
"""The key of what JSON lacks: `{"!": [tag, …]}`. Plain dicts with keys that begin so are tagged as well."""
MAX_DEPTH = 200
"""Most nested containers."""


class NotData(Exception):
    """A value that cannot be written as data; the message says which."""


def encode(x: Any, held: Mapping[int, list[Any]] | None = None) -> Any:
    """Encode a value as JSON-able data. Raises NotData.

    held  places of objects that the reader has too, by id: the data refers to them by place
    """
    return x if is_plain(x) else _Encoding(held or {}).value(x, 0)


class _Encoding:
    """State of encoding one value.

    seen      numbers mutable objects, so that one list held twice comes back as one
    in_error  in a part of an exception, where objects of any class are data if they are nothing but their attributes
    unmade    exceptions whose arguments are being written, without which the reader cannot make them
    """

    def __init__(self, held: Mapping[int, list[Any]]) -> None:
        self.held = held
        self.seen: dict[int, int] = {}
        self.keep: list[Any] = []
        self.in_error = False
        self.unmade: set[int] = set()

    def value(self, x: Any, depth: int) -> Any:
        if is_plain(x):
            return x
        cls = type(x)
        if depth > MAX_DEPTH:
            raise NotData(f"a {cls.__name__} that is nested more than {MAX_DEPTH} deep")
        if cls not in _FIXED:
            if id(x) in self.held:
                return {TAG: ["held", self.held[id(x)]]}
            if id(x) in self.unmade:
                raise NotData(f"a {cls.__name__} that holds itself")
            if id(x) in self.seen:
                return {TAG: ["=", self.seen[id(x)]]}
            self.seen[id(x)] = len(self.seen)
            self.keep.append(x)
        if cls is list:
            return [*x] if are_atoms(x) else [i if is_plain(i) else self.value(i, depth + 1) for i in x]
        if cls is dict:
            if all(type(k) is str and not k.startswith(TAG) for k in x):
                return {k: v if is_plain(v) else self.value(v, depth + 1) for k, v in x.items()}
            return {TAG: ["dict", [self.many(pair, depth) for pair in x.items()]]}
        rule = _WRITE.get(cls)
        if rule is not None:
            return {TAG: rule(self, x, depth)}
        return {TAG: self.object(x, depth)}

    def many(self, items: Any, depth: int) -> list[Any]:
        return [self.value(i, depth + 1) for i in items]

    def object(self, x: Any, depth: int) -> list[Any]:
        """Encode an instance of a class: the class's name and the instance's contents."""
        cls: Any = type(x)
        if cls.__module__ == "zoneinfo" and getattr(x, "key", None) is not None:
            return ["zone", x.key]
        if isinstance(x, pathlib.PurePath) and cls.__module__.startswith("pathlib"):
            return ["path", cls.__name__, str(x)]
        if arrays.is_array(x) or arrays.is_scalar(cls):
            found = arrays.written(x, lambda items: self.many(items, depth))
            if isinstance(found, str):
                raise NotData(found)
            return found
        where = _named(cls)
        if isinstance(x, enum.Flag):
            return ["flag", where, self.value(x.value, depth + 1)]  # a combination has no name of its own
        if isinstance(x, enum.Enum):
            return ["enum", where, x.name]
        if isinstance(x, BaseException):
            if next(base for base in cls.__mro__ if isinstance(base.__dict__.get("__new__"), types.BuiltinFunctionType)).__module__ != "builtins":
                return self.refusal(x, depth)
            args = x.__reduce__()[1] if isinstance(x, OSError) and type(x).__reduce__ is OSError.__reduce__ else x.args  # with file names
            return self.error(x, where, args, depth)
        if isinstance(x, tuple) and hasattr(cls, "_fields") and not getattr(x, "__dict__", None):
            return ["named", where, self.many(x, depth)]
        if is_struct(cls):
            values, others = cast(Any, x.__reduce__())[1]
            return ["struct", where, self.many(values, depth), [[k, self.value(v, depth + 1)] for k, v in others.items()]]
        if is_namespace(cls):
            return ["names", where, [self.many(pair, depth) for pair in vars(x).items()]]
        if cls is not object and all(c is object or has_fields(c) for c in cls.__mro__):
            names = field_names(cls)
            if (getattr(x, "__dict__", {}).keys() | _slots(x)) - set(names):
                raise NotData(f"a {cls.__name__} with attributes beside its fields")
            return ["data", where, [[n, self.value(getattr(x, n), depth + 1)] for n in names if hasattr(x, n)]]
        if hasattr(cls, "__pydantic_fields__") and not getattr(x, "__pydantic_private__", None):
            held = [[k, self.value(v, depth + 1)] for k, v in vars(x).items()]
            extra = getattr(x, "__pydantic_extra__", None)
            return ["model", where, held, sorted(getattr(x, "__pydantic_fields_set__", ())), self.value(extra, depth + 1)]
        if self.in_error and errors.is_simple(cls) and vars(x):  # one without attributes is told from others by itself
            return ["object", where, [[k, self.value(v, depth + 1)] for k, v in vars(x).items()]]
        raise NotData(f"a {cls.__name__}")

    def error(self, x: BaseException, where: str, args: Sequence[Any], depth: int) -> list[Any]:
        """Encode an exception, with what stands for those of its parts that are no data, as long as they are no part of its message."""
        shown, lost = message_of(x), dict[int, NotData]()
        held = _held_by_error(x)
        self.unmade.add(id(x))
        parts = [self.part(value, depth, lost) for value in args]
        self.unmade.discard(id(x))
        own = [[name, self.part(value, depth, lost)] for name, value in held]
        if lost and _message_without(lost, type(x), args, held) != shown:
            raise next(iter(lost.values()))
        return ["error", where, parts, own, shown, *self.cause(x, depth)]

    def part(self, x: Any, depth: int, lost: dict[int, NotData]) -> Any:
        apart = self.apart()
        apart.in_error = True
        try:
            found = apart.value(x, depth + 1)
        except NotData as what:
            lost[id(x)] = what
            return {TAG: ["lost", type(x).__name__]}
        self.seen = apart.seen
        return found

    def apart(self) -> _Encoding:
        """Return the state of encoding a part that may turn out to be no data."""
        apart = _Encoding(self.held)
        apart.seen, apart.keep, apart.unmade = dict(self.seen), self.keep, self.unmade
        return apart

    def held_by(self, x: BaseException, depth: int) -> list[Any]:
        return [[k, self.value(v, depth + 1)] for k, v in _held_by_error(x)]

    def refusal(self, x: BaseException, depth: int) -> list[Any]:
        """Encode a pydantic ValidationError: which rules the validated value broke."""
        cls = type(x)
        if (cls.__module__, cls.__qualname__) != REFUSAL:
            raise NotData(f"a {cls.__name__}, which only its own library makes")
        title, errors, kind, hidden = cast(Any, x.__reduce__()[1])  # a function and what it takes
        lines = [
            [_kind_of_refusal(e["type"]), self.many(e["loc"], depth), self.value(e["input"], depth + 1), self.value(e.get("ctx"), depth + 1)] for e in errors
        ]
        return ["refused", ":".join(REFUSAL), title, lines, str(x), kind, hidden, self.held_by(x, depth), *self.cause(x, depth)]

    def cause(self, x: BaseException, depth: int) -> list[Any]:
        """Encode the exception that one was raised from; anything that is not data is left out, as its traceback is."""
        if x.__cause__ is None:
            return []
        apart = self.apart()
        try:
            found = apart.value(x.__cause__, depth + 1)
        except NotData:
            return []
        self.seen = apart.seen
        return [found]


def _message_without(lost: Collection[int], cls: type, args: Sequence[Any], held: Sequence[tuple[str, Any]]) -> str | None:
    """Return the message of an exception without some of its parts, by id; None if its class needs them."""
    try:
        like = errors.made(cls, [errors.Lost("") if id(value) in lost else value for value in args])
    except (TypeError, ValueError, JournalError):
        return None
    for name, value in held:
        errors.set_attribute(like, name, errors.Lost("") if id(value) in lost else value)
    return message_of(like)


def has_fields(cls: Any) -> bool:
    """Return whether it is a dataclass, or a class of attrs."""
    return dataclasses.is_dataclass(cls) or "__attrs_attrs__" in vars(cls)


def field_names(cls: Any) -> list[str]:
    """Return the names of the fields of such a class."""
    return [f.name for f in (vars(cls)["__attrs_attrs__"] if "__attrs_attrs__" in vars(cls) else dataclasses.fields(cls))]


@functools.lru_cache(4096)
def slot_members(cls: type) -> tuple[tuple[str, types.MemberDescriptorType], ...]:
    """Return what a class has as `__slots__`, by name."""
    slotted = [base for base in cls.__mro__ if "__slots__" in vars(base)]
    return tuple((name, member) for base in slotted for name, member in vars(base).items() if type(member) is types.MemberDescriptorType)


def _slots(x: Any) -> set[str]:
    """Return the names of the slots of an instance that hold something."""
    return {name for name, member in slot_members(type(x)) if _holds(member, x)}


def _holds(member: types.MemberDescriptorType, x: Any) -> bool:
    try:
        member.__get__(x, type(x))
    except AttributeError:
        return False
    return True


def is_struct(cls: Any) -> bool:
    """Return whether a class is one of Python's tuples with named fields, such as `time.struct_time`."""
    return issubclass(cls, tuple) and "n_sequence_fields" in vars(cls) and isinstance(cls.__new__, types.BuiltinFunctionType)


def is_namespace(cls: type) -> bool:
    """Return whether a class is one of Python's whose instances are their attributes, which may be any."""
    return (cls.__module__, cls.__qualname__) in _NAMESPACES


_NAMESPACES = frozenset({("types", "SimpleNamespace"), ("argparse", "Namespace"), ("subprocess", "CompletedProcess")})


def _kind_of_refusal(kind: Any) -> Any:
    """Build a pydantic error kind from its name; a program's own kind is a name and a text."""
    return kind if isinstance(kind, str) else [kind.type, kind.message_template]


REFUSAL = ("pydantic_core._pydantic_core", "ValidationError")
"""Module and name of the class of pydantic's errors."""


def _held_by_error(x: BaseException) -> list[tuple[str, Any]]:
    """Return the attributes that an exception holds besides its arguments."""
    held = {k: v for k, v in vars(x).items() if not k.startswith("__lmc")}
    for cls in type(x).__mro__:
        slots = _ALSO.get(cls, ()) if cls.__module__ == "builtins" else [k for k, v in vars(cls).items() if isinstance(v, types.MemberDescriptorType)]
        held |= {k: getattr(x, k) for k in slots if getattr(x, k, None) is not None}
    return list(held.items())


_ALSO: Mapping[type, tuple[str, ...]] = {ImportError: ("name", "path"), NameError: ("name",), AttributeError: ("name",)}
"""Attributes of Python's own exceptions that are not in their arguments."""


def _named(cls: type) -> str:
    """Encode a class as module:name, if it can be imported from there."""
    module, name = cls.__module__, cls.__qualname__
    if found_class(module, name) is not cls:
        raise NotData(f"a {name}")  # a class that is not where it says
    return f"{module}:{name}"


def found_class(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if found is not None and hasattr(found, "__dict__") else None
    return found


def _pairs(e: _Encoding, x: Any, depth: int) -> list[Any]:
    return [e.many(pair, depth) for pair in x.items()]


def _sorted(items: Any) -> list[Any]:
    """Sort the items of a set in an order that is the same in every process."""
    return sorted(items, key=lambda i: dumps(encode(i)))


def _default_dict(e: _Encoding, x: Any, depth: int) -> list[Any]:
    factory = x.default_factory
    name = next((n for n, f in FACTORIES.items() if f is factory), None)
    if name is None:
        raise NotData(f"a defaultdict of {factory!r}")
    return ["defaultdict", name, _pairs(e, x, depth)]


def _instant(e: _Encoding, x: Any, depth: int) -> list[Any]:
    zone = x.tzinfo
    if type(zone).__module__ == "zoneinfo" and getattr(zone, "key", None) is not None:
        return [type(x).__name__, x.replace(tzinfo=None).isoformat(), x.fold, None, zone.key]
    if zone is not None and type(zone) is not datetime.timezone:
        raise NotData(f"a {type(x).__name__} in the zone {zone!r}")
    return [type(x).__name__, x.replace(tzinfo=None).isoformat(), x.fold, *(_offset(zone) if zone is not None else (None, None))]


def _offset(zone: datetime.timezone) -> tuple[float, str]:
    return zone.utcoffset(None).total_seconds(), zone.tzname(None)


_Write = Callable[[_Encoding, Any, int], list[Any]]
_WRITE: Mapping[type, _Write] = {
    int: lambda e, x, d: ["int", hex(x)],
    tuple: lambda e, x, d: ["tuple", e.many(x, d)],
    set: lambda e, x, d: ["set", e.many(_sorted(x), d)],
    frozenset: lambda e, x, d: ["frozenset", e.many(_sorted(x), d)],
    bytes: lambda e, x, d: ["bytes", base64.b64encode(x).decode()],
    bytearray: lambda e, x, d: ["bytearray", base64.b64encode(x).decode()],
    complex: lambda e, x, d: ["complex", x.real, x.imag],
    slice: lambda e, x, d: ["slice", e.many((x.start, x.stop, x.step), d)],
    range: lambda e, x, d: ["range", *e.many((x.start, x.stop, x.step), d)],
    type(Ellipsis): lambda e, x, d: ["ellipsis"],
    type(NotImplemented): lambda e, x, d: ["notimplemented"],
    deque: lambda e, x, d: ["deque", e.many(x, d), x.maxlen],
    OrderedDict: lambda e, x, d: ["ordered", _pairs(e, x, d)],
    Counter: lambda e, x, d: ["counter", _pairs(e, x, d)],
    defaultdict: _default_dict,
    array.array: lambda e, x, d: ["array", x.typecode, x.tolist()],
    datetime.date: lambda e, x, d: ["date", x.isoformat()],
    datetime.time: _instant,
    datetime.datetime: _instant,
    datetime.timedelta: lambda e, x, d: ["timedelta", x.days, x.seconds, x.microseconds],
    datetime.timezone: lambda e, x, d: ["timezone", *_offset(x)],
    decimal.Decimal: lambda e, x, d: ["decimal", str(x)],
    fractions.Fraction: lambda e, x, d: ["fraction", *e.many((x.numerator, x.denominator), d)],
    uuid.UUID: lambda e, x, d: ["uuid", x.hex],
    errors.Lost: lambda e, x, d: ["lost", x.kind],
}
_FIXED = frozenset({
    int, tuple, frozenset, bytes, complex, slice, range, type(Ellipsis), type(NotImplemented), datetime.date, datetime.time, datetime.datetime,
    datetime.timedelta, datetime.timezone, decimal.Decimal, fractions.Fraction, uuid.UUID, errors.Lost,
})  # fmt: skip
"""Types whose objects cannot change: two equal ones are as good as one."""
FACTORIES: Mapping[str, Any] = {"none": None, "list": list, "dict": dict, "set": set, "int": int, "float": float, "str": str}
"""What a defaultdict may be filled by."""

DATA = frozenset({*PLAIN, list, dict, *_WRITE})
"""Types whose objects are data in any program."""
