"""Constraints to constants: one `@fsm` for each distinct constraint, shared by all gens that have it.

A regex, or the regex of a dtype, becomes `fsm(source)`, annotated with properties of its automaton: `states` (over bytes, minimal),
`forced` (the share of states in which the next byte is determined) and, if the language is finite, `longest` (bytes of its
longest text, except for huge automata; no answer has more tokens, so a target need not reserve more). A constraint that is not a plain regular
expression, or is too large, becomes `matcher(kind, source)`, which follows the text at run time.

The constant holds the source, and each target compiles it once for its own vocabulary. An invalid regex is left
unchanged, and refused when the program makes the request.

Literal text between the gens of a template is not fused with them into one constrained segment. That would
save no pass: the text is part of the pass of the next answer's first token, and forced
text is appended without a pass (`tests/passes/test_templates.py`). And it would change answers whose constraint does not determine their end:
after `"name": "` the small model answers `[A-Z][a-z]{2,6}` with Mikehag, but within one segment
with Mike, since there a quote may follow. Tokens of a segment could also span the end of an answer and the text after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from lmc.constraints import CONSTRAINT_KINDS, dtype_constraint
from lmc.errors import ConstraintError, LmcError
from lmc.ir.builder import Names, Rewriter, rewrite, with_attrs
from lmc.ir.core import Attr, Graph, Op, Symbol, exact
from lmc.passes.base import Pass, PassContext, register

if TYPE_CHECKING:
    from lmc.fsm.bytedfa import ByteDFA


@register
@dataclass(frozen=True)
class LowerConstraint(Pass):
    """Make each regex, dtype, schema or grammar a constant that all gens with it share."""

    name: ClassVar[str] = "lower-constraint"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        constants = dict(graph.constants)
        names = Names(constants)
        known = {_key(op): name for name, op in constants.items()}

        def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
            found = _constraint(op)
            if found is None or (constant := _constant(*found)) is None:
                return None
            name = known.get(_key(constant))
            if name is None:
                name = known[_key(constant)] = names.numbered(constant.kind)
                constants[name] = constant
                ctx.count("automata" if constant.kind == "fsm" else "matchers")
            ctx.count("gens constrained")
            attrs = {k: v for k, v in op.attrs.items() if k not in CONSTRAINT_KINDS}
            return (with_attrs(op, {**attrs, "constraint": Symbol(name)}),)

        after = rewrite(graph, rule)
        if after is graph:
            return graph
        return Graph(after.name, after.params, after.blocks, after.result, constants)


def _key(op: Op) -> object:
    return op.kind, exact(op.operands)


def _constraint(op: Op) -> tuple[str, str] | None:
    """Return kind and source of the constraint on a gen's answer, if known and not a constant yet."""
    if op.kind != "gen" or "constraint" in op.attrs:
        return None
    given: list[tuple[str, Attr]] = [(k, op.attrs[k]) for k in CONSTRAINT_KINDS if op.attr(k) is not None]
    dtype = op.attr("dtype")
    if len(given) + (dtype is not None) != 1 or {*CONSTRAINT_KINDS, "dtype"} & set(op.attr("params", ())):
        return None  # none, one known only at run time, or too many: refused at the request
    if dtype is not None:
        try:
            constraint, _ = dtype_constraint(dtype)
        except LmcError:
            return None  # refused at the request
        return constraint.kind, constraint.source
    kind, source = given[0]
    return (kind, source) if isinstance(source, str) else None


@lru_cache(maxsize=256)
def _constant(kind: str, source: str) -> Op | None:
    """Return the constant for a constraint; None for an invalid regex."""
    if kind != "regex":
        return Op("matcher", (kind, source))
    from lmc.fsm.bounds import TooLarge
    from lmc.fsm.dfa import SOON, build
    from lmc.fsm.regex import parse

    try:
        dfa = build(parse(source), SOON)
    except TooLarge:
        return Op("matcher", (kind, source))
    except ConstraintError:
        return None
    attrs: dict[str, Attr] = {"states": dfa.states, "forced": round(dfa.forced_share, 2)}
    if (longest := _longest(dfa)) is not None:
        attrs["longest"] = longest
    return Op("fsm", (source,), (), attrs)


_MANY = 20_000  # number of states from which on the longest text is not computed: it would exceed any answer


def _longest(dfa: ByteDFA) -> int | None:
    """Return the bytes of the longest text, or None if there is none. Every state leads to an end, so any cycle makes
    it endless."""
    if dfa.states > _MANY:
        return None
    following: list[list[int]] = [[] for _ in range(dfa.states)]
    arriving = [0] * dfa.states
    for source in range(dfa.states):
        following[source] = sorted({target for _, target in dfa.moves(source)})
        for target in following[source]:
            arriving[target] += 1
    ready = [state for state in range(dfa.states) if not arriving[state]]
    depth, seen = [0] * dfa.states, 0
    while ready:
        state = ready.pop()
        seen += 1
        for target in following[state]:
            depth[target] = max(depth[target], depth[state] + 1)
            arriving[target] -= 1
            if not arriving[target]:
                ready.append(target)
    return max(depth) if seen == dfa.states else None
