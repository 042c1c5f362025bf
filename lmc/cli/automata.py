"""`lmc dump-fsm`: the automaton of a constraint."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmc.cli.console import text_of, write
from lmc.cli.errors import as_usage
from lmc.cli.options import OutputFile
from lmc.errors import ConstraintError
from lmc.userfiles import UsageError

if TYPE_CHECKING:
    from lmc.fsm.bytedfa import ByteDFA


class Drawing(StrEnum):
    """How an automaton is shown."""

    text = "text"
    dot = "dot"
    html = "html"


def dump_fsm(
    regex: Annotated[str | None, typer.Argument(metavar="REGEX", show_default=False,
                                                help="A pattern in Python's dialect, with ASCII classes; (?u) asks for Unicode.")] = None,
    schema: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="A JSON schema instead of a regex.")] = None,
    lark: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="A grammar in Lark's syntax instead of a regex.")] = None,
    format: Annotated[Drawing, typer.Option(help="dot is for graphviz; html is one file to open in a browser.")] = Drawing.text,
    output: OutputFile = None,
) -> None:
    """Shows the compressed automaton of a regex, a JSON schema or a Lark grammar: which text is forced, and where there is a choice.

    \b
    Examples:
      lmc dump-fsm '\\{"summary": "[\\w ]+", "grade": "[ABCD][+-]?"\\}'
      lmc dump-fsm 'yes|no' --format html -o answer.html
      lmc dump-fsm --schema person.json
      lmc dump-fsm --lark dates.lark --format dot
    """
    from lmc.fsm import draw
    from lmc.fsm.compress import compress

    given = [(kind, source) for kind, source in (("regex", regex), ("json_schema", schema), ("lark", lark)) if source is not None]
    if len(given) != 1:
        raise UsageError("give a REGEX, --schema FILE or --lark FILE")
    [(kind, source)] = given
    with as_usage():
        dfa = _automaton(kind, source)
    if dfa.states > _MOST_STATES:
        raise UsageError(f"the automaton has {dfa.states:,} states, and nobody can look at more than {_MOST_STATES:,}; shorten the repeats in it")
    fsm = compress(dfa)
    if format is Drawing.html:
        write(draw.to_html(fsm, str(source)), output)
    else:
        write(draw.to_dot(fsm) if format is Drawing.dot else draw.to_text(fsm), output)


def _automaton(kind: str, source: str | Path) -> ByteDFA:
    from lmc.fsm.dfa import compile_regex
    from lmc.fsm.sources import automaton_of

    if isinstance(source, str):
        return compile_regex(source)
    dfa = automaton_of(kind, text_of(source))
    if dfa is None:
        instead = '; give it "x-lmc": {"depth": 2}' if kind == "json_schema" else ""
        raise ConstraintError(f"{source}: no automaton: it recurs or is too large{instead}")
    return dfa


_MOST_STATES = 20_000  # that are drawn
