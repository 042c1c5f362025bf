"""`program.explain()`: what was captured, what the plan does with it, and what the last call cost, for a person to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lmc.frontend.tree import Escape, Node, Return, Switch, Tree
from lmc.ir.core import Op, Symbol
from lmc.ir.ops import trait

if TYPE_CHECKING:
    from lmc.jit import Plan, Program, Stats


def explain(program: Program) -> str:
    """The report, one fact a line."""
    lines = [f"program {program.function.name}"]
    if program.interpreted is not None:
        lines.append(f"  runs in the interpreter: {program.interpreted}")
    for tree, plan in program.plans():
        lines += _tree(tree)
        if plan is not None:
            lines += _plan(plan)
    lines += _stats(program.stats)
    return "\n".join(lines)


def _tree(tree: Tree) -> Iterator[str]:
    nodes = list(_nodes(tree.root))
    ops = [op for node in nodes for op in node.ops]
    kinds = [op.kind for op in ops]
    shown = ", ".join(f"{p.name}: {p.type}" for p in tree.params)
    yield f"  trace for ({shown}): {len(ops)} ops, {kinds.count('gen')} gens, {kinds.count('select')} selects"
    yield from _host_calls(op for op in ops if op.kind == "host.call" and trait(op) == "effect" and not op.attr("inline"))
    ends = [node.end for node in nodes]
    switches = [end for end in ends if isinstance(end, Switch)]
    yield f"    {sum(isinstance(e, Return) for e in ends)} paths to a return, {len(switches)} decisions with {sum(len(s.arms) for s in switches)} answers seen"
    data = [guard.what for guard in tree.guards.values() if " is " not in guard.what]
    for what in data:
        yield f"    holds while {what}"
    if len(tree.guards) > len(data):
        yield f"    holds while {len(tree.guards) - len(data)} names mean the same functions, classes and modules"
    for reason in dict.fromkeys(end.reason for end in ends if isinstance(end, Escape)):
        yield f"    goes on in the interpreter where the program {reason}"


def _host_calls(calls: Iterable[Op]) -> Iterator[str]:
    """The functions that do something outside, with what is said of them."""
    found: dict[str, None] = {}
    for op in calls:
        said = [name for name in ("unordered", "idempotent") if op.attr(name)]
        said += [f"timeout {op.attr('timeout'):g} s"] if op.attr("timeout") is not None else []
        callee = op.operands[0]
        assert isinstance(callee, Symbol)
        found[callee.name + (f" ({', '.join(said)})" if said else "")] = None
    if found:
        yield f"    calls the host: {', '.join(found)}"


def _nodes(root: Node) -> Iterator[Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node.end, Switch):
            stack.extend(node.end.arms.values())


def _plan(plan: Plan) -> Iterator[str]:
    yield f"  plan for {plan.target.kind} with the {plan.target.template.name} template: {len(list(plan.code.graph.ops()))} ops"
    for what, count in plan.stats.items():
        yield f"    {what}: {count}"
    for note in plan.notes:
        yield from (f"    {line}" for line in note.splitlines())


def _stats(stats: Stats) -> Iterator[str]:
    yield f"  so far: {stats.runs} runs, {stats.replays} of them finished by the interpreter; {stats.traces} traces"
    yield f"    tracing {stats.trace_seconds * 1e3:.1f} ms, planning {stats.plan_seconds * 1e3:.1f} ms"
    last = stats.counters
    if not last.calls:
        return
    yield f"  last call: {stats.run_seconds:.3f} s, {last.calls} requests in {last.passes} passes of the model"
    yield f"    {last.prompt_tokens} prompt tokens: {last.cached_tokens} from the cache, {last.prefilled_tokens} computed ({last.unique_tokens} unique)"
    yield f"    {last.generated_tokens} tokens generated, {last.forced_tokens} of them forced; prefill optimality {last.prefill_optimality:.3f}"
