"""Host operations: Python's own operations by name, and what is known of them (purity, result type, whether they can raise).

A graph names an operation as `@py.add`; tracer and executor find the function here. Nothing here touches a `Value`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import asyncio
import collections
import collections.abc
import functools
import heapq
import inspect
import itertools
import json
import math
import operator
import re
import string
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmc.backend.base import TakeOver
from lmc.ir.core import Type


def native(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """A call that the program asked for: an exception that comes out of it is the program's own, not a fault of lmc."""
    return fn(*args, **kwargs)


Shape = tuple[Any, ...]
"""An unpacking target: None for a name, "*" for a starred one, a tuple for a nested target."""


def targets(shape: Shape) -> tuple[int, int]:
    """(names before the starred one, names after it), or (names, -1) without a starred one."""
    if "*" in shape:
        star = shape.index("*")
        return star, len(shape) - star - 1
    return len(shape), -1


def _unpack(value: Iterable[Any], shape: Shape) -> tuple[Any, ...]:
    """One item for each target of `shape`: a list for the starred one, such a tuple for a nested one; raises as Python does."""
    before, after = targets(shape)
    if not is_iterable(value):
        raise TypeError(f"cannot unpack non-iterable {type(value).__name__} object")
    items = [x for x in itertools.islice(value, before + 1 if after < 0 else None)]  # noqa: C416 - `list` asks for a length, Python here does not
    if after < 0:
        if len(items) < before:
            raise ValueError(f"not enough values to unpack (expected {before}, got {len(items)})")
        if len(items) > before:
            raise ValueError(f"too many values to unpack (expected {before})")
    elif len(items) < before + after:
        raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})")
    else:
        items[before : len(items) - after] = [items[before : len(items) - after]]
    return tuple([_unpack(x, s) if isinstance(s, tuple) else x for x, s in zip(items, shape, strict=True)])


def match_sequence(subject: Any, length: int, star: int) -> tuple[Any, ...] | None:
    """The items for a sequence pattern of `length` parts, of which number `star` (-1: none) takes a list of what is left; None: no match."""
    if not isinstance(subject, collections.abc.Sequence) or isinstance(subject, str | bytes | bytearray):
        return None
    if len(subject) < length - 1 or (star < 0 and len(subject) != length) or (star >= 0 and len(subject) < length - 1):
        return None
    items = list(subject)
    if star >= 0:
        after = len(items) - (length - 1 - star)
        items[star:after] = [items[star:after]]
    return tuple(items)


def match_mapping(subject: Any, keys: tuple[Any, ...], rest: bool) -> tuple[Any, ...] | None:
    """The values for a mapping pattern with these keys, then a dict of the others if that is wanted; None: no match."""
    if not isinstance(subject, collections.abc.Mapping):
        return None
    missing = object()
    values = [subject.get(key, missing) for key in keys]
    if any(value is missing for value in values):
        return None
    if rest:
        others = dict(subject)
        for key in keys:
            del others[key]
        values.append(others)
    return tuple(values)


def match_class(subject: Any, cls: Any, count: int, names: tuple[str, ...], read: Callable[[Any, str], Any] = getattr) -> tuple[Any, ...] | None:
    """The attributes for a class pattern with `count` positional parts and these names; None: no match."""
    if not isinstance(cls, type):
        raise TypeError("called match pattern must be a class")
    if not isinstance(subject, cls):
        return None
    whole = count > 0 and cls in _MATCHED_WHOLE
    accepted: Any = (cls.__name__,) if whole else getattr(cls, "__match_args__", ())
    if count > len(accepted):
        plural = "" if len(accepted) == 1 else "s"
        raise TypeError(f"{cls.__name__}() accepts {len(accepted)} positional sub-pattern{plural} ({count} given)")
    found: list[Any] = [subject] if whole else []
    try:
        for name in (*(() if whole else accepted[:count]), *names):
            found.append(read(subject, name))
    except AttributeError:
        return None
    return tuple(found)


_MATCHED_WHOLE = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def unsupported(op: str, a: Any, b: Any) -> Any:
    """Raises what Python raises for an operator that no operand knows."""
    raise TypeError(f"unsupported operand type(s) for {op}: '{type(a).__name__}' and '{type(b).__name__}'")


