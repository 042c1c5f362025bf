"""The outside world while tracing: globals, closure cells, modules, classes and the containers in them.

What is read before any foreign code ran is guarded at entry, and a trace made later reads what the guard says, whatever
the outside has become since. What is read afterwards is a host read of the run.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lmc.backend.base import TakeOver
from lmc.durable.snapshots import ITERATORS, LAZY
from lmc.frontend import hostops, reach
from lmc.frontend.class_code import is_of_a_library_metaclass, stores_elsewhere
from lmc.frontend.counting import outside_key, program_frame
from lmc.frontend.hooks import hooks
from lmc.frontend.host import HostFunction
from lmc.frontend.hostops import Known, native
from lmc.frontend.instrumented import stays
from lmc.frontend.primitives import caller_loc
from lmc.frontend.trace_record import EMPTY, NO_KEY, Recorder, cell_content
from lmc.frontend.tree import Guard, Site, site_of
from lmc.frontend.values import TraceEscape, Value
from lmc.ir.core import exact

MISSING = object()
DICT_VIEWS = tuple(map(type, ({}.keys(), {}.values(), {}.items())))
_STEADY_ITEMS = 256  # of an outside container that is read while tracing


class GuardFailed(TakeOver):
    """The outside changed while the program ran; the run goes on in the interpreter.

    tick  the hook call from which on the program reads what is there now; None: from the first that follows what was done
    """

    def __init__(self, reason: str, tick: int | None = None) -> None:
        super().__init__(reason)
        self.tick = tick


class OutsideMode(Recorder):
    """A recorder that knows how the program reaches what it did not make itself."""

    def glob(self, name: str, value: Any) -> Any:
        names = program_frame().f_globals
        if name not in names:
            return value  # a builtin
        owner = self.tree.symbol(("globals", id(names)), "globals", names)
        return self.outside(
            names, name, f"global {name}", value, lambda: names.get(name, MISSING), lambda: self.read_op("py.getitem", owner, name)
        )

    def free(self, name: str, value: Any) -> Any:
        cell = self.cell(name)
        if cell is None:
            return value  # a variable of a function around this one that is traced too

        def read() -> Any:
            try:
                return cell.cell_contents
            except ValueError:
                return MISSING

        owner = self.tree.symbol(("cell", id(cell)), f"cell.{name}", cell)
        return self.outside(
            cell, "cell_contents", f"closure variable {name}", value, read, lambda: self.read_op("py.getattr", owner, "cell_contents")
        )

    def attribute_of(self, owner: Any, name: str) -> Any:
        """An attribute of a module, class or function."""
        value = getattr(owner, name)
        return self.outside(
            owner, name, f"{owner.__name__}.{name}", value, lambda: getattr(owner, name, MISSING),
            lambda: self.read_op("py.getattr", self.constant(owner), name),
        )  # fmt: skip

    def base(self, base: Any) -> Any:
        """A class that one of the program's own derives from: none whose own code sees the new class before the program has it."""
        for code, what in ((getattr(base, "__init_subclass__", None), "__init_subclass__"), (type(base), "metaclass")):
            if _runs_code(getattr(code, "__func__", code)):
                raise TraceEscape(f"makes a subclass of {getattr(base, '__name__', base)}, whose {what} runs code")
        if isinstance(base, type) and issubclass(base, type) and _runs_code(base):
            raise TraceEscape(f"makes a class of the metaclass {base.__name__}, which runs code")
        return base

    def attribute_of_own(self, owner: Any, name: str) -> Any:
        """An attribute of a function or class that the program made: of this run, or what an outside class behind it has."""
        if (handed := self.handed_away(owner)) is not None:
            return self.host(self.operation("py.getattr"), [handed.ir, name], Known(), "ordered", hint=name)
        if isinstance(owner, enum.EnumType) and name in owner.__members__:
            return native(getattr, owner, name)  # which nothing can make another one
        if name == "__dict__":
            if not isinstance(owner, types.FunctionType):
                raise TraceEscape(f"looks into {owner.__name__}.__dict__")
            self.changes_own(owner)
            self.local[id(owner.__dict__)] = owner.__dict__
            return owner.__dict__
        if isinstance(owner, types.FunctionType):
            return native(getattr, owner, name)
        base = next((base for base in owner.__mro__ if name in base.__dict__), None)
        if base is None or (name.startswith("__") and name.endswith("__")):
            return native(getattr, owner, name)
        member = base.__dict__[name]
        if _runs_code(getattr(type(member), "__get__", None)):
            raise TraceEscape(f"reads {owner.__name__}.{name}, which runs code of {type(member).__name__}")
        if isinstance(member, _FUNCTIONS):
            return native(getattr, owner, name)
        if not self.is_own_definition(base):
            return self.attribute_of(base, name)
        self.still_own(owner)
        return native(getattr, owner, name)

    def still_own(self, owner: Any) -> None:
        """Host code that was handed a class may have changed its attributes."""
        if isinstance(owner, type) and any(id(x) in self.given_away for x in owner.__mro__):
            raise TraceEscape(f"uses an attribute of {owner.__name__}, which host code was handed")

    def defined(self, definition: Any) -> Any:
        if isinstance(definition, type):
            for member in vars(definition).values():
                self.is_data(member)
            if self.is_shared(definition) and (site := site_of(program_frame())) not in self.tree.sites:
                definition = self.shared(definition, site)
        return super().defined(definition)

    def is_shared(self, cls: type) -> bool:
        """Whether traces have a class in common that each of them makes: what it is matters in decisions and gens, not only what it does."""
        return issubclass(cls, BaseException) or (is_of_a_library_metaclass(cls) and not stores_elsewhere(program_frame().f_code))

    def shared(self, cls: type, site: Site) -> type:
        """The class that an earlier trace made here, if it is this one in all but identity: by that a handler knows its exceptions, and a decision members."""
        known = self.tree.classes.setdefault(self.tick, [])
        found = next((other for other in known if _alike(cls, other)), None)
        if found is None:
            known.append(cls)
        self.made_at[id(found or cls)] = site
        return found or cls

    def is_data(self, member: Any) -> None:
        """Something becomes an attribute of a class of the program. What it gives to instances is itself, and not what its own code makes of it."""
        if isinstance(member, Value) and member.type == "any" and member.kind is None:
            binds = self.host(self.own(_binds), [member.ir], Known("bool", total=True), "pure")
            if self.decide(binds, expected=False):
                raise TraceEscape("makes something of the host that gives instances something else, a method or descriptor, part of a class")

    def changes_own(self, owner: Any) -> None:
        """The program is about to change an attribute of a function or class that it made."""
        self.still_own(owner)
        if id(owner) in self.made_at:
            self.tree.wanted |= {self.made_at[id(owner)]}
            raise TraceEscape(f"changes the class {owner.__name__}, of which every run needs one of its own")
        self.changed.add(id(owner))

    def read_op(self, name: str, owner: Any, key: str) -> Value:
        return self.host(self.operation(name), [owner, key], Known(), "ordered", hint=key)

    def outside(self, owner: Any, name: str, what: str, value: Any, read: Callable[[], Any], emit_read: Callable[[], Value]) -> Any:
        """Something of the outside world that the program reads: a guard at entry, or a read in place once foreign code ran."""
        key = outside_key(owner, name)
        if isinstance(value, Value) or id(value) in self.local:
            return value
        data = hostops.is_immutable(value)
        if data and self.foreign:
            return emit_read()
        guard = self.tree.guards.get(key)
        if guard is None:
            holds = (lambda: same(read(), value)) if data else (lambda: read() is value)
            says = f"{what} == {value!r:.60}" if data else f"{what} is {_described(value)}"
            self.tree.guards[key] = Guard(says, holds, value, caller_loc(), owner, name)
        elif data or not self.foreign:
            return guard.value
        elif guard.value is not value:
            raise TraceEscape(f"{what} changed while the program ran")
        if not data:
            self.tree.objects.setdefault(key, (read, value))
            self._check_objects(value)
        return value

    def _check_objects(self, read: Any) -> None:
        """Before the first object of the outside that is read after an effect: whether all those of the tree are still there."""
        if self.checked != self.effects and not (_is_definition(read) and reach.is_own(read)):
            self.checked = self.effects
            symbol = self.tree.symbol(("op", "outside"), "lmc.outside", self.tree.objects)
            self.host(self.own(_unchanged), [symbol, self.tick], Known(total=True), "ordered", key=NO_KEY)

    def steady(self, x: Any) -> bool:
        """Whether an outside container of constants may be read while tracing: guarded at entry, before any foreign code."""
        if self.foreign or type(x) not in (list, dict) or id(x) in self.local or len(x) > _STEADY_ITEMS:
            return False
        content = frozen(x)
        if not hostops.is_immutable(content):
            return False
        guard = self.tree.guards.get(("content", id(x)))
        if guard is None:
            says = f"{type(x).__name__} {x!r:.40} is unchanged"
            self.tree.guards["content", id(x)] = Guard(says, lambda: same(frozen(x), content), content, caller_loc(), x)
            self.tree.steady[id(x)] = (x, content)
        elif not same(guard.value, content):
            raise TraceEscape(f"a {type(x).__name__} of the outside changed while the program ran")
        return True

    def steady_items(self, x: Any, which: int) -> Iterator[Any]:
        """Iterates an outside container that is steady now; checks it at each step once foreign code ran in the loop."""
        return self._steady_steps(x, self.tree.steady[id(x)][1], self.tick, which + 1)

    def _steady_steps(self, x: Any, content: tuple[Any, ...], tick: int, which: int) -> Iterator[Any]:
        for index, item in enumerate(tuple(x)):
            self._still(x, content, index, (tick, which, index + 1))
            yield item
        self._still(x, content, len(content), (tick, which, len(content) + 1))

    def _still(self, x: Any, content: tuple[Any, ...], index: int, key: tuple[int, int, int]) -> None:
        if self.foreign:
            constants = [self.constant(x), self.constant(content), index]
            self.host(self.own(_step), constants, Known(total=True), "ordered", key=key)


