"""The command: its subcommands, exceptions as messages and exit codes, and how an interrupted one ends."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time
import traceback
from importlib import import_module
from typing import Annotated

import typer

import lmc
from lmc.cli.automata import dump_fsm
from lmc.cli.bench import bench
from lmc.cli.chat import chat
from lmc.cli.check import check
from lmc.cli.console import say
from lmc.cli.environment import env
from lmc.cli.errors import as_usage, explain, is_systems
from lmc.cli.graphs import dump_ir, opt
from lmc.cli.journal import journal
from lmc.cli.models import warmup
from lmc.cli.replay import replay
from lmc.cli.run import run
from lmc.cli.serve import new_key, serve
from lmc.cli.trace import trace
from lmc.config import config
from lmc.errors import ModelLoadError
from lmc.extras import require
from lmc.userfiles import UsageError

app = typer.Typer(
    name="lmc",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="""Compile and run language-model programs: Python functions that call a model many times.

    \b
    Start here:
      lmc run examples/chat.py:chat --arg 'questions=["What is the capital of France?"]' --max-tokens 32
      lmc run examples/judge.py:judge --input examples/data/essays.jsonl --output grades.jsonl
      lmc dump-ir examples/judge.py:judge

    Help on a command: lmc run --help
    """,
)

for command in (run, chat, check, bench, trace, replay, dump_ir, opt, dump_fsm, serve, new_key, warmup, env):
    app.command(command.__name__.replace("_", "-"))(command)
app.add_typer(journal, name="journal")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"lmc {lmc.__version__}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")] = False) -> None:
    pass


def main() -> None:
    """Run the command and turn exceptions into one message and an exit code: the console script."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):  # in a locale without Unicode: files and pipes are read as UTF-8, terminals as they are
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")
    try:
        with as_usage():
            if config().otel:  # a bad LMC_… variable is reported before anything else happens
                require("LMC_OTEL=1", "otel")
                import_module("lmc.integrations.otel").provide()
        app()
    except BrokenPipeError:  # the reader of our output has gone, e.g. `lmc dump-ir … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        _leave()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # typer raises it on Ctrl-C inside a command
            _leave()
        raise
    except Exception as error:
        if _debugging():
            traceback.print_exc()
        else:
            say(f"error: {explain(error)}")
        sys.exit(2 if isinstance(error, UsageError | ModelLoadError) or is_systems(error) else 1)


def _open_what_is_closed() -> None:
    """Let standard streams that the caller has closed (`>&-`) lead nowhere: files opened later would take their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(nowhere := os.open(os.devnull, os.O_RDWR), number)
            if nowhere != number:
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False))


INTERRUPTED = 130


def _leave() -> None:
    """End an interrupted command now: Python itself would wait for threads that are in a program's own code."""
    until = time.monotonic() + 0.5  # those that wait for the model end when it is closed
    while (left := _own_code_running()) and time.monotonic() < until:
        time.sleep(0.01)
    say("interrupted" + (f"; the program's own code was still running in {left} of its threads and is cut off" if left else ""))
    if not left:
        sys.exit(INTERRUPTED)
    sys.stdout.flush()
    os._exit(INTERRUPTED)


def _own_code_running() -> int:
    """Return how many threads of pools are not idle."""
    frames = sys._current_frames()
    workers = [t for t in threading.enumerate() if re.fullmatch(r"lmc-.*_\d+", t.name) and t.ident in frames]
    return sum(not frames[t.ident or 0].f_code.co_filename.endswith(os.path.join("futures", "thread.py")) for t in workers)


def _debugging() -> bool:
    return os.environ.get("LMC_DEBUG") in set("12345")  # a wrong value is itself the error
