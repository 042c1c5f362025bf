"""Constraints from what programs write: regexes, JSON schemas, grammars and types."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

from lmc.answers import for_pydantic
from lmc.arguments import wrong_type
from lmc.errors import ArgumentError, ConstraintError, ParameterError
from lmc.extras import missing
from lmc.segments import Constraint

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r'"[\w\d\s]*"'

CONSTRAINT_KINDS = ("regex", "json_schema", "ebnf", "lark", "structural_tag")


def make_constraint(kind: str, value: Any) -> Constraint:
    """Build a constraint of one kind from the user's argument; schemas become JSON text in the order they were
    written."""
    if kind == "regex":
        return Constraint("regex", check_regex(value))
    if kind == "json_schema" or (kind == "structural_tag" and not isinstance(value, str)):
        return Constraint(kind, json_text(kind, value))
    if not isinstance(value, str):
        raise wrong_type(kind, value, "the text of a grammar")
    assert kind in ("ebnf", "lark", "structural_tag")
    return Constraint(kind, value)


MAX_SOURCE = 256_000  # characters of a constraint's source: linear work on it takes ten seconds at most
_PROPERTY = re.compile(r"\\(?:([pP](?:\{[^}]*\}|[A-Z]))|.)", re.DOTALL)  # of Unicode, which `re` does not know


def check_regex(pattern: Any, name: str = "regex") -> str:
    """Return the pattern if Python's `re` accepts it, apart from Unicode properties."""
    if not isinstance(pattern, str):
        raise wrong_type(name, pattern, "the text of a regular expression")
    check_length(name, pattern)  # before any work on it
    try:
        re.compile(_PROPERTY.sub(lambda token: r"\w" if token[1] else token[0], pattern))
    except re.error as error:
        at = f" at position {error.pos}" if error.pos is not None else ""
        raise ConstraintError(f"{name}={pattern!r} is not a valid regular expression: {error.msg}{at}") from None
    except (OverflowError, RecursionError, ValueError):  # ValueError: a repeat's number of more digits than Python reads
        raise ConstraintError(f"{name}={pattern[:40]!r}… is too large a regular expression, or nested too deep") from None
    return pattern


def check_length(name: str, source: str) -> None:
    if len(source) > MAX_SOURCE:
        raise ConstraintError(
            f"{name}={source[:40]!r}… has {len(source):,} characters, and at most {MAX_SOURCE:,} are allowed; "
            f"shorten it, or let a `select` choose among long lists"
        )


def json_text(kind: str, value: Any) -> str:
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError as error:
            raise ConstraintError(f"{kind}=… is not valid JSON: {error}") from None
        except RecursionError:
            raise ConstraintError(f"{kind}=… is nested too deep") from None
        return value
    if hasattr(value, "model_json_schema"):  # a pydantic model
        value = _schema_of_model(value)
    if not isinstance(value, (Mapping, bool)):
        raise wrong_type(kind, value, "JSON text, a dict or a pydantic model")
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{kind}=… takes JSON text, a dict or a pydantic model: {error}") from None
    except RecursionError:
        raise ConstraintError(f"{kind}=… is nested too deep") from None


_DTYPES: Mapping[Any, tuple[str, tuple[str, ...]]] = {
    int: (REGEX_INT, (" ", "\n")),
    float: (REGEX_FLOAT, (" ", "\n")),
    bool: (REGEX_BOOL, ()),
    str: (REGEX_STR, ()),
}
_DTYPE_NAMES: Mapping[str, type] = {dtype.__name__: dtype for dtype in _DTYPES}


def dtype_constraint(dtype: Any) -> tuple[Constraint, tuple[str, ...]]:
    """Return the constraint that a `dtype=` means, and the stops that come with it."""
    if isinstance(dtype, str):
        dtype = _DTYPE_NAMES.get(dtype, dtype)
    if isinstance(dtype, type) and dtype in _DTYPES:
        regex, stops = _DTYPES[dtype]
        return Constraint("regex", regex), stops
    if dtype is dict:
        return make_constraint("json_schema", {"type": "object"}), ()
    if get_origin(dtype) is Literal:
        return _one_of(get_args(dtype)), ()
    if isinstance(dtype, type) and issubclass(dtype, Enum):
        return _one_of(tuple(member.value for member in dtype)), ()
    if isinstance(dtype, type) and hasattr(dtype, "model_json_schema"):
        return make_constraint("json_schema", dtype), ()
    if (isinstance(dtype, type) and dtype not in _BARE) or get_origin(dtype) is not None:
        return make_constraint("json_schema", schema_of_type(dtype)), ()
    raise ParameterError(f"dtype={dtype!r}: {_DTYPES_ARE}")


_BARE = (list, tuple, set, frozenset, object)  # items of unknown type; `json_schema={}` allows anything
_DTYPES_ARE = (
    "not supported; use one of int, float, bool, str, a Literal, an Enum, a pydantic model, dict, list[…], tuple[…], dict[str, …] and unions of these, or any "
    "other type that pydantic has a JSON schema for, with the types of its items"
)


