"""The tracer: runs a program on symbolic values and records what it does into a trace tree.

It never calls the model and never runs the program's host effects, so it can run as often as it likes. Where Python
needs a concrete answer, the decisions given for the path so far are used; at the first one missing the trace stops.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lmc.config import log
from lmc.frontend import hostops, reach
from lmc.frontend.hooks import CHOICES, Key, hooks, program_frame
from lmc.frontend.hostops import Known, Shape, native
from lmc.frontend.instrument import instrument
from lmc.frontend.interpreter import ACTIVE, Function
from lmc.frontend.primitives import Expr
from lmc.frontend.state import State, StateGroup
from lmc.frontend.trace_builtins import MAIN, handler_of, sort_in_place
from lmc.frontend.trace_outside import DICT_VIEWS, OutsideMode, is_enum_member, is_lazy
from lmc.frontend.trace_record import NO_KEY, SELF, Diverged, StopTrace, fault_of, held_of
from lmc.frontend.trace_state import TraceEmitter
from lmc.frontend.tree import Decision, Tree
from lmc.frontend.values import TraceEscape, Value, active
from lmc.ir.core import Operand, Type

__all__ = ["SELF", "Diverged", "held_of", "trace"]


class TraceMode(OutsideMode):
    """Hooks that record. One instance is one run of the tracer along one path."""

    # names and attributes

    def store_global(self, name: str, value: Any, names: dict[str, Any]) -> None:
        if self.wants(value):
            raise TraceEscape(f"stores a container that it made in the global {name}")
        owner = self.tree.symbol(("globals", id(names)), "globals", names)
        self.host(self.operation("py.setitem"), [owner, name, self.operand(value)], Known(), "effect")

    def getattr(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Value):
            kind = "pure" if owner.immutable else "ordered"
            return self.host(self.operation("py.getattr"), [owner.ir, name], Known(), kind, hint=name)
        getter = self.property_of(owner, name)
        if getter is not None:
            return self.dispatch("call", (getter, owner), {})
        if self.is_plain(owner) or isinstance(owner, types.MethodType | types.BuiltinFunctionType) or is_enum_member(owner):
            return self.fresh(native(getattr, owner, name))
        if isinstance(owner, types.ModuleType | type | types.FunctionType):
            if name.startswith("__") or _is_method(owner, name):
                return native(getattr, owner, name)
            native(getattr, owner, name)
            return self.attribute_of(owner, name)
        if _is_method(type(owner), name) and name not in getattr(owner, "__dict__", {}):
            return getattr(owner, name)
        return self.host(self.operation("py.getattr"), [self.operand(owner), name], Known(), "ordered", hint=name)

    def is_plain(self, x: Any) -> bool:
        """Whether Python itself may work on an object while tracing: constants, the program's own objects, the language."""
        return hostops.is_immutable(x) or id(x) in self.local or type(x) is tuple or isinstance(x, BaseException) or reach.is_language(x)

    def is_own_instance(self, x: Any) -> bool:
        """Whether an object is an instance of the program's own class: only its fields and methods are known here."""
        return id(x) in self.local and type(x) not in _BUILT_IN

    def is_constant(self, x: Any) -> bool:
        """Whether Python itself may read an object to any depth while tracing."""
        if type(x) in (tuple, list, set, frozenset):
            return (type(x) in (tuple, frozenset) or id(x) in self.local) and all(map(self.is_constant, x))
        if type(x) is dict:
            return id(x) in self.local and all(self.is_constant(k) and self.is_constant(v) for k, v in x.items())
        if self.is_own_instance(x):
            return False
        return self.is_plain(x) or self.by_identity(x)

    def by_identity(self, x: Any) -> bool:
        return isinstance(x, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType) or is_enum_member(x)

    def fresh(self, x: Any) -> Any:
        """Registers a container or iterator that the program just got as its own."""
        if type(x) in (list, dict, set) or is_lazy(x):
            self.local[id(x)] = x
        return x

    def listed(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with the program's own iterators and views run through."""
        return tuple([self.fresh(list(self.items(a))) if is_lazy(a) and id(a) in self.local else a for a in args])

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        if self.is_own_instance(owner) and (type(owner).__setattr__ is not object.__setattr__ or isinstance(getattr(type(owner), name, None), property)):
            raise TraceEscape(f"sets {name} of a {type(owner).__name__}, which runs code of its class")
        if self.is_plain(owner):
            native(setattr, owner, name, value)
        else:
            self.mutate("py.setattr", owner, name, value)

    def delattr(self, owner: Any, name: str) -> None:
        if self.is_plain(owner):
            native(delattr, owner, name)
        else:
            self.mutate("py.delattr", owner, name)

    def mutate(self, name: str, owner: Any, *args: Any) -> None:
        """A change of an object of the host."""
        self.no_containers(owner, args, {})
        kind = "ordered" if isinstance(owner, Value) else "effect"
        self.host(self.operation(name), [self.operand(owner), *map(self.operand, args)], Known(), kind)

    # -- items

    def getitem(self, owner: Any, key: Any) -> Any:
        if reach.is_language(owner):
            with self.auxiliary():
                return self.fresh(native(operator.getitem, owner, self.concrete(key)))
        if isinstance(owner, type):
            return native(operator.getitem, owner, key)
        if self.is_plain(owner) and not self.is_own_instance(owner):
            if not reach.holds_value(key):
                return self.fresh(native(operator.getitem, owner, key))
            if reach.holds_language(owner) or any(callable(x) for x in (owner.values() if isinstance(owner, dict) else owner)):
                return self.fresh(native(operator.getitem, owner, self.concrete(key)))
        if self.steady(owner) and not reach.holds_value(key):
            return self.fresh(native(operator.getitem, owner, key))
        return self.simple("py.getitem", owner, key)

    def setitem(self, owner: Any, key: Any, value: Any) -> None:
        if reach.is_language(owner):
            owner[self.concrete(key)] = value
        elif self.is_plain(owner) and not self.is_own_instance(owner):
            if reach.holds_value(key):
                self.wants(owner)
                raise TraceEscape("stores under a traced key in a container that it made")
            native(operator.setitem, owner, key, value)
        else:
            self.mutate("py.setitem", owner, key, value)

    def delitem(self, owner: Any, key: Any) -> None:
        if self.is_plain(owner) and not self.is_own_instance(owner):
            native(operator.delitem, owner, self.concrete(key))
        else:
            self.mutate("py.delitem", owner, key)

    def slice_(self, start: Any, stop: Any, step: Any) -> Any:
        if any(isinstance(x, Value) for x in (start, stop, step)):
            return self.value(self.build("py.slice", (start, stop, step)), immutable=True)
        return slice(start, stop, step)

    # -- operators

    def binop(self, op: str, a: Any, b: Any) -> Any:
        if isinstance(a, Expr) or isinstance(b, Expr):
            return b.__radd__(a) if op == "+" and isinstance(a, Value) else native(hostops.OPERATIONS[hostops.BINARY[op]], a, b)
        joins = type(a) in (list, tuple) and ((type(a) is type(b) and op == "+") or (type(b) is int and op == "*"))
        if joins and self.is_plain(a) and self.is_plain(b):
            return self.fresh(native(hostops.OPERATIONS[hostops.BINARY[op]], a, b))
        if not reach.holds_value((a, b)) and self.is_constant(a) and self.is_constant(b):
            return self.fresh(native(hostops.OPERATIONS[hostops.BINARY[op]], a, b))
        return self.simple(hostops.BINARY[op], a, b)

    def iop(self, op: str, a: Any, b: Any) -> Any:
        if reach.is_language(a):
            with self.auxiliary():
                return native(hostops.OPERATIONS[hostops.INPLACE[op]], a, self.items_of_group(a, b))
        if id(a) in self.local and isinstance(a, list) and op == "+":
            with self.auxiliary():
                a.extend(self.star(b))
            return a
        if not isinstance(a, Value) and self.is_plain(a) and hostops.is_immutable(a):
            return self.binop(op, a, b)
        if isinstance(a, Value) and a.immutable:
            return self.binop(op, a, b)
        if not reach.holds_value((a, b)) and self.is_constant(a) and self.is_constant(b):
            return self.fresh(native(hostops.OPERATIONS[hostops.INPLACE[op]], a, b))
        if id(a) in self.local:
            self.wants(a)
            raise TraceEscape(f"changes a {type(a).__name__} it made by {op}= of something of the host")
        self.no_containers(f"{op}=", tuple(b) if type(b) is list else (b,), {})
        return self.simple(hostops.INPLACE[op], a, b)

    def unary(self, op: str, a: Any) -> Any:
        return native(hostops.OPERATIONS[hostops.UNARY[op]], a) if hostops.is_immutable(a) else self.simple(hostops.UNARY[op], a)

    def compare(self, op: str, a: Any, b: Any) -> Any:
        name = hostops.COMPARE[op]
        symbolic = reach.holds_value(a) or reach.holds_value(b)
        if op in ("is", "is not"):
            direct = isinstance(a, Value) or isinstance(b, Value)
            return self.simple(name, a, b) if direct else hostops.OPERATIONS[name](a, b)
        if op in ("in", "not in"):
            if reach.is_language(b):
                return native(hostops.OPERATIONS[name], self.concrete(a), b)
            if is_lazy(b) and id(b) in self.local:
                if not isinstance(b, DICT_VIEWS):
                    raise TraceEscape("looks for something in an iterator")
                b = tuple(b)
            elif self.steady(b) and not reach.holds_value(a) and self.is_constant(a):
                return native(hostops.OPERATIONS[name], a, b)
        if not symbolic and self.is_constant(a) and self.is_constant(b):
            return native(hostops.OPERATIONS[name], a, b)
        if not symbolic and self._told_by_identity(op, a, b):
            return native(hostops.OPERATIONS[name], a, b)
        if reach.is_language(a) or reach.is_language(b):
            raise TraceEscape("compares a state with a traced value")
        if id(b) in self.local and isinstance(b, list | set | dict) and op in ("in", "not in"):
            b = tuple(b)
        return self.simple(name, a, b)

    def _told_by_identity(self, op: str, a: Any, b: Any) -> bool:
        """Whether comparing runs no code but Python's own: definitions, and instances without `__eq__`."""
        def plain(x: Any) -> bool:
            return self.by_identity(x) or self.is_constant(x) or (self.is_own_instance(x) and type(x).__eq__ is object.__eq__)

        if op in ("==", "!="):
            return plain(a) and plain(b)
        return op in ("in", "not in") and plain(a) and type(b) in (list, tuple) and self.is_plain(b) and all(map(plain, b))

    def not_(self, a: Any) -> Any:
        if isinstance(a, Value):
            return self.simple("py.not", a)
        with self.auxiliary():
            return not self.truth(a)

    def truth(self, a: Any) -> bool:
        if isinstance(a, Value):
            return self.decide(a if a.type == "bool" else self.simple("py.bool", a))
        if self.is_own_instance(a) and not is_lazy(a):
            if hasattr(type(a), "__bool__") or hasattr(type(a), "__len__"):
                raise TraceEscape(f"tests a {type(a).__name__}, which runs code of its class")
            return True
        if self.is_plain(a) or isinstance(a, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType | types.MethodType):
            return bool(a)
        if self.steady(a):
            return bool(a)
        return self.decide(self.host(self.operation("py.bool"), [self.operand(a)], Known("bool"), "ordered"))

    def concrete(self, a: Any) -> Any:
        """A value made concrete: one arm of the trace tree per answer seen."""
        if isinstance(a, Value):
            return self.decide(a)
        if type(a) is tuple and reach.holds_value(a):
            return tuple(self.concrete(x) for x in a)
        if type(a) is slice and reach.holds_value(a):
            return slice(self.concrete(a.start), self.concrete(a.stop), self.concrete(a.step))
        return a

    def fstring(self, *parts: Any) -> Any:
        pieces: list[Operand] = []
        for i, part in enumerate(parts):
            if isinstance(part, str | Value):
                pieces.append(part if isinstance(part, str) else part.ir)
                continue
            value, conversion, spec = part
            if isinstance(value, Value) and value.type == "str" and not spec and conversion in ("", "s"):
                pieces.append(value.ir)
            elif reach.holds_value(value) or isinstance(spec, Value) or not self.is_constant(value):
                pieces.append(self.simple("py.format", value, conversion, spec, key=(self.tick, i + 1, 0)).ir)
            else:
                pieces.append(native(hostops.OPERATIONS["py.format"], value, conversion, spec))
        return self.joined(pieces)

    def joined(self, pieces: list[Operand]) -> Any:
        merged: list[Operand] = []
        for piece in pieces:
            if isinstance(piece, str) and merged and isinstance(merged[-1], str):
                merged[-1] += piece
            elif piece != "":
                merged.append(piece)
        if not merged:
            return ""
        if len(merged) == 1 and isinstance(merged[0], str):
            return merged[0]
        return self.value(self.emit("concat", merged, {}, ("str",))[0])

    # -- building and taking apart

    def made(self, container: Any) -> Any:
        return self.contained(container)

    def contained(self, x: Any) -> Any:
        """A container that the program just made: trace-local, or an object of the run if host code will be handed it."""
        if type(x) not in (list, dict, set):
            return self.fresh(x)
        code, at = (frame := program_frame()).f_code, frame.f_lasti
        site = (code.co_filename, code.co_name, code.co_firstlineno, at)
        items = tuple(itertools.chain.from_iterable(x.items())) if isinstance(x, dict) else tuple(x)
        if site not in self.tree.sites or reach.holds_language(items):
            self.sites[id(x)] = site
            return self.fresh(x)
        if self.wants(items):
            raise TraceEscape(f"puts a container into a {type(x).__name__} that host code will be handed")
        operation = self.operation(f"py.{type(x).__name__}")
        return self.host(operation, [*map(self.operand, items)], Known(fresh=True), "ordered", key=(self.tick, 0, 0))

    def build_set(self, items: list[Any]) -> Any:
        if not reach.holds_value(items):
            return self.contained(native(set, items))
        return self.simple("py.set", *items)

    def build_dict(self, items: list[Any]) -> Any:
        if any(isinstance(i, Value) or (isinstance(i, tuple) and reach.holds_value(i[0])) for i in items):
            if any(not isinstance(i, tuple) for i in items):
                raise TraceEscape("merges a traced mapping into a dict")
            return self.simple("py.dict", *itertools.chain.from_iterable(items))
        built: dict[Any, Any] = {}
        for item in items:
            if isinstance(item, tuple):
                built[item[0]] = item[1]
            elif self.is_plain(item) or self.steady(item):
                built.update(item)
            else:
                raise TraceEscape("merges a mapping of the host into a dict")
        return self.contained(built)

    def iter(self, value: Any, shape: Shape | None = None) -> Iterable[Any]:
        items = self.items(value)
        if shape is None:
            return items
        tick = self.tick
        return (self.unpacked(item, shape, (tick, 1, -index)) for index, item in enumerate(items, 1))

    def items(self, value: Any, which: int = 0) -> Iterable[Any]:
        """Iterates anything, one decision per step or per length where the value is traced. `which` numbers the argument."""
        if isinstance(value, Value):
            return self._text_items(value) if value.type == "str" else self._host_items(value.ir, value.items, which)
        if self.is_own_instance(value) and not is_lazy(value):
            raise TraceEscape(f"iterates a {type(value).__name__}, which runs code of its class")
        if self.is_plain(value) or isinstance(value, type):
            return value
        if self.steady(value):
            return self.steady_items(value, which)
        return self._host_items(self.operand(value), None, which)

    def _text_items(self, value: Value) -> Iterator[Any]:
        length = self.decide(self.host(self.constant(len), [value.ir], Known("int", total=True), "pure"))
        for i in range(length):
            yield self.simple("py.getitem", value, i)

    def _host_items(self, operand: Operand, items: str | None, which: int) -> Iterator[Any]:
        tick = self.tick
        iterator = self.host(self.operation("py.iter"), [operand], Known(), "ordered", key=(tick, which + 1, 0))
        return self._host_steps(iterator, items, tick, which)

    def _host_steps(self, iterator: Value, items: str | None, tick: int, which: int) -> Iterator[Any]:
        kind: Type = "str" if items == "str" else "any"
        for index in itertools.count(1):
            step = self.host(self.operation("py.next"), [iterator.ir], Known(), "ordered", key=(tick, which + 1, index))
            more = self.host(self.operation("py.getitem"), [step.ir, 0], Known("bool", total=True), "pure")
            if not self.decide(more):
                return
            item = self.host(self.operation("py.getitem"), [step.ir, 1], Known(kind, total=True), "pure")
            item.immutable = kind == "str"
            yield item

    def unpack(self, value: Any, shape: Shape) -> Any:
        return self.unpacked(value, shape)

    def unpacked(self, value: Any, shape: Shape, key: Key | None = None) -> Any:
        if isinstance(value, Value):
            return self._taken_apart(self.simple("py.unpack", value, shape, key=key), value, shape)
        if self.steady(value):
            return tuple(value)
        if not self.is_plain(value) or (self.is_own_instance(value) and not is_lazy(value)):
            items = self.simple("py.unpack", value, shape, key=key)
            return self._taken_apart(items, items, shape)
        if not any(isinstance(s, tuple) for s in shape) or not (isinstance(value, tuple | list) and len(value) == len(shape)):
            return value
        with self.auxiliary():
            return tuple([self.unpacked(v, s) if isinstance(s, tuple) else v for v, s in zip(value, shape, strict=True)])

    def _taken_apart(self, items: Value, source: Value, shape: Shape) -> tuple[Any, ...]:
        found: list[Any] = []
        for i, target in enumerate(shape):
            kind: Type = "str" if source.items == "str" and target is None else "any"
            item = self.host(self.operation("py.getitem"), [items.ir, i], Known(kind, total=True), "pure")
            item.immutable = kind == "str" or source.immutable
            if isinstance(target, tuple):
                found.append(self._taken_apart(item, item, target))
            elif target == "*":
                found += self.spread(self.host(self.operation("py.as_tuple"), [item.ir], Known(), "ordered", key=NO_KEY), source)
            else:
                found.append(item)
        return tuple(found)

    def star(self, value: Any) -> Iterable[Any]:
        if isinstance(value, Value):
            return self.spread(self.simple("py.as_tuple", value), value)
        return self.items(value)

    def spread(self, items: Value, source: Value) -> list[Value]:
        """The items of a traced tuple, one arm of the trace tree per length; `source` is what they came from."""
        length = self.decide(self.host(self.constant(len), [items.ir], Known("int", total=True), "pure"))
        kind: Type = "str" if source.items == "str" or source.type == "str" else "any"
        found = [self.host(self.operation("py.getitem"), [items.ir, i], Known(kind, total=True), "pure") for i in range(length)]
        for item in found:
            item.immutable = kind == "str" or source.immutable
        return found

    def dstar(self, value: Any) -> Any:
        if isinstance(value, Value):
            raise TraceEscape("passes a traced mapping as keyword arguments")
        return value

    # -- statements

    def enter(self, manager: Any) -> Any:
        if reach.is_language(manager) or _is_own_manager(manager):
            return manager
        raise TraceEscape(f"enters a {type(manager).__name__} of the host")

    def raise_(self, error: Any) -> Any:
        if isinstance(error, Value):
            raise TraceEscape("raises an exception that holds traced values")
        return error

    def eval_(self, text: Any, inside: dict[str, Any], outside: dict[str, Any]) -> Any:
        raise TraceEscape("calls eval")

    # -- calls

    def has_method(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Value) and owner.type != "str":
            kind = "pure" if owner.immutable else "ordered"
            self.host(self.operation("py.getattr"), [owner.ir, name], Known(), kind, key=(self.tick, 1, 0))
        elif hostops.is_immutable(owner):
            native(getattr, owner, name)
        return owner

    def call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.calls(fn, args, kwargs)

    def calls(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of anything."""
        if isinstance(fn, Value):
            if any(map(reach.holds_language, args)) or any(map(reach.holds_language, kwargs.values())):
                return self.calls(self.decide(fn), args, kwargs)
            return self.effect(fn, args, kwargs)
        handler = handler_of(fn)
        if handler is not None:
            if fn in MAIN:
                return self.fresh(handler(self, args, kwargs))
            with self.auxiliary():
                result = handler(self, args, kwargs)
                return self.contained(result) if fn in (list, dict, set, sorted) else self.fresh(result)
        if fn is functools.partial:
            made = self.local[id(made)] = native(functools.partial, *args, **kwargs)
            return made
        if isinstance(fn, functools.partial) and id(fn) in self.local:
            return self.calls(fn.func, (*fn.args, *args), {**fn.keywords, **kwargs})
        if isinstance(fn, Function):
            if fn.split(kwargs)[1]:
                raise TraceEscape(f"calls the program {fn.name} with options of its own")
            return self.sub_program(fn, args, kwargs)
        if reach.is_own(fn) or reach.is_language(fn) or reach.is_language(getattr(fn, "__self__", None)):
            return self.language_call(fn, args, kwargs)
        if isinstance(fn, types.BuiltinMethodType | types.MethodWrapperType) and getattr(fn, "__self__", None) is not None and not isinstance(
            fn.__self__, types.ModuleType | type
        ):
            return self.methods(fn.__self__, fn.__name__, args, kwargs)
        twin = reach.traced_twin(fn, args, kwargs, hooks)
        if twin is not None:
            result = native(twin, *args, **kwargs)
            if isinstance(fn, type):
                self.created(result)
            return result
        known = hostops.pure_function(fn)
        if known is not None:
            return self.known_call(fn, known, args, kwargs)
        if _is_python_error(fn) and not kwargs and self.is_constant(args) and not reach.holds_value(args):
            return native(fn, *args)
        return self.effect(fn, args, kwargs)

    def language_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(fn, "__name__", "")
        if name in _CONCRETE_FIRST and args:
            args = (self.concrete(args[0]), *args[1:])
        if isinstance(choices := kwargs.get("choices"), Value):
            items = self.simple("py.as_tuple", choices, key=(self.tick, CHOICES, 0))
            kwargs = {**kwargs, "choices": tuple(self.spread(items, choices))}
        for key in ("name", "size"):
            if key in kwargs:
                kwargs = {**kwargs, key: self.concrete(kwargs[key])}
        with self.auxiliary():
            made = self.fresh(native(fn, *args, **kwargs))
        return self.keep(made) if isinstance(made, StateGroup) else made

    def known_call(self, fn: Any, known: Known, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A library function that only reads its arguments."""
        args = self.listed(args)
        everything = (*args, *kwargs.values())
        if any(isinstance(a, types.FunctionType | types.MethodType | functools.partial) for a in everything):
            return self.effect(fn, args, kwargs)  # what it calls may do anything
        if fn is len and self.is_plain(args[0]) and not self.is_own_instance(args[0]):
            return native(len, *args)
        if not any(map(reach.holds_value, everything)) and all(self.is_constant(a) or self.steady(a) for a in everything):
            return self.fresh(native(fn, *args, **kwargs))
        types_ = [self.type_of(a) for a in everything]
        operands = [self.operand(a) for a in everything]
        pure = "any" not in types_
        if fn in (str, repr, format) or (fn is len and pure):
            known = Known(known.type, total=types_[0] in ("str", "float", "bool") and len(types_) == 1)
        return self.host(self.callee(fn), operands, known, "pure" if pure and not known.fresh else "ordered", kwargs=tuple(kwargs))

    def callm(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self.methods(owner, name, args, kwargs)

    def methods(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a method of anything."""
        if isinstance(owner, Value):
            return self.value_method(owner, name, args, kwargs)
        if isinstance(owner, Function) and name == "run":
            return self.calls(owner, args, kwargs)
        if reach.is_language(owner):
            return self.language_call(getattr(owner, name), args, kwargs)
        if isinstance(owner, types.ModuleType | type):
            return self.calls(self.getattr(owner, name), args, kwargs)
        if type(owner) in (list, dict, set) and id(owner) in self.local:
            return self.container_method(owner, name, args, kwargs)
        if hostops.is_immutable(owner) or type(owner) is tuple:
            return self.constant_method(owner, name, args, kwargs)
        if isinstance(owner, BaseException) or (is_lazy(owner) and id(owner) in self.local):
            return native(getattr(owner, name), *args, **kwargs)
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
        self.no_containers(f".{name}", args, kwargs)
        return self.host(
            self.operation("py.call_method"), [owner.ir, name, *map(self.operand, everything)], Known(), "ordered" if owner.items else "effect",
            kwargs=tuple(kwargs), inline=bool(owner.items))  # fmt: skip

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
        everything = (*args, *kwargs.values())
        if any(map(reach.holds_language, everything)) and type(owner) is not tuple:
            raise TraceEscape(f"hands a state to {type(owner).__name__}.{name}")
        args = tuple(tuple(a) if name == "join" and isinstance(a, list) and id(a) in self.local else a for a in args)
        everything = (*args, *kwargs.values())
        if any(map(_may_call, everything)):  # what it calls may do anything
            return self.host(
                self.operation("py.call_method"), [self.operand(owner), name, *map(self.operand, everything)], Known(), "effect",
                kwargs=tuple(kwargs), inline=False)  # fmt: skip
        if not reach.holds_value((owner, everything)) and self.is_constant(owner) and all(self.is_constant(a) or self.steady(a) for a in everything):
            return self.fresh(native(getattr(owner, name), *args, **kwargs))
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
                    return owner.extend(list(self.items(items)))
                case "sort", ():
                    sort_in_place(self, owner, kwargs)
                    return None
                case ("append" | "insert" | "clear" | "copy" | "reverse" | "pop", _):
                    if name in ("insert", "pop"):
                        args = (*map(self.concrete, args[:1]), *args[1:])
                    return self.fresh(native(getattr(owner, name), *args))
        elif isinstance(owner, dict) and name in ("keys", "values", "items", "copy", "clear", "get", "pop", "setdefault", "update", "popitem"):
            if name == "update" and args and not (self.is_plain(args[0]) and isinstance(args[0], dict)):
                self.wants(owner)
                raise TraceEscape("updates a dict it made from host data")
            if name in ("get", "pop", "setdefault") and args:
                args = (self.concrete(args[0]), *args[1:])
            return self.fresh(native(getattr(owner, name), *args, **kwargs))
        if not reach.holds_value((owner, args)):
            args = self.listed(args)
            if not all(map(self.is_constant, args)) or not (isinstance(owner, dict) or self.is_constant(owner)):
                self.wants(owner)
                raise TraceEscape(f"{type(owner).__name__}.{name} with objects of the host")
            return self.fresh(native(getattr(owner, name), *args, **kwargs))
        if name in ("count", "index") and isinstance(owner, list) and not reach.holds_language(owner):
            return self.simple_method(tuple(owner), name, args)
        self.wants(owner)
        raise TraceEscape(f"{type(owner).__name__}.{name} with traced values")

    def simple_method(self, owner: tuple[Any, ...], name: str, args: tuple[Any, ...]) -> Value:
        types_ = [self.type_of(a) for a in (owner, *args)]
        return self.host(
            self.operation("py.call_method"), [self.operand(owner), name, *map(self.operand, args)], Known("int"),
            "pure" if "any" not in types_ else "ordered")  # fmt: skip

    def object_method(self, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of an instance: the program's own, traced through if it reaches the language, or the host's."""
        if id(owner) in self.local:
            return self.calls(self.getattr(owner, name), args, kwargs)
        method = getattr(type(owner), name, None)
        if isinstance(method, types.FunctionType) and name not in getattr(owner, "__dict__", {}):
            bound = getattr(owner, name)
            if isinstance(bound, types.MethodType) and reach.traced_twin(bound, args, kwargs, hooks) is not None:
                return self.calls(bound, args, kwargs)
        if any(map(reach.holds_language, (*args, *kwargs.values()))):
            return self.calls(getattr(owner, name), args, kwargs)
        self.no_containers(f".{name}", args, kwargs)
        operands = [self.operand(owner), name, *map(self.operand, (*args, *kwargs.values()))]
        return self.host(self.operation("py.call_method"), operands, Known(), "effect", kwargs=tuple(kwargs), inline=False)


_BUILT_IN = frozenset({list, dict, set, tuple, functools.partial})


def _is_python_error(fn: Any) -> bool:
    return isinstance(fn, type) and issubclass(fn, BaseException) and fn.__module__ == "builtins"


def _may_call(x: Any) -> bool:
    """Whether a function that is handed an object may call it."""
    return isinstance(x, types.FunctionType | types.MethodType | functools.partial)


def _is_method(cls: Any, name: str) -> bool:
    """Whether an attribute of a class is a function of it: a definition, not data."""
    if not isinstance(cls, type):
        return False
    member = next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), None)
    return isinstance(member, types.FunctionType | staticmethod | classmethod | property | types.MethodDescriptorType | types.WrapperDescriptorType)


_CONCRETE_FIRST = frozenset({"fork", "get_var", "set_var", "get_meta_info", "var_scope", "gen", "select", "gen_int", "gen_string", "copy"})


def _is_own_manager(x: Any) -> bool:
    """Whether a context manager is one of a state: `s.user()`, `s.copy()`, `s.var_scope(name)`."""
    generator = getattr(x, "gen", None)
    return isinstance(generator, types.GeneratorType) and reach.is_own(sys.modules.get(generator.gi_frame.f_globals["__name__"]))


# -- one trace -------------------------------------------------------------------------------------------------------------


def trace(tree: Tree, program: Function, arguments: inspect.BoundArguments, path: Sequence[Decision]) -> bool:
    """Runs the program on symbolic values along a path of decisions and records what is new into the tree.

    Arguments are the tree's parameters by name. False when the program did not do what it did in an earlier trace.
    Raises TraceEscape when nothing of the program can be captured.
    """
    twin = instrument(_plain_function(program), hooks)
    mode = TraceMode(tree, path)
    token = active.set(mode)
    state = State(TraceEmitter(mode), name=program.name)
    state_token = ACTIVE.set(state)
    try:
        values = {p.name: mode.value(p) for p in tree.params}
        args = [values.get(n, x) for n, x in zip(program.params, arguments.args[1:], strict=False)]
        kwargs = {n: values.get(n, x) for n, x in arguments.kwargs.items()}
        result = twin(state, *args, **kwargs)
        mode.finish(state, result)
    except StopTrace:
        return True
    except TraceEscape as escape:
        return mode.give_up(escape.reason)
    except Exception as error:  # the program raised: the interpreter raises it again, with its own traceback
        if isinstance(mode.dead, StopTrace):
            return True
        if isinstance(mode.dead, TraceEscape):
            return mode.give_up(mode.dead.reason)
        fault = fault_of(error)
        if fault is not None:
            log("exits", f"{tree.name}: {fault}")
        return mode.give_up(fault or f"raises {type(error).__name__}")
    finally:
        ACTIVE.reset(state_token)
        active.reset(token)
    return True


def _plain_function(program: Function) -> types.FunctionType:
    if not isinstance(program.func, types.FunctionType):
        raise TraceEscape(f"{program.name} is a {type(program.func).__name__}, not a Python function")
    return program.func
