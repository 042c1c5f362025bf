"""Writes docs/passes.md from the passes themselves: `python docs/make_passes.py` (with `--check`: fails if the page is not current).

A section is a pass's own docstring, its options, and an example run through it just now. The measured table is what
`python -m benchmarks.bench_passes … --output docs/passes_measured.txt` wrote last.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from textwrap import dedent

from lmc.ir.parser import parse
from lmc.ir.text import print_graph
from lmc.passes.base import Target, registry
from lmc.passes.manager import PassManager, parse_pipeline, pipeline_for, print_pipeline

PAGE = Path(__file__).parent / "passes.md"
MEASURED = Path(__file__).parent / "passes_measured.txt"


@dataclass(frozen=True)
class Example:
    """A pass as it stands in a pipeline, and a graph that shows what it does."""

    passes: str
    body: str
    params: str = "%essay: str"
    kind: str = "tokens"


EXAMPLES: Mapping[str, Example] = {
    "canonicalize": Example("canonicalize", """
        %c0 = ctx.new()
        %c1 = append(%c0, "Essay: ")
        %t = concat(%essay, "\\n")
        %c2 = append(%c1, %t, "", "Grade: ")
        %c3, %x, %m = gen(%c2)
        return(%x, %c3)
    """),
    "lower-chat": Example("lower-chat", """
        %c0 = ctx.new()
        %c1 = role.begin(%c0) {role = "user", previous = none}
        %c2 = append(%c1, %essay)
        %c3 = role.end(%c2) {role = "user"}
        %c4 = role.begin(%c3) {role = "assistant", previous = "user"}
        %c5, %x, %m = gen(%c4)
        return(%x, %c5)
    """),
    "cse": Example("cse", """
        %c1 = append(%c0, "Judge it.")
        %c2, %x, %m1 = gen(%c1) {stream = "/0.0", ordinal = 0, temperature = 0.0}
        %c3 = append(%c0, "Judge it.")
        %c4, %y, %m2 = gen(%c3) {stream = "/0.1", ordinal = 0, temperature = 0.0}
        %t = concat(%x, %y)
        return(%t, %c4)
    """, "%c0: ctx"),
    "dce": Example("dce", """
        %f = append(%c0, "A fork that nobody reads.")
        %f1, %x, %m1 = gen(%f)
        %c2, %y, %m2 = gen(%c0)
        return(%y, %c2)
    """, "%c0: ctx, %essay: str"),
    "lower-constraint": Example("lower-constraint", """
        %c1, %x, %m1 = gen(%c0) {regex = "[A-D][+-]?"}
        %c2, %y, %m2 = gen(%c1) {regex = "[A-D][+-]?", max_tokens = 20}
        %c3, %z, %m3 = gen(%c2) {dtype = "int"}
        %c4, %w, %m4 = gen(%c3) {json_schema = "{\\"type\\": \\"boolean\\"}"}
        return(%y, %c4)
    """, "%c0: ctx"),
    "plan-speculation": Example("plan-speculation", """
        %c1, %x, %m0 = gen(%c0) {name = "x", stream = "", ordinal = 0, stop = "\\n"}
        %c2 = append(%c1, "\\nBorn:")
        %c3, %y, %m1 = gen(%c2) {name = "y", stream = "", ordinal = 1, stop = "\\n"}
        return(%y, %c3)
    """, "%c0: ctx", "chat"),
    "plan-cache": Example("plan-cache", """
        %c0 = ctx.new()
        %c1 = append(%c0, begin("system"), %essay, end("system"))
        %f = append(%c1, begin("user"), "Its clarity?", end("user"), begin("assistant"))
        %f1, %x, %m0 = gen(%f) {stream = "/0.0", ordinal = 0}
        %f2 = append(%f1, end("assistant"), begin("user"), "Why?", end("user"), begin("assistant"))
        %f3, %w, %m1 = gen(%f2) {stream = "/0.0", ordinal = 1}
        %g = append(%c1, begin("user"), "Its evidence?", end("user"), begin("assistant"))
        %g1, %y, %m2 = gen(%g) {stream = "/0.1", ordinal = 0}
        %t = concat(%x, %w, %y)
        return(%t, %c1)
    """, kind="chat"),
    "plan-prefix": Example("plan-prefix", """
        %c0 = ctx.new()
        %c1 = append(%c0, "You grade essays strictly. ", %essay)
        %f = append(%c1, "Judge its clarity.")
        %f1, %x, %m0 = gen(%f)
        %g = append(%c1, "Judge its evidence.")
        %g1, %y, %m1 = gen(%g)
        %t = concat(%x, %y)
        return(%t, %c1)
    """),
    "batch-forks": Example("batch-forks", """
        %a, %x, %m0 = gen(%c0) {name = "x", stream = "/0.0", ordinal = 0}
        %b, %y, %m1 = gen(%c0) {name = "x", stream = "/0.1", ordinal = 0}
        %g = append(%c0, "Judge its evidence.")
        %g1, %z, %m2 = select(%g, "good", "bad") {name = "z", stream = "/0.2", ordinal = 0}
        return(%x, %c0)
    """, "%c0: ctx"),
    "aggressive": Example("aggressive", """
        %c0 = ctx.new()
        %c1 = append(%c0, "You read essays.\\n", %essay, "\\nRate the style from 1 to 5.\\nAnswer:")
        %c2, %x, %m = gen(%c1)
        return(%x, %c2)
    """),
}  # fmt: skip

INTRO = """# The passes

