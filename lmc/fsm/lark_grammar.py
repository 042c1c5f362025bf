"""Lark grammars as `Grammar`s: rules, terminals, templates, imports and `%ignore`; refuses constructs that only a lexer
decides.

The language is the one over characters of Lark's Earley parser with its dynamic lexer. Ignored terminals may occur
between two terminals, before the first and after the last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lmc.errors import ConstraintError
from lmc.fsm.grammar import Grammar
from lmc.fsm.nodes import EMPTY, Node, Ref, one_of, repeat, seq, text
from lmc.fsm.regex import parse_part

_ESCAPED_STRING = r'"([^"\\\n]|\\.)*"'  # meaning of common.ESCAPED_STRING, which is defined with a look-behind


def compile_lark(source: str) -> Grammar:
    """Compile a text in Lark's syntax, from its rule `start`, to a grammar. Raises ConstraintError with the rule and
    the line."""
    from lark.exceptions import GrammarError, LarkError

    try:
        loaded = _loaded(source)
        return _LarkReader(loaded).grammar()
    except GrammarError as error:
        raise ConstraintError(f"lark: {str(error).strip()}") from None
    except LarkError as error:
        raise ConstraintError(f"lark: the grammar cannot be read: {str(error).strip()}") from None
    except OSError as error:
        raise ConstraintError(f"lark: an import cannot be read: {error}") from None
    except RecursionError:
        raise ConstraintError("lark: the grammar is nested too deep") from None


def patterns_of(source: str) -> Mapping[str, str]:
    """Return the regular expressions among the terminals of a grammar, without unused ones. Raises ConstraintError as
    `compile_lark`."""
    from lark.lexer import PatternRE

    compile_lark(source)
    terminals, *_ = _loaded(source).compile(["start"], None)
    return {str(t.name): t.pattern.to_regexp() for t in terminals if isinstance(t.pattern, PatternRE)}


_BUNDLED = ("common", "lark", "python", "unicode")  # grammars bundled with lark


def _loaded(source: str) -> Any:
    from lark.exceptions import UnexpectedInput

    builder = _builder()(False, [])
    try:
        builder.load_grammar(source, "<grammar>")
    except TypeError as error:  # Lark 1.3 fails where it looks for the mistake that an error of syntax is most like
        found: list[UnexpectedInput] = []
        context: BaseException | None = error
        while (context := context.__context__) is not None:
            found += [context] if isinstance(context, UnexpectedInput) else []
        if not found:
            raise
        raise ConstraintError(f"lark: Unexpected input at line {found[-1].line} column {found[-1].column}") from None
    return builder.build()


@lru_cache(1)
def _builder() -> Any:
    """Return Lark's loader, changed to read no files: a grammar may be untrusted."""
    from lark.exceptions import GrammarError
    from lark.load_grammar import GrammarBuilder

    class Bundled(GrammarBuilder):
        def _unpack_import(self, stmt: Any, grammar_name: str) -> Any:
            path = [str(part) for part in stmt.children[0].children]
            is_multiple = len(stmt.children) > 1 and hasattr(stmt.children[1], "children")
            of = path if is_multiple else path[:-1]
            if stmt.children[0].data != "import_lib" or (of and (len(of) > 1 or of[0] not in _BUNDLED)):
                raise GrammarError(f"%import of {'.'.join(path)}: no files are read, there are {', '.join(_BUNDLED)}; write what you need into the grammar")
            return super()._unpack_import(stmt, grammar_name)

    return Bundled


@lru_cache(1)
def _escaped_string() -> Any:
    """Return the tree of common.ESCAPED_STRING as an import yields it."""
    loaded = _loaded("start: ESCAPED_STRING\n%import common.ESCAPED_STRING\n")
    return next(tree for name, (tree, _) in loaded.term_defs if name == "ESCAPED_STRING")


