"""Classes and objects: attributes, construction, `super()`, dataclasses, exceptions, context managers. Only plain classes with source."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false, reportGeneralTypeIssues=false
# (values of a program are Any by nature; `self` of a part of the evaluation is the whole of it)

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
from collections.abc import Mapping
from enum import EnumMeta
from typing import TYPE_CHECKING, Any

from lmc.frontend.capture import operations as op
from lmc.frontend.capture import table
from lmc.frontend.capture.outside import is_plain, is_plain_enum
from lmc.frontend.capture.values import (
    NOTHING,
    Class,
    Closure,
    Deps,
    Items,
    Manager,
    Method,
    Object,
    Partial,
    Raised,
    Stop,
    Super,
    Undecided,
    Unknown,
    join,
)
from lmc.frontend.interpreter import Function
from lmc.frontend.primitives import Expr
from lmc.frontend.state import State, StateGroup

if TYPE_CHECKING:
    from lmc.frontend.capture.evaluation import Evaluation, Frame

_MISSING = object()
_DESCRIPTORS = (property, staticmethod, classmethod, functools.cached_property)


class Objects:
    """Of an Evaluation: what attributes and classes give."""

    def frame(self: Evaluation, vars: dict[str, Any], outer: Any, code: Any, module: dict[str, Any]) -> Frame:
        from lmc.frontend.capture.evaluation import Frame

        return Frame(self, vars, outer, code, module)

    # -- attributes

    def attribute(self: Evaluation, x: Any, name: str) -> Any:
        """`x.name`, without running code of the user's but properties with source."""
        kind = type(x)
        if kind is Object:
            return self._of_object(x, name)
        if isinstance(x, types.ModuleType):
            return self._of_module(x, name)
        if isinstance(x, Unknown):
            return self.operation("attribute", (x, name), x.deps)
        if kind is State:
            if name == "ret_value":
                return x._value
            return Method(name, x) if hasattr(State, name) and name != "usage" else Unknown(None)
        if kind is StateGroup:
            return x.states if name == "states" else x.parent if name == "parent" else Method(name, x)
        if kind is Closure or kind is Partial:
            return self._of_function(x, name)
        if kind is Class or isinstance(x, type):
            return self._of_class(x, name)
        if kind is Super:
            return self._of_super(x, name)
        if isinstance(x, BaseException):
            return self._of_exception(x, name)
        if isinstance(x, Function):
            return Method(name, x)
        if type(kind) is EnumMeta and is_plain_enum(kind):
            return self._of_member(x, kind, name)
        if isinstance(x, Expr):
            return op.native(getattr, x, name)
        if (kind in op.ATOMS and kind not in table.PURE_METHODS) or name not in table.PURE_METHODS.get(kind, ()):
            if kind in (int, float, complex, slice, range) or kind.__name__ in ("Match", "Pattern"):
                found = op.native(getattr, x, name)
                return found if op.need(self, found) == NOTHING else Unknown(None)
            if kind in op.ATOMS and not hasattr(kind, name):
                raise Raised(AttributeError(f"{kind.__name__!r} object has no attribute {name!r}"))
        if kind in op.ATOMS or kind in op.SEQUENCES or kind in op.MAPPINGS or kind is Items:
            return Method(name, x)
        if kind is types.FunctionType and name in ("__name__", "__qualname__", "__doc__", "__module__"):
            return getattr(x, name)
        if kind is types.FunctionType:
            return self.adopt(vars(x)[name]) if name in vars(x) else Unknown(None)
        return Unknown(None)

    def _of_object(self: Evaluation, x: Object, name: str) -> Any:
        found = self.class_attribute(x.cls, name)
        if type(found) is Object and found.cls is property:
            return self.call(found.attributes["fget"], [x], {})
        if name in x.attributes:
            return x.attributes[name]
        if found is _MISSING:
            if name == "__class__":
                return x.cls
            if name == "__dict__":
                return x.attributes
            if self.is_exception(x):
                return self._of_own_exception(x, name)
            raise Raised(AttributeError(f"{self.type_name(x)!r} object has no attribute {name!r}"))
        if type(found) is Object and found.cls in _DESCRIPTORS:
            return self._bound(found, x, x.cls)
        if isinstance(found, Function) and found.is_method:
            return found.bound_to(x.cls if found.is_class_method else x)
        return Method(found, x) if type(found) is Closure or type(found) is types.FunctionType else found

    def _bound(self: Evaluation, found: Object, x: Any, cls: Any) -> Any:
        fn = found.attributes["fget"]
        if found.cls is staticmethod:
            return fn
        if found.cls is classmethod:
            return Method(fn, cls)
        if x is None:
            return found
        value = self.call(fn, [x], {})
        if found.cls is functools.cached_property:
            x.attributes[getattr(fn, "name", None) or fn.__name__] = value
        return value

    def class_attribute(self: Evaluation, cls: Any, name: str) -> Any:
        """What a class and those it derives from hold under a name, as it stands there; `_MISSING` if nothing."""
        one: Any
        for one in self.mro(cls):
            if type(one) is Class:
                if name in one.attributes:
                    return one.attributes[name]
            elif one.__module__ != "builtins" and name in vars(one):
                raw = vars(one)[name]
                if type(raw) is types.MemberDescriptorType:
                    continue  # a slot: it is among the object's attributes
                return self._of_outside_class(one, name, raw)
        return _MISSING

    def _of_outside_class(self: Evaluation, cls: type, name: str, raw: Any) -> Any:
        if (id(cls), name) in self.snapshot.changed:
            return Unknown(None)
        if type(raw) is property:
            return Object(property, {"fget": raw.fget, "fset": raw.fset})
        if type(raw) in (staticmethod, classmethod):
            return Object(type(raw), {"fget": raw.__func__})
        if type(raw) is functools.cached_property:
            return Object(functools.cached_property, {"fget": raw.func})
        if type(raw) is types.FunctionType:
            return raw
        return self.adopt(self.snapshot.first((id(cls), name), raw))

    def mro(self: Evaluation, cls: Any) -> tuple[Any, ...]:
        return cls.mro if type(cls) is Class else cls.__mro__ if isinstance(cls, type) else ()

    def _of_class(self: Evaluation, cls: Any, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            return cls.name if type(cls) is Class else cls.__name__
        if type(cls) is EnumMeta and is_plain_enum(cls):
            return self._of_enum(cls, name)
        if type(cls) is not Class and not is_plain(cls):
            if cls.__module__ in ("builtins", "collections", "itertools", "asyncio", "contextlib", "functools", "datetime"):
                made = table.CLASS_METHODS.get((cls, name))
                if made is not None:
                    return Partial(lambda args, kwargs: self.of_rule(made, name, args, kwargs))
                found = getattr(cls, name, _MISSING)
                if found is not _MISSING and cls.__module__ == "builtins":
                    return found
            return Unknown(None)
        found = self.class_attribute(cls, name)
        if found is _MISSING:
            raise Raised(AttributeError(f"type object {self.name_of(cls)!r} has no attribute {name!r}"))
        if type(found) is Object and found.cls in _DESCRIPTORS:
            return self._bound(found, None, cls)
        return found

    def _of_enum(self: Evaluation, cls: Any, name: str) -> Any:
        members = vars(cls)["_member_map_"]
        if name in members:
            return self.adopt(members[name])
        if name == "__members__":
            return {k: self.adopt(m) for k, m in members.items()}
        found = self.class_attribute(cls, name)
        return self._bound(found, None, cls) if type(found) is Object and found.cls in _DESCRIPTORS else Unknown(None) if found is _MISSING else found

    def _of_member(self: Evaluation, x: Any, cls: Any, name: str) -> Any:
        """An attribute of a member of an enum."""
        if name in ("value", "name"):
            return self.adopt(vars(x)[f"_{name}_"])
        found = self.class_attribute(cls, name)
        if type(found) is Object and found.cls is property:
            return self.call(found.attributes["fget"], [x], {})
        if type(found) is Object and found.cls in _DESCRIPTORS:
            return self._bound(found, x, cls)
        if type(found) is types.FunctionType:
            return Method(found, x)
        return self.attribute(str.__str__(x), name) if isinstance(x, str) else Unknown(None)

    def enum_member(self: Evaluation, cls: Any, args: list[Any]) -> Any:
        """`cls(value)`."""
        deps = op.need(self, args)
        if deps is None or deps:
            return self.operation("enum", (cls, *args), deps)
        members = vars(cls)["_member_map_"].values()
        if "_missing_" in vars(cls) or any(op.need(self, vars(member)["_value_"]) != NOTHING for member in members):
            return self.unknown_code(cls, args, {})
        for member in members:
            if vars(member)["_value_"] == args[0] or member is args[0]:
                return self.adopt(member)
        raise Raised(ValueError(f"{args[0]!r} is not a valid {cls.__qualname__}"))

    def _of_module(self: Evaluation, x: types.ModuleType, name: str) -> Any:
        held = vars(x)
        if name in held:
            return self.global_value(held, name)
        if x.__name__ == "lmc":
            return self.adopt(op.native(getattr, x, name))
        inner = sys.modules.get(f"{x.__name__}.{name}")
        return Unknown(None) if inner is None else inner

    def _of_function(self: Evaluation, x: Any, name: str) -> Any:
        attributes = x.attributes if type(x) is Closure else {}
        if name in attributes:
            return attributes[name]
        if type(x) is Closure and name in ("__name__", "__qualname__"):
            return x.name
        if name in ("__doc__", "__dict__", "__module__", "__defaults__"):
            return Unknown(None)
        raise Raised(AttributeError(f"'function' object has no attribute {name!r}"))

    def _of_super(self: Evaluation, x: Super, name: str) -> Any:
        cls = x.receiver.cls if type(x.receiver) is Object else x.receiver
        order = self.mro(cls)
        rest: Any = order[order.index(x.after) + 1 :] if x.after in order else ()
        for one in rest:
            held = one.attributes if type(one) is Class else vars(one)
            if name not in held or one is object:
                continue
            found = held[name] if type(one) is Class else self._of_outside_class(one, name, held[name])  # pyright: ignore[reportArgumentType]
            if isinstance(one, type) and issubclass(one, BaseException) and one.__module__ == "builtins":
                break
            if type(found) is Object and found.cls in _DESCRIPTORS:
                return self._bound(found, x.receiver if type(x.receiver) is Object else None, cls)
            return Method(found, x.receiver) if type(found) in (Closure, types.FunctionType) else found
        receiver = x.receiver
        if name == "__init__":
            return Partial(lambda args, _: setattr(receiver, "args", tuple(args)) if type(receiver) is Object and self.is_exception(receiver) else None)
        if name in ("__str__", "__repr__"):
            return Partial(lambda _args, _kwargs: op.text_of(self, receiver.args[0] if len(receiver.args) == 1 else receiver.args if receiver.args else "", "s"))
        return Unknown(None)

    def super_of(self: Evaluation, frame: Frame) -> Any:
        """`super()` in a method."""
        owner = frame.owner
        if owner is None:  # a method of a class of the outside has its class in a cell
            try:
                owner = frame.outer_value("__class__")
            except Raised:
                return Unknown(None)
        return Super(owner, frame.first)

    def set_attribute(self: Evaluation, x: Any, name: str, value: Any) -> None:
        """`x.name = value`."""
        kind = type(x)
        if kind is Object:
            found = self.class_attribute(x.cls, name)
            if type(found) is Object and found.cls is property:
                if found.attributes.get("fset") is None:
                    raise Raised(AttributeError(f"property {name!r} of {self.type_name(x)!r} object has no setter"))
                self.call(found.attributes["fset"], [x, value], {})
                return
            if self._is_frozen(x.cls):
                raise Raised(dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}"))
            x.attributes[name] = value
            if x.outside is not None and not self.snapshot.is_captured(x.outside):
                self.snapshot.changed.add((id(x.outside), name))
                x.attributes[name] = Unknown(None)
        elif kind in (Closure, Class):
            x.attributes[name] = value
        elif kind is State and name == "ret_value":
            x.ret_value = value
        elif isinstance(x, type):
            self.snapshot.changed.add((id(x), name))
        elif isinstance(x, types.ModuleType):
            self.set_global(vars(x), name, value)
        elif isinstance(x, BaseException):
            if not self.outside.holds(x):
                op.native(setattr, x, name, value)
        elif isinstance(x, Unknown):
            self.hand_over([value])
        elif kind is types.FunctionType:
            self.snapshot.changed.add((id(x), name))
        else:
            raise Raised(AttributeError(f"{self.type_name(x)!r} object has no attribute {name!r}"))

    def delete_attribute(self: Evaluation, x: Any, name: str) -> None:
        if type(x) in (Object, Closure, Class):
            if name not in x.attributes:
                raise Raised(AttributeError(name))
            del x.attributes[name]
        elif not isinstance(x, Unknown):
            raise Stop("an attribute of the outside is deleted")

    def special(self: Evaluation, x: Object, name: str) -> Any:
        """The method that an operator means, bound; None if the class has none of its own."""
        found = self.class_attribute(x.cls, name)
        if found is _MISSING or found is None:
            return None
        if _is_generated(found):
            return None
        if type(found) not in (Closure, types.FunctionType):
            return None if type(found).__name__ in ("wrapper_descriptor", "builtin_function_or_method", "method_descriptor") else found
        return Method(found, x)

    # -- classes and instances

    def make_class(self: Evaluation, name: str, bases: list[Any], body: Frame) -> Any:
        """A class that a class statement makes."""
        for base in bases:
            if type(base) is not Class and not (isinstance(base, type) and (is_plain(base) or base is object or (issubclass(base, BaseException) and base.__module__ == "builtins"))):
                return Unknown(None)
        if len(bases) > 1 and any(len(self.mro(b)) > 2 for b in bases):
            order = _merged([list(self.mro(b)) for b in bases], bases)
        else:
            order = tuple(dict.fromkeys([*[one for b in bases for one in self.mro(b) if one is not object], object]))
        made = Class(name, tuple(bases), body.vars, order)
        made.attributes["__annotations__"] = list(dict.fromkeys(body.annotations))
        for value in body.vars.values():
            for fn in (value, *(value.attributes.values() if type(value) is Object else ())):
                if type(fn) is Closure and fn.owner is None:
                    fn.owner = made
        return made

    def make_dataclass(self: Evaluation, cls: Any, options: Mapping[str, Any]) -> Any:
        if type(cls) is not Class:
            return Unknown(None)
        inherited: list[Any] = []
        for base in reversed(cls.mro[1:]):
            inherited += list(self._fields(base) or ())
        own = [(n, cls.attributes.get(n, _MISSING)) for n in cls.attributes["__annotations__"]]
        named = dict(inherited) | dict(own)
        cls.fields, cls.frozen = tuple(named.items()), options.get("frozen") is True
        for n, default in own:
            if type(default) is Object and default.cls is dataclasses.Field:
                cls.attributes.pop(n)
                if "default" in default.attributes:
                    cls.attributes[n] = default.attributes["default"]
        return cls

    def _fields(self: Evaluation, cls: Any) -> tuple[Any, ...] | None:
        if type(cls) is Class:
            return cls.fields if cls.fields is not None else next((f for b in cls.mro[1:] if (f := self._fields(b)) is not None), None)
        held = getattr(cls, "__dataclass_fields__", None) if isinstance(cls, type) else None
        return None if held is None else tuple((n, f) for n, f in held.items() if f._field_type is dataclasses._FIELD)  # type: ignore[attr-defined]

    def dataclass_fields(self: Evaluation, x: Any) -> tuple[str, ...] | None:
        """The names of the fields of a dataclass's object."""
        fields = self._fields(x.cls) if type(x) is Object else None
        return None if fields is None else tuple(n for n, _ in fields)

    def _is_frozen(self: Evaluation, cls: Any) -> bool:
        if type(cls) is Class:
            return cls.frozen
        params = getattr(cls, "__dataclass_params__", None)
        return params is not None and params.frozen and self.building == 0

    building = 0

    def instance(self: Evaluation, cls: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A new object of a plain class."""
        made = Object(cls, {}, tuple(args))
        init = self.class_attribute(cls, "__init__")
        generated = _is_generated(init)
        fields = self._fields(cls) if generated or init is _MISSING or (type(cls) is Class and all(init is not held for held in cls.attributes.values()) and type(init) is not Closure) else None
        if fields is not None:
            return self._initialized(made, fields, args, kwargs)
        if init is _MISSING or type(init) not in (Closure, types.FunctionType):
            if (args or kwargs) and not self.is_exception(made):
                raise Raised(TypeError(f"{self.type_name(made)}() takes no arguments"))
            return made
        self.call(init, [made, *args], kwargs)
        return made

    def _initialized(self: Evaluation, made: Object, fields: tuple[Any, ...], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What the generated `__init__` of a dataclass does."""
        given = list(args)
        for name, default in fields:
            if isinstance(default, dataclasses.Field):
                options: dict[str, Any] = {"init": default.init, "kw_only": default.kw_only is True}
                if default.default is not dataclasses.MISSING:
                    options["default"] = self.adopt(default.default)
                if default.default_factory is not dataclasses.MISSING:
                    options["default_factory"] = default.default_factory
            elif type(default) is Object and default.cls is dataclasses.Field:
                options = default.attributes
            else:
                options = {} if default is _MISSING else {"default": default}
            if options.get("init", True) is not True or (name not in kwargs and (not given or options.get("kw_only"))):
                if "default_factory" in options:
                    made.attributes[name] = self.call(options["default_factory"], [], {})
                elif "default" in options:
                    made.attributes[name] = options["default"]
                elif options.get("init", True) is True:
                    raise Raised(TypeError(f"{self.type_name(made)}.__init__() missing 1 required positional argument: '{name}'"))
            elif name in kwargs:
                made.attributes[name] = kwargs.pop(name)
            else:
                made.attributes[name] = given.pop(0)
        if given or kwargs:
            raise Raised(TypeError(f"{self.type_name(made)}.__init__() got unexpected arguments"))
        after = self.special(made, "__post_init__")
        if after is not None:
            self.call(after, [], {})
        return made

    def type_name(self: Evaluation, x: Any) -> str:
        return self.name_of(x.cls if type(x) is Object else type(x))

    def name_of(self: Evaluation, cls: Any) -> str:
        name: str = cls.name if type(cls) is Class else cls.__name__
        return _SHOWN.get(name, name)

    def hashes_by_identity(self: Evaluation, x: Object) -> bool:
        return self.class_attribute(x.cls, "__eq__") is _MISSING and self.class_attribute(x.cls, "__hash__") is _MISSING and self._fields(x.cls) is None

    def positional(self: Evaluation, x: Any) -> Any:
        """The attributes that positional patterns look at."""
        found = self.class_attribute(x.cls, "__match_args__") if type(x) is Object else None
        names = self.dataclass_fields(x) if found is _MISSING else found
        return Unknown(None) if names is None else [self.attribute(x, name) for name in names]

    def is_instance(self: Evaluation, x: Any, kinds: Any) -> Any:
        """`isinstance(x, kinds)`."""
        if isinstance(kinds, types.UnionType):
            kinds = kinds.__args__
        all_ = [k for each in (kinds if type(kinds) is tuple else (kinds,)) for k in (each if type(each) is tuple else (each,))]
        if isinstance(x, Unknown) or any(isinstance(k, Unknown) for k in all_):
            return self.operation("isinstance", (x, kinds), x.deps if isinstance(x, Unknown) else None)
        order = self.mro(x.cls) if type(x) is Object else type(x).__mro__
        if type(x) in (Closure, Method, Partial, Items):
            return False if all(k.__module__ == "builtins" and k is not object for k in all_ if isinstance(k, type)) else Unknown(None)
        for k in all_:
            if k in order or (isinstance(k, type) and k.__module__ in ("collections.abc", "numbers") and type(x) is not Object and isinstance(x, k)):
                return True
            if not isinstance(k, (type, Class)):
                return Unknown(None)
        return False

    # -- exceptions

    def is_exception(self: Evaluation, x: Any) -> bool:
        return type(x) is Object and BaseException in self.mro(x.cls)

    def exception(self: Evaluation, x: Any) -> Any:
        """What `raise x` raises."""
        if isinstance(x, type) or type(x) is Class:
            x = self.call(x, [], {})
        if isinstance(x, (BaseException, Unknown)) or self.is_exception(x):
            return x
        return TypeError("exceptions must derive from BaseException")

    def catches(self: Evaluation, kinds: Any, value: Any) -> bool:
        """Whether an `except` of these classes takes an exception."""
        all_ = [k for each in (kinds if type(kinds) is tuple else (kinds,)) for k in (each if type(each) is tuple else (each,))]
        order = self.mro(value.cls) if type(value) is Object else type(value).__mro__
        if isinstance(value, Unknown):
            if Exception in all_ or BaseException in all_:
                return True
            raise Undecided(value.deps)
        if any(k in order for k in all_ if not isinstance(k, Unknown)):
            return True
        if any(isinstance(k, Unknown) for k in all_):
            raise Undecided(None)
        return False

    def _of_exception(self: Evaluation, x: BaseException, name: str) -> Any:
        if name in ("args", "value", "name", "errno", "msg", "pos", "doc", "reason", "message"):
            found = op.native(getattr, x, name)
            return self.adopt(found)
        if name in vars(x):
            return self.adopt(vars(x)[name])
        if name == "__class__":
            return type(x)
        if name in ("add_note", "with_traceback"):
            return Partial(lambda _args, _kwargs: x if name == "with_traceback" else None)
        if name.startswith("__") or hasattr(type(x), name):
            return Unknown(None)
        raise Raised(AttributeError(f"{type(x).__name__!r} object has no attribute {name!r}"))

    def _of_own_exception(self: Evaluation, x: Object, name: str) -> Any:
        if name == "args":
            return x.args
        if name in ("add_note", "with_traceback"):
            return Partial(lambda _args, _kwargs: x if name == "with_traceback" else None)
        if name.startswith("__"):
            return Unknown(None)
        raise Raised(AttributeError(f"{self.type_name(x)!r} object has no attribute {name!r}"))

    # -- context managers

    def manager(self: Evaluation, x: Any) -> Manager:
        """What `with x` enters and leaves."""
        if type(x) is Manager:
            return x
        if type(x) is Object:
            prefix = "__a" if self.special(x, "__aenter__") is not None else "__"
            enter, leave = self.special(x, f"{prefix}enter__"), self.special(x, f"{prefix}exit__")
            if enter is None or leave is None:
                raise Raised(TypeError(f"{self.type_name(x)!r} object does not support the context manager protocol"))
            return Manager(lambda: self.awaited_or(self.call(enter, [], {})), lambda error: self._left(leave, error))
        if isinstance(x, (State, Expr)):
            enter = op.native(getattr, x, "__enter__")
            return Manager(lambda: op.native(enter), lambda _: False)
        if not isinstance(x, Unknown) and type(x) in op.ATOMS:
            raise Raised(TypeError(f"{self.type_name(x)!r} object does not support the context manager protocol"))
        result = self.unknown_code(x, [], {})
        return Manager(lambda: result, lambda _: False)

    def _left(self: Evaluation, leave: Any, error: Any) -> bool:
        kind = None if error is None else error.cls if type(error) is Object else type(error)
        known = op.truth(self, self.awaited_or(self.call(leave, [kind, error, None if error is None else Unknown(None)], {})))
        if isinstance(known, Unknown) and error is not None:
            raise Undecided(known.deps)
        return known is True

    # -- mappings

    def update_mapping(self: Evaluation, x: Any, given: Any) -> None:
        """`dict.update`; Undecided where keys are unknown."""
        if isinstance(given, Unknown) or self.is_lost(given):
            raise Undecided(given.deps if isinstance(given, Unknown) else self.lost[id(given)])
        if type(given) in op.MAPPINGS:
            x.update(given)
            return
        for pair in op.iterate(self, given):
            both = list(op.iterate(self, pair))
            if len(both) != 2:
                raise Raised(ValueError(f"dictionary update sequence element has length {len(both)}; 2 is required"))
            deps = self.need_key(both[0])
            if deps is None or deps:
                raise Undecided(deps)
            op.native(x.__setitem__, *both)

    def need_keys(self: Evaluation, items: list[Any]) -> Deps:
        return join(NOTHING, *(self.need_key(i) for i in items))


def _is_generated(fn: Any) -> bool:
    """Whether `dataclasses` made a method: its meaning is known."""
    return type(fn) is types.FunctionType and (fn.__code__.co_filename.startswith("<string>") or fn.__code__.co_filename.endswith(_GENERATORS))


_SHOWN = {"Closure": "function", "Items": "generator"}
_GENERATORS = (os.sep + "dataclasses.py", os.sep + "reprlib.py")


def _merged(orders: list[list[Any]], bases: list[Any]) -> tuple[Any, ...]:
    """The resolution order of a class (C3)."""
    found: list[Any] = []
    rest = [*orders, list(bases)]
    while rest := [o for o in rest if o]:
        head = next((o[0] for o in rest if not any(o[0] in other[1:] for other in rest)), None)
        if head is None:
            raise Raised(TypeError("Cannot create a consistent method resolution order (MRO)"))
        found.append(head)
        rest = [[x for x in o if x is not head] for o in rest]
    return tuple(found)