*Made from the passes by `python docs/make_passes.py`; change it there, or in the passes' docstrings.*

A pass maps a [graph](ir.md) to a graph, and returns the same object if there is nothing to do. Passes do not execute anything: their results become annotations of the
addresses of requests (`lmc/runahead/annotations.py`), which the ledger looks up when it submits a request. Tests check of every pass
that it adds and loses no request, leaves requests unchanged, and makes a request lazy only if nothing in the graph reads its answer.
Only `aggressive` changes prompts, and it runs only on request. What each pass is worth is [measured](#measured) at the end.

The pipeline depends on the kind of backend:

| target | pipeline |
|---|---|
{pipelines}

```
lmc dump-ir examples/judge.py:judge --after plan-prefix      # a program after one pass; `--after trace`: before all passes
lmc dump-ir examples/judge.py:judge --after trace -o judge.lmir
lmc opt judge.lmir --timing --verify-each                    # the whole pipeline, what each pass did, and how long it took
lmc opt judge.lmir --passes='lower-chat,canonicalize,plan-prefix{{min_chars = 4}}' --print-after=canonicalize
lmc opt judge.lmir --list                                    # all passes with their options
```

The [settings](debugging.md#settings) `LMC_VERIFY`, `LMC_PRINT_IR`, `LMC_LOG=passes` and `LMC_SKIP_PASSES` do the same inside a program.
If a pass fails, it leaves a file whose first line is the command that reproduces the failure.
"""

END = """
## Measured

Each program was run with all passes, with all but one, and without a plan (`opt=0`). The table has the rows in which a missing pass
changes calls, tokens or passes of the model; the last column says by how much: a plus is what the pass saves, a minus what it costs.
*Computed*, *unique* and *cached* are prompt tokens; groups were submitted together (on the mock) or admitted in one pass (on the small model).
The mock's tokens are bytes, and it computes one answer after another, one token a pass.

* In the ten workloads of `benchmarks/workloads.py` the passes save nothing: as long as there is room, the runtime computes no token of a prompt twice even without a plan. On the small model, plan-prefix costs a pass in few-shot and a token in choice.
* The programs of `benchmarks/pass_workloads.py` consist of what the passes act on: equal requests (cse), forks that nobody reads (dce), and, in a KV pool too small for a whole run,
  a document that is needed again late (plan-prefix keeps it).

Each row is one cold run. Program and engine take turns in one thread (`benchmarks/stepped.py`), so the counters are the same
every time. All rows are in `docs/passes_measured.txt`, written by
`python -m benchmarks.bench_passes --backend mock,smollm2 --scale 0.05 --n 3 --output docs/passes_measured.txt`.

"""


def page() -> str:
    pipelines = "\n".join(f"| `{kind}` | {', '.join(p.name for p in pipeline_for(Target(kind)))} |" for kind in ("tokens", "text", "chat"))
    names = dict.fromkeys([*(p.name for kind in ("tokens", "text", "chat") for p in pipeline_for(Target(kind))), *sorted(registry())])
    sections = [line for name in names for line in _section(name)]
    measured = _telling(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else "Not measured yet.\n"
    return "\n".join([INTRO.format(pipelines=pipelines), *sections]) + END + measured


def _telling(measured: str) -> str:
    """Return the table without the rows that say nothing: a missing pass that changed no counter, and programs where none did."""
    rows = [(line, [cell.strip() for cell in line.split("|")]) for line in measured.splitlines(keepends=True)]
    changed = {tuple(cells[1:3]) for _, cells in rows[4:] if cells[-2]}
    kept = [line for line, cells in rows[4:] if cells[-2] or (tuple(cells[1:3]) in changed and cells[3] == "all passes")]
    return "".join([line for line, _ in rows[:4]] + kept)


def _section(name: str) -> Iterator[str]:
    cls = registry()[name]
    yield f"## {name}\n"
    yield f"{(sys.modules[cls.__module__].__doc__ or '').strip()}\n"
    options = dedent("\n".join((cls.__doc__ or "").strip().splitlines()[1:])).strip()
    if fields(cls):  # pyright: ignore[reportArgumentType]
        yield f"Options, with their defaults: `{_defaults(cls)}`\n"
        yield f"```\n{options}\n```\n" if options else ""
    yield from _example(EXAMPLES[name])


def _defaults(cls: type) -> str:
    import json

    return f"{cls.name}{{{', '.join(f'{f.name} = {json.dumps(f.default)}' for f in fields(cls))}}}"  # type: ignore[attr-defined]


def _example(example: Example) -> Iterator[str]:
    graph = parse(f"graph @f({example.params}) -> (any) {{\n{dedent(example.body)}\n}}")
    planned = PassManager(parse_pipeline(example.passes)).plan(graph, Target(example.kind))
    yield f"```\n{_body(print_graph(graph))}\n```\n"
    yield f"after `{print_pipeline(parse_pipeline(example.passes))}`" + (f" ({_shown(planned.stats)}):" if planned.stats else ":") + "\n"
    yield f"```\n{_body(print_graph(planned.graph))}\n```\n"


def _shown(stats: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {what.split('.', 1)[1]}" for what, n in stats.items())


def _body(text: str) -> str:
    return dedent("\n".join(text.splitlines()[2:-1]))


def main() -> int:
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") != text:
        print("docs/passes.md is not current: run python docs/make_passes.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
