"""Which calls are traced through: functions that can reach the language, because they are handed a state or name lmc.

Everything else is a host call. The same rule holds while tracing and while replaying, so that both count alike.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import abc
import builtins
import contextlib
import dataclasses
import enum
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

from lmc.frontend.hostops import native
from lmc.frontend.instrument import instrument
from lmc.frontend.instrumented import is_instrumented
from lmc.frontend.source import CannotInstrument, codes
from lmc.frontend.values import Value, active

HIGHER_ORDER: frozenset[Any] = frozenset({
    max, min, sorted, map, filter, functools.reduce, list.sort, itertools.takewhile, itertools.dropwhile, itertools.filterfalse,
    itertools.starmap,
})  # fmt: skip
"""Builtins whose function arguments are called at once, or by the program's own iteration."""

_DEPTH = 6  # how deep closures and fields are searched; containers to any depth


_MANAGER = contextlib.contextmanager(lambda: (x for x in ())).__code__
_ASYNC_MANAGER = contextlib.asynccontextmanager(lambda: (x async for x in ())).__code__  # type: ignore[arg-type]
_MANAGERS: dict[types.CodeType, Callable[..., Any]] = {_MANAGER: contextlib.contextmanager, _ASYNC_MANAGER: contextlib.asynccontextmanager}
"""What makes managers of generator functions, by the code of what it makes of one."""


def is_language(x: object) -> bool:
    """Whether an object belongs to the language: a state, a group of forks, an expression, a program."""
    cls = x if isinstance(x, type) else type(x)
    return cls.__module__.startswith("lmc.frontend.") and cls.__module__ not in _NOT_LANGUAGE


_NOT_LANGUAGE = frozenset(f"lmc.frontend.{name}" for name in (
    "values", "hooks", "mode", "counting", "coroutines", "replay_record", "replay_items", "replay_async", "replay_mode", "host"))


def only_defines(decorator: Any) -> bool:
    """Whether a decorator does nothing that can be seen from outside, and what it makes is the same in every run."""
    if isinstance(decorator, functools.partial):
        return decorator.func is functools.update_wrapper
    if isinstance(getattr(decorator, "__self__", None), property) or decorator is functools.total_ordering or decorator is functools.cached_property:
        return True
    return is_own(decorator) or is_language(decorator) or getattr(decorator, "__module__", None) in _DEFINING


DEFINERS: frozenset[Any] = frozenset({
    property, classmethod, staticmethod, functools.cached_property, functools.partialmethod, dataclasses.field, dataclasses.dataclass, enum.auto,
})  # fmt: skip
"""What a class, or its body, is defined with: Python, or a decorator of the class, looks for what they give."""

def defines(fn: Any) -> bool:
    """Whether a function is one that a class body calls for a part of its class."""
    return fn in DEFINERS or (isinstance(fn, types.FunctionType) and fn.__module__ == "pydantic.fields" and fn.__name__ == "Field")


_DEFINING = frozenset({"builtins", "contextlib", "dataclasses", "abc", "typing", "enum"})


def is_own(x: object) -> bool:
    """Whether a function, class or module is a part of lmc."""
    module = x.__name__ if isinstance(x, types.ModuleType) else getattr(x, "__module__", None)
    return isinstance(module, str) and (module == "lmc" or module.startswith("lmc."))


def inside(x: Any) -> Iterator[Any]:
    """What an object holds: items, fields, closure cells, bound arguments."""
    cls = type(x)
    if cls in (list, tuple, set, frozenset):
        yield from x
    elif isinstance(x, tuple):  # a named one
        yield from tuple.__iter__(x)  # pyright: ignore[reportUnknownArgumentType]
    elif cls is dict:
        yield from x.keys()
        yield from x.values()
    elif cls is types.FunctionType:
        for cell in x.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield from x.__defaults__ or ()
    elif cls is types.MethodType:
        yield x.__self__
    elif cls is functools.partial:
        yield from x.args
        yield from x.keywords.values()
        yield x.func
    elif cls is slice:
        yield from (x.start, x.stop, x.step)
    elif isinstance(x, BaseException):
        yield from x.args
    elif not isinstance(x, type | types.ModuleType) and cls.__module__ not in ("builtins", "re") and not is_own(cls):
        fields = getattr(x, "__dict__", None)
        if type(fields) is dict:
            yield from fields.values()
        for base in cls.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if hasattr(type(x), slot) and slot not in ("__dict__", "__weakref__"):
                    try:
                        yield object.__getattribute__(x, slot)
                    except AttributeError:
                        continue


