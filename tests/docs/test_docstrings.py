"""Docstrings of public names: each names the parameters that users give, and each public method says what it does."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lmc
from lmc.backend.base import Backend
from lmc.frontend.state import StateGroup

PUBLIC: dict[str, Any] = {name: getattr(lmc, name) for name in lmc.__all__}
CLASSES = {n: c for n, c in PUBLIC.items() if inspect.isclass(c) and not issubclass(c, lmc.LmcError | Warning | enum.Enum)} | {"StateGroup": StateGroup}
FUNCTIONS = {name: f for name, f in PUBLIC.items() if inspect.isfunction(f)}
REFERS = {"gen": lmc.SamplingParams, "gen_int": lmc.gen, "gen_string": lmc.gen}
"""Whose docstring says what parameters mean that a function shares with another."""
MADE_BY_LMC = {lmc.State, lmc.Function, lmc.Program, StateGroup}
"""Classes that users do not construct."""


def words(*docs: str | None) -> set[str]:
    return {word for doc in docs for word in re.findall(r"\w+", doc or "")}


def unnamed(fn: Callable[..., Any], known: set[str], skip: int = 0) -> list[str]:
    """Parameters that are not among known words; those behind `*` and `**` may be shown in signatures, and are described where they are named."""
    code = inspect.unwrap(fn).__code__
    return [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount][skip:] if name not in known]


def methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public methods and properties of a class's own, and not of the protocols that it implements."""
    for name, held in vars(cls).items():
        fn = held.fget if isinstance(held, property) else held.__func__ if isinstance(held, classmethod | staticmethod) else held
        if not name.startswith("_") and inspect.isfunction(fn):
            yield name, fn


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_names_its_parameters(name: str) -> None:
    fn, refers = FUNCTIONS[name], REFERS.get(name)
    known = words(fn.__doc__)
    while refers is not None:
        assert refers.__name__ in known | {"gen"}, f"{name} does not say where its parameters are described"
        known |= words(refers.__doc__)
        refers = REFERS.get(refers.__name__)
    assert not unnamed(fn, known)


@pytest.mark.parametrize("name", [name for name, cls in CLASSES.items() if cls not in MADE_BY_LMC])
def test_a_class_names_what_it_is_made_with(name: str) -> None:
    cls = CLASSES[name]
    assert not unnamed(cls.__init__, words(cls.__doc__, cls.__init__.__doc__), skip=1)


@pytest.mark.parametrize("name", CLASSES)
def test_a_method_says_what_it_does(name: str) -> None:
    cls = CLASSES[name]
    for method, _ in methods(cls):
        said = inspect.getdoc(getattr(cls, method)) or inspect.getdoc(getattr(Backend, method, None))
        assert said, f"{name}.{method} has no docstring"


@pytest.mark.parametrize("name", [name for name, cls in CLASSES.items() if not hasattr(cls, "submit")])  # a backend's are called by lmc
def test_a_method_names_its_parameters(name: str) -> None:
    for method, fn in methods(CLASSES[name]):
        static = isinstance(vars(CLASSES[name])[method], staticmethod)
        assert not unnamed(fn, words(fn.__doc__), skip=not static), method
