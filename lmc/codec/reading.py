"""Values read from data. Executes nothing: no constructor of a program, no import, no hook of a class."""

from __future__ import annotations

import array
import base64
import datetime
import decimal
import enum
import fractions
import math
import pathlib
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from lmc.codec import arrays, errors
from lmc.codec.writing import FACTORIES, REFUSAL, TAG, field_names, found_class, has_fields, is_namespace, is_struct
from lmc.errors import JournalError
from lmc.json_data import PLAIN


class BadData(Exception):
    """Data that does not stand for a value here; the message says why."""


class NotImported(BadData):
    """Data of a class that is not there: the module that defines it may not have been imported."""


def decode(data: Any, found: Callable[[list[Any]], Any] | None = None) -> Any:
    """Decode the value that data represents; `found` gives the object at a place. Raises BadData."""
    if type(data) in PLAIN:
        return data
    try:
        return _Decoding(found).value(data)
    except BadData:
        raise
    # OSError: of a zone's file; JournalError: of a part of an exception that was lost
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, OSError, RecursionError, JournalError) as error:
        raise BadData(f"{type(error).__name__}: {error}") from None


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


def _fill_ordered(d: _Decoding, pairs: Any) -> OrderedDict[Any, Any]:
    made: OrderedDict[Any, Any] = d.keeps(OrderedDict())
    for pair in pairs:
        key, value = d.many(pair)
        made[key] = value
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
    cls = found_class(module, name)
    if not isinstance(cls, type) or not wanted(cls):
        raise NotImported(f"{module}.{name} is not there, or is not what it was; import its module first")
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
    made = d.seen[index] = errors.made(cls, d.many(args))
    for name, value in own:
        errors.set_attribute(made, name, d.value(value))
    if cause is not None:
        made.__cause__ = d.value(cause)
    return made


def _read_refusal(d: _Decoding, where: str, title: str, lines: Any, shown: str, kind: str, hidden: bool, own: Any, cause: Any = None) -> BaseException:
    cls = _class(where, lambda c: (c.__module__, c.__qualname__) == REFUSAL)
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
    cls = _class(where, has_fields)
    made = d.keeps(object.__new__(cls))
    names = {*field_names(cls)}
    for name, value in fields:
        if name not in names:
            raise BadData(f"{where} no longer has a field {name!r}")
        errors.set_attribute(made, name, d.value(value))
    return made


def _read_struct(d: _Decoding, where: str, values: Any, others: Any) -> Any:
    index = d.place()
    made = d.seen[index] = _class(where, is_struct)(tuple(d.many(values)), {name: d.value(value) for name, value in others})
    return made


def _read_array(d: _Decoding, kind: str, shape: list[int], order: str, writeable: bool, held: Any) -> Any:
    if kind == "|O" and (type(held) is not list or len(held) != math.prod(shape)):
        raise BadData("an array of objects with fewer or more than it holds")
    made = d.keeps(arrays.read_array(kind, shape, order, held))
    if kind == "|O":
        arrays.fill(made, d.many(held), order)
    made.flags.writeable = bool(writeable)
    return made


def _read_object(d: _Decoding, where: str, held: Any) -> Any:
    made = d.keeps(object.__new__(_class(where, errors.is_simple)))
    for name, value in held:
        made.__dict__[name] = d.value(value)
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
    "ordered": _fill_ordered,
    "counter": lambda d, pairs: _fill(d, Counter[Any](), pairs),
    "defaultdict": lambda d, factory, pairs: _fill(d, defaultdict(FACTORIES[factory]), pairs),
    "array": lambda d, code, items: d.keeps(array.array(code, items)),
    "array of": _read_array,
    "scalar": lambda d, kind, data: d.keeps(arrays.read_scalar(kind, data)),
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
    "object": _read_object,
    "lost": lambda d, kind: errors.Lost(str(kind)),
    "refused": _read_refusal,
    "named": _read_named,
    "data": _read_data,
    "struct": _read_struct,
    "names": _read_names,
    "model": _read_model,
}
