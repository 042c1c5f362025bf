"""Types of requested answers: whether reading a type's schema, or an answer of it, runs code of the user's, such as a validator."""

from __future__ import annotations

import dataclasses
import re
import sys
import types
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, is_typeddict

from lmc.frontend.capture.outside import ATOMS, CONTAINERS, is_quiet
from lmc.frontend.capture.unknown import Unknown
from lmc.frontend.host import HostFunction
from lmc.signatures import annotations_of

_LIBRARY = ("builtins", "datetime", "decimal", "uuid", "typing")
_HOOKS = ("__get_pydantic_json_schema__", "__get_pydantic_core_schema__", "model_json_schema", "model_rebuild")
_BUILTIN = re.compile(r"(?:\b(?:str|int|float|bool|list|dict|tuple|None)\b|[\s\[\],|.])*")
"""A quoted annotation with builtin types alone."""


def is_data(asked: Any) -> bool:
    """Return whether an answer of this type is read as JSON, text or a number, and nothing else happens."""
    kind = type(asked)
    if kind in ATOMS or kind in CONTAINERS or asked is Any:
        return True
    if kind is type:
        return asked.__module__ == "builtins"
    origin = get_origin(asked) if is_quiet(kind) and kind.__module__ in ("typing", "types") else None
    return origin is Literal or (origin is not None and all(map(is_data, get_args(asked))))


def is_inert(asked: Any, above: tuple[Any, ...] = ()) -> bool:
    """Return whether the schema of a type, or the description of tools, can be read without running code of the user's."""
    kind = type(asked)
    if kind is Unknown or asked in above or (kind in (list, tuple) and all(is_inert(tool, above) for tool in asked)):
        return True
    if is_data(asked) and kind not in (list, tuple):
        return True
    if kind is HostFunction:
        return is_inert(asked.fn, above)
    if kind is types.FunctionType:
        return "__wrapped__" not in vars(asked) and _are_inert(asked, above)
    if not is_quiet(kind):
        return False
    if issubclass(kind, type):
        return asked.__module__ in _LIBRARY or _is_record(asked, (*above, asked))
    inside = get_args(asked) if kind.__module__ in ("typing", "types") else None
    return type(asked).__module__ == "annotated_types" if inside is None else all(is_inert(a, above) for a in inside)


def _is_record(cls: type, above: tuple[Any, ...]) -> bool:
    """Return whether a dataclass, a TypedDict or a model is inert."""
    pydantic: Any = sys.modules.get("pydantic")
    model = pydantic is not None and issubclass(cls, pydantic.BaseModel)
    own = [base for base in cls.__mro__[:-1] if not base.__module__.startswith(("pydantic.", "typing"))]
    if any(name in vars(base) for base in own for name in _HOOKS):
        return False
    if not model:
        return (dataclasses.is_dataclass(cls) or is_typeddict(cls)) and _are_inert(cls, above)
    fields: Mapping[str, Any] | None = vars(cls).get("__pydantic_fields__")
    if fields is None or not vars(cls).get("__pydantic_complete__") or callable(vars(cls).get("model_config", {}).get("json_schema_extra")):
        return False
    said = [part for field in fields.values() for part in (field.annotation, *field.metadata)]
    return not any(callable(field.json_schema_extra) for field in fields.values()) and all(is_inert(part, above) for part in said)


def _are_inert(annotated: Any, above: tuple[Any, ...]) -> bool:
    """Return whether all annotations of a class or a function are inert."""
    holders = annotated.__mro__[:-1] if isinstance(annotated, type) else (annotated,)
    said = [hint for holder in holders for hint in annotations_of(holder).values()]
    return all(_BUILTIN.fullmatch(hint) if isinstance(hint, str) else is_inert(hint, above) for hint in said)
