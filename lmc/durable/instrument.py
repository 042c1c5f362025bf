"""Instrumented code: a program's own functions, with each call and each awaited value routed through the run that
records them.

`f(x)` becomes `callee(f)(x)`: the callee is inspected, and still called from the user's own frame. `callee` is a
constant of the code, so that no variable is added: names, lines, closures and frames are those of the source. Only code
whose source compiles to exactly that code is rewritten.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import linecache
import operator
import os
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from lmc.errors import JournalError, Loc
from lmc.frontend.host import RECORDING
from lmc.frontend.source import as_written, codes, has_rewritten_asserts, is_timed, parsing

_FOLDER = __file__.rpartition("instrument")[0]


class _Hook:
    """A constant of instrumented code: `hook @ x` evaluates to `of(x)`. An operator, because Python warns of constants
    that are called."""

    __slots__ = ("of",)

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self.of = of

    def __matmul__(self, x: Any) -> Any:
        return self.of(x)


def _recorded(method: str) -> Callable[[Any], Any]:
    """Return what a method of the run's recorder makes of a value; outside of journaled runs, the value itself."""

    def of(x: Any) -> Any:
        recorder = RECORDING.get()
        return x if recorder is None else getattr(recorder, method)(x)

    return of


def _clean(_: Any) -> None:
    left = [sys.exception()]
    while left:
        error = left.pop()
        if error is not None:
            error.__traceback__ = without_own_frames(error.__traceback__)
        if isinstance(error, BaseExceptionGroup):  # also one that `except*` has made of an error, and which has no traceback yet
            left += error.exceptions


def _decide(loc: str, test: str) -> Callable[[Any], bool]:
    def decide(value: Any) -> bool:
        answer = bool(value)
        recorder = RECORDING.get()
        if recorder is not None:
            recorder.decided(loc, test, answer)
        return answer

    return decide


def without_own_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """Remove the frames that recording adds between the program and its callees from a traceback."""
    kept: list[types.TracebackType] = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_FOLDER):
            kept.append(traceback)
        traceback = traceback.tb_next
    top: types.TracebackType | None = None
    for entry in reversed(kept):
        entry.tb_next, top = top, entry
    return top


# -- rewriting -------------------------------------------------------------------------------------------------------


@dataclass
class _Rewrite(ast.NodeTransformer):
    """Inserts hooks into a module. `hooks`: by the placeholder text of each until it is compiled."""

    file: str
    lines: Sequence[str]
    deciding: bool
    hooks: dict[str, _Hook] = field(default_factory=lambda: dict(_HOOKS))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not _is_of_pytest(node.func):
            node.func = _hooked("callee", node.func)
        return node

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        node.decorator_list = [_hooked("callee", decorator) for decorator in node.decorator_list]  # Python calls them
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.visit_FunctionDef(node)
        node.bases = [base if isinstance(base, ast.Starred) else _hooked("based", base) for base in node.bases]  # Python calls their hooks, and metaclasses
        for keyword in node.keywords:
            if keyword.arg == "metaclass":
                keyword.value = _hooked("based", keyword.value)
        return node

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        node.value = _hooked("awaited", node.value)
        return node

    def visit_withitem(self, node: ast.withitem) -> ast.AST:
        self.generic_visit(node)
        node.context_expr = _hooked("managed", node.context_expr)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        clean = ast.Expr(_hooked("clean", ast.copy_location(ast.Constant(None), node)))
        node.body.insert(0, ast.copy_location(clean, node))
        return node

    # outcomes of tests, if they are observed

    def _decides(self, node: Any) -> ast.AST:
        test = node.test
        self.generic_visit(node)
        node.test = self._noted(test, node.test)
        return node

    visit_If = visit_While = visit_IfExp = visit_Assert = _decides

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        tests = list(node.ifs)
        self.generic_visit(node)
        node.ifs = [self._noted(test, hooked) for test, hooked in zip(tests, node.ifs, strict=True)]
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        """Record the case that is taken, and that those before it were not."""
        if not self.deciding:
            return self.generic_visit(node)
        names = [(case.pattern, self._source(case.pattern, case.guard or case.pattern)) for case in node.cases]
        self.generic_visit(node)
        took = [[self._says(at, f"case {text}", case is taken) for case, (at, text) in zip(node.cases[: n + 1], names, strict=False)]
                for n, taken in enumerate(node.cases)]  # fmt: skip
        missed = [self._says(at, f"case {text}", False) for at, text in names]
        for case, says in zip(node.cases, took, strict=True):
            case.body[:0] = [ast.copy_location(ast.Expr(x), case.pattern) for x in says]
        last = node.cases[-1]
        if last.guard is not None or not _takes_all(last.pattern):
            body: list[ast.stmt] = [ast.copy_location(ast.Expr(x), node) for x in missed]
            node.cases.append(ast.match_case(ast.copy_location(ast.MatchAs(), last.pattern), None, body))
        return node

    def _says(self, at: ast.AST, text: str, answer: bool) -> ast.expr:
        name = self._hook(_decide(f"{self.file}:{at.lineno}", text))  # type: ignore[attr-defined]
        return _hooked(name, ast.copy_location(ast.Constant(answer), at))

    def _noted(self, test: ast.expr, hooked: ast.expr) -> ast.expr:
        if not self.deciding or not any(isinstance(x, ast.Call | ast.Name | ast.Attribute) for x in ast.walk(test)) or _is_of_pytest(test):
            return hooked  # a test of constants only decides which code exists
        name = self._hook(_decide(f"{self.file}:{test.lineno}", self._source(test, test)))
        return _hooked(name, hooked)

    def _source(self, first: Any, last: Any) -> str:
        """Return the source between two nodes in one line. Columns count bytes."""
        lines = [line.encode() for line in self.lines[first.lineno - 1 : last.end_lineno]]
        lines[-1] = lines[-1][: last.end_col_offset]
        lines[0] = lines[0][first.col_offset :]
        return " ".join(line.decode().strip() for line in lines)

    def _hook(self, of: Callable[[Any], Any]) -> str:
        name = f"{_MARK}{len(self.hooks)}"
        self.hooks[name] = _Hook(of)
        return name.removeprefix(_MARK)


