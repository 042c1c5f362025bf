"""Rewrites `match` as a chain of tests, so that a traced subject is asked what the patterns ask and no more."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (objects of the host are Any by nature)

from __future__ import annotations

import ast

from lmc.frontend.rewrite_statements import Statements
from lmc.frontend.syntax import assign, keep, placed


class Matches(Statements):
    """`match` and its patterns."""

    def visit_Match(self, node: ast.Match) -> list[ast.stmt]:
        """`match x: case p if g: body …` as `t = x`, `if p matches t and names are bound and g: body`, `elif …`."""
        subject = self.temp()
        first = assign(subject, self.visit(node.subject), node)
        orelse: list[ast.stmt] = []
        tests: list[tuple[ast.expr, list[ast.stmt], ast.AST]] = []
        for case in node.cases:
            captures: list[tuple[str, str]] = []
            test = self._pattern(case.pattern, subject, captures)
            parts = [] if test is None else [test]
            if captures:
                parts.append(ast.Tuple([keep(name, ast.Name(kept, ast.Load())) for name, kept in captures], ast.Load()))
            if case.guard is not None:
                parts.append(self.hook("truth", self.visit(case.guard), at=case.guard))
            tests.append((self._all(parts), self._body(case.body), case.pattern))
        for test, body, at in reversed(tests):
            orelse = [placed(ast.If(test, body, orelse), at)]
        return [first, *orelse]

    def _all(self, tests: list[ast.expr]) -> ast.expr:
        return ast.Constant(True) if not tests else tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)

    def _pattern(self, pattern: ast.pattern, subject: str, captures: list[tuple[str, str]]) -> ast.expr | None:
        """Whether the variable `subject` matches, as an expression that gives a bool or None where it always does.

        What a name captures is kept in a variable of its own until the whole pattern has matched.
        """
        value = ast.Name(subject, ast.Load())
        match pattern:
            case ast.MatchValue():
                test = self.hook("compare", self.const("==", pattern), value, self.visit(pattern.value), at=pattern)
                return self.hook("truth", test, at=pattern)
            case ast.MatchSingleton():
                test = self.hook("compare", self.const("is", pattern), value, self.const(pattern.value, pattern), at=pattern)
                return self.hook("truth", test, at=pattern)
            case ast.MatchAs():
                test = None if pattern.pattern is None else self._pattern(pattern.pattern, subject, captures)
                capture = self._capture(pattern.name, subject, captures, pattern)
                return test if capture is None else self._all([test, capture] if test is not None else [capture])
            case ast.MatchOr():
                found: dict[str, str] = {}
                tests: list[ast.expr] = []
                for part in pattern.patterns:
                    inner: list[tuple[str, str]] = []
                    test = self._pattern(part, subject, inner)
                    same = [keep(found.setdefault(name, kept), ast.Name(kept, ast.Load())) for name, kept in inner]
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
        return ast.Tuple([keep(kept, ast.Name(subject, ast.Load()))], ast.Load())  # not empty: always true

    def _parts(
        self, hook: str, about: list[ast.expr], subject: str, inside: list[ast.pattern], captures: list[tuple[str, str]], at: ast.AST
    ) -> ast.expr:
        """A hook gives the parts that the patterns inside are matched with, or None."""
        found = self.temp()
        taken = self.hook(hook, ast.Name(subject, ast.Load()), *about, at=at)
        tests: list[ast.expr] = [ast.Compare(keep(found, taken), [ast.IsNot()], [ast.Constant(None)])]
        for index, part in enumerate(inside):
            inner = self.temp()
            test = self._pattern(part, inner, captures)
            if test is not None:
                item = ast.Subscript(ast.Name(found, ast.Load()), ast.Constant(index), ast.Load())
                tests += [ast.Tuple([keep(inner, item)], ast.Load()), test]
        return self._all(tests)
