"""`lmc replay`: a journaled run step by step, and what if."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from lmc import userfiles
from lmc.cli.console import say, write
from lmc.cli.errors import RunFailed, as_usage
from lmc.cli.journal import KeyFile, key_of
from lmc.cli.models import open_backend
from lmc.cli.options import BACKENDS, unset
from lmc.userfiles import UsageError


def replay(
    path: Annotated[Path, typer.Argument(metavar="JOURNAL", show_default=False, help="A run's journal, or a batch's directory.")],
    target: Annotated[
        str | None, typer.Argument(metavar="FILE.py:FUNCTION", show_default=False, help="The run's program; with it, prompts and source lines are shown.")
    ] = None,
    item: Annotated[int | None, unset("--item", metavar="N", help="Number of one run of a batch.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per run.")] = False,
    html: Annotated[Path | None, unset("--html", metavar="FILE", help="Write a page for a browser.")] = None,
    at: Annotated[int | None, unset("--from", metavar="STEP", help="What if: make the requests from this step on anew.")] = None,
    answer: Annotated[str | None, unset("--answer", metavar="TEXT", help="What if: take this as the answer of step --from.")] = None,
    backend: Annotated[str, typer.Option("--backend", "-b", metavar="NAME", help="Backend for the steps from --from on: " + BACKENDS)] = "mock",
    effects: Annotated[
        bool, typer.Option("--run-effects", help="Make the calls of tools after --from, instead of taking their results from the journal.")
    ] = False,
    key_file: KeyFile = None,
) -> None:
    """Show a journaled run step by step: source line, prompt, answer, tokens, decisions, effects. The journal is never changed.

    \b
    Examples:
      python examples/durable_research.py sleep.journal        (writes a journal)
      lmc replay sleep.journal
      lmc replay sleep.journal examples/durable_research.py:research --html run.html
      lmc replay sleep.journal examples/durable_research.py:research --from 10 --answer "koalas" --backend smollm2 --run-effects
    """
    from lmc.durable import steps, viewer

    if target is None and at is not None:
        raise UsageError("--from makes the run again, which takes its program: lmc replay JOURNAL FILE.py:FUNCTION --from STEP")
    if at is None and (answer is not None or effects):
        raise UsageError("--answer and --run-effects belong to --from STEP")
    userfiles.check_folder(html, "--html")
    with as_usage():
        if target is None:
            stories = steps.listed(path, item, key_of(key_file))
        else:
            program, change = userfiles.load_program(target), None if at is None else viewer.WhatIf(at, answer, effects)
            with closing(open_backend(backend)) as model:
                stories = viewer.replayed(path, program, model, item, change, key_of(key_file))
    broken = [story.item for story in stories if not story.whole]
    if html is not None:
        write(steps.to_html(stories, f"{path}"), html)
    if as_json or html is None:
        typer.echo(steps.to_json(stories) if as_json else steps.to_text(stories))
    if target is None and not as_json and html is None:
        say(f"prompts, names and lines of what was asked: lmc replay {quote(str(path))} FILE.py:{stories[0].program if stories else 'FUNCTION'}")
    if broken:
        raise RunFailed(f"run {', '.join(map(str, broken[:5]))} cannot be made again like this; its title says why")
