"""Values of an evaluation: unknown values with the answers they depend on, functions, classes and objects of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from lmc.errors import Loc
from lmc.frontend.values import Symbolic

if TYPE_CHECKING:
    from lmc.frontend.capture.code import Code
    from lmc.frontend.capture.evaluation import Evaluation, Frame

Deps = frozenset[Any] | None
"""Addresses of the answers that a value depends on; None: only Python can tell it."""
NOTHING: frozenset[Any] = frozenset()


def join(*deps: Deps) -> Deps:
    """Return the dependencies of knowing all of several values."""
    found = NOTHING
    for each in deps:
        if each is None:
            return None
        if each is not found:
            found = found | each if found else each
    return found


class Unknown(Symbolic):
    """An unknown value. `deps` are the addresses of the answers it depends on, None: only Python can tell it. Native code that touches it raises
    Undecided.

    note    the domain's data: a value of the graph
    begins  known beginning of its text, if it is a concatenation
    some    it is not None, as answers and texts never are
    """

    __slots__ = ("begins", "deps", "note", "some")

    def __init__(self, deps: Deps = None, note: Any = None, begins: str = "", some: bool = False) -> None:
        self.deps, self.note, self.begins, self.some = deps, note, begins, some

    def __deepcopy__(self, _: Any) -> Unknown:
        return self

    def _touched(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise Undecided(self.deps)


for _name in (
    "str repr format bool hash eq ne lt le gt ge len iter next contains getitem setitem delitem call int float index complex round neg pos invert abs "
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow lshift rlshift rshift rrshift or ror and rand xor rxor matmul rmatmul"
).split():
    setattr(Unknown, f"__{_name}__", Unknown._touched)


class Stop(BaseException):
    """The evaluation cannot go on: a limit, or something unsupported that it cannot skip. Never the program's error."""

    def __init__(self, reason: str, loc: Loc | None = None) -> None:
        super().__init__(reason)
        self.reason, self.loc = reason, loc


class NotFollowed(Stop):
    """An unsupported statement or expression: a helper that has one is unknown code, a program is evaluated up to it."""


class Raised(BaseException):
    """An exception of the program: a builtin one or lmc's as it is, one of the program's own classes as an `Object`."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


def raised(kind: type[Exception]) -> Raised:
    """Return an exception that Python raises with a message of its own, which is unknown."""
    return Raised(kind(Unknown(None)))


class Undecided(BaseException):
    """A value that must be known is not: a key that decides an order, a length, the next item of an iterator, the `test` of a loop."""

    def __init__(self, deps: Deps, test: Unknown | None = None) -> None:
        super().__init__(deps)
        self.deps, self.test = deps, test


class Abandoned(BaseException):
    """It is unknown whether control leaves `target` (a loop or a function without requests) here, so it is skipped."""

    def __init__(self, target: object, deps: Deps) -> None:
        super().__init__(target)
        self.target, self.deps = target, deps


@dataclass(eq=False, repr=False, slots=True)
class Closure:
    """A function of the program: its code, its defining frame, its defaults, its globals. `own` is the outside function
    that it represents; `is_cached`: it is behind `functools.cache`."""

    code: Code
    outer: Frame | None
    name: str
    defaults: tuple[Any, ...]
    kwdefaults: Mapping[str, Any]
    module: dict[str, Any]
    own: Any = None
    is_cached: bool = False
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])


class Object:
    """An instance of `cls`, a plain class with source; `args` are those of an exception. Its type stands in for `cls`: native code calls the special
    methods of the program's class, which are evaluated."""

    __slots__ = ("args", "attributes", "cls", "ev", "outside")

    def __new__(cls, ev: Evaluation, of: Any, attributes: dict[str, Any], args: tuple[Any, ...] = (), outside: Any = None) -> Object:
        return object.__new__(_stand_in(of))

    def __init__(self, ev: Evaluation, of: Any, attributes: dict[str, Any], args: tuple[Any, ...] = (), outside: Any = None) -> None:
        self.ev, self.cls, self.attributes, self.args, self.outside = ev, of, attributes, args, outside

    def __str__(self) -> str:
        return str(self.args[0] if len(self.args) == 1 else self.args or "") if self.ev.is_exception(self) else repr(self)

    def __repr__(self) -> str:
        raise Undecided(None)  # it has an address

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise Undecided(None)  # copies are unknown

    def __getattr__(self, name: str) -> Any:
        return self.ev.attribute(self, name)


_EXACT = frozenset({f"__{name}__" for name in "bool bytes complex contains float format hash index int iter len repr str".split()})
"""Special methods whose result must be known."""
_EVALUATORS = frozenset({f"__{name}__" for name in (
    "class dict weakref slots module doc qualname annotations new init post_init init_subclass subclasshook class_getitem set_name match_args "
    "getattribute getattr setattr delattr get set delete dir sizeof reduce reduce_ex getstate setstate del"
).split()})  # fmt: skip
"""Special attributes that the evaluator treats itself; what else a class defines, native code may call."""


