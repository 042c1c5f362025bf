"""The IR: graphs of ops on prompt states and values, as text and as data. The op table (`ops`) defines each op."""

from lmc.errors import IRError
from lmc.ir import core
from lmc.ir.builder import Builder, Rewriter, rewrite
from lmc.ir.core import DEFAULT, FORMAT_VERSION, Block, Graph, Op, Symbol, Value
from lmc.ir.ops import OPS, trait
from lmc.ir.parser import parse
from lmc.ir.text import print_graph, print_op
from lmc.ir.verifier import verify


def _display(graph: Graph) -> str:
    from lmc.ir.page import Section, fragment  # only notebooks need it

    return fragment(f"@{graph.name}", [Section(f"@{graph.name}", graph)])


def _as_text(graph: Graph) -> str:
    try:
        return print_graph(graph).rstrip("\n")
    except IRError as error:  # a pass has made it wrong, and a debugger shows it
        return f"<graph @{graph.name}: {error.message}>"


core.display, core.as_text = _display, _as_text

__all__ = [
    "DEFAULT",
    "FORMAT_VERSION",
    "OPS",
    "Block",
    "Builder",
    "Graph",
    "Op",
    "Rewriter",
    "Symbol",
    "Value",
    "parse",
    "print_graph",
    "print_op",
    "rewrite",
    "trait",
    "verify",
]
