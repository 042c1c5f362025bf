"""Static checks of a program's graph before any run: likely mistakes that a run would not report, and an estimate of
its cost."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations
from types import FunctionType
from typing import Any

import lmc
from lmc import dollars, explain
from lmc.backend.base import Backend
from lmc.constraints import CONSTRAINT_KINDS, dtype_constraint
from lmc.dollars import Dollars, costliest
from lmc.errors import LmcError, Loc
from lmc.frontend.expressions import an
from lmc.frontend.primitives import gen
from lmc.frontend.source import NoSource, find
from lmc.frontend.tracing import ANY, graph_of
from lmc.fsm.collisions import collisions
from lmc.fsm.sources import automaton_of
from lmc.ir.analysis import always
from lmc.ir.core import Graph, Op, Value
from lmc.runahead.program import Program

_CHARACTERS = 4  # per token, about, where no tokenizer is available
_NEAR = 0.8  # of the context


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding and its source location."""

    what: str
    loc: Loc | None

    def __str__(self) -> str:
        return f"{self.loc}: {self.what}" if self.loc is not None else self.what


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of one run's cost, by the program's graph: calls in its cheapest and dearest arms, tokens in the dearest.
    Defaults count as the arguments, and each of `loops` loops of unknown length one iteration.

    beyond  where code that the graph does not show may ask for the first time
    """

    calls: tuple[int, int]
    loops: int
    beyond: Loc | None
    prompt: int
    answer: int
    cost: Dollars | None
    batched: Dollars | None = None

    def __str__(self) -> str:
        low, high = self.calls
        calls = f"{high} call{'s'[: high != 1]}" if low == high else f"{low} to {high} calls"
        turns = f" (one turn of {self.loops} loop{'s'[: self.loops != 1]} counted)" if self.loops else ""
        cost = f"; {self.cost}" if self.cost is not None else ""
        cost += f'; with deadline="24h" {self.batched}' if self.batched is not None else ""
        more = f", and those of code that the graph does not show (from {self.beyond.short} on)" if self.beyond is not None else ""
        return f"about {calls}{turns}{more}; about {self.prompt} prompt tokens, and {self.answer} of answers at their limits{cost}"


def check(program: Program, context: int | None, backend: Backend) -> tuple[list[Finding], Estimate]:
    """Return what is likely wrong with a program, in the order of its lines, and what a run costs. `context`: tokens that the model can see."""
    graph = program.graph()
    section = explain.section(program, program.planner.planned(graph, program.target))
    found = [
        *_not_followed(graph),
        *_unread(section.graph),
        *_too_long(section, context),
        *_stops(graph),
        *_choices(graph),
        *_collisions(graph),
        *_data_of_users(program),
        *_without_a_prompt(graph),
        *_states_as_text(graph),
        *_answers_of_users(graph),
        *_without_requests(program),
        *_dropped(program.function.func),
    ]
    return sorted(dict.fromkeys(found), key=_place), _estimate(section, backend, _beyond(graph))


def _place(finding: Finding) -> tuple[str, int, int]:
    loc = finding.loc
    return (loc.file, loc.line, loc.col or 0) if loc is not None else ("", 0, 0)


def _not_followed(graph: Graph) -> Iterator[Finding]:
    for op in graph.ops():
        if op.kind == "unknown" and str(op.attr("reason")).startswith("the evaluation stopped"):
            yield Finding(f"what follows is not checked: {op.attr('reason')}", op.loc)


def _unread(planned: Graph) -> Iterator[Finding]:
    for op in planned.ops():
        if op.attr("lazy"):
            yield Finding(f"{_named(op)} is never read: only interpreted runs request it, and it changes nothing", op.loc)


def _named(op: Op) -> str:
    return f"the {op.kind} {op.attr('name')!r}" if op.attr("name") else f"this {op.kind}"


def _without_a_prompt(graph: Graph) -> Iterator[Finding]:
    empty = {value for op in graph.ops() if op.kind == "ctx.new" for value in op.results}
    for op in graph.ops():
        if op.kind in ("gen", "select") and op.operands[0] in empty:
            yield Finding(f"{_named(op)} has no prompt: nothing is appended before it, and its first argument is a variable's name", op.loc)


def _states_as_text(graph: Graph) -> Iterator[Finding]:
    for op in graph.ops():
        if op.kind in ("py.format", "py.str", "py.repr", "py.mod") and any(isinstance(x, Value) and x.type == "ctx" for x in op.operands):
            yield Finding("a state is made text here, which gives its repr: write s.text(), or s['name'] for an answer", op.loc)


def _prompts(section: Any) -> Iterator[tuple[Op, int]]:
    """Return each request with the approximate number of tokens in its prompt."""
    per_token = 1 if section.unit == "tokens" else _CHARACTERS
    for i, op in enumerate(section.graph.ops()):
        if op.kind in ("gen", "select") and i in section.expected:
            e = section.expected[i]
            yield op, -(-(e.shared + e.computed) // per_token)


def _most(op: Op) -> int:
    limit = op.attr("max_tokens")
    return 0 if op.kind == "select" else limit if isinstance(limit, int) else 128


def _too_long(section: Any, context: int | None) -> Iterator[Finding]:
    for op, prompt in _prompts(section):
        if context is not None and prompt + _most(op) > _NEAR * context:
            answer = f" and its answer up to {_most(op)}" if _most(op) else ""
            yield Finding(f"the prompt of {_named(op)} has about {prompt} tokens{answer}; the context has {context}", op.loc)


def _stops(graph: Graph) -> Iterator[Finding]:
    for op in graph.ops():
        stop = op.attr("stop")
        for text in (stop,) if isinstance(stop, str) else stop or ():
            if isinstance(text, str) and (source := _constraint(op)) is not None and not _occurs(text, *source):
                yield Finding(f"stop={text!r} of {_named(op)} cannot occur: its {source[0]} does not allow it", op.loc)


def _constraint(op: Op) -> tuple[str, str] | None:
    if isinstance(dtype := op.attr("dtype"), str):
        try:
            found, _ = dtype_constraint(dtype)
        except LmcError:  # reported where it is requested
            return None
        return found.kind, found.source
    return next(((kind, source) for kind in CONSTRAINT_KINDS if isinstance(source := op.attr(kind), str)), None)


def _occurs(text: str, kind: str, source: str) -> bool:
    """Return whether some text of the language contains `text`; assumed true if the language has no complete
    automaton."""
    try:
        dfa = automaton_of(kind, source)
    except LmcError:  # reported where it is requested
        return True
    return dfa is None or any(dfa.step(state, text.encode()) >= 0 for state in range(dfa.states))


def _choices(graph: Graph) -> Iterator[Finding]:
    for op in graph.ops():
        if op.kind == "select":
            choices = [choice for choice in op.operands[1:] if isinstance(choice, str)]
            for short, long in permutations(choices, 2):
                if short != long and long.startswith(short):
                    yield Finding(
                        f"{_named(op)}: {long!r} begins with {short!r}, so an answer meant as the longer one may be taken for the shorter; "
                        "choose texts that differ from the start",
                        op.loc,
                    )


def _collisions(graph: Graph) -> Iterator[Finding]:
    for op in graph.ops():
        if isinstance(source := op.attr("lark"), str):
            try:
                for a, b, text in collisions(source):
                    yield Finding(
                        f"terminals {a} and {b} of {_named(op)} both match {text!r}: "
                        "a parser with a lexer takes it for one of them, wherever the other is meant",
                        op.loc,
                    )
            except LmcError:  # reported where it is requested
                continue


def _data_of_users(program: Program) -> Iterator[Finding]:
    """Arguments and answers in a system message, whose instructions a model follows. A default counts as the argument's
    value until a caller passes another."""
    graph = _on_any(program, str)
    for op, role in _in_messages(graph):
        if op.kind == "append" and role == "system":
            names = sorted({name for x in op.uses[1:] for name in _sources(graph, x)})
            if names:
                yield Finding(
                    f"a system message contains {', '.join(names)}: the author of that text can give the model instructions; put it into a user message", op.loc
                )


def _on_any(program: Program, kind: type) -> Graph:
    """Return the graph in which defaults of that type are arguments like any other."""
    parameters = list(program.function.signature.parameters.items())[1:]
    known = {name: ANY for name, p in parameters if p.default is not p.empty and isinstance(p.default, kind) and name not in program.function.bound}
    return graph_of(program.function, **known) if known else program.graph()


def _without_requests(program: Program) -> Iterator[Finding]:
    """A program that makes no request whatever its arguments are: what it makes and does not append is lost."""
    graph = _on_any(program, object)
    unfinished = any(block.terminator.kind == "raise" for block in graph.blocks)
    if not unfinished and not any(op.kind in ("gen", "select") or _may_ask(op, graph) for op in graph.ops()):
        yield Finding(f"{program.function.name} asks the model nothing: a gen or a select is a request only once it is appended, s += …", program.function.loc)


def _dropped(fn: Any) -> Iterator[Finding]:
    """Statements that make an expression and append it nowhere."""
    try:
        source = find(fn)
    except (NoSource, AttributeError):  # a callable object has none
        return
    for node in ast.walk(source.node):
        if isinstance(node, ast.Expr) and (name := _makes(node.value, fn)):
            loc = Loc(fn.__code__.co_filename, node.lineno, node.col_offset)
            yield Finding(f"the result of {name}(…) is lost: an expression does nothing until it is appended, s += …", loc)


def _makes(node: ast.expr, fn: FunctionType) -> str:
    """Return the name of the function of lmc's by which `lmc.user(…) + …` begins, "" if it is none."""
    while isinstance(node, ast.BinOp):
        node = node.left
    made: Any = None
    match node:
        case ast.Call(func=ast.Name(id=name)):
            made = fn.__globals__.get(name) if name not in fn.__code__.co_varnames else None
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if fn.__globals__.get(module) is lmc:
            made = getattr(lmc, name, None)
        case _:
            return ""
    return ast.unparse(node.func) if getattr(made, "__module__", "") == gen.__module__ else ""


