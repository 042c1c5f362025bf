"""Values as data: JSON with tags for what JSON lacks. Reading executes nothing: no constructor, no import, no hook of a class.

It covers the state a program can observe: numbers, text, containers with their sharing, dates, paths, exceptions,
dataclasses, enums, named tuples. Anything else is refused with `NotData`, so that nothing comes back as less than it
was.
"""

from __future__ import annotations

import array
import base64
import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import sys
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, cast

from lmc.errors import message_of
from lmc.json_data import PLAIN, are_atoms, dumps, is_plain

TAG = "!"
"""The key of what JSON lacks: `{"!": [tag, …]}`. Plain dicts with keys that begin so are tagged as well."""
MAX_DEPTH = 200
"""Most nested containers."""


class NotData(Exception):
    """A value that cannot be written as data; the message says which."""


class BadData(Exception):
    """Data that does not stand for a value here; the message says why."""


def encode(x: Any, held: Mapping[int, list[Any]] | None = None) -> Any:
    """Encode a value as JSON-able data. Raises NotData.

    held  places of objects that the reader has too, by id: the data refers to them by place
    """
    return x if is_plain(x) else _Encoding(held or {}).value(x, 0)


def decode(data: Any, found: Callable[[list[Any]], Any] | None = None) -> Any:
    """Decode the value that data represents; `found` gives the object at a place. Raises BadData."""
    if type(data) in PLAIN:
        return data
    try:
        return _Decoding(found).value(data)
    except BadData:
        raise
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        raise BadData(f"{type(error).__name__}: {error}") from None


# -- writing ---------------------------------------------------------------------------------------------------------


class _Encoding:
    """State of encoding one value. `seen` numbers mutable objects, so that one list held twice comes back as one."""

    def __init__(self, held: Mapping[int, list[Any]]) -> None:
        self.held = held
        self.seen: dict[int, int] = {}
        self.keep: list[Any] = []

    def value(self, x: Any, depth: int) -> Any:
        if is_plain(x):
            return x
        cls = type(x)
        if depth > MAX_DEPTH:
            raise NotData(f"a {cls.__name__} that is nested more than {MAX_DEPTH} deep")
        if cls not in _FIXED:
            if id(x) in self.held:
                return {TAG: ["held", self.held[id(x)]]}
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
        where = _named(cls)
        if isinstance(x, enum.Flag):
            return ["flag", where, self.value(x.value, depth + 1)]  # a combination has no name of its own
        if isinstance(x, enum.Enum):
            return ["enum", where, x.name]
        if isinstance(x, BaseException):
            if next(base for base in cls.__mro__ if isinstance(base.__dict__.get("__new__"), types.BuiltinFunctionType)).__module__ != "builtins":
                return self.refusal(x, depth)
            own = self.held_by(x, depth)
            args = x.__reduce__()[1] if isinstance(x, OSError) and type(x).__reduce__ is OSError.__reduce__ else x.args  # with file names
            return ["error", where, self.many(args, depth), own, message_of(x), *self.cause(x, depth)]
        if isinstance(x, tuple) and hasattr(cls, "_fields") and not getattr(x, "__dict__", None):
            return ["named", where, self.many(x, depth)]
        if _is_struct(cls):
            values, others = cast(Any, x.__reduce__())[1]
            return ["struct", where, self.many(values, depth), [[k, self.value(v, depth + 1)] for k, v in others.items()]]
        if is_namespace(cls):
            return ["names", where, [self.many(pair, depth) for pair in vars(x).items()]]
        if dataclasses.is_dataclass(x) and cls.__mro__[1:] and all(c is object or dataclasses.is_dataclass(c) for c in cls.__mro__):
            names = [f.name for f in dataclasses.fields(x)]
            if getattr(x, "__dict__", {}).keys() - set(names):
                raise NotData(f"a {cls.__name__} with attributes beside its fields")
            return ["data", where, [[n, self.value(getattr(x, n), depth + 1)] for n in names if hasattr(x, n)]]
        if hasattr(cls, "__pydantic_fields__") and not getattr(x, "__pydantic_private__", None):
            held = [[k, self.value(v, depth + 1)] for k, v in vars(x).items()]
            extra = getattr(x, "__pydantic_extra__", None)
            return ["model", where, held, sorted(getattr(x, "__pydantic_fields_set__", ())), self.value(extra, depth + 1)]
        raise NotData(f"a {cls.__name__}")

    def held_by(self, x: BaseException, depth: int) -> list[Any]:
        return [[k, self.value(v, depth + 1)] for k, v in _held_by_error(x)]

    def refusal(self, x: BaseException, depth: int) -> list[Any]:
        """Encode a pydantic ValidationError: which rules the validated value broke."""
        cls = type(x)
        if (cls.__module__, cls.__qualname__) != _REFUSAL:
            raise NotData(f"a {cls.__name__}, which only its own library makes")
        title, errors, kind, hidden = cast(Any, x.__reduce__()[1])  # a function and what it takes
        lines = [
            [_kind_of_refusal(e["type"]), self.many(e["loc"], depth), self.value(e["input"], depth + 1), self.value(e.get("ctx"), depth + 1)] for e in errors
        ]
        return ["refused", ":".join(_REFUSAL), title, lines, str(x), kind, hidden, self.held_by(x, depth), *self.cause(x, depth)]

    def cause(self, x: BaseException, depth: int) -> list[Any]:
        """Encode the exception that one was raised from; anything that is not data is left out, as its traceback is."""
        if x.__cause__ is None:
            return []
        apart = _Encoding(self.held)
        apart.seen, apart.keep = dict(self.seen), self.keep
        try:
            found = apart.value(x.__cause__, depth + 1)
        except NotData:
            return []
        self.seen = apart.seen
        return [found]


