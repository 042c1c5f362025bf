"""Programs as files: trace trees as IR text, with what the names in them stand for, and back. Reading one executes nothing.

A file is data: a line that says what it is, and JSON. Host functions are named (module:name, with a hash of their source) and looked
up at the first call. What the program read of the outside while it was traced is in the graphs; where its modules are there, it is
compared, as for a program that was traced here. The source of the program itself is needed only for paths that are not in the file.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import enum
import functools
import hashlib
import importlib
import inspect
import operator
import os
import re
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lmc import codec
from lmc.chat import ChatTemplate, RoleTemplate
from lmc.errors import LmcError, Loc, ProgramError
from lmc.frontend import hostops, reach
from lmc.frontend.counting import outside_key
from lmc.frontend.digest import source_digest
from lmc.frontend.host import HostFunction
from lmc.frontend.interpreter import Function
from lmc.frontend.primitives import caller_loc
from lmc.frontend.raising import Place
from lmc.frontend.reasoning import ReasoningFormat
from lmc.frontend.trace_outside import MISSING, frozen, same
from lmc.frontend.trace_record import SELF, cell_content
from lmc.frontend.tree import Escape, Guard, Node, Return, Switch, Tree, decision_of
from lmc.ir import text
from lmc.ir.core import DEFAULT, Graph, Op, Symbol
from lmc.ir.verifier import verify
from lmc.prompt import RUN_SAMPLING, Part, SamplingParams, Special

VERSION = 1
MAGIC = "lmc-program"
ROLES = ("system", "user", "assistant")

Entry = dict[str, Any]
"""What a name stands for, as data."""


class _Unsayable(Exception):
    """An object that a file cannot hold; the message says why."""


# -- names of objects ----------------------------------------------------------------------------------------------------


def unmarked(x: Any) -> Any:
    """The plain function behind a marked one, a program or a method."""
    fn = x.fn if isinstance(x, HostFunction) else x.func if isinstance(x, Function) else x
    return fn.__func__ if isinstance(fn, types.MethodType) else fn


def _at(module: str, name: str) -> Any:
    """What has this name in a module that is there; MISSING if nothing."""
    found: Any = sys.modules.get(module, MISSING)
    for part in name.split("."):
        found = MISSING if found is MISSING else getattr(found, part, MISSING)
    return found


def _names(x: Any) -> Iterator[tuple[str, str]]:
    """Under which names a function, class or member of an enum may be found."""
    if isinstance(x, enum.Enum):
        yield type(x).__module__, f"{type(x).__qualname__}.{x.name}"
        return
    fn = unmarked(x)
    name = getattr(fn, "__qualname__", None)
    if not isinstance(name, str):
        return
    owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
    module = getattr(fn, "__module__", None) or getattr(owner, "__module__", None)
    if isinstance(module, str):
        yield module, name


def _hash(x: Any) -> str | None:
    """A hash of the source of a function or class, of the wrappers around it, or of an object's class; None for those of libraries, which go by their names."""
    fn = unmarked(x)
    if isinstance(fn, functools.partial):
        return _hash(fn.func)
    if not isinstance(fn, types.FunctionType | type):
        fn = type(fn)
    if reach.from_library(fn) or reach.is_own(fn) or fn.__module__ == "builtins":
        return None
    found = [source_digest(fn)]
    while (inner := getattr(fn, "__wrapped__", None)) is not None and isinstance(fn, types.FunctionType):
        found.append(source_digest(fn.__code__))  # what `source_digest` looks through
        fn = inner
    return "+".join(found)


def _where(x: Any) -> list[Any] | None:
    """File and line of a function or class."""
    fn = unmarked(x)
    try:
        return [inspect.getsourcefile(fn), inspect.getsourcelines(fn)[1]]
    except (OSError, TypeError):
        code = getattr(fn, "__code__", None)
        return None if code is None else [code.co_filename, code.co_firstlineno]


def _shape(x: Any) -> str | None:
    """The parameters of a function, for messages."""
    try:
        return str(inspect.signature(unmarked(x)))
    except (TypeError, ValueError):
        return None


# -- writing -------------------------------------------------------------------------------------------------------------


