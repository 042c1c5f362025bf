"""Arguments that a file or a command gives as JSON, as the objects that the program declares.

    def bill(s, invoice: Invoice, due: date)        {"invoice": {"n": 3}, "due": "2026-01-31"}  ─►  Invoice(n=3), date(2026, 1, 31)

What JSON itself has stays as it is, and so does what pydantic cannot build; `lmc serve` gives a program the same objects.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from decimal import Decimal
from enum import Enum
from inspect import Parameter
from typing import Any, get_args
from uuid import UUID

from lmc.extras import missing

WRITTEN = (datetime.date, datetime.time, datetime.timedelta, Decimal, UUID)
"""Classes whose objects are texts in JSON."""

Build = Callable[[Any], Any]


def builders(parameters: Mapping[str, Parameter]) -> dict[str, Build]:
    """Return what builds the argument of each parameter whose annotation has a class that JSON does not."""
    wanted = {name: p.annotation for name, p in parameters.items() if _has_objects(p.annotation)}
    if not wanted:
        return {}
    try:
        from pydantic import PydanticUserError, TypeAdapter
    except ImportError:
        raise missing(f"the parameter {next(iter(wanted))!r}, whose type is a class,", ["pydantic"], "types") from None
    found: dict[str, Build] = {}
    for name, annotation in wanted.items():
        try:
            found[name] = _builder(TypeAdapter(annotation))
        except PydanticUserError:  # no schema: the program gets the JSON
            continue
    return found


def _has_objects(annotation: Any) -> bool:
    if isinstance(annotation, type) and (issubclass(annotation, (Enum, *WRITTEN)) or is_dataclass(annotation) or hasattr(annotation, "model_json_schema")):
        return True
    return any(map(_has_objects, get_args(annotation)))


def _builder(adapter: Any) -> Build:
    return lambda value: adapter.validate_json(json.dumps(value), strict=True)


def problem(error: ValueError) -> str:
    """Return what is wrong with a value, of pydantic's error."""
    first: Any = getattr(error, "errors", lambda: [{"loc": (), "msg": str(error)}])()[0]
    return ": ".join([*(".".join(map(str, first["loc"])),) * bool(first["loc"]), first["msg"]])
