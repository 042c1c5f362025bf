"""The source of functions: lambdas beside each other, and modules that are no files."""

from __future__ import annotations

import ast
import importlib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import lmc
from lmc.frontend.source import find


def test_lambdas_on_one_line_are_told_apart():
    first, (second, third) = (lambda a: [a, (lambda: a)]), [lambda b: b + 1, lambda b: b * 2]
    bodies: list[Any] = [find(fn).node.body for fn in (first, second, third, first(1)[1])]
    assert [ast.unparse(body) for body in bodies] == ["[a, lambda: a]", "b + 1", "b * 2", "a"]


def test_a_function_is_found_whose_code_differs_without_the_rest_of_its_file():
    """By `from __future__ import annotations` at the head of this one."""

    def outer() -> Any:
        def inner(x: int) -> int:
            return x

        return inner

    assert ast.unparse(find(outer).node.body[-1]) == "return inner"
    assert find(outer()).node.lineno == find(outer).node.lineno + 1


def test_a_module_in_a_zip_archive_has_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with zipfile.ZipFile(tmp_path / "programs.zip", "w") as archive:
        archive.writestr("zipped_program.py", "import lmc\n\n@lmc.function\ndef program(s, q):\n    s += q + lmc.gen('x', max_tokens=2)\n    return s['x']\n")
    monkeypatch.syspath_prepend(tmp_path / "programs.zip")
    program = importlib.import_module("zipped_program").program
    assert lmc.compile(program).dump_ir().count("gen(") == 1
    journaled = program.run(q="a", backend=lmc.Mock(), seed=1, journal=tmp_path / "journal")
    assert journaled.ret_value == program.run(q="a", backend=lmc.Mock(), seed=1).ret_value


IN_ODD_PLACES = '''"""Docstring with a line that begins as one with code does:
import nothing
"""
from __future__ import annotations
import json

@(
    lambda fn: fn
)
def decorated(x: int):
    text = """
text = 1
"""
    return text, json.dumps(x)

if json is None:
    pass
else:
    def in_else(x): return x

class Held:
    text = """
begins at the margin"""
    def method(self): return self.__private

pair = [
lambda: 1, 2,
]
'''


def test_functions_are_found_wherever_their_statement_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "in_odd_places.py").write_text(IN_ODD_PLACES)
    monkeypatch.syspath_prepend(tmp_path)
    made = importlib.import_module("in_odd_places")
    found = [find(fn) for fn in (made.decorated, made.in_else, made.Held.method, made.pair[0])]
    ends = [ast.unparse(one.node).splitlines()[-1].strip() for one in found]
    assert ends == ["return (text, json.dumps(x))", "return x", "return self.__private", "lambda: 1"]
    assert [one.class_name for one in found] == [None, None, "Held", None]
    assert [one.node.lineno for one in found] == [10, 19, 24, 27]


def test_a_cell_that_is_timed_keeps_no_source(tmp_path):
    """IPython compiles what `%%time` times under one name, and keeps its text nowhere."""
    names = {"lmc": lmc}
    exec(compile("@lmc.function\ndef timed(s):\n    s += lmc.gen('x', max_tokens=2)\n", "<timed exec>", "exec"), names)
    program = lmc.compile(names["timed"], backend=lmc.Mock())
    assert "define it in a file or a notebook's cell, one without %%time" in program.dump_ir()
    with pytest.raises(lmc.JournalError, match="has no source that can be read: define it in a cell without %%time"):
        program(journal=tmp_path / "j")
