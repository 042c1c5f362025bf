"""`lmc bench`: what lmc gives a user's own program."""

from __future__ import annotations

import json
import math
import os
import platform
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import lmc
from lmc import named, userfiles
from lmc.cli.console import say, write
from lmc.cli.models import open_backend
from lmc.cli.options import Arguments, InputFile, ModelName, Target, unset
from lmc.cli.run import arguments_of, one_source
from lmc.config import config
from lmc.items import read_items
from lmc.pages import several
from lmc.userfiles import Item, UsageError

SHARES = ("p50", "p95", "p99")


def bench(
    target: Target,
    arg: Arguments = None,
    input_file: InputFile = None,
    backend: ModelName = None,
    reps: Annotated[int, typer.Option(min=1, metavar="N", help="Timed repetitions; each runs every item in every way.")] = 3,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", show_default="all", help="Run only the first N items of --input.")] = None,
    ways: Annotated[
        str, typer.Option(metavar="LIST", help="Ways to compare, separated by commas; the first is what the others are compared with.")
    ] = "loop,interpreted,one by one,compiled",
    rate: Annotated[float | None, unset(metavar="R", help="Also let the items arrive at random, R a second, as users of a service.")] = None,
    expected: Annotated[str | None, unset(metavar="FIELD", help="The field of --input with what an item should return: adds its accuracy.")] = None,
    output: Annotated[Path | None, unset("--json", metavar="FILE", help="Also write the figures to this file, as JSON.")] = None,
) -> None:
    """Run a program in several ways and compare them: seconds, latencies, requests, tokens, price.

    \b
    loop         one item after another, interpreted: what plain code does
    interpreted  all items as a batch
    one by one   one item after another, compiled: what run-ahead gives
    compiled     all items as a batch
    arriving     with --rate: each at its time, compiled; percentiles count from an item's arrival

    Each way runs every item --reps times at temperature 0, in turns, after a run of two items that does not count. The cache of a model in this
    process is emptied before each; a server's is not, so behind an API the first way can pay for what later ones find. Tools of the program run
    each time, too.

    \b
    Examples:
      lmc bench examples/judge.py:judge --input examples/data/essays.jsonl --limit 2
      lmc bench my.py:program --input rows.csv -b openai:gpt-4.1-mini --limit 10 --reps 1
    """
    from lmc.measuring import WAYS, comparing

    one_source(arg, input_file)
    names = list(dict.fromkeys(name.strip() for name in ways.split(",")))
    if unknown := [name for name in names if name not in WAYS]:
        raise UsageError(f"--ways: there is no way {unknown[0]!r}; there are {', '.join(WAYS)}")
    userfiles.check_folder(output, "--json")
    program = userfiles.load_program(target)
    if target.endswith(".lmcp"):
        raise UsageError(f"{target} is a saved program, which has no source to interpret; give FILE.py:FUNCTION")
    if rate is not None and not 0 < rate < math.inf:
        raise UsageError(f"--rate {rate:g}: a number of items a second is more than 0")
    items, wanted = _items(program, arg, input_file, limit, expected)
    name = backend or config().model or "smollm2"
    with closing(open_backend(name)) as model:
        if not named.is_model(name) and name != "mock":
            say(f"note: {named.public(name)} is asked for {len(items)} items {reps} times in each of {len(names)} ways")
        lines, interrupted = list[Any](), None
        try:
            for lines in comparing(program, lambda _: items, model, ways=names, reps=reps, streams=True, rate=rate, expected=wanted):
                if output is not None:
                    write(
                        json.dumps({"program": target, "backend": named.public(name), **_where(), "lines": [asdict(line) for line in lines]}, indent=1), output
                    )
        except KeyboardInterrupt as stopped:
            if not lines:
                raise
            interrupted = stopped
    print(_table([_row(line) for line in lines]))
    print(
        f"\n{several(len(items), 'item')}, {several(lines[0].reps, 'repetition')}, medians; {lines[0].way!r} is 1.00x. "
        "first, total: from the start to an item's first text, and to its last answer."
        "\ncomputed: prompt tokens that no cache held. same: items with the first way's texts and return value."
        f"\nMeasured on {named.public(name)}: {', '.join(_where().values())}"
    )
    if any(line.same < 1 for line in lines):
        say(
            "note: some answers differ between the ways. On a real model the numerics of batching can decide a near tie; a program that uses the time, "
            "random numbers or other programs' answers differs by itself"
        )
    if interrupted is not None:
        say(f"these are {lines[0].reps} of {several(reps, 'repetition')}")
        raise interrupted


def _items(program: Any, arg: Any, input_file: Path | None, limit: int | None, expected: str | None) -> tuple[list[Item], list[Any] | None]:
    """Return the arguments of each item, and what it should return, if that is given."""
    if input_file is None:
        if expected is not None:
            raise UsageError("--expected names a field of --input")
        return [arguments_of(program, arg)], None
    found = read_items(program, input_file)
    fields = [given | extra for given, extra in zip(found.given, found.extra)][:limit]
    if expected is not None and (lacking := [place for place, row in zip(found.places, fields) if expected not in row]):
        raise UsageError(f"--expected {expected}: {lacking[0]} has no such field")
    return list(found.arguments[:limit]), None if expected is None else [row[expected] for row in fields]


def _where() -> dict[str, str]:
    """Return when, where and with which lmc was measured."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "lmc": f"lmc {lmc.__version__}",
    }


def _row(line: Any) -> dict[str, str]:
    times = {f"{name} {share}": f"{getattr(spread, share):.3f}" for name, spread in (("first", line.first), ("total", line.total)) for share in SHARES}
    return {
        "": line.way, "seconds": f"{line.seconds:.3f}", "range": f"{line.least:.3f}-{line.most:.3f}",
        "faster": "" if line.speedup is None else f"{line.speedup:.2f}x", **times,
        "requests": str(line.requests), "prompt": str(line.prompt_tokens),
        "computed": str(line.computed_tokens), "generated": str(line.generated_tokens), "forced": str(line.forced_tokens or ""),
        "passes": str(line.passes or ""), "ahead": f"{line.ahead_used}/{line.ahead_asked}" if line.ahead_asked else "",
        "price": "" if line.cost is None else f"{line.cost:.4f}", "same": f"{line.same:.0%}",
        "accuracy": "" if line.accuracy is None else f"{line.accuracy:.0%}",
    }  # fmt: skip


def _table(rows: list[dict[str, str]]) -> str:
    """Return aligned columns, without empty ones."""
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    lines = [names, *([row[name] for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join("  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths))).rstrip() for line in lines)
