"""What the hooks of instrumented code do: plain Python here, with the answers of a record in `ReplayMode`.

Every hook call has a number, counted the same way while tracing and while replaying. The results of host operations
that must not happen twice are recorded under it, so the interpreter can go on where a compiled run stopped.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from lmc.frontend import hostops, reach
from lmc.frontend.instrument import CannotInstrument
from lmc.frontend.interpreter import ACTIVE, Function
from lmc.frontend.state import State
from lmc.frontend.values import TraceEscape, active

Key = tuple[int, int, int]
"""Number of the hook call; 0 for its own result, or 1 + the number of what it iterates or formats; the step in that."""

Record = Mapping[Key, tuple[bool, Any]]
"""What was done: (True, result) or (False, exception) of each host operation that must not happen twice."""

Shape = tuple[Any, ...]
"""An unpacking target: None for a name, "*" for a starred one, a tuple for a nested target."""


def targets(shape: Shape) -> tuple[int, int]:
    """(names before the starred one, names after it), or (names, -1) without a starred one."""
    if "*" in shape:
        star = shape.index("*")
        return star, len(shape) - star - 1
    return len(shape), -1


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

    def eval_(self, text: Any, inside: dict[str, Any], outside: dict[str, Any]) -> Any:
        return eval(text, inside, outside)  # the program's own call of eval, in its own frame's names

    def star(self, value: Any) -> Iterable[Any]:
        return value

    def dstar(self, value: Any) -> Any:
        return value

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
        return bool(a)

    def concrete(self, a: Any) -> Any:
        return a

    def fstring(self, *parts: Any) -> str:
        return "".join([p if isinstance(p, str) else hostops.OPERATIONS["py.format"](*p) for p in parts])

    # building and taking apart

    def made(self, container: list[Any]) -> list[Any]:
        return container

    def build_set(self, items: list[Any]) -> Any:
        return set(items)

    def build_dict(self, items: list[Any]) -> Any:
        built: dict[Any, Any] = {}
        for item in items:
            if isinstance(item, tuple):
                built[item[0]] = item[1]
            else:
                built.update(item)
        return built

    def iter(self, value: Any, shape: Shape | None = None) -> Iterable[Any]:
        return value

    def unpack(self, value: Any, shape: Shape) -> Any:
        return value

    # statements

    def enter(self, manager: Any) -> Any:
        return manager

    def raise_(self, error: Any) -> Any:
        return error


HOOKS: Final = tuple(name for name, member in vars(Mode).items() if callable(member) and not name.startswith("__"))

_NATIVE = Mode()


class CountingMode(Mode):
    """A mode that numbers the hook calls of one run. Calls between a mode's own methods do not count."""

    def __init__(self) -> None:
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

    def callback(self, fn: Any) -> Callable[..., Any]:
        """A function that a builtin calls on the program's behalf: each call counts like one of the program's own."""
        return lambda *args, **kwargs: self.dispatch("call", (fn, *args), kwargs)

    def sub_program(self, fn: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        """Another program, on a stream of its own, that inherits what its caller's run has."""
        caller = ACTIVE.get()
        assert caller is not None, "a counted run has an active state"
        bound = fn.arguments(args, kwargs)
        state = State(caller.emitter, stream=f"{caller.stream}/c{caller.calls}", name=fn.name)
        caller.calls += 1
        caller.asked.append(state.asked)
        twin = reach.traced_twin(fn.func, (state,), {}, hooks)
        if twin is None:
            raise TraceEscape(f"calls the program {fn.name}, which is not a Python function")
        self.entered(fn.func)
        token = ACTIVE.set(state)
        try:
            state.ret_value = twin(state, *bound.args[1:], **bound.kwargs)
        finally:
            ACTIVE.reset(token)
        return state

    def entered(self, fn: Any) -> None:
        """A function of the program is about to be traced through."""

    def created(self, instance: Any) -> None:
        """The program made an instance of a class of its own."""


class Hooks:
    """The object instrumented code calls: dispatches to the active mode."""

    __slots__ = ()

    def and_(self, first: Callable[[], Any], rest: Callable[[], Any]) -> Any:
        value = first()
        return rest() if self.truth(value) else value  # type: ignore[attr-defined]

    def or_(self, first: Callable[[], Any], rest: Callable[[], Any]) -> Any:
        value = first()
        return value if self.truth(value) else rest()  # type: ignore[attr-defined]


def _dispatcher(name: str) -> Callable[..., Any]:
    def hook(self: Hooks, *args: Any, **kwargs: Any) -> Any:
        mode = active.get()
        return getattr(_NATIVE, name)(*args, **kwargs) if mode is None else mode.dispatch(name, args, kwargs)

    hook.__name__ = name
    return hook


for _name in HOOKS:
    setattr(Hooks, _name, _dispatcher(_name))

hooks = Hooks()


class ReplayMode(CountingMode):
    """The program on real values: operations that are in the record answer from it, the rest happens."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record

    def dispatch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = (self.count + 1, 0, 0)
        if key not in self.record:
            return super().dispatch(name, args, kwargs)
        self.count += 1
        answer = self._answer(key)
        return self._flat(answer, args[1]) if name == "unpack" else answer

    def _answer(self, key: Key) -> Any:
        done, value = self.record[key]
        if not done:
            raise value
        return value

    def _flat(self, items: tuple[Any, ...], shape: Shape) -> tuple[Any, ...]:
        """What `py.unpack` gave, with the list of a starred target spread out again."""
        before, after = targets(shape)
        return items if after < 0 else (*items[:before], *items[before], *items[before + 1 :])

    def call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(fn, Function) and not fn.split(kwargs)[1]:
            return self.sub_program(fn, args, kwargs)
        try:
            twin = reach.traced_twin(fn, args, kwargs, hooks)
        except CannotInstrument:
            twin = fn  # as it is: nothing after this point is in the record
        if twin is not None:
            return twin(*args, **kwargs)
        args = tuple([self._recorded_iter(n + 1, a) for n, a in enumerate(args)])
        if _hashable(fn) and fn in _ITERATES:
            return fn(*args, **kwargs)
        if _calls_back(fn):
            args, kwargs = reach.with_callables(args, kwargs, self.callback)
            return fn(*args, **kwargs)
        if reach.is_own(fn) or reach.is_language(fn) or reach.is_language(getattr(fn, "__self__", None)):
            return fn(*args, **kwargs)
        if hostops.pure_function(fn) is not None or type(getattr(fn, "__self__", None)) is str:
            args = tuple([list(a) if isinstance(a, LAZY) else a for a in args])
        token = active.set(None)  # hooks in functions that host code calls are not the program's own
        try:
            return fn(*args, **kwargs)
        finally:
            active.reset(token)

    def callm(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(owner, Function) and name == "run":
            return self.call(owner, *args, **kwargs)
        return self.call(getattr(owner, name), *args, **kwargs)

    def fstring(self, *parts: Any) -> str:
        return "".join([p if isinstance(p, str) else self._formatted(i, p) for i, p in enumerate(parts)])

    def _formatted(self, index: int, part: tuple[Any, str, str]) -> str:
        key = (self.tick, index + 1, 0)
        return self._answer(key) if key in self.record else hostops.OPERATIONS["py.format"](*part)

    def iter(self, value: Any, shape: Shape | None = None) -> Iterable[Any]:
        return self._recorded_iter(1, value)

    def _recorded_iter(self, which: int, value: Any) -> Any:
        """Iterates `value`; what was iterated before comes from the record, the rest from the same iterator."""
        key = (self.tick, which, 0)
        return self._continue(self.tick, which, self._answer(key)) if key in self.record else value

    def _continue(self, tick: int, which: int, iterator: Iterator[Any]) -> Iterator[Any]:
        step = 1
        while (tick, which, step) in self.record:
            more, item = self._answer((tick, which, step))
            if not more:
                return
            yield item
            step += 1
        yield from iterator


LAZY = (types.GeneratorType, map, filter, zip, enumerate)
"""Iterators that the program makes and host code would drive."""

_ITERATES = frozenset({any, all, sum, list, tuple, set, dict, enumerate, zip, reversed, iter, next, frozenset})


def _hashable(fn: Any) -> bool:
    return type(fn).__hash__ is not None


def _calls_back(fn: Any) -> bool:
    if getattr(fn, "__name__", "") == "sort" and isinstance(getattr(fn, "__self__", None), list):
        return True
    return _hashable(fn) and fn in reach.HIGHER_ORDER
