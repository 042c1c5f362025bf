"""Writes docs/ir.md from the op table: `python docs/make_ir.py` (with `--check`: fails if the page is not current)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from lmc.ir.core import FORMAT_VERSION, TYPES
from lmc.ir.ops import ATTRS, FUNCTION, GEN_PARAMS, OPS, OpSpec
from lmc.ir.parser import parse
from lmc.ir.text import print_graph

PAGE = Path(__file__).parent / "ir.md"

EXAMPLE = """graph @judge(%essay: str) -> (any) {
  %c0 = ctx.new()
  %c1 = append(%c0, special("<|im_start|>"), "user\\n", begin("user"), "Essay: ", %essay, end("user")) loc("judge.py":5)
  %c2, %related, %m = select(%c1, "yes", "no") {name = "related", stream = "", ordinal = 0} loc("judge.py":6)
  %p: bool = py.eq(%related, "no") loc("judge.py":7)
  switch(%p) [true -> ^off, _ -> ^on] then ^on.1 {taken = [3, 9]} loc("judge.py":7)
^off:
  return("off topic", %c2, %related) {vars = ["related"]} loc("judge.py":8)
^on:
  %tips = unknown(%essay) {calls = "search", reason = "not in the table"} loc("judge.py":9)
  loop(%tips, %c2) [_ -> ^body] then ^after loc("judge.py":10)
^body(%c3: ctx):
  %tip = unknown(%tips) {reason = "an item"} loc("judge.py":10)
  %c4 = append(%c3, "Tip: ", %tip) loc("judge.py":11)
  yield(%c4)
^after(%c5: ctx):
  yield(%c5)
^on.1(%c6: ctx):
  %c7, %out, %m1 = gen(%c6) {name = "out", stream = "", ordinal = 1} loc("judge.py":12)
  return(%out, %c7, %related, %out) {vars = ["related", "out"]} loc("judge.py":13)
}
"""

INTRO = f"""# The IR

*Made from the op table (`lmc/ir/ops.py`) by `python docs/make_ir.py`; change it there.*

A graph is the result of an abstract evaluation of a program, before a run or with a run's values: the prompts that the program makes, its requests, and
how they depend on each other. It is advice: Python runs the program, and a wrong graph changes only which requests are made ahead. A prompt is a
value of type `ctx`: `append`, `gen` and `select` make a new one from an old one, and a fork uses one value several times. Graphs are immutable; [passes](passes.md) map graphs to graphs.

`lmc dump-ir FILE.py:fn` prints a program's graph; `lmc opt FILE.lmir --passes=…` runs passes on one.

```
{{example}}```

## Syntax

* Types: {", ".join(f"`{t}`" for t in sorted(TYPES))}. A result's type is written if it is narrower than in the [table of ops](#ops): `%p: bool = …`.
* Operands: values `%x`, text and other literals (`"…"` as in JSON, `1`, `1.0`, `inf`, `-inf`, `nan`, `true`, `none`, `bytes("00ff")`), special
  tokens `special("<|im_end|>")`, and marks where a message's content begins and ends, `begin("user")` and `end("user")`. Constants of the graph are written `@name`, in attributes.
* After the operands, in this order and all optional: cases, the block that continues (`then`), attributes in braces, the location in the program's source.
* Names with other characters than letters, digits, `_` and `.` are quoted: `%"a b"`. White space has no meaning; `//` starts a comment. The first comment names the format: `// lmc ir {FORMAT_VERSION}`.
* Parsing executes nothing. Printing and parsing are exact inverses.

## Arms and loops

Known control flow is resolved: a `for` over three items is three copies of its body, and a decided `if` is the arm that is taken. An undecided `if`
is a `switch`. Arms that `yield` continue in the block at `then`, whose parameters are the yielded values; an
arm that returns or raises does not continue. A loop over an unknown number of items is a `loop` with one body for all iterations. The parameters of the
body and of the block at `then` are the initial values of the loop or the values that an iteration yields. `break` and `continue` end an iteration from an arm within it.

The blocks of a graph form a tree: each block but the entry is named by one terminator, which is its immediate dominator. A value may be used in the block
that defines it and in all blocks below it in that tree; values leave arms and iterations only by `yield`.

The address of a request, its `stream` and `ordinal`, is known if the same number of requests precedes it on its stream whichever arms are taken;
otherwise the request is `shifted`, and nothing is planned for its address.

## What passes may do

| trait | merged | erased when unused |
|---|---|---|
| pure | yes | yes |
| samples | at temperature 0, with equal prompts and parameters | no: it becomes `lazy` |
| opaque | no | no |
| effect | no | no |
| terminator | no | no |

A `prefill` precedes every op that continues its prompt; its `release` follows the last of them on each path.
"""


def page() -> str:
    return "\n".join([INTRO.replace("{example}", print_graph(parse(EXAMPLE))), *_ops(), *_attrs()])


def _ops() -> Iterator[str]:
    yield "## Ops\n\n| op | operands → results | trait | stage | attributes |\n|---|---|---|---|---|"
    for spec in (*OPS.values(), FUNCTION):
        stage = "all" if len(spec.stages) == 2 else ", ".join(spec.stages)
        yield f"| `{spec.kind}` | {_signature(spec)} | {spec.trait} | {stage} | {_names(spec)} |"
    yield ""
    yield from (f"* `{spec.kind}`: {spec.doc}" for spec in (*OPS.values(), FUNCTION))
    yield f"\nThe parameters of `gen` are those of the language: {', '.join(f'`{p}`' for p in GEN_PARAMS)}."


def _signature(spec: OpSpec) -> str:
    operands, results = (
        ", ".join(t[1:] + "…" if t.startswith("*") else t for t in types) for types in (spec.operands, spec.results)
    )
    return f"({operands}) → {results or '()'}"


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
