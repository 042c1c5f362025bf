"""The tracer: runs a program on symbolic values and records what it does into a trace tree.

It never calls the model and never runs the program's host effects, so it can run as often as it likes. Where Python
needs a concrete answer, the decisions given for the path so far are used; at the first one missing the trace stops.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import asyncio
import collections.abc
import enum
import inspect
import itertools
import operator
import types
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from typing import Any, cast

from lmc.backend.base import TakeOver
from lmc.config import log
from lmc.frontend import hostops, reach
from lmc.frontend.aio import Gathering, Ready, gathering
from lmc.frontend.arguments import Parameters
from lmc.frontend.coroutines import waits_for_answers
from lmc.frontend.counting import member_of, program_frame
from lmc.frontend.hooks import hooks
from lmc.frontend.hostops import Known, Shape, native
from lmc.frontend.instrument import instrument
from lmc.frontend.instrumented import guarding
from lmc.frontend.interpreter import ACTIVE, Function
from lmc.frontend.keys import GATHERED, Key, inner_key
from lmc.frontend.managers import (
    AsyncGuarded,
    AsyncManaged,
    Guarded,
    async_generator_code,
    generator_code,
    is_own_async_manager,
    may_handle,
)
from lmc.frontend.own import NOT_OWN
from lmc.frontend.primitives import Expr, raised_at
from lmc.frontend.raising import caught_as, caused, class_of, content, is_constant, stand_in
from lmc.frontend.state import Emitter, State
from lmc.frontend.streaming import Progress
from lmc.frontend.trace_calls import CallMode, is_method
from lmc.frontend.trace_outside import DICT_VIEWS, is_enum_member, is_lazy
from lmc.frontend.trace_record import NO_KEY, SELF, UNKNOWN, Diverged, Returned, StopTrace, fault_of, held_of, itself
from lmc.frontend.trace_state import Shows, TraceEmitter
from lmc.frontend.tree import Decision, Tree, site_of
from lmc.frontend.values import TraceEscape, Value, active
from lmc.ir.core import Attr, Operand, Type

__all__ = ["SELF", "Diverged", "Returned", "held_of", "trace"]


class TraceMode(CallMode):
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
        if (error := content(owner)) is not None:
            if name == "__traceback__":
                self.located(owner)
            return owner.__class__ if name == "__class__" else self.getattr(error, name)
        value = self.own_attribute(owner, name)
        if value is not NOT_OWN:
            return value
        cls = self.class_with_data(owner, name)
        if cls is not None:
            return self.getattr(cls, name) if self.is_own_definition(cls) else self.attribute_of(cls, name)
        if self.is_own_definition(owner):
            return self.attribute_of_own(owner, name)
        if self.is_plain(owner) or isinstance(owner, types.MethodType | types.BuiltinFunctionType) or is_enum_member(owner):
            found = native(getattr, owner, name)
            return self.fresh(found) if reach.is_language(owner) and name != "ret_value" else found
        if isinstance(owner, types.ModuleType | type | types.FunctionType):
            if name.startswith("__") or is_method(owner, name):
                return native(getattr, owner, name)
            native(getattr, owner, name)
            return self.attribute_of(owner, name)
        computed = self.computed(owner, name)
        if computed is not NOT_OWN:
            return computed
        if is_method(type(owner), name) and not isinstance(member_of(owner, name), property) and name not in getattr(owner, "__dict__", {}):
            return getattr(owner, name)
        return self.host(self.operation("py.getattr"), [self.operand(owner), name], Known(), "ordered", hint=name)

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        if self.own_store(owner, name, value):
            return
        if (handed := self.handed_away(owner)) is not None:
            self.mutate("py.setattr", handed, name, value)
        elif self.is_own_definition(owner):
            self.changes_own(owner)
            if isinstance(owner, type):
                self.is_data(value)
            native(setattr, owner, name, value)
        elif self.is_plain(owner):
            native(setattr, owner, name, value)
        else:
            self.mutate("py.setattr", owner, name, value)

    def delattr(self, owner: Any, name: str) -> None:
        self.own_delete(owner, name)
        if (handed := self.handed_away(owner)) is not None:
            self.mutate("py.delattr", handed, name)
        elif self.is_own_definition(owner):
            self.changes_own(owner)
            native(delattr, owner, name)
        elif self.is_plain(owner):
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
        if isinstance(owner, enum.EnumType) and reach.holds_value(key):
            return self.host(self.operation("py.getitem"), [self.operand(owner), self.operand(key)], Known(), "ordered")
        if isinstance(owner, type) or (hostops.is_type_form(owner) and not reach.holds_value(key)):
            return native(operator.getitem, owner, key)
        owner = self.as_plain(owner)
        item = self.own_method(owner, "__getitem__", key)
        if item is not NOT_OWN:
            return item
        if self.is_plain(owner) and not self.is_own_instance(owner):
            if self.is_key(key):
                found = native(operator.getitem, owner, key)
                return self.fresh(found) if type(key) is slice else found
            if reach.holds_language(owner) or any(callable(x) and type(x) is not Value for x in (owner.values() if isinstance(owner, dict) else owner)):
                found = native(operator.getitem, owner, self.concrete(key))
                return self.fresh(found) if type(key) is slice else found
        if self.steady(owner) and not reach.holds_value(key):
            return self.fresh(native(operator.getitem, owner, key))
        return self.simple("py.getitem", owner, key)

    def setitem(self, owner: Any, key: Any, value: Any) -> None:
        if reach.is_language(owner):
            self.lends((value,))
            owner[self.concrete(key)] = value
        elif self.own_method(owner, "__setitem__", key, value) is not NOT_OWN:
            return
        elif self.is_plain(owner) and not self.is_own_instance(owner):
            if not self.is_key(key):
                self.wants(owner)
                raise TraceEscape("stores under a traced key in a container that it made")
            native(operator.setitem, owner, key, value)
        else:
            self.mutate("py.setitem", owner, key, value)

    def delitem(self, owner: Any, key: Any) -> None:
        if self.own_method(owner, "__delitem__", key) is not NOT_OWN:
            return
        if self.is_plain(owner) and not self.is_own_instance(owner):
            native(operator.delitem, owner, self.key(owner, key))
        else:
            self.mutate("py.delitem", owner, key)

    def slice_(self, start: Any, stop: Any, step: Any) -> Any:
        return slice(start, stop, step)

    # -- operators

    def binop(self, op: str, a: Any, b: Any) -> Any:
        if isinstance(a, Expr | State) or isinstance(b, Expr):
            if op == "+":
                a, b = self.as_text(a), self.as_text(b)
            return b.__radd__(a) if op == "+" and isinstance(a, Value) else native(hostops.OPERATIONS[hostops.BINARY[op]], a, b)
        result = self.own_binary(op, a, b)
        if result is not NOT_OWN:
            return result
        joins = type(a) in (list, tuple) and ((type(a) is type(b) and op == "+") or (type(b) is int and op == "*"))
        if (joins and self.is_plain(a) and self.is_plain(b)) or (not reach.holds_value((a, b)) and self.is_constant(a) and self.is_constant(b)):
            made = native(hostops.OPERATIONS[hostops.BINARY[op]], a, b)
            return self.contained(made) if self.main else self.fresh(made)
        return self.simple(hostops.BINARY[op], a, b)

    def iop(self, op: str, a: Any, b: Any) -> Any:
        if reach.is_language(a):
            with self.auxiliary():
                return native(hostops.OPERATIONS[hostops.INPLACE[op]], a, self.items_of_group(a, b))
        result = self.own_inplace(op, a, b)
        if result is not NOT_OWN:
            return result
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
        if isinstance(a, Value) and a.kind is list and op == "+":
            (b,) = self.listed((b,))
        self.no_containers(f"{op}=", tuple(b) if type(b) is list else (b,), {})
        made = self.simple(hostops.INPLACE[op], a, b)
        if isinstance(a, Value) and a.kind in (list, set, dict):
            made.kind = a.kind  # it is the same object
        return made

    def unary(self, op: str, a: Any) -> Any:
        result = self.own_unary(op, a)
        if result is not NOT_OWN:
            return result
        return native(hostops.OPERATIONS[hostops.UNARY[op]], a) if hostops.is_immutable(a) else self.simple(hostops.UNARY[op], a)

    def compare(self, op: str, a: Any, b: Any) -> Any:
        result = self.own_compare(op, a, b)
        if result is not NOT_OWN:
            return result
        name = hostops.COMPARE[op]
        symbolic = reach.holds_value(a) or reach.holds_value(b)
        if op in ("is", "is not"):
            direct = any(isinstance(x, Value) or content(x) is not None for x in (a, b))
            return self.simple(name, a, b) if direct else hostops.OPERATIONS[name](a, b)
        if op in ("in", "not in"):
            if reach.is_language(b):
                return native(hostops.OPERATIONS[name], self.concrete(a), b)
            if is_lazy(b) and id(b) in self.local:
                if not isinstance(b, DICT_VIEWS):
                    raise TraceEscape("looks for something in an iterator")
                b = self.fresh(dict.fromkeys(b)) if isinstance(b, collections.abc.KeysView) else tuple(b)
            elif self.steady(b) and not reach.holds_value(a) and self.is_constant(a):
                return native(hostops.OPERATIONS[name], a, b)
        if not symbolic and self.is_constant(a) and self.is_constant(b):
            return native(hostops.OPERATIONS[name], a, b)
        if not symbolic and self._told_by_identity(op, a, b):
            return native(hostops.OPERATIONS[name], a, b)
        if reach.is_language(a) or reach.is_language(b):
            raise TraceEscape("compares a state with a traced value")
        if id(b) in self.local and isinstance(b, set | dict) and op in ("in", "not in"):
            found = self.simple("py.in_set" if isinstance(b, set) else "py.in_keys", a, tuple(b))
            return found if op == "in" else self.simple("py.not", found)
        if id(b) in self.local and isinstance(b, list) and op in ("in", "not in"):
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
            value = self.own_truth(a)
            if value is NOT_OWN and (hasattr(type(a), "__bool__") or hasattr(type(a), "__len__")):
                raise TraceEscape(f"tests a {type(a).__name__}, which runs code of its class")
            return value is NOT_OWN or self._holds(value)
        if self.is_plain(a) or isinstance(a, type | types.FunctionType | types.ModuleType | types.BuiltinFunctionType | types.MethodType):
            return bool(a)
        if self.steady(a):
            return bool(a)
        return self.decide(self.host(self.operation("py.bool"), [self.operand(a)], Known("bool"), "ordered"))

    def concrete(self, a: Any) -> Any:
        """A value made concrete: one arm of the trace tree per answer seen."""
        if isinstance(a, Value):
            answer = self.decide(a)
            if not isinstance(answer, int) and hasattr(type(answer), "__index__"):
                raise TraceEscape(f"counts by a {type(answer).__name__}, which runs code of its class")
            return answer
        if content(a) is not None:
            raise TraceEscape("matches an exception")
        if type(a) is tuple and reach.holds_value(a):
            return tuple(self.concrete(x) for x in a)
        if type(a) is slice and reach.holds_value(a):
            return slice(self.concrete(a.start), self.concrete(a.stop), self.concrete(a.step))
        return a

    def fstring(self, *parts: Any) -> Any:
        pieces: list[Operand] = []
        for i, given in enumerate(parts):
            part = self.own_format(given)
            if isinstance(part, str | Value):
                pieces.append(part if isinstance(part, str) else part.ir)
                continue
            value, conversion, spec = part
            if isinstance(value, Value) and value.type == "str" and isinstance(spec, str) and not spec and conversion in ("", "s"):
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

    def contained(self, x: Any, which: int = 0) -> Any:
        """A container that the program just made: trace-local, or an object of the run if host code will be handed it.

        `which` tells the containers apart that one hook call makes.
        """
        if type(x) not in (list, dict, set):
            return self.fresh(x)
        site = site_of(program_frame())
        items = tuple(itertools.chain.from_iterable(x.items())) if isinstance(x, dict) else tuple(x)
        if site not in self.tree.sites or reach.holds_language(items):
            self.sites[id(x)] = site
            return self.fresh(x)
        if self.wants(items):
            raise TraceEscape(f"puts a container into a {type(x).__name__} that host code will be handed")
        operation = self.operation(f"py.{type(x).__name__}")
        made = self.host(operation, [*map(self.operand, items)], Known(fresh=True), "ordered", key=(self.tick, which, 0))
        made.kind = type(x)
        return made

    def build_set(self, items: list[Any]) -> Any:
        if all(map(self.is_key, items)):
            return self.contained(native(set, items))
        return self.simple("py.set", *items)

    def build_dict(self, items: list[Any]) -> Any:
        pairs = [pair for item in items for pair in self._pairs(item)]
        if not all(self.is_key(key) for key, _ in pairs):
            if self.wants(pairs):
                raise TraceEscape("puts a container that it made under a traced key")
            return self.simple("py.dict", *itertools.chain.from_iterable(pairs))
        return self.contained(native(dict, pairs))

    def _pairs(self, item: Any) -> Iterable[tuple[Any, Any]]:
        """A part of a dict display: a pair, or the pairs of a mapping (`dstar` has made a dict of a traced one)."""
        if isinstance(item, tuple):
            return [item]
        if self.is_plain(item) or self.steady(item):
            return {**item}.items()  # raises for what is no mapping
        raise TraceEscape("merges a mapping of the host into a dict")

    def iter(self, value: Any, shape: Shape | None = None) -> Iterable[Any]:
        items = self.items(value)
        if shape is None:
            return items
        tick = self.tick
        return (self.unpacked(item, shape, (tick, 1, -index)) for index, item in enumerate(items, 1))

    def iter_starred(self, value: Any, shape: Shape) -> Iterable[Any]:
        return (self._own_stars(item, shape) for item in super().iter_starred(value, shape))

    def _own_stars(self, item: tuple[Any, ...], shape: Shape) -> tuple[Any, ...]:
        return tuple([self._own_stars(x, s) if isinstance(s, tuple) else self.fresh(x) if s == "*" else x for x, s in zip(item, shape, strict=True)])

    def items(self, value: Any, which: int = 0) -> Iterable[Any]:
        """Iterates anything, one decision per step or per length where the value is traced. `which` numbers the argument."""
        value = self.as_plain(value)
        if isinstance(value, Value):
            return self._text_items(value) if value.type == "str" else self._host_items(value.ir, value, which)
        if self.is_own_instance(value) and not is_lazy(value):
            items = self.own_iter(value)
            if items is not NOT_OWN:
                return self.items(self.fresh(items), which)
            raise TraceEscape(f"iterates a {type(value).__name__}, which runs code of its class")
        if self.is_plain(value) or isinstance(value, type):
            return cast(Iterable[Any], value if hostops.is_iterable(value) else native(iter, value))  # Python says that it is not
        if self.steady(value):
            return self.steady_items(value, which)
        return self._host_items(self.operand(value), None, which)

    def all_items(self, value: Any, which: int = 0) -> Iterable[Any]:
        """As `items`, for what puts all of them into a list or tuple."""
        if self.is_own_instance(value) and self.tells_of_length(value):
            raise TraceEscape(f"lists a {type(value).__name__}, whose __len__ Python calls then")
        return self.items(value, which)

    def _text_items(self, value: Value) -> Iterator[Any]:
        length = self.decide(self.host(self.constant(len), [value.ir], Known("int", total=True), "pure"))
        for i in range(length):
            yield self.simple("py.getitem", value, i)

    def _host_items(self, operand: Operand, source: Value | None, which: int) -> Iterator[Any]:
        tick = self.tick
        iterator = self.host(self.operation("py.iter"), [operand], Known(), "ordered", key=(tick, which + 1, 0))
        return self._host_steps(iterator, source, tick, which)

    def _host_steps(self, iterator: Value, source: Value | None, tick: int, which: int) -> Iterator[Any]:
        for index in itertools.count(1):
            step = self.host(self.operation("py.next"), [iterator.ir], Known(), "ordered", key=(tick, which + 1, index))
            more = self.host(self.operation("py.getitem"), [step.ir, 0], Known("bool", total=True), "pure")
            if not self.decide(more):
                return
            kind: Type = "str" if source is not None and source.items == "str" else "any"  # the body may put something else into it
            item = self.host(self.operation("py.getitem"), [step.ir, 1], Known(kind, total=True), "pure")
            item.immutable = kind == "str"
            yield item

    def unpack(self, value: Any, shape: Shape) -> Any:
        items = self.own_iter(value)
        if items is NOT_OWN:
            return self.unpacked(value, shape)
        with self.auxiliary():  # a replay calls the method again
            return self.unpacked(self.fresh(items), shape)

    def unpacked(self, value: Any, shape: Shape, key: Key | None = None) -> Any:
        if isinstance(value, Value):
            return self._taken_apart(self.simple("py.unpack", value, shape, key=key), value, shape)
        if self.steady(value):
            return tuple(value)
        value = self.as_plain(value)
        if not self.is_plain(value) or (self.is_own_instance(value) and not is_lazy(value)):
            items = self.simple("py.unpack", value, shape, key=key)
            return self._taken_apart(items, items, shape)
        if not any(isinstance(s, tuple) for s in shape) or not (isinstance(value, tuple | list) and len(value) == len(shape)):
            return value
        key = key or (self.tick, 1, 0)
        pairs = enumerate(zip(value, shape, strict=True))
        with self.auxiliary():
            return tuple([self.unpacked(v, s, inner_key(key, i)) if isinstance(s, tuple) else v for i, (v, s) in pairs])

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

    def star(self, value: Any, *callee: Any) -> Iterable[Any]:
        if isinstance(value, Value):
            return self.spread(self.simple("py.as_tuple", value), value)
        value = hostops.starred(value, callee)
        return self.all_items(value) if hostops.is_iterable(value) else value  # Python says where it stands

    def spread(self, items: Value, source: Value) -> list[Value]:
        """The items of a traced tuple, one arm of the trace tree per length; `source` is what they came from."""
        length = self.decide(self.host(self.constant(len), [items.ir], Known("int", total=True), "pure"))
        kind: Type = "str" if source.items == "str" or source.type == "str" else "any"
        found = [self.host(self.operation("py.getitem"), [items.ir, i], Known(kind, total=True), "pure") for i in range(length)]
        for item in found:
            item.immutable = kind == "str" or source.immutable
        return found

    def dstar(self, value: Any) -> Any:
        """What `**value` gives: one arm of the trace tree for each list of names."""
        if not isinstance(value, Value) and (self.is_plain(value) or self.steady(value) or not hasattr(value, "keys")):
            return value
        mapping = self.simple("py.named", value)
        names = self.decide(self.host(self.operation("py.getitem"), [mapping.ir, 0], Known(total=True), "pure"))
        items = self.host(self.operation("py.getitem"), [mapping.ir, 1], Known(total=True), "pure")
        found = {name: self.host(self.operation("py.getitem"), [items.ir, i], Known(total=True), "pure") for i, name in enumerate(names)}
        for item in found.values():
            item.immutable = False
        return self.fresh(found)

    # -- async code

    def callm_awaited(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(owner, types.ModuleType):
            return self.call_awaited(self.getattr(owner, name), *args, **kwargs)
        return self.callm(owner, name, *args, **kwargs)

    def call_awaited(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        # where the program may handle what it raises, each answer is a decision: nothing would be asked before the one before it is there
        if fn is not asyncio.gather or self.is_tried() or (site := site_of(program_frame())) in self.tree.sites:
            return self.call(fn, *args, **kwargs)
        found = gathering(fn, args, kwargs, waits_for_answers)
        if found is None:
            return self.call(fn, *args, **kwargs)
        self.tasks[id(found)] = site
        return found

    def _gathered(self, gathering: Gathering) -> Any:
        """What the program's own tasks give, each traced in its turn; then what runs beside the program has the turns it has.

        If one does what a task cannot do here, the next trace leaves before it, so that they run beside each other.
        """
        outer, self.in_task = self.in_task, True
        try:
            results = [_driven(coroutine) for coroutine in gathering.coroutines]
        except TraceEscape:
            self.tree.wanted |= {self.tasks[id(gathering)]}
            raise
        except Diverged:
            raise
        except Exception as error:
            self.tree.wanted |= {self.tasks[id(gathering)]}
            raise TraceEscape("raises in a task") from error
        finally:
            self.in_task = outer
        if self.foreign:
            self.host(self.operation("py.turns"), [len(results)], Known(total=True), "effect", key=(self.tick, 1, 0), inline=False, awaits=True)
        return self.contained(results, GATHERED)

    def awaited(self, value: Any) -> Any:
        if isinstance(value, Gathering):
            return Ready(self._gathered(value))
        if isinstance(value, types.CoroutineType | Ready):  # of the program's own async functions
            return value
        return Ready(self.host(self.operation("py.await"), [self.operand(value)], Known(), "effect", inline=False, awaits=True))

    def getitem_ready(self, owner: Any, key: Any) -> Any:
        return Ready(self.getitem(owner, key))

    def callm_ready(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return Ready(self.callm(owner, name, *args, **kwargs))

    def aiter(self, value: Any, shape: Shape | None = None) -> Any:
        tick = self.tick
        if isinstance(value, types.AsyncGeneratorType):
            if shape is None:
                return value
            self.coroutines.append(steps := self._own_asteps(value, tick, shape))
            return steps
        iterator = self.host(self.operation("py.aiter"), [self.operand(value)], Known(), "effect", key=(tick, 1, 0), inline=False)
        self.coroutines.append(steps := self._host_asteps(iterator, tick, shape))
        return steps

    async def _own_asteps(self, items: AsyncIterator[Any], tick: int, shape: Shape) -> AsyncIterator[Any]:
        index = 0
        async for item in items:
            index += 1
            yield self.unpacked(item, shape, (tick, 1, -index))

    async def _host_asteps(self, iterator: Value, tick: int, shape: Shape | None) -> AsyncIterator[Any]:
        for index in itertools.count(1):
            key = (tick, 1, index)
            step = self.host(self.operation("py.anext"), [iterator.ir], Known(), "effect", key=key, inline=False, awaits=True)
            if not self.decide(self.host(self.operation("py.getitem"), [step.ir, 0], Known("bool", total=True), "pure")):
                return
            item = self.host(self.operation("py.getitem"), [step.ir, 1], Known("any", total=True), "pure")
            item.immutable = False
            yield item if shape is None else self.unpacked(item, shape, (tick, 1, -index))

    def aenter(self, manager: Any) -> Any:
        if isinstance(manager, Value):
            return AsyncManaged(manager, self.dispatch, self.is_dead)
        if not hasattr(type(manager), "__aenter__"):
            return manager  # Python says what is missing
        if is_own_async_manager(manager):
            return AsyncGuarded(manager, self.guarded) if async_generator_code(manager) in guarding else manager
        return AsyncManaged(manager, self.dispatch, self.is_dead)

    def aentered(self, manager: Any) -> Any:
        if self.own_async(manager, "__aenter__"):
            return self._entering(manager, self.methods(manager, "__aenter__", (), {}))
        result = self.host(self.operation("py.aenter"), [self.operand(manager)], Known(), "effect", inline=False, within=True, awaits=True)
        self.managers += 1
        self.entered_hosts.add(id(manager))
        return Ready(result)

    async def _entering(self, manager: Any, coroutine: Any) -> Any:
        result = await coroutine
        self.guarded(int(may_handle(manager)))
        return result

    def aleft(self, manager: Any, error: BaseException | None) -> Any:
        if id(manager) not in self.entered_hosts:
            self.guarded(-int(may_handle(manager)))
            return self.methods(manager, "__aexit__", (None if error is None else class_of(error), error, error and error.__traceback__), {})
        self.managers -= 1
        raised = None if error is None else self.located(error)
        result = self.host(self.operation("py.aexit"), [self.operand(manager), raised], Known(), "effect", inline=False, within=True, awaits=True)
        return Ready(error is not None and self.truth(result))

    # -- patterns

    def match_sequence(self, subject: Any, length: int, star: int) -> Any:
        if isinstance(subject, Value) and subject.type != "any":
            return None
        if self._seen_through(subject):
            parts = hostops.match_sequence(subject, length, star)
            return None if parts is None else tuple(self.fresh(p) if i == star else p for i, p in enumerate(parts))
        return self._matched(self.simple("py.match_sequence", subject, length, star), length)

    def match_mapping(self, subject: Any, keys: tuple[Any, ...], rest: bool) -> Any:
        if isinstance(subject, Value) and subject.type != "any":
            return None
        if self._seen_through(subject) and not reach.holds_value(keys):
            parts = hostops.match_mapping(subject, keys, rest)
            if parts is not None and rest:
                self.fresh(parts[-1])
            return parts
        return self._matched(self.simple("py.match_mapping", subject, keys, rest), len(keys) + rest)

    def match_class(self, subject: Any, cls: Any, count: int, names: tuple[str, ...]) -> Any:
        if isinstance(subject, Value) and subject.type != "any" and isinstance(cls, type):
            if not issubclass({"str": str, "int": int, "float": float, "bool": bool}[subject.type], cls):
                return None
            if count <= 1 and not names:
                return (subject,) * count
        if self._seen_through(subject):
            return hostops.match_class(subject, cls, count, names, self.getattr)
        return self._matched(self.simple("py.match_class", subject, self.concrete(cls), count, names), count + len(names))

    def _seen_through(self, subject: Any) -> bool:
        """Whether a pattern may look into an object while tracing: the program's own, though items and fields may be traced."""
        if self.is_own_instance(subject) and isinstance(subject, collections.abc.Sequence | collections.abc.Mapping):
            raise TraceEscape(f"matches a {type(subject).__name__}, which runs code of its class")
        return not isinstance(subject, Value) and not is_lazy(subject) and (self.is_plain(subject) or is_enum_member(subject))

    def _matched(self, parts: Value, count: int) -> tuple[Value, ...] | None:
        """The parts of a match that the host made, one arm of the trace tree for each of its outcomes."""
        if not self.decide(self.host(self.operation("py.is_not"), [parts.ir, None], Known("bool", total=True), "pure")):
            return None
        found = [self.host(self.operation("py.getitem"), [parts.ir, i], Known(total=True), "pure") for i in range(count)]
        for part in found:
            part.immutable = False
        return tuple(found)

    # -- statements

    def enter(self, manager: Any) -> Any:
        if generator_code(manager) in guarding:
            return Guarded(manager, self.guarded)
        return self.managed(manager, isinstance(manager, Value) or hasattr(type(manager), "__enter__"))

    def guarded(self, step: int) -> None:
        """A `with` of the program's own begins or ends, whose manager may handle what is raised in it."""
        self.guards_open += step

    def entered(self, manager: Any) -> Any:
        method = type(manager).__dict__.get("__enter__")
        own = id(manager) in self.local or (isinstance(method, types.FunctionType) and reach.traced_twin(method, (manager,), {}, hooks))
        if own:
            result = self.methods(manager, "__enter__", (), {})
            self.guarded(int(may_handle(manager)))
            return result
        result = self.host(self.operation("py.enter"), [self.operand(manager)], Known(), "effect", inline=False, within=True)
        self.managers += 1
        self.entered_hosts.add(id(manager))
        return result

    def left(self, manager: Any, error: BaseException | None) -> Any:
        if id(manager) not in self.entered_hosts:
            self.guarded(-int(may_handle(manager)))
            result = self.methods(manager, "__exit__", (None if error is None else class_of(error), error, error and error.__traceback__), {})
            return error is not None and self._holds(result)  # a replay runs the method again
        else:
            self.managers -= 1
            raised = None if error is None else self.located(error)
            result = self.host(self.operation("py.exit"), [self.operand(manager), raised], Known(), "effect", inline=False, within=True)
        return error is not None and self.truth(result)

    def raise_(self, error: Any, *cause: Any) -> Any:
        if isinstance(error, type) and issubclass(error, BaseException):
            error = self.make_error(error, (), {}, key=(self.tick, 1, 0))
        if is_constant(error):
            if cause:
                raise TraceEscape(f"raises a {type(error).__name__} that it caught from another exception")
            return error
        if not isinstance(error, Value | BaseException):
            return native(caused, error, *cause) if cause else error  # Python says what it has to be
        value = content(error)
        if value is None:
            ir = error.ir if isinstance(error, Value) else self.emit("host.call", (self.own(itself), self.constant(error)), _PURE, ("any",))[0]
            value = self.value(ir)
            expected = error.made if isinstance(error, Value) and error.made else UNKNOWN
            cls = self.decide(self.host(self.constant(type), [ir], Known(total=True), "pure"), expected)
            if not issubclass(cls, BaseException):
                raise TraceEscape(f"raises a {cls.__name__}")
            error = stand_in(cls, value)
        if cause:
            of = self.make_error(cause[0], (), {}, key=NO_KEY) if isinstance(cause[0], type) else cause[0]
            self.note("caused", value, of)
        self.note("chained", value, self.handled())
        return error

    def failed(self, *message: Any) -> Any:
        return self.raise_(self.make_error(AssertionError, message, {}))

    def handles(self, classes: Any) -> Any:
        if reach.holds_value(classes):
            raise TraceEscape("handles an exception class that the run decides")
        return caught_as(classes)

    def eval_(self, text: Any, inside: dict[str, Any], outside: dict[str, Any]) -> Any:
        known = {n: x for n, x in self.names(outside).items() if isinstance(x, Value) or hostops.is_immutable(x)}
        others = tuple(n for n in outside if n not in known)  # states, containers: a text that names one is for the interpreter
        owner = self.tree.symbol(("globals", id(inside)), "globals", inside)
        about = [self.constant(others), self.constant(tuple(known))]
        return self.host(self.own(_eval), [self.operand(text), owner, *about, *map(self.operand, known.values())], Known(), "effect", inline=False)

    def names(self, variables: dict[str, Any]) -> dict[str, Any]:
        return self.fresh(super().names(variables))