def _takes_all(pattern: ast.pattern) -> bool:
    """Return whether a pattern matches anything: Python allows no other one after it."""
    if isinstance(pattern, ast.MatchOr):
        return _takes_all(pattern.patterns[-1])
    return isinstance(pattern, ast.MatchAs) and (pattern.pattern is None or _takes_all(pattern.pattern))


def _is_of_pytest(x: ast.expr) -> bool:
    """Return whether an expression is one that pytest's rewriting of asserts has added, and that looks at the frame that it is in."""
    while isinstance(x, ast.Attribute):
        x = x.value
    return isinstance(x, ast.Name) and x.id in ("@py_builtins", "@pytest_ar")


_MARK = "\0lmc "
_HOOKS = {_MARK + name: _Hook(_recorded(name)) for name in ("callee", "awaited", "managed", "based")} | {_MARK + "clean": _Hook(_clean)}


def _hooked(name: str, x: ast.expr) -> ast.expr:
    hook = ast.copy_location(ast.Constant(_MARK + name), x)
    return ast.copy_location(ast.BinOp(hook, ast.MatMult(), x), x)


def _with_hooks(code: types.CodeType, hooks: dict[str, _Hook]) -> types.CodeType:
    """Return code with its placeholder texts replaced by hooks."""
    consts = [_with_hooks(c, hooks) if isinstance(c, types.CodeType) else hooks.get(c, c) if type(c) is str else c for c in code.co_consts]
    return code.replace(co_consts=tuple(consts))


# -- the source of code ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _InstrumentedModule:
    """A file: each code object in it, by first line and name, with its instrumented twin."""

    text: str
    codes: dict[tuple[int, str], list[tuple[types.CodeType, types.CodeType]]]


_modules: dict[tuple[str, bool, int, bool], _InstrumentedModule] = {}
_instrumented: dict[int, types.CodeType] = {}
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # used by notebook cells
_FUTURES = functools.reduce(operator.or_, [getattr(__future__, name).compiler_flag for name in __future__.all_feature_names]) & ~inspect.CO_NESTED
"""`__future__` flags of code: a notebook cell inherits those of earlier cells."""


def is_instrumented(code: types.CodeType | None) -> bool:
    return id(code) in _instrumented


def twin(fn: types.FunctionType, deciding: bool = False) -> types.FunctionType:
    """Return the same function instrumented: same globals, variables, defaults, attributes.

    Raises JournalError if its source is missing or is not that of the running code.
    """
    code = _code_of(fn, deciding)
    made = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__, made.__qualname__, made.__doc__ = fn.__kwdefaults__, fn.__qualname__, fn.__doc__
    made.__dict__.update(fn.__dict__)
    return made


