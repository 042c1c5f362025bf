"""The rules of the IR, checked: an error names the block, the op's index, the printed op and the source location."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lmc.config import settings
from lmc.errors import IRError
from lmc.ir.analysis import dominance
from lmc.ir.core import DEFAULT, TYPES, Block, Graph, Op, Operand, Symbol, Value, exact
from lmc.ir.ops import GEN_PARAMS, OPS, OpSpec, Stage, spec_of
from lmc.segments import Mark, Special

_LITERALS = (str, int, float, bool, bytes, type(None))
_GEN_PARAMS = frozenset(GEN_PARAMS)


def verify_level() -> int:
    """Return LMC_VERIFY: 0 nothing, 1 built graphs and pipeline results (default), 2 after each pass, 3 also the text's
    round trip."""
    return settings().verify


def verify(graph: Graph, stage: Stage = "traced") -> None:
    """Check every rule for a graph of this stage; the first one broken raises IRError."""
    _Verifier(graph, stage).run()


class _RuleBroken(Exception):
    """A rule is broken; the caller that knows the location adds it."""


class _Verifier:
    """One walk over the blocks in order; `_defined`: the defining block of each value seen so far."""

    def __init__(self, graph: Graph, stage: Stage) -> None:
        self.graph, self.stage = graph, stage
        self._defined: dict[Value, str] = {}
        self._names: set[str] = set()
        self._origin: dict[Value, Op] = {}  # the op that defines each ctx value

    def run(self) -> None:
        try:
            self._header()
            self._tree()
        except _RuleBroken as e:
            raise IRError(f"graph @{self.graph.name}: {e}") from None
        for block in self.graph.blocks:
            try:
                self._block(block)
            except _RuleBroken as e:
                raise IRError(f"graph @{self.graph.name}, block ^{block.label}: {e}") from None
            for i, op in enumerate((*block.ops, block.terminator)):
                try:
                    self._op(block, op, last=i == len(block.ops))
                except _RuleBroken as e:
                    raise IRError(f"graph @{self.graph.name}, block ^{block.label}, op {i}: {e}\n    in  {_shown(op)}", loc=op.loc) from None

    # -- the graph

    def _header(self) -> None:
        _require(bool(self.graph.name), "it has no name")
        _require(self.graph.result in TYPES, f"unknown result type {self.graph.result!r}")
        for v in self.graph.params:
            self._define(v, "")
        for name, op in self.graph.constants.items():
            _require(bool(name), "a constant has no name")
            _require(not op.results and not op.cases, f"constant @{name} has results or cases")
            for x in op.operands:
                _require(isinstance(x, _LITERALS), f"constant @{name} has the operand {x!r}, which is not a literal")
            self._attr_values(op)

    def _tree(self) -> None:
        _require(bool(self.graph.blocks), "it has no blocks")
        labels: set[str] = set()
        for block in self.graph.blocks:
            _require(block.label not in labels, f"two blocks are called ^{block.label}")
            labels.add(block.label)
        entry = self.graph.blocks[0].label
        came_from: dict[str, str] = {entry: ""}
        for block in self.graph.blocks:
            _require(
                block.label in came_from,
                f"block ^{block.label} is not reached from a block before it (each block stands after the one that names it)",
            )
            for succ in block.successors:
                _require(succ in labels, f"^{block.label} goes to ^{succ}, which does not exist")
                _require(succ != entry, f"^{block.label} goes to the entry ^{succ}")
                _require(
                    succ not in came_from,
                    f"^{succ} is named twice, by ^{came_from.get(succ)} and ^{block.label}; blocks form a tree",
                )
                came_from[succ] = block.label
        self._dominates = dominance(self.graph)

    def _block(self, block: Block) -> None:
        named = self.graph.predecessor.get(block.label)
        end = self.graph.block[named].terminator if named is not None else None
        takes = end is not None and (end.then == block.label or end.kind == "loop")
        _require(takes or not block.params, "only a block after `then`, or of a loop, has parameters")
        for v in block.params:
            self._define(v, block.label)

    # -- one op

    def _op(self, block: Block, op: Op, last: bool) -> None:
        spec = spec_of(op.kind)
        if spec is None:
            near = difflib.get_close_matches(op.kind, OPS, n=1)
            raise _RuleBroken(f"there is no op {op.kind!r}" + (f"; did you mean {near[0]}?" if near else ""))
        if (spec.trait == "terminator") != last:
            raise _RuleBroken(f"the block ends with {op.kind}, which is not a terminator" if last else f"{op.kind} is a terminator in the middle of a block")
        if self.stage not in spec.stages:
            raise _RuleBroken(f"{op.kind} is not allowed in a {self.stage} graph ({_lowered(spec)})")
        self._operands(block, op, spec)
        self._attrs(op, spec)
        if (rule := _RULES.get(op.kind)) is not None:
            rule(self, op)
        if op.kind.startswith("py."):
            self.function(op)
        self.taken(op)
        if (op.cases or op.then is not None) and op.kind not in ("switch", "loop"):
            raise _RuleBroken(f"{op.kind} names blocks; only switch and loop do")
        if op.kind in ("yield", "continue", "break"):
            self._yielded(block, op)
        self._results(block, op, spec)

    def _operands(self, block: Block, op: Op, spec: OpSpec) -> None:
        variadic = bool(spec.operands) and spec.operands[-1].startswith("*")
        fixed = spec.operands[:-1] if variadic else spec.operands
        n = len(op.operands)
        if n < len(fixed) or (n > len(fixed) and not variadic):
            raise _RuleBroken(f"{op.kind} takes {len(fixed)}{' or more' if variadic else ''} operands, not {n}")
        for i, x in enumerate(op.operands):
            wanted = fixed[i] if i < len(fixed) else spec.operands[-1][1:]
            if isinstance(x, Value):
                at = self._defined.get(x)
                if at is None:
                    raise _RuleBroken(self._undefined(x))
                if at and not self._dominates(at, block.label):
                    raise _RuleBroken(f"%{x.name} is defined in ^{at}, which does not dominate ^{block.label}")
            if not _fits(x, wanted):
                raise _RuleBroken(f"operand {i} is {_describe(x)}; {op.kind} wants {_WANTED.get(wanted, wanted)} there")

    def _undefined(self, x: Value) -> str:
        same = next((v for v in self._defined if v.name == x.name), None)
        if same is not None:
            return f"%{x.name} is used as {x.type} and defined as {same.type}"
        later = x in self.graph.producer or any(x in b.params for b in self.graph.blocks)
        return f"%{x.name} is used before it is defined" if later else f"%{x.name} is not defined"

    def _attrs(self, op: Op, spec: OpSpec) -> None:
        for name in op.attrs:
            if name not in spec.attrs:
                near = difflib.get_close_matches(name, spec.attrs, n=1)
                raise _RuleBroken(f"{op.kind} has no attribute {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
        self._attr_values(op)

    def _attr_values(self, op: Op) -> None:
        for name, value in op.attrs.items():
            for x in _leaves(value):
                if isinstance(x, Symbol):
                    self._symbol(x)
                elif not isinstance(x, _LITERALS):
                    raise _RuleBroken(f"attribute {name} holds {x!r}; use literals, symbols and tuples")

    def _results(self, block: Block, op: Op, spec: OpSpec) -> None:
        if len(op.results) != len(spec.results):
            raise _RuleBroken(f"{op.kind} has {len(spec.results)} results, not {len(op.results)}")
        for v, t in zip(op.results, spec.results, strict=True):
            ok = v.type == t or (t == "any" and v.type != "ctx") or (v.type == "any" and t != "ctx")
            if not ok:
                raise _RuleBroken(f"result %{v.name} is {v.type}; {op.kind} gives {t} there")
            self._define(v, block.label)
            if v.type == "ctx":
                self._origin[v] = op

    def _define(self, v: Value, label: str) -> None:
        _require(bool(v.name), "a value has no name")
        if v.type not in TYPES:
            raise _RuleBroken(f"%{v.name} has the unknown type {v.type!r}")
        if v.name in self._names:
            raise _RuleBroken(f"%{v.name} is defined twice")
        self._names.add(v.name)
        self._defined[v] = label

    def _symbol(self, s: Symbol) -> None:
        _require(bool(s.name), "a symbol has no name")
        if s.name not in self.graph.constants:
            raise _RuleBroken(f"@{s.name} is not a constant of the graph")

    # -- rules of single kinds

    def switch(self, op: Op) -> None:
        _require(bool(op.cases), "switch has no cases")
        seen: set[object] = set()
        for i, (case, _) in enumerate(op.cases):
            if not isinstance(case, _LITERALS) and case is not DEFAULT:
                raise _RuleBroken(f"case {case!r} is not a literal or _")
            _require(exact(case) not in seen, f"case {'_' if case is DEFAULT else repr(case)} stands twice")
            _require(case is not DEFAULT or i == len(op.cases) - 1, "the case _ is not the last one")
            seen.add(exact(case))

    def slice(self, op: Op) -> None:
        whole, since = op.operands
        node: Operand | None = whole
        while node != since:
            origin = self._origin.get(node) if isinstance(node, Value) else None
            if origin is None:
                return  # it was defined before this graph
            if not origin.operands:
                raise _RuleBroken(f"{_describe(since)} is not an ancestor of {_describe(whole)}")
            node = origin.operands[0]

    def ask(self, op: Op) -> None:
        params = _names(op, "params")
        fixed = 2 if op.kind == "select" else 1  # the prompt, and at least one choice
        if op.kind == "gen" and len(op.operands) != 1 + len(params):
            raise _RuleBroken(f"{len(op.operands) - 1} operands after the prompt, but attribute params names {len(params)}")
        _require(len(op.operands) >= fixed + len(params), "select has no choices")
        for name in params:
            _require(
                name in _GEN_PARAMS or name in OPS[op.kind].attrs,
                f"attribute params names {name!r}, which is not a parameter of {op.kind}",
            )
            _require(name not in op.attrs, f"{name} is given twice, as an attribute and as an operand")
        _require(len(set(params)) == len(params), "attribute params names a parameter twice")

    def loop(self, op: Op) -> None:
        _require(len(op.cases) == 1 and op.cases[0][0] is DEFAULT, "a loop has one case, _, which is its body")
        _require(op.then is not None, "a loop names the block that follows it")
        for succ in (op.cases[0][1], op.then):
            self._carried(op.operands[1:], self.graph.block[succ or ""].params, f"the loop gives ^{succ}")

    def _yielded(self, block: Block, op: Op) -> None:
        """Check that yielded values fit the parameters of the blocks that they go to."""
        graph = self.graph
        owner = graph.region[block.label] if op.kind == "yield" else graph.loop_around(block.label)
        _require(bool(owner), "yield stands in no arm and no loop" if op.kind == "yield" else f"{op.kind} stands in no loop")
        end = graph.block[owner or ""].terminator
        _require(end.then is not None, f"yield in an arm of a switch without continuation (^{owner} has no `then`)")
        targets = [end.then or ""] if end.kind == "switch" or op.kind == "break" else [end.cases[0][1], end.then or ""]
        for to in targets:
            self._carried(op.operands, graph.block[to].params, f"{op.kind} gives ^{to}")

    @staticmethod
    def _carried(given: Sequence[Operand], params: Sequence[Value], what: str) -> None:
        _require(len(given) == len(params), f"{what} {len(given)} values, which has {len(params)} parameters")
        for x, param in zip(given, params, strict=True):
            is_prompt = isinstance(x, Value) and x.type == "ctx"
            _require(is_prompt == (param.type == "ctx") and not isinstance(x, (Special, Mark)), f"{what} {_describe(x)} for %{param.name}: {param.type}")

    def function(self, op: Op) -> None:
        kwargs = _names(op, "kwargs")
        _require(len(kwargs) <= len(op.operands), "attribute kwargs names more arguments than there are operands")

    def role(self, op: Op) -> None:
        _require(isinstance(op.attr("role"), str), "attribute role is missing or not a string")
        _require(isinstance(op.attr("previous"), (str, type(None))), "attribute previous is neither a string nor none")

    def returns(self, op: Op) -> None:
        names, n = _names(op, "vars"), len(op.operands) - 2
        _require(n == len(names), f"{n} operands after the prompt, but {len(names)} variables")

    def taken(self, op: Op) -> None:
        if "taken" in op.attrs:
            counts = op.attrs["taken"]
            n = 2 if op.kind == "loop" else len(op.cases)
            ok = isinstance(counts, tuple) and all(type(x) is int and x >= 0 for x in counts) and len(counts) == n
            _require(ok, f"attribute taken is not {n} counts")


_RULES: Mapping[str, Callable[[_Verifier, Op], None]] = {
    "switch": _Verifier.switch,
    "ctx.slice": _Verifier.slice,
    "gen": _Verifier.ask,
    "select": _Verifier.ask,
    "loop": _Verifier.loop,
    "role.begin": _Verifier.role,
    "role.end": _Verifier.role,
    "return": _Verifier.returns,
}

_WANTED = {"ctx": "a ctx", "str": "text", "any": "a value that is not a ctx", "const": "a literal"}


def _names(op: Op, attr: str) -> tuple[str | None, ...]:
    """Check a tuple of names (a gen without a name is stored under None)."""
    value = op.attr(attr, ())
    ok = isinstance(value, tuple) and all(isinstance(x, (str, type(None))) for x in _leaves(value))
    _require(ok, f"attribute {attr} is not a tuple of names")
    return tuple(_leaves(value))


def _fits(x: Operand, wanted: str) -> bool:
    """Return whether an operand fits the op table's type `wanted`. `any` accepts everything, prompts too."""
    if isinstance(x, Value):
        return x.type == wanted or wanted == "any" or (wanted == "str" and x.type == "any")
    if isinstance(x, (Special, Mark)):
        return wanted == "str"
    if wanted == "str":
        return isinstance(x, str)
    return wanted in ("any", "const") and _is_literal(x)


def _is_literal(x: object) -> bool:
    return isinstance(x, _LITERALS)


def _describe(x: Operand) -> str:
    return f"%{x.name}: {x.type}" if isinstance(x, Value) else repr(x)


def _lowered(spec: OpSpec) -> str:
    return "a pass lowers it first" if "traced" in spec.stages else "only passes make it"


def _leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, tuple):
        for i in x:  # pyright: ignore[reportUnknownVariableType]
            yield from _leaves(i)
    else:
        yield x


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise _RuleBroken(message)


def _shown(op: Op) -> str:
    from lmc.ir.text import print_op  # the printer depends on nothing here; imported late to keep start-up short

    try:
        return print_op(op)
    except IRError:  # the op's fault may be why it does not print
        return repr(op)