def _eval(text: Any, inside: dict[str, Any], others: tuple[str, ...], names: tuple[str, ...], *values: Any) -> Any:
    """Run time: `eval(text)` in a frame of the program, as far as the names in it are known here."""
    used = set(_names_in(compile(text.strip(), "<string>", "eval"))) if isinstance(text, str) else set(others)
    if used & {*others, "locals", "vars", "dir", "globals"}:
        raise TakeOver("eval of a text that names a state or a container of the program")
    return eval(text, inside, dict(zip(names, values, strict=True)))  # the program's own call of eval


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in(inner)


_PURE: dict[str, Attr] = {"pure": True, "total": True}


# -- one trace -------------------------------------------------------------------------------------------------------------


def trace(tree: Tree, program: Function, arguments: inspect.BoundArguments, path: Sequence[Decision]) -> None:
    """Runs the program on symbolic values along a path of decisions and records what is new into the tree.

    Arguments are the tree's parameters, in the shape of `arguments`. Raises Diverged when the program did not do what it did in an
    earlier trace, TraceEscape when nothing of the program can be captured.
    """
    twin = instrument(_plain_function(program), hooks)
    mode = TraceMode(tree, path)
    mode.start = program.loc
    token = active.set(mode)
    state = State(cast(Emitter, TraceEmitter(mode)), name=program.name)  # what it lacks cannot be captured
    if tree.watched:
        state.progress = cast(Progress, Shows(mode, state))
    state_token = ACTIVE.set(state)
    try:
        given = Parameters(program.signature).filled(arguments, map(mode.value, tree.params))
        result = twin(state, *given.args[1:], **given.kwargs)
        mode.finish(state, _driven(result) if program.is_async else result)
    except StopTrace:
        pass
    except TraceEscape as escape:
        mode.give_up(escape.reason, raised_at(escape))
    except Diverged:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and content(error) is None:
            raise  # Ctrl-C
        if isinstance(mode.dead, StopTrace):
            return
        if isinstance(mode.dead, TraceEscape):
            return mode.give_up(mode.dead.reason, raised_at(mode.dead))
        fault = fault_of(error) if isinstance(error, Exception) else None
        if fault is not None:
            log("exits", f"{tree.name}: {fault}")
            return mode.give_up(fault, raised_at(error))
        try:
            mode.fail(state, error)
        except TraceEscape:
            mode.give_up(f"raises {type(error).__name__}", raised_at(error))
    finally:
        mode.close()
        ACTIVE.reset(state_token)
        active.reset(token)


def _driven(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What an async program returns. While it is traced, all that it awaits is there."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        coroutine.close()
    raise TraceEscape("awaits something while it is traced")


def _plain_function(program: Function) -> types.FunctionType:
    if not isinstance(program.func, types.FunctionType):
        raise TraceEscape(f"{program.name} is a {type(program.func).__name__}, not a Python function")
    if inspect.isgeneratorfunction(program.func):
        raise TraceEscape(f"{program.name} is a generator ({program.loc})")
    return program.func
