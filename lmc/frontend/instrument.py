"""Instrumentation: rewrites a Python function so that everything that could touch a symbolic value goes through a hook.

The new code keeps the file name, line numbers, globals object and closure cells of the old one, so tracebacks and
debuggers point at the user's lines. What a hook does depends on the active mode (hooks.py): without one it is what
plain Python does.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations
import __future__

import ast
import contextlib
import dis
import functools
import inspect
import itertools
import linecache
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmc.errors import Loc
from lmc.frontend.aio import WAITING_METHODS
from lmc.frontend.values import TraceEscape, active

HOOKS_NAME = "__lmc__"

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.LShift: "<<",
    ast.RShift: ">>", ast.BitOr: "|", ast.BitXor: "^", ast.BitAnd: "&", ast.MatMult: "@",
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], str] = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is", ast.IsNot: "is not",
    ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class CannotInstrument(TraceEscape):
    """The function's source is missing or uses what capture does not know; the message names the place."""


# -- finding the source --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    node: FunctionNode
    class_name: str | None  # the class it is defined in, for names like `__private`


@dataclass(frozen=True)
class _Module:
    """The parsed and compiled source of a file: its functions and their code by first line and name."""

    text: str
    functions: dict[tuple[int, str], list[_Found]]
    codes: dict[tuple[int, str], list[types.CodeType]]


_modules: dict[str, _Module] = {}
_parsing = threading.RLock()
"""CPython 3.11 raises SystemError ("AST constructor recursion depth mismatch") where two threads parse or compile at once."""


def _module(file: str) -> _Module | None:
    """The source of a file, cached while the text stays the same."""
    text = "".join(linecache.getlines(file))
    if not text:
        return None
    cached = _modules.get(file)
    if cached is None or cached.text != text:
        try:
            with _parsing:
                tree, compiled = ast.parse(text, file), compile(text, file, "exec", dont_inherit=True)
        except SyntaxError:
            return None
        cached = _modules[file] = _Module(text, {}, {})
        for found in _functions(tree):
            cached.functions.setdefault((_first_line(found.node), getattr(found.node, "name", "<lambda>")), []).append(found)
        for code in _codes(compiled):
            cached.codes.setdefault((code.co_firstlineno, code.co_name), []).append(code)
        tried[file] = _tried_lines(tree)
    return cached


tried: dict[str, frozenset[int]] = {}
"""By file, the lines whose exceptions a `try` around them may see."""


def _tried_lines(tree: ast.Module) -> frozenset[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try | ast.TryStar):
            inside: list[ast.AST] = [*node.body]
            if node.finalbody:
                inside += [*node.handlers, *node.orelse]
            for stmt in inside:
                found.update(range(stmt.lineno, (stmt.end_lineno or stmt.lineno) + 1))  # type: ignore[attr-defined]
    return frozenset(found)


def _first_line(node: ast.AST) -> int:
    decorators = getattr(node, "decorator_list", [])
    return decorators[0].lineno if decorators else node.lineno  # type: ignore[attr-defined]


def _functions(tree: ast.AST, class_name: str | None = None) -> Iterator[_Found]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, child.name)
        else:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield _Found(child, class_name)
            yield from _functions(child, class_name)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const
            yield from _codes(const)


def _same_code(a: types.CodeType, b: types.CodeType) -> bool:
    """Whether two code objects came from the same source (the file may have been edited since it was imported)."""
    if any(name.startswith("@py") for name in a.co_varnames + a.co_names):
        return True  # pytest rewrote the module's asserts
    return a.co_code == b.co_code and a.co_names == b.co_names and [c for c in a.co_consts if not isinstance(c, types.CodeType)] == [
        c for c in b.co_consts if not isinstance(c, types.CodeType)
    ]


def _find(fn: types.FunctionType) -> _Found:
    code = fn.__code__
    where = Loc(code.co_filename, code.co_firstlineno)
    module = _module(code.co_filename)
    if module is None:
        raise CannotInstrument(f"{fn.__qualname__} has no readable source ({where})")
    place = (code.co_firstlineno, code.co_name)
    nodes = module.functions.get(place, [])
    if not nodes or not any(_same_code(code, c) for c in module.codes.get(place, [])):
        raise CannotInstrument(f"the source of {fn.__qualname__} at {where} is not the one that was imported")
    if len(nodes) > 1:
        raise CannotInstrument(f"several functions named {code.co_name} start at {where}")
    return nodes[0]


def node_of(code: types.CodeType) -> FunctionNode | None:
    """The source of code that was instrumented or that `instrument` would take; None if it is not certain which it is."""
    module = _module(code.co_filename)
    if module is None:
        return None
    nodes = module.functions.get((code.co_firstlineno, code.co_name)) or [  # what was instrumented begins behind its decorators
        found for (_, name), some in module.functions.items() if name == code.co_name for found in some if found.node.lineno == code.co_firstlineno]  # fmt: skip
    return nodes[0].node if len(nodes) == 1 else None


# -- scopes --------------------------------------------------------------------------------------------------------


def _arguments(args: ast.arguments) -> list[str]:
    found = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return found + [a.arg for a in (args.vararg, args.kwarg) if a is not None]