def makes_records(cls: Any) -> bool:
    """Whether a class is a named tuple that makes, reads and goes through its items as tuples do."""
    if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return False
    as_tuple = all(getattr(cls, name) is getattr(tuple, name) for name in ("__getitem__", "__iter__", "__len__", "__init__", "__getattribute__"))
    return as_tuple and getattr(cls.__new__, "__module__", "").startswith("namedtuple_") and not hasattr(cls, "__getattr__")


def holds(x: Any, wanted: Callable[[Any], bool], depth: int = _DEPTH) -> bool:
    """Whether an object is, or contains, something `wanted`: through containers, and through fields up to a depth."""
    seen: set[int] = set()

    def search(y: Any, left: int) -> bool:
        if wanted(y):
            return True
        if left == 0 or type(y) in _ATOMS or id(y) in seen:
            return False
        seen.add(id(y))
        further = left if type(y) in _CONTAINERS else left - 1
        return any(search(z, further) for z in inside(y))

    return search(x, depth)


_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
_ATOMS = frozenset({str, int, float, bool, type(None), bytes, complex, types.ModuleType, types.BuiltinFunctionType})


def holds_value(x: Any) -> bool:
    """Whether a traced value is in it."""
    return type(x) is Value or (type(x) not in _ATOMS and holds(x, lambda y: type(y) is Value))


def holds_language(x: Any) -> bool:
    """Whether a state, expression or program is in it."""
    return type(x) not in _ATOMS and holds(x, is_language)


def names_language(fn: types.FunctionType, seen: set[int] | None = None) -> bool:
    """Whether a function's code names lmc's primitives or, transitively, a function or class that does."""
    seen = set() if seen is None else seen
    if id(fn.__code__) in seen:
        return False
    seen.add(id(fn.__code__))
    names = {name for code in codes(fn.__code__) for name in code.co_names}
    for name in names:
        value = fn.__globals__.get(name)
        if isinstance(value, types.ModuleType) and not is_own(value) and value is not builtins and not _is_library(value):
            if any(_names(getattr(value, n, None), seen) for n in names):
                return True
        elif value is not None and _names(value, seen):
            return True
    return any(_names(cell, seen) for cell in inside(fn) if isinstance(cell, types.FunctionType | type) or is_language(cell))


def texts(fn: Any) -> set[str]:
    """The text constants in the code of a function, and of the program's own functions, classes and modules that it reaches."""
    found: set[str] = set()
    seen: set[int] = set()
    todo: list[Any] = [fn]
    while todo:
        x = todo.pop()
        x = getattr(x, "func", x) if is_language(x) else getattr(x, "__func__", x)
        if id(x) in seen or is_own(x) or from_library(x):
            continue
        seen.add(id(x))
        if isinstance(x, types.FunctionType):
            own = list(codes(x.__code__))
            names = {name for code in own for name in code.co_names}
            found.update(text for code in own for const in code.co_consts for text in (const if isinstance(const, tuple) else (const,)) if isinstance(text, str))
            reached = [x.__globals__[name] for name in names if name in x.__globals__]
            modules = [m for m in reached if isinstance(m, types.ModuleType) and not is_own(m) and not _is_library(m)]
            todo += [*reached, *inside(x), *[getattr(m, name, None) for m in modules for name in names]]
        elif isinstance(x, type):
            todo += [member for base in x.__mro__[:-1] for member in vars(base).values()]
        elif type(x) in _CONTAINERS or isinstance(x, functools.partial):
            todo += inside(x)
    return found


