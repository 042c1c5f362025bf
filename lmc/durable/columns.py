"""Columns: values of one shape, written part by part, so that a few calls write and read many of them, and repeated
values are written once.

(Cf. the columns of Dremel and Parquet; unlike theirs, a column whose values have different shapes holds them unpacked.)

    [x, y, …]                          the values
    {"=": x}                           each is x: a text, a whole number, true, false or null
    {"keys": […], "columns": […]}      dicts with these keys, in this order
    {"columns": […]}                   lists that are as long as there are columns
    {"of": [i, …], "kinds": […]}       dicts of several kinds, a column for each: the kind of each value, in order
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from lmc import codec, json_data

Column = list[Any] | dict[str, Any]

FEW = 4
"""Fewer values than these are written as they are."""
WIDE = 16
"""Lists that are longer are written as they are: they rarely are equally long."""


def packed(values: Sequence[Any]) -> Column:
    """Pack JSON values as a column. Raises NotData for values that JSON lacks."""
    kinds = set(map(type, values))
    rule = _PACKED.get(kinds.pop()) if len(kinds) == 1 and len(values) >= FEW else None
    return _as_they_are(values) if rule is None else rule(values)


def packed_rows(rows: Sequence[Sequence[Any]]) -> Column:
    """As `packed`, for lists or tuples."""
    widths = set(map(len, rows))
    if len(widths) > 1 or len(rows) < FEW or (width := widths.pop()) > WIDE:
        return _as_they_are(list(map(list, rows)))
    return {"columns": list(map(packed, zip(*rows, strict=True))) if width else []}


def _packed_dicts(dicts: Sequence[dict[Any, Any]]) -> Column:
    shapes = list(map(tuple, dicts))
    kinds = dict.fromkeys(shapes)  # equal to a text, as a member of a StrEnum is: read back as text
    if not json_data.are_texts(chain.from_iterable(kinds)):
        raise codec.NotData("what JSON lacks")
    if len(kinds) == 1:
        return _of_one_kind(shapes[0], dicts)
    if len(kinds) > FEW:
        return _as_they_are(dicts)
    order = list(kinds)
    columns = [_of_one_kind(kind, [x for x, shape in zip(dicts, shapes, strict=True) if shape == kind]) for kind in order]
    return {"of": list(map(order.index, shapes)), "kinds": columns}


def _of_one_kind(keys: tuple[Any, ...], dicts: Sequence[dict[Any, Any]]) -> Column:
    if len(dicts) < FEW:
        return _as_they_are(dicts)
    return {"keys": keys, "columns": list(map(packed, zip(*map(dict.values, dicts), strict=True)))}


def _packed_equals(values: Sequence[Any]) -> Column:
    """Pack values of one type whose equality means identity: not floats, of which 0.0 equals -0.0."""
    first = values[0]
    if values[-1] == first and values.count(first) == len(values):
        return {"=": first}
    return list(values)


def _packed_ints(values: Sequence[int]) -> Column:
    column = _packed_equals(values)
    if not json_data.are_short(values if isinstance(column, list) else values[:1]):
        raise codec.NotData("what JSON lacks")
    return column


def _as_they_are(values: Sequence[Any]) -> Column:
    if not all(map(json_data.is_json, values)):
        raise codec.NotData("what JSON lacks")
    return list(values)


_PACKED: Mapping[type, Callable[[Sequence[Any]], Column]] = {
    str: _packed_equals, int: _packed_ints, bool: _packed_equals, type(None): _packed_equals, float: list, dict: _packed_dicts, list: packed_rows,
}  # fmt: skip


def unpacked(column: Any, count: int) -> list[Any]:
    """Return the values of a column, none of which share a container. Raises ValueError, TypeError or KeyError unless
    it is a column of `count` values."""
    if isinstance(column, list):
        values = column
    elif "=" in column:
        values = [column["="]] * count
    elif "of" in column:
        if len(column["kinds"]) > FEW:  # never written with so many, and each is searched
            raise ValueError(f"a column of {len(column['kinds'])} kinds")
        parts = [unpacked(part, column["of"].count(i)) for i, part in enumerate(column["kinds"])]
        if sum(map(len, parts)) != len(column["of"]):
            raise ValueError("a column of kinds that it does not have")
        rest = list(map(iter, parts))
        values = [next(rest[i]) for i in column["of"]]
    else:
        rows: Any = zip(*[unpacked(part, count) for part in column["columns"]], strict=True) if column["columns"] else [()] * count
        keys = column.get("keys")
        values = list(map(list, rows)) if keys is None else [dict(zip(keys, row, strict=True)) for row in rows]
    if len(values) != count:
        raise ValueError(f"a column of {len(values)} values for {count}")
    return values