class _Bindings(ast.NodeVisitor):
    """Names a function binds itself, and those it declares global or nonlocal; does not enter inner scopes."""

    def __init__(self, node: ast.AST) -> None:
        self.bound: set[str] = set()
        self.global_: set[str] = set()
        self.nonlocal_: set[str] = set()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            self.bound.update(_arguments(node.args))
        for part in node.body if isinstance(node.body, list) else [node.body]:  # type: ignore[attr-defined]
            self.visit(part)
        self.bound -= self.global_ | self.nonlocal_

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.bound.add(node.id)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.bound.add(node.name)
        for outer in node.decorator_list:
            self.visit(outer)

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        pass

    def _comprehension(self, node: ast.AST) -> None:
        for inner in ast.walk(node):  # a walrus binds in the function around the comprehension
            if isinstance(inner, ast.NamedExpr):
                self.bound.add(inner.target.id)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Global(self, node: ast.Global) -> None:
        self.global_.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.nonlocal_.update(node.names)

    def visit_alias(self, node: ast.alias) -> None:
        self.bound.add((node.asname or node.name).split(".")[0])

    def _visit_named(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.bound.add(node.name)
        self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = _visit_named

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self.bound.add(node.rest)
        self.generic_visit(node)


# -- the rewrite ---------------------------------------------------------------------------------------------------

_UNHOOKED = {"super", "__build_class__"}  # need the frame they are called in
_FORBIDDEN = {"exec": "exec", "vars": "vars() of the frame", "dir": "dir() of the frame", "globals": "globals()"}


class _Rewrite(ast.NodeTransformer):
    def __init__(self, fn: types.FunctionType, class_name: str | None) -> None:
        self.globals = fn.__globals__
        self.file = fn.__code__.co_filename
        self.free = set(fn.__code__.co_freevars)
        self.class_name = class_name
        self.evaluates_annotations = not fn.__code__.co_flags & __future__.annotations.compiler_flag
        self.scopes: list[_Bindings | _Names] = []
        self.temps = 0
        self.managers = set[ast.AST]()  # functions under @contextmanager
        self.guarding = set[tuple[str, int]]()  # those of them that may handle what is raised where they are left, by name and line
        self.cleaning = set[tuple[str, int]]()  # other generator functions that do something where they are left
        self.thunks = 0  # > 0 where an assignment expression is not allowed
        self.awaits = False  # whether `await` is allowed here, so that reads need not hold the event loop

    # small builders

    def hook(self, name: str, *args: ast.expr, at: ast.AST, keywords: list[ast.keyword] | None = None) -> ast.Call:
        """`__lmc__.name(args)` at the place of `at`."""
        target = ast.Attribute(ast.Name(HOOKS_NAME, ast.Load()), name, ast.Load())
        call = ast.Call(target, list(args), keywords or [])
        _placed(call, at)
        target.end_lineno, target.end_col_offset = target.lineno, target.col_offset  # or the call would count as on its last line
        return call

    def temp(self) -> str:
        self.temps += 1
        return f"__lmc_t{self.temps}__"

    def refuse(self, what: str, at: ast.AST) -> CannotInstrument:
        return CannotInstrument(f"{what} ({Loc(self.file, getattr(at, 'lineno', 0))})")

    def mangle(self, name: str) -> str:
        if self.class_name and name.startswith("__") and not name.endswith("__") and "." not in name:
            return f"_{self.class_name.lstrip('_')}{name}"
        return name

    def const(self, value: Any, at: ast.AST) -> ast.expr:
        return ast.copy_location(ast.Constant(value), at)

    # names

    def place(self, name: str) -> str:
        """Where a name lives: `local` (also cells of traced functions), `free` (outside cells) or `global`."""
        innermost = True
        for scope in reversed(self.scopes):
            if name in scope.global_:
                return "global"
            if name in scope.bound and (innermost or not isinstance(scope, _ClassBindings)):
                return "local"
            innermost = False
        return "free" if name in self.free else "global"

    def visit_Name(self, node: ast.Name) -> ast.expr:
        where, node.id = self.place(node.id), self.mangle(node.id)
        if not isinstance(node.ctx, ast.Load) or node.id.startswith("__lmc"):
            return node
        if where == "local":
            return node
        return self.hook("glob" if where == "global" else "free", self.const(node.id, node), node, at=node)

    # expressions

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        func = node.func
        if isinstance(func, ast.Name) and self.place(func.id) == "global":
            if func.id == "locals" and not node.args:
                return self.hook("names", node, at=node)
            if func.id in _UNHOOKED and not (func.id == "super" and node.args):
                return node
            if func.id in _FORBIDDEN and (func.id in ("exec", "globals") or not node.args):
                raise self.refuse(_FORBIDDEN[func.id], node)
            if func.id == "eval" and len(node.args) == 1:
                inside = ast.copy_location(ast.Call(ast.Name("globals", ast.Load()), [], []), node)
                outside = ast.copy_location(ast.Call(ast.Name("locals", ast.Load()), [], []), node)
                text = self.visit(node.args[0])
                return self.hook("eval_", text, ast.fix_missing_locations(inside), ast.fix_missing_locations(outside), at=node)
        hook, callee = self._callee(node)
        args, keywords = self._arguments(node, callee)
        call = self.hook(hook, *callee, *args, keywords=keywords, at=node)
        return self.awaited(call, node) if hook == "callm_ready" else call

    def _callee(self, node: ast.Call) -> tuple[str, list[ast.expr]]:
        """The hook that calls, and what it calls: a function, or an owner and the name of its method."""
        func = node.func
        if not isinstance(func, ast.Attribute) or _is_super(func.value):
            return "call", [self.visit(func)]
        owner = self.visit(func.value)
        if any(map(_may_run, node.args)) or any(_may_run(k.value) for k in node.keywords):  # the method is looked up first
            owner = self.hook("has_method", owner, self.const(self.mangle(func.attr), func), at=func)
        waits = self.awaits and not self.thunks and func.attr in WAITING_METHODS
        return "callm_ready" if waits else "callm", [owner, self.const(self.mangle(func.attr), func)]

    def _arguments(self, node: ast.Call, callee: list[ast.expr]) -> tuple[list[ast.expr], list[ast.keyword]]:
        """The arguments of a call, in Python's order. Where it would name the callee in an error (`f(*5)`, `f(**5)`), hooks are told."""
        alone = len(node.args) == 1 and isinstance(node.args[0], ast.Starred)
        merged = any(k.arg is None for k in node.keywords)
        if self.thunks or not (alone or merged):
            args = [self._starred(a) for a in node.args]
            return args, [ast.keyword(k.arg, self.visit(k.value) if k.arg else self.hook("dstar", self.visit(k.value), at=k.value)) for k in node.keywords]
        kept = self.temp()
        callee[0] = self._kept(kept, callee[0], node)
        about = [ast.copy_location(ast.Name(kept, ast.Load()), node), *callee[1:]]
        if not alone:
            return [self._starred(a) for a in node.args], [ast.keyword(None, self._merged(node, about))]
        (star,) = node.args
        assert isinstance(star, ast.Starred)
        if not any(_may_run(k.value) for k in node.keywords):
            items = self.hook("star", self.visit(star.value), *about, at=star)
            keywords = [ast.keyword(None, self._merged(node, about))] if node.keywords else []
        else:  # the items are taken when all else is there
            value, given = self.temp(), self.temp()
            first = [self._kept(value, self.visit(star.value), star), self._kept(given, self._merged(node, about), node)]
            last = self.hook("star", ast.Name(value, ast.Load()), *about, at=star)
            items = ast.Subscript(ast.Tuple([*first, last], ast.Load()), ast.Constant(2), ast.Load())
            keywords = [ast.keyword(None, ast.Name(given, ast.Load()))]
        return [ast.fix_missing_locations(ast.copy_location(ast.Starred(items, ast.Load()), star))], keywords

    def _merged(self, node: ast.Call, callee: list[ast.expr]) -> ast.expr:
        """The keywords of a call as a dict, merged from left to right."""
        done: ast.expr = ast.Dict([], [])
        for named, group in itertools.groupby(node.keywords, lambda k: k.arg is not None):
            parts = list(group)
            more = [self.visit(k.value) for k in parts]
            if named:
                names: list[ast.expr | None] = [self.const(k.arg, node) for k in parts]
                more = [ast.copy_location(ast.Dict(names, more), node)]
            for part in more:
                done = part if named and isinstance(done, ast.Dict) and not done.keys else self.hook("named" if named else "merged", done, part, *callee, at=node)
        return ast.fix_missing_locations(ast.copy_location(done, node))

    def _kept(self, name: str, value: ast.expr, at: ast.AST) -> ast.expr:
        return ast.fix_missing_locations(ast.copy_location(self._keep(name, value), at))

    def _starred(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Starred):
            return ast.copy_location(ast.Starred(self.hook("star", self.visit(node.value), at=node), node.ctx), node)
        return self.visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        return self.hook("binop", self.const(_BINARY[type(node.op)], node), left, right, at=node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.operand, ast.Constant):
            return node
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return self.hook("not_", operand, at=node)
        return self.hook("unary", self.const(_UNARY[type(node.op)], node), operand, at=node)

    def _choose(self, kind: type[ast.boolop], parts: list[ast.expr], at: ast.AST) -> ast.expr:
        """`a and b` as `b if truth(t := a) else t`; as thunks where an assignment expression is not allowed."""
        if len(parts) == 1:
            return parts[0]
        first, rest = parts[0], self._choose(kind, parts[1:], at)
        if self.thunks:
            if any(isinstance(n, ast.Await) for part in (first, rest) for n in ast.walk(part)):
                raise self.refuse("await under `and` or `or` inside a comprehension's iterable", at)
            return self.hook("and_" if kind is ast.And else "or_", self._thunk(first, at), self._thunk(rest, at), at=at)
        name = self.temp()
        kept = ast.copy_location(ast.NamedExpr(ast.Name(name, ast.Store()), first), at)
        test = self.hook("side", kept, at=at)
        again = ast.Name(name, ast.Load())
        branches = (rest, again) if kind is ast.And else (again, rest)
        return ast.fix_missing_locations(ast.copy_location(ast.IfExp(test, *branches), at))

    def _thunk(self, part: ast.expr, at: ast.AST) -> ast.expr:
        if any(isinstance(n, ast.Await) for n in ast.walk(part)):
            raise self.refuse("await under `and`, `or` or a comparison inside a comprehension's iterable", at)
        empty = ast.arguments([], [], None, [], [], None, [])
        return ast.fix_missing_locations(ast.copy_location(ast.Lambda(empty, part), at))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return self._choose(type(node.op), [self.visit(v) for v in node.values], node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if self.thunks and len(node.ops) > 1:  # where an assignment expression is not allowed
            signs = [self.const(_COMPARE[type(op)], node) for op in node.ops]
            return self.hook("chain", ast.copy_location(ast.Tuple(signs, ast.Load()), node), self.visit(node.left),
                             *[self._thunk(self.visit(c), node) for c in node.comparators], at=node)  # fmt: skip
        left = self.visit(node.left)
        terms: list[ast.expr] = []
        for i, (op, right_node) in enumerate(zip(node.ops, node.comparators, strict=True)):
            right = self.visit(right_node)
            if i + 1 < len(node.ops):
                name = self.temp()
                right = ast.copy_location(ast.NamedExpr(ast.Name(name, ast.Store()), right), right_node)
                following: ast.expr = ast.copy_location(ast.Name(name, ast.Load()), right_node)
            else:
                following = right
            terms.append(self.hook("compare", self.const(_COMPARE[type(op)], node), left, right, at=node))
            left = following
        return self._choose(ast.And, terms, node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node.test = self.hook("truth", self.visit(node.test), at=node.test)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts: list[ast.expr] = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                spec = self.visit(value.format_spec) if value.format_spec else self.const("", node)
                conversion = self.const("" if value.conversion < 0 else chr(value.conversion), node)
                part: ast.expr = ast.copy_location(ast.Tuple([self.visit(value.value), conversion, spec], ast.Load()), node)
                later = node.values[len(parts) + 1 :]
                parts.append(self.hook("fstring", part, at=node) if any(map(_may_run, later)) else part)  # formatted before they run
            else:
                parts.append(self.visit(value))
        return self.hook("fstring", *parts, at=node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        node.value, node.slice = self.visit(node.value), self.visit(node.slice)
        if not isinstance(node.ctx, ast.Load):
            return node
        if self.awaits and not self.thunks:
            return self.awaited(self.hook("getitem_ready", node.value, node.slice, at=node), node)
        return self.hook("getitem", node.value, node.slice, at=node)

    def visit_Slice(self, node: ast.Slice) -> ast.expr:
        bounds = [self.visit(b) if b else self.const(None, node) for b in (node.lower, node.upper, node.step)]
        for bound in bounds:
            if not hasattr(bound, "lineno"):
                ast.copy_location(bound, node)
        return self.hook("slice_", *bounds, at=node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        node.value, node.attr = self.visit(node.value), self.mangle(node.attr)
        if isinstance(node.ctx, ast.Load):
            return self.hook("getattr", node.value, self.const(node.attr, node), at=node)
        return node

    def visit_List(self, node: ast.List) -> ast.expr:
        node.elts = [self._starred(e) for e in node.elts]
        return self.hook("made", node, at=node) if isinstance(node.ctx, ast.Load) else node

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        node.elts = [self._starred(e) for e in node.elts]
        return node

    def visit_Set(self, node: ast.Set) -> ast.expr:
        each: list[ast.expr] = [ast.Starred(self.hook("iter", self.visit(e.value), at=e), e.ctx) if isinstance(e, ast.Starred) else self.visit(e) for e in node.elts]
        items = ast.fix_missing_locations(ast.copy_location(ast.List(each, ast.Load()), node))
        return self.hook("build_set", items, at=node)

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        items: list[ast.expr] = []
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                items.append(self.hook("dstar", self.visit(value), at=value))
            else:
                items.append(ast.copy_location(ast.Tuple([self.visit(key), self.visit(value)], ast.Load()), node))
        return self.hook("build_dict", ast.copy_location(ast.List(items, ast.Load()), node), at=node)

    # comprehensions

    def _generators(self, generators: list[ast.comprehension], build: Callable[[], list[ast.expr]]) -> list[ast.expr]:
        """Rewrites the clauses in evaluation order, then the element expressions, in the comprehension's scope."""
        scope = _Names({n.id for g in generators for n in ast.walk(g.target) if isinstance(n, ast.Name)})
        entered = False
        for gen in generators:
            self.thunks += 1
            iterable = self.visit(gen.iter)
            self.thunks -= 1
            if not entered:
                self.scopes.append(scope)
                entered = True
            spec = self._spec(gen.target)
            starred = any(isinstance(n, ast.Starred) for n in ast.walk(gen.target))
            gen.target = _unstarred(gen.target)
            if starred and gen.is_async:
                raise self.refuse("a starred target in an async comprehension", gen.target)
            gen.iter = self.hook("aiter" if gen.is_async else "iter_starred" if starred else "iter", iterable, *([spec] if spec else []), at=gen.iter)
            gen.ifs = [self.hook("truth", self.visit(test), at=test) for test in gen.ifs]
        try:
            return build()
        finally:
            self.scopes.pop()

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        (node.elt,) = self._generators(node.generators, lambda: [self.visit(node.elt)])
        return self.hook("made", node, at=node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        awaits, self.awaits = self.awaits, False  # `await` would make it an async generator
        (node.elt,) = self._generators(node.generators, lambda: [self.visit(node.elt)])
        self.awaits = awaits
        return self.hook("made", node, at=node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.expr:
        (elt,) = self._generators(node.generators, lambda: [self.visit(node.elt)])
        return self.hook("build_set", ast.copy_location(ast.ListComp(elt, node.generators), node), at=node)

    def visit_DictComp(self, node: ast.DictComp) -> ast.expr:
        key, value = self._generators(node.generators, lambda: [self.visit(node.key), self.visit(node.value)])
        pair = ast.copy_location(ast.Tuple([key, value], ast.Load()), node)
        return self.hook("build_dict", ast.copy_location(ast.ListComp(pair, node.generators), node), at=node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.expr:
        node.value = self.hook("iter", self.visit(node.value), at=node)
        return node

    def visit_Await(self, node: ast.Await) -> ast.expr:
        value = self.visit(node.value)
        if isinstance(value, ast.Call) and isinstance(hook := value.func, ast.Attribute) and hook.attr in ("call", "callm"):
            hook.attr += "_awaited"  # a hook that knows that what the call gives is awaited at once
        node.value = self.hook("awaited", value, at=node.value)
        return node

    def awaited(self, value: ast.expr, at: ast.AST) -> ast.expr:
        return ast.copy_location(ast.Await(value), at)

    # scopes

    def _inner(self, node: Any, scope: Any) -> None:
        """Rewrites the body of an inner function or class in its own scope."""
        late = next(_cleaned_up(node), None)
        if late is not None and node in self.managers:
            self.guarding.add((node.name, _first_line(node)))
        elif late is not None:
            if not isinstance(node, ast.FunctionDef) or not _ends_when_left(node):
                raise self.refuse("`yield` inside of `try` or `with`", late)
            self.cleaning.add((node.name, _first_line(node)))
        self.scopes.append(scope)
        thunks, self.thunks = self.thunks, 0
        awaits, self.awaits = self.awaits, isinstance(node, ast.AsyncFunctionDef)
        body = node.body
        if isinstance(body, list):
            node.body = self._body(body)
            self._own_kwargs(node)
        else:
            node.body = self.visit(body)
        self.thunks, self.awaits = thunks, awaits
        self.scopes.pop()

    def _own_kwargs(self, node: Any) -> None:
        """The dict of `**kwargs` is one that the program made."""
        kwarg = node.args.kwarg if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
        if kwarg is not None:
            first: Any = node.body[0]
            after_doc = int(isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant))
            node.body.insert(after_doc, self._own(kwarg.arg, node))

    def _own(self, name: str, at: ast.AST) -> ast.stmt:
        """`name = made(name)`: a container that Python made for the program."""
        load = ast.copy_location(ast.Name(name, ast.Load()), at)
        own = ast.Assign([ast.Name(name, ast.Store())], self.hook("made", load, at=at))
        return ast.fix_missing_locations(ast.copy_location(own, at))

    def _defaults(self, args: ast.arguments) -> None:
        args.defaults = [self.visit(d) for d in args.defaults]
        args.kw_defaults = [self.visit(d) if d else None for d in args.kw_defaults]
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
            if arg is not None:
                arg.arg, arg.annotation = self.mangle(arg.arg), self._annotation(arg.annotation)

    def is_manager(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether `contextlib.contextmanager`, or `asynccontextmanager`, alone is what a function goes through, and leaving it always ends it."""
        maker = contextlib.contextmanager if isinstance(node, ast.FunctionDef) else contextlib.asynccontextmanager
        match node.decorator_list:
            case [ast.Name(name)]:
                alone = self.place(name) == "global" and self.globals.get(name) is maker
            case [ast.Attribute(ast.Name(module), attribute)] if attribute == maker.__name__:
                alone = self.place(module) == "global" and self.globals.get(module) is contextlib
            case _:
                return False
        return alone and _ends_when_left(node)

    def _annotation(self, node: ast.expr | None) -> ast.expr | None:
        """What a function says of its types, for those who look at it: Python evaluates it, as it is."""
        if node is not None and self.evaluates_annotations and _may_run(node):
            raise self.refuse("a call in an annotation of an inner function", node)
        return node

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Tells the mode of a definition before its decorators see it."""
        name, inner = node.name, bool(self.scopes)
        if inner and self.place(name) != "local" and not (name in self.scopes[-1].nonlocal_ and self._in_traced(name)):
            raise self.refuse(f"a definition of {name} outside of the program", node)
        node.decorator_list.append(self.hook("defined", at=node).func)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        self._defaults(node.args)
        self._inner(node, _Bindings(node))
        defined = self.hook("defined", node, at=node)
        if node.args.kwarg is not None:  # its dict is one that the program made
            name = node.args.kwarg.arg
            inner = ast.Lambda(ast.arguments([], [ast.arg(name)], None, [], [], None, []), node.body)
            made = self.hook("made", ast.copy_location(ast.Name(name, ast.Load()), node), at=node)
            node.body = ast.fix_missing_locations(ast.copy_location(ast.Call(inner, [made], []), node))
        return defined

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        if self.is_manager(node):
            self.managers.add(node)
        node.decorator_list = [self.hook("decorator", self.visit(d), at=d) for d in node.decorator_list]
        self._defaults(node.args)
        node.returns = self._annotation(node.returns)
        self._define(node)
        self._inner(node, _Bindings(node))
        node.name = self.mangle(node.name)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        node.decorator_list = [self.hook("decorator", self.visit(d), at=d) for d in node.decorator_list]
        node.bases = [self._starred(b) if isinstance(b, ast.Starred) else self.hook("base", self.visit(b), at=b) for b in node.bases]
        for keyword in node.keywords:
            keyword.value = self.hook("base", self.visit(keyword.value), at=keyword.value)
        self._define(node)
        outer, self.class_name = self.class_name, node.name
        self._inner(node, _ClassBindings(node))
        self.class_name = outer
        return node

    # statements

    def _body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for stmt in body:
            new = self.visit(stmt)
            done.extend(new if isinstance(new, list) else [new])
        return done

    def visit_If(self, node: ast.If | ast.While) -> ast.stmt:
        node.test = self.hook("truth", self.visit(node.test), at=node.test)
        node.body, node.orelse = self._body(node.body), self._body(node.orelse)
        return node

    visit_While = visit_If

    def visit_For(self, node: ast.For | ast.AsyncFor) -> ast.stmt:
        spec = self._spec(node.target)
        node.iter = self.hook("iter" if isinstance(node, ast.For) else "aiter", self.visit(node.iter), *([spec] if spec else []), at=node.iter)
        target, stores = self._target(node.target)
        node.target = target
        node.body, node.orelse = stores + self._body(node.body), self._body(node.orelse)
        return node

    visit_AsyncFor = visit_For

    def visit_With(self, node: ast.With | ast.AsyncWith) -> ast.stmt:
        """One manager a statement; what `as` names is stored in the block."""
        first, *rest = node.items
        if rest:
            inner = ast.copy_location(type(node)(rest, node.body), node)
            node = ast.copy_location(type(node)([first], [inner]), node)
        hook = "enter" if isinstance(node, ast.With) else "aenter"
        first.context_expr = self.hook(hook, self.visit(first.context_expr), at=first.context_expr)
        stores: list[ast.stmt] = []
        target = first.optional_vars
        if target is not None and not (isinstance(target, ast.Name) and self.place(target.id) == "local"):
            name = self.temp()
            stores = self._store(target, ast.copy_location(ast.Name(name, ast.Load()), target), target)
            first.optional_vars = ast.copy_location(ast.Name(name, ast.Store()), target)
        node.body = stores + self._body(node.body)
        return node

    visit_AsyncWith = visit_With

    def visit_Try(self, node: ast.Try) -> ast.stmt:
        node.body, node.orelse, node.finalbody = self._body(node.body), self._body(node.orelse), self._body(node.finalbody)
        for handler in node.handlers:
            if handler.type is not None:
                handler.type = self.hook("handles", self.visit(handler.type), at=handler.type)
            handler.body = self._body(handler.body)
        return node

    def visit_TryStar(self, node: Any) -> ast.stmt:
        return self.visit_Try(node)

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        if node.exc is not None:
            cause = [] if node.cause is None else [self.visit(node.cause)]
            node.exc, node.cause = self.hook("raise_", self.visit(node.exc), *cause, at=node.exc), None
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """`assert` as the `if` and `raise` that it is; gone where Python leaves it out."""
        fails = ast.copy_location(ast.UnaryOp(ast.Not(), self.hook("truth", self.visit(node.test), at=node.test)), node)
        says = [self.visit(node.msg)] if node.msg is not None else []
        error = ast.copy_location(ast.Raise(self.hook("failed", *says, at=node), None), node)
        debug = ast.copy_location(ast.Name("__debug__", ast.Load()), node)
        test = ast.copy_location(ast.BoolOp(ast.And(), [debug, fails]), node)
        return ast.fix_missing_locations(ast.copy_location(ast.If(test, [error], []), node))

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        value = self.visit(node.value)
        if len(node.targets) == 1:
            return self._store(node.targets[0], value, node)
        name = self.temp()
        first = ast.Assign([ast.Name(name, ast.Store())], value)
        done: list[ast.stmt] = [ast.fix_missing_locations(ast.copy_location(first, node))]
        for target in node.targets:
            done += self._store(target, ast.copy_location(ast.Name(name, ast.Load()), node), node)
        return done

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if self.scopes and isinstance(self.scopes[-1], _ClassBindings) and isinstance(node.target, ast.Name):
            node.target.id = self.mangle(node.target.id)  # the class has the annotation, which may make a field
            node.value = node.value and self.visit(node.value)
            return node
        if node.value is not None:
            return self._store(node.target, self.visit(node.value), node)
        node.annotation = self.const(None, node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        op, target = self.const(_BINARY[type(node.op)], node), node.target
        if isinstance(target, ast.Attribute | ast.Subscript):
            return self._augment(target, op, node)
        load = self.visit(ast.copy_location(ast.Name(target.id, ast.Load()), target))
        return self._store(target, self.hook("iop", op, load, self.visit(node.value), at=node), node)

    def _augment(self, target: ast.Attribute | ast.Subscript, op: ast.expr, node: ast.AugAssign) -> list[ast.stmt]:
        """`owner.name += value`: owner and key are evaluated once."""
        done: list[ast.stmt] = []

        def once(expr: ast.expr) -> ast.expr:
            name = self.temp()
            done.append(ast.fix_missing_locations(ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], expr), node)))
            return ast.copy_location(ast.Name(name, ast.Load()), node)

        owner = once(self.visit(target.value))
        if isinstance(target, ast.Attribute):
            get, put, key = "getattr", "setattr", self.const(self.mangle(target.attr), node)
        else:
            get, put, key = "getitem", "setitem", once(self.visit(target.slice))
        value = self.hook("iop", op, self.hook(get, owner, key, at=node), self.visit(node.value), at=node)
        done.append(ast.copy_location(ast.Expr(self.hook(put, owner, key, value, at=node)), node))
        return done

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        node.value = self.visit(node.value)
        if self.place(node.target.id) != "local":
            raise self.refuse("an assignment expression that stores outside of the program", node)
        return node

    def _store(self, target: ast.expr, value: ast.expr, at: ast.AST) -> list[ast.stmt]:
        """Statements that store `value` in a target of any form."""
        spec = self._spec(target)
        if spec is not None:
            value = self.hook("unpack", value, spec, at=at)
        if isinstance(target, ast.Attribute | ast.Subscript):
            return [self._store_one(target, value, at)]
        simple, stores = self._target(target)
        if isinstance(target, ast.Name) and stores:
            return [self._store_one(target, value, at)]
        assign = ast.fix_missing_locations(ast.copy_location(ast.Assign([simple], value), at))
        return [assign, *stores]

    def _store_one(self, target: ast.expr, value: ast.expr, at: ast.AST) -> ast.stmt:
        match target:  # Python evaluates the value first
            case ast.Attribute():
                call = self.hook("store_attr", value, self.visit(target.value), self.const(self.mangle(target.attr), at), at=at)
            case ast.Subscript():
                call = self.hook("store_item", value, self.visit(target.value), self.visit(target.slice), at=at)
            case ast.Name():
                if self.place(target.id) == "free":
                    raise self.refuse(f"a store to {target.id}, a variable of the function around the program", at)
                names = ast.copy_location(ast.Call(ast.Name("globals", ast.Load()), [], []), at)
                call = self.hook("store_global", self.const(self.mangle(target.id), at), value, names, at=at)
            case _:
                raise self.refuse("a store of this form", at)
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), at))

    def _target(self, target: ast.expr) -> tuple[ast.expr, list[ast.stmt]]:
        """A target of plain local names, and the statements that store its temporaries where the user wanted them."""
        spread: list[ast.stmt] = []  # what starred targets got becomes the program's own
        stores: list[ast.stmt] = []

        def leaf(node: ast.expr) -> ast.expr:
            if isinstance(node, ast.Tuple | ast.List):
                node.elts = [leaf(e) for e in node.elts]
                return node
            if isinstance(node, ast.Starred):
                node.value = leaf(node.value)
                assert isinstance(node.value, ast.Name)
                spread.append(self._own(node.value.id, node))
                return node
            if isinstance(node, ast.Name):
                nonlocal_here = bool(self.scopes) and node.id in self.scopes[-1].nonlocal_ and self._in_traced(node.id)
                if self.place(node.id) == "local" or nonlocal_here:
                    node.id = self.mangle(node.id)
                    if stores:  # what is stored before may read it: `a[i], i = …`
                        return later(node, lambda value: ast.Assign([node], value))
                    return node
            return later(node, lambda value: self._store_one(node, value, node))

        def later(node: ast.expr, store: Callable[[ast.expr], ast.stmt]) -> ast.expr:
            name = self.temp()
            done = store(ast.copy_location(ast.Name(name, ast.Load()), node))
            stores.append(ast.fix_missing_locations(ast.copy_location(done, node)))
            return ast.copy_location(ast.Name(name, ast.Store()), node)

        return leaf(target), [*spread, *stores]

    def _in_traced(self, name: str) -> bool:
        return any(name in scope.bound for scope in self.scopes[:-1])

    def _spec(self, target: ast.expr) -> ast.expr | None:
        """The shape of an unpacking target as a nested tuple: None for a name, "*" for a starred one."""

        def shape(node: ast.expr) -> Any:
            if isinstance(node, ast.Tuple | ast.List):
                return tuple(shape(e) for e in node.elts)
            return "*" if isinstance(node, ast.Starred) else None

        found = shape(target)
        return None if found is None else ast.fix_missing_locations(ast.copy_location(ast.Constant(found), target))

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for target in node.targets:
            match target:
                case ast.Subscript():
                    call = self.hook("delitem", self.visit(target.value), self.visit(target.slice), at=node)
                case ast.Attribute():
                    call = self.hook("delattr", self.visit(target.value), self.const(self.mangle(target.attr), node), at=node)
                case ast.Name() if self.place(target.id) == "local":
                    done.append(ast.copy_location(ast.Delete([target]), node))
                    continue
                case _:
                    raise self.refuse("a deletion of this form", node)
            done.append(ast.copy_location(ast.Expr(call), node))
        return done

    # match: a chain of tests, so that a traced subject is asked what the patterns ask and no more

    def visit_Match(self, node: ast.Match) -> list[ast.stmt]:
        """`match x: case p if g: body …` as `t = x`, `if p matches t and names are bound and g: body`, `elif …`."""
        subject = self.temp()
        first = ast.Assign([ast.Name(subject, ast.Store())], self.visit(node.subject))
        orelse: list[ast.stmt] = []
        tests: list[tuple[ast.expr, list[ast.stmt], ast.AST]] = []
        for case in node.cases:
            captures: list[tuple[str, str]] = []
            test = self._pattern(case.pattern, subject, captures)
            parts = [] if test is None else [test]
            if captures:
                parts.append(ast.Tuple([self._keep(name, ast.Name(kept, ast.Load())) for name, kept in captures], ast.Load()))
            if case.guard is not None:
                parts.append(self.hook("truth", self.visit(case.guard), at=case.guard))
            tests.append((self._all(parts), self._body(case.body), case.pattern))
        for test, body, at in reversed(tests):
            orelse = [ast.fix_missing_locations(ast.copy_location(ast.If(test, body, orelse), at))]
        return [ast.fix_missing_locations(ast.copy_location(first, node)), *orelse]

    def _keep(self, name: str, value: ast.expr) -> ast.expr:
        return ast.NamedExpr(ast.Name(name, ast.Store()), value)

    def _all(self, tests: list[ast.expr]) -> ast.expr:
        return ast.Constant(True) if not tests else tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)

    def _pattern(self, pattern: ast.pattern, subject: str, captures: list[tuple[str, str]]) -> ast.expr | None:
        """Whether the variable `subject` matches, as an expression that gives a bool or None where it always does.

        What a name captures is kept in a variable of its own until the whole pattern has matched.
        """
        load = ast.Name(subject, ast.Load())
        match pattern:
            case ast.MatchValue():
                test = self.hook("compare", self.const("==", pattern), load, self.visit(pattern.value), at=pattern)
                return self.hook("truth", test, at=pattern)
            case ast.MatchSingleton():
                test = self.hook("compare", self.const("is", pattern), load, self.const(pattern.value, pattern), at=pattern)
                return self.hook("truth", test, at=pattern)
            case ast.MatchAs():
                test = None if pattern.pattern is None else self._pattern(pattern.pattern, subject, captures)
                kept = self._capture(pattern.name, subject, captures, pattern)
                return test if kept is None else self._all([test, kept] if test is not None else [kept])
            case ast.MatchOr():
                found: dict[str, str] = {}
                tests: list[ast.expr] = []
                for part in pattern.patterns:
                    inner: list[tuple[str, str]] = []
                    test = self._pattern(part, subject, inner)
                    same = [self._keep(found.setdefault(name, kept), ast.Name(kept, ast.Load())) for name, kept in inner]
                    tests.append(self._all([*([] if test is None else [test]), *([ast.Tuple(list(same), ast.Load())] if same else [])]))
                captures += found.items()
                return ast.BoolOp(ast.Or(), tests)
            case ast.MatchSequence():
                star = next((i for i, p in enumerate(pattern.patterns) if isinstance(p, ast.MatchStar)), -1)
                numbers = [self.const(n, pattern) for n in (len(pattern.patterns), star)]
                return self._parts("match_sequence", numbers, subject, pattern.patterns, captures, pattern)
            case ast.MatchMapping():
                keys = ast.copy_location(ast.Tuple([self.visit(k) for k in pattern.keys], ast.Load()), pattern)
                inside = [*pattern.patterns, *([ast.MatchAs(None, pattern.rest)] if pattern.rest else [])]
                return self._parts("match_mapping", [keys, self.const(bool(pattern.rest), pattern)], subject, inside, captures, pattern)
            case ast.MatchClass():
                about = [self.visit(pattern.cls), self.const(len(pattern.patterns), pattern), self.const(tuple(map(self.mangle, pattern.kwd_attrs)), pattern)]
                return self._parts("match_class", about, subject, [*pattern.patterns, *pattern.kwd_patterns], captures, pattern)
            case ast.MatchStar():
                return self._capture(pattern.name, subject, captures, pattern)
            case _:
                raise self.refuse("a pattern of this form", pattern)

    def _capture(self, name: str | None, subject: str, captures: list[tuple[str, str]], at: ast.AST) -> ast.expr | None:
        if name is None:
            return None
        if self.place(name) != "local":
            raise self.refuse("a pattern that stores outside of the program", at)
        kept = self.temp()
        captures.append((self.mangle(name), kept))
        return ast.Tuple([self._keep(kept, ast.Name(subject, ast.Load()))], ast.Load())  # not empty: always true

    def _parts(
        self, hook: str, about: list[ast.expr], subject: str, inside: list[ast.pattern], captures: list[tuple[str, str]], at: ast.AST
    ) -> ast.expr:
        """A hook gives the parts that the patterns inside are matched with, or None."""
        found = self.temp()
        taken = self.hook(hook, ast.Name(subject, ast.Load()), *about, at=at)
        tests: list[ast.expr] = [ast.Compare(self._keep(found, taken), [ast.IsNot()], [ast.Constant(None)])]
        for index, part in enumerate(inside):
            inner = self.temp()
            test = self._pattern(part, inner, captures)
            if test is not None:
                item = ast.Subscript(ast.Name(found, ast.Load()), ast.Constant(index), ast.Load())
                tests += [ast.Tuple([self._keep(inner, item)], ast.Load()), test]
        return self._all(tests)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _unstarred(target: Any) -> Any:
    """A target with names in place of starred names."""
    if isinstance(target, ast.Starred):
        return target.value
    if isinstance(target, ast.Tuple | ast.List):
        target.elts = [_unstarred(e) for e in target.elts]
    return target


class _ClassBindings(_Bindings):
    """Names bound in a class body; functions inside it do not see them."""


class _Names:
    """The scope of a comprehension: its targets."""

    def __init__(self, bound: set[str]) -> None:
        self.bound, self.global_, self.nonlocal_ = bound, set[str](), set[str]()


# -- the entry point -------------------------------------------------------------------------------------------------

_INNER, _FACTORY = "__lmc_function__", "__lmc_factory__"
_cache: dict[tuple[str, types.CodeType], types.CodeType | CannotInstrument] = {}


def _rewrite(fn: types.FunctionType) -> types.CodeType:
    found = _find(fn)
    node = _copied(found.node)
    rewrite = _Rewrite(fn, found.class_name)
    for args in [node.args]:
        args.defaults = [ast.copy_location(ast.Constant(None), d) for d in args.defaults]  # the real ones are in fn
        args.kw_defaults = [ast.copy_location(ast.Constant(None), d) if d else None for d in args.kw_defaults]
    for arg in ast.walk(node.args):
        if isinstance(arg, ast.arg):
            arg.annotation = None  # and so are these
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if rewrite.is_manager(node):
            rewrite.managers.add(node)
        node.decorator_list, node.returns = [], None
        _without_type_params(node)
        inner = rewrite.visit_FunctionDef(node)
        inner.name = _INNER  # its own name is what it calls itself by: a global, or a cell
        result: ast.stmt = inner
    else:
        result = ast.copy_location(ast.Expr(rewrite.visit_Lambda(node)), node)
    names = [HOOKS_NAME, *fn.__code__.co_freevars]
    params = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    factory = ast.FunctionDef(_FACTORY, params, [result], [], None)
    _without_type_params(factory)
    module = ast.fix_missing_locations(ast.copy_location(ast.Module([ast.copy_location(factory, result)], []), node))
    flags = fn.__code__.co_flags & 0x1FE0000  # the module's `from __future__` imports
    compiled = compile(module, fn.__code__.co_filename, "exec", flags=flags, dont_inherit=True)
    outer = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    for code in outer.co_consts:
        if isinstance(code, types.CodeType) and code.co_name in (_INNER, fn.__code__.co_name):
            code = _renamed(code.replace(co_name=fn.__code__.co_name), code.co_qualname, fn.__code__.co_qualname)
            _remember(code, None)
            cleaning.update(c for c in (code, *_codes(code)) if (c.co_name, c.co_firstlineno) in rewrite.cleaning)
            guarding.update(c for c in (code, *_codes(code)) if (c.co_name, c.co_firstlineno) in rewrite.guarding)
            return code
    raise CannotInstrument(f"the code of {fn.__qualname__} has a form that capture does not know ({fn.__code__.co_filename})")


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """The code, with the qualified names in it that begin with `old` beginning with `new`."""
    name = new + code.co_qualname.removeprefix(old)
    consts = [_renamed(c, old, new) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    if code.co_qualname.startswith(old + "."):
        consts = [name if c == code.co_qualname else c for c in consts]  # the body of a class stores its own
    return code.replace(co_consts=tuple(consts), co_qualname=name)


guarding: set[types.CodeType] = set()
"""Code of context managers whose `try` or `with` is around their `yield`."""

cleaning: set[types.CodeType] = set()
"""Code of other generator functions of which that is true: what it does at their end comes when Python chooses, if nobody runs them to it."""

_around: dict[types.CodeType, types.CodeType | None] = {}
"""Instrumented code, inner functions included, and the code of the function around it."""


def _remember(code: types.CodeType, around: types.CodeType | None) -> None:
    _around[code] = around
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            _remember(inner, code)


def is_instrumented(fn: types.FunctionType | types.CodeType) -> bool:
    """Whether a function's code went through here, by itself or inside of another function."""
    code = fn if isinstance(fn, types.CodeType) else fn.__code__
    return HOOKS_NAME in code.co_freevars or code in _around


def awaits(code: types.CodeType) -> bool:
    """Whether instrumented code may wait for anything but answers, that of its inner functions included."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return not _AWAITING.isdisjoint(code.co_names) or any(map(awaits, inner))


_AWAITING = frozenset({"awaited", "aiter", "aenter"})
"""Hooks of what may wait."""


def stays(code: types.CodeType, name: str) -> bool:
    """Whether a variable that instrumented code closes over keeps what it has: no code ever stores it again."""
    owner = _around.get(code)
    while owner is not None and name not in owner.co_cellvars:
        owner = _around.get(owner)
    if owner is None or any(_stores(inner, name) for inner in _codes(owner) if name in inner.co_freevars):
        return False
    arguments = owner.co_argcount + owner.co_kwonlyargcount + bool(owner.co_flags & inspect.CO_VARARGS) + bool(owner.co_flags & inspect.CO_VARKEYWORDS)
    stores = _stores(owner, name)
    if len(stores) + (name in owner.co_varnames[:arguments]) != 1:
        return False
    loops = [(i.argval, i.offset) for i in dis.get_instructions(owner) if "JUMP_BACKWARD" in i.opname]
    return not any(first <= at <= last for at in stores for first, last in loops)


def rebinds(code: types.CodeType, name: str) -> bool:
    """Whether a function, or one inside of it, stores a variable that it closes over."""
    return any(_stores(inner, name) for inner in (code, *_codes(code)) if name in inner.co_freevars)


def _stores(code: types.CodeType, name: str) -> Sequence[int]:
    """Where code stores or deletes a variable that is shared with inner functions."""
    return _all_stores(code).get(name, ())


@functools.lru_cache(maxsize=4096)
def _all_stores(code: types.CodeType) -> Mapping[str, Sequence[int]]:
    found: dict[str, list[int]] = {}
    for i in dis.get_instructions(code):
        if i.opname in ("STORE_DEREF", "DELETE_DEREF"):
            found.setdefault(i.argval, []).append(i.offset)
    return found


def _copied(node: Any) -> Any:
    """A syntax tree of its own. What has no place, such as `Load()`, is the same everywhere and stays so."""
    if isinstance(node, list):
        return [_copied(x) for x in node]
    if not isinstance(node, ast.AST) or not node._fields:
        return node
    new = node.__class__.__new__(node.__class__)
    vars(new).update({name: _copied(value) for name, value in vars(node).items()})
    return new


def _placed(node: ast.AST, at: ast.AST) -> None:
    """Gives a new node, and what is new below it, the place of `at`."""
    ast.copy_location(node, at)
    for child in ast.iter_child_nodes(node):
        if "lineno" in child._attributes and not hasattr(child, "lineno"):
            _placed(child, at)


def _without_type_params(node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Type parameters (Python 3.12 and later) mean nothing at run time and would wrap the function in a scope of their own."""
    if "type_params" in ast.FunctionDef._fields:
        setattr(node, "type_params", [])  # noqa: B010  # not a field in Python 3.11


_copies: dict[tuple[int, ...], tuple[types.CodeType, types.FunctionType, types.CodeType]] = {}


def _own_copy(code: types.CodeType, fn: types.FunctionType) -> types.CodeType:
    """A code object for this closure alone, so that a frame tells which closure is running."""
    key = (id(code), *map(id, fn.__closure__ or ()))
    known = _copies.get(key)
    if known is None:
        if len(_copies) > 1000:
            _copies.clear()
        known = _copies[key] = (code, fn, code.replace())
    return known[2]


def _may_run(node: ast.AST) -> bool:
    """Whether evaluating an expression may run code that can be seen from outside."""
    return any(isinstance(n, ast.Call | ast.Await) for n in ast.walk(node))


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's own body, inner functions excluded."""
    left = list(ast.iter_child_nodes(node))[::-1]
    while left:
        child = left.pop()
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            left += list(ast.iter_child_nodes(child))[::-1]


def _cleaned_up(node: ast.AST) -> Iterator[ast.AST]:
    """Each `yield` in a function's own body that code of the function still follows if it is never resumed."""
    for part in _own_nodes(node):
        if isinstance(part, ast.Try | ast.With | ast.AsyncWith) or type(part).__name__ == "TryStar":
            yield from (n for n in _own_nodes(part) if isinstance(n, ast.Yield | ast.YieldFrom))


def _ends_when_left(node: ast.AST) -> bool:
    """Whether no exception that is thrown into a generator, of whatever class, lets it go on to another `yield`."""
    for part in _own_nodes(node):
        if isinstance(part, ast.ExceptHandler):
            caught = ast.walk(part.type) if part.type is not None else [ast.Name("BaseException")]
            if any(getattr(n, "id", getattr(n, "attr", "")) in ("BaseException", "GeneratorExit") for n in caught):
                return False
        if isinstance(part, ast.Try | ast.TryStar):
            last = [n for stmt in part.finalbody for n in (stmt, *_own_nodes(stmt))]
            if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in last):
                return False
    return True


def _rewritten(fn: types.FunctionType) -> types.CodeType | CannotInstrument:
    try:
        return _rewrite(fn)
    except CannotInstrument as error:
        return error


def instrument(fn: types.FunctionType, hooks: Any) -> types.FunctionType:
    """The instrumented twin of `fn`: same globals, cells, defaults and line numbers.

    Raises CannotInstrument, with the reason and the place, for code that capture does not know.
    """
    if is_instrumented(fn):
        return fn
    key = fn.__code__.co_filename, fn.__code__  # equal code may stand in two files
    code = _cache.get(key)
    if code is None:
        with _parsing:
            code = _cache.get(key) or _rewritten(fn)
            _cache[key] = code
    if isinstance(code, CannotInstrument):
        raise code
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    mode = active.get()
    if cells and mode is not None:
        code = _own_copy(code, fn)
        mode.knows_cells(code, dict(cells))
    cells[HOOKS_NAME] = types.CellType(hooks)
    twin = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, tuple(cells[n] for n in code.co_freevars))
    twin.__kwdefaults__ = fn.__kwdefaults__
    twin.__qualname__, twin.__dict__ = fn.__qualname__, dict(fn.__dict__)
    return twin
