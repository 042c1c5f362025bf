"""The graph of a program before any run: an abstract evaluation that writes ops, arguments unknown or given as examples."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any, cast

from lmc.frontend.capture.code import Frame, Outcome
from lmc.frontend.capture.evaluation import Evaluation
from lmc.frontend.capture.outside import OutsideSnapshot
from lmc.frontend.capture.unknown import Unknown
from lmc.frontend.interpreter import Function
from lmc.frontend.tracing.emitter import LATER, GraphEmitter
from lmc.frontend.tracing.regions import GraphDomain, OneForAll, is_branch
from lmc.ir.builder import Builder, Rewriter, rewrite, without_unused_params
from lmc.ir.core import Graph, Op, Operand, Type, Value

BUDGET = 50_000
"""Most steps of an evaluation."""
_TYPES: dict[Any, Type] = {str: "str", int: "int", float: "float", bool: "bool", "str": "str", "int": "int", "float": "float", "bool": "bool"}


ANY = object()
"""Example of an argument that is left unknown though it has a default."""


def graph_of(function: Function, /, **examples: Any) -> Graph:
    """Return the graph of a program. Arguments that `examples` does not name are their defaults, or unknown: parameters
    of the graph. So is one whose example is `ANY`, whatever its default.

    No code of the program runs, and no request is made.
    """
    return traced(function, examples)[0]


def traced(function: Function, examples: dict[str, Any]) -> tuple[Graph, Outcome]:
    """Return the graph, and the outcome of the evaluation."""
    builder = Builder(function.name)
    given = {**function.bound, **examples}
    emitter = GraphEmitter(builder)
    args, kwargs = _arguments(function, given, emitter)
    evaluation = _GraphEvaluation(function, OutsideSnapshot(args, kwargs), emitter, domain=GraphDomain(emitter), budget=BUDGET)
    emitter.evaluation = evaluation
    evaluation.rest = [name for name, p in function.signature.parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL and name not in given]
    outcome = evaluation.run()
    if not builder.terminated:
        _end(evaluation, emitter, outcome)
    return without_unused_params(_with_reads(builder.build(), emitter.read_values)), outcome


def _with_reads(graph: Graph, read: Collection[Operand]) -> Graph:
    """Return the graph with an op for the answers that the program reads and no op uses: their requests have a reader."""
    used = {v for op in without_unused_params(graph).ops() for v in op.uses}

    def rule(op: Op, rewriter: Rewriter) -> Sequence[Op] | None:
        block = graph.block[rewriter.label]
        if op is not block.terminator:
            return None
        unused = tuple(v for v in (*block.params, *(v for made in block.ops for v in made.results)) if v in read and v not in used)
        return (Op("unknown", unused, (rewriter.fresh("any"),), {"reason": "read"}), op) if unused else None

    return rewrite(graph, rule)


class _GraphEvaluation(Evaluation):
    """An evaluation that shows a fork of unknown size as one branch. `rest`: the program's `*args`, if they are unknown."""

    rest: Sequence[str] = ()

    def state_method(self, x: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name == "each" and is_branch(x):
            args, kwargs = [self._first_of(a) for a in args], {name: self._first_of(a) for name, a in kwargs.items()}
        if name != "fork" or not any(isinstance(a, Unknown) for a in (*args, *kwargs.values())):
            return super().state_method(x, name, args, kwargs)
        found = super().state_method(x, name, [1], {})
        found.states = OneForAll(found.states)
        return found

    def _first_of(self, x: Any) -> Any:
        return [self.operation("item", (x, 0), x.deps)] if isinstance(x, Unknown) else x

    def run_frame(self, frame: Frame) -> Any:
        """Call a function. A helper that makes no requests and cannot be evaluated to its end is reduced to the
        call."""
        for name in self.rest if frame.is_program else ():
            frame.vars[name] = Unknown(LATER, cast(GraphEmitter, self.emitter).unknown("any arguments"))
        self.rest = () if frame.is_program else self.rest
        skippable = self.may_skip(frame, frame) and frame.code is not None and frame.code.name != "<lambda>"
        if not skippable:
            return super().run_frame(frame)
        emitter = self.emitter
        assert isinstance(emitter, GraphEmitter)
        given, undo = [x for x in frame.vars.values() if isinstance(x, Unknown)], emitter.save()
        found = super().run_frame(frame)
        if isinstance(found, Unknown) and found.note is None:
            undo()
            found.note = emitter.unknown("decided by what is not known", [emitter.operand(x) for x in given], frame.code.name)  # type: ignore[union-attr]
        return found


def _arguments(function: Function, given: dict[str, Any], emitter: GraphEmitter) -> tuple[list[Any], dict[str, Any]]:
    """Return values for the parameters after the state: examples, defaults, or parameters of the graph."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    parameters = list(function.signature.parameters.items())[1:]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for _, p in parameters):
        kwargs.update({name: x for name, x in given.items() if name not in dict(parameters)})
    for name, p in parameters:
        if name in given and given[name] is not ANY:
            x: Any = given[name]
        elif p.default is not inspect.Parameter.empty and name not in given:
            x = p.default
        elif p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        else:
            value = emitter.parameter(name, _TYPES.get(p.annotation, "any"))
            x = Unknown(LATER, value)
        if p.kind is inspect.Parameter.POSITIONAL_ONLY:
            args.append(x)
        elif p.kind is inspect.Parameter.VAR_KEYWORD:
            kwargs.update(x)
        elif p.kind is inspect.Parameter.VAR_POSITIONAL:
            args.extend(x)
        else:
            kwargs[name] = x
    return args, kwargs


def _end(evaluation: Evaluation, emitter: GraphEmitter, outcome: Outcome) -> None:
    """End the last block as the evaluation ended."""
    domain = evaluation.domain
    assert isinstance(domain, GraphDomain)
    if outcome.stopped_at is not None:
        prompts: list[Value] = emitter.leaves()
        stopped = emitter.unknown(f"the evaluation stopped: {outcome.reason}", prompts)
        domain.returns(evaluation, Unknown(LATER, stopped))
    elif outcome.raised is not None:
        domain.raises(outcome.raised)
    else:
        domain.returns(evaluation, outcome.value)


__all__ = ["ANY", "graph_of", "traced"]
