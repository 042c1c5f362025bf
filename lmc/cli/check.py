"""`lmc check`: what programs' graphs show before any run."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lmc import userfiles
from lmc.cli.models import open_backend
from lmc.cli.options import BackendName
from lmc.userfiles import UsageError


def check(
    target: Annotated[str, typer.Argument(metavar="FILE.py[:FUNCTION]", show_default=False, help="A program; without :FUNCTION all of the file.")],
    backend: BackendName = "mock",
    context: Annotated[int | None, typer.Option(min=1, metavar="TOKENS", show_default="the backend's", help="Tokens that the model can see.")] = None,
) -> None:
    """Reports likely mistakes in a program, and roughly what a run will cost. No model is asked, and nothing of the program runs.

    Looks for gens that nobody reads, prompts near the context, stops that cannot occur, choices of which one begins another, arguments and
    answers inside a system message. Exit code 1 if there is something.

    \b
    Examples:
      lmc check examples/judge.py:judge
      lmc check my.py --backend openai:gpt-4.1-mini --context 128000
    """
    import lmc
    from lmc.checking import check as checked

    found = 0
    with closing(open_backend(backend)) as model:
        able = model.capabilities
        for program in _programs(target):
            findings, estimate = checked(lmc.compile(program, backend=model), context or able.max_context, model)
            for finding in findings:
                place = finding.loc and replace(finding.loc, file=os.path.relpath(finding.loc.file))
                print(replace(finding, loc=place))
            print(f"{program.name}: {len(findings) or 'nothing'} to look at; a run: {estimate}")
            found += len(findings)
    if found:
        raise typer.Exit(1)


def _programs(target: str) -> list[Any]:
    file, colon, _ = target.rpartition(":")
    if colon and file.endswith(".py"):
        return [userfiles.load_program(target)]
    found = list(userfiles.programs_of(userfiles.import_file(Path(target))).values())
    if not found:
        raise UsageError(f"{target} has no program: a function decorated with @lmc.function")
    return found