def instrument(fn: types.FunctionType, deciding: bool = False) -> None:
    """Instrument a function in place: outside of journaled runs its hooks do nothing. Raises JournalError as `twin` does."""
    if not is_instrumented(fn.__code__):
        made = _code_of(fn, deciding)
        as_written[id(made)] = fn.__code__
        fn.__code__ = made


def _code_of(fn: types.FunctionType, deciding: bool) -> types.CodeType:
    code, why = fn.__code__, ""
    for fresh in (False, True):
        if fresh:
            linecache.checkcache(code.co_filename)
        found = _module(code.co_filename, deciding, code.co_flags & _FUTURES, has_rewritten_asserts(code))
        if found is None:
            why = f"has no source that can be read{': define it in a cell without %%time' * is_timed(code.co_filename)}"
            continue
        same = [instrumented for plain, instrumented in found.codes.get((code.co_firstlineno, code.co_name), ()) if code == plain]
        if same:
            return same[0]
        why = "is not what its source says now: the file was edited, or something rewrote the code"
    raise JournalError(
        f"{fn.__qualname__} cannot be journaled: its code at {code.co_filename}:{code.co_firstlineno} {why}. "
        "Run it from an unchanged file; a function that only the program calls can be marked @lmc.host, and then its result is in the journal",
        loc=Loc(code.co_filename, code.co_firstlineno),
    )


def _module(file: str, deciding: bool, futures: int, asserts: bool) -> _InstrumentedModule | None:
    """Return a file compiled with these flags, `asserts` as pytest rewrites them, cached while its text stays the same. None: it cannot be read, or is not
    Python."""
    lines = linecache.getlines(file)
    text, key = "".join(lines), (file, deciding, futures, asserts)
    if not text:
        return None
    if (found := _modules.get(key)) is None or found.text != text:
        with parsing:
            if (found := _modules.get(key)) is None or found.text != text:
                found = _built(file, text, lines, deciding, _FLAGS | futures, asserts)
                if found is not None:
                    _modules[key] = found  # complete: other threads read this without the lock
    return found


def _built(file: str, text: str, lines: Sequence[str], deciding: bool, flags: int, asserts: bool) -> _InstrumentedModule | None:
    parsed = _parsed_by_pytest if asserts else ast.parse
    try:
        plain = _compiled(_located(parsed(text, file)), file, flags)
        rewrite = _Rewrite(file, lines, deciding)
        twins = [_with_hooks(code, rewrite.hooks) for code in _compiled(_located(rewrite.visit(parsed(text, file))), file, flags)]
    except (SyntaxError, ValueError):
        return None
    made = _InstrumentedModule(text, {})
    for one, other in zip(*(chain.from_iterable(map(codes, units)) for units in (plain, twins)), strict=True):
        assert one.co_name == other.co_name and one.co_freevars == other.co_freevars, "a rewriting that changes what is defined"
        made.codes.setdefault((one.co_firstlineno, one.co_name), []).append((one, other))
        _instrumented[id(other)] = other
    return made


def _compiled(tree: ast.Module, file: str, flags: int) -> list[types.CodeType]:
    """Compile a module; a cell also statement by statement, as IPython does: a method call on a name that its own unit imports has another bytecode."""
    units = [tree] if os.path.exists(file) else [tree, *(ast.Module([statement], []) for statement in tree.body)]
    return [compile(unit, file, "exec", flags, dont_inherit=True) for unit in units]


def _parsed_by_pytest(text: str, file: str) -> ast.Module:
    """Parse a file with its asserts rewritten by the pytest that has imported it."""
    tree = ast.parse(text, file)
    hook = next((finder for finder in sys.meta_path if type(finder).__module__ == _PYTEST), None)
    sys.modules[_PYTEST].rewrite_asserts(tree, text.encode(), file, getattr(hook, "config", None))
    return tree


def _located(tree: ast.Module) -> ast.Module:
    """Fill in missing locations; nodes of pytest's have a beginning and no end."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr) and getattr(node, "lineno", None) is not None and getattr(node, "end_lineno", None) is None:
            node.end_lineno, node.end_col_offset = node.lineno, node.col_offset
    return ast.fix_missing_locations(tree)


_PYTEST = "_pytest.assertion.rewrite"
