"""Attributes, and classes and objects of the program: only plain classes with source."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Sequence
from typing import Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture.code import Evaluator, Frame
from lmc.frontend.capture.flow import ANYTHING
from lmc.frontend.capture.outside import any_of, is_plain
from lmc.frontend.capture.searching import STANDS_FOR
from lmc.frontend.capture.table import CLASS_METHODS
from lmc.frontend.capture.unknown import MISSING, Raised, Undecided, Unknown, raised
from lmc.frontend.capture.values import BoundMethod, Closure, LazyItems, Manager, Object, Partial, Super, is_exception, is_generated
from lmc.frontend.expressions import Expr
from lmc.frontend.interpreter import Function
from lmc.frontend.state import State, StateGroup

_METHOD_KINDS = (types.FunctionType, property, staticmethod, classmethod, functools.cached_property)


def attribute(ev: Evaluator, x: Any, name: str) -> Any:
    """Evaluate `x.name`, without running code of the user's except properties with source."""
    kind = type(x)
    if isinstance(x, types.ModuleType):
        return _of_module(ev, x, name)
    if isinstance(x, Unknown):
        return ev.operation("attribute", (x, name), x.deps)
    if type(x) is Object:
        return _of_object(ev, x, name)
    if kind is Super:
        return _of_super(ev, x, name)
    if isinstance(x, type):
        return _of_class(ev, x, name)
    if kind is State:
        return x._value if name == "ret_value" else BoundMethod(name, x) if callable(getattr(State, name, None)) else Unknown(None)
    if kind is StateGroup:
        return x.states if name == "states" else x.parent if name == "parent" else BoundMethod(name, x)
    if kind is Closure:
        return x.name if name in ("__name__", "__qualname__") else x.attributes.get(name, Unknown(None))
    if kind is types.FunctionType:
        if (id(x), name) in ev.snapshot.changed:
            return _of_changed(ev, x)
        return x.__name__ if name in ("__name__", "__qualname__") else ev.adopt(vars(x).get(name, Unknown(None)))
    if isinstance(x, Function):
        return BoundMethod(name, x)
    if isinstance(x, BaseException):
        return op.native(getattr, x, name) if name in _OF_EXCEPTIONS or name in vars(x) else Unknown(None)
    if isinstance(x, Expr):
        return op.native(getattr, x, name)
    if kind in op.ATOMS or kind in op.CONTAINERS or kind is LazyItems:
        held = getattr(kind, name, MISSING)
        if held is MISSING and kind is not LazyItems:
            raise Raised(AttributeError(f"{kind.__name__!r} object has no attribute {name!r}"))
        return BoundMethod(name, x) if callable(held) or held is MISSING else ev.adopt(op.native(getattr, x, name))
    return Unknown(None, of=(x,)) if kind is Manager else Unknown(None)


def _of_object(ev: Evaluator, x: Object, name: str) -> Any:
    if name == "__dict__":
        return ev.unknown_code(x, [x], {})
    found = class_attribute(ev, x.cls, name)
    own = ev.special(found, "__get__") if type(found) is Object else None
    if own is not None and (name in _set_by_code(x.cls) or not (name in x.attributes or ev.is_lost(x))):  # else the object's own may come first
        return ev.call(own, [x, x.cls], {})
    if type(found) is not property and name in x.attributes:
        return x.attributes[name]
    if ev.is_lost(x) and type(found) not in _METHOD_KINDS and not isinstance(found, Function):  # it may have been set
        return Unknown(ev.lost[id(x)], of=(x,))
    if found is not MISSING:
        return _bound(ev, found, x, x.cls)
    if name == "__class__":
        return x.cls
    if is_exception(x):
        return x.args if name == "args" else Unknown(None)
    raise Raised(AttributeError(f"{x.cls.__name__!r} object has no attribute {name!r}"))


def _bound(ev: Evaluator, found: Any, x: Any, cls: Any) -> Any:
    """Bind an attribute of a class to an object, or to the class (`x` is None)."""
    if found is MISSING:
        return Unknown(None)
    if type(found) is staticmethod:
        return found.__func__
    if type(found) is classmethod:
        return BoundMethod(found.__func__, cls)
    if x is None:
        return found
    if type(found) is property:
        return ev.call(found.fget, [x], {})
    if type(found) is functools.cached_property and type(x) is Object:
        x.attributes[str(found.attrname)] = value = ev.call(found.func, [x], {})
        return value
    if isinstance(found, Function) and found.is_method:
        return found.bound_to(cls if found.is_class_method else x)
    return BoundMethod(found, x) if type(found) is types.FunctionType else found