_FUNCTIONS = types.FunctionType, staticmethod, classmethod, property


def _alike(a: Any, b: Any, known: type | None = None) -> bool:
    """Whether two classes, or members of theirs, are the same but for the trace that made them, and will stay so. `known`: the second class."""
    if isinstance(a, type) and type(a) is type(b) and a is not b:
        named = a.__bases__ == b.__bases__ and vars(a).keys() == vars(b).keys()
        skip = _MADE_BY.get(type(a)) if type(a) in _MADE_BY else _of_model if is_of_a_library_metaclass(a) else None
        made = skip(a, b) if skip is not None else frozenset[str]()
        return named and made is not None and all(_alike(member, vars(b)[name], b) for name, member in vars(a).items() if name not in made)
    if type(a) is not type(b):
        return False
    if isinstance(a, types.FunctionType):
        if a.__code__ is not b.__code__ or a.__dict__ or b.__dict__ or not (_alike(a.__defaults__, b.__defaults__) and _alike(a.__kwdefaults__, b.__kwdefaults__)):
            return False
        cells = zip(a.__code__.co_freevars, a.__closure__ or (), b.__closure__ or (), strict=True)
        return all(_same_cell(a.__code__, *one, known) for one in cells)
    if isinstance(a, property):
        return all(_alike(getattr(a, part), getattr(b, part), known) for part in ("fget", "fset", "fdel", "__doc__"))
    if isinstance(a, staticmethod | classmethod):
        return _alike(a.__func__, b.__func__, known)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_alike(x, b[name]) for name, x in a.items())
    return a is b or isinstance(a, types.GetSetDescriptorType) or (hostops.is_immutable(a) and exact(a) == exact(b))