def _is_struct(cls: Any) -> bool:
    """Return whether a class is one of Python's tuples with named fields, such as `time.struct_time`."""
    return issubclass(cls, tuple) and "n_sequence_fields" in vars(cls) and isinstance(cls.__new__, types.BuiltinFunctionType)


def is_namespace(cls: type) -> bool:
    """Return whether a class is one of Python's whose instances are their attributes, which may be any."""
    return (cls.__module__, cls.__qualname__) in _NAMESPACES


_NAMESPACES = frozenset({("types", "SimpleNamespace"), ("argparse", "Namespace"), ("subprocess", "CompletedProcess")})


def _kind_of_refusal(kind: Any) -> Any:
    """Build a pydantic error kind from its name; a program's own kind is a name and a text."""
    return kind if isinstance(kind, str) else [kind.type, kind.message_template]


_REFUSAL = ("pydantic_core._pydantic_core", "ValidationError")


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
    if _found(module, name) is not cls:
        raise NotData(f"a {name}")  # a class that is not where it says
    return f"{module}:{name}"


def _found(module: str, name: str) -> Any:
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
    name = next((n for n, f in _FACTORIES.items() if f is factory), None)
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
}
_FIXED = frozenset({
    int, tuple, frozenset, bytes, complex, slice, range, type(Ellipsis), type(NotImplemented), datetime.date, datetime.time, datetime.datetime,
    datetime.timedelta, datetime.timezone, decimal.Decimal, fractions.Fraction, uuid.UUID,
})  # fmt: skip
"""Types whose objects cannot change: two equal ones are as good as one."""
_FACTORIES: Mapping[str, Any] = {"none": None, "list": list, "dict": dict, "set": set, "int": int, "float": float, "str": str}


# -- reading ---------------------------------------------------------------------------------------------------------


class _Decoding:
    """State of decoding one value. `seen` has its mutable objects, by the numbers that they were written with."""

    def __init__(self, found: Callable[[list[Any]], Any] | None) -> None:
        self.found = found
        self.seen: list[Any] = []

    def value(self, data: Any) -> Any:
        cls = type(data)
        if cls in PLAIN:
            return data
        if cls is list:
            made: list[Any] = []
            self.seen.append(made)
            made.extend(i if type(i) in PLAIN else self.value(i) for i in data)
            return made
        if cls is not dict:
            raise BadData(f"a {cls.__name__} is not data")
        if TAG not in data:
            found: dict[str, Any] = {}
            self.seen.append(found)
            for k, v in data.items():
                found[k] = v if type(v) in PLAIN else self.value(v)
            return found
        tag, *rest = data[TAG]
        rule = _READ.get(tag) if isinstance(tag, str) else None
        if rule is None:
            raise BadData(f"an unknown tag {tag!r}")
        return rule(self, *rest)

    def many(self, items: Any) -> list[Any]:
        """Decode items in order; the list is not one of the value's own."""
        if type(items) is not list:
            raise BadData("items that are not a list")
        return [self.value(i) for i in items]

    def keeps(self, made: Any) -> Any:
        self.seen.append(made)
        return made

    def place(self) -> int:
        """Reserve the number of an object that cannot be built before its contents."""
        self.seen.append(_UNMADE)
        return len(self.seen) - 1


