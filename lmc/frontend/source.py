"""The source of functions: the part of a file that a code object came from, verified as far as possible."""

from __future__ import annotations

import ast
import linecache
import re
import threading
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from lmc.errors import Loc

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class NoSource(Exception):
    """The source of a function is not available, or is not that of the running code; the message has the location."""


@dataclass(frozen=True)
class SourceFunction:
    """A function in the source of its file."""

    node: FunctionNode
    class_name: str | None  # the class it is defined in, for names like `__private`

    @property
    def place(self) -> tuple[int, str]:
        """Return the first line and the name of its code."""
        return first_line(self.node), getattr(self.node, "name", "<lambda>")


@dataclass(frozen=True)
class _Module:
    """The source of a file. Only the statement that a function is in is parsed and compiled, unless that does not give the function's code.

    known  functions that were found, with their code, by its id: every batch looks at its program
    """

    file: str
    text: str
    known: dict[int, tuple[types.CodeType, SourceFunction]] = field(default_factory=dict)

    def statements(self, line: int) -> Iterator[list[ast.stmt]]:
        """Yield the statements of the module that cover a line: parsed by themselves, then with the file."""
        yield _parsed(_statement_at(self.text.split("\n"), line))
        yield [node for node in self._tree if min(node.lineno, first_line(node)) <= line <= (node.end_lineno or line)]

    def compiled(self, statements: list[ast.stmt]) -> Iterator[types.CodeType]:
        """Yield the code in some statements: compiled by themselves, as notebooks do, behind the file's imports, and with the file. Calls of what an
        import beside them names differ, and what a future import changes."""
        for every in (lambda: statements, lambda: [*self._imports, *statements], lambda: self._tree):
            found: list[types.CodeType] = []
            with parsing, suppress(SyntaxError):  # of imports that are none, but text of a string
                found = [*codes(compile(ast.Module(every(), []), self.file, "exec", _FLAGS, dont_inherit=True))]
            yield from found

    @cached_property
    def _imports(self) -> list[ast.stmt]:
        return _parsed("\n".join(_IMPORT.findall(self.text)))

    @cached_property
    def _tree(self) -> list[ast.stmt]:
        return _parsed(self.text)


_IMPORT = re.compile(r"^(?:from [^\n(]+\([^)]*\)|(?:from|import) [^\n(]+$)", re.MULTILINE)


def _parsed(text: str) -> list[ast.stmt]:
    """Return the statements of a text; none if it cannot be parsed, such as a part of a file that was cut within a statement."""
    try:
        with parsing:
            return ast.parse(text).body
    except SyntaxError:
        return []


def _statement_at(lines: list[str], line: int) -> str:
    """Return the text of the statement of a module that covers a line, as far as indentation tells, behind as many empty lines as precede it."""
    begins = lambda i: lines[i][:1] not in _CONTINUING
    following = lambda i: next((k for k in range(i + 1, len(lines)) if begins(k)), len(lines))
    at = first = next((i for i in range(min(line, len(lines)) - 1, 0, -1) if begins(i)), 0)
    while at < len(lines) and lines[at].startswith("@"):
        at = following(at)
    return "\n" * first + "\n".join(lines[first : following(at)])


_CONTINUING = ("", *" \t#)]}")
"""First characters of lines at which no statement of a module begins."""


_modules: dict[str, _Module] = {}
as_written: dict[int, types.CodeType] = {}
"""The code that functions had before journals instrumented them, by the id of the code that they have, which is never freed."""

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
"""A notebook's cell may await; code inside of functions is the same with this as without."""

parsing = threading.RLock()
"""CPython 3.11 raises SystemError ("AST constructor recursion depth mismatch") where two threads parse or compile at once."""


def find(fn: types.FunctionType) -> SourceFunction:
    """Return the source of a function. Raises NoSource if it is missing, not the one that was imported, or
    ambiguous."""
    try:
        return _found(fn)
    except NoSource:
        linecache.checkcache(fn.__code__.co_filename)  # the file may have been edited, and its module loaded again
        return _found(fn)


def _found(fn: types.FunctionType) -> SourceFunction:
    code = as_written.get(id(fn.__code__), fn.__code__)
    where = Loc(code.co_filename, code.co_firstlineno)
    linecache.lazycache(code.co_filename, fn.__globals__)  # of a module that is no file, such as one in a zip archive, its loader has the source
    module = _module(code.co_filename)
    if module is None:
        raise NoSource(
            f"{fn.__qualname__} has no readable source; define it in a file or a notebook's cell{', one without %%time' * is_timed(code.co_filename)}"
        )
    if (known := module.known.get(id(code))) is not None:
        return known[1]
    place, nodes = (code.co_firstlineno, code.co_name), list[SourceFunction]()
    for statements in module.statements(code.co_firstlineno):
        nodes = [found for found in _functions(ast.Module(statements, [])) if found.place == place]
        if nodes and any((c.co_firstlineno, c.co_name) == place and _same_code(code, c) for c in module.compiled(statements)):
            break
    else:
        raise NoSource(f"the source of {fn.__qualname__} at {where} is not the one that was imported")
    if len(nodes) > 1:
        nodes = [found for found in nodes if isinstance(found.node, ast.Lambda) and _span(found.node.body) == _covered(code)]
    if len(nodes) != 1:
        raise NoSource(f"several functions named {code.co_name} start at {where}")
    module.known[id(code)] = code, nodes[0]
    return nodes[0]


def is_timed(file: str) -> bool:
    """Return whether a file is what IPython calls a cell that it times, whose source it does not keep."""
    return file == "<timed exec>"


_Span = tuple[tuple[int, int], tuple[int, int]]


def _span(node: ast.expr) -> _Span:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _covered(code: types.CodeType) -> _Span | None:
    """Return the part of its file that the instructions of a code object cover: of a lambda, its body. None if CPython keeps no columns."""
    found = [p for p in code.co_positions() if p[3]]  # of the instructions before the body, and the last one, the column is None or 0
    return (min((p[0] or 0, p[2] or 0) for p in found), max((p[1] or 0, p[3] or 0) for p in found)) if found else None


def _module(file: str) -> _Module | None:
    """Return the source of a file, cached while the text stays the same."""
    text = "".join(linecache.getlines(file))
    if text and ((cached := _modules.get(file)) is None or cached.text != text):
        _modules[file] = _Module(file, text)
    return _modules[file] if text else None


def _same_code(a: types.CodeType, b: types.CodeType) -> bool:
    """Return whether two code objects came from the same source (the file may have been edited since it was
    imported)."""
    if has_rewritten_asserts(a):
        return True
    return (
        a.co_code == b.co_code
        and a.co_names == b.co_names
        and [c for c in a.co_consts if not isinstance(c, types.CodeType)] == [c for c in b.co_consts if not isinstance(c, types.CodeType)]
    )


def has_rewritten_asserts(code: types.CodeType) -> bool:
    """Return whether pytest has rewritten asserts of this code, as it imports test modules."""
    return any(name.startswith("@py") for name in code.co_varnames + code.co_names + code.co_cellvars)


# -- what is in a file ---------------------------------------------------------------------------------------------


def _functions(tree: ast.AST, class_name: str | None = None) -> Iterator[SourceFunction]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, child.name)
        else:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield SourceFunction(child, class_name)
            yield from _functions(child, class_name)


def first_line(node: ast.AST) -> int:
    """Return the first line of a definition according to its code object."""
    decorators = getattr(node, "decorator_list", [])
    return decorators[0].lineno if decorators else node.lineno  # type: ignore[attr-defined]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code, and that of the functions and classes inside of it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)
