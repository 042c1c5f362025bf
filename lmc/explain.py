"""`program.explain()`: the graph, its plan, and the expected and actual cost of each request.

As lines of text, as a page or a fragment of HTML (ir/page.py), as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lmc import dollars, report, run_records
from lmc.errors import source_line
from lmc.ir.analysis import critical_path
from lmc.ir.core import Graph
from lmc.ir.ops import trait
from lmc.ir.page import Expected, MeasuredAsk, Section, folded, page
from lmc.ir.text import print_op
from lmc.measured import Measured, Total, counted, measured, runs_of
from lmc.pages import count, seconds, several
from lmc.passes.manager import Planned
from lmc.passes.predict import predict
from lmc.runahead.compiled import CompiledProgram, wait_for


def explain(program: CompiledProgram) -> str:
    """Return the report, one fact a line. Waits for the answers of runs that have ended, but in async code."""
    wait_for(program.profile.runs)
    planned = _planned(program)
    lines = [
        f"program {program.function.name}",
        *_shape(planned.graph),
        *_plan(program, planned),
        *_costs(section(program, planned)),
    ]
    return "\n".join([*lines, *of_runs(program)])


def of_runs(program: CompiledProgram) -> list[str]:
    """Return what its runs were like, in lines."""
    return [*_stats(program), *(f"  {line}" for line in (*_by_backend(program), *dollars.of_program(program)))]


def to_html(program: CompiledProgram) -> str:
    """Render the whole page: of its runs the conversation, the source and the timeline, then the graph. Waits as `explain` does."""
    wait_for(program.profile.runs)
    return page(program.function.name, sections(program), _facts(program), _of_runs(program))


def to_fragment(program: CompiledProgram) -> str:
    """Render the graph in a line that opens to the same, as a fragment for notebooks."""
    return folded(to_line(program), program.function.name, sections(program), _facts(program), _of_runs(program))


def to_json(program: CompiledProgram) -> str:
    """Return the same for programs: one object, whose `ops` are in the order of the graph. Waits as `explain` does."""
    wait_for(program.profile.runs)
    found = section(program, _planned(program))
    profile = program.profile
    return json.dumps(
        {
            "program": program.function.name,
            "runs": program.counted.runs,
            "ahead": {"asked": profile.asked, "used": profile.used, "wasted": profile.wasted},
            "facts": [*found.facts, *_by_backend(program), *dollars.of_program(program)],
            "blocks": dict(found.runs),
            "ops": _ops(found),
        },
        indent=1,
    )


# -- the parts -----------------------------------------------------------------------------------------------------


def sections(program: CompiledProgram) -> list[Section]:
    """Render the planned graph, and folded below it the graph as traced."""
    return [section(program, _planned(program)), Section("Before the passes", program.graph())]


def section(program: CompiledProgram, planned: Planned) -> Section:
    """Render the planned graph, with what is known of its ops."""
    found = _measured(program, planned.graph)
    graph = counted(planned.graph, found.blocks) if found.runs else planned.graph
    runs = runs_of(graph, found.blocks) if found.runs else {}
    measure = program.target.measure
    costs = predict(graph, measure)
    expected = {i: Expected(c.shared, c.computed, c.scored, c.answer, c.forced, c.group) for i, c in costs.items()}
    seen = {i: _seen_of(total) for i, total in found.ops.items() if total.count}
    ops = list(graph.ops())
    index = {id(op): i for i, op in enumerate(ops)}
    if seen:
        weight = {i: s.seconds / s.count for i, s in seen.items()}
    else:
        weight = {i: c.passes for i, c in costs.items() if trait(ops[i]) == "samples"}
    total, chain = critical_path(graph, lambda op: weight.get(index[id(op)], 0.0))
    critical = frozenset(index[id(op)] for op in chain) if total > 0 else frozenset[int]()
    how = f"{seconds(total)}, by measured averages" if seen else f"{total:.0f} passes of the model, by the plan"
    facts = [f"The critical path of a run takes {how}."] if total > 0 else []
    if found.runs:
        facts.append(f"The numbers are those of {several(found.runs, 'run')}.")
    tables = {
        "What the passes did": dict(planned.stats),
        "Asked by lines that the graph does not show": dict(found.elsewhere),
        "Asked ahead and not used": dict(found.wasted),
    }
    notes = [line for note in planned.notes for line in note.splitlines()]
    shown = ", ".join(f"{p.name}: {p.type}" for p in graph.params)
    return Section(f"@{graph.name}({shown})", graph, expected, seen, critical, runs, [*facts, *notes], tables, measure.unit)


def _planned(program: CompiledProgram) -> Planned:
    return program.planner.planned(program.graph(), program.target)


def _measured(program: CompiledProgram, graph: Graph) -> Measured:
    return measured(graph, [list(ledger.records) for ledger in tuple(program.profile.runs)])


def _seen_of(total: Total) -> MeasuredAsk:
    u = total.usage
    return MeasuredAsk(total.count, u.prompt_tokens, u.cached_tokens, u.completion_tokens, u.forced_tokens, u.passes, total.seconds)


def _facts(program: CompiledProgram) -> list[str]:
    """Return the sentences of `explain` on runs and prices."""
    return [line.strip()[0].upper() + line.strip()[1:] for line in (*_stats(program), *_by_backend(program), *dollars.of_program(program))]


def _of_runs(program: CompiledProgram) -> str:
    """Render the program's latest runs."""
    ledgers = list(program.profile.runs)
    state = program.profile.latest()
    own: Any = None if state is None else getattr(state.emitter, "run", None)
    known = own is not None and own.ledger in ledgers  # it may not have ended yet
    runs = [run_records.of_ledger(ledger) for ledger in ledgers]
    return report.parts(runs, state if known else None, [("s0", "Graph")], runs[ledgers.index(own.ledger)] if own is not None and known else None)


