"""Values as data: JSON with tags for what JSON lacks. Reading executes nothing: no constructor, no import, no hook of a class.

It covers the state a program can observe: numbers, text, containers with their sharing, dates, paths, exceptions,
dataclasses, classes of attrs, enums, named tuples, arrays of numpy. Anything else is refused with `NotData`, so that nothing comes back as less than it
was.
"""

from __future__ import annotations

from lmc.codec.arrays import is_array, is_scalar
from lmc.codec.reading import BadData, NotImported, decode
from lmc.codec.writing import DATA, TAG, NotData, encode, field_names, has_fields, is_namespace, slot_members

__all__ = [
    "DATA", "TAG", "BadData", "NotData", "NotImported", "decode", "encode", "field_names", "has_fields", "is_array", "is_namespace", "is_scalar",
    "slot_members",
]  # fmt: skip
