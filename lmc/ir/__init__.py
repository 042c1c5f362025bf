"""The IR: graphs of ops on prompt states and values, as text and as data. The op table (`ops`) defines each op."""

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


core.display = _display

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