def _ops(section: Section) -> list[dict[str, Any]]:
    ops: list[dict[str, Any]] = []
    index = 0
    for block in section.graph.blocks:
        for op in (*block.ops, block.terminator):
            found: dict[str, Any] = {"op": op.kind, "block": block.label, "text": print_op(op)}
            if op.loc is not None:
                found["file"], found["line"] = op.loc.file, op.loc.line
                found["source"] = source_line(op.loc.file, op.loc.line).strip()
            if index in section.expected:
                found["expected"] = _plain(section.expected[index])
            if index in section.seen:
                found["measured"] = _plain(section.seen[index])
            if index in section.critical:
                found["critical"] = True
            ops.append(found)
            index += 1
    return ops


def _plain(x: Expected | MeasuredAsk) -> dict[str, Any]:
    return {name: getattr(x, name) for name in x.__dataclass_fields__}


def to_line(program: CompiledProgram) -> str:
    """Render the graph as one line."""
    kinds = [op.kind for op in program.graph().ops()]
    parts = [several(kinds.count(kind), word) for kind, word in (("gen", "gen"), ("select", "select"), ("switch", "undecided branch"))]
    return f"{', '.join(parts)}; {several(program.counted.runs, 'run')} so far"


# -- as text -------------------------------------------------------------------------------------------------------


def _shape(graph: Graph) -> Iterator[str]:
    kinds = [op.kind for op in graph.ops()]
    shown = ", ".join(f"{p.name}: {p.type}" for p in graph.params)
    yield f"  graph for ({shown}): {several(len(kinds), 'op')}, {several(kinds.count('gen'), 'gen')}, {several(kinds.count('select'), 'select')}"
    paths, branches = several(kinds.count("return"), "path"), several(kinds.count("switch"), "undecided branch")
    yield f"    {paths} to a return, {branches}, {several(kinds.count('loop'), 'loop')} of unknown length"
    calls = dict.fromkeys(str(op.attr("calls")) for op in graph.ops() if op.kind == "unknown" and op.attr("calls") is not None)
    if calls:
        yield f"    calls that cannot be followed: {', '.join(calls)}"
    stopped = [op for op in graph.ops() if op.kind == "unknown" and str(op.attr("reason")).startswith("the evaluation stopped")]
    yield from (f"    {op.attr('reason')} ({op.loc})" for op in stopped)


