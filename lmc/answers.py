"""Typed answers: the token limit an answer needs, whether it is complete, and the object its text parses to."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from lmc.errors import AnswerError, IncompleteAnswer, Loc

CUT_LIKE_SGLANG = (int, float, str, "int", "float", "str")
"""Types for which `s["x"]` keeps the part of an answer that SGLang's limit allows; `s.parsed` does not."""

_LEAST, _MOST = 128, 4096  # tokens: SGLang's limit, and a long page
_STRING, _NUMBER, _ITEMS, _DEEPEST = 64, 12, 8, 3  # guesses: tokens of a text and of a number, items of a list, levels of what recurs
_JSON = (int, float, str, bool, None, type(None), dict, list, Any)
_NAMED: Mapping[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}


# -- limits ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def limit_of(schema: str) -> int:
    """Return the token limit of an answer to a JSON schema whose `gen` sets none: by the schema's size, at least
    SGLang's 128."""
    root = json.loads(schema)
    return max(_LEAST, min(2 * _tokens(root, root, 0), _MOST))


def _tokens(schema: Any, root: Any, depth: int) -> int:
    if not isinstance(schema, dict) or depth > 4 * _DEEPEST:
        return _STRING
    found = cast("dict[str, Any]", schema)
    if "$ref" in found:
        return _tokens(_pointed(root, str(found["$ref"])), root, depth + 4) if depth <= 4 * (_DEEPEST - 1) else _STRING
    if "const" in found or "enum" in found:
        return max(len(json.dumps(value)) // 2 + 1 for value in found.get("enum") or [found.get("const")])
    for several in ("anyOf", "oneOf"):
        if found.get(several):
            return max(_tokens(arm, root, depth + 1) for arm in found[several])
    if found.get("allOf"):
        return sum(_tokens(arm, root, depth + 1) for arm in found["allOf"])
    if "properties" in found:
        return 2 + sum(len(name) // 3 + 4 + _tokens(value, root, depth + 1) for name, value in found["properties"].items())
    if found.get("type") == "array":
        first = sum(_tokens(item, root, depth + 1) for item in found.get("prefixItems", ()))
        return min(
            2 + first + (0 if first and "items" not in found else min(found.get("maxItems", _ITEMS), 64) * (1 + _tokens(found.get("items"), root, depth + 1))),
            _MOST,
        )
    if found.get("type") in ("integer", "number", "boolean", "null"):
        return _NUMBER
    if found.get("type") == "string":
        return min(found["maxLength"], _MOST) + 2 if "maxLength" in found else _STRING
    return 4 * _STRING


def _pointed(root: Any, pointer: str) -> Any:
    for part in pointer.removeprefix("#").strip("/").split("/"):
        root = root.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return root


# -- whole answers ---------------------------------------------------------------------------------------------------


def check_whole(asked: Any, text: str, meta: Mapping[str, Any], loc: Loc | None) -> None:
    """Raise IncompleteAnswer for an answer that its limit has cut. `asked` is its type, or its schema."""
    if meta.get("finish_reason", {}).get("type") != "length" or _is_whole(asked, text):
        return
    count = meta.get("completion_tokens", "its limit of")
    error = IncompleteAnswer(
        f"the answer was cut at {count} token{'' if count == 1 else 's'}, before it was complete: {_shown(text)}; raise max_tokens", loc=loc
    )
    error.text = text
    raise error


def _is_whole(asked: Any, text: str) -> bool:
    """Return whether a text cut by a limit is complete; for numbers this cannot be known."""
    texts = _texts_of(asked)
    if texts is not None:
        return text in texts
    if asked in CUT_LIKE_SGLANG:
        return asked in (str, "str") and len(text) > 1 and text.endswith('"')
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _texts_of(asked: Any) -> Mapping[str, Any] | None:
    """Return the value of each possible text, if the answer is one of a few texts that are not JSON."""
    if asked in (bool, "bool"):
        return {"True": True, "False": False}
    if get_origin(asked) is Literal:
        return {str(value): value for value in get_args(asked)}
    if isinstance(asked, type) and issubclass(asked, Enum):
        return {str(member.value): member for member in asked}
    return None


# -- objects ---------------------------------------------------------------------------------------------------------


def parse(asked: Any, text: str) -> Any:
    """Return the object that an answer's text parses to: for a type, validated by pydantic; for a schema, plain JSON.

    Raises AnswerError for a text that does not parse, and pydantic's error for one that its validators refuse.
    """
    asked = _NAMED.get(asked, asked) if isinstance(asked, str) else asked
    texts = _texts_of(asked)
    try:
        if texts is not None:
            return texts[text.strip()]
        if asked in (int, float):
            return asked(text)
        if asked is str:
            return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
        if isinstance(asked, (str, Mapping)) or asked in _JSON or not _needs_pydantic(asked):
            return json.loads(text)
    except (ValueError, KeyError, RecursionError) as error:
        raise _unreadable(asked, text) from error
    return _validated(asked, text)


def _needs_pydantic(asked: Any) -> bool:
    """Return whether a type is more than plain JSON: lists, dicts, texts, numbers."""
    if get_origin(asked) in (list, dict):
        return any(map(_needs_pydantic, get_args(asked)))
    return asked not in _JSON


def _validated(asked: Any, text: str) -> Any:
    try:
        from pydantic import TypeAdapter
    except ImportError:
        from lmc.extras import missing

        raise missing(f"an object of {asked!r}", ["pydantic"], "types") from None
    return _adapter(TypeAdapter, asked).validate_json(text)


def _adapter(kind: Any, asked: Any) -> Any:
    try:
        return _cached_adapter(kind, asked)
    except TypeError:  # an unhashable type
        return kind(for_pydantic(asked))


@lru_cache(maxsize=256)
def _cached_adapter(kind: Any, asked: Any) -> Any:
    return kind(for_pydantic(asked))


def for_pydantic(of: Any, within: tuple[Any, ...] = ()) -> Any:
    """Replace each `typing` TypedDict in a type by a `typing_extensions` one: before Python 3.12 pydantic accepts no
    others.

    A recursive one stays as it is, and so do the fields of dataclasses and models; pydantic's error says what to write.
    """
    if sys.version_info >= (3, 12) or of in within or get_origin(of) is Literal:
        return of
    if is_typeddict(of) and type(of).__module__ == "typing":
        return _typed_dict(of, (*within, of))
    args = get_args(of)
    inner = tuple(for_pydantic(arg, within) for arg in args)
    if all(a is b for a, b in zip(inner, args)):
        return of
    origin = get_origin(of)
    return (Annotated if origin is Annotated else Union if origin is UnionType else origin)[inner]


def _typed_dict(of: Any, within: tuple[Any, ...]) -> Any:
    from typing_extensions import TypedDict  # pydantic brings it

    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(of, include_extras=True).items():
        mark = get_origin(hint)  # counts where the type itself could not read it, as a string
        marked = mark in (Required, NotRequired)
        inner = for_pydantic(get_args(hint)[0] if marked else hint, within)
        is_required = mark is Required if marked else name in of.__required_keys__
        fields[name] = Required[inner] if is_required else NotRequired[inner]
    made = TypedDict(of.__name__, fields)  # pyright: ignore
    made.__module__, made.__qualname__, made.__doc__ = of.__module__, of.__qualname__, of.__doc__
    return made


def _unreadable(asked: Any, text: str) -> AnswerError:
    error = AnswerError(f"the answer {_shown(text)} is not the text of {getattr(asked, '__name__', asked)!s}")
    error.text = text
    return error


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:30]} … {text[-45:]}")