def _is_library(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None) or ""
    return not file or "site-packages" in file or file.startswith(_STDLIB)


_STDLIB = types.__file__.rsplit("/", 1)[0] if types.__file__ else ""


def _names(value: Any, seen: set[int]) -> bool:
    if isinstance(value, types.ModuleType):
        return is_own(value)
    if is_language(value) or (callable(value) and is_own(value)):
        return True
    if isinstance(value, types.FunctionType):
        return not from_library(value) and names_language(value, seen)
    if isinstance(value, type) and not from_library(value):
        return class_names_language(value, seen)
    return False


def from_library(x: Any) -> bool:
    """Whether a function or class is of an installed library or of Python itself."""
    import sys

    module = sys.modules.get(getattr(x, "__module__", "") or "")
    return module is not None and _is_library(module)


def ends_with_code(cls: type) -> bool:
    """Whether code of a class runs where an instance is dropped."""
    return isinstance(getattr(cls, "__del__", None), types.FunctionType) and not from_library(cls)


def class_names_language(cls: type, seen: set[int] | None = None) -> bool:
    """Whether a method of a class reaches the language."""
    if cls.__module__ == "builtins" or id(cls) in (seen := set() if seen is None else seen):
        return False
    seen.add(id(cls))
    for base in cls.__mro__[:-1]:
        for member in vars(base).values():
            fn = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if isinstance(fn, types.FunctionType) and names_language(fn, seen):
                return True
    return False


def traced_twin(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], hooks: Any) -> Callable[..., Any] | None:
    """What to call instead of `fn` to trace through it, or None when it is a host call.

    Raises CannotInstrument when `fn` reaches the language but cannot be instrumented.
    """
    match fn:
        case types.FunctionType():
            if is_instrumented(fn):
                return fn
            if is_own(fn):
                return None
            if fn.__code__ in _MANAGERS:
                twin = traced_twin(fn.__wrapped__, args, kwargs, hooks)  # type: ignore[attr-defined]
                return None if twin is None else _MANAGERS[fn.__code__](twin)
            if names_language(fn) or holds_language(fn) or any(map(holds_language, args)) or any(map(holds_language, kwargs.values())):
                return instrument(fn, hooks)
        case types.MethodType():
            twin = traced_twin(fn.__func__, (fn.__self__, *args), kwargs, hooks)
            if twin is None and isinstance(fn.__self__, type):
                twin = _constructor_twin(fn.__self__, fn.__func__, hooks)
            return None if twin is None else functools.partial(twin, fn.__self__)
        case functools.partial():
            twin = traced_twin(fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}, hooks)
            return None if twin is None else functools.partial(twin, *fn.args, **fn.keywords)
        case type():
            return _class_twin(fn, args, kwargs, hooks)
        case _:
            call = getattr(type(fn), "__call__", None)  # noqa: B004
            if isinstance(call, types.FunctionType) and not is_own(type(fn)):
                twin = traced_twin(call, (fn, *args), kwargs, hooks)
                return None if twin is None else functools.partial(twin, fn)
    return None


_METACLASSES = frozenset({type, abc.ABCMeta})
"""What may have made a class whose instances are made as `type` makes them."""


def _class_twin(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], hooks: Any) -> Callable[..., Any] | None:
    """Instantiation of a program's own class, with its `__init__` traced through."""
    if is_own(cls) or cls.__module__ == "builtins" or type(cls) not in _METACLASSES or from_library(cls):
        return None
    reaches = class_names_language(cls) or any(map(holds_language, args)) or any(map(holds_language, kwargs.values()))
    if not (reaches or _is_made_by_a_program(cls)) or cls.__new__ is not object.__new__:
        return None
    if inspect.isabstract(cls):
        return None  # Python says which methods it lacks
    init = cls.__init__
    if not isinstance(init, types.FunctionType):
        return cls  # object.__init__: nothing to trace
    if hasattr(cls, "__dataclass_fields__"):
        factories = {f.default_factory for f in cls.__dataclass_fields__.values()}  # type: ignore[attr-defined]
        if not hasattr(cls, "__post_init__") and factories <= {dataclasses.MISSING, list, dict, set}:
            return cls  # generated code that only stores fields
        return _record_twin(cls, hooks)

    def make(*args: Any, **kwargs: Any) -> Any:
        instance = object.__new__(cls)
        mode = active.get()
        if mode is not None:
            mode.created(instance)
        instrument(init, hooks)(instance, *args, **kwargs)
        return instance

    return make


