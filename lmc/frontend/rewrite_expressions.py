"""Rewrites expressions: calls, operators, displays and comprehensions, in Python's order of evaluation."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable

from lmc.frontend.aio import WAITING_METHODS
from lmc.frontend.rewrite import BINARY, Rewriter
from lmc.frontend.scopes import Comprehension
from lmc.frontend.syntax import called, is_super, keep, load, may_run, parameters, placed, unstarred

_UNARY: dict[type[ast.unaryop], str] = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is", ast.IsNot: "is not",
    ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip

_UNHOOKED = {"super", "__build_class__"}  # need the frame they are called in
_FORBIDDEN = {"exec": "exec", "vars": "vars() of the frame", "dir": "dir() of the frame", "globals": "globals()"}


class Expressions(Rewriter):
    """What gives a value."""

    # calls

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
                return self.hook("eval_", self.visit(node.args[0]), called("globals", node), called("locals", node), at=node)
        hook, callee = self._callee(node)
        args, keywords = self._arguments(node, callee)
        call = self.hook(hook, *callee, *args, keywords=keywords, at=node)
        return self.awaited(call, node) if hook == "callm_ready" else call

    def _callee(self, node: ast.Call) -> tuple[str, list[ast.expr]]:
        """The hook that calls, and what it calls: a function, or an owner and the name of its method."""
        func = node.func
        if not isinstance(func, ast.Attribute) or is_super(func.value):
            return "call", [self.visit(func)]
        owner = self.visit(func.value)
        if any(map(may_run, node.args)) or any(may_run(k.value) for k in node.keywords):  # the method is looked up first
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
        name = self.temp()
        callee[0] = placed(keep(name, callee[0]), node)
        about = [load(name, node), *callee[1:]]
        if not alone:
            return [self._starred(a) for a in node.args], [ast.keyword(None, self._merged(node, about))]
        (star,) = node.args
        assert isinstance(star, ast.Starred)
        if not any(may_run(k.value) for k in node.keywords):
            items = self.hook("star", self.visit(star.value), *about, at=star)
            keywords = [ast.keyword(None, self._merged(node, about))] if node.keywords else []
        else:  # the items are taken when all else is there
            value, given = self.temp(), self.temp()
            first = [placed(keep(value, self.visit(star.value)), star), placed(keep(given, self._merged(node, about)), node)]
            last = self.hook("star", ast.Name(value, ast.Load()), *about, at=star)
            items = ast.Subscript(ast.Tuple([*first, last], ast.Load()), ast.Constant(2), ast.Load())
            keywords = [ast.keyword(None, ast.Name(given, ast.Load()))]
        return [placed(ast.Starred(items, ast.Load()), star)], keywords

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
        return placed(done, node)

    # operators and conditions

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        return self.hook("binop", self.const(BINARY[type(node.op)], node), left, right, at=node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.operand, ast.Constant):
            return node
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return self.hook("not_", operand, at=node)
        return self.hook("unary", self.const(_UNARY[type(node.op)], node), operand, at=node)

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
                right = ast.copy_location(keep(name, right), right_node)
                following: ast.expr = load(name, right_node)
            else:
                following = right
            terms.append(self.hook("compare", self.const(_COMPARE[type(op)], node), left, right, at=node))
            left = following
        return self._choose(ast.And, terms, node)

    def _choose(self, kind: type[ast.boolop], parts: list[ast.expr], at: ast.AST) -> ast.expr:
        """`a and b` as `b if truth(t := a) else t`; as thunks where an assignment expression is not allowed."""
        if len(parts) == 1:
            return parts[0]
        first, rest = parts[0], self._choose(kind, parts[1:], at)
        if self.thunks:
            return self.hook("and_" if kind is ast.And else "or_", self._thunk(first, at), self._thunk(rest, at), at=at)
        name = self.temp()
        test = self.hook("side", ast.copy_location(keep(name, first), at), at=at)
        again = ast.Name(name, ast.Load())
        branches = (rest, again) if kind is ast.And else (again, rest)
        return placed(ast.IfExp(test, *branches), at)

    def _thunk(self, part: ast.expr, at: ast.AST) -> ast.expr:
        if any(isinstance(n, ast.Await) for n in ast.walk(part)):
            raise self.refuse("await under `and`, `or` or a comparison inside a comprehension's iterable", at)
        return placed(ast.Lambda(parameters(), part), at)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node.test = self.hook("truth", self.visit(node.test), at=node.test)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    # text and parts

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts: list[ast.expr] = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                spec = self.visit(value.format_spec) if value.format_spec else self.const("", node)
                conversion = self.const("" if value.conversion < 0 else chr(value.conversion), node)
                part: ast.expr = ast.copy_location(ast.Tuple([self.visit(value.value), conversion, spec], ast.Load()), node)
                later = node.values[len(parts) + 1 :]
                parts.append(self.hook("fstring", part, at=node) if any(map(may_run, later)) else part)  # formatted before they run
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

    # displays

    def visit_List(self, node: ast.List) -> ast.expr:
        node.elts = [self._starred(e) for e in node.elts]
        return self.hook("made", node, at=node) if isinstance(node.ctx, ast.Load) else node

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        node.elts = [self._starred(e) for e in node.elts]
        return node

    def visit_Set(self, node: ast.Set) -> ast.expr:
        each: list[ast.expr] = [ast.Starred(self.hook("iter", self.visit(e.value), at=e), e.ctx) if isinstance(e, ast.Starred) else self.visit(e) for e in node.elts]
        items = placed(ast.List(each, ast.Load()), node)
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

    def _generators(self, generators: list[ast.comprehension], build: Callable[[], list[ast.expr]]) -> list[ast.expr]:
        """Rewrites the clauses in evaluation order, then the element expressions, in the comprehension's scope."""
        scope = Comprehension({n.id for g in generators for n in ast.walk(g.target) if isinstance(n, ast.Name)})
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
            gen.target = unstarred(gen.target)
            if starred and gen.is_async:
                raise self.refuse("a starred target in an async comprehension", gen.target)
            gen.iter = self.hook("aiter" if gen.is_async else "iter_starred" if starred else "iter", iterable, *([spec] if spec else []), at=gen.iter)
            gen.ifs = [self.hook("truth", self.visit(test), at=test) for test in gen.ifs]
        try:
            return build()
        finally:
            self.scopes.pop()

    # what waits, and what is bound on the way

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.expr:
        node.value = self.hook("iter", self.visit(node.value), at=node)
        return node

    def visit_Await(self, node: ast.Await) -> ast.expr:
        value = self.visit(node.value)
        if isinstance(value, ast.Call) and isinstance(hook := value.func, ast.Attribute) and hook.attr in ("call", "callm"):
            hook.attr += "_awaited"  # a hook that knows that what the call gives is awaited at once
        node.value = self.hook("awaited", value, at=node.value)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        node.value = self.visit(node.value)
        if self.place(node.target.id) != "local":
            raise self.refuse("an assignment expression that stores outside of the program", node)
        return node
