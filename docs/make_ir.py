"""Writes docs/ir.md from the op table: `python docs/make_ir.py` (with `--check`: fails if the page is not current)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from lmc.ir.core import FORMAT_VERSION, TYPES
from lmc.ir.ops import ATTRS, GEN_PARAMS, OPS, OpSpec
from lmc.ir.text import parse, print_graph

PAGE = Path(__file__).parent / "ir.md"

EXAMPLE = """graph @judge(%essay: str) -> (any) {
  %c0 = ctx.new()
  %c1 = append(%c0, special("<|im_start|>"), "user\\n", begin("user"), "Essay: ", %essay, end("user")) loc("judge.py":5)
  %c2, %related, %m = select(%c1, "yes", "no") {name = "related", stream = "", ordinal = 0} loc("judge.py":6)
  %answer: str = read(%related)
  %p: bool = host.call(@py.eq, %answer, "no") {pure = true, total = true}
  switch(%p) [true -> ^off, _ -> ^x0]
^off:
  return("off topic", %c2, %related, %m) {vars = ["related"]}
^x0:
  exit(%essay, %c2, %related, %m) {id = 0}
}
"""

INTRO = f"""# The IR

*Made from the op table (`lmc/ir/ops.py`) by `python docs/make_ir.py`; change it there.*

A graph is a program as the tracer saw it: a tree of blocks, each with one predecessor, so there are no phis. Prompt state
is a value of type `ctx`: `append`, `gen` and `select` give a new one, and a fork is two uses of one. Graphs are immutable;
passes map graphs to graphs.

```
{{example}}```

* Types: {", ".join(f"`{t}`" for t in sorted(TYPES))}. A result's type is written where the table below leaves it open: `%p: bool = …`.
* Operands: values `%x`, text and other literals (`"…"` as in JSON, `1`, `1.0`, `inf`, `-inf`, `nan`, `true`, `none`, `bytes("00ff")`), special
  tokens `special("<|im_end|>")`, edges of a message's content `begin("user")` and `end("user")`, host objects and constants `@name`.
* Then, in this order and all optional: the cases of a switch, attributes in braces, the place in the program's source.
* Names that are not plain are quoted: `%"a b"`. Layout means nothing; `//` starts a comment. The first comment names the format: `// lmc ir {FORMAT_VERSION}`.
* Reading a file executes nothing. Printing and parsing are exact inverses.

`lmc dump-ir FILE.py:fn` prints a program's graph, `lmc opt FILE.lmir --passes=…` runs passes on one.

## What passes may do

| trait | kept in order | merged | erased when unused |
|---|---|---|---|
| pure | no | yes | if it cannot raise |
| ordered | with what touches the same object | no | no |
| samples | no | no | yes |
| effect | yes | no | no |
| terminator | yes | no | no |

A `read`, a `ctx.text`, a `ctx.slice`, a `ctx.messages` and a host call that is neither `total` nor has `catch` can raise. An `exit` uses
all that the program can still reach; its `id` and the number and order of its operands, like those of a graph's parameters and of a
return, are what graphs are linked by, and no pass changes them.

A `prefill` stands before everything that goes on from its prompt, which then builds on what the backend holds; its `release`
stands on each path after the last op that goes on from the prompt.
"""


def page() -> str:
    return "\n".join([INTRO.replace("{example}", print_graph(parse(EXAMPLE))), *_ops(), *_attrs()])


def _ops() -> Iterator[str]:
    yield "## Ops\n\n| op | operands → results | trait | stage | attributes |\n|---|---|---|---|---|"
    for spec in OPS.values():
        stage = "all" if len(spec.stages) == 2 else ", ".join(spec.stages)
        yield f"| `{spec.kind}` | {_signature(spec)} | {_trait(spec)} | {stage} | {_names(spec)} |"
    yield ""
    yield from (f"* `{spec.kind}`: {spec.doc}" for spec in OPS.values())
    yield f"\nThe parameters of `gen` are those of the language: {', '.join(f'`{p}`' for p in GEN_PARAMS)}."


def _signature(spec: OpSpec) -> str:
    operands, results = (
        ", ".join(t[1:] + "…" if t.startswith("*") else t for t in types) for types in (spec.operands, spec.results)
    )
    return f"({operands}) → {results or '()'}"


def _trait(spec: OpSpec) -> str:
    return "pure, ordered or effect" if spec.kind == "host.call" else spec.trait


def _names(spec: OpSpec) -> str:
    names = [f"`{a}`" for a in spec.attrs if a not in GEN_PARAMS or spec.kind != "gen"]
    return ", ".join([*names, "parameters"] if spec.kind == "gen" else names)


def _attrs() -> Iterator[str]:
    yield "\n## Attributes\n\n| attribute | meaning |\n|---|---|"
    yield from (f"| `{name}` | {doc} |" for name, doc in ATTRS.items())
    yield ""


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/ir.md is not current: run python docs/make_ir.py")