def incomparable(op: str, a: Any, b: Any) -> bool:
    """What Python does when no operand knows how to compare itself."""
    if op in ("==", "!="):
        return (a is b) is (op == "==")
    raise TypeError(f"'{op}' not supported between instances of '{type(a).__name__}' and '{type(b).__name__}'")


def exhausted() -> Any:
    raise StopIteration


def _call_method(owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)


def _call(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def _format(value: Any, conversion: str, spec: str) -> str:
    if conversion:
        value = {"r": repr, "s": str, "a": ascii}[conversion](value)
    return format(value, spec)


def _next(iterator: Any) -> tuple[bool, Any]:
    """(True, the next item), or (False, None) at the end."""
    for item in iterator:
        return True, item
    return False, None


def _itself(awaitable: Any) -> Any:
    return awaitable


async def turns(tasks: int) -> None:
    """Gives the event loop the turns that it has while so many tasks are gathered that wait for nothing."""

    async def nothing() -> None:
        pass

    await asyncio.gather(*[nothing() for _ in range(tasks)])


async def anext_step(iterator: Any) -> tuple[bool, Any]:
    """(True, the next item of an async iterator), or (False, None) at the end."""
    try:
        return True, await anext(iterator)
    except StopAsyncIteration:
        return False, None


def _argsort(keys: Iterable[Any], reverse: bool) -> tuple[int, ...]:
    keys = list(keys)
    return tuple(sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse))


def _argmin(keys: tuple[Any, ...]) -> int:
    return min(range(len(keys)), key=keys.__getitem__)


def _argmax(keys: tuple[Any, ...]) -> int:
    return max(range(len(keys)), key=keys.__getitem__)


class StandIn:
    """In what is compared, stands for a state: equal to itself alone, and without an order, as states are."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandIn) and self.number == other.number

    def __hash__(self) -> int:
        return self.number

    def __lt__(self, other: object) -> bool:
        raise TakeOver("raises where it orders states")  # Python says it in its words

    __gt__ = __le__ = __ge__ = __lt__


class _Numbered:
    """An item of a heap, with its place before something happened to the heap."""

    __slots__ = ("index", "key")

    def __init__(self, index: int, key: Any) -> None:
        self.index, self.key = index, key

    def __lt__(self, other: _Numbered) -> Any:
        return self.key < other.key


def _heaped(name: str, keys: tuple[Any, ...], *more: Any) -> tuple[Any, ...]:
    """What a function of `heapq` does to a heap with these keys, and `more`, numbered behind them: (the number it gives or None, those in the heap)."""
    items = [_Numbered(i, key) for i, key in enumerate((*keys, *more))]
    heap = items[: len(keys)]
    given: _Numbered | None = getattr(heapq, name)(heap, *items[len(keys) :])
    return given and given.index, tuple([item.index for item in heap])


def _text(value: Any) -> str:
    """A value that is appended to a prompt."""
    if isinstance(value, str):
        return value
    raise TakeOver(f"raises where it appends a {type(value).__name__}")  # the interpreter says it in the user's words, or appends an expression


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """The items of `*value`."""
    if not is_iterable(value):
        raise TakeOver("raises TypeError: * takes an iterable")  # Python names the place it stands in
    return tuple(value)


def is_iterable(x: Any) -> bool:
    """Whether Python takes an object apart, without asking the object."""
    return hasattr(type(x), "__iter__") or hasattr(type(x), "__getitem__")


def starred(value: Any, callee: tuple[Any, ...]) -> Any:
    """What `*value` stands for in a call. `callee`: the function, or an object and the name of its method, that Python names in its error."""
    return _callee(callee)(*value) if callee and not is_iterable(value) else value


def merged(given: dict[str, Any], more: Any, callee: tuple[Any, ...]) -> dict[str, Any]:
    """The keywords of a call so far, and what `**more` adds."""
    if type(more) is not dict:
        more = dict(more) if hasattr(more, "keys") else _callee(callee)(**more)
    return {**given, **more} if given.keys().isdisjoint(more) else _callee(callee)(**given, **more)


def _callee(callee: tuple[Any, ...]) -> Any:
    """What a call calls that Python refuses to make: it says why in the callee's name."""
    return callee[0] if len(callee) == 1 else getattr(*callee)


