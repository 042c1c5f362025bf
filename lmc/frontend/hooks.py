"""What the hooks of instrumented code do: plain Python here, with the answers of a record in `ReplayMode`.

Every hook call has a number, counted the same way while tracing and while replaying. The results of host operations
that must not happen twice are recorded under it, so the interpreter can go on where a compiled run stopped.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import heapq
import inspect
import itertools
import sys
import types
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from lmc.errors import JournalError
from lmc.frontend import aio, hostops, raising, reach
from lmc.frontend.again import AROUND_HOST_CODE
from lmc.frontend.asks import CHOICES, GIVEN, as_recorded, unbound
from lmc.frontend.class_code import is_of_a_library_metaclass
from lmc.frontend.effects import foreign
from lmc.frontend.handed import Drawn
from lmc.frontend.host import HostFunction
from lmc.frontend.hostops import Shape, targets
from lmc.frontend.instrument import instrument
from lmc.frontend.instrumented import awaits, is_instrumented
from lmc.frontend.interpreter import ACTIVE, Function
from lmc.frontend.managers import AsyncManaged, Managed, is_own_async_manager, is_own_manager
from lmc.frontend.own import NOT_OWN, Own, default_containers
from lmc.frontend.primitives import Expr, caller_loc
from lmc.frontend.raising import caused
from lmc.frontend.source import CannotInstrument
from lmc.frontend.state import State, StateGroup
from lmc.frontend.tree import Tree
from lmc.frontend.values import TraceEscape, Value, active
from lmc.ir.core import exact
from lmc.prompt import RUN_SAMPLING

if TYPE_CHECKING:
    from lmc.frontend.durable import RunJournal
    from lmc.limits import Limits

Key = tuple[int, int, int]
"""Number of the hook call; 0 for its own result, or 1 + the number of what it iterates or formats; the step in that."""

DEFINED = -2
"""As the second part of a key: a function or class that the program made, once host code was handed it."""

BUILT = -3
"""As the second part of a key: the container that a builtin made for the program, after what it called of the program."""

GATHERED = 2
"""As the second part of a key: the list of what tasks of the program's own gave."""


ORDERED = -5
"""As the second part of a key: the places of what `max`, `min` or sorting gives, among what it was handed."""

OWNED = -4
"""As the second part of a key: a list that reading a state made."""


def inner_key(key: Key, index: int) -> Key:
    """For a target inside of an unpacked one: the first number is that of the hook call, the last that of the iteration."""
    return key[0], key[1] * 64 + index + 1, key[2]


Record = Mapping[Key, tuple[bool, Any]]
"""What was done: (True, result) or (False, exception) of each host operation that must not happen twice."""

