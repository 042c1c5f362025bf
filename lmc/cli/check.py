"""`lmc check`: static checks of programs' graphs before any run."""

from __future__ import annotations

import math
import os
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from lmc import named, userfiles
from lmc.cli.console import say
from lmc.cli.models import open_backend
from lmc.cli.options import BackendName, unset
from lmc.userfiles import UsageError


def check(
    target: Annotated[str, typer.Argument(metavar="FILE.py[:FUNCTION]", show_default=False, help="The program; without :FUNCTION, all programs in the file.")],
    backend: BackendName = "mock",
    prices: Annotated[
        str | None, unset(metavar="IN,OUT[,CACHED]", help="Price in dollars of a million prompt tokens, answer tokens and cached prompt tokens.")
    ] = None,
    context: Annotated[int | None, typer.Option(min=1, metavar="TOKENS", show_default="the backend's", help="Length of the model's context.")] = None,
) -> None:
    """Report likely mistakes in a program, and roughly what a run will cost. The program does not run and makes no request; its file is imported,
    so what runs the program belongs under `if __name__ == "__main__":`.

    The mistakes are programs that ask nothing, expressions that are not appended, gens that are never read, have no prompt or are in a
    user's message, states made text, prompts that hardly fit the context, stops that cannot occur, choices that begin with another choice,
    terminals of a grammar that match the same text, and arguments or answers inside a system message.
    No API key is needed. The exit code is 1 if any is found.

    \b
    Examples:
      lmc check examples/judge.py:judge
      lmc check my.py --backend openai:gpt-4.1-mini --prices 0.40,1.60,0.10 --context 1000000
    """
    import lmc
    from lmc.checking import check as checked

    charged, note = _prices(prices, backend)
    found = 0
    with closing(open_backend(backend, partial(named.open_unasked, prices=charged))) as model:
        able = model.capabilities
        for program in _programs(target):
            findings, estimate = checked(lmc.compile(program, backend=model), context or able.max_context, model)
            for finding in findings:
                place = finding.loc and replace(finding.loc, file=os.path.relpath(finding.loc.file))
                print(replace(finding, loc=place))
            print(f"{program.name}: {len(findings) or 'no'} finding{'s'[: len(findings) != 1]}; a run: {estimate}")
            found += len(findings)
    if backend == "mock":
        say(f"note: tokens are counted as bytes; name a model with -b for its tokens{' and context' if context is None else ''}")
    if note:
        say(note)
    if found:
        raise typer.Exit(1)


def _prices(text: str | None, backend: str) -> tuple[Any, str]:
    """Return a backend's prices, and a note: their source, or how to give them."""
    import lmc
    from lmc.pricelist import listed

    if text is None:
        if named.is_model(backend):
            return None, ""
        if backend == "mock":
            return None, "note: for a price, name an API: --backend openai:MODEL --prices IN,OUT[,CACHED] (dollars for a million tokens)"
        found = listed(backend)
        if found is None:
            return None, f"note: no price of {named.public(backend)} is known; give --prices IN,OUT[,CACHED] (dollars for a million tokens)"
        charged, source = found
        shown = ",".join(f"{price:g}" for price in (charged.prompt, charged.completion, charged.cached) if price is not None)
        return charged, f"note: prices are those of {source} for {named.public(backend)}: --prices {shown}"
    if backend == "mock" or named.is_model(backend):
        raise UsageError(f"--prices: {backend} runs in this process and charges nothing; name an API or a server with --backend")
    try:
        prompt, completion, *cached = map(float, text.split(","))
        if len(cached) > 1 or not all(0 <= price < math.inf for price in (prompt, completion, *cached)):
            raise ValueError
    except ValueError:
        raise UsageError(f"--prices {text}: expected two or three numbers, such as 0.40,1.60 or 0.40,1.60,0.10") from None
    return lmc.Prices(prompt, completion, *cached), ""


def _programs(target: str) -> list[Any]:
    if target.endswith(".lmcp"):
        raise UsageError(f"{target} is a saved program; lmc check takes the source: FILE.py, or FILE.py:FUNCTION")
    file, colon, _ = target.rpartition(":")
    if colon and file.endswith(".py"):
        return [userfiles.load_program(target)]
    found = list(userfiles.programs_of(userfiles.import_file(Path(target))).values())
    if not found:
        raise UsageError(f"{target} has no program: a function decorated with @lmc.function")
    return found