def _may_ask(op: Op, graph: Graph) -> bool:
    """Return whether an op stands for something that Python may append a request by: unknown code, or an appended value that may be an expression."""
    if op.kind in ("append", "concat"):
        return any(x.type == "any" for x in op.uses)
    if op.kind != "unknown":
        return False
    return bool(op.attr("calls")) or _may_extend(op) or any(op.results[0] in use.uses for use in graph.ops() if use.kind != "return")


def _may_extend(op: Op) -> bool:
    """Return whether an op stands for code that has a prompt, and may append to it."""
    return op.kind == "unknown" and any(x.type == "ctx" for x in op.uses)


def _answers_of_users(graph: Graph) -> Iterator[Finding]:
    for op, role in _in_messages(graph):
        if op.kind in ("gen", "select") and role in ("system", "user"):
            yield Finding(f"{_named(op)} is in {an(role)} message: the model writes that message on; close it, and ask in an assistant message", op.loc)


def _in_messages(graph: Graph) -> Iterator[tuple[Op, str | None]]:
    """Yield each op with the role of the message that it continues, None outside of messages."""
    role: dict[Value, str | None] = {}
    for op in graph.ops():
        ctx = op.operands[0] if op.operands and isinstance(op.operands[0], Value) else None
        here = role.get(ctx) if ctx is not None else None
        yield op, here
        if op.kind == "role.begin":
            here = str(op.attr("role"))
        elif op.kind == "role.end":
            here = None
        for value in op.results:
            if value.type == "ctx":
                role[value] = here


