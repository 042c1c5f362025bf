"""`program.explain()`: what was captured, what the plan does with it, what each op is expected to cost and what it did cost.

As lines of text, as a page or a fragment of HTML (ir/page.py), as JSON.
"""

from __future__ import annotations

import json
import linecache
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from lmc.frontend.tree import Escape, Node, Return, Switch, Tree
from lmc.ir.analysis import critical_path
from lmc.ir.core import Op, Symbol
from lmc.ir.ops import trait
from lmc.ir.page import Expected, Section, Seen, fragment, page, seconds
from lmc.ir.text import print_op
from lmc.measured import Measured
from lmc.passes.predict import predict

if TYPE_CHECKING:
    from lmc.jit.notices import Stats
    from lmc.jit.traced import Plan, Traced
    from lmc.runahead.program import Program


def explain(program: Program) -> str:
    """The report, one fact a line."""
    lines = [f"program {program.function.name}"]
    if program.interpreted is not None:
        lines.append(f"  runs in the interpreter: {program.interpreted}")
    for traced in program.traces():
        lines += _tree(traced.tree)
        for plan in tuple(traced.plans.values())[:1]:
            lines += _plan(plan)
        lines += _costs(section(program, traced))
        lines += _ways_out(traced)
    lines += _stats(program.stats)
    return "\n".join(lines)


def to_html(program: Program) -> str:
    """The whole page."""
    return page(program.function.name, sections(program), _facts(program))


def to_fragment(program: Program) -> str:
    """The same to be embedded, for notebooks."""
    return fragment(program.function.name, sections(program), _facts(program))


def to_json(program: Program) -> str:
    """The same for programs: one object, whose `traces` have the ops in the order of their graph."""
    found = {
        "program": program.function.name,
        "interpreted": program.interpreted,
        "runs": program.stats.runs,
        "replays": program.stats.replays,
        "traces": [_json(section(program, traced), traced) for traced in program.traces()],
    }
    return json.dumps(found, indent=1)


# -- the parts -----------------------------------------------------------------------------------------------------


def sections(program: Program) -> list[Section]:
    """A section for each trace of the program, the one with most runs first; traced now if nothing was."""
    if not program.traces() and program.interpreted is None:
        program.graph()
    traced = sorted(program.traces(), key=lambda t: -t.ledger.runs)
    return [section(program, t) for t in traced]


def section(program: Program, traced: Traced) -> Section:
    """One trace: its planned graph, and what is known of its ops."""
    planned = program.planned(traced)
    graph = planned.graph
    measure = program.target.measure
    costs = predict(graph, measure)
    expected = {
        i: Expected(c.shared, c.computed, c.scored, c.answer, c.forced, c.group) for i, c in costs.items()
    }
    measured = traced.ledger.measured(graph)
    seen = {i: _seen_of(measured, i) for i in measured.ops}
    ops = list(graph.ops())
    index = {id(op): i for i, op in enumerate(ops)}
    if seen:
        weight = {i: s.seconds / s.count for i, s in seen.items()}
    else:
        weight = {i: c.passes for i, c in costs.items() if trait(ops[i]) == "samples"}
    total, chain = critical_path(graph, lambda op: weight.get(index[id(op)], 0.0))
    critical = frozenset(index[id(op)] for op in chain) if total > 0 else frozenset[int]()
    how = f"{seconds(total)}, by the means that were measured" if seen else f"{total:.0f} passes of the model, as expected"
    facts = [f"The critical path of a run takes {how}."] if total > 0 else []
    ledger = traced.ledger
    if ledger.runs:
        kept = f"; the numbers are those of the last {len(ledger)}" if len(ledger) < ledger.runs else ""
        facts.append(f"{ledger.runs} run{'s'[: ledger.runs != 1]}, {ledger.replayed.total()} of them finished by the interpreter{kept}.")
    shown = ", ".join(f"{p.name}: {p.type}" for p in traced.tree.params)
    tables = {
        "What the passes did": dict(planned.stats),
        "Left the graph, for the interpreter": dict(ledger.replayed),
        "Answers that no run had given: traced and linked": dict(ledger.extended),
    }
    notes = [line for note in planned.notes for line in note.splitlines()]
    title = f"Traced for ({shown})"
    return Section(title, graph, expected, seen, critical, dict(measured.blocks), [*facts, *notes], tables, measure.unit)


def _seen_of(measured: Measured, index: int) -> Seen:
    total = measured.ops[index]
    u = total.usage
    return Seen(total.count, u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.forced_tokens, u.passes, total.seconds)


def _facts(program: Program) -> list[str]:
    found = [f"Runs in the interpreter: {program.interpreted}"] if program.interpreted is not None else []
    return [*found, "; ".join(line.strip() for line in _stats(program.stats))]


def _json(section: Section, traced: Traced) -> dict[str, Any]:
    ops: list[dict[str, Any]] = []
    index = 0
    for block in section.graph.blocks:
        for op in (*block.ops, block.terminator):
            found: dict[str, Any] = {"op": op.kind, "block": block.label, "text": print_op(op)}
            if op.loc is not None:
                found["file"], found["line"] = op.loc.file, op.loc.line
                found["source"] = linecache.getline(op.loc.file, op.loc.line).strip()
            if index in section.expected:
                found["expected"] = _plain(section.expected[index])
            if index in section.seen:
                found["measured"] = _plain(section.seen[index])
            if index in section.critical:
                found["critical"] = True
            ops.append(found)
            index += 1
    return {
        "title": section.title, "facts": list(section.facts), "ops": ops, "runs": dict(section.runs),
        "replayed": dict(traced.ledger.replayed), "extended": dict(traced.ledger.extended),
    }  # fmt: skip


def _plain(x: Expected | Seen) -> dict[str, Any]:
    return {name: getattr(x, name) for name in x.__dataclass_fields__}


# -- as text -------------------------------------------------------------------------------------------------------


def _costs(section: Section) -> Iterator[str]:
    """A line for each ask: where it is, what it is expected to cost, what it did cost."""
    for fact in section.facts[:1]:
        yield f"    {fact}"
    for i, op in enumerate(section.graph.ops()):
        if trait(op) != "samples":
            continue
        where = f"{PurePath(op.loc.file).name}:{op.loc.line}" if op.loc is not None else "?"
        mark = " *" if i in section.critical else ""
        yield f"    {where} {op.kind} {op.attr('name') or ''}{mark}: {_cost(section, i)}"


def _cost(section: Section, i: int) -> str:
    e = section.expected[i]
    text = f"{e.shared} {section.unit} of prompt shared, {e.computed} computed"
    if i in section.seen:
        s = section.seen[i]
        text += (
            f"; {s.count} times, {s.prompt} tokens in ({s.cached} cached), {s.generated} out ({s.forced} forced), "
            f"{s.passes} passes, {seconds(s.seconds / s.count)} each"
        )
    return text


def _ways_out(traced: Traced) -> Iterator[str]:
    for reason, count in traced.ledger.replayed.items():
        yield f"    {count} runs finished by the interpreter: {reason}"
    for place, count in traced.ledger.extended.items():
        yield f"    {count} new paths at {place}"


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