_UNMADE = object()


def _again(d: _Decoding, index: int) -> Any:
    made = d.seen[index]
    if made is _UNMADE or index < 0:
        raise BadData("something that holds itself and cannot")
    return made


def _held(d: _Decoding, place: list[Any]) -> Any:
    if d.found is None:
        raise BadData("a place of an object, and nothing to find it in")
    return d.found(place)


def _fill(d: _Decoding, made: Any, pairs: Any) -> Any:
    d.keeps(made)
    for pair in pairs:
        key, value = d.many(pair)
        dict.__setitem__(made, key, value)
    return made


def _read_set(d: _Decoding, items: Any) -> set[Any]:
    made: set[Any] = d.keeps(set())
    made.update(d.many(items))
    return made


def _read_deque(d: _Decoding, items: Any, most: Any) -> deque[Any]:
    made: deque[Any] = d.keeps(deque(maxlen=most))
    made.extend(d.many(items))
    return made


def _class(where: Any, wanted: Callable[[Any], bool]) -> Any:
    """Return the class of a name, if it exists and is of the kind that was written."""
    module, _, name = where.partition(":")
    cls = _found(module, name)
    if not isinstance(cls, type) or not wanted(cls):
        raise BadData(f"{module}.{name} is not there, or is not what it was; import its module first")
    return cls


def _read_enum(d: _Decoding, where: str, name: str) -> Any:
    cls = _class(where, lambda c: issubclass(c, enum.Enum))
    d.place()
    member = cls._member_map_.get(name)
    if member is None:
        raise BadData(f"{where} has no member {name!r}")
    d.seen[-1] = member
    return member


def _read_flag(d: _Decoding, where: str, value: int) -> Any:
    cls = _class(where, lambda c: issubclass(c, enum.Flag))
    if type(value) is not int:
        raise BadData(f"{where} of {value!r}")
    found = cls._value2member_map_.get(value)
    return d.keeps(vars(enum.Flag)["_missing_"].__func__(cls, value) if found is None else found)  # the class's own may be code of a program


def _read_error(d: _Decoding, where: str, args: Any, own: Any, shown: str, cause: Any = None) -> BaseException:
    cls = _class(where, lambda c: issubclass(c, BaseException))
    index = d.place()
    base: Any = next(c for c in cls.__mro__ if c.__module__ == "builtins")  # its constructor runs no code of a program
    values = d.many(args)
    made = base.__new__(cls, *values)
    base.__init__(made, *values)
    d.seen[index] = made
    for name, value in own:
        holder = next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None)
        if isinstance(holder, types.MemberDescriptorType):
            holder.__set__(made, d.value(value))
        else:
            made.__dict__[name] = d.value(value)
    if cause is not None:
        made.__cause__ = d.value(cause)
    return made


def _read_refusal(d: _Decoding, where: str, title: str, lines: Any, shown: str, kind: str, hidden: bool, own: Any, cause: Any = None) -> BaseException:
    cls = _class(where, lambda c: (c.__module__, c.__qualname__) == _REFUSAL)
    from pydantic_core import InitErrorDetails, PydanticCustomError

    index, found = d.place(), list[InitErrorDetails]()
    for name, loc, given, context in lines:
        loc, given, context = tuple(d.many(loc)), d.value(given), d.value(context)
        known: Any = name if isinstance(name, str) else PydanticCustomError(name[0], name[1], context)
        found.append(InitErrorDetails(type=known, loc=loc, input=given))
        if context is not None:
            found[-1]["ctx"] = context
    made = d.seen[index] = cls.from_exception_data(title, found, kind, hidden)
    made.args = ()
    vars(made).update({name: d.value(value) for name, value in own})
    if cause is not None:
        made.__cause__ = d.value(cause)
    return made


def _read_named(d: _Decoding, where: str, items: Any) -> Any:
    cls = _class(where, lambda c: issubclass(c, tuple) and hasattr(c, "_fields"))
    index = d.place()
    values = d.many(items)
    if len(values) != len(cls._fields):
        raise BadData(f"{where} has other fields than before")
    made = d.seen[index] = tuple.__new__(cls, values)
    return made


def _read_data(d: _Decoding, where: str, fields: Any) -> Any:
    cls = _class(where, dataclasses.is_dataclass)
    made = d.keeps(object.__new__(cls))
    names = {f.name for f in dataclasses.fields(cls)}
    for name, value in fields:
        if name not in names:
            raise BadData(f"{where} no longer has a field {name!r}")
        object.__setattr__(made, name, d.value(value))
    return made