class _LarkReader:
    """Reads the definitions that lark's loader found."""

    def __init__(self, loaded: Any) -> None:
        self.terms: dict[str, tuple[Any, int]] = {str(name): found for name, found in loaded.term_defs}
        self.rules_of: dict[str, tuple[tuple[str, ...], Any]] = {str(name): (tuple(map(str, params)), tree) for name, params, tree, _ in loaded.rule_defs}
        self.made: dict[str, Node] = {}  # terminals
        self.rules: dict[str, Node] = {}
        self.templates: dict[tuple[str, tuple[Node, ...]], int] = {}
        self.open: set[str] = set()
        self.gap: Node = EMPTY
        self.gap = repeat(one_of([self.term(str(name)) for name in loaded.ignore]), 0, None) if loaded.ignore else EMPTY

    def grammar(self) -> Grammar:
        if "start" not in self.rules_of:
            raise ConstraintError("lark: there is no rule `start`, where an answer begins")
        return Grammar(seq(self.gap, self.rule("start", ())), self.rules)

    def rule(self, name: str, args: tuple[Node, ...]) -> Node:
        """Return a reference to a rule, which is read when it is first named; `args` of a template."""
        if name not in self.rules_of:
            raise ConstraintError(f"lark: rule {name!r} is not defined")
        params, tree = self.rules_of[name]
        if len(params) != len(args):
            raise ConstraintError(f"lark: template {name!r} takes {len(params)} arguments, not {len(args)}")
        key = f"{name}{{{self.templates.setdefault((name, args), len(self.templates))}}}" if args else name
        if key not in self.rules:
            self.rules[key] = EMPTY  # named from inside: there already
            self.rules[key] = self.read(tree, name, dict(zip(params, args)))
        return Ref(key)

    def term(self, name: str) -> Node:
        if name not in self.made:
            if name not in self.terms:
                raise ConstraintError(f"lark: terminal {name} is not defined")
            tree, priority = self.terms[name]
            if tree is None:
                raise ConstraintError(f"lark: terminal {name} is only declared; say what it matches")
            if priority:
                raise ConstraintError(
                    f"lark: terminal {name} has a priority, which decides how a lexer cuts a text and cannot be enforced on "
                    f"one that is being written; make its terminals exclude each other"
                )
            if name in self.open:
                raise ConstraintError(f"lark: terminal {name} refers to itself; make it a rule")
            self.open.add(name)
            self.made[name] = self.read(tree, name)
            self.open.remove(name)
        return self.made[name]

    def read(self, tree: Any, name: str, args: Mapping[str, Node] | None = None) -> Node:
        """Return the tree of the right-hand side of a terminal, or of a rule, which has the arguments of its template."""
        from lark.grammar import NonTerminal, Terminal

        gap = EMPTY if args is None else self.gap
        if isinstance(tree, Terminal):
            return seq(self.term(str(tree.name)), gap)
        if isinstance(tree, NonTerminal):
            return args[tree.name] if args and tree.name in args else self.rule(str(tree.name), ())
        if args is None and tree == _escaped_string():
            return parse_part(_ESCAPED_STRING)
        parts = tree.children
        match tree.data:
            case "template_usage" if args is not None:  # a terminal has no templates
                return self.rule(str(parts[0].name), tuple([self.read(part, name, args) for part in parts[1:]]))
            case "literal" | "range":
                return seq(self.pattern(tree, name), gap)
            case "expansions":
                return one_of([self.read(part, name, args) for part in parts])
            case "expansion":
                return seq(*[self.read(part, name, args) for part in parts])
            case "value" | "alias":
                return self.read(parts[0], name, args)
            case "maybe":
                return repeat(self.read(parts[0], name, args), 0, 1)
            case "expr":
                return _repeated(self.read(parts[0], name, args), [str(p) for p in parts[1:]], name)
            case other:
                raise ConstraintError(f"lark: {name}: {other} cannot be used in a constraint")

    def pattern(self, tree: Any, name: str) -> Node:
        """Return the tree of a literal, a regular expression or a range of characters."""
        from lark.lexer import PatternStr
        from lark.load_grammar import PrepareLiterals

        found: Any = PrepareLiterals().transform(tree).children[0]
        flags = "".join(sorted(set(found.flags)))
        if isinstance(found, PatternStr) and not flags:
            return text(found.value)
        value = re.escape(found.value) if isinstance(found, PatternStr) else found.value
        try:
            return parse_part(f"(?{flags}:{value})" if flags else value)
        except ConstraintError as error:
            raise ConstraintError(f"lark: {name}: {error.message}") from None


def _repeated(body: Node, op: list[str], name: str) -> Node:
    if op[0] in ("?", "*", "+"):
        low, high = {"?": (0, 1), "*": (0, None), "+": (1, None)}[op[0]]
    else:  # ~ n, or ~ n .. m
        try:
            low, high = int(op[1]), int(op[-1])
        except ValueError:
            raise ConstraintError(f"lark: {name}: the number of a repeat has too many digits") from None
        if not 0 <= low <= high:
            bounds = f"{low}..{high}" if len(op) > 2 else low
            raise ConstraintError(f"lark: {name}: a repeat ~ {bounds} is none; write ~ FROM..TO, with 0 <= FROM <= TO")
    return repeat(body, low, high)
