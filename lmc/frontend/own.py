"""Instances of the program's own classes: Python's protocols, with each method called like any function of the program.

An instance is known here when its class reaches the language (reach.py) and the program made it. Python itself would run
the methods of its class as they are; called through the mode they are traced, and counted alike in trace and replay.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import contextlib
import copy
import dataclasses
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from lmc.frontend import hostops, reach
from lmc.frontend.hostops import native
from lmc.frontend.values import TraceEscape, Value

NOT_OWN: Final = object()
"""For what no method of the program's own has a part in."""

_MISSING: Final = object()
_METHODS: Final = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "<<": "lshift", ">>": "rshift", "|": "or",
    "^": "xor", "&": "and", "@": "matmul",
}  # fmt: skip
_COMPARED: Final = {"==": ("eq", "eq"), "!=": ("ne", "ne"), "<": ("lt", "gt"), ">": ("gt", "lt"), "<=": ("le", "ge"), ">=": ("ge", "le")}
_UNARY: Final = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}
_BUILTINS: Final[dict[Any, str]] = {
    len: "__len__", repr: "__repr__", abs: "__abs__", int: "__int__", float: "__float__", round: "__round__", reversed: "__reversed__",
    format: "__format__",
}  # fmt: skip
_COPIED_BY: Final = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__new__")
_IGNORANT: Final = (str, int, float, bool, type(None), bytes, list, dict, set)
"""Types whose operators leave an operand of the program's own class to that class."""


def base_behind(owner: Any, name: str) -> type | None:
    """The class that `super().name` is found in; `owner` is the super object."""
    classes = owner.__self_class__.__mro__
    behind = classes[classes.index(owner.__thisclass__) + 1 :]
    return next((base for base in behind if name in base.__dict__), None)


