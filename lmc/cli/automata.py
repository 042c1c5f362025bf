"""`lmc dump-fsm`: the automaton of a constraint."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lmc.cli.console import text_of, write
from lmc.cli.errors import as_usage
from lmc.cli.options import OutputFile
from lmc.errors import ConstraintError
from lmc.userfiles import UsageError


class Drawing(StrEnum):
    """How an automaton is shown."""

    text = "text"
    dot = "dot"
    html = "html"


def dump_fsm(
    regex: Annotated[str | None, typer.Argument(metavar="REGEX", show_default=False,
                                                help="A pattern in Python's dialect, with ASCII classes; (?u) asks for Unicode.")] = None,
    schema: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="A JSON schema instead of a regex.")] = None,
    format: Annotated[Drawing, typer.Option(help="dot is for graphviz; html is one file to open in a browser.")] = Drawing.text,
    output: OutputFile = None,
) -> None:
    """Shows the compressed automaton of a regex or a JSON schema: which text is forced, and where there is a choice.

    \b
    Examples:
      lmc dump-fsm '\\{"summary": "[\\w ]+", "grade": "[ABCD][+-]?"\\}'
      lmc dump-fsm 'yes|no' --format html -o answer.html
      lmc dump-fsm --schema person.json
    """
    from lmc.fsm import draw
    from lmc.fsm.compress import compress
    from lmc.fsm.dfa import compile_regex
    from lmc.fsm.sources import automaton_of

    if (regex is None) == (schema is None):
        raise UsageError("give a REGEX or --schema FILE")
    with as_usage():
        if regex is not None:
            dfa = compile_regex(regex)
        else:
            assert schema is not None
            dfa = automaton_of("json_schema", text_of(schema))
            if dfa is None:
                raise ConstraintError(f'{schema}: no automaton: it recurs or is too large; give it "x-lmc": {{"depth": 2}}')
    if dfa.states > _MOST_STATES:
        raise UsageError(f"the automaton has {dfa.states:,} states, and nobody can look at more than {_MOST_STATES:,}; shorten the repeats in it")
    fsm = compress(dfa)
    if format is Drawing.html:
        write(draw.to_html(fsm, regex or str(schema)), output)
    else:
        write(draw.to_dot(fsm) if format is Drawing.dot else draw.to_text(fsm), output)


_MOST_STATES = 20_000  # that are drawn