_KEYS = {"py.item": 1, "py.get": 1, "py.choice": 0}
"""Operands that select one of the others, and are no part of the result."""


def _sources(graph: Graph, value: Value) -> set[str]:
    """Return the arguments and answers whose text may be part of a value."""
    found: set[str] = set()
    seen: set[Value] = set()
    todo = [value]
    while todo:
        one = todo.pop()
        if one in seen or one.type in ("int", "float", "bool"):
            continue
        seen.add(one)
        op = graph.producer.get(one)
        if one in graph.params:
            found.add(f"the argument {one.name!r}")
        elif op is not None and op.kind in ("gen", "select"):
            found.add(f"the answer {op.attr('name')!r}" if op.attr("name") else "an answer")
        elif op is not None:
            todo += [x for i, x in enumerate(op.operands) if isinstance(x, Value) and i != _KEYS.get(op.kind)]
        else:
            todo += [x for x in graph.feeds.get(one, ()) if isinstance(x, Value)]
    return found


def _beyond(graph: Graph) -> Loc | None:
    """Return where code that the graph does not show may ask for the first time."""
    return next((op.loc for op in graph.ops() if op.loc is not None and _may_extend(op)), None)


def _estimate(section: Any, backend: Backend, beyond: Loc | None) -> Estimate:
    graph: Graph = section.graph
    home = {id(op): block.label for block in graph.blocks for op in block.ops}
    asks = list(_prompts(section))
    certain = always(graph)
    low = sum(home[id(op)] in certain and not op.attr("lazy") for op, _ in asks)
    high, prompt, answer = (round(costliest(graph, _by_block((home[id(op)], n) for op, n in counts))) for counts in (
        [(op, 1) for op, _ in asks], asks, [(op, _most(op)) for op, _ in asks],
    ))  # fmt: skip
    loops = sum(op.kind == "loop" for op in graph.ops())
    cost, batched = dollars.before(graph, backend, {}), dollars.in_batches(graph, backend, {})
    return Estimate((low, high), loops, beyond, prompt, answer, cost, batched)


def _by_block(counts: Iterable[tuple[str, int]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for label, count in counts:
        found[label] = found.get(label, 0.0) + count
    return found