class _Writer:
    """A program on its way to data. Values that are held twice are written once."""

    def __init__(self, guards: Iterable[Guard], fn: Any) -> None:
        self.guards = list(guards)
        self.values: list[Any] = []
        self.cells: dict[int, int] = {}
        self.places: dict[int, tuple[str, str]] = {}  # where the program finds objects that have no name of their own
        self.celled = {id(cell_content(cell)) for cell in fn.__closure__ or ()}  # data that no module has
        for guard in self.guards:
            if not hostops.is_immutable(guard.value) and (owner := self.owner(guard)) is not None:
                self.places.setdefault(id(guard.value), (owner, guard.name))

    def owner(self, guard: Guard) -> str | None:
        """The module whose global or attribute a guard is about."""
        x = guard.owner
        name = x.get("__name__") if isinstance(x, dict) else x.__name__ if isinstance(x, types.ModuleType) else None
        module = sys.modules.get(name) if isinstance(name, str) else None
        return None if module is None or (module is not x and vars(module) is not x) else module.__name__

    def value(self, x: Any) -> Entry:
        """A value by what it is. Raises _Unsayable."""
        if isinstance(x, re.Pattern):
            return {"pattern": self.value(x.pattern), "flags": x.flags}
        try:
            codec.encode(x)
        except codec.NotData as error:
            raise _Unsayable(f"{error} is not data") from None
        self.values.append(x)
        return {"value": len(self.values) - 1}

    def reference(self, x: Any) -> Entry:
        """An object by its name. Raises _Unsayable."""
        if isinstance(x, types.ModuleType):
            if sys.modules.get(x.__name__) is not x:
                raise _Unsayable(f"the module {x.__name__} cannot be imported by its name")
            return {"module": x.__name__}
        names = [*_names(x), *([self.places[id(x)]] if id(x) in self.places else [])]
        # itself first: `look_up = lmc.host(read)` is found as look_up, and `read` only marks the same function
        where = next((n for n in names if _at(*n) is x), None) or next((n for n in names if _is(_at(*n), x)), None)
        if where is None:
            name = getattr(unmarked(x), "__qualname__", None)
            raise _Unsayable(
                f"{name} is local to a function, so no other process can find it; define it in a module" if name and "<locals>" in name else
                f"a {type(x).__name__} that is neither data nor a global of a module" if not name else f"{name} cannot be found by that name")  # fmt: skip
        entry: Entry = {"ref": f"{where[0]}:{where[1]}", "type": type(unmarked(x)).__name__}
        if (digest := _hash(x)) is not None:
            entry |= {"source": digest, "at": _where(x), "parameters": _shape(x)}
        return entry

    def object(self, x: Any) -> Entry:
        """Anything that a graph names. Raises _Unsayable."""
        if isinstance(x, types.MethodType) and isinstance(x.__self__, HostFunction) and x.__func__ is HostFunction.steady:
            return {**self.object(x.__self__), "steady": True}
        if isinstance(x, HostFunction):
            return {**self.reference(x), "marked": list(x.promises)}
        if isinstance(x, types.MethodType):
            if isinstance(x.__self__, ReasoningFormat):
                f = x.__self__
                return {"reasoning": [f.begin, f.end, f.always, f.also_ends], "method": x.__name__}
            if not isinstance(x.__self__, type):
                raise _Unsayable(f"{x.__qualname__} is bound to a {type(x.__self__).__name__}, an object of this process")
            return {"method": self.reference(x.__self__), "name": x.__name__, "of": self.reference(x.__func__)}
        if isinstance(x, operator.itemgetter | operator.attrgetter | operator.methodcaller) and hostops.is_immutable(x.__reduce__()[1]):
            return {"getter": type(x).__name__, "of": self.value(x.__reduce__()[1])}
        if isinstance(x, enum.Enum):
            return self.reference(x)
        if hostops.is_immutable(x) or (id(x) in self.celled and type(x) in codec.CONTAINERS):
            return self.value(x)
        return self.reference(x)

    def symbol(self, key: Any, x: Any) -> Entry:
        """What a name of a graph stands for. Raises _Unsayable."""
        kind, *rest = cast("tuple[Any, ...]", key) if isinstance(key, tuple) else (None,)
        if kind == "op" and rest[0] in ("self", "outside"):
            return {"lmc": rest[0]}
        if kind == "op" and isinstance(rest[0], str):
            return {"op": rest[0]}
        method = isinstance(x, types.MethodType)
        if kind == "op" and not method:
            if _found_own(f"{x.__module__}:{x.__qualname__}") is not x:
                raise _Unsayable(f"{x.__qualname__} of lmc cannot be found by its name")
            return {"own": f"{x.__module__}:{x.__qualname__}"}
        if kind == "globals":
            module = sys.modules.get(x.get("__name__", ""))
            if module is None or vars(module) is not x:
                raise _Unsayable(f"the globals of {x.get('__name__')!r}, which is no module that can be imported")
            return {"globals": module.__name__}
        if kind == "cell":
            try:
                return {"cell": self.cells.setdefault(id(x), len(self.cells)), "holds": self.object(x.cell_contents)}
            except ValueError:
                raise _Unsayable("a closure variable that has no value now") from None
        if kind == "places":
            return {"places": [list(place) for place in x]}
        if kind == "code":
            raise _Unsayable(f"{x.__qualname__}, a function that the program makes and hands to host code; define it in a module")
        return self.object(x)

    def container(self, x: Any) -> Entry:
        """A list or dict that the program reads: by its name, or as it is if only a closure holds it."""
        try:
            return self.reference(x)
        except _Unsayable:
            return self.value(x)

    def guard(self, guard: Guard) -> Entry:
        """What the program read of the outside. What cannot be looked up elsewhere has no `owner`."""
        entry: Entry = {"what": guard.what, "loc": _place(guard.loc), "name": guard.name}
        try:
            if isinstance(guard.owner, list) or (isinstance(guard.owner, dict) and not guard.name):
                entry["content"] = self.container(guard.owner)
            elif (module := self.owner(guard)) is not None:
                entry["owner"] = {"module": module}
                entry["global"] = isinstance(guard.owner, dict)
            elif isinstance(guard.owner, type | types.FunctionType):
                entry["owner"] = self.reference(guard.owner)
        except _Unsayable:
            pass  # it holds as it was; a path that is not in the file is refused
        try:
            entry["is"] = self.value(guard.value) if hostops.is_immutable(guard.value) else self.reference(guard.value)
        except _Unsayable:
            entry["is"] = {"type": type(guard.value).__name__}
        return entry


