"""An extension of griffe, which reads the docstrings of the API reference (mkdocs.yml): tables of parameters become lists.

Docstrings name parameters in columns, `name   what it means`, with continuation lines indented. Markdown would run them together.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Docstring, Extension, Object

NAMES = r"\w+(?:, [\w…]+)*"  # of parameters, as they stand in the first column


class ParameterLists(Extension):
    """Rewrite each docstring as it is found."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring = Docstring(listed(obj.docstring.value), parent=obj, lineno=obj.docstring.lineno, endlineno=obj.docstring.endlineno)


def listed(text: str) -> str:
    """The text with each paragraph that is a table as a list of Markdown."""
    return "\n\n".join(as_list(paragraph) or paragraph for paragraph in text.split("\n\n"))


def as_list(paragraph: str) -> str | None:
    """A list of the rows of a table; None if the paragraph is not one: no row has its text in a column of its own."""
    if not re.search(rf"^{NAMES}  +\S", paragraph, re.MULTILINE):
        return None
    items: list[str] = []
    for line in paragraph.split("\n"):
        if line.startswith(" ") and items:
            items[-1] += " " + line.strip()
        elif row := re.match(rf"({NAMES}) +(\S.*)", line):
            items.append(f"* `{row[1]}`: {row[2]}")
        else:
            return None
    return "\n".join(items)
