"""From users' sources to machines that follow an answer: a whole automaton if that is small, else one built on demand.

regex ─► tree ─┬► ByteDFA        schema, Lark, EBNF, tag ─► Grammar ─┬► tree ─► ByteDFA
               └► LazyDFA                                            └► LazyDFA
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from lmc.errors import ConstraintError, shown
from lmc.fsm.bounds import TooLarge, check_source
from lmc.fsm.bytedfa import ByteDFA
from lmc.fsm.dfa import SOON, build
from lmc.fsm.ebnf_grammar import compile_ebnf
from lmc.fsm.grammar import Grammar
from lmc.fsm.json_schema import compile_schema
from lmc.fsm.lark_grammar import compile_lark
from lmc.fsm.lazy import LazyDFA, Machine
from lmc.fsm.left_recursion import without_left_recursion
from lmc.fsm.nodes import Node
from lmc.fsm.regex import parse
from lmc.fsm.structural_tag import compile_structural_tag
from lmc.gc_tuning import few_full_collections

Check = Callable[[str], str | None]
_FULL_COLLECTIONS = 1000
MAX_BYTES = 40 << 20  # of the whole automaton of a schema or grammar


def machine_of(kind: str, source: str) -> Machine:
    """Return the machine of a constraint: its minimal automaton if that is small and quickly built, else one built
    while answers are followed.

    Raises ConstraintError for a source that is invalid, cannot be enforced, or matches nothing.
    """
    with few_full_collections(_FULL_COLLECTIONS):  # one stalls all threads for longer than a step may take
        return _machine_of(kind, source)


def _machine_of(kind: str, source: str) -> Machine:
    grammar = grammar_of(kind, source)
    with suppress(TooLarge), _shallow(kind, source):  # the fallback needs no time beforehand
        if (tree := grammar.tree(most=SOON)) is not None and (dfa := build(tree, SOON)).nbytes <= MAX_BYTES:
            return dfa
    return lazily(grammar)


def begun(kind: str, source: str) -> LazyDFA:
    """Return a machine for a constraint's first answers, built on demand: building the whole automaton would take
    longer than they gain by it. Raises ConstraintError as `machine_of`."""
    with few_full_collections(_FULL_COLLECTIONS):
        return lazily(grammar_of(kind, source))


def check_of(kind: str, source: str) -> Check | None:
    """Return a function that says why a complete answer is not valid, None if it is; None if the machine allows only
    valid answers."""
    return compile_schema(source).check if kind == "json_schema" else None


def automaton_of(kind: str, source: str) -> ByteDFA | None:
    """Return the whole automaton of a constraint, however long that takes within the bounds; None if it has none, or
    one that is too large. Raises ConstraintError as `machine_of`."""
    tree = tree_of(kind, source)
    with suppress(TooLarge), _shallow(kind, source):
        if tree is not None and ((dfa := build(tree)).nbytes <= MAX_BYTES or kind == "regex"):
            return dfa
    return None


def tree_of(kind: str, source: str) -> Node | None:
    """Return the regular expression of a constraint, as a tree; None if it recurs, or is by far too large. Raises
    ConstraintError as `machine_of`."""
    grammar = grammar_of(kind, source)
    with _shallow(kind, source):
        return grammar.start if kind == "regex" else grammar.tree()


@contextmanager
def _shallow(kind: str, source: str) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ConstraintError(f"{kind} {shown(source)} is nested too deep") from None


def _schema(source: str) -> Grammar:
    grammar, depth, *_ = compile_schema(source)
    if depth is None:
        return grammar
    if (tree := grammar.tree(depth)) is None:
        raise ConstraintError("json_schema: /x-lmc/depth needs too large an automaton; use a smaller depth")
    return Grammar(tree)


_READERS: Mapping[str, Callable[[str], Grammar]] = {
    "regex": lambda source: Grammar(parse(source)),
    "json_schema": _schema,
    "lark": compile_lark,
    "ebnf": compile_ebnf,
    "structural_tag": compile_structural_tag,
}


def grammar_of(kind: str, source: str) -> Grammar:
    """Return a constraint as rules; recursion that a schema cuts at a depth is unrolled."""
    check_source(kind, source)
    with _shallow(kind, source):
        return _READERS[kind](source)


def ebnf_of(kind: str, source: str) -> str:
    """Return a schema or a grammar as EBNF, for servers that take it."""
    return grammar_of(kind, source).ebnf()


def lazily(grammar: Grammar) -> LazyDFA:
    """Return the automaton of a grammar, built on demand. Raises ConstraintError if the grammar derives no text."""
    try:
        grammar = grammar.productive()
        if not grammar.styles and grammar.recursive:  # no value of JSON begins with another one
            grammar = Grammar(grammar.start, without_left_recursion(grammar.rules))
        return LazyDFA(grammar)
    except RecursionError:
        raise ConstraintError("the grammar is nested too deep") from None