def _schema_by_pydantic(of: Any, wrong: str) -> dict[str, Any]:
    """Return the JSON schema of a dataclass, a TypedDict, an Annotated type, a date, …; ParameterError where pydantic
    has none."""
    try:
        from pydantic import PydanticUserError, TypeAdapter
    except ImportError:
        raise missing(f"the JSON schema of {of!r}", ["pydantic"], "types") from None
    try:
        return _sets_as_lists(TypeAdapter(for_pydantic(of)).json_schema(schema_generator=_generator()))
    except PydanticUserError as error:
        raise ParameterError(f"{wrong} (it says: {error.message.splitlines()[0]})") from None


def _schema_of_model(model: Any) -> Any:
    """Return the schema of a model, or of anything else that has `model_json_schema`."""
    pydantic = sys.modules.get("pydantic")  # otherwise it cannot be a pydantic model
    if pydantic is None or not (isinstance(model, type) and issubclass(model, pydantic.BaseModel)):
        return _sets_as_lists(model.model_json_schema())
    try:
        return _sets_as_lists(model.model_json_schema(schema_generator=_generator()))
    except pydantic.PydanticUserError as error:
        raise ParameterError(f"pydantic has no JSON schema for {model.__name__} (it says: {error.message.splitlines()[0]})") from None


@lru_cache(1)
def _generator() -> Any:
    """Return pydantic's generator, except that a decimal is a number (as a string its schema allows any text, or has a
    pattern that looks ahead), and that a URL has one of the schemes that its type allows, in any case."""
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        def decimal_schema(self, schema: Any) -> Any:
            found = super().decimal_schema(schema)
            return next((arm for arm in found.get("anyOf", ()) if arm.get("type") == "number"), found)

        def url_schema(self, schema: Any) -> Any:
            found, schemes = super().url_schema(schema), schema.get("allowed_schemes")
            if not schemes:
                return found
            anycase = ["".join(f"[{c}{c.upper()}]" if c.isalpha() else re.escape(c) for c in scheme) for scheme in schemes]
            return {**found, "pattern": f"^({'|'.join(anycase)}):"}  # file:/a is one, too; what is generated follows the format

    return Generator


def _sets_as_lists(schema: Any, root: Any = None) -> Any:
    """Return a type's schema, in which only sets of a few values have `uniqueItems`. For others no automaton can
    remember the items already written, and the reader of a set drops duplicates; one that needs several elements keeps
    it, and is checked when the answer ends."""
    root = schema if root is None else root
    if isinstance(schema, list):
        return [_sets_as_lists(part, root) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {k: _sets_as_lists(v, root) for k, v in cast("dict[str, Any]", schema).items()}
    if found.get("uniqueItems") is True and found.get("minItems", 0) < 2 and not _are_few(found.get("items"), root):
        del found["uniqueItems"]
    return found


def _are_few(items: Any, root: Any) -> bool:
    """Return whether a pydantic schema has few enough values to list."""
    if isinstance(items, dict) and "$ref" in items:
        items = root.get("$defs", {}).get(items["$ref"].removeprefix("#/$defs/"))
    return isinstance(items, dict) and ("enum" in items or "const" in items or items.get("type") == "boolean" or {"minimum", "maximum"} <= items.keys())


def schema_of_type(dtype: Any) -> dict[str, Any]:
    """Return the JSON schema of a type composed of others."""
    defs: dict[str, Any] = {}

    def without_definitions(found: dict[str, Any]) -> dict[str, Any]:
        for name, what in found.pop("$defs", {}).items():
            if defs.setdefault(name, what) != what:
                raise ParameterError(f"dtype={dtype!r}: two models are called {name}")
        return found

    def schema(of: Any) -> dict[str, Any]:
        origin, args = get_origin(of), get_args(of)
        if of in _JSON_TYPES:
            return {"type": _JSON_TYPES[of]}
        if origin is Literal:
            return {"enum": list(args)}
        if isinstance(of, type) and issubclass(of, Enum):
            return {"enum": [member.value for member in of]}
        if hasattr(of, "model_json_schema"):
            found = _schema_of_model(of)
            if "$ref" not in found:  # a model that contains itself is among its own definitions
                inner = found.pop("$defs", {})
                found = {"$ref": f"#/$defs/{of.__name__}", "$defs": inner | {of.__name__: found}}
            return without_definitions(found)
        if origin in (Union, UnionType):
            return {"anyOf": [schema(arm) for arm in args]}
        if origin is list and len(args) == 1:
            return {"type": "array", "items": schema(args[0])}
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return {"type": "array", "items": schema(args[0])}
        if origin is tuple:
            first = {"prefixItems": [schema(a) for a in args]} if args else {}
            return {"type": "array", **first, "minItems": len(args), "maxItems": len(args)}
        if origin is dict and len(args) == 2 and args[0] is str:
            return {"type": "object", "additionalProperties": schema(args[1])}
        wrong = _DTYPES_ARE if of is dtype else f"{of!r} in it has no JSON schema"
        if origin is dict or of in (complex, bytes):  # pydantic's schema is of texts that are no such values
            raise ParameterError(f"dtype={dtype!r}: {of!r} in it has no JSON schema")
        return without_definitions(_schema_by_pydantic(of, f"dtype={dtype!r}: {wrong}"))

    found = schema(dtype)
    return {**found, "$defs": defs} if defs else found


_JSON_TYPES: Mapping[Any, str] = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null", None: "null"}


def _one_of(values: tuple[Any, ...]) -> Constraint:
    if not values:
        raise ParameterError("dtype=…: there is nothing to choose from")
    return Constraint("regex", "(" + "|".join(re.escape(str(v)) for v in values) + ")")
