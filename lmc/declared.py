"""Arguments that a file or a command gives as JSON, checked against the annotations of the program, and as the objects that
it declares.

    def bill(s, invoice: Invoice, due: date)        {"invoice": {"n": 3}, "due": "2026-01-31"}  ─►  Invoice(n=3), date(2026, 1, 31)

What JSON itself has stays as it is, and so does what pydantic cannot build; `lmc serve` refuses the same, and gives a program
the same objects. Without pydantic, which only such classes need, nothing is checked.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from decimal import Decimal
from enum import Enum
from functools import cache
from inspect import Parameter
from typing import Any, get_args
from uuid import UUID

from lmc.extras import missing

WRITTEN = (datetime.date, datetime.time, datetime.timedelta, Decimal, UUID)
"""Classes whose objects are texts in JSON."""

Build = Callable[[Any], Any]


def builders(parameters: Mapping[str, Parameter]) -> dict[str, Build]:
    """Return what checks and builds the argument of each parameter that is annotated. It raises ValueError."""
    return {name: _builder(name, p.annotation) for name, p in parameters.items() if p.annotation not in (p.empty, Any) and not isinstance(p.annotation, str)}


def _has_objects(annotation: Any) -> bool:
    if isinstance(annotation, type) and (issubclass(annotation, (Enum, *WRITTEN)) or is_dataclass(annotation) or hasattr(annotation, "model_json_schema")):
        return True
    return any(map(_has_objects, get_args(annotation)))


def _builder(name: str, annotation: Any) -> Build:
    has_objects = _has_objects(annotation)
    adapter = cache(lambda: _adapter(name, annotation))  # not before it is needed: to import pydantic takes 90 ms

    def build(value: Any) -> Any:
        if type(value) is annotation or adapter() is None:
            return value
        made = adapter().validate_json(json.dumps(value), strict=True)
        return made if has_objects else value

    return build


def _adapter(name: str, annotation: Any) -> Any:
    """Return pydantic's reader of a type, or None: the program gets the JSON."""
    try:
        from pydantic import PydanticUserError, TypeAdapter
    except ImportError:
        if _has_objects(annotation):
            raise missing(f"the parameter {name!r}, whose type is a class,", ["pydantic"], "types") from None
        return None
    try:
        adapter: Any = TypeAdapter(annotation)
    except PydanticUserError:  # it has no schema
        return None
    return adapter if adapter.pydantic_complete else None  # else names in it are not defined


def problem(error: ValueError) -> str:
    """Return what is wrong with a value, of pydantic's error."""
    first: Any = getattr(error, "errors", lambda: [{"loc": (), "msg": str(error)}])()[0]
    return ": ".join([*(".".join(map(str, first["loc"])),) * bool(first["loc"]), first["msg"]])
