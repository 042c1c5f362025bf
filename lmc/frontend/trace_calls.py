"""Calls while tracing: what is traced through, what the tracer does itself, and what is a host operation of which kind."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import json
import operator
import string
import sys
import types
import weakref
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from lmc.frontend import hostops, reach
from lmc.frontend.asks import as_given
from lmc.frontend.counting import only_sampling
from lmc.frontend.hooks import hooks
from lmc.frontend.host import HostFunction
from lmc.frontend.hostops import Known, native
from lmc.frontend.instrumented import cleaning, is_instrumented
from lmc.frontend.interpreter import Function
from lmc.frontend.keys import BUILT
from lmc.frontend.managers import is_generator_manager
from lmc.frontend.own import NOT_OWN
from lmc.frontend.raising import content, is_constant
from lmc.frontend.state import StateGroup
from lmc.frontend.tools import line_of, result_message, tool_result
from lmc.frontend.trace_builtins import MAIN, handler_of, sort_in_place, steps
from lmc.frontend.trace_outside import OutsideMode, is_enum_member, is_lazy
from lmc.frontend.values import TraceEscape, Value, active

if TYPE_CHECKING:
    from lmc.frontend.tracer import TraceMode


class CallMode(OutsideMode):
    """A recorder that knows calls. What Python does with objects otherwise is in tracer.py."""

    if TYPE_CHECKING:  # there

        def items(self, value: Any, which: int = 0) -> Iterable[Any]: ...
        def contained(self, x: Any, which: int = 0) -> Any: ...
        def spread(self, items: Value, source: Value) -> list[Value]: ...

    # -- what Python itself may work on while tracing

    def is_plain(self, x: Any) -> bool:
        """Whether Python itself may work on an object while tracing: constants, the program's own objects, the language."""
        if isinstance(x, BaseException):
            return is_constant(x)
        return hostops.is_immutable(x) or id(x) in self.local or type(x) is tuple or reach.is_language(x)

    def is_own_instance(self, x: Any) -> bool:
        """Whether an object is an instance of the program's own class: only its fields and methods are known here."""
        return id(x) in self.local and type(x) not in _BUILT_IN

    def as_plain(self, x: Any) -> Any:
        """A named tuple that the program made, as the tuple of its items; anything else as it is."""
        return tuple(x) if isinstance(x, tuple) and type(x) is not tuple and id(x) in self.local else x

    def is_constant(self, x: Any) -> bool:
        """Whether Python itself may read an object to any depth while tracing; not so for what holds itself."""
        if type(x) in (tuple, list, set, frozenset, dict):
            if id(x) in self.within or not (type(x) in (tuple, frozenset) or id(x) in self.local):
                return False
            self.within.add(id(x))
            try:
                return all(map(self.is_constant, itertools.chain(x, x.values()) if type(x) is dict else x))
            finally:
                self.within.remove(id(x))
        if self.is_own_instance(x):
            return False
        return self.is_plain(x) or self.by_identity(x)

    def by_identity(self, x: Any) -> bool:
        return isinstance(x, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType | HostFunction) or is_enum_member(x) or hostops.is_type_form(x)

    def is_key(self, x: Any) -> bool:
        """Whether Python may look for an object in a container while tracing: no traced value, and no code of the host hashes or compares it."""
        return not reach.holds_value(x) and not reach.holds(x, self._is_hashed_by_code)

    def _is_hashed_by_code(self, x: Any) -> bool:
        cls = type(x)
        by_code = isinstance(cls.__hash__, types.FunctionType) or isinstance(cls.__eq__, types.FunctionType)
        return by_code and not (type(x) is Value or id(x) in self.local or is_enum_member(x) or reach.is_language(x) or hostops.is_type_form(x))

    def key(self, container: Any, x: Any) -> Any:
        """A key to look for in a container of the program, made concrete."""
        if reach.holds(x, self._is_hashed_by_code):
            self.wants(container)
            raise TraceEscape(f"looks in a {type(container).__name__} that it made for an object that code of the host compares")
        return self.concrete(x)

    def fresh(self, x: Any) -> Any:
        """Registers a container or iterator that the program just got as its own."""
        if (type(x) in (list, dict, set) or is_lazy(x)) and id(x) not in self.lent:
            self.local[id(x)] = x
        return x

    def lends(self, values: Iterable[Any]) -> None:
        """The program stores values in a state: a container of the outside stays one when it is read again."""
        self.lent |= {id(x): x for x in values if type(x) in (list, dict, set) and id(x) not in self.local}

    def adopted(self, container: Any, which: int) -> Any:
        return self.contained(container, which)

    def parsed(self, x: Any) -> Any:
        """As `fresh`, with the containers inside: `json.loads` makes all of them anew in each run."""
        for item in x.values() if type(x) is dict else x if type(x) is list else ():
            self.parsed(item)
        return self.fresh(x)

    def may_duplicate(self, x: Any) -> bool:
        return x.immutable if isinstance(x, Value) else id(x) in self.local or type(x) is tuple or self.by_identity(x)

    def duplicated(self, x: Any, made: Any) -> None:
        if self.is_instance(x) or type(x) in (list, dict, set):
            self.local[id(made)] = made

    def listed(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with the program's own iterators and views run through."""
        return tuple([self.fresh(list(self.items(a))) if is_lazy(a) and id(a) in self.local else a for a in args])

    # -- calls

    def has_method(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Value) and owner.type != "str":
            kind = "pure" if owner.immutable else "ordered"
            self.host(self.operation("py.getattr"), [owner.ir, name], Known(), kind, key=(self.tick, 1, 0))
        elif hostops.is_immutable(owner) or (self.is_own_instance(owner) and self.lacks(owner, name)) or self.is_own_definition(owner):
            native(getattr, owner, name)
        return owner

    def call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.calls(fn, args, kwargs)

    @property
    def whole(self) -> TraceMode:
        """This mode as the class that has all hooks."""
        return cast("TraceMode", self)

    def calls(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of anything."""
        if isinstance(fn, Value):
            if any(map(reach.holds_language, args)) or any(map(reach.holds_language, kwargs.values())):
                return self.calls(self.decide(fn), args, kwargs)
            return self.effect(fn, args, kwargs)
        if is_generator_manager(fn):
            raise TraceEscape("uses a context manager it made as a decorator")
        if isinstance(fn, HostFunction):
            return self.marked_call(fn, args, kwargs)
        if isinstance(fn, types.MethodType) and isinstance(fn.__func__, HostFunction):
            return self.marked_call(fn.__func__, (fn.__self__, *args), kwargs)
        if isinstance(fn, type) and reach.ends_with_code(fn):
            raise TraceEscape(f"makes a {fn.__name__}, whose __del__ runs where it is dropped")
        result = self.own_builtin(fn, args, kwargs)
        if result is not NOT_OWN:
            return self.fresh(result) if fn is sorted else result
        handler = handler_of(fn, self.whole, args)
        if handler is not None:
            if fn in MAIN:
                return self.fresh(handler(self.whole, args, kwargs))
            with self.auxiliary():
                result = handler(self.whole, args, kwargs)
                if type(result) is types.GeneratorType and id(result) not in self.local:
                    result = steps(self.whole, result)
                return self.contained(result, BUILT) if fn in (list, dict, set, sorted) else self.fresh(result)
        if fn is functools.partial:
            made = self.local[id(made)] = native(functools.partial, *args, **kwargs)
            return made
        if isinstance(fn, operator.itemgetter) and len(args) == 1 and not kwargs and id(args[0]) in self.local:
            keys = fn.__reduce__()[1]
            found = tuple([self.whole.getitem(args[0], key) for key in keys])
            return found[0] if len(keys) == 1 else found
        if isinstance(fn, functools.partial) and id(fn) in self.local:
            return self.calls(fn.func, (*fn.args, *args), {**fn.keywords, **kwargs})
        if isinstance(fn, type) and issubclass(fn, BaseException):
            return self.make_error(fn, args, kwargs)
        if isinstance(fn, Function):
            if not only_sampling(fn, kwargs):
                raise TraceEscape(f"calls the program {fn.name} with options of its own")
            return self.sub_program(fn, args, kwargs)
        if reach.is_own(fn) or reach.is_language(fn) or reach.is_language(getattr(fn, "__self__", None)):
            return self.language_call(fn, args, kwargs)
        if reach.makes_records(fn) and any(map(reach.holds_language, (*args, *kwargs.values()))):
            made = self.local[id(made)] = native(fn, *args, **kwargs)
            return made
        if isinstance(fn, types.MethodWrapperType) and id(fn.__self__) in self.local and fn.__objclass__ is object and fn.__name__ in _PLAIN:
            return native(fn, *args, **kwargs)  # super().__init__() and the like at the end of the classes
        if isinstance(fn, types.BuiltinMethodType | types.MethodWrapperType) and getattr(fn, "__self__", None) is not None and not isinstance(
            fn.__self__, types.ModuleType | type
        ):
            return self.methods(fn.__self__, fn.__name__, args, kwargs)
        twin = self.twin(fn, args, kwargs)
        if twin is not None:
            result = native(twin, *args, **kwargs)
            if isinstance(fn, type):
                self.created(result, args, kwargs)
            if isinstance(result, types.CoroutineType | types.AsyncGeneratorType):
                self.coroutines.append(result)
            if isinstance(result, types.GeneratorType):
                return self.to_its_end(result) if result.gi_code in cleaning else self.fresh(result)
            return result
        if isinstance(fn, type) and self.is_own_definition(fn) and isinstance(fn.__new__, types.FunctionType) and is_instrumented(fn.__new__):
            raise TraceEscape(f"makes a {fn.__name__}, whose class has a __new__")  # which may keep what is of this run in the class
        known = hostops.pure_function(fn)
        if known is not None:
            return self.known_call(fn, known, args, kwargs)
        return self.effect(fn, args, kwargs)

    def to_its_end(self, generator: types.GeneratorType[Any, Any, Any]) -> Any:
        """What stands for a generator that does something at its end: run to it, or else the trace ends where the program drops it."""
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        while frame is not None and frame.f_code is not self.outermost:
            if frame.f_code.co_flags & inspect.CO_GENERATOR and is_instrumented(frame.f_code):
                raise TraceEscape("has a generator with `yield` inside of `try` or `with` inside of another generator")
            frame = frame.f_back
        self.suspended.append(generator)
        whole = _to_its_end(self, generator)
        key = id(whole)
        self.local[key] = weakref.ref(whole, lambda _: self.local.pop(key, None))  # not kept: it is dropped when the program drops it
        self.loose = weakref.ref(whole)
        return whole

    def marked_call(self, fn: HostFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function that `lmc.pure` or `lmc.host` says something of."""
        if not fn.pure:
            return self.effect(fn, args, kwargs)
        args = self.listed(args)
        everything = (*args, *kwargs.values())
        if not any(map(reach.holds_value, everything)) and all(map(self.is_constant, everything)):
            result = native(fn.fn, *args, **kwargs)
            if hostops.is_immutable(result):
                return result
        pure = all(self.type_of(a) != "any" for a in everything)
        operands = [self.operand(a) for a in everything]
        return self.host(self.marked(fn, shared=pure), operands, Known(), "pure" if pure else "ordered", kwargs=tuple(kwargs))

    def language_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(fn, "__name__", "")
        if (given := as_given(self, fn, args, kwargs)) is not None:
            args, kwargs = (), given
        elif name in _CONCRETE_FIRST and args:
            args = (self.concrete(args[0]), *args[1:])
        elif name in _ROLES:
            args, kwargs = tuple(map(self.as_text, args)), {key: self.as_text(x) for key, x in kwargs.items()}
        elif fn is tool_result and args:
            fn, args = result_message, (self.calls(line_of, args[:1], {}), *args[1:])
        else:
            kwargs = {key: self.concrete(x) if key in ("name", "size") else x for key, x in kwargs.items()}
        with self.auxiliary():
            if name == "set_var":
                self.lends(args[1:])
            made = self.fresh(native(fn, *args, **kwargs))
        return self.keep(made) if isinstance(made, StateGroup) else made

    def known_call(self, fn: Any, known: Known, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A library function that only reads its arguments."""
        args = self.listed(args)
        everything = (*args, *kwargs.values())
        if any(isinstance(a, types.FunctionType | types.MethodType | functools.partial) for a in everything):
            return self.effect(fn, args, kwargs)  # what it calls may do anything
        if fn is len and args:
            args = (self.as_plain(args[0]), *args[1:])
        if fn is len and self.is_plain(args[0]) and not self.is_own_instance(args[0]):
            return native(len, *args)
        if not any(map(reach.holds_value, everything)) and all(self.is_constant(a) or self.steady(a) for a in everything):
            result = native(fn, *args, **kwargs)
            if fn is json.loads:
                return self.parsed(result)
            if not known.fresh or type(result) in (list, dict, set):
                return self.fresh(result)  # else an object like a Counter, which each run makes for itself
        if known.type == "any":
            self.gives_items(everything)
        types_ = [self.type_of(a) for a in everything]
        operands = [self.operand(a) for a in everything]
        pure = "any" not in types_
        known = hostops.of_text(fn, known, args, kwargs, lambda x: self.type_of(x) == "str")
        if fn in (str, repr, format) or (fn is len and pure):
            known = Known(known.type, total=types_[0] in ("str", "float", "bool") and len(types_) == 1)
        return self.host(self.callee(fn), operands, known, "pure" if pure and not known.fresh else "ordered", kwargs=tuple(kwargs))

    def callm(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self.methods(owner, name, args, kwargs)

    def methods(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a method of anything."""
        if (error := content(owner)) is not None:
            return self.value_method(error, name, args, kwargs)
        if isinstance(owner, Value):
            return self.value_method(owner, name, args, kwargs)
        if is_generator_manager(owner):
            raise TraceEscape(f"calls {name} of a context manager it made")
        if isinstance(owner, Function) and name == "run":
            return self.calls(owner, args, kwargs)
        if isinstance(owner, Function) and name == "arun" and only_sampling(owner, kwargs):
            self.coroutines.append(coroutine := self.sub_program_async(owner, args, kwargs))
            return coroutine
        if reach.is_language(owner):
            return self.language_call(native(getattr, owner, name), args, kwargs)
        if isinstance(owner, types.ModuleType | type) or self.is_own_definition(owner):
            return self.calls(self.getattr(owner, name), args, kwargs)
        if type(owner) in (list, dict, set) and id(owner) in self.local:
            return self.container_method(owner, name, args, kwargs)
        if hostops.is_immutable(owner) or type(owner) is tuple:
            return self.constant_method(owner, name, args, kwargs)
        if is_constant(owner) or (is_lazy(owner) and id(owner) in self.local):
            return native(native(getattr, owner, name), *args, **kwargs)
        return self.object_method(owner, name, args, kwargs)

    def value_method(self, owner: Value, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        everything = (*args, *kwargs.values())
        if any(map(reach.holds_language, everything)):
            raise TraceEscape(f"hands a state to .{name}() of a traced value")
        args = self.listed(args)
        types_ = [self.type_of(a) for a in (owner, *args, *kwargs.values())]
        if owner.type == "str":
            return self.text_method(owner, name, args, kwargs, types_)
        if owner.immutable and "any" not in types_ and not any(map(_may_call, everything)) and (known := hostops.method(name)) is not None:
            kind = "ordered" if known.fresh else "pure"
            return self.host(self.operation("py.call_method"), [owner.ir, name, *map(self.operand, everything)], known, kind, kwargs=tuple(kwargs))
        if name in _KEEP_NOTHING and any(type(a) is list and id(a) in self.local for a in args):
            args = self.items_alone(owner, args)
        known = bool(owner.items or owner.kind) and not any(map(_may_call, everything))
        self.no_containers(f".{name}", args, kwargs)
        operands = [owner.ir, name, *self.handed(_method_of(owner.kind, name), (*args, *kwargs.values()))]
        still_text = owner.items == "str" and (name in _READ_OR_DROP or (name in ("append", "insert") and types_[-1] == "str"))
        result = self.host(
            self.operation("py.call_method"), operands, Known(), "ordered" if known else "effect", kwargs=tuple(kwargs), inline=known)
        if still_text:
            self.holds_text(owner)
        return result

    def items_alone(self, owner: Value, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments of a method of a container that keeps the items of what it is handed: for that, lists of the program are as good as tuples."""
        if owner.kind is None:
            cls = self.decide(self.host(self.constant(type), [owner.ir], Known(total=True), "pure"))
            owner.kind = cls if cls in _CONTAINERS else None
        return args if owner.kind is None else tuple([tuple(a) if type(a) is list and id(a) in self.local else a for a in args])

    def text_method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], types_: list[str]) -> Any:
        """A method of str on operands some of which are traced."""
        known = hostops.str_method(name, types_) if not kwargs else hostops.str_method(name, ["str", "any"])
        if known is None:
            raise TraceEscape(f"str has no method {name}")  # the interpreter raises what Python raises
        fn = getattr(str, name)
        symbol = self.tree.symbol(("id", id(fn)), f"str.{name}", fn)
        operands = [self.operand(a) for a in (owner, *args, *kwargs.values())]
        pure = "any" not in types_ and not known.fresh
        return self.host(symbol, operands, known, "pure" if pure else "ordered", kwargs=tuple(kwargs))

    def constant_method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = self.listed(args)
        if name == "format" and isinstance(owner, str):
            kwargs = _wanted(owner, kwargs)
        if name == "join" and args and (items := self.own_iter(args[0])) is not NOT_OWN:
            args = (self.fresh(list(self.whole.items(self.fresh(items)))),)
        everything = (*args, *kwargs.values())
        if any(map(reach.holds_language, everything)) and type(owner) is not tuple:
            raise TraceEscape(f"hands a state to {type(owner).__name__}.{name}")
        args = tuple(tuple(a) if name == "join" and isinstance(a, list) and id(a) in self.local else a for a in args)
        everything = (*args, *kwargs.values())
        if any(map(_may_call, everything)):  # what it calls may do anything
            self.no_containers(f".{name}", args, kwargs)
            return self.host(
                self.operation("py.call_method"), [self.operand(owner), name, *self.handed(getattr(owner, name, None), everything)], Known(), "effect",
                kwargs=tuple(kwargs), inline=False)  # fmt: skip
        if not reach.holds_value((owner, everything)) and self.is_constant(owner) and all(self.is_constant(a) or self.steady(a) for a in everything):
            result = self.fresh(native(native(getattr, owner, name), *args, **kwargs))
            if self.is_constant(result) or is_lazy(result):
                return result  # else an object that each run makes for itself, such as the iterator of `finditer`
        types_ = [self.type_of(a) for a in (owner, *everything)]
        if type(owner) is str:
            return self.text_method(owner, name, args, kwargs, types_)
        known = hostops.method(name) if "any" not in types_ else None
        return self.host(
            self.operation("py.call_method"), [self.operand(owner), name, *map(self.operand, everything)], known or Known(),
            "pure" if known and not known.fresh else "ordered", kwargs=tuple(kwargs))  # fmt: skip

    def container_method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of a list, dict or set that the program made."""
        if isinstance(owner, list):
            match name, args:
                case "extend", (items,):
                    return owner.extend(list(self.whole.all_items(items)))
                case "sort", ():
                    with self.auxiliary():
                        return sort_in_place(self.whole, owner, kwargs)
                case ("append" | "insert" | "clear" | "copy" | "reverse" | "pop", _):
                    if name in ("insert", "pop"):
                        args = (*map(self.concrete, args[:1]), *args[1:])
                    result = native(getattr(owner, name), *args, **kwargs)
                    return self.fresh(result) if name == "copy" else result
                case _:
                    pass
        elif isinstance(owner, dict) and name in ("keys", "values", "items", "copy", "clear", "get", "pop", "setdefault", "update", "popitem"):
            if name == "update" and args and not (self.is_plain(args[0]) and isinstance(args[0], dict)):
                self.wants(owner)
                raise TraceEscape("updates a dict it made from host data")
            if name in ("get", "pop", "setdefault") and args:
                args = (self.key(owner, args[0]), *args[1:])
            result = native(native(getattr, owner, name), *args, **kwargs)
            return result if name in ("get", "pop", "setdefault") else self.fresh(result)
        if not reach.holds_value((owner, args)):
            args = self.listed(args)
            if not all(map(self.is_constant, args)) or not (isinstance(owner, dict) or self.is_constant(owner)):
                self.wants(owner)
                raise TraceEscape(f"{type(owner).__name__}.{name} with objects of the host")
            return self.fresh(native(native(getattr, owner, name), *args, **kwargs))
        if name in ("count", "index") and isinstance(owner, list) and not reach.holds_language(owner):
            return self.read_list(tuple(owner), name, args)
        self.wants(owner)
        raise TraceEscape(f"{type(owner).__name__}.{name} with traced values")

    def read_list(self, owner: tuple[Any, ...], name: str, args: tuple[Any, ...]) -> Value:
        types_ = [self.type_of(a) for a in (owner, *args)]
        return self.host(
            self.operation("py.read_list"), [self.operand(owner), name, *map(self.operand, args)], Known("int"),
            "pure" if "any" not in types_ else "ordered")  # fmt: skip

    def object_method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of an instance: the program's own, traced through if it reaches the language, or the host's."""
        if id(owner) in self.local:
            return self.calls(self.getattr(owner, name), args, kwargs)
        method = getattr(type(owner), name, None)
        if isinstance(method, HostFunction) and name not in getattr(owner, "__dict__", {}):
            return self.marked_call(method, (owner, *args), kwargs)
        if isinstance(method, types.FunctionType) and name not in getattr(owner, "__dict__", {}):
            bound = getattr(owner, name)
            if isinstance(bound, types.MethodType) and reach.traced_twin(bound, args, kwargs, hooks) is not None:
                return self.calls(bound, args, kwargs)
        if any(map(reach.holds_language, (*args, *kwargs.values()))):
            return self.calls(getattr(owner, name), args, kwargs)
        self.no_containers(f".{name}", args, kwargs)
        operands = [self.operand(owner), name, *map(self.operand, (*args, *kwargs.values()))]
        return self.host(self.operation("py.call_method"), operands, Known(), "effect", kwargs=tuple(kwargs), inline=False)


def _to_its_end(mode: CallMode, generator: types.GeneratorType[Any, Any, Any]) -> Generator[Any, Any, Any]:
    over = False
    try:
        while True:
            try:
                item = next(generator)
            except BaseException as error:
                over = True
                if isinstance(error, StopIteration):
                    return error.value
                raise
            if (yield item) is not None:
                raise TraceEscape("sends something to a generator with `yield` inside of `try` or `with`")
    finally:
        if not over and active.get() is mode:
            TraceEscape("leaves a generator with `yield` inside of `try` or `with` before its end")  # ends the trace at the next hook


_PLAIN = frozenset({"__init__", "__setattr__", "__delattr__"})
"""Methods of `object` that touch nothing but the instance's own fields."""


_BUILT_IN = frozenset({list, dict, set, tuple, functools.partial})


_READ_OR_DROP = frozenset("clear copy count index pop remove reverse sort".split())
"""Methods of lists that put nothing into them."""


_CONTAINERS = frozenset({list, set, dict, collections.deque, collections.Counter, collections.defaultdict, collections.OrderedDict})


_KEEP_NOTHING = frozenset("extend update union intersection difference issubset issuperset".split())
"""Methods of containers that go through what they are handed, and keep its items alone."""


def _wanted(text: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments that a format string names; `"…".format(**locals())` has all sorts."""
    try:
        wanted = set(_fields(text))
    except ValueError:
        return kwargs  # Python says what is wrong with it
    return {name: x for name, x in kwargs.items() if name in wanted}


def _fields(text: str) -> Iterator[str]:
    for _, field, spec, _ in string.Formatter().parse(text):
        if field is not None:
            yield field.split(".")[0].split("[")[0]
            yield from _fields(spec or "")


def _method_of(kind: type | None, name: str) -> Any:
    return None if kind is None else getattr(kind, name, None)


def _may_call(x: Any) -> bool:
    """Whether a function that is handed an object may call it."""
    return isinstance(x, types.FunctionType | types.MethodType | functools.partial)


def is_method(cls: Any, name: str) -> bool:
    """Whether an attribute of a class is a function of it: a definition, not data."""
    if not isinstance(cls, type):
        return False
    member = next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), None)
    return isinstance(member, _DEFINED)


_DEFINED = (
    types.FunctionType, staticmethod, classmethod, property, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
_ROLES = frozenset({"system", "user", "assistant"})
_CONCRETE_FIRST = frozenset({"fork", "get_var", "set_var", "get_meta_info", "var_scope", "copy"})
