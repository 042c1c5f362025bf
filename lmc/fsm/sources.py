"""What users write, to what follows an answer: an automaton where the language is regular, else EBNF for a matcher with a stack.

    regex ───────────────► tree ─► automaton          json_schema ─► Grammar ─┬► tree ─► automaton
                                                      lark ────────► Grammar ─┴► EBNF
"""

from __future__ import annotations

from lmc.errors import ConstraintError
from lmc.fsm.bounds import TooLarge, check_ebnf, check_source
from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.dfa import build
from lmc.fsm.grammar import Grammar
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.lark_grammar import compile_lark
from lmc.fsm.regex import Node, parse, shown

MAX_BYTES = 40 << 20  # of the automaton of a schema or grammar; xgrammar has the larger ones


def automaton_of(kind: str, source: str) -> ByteDFA | None:
    """The automaton of a constraint; None if it has none, or one that is too large.

    Raises ConstraintError for what is invalid, cannot be enforced, or matches nothing.
    """
    tree = tree_of(kind, source)
    if tree is None:
        return None
    try:
        dfa = build(tree)
    except TooLarge:
        dfa = None
    if kind == "regex" or (dfa is not None and dfa.nbytes <= MAX_BYTES):
        return dfa
    if kind == "json_schema" and compile_schema(source)[1] is not None:
        raise _too_deep()
    return None


def tree_of(kind: str, source: str) -> Node | None:
    """The regular expression of a constraint, as a tree; None if its language is not regular. Raises ConstraintError as `automaton_of`."""
    check_source(kind, source)
    if kind == "regex":
        return parse(source)
    try:
        if kind == "json_schema":
            grammar, depth = compile_schema(source)
            tree = grammar.tree(depth)
            if tree is None and depth is not None:
                raise _too_deep()
            return tree
        return compile_lark(source).tree() if kind == "lark" else None
    except RecursionError:
        raise ConstraintError(f"{kind} {shown(source)} is nested too deep") from None


def _too_deep() -> ConstraintError:
    return ConstraintError("json_schema: /x-lmc/depth needs too large an automaton; use a smaller depth")


def grammar_of(kind: str, source: str) -> Grammar:
    """A regex, a schema or a Lark grammar as rules; recursion that a schema cuts at a depth is written out."""
    tree = tree_of(kind, source)
    if tree is not None:
        return Grammar(tree, {})
    return compile_schema(source)[0] if kind == "json_schema" else compile_lark(source)


def ebnf_of(kind: str, source: str) -> str:
    """A schema or a Lark grammar as EBNF. Raises ConstraintError also for one that xgrammar would take too long for."""
    grammar: Grammar = compile_schema(source)[0] if kind == "json_schema" else compile_lark(source)
    ebnf = grammar.ebnf()
    check_ebnf(kind, source, ebnf)
    return ebnf
