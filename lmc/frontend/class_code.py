"""What the code of a class does to classes: whether a class that host code was handed is the same after each run."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import ast
import enum
import functools
import types
from collections.abc import Iterator
from typing import Any

from lmc.frontend import reach
from lmc.frontend.source import node_of

_STORES = ("setattr", "delattr", "__setattr__", "__delattr__")


_ONLY_LOOK = frozenset(
    "isinstance issubclass super type list tuple set iter len sorted enumerate zip reversed max min sum any all str repr".split())  # fmt: skip
"""Builtins that change no class that they are handed, and do not keep it where code of the program has it."""


def may_change_classes(cls: type) -> bool:
    """Whether methods of a class may change it, or another class: what they store goes elsewhere than to their instance.

    Methods of libraries are taken to leave the classes that they are called on alone.
    """
    for base in cls.__mro__:
        if reach.from_library(base):
            continue
        for member in vars(base).values():
            if any(_changes(fn, type(member) is classmethod) for fn in functions_of(member)):
                return True
    return False


def stores_elsewhere(code: types.CodeType) -> bool:
    """Whether a function, with those inside of it, stores attributes of anything but `self`: of a class, for all that is known."""
    node = node_of(code)
    return node is None or any(_stores(x, "self") for x in ast.walk(node))


def is_of_a_library_metaclass(cls: Any) -> bool:
    """Whether a class is an enum or a model of Pydantic: what makes its instances knows it, and they are found inside of others."""
    return type(cls) is enum.EnumType or (type(cls).__module__.startswith("pydantic.") and hasattr(cls, "model_fields"))


def made_with(cls: Any) -> Iterator[type]:
    """The classes whose instances host code makes with those of a class: what the fields of a model are, and what its methods name."""
    fields = [field.annotation for field in cls.model_fields.values()] if is_of_a_library_metaclass(cls) and not issubclass(cls, enum.Enum) else []
    cells = [cell for member in vars(cls).values() for fn in functions_of(member) for cell in fn.__closure__ or ()]
    left: list[Any] = [*fields, *map(_content, cells)]
    while left:
        x = left.pop()
        left += getattr(x, "__args__", ())
        if isinstance(x, type) and x is not cls:
            yield x


def stays_of_its_class(cls: type) -> bool:
    """Whether Python makes no instance of a class one of another class: a run that goes on in the interpreter has a class of its own."""
    return issubclass(cls, (int, tuple, bytes, enum.Enum))


def functions_of(member: Any) -> Iterator[types.FunctionType]:
    """The Python functions of a member of a class."""
    parts = (member.fget, member.fset, member.fdel) if isinstance(member, property) else (member,)
    for part in parts:
        fn = getattr(part, "__func__", part)
        fn = fn.func if isinstance(fn, functools.cached_property) else fn
        if isinstance(fn, types.FunctionType):
            yield fn


def _changes(fn: types.FunctionType, of_class: bool) -> bool:
    if fn.__code__.co_filename.startswith("<") or reach.from_library(fn):
        return False  # what `dataclass` or `enum` puts there
    node = node_of(fn.__code__)
    if node is None:
        return True
    classes = {"__class__"}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        if isinstance(_content(cell), type):
            classes.add(name)
    first = fn.__code__.co_varnames[0] if fn.__code__.co_argcount else ""
    if of_class:
        classes, first = {*classes, first}, ""
    return any(_stores(x, first) or _lets_out(x, classes) for x in ast.walk(node))


def _stores(node: ast.AST, first: str) -> bool:
    """Whether an expression stores an attribute of anything but the instance, named `first`."""
    match node:
        case ast.Attribute(owner, _, ast.Store() | ast.Del()):
            return not _is_named(owner, first)
        case ast.Call(ast.Name(name), [owner, *_]) | ast.Call(ast.Attribute(ast.Name("object"), name), [owner, *_]) if name in _STORES:
            return not _is_named(owner, first)
        case ast.Attribute(owner, name) if name in _STORES:
            return not _is_named(owner, first) and not isinstance(owner, ast.Call) and not _is_named(owner, "object")
        case _:
            return False


def _lets_out(node: ast.AST, classes: set[str]) -> bool:
    """Whether a class goes from here to where it may be changed: it is not only called, compared or read from."""
    match node:
        case ast.Attribute(_, _, ast.Load()) | ast.Compare() | ast.Raise() | ast.comprehension() | ast.For():
            return False
        case ast.Call(ast.Name(name)) if name in _ONLY_LOOK:
            return False
        case ast.Call(_, args, keywords):
            return any(_is_class(x, classes) for x in (*args, *[k.value for k in keywords]))
        case _:
            return any(_is_class(x, classes) for x in ast.iter_child_nodes(node))


def _is_class(node: ast.AST, classes: set[str]) -> bool:
    match node:
        case ast.Call(ast.Name("type"), [_]) | ast.Attribute(_, "__class__", ast.Load()):
            return True
        case ast.Starred(inner):
            return _is_class(inner, classes)
        case ast.Name(name, ast.Load()):
            return name in classes
        case _:
            return False


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # not assigned yet