def _read_struct(d: _Decoding, where: str, values: Any, others: Any) -> Any:
    index = d.place()
    made = d.seen[index] = _class(where, _is_struct)(tuple(d.many(values)), {name: d.value(value) for name, value in others})
    return made


def _read_names(d: _Decoding, where: str, pairs: Any) -> Any:
    cls = _class(where, is_namespace)
    made = d.keeps(cls.__new__(cls))
    vars(made).update(d.many(pair) for pair in pairs)
    return made


def _read_model(d: _Decoding, where: str, held: Any, given: Any, extra: Any) -> Any:
    cls = _class(where, lambda c: hasattr(c, "__pydantic_fields__"))
    made = d.keeps(object.__new__(cls))
    object.__setattr__(made, "__dict__", {name: d.value(value) for name, value in held})
    for name, value in (("fields_set", set(given)), ("extra", d.value(extra)), ("private", None)):
        object.__setattr__(made, f"__pydantic_{name}__", value)
    return made


def _read_instant(cls: Any) -> Callable[..., Any]:
    def read(d: _Decoding, text: str, fold: int, offset: Any, name: Any) -> Any:
        zone = None
        if offset is not None:
            zone = _zone_at(offset, name)
        elif name is not None:
            zone = _zone_of(name)
        return cls.fromisoformat(text).replace(tzinfo=zone, fold=fold)

    return read


def _zone_at(offset: float, name: str) -> datetime.timezone:
    zone = datetime.timezone(datetime.timedelta(seconds=offset))
    return zone if zone.tzname(None) == name else datetime.timezone(zone.utcoffset(None), name)


def _zone_of(key: str) -> datetime.tzinfo:
    from zoneinfo import ZoneInfo

    return ZoneInfo(key)


_PATHS: Mapping[str, Any] = {c.__name__: c for c in (
    pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)}  # fmt: skip

_READ: Mapping[str, Callable[..., Any]] = {
    "=": _again,
    "int": lambda d, text: int(text, 16),
    "held": _held,
    "tuple": lambda d, items: tuple(d.many(items)),
    "set": _read_set,
    "frozenset": lambda d, items: frozenset(d.many(items)),
    "dict": lambda d, pairs: _fill(d, {}, pairs),
    "bytes": lambda d, text: base64.b64decode(text, validate=True),
    "bytearray": lambda d, text: d.keeps(bytearray(base64.b64decode(text, validate=True))),
    "complex": lambda d, real, imag: complex(real, imag),
    "slice": lambda d, parts: slice(*d.many(parts)),
    "range": lambda d, *parts: range(*map(d.value, parts)),
    "ellipsis": lambda d: Ellipsis,
    "notimplemented": lambda d: NotImplemented,
    "deque": _read_deque,
    "ordered": lambda d, pairs: _fill_ordered(d, pairs),
    "counter": lambda d, pairs: _fill(d, Counter[Any](), pairs),
    "defaultdict": lambda d, factory, pairs: _fill(d, defaultdict(_FACTORIES[factory]), pairs),
    "array": lambda d, code, items: d.keeps(array.array(code, items)),
    "date": lambda d, text: datetime.date.fromisoformat(text),
    "time": _read_instant(datetime.time),
    "datetime": _read_instant(datetime.datetime),
    "timedelta": lambda d, *parts: datetime.timedelta(*parts),
    "timezone": lambda d, offset, name: _zone_at(offset, name),
    "zone": lambda d, key: d.keeps(_zone_of(key)),
    "decimal": lambda d, text: decimal.Decimal(text),
    "fraction": lambda d, a, b: fractions.Fraction(d.value(a), d.value(b)),
    "uuid": lambda d, text: uuid.UUID(text),
    "path": lambda d, name, text: d.keeps(_PATHS[name](text)),
    "enum": _read_enum,
    "flag": _read_flag,
    "error": _read_error,
    "refused": _read_refusal,
    "named": _read_named,
    "data": _read_data,
    "struct": _read_struct,
    "names": _read_names,
    "model": _read_model,
}


def _fill_ordered(d: _Decoding, pairs: Any) -> OrderedDict[Any, Any]:
    made: OrderedDict[Any, Any] = d.keeps(OrderedDict())
    for pair in pairs:
        key, value = d.many(pair)
        made[key] = value
    return made


DATA = frozenset({*PLAIN, list, dict, *_WRITE})
"""Types whose objects are data in any program."""
