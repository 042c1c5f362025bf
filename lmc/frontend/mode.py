"""What each hook of instrumented code does when nothing is traced: plain Python."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from lmc.frontend import aio, hostops
from lmc.frontend.hostops import Shape
from lmc.frontend.raising import caused
from lmc.frontend.state import State


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
