"""What a gen or select is handed, as a trace sees it: read where it is written, as the interpreter reads it.

An argument that is known only in a run, or that may change between runs, goes through one `given` op. A replay finds there
what a list or dict held when the run was at that place.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from lmc.frontend import reach
from lmc.frontend.keys import CHOICES, GIVEN
from lmc.frontend.primitives import gen, gen_int, gen_string, select
from lmc.frontend.values import Value
from lmc.ir.core import Attr, Type
from lmc.ir.core import Value as IRValue
from lmc.prompt import CONSTRAINT_KINDS

if TYPE_CHECKING:
    CallMode = Any

_ASKS: Mapping[Callable[..., Any], tuple[str, ...]] = {fn: fn.__code__.co_varnames[: fn.__code__.co_argcount] for fn in (gen, gen_int, gen_string, select)}


def by_name(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call of `gen`, `select` and the like by their names; None for another function, or a call that it refuses."""
    names = _ASKS.get(fn, ()) if type(fn) is FunctionType else ()
    given = dict(zip(names, args, strict=False))
    return {**given, **kwargs} if names and len(given) == len(args) and given.keys().isdisjoint(kwargs) else None


def unbound(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call of a `functools.partial` of `gen` and the like as a call of that; any other as it is."""
    if type(fn) is not functools.partial or type(fn.func) is not FunctionType or fn.func not in _ASKS:
        return fn, args, kwargs
    return fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}


def as_recorded(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of such a call by name, with what a run found some of them to be."""
    given = by_name(fn, args, kwargs)
    assert given is not None, "a run got past this call"
    return {**given, **recorded}


def as_given(mode: CallMode, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call of `gen`, `select` and the like by name, as they are here: for what can change, what it holds now.

    None for another function, or a call that it refuses.
    """
    given = by_name(fn, args, kwargs)
    if given is None:
        return None
    if "name" in given:
        given["name"] = mode.concrete(given["name"])
    return _selected(mode, given) if fn is select or given.get("choices") is not None else _sampled(mode, given)


def _sampled(mode: CallMode, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a gen."""
    of_run = {name: tuple(x) if type(x) is list and id(x) in mode.local else x for name, x in given.items() if not _is_known(mode, name, x)}
    for together in _TOGETHER:
        if not of_run.keys().isdisjoint(together):
            of_run |= {name: x for name, x in given.items() if name in together and name not in of_run and x is not None}
    if not of_run:
        return given
    changing = any(mode.type_of(x) == "any" for x in of_run.values())
    return given | dict(zip(of_run, _recorded(mode, [*of_run.items()], {"ord": (mode.tick, GIVEN, 0)} if changing else {}), strict=True))


_TOGETHER = frozenset({"max_tokens", "min_tokens"}), frozenset({*CONSTRAINT_KINDS, "dtype"})
"""Arguments that are checked against each other."""


def _is_known(mode: CallMode, name: str, x: Any) -> bool:
    """Whether the trace itself may read an argument: it is the same in each run that the trace is for."""
    if name == "tools" and type(x) in (list, tuple) and (type(x) is tuple or id(x) in mode.local):
        return not reach.holds_value(x) and all(callable(tool) or mode.is_constant(tool) for tool in x)
    return name == "name" or mode.is_constant(x) or mode.steady(x)


def _selected(mode: CallMode, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a select, whose choices are a tuple in the graph."""
    choices: Any = given.get("choices")
    if isinstance(choices, Value) or (type(choices) in (list, dict, set) and id(choices) not in mode.local and not mode.steady(choices)):
        items = mode.simple("py.choices", choices, key=(mode.tick, CHOICES, 0))
        choices = mode.spread(items, choices if isinstance(choices, Value) else items)
    if type(choices) not in (list, tuple):
        return given
    given = {**given, "choices": (choices := tuple(choices))}
    of_run = [("choice", x) for x in choices if isinstance(x, Value) and x.type != "str"]
    of_run += [(short, x) for name, short in _OF_SELECT.items() if isinstance(x := given.get(name), Value)]
    if of_run:
        texts = {id(x): text for (name, x), text in zip(of_run, _recorded(mode, of_run, {}), strict=True) if name == "choice"}
        given["choices"] = tuple([texts.get(id(x), x) for x in choices])
    return given


_OF_SELECT = {"choices_method": "method", "temperature": "temperature"}


def _recorded(mode: CallMode, of_run: Sequence[tuple[str, Any]], attrs: Mapping[str, Attr]) -> list[Any]:
    """What the `given` op gives for arguments that can change; the others as they are, which it checks.

    Of an argument that nothing can have changed since another ask was given it, that is the same value.
    """
    operands = [mode.operand(x) for _, x in of_run]
    names = tuple([name for name, _ in of_run])
    types: list[Type] = ["str" if name == "choice" else x.type if isinstance(x, IRValue) else "any" for name, x in zip(names, operands, strict=True)]
    results = mode.emit("given", operands, {"params": names, **attrs}, types, names)
    found: list[Any] = []
    for (name, x), operand, result in zip(of_run, operands, results, strict=True):
        if name != "choice" and mode.type_of(x) != "any":
            found.append(x)
            continue
        known = mode.given.setdefault((name, operand), (mode.node, mode.foreign, result))
        if known[:2] != (mode.node, mode.foreign):
            known = mode.given[name, operand] = (mode.node, mode.foreign, result)
        found.append(mode.value(known[2], immutable=True))
    return found
