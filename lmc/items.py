"""Items that commands read, from a file, a pipe or standard input: JSONL, one object of arguments per line, or CSV with a
header.

    text,times,source              text and times are parameters: one item a row
    hello,3,forum        ─►        {"text": "hello", "times": 3}, and {"source": "forum"} kept aside: copied to the result

A cell is text, or JSON where the parameter is declared as int, list, …; an empty one of those, or of a parameter that may
be None, is not given: its default counts, else None. Everything
is checked before anything runs, and errors name the file, the line and the remedy.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmc.declared import builders
from lmc.errors import Loc
from lmc.pages import several
from lmc.userfiles import (
    FROM_PANDAS,
    Item,
    UsageError,
    announce,
    built,
    check_arguments,
    describe,
    is_json,
    is_optional,
    objects,
    parameters,
    takes_any,
    value_of,
)

STANDARD_INPUT = Path("-")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class InputItems:
    """Arguments of each item, as the objects that the program declares and as they were given, and its fields that are not
    parameters (copied to the result)."""

    arguments: tuple[Item, ...]
    given: tuple[Item, ...]
    extra: tuple[Item, ...]
    places: tuple[str, ...]
    """`FILE:LINE` of each item."""

    @property
    def extra_names(self) -> list[str]:
        return sorted({name for fields in self.extra for name in fields})


def read_items(program: Any, path: Path) -> InputItems:
    """Read the items of a file, `-` for standard input. CSV by the suffix .csv or .tsv, and of pipes, standard input among
    them, unless they begin with `{`."""
    known = parameters(program)
    build = builders(known)
    arguments: list[Item] = []
    given: list[Item] = []
    extra: list[Item] = []
    places: list[str] = []
    name = "<stdin>" if path == STANDARD_INPUT else str(path)
    text = _text_of(path, name)
    is_piped = path == STANDARD_INPUT or not path.is_file()
    delimiter = _DELIMITERS.get(path.suffix.lower()) or ("," if is_piped and text.lstrip()[:1] not in ("{", "[", "") else None)
    for number, row in objects(text, name) if delimiter is None else _rows(program, text, name, delimiter):
        mine = {k: v for k, v in row.items() if k in known or takes_any(known)}
        check_arguments(program, mine, f"{name}:{number}", row)
        given.append(mine)
        arguments.append(built(build, mine, lambda field, at=f"{name}:{number}": f"{at}: {field}"))
        extra.append({k: v for k, v in row.items() if k not in mine})
        places.append(f"{name}:{number}")
    if not arguments:
        raise UsageError(f"{name} has no items: one JSON object a line, or CSV with a header, is expected, with the fields {describe(program)}")
    return InputItems(tuple(arguments), tuple(given), tuple(extra), tuple(places))


_MOST = 2 << 30
"""Bytes of items that are read: they are held in memory, several times as large."""


def _text_of(path: Path, name: str) -> str:
    announce(Path("/dev/stdin") if path == STANDARD_INPUT and sys.stdin.buffer.isatty() else path)
    try:
        with nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else path.open("rb") as file:
            data = file.read(_MOST + 1)
        if len(data) > _MOST:  # or a device, which has no end
            raise UsageError(f"{name} has more than {_MOST >> 30} GiB; split it, and run the parts one after another")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"no such input file: {path} (looked in {Path.cwd()})") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a directory; a JSONL or CSV file is expected") from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        rows = FROM_PANDAS if path.suffix.lower() in (".parquet", ".xlsx", ".feather") else ", in UTF-8"
        raise UsageError(f"{name} is not UTF-8 text (byte {error.start}); a JSONL or CSV file is expected{rows}") from None


def _rows(program: Any, text: str, name: str, delimiter: str) -> Iterator[tuple[int, Item]]:
    """Yield line number and fields of each row that is not empty."""
    csv.field_size_limit(sys.maxsize)  # a cell may be as long as a book
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    known = parameters(program)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise UsageError(f"not CSV: {error}", loc=Loc(name, number)) from None
        if cells is None:
            return
        if not cells:
            continue
        if header is None:
            header = _header(cells, delimiter, Loc(name, number))
            continue
        if len(cells) != len(header):
            raise UsageError(
                f"{several(len(cells), 'cell')}, and the header has {len(header)}; quote a cell that has a {_NAMES[delimiter]} in it", loc=Loc(name, number)
            )
        row: Item = {}
        for column, cell in zip(header, cells, strict=True):
            parameter = known.get(column)
            if cell or parameter is None or not (is_json(parameter) or is_optional(parameter)):
                row[column] = value_of(program, parameter, cell, f"{name}:{number}: {column}={cell}")
            elif is_optional(parameter) and parameter.default is parameter.empty:
                row[column] = None
        yield number, row


_NAMES = {",": "comma", "\t": "tab", ";": "semicolon"}


def _header(cells: list[str], delimiter: str, loc: Loc) -> list[str]:
    if len(cells) == 1 and (other := next((c for c in ";,\t" if c in cells[0]), None)):
        tabs = "; a .tsv file has tabs" if other == "\t" else ""
        raise UsageError(f"columns are separated by a {_NAMES[delimiter]} here, and the header has a {_NAMES[other]} instead{tabs}", loc=loc)
    if twice := sorted({cell for cell in cells if cells.count(cell) > 1}):
        raise UsageError(f"the header has the column {twice[0]!r} twice", loc=loc)
    return cells