def _constructor_twin(cls: type, method: Any, hooks: Any) -> Callable[..., Any] | None:
    """A class method of a program's own class, which may make instances: those are known only where it is traced through."""
    if not isinstance(method, types.FunctionType) or type(cls) not in _METACLASSES or from_library(cls) or is_own(cls) or not class_names_language(cls):
        return None
    try:
        return instrument(method, hooks)
    except CannotInstrument:
        return None


def _record_twin(cls: type, hooks: Any) -> Callable[..., Any] | None:
    """What the generated `__init__` of a dataclass does, with its factories and its `__post_init__` called like functions of the program."""
    fields: list[Any] = [f for f in vars(cls)["__dataclass_fields__"].values() if f._field_type is not dataclasses._FIELD_CLASSVAR] if "__dataclass_fields__" in vars(cls) else []  # pyright: ignore[reportAttributeAccessIssue]  # fmt: skip
    slots = tuple(inspect.getattr_static(cls, f.name, None) for f in fields)
    by_code = any(hasattr(type(x), "__set__") and not isinstance(x, types.MemberDescriptorType) for x in slots)
    stores = cls.__setattr__ is object.__setattr__ or cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not fields or by_code or not stores or cls.__init__.__module__ != cls.__module__ or not _is_generated(cls.__init__):
        return None
    signature = inspect.signature(cls.__init__)

    def make(*args: Any, **kwargs: Any) -> Any:
        instance = object.__new__(cls)
        try:
            given = signature.bind(instance, *args, **kwargs).arguments
        except TypeError:
            return native(cls, *args, **kwargs)  # Python says what is missing
        mode = active.get()
        if mode is not None:
            mode.created(instance)
        handed: list[Any] = []
        for f in fields:
            if f.name in given:
                value = given[f.name]
            elif f.default_factory is not dataclasses.MISSING:
                value = hooks.call(f.default_factory)
            elif f.default is not dataclasses.MISSING:
                value = f.default
            else:
                continue
            if f._field_type is dataclasses._FIELD_INITVAR:  # pyright: ignore[reportAttributeAccessIssue]
                handed.append(value)
            elif f.init or f.default_factory is not dataclasses.MISSING:
                object.__setattr__(instance, f.name, value)
        if hasattr(cls, "__post_init__"):
            instrument(cls.__post_init__, hooks)(instance, *handed)
        return instance

    return make


def _is_generated(init: Any) -> bool:
    """Whether an `__init__` is one that `dataclass` wrote."""
    return isinstance(init, types.FunctionType) and init.__code__.co_filename == "<string>"


def _is_made_by_a_program(cls: type) -> bool:
    """Whether a class statement of a traced function made a class."""
    mode = active.get()
    if mode is not None and mode.is_own_definition(cls):
        return True
    return any(isinstance(m, types.FunctionType) and is_instrumented(m) for base in cls.__mro__[:-1] for m in vars(base).values())


def with_callables(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], wrap: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a builtin of `HIGHER_ORDER` with the function among them wrapped: `key`, or the first one.

    What a builtin goes through or compares may be callable as well, and stays as it is.
    """
    if getattr(fn, "__name__", "") in ("max", "min", "sorted", "sort"):
        return args, {k: wrap(v) if k == "key" and v is not None else v for k, v in kwargs.items()}
    return tuple(wrap(a) if n == 0 and callable(a) else a for n, a in enumerate(args)), kwargs
