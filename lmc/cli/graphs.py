"""`lmc dump-ir` and `lmc opt`: the graph of a program, and passes on a graph."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lmc import userfiles
from lmc.cli.console import say, text_of, write
from lmc.cli.errors import as_usage
from lmc.cli.models import open_backend
from lmc.cli.options import Arguments, BackendName, Format, NoLoc, OutputFile, Target, unset
from lmc.userfiles import UsageError


def dump_ir(
    target: Target,
    arg: Arguments = None,
    after: Annotated[str | None, unset(metavar="PASS", help="Show the graph as it is after this pass; trace: before any.")] = None,
    format: Annotated[Format, typer.Option(help="text can be read back (lmc opt), dot is for Graphviz, html is a page for a browser.")] = Format.text,
    no_loc: NoLoc = False,
    output: OutputFile = None,
    backend: BackendName = "mock",
) -> None:
    """Show what a program requests, as a graph, before any run. The program does not run and makes no request; its file is imported, so what
    runs the program belongs under `if __name__ == "__main__":`. Arguments without an --arg are unknown.

    \b
    Examples:
      lmc dump-ir examples/judge.py:judge
      lmc dump-ir examples/react.py:react --arg max_steps=2
      lmc dump-ir examples/judge.py:judge --after plan-prefix --no-loc
      lmc dump-ir judge.lmcp                            (saved by program.save; nothing of it is executed)
      lmc dump-ir examples/tree_of_thought.py:solve --format html -o tree.html
      lmc dump-ir examples/judge.py:judge --format dot | dot -Tsvg > judge.svg
    """
    import lmc

    if no_loc and format is not Format.text:
        raise UsageError(f"--no-loc is for text, not for --format {format.value}")
    if target.endswith(".lmcp"):
        if arg:
            raise UsageError(f"{target} is a saved program, whose graph is there: leave --arg out")
        compiled = lmc.load(target, backend=open_backend(backend))
        program, arguments = compiled.function, {}
    else:
        program = userfiles.load_program(target)
        arguments = userfiles.parse_arguments(program, arg or ())
        compiled = lmc.compile(program, backend=open_backend(backend))
    if arguments:
        compiled.lower(**arguments)
    with as_usage():
        text = compiled.dump_ir(after=after, format=format.value)
    write(_without_locs(text) if no_loc else text, output)


def _without_locs(text: str) -> str:
    from lmc.ir.builder import without_locs
    from lmc.ir.parser import parse
    from lmc.ir.text import print_graph

    return print_graph(without_locs(parse(text)))


def opt(
    file: Annotated[Path, typer.Argument(metavar="FILE.lmir", show_default=False, help="The graph, as text.")],
    passes: Annotated[
        str | None,
        unset(
            "--passes",
            metavar="PIPELINE",
            help="Names of passes in the order in which they run, separated by commas, with options in braces: "
            "plan-prefix{min_chars = 4}. [default: the pipeline of --target]",
        ),
    ] = None,
    target: Annotated[str, typer.Option(metavar="KIND", help="Kind of backend to compile for: tokens, text or chat.")] = "tokens",
    template: Annotated[str, typer.Option(metavar="NAME", help="Name of the chat template.")] = "chatml",
    greedy: Annotated[bool, typer.Option("--greedy", help="Assume temperature 0 for requests that set none.")] = False,
    verify_each: Annotated[bool, typer.Option("--verify-each", help="Check the graph after every pass.")] = False,
    print_after: Annotated[str, unset("--print-after", metavar="PASSES", help="Print the graph to standard error after these passes, or after all.")] = "",
    timing: Annotated[bool, typer.Option("--timing", help="Print time and statistics of each pass to standard error.")] = False,
    list_passes: Annotated[
        bool, typer.Option("--list", help="List all passes with their options, and exit.", is_eager=True, callback=lambda wanted: _list_passes(wanted))
    ] = False,
    no_loc: NoLoc = False,
    output: OutputFile = None,
) -> None:
    """Run passes on a graph, and print the result.

    \b
    Examples:
      lmc dump-ir examples/judge.py:judge --after trace -o judge.lmir
      lmc opt judge.lmir --timing
      lmc opt judge.lmir --passes='canonicalize,plan-prefix{min_chars = 4}' --print-after=canonicalize
    """
    from lmc.chat import get_chat_template
    from lmc.ir.builder import without_locs
    from lmc.ir.parser import parse
    from lmc.ir.text import print_graph
    from lmc.passes.base import Target
    from lmc.passes.manager import PassManager, parse_pipeline, pipeline_for

    source = text_of(file)
    if file.suffix == ".py":
        raise UsageError(f"{file} is a program, not a graph; write its graph with: lmc dump-ir {file}:FUNCTION --after trace -o FILE.lmir")
    with as_usage():
        compiled_for = Target(target, get_chat_template(template), greedy)
        chosen = parse_pipeline(passes) if passes is not None else pipeline_for(compiled_for)
        manager = PassManager(chosen, verify_each=verify_each, print_after=print_after)
    planned = manager.plan(parse(source, str(file)), compiled_for)
    for note in planned.notes:  # changes visible to a reader of prompts
        say(note)
    if timing:
        print(planned.table(), file=sys.stderr)
    write(print_graph(without_locs(planned.graph) if no_loc else planned.graph), output)


def _list_passes(wanted: bool) -> None:
    """`lmc opt --list`: Print the passes for `lmc opt --list`: descriptions, and options with their defaults."""
    from lmc.passes.manager import described

    if wanted:
        typer.echo("\n".join(described()))
        raise typer.Exit
