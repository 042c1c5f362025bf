"""Programs as files: compile options, graph, profile, and the name of the function. Reading one executes nothing.

A file is data: a line that identifies the format, and JSON. The function is imported by its name at the first call, and
its source must be unchanged.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import json
import operator
import os
import pkgutil
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc import codec
from lmc.errors import LmcError, Loc, ProgramError, message_of
from lmc.frontend import aio
from lmc.frontend.digest import source_digest
from lmc.frontend.expressions import caller_loc
from lmc.frontend.interpreter import Function
from lmc.ir import text
from lmc.ir.core import Graph
from lmc.ir.parser import parse
from lmc.ir.verifier import verify
from lmc.runahead.profile import read_measured

if TYPE_CHECKING:
    from lmc.runahead.compiled import CompiledProgram

VERSION = 2
MAGIC = "lmc-program"
_LONGEST_HEADER, _MOST = 200, 256 << 20  # bytes
_BAD = (KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, codec.BadData)
"""Exceptions of reading a file that is not a saved program."""
_ANNOTATIONS: Mapping[str, type] = {t.__name__: t for t in (str, int, float, bool)}


# -- writing -----------------------------------------------------------------------------------------------------------


def write(path: Path, program: CompiledProgram) -> None:
    """Write a program to a file atomically: readers never see a partial one. Raises ProgramError."""
    if path.is_dir():
        raise ProgramError(f"{str(path)!r} cannot be written: it is a folder; name a file in it", loc=caller_loc())
    data = {
        "program": _function(program.function),
        "compiled": {
            "opt": program.opt, "outputs": None if program.outputs is None else list(program.outputs), "aggressive": program.aggressive,
            "ahead": str(program.ahead),
        },
        "graph": text.print_graph(program.graph()).splitlines(),
        "measured": program.profile.measured(),
    }  # fmt: skip
    body = json.dumps(data, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
    content = f"{MAGIC} {VERSION} {_checksum(body)}\n".encode() + body
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except (OSError, ValueError) as error:
        beside.unlink(missing_ok=True)
        why = getattr(error, "strerror", None) or error if path.parent.is_dir() else f"there is no folder {path.parent}"
        raise ProgramError(f"{str(path)!r} cannot be written: {why}", loc=caller_loc()) from None


def _function(function: Function) -> dict[str, Any]:
    """Return the name of a program's function, a digest of its source, and its parameters."""
    func: Any = function.func
    if isinstance(function, SavedFunction):
        return function.data
    if function.given:
        raise ProgramError(
            f"{function.described} cannot be saved with options ({', '.join(function.given)}), which belong to a call: save it without, and give them to "
            "what lmc.load returns", loc=caller_loc())  # fmt: skip
    qualname = getattr(func, "__qualname__", None)
    if not isinstance(func, types.FunctionType) or not isinstance(qualname, str) or "<" in qualname or not _has(sys.modules.get(func.__module__), qualname):
        raise ProgramError(
            f"{function.described} cannot be saved: no other process could find its function by a name; define it at the top of a module", loc=caller_loc()
        )
    state, *parameters = function.signature.parameters.values()
    return {
        "name": function.name, "module": func.__module__, "qualname": qualname, "file": func.__code__.co_filename, "line": func.__code__.co_firstlineno,
        "doc": func.__doc__, "source": function.digest, "async": function.is_async, "spec_tokens": function.num_api_spec_tokens,
        "state": [state.name, int(state.kind)], "parameters": [_parameter_data(function, p) for p in parameters],
        "bound": [[name, _encoded(function, name, x)] for name, x in function.bound.items()],
    }  # fmt: skip


def _has(module: types.ModuleType | None, qualname: str) -> bool:
    """Return whether a module has this name, as it has not for what `exec` made; True if it is not imported."""
    try:
        _ = module and operator.attrgetter(qualname)(module)
    except AttributeError:
        return False
    return True


def _parameter_data(function: Function, p: inspect.Parameter) -> list[Any]:
    annotation = p.annotation if isinstance(p.annotation, str) else getattr(p.annotation, "__name__", None)
    default = [] if p.default is p.empty else [_encoded(function, p.name, p.default)]
    return [p.name, int(p.kind), annotation if annotation in _ANNOTATIONS else None, *default]


def _encoded(function: Function, name: str, x: Any) -> Any:
    try:
        return codec.encode(x)
    except codec.NotData as error:
        raise ProgramError(f"{function.described} cannot be saved: what its parameter {name!r} holds is not data: {error}", loc=caller_loc()) from None


def _checksum(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=12).hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------------