def _of_type(a: type, b: type) -> frozenset[str] | None:
    return frozenset()


def _of_enum(a: Any, b: Any) -> frozenset[str] | None:
    """What the metaclass of enums put into two of them, if their members are the same."""
    values = [[(name, member._value_) for name, member in cls.__members__.items()] for cls in (a, b)]
    if not all(hostops.is_immutable(value) for _, value in values[0] + values[1]) or exact(tuple(values[0])) != exact(tuple(values[1])):
        return None
    if isinstance(a._new_member_, types.FunctionType):
        return None  # which may give members more than a value
    return frozenset({*a.__members__, "__new__", *[name for name in vars(a) if name.startswith("_") and name.endswith("_") and name not in _OF_BODY]})


def _of_model(a: Any, b: Any) -> frozenset[str] | None:
    """What the metaclass of Pydantic's models put into two of them, if their fields are the same and no functions of their own check these."""
    fields = [{name: (field.annotation, repr(field)) for name, field in cls.model_fields.items()} for cls in (a, b)]
    if fields[0] != fields[1] or a.model_config != b.model_config:
        return None
    for cls in (a, b):
        checked = cls.__pydantic_decorators__ != type(cls.__pydantic_decorators__)() or cls.__private_attributes__
        if checked or not cls.__pydantic_complete__ or not all(map(_is_plain_field, cls.model_fields.values())):
            return None
    return frozenset({"model_config", *[name for name in vars(a) if name.startswith(("__", "_abc_")) and name not in _OF_BODY]})


