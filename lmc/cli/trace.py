"""`lmc trace`: a timeline of events, for a trace viewer."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from lmc import userfiles
from lmc.cli.console import progress, say
from lmc.cli.errors import RunFailed
from lmc.cli.models import open_backend
from lmc.cli.options import Arguments, InputFile, MaxTokens, ModelName, Target, Temperature, unset
from lmc.cli.run import Job, arguments_of, one_source, sampling
from lmc.config import config
from lmc.items import read_items
from lmc.pages import several


def trace(
    target: Target,
    arg: Arguments = None,
    input_file: InputFile = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write the trace to; - for standard output.")] = Path("trace.json"),
    backend: ModelName = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    seed: Annotated[int | None, unset(metavar="N", help="Seed, which makes sampling repeatable.")] = None,
) -> None:
    """Run a program and record what happens when, for ui.perfetto.dev or chrome://tracing.

    The trace has programs, their ops with source lines and tokens, host calls, and the model's passes, but no prompts or answers.

    \b
    Examples:
      lmc trace examples/judge.py:judge --backend mock --arg essay=hello
      lmc trace examples/judge.py:judge --input examples/data/essays.jsonl --output trace.json --max-tokens 32
    """
    one_source(arg, input_file)
    from lmc.timeline import trace as recorded

    program = userfiles.load_program(target)
    job = Job(program, backend or config().model or "smollm2", sampling(temperature, max_tokens, seed))
    printed = str(output) == "-"
    if not printed:
        userfiles.check_output(output, input_file)
    if input_file is None:
        items = [arguments_of(program, arg)]
    else:
        items = read_items(program, input_file).arguments
    with closing(open_backend(job.backend)) as model, recorded(sys.stdout if printed else output):
        states = list(progress(job.states(dict(enumerate(items)), model), len(items), model))
    say(f"wrote {several(len(states), 'run')} to {'standard output' if printed else output}; open it at ui.perfetto.dev or chrome://tracing")
    if failed := [i for i, state in states if state.error() is not None]:
        raise RunFailed(f"{len(failed)} of {len(states)} items ended with an error (index {', '.join(map(str, sorted(failed)[:5]))})")