def _choices(value: Any) -> tuple[Any, ...]:
    """What a select was handed to choose from."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TakeOver("raises ArgumentError: choices are a list")  # the replay says it in the user's words
    return tuple(value)


def _named(mapping: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Names and values of what is passed as `**mapping`."""
    if not isinstance(mapping, dict) or not all(type(name) is str for name in mapping):
        raise TakeOver("raises TypeError: ** takes a mapping with names")  # or it is a mapping of another kind
    return tuple(mapping), tuple(mapping.values())


def _pair(value: Any, index: int) -> tuple[Any, ...]:
    """What `dict` takes as a key and its value, as item `index` of what it is handed; else it says what is wrong with it."""
    pair = tuple(value) if is_iterable(value) else ()
    if len(pair) != 2:
        items: list[Any] = [*((i, i) for i in range(index)), pair if is_iterable(value) else value]
        dict(items)
    return pair


def _dict(*items: Any) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _read_list(items: tuple[Any, ...], name: str, *args: Any) -> Any:
    """A method that only reads a list; what it raises speaks of a list."""
    return getattr(list(items), name)(*args)


def _enter(manager: Any) -> Any:
    cls = type(manager)
    if not (hasattr(cls, "__enter__") and hasattr(cls, "__exit__")):
        raise TakeOver(f"raises where it enters a {cls.__name__}")  # Python says what is missing
    return cls.__enter__(manager)


def _exit(manager: Any, error: BaseException | None) -> Any:
    return type(manager).__exit__(manager, *_raised(error))