def _is_plain_field(field: Any) -> bool:
    """Whether a field's default is a constant, or made anew for each instance: Pydantic copies a list or dict that stands there."""
    default = frozen(field.default) if type(field.default) in (list, dict) else field.default
    return field.default_factory in (None, list, dict, set) and (field.is_required() or field.default_factory is not None or hostops.is_immutable(default))


_OF_BODY = frozenset({
    "__init__", "__str__", "__repr__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__call__", "__len__", "__iter__", "__getitem__",
    "__contains__", "__format__", "__bool__", "_missing_",
})  # fmt: skip
"""Names with underscores of what a class body may define for itself."""
_MADE_BY: dict[type, Callable[[Any, Any], frozenset[str] | None]] = {type: _of_type, enum.EnumType: _of_enum}
"""What a metaclass puts into two classes that are alike, by the metaclass; None where they are not."""


def _same_cell(code: types.CodeType, name: str, a: types.CellType, b: types.CellType, known: type | None) -> bool:
    """Whether what two functions of one code close over is the same for good. The second one's class has its name already, the first one's will have it."""
    if a is b or name == "__class__":
        return True
    one, other = cell_content(a), cell_content(b)
    if one is hooks or other is hooks:
        return one is other
    same = one is other and (hostops.is_immutable(one) or isinstance(one, type))
    named = one is EMPTY and known is not None and other is known
    return (same or named) and stays(code, name)


def _binds(x: Any) -> bool:
    """Run time: whether an attribute of a class has a say in what instances get."""
    return hasattr(type(x), "__get__") or hasattr(type(x), "__set_name__")


def _runs_code(x: Any) -> bool:
    """Whether a function or metaclass may do what is seen from outside: Python code that is of no library."""
    python = isinstance(x, types.FunctionType) or (isinstance(x, type) and x.__module__ != "builtins")
    return python and not reach.from_library(x)


def frozen(x: list[Any] | dict[Any, Any]) -> tuple[Any, ...]:
    """What a list or dict holds, in order."""
    return tuple(x.items()) if isinstance(x, dict) else tuple(x)


def is_enum_member(x: Any) -> bool:
    return isinstance(x, enum.Enum)


def is_lazy(x: Any) -> bool:
    """Whether iterating an object uses it up, or shows what it was made from."""
    return isinstance(x, (*LAZY, *DICT_VIEWS, *ITERATORS))


def same(a: Any, b: Any) -> bool:
    """Equal, with equal types at every depth (1, 1.0 and True are three values, 0.0 and -0.0 two)."""
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(map(same, a, b))
    return a == b if type(a) is str else exact(a) == exact(b)


def _described(x: Any) -> str:
    return getattr(x, "__qualname__", None) or getattr(x, "__name__", None) or f"a {type(x).__name__}"


def _is_definition(x: Any) -> bool:
    """What stands for itself all through a run: functions, classes, modules, members of enums, programs."""
    return isinstance(x, types.FunctionType | type | types.ModuleType | types.BuiltinFunctionType | HostFunction) or reach.is_language(x) or is_enum_member(x)


def _unchanged(objects: Mapping[object, tuple[Callable[[], Any], Any]], tick: int) -> None:
    """Run time: the outside still has the objects that the trace saw, so far as the program reads them."""
    for read, value in tuple(objects.values()):
        if read() is not value:
            raise GuardFailed(f"finds something else than {_described(value)}, which was there when it began", tick)


def _step(container: Any, content: tuple[Any, ...], index: int) -> tuple[bool, Any]:
    """Run time: the step of an iteration over a container that still is as the trace saw it."""
    now = frozen(container)
    if not same(now, content):
        raise GuardFailed(f"a {type(container).__name__} changed while it was iterated")
    return (True, tuple(container)[index]) if index < len(content) else (False, None)