def _special(name: str) -> Callable[..., Any]:
    """Return a method through which native code calls an object's."""

    def method(self: Object, *args: Any) -> Any:
        fn = self.ev.special(self, name)
        if fn is None:  # generated by `dataclasses`: it reads the fields
            return getattr(self.cls, name)(self, *args)
        try:
            found = self.ev.call(fn, list(args), {})
        except Raised as raised:
            if name == "__next__" and type(raised.value) is StopIteration:
                raise StopIteration(raised.value.value) from None
            raise
        except Undecided as undecided:
            if name == "__next__":
                self.ev.lose(self, undecided.deps)
            raise
        if isinstance(found, Unknown) and name in _EXACT:
            raise Undecided(found.deps)
        return found

    return method


def _is_special(name: str, value: Any) -> bool:
    return name[:2] == name[-2:] == "__" and name not in _EVALUATORS and (value is None or callable(value))


@lru_cache(4096)
def _stand_in(cls: Any) -> type[Object]:
    """Return the type of the instances of a class."""
    made: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__ != "builtins":
            made.update({name: None if value is None else _special(name) for name, value in vars(base).items() if _is_special(name, value)})
    return type(cls.__name__, (Object,), {"__slots__": (), "__qualname__": cls.__qualname__, **made})


@dataclass(eq=False, repr=False, slots=True)
class BoundMethod:
    """A function with its receiver: a `Closure` and an object, or a name and a value of a builtin type or of lmc's."""

    function: Any
    receiver: Any


@dataclass(eq=False, repr=False, slots=True)
class Super:
    """`super()`: attributes of `receiver` after the class `after` in its resolution order."""

    after: Any
    receiver: Any


@dataclass(eq=False, repr=False, slots=True)
class Partial:
    """A function of the evaluation's own, such as a `functools.partial`: `call(args, kwargs)`. Native code may call it, too."""

    call: Callable[[list[Any], dict[str, Any]], Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call([*args], kwargs)

    def __deepcopy__(self, _: Any) -> Partial:
        return self


@dataclass(eq=False, slots=True)
class UndecidedItems:
    """The items of a comprehension of which it is undecided whether they are in it.

    asks   whether it may make requests: else there is nothing to find behind them
    skips  it goes on behind them: all its items are taken
    """

    asks: Callable[[], bool]
    skips: bool = False
    deps: list[Deps] = field(default_factory=list[Deps])

    def skip(self, deps: Deps) -> None:
        if not (self.skips and (self.deps or self.asks())):
            raise Undecided(deps)
        self.deps.append(deps)


class LazyItems:
    """An iterator: items of a generator or of `map`, `zip`, `iter` …, made on demand.

    of       its code, if it is of the program: a frame and effects
    sources  the iterators and functions that it is made of
    rest     of a generator expression: the effects of what it leaves out for undecided items, and those
    """

    __slots__ = ("_ev", "_items", "_of", "_rest", "_sources", "_stuck", "generator", "over")

    def __init__(
        self, ev: Evaluation, items: Iterable[Any], generator: Any = None, *, of: tuple[Frame, Any] | None = None, sources: Sequence[Any] = (),
        rest: tuple[Any, UndecidedItems] | None = None,
    ) -> None:  # fmt: skip
        self._ev, self._items = ev, iter(items)
        self.generator = generator  # whose items they are
        self._of, self._sources, self._rest = of, sources, rest
        self._stuck: Undecided | None = None
        self.over = False

    def __del__(self) -> None:
        if self.generator is not None:
            self.generator.drop()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._ev.count(1)  # native code may go through it, too
        if self._stuck is not None:
            raise self._stuck
        try:
            return next(self._items)
        except StopIteration:
            self.over = True
            raise
        except Undecided as undecided:
            self.abandon(undecided.deps)
            raise

    def abandon(self, deps: Deps) -> None:
        """Take no more items: it is undecided how many Python takes."""
        self._stuck = Undecided(deps)
        if self._of is not None:
            self._ev.havoc(*self._of, deps)
        self._ev.left_off(self._sources, deps)

    def may_ask(self) -> bool:
        """Return whether making its items may make requests."""
        return (self._of is not None and self._ev.may_ask(*self._of)) or self._ev.may_ask_in(self._sources)

    def each(self) -> Iterator[Any]:
        """Yield all its items, for what goes on to their end. Raises Undecided after the last one, if it is undecided which are in it."""
        if self._rest is None:
            yield from self
            return
        effects, undecided = self._rest
        undecided.skips = self._ev.domain.skips
        yield from self
        if undecided.deps:
            raise Undecided(join(*undecided.deps) if self._of is None else self._ev.left_out(self._of[0], effects, undecided.deps))


@dataclass(eq=False, repr=False, slots=True)
class Coroutine:
    """A coroutine or a task: evaluated once, when it is awaited.

    name   by which it is numbered as a task; None: it is one, or would be none of its own
    calls  whether it does nothing but call one sub-program
    """

    begin: Callable[[], Any] | None
    name: str | None = None
    calls: bool = False
    _outcome: tuple[Any, Raised | None] = (None, None)

    def settle(self) -> None:
        """Evaluate it, if that is not done yet; keep the exception it raises."""
        run, self.begin = self.begin, None
        if run is not None:
            try:
                self._outcome = run(), None
            except Raised as raised:
                self._outcome = None, raised

    def result(self) -> Any:
        self.settle()
        value, raised = self._outcome
        if raised is not None:
            raise raised
        return value


@dataclass(eq=False, repr=False, slots=True)
class Manager:
    """A context manager: the value of entering, and the exit (`leave(exception or None)` returns whether it is suppressed)."""

    enter: Callable[[], Any]
    leave: Callable[[Any], bool]