def _is(found: Any, x: Any) -> bool:
    """Whether what was found under a name is an object, or marks the same function."""
    if found is x or (isinstance(found, types.MethodType) and found.__func__ is x):
        return True
    if isinstance(x, HostFunction) and found is not MISSING and unmarked(found) is unmarked(x):
        return True
    return isinstance(x, types.BuiltinMethodType | types.MethodWrapperType) and found == x


def _place(loc: Loc | None) -> list[Any] | None:
    return None if loc is None else [loc.file, loc.line, loc.col]


def encoded(
    function: Function, trees: Mapping[tuple[str, ...], Tree], compiled: Mapping[str, Any], template: ChatTemplate
) -> bytes:
    """A program as the bytes of a file. Raises ProgramError that names what cannot be written, and where the program uses it."""
    guards = {key: guard for tree in trees.values() for key, guard in tree.guards.items()}
    writer = _Writer(guards.values(), function.func)
    data: Entry = {
        "program": _function_data(function), "compiled": dict(compiled), "sampling": _sampling(), "template": template_data(template), "capture": capture(),
        "trees": [_tree_data(writer, function, key, tree) for key, tree in trees.items()],
        "outside": [writer.guard(guard) for guard in guards.values()], "values": codec.encode(writer.values),
    }  # fmt: skip
    body = _readable(data).encode("utf-8", "surrogatepass")
    return f"{MAGIC} {VERSION} {_checksum(body)}\n".encode() + body


def _readable(data: Entry) -> str:
    """JSON with one line for each part, each guard, each name and each line of a graph."""

    def part(x: Any, indent: str) -> str:
        if indent.isspace() and isinstance(x, dict) and any(isinstance(y, list | dict) for y in x.values()):
            return "{\n" + ",\n".join(f"{indent}{codec.dumps(k)}: {part(v, _DEEPER.get(indent, ''))}" for k, v in x.items()) + "}"
        if indent.isspace() and isinstance(x, list) and any(isinstance(y, dict) or (isinstance(y, str) and " = " in y) for y in x):
            return "[\n" + ",\n".join(f"{indent}{part(y, _DEEPER.get(indent, ''))}" for y in x) + "]"
        return codec.dumps(x)

    return part(data, " ") + "\n"


_DEEPER = {" ": "  ", "  ": "   ", "   ": "    "}


def _sampling() -> Entry:
    """What gens of a program sample by where nobody says otherwise."""
    return {name: codec.encode(getattr(SamplingParams(), name)) for name in RUN_SAMPLING}