class Mode:
    """Plain Python: what every hook does when nothing is traced. Subclasses change what touches the program's record."""

    # names and attributes

    def glob(self, name: str, value: Any) -> Any:
        return value

    def free(self, name: str, value: Any) -> Any:
        return value

    def store_global(self, name: str, value: Any, names: dict[str, Any]) -> None:
        names[name] = value

    def getattr(self, owner: Any, name: str) -> Any:
        return getattr(owner, name)

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)

    def delattr(self, owner: Any, name: str) -> None:
        delattr(owner, name)

    # items

    def getitem(self, owner: Any, key: Any) -> Any:
        return owner[key]

    def setitem(self, owner: Any, key: Any, value: Any) -> None:
        owner[key] = value

    def delitem(self, owner: Any, key: Any) -> None:
        del owner[key]

    def slice_(self, start: Any, stop: Any, step: Any) -> Any:
        return slice(start, stop, step)

    # calls

    def call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    def callm(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(owner, name)(*args, **kwargs)

    def has_method(self, owner: Any, name: str) -> Any:
        """`owner`, if it has the method that is about to be called on it."""
        getattr(owner, name)
        return owner

    def eval_(self, text: Any, inside: dict[str, Any], outside: dict[str, Any]) -> Any:
        return eval(text, inside, outside)  # the program's own call of eval, in its own frame's names

    def names(self, variables: dict[str, Any]) -> dict[str, Any]:
        """What `locals()` gives, without the variables that instrumentation made."""
        return {name: value for name, value in variables.items() if not name.startswith("__lmc")}

    def star(self, value: Any, *callee: Any) -> Iterable[Any]:
        """What `*value` gives. `callee`: the function, or an object and the name of its method, that Python names in its error."""
        return hostops.starred(value, callee)

    def dstar(self, value: Any) -> Any:
        return value

    def merged(self, given: dict[str, Any], more: Any, *callee: Any) -> dict[str, Any]:
        """The keywords of a call so far, and what `**more` adds."""
        return hostops.merged(given, self.dstar(more), callee)

    def named(self, given: dict[str, Any], more: dict[str, Any], *callee: Any) -> dict[str, Any]:
        """The keywords of a call so far, and those that it names next."""
        return hostops.merged(given, more, callee)

    # operators

    def binop(self, op: str, a: Any, b: Any) -> Any:
        return hostops.OPERATIONS[hostops.BINARY[op]](a, b)

    def iop(self, op: str, a: Any, b: Any) -> Any:
        return hostops.OPERATIONS[hostops.INPLACE[op]](a, b)

    def unary(self, op: str, a: Any) -> Any:
        return hostops.OPERATIONS[hostops.UNARY[op]](a)

    def compare(self, op: str, a: Any, b: Any) -> Any:
        return hostops.OPERATIONS[hostops.COMPARE[op]](a, b)

    def not_(self, a: Any) -> Any:
        return not a

    def truth(self, a: Any) -> bool:
        """Which way a test goes."""
        return bool(a)

    def side(self, a: Any) -> bool:
        """As `truth`, of one side of an `and` or `or`."""
        return self.truth(a)

    def concrete(self, a: Any) -> Any:
        return a

    def fstring(self, *parts: Any) -> str:
        return "".join([p if isinstance(p, str) else hostops.OPERATIONS["py.format"](*p) for p in parts])

    # building and taking apart

    def made(self, container: Any) -> Any:
        return container

    def defined(self, definition: Any) -> Any:
        """A function or class that the program just made, before its decorators see it."""
        return definition

    def decorator(self, decorator: Any) -> Any:
        """What a definition of the program goes through."""
        return decorator

    def base(self, base: Any) -> Any:
        """What a class statement names behind the class's name."""
        return base

    def build_set(self, items: list[Any]) -> Any:
        return set(items)

    def build_dict(self, items: list[Any]) -> Any:
        built: dict[Any, Any] = {}
        for item in items:
            if isinstance(item, tuple):
                built[item[0]] = item[1]
            else:
                built = {**built, **item}  # raises for what is no mapping
        return built

    def iter(self, value: Any, shape: Shape | None = None) -> Iterable[Any]:
        return value

    def iter_starred(self, value: Any, shape: Shape) -> Iterable[Any]:
        """Iterates `value`, each item as a tuple with one part for each target: a list for the starred one."""
        return (hostops.OPERATIONS["py.unpack"](item, shape) for item in self.iter(value, shape))

    def unpack(self, value: Any, shape: Shape) -> Any:
        return value

    # async code: what these give is awaited, iterated or entered

    def call_awaited(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """As `call`, of what is awaited at once."""
        return self.call(fn, *args, **kwargs)

    def callm_awaited(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """As `callm`, of what is awaited at once."""
        return self.callm(owner, name, *args, **kwargs)

    def awaited(self, value: Any) -> Any:
        return value

    def getitem_ready(self, owner: Any, key: Any) -> Any:
        """As `getitem`, once a variable of a state is there."""
        waits = aio.unanswered(owner, key) if isinstance(owner, State) else None
        return aio.after(waits, lambda: owner[key]) if waits else aio.Ready(self.getitem(owner, key))

    def callm_ready(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """As `callm`, once what a method of a state waits for is there."""
        if isinstance(owner, State):
            of_variable = name in ("get_var", "get_meta_info") and len(args) == 1
            waits = aio.unanswered(owner, args[0]) if of_variable else aio.unanswered_in(owner.ctx)
            if waits:
                return aio.after(waits, lambda: getattr(owner, name)(*args, **kwargs))
        return aio.Ready(self.callm(owner, name, *args, **kwargs))

    def aiter(self, value: Any, shape: Shape | None = None) -> Any:
        return value

    def aenter(self, manager: Any) -> Any:
        return manager

    def aentered(self, manager: Any) -> Any:
        """An awaitable of what entering an async manager gives."""
        return hostops.aenter(manager)

    def aleft(self, manager: Any, error: BaseException | None) -> Any:
        """An awaitable: leaves an async manager, with the exception that the block raised; whether the manager has handled it."""
        return hostops.aexit(manager, error)

    # patterns: the parts that the patterns inside are matched with, or None

    def match_sequence(self, subject: Any, length: int, star: int) -> tuple[Any, ...] | None:
        return hostops.match_sequence(subject, length, star)

    def match_mapping(self, subject: Any, keys: tuple[Any, ...], rest: bool) -> tuple[Any, ...] | None:
        return hostops.match_mapping(subject, keys, rest)

    def match_class(self, subject: Any, cls: Any, count: int, names: tuple[str, ...]) -> tuple[Any, ...] | None:
        return hostops.match_class(subject, cls, count, names, self.getattr)

    # statements

    def enter(self, manager: Any) -> Any:
        """What a `with` statement enters."""
        return manager

    def entered(self, manager: Any) -> Any:
        """What entering a manager gives."""
        return type(manager).__enter__(manager)

    def left(self, manager: Any, error: BaseException | None) -> Any:
        """Leaves a manager, with the exception that the block raised; whether the manager has handled it."""
        return hostops.OPERATIONS["py.exit"](manager, error)

    def raise_(self, error: Any, *cause: Any) -> Any:
        """What a `raise` statement raises; `cause` is what it names after `from`."""
        return caused(error, *cause) if cause else error

    def failed(self, *message: Any) -> Any:
        """What an `assert` statement raises."""
        return AssertionError(*message)

    def handles(self, classes: Any) -> Any:
        """What stands after `except`."""
        return classes


HOOKS: Final = tuple(name for name, member in vars(Mode).items() if callable(member) and not name.startswith("__"))

_NATIVE = Mode()


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


class Hooks:
    """The object instrumented code calls: dispatches to the active mode."""

    __slots__ = ()

    def and_(self, first: Callable[[], Any], rest: Callable[[], Any]) -> Any:
        value = first()
        return rest() if self.truth(value) else value  # type: ignore[attr-defined]

    def or_(self, first: Callable[[], Any], rest: Callable[[], Any]) -> Any:
        value = first()
        return value if self.truth(value) else rest()  # type: ignore[attr-defined]

    def chain(self, signs: tuple[str, ...], left: Any, *rest: Callable[[], Any]) -> Any:
        """`a < b() < c()`: each side once, and no further than the first comparison that fails."""
        result: Any = True
        for sign, thunk in zip(signs, rest, strict=True):
            right = thunk()
            result = self.compare(sign, left, right)  # type: ignore[attr-defined]
            if thunk is not rest[-1] and not self.truth(result):  # type: ignore[attr-defined]
                break
            left = right
        return result

    def store_item(self, value: Any, owner: Any, key: Any) -> None:
        self.setitem(owner, key, value)  # type: ignore[attr-defined]

    def store_attr(self, value: Any, owner: Any, name: str) -> None:
        self.setattr(owner, name, value)  # type: ignore[attr-defined]


def _dispatcher(name: str) -> Callable[..., Any]:
    def hook(self: Hooks, /, *args: Any, **kwargs: Any) -> Any:
        mode = active.get()
        return getattr(_NATIVE, name)(*args, **kwargs) if mode is None else mode.dispatch(name, args, kwargs)

    hook.__name__ = name
    return hook


for _name in HOOKS:
    setattr(Hooks, _name, _dispatcher(_name))

hooks = Hooks()


_NOTHING: Mapping[Any, Any] = {}


class Ahead(Protocol):
    """An unordered call that a compiled run made, maybe without getting to its place in the program."""

    @property
    def fn(self) -> Any: ...
    @property
    def args(self) -> Sequence[Any]: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...
    @property
    def outcome(self) -> tuple[bool, Any]: ...


class ReplayMode(CountingMode):
    """The program on real values: operations that are in the record answer from it, the rest happens."""

    def __init__(self, record: Record, tree: Tree | None = None, ahead: Mapping[Key, Ahead] = _NOTHING, changed: int | None = None) -> None:
        """`changed`: the hook call where the run found an object of the outside to be another one than before."""
        super().__init__()
        self.record = record
        self.ahead = [ahead[key] for key in sorted(ahead)]
        self.tree = tree  # what the outside was when the run began
        done = [tick for tick, which, _ in record if which not in (DEFINED, GIVEN)]
        self.first = min(done, default=0)  # up to here nothing foreign had run
        self.until = max(done, default=0) if changed is None else changed  # up to here its objects were the same
        self.last = max((tick for tick, _, _ in record), default=0)  # of the hook calls that are in the record
        self.lazy: dict[int, Any] = {}  # iterators that the program made
        self.classes: dict[type, type] = {}  # of the program, by those that stand for them in the record
        self.journal: RunJournal | None = None
        self.stream = ""  # of the run
        self.limits: Limits | None = None  # of a run that has to end in time

    def dispatch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = (self.count + 1, 0, 0)
        if self.ahead and (made := self._made(name, args, kwargs)) is not None:
            self.record = {**self.record, key: made.outcome}
        if key not in self.record:
            if self.count < self.first and name in _ONLY_READ:
                args = tuple([self._as_begun(a) for a in args])
            if (handled := sys.exc_info()[1]) is not None:
                raising.without_hooks(handled)  # the program may print its traceback
            result, built = super().dispatch(name, args, kwargs), (key[0], BUILT, 0)
            if name == "truth" and self.journal is not None:
                self.journal.decided(result)
            return self._answer(built) if built in self.record else result
        self.count += 1
        for x in (*args, *kwargs.values()):
            if id(x) in self.lazy:  # the call ran it through before it was made; its own hook calls count
                for _ in x:
                    pass
        answer = self._answer(key)
        if name in ("dstar", "merged"):
            found = dict(zip(*answer, strict=True))
            return found if name == "dstar" else self.merged(args[0], found, *args[2:])
        if name in _AWAITED:
            return aio.Ready(answer)
        return self._flat(answer, args[1]) if name == "unpack" else answer

    def _made(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ahead | None:
        """The unordered call that this hook call is, if it was made already: each answers once."""
        called = _unordered(name, args)
        if called is None:
            return None
        fn, given = called
        for index, made in enumerate(self.ahead):
            if fn.marks_the_same(made.fn) and _alike(given, tuple(made.args)) and _alike(tuple(kwargs.items()), tuple(made.kwargs.items())):
                return self.ahead.pop(index)
        return None

    def owned_list(self, made: Any) -> Any:
        """A list that reading a state made, or the one that the run made there."""
        key = self.owned_key()
        return self._answer(key) if key in self.record else made

    def _answer(self, key: Key) -> Any:
        done, value = self.record[key]
        if type(value) in self.classes:
            value.__class__ = self.classes[type(value)]
        if isinstance(value, BaseException):
            raising.unlocated(value)
        if not done:
            raise value
        return value

    def _flat(self, items: tuple[Any, ...], shape: Shape) -> tuple[Any, ...]:
        """What `py.unpack` gave, with the lists of starred targets spread out again."""
        before, after = targets(shape)
        items = tuple([self._flat(x, s) if isinstance(s, tuple) else x for x, s in zip(items, shape, strict=True)])
        return items if after < 0 else (*items[:before], *items[before], *items[before + 1 :])

    def made(self, container: Any) -> Any:
        if isinstance(container, LAZY) and (self.ahead or self.tick < self.last):  # who holds it longer puts off the end of a generator in it
            self.lazy[id(container)] = container
        return container

    def defined(self, definition: Any) -> Any:
        key = (self.tick, DEFINED, 0)
        known = self._answer(key) if key in self.record else definition
        if known is not definition and isinstance(definition, type) and not is_of_a_library_metaclass(definition):
            self.classes[known] = definition  # the program's own one: what it stores there is of this run alone
            known = definition
        return super().defined(known)

    # the outside as it was

    def _begun(self, owner: Any, name: str, value: Any) -> Any:
        """What the run read from the outside at its beginning; later reads are in the record, or happen now."""
        if self.tree is None or self.tick >= max(self.first, self.until):
            return value
        key = outside_key(owner, name)
        if self.tick < self.first:
            guard = self.tree.guards.get(key)
            return value if guard is None else guard.value
        return self.tree.objects[key][1] if key in self.tree.objects else value

    def _as_begun(self, x: Any) -> Any:
        """An outside container with what it held when the run began."""
        if self.tree is None or type(x) not in (list, dict) or id(x) not in self.tree.steady:
            return x
        owner, content = self.tree.steady[id(x)]
        return x if owner is not x else type(x)(content)

    def glob(self, name: str, value: Any) -> Any:
        return self._begun(program_frame().f_globals, name, value)

    def free(self, name: str, value: Any) -> Any:
        cell = self.cell(name)
        return value if cell is None else self._begun(cell, "cell_contents", value)

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

    def star(self, value: Any, *callee: Any) -> Iterable[Any]:
        return hostops.starred(value if self.tells_of_length(value) else self._recorded_iter(1, self.own_items(value)), callee)

    def own_items(self, value: Any) -> Iterable[Any]:
        items = self.own_iter(value)
        return value if items is NOT_OWN else items

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
        except CannotInstrument as error:
            if self.journal is not None:
                raise JournalError(f"a run that calls {getattr(fn, '__qualname__', fn)} cannot be journaled: {error}") from None
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
        lazy = isinstance(getattr(fn, "__self__", None), LAZY) or any(isinstance(a, LAZY) for a in args)
        if lazy and (self.journal is None or foreign(fn, args, kwargs) is None):
            return fn(*args, **kwargs)  # runs the program's own generators
        if self.journal is None:
            return self._host_call(fn, args, kwargs)
        if self.tick >= self.last and type(getattr(fn, "__self__", None)) in _HOLD and foreign(fn, args, kwargs) is None:
            return fn(*args, **kwargs)  # what it lets go of may be a generator of the program's, whose last lines are the program's own
        return self._journaled(self.journal, fn, args, kwargs)

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
        """Whether a sub-program is run with hooks. One without source is run as it is: nothing after it is in the record; a journal needs hooks."""
        if self.journal is not None:
            return True
        try:
            return reach.traced_twin(fn.func, (ACTIVE.get(),), {}, hooks) is not None
        except CannotInstrument:
            return False

    def _host_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _beyond():  # hooks in functions that host code calls are not the program's own
            return fn(*args, **kwargs)

    def _journaled(self, journal: RunJournal, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of host code, from the journal if it is there. Raises JournalError where it was handed the program's own coroutines then."""
        made: list[bool] = []
        args, kwargs = tuple(map(self._drawn, args)), {name: self._drawn(x) for name, x in kwargs.items()}

        def call() -> tuple[bool, Any]:
            made.append(True)
            try:
                return True, self._host_call(fn, args, kwargs)
            except BaseException as error:  # handed on
                return False, error

        ok, value = journal.call(self.stream, fn, args, kwargs, call, caller_loc())
        if not made and reach.holds((args, kwargs), is_own_coroutine):
            raise JournalError(
                f"{getattr(fn, '__qualname__', fn)}() was handed tasks of the program's own, and what they did to states is something "
                "which a journal cannot hold, so the run cannot be taken up behind it", loc=caller_loc())  # fmt: skip
        if not ok:
            raise value
        return value

    def _drawn(self, x: Any) -> Any:
        return Drawn(x, self._going_on) if isinstance(x, LAZY) else x

    @contextlib.contextmanager
    def _going_on(self) -> Generator[None]:
        """In host code: hooks in here are the program's."""
        token = active.set(self)
        try:
            yield
        finally:
            active.reset(token)

    def callm(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(owner, Function) and name == "run":
            return self.call(owner, *args, **kwargs)
        if isinstance(owner, Function) and name == "arun" and owner.is_async and only_sampling(owner, kwargs) and self._sees_into(owner):
            return self.sub_program_async(owner, args, kwargs)
        return self.call(self.getattr(owner, name), *args, **kwargs)

    def fstring(self, *parts: Any) -> str:
        return "".join([p if isinstance(p, str) else self._formatted(i, p) for i, p in enumerate(parts)])

    def _formatted(self, index: int, part: tuple[Any, str, str]) -> str:
        part = self.own_format(part)
        key = (self.tick, index + 1, 0)
        return self._answer(key) if key in self.record else hostops.OPERATIONS["py.format"](*part)

    def iter(self, value: Any, shape: Shape | None = None) -> Iterable[Any]:
        value = self.own_items(value)
        items = self._recorded_iter(1, value)
        return items if shape is None or items is value else self._unpacked_items(self.tick, items, shape)

    def _unpacked_items(self, tick: int, items: Iterable[Any], shape: Shape) -> Iterator[Any]:
        for index, item in enumerate(items, 1):
            key = (tick, 1, -index)
            yield self._flat(self._answer(key), shape) if key in self.record else self._inside(item, shape, key)

    def unpack(self, value: Any, shape: Shape) -> Any:
        return self._inside(self.own_items(value), shape, (self.tick, 1, 0))

    def _inside(self, value: Any, shape: Shape, key: Key) -> Any:
        """A container of the program with those of its items that were unpacked before as they were then."""
        if not any(isinstance(s, tuple) for s in shape) or not (isinstance(value, tuple | list) and len(value) == len(shape)):
            return value
        return tuple([self._inner(v, s, inner_key(key, i)) if isinstance(s, tuple) else v for i, (v, s) in enumerate(zip(value, shape, strict=True))])

    def _inner(self, value: Any, shape: Shape, key: Key) -> Any:
        return self._flat(self._answer(key), shape) if key in self.record else self._inside(value, shape, key)

    def _recorded_iter(self, which: int, value: Any) -> Any:
        """Iterates `value`; what was iterated before comes from the record, the rest from the same iterator."""
        tick = self.tick
        if (tick, which, 0) in self.record:
            return self._continue(tick, which, self._answer((tick, which, 0)))
        if self.tree is not None and tick <= self.first and id(value) in self.tree.steady and self.tree.steady[id(value)][0] is value:
            return self._continue_steady(tick, which, value, self.tree.steady[id(value)][1])
        return value

    def callm_awaited(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(owner, types.ModuleType):
            return self.call_awaited(self.getattr(owner, name), *args, **kwargs)
        return self.callm(owner, name, *args, **kwargs)

    def call_awaited(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if self.last > self.tick or self.journal is not None:  # the graph ran them too; else they are tasks like any other
            found = aio.gathering(fn, args, kwargs, waits_for_answers)
            if found is not None:
                return found
        return self.call(fn, *args, **kwargs)

    def awaited(self, value: Any) -> Any:
        """What the program awaits. Hooks in what host code runs meanwhile are not the program's own."""
        if isinstance(value, aio.Gathering):
            return self._gathered(value, (self.tick, GATHERED, 0))
        if is_own_coroutine(value) or isinstance(value, aio.Ready) or _is_turn_of_own_generator(value):
            return value
        if self.journal is not None:
            value = self.journal.wait(self.stream, value, caller_loc())
        if self.limits is not None and inspect.isawaitable(value):
            value = self.limits.wait(value, caller_loc())
        return _as_host(value) if isinstance(value, types.CoroutineType) else value

    async def _gathered(self, gathering: aio.Gathering, key: Key) -> Any:
        results = await gathering.in_order(lambda: self.journal is None and self.count >= self.last, _beyond)
        return self._answer(key) if key in self.record else results

    def aiter(self, value: Any, shape: Shape | None = None) -> Any:
        tick = self.tick
        if (tick, 1, 0) in self.record:
            value = self._answer((tick, 1, 0))
        if self.limits is not None and not _is_own_generator(value):
            value = aio.timed_items(value, self.limits, caller_loc())
        if (tick, 1, 0) in self.record:
            return self._continue_async(tick, value, shape)
        return value if shape is None or tick > self.last or not _is_own_generator(value) else self._unpacked_later(tick, value, shape)

    async def _unpacked_later(self, tick: int, items: AsyncIterator[Any], shape: Shape) -> AsyncIterator[Any]:
        index = 0
        async for item in items:
            index += 1
            key = (tick, 1, -index)
            yield self._flat(self._answer(key), shape) if key in self.record else self._inside(item, shape, key)

    def aenter(self, manager: Any) -> Any:
        if not (hasattr(type(manager), "__aenter__") and hasattr(type(manager), "__aexit__")):
            return manager  # Python says what is missing
        return manager if is_own_async_manager(manager) else AsyncManaged(manager, self.dispatch, self.is_dead)

    def aentered(self, manager: Any) -> Any:
        if self.own_async(manager, "__aenter__"):
            return self.call(type(manager).__aenter__, manager)
        return self._managing(super().aentered(manager))

    def aleft(self, manager: Any, error: BaseException | None) -> Any:
        if self.own_async(manager, "__aexit__"):
            return self.call(type(manager).__aexit__, manager, None if error is None else type(error), error, error and error.__traceback__)
        return self._managing(super().aleft(manager, error))

    def _managing(self, coroutine: Any) -> Any:
        return _as_host(coroutine if self.limits is None else self.limits.wait(coroutine, caller_loc()))

    async def _continue_async(self, tick: int, iterator: Any, shape: Shape | None) -> AsyncIterator[Any]:
        for step in itertools.count(1):
            if (tick, 1, step) in self.record:
                more, item = self._answer((tick, 1, step))
            else:
                more, item = await hostops.anext_step(iterator)
            if not more:
                return
            key = (tick, 1, -step)
            yield self._flat(self._answer(key), shape) if shape is not None and key in self.record else item

    def _continue_steady(self, tick: int, which: int, container: Any, content: tuple[Any, ...]) -> Iterator[Any]:
        """An outside container: as it was while nothing foreign had run, as recorded, and then as it is."""
        for index in itertools.count():
            key = (tick, which, index + 1)
            if key in self.record:
                more, item = self._answer(key)
            else:
                now = type(container)(content) if self.count < self.first else container
                more = index < len(now)
                item = tuple(now)[index] if more else None
            if not more:
                return
            yield item

    def _continue(self, tick: int, which: int, iterator: Iterator[Any]) -> Iterator[Any]:
        step = 1
        while (tick, which, step) in self.record:
            more, item = self._answer((tick, which, step))
            if not more:
                return
            yield item
            step += 1
        yield from iterator


def _unordered(name: str, args: tuple[Any, ...]) -> tuple[HostFunction, tuple[Any, ...]] | None:
    """The unordered host function that a hook call calls, and its arguments."""
    name = name.removesuffix("_awaited")
    if name == "callm":
        owner, attribute, *rest = args
        fn = inspect.getattr_static(owner, attribute, None)
        args = tuple(rest) if attribute in getattr(owner, "__dict__", ()) else (owner, *rest)
    elif name == "call":
        fn, args = args[0], args[1:]
        if isinstance(fn, types.MethodType):
            fn, args = fn.__func__, (fn.__self__, *args)
    else:
        return None
    return (fn, args) if isinstance(fn, HostFunction) and not fn.ordered else None


def _alike(a: Any, b: Any) -> bool:
    """Whether two arguments are the same object, or data that cannot change and prints equal: nan is nan."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(_alike, a, b))
    return hostops.is_immutable(a) and exact(a) == exact(b)


def only_sampling(fn: Function, kwargs: dict[str, Any]) -> bool:
    """Whether the options that a sub-program is called with, if any, are defaults of its gens that can be said gen by gen.

    Not so the numbers of tokens, which are compared with each other at the call, and `n`, which makes lists of answers.
    """
    return all(name in _SAMPLING and hostops.is_immutable(value) for name, value in fn.split(kwargs)[1].items())


_SAMPLING = frozenset(RUN_SAMPLING) - {"max_new_tokens", "min_new_tokens", "n"}


def is_own_coroutine(x: Any) -> bool:
    """Whether something is a coroutine of the program's own functions, or of programs."""
    return isinstance(x, types.CoroutineType) and (
        is_instrumented(x.cr_code) or (x.cr_code.co_filename.startswith(PACKAGE) and x.cr_code not in AROUND_HOST_CODE))


def waits_for_answers(x: Any) -> bool:
    """Whether something is a coroutine of the program's own, or of an async program, that waits for nothing but answers."""
    if not isinstance(x, types.CoroutineType) or inspect.getcoroutinestate(x) != inspect.CORO_CREATED:
        return False
    if x.cr_code is _SUB_PROGRAM:
        program = inspect.getcoroutinelocals(x)["fn"].func
        try:
            return isinstance(program, types.FunctionType) and not awaits(instrument(program, hooks).__code__)
        except CannotInstrument:
            return False
    return is_instrumented(x.cr_code) and not awaits(x.cr_code)


_SUB_PROGRAM = CountingMode.sub_program_async.__code__


def _is_own_generator(x: Any) -> bool:
    return isinstance(x, types.AsyncGeneratorType) and is_instrumented(x.ag_code)


_MANAGING = frozenset(
    getattr(contextlib._AsyncGeneratorContextManager, name).__code__ for name in ("__aenter__", "__aexit__")  # pyright: ignore[reportPrivateUsage]
)


def _is_turn_of_own_generator(x: Any) -> bool:
    """Whether something moves an async generator of the program's own on: what `anext` and `asend` give, or its manager's `__aexit__`."""
    if isinstance(x, types.CoroutineType):
        return x.cr_code in _MANAGING and _is_own_generator(getattr(inspect.getcoroutinelocals(x).get("self"), "gen", None))
    return type(x).__name__ in ("async_generator_asend", "async_generator_athrow") and any(map(_is_own_generator, gc.get_referents(x)))


@contextlib.contextmanager
def _beyond() -> Generator[None]:
    """Hooks in here are not the replay's."""
    token = active.set(None)
    try:
        yield
    finally:
        active.reset(token)


async def _as_host(awaitable: Awaitable[Any]) -> Any:
    with _beyond():
        return await awaitable


_AWAITED = frozenset({"awaited", "getitem_ready", "callm_ready", "aentered", "aleft"})
"""Hooks that give awaitables."""

LAZY = (
    types.GeneratorType, map, filter, zip, enumerate, itertools.islice, itertools.chain, itertools.zip_longest, itertools.pairwise,
    itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.starmap, itertools.product, type(iter(int, 0)),
)  # fmt: skip
"""Iterators that the program makes and host code would drive."""

_ONLY_READ = frozenset({"getitem", "binop", "compare", "truth", "side", "not_", "concrete", "fstring", "star", "unpack", "dstar", "merged"})
"""Hooks that read an outside container and keep nothing of it."""

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
