"""Rewrites definitions: inner functions and classes, each in its own scope, and what is told of generators."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import ast
import contextlib
from typing import Any

from lmc.frontend.rewrite_statements import Statements
from lmc.frontend.scopes import Bindings, ClassBindings
from lmc.frontend.source import first_line
from lmc.frontend.syntax import cleaned_up, ends_when_left, load, may_run, parameters, placed


class Definitions(Statements):
    """What makes functions and classes."""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        if self.is_manager(node):
            self.managers.add(node)
        self._decorators(node)
        self._defaults(node.args)
        node.returns = self._annotation(node.returns)
        self._define(node)
        self._inner(node, Bindings(node))
        node.name = self.mangle(node.name)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        self._defaults(node.args)
        self._inner(node, Bindings(node))
        defined = self.hook("defined", node, at=node)
        if node.args.kwarg is not None:  # its dict is one that the program made
            name = node.args.kwarg.arg
            inner = ast.Lambda(parameters(name), node.body)
            made = self.hook("made", load(name, node), at=node)
            node.body = placed(ast.Call(inner, [made], []), node)
        return defined

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        self._decorators(node)
        node.bases = [self._starred(b) if isinstance(b, ast.Starred) else self.hook("base", self.visit(b), at=b) for b in node.bases]
        for keyword in node.keywords:
            keyword.value = self.hook("base", self.visit(keyword.value), at=keyword.value)
        self._define(node)
        outer, self.class_name = self.class_name, node.name
        self._inner(node, ClassBindings(node))
        self.class_name = outer
        return node

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        node.decorator_list = [self.hook("decorator", self.visit(d), at=d) for d in node.decorator_list]

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Tells the mode of a definition before its decorators see it."""
        if self.scopes and self.place(node.name) != "local" and not self._shared(node.name):
            raise self.refuse(f"a definition of {node.name} outside of the program", node)
        node.decorator_list.append(self.hook("defined", at=node).func)

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
        return alone and ends_when_left(node)

    # parameters

    def _defaults(self, args: ast.arguments) -> None:
        args.defaults = [self.visit(d) for d in args.defaults]
        args.kw_defaults = [self.visit(d) if d else None for d in args.kw_defaults]
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
            if arg is not None:
                arg.arg, arg.annotation = self.mangle(arg.arg), self._annotation(arg.annotation)

    def _annotation(self, node: ast.expr | None) -> ast.expr | None:
        """What a function says of its types, for those who look at it: Python evaluates it, as it is."""
        if node is not None and self.evaluates_annotations and may_run(node):
            raise self.refuse("a call in an annotation of an inner function", node)
        return node

    # bodies

    def _inner(self, node: Any, scope: Any) -> None:
        """Rewrites the body of an inner function or class in its own scope."""
        self._note_cleaning(node)
        self.scopes.append(scope)
        thunks, self.thunks = self.thunks, 0
        awaits, self.awaits = self.awaits, isinstance(node, ast.AsyncFunctionDef)
        if isinstance(node.body, list):
            node.body = self._body(node.body)
            self._own_kwargs(node)
        else:
            node.body = self.visit(node.body)
        self.thunks, self.awaits = thunks, awaits
        self.scopes.pop()

    def _note_cleaning(self, node: Any) -> None:
        """Notes generators of which code is left to run where they are left; refuses those whose `yield` may be resumed then."""
        late = next(cleaned_up(node), None)
        if late is None:
            return
        if node in self.managers:
            self.guarding.add((node.name, first_line(node)))
        elif isinstance(node, ast.FunctionDef) and ends_when_left(node):
            self.cleaning.add((node.name, first_line(node)))
        else:
            raise self.refuse("`yield` inside of `try` or `with`", late)

    def _own_kwargs(self, node: Any) -> None:
        """The dict of `**kwargs` is one that the program made."""
        kwarg = node.args.kwarg if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
        if kwarg is not None:
            first: Any = node.body[0]
            after_doc = int(isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant))
            node.body.insert(after_doc, self._own(kwarg.arg, node))