class SavedFile:
    """A program's file. `read` executes nothing."""

    def __init__(self, path: str, data: Mapping[str, Any]) -> None:
        self.path = path
        compiled = data["compiled"]
        self.opt, self.outputs, self.aggressive, self.ahead = int(compiled["opt"]), compiled["outputs"], bool(compiled["aggressive"]), str(compiled["ahead"])
        if self.opt not in (0, 1) or not (self.outputs is None or all(type(name) is str for name in self.outputs)):
            raise ValueError("unknown options of the compiler")
        self.measured = read_measured(data["measured"])
        self.graph: Graph = parse("\n".join(data["graph"]), f"the graph in {path}")  # a file of its own: its lines are not those of this one
        verify(self.graph)
        self.function = SavedFunction(dict(data["program"]), path)

    @classmethod
    def read(cls, path: Path) -> SavedFile:
        """Read the file. Raises ProgramError that says what is wrong with it and what to do; IRError for an invalid graph."""
        name = str(path)
        try:
            with path.open("rb") as file:
                first = file.readline(_LONGEST_HEADER)
                body = file.read(_MOST + 1) if first.startswith(MAGIC.encode()) else b""  # another file, or a device, may have no end
        except (OSError, ValueError) as error:
            raise ProgramError(f"{name!r} cannot be read: {getattr(error, 'strerror', None) or error}", loc=caller_loc()) from None
        if len(body) > _MOST:
            raise ProgramError(f"{name!r} is too large for a saved program: more than {_MOST >> 20} MiB", loc=caller_loc())
        magic, version, checksum = (*first.decode("ascii", "replace").rstrip("\n").split(" "), "", "", "")[:3]
        if magic != MAGIC:
            raise ProgramError(f"{name!r} is not a saved program: program.save(path) writes such files", loc=caller_loc())
        if version != str(VERSION):
            raise ProgramError(
                f"{name!r} has format {version:.20} of saved programs, and this lmc reads format {VERSION}: save the program again with this lmc, or load it "
                "with the lmc that wrote it", loc=caller_loc())  # fmt: skip
        if checksum != _checksum(body):
            raise ProgramError(f"{name!r} is damaged: it was cut off or changed since it was written; save the program again", loc=caller_loc())
        try:
            return cls(name, json.loads(body))
        except LmcError:
            raise
        except _BAD as error:
            why = f"{type(error).__name__}: {message_of(error):.200}"
            raise ProgramError(f"{name!r} does not hold a program: {why}; save the program again", loc=caller_loc()) from None


class SavedFunction(Function[..., Any]):
    """The program of a file: its parameters, and its function, imported at the first call."""

    def __init__(self, data: dict[str, Any], path: str) -> None:
        self.data, self.path = data, path
        self.name, self.module, self.qualname = _text(data["name"]), _text(data["module"]), _text(data["qualname"])
        self.loc = Loc(_text(data["file"]), int(data["line"]))
        self.__name__, self.__qualname__, self.__module__, self.__doc__ = self.name, self.qualname, self.module, data["doc"]
        self.num_api_spec_tokens, self.is_async = data["spec_tokens"], bool(data["async"])
        self._prefix, self._found, self.is_method, self._wrapper = None, None, False, None
        self.given, self._without_options = {}, None
        self._source = _text(data["source"])
        self._decode(_or_later)

    def _decode(self, decode: Callable[[Any], Any]) -> None:
        """Set the parameters and what is bound."""
        self.bound = {_text(name): decode(x) for name, x in self.data["bound"]}
        state = inspect.Parameter(self.data["state"][0], inspect._ParameterKind(self.data["state"][1]))  # pyright: ignore[reportPrivateUsage]
        self._takes(inspect.Signature([state, *[_parameter(decode, *p) for p in self.data["parameters"]]]))

    @property
    def digest(self) -> str:
        return self._source

    def arguments(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}) -> inspect.BoundArguments:
        if any(isinstance(x, DecodedLater) for x in (*self.defaults.values(), *self.bound.values())):
            assert self.func is not None  # imports the module
        return super().arguments(args, kwargs)

    def _decoded(self, data: Any) -> Any:
        """Decode a value, with the module of the function imported. Raises ProgramError."""
        try:
            return codec.decode(data)
        except codec.BadData as error:
            raise ProgramError(f"{self.path!r}: what a parameter of {self.described} holds cannot be read: {error}", loc=caller_loc()) from None

    @property
    def func(self) -> Callable[..., Any]:  # type: ignore[override]
        """Return the function, imported by its name. Raises ProgramError if it cannot be found, or its source has changed."""
        if self._found is None:
            found = self._import()
            self._decode(self._decoded)
            self._found = found
        return self._found

    def _import(self) -> Callable[..., Any]:
        name = f"{self.module}:{self.qualname}"
        found = _looked_up(self.module, self.qualname, str(self.data["file"]))
        found = found.func if isinstance(found, Function) else found
        if not isinstance(found, types.FunctionType):
            raise ProgramError(
                f"{self.path!r} is a program whose function is {name} ({self.loc}), and that is not there: "
                "import it under this name, or save the program again",
                loc=caller_loc(),
            )
        if source_digest(found) != self.digest or aio.is_async(found) != self.is_async:
            raise ProgramError(
                f"{self.path!r} was saved when {name} had another source ({self.loc}): save the program again, or compile it as it is now", loc=caller_loc()
            )
        return found


def _looked_up(module: str, qualname: str, file: str) -> Any:
    """Return the object of a name in a module, which is imported; for a script, in its file."""
    try:
        if module == "__main__" and not hasattr(sys.modules["__main__"], qualname.split(".")[0]) and os.path.isfile(file):
            spec = importlib.util.spec_from_file_location("lmc_saved_program", file)
            if spec is not None and spec.loader is not None:
                script = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(script)
                return functools.reduce(getattr, qualname.split("."), script)
        return pkgutil.resolve_name(f"{module}:{qualname}")
    except (ImportError, AttributeError, ValueError):
        return None


def _text(x: Any) -> str:
    if type(x) is not str:
        raise TypeError(f"{x!r:.40} where a text should be")
    return x


class DecodedLater:
    """Replaces a default or bound argument of a class whose module is imported with the function."""


def _or_later(data: Any) -> Any:
    try:
        return codec.decode(data)
    except codec.NotImported:
        return DecodedLater()


def _parameter(decode: Callable[[Any], Any], name: str, kind: int, annotation: str | None, *default: Any) -> inspect.Parameter:
    empty = inspect.Parameter.empty
    return inspect.Parameter(
        _text(name), inspect._ParameterKind(kind), default=decode(default[0]) if default else empty,  # pyright: ignore[reportPrivateUsage]
        annotation=empty if annotation is None else _ANNOTATIONS[annotation])  # fmt: skip