def class_attribute(ev: Evaluator, cls: type, name: str, after: type | None = None) -> Any:
    """Return the raw value of a name in a class and its bases, of the latter from the one `after` another; `MISSING` if there is none."""
    changed = ev.snapshot.changed
    for one in cls.__mro__[0 if after is None else cls.__mro__.index(after) + 1 :]:
        if changed and ((id(one), name) in changed or (id(one), ANYTHING) in changed):
            return _of_changed(ev, one)
        if one.__module__ != "builtins" and name in vars(one):
            raw = vars(one)[name]
            if type(raw) is not types.MemberDescriptorType:  # a slot: it is among the object's attributes
                return raw if type(raw) in _METHOD_KINDS else ev.adopt(ev.snapshot.first((id(one), name), raw))
    return MISSING


def _of_changed(ev: Evaluator, x: Any) -> Unknown:
    """Return an attribute that the program has set of a class or function of the outside."""
    return Unknown(None, of=(ev.given[id(x)],) if id(x) in ev.given else ())


def _of_class(ev: Evaluator, cls: Any, name: str) -> Any:
    if name in ("__name__", "__qualname__"):
        return cls.__name__
    if is_plain(cls):
        found = class_attribute(ev, cls, name)
        if found is MISSING and hasattr(type, name):
            return Unknown(None)
        if found is MISSING:
            raise Raised(AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}"))
        return _bound(ev, found, None, cls)
    return CLASS_METHODS.get((cls, name)) or (getattr(cls, name, Unknown(None)) if cls.__module__ == "builtins" else Unknown(None))


def _of_module(ev: Evaluator, x: types.ModuleType, name: str) -> Any:
    held = vars(x)
    if name in held:
        return ev.global_value(held, name)
    if x.__name__ == "lmc":
        return ev.adopt(op.native(getattr, x, name))
    return sys.modules.get(f"{x.__name__}.{name}", Unknown(None))


def _of_super(ev: Evaluator, x: Super, name: str) -> Any:
    cls = x.receiver.cls if type(x.receiver) is Object else x.receiver
    if not isinstance(cls, type) or x.after not in cls.__mro__:
        return Unknown(None)
    found = class_attribute(ev, cls, name, x.after)
    if found is MISSING and name == "__init__" and type(x.receiver) is Object:
        return Partial(lambda args, _: setattr(x.receiver, "args", tuple(args)))
    return _bound(ev, found, x.receiver, cls)


def super_of(frame: Frame) -> Any:
    """Evaluate `super()` in a method, which has its class in a cell."""
    try:
        return Super(frame.outer_value("__class__"), next(iter(frame.function.vars.values()), None))
    except Raised:
        return Unknown(None)


def set_attribute(ev: Evaluator, x: Any, name: Any, value: Any) -> None:
    if isinstance(name, Unknown):
        return ev.lose(x, name.deps, any_of((value,)), (ANYTHING,))
    ev.changed.append(x)
    if type(x) is Object and name in _set_by_code(x.cls):
        found = class_attribute(ev, x.cls, name)
        own = found.fset if type(found) is property else ev.special(found, "__set__") if type(found) is Object else found
        if own is None:
            raise raised(AttributeError)
        ev.call(own, [x, value], {})
    elif type(x) is Object:
        x.attributes[name] = value
        if x.outside is not None and not ev.snapshot.is_captured(x.outside):
            ev.snapshot.changed.add((id(x.outside), name))
            x.attributes[name] = Unknown(None, of=(value,))
    elif type(x) is Closure:
        x.attributes[name] = value
    elif isinstance(x, types.ModuleType):
        ev.set_global(vars(x), name, value)
    elif isinstance(x, Unknown):
        ev.lose(x, x.deps, any_of((value,)), (name,))
        ev.may_raise(x.deps)
        ev.hand_over([value])
    else:
        ev.snapshot.changed.add((id(x), name))
        ev.give((x,), any_of((value,)))


def special(ev: Evaluator, x: Object, name: str) -> Any:
    """Return a special method of the program's own, bound; None if the class has none."""
    found = class_attribute(ev, x.cls, name)
    if found is MISSING or found is None or is_generated(found):
        return None
    return BoundMethod(found, x) if type(found) is types.FunctionType else found


@functools.lru_cache(4096)
def _set_by_code(cls: type) -> frozenset[str]:
    """Return the names of a class that properties, and descriptors of the program's own, set."""
    held = {name: x for one in reversed(cls.__mro__[:-1]) for name, x in vars(one).items()}
    return frozenset(name for name, x in held.items() if type(x) is property or isinstance(_setter(type(x)), types.FunctionType))


def _setter(cls: type) -> Any:
    """Return `__set__` of a class, or None, without code of its metaclass, or of what it is."""
    held = (_HELD(base) for base in _BASES(cls))
    return next((names["__set__"] for names in held if "__set__" in names), None)


