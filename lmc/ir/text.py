"""The text form of a graph, which `parse` (parser.py) reads; each is exactly the other's inverse.

One op a line, operands in parentheses, then its other parts: cases, the next block, attributes, the source location. A
result's type is printed where the op table does not determine it. Names that are not plain are quoted: `%"a b"`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lmc.errors import IRError
from lmc.ir.core import DEFAULT, FORMAT_VERSION, Attr, Case, Graph, Op, Operand, Symbol, Value
from lmc.ir.ops import default_type
from lmc.segments import Mark, Special

_DOTTED = re.compile(r"\w+(\.\w+)*")
_COLONED = re.compile(r"\w+([.:]\w+)*")


def print_graph(graph: Graph) -> str:
    """Print the whole graph as text, with the format's version in the first line."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: Graph) -> Iterator[str]:
    params = ", ".join(f"{_value(p)}: {p.type}" for p in graph.params)
    yield f"// lmc ir {FORMAT_VERSION}"
    yield f"graph {_symbol(graph.name)}({params}) -> ({graph.result}) {{"
    for name, op in graph.constants.items():
        yield f"  {_symbol(name)} = {print_op(op)}"
    for i, block in enumerate(graph.blocks):
        if i or block.label != "entry":
            params = ", ".join(f"{_value(p)}: {p.type}" for p in block.params)
            yield f"{_label(block.label)}{f'({params})' if params else ''}:"
        for op in block.ops:
            yield "  " + print_op(op)
        yield "  " + print_op(block.terminator)
    yield "}"


def print_op(op: Op) -> str:
    """Print one op as its line of text."""
    text = f"{op.kind}({', '.join(print_operand(x) for x in op.operands)})"
    if op.results:
        text = ", ".join(_result(op, i, v) for i, v in enumerate(op.results)) + " = " + text
    if op.cases:
        text += " [" + ", ".join(f"{_case(case)} -> {_label(label)}" for case, label in op.cases) + "]"
    if op.then is not None:
        text += f" then {_label(op.then)}"
    if op.attrs:
        text += " {" + ", ".join(f"{name} = {print_attr(x)}" for name, x in op.attrs.items()) + "}"
    if op.loc is not None:
        text += f" loc({quote(op.loc.file)}:{op.loc.line}{f':{op.loc.col}' if op.loc.col else ''})"
    return text


def print_operand(x: Operand) -> str:
    """Print `%x`, `special("…")`, `begin("user")`, `end("user")` or a literal."""
    if isinstance(x, Value):
        return _value(x)
    if isinstance(x, Special):
        return f"special({quote(x.spelling)})"
    if isinstance(x, Mark):
        return f"{x.edge}({quote(x.role)})"
    return _atom(x)


def print_attr(x: Attr) -> str:
    """Print an attribute's value; tuples in brackets."""
    return "[" + ", ".join(print_attr(i) for i in x) + "]" if isinstance(x, tuple) else _atom(x)


def quote(text: str) -> str:
    """Return a JSON string; invisible characters (controls, unpaired surrogates, direction marks) are escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in quoted)


def _atom(x: object) -> str:
    if (rule := _ATOMS.get(type(x))) is None:
        raise IRError(f"{x!r} of type {type(x).__name__} is not a literal of the IR; use str, int, float, bool, None, bytes or a Symbol")
    return rule(x)


_ATOMS: Mapping[type, Callable[[Any], str]] = {
    str: quote,
    bool: lambda x: "true" if x else "false",
    int: repr,
    float: repr,
    type(None): lambda _: "none",
    bytes: lambda x: f'bytes("{x.hex()}")',
    Symbol: lambda x: _symbol(x.name),
}


def _result(op: Op, i: int, v: Value) -> str:
    return _value(v) if v.type == default_type(op.kind, i) else f"{_value(v)}: {v.type}"


def _case(case: Case) -> str:
    return "_" if case is DEFAULT else _atom(case)


def _value(v: Value) -> str:
    return "%" + (v.name if _DOTTED.fullmatch(v.name) else quote(v.name))


def _symbol(name: str) -> str:
    return "@" + (name if _COLONED.fullmatch(name) else quote(name))


def _label(name: str) -> str:
    return "^" + (name if _DOTTED.fullmatch(name) else quote(name))