def _plan(program: CompiledProgram, planned: Planned) -> Iterator[str]:
    target = program.target
    yield f"  plan for {target.kind} with the {target.template.name} template: {several(sum(1 for _ in planned.graph.ops()), 'op')}"
    for what, number in planned.stats.items():
        yield f"    {what}: {count(number)}"
    for note in planned.notes:
        yield from (f"    {line}" for line in note.splitlines())


def _costs(section: Section) -> Iterator[str]:
    """Return a line for each request: where it is, its expected cost, its actual cost."""
    for fact in section.facts[:1]:
        yield f"    {fact.removesuffix('.')}; its requests have a *." if section.critical else f"    {fact}"
    for i, op in enumerate(section.graph.ops()):
        if trait(op) != "samples":
            continue
        where = op.loc.short if op.loc is not None else "?"
        mark = " *" if i in section.critical else ""
        lazy = " (asked when it is read)" if op.attr("lazy") else ""
        yield f"    {where} {op.kind} {op.attr('name') or ''}{mark}{lazy}: {_cost(section, i)}"


def _cost(section: Section, i: int) -> str:
    e = section.expected[i]
    text = f"{count(e.shared)} prompt {section.unit} shared, {count(e.computed)} computed"
    if i in section.seen:
        s = section.seen[i]
        text += (
            f"; {several(s.count, 'time')}, {seconds(s.seconds / s.count)}{' each' * (s.count > 1)}: "
            f"{several(s.prompt, 'token')} in ({count(s.cached)} cached), {count(s.generated)} out ({count(s.forced)} forced), {several(s.passes, 'pass')}"
        )
    return text


def _by_backend(program: CompiledProgram) -> list[str]:
    """Return what the requests of its latest runs were of each backend, if they were of several."""
    return report.by_backend([r for ledger in tuple(program.profile.runs) for r in run_records.of_ledger(ledger).requests])


def _stats(program: CompiledProgram) -> Iterator[str]:
    stats = program.counted.completed(program.profile.runs)
    profile = program.profile
    if not stats.runs:
        yield "  so far: not run"
        return
    yield (
        f"  so far: {several(stats.runs, 'run')}; "
        f"{several(profile.asked, 'request')} asked ahead ({program.ahead}), {profile.used} used, {profile.wasted} wasted"
    )
    for site in profile.off:
        yield f"    no more requests are made ahead at {site}: guesses there were wrong too often"
    last = stats.counters
    if not last.calls:
        return
    cached = f"    {several(last.prompt_tokens, 'prompt token')}: {count(last.cached_tokens)} from the cache, {count(last.prefilled_tokens)} computed"
    generated = f"    {several(last.generated_tokens, 'token')} generated, {count(last.forced_tokens)} of them forced"
    if stats.late:  # times and passes are those of answers, not of the call
        yield from (f"  last call: {several(last.calls, 'request')}", cached, generated)
        return
    yield f"  last call: {stats.run_seconds:.3f} s, {several(last.calls, 'request')} in {several(last.passes, 'pass')} of the model"
    yield f"{cached} ({count(last.unique_tokens)} unique)"
    if stats.note:
        yield f"    {stats.note}"
    if last.drafted_tokens:
        a_pass = f"{last.generated_tokens / last.passes:.2f} tokens a pass"
        yield f"    {several(last.drafted_tokens, 'token')} drafted, {count(last.accepted_tokens)} of them drawn; {a_pass}"
    yield f"{generated}; prefill optimality {last.prefill_optimality:.3f}"