def _raised(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


async def aenter(manager: Any) -> Any:
    cls = type(manager)
    if not (hasattr(cls, "__aenter__") and hasattr(cls, "__aexit__")):
        raise TakeOver(f"raises where it enters a {cls.__name__}")
    return await cls.__aenter__(manager)


async def aexit(manager: Any, error: BaseException | None) -> Any:
    return await type(manager).__aexit__(manager, *_raised(error))


def _setitem(owner: Any, key: Any, value: Any) -> None:
    owner[key] = value


def _delitem(owner: Any, key: Any) -> None:
    del owner[key]


OPERATIONS: dict[str, Callable[..., Any]] = {
    "py.add": operator.add, "py.sub": operator.sub, "py.mul": operator.mul, "py.truediv": operator.truediv,
    "py.floordiv": operator.floordiv, "py.mod": operator.mod, "py.pow": operator.pow, "py.lshift": operator.lshift,
    "py.rshift": operator.rshift, "py.or": operator.or_, "py.xor": operator.xor, "py.and": operator.and_, "py.matmul": operator.matmul,
    "py.iadd": operator.iadd, "py.isub": operator.isub, "py.imul": operator.imul, "py.itruediv": operator.itruediv,
    "py.ifloordiv": operator.ifloordiv, "py.imod": operator.imod, "py.ipow": operator.ipow, "py.ilshift": operator.ilshift,
    "py.irshift": operator.irshift, "py.ior": operator.ior, "py.ixor": operator.ixor, "py.iand": operator.iand,
    "py.imatmul": operator.imatmul, "py.neg": operator.neg, "py.pos": operator.pos, "py.invert": operator.invert,
    "py.not": operator.not_, "py.bool": bool, "py.eq": operator.eq, "py.ne": operator.ne, "py.lt": operator.lt, "py.le": operator.le,
    "py.gt": operator.gt, "py.ge": operator.ge, "py.is": operator.is_, "py.is_not": operator.is_not,
    "py.in": lambda a, b: a in b, "py.not_in": lambda a, b: a not in b, "py.in_set": lambda a, items: a in set(items),
    "py.in_keys": lambda a, keys: a in dict.fromkeys(keys), "py.getitem": operator.getitem, "py.enter": _enter, "py.exit": _exit, "py.setitem": _setitem,
    "py.delitem": _delitem, "py.getattr": getattr, "py.setattr": setattr, "py.delattr": delattr, "py.slice": slice,
    "py.format": _format, "py.iter": iter, "py.next": _next, "py.unpack": _unpack, "py.call": _call, "py.call_method": _call_method, "py.read_list": _read_list,
    "py.tuple": lambda *items: items, "py.list": lambda *items: list(items), "py.set": lambda *items: set(items), "py.dict": _dict,
    "py.as_tuple": _as_tuple, "py.argsort": _argsort, "py.heaped": _heaped, "py.stand_in": StandIn, "py.argmin": _argmin, "py.argmax": _argmax, "py.text": _text,
    "py.mapping": dict, "py.pair": _pair, "py.choices": _choices, "py.named": _named, "py.aenter": aenter, "py.aexit": aexit,
    "py.await": _itself, "py.aiter": aiter, "py.anext": anext_step, "py.turns": turns,
    "py.match_sequence": match_sequence, "py.match_mapping": match_mapping,
    "py.match_class": match_class,
}  # fmt: skip

BINARY = {
    "+": "py.add", "-": "py.sub", "*": "py.mul", "/": "py.truediv", "//": "py.floordiv", "%": "py.mod", "**": "py.pow", "<<": "py.lshift",
    ">>": "py.rshift", "|": "py.or", "^": "py.xor", "&": "py.and", "@": "py.matmul",
}  # fmt: skip
INPLACE = {op: name.replace("py.", "py.i") for op, name in BINARY.items()}
UNARY = {"-": "py.neg", "+": "py.pos", "~": "py.invert"}
COMPARE = {
    "==": "py.eq", "!=": "py.ne", "<": "py.lt", "<=": "py.le", ">": "py.gt", ">=": "py.ge", "is": "py.is", "is not": "py.is_not",
    "in": "py.in", "not in": "py.not_in",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an operation on immutable operands.

    type       of the result          fresh  the result is a new mutable object: calls are kept apart and in order
    immutable  the result, if `any`   items  type of its items     total  it cannot raise
    """

    type: Type = "any"
    total: bool = False
    fresh: bool = False
    items: str | None = None

    @property
    def immutable(self) -> bool:
        return not self.fresh


_STR = Known("str")
_STR_TOTAL = Known("str", total=True)
_BOOL_TOTAL = Known("bool", total=True)
_INT = Known("int")
_WORDS = Known(fresh=True, items="str")

# str methods by the number of positional arguments (all of them str or int) for which they cannot raise
_STR_METHODS: dict[str, tuple[Known, frozenset[int]]] = {
    **dict.fromkeys("lower upper title capitalize casefold swapcase".split(), (_STR, frozenset({0}))),
    **dict.fromkeys("strip lstrip rstrip".split(), (_STR, frozenset({0, 1}))),
    **dict.fromkeys("removeprefix removesuffix".split(), (_STR, frozenset({1}))),
    **dict.fromkeys("replace zfill ljust rjust center expandtabs join format translate".split(), (_STR, frozenset[int]())),
    **dict.fromkeys("isdigit isalpha isalnum isspace isupper islower isnumeric isdecimal istitle".split(), (Known("bool"), frozenset({0}))),
    **dict.fromkeys("startswith endswith".split(), (Known("bool"), frozenset({1}))),
    **dict.fromkeys("count find rfind".split(), (_INT, frozenset({1}))),
    **dict.fromkeys("index rindex".split(), (_INT, frozenset[int]())),
    **dict.fromkeys("split rsplit splitlines".split(), (_WORDS, frozenset({0}))),
    **dict.fromkeys("partition rpartition encode".split(), (Known(), frozenset[int]())),
}


def str_method(name: str, operand_types: list[str]) -> Known | None:
    """What is known of `str.name` on operands of these types (`self` first); None for a method str does not have."""
    entry = _STR_METHODS.get(name)
    if entry is None:
        return Known() if hasattr(str, name) else None
    known, safe = entry
    args = operand_types[1:]
    total = len(args) in safe and all(t == "str" for t in args)
    if name == "replace":
        total = len(args) == 2 and args == ["str", "str"]
    return Known(known.type, total, known.fresh, known.items)


_METHODS: dict[str, Known] = {
    **dict.fromkeys("findall split rsplit splitlines groupdict finditer copy".split(), Known(fresh=True)),
    **dict.fromkeys(
        "group groups start end span expand search match fullmatch sub subn bit_length is_integer as_integer_ratio hex decode encode count "
        "index lower upper strip startswith endswith find replace".split(), Known()),
}  # fmt: skip


def method(name: str) -> Known | None:
    """What is known of a method of an immutable object that is not text; None: it may give anything."""
    return _METHODS.get(name)


_NUMBERS = frozenset({"int", "float", "bool"})


def operation(name: str, types: list[str]) -> Known:
    """What is known of a `py.*` operation on immutable operands of these types ("imm" where the type is not known)."""
    match name, types:
        case "py.add" | "py.iadd", ["str", "str"]:
            return _STR_TOTAL
        case "py.add" | "py.sub" | "py.mul" | "py.iadd" | "py.isub" | "py.imul", [a, b] if {a, b} <= _NUMBERS:
            return Known("float", total=a == b) if "float" in types else Known("int", total=True)
        case "py.mod" | "py.imod", ["str", _]:
            return _STR
        case "py.mul" | "py.imul", ["str", "int"] | ["int", "str"]:
            return _STR
        case "py.eq" | "py.ne" | "py.is" | "py.is_not" | "py.bool" | "py.not", _ if "imm" not in types:
            return _BOOL_TOTAL
        case "py.is" | "py.is_not", _:
            return _BOOL_TOTAL
        case "py.lt" | "py.le" | "py.gt" | "py.ge", [a, b] if (a == b == "str") or {a, b} <= _NUMBERS:
            return _BOOL_TOTAL
        case "py.in" | "py.not_in", ["str", "str"]:
            return _BOOL_TOTAL
        case "py.eq" | "py.ne" | "py.lt" | "py.le" | "py.gt" | "py.ge" | "py.in" | "py.not_in" | "py.in_set" | "py.in_keys" | "py.bool" | "py.not", _:
            return Known("bool")
        case "py.getitem", ["str", _]:
            return _STR
        case "py.format", [a, *_] if a in ("str", "int", "float", "bool"):
            return _STR
        case "py.format", _:
            return _STR
        case "py.neg" | "py.pos", ["int" | "float"]:
            return Known(types[0], total=True)  # type: ignore[arg-type]
        case "py.tuple", _:
            return Known(total=True)
        case "py.text", _:
            return _STR
        case "py.list" | "py.dict" | "py.set", _:
            return Known(fresh=True, total=name == "py.list")
        case "py.argmin" | "py.argmax", _:
            return _INT
        case "py.stand_in", _:
            return Known(total=True)
        case _:
            return Known()


# functions that only read their arguments; on immutable arguments they are pure
_PURE: dict[Any, Known] = {
    len: _INT, str: _STR, int: _INT, float: Known("float"), bool: Known("bool"), repr: _STR, ascii: _STR, abs: Known(), round: Known(),
    min: Known(), max: Known(), sum: Known(), ord: _INT, chr: _STR, format: _STR, isinstance: Known("bool"), divmod: Known(), pow: Known(),
    hex: _STR, bin: _STR, oct: _STR, complex: Known(), tuple: Known(), frozenset: Known(), bytes: Known(), callable: Known("bool"),
    list: Known(fresh=True), set: Known(fresh=True), dict: Known(fresh=True), sorted: Known(fresh=True), all: Known("bool"), any: Known("bool"),
    slice: Known(), type: Known(), hash: _INT,
    collections.Counter: Known(fresh=True), collections.deque: Known(fresh=True), collections.OrderedDict: Known(fresh=True),
    json.loads: Known(fresh=True), json.dumps: _STR, re.compile: Known(), re.escape: _STR,
    re.search: Known(), re.match: Known(), re.fullmatch: Known(), re.sub: _STR, re.findall: Known(fresh=True), re.split: _WORDS,
    textwrap.dedent: _STR, textwrap.indent: _STR, textwrap.shorten: _STR, textwrap.fill: _STR, string.capwords: _STR,
    **{getattr(math, n): Known() for n in dir(math) if callable(getattr(math, n)) and not n.startswith("_")},
    **{getattr(operator, n): Known() for n in ("add", "sub", "mul", "eq", "lt", "gt", "contains", "itemgetter", "attrgetter")},
}  # fmt: skip


_OF_TEXT: dict[Any, tuple[int, str]] = {re.sub: (2, "string"), re.split: (1, "string"), re.escape: (0, "pattern")}
"""Functions that give text for text and bytes for bytes: where they are handed it, by place or by name."""


def of_text(fn: Any, known: Known, args: Sequence[Any], kwargs: Mapping[str, Any], is_text: Callable[[Any], bool]) -> Known:
    """`known`, or less where that holds for text alone, or for patterns without groups (`re.split` gives None for one that did not match)."""
    if not is_definition(fn) or fn not in _OF_TEXT:
        return known
    place, name = _OF_TEXT[fn]
    given = args[place] if place < len(args) else kwargs.get(name)
    if not is_text(given) or (fn is re.split and not _has_no_groups(args[0] if args else kwargs.get("pattern"))):
        return Known(fresh=known.fresh)
    return known


def _has_no_groups(pattern: Any) -> bool:
    if isinstance(pattern, re.Pattern):
        return pattern.groups == 0
    return type(pattern) is str and "(" not in pattern


def is_definition(fn: Any) -> bool:
    """Whether something is a function or class, which no code of the host hashes."""
    return type(fn) is type or isinstance(fn, types.FunctionType | types.BuiltinFunctionType | types.MethodDescriptorType)


def pure_function(fn: Any) -> Known | None:
    """What is known of a library function that only reads its arguments, or None."""
    if isinstance(fn, types.FunctionType) and fn.__module__ == "statistics":  # by its name: importing it here would cost every program
        return Known(fresh=fn.__name__ in ("multimode", "quantiles")) if fn is getattr(sys.modules.get("statistics"), fn.__name__, None) else None
    return _PURE.get(fn) if is_definition(fn) else None


_SAID: dict[Any, Type] = {str: "str", int: "int", float: "float", bool: "bool", "str": "str", "int": "int", "float": "float", "bool": "bool"}


def said_type(fn: Any) -> Type:
    """The type that a function is annotated to return; the executor checks it, because an annotation may be wrong."""
    if not isinstance(fn, types.FunctionType) or fn.__code__.co_flags & _RETURNS_ANOTHER:
        return "any"
    try:
        said = fn.__annotations__.get("return")
    except NameError:  # a name that only type checkers know
        return "any"
    return _SAID.get(said, "any") if isinstance(said, str | type) else "any"


_RETURNS_ANOTHER = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR

_AT_ONCE: set[Any] = {re.sub, re.subn, sorted, max, min, list.sort, functools.reduce, json.dumps, json.loads}


READ_ALONE: frozenset[int] = frozenset(map(id, (
    *[OPERATIONS[f"py.{name}"] for name in (
        "iter", "next", "getitem", "in", "not_in", "eq", "ne", "lt", "le", "gt", "ge", "bool", "not", "is", "is_not", "add", "mul", "format", "text", "unpack",
        "as_tuple", "match_sequence", "choices", "read_list")],
    len, list, tuple, set, frozenset, sorted, sum, min, max, any, all, str, repr, str.join, json.dumps, isinstance, type, print,
)))  # fmt: skip
"""By identity: functions that neither change nor keep a list that they are handed, nor give it to anybody."""


def calls_at_once(fn: Any) -> bool:
    """Whether a function calls what it is handed before it returns, and keeps nothing of it."""
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, re.Pattern | list):
        return getattr(fn, "__name__", "") in ("sub", "subn", "sort")
    return is_definition(fn) and fn in _AT_ONCE


def is_type_form(x: object) -> bool:
    """Whether an object says a type without being a class: `list[str]`, `int | None`, `Literal["a"]`, `Annotated`."""
    return isinstance(x, types.GenericAlias | types.UnionType) or (type(x).__module__ == "typing" and not isinstance(x, type))


LITERALS = (str, int, float, bool, type(None), bytes)
"""Types whose values stand in a graph as literals (exact types: a subclass may behave differently)."""

_IMMUTABLE = (*LITERALS, complex, range, slice, re.Pattern, re.Match, type(Ellipsis), StandIn)


def is_immutable(x: object) -> bool:
    """Whether an object of the host cannot change, at any depth."""
    if type(x) in (tuple, frozenset):
        return all(is_immutable(i) for i in x)  # type: ignore[union-attr]
    return type(x) in _IMMUTABLE
