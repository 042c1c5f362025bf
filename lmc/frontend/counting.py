"""A mode that numbers the hook calls of a run, so that a replay finds what a trace did in each."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import collections
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from lmc.frontend import hostops, reach
from lmc.frontend.hooks import hooks
from lmc.frontend.instrument import instrument
from lmc.frontend.interpreter import ACTIVE, Function
from lmc.frontend.keys import OWNED, Key
from lmc.frontend.managers import Managed, is_own_manager
from lmc.frontend.mode import Mode
from lmc.frontend.own import NOT_OWN, Own, default_containers
from lmc.frontend.primitives import Expr
from lmc.frontend.source import CannotInstrument
from lmc.frontend.state import State, StateGroup
from lmc.frontend.values import TraceEscape, Value
from lmc.prompt import RUN_SAMPLING

PACKAGE = __file__.rsplit("frontend", 1)[0]


def program_frame() -> types.FrameType:
    """The innermost frame that is not lmc's own: the program's, when a hook was called."""
    frame: types.FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    assert frame is not None, "hooks are called by the program"
    return frame


def member_of(owner: Any, name: str) -> Any:
    """What the class of an object has under a name, not bound to it; None if there is nothing."""
    return next((base.__dict__[name] for base in type(owner).__mro__ if name in base.__dict__), None)


def outside_key(owner: Any, name: str) -> tuple[str, int, str]:
    """What names a global, closure variable or attribute in the guards of a tree."""
    return "outside", id(owner), name


class CountingMode(Own, Mode):
    """A mode that numbers the hook calls of one run. Calls between a mode's own methods do not count."""

    def __init__(self) -> None:
        self.cells: dict[int, tuple[types.CodeType, dict[str, types.CellType]]] = {}
        self.instances: dict[int, Any] = {}  # of the program's own classes that reach the language
        self.definitions: dict[int, tuple[weakref.ref[Any], int]] = {}  # functions and classes that the program made, and in which hook call
        self.owned: collections.Counter[int] = collections.Counter()  # lists that reading a state made, by hook call
        self.count = 0
        self.tick = 0  # number of the hook call being worked on; 0 outside of any
        self.main = False  # whether the next host operation is that hook call's own result

    def escape(self, reason: TraceEscape) -> None:
        """A `TraceEscape` was raised while this mode was active."""

    def dispatch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One hook call of the program."""
        outer = self.tick, self.main
        self.count += 1
        self.tick, self.main = self.count, True
        try:
            return getattr(self, name)(*args, **kwargs)
        finally:
            self.tick, self.main = outer

    def managed(self, manager: Any, known: bool) -> Any:
        """What a `with` statement gets: its manager, or a stand-in that calls hooks. `known`: it is a manager."""
        return manager if is_own_manager(manager) or not known else Managed(manager, self.dispatch, self.is_dead)

    def own_async(self, manager: Any, name: str) -> bool:
        """Whether a method that an `async with` statement awaits is the program's own to run."""
        method = member_of(manager, name)
        if isinstance(manager, Value) or not isinstance(method, types.FunctionType):
            return False
        try:
            return self.twin(method, (manager,), {}) is not None
        except CannotInstrument:
            return False

    def is_dead(self) -> bool:
        """Whether nothing of the program happens any more."""
        return False

    def owned_key(self) -> Key:
        """For the next list that reading a state makes in this hook call."""
        self.owned[self.tick] += 1
        return self.tick, OWNED, self.owned[self.tick]

    def knows_cells(self, code: types.CodeType, cells: dict[str, types.CellType]) -> None:
        """`code` is of a traced function alone, whose outside variables are in `cells`."""
        self.cells[id(code)] = (code, cells)

    def cell(self, name: str) -> types.CellType | None:
        """The outside cell of a free variable of the running function; None for one of a traced function around it."""
        frame: types.FrameType | None = program_frame()
        while frame is not None:  # inner functions and comprehensions find the cell in the function around them
            known = self.cells.get(id(frame.f_code))
            if known is not None and name in known[1]:
                return known[1][name]
            frame = frame.f_back
        return None

    def items_of_group(self, a: Any, b: Any) -> Any:
        """`b` in `forks += b`: a function that gives each fork its item is called like one of the program's own."""
        return self.callback(b) if isinstance(a, StateGroup) and callable(b) and not isinstance(b, Expr | Value | list | tuple) else b

    def computed(self, owner: Any, name: str) -> Any:
        """What a property of an outside object gives whose code reaches the language."""
        fget = member.fget if isinstance(member := member_of(owner, name), property) else None
        if fget is None or reach.is_language(owner) or reach.traced_twin(fget, (owner,), {}, hooks) is None:
            return NOT_OWN
        return self.called(fget, owner)

    def callback(self, fn: Any) -> Callable[..., Any]:
        """A function that a builtin calls on the program's behalf: each call counts like one of the program's own."""
        return lambda *args, **kwargs: self.dispatch("call", (fn, *args), kwargs)

    def sub_program(self, fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        """Another program, on a stream of its own, that inherits what its caller's run has."""
        if fn.is_async:
            raise TraceEscape(f"calls the async program {fn.name} without `await {fn.name}.arun(…)`")
        state, bound, twin = self._sub_program(fn, args, kwargs)
        token = ACTIVE.set(state)
        try:
            state.ret_value = twin(state, *bound.args[1:], **bound.kwargs)
        finally:
            ACTIVE.reset(token)
        return state

    async def sub_program_async(self, fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        """As `sub_program`, awaited."""
        if not fn.is_async:
            raise TraceEscape(f"awaits the program {fn.name}, which is not async")
        state, bound, twin = self._sub_program(fn, args, kwargs)
        token = ACTIVE.set(state)
        try:
            state.ret_value = await twin(state, *bound.args[1:], **bound.kwargs)
        finally:
            ACTIVE.reset(token)
        return state

    def twin(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """What to call instead of `fn` to trace through it; None for a host call. Whatever takes an instance of the program's own is traced through:
        host code cannot be handed one."""
        found = reach.traced_twin(fn, args, kwargs, hooks)
        function = fn.__func__ if isinstance(fn, types.MethodType) else fn
        if found is not None or not isinstance(function, types.FunctionType) or reach.is_own(function) or reach.from_library(function):
            return found
        if not any(map(self.is_instance, (getattr(fn, "__self__", None), *args, *kwargs.values()))):
            return None
        try:
            twin = instrument(function, hooks)
        except CannotInstrument:
            return None
        return twin if fn is function else functools.partial(twin, fn.__self__)

    def is_instance(self, x: Any) -> bool:
        """Whether something is an instance of a class of the program's own, which `created` was told of."""
        return id(x) in self.instances and not isinstance(x, tuple) and not reach.from_library(type(x))

    def sampling_as(self, emitter: Any, given: dict[str, Any]) -> Any:
        """What the states of a sub-program write to that is called with sampling defaults of its own."""
        return emitter.sampling_as(given)

    def _sub_program(
        self, fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[State, inspect.BoundArguments, Callable[..., Any]]:
        caller = ACTIVE.get()
        assert caller is not None, "a counted run has an active state"
        arguments, given = fn.split(kwargs)
        bound = fn.arguments(args, arguments)
        emitter = self.sampling_as(caller.emitter, given) if given else caller.emitter
        state = State(emitter, stream=f"{caller.stream}/c{caller.calls}", name=fn.name)
        caller.calls += 1
        caller.asked.append(state.asked)
        twin = reach.traced_twin(fn.func, (state,), {}, hooks)
        if twin is None:
            raise TraceEscape(f"calls the program {fn.name}, which is not a Python function")
        return state, bound, twin

    def created(self, instance: Any, given: tuple[Any, ...] = (), named: Mapping[str, Any] = types.MappingProxyType({})) -> None:
        """The program made an instance of a class of its own, from these arguments."""
        self.instances[id(instance)] = instance
        if hasattr(type(instance), "__dataclass_fields__"):
            for which, name in enumerate(default_containers(instance, (*given, *named.values())), 1):
                object.__setattr__(instance, name, self.adopted(getattr(instance, name), which))

    def defined(self, definition: Any) -> Any:
        self.definitions[id(definition)] = weakref.ref(definition), self.tick  # not kept alive
        return definition

    def decorator(self, decorator: Any) -> Any:
        if isinstance(decorator, Value):
            raise TraceEscape("decorates a definition with what the host made")
        return decorator if reach.only_defines(decorator) else self.callback(decorator)

    def is_own_definition(self, x: Any) -> bool:
        """Whether the program made a function or class in this run: what its attributes hold is of this run alone."""
        return id(x) in self.definitions and self.definitions[id(x)][0]() is x

    def adopted(self, container: Any, which: int) -> Any:
        """What stands for a container that Python made for the program, number `which` in this hook call."""
        return container


def only_sampling(fn: Function, kwargs: dict[str, Any]) -> bool:
    """Whether the options that a sub-program is called with, if any, are defaults of its gens that can be said gen by gen.

    Not so the numbers of tokens, which are compared with each other at the call, and `n`, which makes lists of answers.
    """
    return all(name in _SAMPLING and hostops.is_immutable(value) for name, value in fn.split(kwargs)[1].items())


_SAMPLING = frozenset(RUN_SAMPLING) - {"max_new_tokens", "min_new_tokens", "n"}
