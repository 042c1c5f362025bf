"""`lmc dump-fsm`: the automaton of a constraint."""

from __future__ import annotations

import time
import warnings
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmc.cli.console import text_of, write
from lmc.cli.errors import as_usage
from lmc.cli.options import OutputFile, unset
from lmc.errors import ConstraintError, SchemaWarning
from lmc.userfiles import UsageError

if TYPE_CHECKING:
    from lmc.fsm.bytedfa import ByteDFA
    from lmc.fsm.lazy import Machine


class Drawing(StrEnum):
    """Output format of an automaton."""

    text = "text"
    dot = "dot"
    html = "html"


def dump_fsm(
    regex: Annotated[
        str | None, typer.Argument(metavar="REGEX", show_default=False, help="A pattern in Python's syntax, with ASCII classes; (?u) makes them Unicode.")
    ] = None,
    schema: Annotated[Path | None, unset(metavar="FILE", help="File with a JSON schema.")] = None,
    lark: Annotated[Path | None, unset(metavar="FILE", help="File with a grammar in Lark's syntax.")] = None,
    format: Annotated[Drawing, typer.Option(help="dot is for Graphviz, html is a page for a browser.")] = Drawing.text,
    output: OutputFile = None,
) -> None:
    """Show the automaton of a regex, a JSON schema or a Lark grammar.

    It shows which text is forced, and where there is a choice. If an engine builds it only while it is used, say why, and describe it; all
    edges of such a one, or of a large one, are written with -o FILE.

    \b
    Examples:
      lmc dump-fsm '\\{"summary": "[\\w ]+", "grade": "[ABCD][+-]?"\\}'
      lmc dump-fsm 'yes|no' --format html -o answer.html
      lmc dump-fsm --schema person.json
      lmc dump-fsm --lark dates.lark --format dot
    """
    from lmc.fsm import draw
    from lmc.fsm.compress import compress
    from lmc.fsm.lazy import LazyDFA
    from lmc.fsm.sources import automaton_of

    given = [(kind, source) for kind, source in (("regex", regex), ("json_schema", schema), ("lark", lark)) if source is not None]
    if len(given) != 1:
        raise UsageError("give a REGEX, --schema FILE or --lark FILE")
    [(kind, source)] = given
    with _said_below(), as_usage():
        text = source if isinstance(source, str) else text_of(source)
        dfa = automaton_of(kind, text)
        machine, cost = _engines(kind, text)
        if format is Drawing.text and (dfa is None or (output is None and isinstance(machine, LazyDFA))):
            write("\n".join([*made_while_used(kind, text, dfa), cost, *_notes(kind, text)]), output)
            return
        if dfa is None:
            raise ConstraintError(f"{source}: no whole automaton to draw: it recurs or is too large; --format text says what it is like")
    if dfa.states > _MOST_STATES:
        if format is Drawing.text and output is None:
            write("\n".join([cost, *_notes(kind, text)]), output)
            return
        raise UsageError(f"the automaton has {dfa.states:,} states, too many to draw (the limit is {_MOST_STATES:,}); shorten the repeats in it")
    fsm = compress(dfa)
    if format is Drawing.html:
        write(draw.to_html(fsm, str(source)), output)
    elif format is Drawing.dot:
        write(draw.to_dot(fsm), output)
    elif output is None and len(fsm.edges) > _MOST_EDGES:
        write("\n".join([draw.summary(fsm), "its edges are not shown: -o FILE writes them, --format html draws them", cost, *_notes(kind, text)]), output)
    else:
        write("\n".join([draw.to_text(fsm), cost, *_notes(kind, text)]), output)


def made_while_used(kind: str, source: str, dfa: ByteDFA | None) -> list[str]:
    """Return facts about a constraint that is built on demand: why, how large it is, and the text forced at its beginning. `dfa`: its
    whole automaton, if it has one."""
    from lmc.fsm.compress import chain_label
    from lmc.fsm.lazy import MOST_FORMS, MOST_ROWS
    from lmc.fsm.sources import grammar_of, lazily

    grammar = grammar_of(kind, source)
    machine = lazily(grammar)
    machine.begin()
    forced, state = machine.forced(0)
    if grammar.recursive:
        why = f"it recurs (recursive rules: {len(grammar.recursive)} of {len(grammar.rules)})"
    elif dfa is None:
        why = "its whole automaton is too large"
    else:
        why = f"its whole automaton takes long to find, and has {dfa.states:,} states, {dfa.nbytes / 1024:,.0f} KiB, {dfa.forced_share:.0%} of them forced"
    begins = f"{chain_label(forced)} is forced at its beginning, then" if forced else "nothing is forced at its beginning;"
    return [
        f"made while it is used: {why}",
        f"{begins} {machine.ways_at(state)} bytes are legal; {machine.states} states so far",
        f"a step may look at {MOST_FORMS:,} continuations, and at {machine.forms_a_step:,} on average; an answer may reach {MOST_ROWS:,} states",
    ]


def _said_below() -> AbstractContextManager[None]:
    return warnings.catch_warnings(action="ignore", category=SchemaWarning)


def _engines(kind: str, source: str) -> tuple[Machine, str]:
    """Return the engine's machine for a constraint, and what it is and costs."""
    from lmc.fsm.json_schema import compile_schema
    from lmc.fsm.lazy import LazyDFA
    from lmc.fsm.sources import machine_of

    compile_schema.cache_clear()
    begin = time.process_time()
    with _said_below():
        machine = machine_of(kind, source)
    took = f"{1e3 * (time.process_time() - begin):.1f} ms of CPU"
    if isinstance(machine, LazyDFA):
        return machine, f"an engine makes it while it is used: {took} to begin"
    return machine, (
        f"an engine compiles all of it: {took}, {machine.states:,} states over bytes, {machine.nbytes / 1024:,.0f} KiB, "
        f"{machine.forced_share:.0%} of the states forced"
    )


def _notes(kind: str, source: str) -> list[str]:
    """Return what a schema's notes list as ignored, or checked when the answer ends."""
    from lmc.fsm.json_schema import compile_schema

    said = str(compile_schema(source).notes) if kind == "json_schema" else ""
    return [said] if said else []


_MOST_STATES = 20_000  # that are drawn
_MOST_EDGES = 400  # that are written to a terminal