def _checksum(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def _tree_data(writer: _Writer, function: Function, key: tuple[str, ...], tree: Tree) -> Entry:
    graph = tree.graph()
    keys = {name: key for key, name in tree.known_symbols()}
    symbols: Entry = {}
    for op in graph.ops():
        for name in _symbols_of(op):
            if name in symbols:
                continue
            try:
                symbols[name] = writer.symbol(keys.get(name), tree.symbols[name])
            except _Unsayable as error:
                raise ProgramError(f"{function.name} cannot be saved: it uses {error}", loc=op.loc or function.loc) from None
    return {"key": list(key), "watched": tree.watched, "symbols": symbols, "ir": text.print_graph(graph).splitlines()}


def _symbols_of(op: Op) -> Iterator[str]:
    for x in (*op.operands, *op.attrs.values(), *(case for case, _ in op.cases)):
        if isinstance(x, Symbol):
            yield x.name


def _function_data(function: Function) -> Entry:
    state, *own = function.signature.parameters.values()
    return {
        "name": function.name, "module": function.func.__module__, "qualname": function.func.__qualname__, "loc": _place(function.loc), "source": function.digest,
        "doc": inspect.getdoc(function.func), "async": function.is_async, "spec_tokens": function.num_api_spec_tokens, "state": [state.name, int(state.kind)],
        "parameters": [[p.name, int(p.kind), _ANNOTATED.get(p.annotation), *_given(function, p.name, p.default)] for p in own],
        "bound": [[name, *_given(function, name, x)] for name, x in function.bound.items()],
    }  # fmt: skip


_ANNOTATED: Mapping[Any, str] = {**{t: t.__name__ for t in (str, int, float, bool)}, **{n: n for n in ("str", "int", "float", "bool")}}
_TYPES: Mapping[str, type] = {t.__name__: t for t in (str, int, float, bool)}


def _given(function: Function, name: str, x: Any) -> list[Any]:
    """A default or bound argument, if there is one, as data that needs no class of a module."""
    if x is inspect.Parameter.empty:
        return []
    try:
        data = codec.encode(x)
    except codec.NotData as error:
        data, why = None, f"{error} is not data"
    else:
        why = "an object of a class" if any(True for _ in _classes(data)) else None
    if why is not None:
        raise ProgramError(f"{function.name} cannot be saved: {name}={x!r:.60}: {why}; give it at each call", loc=function.loc)
    return [data]


def _classes(data: Any) -> Iterator[str]:
    """The classes that data names, as module:name."""
    if isinstance(data, list):
        for x in data:
            yield from _classes(x)
    elif isinstance(data, dict):
        tagged = data.get(codec.TAG)
        if isinstance(tagged, list) and len(tagged) > 1 and tagged[0] in ("enum", "error", "named", "data", "model"):
            yield tagged[1]
        for x in data.values():
            yield from _classes(x)


def template_data(template: ChatTemplate) -> Entry:
    """A chat template as what it gives for each role after each other one."""
    roles: list[Any] = []
    for role in ROLES:
        try:
            roles.append([role, [[previous, _parts_data(template.begin(role, previous))] for previous in (None, *ROLES)], _parts_data(template.end(role))])
        except LmcError:
            continue  # a template may lack a role
    return {"name": template.name, "stop": list(template.stop), "roles": roles}


def _parts_data(parts: Sequence[Part]) -> list[Any]:
    return [p if isinstance(p, str) else [cast(Special, p).spelling] for p in parts]


def _parts(data: Sequence[Any]) -> tuple[Part, ...]:
    return tuple([_text(p) if not isinstance(p, list) else Special(_text(p[0])) for p in data])


def _template(data: Entry) -> RoleTemplate:
    first: dict[str, tuple[Part, ...]] = {}
    after: dict[tuple[str, str], tuple[Part, ...]] = {}
    roles: dict[str, tuple[tuple[Part, ...], tuple[Part, ...]]] = {}
    for role, begins, end in data["roles"]:
        for previous, parts in begins:
            if previous is None:
                first[role] = _parts(parts)
            else:
                after[previous, role] = _parts(parts)
        roles[role] = first[role], _parts(end)
    return RoleTemplate(_text(data["name"]), roles, (), tuple(map(_text, data["stop"])), first, after)


@functools.cache
def capture() -> str:
    """What tells the tracers of two versions apart: a run goes on in the interpreter only where both count its steps alike."""
    files = sorted(Path(hostops.__file__).parent.glob("*.py"))
    found = hashlib.blake2b(repr(sys.version_info[:2]).encode(), digest_size=12)
    for file in files:
        found.update(file.read_bytes())
    return found.hexdigest()


def write(path: Path, data: bytes) -> None:
    """Writes a file at once: nobody sees half of it. Raises ProgramError."""
    beside: Path | None = None
    try:
        beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        with beside.open("xb") as file:
            file.write(data)
        os.replace(beside, path)
    except (OSError, ValueError) as error:
        if beside is not None and _exists(beside):
            beside.unlink()
        raise ProgramError(f"{str(path)!r} cannot be written: {getattr(error, 'strerror', None) or error}", loc=caller_loc()) from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # of a name that is too long
        return False


# -- reading -------------------------------------------------------------------------------------------------------------


def _text(x: Any) -> str:
    if type(x) is not str:
        raise TypeError(f"{x!r:.40} where text belongs")
    return x


def _loc(data: Any) -> Loc | None:
    return None if data is None else Loc(_text(data[0]), int(data[1]), int(data[2]))


_FRONTEND = frozenset(f"lmc.frontend.{file.stem}" for file in Path(hostops.__file__).parent.glob("*.py"))


def _found_own(name: str) -> Any:
    """A function or class of lmc's frontend, which graphs name."""
    module, _, qualname = name.partition(":")
    if module not in _FRONTEND or not hasattr(importlib.import_module(module), qualname):
        raise ValueError(f"there is no {name} in this lmc")
    found = getattr(sys.modules[module], qualname)
    if not isinstance(found, types.FunctionType | type) or found.__module__ != module:
        raise ValueError(f"{name} is not a function of lmc's frontend")
    return found


_BAD = (codec.BadData, TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError, re.error, OverflowError)
"""What comes of data that is not what it should be. What a program's own modules raise when they are imported is not among them."""


class _Later:
    """Stands for an object of the host until the program is called."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *_: Any) -> Any:
        raise AssertionError("a program is linked before it runs")


class SavedFunction(Function):
    """The program of a file: its parameters, and its source when it is asked for."""

    def __init__(self, data: Entry, file: SavedFile) -> None:
        self.file = file
        self.name, self.module, self.qualname, self.loc = _text(data["name"]), _text(data["module"]), _text(data["qualname"]), _loc(data["loc"])
        self.__name__, self.__qualname__, self.__module__, self.__doc__ = self.name, self.qualname, self.module, data["doc"]
        self._digest = _text(data["source"])
        self.num_api_spec_tokens, self.is_async = data["spec_tokens"], bool(data["async"])
        self._prefix = None
        self.bound = {_text(name): codec.decode(x) for name, x in data["bound"]}
        state = inspect.Parameter(data["state"][0], inspect._ParameterKind(data["state"][1]))  # pyright: ignore[reportPrivateUsage]
        self._takes(inspect.Signature([state, *[_parameter(*p) for p in data["parameters"]]]))

    @property
    def func(self) -> Callable[..., Any]:  # type: ignore[override]
        """The source function. Raises ProgramError where it is not to be had."""
        return self.file.source("the call takes a path that is not in the file")

    @property
    def digest(self) -> str:
        return self._digest


def _parameter(name: str, kind: int, annotation: str | None, *default: Any) -> inspect.Parameter:
    empty = inspect.Parameter.empty
    return inspect.Parameter(
        _text(name), inspect._ParameterKind(kind), default=codec.decode(default[0]) if default else empty,  # pyright: ignore[reportPrivateUsage]
        annotation=empty if annotation is None else _TYPES[annotation])  # fmt: skip


@dataclass
class _TreeData:
    """A tree of a file: for which calls it is, its graph, and what the names in it stand for."""

    key: tuple[str, ...]
    watched: bool
    graph: Graph
    symbols: dict[str, Entry]


class SavedFile:
    """A program's file. `read` executes nothing; `link` looks up the host functions, `source` the program itself."""

    def __init__(self, path: str, data: Entry, content: bytes = b"") -> None:
        self.path, self.content = path, content
        self.linked = False
        self.guards: dict[object, Guard] = {}
        self.function = SavedFunction(data["program"], self)
        compiled = data["compiled"]
        self.opt, self.outputs, self.aggressive = int(compiled["opt"]), compiled["outputs"], bool(compiled["aggressive"])
        if self.opt not in (0, 1) or not (self.outputs is None or all(type(name) is str for name in self.outputs)):
            raise ValueError("options of the compiler that there are not")
        self.sampling = {_text(name): codec.decode(x) for name, x in data["sampling"].items() if x != _sampling()[name]}
        self.template = _template(data["template"])
        self.capture = _text(data["capture"])
        self._values, self._outside = data["values"], [dict(entry) for entry in data["outside"]]
        self.objects: dict[object, tuple[Callable[[], Any], Any]] = {}
        self._data = [self._tree(entry) for entry in data["trees"]]
        self.steady: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self._decoded: list[Any] = []
        self._cells: dict[int, types.CellType] = {}  # closure variables that the program stores or reads as it runs
        self._unbound: list[Entry] = []
        self._source: Callable[..., Any] | None = None
        self._lock = threading.RLock()

    @classmethod
    def read(cls, path: Path) -> SavedFile:
        """Raises ProgramError that says what is wrong with the file and what to do; IRError for a graph that is none."""
        name = str(path)
        try:
            content = path.read_bytes()
        except (OSError, ValueError) as error:
            raise ProgramError(f"{name!r} cannot be read: {getattr(error, 'strerror', None) or error}", loc=caller_loc()) from None
        first, _, body = content.partition(b"\n")
        magic, version, checksum = (*first.decode("ascii", "replace").split(" "), "", "", "")[:3]
        if magic != MAGIC:
            raise ProgramError(f"{name!r} is not a saved program: program.save(path) writes such files", loc=caller_loc())
        if version != str(VERSION):
            raise ProgramError(
                f"{name!r} has format {version:.20} of saved programs, and this lmc reads format {VERSION}: save the program again with this lmc, or load it "
                "with the lmc that wrote it", loc=caller_loc())  # fmt: skip
        if checksum != _checksum(body):
            raise ProgramError(f"{name!r} is damaged: it was cut off or changed since it was written; save the program again", loc=caller_loc())
        try:
            return cls(name, codec.from_bytes(body), content)
        except LmcError:
            raise
        except _BAD as error:
            raise ProgramError(
                f"{name!r} does not hold a program: {type(error).__name__}: {error}; save the program again", loc=caller_loc()) from None  # fmt: skip

    def _tree(self, data: Entry) -> _TreeData:
        graph = text.parse("\n".join(data["ir"]), self.path)
        verify(graph)
        symbols = dict(data["symbols"])
        for op in graph.ops():
            for name in _symbols_of(op):
                if not isinstance(symbols[name], dict):
                    raise TypeError(f"@{name} stands for nothing")
                if symbols[name].keys() & _LMCS:
                    self._object(symbols[name])  # what there is not is refused now
        found = _TreeData(tuple(map(_text, data["key"])), bool(data["watched"]), graph, symbols)
        self._built(found, {name: _Later(name) for name in symbols})  # refuses what is no tree
        return found

    def trees(self) -> Iterator[tuple[tuple[str, ...], Tree]]:
        """The trees to look at, or to run if they are linked."""
        for data in self._data:
            symbols = {name: self._object(x) if self.linked or x.keys() & _LMCS else _Later(name) for name, x in data.symbols.items()}
            yield data.key, self._built(data, symbols)

    def _built(self, data: _TreeData, symbols: Mapping[str, Any]) -> Tree:
        graph = data.graph
        tree = Tree(graph.name, graph.params, watched=data.watched)
        tree.adopt(symbols)
        tree.guards, tree.objects, tree.steady = (self.guards, self.objects, self.steady) if self.linked else ({}, {}, {})
        todo, seen = [(graph.entry.label, tree.root)], set[str]()
        while todo:
            label, node = todo.pop()
            block = graph.block[label]
            if label in seen:
                raise ValueError(f"^{label} has two predecessors")
            seen.add(label)
            node.ops = list(block.ops)
            tree.size += len(block.ops)
            end = block.terminator
            if end.kind == "switch":
                *cases, (last, exit_label) = end.cases
                out = graph.block[exit_label].terminator
                if last is not DEFAULT or out.kind != "exit" or graph.block[exit_label].ops:
                    raise ValueError(f"the switch of ^{label} does not end in an exit")
                seen.add(exit_label)
                live = tuple(out.uses)
                node.end = Switch(end.uses[0], live, int(out.attrs["id"]), Op("switch", end.operands, (), {}, (), end.loc), None)  # type: ignore[arg-type]
                for case, to in cases:
                    key = decision_of(symbols[case.name] if isinstance(case, Symbol) else case)
                    if key is None:
                        raise ValueError(f"a case of ^{label} that is no answer")
                    if isinstance(case, Symbol):
                        tree.adopt_case(key, case.name)
                    arm = node.end.arms[key] = Node()
                    todo.append((to, arm))
            elif end.kind == "exit":
                node.end = Escape(str(end.attr("reason")), int(end.attrs["id"]), end.loc)  # type: ignore[arg-type]
            else:
                node.end = Return(end)
        if seen != graph.block.keys():
            raise ValueError("blocks that nothing leads to")
        return tree

    # -- at the first call

    def link(self) -> None:
        """Looks up what the graphs name. Raises ProgramError that names what is not there, or not what it was."""
        with self._lock:
            if self.linked:
                return
            try:
                self._look_up()
            except _BAD as error:
                raise self._refusal(f"it does not hold a program: {type(error).__name__}: {error}; save the program again") from None
            self.linked = True

    def _look_up(self) -> None:
        for module in sorted({name.partition(":")[0] for name in _classes(self._values)}):
            self._import(module, "it holds objects of that module")
        self._decoded = codec.decode(self._values)
        for data in self._data:
            for entry in data.symbols.values():
                self._object(entry)
        self._unbound = [entry for entry in self._outside if not self._bound(entry, strict=False)]

    def source(self, why: str) -> Callable[..., Any]:
        """The program's own function, for a path that is not in the file. Raises ProgramError with `why` it is needed."""
        with self._lock:
            if self._source is None:
                self._source = self._found_source(why)
            return self._source

    def _found_source(self, why: str) -> Callable[..., Any]:
        fn = self.function
        reason = f"{why}, and what to do there only the source of {fn.name} says: "
        if "<locals>" in fn.qualname:
            raise self._refusal(f"{reason}it is local to a function, so it cannot be found by its name")
        entry = {"ref": f"{fn.module}:{fn.qualname}", "source": fn.digest, "at": _place(fn.loc), "type": "function"}
        found = self._reference(entry, reason)
        if not self.linked:
            self.link()
        self._unbound = [entry for entry in self._unbound if not self._bound(entry, strict=True, why=reason)]
        return unmarked(found)

    def check_counted_alike(self, why: str) -> None:
        """A run that did something on the graph goes on in the interpreter only if both count its steps alike."""
        if self.capture != capture():
            raise self._refusal(f"{why}; another version of lmc or Python has saved it, which cannot go on within a run: save the program again")

    def _refusal(self, message: str, loc: Loc | None = None) -> ProgramError:
        return ProgramError(f"{self.path!r}: {message}", loc=loc)

    def _import(self, module: str, what: str) -> types.ModuleType:
        if module in sys.modules:
            return sys.modules[module]
        try:
            return importlib.import_module(module)
        except Exception as error:  # a module's own code runs here and may raise anything
            raise self._refusal(f"{what}: the module {module} cannot be imported ({type(error).__name__}: {error})") from error

    def _reference(self, entry: Entry, what: str) -> Any:
        """What a reference names, which must be what it was."""
        module, _, name = _text(entry["ref"]).partition(":")
        there = self._import(module, what + f"{module}:{name}")
        found = _at(module, name)
        if found is MISSING:
            raise self._refusal(f"{what}{name} is not in the module {module} ({getattr(there, '__file__', 'built in')}) any more; bring it back, or save the program again")
        if (said := entry.get("source")) is None:
            if "type" in entry and type(unmarked(found)).__name__ != entry["type"]:
                raise self._refusal(f"{what}{module}:{name} is a {type(found).__name__} now, and was a {entry['type']}")
            return found
        if _hash(found) != said:
            at, now = entry.get("at"), _where(found)
            was, has = entry.get("parameters"), _shape(found)
            differs = f"its parameters were {was} and are {has}" if was and has and was != has else "its source differs (comments and blank lines do not count)"
            raise self._refusal(
                f"{what}{module}:{name} is not what it was when the program was saved: {differs}. "
                f"{f'It was at {at[0]}:{at[1]}. ' if at and at[:2] != now else ''}Save the program again, or bring back that source",
                Loc(now[0], now[1]) if now else None)  # fmt: skip
        return found

    def _object(self, entry: Entry) -> Any:
        """What a name of a graph stands for."""
        match entry:
            case {"op": name}:
                return hostops.OPERATIONS[name]
            case {"own": name}:
                return _found_own(name)
            case {"lmc": "self"}:
                return SELF
            case {"lmc": "outside"}:
                return self.objects
            case {"reasoning": fields, "method": "content" | "reasoning" as name}:
                return getattr(ReasoningFormat(*fields), name)
            case {"places": places}:
                return tuple([Place(*place) for place in places])
            case {"value": index}:
                return self._decoded[index]
            case {"pattern": source, "flags": flags}:
                return re.compile(self._object(source), flags)
            case {"getter": "itemgetter" | "attrgetter" | "methodcaller" as name, "of": given}:
                return getattr(operator, name)(*self._object(given))
            case {"cell": number, "holds": content}:
                if number not in self._cells:
                    self._cells[number] = types.CellType(self._object(content))
                return self._cells[number]
            case {"globals": module}:
                return vars(self._import(module, "it uses globals of that module"))
            case {"module": module}:
                return self._import(module, "it uses that module")
            case {"method": owner, "name": name, "of": function}:
                self._reference(function, "of what it calls, ")
                return getattr(self._object(owner), name)
            case {"ref": _}:
                return self._marked(entry, self._reference(entry, "of what it uses, "))
            case _:
                raise self._refusal(f"a name stands for {entry!r:.80}; save the program again")

    def _marked(self, entry: Entry, found: Any) -> Any:
        if "marked" not in entry:
            return found
        pure, ordered, idempotent, timeout = entry["marked"]
        if not isinstance(found, HostFunction) or list(found.promises) != entry["marked"]:
            found = HostFunction(unmarked(found), pure=pure, ordered=ordered, idempotent=idempotent, timeout=timeout)
        return found.steady if entry.get("steady") else found

    # -- the outside

    def _bound(self, entry: Entry, *, strict: bool, why: str = "") -> bool:
        """Connects what the program read of the outside with what is there, so that changes are seen.

        Not strict: as far as its module is there, because the graphs use it. Strict: it must be there and be what it was.
        """
        what, loc = entry["what"], _loc(entry["loc"])
        owner = entry.get("owner") or entry.get("content")
        if owner is None:
            if strict:
                raise self._refusal(f"{why}it depends on {what}, which only the process that saved it had", loc)
            return False
        if not strict and "value" not in owner and not self._is_there(owner["module"] if "module" in owner else owner["ref"].partition(":")[0]):
            return False
        if "content" in entry:
            return self._bound_content(entry, strict, why)
        at = vars(self._object(owner)) if entry.get("global") else self._object(owner)
        name = entry["name"]
        read = (lambda: at.get(name, MISSING)) if isinstance(at, dict) else (lambda: getattr(at, name, MISSING))
        now = read()
        wanted = entry["is"]
        if "value" in wanted or "pattern" in wanted:
            value = self._object(wanted)
            holds = lambda: same(read(), value)
        else:
            try:
                right = type(now).__name__ == wanted["type"] if "ref" not in wanted and "module" not in wanted else self._object(wanted) is now
            except ProgramError:
                if strict:
                    raise
                return False  # of the program, which runs as it was saved
            value, holds = now, lambda: read() is now
            if not right:
                if strict:
                    raise self._refusal(f"{why}{what} does not hold any more; save the program again", loc)
                return False
        if strict and not holds():
            raise self._refusal(f"{why}{what} does not hold any more: it is {now!r:.60}; save the program again, or restore it", loc)
        key = outside_key(at, name)
        self.guards[key] = Guard(what, holds, value, loc, at, name)
        if not hostops.is_immutable(value):
            self.objects[key] = (read, value)
        return True

    def _is_there(self, module: str) -> bool:
        """Whether a module that the program reads is in this process; of a script, whether it is the program's."""
        if module != "__main__":
            return module in sys.modules
        fn = _at(module, self.function.qualname)
        return fn is not MISSING and isinstance(unmarked(fn), types.FunctionType) and source_digest(unmarked(fn)) == self.function.digest

    def _bound_content(self, entry: Entry, strict: bool, why: str) -> bool:
        held, content = self._object(entry["content"]), self._object(entry["is"])
        holds = lambda: type(held) in (list, dict) and same(frozen(held), content)
        if strict and not holds():
            raise self._refusal(f"{why}{entry['what']} does not hold any more; save the program again, or restore it", _loc(entry["loc"]))
        self.guards["content", id(held)] = Guard(entry["what"], holds, content, _loc(entry["loc"]), held)
        self.steady[id(held)] = held, content
        return True


_LMCS = frozenset({"op", "own", "lmc", "reasoning", "places"})
"""What is lmc's own and needs no code of the program."""

