"""JSON-able data as text and bytes, by the fastest encoder that is at hand; JSON with tags for the rest is `lmc.codec`'s."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Any

PLAIN = frozenset({str, int, float, bool, type(None)})
_TEXT = frozenset({str})
LARGE = 1 << 64
"""Whole numbers from here on are written in hex: Python reads no decimal number of more than 4,300 digits."""


def dumps(x: Any) -> str:
    """Return the text of JSON-able data, in the shortest form."""
    return "".join(_pieces(x, 0)) if _pieces is not None else _encoder.encode(x)


def _unknown(x: Any) -> Any:
    raise TypeError(f"a {type(x).__name__} is not JSON")


_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
_pieces: Any = getattr(json.encoder, "c_make_encoder", None) and json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, _unknown, json.encoder.encode_basestring, None, ":", ",", False, False, True
)
"""Python's C encoder, which `json.dumps` would build again for each call: records are many and small."""


def is_json(x: Any) -> bool:
    """Return whether a value survives a round trip through JSON unchanged."""
    cls = type(x)
    if cls is dict:
        return are_texts(x) and _all_json(x.values())
    return _all_json(x) if cls is list else is_plain(x)


def _all_json(items: Collection[Any]) -> bool:
    return are_atoms(items) or all(map(is_json, items))


def are_atoms(values: Collection[Any]) -> bool:
    """Return whether JSON can represent all these values and none of them is a container."""
    kinds = set(map(type, values))
    return kinds <= PLAIN and (int not in kinds or are_short([x for x in values if type(x) is int]))


def are_short(numbers: Collection[int]) -> bool:
    """Return whether all of at least one whole number are short enough for JSON."""
    return min(numbers) > -LARGE and max(numbers) < LARGE


def are_texts(values: Iterable[Any]) -> bool:
    return _TEXT.issuperset(map(type, values))


def to_bytes(x: Any) -> bytes:
    """Encode JSON-able data as bytes; lone surrogates, which Python's text may have, are kept."""
    return dumps(x).encode("utf-8", "surrogatepass")


def loads(text: str, *, parse_float: Callable[[str], Any] | None = None, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Decode JSON that a model, a client or a file wrote. Raises ValueError for anything that is not JSON, or that Python cannot hold: nested too
    deeply, or a number of more than 4,300 digits, or a Decimal with an exponent of more than 18."""
    try:
        return json.loads(text, parse_float=parse_float, parse_constant=parse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ArithmeticError:  # of Decimal
        raise ValueError("a number with too large an exponent") from None


def from_bytes(data: bytes) -> Any:
    """Decode JSON bytes. Raises ValueError as `loads`."""
    return loads(data.decode("utf-8", "surrogatepass"))


def encode_json(x: Any) -> bytes:
    """As `to_bytes`, for what `is_json`; where pydantic is loaded, by its encoder, in a third of the time. Numbers may be spelled in other ways."""
    return (_fast_encoder() if _LOADED in sys.modules else to_bytes)(x)


def decode_json(data: bytes) -> Any:
    """As `from_bytes`; where pydantic is loaded, by its decoder, in half of the time."""
    return (_fast_decoder() if _LOADED in sys.modules else from_bytes)(data)


_LOADED = "pydantic_core"  # to import it takes as long as to write some MB


@lru_cache(maxsize=1)
def _fast_encoder() -> Callable[[Any], bytes]:
    """Return pydantic's encoder, which would accept more than JSON."""
    from pydantic_core import CoreConfig, SchemaSerializer, core_schema

    return _or_else(SchemaSerializer(core_schema.any_schema(), CoreConfig(ser_json_inf_nan="constants")).to_json, to_bytes)


@lru_cache(maxsize=1)
def _fast_decoder() -> Callable[[bytes], Any]:
    from pydantic_core import from_json

    return _or_else(from_json, from_bytes)


def _or_else(fast: Callable[[Any], Any], slow: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that tries `fast`, then `slow` for what pydantic refuses: lone surrogates, deep nesting."""

    def either(x: Any) -> Any:
        try:
            return fast(x)
        except ValueError:
            return slow(x)

    return either


def is_plain(x: Any) -> bool:
    cls = type(x)
    return cls in PLAIN and (cls is not int or -LARGE < x < LARGE)
