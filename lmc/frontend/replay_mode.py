"""A replay: the program on real values, its calls and own objects; what a run has done answers from its record."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmc.durable.snapshots import LAZY
from lmc.frontend import hostops, reach
from lmc.frontend.asks import as_recorded, unbound
from lmc.frontend.coroutines import beyond_hooks
from lmc.frontend.counting import only_sampling
from lmc.frontend.hooks import hooks
from lmc.frontend.host import HostFunction
from lmc.frontend.interpreter import ACTIVE, Function
from lmc.frontend.keys import CHOICES, GIVEN, ORDERED
from lmc.frontend.own import NOT_OWN
from lmc.frontend.replay_async import ReplayAsync
from lmc.frontend.source import CannotInstrument

if TYPE_CHECKING:
    pass


class ReplayMode(ReplayAsync):
    """The program on real values: operations that are in the record answer from it, the rest happens."""

    def getattr(self, owner: Any, name: str) -> Any:
        value = self.own_attribute(owner, name)
        if value is not NOT_OWN:
            return value
        value = self.computed(owner, name)
        if value is not NOT_OWN:
            return value
        value, cls = getattr(owner, name), self.class_with_data(owner, name)
        if cls is not None:
            return self._begun(cls, name, value)
        return self._begun(owner, name, value) if isinstance(owner, types.ModuleType | type | types.FunctionType) else value

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        if not self.own_store(owner, name, value):
            super().setattr(owner, name, value)

    # instances of the program's own classes

    def getitem(self, owner: Any, key: Any) -> Any:
        item = self.own_method(owner, "__getitem__", key)
        return super().getitem(owner, key) if item is NOT_OWN else item

    def setitem(self, owner: Any, key: Any, value: Any) -> None:
        if self.own_method(owner, "__setitem__", key, value) is NOT_OWN:
            super().setitem(owner, key, value)

    def delitem(self, owner: Any, key: Any) -> None:
        if self.own_method(owner, "__delitem__", key) is NOT_OWN:
            super().delitem(owner, key)

    def binop(self, op: str, a: Any, b: Any) -> Any:
        result = self.own_binary(op, a, b)
        return super().binop(op, a, b) if result is NOT_OWN else result

    def beyond(self, reason: str) -> Any:
        return NOT_OWN  # nothing after this point is in the record

    def created(self, instance: Any, given: tuple[Any, ...] = (), named: Mapping[str, Any] = types.MappingProxyType({})) -> None:
        if not reach.ends_with_code(type(instance)):  # else it must not be kept, and nothing after this point is in the record
            super().created(instance, given, named)

    def adopted(self, container: Any, which: int) -> Any:
        key = (self.tick, which, 0)
        return self._answer(key) if key in self.record else container

    def iop(self, op: str, a: Any, b: Any) -> Any:
        result = self.own_inplace(op, a, b)
        return super().iop(op, a, self.items_of_group(a, b)) if result is NOT_OWN else result

    def unary(self, op: str, a: Any) -> Any:
        result = self.own_unary(op, a)
        return super().unary(op, a) if result is NOT_OWN else result

    def compare(self, op: str, a: Any, b: Any) -> Any:
        result = self.own_compare(op, a, b)
        return super().compare(op, a, b) if result is NOT_OWN else result

    def truth(self, a: Any) -> bool:
        value = self.own_truth(a)
        return bool(a if value is NOT_OWN else value)

    def not_(self, a: Any) -> bool:
        return not self.truth(a)

    def enter(self, manager: Any) -> Any:
        return self.managed(manager, hasattr(type(manager), "__enter__") and hasattr(type(manager), "__exit__"))

    def entered(self, manager: Any) -> Any:
        return self.call(type(manager).__enter__, manager)

    def left(self, manager: Any, error: BaseException | None) -> Any:
        return self.call(type(manager).__exit__, manager, None if error is None else type(error), error, error and error.__traceback__)

    def raise_(self, error: Any, *cause: Any) -> Any:
        if (self.tick, 1, 0) in self.record:
            error = self._answer((self.tick, 1, 0))
        return super().raise_(error, *cause)

    # calls

    def has_method(self, owner: Any, name: str) -> Any:
        if id(owner) not in self.instances or self.lacks(owner, name):
            getattr(owner, name)
        return owner

    def call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        fn, args, kwargs = unbound(fn, args, kwargs)
        if isinstance(fn, Function) and not fn.is_async and only_sampling(fn, kwargs) and self._sees_into(fn):
            return self.sub_program(fn, args, kwargs)
        result = self.own_builtin(fn, args, kwargs)
        if result is not NOT_OWN:
            return result
        if isinstance(fn, types.BuiltinMethodType) and fn.__name__ == "sort" and type(owner := fn.__self__) is list:
            result = self.own_order(sorted, (owner,), kwargs)
            if result is not NOT_OWN:
                owner[:] = result
                return None
        if (self.tick, ORDERED, 0) in self.record:
            return self._in_order(fn, args, kwargs)
        if fn is functools.wraps or (hostops.is_definition(fn) and reach.defines(fn)):  # written in Python, and no code of the program's
            return fn(*args, **kwargs)
        if (fn is heapq.nlargest or fn is heapq.nsmallest) and any(map(reach.holds_language, args)):
            return self._ranked(*args, **kwargs, reverse=fn is heapq.nlargest)
        try:
            twin = self.twin(fn, args, kwargs)
        except CannotInstrument:
            twin = fn  # as it is: nothing after this point is in the record
        if twin is not None:
            result = twin(*args, **kwargs)
            if isinstance(fn, type):
                self.created(result, args, kwargs)
            return result
        if hostops.is_definition(fn) and (fn in _ITERATES or fn in reach.HIGHER_ORDER):
            args = tuple(map(self.star if fn in _LISTS else self.own_items, args))
        args = tuple([self._recorded_iter(n + 1, a) for n, a in enumerate(args)])
        if fn is iter and len(args) == 2:
            return iter(self.callback(args[0]), args[1])
        if self.tick < self.first and (hostops.pure_function(fn) is not None or isinstance(getattr(fn, "__self__", None), str)):
            args = tuple([self._as_begun(a) for a in args])
        if hostops.is_definition(fn) and fn in _ITERATES:
            return self.made(fn(*args, **kwargs))
        if _calls_back(fn):
            args, kwargs = reach.with_callables(fn, args, kwargs, self.callback)
            return self.made(fn(*args, **kwargs))
        if not isinstance(fn, HostFunction) and (reach.is_own(fn) or reach.is_language(fn) or reach.is_language(getattr(fn, "__self__", None))):
            if self.tick < self.first:
                args, kwargs = tuple(map(self._as_begun, args)), {name: self._as_begun(x) for name, x in kwargs.items()}
            if (self.tick, CHOICES, 0) in self.record:
                args, kwargs = (), as_recorded(fn, args, kwargs, {"choices": self._answer((self.tick, CHOICES, 0))})
            if (self.tick, GIVEN, 0) in self.record:
                args, kwargs = (), as_recorded(fn, args, kwargs, self._answer((self.tick, GIVEN, 0)))
            return fn(*args, **kwargs)
        if hostops.pure_function(fn) is not None or type(getattr(fn, "__self__", None)) is str:
            args = tuple([list(a) if isinstance(a, LAZY) else a for a in args])
            if getattr(fn, "__name__", "") == "join":
                args = tuple(map(self.star, args))
        moves_on = isinstance(getattr(fn, "__self__", None), LAZY)
        if moves_on or any(isinstance(a, LAZY) for a in args):
            return fn(*args, **kwargs)  # runs the program's own generators
        return self._host_call(fn, args, kwargs)

    def _ranked(self, count: int, items: Any, key: Any = None, *, reverse: bool) -> list[Any]:
        """What `heapq.nlargest` or `nsmallest` gives of what holds states, as while tracing."""
        given = self._recorded_iter(1, self.own_items(items))
        return sorted(given, key=None if key is None else self.callback(key), reverse=reverse)[: max(0, count)]

    def _in_order(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a builtin that compares objects gave: those at the places that it found then. They may have changed since."""
        owner: list[Any] | None = None if fn in (max, min, sorted) else fn.__self__
        given: Any = owner if owner is not None else args if len(args) != 1 else self._recorded_iter(1, self.own_items(args[0]))
        key = self.callback(kwargs["key"]) if kwargs.get("key") is not None else lambda x: x
        items: list[Any] = []
        for x in given if fn in (max, min) else list(given):  # Python makes each key before it takes the next item, or all of them before the first
            items.append(x)
            key(x)
        found = self._answer((self.tick, ORDERED, 0))
        if isinstance(found, int):
            return items[found]
        ordered = [items[i] for i in found]
        if owner is None:
            return ordered
        owner[:] = ordered
        return None

    def _sees_into(self, fn: Function) -> bool:
        """Whether a sub-program is run with hooks. One without source is run as it is: nothing after it is in the record."""
        try:
            return reach.traced_twin(fn.func, (ACTIVE.get(),), {}, hooks) is not None
        except CannotInstrument:
            return False

    def _host_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with beyond_hooks():  # hooks in functions that host code calls are not the program's own
            return fn(*args, **kwargs)

    def callm(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(owner, Function) and name == "run":
            return self.call(owner, *args, **kwargs)
        if isinstance(owner, Function) and name == "arun" and owner.is_async and only_sampling(owner, kwargs) and self._sees_into(owner):
            return self.sub_program_async(owner, args, kwargs)
        return self.call(self.getattr(owner, name), *args, **kwargs)


_HOLD = frozenset({list, dict, set, collections.deque})
"""Containers that change."""

_LISTS: frozenset[Any] = frozenset({list, tuple, sorted})
"""Builtins that ask what they go through for its length."""

_ITERATES: frozenset[Any] = frozenset({
    any, all, sum, list, tuple, set, dict, enumerate, zip, reversed, iter, next, frozenset, itertools.islice, itertools.chain,
    itertools.zip_longest, itertools.pairwise, itertools.product,
})  # fmt: skip


def _calls_back(fn: Any) -> bool:
    if getattr(fn, "__name__", "") == "sort" and isinstance(getattr(fn, "__self__", None), list):
        return True
    return hostops.is_definition(fn) and fn in reach.HIGHER_ORDER
