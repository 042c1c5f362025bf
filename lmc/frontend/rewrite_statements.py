"""Rewrites statements: control flow, and stores to targets of any form."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from lmc.frontend.rewrite import BINARY, Rewriter
from lmc.frontend.scopes import ClassBindings
from lmc.frontend.syntax import assign, called, load, placed, store


class Statements(Rewriter):
    """What does something. Bodies are lists of statements, any of which may become several."""

    def _body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for stmt in body:
            new = self.visit(stmt)
            done.extend(new if isinstance(new, list) else [new])
        return done

    # control flow

    def visit_If(self, node: ast.If | ast.While) -> ast.stmt:
        node.test = self.hook("truth", self.visit(node.test), at=node.test)
        node.body, node.orelse = self._body(node.body), self._body(node.orelse)
        return node

    visit_While = visit_If

    def visit_For(self, node: ast.For | ast.AsyncFor) -> ast.stmt:
        spec = self._spec(node.target)
        node.iter = self.hook("iter" if isinstance(node, ast.For) else "aiter", self.visit(node.iter), *([spec] if spec else []), at=node.iter)
        node.target, stores = self._target(node.target)
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
            stores = self._store(target, load(name, target), target)
            first.optional_vars = store(name, target)
        node.body = stores + self._body(node.body)
        return node

    visit_AsyncWith = visit_With

    def visit_Try(self, node: ast.Try | ast.TryStar) -> ast.stmt:
        node.body, node.orelse, node.finalbody = self._body(node.body), self._body(node.orelse), self._body(node.finalbody)
        for handler in node.handlers:
            if handler.type is not None:
                handler.type = self.hook("handles", self.visit(handler.type), at=handler.type)
            handler.body = self._body(handler.body)
        return node

    visit_TryStar = visit_Try

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
        test = ast.copy_location(ast.BoolOp(ast.And(), [load("__debug__", node), fails]), node)
        return placed(ast.If(test, [error], []), node)

    # stores

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        value = self.visit(node.value)
        if len(node.targets) == 1:
            return self._store(node.targets[0], value, node)
        name = self.temp()
        done = [assign(name, value, node)]
        for target in node.targets:
            done += self._store(target, load(name, node), node)
        return done

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if self.scopes and isinstance(self.scopes[-1], ClassBindings) and isinstance(node.target, ast.Name):
            node.target.id = self.mangle(node.target.id)  # the class has the annotation, which may make a field
            node.value = node.value and self.visit(node.value)
            return node
        if node.value is not None:
            return self._store(node.target, self.visit(node.value), node)
        node.annotation = self.const(None, node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        op, target = self.const(BINARY[type(node.op)], node), node.target
        if isinstance(target, ast.Attribute | ast.Subscript):
            return self._augment(target, op, node)
        before = self.visit(load(target.id, target))
        return self._store(target, self.hook("iop", op, before, self.visit(node.value), at=node), node)

    def _augment(self, target: ast.Attribute | ast.Subscript, op: ast.expr, node: ast.AugAssign) -> list[ast.stmt]:
        """`owner.name += value`: owner and key are evaluated once."""
        done: list[ast.stmt] = []

        def once(expr: ast.expr) -> ast.expr:
            name = self.temp()
            done.append(assign(name, expr, node))
            return load(name, node)

        owner = once(self.visit(target.value))
        if isinstance(target, ast.Attribute):
            get, put, key = "getattr", "setattr", self.const(self.mangle(target.attr), node)
        else:
            get, put, key = "getitem", "setitem", once(self.visit(target.slice))
        value = self.hook("iop", op, self.hook(get, owner, key, at=node), self.visit(node.value), at=node)
        done.append(ast.copy_location(ast.Expr(self.hook(put, owner, key, value, at=node)), node))
        return done

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

    # targets

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
        return [placed(ast.Assign([simple], value), at), *stores]

    def _store_one(self, target: ast.expr, value: ast.expr, at: ast.AST) -> ast.stmt:
        """The statement that stores where a hook must see it."""
        match target:  # Python evaluates the value first
            case ast.Attribute():
                call = self.hook("store_attr", value, self.visit(target.value), self.const(self.mangle(target.attr), at), at=at)
            case ast.Subscript():
                call = self.hook("store_item", value, self.visit(target.value), self.visit(target.slice), at=at)
            case ast.Name():
                if self.place(target.id) == "free":
                    raise self.refuse(f"a store to {target.id}, a variable of the function around the program", at)
                call = self.hook("store_global", self.const(self.mangle(target.id), at), value, called("globals", at), at=at)
            case _:
                raise self.refuse("a store of this form", at)
        return placed(ast.Expr(call), at)

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
            if isinstance(node, ast.Name) and (self.place(node.id) == "local" or self._shared(node.id)):
                node.id = self.mangle(node.id)
                if stores:  # what is stored before may read it: `a[i], i = …`
                    return later(node, lambda value: ast.Assign([node], value))
                return node
            return later(node, lambda value: self._store_one(node, value, node))

        def later(node: ast.expr, stored: Callable[[ast.expr], ast.stmt]) -> ast.expr:
            name = self.temp()
            stores.append(placed(stored(load(name, node)), node))
            return store(name, node)

        return leaf(target), [*spread, *stores]