_HELD, _BASES = (vars(type)[name].__get__ for name in ("__dict__", "__mro__"))


@functools.lru_cache(4096)
def implicit_methods(cls: type) -> Sequence[Any]:
    """Return the functions of the program's own that Python calls for operators, attributes, and builtins that use objects of a class."""
    held = {name: item for one in reversed(cls.__mro__[:-1]) for name, item in vars(one).items()}
    found = [
        x.fget if isinstance(x, property) else x.func if isinstance(x, functools.cached_property) else name.startswith("__") and x
        for name, x in held.items()
        if name not in ("__init__", "__post_init__")
    ]
    return [fn for fn in found if type(fn) is types.FunctionType and not is_generated(fn)]


# -- classes and instances


def instance(ev: Evaluator, cls: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return a new object of a plain class."""
    made = Object(ev, cls, {}, tuple(args))
    init = class_attribute(ev, cls, "__init__")
    if is_generated(init):
        _initialize(ev, made, args, kwargs)
    elif type(init) is types.FunctionType:
        ev.call(init, [made, *args], kwargs)
    elif (args or kwargs) and not is_exception(made):
        raise Raised(TypeError(f"{cls.__name__}() takes no arguments"))
    return made


def _initialize(ev: Evaluator, made: Object, args: list[Any], kwargs: dict[str, Any]) -> None:
    fields = dataclasses.fields(made.cls)
    given = {**dict(zip([f.name for f in fields if f.init and not f.kw_only], args)), **kwargs}
    for field in fields:
        if field.name in given:
            made.attributes[field.name] = given.pop(field.name)
        elif field.default_factory is not dataclasses.MISSING:
            made.attributes[field.name] = ev.call(field.default_factory, [], {})
        elif field.default is not dataclasses.MISSING:
            made.attributes[field.name] = ev.adopt(field.default)
        elif field.init:
            raise raised(TypeError)
    if given:
        raise raised(TypeError)
    after = ev.special(made, "__post_init__")
    if after is not None:
        ev.call(after, [], {})


def class_of(ev: Evaluator, x: Any) -> Any:
    return x.cls if type(x) is Object else STANDS_FOR.get(type(x), type(x))


def is_instance(ev: Evaluator, x: Any, kinds: Any) -> Any:
    all_ = _classes(kinds)
    if isinstance(x, Unknown) or not all(isinstance(k, type) for k in all_):
        return ev.operation("isinstance", (x, kinds), x.deps if isinstance(x, Unknown) else None)
    if type(x) in (Closure, BoundMethod, Partial, LazyItems):
        return False if all(k.__module__ == "builtins" and k is not object for k in all_) else Unknown(None)
    return any(k in ev.class_of(x).__mro__ or (k.__module__ in _ABSTRACT and type(x) is not Object and isinstance(x, k)) for k in all_)


# -- exceptions


def exception(ev: Evaluator, x: Any) -> Any:
    """Return the exception that `raise x` raises."""
    if isinstance(x, type):
        x = ev.call(x, [], {})
    return x if isinstance(x, (BaseException, Unknown)) or is_exception(x) else TypeError("exceptions must derive from BaseException")


def catches(ev: Evaluator, kinds: Any, value: Any) -> bool:
    """Return whether an `except` of these classes catches an exception."""
    all_ = _classes(kinds)
    if isinstance(value, Unknown):
        if any(k is Exception or k is BaseException for k in all_):
            return True
        raise Undecided(value.deps)
    if any(k in ev.class_of(value).__mro__ for k in all_ if isinstance(k, type)):
        return True
    if any(isinstance(k, Unknown) for k in all_):
        raise Undecided(None)
    return False


# -- context managers


def manager(ev: Evaluator, x: Any) -> Manager:
    """Return the manager that `with x` enters and exits."""
    if type(x) is Manager:
        return x
    if isinstance(x, (State, Expr)):
        return Manager(lambda: op.native(op.native(getattr, x, "__enter__")))
    own = [ev.special(x, f"__{name}__") for name in ("enter", "exit", "aenter", "aexit")] if type(x) is Object else []
    result = ev.unknown_code(x, [x, *own], {})
    return Manager(lambda: result)


def _classes(kinds: Any) -> list[Any]:
    if isinstance(kinds, types.UnionType):
        kinds = kinds.__args__
    return [k for each in kinds for k in _classes(each)] if type(kinds) is tuple else [kinds]


_OF_EXCEPTIONS = frozenset("args value name errno msg pos doc reason".split())
_ABSTRACT = frozenset({"collections.abc", "numbers"})