class Own:
    """What hooks do with instances of the program's own classes; a part of `CountingMode`."""

    instances: dict[int, Any]  # by id

    if TYPE_CHECKING:  # a hook

        def compare(self, op: str, a: Any, b: Any) -> Any: ...
        def concrete(self, a: Any) -> Any: ...
        def is_instance(self, x: Any) -> bool: ...

    def dispatch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def truth(self, a: Any) -> bool:
        raise NotImplementedError

    def auxiliary(self) -> contextlib.AbstractContextManager[None]:
        """What is done in here is a part of the hook call, and not its result."""
        return contextlib.nullcontext()

    def beyond(self, reason: str) -> Any:
        """Something that is not captured: a trace ends here, and a replay lets Python do it."""
        raise TraceEscape(reason)

    # methods

    def class_member(self, owner: Any, name: str) -> Any:
        """What the class of a known instance has under a name; `_MISSING` otherwise."""
        if id(owner) not in self.instances:
            return _MISSING
        return next((base.__dict__[name] for base in type(owner).__mro__ if name in base.__dict__), _MISSING)

    def method_of(self, owner: Any, name: str) -> Callable[..., Any] | None:
        member = self.class_member(owner, name)
        return member if isinstance(member, types.FunctionType) else None

    def called(self, fn: Callable[..., Any], *args: Any) -> Any:
        fields = _written_for(fn, type(args[0]))
        if fields is None or any(reach.holds_language(getattr(x, field, None)) for x in args for field in fields):
            return self.dispatch("call", (fn, *args), {})
        return self._of_fields(fn.__name__, fields, *args)

    def _of_fields(self, name: str, fields: list[str], owner: Any, other: Any = None) -> Any:
        """What a method gives that `dataclass` wrote."""
        if name == "__repr__":
            named = [part for field in fields for part in (f", {field}=", (getattr(owner, field), "r", ""))]
            first = [named[0][2:], *named[1:]] if named else []
            return self.dispatch("fstring", (f"{type(owner).__qualname__}(", *first, ")"), {})
        if type(other) is not type(owner):
            return NotImplemented
        values = [tuple([getattr(x, field) for field in fields]) for x in (owner, other)]
        return self.dispatch("compare", (_WRITTEN[name], *values), {})

    def own_method(self, owner: Any, name: str, *args: Any) -> Any:
        """What a method of the owner's class gives."""
        method = self.method_of(owner, name)
        return NOT_OWN if method is None else self.called(method, owner, *args)

    # attributes

    def own_attribute(self, owner: Any, name: str) -> Any:
        """An attribute that code of the class computes."""
        if type(owner) is super:
            return self.inherited(owner, name)
        if id(owner) not in self.instances or name.startswith("__"):
            return NOT_OWN
        if self.method_of(owner, "__getattribute__"):
            return self.beyond(f"reads {name} of a {type(owner).__name__}, whose class has a __getattribute__")
        member, fields = self.class_member(owner, name), getattr(owner, "__dict__", {})
        if isinstance(member, property):
            return NOT_OWN if member.fget is None else self.called(member.fget, owner)
        if isinstance(member, functools.cached_property) and name not in fields:
            fields[name] = self.called(member.func, owner)
            return fields[name]
        getter = getattr(type(member), "__get__", None)
        data = hasattr(type(member), "__set__") or hasattr(type(member), "__delete__")
        if isinstance(getter, types.FunctionType) and not isinstance(member, functools.cached_property) and (data or name not in fields):
            return self.called(getter, member, owner, type(owner))
        if member is _MISSING and name not in fields and (missing := self.method_of(owner, "__getattr__")):
            return self.called(missing, owner, name)
        return NOT_OWN

    def inherited(self, owner: Any, name: str) -> Any:
        """What `super().name` is, where it is a method or code of a class: of the classes behind that of the caller."""
        instance, base = owner.__self__, base_behind(owner, name)
        member = None if base is None else base.__dict__[name]
        getter = getattr(type(member), "__get__", None)
        if base is not None and getter is None:
            return NOT_OWN
        if isinstance(member, property) and member.fget is not None and not isinstance(instance, type):
            return self.called(member.fget, instance)
        if isinstance(getter, types.FunctionType) and not isinstance(member, functools.cached_property):
            return self.called(getter, member, instance, owner.__self_class__)
        return native(getattr, owner, name)

    def class_with_data(self, owner: Any, name: str) -> type | None:
        """The class that an instance reads something from which is not a method: of the outside, and of every run's instances."""
        if type(owner) is super:
            base = base_behind(owner, name)
            return None if base is None or hasattr(type(base.__dict__[name]), "__get__") else base
        if id(owner) not in self.instances or name.startswith("__") or name in getattr(owner, "__dict__", {}):
            return None
        base = next((base for base in type(owner).__mro__ if name in base.__dict__), None)
        return None if base is None or hasattr(type(base.__dict__[name]), "__get__") else base

    def computes(self, owner: Any, name: str) -> bool:
        """Whether code of the class may run when an attribute is looked up."""
        member = self.class_member(owner, name)
        if member is _MISSING:
            return name not in getattr(owner, "__dict__", {}) and self.method_of(owner, "__getattr__") is not None
        return isinstance(member, property | functools.cached_property) or isinstance(getattr(type(member), "__get__", None), types.FunctionType)

    def own_store(self, owner: Any, name: str, value: Any) -> bool:
        """Whether code of the class stores an attribute; it did then."""
        if id(owner) not in self.instances:
            return False
        setter = self.method_of(owner, "__setattr__")
        if setter is not None:
            self.called(setter, owner, name, value)
            return True
        member = self.class_member(owner, name)
        if isinstance(member, property) and member.fset is not None:
            self.called(member.fset, owner, value)
            return True
        store = getattr(type(member), "__set__", None)
        if isinstance(store, types.FunctionType):
            self.called(store, member, owner, value)
            return True
        return False

    def own_delete(self, owner: Any, name: str) -> None:
        """Refuses to delete what code of the class would."""
        member = self.class_member(owner, name)
        if self.method_of(owner, "__delattr__") or isinstance(member, property) or hasattr(type(member), "__delete__"):
            self.beyond(f"deletes {name} of a {type(owner).__name__}, which runs code of its class")

    def lacks(self, owner: Any, name: str) -> bool:
        """Whether a known instance has no such attribute: Python says so before it evaluates the arguments of a call."""
        if self.class_member(owner, name) is not _MISSING or self.method_of(owner, "__getattr__"):
            return False
        return name not in getattr(owner, "__dict__", {})

    # operators

    def own_binary(self, op: str, a: Any, b: Any) -> Any:
        if id(a) not in self.instances and id(b) not in self.instances:
            return NOT_OWN
        name = _METHODS[op]
        tries = [(self.method_of(a, f"__{name}__"), a, b)]
        if type(a) is not type(b):
            tries.append((self.method_of(b, f"__r{name}__"), b, a))
        return self._first_of(tries, a, b, lambda: hostops.unsupported(op, a, b), op == "%" and isinstance(a, str | Value))

    def own_inplace(self, op: str, a: Any, b: Any) -> Any:
        result = self.own_method(a, f"__i{_METHODS[op]}__", b)
        return self.own_binary(op, a, b) if result is NOT_OWN or result is NotImplemented else result

    def own_compare(self, op: str, a: Any, b: Any) -> Any:
        if (id(a) not in self.instances and id(b) not in self.instances) or op in ("is", "is not"):
            return NOT_OWN
        if op in ("in", "not in") and type(b) in (list, tuple) and any(self.method_of(x, "__eq__") for x in (a, *b)):
            return any(x is a or self._holds(self.dispatch("compare", ("==", x, a), {})) for x in b) is (op == "in")
        if op in ("in", "not in"):
            found = self.own_method(b, "__contains__", a)
            if found is NOT_OWN:
                if self.method_of(b, "__iter__") or self.method_of(b, "__getitem__"):
                    return self.beyond(f"looks for something in a {type(b).__name__}, whose class has no __contains__")
                return NOT_OWN
            return self._holds(found) is (op == "in")
        name, mirrored = _COMPARED[op]
        methods = self.method_of(a, f"__{name}__"), self.method_of(b, f"__{mirrored}__")
        if op == "!=" and methods == (None, None) and (self.method_of(a, "__eq__") or self.method_of(b, "__eq__")):
            return not self._holds(self.own_compare("==", a, b))
        return self._first_of([(methods[0], a, b), (methods[1], b, a)], a, b, lambda: hostops.incomparable(op, a, b), False)

    def _holds(self, x: Any) -> bool:
        """The truth of what a method gave, on the way to the hook call's result."""
        with self.auxiliary():
            return self.truth(x)

    def _first_of(self, tries: list[tuple[Any, Any, Any]], a: Any, b: Any, otherwise: Callable[[], Any], textual: bool) -> Any:
        """The first method that has an answer, in Python's order: a subclass of the left operand's class goes first."""
        if all(method is None for method, _, _ in tries):
            return NOT_OWN
        if textual or not all(isinstance(x, _IGNORANT) or id(x) in self.instances or (isinstance(x, Value) and x.type != "any") for x in (a, b)):
            return self.beyond(f"an operator of a {type(a).__name__} and a {type(b).__name__}")
        if type(a) is not type(b) and issubclass(type(b), type(a)):
            tries = tries[::-1]
        for method, owner, other in tries:
            result = NotImplemented if method is None else self.called(method, owner, other)
            if result is not NotImplemented:
                return result
        return native(otherwise)

    def own_unary(self, op: str, a: Any) -> Any:
        return self.own_method(a, _UNARY[op])

    def own_truth(self, a: Any) -> Any:
        """What stands for the truth of an instance: a bool, a length, or True."""
        if id(a) not in self.instances:
            return NOT_OWN
        result = self.own_method(a, "__bool__")
        return self.own_method(a, "__len__") if result is NOT_OWN else result

    # iteration

    def own_iter(self, x: Any) -> Any:
        """What `iter()` gives: an iterable that Python itself or the mode can go through."""
        made = self.own_method(x, "__iter__")
        if made is NOT_OWN:
            if self.method_of(x, "__getitem__"):
                return self.beyond(f"iterates a {type(x).__name__}, whose class has no __iter__")
            return NOT_OWN
        return self.own_steps(made) if self.method_of(made, "__next__") else made

    def tells_of_length(self, x: Any) -> bool:
        """Whether it can be seen that Python asks what it lists for its length beforehand, which the mode does not."""
        methods = [self.method_of(x, name) for name in ("__len__", "__length_hint__")]
        return any(method is not None and not _only_looks(method.__code__) for method in methods)

    def own_steps(self, iterator: Any) -> Iterator[Any]:
        while (item := self.own_next(iterator)) is not _MISSING:
            yield item

    def own_next(self, iterator: Any) -> Any:
        try:
            return self.own_method(iterator, "__next__")
        except StopIteration:
            return _MISSING

    # builtins

    def own_builtin(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of one of Python's builtins that is a method of the program's own underneath."""
        if not args or not isinstance(fn, types.BuiltinFunctionType | types.FunctionType | type):
            return NOT_OWN
        if fn in (sorted, max, min):
            return self.own_order(fn, args, kwargs)
        if id(args[0]) not in self.instances:
            return NOT_OWN
        owner, *more = args
        if fn in (getattr, setattr, hasattr) and more and self.is_instance(owner):
            more[0] = self.concrete(more[0])
        if fn in (copy.copy, copy.deepcopy) and not more and not kwargs and self.is_instance(owner):
            return self.own_duplicate(owner, fn)
        if fn is dataclasses.replace and not more and hasattr(type(owner), "__dataclass_fields__"):
            return self.own_copy(owner, kwargs)
        if kwargs:
            return NOT_OWN
        if fn is str and not more:
            return self.own_text(owner)
        if fn is bool and not more:
            value = self.own_truth(owner)
            return NOT_OWN if value is NOT_OWN else self._holds(value)
        if fn is iter and not more:
            made = self.own_method(owner, "__iter__")
            return made
        if fn is getattr and len(more) == 1 and isinstance(more[0], str):
            return self.own_attribute(owner, more[0])
        if fn is setattr and len(more) == 2 and isinstance(more[0], str):
            return None if self.own_store(owner, *more) else NOT_OWN
        if fn in (getattr, hasattr) and isinstance(more[0], str) and self.computes(owner, more[0]):
            return self.beyond(f"asks whether a {type(owner).__name__} has {more[0]}, which runs code of its class")
        if fn is next and self.method_of(owner, "__next__"):
            item = self.own_next(owner)
            if item is not _MISSING:
                return item
            return more[0] if more else native(hostops.exhausted)
        if fn is format:
            return self.own_method(owner, "__format__", *(more or [""]))
        return self.own_method(owner, _BUILTINS[fn], *more) if fn in _BUILTINS else NOT_OWN

    def own_copy(self, owner: Any, changes: dict[str, Any]) -> Any:
        """What `dataclasses.replace` gives: its class is called with the fields."""
        fields = owner.__dataclass_fields__.values()
        if not all(f.init and f._field_type is dataclasses._FIELD for f in fields):  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            return self.beyond(f"replaces fields of a {type(owner).__name__}, which has some that are not given to it")
        return self.dispatch("call", (type(owner),), {**{f.name: getattr(owner, f.name) for f in fields}, **changes})

    def own_duplicate(self, owner: Any, fn: Callable[..., Any]) -> Any:
        """What `copy.copy` or `copy.deepcopy` gives: its fields, which no code of its class copies."""
        reached = [owner] if fn is copy.copy else list(self._reached(owner))
        for x in reached:
            if self.is_instance(x) and copied_by_code(type(x)):
                return self.beyond(f"copies a {type(x).__name__}, which runs code of its class")
        memo: dict[int, Any] = {}
        made = native(copy.copy, owner) if fn is copy.copy else native(copy.deepcopy, owner, memo)
        memo.setdefault(id(owner), made)
        for x in reached:
            self.duplicated(x, memo.get(id(x), x))
        return made

    def _reached(self, owner: Any) -> Iterable[Any]:
        """All that a deep copy makes anew: the program's own instances and containers. Other objects that can change end the trace."""
        found: dict[int, Any] = {}
        left = [owner]
        while left:
            x = left.pop()
            if id(x) in found or hostops.is_immutable(x) or isinstance(x, type | types.FunctionType | types.BuiltinFunctionType):
                continue
            found[id(x)] = x
            if self.is_instance(x) or type(x) in (list, tuple, set, dict):
                left += reach.inside(x)
            if not self.may_duplicate(x):
                self.beyond(f"copies a {type(owner).__name__} with an object of the host in it")
        return found.values()

    def may_duplicate(self, x: Any) -> bool:
        """Whether Python's own code alone copies an object, with the same outcome in trace and run."""
        return True

    def duplicated(self, x: Any, made: Any) -> None:
        """`made` is a copy of `x`."""
        if self.is_instance(x):
            self.instances[id(made)] = made

    def own_order(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `sorted`, `max` and `min` give of instances that their class compares: Python's own order of comparisons."""
        together = len(args) == 1 and type(args[0]) in (list, tuple)
        items = args[0] if together else args
        if kwargs.get("key") is not None or not (together or (len(args) > 1 and fn is not sorted)) or not any(map(self._compares, items)):
            return NOT_OWN
        with self.auxiliary():
            found = fn([_Compared(self, x) for x in items], **({"reverse": self.truth(kwargs["reverse"])} if "reverse" in kwargs else {}))
        return [one.x for one in found] if fn is sorted else found.x

    def _compares(self, x: Any) -> bool:
        return any(self.method_of(x, name) for name in ("__lt__", "__gt__"))

    def own_text(self, x: Any) -> Any:
        text = self.own_method(x, "__str__")
        return self.own_method(x, "__repr__") if text is NOT_OWN else text

    def own_format(self, part: Any) -> Any:
        """A part of an f-string with the text of an instance in place of it."""
        if not isinstance(part, tuple) or id(part[0]) not in self.instances:
            return part
        value, conversion, spec = part
        if conversion == "a":
            self.beyond(f"formats a {type(value).__name__} with !a")
            return part
        text = self.own_text(value) if conversion == "s" else self.own_method(value, "__repr__") if conversion == "r" else NOT_OWN
        if text is NOT_OWN and not conversion:
            text = self.own_method(value, "__format__", spec)
            if text is not NOT_OWN:
                return (text, "", "")
            text = NOT_OWN if isinstance(spec, Value) or spec else self.own_text(value)
        return part if text is NOT_OWN else (text, "", spec if conversion else "")


def _written_for(fn: Any, cls: type) -> list[str] | None:
    """The fields that a method is about that `dataclass` wrote for a class; None for other functions, and for those that it writes in another way."""
    name = getattr(fn, "__name__", "")
    if name not in _WRITTEN or getattr(inspect.unwrap(fn), "__code__", None) is None or inspect.unwrap(fn).__code__.co_filename != "<string>":
        return None
    base = next((base for base in cls.__mro__ if base.__dict__.get(name) is fn), None)
    if base is None or "__dataclass_fields__" not in base.__dict__ or (name == "__eq__" and sys.version_info >= (3, 13)):
        return None
    return [field.name for field in dataclasses.fields(base) if (field.repr if name == "__repr__" else field.compare)]


_WRITTEN: Final = {"__repr__": "", "__eq__": "==", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
"""What `dataclass` writes: the sign between the tuples of two instances' fields."""


class _Compared:
    """An instance of the program's own in the hands of a builtin that orders."""

    __slots__ = ("mode", "x")

    def __init__(self, mode: Own, x: Any) -> None:
        self.mode, self.x = mode, x

    def __lt__(self, other: _Compared) -> bool:
        return self.mode.truth(self.mode.compare("<", self.x, other.x))

    def __gt__(self, other: _Compared) -> bool:
        return self.mode.truth(self.mode.compare(">", self.x, other.x))


def _only_looks(code: types.CodeType) -> bool:
    """Whether a method calls nothing but `len` and stores nothing but its own variables."""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL" and step.argval != "len":
            return False
        if step.opname in ("LOAD_METHOD", "LOAD_DEREF", "RAISE_VARARGS") or (step.opname.startswith(("STORE_", "DELETE_")) and step.opname != "STORE_FAST"):
            return False
    return True


def copied_by_code(cls: type) -> bool:
    """Whether a class has a say in what a copy of its instances is."""
    return any(getattr(cls, name, None) is not getattr(object, name, None) for name in _COPIED_BY)


def default_containers(instance: Any, args: Iterable[Any]) -> list[str]:
    """The fields of a dataclass whose containers it made itself, because nothing was given for them."""
    given = {id(a) for a in args}
    made = [f.name for f in dataclasses.fields(instance) if any(f.default_factory is kind for kind in (list, dict, set))]
    return [name for name in made if hasattr(instance, name) and id(getattr(instance, name)) not in given]
